/*
 * Vector clocks over the lanes: clock[op][l] counts the entries of lane l that end before the op starts. Filled in along a
 * topological order of one iteration (Kahn's algorithm), O((ops + edges) * lanes). What is left over when nothing is ready
 * any more is a deadlock; walking backwards through it finds a cycle to name.
 *
 * Source: Fidge 1988 and Mattern 1989 (vector time), with lanes as processes.
 */
#include "plan/plan_order.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

/* An arc of the iteration between two lanes. */
typedef struct arc {
    int from;
    int to;
} arc;

typedef struct arc_list {
    arc *items;
    int num;
    int *
        in_begin; /* by op: in_arcs[in_begin[op] .. in_begin[op + 1]) are indices of arcs into it */
    int *in_arcs;
    int *out_begin;
    int *out_arcs;
} arc_list;

static void arcs_deinit(arc_list *arcs)
{
    lgi_free(arcs->items);
    lgi_free(arcs->in_begin);
    lgi_free(arcs->in_arcs);
    lgi_free(arcs->out_begin);
    lgi_free(arcs->out_arcs);
}

/* `delta`: iterations between the two runs. */
static lg_status add_constraint(const lgi_order *order, arc_list *arcs, const lg_graph *graph,
                                const char *what, int from, int to, int distance, int delta)
{
    const char *const from_name = lg_graph_op(graph, from)->name;
    const char *const to_name = lg_graph_op(graph, to)->name;
    if (delta < 0) {
        LG_FAIL(LG_INVALID_ARG,
                "%s '%s' -> '%s' (distance %d) is broken: lag %d of '%s' puts it after '%s' with "
                "lag %d",
                what, from_name, to_name, distance, order->lag[from], from_name, to_name,
                order->lag[to]);
    }
    if (delta > 0) {
        return LG_OK;
    }
    if (order->lane[from] == order->lane[to]) {
        if (order->pos[from] >= order->pos[to]) {
            LG_FAIL(LG_INVALID_ARG,
                    "%s '%s' -> '%s' (distance %d) is broken: lane %d has '%s' at %d, not before "
                    "'%s' at %d",
                    what, from_name, to_name, distance, order->lane[from], from_name,
                    order->pos[from], to_name, order->pos[to]);
        }
        return LG_OK;
    }
    arcs->items[arcs->num++] = (arc){from, to};
    return LG_OK;
}

/* Groups the arcs by one of their ends. */
static lg_status group_arcs(int **out_begin, int **out_group, const arc_list *arcs, int num_ops,
                            bool by_to)
{
    LG_TRY(lgi_calloc(out_begin, (size_t)num_ops + 2, sizeof **out_begin));
    LG_TRY(lgi_calloc(out_group, (size_t)arcs->num + 1, sizeof **out_group));
    int *const begin = *out_begin;
    for (int i = 0; i < arcs->num; i++) {
        begin[(by_to ? arcs->items[i].to : arcs->items[i].from) + 2]++;
    }
    for (int op = 0; op < num_ops; op++) {
        begin[op + 2] += begin[op + 1];
    }
    for (int i = 0; i < arcs->num; i++) {
        (*out_group)[begin[(by_to ? arcs->items[i].to : arcs->items[i].from) + 1]++] = i;
    }
    return LG_OK;
}

static lg_status collect_arcs(arc_list *arcs, const lgi_order *order, const lg_plan *plan,
                              const lg_graph *graph)
{
    const int num_edges = lg_graph_num_edges(graph);
    const lg_edge *const edges = lg_graph_edges(graph);
    LG_TRY(lgi_calloc(&arcs->items, (size_t)num_edges + (size_t)plan->num_syncs, sizeof(arc)));
    for (int i = 0; i < num_edges; i++) {
        const lg_edge *const edge = &edges[i];
        if (lgi_is_meeting(graph, edge)) {
            continue;
        }
        LG_TRY(add_constraint(
            order, arcs, graph, "edge", edge->from, edge->to, edge->distance,
            lgi_edge_delta(edge->distance, order->lag[edge->from], order->lag[edge->to])));
    }
    for (int i = 0; i < plan->num_syncs; i++) {
        const lg_plan_sync *const sync = &plan->syncs[i];
        LG_TRY(add_constraint(order, arcs, graph, "sync", sync->from, sync->to, sync->distance,
                              sync->distance));
    }
    LG_TRY(group_arcs(&arcs->in_begin, &arcs->in_arcs, arcs, order->num_ops, true));
    return group_arcs(&arcs->out_begin, &arcs->out_arcs, arcs, order->num_ops, false);
}

/* A predecessor of `op` alone that never ran, or -1. */
static int own_stuck_predecessor(const lgi_order *order, const lg_plan *plan, const arc_list *arcs,
                                 int op)
{
    for (int i = arcs->in_begin[op]; i < arcs->in_begin[op + 1]; i++) {
        const int from = arcs->items[arcs->in_arcs[i]].from;
        if (order->linear[from] < 0) {
            return from;
        }
    }
    if (order->pos[op] > 0) {
        const int from = plan->lanes[order->lane[op]].entries[order->pos[op] - 1].op;
        if (order->linear[from] < 0) {
            return from;
        }
    }
    return -1;
}

/* What `op`, which never ran, waits for: a predecessor, or an op that it meets. */
static int stuck_predecessor(const lgi_order *order, const lg_plan *plan, const lg_graph *graph,
                             const arc_list *arcs, const lgi_groups *groups, int op)
{
    const int group = lg_graph_op(graph, op)->group;
    const int own = own_stuck_predecessor(order, plan, arcs, op);
    for (int i = group < 0 ? 0 : groups->begin[group];
         own < 0 && group >= 0 && i < groups->begin[group + 1]; i++) {
        const int other = groups->ops[i];
        if (other != op && own_stuck_predecessor(order, plan, arcs, other) >= 0) {
            return other;
        }
    }
    return own;
}

static lg_status fail_deadlock(const lgi_order *order, const lg_plan *plan, const lg_graph *graph,
                               const arc_list *arcs, const lgi_groups *groups)
{
    int op = 0;
    while (order->linear[op] >= 0) {
        op++;
    }
    /* After as many steps back as there are ops the walk is on a cycle. */
    for (int i = 0; i < order->num_ops; i++) {
        op = stuck_predecessor(order, plan, graph, arcs, groups, op);
    }
    char text[400];
    size_t used = 0;
    int num_named = 0;
    int at = op;
    do {
        const int next = stuck_predecessor(order, plan, graph, arcs, groups, at);
        const int written = snprintf(text + used, sizeof text - used, "'%s' (lane %d) waits for ",
                                     lg_graph_op(graph, at)->name, order->lane[at]);
        if (written < 0 || (size_t)written >= sizeof text - used) {
            snprintf(text + used, sizeof text - used, "... ");
            break;
        }
        used += (size_t)written;
        at = next;
        num_named++;
    } while (at != op && num_named < 8);
    LG_FAIL(LG_INVALID_ARG, "deadlock: %s'%s'", text, lg_graph_op(graph, at)->name);
}

/* Joins what happens before `from`, and `from` itself, into the clock of `to`. */
static void join_clock(lgi_order *order, int to, int from)
{
    const size_t num_lanes = (size_t)order->num_lanes;
    int *const clock = order->clock + (size_t)to * num_lanes;
    const int *const other = order->clock + (size_t)from * num_lanes;
    for (size_t lane = 0; lane < num_lanes; lane++) {
        if (other[lane] > clock[lane]) {
            clock[lane] = other[lane];
        }
    }
    if (order->pos[from] + 1 > clock[order->lane[from]]) {
        clock[order->lane[from]] = order->pos[from] + 1;
    }
}

/* The ops whose waits are over and that go on together: one op, or all of a group. */
typedef struct wave {
    const lg_graph *graph;
    const lgi_groups *groups;
    int *num_waits;   /* by op */
    int *num_arrived; /* by group */
    int *ready;       /* queue of ops, one for each group */
    int num_ready;
} wave;

static void arrive(wave *w, int op)
{
    const int group = lg_graph_op(w->graph, op)->group;
    if (group < 0 ||
        ++w->num_arrived[group] == w->groups->begin[group + 1] - w->groups->begin[group]) {
        w->ready[w->num_ready++] = op;
    }
}

/* Ends `op`: all that waits for it has one wait less, and its clock. */
static void release_followers(lgi_order *order, const lg_plan *plan, const arc_list *arcs, wave *w,
                              int op)
{
    const lg_lane *const lane = &plan->lanes[order->lane[op]];
    if (order->pos[op] + 1 < lane->num_entries) {
        const int next = lane->entries[order->pos[op] + 1].op;
        join_clock(order, next, op);
        if (--w->num_waits[next] == 0) {
            arrive(w, next);
        }
    }
    for (int k = arcs->out_begin[op]; k < arcs->out_begin[op + 1]; k++) {
        const int to = arcs->items[arcs->out_arcs[k]].to;
        join_clock(order, to, op);
        if (--w->num_waits[to] == 0) {
            arrive(w, to);
        }
    }
}

/* Gives all ops of a group the clock of their meeting. */
static void join_group(lgi_order *order, const int *ops, int num)
{
    const size_t num_lanes = (size_t)order->num_lanes;
    int *const joint = order->clock + (size_t)ops[0] * num_lanes;
    for (int i = 1; i < num; i++) {
        const int *const clock = order->clock + (size_t)ops[i] * num_lanes;
        for (size_t lane = 0; lane < num_lanes; lane++) {
            joint[lane] = clock[lane] > joint[lane] ? clock[lane] : joint[lane];
        }
    }
    for (int i = 1; i < num; i++) {
        memcpy(order->clock + (size_t)ops[i] * num_lanes, joint, num_lanes * sizeof *joint);
    }
}

static lg_status fill_clocks(lgi_order *order, const lg_plan *plan, const lg_graph *graph,
                             const arc_list *arcs, const lgi_groups *groups)
{
    lg_status status = LG_OK;
    wave w = {.graph = graph, .groups = groups};
    LG_TRY_GOTO(lgi_calloc(&w.num_waits, (size_t)order->num_ops, sizeof *w.num_waits));
    LG_TRY_GOTO(lgi_calloc(&w.num_arrived, (size_t)groups->num_groups, sizeof *w.num_arrived));
    LG_TRY_GOTO(lgi_calloc(&w.ready, (size_t)order->num_ops, sizeof *w.ready));
    int num_ordered = 0;
    for (int op = 0; op < order->num_ops; op++) {
        order->linear[op] = -1;
        w.num_waits[op] =
            arcs->in_begin[op + 1] - arcs->in_begin[op] + (order->pos[op] > 0 ? 1 : 0);
    }
    for (int op = 0; op < order->num_ops; op++) {
        if (w.num_waits[op] == 0) {
            arrive(&w, op);
        }
    }
    for (int i = 0; i < w.num_ready; i++) {
        const int group = lg_graph_op(graph, w.ready[i])->group;
        const int *const ops = group < 0 ? &w.ready[i] : groups->ops + groups->begin[group];
        const int num = group < 0 ? 1 : groups->begin[group + 1] - groups->begin[group];
        join_group(order, ops, num);
        for (int k = 0; k < num; k++) {
            order->linear[ops[k]] = num_ordered++;
        }
        for (int k = 0; k < num; k++) {
            release_followers(order, plan, arcs, &w, ops[k]);
        }
    }
    if (num_ordered < order->num_ops) {
        status = fail_deadlock(order, plan, graph, arcs, groups);
    }
out:
    lgi_free(w.num_waits);
    lgi_free(w.num_arrived);
    lgi_free(w.ready);
    return status;
}

static lg_status check_group_lags(const lgi_order *order, const lg_graph *graph,
                                  const lgi_groups *groups)
{
    for (int group = 0; group < groups->num_groups; group++) {
        for (int i = groups->begin[group] + 1; i < groups->begin[group + 1]; i++) {
            const int first = groups->ops[groups->begin[group]];
            const int op = groups->ops[i];
            if (order->lag[op] != order->lag[first]) {
                LG_FAIL(LG_INVALID_ARG, "ops '%s' and '%s' meet, but have lag %d and lag %d",
                        lg_graph_op(graph, first)->name, lg_graph_op(graph, op)->name,
                        order->lag[first], order->lag[op]);
            }
        }
    }
    return LG_OK;
}

lg_status lgi_order_init(lgi_order *out, const lg_plan *plan, const lg_graph *graph)
{
    lg_status status = LG_OK;
    arc_list arcs = {0};
    lgi_groups groups = {0};
    const size_t num_ops = (size_t)lg_graph_num_ops(graph);
    *out = (lgi_order){.num_ops = (int)num_ops, .num_lanes = plan->num_lanes};
    LG_TRY_GOTO(lgi_calloc(&out->lane, num_ops, sizeof *out->lane));
    LG_TRY_GOTO(lgi_calloc(&out->pos, num_ops, sizeof *out->pos));
    LG_TRY_GOTO(lgi_calloc(&out->lag, num_ops, sizeof *out->lag));
    LG_TRY_GOTO(lgi_calloc(&out->rank, num_ops, sizeof *out->rank));
    LG_TRY_GOTO(lgi_calloc(&out->linear, num_ops, sizeof *out->linear));
    LG_TRY_GOTO(lgi_calloc(&out->clock, num_ops * (size_t)plan->num_lanes, sizeof *out->clock));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int pos = 0; pos < plan->lanes[lane].num_entries; pos++) {
            const lg_plan_entry *const entry = &plan->lanes[lane].entries[pos];
            out->lane[entry->op] = lane;
            out->pos[entry->op] = pos;
            out->lag[entry->op] = entry->lag;
            out->rank[entry->op] = plan->lanes[lane].rank;
        }
    }
    LG_TRY_GOTO(lgi_groups_init(&groups, graph));
    LG_TRY_GOTO(check_group_lags(out, graph, &groups));
    LG_TRY_GOTO(collect_arcs(&arcs, out, plan, graph));
    LG_TRY_GOTO(fill_clocks(out, plan, graph, &arcs, &groups));
out:
    arcs_deinit(&arcs);
    lgi_groups_deinit(&groups);
    if (status != LG_OK) {
        lgi_order_deinit(out);
    }
    return status;
}

void lgi_order_deinit(lgi_order *order)
{
    lgi_free(order->lane);
    lgi_free(order->pos);
    lgi_free(order->lag);
    lgi_free(order->rank);
    lgi_free(order->linear);
    lgi_free(order->clock);
    *order = (lgi_order){0};
}

lg_status lgi_accesses_init(lgi_accesses *out, const lg_graph *graph)
{
    *out = (lgi_accesses){0};
    const int num_values = lg_graph_num_values(graph);
    const int num_ops = lg_graph_num_ops(graph);
    size_t num_operands = 0;
    for (int op = 0; op < num_ops; op++) {
        num_operands += (size_t)lg_graph_op(graph, op)->num_operands;
    }
    lg_status status = LG_OK;
    int *last_op = NULL; /* by value: the last op counted for it */
    LG_TRY_GOTO(lgi_calloc(&out->begin, (size_t)num_values + 2, sizeof *out->begin));
    LG_TRY_GOTO(lgi_calloc(&out->ops, num_operands, sizeof *out->ops));
    LG_TRY_GOTO(lgi_calloc(&last_op, (size_t)num_values, sizeof *last_op));
    for (int pass = 0; pass < 2; pass++) {
        memset(last_op, 0xff, (size_t)num_values * sizeof *last_op);
        for (int op = 0; op < num_ops; op++) {
            const lg_op_info *const info = lg_graph_op(graph, op);
            for (int i = 0; i < info->num_operands; i++) {
                const int value = info->operands[i].value;
                if (last_op[value] == op) {
                    continue;
                }
                last_op[value] = op;
                if (pass == 0) {
                    out->begin[value + 2]++;
                } else {
                    out->ops[out->begin[value + 1]++] = op;
                }
            }
        }
        if (pass == 0) {
            for (int value = 0; value < num_values; value++) {
                out->begin[value + 2] += out->begin[value + 1];
            }
        }
    }
out:
    lgi_free(last_op);
    if (status != LG_OK) {
        lgi_accesses_deinit(out);
    }
    return status;
}

void lgi_accesses_deinit(lgi_accesses *accesses)
{
    lgi_free(accesses->begin);
    lgi_free(accesses->ops);
    *accesses = (lgi_accesses){0};
}

lg_status lgi_groups_init(lgi_groups *out, const lg_graph *graph)
{
    lg_status status = LG_OK;
    const int num_ops = lg_graph_num_ops(graph);
    *out = (lgi_groups){.num_groups = lg_graph_num_groups(graph)};
    LG_TRY_GOTO(lgi_calloc(&out->begin, (size_t)out->num_groups + 2, sizeof *out->begin));
    LG_TRY_GOTO(lgi_calloc(&out->ops, (size_t)num_ops, sizeof *out->ops));
    for (int op = 0; op < num_ops; op++) {
        const int group = lg_graph_op(graph, op)->group;
        if (group >= 0) {
            out->begin[group + 2]++;
        }
    }
    for (int group = 0; group < out->num_groups; group++) {
        out->begin[group + 2] += out->begin[group + 1];
    }
    for (int op = 0; op < num_ops; op++) {
        const int group = lg_graph_op(graph, op)->group;
        if (group >= 0) {
            out->ops[out->begin[group + 1]++] = op;
        }
    }
out:
    if (status != LG_OK) {
        lgi_groups_deinit(out);
    }
    return status;
}

void lgi_groups_deinit(lgi_groups *groups)
{
    lgi_free(groups->begin);
    lgi_free(groups->ops);
    *groups = (lgi_groups){0};
}

int lgi_width_idx(const lg_graph *graph, int width)
{
    const lg_graph_opts *const opts = lg_graph_options(graph);
    for (int i = 0; i < opts->num_widths; i++) {
        if (opts->widths[i] == width) {
            return i;
        }
    }
    return width == 0 ? 0 : -1;
}
