/*
 * A rank waits for at most one other as far as it tells (lgi_activity, or a host thread in lgi_comm_wait), so the ranks and
 * whom they wait for are a graph of one arrow each. Following the arrows from a rank either ends, at a rank that waits for none,
 * or comes round. A circle in which nothing gets done for the timeout is a stall: signs are up to half a second old, which
 * matters little as long as the same circle with the same counts is seen all the time.
 */
#include "comm/circle.h"

#include <stdio.h>

/* Whom the rank of a sign waits for, with nothing else going on; -1: none. */
static int waits_for(const lgi_comm_sign *sign)
{
    if (sign->activity.waits_for_rank >= 0) {
        return sign->activity.waits_for_rank;
    }
    return sign->activity.op < 0 ? sign->host_waits_for_rank : -1;
}

static bool sign_of(lg_comm *comm, int rank, lgi_comm_sign *out)
{
    if (rank == comm->rank) {
        *out = lgi_comm_own_sign(comm);
        return true;
    }
    uint64_t heard_ns = 0;
    return comm->transport->told(comm, rank, out, &heard_ns);
}

/* A number that changes when the circle does or something gets done in it. 0: no circle through `start`. */
static uint64_t circle_progress(lg_comm *comm, int start)
{
    uint64_t progress = 1;
    int rank = start;
    for (int i = 0; i < comm->num_ranks; i++) {
        lgi_comm_sign sign;
        if (!sign_of(comm, rank, &sign)) {
            return 0;
        }
        const int next = waits_for(&sign);
        if (next < 0 || next >= comm->num_ranks || next == rank) {
            return 0;
        }
        const uint64_t values[] = {(uint64_t)rank, sign.activity.num_done, sign.num_host_waits,
                                   (uint64_t)sign.activity.step};
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            progress = (progress ^ values[v]) * UINT64_C(0x100000001b3);
        }
        if (next == start) {
            return progress | 1;
        }
        rank = next;
    }
    return 0;
}

/* The lowest rank of a circle, so that all who find it tell it alike. */
static int first_of_circle(lg_comm *comm, int start)
{
    int first = start;
    int rank = start;
    for (int i = 0; i < comm->num_ranks; i++) {
        lgi_comm_sign sign;
        if (!sign_of(comm, rank, &sign) || (rank = waits_for(&sign)) < 0 || rank == start) {
            break;
        }
        first = rank < first ? rank : first;
    }
    return first;
}

static void report(lg_comm *comm, int start, double seconds)
{
    start = first_of_circle(comm, start);
    char message[LGI_COMM_FAILURE_BYTES];
    size_t used = (size_t)snprintf(message, sizeof message, "no progress for %.1f s: ", seconds);
    int rank = start;
    for (int i = 0; i < comm->num_ranks && used + 1 < sizeof message; i++) {
        lgi_comm_sign sign;
        if (!sign_of(comm, rank, &sign)) {
            break;
        }
        char text[256];
        const int next = waits_for(&sign);
        sign.activity.waits_for_rank = -1; /* is said in other words */
        sign.host_waits_for_rank = -1;
        lgi_comm_describe(text, sizeof text, &sign);
        const int wrote =
            snprintf(message + used, sizeof message - used, "%srank %d%s%s%s waits for rank %d",
                     i > 0 ? ", " : "", rank, text[0] ? " (" : "", text, text[0] ? ")" : "", next);
        used += wrote > 0 ? (size_t)wrote : 0;
        if (next == start || next < 0) {
            break;
        }
        rank = next;
    }
    lgi_comm_fail(comm, LG_TIMEOUT, message);
}

void lgi_comm_find_circle(lg_comm *comm, uint64_t now_ns, uint64_t slept_ns)
{
    int start = comm->rank;
    uint64_t progress = circle_progress(comm, start);
    for (int rank = 1; progress == 0 && comm->rank == 0 && rank < comm->num_ranks; rank++) {
        start = rank;
        progress = circle_progress(comm, rank);
    }
    if (progress == 0 || progress != comm->circle_progress) {
        comm->circle_progress = progress;
        comm->circle_since_ns = now_ns;
        return;
    }
    comm->circle_since_ns += slept_ns;
    const uint64_t stalled_ns = now_ns - comm->circle_since_ns;
    if (stalled_ns > lgi_comm_patience_ns(comm)) {
        report(comm, start, (double)stalled_ns * 1e-9);
    }
}
