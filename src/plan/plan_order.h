/*
 * Happens-before inside a plan: one iteration of all lanes with lane order, the graph's edges and the syncs, as vector
 * clocks over the lanes. Iterations of one rank follow one another (plan.h), so runs of different iterations are ordered
 * by the iteration alone.
 */
#ifndef LGI_PLAN_PLAN_ORDER_H
#define LGI_PLAN_PLAN_ORDER_H

#include "leapgrad/plan.h"

typedef struct lgi_order {
    int num_ops;
    int num_lanes;
    int *lane;   /* by op */
    int *pos;    /* by op: position in its lane */
    int *lag;    /* by op */
    int *rank;   /* by op */
    int *linear; /* by op: position in one total order of an iteration that respects everything */
    int *clock;  /* [op * num_lanes + lane]: how many entries of the lane happen before the op */
} lgi_order;

/*
 * Every op must stand in exactly one lane. INVALID_ARG: an edge or a sync that lane order or lags break, or a deadlock,
 * naming the ops.
 */
LG_NODISCARD lg_status lgi_order_init(lgi_order *out, const lg_plan *plan, const lg_graph *graph);
void lgi_order_deinit(lgi_order *order);

/* Whether `a` ends before `b` starts, both in the same iteration. */
static inline bool lgi_order_before_inside(const lgi_order *order, int a, int b)
{
    return order->clock[(size_t)b * (size_t)order->num_lanes + (size_t)order->lane[a]] >
           order->pos[a];
}

/* Whether the run of `a` in step `step_a` ends before the run of `b` in step `step_b` starts. */
static inline bool lgi_order_before(const lgi_order *order, int a, int64_t step_a, int b,
                                    int64_t step_b)
{
    const int64_t iteration_a = step_a + order->lag[a];
    const int64_t iteration_b = step_b + order->lag[b];
    if (iteration_a != iteration_b) {
        return iteration_a < iteration_b && order->rank[a] == order->rank[b];
    }
    return lgi_order_before_inside(order, a, b);
}

/* Which ops access each value: ops[begin[v] .. begin[v + 1]), ascending, each op once. */
typedef struct lgi_accesses {
    int *begin;
    int *ops;
} lgi_accesses;

LG_NODISCARD lg_status lgi_accesses_init(lgi_accesses *out, const lg_graph *graph);
void lgi_accesses_deinit(lgi_accesses *accesses);

/*
 * Ops that meet: ops[begin[g] .. begin[g + 1]) are those of group g, ascending. None ends before all have started, so what
 * happens before one of them happens before the ends of all.
 */
typedef struct lgi_groups {
    int num_groups;
    int *begin;
    int *ops;
} lgi_groups;

LG_NODISCARD lg_status lgi_groups_init(lgi_groups *out, const lg_graph *graph);
void lgi_groups_deinit(lgi_groups *groups);

/* Whether the edge is between ops that meet, which need no event for it. */
static inline bool lgi_is_meeting(const lg_graph *graph, const lg_edge *edge)
{
    const int group = lg_graph_op(graph, edge->from)->group;
    return group >= 0 && edge->distance == 0 && group == lg_graph_op(graph, edge->to)->group;
}

/* Index of `width` among the graph's widths, or -1; a comm lane's 0 counts as the first. */
int lgi_width_idx(const lg_graph *graph, int width);

/* Iterations between the runs that an edge ties together: below 0 it cannot hold, above 0 it holds anyway. */
static inline int lgi_edge_delta(int distance, int lag_from, int lag_to)
{
    return distance + lag_to - lag_from;
}

#endif
