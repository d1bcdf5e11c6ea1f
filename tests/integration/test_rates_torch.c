/*
 * Gains and learning rates over 50 steps against tools/lena_peer.py, where PyTorch computes the published formulas from its own
 * gradients: LENA's paper, its authors' program, AdaScale. Network, weights and batches are made by the same formulas here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/trainer.h"

enum { STEPS = 50, NUM_MICRO_BATCHES = 4, BATCH = 16, INPUTS = 8, HIDDEN = 6, CLASSES = 4 };
#define NUM_PARAMS 4
/* The peer's file has nine digits; the other device sums in f32, whose errors 50 steps with momentum carry on. */
#define ALLOWED_F64 2e-8
#define ALLOWED_F32 1e-5

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
}

static lg_model *make_model(void)
{
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int inputs[2] = {-1, -1};
    assert_ok(lg_model_create(&model));
    attrs.input_shape = LG_SHAPE(INPUTS);
    assert_ok(lg_model_add(model, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &inputs[0]));
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    assert_ok(lg_model_add(model, "y", LG_LAYER_INPUT, &attrs, NULL, 0, &inputs[1]));
    attrs = lg_layer_attrs_default();
    attrs.activation = LG_ACTIVATION_RELU;
    attrs.num_outputs = HIDDEN;
    assert_ok(lg_model_add(model, "fc1", LG_LAYER_LINEAR, &attrs, &inputs[0], 1, &inputs[0]));
    assert_ok(lg_model_add(model, "relu", LG_LAYER_ACTIVATION, &attrs, &inputs[0], 1, &inputs[0]));
    attrs.num_outputs = CLASSES;
    assert_ok(lg_model_add(model, "fc2", LG_LAYER_LINEAR, &attrs, &inputs[0], 1, &inputs[0]));
    assert_ok(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL));
    return model;
}

static void write_start_values(lg_trainer *trainer, const lg_model *model)
{
    for (int p = 0; p < NUM_PARAMS; p++) {
        float elems[HIDDEN * INPUTS];
        const lg_param_info *param = lg_model_param(model, p);
        const int64_t num = lg_shape_num_elems(&param->shape);
        for (int64_t i = 0; i < num; i++) {
            elems[i] = (float)((i * 37 + p * 101) % 200 - 100) / 256.0f;
        }
        assert_ok(lg_trainer_write(trainer, param->name, elems, num));
    }
}

static lg_optim_opts optim_of(const char *rule)
{
    lg_optim_opts opts = lg_optim_opts_default();
    opts.lr = 0.1;
    opts.momentum = 0.9;
    opts.weight_decay = 5e-4;
    opts.decay_norm_and_bias = true;
    opts.schedule = LG_SCHEDULE_EXPONENTIAL;
    opts.min_lr_frac = 0.01;
    opts.scaling = LG_LR_SCALING_LENA;
    opts.warmup = LG_WARMUP_LAYERWISE;
    opts.warmup_frac = 0.05;
    if (strcmp(rule, "released-code") == 0) {
        opts.variant = LG_RATE_VARIANT_RELEASED_CODE;
    } else if (strcmp(rule, "adascale") == 0) {
        opts.scaling = LG_LR_SCALING_ADASCALE;
        opts.warmup = LG_WARMUP_NONE;
        opts.schedule_by = LG_SCHEDULE_BY_ITERATION;
    }
    return opts;
}

static void compare(const char *where, int step, int param, double value, double expected,
                    double allowed)
{
    if (!(fabs(value - expected) <= allowed * fabs(expected) + 1e-12)) {
        fail_msg("%s, step %d, parameter %d: %.9g, the peer has %.9g", where, step, param, value,
                 expected);
    }
}

/* Reads the next line of `rule`. */
static void read_line(FILE *file, const char *rule, int step, double numbers[2 * NUM_PARAMS])
{
    char line[512];
    char name[32];
    int number = -1;
    do {
        assert_non_null(fgets(line, sizeof line, file));
    } while (sscanf(line, "%31[^,],%d", name, &number) != 2 || strcmp(name, rule) != 0 ||
             number != step);
    const char *at = strchr(strchr(line, ',') + 1, ',');
    for (int i = 0; i < 2 * NUM_PARAMS; i++) {
        assert_non_null(at);
        numbers[i] = strtod(at + 1, NULL);
        at = strchr(at + 1, ',');
    }
}

static void check_rule(const char *device, const char *rule)
{
    char path[512];
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    const char *root = getenv("LG_SOURCE_DIR");
    (void)snprintf(path, sizeof path, "%s/tests/golden/rates/peer.csv", root != NULL ? root : ".");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    lg_model *model = make_model();
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = device;
    opts.batch_samples = BATCH;
    opts.num_micro_batches = NUM_MICRO_BATCHES;
    opts.num_steps = STEPS;
    opts.threads_per_lane = 1;
    opts.optim = optim_of(rule);
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    write_start_values(trainer, model);
    for (int t = 0; t < STEPS; t++) {
        double expected[2 * NUM_PARAMS];
        const void *const tensors[2] = {x, y};
        for (int i = 0; i < BATCH * INPUTS; i++) {
            x[i] = (float)((i * 7919 + t * 104729 + 13) % 1000 - 500) / 256.0f;
        }
        for (int i = 0; i < BATCH; i++) {
            y[i] = (x[i * INPUTS] > 0.0f ? 1 : 0) + (x[i * INPUTS + 1] > 0.0f ? 2 : 0);
        }
        assert_ok(lg_trainer_step(trainer, BATCH, tensors, NULL));
        read_line(file, rule, t, expected);
        const double allowed = strcmp(device, "reference-f64") == 0 ? ALLOWED_F64 : ALLOWED_F32;
        for (int p = 0; p < NUM_PARAMS; p++) {
            lg_rate rate;
            assert_ok(lg_trainer_rate(trainer, p, &rate));
            compare(rule, t, p, rate.gain, expected[2 * p], allowed);
            compare(rule, t, p, rate.lr, expected[2 * p + 1], allowed);
        }
    }
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    (void)fclose(file);
}

static void check_devices(const char *rule)
{
    for (int d = 0; lg_device_name(d) != NULL; d++) {
        check_rule(lg_device_name(d), rule);
    }
}

static void lenas_paper_agrees_with_the_peer(void **state)
{
    (void)state;
    check_devices("paper");
}

static void lenas_program_agrees_with_the_peer(void **state)
{
    (void)state;
    check_devices("released-code");
}

static void adascale_agrees_with_the_peer(void **state)
{
    (void)state;
    check_devices("adascale");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenas_paper_agrees_with_the_peer),
        cmocka_unit_test(lenas_program_agrees_with_the_peer),
        cmocka_unit_test(adascale_agrees_with_the_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
