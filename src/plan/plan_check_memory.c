/*
 * The checker's memory part, rank by rank. Independent of the planner: it does not rebuild a placement, it replays one.
 *
 * Replay: three steps' runs of every value and workspace ("stays") are sorted by when they begin in one total order that
 * agrees with happens-before, and painted one after another over their bytes. A stay must be wholly after whatever it
 * paints over. That is enough: "wholly after" is transitive, so if neighbours in time on a byte are in order then all
 * on that byte are; and a stay that is wholly after another one also begins after it. Three steps show every pair of
 * neighbouring steps in both turns of a two-slot value; on a rank where nothing lags, steps are apart and one will do. The
 * paint is a segment tree whose uniform nodes are handled at
 * once: O(n log n) comparisons.
 */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes_text.h"
#include "base/check.h"
#include "plan/plan_check.h"

#define NUM_STEPS 3
#define ALIGNMENT 64

enum { PAINT_NONE = -1, PAINT_MIXED = -2 };

/* A value in one step, a workspace in one step, or a persistent value in all of them. */
typedef struct stay {
    int value; /* or -1: the workspace of `op` */
    int op;
    int step; /* -1: persistent */
    int rank;
    int first_iteration; /* of its ops */
    int last_iteration;
    int64_t first; /* when it begins and ends in the total order */
    int64_t last;
    int64_t begin_bytes;
    int64_t end_bytes;
} stay;

typedef struct checker {
    const lgi_order *order;
    const lg_plan *plan;
    const lg_graph *graph;
    lgi_accesses accesses;
    lgi_by_rank by_rank;
    stay *stays; /* of the rank at hand */
    int num_stays;
    int num_steps;   /* replayed on the rank at hand */
    int64_t *bounds; /* all begins and ends of one rank, ascending, no two alike */
    int num_bounds;
    int *paint; /* segment tree over the gaps between bounds */
} checker;

static const char *stay_name(const checker *self, const stay *s)
{
    return s->value >= 0 ? lg_graph_value(self->graph, s->value)->name
                         : lg_graph_op(self->graph, s->op)->name;
}

/* The ops of a stay. */
static const int *stay_ops(const checker *self, const stay *s, int *num)
{
    if (s->value < 0) {
        *num = 1;
        return &s->op;
    }
    *num = self->accesses.begin[s->value + 1] - self->accesses.begin[s->value];
    return self->accesses.ops + self->accesses.begin[s->value];
}

/* Whether `op` may write `y` over `x`: it says so, and the two lie alike. */
static bool is_in_place(const checker *self, int op, const stay *x, const stay *y)
{
    const lg_op_info *const info = lg_graph_op(self->graph, op);
    if (x->value < 0 || y->value < 0 || info->inplace_write < 0 || info->inplace_read < 0 ||
        info->operands[info->inplace_write].value != y->value ||
        info->operands[info->inplace_read].value != x->value) {
        return false;
    }
    int num_uses = 0;
    for (int i = 0; i < info->num_operands; i++) {
        num_uses += info->operands[i].value == x->value ? 1 : 0;
    }
    return num_uses == 1 && x->begin_bytes == y->begin_bytes && x->end_bytes == y->end_bytes;
}

/* Fails unless all of `x` ends before any of `y` begins. */
static lg_status check_wholly_before(const checker *self, const stay *x, const stay *y)
{
    if (x->step < 0 || y->step < 0) {
        const bool x_is_persistent = x->step < 0;
        LG_FAIL(LG_INVALID_ARG,
                "%s'%s' at bytes %lld..%lld of rank %d overlaps '%s', which is persistent",
                y->value < 0 ? "workspace of " : "", stay_name(self, x_is_persistent ? y : x),
                (long long)y->begin_bytes, (long long)y->end_bytes, x->rank,
                stay_name(self, x_is_persistent ? x : y));
    }
    if (x->last_iteration < y->first_iteration && x->step < y->first_iteration) {
        return LG_OK; /* the rank's iterations keep them apart, and an output has been read */
    }
    int num_x = 0;
    int num_y = 0;
    const int *const ops_x = stay_ops(self, x, &num_x);
    const int *const ops_y = stay_ops(self, y, &num_y);
    const bool is_output = x->value >= 0 && lg_graph_value(self->graph, x->value)->is_output;
    for (int i = 0; i < num_x; i++) {
        for (int k = 0; k < num_y; k++) {
            const int a = ops_x[i];
            const int b = ops_y[k];
            const bool is_read_by_host_first =
                !is_output || y->step + self->order->lag[b] > x->step;
            if ((lgi_order_before(self->order, a, x->step, b, y->step) && is_read_by_host_first) ||
                (a == b && x->step == y->step && !is_output && is_in_place(self, a, x, y))) {
                continue;
            }
            const char *const a_name = lg_graph_op(self->graph, a)->name;
            const char *const b_name = lg_graph_op(self->graph, b)->name;
            if (x->value >= 0 && x->value == y->value) {
                LG_FAIL(LG_INVALID_ARG,
                        "'%s' of the next step overwrites this step's: '%s' does not wait for '%s' "
                        "(lag %d); it needs 2 slots, apart from each other",
                        stay_name(self, x), b_name, a_name, self->order->lag[a]);
            }
            LG_FAIL(
                LG_INVALID_ARG,
                "%s'%s' (bytes %lld..%lld of rank %d, used by '%s') and %s'%s' (bytes %lld..%lld, "
                "used by '%s'%s) overlap, and %s",
                x->value < 0 ? "workspace of " : "", stay_name(self, x), (long long)x->begin_bytes,
                (long long)x->end_bytes, x->rank, a_name, y->value < 0 ? "workspace of " : "",
                stay_name(self, y), (long long)y->begin_bytes, (long long)y->end_bytes, b_name,
                y->step == x->step ? "" : " of the next step",
                is_output ? "the first is an output, read after the step"
                          : "nothing orders those ops");
        }
    }
    return LG_OK;
}

/* --- paint ----------------------------------------------------------------------------------------------------- */

static lg_status check_paint(const checker *self, int node, int lo, int hi, int begin, int end,
                             int stay_idx, int *last_checked)
{
    if (end <= lo || hi <= begin || self->paint[node] == PAINT_NONE) {
        return LG_OK;
    }
    if (self->paint[node] != PAINT_MIXED) {
        if (self->paint[node] == *last_checked) {
            return LG_OK;
        }
        *last_checked = self->paint[node];
        return check_wholly_before(self, &self->stays[self->paint[node]], &self->stays[stay_idx]);
    }
    const int mid = lo + (hi - lo) / 2;
    LG_TRY(check_paint(self, 2 * node, lo, mid, begin, end, stay_idx, last_checked));
    return check_paint(self, 2 * node + 1, mid, hi, begin, end, stay_idx, last_checked);
}

static void set_paint(checker *self, int node, int lo, int hi, int begin, int end, int stay_idx)
{
    if (end <= lo || hi <= begin) {
        return;
    }
    if (begin <= lo && hi <= end) {
        self->paint[node] = stay_idx;
        return;
    }
    const int left = 2 * node;
    if (self->paint[node] != PAINT_MIXED) {
        self->paint[left] = self->paint[node];
        self->paint[left + 1] = self->paint[node];
    }
    const int mid = lo + (hi - lo) / 2;
    set_paint(self, left, lo, mid, begin, end, stay_idx);
    set_paint(self, left + 1, mid, hi, begin, end, stay_idx);
    self->paint[node] =
        self->paint[left] == self->paint[left + 1] ? self->paint[left] : PAINT_MIXED;
}

static int compare_i64(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int bound_idx(const checker *self, int64_t bytes)
{
    int lo = 0;
    int hi = self->num_bounds - 1;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (self->bounds[mid] < bytes) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static lg_status paint_stays(checker *self)
{
    int num = 0;
    for (int i = 0; i < self->num_stays; i++) {
        self->bounds[num++] = self->stays[i].begin_bytes;
        self->bounds[num++] = self->stays[i].end_bytes;
    }
    qsort(self->bounds, (size_t)num, sizeof *self->bounds, compare_i64);
    self->num_bounds = 0;
    for (int i = 0; i < num; i++) {
        if (i == 0 || self->bounds[i] != self->bounds[i - 1]) {
            self->bounds[self->num_bounds++] = self->bounds[i];
        }
    }
    if (self->num_bounds < 2) {
        return LG_OK;
    }
    const int num_gaps = self->num_bounds - 1;
    for (int i = 0; i < 4 * num_gaps; i++) {
        self->paint[i] = PAINT_NONE;
    }
    for (int i = 0; i < self->num_stays; i++) {
        const stay *const s = &self->stays[i];
        const int begin = bound_idx(self, s->begin_bytes);
        const int end = bound_idx(self, s->end_bytes);
        int last_checked = PAINT_NONE;
        LG_TRY(check_paint(self, 1, 0, num_gaps, begin, end, i, &last_checked));
        set_paint(self, 1, 0, num_gaps, begin, end, i);
    }
    return LG_OK;
}

/* --- stays ------------------------------------------------------------------------------------------------------ */

static lg_status check_range(const checker *self, const char *prefix, const char *name,
                             int64_t offset_bytes, int64_t num_bytes, int rank)
{
    const int64_t peak = self->plan->peak_bytes[rank];
    if (offset_bytes < 0 || offset_bytes % ALIGNMENT != 0 || num_bytes > peak ||
        offset_bytes > peak - num_bytes) {
        LG_FAIL(LG_INVALID_ARG,
                "%s'%s': offset %lld with %lld bytes; allowed: multiples of %d that end within the "
                "peak "
                "of rank %d, %lld bytes",
                prefix, name, (long long)offset_bytes, (long long)num_bytes, ALIGNMENT, rank,
                (long long)peak);
    }
    return LG_OK;
}

static void add_stay(checker *self, stay s)
{
    if (s.begin_bytes == s.end_bytes) {
        return;
    }
    int num_ops = 0;
    const int *const ops = stay_ops(self, &s, &num_ops);
    for (int i = 0; i < num_ops && s.step >= 0; i++) {
        const int64_t at = (int64_t)(s.step + self->order->lag[ops[i]]) * self->order->num_ops +
                           self->order->linear[ops[i]];
        s.first = i == 0 || at < s.first ? at : s.first;
        s.last = i == 0 || at > s.last ? at : s.last;
        const int iteration = s.step + self->order->lag[ops[i]];
        s.first_iteration = i == 0 || iteration < s.first_iteration ? iteration : s.first_iteration;
        s.last_iteration = i == 0 || iteration > s.last_iteration ? iteration : s.last_iteration;
    }
    if (num_ops > 0 || s.step < 0) {
        self->stays[self->num_stays++] = s;
    }
}

static lg_status add_value(checker *self, int value)
{
    const lg_value_info *const info = lg_graph_value(self->graph, value);
    const lg_placement *const placement = &self->plan->values[value];
    int num_ops = 0;
    const int *const ops = stay_ops(self, &(stay){.value = value}, &num_ops);
    bool is_lag_mixed = false;
    for (int i = 1; i < num_ops; i++) {
        is_lag_mixed = is_lag_mixed || self->order->lag[ops[i]] != self->order->lag[ops[0]];
    }
    const int max_slots = is_lag_mixed && !info->is_persistent ? 2 : 1;
    const int min_slots = num_ops > 0 ? 1 : 0;
    if (placement->num_slots < min_slots || placement->num_slots > max_slots) {
        LG_FAIL(LG_INVALID_ARG, "'%s' has %d slots; allowed: %d..%d, for %s", info->name,
                placement->num_slots, min_slots, max_slots,
                info->is_persistent ? "it is persistent"
                : is_lag_mixed      ? "ops of lag 0 and 1 access it"
                                    : "the ops that access it have the same lag");
    }
    for (int slot = 0; slot < placement->num_slots; slot++) {
        LG_TRY(check_range(self, "", info->name, placement->offset_bytes[slot], info->bytes,
                           info->rank));
    }
    if (placement->num_slots == 0) {
        return LG_OK;
    }
    for (int step = info->is_persistent ? -1 : 0;
         step < (info->is_persistent ? 0 : self->num_steps); step++) {
        const int64_t offset =
            placement->offset_bytes[placement->num_slots == 2 && step >= 0 ? step % 2 : 0];
        add_stay(self, (stay){.value = value,
                              .op = -1,
                              .step = step,
                              .rank = info->rank,
                              .first = -1,
                              .last = -1,
                              .begin_bytes = offset,
                              .end_bytes = offset + info->bytes});
    }
    return LG_OK;
}

static lg_status add_workspace(checker *self, int op)
{
    const lg_op_info *const info = lg_graph_op(self->graph, op);
    const lg_lane *const lane = &self->plan->lanes[self->order->lane[op]];
    const int64_t num_bytes = info->workspace_bytes[lgi_width_idx(self->graph, lane->num_cores)];
    const int64_t offset = self->plan->workspace_offset_bytes[op];
    if (num_bytes == 0) {
        if (offset != -1) {
            LG_FAIL(LG_INVALID_ARG, "workspace of '%s': offset %lld, but it has none: -1",
                    info->name, (long long)offset);
        }
        return LG_OK;
    }
    if (offset == -1) {
        LG_FAIL(LG_INVALID_ARG, "workspace of '%s' is missing: %lld bytes on rank %d", info->name,
                (long long)num_bytes, info->rank);
    }
    LG_TRY(check_range(self, "workspace of ", info->name, offset, num_bytes, info->rank));
    for (int step = 0; step < self->num_steps; step++) {
        add_stay(self, (stay){.value = -1,
                              .op = op,
                              .step = step,
                              .rank = info->rank,
                              .begin_bytes = offset,
                              .end_bytes = offset + num_bytes});
    }
    return LG_OK;
}

static int compare_stays(const void *a, const void *b)
{
    const stay *const x = a;
    const stay *const y = b;
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return (x->last > y->last) - (x->last < y->last);
}

static lg_status check_peak(const checker *self, int rank, int64_t memory_bytes)
{
    int64_t peak = 0;
    for (int i = 0; i < self->num_stays; i++) {
        const stay *const s = &self->stays[i];
        peak = s->end_bytes > peak ? s->end_bytes : peak;
    }
    if (self->plan->peak_bytes[rank] != peak) {
        LG_FAIL(LG_INVALID_ARG,
                "rank %d: the stated peak is %lld bytes, the placements end at %lld", rank,
                (long long)self->plan->peak_bytes[rank], (long long)peak);
    }
    if (memory_bytes > 0 && peak > memory_bytes) {
        char texts[2][LGI_BYTES_TEXT_BYTES];
        LG_FAIL(LG_INVALID_ARG, "rank %d: the peak is %s, over the budget of %s", rank,
                lgi_bytes_text(texts[0], peak), lgi_bytes_text(texts[1], memory_bytes));
    }
    return LG_OK;
}

static lg_status check_rank(checker *self, int rank, int64_t memory_bytes)
{
    const lgi_by_rank *const lists = &self->by_rank;
    self->num_stays = 0;
    self->num_steps = 1;
    for (int i = lists->op_begin[rank]; i < lists->op_begin[rank + 1]; i++) {
        self->num_steps = self->order->lag[lists->ops[i]] != 0 ? NUM_STEPS : self->num_steps;
    }
    for (int i = lists->value_begin[rank]; i < lists->value_begin[rank + 1]; i++) {
        LG_TRY(add_value(self, lists->values[i]));
    }
    for (int i = lists->op_begin[rank]; i < lists->op_begin[rank + 1]; i++) {
        LG_TRY(add_workspace(self, lists->ops[i]));
    }
    LG_TRY(check_peak(self, rank, memory_bytes));
    qsort(self->stays, (size_t)self->num_stays, sizeof *self->stays, compare_stays);
    return paint_stays(self);
}

lg_status lgi_plan_check_memory(const lgi_order *order, const lg_plan *plan, const lg_graph *graph,
                                int64_t memory_bytes)
{
    lg_status status = LG_OK;
    checker self = {.order = order, .plan = plan, .graph = graph};
    size_t max_stays = 0;
    LG_TRY_GOTO(lgi_accesses_init(&self.accesses, graph));
    LG_TRY_GOTO(lgi_by_rank_init(&self.by_rank, graph));
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        const int num_things = self.by_rank.value_begin[rank + 1] - self.by_rank.value_begin[rank] +
                               self.by_rank.op_begin[rank + 1] - self.by_rank.op_begin[rank];
        const size_t num_stays = (size_t)num_things * NUM_STEPS;
        max_stays = num_stays > max_stays ? num_stays : max_stays;
    }
    LG_TRY_GOTO(lgi_calloc(&self.stays, max_stays, sizeof *self.stays));
    LG_TRY_GOTO(lgi_calloc(&self.bounds, 2 * max_stays, sizeof *self.bounds));
    LG_TRY_GOTO(lgi_calloc(&self.paint, 8 * max_stays, sizeof *self.paint));
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        LG_TRY_GOTO(check_rank(&self, rank, memory_bytes));
    }
out:
    lgi_accesses_deinit(&self.accesses);
    lgi_by_rank_deinit(&self.by_rank);
    lgi_free(self.stays);
    lgi_free(self.bounds);
    lgi_free(self.paint);
    return status;
}
