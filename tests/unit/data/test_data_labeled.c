/* Batches of labeled samples: order, ragged ends, normalisation, crop and flip against a naive version. */
#include "unit/data/data_fixture.h"

#include <math.h>

enum { COUNT = 23, CHANNELS = 3, HEIGHT = 5, WIDTH = 4, PIXELS = HEIGHT * WIDTH, PAD = 2 };
enum { SAMPLE_ELEMS = CHANNELS * PIXELS };

static const float means[CHANNELS] = {0.5f, 0.25f, -0.125f};
static const float stds[CHANNELS] = {0.5f, 2.0f, 0.75f};

static uint8_t pixel_byte(int64_t sample, int64_t elem)
{
    return pseudo_byte(11, (uint64_t)(sample * SAMPLE_ELEMS + elem));
}

/* u8 or f32 images of three channels with the same values up to rounding. */
static lg_dataset *make_images_of(lg_dtype dtype)
{
    static uint8_t bytes_of[COUNT * SAMPLE_ELEMS];
    static float floats_of[COUNT * SAMPLE_ELEMS];
    int32_t labels[COUNT];
    lg_dataset *dataset = NULL;
    for (int i = 0; i < COUNT * SAMPLE_ELEMS; i++) {
        bytes_of[i] = pixel_byte(0, i);
        floats_of[i] = (float)bytes_of[i] / 255.0f;
    }
    for (int i = 0; i < COUNT; i++) {
        labels[i] = i;
    }
    const lg_sample_array array = {.samples = dtype == LG_DTYPE_U8 ? (const void *)bytes_of
                                                                   : (const void *)floats_of,
                                   .dtype = dtype,
                                   .sample_shape = LG_SHAPE(CHANNELS, HEIGHT, WIDTH),
                                   .num_samples = COUNT,
                                   .labels = labels,
                                   .num_classes = COUNT};
    assert_int_equal(lg_dataset_create_labeled(&dataset, &array), LG_OK);
    return dataset;
}

static lg_loader_opts make_opts(int64_t batch_samples)
{
    lg_loader_opts opts = lg_loader_opts_default();
    opts.seed = 5;
    opts.batch_samples = batch_samples;
    return opts;
}

static void every_sample_comes_once_per_epoch_in_new_order(void **state)
{
    (void)state;
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    const lg_loader_opts opts = make_opts(4);
    lg_loader *loader = make_loader(dataset, &opts);
    assert_int_equal(lg_loader_batches_per_epoch(loader), 6);
    assert_int_equal(lg_loader_samples_per_epoch(loader), COUNT);
    assert_int_equal(lg_loader_max_samples(loader), 4);
    int64_t order[3][COUNT];
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int seen[COUNT] = {0};
        int64_t num_seen = 0;
        for (int64_t b = 0; b < 6; b++) {
            const int64_t batch_idx = epoch * 6 + b;
            const lg_batch *batch = batch_of(loader, batch_idx);
            assert_int_equal(batch->epoch, epoch);
            assert_int_equal(batch->num_samples, b < 5 ? 4 : 3);
            assert_int_equal(batch->num_targets, batch->num_samples);
            assert_int_equal(lg_loader_batch_samples(loader, batch_idx), batch->num_samples);
            assert_int_equal(batch->tensors[0].shape.dims[0], batch->num_samples);
            assert_int_equal(batch->tensors[1].shape.dims[0], batch->num_samples);
            for (int64_t i = 0; i < batch->num_samples; i++) {
                const int32_t label = ((const int32_t *)batch->tensors[1].data)[i];
                assert_int_equal(label, batch->sample_ids[i]);
                order[epoch][num_seen++] = label;
                seen[label]++;
            }
        }
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(seen[i], 1);
        }
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    assert_memory_not_equal(order[1], order[2], sizeof order[0]);
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void shuffled_positions_are_spread_evenly(void **state)
{
    (void)state;
    enum { NUM = 5, EPOCHS = 2000 };
    lg_dataset *dataset = make_dataset(NUM, 1, 1, NUM);
    const lg_loader_opts opts = make_opts(NUM);
    lg_loader *loader = make_loader(dataset, &opts);
    int counts[NUM][NUM] = {{0}};
    for (int64_t e = 0; e < EPOCHS; e++) {
        const lg_batch *batch = batch_of(loader, e);
        for (int i = 0; i < NUM; i++) {
            counts[i][batch->sample_ids[i]]++;
        }
    }
    /* Five standard deviations of a binomial count with p = 1/5. */
    const double bound = 5.0 * sqrt(EPOCHS * 0.2 * 0.8);
    for (int i = 0; i < NUM; i++) {
        for (int k = 0; k < NUM; k++) {
            assert_true(fabs(counts[i][k] - EPOCHS / 5.0) < bound);
        }
    }
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void sequential_order_is_that_of_the_dataset_in_every_epoch(void **state)
{
    (void)state;
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    lg_loader_opts opts = make_opts(10);
    opts.order = LG_ORDER_SEQUENTIAL;
    lg_loader *loader = make_loader(dataset, &opts);
    for (int64_t b = 0; b < 6; b++) {
        const lg_batch *batch = batch_of(loader, b);
        for (int64_t i = 0; i < batch->num_samples; i++) {
            assert_int_equal(batch->sample_ids[i], b % 3 * 10 + i);
        }
    }
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void drop_last_leaves_full_batches_only(void **state)
{
    (void)state;
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    lg_loader_opts opts = make_opts(4);
    opts.drop_last = true;
    lg_loader *loader = make_loader(dataset, &opts);
    assert_int_equal(lg_loader_batches_per_epoch(loader), 5);
    assert_int_equal(lg_loader_samples_per_epoch(loader), 20);
    for (int64_t b = 0; b < 15; b++) {
        assert_int_equal(batch_of(loader, b)->num_samples, 4);
    }
    lg_loader_destroy(loader);
    opts.batch_samples = COUNT + 1;
    assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
    assert_null(loader);
    assert_error_has("no full batch of 24");
    lg_dataset_destroy(dataset);
}

static void batch_larger_than_the_dataset_is_the_dataset(void **state)
{
    (void)state;
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    const lg_loader_opts opts = make_opts(INT32_MAX);
    lg_loader *loader = make_loader(dataset, &opts);
    assert_int_equal(lg_loader_max_samples(loader), COUNT);
    assert_int_equal(batch_of(loader, 3)->num_samples, COUNT);
    assert_int_equal(batch_of(loader, 3)->epoch, 3);
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void batches_asked_for_in_any_order_have_the_same_bits(void **state)
{
    (void)state;
    enum { NUM_BATCHES = 30 };
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    lg_loader_opts opts = make_opts(4);
    opts.crop_pad_pixels = PAD;
    opts.has_flip = true;
    uint64_t expected[NUM_BATCHES];
    lg_loader *loader = make_loader(dataset, &opts);
    for (int64_t b = 0; b < NUM_BATCHES; b++) {
        expected[b] = hash_batch(batch_of(loader, b));
        assert_true(b == 0 || expected[b] != expected[b - 1]);
    }
    for (int64_t b = NUM_BATCHES - 1; b >= 0; b--) {
        assert_true(hash_batch(batch_of(loader, b)) == expected[b]);
    }
    lg_loader_destroy(loader);
    loader = make_loader(dataset, &opts); /* a resumed run */
    assert_true(hash_batch(batch_of(loader, 17)) == expected[17]);
    assert_true(hash_batch(batch_of(loader, 17)) == expected[17]);
    lg_loader_destroy(loader);
    opts.seed++;
    loader = make_loader(dataset, &opts);
    assert_true(hash_batch(batch_of(loader, 17)) != expected[17]);
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static float normalise(float value, int channel)
{
    return (value - means[channel]) / stds[channel];
}

/* The naive version: makes the padded image, cuts it out, mirrors it. */
static void cut_naively(float *out, int64_t sample, int top, int left, bool is_flipped)
{
    enum { PADDED_HEIGHT = HEIGHT + 2 * PAD, PADDED_WIDTH = WIDTH + 2 * PAD };
    for (int c = 0; c < CHANNELS; c++) {
        float padded[PADDED_HEIGHT][PADDED_WIDTH] = {{0.0f}};
        for (int y = 0; y < HEIGHT; y++) {
            for (int x = 0; x < WIDTH; x++) {
                padded[y + PAD][x + PAD] =
                    (float)pixel_byte(sample, (c * HEIGHT + y) * WIDTH + x) / 255.0f;
            }
        }
        for (int y = 0; y < HEIGHT; y++) {
            float row[WIDTH];
            for (int x = 0; x < WIDTH; x++) {
                row[x] = normalise(padded[top + y][left + x], c);
            }
            for (int x = 0; x < WIDTH; x++) {
                out[(c * HEIGHT + y) * WIDTH + x] = row[is_flipped ? WIDTH - 1 - x : x];
            }
        }
    }
}

static void normalisation_is_per_channel(void **state)
{
    (void)state;
    const lg_dtype dtypes[] = {LG_DTYPE_U8, LG_DTYPE_F32};
    for (int d = 0; d < 2; d++) {
        lg_dataset *dataset = make_images_of(dtypes[d]);
        lg_loader_opts opts = make_opts(COUNT);
        opts.num_channels = CHANNELS;
        opts.mean = means;
        opts.std = stds;
        lg_loader *loader = make_loader(dataset, &opts);
        const lg_batch *batch = batch_of(loader, 0);
        for (int i = 0; i < COUNT; i++) {
            float expected[SAMPLE_ELEMS];
            cut_naively(expected, batch->sample_ids[i], PAD, PAD, false);
            assert_memory_equal((const float *)batch->tensors[0].data + i * SAMPLE_ELEMS, expected,
                                sizeof expected);
        }
        lg_loader_destroy(loader);
        lg_dataset_destroy(dataset);
    }
}

/*
 * Which cut a sample is: [flip][top][left] as one number, or -1. The cut is not read from the loader but found by trying
 * all of the naive version.
 */
static int find_cut(const float *image, int64_t sample)
{
    int found = -1;
    for (int cut = 0; cut < 2 * (2 * PAD + 1) * (2 * PAD + 1); cut++) {
        float expected[SAMPLE_ELEMS];
        const int side = 2 * PAD + 1;
        cut_naively(expected, sample, cut / side % side, cut % side, cut >= side * side);
        if (memcmp(image, expected, sizeof expected) == 0) {
            assert_int_equal(found, -1);
            found = cut;
        }
    }
    return found;
}

static void crop_and_flip_are_cuts_of_the_naive_version_evenly_spread(void **state)
{
    (void)state;
    enum { EPOCHS = 40, SIDE = 2 * PAD + 1, NUM_CUTS = 2 * SIDE * SIDE };
    const lg_dtype dtypes[] = {LG_DTYPE_U8, LG_DTYPE_F32};
    for (int d = 0; d < 2; d++) {
        lg_dataset *dataset = make_images_of(dtypes[d]);
        lg_loader_opts opts = make_opts(COUNT);
        opts.num_channels = CHANNELS;
        opts.mean = means;
        opts.std = stds;
        opts.crop_pad_pixels = PAD;
        opts.has_flip = true;
        lg_loader *loader = make_loader(dataset, &opts);
        int counts[NUM_CUTS] = {0};
        int num_flipped = 0;
        for (int64_t e = 0; e < EPOCHS; e++) {
            const lg_batch *batch = batch_of(loader, e);
            for (int i = 0; i < COUNT; i++) {
                const int cut = find_cut((const float *)batch->tensors[0].data + i * SAMPLE_ELEMS,
                                         batch->sample_ids[i]);
                assert_true(cut >= 0);
                counts[cut]++;
                num_flipped += cut >= SIDE * SIDE;
            }
        }
        /* Five standard deviations of the flips; every cut occurs (each is expected 18 times). */
        const double num_draws = (double)EPOCHS * COUNT;
        assert_true(fabs(num_flipped - num_draws / 2) < 5.0 * sqrt(num_draws / 4));
        for (int k = 0; k < NUM_CUTS; k++) {
            assert_true(counts[k] > 0);
        }
        lg_loader_destroy(loader);
        lg_dataset_destroy(dataset);
    }
}

static void augmentation_of_a_sample_does_not_depend_on_its_place_in_a_batch(void **state)
{
    (void)state;
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    lg_loader_opts opts = make_opts(COUNT);
    opts.crop_pad_pixels = PAD;
    opts.has_flip = true;
    opts.order = LG_ORDER_SEQUENTIAL;
    lg_loader *in_order = make_loader(dataset, &opts);
    opts.order = LG_ORDER_SHUFFLED;
    opts.batch_samples = 5;
    lg_loader *shuffled = make_loader(dataset, &opts);
    const float *all = batch_of(in_order, 1)->tensors[0].data; /* epoch 1 */
    for (int64_t b = 5; b < 10; b++) {
        const lg_batch *batch = batch_of(shuffled, b);
        assert_int_equal(batch->epoch, 1);
        for (int64_t i = 0; i < batch->num_samples; i++) {
            assert_memory_equal((const float *)batch->tensors[0].data + i * SAMPLE_ELEMS,
                                all + batch->sample_ids[i] * SAMPLE_ELEMS,
                                SAMPLE_ELEMS * sizeof(float));
        }
    }
    lg_loader_destroy(in_order);
    lg_loader_destroy(shuffled);
    lg_dataset_destroy(dataset);
}

static void assert_opts_refused(const lg_dataset *dataset, const lg_loader_opts *opts,
                                const char *part)
{
    lg_loader *loader = (lg_loader *)8;
    assert_int_equal(lg_loader_create(&loader, dataset, opts), LG_INVALID_ARG);
    assert_null(loader);
    assert_error_has(part);
}

static void options_out_of_range_are_invalid(void **state)
{
    (void)state;
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    lg_loader_opts opts = make_opts(0);
    assert_opts_refused(dataset, &opts, "samples of a batch are 0");
    opts = make_opts(1);
    opts.num_channels = 2;
    assert_opts_refused(dataset, &opts, "2 channels, expected 3");
    opts.num_channels = CHANNELS;
    assert_opts_refused(dataset, &opts, "mean is NULL");
    const float zeros[CHANNELS] = {1.0f, 0.0f, 1.0f};
    opts.mean = means;
    opts.std = zeros;
    assert_opts_refused(dataset, &opts, "channel 1");
    opts = make_opts(1);
    opts.crop_pad_pixels = -1;
    assert_opts_refused(dataset, &opts, "padding of the random crop is -1");
    opts = make_opts(1);
    opts.prefetch_batches = 65;
    assert_opts_refused(dataset, &opts, "65, expected a number in [0, 64]");
    opts = make_opts(1);
    opts.prefetch_cpu = -2;
    assert_opts_refused(dataset, &opts, "CPU -2");
    opts = make_opts(1);
    opts.order = (lg_loader_order)7;
    assert_opts_refused(dataset, &opts, "order is 7");
    opts = make_opts(1);
    lg_loader *loader = make_loader(dataset, &opts);
    const lg_batch *batch = (const lg_batch *)8;
    assert_int_equal(lg_loader_get(loader, -1, &batch), LG_INVALID_ARG);
    assert_null(batch);
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void flip_of_feature_vectors_is_invalid(void **state)
{
    (void)state;
    const float sample[2] = {0.0f};
    const int32_t label = 0;
    const lg_sample_array array = {.samples = sample,
                                   .sample_shape = LG_SHAPE(2),
                                   .num_samples = 1,
                                   .labels = &label,
                                   .num_classes = 1};
    lg_dataset *dataset = NULL;
    assert_int_equal(lg_dataset_create_labeled(&dataset, &array), LG_OK);
    lg_loader_opts opts = make_opts(1);
    opts.has_flip = true;
    assert_opts_refused(dataset, &opts, "the samples are [2]");
    lg_dataset_destroy(dataset);
}

/*
 * A run that is resumed with a later release must see the same batches. If this fails on purpose, the changelog says so.
 * Without normalisation there is only one division per pixel, exact by IEEE 754 on every machine.
 */
static void batch_bits_are_those_of_the_first_release(void **state)
{
    (void)state;
    lg_dataset *dataset = make_images_of(LG_DTYPE_U8);
    lg_loader_opts opts = make_opts(4);
    opts.crop_pad_pixels = PAD;
    opts.has_flip = true;
    lg_loader *loader = make_loader(dataset, &opts);
    const uint64_t hash = hash_batch(batch_of(loader, 9));
    assert_true(hash == 0x2c0fdbec1c9752f0u);
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_comes_once_per_epoch_in_new_order),
        cmocka_unit_test(shuffled_positions_are_spread_evenly),
        cmocka_unit_test(sequential_order_is_that_of_the_dataset_in_every_epoch),
        cmocka_unit_test(drop_last_leaves_full_batches_only),
        cmocka_unit_test(batch_larger_than_the_dataset_is_the_dataset),
        cmocka_unit_test(batches_asked_for_in_any_order_have_the_same_bits),
        cmocka_unit_test(normalisation_is_per_channel),
        cmocka_unit_test(crop_and_flip_are_cuts_of_the_naive_version_evenly_spread),
        cmocka_unit_test(augmentation_of_a_sample_does_not_depend_on_its_place_in_a_batch),
        cmocka_unit_test(options_out_of_range_are_invalid),
        cmocka_unit_test(flip_of_feature_vectors_is_invalid),
        cmocka_unit_test(batch_bits_are_those_of_the_first_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
