/*
 * Whatever the plan, the same bits: strategies, lanes, threads, lags, memory layouts, and random legal plans (up to three
 * lanes, lanes that share cores, lagging ops) train a network with batch norm and dropout, and a transformer with tied
 * embeddings, to one and the same hash.
 */
#include "unit/plan/random_plans.h"

#include <unistd.h>

#include "leapgrad/models.h"
#include "leapgrad/trainer.h"

#define NUM_STEPS 5
#define MAX_SAMPLES 7

/* What one training is told. */
struct run {
    const char *device;
    bool is_gpt;
    int num_micro_batches;
    const char *strategy;
    int num_lanes;
    int num_threads;           /* per lane; 0: the strategy chooses, for each op */
    uint64_t random_plan_seed; /* above 0: a random plan instead of the strategy's */
    bool evaluates;            /* in the middle, which makes lagging ops run early */
};

/* conv - bn - relu - dropout - conv - bn - add - relu - pool - linear - loss on 6x6 images */
static lg_model *cnn(void)
{
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int x = -1;
    int inputs[2] = {-1, -1};
    assert_ok(lg_model_create(&model));
    attrs.input_shape = LG_SHAPE(2, 6, 6);
    assert_ok(lg_model_add(model, "image", LG_LAYER_INPUT, &attrs, NULL, 0, &x));
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    int targets = -1;
    assert_ok(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets));
    attrs = lg_layer_attrs_default();
    attrs.window = lg_window_square(3, 1, 1);
    attrs.num_outputs = 17;
    attrs.activation = LG_ACTIVATION_RELU;
    attrs.drop_prob = 0.25f;
    lg_layer_attrs plain = lg_layer_attrs_default();
    assert_ok(lg_model_add(model, "conv1", LG_LAYER_CONV2D, &attrs, &x, 1, &x));
    assert_ok(lg_model_add(model, "bn1", LG_LAYER_BATCH_NORM, NULL, &x, 1, &x));
    assert_ok(lg_model_add(model, "relu1", LG_LAYER_ACTIVATION, &attrs, &x, 1, &x));
    assert_ok(lg_model_add(model, "drop", LG_LAYER_DROPOUT, &attrs, &x, 1, &inputs[1]));
    assert_ok(lg_model_add(model, "conv2", LG_LAYER_CONV2D, &attrs, &inputs[1], 1, &x));
    assert_ok(lg_model_add(model, "bn2", LG_LAYER_BATCH_NORM, &plain, &x, 1, &inputs[0]));
    assert_ok(lg_model_add(model, "add", LG_LAYER_ADD, &plain, inputs, 2, &x));
    assert_ok(lg_model_add(model, "relu2", LG_LAYER_ACTIVATION, &attrs, &x, 1, &x));
    assert_ok(lg_model_add(model, "pool", LG_LAYER_GLOBAL_AVG_POOL, NULL, &x, 1, &x));
    attrs.num_outputs = 5;
    assert_ok(lg_model_add(model, "fc", LG_LAYER_LINEAR, &attrs, &x, 1, &inputs[0]));
    inputs[1] = targets;
    assert_ok(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL));
    return model;
}

static lg_model *gpt(void)
{
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = 2;
    opts.width = 24;
    opts.num_heads = 2;
    opts.context = 7;
    opts.vocab_size = 13;
    opts.drop_prob = 0.1;
    assert_ok(lg_model_gpt(&model, &opts));
    return model;
}

/* Batch tensors of a step: made of its number. */
static void fill_batch(bool is_gpt, int step, float *images, int32_t *ids, int32_t *targets)
{
    uint64_t state = 77 + (uint64_t)step;
    for (int i = 0; i < MAX_SAMPLES * 2 * 6 * 6; i++) {
        images[i] = (float)rnd_below(&state, 2000) / 1000.0f - 1.0f;
    }
    for (int i = 0; i < MAX_SAMPLES * 7; i++) {
        ids[i] = rnd_below(&state, 13);
        targets[i] = rnd_below(&state, is_gpt ? 13 : 5);
    }
}

/* Saves a random legal plan of the graph that the trainer would run, and returns where. */
static void save_random_plan(const lg_model *model, const lg_trainer_opts *opts, uint64_t seed,
                             const char *path)
{
    lg_trainer *trainer = NULL;
    assert_ok(lg_trainer_create(&trainer, model, opts));
    /* lanes of two widths on the same cores, where the graph has them */
    const bool share_cores = lg_graph_options(lg_trainer_graph(trainer))->num_widths > 1;
    lg_plan *plan = random_plan(lg_trainer_graph(trainer), seed, share_cores);
    assert_ok(lg_plan_save(plan, lg_trainer_graph(trainer), path));
    lg_plan_destroy(plan);
    lg_trainer_destroy(trainer);
}

static void train(const struct run *run, char hash[LG_WEIGHTS_HASH_CHARS])
{
    static float images[MAX_SAMPLES * 2 * 6 * 6];
    static int32_t ids[MAX_SAMPLES * 7];
    static int32_t targets[MAX_SAMPLES * 7];
    char path[64];
    lg_model *model = run->is_gpt ? gpt() : cnn();
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = run->device;
    opts.batch_samples = MAX_SAMPLES;
    opts.num_micro_batches = run->num_micro_batches;
    opts.num_steps = NUM_STEPS;
    opts.seed = 3;
    opts.strategy = run->strategy;
    opts.num_lanes = run->num_lanes;
    opts.threads_per_lane = run->num_threads;
    opts.optim.momentum = 0.9;
    opts.optim.clip_norm = run->is_gpt ? 0.5 : 0.0;
    if (run->random_plan_seed > 0) {
        (void)snprintf(path, sizeof path, "/tmp/leapgrad-plan-%ld.json", (long)getpid());
        save_random_plan(model, &opts, run->random_plan_seed, path);
        opts.plan_path = path;
    }
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    for (int step = 0; step < NUM_STEPS; step++) {
        const void *const tensors[2] = {run->is_gpt ? (const void *)ids : (const void *)images,
                                        targets};
        fill_batch(run->is_gpt, step, images, ids, targets);
        /* a ragged batch in the middle, as at the end of an epoch */
        assert_ok(lg_trainer_step(trainer, step == 3 ? 5 : MAX_SAMPLES, tensors, NULL));
        if (run->evaluates && step == 1) {
            lg_eval_sums sums = {0};
            assert_ok(lg_trainer_evaluate(trainer, 3, tensors, &sums));
        }
    }
    assert_ok(lg_trainer_weights_hash(trainer, hash));
    const lg_trainer_info info = lg_trainer_about(trainer);
    assert_int_equal(info.planned_peak_bytes, info.measured_peak_bytes);
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    if (run->random_plan_seed > 0) {
        (void)unlink(path);
    }
}

static void expect_same(const struct run *run, const char *expected)
{
    char hash[LG_WEIGHTS_HASH_CHARS];
    train(run, hash);
    if (strcmp(hash, expected) != 0) {
        fail_msg("%s, %s, M=%d, %s, %d lanes of %d threads, random plan %llu: %s, expected %s",
                 run->device, run->is_gpt ? "gpt" : "cnn", run->num_micro_batches, run->strategy,
                 run->num_lanes, run->num_threads, (unsigned long long)run->random_plan_seed, hash,
                 expected);
    }
}

static void check_device(const char *device, bool is_gpt)
{
    for (int m = 1; m <= 3; m++) {
        char expected[LG_WEIGHTS_HASH_CHARS];
        struct run run = {device, is_gpt, m, "in-order", 1, 1, 0, false};
        train(&run, expected);
        expect_same(&run, expected);
        run.evaluates = true;
        expect_same(&run, expected);
        run.num_lanes = 2;
        expect_same(&run, expected);
        run.strategy = "out-of-order";
        for (run.num_lanes = 1; run.num_lanes <= 3; run.num_lanes++) {
            expect_same(&run, expected);
        }
        run.num_lanes = 0;
        run.num_threads = 0;
        run.evaluates = false;
        expect_same(&run, expected);
        run.num_lanes = 1;
        run.num_threads = 2;
        expect_same(&run, expected);
        run.num_lanes = 0;
        run.num_threads = 0;
        for (run.random_plan_seed = 1; run.random_plan_seed <= 6; run.random_plan_seed++) {
            run.evaluates = run.random_plan_seed % 2 == 0;
            expect_same(&run, expected);
        }
    }
}

static void cnn_trains_to_the_same_bits_under_every_plan(void **state)
{
    (void)state;
    for (int i = 0; lg_device_name(i) != NULL; i++) {
        check_device(lg_device_name(i), false);
    }
}

static void gpt_trains_to_the_same_bits_under_every_plan(void **state)
{
    (void)state;
    for (int i = 0; lg_device_name(i) != NULL; i++) {
        check_device(lg_device_name(i), true);
    }
}

/* The micro-batches of a batch give the gradient of the whole: one rule of normalisation. Without batch norm, whose
   statistics are those of the micro-batch. */
static void micro_batches_give_the_gradient_of_the_whole_batch(void **state)
{
    (void)state;
    enum { NUM_ELEMS = 13 * 24 };
    static float images[MAX_SAMPLES * 2 * 6 * 6];
    static int32_t ids[MAX_SAMPLES * 7];
    static int32_t targets[MAX_SAMPLES * 7];
    float whole[NUM_ELEMS];
    float parts[NUM_ELEMS];
    lg_model *model = NULL;
    lg_gpt_opts gpt_opts = lg_gpt_opts_default();
    gpt_opts.num_layers = 1;
    gpt_opts.width = 24;
    gpt_opts.num_heads = 2;
    gpt_opts.context = 7;
    gpt_opts.vocab_size = 13;
    assert_ok(lg_model_gpt(&model, &gpt_opts));
    fill_batch(true, 0, images, ids, targets);
    for (int i = 0; i < 9; i++) { /* ignored targets spread unevenly over the micro-batches */
        targets[i] = -100;
    }
    for (int m = 1; m <= 4; m++) {
        lg_trainer *trainer = NULL;
        lg_trainer_opts opts = lg_trainer_opts_default();
        const void *const tensors[2] = {ids, targets};
        opts.device = "reference-f64";
        opts.batch_samples = MAX_SAMPLES;
        opts.num_micro_batches = m;
        assert_ok(lg_trainer_create(&trainer, model, &opts));
        assert_ok(lg_trainer_step(trainer, MAX_SAMPLES, tensors, NULL));
        assert_ok(lg_trainer_read(trainer, "transformer.wte.weight.grad", m == 1 ? whole : parts,
                                  NUM_ELEMS));
        for (int i = 0; m > 1 && i < NUM_ELEMS; i++) {
            /* f64 inside, so the order of additions shows only in f32's last bit when read */
            assert_float_equal(parts[i], whole[i],
                               2.0f * 0x1p-24f * (whole[i] < 0 ? -whole[i] : whole[i]) + 1e-12f);
        }
        lg_trainer_destroy(trainer);
    }
    lg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cnn_trains_to_the_same_bits_under_every_plan),
        cmocka_unit_test(gpt_trains_to_the_same_bits_under_every_plan),
        cmocka_unit_test(micro_batches_give_the_gradient_of_the_whole_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
