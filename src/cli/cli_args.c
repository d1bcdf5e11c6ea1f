/* Taking a command line apart, and finding what a mistyped word was meant to be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* --- nearest word -------------------------------------------------------------------------------------------------- */

#define MAX_WORD_BYTES 64

/* Levenshtein's distance, with swaps of neighbours as one edit; words that are too long are far from everything. */
static int edit_distance(const char *a, const char *b)
{
    const size_t a_bytes = strlen(a);
    const size_t b_bytes = strlen(b);
    int rows[3][MAX_WORD_BYTES + 1];
    if (a_bytes > MAX_WORD_BYTES || b_bytes > MAX_WORD_BYTES) {
        return MAX_WORD_BYTES;
    }
    for (size_t j = 0; j <= b_bytes; j++) {
        rows[0][j] = (int)j;
    }
    for (size_t i = 1; i <= a_bytes; i++) {
        int *const row = rows[i % 3];
        const int *const above = rows[(i + 2) % 3];
        const int *const above_twice = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            const int changed = above[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
            row[j] = changed < above[j] + 1 ? changed : above[j] + 1;
            row[j] = row[j - 1] + 1 < row[j] ? row[j - 1] + 1 : row[j];
            const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (is_swap && above_twice[j - 2] + 1 < row[j]) {
                row[j] = above_twice[j - 2] + 1;
            }
        }
    }
    return rows[a_bytes % 3][b_bytes];
}

const char *cli_nearest(const char *text, const char *(*name_of)(int idx, const void *user),
                        int num, const void *user)
{
    const char *nearest = NULL;
    int least = (int)strlen(text) / 3 + 2; /* further away is another word */
    for (int i = 0; i < num; i++) {
        const int distance = edit_distance(text, name_of(i, user));
        if (distance < least) {
            least = distance;
            nearest = name_of(i, user);
        }
    }
    return nearest;
}

/* --- options ------------------------------------------------------------------------------------------------------- */

static int num_options(const cli_command *command)
{
    int num = 0;
    while (command->options != NULL && command->options[num].name != NULL) {
        num++;
    }
    return num;
}

static const char *option_name(int idx, const void *user)
{
    return ((const cli_command *)user)->options[idx].name;
}

static int find_option(const cli_command *command, const char *name, size_t name_bytes)
{
    for (int i = 0; i < num_options(command); i++) {
        if (strlen(command->options[i].name) == name_bytes &&
            strncmp(command->options[i].name, name, name_bytes) == 0) {
            return i;
        }
    }
    return -1;
}

static bool refuse_option(const cli_command *command, const char *arg, size_t name_bytes)
{
    char name[MAX_WORD_BYTES + 1] = "";
    if (name_bytes <= MAX_WORD_BYTES) {
        memcpy(name, arg + 2, name_bytes);
        name[name_bytes] = '\0';
    }
    const char *const nearest = cli_nearest(name, option_name, num_options(command), command);
    (void)cli_fail(LG_INVALID_ARG, "%s: unknown option '%s'%s%s%s (leapgrad %s --help)",
                   command->name, arg, nearest != NULL ? "; did you mean --" : "",
                   nearest != NULL ? nearest : "", nearest != NULL ? "?" : "", command->name);
    return false;
}

/* Takes the option at argv[*idx], and its value behind it. */
static bool take_option(cli_args *args, const cli_command *command, int *idx)
{
    const char *const arg = args->argv[*idx];
    const char *const equals = strchr(arg, '=');
    const size_t name_bytes = equals != NULL ? (size_t)(equals - arg) - 2 : strlen(arg) - 2;
    const int option = find_option(command, arg + 2, name_bytes);
    if (option < 0) {
        return refuse_option(command, arg, name_bytes);
    }
    const cli_option *const about = &command->options[option];
    if (args->option_values[option] != NULL) {
        (void)cli_fail(LG_INVALID_ARG, "%s: --%s is given twice", command->name, about->name);
        return false;
    }
    if (about->value_name == NULL) {
        if (equals != NULL) {
            (void)cli_fail(LG_INVALID_ARG, "%s: --%s takes no value", command->name, about->name);
            return false;
        }
        args->option_values[option] = "";
        return true;
    }
    if (equals == NULL && *idx + 1 >= args->argc) {
        (void)cli_fail(LG_INVALID_ARG, "%s: --%s needs a value: --%s=%s", command->name,
                       about->name, about->name, about->value_name);
        return false;
    }
    const char *const value = equals != NULL ? equals + 1 : args->argv[++*idx];
    /* A text may be empty. A name is not: the variable was not set, and as a folder it would be the root. */
    if (value[0] == '\0' && strcmp(about->value_name, "TEXT") != 0) {
        (void)cli_fail(LG_INVALID_ARG, "%s: --%s is empty: --%s=%s", command->name, about->name,
                       about->name, about->value_name);
        return false;
    }
    args->option_values[option] = value;
    return true;
}

const char *cli_args_option(const cli_args *args, const cli_command *command, const char *name)
{
    const int option = find_option(command, name, strlen(name));
    return option >= 0 ? args->option_values[option] : NULL;
}

bool cli_asks_for_strategy(const cli_args *args)
{
    static const char key[] = "plan.strategy=";
    for (int i = 0; i < args->num_overrides; i++) {
        if (strncmp(args->overrides[i], key, sizeof key - 1) == 0) {
            return true;
        }
    }
    return false;
}

/* --- all of it ----------------------------------------------------------------------------------------------------- */

/* "section.key=value": a letter first, and no slash before the equals sign (that would be a path). */
static bool is_override(const char *arg)
{
    const char *const equals = strchr(arg, '=');
    const char *const slash = strchr(arg, '/');
    return equals != NULL && equals != arg && (slash == NULL || slash > equals);
}

static bool check_words(const cli_args *args, const cli_command *command)
{
    if (args->num_words < command->min_words) {
        (void)cli_fail(LG_INVALID_ARG, "usage: leapgrad %s %s (leapgrad %s --help)", command->name,
                       command->words, command->name);
        return false;
    }
    if (args->num_words > command->max_words) {
        (void)cli_fail(LG_INVALID_ARG, "%s: '%s' is one word too many; usage: leapgrad %s %s",
                       command->name, args->words[command->max_words], command->name,
                       command->words);
        return false;
    }
    return true;
}

/* Options that are short for keys become overrides, so that each way through a command sees them. */
static bool add_overrides_of_options(cli_args *args, const cli_command *command)
{
    static const char *const keys[][2] = {{"machine", "plan.machine"},
                                          {"strategy", "plan.strategy"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *const value = cli_args_option(args, command, keys[i][0]);
        if (value == NULL) {
            continue;
        }
        const size_t num_bytes = strlen(keys[i][1]) + strlen(value) + 2;
        args->made[i] = malloc(num_bytes);
        if (args->made[i] == NULL) {
            (void)cli_fail(LG_OUT_OF_MEMORY, "no memory for the command line");
            return false;
        }
        (void)snprintf(args->made[i], num_bytes, "%s=%s", keys[i][1], value);
        args->overrides[args->num_overrides++] = args->made[i];
    }
    return true;
}

bool cli_args_init(cli_args *args, const cli_command *command, int argc, char **argv)
{
    memset(args, 0, sizeof *args);
    args->argc = argc;
    args->argv = argv;
    args->words = calloc((size_t)argc + 1, sizeof *args->words);
    args->overrides = calloc((size_t)argc + CLI_MAX_OPTIONS, sizeof *args->overrides);
    if (args->words == NULL || args->overrides == NULL) {
        (void)cli_fail(LG_OUT_OF_MEMORY, "no memory for the command line");
        return false;
    }
    bool has_options_ended = false;
    for (int i = 2; i < argc; i++) {
        if (!has_options_ended && strcmp(argv[i], "--") == 0) {
            has_options_ended = true;
        } else if (!has_options_ended && strncmp(argv[i], "--", 2) == 0) {
            if (!take_option(args, command, &i)) {
                return false;
            }
        } else if (!has_options_ended && argv[i][0] == '-' && argv[i][1] != '\0') {
            (void)cli_fail(LG_INVALID_ARG, "%s: unknown option '%s' (options begin with '--')",
                           command->name, argv[i]);
            return false;
        } else if (is_override(argv[i])) {
            args->overrides[args->num_overrides++] = argv[i];
        } else {
            args->words[args->num_words++] = argv[i];
        }
    }
    return add_overrides_of_options(args, command) && check_words(args, command);
}

void cli_args_deinit(cli_args *args)
{
    for (int i = 0; i < CLI_MAX_OPTIONS; i++) {
        free(args->made[i]);
        args->made[i] = NULL;
    }
    free(args->words);
    free(args->overrides);
    args->words = NULL;
    args->overrides = NULL;
}
