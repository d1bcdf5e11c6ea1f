/* Ranks as threads of this process. */
#ifndef LGI_TRAIN_LOCAL_RANKS_H
#define LGI_TRAIN_LOCAL_RANKS_H

#include "leapgrad/comm.h"

/* One rank's work, with its end of the communicator, which it does not destroy. */
typedef lg_status (*lgi_rank_fn)(lg_comm *comm, void *user);

/*
 * Runs `work` on `num_ranks` ranks: rank 0 on the caller's thread, the others on threads of their own. Returns when all have ended:
 * rank 0's outcome, or, if that is fine, the first one's that is not.
 */
LG_NODISCARD lg_status lgi_run_local_ranks(int num_ranks, double timeout_s, lgi_rank_fn work,
                                           void *user);

#endif
