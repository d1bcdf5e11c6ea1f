/*
 * Gradient statistics in the step graph, trained end to end: the same bits under every plan; the bits of plain SGD where the
 * scale is 1; statistics held against gradients read back one micro-batch at a time, with unequal micro-batches, weights and
 * tied embeddings; a gradient that is not finite; resuming, and resuming at another scale.
 */
#include "unit/plan/random_plans.h"

#include <ftw.h>
#include <math.h>
#include <unistd.h>

#include "leapgrad/models.h"
#include "leapgrad/trainer.h"

#define NUM_STEPS 6
#define MAX_SAMPLES 12
#define NUM_CLASSES 5
#define CONTEXT 7
#define VOCAB 13
/* lg_layer_attrs_default() */
#define IGNORED (-100)
/* Gains from statistics whose gradients have other roundings: f32 sums of some hundred terms. */
#define GAIN_TOLERANCE 1e-5

struct batch {
    float images[MAX_SAMPLES * 2 * 6 * 6];
    int32_t ids[MAX_SAMPLES * CONTEXT];
    int32_t targets[MAX_SAMPLES * CONTEXT];
};

/*
 * conv - bn - relu - conv - pool - linear - loss on 6x6 images; `has_norm`: samples of a micro-batch see each other.
 * `class_weight`: of every class; 0: none.
 */
static lg_model *weighted_cnn(bool has_norm, float class_weight)
{
    const float weights[NUM_CLASSES] = {class_weight, class_weight, class_weight, class_weight,
                                        class_weight};
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int x = -1;
    int targets = -1;
    assert_ok(lg_model_create(&model));
    attrs.input_shape = LG_SHAPE(2, 6, 6);
    assert_ok(lg_model_add(model, "image", LG_LAYER_INPUT, &attrs, NULL, 0, &x));
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    assert_ok(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets));
    attrs = lg_layer_attrs_default();
    attrs.window = lg_window_square(3, 1, 1);
    attrs.num_outputs = 9;
    attrs.activation = LG_ACTIVATION_RELU;
    assert_ok(lg_model_add(model, "conv1", LG_LAYER_CONV2D, &attrs, &x, 1, &x));
    if (has_norm) {
        assert_ok(lg_model_add(model, "bn1", LG_LAYER_BATCH_NORM, NULL, &x, 1, &x));
    }
    assert_ok(lg_model_add(model, "relu1", LG_LAYER_ACTIVATION, &attrs, &x, 1, &x));
    assert_ok(lg_model_add(model, "conv2", LG_LAYER_CONV2D, &attrs, &x, 1, &x));
    assert_ok(lg_model_add(model, "pool", LG_LAYER_GLOBAL_AVG_POOL, NULL, &x, 1, &x));
    attrs.num_outputs = NUM_CLASSES;
    assert_ok(lg_model_add(model, "fc", LG_LAYER_LINEAR, &attrs, &x, 1, &x));
    const int inputs[2] = {x, targets};
    attrs = lg_layer_attrs_default();
    attrs.class_weights = class_weight > 0.0f ? weights : NULL;
    assert_ok(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, &attrs, inputs, 2, NULL));
    return model;
}

static lg_model *cnn(bool has_norm)
{
    return weighted_cnn(has_norm, 0.0f);
}

static lg_model *gpt(void)
{
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = 1;
    opts.width = 12;
    opts.num_heads = 2;
    opts.context = CONTEXT;
    opts.vocab_size = VOCAB;
    assert_ok(lg_model_gpt(&model, &opts));
    return model;
}

static void fill_batch(bool is_gpt, int step, struct batch *batch)
{
    uint64_t state = 99 + (uint64_t)step;
    for (int i = 0; i < MAX_SAMPLES * 2 * 6 * 6; i++) {
        batch->images[i] = (float)rnd_below(&state, 2000) / 1000.0f - 1.0f;
    }
    for (int i = 0; i < MAX_SAMPLES * CONTEXT; i++) {
        batch->ids[i] = rnd_below(&state, VOCAB);
        batch->targets[i] = rnd_below(&state, is_gpt ? VOCAB : NUM_CLASSES);
    }
}

static lg_status step_on(lg_trainer *trainer, bool is_gpt, const struct batch *batch, int first,
                         int num_samples, lg_step_result *result)
{
    const void *const tensors[2] = {is_gpt ? (const void *)(batch->ids + first * CONTEXT)
                                           : (const void *)(batch->images + first * 2 * 6 * 6),
                                    batch->targets + first * (is_gpt ? CONTEXT : 1)};
    return lg_trainer_step(trainer, num_samples, tensors, result);
}

static lg_trainer_opts lena_opts(const char *device, int num_micro_batches)
{
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = device;
    opts.batch_samples = MAX_SAMPLES;
    opts.num_micro_batches = num_micro_batches;
    opts.num_steps = NUM_STEPS;
    opts.seed = 3;
    opts.threads_per_lane = 1;
    opts.optim.scaling = LG_LR_SCALING_LENA;
    opts.optim.warmup = LG_WARMUP_LAYERWISE;
    opts.optim.warmup_frac = 0.2;
    return opts;
}

/* --- the same bits ------------------------------------------------------------------------------------------------- */

static void train_and_hash(const lg_trainer_opts *opts, bool is_gpt,
                           char hash[LG_WEIGHTS_HASH_CHARS])
{
    static struct batch batch;
    lg_model *model = is_gpt ? gpt() : cnn(true);
    lg_trainer *trainer = NULL;
    assert_ok(lg_trainer_create(&trainer, model, opts));
    for (int step = 0; step < NUM_STEPS; step++) {
        fill_batch(is_gpt, step, &batch);
        assert_ok(step_on(trainer, is_gpt, &batch, 0, step == 3 ? 7 : MAX_SAMPLES, NULL));
    }
    assert_ok(lg_trainer_weights_hash(trainer, hash));
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
}

/* A random legal plan, where `seed` is above 0. */
static void train_by_plan(lg_trainer_opts *opts, bool is_gpt, uint64_t seed,
                          char hash[LG_WEIGHTS_HASH_CHARS])
{
    char path[64];
    if (seed > 0) {
        lg_model *model = is_gpt ? gpt() : cnn(true);
        lg_trainer *trainer = NULL;
        (void)snprintf(path, sizeof path, "/tmp/leapgrad-rates-%ld.json", (long)getpid());
        assert_ok(lg_trainer_create(&trainer, model, opts));
        lg_plan *plan = random_plan(lg_trainer_graph(trainer), seed, false);
        assert_ok(lg_plan_save(plan, lg_trainer_graph(trainer), path));
        lg_plan_destroy(plan);
        lg_trainer_destroy(trainer);
        lg_model_destroy(model);
        opts->plan_path = path;
    }
    train_and_hash(opts, is_gpt, hash);
    opts->plan_path = NULL;
    if (seed > 0) {
        (void)unlink(path);
    }
}

static void rates_are_the_same_bits_under_every_plan(void **state)
{
    (void)state;
    for (int is_gpt = 0; is_gpt < 2; is_gpt++) {
        for (int skip = 0; skip < LG_NUM_SKIPS; skip++) {
            char expected[LG_WEIGHTS_HASH_CHARS];
            char hash[LG_WEIGHTS_HASH_CHARS];
            lg_trainer_opts opts = lena_opts("reference", 4);
            opts.optim.skip = (lg_skip)skip;
            train_by_plan(&opts, is_gpt != 0, 0, expected);
            opts.strategy = "out-of-order";
            train_by_plan(&opts, is_gpt != 0, 0, hash);
            assert_string_equal(hash, expected);
            opts.num_lanes = 2;
            train_by_plan(&opts, is_gpt != 0, 0, hash);
            assert_string_equal(hash, expected);
            opts.num_lanes = 0;
            for (uint64_t seed = 1; seed <= 3; seed++) {
                train_by_plan(&opts, is_gpt != 0, seed, hash);
                assert_string_equal(hash, expected);
            }
        }
    }
}

static void skipping_by_layer_has_the_bits_of_skipping_by_step_if_nothing_is_skipped(void **state)
{
    (void)state;
    char by_step[LG_WEIGHTS_HASH_CHARS];
    char by_layer[LG_WEIGHTS_HASH_CHARS];
    lg_trainer_opts opts = lena_opts("reference", 3);
    train_and_hash(&opts, false, by_step);
    opts.optim.skip = LG_SKIP_LAYER;
    train_and_hash(&opts, false, by_layer);
    assert_string_equal(by_layer, by_step);
}

static void at_scale_1_without_warmup_every_scaling_has_the_bits_of_plain_sgd(void **state)
{
    (void)state;
    static struct batch batch;
    for (int d = 0; lg_device_name(d) != NULL; d++) {
        char hashes[3][LG_WEIGHTS_HASH_CHARS];
        static const lg_lr_scaling scalings[3] = {LG_LR_SCALING_NONE, LG_LR_SCALING_ADASCALE,
                                                  LG_LR_SCALING_LENA};
        for (int k = 0; k < 3; k++) {
            lg_model *model = cnn(true);
            lg_trainer *trainer = NULL;
            lg_trainer_opts opts = lena_opts(lg_device_name(d), 1);
            opts.optim.scaling = scalings[k];
            opts.optim.warmup = LG_WARMUP_NONE;
            opts.optim.weight_decay = 1e-3;
            assert_ok(lg_trainer_create(&trainer, model, &opts));
            assert_true(lg_trainer_has_rates(trainer) == (k > 0));
            for (int step = 0; step < NUM_STEPS; step++) {
                fill_batch(false, step, &batch);
                assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, NULL));
            }
            assert_ok(lg_trainer_weights_hash(trainer, hashes[k]));
            lg_trainer_destroy(trainer);
            lg_model_destroy(model);
        }
        assert_string_equal(hashes[1], hashes[0]);
        assert_string_equal(hashes[2], hashes[0]);
    }
}

/* --- against gradients of single micro-batches --------------------------------------------------------------------- */

static int64_t param_elems(const lg_model *model, int param)
{
    return lg_shape_num_elems(&lg_model_param(model, param)->shape);
}

/* The gradient of the mean loss over some samples, as f64 by parameter: from a trainer that does not learn. */
static void gradient_of(lg_trainer *trainer, const lg_model *model, bool is_gpt,
                        const struct batch *batch, int first, int num_samples, double **out)
{
    char name[128];
    assert_ok(step_on(trainer, is_gpt, batch, first, num_samples, NULL));
    for (int p = 0; p < lg_model_num_params(model); p++) {
        const int64_t num = param_elems(model, p);
        float *elems = calloc((size_t)num, sizeof *elems);
        (void)snprintf(name, sizeof name, "%s.grad", lg_model_param(model, p)->name);
        assert_ok(lg_trainer_read(trainer, name, elems, num));
        for (int64_t i = 0; i < num; i++) {
            out[p][i] = (double)elems[i];
        }
        free(elems);
    }
}

static double **make_grads(const lg_model *model)
{
    double **grads = calloc((size_t)lg_model_num_params(model), sizeof *grads);
    for (int p = 0; p < lg_model_num_params(model); p++) {
        grads[p] = calloc((size_t)param_elems(model, p), sizeof(double));
    }
    return grads;
}

static void free_grads(const lg_model *model, double **grads)
{
    for (int p = 0; p < lg_model_num_params(model); p++) {
        free(grads[p]);
    }
    free(grads);
}

static int num_weighted(const struct batch *batch, bool is_gpt, int begin, int end)
{
    const int per_sample = is_gpt ? CONTEXT : 1;
    int num = 0;
    for (int i = begin * per_sample; i < end * per_sample; i++) {
        num += batch->targets[i] >= 0 ? 1 : 0;
    }
    return num;
}

/*
 * One step with `num_micro_batches`; the averages after it must be the sums made from gradients of each micro-batch. The first
 * step's averages are its own numbers: weight 1.
 */
static void check_statistics(const char *device, bool is_gpt, int num_samples,
                             int num_micro_batches, bool has_ignored)
{
    static struct batch batch;
    lg_model *model = is_gpt ? gpt() : cnn(false);
    lg_trainer *trainer = NULL;
    lg_trainer *probe = NULL;
    lg_trainer_opts opts = lena_opts(device, num_micro_batches);
    fill_batch(is_gpt, 1, &batch);
    for (int i = 0; has_ignored && i < MAX_SAMPLES * CONTEXT; i += i < 3 * CONTEXT ? 1 : 3) {
        batch.targets[i] = IGNORED;
    }
    opts.batch_samples = num_samples;
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    lg_trainer_opts probe_opts = lena_opts(device, 1);
    probe_opts.optim = lg_optim_opts_default();
    probe_opts.optim.lr = 0.0;
    assert_ok(lg_trainer_create(&probe, model, &probe_opts));
    double **sums = make_grads(model);
    double **own = make_grads(model);
    double *squares = calloc((size_t)lg_model_num_params(model), sizeof(double));
    const double total = num_weighted(&batch, is_gpt, 0, num_samples);
    int num_grads = 0;
    for (int m = 0; m < num_micro_batches; m++) {
        const int begin = (int)lg_graph_micro_batch_begin(lg_trainer_graph(trainer), m);
        const int end = (int)lg_graph_micro_batch_begin(lg_trainer_graph(trainer), m + 1);
        const double weight = num_weighted(&batch, is_gpt, begin, end) / total;
        if (weight == 0.0) {
            continue;
        }
        num_grads++;
        gradient_of(probe, model, is_gpt, &batch, begin, end - begin, own);
        for (int p = 0; p < lg_model_num_params(model); p++) {
            for (int64_t i = 0; i < param_elems(model, p); i++) {
                squares[p] += weight * own[p][i] * own[p][i];
                sums[p][i] += weight * own[p][i];
            }
        }
    }
    assert_ok(step_on(trainer, is_gpt, &batch, 0, num_samples, NULL));
    for (int p = 0; p < lg_model_num_params(model); p++) {
        double norm = 0.0;
        for (int64_t i = 0; i < param_elems(model, p); i++) {
            norm += sums[p][i] * sums[p][i];
        }
        lg_rate_state averages;
        lg_rate rate;
        assert_ok(lg_trainer_rate_state(trainer, p, &averages));
        assert_ok(lg_trainer_rate(trainer, p, &rate));
        const double v = (squares[p] - norm) / (num_grads - 1);
        const double upper = norm + (num_micro_batches - 1) * v;
        const char *name = lg_model_param(model, p)->name;
        if (fabs(averages.signal_avg - norm) > GAIN_TOLERANCE * norm + 1e-12 ||
            fabs(averages.variance_avg - upper) > GAIN_TOLERANCE * upper + 1e-12) {
            fail_msg("%s %s M=%d: parts %.9g / %.9g, expected %.9g / %.9g", device, name,
                     num_micro_batches, averages.variance_avg, averages.signal_avg, upper, norm);
        }
        const double gain = (upper + opts.optim.gain_epsilon) / (norm + opts.optim.gain_epsilon);
        const double clipped = gain < 1.0                 ? 1.0
                               : gain > num_micro_batches ? num_micro_batches
                                                          : gain;
        assert_true(fabs(rate.gain - clipped) <= 1e-4 * clipped);
    }
    free(squares);
    free_grads(model, sums);
    free_grads(model, own);
    lg_trainer_destroy(trainer);
    lg_trainer_destroy(probe);
    lg_model_destroy(model);
}

static void statistics_are_those_of_each_micro_batchs_gradient(void **state)
{
    (void)state;
    for (int d = 0; lg_device_name(d) != NULL; d++) {
        check_statistics(lg_device_name(d), false, 12, 4, false);
        check_statistics(lg_device_name(d), false, 11, 3, false); /* 4, 4, 3 samples */
        check_statistics(lg_device_name(d), true, 12, 3, false);  /* a tied embedding */
    }
}

static void targets_that_are_ignored_do_not_weigh(void **state)
{
    (void)state;
    check_statistics("reference-f64", true, 9, 3, true); /* nothing left of the first micro-batch */
}

/* The gains of a step whose parameters are grouped so. */
static void gains_of(lg_grouping grouping, const lg_model *model, double *gains,
                     lg_rate_state *states)
{
    static struct batch batch;
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lena_opts("reference-f64", 4);
    opts.optim.grouping = grouping;
    opts.optim.gain_epsilon = 0.0;
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    fill_batch(false, 0, &batch);
    assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, NULL));
    for (int p = 0; p < lg_model_num_params(model); p++) {
        lg_rate rate;
        assert_ok(lg_trainer_rate(trainer, p, &rate));
        assert_ok(lg_trainer_rate_state(trainer, p, &states[p]));
        gains[p] = rate.gain;
    }
    lg_trainer_destroy(trainer);
}

static void a_norm_is_in_the_block_of_the_layer_before_it(void **state)
{
    (void)state;
    enum { MAX_PARAMS = 16 };
    double alone[MAX_PARAMS];
    double blocks[MAX_PARAMS];
    lg_rate_state own[MAX_PARAMS];
    lg_rate_state shared[MAX_PARAMS];
    lg_model *model = cnn(true);
    const int num_params = lg_model_num_params(model);
    int num_norm_params = 0;
    assert_true(num_params <= MAX_PARAMS);
    gains_of(LG_GROUPING_TENSOR, model, alone, own);
    gains_of(LG_GROUPING_BLOCK, model, blocks, shared);
    for (int p = 0; p < num_params; p++) {
        const int owner = lg_model_param(model, p)->owner_layer;
        const lg_layer_info *layer = lg_model_layer(model, owner);
        const bool is_norm = layer->kind == LG_LAYER_BATCH_NORM;
        const int block = is_norm ? layer->inputs[0] : owner;
        double upper = 0.0;
        double lower = 0.0;
        num_norm_params += is_norm ? 1 : 0;
        for (int q = 0; q < num_params; q++) {
            const int other = lg_model_param(model, q)->owner_layer;
            const lg_layer_info *info = lg_model_layer(model, other);
            if ((info->kind == LG_LAYER_BATCH_NORM ? info->inputs[0] : other) == block) {
                upper += own[q].variance_avg;
                lower += own[q].signal_avg;
            }
        }
        assert_true(fabs(shared[p].variance_avg - upper) <= 1e-12 * upper);
        assert_true(fabs(shared[p].signal_avg - lower) <= 1e-12 * lower);
        assert_true(fabs(blocks[p] - fmin(upper / lower, 4.0)) <= 1e-9);
    }
    assert_int_equal(num_norm_params, 2);
    lg_model_destroy(model);
}

/* Powers of two: the loss is normalised by the same factor, and not a bit of a gradient differs. */
static void the_scale_of_the_loss_changes_no_bit_of_a_rate(void **state)
{
    (void)state;
    static struct batch batch;
    static const float weights[3] = {0.0f, 1024.0f, 0.0009765625f};
    lg_rate rates[3];
    for (int k = 0; k < 3; k++) {
        lg_model *model = weighted_cnn(true, weights[k]);
        lg_trainer *trainer = NULL;
        const lg_trainer_opts opts = lena_opts("reference", 5); /* 3, 3, 2, 2, 2 samples */
        assert_ok(lg_trainer_create(&trainer, model, &opts));
        for (int step = 0; step < 3; step++) {
            fill_batch(false, step, &batch);
            assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, NULL));
        }
        assert_ok(lg_trainer_rate(trainer, 0, &rates[k]));
        assert_memory_equal(&rates[k], &rates[0], sizeof rates[0]);
        lg_trainer_destroy(trainer);
        lg_model_destroy(model);
    }
}

/* --- what goes wrong ----------------------------------------------------------------------------------------------- */

static void read_all(lg_trainer *trainer, const lg_model *model, float *elems, size_t capacity)
{
    size_t num = 0;
    for (int p = 0; p < lg_model_num_params(model); p++) {
        const int64_t count = param_elems(model, p);
        assert_true(num + (size_t)count <= capacity);
        assert_ok(lg_trainer_read(trainer, lg_model_param(model, p)->name, elems + num, count));
        num += (size_t)count;
    }
}

static void a_gradient_that_is_not_finite_skips_the_step_and_is_said(void **state)
{
    (void)state;
    static struct batch batch;
    static float before[4096];
    static float after[4096];
    static const float bad[] = {NAN, INFINITY};
    for (int d = 0; lg_device_name(d) != NULL; d++) {
        lg_model *model = cnn(true);
        lg_trainer *trainer = NULL;
        lg_step_result result;
        lg_rate_state was;
        lg_rate_state is;
        const lg_trainer_opts opts = lena_opts(lg_device_name(d), 4);
        assert_ok(lg_trainer_create(&trainer, model, &opts));
        fill_batch(false, 0, &batch);
        assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, &result));
        assert_false(result.was_skipped);
        for (int k = 0; k < 2; k++) {
            fill_batch(false, 1, &batch);
            batch.images[(MAX_SAMPLES - 1) * 72 + 5] = bad[k]; /* in the last micro-batch only */
            read_all(trainer, model, before, 4096);
            assert_ok(lg_trainer_rate_state(trainer, 0, &was));
            assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, &result));
            assert_true(result.was_skipped);
            read_all(trainer, model, after, 4096);
            assert_memory_equal(before, after, sizeof before);
            float mean[9];
            assert_ok(lg_trainer_read(trainer, "bn1.running_mean", mean, 9));
            for (int i = 0; i < 9; i++) {
                assert_true(isfinite(mean[i]));
            }
            assert_ok(lg_trainer_rate_state(trainer, 0, &is));
            assert_memory_equal(&was, &is, sizeof was);
        }
        fill_batch(false, 2, &batch);
        assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, &result));
        assert_false(result.was_skipped);
        assert_true(isfinite(result.loss));
        read_all(trainer, model, after, 4096);
        assert_true(memcmp(before, after, sizeof before) != 0);
        lg_trainer_destroy(trainer);
        lg_model_destroy(model);
    }
}

static void one_micro_batch_for_a_scale_above_1_is_refused(void **state)
{
    (void)state;
    lg_model *model = cnn(true);
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lena_opts("reference", 1);
    opts.optim.base_batch = 3.0;
    assert_int_equal(lg_trainer_create(&trainer, model, &opts), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "micro-batches: 1"));
    lg_model_destroy(model);
}

/* --- ratio rules --------------------------------------------------------------------------------------------------- */

#define FC_ELEMS (NUM_CLASSES * 9)

static double norm_of(const double *elems, int num)
{
    double sum = 0.0;
    for (int i = 0; i < num; i++) {
        sum += elems[i] * elems[i];
    }
    return sqrt(sum);
}

static void read_f64(lg_trainer *trainer, const char *name, double *out, int num)
{
    float elems[FC_ELEMS];
    assert_ok(lg_trainer_read(trainer, name, elems, num));
    for (int i = 0; i < num; i++) {
        out[i] = (double)elems[i];
    }
}

/*
 * Three steps with a falling rate: LARS has the rate inside the momentum, LARC and SGD have it outside. The bias is excluded from
 * the ratio and from decay.
 */
static void check_ratio_rule(lg_optim_rule rule, const char *name, int num, bool is_adapted)
{
    static struct batch batch;
    char grad_name[32];
    double weight[FC_ELEMS];
    double velocity[FC_ELEMS] = {0.0};
    lg_model *model = cnn(true);
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lena_opts("reference-f64", 2);
    opts.optim = lg_optim_opts_default();
    opts.optim.rule = rule;
    opts.optim.lr = 0.5;
    opts.optim.weight_decay = 0.01;
    opts.optim.trust_coefficient = 0.02;
    opts.optim.schedule = LG_SCHEDULE_LINEAR;
    (void)snprintf(grad_name, sizeof grad_name, "%s.grad", name);
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    read_f64(trainer, name, weight, num);
    for (int step = 0; step < 3; step++) {
        double grad[FC_ELEMS];
        double after[FC_ELEMS];
        fill_batch(false, step, &batch);
        assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, NULL));
        read_f64(trainer, grad_name, grad, num);
        read_f64(trainer, name, after, num);
        const double lr = lg_optim_lr(&opts.optim, step, NUM_STEPS);
        const double decay = is_adapted ? 0.01 : 0.0;
        const double weight_norm = norm_of(weight, num);
        const double q =
            is_adapted ? 0.02 * weight_norm / (norm_of(grad, num) + decay * weight_norm) : 1.0;
        const double factor =
            rule == LG_OPTIM_LARS ? lr * q : (is_adapted && q < lr ? q / lr : 1.0);
        for (int i = 0; i < num; i++) {
            velocity[i] = 0.9 * velocity[i] + factor * (grad[i] + decay * weight[i]);
            weight[i] -= (rule == LG_OPTIM_LARS ? 1.0 : lr) * velocity[i];
            assert_true(fabs(weight[i] - after[i]) < 1e-6); /* read back as f32 */
        }
    }
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
}

static void lars_has_the_rate_inside_the_momentum_and_larc_outside(void **state)
{
    (void)state;
    check_ratio_rule(LG_OPTIM_LARS, "fc.weight", FC_ELEMS, true);
    check_ratio_rule(LG_OPTIM_LARS, "fc.bias", NUM_CLASSES, false);
    check_ratio_rule(LG_OPTIM_LARS, "bn1.weight", 9, false);
    check_ratio_rule(LG_OPTIM_LARC, "fc.weight", FC_ELEMS, true);
    check_ratio_rule(LG_OPTIM_LARC, "fc.bias", NUM_CLASSES, false);
}

/* --- resuming ------------------------------------------------------------------------------------------------------ */

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about;
    (void)type;
    (void)where;
    return remove(path);
}

static void a_resumed_training_has_the_bits_of_one_that_went_on(void **state)
{
    (void)state;
    static struct batch batch;
    static const lg_rate_variant variants[] = {LG_RATE_VARIANT_PAPER, LG_RATE_VARIANT_RELEASED_CODE,
                                               LG_RATE_VARIANT_LEAPGRAD};
    char root[64];
    (void)snprintf(root, sizeof root, "/tmp/leapgrad-rates-%ld", (long)getpid());
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        char hashes[2][LG_WEIGHTS_HASH_CHARS];
        lg_model *model = cnn(true);
        lg_trainer *trainer = NULL;
        lg_trainer_opts opts = lena_opts("reference", 3);
        opts.optim.variant = variants[v];
        opts.optim.schedule = LG_SCHEDULE_COSINE;
        opts.optim.schedule_by = LG_SCHEDULE_BY_ITERATION;
        for (int resumes = 0; resumes < 2; resumes++) {
            assert_ok(lg_trainer_create(&trainer, model, &opts));
            for (int step = 0; step < NUM_STEPS; step++) {
                if (resumes == 1 && step == 3) {
                    lg_checkpoint *checkpoint = NULL;
                    assert_ok(lg_trainer_save(trainer, root, NULL, NULL, 1));
                    lg_trainer_destroy(trainer);
                    assert_ok(lg_trainer_create(&trainer, model, &opts));
                    assert_ok(lg_checkpoint_open(&checkpoint, root));
                    assert_ok(lg_trainer_load(trainer, checkpoint, false));
                    lg_checkpoint_close(checkpoint);
                }
                fill_batch(false, step, &batch);
                assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, NULL));
            }
            assert_ok(lg_trainer_weights_hash(trainer, hashes[resumes]));
            lg_trainer_destroy(trainer);
        }
        assert_string_equal(hashes[0], hashes[1]);
        lg_model_destroy(model);
        (void)nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

static void a_run_may_go_on_at_another_scale(void **state)
{
    (void)state;
    static struct batch batch;
    char root[64];
    lg_model *model = cnn(true);
    lg_trainer *trainer = NULL;
    lg_checkpoint *checkpoint = NULL;
    lg_rate_state was;
    lg_rate rate;
    lg_trainer_opts opts = lena_opts("reference", 4);
    opts.optim.base_batch = 3.0;
    (void)snprintf(root, sizeof root, "/tmp/leapgrad-scale-%ld", (long)getpid());
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    for (int step = 0; step < 3; step++) {
        fill_batch(false, step, &batch);
        assert_ok(step_on(trainer, false, &batch, 0, MAX_SAMPLES, NULL));
    }
    assert_ok(lg_trainer_rate_state(trainer, 0, &was));
    assert_ok(lg_trainer_save(trainer, root, NULL, NULL, 1));
    lg_trainer_destroy(trainer);
    opts.batch_samples = 6; /* S = 2 */
    opts.num_micro_batches = 2;
    assert_ok(lg_trainer_create(&trainer, model, &opts));
    assert_ok(lg_checkpoint_open(&checkpoint, root));
    assert_ok(lg_trainer_load(trainer, checkpoint, false));
    lg_checkpoint_close(checkpoint);
    fill_batch(false, 4, &batch);
    assert_ok(step_on(trainer, false, &batch, 0, 6, NULL));
    assert_ok(lg_trainer_rate(trainer, 0, &rate));
    assert_true(rate.gain >= 1.0 && rate.gain <= 2.0);
    assert_true(rate.iterations > was.iterations && rate.iterations <= was.iterations + 2.0);
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    (void)nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_the_same_bits_under_every_plan),
        cmocka_unit_test(skipping_by_layer_has_the_bits_of_skipping_by_step_if_nothing_is_skipped),
        cmocka_unit_test(at_scale_1_without_warmup_every_scaling_has_the_bits_of_plain_sgd),
        cmocka_unit_test(statistics_are_those_of_each_micro_batchs_gradient),
        cmocka_unit_test(a_norm_is_in_the_block_of_the_layer_before_it),
        cmocka_unit_test(the_scale_of_the_loss_changes_no_bit_of_a_rate),
        cmocka_unit_test(targets_that_are_ignored_do_not_weigh),
        cmocka_unit_test(a_gradient_that_is_not_finite_skips_the_step_and_is_said),
        cmocka_unit_test(lars_has_the_rate_inside_the_momentum_and_larc_outside),
        cmocka_unit_test(one_micro_batch_for_a_scale_above_1_is_refused),
        cmocka_unit_test(a_resumed_training_has_the_bits_of_one_that_went_on),
        cmocka_unit_test(a_run_may_go_on_at_another_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
