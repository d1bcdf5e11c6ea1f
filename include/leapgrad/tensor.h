/** Element types and shapes. */
#ifndef LEAPGRAD_TENSOR_H
#define LEAPGRAD_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "leapgrad/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LG_MAX_DIMS 6

typedef enum lg_dtype {
    LG_DTYPE_F32,
    LG_DTYPE_BF16,
    LG_DTYPE_F64,
    LG_DTYPE_I32,
    LG_DTYPE_U8,
    LG_NUM_DTYPES
} lg_dtype;

/** Bytes of one element. */
LG_API size_t lg_dtype_bytes(lg_dtype dtype);

/** "f32", "bf16", "f64", "i32", "u8". */
LG_API const char *lg_dtype_name(lg_dtype dtype);

/**
 * Dimensions, outermost first; row-major when it describes memory. `num_dims` 0 is a scalar.
 * A plain value: copy it freely.
 */
typedef struct lg_shape {
    int num_dims;
    int64_t dims[LG_MAX_DIMS];
} lg_shape;

/** Product of the dimensions; 1 for a scalar. */
LG_API int64_t lg_shape_num_elems(const lg_shape *shape);

LG_API bool lg_shape_equal(const lg_shape *a, const lg_shape *b);

/** Writes "[64,3,3]" into `text`, cut to `text_bytes`; returns `text`. */
LG_API const char *lg_shape_format(const lg_shape *shape, char *text, size_t text_bytes);

/** lg_shape of its arguments: LG_SHAPE(3, 32, 32). */
#define LG_SHAPE(...) \
    lg_shape_make((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                  (const int64_t[]){__VA_ARGS__})

/** The shape with these dimensions; those past LG_MAX_DIMS are dropped. */
LG_API lg_shape lg_shape_make(int num_dims, const int64_t *dims);

#ifdef __cplusplus
}
#endif

#endif
