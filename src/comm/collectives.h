/*
 * What is made of messages for the host, outside of steps. All ranks call these in the same order, from one thread each.
 * They use CHANNEL_HOST. A failure is the communicator's, unless said otherwise.
 */
#ifndef LGI_COMM_COLLECTIVES_H
#define LGI_COMM_COLLECTIVES_H

#include <stdint.h>

#include "leapgrad/comm.h"

LG_NODISCARD lg_status lgi_comm_broadcast(lg_comm *comm, int root, void *data, int64_t num_bytes);
/* `all`: room for num_ranks times num_bytes, by rank; only root's is written. */
LG_NODISCARD lg_status lgi_comm_gather(lg_comm *comm, int root, const void *own, int64_t num_bytes,
                                       void *all);
LG_NODISCARD lg_status lgi_comm_all_gather(lg_comm *comm, const void *own, int64_t num_bytes,
                                           void *all);
LG_NODISCARD lg_status lgi_comm_barrier(lg_comm *comm);
/*
 * INVALID_ARG on all ranks unless all have the same text; the message names `what`, the two ranks and the first line that
 * differs. The communicator lives on.
 */
LG_NODISCARD lg_status lgi_comm_agree(lg_comm *comm, const char *what, const char *text);
/* This rank's clock (lgi_clock_ns) minus rank 0's, good to half of the shortest round trip. */
LG_NODISCARD lg_status lgi_comm_clock_offset(lg_comm *comm, int64_t *out_ns);

/* A path between two ranks, measured. */
typedef struct lgi_link_figures {
    int ranks[2];            /* -1: no such pair */
    double latency_ns;       /* one way, of a message of 8 bytes */
    double bytes_per_s;      /* one way */
    double both_bytes_per_s; /* each way, while both ways are in use */
} lgi_link_figures;

/* Ping-pong between two ranks with messages of num_bytes. All ranks get the figures. */
LG_NODISCARD lg_status lgi_comm_measure_link(lg_comm *comm, int rank_a, int rank_b,
                                             int64_t num_bytes, lgi_link_figures *out);
/* The same between the first two ranks of a host, and between ranks of the first two hosts. */
LG_NODISCARD lg_status lgi_comm_measure_links(lg_comm *comm, int64_t num_bytes,
                                              lgi_link_figures *intra_host,
                                              lgi_link_figures *inter_host);
/*
 * The host of each rank, by its name, numbered in the order of their first ranks; hosts[0 .. num_ranks). What reaches whom
 * over which link; which ranks share cores is another question (lg_comm_num_host_ranks).
 */
LG_NODISCARD lg_status lgi_comm_hosts(lg_comm *comm, int *hosts);

/*
 * The rate of the link between ranks of different hosts: from it the communication thread knows when a message is worth a look,
 * and messages are cut in pieces where it is slow. For large messages an MPI asks back and forth whenever both sides look at it,
 * which is seldom while they compute, and a slow link stands still meanwhile; what is below a limit is sent at once. Fast links
 * keep whole messages. Rank 0's arguments count; no other message is under way.
 */
LG_NODISCARD lg_status lgi_comm_set_far_link(lg_comm *comm, int ranks_per_host, double bytes_per_s);

#endif
