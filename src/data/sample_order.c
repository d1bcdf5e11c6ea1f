/*
 * Fisher-Yates with one counter-based number per exchange: every permutation is equally likely, which a Feistel network
 * does not promise for a few samples; it costs some 50 ns per sample and epoch.
 */
#include "data/sample_order.h"

#include "base/random.h"

void lgi_sample_order_fill(int64_t *order, int64_t num_samples, uint64_t seed, uint64_t epoch)
{
    const lgi_random random = lgi_random_stream(seed, LGI_RANDOM_SHUFFLE, epoch, 0, 0);
    for (int64_t i = 0; i < num_samples; i++) {
        order[i] = i;
    }
    for (int64_t i = num_samples - 1; i > 0; i--) {
        const int64_t k = (int64_t)lgi_random_below(&random, (uint64_t)i, (uint64_t)i + 1);
        const int64_t swapped = order[i];
        order[i] = order[k];
        order[k] = swapped;
    }
}
