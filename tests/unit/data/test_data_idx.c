/* IDX files: whole ones are read, damaged ones are refused with file name and reason. */
#include "unit/data/data_fixture.h"

#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"

enum { COUNT = 7, HEIGHT = 5, WIDTH = 3, CLASSES = 4 };

typedef struct files {
    bytes images;
    bytes labels;
} files;

static files make_files(void)
{
    const files result = {make_images(COUNT, HEIGHT, WIDTH), make_labels(COUNT, CLASSES)};
    return result;
}

static void free_files(files *pair)
{
    free_bytes(&pair->images);
    free_bytes(&pair->labels);
}

static lg_status parse(lg_dataset **out, const files *pair, const lg_idx_opts *opts)
{
    return lg_dataset_parse_idx(out, pair->images.data, pair->images.size, pair->labels.data,
                                pair->labels.size, opts);
}

/* Parses, expects a failure and a message with `part` in it. */
static void assert_refused(const files *pair, const lg_idx_opts *opts, lg_status expected,
                           const char *part)
{
    lg_dataset *dataset = (lg_dataset *)8;
    assert_int_equal(parse(&dataset, pair, opts), expected);
    assert_null(dataset);
    assert_error_has(part);
    assert_null(strchr(lg_last_error(), '\n'));
}

static void assert_is_fixture(const lg_dataset *dataset)
{
    const lg_shape expected = LG_SHAPE(1, HEIGHT, WIDTH);
    const lg_shape shape = lg_dataset_sample_shape(dataset);
    assert_true(lg_shape_equal(&shape, &expected));
    assert_int_equal(lg_dataset_num_samples(dataset), COUNT);
    assert_int_equal(lg_dataset_num_classes(dataset), CLASSES);
    lg_loader_opts opts = lg_loader_opts_default();
    opts.order = LG_ORDER_SEQUENTIAL;
    opts.batch_samples = COUNT;
    lg_loader *loader = make_loader(dataset, &opts);
    const lg_batch *batch = batch_of(loader, 0);
    const float *pixels = batch->tensors[0].data;
    for (int i = 0; i < COUNT * HEIGHT * WIDTH; i++) {
        assert_true(pixels[i] == (float)pseudo_byte(1, (uint64_t)i) / 255.0f);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(lg_dataset_label(dataset, i), i % CLASSES);
        assert_int_equal(((const int32_t *)batch->tensors[1].data)[i], i % CLASSES);
    }
    lg_loader_destroy(loader);
}

static void parse_plain_gives_every_pixel_and_label(void **state)
{
    (void)state;
    files pair = make_files();
    lg_dataset *dataset = NULL;
    const lg_idx_opts opts = {.num_classes = CLASSES, .height = HEIGHT, .width = WIDTH};
    assert_int_equal(parse(&dataset, &pair, &opts), LG_OK);
    assert_is_fixture(dataset);
    lg_dataset_destroy(dataset);
    free_files(&pair);
}

static void parse_gzip_gives_the_same(void **state)
{
    (void)state;
    files plain = make_files();
    files pair = {make_gzip(plain.images), make_gzip(plain.labels)};
    lg_dataset *dataset = NULL;
    assert_int_equal(parse(&dataset, &pair, NULL), LG_OK);
    assert_is_fixture(dataset);
    lg_dataset_destroy(dataset);
    free_files(&pair);
    free_files(&plain);
}

static void parse_gzip_of_several_members_reads_them_all(void **state)
{
    (void)state;
    files pair = make_files();
    const bytes whole = pair.images;
    bytes first = make_gzip((bytes){whole.data, 20});
    bytes second = make_gzip((bytes){whole.data + 20, whole.size - 20});
    pair.images.size = first.size + second.size;
    pair.images.data = malloc(pair.images.size);
    assert_non_null(pair.images.data);
    memcpy(pair.images.data, first.data, first.size);
    memcpy(pair.images.data + first.size, second.data, second.size);
    lg_dataset *dataset = NULL;
    assert_int_equal(parse(&dataset, &pair, NULL), LG_OK);
    assert_is_fixture(dataset);
    lg_dataset_destroy(dataset);
    free(whole.data);
    free_bytes(&first);
    free_bytes(&second);
    free_files(&pair);
}

static void parse_large_gzip_grows_to_all_of_it(void **state)
{
    (void)state;
    enum { MANY = 3000, SIDE = 32 }; /* 3 MB: more than the first piece of memory */
    files plain = {make_images(MANY, SIDE, SIDE), make_labels(MANY, CLASSES)};
    files pair = {make_gzip(plain.images), plain.labels};
    lg_dataset *dataset = NULL;
    lg_dataset *expected = NULL;
    assert_int_equal(parse(&dataset, &pair, NULL), LG_OK);
    assert_int_equal(parse(&expected, &plain, NULL), LG_OK);
    lg_loader_opts opts = lg_loader_opts_default();
    opts.order = LG_ORDER_SEQUENTIAL;
    opts.batch_samples = MANY;
    lg_loader *a = make_loader(dataset, &opts);
    lg_loader *b = make_loader(expected, &opts);
    assert_true(hash_batch(batch_of(a, 0)) == hash_batch(batch_of(b, 0)));
    lg_loader_destroy(a);
    lg_loader_destroy(b);
    lg_dataset_destroy(dataset);
    lg_dataset_destroy(expected);
    free_bytes(&pair.images);
    free_files(&plain);
}

static void every_truncation_of_plain_images_is_corrupt(void **state)
{
    (void)state;
    files pair = make_files();
    const size_t whole = pair.images.size;
    for (size_t size = 0; size < whole; size++) {
        pair.images.size = size;
        assert_refused(&pair, NULL, LG_CORRUPT, "'images'");
    }
    free_files(&pair);
}

static void every_truncation_of_plain_labels_is_corrupt(void **state)
{
    (void)state;
    files pair = make_files();
    const size_t whole = pair.labels.size;
    for (size_t size = 0; size < whole; size++) {
        pair.labels.size = size;
        assert_refused(&pair, NULL, LG_CORRUPT, "'labels'");
    }
    free_files(&pair);
}

static void every_truncation_of_gzip_is_corrupt(void **state)
{
    (void)state;
    files plain = make_files();
    files pair = {make_gzip(plain.images), plain.labels};
    const size_t whole = pair.images.size;
    for (size_t size = 0; size < whole; size++) {
        pair.images.size = size;
        assert_refused(&pair, NULL, LG_CORRUPT, "'images'");
    }
    free_bytes(&pair.images);
    free_files(&plain);
}

static void every_damaged_byte_of_gzip_data_is_corrupt(void **state)
{
    (void)state;
    files plain = make_files();
    files pair = {make_gzip(plain.images), plain.labels};
    for (size_t i = 10; i < pair.images.size; i++) { /* from 4 to 9: time, flags, system */
        pair.images.data[i] ^= 0x55;
        assert_refused(&pair, NULL, LG_CORRUPT, "'images'");
        pair.images.data[i] ^= 0x55;
    }
    free_bytes(&pair.images);
    free_files(&plain);
}

static void wrong_magic_is_corrupt(void **state)
{
    (void)state;
    files pair = make_files();
    put_u32(pair.images.data, 0x801);
    assert_refused(&pair, NULL, LG_CORRUPT, "magic number 0x00000801, expected 0x00000803");
    put_u32(pair.images.data, 0x803);
    put_u32(pair.labels.data, 0x12345678);
    assert_refused(&pair, NULL, LG_CORRUPT, "magic number 0x12345678, expected 0x00000801");
    free_files(&pair);
}

static void swapped_files_are_corrupt(void **state)
{
    (void)state;
    files pair = make_files();
    const files swapped = {pair.labels, pair.images};
    assert_refused(&swapped, NULL, LG_CORRUPT, "'labels': magic number 0x00000803");
    free_files(&pair);
}

static void trailing_bytes_are_corrupt(void **state)
{
    (void)state;
    files pair = make_files();
    put_u32(pair.images.data + 4, COUNT - 1);
    assert_refused(&pair, NULL, LG_CORRUPT, "more bytes follow the 90 bytes of images");
    bytes packed = make_gzip(pair.images);
    const files gzipped = {packed, pair.labels};
    assert_refused(&gzipped, NULL, LG_CORRUPT, "more bytes follow the 90 bytes of images");
    free_bytes(&packed);
    free_files(&pair);
}

static void bytes_after_the_gzip_data_are_corrupt(void **state)
{
    (void)state;
    files plain = make_files();
    files pair = {make_gzip(plain.images), plain.labels};
    pair.images.data = realloc(pair.images.data, pair.images.size + 2);
    assert_non_null(pair.images.data);
    memset(pair.images.data + pair.images.size, 7, 2);
    pair.images.size += 2;
    assert_refused(&pair, NULL, LG_CORRUPT, "2 bytes follow the end of the gzip data");
    free_bytes(&pair.images);
    free_files(&plain);
}

static void zero_dimension_is_corrupt(void **state)
{
    (void)state;
    files pair = make_files();
    put_u32(pair.images.data + 8, 0);
    assert_refused(&pair, NULL, LG_CORRUPT, "dimension 1 of the IDX header is 0");
    free_files(&pair);
}

/* The allocation that would be needed for the promise must not be tried: the next allocation is set to fail. */
static void promise_of_terabytes_is_refused_before_it_is_allocated(void **state)
{
    (void)state;
    files pair = make_files();
    put_u32(pair.labels.data + 4, 0xffffffff);
    lgi_alloc_fail_after(1);
    assert_refused(&pair, NULL, LG_CORRUPT, "promises 4294967295 bytes of labels, but 15 bytes");
    lgi_alloc_fail_after(0);
    put_u32(pair.labels.data + 4, COUNT);
    put_u32(pair.images.data + 4, 0xffffffff);
    assert_refused(&pair, NULL, LG_CORRUPT, "promises 64424509425 bytes of images, but");
    put_u32(pair.images.data + 8, 0xffffffff);
    put_u32(pair.images.data + 12, 0xffffffff);
    assert_refused(&pair, NULL, LG_CORRUPT, "more than 2^63");
    free_files(&pair);
}

static void promise_that_gzip_cannot_hold_is_refused(void **state)
{
    (void)state;
    files plain = make_files();
    put_u32(plain.images.data + 4, 0x7fffffff);
    files pair = {make_gzip(plain.images), plain.labels};
    assert_refused(&pair, NULL, LG_CORRUPT, "bytes of gzip can hold");
    free_bytes(&pair.images);
    free_files(&plain);
}

static void other_number_of_labels_is_invalid(void **state)
{
    (void)state;
    files pair = {make_images(COUNT, HEIGHT, WIDTH), make_labels(COUNT + 1, CLASSES)};
    assert_refused(&pair, NULL, LG_INVALID_ARG, "'labels': 8 labels, expected 7");
    free_files(&pair);
}

static void label_out_of_range_is_invalid(void **state)
{
    (void)state;
    files pair = make_files();
    const lg_idx_opts opts = {.num_classes = CLASSES - 1};
    assert_refused(&pair, &opts, LG_INVALID_ARG, "label 3 of sample 3, expected one in [0, 3)");
    free_files(&pair);
}

static void other_image_size_is_invalid(void **state)
{
    (void)state;
    files pair = make_files();
    const lg_idx_opts opts = {.height = HEIGHT, .width = WIDTH + 1};
    assert_refused(&pair, &opts, LG_INVALID_ARG, "images of 5 x 3, expected 5 x 4");
    free_files(&pair);
}

static void option_out_of_range_is_invalid(void **state)
{
    (void)state;
    files pair = make_files();
    const lg_idx_opts less = {.num_classes = -1};
    assert_refused(&pair, &less, LG_INVALID_ARG, "number of classes is -1");
    const lg_idx_opts negative = {.height = -1};
    assert_refused(&pair, &negative, LG_INVALID_ARG, "image size");
    free_files(&pair);
}

static void more_classes_than_a_byte_has_values_are_fine(void **state)
{
    (void)state;
    files pair = make_files();
    const lg_idx_opts opts = {.num_classes = 1000};
    lg_dataset *dataset = NULL;
    assert_int_equal(parse(&dataset, &pair, &opts), LG_OK);
    assert_int_equal(lg_dataset_num_classes(dataset), 1000);
    lg_dataset_destroy(dataset);
    free_files(&pair);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    files plain = make_files();
    files pair = {make_gzip(plain.images), make_gzip(plain.labels)};
    lg_dataset *dataset = NULL;
    int num_failures = 0;
    for (int64_t n = 1;; n++) {
        lgi_alloc_fail_after(n);
        const lg_status status = parse(&dataset, &pair, NULL);
        lgi_alloc_fail_after(0);
        if (status == LG_OK) {
            break;
        }
        assert_int_equal(status, LG_OUT_OF_MEMORY);
        assert_null(dataset);
        num_failures++;
    }
    assert_true(num_failures >= 6); /* zlib's state and both arrays, labels, dataset */
    assert_is_fixture(dataset);
    lg_dataset_destroy(dataset);
    free_files(&pair);
    free_files(&plain);
}

static void write_file(const char *path, bytes content)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(content.data, 1, content.size, stream), content.size);
    assert_int_equal(fclose(stream), 0);
}

static void open_reads_files_and_names_them_in_errors(void **state)
{
    (void)state;
    char directory[] = "/tmp/lg-data-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char images_path[64];
    char labels_path[64];
    (void)snprintf(images_path, sizeof images_path, "%s/images", directory);
    (void)snprintf(labels_path, sizeof labels_path, "%s/labels.gz", directory);
    files pair = make_files();
    bytes packed = make_gzip(pair.labels);
    write_file(images_path, pair.images);
    write_file(labels_path, packed);
    lg_dataset *dataset = NULL;
    assert_int_equal(lg_dataset_open_idx(&dataset, images_path, labels_path, NULL), LG_OK);
    assert_is_fixture(dataset);
    lg_dataset_destroy(dataset);

    packed.size--;
    write_file(labels_path, packed);
    assert_int_equal(lg_dataset_open_idx(&dataset, images_path, labels_path, NULL), LG_CORRUPT);
    assert_null(dataset);
    assert_error_has(labels_path);
    assert_int_equal(unlink(labels_path), 0);
    assert_int_equal(lg_dataset_open_idx(&dataset, images_path, labels_path, NULL), LG_IO);
    assert_error_has(labels_path);
    assert_int_equal(lg_dataset_open_idx(&dataset, images_path, directory, NULL), LG_INVALID_ARG);
    assert_error_has("not a regular file");
    assert_int_equal(lg_dataset_open_idx(&dataset, images_path, "", NULL), LG_INVALID_ARG);
    assert_int_equal(unlink(images_path), 0);
    assert_int_equal(rmdir(directory), 0);
    free_bytes(&packed);
    free_files(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse_plain_gives_every_pixel_and_label),
        cmocka_unit_test(parse_gzip_gives_the_same),
        cmocka_unit_test(parse_gzip_of_several_members_reads_them_all),
        cmocka_unit_test(parse_large_gzip_grows_to_all_of_it),
        cmocka_unit_test(every_truncation_of_plain_images_is_corrupt),
        cmocka_unit_test(every_truncation_of_plain_labels_is_corrupt),
        cmocka_unit_test(every_truncation_of_gzip_is_corrupt),
        cmocka_unit_test(every_damaged_byte_of_gzip_data_is_corrupt),
        cmocka_unit_test(wrong_magic_is_corrupt),
        cmocka_unit_test(swapped_files_are_corrupt),
        cmocka_unit_test(trailing_bytes_are_corrupt),
        cmocka_unit_test(bytes_after_the_gzip_data_are_corrupt),
        cmocka_unit_test(zero_dimension_is_corrupt),
        cmocka_unit_test(promise_of_terabytes_is_refused_before_it_is_allocated),
        cmocka_unit_test(promise_that_gzip_cannot_hold_is_refused),
        cmocka_unit_test(other_number_of_labels_is_invalid),
        cmocka_unit_test(label_out_of_range_is_invalid),
        cmocka_unit_test(other_image_size_is_invalid),
        cmocka_unit_test(option_out_of_range_is_invalid),
        cmocka_unit_test(more_classes_than_a_byte_has_values_are_fine),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
        cmocka_unit_test(open_reads_files_and_names_them_in_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
