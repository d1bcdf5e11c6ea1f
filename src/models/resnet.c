/* Residual networks, for small images and for ImageNet's; see lg_model_resnet(), lg_model_resnet_imagenet(). */
#include "base/check.h"
#include "models/build_layers.h"

#define BN_EPSILON 1e-5
#define BN_MOMENTUM 0.1

lg_resnet_opts lg_resnet_opts_default(void)
{
    return (lg_resnet_opts){
        .input = LG_SHAPE(3, 32, 32), .num_classes = 10, .depth = 20, .width = 16};
}

lg_resnet_imagenet_opts lg_resnet_imagenet_opts_default(void)
{
    return (lg_resnet_imagenet_opts){
        .input = LG_SHAPE(3, 224, 224), .num_classes = 1000, .depth = 50, .width = 64};
}

/* Convolution and batch norm `idx` of a block. */
static int add_conv_norm(lgi_builder *b, int stage, int block, int idx, int x, const lgi_conv *conv)
{
    x = lgi_add_conv(b, lgi_name(b, "layer%d.%d.conv%d", stage, block, idx), x, conv);
    return lgi_add_batch_norm(b, lgi_name(b, "layer%d.%d.bn%d", stage, block, idx), x, BN_EPSILON,
                              BN_MOMENTUM);
}

static int add_relu(lgi_builder *b, int stage, int block, int idx, int x)
{
    return lgi_add_activation(b, lgi_name(b, "layer%d.%d.relu%d", stage, block, idx), x,
                              LG_ACTIVATION_RELU);
}

/* The sum of `y` and the block's input x, which is projected if the shape changes. */
static int add_shortcut(lgi_builder *b, int stage, int block, int x, int y, int64_t stride)
{
    const int64_t width = lgi_dim(b, y, 0);
    const lgi_conv projection = {.num_outputs = width, .kernel = 1, .stride = stride};
    int shortcut = x;
    if (stride != 1 || lgi_dim(b, x, 0) != width) {
        shortcut =
            lgi_add_conv(b, lgi_name(b, "layer%d.%d.downsample.0", stage, block), x, &projection);
        shortcut = lgi_add_batch_norm(b, lgi_name(b, "layer%d.%d.downsample.1", stage, block),
                                      shortcut, BN_EPSILON, BN_MOMENTUM);
    }
    return lgi_add_plain(b, lgi_name(b, "layer%d.%d.add", stage, block), LG_LAYER_ADD, y, shortcut);
}

/* Two 3x3 convolutions and the shortcut around them. */
static int add_block(lgi_builder *b, int stage, int block, int x, int64_t width, int64_t stride)
{
    const lgi_conv first = {.num_outputs = width, .kernel = 3, .stride = stride};
    const lgi_conv second = {.num_outputs = width, .kernel = 3, .stride = 1};
    int y = add_conv_norm(b, stage, block, 1, x, &first);
    y = add_relu(b, stage, block, 1, y);
    y = add_conv_norm(b, stage, block, 2, y, &second);
    y = add_shortcut(b, stage, block, x, y, stride);
    return add_relu(b, stage, block, 2, y);
}

/* 1x1 to `width`, 3x3, 1x1 to 4 width, and the shortcut around them. */
static int add_bottleneck(lgi_builder *b, int stage, int block, int x, int64_t width,
                          int64_t stride)
{
    const lgi_conv reduce = {.num_outputs = width, .kernel = 1, .stride = 1};
    const lgi_conv middle = {.num_outputs = width, .kernel = 3, .stride = stride};
    const lgi_conv expand = {.num_outputs = 4 * width, .kernel = 1, .stride = 1};
    int y = add_conv_norm(b, stage, block, 1, x, &reduce);
    y = add_relu(b, stage, block, 1, y);
    y = add_conv_norm(b, stage, block, 2, y, &middle);
    y = add_relu(b, stage, block, 2, y);
    y = add_conv_norm(b, stage, block, 3, y, &expand);
    y = add_shortcut(b, stage, block, x, y, stride);
    return add_relu(b, stage, block, 3, y);
}

static void add_head(lgi_builder *b, int x, int64_t num_classes, double label_smoothing)
{
    x = lgi_add_plain(b, "avgpool", LG_LAYER_GLOBAL_AVG_POOL, x, -1);
    x = lgi_add_linear(b, "fc", x, num_classes, true,
                       (lgi_weight_init){LG_INIT_UNIFORM_FAN_IN, 0.0});
    lgi_add_loss(b, x, label_smoothing);
}

lg_status lg_model_resnet(lg_model **out, const lg_resnet_opts *opts)
{
    *out = NULL;
    LG_TRY(lgi_check_image_options("resnet", &opts->input, opts->num_classes, opts->label_smoothing,
                                   0.0));
    LG_TRY(lgi_check_option("resnet", "depth", opts->depth, 8, 10000));
    if ((opts->depth - 2) % 6 != 0) {
        LG_FAIL(LG_INVALID_ARG, "resnet: depth is %lld, not 6n + 2 (8, 14, 20, ...)",
                (long long)opts->depth);
    }
    LG_TRY(lgi_check_option("resnet", "width", opts->width, 1, 65536));

    lgi_builder b;
    lgi_builder_init(&b);
    const lgi_conv first = {.num_outputs = opts->width, .kernel = 3, .stride = 1};
    int x = lgi_add_input(&b, "image", 0, LG_DTYPE_F32, &opts->input);
    x = lgi_add_conv(&b, "conv1", x, &first);
    x = lgi_add_batch_norm(&b, "bn1", x, BN_EPSILON, BN_MOMENTUM);
    x = lgi_add_activation(&b, "relu1", x, LG_ACTIVATION_RELU);
    for (int stage = 0; stage < 3; stage++) {
        for (int64_t block = 0; block < (opts->depth - 2) / 6; block++) {
            const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
            x = add_block(&b, stage + 1, (int)block, x, opts->width << stage, stride);
        }
    }
    add_head(&b, x, opts->num_classes, opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}

/* The paper's table 1. */
static const struct {
    int64_t depth;
    int num_blocks[4];
} imagenet_depths[] = {
    {50, {3, 4, 6, 3}},
    {101, {3, 4, 23, 3}},
    {152, {3, 8, 36, 3}},
};

lg_status lg_model_resnet_imagenet(lg_model **out, const lg_resnet_imagenet_opts *opts)
{
    *out = NULL;
    const int *num_blocks = NULL;
    LG_TRY(lgi_check_image_options("resnet", &opts->input, opts->num_classes, opts->label_smoothing,
                                   0.0));
    for (size_t i = 0; i < sizeof imagenet_depths / sizeof imagenet_depths[0]; i++) {
        if (imagenet_depths[i].depth == opts->depth) {
            num_blocks = imagenet_depths[i].num_blocks;
        }
    }
    LG_TRY(lgi_check_option("resnet", "width", opts->width, 1, 65536));
    if (num_blocks == NULL) {
        LG_FAIL(LG_INVALID_ARG, "resnet: depth is %lld, not one of 50, 101, 152",
                (long long)opts->depth);
    }

    lgi_builder b;
    lgi_builder_init(&b);
    const lgi_conv first = {.num_outputs = opts->width, .kernel = 7, .stride = 2};
    int x = lgi_add_input(&b, "image", 0, LG_DTYPE_F32, &opts->input);
    x = lgi_add_conv(&b, "conv1", x, &first);
    x = lgi_add_batch_norm(&b, "bn1", x, BN_EPSILON, BN_MOMENTUM);
    x = lgi_add_activation(&b, "relu1", x, LG_ACTIVATION_RELU);
    x = lgi_add_pool(&b, "maxpool", LG_LAYER_MAX_POOL, x, 3, 2, 1);
    for (int stage = 0; stage < 4; stage++) {
        for (int block = 0; block < num_blocks[stage]; block++) {
            const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
            x = add_bottleneck(&b, stage + 1, block, x, opts->width << stage, stride);
        }
    }
    add_head(&b, x, opts->num_classes, opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}
