/*
 * The safetensors header: text in, checked table out. Everything that a reader relies on later is established here:
 * sizes fit the shapes, ranges lie in the file, cover it without overlap or hole, and names are unique.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "checkpoint/safetensors.h"

#define METADATA_KEY "__metadata__"

static const struct {
    const char *name;
    size_t num_bytes;
} file_dtypes[LG_NUM_FILE_DTYPES] = {
#define ROW(name, text, num_bytes) {text, num_bytes},
    LG_FILE_DTYPE_LIST(ROW)
#undef ROW
};

const char *lg_file_dtype_name(lg_file_dtype dtype)
{
    return file_dtypes[dtype].name;
}

size_t lg_file_dtype_bytes(lg_file_dtype dtype)
{
    return file_dtypes[dtype].num_bytes;
}

static lg_status parse_dtype(lg_tensor_info *tensor, const char *where, const json_t *value)
{
    const char *text = json_string_value(value);
    if (text == NULL) {
        LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s': no dtype", where, tensor->name);
    }
    for (int i = 0; i < LG_NUM_FILE_DTYPES; i++) {
        if (strcmp(text, file_dtypes[i].name) == 0) {
            tensor->dtype = (lg_file_dtype)i;
            return LG_OK;
        }
    }
    LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s': unknown dtype '%.40s'", where, tensor->name, text);
}

/* Shape and the bytes it takes; neither can overflow after this. */
static lg_status parse_shape(lg_tensor_info *tensor, const char *where, const json_t *value)
{
    if (!json_is_array(value) || json_array_size(value) > LG_MAX_DIMS) {
        LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s': shape is not a list of 0 to %d dimensions",
                where, tensor->name, LG_MAX_DIMS);
    }
    memset(&tensor->shape, 0, sizeof tensor->shape);
    tensor->shape.num_dims = (int)json_array_size(value);
    int64_t num_bytes = (int64_t)file_dtypes[tensor->dtype].num_bytes;
    for (int i = 0; i < tensor->shape.num_dims; i++) {
        const json_t *dim = json_array_get(value, (size_t)i);
        tensor->shape.dims[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || tensor->shape.dims[i] < 0 ||
            __builtin_mul_overflow(num_bytes, tensor->shape.dims[i], &num_bytes)) {
            LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s': dimension %d of its shape is out of range",
                    where, tensor->name, i);
        }
    }
    tensor->num_bytes = num_bytes;
    return LG_OK;
}

static lg_status parse_offsets(lg_tensor_info *tensor, const char *where, const json_t *value,
                               int64_t data_bytes)
{
    const json_t *begin = json_array_get(value, 0);
    const json_t *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
        LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s': data_offsets is not a list of two integers",
                where, tensor->name);
    }
    const int64_t first = json_integer_value(begin);
    const int64_t last = json_integer_value(end);
    if (first < 0 || last < first || last > data_bytes) {
        LG_FAIL(LG_CORRUPT,
                "'%s': tensor '%.200s': bytes [%" PRId64 ", %" PRId64 ") lie outside the %" PRId64
                " bytes of data that the file has",
                where, tensor->name, first, last, data_bytes);
    }
    if (last - first != tensor->num_bytes) {
        char shape[128];
        LG_FAIL(LG_CORRUPT,
                "'%s': tensor '%.200s': %s %s takes %" PRId64 " bytes, but its range has %" PRId64,
                where, tensor->name, file_dtypes[tensor->dtype].name,
                lg_shape_format(&tensor->shape, shape, sizeof shape), tensor->num_bytes,
                last - first);
    }
    tensor->offset_bytes = first;
    return LG_OK;
}

static lg_status parse_tensor(lg_tensor_info *tensor, const char *where, const char *name,
                              const json_t *value, int64_t data_bytes)
{
    tensor->name = name;
    if (name[0] == '\0' || strlen(name) > LG_MAX_TENSOR_NAME_BYTES) {
        LG_FAIL(LG_CORRUPT, "'%s': a tensor's name is empty or longer than %d bytes", where,
                LG_MAX_TENSOR_NAME_BYTES);
    }
    if (!json_is_object(value)) {
        LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s': not an object", where, name);
    }
    LG_TRY(parse_dtype(tensor, where, json_object_get(value, "dtype")));
    LG_TRY(parse_shape(tensor, where, json_object_get(value, "shape")));
    return parse_offsets(tensor, where, json_object_get(value, "data_offsets"), data_bytes);
}

static lg_status check_metadata(const char *where, json_t *metadata)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(metadata)) {
        LG_FAIL(LG_CORRUPT, "'%s': " METADATA_KEY " is not an object", where);
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            LG_FAIL(LG_CORRUPT, "'%s': " METADATA_KEY ": '%.200s' is not a string", where, key);
        }
    }
    return LG_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const lg_tensor_info *const x = a;
    const lg_tensor_info *const y = b;
    if (x->offset_bytes != y->offset_bytes) {
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    }
    if (x->num_bytes != y->num_bytes) {
        return x->num_bytes < y->num_bytes ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b, void *tensors)
{
    const lg_tensor_info *const all = tensors;
    return strcmp(all[*(const int *)a].name, all[*(const int *)b].name);
}

/* The ranges, sorted, must tile the data. */
static lg_status check_ranges(const lgi_tensor_header *header, const char *where,
                              int64_t data_bytes)
{
    int64_t end = 0;
    for (int i = 0; i < header->num_tensors; i++) {
        const lg_tensor_info *const tensor = &header->tensors[i];
        if (tensor->offset_bytes != end) {
            LG_FAIL(LG_CORRUPT,
                    "'%s': tensor '%.200s' begins at byte %" PRId64 ", but what is before it %s "
                    "at %" PRId64,
                    where, tensor->name, tensor->offset_bytes,
                    tensor->offset_bytes < end ? "overlaps it, ending" : "leaves a hole, ending",
                    end);
        }
        end += tensor->num_bytes;
    }
    if (end != data_bytes) {
        LG_FAIL(LG_CORRUPT, "'%s': %" PRId64 " bytes of data, expected %" PRId64, where, data_bytes,
                end);
    }
    return LG_OK;
}

lg_status lgi_tensor_header_parse(lgi_tensor_header *out, const char *where, const char *text,
                                  size_t text_bytes, int64_t data_bytes)
{
    lg_status status = LG_OK;
    json_error_t error;
    const char *name = NULL;
    json_t *value = NULL;
    lgi_tensor_header header = {0};
    memset(out, 0, sizeof *out);
    if (text_bytes == 0 || text[0] != '{') {
        LG_FAIL(LG_CORRUPT, "'%s': header does not begin with '{'", where);
    }
    header.json = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (header.json == NULL) {
        LG_FAIL(LG_CORRUPT, "'%s': header is not JSON at byte %d: %s", where, error.position,
                error.text);
    }
    const size_t num_members = json_object_size(header.json);
    LG_TRY_GOTO(lgi_calloc(&header.tensors, num_members, sizeof *header.tensors));
    LG_TRY_GOTO(lgi_calloc(&header.by_name, num_members, sizeof *header.by_name));
    json_object_foreach(header.json, name, value)
    {
        if (strcmp(name, METADATA_KEY) == 0) {
            LG_TRY_GOTO(check_metadata(where, value));
            continue;
        }
        LG_TRY_GOTO(
            parse_tensor(&header.tensors[header.num_tensors], where, name, value, data_bytes));
        header.num_tensors++;
    }
    const size_t num_tensors = (size_t)header.num_tensors;
    qsort(header.tensors, num_tensors, sizeof *header.tensors, compare_offsets);
    LG_TRY_GOTO(check_ranges(&header, where, data_bytes));
    for (int i = 0; i < header.num_tensors; i++) {
        header.by_name[i] = i;
    }
    qsort_r(header.by_name, num_tensors, sizeof *header.by_name, compare_names, header.tensors);
    *out = header;
    memset(&header, 0, sizeof header);
out:
    lgi_tensor_header_deinit(&header);
    return status;
}

void lgi_tensor_header_deinit(lgi_tensor_header *header)
{
    json_decref(header->json);
    lgi_free(header->tensors);
    lgi_free(header->by_name);
    memset(header, 0, sizeof *header);
}

int lgi_tensor_header_find(const lgi_tensor_header *header, const char *name)
{
    int low = 0;
    int high = header->num_tensors - 1;
    while (low <= high) {
        const int middle = low + (high - low) / 2;
        const int order = strcmp(name, header->tensors[header->by_name[middle]].name);
        if (order == 0) {
            return header->by_name[middle];
        }
        if (order < 0) {
            high = middle - 1;
        } else {
            low = middle + 1;
        }
    }
    return -1;
}
