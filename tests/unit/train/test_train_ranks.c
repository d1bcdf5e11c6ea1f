/* Trainers over ranks: sums over replicas are exact, checkpoints go on with the same bits, a failure of one rank ends all. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "leapgrad/plan.h"
#include "unit/train/ranks_fixture.h"

static rf_result one;
static rf_result other;
static rf_result all[RF_MAX_RANKS];

/* Plain SGD: what the update does to a wrong scale cannot be hidden. */
static rf_run exact_run(rf_model model)
{
    rf_run run = rf_run_default();
    run.model = model;
    run.device = "reference-f64";
    run.optim.momentum = 0.0;
    run.num_steps = 1;
    run.ragged_samples = 0;
    return run;
}

/* f64 inside, so another order of additions shows only in f32's last bit when a tensor is read. */
#define READ_TOLERANCE (2.0 * 0x1p-24)
/* Of a sum of some hundred numbers in f64. */
#define LOSS_TOLERANCE 1e-13

/* Three parameters of a model: the first, one in the middle, the last. */
#define NUM_LOOKED_AT 3

static void name_gradient(rf_model kind, int which, char *name, size_t name_bytes)
{
    lg_model *model = rf_model_create(kind);
    const int last = lg_model_num_params(model) - 1;
    (void)snprintf(name, name_bytes, "%s.grad",
                   lg_model_param(model, last * which / (NUM_LOOKED_AT - 1))->name);
    lg_model_destroy(model);
}

/* The largest difference between elements, in units of what is tolerated. */
static double distance(const rf_result *a, const rf_result *b)
{
    double largest = 0.0;
    assert_true(a->num_elems > 0 && a->num_elems == b->num_elems);
    for (int64_t i = 0; i < a->num_elems; i++) {
        const double tolerance = READ_TOLERANCE * fabs(a->elems[i]) + 1e-14;
        const double difference = fabs((double)b->elems[i] - a->elems[i]) / tolerance;
        largest = difference > largest || isnan(difference) ? difference : largest;
    }
    return largest;
}

static void expect_same_gradient(const rf_run *run, const rf_result *result,
                                 const rf_result *expected)
{
    if (!(fabs(result->last.loss - expected->last.loss) <=
          LOSS_TOLERANCE * fabs(expected->last.loss)) ||
        result->last.num_targets != expected->last.num_targets) {
        fail_msg("%s, %d samples: loss %.17g, expected %.17g", rf_describe(run),
                 (int)run->ragged_samples, result->last.loss, expected->last.loss);
    }
    if (!(distance(expected, result) <= 1.0)) {
        fail_msg("%s, %d samples: %s is %g times as far off as it may be", rf_describe(run),
                 (int)run->ragged_samples, run->reads, distance(expected, result));
    }
}

static rf_run gradient_run(rf_model model, const char *name, int64_t num_samples)
{
    rf_run run = exact_run(model);
    run.reads = name;
    run.num_steps = 2; /* the last but one is the ragged one, so look at that */
    run.stop_step = 1;
    run.ragged_samples = num_samples;
    return run;
}

static void set_ranks(rf_run *run, int num_replicas, int num_micro_batches)
{
    run->num_replicas = num_replicas;
    run->num_micro_batches = num_micro_batches;
    run->num_pipeline_ranks = 1 + (num_replicas + num_micro_batches) % 2;
    run->strategy = run->num_pipeline_ranks > 1 ? "1f1b+wfbp" : "wfbp";
}

static void replicas_give_the_gradient_of_the_whole_batch(void **state)
{
    (void)state;
    static const rf_model models[] = {RF_GPT, RF_BERT, RF_PLAIN_CNN};
    static const int64_t sizes[] = {RF_MAX_SAMPLES, 5, 2,
                                    1}; /* 1 and 2: fewer samples than replicas */
    static rf_result whole[NUM_LOOKED_AT];
    char names[NUM_LOOKED_AT][64];
    for (int k = 0; k < 3 * 4; k++) {
        const int64_t num_samples = sizes[k % 4];
        for (int which = 0; which < NUM_LOOKED_AT; which++) {
            name_gradient(models[k / 4], which, names[which], sizeof names[which]);
            const rf_run run = gradient_run(models[k / 4], names[which], num_samples);
            rf_train(&run, &whole[which]);
        }
        for (int d = 1; d <= 3; d++) {
            for (int m = 1; m <= 2; m++) {
                const int which = (2 * d + m) % NUM_LOOKED_AT;
                rf_run run = gradient_run(models[k / 4], names[which], num_samples);
                set_ranks(&run, d, m);
                rf_train(&run, &other);
                expect_same_gradient(&run, &other, &whole[which]);
            }
        }
    }
}

/* Each micro-batch is normalised with its own statistics, so it is the micro-batches that decide, wherever they run. */
static void batch_norm_is_that_of_micro_batches(void **state)
{
    (void)state;
    for (int which = 0; which < NUM_LOOKED_AT; which++) {
        char name[64];
        name_gradient(RF_CNN, which, name, sizeof name);
        rf_run whole = gradient_run(RF_CNN, name, RF_MAX_SAMPLES);
        for (int d = 1; d <= 3; d++) {
            for (int m = 1; m <= 2; m++) {
                rf_run run = whole;
                whole.num_micro_batches = d * m;
                rf_train(&whole, &one);
                set_ranks(&run, d, m);
                rf_train(&run, &other);
                expect_same_gradient(&run, &other, &one);
            }
        }
        whole.num_micro_batches = 1;
        rf_train(&whole, &other);
        assert_true(distance(&one, &other) > 1e3); /* statistics of more samples are others */
    }
    /* Means over replicas of running means are those of all samples. */
    rf_run run = gradient_run(RF_CNN, "bn1.running_mean", RF_MAX_SAMPLES);
    rf_train(&run, &one);
    for (int d = 2; d <= 3; d++) {
        set_ranks(&run, d, 1);
        rf_train(&run, &other);
        assert_true(distance(&one, &other) <= 1.0);
    }
}

static void chunks_do_not_change_the_bits(void **state)
{
    (void)state;
    static const int64_t chunks[] = {1, 100, 4096, 5000, 100000};
    const char *const devices[] = {lg_device_name(0), "reference-f64"};
    for (int device = 0; device < 2; device++) {
        for (int d = 2; d <= 4; d++) {
            rf_run run = rf_run_default();
            run.model = device == 0 ? RF_GPT : RF_CNN;
            run.device = devices[device];
            run.num_replicas = d;
            run.num_steps = 2;
            run.strategy = "priority";
            rf_train(&run, &one);
            for (size_t c = device == 0 && d == 2 ? 0 : 1; c < sizeof chunks / sizeof chunks[0];
                 c++) {
                run.chunk_bytes = chunks[c];
                rf_train(&run, &other);
                if (strcmp(one.hash, other.hash) != 0) {
                    fail_msg("%s: %s, expected %s", rf_describe(&run), other.hash, one.hash);
                }
            }
        }
    }
}

/* With statistics, whose sums travel along, and without. */
static void sharing_messages_does_not_change_the_bits(void **state)
{
    (void)state;
    static const int64_t shares[] = {1000, 3000, 1 << 20, LG_SHARE_BY_LINKS};
    static const char *const strategies[] = {"priority", "wfbp", "reverse-first-k", "barrier"};
    for (int model = 0; model < RF_NUM_MODELS; model++) {
        for (int d = 2; d <= 3; d++) {
            rf_run run = rf_run_default();
            run.model = (rf_model)model;
            run.device = d == 3 ? "reference-f64" : lg_device_name(0);
            run.num_replicas = d;
            run.num_micro_batches = 2;
            run.num_steps = 3;
            run.strategy = "wfbp";
            run.optim.scaling = d == 2 ? LG_LR_SCALING_LENA : LG_LR_SCALING_NONE;
            run.optim.base_batch = 3.0;
            run.optim.skip = LG_SKIP_LAYER;
            rf_train(&run, &one);
            for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
                run.share_bytes = shares[i];
                run.chunk_bytes = i % 2 == 0 ? 0 : 1000;
                run.strategy = strategies[i];
                rf_train(&run, &other);
                if (strcmp(one.hash, other.hash) != 0) {
                    fail_msg("%s: %s, expected %s", rf_describe(&run), other.hash, one.hash);
                }
                if (other.num_ops >= one.num_ops && run.chunk_bytes == 0) {
                    fail_msg("%s: %d ops, %d without", rf_describe(&run), other.num_ops,
                             one.num_ops);
                }
            }
        }
    }
}

/* Gains are ratios of sums of squares; what differs is the order of additions in f32. */
#define GAIN_TOLERANCE 1e-6

static void replicas_have_the_gains_of_accumulation(void **state)
{
    (void)state;
    for (int skip = 0; skip < LG_NUM_SKIPS; skip++) {
        rf_run run = rf_run_default();
        run.model = RF_CNN; /* no parameter is shared by two stages */
        run.device = "reference-f64";
        run.optim.scaling = LG_LR_SCALING_LENA;
        run.optim.base_batch = 3.0;
        run.optim.skip = (lg_skip)skip;
        run.num_micro_batches = 4;
        run.ragged_samples = 9;
        run.model = RF_BERT;
        rf_train(&run, &one);
        assert_true(one.rate.gain >= 1.0);
        for (int d = 2; d <= 4; d += 2) {
            run.num_replicas = d;
            run.num_micro_batches = 4 / d;
            run.strategy = "wfbp";
            rf_train(&run, &other);
            assert_true(fabs(other.rate.gain - one.rate.gain) <= GAIN_TOLERANCE * one.rate.gain);
            assert_true(fabs(other.iterations - one.iterations) <= GAIN_TOLERANCE * one.iterations);
        }
    }
}

static void rates_do_not_depend_on_stages(void **state)
{
    (void)state;
    for (int skip = 0; skip < LG_NUM_SKIPS; skip++) {
        rf_run run = rf_run_default();
        run.model = RF_CNN;
        run.optim.scaling = LG_LR_SCALING_LENA;
        run.optim.base_batch = 3.0;
        run.optim.skip = (lg_skip)skip;
        run.num_micro_batches = 2;
        run.num_replicas = 2;
        run.strategy = "in-order";
        rf_train(&run, &one);
        for (int p = 2; p <= 3; p++) {
            run.num_pipeline_ranks = p;
            run.strategy = "1f1b+priority";
            rf_train(&run, &other);
            assert_string_equal(other.hash, one.hash);
            assert_memory_equal(&other.rate, &one.rate, sizeof one.rate);
            assert_true(other.iterations == one.iterations);
        }
    }
}

static void remove_tree(const char *path)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static void training_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    char root[64];
    (void)snprintf(root, sizeof root, "/tmp/leapgrad-ranks-%ld", (long)getpid());
    for (int with_rates = 0; with_rates < 2; with_rates++) {
        rf_run run = rf_run_default();
        run.model = RF_CNN; /* running statistics differ between replicas */
        run.num_pipeline_ranks = 2;
        run.num_replicas = 2;
        run.num_micro_batches = 2;
        run.num_steps = 5;
        run.strategy = "1f1b+priority";
        run.evaluates = true;
        run.optim.scaling = with_rates ? LG_LR_SCALING_LENA : LG_LR_SCALING_NONE;
        rf_train(&run, &one);
        remove_tree(root);
        run.stop_step = 3;
        run.save_path = root;
        rf_train(&run, &other);
        assert_string_not_equal(other.hash, one.hash);
        run.save_path = NULL;
        run.stop_step = 0;
        run.load_path = root;
        for (int p = 1; p <= 3; p++) { /* on the same number of stages, or another one */
            run.num_pipeline_ranks = p;
            run.strategy = p > 1 ? "1f1b+priority" : "priority";
            rf_train(&run, &other);
            assert_string_equal(other.hash, one.hash);
        }
        run.num_replicas = 3; /* other bits, but it goes on */
        run.num_pipeline_ranks = 1;
        rf_train(&run, &other);
    }
    remove_tree(root);
}

static void measured_costs_are_those_of_all_ranks(void **state)
{
    (void)state;
    rf_run run = rf_run_default();
    run.model = RF_GPT;
    run.num_micro_batches = 2;
    run.strategy = "in-order";
    rf_train(&run, &one);
    run.num_pipeline_ranks = 2;
    run.strategy = "fast-forward";
    run.measures_costs = true;
    run.records = true;
    run.ragged_samples = 0;
    rf_train(&run, &other);
    assert_int_equal(other.num_spans, other.num_ops); /* nothing lags: each op once */
}

/* All ranks end, soon, and say what happened where. */
static void expect_failure(const rf_run *run, int rank, lg_status status, const char *part)
{
    char of_rank[16];
    rf_train_all(run, all);
    (void)snprintf(of_rank, sizeof of_rank, "rank %d: ", rank);
    for (int r = 0; r < rf_num_ranks(run); r++) {
        const char *const message = all[r].message;
        if (all[r].status == LG_OK || strstr(message, part) == NULL) {
            fail_msg("%s, rank %d: '%s' does not say '%s'", rf_describe(run), r, message, part);
        }
        if (r == rank ? all[r].status != status : strstr(message, of_rank) == NULL) {
            fail_msg("%s, rank %d: status %s, '%s'", rf_describe(run), r,
                     lg_status_name(all[r].status), message);
        }
    }
}

static void a_failure_of_one_rank_ends_all(void **state)
{
    (void)state;
    static const char *const strategies[] = {"in-order", "gpipe+barrier", "zb-h1+priority"};
    for (int rank = 0; rank < 4; rank++) {
        rf_run run = rf_run_default();
        run.model = rank % 2 == 0 ? RF_GPT : RF_CNN;
        run.num_pipeline_ranks = 2;
        run.num_replicas = 2;
        run.num_micro_batches = 2;
        run.strategy = strategies[rank % 3];
        run.bad_rank = rank;
        expect_failure(&run, rank, LG_INVALID_ARG, "target 1000");
        run.bad_rank = -1;
        run.broken_rank = rank;
        expect_failure(&run, rank, LG_DEVICE, "the device is on fire");
    }
}

static void another_batch_on_one_rank_is_found(void **state)
{
    (void)state;
    rf_run run = rf_run_default();
    run.model = RF_GPT;
    run.num_replicas = 2;
    run.num_micro_batches = 2;
    run.strategy = "wfbp";
    run.wants_results = true;
    run.other_rank = 1;
    expect_failure(&run, 0, LG_INVALID_ARG, "rank 1 has another batch");
}

static void ranks_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    rf_run run = rf_run_default();
    run.num_replicas = 7;
    run.num_micro_batches = 2; /* 14 micro-batches of 12 samples */
    rf_train_all(&run, all);
    for (int rank = 0; rank < 7; rank++) {
        assert_int_equal(all[rank].status, LG_INVALID_ARG);
        assert_non_null(strstr(all[rank].message, "micro-batches: 2 on each of 7 replicas"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_give_the_gradient_of_the_whole_batch),
        cmocka_unit_test(batch_norm_is_that_of_micro_batches),
        cmocka_unit_test(chunks_do_not_change_the_bits),
        cmocka_unit_test(sharing_messages_does_not_change_the_bits),
        cmocka_unit_test(replicas_have_the_gains_of_accumulation),
        cmocka_unit_test(rates_do_not_depend_on_stages),
        cmocka_unit_test(training_goes_on_with_the_same_bits),
        cmocka_unit_test(measured_costs_are_those_of_all_ranks),
        cmocka_unit_test(a_failure_of_one_rank_ends_all),
        cmocka_unit_test(another_batch_on_one_rank_is_found),
        cmocka_unit_test(ranks_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
