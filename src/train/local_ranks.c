/* Ranks as threads of this process. */
#include "train/local_ranks.h"

#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/check.h"

struct rank {
    lgi_rank_fn work;
    void *user;
    lg_comm *comm;
    pthread_t thread;
    bool is_started;
    lg_status status;
    char message[1024];
};

/* Its communicator goes last: what the others still want from it then fails. */
static void run_rank(struct rank *rank)
{
    rank->status = rank->work(rank->comm, rank->user);
    if (rank->status != LG_OK) {
        (void)snprintf(rank->message, sizeof rank->message, "%s", lg_last_error());
    }
    lg_comm_destroy(rank->comm);
}

static void *rank_main(void *user)
{
    run_rank(user);
    return NULL;
}

static void start_rank(struct rank *rank, int number)
{
    rank->is_started = pthread_create(&rank->thread, NULL, rank_main, rank) == 0;
    if (!rank->is_started) {
        rank->status = LG_OUT_OF_MEMORY;
        (void)snprintf(rank->message, sizeof rank->message, "rank %d: its thread cannot be started",
                       number);
        lg_comm_destroy(rank->comm);
    }
}

static lg_status outcome_of(const struct rank *ranks, int num_ranks)
{
    for (int i = 0; i < num_ranks; i++) {
        if (ranks[i].status != LG_OK) {
            return lgi_fail_copy(ranks[i].status, ranks[i].message);
        }
    }
    return LG_OK;
}

static lg_status run_all(struct rank *ranks, int num_ranks)
{
    for (int i = 1; i < num_ranks; i++) {
        start_rank(&ranks[i], i);
    }
    run_rank(&ranks[0]);
    for (int i = 1; i < num_ranks; i++) {
        if (ranks[i].is_started) {
            (void)pthread_join(ranks[i].thread, NULL);
        }
    }
    return outcome_of(ranks, num_ranks);
}

lg_status lgi_run_local_ranks(int num_ranks, double timeout_s, lgi_rank_fn work, void *user)
{
    struct rank *ranks = NULL;
    lg_comm **comms = NULL;
    lg_status status = LG_OK;
    if (num_ranks < 1 || num_ranks > LG_COMM_MAX_LOCAL_RANKS) {
        LG_FAIL(LG_INVALID_ARG,
                "ranks: one process runs at most %d of them, not %d; more take mpirun",
                LG_COMM_MAX_LOCAL_RANKS, num_ranks);
    }
    LG_TRY_GOTO(lgi_calloc(&ranks, (size_t)num_ranks, sizeof *ranks));
    LG_TRY_GOTO(lgi_calloc(&comms, (size_t)num_ranks, sizeof *comms));
    LG_TRY_GOTO(lg_comm_local_create(comms, num_ranks));
    for (int i = 0; i < num_ranks; i++) {
        lg_comm_set_timeout(comms[i], timeout_s);
        ranks[i] = (struct rank){.work = work, .user = user, .comm = comms[i]};
    }
    status = run_all(ranks, num_ranks);
out:
    lgi_free(ranks);
    lgi_free(comms);
    return status;
}
