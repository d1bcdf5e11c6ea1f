/*
 * The timeline of a recorded step: each rank's spans, on rank 0's clock, from the moment when the first rank began. Each rank has
 * all of them in the end.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "train/trainer_internal.h"

/* What a rank has recorded, in ns of rank 0's clock. */
struct recording {
    int64_t step; /* -1: none */
    int64_t num_spans;
    int64_t begin_ns;
    int64_t finish_ns;
};

/* A span whose times are still far from zero. */
struct raw_span {
    int32_t op;
    int32_t lane;
    int64_t step;
    int64_t start_ns;
    int64_t end_ns;
};

static int compare_spans(const void *a, const void *b)
{
    const lg_span *x = a;
    const lg_span *y = b;
    if (x->start_ns != y->start_ns) {
        return x->start_ns > y->start_ns ? 1 : -1;
    }
    return x->op - y->op;
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* This rank's spans; room for all ops. */
static int64_t own_spans(const lg_trainer *trainer, int64_t offset_ns, struct raw_span *spans)
{
    const lg_plan *plan = trainer->main->plan;
    const lgi_trace *trace = &trainer->trace;
    int64_t num_spans = 0;
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 0;
             plan->lanes[lane].rank == trainer->rank && i < plan->lanes[lane].num_entries; i++) {
            const lg_plan_entry *entry = &plan->lanes[lane].entries[i];
            if (trace->end_ns[entry->op] == 0) {
                continue;
            }
            const struct raw_span span = {entry->op, lane, trainer->traced_step - entry->lag,
                                          (int64_t)trace->start_ns[entry->op] - offset_ns,
                                          (int64_t)trace->end_ns[entry->op] - offset_ns};
            spans[num_spans++] = span;
        }
    }
    return num_spans;
}

/* Ops that meet begin when the last of them was ready. */
static lg_status align_groups(const lg_graph *graph, lg_timeline *timeline)
{
    double *ready_ns = NULL; /* by group */
    LG_TRY(lgi_calloc(&ready_ns, (size_t)lg_graph_num_groups(graph), sizeof *ready_ns));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < timeline->num_spans; i++) {
            lg_span *span = &timeline->spans[i];
            const int group = lg_graph_op(graph, span->op)->group;
            if (group >= 0 && pass == 0 && span->start_ns > ready_ns[group]) {
                ready_ns[group] = span->start_ns;
            } else if (group >= 0 && pass == 1) {
                span->start_ns = ready_ns[group] < span->end_ns ? ready_ns[group] : span->end_ns;
            }
        }
    }
    lgi_free(ready_ns);
    return LG_OK;
}

/* `spans`: by rank, `stride` for each. */
static lg_status assemble(const lg_trainer *trainer, const struct recording *recordings,
                          const struct raw_span *spans, int64_t stride, lg_timeline *out)
{
    int64_t zero_ns = recordings[0].begin_ns;
    int64_t num_spans = 0;
    for (int rank = 0; rank < trainer->num_ranks; rank++) {
        const struct recording *recording = &recordings[rank];
        zero_ns = recording->begin_ns < zero_ns ? recording->begin_ns : zero_ns;
        num_spans += recording->num_spans;
    }
    LG_TRY(lgi_calloc(&out->spans, (size_t)num_spans, sizeof *out->spans));
    for (int rank = 0; rank < trainer->num_ranks; rank++) {
        const struct recording *recording = &recordings[rank];
        for (int64_t i = 0; i < recording->num_spans; i++) {
            const struct raw_span *from = &spans[rank * stride + i];
            const lg_span span = {from->op, from->lane, from->step,
                                  (double)(from->start_ns - zero_ns),
                                  (double)(from->end_ns - zero_ns)};
            out->spans[out->num_spans++] = span;
        }
        const double step_ns = (double)(recording->finish_ns - recording->begin_ns);
        const double end_ns = (double)(recording->finish_ns - zero_ns);
        out->step_ns = step_ns > out->step_ns ? step_ns : out->step_ns;
        out->end_ns = end_ns > out->end_ns ? end_ns : out->end_ns;
    }
    LG_TRY(align_groups(trainer->main->lowered->graph, out));
    qsort(out->spans, (size_t)out->num_spans, sizeof *out->spans, compare_spans);
    return LG_OK;
}

static lg_status check_recordings(const lg_trainer *trainer, const struct recording *recordings)
{
    for (int rank = 0; rank < trainer->num_ranks; rank++) {
        if (recordings[rank].step < 0) {
            LG_FAIL(LG_INVALID_ARG, "no step was recorded");
        }
        if (recordings[rank].step != recordings[0].step) {
            LG_FAIL(LG_INVALID_ARG, "rank %d has recorded another step than rank 0", rank);
        }
    }
    return LG_OK;
}

lg_status lg_trainer_timeline(const lg_trainer *trainer, lg_timeline *out)
{
    const size_t num_ranks = (size_t)trainer->num_ranks;
    const size_t num_ops = (size_t)trainer->main->plan->num_ops;
    const bool has_others = trainer->num_ranks > 1;
    lg_status status = LG_OK;
    int64_t offset_ns = 0;
    int64_t stride = 0;
    struct recording *recordings = NULL;
    struct raw_span *own = NULL;
    struct raw_span *all = NULL;
    memset(out, 0, sizeof *out);
    if (has_others) {
        LG_TRY(lgi_comm_clock_offset(trainer->comm, &offset_ns));
    }
    LG_TRY_GOTO(lgi_calloc(&own, num_ops, sizeof *own));
    LG_TRY_GOTO(lgi_calloc(&recordings, num_ranks, sizeof *recordings));
    recordings[0].step = trainer->traced_step;
    recordings[0].num_spans = own_spans(trainer, offset_ns, own);
    recordings[0].begin_ns = (int64_t)trainer->trace.begin_ns - offset_ns;
    recordings[0].finish_ns = (int64_t)trainer->trace.finish_ns - offset_ns;
    if (has_others) {
        const struct recording recording = recordings[0];
        LG_TRY_GOTO(lgi_comm_all_gather(trainer->comm, &recording, sizeof recording, recordings));
    }
    LG_TRY_GOTO(check_recordings(trainer, recordings));
    for (size_t rank = 0; rank < num_ranks; rank++) {
        stride = max_of(stride, recordings[rank].num_spans);
    }
    if (has_others) {
        LG_TRY_GOTO(lgi_calloc(&all, num_ranks * (size_t)stride, sizeof *all));
        LG_TRY_GOTO(lgi_comm_all_gather(trainer->comm, own, stride * (int64_t)sizeof *own, all));
    }
    LG_TRY_GOTO(assemble(trainer, recordings, all != NULL ? all : own, stride, out));
out:
    if (status != LG_OK) {
        lg_timeline_deinit(out);
    }
    lgi_free(recordings);
    lgi_free(own);
    lgi_free(all);
    return status;
}
