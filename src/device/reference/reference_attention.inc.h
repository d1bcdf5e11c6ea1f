/*
 * Multi-head attention, on REAL. Shapes: packed x [N,T,3C] (q, k, v side by side, each of heads * size features),
 * y [N,T,C], stash: probabilities [N,heads,T,T], keep mask [N,T].
 *
 * y(t) = sum over keys s of p(t,s) v(s), p(t,.) = softmax of q(t).k(s) / sqrt(size) over the valid keys: those that the
 * mask keeps and, if causal, that do not lie after t. A query of a padded position is computed like any other (nobody
 * reads it); a query without any valid key gives zeros and passes no gradient.
 *
 * Scores are computed twice rather than kept, so that nothing but the stash is needed.
 */

typedef struct attention_dims {
    int64_t num_samples, tokens, features, heads, head_size;
    REAL score_scale;
    bool is_causal;
    const void *mask; /* [N,T] or NULL */
    bool is_mask_i32;
} attention_dims;

/* One sample and head: rows of q, k, v, `row_stride` apart. */
typedef struct attention_head {
    const REAL *q, *k, *v;
    int64_t row_stride;
    int64_t sample;
} attention_head;

static attention_dims attention_dims_of(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t features = layer->out_shape.dims[1];
    const int64_t head_size = features / layer->attrs->num_heads;
    const bool has_mask = layer->num_inputs == 2;
    const attention_dims dims = {.num_samples = layer->num_samples,
                                 .tokens = layer->out_shape.dims[0],
                                 .features = features,
                                 .heads = layer->attrs->num_heads,
                                 .head_size = head_size,
                                 .score_scale = 1 / sqrt((REAL)head_size),
                                 .is_causal = layer->attrs->is_causal,
                                 .mask = has_mask ? io->x[1] : NULL,
                                 .is_mask_i32 = has_mask && layer->in_dtypes[1] == LG_DTYPE_I32};
    return dims;
}

static attention_head attention_head_of(const attention_dims *dims, const REAL *x, int64_t n,
                                        int64_t head)
{
    const REAL *q = x + n * dims->tokens * 3 * dims->features + head * dims->head_size;
    const attention_head result = {q, q + dims->features, q + 2 * dims->features,
                                   3 * dims->features, n};
    return result;
}

static bool is_valid_key(const attention_dims *dims, int64_t n, int64_t t, int64_t s)
{
    if (dims->is_causal && s > t) {
        return false;
    }
    const int64_t i = n * dims->tokens + s;
    return dims->mask == NULL || (dims->is_mask_i32 ? ((const int32_t *)dims->mask)[i] != 0
                                                    : ((const REAL *)dims->mask)[i] != 0);
}

static REAL attention_score(const attention_dims *dims, const attention_head *head, int64_t t,
                            int64_t s)
{
    return dims->score_scale *
           dot(head->q + t * head->row_stride, head->k + s * head->row_stride, 1, dims->head_size);
}

/* One query: writes y(t) and, where `prob` is not NULL, p(t,.). */
static void attention_query(const attention_dims *dims, const attention_head *head, int64_t t,
                            REAL *y, REAL *prob)
{
    REAL max_score = -INFINITY;
    REAL sum = 0;
    for (int64_t s = 0; s < dims->tokens; s++) {
        if (is_valid_key(dims, head->sample, t, s)) {
            const REAL score = attention_score(dims, head, t, s);
            max_score = score > max_score ? score : max_score;
        }
    }
    for (int64_t i = 0; i < dims->head_size; i++) {
        y[i] = 0;
    }
    for (int64_t s = 0; s < dims->tokens; s++) {
        REAL weight = 0;
        if (is_valid_key(dims, head->sample, t, s)) {
            weight = exp(attention_score(dims, head, t, s) - max_score);
            sum += weight;
            for (int64_t i = 0; i < dims->head_size; i++) {
                y[i] += weight * head->v[s * head->row_stride + i];
            }
        }
        if (prob != NULL) {
            prob[s] = weight;
        }
    }
    const REAL inv_sum = sum > 0 ? 1 / sum : 0;
    for (int64_t i = 0; i < dims->head_size; i++) {
        y[i] *= inv_sum;
    }
    for (int64_t s = 0; s < dims->tokens && prob != NULL; s++) {
        prob[s] *= inv_sum;
    }
}

static lg_status attention_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const attention_dims dims = attention_dims_of(layer, io);
    REAL *prob = io->stash[0];
    for (int64_t n = 0; n < dims.num_samples; n++) {
        for (int64_t h = 0; h < dims.heads; h++) {
            const attention_head head = attention_head_of(&dims, io->x[0], n, h);
            for (int64_t t = 0; t < dims.tokens; t++) {
                REAL *y = (REAL *)io->y + (n * dims.tokens + t) * dims.features;
                attention_query(&dims, &head, t, y + h * dims.head_size, prob);
                prob = prob != NULL ? prob + dims.tokens : NULL;
            }
        }
    }
    return LG_OK;
}

/*
 * One query: with dp(s) = dy(t).v(s) and ds(s) = p(s) * (dp(s) - sum of p * dp), adds p(s) dy(t) to dv(s), ds(s) q(t)
 * to dk(s) and ds(s) k(s) to dq(t), both times the score scale. `dq` points to the head's q gradients as head->q does to
 * q; those of k and v lie behind it.
 */
static void attention_query_grad(const attention_dims *dims, const attention_head *head, int64_t t,
                                 const REAL *prob, const REAL *dy, REAL *dq)
{
    REAL *dk = dq + dims->features;
    REAL *dv = dq + 2 * dims->features;
    REAL mean_dp = 0;
    for (int64_t s = 0; s < dims->tokens; s++) {
        mean_dp += prob[s] * dot(dy, head->v + s * head->row_stride, 1, dims->head_size);
    }
    for (int64_t s = 0; s < dims->tokens; s++) {
        const int64_t row = s * head->row_stride;
        const int64_t query_row = t * head->row_stride;
        const REAL dp = dot(dy, head->v + row, 1, dims->head_size);
        const REAL ds = prob[s] * (dp - mean_dp) * dims->score_scale;
        for (int64_t i = 0; i < dims->head_size; i++) {
            dv[row + i] += prob[s] * dy[i];
            dk[row + i] += ds * head->q[query_row + i];
            dq[query_row + i] += ds * head->k[row + i];
        }
    }
}

static lg_status attention_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const attention_dims dims = attention_dims_of(layer, io);
    const REAL *prob = io->stash[0];
    REAL *dx = io->dx[0];
    for (int64_t i = 0; i < dims.num_samples * dims.tokens * 3 * dims.features; i++) {
        dx[i] = 0;
    }
    for (int64_t n = 0; n < dims.num_samples; n++) {
        for (int64_t h = 0; h < dims.heads; h++) {
            const attention_head head = attention_head_of(&dims, io->x[0], n, h);
            REAL *dq = dx + (head.q - (const REAL *)io->x[0]);
            for (int64_t t = 0; t < dims.tokens; t++) {
                const REAL *dy = (const REAL *)io->dy + (n * dims.tokens + t) * dims.features;
                attention_query_grad(&dims, &head, t, prob, dy + h * dims.head_size, dq);
                prob += dims.tokens;
            }
        }
    }
    return LG_OK;
}
