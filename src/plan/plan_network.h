/*
 * Wires, and the flows on them. A message takes its latency first; then its bytes flow, at the least of its shares of
 * the wires on its way: a wire serves the flows that are on it in equal parts. Shares change only when a flow starts or
 * ends.
 *
 * Wires: within a host one for all pairs, or one for each ordered pair (lg_link.is_shared); between hosts one out of and one
 * into each host. A reduction of n bytes over D ranks takes its latencies first; then all its hops flow at once and at one pace, 2 n / D bytes
 * between each ordered pair of ranks, or those of two levels (lg_reduction). A wire that has k of the hops on it has k parts to serve,
 * and a hop with more bytes counts for more.
 *
 * Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009) for the
 * ring; direct is a reduce-scatter and an all-gather in one exchange each, Thakur, Rabenseifner and Gropp, "Optimization of Collective
 * Communication Operations in MPICH" (2005), section 4 (their pairwise exchange, with all pairs at once).
 */
#ifndef LGI_PLAN_PLAN_NETWORK_H
#define LGI_PLAN_PLAN_NETWORK_H

#include "plan/plan_events.h"
#include "plan/plan_groups.h"

/* A way through the network: the wires, and how many parts it takes of each. */
typedef struct lgi_route {
    int num_wires;
    int *wires;
    double *parts;
    double frac; /* of a reduction's bytes that is one part */
    double latency_ns;
} lgi_route;

typedef struct lgi_flow {
    int num_wires; /* 0: not flowing */
    const int *wires;
    const double *parts;
    int own_wires[2]; /* of a message */
    int first_node;   /* its places in the wires' lists: one for each wire */
    double bytes_left;
    double bytes_per_ns;
    double since_ns; /* when bytes_left was right */
} lgi_flow;

typedef struct lgi_network {
    const lg_machine *machine;
    const lgi_groups *groups;
    const lg_graph *graph;
    lgi_events *events;
    int num_hosts;
    int num_wires;
    double *bytes_per_ns; /* by wire */
    double *load;         /* by wire: parts on it */
    int *head;            /* by wire: list of nodes; -1: none */
    lgi_route *routes;    /* by communicator */
    lgi_flow *flows;
    int *node_flow; /* by node */
    int *node_next;
    int *node_prev;
} lgi_network;

/*
 * Flows are numbered like the ids of `events`, where their ends are kept. `flow_of_group`: by group, the flow that it will
 * use. INVALID_ARG for a machine with fewer ranks or with links that carry nothing.
 */
LG_NODISCARD lg_status lgi_network_init(lgi_network *out, const lg_machine *machine,
                                        const lgi_groups *groups, const lg_graph *graph,
                                        lgi_events *events, int num_flows,
                                        const int *flow_of_group);
void lgi_network_deinit(lgi_network *network);

/* Time before the first byte of a group's message. */
double lgi_network_latency_ns(const lgi_network *network, int group);

/* Starts the bytes of `group` as flow `idx` and sets its end; false if there are none to move. */
bool lgi_network_start(lgi_network *network, int idx, int group, double now_ns);

/* Flow `idx` has ended: the others on its wires go faster. */
void lgi_network_end(lgi_network *network, int idx, double now_ns);

#endif
