/*
 * The cases that each backend must compute: every layer kind with its attributes, at friendly and at odd sizes (one
 * channel, maps of one cell, one sample, sizes that are no multiple of a vector).
 */
#include "unit/device/device_harness.h"

#define SHAPE0 \
    { \
        0, \
        { \
            0 \
        } \
    }
#define SHAPE1(a) \
    { \
        1, \
        { \
            a \
        } \
    }
#define SHAPE2(a, b) \
    { \
        2, \
        { \
            a, b \
        } \
    }
#define SHAPE3(a, b, c) \
    { \
        3, \
        { \
            a, b, c \
        } \
    }

#define SQUARE(k, s, p) \
    { \
        {k, k}, {s, s}, {p, p}, {p, p}, \
        { \
            1, 1 \
        } \
    }

/* clang-format off */
#define CONV(case_name, n, c, h, w, outputs, num_groups, bias, ...) \
    .name = "conv2d " case_name, .kind = LG_LAYER_CONV2D, .num_samples = n, .num_inputs = 1, \
    .in_shapes = {SHAPE3(c, h, w)}, \
    .attrs = {.num_outputs = outputs, .groups = num_groups, .has_bias = bias, .window = __VA_ARGS__}

#define LINEAR(case_name, n, outputs, bias, ...) \
    .name = "linear " case_name, .kind = LG_LAYER_LINEAR, .num_samples = n, .num_inputs = 1, \
    .in_shapes = {__VA_ARGS__}, .attrs = {.num_outputs = outputs, .has_bias = bias}

#define BATCH_NORM(case_name, n, fused, ...) \
    .name = "batch_norm " case_name, .kind = LG_LAYER_BATCH_NORM, .num_samples = n, .num_inputs = 1, \
    .in_shapes = {__VA_ARGS__}, \
    .attrs = {.activation = LG_ACTIVATION_##fused, .epsilon = 1e-5f, .momentum = 0.1f}

#define LAYER_NORM(case_name, n, ...) \
    .name = "layer_norm " case_name, .kind = LG_LAYER_LAYER_NORM, .num_samples = n, .num_inputs = 1, \
    .in_shapes = {__VA_ARGS__}, .attrs = {.epsilon = 1e-5f}

#define ACTIVATION(case_name, function, n, ...) \
    .name = "activation " case_name, .kind = LG_LAYER_ACTIVATION, .num_samples = n, .num_inputs = 1, \
    .in_shapes = {__VA_ARGS__}, .attrs = {.activation = LG_ACTIVATION_##function}, .input_scale = 3.0f

#define POOL(case_name, pool, n, c, h, w, ...) \
    .name = case_name, .kind = LG_LAYER_##pool, .num_samples = n, .num_inputs = 1, \
    .in_shapes = {SHAPE3(c, h, w)}, .attrs = {.window = __VA_ARGS__}

#define PLAIN(case_name, layer_kind, n, inputs, ...) \
    .name = case_name, .kind = LG_LAYER_##layer_kind, .num_samples = n, .num_inputs = inputs, \
    .in_shapes = {__VA_ARGS__}

#define DROPOUT(case_name, prob, n, ...) \
    PLAIN("dropout " case_name, DROPOUT, n, 1, __VA_ARGS__), .attrs = {.drop_prob = prob}

#define EMBEDDING(case_name, n, tokens, vocabulary, features) \
    .name = "token_embedding " case_name, .kind = LG_LAYER_TOKEN_EMBEDDING, .num_samples = n, \
    .num_inputs = 1, .in_shapes = {SHAPE1(tokens)}, .in_dtypes = {LG_DTYPE_I32}, \
    .attrs = {.num_embeddings = vocabulary, .num_outputs = features}

#define POSITION(case_name, n, tokens, features, max_tokens) \
    .name = "position_embedding " case_name, .kind = LG_LAYER_POSITION_EMBEDDING, .num_samples = n, \
    .num_inputs = 1, .in_shapes = {SHAPE2(tokens, features)}, .attrs = {.num_embeddings = max_tokens}

#define ATTENTION(case_name, n, inputs, tokens, features, heads, causal) \
    .name = "attention " case_name, .kind = LG_LAYER_ATTENTION, .num_samples = n, .num_inputs = inputs, \
    .in_shapes = {SHAPE2(tokens, 3 * (features)), SHAPE1(tokens)}, \
    .attrs = {.num_heads = heads, .is_causal = causal}

#define LOSS(case_name, n, logits, targets, smoothing, ignored, weights) \
    .name = "loss " case_name, .kind = LG_LAYER_SOFTMAX_CROSS_ENTROPY, .num_samples = n, .num_inputs = 2, \
    .in_shapes = {logits, targets}, .in_dtypes = {LG_DTYPE_F32, LG_DTYPE_I32}, .input_scale = 2.0f, \
    .attrs = {.label_smoothing = smoothing, .ignore_index = ignored, .class_weights = weights}

static const float class_weights[7] = {1.0f, 0.25f, 3.0f, 0.0f, 1.5f, 0.75f, 2.0f};

static const device_case cases[] = {
    {PLAIN("input f32", INPUT, 3, 1, SHAPE3(2, 3, 5)), .first_sample = 2},

    {CONV("3x3 same, 5 to 7 channels", 2, 5, 6, 9, 7, 1, true, SQUARE(3, 1, 1))},
    {CONV("3x3 same, no bias, 16 to 32 channels", 3, 16, 8, 8, 32, 1, false, SQUARE(3, 1, 1))},
    {CONV("3x3 stride 2, 16 to 20 channels", 2, 16, 7, 9, 20, 1, true, SQUARE(3, 2, 1))},
    {CONV("1x1, 33 to 17 channels", 2, 33, 5, 5, 17, 1, true, SQUARE(1, 1, 0))},
    {CONV("1x1 stride 2", 2, 8, 7, 7, 16, 1, false, SQUARE(1, 2, 0))},
    {CONV("first layer, 1 channel", 2, 1, 9, 9, 16, 1, false, SQUARE(3, 1, 1)), .is_first_layer = true},
    {CONV("3 channels, 7x7 stride 2", 2, 3, 15, 15, 8, 1, false, SQUARE(7, 2, 3))},
    {CONV("1 to 1 channel, 1x1 map, 1 sample", 1, 1, 1, 1, 1, 1, true, SQUARE(1, 1, 0))},
    {CONV("1x1 map under a 3x3 window", 1, 6, 1, 1, 4, 1, true, SQUARE(3, 1, 1))},
    {CONV("groups of 3 to 2 channels", 2, 9, 6, 5, 6, 3, true, SQUARE(3, 1, 1))},
    {CONV("depthwise 3x3", 2, 17, 7, 7, 17, 17, false, SQUARE(3, 1, 1))},
    {CONV("depthwise 5x5 stride 2, 16 channels", 2, 16, 9, 9, 16, 16, true, SQUARE(5, 2, 2))},
    {CONV("depthwise 5x5, 20 channels", 3, 20, 7, 7, 20, 20, true, SQUARE(5, 1, 2))},
    {CONV("depthwise 5x5, 6 channels", 2, 6, 5, 6, 6, 6, false, SQUARE(5, 1, 2))},
    {CONV("depthwise, 2 outputs a channel", 2, 5, 6, 6, 10, 5, true, SQUARE(3, 1, 1))},
    {CONV("asymmetric window, stride, padding", 2, 4, 8, 11, 6, 1, true,
          {{2, 5}, {1, 3}, {0, 3}, {1, 1}, {1, 1}})},
    {CONV("dilation 2 and 3", 2, 4, 9, 11, 5, 1, true, {{3, 3}, {1, 1}, {2, 3}, {2, 3}, {2, 3}})},
    {CONV("dilation with stride and groups", 1, 8, 13, 13, 8, 2, false,
          {{3, 3}, {2, 2}, {2, 1}, {2, 2}, {2, 2}})},
    {CONV("3x3, 48 to 64 channels", 2, 48, 7, 7, 64, 1, false, SQUARE(3, 1, 1))},
    {CONV("3x3 stride 2, 32 to 64 channels, odd map", 3, 32, 7, 7, 64, 1, false, SQUARE(3, 2, 1))},
    {CONV("1x1, 1x1 maps: as in squeeze-excite", 3, 24, 1, 1, 8, 1, true, SQUARE(1, 1, 0))},
    {CONV("accumulated gradient", 2, 5, 6, 6, 7, 1, true, SQUARE(3, 1, 1)), .accumulates = true},
    {CONV("accumulated gradient, 16 to 16", 2, 16, 6, 6, 16, 1, true, SQUARE(3, 1, 1)),
     .accumulates = true},
    {CONV("fixed weight", 2, 16, 6, 6, 16, 1, true, SQUARE(3, 1, 1)), .has_fixed_params = true},
    {CONV("evaluation", 2, 5, 6, 6, 7, 1, true, SQUARE(3, 1, 1)), .mode = LG_GRAPH_EVAL},

    {LINEAR("64 to 48", 8, 48, true, SHAPE1(64))},
    {LINEAR("7 to 5", 3, 5, true, SHAPE1(7))},
    {LINEAR("1 to 1, 1 sample", 1, 1, true, SHAPE1(1))},
    {LINEAR("no bias", 4, 10, false, SHAPE1(33))},
    {LINEAR("sequence", 2, 19, true, SHAPE2(5, 13))},
    {LINEAR("sequence, no bias, accumulated", 2, 24, false, SHAPE2(6, 16)), .accumulates = true},
    {LINEAR("long rows of a sequence", 3, 96, true, SHAPE2(16, 200))},
    {LINEAR("many outputs", 2, 301, true, SHAPE2(4, 32))},
    {LINEAR("last dimension of a map", 2, 3, true, SHAPE3(2, 4, 5))},
    {LINEAR("accumulated gradient", 3, 6, true, SHAPE1(9)), .accumulates = true},
    {LINEAR("tied weight", 2, 11, false, SHAPE2(4, 8)), .has_fixed_params = true},
    {LINEAR("tied weight, accumulated", 2, 11, true, SHAPE2(4, 8)), .has_fixed_params = true, .accumulates = true},
    {LINEAR("first layer", 3, 6, true, SHAPE1(9)), .is_first_layer = true},
    {LINEAR("evaluation", 3, 6, true, SHAPE1(9)), .mode = LG_GRAPH_EVAL},

    {BATCH_NORM("16 maps", 3, NONE, SHAPE3(16, 5, 6))},
    {BATCH_NORM("5 maps", 2, NONE, SHAPE3(5, 3, 7))},
    {BATCH_NORM("with relu, 16 maps", 2, RELU, SHAPE3(16, 4, 4))},
    {BATCH_NORM("with relu, 7 maps", 3, RELU, SHAPE3(7, 3, 3))},
    {BATCH_NORM("1 channel, 1 sample", 1, NONE, SHAPE3(1, 4, 5))},
    {BATCH_NORM("1x1 maps", 6, RELU, SHAPE3(9, 1, 1))},
    {BATCH_NORM("features", 8, NONE, SHAPE1(10))},
    {BATCH_NORM("features with relu", 8, RELU, SHAPE1(16))},
    {BATCH_NORM("accumulated gradient", 2, RELU, SHAPE3(16, 3, 5)), .accumulates = true},
    {BATCH_NORM("first layer", 3, NONE, SHAPE3(4, 3, 3)), .is_first_layer = true},
    {BATCH_NORM("one number a channel", 1, NONE, SHAPE3(6, 1, 1)), .condition = 316.0 /* as below */},
    {BATCH_NORM("evaluation", 2, NONE, SHAPE3(16, 3, 3)), .mode = LG_GRAPH_EVAL},
    {BATCH_NORM("evaluation with relu", 2, RELU, SHAPE3(5, 3, 3)), .mode = LG_GRAPH_EVAL},
    {BATCH_NORM("prediction, 1 sample", 1, RELU, SHAPE3(3, 1, 1)), .mode = LG_GRAPH_PREDICT},

    {LAYER_NORM("16 features", 4, SHAPE1(16))},
    {LAYER_NORM("sequence of 13", 3, SHAPE2(5, 13))},
    {LAYER_NORM("1 row of 3", 1, SHAPE1(3))},
    {LAYER_NORM("1 feature", 2, SHAPE2(3, 1)), .condition = 316.0 /* variance 0: 1 / sqrt(epsilon) */},
    {LAYER_NORM("accumulated gradient", 2, SHAPE2(4, 24)), .accumulates = true},
    {LAYER_NORM("evaluation", 2, SHAPE2(4, 24)), .mode = LG_GRAPH_EVAL},

    {ACTIVATION("relu", RELU, 2, SHAPE3(5, 3, 3))},
    {ACTIVATION("relu6", RELU6, 2, SHAPE3(16, 3, 3))},
    {ACTIVATION("hard_swish", HARD_SWISH, 2, SHAPE3(5, 3, 3))},
    {ACTIVATION("hard_sigmoid", HARD_SIGMOID, 3, SHAPE1(19))},
    {ACTIVATION("gelu_erf", GELU_ERF, 2, SHAPE2(5, 17))},
    {ACTIVATION("gelu_tanh", GELU_TANH, 2, SHAPE2(5, 17))},
    {ACTIVATION("relu of one number", RELU, 1, SHAPE1(1))},
    {ACTIVATION("gelu_tanh, evaluation", GELU_TANH, 2, SHAPE2(5, 17)), .mode = LG_GRAPH_EVAL},

    {POOL("max_pool 2x2 stride 2", MAX_POOL, 2, 5, 6, 8, SQUARE(2, 2, 0))},
    {POOL("max_pool 3x3 stride 2 padded, 16 maps", MAX_POOL, 2, 16, 7, 7, SQUARE(3, 2, 1))},
    {POOL("max_pool overlapping", MAX_POOL, 1, 3, 5, 5, SQUARE(3, 1, 1))},
    {POOL("max_pool asymmetric", MAX_POOL, 2, 3, 7, 9, {{2, 3}, {2, 1}, {0, 2}, {1, 0}, {1, 1}})},
    {POOL("max_pool 1x1 map", MAX_POOL, 1, 1, 1, 1, SQUARE(1, 1, 0))},
    {POOL("max_pool evaluation", MAX_POOL, 2, 16, 7, 7, SQUARE(3, 2, 1)), .mode = LG_GRAPH_EVAL},
    {POOL("avg_pool 2x2 stride 2", AVG_POOL, 2, 16, 6, 8, SQUARE(2, 2, 0))},
    {POOL("avg_pool 3x3 padded", AVG_POOL, 2, 5, 5, 7, SQUARE(3, 1, 1))},
    {POOL("avg_pool asymmetric", AVG_POOL, 2, 3, 7, 9, {{2, 3}, {2, 1}, {0, 2}, {1, 0}, {1, 1}})},
    {POOL("avg_pool evaluation", AVG_POOL, 1, 5, 5, 7, SQUARE(3, 2, 1)), .mode = LG_GRAPH_EVAL},
    {PLAIN("global_avg_pool", GLOBAL_AVG_POOL, 2, 1, SHAPE3(16, 5, 7))},
    {PLAIN("global_avg_pool 5 maps", GLOBAL_AVG_POOL, 3, 1, SHAPE3(5, 3, 3))},
    {PLAIN("global_avg_pool 1x1 map", GLOBAL_AVG_POOL, 1, 1, SHAPE3(7, 1, 1))},

    {PLAIN("flatten", FLATTEN, 2, 1, SHAPE3(5, 3, 4))},
    {PLAIN("flatten 16 maps", FLATTEN, 2, 1, SHAPE3(16, 3, 3))},

    {PLAIN("add of 2", ADD, 2, 2, SHAPE3(5, 3, 3), SHAPE3(5, 3, 3))},
    {PLAIN("add of 3", ADD, 2, 3, SHAPE2(4, 7), SHAPE2(4, 7), SHAPE2(4, 7))},
    {PLAIN("add of 2 with relu, 16 maps", ADD, 2, 2, SHAPE3(16, 3, 3), SHAPE3(16, 3, 3)),
     .attrs = {.activation = LG_ACTIVATION_RELU}},
    {PLAIN("add of 3 with relu", ADD, 3, 3, SHAPE3(3, 5, 3), SHAPE3(3, 5, 3), SHAPE3(3, 5, 3)),
     .attrs = {.activation = LG_ACTIVATION_RELU}},
    {PLAIN("concat of 2", CONCAT, 2, 2, SHAPE3(5, 3, 3), SHAPE3(2, 3, 3))},
    {PLAIN("concat of 2, 16 and 32 maps", CONCAT, 2, 2, SHAPE3(16, 3, 3), SHAPE3(32, 3, 3))},
    {PLAIN("concat of 3, 12 maps each", CONCAT, 2, 3, SHAPE3(12, 3, 3), SHAPE3(12, 3, 3), SHAPE3(12, 3, 3))},
    {PLAIN("concat of features", CONCAT, 3, 2, SHAPE1(4), SHAPE1(3))},
    {PLAIN("concat of 1", CONCAT, 2, 1, SHAPE3(3, 2, 2))},
    {PLAIN("channel_scale", CHANNEL_SCALE, 2, 2, SHAPE3(5, 3, 4), SHAPE1(5))},
    {PLAIN("channel_scale 16 maps", CHANNEL_SCALE, 3, 2, SHAPE3(16, 3, 3), SHAPE1(16))},
    {PLAIN("channel_scale 1x1 maps", CHANNEL_SCALE, 1, 2, SHAPE3(3, 1, 1), SHAPE1(3))},

    {DROPOUT("0.5", 0.5f, 3, SHAPE2(5, 7))},
    {DROPOUT("0.1 of maps, later micro-batch", 0.1f, 2, SHAPE3(16, 5, 5)), .first_sample = 3},
    {DROPOUT("0.3 of maps", 0.3f, 2, SHAPE3(5, 4, 3)), .first_sample = 1},
    {DROPOUT("0", 0.0f, 2, SHAPE1(9))},
    {DROPOUT("evaluation", 0.5f, 2, SHAPE1(9)), .mode = LG_GRAPH_EVAL},

    {EMBEDDING("of few ids", 3, 7, 5, 9)},
    {EMBEDDING("of many ids", 1, 4, 50, 16)},
    {EMBEDDING("accumulated", 2, 5, 6, 8), .accumulates = true},
    {EMBEDDING("tied, accumulated, later micro-batch", 2, 5, 11, 8), .accumulates = true,
     .has_fixed_params = true, .first_sample = 1},
    {EMBEDDING("evaluation", 2, 5, 6, 8), .mode = LG_GRAPH_EVAL},
    {POSITION("all positions", 2, 5, 8, 5)},
    {POSITION("fewer positions than the table has", 3, 4, 7, 9)},
    {POSITION("accumulated", 2, 4, 7, 9), .accumulates = true},

    {ATTENTION("full, 2 heads", 2, 1, 5, 8, 2, false)},
    {ATTENTION("causal, 2 heads", 2, 1, 6, 12, 2, true)},
    {ATTENTION("causal, 4 heads of 16", 1, 1, 17, 64, 4, true)},
    {ATTENTION("full, 3 heads of 5", 2, 1, 7, 15, 3, false)},
    {ATTENTION("one token", 2, 1, 1, 4, 2, true)},
    {ATTENTION("one head of one feature", 1, 1, 4, 1, 1, false)},
    {ATTENTION("full, f32 mask", 3, 2, 6, 8, 2, false)},
    {ATTENTION("full, i32 mask", 3, 2, 6, 8, 2, false), .in_dtypes = {LG_DTYPE_F32, LG_DTYPE_I32}},
    {ATTENTION("causal, mask", 3, 2, 6, 8, 2, true)},
    {ATTENTION("full, a sample of padding only", 2, 2, 5, 8, 2, false),
     .is_sample0_all_padding = true},
    {ATTENTION("causal, evaluation", 2, 1, 6, 12, 2, true), .mode = LG_GRAPH_EVAL},
    {ATTENTION("mask, evaluation", 2, 2, 5, 8, 2, false), .mode = LG_GRAPH_EVAL,
     .is_sample0_all_padding = true},

    {LOSS("of 10 classes", 5, SHAPE1(10), SHAPE0, 0.0f, -100, NULL)},
    {LOSS("of 1 class, 1 sample", 1, SHAPE1(1), SHAPE0, 0.0f, -100, NULL)},
    {LOSS("of tokens", 2, SHAPE2(5, 17), SHAPE1(5), 0.0f, -100, NULL)},
    {LOSS("with ignored tokens", 3, SHAPE2(6, 9), SHAPE1(6), 0.0f, -100, NULL), .has_ignored_targets = true},
    {LOSS("with an ignored class", 6, SHAPE1(5), SHAPE0, 0.0f, 2, NULL), .has_ignored_targets = true},
    {LOSS("smoothed", 4, SHAPE1(7), SHAPE0, 0.1f, -100, NULL)},
    {LOSS("weighted", 9, SHAPE1(7), SHAPE0, 0.0f, -100, class_weights)},
    {LOSS("smoothed, weighted, ignored", 4, SHAPE2(5, 7), SHAPE1(5), 0.2f, -1, class_weights),
     .has_ignored_targets = true},
    {LOSS("evaluation", 4, SHAPE1(7), SHAPE0, 0.1f, -100, class_weights), .mode = LG_GRAPH_EVAL},
};
/* clang-format on */

const device_case *device_cases(int *num_cases)
{
    *num_cases = (int)(sizeof cases / sizeof cases[0]);
    return cases;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t device_case_longest_sum(const device_case *c)
{
    const lg_shape *in = &c->in_shapes[0];
    const lg_window *window = &c->attrs.window;
    const int64_t num_in = lg_shape_num_elems(in);
    const int64_t last = in->num_dims > 0 ? in->dims[in->num_dims - 1] : 1;
    const int64_t rows = c->num_samples * num_in / last;
    switch (c->kind) {
    case LG_LAYER_CONV2D: {
        const int64_t padded = (in->dims[1] + window->pad_begin[0] + window->pad_end[0]) *
                               (in->dims[2] + window->pad_begin[1] + window->pad_end[1]);
        const int64_t channels = larger(in->dims[0], c->attrs.num_outputs) / c->attrs.groups;
        return larger(c->num_samples * padded, channels * window->kernel[0] * window->kernel[1]);
    }
    case LG_LAYER_LINEAR:
        return larger(larger(last, c->attrs.num_outputs), rows);
    case LG_LAYER_BATCH_NORM:
        return c->num_samples * num_in / in->dims[0];
    case LG_LAYER_LAYER_NORM:
    case LG_LAYER_ATTENTION:
        return larger(last, rows);
    case LG_LAYER_MAX_POOL:
    case LG_LAYER_AVG_POOL:
        return window->kernel[0] * window->kernel[1];
    case LG_LAYER_GLOBAL_AVG_POOL:
    case LG_LAYER_CHANNEL_SCALE:
        return num_in / in->dims[0];
    case LG_LAYER_TOKEN_EMBEDDING:
        return c->num_samples * num_in;
    case LG_LAYER_POSITION_EMBEDDING:
        return c->num_samples;
    case LG_LAYER_ADD:
        return c->num_inputs;
    case LG_LAYER_SOFTMAX_CROSS_ENTROPY:
        return c->num_samples * num_in;
    default:
        return 1;
    }
}
