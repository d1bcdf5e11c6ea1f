/*
 * DenseNet-BC; see lg_model_densenet() and lg_model_densenet_imagenet(). A block's features are concatenated two at a time (all so far, and the new
 * ones): each feature map then has two readers however long the block is, and its gradient is summed once per reader.
 */
#include <stdio.h>

#include "base/check.h"
#include "models/build_layers.h"

#define BN_EPSILON 1e-5
#define BN_MOMENTUM 0.1

lg_densenet_opts lg_densenet_opts_default(void)
{
    return (lg_densenet_opts){
        .input = LG_SHAPE(3, 32, 32), .num_classes = 10, .depth = 100, .growth = 12};
}

lg_densenet_imagenet_opts lg_densenet_imagenet_opts_default(void)
{
    return (lg_densenet_imagenet_opts){
        .input = LG_SHAPE(3, 224, 224), .num_classes = 1000, .depth = 121, .growth = 32};
}

static int add_norm_relu(lgi_builder *b, const char *prefix, const char *suffix, int x)
{
    x = lgi_add_batch_norm(b, lgi_name(b, "%s.norm%s", prefix, suffix), x, BN_EPSILON, BN_MOMENTUM);
    return lgi_add_activation(b, lgi_name(b, "%s.relu%s", prefix, suffix), x, LG_ACTIVATION_RELU);
}

static int add_dense_layer(lgi_builder *b, const char *prefix, int x, int64_t growth,
                           double drop_prob)
{
    const lgi_conv bottleneck = {.num_outputs = 4 * growth, .kernel = 1, .stride = 1};
    const lgi_conv grow = {.num_outputs = growth, .kernel = 3, .stride = 1};
    int y = add_norm_relu(b, prefix, "1", x);
    y = lgi_add_conv(b, lgi_name(b, "%s.conv1", prefix), y, &bottleneck);
    y = add_norm_relu(b, prefix, "2", y);
    y = lgi_add_conv(b, lgi_name(b, "%s.conv2", prefix), y, &grow);
    y = lgi_add_dropout(b, lgi_name(b, "%s.drop", prefix), y, drop_prob);
    return lgi_add_plain(b, lgi_name(b, "%s.concat", prefix), LG_LAYER_CONCAT, x, y);
}

/* Halves channels, height and width. */
static int add_transition(lgi_builder *b, const char *prefix, int x)
{
    const int64_t num_channels = lgi_dim(b, x, 0) / 2;
    const lgi_conv compress = {
        .num_outputs = num_channels > 0 ? num_channels : 1, .kernel = 1, .stride = 1};
    x = add_norm_relu(b, prefix, "", x);
    x = lgi_add_conv(b, lgi_name(b, "%s.conv", prefix), x, &compress);
    return lgi_add_pool(b, lgi_name(b, "%s.pool", prefix), LG_LAYER_AVG_POOL, x, 2, 2, 0);
}

/* Blocks of dense layers with transitions between them, the last norm, and the classifier. */
static void add_blocks(lgi_builder *b, int x, const int *num_layers, int num_blocks, int64_t growth,
                       double drop_prob, int64_t num_classes, double label_smoothing)
{
    char prefix[64];
    for (int block = 1; block <= num_blocks; block++) {
        for (int layer = 1; layer <= num_layers[block - 1]; layer++) {
            (void)snprintf(prefix, sizeof prefix, "features.denseblock%d.denselayer%d", block,
                           layer);
            x = add_dense_layer(b, prefix, x, growth, drop_prob);
        }
        if (block < num_blocks) {
            (void)snprintf(prefix, sizeof prefix, "features.transition%d", block);
            x = add_transition(b, prefix, x);
        }
    }
    x = add_norm_relu(b, "features", "5", x);
    x = lgi_add_plain(b, "avgpool", LG_LAYER_GLOBAL_AVG_POOL, x, -1);
    x = lgi_add_linear(b, "classifier", x, num_classes, true,
                       (lgi_weight_init){LG_INIT_UNIFORM_FAN_IN, 0.0});
    lgi_add_loss(b, x, label_smoothing);
}

lg_status lg_model_densenet(lg_model **out, const lg_densenet_opts *opts)
{
    *out = NULL;
    LG_TRY(lgi_check_image_options("densenet", &opts->input, opts->num_classes,
                                   opts->label_smoothing, opts->drop_prob));
    LG_TRY(lgi_check_option("densenet", "input height", opts->input.dims[1], 4, 65536));
    LG_TRY(lgi_check_option("densenet", "input width", opts->input.dims[2], 4, 65536));
    LG_TRY(lgi_check_option("densenet", "depth", opts->depth, 10, 10000));
    if ((opts->depth - 4) % 6 != 0) {
        LG_FAIL(LG_INVALID_ARG, "densenet: depth is %lld, not 6n + 4 (10, 16, 22, ...)",
                (long long)opts->depth);
    }
    LG_TRY(lgi_check_option("densenet", "growth", opts->growth, 1, 65536));

    lgi_builder b;
    lgi_builder_init(&b);
    const int per_block = (int)(opts->depth - 4) / 6;
    const int num_layers[3] = {per_block, per_block, per_block};
    const lgi_conv first = {.num_outputs = 2 * opts->growth, .kernel = 3, .stride = 1};
    int x = lgi_add_input(&b, "image", 0, LG_DTYPE_F32, &opts->input);
    x = lgi_add_conv(&b, "features.conv0", x, &first);
    add_blocks(&b, x, num_layers, 3, opts->growth, opts->drop_prob, opts->num_classes,
               opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}

/* The paper's table 1. */
static const struct {
    int64_t depth;
    int num_layers[4];
} imagenet_depths[] = {
    {121, {6, 12, 24, 16}},
    {169, {6, 12, 32, 32}},
    {201, {6, 12, 48, 32}},
    {264, {6, 12, 64, 48}},
};

lg_status lg_model_densenet_imagenet(lg_model **out, const lg_densenet_imagenet_opts *opts)
{
    *out = NULL;
    const int *num_layers = NULL;
    LG_TRY(lgi_check_image_options("densenet", &opts->input, opts->num_classes,
                                   opts->label_smoothing, opts->drop_prob));
    LG_TRY(lgi_check_option("densenet", "input height", opts->input.dims[1], 32, 65536));
    LG_TRY(lgi_check_option("densenet", "input width", opts->input.dims[2], 32, 65536));
    LG_TRY(lgi_check_option("densenet", "growth", opts->growth, 1, 65536));
    for (size_t i = 0; i < sizeof imagenet_depths / sizeof imagenet_depths[0]; i++) {
        if (imagenet_depths[i].depth == opts->depth) {
            num_layers = imagenet_depths[i].num_layers;
        }
    }
    if (num_layers == NULL) {
        LG_FAIL(LG_INVALID_ARG, "densenet: depth is %lld, not one of 121, 169, 201, 264",
                (long long)opts->depth);
    }

    lgi_builder b;
    lgi_builder_init(&b);
    const lgi_conv first = {.num_outputs = 2 * opts->growth, .kernel = 7, .stride = 2};
    int x = lgi_add_input(&b, "image", 0, LG_DTYPE_F32, &opts->input);
    x = lgi_add_conv(&b, "features.conv0", x, &first);
    x = add_norm_relu(&b, "features", "0", x);
    x = lgi_add_pool(&b, "features.pool0", LG_LAYER_MAX_POOL, x, 3, 2, 1);
    add_blocks(&b, x, num_layers, 4, opts->growth, opts->drop_prob, opts->num_classes,
               opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}
