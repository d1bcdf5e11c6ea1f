/* Options, and the way from a strategy's name to a proved plan. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes_text.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_order.h"
#include "plan/strategies/strategy.h"

lg_strategy_opts lg_strategy_opts_default(void)
{
    return (lg_strategy_opts){.num_lanes = 0,
                              .threads_per_lane = 0,
                              .memory_bytes = 0,
                              .allow_lag = true,
                              .num_reversed = -1};
}

int lgi_widest(const lgi_strategy_input *input, int num_lanes)
{
    const lg_graph_opts *const opts = lg_graph_options(input->graph);
    int widest = 0;
    for (int i = 0; i < opts->num_widths; i++) {
        const int width = opts->widths[i];
        if (width > widest && (int64_t)width * num_lanes <= input->machine->num_cores) {
            widest = width;
        }
    }
    return widest;
}

bool lgi_is_comm_op(lg_op_kind kind)
{
    return kind == LG_OP_SEND || kind == LG_OP_RECV || kind == LG_OP_ALL_REDUCE;
}

lg_status lgi_step_ns(const lgi_strategy_input *input, const lg_plan *plan, double *out_ns)
{
    lg_timeline timeline;
    LG_TRY(lg_plan_simulate(&timeline, plan, input->graph, input->machine, input->costs));
    *out_ns = timeline.step_ns;
    lg_timeline_deinit(&timeline);
    return LG_OK;
}

static lg_status check_machine(const lg_machine *machine, const lg_graph *graph)
{
    if (machine->num_cores < 1 || machine->memory_bytes < 0 || !(machine->corun_slowdown >= 1.0) ||
        !isfinite(machine->corun_slowdown)) {
        LG_FAIL(
            LG_INVALID_ARG,
            "machine: %d cores, %lld bytes, corun_slowdown %g; allowed: 1 or more cores, 0 or more "
            "bytes, 1 or more",
            machine->num_cores, (long long)machine->memory_bytes, machine->corun_slowdown);
    }
    if (machine->num_ranks != lg_graph_num_ranks(graph)) {
        LG_FAIL(LG_INVALID_ARG, "machine: %d ranks, but the graph has %d", machine->num_ranks,
                lg_graph_num_ranks(graph));
    }
    return LG_OK;
}

static lg_status check_opts(const lg_strategy_opts *opts, const lg_machine *machine,
                            const lg_graph *graph)
{
    if (opts->num_lanes < 0 || opts->threads_per_lane < 0 || opts->memory_bytes < 0) {
        LG_FAIL(LG_INVALID_ARG,
                "strategy options: %d lanes, %d threads per lane, %lld bytes; allowed: 0 (chosen) "
                "or more",
                opts->num_lanes, opts->threads_per_lane, (long long)opts->memory_bytes);
    }
    const int64_t num_lanes = opts->num_lanes > 0 ? opts->num_lanes : 1;
    const int64_t num_threads = opts->threads_per_lane > 0 ? opts->threads_per_lane : 1;
    if (num_lanes * num_threads > machine->num_cores) {
        LG_FAIL(LG_INVALID_ARG, "%lld lanes of %lld threads need more than the machine's %d cores",
                (long long)num_lanes, (long long)num_threads, machine->num_cores);
    }
    if (opts->threads_per_lane > 0 && lgi_width_idx(graph, opts->threads_per_lane) < 0) {
        LG_FAIL(LG_NOT_SUPPORTED, "the graph was not made for ops with %d threads",
                opts->threads_per_lane);
    }
    return LG_OK;
}

lg_status lgi_strategy_resolve(lgi_strategy_input *input, const lg_graph *graph,
                               const lg_machine *machine, const lg_costs *costs,
                               const lg_strategy_opts *opts)
{
    LG_TRY(check_machine(machine, graph));
    LG_TRY(check_opts(opts, machine, graph));
    *input =
        (lgi_strategy_input){.graph = graph, .machine = machine, .costs = costs, .opts = *opts};
    if (input->opts.memory_bytes == 0) {
        input->opts.memory_bytes = machine->memory_bytes;
    }
    return LG_OK;
}

/* Parameters, states, gradients and optimizer tensors: bytes of the rank that has the most. */
static int64_t persistent_bytes(const lgi_strategy_input *input)
{
    int64_t *bytes = NULL; /* by rank */
    int64_t most = 0;
    if (lgi_calloc(&bytes, (size_t)lg_graph_num_ranks(input->graph), sizeof *bytes) != LG_OK) {
        return 0;
    }
    for (int value = 0; value < lg_graph_num_values(input->graph); value++) {
        const lg_value_info *const info = lg_graph_value(input->graph, value);
        bytes[info->rank] += info->is_persistent ? info->bytes : 0;
        most = bytes[info->rank] > most ? bytes[info->rank] : most;
    }
    lgi_free(bytes);
    return most;
}

lg_status lgi_fail_budget(const lgi_strategy_input *input, const char *what, int64_t num_bytes)
{
    const lg_graph *const graph = input->graph;
    const int num_micro_batches = lg_graph_num_micro_batches(graph) / lg_graph_num_replicas(graph);
    const int64_t kept = persistent_bytes(input);
    const int64_t budget = input->opts.memory_bytes;
    char hint[240];
    char texts[2][LGI_BYTES_TEXT_BYTES];
    if (kept > budget) {
        (void)snprintf(hint, sizeof hint,
                       "weights, gradients and optimizer alone take %s, which only more pipeline "
                       "ranks (now %d) divide",
                       lgi_bytes_text(texts[0], kept), lg_graph_num_pipeline_ranks(graph));
    } else if (lg_graph_micro_batch_samples(graph, 0) > 1) {
        (void)snprintf(hint, sizeof hint,
                       "more micro-batches (now %d in each replica), a smaller batch or more "
                       "pipeline ranks need less",
                       num_micro_batches);
    } else {
        (void)snprintf(hint, sizeof hint,
                       "micro-batches are of one sample already; fewer of them, or more pipeline "
                       "ranks, need less");
    }
    return lgi_fail(LG_NOT_SUPPORTED, "%s needs %s on a rank, over the budget of %s; %s", what,
                    lgi_bytes_text(texts[0], num_bytes), lgi_bytes_text(texts[1], budget), hint);
}

static int64_t enough_bytes(const lgi_strategy_input *input)
{
    return input->opts.memory_bytes > 0 ? input->opts.memory_bytes : INT64_MAX;
}

lg_status lgi_strategy_place(lg_plan *plan, const lgi_strategy_input *input)
{
    return input->is_rough ? lgi_plan_place_roughly(plan, input->graph, enough_bytes(input))
                           : lgi_plan_place(plan, input->graph);
}

lg_status lgi_strategy_fits(lg_plan *plan, const lgi_strategy_input *input, bool *out)
{
    *out = true;
    if (input->opts.memory_bytes > 0) {
        LG_TRY(lgi_plan_place_roughly(plan, input->graph, enough_bytes(input)));
        *out = lgi_plan_peak_bytes(plan) <= input->opts.memory_bytes;
    }
    return LG_OK;
}

lg_status lg_plan_create(lg_plan **out, const char *strategy, const lg_graph *graph,
                         const lg_machine *machine, const lg_costs *costs,
                         const lg_strategy_opts *opts)
{
    lgi_strategy_input input;
    *out = NULL;
    const struct lgi_strategy *pipeline = NULL;
    const struct lgi_strategy *data = NULL;
    LG_TRY(lgi_strategy_find(strategy, &pipeline, &data)); /* an unknown name comes first */
    LG_TRY(lgi_strategy_resolve(&input, graph, machine, costs, opts));
    return lgi_plan_create(out, strategy, &input);
}

lg_status lgi_plan_create(lg_plan **out, const char *strategy, const lgi_strategy_input *input)
{
    *out = NULL;
    const struct lgi_strategy *pipeline = NULL;
    const struct lgi_strategy *data = NULL;
    lg_plan *plan = NULL;
    LG_TRY(lgi_strategy_find(strategy, &pipeline, &data));
    LG_TRY(data == NULL ? pipeline->create(&plan, input)
                        : lgi_compose(&plan, input, strategy, pipeline, data));
    const lg_status status = lg_plan_check(plan, input->graph, input->opts.memory_bytes);
    if (status != LG_OK) {
        lg_plan_destroy(plan);
        return status == LG_OUT_OF_MEMORY
                   ? status
                   : lgi_fail_prefix(LG_INTERNAL, "the plan of strategy '%s' is wrong", strategy);
    }
    *out = plan;
    return LG_OK;
}

/* --- time against bytes ------------------------------------------------------------------------------------------- */

/* Plans looked at for a frontier: the fastest ones and a sample of the rest. */
#define MAX_FRONTIER_PLANS 64

typedef struct cost_pair {
    double step_ns;
    int64_t peak_bytes;
} cost_pair;

static lg_status collect_pairs(const lgi_strategy_input *input, cost_pair *pairs, int *num_pairs)
{
    lg_status status = LG_OK;
    lgi_candidates *candidates = NULL;
    LG_TRY(lgi_candidates_create(&candidates, input));
    const int num = lgi_candidates_num(candidates);
    const int num_looked_at = num < MAX_FRONTIER_PLANS ? num : MAX_FRONTIER_PLANS;
    *num_pairs = 0;
    for (int i = 0; i < num_looked_at; i++) {
        /* the first half one by one, then ever larger strides to the slowest */
        const int half = num_looked_at / 2;
        const int idx =
            i < half || num == num_looked_at
                ? i
                : half + (int)((int64_t)(num - 1 - half) * (i - half + 1) / (num_looked_at - half));
        lg_plan *plan = NULL;
        LG_TRY_GOTO(lgi_candidates_make(candidates, idx, &plan));
        pairs[*num_pairs].step_ns = lgi_candidates_step_ns(candidates, idx);
        pairs[*num_pairs].peak_bytes = lgi_plan_peak_bytes(plan);
        ++*num_pairs;
        lg_plan_destroy(plan);
    }
out:
    lgi_candidates_destroy(candidates);
    return status;
}

/* The fastest pair within `budget`, the smaller of equals; or -1. */
static int best_within(const cost_pair *pairs, int num_pairs, int64_t budget_bytes)
{
    int best = -1;
    for (int i = 0; i < num_pairs; i++) {
        if (pairs[i].peak_bytes > budget_bytes) {
            continue;
        }
        if (best < 0 || pairs[i].step_ns < pairs[best].step_ns ||
            (pairs[i].step_ns == pairs[best].step_ns &&
             pairs[i].peak_bytes < pairs[best].peak_bytes)) {
            best = i;
        }
    }
    return best;
}

lg_status lg_plan_frontier(lg_frontier_point *points, int num_points, lg_frontier_point *in_order,
                           const lg_graph *graph, const lg_machine *machine, const lg_costs *costs,
                           const lg_strategy_opts *opts)
{
    cost_pair pairs[MAX_FRONTIER_PLANS];
    int num_pairs = 0;
    lgi_strategy_input input;
    LG_TRY(lgi_strategy_resolve(&input, graph, machine, costs, opts));
    lg_plan *plan = NULL;
    const int64_t limit_bytes = input.opts.memory_bytes;
    input.opts.memory_bytes = 0;
    LG_TRY(lgi_in_order_create(&plan, &input));
    *in_order = (lg_frontier_point){.fits = true, .peak_bytes = lgi_plan_peak_bytes(plan)};
    in_order->budget_bytes = in_order->peak_bytes;
    const lg_status status = lgi_step_ns(&input, plan, &in_order->step_ns);
    lg_plan_destroy(plan);
    LG_TRY(status);
    LG_TRY(collect_pairs(&input, pairs, &num_pairs));
    int64_t min_bytes = INT64_MAX;
    for (int i = 0; i < num_pairs; i++) {
        min_bytes = pairs[i].peak_bytes < min_bytes ? pairs[i].peak_bytes : min_bytes;
    }
    const int fastest = best_within(pairs, num_pairs, limit_bytes > 0 ? limit_bytes : INT64_MAX);
    const int64_t max_bytes = fastest >= 0 ? pairs[fastest].peak_bytes : min_bytes;
    for (int i = 0; i < num_points; i++) {
        const double part = num_points > 1 ? (double)i / (num_points - 1) : 1.0;
        points[i] = (lg_frontier_point){
            .budget_bytes = i == num_points - 1
                                ? max_bytes
                                : min_bytes + (int64_t)(part * (double)(max_bytes - min_bytes))};
        const int64_t budget = limit_bytes > 0 && points[i].budget_bytes > limit_bytes
                                   ? limit_bytes
                                   : points[i].budget_bytes;
        const int best = best_within(pairs, num_pairs, budget);
        if (best >= 0) {
            points[i].fits = true;
            points[i].step_ns = pairs[best].step_ns;
            points[i].peak_bytes = pairs[best].peak_bytes;
        }
    }
    return LG_OK;
}
