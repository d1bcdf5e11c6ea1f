/*
 * Ranks as processes, over MPI. Only the communication thread calls MPI, from the first call to the last one.
 *
 * Messages travel in the data world, their channel is the tag, so MPI matches them in the order in which they are posted. What a
 * single MPI message cannot hold is cut in pieces.
 *
 * Signs of life travel in the control world: every half second to the ranks that this one has exchanged messages with, to those
 * that send it signs, and to rank 0, which has all ranks' signs and sends to all. A rank that falls silent for the timeout is
 * given up. So is, soon, one that has left while a message with it is under way.
 *
 * A failure is sent to all ranks by the one where it happened. After that MPI is not called any more: what was being received
 * would otherwise be written into memory that its owner has got back. Nor is MPI shut down: MPI_Finalize would wait for the dead.
 * The launcher sees that this process ends without it and ends the others.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "comm/collectives.h"
#include "comm/mpi/comm_mpi.h"
#include "comm/mpi/mpi_launch.h"
#include "comm/transport.h"

#define SIGN_NS UINT64_C(450000000) /* ticks come each 250 ms: every other one */
/* A rank that has left: its last messages may still be on their way. */
#define LEFT_GRACE_NS UINT64_C(1000000000)
/* How long a failure is given to reach the others. */
#define FAREWELL_NS UINT64_C(300000000)
/* Launchers end all processes as soon as one has ended: this long after a failure none does, so that each can say why. */
#define LAST_WORDS_NS UINT64_C(1000000000)
/* A look at MPI that takes longer than this has moved data, so there may be more: it is asked again at once, this often. */
#define MOVED_NS UINT64_C(1500)
#define MAX_MOVES 64
#define CONTROL_TAG 0
/* A message that is late by some time is looked at again after this part of it. */
#define LATE_PART 8

/* An MPI message has less than 2^31 bytes. */
static int64_t max_piece_bytes = INT64_C(1) << 30;

typedef enum control_kind { CONTROL_SIGN = 1, CONTROL_FAILURE } control_kind;

typedef struct control_message {
    int32_t kind; /* control_kind */
    int32_t rank; /* the sender */
    int32_t has_left;
    int32_t status; /* FAILURE */
    lgi_comm_sign sign;
    char text[LGI_COMM_FAILURE_BYTES]; /* FAILURE */
} control_message;

typedef struct peer_state {
    _Atomic int process; /* its id, if it is one of this machine that can be looked at; 0: not */
    bool is_known;       /* gets signs, and is expected to send some */
    bool is_sending;
    control_message out;
    uint64_t sent_ns;
    uint64_t left_ns; /* 0: has not left */
    /* Under the mutex: */
    bool was_heard;
    uint64_t heard_ns;
    lgi_comm_sign sign;
} peer_state;

typedef struct mpi_state {
    const lgi_mpi_module *mpi;
    peer_state *peers; /* by rank */
    control_message in;
    pthread_mutex_t mutex;
    lgi_message **active; /* in the order of their start */
    size_t num_active;
    size_t active_capacity;
    uint64_t wire_free_ns[2]; /* between hosts, in and out: when what was posted has gone */
    unsigned num_moves;       /* in a row */
    bool is_leaving;          /* said so, and is in the last barrier */
    bool has_passed_barrier;
    bool is_silent; /* no more calls of MPI */
    uint64_t failed_ns;
} mpi_state;

static mpi_state *state_of(const lg_comm *comm)
{
    return comm->state;
}

static void pause_ms(int ms)
{
    const struct timespec time = {0, (long)ms * 1000000};
    (void)nanosleep(&time, NULL);
}

static void fail_mpi(lg_comm *comm, const char *what, int error)
{
    char reason[256] = "";
    state_of(comm)->mpi->error_text(error, reason, sizeof reason);
    char text[LGI_COMM_FAILURE_BYTES];
    (void)snprintf(text, sizeof text, "MPI cannot %s: %s", what, reason);
    lgi_comm_fail(comm, LG_COMM, text);
}

/* --- signs of life ------------------------------------------------------------------------------------------------------- */

static void know_peer(lg_comm *comm, int rank)
{
    mpi_state *state = state_of(comm);
    peer_state *peer = &state->peers[rank];
    if (!peer->is_known && rank != comm->rank) {
        peer->is_known = true;
        (void)pthread_mutex_lock(&state->mutex);
        peer->heard_ns = lgi_clock_ns();
        (void)pthread_mutex_unlock(&state->mutex);
    }
}

static bool send_control(lg_comm *comm, int rank)
{
    mpi_state *state = state_of(comm);
    peer_state *peer = &state->peers[rank];
    const int error = state->mpi->start(LGI_MPI_CONTROL, true, rank, CONTROL_TAG, &peer->out,
                                        sizeof peer->out, peer);
    peer->is_sending = error == 0;
    return error == 0;
}

static void send_sign(lg_comm *comm, int rank, uint64_t now_ns)
{
    mpi_state *state = state_of(comm);
    peer_state *peer = &state->peers[rank];
    if (peer->is_sending) {
        return; /* the one before is stuck: the peer takes nothing */
    }
    peer->out = (control_message){.kind = CONTROL_SIGN,
                                  .rank = comm->rank,
                                  .has_left = state->is_leaving,
                                  .sign = lgi_comm_own_sign(comm)};
    peer->sent_ns = now_ns;
    (void)send_control(comm, rank);
}

static void take_control(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    const control_message *in = &state->in;
    if (in->rank < 0 || in->rank >= comm->num_ranks) {
        return;
    }
    peer_state *peer = &state->peers[in->rank];
    know_peer(comm, in->rank);
    const uint64_t now_ns = lgi_clock_ns();
    if (in->kind == CONTROL_FAILURE) {
        state->in.text[sizeof in->text - 1] = '\0';
        lgi_comm_note_failure(comm, in->rank, (lg_status)in->status, in->text);
        return;
    }
    (void)pthread_mutex_lock(&state->mutex);
    peer->heard_ns = now_ns;
    peer->was_heard = true;
    peer->sign = in->sign;
    (void)pthread_mutex_unlock(&state->mutex);
    if (in->has_left && peer->left_ns == 0) {
        peer->left_ns = now_ns;
    }
}

static bool await_control(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    const int error = state->mpi->start(LGI_MPI_CONTROL, false, -1, CONTROL_TAG, &state->in,
                                        sizeof state->in, &state->in);
    if (error != 0) {
        fail_mpi(comm, "receive signs of life", error);
    }
    return error == 0;
}

static void give_up_on(lg_comm *comm, int rank, const lgi_comm_sign *sign, bool was_heard,
                       uint64_t silent_ns)
{
    char last[256] = "";
    if (was_heard) {
        lgi_comm_describe(last, sizeof last, sign);
    }
    char text[LGI_COMM_FAILURE_BYTES];
    (void)snprintf(text, sizeof text, "rank %d has given no sign of life for %.1f s%s%s%s", rank,
                   (double)silent_ns * 1e-9, last[0] ? " (last heard: " : "", last,
                   last[0] ? ")" : "");
    lgi_comm_fail(comm, LG_TIMEOUT, text);
}

/* Whether a process has ended, also if nobody has asked yet how. */
static bool has_ended(int process)
{
    char path[64];
    char state = '?';
    if (kill(process, 0) != 0) {
        return errno == ESRCH;
    }
    (void)snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) {
            state = '?';
        }
        (void)fclose(file);
    }
    return state == 'Z';
}

/* Of a process of the same machine it is known at once that it has died: launchers do not leave much time to say so. */
static void check_processes(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    for (int rank = 0; rank < comm->num_ranks && !state->has_passed_barrier; rank++) {
        peer_state *peer = &state->peers[rank];
        const int process = atomic_load(&peer->process);
        if (process == 0 || peer->left_ns != 0 || !has_ended(process)) {
            continue;
        }
        char last[256] = "";
        (void)pthread_mutex_lock(&state->mutex);
        const lgi_comm_sign sign = peer->sign;
        const bool was_heard = peer->was_heard;
        (void)pthread_mutex_unlock(&state->mutex);
        if (was_heard) {
            lgi_comm_describe(last, sizeof last, &sign);
        }
        char text[LGI_COMM_FAILURE_BYTES];
        (void)snprintf(text, sizeof text, "rank %d is gone: its process %d has ended%s%s%s", rank,
                       process, last[0] ? " (last heard: " : "", last, last[0] ? ")" : "");
        lgi_comm_fail(comm, LG_COMM, text);
        return;
    }
}

static void check_left(lg_comm *comm, uint64_t now_ns)
{
    mpi_state *state = state_of(comm);
    for (size_t i = 0; i < state->num_active; i++) {
        const lgi_message *message = state->active[i];
        const uint64_t left_ns = state->peers[message->peer].left_ns;
        if (left_ns != 0 && now_ns - left_ns > LEFT_GRACE_NS) {
            char text[LGI_COMM_FAILURE_BYTES];
            (void)snprintf(text, sizeof text,
                           "a message of %lld bytes %s rank %d (channel %s): that rank has left",
                           (long long)message->num_bytes, message->is_send ? "to" : "from",
                           message->peer, lgi_channel_name(message->channel));
            lgi_comm_fail(comm, LG_COMM, text);
            return;
        }
    }
}

/* When it was, on a clock that has stood still; never in the future. */
static uint64_t later(uint64_t time_ns, uint64_t slept_ns, uint64_t now_ns)
{
    return time_ns + slept_ns < now_ns ? time_ns + slept_ns : now_ns;
}

static void mpi_tick(lg_comm *comm, uint64_t now_ns, uint64_t slept_ns)
{
    mpi_state *state = state_of(comm);
    const uint64_t patience_ns = lgi_comm_patience_ns(comm);
    for (int rank = 0; rank < comm->num_ranks; rank++) {
        peer_state *peer = &state->peers[rank];
        if (!peer->is_known) {
            continue;
        }
        peer->left_ns = peer->left_ns != 0 ? later(peer->left_ns, slept_ns, now_ns) : 0;
        if (now_ns - peer->sent_ns > SIGN_NS && !state->has_passed_barrier) {
            send_sign(comm, rank, now_ns);
        }
        (void)pthread_mutex_lock(&state->mutex);
        peer->heard_ns = later(peer->heard_ns, slept_ns, now_ns);
        const uint64_t silent_ns = now_ns - peer->heard_ns;
        const lgi_comm_sign sign = peer->sign;
        const bool was_heard = peer->was_heard;
        (void)pthread_mutex_unlock(&state->mutex);
        if (silent_ns > patience_ns && !state->has_passed_barrier) {
            give_up_on(comm, rank, &sign, was_heard, silent_ns);
            return;
        }
    }
    check_left(comm, now_ns);
    check_processes(comm);
}

static bool mpi_told(lg_comm *comm, int rank, lgi_comm_sign *out, uint64_t *heard_ns)
{
    mpi_state *state = state_of(comm);
    const peer_state *peer = &state->peers[rank];
    (void)pthread_mutex_lock(&state->mutex);
    const bool was_heard = peer->was_heard;
    if (was_heard) {
        *out = peer->sign;
        *heard_ns = peer->heard_ns;
    }
    (void)pthread_mutex_unlock(&state->mutex);
    return was_heard;
}

/* --- messages ------------------------------------------------------------------------------------------------------------ */

static bool is_far(lg_comm *comm, int peer)
{
    const int ranks_per_host = atomic_load(&comm->ranks_per_host);
    return ranks_per_host > 0 && peer / ranks_per_host != comm->rank / ranks_per_host;
}

static int64_t piece_bytes_for(lg_comm *comm, int peer)
{
    const int64_t far_bytes = is_far(comm, peer) ? atomic_load(&comm->far_piece_bytes) : 0;
    return far_bytes > 0 && far_bytes < max_piece_bytes ? far_bytes : max_piece_bytes;
}

/* Behind what goes the same way already, if it has a way of its own. */
static uint64_t due_ns_for(lg_comm *comm, const lgi_message *message)
{
    mpi_state *state = state_of(comm);
    const int64_t rate = is_far(comm, message->peer) ? atomic_load(&comm->far_bytes_per_s) : 0;
    const uint64_t now_ns = lgi_clock_ns();
    uint64_t *const free_ns = &state->wire_free_ns[message->is_send ? 1 : 0];
    if (rate <= 0) {
        return now_ns;
    }
    *free_ns = (*free_ns > now_ns ? *free_ns : now_ns) +
               (uint64_t)(1e9 * (double)message->num_bytes / (double)rate);
    return *free_ns;
}

static void mpi_start(lg_comm *comm, lgi_message *message)
{
    mpi_state *state = state_of(comm);
    if (lgi_grow(&state->active, &state->active_capacity, state->num_active + 1,
                 sizeof(lgi_message *)) != LG_OK) {
        lgi_comm_fail(comm, LG_OUT_OF_MEMORY, lg_last_error());
        lgi_message_finish(message, true);
        return;
    }
    state->active[state->num_active++] = message;
    know_peer(comm, message->peer);
    message->due_ns = due_ns_for(comm, message);
    const int64_t piece_bytes = piece_bytes_for(comm, message->peer);
    int64_t begin = 0;
    do {
        const int64_t left = message->num_bytes - begin;
        const int64_t num_bytes = left < piece_bytes ? left : piece_bytes;
        const int error = state->mpi->start(
            LGI_MPI_DATA, message->is_send, message->peer, message->channel,
            message->num_bytes > 0 ? (char *)message->data + begin : (char *)&state->in.rank,
            (int)num_bytes, message);
        if (error != 0) {
            fail_mpi(comm, message->is_send ? "send" : "receive", error);
            return; /* stays active; all ends with the failure */
        }
        message->num_pieces++;
        begin += num_bytes;
    } while (begin < message->num_bytes);
}

static void forget(mpi_state *state, const lgi_message *message)
{
    size_t i = 0;
    while (i < state->num_active && state->active[i] != message) {
        i++;
    }
    if (i < state->num_active) {
        state->num_active--;
        memmove(&state->active[i], &state->active[i + 1],
                (state->num_active - i) * sizeof(lgi_message *));
    }
}

static void fail_sizes(lg_comm *comm, const lgi_message *message, bool was_truncated)
{
    char sent[64];
    (void)snprintf(sent, sizeof sent, was_truncated ? "more" : "%lld",
                   (long long)message->num_moved_bytes);
    char text[LGI_COMM_FAILURE_BYTES];
    (void)snprintf(text, sizeof text,
                   "rank %d sends %s bytes to rank %d, which expects %lld (channel %s)",
                   message->peer, sent, comm->rank, (long long)message->num_bytes,
                   lgi_channel_name(message->channel));
    lgi_comm_fail(comm, LG_INTERNAL, text);
}

static void end_piece(lg_comm *comm, const lgi_mpi_done *done)
{
    lgi_message *message = done->user;
    if (done->error != 0) {
        fail_mpi(comm, message->is_send ? "send" : "receive", done->error);
        return;
    }
    message->num_moved_bytes += done->num_bytes;
    message->num_pieces--;
    if (done->was_truncated || (message->num_pieces == 0 && !message->is_send &&
                                message->num_moved_bytes != message->num_bytes)) {
        fail_sizes(comm, message, done->was_truncated);
    } else if (message->num_pieces == 0) {
        forget(state_of(comm), message);
        lgi_message_finish(message, false);
    }
}

static int mpi_progress(lg_comm *comm, bool *has_more)
{
    mpi_state *state = state_of(comm);
    const lgi_mpi_done *done = NULL;
    int error = 0;
    const uint64_t start_ns = lgi_clock_ns();
    const int num_done = state->mpi->test(&done, &error);
    const bool has_moved = lgi_clock_ns() - start_ns > MOVED_NS;
    if (num_done < 0) {
        fail_mpi(comm, "go on", error);
        return 1;
    }
    int num_changes = 0; /* signs of life are none: they are no reason to look again soon */
    for (int i = 0; i < num_done && !lgi_comm_has_failed(comm); i++) {
        if (done[i].world == LGI_MPI_DATA) {
            end_piece(comm, &done[i]);
            num_changes++;
        } else if (done[i].user == NULL) {
            state->has_passed_barrier = true;
        } else if (done[i].is_send) {
            ((peer_state *)done[i].user)->is_sending = false;
        } else {
            take_control(comm);
            if (!await_control(comm)) {
                break;
            }
        }
    }
    state->num_moves = has_moved && num_done == 0 ? state->num_moves + 1 : 0;
    *has_more = num_done > 0 || (has_moved && state->num_moves % MAX_MOVES != 0);
    return num_changes;
}

/* A message is looked at when it can have come, and then at intervals that are a small part of how late it is. */
static uint64_t mpi_look_in_ns(const lg_comm *comm, uint64_t now_ns)
{
    const mpi_state *state = state_of(comm);
    uint64_t in_ns = UINT64_MAX;
    for (size_t i = 0; i < state->num_active; i++) {
        const uint64_t due_ns = state->active[i]->due_ns;
        const uint64_t one_ns = due_ns > now_ns ? due_ns - now_ns : (now_ns - due_ns) / LATE_PART;
        in_ns = one_ns < in_ns ? one_ns : in_ns;
    }
    return in_ns;
}

/* --- failure and end ------------------------------------------------------------------------------------------------------- */

/* Sends the failure to all ranks that may still be alive, and waits a little for it to go. */
static void send_failure(lg_comm *comm, const lgi_comm_failure_record *failure)
{
    mpi_state *state = state_of(comm);
    control_message *out = NULL;
    if (lgi_calloc(&out, 1, sizeof *out) != LG_OK) {
        return;
    }
    *out = (control_message){
        .kind = CONTROL_FAILURE, .rank = comm->rank, .status = (int32_t)failure->status};
    (void)snprintf(out->text, sizeof out->text, "%s", failure->message);
    int num_open = 0;
    for (int rank = 0; rank < comm->num_ranks; rank++) {
        if (rank != comm->rank && state->mpi->start(LGI_MPI_CONTROL, true, rank, CONTROL_TAG, out,
                                                    sizeof *out, out) == 0) {
            num_open++;
        }
    }
    const uint64_t start_ns = lgi_clock_ns();
    while (num_open > 0 && lgi_clock_ns() - start_ns < FAREWELL_NS) {
        const lgi_mpi_done *done = NULL;
        int error = 0;
        const int num_done = state->mpi->test(&done, &error);
        for (int i = 0; i < num_done; i++) {
            num_open -= done[i].user == out;
        }
        pause_ms(1);
    }
    if (num_open == 0) {
        lgi_free(out); /* else MPI may still read it */
    }
}

static void mpi_fail(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    (void)pthread_mutex_lock(&comm->failure_mutex);
    const lgi_comm_failure_record failure = comm->failure;
    (void)pthread_mutex_unlock(&comm->failure_mutex);
    if (failure.rank == comm->rank) {
        send_failure(comm, &failure);
    }
    state->is_silent = true;
    state->failed_ns = lgi_clock_ns();
    for (size_t i = 0; i < state->num_active; i++) {
        lgi_message_finish(state->active[i], true);
    }
    state->num_active = 0;
}

static bool mpi_leave(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    if (state->is_silent || state->has_passed_barrier) {
        return true;
    }
    if (state->num_active > 0 && !state->is_leaving) {
        char text[64];
        (void)snprintf(text, sizeof text, "left with %zu messages under way", state->num_active);
        lgi_comm_fail(comm, LG_COMM, text);
        return false;
    }
    if (!state->is_leaving) {
        state->is_leaving = true;
        const uint64_t now_ns = lgi_clock_ns();
        for (int rank = 0; rank < comm->num_ranks; rank++) {
            if (state->peers[rank].is_known) {
                send_sign(comm, rank, now_ns);
            }
        }
        const int error = state->mpi->start_barrier();
        if (error != 0) {
            fail_mpi(comm, "leave", error);
        }
    }
    return false;
}

static void mpi_close(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    if (!state->is_silent) {
        (void)state->mpi->close();
        return;
    }
    while (lgi_clock_ns() - state->failed_ns < LAST_WORDS_NS) {
        pause_ms(10);
    }
}

static void mpi_free(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    (void)pthread_mutex_destroy(&state->mutex);
    lgi_free(state->active);
    if (!state->is_silent) {
        lgi_free(state->peers); /* else MPI may still read and write there */
        lgi_free(state);
    }
    lgi_comm_deinit(comm);
    lgi_free(comm);
}

/* --- beginning ------------------------------------------------------------------------------------------------------------- */

static lg_status mpi_open(lg_comm *comm)
{
    mpi_state *state = state_of(comm);
    lgi_mpi_place place = {0};
    const int error = state->mpi->open(&place);
    if (error != 0) {
        char reason[256] = "";
        state->mpi->error_text(error, reason, sizeof reason);
        LG_FAIL(LG_COMM, "MPI does not start: %s", reason);
    }
    comm->rank = place.rank;
    comm->num_ranks = place.num_ranks;
    (void)snprintf(comm->name, sizeof comm->name, "%s", place.name);
    LG_TRY(lgi_calloc(&state->peers, (size_t)comm->num_ranks, sizeof *state->peers));
    for (int rank = 0; rank < comm->num_ranks; rank++) {
        if (comm->rank == 0 || rank == 0) {
            know_peer(comm, rank);
        }
    }
    if (!await_control(comm)) {
        return lgi_comm_failure(comm);
    }
    return LG_OK;
}

static const lgi_transport mpi_transport = {
    .needs_polling = true,
    .open = mpi_open,
    .start = mpi_start,
    .progress = mpi_progress,
    .look_in_ns = mpi_look_in_ns,
    .tick = mpi_tick,
    .fail = mpi_fail,
    .leave = mpi_leave,
    .close = mpi_close,
    .told = mpi_told,
    .free = mpi_free,
};

/* Where a rank runs: the running kernel, and the cores it may use there. */
typedef struct rank_place {
    char kernel[64];
    char processes[64]; /* the space of its process's id */
    int process;
    cpu_set_t cores;
} rank_place;

static rank_place own_place(void)
{
    rank_place place;
    memset(&place, 0, sizeof place);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file != NULL) {
        if (fgets(place.kernel, sizeof place.kernel, file) == NULL) {
            place.kernel[0] = '\0';
        }
        (void)fclose(file);
    }
    if (readlink("/proc/self/ns/pid", place.processes, sizeof place.processes - 1) > 0) {
        place.process = (int)getpid();
    }
    if (sched_getaffinity(0, sizeof place.cores, &place.cores) != 0) {
        for (size_t core = 0; core < CPU_SETSIZE; core++) {
            CPU_SET(core, &place.cores);
        }
    }
    return place;
}

static lg_status find_neighbours(lg_comm *comm)
{
    const rank_place own = own_place();
    rank_place *all = NULL;
    lg_status status = lgi_calloc(&all, (size_t)comm->num_ranks, sizeof *all);
    if (status != LG_OK) {
        lgi_comm_fail(comm, status, lg_last_error());
        return status;
    }
    status = lgi_comm_all_gather(comm, &own, sizeof own, all);
    comm->num_host_ranks = 0;
    for (int rank = 0; status == LG_OK && rank < comm->num_ranks; rank++) {
        cpu_set_t common;
        CPU_AND(&common, &own.cores, &all[rank].cores);
        if (memcmp(own.kernel, all[rank].kernel, sizeof own.kernel) == 0 &&
            (CPU_COUNT(&common) > 0 || rank == comm->rank)) {
            comm->host_rank += rank < comm->rank;
            comm->num_host_ranks++;
        }
        if (rank != comm->rank && all[rank].process > 0 && own.process > 0 &&
            memcmp(own.kernel, all[rank].kernel, sizeof own.kernel) == 0 &&
            memcmp(own.processes, all[rank].processes, sizeof own.processes) == 0) {
            atomic_store(&state_of(comm)->peers[rank].process, all[rank].process);
        }
    }
    if (status == LG_OK && comm->num_host_ranks <= CPU_COUNT(&own.cores)) {
        lgi_comm_ask_for_priority(comm);
    }
    comm->has_clock_of_rank_0 = memcmp(own.kernel, all[0].kernel, sizeof own.kernel) == 0;
    lgi_free(all);
    return status;
}

void lgi_comm_mpi_set_piece_bytes(int64_t num_bytes)
{
    max_piece_bytes = num_bytes;
}

lg_status lg_comm_mpi_create(lg_comm **out)
{
    lg_status status = LG_OK;
    lg_comm *comm = NULL;
    mpi_state *state = NULL;
    const lgi_mpi_module *mpi = NULL;
    *out = NULL;
    LG_TRY(lgi_mpi_load_module(&mpi));
    LG_TRY_GOTO(lgi_calloc(&comm, 1, sizeof *comm));
    LG_TRY_GOTO(lgi_calloc(&state, 1, sizeof *state));
    state->mpi = mpi;
    (void)pthread_mutex_init(&state->mutex, NULL);
    lgi_comm_init(comm, &mpi_transport, state);
    LG_TRY_GOTO(lgi_comm_start(comm));
    status = lgi_comm_agree(comm, "the version of leapgrad", LG_VERSION);
    if (status == LG_OK) {
        status = find_neighbours(comm);
    }
    if (status == LG_OK) {
        *out = comm;
    } else {
        lg_comm_destroy(comm);
    }
    return status;
out:
    if (state != NULL) {
        (void)pthread_mutex_destroy(&state->mutex);
        lgi_free(state->peers);
        lgi_comm_deinit(comm);
    }
    lgi_free(state);
    lgi_free(comm);
    return status;
}
