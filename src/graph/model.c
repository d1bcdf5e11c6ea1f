/*
 * The model: layers in topological order, their shapes, parameters and states. Everything that an attribute can get
 * wrong is refused here, so what comes after works on checked numbers.
 */
#include "leapgrad/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/build.h"

/* Elements of one sample's tensor or of a parameter: products of checked dimensions stay far below 2^63. */
#define MAX_ELEMS ((int64_t)1 << 40)
#define MAX_DIM ((int64_t)1 << 31)
#define MAX_NAME_LENGTH 200

struct layer {
    lg_layer_info info;
    lg_layer_attrs attrs;
    char *name;
    int *inputs;
    float *class_weights;
};

struct param {
    lg_param_info info;
    char *name;
};

struct state {
    lg_state_info info;
    char *name;
};

struct lg_model {
    struct layer *
        *layers; /* each its own block: lg_layer_info pointers stay valid while the array grows */
    size_t num_layers, layers_capacity;
    struct param **params;
    size_t num_params, params_capacity;
    struct state **states;
    size_t num_states, states_capacity;
};

static const struct {
    const char *name;
    int num_inputs;
} kinds[LG_NUM_LAYER_KINDS] = {
#define KIND(name, text, num_inputs) [LG_LAYER_##name] = {text, num_inputs},
    LG_LAYER_KIND_LIST(KIND)
#undef KIND
};

const char *lg_layer_kind_name(lg_layer_kind kind)
{
    return kinds[kind].name;
}

const char *lg_activation_name(lg_activation activation)
{
    static const char *const names[LG_NUM_ACTIVATIONS] = {
        [LG_ACTIVATION_NONE] = "none",
        [LG_ACTIVATION_RELU] = "relu",
        [LG_ACTIVATION_RELU6] = "relu6",
        [LG_ACTIVATION_HARD_SWISH] = "hard_swish",
        [LG_ACTIVATION_HARD_SIGMOID] = "hard_sigmoid",
        [LG_ACTIVATION_GELU_ERF] = "gelu_erf",
        [LG_ACTIVATION_GELU_TANH] = "gelu_tanh",
    };
    return names[activation];
}

lg_window lg_window_square(int64_t kernel, int64_t stride, int64_t pad)
{
    const lg_window window = {{kernel, kernel}, {stride, stride}, {pad, pad}, {pad, pad}, {1, 1}};
    return window;
}

lg_layer_attrs lg_layer_attrs_default(void)
{
    lg_layer_attrs attrs;
    memset(&attrs, 0, sizeof attrs);
    attrs.window = lg_window_square(1, 1, 0);
    attrs.groups = 1;
    attrs.has_bias = true;
    attrs.epsilon = 1e-5f;
    attrs.momentum = 0.1f;
    attrs.ignore_index = -100;
    attrs.input_dtype = LG_DTYPE_F32;
    return attrs;
}

lg_status lg_model_create(lg_model **out)
{
    return lgi_calloc(out, 1, sizeof **out);
}

static void layer_destroy(struct layer *layer)
{
    if (layer != NULL) {
        lgi_free(layer->name);
        lgi_free(layer->inputs);
        lgi_free(layer->class_weights);
        lgi_free(layer);
    }
}

static void param_destroy(struct param *param)
{
    if (param != NULL) {
        lgi_free(param->name);
        lgi_free(param);
    }
}

void lg_model_destroy(lg_model *model)
{
    if (model == NULL) {
        return;
    }
    for (size_t i = 0; i < model->num_layers; i++) {
        layer_destroy(model->layers[i]);
    }
    for (size_t i = 0; i < model->num_params; i++) {
        param_destroy(model->params[i]);
    }
    for (size_t i = 0; i < model->num_states; i++) {
        lgi_free(model->states[i]->name);
        lgi_free(model->states[i]);
    }
    lgi_free(model->layers);
    lgi_free(model->params);
    lgi_free(model->states);
    lgi_free(model);
}

/* --- checks ------------------------------------------------------------------------------------------------------ */

static lg_status check_range(const char *layer, const char *attr, int64_t value, int64_t min,
                             int64_t max)
{
    if (value < min || value > max) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': %s is %" PRId64 ", not in [%" PRId64 ", %" PRId64 "]",
                layer, attr, value, min, max);
    }
    return LG_OK;
}

static lg_status check_frac(const char *layer, const char *attr, float value)
{
    if (!(value >= 0.0f && value < 1.0f)) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': %s is %g, not in [0, 1)", layer, attr, (double)value);
    }
    return LG_OK;
}

static lg_status check_shape(const char *layer, const lg_shape *shape)
{
    char text[128];
    int64_t num_elems = 1;
    for (int i = 0; i < shape->num_dims; i++) {
        const int64_t dim = shape->dims[i];
        if (dim < 1 || dim > MAX_DIM || num_elems > MAX_ELEMS / dim) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': shape %s is empty or too large", layer,
                    lg_shape_format(shape, text, sizeof text));
        }
        num_elems *= dim;
    }
    return LG_OK;
}

static lg_status check_num_dims(const char *layer, const lg_shape *shape, int min, int max)
{
    char text[128];
    if (shape->num_dims < min || shape->num_dims > max) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': input %s has %d dimensions, expected %d to %d", layer,
                lg_shape_format(shape, text, sizeof text), shape->num_dims, min, max);
    }
    return LG_OK;
}

static lg_status check_activation(const char *layer, lg_activation activation, bool is_fused)
{
    const bool is_known = activation >= LG_ACTIVATION_NONE && activation < LG_NUM_ACTIVATIONS;
    if (!is_known || (is_fused && activation > LG_ACTIVATION_RELU) ||
        (!is_fused && activation == LG_ACTIVATION_NONE)) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': activation %s is not possible here", layer,
                is_known ? lg_activation_name(activation) : "(unknown)");
    }
    return LG_OK;
}

/* Output size of a window along both dimensions: floor((in + pads - dilated kernel) / stride) + 1. */
static lg_status infer_window(const char *layer, const lg_window *window, const lg_shape *in,
                              lg_shape *out)
{
    static const char *const axes[2] = {"height", "width"};
    for (int i = 0; i < 2; i++) {
        LG_TRY(check_range(layer, "kernel size", window->kernel[i], 1, 1 << 20));
        LG_TRY(check_range(layer, "stride", window->stride[i], 1, 1 << 20));
        LG_TRY(check_range(layer, "dilation", window->dilation[i], 1, 1 << 20));
        const int64_t extent = (window->kernel[i] - 1) * window->dilation[i] + 1;
        LG_TRY(check_range(layer, "padding", window->pad_begin[i], 0, extent - 1));
        LG_TRY(check_range(layer, "padding", window->pad_end[i], 0, extent - 1));
        const int64_t room = in->dims[1 + i] + window->pad_begin[i] + window->pad_end[i] - extent;
        if (room < 0) {
            LG_FAIL(LG_INVALID_ARG,
                    "layer '%s': a window of %" PRId64
                    " does not fit into the padded %s of %" PRId64,
                    layer, extent, axes[i], room + extent);
        }
        out->dims[1 + i] = room / window->stride[i] + 1;
    }
    return LG_OK;
}

/* --- adding ------------------------------------------------------------------------------------------------------ */

/* A parameter or state that a layer is about to bring in. */
struct new_tensor {
    const char *suffix;
    lg_shape shape;
    lg_init init;
    float value; /* init scale, or a state's start */
    bool is_matrix;
};

struct new_tensors {
    int num_params;
    struct new_tensor params[LG_MAX_LAYER_PARAMS];
    int num_states;
    struct new_tensor states[LG_MAX_LAYER_STATES];
};

static void add_param(struct new_tensors *tensors, const char *suffix, lg_shape shape, lg_init init,
                      float scale, bool is_matrix)
{
    const struct new_tensor tensor = {suffix, shape, init, scale, is_matrix};
    tensors->params[tensors->num_params++] = tensor;
}

static void add_norm_params(struct new_tensors *tensors, int64_t num_channels)
{
    add_param(tensors, "weight", LG_SHAPE(num_channels), LG_INIT_ONES, 0.0f, false);
    add_param(tensors, "bias", LG_SHAPE(num_channels), LG_INIT_ZEROS, 0.0f, false);
}

static lg_status infer_conv2d(const char *name, const lg_layer_attrs *attrs, const lg_shape *in,
                              lg_shape *out, struct new_tensors *tensors)
{
    LG_TRY(check_num_dims(name, in, 3, 3));
    const int64_t num_channels = in->dims[0];
    LG_TRY(check_range(name, "num_outputs", attrs->num_outputs, 1, MAX_DIM));
    LG_TRY(check_range(name, "groups", attrs->groups, 1, num_channels));
    if (num_channels % attrs->groups != 0 || attrs->num_outputs % attrs->groups != 0) {
        LG_FAIL(LG_INVALID_ARG,
                "layer '%s': groups is %" PRId64 ", which does not divide the %" PRId64
                " input and %" PRId64 " output channels",
                name, attrs->groups, num_channels, attrs->num_outputs);
    }
    *out = *in;
    out->dims[0] = attrs->num_outputs;
    LG_TRY(infer_window(name, &attrs->window, in, out));
    add_param(tensors, "weight",
              LG_SHAPE(attrs->num_outputs, num_channels / attrs->groups, attrs->window.kernel[0],
                       attrs->window.kernel[1]),
              LG_INIT_KAIMING_NORMAL, 0.0f, true);
    if (attrs->has_bias) {
        add_param(tensors, "bias", LG_SHAPE(attrs->num_outputs), LG_INIT_ZEROS, 0.0f, false);
    }
    return LG_OK;
}

static lg_status infer_pool(const char *name, const lg_layer_attrs *attrs, const lg_shape *in,
                            lg_shape *out)
{
    LG_TRY(check_num_dims(name, in, 3, 3));
    *out = *in;
    LG_TRY(infer_window(name, &attrs->window, in, out));
    for (int i = 0; i < 2; i++) {
        LG_TRY(check_range(name, "dilation of a pool", attrs->window.dilation[i], 1, 1));
        /* the last window must touch the map, or its maximum and mean would be undefined */
        const int64_t last_begin =
            (out->dims[1 + i] - 1) * attrs->window.stride[i] - attrs->window.pad_begin[i];
        if (last_begin >= in->dims[1 + i]) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': the last window lies wholly in the padding", name);
        }
    }
    return LG_OK;
}

static lg_status infer_attention(const char *name, const lg_layer_attrs *attrs,
                                 const lg_shape *const *in, int num_inputs, lg_shape *out)
{
    LG_TRY(check_range(name, "number of inputs", num_inputs, 1, 2));
    LG_TRY(check_num_dims(name, in[0], 2, 2));
    LG_TRY(check_range(name, "num_heads", attrs->num_heads, 1, MAX_DIM));
    if (in[0]->dims[1] % (3 * attrs->num_heads) != 0) {
        LG_FAIL(LG_INVALID_ARG,
                "layer '%s': %" PRId64 " packed features cannot be split into q, k, v of %" PRId64
                " heads",
                name, in[0]->dims[1], attrs->num_heads);
    }
    if (num_inputs == 2) {
        const lg_shape mask = LG_SHAPE(in[0]->dims[0]);
        char text[128];
        if (!lg_shape_equal(in[1], &mask)) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': expected a keep mask of [%" PRId64 "], got %s",
                    name, mask.dims[0], lg_shape_format(in[1], text, sizeof text));
        }
    }
    *out = LG_SHAPE(in[0]->dims[0], in[0]->dims[1] / 3);
    return LG_OK;
}

static lg_status infer_loss(const char *name, const lg_layer_attrs *attrs, const lg_shape *logits,
                            const lg_shape *targets)
{
    char text[128];
    LG_TRY(check_num_dims(name, logits, 1, 2));
    LG_TRY(check_frac(name, "label_smoothing", attrs->label_smoothing));
    lg_shape expected = *logits;
    expected.num_dims--;
    if (!lg_shape_equal(targets, &expected)) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': targets %s do not fit the logits", name,
                lg_shape_format(targets, text, sizeof text));
    }
    const int64_t num_classes = logits->dims[logits->num_dims - 1];
    for (int64_t k = 0; attrs->class_weights != NULL && k < num_classes; k++) {
        if (!(attrs->class_weights[k] >= 0.0f) || !isfinite(attrs->class_weights[k])) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': class weight %" PRId64 " is %g, not in [0, inf)",
                    name, k, (double)attrs->class_weights[k]);
        }
    }
    return LG_OK;
}

static lg_status infer_same_shapes(const char *name, const lg_shape *const *in, int num_inputs)
{
    char expected[128];
    char got[128];
    LG_TRY(check_range(name, "number of inputs", num_inputs, 2, LGI_MAX_LAYER_INPUTS));
    for (int i = 1; i < num_inputs; i++) {
        if (!lg_shape_equal(in[0], in[i])) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': input %d is %s, expected %s as input 0", name, i,
                    lg_shape_format(in[i], got, sizeof got),
                    lg_shape_format(in[0], expected, sizeof expected));
        }
    }
    return LG_OK;
}

static lg_status infer_concat(const char *name, const lg_shape *const *in, int num_inputs,
                              lg_shape *out)
{
    char got[128];
    LG_TRY(check_range(name, "number of inputs", num_inputs, 1, LGI_MAX_LAYER_INPUTS));
    LG_TRY(check_num_dims(name, in[0], 1, LG_MAX_DIMS - 1));
    *out = *in[0];
    for (int i = 1; i < num_inputs; i++) {
        lg_shape expected = *in[i];
        expected.dims[0] = in[0]->dims[0];
        if (!lg_shape_equal(in[0], &expected)) {
            LG_FAIL(LG_INVALID_ARG,
                    "layer '%s': input %d is %s, which differs from input 0 in more than channels",
                    name, i, lg_shape_format(in[i], got, sizeof got));
        }
        out->dims[0] += in[i]->dims[0];
    }
    return LG_OK;
}

/* Shape and parameters of a layer from its attributes and the shapes of its inputs. */
static lg_status infer(const char *name, lg_layer_kind kind, const lg_layer_attrs *attrs,
                       const lg_shape *const *in, int num_inputs, lg_shape *out,
                       struct new_tensors *tensors)
{
    if (num_inputs > 0) {
        *out = *in[0];
    }
    switch (kind) {
    case LG_LAYER_INPUT:
        LG_TRY(check_range(name, "input_idx", attrs->input_idx, 0, LGI_MAX_LAYER_INPUTS - 1));
        LG_TRY(check_range(name, "number of dimensions", attrs->input_shape.num_dims, 0,
                           LG_MAX_DIMS - 1));
        *out = attrs->input_shape;
        return LG_OK;
    case LG_LAYER_CONV2D:
        return infer_conv2d(name, attrs, in[0], out, tensors);
    case LG_LAYER_LINEAR: {
        LG_TRY(check_num_dims(name, in[0], 1, LG_MAX_DIMS - 1));
        LG_TRY(check_range(name, "num_outputs", attrs->num_outputs, 1, MAX_DIM));
        const int last = in[0]->num_dims - 1;
        out->dims[last] = attrs->num_outputs;
        add_param(tensors, "weight", LG_SHAPE(attrs->num_outputs, in[0]->dims[last]),
                  LG_INIT_UNIFORM_FAN_IN, 0.0f, true);
        if (attrs->has_bias) {
            add_param(tensors, "bias", LG_SHAPE(attrs->num_outputs), LG_INIT_ZEROS, 0.0f, false);
        }
        return LG_OK;
    }
    case LG_LAYER_BATCH_NORM: {
        LG_TRY(check_num_dims(name, in[0], 1, LG_MAX_DIMS - 1));
        LG_TRY(check_activation(name, attrs->activation, true));
        LG_TRY(check_frac(name, "momentum", attrs->momentum));
        const int64_t num_channels = in[0]->dims[0];
        add_norm_params(tensors, num_channels);
        const struct new_tensor mean = {"running_mean", LG_SHAPE(num_channels), LG_INIT_ZEROS, 0.0f,
                                        false};
        const struct new_tensor var = {"running_var", LG_SHAPE(num_channels), LG_INIT_ZEROS, 1.0f,
                                       false};
        tensors->states[0] = mean;
        tensors->states[1] = var;
        tensors->num_states = 2;
        break;
    }
    case LG_LAYER_LAYER_NORM:
        LG_TRY(check_num_dims(name, in[0], 1, LG_MAX_DIMS - 1));
        add_norm_params(tensors, in[0]->dims[in[0]->num_dims - 1]);
        break;
    case LG_LAYER_ACTIVATION:
        return check_activation(name, attrs->activation, false);
    case LG_LAYER_MAX_POOL:
    case LG_LAYER_AVG_POOL:
        return infer_pool(name, attrs, in[0], out);
    case LG_LAYER_GLOBAL_AVG_POOL:
        LG_TRY(check_num_dims(name, in[0], 3, 3));
        *out = LG_SHAPE(in[0]->dims[0]);
        return LG_OK;
    case LG_LAYER_FLATTEN:
        *out = LG_SHAPE(lg_shape_num_elems(in[0]));
        return LG_OK;
    case LG_LAYER_ADD:
        LG_TRY(check_activation(name, attrs->activation, true));
        return infer_same_shapes(name, in, num_inputs);
    case LG_LAYER_CONCAT:
        return infer_concat(name, in, num_inputs, out);
    case LG_LAYER_CHANNEL_SCALE: {
        char text[128];
        LG_TRY(check_num_dims(name, in[0], 3, 3));
        const lg_shape scale = LG_SHAPE(in[0]->dims[0]);
        if (!lg_shape_equal(in[1], &scale)) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': expected a scale of [%" PRId64 "], got %s", name,
                    scale.dims[0], lg_shape_format(in[1], text, sizeof text));
        }
        return LG_OK;
    }
    case LG_LAYER_DROPOUT:
        return check_frac(name, "drop_prob", attrs->drop_prob);
    case LG_LAYER_TOKEN_EMBEDDING:
        LG_TRY(check_num_dims(name, in[0], 1, 1));
        LG_TRY(check_range(name, "num_outputs", attrs->num_outputs, 1, MAX_DIM));
        LG_TRY(check_range(name, "num_embeddings", attrs->num_embeddings, 1, MAX_DIM));
        *out = LG_SHAPE(in[0]->dims[0], attrs->num_outputs);
        add_param(tensors, "weight", LG_SHAPE(attrs->num_embeddings, attrs->num_outputs),
                  LG_INIT_NORMAL, 0.02f, true);
        return LG_OK;
    case LG_LAYER_POSITION_EMBEDDING:
        LG_TRY(check_num_dims(name, in[0], 2, 2));
        LG_TRY(check_range(name, "num_embeddings", attrs->num_embeddings, in[0]->dims[0], MAX_DIM));
        add_param(tensors, "weight", LG_SHAPE(attrs->num_embeddings, in[0]->dims[1]),
                  LG_INIT_NORMAL, 0.02f, true);
        return LG_OK;
    case LG_LAYER_ATTENTION:
        return infer_attention(name, attrs, in, num_inputs, out);
    case LG_LAYER_SOFTMAX_CROSS_ENTROPY:
        LG_TRY(infer_loss(name, attrs, in[0], in[1]));
        *out = lg_shape_make(0, NULL);
        return LG_OK;
    default:
        LG_FAIL(LG_INVALID_ARG, "layer '%s': kind %d is unknown", name, (int)kind);
    }
    if (!(attrs->epsilon > 0.0f) || !isfinite(attrs->epsilon)) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': epsilon is %g, not in (0, inf)", name,
                (double)attrs->epsilon);
    }
    return LG_OK;
}

/* Integers and real numbers do not mix: who reads which. */
static lg_status check_dtypes(const char *name, lg_layer_kind kind, const lg_layer_info *const *in,
                              int num_inputs)
{
    for (int i = 0; i < num_inputs; i++) {
        const bool is_ids =
            kind == LG_LAYER_TOKEN_EMBEDDING || (kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY && i == 1);
        const bool is_mask = kind == LG_LAYER_ATTENTION && i == 1;
        const lg_dtype expected = is_ids ? LG_DTYPE_I32 : LG_DTYPE_F32;
        if (in[i]->out_dtype != expected && !(is_mask && in[i]->out_dtype == LG_DTYPE_I32)) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': input %d ('%s') is %s, expected %s", name, i,
                    in[i]->name, lg_dtype_name(in[i]->out_dtype), lg_dtype_name(expected));
        }
        if (in[i]->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': input %d ('%s') is a loss, which nothing can read",
                    name, i, in[i]->name);
        }
    }
    return LG_OK;
}

static lg_status check_name(const lg_model *model, const char *name)
{
    const size_t length = name != NULL ? strlen(name) : 0;
    if (length == 0 || length > MAX_NAME_LENGTH ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") !=
            length) {
        LG_FAIL(LG_INVALID_ARG, "layer name '%.*s' is not 1 to %d characters of [A-Za-z0-9_.-]",
                MAX_NAME_LENGTH, name != NULL ? name : "", MAX_NAME_LENGTH);
    }
    if (lg_model_find_layer(model, name) >= 0) {
        LG_FAIL(LG_INVALID_ARG, "layer name '%s' is there twice", name);
    }
    return LG_OK;
}

static lg_status append_params(lg_model *model, struct layer *layer,
                               const struct new_tensors *tensors)
{
    for (int i = 0; i < tensors->num_params; i++) {
        const struct new_tensor *tensor = &tensors->params[i];
        struct param *param = NULL;
        LG_TRY(check_shape(layer->name, &tensor->shape));
        LG_TRY(lgi_grow(&model->params, &model->params_capacity, model->num_params + 1,
                        sizeof(struct param *)));
        LG_TRY(lgi_calloc(&param, 1, sizeof *param));
        const lg_status status = lgi_sprintf(&param->name, "%s.%s", layer->name, tensor->suffix);
        if (status != LG_OK) {
            param_destroy(param);
            return status;
        }
        const lg_param_info info = {param->name,   tensor->shape,     tensor->init,
                                    tensor->value, tensor->is_matrix, (int)model->num_layers};
        param->info = info;
        layer->info.params[layer->info.num_params++] = (int)model->num_params;
        model->params[model->num_params++] = param;
    }
    return LG_OK;
}

static lg_status append_states(lg_model *model, struct layer *layer,
                               const struct new_tensors *tensors)
{
    for (int i = 0; i < tensors->num_states; i++) {
        const struct new_tensor *tensor = &tensors->states[i];
        struct state *state = NULL;
        LG_TRY(lgi_grow(&model->states, &model->states_capacity, model->num_states + 1,
                        sizeof(struct state *)));
        LG_TRY(lgi_calloc(&state, 1, sizeof *state));
        const lg_status status = lgi_sprintf(&state->name, "%s.%s", layer->name, tensor->suffix);
        if (status != LG_OK) {
            lgi_free(state);
            return status;
        }
        const lg_state_info info = {state->name, tensor->shape, tensor->value,
                                    (int)model->num_layers};
        state->info = info;
        layer->info.states[layer->info.num_states++] = (int)model->num_states;
        model->states[model->num_states++] = state;
    }
    return LG_OK;
}

/* Takes back what append_params() and append_states() added for a layer that then failed. */
static void drop_tensors(lg_model *model, size_t num_params, size_t num_states)
{
    while (model->num_params > num_params) {
        param_destroy(model->params[--model->num_params]);
    }
    while (model->num_states > num_states) {
        struct state *state = model->states[--model->num_states];
        lgi_free(state->name);
        lgi_free(state);
    }
}

static lg_status fill_layer(lg_model *model, struct layer *layer, const char *name,
                            lg_layer_kind kind, const int *inputs, int num_inputs)
{
    const lg_shape *shapes[LGI_MAX_LAYER_INPUTS];
    const lg_layer_info *infos[LGI_MAX_LAYER_INPUTS];
    for (int i = 0; i < num_inputs; i++) {
        LG_TRY(check_range(name, "input id", inputs[i], 0, (int64_t)model->num_layers - 1));
        infos[i] = &model->layers[inputs[i]]->info;
        shapes[i] = &infos[i]->out_shape;
    }
    LG_TRY(check_dtypes(name, kind, infos, num_inputs));
    struct new_tensors tensors;
    memset(&tensors, 0, sizeof tensors);
    LG_TRY(infer(name, kind, &layer->attrs, shapes, num_inputs, &layer->info.out_shape, &tensors));
    LG_TRY(check_shape(name, &layer->info.out_shape));
    LG_TRY(lgi_strdup(&layer->name, name));
    LG_TRY(lgi_calloc(&layer->inputs, (size_t)num_inputs, sizeof(int)));
    for (int i = 0; i < num_inputs; i++) {
        layer->inputs[i] = inputs[i];
    }
    if (kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY && layer->attrs.class_weights != NULL) {
        const size_t num_classes = (size_t)shapes[0]->dims[shapes[0]->num_dims - 1];
        LG_TRY(lgi_calloc(&layer->class_weights, num_classes, sizeof(float)));
        memcpy(layer->class_weights, layer->attrs.class_weights, num_classes * sizeof(float));
    }
    layer->attrs.class_weights = layer->class_weights;
    layer->info.name = layer->name;
    layer->info.kind = kind;
    layer->info.attrs = &layer->attrs;
    layer->info.num_inputs = num_inputs;
    layer->info.inputs = layer->inputs;
    layer->info.out_dtype = kind == LG_LAYER_INPUT ? layer->attrs.input_dtype : LG_DTYPE_F32;
    LG_TRY(append_params(model, layer, &tensors));
    return append_states(model, layer, &tensors);
}

lg_status lg_model_add(lg_model *model, const char *name, lg_layer_kind kind,
                       const lg_layer_attrs *attrs, const int *inputs, int num_inputs,
                       int *out_layer)
{
    const lg_layer_attrs defaults = lg_layer_attrs_default();
    LG_TRY(check_name(model, name));
    if (kind < 0 || kind >= LG_NUM_LAYER_KINDS) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': kind %d is unknown", name, (int)kind);
    }
    const int wanted = kinds[kind].num_inputs;
    LG_TRY(check_range(name, "number of inputs", num_inputs, wanted >= 0 ? wanted : 1,
                       wanted >= 0 ? wanted : LGI_MAX_LAYER_INPUTS));
    if (kind == LG_LAYER_INPUT && attrs != NULL && attrs->input_dtype != LG_DTYPE_F32 &&
        attrs->input_dtype != LG_DTYPE_I32) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': an input can be f32 or i32", name);
    }
    struct layer *layer = NULL;
    const size_t num_params = model->num_params;
    const size_t num_states = model->num_states;
    lg_status status = LG_OK;
    LG_TRY(lgi_grow(&model->layers, &model->layers_capacity, model->num_layers + 1,
                    sizeof(struct layer *)));
    LG_TRY(lgi_calloc(&layer, 1, sizeof *layer));
    layer->attrs = attrs != NULL ? *attrs : defaults;
    LG_TRY_GOTO(fill_layer(model, layer, name, kind, inputs, num_inputs));
    if (out_layer != NULL) {
        *out_layer = (int)model->num_layers;
    }
    model->layers[model->num_layers++] = layer;
    layer = NULL;
out:
    if (status != LG_OK) {
        drop_tensors(model, num_params, num_states);
    }
    layer_destroy(layer);
    return status;
}

lg_status lg_model_tie(lg_model *model, int layer, int param_idx, int with_layer,
                       int with_param_idx)
{
    char expected[128];
    char got[128];
    if (layer != (int)model->num_layers - 1 || with_layer < 0 || with_layer >= layer) {
        LG_FAIL(LG_INVALID_ARG,
                "tie: layer %d with %d: the first must be the one just added, the second an "
                "earlier one",
                layer, with_layer);
    }
    lg_layer_info *info = &model->layers[layer]->info;
    const lg_layer_info *with = &model->layers[with_layer]->info;
    LG_TRY(check_range(info->name, "tied parameter", param_idx, 0, info->num_params - 1));
    LG_TRY(check_range(with->name, "tied parameter", with_param_idx, 0, with->num_params - 1));
    const int own_id = info->params[param_idx];
    const int shared_id = with->params[with_param_idx];
    struct param *own = model->params[own_id];
    const struct param *shared = model->params[shared_id];
    if (own->info.owner_layer != layer) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': parameter %d is tied already", info->name, param_idx);
    }
    if (!lg_shape_equal(&own->info.shape, &shared->info.shape)) {
        LG_FAIL(LG_INVALID_ARG, "layer '%s': cannot tie %s %s to %s %s", info->name, own->info.name,
                lg_shape_format(&own->info.shape, got, sizeof got), shared->info.name,
                lg_shape_format(&shared->info.shape, expected, sizeof expected));
    }
    /* The layer was added last, so only its own parameters can stand behind the one that goes. */
    for (size_t id = (size_t)own_id + 1; id < model->num_params; id++) {
        model->params[id - 1] = model->params[id];
    }
    model->num_params--;
    param_destroy(own);
    for (int i = 0; i < info->num_params; i++) {
        info->params[i] -= info->params[i] > own_id ? 1 : 0;
    }
    info->params[param_idx] = shared_id;
    return LG_OK;
}

lg_status lg_model_set_init(lg_model *model, int layer, int param_idx, lg_init init, float scale)
{
    LG_TRY(check_range("(init)", "layer", layer, 0, (int64_t)model->num_layers - 1));
    const lg_layer_info *info = &model->layers[layer]->info;
    LG_TRY(check_range(info->name, "parameter", param_idx, 0, info->num_params - 1));
    lg_param_info *param = &model->params[info->params[param_idx]]->info;
    param->init = init;
    param->init_scale = scale;
    return LG_OK;
}

/* --- reading ------------------------------------------------------------------------------------------------------- */

int lg_model_num_layers(const lg_model *model)
{
    return (int)model->num_layers;
}

int lg_model_num_params(const lg_model *model)
{
    return (int)model->num_params;
}

int lg_model_num_states(const lg_model *model)
{
    return (int)model->num_states;
}

int lg_model_num_inputs(const lg_model *model)
{
    int num_inputs = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct layer *layer = model->layers[i];
        if (layer->info.kind == LG_LAYER_INPUT && layer->attrs.input_idx >= num_inputs) {
            num_inputs = layer->attrs.input_idx + 1;
        }
    }
    return num_inputs;
}

const lg_layer_info *lg_model_layer(const lg_model *model, int layer)
{
    return &model->layers[layer]->info;
}

const lg_param_info *lg_model_param(const lg_model *model, int param)
{
    return &model->params[param]->info;
}

const lg_state_info *lg_model_state(const lg_model *model, int state)
{
    return &model->states[state]->info;
}

int lg_model_find_layer(const lg_model *model, const char *name)
{
    for (size_t i = 0; i < model->num_layers; i++) {
        if (strcmp(model->layers[i]->name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

int64_t lg_model_num_param_elems(const lg_model *model)
{
    int64_t num_elems = 0;
    for (size_t i = 0; i < model->num_params; i++) {
        num_elems += lg_shape_num_elems(&model->params[i]->info.shape);
    }
    return num_elems;
}
