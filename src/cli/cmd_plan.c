/* leapgrad plan, leapgrad check, leapgrad profile: making a plan and looking at its price; proving one; measuring costs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli_cluster.h"

#define NUM_FRONTIER_POINTS 8

/* --- plan ---------------------------------------------------------------------------------------------------------- */

static const cli_option plan_options[] = {
    {"out", "FILE", "save the plan, for plan.file=FILE; several ranks, FILE.csv: for PyTorch"},
    CLI_CLUSTER_OPTIONS,
    {NULL, NULL, NULL}};

static lg_strategy_opts strategy_opts(const lg_recipe *recipe)
{
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_lanes = (int)recipe->exec.lanes;
    opts.threads_per_lane = (int)recipe->exec.threads;
    opts.allow_lag = recipe->plan.allow_lag;
    return opts;
}

static void print_point(const char *label, const lg_frontier_point *point,
                        const lg_frontier_point *in_order)
{
    char bytes[CLI_TEXT_BYTES];
    char ns[CLI_TEXT_BYTES];
    printf("  %-12s", label);
    if (!point->fits) {
        printf(" %14s %12s\n", "nothing fits", "");
        return;
    }
    printf(" %14s %12s", cli_format_bytes(bytes, (double)point->peak_bytes),
           cli_format_ns(ns, point->step_ns));
    printf("  %+6.1f %% memory  %+6.1f %% time\n",
           100.0 * ((double)point->peak_bytes / (double)in_order->peak_bytes - 1.0),
           100.0 * (point->step_ns / in_order->step_ns - 1.0));
}

/* Time against bytes: what deferring weight gradients costs and brings. */
static lg_status print_frontier(const lg_recipe *recipe, const lg_trainer *trainer)
{
    lg_frontier_point points[NUM_FRONTIER_POINTS];
    lg_frontier_point in_order;
    const lg_machine machine = lg_trainer_machine(trainer);
    lg_strategy_opts opts = strategy_opts(recipe);
    const lg_status status =
        lg_plan_frontier(points, NUM_FRONTIER_POINTS, &in_order, lg_trainer_graph(trainer),
                         &machine, lg_trainer_cost_table(trainer), &opts);
    if (status != LG_OK) {
        return status;
    }
    printf("\ntime against bytes (out-of-order within a budget, compared with in-order):\n");
    printf("  %-12s %14s %12s\n", "budget", "peak", "step");
    print_point("(in-order)", &in_order, &in_order);
    for (int i = 0; i < NUM_FRONTIER_POINTS; i++) {
        char budget[CLI_TEXT_BYTES];
        const bool is_repeated = i > 0 && points[i].fits && points[i - 1].fits &&
                                 points[i].peak_bytes == points[i - 1].peak_bytes &&
                                 points[i].step_ns == points[i - 1].step_ns;
        if (is_repeated) { /* more memory does not help */
            continue;
        }
        print_point(cli_format_bytes(budget, (double)points[i].budget_bytes), &points[i],
                    &in_order);
    }
    return LG_OK;
}

/* What gradient statistics cost: bytes that stay, and the gradients that live from a WEIGHT_GRAD to its GRAD_STAT. */
static void print_statistics(const lg_graph *graph)
{
    char kept[CLI_TEXT_BYTES];
    char largest[CLI_TEXT_BYTES];
    int64_t kept_bytes = 0;
    int64_t layer_bytes =
        0; /* micro-batch gradients of one layer and micro-batch stand side by side */
    int64_t largest_bytes = 0;
    int last_layer = -1;
    int last_micro_batch = -1;
    if (!lg_graph_options(graph)->has_grad_stats) {
        return;
    }
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->kind == LG_VALUE_STAT || value->kind == LG_VALUE_RATE_STATE ||
            value->kind == LG_VALUE_RATE) {
            kept_bytes += value->bytes;
        } else if (value->kind == LG_VALUE_MICRO_GRAD) {
            const bool is_same =
                value->layer == last_layer && value->micro_batch == last_micro_batch;
            layer_bytes = (is_same ? layer_bytes : 0) + value->bytes;
            largest_bytes = layer_bytes > largest_bytes ? layer_bytes : largest_bytes;
            last_layer = value->layer;
            last_micro_batch = value->micro_batch;
        }
    }
    printf(
        "  gradient statistics: %s bytes of numbers, and a micro-batch's gradient of one layer, at "
        "most %s bytes\n",
        cli_format_count(kept, kept_bytes), cli_format_count(largest, largest_bytes));
}

static lg_status print_plan(const lg_recipe *recipe, const lg_trainer *trainer)
{
    const lg_trainer_info info = lg_trainer_about(trainer);
    const lg_machine machine = lg_trainer_machine(trainer);
    lg_timeline timeline;
    char text[CLI_TEXT_BYTES];
    lg_status status =
        lg_plan_simulate(&timeline, lg_trainer_plan(trainer), lg_trainer_graph(trainer), &machine,
                         lg_trainer_cost_table(trainer));
    if (status != LG_OK) {
        return status;
    }
    cli_print_op_kinds(lg_trainer_graph(trainer), lg_trainer_cost_table(trainer));
    printf("\nplan %s on %s (%s), made in %.1f ms, proved\n", info.strategy, info.device,
           info.device_text, info.planning_ns * 1e-6);
    cli_print_lanes(lg_trainer_graph(trainer), lg_trainer_plan(trainer), &timeline);
    printf("  peak   %s bytes", cli_format_count(text, info.planned_peak_bytes));
    printf(" (%s)\n", cli_format_bytes(text, (double)info.planned_peak_bytes));
    print_statistics(lg_trainer_graph(trainer));
    printf("  step   %s predicted", cli_format_ns(text, info.predicted_step_ns));
    if (info.num_reorders > 0) {
        printf("; %d reorder%s of weights into another layout", info.num_reorders,
               info.num_reorders == 1 ? "" : "s");
    }
    printf("\n");
    lg_bound bound;
    if (lg_plan_bound(&bound, lg_trainer_graph(trainer), &machine,
                      lg_trainer_cost_table(trainer)) == LG_OK) {
        cli_print_bound("  bound  ", &bound, timeline.step_ns);
    }
    lg_timeline_deinit(&timeline);
    return print_frontier(recipe, trainer);
}

static lg_status plan(const cli_args *args)
{
    lg_recipe *recipe = NULL;
    lg_job *job = NULL;
    const char *const out_path = cli_args_option(args, &cli_plan, "out");
    if (cli_is_cluster(args, &cli_plan)) {
        return cli_cluster_plan(args, &cli_plan);
    }
    lg_status status = cli_load_recipe(&recipe, args->words[0], args);
    if (status == LG_OK) {
        status = cli_use_costs_of_run(recipe, args->words[0]);
    }
    if (status == LG_OK) {
        status = lg_job_create(&job, recipe, NULL);
    }
    if (status == LG_OK) {
        status = print_plan(recipe, lg_job_trainer(job));
    }
    if (status == LG_OK && out_path != NULL) {
        status = lg_plan_save(lg_trainer_plan(lg_job_trainer(job)),
                              lg_trainer_graph(lg_job_trainer(job)), out_path);
        if (status == LG_OK) {
            printf("\nsaved %s\n", out_path);
        }
    }
    lg_job_destroy(job);
    lg_recipe_destroy(recipe);
    return status;
}

const cli_command cli_plan = {.name = "plan",
                              .words = "RECIPE|--model=NAME [key=value ...]",
                              .min_words = 0,
                              .max_words = 1,
                              .summary = "make a plan and print what it costs: time against bytes",
                              .help = "Costs are measured first, unless plan.costs says otherwise; "
                                      "of a run directory its own are used.\n"
                                      "Several ranks (ranks.pipeline, ranks.replicas, --machine): "
                                      "as leapgrad simulate.",
                              .options = plan_options,
                              .run = plan};

/* --- check --------------------------------------------------------------------------------------------------------- */

/* Weights must lie where the job's other plans (evaluation, other batch sizes) look for them. */
static lg_status check_places(const lg_plan *loaded, lg_job *job, const char *path)
{
    const lg_graph *const graph = lg_trainer_graph(lg_job_trainer(job));
    const lg_plan *const own = lg_trainer_plan(lg_job_trainer(job));
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const int64_t offset_bytes = loaded->values[i].offset_bytes[0];
        const int64_t own_bytes = own->values[i].offset_bytes[0];
        if (lg_graph_value(graph, i)->is_persistent && offset_bytes != own_bytes) {
            return cli_fail(LG_INVALID_ARG,
                            "%s: '%s' lies at byte %" PRId64
                            ", but all plans of this model have it at %" PRId64,
                            path, lg_graph_value(graph, i)->name, offset_bytes, own_bytes);
        }
    }
    return LG_OK;
}

static lg_status check_plan_file(lg_job *job, const char *path, int64_t memory_bytes)
{
    lg_plan *loaded = NULL;
    char text[CLI_TEXT_BYTES];
    const lg_graph *const graph = lg_trainer_graph(lg_job_trainer(job));
    lg_status status = lg_plan_load(&loaded, graph, path);
    if (status == LG_OK) {
        status = lg_plan_check(loaded, graph, memory_bytes);
        if (status != LG_OK) {
            (void)cli_fail(status, "%s: %s", path, lg_last_error());
        }
    }
    if (status == LG_OK) {
        status = check_places(loaded, job, path);
    }
    if (status == LG_OK) {
        int num_entries = 0;
        for (int i = 0; i < loaded->num_lanes; i++) {
            num_entries += loaded->lanes[i].num_entries;
        }
        printf("%s: ok: strategy %s, %d ops on %d lanes, %d waits between lanes, peak %s bytes\n",
               path, loaded->strategy, num_entries, loaded->num_lanes, loaded->num_syncs,
               cli_format_count(text, loaded->peak_bytes[0]));
    }
    lg_plan_destroy(loaded);
    return status;
}

/* A run's plan is the one in its directory; plan.file of its recipe is where that once came from. */
static bool uses_plan_of_run(const cli_args *args)
{
    for (int i = 0; i < args->num_overrides; i++) {
        if (strncmp(args->overrides[i], "plan.file=", 10) == 0) {
            return false;
        }
    }
    return cli_is_directory(args->words[0]);
}

/* Whether a file says that it is a plan. */
static bool is_plan_file(const char *path)
{
    char head[256] = "";
    FILE *const file = cli_is_directory(path) ? NULL : fopen(path, "rb");
    if (file == NULL) {
        return false;
    }
    const size_t num_bytes = fread(head, 1, sizeof head - 1, file);
    (void)fclose(file);
    head[num_bytes] = '\0';
    return strstr(head, "\"leapgrad-plan\"") != NULL;
}

/* A run over several ranks: each of them makes its trainer, which proves the plan first. */
struct rank_check {
    const lg_recipe *recipe;
    const char *path;
};

static lg_status check_rank(lg_comm *comm, void *user)
{
    const struct rank_check *const request = user;
    lg_job *job = NULL;
    lg_job_opts opts = lg_job_opts_default();
    opts.plan_path = request->path;
    opts.comm = comm;
    const lg_status status = lg_job_create(&job, request->recipe, &opts);
    if (status == LG_OK && (comm == NULL || lg_comm_rank(comm) == 0)) {
        const lg_plan *const plan = lg_trainer_plan(lg_job_trainer(job));
        int64_t peak_bytes = 0;
        char text[CLI_TEXT_BYTES];
        for (int rank = 0; rank < plan->num_ranks; rank++) {
            peak_bytes = plan->peak_bytes[rank] > peak_bytes ? plan->peak_bytes[rank] : peak_bytes;
        }
        printf("%s: ok: strategy %s, %d ops on %d lanes of %d ranks, %d waits between lanes, peak "
               "%s bytes\n",
               request->path, plan->strategy, plan->num_ops, plan->num_lanes, plan->num_ranks,
               plan->num_syncs, cli_format_count(text, peak_bytes));
    }
    lg_job_destroy(job);
    return status;
}

static lg_status check_run(const cli_args *args)
{
    lg_recipe *recipe = NULL;
    struct rank_check request;
    char *const own = cli_path(args->words[0], "plan.json");
    lg_status status = own != NULL ? cli_load_recipe(&recipe, args->words[0], args)
                                   : cli_fail(LG_OUT_OF_MEMORY, "no memory for a path");
    if (status == LG_OK) {
        status = cli_use_costs_of_run(recipe, args->words[0]);
    }
    if (status == LG_OK) {
        request.recipe = recipe;
        request.path = args->num_words == 2 ? args->words[1] : own;
        status = cli_run_ranks(recipe, check_rank, &request);
    }
    lg_recipe_destroy(recipe);
    free(own);
    return status;
}

static const cli_option check_options[] = {CLI_CLUSTER_OPTIONS, {NULL, NULL, NULL}};

static lg_status check(const cli_args *args)
{
    if (args->num_words == 1 && cli_args_option(args, &cli_check, "model") == NULL &&
        cli_args_option(args, &cli_check, "csv") == NULL &&
        cli_args_option(args, &cli_check, "equal-times") == NULL && is_plan_file(args->words[0])) {
        return cli_fail(
            LG_INVALID_ARG,
            "check: '%s' is a plan; of which graph? usage: leapgrad check RECIPE %s, or "
            "--model=NAME in place of the recipe, with the keys it was made with",
            args->words[0], args->words[0]);
    }
    if (cli_is_cluster(args, &cli_check)) {
        return cli_is_run_of_ranks(args, &cli_check) ? check_run(args)
                                                     : cli_cluster_check(args, &cli_check);
    }
    if (cli_asks_for_strategy(args)) {
        return cli_fail(LG_INVALID_ARG, "check: the plan has its strategy already; --strategy goes "
                                        "with several ranks only, where the placement hangs on it");
    }
    lg_recipe *recipe = NULL;
    lg_job *job = NULL;
    char *path = NULL;
    int64_t memory_bytes = 0;
    lg_status status = cli_load_recipe(&recipe, args->words[0], args);
    if (status == LG_OK && args->num_words == 1 && !cli_is_directory(args->words[0]) &&
        recipe->plan.file[0] == '\0') {
        status = cli_fail(LG_INVALID_ARG, "check: which plan? usage: leapgrad check RECIPE PLAN");
    }
    if (status == LG_OK) {
        path = args->num_words == 2     ? strdup(args->words[1])
               : uses_plan_of_run(args) ? cli_path(args->words[0], "plan.json")
                                        : strdup(recipe->plan.file);
        memory_bytes = recipe->plan.memory_bytes;
        status = path != NULL ? cli_make_plain(recipe)
                              : cli_fail(LG_OUT_OF_MEMORY, "no memory for a path");
    }
    if (status == LG_OK) {
        status = lg_job_create(&job, recipe, NULL);
    }
    if (status == LG_OK) {
        status = check_plan_file(job, path, memory_bytes);
    }
    lg_job_destroy(job);
    lg_recipe_destroy(recipe);
    free(path);
    return status;
}

const cli_command cli_check = {
    .name = "check",
    .words = "RECIPE|--model=NAME PLAN [key=value ...] | RUN",
    .min_words = 0,
    .max_words = 2,
    .summary = "prove a saved plan against a recipe, or name the rule it breaks",
    .help = "Each op exactly once; every edge respected; no deadlock; no two live values in one "
            "place; peak as\n"
            "stated and within plan.memory_bytes.",
    .options = check_options,
    .run = check};

/* --- profile ------------------------------------------------------------------------------------------------------- */

static const cli_option profile_options[] = {
    {"out", "FILE",
     "where the costs go, for plan.costs_file=FILE; costs.json is the default. With --links: where "
     "the machine file goes; without it, it is printed"},
    {"links", NULL,
     "measure the links between ranks and the rates of a core instead, as a machine file "
     "(plan.machine)"},
    {"ranks", "NUMBER", "with --links: ranks as threads of this process, 2 if not given"},
    {NULL, NULL, NULL}};

/* What of a machine file is measured, and what is not. */
static void describe_links(char *text, size_t num_bytes, const lg_links_report *links,
                           const char *over)
{
    const bool has_intra = links->intra_host.ranks[0] >= 0;
    const bool has_inter = links->inter_host.ranks[0] >= 0;
    (void)snprintf(text, num_bytes,
                   "measured: %s over %s, and flops_per_s and bytes_per_s of a core of rank 0's "
                   "host; not measured, but defaults: %s%s%smemory_bytes, corun_slowdown, "
                   "overheads",
                   has_intra && has_inter ? "intra_host and inter_host"
                   : has_inter            ? "inter_host"
                                          : "intra_host",
                   over, has_intra ? "" : "intra_host, ", has_inter ? "" : "inter_host, ",
                   links->num_hosts > 1 ? "other hosts' rates, " : "");
}

/* Rank 0: its rates, and the file, or its text where none is asked for. */
static lg_status save_links(lg_links_report *links, const char *over, const char *path)
{
    char comment[512];
    char text[LG_MACHINE_TEXT_BYTES + sizeof comment];
    describe_links(comment, sizeof comment, links, over);
    lg_status status = lg_measure_rates("auto", &links->machine);
    if (status != LG_OK) {
        return status;
    }
    if (path == NULL) {
        status = lg_machine_format(text, sizeof text, &links->machine, comment);
        if (status == LG_OK) {
            printf("%s\n", text);
        }
        return status;
    }
    cli_print_link("within a host ", &links->intra_host);
    cli_print_link("between hosts ", &links->inter_host);
    printf("a core         %.1f GFLOP/s, %.1f GB/s\n", links->machine.flops_per_s * 1e-9,
           links->machine.bytes_per_s * 1e-9);
    status = lg_machine_save(&links->machine, comment, path);
    if (status == LG_OK) {
        printf("saved %s (%s); use it with plan.machine=%s\n", path, comment, path);
    }
    return status;
}

/* The links of the ranks, as a machine file. */
static lg_status profile_links(const cli_args *args)
{
    const char *const path = cli_args_option(args, &cli_profile, "out");
    const char *const num_text = cli_args_option(args, &cli_profile, "ranks");
    char *end = NULL;
    const long num_ranks = num_text != NULL ? strtol(num_text, &end, 10) : 2;
    lg_links_report links;
    lg_comm *comm = NULL;
    if ((end != NULL && *end != '\0') || num_ranks < 1 || num_ranks > LG_COMM_MAX_LOCAL_RANKS) {
        return cli_fail(LG_INVALID_ARG, "profile: --ranks: '%s' is not an integer in [1, %d]",
                        num_text, LG_COMM_MAX_LOCAL_RANKS);
    }
    lg_status status = cli_join_ranks(&comm, args, &cli_profile);
    if (status == LG_OK) {
        status = comm != NULL ? lg_measure_links(comm, &links)
                              : lg_measure_local_links((int)num_ranks, &links);
    }
    if (status == LG_OK) {
        const bool is_first = comm == NULL || lg_comm_rank(comm) == 0;
        status = lg_run_settle(
            comm,
            is_first
                ? save_links(&links, cli_comm_text(comm != NULL ? lg_comm_name(comm) : NULL), path)
                : LG_OK);
    }
    cli_leave_ranks(comm, status);
    return status;
}

/*
 * Several ranks: what is measured is one replica's ops, with as many samples in a micro-batch as they will have. Where its layers
 * are makes no difference to their times.
 */
static lg_status measure_one_replica(lg_recipe *recipe)
{
    char batch[32];
    const long long num_ranks = recipe->ranks.pipeline * recipe->ranks.replicas;
    const long long num_replicas = recipe->ranks.replicas;
    const long long num_samples = (recipe->train.batch + num_replicas - 1) / num_replicas;
    if (num_ranks > 1) {
        printf("%lld ranks: measured are the ops of one replica, %lld samples in micro-batches of "
               "%lld; for messages, profile --links\n",
               num_ranks, num_samples,
               (num_samples + recipe->train.micro_batches - 1) / recipe->train.micro_batches);
    }
    (void)snprintf(batch, sizeof batch, "%lld", num_samples);
    const lg_status status = lg_recipe_set(recipe, "train.batch", batch);
    return status == LG_OK ? cli_make_plain(recipe) : status;
}

static lg_status profile(const cli_args *args)
{
    lg_recipe *recipe = NULL;
    lg_job *job = NULL;
    const char *const given = cli_args_option(args, &cli_profile, "out");
    const char *const path = given != NULL ? given : "costs.json";
    if (cli_args_option(args, &cli_profile, "links") != NULL) {
        return profile_links(args);
    }
    if (args->num_words == 0) {
        return cli_fail(LG_INVALID_ARG, "profile: of what? a recipe, or --links");
    }
    lg_status status = cli_load_recipe(&recipe, args->words[0], args);
    if (status == LG_OK) {
        status = measure_one_replica(recipe);
    }
    if (status == LG_OK) {
        status = lg_recipe_set(recipe, "plan.costs", "measure");
    }
    if (status == LG_OK) {
        status = lg_job_create(&job, recipe, NULL);
    }
    if (status == LG_OK) {
        const lg_trainer *const trainer = lg_job_trainer(job);
        cli_print_op_kinds(lg_trainer_graph(trainer), lg_trainer_cost_table(trainer));
        status = lg_costs_save(lg_trainer_cost_table(trainer), lg_trainer_graph(trainer), path);
    }
    if (status == LG_OK) {
        printf("saved %s; use it with plan.costs=file plan.costs_file=%s\n", path, path);
    }
    lg_job_destroy(job);
    lg_recipe_destroy(recipe);
    return status;
}

const cli_command cli_profile = {
    .name = "profile",
    .words = "RECIPE [key=value ...] | --links",
    .min_words = 0,
    .max_words = 1,
    .summary = "measure what each op costs on this machine, or its links",
    .help = "--links: between threads of this process, or, under mpirun "
            "or srun, between its processes.",
    .options = profile_options,
    .run = profile};
