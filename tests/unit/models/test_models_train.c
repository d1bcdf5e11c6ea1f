/* Each model, made small, learns one batch by heart on the reference device, and every parameter takes part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "leapgrad/models.h"
#include "leapgrad/trainer.h"

enum {
    NUM_SAMPLES = 4,
    NUM_STEPS = 20,
    IMAGE_SIDE = 8,
    LARGE_SIDE = 64, /* for models that divide it by 32 */
    NUM_CLASSES = 3,
    CONTEXT = 8,
    VOCAB_SIZE = 11
};

/* A batch learned by heart gives far less; noise of dropout and of batch norm over four samples stays above it. */
#define LEARNED_FRAC 0.6

static const lg_shape image_shape = {3, {2, IMAGE_SIDE, IMAGE_SIDE}};

static const lg_shape large_shape = {3, {2, LARGE_SIDE, LARGE_SIDE}};

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
}

/* Biases that a norm right behind them takes out again have a gradient of rounding errors only. */
static bool has_no_gradient_by_design(const lg_model *model, int param)
{
    const lg_param_info *const info = lg_model_param(model, param);
    const size_t length = strlen(info->name);
    if (length < 5 || strcmp(info->name + length - 5, ".bias") != 0) {
        return false;
    }
    for (int i = 0; i < lg_model_num_layers(model); i++) {
        const lg_layer_info *const layer = lg_model_layer(model, i);
        if (layer->kind == LG_LAYER_BATCH_NORM && layer->inputs[0] == info->owner_layer) {
            return true;
        }
    }
    return false;
}

static void assert_every_parameter_has_a_gradient(lg_trainer *trainer, const lg_model *model)
{
    for (int i = 0; i < lg_model_num_params(model); i++) {
        const lg_param_info *const info = lg_model_param(model, i);
        const int64_t num_elems = lg_shape_num_elems(&info->shape);
        float *const grad = calloc((size_t)num_elems, sizeof *grad);
        char name[256];
        (void)snprintf(name, sizeof name, "%s.grad", info->name);
        assert_ok(lg_trainer_read(trainer, name, grad, num_elems));
        bool has_some = has_no_gradient_by_design(model, i);
        for (int64_t k = 0; k < num_elems; k++) {
            assert_true(isfinite(grad[k]));
            has_some = has_some || grad[k] != 0.0f;
        }
        if (!has_some) {
            fail_msg("%s: all zero", name);
        }
        free(grad);
    }
}

/* Trains on `tensors` again and again. Takes the model. */
static void assert_learns(lg_model *model, double lr, const void *const *tensors)
{
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = "reference";
    opts.batch_samples = NUM_SAMPLES;
    opts.num_micro_batches = 2;
    opts.seed = 3;
    opts.num_steps = NUM_STEPS;
    opts.optim.rule = LG_OPTIM_ADAMW;
    opts.optim.lr = lr;
    lg_trainer *trainer = NULL;
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    lg_step_result first = {0};
    lg_step_result last = {0};
    assert_ok(lg_trainer_step(trainer, NUM_SAMPLES, tensors, &first));
    assert_every_parameter_has_a_gradient(trainer, model);
    for (int i = 1; i < NUM_STEPS; i++) {
        assert_ok(lg_trainer_step(trainer, NUM_SAMPLES, tensors, &last));
    }
    if (!(last.loss < LEARNED_FRAC * first.loss)) {
        fail_msg("loss went from %g to %g", first.loss, last.loss);
    }
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
}

static void assert_learns_images(lg_model *model, double lr)
{
    static float images[NUM_SAMPLES * 2 * LARGE_SIDE * LARGE_SIDE];
    static const int32_t labels[NUM_SAMPLES] = {0, 2, 1, 2};
    const lgi_random random = lgi_random_stream(5, LGI_RANDOM_AUGMENT, 0, 0, 0);
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++) {
        images[i] = lgi_random_normal(&random, i);
    }
    const void *const tensors[] = {images, labels};
    assert_learns(model, lr, tensors);
}

/* Of the last sample the second half is padding. */
static void assert_learns_text(lg_model *model, double lr)
{
    static int32_t ids[NUM_SAMPLES * CONTEXT];
    static int32_t targets[NUM_SAMPLES * CONTEXT];
    static float keep[NUM_SAMPLES * CONTEXT];
    static int32_t segments[NUM_SAMPLES * CONTEXT];
    const lgi_random random = lgi_random_stream(5, LGI_RANDOM_CROP, 0, 0, 0);
    for (int i = 0; i < NUM_SAMPLES * CONTEXT; i++) {
        const bool is_padding = i >= NUM_SAMPLES * CONTEXT - CONTEXT / 2;
        ids[i] = (int32_t)lgi_random_below(&random, (uint64_t)i, VOCAB_SIZE);
        targets[i] = is_padding ? -100 : (ids[i] * 3 + 1) % VOCAB_SIZE;
        keep[i] = is_padding ? 0.0f : 1.0f;
        segments[i] = i % CONTEXT >= CONTEXT / 2;
    }
    const void *const tensors[] = {ids, targets, keep, segments};
    assert_learns(model, lr, tensors);
}

static void resnet_learns_a_batch(void **state)
{
    (void)state;
    lg_model *model = NULL;
    const lg_resnet_opts opts = {
        .input = image_shape, .num_classes = NUM_CLASSES, .depth = 8, .width = 4};
    assert_ok(lg_model_resnet(&model, &opts));
    assert_learns_images(model, 0.01);
}

static void imagenet_models_learn_a_batch(void **state)
{
    (void)state;
    lg_model *model = NULL;
    const lg_resnet_imagenet_opts resnet = {
        .input = large_shape, .num_classes = NUM_CLASSES, .depth = 50, .width = 4};
    assert_ok(lg_model_resnet_imagenet(&model, &resnet));
    assert_learns_images(model, 0.01);
    const lg_densenet_imagenet_opts densenet = {
        .input = large_shape, .num_classes = NUM_CLASSES, .depth = 121, .growth = 2};
    assert_ok(lg_model_densenet_imagenet(&model, &densenet));
    assert_learns_images(model, 0.01);
    const lg_mobilenetv3_opts mobilenet = {
        .input = large_shape, .num_classes = NUM_CLASSES, .width_mult = 0.1, .drop_prob = 0.1};
    assert_ok(lg_model_mobilenetv3_large(&model, &mobilenet));
    assert_learns_images(model, 0.01);
}

static void densenet_learns_a_batch(void **state)
{
    (void)state;
    lg_model *model = NULL;
    const lg_densenet_opts opts = {.input = image_shape,
                                   .num_classes = NUM_CLASSES,
                                   .depth = 16,
                                   .growth = 4,
                                   .drop_prob = 0.05};
    assert_ok(lg_model_densenet(&model, &opts));
    assert_learns_images(model, 0.01);
}

static void mobilenetv3_learns_a_batch(void **state)
{
    (void)state;
    lg_model *model = NULL;
    const lg_mobilenetv3_opts opts = {
        .input = image_shape, .num_classes = NUM_CLASSES, .width_mult = 0.25, .drop_prob = 0.1};
    assert_ok(lg_model_mobilenetv3_small(&model, &opts));
    assert_learns_images(model, 0.01);
}

static void vgg_learns_a_batch_with_and_without_batch_norm(void **state)
{
    (void)state;
    for (int has_batch_norm = 0; has_batch_norm < 2; has_batch_norm++) {
        lg_model *model = NULL;
        const lg_vgg_opts opts = {.input = image_shape,
                                  .num_classes = NUM_CLASSES,
                                  .depth = 11,
                                  .width = 4,
                                  .hidden = 16,
                                  .has_batch_norm = has_batch_norm != 0,
                                  .drop_prob = 0.1};
        assert_ok(lg_model_vgg(&model, &opts));
        assert_learns_images(model, 0.01);
    }
}

static void gpt_learns_a_batch_tied_and_untied(void **state)
{
    (void)state;
    for (int is_tied = 0; is_tied < 2; is_tied++) {
        lg_model *model = NULL;
        const lg_gpt_opts opts = {.num_layers = 2,
                                  .width = 16,
                                  .num_heads = 2,
                                  .context = CONTEXT,
                                  .vocab_size = VOCAB_SIZE,
                                  .is_tied = is_tied != 0,
                                  .drop_prob = 0.05};
        assert_ok(lg_model_gpt(&model, &opts));
        assert_learns_text(model, 0.02);
    }
}

static void bert_learns_a_batch_with_and_without_segments(void **state)
{
    (void)state;
    for (int num_segments = 0; num_segments <= 2; num_segments += 2) {
        lg_model *model = NULL;
        const lg_bert_opts opts = {.num_layers = 2,
                                   .width = 16,
                                   .num_heads = 2,
                                   .context = CONTEXT,
                                   .vocab_size = VOCAB_SIZE,
                                   .num_segments = num_segments,
                                   .is_tied = true,
                                   .drop_prob = 0.05};
        assert_ok(lg_model_bert(&model, &opts));
        assert_learns_text(model, 0.02);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resnet_learns_a_batch),
        cmocka_unit_test(imagenet_models_learn_a_batch),
        cmocka_unit_test(densenet_learns_a_batch),
        cmocka_unit_test(mobilenetv3_learns_a_batch),
        cmocka_unit_test(vgg_learns_a_batch_with_and_without_batch_norm),
        cmocka_unit_test(gpt_learns_a_batch_tied_and_untied),
        cmocka_unit_test(bert_learns_a_batch_with_and_without_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
