/*
 * Batch norm and layer norm, on REAL; statistics and gradient sums in f64. Shapes: batch norm x, y [N,C,S], layer norm
 * [R,C], weight and bias [C]. xhat = (x - mean) * inv_std. Both make the input gradient and the weight gradients in
 * one pass (joint): the sums that dx needs are the weight gradients.
 */

static REAL inverse_deviation(double variance, float epsilon)
{
    return (REAL)(1.0 / sqrt(variance + (double)epsilon));
}

/* --- batch norm: stash [2C]: mean by channel, then inverse deviation by channel -------------------------------------- */

typedef struct batch_norm_dims {
    int64_t num_samples, channels, space;
    bool is_relu_fused;
} batch_norm_dims;

static batch_norm_dims batch_norm_dims_of(const lgi_reference_layer *layer)
{
    const int64_t channels = layer->out_shape.dims[0];
    const batch_norm_dims dims = {layer->num_samples, channels,
                                  lg_shape_num_elems(&layer->out_shape) / channels,
                                  layer->attrs->activation == LG_ACTIVATION_RELU};
    return dims;
}

static void batch_norm_statistics(const batch_norm_dims *dims, const REAL *x, int64_t c,
                                  double *mean, double *variance)
{
    const double count = (double)(dims->num_samples * dims->space);
    double sum = 0.0;
    double sum_squares = 0.0;
    for (int64_t n = 0; n < dims->num_samples; n++) {
        const REAL *map = x + (n * dims->channels + c) * dims->space;
        for (int64_t s = 0; s < dims->space; s++) {
            sum += (double)map[s];
        }
    }
    *mean = sum / count;
    for (int64_t n = 0; n < dims->num_samples; n++) {
        const REAL *map = x + (n * dims->channels + c) * dims->space;
        for (int64_t s = 0; s < dims->space; s++) {
            const double deviation = (double)map[s] - *mean;
            sum_squares += deviation * deviation;
        }
    }
    *variance = sum_squares / count;
}

static lg_status batch_norm_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const batch_norm_dims dims = batch_norm_dims_of(layer);
    const REAL *x = io->x[0];
    const REAL *weight = io->param[0];
    const REAL *bias = io->param[1];
    for (int64_t c = 0; c < dims.channels; c++) {
        REAL mean;
        REAL inv_std;
        if (layer->mode == LG_GRAPH_TRAIN) {
            double batch_mean;
            double batch_variance;
            batch_norm_statistics(&dims, x, c, &batch_mean, &batch_variance);
            REAL *stash = io->stash[0];
            stash[c] = mean = (REAL)batch_mean;
            stash[dims.channels + c] = inv_std =
                inverse_deviation(batch_variance, layer->attrs->epsilon);
        } else {
            mean = ((const REAL *)io->state[0])[c];
            inv_std =
                inverse_deviation((double)((const REAL *)io->state[1])[c], layer->attrs->epsilon);
        }
        for (int64_t n = 0; n < dims.num_samples; n++) {
            const int64_t map = (n * dims.channels + c) * dims.space;
            for (int64_t i = map; i < map + dims.space; i++) {
                const REAL y = (x[i] - mean) * inv_std * weight[c] + bias[c];
                ((REAL *)io->y)[i] = dims.is_relu_fused ? relu(y) : y;
            }
        }
    }
    return LG_OK;
}

/* dx = weight * inv_std * (g - mean(g) - xhat * mean(g * xhat)); dweight = sum(g * xhat); dbias = sum(g). */
static lg_status batch_norm_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const batch_norm_dims dims = batch_norm_dims_of(layer);
    const REAL *x = io->x[0];
    const REAL *stash = io->stash[0];
    const bool is_fused = dims.is_relu_fused;
    const double count = (double)(dims.num_samples * dims.space);
    REAL *dx = io->dx[0];
    for (int64_t c = 0; c < dims.channels; c++) {
        const REAL mean = stash[c];
        const REAL inv_std = stash[dims.channels + c];
        double sum = 0.0;
        double sum_xhat = 0.0;
        for (int64_t n = 0; n < dims.num_samples; n++) {
            const int64_t map = (n * dims.channels + c) * dims.space;
            for (int64_t i = map; i < map + dims.space; i++) {
                const double grad = (double)unfused_grad(io->dy, io->y, is_fused, i);
                sum += grad;
                sum_xhat += grad * (double)((x[i] - mean) * inv_std);
            }
        }
        const REAL scale = ((const REAL *)io->param[0])[c] * inv_std;
        const REAL mean_grad = (REAL)(sum / count);
        const REAL mean_grad_xhat = (REAL)(sum_xhat / count);
        for (int64_t n = 0; n < dims.num_samples && dx != NULL; n++) {
            const int64_t map = (n * dims.channels + c) * dims.space;
            for (int64_t i = map; i < map + dims.space; i++) {
                const REAL grad = unfused_grad(io->dy, io->y, is_fused, i);
                const REAL xhat = (x[i] - mean) * inv_std;
                dx[i] = scale * (grad - mean_grad - xhat * mean_grad_xhat);
            }
        }
        store_grad(io, 0, c, (REAL)sum_xhat);
        store_grad(io, 1, c, (REAL)sum);
    }
    return LG_OK;
}

/* --- layer norm: stash [R,2]: mean and inverse deviation of each row --------------------------------------------------- */

static void layer_norm_statistics(const REAL *x, int64_t features, double *mean, double *variance)
{
    double sum = 0.0;
    double sum_squares = 0.0;
    for (int64_t c = 0; c < features; c++) {
        sum += (double)x[c];
    }
    *mean = sum / (double)features;
    for (int64_t c = 0; c < features; c++) {
        const double deviation = (double)x[c] - *mean;
        sum_squares += deviation * deviation;
    }
    *variance = sum_squares / (double)features;
}

static lg_status layer_norm_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t rows = layer->num_samples * num_rows(&layer->out_shape);
    const int64_t features = last_dim(&layer->out_shape);
    const REAL *weight = io->param[0];
    const REAL *bias = io->param[1];
    REAL *stash = io->stash[0];
    for (int64_t r = 0; r < rows; r++) {
        const REAL *x = (const REAL *)io->x[0] + r * features;
        REAL *y = (REAL *)io->y + r * features;
        double row_mean;
        double row_variance;
        layer_norm_statistics(x, features, &row_mean, &row_variance);
        const REAL mean = (REAL)row_mean;
        const REAL inv_std = inverse_deviation(row_variance, layer->attrs->epsilon);
        if (stash != NULL) {
            stash[2 * r] = mean;
            stash[2 * r + 1] = inv_std;
        }
        for (int64_t c = 0; c < features; c++) {
            y[c] = (x[c] - mean) * inv_std * weight[c] + bias[c];
        }
    }
    return LG_OK;
}

static void layer_norm_weight_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t rows = layer->num_samples * num_rows(&layer->out_shape);
    const int64_t features = last_dim(&layer->out_shape);
    const REAL *x = io->x[0];
    const REAL *dy = io->dy;
    const REAL *stash = io->stash[0];
    for (int64_t c = 0; c < features; c++) {
        double sum = 0.0;
        double sum_xhat = 0.0;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t i = r * features + c;
            sum += (double)dy[i];
            sum_xhat += (double)dy[i] * (double)((x[i] - stash[2 * r]) * stash[2 * r + 1]);
        }
        store_grad(io, 0, c, (REAL)sum_xhat);
        store_grad(io, 1, c, (REAL)sum);
    }
}

/* With g = dy * weight, by row: dx = inv_std * (g - mean(g) - xhat * mean(g * xhat)). */
static lg_status layer_norm_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t rows = layer->num_samples * num_rows(&layer->out_shape);
    const int64_t features = last_dim(&layer->out_shape);
    const REAL *weight = io->param[0];
    const REAL *stash = io->stash[0];
    layer_norm_weight_grad(layer, io); /* first: dx may be wanted in the memory of dy */
    for (int64_t r = 0; r < rows && io->dx[0] != NULL; r++) {
        const REAL *x = (const REAL *)io->x[0] + r * features;
        const REAL *dy = (const REAL *)io->dy + r * features;
        REAL *dx = (REAL *)io->dx[0] + r * features;
        const REAL mean = stash[2 * r];
        const REAL inv_std = stash[2 * r + 1];
        double sum = 0.0;
        double sum_xhat = 0.0;
        for (int64_t c = 0; c < features; c++) {
            const double grad = (double)(dy[c] * weight[c]);
            sum += grad;
            sum_xhat += grad * (double)((x[c] - mean) * inv_std);
        }
        const REAL mean_grad = (REAL)(sum / (double)features);
        const REAL mean_grad_xhat = (REAL)(sum_xhat / (double)features);
        for (int64_t c = 0; c < features; c++) {
            const REAL xhat = (x[c] - mean) * inv_std;
            dx[c] = inv_std * (dy[c] * weight[c] - mean_grad - xhat * mean_grad_xhat);
        }
    }
    return LG_OK;
}
