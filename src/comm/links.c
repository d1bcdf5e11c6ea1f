/*
 * Measured paths between ranks: clocks and links. Links are timed on the communication threads, by a driver, because that is
 * where a plan's messages are posted and end; a host thread that is woken for each message would add its own delay.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "comm/collectives.h"
#include "comm/futex.h"
#include "comm/transport.h"

enum {
    CLOCK_ROUNDS = 20,
    LATENCY_WARM_UPS = 10,
    LATENCY_ROUNDS = 101,
    TRANSFER_WARM_UPS = 2,
    TRANSFER_ROUNDS = 9,
    MAX_ROUNDS = 101,
    HOST_NAME_BYTES = 256
};

/* --- clocks --------------------------------------------------------------------------------------------------------------- */

static lg_status exchange(lg_comm *comm, bool is_send, int peer, uint64_t *value)
{
    lgi_message message = {.is_send = is_send,
                           .peer = peer,
                           .channel = LGI_CHANNEL_HOST,
                           .data = value,
                           .num_bytes = sizeof *value};
    lgi_comm_post(comm, &message);
    return lgi_comm_wait(comm, &message);
}

/* Cristian's method: the answer is taken to be from the middle of the shortest round trip. */
lg_status lgi_comm_clock_offset(lg_comm *comm, int64_t *out_ns)
{
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
    *out_ns = 0;
    uint64_t best_ns = UINT64_MAX;
    for (int turn = 1; turn < num_ranks; turn++) {
        for (int i = 0; i < CLOCK_ROUNDS && (rank == 0 || rank == turn); i++) {
            uint64_t theirs_ns = 0;
            if (rank == 0) {
                LG_TRY(exchange(comm, false, turn, &theirs_ns));
                theirs_ns = lgi_clock_ns();
                LG_TRY(exchange(comm, true, turn, &theirs_ns));
                continue;
            }
            const uint64_t start_ns = lgi_clock_ns();
            LG_TRY(exchange(comm, true, 0, &theirs_ns));
            LG_TRY(exchange(comm, false, 0, &theirs_ns));
            const uint64_t round_ns = lgi_clock_ns() - start_ns;
            if (round_ns < best_ns) {
                best_ns = round_ns;
                *out_ns = (int64_t)(start_ns + round_ns / 2) - (int64_t)theirs_ns;
            }
        }
    }
    if (comm->has_clock_of_rank_0) {
        *out_ns = 0; /* what was measured is noise */
    }
    return LG_OK;
}

/* --- links ---------------------------------------------------------------------------------------------------------------- */

typedef enum probe_kind {
    PROBE_PING_PONG, /* there, then back */
    PROBE_BOTH       /* both ways at once */
} probe_kind;

/* A series of rounds between two ranks; one of them is first. */
typedef struct probe {
    lg_comm *comm;
    int peer;
    bool is_first;
    probe_kind kind;
    int num_warm_ups;
    int num_rounds; /* warm-ups included */
    int64_t num_bytes;
    char *out_data;
    char *in_data;
    lgi_message out;
    lgi_message in;
    int round;
    int num_posted; /* of the round's two messages */
    uint64_t start_ns;
    uint64_t ns[MAX_ROUNDS];
    _Atomic int has_ended; /* a futex */
} probe;

static bool is_send_next(const probe *p)
{
    return (p->num_posted == 0) == p->is_first;
}

static void post_next(probe *p)
{
    if (p->num_posted == 0) {
        p->start_ns = lgi_clock_ns();
    }
    lgi_message *message = is_send_next(p) ? &p->out : &p->in;
    message->is_send = message == &p->out;
    message->peer = p->peer;
    message->channel = LGI_CHANNEL_HOST;
    message->data = message->is_send ? p->out_data : p->in_data;
    message->num_bytes = p->num_bytes;
    lgi_comm_post(p->comm, message);
    p->num_posted++;
}

/* Whether what was posted of the round has ended. */
static bool has_arrived(const probe *p)
{
    return (atomic_load(&p->out.state) == LGI_MESSAGE_IDLE || lgi_message_is_done(&p->out)) &&
           (atomic_load(&p->in.state) == LGI_MESSAGE_IDLE || lgi_message_is_done(&p->in));
}

static lgi_drive drive_probe(void *user)
{
    probe *p = user;
    while (!atomic_load(&p->has_ended)) {
        if (p->num_posted > 0 && !has_arrived(p)) {
            return LGI_DRIVE_NOW;
        }
        if (p->out.has_failed || p->in.has_failed) {
            break;
        }
        if (p->num_posted == 2) {
            if (p->round >= p->num_warm_ups) {
                p->ns[p->round - p->num_warm_ups] = lgi_clock_ns() - p->start_ns;
            }
            p->num_posted = 0;
            if (++p->round == p->num_rounds) {
                break;
            }
        }
        post_next(p);
        if (p->kind == PROBE_BOTH) {
            post_next(p);
        }
    }
    atomic_store(&p->has_ended, 1);
    lgi_futex_wake_all(&p->has_ended);
    return LGI_DRIVE_IDLE;
}

static int compare_ns(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The median time of a round. */
static lg_status run_probe(probe *p, probe_kind kind, int64_t num_bytes, int num_warm_ups,
                           int num_rounds, double *out_ns)
{
    p->kind = kind;
    p->num_bytes = num_bytes;
    p->num_warm_ups = num_warm_ups;
    p->num_rounds = num_warm_ups + num_rounds;
    p->round = 0;
    p->num_posted = 0;
    memset(&p->out, 0, sizeof p->out);
    memset(&p->in, 0, sizeof p->in);
    atomic_store(&p->has_ended, 0);
    lgi_comm_set_driver(p->comm, drive_probe, p);
    while (!atomic_load(&p->has_ended)) {
        lgi_futex_wait(&p->has_ended, 0, -1);
    }
    lgi_comm_set_driver(p->comm, NULL, NULL);
    LG_TRY(lgi_comm_failure(p->comm));
    qsort(p->ns, (size_t)num_rounds, sizeof p->ns[0], compare_ns);
    *out_ns = (double)p->ns[num_rounds / 2];
    return LG_OK;
}

/* From the time of a transfer, without what the first byte takes. */
static double rate_of(int64_t num_bytes, double ns, double latency_ns)
{
    const double own_ns = ns - latency_ns > ns * 0.1 ? ns - latency_ns : ns;
    return own_ns > 0 ? (double)num_bytes / own_ns * 1e9 : 0;
}

static lg_status probe_pair(probe *p, int64_t num_bytes, lgi_link_figures *out)
{
    double round_ns = 0;
    LG_TRY(run_probe(p, PROBE_PING_PONG, sizeof(int64_t), LATENCY_WARM_UPS, LATENCY_ROUNDS,
                     &round_ns));
    out->latency_ns = round_ns / 2;
    LG_TRY(run_probe(p, PROBE_PING_PONG, num_bytes, TRANSFER_WARM_UPS, TRANSFER_ROUNDS, &round_ns));
    out->bytes_per_s = rate_of(num_bytes, round_ns / 2, out->latency_ns);
    LG_TRY(run_probe(p, PROBE_BOTH, num_bytes, TRANSFER_WARM_UPS, TRANSFER_ROUNDS, &round_ns));
    out->both_bytes_per_s = rate_of(num_bytes, round_ns, out->latency_ns);
    return LG_OK;
}

lg_status lgi_comm_measure_link(lg_comm *comm, int rank_a, int rank_b, int64_t num_bytes,
                                lgi_link_figures *out)
{
    const int rank = lg_comm_rank(comm);
    *out = (lgi_link_figures){.ranks = {rank_a, rank_b}};
    if (rank == rank_a || rank == rank_b) {
        const int64_t room = num_bytes > 8 ? num_bytes : 8;
        probe *p = NULL;
        char *data = NULL;
        lg_status status = lgi_calloc(&p, 1, sizeof *p);
        if (status == LG_OK) {
            status = lgi_calloc(&data, (size_t)(2 * room), 1);
        }
        if (status == LG_OK) {
            memset(data, 1, (size_t)(2 * room)); /* real pages */
            p->comm = comm;
            p->peer = rank == rank_a ? rank_b : rank_a;
            p->is_first = rank == rank_a;
            p->out_data = data;
            p->in_data = data + room;
            status = probe_pair(p, num_bytes, out);
        } else {
            lgi_comm_fail(comm, status, lg_last_error());
        }
        lgi_free(p);
        lgi_free(data);
        LG_TRY(status);
    }
    return lgi_comm_broadcast(comm, rank_a, out, sizeof *out);
}

/* --- hosts ---------------------------------------------------------------------------------------------------------------- */

lg_status lgi_comm_hosts(lg_comm *comm, int *hosts)
{
    const int num_ranks = lg_comm_num_ranks(comm);
    char own[HOST_NAME_BYTES] = "";
    struct utsname name;
    if (uname(&name) == 0) {
        (void)strncpy(own, name.nodename, sizeof own - 1);
    }
    char *all = NULL;
    lg_status status = lgi_calloc(&all, (size_t)num_ranks, HOST_NAME_BYTES);
    if (status != LG_OK) {
        lgi_comm_fail(comm, status, lg_last_error());
        return status;
    }
    status = lgi_comm_all_gather(comm, own, HOST_NAME_BYTES, all);
    int num_hosts = 0;
    for (int rank = 0; status == LG_OK && rank < num_ranks; rank++) {
        hosts[rank] = -1;
        for (int other = 0; other < rank && hosts[rank] < 0; other++) {
            if (memcmp(all + (size_t)rank * HOST_NAME_BYTES, all + (size_t)other * HOST_NAME_BYTES,
                       HOST_NAME_BYTES) == 0) {
                hosts[rank] = hosts[other];
            }
        }
        if (hosts[rank] < 0) {
            hosts[rank] = num_hosts++;
        }
    }
    lgi_free(all);
    return status;
}

lg_status lgi_comm_measure_links(lg_comm *comm, int64_t num_bytes, lgi_link_figures *intra_host,
                                 lgi_link_figures *inter_host)
{
    const int num_ranks = lg_comm_num_ranks(comm);
    int *hosts = NULL;
    *intra_host = *inter_host = (lgi_link_figures){.ranks = {-1, -1}};
    lg_status status = lgi_calloc(&hosts, (size_t)num_ranks, sizeof *hosts);
    if (status != LG_OK) {
        lgi_comm_fail(comm, status, lg_last_error());
        return status;
    }
    LG_TRY_GOTO(lgi_comm_hosts(comm, hosts));
    for (int kind = 0; kind < 2; kind++) {
        const bool is_intra = kind == 0;
        bool is_found = false;
        for (int b = 1; b < num_ranks && !is_found; b++) {
            for (int a = 0; a < b && !is_found; a++) {
                if ((hosts[a] == hosts[b]) == is_intra) {
                    is_found = true;
                    LG_TRY_GOTO(lgi_comm_measure_link(comm, a, b, num_bytes,
                                                      is_intra ? intra_host : inter_host));
                }
            }
        }
    }
out:
    lgi_free(hosts);
    return status;
}
