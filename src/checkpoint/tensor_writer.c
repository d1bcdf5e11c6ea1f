/*
 * Writing tensor files. Tensors are laid out by falling element size (so that each is aligned), equal ones in the order
 * in which they were added; the same calls give the same bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"

#define HEADER_ALIGNMENT 8

struct item {
    char *name;
    lg_file_dtype dtype;
    lg_shape shape;
    int64_t num_bytes;
    const void *data; /* NULL: `fill` is asked */
    lg_tensor_fill_fn fill;
    void *user;
};

struct lg_tensor_writer {
    size_t num_items;
    size_t capacity;
    struct item *items;
    json_t *names; /* object: name -> true */
    json_t *metadata;
};

static lg_status fail_json(void)
{
    LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: cannot make the header of a tensor file");
}

lg_status lg_tensor_writer_create(lg_tensor_writer **out)
{
    lg_tensor_writer *writer = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&writer, 1, sizeof *writer));
    writer->names = json_object();
    writer->metadata = json_object();
    if (writer->names == NULL || writer->metadata == NULL) {
        lg_tensor_writer_destroy(writer);
        return fail_json();
    }
    *out = writer;
    return LG_OK;
}

void lg_tensor_writer_destroy(lg_tensor_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    for (size_t i = 0; i < writer->num_items; i++) {
        lgi_free(writer->items[i].name);
    }
    lgi_free(writer->items);
    json_decref(writer->names);
    json_decref(writer->metadata);
    lgi_free(writer);
}

static lg_status check_name(const lg_tensor_writer *writer, const char *name)
{
    const size_t length = strlen(name);
    if (length == 0 || length > LG_MAX_TENSOR_NAME_BYTES || strcmp(name, "__metadata__") == 0) {
        LG_FAIL(LG_INVALID_ARG,
                "tensor name '%.200s': expected 1 to %d bytes and not '__metadata__'", name,
                LG_MAX_TENSOR_NAME_BYTES);
    }
    if (json_object_get(writer->names, name) != NULL) {
        LG_FAIL(LG_INVALID_ARG, "tensor '%.200s' is added a second time", name);
    }
    if (json_object_set_new(writer->names, name, json_true()) != 0) {
        LG_FAIL(LG_INVALID_ARG, "tensor name '%.200s' is not UTF-8", name);
    }
    return LG_OK;
}

static lg_status add(lg_tensor_writer *writer, const struct item *like, const char *name,
                     const lg_shape *shape)
{
    struct item item = *like;
    item.shape = *shape;
    item.num_bytes = (int64_t)lg_file_dtype_bytes(item.dtype);
    for (int i = 0; i < shape->num_dims; i++) {
        if (shape->dims[i] < 0 ||
            __builtin_mul_overflow(item.num_bytes, shape->dims[i], &item.num_bytes)) {
            char text[128];
            LG_FAIL(LG_INVALID_ARG, "tensor '%.200s': shape %s is out of range", name,
                    lg_shape_format(shape, text, sizeof text));
        }
    }
    LG_TRY(lgi_grow(&writer->items, &writer->capacity, writer->num_items + 1, sizeof item));
    LG_TRY(check_name(writer, name));
    const lg_status status = lgi_strdup(&item.name, name);
    if (status != LG_OK) {
        (void)json_object_del(writer->names, name);
        return status;
    }
    writer->items[writer->num_items++] = item;
    return LG_OK;
}

lg_status lg_tensor_writer_add(lg_tensor_writer *writer, const char *name, lg_file_dtype dtype,
                               const lg_shape *shape, const void *data)
{
    const struct item item = {.dtype = dtype, .data = data};
    if (data == NULL && lg_shape_num_elems(shape) != 0) {
        LG_FAIL(LG_INVALID_ARG, "tensor '%.200s': no data", name);
    }
    return add(writer, &item, name, shape);
}

lg_status lg_tensor_writer_add_filled(lg_tensor_writer *writer, const char *name,
                                      lg_file_dtype dtype, const lg_shape *shape,
                                      lg_tensor_fill_fn fill, void *user)
{
    const struct item item = {.dtype = dtype, .fill = fill, .user = user};
    return add(writer, &item, name, shape);
}

lg_status lg_tensor_writer_add_metadata(lg_tensor_writer *writer, const char *key,
                                        const char *value)
{
    json_t *const text = json_string(value);
    if (text == NULL || json_object_set_new(writer->metadata, key, text) != 0) {
        LG_FAIL(LG_INVALID_ARG, "metadata '%.200s': key or value is not UTF-8", key);
    }
    return LG_OK;
}

/* Stable order by falling element size. Ownership of *out: the caller's. */
static lg_status order_items(const lg_tensor_writer *writer, const struct item ***out)
{
    size_t num = 0;
    LG_TRY(lgi_calloc(out, writer->num_items, sizeof **out));
    for (size_t bytes = 8; bytes > 0; bytes /= 2) {
        for (size_t i = 0; i < writer->num_items; i++) {
            if (lg_file_dtype_bytes(writer->items[i].dtype) == bytes) {
                (*out)[num++] = &writer->items[i];
            }
        }
    }
    return LG_OK;
}

static json_t *describe_item(const struct item *item, int64_t begin, int64_t end)
{
    json_t *const shape = json_array();
    for (int i = 0; i < item->shape.num_dims; i++) {
        if (json_array_append_new(shape, json_integer(item->shape.dims[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", lg_file_dtype_name(item->dtype), "shape",
                     shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The header's JSON, padded with spaces. Ownership of *out_text: the caller's, lgi_free(). */
static lg_status format_header(const lg_tensor_writer *writer, const struct item *const *order,
                               char **out_text, size_t *out_bytes)
{
    lg_status status = LG_OK;
    int64_t offset = 0;
    char *text = NULL;
    json_t *const header = json_object();
    if (json_object_size(writer->metadata) > 0 &&
        json_object_set(header, "__metadata__", writer->metadata) != 0) {
        LG_TRY_GOTO(fail_json());
    }
    for (size_t i = 0; i < writer->num_items; i++) {
        const int64_t begin = offset;
        if (__builtin_add_overflow(offset, order[i]->num_bytes, &offset)) {
            LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG, "the tensors take more than 2^63 bytes"));
        }
        if (json_object_set_new(header, order[i]->name, describe_item(order[i], begin, offset)) !=
            0) {
            LG_TRY_GOTO(fail_json());
        }
    }
    text = json_dumps(header, JSON_COMPACT);
    if (text == NULL) {
        LG_TRY_GOTO(fail_json());
    }
    const size_t length = strlen(text);
    *out_bytes = (length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    if (*out_bytes > (size_t)LGI_MAX_HEADER_BYTES) {
        LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG, "header of %zu bytes, at most %zu allowed", *out_bytes,
                             (size_t)LGI_MAX_HEADER_BYTES));
    }
    LG_TRY_GOTO(lgi_calloc(out_text, *out_bytes, 1));
    memset(*out_text, ' ', *out_bytes);
    memcpy(*out_text, text, length);
out:
    free(text);
    json_decref(header);
    return status;
}

/* A file on its way out: what is written is summed. */
struct output {
    lgi_file_writer file;
    XXH3_state_t *hash;
    int64_t num_bytes;
};

static lg_status emit(struct output *output, const void *data, size_t num_bytes)
{
    if (num_bytes == 0) {
        return LG_OK;
    }
    errno = 0;
    if (fwrite(data, 1, num_bytes, output->file.stream) != num_bytes) {
        LG_FAIL(LG_IO, "cannot write '%s': %s", output->file.path,
                strerror(errno != 0 ? errno : EIO));
    }
    (void)XXH3_64bits_update(output->hash, data, num_bytes);
    output->num_bytes += (int64_t)num_bytes;
    return LG_OK;
}

static lg_status emit_item(struct output *output, const struct item *item, json_t *tensor_sums)
{
    lg_status status = LG_OK;
    void *filled = NULL;
    const void *data = item->data;
    const size_t num_bytes = (size_t)item->num_bytes;
    if (data == NULL && num_bytes > 0) {
        LG_TRY(lgi_calloc(&filled, num_bytes, 1));
        LG_TRY_GOTO(item->fill(item->user, item->name, filled, num_bytes));
        data = filled;
    }
    LG_TRY_GOTO(emit(output, data, num_bytes));
    if (tensor_sums != NULL) {
        char sum[LGI_SUM_CHARS];
        lgi_sum_format(XXH3_64bits(data, num_bytes), sum);
        if (json_object_set_new(tensor_sums, item->name, json_string(sum)) != 0) {
            LG_TRY_GOTO(fail_json());
        }
    }
out:
    lgi_free(filled);
    return status;
}

lg_status lgi_tensor_writer_save(const lg_tensor_writer *writer, const char *path,
                                 lgi_tensor_sums *sums)
{
    lg_status status = LG_OK;
    const struct item **order = NULL;
    char *header = NULL;
    size_t header_bytes = 0;
    json_t *tensor_sums = NULL;
    struct output output = {.hash = XXH3_createState()};
    if (output.hash == NULL) {
        LG_TRY_GOTO(fail_json());
    }
    (void)XXH3_64bits_reset(output.hash);
    LG_TRY_GOTO(order_items(writer, &order));
    LG_TRY_GOTO(format_header(writer, order, &header, &header_bytes));
    if (sums != NULL && (tensor_sums = json_object()) == NULL) {
        LG_TRY_GOTO(fail_json());
    }
    LG_TRY_GOTO(lgi_file_writer_open(&output.file, path));
    const uint64_t length = header_bytes;
    LG_TRY_GOTO(emit(&output, &length, sizeof length));
    LG_TRY_GOTO(emit(&output, header, header_bytes));
    for (size_t i = 0; i < writer->num_items; i++) {
        LG_TRY_GOTO(emit_item(&output, order[i], tensor_sums));
    }
    LG_TRY_GOTO(lgi_file_writer_commit(&output.file));
    if (sums != NULL) {
        sums->file_bytes = output.num_bytes;
        sums->file_sum = XXH3_64bits_digest(output.hash);
        sums->tensor_sums = tensor_sums;
        tensor_sums = NULL;
    }
out:
    lgi_file_writer_abort(&output.file);
    (void)XXH3_freeState(output.hash);
    json_decref(tensor_sums);
    lgi_free(header);
    lgi_free(order);
    return status;
}

lg_status lg_tensor_writer_save(const lg_tensor_writer *writer, const char *path)
{
    return lgi_tensor_writer_save(writer, path, NULL);
}
