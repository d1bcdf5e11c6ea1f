/* A thread that builds the batches that will be asked for next. */
#ifndef LGI_DATA_PREFETCH_H
#define LGI_DATA_PREFETCH_H

#include "data/batch_builder.h"

typedef struct lgi_prefetch lgi_prefetch;

/*
 * Starts the thread, which waits for the first lgi_prefetch_get(). `cpu`: where it runs; -1: where the caller may.
 * Lifetime: `builder` must outlive it, and belongs to the thread until lgi_prefetch_destroy().
 */
LG_NODISCARD lg_status lgi_prefetch_create(lgi_prefetch **out, lgi_batch_builder *builder,
                                           int num_batches, int cpu);
void lgi_prefetch_destroy(lgi_prefetch *prefetch);

/* As lg_loader_get(). */
LG_NODISCARD lg_status lgi_prefetch_get(lgi_prefetch *prefetch, int64_t batch_idx,
                                        const lg_batch **out);

#endif
