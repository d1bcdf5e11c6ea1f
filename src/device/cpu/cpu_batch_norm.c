/*
 * Batch norm, with a fused ReLU if asked for. Shapes: x, y [rows, C] with rows = samples * space (channels last), weight,
 * bias [C], stash [2C]: mean, then inverse deviation.
 *
 * FORWARD is one pass for the statistics and one that applies y = x * scale + shift. Both gradients (a joint op) are one
 * pass for the sums and one for dx. The ReLU's mask is y > 0 with y computed again from x by the same expression, which
 * reads one tensor less than looking y up. The variance is summed around the first row, not around zero: E[x^2] - E[x]^2
 * loses all digits where the mean is large against the deviation.
 */
#include <math.h>

#include "device/cpu/cpu_columns.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

#define BLOCK_COLS 64
#define INLINE static inline __attribute__((always_inline))

typedef struct batch_norm_layer {
    lgi_cpu_layer base;
    lgi_cpu_columns columns;
    bool has_relu;
} batch_norm_layer;

/* The workspace: partial sums of two quantities, their f64 sums, factors by wide column. */
typedef struct norm_buffers {
    float *partials;
    double *sums;      /* [2][C] */
    float *factors[4]; /* [wide_cols] each */
    float *narrow;     /* [C] */
} norm_buffers;

#define NUM_SUMS 2
#define NUM_FACTORS 4

static norm_buffers buffers_of(const lgi_cpu_columns *columns, void *workspace)
{
    norm_buffers result;
    const int64_t factor_elems = lgi_cpu_round_up(columns->wide_cols, 16);
    result.partials = workspace;
    result.sums = (double *)(result.partials + lgi_cpu_columns_partial_elems(columns, NUM_SUMS));
    result.factors[0] = (float *)(result.sums + lgi_cpu_round_up(NUM_SUMS * columns->cols, 8));
    for (int i = 1; i < NUM_FACTORS; i++) {
        result.factors[i] = result.factors[i - 1] + factor_elems;
    }
    result.narrow = result.factors[NUM_FACTORS - 1] + factor_elems;
    return result;
}

static int64_t workspace_bytes(const lgi_cpu_columns *columns)
{
    const int64_t num_floats = lgi_cpu_columns_partial_elems(columns, NUM_SUMS) +
                               NUM_FACTORS * lgi_cpu_round_up(columns->wide_cols, 16) +
                               columns->cols;
    return num_floats * (int64_t)sizeof(float) +
           lgi_cpu_round_up(NUM_SUMS * columns->cols, 8) * (int64_t)sizeof(double);
}

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    batch_norm_layer *self = (batch_norm_layer *)layer;
    const int64_t channels = layer->out_shape.dims[0];
    lgi_phase_facts *input_grad = &facts->phases[LGI_PHASE_INPUT_GRAD];
    self->columns =
        lgi_cpu_columns_of(layer->num_samples * lgi_cpu_map_elems(&layer->out_shape), channels);
    self->has_relu = layer->attrs->activation == LG_ACTIVATION_RELU;
    lgi_cpu_want_channels_last(facts, spec, 0);
    facts->out.id = facts->in[0].id;
    facts->is_forward_in_place = true;
    facts->is_input_grad_in_place = true;
    input_grad->reads_output = false;
    input_grad->reads_params = self->has_relu ? 3u : 1u;
    lgi_cpu_set_workspace(facts, LGI_PHASE_FORWARD, workspace_bytes(&self->columns));
    lgi_cpu_set_workspace(facts, LGI_PHASE_INPUT_GRAD, workspace_bytes(&self->columns));
    return LG_OK;
}

/* --- statistics ---------------------------------------------------------------------------------------------------- */

INLINE void add_statistics_block(const float *restrict x, const float *restrict center,
                                 int64_t rows, int64_t stride, int64_t cols, float *restrict sums,
                                 float *restrict squares)
{
    float s[BLOCK_COLS];
    float q[BLOCK_COLS];
    LGI_CPU_SIMD
    for (int64_t c = 0; c < cols; c++) {
        s[c] = sums[c];
        q[c] = squares[c];
    }
    for (int64_t r = 0; r < rows; r++) {
        LGI_CPU_SIMD
        for (int64_t c = 0; c < cols; c++) {
            const float d = x[r * stride + c] - center[c];
            s[c] += d;
            q[c] += d * d;
        }
    }
    LGI_CPU_SIMD
    for (int64_t c = 0; c < cols; c++) {
        sums[c] = s[c];
        squares[c] = q[c];
    }
}

static void add_statistics(const float *x, const float *center, int64_t rows, int64_t stride,
                           int64_t cols, float *sums, float *squares)
{
    int64_t c = 0;
    for (; c + BLOCK_COLS <= cols; c += BLOCK_COLS) {
        add_statistics_block(x + c, center + c, rows, stride, BLOCK_COLS, sums + c, squares + c);
    }
    if (c < cols) {
        add_statistics_block(x + c, center + c, rows, stride, cols - c, sums + c, squares + c);
    }
}

/* Mean and inverse deviation of each channel into the stash. */
static void compute_statistics(const batch_norm_layer *self, int width, const float *x,
                               const norm_buffers *buffers, float *stash)
{
    const lgi_cpu_columns *columns = &self->columns;
    const int64_t wide_cols = columns->wide_cols;
    const int64_t channels = columns->cols;
    float *center = buffers->factors[0];
    lgi_cpu_columns_repeat(columns, x, center);
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t piece = 0; piece < columns->num_pieces; piece++) {
        const int64_t begin = lgi_cpu_columns_begin(columns, piece);
        const int64_t end = lgi_cpu_columns_begin(columns, piece + 1);
        float *sums = buffers->partials + piece * NUM_SUMS * wide_cols;
        memset(sums, 0, (size_t)(NUM_SUMS * wide_cols) * sizeof *sums);
        add_statistics(x + begin * wide_cols, center, end - begin, wide_cols, wide_cols, sums,
                       sums + wide_cols);
        if (piece + 1 == columns->num_pieces) {
            add_statistics(x + end * wide_cols, center, 1, wide_cols, columns->rest_elems, sums,
                           sums + wide_cols);
        }
    }
    lgi_cpu_columns_finish(columns, NUM_SUMS, buffers->partials, buffers->sums);
    for (int64_t c = 0; c < channels; c++) {
        const double offset = buffers->sums[c] / (double)columns->rows;
        const double raw = buffers->sums[channels + c] / (double)columns->rows - offset * offset;
        const double variance = raw < 0.0 ? 0.0 : raw;
        stash[c] = (float)((double)x[c] + offset);
        stash[channels + c] = (float)(1.0 / sqrt(variance + (double)self->base.attrs->epsilon));
    }
}

/* --- forward ------------------------------------------------------------------------------------------------------- */

/* One expression for FORWARD and for the mask in backward. */
INLINE float apply(float x, float scale, float shift)
{
    return x * scale + shift;
}

INLINE void apply_rows(const float *x, float *y, const float *restrict scale,
                       const float *restrict shift, int64_t rows, int64_t cols, bool has_relu)
{
    for (int64_t r = 0; r < rows; r++) {
        LGI_CPU_SIMD
        for (int64_t c = 0; c < cols; c++) {
            const float value = apply(x[r * cols + c], scale[c], shift[c]);
            y[r * cols + c] = has_relu ? lgi_cpu_relu(value) : value;
        }
    }
}

static void apply_piece(const float *x, float *y, const float *scale, const float *shift,
                        int64_t rows, int64_t cols, bool has_relu)
{
    if (has_relu) {
        apply_rows(x, y, scale, shift, rows, cols, true);
    } else {
        apply_rows(x, y, scale, shift, rows, cols, false);
    }
}

/* Factors 0 and 1: y = x * scale + shift, by wide column. */
static void make_scale_and_shift(const lgi_cpu_columns *columns, const float *mean,
                                 const float *inv_deviation, const float *weight, const float *bias,
                                 const norm_buffers *buffers)
{
    float *narrow = buffers->narrow;
    for (int64_t c = 0; c < columns->cols; c++) {
        narrow[c] = weight[c] * inv_deviation[c];
    }
    lgi_cpu_columns_repeat(columns, narrow, buffers->factors[0]);
    for (int64_t c = 0; c < columns->cols; c++) {
        narrow[c] = bias[c] - mean[c] * narrow[c];
    }
    lgi_cpu_columns_repeat(columns, narrow, buffers->factors[1]);
}

/* The workspace has room for running statistics as inverse deviations: factor 2. */
static const float *inverse_running_deviation(const batch_norm_layer *self, const float *variance,
                                              const norm_buffers *buffers)
{
    float *result = buffers->factors[2];
    for (int64_t c = 0; c < self->columns.cols; c++) {
        result[c] = (float)(1.0 / sqrt((double)variance[c] + (double)self->base.attrs->epsilon));
    }
    return result;
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const batch_norm_layer *self = (const batch_norm_layer *)layer;
    const lgi_cpu_columns *columns = &self->columns;
    const int width = lgi_cpu_useful_width(layer->widths[width_idx], columns->rows * columns->cols);
    const int64_t wide_cols = columns->wide_cols;
    const norm_buffers buffers = buffers_of(columns, io->workspace);
    const float *x = io->x[0];
    float *y = io->y;
    if (layer->mode == LG_GRAPH_TRAIN) {
        float *stash = io->stash[0];
        compute_statistics(self, width, x, &buffers, stash);
        make_scale_and_shift(columns, stash, stash + columns->cols, io->param[0], io->param[1],
                             &buffers);
    } else {
        make_scale_and_shift(columns, io->state[0],
                             inverse_running_deviation(self, io->state[1], &buffers), io->param[0],
                             io->param[1], &buffers);
    }
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t piece = 0; piece < columns->num_pieces; piece++) {
        const int64_t begin = lgi_cpu_columns_begin(columns, piece);
        const int64_t end = lgi_cpu_columns_begin(columns, piece + 1);
        apply_piece(x + begin * wide_cols, y + begin * wide_cols, buffers.factors[0],
                    buffers.factors[1], end - begin, wide_cols, self->has_relu);
        if (piece + 1 == columns->num_pieces) {
            apply_piece(x + end * wide_cols, y + end * wide_cols, buffers.factors[0],
                        buffers.factors[1], 1, columns->rest_elems, self->has_relu);
        }
    }
    return LG_OK;
}

/* --- backward ------------------------------------------------------------------------------------------------------ */

/* Sums of g and of g * (x - mean), g being dy behind the ReLU's mask. factors: scale, shift, mean. */
INLINE void add_gradients_block(const float *restrict x, const float *restrict dy,
                                float *const *factors, int64_t at, int64_t rows, int64_t stride,
                                int64_t cols, bool has_relu, float *restrict sums,
                                float *restrict products)
{
    const float *restrict scale = factors[0] + at;
    const float *restrict shift = factors[1] + at;
    const float *restrict mean = factors[2] + at;
    float s[BLOCK_COLS];
    float p[BLOCK_COLS];
    LGI_CPU_SIMD
    for (int64_t c = 0; c < cols; c++) {
        s[c] = sums[c];
        p[c] = products[c];
    }
    for (int64_t r = 0; r < rows; r++) {
        LGI_CPU_SIMD
        for (int64_t c = 0; c < cols; c++) {
            const float value = x[r * stride + c];
            const float grad = dy[r * stride + c];
            const float g = has_relu && !(apply(value, scale[c], shift[c]) > 0.0f) ? 0.0f : grad;
            s[c] += g;
            p[c] += g * (value - mean[c]);
        }
    }
    LGI_CPU_SIMD
    for (int64_t c = 0; c < cols; c++) {
        sums[c] = s[c];
        products[c] = p[c];
    }
}

INLINE void add_gradients(const float *x, const float *dy, float *const *factors, int64_t rows,
                          int64_t stride, int64_t cols, bool has_relu, float *sums, float *products)
{
    int64_t c = 0;
    for (; c + BLOCK_COLS <= cols; c += BLOCK_COLS) {
        add_gradients_block(x + c, dy + c, factors, c, rows, stride, BLOCK_COLS, has_relu, sums + c,
                            products + c);
    }
    if (c < cols) {
        add_gradients_block(x + c, dy + c, factors, c, rows, stride, cols - c, has_relu, sums + c,
                            products + c);
    }
}

static void add_piece_gradients(const float *x, const float *dy, float *const *factors,
                                int64_t rows, int64_t stride, int64_t cols, bool has_relu,
                                float *sums)
{
    if (has_relu) {
        add_gradients(x, dy, factors, rows, stride, cols, true, sums, sums + stride);
    } else {
        add_gradients(x, dy, factors, rows, stride, cols, false, sums, sums + stride);
    }
}

static void sum_gradients(const batch_norm_layer *self, int width, const float *x, const float *dy,
                          const norm_buffers *buffers)
{
    const lgi_cpu_columns *columns = &self->columns;
    const int64_t wide_cols = columns->wide_cols;
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t piece = 0; piece < columns->num_pieces; piece++) {
        const int64_t begin = lgi_cpu_columns_begin(columns, piece) * wide_cols;
        const int64_t end = lgi_cpu_columns_begin(columns, piece + 1) * wide_cols;
        float *sums = buffers->partials + piece * NUM_SUMS * wide_cols;
        memset(sums, 0, (size_t)(NUM_SUMS * wide_cols) * sizeof *sums);
        add_piece_gradients(x + begin, dy + begin, buffers->factors, (end - begin) / wide_cols,
                            wide_cols, wide_cols, self->has_relu, sums);
        if (piece + 1 == columns->num_pieces) {
            add_piece_gradients(x + end, dy + end, buffers->factors, 1, wide_cols,
                                columns->rest_elems, self->has_relu, sums);
        }
    }
    lgi_cpu_columns_finish(columns, NUM_SUMS, buffers->partials, buffers->sums);
}

/* dx = g * scale + x * factor[2] + factor[3]; dx may be dy. */
INLINE void gradient_rows(const float *x, const float *dy, float *dx, float *const *factors,
                          int64_t rows, int64_t cols, bool has_relu)
{
    const float *restrict scale = factors[0];
    const float *restrict shift = factors[1];
    const float *restrict slope = factors[2];
    const float *restrict offset = factors[3];
    for (int64_t r = 0; r < rows; r++) {
        LGI_CPU_SIMD
        for (int64_t c = 0; c < cols; c++) {
            const float value = x[r * cols + c];
            const float grad = dy[r * cols + c];
            const float g = has_relu && !(apply(value, scale[c], shift[c]) > 0.0f) ? 0.0f : grad;
            dx[r * cols + c] = g * scale[c] + (value * slope[c] + offset[c]);
        }
    }
}

static void gradient_piece(const float *x, const float *dy, float *dx, float *const *factors,
                           int64_t rows, int64_t cols, bool has_relu)
{
    if (has_relu) {
        gradient_rows(x, dy, dx, factors, rows, cols, true);
    } else {
        gradient_rows(x, dy, dx, factors, rows, cols, false);
    }
}

/*
 * dx = scale * (g - mean(g) - xhat * mean(g * xhat)) as factors of g, x and 1: with xhat = (x - mean) * inv, the factor of
 * x is -scale * inv * mean(g * xhat).
 */
static void make_input_grad_factors(const lgi_cpu_columns *columns, const float *stash,
                                    const float *weight, const norm_buffers *buffers)
{
    const int64_t channels = columns->cols;
    const double count = (double)columns->rows;
    float *narrow = buffers->narrow;
    for (int64_t c = 0; c < channels; c++) {
        const double inv = (double)stash[channels + c];
        narrow[c] =
            (float)(-(double)weight[c] * inv * inv * inv * buffers->sums[channels + c] / count);
    }
    lgi_cpu_columns_repeat(columns, narrow, buffers->factors[2]);
    for (int64_t c = 0; c < channels; c++) {
        const double scale = (double)weight[c] * (double)stash[channels + c];
        narrow[c] =
            (float)(-scale * buffers->sums[c] / count - (double)stash[c] * (double)narrow[c]);
    }
    lgi_cpu_columns_repeat(columns, narrow, buffers->factors[3]);
}

static void store_param_grads(const lgi_cpu_columns *columns, const float *stash,
                              const norm_buffers *buffers, const lgi_layer_io *io)
{
    const int64_t channels = columns->cols;
    for (int p = 0; p < 2; p++) {
        float *dst = io->dparam[p];
        for (int64_t c = 0; dst != NULL && c < channels; c++) {
            const double sum = p == 0 ? buffers->sums[channels + c] * (double)stash[channels + c]
                                      : buffers->sums[c];
            dst[c] = io->accumulates_param[p] ? dst[c] + (float)sum : (float)sum;
        }
    }
}

static lg_status run_input_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const batch_norm_layer *self = (const batch_norm_layer *)layer;
    const lgi_cpu_columns *columns = &self->columns;
    const int width = lgi_cpu_useful_width(layer->widths[width_idx], columns->rows * columns->cols);
    const int64_t wide_cols = columns->wide_cols;
    const norm_buffers buffers = buffers_of(columns, io->workspace);
    const float *x = io->x[0];
    const float *dy = io->dy;
    const float *stash = io->stash[0];
    float *dx = io->dx != NULL ? io->dx[0] : NULL;
    make_scale_and_shift(columns, stash, stash + columns->cols, io->param[0],
                         self->has_relu ? io->param[1] : stash, &buffers);
    lgi_cpu_columns_repeat(columns, stash, buffers.factors[2]);
    sum_gradients(self, width, x, dy, &buffers);
    store_param_grads(columns, stash, &buffers, io);
    if (dx == NULL) {
        return LG_OK;
    }
    make_input_grad_factors(columns, stash, io->param[0], &buffers);
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t piece = 0; piece < columns->num_pieces; piece++) {
        const int64_t begin = lgi_cpu_columns_begin(columns, piece) * wide_cols;
        const int64_t end = lgi_cpu_columns_begin(columns, piece + 1) * wide_cols;
        gradient_piece(x + begin, dy + begin, dx + begin, buffers.factors,
                       (end - begin) / wide_cols, wide_cols, self->has_relu);
        if (piece + 1 == columns->num_pieces) {
            gradient_piece(x + end, dy + end, dx + end, buffers.factors, 1, columns->rest_elems,
                           self->has_relu);
        }
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_batch_norm = {
    .layer_bytes = sizeof(batch_norm_layer),
    .prepare = prepare,
    .run = {run_forward, run_input_grad, NULL},
};
