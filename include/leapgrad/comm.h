/**
 * Communicators: how the ranks of a run reach each other. A communicator is one rank's end of it; ranks are threads of one
 * process (local) or processes (MPI). Whatever it is, the same plan runs over it and computes the same bits.
 *
 * Thread safety: what takes a communicator may be called from any thread, but only one thread destroys it.
 */
#ifndef LEAPGRAD_COMM_H
#define LEAPGRAD_COMM_H

#include <stdbool.h>

#include "leapgrad/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lg_comm lg_comm;

/** As many ranks as a local communicator may have. */
#define LG_COMM_MAX_LOCAL_RANKS 1024

/**
 * Makes the ends of `num_ranks` ranks of this process, each for a thread of its own.
 *
 * @param[out] comms  comms[0 .. num_ranks). Ownership: the caller's; each is released by itself, with lg_comm_destroy().
 *                    All NULL on failure.
 * @param num_ranks   1 .. LG_COMM_MAX_LOCAL_RANKS.
 * @return OK; INVALID_ARG; OUT_OF_MEMORY, also if a thread cannot be started.
 */
LG_API LG_NODISCARD lg_status lg_comm_local_create(lg_comm **comms, int num_ranks);

/** Whether an MPI launcher (mpirun, mpiexec, srun) started this process as one of several. Touches no MPI. */
LG_API bool lg_comm_is_launched(void);

/**
 * Joins the other processes that the launcher started. Once per process: MPI cannot be started twice.
 *
 * The module for the MPI at hand is found by itself; LEAPGRAD_COMM names another one, by its path, or "openmpi" or "mpich".
 *
 * @return OK; NOT_SUPPORTED: this build or machine has no module for that MPI; COMM: MPI does not start.
 */
LG_API LG_NODISCARD lg_status lg_comm_mpi_create(lg_comm **out);

/**
 * Leaves. Others that still want something from this rank fail. All ranks over MPI leave together, so there this waits for the
 * others, as long as they live. After a failure it returns at once; MPI is then not shut down in order, and the launcher
 * ends the other processes when this one exits.
 */
LG_API void lg_comm_destroy(lg_comm *comm);

LG_API int lg_comm_rank(const lg_comm *comm);
LG_API int lg_comm_num_ranks(const lg_comm *comm);
/** "local", "Open MPI 4.1.4". Lifetime: until lg_comm_destroy(). */
LG_API const char *lg_comm_name(const lg_comm *comm);
/** Position of this rank among the ranks of the same machine that may use the same cores. */
LG_API int lg_comm_host_rank(const lg_comm *comm);
/** How many ranks of the same machine may use the same cores, this one included. */
LG_API int lg_comm_num_host_ranks(const lg_comm *comm);
/**
 * Seconds in which all ranks stop when one gives no more sign of life, or ranks wait for each other and none gets anything done. It
 * is given up after four fifths of them; the rest is for the news to spread. 10 unless set. At least 1.
 */
LG_API void lg_comm_set_timeout(lg_comm *comm, double seconds);
LG_API double lg_comm_timeout(const lg_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
