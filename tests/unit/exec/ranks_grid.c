#include "unit/exec/ranks_grid.h"

#include <stdio.h>
#include <string.h>

#include "leapgrad/plan.h"

/* A sanitizer makes all of it slow, and sees what it can see in a part. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define IS_REDUCED true
#define NUM_STEPS 5
#else
#define IS_REDUCED false
#define NUM_STEPS 20
#endif

#define MAX_REPLICAS 4
#define NUM_COUNTS 4

/* --- what is in the grid ------------------------------------------------------------------------------------------------ */

static const struct placement {
    int num_pipeline_ranks, num_replicas;
    bool is_in_reduced;
} placements[] = {{1, 1, true}, {2, 1, true},  {3, 1, true},  {4, 1, false}, {1, 2, true},
                  {2, 2, true}, {3, 2, false}, {4, 2, false}, {1, 3, false}, {1, 4, false}};

/* With the samples of a batch: parts of one size, or not. */
static const struct count {
    int num_micro_batches;
    int64_t num_samples;
} counts[NUM_COUNTS] = {{1, 12}, {2, 12}, {3, 11}, {5, 12}};

static const int64_t chunks[] = {0, 500, 4096, 20000};
static const int64_t shares[] = {2000, 0, LG_SHARE_BY_LINKS, 1 << 20};
static const int reversed[] = {-1, 1, 3}; /* k */

#define NUM_OF(array) ((int)(sizeof(array) / sizeof(array)[0]))

static bool wants_v(const char *name)
{
    return strcmp(name, "zb-v") == 0 || strcmp(name, "dualpipe-v") == 0;
}

static bool wants_loop(const char *name)
{
    return strcmp(name, "interleaved") == 0 || strcmp(name, "breadth-first") == 0 ||
           strcmp(name, "modulo") == 0;
}

/* --- one case ----------------------------------------------------------------------------------------------------------- */

/* Results of the references of a model. */
struct expected {
    bool is_known[MAX_REPLICAS][NUM_COUNTS];
    rf_result results[MAX_REPLICAS][NUM_COUNTS];
};

static rf_run make_run(rf_model model, int num_replicas, int count)
{
    rf_run run = rf_run_default();
    run.model = model;
    run.num_replicas = num_replicas;
    run.num_micro_batches = counts[count].num_micro_batches;
    run.num_samples = counts[count].num_samples;
    run.num_steps = NUM_STEPS;
    return run;
}

static const rf_result *find_expected(rg_grid *grid, struct expected *expected, const rf_run *run,
                                      int count)
{
    const int replica = run->num_replicas - 1;
    if (!expected->is_known[replica][count]) {
        rf_run reference = make_run(run->model, run->num_replicas, count);
        reference.evaluates = true;
        reference.strategy = "in-order";
        grid->reference(grid->user, &reference, &expected->results[replica][count]);
        expected->is_known[replica][count] = true;
    }
    return &expected->results[replica][count];
}

static const char *find_difference(const rg_grid *grid, const rf_run *run, const rf_result *result,
                                   const rf_result *expected)
{
    if (strcmp(result->hash, expected->hash) != 0) {
        return "hash";
    }
    if (run->evaluates && memcmp(&result->sums, &expected->sums, sizeof result->sums) != 0) {
        return "evaluation";
    }
    if (run->evaluates && memcmp(result->logits, expected->logits, sizeof result->logits) != 0) {
        return "logits";
    }
    if (grid->is_first && result->last.loss != expected->last.loss) {
        return "last loss";
    }
    if (result->info.planned_peak_bytes != result->info.measured_peak_bytes) {
        return "peak of memory";
    }
    return NULL;
}

static void check_case(rg_grid *grid, struct expected *expected, const rf_run *run, int count)
{
    static rf_result result;
    const rf_result *const reference = find_expected(grid, expected, run, count);
    grid->train(grid->user, run, &result);
    const char *const difference = find_difference(grid, run, &result, reference);
    grid->num_cases++;
    if (difference != NULL) {
        grid->num_wrong++;
        (void)fprintf(stderr, "%s: another %s; hash %s, expected %s\n", rf_describe(run),
                      difference, result.hash, reference->hash);
    }
}

/* --- all of them -------------------------------------------------------------------------------------------------------- */

/* All the strategies on one placement; what goes with which is different on each. */
static void check_placement(rg_grid *grid, struct expected *expected, rf_model model, int placement)
{
    const struct placement *const on = &placements[placement];
    const bool is_pair_of_two = on->num_pipeline_ranks == 2 && on->num_replicas == 2;
    const bool has_all_pairs =
        is_pair_of_two && model == RF_GPT && grid->num_ranks == 0 && !IS_REDUCED;
    const bool has_pipelines = on->num_pipeline_ranks > 1 || on->num_replicas <= 2;
    int turn = placement;
    const char *data[8];
    int num_data = 0;
    char both[64];
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        if (lg_strategy_role_of(i) == LG_STRATEGY_DATA) {
            data[num_data++] = lg_strategy_name(i);
        }
    }
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        const char *const name = lg_strategy_name(i);
        const bool has_half = lg_strategy_role_of(i) == LG_STRATEGY_PIPELINE;
        if ((lg_strategy_role_of(i) == LG_STRATEGY_DATA && on->num_pipeline_ranks > 1) ||
            (has_half && !has_pipelines)) {
            continue;
        }
        for (int pair = 0; pair < (has_half && has_all_pairs ? num_data : 1); pair++, turn++) {
            const int count = turn % (on->num_replicas > 2 ? 2 : NUM_COUNTS); /* enough samples */
            rf_run run = make_run(model, on->num_replicas, count);
            run.num_pipeline_ranks = on->num_pipeline_ranks;
            run.is_v = wants_v(name);
            run.num_stages = (run.is_v || wants_loop(name) ? 2 : 1) * run.num_pipeline_ranks;
            run.is_uneven = turn % 3 == 1;
            run.chunk_bytes = chunks[turn / 2 % NUM_OF(chunks)];
            run.share_bytes = shares[turn / 3 % NUM_OF(shares)];
            run.num_reversed = reversed[turn % NUM_OF(reversed)];
            run.evaluates = turn % 3 == 0;
            (void)snprintf(both, sizeof both, "%s%s%s", name, has_half ? "+" : "",
                           has_half ? data[(turn + pair) % num_data] : "");
            run.strategy = both;
            check_case(grid, expected, &run, count);
        }
    }
}

void rg_check_model(rg_grid *grid, rf_model model)
{
    static struct expected expected;
    memset(&expected, 0, sizeof expected);
    for (int i = 0; i < NUM_OF(placements); i++) {
        const int num_ranks = placements[i].num_pipeline_ranks * placements[i].num_replicas;
        if ((grid->num_ranks == 0 || grid->num_ranks == num_ranks) &&
            (!IS_REDUCED || placements[i].is_in_reduced)) {
            check_placement(grid, &expected, model, i);
        }
    }
}
