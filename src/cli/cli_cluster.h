/* What the commands for plans over several ranks share. */
#ifndef LEAPGRAD_CLI_CLUSTER_H
#define LEAPGRAD_CLI_CLUSTER_H

#include "cli/cli.h"
#include "leapgrad/cluster.h"

#define CLI_CLUSTER_OPTIONS \
    {"model", "NAME", "a model by name instead of a recipe; --model=list lists them"}, \
        {"machine", "FILE", "plan for this machine: plan.machine=FILE"}, \
        {"strategy", "NAME", "plan.strategy=NAME"}, \
        {"csv", "FILE", "the order of a schedule as PyTorch writes it, instead of a strategy"}, \
    { \
        "equal-times", NULL, \
            "textbook times: F, I and W of a micro-batch 1 ms each on a rank, messages nothing; " \
            "needs no model" \
    }

/** What is said of a plan that was made for a machine file: the graph of the device that trains is another one. */
#define CLI_PLAN_ON_PAPER \
    "; for simulate, check and show with the same machine. To train so: the same ranks and " \
    "plan.strategy, of which train makes its own plan"

/** A cluster with what it was made from. */
typedef struct cli_cluster {
    lg_recipe *recipe;
    lg_rank_schedule *schedule; /* NULL: none given */
    lg_cluster_opts opts;
    lg_cluster *cluster;
    const char *name;      /* of model or recipe; NULL: neither */
    bool has_costs_of_run; /* and its machine: the target is a run's directory */
    const char *plan_path; /* check: the plan; NULL: the recipe's */
} cli_cluster;

/** Whether a command line is about several ranks or another machine; else the command is for this machine. */
bool cli_is_cluster(const cli_args *args, const cli_command *command);
/** Whether it is about a run over several ranks as it was, with the plan of its directory. */
bool cli_is_run_of_ranks(const cli_args *args, const cli_command *command);
/** Runs `work` on all ranks of a recipe, as threads of this process; alone with NULL. */
lg_status cli_run_ranks(const lg_recipe *recipe, lg_status (*work)(lg_comm *comm, void *user),
                        void *user);
/** Recipe and options of a command line. Release with cli_cluster_close(), after failures too. */
lg_status cli_cluster_open(cli_cluster *out, const cli_args *args, const cli_command *command);
/** The cluster, all but its plan. */
lg_status cli_cluster_create(cli_cluster *out);
void cli_cluster_close(cli_cluster *cluster);

/** Prints what the plan is for, then what it comes to, with a table of ranks. */
void cli_print_cluster(const cli_cluster *cluster);
/** Prints a table of ranks: busy, bubble, exposed communication, sent, peak. */
void cli_print_ranks(const lg_rank_stats *ranks, int num_ranks);
/** Saves a plan; a name that ends in ".csv": as a schedule. */
lg_status cli_save_plan(const lg_cluster *cluster, const char *path);

/** plan, check, show for several ranks. */
lg_status cli_cluster_plan(const cli_args *args, const cli_command *command);
lg_status cli_cluster_check(const cli_args *args, const cli_command *command);
lg_status cli_cluster_show(const cli_args *args, const cli_command *command);

extern const cli_command cli_simulate;
extern const cli_command cli_compare;
extern const cli_command cli_search;

#endif
