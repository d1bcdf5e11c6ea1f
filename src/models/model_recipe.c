/* From the model section of a recipe to a builder's options; 0 stands for the kind's usual value. */
#include <inttypes.h>

#include "base/check.h"
#include "leapgrad/models.h"

static int64_t value_or(int64_t value, int64_t usual)
{
    return value > 0 ? value : usual;
}

static lg_status build_resnet(lg_model **out, const lg_recipe *recipe, const lg_shape *shape,
                              int64_t num_classes)
{
    const lg_resnet_opts opts = {
        .input = *shape,
        .num_classes = num_classes,
        .depth = value_or(recipe->model.depth, 20),
        .width = value_or(recipe->model.width, 16),
        .label_smoothing = recipe->train.label_smoothing,
    };
    return lg_model_resnet(out, &opts);
}

static lg_status build_densenet(lg_model **out, const lg_recipe *recipe, const lg_shape *shape,
                                int64_t num_classes)
{
    const lg_densenet_opts opts = {
        .input = *shape,
        .num_classes = num_classes,
        .depth = value_or(recipe->model.depth, 100),
        .growth = recipe->model.growth,
        .drop_prob = recipe->model.dropout,
        .label_smoothing = recipe->train.label_smoothing,
    };
    return lg_model_densenet(out, &opts);
}

static lg_status build_mobilenetv3(lg_model **out, const lg_recipe *recipe, const lg_shape *shape,
                                   int64_t num_classes)
{
    const lg_mobilenetv3_opts opts = {
        .input = *shape,
        .num_classes = num_classes,
        .width_mult = recipe->model.width_mult,
        .drop_prob = recipe->model.dropout,
        .label_smoothing = recipe->train.label_smoothing,
    };
    return lg_model_mobilenetv3_small(out, &opts);
}

static lg_status build_vgg(lg_model **out, const lg_recipe *recipe, const lg_shape *shape,
                           int64_t num_classes)
{
    const lg_vgg_opts opts = {
        .input = *shape,
        .num_classes = num_classes,
        .depth = value_or(recipe->model.depth, 11),
        .width = value_or(recipe->model.width, 64),
        .hidden = value_or(recipe->model.hidden, 512),
        .has_batch_norm = recipe->model.batch_norm,
        .drop_prob = recipe->model.dropout,
        .label_smoothing = recipe->train.label_smoothing,
    };
    return lg_model_vgg(out, &opts);
}

static lg_status build_gpt(lg_model **out, const lg_recipe *recipe, const lg_shape *shape,
                           int64_t vocab_size)
{
    (void)shape;
    const lg_gpt_opts opts = {
        .num_layers = recipe->model.layers,
        .width = value_or(recipe->model.width, 384),
        .num_heads = recipe->model.heads,
        .hidden = recipe->model.hidden,
        .context = recipe->model.context,
        .vocab_size = vocab_size,
        .is_tied = recipe->model.tied,
        .drop_prob = recipe->model.dropout,
        .label_smoothing = recipe->train.label_smoothing,
    };
    return lg_model_gpt(out, &opts);
}

static lg_status build_bert(lg_model **out, const lg_recipe *recipe, const lg_shape *shape,
                            int64_t vocab_size)
{
    (void)shape;
    const lg_bert_opts opts = {
        .num_layers = recipe->model.layers,
        .width = value_or(recipe->model.width, 384),
        .num_heads = recipe->model.heads,
        .hidden = recipe->model.hidden,
        .context = recipe->model.context,
        .vocab_size = vocab_size,
        .is_tied = recipe->model.tied,
        .drop_prob = recipe->model.dropout,
        .label_smoothing = recipe->train.label_smoothing,
    };
    return lg_model_bert(out, &opts);
}

static const struct {
    bool is_text;
    lg_status (*build)(lg_model **out, const lg_recipe *recipe, const lg_shape *shape,
                       int64_t num_classes);
} kinds[LG_NUM_MODEL_KINDS] = {
    [LG_MODEL_RESNET] = {false, build_resnet},
    [LG_MODEL_DENSENET] = {false, build_densenet},
    [LG_MODEL_MOBILENETV3_SMALL] = {false, build_mobilenetv3},
    [LG_MODEL_VGG] = {false, build_vgg},
    [LG_MODEL_GPT] = {true, build_gpt},
    [LG_MODEL_BERT] = {true, build_bert},
};

lg_status lg_model_from_recipe(lg_model **out, const lg_recipe *recipe, const lg_shape *image_shape,
                               int64_t num_classes)
{
    *out = NULL;
    const lg_model_kind kind = recipe->model.kind;
    if ((unsigned)kind >= LG_NUM_MODEL_KINDS) {
        LG_FAIL(LG_INVALID_ARG, "model.kind: %d is not in [0, %d)", (int)kind, LG_NUM_MODEL_KINDS);
    }
    if (!kinds[kind].is_text) {
        if (image_shape == NULL) {
            LG_FAIL(LG_INVALID_ARG, "model.kind: %s needs the shape of images",
                    lg_model_kind_name(kind));
        }
        return kinds[kind].build(out, recipe, image_shape, num_classes);
    }
    if (recipe->model.vocab > 0 && recipe->model.vocab < num_classes) {
        LG_FAIL(LG_INVALID_ARG,
                "model.vocab: %" PRId64 " is below the %" PRId64 " token ids of the data",
                recipe->model.vocab, num_classes);
    }
    const int64_t vocab_size = recipe->model.vocab > 0 ? recipe->model.vocab : num_classes;
    return kinds[kind].build(out, recipe, NULL, vocab_size);
}
