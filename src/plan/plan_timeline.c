/*
 * Live bytes over a timeline, simulated or measured. A transient value is alive from the start of the first op that
 * accesses it to the end of the last one; a span that the timeline does not have lies in an iteration before or after it,
 * so the value is alive from the beginning or to the end. A value that takes over another one's memory in place counts
 * from where the other one stops.
 */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_order.h"

typedef struct change {
    int rank;
    double time_ns;
    int64_t bytes;
} change;

typedef struct tracer {
    const lg_timeline *timeline;
    const lg_plan *plan;
    const lg_graph *graph;
    lgi_accesses accesses;
    int *lane_of; /* by op */
    int *lag_of;
    int64_t first_step; /* of the spans */
    int64_t num_steps;
    int64_t first_iteration;
    int64_t last_iteration;
    int64_t num_iterations;
    double *iteration_end_ns; /* [rank * num_iterations + iteration - first_iteration] */
    int *span_of;             /* [op * num_steps + step - first_step]; -1: not shown */
    change *changes;
    size_t num_changes;
    size_t capacity;
} tracer;

void lg_timeline_deinit(lg_timeline *timeline)
{
    lgi_free(timeline->spans);
    lgi_free(timeline->memory_points);
    *timeline = (lg_timeline){0};
}

static int compare_changes(const void *a, const void *b)
{
    const change *const x = a;
    const change *const y = b;
    if (x->rank != y->rank) {
        return x->rank - y->rank;
    }
    if (x->time_ns != y->time_ns) {
        return x->time_ns < y->time_ns ? -1 : 1;
    }
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static lg_status add_stay(tracer *self, int rank, double begin_ns, double end_ns, int64_t bytes)
{
    if (bytes == 0) {
        return LG_OK;
    }
    LG_TRY(lgi_grow(&self->changes, &self->capacity, self->num_changes + 2, sizeof(change)));
    self->changes[self->num_changes++] = (change){rank, begin_ns, bytes};
    self->changes[self->num_changes++] =
        (change){rank, end_ns > begin_ns ? end_ns : begin_ns, -bytes};
    return LG_OK;
}

static const lg_span *find_span(const tracer *self, int op, int64_t step)
{
    const int64_t i = step - self->first_step;
    if (i < 0 || i >= self->num_steps) {
        return NULL;
    }
    const int span = self->span_of[(int64_t)op * self->num_steps + i];
    return span < 0 ? NULL : &self->timeline->spans[span];
}

/* The op that writes another value over this one in place, or -1. */
static int takeover_op(const tracer *self, int value)
{
    for (int i = self->accesses.begin[value]; i < self->accesses.begin[value + 1]; i++) {
        const int op = self->accesses.ops[i];
        const lg_op_info *const info = lg_graph_op(self->graph, op);
        if (info->inplace_read < 0 || info->inplace_write < 0 ||
            info->operands[info->inplace_read].value != value) {
            continue;
        }
        const lg_placement *const from = &self->plan->values[value];
        const lg_placement *const to =
            &self->plan->values[info->operands[info->inplace_write].value];
        if (to->num_slots == from->num_slots && to->offset_bytes[0] == from->offset_bytes[0]) {
            return op;
        }
    }
    return -1;
}

static lg_status add_value(tracer *self, int value, int64_t step)
{
    const lg_value_info *const info = lg_graph_value(self->graph, value);
    const lg_timeline *const timeline = self->timeline;
    const int taken_over_by = takeover_op(self, value);
    double begin_ns = timeline->end_ns;
    double end_ns = timeline->begin_ns;
    bool is_shown = false;
    for (int i = self->accesses.begin[value]; i < self->accesses.begin[value + 1]; i++) {
        const int op = self->accesses.ops[i];
        const lg_span *const span = find_span(self, op, step);
        const int64_t iteration = step + self->lag_of[op];
        double start = timeline->begin_ns;
        double end = timeline->end_ns;
        if (span != NULL) {
            start = span->start_ns;
            end = op == taken_over_by ? start : span->end_ns;
            is_shown = true;
        } else if (iteration < self->first_iteration) {
            end = timeline->begin_ns;
        } else {
            start = timeline->end_ns;
        }
        begin_ns = start < begin_ns ? start : begin_ns;
        end_ns = end > end_ns ? end : end_ns;
    }
    if (info->is_output) { /* read by the host when its rank's iteration has ended */
        const int64_t i = step - self->first_iteration;
        if (i >= 0 && i < self->num_iterations) {
            const double read_ns = self->iteration_end_ns[info->rank * self->num_iterations + i];
            end_ns = read_ns > end_ns ? read_ns : end_ns;
        }
    }
    return is_shown ? add_stay(self, info->rank, begin_ns, end_ns, info->bytes) : LG_OK;
}

static lg_status add_changes(tracer *self)
{
    const lg_timeline *const timeline = self->timeline;
    for (int value = 0; value < self->plan->num_values; value++) {
        const lg_value_info *const info = lg_graph_value(self->graph, value);
        if (info->is_persistent) {
            LG_TRY(add_stay(self, info->rank, timeline->begin_ns, timeline->end_ns, info->bytes));
            continue;
        }
        for (int64_t i = 0; i < self->num_steps; i++) {
            LG_TRY(add_value(self, value, self->first_step + i));
        }
    }
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        const lg_lane *const lane = &self->plan->lanes[self->lane_of[span->op]];
        const lg_op_info *const info = lg_graph_op(self->graph, span->op);
        LG_TRY(add_stay(self, info->rank, span->start_ns, span->end_ns,
                        info->workspace_bytes[lgi_width_idx(self->graph, lane->num_cores)]));
    }
    return LG_OK;
}

static lg_status store_points(lg_timeline *timeline, tracer *self)
{
    lg_memory_point *points = NULL;
    LG_TRY(lgi_calloc(&points, self->num_changes, sizeof *points));
    if (self->num_changes > 0) {
        qsort(self->changes, self->num_changes, sizeof *self->changes, compare_changes);
    }
    int num = 0;
    int64_t alive = 0;
    for (size_t i = 0; i < self->num_changes; i++) {
        const change *const c = &self->changes[i];
        const bool is_new_rank = i == 0 || c->rank != self->changes[i - 1].rank;
        alive = is_new_rank ? c->bytes : alive + c->bytes;
        if (is_new_rank || c->time_ns != self->changes[i - 1].time_ns) {
            num++;
        }
        points[num - 1] = (lg_memory_point){c->rank, c->time_ns, alive};
    }
    lgi_free(timeline->memory_points);
    timeline->memory_points = points;
    timeline->num_memory_points = num;
    return LG_OK;
}

lg_status lg_timeline_add_memory(lg_timeline *timeline, const lg_plan *plan, const lg_graph *graph)
{
    LG_TRY(lgi_plan_check_lanes(plan, graph));
    lg_status status = LG_OK;
    tracer self = {.timeline = timeline, .plan = plan, .graph = graph};
    const size_t num_ops = (size_t)plan->num_ops;
    LG_TRY_GOTO(lgi_accesses_init(&self.accesses, graph));
    LG_TRY_GOTO(lgi_calloc(&self.lane_of, num_ops, sizeof *self.lane_of));
    LG_TRY_GOTO(lgi_calloc(&self.lag_of, num_ops, sizeof *self.lag_of));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int pos = 0; pos < plan->lanes[lane].num_entries; pos++) {
            self.lane_of[plan->lanes[lane].entries[pos].op] = lane;
            self.lag_of[plan->lanes[lane].entries[pos].op] = plan->lanes[lane].entries[pos].lag;
        }
    }
    int64_t last_step = 0;
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        if (span->op < 0 || span->op >= plan->num_ops || span->step < 0) {
            status = lgi_fail(LG_INVALID_ARG,
                              "span %d: op %d, step %lld; allowed: ops 0..%d, steps from 0", i,
                              span->op, (long long)span->step, plan->num_ops - 1);
            goto out;
        }
        const int64_t iteration = span->step + self.lag_of[span->op];
        self.first_step = i == 0 || span->step < self.first_step ? span->step : self.first_step;
        last_step = i == 0 || span->step > last_step ? span->step : last_step;
        self.first_iteration =
            i == 0 || iteration < self.first_iteration ? iteration : self.first_iteration;
        self.last_iteration = iteration > self.last_iteration ? iteration : self.last_iteration;
    }
    self.num_steps = timeline->num_spans > 0 ? last_step - self.first_step + 1 : 0;
    if (self.num_steps > 2 * (int64_t)timeline->num_spans) {
        status = lgi_fail(LG_INVALID_ARG, "the spans reach over %lld steps with gaps",
                          (long long)self.num_steps);
        goto out;
    }
    LG_TRY_GOTO(lgi_calloc(&self.span_of, num_ops * (size_t)self.num_steps, sizeof *self.span_of));
    for (size_t i = 0; i < num_ops * (size_t)self.num_steps; i++) {
        self.span_of[i] = -1;
    }
    self.num_iterations =
        timeline->num_spans > 0 ? self.last_iteration - self.first_iteration + 1 : 0;
    LG_TRY_GOTO(lgi_calloc(&self.iteration_end_ns,
                           (size_t)plan->num_ranks * (size_t)self.num_iterations,
                           sizeof *self.iteration_end_ns));
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        self.span_of[(int64_t)span->op * self.num_steps + span->step - self.first_step] = i;
        const int64_t iteration = span->step + self.lag_of[span->op] - self.first_iteration;
        double *const end =
            &self.iteration_end_ns[lg_graph_op(graph, span->op)->rank * self.num_iterations +
                                   iteration];
        *end = span->end_ns > *end ? span->end_ns : *end;
    }
    LG_TRY_GOTO(add_changes(&self));
    LG_TRY_GOTO(store_points(timeline, &self));
out:
    lgi_accesses_deinit(&self.accesses);
    lgi_free(self.lane_of);
    lgi_free(self.lag_of);
    lgi_free(self.span_of);
    lgi_free(self.iteration_end_ns);
    lgi_free(self.changes);
    return status;
}
