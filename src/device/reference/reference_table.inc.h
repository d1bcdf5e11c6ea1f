/*
 * The reference backend on one type: define REAL, DEVICE, DEVICE_NAME and DEVICE_HELP, then include this file once.
 * DEVICE becomes the table of the backend; everything else is static.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <tgmath.h>

#include "base/check.h"
#include "base/random.h"
#include "device/reference/reference_layer.h"

static REAL relu(REAL x)
{
    return x < 0 ? 0 : x;
}

/* The gradient before a fused ReLU: dy where y > 0. */
static REAL unfused_grad(const REAL *dy, const REAL *y, bool is_relu_fused, int64_t i)
{
    return is_relu_fused && !(y[i] > 0) ? 0 : dy[i];
}

/* Elements of `shape` without its last dimension. */
static int64_t num_rows(const lg_shape *shape)
{
    int64_t rows = 1;
    for (int d = 0; d + 1 < shape->num_dims; d++) {
        rows *= shape->dims[d];
    }
    return rows;
}

static int64_t last_dim(const lg_shape *shape)
{
    return shape->dims[shape->num_dims - 1];
}

/* Elements of one channel of [C,H,W]. */
static int64_t map_elems(const lg_shape *shape)
{
    return shape->dims[1] * shape->dims[2];
}

/* Sets or adds a finished weight gradient: element `i` of parameter `param`; nothing where it is not wanted. */
static void store_grad(const lgi_layer_io *io, int param, int64_t i, REAL value)
{
    REAL *dparam = io->dparam[param];
    if (dparam != NULL) {
        dparam[i] = io->accumulates_param[param] ? dparam[i] + value : value;
    }
}

/* dst += scale * src, each with the distance from one element to the next. */
static void add_scaled(REAL *dst, int64_t dst_stride, REAL scale, const REAL *src,
                       int64_t src_stride, int64_t num_elems)
{
    if (dst_stride == 1 && src_stride == 1) { /* the same, for the vectorizer */
        for (int64_t i = 0; i < num_elems; i++) {
            dst[i] += scale * src[i];
        }
        return;
    }
    for (int64_t i = 0; i < num_elems; i++) {
        dst[i * dst_stride] += scale * src[i * src_stride];
    }
}

/*
 * Sum of a[i] * b[i * b_stride]. Term i goes to sum i modulo NUM_SUMS, in order; then the sums are added, in order: an
 * order as fixed as any, which compilers vectorize and which loses less to rounding than one long sum.
 */
#define NUM_SUMS 16
static REAL dot(const REAL *a, const REAL *b, int64_t b_stride, int64_t num_elems)
{
    REAL sums[NUM_SUMS] = {0};
    int64_t i = 0;
    for (; b_stride == 1 && i + NUM_SUMS <= num_elems; i += NUM_SUMS) {
        for (int j = 0; j < NUM_SUMS; j++) {
            sums[j] += a[i + j] * b[i + j];
        }
    }
    for (; i < num_elems; i++) {
        sums[i % NUM_SUMS] += a[i] * b[i * b_stride];
    }
    REAL sum = 0;
    for (int j = 0; j < NUM_SUMS; j++) {
        sum += sums[j];
    }
    return sum;
}

#include "device/reference/reference_activation.inc.h"
#include "device/reference/reference_attention.inc.h"
#include "device/reference/reference_combine.inc.h"
#include "device/reference/reference_conv.inc.h"
#include "device/reference/reference_linear.inc.h"
#include "device/reference/reference_loss.inc.h"
#include "device/reference/reference_memory_ops.inc.h"
#include "device/reference/reference_norm.inc.h"
#include "device/reference/reference_pool.inc.h"

typedef lg_status (*kernel_fn)(const lgi_reference_layer *layer, const lgi_layer_io *io);

/* By layer kind: FORWARD, INPUT_GRAD (of norms: joint), WEIGHT_GRAD. */
static const kernel_fn kernels[LG_NUM_LAYER_KINDS][LGI_NUM_PHASES] = {
    [LG_LAYER_INPUT] = {input_forward, NULL, NULL},
    [LG_LAYER_CONV2D] = {conv_forward, conv_input_grad, conv_weight_grad},
    [LG_LAYER_LINEAR] = {linear_forward, linear_input_grad, linear_weight_grad},
    [LG_LAYER_BATCH_NORM] = {batch_norm_forward, batch_norm_input_grad, NULL},
    [LG_LAYER_LAYER_NORM] = {layer_norm_forward, layer_norm_input_grad, NULL},
    [LG_LAYER_ACTIVATION] = {activation_forward, activation_input_grad, NULL},
    [LG_LAYER_MAX_POOL] = {max_pool_forward, max_pool_input_grad, NULL},
    [LG_LAYER_AVG_POOL] = {avg_pool_forward, avg_pool_input_grad, NULL},
    [LG_LAYER_GLOBAL_AVG_POOL] = {global_avg_pool_forward, global_avg_pool_input_grad, NULL},
    [LG_LAYER_FLATTEN] = {flatten_forward, passing_input_grad, NULL},
    [LG_LAYER_ADD] = {add_forward, add_input_grad, NULL},
    [LG_LAYER_CONCAT] = {concat_forward, concat_input_grad, NULL},
    [LG_LAYER_CHANNEL_SCALE] = {channel_scale_forward, channel_scale_input_grad, NULL},
    [LG_LAYER_DROPOUT] = {dropout_forward, dropout_input_grad, NULL},
    [LG_LAYER_TOKEN_EMBEDDING] = {token_embedding_forward, NULL, token_embedding_weight_grad},
    [LG_LAYER_POSITION_EMBEDDING] = {position_embedding_forward, passing_input_grad,
                                     position_embedding_weight_grad},
    [LG_LAYER_ATTENTION] = {attention_forward, attention_input_grad, NULL},
    [LG_LAYER_SOFTMAX_CROSS_ENTROPY] = {loss_forward, NULL, NULL},
};

static lg_status run_layer(lgi_device_layer *layer, lgi_phase phase, int width_idx,
                           const lgi_layer_io *io)
{
    (void)width_idx;
    const lgi_reference_layer *self = (const lgi_reference_layer *)layer;
    const kernel_fn kernel = kernels[self->kind][phase];
    if (kernel == NULL) {
        LG_FAIL(LG_INTERNAL, "layer '%s' (%s) has no phase %d", self->name,
                lg_layer_kind_name(self->kind), (int)phase);
    }
    return kernel(self, io);
}

static lg_status open_device(lgi_device **out, int num_cores)
{
    (void)num_cores;
    return lgi_reference_open(out, &DEVICE);
}

static const char *describe_device(const lgi_device *device)
{
    (void)device;
    return DEVICE_HELP;
}

const struct lgi_device_ops DEVICE = {
    .name = DEVICE_NAME,
    .help = DEVICE_HELP,
    .real_bytes = sizeof(REAL),
    .wants_fusion = false,
    .open = open_device,
    .close = lgi_reference_close,
    .describe = describe_device,
    .alloc = lgi_reference_alloc,
    .free = lgi_reference_free,
    .peak_bytes = lgi_reference_peak_bytes,
    .layer_create = lgi_reference_layer_create,
    .layer_destroy = lgi_reference_layer_destroy,
    .run = run_layer,
    .reorder_create = lgi_reference_reorder_create,
    .reorder_destroy = lgi_reference_reorder_destroy,
    .reorder_run = lgi_reference_reorder_run,
    .grad_add = add_grads,
    .sum_squares = sum_squares,
    .grad_stat = grad_stat,
    .update = update_param,
    .fold_statistics = fold_statistics,
    .read = read_stored,
    .write = write_stored,
};
