/* leapgrad search: the fastest plan over placements, strategies and orders; a ranking of what was tried. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli_cluster.h"
#include "leapgrad/search.h"

#define MAX_SHOWN_ENTRIES 20
#define MAX_BUDGET_MILLIONS 1e9
#define PROGRESS_S 0.5

static const cli_option search_options[] = {
    {"model", "NAME", "a model by name instead of a recipe; --model=list lists them"},
    {"machine", "FILE", "search for this machine: plan.machine=FILE"},
    {"out", "FILE", "save the plan that was found"},
    {"budget", "MILLIONS",
     "how long to search: millions of ops that are simulated, plans times ops of each; 16 if not "
     "given"},
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

/* Plans that come to the same in all that is shown, such as reverse-first-k with k = 0 and priority. */
static bool is_same_row(const lg_search_entry *a, const lg_search_entry *b)
{
    return a->fits && b->fits && a->placement == b->placement && a->group_size == b->group_size &&
           a->num_replicas == b->num_replicas && a->num_pipeline_ranks == b->num_pipeline_ranks &&
           a->num_micro_batches == b->num_micro_batches && a->chunk_bytes == b->chunk_bytes &&
           a->share_bytes == b->share_bytes && a->step_ns == b->step_ns &&
           a->bubble_frac == b->bubble_frac && a->exposed_comm_ns == b->exposed_comm_ns &&
           a->sent_bytes == b->sent_bytes;
}

static void print_entry(int place, const lg_search_entry *entry, int num_ranks)
{
    char step[CLI_TEXT_BYTES];
    char exposed[CLI_TEXT_BYTES];
    char peak[CLI_TEXT_BYTES];
    char where[CLI_TEXT_BYTES];
    char chunk[CLI_TEXT_BYTES] = "-";
    char share[CLI_TEXT_BYTES] = "-";
    char peaks[128];
    char name[LG_SEARCH_NAME_BYTES + 8];
    (void)snprintf(name, sizeof name, "%s%s", entry->strategy, entry->has_push ? " (push)" : "");
    if (entry->chunk_bytes > 0) {
        (void)cli_format_bytes(chunk, (double)entry->chunk_bytes);
    }
    if (entry->share_bytes > 0) {
        (void)cli_format_bytes(share, (double)entry->share_bytes);
    }
    (void)snprintf(where, sizeof where, "%s%s%.0d", lg_search_placement_name(entry->placement),
                   entry->group_size > 0 ? " " : "", entry->group_size);
    if (!entry->fits) {
        printf("%3s  %-36s %-12s %2d x %-3d does not fit: needs %s\n", "-", name, where,
               entry->num_replicas, entry->num_pipeline_ranks,
               cli_format_bytes(peak, (double)entry->peak_bytes));
        return;
    }
    format_peaks(peaks, sizeof peaks, entry->rank_peak_bytes, num_ranks);
    printf("%3d  %-36s %-12s %2d x %-3d %9s %9s %11s %7.1f %% %12s  %s\n", place, name, where,
           entry->num_replicas, entry->num_pipeline_ranks, chunk, share,
           cli_format_ns(step, entry->step_ns), 100.0 * entry->bubble_frac,
           cli_format_ns(exposed, entry->exposed_comm_ns), peaks);
}

/* How many of the entries behind are the same plan by other names. */
static int count_same(const lg_search_result *result, int first)
{
    int num = 0;
    while (first + num + 1 < result->num_entries &&
           is_same_row(&result->entries[first], &result->entries[first + num + 1])) {
        num++;
    }
    return num;
}

static void print_same(const lg_search_result *result, int first, int num)
{
    printf("     the same:");
    for (int i = 0; i < num; i++) {
        const lg_search_entry *const entry = &result->entries[first + 1 + i];
        printf("%s %s%s", i > 0 ? "," : "", entry->strategy, entry->has_push ? " (push)" : "");
    }
    printf("\n");
}

static void print_result(const lg_search_result *result)
{
    printf("%3s  %-36s %-12s %-8s %8s %9s %11s %9s %12s  %s\n", "", "strategy", "placement",
           "D x P", "chunk", "share", "step", "bubble", "exposed comm", "peak of each rank");
    int num_shown = 0;
    int i = 0;
    while (i < result->num_entries && num_shown < MAX_SHOWN_ENTRIES) {
        const int first = i++;
        print_entry(++num_shown, &result->entries[first], result->num_ranks);
        const int num_same = count_same(result, first);
        if (num_same > 0) {
            print_same(result, first, num_same);
        }
        i += num_same;
    }
    if (result->num_entries > i) {
        printf("     and %d more\n", result->num_entries - i);
    }
    printf("\n%d plans proved and simulated\n", result->num_simulations);
    cli_print_bound("lower bound for the first row: ", &result->bound, 0.0);
    printf("%s\n", result->text);
}

/* A line on the terminal that is written over now and then. */
struct progress {
    struct timespec last;
    bool is_shown;
};

static void show_progress(double used_frac, int num_simulations, void *user)
{
    struct progress *const progress = user;
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const double s = (double)(now.tv_sec - progress->last.tv_sec) +
                     1e-9 * (double)(now.tv_nsec - progress->last.tv_nsec);
    if (s >= PROGRESS_S) {
        (void)fprintf(stderr, "\r%d plans, %.0f %% of the budget ", num_simulations,
                      100.0 * fmin(1.0, used_frac));
        progress->last = now;
        progress->is_shown = true;
    }
}

/* Ops to be simulated, of --budget; 0: the default. */
static lg_status read_budget(double *out, const char *text)
{
    char *end = NULL;
    const double millions = text != NULL ? strtod(text, &end) : 0.0;
    if (text != NULL && (*end != '\0' || !(millions > 0.0 && millions <= MAX_BUDGET_MILLIONS))) {
        return cli_fail(LG_INVALID_ARG,
                        "search: --budget=%s: expected millions of ops, above 0 and up to %g", text,
                        MAX_BUDGET_MILLIONS);
    }
    *out = 1e6 * millions;
    return LG_OK;
}

/* The ranks that the recipe asks for are all there is to spread over; how, is searched. */
static lg_status search_cluster(const cli_cluster *c, double budget_ops, const char *out_path)
{
    lg_search_result result;
    struct progress progress = {0};
    lg_search_opts opts = lg_search_opts_default();
    const lg_cluster *const cluster = c->cluster;
    opts.graph = *lg_graph_options(cluster->graph);
    opts.graph.parallel = NULL;
    opts.strategy.memory_bytes = cluster->memory_bytes;
    opts.strategy.allow_lag = c->recipe->plan.allow_lag;
    opts.num_replicas = c->recipe->ranks.replicas > 1 ? (int)c->recipe->ranks.replicas : 0;
    if (budget_ops > 0.0) {
        opts.max_simulated_ops = (int64_t)budget_ops;
    }
    if (isatty(STDERR_FILENO)) {
        opts.progress = show_progress;
        opts.progress_user = &progress;
    }
    lg_status status = lg_search(&result, cluster->model, &cluster->machine, NULL, &opts);
    if (progress.is_shown) {
        (void)fprintf(stderr, "\r%60s\r", "");
    }
    if (status == LG_OK) {
        print_result(&result);
        if (out_path != NULL) {
            status = lg_plan_save(result.plan, result.graph, out_path);
        }
        if (status == LG_OK && out_path != NULL) {
            printf("\nsaved %s%s\n", out_path, CLI_PLAN_ON_PAPER);
        }
        lg_search_result_deinit(&result);
    }
    return status;
}

static lg_status search(const cli_args *args)
{
    cli_cluster c;
    double budget_ops = 0.0;
    lg_status status = read_budget(&budget_ops, cli_args_option(args, &cli_search, "budget"));
    if (status != LG_OK) {
        return status;
    }
    status = cli_cluster_open(&c, args, &cli_search);
    if (status == LG_OK && c.recipe->plan.costs == LG_COSTS_FROM_FILE) {
        status = cli_fail(LG_NOT_SUPPORTED,
                          "search: plan.costs=file has the times of one size of micro-batches, and "
                          "splits differ in it; they are estimated from the machine's rates");
    }
    if (status == LG_OK) {
        status = cli_cluster_create(&c);
    }
    if (status == LG_OK) {
        status = search_cluster(&c, budget_ops, cli_args_option(args, &cli_search, "out"));
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
            "kept,\n"
            "else it is searched. The search looks at no clock: the same question has the same "
            "answer\n"
            "everywhere. In the table, D x P is replicas x pipeline ranks.",
    .options = search_options,
    .run = search};
