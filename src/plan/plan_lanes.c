/* A plan of lanes that come from elsewhere: a tool, another system's schedule, a test. */
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"

static lg_status copy_lanes(lg_plan *plan, const lg_lane *lanes)
{
    for (int i = 0; i < plan->num_lanes; i++) {
        lg_lane *const lane = &plan->lanes[i];
        *lane = lanes[i];
        lane->entries = NULL;
        lane->num_entries = 0;
        if (lanes[i].num_entries < 0) {
            LG_FAIL(LG_INVALID_ARG, "lane %d: %d entries", i, lanes[i].num_entries);
        }
        const size_t num = (size_t)lanes[i].num_entries;
        LG_TRY(lgi_calloc(&lane->entries, num, sizeof *lane->entries));
        if (num > 0) {
            memcpy(lane->entries, lanes[i].entries, num * sizeof *lane->entries);
        }
        lane->num_entries = lanes[i].num_entries;
    }
    return LG_OK;
}

lg_status lg_plan_from_lanes(lg_plan **out, const char *name, const lg_graph *graph,
                             const lg_lane *lanes, int num_lanes, const lg_plan_sync *syncs,
                             int num_syncs)
{
    lg_status status = LG_OK;
    lg_plan *plan = NULL;
    *out = NULL;
    if (num_lanes < 0 || num_syncs < 0) {
        LG_FAIL(LG_INVALID_ARG, "%d lanes, %d syncs; allowed: 0 or more", num_lanes, num_syncs);
    }
    LG_TRY_GOTO(lgi_plan_init(&plan, graph, name, num_lanes));
    LG_TRY_GOTO(copy_lanes(plan, lanes));
    LG_TRY_GOTO(lgi_realloc(&plan->syncs, (size_t)num_syncs, sizeof *plan->syncs));
    if (num_syncs > 0) {
        memcpy(plan->syncs, syncs, (size_t)num_syncs * sizeof *syncs);
    }
    plan->num_syncs = num_syncs;
    LG_TRY_GOTO(lgi_plan_check_lanes(plan, graph));
    LG_TRY_GOTO(lgi_plan_place(plan, graph));
    *out = plan;
    return LG_OK;
out:
    lg_plan_destroy(plan);
    return status;
}
