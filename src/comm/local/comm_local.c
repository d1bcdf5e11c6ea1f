/*
 * Ranks as threads of one process. A message is copied once, from the sender's memory to the receiver's, by the communication
 * thread of the rank that posts second; the other one is woken when it is done.
 *
 * The ends share a hub, which owns them and goes with the last of them. Unmatched messages stand in queues at the receiver,
 * one pair of queues for each (sender, channel), under the receiver's lock. A matched pair belongs to the thread that copies it,
 * which ends both messages, also after a failure; what is unmatched is ended by the rank that posted it. So nobody's memory is
 * touched after he was told that the message is done.
 *
 * Several copies go on in turn, piece by piece: a small message does not wait for a large one.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "comm/transport.h"

#define PIECE_BYTES INT64_C(262144)

/* First in, first out; through lgi_message.next. */
typedef struct message_queue {
    lgi_message *first;
    lgi_message *last;
} message_queue;

/* Of one sender and channel. One of the two is always empty. */
typedef struct meeting_point {
    message_queue sends;
    message_queue receives;
} meeting_point;

typedef struct mailbox {
    pthread_mutex_t mutex;
    bool *has_left;        /* by rank */
    meeting_point *points; /* [sender][channel] */
} mailbox;

/* A pair on its way. */
typedef struct copy {
    lgi_message *send;
    lgi_message *receive;
    int64_t num_copied;
} copy;

typedef struct local_hub local_hub;

typedef struct local_end {
    lg_comm comm; /* first: an end is freed and found by it */
    local_hub *hub;
    mailbox mailbox;
    /* The thread's: */
    copy *copies;
    size_t num_copies;
    size_t copies_capacity;
} local_end;

struct local_hub {
    int num_ranks;
    _Atomic int num_users;
    local_end *ends; /* by rank */
};

static local_end *end_of(const lg_comm *comm)
{
    return comm->state;
}

static void push(message_queue *queue, lgi_message *message)
{
    message->next = NULL;
    if (queue->last != NULL) {
        queue->last->next = message;
    } else {
        queue->first = message;
    }
    queue->last = message;
}

static lgi_message *pop(message_queue *queue)
{
    lgi_message *message = queue->first;
    if (message != NULL) {
        queue->first = message->next;
        if (queue->first == NULL) {
            queue->last = NULL;
        }
    }
    return message;
}

static meeting_point *point_of(local_hub *hub, int receiver, int sender, int channel)
{
    return &hub->ends[receiver].mailbox.points[(int64_t)sender * LGI_NUM_CHANNELS + channel];
}

/* --- messages ------------------------------------------------------------------------------------------------------------ */

static void fail_about(lg_comm *comm, lg_status status, const lgi_message *message,
                       const char *what)
{
    char text[LGI_COMM_FAILURE_BYTES];
    (void)snprintf(text, sizeof text, "a message of %lld bytes %s rank %d (channel %s): %s",
                   (long long)message->num_bytes, message->is_send ? "to" : "from", message->peer,
                   lgi_channel_name(message->channel), what);
    lgi_comm_fail(comm, status, text);
}

/* The other rank must know of the failure before its message ends. */
static void end_pair(local_end *end, lgi_message *send, lgi_message *receive)
{
    lg_comm *comm = &end->comm;
    (void)pthread_mutex_lock(&comm->failure_mutex);
    const lgi_comm_failure_record failure = comm->failure;
    (void)pthread_mutex_unlock(&comm->failure_mutex);
    lg_comm *other = send->comm == comm ? receive->comm : send->comm;
    lgi_comm_note_failure(other, failure.rank, failure.status, failure.message);
    lgi_message_finish(send, true);
    lgi_message_finish(receive, true);
}

static void start_copy(local_end *end, lgi_message *send, lgi_message *receive)
{
    if (send->num_bytes != receive->num_bytes) {
        char text[LGI_COMM_FAILURE_BYTES];
        (void)snprintf(text, sizeof text,
                       "rank %d sends %lld bytes to rank %d, which expects %lld (channel %s)",
                       receive->peer, (long long)send->num_bytes, send->peer,
                       (long long)receive->num_bytes, lgi_channel_name(send->channel));
        lgi_comm_fail(&end->comm, LG_INTERNAL, text);
    } else if (lgi_grow(&end->copies, &end->copies_capacity, end->num_copies + 1,
                        sizeof *end->copies) != LG_OK) {
        lgi_comm_fail(&end->comm, LG_OUT_OF_MEMORY, lg_last_error());
    } else {
        end->copies[end->num_copies++] = (copy){send, receive, 0};
        return;
    }
    end_pair(end, send, receive);
}

static void local_start(lg_comm *comm, lgi_message *message)
{
    local_end *end = end_of(comm);
    const int receiver = message->is_send ? message->peer : comm->rank;
    const int sender = message->is_send ? comm->rank : message->peer;
    mailbox *box = &end->hub->ends[receiver].mailbox;
    (void)pthread_mutex_lock(&box->mutex);
    meeting_point *point = point_of(end->hub, receiver, sender, message->channel);
    lgi_message *other = pop(message->is_send ? &point->receives : &point->sends);
    const bool has_left = other == NULL && box->has_left[message->peer];
    if (other == NULL && !has_left) {
        push(message->is_send ? &point->sends : &point->receives, message);
    }
    (void)pthread_mutex_unlock(&box->mutex);
    if (has_left) {
        fail_about(comm, LG_COMM, message, "that rank has left");
        lgi_message_finish(message, true);
    } else if (other != NULL) {
        start_copy(end, message->is_send ? message : other, message->is_send ? other : message);
    }
}

static int local_progress(lg_comm *comm, bool *has_more)
{
    local_end *end = end_of(comm);
    int num_done = 0;
    size_t num_left = 0;
    for (size_t i = 0; i < end->num_copies; i++) {
        copy now = end->copies[i];
        const int64_t left_bytes = now.send->num_bytes - now.num_copied;
        const int64_t num_bytes = left_bytes < PIECE_BYTES ? left_bytes : PIECE_BYTES;
        if (num_bytes > 0) {
            memcpy((char *)now.receive->data + now.num_copied,
                   (const char *)now.send->data + now.num_copied, (size_t)num_bytes);
        }
        now.num_copied += num_bytes;
        if (now.num_copied == now.send->num_bytes) {
            lgi_message_finish(now.receive, false);
            lgi_message_finish(now.send, false);
            num_done++;
        } else {
            end->copies[num_left++] = now;
        }
    }
    end->num_copies = num_left;
    *has_more = num_left > 0 || num_done > 0; /* what came meanwhile, and the driver, first */
    return num_done;
}

/* Takes this rank's unmatched messages with `peer` out of the queues. */
static int end_unmatched(local_end *end, int peer)
{
    int num_ended = 0;
    const int rank = end->comm.rank;
    for (int way = 0; way < 2; way++) {
        const bool is_send = way == 0;
        const int receiver = is_send ? peer : rank;
        mailbox *box = &end->hub->ends[receiver].mailbox;
        message_queue taken = {NULL, NULL};
        (void)pthread_mutex_lock(&box->mutex);
        for (int channel = 0; channel < LGI_NUM_CHANNELS; channel++) {
            meeting_point *point = point_of(end->hub, receiver, is_send ? rank : peer, channel);
            for (lgi_message *message;
                 (message = pop(is_send ? &point->sends : &point->receives)) != NULL;) {
                push(&taken, message);
            }
        }
        (void)pthread_mutex_unlock(&box->mutex);
        for (lgi_message *message; (message = pop(&taken)) != NULL;) {
            lgi_message_finish(message, true);
            num_ended++;
        }
    }
    return num_ended;
}

static void end_all(local_end *end)
{
    for (size_t i = 0; i < end->num_copies; i++) {
        end_pair(end, end->copies[i].send, end->copies[i].receive);
    }
    end->num_copies = 0;
    for (int peer = 0; peer < end->hub->num_ranks; peer++) {
        (void)end_unmatched(end, peer);
    }
}

/* Also what came from elsewhere: this rank may be gone before the one that failed has told all. */
static void tell_others(local_end *end)
{
    lg_comm *comm = &end->comm;
    (void)pthread_mutex_lock(&comm->failure_mutex);
    const lgi_comm_failure_record failure = comm->failure;
    (void)pthread_mutex_unlock(&comm->failure_mutex);
    for (int rank = 0; rank < end->hub->num_ranks; rank++) {
        lg_comm *other = &end->hub->ends[rank].comm;
        if (other != comm) {
            lgi_comm_note_failure(other, failure.rank, failure.status, failure.message);
            lgi_comm_wake(other);
        }
    }
}

static void local_fail(lg_comm *comm)
{
    local_end *end = end_of(comm);
    tell_others(end);
    end_all(end);
}

/* --- life ------------------------------------------------------------------------------------------------------------------ */

/* Says that this rank has left; a peer that still waits for it fails. */
static void leave_peer(local_end *end, int peer)
{
    local_hub *hub = end->hub;
    const int rank = end->comm.rank;
    lgi_message waiting = {0}; /* a copy: the message itself may end as soon as the lock is free */
    bool has_waiting = false;
    for (int way = 0; way < 2; way++) {
        const int receiver = way == 0 ? rank : peer;
        const int sender = way == 0 ? peer : rank;
        mailbox *box = &hub->ends[receiver].mailbox;
        (void)pthread_mutex_lock(&box->mutex);
        box->has_left[rank] = true;
        for (int channel = 0; channel < LGI_NUM_CHANNELS; channel++) {
            const meeting_point *point = point_of(hub, receiver, sender, channel);
            const lgi_message *first = way == 0 ? point->sends.first : point->receives.first;
            if (first != NULL) {
                waiting.is_send = first->is_send;
                waiting.peer = first->peer;
                waiting.channel = first->channel;
                waiting.num_bytes = first->num_bytes;
                has_waiting = true;
            }
        }
        (void)pthread_mutex_unlock(&box->mutex);
    }
    if (has_waiting && peer != rank) {
        fail_about(&hub->ends[peer].comm, LG_COMM, &waiting, "that rank has left");
    }
}

static bool local_leave(lg_comm *comm)
{
    local_end *end = end_of(comm);
    if (end->num_copies > 0) {
        return false;
    }
    int num_unmatched = 0;
    for (int peer = 0; peer < end->hub->num_ranks; peer++) {
        num_unmatched += end_unmatched(end, peer);
        leave_peer(end, peer);
    }
    if (num_unmatched > 0 && !lgi_comm_has_failed(comm)) {
        char text[64];
        (void)snprintf(text, sizeof text, "left with %d messages under way", num_unmatched);
        lgi_comm_fail(comm, LG_COMM, text);
        tell_others(end);
    }
    return true;
}

/* Others may still be copying messages of this rank. */
static void local_close(lg_comm *comm)
{
    while (atomic_load(&comm->num_open) > 0) {
        (void)sched_yield();
    }
}

static bool local_told(lg_comm *comm, int rank, lgi_comm_sign *out, uint64_t *heard_ns)
{
    *out = lgi_comm_own_sign(&end_of(comm)->hub->ends[rank].comm);
    *heard_ns = lgi_clock_ns();
    return true;
}

static void free_hub(local_hub *hub)
{
    for (int rank = 0; hub->ends != NULL && rank < hub->num_ranks; rank++) {
        local_end *end = &hub->ends[rank];
        if (end->comm.transport != NULL) {
            lgi_comm_deinit(&end->comm);
            (void)pthread_mutex_destroy(&end->mailbox.mutex);
        }
        lgi_free(end->mailbox.has_left);
        lgi_free(end->mailbox.points);
        lgi_free(end->copies);
    }
    lgi_free(hub->ends);
    lgi_free(hub);
}

static void local_free(lg_comm *comm)
{
    local_hub *hub = end_of(comm)->hub;
    if (atomic_fetch_sub(&hub->num_users, 1) == 1) {
        free_hub(hub);
    }
}

static const lgi_transport local_transport = {
    .needs_polling = false,
    .start = local_start,
    .progress = local_progress,
    .fail = local_fail,
    .leave = local_leave,
    .close = local_close,
    .told = local_told,
    .free = local_free,
};

static lg_status init_end(local_hub *hub, int rank)
{
    local_end *end = &hub->ends[rank];
    const size_t num_ranks = (size_t)hub->num_ranks;
    end->hub = hub;
    LG_TRY(lgi_calloc(&end->mailbox.has_left, num_ranks, sizeof *end->mailbox.has_left));
    LG_TRY(lgi_calloc(&end->mailbox.points, num_ranks * LGI_NUM_CHANNELS,
                      sizeof *end->mailbox.points));
    lg_comm *comm = &end->comm;
    lgi_comm_init(comm, &local_transport, end);
    (void)pthread_mutex_init(&end->mailbox.mutex, NULL);
    comm->rank = rank;
    comm->num_ranks = hub->num_ranks;
    comm->host_rank = rank;
    comm->num_host_ranks = hub->num_ranks;
    comm->has_clock_of_rank_0 = true;
    (void)snprintf(comm->name, sizeof comm->name, "local");
    return LG_OK;
}

lg_status lg_comm_local_create(lg_comm **comms, int num_ranks)
{
    for (int rank = 0; rank < num_ranks; rank++) {
        comms[rank] = NULL;
    }
    if (num_ranks < 1 || num_ranks > LG_COMM_MAX_LOCAL_RANKS) {
        LG_FAIL(LG_INVALID_ARG, "a local communicator of %d ranks: must be 1 .. %d", num_ranks,
                LG_COMM_MAX_LOCAL_RANKS);
    }
    lg_status status = LG_OK;
    int num_started = 0;
    local_hub *hub = NULL;
    LG_TRY(lgi_calloc(&hub, 1, sizeof *hub));
    hub->num_ranks = num_ranks;
    LG_TRY_GOTO(lgi_calloc(&hub->ends, (size_t)num_ranks, sizeof *hub->ends));
    for (int rank = 0; rank < num_ranks; rank++) {
        LG_TRY_GOTO(init_end(hub, rank));
    }
    for (; num_started < num_ranks; num_started++) {
        LG_TRY_GOTO(lgi_comm_start(&hub->ends[num_started].comm));
    }
    atomic_store(&hub->num_users, num_ranks);
    for (int rank = 0; rank < num_ranks; rank++) {
        comms[rank] = &hub->ends[rank].comm;
    }
    return LG_OK;
out:
    for (int rank = 0; rank < num_started; rank++) {
        (void)lgi_comm_stop(&hub->ends[rank].comm);
    }
    free_hub(hub);
    return status;
}
