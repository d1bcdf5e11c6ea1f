#include "base/random.h"

#include <math.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10

static void philox(const uint32_t key_in[2], const uint32_t counter_in[4], uint32_t out[4])
{
    uint32_t key[2] = {key_in[0], key_in[1]};
    uint32_t c[4] = {counter_in[0], counter_in[1], counter_in[2], counter_in[3]};
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)PHILOX_M0 * c[0];
        const uint64_t p1 = (uint64_t)PHILOX_M1 * c[2];
        const uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ key[0], (uint32_t)p1,
                                  (uint32_t)(p0 >> 32) ^ c[3] ^ key[1], (uint32_t)p0};
        for (int i = 0; i < 4; i++) {
            c[i] = next[i];
        }
        key[0] += PHILOX_W0;
        key[1] += PHILOX_W1;
    }
    for (int i = 0; i < 4; i++) {
        out[i] = c[i];
    }
}

/* The tuple is folded into key and stream by two passes of the generator itself. */
lgi_random lgi_random_stream(uint64_t seed, lgi_random_use use, uint64_t a, uint64_t b, uint64_t c)
{
    const uint32_t seed_key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t first[4] = {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)use, 0};
    uint32_t folded[4];
    philox(seed_key, first, folded);
    const uint32_t second_key[2] = {folded[0], folded[1]};
    const uint32_t second[4] = {(uint32_t)b ^ folded[2], (uint32_t)(b >> 32) ^ folded[3],
                                (uint32_t)c, (uint32_t)(c >> 32)};
    uint32_t mixed[4];
    philox(second_key, second, mixed);
    const lgi_random random = {{mixed[0], mixed[1]}, {mixed[2], mixed[3]}};
    return random;
}

void lgi_random_block(const lgi_random *random, uint64_t block_idx, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)block_idx, (uint32_t)(block_idx >> 32),
                                 random->stream[0], random->stream[1]};
    philox(random->key, counter, out);
}

uint32_t lgi_random_u32(const lgi_random *random, uint64_t idx)
{
    uint32_t block[4];
    lgi_random_block(random, idx / 4, block);
    return block[idx % 4];
}

float lgi_random_uniform(const lgi_random *random, uint64_t idx)
{
    return (float)(lgi_random_u32(random, idx) >> 8) * 0x1p-24f;
}

float lgi_random_normal(const lgi_random *random, uint64_t idx)
{
    uint32_t block[4];
    lgi_random_block(random, idx / 2, block);
    const int pair = (int)(idx % 2) * 2;
    const double u = ((double)block[pair] + 1.0) * 0x1p-32; /* (0, 1] */
    const double v = (double)block[pair + 1] * 0x1p-32;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v));
}

uint64_t lgi_random_below(const lgi_random *random, uint64_t idx, uint64_t bound)
{
    uint32_t block[4];
    lgi_random_block(random, idx / 2, block);
    const int pair = (int)(idx % 2) * 2;
    const uint64_t bits = ((uint64_t)block[pair] << 32) | block[pair + 1];
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)bits * bound) >> 64);
}
