/* VGG; see lg_model_vgg(). */
#include "base/check.h"
#include "models/build_layers.h"

#define BN_EPSILON 1e-5
#define BN_MOMENTUM 0.1
#define NUM_GROUPS 5

lg_vgg_opts lg_vgg_opts_default(void)
{
    return (lg_vgg_opts){.input = LG_SHAPE(3, 32, 32),
                         .num_classes = 10,
                         .depth = 11,
                         .width = 64,
                         .hidden = 512,
                         .has_batch_norm = true,
                         .drop_prob = 0.5};
}

/* Convolutions per group (the paper's columns A, B, D, E) and channels as multiples of the first group's. */
static const struct {
    int64_t depth;
    int num_convs[NUM_GROUPS];
} configs[] = {
    {11, {1, 1, 2, 2, 2}},
    {13, {2, 2, 2, 2, 2}},
    {16, {2, 2, 3, 3, 3}},
    {19, {2, 2, 4, 4, 4}},
};
static const int channel_multiples[NUM_GROUPS] = {1, 2, 4, 8, 8};

static const int *find_config(int64_t depth)
{
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        if (configs[i].depth == depth) {
            return configs[i].num_convs;
        }
    }
    return NULL;
}

lg_status lg_model_vgg(lg_model **out, const lg_vgg_opts *opts)
{
    *out = NULL;
    LG_TRY(lgi_check_image_options("vgg", &opts->input, opts->num_classes, opts->label_smoothing,
                                   opts->drop_prob));
    const int *const num_convs = find_config(opts->depth);
    if (num_convs == NULL) {
        LG_FAIL(LG_INVALID_ARG, "vgg: depth is %lld, not one of 11, 13, 16, 19",
                (long long)opts->depth);
    }
    LG_TRY(lgi_check_option("vgg", "width", opts->width, 1, 65536));
    LG_TRY(lgi_check_option("vgg", "hidden", opts->hidden, 1, 1048576));

    lgi_builder b;
    lgi_builder_init(&b);
    const lgi_weight_init hidden_init = {LG_INIT_KAIMING_NORMAL, 0.0};
    const lgi_weight_init last_init = {LG_INIT_UNIFORM_FAN_IN, 0.0};
    int next = 0; /* torchvision's running number */
    int x = lgi_add_input(&b, "image", 0, LG_DTYPE_F32, &opts->input);
    for (int group = 0; group < NUM_GROUPS; group++) {
        const lgi_conv conv = {.num_outputs = opts->width * channel_multiples[group],
                               .kernel = 3,
                               .stride = 1,
                               .has_bias = true};
        for (int i = 0; i < num_convs[group]; i++) {
            x = lgi_add_conv(&b, lgi_name(&b, "features.%d", next++), x, &conv);
            if (opts->has_batch_norm) {
                x = lgi_add_batch_norm(&b, lgi_name(&b, "features.%d", next++), x, BN_EPSILON,
                                       BN_MOMENTUM);
            }
            x = lgi_add_activation(&b, lgi_name(&b, "features.%d", next++), x, LG_ACTIVATION_RELU);
        }
        if (lgi_dim(&b, x, 1) > 1 && lgi_dim(&b, x, 2) > 1) {
            x = lgi_add_pool(&b, lgi_name(&b, "features.%d", next), LG_LAYER_MAX_POOL, x, 2, 2, 0);
        }
        next++;
    }
    x = lgi_add_plain(&b, "flatten", LG_LAYER_FLATTEN, x, -1);
    for (int i = 0; i < 2; i++) {
        x = lgi_add_linear(&b, lgi_name(&b, "classifier.%d", 3 * i), x, opts->hidden, true,
                           hidden_init);
        x = lgi_add_activation(&b, lgi_name(&b, "classifier.%d", 3 * i + 1), x, LG_ACTIVATION_RELU);
        x = lgi_add_dropout(&b, lgi_name(&b, "classifier.%d", 3 * i + 2), x, opts->drop_prob);
    }
    x = lgi_add_linear(&b, "classifier.6", x, opts->num_classes, true, last_init);
    lgi_add_loss(&b, x, opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}
