/*
 * Same bits: at equal micro-batches and threads per op, the weights after some steps have one hash under every strategy,
 * number of lanes and permission to lag, on every device; for a network with batch norm, dropout and a residual, and for
 * a GPT with a tied embedding; with uneven micro-batches and a smaller last batch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/models.h"
#include "leapgrad/trainer.h"

enum {
    NUM_STEPS = 4,
    BATCH = 7,      /* not a multiple of 2 or 3 */
    LAST_BATCH = 4, /* of the last step */
    MAX_MICRO_BATCHES = 3,
    MAX_LANES = 3,
    IMAGE_SIZE = 9,
    NUM_CLASSES = 5,
    NUM_TOKENS = 6,
    VOCAB = 11,
    TENSOR_ELEMS = 1024 /* room for any tensor of a batch */
};

#define assert_ok(expr) \
    do { \
        if ((expr) != LG_OK) { \
            fail_msg("%s", lg_last_error()); \
        } \
    } while (0)

static int add(lg_model *model, const char *name, lg_layer_kind kind, const lg_layer_attrs *attrs,
               int a, int b)
{
    const int inputs[2] = {a, b};
    int layer = -1;
    assert_ok(lg_model_add(model, name, kind, attrs, inputs, (a >= 0 ? 1 : 0) + (b >= 0 ? 1 : 0),
                           &layer));
    return layer;
}

/* conv - bn - relu - dropout - conv - bn - (+ skip) - relu - pool - fc */
static lg_model *create_cnn(void)
{
    lg_model *model = NULL;
    assert_ok(lg_model_create(&model));
    lg_layer_attrs image = lg_layer_attrs_default();
    image.input_shape = LG_SHAPE(1, IMAGE_SIZE, IMAGE_SIZE);
    lg_layer_attrs targets = lg_layer_attrs_default();
    targets.input_idx = 1;
    targets.input_dtype = LG_DTYPE_I32;
    targets.input_shape = lg_shape_make(0, NULL);
    lg_layer_attrs conv = lg_layer_attrs_default();
    conv.window = lg_window_square(3, 1, 1);
    conv.num_outputs = 6;
    conv.has_bias = false;
    lg_layer_attrs relu = lg_layer_attrs_default();
    relu.activation = LG_ACTIVATION_RELU;
    lg_layer_attrs dropout = lg_layer_attrs_default();
    dropout.drop_prob = 0.3f;
    lg_layer_attrs linear = lg_layer_attrs_default();
    linear.num_outputs = NUM_CLASSES;

    int x = add(model, "image", LG_LAYER_INPUT, &image, -1, -1);
    x = add(model, "conv1", LG_LAYER_CONV2D, &conv, x, -1);
    x = add(model, "bn1", LG_LAYER_BATCH_NORM, NULL, x, -1);
    const int skip = add(model, "relu1", LG_LAYER_ACTIVATION, &relu, x, -1);
    x = add(model, "dropout", LG_LAYER_DROPOUT, &dropout, skip, -1);
    x = add(model, "conv2", LG_LAYER_CONV2D, &conv, x, -1);
    x = add(model, "bn2", LG_LAYER_BATCH_NORM, NULL, x, -1);
    x = add(model, "add", LG_LAYER_ADD, NULL, x, skip);
    x = add(model, "relu2", LG_LAYER_ACTIVATION, &relu, x, -1);
    x = add(model, "pool", LG_LAYER_GLOBAL_AVG_POOL, NULL, x, -1);
    x = add(model, "fc", LG_LAYER_LINEAR, &linear, x, -1);
    const int y = add(model, "targets", LG_LAYER_INPUT, &targets, -1, -1);
    (void)add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, x, y);
    return model;
}

static lg_model *create_gpt(void)
{
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = 2;
    opts.width = 8;
    opts.num_heads = 2;
    opts.context = NUM_TOKENS;
    opts.vocab_size = VOCAB;
    opts.is_tied = true;
    opts.drop_prob = 0.2;
    assert_ok(lg_model_gpt(&model, &opts));
    return model;
}

/* How a run may differ without a bit of the weights knowing. */
typedef struct schedule {
    const char *strategy;
    int num_lanes;
    int threads_per_lane;
    bool allow_lag;
    bool has_clipping;
} schedule;

static void run(char hash[LG_WEIGHTS_HASH_CHARS], const lg_model *model, bool is_gpt,
                const char *device, int num_micro_batches, const schedule *how)
{
    float images[TENSOR_ELEMS];
    int32_t ids[TENSOR_ELEMS];
    int32_t targets[TENSOR_ELEMS];
    const void *const tensors[2] = {is_gpt ? (const void *)ids : images, targets};
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = device;
    opts.batch_samples = BATCH;
    opts.num_micro_batches = num_micro_batches;
    opts.seed = 5;
    opts.num_steps = NUM_STEPS;
    opts.strategy = how->strategy;
    opts.num_lanes = how->num_lanes;
    opts.threads_per_lane = how->threads_per_lane;
    opts.allow_lag = how->allow_lag;
    opts.optim.clip_norm = how->has_clipping ? 0.5 : 0.0;
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    for (int step = 0; step < NUM_STEPS; step++) {
        for (int i = 0; i < TENSOR_ELEMS; i++) {
            images[i] = (float)((i * 37 + step * 11) % 101) / 50.0f - 1.0f;
            ids[i] = (i * 7 + step) % VOCAB;
            targets[i] = (i * 3 + step) % (is_gpt ? VOCAB : NUM_CLASSES);
        }
        assert_ok(
            lg_trainer_step(trainer, step == NUM_STEPS - 1 ? LAST_BATCH : BATCH, tensors, NULL));
    }
    assert_ok(lg_trainer_weights_hash(trainer, hash));
    lg_trainer_destroy(trainer);
}

/* Every strategy and number of lanes that this machine has the cores for. */
static void check(const lg_model *model, bool is_gpt)
{
    int num_cores = 0;
    assert_ok(lg_num_cores(&num_cores));
    int num_compared = 0;
    for (int d = 0; lg_device_name(d) != NULL; d++) {
        for (int m = 1; m <= MAX_MICRO_BATCHES; m++) {
            for (int clipping = 0; clipping < 2; clipping++) {
                char expected[LG_WEIGHTS_HASH_CHARS];
                schedule how = {"in-order", 1, 1, false, clipping != 0};
                run(expected, model, is_gpt, lg_device_name(d), m, &how);
                for (int s = 0; lg_strategy_name(s) != NULL; s++) {
                    how.strategy = lg_strategy_name(s);
                    for (how.num_lanes = 1;
                         how.num_lanes <= MAX_LANES && how.num_lanes <= num_cores;
                         how.num_lanes++) {
                        char hash[LG_WEIGHTS_HASH_CHARS];
                        how.allow_lag = (how.num_lanes + m) % 2 == 0 || how.num_lanes == 2;
                        run(hash, model, is_gpt, lg_device_name(d), m, &how);
                        if (strcmp(hash, expected) != 0) {
                            fail_msg("%s, %d micro-batches, clipping %d: %s on %d lanes gives %s, "
                                     "in-order on one lane %s",
                                     lg_device_name(d), m, clipping, how.strategy, how.num_lanes,
                                     hash, expected);
                        }
                        num_compared++;
                    }
                }
            }
        }
    }
    assert_true(num_compared > 0);
}

static void cnn_has_the_same_bits_under_every_plan(void **state)
{
    (void)state;
    lg_model *const model = create_cnn();
    check(model, false);
    lg_model_destroy(model);
}

static void gpt_has_the_same_bits_under_every_plan(void **state)
{
    (void)state;
    lg_model *const model = create_gpt();
    check(model, true);
    lg_model_destroy(model);
}

/* Otherwise the tests above could not fail. */
static void other_micro_batches_or_clipping_give_other_bits(void **state)
{
    (void)state;
    char one[LG_WEIGHTS_HASH_CHARS];
    char two[LG_WEIGHTS_HASH_CHARS];
    const schedule how = {"in-order", 1, 1, false, false};
    const schedule clipped = {"in-order", 1, 1, false, true};
    lg_model *const model = create_cnn();
    run(one, model, false, "auto", 1, &how);
    run(two, model, false, "auto", 2, &how); /* batch norm sees other statistics */
    assert_string_not_equal(one, two);
    run(two, model, false, "auto", 1, &clipped);
    assert_string_not_equal(one, two);
    lg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cnn_has_the_same_bits_under_every_plan),
        cmocka_unit_test(gpt_has_the_same_bits_under_every_plan),
        cmocka_unit_test(other_micro_batches_or_clipping_give_other_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
