/* leapgrad search: the fastest plan over placements, strategies and orders; a ranking of what was tried. */
#include <stdio.h>
#include <string.h>

#include "cli/cli_cluster.h"
#include "leapgrad/search.h"

#define MAX_SHOWN_ENTRIES 20

static const cli_option search_options[] = {
    {"model", "NAME", "a model by name instead of a recipe; --model=list lists them"},
    {"machine", "FILE", "search for this machine: plan.machine=FILE"},
    {"out", "FILE", "save the plan that was found"},
    {NULL, NULL, NULL}};

static void print_entry(int place, const lg_search_entry *entry)
{
    char step[CLI_TEXT_BYTES];
    char exposed[CLI_TEXT_BYTES];
    char peak[CLI_TEXT_BYTES];
    char where[CLI_TEXT_BYTES];
    (void)snprintf(where, sizeof where, "%s%s%.0d", lg_search_placement_name(entry->placement),
                   entry->group_size > 0 ? " " : "", entry->group_size);
    if (!entry->fits) {
        printf("%3s  %-28s %-14s %2d x %-3d does not fit\n", "-", entry->strategy, where,
               entry->num_replicas, entry->num_pipeline_ranks);
        return;
    }
    printf("%3d  %-28s %-14s %2d x %-3d %11s %7.1f %% %12s %12s\n", place, entry->strategy, where,
           entry->num_replicas, entry->num_pipeline_ranks, cli_format_ns(step, entry->step_ns),
           100.0 * entry->bubble_frac, cli_format_ns(exposed, entry->exposed_comm_ns),
           cli_format_bytes(peak, (double)entry->peak_bytes));
}

static void print_result(const lg_search_result *result)
{
    char step[CLI_TEXT_BYTES];
    char rank[CLI_TEXT_BYTES];
    char path[CLI_TEXT_BYTES];
    char link[CLI_TEXT_BYTES];
    const int num_shown =
        result->num_entries < MAX_SHOWN_ENTRIES ? result->num_entries : MAX_SHOWN_ENTRIES;
    printf("%3s  %-28s %-14s %-8s %11s %9s %12s %12s\n", "", "strategy", "placement", "D x P",
           "step", "bubble", "exposed comm", "peak");
    for (int i = 0; i < num_shown; i++) {
        print_entry(i + 1, &result->entries[i]);
    }
    if (result->num_entries > num_shown) {
        printf("     and %d more\n", result->num_entries - num_shown);
    }
    printf("\nno plan is faster than %s (busiest rank %s, longest path %s, busiest link %s)\n",
           cli_format_ns(step, result->bound.step_ns),
           cli_format_ns(rank, result->bound.busiest_rank_ns),
           cli_format_ns(path, result->bound.critical_path_ns),
           cli_format_ns(link, result->bound.busiest_link_ns));
    printf("%s\n", result->text);
}

/* The ranks that the recipe asks for are all there is to spread over; how, is searched. */
static lg_status search_cluster(const cli_cluster *c, const char *out_path)
{
    lg_search_result result;
    lg_search_opts opts = lg_search_opts_default();
    const lg_cluster *const cluster = c->cluster;
    opts.graph = *lg_graph_options(cluster->graph);
    opts.graph.parallel = NULL;
    opts.strategy.memory_bytes = cluster->memory_bytes;
    opts.strategy.allow_lag = c->recipe->plan.allow_lag;
    opts.num_replicas = c->recipe->ranks.replicas > 1 ? (int)c->recipe->ranks.replicas : 0;
    lg_status status = lg_search(&result, cluster->model, &cluster->machine, NULL, &opts);
    if (status == LG_OK) {
        print_result(&result);
        if (out_path != NULL) {
            status = lg_plan_save(result.plan, result.graph, out_path);
        }
        if (status == LG_OK && out_path != NULL) {
            printf("\nsaved %s\n", out_path);
        }
        lg_search_result_deinit(&result);
    }
    return status;
}

static lg_status search(const cli_args *args)
{
    cli_cluster c;
    lg_status status = cli_cluster_open(&c, args, &cli_search);
    if (status == LG_OK) {
        status = cli_cluster_create(&c);
    }
    if (status == LG_OK) {
        status = search_cluster(&c, cli_args_option(args, &cli_search, "out"));
    }
    cli_cluster_close(&c);
    return status;
}

const cli_command cli_search = {
    .name = "search",
    .words = "RECIPE|--model=NAME --machine=FILE [key=value ...]",
    .min_words = 0,
    .max_words = 1,
    .summary = "find the fastest plan for a machine: replicas, stages, strategy, order",
    .help = "ranks.pipeline times ranks.replicas ranks are spread over; ranks.replicas above 1 is "
            "kept, else it is searched. "
            "The search looks at no clock: the same question has the same answer everywhere.",
    .options = search_options,
    .run = search};
