/*
 * auto: tries every strategy that says something about the graph, keeps the fastest that fits, then improves it
 * (auto_improve.c). The placement is the graph's; lg_search() chooses that too (auto_search.c).
 */
#include "plan/strategies/auto.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"

/* Ops times plans that the strategy may simulate; the named ones get half of it. More for large graphs, up to a bound. */
#define MIN_SIMULATED_OPS 2000000
#define NUM_SIMULATIONS 100
#define MAX_SIMULATED_OPS 12000000
/* Tried first, whatever the budget. */
#define MIN_TRIES 6

lg_status lgi_budget_simulate(lgi_budget *budget, const lgi_strategy_input *input,
                              const lg_plan *plan, lg_timeline *out)
{
    budget->used_ops += lg_graph_num_ops(input->graph);
    budget->num_simulations++;
    if (budget->progress != NULL && budget->progress->progress != NULL) {
        const lg_search_opts *const opts = budget->progress;
        opts->progress((double)budget->used_ops / (double)opts->max_simulated_ops,
                       budget->num_simulations, opts->progress_user);
    }
    return lg_plan_simulate(out, plan, input->graph, input->machine, input->costs);
}

/* --- what is tried ---------------------------------------------------------------------------------------------------------- */

/* Data-parallel halves, the most promising first. */
static const char *const data_halves[] = {"priority", "barrier", "reverse-first-k", "wfbp"};

#define NUM_DATA_HALVES (sizeof data_halves / sizeof data_halves[0])

static lg_status add_try(lgi_auto_try **list, int *num, size_t *capacity, const char *first,
                         const char *second, bool has_push)
{
    LG_TRY(lgi_grow(list, capacity, (size_t)*num + 1, sizeof **list));
    lgi_auto_try *const item = &(*list)[(*num)++];
    (void)snprintf(item->name, sizeof item->name, "%s%s%s", first, second[0] != '\0' ? "+" : "",
                   second);
    item->has_push = has_push;
    return LG_OK;
}

lg_status lgi_auto_list(lgi_auto_try **out, int *out_num, const lg_graph *graph)
{
    lg_status status = LG_OK;
    size_t capacity = 0;
    const bool has_pipeline = lg_graph_num_pipeline_ranks(graph) > 1;
    *out = NULL;
    *out_num = 0;
    for (size_t d = 0; d < NUM_DATA_HALVES; d++) {
        if (!has_pipeline) {
            LG_TRY_GOTO(add_try(out, out_num, &capacity, data_halves[d], "", false));
        } else {
            LG_TRY_GOTO(add_try(out, out_num, &capacity, "in-order", data_halves[d], false));
        }
        for (const struct lgi_strategy *row = lgi_strategies; row->name != NULL; row++) {
            if (row->role != LG_STRATEGY_PIPELINE) {
                continue;
            }
            LG_TRY_GOTO(add_try(out, out_num, &capacity, row->name, data_halves[d], false));
            if (has_pipeline && strcmp(row->name, "fast-forward") == 0) {
                LG_TRY_GOTO(add_try(out, out_num, &capacity, row->name, data_halves[d], true));
            }
        }
        for (const struct lgi_strategy *row = lgi_strategies; row->name != NULL && d == 0; row++) {
            if (row->role == LG_STRATEGY_WHOLE && row->create != lgi_auto_create) {
                LG_TRY_GOTO(add_try(out, out_num, &capacity, row->name, "", false));
            }
        }
    }
out:
    if (status != LG_OK) {
        lgi_free(*out);
        *out = NULL;
    }
    return status;
}

/* --- one of them ------------------------------------------------------------------------------------------------------------ */

static bool is_not_for_it(lg_status status)
{
    return status == LG_NOT_SUPPORTED || status == LG_INVALID_ARG;
}

/* What the plan would need without a limit; 0 if it cannot be had at all. */
static lg_status unlimited_peak(int64_t *out, const lgi_auto_try *what,
                                const lgi_strategy_input *input)
{
    lgi_strategy_input unlimited = *input;
    lg_plan *plan = NULL;
    unlimited.opts.memory_bytes = 0;
    const lg_status status = lgi_plan_create(&plan, what->name, &unlimited);
    *out = status == LG_OK ? lgi_plan_peak_bytes(plan) : 0;
    lg_plan_destroy(plan);
    return is_not_for_it(status) ? LG_OK : status;
}

lg_status lgi_auto_make(lg_plan **out, double *step_ns, int64_t *peak_bytes, lg_rank_stats *stats,
                        const lgi_auto_try *what, const lgi_strategy_input *input,
                        lgi_budget *budget)
{
    lgi_strategy_input rough = *input;
    lg_timeline timeline = {0};
    rough.opts.has_push = what->has_push;
    rough.is_rough = true;
    *peak_bytes = 0;
    *out = NULL;
    const lg_status made = lgi_plan_create(out, what->name, &rough);
    if (is_not_for_it(made)) {
        return made == LG_NOT_SUPPORTED && rough.opts.memory_bytes > 0
                   ? unlimited_peak(peak_bytes, what, &rough)
                   : LG_OK;
    }
    LG_TRY(made);
    lg_status status = lgi_budget_simulate(budget, input, *out, &timeline);
    if (status == LG_OK && stats != NULL) {
        status = lg_timeline_stats(stats, &timeline, *out, input->graph);
    }
    *step_ns = timeline.step_ns;
    *peak_bytes = lgi_plan_peak_bytes(*out);
    lg_timeline_deinit(&timeline);
    if (status != LG_OK) {
        lg_plan_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* --- the strategy ------------------------------------------------------------------------------------------------------------- */

/* The fastest of the named; *out NULL if none fits. */
static lg_status best_named(lg_plan **out, double *best_ns, int64_t *least_bytes,
                            const lgi_strategy_input *input, lgi_budget *budget)
{
    lg_status status = LG_OK;
    lgi_auto_try *tries = NULL;
    int num = 0;
    *best_ns = 0.0;
    *least_bytes = 0;
    LG_TRY(lgi_auto_list(&tries, &num, input->graph));
    for (int i = 0;
         i < num && (i < MIN_TRIES || *out == NULL || budget->used_ops < budget->max_ops / 2);
         i++) {
        lg_plan *plan = NULL;
        double step_ns = 0.0;
        int64_t peak_bytes = 0;
        LG_TRY_GOTO(lgi_auto_make(&plan, &step_ns, &peak_bytes, NULL, &tries[i], input, budget));
        if (peak_bytes > 0 && (*least_bytes == 0 || peak_bytes < *least_bytes)) {
            *least_bytes = peak_bytes;
        }
        if (plan != NULL && (*out == NULL || step_ns < *best_ns)) {
            lg_plan_destroy(*out);
            *out = plan;
            *best_ns = step_ns;
            plan = NULL;
        }
        lg_plan_destroy(plan);
    }
out:
    lgi_free(tries);
    if (status != LG_OK) {
        lg_plan_destroy(*out);
        *out = NULL;
    }
    return status;
}

static int64_t budget_ops(const lg_graph *graph)
{
    const int64_t num = (int64_t)NUM_SIMULATIONS * lg_graph_num_ops(graph);
    return num < MIN_SIMULATED_OPS   ? MIN_SIMULATED_OPS
           : num > MAX_SIMULATED_OPS ? MAX_SIMULATED_OPS
                                     : num;
}

lg_status lgi_auto_create(lg_plan **out, const lgi_strategy_input *input)
{
    lg_status status = LG_OK;
    lgi_budget budget = {.max_ops = budget_ops(input->graph)};
    lg_bound bound = {0};
    lg_plan *plan = NULL;
    lg_plan *better = NULL;
    double step_ns = 0.0;
    double better_ns = 0.0;
    int64_t least_bytes = 0;
    char *name = NULL;
    *out = NULL;
    LG_TRY(lg_plan_bound(&bound, input->graph, input->machine, input->costs));
    LG_TRY_GOTO(best_named(&plan, &step_ns, &least_bytes, input, &budget));
    if (plan == NULL) {
        status = lgi_fail_budget(input, "the smallest plan of all strategies", least_bytes);
        goto out;
    }
    LG_TRY_GOTO(
        lgi_auto_improve(&better, &better_ns, plan, step_ns, bound.step_ns, input, &budget));
    if (better != NULL && better_ns < step_ns * (1.0 - LGI_AUTO_TIE_FRAC)) {
        lg_plan_destroy(plan);
        plan = better;
        better = NULL;
    } else {
        LG_TRY_GOTO(lgi_plan_place(plan, input->graph));
    }
    LG_TRY_GOTO(lgi_strdup(&name, "auto"));
    lgi_free(plan->strategy);
    plan->strategy = name;
    *out = plan;
    plan = NULL;
out:
    lg_plan_destroy(plan);
    lg_plan_destroy(better);
    return status;
}
