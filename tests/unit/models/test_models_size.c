/* Parameter counts against published figures, shapes, and names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "leapgrad/graph.h"
#include "leapgrad/models.h"

/* Fails with the library's message. */
static void assert_built(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
}

static void assert_num_params(lg_model *model, int64_t expected)
{
    const int64_t got = lg_model_num_param_elems(model);
    if (got != expected) {
        fail_msg("%lld parameters, expected %lld", (long long)got, (long long)expected);
    }
    lg_model_destroy(model);
}

static void assert_out_shape(const lg_model *model, const char *name, lg_shape expected)
{
    char text[128];
    const int layer = lg_model_find_layer(model, name);
    if (layer < 0) {
        fail_msg("no layer '%s'", name);
    }
    const lg_shape *const got = &lg_model_layer(model, layer)->out_shape;
    if (!lg_shape_equal(got, &expected)) {
        fail_msg("%s is %s", name, lg_shape_format(got, text, sizeof text));
    }
}

static const lg_param_info *find_param(const lg_model *model, const char *name)
{
    for (int i = 0; i < lg_model_num_params(model); i++) {
        if (strcmp(lg_model_param(model, i)->name, name) == 0) {
            return lg_model_param(model, i);
        }
    }
    fail_msg("no parameter '%s'", name);
    return NULL;
}

static void assert_loss_is_last(const lg_model *model)
{
    const int last = lg_model_num_layers(model) - 1;
    const lg_layer_info *const loss = lg_model_layer(model, last);
    assert_int_equal(loss->kind, LG_LAYER_SOFTMAX_CROSS_ENTROPY);
    const lg_layer_info *const targets = lg_model_layer(model, loss->inputs[1]);
    assert_int_equal(targets->kind, LG_LAYER_INPUT);
    assert_int_equal(targets->attrs->input_idx, 1);
    assert_int_equal(targets->attrs->input_dtype, LG_DTYPE_I32);
}

/* The paper's 0.27 M, 0.85 M and 1.7 M (option A: 269,722, 853,018, 1,727,962) and 2,752 of two projections. */
static void resnets_have_the_papers_parameters_and_projections(void **state)
{
    (void)state;
    static const struct {
        int64_t depth;
        int64_t num_params;
    } cases[] = {{20, 269722 + 2752}, {56, 853018 + 2752}, {110, 1727962 + 2752}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *model = NULL;
        lg_resnet_opts opts = lg_resnet_opts_default();
        opts.depth = cases[i].depth;
        assert_built(lg_model_resnet(&model, &opts));
        assert_num_params(model, cases[i].num_params);
    }
}

static void resnet_halves_the_map_twice(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_resnet_opts opts = lg_resnet_opts_default();
    opts.input = LG_SHAPE(1, 28, 28);
    assert_built(lg_model_resnet(&model, &opts));
    assert_out_shape(model, "relu1", LG_SHAPE(16, 28, 28));
    assert_out_shape(model, "layer1.2.relu2", LG_SHAPE(16, 28, 28));
    assert_out_shape(model, "layer2.0.downsample.1", LG_SHAPE(32, 14, 14));
    assert_out_shape(model, "layer3.2.relu2", LG_SHAPE(64, 7, 7));
    assert_out_shape(model, "fc", LG_SHAPE(10));
    assert_int_equal(lg_model_find_layer(model, "layer1.0.downsample.0"), -1);
    assert_loss_is_last(model);
    const lg_param_info *const conv = find_param(model, "layer2.0.conv1.weight");
    const lg_shape expected = LG_SHAPE(32, 16, 3, 3);
    assert_true(lg_shape_equal(&conv->shape, &expected));
    assert_int_equal(conv->init, LG_INIT_KAIMING_NORMAL);
    assert_true(conv->is_matrix);
    assert_false(find_param(model, "bn1.weight")->is_matrix);
    lg_model_destroy(model);
}

/* Table 2 of the paper: 0.8 M; 769,162 with 10 classes. DenseNet-BC-190-40: 25.6 M. */
static void densenets_have_the_papers_parameters(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_densenet_opts opts = lg_densenet_opts_default();
    assert_built(lg_model_densenet(&model, &opts));
    assert_out_shape(model, "features.denseblock1.denselayer16.concat", LG_SHAPE(216, 32, 32));
    assert_out_shape(model, "features.transition1.pool", LG_SHAPE(108, 16, 16));
    assert_out_shape(model, "features.relu5", LG_SHAPE(342, 8, 8));
    assert_loss_is_last(model);
    assert_num_params(model, 769162);
    opts.depth = 190;
    opts.growth = 40;
    assert_built(lg_model_densenet(&model, &opts));
    const double num_millions = (double)lg_model_num_param_elems(model) / 1e6;
    assert_true(num_millions > 25.55 && num_millions < 25.65);
    lg_model_destroy(model);
}

/* torchvision's mobilenet_v3_small; its paper says 2.5 M. */
static void mobilenetv3_small_has_the_known_parameters(void **state)
{
    (void)state;
    lg_model *model = NULL;
    const lg_mobilenetv3_opts opts = lg_mobilenetv3_opts_default();
    assert_built(lg_model_mobilenetv3_small(&model, &opts));
    assert_out_shape(model, "features.0.2", LG_SHAPE(16, 112, 112));
    assert_out_shape(model, "features.1.block.2.1", LG_SHAPE(16, 56, 56));
    assert_out_shape(model, "features.3.add", LG_SHAPE(24, 28, 28));
    assert_out_shape(model, "features.4.block.2.fc1", LG_SHAPE(24));
    assert_out_shape(model, "features.12.2", LG_SHAPE(576, 7, 7));
    assert_out_shape(model, "classifier.0", LG_SHAPE(1024));
    assert_loss_is_last(model);
    assert_num_params(model, 2542856);
}

static void mobilenetv3_drops_strides_for_small_images(void **state)
{
    (void)state;
    static const struct {
        int64_t side;
        int64_t last_map;
    } cases[] = {{224, 7}, {97, 4}, {96, 6}, {64, 4}, {49, 4}, {48, 6}, {32, 4},
                 {28, 4},  {25, 4}, {24, 6}, {8, 4},  {4, 4},  {1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *model = NULL;
        lg_mobilenetv3_opts opts = lg_mobilenetv3_opts_default();
        opts.input = LG_SHAPE(1, cases[i].side, cases[i].side);
        opts.width_mult = 0.5;
        assert_built(lg_model_mobilenetv3_small(&model, &opts));
        assert_out_shape(model, "features.12.2",
                         LG_SHAPE(288, cases[i].last_map, cases[i].last_map));
        lg_model_destroy(model);
    }
}

/* The paper's 138 M and 133 M, to the last parameter, at its image size. */
static void vggs_have_the_papers_parameters(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_vgg_opts opts = lg_vgg_opts_default();
    opts.input = LG_SHAPE(3, 224, 224);
    opts.num_classes = 1000;
    opts.hidden = 4096;
    opts.has_batch_norm = false;
    assert_built(lg_model_vgg(&model, &opts));
    assert_num_params(model, 132863336);
    opts.depth = 16;
    assert_built(lg_model_vgg(&model, &opts));
    assert_out_shape(model, "flatten", LG_SHAPE(512 * 7 * 7));
    assert_loss_is_last(model);
    assert_num_params(model, 138357544);
    opts.has_batch_norm = true;
    assert_built(lg_model_vgg(&model, &opts));
    assert_num_params(model, 138365992);
}

static void vgg_leaves_out_pools_once_the_map_is_a_point(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_vgg_opts opts = lg_vgg_opts_default();
    opts.input = LG_SHAPE(1, 28, 28);
    opts.width = 16;
    assert_built(lg_model_vgg(&model, &opts));
    assert_out_shape(model, "flatten", LG_SHAPE(128));
    lg_model_destroy(model);
    opts.input = LG_SHAPE(1, 1, 9);
    assert_built(lg_model_vgg(&model, &opts));
    assert_out_shape(model, "flatten", LG_SHAPE(128 * 9));
    lg_model_destroy(model);
}

/* The released model's number. Untied: one more matrix of 50257 x 768. */
static void gpt2_small_has_the_known_parameters(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    assert_built(lg_model_gpt(&model, &opts));
    assert_out_shape(model, "transformer.h.11.attn.c_attn", LG_SHAPE(1024, 2304));
    assert_out_shape(model, "lm_head", LG_SHAPE(1024, 50257));
    assert_loss_is_last(model);
    const lg_param_info *const residual = find_param(model, "transformer.h.3.mlp.c_proj.weight");
    assert_int_equal(residual->init, LG_INIT_NORMAL);
    assert_true(residual->init_scale > 0.00408f && residual->init_scale < 0.00409f);
    assert_true(find_param(model, "transformer.wte.weight")->init_scale == 0.02f);
    assert_num_params(model, 124439808);
    opts.is_tied = false;
    assert_built(lg_model_gpt(&model, &opts));
    assert_num_params(model, 124439808 + 50257 * 768);
}

/* Hugging Face's BertForMaskedLM of bert-base-uncased. */
static void bert_base_has_the_known_parameters(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_bert_opts opts = lg_bert_opts_default();
    assert_built(lg_model_bert(&model, &opts));
    assert_int_equal(lg_model_num_inputs(model), 4);
    assert_loss_is_last(model);
    assert_num_params(model, 109514298);
    opts.num_segments = 0;
    assert_built(lg_model_bert(&model, &opts));
    assert_int_equal(lg_model_num_inputs(model), 3);
    assert_num_params(model, 109514298 - 2 * 768);
}

static void dropout_layers_are_there_only_when_asked_for(void **state)
{
    (void)state;
    for (int is_on = 0; is_on < 2; is_on++) {
        lg_model *model = NULL;
        lg_gpt_opts opts = lg_gpt_opts_default();
        opts.num_layers = 2;
        opts.drop_prob = is_on ? 0.1 : 0.0;
        assert_built(lg_model_gpt(&model, &opts));
        int num_dropouts = 0;
        for (int i = 0; i < lg_model_num_layers(model); i++) {
            num_dropouts += lg_model_layer(model, i)->kind == LG_LAYER_DROPOUT;
        }
        assert_int_equal(num_dropouts, is_on ? 5 : 0);
        lg_model_destroy(model);
    }
}

/* torchvision's resnet50, resnet101, resnet152. */
static void imagenet_resnets_have_torchvisions_parameters(void **state)
{
    (void)state;
    static const struct {
        int64_t depth;
        int64_t num_params;
    } cases[] = {{50, 25557032}, {101, 44549160}, {152, 60192808}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *model = NULL;
        lg_resnet_imagenet_opts opts = lg_resnet_imagenet_opts_default();
        opts.depth = cases[i].depth;
        assert_built(lg_model_resnet_imagenet(&model, &opts));
        assert_out_shape(model, "maxpool", LG_SHAPE(64, 56, 56));
        assert_out_shape(model, "layer2.0.conv1", LG_SHAPE(128, 56, 56));
        assert_out_shape(model, "layer2.0.conv2", LG_SHAPE(128, 28, 28));
        assert_out_shape(model, "layer4.2.relu3", LG_SHAPE(2048, 7, 7));
        assert_int_not_equal(lg_model_find_layer(model, "layer1.0.downsample.0"), -1);
        assert_int_equal(lg_model_find_layer(model, "layer1.1.downsample.0"), -1);
        assert_loss_is_last(model);
        assert_num_params(model, cases[i].num_params);
    }
}

/* torchvision's densenet121, densenet169, densenet201. */
static void imagenet_densenets_have_torchvisions_parameters(void **state)
{
    (void)state;
    static const struct {
        int64_t depth;
        int64_t num_params;
    } cases[] = {{121, 7978856}, {169, 14149480}, {201, 20013928}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *model = NULL;
        lg_densenet_imagenet_opts opts = lg_densenet_imagenet_opts_default();
        opts.depth = cases[i].depth;
        assert_built(lg_model_densenet_imagenet(&model, &opts));
        assert_out_shape(model, "features.pool0", LG_SHAPE(64, 56, 56));
        assert_out_shape(model, "features.transition2.pool", LG_SHAPE(256, 14, 14));
        assert_loss_is_last(model);
        assert_num_params(model, cases[i].num_params);
    }
}

/* torchvision's mobilenet_v3_large; its paper says 5.4 M. */
static void mobilenetv3_large_has_the_known_parameters(void **state)
{
    (void)state;
    lg_model *model = NULL;
    const lg_mobilenetv3_opts opts = lg_mobilenetv3_opts_default();
    assert_built(lg_model_mobilenetv3_large(&model, &opts));
    assert_out_shape(model, "features.1.add", LG_SHAPE(16, 112, 112));
    assert_out_shape(model, "features.6.add", LG_SHAPE(40, 28, 28));
    assert_out_shape(model, "features.16.2", LG_SHAPE(960, 7, 7));
    assert_out_shape(model, "classifier.0", LG_SHAPE(1280));
    assert_loss_is_last(model);
    assert_num_params(model, 5483032);
}

/* One block of 1024: 12 * 1024^2 weights and 13 * 1024 biases and norms. */
static void presets_have_the_known_parameters(void **state)
{
    (void)state;
    static const int64_t bert_block = 12 * 1024 * 1024 + 13 * 1024;
    /* Hugging Face's BertForMaskedLM of bert-large-uncased. */
    static const int64_t bert_24 = 335174458;
    const struct {
        const char *name;
        int64_t num_params;
    } cases[] = {
        {"resnet20", 269722 + 2752},
        {"resnet50", 25557032},
        {"resnet101", 44549160},
        {"densenet121", 7978856},
        {"mobilenetv3-large", 5483032},
        {"bert-12", 109514298},
        {"bert-24", bert_24},
        {"bert-36", bert_24 + 12 * bert_block},
        {"bert-48", bert_24 + 24 * bert_block},
        {"gpt2", 124439808},
        {"gpt3-medium", 50257 * 1024 + 2048 * 1024 + 24 * bert_block + 2 * 1024},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *model = NULL;
        assert_built(lg_model_preset(&model, cases[i].name));
        assert_loss_is_last(model);
        assert_num_params(model, cases[i].num_params);
    }
}

static void each_preset_builds_and_an_unknown_one_lists_them(void **state)
{
    (void)state;
    lg_model *model = NULL;
    assert_int_equal(lg_model_preset(&model, "resnet51"), LG_INVALID_ARG);
    assert_null(model);
    const char *const message = lg_last_error();
    int num = 0;
    for (; lg_model_preset_name(num) != NULL; num++) {
        assert_non_null(strstr(message, lg_model_preset_name(num)));
        assert_true(strlen(lg_model_preset_help(num)) > 0);
    }
    for (int i = 0; i < num; i++) {
        assert_built(lg_model_preset(&model, lg_model_preset_name(i)));
        lg_model_destroy(model);
    }
    assert_null(lg_model_preset_help(num));
    assert_null(lg_model_preset_name(-1));
}

static void imagenet_models_of_unknown_depth_are_invalid(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_resnet_imagenet_opts resnet = lg_resnet_imagenet_opts_default();
    resnet.depth = 34;
    assert_int_equal(lg_model_resnet_imagenet(&model, &resnet), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "34"));
    lg_densenet_imagenet_opts densenet = lg_densenet_imagenet_opts_default();
    densenet.depth = 100;
    assert_int_equal(lg_model_densenet_imagenet(&model, &densenet), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "100"));
    lg_bert_opts bert = lg_bert_opts_default();
    bert.num_positions = bert.context - 1;
    assert_int_equal(lg_model_bert(&model, &bert), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "num_positions"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resnets_have_the_papers_parameters_and_projections),
        cmocka_unit_test(resnet_halves_the_map_twice),
        cmocka_unit_test(densenets_have_the_papers_parameters),
        cmocka_unit_test(mobilenetv3_small_has_the_known_parameters),
        cmocka_unit_test(mobilenetv3_drops_strides_for_small_images),
        cmocka_unit_test(vggs_have_the_papers_parameters),
        cmocka_unit_test(vgg_leaves_out_pools_once_the_map_is_a_point),
        cmocka_unit_test(gpt2_small_has_the_known_parameters),
        cmocka_unit_test(bert_base_has_the_known_parameters),
        cmocka_unit_test(imagenet_resnets_have_torchvisions_parameters),
        cmocka_unit_test(imagenet_densenets_have_torchvisions_parameters),
        cmocka_unit_test(mobilenetv3_large_has_the_known_parameters),
        cmocka_unit_test(presets_have_the_known_parameters),
        cmocka_unit_test(each_preset_builds_and_an_unknown_one_lists_them),
        cmocka_unit_test(imagenet_models_of_unknown_depth_are_invalid),
        cmocka_unit_test(dropout_layers_are_there_only_when_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
