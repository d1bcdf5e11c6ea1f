/* Token and position embeddings. Shapes: ids [N,T], x, y [N,T,C], weight [V,C] or [T_max,C]. */
#include <inttypes.h>

#include "base/check.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    (void)layer;
    (void)spec;
    (void)facts; /* natural: row-major */
    return LG_OK;
}

static int embedding_width(const lgi_cpu_layer *layer, int width_idx)
{
    return lgi_cpu_useful_width(layer->widths[width_idx],
                                layer->num_samples * lg_shape_num_elems(&layer->out_shape));
}

/* --- tokens -------------------------------------------------------------------------------------------------------- */

static lg_status check_ids(const lgi_cpu_layer *layer, const int32_t *ids, int64_t first_sample)
{
    const int64_t num_ids = lg_shape_num_elems(&layer->in_shape);
    for (int64_t i = 0; i < layer->num_samples * num_ids; i++) {
        if (ids[i] < 0 || ids[i] >= layer->attrs->num_embeddings) {
            LG_FAIL(LG_INVALID_ARG,
                    "layer '%s': id %" PRId32 " at position %" PRId64 " of sample %" PRId64
                    " is not in [0, %" PRId64 ")",
                    layer->name, ids[i], i % num_ids, first_sample + i / num_ids,
                    layer->attrs->num_embeddings);
        }
    }
    return LG_OK;
}

static lg_status run_token(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t num_ids = layer->num_samples * lg_shape_num_elems(&layer->in_shape);
    const int64_t features = layer->attrs->num_outputs;
    const int32_t *ids = io->x[0];
    LG_TRY(check_ids(layer, ids, io->first_sample));
    LGI_CPU_PARALLEL_FOR(embedding_width(layer, width_idx))
    for (int64_t i = 0; i < num_ids; i++) {
        memcpy((float *)io->y + i * features, (const float *)io->param[0] + ids[i] * features,
               (size_t)features * sizeof(float));
    }
    return LG_OK;
}

/* Blocks of features are shared out, so every sum runs over the tokens in order. */
static lg_status run_token_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    enum { BLOCK = 64 };
    const int64_t num_ids = layer->num_samples * lg_shape_num_elems(&layer->in_shape);
    const int64_t features = layer->attrs->num_outputs;
    const int64_t num_blocks = (features + BLOCK - 1) / BLOCK;
    const int32_t *ids = io->x[0];
    if (io->dparam[0] == NULL) {
        return LG_OK;
    }
    LGI_CPU_PARALLEL_FOR(embedding_width(layer, width_idx))
    for (int64_t block = 0; block < num_blocks; block++) {
        const int64_t begin = block * BLOCK;
        const int64_t count = features - begin < BLOCK ? features - begin : BLOCK;
        float *dweight = (float *)io->dparam[0] + begin;
        for (int64_t v = 0; !io->accumulates_param[0] && v < layer->attrs->num_embeddings; v++) {
            memset(dweight + v * features, 0, (size_t)count * sizeof *dweight);
        }
        for (int64_t i = 0; i < num_ids; i++) {
            const float *dy = (const float *)io->dy + i * features + begin;
            float *dst = dweight + ids[i] * features;
            LGI_CPU_SIMD
            for (int64_t c = 0; c < count; c++) {
                dst[c] += dy[c];
            }
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_token_embedding = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare,
    .run = {run_token, NULL, run_token_grad},
};

/* --- positions ----------------------------------------------------------------------------------------------------- */

/* y may be x. */
static lg_status run_position(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t tokens = layer->out_shape.dims[0];
    const int64_t features = layer->out_shape.dims[1];
    LGI_CPU_PARALLEL_FOR(embedding_width(layer, width_idx))
    for (int64_t r = 0; r < layer->num_samples * tokens; r++) {
        const float *x = (const float *)io->x[0] + r * features;
        const float *weight = (const float *)io->param[0] + r % tokens * features;
        float *y = (float *)io->y + r * features;
        LGI_CPU_SIMD
        for (int64_t c = 0; c < features; c++) {
            y[c] = x[c] + weight[c];
        }
    }
    return LG_OK;
}

/* Only where the result is not allowed to be a view. */
static lg_status run_position_input_grad(const lgi_cpu_layer *layer, int width_idx,
                                         const lgi_layer_io *io)
{
    (void)width_idx;
    memmove(io->dx[0], io->dy,
            (size_t)(layer->num_samples * lg_shape_num_elems(&layer->out_shape)) * sizeof(float));
    return LG_OK;
}

/* Positions that the sequences do not reach get a zero gradient. */
static lg_status run_position_grad(const lgi_cpu_layer *layer, int width_idx,
                                   const lgi_layer_io *io)
{
    const int64_t tokens = layer->out_shape.dims[0];
    const int64_t features = layer->out_shape.dims[1];
    if (io->dparam[0] == NULL) {
        return LG_OK;
    }
    LGI_CPU_PARALLEL_FOR(embedding_width(layer, width_idx))
    for (int64_t t = 0; t < layer->attrs->num_embeddings; t++) {
        float *dweight = (float *)io->dparam[0] + t * features;
        if (!io->accumulates_param[0]) {
            memset(dweight, 0, (size_t)features * sizeof *dweight);
        }
        for (int64_t n = 0; n < layer->num_samples && t < tokens; n++) {
            const float *dy = (const float *)io->dy + (n * tokens + t) * features;
            LGI_CPU_SIMD
            for (int64_t c = 0; c < features; c++) {
                dweight[c] += dy[c];
            }
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_position_embedding = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare,
    .run = {run_position, run_position_input_grad, run_position_grad},
};
