/* Times that plans for several ranks are made with. */
#ifndef LGI_TRAIN_CLUSTER_COSTS_H
#define LGI_TRAIN_CLUSTER_COSTS_H

#include "leapgrad/plan.h"

/* Time of each layer for one micro-batch on one rank, forward and backward, estimated. `ns`: by layer. */
LG_NODISCARD lg_status lgi_cluster_layer_ns(double *ns, const lg_model *model,
                                            const lg_machine *machine,
                                            const lg_graph_opts *graph_opts);

/* Makes F, I and W of a micro-batch take 1 ms each on a rank, equal parts in each of its stages, and all else nothing. */
LG_NODISCARD lg_status lgi_cluster_equal_times(lg_costs *costs, const lg_graph *graph);

#endif
