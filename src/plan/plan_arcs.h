/*
 * The arcs of one iteration: what graph edges and syncs add to lane order. Only arcs between different lanes of one rank
 * are kept, and of those only what lane order does not imply already; edges inside a group go without saying.
 */
#ifndef LGI_PLAN_PLAN_ARCS_H
#define LGI_PLAN_PLAN_ARCS_H

#include "plan/plan_groups.h"

typedef struct lgi_arc {
    int from;
    int to;
} lgi_arc;

typedef struct lgi_arcs {
    int num_ops;
    int *lane; /* by op */
    int *pos;  /* by op: position in its lane */
    int *lag;  /* by op */
    lgi_arc *items;
    int num_items;
    int *num_in;    /* by op: arcs into it */
    int *out_begin; /* by op: out_to[out_begin[op] .. out_begin[op + 1]) are where its arcs lead */
    int *out_to;
    int stride;      /* the most lanes of a rank */
    int *local_lane; /* by lane: its number among those of its rank */
} lgi_arcs;

/*
 * Every op must stand in exactly one lane. INVALID_ARG: an edge or a sync that lane order or lags break, or that joins
 * two ranks without a message; members of a group with different lags.
 */
LG_NODISCARD lg_status lgi_arcs_init(lgi_arcs *out, const lgi_groups *groups, const lg_plan *plan,
                                     const lg_graph *graph);
void lgi_arcs_deinit(lgi_arcs *arcs);

/* Iterations between the runs that an edge ties together: below 0 it cannot hold, above 0 it holds anyway. */
static inline int lgi_edge_delta(int distance, int lag_from, int lag_to)
{
    return distance + lag_to - lag_from;
}

#endif
