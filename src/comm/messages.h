/*
 * The inner interface of a communicator: messages between ranks, point to point, failures, and what ranks tell each other.
 *
 * Each rank has one communication thread, alive from create to destroy. It alone talks to the transport (MPI libraries make no
 * progress by themselves), runs the driver (the executor's communication lanes), sends and reads signs of life, and passes
 * failures on. Anyone may post messages from any thread.
 *
 * Messages of one (sender, receiver, channel) are matched in the order in which they are posted, and both sides must name the
 * same number of bytes (else INTERNAL naming both, where the transport knows both). Nothing is buffered: a send ends after its
 * receive is posted, not before, because plans use memory again where a message proves that an earlier one has arrived. A rank
 * may send to itself.
 */
#ifndef LGI_COMM_MESSAGES_H
#define LGI_COMM_MESSAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "leapgrad/comm.h"

enum { LGI_CHANNEL_PLAN, LGI_CHANNEL_REDUCE, LGI_CHANNEL_HOST, LGI_CHANNEL_STEP, LGI_NUM_CHANNELS };

typedef enum lgi_message_state {
    LGI_MESSAGE_IDLE,
    LGI_MESSAGE_POSTED,
    LGI_MESSAGE_AWAITED, /* posted, and a thread sleeps until it is done */
    LGI_MESSAGE_DONE
} lgi_message_state;

/* The caller's memory, zeroed at first; untouched by him until done, then free to be posted again. */
typedef struct lgi_message {
    bool is_send;
    int peer;
    int channel;
    void *data; /* a send only reads it */
    int64_t num_bytes;
    _Atomic int state; /* lgi_message_state */
    bool has_failed;   /* done, but nothing is known of the data: the communicator has failed */
    /* The communicator's: */
    lg_comm *comm;
    struct lgi_message *next;
    int num_pieces;  /* under way; they end in any order */
    uint64_t due_ns; /* not before */
    int64_t num_moved_bytes;
} lgi_message;

/* Any thread; never blocks. Once the communicator has failed the message is done at once, or soon. */
void lgi_comm_post(lg_comm *comm, lgi_message *message);
/* Host threads, not the driver; sleeps. COMM or TIMEOUT or what it was, with the failure's message. */
LG_NODISCARD lg_status lgi_comm_wait(lg_comm *comm, lgi_message *message);

static inline bool lgi_message_is_done(const lgi_message *message)
{
    return atomic_load_explicit(&message->state, memory_order_acquire) == LGI_MESSAGE_DONE;
}

/* --- the driver ----------------------------------------------------------------------------------------------------- */

/* What a driver wants. */
typedef enum lgi_drive {
    LGI_DRIVE_IDLE, /* no round until lgi_comm_wake() or until a message of this rank ends */
    LGI_DRIVE_SOON, /* messages under way: rounds at short intervals */
    LGI_DRIVE_NOW /* and the rank's compute lanes stand still until then: shortest intervals, at the price of a core's time */
} lgi_drive;

/*
 * Called by the communication thread in each of its rounds: after a wake, after messages have ended, after a failure. NULL:
 * none. Returns when no round with the driver before is under way. Not from within a driver.
 */
void lgi_comm_set_driver(lg_comm *comm, lgi_drive (*drive)(void *user), void *user);
/* Something changed for the driver. Cheap, from any thread: a system call only if the communication thread sleeps. */
void lgi_comm_wake(lg_comm *comm);

/* --- failures --------------------------------------------------------------------------------------------------------- */

/*
 * The first one wins; all ranks hear of it, as "rank R: `message`" with COMM (TIMEOUT and INTERRUPTED stay what they are).
 * Everything that is under way ends. Any thread.
 */
void lgi_comm_fail(lg_comm *comm, lg_status status, const char *message);
/* One atomic load. */
bool lgi_comm_has_failed(const lg_comm *comm);
/* The failure's status with its message set for the calling thread; OK if there is none. */
lg_status lgi_comm_failure(lg_comm *comm);
/* The rank that failed first, as far as this one knows; -1: none. */
int lgi_comm_failed_rank(lg_comm *comm);

/* --- what ranks are doing ----------------------------------------------------------------------------------------------- */

/*
 * What a rank is doing, for others' reports when it falls silent, and to find ranks that wait for each other in a circle:
 * told with its signs of life.
 */
typedef struct lgi_activity {
    int64_t step;
    int32_t op;             /* -1: none */
    int32_t waits_for_rank; /* nothing else is going on; -1: it waits for none */
    uint64_t num_done;      /* grows with each thing that gets done */
    char text[96];
} lgi_activity;

/* Any thread, cheap. */
void lgi_comm_tell(lg_comm *comm, const lgi_activity *activity);
/* What `rank` told last. *age_s (may be NULL): seconds since its last sign of life. */
lgi_activity lgi_comm_told(lg_comm *comm, int rank, double *age_s);

#endif
