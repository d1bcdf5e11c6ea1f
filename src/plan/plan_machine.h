/* What a machine must be. */
#ifndef LGI_PLAN_PLAN_MACHINE_H
#define LGI_PLAN_PLAN_MACHINE_H

#include "leapgrad/plan.h"

/* Every field in its range. INVALID_ARG names the first that is not. */
LG_NODISCARD lg_status lgi_machine_check(const lg_machine *machine);

/* What messages need: ranks for all of the graph, hosts, and links that carry something. */
LG_NODISCARD lg_status lgi_machine_check_links(const lg_machine *machine, int num_ranks);

/* --- reductions over `num` ranks, which ascend --------------------------------------------------------------------------- */

/* `frac` of the reduction's bytes goes from one rank to another. */
typedef void lgi_hop_visitor(void *user, int from, int to, double frac);

void lgi_reduction_hops(const lg_machine *machine, const int *ranks, int num,
                        lgi_hop_visitor *visit, void *user);
/* The time before the bytes flow. */
double lgi_reduction_latency_ns(const lg_machine *machine, const int *ranks, int num);
/* The whole, with the wires to itself. */
double lgi_reduction_ns(const lg_machine *machine, const int *ranks, int num, double bytes);

#endif
