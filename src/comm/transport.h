/*
 * What a transport is to the communicator, and what it may touch of it. A transport moves messages; order of rounds, sleeping,
 * driver, failures and waiting threads are the communicator's (comm_thread.c). All functions run on the communication thread of
 * their rank unless they say otherwise.
 */
#ifndef LGI_COMM_TRANSPORT_H
#define LGI_COMM_TRANSPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/messages.h"

/* An activity with what the communicator adds to it. */
typedef struct lgi_comm_sign {
    lgi_activity activity;
    int32_t host_waits_for_rank; /* a host thread sleeps for a message of that rank; -1: none */
    uint64_t num_host_waits;     /* so far */
} lgi_comm_sign;

typedef struct lgi_transport {
    /* Whether it must be asked again and again; else it calls lgi_comm_wake() when something happens. */
    bool needs_polling;
    /* First thing on the thread: sets rank, num_ranks, name. (optional) */
    lg_status (*open)(lg_comm *comm);
    /* Takes a message that was posted. */
    void (*start)(lg_comm *comm, lgi_message *message);
    /* Moves what can be moved without waiting. *has_more: there is more to do at once. Returns how many things happened. */
    int (*progress)(lg_comm *comm, bool *has_more);
    /* In how long the messages under way are worth a look, UINT64_MAX if there are none. (only if needs_polling) */
    uint64_t (*look_in_ns)(const lg_comm *comm, uint64_t now_ns);
    /* Some times a second: signs of life. `slept_ns`: this process has stood still for so long, as others may have. (optional) */
    void (*tick)(lg_comm *comm, uint64_t now_ns, uint64_t slept_ns);
    /* The communicator has failed: passes it on if the failure is this rank's own, and ends all messages. Once. */
    void (*fail)(lg_comm *comm);
    /* Whether this rank may end; called in every round from lg_comm_destroy() on. */
    bool (*leave)(lg_comm *comm);
    /* Last thing on the thread. (optional) */
    void (*close)(lg_comm *comm);
    /* What `rank` told last, and when it was heard of; any thread. False: never heard of. */
    bool (*told)(lg_comm *comm, int rank, lgi_comm_sign *out, uint64_t *heard_ns);
    /* Any thread, after the end of the communication thread: releases the transport's state. */
    void (*free)(lg_comm *comm);
} lgi_transport;

typedef enum lgi_comm_stage {
    LGI_COMM_OPENING,
    LGI_COMM_RUNNING,
    LGI_COMM_LEAVING, /* lg_comm_destroy() was called */
    LGI_COMM_CLOSING, /* in the transport's close() */
    LGI_COMM_ENDED
} lgi_comm_stage;

#define LGI_COMM_FAILURE_BYTES 640

typedef struct lgi_comm_failure_record {
    lg_status status;
    int rank; /* where it happened */
    char message[LGI_COMM_FAILURE_BYTES];
} lgi_comm_failure_record;

struct lg_comm {
    const lgi_transport *transport;
    void *state; /* the transport's */
    int rank;
    int num_ranks;
    int host_rank;
    int num_host_ranks;
    bool has_clock_of_rank_0; /* the same one */
    char name[96];

    pthread_t thread;
    _Atomic int stage; /* lgi_comm_stage; a futex */
    _Atomic uint64_t closing_since_ns;
    _Atomic int wakes; /* a futex */
    _Atomic bool is_asleep;
    _Atomic(lgi_message *) inbox; /* posted, last one first */
    _Atomic int num_open;         /* posted, not done */
    _Atomic int64_t timeout_ns;
    _Atomic int ranks_per_host;      /* for the next two */
    _Atomic int64_t far_piece_bytes; /* of messages to ranks of other hosts; 0: whole */
    _Atomic int64_t far_bytes_per_s; /* how fast they go; 0: not known */

    pthread_mutex_t driver_mutex; /* held during a round of the driver */
    lgi_drive (*drive)(void *user);
    void *drive_user;

    _Atomic bool has_failed;
    pthread_mutex_t failure_mutex;
    lgi_comm_failure_record failure;

    pthread_mutex_t sign_mutex;
    lgi_comm_sign sign; /* this rank's */

    /* The thread's: circles of ranks that wait for each other. */
    uint64_t circle_since_ns;
    uint64_t circle_progress;
};

/* Fills in what all have in common; `comm` is zeroed memory. */
void lgi_comm_init(lg_comm *comm, const lgi_transport *transport, void *state);
/* Starts the communication thread and waits until it is open. On failure there is no thread. */
LG_NODISCARD lg_status lgi_comm_start(lg_comm *comm);
/*
 * For a transport that is polled, where ranks have cores of their own: the lanes own these, and a woken thread waits for some 1.5 ms
 * until its turn comes. The least of real-time priorities ends that; it is for root and where RLIMIT_RTPRIO allows it, others go on
 * without. Threads that the transport starts do not inherit it.
 */
void lgi_comm_ask_for_priority(lg_comm *comm);
/* Has the thread leave and waits for it. False: it hangs in the transport's close() and must be left alone. */
bool lgi_comm_stop(lg_comm *comm);
/* Releases what lgi_comm_init() made, not `comm` itself. */
void lgi_comm_deinit(lg_comm *comm);

/* The message is done; after it its memory may be gone. Any thread. */
void lgi_message_finish(lgi_message *message, bool has_failed);
/* Notes a failure, if it is the first, without passing it on. Any thread. */
void lgi_comm_note_failure(lg_comm *comm, int rank, lg_status status, const char *message);
/* The status that ranks get to see when another one fails with `status`. */
lg_status lgi_comm_foreign_status(lg_status status);

/* How long silence or a standstill is borne. */
uint64_t lgi_comm_patience_ns(const lg_comm *comm);
lgi_comm_sign lgi_comm_own_sign(lg_comm *comm);
/* "step 12, SEND conv3, waits for rank 0", for messages; "" if nothing is known. */
void lgi_comm_describe(char *text, size_t num_bytes, const lgi_comm_sign *sign);
const char *lgi_channel_name(int channel);

#endif
