/* Data-parallel strategies: from an order of units to lanes with reductions and updates. */
#ifndef LGI_PLAN_DATA_PARALLEL_H
#define LGI_PLAN_DATA_PARALLEL_H

#include "plan/strategies/units.h"

/* `name`: the plan's. `order`: of replica 0's units, see lgi_schedule_run(). */
LG_NODISCARD lg_status lgi_data_barrier(lg_plan **out, const lgi_units *units, const char *name,
                                        const lgi_unit *order, int num_order);
LG_NODISCARD lg_status lgi_data_wfbp(lg_plan **out, const lgi_units *units, const char *name,
                                     const lgi_unit *order, int num_order);
LG_NODISCARD lg_status lgi_data_priority(lg_plan **out, const lgi_units *units, const char *name,
                                         const lgi_unit *order, int num_order);
LG_NODISCARD lg_status lgi_data_reverse_first_k(lg_plan **out, const lgi_units *units,
                                                const char *name, const lgi_unit *order,
                                                int num_order);

#endif
