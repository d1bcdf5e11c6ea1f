/*
 * Rates from gradient statistics over ranks: four samples of the gradient are four whether they come from one rank's micro-batches, from
 * four replicas, or from two of each; and every rank has the same rates, wherever the layers are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "unit/train/ranks_fixture.h"

/* The sums over replicas and over micro-batches have another order, in f64. */
#define TOLERANCE 1e-6

static rf_run rates_run(lg_lr_scaling scaling, lg_rate_variant variant, int num_replicas,
                        int num_micro_batches)
{
    rf_run run = rf_run_default();
    run.device = "reference-f64";
    run.num_replicas = num_replicas;
    run.num_micro_batches = num_micro_batches;
    run.ragged_samples = 0;
    run.optim.scaling = scaling;
    run.optim.variant = variant;
    run.optim.warmup = LG_WARMUP_LAYERWISE;
    run.optim.warmup_frac = 0.5;
    run.optim.base_batch = RF_MAX_SAMPLES / 4.0;
    run.optim.lr = 0.02;
    return run;
}

static void assert_same(const rf_run *run, const char *what, double expected, double got)
{
    if (!(fabs(got - expected) <= TOLERANCE * fabs(expected))) {
        fail_msg("%s, %s: %.17g, expected %.17g", rf_describe(run), what, got, expected);
    }
}

static void expect_rate(const rf_run *run, const rf_result *expected)
{
    static rf_result result;
    rf_train(run, &result);
    assert_same(run, "gain", expected->rate.gain, result.rate.gain);
    assert_same(run, "rate", expected->rate.lr, result.rate.lr);
    assert_same(run, "warm-up", expected->rate.warmup, result.rate.warmup);
    assert_same(run, "iterations", expected->iterations, result.iterations);
    assert_same(run, "loss", expected->last.loss, result.last.loss);
}

static void accumulation_and_replicas_give_the_same_gains(void **state)
{
    (void)state;
    static const struct {
        lg_lr_scaling scaling;
        lg_rate_variant variant;
    } rules[] = {
        {LG_LR_SCALING_LENA, LG_RATE_VARIANT_PAPER},
        {LG_LR_SCALING_LENA, LG_RATE_VARIANT_RELEASED_CODE},
        {LG_LR_SCALING_LENA, LG_RATE_VARIANT_LEAPGRAD},
        {LG_LR_SCALING_ADASCALE, LG_RATE_VARIANT_PAPER},
    };
    static rf_result expected;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const rf_run alone = rates_run(rules[i].scaling, rules[i].variant, 1, 4);
        const rf_run replicas = rates_run(rules[i].scaling, rules[i].variant, 4, 1);
        const rf_run both = rates_run(rules[i].scaling, rules[i].variant, 2, 2);
        rf_train(&alone, &expected);
        assert_true(expected.rate.gain > 1.0 && expected.rate.gain <= 4.0);
        expect_rate(&replicas, &expected);
        expect_rate(&both, &expected);
    }
}

/* The block of conv1 and bn1, and the network, are spread over ranks: their statistics must be brought together. */
static void stages_have_the_gains_of_one_rank(void **state)
{
    (void)state;
    static rf_result expected;
    for (int variant = 0; variant < LG_NUM_RATE_VARIANTS; variant++) {
        const rf_run alone = rates_run(LG_LR_SCALING_LENA, (lg_rate_variant)variant, 2, 2);
        rf_run pipeline = alone;
        pipeline.num_pipeline_ranks = 3;
        pipeline.strategy = "1f1b";
        rf_train(&alone, &expected);
        expect_rate(&pipeline, &expected);
    }
}

/* Reductions, statistics, rates and updates in every data-parallel order; with skip=layer they may go over the step's end. */
static void every_order_of_reductions_has_the_same_rates(void **state)
{
    (void)state;
    static const char *const strategies[] = {"gpipe+barrier", "1f1b+wfbp", "zb-h1+priority",
                                             "1f1b+reverse-first-k"};
    static rf_result expected;
    for (int skip = 0; skip < LG_NUM_SKIPS; skip++) {
        rf_run run = rates_run(LG_LR_SCALING_LENA, LG_RATE_VARIANT_LEAPGRAD, 2, 2);
        run.optim.skip = (lg_skip)skip;
        rf_train(&run, &expected);
        run.num_pipeline_ranks = 2;
        for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
            run.strategy = strategies[i];
            expect_rate(&run, &expected);
        }
    }
}

static void ragged_replicas_are_weighted(void **state)
{
    (void)state;
    static rf_result expected;
    rf_run alone = rates_run(LG_LR_SCALING_LENA, LG_RATE_VARIANT_LEAPGRAD, 1, 4);
    rf_run replicas = rates_run(LG_LR_SCALING_LENA, LG_RATE_VARIANT_LEAPGRAD, 4, 1);
    alone.num_samples = replicas.num_samples = 10; /* 3, 3, 2, 2 */
    rf_train(&alone, &expected);
    expect_rate(&replicas, &expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation_and_replicas_give_the_same_gains),
        cmocka_unit_test(stages_have_the_gains_of_one_rank),
        cmocka_unit_test(every_order_of_reductions_has_the_same_rates),
        cmocka_unit_test(ragged_replicas_are_weighted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
