/* Pipeline strategies: each makes the lists of units of all pipeline ranks. */
#ifndef LGI_PLAN_PIPELINE_H
#define LGI_PLAN_PIPELINE_H

#include "plan/strategies/units.h"

/*
 * `out` is empty and is the caller's to release, also after a failure. INVALID_ARG if the strategy cannot be had with the graph's
 * placement.
 */
LG_NODISCARD lg_status lgi_pipeline_in_order(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_gpipe(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_breadth_first(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_1f1b(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_interleaved(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_fast_forward(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_modulo(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_zb_h1(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_zb_h2(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_zb_v(lgi_schedule *out, const lgi_units *units);
LG_NODISCARD lg_status lgi_pipeline_dualpipe_v(lgi_schedule *out, const lgi_units *units);

/* --- what they ask of the placement; `who` is the strategy's name ------------------------------------------------------------ */

/* Each rank has one stage. */
LG_NODISCARD lg_status lgi_need_one_stage(const lgi_units *units, const char *who);
/* Stages go round the ranks in the same order again and again: the rank of stage s is that of stage s mod P. */
LG_NODISCARD lg_status lgi_need_loop(const lgi_units *units, const char *who);
/* Two stages per rank, s and 2 P - 1 - s. */
LG_NODISCARD lg_status lgi_need_v(const lgi_units *units, const char *who);

#endif
