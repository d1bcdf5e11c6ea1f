/* Making step graphs from facts, and models from models. */
#ifndef LGI_GRAPH_BUILD_H
#define LGI_GRAPH_BUILD_H

#include "graph/facts.h"

/*
 * Says what layer `layer` looks like for a micro-batch; called in topological order, once per layer and size.
 * `size_idx`: 0 for the larger micro-batch size, 1 for the smaller where the batch does not divide.
 */
typedef lg_status (*lgi_facts_fn)(void *user, int layer, int size_idx, const lgi_layer_spec *spec,
                                  lgi_layer_facts *facts);

/*
 * What the builder needs besides the model. `param_fixed`: NULL, or by parameter id the layout it is stored in already
 * (bytes 0: free to choose). `slot_elem_bytes` etc. follow the parameter's layout: gradient and slots lie alike.
 */
typedef struct lgi_graph_source {
    lgi_facts_fn facts;
    void *user;
    const lgi_layout *param_fixed;
    size_t state_elem_bytes; /* bytes of one number of a state */
} lgi_graph_source;

LG_NODISCARD lg_status lgi_graph_build(lg_graph **out, const lg_model *model,
                                       const lg_graph_opts *opts, const lgi_graph_source *source);

/*
 * A copy of `model` with activations fused where the split of backward is kept: batch_norm + relu and add + relu become
 * one layer, which keeps the first one's name and parameters. Parameter and state ids stay as they are.
 */
LG_NODISCARD lg_status lgi_model_fuse(lg_model **out, const lg_model *model);

/* The layer's part of random keys: a function of its name only, so fusing and editing a model leave others alone. */
uint64_t lgi_layer_random_key(const char *name);

/* Index of the micro-batch size class of `micro_batch`: see lgi_facts_fn. */
int lgi_graph_size_idx(const lg_graph *graph, int micro_batch);

/*
 * Bytes of the chunks (the last one aside) in which the gradients of a layer, or of layers that share messages, travel,
 * `all_bytes` together: what the options ask for, cut so that no number is, whatever the device's numbers are.
 */
int64_t lgi_graph_chunk_bytes(const lg_graph *graph, int64_t all_bytes);

/*
 * For tests and tools: a graph from bare records, no model behind it. Edges follow from the operands as in a built
 * graph (reads after writes, and for persistent values writes after reads too, over the step boundary). Ops must stand in
 * an order that is legal for a step; `workspace_bytes` etc. are copied.
 */
LG_NODISCARD lg_status lgi_graph_from_records(lg_graph **out, const lg_graph_opts *opts,
                                              const lg_value_info *values, int num_values,
                                              const lg_op_info *ops, int num_ops);

#endif
