/* What a communicator is beside its thread: who it is, its failure, what ranks tell each other. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/collectives.h"
#include "comm/transport.h"

#define DEFAULT_TIMEOUT_NS INT64_C(10000000000)
/* Below what Open MPI and MPICH send over TCP without asking, 64 KiB with what they put in front. */
#define SLOW_PIECE_BYTES INT64_C(60000)
/* A piece takes as long as the pause between two looks at MPI, or so: faster links would have more pieces than looks. */
#define SLOW_BYTES_PER_S 500e6
#define MAX_BYTES_PER_S 1e15

void lgi_comm_init(lg_comm *comm, const lgi_transport *transport, void *state)
{
    comm->transport = transport;
    comm->state = state;
    comm->num_ranks = 1;
    comm->num_host_ranks = 1;
    atomic_init(&comm->stage, LGI_COMM_OPENING);
    atomic_init(&comm->timeout_ns, DEFAULT_TIMEOUT_NS);
    comm->sign.activity.op = -1;
    comm->sign.activity.waits_for_rank = -1;
    comm->sign.host_waits_for_rank = -1;
    /* With default attributes these do not fail on Linux. */
    (void)pthread_mutex_init(&comm->driver_mutex, NULL);
    (void)pthread_mutex_init(&comm->failure_mutex, NULL);
    (void)pthread_mutex_init(&comm->sign_mutex, NULL);
}

void lgi_comm_deinit(lg_comm *comm)
{
    (void)pthread_mutex_destroy(&comm->driver_mutex);
    (void)pthread_mutex_destroy(&comm->failure_mutex);
    (void)pthread_mutex_destroy(&comm->sign_mutex);
}

void lg_comm_destroy(lg_comm *comm)
{
    if (comm != NULL && lgi_comm_stop(comm)) {
        comm->transport->free(comm);
    }
}

int lg_comm_rank(const lg_comm *comm)
{
    return comm->rank;
}

int lg_comm_num_ranks(const lg_comm *comm)
{
    return comm->num_ranks;
}

const char *lg_comm_name(const lg_comm *comm)
{
    return comm->name;
}

int lg_comm_host_rank(const lg_comm *comm)
{
    return comm->host_rank;
}

int lg_comm_num_host_ranks(const lg_comm *comm)
{
    return comm->num_host_ranks;
}

void lg_comm_set_timeout(lg_comm *comm, double seconds)
{
    const double bounded_s = isnan(seconds) ? 1 : fmin(fmax(seconds, 1), 1e9);
    atomic_store(&comm->timeout_ns, (int64_t)(bounded_s * 1e9));
}

double lg_comm_timeout(const lg_comm *comm)
{
    return (double)atomic_load(&comm->timeout_ns) * 1e-9;
}

lg_status lgi_comm_set_far_link(lg_comm *comm, int ranks_per_host, double bytes_per_s)
{
    int64_t agreed[3] = {ranks_per_host, bytes_per_s < SLOW_BYTES_PER_S ? SLOW_PIECE_BYTES : 0,
                         (int64_t)fmin(bytes_per_s, MAX_BYTES_PER_S)};
    LG_TRY(lgi_comm_broadcast(comm, 0, agreed, sizeof agreed));
    atomic_store(&comm->ranks_per_host, (int)agreed[0]);
    atomic_store(&comm->far_piece_bytes, agreed[1]);
    atomic_store(&comm->far_bytes_per_s, agreed[2]);
    return LG_OK;
}

uint64_t lgi_comm_patience_ns(const lg_comm *comm)
{
    return (uint64_t)atomic_load(&comm->timeout_ns) / 5 * 4;
}

const char *lgi_channel_name(int channel)
{
    static const char *const names[LGI_NUM_CHANNELS] = {"plan", "reduce", "host", "step"};
    return channel >= 0 && channel < LGI_NUM_CHANNELS ? names[channel] : "?";
}

/* --- failures --------------------------------------------------------------------------------------------------------- */

void lgi_comm_note_failure(lg_comm *comm, int rank, lg_status status, const char *message)
{
    (void)pthread_mutex_lock(&comm->failure_mutex);
    if (comm->failure.status == LG_OK) {
        comm->failure.status = status;
        comm->failure.rank = rank;
        (void)snprintf(comm->failure.message, sizeof comm->failure.message, "%s", message);
        atomic_store(&comm->has_failed, true);
    }
    (void)pthread_mutex_unlock(&comm->failure_mutex);
}

lg_status lgi_comm_foreign_status(lg_status status)
{
    return status == LG_TIMEOUT || status == LG_INTERRUPTED ? status : LG_COMM;
}

void lgi_comm_fail(lg_comm *comm, lg_status status, const char *message)
{
    lgi_comm_note_failure(comm, comm->rank, status != LG_OK ? status : LG_INTERNAL, message);
    lgi_comm_wake(comm);
}

bool lgi_comm_has_failed(const lg_comm *comm)
{
    return atomic_load(&comm->has_failed);
}

lg_status lgi_comm_failure(lg_comm *comm)
{
    lg_status status = LG_OK;
    (void)pthread_mutex_lock(&comm->failure_mutex);
    const lgi_comm_failure_record *failure = &comm->failure;
    if (failure->status != LG_OK && failure->rank == comm->rank) {
        status = lgi_fail_copy(failure->status, failure->message);
    } else if (failure->status != LG_OK) {
        status = lgi_fail(lgi_comm_foreign_status(failure->status), "rank %d: %s", failure->rank,
                          failure->message);
    }
    (void)pthread_mutex_unlock(&comm->failure_mutex);
    return status;
}

int lgi_comm_failed_rank(lg_comm *comm)
{
    (void)pthread_mutex_lock(&comm->failure_mutex);
    const int rank = comm->failure.status != LG_OK ? comm->failure.rank : -1;
    (void)pthread_mutex_unlock(&comm->failure_mutex);
    return rank;
}

/* --- what ranks are doing ----------------------------------------------------------------------------------------------- */

void lgi_comm_tell(lg_comm *comm, const lgi_activity *activity)
{
    (void)pthread_mutex_lock(&comm->sign_mutex);
    comm->sign.activity = *activity;
    (void)pthread_mutex_unlock(&comm->sign_mutex);
}

lgi_comm_sign lgi_comm_own_sign(lg_comm *comm)
{
    (void)pthread_mutex_lock(&comm->sign_mutex);
    const lgi_comm_sign sign = comm->sign;
    (void)pthread_mutex_unlock(&comm->sign_mutex);
    return sign;
}

lgi_activity lgi_comm_told(lg_comm *comm, int rank, double *age_s)
{
    lgi_comm_sign sign = {.activity = {.op = -1, .waits_for_rank = -1}, .host_waits_for_rank = -1};
    const uint64_t now_ns = lgi_clock_ns();
    uint64_t heard_ns = now_ns;
    bool is_known = true;
    if (rank == comm->rank) {
        sign = lgi_comm_own_sign(comm);
    } else {
        is_known = comm->transport->told(comm, rank, &sign, &heard_ns);
    }
    if (age_s != NULL) {
        *age_s = !is_known ? INFINITY : now_ns > heard_ns ? (double)(now_ns - heard_ns) * 1e-9 : 0;
    }
    return sign.activity;
}

void lgi_comm_describe(char *text, size_t num_bytes, const lgi_comm_sign *sign)
{
    const lgi_activity *activity = &sign->activity;
    const int waits_for =
        activity->waits_for_rank >= 0 ? activity->waits_for_rank : sign->host_waits_for_rank;
    char waiting[32] = "";
    if (waits_for >= 0) {
        (void)snprintf(waiting, sizeof waiting, "waiting for rank %d", waits_for);
    }
    char where[64] = "";
    if (activity->num_done > 0 || activity->step > 0 || activity->op >= 0) {
        (void)snprintf(where, sizeof where, "step %lld", (long long)activity->step);
    }
    const int text_bytes = (int)strnlen(activity->text, sizeof activity->text);
    (void)snprintf(text, num_bytes, "%s%s%.*s%s%s", where, where[0] && text_bytes > 0 ? ", " : "",
                   text_bytes, activity->text,
                   (where[0] || text_bytes > 0) && waiting[0] ? ", " : "", waiting);
}
