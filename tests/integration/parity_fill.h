/*
 * Parameters and inputs of the PyTorch fixtures: the same whole numbers and doubles as tools/make_fixtures.py computes,
 * where the formulas are written down.
 */
#ifndef LGI_TESTS_PARITY_FILL_H
#define LGI_TESTS_PARITY_FILL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "leapgrad/tensor.h"

static inline uint64_t parity_hash(const char *name, int64_t i)
{
    uint64_t key = UINT64_C(0xCBF29CE484222325);
    for (const char *c = name; *c != '\0'; c++) {
        key = (key ^ (unsigned char)*c) * UINT64_C(0x100000001B3);
    }
    uint64_t z = key + ((uint64_t)i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* In [-1, 1), a multiple of 2^-23. */
static inline double parity_unit(const char *name, int64_t i)
{
    return (double)(parity_hash(name, i) >> 40) / 8388608.0 - 1.0;
}

static inline int64_t parity_below(const char *name, int64_t i, int64_t bound)
{
    return (int64_t)((parity_hash(name, i) >> 32) % (uint64_t)bound);
}

/* The first value of the parameter called `name`. */
static inline void parity_fill_parameter(float *dst, const char *name, const lg_shape *shape)
{
    const int64_t num_elems = lg_shape_num_elems(shape);
    const size_t num_chars = strlen(name);
    const bool is_bias = num_chars >= 5 && strcmp(name + num_chars - 5, ".bias") == 0;
    double scale = is_bias ? 0.125 : 0.25;
    double offset = is_bias ? 0.0 : 1.0;
    if (shape->num_dims >= 2) {
        const int64_t fan_in = num_elems / shape->dims[0];
        int k = 0;
        while ((INT64_C(1) << (2 * k)) < fan_in) {
            k++;
        }
        scale = ldexp(1.0, -k);
        offset = 0.0;
    }
    for (int64_t i = 0; i < num_elems; i++) {
        dst[i] = (float)(offset + scale * parity_unit(name, i));
    }
}

#endif
