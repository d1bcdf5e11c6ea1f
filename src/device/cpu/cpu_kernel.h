/*
 * For files with kernels of our own: threads, vectors and the functions that vectorise. Include it last: from here on the
 * compiler may use the full width of the machine's vectors, which it would not by itself.
 */
#ifndef LGI_DEVICE_CPU_KERNEL_H
#define LGI_DEVICE_CPU_KERNEL_H

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif

#define LGI_CPU_PRAGMA(text) _Pragma(#text)

/* A loop whose iterations are shared out in equal runs over `width` threads. */
#define LGI_CPU_PARALLEL_FOR(width) \
    LGI_CPU_PRAGMA(omp parallel for num_threads(width) if ((width) > 1) schedule(static))

/*
 * The width worth forking for: a team costs about a microsecond, in which one core does some ten thousand simple operations
 * on numbers in its caches.
 */
static inline int lgi_cpu_useful_width(int width, int64_t num_elems)
{
    return num_elems < 32768 ? 1 : width;
}

/* An innermost loop of independent iterations. */
#define LGI_CPU_SIMD LGI_CPU_PRAGMA(omp simd)

/* Floats that one piece of an elementwise loop has: 16 KiB of each operand. */
#define LGI_CPU_PIECE_ELEMS 4096

static inline float lgi_cpu_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t lgi_cpu_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/*
 * exp(x), relative error below 2e-7; 0 below -88, about 5.5e34 from 80 on; a NaN stays one. Splits off the power of two,
 * then a polynomial on [-ln2/2, ln2/2] (our own weighted least squares fit with 1 and x fixed, 3e-9 before rounding). The
 * rounding to an integer is the addition of 1.5 * 2^23, whose low bits are the integer.
 */
static inline float lgi_cpu_exp(float x)
{
    const float magic = 12582912.0f;
    const float low = x < -100.0f ? -100.0f : x;
    const float bounded = low > 80.0f ? 80.0f : low;
    const float shifted = bounded * 1.44269504088896341f + magic;
    const float n = shifted - magic;
    const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 0.0013814613921567798f;
    p = p * r + 0.008368710055947304f;
    p = p * r + 0.04166838899254799f;
    p = p * r + 0.1666652113199234f;
    p = p * r + 0.4999999403953552f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const int32_t exponent = (int32_t)(lgi_cpu_bits_of_float(shifted) - 0x4B400000u) + 127;
    return p * lgi_cpu_float_of_bits((uint32_t)(exponent > 0 ? exponent : 0) << 23);
}

static inline float lgi_cpu_relu(float x)
{
    return x < 0.0f ? 0.0f : x; /* keeps a NaN */
}

#endif
