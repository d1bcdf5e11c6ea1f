/* What a trainer does when something goes wrong in the middle: it says so, leaks nothing, and goes on or refuses to. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "leapgrad/trainer.h"

enum { NUM_SAMPLES = 6, NUM_RAGGED = 4, NUM_CHANNELS = 2, NUM_PIXELS = 9, NUM_CLASSES = 3 };

/* Above the allocations that any of the jobs below makes. */
enum { MAX_ALLOCATIONS = 20000 };

static float images[2 * NUM_SAMPLES][NUM_CHANNELS * NUM_PIXELS];
static int32_t classes[2 * NUM_SAMPLES];

static void fill_batch(void)
{
    for (int i = 0; i < 2 * NUM_SAMPLES; i++) {
        classes[i] = i % NUM_CLASSES;
        for (int k = 0; k < NUM_CHANNELS * NUM_PIXELS; k++) {
            images[i][k] = sinf((float)(i * 31 + k * 7));
        }
    }
}

/* Convolution, batch norm, ReLU, linear; a model with one output more has other tensors. */
static lg_status make_model(lg_model **out, int num_hidden)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int layers[2];
    lg_status status = lg_model_create(out);
    attrs.input_shape = LG_SHAPE(NUM_CHANNELS, 3, 3);
    attrs.num_outputs = num_hidden;
    attrs.window = lg_window_square(3, 1, 1);
    attrs.activation = LG_ACTIVATION_RELU;
#define ADD(name, kind, inputs, num, out_layer) \
    status = \
        status != LG_OK ? status : lg_model_add(*out, name, kind, &attrs, inputs, num, out_layer)
    ADD("image", LG_LAYER_INPUT, NULL, 0, &layers[0]);
    ADD("conv", LG_LAYER_CONV2D, layers, 1, &layers[0]);
    ADD("norm", LG_LAYER_BATCH_NORM, layers, 1, &layers[0]);
    ADD("relu", LG_LAYER_ACTIVATION, layers, 1, &layers[0]);
    ADD("flat", LG_LAYER_FLATTEN, layers, 1, &layers[0]);
    attrs.num_outputs = NUM_CLASSES;
    ADD("logits", LG_LAYER_LINEAR, layers, 1, &layers[0]);
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_idx = 1;
    ADD("class", LG_LAYER_INPUT, NULL, 0, &layers[1]);
    ADD("loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, layers, 2, NULL);
#undef ADD
    return status;
}

static lg_trainer_opts make_opts(void)
{
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.batch_samples = NUM_SAMPLES;
    opts.num_micro_batches = 2;
    opts.num_steps = 10;
    opts.seed = 3;
    opts.strategy = "out-of-order";
    opts.num_lanes = 2;
    opts.threads_per_lane = 1;
    opts.optim.lr = 0.05;
    return opts;
}

static const void *const batch[2] = {images, classes};

/* All that a program does with a trainer, in a folder `root` for checkpoints. */
static lg_status whole_job(const char *root, char hash[LG_WEIGHTS_HASH_CHARS])
{
    static float logits[2 * NUM_SAMPLES * NUM_CLASSES];
    lg_model *model = NULL;
    lg_trainer *trainer = NULL;
    lg_checkpoint *checkpoint = NULL;
    lg_eval_sums sums;
    lg_trainer_opts opts = make_opts();
    memset(&sums, 0, sizeof sums);
    lg_status status = make_model(&model, 4);
#define THEN(call) status = status != LG_OK ? status : (call)
    THEN(lg_trainer_create(&trainer, model, &opts));
    THEN(lg_trainer_step(trainer, NUM_SAMPLES, batch, NULL));
    THEN(lg_trainer_step(trainer, NUM_RAGGED, batch, NULL));
    THEN(lg_trainer_step(trainer, NUM_SAMPLES, batch, NULL));
    THEN(lg_trainer_evaluate(trainer, 2 * NUM_SAMPLES, batch, &sums));
    THEN(lg_trainer_predict(trainer, 1, batch, logits));
    THEN(lg_trainer_save(trainer, root, "{}", NULL, 2));
    THEN(lg_checkpoint_open(&checkpoint, root));
    THEN(lg_trainer_load(trainer, checkpoint, false));
    THEN(lg_trainer_step(trainer, NUM_SAMPLES, batch, NULL));
    THEN(lg_trainer_weights_hash(trainer, hash));
#undef THEN
    lg_checkpoint_close(checkpoint);
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    return status;
}

static void make_root(char *root, size_t num_bytes)
{
    const char *const parent = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    (void)snprintf(root, num_bytes, "%s/leapgrad-failures.XXXXXX", parent);
    assert_non_null(mkdtemp(root));
}

static void remove_root(const char *root)
{
    char command[512];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

static void assert_out_of_memory(lg_status status, int countdown)
{
    if (status != LG_OUT_OF_MEMORY) {
        fail_msg("allocation %d: status %s: %s", countdown, lg_status_name(status),
                 lg_last_error());
    }
}

/* Every allocation of the library fails once, alone. A sanitizer build sees what leaks. */
static void any_allocation_may_fail(void **state)
{
    (void)state;
    char root[256];
    char expected[LG_WEIGHTS_HASH_CHARS];
    char hash[LG_WEIGHTS_HASH_CHARS];
    int num_failed = 0;
    int countdown = 1;
    make_root(root, sizeof root);
    assert_int_equal(whole_job(root, expected), LG_OK);
    /* Most of them, densely at first: a stride without a pattern keeps the test short. */
    for (; countdown < MAX_ALLOCATIONS; countdown += 1 + countdown / 40) {
        lgi_alloc_fail_after(countdown);
        const lg_status status = whole_job(root, hash);
        const int has_failed = lgi_alloc_left() == 0;
        lgi_alloc_fail_after(0);
        if (!has_failed) {
            assert_int_equal(status, LG_OK);
            break;
        }
        num_failed++;
        if (status != LG_OK) {
            assert_out_of_memory(status, countdown);
            assert_true(strlen(lg_last_error()) > 0);
            assert_null(strchr(lg_last_error(), '\n'));
        } else { /* what failed was not needed */
            assert_string_equal(hash, expected);
        }
    }
    assert_true(countdown < MAX_ALLOCATIONS);
    assert_true(num_failed > 50);
    remove_root(root);
}

/* The ragged batch needs a plan of its own, for which there is no memory; the batches after it go on as if it had not been. */
static void a_batch_that_fails_to_be_planned_changes_nothing(void **state)
{
    (void)state;
    char hashes[2][LG_WEIGHTS_HASH_CHARS];
    lg_model *model = NULL;
    const lg_trainer_opts opts = make_opts();
    assert_int_equal(make_model(&model, 4), LG_OK);
    for (int with_failures = 0; with_failures < 2; with_failures++) {
        lg_trainer *trainer = NULL;
        assert_int_equal(lg_trainer_create(&trainer, model, &opts), LG_OK);
        assert_int_equal(lg_trainer_step(trainer, NUM_SAMPLES, batch, NULL), LG_OK);
        int num_failed = 0;
        /* Twice the samples: a larger arena, so the old one is given up on the way. */
        for (int countdown = 1; with_failures && countdown < MAX_ALLOCATIONS; countdown++) {
            lgi_alloc_fail_after(countdown);
            const lg_status status = lg_trainer_evaluate(trainer, 2 * NUM_SAMPLES, batch,
                                                         &(lg_eval_sums){.loss_sum = 0.0});
            lgi_alloc_fail_after(0);
            if (status == LG_OK) {
                break;
            }
            assert_out_of_memory(status, countdown);
            num_failed++;
        }
        assert_true(!with_failures || num_failed > 20);
        assert_int_equal(lg_trainer_step(trainer, NUM_SAMPLES, batch, NULL), LG_OK);
        assert_int_equal(lg_trainer_weights_hash(trainer, hashes[with_failures]), LG_OK);
        lg_trainer_destroy(trainer);
    }
    assert_string_equal(hashes[0], hashes[1]);
    lg_model_destroy(model);
}

static void a_checkpoint_of_another_model_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    char root[256];
    char before[LG_WEIGHTS_HASH_CHARS];
    char after[LG_WEIGHTS_HASH_CHARS];
    lg_model *models[2] = {NULL, NULL};
    lg_trainer *trainers[2] = {NULL, NULL};
    lg_checkpoint *checkpoint = NULL;
    const lg_trainer_opts opts = make_opts();
    make_root(root, sizeof root);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(make_model(&models[i], 4 + i), LG_OK);
        assert_int_equal(lg_trainer_create(&trainers[i], models[i], &opts), LG_OK);
        assert_int_equal(lg_trainer_step(trainers[i], NUM_SAMPLES, batch, NULL), LG_OK);
    }
    assert_int_equal(lg_trainer_save(trainers[0], root, NULL, NULL, 1), LG_OK);
    assert_int_equal(lg_checkpoint_open(&checkpoint, root), LG_OK);
    assert_int_equal(lg_trainer_weights_hash(trainers[1], before), LG_OK);
    assert_int_equal(lg_trainer_load(trainers[1], checkpoint, false), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "conv.weight"));
    assert_int_equal(lg_trainer_weights_hash(trainers[1], after), LG_OK);
    assert_string_equal(before, after);
    assert_int_equal(lg_trainer_next_step(trainers[1]), 1);
    assert_int_equal(lg_trainer_step(trainers[1], NUM_SAMPLES, batch, NULL), LG_OK);
    lg_checkpoint_close(checkpoint);
    for (int i = 0; i < 2; i++) {
        lg_trainer_destroy(trainers[i]);
        lg_model_destroy(models[i]);
    }
    remove_root(root);
}

static void names_and_sizes_that_are_wrong_are_refused(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_trainer *trainer = NULL;
    float elems[64];
    int32_t wrong[NUM_SAMPLES] = {0, 1, 2, 3, 0, 1};
    const void *const wrong_batch[2] = {images, wrong};
    const void *const missing[2] = {NULL, classes};
    const lg_trainer_opts opts = make_opts();
    assert_int_equal(make_model(&model, 4), LG_OK);
    assert_int_equal(lg_trainer_create(&trainer, model, &opts), LG_OK);
    assert_int_equal(lg_trainer_read(trainer, "conv.weigth", elems, 1), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_read(trainer, "", elems, 1), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_read(trainer, "conv.weight", elems, 64), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_read(trainer, "conv.weight", elems, -1), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_write(trainer, "conv.weight.slot1", elems, 1), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_step(trainer, 0, batch, NULL), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_step(trainer, -1, batch, NULL), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_step(trainer, INT64_MAX, batch, NULL), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_evaluate(trainer, INT64_MAX / 2, batch, NULL), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_step(trainer, NUM_SAMPLES, wrong_batch, NULL), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_step(trainer, NUM_SAMPLES, missing, NULL), LG_INVALID_ARG);
    assert_int_equal(lg_trainer_next_step(trainer), 0);
    assert_int_equal(lg_trainer_step(trainer, 1, batch, NULL), LG_OK);
    lg_trainer_destroy(trainer);
    lg_trainer_destroy(NULL);
    lg_model_destroy(model);
    lg_model_destroy(NULL);
    lg_checkpoint_close(NULL);
}

static void options_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts[6];
    assert_int_equal(make_model(&model, 4), LG_OK);
    for (int i = 0; i < 6; i++) {
        opts[i] = make_opts();
    }
    opts[0].device = NULL;
    opts[1].strategy = NULL;
    opts[2].costs = (lg_trainer_costs)99;
    opts[3].costs = LG_TRAINER_COSTS_FILE;
    opts[4].num_micro_batches = NUM_SAMPLES + 1;
    opts[5].optim.lr = NAN;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(lg_trainer_create(&trainer, model, &opts[i]), LG_INVALID_ARG);
        assert_null(trainer);
    }
    lg_model_destroy(model);
}

struct worker {
    pthread_t thread;
    lg_status status;
    char root[256];
    char hash[LG_WEIGHTS_HASH_CHARS];
};

static void *work(void *user)
{
    struct worker *const self = user;
    lg_model *model = NULL;
    lg_trainer *trainer = NULL;
    const lg_trainer_opts opts = make_opts();
    self->status = make_model(&model, 4);
    self->status = self->status == LG_OK ? lg_trainer_create(&trainer, model, &opts) : self->status;
    for (int i = 0; i < 8 && self->status == LG_OK; i++) {
        lg_eval_sums sums;
        memset(&sums, 0, sizeof sums);
        self->status = lg_trainer_step(trainer, i % 3 == 2 ? 1 : NUM_SAMPLES, batch, NULL);
        if (self->status == LG_OK && i % 2 == 1) {
            self->status = lg_trainer_evaluate(trainer, 1 + i, batch, &sums);
        }
    }
    self->status =
        self->status == LG_OK ? lg_trainer_weights_hash(trainer, self->hash) : self->status;
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    return NULL;
}

static void trainers_in_two_threads_do_not_disturb_each_other(void **state)
{
    (void)state;
    struct worker alone;
    struct worker workers[2];
    memset(&alone, 0, sizeof alone);
    memset(workers, 0, sizeof workers);
    (void)work(&alone);
    assert_int_equal(alone.status, LG_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].status, LG_OK);
        assert_string_equal(workers[i].hash, alone.hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(a_batch_that_fails_to_be_planned_changes_nothing),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused_and_changes_nothing),
        cmocka_unit_test(names_and_sizes_that_are_wrong_are_refused),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(trainers_in_two_threads_do_not_disturb_each_other),
    };
    fill_batch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
