/* Making plans: what strategies and the reader share. */
#ifndef LGI_PLAN_PLAN_MAKE_H
#define LGI_PLAN_PLAN_MAKE_H

#include "leapgrad/plan.h"

/* A plan of this graph with empty lanes, no syncs and nothing placed. */
LG_NODISCARD lg_status lgi_plan_init(lg_plan **out, const lg_graph *graph, const char *strategy,
                                     int num_lanes);

/* Every op of the graph in exactly one entry, on its rank, lanes and syncs well formed: what all else builds on. */
LG_NODISCARD lg_status lgi_plan_check_lanes(const lg_plan *plan, const lg_graph *graph);

/*
 * Fills in placements, workspaces and peaks for the lanes, lags and syncs that the plan has. Persistent values stand
 * first, parameters and states before gradients and slots: where they lie depends on nothing else, so graphs of one model
 * (another batch size, evaluation) share them.
 */
LG_NODISCARD lg_status lgi_plan_place(lg_plan *plan, const lg_graph *graph);

/*
 * The same in a tenth of the time where there are several ranks: a rank that fits into `enough_bytes` at first go, or cannot
 * at all, stays as it is, a few percent above what the other would find.
 */
LG_NODISCARD lg_status lgi_plan_place_roughly(lg_plan *plan, const lg_graph *graph,
                                              int64_t enough_bytes);

/* The largest peak of the plan's ranks. */
int64_t lgi_plan_peak_bytes(const lg_plan *plan);

#endif
