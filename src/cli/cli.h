/*
 * The command-line program: `leapgrad COMMAND TARGET [key=value ...] [--options]`. It sees include/leapgrad only, and is
 * the only part that prints. Results go to stdout; what went wrong is one line on stderr and an exit code.
 */
#ifndef LEAPGRAD_CLI_H
#define LEAPGRAD_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "leapgrad/recipe.h"
#include "leapgrad/run.h"
#include "leapgrad/search.h"
#include "leapgrad/selftest.h"

#define CLI_MAX_OPTIONS 8

/** An option of a command. */
typedef struct cli_option {
    const char *name;       /* "out": given as --out=VALUE or --out VALUE */
    const char *value_name; /* "FILE", not empty; "TEXT", may be; NULL: a switch */
    const char *help;
} cli_option;

/** A command line, taken apart. Texts point into argv, or belong to it. */
typedef struct cli_args {
    int num_words; /* what is neither an option nor key=value */
    const char **words;
    int num_overrides;
    const char **overrides;      /* key=value, then those that --machine and --strategy stand for */
    char *made[CLI_MAX_OPTIONS]; /* texts of the latter */
    const char *option_values
        [CLI_MAX_OPTIONS]; /* by the command's options; NULL: not given; a switch: "" */
    int argc;              /* as given, from the program's name on */
    char **argv;
} cli_args;

typedef struct cli_command {
    const char *name;
    const char *words; /* "RECIPE [key=value ...]" */
    int min_words;
    int max_words;
    const char *summary;
    const char *help;          /* some lines, or NULL */
    const cli_option *options; /* ends with a NULL name; NULL: none */
    lg_status (*run)(const cli_args *args);
} cli_command;

extern const cli_command cli_train;
extern const cli_command cli_eval;
extern const cli_command cli_generate;
extern const cli_command cli_plan;
extern const cli_command cli_check;
extern const cli_command cli_show;
extern const cli_command cli_profile;
extern const cli_command cli_doctor;
extern const cli_command cli_selftest;

/* --- arguments (cli_args.c) --- */

/** Takes a command line apart. Release with cli_args_deinit(), after failures too. */
bool cli_args_init(cli_args *args, const cli_command *command, int argc, char **argv);
void cli_args_deinit(cli_args *args);
/** The value of an option; NULL: not given. */
const char *cli_args_option(const cli_args *args, const cli_command *command, const char *name);
/** Whether it names a strategy: a run's directory is then about another plan than the run's own. */
bool cli_asks_for_strategy(const cli_args *args);
/** The one of `num` names (the i-th given by `name_of`) that `text` is most like; NULL: none is near. */
const char *cli_nearest(const char *text, const char *(*name_of)(int idx, const void *user),
                        int num, const void *user);

/* --- errors (main.c) --- */

/** Sets the one line that is printed when the command fails, in place of lg_last_error(). */
lg_status cli_fail(lg_status code, const char *format, ...) LG_PRINTF(2, 3);
/** Prints the line, if this process has a say; main() does it at the end, unless it was done. */
void cli_tell_failure(lg_status status);
/** The failure of this process is another one's to tell: nothing is printed. */
void cli_be_silent(bool has_no_say);

/* --- recipes and jobs (cli_job.c) --- */

/** Reads the recipe that `target` means: a recipe file, or a run directory or checkpoint with the recipe it was made by. */
lg_status cli_load_recipe(lg_recipe **out, const char *target, const cli_args *args);
bool cli_is_directory(const char *path);
/** `directory`/`name`. The caller frees it. */
char *cli_path(const char *directory, const char *name);
/** Makes a recipe's plan the plainest and quickest to make: for commands that do not train. */
lg_status cli_make_plain(lg_recipe *recipe);
/** For a run directory: the costs that it was planned with (with links between ranks, and how much lanes slow each other down), instead of measuring again. */
lg_status cli_use_costs_of_run(lg_recipe *recipe, const char *target);

/* --- ranks (cli_ranks.c) --- */

/**
 * Joins the other processes if an MPI launcher started several; *out stays NULL otherwise, and if they were given another command or
 * other options. Call it once, before anything is printed: all but rank 0 are silent from then on.
 */
lg_status cli_join_ranks(lg_comm **out, const cli_args *args, const cli_command *command);
/** Leaves; `status`: how it ended. Who prints a failure: rank 0, or, if that is the one that was lost, the next one. */
void cli_leave_ranks(lg_comm *comm, lg_status status);
/** How ranks reach each other, in words; NULL and "local": as threads of this process. */
const char *cli_comm_text(const char *comm_name);

/** One line on a link, if there is one (cmd_selftest.c). */
void cli_print_link(const char *what, const lg_link_report *link);

/* --- text (cli_text.c) --- */

#define CLI_TEXT_BYTES 64

/** "1.50 MiB" */
/** "PREFIX 1.2 ms; no order is faster (...); this plan takes 3.4 % longer". `step_ns` 0: without the last part. */
void cli_print_bound(const char *prefix, const lg_bound *bound, double step_ns);
const char *cli_format_bytes(char text[CLI_TEXT_BYTES], double bytes);
/** "1,234,567" */
const char *cli_format_count(char text[CLI_TEXT_BYTES], int64_t count);
/** "1:02:03" or "2:03" */
const char *cli_format_duration(char text[CLI_TEXT_BYTES], double seconds);
/** "12.3 ms", "45.6 us" */
const char *cli_format_ns(char text[CLI_TEXT_BYTES], double ns);

/** Prints a table of ops by kind: number, bytes written, time with each width. */
void cli_print_op_kinds(const lg_graph *graph, const lg_costs *costs);
/** Prints a plan's lanes with their load in a timeline of it. */
void cli_print_lanes(const lg_graph *graph, const lg_plan *plan, const lg_timeline *timeline);

#endif
