/*
 * Happens-before inside a plan: one iteration of all lanes with lane order, the graph's edges, the syncs and the meetings of
 * groups, as vector clocks. Iterations of one rank follow one another (plan.h), so runs of different iterations are ordered
 * by the iteration alone.
 *
 * What is kept is the order of ops of one rank, exact: it counts what other ranks bring about too (a gradient that comes
 * back says that the activation has left).
 */
#ifndef LGI_PLAN_PLAN_ORDER_H
#define LGI_PLAN_PLAN_ORDER_H

#include "plan/plan_arcs.h"

typedef struct lgi_order {
    int num_ops;
    int num_lanes;
    int stride;  /* the most lanes of a rank */
    int *lane;   /* by op */
    int *pos;    /* by op: position in its lane */
    int *lag;    /* by op */
    int *rank;   /* by op */
    int *linear; /* by op: position in one total order of an iteration that respects everything */
    int *local_lane; /* by lane: its number among those of its rank */
    int *
        clock; /* [op * stride + local lane]: how many entries of that lane of its rank happen before the op */
} lgi_order;

/*
 * Every op must stand in exactly one lane. INVALID_ARG: groups that do not match, an edge or a sync that lane order or
 * lags break, or a deadlock, naming the ops.
 */
LG_NODISCARD lg_status lgi_order_init(lgi_order *out, const lgi_groups *groups, const lg_plan *plan,
                                      const lg_graph *graph);
void lgi_order_deinit(lgi_order *order);

/* The counts of `op`, by local lane. */
static inline const int *lgi_order_clock(const lgi_order *order, int op)
{
    return order->clock + (size_t)op * (size_t)order->stride;
}

/* Whether `a` ends before `b` starts, both in the same iteration of their rank; of two ranks' ops it says false. */
static inline bool lgi_order_before_inside(const lgi_order *order, int a, int b)
{
    return order->rank[a] == order->rank[b] &&
           lgi_order_clock(order, b)[order->local_lane[order->lane[a]]] > order->pos[a];
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

/* Values and ops by rank, ascending: values[value_begin[r] .. value_begin[r + 1]), and so for ops. */
typedef struct lgi_by_rank {
    int *value_begin;
    int *values;
    int *op_begin;
    int *ops;
} lgi_by_rank;

LG_NODISCARD lg_status lgi_by_rank_init(lgi_by_rank *out, const lg_graph *graph);
void lgi_by_rank_deinit(lgi_by_rank *lists);

/* Index of `width` among the graph's widths, or -1; a comm lane's 0 counts as the first. */
int lgi_width_idx(const lg_graph *graph, int width);

#endif
