/* What a machine must be. */
#ifndef LGI_PLAN_PLAN_MACHINE_H
#define LGI_PLAN_PLAN_MACHINE_H

#include "leapgrad/plan.h"

/* Every field in its range. INVALID_ARG names the first that is not. */
LG_NODISCARD lg_status lgi_machine_check(const lg_machine *machine);

/* What messages need: ranks for all of the graph, hosts, and links that carry something. */
LG_NODISCARD lg_status lgi_machine_check_links(const lg_machine *machine, int num_ranks);

#endif
