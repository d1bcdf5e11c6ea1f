/*
 * Layer norm. Shapes: x, y [rows, C], weight, bias [C], stash [rows, 2]: mean, inverse deviation. The gradients are one
 * joint op: one pass over the rows makes dx and adds to the sums of the parameters' gradients, piece by piece as in
 * cpu_columns.h.
 */
#include <math.h>

#include "device/cpu/cpu_columns.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

#define NUM_SUMS 2
#define MAX_PIECES 64
#define MIN_PIECE_ROWS 8

typedef struct layer_norm_layer {
    lgi_cpu_layer base;
    int64_t rows;
    int64_t features;
    lgi_cpu_columns columns; /* without folding: rows are whole */
} layer_norm_layer;

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    layer_norm_layer *self = (layer_norm_layer *)layer;
    (void)spec;
    self->features = lgi_cpu_last_dim(&layer->out_shape);
    self->rows = layer->num_samples * lg_shape_num_elems(&layer->out_shape) / self->features;
    const int64_t num_pieces = self->rows / MIN_PIECE_ROWS;
    const lgi_cpu_columns columns = {
        .rows = self->rows,
        .cols = self->features,
        .fold = 1,
        .wide_cols = self->features,
        .wide_rows = self->rows,
        .num_pieces = num_pieces < 1            ? 1
                      : num_pieces > MAX_PIECES ? MAX_PIECES
                                                : num_pieces,
    };
    self->columns = columns;
    facts->is_forward_in_place = true;
    facts->is_input_grad_in_place = true;
    lgi_cpu_set_workspace(facts, LGI_PHASE_INPUT_GRAD,
                          lgi_cpu_columns_partial_elems(&columns, NUM_SUMS) *
                                  (int64_t)sizeof(float) +
                              NUM_SUMS * self->features * (int64_t)sizeof(double));
    return LG_OK;
}

/*
 * Sums over a row: CHAINS partial sums side by side, so that one addition need not wait for the one before.
 */
#define CHAINS 64

static inline __attribute__((always_inline)) float add_chains(const float *chains)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < CHAINS; i++) {
        sum += chains[i];
    }
    return sum;
}

static float row_sum(const float *x, int64_t features)
{
    float chains[CHAINS] = {0};
    int64_t c = 0;
    for (; c + CHAINS <= features; c += CHAINS) {
        LGI_CPU_SIMD
        for (int i = 0; i < CHAINS; i++) {
            chains[i] += x[c + i];
        }
    }
    for (int i = 0; c + i < features; i++) {
        chains[i] += x[c + i];
    }
    return add_chains(chains);
}

static float row_squares(const float *x, int64_t features, float mean)
{
    float chains[CHAINS] = {0};
    int64_t c = 0;
    for (; c + CHAINS <= features; c += CHAINS) {
        LGI_CPU_SIMD
        for (int i = 0; i < CHAINS; i++) {
            const float d = x[c + i] - mean;
            chains[i] += d * d;
        }
    }
    for (int i = 0; c + i < features; i++) {
        const float d = x[c + i] - mean;
        chains[i] += d * d;
    }
    return add_chains(chains);
}

/* x may be y. */
static void forward_row(const float *x, const float *restrict weight, const float *restrict bias,
                        float *y, int64_t features, float epsilon, float *stash)
{
    const float mean = row_sum(x, features) / (float)features;
    const float squares = row_squares(x, features, mean);
    const float inv = (float)(1.0 / sqrt((double)squares / (double)features + (double)epsilon));
    LGI_CPU_SIMD
    for (int64_t c = 0; c < features; c++) {
        y[c] = (x[c] - mean) * inv * weight[c] + bias[c];
    }
    if (stash != NULL) {
        stash[0] = mean;
        stash[1] = inv;
    }
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const layer_norm_layer *self = (const layer_norm_layer *)layer;
    const float *x = io->x[0];
    float *y = io->y;
    float *stash = layer->mode == LG_GRAPH_TRAIN ? io->stash[0] : NULL;
    LGI_CPU_PARALLEL_FOR(
        lgi_cpu_useful_width(layer->widths[width_idx], self->rows * self->features))
    for (int64_t r = 0; r < self->rows; r++) {
        forward_row(x + r * self->features, io->param[0], io->param[1], y + r * self->features,
                    self->features, layer->attrs->epsilon, stash != NULL ? stash + 2 * r : NULL);
    }
    return LG_OK;
}

/* With g = dy * weight: dx = inv * (g - mean(g) - xhat * mean(g * xhat)); dx may be dy or NULL. */
static void gradient_row(const float *restrict x, const float *dy, const float *restrict weight,
                         float *dx, int64_t features, float mean, float inv,
                         float *restrict weight_sums, float *restrict bias_sums)
{
    float sum = 0.0f;
    float products = 0.0f;
#pragma omp simd reduction(+ : sum, products)
    for (int64_t c = 0; c < features; c++) {
        const float xhat = (x[c] - mean) * inv;
        const float g = dy[c] * weight[c];
        sum += g;
        products += g * xhat;
        weight_sums[c] += dy[c] * xhat;
        bias_sums[c] += dy[c];
    }
    const float mean_g = sum / (float)features;
    const float mean_product = products / (float)features;
    if (dx != NULL) {
        LGI_CPU_SIMD
        for (int64_t c = 0; c < features; c++) {
            const float xhat = (x[c] - mean) * inv;
            dx[c] = inv * (dy[c] * weight[c] - mean_g - xhat * mean_product);
        }
    }
}

static lg_status run_input_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const layer_norm_layer *self = (const layer_norm_layer *)layer;
    const lgi_cpu_columns *columns = &self->columns;
    const int64_t features = self->features;
    const float *x = io->x[0];
    const float *dy = io->dy;
    const float *stash = io->stash[0];
    float *dx = io->dx != NULL ? io->dx[0] : NULL;
    float *partials = io->workspace;
    double *sums = (double *)(partials + lgi_cpu_columns_partial_elems(columns, NUM_SUMS));
    LGI_CPU_PARALLEL_FOR(
        lgi_cpu_useful_width(layer->widths[width_idx], self->rows * self->features))
    for (int64_t piece = 0; piece < columns->num_pieces; piece++) {
        float *partial = partials + piece * NUM_SUMS * features;
        memset(partial, 0, (size_t)(NUM_SUMS * features) * sizeof *partial);
        for (int64_t r = lgi_cpu_columns_begin(columns, piece);
             r < lgi_cpu_columns_begin(columns, piece + 1); r++) {
            gradient_row(x + r * features, dy + r * features, io->param[0],
                         dx != NULL ? dx + r * features : NULL, features, stash[2 * r],
                         stash[2 * r + 1], partial, partial + features);
        }
    }
    lgi_cpu_columns_finish(columns, NUM_SUMS, partials, sums);
    for (int p = 0; p < 2; p++) {
        float *dst = io->dparam[p];
        for (int64_t c = 0; dst != NULL && c < features; c++) {
            const float sum = (float)sums[p * features + c];
            dst[c] = io->accumulates_param[p] ? dst[c] + sum : sum;
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_layer_norm = {
    .layer_bytes = sizeof(layer_norm_layer),
    .prepare = prepare,
    .run = {run_forward, run_input_grad, NULL},
};
