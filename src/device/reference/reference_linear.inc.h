/*
 * Linear layers and embeddings, on REAL. Shapes: linear x [R,K], y [R,N], weight [N,K], bias [N], R: samples times
 * the outer dimensions; embeddings: ids [N,T], x, y [N,T,C], weight [V,C].
 */

static lg_status linear_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t rows = layer->num_samples * num_rows(&layer->in_shapes[0]);
    const int64_t num_in = last_dim(&layer->in_shapes[0]);
    const int64_t num_out = layer->attrs->num_outputs;
    const REAL *bias = layer->attrs->has_bias ? io->param[1] : NULL;
    for (int64_t r = 0; r < rows; r++) {
        const REAL *x = (const REAL *)io->x[0] + r * num_in;
        REAL *y = (REAL *)io->y + r * num_out;
        for (int64_t o = 0; o < num_out; o++) {
            const REAL *weight = (const REAL *)io->param[0] + o * num_in;
            const REAL sum = dot(weight, x, 1, num_in);
            y[o] = bias != NULL ? sum + bias[o] : sum;
        }
    }
    return LG_OK;
}

static lg_status linear_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t rows = layer->num_samples * num_rows(&layer->in_shapes[0]);
    const int64_t num_in = last_dim(&layer->in_shapes[0]);
    const int64_t num_out = layer->attrs->num_outputs;
    for (int64_t r = 0; r < rows; r++) {
        const REAL *dy = (const REAL *)io->dy + r * num_out;
        REAL *dx = (REAL *)io->dx[0] + r * num_in;
        for (int64_t k = 0; k < num_in; k++) {
            dx[k] = 0;
        }
        for (int64_t o = 0; o < num_out; o++) {
            const REAL *weight = (const REAL *)io->param[0] + o * num_in;
            add_scaled(dx, 1, dy[o], weight, 1, num_in);
        }
    }
    return LG_OK;
}

/*
 * The rows are added one after the other onto what dweight holds; a micro-batch's own sum would need a buffer, so with
 * `accumulates_param` the sum goes on where the micro-batch before it ended.
 */
static lg_status linear_weight_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t rows = layer->num_samples * num_rows(&layer->in_shapes[0]);
    const int64_t num_in = last_dim(&layer->in_shapes[0]);
    const int64_t num_out = layer->attrs->num_outputs;
    for (int64_t o = 0; o < num_out; o++) {
        REAL *dweight = io->dparam[0] != NULL ? (REAL *)io->dparam[0] + o * num_in : NULL;
        REAL bias_sum = 0;
        for (int64_t k = 0; k < num_in && dweight != NULL && !io->accumulates_param[0]; k++) {
            dweight[k] = 0;
        }
        for (int64_t r = 0; r < rows; r++) {
            const REAL *x = (const REAL *)io->x[0] + r * num_in;
            const REAL dy = ((const REAL *)io->dy)[r * num_out + o];
            bias_sum += dy;
            add_scaled(dweight, 1, dy, x, 1, dweight != NULL ? num_in : 0);
        }
        store_grad(io, 1, o, bias_sum);
    }
    return LG_OK;
}

static lg_status token_embedding_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t num_ids = lg_shape_num_elems(&layer->in_shapes[0]);
    const int64_t vocabulary = layer->attrs->num_embeddings;
    const int64_t features = layer->attrs->num_outputs;
    const int32_t *ids = io->x[0];
    const REAL *weight = io->param[0];
    REAL *y = io->y;
    for (int64_t i = 0; i < layer->num_samples * num_ids; i++) {
        if (ids[i] < 0 || ids[i] >= vocabulary) {
            LG_FAIL(LG_INVALID_ARG,
                    "layer '%s': id %" PRId32 " at position %" PRId64 " of sample %" PRId64
                    " is not in [0, %" PRId64 ")",
                    layer->name, ids[i], i % num_ids, io->first_sample + i / num_ids, vocabulary);
        }
        for (int64_t c = 0; c < features; c++) {
            y[i * features + c] = weight[ids[i] * features + c];
        }
    }
    return LG_OK;
}

static lg_status token_embedding_weight_grad(const lgi_reference_layer *layer,
                                             const lgi_layer_io *io)
{
    const int64_t num_ids = layer->num_samples * lg_shape_num_elems(&layer->in_shapes[0]);
    const int64_t vocabulary = layer->attrs->num_embeddings;
    const int64_t features = layer->attrs->num_outputs;
    const int32_t *ids = io->x[0];
    const REAL *dy = io->dy;
    REAL *dweight = io->dparam[0];
    for (int64_t i = 0; i < vocabulary * features && !io->accumulates_param[0]; i++) {
        dweight[i] = 0;
    }
    for (int64_t i = 0; i < num_ids; i++) {
        for (int64_t c = 0; c < features; c++) {
            dweight[ids[i] * features + c] += dy[i * features + c];
        }
    }
    return LG_OK;
}

/* The result may lie in the input's memory. */
static lg_status position_embedding_forward(const lgi_reference_layer *layer,
                                            const lgi_layer_io *io)
{
    const int64_t sample_elems = lg_shape_num_elems(&layer->out_shape);
    const REAL *x = io->x[0];
    const REAL *weight = io->param[0];
    REAL *y = io->y;
    for (int64_t n = 0; n < layer->num_samples; n++) {
        for (int64_t i = 0; i < sample_elems; i++) {
            y[n * sample_elems + i] = x[n * sample_elems + i] + weight[i];
        }
    }
    return LG_OK;
}

/* Positions that the sequences do not reach get a zero gradient. */
static lg_status position_embedding_weight_grad(const lgi_reference_layer *layer,
                                                const lgi_layer_io *io)
{
    const int64_t sample_elems = lg_shape_num_elems(&layer->out_shape);
    const int64_t weight_elems = layer->attrs->num_embeddings * last_dim(&layer->out_shape);
    const REAL *dy = io->dy;
    for (int64_t i = 0; i < weight_elems; i++) {
        REAL sum = 0;
        for (int64_t n = 0; n < layer->num_samples && i < sample_elems; n++) {
            sum += dy[n * sample_elems + i];
        }
        store_grad(io, 0, i, sum);
    }
    return LG_OK;
}
