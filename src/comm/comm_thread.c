/*
 * The communication thread of a rank, and what other threads do with it: posting, waiting, waking.
 *
 * A message is IDLE -> POSTED (lgi_comm_post) -> AWAITED (lgi_comm_wait, if it must sleep) -> DONE (lgi_message_finish). Posted
 * messages go through `inbox`, a stack that any thread pushes to; the communication thread takes all of it and turns it round, so
 * what one thread posts, or threads that are ordered, starts in order.
 *
 * Sleeping: the thread reads `wakes`, goes through a round, and sleeps only while `wakes` is what it was. Whoever changes
 * something counts `wakes` up first and then looks whether the thread is asleep; the thread says that it is asleep before it
 * compares. Both sequentially consistent, so one of the two sees the other.
 *
 * A transport that needs polling says when its messages are worth a look, between two bounds; while none is under way it is looked
 * at seldom. Sleeping rather than spinning, because the compute lanes own the cores, unless the driver says that they stand still.
 */
#include <assert.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/circle.h"
#include "comm/futex.h"
#include "comm/transport.h"

#define TICK_NS UINT64_C(250000000)
/* Ticks further apart than this: it was this process that stood still, stopped or out of cores, and perhaps all others with it. */
#define OWN_SLEEP_NS (4 * TICK_NS)
/* One look costs about 10 us of a core, most of it for sleeping and waking. */
#define NOW_POLL_NS UINT64_C(20000)
#define MIN_POLL_NS UINT64_C(50000)
#define MAX_BUSY_POLL_NS UINT64_C(500000)
#define MAX_IDLE_POLL_NS UINT64_C(20000000)
/* Short: threads of several processes on one core do not yield to each other. */
#define SPIN_NS UINT64_C(50000)
/* A driver that wants rounds of a transport that wakes by itself: only in case it waits for something else. */
#define SOON_NS UINT64_C(1000000)

/* The communicator whose communication thread this is. */
static _Thread_local const lg_comm *own_comm;

/* --- posting and waiting ---------------------------------------------------------------------------------------------- */

void lgi_comm_wake(lg_comm *comm)
{
    (void)atomic_fetch_add(&comm->wakes, 1);
    if (atomic_load(&comm->is_asleep)) {
        lgi_futex_wake_all(&comm->wakes);
    }
}

void lgi_comm_post(lg_comm *comm, lgi_message *message)
{
    assert(message->peer >= 0 && message->peer < comm->num_ranks);
    assert(message->channel >= 0 && message->channel < LGI_NUM_CHANNELS);
    assert(message->num_bytes >= 0);
    message->comm = comm;
    message->has_failed = false;
    message->num_pieces = 0;
    message->num_moved_bytes = 0;
    atomic_store_explicit(&message->state, LGI_MESSAGE_POSTED, memory_order_relaxed);
    (void)atomic_fetch_add(&comm->num_open, 1);
    lgi_message *head = atomic_load_explicit(&comm->inbox, memory_order_relaxed);
    do {
        message->next = head;
    } while (!atomic_compare_exchange_weak(&comm->inbox, &head, message));
    if (own_comm != comm) {
        lgi_comm_wake(comm);
    }
}

void lgi_message_finish(lgi_message *message, bool has_failed)
{
    lg_comm *comm = message->comm;
    message->has_failed = has_failed;
    const int before = atomic_exchange(&message->state, LGI_MESSAGE_DONE);
    if (before == LGI_MESSAGE_AWAITED) {
        lgi_futex_wake_all(&message->state); /* only its address: the memory may be gone */
    }
    (void)atomic_fetch_sub(&comm->num_open, 1);
    if (own_comm != comm) {
        lgi_comm_wake(comm);
    }
}

static void set_host_wait(lg_comm *comm, int rank)
{
    (void)pthread_mutex_lock(&comm->sign_mutex);
    comm->sign.host_waits_for_rank = rank;
    if (rank >= 0) {
        comm->sign.num_host_waits++;
    }
    (void)pthread_mutex_unlock(&comm->sign_mutex);
}

lg_status lgi_comm_wait(lg_comm *comm, lgi_message *message)
{
    assert(own_comm != comm);
    if (!lgi_message_is_done(message)) {
        set_host_wait(comm, message->peer);
        for (;;) {
            int state = LGI_MESSAGE_POSTED;
            (void)atomic_compare_exchange_strong(&message->state, &state, LGI_MESSAGE_AWAITED);
            if (state == LGI_MESSAGE_DONE) {
                break;
            }
            lgi_futex_wait(&message->state, LGI_MESSAGE_AWAITED, -1);
        }
        set_host_wait(comm, -1);
    }
    if (message->has_failed) {
        const lg_status status = lgi_comm_failure(comm);
        if (status != LG_OK) {
            return status;
        }
        LG_FAIL(LG_INTERNAL, "a message with rank %d ended for no reason", message->peer);
    }
    return LG_OK;
}

/* Hands what was posted to the transport, in order. */
static bool take_inbox(lg_comm *comm, bool is_failure_handled)
{
    lgi_message *last = atomic_exchange(&comm->inbox, NULL);
    lgi_message *first = NULL;
    while (last != NULL) {
        lgi_message *next = last->next;
        last->next = first;
        first = last;
        last = next;
    }
    const bool has_any = first != NULL;
    while (first != NULL) {
        lgi_message *next = first->next;
        if (is_failure_handled) {
            lgi_message_finish(first, true);
        } else {
            comm->transport->start(comm, first);
        }
        first = next;
    }
    return has_any;
}

/* --- the driver ------------------------------------------------------------------------------------------------------ */

void lgi_comm_set_driver(lg_comm *comm, lgi_drive (*drive)(void *user), void *user)
{
    (void)pthread_mutex_lock(&comm->driver_mutex);
    comm->drive = drive;
    comm->drive_user = user;
    (void)pthread_mutex_unlock(&comm->driver_mutex);
    lgi_comm_wake(comm);
}

static lgi_drive drive(lg_comm *comm)
{
    (void)pthread_mutex_lock(&comm->driver_mutex);
    const lgi_drive wanted = comm->drive != NULL ? comm->drive(comm->drive_user) : LGI_DRIVE_IDLE;
    (void)pthread_mutex_unlock(&comm->driver_mutex);
    return wanted;
}

/* --- the thread ------------------------------------------------------------------------------------------------------- */

static void set_stage(lg_comm *comm, lgi_comm_stage stage)
{
    atomic_store(&comm->stage, (int)stage);
    lgi_futex_wake_all(&comm->stage);
}

static void sleep_until_woken(lg_comm *comm, int seen, int64_t timeout_ns)
{
    atomic_store(&comm->is_asleep, true);
    if (atomic_load(&comm->wakes) == seen) {
        lgi_futex_wait(&comm->wakes, seen, timeout_ns);
    }
    atomic_store(&comm->is_asleep, false);
}

/* How long until the next round, if nobody wakes the thread. */
static uint64_t pause_ns(const lg_comm *comm, lgi_drive wanted, uint64_t now_ns,
                         uint64_t unchanged_ns)
{
    const lgi_transport *transport = comm->transport;
    if (wanted == LGI_DRIVE_NOW && unchanged_ns < SPIN_NS) {
        return 0;
    }
    if (!transport->needs_polling) {
        return wanted != LGI_DRIVE_IDLE ? SOON_NS : UINT64_MAX;
    }
    if (wanted == LGI_DRIVE_NOW) {
        return NOW_POLL_NS;
    }
    const uint64_t look_ns = transport->look_in_ns(comm, now_ns);
    const bool is_busy = wanted == LGI_DRIVE_SOON || look_ns != UINT64_MAX;
    const uint64_t max_ns = is_busy ? MAX_BUSY_POLL_NS : MAX_IDLE_POLL_NS;
    return look_ns < MIN_POLL_NS ? MIN_POLL_NS : look_ns < max_ns ? look_ns : max_ns;
}

/* `since_ns`: the last one. Others are not blamed for the time in which this process would not have heard them. */
static void tick(lg_comm *comm, uint64_t now_ns, uint64_t since_ns)
{
    const uint64_t slept_ns = since_ns > OWN_SLEEP_NS ? since_ns : 0;
    if (comm->transport->tick != NULL) {
        comm->transport->tick(comm, now_ns, slept_ns);
    }
    lgi_comm_find_circle(comm, now_ns, slept_ns);
}

static void run_rounds(lg_comm *comm)
{
    const lgi_transport *transport = comm->transport;
    bool is_failure_handled = false;
    uint64_t next_tick_ns = 0;
    uint64_t changed_ns = 0;
    int last_wakes = atomic_load(&comm->wakes) - 1;
    for (;;) {
        const int seen = atomic_load(&comm->wakes);
        bool has_more = false;
        bool has_changed = seen != last_wakes;
        last_wakes = seen;
        has_changed |= take_inbox(comm, is_failure_handled);
        if (!is_failure_handled) {
            has_changed |= transport->progress(comm, &has_more) > 0;
        }
        if (!is_failure_handled && lgi_comm_has_failed(comm)) {
            (void)take_inbox(comm, false);
            transport->fail(comm);
            is_failure_handled = true;
            has_changed = true;
        }
        const lgi_drive wanted = drive(comm);
        const uint64_t now_ns = lgi_clock_ns();
        changed_ns = has_changed ? now_ns : changed_ns;
        if (!is_failure_handled && now_ns >= next_tick_ns) {
            tick(comm, now_ns, next_tick_ns > 0 ? now_ns + TICK_NS - next_tick_ns : 0);
            next_tick_ns = now_ns + TICK_NS;
        }
        if (atomic_load(&comm->inbox) != NULL || has_more) {
            continue;
        }
        if (atomic_load(&comm->stage) == LGI_COMM_LEAVING &&
            (is_failure_handled || !lgi_comm_has_failed(comm)) && transport->leave(comm)) {
            return;
        }
        if (is_failure_handled) {
            sleep_until_woken(comm, seen, -1);
            continue;
        }
        const uint64_t tick_in_ns = next_tick_ns > now_ns ? next_tick_ns - now_ns : 0;
        const uint64_t next_in_ns = pause_ns(comm, wanted, now_ns, now_ns - changed_ns);
        if (next_in_ns == 0) {
            (void)sched_yield();
        } else {
            sleep_until_woken(comm, seen,
                              (int64_t)(next_in_ns < tick_in_ns ? next_in_ns : tick_in_ns));
        }
    }
}

void lgi_comm_ask_for_priority(lg_comm *comm)
{
    const struct sched_param param = {.sched_priority = sched_get_priority_min(SCHED_FIFO)};
    (void)pthread_setschedparam(comm->thread, SCHED_FIFO | SCHED_RESET_ON_FORK, &param);
}

/* MPI spins while it shuts down, and with priority the ranks that it waits for would not get the core. */
static void give_up_priority(void)
{
    const struct sched_param param = {0};
    (void)pthread_setschedparam(pthread_self(), SCHED_OTHER, &param);
}

static void *run(void *context)
{
    lg_comm *comm = context;
    own_comm = comm;
    char name[16];
    (void)snprintf(name, sizeof name, "lg-comm-%d", comm->rank);
    (void)pthread_setname_np(pthread_self(), name);
    (void)prctl(PR_SET_TIMERSLACK, 1000ul); /* or 20 us become 70 */
    if (comm->transport->open != NULL) {
        const lg_status status = comm->transport->open(comm);
        if (status != LG_OK) {
            lgi_comm_note_failure(comm, comm->rank, status, lg_last_error());
            set_stage(comm, LGI_COMM_ENDED);
            return NULL;
        }
    }
    int opening = LGI_COMM_OPENING;
    (void)atomic_compare_exchange_strong(&comm->stage, &opening, LGI_COMM_RUNNING);
    lgi_futex_wake_all(&comm->stage);
    run_rounds(comm);
    give_up_priority();
    (void)take_inbox(comm, true);
    atomic_store(&comm->closing_since_ns, lgi_clock_ns());
    set_stage(comm, LGI_COMM_CLOSING);
    if (comm->transport->close != NULL) {
        comm->transport->close(comm);
    }
    set_stage(comm, LGI_COMM_ENDED);
    return NULL;
}

lg_status lgi_comm_start(lg_comm *comm)
{
    /* Signals (Ctrl-C) are for the threads of the program. */
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    const int error = pthread_create(&comm->thread, NULL, run, comm);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0) {
        LG_FAIL(LG_OUT_OF_MEMORY, "cannot start the communication thread: %s", strerror(error));
    }
    while (atomic_load(&comm->stage) == LGI_COMM_OPENING) {
        lgi_futex_wait(&comm->stage, LGI_COMM_OPENING, -1);
    }
    if (atomic_load(&comm->stage) == LGI_COMM_ENDED) {
        (void)pthread_join(comm->thread, NULL);
        return lgi_comm_failure(comm);
    }
    return LG_OK;
}

bool lgi_comm_stop(lg_comm *comm)
{
    atomic_store(&comm->stage, LGI_COMM_LEAVING);
    lgi_comm_wake(comm);
    for (;;) {
        const int stage = atomic_load(&comm->stage);
        if (stage == LGI_COMM_ENDED) {
            break;
        }
        if (stage == LGI_COMM_CLOSING) {
            const uint64_t closing_ns = lgi_clock_ns() - atomic_load(&comm->closing_since_ns);
            if (closing_ns > (uint64_t)atomic_load(&comm->timeout_ns)) {
                (void)pthread_detach(comm->thread);
                return false;
            }
        }
        lgi_futex_wait(&comm->stage, stage, 100000000);
    }
    (void)pthread_join(comm->thread, NULL);
    return true;
}
