/*
 * Placing blocks by a sweep over the total order of an iteration, as an allocator would: a block takes memory at its first
 * op and gives it back after its last. The arena is a list of chunks; a free chunk remembers the last entry of each lane
 * that used it, and is taken only by a block all of whose ops happen after those: the total order alone proves nothing.
 * Free chunks wait in bins of one size, oldest first, because the oldest are the likeliest to be proved free; a larger one
 * is cut; neighbours are joined when nothing else fits. A block that lives over the iteration's boundary (some of its ops
 * lag, some do not) gets memory that it shares with no one.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_memory.h"

/* How many free chunks of a bin, and how many bins, are looked at before the next resort. */
#define MAX_TRIES 16
#define MAX_BINS_TRIED 24
/* Bound on the chunks looked at while joining neighbours for each block placed. */
#define MAX_JOIN_STEPS 64

typedef struct chunk {
    int64_t offset_bytes;
    int64_t num_bytes;
    int prev; /* by offset; -1: none */
    int next;
    int bin_prev; /* free ones: in the bin */
    int bin_next;
    int bin; /* -1: taken */
} chunk;

typedef struct bin {
    int64_t num_bytes;
    int first; /* the oldest; -1: empty */
    int last;
} bin;

typedef struct sweeper {
    const lgi_block *blocks;
    int stride;
    chunk *chunks;
    int *ends; /* [chunk * stride + local lane]: 1 + the last entry that used it */
    size_t num_chunks, chunk_capacity, ends_capacity;
    bin *bins; /* ascending by size */
    size_t num_bins, bin_capacity;
    int last_chunk;  /* by offset; -1: none */
    int spare_chunk; /* list of chunk records out of use, through `next`; -1: none */
    int64_t top_bytes;
    int64_t free_bytes;
    int64_t join_steps_left;
} sweeper;

/* A block's lag, if it has just one; else -1. */
static int only_lag(const lgi_block *b)
{
    return b->has_lag[0] == b->has_lag[1] ? -1 : b->has_lag[1] ? 1 : 0;
}

static int64_t chunk_bytes(const lgi_block *b)
{
    return lgi_align_up(b->num_bytes);
}

/* --- bins ---------------------------------------------------------------------------------------------------------- */

/* The first bin of at least this size. */
static size_t bin_at_least(const sweeper *self, int64_t num_bytes)
{
    size_t lo = 0;
    size_t hi = self->num_bins;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (self->bins[mid].num_bytes < num_bytes) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static lg_status put_into_bin(sweeper *self, int idx)
{
    chunk *const c = &self->chunks[idx];
    const size_t at = bin_at_least(self, c->num_bytes);
    if (at == self->num_bins || self->bins[at].num_bytes != c->num_bytes) {
        LG_TRY(lgi_grow(&self->bins, &self->bin_capacity, self->num_bins + 1, sizeof(bin)));
        memmove(self->bins + at + 1, self->bins + at, (self->num_bins - at) * sizeof(bin));
        self->num_bins++;
        self->bins[at] = (bin){.num_bytes = c->num_bytes, .first = -1, .last = -1};
        for (size_t i = at + 1; i < self->num_bins; i++) {
            for (int k = self->bins[i].first; k >= 0; k = self->chunks[k].bin_next) {
                self->chunks[k].bin++;
            }
        }
    }
    bin *const b = &self->bins[at];
    c->bin = (int)at;
    c->bin_prev = b->last;
    c->bin_next = -1;
    if (b->last >= 0) {
        self->chunks[b->last].bin_next = idx;
    } else {
        b->first = idx;
    }
    b->last = idx;
    self->free_bytes += c->num_bytes;
    return LG_OK;
}

static void take_from_bin(sweeper *self, int idx)
{
    chunk *const c = &self->chunks[idx];
    bin *const b = &self->bins[c->bin];
    if (c->bin_prev >= 0) {
        self->chunks[c->bin_prev].bin_next = c->bin_next;
    } else {
        b->first = c->bin_next;
    }
    if (c->bin_next >= 0) {
        self->chunks[c->bin_next].bin_prev = c->bin_prev;
    } else {
        b->last = c->bin_prev;
    }
    c->bin = -1;
    self->free_bytes -= c->num_bytes;
}

/* --- chunks -------------------------------------------------------------------------------------------------------- */

/* A new chunk right after `prev` (-1: at the bottom), which is not the last one unless it lies on top. */
static lg_status add_chunk(sweeper *self, int prev, int64_t offset_bytes, int64_t num_bytes,
                           int *out)
{
    int idx = self->spare_chunk;
    if (idx >= 0) {
        self->spare_chunk = self->chunks[idx].next;
    } else {
        LG_TRY(lgi_grow(&self->chunks, &self->chunk_capacity, self->num_chunks + 1, sizeof(chunk)));
        LG_TRY(lgi_grow(&self->ends, &self->ends_capacity, self->num_chunks + 1,
                        (size_t)self->stride * sizeof(int)));
        idx = (int)self->num_chunks++;
    }
    const int next = prev >= 0 ? self->chunks[prev].next : -1;
    self->chunks[idx] = (chunk){.offset_bytes = offset_bytes,
                                .num_bytes = num_bytes,
                                .prev = prev,
                                .next = next,
                                .bin_prev = -1,
                                .bin_next = -1,
                                .bin = -1};
    memset(self->ends + (size_t)idx * (size_t)self->stride, 0, (size_t)self->stride * sizeof(int));
    if (prev >= 0) {
        self->chunks[prev].next = idx;
    }
    if (next >= 0) {
        self->chunks[next].prev = idx;
    } else {
        self->last_chunk = idx;
    }
    *out = idx;
    return LG_OK;
}

/* Cuts a chunk that is in no bin down to `num_bytes`; what is left over is free as it was. */
static lg_status cut(sweeper *self, int idx, int64_t num_bytes)
{
    const int64_t rest = self->chunks[idx].num_bytes - num_bytes;
    if (rest == 0) {
        return LG_OK;
    }
    int other = -1;
    LG_TRY(add_chunk(self, idx, self->chunks[idx].offset_bytes + num_bytes, rest, &other));
    self->chunks[idx].num_bytes = num_bytes;
    memcpy(self->ends + (size_t)other * (size_t)self->stride,
           self->ends + (size_t)idx * (size_t)self->stride, (size_t)self->stride * sizeof(int));
    return put_into_bin(self, other);
}

/* Joins the next chunk, free and in no bin, to this one. */
static void join_next(sweeper *self, int idx)
{
    chunk *const c = &self->chunks[idx];
    const int next = c->next;
    c->num_bytes += self->chunks[next].num_bytes;
    c->next = self->chunks[next].next;
    if (c->next >= 0) {
        self->chunks[c->next].prev = idx;
    } else {
        self->last_chunk = idx;
    }
    self->chunks[next].next = self->spare_chunk;
    self->spare_chunk = next;
}

/* Whether all that used the chunk happens before all of `b`. */
static bool is_proved_free(const sweeper *self, int idx, const lgi_block *b, int lag)
{
    const int *const ends = self->ends + (size_t)idx * (size_t)self->stride;
    const int *const starts = b->starts + (size_t)lag * (size_t)self->stride;
    for (int lane = 0; lane < self->stride; lane++) {
        if (ends[lane] > starts[lane]) {
            return false;
        }
    }
    return true;
}

/* --- finding -------------------------------------------------------------------------------------------------------- */

/* A free chunk that is large enough, or -1. */
static int find_in_bins(const sweeper *self, const lgi_block *b, int lag)
{
    const size_t begin = bin_at_least(self, chunk_bytes(b));
    int num_bins = 0;
    for (size_t i = begin; i < self->num_bins && num_bins < MAX_BINS_TRIED; i++) {
        int num_tries = 0;
        for (int k = self->bins[i].first; k >= 0 && num_tries < MAX_TRIES;
             k = self->chunks[k].bin_next) {
            if (is_proved_free(self, k, b, lag)) {
                return k;
            }
            num_tries++;
        }
        num_bins += num_tries > 0 ? 1 : 0;
    }
    return -1;
}

/* The first of neighbouring free chunks that are large enough together, or -1. */
static int find_neighbours(sweeper *self, const lgi_block *b, int lag)
{
    const int64_t wanted = chunk_bytes(b);
    int begin = -1;
    int64_t num_bytes = 0;
    if (self->free_bytes < wanted) {
        return -1;
    }
    /* from the top down: what is wanted last is joined first */
    for (int k = self->last_chunk; k >= 0 && self->join_steps_left > 0; k = self->chunks[k].prev) {
        self->join_steps_left--;
        if (self->chunks[k].bin < 0 || !is_proved_free(self, k, b, lag)) {
            num_bytes = 0;
            continue;
        }
        begin = k;
        num_bytes += self->chunks[k].num_bytes;
        if (num_bytes >= wanted) {
            return begin;
        }
    }
    return -1;
}

/* New memory on top, together with the topmost chunk if that is free. */
static lg_status grow_top(sweeper *self, const lgi_block *b, int lag, int *out)
{
    const int64_t wanted = chunk_bytes(b);
    const int last = self->last_chunk;
    if (last >= 0 && self->chunks[last].bin >= 0 && self->chunks[last].num_bytes < wanted &&
        is_proved_free(self, last, b, lag)) {
        take_from_bin(self, last);
        self->top_bytes += wanted - self->chunks[last].num_bytes;
        self->chunks[last].num_bytes = wanted;
        *out = last;
        return LG_OK;
    }
    LG_TRY(add_chunk(self, last, self->top_bytes, wanted, out));
    self->top_bytes += wanted;
    return LG_OK;
}

static lg_status find_chunk(sweeper *self, const lgi_block *b, int lag, int *out)
{
    const int64_t wanted = chunk_bytes(b);
    *out = find_in_bins(self, b, lag);
    if (*out >= 0) {
        take_from_bin(self, *out);
        return cut(self, *out, wanted);
    }
    self->join_steps_left += MAX_JOIN_STEPS;
    *out = find_neighbours(self, b, lag);
    if (*out < 0) {
        return grow_top(self, b, lag, out);
    }
    take_from_bin(self, *out);
    while (self->chunks[*out].num_bytes < wanted) {
        const int next = self->chunks[*out].next;
        const int64_t missing = wanted - self->chunks[*out].num_bytes;
        take_from_bin(self, next);
        if (self->chunks[next].num_bytes > missing) {
            LG_TRY(cut(self, next, missing));
        }
        join_next(self, *out);
    }
    return LG_OK;
}

static lg_status release_chunk(sweeper *self, int idx, const lgi_block *b, int lag)
{
    memcpy(self->ends + (size_t)idx * (size_t)self->stride,
           b->ends + (size_t)lag * (size_t)self->stride, (size_t)self->stride * sizeof(int));
    return put_into_bin(self, idx);
}

/* --- the sweep ------------------------------------------------------------------------------------------------------- */

/* A block's place in a list sorted by time. */
typedef struct moment {
    int at;
    int64_t num_bytes;
    int block;
} moment;

static int compare_moments(const void *a, const void *b)
{
    const moment *const x = a;
    const moment *const y = b;
    if (x->at != y->at) {
        return x->at < y->at ? -1 : 1;
    }
    if (x->num_bytes != y->num_bytes) {
        return x->num_bytes > y->num_bytes ? -1 : 1;
    }
    return x->block - y->block;
}

/* Blocks that share with no one; returns how many others there are. */
static int place_lasting(sweeper *self, int num_blocks, int64_t *offsets, int64_t *peak,
                         moment *begins, moment *ends)
{
    int num = 0;
    for (int i = 0; i < num_blocks; i++) {
        const lgi_block *const b = &self->blocks[i];
        const int lag = only_lag(b);
        offsets[i] = self->top_bytes;
        if (b->num_bytes == 0) {
            continue;
        }
        if (lag < 0 || b->slot >= 0) {
            *peak = self->top_bytes + b->num_bytes;
            self->top_bytes += chunk_bytes(b);
            continue;
        }
        begins[num] = (moment){b->first[lag], b->num_bytes, i};
        ends[num++] = (moment){b->last[lag], b->num_bytes, i};
    }
    return num;
}

static lg_status sweep(sweeper *self, int num, const moment *begins, const moment *ends,
                       int *chunk_of, int64_t *offsets, int64_t *peak)
{
    int num_ended = 0;
    for (int i = 0; i < num; i++) {
        const int idx = begins[i].block;
        const lgi_block *const b = &self->blocks[idx];
        while (num_ended < num && ends[num_ended].at < begins[i].at) {
            const int ended = ends[num_ended++].block;
            const lgi_block *const old = &self->blocks[ended];
            LG_TRY(release_chunk(self, chunk_of[ended], old, only_lag(old)));
        }
        LG_TRY(find_chunk(self, b, only_lag(b), &chunk_of[idx]));
        offsets[idx] = self->chunks[chunk_of[idx]].offset_bytes;
        const int64_t end = offsets[idx] + b->num_bytes;
        *peak = end > *peak ? end : *peak;
    }
    return LG_OK;
}

lg_status lgi_memory_sweep(const lgi_block *blocks, int num_blocks, int stride, int64_t base_bytes,
                           int64_t *offsets, int64_t *peak)
{
    lg_status status = LG_OK;
    sweeper self = {.blocks = blocks,
                    .stride = stride,
                    .last_chunk = -1,
                    .spare_chunk = -1,
                    .top_bytes = base_bytes};
    moment *begins = NULL;
    moment *ends = NULL;
    int *chunk_of = NULL;
    *peak = base_bytes;
    LG_TRY_GOTO(lgi_calloc(&begins, (size_t)num_blocks, sizeof *begins));
    LG_TRY_GOTO(lgi_calloc(&ends, (size_t)num_blocks, sizeof *ends));
    LG_TRY_GOTO(lgi_calloc(&chunk_of, (size_t)num_blocks, sizeof *chunk_of));
    const int num = place_lasting(&self, num_blocks, offsets, peak, begins, ends);
    qsort(begins, (size_t)num, sizeof *begins, compare_moments);
    qsort(ends, (size_t)num, sizeof *ends, compare_moments);
    LG_TRY_GOTO(sweep(&self, num, begins, ends, chunk_of, offsets, peak));
out:
    lgi_free(begins);
    lgi_free(ends);
    lgi_free(chunk_of);
    lgi_free(self.chunks);
    lgi_free(self.ends);
    lgi_free(self.bins);
    return status;
}
