/* Residual networks for small images; see lg_model_resnet(). */
#include "base/check.h"
#include "models/build_layers.h"

#define BN_EPSILON 1e-5
#define BN_MOMENTUM 0.1

lg_resnet_opts lg_resnet_opts_default(void)
{
    return (lg_resnet_opts){
        .input = LG_SHAPE(3, 32, 32), .num_classes = 10, .depth = 20, .width = 16};
}

/* Two 3x3 convolutions and the shortcut around them. */
static int add_block(lgi_builder *b, int stage, int64_t block, int x, int64_t width, int64_t stride)
{
    const int id = (int)block;
    const lgi_conv first = {.num_outputs = width, .kernel = 3, .stride = stride};
    const lgi_conv second = {.num_outputs = width, .kernel = 3, .stride = 1};
    const lgi_conv projection = {.num_outputs = width, .kernel = 1, .stride = stride};
    int y = lgi_add_conv(b, lgi_name(b, "layer%d.%d.conv1", stage, id), x, &first);
    y = lgi_add_batch_norm(b, lgi_name(b, "layer%d.%d.bn1", stage, id), y, BN_EPSILON, BN_MOMENTUM);
    y = lgi_add_activation(b, lgi_name(b, "layer%d.%d.relu1", stage, id), y, LG_ACTIVATION_RELU);
    y = lgi_add_conv(b, lgi_name(b, "layer%d.%d.conv2", stage, id), y, &second);
    y = lgi_add_batch_norm(b, lgi_name(b, "layer%d.%d.bn2", stage, id), y, BN_EPSILON, BN_MOMENTUM);
    int shortcut = x;
    if (stride != 1 || lgi_dim(b, x, 0) != width) {
        shortcut =
            lgi_add_conv(b, lgi_name(b, "layer%d.%d.downsample.0", stage, id), x, &projection);
        shortcut = lgi_add_batch_norm(b, lgi_name(b, "layer%d.%d.downsample.1", stage, id),
                                      shortcut, BN_EPSILON, BN_MOMENTUM);
    }
    y = lgi_add_plain(b, lgi_name(b, "layer%d.%d.add", stage, id), LG_LAYER_ADD, y, shortcut);
    return lgi_add_activation(b, lgi_name(b, "layer%d.%d.relu2", stage, id), y, LG_ACTIVATION_RELU);
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
            x = add_block(&b, stage + 1, block, x, opts->width << stage, stride);
        }
    }
    x = lgi_add_plain(&b, "avgpool", LG_LAYER_GLOBAL_AVG_POOL, x, -1);
    x = lgi_add_linear(&b, "fc", x, opts->num_classes, true,
                       (lgi_weight_init){LG_INIT_UNIFORM_FAN_IN, 0.0});
    lgi_add_loss(&b, x, opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}
