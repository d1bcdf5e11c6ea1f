/* Models by name: options that papers and released weights made well known. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "leapgrad/models.h"

static lg_status build_resnet(lg_model **out, int64_t depth)
{
    lg_resnet_opts opts = lg_resnet_opts_default();
    opts.depth = depth;
    return lg_model_resnet(out, &opts);
}

static lg_status build_resnet_imagenet(lg_model **out, int64_t depth)
{
    lg_resnet_imagenet_opts opts = lg_resnet_imagenet_opts_default();
    opts.depth = depth;
    return lg_model_resnet_imagenet(out, &opts);
}

static lg_status build_densenet121(lg_model **out, int64_t growth)
{
    lg_densenet_imagenet_opts opts = lg_densenet_imagenet_opts_default();
    opts.growth = growth;
    return lg_model_densenet_imagenet(out, &opts);
}

static lg_status build_mobilenetv3_large(lg_model **out, int64_t width_percent)
{
    lg_mobilenetv3_opts opts = lg_mobilenetv3_opts_default();
    opts.width_mult = (double)width_percent / 100.0;
    return lg_model_mobilenetv3_large(out, &opts);
}

static lg_status build_mobilenetv3_small(lg_model **out, int64_t width_percent)
{
    lg_mobilenetv3_opts opts = lg_mobilenetv3_opts_default();
    opts.width_mult = (double)width_percent / 100.0;
    return lg_model_mobilenetv3_small(out, &opts);
}

/* 12 layers as BERT base; deeper ones as wide as BERT large. */
static lg_status build_bert(lg_model **out, int64_t num_layers)
{
    lg_bert_opts opts = lg_bert_opts_default();
    opts.num_layers = num_layers;
    opts.context = 128;
    opts.num_positions = 512;
    if (num_layers > 12) {
        opts.width = 1024;
        opts.num_heads = 16;
    }
    return lg_model_bert(out, &opts);
}

static lg_status build_gpt2(lg_model **out, int64_t unused)
{
    (void)unused;
    const lg_gpt_opts opts = lg_gpt_opts_default();
    return lg_model_gpt(out, &opts);
}

static lg_status build_gpt3_medium(lg_model **out, int64_t unused)
{
    (void)unused;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = 24;
    opts.width = 1024;
    opts.num_heads = 16;
    opts.context = 2048;
    return lg_model_gpt(out, &opts);
}

// clang-format off
static const struct {
    const char *name;
    lg_status (*build)(lg_model **out, int64_t size);
    int64_t size;
    const char *help;
} presets[] = {
    {"resnet20", build_resnet, 20, "ResNet-20 for 32x32 images, 10 classes (He et al. 2016, section 4.2)"},
    {"resnet50", build_resnet_imagenet, 50, "ResNet-50 v1.5 for 224x224 images, 1000 classes (He et al. 2016, table 1)"},
    {"resnet101", build_resnet_imagenet, 101, "ResNet-101 v1.5 for 224x224 images, 1000 classes (He et al. 2016, table 1)"},
    {"densenet121", build_densenet121, 32, "DenseNet-121, growth 32, for 224x224 images (Huang et al. 2017, table 1)"},
    {"densenet121-k12", build_densenet121, 12, "DenseNet-121 with growth 12"},
    {"densenet121-k24", build_densenet121, 24, "DenseNet-121 with growth 24"},
    {"mobilenetv3-large", build_mobilenetv3_large, 100, "MobileNetV3-large for 224x224 images (Howard et al. 2019, table 1)"},
    {"mobilenetv3-large-0.5", build_mobilenetv3_large, 50, "MobileNetV3-large, half as wide"},
    {"mobilenetv3-small", build_mobilenetv3_small, 100, "MobileNetV3-small for 224x224 images (Howard et al. 2019, table 2)"},
    {"bert-12", build_bert, 12, "BERT base, 12 layers of 768, 128 tokens of 512 positions (Devlin et al. 2019)"},
    {"bert-24", build_bert, 24, "BERT large, 24 layers of 1024, 128 tokens of 512 positions (Devlin et al. 2019)"},
    {"bert-36", build_bert, 36, "BERT with 36 layers of 1024, 128 tokens of 512 positions"},
    {"bert-48", build_bert, 48, "BERT with 48 layers of 1024, 128 tokens of 512 positions"},
    {"gpt2", build_gpt2, 0, "GPT-2 small, 12 layers of 768, 1024 tokens (Radford et al. 2019)"},
    {"gpt3-medium", build_gpt3_medium, 0, "GPT-3 medium, 24 layers of 1024, 2048 tokens (Brown et al. 2020, table 2.1)"},
};
// clang-format on

#define NUM_PRESETS ((int)(sizeof presets / sizeof presets[0]))

const char *lg_model_preset_name(int idx)
{
    return idx >= 0 && idx < NUM_PRESETS ? presets[idx].name : NULL;
}

const char *lg_model_preset_help(int idx)
{
    return idx >= 0 && idx < NUM_PRESETS ? presets[idx].help : NULL;
}

lg_status lg_model_preset(lg_model **out, const char *name)
{
    *out = NULL;
    for (int i = 0; i < NUM_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            return presets[i].build(out, presets[i].size);
        }
    }
    char names[512];
    size_t length = 0;
    for (int i = 0; i < NUM_PRESETS && length < sizeof names; i++) {
        const int added = snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "",
                                   presets[i].name);
        length += added > 0 ? (size_t)added : 0;
    }
    LG_FAIL(LG_INVALID_ARG, "unknown model '%.100s'; allowed: %s", name, names);
}
