/*
 * The memory planner: offsets for every value and workspace under the happens-before relation of the plan's lanes.
 *
 * Each rank has an arena. Persistent values stand first. What is left are blocks: a workspace, a slot of a transient value,
 * or a chain of values that take over each other's memory in place. Blocks that can be alive at one time conflict; the
 * conflicts are a bit matrix, and blocks are placed one after another, each into the smallest gap between the
 * conflicting ones already placed that holds it (best fit). Several orders are tried; the search ends when one reaches the
 * bytes that are alive at one time anyway. With several ranks, or very many blocks, a sweep over the total order comes
 * first (plan_memory_sweep.c), and the rest only where it can gain something and the blocks are few.
 *
 * Whether one block is wholly before another is decided on summaries: by lag and lane, the last entry that accesses the
 * block and how many entries happen before all of its ops. O(lanes) a pair.
 *
 * Source of the greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020).
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_memory.h"

/* Above this many blocks of a rank a matrix of conflicts is too large. */
#define MAX_MATRIX_BLOCKS 8192
/* With several ranks: bound on the pairs of blocks that are looked at, over all ranks. */
#define MAX_MATRIX_PAIRS ((int64_t)16 << 20)

#define NUM_LAGS LGI_NUM_LAGS

typedef lgi_block block;

typedef struct placer {
    lg_plan *plan;
    const lg_graph *graph;
    lgi_order order;
    lgi_groups groups;
    lgi_accesses accesses;
    lgi_by_rank by_rank;
    int *chain;    /* by value: union-find parent: who takes over whose memory */
    block *blocks; /* of the rank at hand */
    int num_blocks;
    int *summaries; /* storage of ends and starts */
    uint64_t *conflicts;
    size_t row_words;
    int64_t pairs_left;   /* that may still be looked at */
    int64_t enough_bytes; /* with several ranks: a sweep that needs no more is left as it is */
    int *sequence;        /* block indices in the order of placing */
    int *placed;          /* block indices by offset */
    int64_t *best_offsets;
} placer;

/* --- chains: memory taken over in place ------------------------------------------------------------------------ */

static int chain_root(placer *self, int value)
{
    while (self->chain[value] != value) {
        self->chain[value] = self->chain[self->chain[value]];
        value = self->chain[value];
    }
    return value;
}

/* Whether all ops that access `value`, `op` aside, run in its iteration and before it (or, `after`, after it). */
static bool all_ordered(const placer *self, int value, int op, bool after)
{
    for (int i = self->accesses.begin[value]; i < self->accesses.begin[value + 1]; i++) {
        const int other = self->accesses.ops[i];
        if (other == op) {
            continue;
        }
        if (self->order.lag[other] != self->order.lag[op] ||
            !(after ? lgi_order_before_inside(&self->order, op, other)
                    : lgi_order_before_inside(&self->order, other, op))) {
            return false;
        }
    }
    return true;
}

static void chain_in_place(placer *self, int op)
{
    const lg_op_info *const info = lg_graph_op(self->graph, op);
    if (info->inplace_write < 0 || info->inplace_read < 0) {
        return;
    }
    const int dst = info->operands[info->inplace_write].value;
    const int src = info->operands[info->inplace_read].value;
    const lg_value_info *const dst_info = lg_graph_value(self->graph, dst);
    const lg_value_info *const src_info = lg_graph_value(self->graph, src);
    int num_uses = 0;
    for (int i = 0; i < info->num_operands; i++) {
        num_uses += info->operands[i].value == src ? 1 : 0;
    }
    if (dst == src || num_uses != 1 || dst_info->bytes != src_info->bytes ||
        dst_info->is_persistent || src_info->is_persistent || src_info->is_output ||
        dst_info->rank != src_info->rank || !all_ordered(self, src, op, false) ||
        !all_ordered(self, dst, op, true)) {
        return;
    }
    self->chain[chain_root(self, dst)] = chain_root(self, src);
}

/* --- blocks ----------------------------------------------------------------------------------------------------- */

static void block_add_op(placer *self, block *b, int op)
{
    const size_t num_lanes = (size_t)self->order.stride;
    const int lag = self->order.lag[op];
    int *const ends = b->ends + (size_t)lag * num_lanes;
    int *const starts = b->starts + (size_t)lag * num_lanes;
    const int *const clock = lgi_order_clock(&self->order, op);
    const int linear = self->order.linear[op];
    if (!b->has_lag[lag]) {
        b->has_lag[lag] = true;
        b->first[lag] = linear;
        b->last[lag] = linear;
        memcpy(starts, clock, num_lanes * sizeof *starts);
    }
    b->first[lag] = linear < b->first[lag] ? linear : b->first[lag];
    b->last[lag] = linear > b->last[lag] ? linear : b->last[lag];
    for (size_t lane = 0; lane < num_lanes; lane++) {
        starts[lane] = clock[lane] < starts[lane] ? clock[lane] : starts[lane];
    }
    const int end = self->order.pos[op] + 1;
    int *const end_of_lane = &ends[self->order.local_lane[self->order.lane[op]]];
    *end_of_lane = end > *end_of_lane ? end : *end_of_lane;
}

static void block_add_value(placer *self, block *b, int value)
{
    for (int i = self->accesses.begin[value]; i < self->accesses.begin[value + 1]; i++) {
        block_add_op(self, b, self->accesses.ops[i]);
    }
    if (lg_graph_value(self->graph, value)->is_output) {
        b->is_output = true;
        b->has_lag[0] = true;
        b->last[0] = INT_MAX;
        for (int lane = 0; lane < self->order.stride; lane++) {
            b->ends[lane] = INT_MAX;
        }
    }
}

/* Whether every op of `x` in step t ends before any op of `y` in step t + `later` starts. */
static bool is_wholly_before(const placer *self, const block *x, const block *y, int later)
{
    const int num_lanes = self->order.stride;
    for (int i = 0; i < NUM_LAGS; i++) {
        for (int k = 0; k < NUM_LAGS; k++) {
            if (!x->has_lag[i] || !y->has_lag[k] || i < later + k) {
                continue;
            }
            if (i > later + k || x->last[i] >= y->first[k]) {
                return false;
            }
            const int *const ends = x->ends + i * num_lanes;
            const int *const starts = y->starts + k * num_lanes;
            for (int lane = 0; lane < num_lanes; lane++) {
                if (ends[lane] > starts[lane]) {
                    return false;
                }
            }
        }
    }
    return true;
}

static bool is_one_lag(const block *b)
{
    return b->has_lag[0] != b->has_lag[1];
}

static bool can_meet(const placer *self, const block *x, const block *y, int later)
{
    return !is_wholly_before(self, x, y, later) && !is_wholly_before(self, y, x, -later);
}

/* Whether two blocks can be alive at one time. */
static bool is_conflict(const placer *self, const block *x, const block *y)
{
    if (is_one_lag(x) && is_one_lag(y) && x->has_lag[0] == y->has_lag[0]) {
        return can_meet(self, x, y, 0);
    }
    const bool take_turns = x->slot >= 0 && y->slot >= 0;
    if ((!take_turns || x->slot == y->slot) && can_meet(self, x, y, 0)) {
        return true;
    }
    return (!take_turns || x->slot != y->slot) &&
           (can_meet(self, x, y, 1) || can_meet(self, x, y, -1));
}

static block *new_block(placer *self, int64_t num_bytes)
{
    block *const b = &self->blocks[self->num_blocks];
    const size_t num = (size_t)NUM_LAGS * (size_t)self->order.stride;
    b->ends = self->summaries + 2 * num * (size_t)self->num_blocks;
    b->starts = b->ends + num;
    b->value = -1;
    b->op = -1;
    b->slot = -1;
    b->num_bytes = num_bytes;
    self->num_blocks++;
    return b;
}

static void add_workspace_block(placer *self, int op)
{
    const lg_op_info *const info = lg_graph_op(self->graph, op);
    const lg_lane *const lane = &self->plan->lanes[self->order.lane[op]];
    const int64_t num_bytes = info->workspace_bytes[lgi_width_idx(self->graph, lane->num_cores)];
    if (num_bytes > 0) {
        block *const b = new_block(self, num_bytes);
        b->op = op;
        block_add_op(self, b, op);
    }
}

/* A second block like the last one, for the other turn. */
static void add_other_turn(placer *self)
{
    block *const b = &self->blocks[self->num_blocks - 1];
    block *const other = new_block(self, b->num_bytes);
    const size_t num = 2 * (size_t)NUM_LAGS * (size_t)self->order.stride;
    memcpy(other->ends, b->ends, num * sizeof *b->ends);
    int *const ends = other->ends;
    int *const starts = other->starts;
    *other = *b;
    other->ends = ends;
    other->starts = starts;
    b->slot = 0;
    other->slot = 1;
}

/* Blocks of one rank. `next_in_chain`: by value, the members of a chain as a list from its root. */
static void make_blocks(placer *self, int rank, const int *next_in_chain)
{
    const size_t num = 2 * (size_t)NUM_LAGS * (size_t)self->order.stride;
    memset(self->blocks, 0, (size_t)self->num_blocks * sizeof *self->blocks);
    memset(self->summaries, 0, num * (size_t)self->num_blocks * sizeof *self->summaries);
    self->num_blocks = 0;
    const lgi_by_rank *const lists = &self->by_rank;
    for (int i = lists->value_begin[rank]; i < lists->value_begin[rank + 1]; i++) {
        const int value = lists->values[i];
        const lg_value_info *const info = lg_graph_value(self->graph, value);
        if (info->is_persistent || self->chain[value] != value ||
            self->accesses.begin[value] == self->accesses.begin[value + 1]) {
            continue;
        }
        block *const b = new_block(self, info->bytes);
        b->value = value;
        for (int member = value; member >= 0; member = next_in_chain[member]) {
            block_add_value(self, b, member);
        }
        if (!is_one_lag(b) && !is_wholly_before(self, b, b, 1)) {
            add_other_turn(self);
        }
    }
    for (int i = lists->op_begin[rank]; i < lists->op_begin[rank + 1]; i++) {
        add_workspace_block(self, lists->ops[i]);
    }
}

/* --- placing ----------------------------------------------------------------------------------------------------- */

static bool find_conflict(const placer *self, int a, int b)
{
    return (self->conflicts[(size_t)a * self->row_words + (size_t)b / 64] >> (b % 64) & 1u) != 0;
}

static lg_status fill_conflicts(placer *self)
{
    lgi_free(self->conflicts);
    self->conflicts = NULL;
    self->row_words = ((size_t)self->num_blocks + 63) / 64;
    LG_TRY(lgi_calloc(&self->conflicts, self->row_words * (size_t)self->num_blocks,
                      sizeof *self->conflicts));
    for (int a = 0; a < self->num_blocks; a++) {
        for (int b = 0; b < a; b++) {
            if (is_conflict(self, &self->blocks[a], &self->blocks[b])) {
                self->conflicts[(size_t)a * self->row_words + (size_t)b / 64] |= 1ull << (b % 64);
                self->conflicts[(size_t)b * self->row_words + (size_t)a / 64] |= 1ull << (a % 64);
            }
        }
    }
    return LG_OK;
}

/* Best fit above `base_bytes` in the order of `sequence`; returns the peak. */
static int64_t place_in_sequence(placer *self, int64_t base_bytes)
{
    int64_t peak = base_bytes;
    for (int i = 0; i < self->num_blocks; i++) {
        const int idx = self->sequence[i];
        block *const b = &self->blocks[idx];
        int64_t top = base_bytes;
        int64_t best_gap = INT64_MAX;
        int64_t best_offset = -1;
        int insert_at = 0;
        for (int k = 0; k < i; k++) {
            const block *const other = &self->blocks[self->placed[k]];
            if (other->offset_bytes + other->num_bytes <= top ||
                !find_conflict(self, idx, self->placed[k])) {
                continue;
            }
            const int64_t gap = other->offset_bytes - top;
            if (gap >= b->num_bytes && gap < best_gap) {
                best_gap = gap;
                best_offset = top;
            }
            const int64_t end = lgi_align_up(other->offset_bytes + other->num_bytes);
            top = end > top ? end : top;
        }
        b->offset_bytes = best_offset >= 0 ? best_offset : top;
        while (insert_at < i &&
               self->blocks[self->placed[insert_at]].offset_bytes < b->offset_bytes) {
            insert_at++;
        }
        memmove(self->placed + insert_at + 1, self->placed + insert_at,
                (size_t)(i - insert_at) * sizeof *self->placed);
        self->placed[insert_at] = idx;
        const int64_t end = b->offset_bytes + b->num_bytes;
        peak = b->num_bytes > 0 && end > peak ? end : peak;
    }
    return peak;
}

typedef struct sort_key {
    double major;
    double minor;
    int idx;
} sort_key;

static int compare_keys(const void *a, const void *b)
{
    const sort_key *const x = a;
    const sort_key *const y = b;
    if (x->major != y->major) {
        return x->major > y->major ? -1 : 1;
    }
    if (x->minor != y->minor) {
        return x->minor > y->minor ? -1 : 1;
    }
    return x->idx - y->idx;
}

/* Length of stay in the total order, over two iterations. */
static double block_stay(const placer *self, const block *b)
{
    const int lo = b->has_lag[0] ? b->first[0] : b->first[1] + self->order.num_ops;
    int hi = 0;
    if (b->has_lag[1]) {
        hi = b->last[1] + self->order.num_ops;
    } else {
        hi = b->last[0] < self->order.num_ops ? b->last[0] : self->order.num_ops;
    }
    return (double)hi - (double)lo + 1.0;
}

typedef enum sequence_kind {
    BY_BYTES,
    BY_BYTES_AND_STAY,
    BY_STAY,
    BY_START,
    NUM_SEQUENCES
} sequence_kind;

static lg_status fill_sequence(placer *self, sequence_kind kind)
{
    sort_key *keys = NULL;
    LG_TRY(lgi_calloc(&keys, (size_t)self->num_blocks, sizeof *keys));
    for (int i = 0; i < self->num_blocks; i++) {
        const block *const b = &self->blocks[i];
        const double stay = block_stay(self, b);
        const double bytes = (double)b->num_bytes;
        const int first = b->has_lag[0] ? b->first[0] : b->first[1];
        keys[i] = (sort_key){.major = kind == BY_BYTES            ? bytes
                                      : kind == BY_BYTES_AND_STAY ? bytes * stay
                                      : kind == BY_STAY           ? stay
                                                                  : -(double)first,
                             .minor = kind == BY_BYTES ? stay : bytes,
                             .idx = i};
    }
    qsort(keys, (size_t)self->num_blocks, sizeof *keys, compare_keys);
    for (int i = 0; i < self->num_blocks; i++) {
        self->sequence[i] = keys[i].idx;
    }
    lgi_free(keys);
    return LG_OK;
}

/* What is alive at one time in the total order, at its most: no placement ends below. */
static lg_status alive_bytes(const placer *self, int64_t *out)
{
    int64_t *change = NULL;
    const int num_ops = self->order.num_ops;
    LG_TRY(lgi_calloc(&change, (size_t)num_ops + 2, sizeof *change));
    for (int i = 0; i < self->num_blocks; i++) {
        const block *const b = &self->blocks[i];
        if (!is_one_lag(b)) {
            change[0] += b->num_bytes / (b->slot >= 0 ? 2 : 1);
            continue;
        }
        const int lag = b->has_lag[0] ? 0 : 1;
        change[b->first[lag]] += b->num_bytes;
        change[(b->last[lag] < num_ops ? b->last[lag] : num_ops) + 1] -= b->num_bytes;
    }
    int64_t alive = 0;
    *out = 0;
    for (int i = 0; i < num_ops; i++) {
        alive += change[i];
        *out = alive > *out ? alive : *out;
    }
    lgi_free(change);
    return LG_OK;
}

/* Several orders with all conflicts known; keeps what beats `*peak`. */
static lg_status place_by_conflicts(placer *self, int64_t base_bytes, int64_t goal, int64_t *peak)
{
    LG_TRY(fill_conflicts(self));
    for (int kind = 0; kind<NUM_SEQUENCES && * peak> base_bytes + goal; kind++) {
        LG_TRY(fill_sequence(self, (sequence_kind)kind));
        const int64_t found = place_in_sequence(self, base_bytes);
        if (found < *peak) {
            *peak = found;
            for (int i = 0; i < self->num_blocks; i++) {
                self->best_offsets[i] = self->blocks[i].offset_bytes;
            }
        }
    }
    return LG_OK;
}

static lg_status place_blocks(placer *self, int64_t base_bytes, int64_t *out_peak)
{
    const int64_t num_pairs = (int64_t)self->num_blocks * self->num_blocks;
    const bool has_many_ranks = self->plan->num_ranks > 1;
    const bool allow_matrix =
        self->num_blocks <= MAX_MATRIX_BLOCKS && (!has_many_ranks || num_pairs <= self->pairs_left);
    int64_t goal = 0;
    *out_peak = INT64_MAX;
    if (has_many_ranks || !allow_matrix) {
        LG_TRY(lgi_memory_sweep(self->blocks, self->num_blocks, self->order.stride, base_bytes,
                                self->best_offsets, out_peak));
    }
    if (!allow_matrix || (has_many_ranks && *out_peak <= self->enough_bytes)) {
        return LG_OK;
    }
    LG_TRY(alive_bytes(self, &goal));
    const bool is_hopeless = self->enough_bytes > 0 && base_bytes + goal > self->enough_bytes;
    if (*out_peak > base_bytes + goal && !(has_many_ranks && is_hopeless)) {
        self->pairs_left -= num_pairs;
        LG_TRY(place_by_conflicts(self, base_bytes, goal, out_peak));
    }
    return LG_OK;
}

static void store_offsets(placer *self, const int *next_in_chain)
{
    for (int i = 0; i < self->num_blocks; i++) {
        const block *const b = &self->blocks[i];
        if (b->value < 0) {
            self->plan->workspace_offset_bytes[b->op] = self->best_offsets[i];
            continue;
        }
        for (int member = b->value; member >= 0; member = next_in_chain[member]) {
            lg_placement *const placement = &self->plan->values[member];
            placement->num_slots = b->slot >= 0 ? 2 : 1;
            placement->offset_bytes[b->slot == 1 ? 1 : 0] = self->best_offsets[i];
        }
    }
}

/* Returns the end of the persistent values, not aligned. */
static int64_t place_persistent(placer *self, int rank)
{
    lg_plan *const plan = self->plan;
    const lgi_by_rank *const lists = &self->by_rank;
    int64_t top = 0;
    int64_t end = 0;
    for (int pass = 0; pass < 3; pass++) {
        for (int i = lists->value_begin[rank]; i < lists->value_begin[rank + 1]; i++) {
            const int value = lists->values[i];
            const lg_value_info *const info = lg_graph_value(self->graph, value);
            const int pass_of_value = info->kind == LG_VALUE_PARAM   ? 0
                                      : info->kind == LG_VALUE_STATE ? 1
                                                                     : 2;
            if (!info->is_persistent || pass != pass_of_value) {
                continue;
            }
            plan->values[value] = (lg_placement){.num_slots = 1, .offset_bytes = {top, 0}};
            end = info->bytes > 0 ? top + info->bytes : end;
            top = lgi_align_up(top + info->bytes);
        }
    }
    return end;
}

static lg_status fits_in_i64(const lg_graph *graph)
{
    int64_t sum = 0;
    for (int value = 0; value < lg_graph_num_values(graph); value++) {
        const lg_value_info *const info = lg_graph_value(graph, value);
        if (info->bytes < 0 || __builtin_add_overflow(sum, info->bytes, &sum) ||
            sum > INT64_MAX / 4) {
            LG_FAIL(LG_INVALID_ARG, "the values up to '%s' take more bytes than can be counted",
                    info->name);
        }
    }
    return LG_OK;
}

/* Room for the blocks of the rank that has the most. */
static lg_status allocate_blocks(placer *self)
{
    size_t max_blocks = 0;
    for (int rank = 0; rank < self->plan->num_ranks; rank++) {
        const lgi_by_rank *const lists = &self->by_rank;
        const int num_values = lists->value_begin[rank + 1] - lists->value_begin[rank];
        const int num_ops = lists->op_begin[rank + 1] - lists->op_begin[rank];
        const size_t num = 2 * (size_t)num_values + (size_t)num_ops;
        max_blocks = num > max_blocks ? num : max_blocks;
    }
    const size_t num_summary = 2 * (size_t)NUM_LAGS * (size_t)self->order.stride;
    LG_TRY(lgi_calloc(&self->blocks, max_blocks, sizeof *self->blocks));
    LG_TRY(lgi_calloc(&self->summaries, max_blocks * num_summary, sizeof *self->summaries));
    LG_TRY(lgi_calloc(&self->sequence, max_blocks, sizeof *self->sequence));
    LG_TRY(lgi_calloc(&self->placed, max_blocks, sizeof *self->placed));
    return lgi_calloc(&self->best_offsets, max_blocks, sizeof *self->best_offsets);
}

/* Joins values that take over each other's memory; `next_in_chain`: by value, the members as a list from the root. */
static void make_chains(placer *self, int *next_in_chain)
{
    lg_plan *const plan = self->plan;
    for (int value = 0; value < plan->num_values; value++) {
        self->chain[value] = value;
        next_in_chain[value] = -1;
        plan->values[value] = (lg_placement){0};
    }
    for (int op = 0; op < plan->num_ops; op++) {
        plan->workspace_offset_bytes[op] = -1;
        chain_in_place(self, op);
    }
    for (int value = plan->num_values - 1; value >= 0; value--) {
        const int root = chain_root(self, value);
        if (root != value) {
            next_in_chain[value] = next_in_chain[root];
            next_in_chain[root] = value;
        }
    }
}

lg_status lgi_plan_place(lg_plan *plan, const lg_graph *graph)
{
    return lgi_plan_place_roughly(plan, graph, 0);
}

lg_status lgi_plan_place_roughly(lg_plan *plan, const lg_graph *graph, int64_t enough_bytes)
{
    LG_TRY(fits_in_i64(graph));
    lg_status status = LG_OK;
    placer self = {
        .plan = plan, .graph = graph, .pairs_left = MAX_MATRIX_PAIRS, .enough_bytes = enough_bytes};
    int *next_in_chain = NULL;
    const size_t num_values = (size_t)plan->num_values;
    LG_TRY_GOTO(lgi_groups_init(&self.groups, graph));
    LG_TRY_GOTO(lgi_order_init(&self.order, &self.groups, plan, graph));
    LG_TRY_GOTO(lgi_accesses_init(&self.accesses, graph));
    LG_TRY_GOTO(lgi_by_rank_init(&self.by_rank, graph));
    LG_TRY_GOTO(lgi_calloc(&self.chain, num_values, sizeof *self.chain));
    LG_TRY_GOTO(lgi_calloc(&next_in_chain, num_values, sizeof *next_in_chain));
    LG_TRY_GOTO(allocate_blocks(&self));
    make_chains(&self, next_in_chain);
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        const int64_t end = place_persistent(&self, rank);
        plan->peak_bytes[rank] = end;
        make_blocks(&self, rank, next_in_chain);
        if (self.num_blocks == 0) {
            continue;
        }
        int64_t peak = 0;
        LG_TRY_GOTO(place_blocks(&self, lgi_align_up(end), &peak));
        plan->peak_bytes[rank] = peak > lgi_align_up(end) ? peak : end;
        store_offsets(&self, next_in_chain);
    }
out:
    lgi_order_deinit(&self.order);
    lgi_groups_deinit(&self.groups);
    lgi_accesses_deinit(&self.accesses);
    lgi_by_rank_deinit(&self.by_rank);
    lgi_free(self.chain);
    lgi_free(next_in_chain);
    lgi_free(self.blocks);
    lgi_free(self.summaries);
    lgi_free(self.conflicts);
    lgi_free(self.sequence);
    lgi_free(self.placed);
    lgi_free(self.best_offsets);
    return status;
}
