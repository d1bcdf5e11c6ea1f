/*
 * Dropout. Element i (row-major) of a sample stays if number i of the stream (layer, step, sample within the step) is at
 * least p: the same mask for every backend, layout and division into micro-batches. Backward draws the numbers again.
 *
 * The numbers are those of lgi_random_block() (base/random.h): Philox4x32-10, here LANES counters at a time.
 */
#include <math.h>

#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef struct dropout_layer {
    lgi_cpu_layer base;
    bool is_channels_last;
    int64_t channels; /* channels last: of a cell */
    int64_t space;
    uint32_t threshold; /* a 24-bit number stays from here on */
    float scale;
} dropout_layer;

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    dropout_layer *self = (dropout_layer *)layer;
    const float drop_prob = layer->mode == LG_GRAPH_TRAIN ? layer->attrs->drop_prob : 0.0f;
    self->is_channels_last =
        lgi_cpu_follow_inputs(facts, spec) && facts->out.id == LGI_CPU_CHANNELS_LAST;
    self->channels = layer->out_shape.num_dims > 0 ? layer->out_shape.dims[0] : 1;
    self->space = lg_shape_num_elems(&layer->out_shape) / self->channels;
    self->threshold = (uint32_t)ceil((double)drop_prob * 0x1p24);
    self->scale = 1.0f / (1.0f - drop_prob);
    return LG_OK;
}

/* One block of a stream: four 32-bit numbers, held in 64 bits so that a vector's products need no regrouping. */
typedef struct numbers {
    uint64_t n0, n1, n2, n3;
} numbers;

INLINE numbers draw_block(uint64_t block, uint64_t stream0, uint64_t stream1, uint64_t key0,
                          uint64_t key1)
{
    const uint64_t low = 0xFFFFFFFFu;
    uint64_t c0 = block & low;
    uint64_t c1 = block >> 32;
    uint64_t c2 = stream0;
    uint64_t c3 = stream1;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = 0xD2511F53u * c0;
        const uint64_t p1 = 0xCD9E8D57u * c2;
        c0 = (p1 >> 32) ^ c1 ^ key0;
        c2 = (p0 >> 32) ^ c3 ^ key1;
        c1 = p1 & low;
        c3 = p0 & low;
        key0 = (key0 + 0x9E3779B9u) & low;
        key1 = (key1 + 0xBB67AE85u) & low;
    }
    const numbers result = {c0, c1, c2, c3};
    return result;
}

/* Blocks `blocks[lane]`: number j of them at out[j][lane]. */
INLINE void draw(const lgi_random *random, const uint64_t *restrict blocks,
                 uint32_t (*restrict out)[LANES])
{
    const uint64_t stream0 = random->stream[0];
    const uint64_t stream1 = random->stream[1];
    const uint64_t key0 = random->key[0];
    const uint64_t key1 = random->key[1];
    LGI_CPU_SIMD
    for (int lane = 0; lane < LANES; lane++) {
        const numbers n = draw_block(blocks[lane], stream0, stream1, key0, key1);
        out[0][lane] = (uint32_t)n.n0;
        out[1][lane] = (uint32_t)n.n1;
        out[2][lane] = (uint32_t)n.n2;
        out[3][lane] = (uint32_t)n.n3;
    }
}

/* LANES blocks from `first` on, numbers in their order, two in each 64 bits, the earlier one below. */
INLINE void draw_run(const lgi_random *random, uint64_t first, uint64_t *restrict pairs)
{
    const uint64_t stream0 = random->stream[0];
    const uint64_t stream1 = random->stream[1];
    const uint64_t key0 = random->key[0];
    const uint64_t key1 = random->key[1];
    LGI_CPU_SIMD
    for (int lane = 0; lane < LANES; lane++) {
        const numbers n = draw_block(first + (uint64_t)lane, stream0, stream1, key0, key1);
        pairs[2 * lane] = n.n0 | n.n1 << 32;
        pairs[2 * lane + 1] = n.n2 | n.n3 << 32;
    }
}

INLINE float keep(const dropout_layer *self, uint32_t number, float value)
{
    return number >> 8 >= self->threshold ? value * self->scale : 0.0f;
}

INLINE void keep_run(const dropout_layer *self, const uint32_t *in_order, const float *src,
                     float *dst, int64_t count)
{
    LGI_CPU_SIMD
    for (int64_t i = 0; i < count; i++) {
        dst[i] = keep(self, in_order[i], src[i]);
    }
}

/* Row-major: elements [begin, end) of a sample; begin is a multiple of 4. */
static void drop_run(const dropout_layer *self, const lgi_random *random, const float *src,
                     float *dst, int64_t begin, int64_t end)
{
    uint64_t pairs[2 * LANES];
    uint32_t in_order[4 * LANES];
    for (int64_t at = begin; at < end; at += 4 * LANES) {
        const int64_t count = end - at < 4 * LANES ? end - at : 4 * LANES;
        draw_run(random, (uint64_t)(at / 4), pairs);
        memcpy(in_order, pairs,
               sizeof in_order); /* little-endian, as all that oneDNN runs on here */
        if (count == 4 * LANES) {
            keep_run(self, in_order, src + at, dst + at, 4 * LANES);
        } else {
            keep_run(self, in_order, src + at, dst + at, count);
        }
    }
}

/* Channels last: `count` channels from `channel` on, of cells [cell, cell + num_cells) that share each block. */
static void drop_cells(const dropout_layer *self, const lgi_random *random, const float *src,
                       float *dst, int64_t cell, int num_cells, int64_t channel, int64_t count)
{
    uint64_t blocks[LANES];
    uint32_t drawn[4][LANES];
    uint32_t chosen[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        blocks[lane] = (uint64_t)((channel + lane) * self->space + cell) / 4;
    }
    draw(random, blocks, drawn);
    for (int s = 0; s < num_cells; s++) {
        const int64_t at = (cell + s) * self->channels + channel;
        for (int lane = 0; lane < LANES; lane++) {
            const uint64_t idx = (uint64_t)((channel + lane) * self->space + cell + s);
            chosen[lane] = drawn[idx % 4][lane];
        }
        LGI_CPU_SIMD
        for (int64_t i = 0; i < count; i++) {
            dst[at + i] = keep(self, chosen[i], src[at + i]);
        }
    }
}

/* Cells [begin, end) of a sample, channels last. Blocks are shared by 4 cells where every channel begins a new one. */
static void drop_map(const dropout_layer *self, const lgi_random *random, const float *src,
                     float *dst, int64_t begin, int64_t end)
{
    const int step = self->space % 4 == 0 ? 4 : 1;
    for (int64_t cell = begin; cell < end; cell += step) {
        for (int64_t channel = 0; channel < self->channels; channel += LANES) {
            const int64_t left = self->channels - channel;
            drop_cells(self, random, src, dst, cell, step, channel, left < LANES ? left : LANES);
        }
    }
}

/* Pieces of fixed size: [samples][pieces]. */
static void drop(const dropout_layer *self, int width, const lgi_layer_io *io, const float *src,
                 float *dst)
{
    const int64_t sample_elems = self->channels * self->space;
    const int64_t length = self->is_channels_last ? self->space : sample_elems;
    const int64_t piece = self->is_channels_last ? 64 : LGI_CPU_PIECE_ELEMS;
    const int64_t num_pieces = (length + piece - 1) / piece;
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t i = 0; i < self->base.num_samples * num_pieces; i++) {
        const int64_t n = i / num_pieces;
        const int64_t begin = i % num_pieces * piece;
        const int64_t end = begin + piece < length ? begin + piece : length;
        const lgi_random random =
            lgi_random_stream(io->step->seed, LGI_RANDOM_DROPOUT, self->base.random_key,
                              (uint64_t)io->step->number, (uint64_t)(io->first_sample + n));
        if (self->is_channels_last) {
            drop_map(self, &random, src + n * sample_elems, dst + n * sample_elems, begin, end);
        } else {
            drop_run(self, &random, src + n * sample_elems, dst + n * sample_elems, begin, end);
        }
    }
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    drop((const dropout_layer *)layer, layer->widths[width_idx], io, io->x[0], io->y);
    return LG_OK;
}

static lg_status run_input_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    drop((const dropout_layer *)layer, layer->widths[width_idx], io, io->dy, io->dx[0]);
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_dropout = {
    .layer_bytes = sizeof(dropout_layer),
    .prepare = prepare,
    .run = {run_forward, run_input_grad, NULL},
};
