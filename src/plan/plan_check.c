/*
 * The checker: proves a plan by its own means, whoever made it. What lanes and lags must be is here; happens-before is
 * plan_order.c; memory is plan_check_memory.c.
 */
#include "plan/plan_check.h"

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"

static lg_status check_counts(const lg_plan *plan, const lg_graph *graph)
{
    if (plan->graph_fingerprint != lg_graph_fingerprint(graph)) {
        LG_FAIL(LG_INVALID_ARG,
                "the plan is for another graph: its fingerprint is %016llx, not %016llx",
                (unsigned long long)plan->graph_fingerprint,
                (unsigned long long)lg_graph_fingerprint(graph));
    }
    if (plan->num_ops != lg_graph_num_ops(graph) ||
        plan->num_values != lg_graph_num_values(graph) ||
        plan->num_ranks != lg_graph_num_ranks(graph)) {
        LG_FAIL(
            LG_INVALID_ARG,
            "the plan has %d ops, %d values, %d ranks; the graph has %d ops, %d values, %d ranks",
            plan->num_ops, plan->num_values, plan->num_ranks, lg_graph_num_ops(graph),
            lg_graph_num_values(graph), lg_graph_num_ranks(graph));
    }
    if (plan->num_lanes < 0 || plan->num_lanes > LGI_MAX_LANES || plan->num_syncs < 0) {
        LG_FAIL(LG_INVALID_ARG, "the plan has %d lanes and %d syncs; allowed: 0..%d and 0 or more",
                plan->num_lanes, plan->num_syncs, LGI_MAX_LANES);
    }
    return LG_OK;
}

static bool is_comm_op(lg_op_kind kind)
{
    return kind == LG_OP_SEND || kind == LG_OP_RECV || kind == LG_OP_ALL_REDUCE;
}

static lg_status check_lane(const lg_plan *plan, const lg_graph *graph, int lane_idx)
{
    const lg_lane *const lane = &plan->lanes[lane_idx];
    if (lane->kind != LG_LANE_COMPUTE && lane->kind != LG_LANE_COMM) {
        LG_FAIL(LG_INVALID_ARG, "lane %d: its kind is %d", lane_idx, (int)lane->kind);
    }
    if (lane->rank < 0 || lane->rank >= plan->num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "lane %d: rank %d is not in 0..%d", lane_idx, lane->rank,
                plan->num_ranks - 1);
    }
    if (lane->num_entries < 0 || lane->num_entries > 2 * plan->num_ops ||
        (lane->num_entries > 0 && lane->entries == NULL)) {
        LG_FAIL(LG_INVALID_ARG, "lane %d: %d entries for %d ops", lane_idx, lane->num_entries,
                plan->num_ops);
    }
    if (lane->kind == LG_LANE_COMM) {
        if (lane->num_cores != 0) {
            LG_FAIL(LG_INVALID_ARG, "lane %d: a comm lane has no cores, not %d", lane_idx,
                    lane->num_cores);
        }
        return LG_OK;
    }
    if (lane->num_cores < 1 || lgi_width_idx(graph, lane->num_cores) < 0) {
        LG_FAIL(LG_INVALID_ARG, "lane %d: %d cores is none of the graph's widths", lane_idx,
                lane->num_cores);
    }
    if (lane->first_core < 0 || lane->first_core > LGI_MAX_CORES - lane->num_cores) {
        LG_FAIL(LG_INVALID_ARG, "lane %d: cores %d to %d are not in 0..%d", lane_idx,
                lane->first_core, lane->first_core + lane->num_cores - 1, LGI_MAX_CORES - 1);
    }
    return LG_OK;
}

static lg_status check_entry(const lg_plan *plan, const lg_graph *graph, int lane_idx, int pos,
                             int *lane_of)
{
    const lg_lane *const lane = &plan->lanes[lane_idx];
    const lg_plan_entry entry = lane->entries[pos];
    if (entry.op < 0 || entry.op >= plan->num_ops) {
        LG_FAIL(LG_INVALID_ARG, "lane %d, entry %d: op %d is not in 0..%d", lane_idx, pos, entry.op,
                plan->num_ops - 1);
    }
    const lg_op_info *const op = lg_graph_op(graph, entry.op);
    if (entry.lag != 0 && entry.lag != 1) {
        LG_FAIL(LG_INVALID_ARG, "lane %d: op '%s' has lag %d; allowed: 0, 1", lane_idx, op->name,
                entry.lag);
    }
    if (op->rank != lane->rank) {
        LG_FAIL(LG_INVALID_ARG, "lane %d of rank %d has op '%s' of rank %d", lane_idx, lane->rank,
                op->name, op->rank);
    }
    if (lane->kind == LG_LANE_COMM && !is_comm_op(op->kind)) {
        LG_FAIL(LG_INVALID_ARG, "lane %d is a comm lane and has op '%s'", lane_idx, op->name);
    }
    if (lane_of[entry.op] != 0) {
        LG_FAIL(LG_INVALID_ARG, "op '%s' stands twice: in lane %d and in lane %d", op->name,
                lane_of[entry.op] - 1, lane_idx);
    }
    lane_of[entry.op] = lane_idx + 1;
    return LG_OK;
}

static lg_status check_syncs(const lg_plan *plan)
{
    for (int i = 0; i < plan->num_syncs; i++) {
        const lg_plan_sync *const sync = &plan->syncs[i];
        if (sync->from < 0 || sync->from >= plan->num_ops || sync->to < 0 ||
            sync->to >= plan->num_ops || (sync->distance != 0 && sync->distance != 1)) {
            LG_FAIL(
                LG_INVALID_ARG,
                "sync %d: from op %d to op %d, distance %d; allowed: ops 0..%d, distance 0 or 1", i,
                sync->from, sync->to, sync->distance, plan->num_ops - 1);
        }
    }
    return LG_OK;
}

lg_status lgi_plan_check_lanes(const lg_plan *plan, const lg_graph *graph)
{
    LG_TRY(check_counts(plan, graph));
    LG_TRY(check_syncs(plan));
    lg_status status = LG_OK;
    int *lane_of = NULL; /* by op: 1 + its lane */
    LG_TRY(lgi_calloc(&lane_of, (size_t)plan->num_ops, sizeof *lane_of));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        LG_TRY_GOTO(check_lane(plan, graph, lane));
        for (int pos = 0; pos < plan->lanes[lane].num_entries; pos++) {
            LG_TRY_GOTO(check_entry(plan, graph, lane, pos, lane_of));
        }
    }
    for (int op = 0; op < plan->num_ops; op++) {
        if (lane_of[op] == 0) {
            status =
                lgi_fail(LG_INVALID_ARG, "op '%s' is in no lane", lg_graph_op(graph, op)->name);
            goto out;
        }
    }
out:
    lgi_free(lane_of);
    return status;
}

/* The host reads outputs after the iteration of their step. */
static lg_status check_outputs(const lgi_order *order, const lg_graph *graph)
{
    for (int op = 0; op < order->num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        for (int i = 0; i < info->num_operands && order->lag[op] != 0; i++) {
            const lg_value_info *const value = lg_graph_value(graph, info->operands[i].value);
            if (value->is_output && (info->operands[i].access & LG_ACCESS_WRITE) != 0) {
                LG_FAIL(LG_INVALID_ARG,
                        "op '%s' writes the output '%s', so its lag must be 0, not %d", info->name,
                        value->name, order->lag[op]);
            }
        }
    }
    return LG_OK;
}

static bool share_cores(const lg_lane *a, const lg_lane *b)
{
    return a->rank == b->rank && a->kind == LG_LANE_COMPUTE && b->kind == LG_LANE_COMPUTE &&
           a->first_core < b->first_core + b->num_cores &&
           b->first_core < a->first_core + a->num_cores;
}

/*
 * Every op of lane `a` must be ordered with every op of lane `b`. The entries of `b` that do not happen before an op are
 * a tail of the lane, so the first of them is the only one to look at.
 */
static lg_status check_lane_pair(const lgi_order *order, const lg_plan *plan, const lg_graph *graph,
                                 int a, int b)
{
    const lg_lane *const lane_a = &plan->lanes[a];
    const lg_lane *const lane_b = &plan->lanes[b];
    for (int pos = 0; pos < lane_a->num_entries; pos++) {
        const int op = lane_a->entries[pos].op;
        const int num_before = lgi_order_clock(order, op)[order->local_lane[b]];
        if (num_before == lane_b->num_entries) {
            continue;
        }
        const int next = lane_b->entries[num_before].op;
        if (!lgi_order_before_inside(order, op, next)) {
            LG_FAIL(LG_INVALID_ARG,
                    "lanes %d and %d share cores, but nothing orders their ops '%s' and '%s'", a, b,
                    lg_graph_op(graph, op)->name, lg_graph_op(graph, next)->name);
        }
    }
    return LG_OK;
}

static lg_status check_shared_cores(const lgi_order *order, const lg_plan *plan,
                                    const lg_graph *graph)
{
    for (int a = 0; a < plan->num_lanes; a++) {
        for (int b = a + 1; b < plan->num_lanes; b++) {
            if (share_cores(&plan->lanes[a], &plan->lanes[b])) {
                LG_TRY(check_lane_pair(order, plan, graph, a, b));
            }
        }
    }
    return LG_OK;
}

lg_status lg_plan_check(const lg_plan *plan, const lg_graph *graph, int64_t memory_bytes)
{
    if (memory_bytes < 0) {
        LG_FAIL(LG_INVALID_ARG, "memory_bytes is %lld; allowed: 0 (not limited) or more",
                (long long)memory_bytes);
    }
    LG_TRY(lgi_plan_check_lanes(plan, graph));
    lg_status status = LG_OK;
    lgi_order order = {0};
    lgi_groups groups = {0};
    LG_TRY_GOTO(lgi_groups_init(&groups, graph));
    LG_TRY_GOTO(lgi_groups_check_collectives(&groups, plan, graph));
    LG_TRY_GOTO(lgi_order_init(&order, &groups, plan, graph));
    LG_TRY_GOTO(check_outputs(&order, graph));
    LG_TRY_GOTO(check_shared_cores(&order, plan, graph));
    LG_TRY_GOTO(lgi_plan_check_memory(&order, plan, graph, memory_bytes));
out:
    lgi_order_deinit(&order);
    lgi_groups_deinit(&groups);
    return status;
}
