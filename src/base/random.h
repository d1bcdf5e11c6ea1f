/*
 * Counter-based random numbers: a value is a function of (key, counter) and of nothing else, so it does not matter
 * which thread asks first or how many numbers were drawn before.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11), Philox4x32-10.
 */
#ifndef LGI_BASE_RANDOM_H
#define LGI_BASE_RANDOM_H

#include <stdint.h>

/* What a stream of numbers is for; part of the key, so that two purposes never share numbers. */
typedef enum lgi_random_use {
    LGI_RANDOM_INIT = 1,    /* a: parameter id, b: 0 */
    LGI_RANDOM_DROPOUT = 2, /* a: layer id, b: step, c: sample index within the step */
    LGI_RANDOM_SHUFFLE = 3, /* a: epoch */
    LGI_RANDOM_AUGMENT = 4, /* a: epoch, b: sample id */
    LGI_RANDOM_SAMPLE = 5,  /* a: position of the generated token */
    LGI_RANDOM_CROP = 6,    /* a: step: text windows */
    LGI_RANDOM_MASK = 7     /* a: step, b: sample: masked tokens */
} lgi_random_use;

/* A stream of random numbers; init once, then draw by index. A plain value: copy it freely. */
typedef struct lgi_random {
    uint32_t key[2];
    uint32_t stream[2];
} lgi_random;

/* The stream for (seed, use, a, b, c). */
lgi_random lgi_random_stream(uint64_t seed, lgi_random_use use, uint64_t a, uint64_t b, uint64_t c);

/* Four independent 32-bit numbers, block number `block_idx` of the stream. */
void lgi_random_block(const lgi_random *random, uint64_t block_idx, uint32_t out[4]);

/* Number `idx` of the stream: 32 random bits. */
uint32_t lgi_random_u32(const lgi_random *random, uint64_t idx);

/* Number `idx`, uniform in [0, 1), 24 bits. */
float lgi_random_uniform(const lgi_random *random, uint64_t idx);

/* Number `idx`, standard normal (Box-Muller). */
float lgi_random_normal(const lgi_random *random, uint64_t idx);

/* Number `idx`, uniform in [0, bound); bound > 0. The bias is below 2^-32. */
uint64_t lgi_random_below(const lgi_random *random, uint64_t idx, uint64_t bound);

#endif
