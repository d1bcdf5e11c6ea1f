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
 * exp(x), relative error below 2e-7; 0 below -87.3, about 2.4e38 above 88.3. Splits off the power of two, then the
 * Taylor series on [-ln2/2, ln2/2]. The round-to-integer is the addition of 1.5 * 2^23, whose low bits are the integer.
 */
static inline float lgi_cpu_exp(float x)
{
    const float magic = 12582912.0f;
    const float low = x < -87.3f ? -87.3f : x;
    const float bounded = low > 88.3f ? 88.3f : low;
    const float shifted = bounded * 1.44269504088896341f + magic;
    const float n = shifted - magic;
    const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const uint32_t exponent = (lgi_cpu_bits_of_float(shifted) - 0x4B400000u + 127u) << 23;
    const float result = p * lgi_cpu_float_of_bits(exponent);
    return x < -87.3f ? 0.0f : result;
}

static inline float lgi_cpu_relu(float x)
{
    return x < 0.0f ? 0.0f : x; /* keeps a NaN */
}

#endif
