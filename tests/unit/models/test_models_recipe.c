/* Models by recipe, step graphs from all of them, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "leapgrad/graph.h"
#include "leapgrad/models.h"

static lg_recipe *load(const char *name, const char *const *overrides, int num_overrides)
{
    const char *const directory = getenv("LG_SOURCE_DIR");
    char path[512];
    (void)snprintf(path, sizeof path, "%s/recipes/%s.yaml", directory != NULL ? directory : ".",
                   name);
    lg_recipe *recipe = NULL;
    if (lg_recipe_load(&recipe, path, overrides, num_overrides) != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
    return recipe;
}

static lg_model *build(const char *name, const char *const *overrides, int num_overrides)
{
    lg_recipe *const recipe = load(name, overrides, num_overrides);
    const lg_shape image = LG_SHAPE(1, 28, 28);
    const bool is_text = recipe->data.kind != LG_DATA_IDX;
    lg_model *model = NULL;
    if (lg_model_from_recipe(&model, recipe, is_text ? NULL : &image, is_text ? 257 : 10) !=
        LG_OK) {
        fail_msg("%s: %s", name, lg_last_error());
    }
    lg_recipe_destroy(recipe);
    return model;
}

static void committed_recipes_make_models_and_step_graphs(void **state)
{
    (void)state;
    static const char *const names[] = {
        "fashion-resnet20", "fashion-densenet", "fashion-mobilenetv3",
        "fashion-vgg",      "kjv-gpt",          "kjv-bert"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        lg_model *const model = build(names[i], NULL, 0);
        for (int mode = LG_GRAPH_TRAIN; mode <= LG_GRAPH_PREDICT; mode++) {
            lg_graph_opts opts = lg_graph_opts_default();
            opts.mode = (lg_graph_mode)mode;
            opts.num_samples = 3;
            opts.num_micro_batches = mode == LG_GRAPH_TRAIN ? 2 : 1;
            opts.num_slots = mode == LG_GRAPH_TRAIN ? 1 : 0;
            lg_graph *graph = NULL;
            if (lg_graph_create(&graph, model, &opts) != LG_OK) {
                fail_msg("%s: %s", names[i], lg_last_error());
            }
            assert_true(lg_graph_num_ops(graph) > 0);
            lg_graph_destroy(graph);
        }
        lg_model_destroy(model);
    }
}

static void recipe_keys_reach_the_model(void **state)
{
    (void)state;
    const char *const resnet[] = {"model.depth=8", "model.width=5", "train.label_smoothing=0.25"};
    lg_model *model = build("fashion-resnet20", resnet, 3);
    assert_int_equal(lg_model_find_layer(model, "layer1.1.conv1"), -1);
    const lg_layer_info *const conv =
        lg_model_layer(model, lg_model_find_layer(model, "layer3.0.conv2"));
    assert_int_equal(conv->out_shape.dims[0], 20);
    const lg_layer_info *const loss = lg_model_layer(model, lg_model_num_layers(model) - 1);
    assert_true(loss->attrs->label_smoothing == 0.25f);
    lg_model_destroy(model);

    const char *const gpt[] = {"model.layers=1",  "model.tied=false", "model.vocab=300",
                               "model.context=7", "model.hidden=9",   "model.dropout=0.5"};
    model = build("kjv-gpt", gpt, 6);
    const lg_layer_info *const head = lg_model_layer(model, lg_model_find_layer(model, "lm_head"));
    assert_int_equal(head->out_shape.dims[0], 7);
    assert_int_equal(head->out_shape.dims[1], 300);
    assert_string_equal(lg_model_param(model, head->params[0])->name, "lm_head.weight");
    const lg_layer_info *const fc =
        lg_model_layer(model, lg_model_find_layer(model, "transformer.h.0.mlp.c_fc"));
    assert_int_equal(fc->out_shape.dims[1], 9);
    assert_true(lg_model_find_layer(model, "transformer.drop") >= 0);
    assert_int_equal(lg_model_find_layer(model, "transformer.h.1.ln_1"), -1);
    lg_model_destroy(model);

    const char *const tied[] = {"model.layers=1"};
    model = build("kjv-gpt", tied, 1);
    const lg_layer_info *const shared =
        lg_model_layer(model, lg_model_find_layer(model, "lm_head"));
    assert_string_equal(lg_model_param(model, shared->params[0])->name, "transformer.wte.weight");
    lg_model_destroy(model);
}

static void assert_recipe_refused(const char *name, const char *override, int64_t num_classes,
                                  const char *word)
{
    lg_recipe *const recipe = load(name, &override, 1);
    const lg_shape image = LG_SHAPE(1, 28, 28);
    lg_model *model = NULL;
    assert_int_equal(lg_model_from_recipe(&model, recipe, &image, num_classes), LG_INVALID_ARG);
    assert_null(model);
    if (strstr(lg_last_error(), word) == NULL) {
        fail_msg("'%s' is not in '%s'", word, lg_last_error());
    }
    lg_recipe_destroy(recipe);
}

static void options_that_no_model_can_have_are_refused_by_name(void **state)
{
    (void)state;
    assert_recipe_refused("fashion-resnet20", "model.depth=21", 10, "resnet: depth is 21");
    assert_recipe_refused("fashion-resnet20", "model.depth=2", 10, "resnet: depth is 2");
    assert_recipe_refused("fashion-resnet20", "train.batch=1", 0, "num_classes");
    assert_recipe_refused("fashion-densenet", "model.depth=20", 10, "densenet: depth is 20");
    assert_recipe_refused("fashion-vgg", "model.depth=12", 10, "vgg: depth is 12");
    assert_recipe_refused("kjv-gpt", "model.heads=3", 256, "num_heads 3");
    assert_recipe_refused("kjv-gpt", "model.heads=1000", 256, "num_heads is 1000");
    assert_recipe_refused("kjv-gpt", "model.vocab=255", 256, "model.vocab: 255");
    assert_recipe_refused("kjv-bert", "model.vocab=256", 257, "model.vocab: 256");
}

static void image_models_refuse_shapes_that_are_no_images(void **state)
{
    (void)state;
    lg_recipe *const recipe = load("fashion-resnet20", NULL, 0);
    lg_model *model = NULL;
    const lg_shape flat = LG_SHAPE(784);
    assert_int_equal(lg_model_from_recipe(&model, recipe, &flat, 10), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "[784]"));
    const lg_shape empty = LG_SHAPE(1, 0, 28);
    assert_int_equal(lg_model_from_recipe(&model, recipe, &empty, 10), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "input height"));
    assert_int_equal(lg_model_from_recipe(&model, recipe, NULL, 10), LG_INVALID_ARG);
    lg_recipe_destroy(recipe);

    const lg_densenet_opts opts = {
        .input = LG_SHAPE(1, 3, 8), .num_classes = 2, .depth = 10, .growth = 2};
    assert_int_equal(lg_model_densenet(&model, &opts), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "input height"));
    assert_null(model);
}

static void widths_without_bound_are_refused_not_overflown(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.width = INT64_MAX;
    opts.num_heads = 1;
    assert_int_equal(lg_model_gpt(&model, &opts), LG_INVALID_ARG);
    lg_mobilenetv3_opts mobile = lg_mobilenetv3_opts_default();
    mobile.width_mult = 1e300;
    assert_int_equal(lg_model_mobilenetv3_small(&model, &mobile), LG_INVALID_ARG);
    mobile.width_mult = 0.0 / 0.0;
    assert_int_equal(lg_model_mobilenetv3_small(&model, &mobile), LG_INVALID_ARG);
    lg_resnet_opts resnet = lg_resnet_opts_default();
    resnet.label_smoothing = 1.0;
    assert_int_equal(lg_model_resnet(&model, &resnet), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "label_smoothing"));
    assert_null(model);
}

static void every_failing_allocation_is_out_of_memory(void **state)
{
    (void)state;
    lg_recipe *const recipes[] = {load("fashion-mobilenetv3", NULL, 0), load("kjv-bert", NULL, 0)};
    const lg_shape image = LG_SHAPE(1, 28, 28);
    for (int r = 0; r < 2; r++) {
        for (int64_t n = 1;; n += 7) {
            lg_model *model = NULL;
            lgi_alloc_fail_after(n);
            const lg_status status = lg_model_from_recipe(&model, recipes[r], &image, 257);
            lgi_alloc_fail_after(0);
            lg_model_destroy(model);
            if (status == LG_OK) {
                assert_true(n > 100);
                break;
            }
            assert_int_equal(status, LG_OUT_OF_MEMORY);
            assert_null(model);
        }
        lg_recipe_destroy(recipes[r]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_recipes_make_models_and_step_graphs),
        cmocka_unit_test(recipe_keys_reach_the_model),
        cmocka_unit_test(options_that_no_model_can_have_are_refused_by_name),
        cmocka_unit_test(image_models_refuse_shapes_that_are_no_images),
        cmocka_unit_test(widths_without_bound_are_refused_not_overflown),
        cmocka_unit_test(every_failing_allocation_is_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
