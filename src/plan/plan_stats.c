/* What a timeline says of each rank: how busy, how long it waits for messages, what it sends. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_order.h"

typedef struct interval {
    double begin_ns;
    double end_ns;
} interval;

typedef struct observer {
    const lg_timeline *timeline;
    const lg_plan *plan;
    const lg_graph *graph;
    lg_rank_stats *ranks;
    lgi_groups groups;
    int *lane_of; /* by op */
    int *pos_of;
    int *span_of;       /* by op: its span in the timeline, or -1 */
    int *edge_begin;    /* by op: the edges into it */
    int *num_cores;     /* by rank: cores that compute lanes with ops have */
    double *end_ns;     /* by rank: when the last of its ops ended */
    double *compute_ns; /* by rank: when the last of its compute ops so far ended */
    bool *has_computed; /* by rank */
    interval *waits;    /* scratch */
    size_t num_waits, waits_capacity;
} observer;

/* --- setting up -------------------------------------------------------------------------------------------------------- */

/* Cores that at least one compute lane of the rank uses. */
static lg_status count_cores(observer *self)
{
    bool *is_used = NULL;
    int max_cores = 0;
    for (int i = 0; i < self->plan->num_lanes; i++) {
        const int end = self->plan->lanes[i].first_core + self->plan->lanes[i].num_cores;
        max_cores = end > max_cores ? end : max_cores;
    }
    LG_TRY(lgi_calloc(&is_used, (size_t)max_cores * (size_t)self->plan->num_ranks, sizeof(bool)));
    for (int i = 0; i < self->plan->num_lanes; i++) {
        const lg_lane *const lane = &self->plan->lanes[i];
        for (int k = 0; k < lane->num_cores && lane->num_entries > 0; k++) {
            bool *const core = &is_used[lane->rank * max_cores + lane->first_core + k];
            self->num_cores[lane->rank] += *core ? 0 : 1;
            *core = true;
        }
    }
    lgi_free(is_used);
    return LG_OK;
}

static lg_status observer_init(observer *self)
{
    const size_t num_ops = (size_t)self->plan->num_ops;
    const size_t num_ranks = (size_t)self->plan->num_ranks;
    const lg_edge *const edges = lg_graph_edges(self->graph);
    const int num_edges = lg_graph_num_edges(self->graph);
    LG_TRY(lgi_groups_init(&self->groups, self->graph));
    LG_TRY(lgi_calloc(&self->lane_of, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->pos_of, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->span_of, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->edge_begin, num_ops + 1, sizeof(int)));
    LG_TRY(lgi_calloc(&self->num_cores, num_ranks, sizeof(int)));
    LG_TRY(lgi_calloc(&self->end_ns, num_ranks, sizeof(double)));
    LG_TRY(lgi_calloc(&self->compute_ns, num_ranks, sizeof(double)));
    LG_TRY(lgi_calloc(&self->has_computed, num_ranks, sizeof(bool)));
    LG_TRY(count_cores(self));
    int edge = 0;
    for (int op = 0; op < self->plan->num_ops; op++) {
        self->span_of[op] = -1;
        while (edge < num_edges && edges[edge].to == op) {
            edge++;
        }
        self->edge_begin[op + 1] = edge;
    }
    for (int lane = 0; lane < self->plan->num_lanes; lane++) {
        for (int pos = 0; pos < self->plan->lanes[lane].num_entries; pos++) {
            self->lane_of[self->plan->lanes[lane].entries[pos].op] = lane;
            self->pos_of[self->plan->lanes[lane].entries[pos].op] = pos;
        }
    }
    for (int i = 0; i < self->timeline->num_spans; i++) {
        const lg_span *const span = &self->timeline->spans[i];
        if (span->op < 0 || span->op >= self->plan->num_ops) {
            LG_FAIL(LG_INVALID_ARG, "span %d: op %d; allowed: 0..%d", i, span->op,
                    self->plan->num_ops - 1);
        }
        if (self->span_of[span->op] >= 0) {
            LG_FAIL(LG_INVALID_ARG, "span %d: op '%s' ran twice in this timeline", i,
                    lg_graph_op(self->graph, span->op)->name);
        }
        self->span_of[span->op] = i;
        double *const end = &self->end_ns[lg_graph_op(self->graph, span->op)->rank];
        *end = fmax(*end, span->end_ns);
    }
    return LG_OK;
}

static void observer_deinit(observer *self)
{
    lgi_groups_deinit(&self->groups);
    lgi_free(self->lane_of);
    lgi_free(self->pos_of);
    lgi_free(self->span_of);
    lgi_free(self->edge_begin);
    lgi_free(self->num_cores);
    lgi_free(self->end_ns);
    lgi_free(self->compute_ns);
    lgi_free(self->has_computed);
    lgi_free(self->waits);
}

/* --- waiting ----------------------------------------------------------------------------------------------------------- */

/* What a comm lane does within a gap, from entry `pos` back. */
static lg_status add_lane_waits(observer *self, int lane, int pos, interval gap)
{
    for (; pos >= 0; pos--) {
        const int span_idx = self->span_of[self->plan->lanes[lane].entries[pos].op];
        if (span_idx < 0) {
            continue;
        }
        const lg_span *const span = &self->timeline->spans[span_idx];
        if (span->end_ns <= gap.begin_ns) {
            break;
        }
        const interval wait = {fmax(span->start_ns, gap.begin_ns), fmin(span->end_ns, gap.end_ns)};
        if (wait.end_ns > wait.begin_ns) {
            LG_TRY(lgi_grow(&self->waits, &self->waits_capacity, self->num_waits + 1,
                            sizeof *self->waits));
            self->waits[self->num_waits++] = wait;
        }
    }
    return LG_OK;
}

static int compare_intervals(const void *a, const void *b)
{
    const interval *const x = a;
    const interval *const y = b;
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

/* Length of the union of the waits collected; forgets them. */
static double united_ns(observer *self)
{
    double sum_ns = 0.0;
    double covered_ns = -INFINITY;
    if (self->num_waits > 1) {
        qsort(self->waits, self->num_waits, sizeof *self->waits, compare_intervals);
    }
    for (size_t i = 0; i < self->num_waits; i++) {
        const double begin_ns = fmax(self->waits[i].begin_ns, covered_ns);
        if (self->waits[i].end_ns > begin_ns) {
            sum_ns += self->waits[i].end_ns - begin_ns;
            covered_ns = self->waits[i].end_ns;
        }
    }
    self->num_waits = 0;
    return sum_ns;
}

/* The rank has no compute op running in `gap`, and `span` ends it. */
static lg_status add_gap(observer *self, const lg_span *span, interval gap)
{
    const int rank = lg_graph_op(self->graph, span->op)->rank;
    const lg_edge *const edges = lg_graph_edges(self->graph);
    for (int i = self->edge_begin[span->op]; i < self->edge_begin[span->op + 1]; i++) {
        const int from = edges[i].from;
        const int lane = self->lane_of[from];
        if (self->plan->lanes[lane].kind == LG_LANE_COMM && self->span_of[from] >= 0 &&
            self->timeline->spans[self->span_of[from]].step + edges[i].distance == span->step) {
            LG_TRY(add_lane_waits(self, lane, self->pos_of[from], gap));
        }
    }
    self->ranks[rank].exposed_comm_ns += united_ns(self);
    return LG_OK;
}

/* After its last compute op a rank waits for all its lanes. */
static lg_status add_last_gaps(observer *self)
{
    for (int rank = 0; rank < self->plan->num_ranks; rank++) {
        const interval gap = {self->compute_ns[rank], self->end_ns[rank]};
        for (int lane = 0; lane < self->plan->num_lanes && self->has_computed[rank]; lane++) {
            const lg_lane *const info = &self->plan->lanes[lane];
            if (info->rank == rank && info->kind == LG_LANE_COMM) {
                LG_TRY(add_lane_waits(self, lane, info->num_entries - 1, gap));
            }
        }
        self->ranks[rank].exposed_comm_ns += united_ns(self);
    }
    return LG_OK;
}

/* --- the whole --------------------------------------------------------------------------------------------------------- */

static lg_status add_span(observer *self, const lg_span *span)
{
    const lg_op_info *const op = lg_graph_op(self->graph, span->op);
    const lg_lane *const lane = &self->plan->lanes[self->lane_of[span->op]];
    lg_rank_stats *const stats = &self->ranks[op->rank];
    if (lane->kind != LG_LANE_COMPUTE) {
        return LG_OK;
    }
    double *const compute_ns = &self->compute_ns[op->rank];
    if (!self->has_computed[op->rank]) {
        *compute_ns = self->end_ns[op->rank] - self->timeline->step_ns; /* its iteration's begin */
        self->has_computed[op->rank] = true;
    }
    if (span->start_ns > *compute_ns) {
        LG_TRY(add_gap(self, span, (interval){*compute_ns, span->start_ns}));
    }
    *compute_ns = fmax(*compute_ns, span->end_ns);
    stats->busy_ns += (span->end_ns - span->start_ns) * lane->num_cores / self->num_cores[op->rank];
    return LG_OK;
}

static void add_sent_bytes(observer *self)
{
    for (int i = 0; i < self->plan->num_ops; i++) {
        const lg_op_info *const op = lg_graph_op(self->graph, i);
        lg_rank_stats *const stats = &self->ranks[op->rank];
        if (op->kind == LG_OP_SEND) {
            stats->sent_bytes += op->message_bytes;
        } else if (op->kind == LG_OP_ALL_REDUCE) {
            const double num_ranks = lgi_groups_size(&self->groups, op->group);
            stats->sent_bytes +=
                (int64_t)(2.0 * (num_ranks - 1.0) / num_ranks * (double)op->message_bytes);
        }
    }
}

lg_status lg_timeline_stats(lg_rank_stats *ranks, const lg_timeline *timeline, const lg_plan *plan,
                            const lg_graph *graph)
{
    memset(ranks, 0, (size_t)plan->num_ranks * sizeof *ranks);
    LG_TRY(lgi_plan_check_lanes(plan, graph));
    lg_status status = LG_OK;
    observer self = {.timeline = timeline, .plan = plan, .graph = graph, .ranks = ranks};
    LG_TRY_GOTO(observer_init(&self));
    for (int i = 0; i < timeline->num_spans; i++) {
        LG_TRY_GOTO(add_span(&self, &timeline->spans[i]));
    }
    LG_TRY_GOTO(add_last_gaps(&self));
    add_sent_bytes(&self);
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        ranks[rank].bubble_frac =
            timeline->step_ns > 0.0 ? 1.0 - ranks[rank].busy_ns / timeline->step_ns : 0.0;
        ranks[rank].peak_bytes = plan->peak_bytes[rank];
    }
out:
    observer_deinit(&self);
    return status;
}
