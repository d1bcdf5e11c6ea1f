#include "models/build_layers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* Bounds that keep names, products and loops in hand; far above what trains. */
#define MAX_LAYERS 10000
#define MAX_WIDTH 1048576

void lgi_builder_init(lgi_builder *builder)
{
    memset(builder, 0, sizeof *builder);
    builder->status = lg_model_create(&builder->model);
}

lg_status lgi_builder_finish(lgi_builder *builder, lg_model **out)
{
    *out = NULL;
    if (builder->status != LG_OK) {
        lg_model_destroy(builder->model);
        return builder->status;
    }
    *out = builder->model;
    return LG_OK;
}

const char *lgi_name(lgi_builder *builder, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(builder->name, sizeof builder->name, format, args);
    va_end(args);
    return builder->name;
}

static int add(lgi_builder *builder, const char *name, lg_layer_kind kind,
               const lg_layer_attrs *attrs, const int *inputs, int num_inputs)
{
    int layer = 0;
    if (builder->status == LG_OK) {
        builder->status =
            lg_model_add(builder->model, name, kind, attrs, inputs, num_inputs, &layer);
    }
    return layer;
}

static void set_init(lgi_builder *builder, int layer, lgi_weight_init init)
{
    if (builder->status == LG_OK) {
        builder->status = lg_model_set_init(builder->model, layer, 0, init.init, (float)init.scale);
    }
}

int lgi_add_input(lgi_builder *builder, const char *name, int input_idx, lg_dtype dtype,
                  const lg_shape *shape)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.input_idx = input_idx;
    attrs.input_dtype = dtype;
    attrs.input_shape = *shape;
    return add(builder, name, LG_LAYER_INPUT, &attrs, NULL, 0);
}

int lgi_add_conv(lgi_builder *builder, const char *name, int x, const lgi_conv *conv)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.window = lg_window_square(conv->kernel, conv->stride, conv->kernel / 2);
    attrs.num_outputs = conv->num_outputs;
    attrs.groups = conv->groups > 0 ? conv->groups : 1;
    attrs.has_bias = conv->has_bias;
    return add(builder, name, LG_LAYER_CONV2D, &attrs, &x, 1);
}

int lgi_add_linear(lgi_builder *builder, const char *name, int x, int64_t num_outputs,
                   bool has_bias, lgi_weight_init init)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.num_outputs = num_outputs;
    attrs.has_bias = has_bias;
    const int layer = add(builder, name, LG_LAYER_LINEAR, &attrs, &x, 1);
    set_init(builder, layer, init);
    return layer;
}

int lgi_add_batch_norm(lgi_builder *builder, const char *name, int x, double epsilon,
                       double momentum)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.epsilon = (float)epsilon;
    attrs.momentum = (float)momentum;
    return add(builder, name, LG_LAYER_BATCH_NORM, &attrs, &x, 1);
}

int lgi_add_layer_norm(lgi_builder *builder, const char *name, int x, double epsilon)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.epsilon = (float)epsilon;
    return add(builder, name, LG_LAYER_LAYER_NORM, &attrs, &x, 1);
}

int lgi_add_activation(lgi_builder *builder, const char *name, int x, lg_activation activation)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.activation = activation;
    return add(builder, name, LG_LAYER_ACTIVATION, &attrs, &x, 1);
}

int lgi_add_dropout(lgi_builder *builder, const char *name, int x, double drop_prob)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.drop_prob = (float)drop_prob;
    return drop_prob > 0.0 ? add(builder, name, LG_LAYER_DROPOUT, &attrs, &x, 1) : x;
}

int lgi_add_pool(lgi_builder *builder, const char *name, lg_layer_kind kind, int x, int64_t kernel,
                 int64_t stride, int64_t pad)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.window = lg_window_square(kernel, stride, pad);
    return add(builder, name, kind, &attrs, &x, 1);
}

int lgi_add_embedding(lgi_builder *builder, const char *name, lg_layer_kind kind, int x,
                      int64_t num_embeddings, int64_t width, double init_scale)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.num_embeddings = num_embeddings;
    attrs.num_outputs = width;
    const int layer = add(builder, name, kind, &attrs, &x, 1);
    set_init(builder, layer, (lgi_weight_init){LG_INIT_NORMAL, init_scale});
    return layer;
}

int lgi_add_attention(lgi_builder *builder, const char *name, int qkv, int mask, int64_t num_heads,
                      bool is_causal)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.num_heads = num_heads;
    attrs.is_causal = is_causal;
    const int inputs[2] = {qkv, mask};
    return add(builder, name, LG_LAYER_ATTENTION, &attrs, inputs, mask >= 0 ? 2 : 1);
}

int lgi_add_plain(lgi_builder *builder, const char *name, lg_layer_kind kind, int a, int b)
{
    const int inputs[2] = {a, b};
    return add(builder, name, kind, NULL, inputs, b >= 0 ? 2 : 1);
}

void lgi_add_loss(lgi_builder *builder, int logits, double label_smoothing)
{
    if (builder->status != LG_OK) {
        return;
    }
    lg_shape shape = lg_model_layer(builder->model, logits)->out_shape;
    shape.num_dims--;
    const int targets = lgi_add_input(builder, "targets", 1, LG_DTYPE_I32, &shape);
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.label_smoothing = (float)label_smoothing;
    const int inputs[2] = {logits, targets};
    (void)add(builder, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, &attrs, inputs, 2);
}

int64_t lgi_dim(const lgi_builder *builder, int layer, int dim)
{
    return builder->status == LG_OK ? lg_model_layer(builder->model, layer)->out_shape.dims[dim]
                                    : 1;
}

lg_status lgi_check_option(const char *model, const char *option, int64_t value, int64_t min,
                           int64_t max)
{
    if (value < min || value > max) {
        LG_FAIL(LG_INVALID_ARG, "%s: %s is %" PRId64 ", not in [%" PRId64 ", %" PRId64 "]", model,
                option, value, min, max);
    }
    return LG_OK;
}

static lg_status check_frac(const char *model, const char *option, double value)
{
    if (!(value >= 0.0 && (float)value < 1.0f)) {
        LG_FAIL(LG_INVALID_ARG, "%s: %s is %g, not in [0, 1)", model, option, value);
    }
    return LG_OK;
}

lg_status lgi_check_image_options(const char *model, const lg_shape *input, int64_t num_classes,
                                  double label_smoothing, double drop_prob)
{
    static const char *const dims[] = {"input channels", "input height", "input width"};
    char text[128];
    if (input->num_dims != 3) {
        LG_FAIL(LG_INVALID_ARG, "%s: input is %s, expected [channels, height, width]", model,
                lg_shape_format(input, text, sizeof text));
    }
    for (int i = 0; i < 3; i++) {
        LG_TRY(lgi_check_option(model, dims[i], input->dims[i], 1, 65536));
    }
    LG_TRY(lgi_check_option(model, "num_classes", num_classes, 1, INT32_MAX));
    LG_TRY(check_frac(model, "label_smoothing", label_smoothing));
    return check_frac(model, "drop_prob", drop_prob);
}

lg_status lgi_check_text_options(const char *model, int64_t num_layers, int64_t width,
                                 int64_t num_heads, int64_t hidden, int64_t context,
                                 int64_t vocab_size, double label_smoothing, double drop_prob)
{
    LG_TRY(lgi_check_option(model, "num_layers", num_layers, 1, MAX_LAYERS));
    LG_TRY(lgi_check_option(model, "width", width, 1, MAX_WIDTH));
    LG_TRY(lgi_check_option(model, "num_heads", num_heads, 1, width));
    if (width % num_heads != 0) {
        LG_FAIL(LG_INVALID_ARG,
                "%s: width is %" PRId64 ", not a multiple of the num_heads %" PRId64, model, width,
                num_heads);
    }
    LG_TRY(lgi_check_option(model, "hidden", hidden, 0, 4 * (int64_t)MAX_WIDTH));
    LG_TRY(lgi_check_option(model, "context", context, 1, 1 << 24));
    LG_TRY(lgi_check_option(model, "vocab_size", vocab_size, 1, INT32_MAX));
    LG_TRY(check_frac(model, "label_smoothing", label_smoothing));
    return check_frac(model, "drop_prob", drop_prob);
}
