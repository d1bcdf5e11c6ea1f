/* The plan as a value: made empty, released. */
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"

lg_status lgi_plan_init(lg_plan **out, const lg_graph *graph, const char *strategy, int num_lanes)
{
    lg_status status = LG_OK;
    lg_plan *plan = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&plan, 1, sizeof *plan));
    plan->graph_fingerprint = lg_graph_fingerprint(graph);
    plan->num_ranks = lg_graph_num_ranks(graph);
    plan->num_values = lg_graph_num_values(graph);
    plan->num_ops = lg_graph_num_ops(graph);
    LG_TRY_GOTO(lgi_strdup(&plan->strategy, strategy));
    LG_TRY_GOTO(lgi_calloc(&plan->lanes, (size_t)num_lanes, sizeof *plan->lanes));
    plan->num_lanes = num_lanes;
    LG_TRY_GOTO(lgi_calloc(&plan->syncs, 0, sizeof *plan->syncs));
    LG_TRY_GOTO(lgi_calloc(&plan->values, (size_t)plan->num_values, sizeof *plan->values));
    LG_TRY_GOTO(lgi_calloc(&plan->workspace_offset_bytes, (size_t)plan->num_ops,
                           sizeof *plan->workspace_offset_bytes));
    for (int op = 0; op < plan->num_ops; op++) {
        plan->workspace_offset_bytes[op] = -1;
    }
    LG_TRY_GOTO(lgi_calloc(&plan->peak_bytes, (size_t)plan->num_ranks, sizeof *plan->peak_bytes));
    *out = plan;
    return LG_OK;
out:
    lg_plan_destroy(plan);
    return status;
}

void lg_plan_destroy(lg_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        lgi_free(plan->lanes[lane].entries);
    }
    lgi_free(plan->lanes);
    lgi_free(plan->syncs);
    lgi_free(plan->values);
    lgi_free(plan->workspace_offset_bytes);
    lgi_free(plan->peak_bytes);
    lgi_free(plan->strategy);
    lgi_free(plan);
}

int64_t lgi_plan_peak_bytes(const lg_plan *plan)
{
    int64_t peak = 0;
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        peak = plan->peak_bytes[rank] > peak ? plan->peak_bytes[rank] : peak;
    }
    return peak;
}
