/* Schedules from the inside. */
#ifndef LGI_PLAN_SCHEDULE_CSV_H
#define LGI_PLAN_SCHEDULE_CSV_H

#include "leapgrad/interchange.h"

#define LGI_ACTION_TEXT_BYTES 48

/* "3B7" */
const char *lgi_action_text(char text[LGI_ACTION_TEXT_BYTES], const lg_action *action);

/* Lists with room for `num_actions[rank]` actions each, none in them yet. */
LG_NODISCARD lg_status lgi_schedule_new(lg_rank_schedule **out, int num_ranks, const int *capacity);

/*
 * Finds the numbers of stages and micro-batches and the ranks of stages, and proves what lg_rank_schedule promises. INVALID_ARG names
 * line and action; `source`: the file.
 */
LG_NODISCARD lg_status lgi_schedule_prove(lg_rank_schedule *schedule, const char *source);

#endif
