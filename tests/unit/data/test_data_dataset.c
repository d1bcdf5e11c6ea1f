/* Datasets from arrays and text files: checks, splits, statistics, lifetimes. */
#include "unit/data/data_fixture.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"

/* Statistics are sums in f64 rounded once to f32. */
#define STATISTICS_TOLERANCE 1e-6

static lg_sample_array make_array(const float *samples, const int32_t *labels, int64_t num_samples)
{
    const lg_sample_array array = {.samples = samples,
                                   .dtype = LG_DTYPE_F32,
                                   .sample_shape = LG_SHAPE(2),
                                   .num_samples = num_samples,
                                   .labels = labels,
                                   .num_classes = 3};
    return array;
}

static const float features[] = {1.0f, -2.0f, 3.0f, 0.5f, 5.0f, 7.0f};
static const int32_t classes[] = {2, 0, 1};

static void create_labeled_copies_the_arrays(void **state)
{
    (void)state;
    float samples[6];
    int32_t labels[3];
    lg_dataset *dataset = NULL;
    memcpy(samples, features, sizeof samples);
    memcpy(labels, classes, sizeof labels);
    const lg_sample_array array = make_array(samples, labels, 3);
    assert_int_equal(lg_dataset_create_labeled(&dataset, &array), LG_OK);
    memset(samples, 0, sizeof samples);
    memset(labels, 0, sizeof labels);
    lg_loader_opts opts = lg_loader_opts_default();
    opts.order = LG_ORDER_SEQUENTIAL;
    opts.batch_samples = 3;
    lg_loader *loader = make_loader(dataset, &opts);
    lg_dataset_destroy(dataset); /* the loader keeps what it needs */
    const lg_batch *batch = batch_of(loader, 0);
    const lg_shape expected = LG_SHAPE(3, 2);
    assert_int_equal(batch->num_tensors, 2);
    assert_int_equal(batch->tensors[0].dtype, LG_DTYPE_F32);
    assert_true(lg_shape_equal(&batch->tensors[0].shape, &expected));
    assert_memory_equal(batch->tensors[0].data, features, sizeof features);
    assert_int_equal(batch->tensors[1].dtype, LG_DTYPE_I32);
    assert_int_equal(batch->tensors[1].shape.num_dims, 1);
    assert_memory_equal(batch->tensors[1].data, classes, sizeof classes);
    lg_loader_destroy(loader);
}

static void assert_labeled_refused(const lg_sample_array *array, const char *part)
{
    lg_dataset *dataset = (lg_dataset *)8;
    assert_int_equal(lg_dataset_create_labeled(&dataset, array), LG_INVALID_ARG);
    assert_null(dataset);
    assert_error_has(part);
}

static void create_labeled_refuses_what_makes_no_sense(void **state)
{
    (void)state;
    const float bad_features[] = {1.0f, 2.0f, 3.0f, NAN, 5.0f, 6.0f};
    lg_sample_array array = make_array(bad_features, classes, 3);
    assert_labeled_refused(&array, "sample 1 has the value nan");
    array = make_array(features, classes, 3);
    array.num_classes = 2;
    assert_labeled_refused(&array, "label of sample 0 is 2, expected one in [0, 2)");
    array = make_array(features, classes, 0);
    assert_labeled_refused(&array, "0 samples");
    array = make_array(features, classes, INT64_MAX);
    assert_labeled_refused(&array, "shape [2]");
    array = make_array(features, classes, 3);
    array.sample_shape.num_dims = 4;
    assert_labeled_refused(&array, "4 dimensions, expected 1 to 3");
    array = make_array(features, classes, 3);
    array.dtype = LG_DTYPE_I32;
    assert_labeled_refused(&array, "expected f32 or u8");
    array = make_array(NULL, classes, 3);
    assert_labeled_refused(&array, "samples is NULL");
}

static void create_tokens_refuses_ids_out_of_range(void **state)
{
    (void)state;
    lg_dataset *dataset = NULL;
    const int32_t ids[] = {0, 4, 5};
    assert_int_equal(lg_dataset_create_tokens(&dataset, ids, 3, 5), LG_INVALID_ARG);
    assert_error_has("token 2 is 5, expected one in [0, 5)");
    assert_int_equal(lg_dataset_create_tokens(&dataset, ids, 0, 5), LG_INVALID_ARG);
    assert_null(dataset);
}

static void split_of_labeled_puts_each_sample_in_one_part_in_order(void **state)
{
    (void)state;
    enum { COUNT = 103 };
    lg_dataset *dataset = make_dataset(COUNT, 2, 2, 5);
    lg_dataset *parts[2] = {NULL};
    int seen[COUNT] = {0};
    assert_int_equal(lg_dataset_split(&parts[0], &parts[1], dataset, 0.2, 9), LG_OK);
    lg_dataset_destroy(dataset);
    assert_int_equal(lg_dataset_num_samples(parts[0]), 82);
    assert_int_equal(lg_dataset_num_samples(parts[1]), 21);
    int64_t num_last = 0; /* of the held-out samples, those that are also the last of the file */
    for (int p = 0; p < 2; p++) {
        lg_loader_opts opts = lg_loader_opts_default();
        opts.order = LG_ORDER_SEQUENTIAL;
        opts.batch_samples = COUNT;
        lg_loader *loader = make_loader(parts[p], &opts);
        const lg_batch *batch = batch_of(loader, 0);
        for (int64_t i = 0; i < batch->num_samples; i++) {
            const int64_t id = batch->sample_ids[i];
            assert_true(i == 0 || id > batch->sample_ids[i - 1]);
            assert_int_equal(((const int32_t *)batch->tensors[1].data)[i], id % 5);
            assert_int_equal(lg_dataset_label(parts[p], i), id % 5);
            assert_true(((const float *)batch->tensors[0].data)[4 * i] ==
                        (float)pseudo_byte(1, (uint64_t)(4 * id)) / 255.0f);
            seen[id]++;
            num_last += p == 1 && id >= 82;
        }
        lg_loader_destroy(loader);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(seen[i], 1);
    }
    assert_true(num_last < 15); /* 21 if it were the end of the file; at random about 4 */
    lg_dataset_destroy(parts[0]);
    lg_dataset_destroy(parts[1]);
}

/* The labels of a part, in base 10. */
static uint64_t label_hash(const lg_dataset *dataset)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < lg_dataset_num_samples(dataset); i++) {
        hash = hash * 10 + (uint64_t)lg_dataset_label(dataset, i);
    }
    return hash;
}

static void split_depends_on_the_seed_alone(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(60, 1, 1, 7);
    uint64_t hashes[3];
    const uint64_t seeds[3] = {1, 1, 2};
    for (int i = 0; i < 3; i++) {
        lg_dataset *train = NULL;
        lg_dataset *held_out = NULL;
        assert_int_equal(lg_dataset_split(&train, &held_out, dataset, 0.25, seeds[i]), LG_OK);
        hashes[i] = label_hash(held_out);
        lg_dataset_destroy(train);
        lg_dataset_destroy(held_out);
    }
    assert_true(hashes[0] == hashes[1]);
    assert_true(hashes[0] != hashes[2]);
    lg_dataset_destroy(dataset);
}

static void split_of_a_split_stays_disjoint(void **state)
{
    (void)state;
    enum { COUNT = 50 };
    lg_dataset *dataset = make_dataset(COUNT, 1, 1, 50);
    lg_dataset *parts[4] = {NULL};
    int seen[COUNT] = {0};
    assert_int_equal(lg_dataset_split(&parts[0], &parts[1], dataset, 0.4, 1), LG_OK);
    assert_int_equal(lg_dataset_split(&parts[2], &parts[3], parts[0], 0.5, 1), LG_OK);
    lg_dataset_destroy(parts[0]);
    lg_dataset_destroy(dataset);
    for (int p = 1; p < 4; p++) {
        for (int64_t i = 0; i < lg_dataset_num_samples(parts[p]); i++) {
            seen[lg_dataset_label(parts[p], i)]++;
        }
        lg_dataset_destroy(parts[p]);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(seen[i], 1);
    }
}

static void split_of_text_holds_out_the_end(void **state)
{
    (void)state;
    lg_dataset *dataset = make_tokens(1000, 50);
    lg_dataset *train = NULL;
    lg_dataset *held_out = NULL;
    assert_int_equal(lg_dataset_split(&train, &held_out, dataset, 0.1, 3), LG_OK);
    assert_int_equal(lg_dataset_num_samples(train), 900);
    assert_int_equal(lg_dataset_num_samples(held_out), 100);
    for (int64_t i = 0; i < 900; i++) {
        assert_int_equal(lg_dataset_label(train, i), lg_dataset_label(dataset, i));
    }
    for (int64_t i = 0; i < 100; i++) {
        assert_int_equal(lg_dataset_label(held_out, i), lg_dataset_label(dataset, 900 + i));
    }
    lg_dataset_destroy(dataset);
    lg_dataset_destroy(train);
    lg_dataset_destroy(held_out);
}

static void split_that_leaves_a_part_empty_is_invalid(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(10, 1, 1, 2);
    const double bad[] = {0.0, 1.0, -0.5, 0.01, 0.99, NAN};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lg_dataset *train = (lg_dataset *)8;
        lg_dataset *held_out = (lg_dataset *)8;
        assert_int_equal(lg_dataset_split(&train, &held_out, dataset, bad[i], 0), LG_INVALID_ARG);
        assert_null(train);
        assert_null(held_out);
        assert_error_has("fraction");
    }
    lg_dataset_destroy(dataset);
}

static void head_gives_the_first_samples(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(10, 1, 1, 10);
    lg_dataset *head = NULL;
    assert_int_equal(lg_dataset_head(&head, dataset, 4), LG_OK);
    assert_int_equal(lg_dataset_num_samples(head), 4);
    assert_int_equal(label_hash(head), 123);
    lg_dataset_destroy(head);
    assert_int_equal(lg_dataset_head(&head, dataset, 99), LG_OK);
    assert_int_equal(lg_dataset_num_samples(head), 10);
    lg_dataset_destroy(head);
    assert_int_equal(lg_dataset_head(&head, dataset, 0), LG_INVALID_ARG);
    assert_null(head);
    lg_dataset_destroy(dataset);
}

static void mean_std_of_f32_channels_are_those_of_the_definition(void **state)
{
    (void)state;
    enum { COUNT = 6, CHANNELS = 3, PIXELS = 4 };
    float samples[COUNT * CHANNELS * PIXELS];
    const int32_t labels[COUNT] = {0};
    for (int i = 0; i < COUNT * CHANNELS * PIXELS; i++) {
        const int channel = i / PIXELS % CHANNELS;
        /* Channel 0: small; channel 1: a large mean, where one pass of sums would lose; channel 2: constant. */
        const float value = (float)pseudo_byte(4, (uint64_t)i) / 64.0f;
        samples[i] = channel == 0 ? value : channel == 1 ? 1048576.0f + value : 0.25f;
    }
    const lg_sample_array array = {.samples = samples,
                                   .dtype = LG_DTYPE_F32,
                                   .sample_shape = LG_SHAPE(CHANNELS, 2, 2),
                                   .num_samples = COUNT,
                                   .labels = labels,
                                   .num_classes = 1};
    lg_dataset *dataset = NULL;
    float mean[CHANNELS];
    float std[CHANNELS];
    assert_int_equal(lg_dataset_create_labeled(&dataset, &array), LG_OK);
    assert_int_equal(lg_dataset_num_channels(dataset), CHANNELS);
    assert_int_equal(lg_dataset_mean_std(dataset, mean, std), LG_OK);
    for (int c = 0; c < 2; c++) {
        double expected_mean = 0.0;
        double variance = 0.0;
        for (int i = 0; i < COUNT * PIXELS; i++) {
            expected_mean += (double)samples[(i / PIXELS * CHANNELS + c) * PIXELS + i % PIXELS];
        }
        expected_mean /= COUNT * PIXELS;
        for (int i = 0; i < COUNT * PIXELS; i++) {
            const double rest =
                (double)samples[(i / PIXELS * CHANNELS + c) * PIXELS + i % PIXELS] - expected_mean;
            variance += rest * rest;
        }
        const double expected_std = sqrt(variance / (COUNT * PIXELS));
        assert_true(fabs((double)mean[c] / expected_mean - 1.0) < STATISTICS_TOLERANCE);
        assert_true(fabs((double)std[c] / expected_std - 1.0) < STATISTICS_TOLERANCE);
    }
    assert_true(mean[2] == 0.25f && std[2] == 1.0f);
    lg_dataset_destroy(dataset);
}

static void mean_std_of_u8_are_of_values_up_to_1(void **state)
{
    (void)state;
    const uint8_t pixels[] = {0, 255, 255, 0};
    const int32_t labels[] = {0, 0};
    const lg_sample_array array = {.samples = pixels,
                                   .dtype = LG_DTYPE_U8,
                                   .sample_shape = LG_SHAPE(1, 1, 2),
                                   .num_samples = 2,
                                   .labels = labels,
                                   .num_classes = 1};
    lg_dataset *dataset = NULL;
    float mean = 0.0f;
    float std = 0.0f;
    assert_int_equal(lg_dataset_create_labeled(&dataset, &array), LG_OK);
    assert_int_equal(lg_dataset_mean_std(dataset, &mean, &std), LG_OK);
    assert_true(mean == 0.5f && std == 0.5f);
    lg_dataset_destroy(dataset);
    dataset = make_tokens(5, 3);
    assert_int_equal(lg_dataset_mean_std(dataset, &mean, &std), LG_INVALID_ARG);
    lg_dataset_destroy(dataset);
}

static void open_text_gives_the_bytes(void **state)
{
    (void)state;
    char path[] = "/tmp/lg-text-XXXXXX";
    const uint8_t text[] = {'a', 0, 255, '\n'};
    const int file = mkstemp(path);
    assert_true(file >= 0);
    lg_dataset *dataset = NULL;
    assert_int_equal(lg_dataset_open_text(&dataset, path), LG_INVALID_ARG);
    assert_null(dataset);
    assert_error_has(path);
    assert_error_has("is empty");
    assert_int_equal(write(file, text, sizeof text), sizeof text);
    assert_int_equal(close(file), 0);
    assert_int_equal(lg_dataset_open_text(&dataset, path), LG_OK);
    assert_int_equal(lg_dataset_kind_of(dataset), LG_DATASET_TEXT);
    assert_int_equal(lg_dataset_num_classes(dataset), 256);
    assert_int_equal(lg_dataset_num_channels(dataset), 0);
    assert_int_equal(lg_dataset_num_samples(dataset), sizeof text);
    for (size_t i = 0; i < sizeof text; i++) {
        assert_int_equal(lg_dataset_label(dataset, (int64_t)i), text[i]);
    }
    lg_loader_opts opts = lg_loader_opts_default();
    opts.context_tokens = 4;
    lg_loader *loader = NULL;
    assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
    assert_error_has(path);
    assert_error_has("4 tokens of text, expected at least 5");
    lg_dataset_destroy(dataset);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lg_dataset_open_text(&dataset, path), LG_IO);
    assert_error_has(path);
    assert_int_equal(lg_dataset_open_text(&dataset, "/dev/zero"), LG_INVALID_ARG);
}

static void failing_allocations_of_a_split_leave_nothing_behind(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(10, 1, 1, 2);
    lg_dataset *train = NULL;
    lg_dataset *held_out = NULL;
    int64_t num_failures = 0;
    for (;; num_failures++) {
        lgi_alloc_fail_after(num_failures + 1);
        const lg_status status = lg_dataset_split(&train, &held_out, dataset, 0.5, 0);
        lgi_alloc_fail_after(0);
        if (status == LG_OK) {
            break;
        }
        assert_int_equal(status, LG_OUT_OF_MEMORY);
        assert_true(train == NULL && held_out == NULL);
    }
    assert_int_equal(num_failures, 6);
    lg_dataset_destroy(dataset);
    lg_dataset_destroy(train);
    lg_dataset_destroy(held_out);
}

static void failing_allocations_of_arrays_leave_nothing_behind(void **state)
{
    (void)state;
    const lg_sample_array array = make_array(features, classes, 3);
    lg_dataset *dataset = NULL;
    int64_t num_failures = 0;
    for (;; num_failures++) {
        lgi_alloc_fail_after(num_failures + 1);
        const lg_status status = lg_dataset_create_labeled(&dataset, &array);
        lgi_alloc_fail_after(0);
        if (status == LG_OK) {
            break;
        }
        assert_int_equal(status, LG_OUT_OF_MEMORY);
        assert_null(dataset);
    }
    assert_int_equal(num_failures, 4);
    lg_dataset_destroy(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_labeled_copies_the_arrays),
        cmocka_unit_test(create_labeled_refuses_what_makes_no_sense),
        cmocka_unit_test(create_tokens_refuses_ids_out_of_range),
        cmocka_unit_test(split_of_labeled_puts_each_sample_in_one_part_in_order),
        cmocka_unit_test(split_depends_on_the_seed_alone),
        cmocka_unit_test(split_of_a_split_stays_disjoint),
        cmocka_unit_test(split_of_text_holds_out_the_end),
        cmocka_unit_test(split_that_leaves_a_part_empty_is_invalid),
        cmocka_unit_test(head_gives_the_first_samples),
        cmocka_unit_test(mean_std_of_f32_channels_are_those_of_the_definition),
        cmocka_unit_test(mean_std_of_u8_are_of_values_up_to_1),
        cmocka_unit_test(open_text_gives_the_bytes),
        cmocka_unit_test(failing_allocations_of_a_split_leave_nothing_behind),
        cmocka_unit_test(failing_allocations_of_arrays_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
