/*
 * What ends next: a binary heap of times with a place for each id, so that a time can change while it waits. Equal times
 * come out by id: the same run every time.
 */
#ifndef LGI_PLAN_PLAN_EVENTS_H
#define LGI_PLAN_PLAN_EVENTS_H

#include "leapgrad/plan.h"

typedef struct lgi_events {
    int num;
    int *heap;       /* ids */
    int *place;      /* by id: where in the heap; -1: not waiting */
    double *time_ns; /* by id */
} lgi_events;

LG_NODISCARD lg_status lgi_events_init(lgi_events *out, int num_ids);
void lgi_events_deinit(lgi_events *events);

/* Sets the time of `id`, waiting or not. */
void lgi_events_set(lgi_events *events, int id, double time_ns);

/* Takes out the id whose time is least; -1: none waits. */
int lgi_events_pop(lgi_events *events);

#endif
