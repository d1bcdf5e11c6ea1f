#include "device/cpu/cpu_depthwise.h"

#include "device/cpu/cpu_kernel.h"

#define LANES LGI_CPU_DEPTHWISE_LANES
#define MAX_PIECES 16
#define INLINE static inline __attribute__((always_inline))

/* The vector type takes any alignment; where the machine's vectors are shorter the compiler splits it. */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct sizes {
    int64_t channels, in_height, in_width, out_height, out_width;
    int64_t kernel_height, kernel_width, cells;
    int64_t num_blocks, num_pieces;
} sizes;

static sizes sizes_of(const lgi_cpu_layer *layer)
{
    const lg_window *window = &layer->attrs->window;
    sizes s;
    s.channels = layer->in_shape.dims[0];
    s.in_height = layer->in_shape.dims[1];
    s.in_width = layer->in_shape.dims[2];
    s.out_height = layer->out_shape.dims[1];
    s.out_width = layer->out_shape.dims[2];
    s.kernel_height = window->kernel[0];
    s.kernel_width = window->kernel[1];
    s.cells = s.kernel_height * s.kernel_width;
    s.num_blocks = (s.channels + LANES - 1) / LANES;
    s.num_pieces = layer->num_samples < MAX_PIECES ? layer->num_samples : MAX_PIECES;
    return s;
}

bool lgi_cpu_is_depthwise(const lgi_cpu_layer *layer)
{
    return layer->attrs->groups == layer->in_shape.dims[0] &&
           layer->attrs->num_outputs == layer->attrs->groups;
}

/* One piece's sums: of each kernel cell, then of dy for the bias; [pieces][blocks][cells + 1][LANES]. */
static int64_t partial_elems(const sizes *s)
{
    return (s->cells + 1) * LANES;
}

int64_t lgi_cpu_depthwise_workspace_bytes(const lgi_cpu_layer *layer)
{
    const sizes s = sizes_of(layer);
    return s.num_pieces * s.num_blocks * partial_elems(&s) * (int64_t)sizeof(float);
}

/* Not returned by value: where vectors are shorter that would be another calling convention. */
INLINE void load(vec *value, const float *src, int64_t count)
{
    if (count == LANES) {
        memcpy(value, src, sizeof *value);
    } else {
        memset(value, 0, sizeof *value);
        memcpy(value, src, (size_t)count * sizeof *src);
    }
}

/* sum += a * b */
INLINE void add_product(vec *sum, const vec *a, const float *b, int64_t count)
{
    vec value;
    load(&value, b, count);
    *sum += *a * value;
}

/*
 * One output row against one kernel row: sums[kx] += sum over ox of dy[ox] * x[ox * stride - pad + kx * dilation], where
 * that lies in the map. Columns whose whole window lies inside go without checks; `kernel_width` is a constant where it
 * matters, so that the sums stay in registers.
 */
INLINE void add_row(const lgi_cpu_layer *layer, const sizes *s, const float *x, const float *dy,
                    int64_t kernel_width, int64_t count, vec *restrict sums)
{
    enum { MAX_KERNEL = 7 };
    const lg_window *window = &layer->attrs->window;
    const int64_t stride = window->stride[1];
    const int64_t dilation = window->dilation[1];
    const int64_t pad = window->pad_begin[1];
    vec local[MAX_KERNEL];
    for (int64_t kx = 0; kx < kernel_width; kx++) {
        local[kx] = sums[kx];
    }
    for (int64_t ox = 0; ox < s->out_width; ox++) {
        const int64_t first = ox * stride - pad;
        vec grad;
        load(&grad, dy + ox * s->channels, count);
        if (first >= 0 && first + (kernel_width - 1) * dilation < s->in_width) {
            for (int64_t kx = 0; kx < kernel_width; kx++) {
                add_product(&local[kx], &grad, x + (first + kx * dilation) * s->channels, count);
            }
        } else {
            for (int64_t kx = 0; kx < kernel_width; kx++) {
                const int64_t ix = first + kx * dilation;
                if (ix >= 0 && ix < s->in_width) {
                    add_product(&local[kx], &grad, x + ix * s->channels, count);
                }
            }
        }
    }
    for (int64_t kx = 0; kx < kernel_width; kx++) {
        sums[kx] = local[kx];
    }
}

/* Kernels of any width, one kernel column at a time. */
static void add_row_by_column(const lgi_cpu_layer *layer, const sizes *s, const float *x,
                              const float *dy, int64_t count, vec *restrict sums)
{
    const lg_window *window = &layer->attrs->window;
    for (int64_t kx = 0; kx < s->kernel_width; kx++) {
        vec sum = sums[kx];
        for (int64_t ox = 0; ox < s->out_width; ox++) {
            const int64_t ix =
                ox * window->stride[1] - window->pad_begin[1] + kx * window->dilation[1];
            if (ix >= 0 && ix < s->in_width) {
                vec grad;
                load(&grad, dy + ox * s->channels, count);
                add_product(&sum, &grad, x + ix * s->channels, count);
            }
        }
        sums[kx] = sum;
    }
}

static void add_any_row(const lgi_cpu_layer *layer, const sizes *s, const float *x, const float *dy,
                        int64_t count, vec *sums)
{
    if (s->kernel_width == 3 && count == LANES) {
        add_row(layer, s, x, dy, 3, LANES, sums);
    } else if (s->kernel_width == 5 && count == LANES) {
        add_row(layer, s, x, dy, 5, LANES, sums);
    } else if (s->kernel_width == 7 && count == LANES) {
        add_row(layer, s, x, dy, 7, LANES, sums);
    } else {
        add_row_by_column(layer, s, x, dy, count, sums);
    }
}

/* A block of channels of one sample. */
static void add_sample(const lgi_cpu_layer *layer, const sizes *s, const float *x, const float *dy,
                       int64_t count, vec *sums)
{
    const lg_window *window = &layer->attrs->window;
    vec bias = sums[s->cells];
    for (int64_t oy = 0; oy < s->out_height; oy++) {
        const float *dy_row = dy + oy * s->out_width * s->channels;
        for (int64_t ky = 0; ky < s->kernel_height; ky++) {
            const int64_t iy =
                oy * window->stride[0] - window->pad_begin[0] + ky * window->dilation[0];
            if (iy >= 0 && iy < s->in_height) {
                add_any_row(layer, s, x + iy * s->in_width * s->channels, dy_row, count,
                            sums + ky * s->kernel_width);
            }
        }
        for (int64_t ox = 0; ox < s->out_width && layer->attrs->has_bias; ox++) {
            vec grad;
            load(&grad, dy_row + ox * s->channels, count);
            bias += grad;
        }
    }
    sums[s->cells] = bias;
}

/*
 * Where a block begins: with 16 channels or more the last one reaches back over channels of the block before, so that all
 * loads are whole vectors.
 */
static int64_t first_channel(const sizes *s, int64_t block)
{
    const bool reaches_over = (block + 1) * LANES > s->channels && s->channels >= LANES;
    return reaches_over ? s->channels - LANES : block * LANES;
}

/* Adds up the pieces of one block in their order. */
static void store_block(const lgi_cpu_layer *layer, const sizes *s, const lgi_layer_io *io,
                        const float *partials, int64_t block)
{
    const int64_t elems = partial_elems(s);
    const int64_t left = s->channels - block * LANES;
    float *dweight =
        io->dparam[0] != NULL ? (float *)io->dparam[0] + block * s->cells * LANES : NULL;
    float *dbias = io->dparam[1] != NULL && layer->attrs->has_bias
                       ? (float *)io->dparam[1] + block * LANES
                       : NULL;
    const int64_t shift = block * LANES - first_channel(s, block);
    for (int64_t i = 0; i < elems; i++) {
        const int64_t lane = i % LANES;
        double sum = 0.0;
        for (int64_t piece = 0; piece < s->num_pieces && lane < left; piece++) {
            sum += (double)partials[(piece * s->num_blocks + block) * elems + i + shift];
        }
        if (i < s->cells * LANES && dweight != NULL) {
            dweight[i] = io->accumulates_param[0] ? dweight[i] + (float)sum : (float)sum;
        } else if (i >= s->cells * LANES && lane < left && dbias != NULL) {
            dbias[lane] = io->accumulates_param[1] ? dbias[lane] + (float)sum : (float)sum;
        }
    }
}

void lgi_cpu_depthwise_weight_grad(const lgi_cpu_layer *layer, int width, const lgi_layer_io *io)
{
    const sizes s = sizes_of(layer);
    const int64_t elems = partial_elems(&s);
    const int64_t x_elems = s.in_height * s.in_width * s.channels;
    const int64_t dy_elems = s.out_height * s.out_width * s.channels;
    float *partials = io->workspace;
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t item = 0; item < s.num_pieces * s.num_blocks; item++) {
        const int64_t piece = item / s.num_blocks;
        const int64_t channel = first_channel(&s, item % s.num_blocks);
        const int64_t count = s.channels - channel < LANES ? s.channels - channel : LANES;
        float *partial = partials + item * elems;
        memset(partial, 0, (size_t)elems * sizeof *partial);
        for (int64_t n = layer->num_samples * piece / s.num_pieces;
             n < layer->num_samples * (piece + 1) / s.num_pieces; n++) {
            add_sample(layer, &s, (const float *)io->x[0] + n * x_elems + channel,
                       (const float *)io->dy + n * dy_elems + channel, count, (vec *)partial);
        }
    }
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t block = 0; block < s.num_blocks; block++) {
        store_block(layer, &s, io, partials, block);
    }
}
