/*
 * Multi-head attention. Shapes: packed x [N,T,3C] (q, k, v side by side, each of heads * size features), y [N,T,C], keep
 * mask [N,T], stash [N,heads,T]: logarithm of the sum of exponentials of each query's scores.
 *
 * One sample and head is one item of work, run by one thread, BLOCK queries at a time: scores of the block against the
 * keys (under a causal mask only those up to the block's last query), softmax, weighted sum of the values. The
 * probabilities are not kept: backward makes the scores again and p = exp(score - stash), as FlashAttention does (Dao et
 * al. 2022, section 3.1); the probabilities would be T times as large, and reading them takes about as long as making
 * them. Products of matrices are oneDNN's, on one thread each, so results do not depend on the width.
 */
#include <math.h>
#include <omp.h>

#include "device/cpu/cpu_dnnl.h"
#include "device/cpu/cpu_kernel.h"

#define BLOCK 64
#define LANES 16 /* of the widest vectors */

typedef struct attention_layer {
    lgi_cpu_layer base;
    int64_t tokens, features, heads, head_size;
    int64_t row_stride; /* of x */
    int64_t ld;         /* of a block of scores */
    float score_scale;
    bool has_mask;
    bool is_mask_i32;
} attention_layer;

/* One sample and head. */
typedef struct attention_item {
    int64_t sample;
    const float *q, *k, *v;
    float *scores;    /* [BLOCK, ld]; then probabilities */
    float *grads;     /* [BLOCK, ld]: backward only */
    float *mask_bias; /* [T]: 0, or minus infinity for a masked key */
    float *log_sums;  /* [T] */
} attention_item;

/* Floats of workspace for one thread. */
static int64_t thread_elems(const attention_layer *self, int num_blocks)
{
    return num_blocks * BLOCK * self->ld + self->ld;
}

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    attention_layer *self = (attention_layer *)layer;
    self->tokens = layer->out_shape.dims[0];
    self->features = layer->out_shape.dims[1];
    self->heads = layer->attrs->num_heads;
    self->head_size = self->features / self->heads;
    self->row_stride = 3 * self->features;
    self->ld = lgi_cpu_round_up(self->tokens, LANES);
    self->score_scale = 1.0f / sqrtf((float)self->head_size);
    self->has_mask = layer->num_inputs == 2;
    self->is_mask_i32 = self->has_mask && spec->in_dtypes[1] == LG_DTYPE_I32;
    if (facts->num_stashes == 1) {
        facts->stash_bytes[0] =
            layer->num_samples * self->heads * self->tokens * (int64_t)sizeof(float);
    }
    for (int w = 0; w < layer->num_widths; w++) {
        const int64_t width_bytes = layer->widths[w] * (int64_t)sizeof(float);
        facts->phases[LGI_PHASE_FORWARD].workspace_bytes[w] = thread_elems(self, 1) * width_bytes;
        facts->phases[LGI_PHASE_INPUT_GRAD].workspace_bytes[w] =
            thread_elems(self, 2) * width_bytes;
    }
    facts->phases[LGI_PHASE_INPUT_GRAD].flops *= 1.25; /* five products for two, scores again */
    return LG_OK;
}

static void fill_mask_bias(const attention_layer *self, const void *mask, int64_t sample,
                           float *bias)
{
    for (int64_t s = 0; s < self->tokens; s++) {
        const int64_t i = sample * self->tokens + s;
        const bool is_kept =
            self->is_mask_i32 ? ((const int32_t *)mask)[i] != 0 : ((const float *)mask)[i] != 0.0f;
        bias[s] = is_kept ? 0.0f : -INFINITY;
    }
}

static attention_item item_of(const attention_layer *self, const lgi_layer_io *io, int64_t idx,
                              int num_blocks)
{
    attention_item item;
    const int64_t head = idx % self->heads;
    item.sample = idx / self->heads;
    item.q = (const float *)io->x[0] + item.sample * self->tokens * self->row_stride +
             head * self->head_size;
    item.k = item.q + self->features;
    item.v = item.k + self->features;
    item.scores = (float *)io->workspace + omp_get_thread_num() * thread_elems(self, num_blocks);
    item.grads = num_blocks > 1 ? item.scores + BLOCK * self->ld : NULL;
    item.mask_bias = self->has_mask ? item.scores + num_blocks * BLOCK * self->ld : NULL;
    item.log_sums = io->stash[0] != NULL ? (float *)io->stash[0] + idx * self->tokens : NULL;
    if (item.mask_bias != NULL) {
        fill_mask_bias(self, io->x[1], item.sample, item.mask_bias);
    }
    return item;
}

/* Keys that a block of queries [begin, begin + rows) can see. */
static int64_t visible_keys(const attention_layer *self, int64_t begin, int64_t rows)
{
    return self->base.attrs->is_causal ? begin + rows : self->tokens;
}

/* Scores of a block, before masks. */
static dnnl_status_t make_scores(const attention_layer *self, const attention_item *item,
                                 int64_t begin, int64_t rows, int64_t keys)
{
    return dnnl_sgemm('N', 'T', rows, keys, self->head_size, self->score_scale,
                      item->q + begin * self->row_stride, self->row_stride, item->k,
                      self->row_stride, 0.0f, item->scores, self->ld);
}

/*
 * Makes a row of scores ready for its softmax: adds the mask, and beyond the `valid` keys sets minus infinity up to whole
 * vectors, so that the loops have no rest. Returns the rounded count, at most `ld`.
 */
static int64_t finish_scores(const attention_item *item, float *row, int64_t valid)
{
    const int64_t count = lgi_cpu_round_up(valid, LANES);
    if (item->mask_bias != NULL) {
        const float *restrict bias = item->mask_bias;
        LGI_CPU_SIMD
        for (int64_t s = 0; s < valid; s++) {
            row[s] += bias[s];
        }
    }
    for (int64_t s = valid; s < count; s++) {
        row[s] = -INFINITY;
    }
    return count;
}

/* Zeros from the last whole vector of valid keys to the end of what the products read. */
static void clear_rest(float *row, int64_t count, int64_t keys)
{
    if (count < keys) {
        memset(row + count, 0, (size_t)(keys - count) * sizeof *row);
    }
}

/* row[s] = exp(row[s] - max); returns their sum, *max is minus infinity where no key is valid (then all are 0). */
static float exponentials(float *restrict row, int64_t num_vectors, float *out_max)
{
    const int64_t count = num_vectors * LANES;
    float max = -INFINITY;
    float sum = 0.0f;
#pragma omp simd reduction(max : max)
    for (int64_t s = 0; s < count; s++) {
        max = row[s] > max ? row[s] : max;
    }
    *out_max = max;
    if (max == -INFINITY) {
        memset(row, 0, (size_t)count * sizeof *row);
        return 0.0f;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < count; s++) {
        const float e = lgi_cpu_exp(row[s] - max);
        row[s] = e;
        sum += e;
    }
    return sum;
}

/* --- forward ------------------------------------------------------------------------------------------------------- */

static dnnl_status_t forward_block(const attention_layer *self, const attention_item *item,
                                   float *y, int64_t begin, int64_t rows)
{
    const int64_t keys = visible_keys(self, begin, rows);
    float inv_sums[BLOCK];
    dnnl_status_t code = make_scores(self, item, begin, rows, keys);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t valid = self->base.attrs->is_causal ? begin + r + 1 : keys;
        float *row = item->scores + r * self->ld;
        float max = 0.0f;
        const int64_t count = finish_scores(item, row, valid);
        const float sum = exponentials(row, count / LANES, &max);
        inv_sums[r] = sum > 0.0f ? 1.0f / sum : sum;
        clear_rest(row, count, keys);
        if (item->log_sums != NULL) {
            item->log_sums[begin + r] = max == -INFINITY ? INFINITY : max + logf(sum);
        }
    }
    if (code == dnnl_success) {
        code = dnnl_sgemm('N', 'N', rows, self->head_size, keys, 1.0f, item->scores, self->ld,
                          item->v, self->row_stride, 0.0f, y, self->features);
    }
    for (int64_t r = 0; r < rows; r++) {
        LGI_CPU_SIMD
        for (int64_t i = 0; i < self->head_size; i++) {
            y[r * self->features + i] *= inv_sums[r];
        }
    }
    return code;
}

static dnnl_status_t forward_item(const attention_layer *self, const lgi_layer_io *io, int64_t idx)
{
    const attention_item item = item_of(self, io, idx, 1);
    float *y = (float *)io->y + item.sample * self->tokens * self->features +
               idx % self->heads * self->head_size;
    dnnl_status_t code = dnnl_success;
    for (int64_t begin = 0; begin < self->tokens && code == dnnl_success; begin += BLOCK) {
        const int64_t rows = self->tokens - begin < BLOCK ? self->tokens - begin : BLOCK;
        code = forward_block(self, &item, y + begin * self->features, begin, rows);
    }
    return code;
}

/* --- backward ------------------------------------------------------------------------------------------------------ */

/* From scores and dp to probabilities and ds = p * (dp - sum of p * dp) * scale, in place. */
static void gradient_row(float *restrict row, float *restrict grad, int64_t num_vectors,
                         float log_sum, float scale)
{
    const int64_t count = num_vectors * LANES;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < count; s++) {
        const float p = lgi_cpu_exp(row[s] - log_sum);
        row[s] = p;
        sum += p * grad[s];
    }
    LGI_CPU_SIMD
    for (int64_t s = 0; s < count; s++) {
        grad[s] = row[s] * (grad[s] - sum) * scale;
    }
}

/*
 * The gradients of one block of queries: sets its dq, adds to (or, with `sets`, sets) dk and dv of the keys it can see.
 * dx as x: dq of the head, dk and dv behind it.
 */
static dnnl_status_t gradient_block(const attention_layer *self, const attention_item *item,
                                    const float *dy, float *dq, int64_t begin, int64_t rows,
                                    bool sets)
{
    const int64_t keys = visible_keys(self, begin, rows);
    const int64_t size = self->head_size;
    const int64_t stride = self->row_stride;
    const float beta = sets ? 0.0f : 1.0f;
    const float *dy_block = dy + begin * self->features;
    float *dk = dq + self->features;
    float *dv = dk + self->features;
    dnnl_status_t code = make_scores(self, item, begin, rows, keys);
    if (code == dnnl_success) {
        code = dnnl_sgemm('N', 'T', rows, keys, size, 1.0f, dy_block, self->features, item->v,
                          stride, 0.0f, item->grads, self->ld);
    }
    for (int64_t r = 0; r < rows; r++) {
        const int64_t valid = self->base.attrs->is_causal ? begin + r + 1 : keys;
        float *row = item->scores + r * self->ld;
        float *grad = item->grads + r * self->ld;
        const int64_t count = finish_scores(item, row, valid);
        for (int64_t s = keys; s < count; s++) {
            grad[s] = 0.0f; /* nothing wrote it: it could be NaN */
        }
        gradient_row(row, grad, count / LANES, item->log_sums[begin + r], self->score_scale);
        clear_rest(row, count, keys);
        clear_rest(grad, count, keys);
    }
    if (code == dnnl_success) {
        code = dnnl_sgemm('T', 'N', keys, size, rows, 1.0f, item->scores, self->ld, dy_block,
                          self->features, beta, dv, stride);
    }
    if (code == dnnl_success) {
        code = dnnl_sgemm('T', 'N', keys, size, rows, 1.0f, item->grads, self->ld,
                          item->q + begin * stride, stride, beta, dk, stride);
    }
    if (code == dnnl_success) {
        code = dnnl_sgemm('N', 'N', rows, size, keys, 1.0f, item->grads, self->ld, item->k, stride,
                          0.0f, dq + begin * stride, stride);
    }
    return code;
}

/* The last block goes first: it sees all keys, so it sets dk and dv and the others add to them. */
static dnnl_status_t gradient_item(const attention_layer *self, const lgi_layer_io *io, int64_t idx)
{
    const attention_item item = item_of(self, io, idx, 2);
    const float *dy = (const float *)io->dy + item.sample * self->tokens * self->features +
                      idx % self->heads * self->head_size;
    float *dq = (float *)io->dx[0] + (item.q - (const float *)io->x[0]);
    const int64_t last = (self->tokens - 1) / BLOCK * BLOCK;
    dnnl_status_t code = dnnl_success;
    for (int64_t begin = last; begin >= 0 && code == dnnl_success; begin -= BLOCK) {
        const int64_t rows = self->tokens - begin < BLOCK ? self->tokens - begin : BLOCK;
        code = gradient_block(self, &item, dy, dq, begin, rows, begin == last);
    }
    return code;
}

/* --- the layer ----------------------------------------------------------------------------------------------------- */

typedef dnnl_status_t (*item_fn)(const attention_layer *self, const lgi_layer_io *io, int64_t idx);

/* Inside a parallel region oneDNN stays on the calling thread; outside, at width 1, it is told to. */
static lg_status run_items(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io,
                           item_fn run_item)
{
    const attention_layer *self = (const attention_layer *)layer;
    const int width = layer->widths[width_idx];
    int code = dnnl_success;
    (void)lgi_cpu_set_threads(width);
#pragma omp parallel for num_threads(width) if (width > 1) schedule(static) reduction(max : code)
    for (int64_t idx = 0; idx < layer->num_samples * self->heads; idx++) {
        const int item_code = (int)run_item(self, io, idx);
        code = item_code > code ? item_code : code;
    }
    LG_DNNL((dnnl_status_t)code, layer->name);
    return LG_OK;
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    return run_items(layer, width_idx, io, forward_item);
}

static lg_status run_input_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    return run_items(layer, width_idx, io, gradient_item);
}

const lgi_cpu_kind lgi_cpu_attention = {
    .layer_bytes = sizeof(attention_layer),
    .prepare = prepare,
    .run = {run_forward, run_input_grad, NULL},
};
