/* MobileNetV3, small and large; see lg_model_mobilenetv3_small() and lg_model_mobilenetv3_large(). */
#include <stdio.h>

#include "base/check.h"
#include "models/build_layers.h"

#define BN_EPSILON 1e-3
#define BN_MOMENTUM 0.01
#define MIN_LAST_MAP 4

lg_mobilenetv3_opts lg_mobilenetv3_opts_default(void)
{
    return (lg_mobilenetv3_opts){
        .input = LG_SHAPE(3, 224, 224), .num_classes = 1000, .width_mult = 1.0, .drop_prob = 0.2};
}

/* One row of the paper's tables 1 and 2: an inverted residual. */
typedef struct row {
    int kernel;
    int expanded;
    int num_outputs;
    bool has_squeeze;
    lg_activation activation;
    int stride;
} row;

static const row small_rows[] = {
    {3, 16, 16, true, LG_ACTIVATION_RELU, 2},
    {3, 72, 24, false, LG_ACTIVATION_RELU, 2},
    {3, 88, 24, false, LG_ACTIVATION_RELU, 1},
    {5, 96, 40, true, LG_ACTIVATION_HARD_SWISH, 2},
    {5, 240, 40, true, LG_ACTIVATION_HARD_SWISH, 1},
    {5, 240, 40, true, LG_ACTIVATION_HARD_SWISH, 1},
    {5, 120, 48, true, LG_ACTIVATION_HARD_SWISH, 1},
    {5, 144, 48, true, LG_ACTIVATION_HARD_SWISH, 1},
    {5, 288, 96, true, LG_ACTIVATION_HARD_SWISH, 2},
    {5, 576, 96, true, LG_ACTIVATION_HARD_SWISH, 1},
    {5, 576, 96, true, LG_ACTIVATION_HARD_SWISH, 1},
};
static const row large_rows[] = {
    {3, 16, 16, false, LG_ACTIVATION_RELU, 1},
    {3, 64, 24, false, LG_ACTIVATION_RELU, 2},
    {3, 72, 24, false, LG_ACTIVATION_RELU, 1},
    {5, 72, 40, true, LG_ACTIVATION_RELU, 2},
    {5, 120, 40, true, LG_ACTIVATION_RELU, 1},
    {5, 120, 40, true, LG_ACTIVATION_RELU, 1},
    {3, 240, 80, false, LG_ACTIVATION_HARD_SWISH, 2},
    {3, 200, 80, false, LG_ACTIVATION_HARD_SWISH, 1},
    {3, 184, 80, false, LG_ACTIVATION_HARD_SWISH, 1},
    {3, 184, 80, false, LG_ACTIVATION_HARD_SWISH, 1},
    {3, 480, 112, true, LG_ACTIVATION_HARD_SWISH, 1},
    {3, 672, 112, true, LG_ACTIVATION_HARD_SWISH, 1},
    {5, 672, 160, true, LG_ACTIVATION_HARD_SWISH, 2},
    {5, 960, 160, true, LG_ACTIVATION_HARD_SWISH, 1},
    {5, 960, 160, true, LG_ACTIVATION_HARD_SWISH, 1},
};

typedef struct variant {
    const char *name;
    const row *rows;
    int num_rows;
    int hidden; /* of the classifier */
} variant;

static const variant small = {"mobilenetv3-small", small_rows,
                              (int)(sizeof small_rows / sizeof small_rows[0]), 1024};
static const variant large = {"mobilenetv3-large", large_rows,
                              (int)(sizeof large_rows / sizeof large_rows[0]), 1280};

#define NUM_STRIDES 5 /* of two, in both: the first convolution's and four rows' */

/* The nearest multiple of 8, at least 8, and not below nine tenths of the number. */
static int64_t round_channels(double num_channels)
{
    int64_t rounded = (int64_t)(num_channels + 4.0) / 8 * 8;
    if (rounded < 8) {
        rounded = 8;
    }
    return (double)rounded < 0.9 * num_channels ? rounded + 8 : rounded;
}

/* Convolution, batch norm and (unless NONE) activation, called `prefix`.0, .1, .2. */
static int add_unit(lgi_builder *b, const char *prefix, int x, const lgi_conv *conv,
                    lg_activation activation)
{
    x = lgi_add_conv(b, lgi_name(b, "%s.0", prefix), x, conv);
    x = lgi_add_batch_norm(b, lgi_name(b, "%s.1", prefix), x, BN_EPSILON, BN_MOMENTUM);
    if (activation != LG_ACTIVATION_NONE) {
        x = lgi_add_activation(b, lgi_name(b, "%s.2", prefix), x, activation);
    }
    return x;
}

/* Squeeze to a quarter, excite: scales each channel by a number in [0, 1] that depends on all of them. */
static int add_squeeze(lgi_builder *b, const char *prefix, int x, int64_t num_channels)
{
    const lgi_weight_init init = {LG_INIT_KAIMING_NORMAL, 0.0};
    int s = lgi_add_plain(b, lgi_name(b, "%s.avgpool", prefix), LG_LAYER_GLOBAL_AVG_POOL, x, -1);
    s = lgi_add_linear(b, lgi_name(b, "%s.fc1", prefix), s,
                       round_channels((double)(num_channels / 4)), true, init);
    s = lgi_add_activation(b, lgi_name(b, "%s.activation", prefix), s, LG_ACTIVATION_RELU);
    s = lgi_add_linear(b, lgi_name(b, "%s.fc2", prefix), s, num_channels, true, init);
    s = lgi_add_activation(b, lgi_name(b, "%s.scale_activation", prefix), s,
                           LG_ACTIVATION_HARD_SIGMOID);
    return lgi_add_plain(b, lgi_name(b, "%s.scale", prefix), LG_LAYER_CHANNEL_SCALE, x, s);
}

static int add_row(lgi_builder *b, const row *r, int idx, int x, double width_mult, int64_t stride)
{
    const int64_t num_inputs = lgi_dim(b, x, 0);
    const int64_t expanded = round_channels(r->expanded * width_mult);
    const int64_t num_outputs = round_channels(r->num_outputs * width_mult);
    const lgi_conv expand = {.num_outputs = expanded, .kernel = 1, .stride = 1};
    const lgi_conv depthwise = {
        .num_outputs = expanded, .kernel = r->kernel, .stride = stride, .groups = expanded};
    const lgi_conv project = {.num_outputs = num_outputs, .kernel = 1, .stride = 1};
    char prefix[64];
    int part = 0;
    int y = x;
    if (expanded != num_inputs) {
        (void)snprintf(prefix, sizeof prefix, "features.%d.block.%d", idx + 1, part++);
        y = add_unit(b, prefix, y, &expand, r->activation);
    }
    (void)snprintf(prefix, sizeof prefix, "features.%d.block.%d", idx + 1, part++);
    y = add_unit(b, prefix, y, &depthwise, r->activation);
    if (r->has_squeeze) {
        (void)snprintf(prefix, sizeof prefix, "features.%d.block.%d", idx + 1, part++);
        y = add_squeeze(b, prefix, y, expanded);
    }
    (void)snprintf(prefix, sizeof prefix, "features.%d.block.%d", idx + 1, part++);
    y = add_unit(b, prefix, y, &project, LG_ACTIVATION_NONE);
    if (stride == 1 && num_inputs == num_outputs) {
        y = lgi_add_plain(b, lgi_name(b, "features.%d.add", idx + 1), LG_LAYER_ADD, x, y);
    }
    return y;
}

/* How many of the strides must be one for the last map to be large enough. */
static int num_strides_dropped(const lg_shape *input)
{
    const int64_t side = input->dims[1] < input->dims[2] ? input->dims[1] : input->dims[2];
    for (int num_dropped = 0; num_dropped < NUM_STRIDES; num_dropped++) {
        const int64_t factor = (int64_t)1 << (NUM_STRIDES - num_dropped);
        if ((side + factor - 1) / factor >= MIN_LAST_MAP) {
            return num_dropped;
        }
    }
    return NUM_STRIDES;
}

static lg_status build(lg_model **out, const lg_mobilenetv3_opts *opts, const variant *v)
{
    *out = NULL;
    LG_TRY(lgi_check_image_options(v->name, &opts->input, opts->num_classes, opts->label_smoothing,
                                   opts->drop_prob));
    if (!(opts->width_mult > 0.0 && opts->width_mult <= 8.0)) {
        LG_FAIL(LG_INVALID_ARG, "%s: width_mult is %g, not in (0, 8]", v->name, opts->width_mult);
    }

    lgi_builder b;
    char prefix[64];
    lgi_builder_init(&b);
    int num_dropped = num_strides_dropped(&opts->input);
    const double mult = opts->width_mult;
    const lgi_conv first = {
        .num_outputs = round_channels(16 * mult), .kernel = 3, .stride = num_dropped > 0 ? 1 : 2};
    num_dropped--;
    const lgi_conv last = {.num_outputs =
                               6 * round_channels(v->rows[v->num_rows - 1].num_outputs * mult),
                           .kernel = 1,
                           .stride = 1};
    const lgi_weight_init init = {LG_INIT_NORMAL, 0.01};
    int x = lgi_add_input(&b, "image", 0, LG_DTYPE_F32, &opts->input);
    x = add_unit(&b, "features.0", x, &first, LG_ACTIVATION_HARD_SWISH);
    for (int i = 0; i < v->num_rows; i++) {
        const bool is_dropped = v->rows[i].stride == 2 && num_dropped-- > 0;
        x = add_row(&b, &v->rows[i], i, x, mult, is_dropped ? 1 : v->rows[i].stride);
    }
    (void)snprintf(prefix, sizeof prefix, "features.%d", v->num_rows + 1);
    x = add_unit(&b, prefix, x, &last, LG_ACTIVATION_HARD_SWISH);
    x = lgi_add_plain(&b, "avgpool", LG_LAYER_GLOBAL_AVG_POOL, x, -1);
    x = lgi_add_linear(&b, "classifier.0", x, round_channels(v->hidden * mult), true, init);
    x = lgi_add_activation(&b, "classifier.1", x, LG_ACTIVATION_HARD_SWISH);
    x = lgi_add_dropout(&b, "classifier.2", x, opts->drop_prob);
    x = lgi_add_linear(&b, "classifier.3", x, opts->num_classes, true, init);
    lgi_add_loss(&b, x, opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}

lg_status lg_model_mobilenetv3_small(lg_model **out, const lg_mobilenetv3_opts *opts)
{
    return build(out, opts, &small);
}

lg_status lg_model_mobilenetv3_large(lg_model **out, const lg_mobilenetv3_opts *opts)
{
    return build(out, opts, &large);
}
