/* The checker's parts. */
#ifndef LGI_PLAN_PLAN_CHECK_H
#define LGI_PLAN_PLAN_CHECK_H

#include "plan/plan_order.h"

/* Bounds that keep the work on a hostile plan small; real ones stay far below. */
#define LGI_MAX_LANES 16384
#define LGI_MAX_CORES 4096

/* Placements in range, live values apart, peaks as stated and within `memory_bytes` (0: not limited). */
LG_NODISCARD lg_status lgi_plan_check_memory(const lgi_order *order, const lg_plan *plan,
                                             const lg_graph *graph, int64_t memory_bytes);

#endif
