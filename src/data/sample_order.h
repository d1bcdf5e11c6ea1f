/* In which order the samples of an epoch come. */
#ifndef LGI_DATA_SAMPLE_ORDER_H
#define LGI_DATA_SAMPLE_ORDER_H

#include <stdint.h>

/* The epoch number whose order decides about splits: no run gets there. */
#define LGI_SPLIT_EPOCH UINT64_MAX

/* Fills `order` with a random permutation of 0..num_samples-1, a function of (num_samples, seed, epoch). */
void lgi_sample_order_fill(int64_t *order, int64_t num_samples, uint64_t seed, uint64_t epoch);

#endif
