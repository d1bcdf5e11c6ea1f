/* Facts of the real Fashion-MNIST (Debian's dataset-fashion-mnist); skipped where it is not installed. */
#include "unit/data/data_fixture.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define FOLDER "/usr/share/datasets/fashion-mnist/"
#define SKIPPED 77

/* Published values, three figures: mean 0.2860, standard deviation 0.3530 of the training pixels. */
#define STATISTICS_TOLERANCE 5e-5

static void assert_counts(const char *images, const char *labels, int64_t num_samples)
{
    lg_dataset *dataset = NULL;
    const lg_idx_opts opts = {.num_classes = 10, .height = 28, .width = 28};
    int64_t counts[10] = {0};
    assert_int_equal(lg_dataset_open_idx(&dataset, images, labels, &opts), LG_OK);
    assert_int_equal(lg_dataset_num_samples(dataset), num_samples);
    for (int64_t i = 0; i < num_samples; i++) {
        counts[lg_dataset_label(dataset, i)]++;
    }
    for (int c = 0; c < 10; c++) {
        assert_int_equal(counts[c], num_samples / 10);
    }
    lg_dataset_destroy(dataset);
}

static void training_part_has_60000_images_6000_of_each_class(void **state)
{
    (void)state;
    assert_counts(FOLDER "train-images-idx3-ubyte.gz", FOLDER "train-labels-idx1-ubyte.gz", 60000);
}

static void test_part_has_10000_images_1000_of_each_class(void **state)
{
    (void)state;
    assert_counts(FOLDER "t10k-images-idx3-ubyte.gz", FOLDER "t10k-labels-idx1-ubyte.gz", 10000);
}

static void statistics_and_first_labels_are_the_published_ones(void **state)
{
    (void)state;
    lg_dataset *dataset = NULL;
    const int32_t first_labels[] = {9, 0, 0, 3, 0, 2, 7, 2, 5, 5};
    float mean = 0.0f;
    float std = 0.0f;
    assert_int_equal(lg_dataset_open_idx(&dataset, FOLDER "train-images-idx3-ubyte.gz",
                                         FOLDER "train-labels-idx1-ubyte.gz", NULL),
                     LG_OK);
    assert_int_equal(lg_dataset_num_channels(dataset), 1);
    assert_int_equal(lg_dataset_mean_std(dataset, &mean, &std), LG_OK);
    assert_true(fabs((double)mean - 0.2860) < STATISTICS_TOLERANCE);
    assert_true(fabs((double)std - 0.3530) < STATISTICS_TOLERANCE);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(lg_dataset_label(dataset, i), first_labels[i]);
    }
    lg_dataset_destroy(dataset);
}

static void images_of_one_part_with_labels_of_the_other_are_invalid(void **state)
{
    (void)state;
    lg_dataset *dataset = NULL;
    assert_int_equal(lg_dataset_open_idx(&dataset, FOLDER "t10k-images-idx3-ubyte.gz",
                                         FOLDER "train-labels-idx1-ubyte.gz", NULL),
                     LG_INVALID_ARG);
    assert_error_has("60000 labels, expected 10000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_part_has_60000_images_6000_of_each_class),
        cmocka_unit_test(test_part_has_10000_images_1000_of_each_class),
        cmocka_unit_test(statistics_and_first_labels_are_the_published_ones),
        cmocka_unit_test(images_of_one_part_with_labels_of_the_other_are_invalid),
    };
    if (access(FOLDER "train-images-idx3-ubyte.gz", R_OK) != 0) {
        puts("skipped: " FOLDER " is not there (Debian package dataset-fashion-mnist)");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
