/*
 * Activations: elementwise over flat memory, in whichever layout the input comes; results may lie in the input's memory,
 * input gradients in that of dy. At a corner of a piecewise linear function the derivative is the one of the flat side.
 */
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

#define INLINE static inline __attribute__((always_inline))

/* --- the functions ------------------------------------------------------------------------------------------------- */

INLINE float relu6(float x)
{
    const float low = x < 0.0f ? 0.0f : x;
    return low > 6.0f ? 6.0f : low;
}

/*
 * The normal distribution's tail, upper(|x|) = erfc(|x|/sqrt(2))/2, and density, both from one exponential. The scaled
 * tail erfcx(t) = exp(t^2) erfc(t) is smooth: u * polynomial(u) with u = 1/(1 + t/2), coefficients by a weighted least
 * squares fit of our own on t in [0, 6.7], relative error 3e-8 before rounding.
 */
INLINE float normal_tail(float x, float *density)
{
    const float magnitude = x < 0.0f ? -x : x;
    const float e = lgi_cpu_exp(-0.5f * x * x);
    const float u = 1.0f / (1.0f + magnitude * (0.5f * 0.70710678118654752440f));
    float p = -0.055820729583501816f;
    p = p * u + 0.26838386058807373f;
    p = p * u - 0.45282885432243347f;
    p = p * u + 0.2375803291797638f;
    p = p * u + 0.002243072958663106f;
    p = p * u + 0.18996140360832214f;
    p = p * u + 0.24648140370845795f;
    p = p * u + 0.2818829417228699f;
    p = p * u + 0.28211653232574463f;
    *density = e * 0.39894228040143267794f;
    return 0.5f * e * (p * u);
}

INLINE float normal_distribution(float x, float *density)
{
    const float tail = normal_tail(x, density);
    return x < 0.0f ? tail : 1.0f - tail;
}

/*
 * exp(-2 w) with w = sqrt(2/pi) (x + 0.044715 x^3). With it 0.5 x (1 + tanh w) is x s with s = 1 / (1 + e), and 1 - s is e s
 * without cancellation.
 */
INLINE float exponential_of_cubic(float x)
{
    return lgi_cpu_exp(-1.59576912160573071176f * (x + 0.044715f * x * x * x));
}

INLINE float activate(lg_activation activation, float x)
{
    float density;
    switch (activation) {
    case LG_ACTIVATION_RELU:
        return lgi_cpu_relu(x);
    case LG_ACTIVATION_RELU6:
        return relu6(x);
    case LG_ACTIVATION_HARD_SWISH:
        return x * relu6(x + 3.0f) * (1.0f / 6.0f);
    case LG_ACTIVATION_HARD_SIGMOID:
        return relu6(x + 3.0f) * (1.0f / 6.0f);
    case LG_ACTIVATION_GELU_ERF:
        return x * normal_distribution(x, &density);
    case LG_ACTIVATION_GELU_TANH:
        return x / (1.0f + exponential_of_cubic(x));
    default:
        return x;
    }
}

/* The derivative; `x` is the input, but the result for RELU and RELU6, whose derivative it tells as well. */
INLINE float slope(lg_activation activation, float x)
{
    float density;
    switch (activation) {
    case LG_ACTIVATION_RELU:
        return x > 0.0f ? 1.0f : 0.0f;
    case LG_ACTIVATION_RELU6:
        return x > 0.0f && x < 6.0f ? 1.0f : 0.0f;
    case LG_ACTIVATION_HARD_SWISH: {
        const float inner = (2.0f * x + 3.0f) * (1.0f / 6.0f);
        const float low = x <= -3.0f ? 0.0f : inner;
        return x >= 3.0f ? 1.0f : low;
    }
    case LG_ACTIVATION_HARD_SIGMOID:
        return x > -3.0f && x < 3.0f ? 1.0f / 6.0f : 0.0f;
    case LG_ACTIVATION_GELU_ERF: {
        const float distribution = normal_distribution(x, &density);
        return distribution + x * density;
    }
    case LG_ACTIVATION_GELU_TANH: {
        const float e = exponential_of_cubic(x);
        const float s = 1.0f / (1.0f + e);
        return s + x * s * (e * s) * 1.59576912160573071176f * (1.0f + 0.134145f * x * x);
    }
    default:
        return 1.0f;
    }
}

/* --- loops --------------------------------------------------------------------------------------------------------- */

INLINE void forward_run(lg_activation activation, const float *x, float *y, int64_t num_elems)
{
    LGI_CPU_SIMD
    for (int64_t i = 0; i < num_elems; i++) {
        y[i] = activate(activation, x[i]);
    }
}

INLINE void gradient_run(lg_activation activation, const float *at, const float *dy, float *dx,
                         int64_t num_elems)
{
    LGI_CPU_SIMD
    for (int64_t i = 0; i < num_elems; i++) {
        dx[i] = dy[i] * slope(activation, at[i]);
    }
}

/* One loop per function, so that each is vectorised by itself. */
#define ACTIVATION_CASES(X) \
    X(LG_ACTIVATION_RELU) \
    X(LG_ACTIVATION_RELU6) \
    X(LG_ACTIVATION_HARD_SWISH) \
    X(LG_ACTIVATION_HARD_SIGMOID) \
    X(LG_ACTIVATION_GELU_ERF) \
    X(LG_ACTIVATION_GELU_TANH)

static void forward_piece(lg_activation activation, const float *x, float *y, int64_t num_elems)
{
    switch (activation) {
#define FORWARD_CASE(name) \
    case name: \
        forward_run(name, x, y, num_elems); \
        break;
        ACTIVATION_CASES(FORWARD_CASE)
    default:
        break;
    }
}

static void gradient_piece(lg_activation activation, const float *at, const float *dy, float *dx,
                           int64_t num_elems)
{
    switch (activation) {
#define GRADIENT_CASE(name) \
    case name: \
        gradient_run(name, at, dy, dx, num_elems); \
        break;
        ACTIVATION_CASES(GRADIENT_CASE)
    default:
        break;
    }
}

/* --- the layer ----------------------------------------------------------------------------------------------------- */

static bool is_by_output(lg_activation activation)
{
    return activation == LG_ACTIVATION_RELU || activation == LG_ACTIVATION_RELU6;
}

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    (void)layer;
    (void)lgi_cpu_follow_inputs(facts, spec);
    return LG_OK;
}

static int64_t piece_end(int64_t begin, int64_t num_elems)
{
    return begin + LGI_CPU_PIECE_ELEMS < num_elems ? begin + LGI_CPU_PIECE_ELEMS : num_elems;
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    const float *x = io->x[0];
    float *y = io->y;
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(layer->widths[width_idx], num_elems))
    for (int64_t begin = 0; begin < num_elems; begin += LGI_CPU_PIECE_ELEMS) {
        forward_piece(layer->attrs->activation, x + begin, y + begin,
                      piece_end(begin, num_elems) - begin);
    }
    return LG_OK;
}

static lg_status run_input_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    const float *at = is_by_output(layer->attrs->activation) ? io->y : io->x[0];
    const float *dy = io->dy;
    float *dx = io->dx[0];
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(layer->widths[width_idx], num_elems))
    for (int64_t begin = 0; begin < num_elems; begin += LGI_CPU_PIECE_ELEMS) {
        gradient_piece(layer->attrs->activation, at + begin, dy + begin, dx + begin,
                       piece_end(begin, num_elems) - begin);
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_activation = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare,
    .run = {run_forward, run_input_grad, NULL},
};
