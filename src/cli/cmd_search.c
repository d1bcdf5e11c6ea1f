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

/* Ranks whose peaks stand side by side; of more, the least and the most. */
#define MAX_SHOWN_PEAKS 4

/* "1.3 1.2 1.2 1.4 GiB", or "0.9..1.4 GiB (most on rank 7)" */
static void format_peaks(char *text, size_t text_bytes, const int64_t *peaks, int num_ranks)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    int least = 0;
    int most = 0;
    double scale = 1.0;
    size_t used = 0;
    for (int rank = 1; rank < num_ranks; rank++) {
        least = peaks[rank] < peaks[least] ? rank : least;
        most = peaks[rank] > peaks[most] ? rank : most;
    }
    while ((double)peaks[most] / scale >= 1000.0 && unit < 4) {
        scale *= 1024.0;
        unit++;
    }
    if (num_ranks > MAX_SHOWN_PEAKS) {
        (void)snprintf(text, text_bytes, "%.2f..%.2f %s (most on rank %d)",
                       (double)peaks[least] / scale, (double)peaks[most] / scale, units[unit],
                       most);
        return;
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%.2f ", (double)peaks[rank] / scale);
    }
    (void)snprintf(text + used, text_bytes - used, "%s", units[unit]);
}

static void print_entry(int place, const lg_search_entry *entry, int num_ranks)
{
    char step[CLI_TEXT_BYTES];
    char exposed[CLI_TEXT_BYTES];
    char peak[CLI_TEXT_BYTES];
    char where[CLI_TEXT_BYTES];
    char chunk[CLI_TEXT_BYTES] = "-";
    char peaks[128];
    if (entry->chunk_bytes > 0) {
        (void)cli_format_bytes(chunk, (double)entry->chunk_bytes);
    }
    (void)snprintf(where, sizeof where, "%s%s%.0d", lg_search_placement_name(entry->placement),
                   entry->group_size > 0 ? " " : "", entry->group_size);
    if (!entry->fits) {
        printf("%3s  %-28s %-12s %2d x %-3d does not fit: needs %s\n", "-", entry->strategy, where,
               entry->num_replicas, entry->num_pipeline_ranks,
               cli_format_bytes(peak, (double)entry->peak_bytes));
        return;
    }
    format_peaks(peaks, sizeof peaks, entry->rank_peak_bytes, num_ranks);
    printf("%3d  %-28s %-12s %2d x %-3d %9s %11s %7.1f %% %12s  %s\n", place, entry->strategy,
           where, entry->num_replicas, entry->num_pipeline_ranks, chunk,
           cli_format_ns(step, entry->step_ns), 100.0 * entry->bubble_frac,
           cli_format_ns(exposed, entry->exposed_comm_ns), peaks);
}

static void print_result(const lg_search_result *result)
{
    const int num_shown =
        result->num_entries < MAX_SHOWN_ENTRIES ? result->num_entries : MAX_SHOWN_ENTRIES;
    printf("%3s  %-28s %-12s %-8s %8s %11s %9s %12s  %s\n", "", "strategy", "placement", "D x P",
           "chunk", "step", "bubble", "exposed comm", "peak of each rank");
    for (int i = 0; i < num_shown; i++) {
        print_entry(i + 1, &result->entries[i], result->num_ranks);
    }
    if (result->num_entries > num_shown) {
        printf("     and %d more\n", result->num_entries - num_shown);
    }
    printf("\n%d plans proved and simulated\n", result->num_simulations);
    cli_print_bound("lower bound ", &result->bound, 0.0);
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
    if (status == LG_OK && c.recipe->plan.costs == LG_COSTS_FROM_FILE) {
        status = cli_fail(LG_NOT_SUPPORTED,
                          "search: plan.costs=file has the times of one graph, and every placement "
                          "has a graph of its own; they are estimated from the machine's rates");
    }
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
