/*
 * Lowering: the step graph of a model as a device sees it (layouts, reorders, bytes, workspaces), together with what the
 * device prepared for each op. After this the planner needs no device, and the executor asks the device nothing more.
 */
#ifndef LGI_EXEC_LOWER_H
#define LGI_EXEC_LOWER_H

#include "device/device.h"
#include "graph/build.h"

typedef struct lgi_lowered {
    lgi_device *device;
    const lg_model *model;
    lg_graph *graph;
    int num_layers;
    int rank;                      /* whose ops are to run: nothing is prepared for others' */
    lgi_device_layer **layers;     /* size_idx * num_layers + layer; NULL where nothing runs */
    lgi_device_reorder **reorders; /* by op; NULL for other ops */
    int num_reorders;              /* REORDER ops in a step of the rank */
} lgi_lowered;

/*
 * The graph is that of all ranks: the device is asked about all layers, so that all ranks have the same one. What it prepared
 * is kept for the ops of `rank`.
 *
 * `param_fixed`: NULL, or by parameter id the layout it has in another graph of this model. Lifetime: `device` and `model`
 * must outlive the result.
 */
LG_NODISCARD lg_status lgi_lower(lgi_lowered **out, lgi_device *device, const lg_model *model,
                                 const lg_graph_opts *opts, const lgi_layout *param_fixed,
                                 int rank);
void lgi_lowered_destroy(lgi_lowered *lowered);

/* By parameter id: the layout in which this graph stores it; room for lg_model_num_params(). */
void lgi_lowered_param_layouts(const lgi_lowered *lowered, lgi_layout *layouts);

/* What the device prepared for the layer of this op. */
lgi_device_layer *lgi_lowered_layer(const lgi_lowered *lowered, int op);

#endif
