/*
 * Pooling. Shapes, channels last: x [N,H,W,C], y [N,OH,OW,C] or [N,C]. Each window touches the map (the model sees to
 * that), so a maximum and a mean exist. Of equal maxima the first wins, a NaN counts as larger than all; the stash keeps
 * the maximum's cell of the map, i32.
 */
#include <math.h>

#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    lgi_cpu_want_channels_last(facts, spec, 0);
    facts->out.id = lgi_cpu_channels_last(&layer->out_shape);
    return LG_OK;
}

/* The cells of a window that lie inside the map: rows [begin[0], end[0]), columns [begin[1], end[1]). */
typedef struct pool_cells {
    int64_t begin[2], end[2];
} pool_cells;

static pool_cells cells_of(const lgi_cpu_layer *layer, int64_t oy, int64_t ox)
{
    const lg_window *window = &layer->attrs->window;
    const int64_t at[2] = {oy, ox};
    pool_cells cells;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t first = at[axis] * window->stride[axis] - window->pad_begin[axis];
        const int64_t last = first + window->kernel[axis];
        const int64_t size = layer->in_shape.dims[1 + axis];
        cells.begin[axis] = first > 0 ? first : 0;
        cells.end[axis] = last < size ? last : size;
    }
    return cells;
}

/* Rows of the output map that are worked on together; and the sizes all loops use. */
typedef struct pool_sizes {
    int64_t channels, in_cells, in_width, out_height, out_width;
} pool_sizes;

static pool_sizes sizes_of(const lgi_cpu_layer *layer)
{
    const pool_sizes sizes = {layer->in_shape.dims[0], lgi_cpu_map_elems(&layer->in_shape),
                              layer->in_shape.dims[2], layer->out_shape.dims[1],
                              layer->out_shape.dims[2]};
    return sizes;
}

static int pool_width(const lgi_cpu_layer *layer, int width_idx)
{
    return lgi_cpu_useful_width(layer->widths[width_idx],
                                layer->num_samples * lg_shape_num_elems(&layer->in_shape));
}

/* --- max ----------------------------------------------------------------------------------------------------------- */

/* Takes in one cell of the window. */
static void take_maximum(const float *restrict x, int32_t cell, int64_t channels, float *restrict y,
                         int32_t *restrict position)
{
    LGI_CPU_SIMD
    for (int64_t c = 0; c < channels; c++) {
        const bool is_larger = x[c] > y[c] || (x[c] != x[c] && y[c] == y[c]);
        y[c] = is_larger ? x[c] : y[c];
        position[c] = is_larger ? cell : position[c];
    }
}

static void max_window(const pool_sizes *sizes, const pool_cells *cells, const float *map, float *y,
                       int32_t *position)
{
    const int64_t first = cells->begin[0] * sizes->in_width + cells->begin[1];
    memcpy(y, map + first * sizes->channels, (size_t)sizes->channels * sizeof *y);
    for (int64_t c = 0; c < sizes->channels; c++) {
        position[c] = (int32_t)first;
    }
    for (int64_t iy = cells->begin[0]; iy < cells->end[0]; iy++) {
        for (int64_t ix = cells->begin[1]; ix < cells->end[1]; ix++) {
            const int64_t cell = iy * sizes->in_width + ix;
            take_maximum(map + cell * sizes->channels, (int32_t)cell, sizes->channels, y, position);
        }
    }
}

/* Without training there is no stash: positions go to the workspace, one row of channels per output row. */
static lg_status prepare_max(lgi_cpu_layer *layer, const lgi_layer_spec *spec,
                             lgi_layer_facts *facts)
{
    if (layer->mode != LG_GRAPH_TRAIN) {
        lgi_cpu_set_workspace(facts, LGI_PHASE_FORWARD,
                              layer->num_samples * layer->out_shape.dims[1] *
                                  layer->out_shape.dims[0] * (int64_t)sizeof(int32_t));
    }
    return prepare(layer, spec, facts);
}

static lg_status run_max(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const pool_sizes sizes = sizes_of(layer);
    const bool is_training = layer->mode == LG_GRAPH_TRAIN;
    int32_t *positions = is_training ? io->stash[0] : io->workspace;
    LGI_CPU_PARALLEL_FOR(pool_width(layer, width_idx))
    for (int64_t row = 0; row < layer->num_samples * sizes.out_height; row++) {
        const float *map =
            (const float *)io->x[0] + row / sizes.out_height * sizes.in_cells * sizes.channels;
        for (int64_t ox = 0; ox < sizes.out_width; ox++) {
            const pool_cells cells = cells_of(layer, row % sizes.out_height, ox);
            const int64_t out = (row * sizes.out_width + ox) * sizes.channels;
            max_window(&sizes, &cells, map, (float *)io->y + out,
                       positions + (is_training ? out : row * sizes.channels));
        }
    }
    return LG_OK;
}

/* Windows may overlap, so a sample is one item of work, unless few samples make blocks of channels worthwhile. */
static lg_status run_max_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    enum { BLOCK = 16 };
    const pool_sizes sizes = sizes_of(layer);
    const int64_t channels = sizes.channels;
    const int64_t out_cells = sizes.out_height * sizes.out_width;
    const int64_t num_blocks = (channels + BLOCK - 1) / BLOCK;
    const int32_t *positions = io->stash[0];
    LGI_CPU_PARALLEL_FOR(pool_width(layer, width_idx))
    for (int64_t item = 0; item < layer->num_samples * num_blocks; item++) {
        const int64_t n = item / num_blocks;
        const int64_t begin = item % num_blocks * BLOCK;
        const int64_t count = channels - begin < BLOCK ? channels - begin : BLOCK;
        float *dx = (float *)io->dx[0] + n * sizes.in_cells * channels + begin;
        for (int64_t cell = 0; cell < sizes.in_cells; cell++) {
            memset(dx + cell * channels, 0, (size_t)count * sizeof *dx);
        }
        for (int64_t o = n * out_cells; o < (n + 1) * out_cells; o++) {
            const float *dy = (const float *)io->dy + o * channels + begin;
            const int32_t *position = positions + o * channels + begin;
            for (int64_t c = 0; c < count; c++) {
                dx[position[c] * channels + c] += dy[c];
            }
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_max_pool = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare_max,
    .run = {run_max, run_max_grad, NULL},
};

/* --- average ------------------------------------------------------------------------------------------------------- */

static float share_of(const pool_cells *cells)
{
    return 1.0f / (float)((cells->end[0] - cells->begin[0]) * (cells->end[1] - cells->begin[1]));
}

/* dst += factor * src */
static void add_scaled(const float *restrict src, float factor, float *restrict dst, int64_t count)
{
    LGI_CPU_SIMD
    for (int64_t c = 0; c < count; c++) {
        dst[c] += factor * src[c];
    }
}

static lg_status run_avg(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const pool_sizes sizes = sizes_of(layer);
    LGI_CPU_PARALLEL_FOR(pool_width(layer, width_idx))
    for (int64_t row = 0; row < layer->num_samples * sizes.out_height; row++) {
        const float *map =
            (const float *)io->x[0] + row / sizes.out_height * sizes.in_cells * sizes.channels;
        for (int64_t ox = 0; ox < sizes.out_width; ox++) {
            const pool_cells cells = cells_of(layer, row % sizes.out_height, ox);
            float *y = (float *)io->y + (row * sizes.out_width + ox) * sizes.channels;
            memset(y, 0, (size_t)sizes.channels * sizeof *y);
            for (int64_t iy = cells.begin[0]; iy < cells.end[0]; iy++) {
                for (int64_t ix = cells.begin[1]; ix < cells.end[1]; ix++) {
                    add_scaled(map + (iy * sizes.in_width + ix) * sizes.channels, share_of(&cells),
                               y, sizes.channels);
                }
            }
        }
    }
    return LG_OK;
}

static lg_status run_avg_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const pool_sizes sizes = sizes_of(layer);
    const int64_t out_cells = sizes.out_height * sizes.out_width;
    const int64_t map_elems = sizes.in_cells * sizes.channels;
    LGI_CPU_PARALLEL_FOR(pool_width(layer, width_idx))
    for (int64_t n = 0; n < layer->num_samples; n++) {
        float *dx = (float *)io->dx[0] + n * map_elems;
        memset(dx, 0, (size_t)map_elems * sizeof *dx);
        for (int64_t o = 0; o < out_cells; o++) {
            const pool_cells cells = cells_of(layer, o / sizes.out_width, o % sizes.out_width);
            const float *dy = (const float *)io->dy + (n * out_cells + o) * sizes.channels;
            for (int64_t iy = cells.begin[0]; iy < cells.end[0]; iy++) {
                for (int64_t ix = cells.begin[1]; ix < cells.end[1]; ix++) {
                    add_scaled(dy, share_of(&cells),
                               dx + (iy * sizes.in_width + ix) * sizes.channels, sizes.channels);
                }
            }
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_avg_pool = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare,
    .run = {run_avg, run_avg_grad, NULL},
};

/* --- global average ------------------------------------------------------------------------------------------------ */

static lg_status run_global(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t channels = layer->in_shape.dims[0];
    const int64_t space = lgi_cpu_map_elems(&layer->in_shape);
    const float share = 1.0f / (float)space;
    LGI_CPU_PARALLEL_FOR(pool_width(layer, width_idx))
    for (int64_t n = 0; n < layer->num_samples; n++) {
        const float *x = (const float *)io->x[0] + n * space * channels;
        float *y = (float *)io->y + n * channels;
        memset(y, 0, (size_t)channels * sizeof *y);
        for (int64_t s = 0; s < space; s++) {
            add_scaled(x + s * channels, share, y, channels);
        }
    }
    return LG_OK;
}

static lg_status run_global_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t channels = layer->in_shape.dims[0];
    const int64_t space = lgi_cpu_map_elems(&layer->in_shape);
    const float share = 1.0f / (float)space;
    LGI_CPU_PARALLEL_FOR(pool_width(layer, width_idx))
    for (int64_t n = 0; n < layer->num_samples; n++) {
        const float *dy = (const float *)io->dy + n * channels;
        float *dx = (float *)io->dx[0] + n * space * channels;
        for (int64_t s = 0; s < space; s++) {
            LGI_CPU_SIMD
            for (int64_t c = 0; c < channels; c++) {
                dx[s * channels + c] = dy[c] * share;
            }
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_global_avg_pool = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare,
    .run = {run_global, run_global_grad, NULL},
};
