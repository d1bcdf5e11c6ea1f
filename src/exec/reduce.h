/*
 * One ALL_REDUCE at a time, on the communication thread: sends the parts of the others' segments, gets the others' parts of its
 * own, adds them in the order of replicas with the device's grad_add, sends the sum back (graph/reduce_parts.h says what is
 * where). Statistics are added as f64, in the same order. It never blocks: lgi_reduce_advance() goes on as far as messages allow.
 *
 * What the graph's op promises holds: no rank gets through before all have started, since each waits for a sum of all.
 */
#ifndef LGI_EXEC_REDUCE_H
#define LGI_EXEC_REDUCE_H

#include "comm/messages.h"
#include "device/device.h"
#include "graph/reduce_parts.h"

typedef struct lgi_reduce lgi_reduce;

/* What is to be reduced. Pointers: until it is done. */
typedef struct lgi_reduce_job {
    lgi_reduce_chunk chunk;
    int own;        /* replica */
    int first_rank; /* of replica 0; replica d's is rank_stride * d further */
    int rank_stride;
    char *tensors[LGI_MAX_REDUCE_TENSORS];
    int num_stats; /* layers with statistics that travel along */
    double *stats[LGI_MAX_REDUCE_TENSORS];
    int64_t stat_bytes[LGI_MAX_REDUCE_TENSORS];
    char *staging; /* lgi_reduce_staging() bytes, aligned to 64 */
} lgi_reduce_job;

typedef enum lgi_progress {
    LGI_PROGRESS_WAITS, /* for messages */
    LGI_PROGRESS_MORE,  /* to be called again soon */
    LGI_PROGRESS_DONE
} lgi_progress;

LG_NODISCARD lg_status lgi_reduce_create(lgi_reduce **out, lg_comm *comm, lgi_device *device,
                                         int num_replicas);
void lgi_reduce_destroy(lgi_reduce *reduce);
void lgi_reduce_start(lgi_reduce *self, const lgi_reduce_job *job);
lgi_progress lgi_reduce_advance(lgi_reduce *self);
/* A rank that it waits for; -1: none. */
int lgi_reduce_waits_for(const lgi_reduce *self);

#endif
