/* The memory planner's parts: blocks, and placing them by a sweep. */
#ifndef LGI_PLAN_PLAN_MEMORY_H
#define LGI_PLAN_PLAN_MEMORY_H

#include "plan/plan_order.h"

#define LGI_NUM_LAGS 2
#define LGI_ALIGNMENT ((int64_t)64)

/* What needs memory of its own on one rank. */
typedef struct lgi_block {
    int value; /* the root of its chain, or -1: the workspace of `op` */
    int op;
    int slot; /* 0, 1; or -1: the only one */
    int64_t num_bytes;
    int64_t offset_bytes;
    bool has_lag[LGI_NUM_LAGS];
    bool is_output;          /* stays to the end of its step's iteration */
    int first[LGI_NUM_LAGS]; /* in the total order of an iteration */
    int last[LGI_NUM_LAGS];
    int *
        ends; /* [lag * stride + local lane]: 1 + position of the last entry that accesses it; 0: none */
    int *starts; /* [lag * stride + local lane]: entries of the lane before all of its ops */
} lgi_block;

static inline int64_t lgi_align_up(int64_t bytes)
{
    return (bytes + LGI_ALIGNMENT - 1) / LGI_ALIGNMENT * LGI_ALIGNMENT;
}

/*
 * Places the blocks of one rank above `base_bytes`; fills `offsets` by block and *peak. Time about linear in the blocks.
 */
LG_NODISCARD lg_status lgi_memory_sweep(const lgi_block *blocks, int num_blocks, int stride,
                                        int64_t base_bytes, int64_t *offsets, int64_t *peak);

#endif
