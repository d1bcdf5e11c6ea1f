/* Batches of text: windows, targets, padding at the end, masks and their rates. */
#include "unit/data/data_fixture.h"

#include <math.h>

enum { VOCAB = 40, CONTEXT = 16, IGNORE = -100 };

static lg_loader_opts make_opts(int64_t batch_samples, lg_text_task task)
{
    lg_loader_opts opts = lg_loader_opts_default();
    opts.seed = 3;
    opts.batch_samples = batch_samples;
    opts.context_tokens = CONTEXT;
    opts.text_task = task;
    return opts;
}

static void next_token_targets_are_the_text_shifted_by_one(void **state)
{
    (void)state;
    lg_dataset *dataset = make_tokens(1000, VOCAB);
    const lg_loader_opts opts = make_opts(4, LG_TEXT_NEXT_TOKEN);
    lg_loader *loader = make_loader(dataset, &opts);
    const lg_shape expected_shape = LG_SHAPE(4, CONTEXT);
    assert_int_equal(lg_loader_num_tensors(loader), 2);
    assert_int_equal(lg_loader_num_classes(loader), VOCAB);
    for (int64_t b = 0; b < 50; b++) {
        const lg_batch *batch = batch_of(loader, b);
        assert_int_equal(batch->num_samples, 4);
        assert_int_equal(batch->num_targets, 4 * CONTEXT);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(batch->tensors[k].dtype, LG_DTYPE_I32);
            assert_true(lg_shape_equal(&batch->tensors[k].shape, &expected_shape));
        }
        const int32_t *ids = batch->tensors[0].data;
        const int32_t *targets = batch->tensors[1].data;
        for (int i = 0; i < 4; i++) {
            for (int t = 0; t < CONTEXT; t++) {
                const int64_t at = batch->sample_ids[i] + t;
                assert_int_equal(ids[i * CONTEXT + t], lg_dataset_label(dataset, at));
                assert_int_equal(targets[i * CONTEXT + t], lg_dataset_label(dataset, at + 1));
            }
        }
    }
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void random_windows_reach_every_place(void **state)
{
    (void)state;
    enum { NUM_TOKENS = CONTEXT + 8, NUM_PLACES = 8 };
    lg_dataset *dataset = make_tokens(NUM_TOKENS, VOCAB);
    const lg_loader_opts opts = make_opts(8, LG_TEXT_NEXT_TOKEN);
    lg_loader *loader = make_loader(dataset, &opts);
    int counts[NUM_PLACES] = {0};
    for (int64_t b = 0; b < 100; b++) {
        const lg_batch *batch = batch_of(loader, b);
        assert_int_equal(batch->num_samples, 8);
        for (int i = 0; i < 8; i++) {
            assert_in_range(batch->sample_ids[i], 0, NUM_PLACES - 1);
            counts[batch->sample_ids[i]]++;
        }
    }
    /* Five standard deviations of a binomial count: 800 draws, p = 1/8. */
    for (int k = 0; k < NUM_PLACES; k++) {
        assert_true(fabs(counts[k] - 100.0) < 5.0 * sqrt(800.0 * 0.125 * 0.875));
    }
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void shuffled_epoch_is_as_many_full_batches_as_the_text_is_long(void **state)
{
    (void)state;
    lg_dataset *dataset = make_tokens(10 * CONTEXT + 1, VOCAB);
    lg_loader_opts opts = make_opts(4, LG_TEXT_NEXT_TOKEN);
    lg_loader *loader = make_loader(dataset, &opts);
    assert_int_equal(lg_loader_batches_per_epoch(loader), 3); /* 10 windows */
    assert_int_equal(batch_of(loader, 2)->num_samples, 4);
    assert_int_equal(batch_of(loader, 3)->epoch, 1);
    lg_loader_destroy(loader);
    opts.drop_last = true;
    loader = make_loader(dataset, &opts);
    assert_int_equal(lg_loader_batches_per_epoch(loader), 2);
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

/* For texts of every length around a multiple of T: each token but the first is a target once, the rest is padding. */
static void sequential_windows_predict_every_token_once(void **state)
{
    (void)state;
    for (int64_t num_tokens = CONTEXT + 1; num_tokens < 4 * CONTEXT + 3; num_tokens++) {
        lg_dataset *dataset = make_tokens(num_tokens, VOCAB);
        lg_loader_opts opts = make_opts(2, LG_TEXT_NEXT_TOKEN);
        opts.order = LG_ORDER_SEQUENTIAL;
        lg_loader *loader = make_loader(dataset, &opts);
        int64_t position = 1;
        int64_t num_targets = 0;
        for (int64_t b = 0; b < lg_loader_batches_per_epoch(loader); b++) {
            const lg_batch *batch = batch_of(loader, b);
            const int32_t *ids = batch->tensors[0].data;
            const int32_t *targets = batch->tensors[1].data;
            for (int64_t k = 0; k < batch->num_samples * CONTEXT; k++) {
                if (position < num_tokens) {
                    assert_int_equal(ids[k], lg_dataset_label(dataset, position - 1));
                    assert_int_equal(targets[k], lg_dataset_label(dataset, position));
                    position++;
                } else {
                    assert_int_equal(ids[k], 0);
                    assert_int_equal(targets[k], IGNORE);
                }
            }
            num_targets += batch->num_targets;
        }
        assert_int_equal(position, num_tokens);
        assert_int_equal(num_targets, num_tokens - 1);
        assert_int_equal(lg_loader_samples_per_epoch(loader),
                         (num_tokens - 1 + CONTEXT - 1) / CONTEXT);
        lg_loader_destroy(loader);
        lg_dataset_destroy(dataset);
    }
}

static void text_of_exactly_one_window_is_enough_and_less_is_invalid(void **state)
{
    (void)state;
    const lg_text_task tasks[] = {LG_TEXT_NEXT_TOKEN, LG_TEXT_MASKED};
    const int64_t needed[] = {CONTEXT + 1, CONTEXT};
    const lg_loader_order orders[] = {LG_ORDER_SHUFFLED, LG_ORDER_SEQUENTIAL};
    for (int k = 0; k < 4; k++) {
        lg_loader_opts opts = make_opts(1, tasks[k % 2]);
        opts.order = orders[k / 2];
        lg_dataset *dataset = make_tokens(needed[k % 2], VOCAB);
        lg_loader *loader = make_loader(dataset, &opts);
        assert_int_equal(lg_loader_batches_per_epoch(loader), 1);
        assert_int_equal(batch_of(loader, 0)->sample_ids[0], 0);
        lg_loader_destroy(loader);
        lg_dataset_destroy(dataset);
        dataset = make_tokens(needed[k % 2] - 1, VOCAB);
        assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
        assert_null(loader);
        assert_error_has("tokens of text, expected at least");
        lg_dataset_destroy(dataset);
    }
}

static void held_out_text_is_read_from_its_own_part(void **state)
{
    (void)state;
    lg_dataset *dataset = make_tokens(400, VOCAB);
    lg_dataset *train = NULL;
    lg_dataset *held_out = NULL;
    assert_int_equal(lg_dataset_split(&train, &held_out, dataset, 0.25, 0), LG_OK);
    const lg_loader_opts opts = make_opts(8, LG_TEXT_NEXT_TOKEN);
    lg_loader *loaders[2] = {make_loader(train, &opts), make_loader(held_out, &opts)};
    for (int64_t b = 0; b < 100; b++) {
        for (int p = 0; p < 2; p++) {
            const lg_batch *batch = batch_of(loaders[p], b);
            for (int i = 0; i < 8; i++) {
                const int64_t begin = batch->sample_ids[i];
                assert_in_range(begin, p == 0 ? 0 : 300, p == 0 ? 299 - CONTEXT : 399 - CONTEXT);
                assert_int_equal(((const int32_t *)batch->tensors[0].data)[i * CONTEXT],
                                 lg_dataset_label(dataset, begin));
            }
        }
    }
    for (int p = 0; p < 2; p++) {
        lg_loader_destroy(loaders[p]);
    }
    lg_dataset_destroy(dataset);
    lg_dataset_destroy(train);
    lg_dataset_destroy(held_out);
}

typedef struct mask_counts {
    int64_t num_targets;
    int64_t num_hidden;  /* id is the mask */
    int64_t num_changed; /* id is another token */
} mask_counts;

/* Checks one window of T tokens, of which `num_real` are there, and counts. */
static void check_masked_window(const lg_dataset *dataset, const lg_batch *batch, int64_t window,
                                int64_t num_real, mask_counts *counts)
{
    const int32_t *ids = (const int32_t *)batch->tensors[0].data + window * CONTEXT;
    const int32_t *targets = (const int32_t *)batch->tensors[1].data + window * CONTEXT;
    const float *keep = (const float *)batch->tensors[2].data + window * CONTEXT;
    int64_t num_targets = 0;
    for (int t = 0; t < CONTEXT; t++) {
        assert_true(keep[t] == (t < num_real ? 1.0f : 0.0f));
        if (t >= num_real) {
            assert_int_equal(ids[t], 0);
            assert_int_equal(targets[t], IGNORE);
            continue;
        }
        const int32_t token = lg_dataset_label(dataset, batch->sample_ids[window] + t);
        if (targets[t] == IGNORE) {
            assert_int_equal(ids[t], token);
            continue;
        }
        assert_int_equal(targets[t], token);
        assert_in_range(ids[t], 0, VOCAB);
        num_targets++;
        counts->num_hidden += ids[t] == VOCAB;
        counts->num_changed += ids[t] != VOCAB && ids[t] != token;
    }
    const int64_t expected = (int64_t)round(0.15 * (double)num_real);
    assert_int_equal(num_targets, expected > 1 ? expected : 1);
    counts->num_targets += num_targets;
}

static void masked_windows_follow_the_80_10_10_rule(void **state)
{
    (void)state;
    enum { NUM_BATCHES = 600, SAMPLES = 16 };
    lg_dataset *dataset = make_tokens(5000, VOCAB);
    const lg_loader_opts opts = make_opts(SAMPLES, LG_TEXT_MASKED);
    lg_loader *loader = make_loader(dataset, &opts);
    assert_int_equal(lg_loader_num_tensors(loader), 3);
    assert_int_equal(lg_loader_tensor_dtype(loader, 2), LG_DTYPE_F32);
    assert_int_equal(lg_loader_tensor_shape(loader, 2).dims[0], CONTEXT);
    assert_int_equal(lg_loader_num_classes(loader), VOCAB + 1);
    mask_counts counts = {0};
    int64_t by_position[CONTEXT] = {0};
    for (int64_t b = 0; b < NUM_BATCHES; b++) {
        const lg_batch *batch = batch_of(loader, b);
        for (int64_t i = 0; i < SAMPLES; i++) {
            check_masked_window(dataset, batch, i, CONTEXT, &counts);
            for (int t = 0; t < CONTEXT; t++) {
                by_position[t] +=
                    ((const int32_t *)batch->tensors[1].data)[i * CONTEXT + t] != IGNORE;
            }
        }
        assert_int_equal(batch->num_targets, SAMPLES * 2);
    }
    /* Five standard deviations of binomial counts. A random token is the old one with probability 1/VOCAB. */
    const double num = (double)counts.num_targets;
    const double p_changed = 0.1 * (1.0 - 1.0 / VOCAB);
    assert_true(fabs((double)counts.num_hidden - 0.8 * num) < 5.0 * sqrt(num * 0.8 * 0.2));
    assert_true(fabs((double)counts.num_changed - p_changed * num) <
                5.0 * sqrt(num * p_changed * (1.0 - p_changed)));
    const double p_position = 2.0 / CONTEXT;
    for (int t = 0; t < CONTEXT; t++) {
        const double num_windows = (double)NUM_BATCHES * SAMPLES;
        assert_true(fabs((double)by_position[t] - p_position * num_windows) <
                    5.0 * sqrt(num_windows * p_position * (1.0 - p_position)));
    }
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void sequential_masked_windows_cover_the_text_and_pad_the_end(void **state)
{
    (void)state;
    for (int64_t num_tokens = CONTEXT; num_tokens < 3 * CONTEXT + 2; num_tokens++) {
        lg_dataset *dataset = make_tokens(num_tokens, VOCAB);
        lg_loader_opts opts = make_opts(2, LG_TEXT_MASKED);
        opts.order = LG_ORDER_SEQUENTIAL;
        lg_loader *loader = make_loader(dataset, &opts);
        const int64_t num_batches = lg_loader_batches_per_epoch(loader);
        mask_counts counts = {0};
        int64_t num_covered = 0;
        for (int64_t b = 0; b < num_batches; b++) {
            const lg_batch *batch = batch_of(loader, b);
            const int64_t num_before = counts.num_targets;
            for (int64_t i = 0; i < batch->num_samples; i++) {
                const int64_t rest = num_tokens - num_covered;
                const int64_t num_real = rest < CONTEXT ? rest : CONTEXT;
                assert_true(num_real > 0);
                assert_int_equal(batch->sample_ids[i], num_covered);
                check_masked_window(dataset, batch, i, num_real, &counts);
                num_covered += num_real;
            }
            assert_int_equal(batch->num_targets, counts.num_targets - num_before);
        }
        assert_int_equal(num_covered, num_tokens);
        /* Another epoch hides the same tokens. */
        const lg_batch *batch = batch_of(loader, 0);
        const size_t size = (size_t)batch->num_samples * CONTEXT * sizeof(int32_t);
        int32_t first[2 * CONTEXT];
        memcpy(first, batch->tensors[0].data, size);
        assert_memory_equal(batch_of(loader, num_batches)->tensors[0].data, first, size);
        lg_loader_destroy(loader);
        lg_dataset_destroy(dataset);
    }
}

static void masking_everything_makes_every_token_a_target(void **state)
{
    (void)state;
    lg_dataset *dataset = make_tokens(500, VOCAB);
    lg_loader_opts opts = make_opts(3, LG_TEXT_MASKED);
    opts.mask_frac = 1.0;
    lg_loader *loader = make_loader(dataset, &opts);
    const lg_batch *batch = batch_of(loader, 0);
    assert_int_equal(batch->num_targets, 3 * CONTEXT);
    for (int k = 0; k < 3 * CONTEXT; k++) {
        assert_true(((const int32_t *)batch->tensors[1].data)[k] != IGNORE);
    }
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void batches_asked_for_in_any_order_have_the_same_bits(void **state)
{
    (void)state;
    enum { NUM_BATCHES = 20 };
    const lg_text_task tasks[] = {LG_TEXT_NEXT_TOKEN, LG_TEXT_MASKED};
    lg_dataset *dataset = make_tokens(700, VOCAB);
    for (int k = 0; k < 2; k++) {
        const lg_loader_opts opts = make_opts(4, tasks[k]);
        uint64_t expected[NUM_BATCHES];
        lg_loader *loader = make_loader(dataset, &opts);
        for (int64_t b = 0; b < NUM_BATCHES; b++) {
            expected[b] = hash_batch(batch_of(loader, b));
        }
        for (int64_t b = NUM_BATCHES - 1; b >= 0; b--) {
            assert_true(hash_batch(batch_of(loader, b)) == expected[b]);
        }
        lg_loader_destroy(loader);
    }
    lg_dataset_destroy(dataset);
}

static void options_out_of_range_are_invalid(void **state)
{
    (void)state;
    lg_dataset *dataset = make_tokens(700, VOCAB);
    lg_loader *loader = NULL;
    lg_loader_opts opts = make_opts(1, LG_TEXT_MASKED);
    opts.mask_frac = 0.0;
    assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
    assert_error_has("masked fraction is 0");
    opts = make_opts(1, LG_TEXT_NEXT_TOKEN);
    opts.context_tokens = 0;
    assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
    assert_error_has("context is 0 tokens");
    opts = make_opts(1, LG_TEXT_NEXT_TOKEN);
    opts.ignore_index = 3;
    assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
    assert_error_has("ignore_index is 3");
    opts = make_opts(1, LG_TEXT_NEXT_TOKEN);
    opts.has_flip = true;
    assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
    assert_error_has("are for images");
    opts = make_opts(1, (lg_text_task)5);
    assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
    assert_error_has("text task is 5");
    assert_null(loader);
    lg_dataset_destroy(dataset);
}

/* As for images: a resumed run must see the same batches. */
static void batch_bits_are_those_of_the_first_release(void **state)
{
    (void)state;
    const lg_text_task tasks[] = {LG_TEXT_NEXT_TOKEN, LG_TEXT_MASKED};
    const uint64_t expected[] = {0x6f4854cf249e9008u, 0x699857fcba08b9f0u};
    lg_dataset *dataset = make_tokens(700, VOCAB);
    for (int k = 0; k < 2; k++) {
        const lg_loader_opts opts = make_opts(4, tasks[k]);
        lg_loader *loader = make_loader(dataset, &opts);
        const uint64_t hash = hash_batch(batch_of(loader, 9));
        assert_true(hash == expected[k]);
        lg_loader_destroy(loader);
    }
    lg_dataset_destroy(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_token_targets_are_the_text_shifted_by_one),
        cmocka_unit_test(random_windows_reach_every_place),
        cmocka_unit_test(shuffled_epoch_is_as_many_full_batches_as_the_text_is_long),
        cmocka_unit_test(sequential_windows_predict_every_token_once),
        cmocka_unit_test(text_of_exactly_one_window_is_enough_and_less_is_invalid),
        cmocka_unit_test(held_out_text_is_read_from_its_own_part),
        cmocka_unit_test(masked_windows_follow_the_80_10_10_rule),
        cmocka_unit_test(sequential_masked_windows_cover_the_text_and_pad_the_end),
        cmocka_unit_test(masking_everything_makes_every_token_a_target),
        cmocka_unit_test(batches_asked_for_in_any_order_have_the_same_bits),
        cmocka_unit_test(options_out_of_range_are_invalid),
        cmocka_unit_test(batch_bits_are_those_of_the_first_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
