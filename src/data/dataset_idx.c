/*
 * Images and labels in IDX format (docs/formats/data.md), plain or gzip'd.
 *
 * Nothing in a header is believed: sizes are checked against what the file can hold before anything is allocated, and
 * memory grows only with bytes that are really there.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "data/byte_source.h"
#include "data/data_file.h"
#include "data/dataset.h"

#define IDX_IMAGES_MAGIC 0x00000803u /* unsigned bytes, 3 dimensions */
#define IDX_LABELS_MAGIC 0x00000801u /* unsigned bytes, 1 dimension */
#define IDX_MAX_DIMS 3
#define FIRST_CAPACITY_BYTES ((size_t)1 << 20)

typedef struct idx_array {
    int64_t dims[IDX_MAX_DIMS];
    uint8_t *values;
    size_t num_values;
} idx_array;

lg_idx_opts lg_idx_opts_default(void)
{
    const lg_idx_opts opts = {0};
    return opts;
}

static uint32_t read_big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Reads magic and dimensions and gives the number of values that must follow. */
static lg_status read_header(lgi_byte_source *source, uint32_t magic, const char *what,
                             idx_array *array)
{
    const char *name = source->name;
    const int num_dims = (int)(magic & 0xff);
    const size_t header_bytes = 4 + 4 * (size_t)num_dims;
    uint8_t header[4 + 4 * IDX_MAX_DIMS] = {0};
    size_t num_read = 0;
    LG_TRY(lgi_byte_source_read(source, header, header_bytes, &num_read));
    if (num_read >= 4 && read_big_endian(header) != magic) {
        LG_FAIL(LG_CORRUPT, "'%s': magic number 0x%08x, expected 0x%08x (IDX %s of unsigned bytes)",
                name, (unsigned)read_big_endian(header), (unsigned)magic, what);
    }
    if (num_read < header_bytes) {
        LG_FAIL(LG_CORRUPT, "'%s': ends after %zu bytes, expected an IDX header of %zu bytes", name,
                num_read, header_bytes);
    }
    size_t num_values = 1;
    for (int i = 0; i < num_dims; i++) {
        array->dims[i] = read_big_endian(header + 4 + 4 * i);
        if (array->dims[i] == 0) {
            LG_FAIL(LG_CORRUPT, "'%s': dimension %d of the IDX header is 0, expected 1 or more",
                    name, i);
        }
        if (__builtin_mul_overflow(num_values, (size_t)array->dims[i], &num_values) ||
            num_values > (size_t)INT64_MAX) {
            LG_FAIL(LG_CORRUPT, "'%s': the IDX header promises more than 2^63 bytes", name);
        }
    }
    const size_t max_bytes = lgi_byte_source_max_bytes(source);
    if (max_bytes < header_bytes || num_values > max_bytes - header_bytes) {
        LG_FAIL(LG_CORRUPT,
                "'%s': the IDX header promises %zu bytes of %s, but %zu bytes%s can hold %zu at "
                "most",
                name, num_values, what, source->num_bytes, source->is_gzip ? " of gzip" : "",
                max_bytes > header_bytes ? max_bytes - header_bytes : 0);
    }
    array->num_values = num_values;
    return LG_OK;
}

/* Reads the values, which must fill the rest of the source exactly. */
static lg_status read_values(lgi_byte_source *source, const char *what, idx_array *array)
{
    size_t capacity = 0;
    size_t num_values = 0;
    size_t num_read = 0;
    while (num_values < array->num_values) {
        const size_t wanted = capacity > 0 ? 2 * capacity : FIRST_CAPACITY_BYTES;
        capacity = wanted < array->num_values ? wanted : array->num_values;
        LG_TRY(lgi_realloc(&array->values, capacity, 1));
        LG_TRY(lgi_byte_source_read(source, array->values + num_values, capacity - num_values,
                                    &num_read));
        num_values += num_read;
        if (num_values < capacity) {
            LG_FAIL(LG_CORRUPT, "'%s': ends after %zu bytes of %s, expected %zu", source->name,
                    num_values, what, array->num_values);
        }
    }
    uint8_t extra = 0;
    LG_TRY(lgi_byte_source_read(source, &extra, 1, &num_read));
    if (num_read != 0) {
        LG_FAIL(LG_CORRUPT, "'%s': more bytes follow the %zu bytes of %s that the header promises",
                source->name, array->num_values, what);
    }
    return LG_OK;
}

static lg_status read_array(idx_array *array, const char *name, const void *data, size_t num_bytes,
                            uint32_t magic, const char *what)
{
    lg_status status = LG_OK;
    lgi_byte_source source;
    LG_TRY_GOTO(lgi_byte_source_open(&source, name, data, num_bytes));
    LG_TRY_GOTO(read_header(&source, magic, what, array));
    LG_TRY_GOTO(read_values(&source, what, array));
out:
    lgi_byte_source_close(&source);
    return status;
}

static lg_status check_opts(const lg_idx_opts *opts)
{
    if (opts->num_classes < 0) {
        LG_FAIL(LG_INVALID_ARG, "number of classes is %d, expected 0 (as found) or more",
                opts->num_classes);
    }
    if (opts->height < 0 || opts->width < 0) {
        LG_FAIL(LG_INVALID_ARG, "image size is %lld x %lld, expected 0 (any) or more",
                (long long)opts->height, (long long)opts->width);
    }
    return LG_OK;
}

/* Checks the two arrays against each other and against what was asked for. */
static lg_status check_arrays(const idx_array *images, const idx_array *labels,
                              const char *images_name, const char *labels_name,
                              const lg_idx_opts *opts, int *out_num_classes)
{
    const long long num_images = (long long)images->dims[0];
    const long long height = (long long)images->dims[1];
    const long long width = (long long)images->dims[2];
    if ((opts->height != 0 && opts->height != height) ||
        (opts->width != 0 && opts->width != width)) {
        LG_FAIL(LG_INVALID_ARG, "'%s': images of %lld x %lld, expected %lld x %lld", images_name,
                height, width, (long long)(opts->height != 0 ? opts->height : height),
                (long long)(opts->width != 0 ? opts->width : width));
    }
    if (labels->dims[0] != images->dims[0]) {
        LG_FAIL(LG_INVALID_ARG, "'%s': %lld labels, expected %lld as there are images in '%s'",
                labels_name, (long long)labels->dims[0], num_images, images_name);
    }
    int max_label = 0;
    for (size_t i = 0; i < labels->num_values; i++) {
        if (opts->num_classes != 0 && labels->values[i] >= opts->num_classes) {
            LG_FAIL(LG_INVALID_ARG, "'%s': label %d of sample %zu, expected one in [0, %d)",
                    labels_name, labels->values[i], i, opts->num_classes);
        }
        if (labels->values[i] > max_label) {
            max_label = labels->values[i];
        }
    }
    *out_num_classes = opts->num_classes != 0 ? opts->num_classes : max_label + 1;
    return LG_OK;
}

static lg_status parse(lg_dataset **out, const char *images_name, const void *images_data,
                       size_t images_bytes, const char *labels_name, const void *labels_data,
                       size_t labels_bytes, const lg_idx_opts *opts)
{
    lg_status status = LG_OK;
    idx_array images = {0};
    idx_array labels = {0};
    int32_t *label_ids = NULL;
    int num_classes = 0;
    LG_TRY_GOTO(
        read_array(&labels, labels_name, labels_data, labels_bytes, IDX_LABELS_MAGIC, "labels"));
    LG_TRY_GOTO(
        read_array(&images, images_name, images_data, images_bytes, IDX_IMAGES_MAGIC, "images"));
    LG_TRY_GOTO(check_arrays(&images, &labels, images_name, labels_name, opts, &num_classes));
    LG_TRY_GOTO(lgi_calloc(&label_ids, labels.num_values, sizeof *label_ids));
    for (size_t i = 0; i < labels.num_values; i++) {
        label_ids[i] = labels.values[i];
    }
    const lg_shape shape = LG_SHAPE(1, images.dims[1], images.dims[2]);
    status = lgi_dataset_adopt(out, images_name, LG_DATASET_LABELED, LG_DTYPE_U8, &shape,
                               images.dims[0], num_classes, images.values, label_ids);
    images.values = NULL;
    label_ids = NULL;
out:
    lgi_free(label_ids);
    lgi_free(images.values);
    lgi_free(labels.values);
    return status;
}

lg_status lg_dataset_parse_idx(lg_dataset **out, const void *images, size_t images_bytes,
                               const void *labels, size_t labels_bytes, const lg_idx_opts *opts)
{
    const lg_idx_opts defaults = lg_idx_opts_default();
    *out = NULL;
    if (opts == NULL) {
        opts = &defaults;
    }
    LG_TRY(check_opts(opts));
    return parse(out, "images", images, images_bytes, "labels", labels, labels_bytes, opts);
}

lg_status lg_dataset_open_idx(lg_dataset **out, const char *images_path, const char *labels_path,
                              const lg_idx_opts *opts)
{
    lg_status status = LG_OK;
    const lg_idx_opts defaults = lg_idx_opts_default();
    void *images = NULL;
    void *labels = NULL;
    size_t images_bytes = 0;
    size_t labels_bytes = 0;
    *out = NULL;
    if (opts == NULL) {
        opts = &defaults;
    }
    LG_TRY(check_opts(opts));
    LG_TRY_GOTO(lgi_data_file_read(&labels, &labels_bytes, labels_path));
    LG_TRY_GOTO(lgi_data_file_read(&images, &images_bytes, images_path));
    LG_TRY_GOTO(
        parse(out, images_path, images, images_bytes, labels_path, labels, labels_bytes, opts));
out:
    lgi_free(images);
    lgi_free(labels);
    return status;
}
