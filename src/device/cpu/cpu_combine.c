/* Layers that move, join or weigh whole tensors: input, flatten, add, concat, channel scale. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

static int64_t piece_end(int64_t begin, int64_t num_elems)
{
    return begin + LGI_CPU_PIECE_ELEMS < num_elems ? begin + LGI_CPU_PIECE_ELEMS : num_elems;
}

/* A copy of 4-byte numbers; the two may be the same. */
static void copy_elems(int width, const float *src, float *dst, int64_t num_elems)
{
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(width, num_elems))
    for (int64_t begin = 0; begin < num_elems; begin += LGI_CPU_PIECE_ELEMS) {
        memmove(dst + begin, src + begin,
                (size_t)(piece_end(begin, num_elems) - begin) * sizeof *dst);
    }
}

/* --- input: images are written channels last at once --------------------------------------------------------------- */

static lg_status prepare_input(lgi_cpu_layer *layer, const lgi_layer_spec *spec,
                               lgi_layer_facts *facts)
{
    if (layer->out_shape.num_dims == 3 && spec->layer->out_dtype == LG_DTYPE_F32) {
        facts->out.id = lgi_cpu_channels_last(&layer->out_shape);
    }
    return LG_OK;
}

static void copy_channels_last(const float *restrict src, float *restrict dst, int64_t channels,
                               int64_t space)
{
    for (int64_t s = 0; s < space; s++) {
        for (int64_t c = 0; c < channels; c++) {
            dst[s * channels + c] = src[c * space + s];
        }
    }
}

/* Numbers of both types have 4 bytes. */
static lg_status run_input(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t sample_elems = lg_shape_num_elems(&layer->out_shape);
    const int width = layer->widths[width_idx];
    const float *src = io->step->inputs[layer->attrs->input_idx];
    float *dst = io->y;
    src += io->first_sample * sample_elems;
    if (layer->out_shape.num_dims != 3 || layer->attrs->input_dtype != LG_DTYPE_F32 ||
        lgi_cpu_channels_last(&layer->out_shape) == LGI_CPU_ROW_MAJOR) {
        copy_elems(width, src, dst, layer->num_samples * sample_elems);
        return LG_OK;
    }
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t n = 0; n < layer->num_samples; n++) {
        copy_channels_last(src + n * sample_elems, dst + n * sample_elems, layer->out_shape.dims[0],
                           lgi_cpu_map_elems(&layer->out_shape));
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_input = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare_input,
    .run = {run_input, NULL, NULL},
};

/* --- flatten: a view of row-major memory --------------------------------------------------------------------------- */

static lg_status prepare_flatten(lgi_cpu_layer *layer, const lgi_layer_spec *spec,
                                 lgi_layer_facts *facts)
{
    (void)layer;
    (void)spec;
    (void)facts; /* natural: row-major in and out, no op */
    return LG_OK;
}

static lg_status run_flatten(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    copy_elems(layer->widths[width_idx], io->x[0], io->y,
               layer->num_samples * lg_shape_num_elems(&layer->out_shape));
    return LG_OK;
}

static lg_status run_flatten_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    copy_elems(layer->widths[width_idx], io->dy, io->dx[0],
               layer->num_samples * lg_shape_num_elems(&layer->out_shape));
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_flatten = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare_flatten,
    .run = {run_flatten, run_flatten_grad, NULL},
};

/* --- add ----------------------------------------------------------------------------------------------------------- */

static lg_status prepare_following(lgi_cpu_layer *layer, const lgi_layer_spec *spec,
                                   lgi_layer_facts *facts)
{
    (void)layer;
    (void)lgi_cpu_follow_inputs(facts, spec);
    return LG_OK;
}

/* dst = a + b, with ReLU if asked for; dst may be a. */
static void add_pair(const float *a, const float *b, float *dst, int64_t num_elems, bool has_relu)
{
    if (has_relu) {
        LGI_CPU_SIMD
        for (int64_t i = 0; i < num_elems; i++) {
            dst[i] = lgi_cpu_relu(a[i] + b[i]);
        }
    } else {
        LGI_CPU_SIMD
        for (int64_t i = 0; i < num_elems; i++) {
            dst[i] = a[i] + b[i];
        }
    }
}

static lg_status run_add(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    const bool has_relu = layer->attrs->activation == LG_ACTIVATION_RELU;
    const int last = layer->num_inputs - 1;
    float *y = io->y;
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(layer->widths[width_idx], num_elems))
    for (int64_t begin = 0; begin < num_elems; begin += LGI_CPU_PIECE_ELEMS) {
        const int64_t count = piece_end(begin, num_elems) - begin;
        const float *sum = (const float *)io->x[0] + begin;
        for (int i = 1; i < last; i++) {
            add_pair(sum, (const float *)io->x[i] + begin, y + begin, count, false);
            sum = y + begin;
        }
        add_pair(sum, (const float *)io->x[last] + begin, y + begin, count, has_relu);
    }
    return LG_OK;
}

/* With a fused ReLU one gradient for all inputs, dx[0], which may be dy; without one a copy for each. */
static lg_status run_add_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    const int width = layer->widths[width_idx];
    const float *y = io->y;
    const float *dy = io->dy;
    float *dx = io->dx[0];
    if (layer->attrs->activation != LG_ACTIVATION_RELU) {
        for (int i = 0; i < layer->num_inputs; i++) {
            if (io->dx[i] != NULL) {
                copy_elems(width, dy, io->dx[i], num_elems);
            }
        }
        return LG_OK;
    }
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(width, num_elems))
    for (int64_t begin = 0; begin < num_elems; begin += LGI_CPU_PIECE_ELEMS) {
        const int64_t end = piece_end(begin, num_elems);
        LGI_CPU_SIMD
        for (int64_t i = begin; i < end; i++) {
            dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_add = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare_following,
    .run = {run_add, run_add_grad, NULL},
};

/* --- concat: along the channels ------------------------------------------------------------------------------------ */

typedef struct concat_layer {
    lgi_cpu_layer base;
    int64_t rows;                            /* samples, or cells where the channels come last */
    int64_t run_elems[LGI_MAX_LAYER_INPUTS]; /* of each input in a row */
} concat_layer;

static lg_status prepare_concat(lgi_cpu_layer *layer, const lgi_layer_spec *spec,
                                lgi_layer_facts *facts)
{
    concat_layer *self = (concat_layer *)layer;
    const bool is_channels_last = lgi_cpu_follow_inputs(facts, spec);
    const int64_t space = lgi_cpu_map_elems(&layer->out_shape);
    self->rows = layer->num_samples * (is_channels_last ? space : 1);
    for (int i = 0; i < layer->num_inputs; i++) {
        self->run_elems[i] = spec->in_shapes[i].dims[0] * (is_channels_last ? 1 : space);
    }
    return LG_OK;
}

/* Input by input over a piece of the rows; `joined` holds all inputs' runs side by side. */
static void move_runs(const concat_layer *self, int width, float *joined,
                      const void *const *parts_read, void *const *parts_written)
{
    const int num_inputs = self->base.num_inputs;
    int64_t row_elems = 0;
    for (int i = 0; i < num_inputs; i++) {
        row_elems += self->run_elems[i];
    }
    const int64_t piece_rows =
        row_elems < LGI_CPU_PIECE_ELEMS ? LGI_CPU_PIECE_ELEMS / row_elems : 1;
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t begin = 0; begin < self->rows; begin += piece_rows) {
        const int64_t end = begin + piece_rows < self->rows ? begin + piece_rows : self->rows;
        int64_t offset = 0;
        for (int i = 0; i < num_inputs; i++) {
            const int64_t run = self->run_elems[i];
            const size_t run_bytes = (size_t)run * sizeof *joined;
            for (int64_t r = begin; r < end; r++) {
                float *at = joined + r * row_elems + offset;
                if (parts_read != NULL) {
                    memcpy(at, (const float *)parts_read[i] + r * run, run_bytes);
                } else if (parts_written[i] != NULL) {
                    memcpy((float *)parts_written[i] + r * run, at, run_bytes);
                }
            }
            offset += run;
        }
    }
}

static lg_status run_concat(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    move_runs((const concat_layer *)layer, layer->widths[width_idx], io->y, io->x, NULL);
    return LG_OK;
}

static lg_status run_concat_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    float *dy = NULL;
    memcpy(&dy, &io->dy, sizeof dy); /* only read */
    move_runs((const concat_layer *)layer, layer->widths[width_idx], dy, NULL, io->dx);
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_concat = {
    .layer_bytes = sizeof(concat_layer),
    .prepare = prepare_concat,
    .run = {run_concat, run_concat_grad, NULL},
};

/* --- channel scale: x [N,S,C] times scale [N,C] -------------------------------------------------------------------- */

static lg_status prepare_channel_scale(lgi_cpu_layer *layer, const lgi_layer_spec *spec,
                                       lgi_layer_facts *facts)
{
    (void)layer;
    lgi_cpu_want_channels_last(facts, spec, 0);
    facts->out.id = facts->in[0].id;
    facts->is_forward_in_place = true;
    return LG_OK;
}

static lg_status run_channel_scale(const lgi_cpu_layer *layer, int width_idx,
                                   const lgi_layer_io *io)
{
    const int64_t channels = layer->out_shape.dims[0];
    const int64_t space = lgi_cpu_map_elems(&layer->out_shape);
    const float *x = io->x[0];
    float *y = io->y;
    LGI_CPU_PARALLEL_FOR(layer->widths[width_idx])
    for (int64_t r = 0; r < layer->num_samples * space; r++) {
        const float *scale = (const float *)io->x[1] + r / space * channels;
        LGI_CPU_SIMD
        for (int64_t c = 0; c < channels; c++) {
            y[r * channels + c] = x[r * channels + c] * scale[c];
        }
    }
    return LG_OK;
}

/* Samples and blocks of channels are shared out; each sum runs over the cells in order. */
static lg_status run_channel_scale_grad(const lgi_cpu_layer *layer, int width_idx,
                                        const lgi_layer_io *io)
{
    enum { BLOCK = 64 };
    const int64_t channels = layer->out_shape.dims[0];
    const int64_t space = lgi_cpu_map_elems(&layer->out_shape);
    const int64_t num_blocks = (channels + BLOCK - 1) / BLOCK;
    LGI_CPU_PARALLEL_FOR(layer->widths[width_idx])
    for (int64_t item = 0; item < layer->num_samples * num_blocks; item++) {
        const int64_t n = item / num_blocks;
        const int64_t begin = item % num_blocks * BLOCK;
        const int64_t count = channels - begin < BLOCK ? channels - begin : BLOCK;
        const int64_t offset = n * space * channels + begin;
        const float *x = (const float *)io->x[0] + offset;
        const float *dy = (const float *)io->dy + offset;
        const float *scale = (const float *)io->x[1] + n * channels + begin;
        float *dx = io->dx[0] != NULL ? (float *)io->dx[0] + offset : NULL;
        float *dscale = io->dx[1] != NULL ? (float *)io->dx[1] + n * channels + begin : NULL;
        float sums[BLOCK] = {0};
        for (int64_t s = 0; s < space; s++) {
            const int64_t at = s * channels;
            LGI_CPU_SIMD
            for (int64_t c = 0; c < count; c++) {
                sums[c] += dy[at + c] * x[at + c];
            }
            if (dx != NULL) {
                LGI_CPU_SIMD
                for (int64_t c = 0; c < count; c++) {
                    dx[at + c] = dy[at + c] * scale[c];
                }
            }
        }
        if (dscale != NULL) {
            memcpy(dscale, sums, (size_t)count * sizeof *sums);
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_channel_scale = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare_channel_scale,
    .run = {run_channel_scale, run_channel_scale_grad, NULL},
};
