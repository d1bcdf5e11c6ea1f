/*
 * The state of a graph under construction, shared by the files that build its parts: forward (build.c), backward, what
 * comes after the gradients (build_update.c, build_reduce.c), and what moves values between layouts and ranks
 * (build_move.c).
 */
#ifndef LGI_GRAPH_BUILDER_H
#define LGI_GRAPH_BUILDER_H

#include "graph/graph_internal.h"

#define LGI_MAX_OPERANDS (3 * LGI_MAX_LAYER_INPUTS + 16)
/* A layer name has at most 200 characters; a value's name has two of them at most. */
#define LGI_GRAPH_NAME_BYTES 640

/* A value that was copied into another layout, or onto another rank. */
struct moved_value {
    int value;
    int layout;
    int rank;
    int moved;
};

/* The gradients that reached a layer's result so far, in the order in which they are to be added. */
struct contributions {
    int *values;
    size_t num, capacity;
};

/* One layer's use of a parameter. */
struct param_use {
    int layer;
    int param_idx;
};

struct builder {
    lg_graph *graph;
    const lg_model *model;
    const lgi_graph_source *source;
    int num_layers;
    int num_params;
    int num_ranks;
    int num_pipeline_ranks;
    int num_stages;
    int loss_layer;
    bool *is_live;          /* by layer: the result is needed */
    bool *needs_grad;       /* by layer: a parameter lies at or before it */
    int *stage;             /* by layer; -1 for inputs */
    int *pipeline_rank;     /* by layer; -1 for inputs */
    lgi_layer_facts *facts; /* size_idx * num_layers + layer */

    /* of the micro-batch under construction */
    int micro_batch;
    int replica;
    int *
        activations; /* by layer (inputs: layer * num_pipeline_ranks + rank behind the others): value or -1 */
    int *input_activations;      /* layer * num_pipeline_ranks + pipeline rank */
    struct contributions *grads; /* by layer */
    struct moved_value *moved;
    size_t num_moved, moved_capacity;
    size_t
        num_moved_params; /* the first entries: copies of parameters, good for all micro-batches of a replica */

    /* of the whole step */
    int *stashes;           /* (micro_batch * num_layers + layer) * LGI_MAX_STASHES + stash */
    struct param_use *uses; /* of all parameters; those of one are first_use[param].. */
    int *first_use;         /* num_params + 1 of them */
    int *param_values;      /* rank * num_params + param; -1: not on this rank */
    int *param_grad_values; /* the same */
    int *slot_values;       /* (rank * num_params + param) * LG_MAX_SLOTS + slot */
    int *
        use_grad_values; /* (rank * num_layers + layer) * LG_MAX_LAYER_PARAMS + param_idx: where the layer's gradient
                                 adds up; the parameter's own, or that of this use if the parameter is tied */
    bool *is_use_grad_written; /* the same index */
    int *
        micro_grads; /* the same index: the micro-batch's own gradient, if it is not written there directly */
    int *
        stat_after; /* by layer: the layer whose backward makes the last gradient of its parameters; -1: none */
    int *stat_sums;    /* rank * num_layers + layer: STAT; -1: none */
    int *rate_states;  /* the same: RATE_STATE */
    int *rates;        /* the same: RATE of the layer, or of all layers */
    int *state_values; /* rank * num_states + state */

    /* the op under construction */
    lg_operand operands[LGI_MAX_OPERANDS];
    lg_op_info op;
    char name[LGI_GRAPH_NAME_BYTES + 32];
};

const lgi_layer_facts *lgi_builder_facts(const struct builder *b, int layer);

/* The rank on which `layer` runs for the replica under construction. */
int lgi_builder_rank(const struct builder *b, int layer);

const char *lgi_builder_layer_name(const struct builder *b, int layer);

/* Starts an op of `layer` (-1: none) on `rank`; micro_batch -1: not of one. */
void lgi_builder_start_op(struct builder *b, lg_op_kind kind, int layer, int micro_batch, int rank);
/* Adds an operand and returns its position. */
int lgi_builder_add_operand(struct builder *b, int value, lg_role role, int idx, int access);
void lgi_builder_set_work(struct builder *b, const lgi_phase_facts *phase);
/* Work of an op that just moves its operands. */
void lgi_builder_set_work_from_operands(struct builder *b);
LG_NODISCARD lg_status lgi_builder_finish_op(struct builder *b);

/* Adds a value; with several ranks its name gets "@rank". */
LG_NODISCARD lg_status lgi_builder_add_value(struct builder *b, lg_value_kind kind, int layer,
                                             int micro_batch, int rank, lgi_layout layout, int *out,
                                             const char *name_format, ...) LG_PRINTF(8, 9);

/* build_move.c */

/* `value` in `layout` on its own rank: itself, an earlier copy, or the result of a new REORDER op. */
LG_NODISCARD lg_status lgi_builder_convert(struct builder *b, int value, lgi_layout layout,
                                           int *out);

/* `value` on `rank`: itself, an earlier copy, or what a new SEND and RECV bring. */
LG_NODISCARD lg_status lgi_builder_bring(struct builder *b, int value, int rank, int *out);

/* One message with several values. */
LG_NODISCARD lg_status lgi_builder_send_values(struct builder *b, const char *what,
                                               const int *values, int num_values, int rank,
                                               int *out_values);

/* build_backward.c: the gradients of one layer for the micro-batch under construction. */
LG_NODISCARD lg_status lgi_build_backward(struct builder *b, int layer);
LG_NODISCARD lg_status lgi_build_loss(struct builder *b);

/* build.c: the values that an op of `layer` reads; `wanted`: bit by input. */
LG_NODISCARD lg_status lgi_builder_read_inputs(struct builder *b, int layer, uint64_t wanted,
                                               int *values);
LG_NODISCARD lg_status lgi_builder_read_params(struct builder *b, int layer,
                                               const lgi_layout *layouts, uint32_t wanted,
                                               int *values);
int lgi_builder_stash(const struct builder *b, int micro_batch, int layer, int stash);

/* build_stat.c: gradient statistics and rates. */
LG_NODISCARD lg_status lgi_build_stat_values(struct builder *b);
/* After the backward of `layer`: the GRAD_STATs of this micro-batch whose gradients are there now. */
LG_NODISCARD lg_status lgi_build_micro_stats(struct builder *b, int layer);
/* The sums of squares of what `layer` owns, on its own rank: one number, or with statistics one by parameter. */
LG_NODISCARD lg_status lgi_build_stat(struct builder *b, int layer, int *out);
/* RATE ops of the replica under construction. `stats`: by layer, -1: owns no parameters. */
LG_NODISCARD lg_status lgi_build_rates(struct builder *b, const int *stats);

/* build_update.c */

/* Fills `uses` and `first_use` of the builder. */
LG_NODISCARD lg_status lgi_builder_index_uses(struct builder *b);
/* The layers that use `param`, in layer order; room for all layers. Returns how many. */
int lgi_builder_find_uses(const struct builder *b, int param, struct param_use *uses);
bool lgi_builder_owns_param(const struct builder *b, int layer, int param_idx);
/* Position of a use in use_grad_values and the like. */
int lgi_builder_use_index(const struct builder *b, int rank, const struct param_use *use);
/* Brings the values of one rank among `own` to another in one message; replaces them in `values`. */
LG_NODISCARD lg_status lgi_builder_bring_stats(struct builder *b, const char *what, int from_rank,
                                               int to_rank, const int *own, int num_values,
                                               int *values);
/* The parameters that `layer` owns and that a pipeline rank holds. */
int lgi_builder_params_on(const struct builder *b, int layer, int pipeline_rank, int *params);
LG_NODISCARD lg_status lgi_build_persistent(struct builder *b);
LG_NODISCARD lg_status lgi_build_after_gradients(struct builder *b);

/* build_reduce.c: the sums over replicas, from the last layer to the first. */
LG_NODISCARD lg_status lgi_build_reductions(struct builder *b);

#endif
