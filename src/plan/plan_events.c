/* An indexed binary heap. */
#include "plan/plan_events.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

lg_status lgi_events_init(lgi_events *out, int num_ids)
{
    const size_t num = (size_t)num_ids;
    *out = (lgi_events){0};
    lg_status status = LG_OK;
    LG_TRY_GOTO(lgi_calloc(&out->heap, num, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->place, num, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->time_ns, num, sizeof(double)));
    memset(out->place, -1, num * sizeof(int));
out:
    if (status != LG_OK) {
        lgi_events_deinit(out);
    }
    return status;
}

void lgi_events_deinit(lgi_events *events)
{
    lgi_free(events->heap);
    lgi_free(events->place);
    lgi_free(events->time_ns);
    *events = (lgi_events){0};
}

static bool comes_before(const lgi_events *events, int a, int b)
{
    const double time_a = events->time_ns[a];
    const double time_b = events->time_ns[b];
    return time_a < time_b || (time_a == time_b && a < b);
}

static void rise(lgi_events *events, int at, int id)
{
    while (at > 0 && comes_before(events, id, events->heap[(at - 1) / 2])) {
        events->heap[at] = events->heap[(at - 1) / 2];
        events->place[events->heap[at]] = at;
        at = (at - 1) / 2;
    }
    events->heap[at] = id;
    events->place[id] = at;
}

static void sink(lgi_events *events, int at, int id)
{
    for (;;) {
        int child = 2 * at + 1;
        if (child >= events->num) {
            break;
        }
        if (child + 1 < events->num &&
            comes_before(events, events->heap[child + 1], events->heap[child])) {
            child++;
        }
        if (!comes_before(events, events->heap[child], id)) {
            break;
        }
        events->heap[at] = events->heap[child];
        events->place[events->heap[at]] = at;
        at = child;
    }
    events->heap[at] = id;
    events->place[id] = at;
}

void lgi_events_set(lgi_events *events, int id, double time_ns)
{
    if (events->place[id] < 0) {
        events->time_ns[id] = time_ns;
        rise(events, events->num++, id);
        return;
    }
    const bool is_earlier = time_ns < events->time_ns[id];
    events->time_ns[id] = time_ns;
    if (is_earlier) {
        rise(events, events->place[id], id);
    } else {
        sink(events, events->place[id], id);
    }
}

int lgi_events_pop(lgi_events *events)
{
    if (events->num == 0) {
        return -1;
    }
    const int id = events->heap[0];
    const int last = events->heap[--events->num];
    events->place[id] = -1;
    if (events->num > 0) {
        sink(events, 0, last);
    }
    return id;
}
