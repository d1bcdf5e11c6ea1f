#include "leapgrad/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[LG_NUM_DTYPES] = {
    [LG_DTYPE_F32] = {"f32", 4}, [LG_DTYPE_BF16] = {"bf16", 2}, [LG_DTYPE_F64] = {"f64", 8},
    [LG_DTYPE_I32] = {"i32", 4}, [LG_DTYPE_U8] = {"u8", 1},
};

size_t lg_dtype_bytes(lg_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *lg_dtype_name(lg_dtype dtype)
{
    return dtypes[dtype].name;
}

int64_t lg_shape_num_elems(const lg_shape *shape)
{
    int64_t num_elems = 1;
    for (int i = 0; i < shape->num_dims; i++) {
        num_elems *= shape->dims[i];
    }
    return num_elems;
}

bool lg_shape_equal(const lg_shape *a, const lg_shape *b)
{
    if (a->num_dims != b->num_dims) {
        return false;
    }
    for (int i = 0; i < a->num_dims; i++) {
        if (a->dims[i] != b->dims[i]) {
            return false;
        }
    }
    return true;
}

const char *lg_shape_format(const lg_shape *shape, char *text, size_t text_bytes)
{
    size_t length = 0;
    if (text_bytes == 0) {
        return text;
    }
    text[0] = '\0';
    for (int i = 0; i <= shape->num_dims && length < text_bytes; i++) {
        const char *separator = i == 0 ? "[" : ",";
        const int written = i < shape->num_dims ? snprintf(text + length, text_bytes - length,
                                                           "%s%" PRId64, separator, shape->dims[i])
                                                : snprintf(text + length, text_bytes - length,
                                                           "%s]", i == 0 ? "[" : "");
        length += written > 0 ? (size_t)written : 0;
    }
    return text;
}

lg_shape lg_shape_make(int num_dims, const int64_t *dims)
{
    lg_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.num_dims = num_dims < LG_MAX_DIMS ? num_dims : LG_MAX_DIMS;
    for (int i = 0; i < shape.num_dims; i++) {
        shape.dims[i] = dims[i];
    }
    return shape;
}
