/*
 * Activations and dropout, elementwise, on REAL; results may lie in the memory of input 0, input gradients in that of
 * dy. At a corner of a piecewise linear function the derivative is the one of the flat side.
 */

static REAL relu6(REAL x)
{
    return x < 0 ? 0 : x > 6 ? 6 : x;
}

/* Distribution and density of the standard normal. */
static REAL normal_cdf(REAL x)
{
    return (REAL)0.5 * (1 + erf(x * (REAL)0.70710678118654752440));
}

static REAL normal_pdf(REAL x)
{
    return (REAL)0.39894228040143267794 * exp((REAL)-0.5 * x * x);
}

/* tanh(sqrt(2/pi) * (x + 0.044715 x^3)) of the tanh approximation of GELU. */
static REAL gelu_tanh_inner(REAL x)
{
    return tanh((REAL)0.79788456080286535588 * (x + (REAL)0.044715 * x * x * x));
}

static REAL activate(lg_activation activation, REAL x)
{
    switch (activation) {
    case LG_ACTIVATION_RELU:
        return relu(x);
    case LG_ACTIVATION_RELU6:
        return relu6(x);
    case LG_ACTIVATION_HARD_SWISH:
        return x * relu6(x + 3) / 6;
    case LG_ACTIVATION_HARD_SIGMOID:
        return relu6(x + 3) / 6;
    case LG_ACTIVATION_GELU_ERF:
        return x * normal_cdf(x);
    case LG_ACTIVATION_GELU_TANH:
        return (REAL)0.5 * x * (1 + gelu_tanh_inner(x));
    default:
        return x;
    }
}

/* The derivative; `x` is the input, but the result for RELU and RELU6, whose derivative it tells as well. */
static REAL activation_slope(lg_activation activation, REAL x)
{
    switch (activation) {
    case LG_ACTIVATION_RELU:
        return x > 0 ? 1 : 0;
    case LG_ACTIVATION_RELU6:
        return x > 0 && x < 6 ? 1 : 0;
    case LG_ACTIVATION_HARD_SWISH:
        return x <= -3 ? 0 : x >= 3 ? 1 : (2 * x + 3) / 6;
    case LG_ACTIVATION_HARD_SIGMOID:
        return x > -3 && x < 3 ? (REAL)1 / 6 : 0;
    case LG_ACTIVATION_GELU_ERF:
        return normal_cdf(x) + x * normal_pdf(x);
    case LG_ACTIVATION_GELU_TANH: {
        const REAL t = gelu_tanh_inner(x);
        const REAL inner_slope = (REAL)0.79788456080286535588 * (1 + (REAL)0.134145 * x * x);
        return (REAL)0.5 * (1 + t) + (REAL)0.5 * x * (1 - t * t) * inner_slope;
    }
    default:
        return 1;
    }
}

static lg_status activation_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    const REAL *x = io->x[0];
    REAL *y = io->y;
    for (int64_t i = 0; i < num_elems; i++) {
        y[i] = activate(layer->attrs->activation, x[i]);
    }
    return LG_OK;
}

static lg_status activation_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    const lg_activation activation = layer->attrs->activation;
    const bool is_by_output = activation == LG_ACTIVATION_RELU || activation == LG_ACTIVATION_RELU6;
    const REAL *at = is_by_output ? io->y : io->x[0];
    const REAL *dy = io->dy;
    REAL *dx = io->dx[0];
    for (int64_t i = 0; i < num_elems; i++) {
        dx[i] = dy[i] * activation_slope(activation, at[i]);
    }
    return LG_OK;
}

/*
 * dst = src * mask / (1 - p). Element i (row-major) of a sample stays if number i of the stream (layer, step, sample
 * within the step) is at least p, so the mask is the same for every backend, layout and division into micro-batches.
 */
static void dropout_apply(const lgi_reference_layer *layer, const lgi_layer_io *io, REAL *dst,
                          const REAL *src)
{
    const int64_t sample_elems = lg_shape_num_elems(&layer->out_shape);
    const float drop_prob = layer->mode == LG_GRAPH_TRAIN ? layer->attrs->drop_prob : 0.0f;
    const REAL scale = 1 / (1 - (REAL)drop_prob);
    for (int64_t n = 0; n < layer->num_samples; n++) {
        const lgi_random random =
            lgi_random_stream(io->step->seed, LGI_RANDOM_DROPOUT, layer->random_key,
                              (uint64_t)io->step->number, (uint64_t)(io->first_sample + n));
        for (int64_t i = 0; i < sample_elems; i++) {
            const bool is_kept = lgi_random_uniform(&random, (uint64_t)i) >= drop_prob;
            const int64_t at = n * sample_elems + i;
            dst[at] = is_kept ? src[at] * scale : 0;
        }
    }
}

static lg_status dropout_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    dropout_apply(layer, io, io->y, io->x[0]);
    return LG_OK;
}

static lg_status dropout_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    dropout_apply(layer, io, io->dx[0], io->dy);
    return LG_OK;
}
