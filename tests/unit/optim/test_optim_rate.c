/*
 * Gains from statistics: golden values of FairScale's tests, identities, limits, a noise model whose gain is known, and what
 * happens with unequal micro-batches, zeros, one micro-batch, very large scales and a scale that changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "leapgrad/rate.h"

#define MAX_DIM 64
/* Digits that the published golden values have. */
#define GOLDEN_TOLERANCE 2e-5
/* Some hundred f64 roundings. */
#define ROUNDING 1e-12

/* Mean gradients of micro-batches, and what they weigh. */
typedef struct gradients {
    int num;
    int dim;
    const double *g; /* num * dim */
    const double *w; /* NULL: equal */
} gradients;

static lg_grad_stat stat_of(const gradients *in, double loss_scale)
{
    double sum[MAX_DIM] = {0.0};
    lg_grad_stat stat = {0.0, 0.0};
    for (int i = 0; i < in->num; i++) {
        const double w = in->w != NULL ? in->w[i] : 1.0 / (double)in->num;
        double squares = 0.0;
        for (int k = 0; k < in->dim; k++) {
            const double x = loss_scale * w * in->g[i * in->dim + k];
            sum[k] += x;
            squares += x * x;
        }
        stat.sum_squares += squares / w;
    }
    for (int k = 0; k < in->dim; k++) {
        stat.norm_squared += sum[k] * sum[k];
    }
    return stat;
}

static lg_rate_step step_of(int num_grads, double scale)
{
    return (lg_rate_step){.num_steps = 1000,
                          .num_grads = num_grads,
                          .scale = scale,
                          .full_scale = scale,
                          .base_batch = 32.0};
}

static lg_optim_opts opts_of(lg_lr_scaling scaling)
{
    lg_optim_opts opts = lg_optim_opts_default();
    opts.scaling = scaling;
    opts.warmup = LG_WARMUP_NONE;
    return opts;
}

static double gain_of(const lg_optim_opts *opts, const lg_rate_step *step, const gradients *in,
                      lg_rate_state *state)
{
    const lg_grad_stat stat = stat_of(in, 1.0);
    lg_rate_state fresh;
    lg_rate rate;
    memset(&fresh, 0, sizeof fresh);
    lg_rate_next(opts, step, &stat, &stat, state != NULL ? state : &fresh, &rate);
    assert_true(rate.is_skipped == 0.0);
    return rate.gain;
}

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance * fabs(expected))) {
        fail_msg("%.17g is not %.17g", value, expected);
    }
}

/* --- golden values ------------------------------------------------------------------------------------------------- */

/* Linear(2, 2) with a loss that sums the outputs: each row of the weight has the input as its gradient, each bias 1. */
static void fill_linear(const double in[2], double g[6])
{
    const double all[6] = {in[0], in[1], in[0], in[1], 1.0, 1.0};
    memcpy(g, all, sizeof all);
}

static void adascale_gives_the_golden_gains(void **state)
{
    (void)state;
    static const struct {
        double a[2], b[2], gain;
    } cases[] = {
        {{1, 0}, {0, 1}, 4.0 / 3.0}, {{1, 1}, {1, 1}, 1.0000001},    {{-1, 1}, {1, -1}, 2.0},
        {{1, 4}, {5, 0.5}, 1.46888}, {{-0.2, 3}, {5, 0.5}, 1.84729},
    };
    const lg_optim_opts opts = opts_of(LG_LR_SCALING_ADASCALE);
    const lg_rate_step step = step_of(2, 2.0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double g[12];
        fill_linear(cases[i].a, g);
        fill_linear(cases[i].b, g + 6);
        const gradients in = {2, 6, g, NULL};
        assert_near(gain_of(&opts, &step, &in, NULL), cases[i].gain, GOLDEN_TOLERANCE);
    }
}

static void adascale_gives_the_golden_gain_of_two_steps(void **state)
{
    (void)state;
    const lg_optim_opts opts = opts_of(LG_LR_SCALING_ADASCALE);
    const lg_rate_step step = step_of(2, 2.0);
    lg_rate_state memory;
    double g[12];
    const gradients in = {2, 6, g, NULL};
    memset(&memory, 0, sizeof memory);
    fill_linear((const double[2]){-0.2, 3.3}, g);
    fill_linear((const double[2]){5.2, 0.7}, g + 6);
    (void)gain_of(&opts, &step, &in, &memory);
    fill_linear((const double[2]){1, 4}, g);
    fill_linear((const double[2]){3.1, 0.1}, g + 6);
    /* the golden average is exponential and corrected: weights 0.4995 and 0.5005 instead of a half each */
    assert_near(gain_of(&opts, &step, &in, &memory), 1.67210, 3e-4);
}

/* --- identities and limits ----------------------------------------------------------------------------------------- */

static void fill_random(uint64_t key, double *g, int count, double mean, double deviation)
{
    const lgi_random random = lgi_random_stream(11, LGI_RANDOM_INIT, key, 0, 0);
    for (int i = 0; i < count; i++) {
        g[i] = mean + deviation * (double)lgi_random_normal(&random, (uint64_t)i);
    }
}

/* sigma2 and mu2 as AdaScale's appendix writes them; their ratio is LENA's, before any limit. */
static void lenas_ratio_is_adascales_unbiased_one(void **state)
{
    (void)state;
    for (int num = 2; num <= 9; num++) {
        double g[9 * 20];
        fill_random((uint64_t)num, g, num * 20, 0.5, 1.0);
        const gradients in = {num, 20, g, NULL};
        const lg_grad_stat stat = stat_of(&in, 1.0);
        const double s = num;
        const lg_rate_step step = step_of(num, s);
        const double sigma2 = s / (s - 1.0) * stat.sum_squares - s / (s - 1.0) * stat.norm_squared;
        const double mu2 = stat.norm_squared - sigma2 / s;
        double variance = 0.0;
        double signal = 0.0;
        lg_grad_stat_estimate(&stat, &step, &variance, &signal);
        assert_near(variance, sigma2, ROUNDING);
        assert_near(signal, mu2, ROUNDING);
        assert_near((sigma2 + mu2) / (sigma2 / s + mu2), stat.sum_squares / stat.norm_squared,
                    ROUNDING);
        lg_optim_opts lena = opts_of(LG_LR_SCALING_LENA);
        lena.gain_epsilon = 0.0;
        const lg_optim_opts adascale = opts_of(LG_LR_SCALING_ADASCALE);
        assert_near(gain_of(&lena, &step, &in, NULL), gain_of(&adascale, &step, &in, NULL),
                    ROUNDING);
    }
}

static void orthogonal_gradients_gain_s_and_identical_ones_1(void **state)
{
    (void)state;
    static const lg_lr_scaling scalings[] = {LG_LR_SCALING_LENA, LG_LR_SCALING_ADASCALE};
    for (size_t k = 0; k < 2; k++) {
        lg_optim_opts opts = opts_of(scalings[k]);
        opts.gain_epsilon = 0.0;
        for (int num = 2; num <= 16; num++) {
            double orthogonal[16 * 16] = {0.0};
            double identical[16 * 16] = {0.0};
            for (int i = 0; i < num; i++) {
                orthogonal[i * num + i] = 3.0;
                identical[i * num] = 3.0;
            }
            const gradients apart = {num, num, orthogonal, NULL};
            const gradients together = {num, num, identical, NULL};
            const lg_rate_step step = step_of(num, num);
            assert_near(gain_of(&opts, &step, &apart, NULL), num, ROUNDING);
            /* AdaScale's variance is at least 1e-6 */
            assert_near(gain_of(&opts, &step, &together, NULL), 1.0, 2e-6);
        }
    }
}

static void orthogonal_gradients_gain_the_scale_if_that_is_not_their_number(void **state)
{
    (void)state;
    static const double scales[] = {4.0 / 3.0, 2.0, 4.0};
    double g[16] = {0.0};
    for (int i = 0; i < 4; i++) {
        g[i * 4 + i] = 1.0;
    }
    const gradients in = {4, 4, g, NULL};
    lg_optim_opts lena = opts_of(LG_LR_SCALING_LENA);
    lena.gain_epsilon = 0.0;
    const lg_optim_opts adascale = opts_of(LG_LR_SCALING_ADASCALE);
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        const lg_rate_step step = step_of(4, scales[i]);
        assert_near(gain_of(&lena, &step, &in, NULL), scales[i], ROUNDING);
        assert_near(gain_of(&adascale, &step, &in, NULL), scales[i], ROUNDING);
    }
}

static void one_worker_has_gain_1_and_the_plain_rate_to_the_bit(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * LG_NUM_LR_SCALINGS; i++) {
        lg_optim_opts opts = opts_of((lg_lr_scaling)(i / 2));
        opts.variant = i % 2 == 0 ? LG_RATE_VARIANT_PAPER : LG_RATE_VARIANT_LEAPGRAD;
        opts.schedule = LG_SCHEDULE_COSINE;
        lg_rate_state memory;
        memset(&memory, 0, sizeof memory);
        for (int t = 0; t < 50; t++) {
            double g[7];
            fill_random((uint64_t)t, g, 7, 0.0, 1e-3);
            const gradients in = {1, 7, g, NULL};
            const lg_grad_stat stat = stat_of(&in, 1.0);
            lg_rate_step step = step_of(1, 1.0);
            step.step = t;
            lg_rate rate;
            lg_rate_next(&opts, &step, &stat, &stat, &memory, &rate);
            const double plain = lg_optim_lr(&opts, t, step.num_steps);
            assert_memory_equal(&rate.lr, &plain, sizeof plain);
            assert_true(rate.gain == 1.0);
        }
    }
}

static void a_zero_gradient_has_gain_1_and_no_noise_scale(void **state)
{
    (void)state;
    const double g[8] = {0.0};
    const gradients in = {4, 2, g, NULL};
    const lg_rate_step step = step_of(4, 4.0);
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    assert_true(gain_of(&opts, &step, &in, NULL) == 1.0);
    opts.gain_epsilon = 0.0;
    assert_true(gain_of(&opts, &step, &in, NULL) == 1.0);
    opts.variant = LG_RATE_VARIANT_LEAPGRAD;
    assert_true(gain_of(&opts, &step, &in, NULL) == 1.0);
    /* AdaScale's own answer: its variance is never below 1e-6, so a tensor without gradient is all noise */
    const lg_optim_opts adascale = opts_of(LG_LR_SCALING_ADASCALE);
    assert_near(gain_of(&adascale, &step, &in, NULL), 4.0, ROUNDING);
}

/* --- the variant leapgrad ------------------------------------------------------------------------------------------ */

static void what_is_left_open_follows_the_variant(void **state)
{
    (void)state;
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    assert_int_equal(lg_optim_grouping(&opts), LG_GROUPING_TENSOR);
    assert_int_equal(lg_optim_warmup_budget(&opts), LG_WARMUP_BUDGET_ITERATIONS);
    assert_true(lg_optim_gain_power(&opts) == 1.0);
    opts.variant = LG_RATE_VARIANT_LEAPGRAD;
    assert_int_equal(lg_optim_grouping(&opts), LG_GROUPING_BLOCK);
    assert_int_equal(lg_optim_warmup_budget(&opts), LG_WARMUP_BUDGET_RUN);
    assert_true(lg_optim_gain_power(&opts) == 1.25);
    assert_int_equal(lg_optim_opts_check(&opts), LG_OK);
    opts.skip = LG_SKIP_LAYER; /* a block's statistics are not those of one layer */
    assert_int_equal(lg_optim_grouping(&opts), LG_GROUPING_LAYER);
    assert_int_equal(lg_optim_opts_check(&opts), LG_OK);
    opts.grouping = LG_GROUPING_BLOCK;
    assert_int_equal(lg_optim_opts_check(&opts), LG_INVALID_ARG);
    opts = opts_of(LG_LR_SCALING_ADASCALE);
    opts.variant = LG_RATE_VARIANT_LEAPGRAD;
    assert_int_equal(lg_optim_grouping(&opts), LG_GROUPING_NETWORK);
    assert_true(lg_optim_gain_power(&opts) == 1.0);
    opts.gain_power = 0.5;
    assert_true(lg_optim_gain_power(&opts) == 0.5);
    opts.gain_power = -1.0;
    assert_int_equal(lg_optim_opts_check(&opts), LG_INVALID_ARG);
}

/* Golden values of S = 4, by hand from the statistics; the rate has them to the power of 1.25, at most S. */
static void leapgrads_rate_has_a_power_of_the_gain(void **state)
{
    (void)state;
    static const struct {
        lg_grad_stat stat;
        double gain, multiplier;
    } cases[] = {
        {{3.0, 3.0}, 1.0, 1.0},
        {{4.0, 2.0}, 2.0, 2.3784142300054420}, /* 2 ^ 1.25 */
        {{32.0, 10.0}, 3.2, 4.0},              /* 3.2 ^ 1.25 = 4.28 */
        {{80.0, 10.0}, 4.0, 4.0},
    };
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.variant = LG_RATE_VARIANT_LEAPGRAD;
    opts.gain_epsilon = 0.0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const lg_rate_step step = step_of(4, 4.0);
        lg_rate_state memory;
        lg_rate rate;
        memset(&memory, 0, sizeof memory);
        lg_rate_next(&opts, &step, &cases[i].stat, NULL, &memory, &rate);
        assert_near(rate.gain, cases[i].gain, ROUNDING);
        assert_near(rate.lr, opts.lr * cases[i].multiplier, ROUNDING);
        assert_near(memory.iterations, cases[i].gain, ROUNDING); /* progress is counted in gains */
    }
}

static void leapgrads_epsilon_is_a_part_of_the_layers_own_scale(void **state)
{
    (void)state;
    double g[5 * 9];
    fill_random(6, g, 45, 0.3, 1.0);
    const gradients in = {5, 9, g, NULL};
    const lg_rate_step step = step_of(5, 5.0);
    lg_optim_opts paper = opts_of(LG_LR_SCALING_LENA);
    lg_optim_opts ours = paper;
    ours.variant = LG_RATE_VARIANT_LEAPGRAD;
    const double expected = gain_of(&ours, &step, &in, NULL);
    const lg_grad_stat tiny = stat_of(&in, 0x1p-30);
    lg_rate_state memory;
    lg_rate rate;
    memset(&memory, 0, sizeof memory);
    lg_rate_next(&ours, &step, &tiny, NULL, &memory, &rate);
    assert_near(rate.gain, expected, ROUNDING);
    assert_true(expected > 1.1);
    memset(&memory, 0, sizeof memory);
    lg_rate_next(&paper, &step, &tiny, NULL, &memory, &rate);
    assert_near(rate.gain, 1.0, 1e-6); /* the paper's is then all there is */
}

/* --- noise model --------------------------------------------------------------------------------------------------- */

/*
 * g_i = mu + noise / sqrt(n_i): the true gain is (mu2 + v) / (mu2 + v / S). Averaged over many steps, every estimate comes near
 * it: with weight S / 1000 for a new value an average has some 2000 / S effective steps of S * DIM squares each.
 */
static double converged_gain(const lg_optim_opts *opts, const lg_rate_step *step, int dim,
                             const double *weights, double mu, double deviation, uint64_t key)
{
    lg_rate_state memory;
    double gain = 0.0;
    memset(&memory, 0, sizeof memory);
    for (int t = 0; t < 3000; t++) {
        double g[16 * MAX_DIM];
        for (int i = 0; i < step->num_grads; i++) {
            const double n = weights != NULL ? weights[i] * (double)step->num_grads : 1.0;
            fill_random(key + (uint64_t)(t * 16 + i), g + i * dim, dim, mu, deviation / sqrt(n));
        }
        const gradients in = {step->num_grads, dim, g, weights};
        gain = gain_of(opts, step, &in, &memory);
    }
    return gain;
}

static void estimates_converge_to_the_true_gain(void **state)
{
    (void)state;
    const double mu = 0.1;
    const double deviation = 0.3;
    const double scale = 8.0;
    const lg_rate_step step = step_of(8, scale);
    const double true_gain =
        (mu * mu + deviation * deviation) / (mu * mu + deviation * deviation / scale);
    for (int scaling = LG_LR_SCALING_ADASCALE; scaling <= LG_LR_SCALING_LENA; scaling++) {
        const lg_optim_opts opts = opts_of((lg_lr_scaling)scaling);
        const double gain = converged_gain(&opts, &step, 32, NULL, mu, deviation, 1000);
        assert_near(gain, true_gain, 0.03);
    }
}

static void unequal_micro_batches_are_weighted(void **state)
{
    (void)state;
    static const double weights[4] = {0.4, 0.3, 0.2, 0.1};
    const double mu = 0.1;
    const double deviation = 0.3;
    const lg_rate_step step = step_of(4, 4.0);
    const double true_gain =
        (mu * mu + deviation * deviation) / (mu * mu + deviation * deviation / 4.0);
    const lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    const double gain = converged_gain(&opts, &step, 32, weights, mu, deviation, 90000);
    assert_near(gain, true_gain, 0.03);
}

/* --- invariance ---------------------------------------------------------------------------------------------------- */

static void the_loss_scale_does_not_change_a_gain(void **state)
{
    (void)state;
    double g[5 * 9];
    fill_random(5, g, 45, 0.3, 1.0);
    const gradients in = {5, 9, g, NULL};
    const lg_rate_step step = step_of(5, 5.0);
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.gain_epsilon = 0.0;
    const double expected = gain_of(&opts, &step, &in, NULL);
    for (int k = 1; k < 60; k += 7) {
        const lg_grad_stat stat = stat_of(&in, ldexp(1.0, k - 30));
        lg_rate_state memory;
        lg_rate rate;
        memset(&memory, 0, sizeof memory);
        lg_rate_next(&opts, &step, &stat, &stat, &memory, &rate);
        assert_near(rate.gain, expected, ROUNDING);
    }
}

static void scales_over_1000_only_count_the_last_step(void **state)
{
    (void)state;
    static const lg_rate_variant variants[] = {LG_RATE_VARIANT_PAPER,
                                               LG_RATE_VARIANT_RELEASED_CODE};
    static double first[2000 * 4];
    static double second[2000 * 4];
    fill_random(1, first, 8000, 0.5, 1.0);
    fill_random(2, second, 8000, 0.01, 1.0);
    const gradients a = {2000, 4, first, NULL};
    const gradients b = {2000, 4, second, NULL};
    const lg_rate_step step = step_of(2000, 2000.0);
    for (size_t v = 0; v < 2; v++) {
        lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
        opts.variant = variants[v];
        lg_rate_state memory;
        memset(&memory, 0, sizeof memory);
        (void)gain_of(&opts, &step, &a, &memory);
        const double gain = gain_of(&opts, &step, &b, &memory);
        assert_true(gain >= 1.0 && gain <= 2000.0);
        assert_near(gain, gain_of(&opts, &step, &b, NULL), v == 0 ? 1e-2 : ROUNDING);
    }
}

static void a_changed_scale_keeps_the_noise_that_was_seen(void **state)
{
    (void)state;
    double g[4 * 16];
    fill_random(77, g, 64, 0.4, 1.0);
    const gradients in = {4, 16, g, NULL};
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.gain_epsilon = 0.0;
    const lg_rate_step step4 = step_of(4, 4.0);
    const lg_grad_stat stat = stat_of(&in, 1.0);
    double variance = 0.0;
    double signal = 0.0;
    lg_grad_stat_estimate(&stat, &step4, &variance, &signal);
    lg_rate_state memory;
    memset(&memory, 0, sizeof memory);
    for (int t = 0; t < 2; t++) {
        (void)gain_of(&opts, &step4, &in, &memory);
    }
    /* the next run has S = 16: one micro-batch without news (its average stays), then the gain for 16 */
    lg_rate_step step16 = step_of(1, 16.0);
    lg_rate rate;
    lg_rate_next(&opts, &step16, &stat, &stat, &memory, &rate);
    assert_near(rate.gain, (signal + variance) / (signal + variance / 16.0), 1e-9);
    assert_near(rate.noise_scale, 32.0 * variance / signal, 1e-9);
    /* and with a base batch of twice the size, half the variance at half the scale */
    lg_rate_step step8 = step_of(1, 8.0);
    step8.base_batch = 64.0;
    lg_rate_next(&opts, &step8, &stat, &stat, &memory, &rate);
    assert_near(rate.gain, (signal + variance / 2.0) / (signal + variance / 16.0), 1e-9);
    assert_near(rate.noise_scale, 32.0 * variance / signal, 1e-9);
}

static void steps_of_scale_1_neither_spoil_nor_forget_what_a_larger_scale_shows(void **state)
{
    (void)state;
    double g[4 * 16];
    fill_random(79, g, 64, 0.4, 1.0);
    const gradients in = {4, 16, g, NULL};
    const gradients single = {1, 16, g, NULL};
    const lg_rate_step large = step_of(4, 4.0);
    for (int i = 0; i < 2 * LG_NUM_RATE_VARIANTS * 2; i++) {
        lg_optim_opts opts = opts_of(i % 2 == 0 ? LG_LR_SCALING_LENA : LG_LR_SCALING_ADASCALE);
        opts.variant = (lg_rate_variant)(i / 2 % LG_NUM_RATE_VARIANTS);
        /* AdaScale averages what micro-batches show at S = 1, too: here it has none then */
        const bool has_micro_batches =
            i >= 2 * LG_NUM_RATE_VARIANTS && opts.scaling == LG_LR_SCALING_LENA;
        const lg_rate_step one = step_of(has_micro_batches ? 4 : 1, 1.0);
        const double fresh = gain_of(&opts, &large, &in, NULL);
        lg_rate_state memory;
        memset(&memory, 0, sizeof memory);
        for (int t = 0; t < 50; t++) {
            assert_true(gain_of(&opts, &one, has_micro_batches ? &in : &single, &memory) == 1.0);
        }
        const double after = gain_of(&opts, &large, &in, &memory);
        assert_near(after, fresh, 1e-9);
        (void)gain_of(&opts, &one, &single, &memory);
        if (opts.variant != LG_RATE_VARIANT_RELEASED_CODE) { /* its averages start at 0 */
            assert_near(gain_of(&opts, &large, &in, &memory), fresh, 1e-9);
        }
    }
}

static void a_batch_below_the_base_batch_carries_its_noise_to_a_larger_one(void **state)
{
    (void)state;
    double g[4 * 16];
    fill_random(80, g, 64, 0.4, 1.0);
    const gradients in = {4, 16, g, NULL};
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.gain_epsilon = 0.0;
    const lg_rate_step half = step_of(4, 0.5);
    const lg_grad_stat stat = stat_of(&in, 1.0);
    double variance = 0.0;
    double signal = 0.0;
    lg_grad_stat_estimate(&stat, &half, &variance, &signal);
    lg_rate_state memory;
    memset(&memory, 0, sizeof memory);
    assert_near(gain_of(&opts, &half, &in, &memory),
                (signal + variance) / (signal + variance / 0.5), 1e-9);
    const lg_rate_step step16 = step_of(1, 16.0);
    assert_near(gain_of(&opts, &step16, &in, &memory),
                (signal + variance) / (signal + variance / 16.0), 1e-9);
}

static void a_smaller_last_batch_has_its_own_gain_and_leaves_the_averages_comparable(void **state)
{
    (void)state;
    double g[4 * 16];
    fill_random(78, g, 64, 0.4, 1.0);
    const gradients in = {4, 16, g, NULL};
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.gain_epsilon = 0.0;
    lg_rate_step step = step_of(4, 4.0);
    const lg_grad_stat stat = stat_of(&in, 1.0);
    step.scale = 2.5; /* the same four gradients, but each of fewer samples */
    double variance = 0.0;
    double signal = 0.0;
    lg_grad_stat_estimate(&stat, &step, &variance, &signal);
    lg_rate_state memory;
    lg_rate rate;
    memset(&memory, 0, sizeof memory);
    lg_rate_next(&opts, &step, &stat, &stat, &memory, &rate);
    assert_near(rate.gain, (signal + variance) / (signal + variance / 2.5), 1e-9);
    assert_near(memory.variance_avg, signal + variance, 1e-9);
    assert_near(memory.signal_avg, signal + variance / 4.0, 1e-9);
}

/* --- warm-up, schedule, skipping ----------------------------------------------------------------------------------- */

/* Identical gradients: the gain is 1, the progress the number of steps. */
static void layerwise_warmup_is_quadratic_in_papers_form_and_starts_at_0_in_codes(void **state)
{
    (void)state;
    const double g[4] = {1.0, 1.0, 1.0, 1.0};
    const gradients in = {4, 1, g, NULL};
    const lg_grad_stat stat = stat_of(&in, 1.0);
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.warmup = LG_WARMUP_LAYERWISE;
    opts.warmup_frac = 0.05;
    opts.warmup_budget = LG_WARMUP_BUDGET_ITERATIONS;
    lg_rate_step step = step_of(4, 4.0);
    step.num_steps = 50; /* budget: 0.05 * 50 * 4 = 10 iterations */
    for (int v = 0; v < LG_NUM_RATE_VARIANTS; v++) {
        lg_rate_state memory;
        memset(&memory, 0, sizeof memory);
        opts.variant = (lg_rate_variant)v;
        for (int t = 0; t < 15; t++) {
            lg_rate rate;
            step.step = t;
            lg_rate_next(&opts, &step, &stat, &stat, &memory, &rate);
            const double progress = v != LG_RATE_VARIANT_RELEASED_CODE ? t + 1.0 : t;
            const double expected = progress < 10.0 ? progress / 10.0 : 1.0;
            assert_true(fabs(rate.warmup - expected) < 1e-5);
            assert_true(fabs(rate.lr - opts.lr * expected) < 1e-5);
            const double end = v != LG_RATE_VARIANT_RELEASED_CODE ? 10.0 : 11.0;
            assert_true(rate.warmup_end == (t + 1.0 >= end ? end : 0.0));
        }
    }
}

static void at_the_limit_the_released_code_progresses_by_the_networks_uncapped_gain(void **state)
{
    (void)state;
    const lg_grad_stat hot = {90.0, 1.0};   /* far over S */
    const lg_grad_stat all = {100.0, 10.0}; /* over S too */
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.warmup = LG_WARMUP_LAYERWISE;
    opts.variant = LG_RATE_VARIANT_RELEASED_CODE;
    const lg_rate_step step = step_of(4, 4.0);
    lg_rate_state memory;
    lg_rate rate;
    memset(&memory, 0, sizeof memory);
    lg_rate_next(&opts, &step, &hot, &all, &memory, &rate);
    assert_true(rate.lr == 0.0);
    assert_true(rate.gain == 4.0);
    const double rho = 4.0 / 1000.0;
    assert_near(memory.progress, (rho * 100.0 + 1e-6) / (rho * 10.0 + 1e-6), ROUNDING);
}

static void a_budget_of_the_run_ends_at_that_part_of_it_at_every_scale(void **state)
{
    (void)state;
    lg_optim_opts opts = opts_of(LG_LR_SCALING_LENA);
    opts.warmup = LG_WARMUP_LAYERWISE;
    opts.warmup_budget = LG_WARMUP_BUDGET_RUN;
    opts.warmup_frac = 0.1;
    for (int num = 2; num <= 64; num *= 2) {
        const lg_grad_stat stat = {3.0, 2.0};
        lg_rate_state memory;
        lg_rate_step step = step_of(num, num);
        step.num_steps = 200;
        memset(&memory, 0, sizeof memory);
        for (int t = 0; t < 40; t++) {
            lg_rate rate;
            step.step = t;
            lg_rate_next(&opts, &step, &stat, &stat, &memory, &rate);
            assert_true(t == 19 || t == 20 || (rate.warmup < 1.0) == (t < 19));
        }
        assert_true(memory.warmup_end >= 20.0 && memory.warmup_end <= 21.0);
    }
}

static void a_schedule_by_iterations_is_read_at_the_sum_of_gains_before(void **state)
{
    (void)state;
    lg_optim_opts opts = opts_of(LG_LR_SCALING_ADASCALE);
    opts.schedule = LG_SCHEDULE_EXPONENTIAL;
    opts.min_lr_frac = 0.01;
    opts.schedule_by = LG_SCHEDULE_BY_ITERATION;
    opts.total_iterations = 100.0;
    const lg_grad_stat stat = {6.0, 2.0};
    const lg_rate_step step = step_of(4, 4.0);
    lg_rate_state memory;
    double iterations = 0.0;
    memset(&memory, 0, sizeof memory);
    for (int t = 0; t < 60; t++) {
        lg_rate rate;
        lg_rate_next(&opts, &step, &stat, &stat, &memory, &rate);
        assert_near(rate.lr, rate.gain * lg_optim_lr(&opts, (int64_t)iterations, 100), ROUNDING);
        iterations += rate.gain;
        assert_near(rate.iterations, iterations, ROUNDING);
    }
}

static void a_skipped_step_changes_no_memory(void **state)
{
    (void)state;
    lg_rate_state memory;
    lg_rate rate;
    memset(&memory, 0, sizeof memory);
    memory.iterations = 7.0;
    memory.num_updates = 3.0;
    const lg_rate_state before = memory;
    lg_rate_skip(&memory, &rate);
    assert_memory_equal(&before, &memory, sizeof memory);
    assert_true(rate.is_skipped == 1.0 && rate.iterations == 7.0 && rate.update_number == 3.0);
    const lg_grad_stat good = {1.0, 1.0};
    const lg_grad_stat nan = {NAN, 1.0};
    const lg_grad_stat inf = {1.0, INFINITY};
    assert_true(lg_grad_stat_is_finite(&good));
    assert_false(lg_grad_stat_is_finite(&nan));
    assert_false(lg_grad_stat_is_finite(&inf));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adascale_gives_the_golden_gains),
        cmocka_unit_test(adascale_gives_the_golden_gain_of_two_steps),
        cmocka_unit_test(lenas_ratio_is_adascales_unbiased_one),
        cmocka_unit_test(orthogonal_gradients_gain_s_and_identical_ones_1),
        cmocka_unit_test(orthogonal_gradients_gain_the_scale_if_that_is_not_their_number),
        cmocka_unit_test(one_worker_has_gain_1_and_the_plain_rate_to_the_bit),
        cmocka_unit_test(a_zero_gradient_has_gain_1_and_no_noise_scale),
        cmocka_unit_test(what_is_left_open_follows_the_variant),
        cmocka_unit_test(leapgrads_rate_has_a_power_of_the_gain),
        cmocka_unit_test(leapgrads_epsilon_is_a_part_of_the_layers_own_scale),
        cmocka_unit_test(estimates_converge_to_the_true_gain),
        cmocka_unit_test(unequal_micro_batches_are_weighted),
        cmocka_unit_test(the_loss_scale_does_not_change_a_gain),
        cmocka_unit_test(scales_over_1000_only_count_the_last_step),
        cmocka_unit_test(a_changed_scale_keeps_the_noise_that_was_seen),
        cmocka_unit_test(steps_of_scale_1_neither_spoil_nor_forget_what_a_larger_scale_shows),
        cmocka_unit_test(a_batch_below_the_base_batch_carries_its_noise_to_a_larger_one),
        cmocka_unit_test(a_smaller_last_batch_has_its_own_gain_and_leaves_the_averages_comparable),
        cmocka_unit_test(layerwise_warmup_is_quadratic_in_papers_form_and_starts_at_0_in_codes),
        cmocka_unit_test(at_the_limit_the_released_code_progresses_by_the_networks_uncapped_gain),
        cmocka_unit_test(a_budget_of_the_run_ends_at_that_part_of_it_at_every_scale),
        cmocka_unit_test(a_schedule_by_iterations_is_read_at_the_sum_of_gains_before),
        cmocka_unit_test(a_skipped_step_changes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
