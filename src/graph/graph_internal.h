/* The step graph's insides, for the files that make graphs: records are added, then lgi_graph_finish() derives the rest. */
#ifndef LGI_GRAPH_INTERNAL_H
#define LGI_GRAPH_INTERNAL_H

#include "graph/build.h"

struct lg_graph {
    const lg_model *model; /* NULL for a graph from bare records */
    lg_graph_opts opts;
    int num_micro_batches;
    lg_value_info *values;
    size_t num_values, values_capacity;
    lg_op_info *ops;
    size_t num_ops, ops_capacity;
    lg_edge *edges;
    size_t num_edges, edges_capacity;
    int *op_by_name; /* open addressing over op names; -1: free */
    size_t op_by_name_size;
    int num_ranks;
    int num_replicas;
    int num_pipeline_ranks;
    int num_stages;
    int num_groups;
    int64_t chunk_bytes; /* of ALL_REDUCEs; 0: not cut */
    int64_t share_bytes; /* layers share an ALL_REDUCE until it has so many; 0: none does */
    uint64_t fingerprint;
};

/* An empty graph. Checks the options. */
LG_NODISCARD lg_status lgi_graph_start(lg_graph **out, const lg_model *model,
                                       const lg_graph_opts *opts);

/* Adds a value; the name is copied. */
LG_NODISCARD lg_status lgi_graph_add_value(lg_graph *graph, const lg_value_info *value,
                                           int *out_value);

/* Adds an op; name and operands are copied. */
LG_NODISCARD lg_status lgi_graph_add_op(lg_graph *graph, const lg_op_info *op, int *out_op);

/* Derives edges, the index of names and the fingerprint; the graph is immutable from here on. */
LG_NODISCARD lg_status lgi_graph_finish(lg_graph *graph);

#endif
