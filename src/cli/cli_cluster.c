/* Plans for several ranks: what the command line asks for, and how it is printed. */
#include "cli/cli_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/models.h"

/* Ranks that a table shows; of more, the first and the last ones. */
#define MAX_SHOWN_RANKS 32

/* --- which kind of plan ------------------------------------------------------------------------------------------------- */

static bool has_cluster_option(const cli_args *args, const cli_command *command)
{
    static const char *const options[] = {"model", "machine", "csv", "equal-times", NULL};
    for (int i = 0; options[i] != NULL; i++) {
        if (cli_args_option(args, command, options[i]) != NULL) {
            return true;
        }
    }
    return false;
}

bool cli_is_run_of_ranks(const cli_args *args, const cli_command *command)
{
    return args->num_words > 0 && cli_is_directory(args->words[0]) &&
           !has_cluster_option(args, command) && !cli_asks_for_strategy(args);
}

lg_status cli_run_ranks(const lg_recipe *recipe, lg_status (*work)(lg_comm *comm, void *user),
                        void *user)
{
    const int64_t num_ranks = recipe->ranks.pipeline * recipe->ranks.replicas;
    if (num_ranks == 1) {
        return work(NULL, user);
    }
    if (num_ranks > LG_COMM_MAX_LOCAL_RANKS) {
        return cli_fail(LG_NOT_SUPPORTED, "%lld ranks are more than one process can stand in for",
                        (long long)num_ranks);
    }
    return lg_run_local_ranks((int)num_ranks, recipe->ranks.timeout_s, work, user);
}

bool cli_is_cluster(const cli_args *args, const cli_command *command)
{
    if (has_cluster_option(args, command)) {
        return true;
    }
    if (args->num_words == 0) {
        return true; /* which will say what is missing */
    }
    /* What the recipe says; a recipe that cannot be read is told of by the usual way. */
    lg_recipe *recipe = NULL;
    if (cli_load_recipe(&recipe, args->words[0], args) != LG_OK) {
        return false;
    }
    const bool is_cluster =
        recipe->ranks.pipeline * recipe->ranks.replicas > 1 || recipe->plan.machine[0] != '\0';
    lg_recipe_destroy(recipe);
    return is_cluster;
}

/* --- opening ------------------------------------------------------------------------------------------------------------ */

static lg_status list_models(void)
{
    char names[1024] = "";
    size_t used = 0;
    for (int i = 0; lg_model_preset_name(i) != NULL && used < sizeof names; i++) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                                 lg_model_preset_name(i));
    }
    return cli_fail(LG_INVALID_ARG, "--model is one of %s", names);
}

/* A recipe of overrides only: nothing of it is about data. */
static lg_status make_recipe(lg_recipe **out, const cli_args *args)
{
    lg_status status = lg_recipe_default(out);
    for (int i = 0; i < args->num_overrides && status == LG_OK; i++) {
        const char *const equals = strchr(args->overrides[i], '=');
        const size_t key_bytes = (size_t)(equals - args->overrides[i]);
        char key[128] = "";
        if (key_bytes >= sizeof key) {
            return cli_fail(LG_INVALID_ARG, "unknown key '%.100s...'", args->overrides[i]);
        }
        memcpy(key, args->overrides[i], key_bytes);
        status = lg_recipe_set(*out, key, equals + 1);
    }
    return status;
}

/* With a schedule only the half for replicas is left to choose. */
static lg_status check_strategy_of_schedule(const char *strategy, const cli_command *command)
{
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        if (strcmp(lg_strategy_name(i), strategy) == 0 &&
            lg_strategy_role_of(i) != LG_STRATEGY_DATA) {
            return cli_fail(LG_INVALID_ARG,
                            "%s: the order is that of --csv, so '%s' has no part in it; a strategy "
                            "for replicas, such as priority, may go with it",
                            command->name, strategy);
        }
    }
    return LG_OK;
}

/* Whether an override begins like this. */
static bool has_key(const cli_args *args, const char *begin)
{
    for (int i = 0; i < args->num_overrides; i++) {
        if (strncmp(args->overrides[i], begin, strlen(begin)) == 0) {
            return true;
        }
    }
    return false;
}

lg_status cli_cluster_open(cli_cluster *out, const cli_args *args, const cli_command *command)
{
    const char *const model = cli_args_option(args, command, "model");
    const char *const csv = cli_args_option(args, command, "csv");
    const bool is_equal = cli_args_option(args, command, "equal-times") != NULL;
    memset(out, 0, sizeof *out);
    out->opts = lg_cluster_opts_default();
    const bool needs_recipe = model == NULL && csv == NULL && !is_equal;
    if (model != NULL && strcmp(model, "list") == 0) {
        return list_models();
    }
    /* check: the last word is the plan, unless it is the recipe that has one. */
    const bool is_check = strcmp(command->name, "check") == 0;
    const int num_plans =
        is_check && csv == NULL && (args->num_words == 2 || (args->num_words == 1 && !needs_recipe))
            ? 1
            : 0;
    const bool has_recipe = args->num_words > num_plans;
    out->plan_path = num_plans > 0 ? args->words[args->num_words - 1] : NULL;
    if (needs_recipe && !has_recipe) {
        return cli_fail(LG_INVALID_ARG,
                        "%s: of what? a recipe, --model=NAME, --csv=FILE or --equal-times "
                        "(leapgrad %s --help)",
                        command->name, command->name);
    }
    if (model != NULL && has_recipe) {
        return cli_fail(LG_INVALID_ARG, "%s: a recipe ('%s') and --model: give one of them",
                        command->name, args->words[0]);
    }
    lg_status status = has_recipe ? cli_load_recipe(&out->recipe, args->words[0], args)
                                  : make_recipe(&out->recipe, args);
    const bool is_run = has_recipe && model == NULL && cli_is_directory(args->words[0]);
    const bool is_search = strcmp(command->name, "search") == 0; /* which estimates */
    if (status == LG_OK && is_run && !is_search && !has_key(args, "plan.machine=") &&
        !has_key(args, "plan.costs")) {
        status = cli_use_costs_of_run(out->recipe, args->words[0]);
        out->has_costs_of_run = out->recipe->plan.costs == LG_COSTS_FROM_FILE;
    }
    if (status == LG_OK && csv != NULL) {
        status = lg_schedule_load_csv(&out->schedule, csv);
    }
    if (status == LG_OK && csv != NULL && cli_asks_for_strategy(args)) {
        status = check_strategy_of_schedule(out->recipe->plan.strategy, command);
    }
    out->opts.preset = model;
    out->opts.schedule = out->schedule;
    out->opts.has_equal_times = is_equal || (model == NULL && !has_recipe);
    out->name = model != NULL ? model : has_recipe ? args->words[0] : csv;
    return status;
}

lg_status cli_cluster_create(cli_cluster *out)
{
    return lg_cluster_create(&out->cluster, out->recipe, &out->opts);
}

void cli_cluster_close(cli_cluster *cluster)
{
    lg_cluster_destroy(cluster->cluster);
    lg_schedule_destroy(cluster->schedule);
    lg_recipe_destroy(cluster->recipe);
    memset(cluster, 0, sizeof *cluster);
}

/* --- printing ----------------------------------------------------------------------------------------------------------- */

static const char *plural(int64_t num)
{
    return num == 1 ? "" : "s";
}

/* How many reductions one replica's layers come to, which may share them and may be cut. */
static void print_reductions(const lg_graph *graph)
{
    int num_reductions = 0;
    int num_gradients = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        const bool is_first = info->rank < lg_graph_num_pipeline_ranks(graph);
        num_reductions += is_first && info->kind == LG_OP_ALL_REDUCE ? 1 : 0;
        for (int i = 0; is_first && info->kind == LG_OP_UPDATE && i < info->num_operands; i++) {
            num_gradients += info->operands[i].role == LG_ROLE_DPARAM ? 1 : 0;
        }
    }
    printf("  sums       of %d gradient%s over replicas in %d reduction%s\n", num_gradients,
           plural(num_gradients), num_reductions, plural(num_reductions));
}

static void print_heading(const cli_cluster *c)
{
    static const char *const placements[LG_NUM_RANK_PLACEMENTS] = {"auto", "contiguous", "balanced",
                                                                   "modulo", "v"};
    const lg_cluster *const cluster = c->cluster;
    const lg_graph *const graph = cluster->graph;
    const int num_replicas = lg_graph_num_replicas(graph);
    const int num_micro_batches = lg_graph_num_micro_batches(graph) / num_replicas;
    printf("%s: %d block%s, %d ops\n", c->name != NULL ? c->name : "equal times",
           cluster->num_blocks, plural(cluster->num_blocks), lg_graph_num_ops(graph));
    printf("  ranks      %d: %d replica%s x %d pipeline rank%s, %d stage%s (%s)\n",
           lg_graph_num_ranks(graph), num_replicas, plural(num_replicas),
           lg_graph_num_pipeline_ranks(graph), plural(lg_graph_num_pipeline_ranks(graph)),
           lg_graph_num_stages(graph), plural(lg_graph_num_stages(graph)),
           placements[cluster->placement]);
    printf("  batch      %lld sample%s, %d micro-batch%s in each replica\n",
           (long long)lg_graph_options(graph)->num_samples,
           plural(lg_graph_options(graph)->num_samples), num_micro_batches,
           num_micro_batches == 1 ? "" : "es");
    if (num_replicas > 1) {
        print_reductions(graph);
    }
    printf("  machine    %s", c->opts.has_equal_times ? "textbook times"
                              : c->recipe->plan.machine[0] != '\0'
                                  ? c->recipe->plan.machine
                                  : "one with default rates and links, not measured ones");
    if (cluster->machine_ranks > cluster->machine.num_ranks) {
        printf(", the first %d of its %d ranks", cluster->machine.num_ranks,
               cluster->machine_ranks);
    }
    if (c->has_costs_of_run) {
        printf(", costs of the run");
    } else if (c->recipe->plan.costs == LG_COSTS_FROM_FILE) {
        printf(", costs of %s", c->recipe->plan.costs_file);
    } else if (!c->opts.has_equal_times) {
        printf(", costs estimated from its rates");
    }
    printf("\n");
}

static void print_rank(const lg_rank_stats *stats, int rank)
{
    char busy[CLI_TEXT_BYTES];
    char exposed[CLI_TEXT_BYTES];
    char sent[CLI_TEXT_BYTES];
    char peak[CLI_TEXT_BYTES];
    printf("  %5d %12s %8.1f %% %14s %12s %12s\n", rank, cli_format_ns(busy, stats->busy_ns),
           100.0 * stats->bubble_frac, cli_format_ns(exposed, stats->exposed_comm_ns),
           cli_format_bytes(sent, (double)stats->sent_bytes),
           cli_format_bytes(peak, (double)stats->peak_bytes));
}

void cli_print_ranks(const lg_rank_stats *ranks, int num_ranks)
{
    printf("  %5s %12s %10s %14s %12s %12s\n", "rank", "busy", "bubble", "exposed comm", "sent",
           "peak");
    for (int rank = 0; rank < num_ranks; rank++) {
        const bool is_shown = num_ranks <= MAX_SHOWN_RANKS || rank < MAX_SHOWN_RANKS / 2 ||
                              rank >= num_ranks - MAX_SHOWN_RANKS / 2;
        if (is_shown) {
            print_rank(&ranks[rank], rank);
        } else if (rank == MAX_SHOWN_RANKS / 2) {
            printf("  %5s\n", "...");
        }
    }
}

void cli_print_cluster(const cli_cluster *c)
{
    const lg_cluster *const cluster = c->cluster;
    const lg_cluster_summary sum = lg_cluster_summarize(cluster);
    const int num_ranks = cluster->plan->num_ranks;
    char text[CLI_TEXT_BYTES];
    print_heading(c);
    lg_bound bound = {0};
    printf("  plan       %s, proved\n", cluster->plan->strategy);
    printf("  step       %s simulated, bubble %.1f %%, peak %s\n", cli_format_ns(text, sum.step_ns),
           100.0 * sum.bubble_frac,
           cli_format_bytes((char[CLI_TEXT_BYTES]){0}, (double)sum.peak_bytes));
    if (lg_plan_bound(&bound, cluster->graph, &cluster->machine, cluster->costs) == LG_OK) {
        cli_print_bound("  bound      ", &bound, sum.step_ns);
    }
    printf("\n");
    cli_print_ranks(cluster->ranks, num_ranks);
}

lg_status cli_save_plan(const lg_cluster *cluster, const char *path)
{
    const size_t length = strlen(path);
    lg_status status = LG_OK;
    const bool is_csv = length > 4 && strcmp(path + length - 4, ".csv") == 0;
    if (is_csv) {
        lg_rank_schedule *schedule = NULL;
        status = lg_schedule_of_plan(&schedule, cluster->plan, cluster->graph);
        if (status == LG_OK) {
            status = lg_schedule_save_csv(schedule, path);
        }
        lg_schedule_destroy(schedule);
    } else {
        status = lg_plan_save(cluster->plan, cluster->graph, path);
    }
    if (status == LG_OK) {
        printf("\nsaved %s%s\n", path, is_csv ? "" : CLI_PLAN_ON_PAPER);
    }
    return status;
}
