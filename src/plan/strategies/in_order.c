/*
 * The textbook order: ops by id (the graph numbers them so: each weight gradient beside its input gradient, updates at
 * the end). With several lanes, lane 0 has everything but the weight gradients, which the others take in turn, each
 * lane still in textbook order and nothing lags; a layer's statistics and update follow its last weight gradient in
 * that one's lane. All lanes ascend in op ids, and edges inside a step do too, so nothing can deadlock.
 */
#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/strategies/strategy.h"

/* Lane of the last weight gradient or statistic that `op` waits for in its step, of its own rank; or -1. */
static int lane_of_last_grad(const lg_graph *graph, int op, int edge_begin, int edge_end,
                             const int *lane_of)
{
    const lg_edge *const edges = lg_graph_edges(graph);
    int last = -1;
    for (int i = edge_begin; i < edge_end; i++) {
        const lg_op_info *const from = lg_graph_op(graph, edges[i].from);
        if (edges[i].distance == 0 && from->rank == lg_graph_op(graph, op)->rank &&
            (from->kind == LG_OP_WEIGHT_GRAD || from->kind == LG_OP_GRAD_STAT)) {
            last = edges[i].from > last ? edges[i].from : last;
        }
    }
    return last < 0 ? -1 : lane_of[last];
}

lg_status lgi_in_order_lanes(lg_plan **out, const lgi_strategy_input *input)
{
    const lg_graph *const graph = input->graph;
    const int num_ops = lg_graph_num_ops(graph);
    const int num_ranks = lg_graph_num_ranks(graph);
    const int num_lanes = input->opts.num_lanes > 0 ? input->opts.num_lanes : 1;
    const int num_threads = input->opts.threads_per_lane > 0 ? input->opts.threads_per_lane
                                                             : lgi_widest(input, num_lanes);
    const lg_edge *const edges = lg_graph_edges(graph);
    const int num_edges = lg_graph_num_edges(graph);
    *out = NULL;
    if (num_threads == 0) {
        LG_FAIL(LG_NOT_SUPPORTED, "none of the graph's widths fits %d times on %d cores", num_lanes,
                input->machine->num_cores);
    }
    bool has_comm = false;
    for (int op = 0; op < num_ops; op++) {
        has_comm = has_comm || lgi_is_comm_op(lg_graph_op(graph, op)->kind);
    }
    lg_status status = LG_OK;
    lg_plan *plan = NULL;
    int *lane_of = NULL;
    int *num_taken = NULL; /* by rank: weight gradients given to lanes */
    const int lanes_per_rank = num_lanes + (has_comm ? 1 : 0);
    LG_TRY_GOTO(lgi_plan_init(&plan, graph, "in-order", num_ranks * lanes_per_rank));
    LG_TRY_GOTO(lgi_calloc(&lane_of, (size_t)num_ops, sizeof *lane_of));
    LG_TRY_GOTO(lgi_calloc(&num_taken, (size_t)num_ranks, sizeof *num_taken));
    int edge = 0;
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        const int edge_begin = edge;
        while (edge < num_edges && edges[edge].to == op) {
            edge++;
        }
        int lane = 0;
        if (lgi_is_comm_op(info->kind)) {
            lane = num_lanes;
        } else if (num_lanes > 1 && info->kind == LG_OP_WEIGHT_GRAD) {
            lane = 1 + num_taken[info->rank]++ % (num_lanes - 1);
        } else if (info->kind == LG_OP_UPDATE || info->kind == LG_OP_GRAD_STAT ||
                   info->kind == LG_OP_RATE) {
            const int grad_lane = lane_of_last_grad(graph, op, edge_begin, edge, lane_of);
            lane = grad_lane < 0 ? 0 : grad_lane % lanes_per_rank;
        }
        lane_of[op] = info->rank * lanes_per_rank + lane;
        plan->lanes[lane_of[op]].num_entries++;
    }
    for (int i = 0; i < plan->num_lanes; i++) {
        lg_lane *const lane = &plan->lanes[i];
        const int k = i % lanes_per_rank;
        lane->rank = i / lanes_per_rank;
        lane->kind = k < num_lanes ? LG_LANE_COMPUTE : LG_LANE_COMM;
        lane->first_core = k < num_lanes ? k * num_threads : 0;
        lane->num_cores = k < num_lanes ? num_threads : 0;
        LG_TRY_GOTO(lgi_calloc(&lane->entries, (size_t)lane->num_entries, sizeof *lane->entries));
        lane->num_entries = 0;
    }
    for (int op = 0; op < num_ops; op++) {
        lg_lane *const lane = &plan->lanes[lane_of[op]];
        lane->entries[lane->num_entries++] = (lg_plan_entry){.op = op, .lag = 0};
    }
    *out = plan;
    plan = NULL;
out:
    lg_plan_destroy(plan);
    lgi_free(lane_of);
    lgi_free(num_taken);
    return status;
}

lg_status lgi_in_order_create(lg_plan **out, const lgi_strategy_input *input)
{
    lg_plan *plan = NULL;
    *out = NULL;
    LG_TRY(lgi_in_order_lanes(&plan, input));
    lg_status status = lgi_strategy_place(plan, input);
    if (status == LG_OK && input->opts.memory_bytes > 0 &&
        lgi_plan_peak_bytes(plan) > input->opts.memory_bytes) {
        status = lgi_fail_budget(input, "the in-order plan", lgi_plan_peak_bytes(plan));
    }
    if (status != LG_OK) {
        lg_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return LG_OK;
}
