/**
 * The step graph: one training step as operations (ops) on values, with backward split into input gradients and
 * weight gradients.
 *
 * Ops are numbered in the textbook order (micro-batch by micro-batch: forward, loss, backward from the last layer to
 * the first with each weight gradient right beside its input gradient; then statistics, clipping, updates), so an edge
 * inside a step always goes from a smaller to a larger id. Edges with `distance` 1 come from the same op's previous
 * step: FORWARD of step t+1 reads what UPDATE of step t wrote. Any order of the ops that respects the edges computes
 * the same bits.
 *
 * A graph is immutable after creation and may be shared between threads.
 */
#ifndef LEAPGRAD_GRAPH_H
#define LEAPGRAD_GRAPH_H

#include "leapgrad/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Number of different widths (threads an op may run with) that a graph can describe. */
#define LG_MAX_WIDTHS 4
/** lg_parallel.share_bytes of a trainer's options: by the links, lg_machine_share_bytes(). */
#define LG_SHARE_BY_LINKS (-1)
/** Optimizer tensors per parameter (momentum; AdamW's two moments). */
#define LG_MAX_SLOTS 2

#define LG_OP_KIND_LIST(X) \
    X(FORWARD, "forward") /* of an input layer: copies the batch's tensor into the step */ \
    X(LOSS, "loss")       /* loss, counts and, when training, the gradient of the logits */ \
    X(INPUT_GRAD, "input_grad") \
    X(WEIGHT_GRAD, "weight_grad") \
    X(GRAD_ADD, "grad_add") /* sums the gradients of a value that several layers read */ \
    X(GRAD_STAT, \
      "grad_stat") /* sums of squares of a layer's gradient; of a micro-batch: adds it up too */ \
    X(GRAD_CLIP, "grad_clip") /* factor from all GRAD_STATs */ \
    X(RATE, "rate")           /* learning rates from GRAD_STATs: of one layer, or of all */ \
    X(ALL_REDUCE, "all_reduce") \
    X(UPDATE, "update") /* all parameters and states that a layer owns */ \
    X(SEND, "send") \
    X(RECV, "recv") \
    X(REORDER, "reorder") /* copies a value into another memory layout */

typedef enum lg_op_kind {
#define LG_OP_KIND_ENUM(name, text) LG_OP_##name,
    LG_OP_KIND_LIST(LG_OP_KIND_ENUM)
#undef LG_OP_KIND_ENUM
        LG_NUM_OP_KINDS
} lg_op_kind;

/** "forward", "weight_grad", ... */
LG_API const char *lg_op_kind_name(lg_op_kind kind);

typedef enum lg_value_kind {
    LG_VALUE_ACTIVATION, /* a layer's result */
    LG_VALUE_GRAD,       /* the gradient of an activation */
    LG_VALUE_STASH,      /* what FORWARD leaves for backward besides its input and result */
    LG_VALUE_LOSS,       /* the loss record of a micro-batch */
    LG_VALUE_SCALAR,     /* GRAD_STAT, GRAD_CLIP */
    LG_VALUE_PARAM,      /* persistent */
    LG_VALUE_PARAM_GRAD, /* the sum over the micro-batches; persistent, so that an update may lag */
    LG_VALUE_MICRO_GRAD, /* with statistics: a later micro-batch's weight gradient, before it is added */
    LG_VALUE_STAT, /* with statistics: f64 by parameter of the layer, over micro-batches; persistent */
    LG_VALUE_RATE_STATE, /* with statistics: lg_rate_state by parameter of the layer; persistent */
    LG_VALUE_RATE, /* lg_rate: by parameter of the layer and persistent, or by parameter of the model */
    LG_VALUE_SLOT,  /* persistent; optimizer */
    LG_VALUE_STATE, /* persistent */
    LG_NUM_VALUE_KINDS
} lg_value_kind;

LG_API const char *lg_value_kind_name(lg_value_kind kind);

/** A value: bytes that ops read and write. */
typedef struct lg_value_info {
    const char *name; /* unique: "activation(conv1,0)", "param(conv1.weight)" */
    lg_value_kind kind;
    int layer; /* whose result, gradient, stash; the owner for persistent values; -1 for none */
    int idx;   /* stash number; parameter or state id */
    int slot;  /* SLOT: which of the parameter's slots */
    int micro_batch; /* -1: not of one micro-batch */
    int rank;
    int layout; /* the device's number for it; 0: row-major */
    int64_t bytes;
    bool is_persistent; /* lives from step to step, never shares memory */
    bool is_output;     /* the host reads it after the step: lives to the end of it */
} lg_value_info;

/** Which argument of its op an operand is. */
typedef enum lg_role {
    LG_ROLE_X, /* idx: which input */
    LG_ROLE_Y,
    LG_ROLE_DY,     /* GRAD_ADD: idx: which addend */
    LG_ROLE_DX,     /* idx: which input */
    LG_ROLE_PARAM,  /* idx: which of the layer's parameters */
    LG_ROLE_DPARAM, /* READ_WRITE: adds to it, WRITE: sets it */
    LG_ROLE_SLOT,   /* idx: parameter * LG_MAX_SLOTS + slot */
    LG_ROLE_STATE,  /* idx: which of the layer's states */
    LG_ROLE_STASH,  /* idx: which; UPDATE: micro-batch */
    LG_ROLE_LOSS,
    LG_ROLE_STAT, /* GRAD_CLIP, RATE: idx: the layer; sums of squares of the whole gradient */
    LG_ROLE_CLIP,
    LG_ROLE_MICRO_GRAD, /* GRAD_STAT: idx: which parameter; the DPARAM that it is added to stands behind it */
    LG_ROLE_STAT_SUM,   /* idx: the layer; what GRAD_STATs of micro-batches add up */
    LG_ROLE_RATE_STATE, /* RATE: idx: the layer */
    LG_ROLE_RATE,       /* RATE, UPDATE */
    LG_ROLE_SRC,        /* REORDER, SEND */
    LG_ROLE_DST,        /* REORDER, RECV */
    LG_NUM_ROLES
} lg_role;

enum { LG_ACCESS_READ = 1, LG_ACCESS_WRITE = 2, LG_ACCESS_READ_WRITE = 3 };

typedef struct lg_operand {
    int value;
    lg_role role;
    int idx;
    int access; /* LG_ACCESS_... */
} lg_operand;

typedef struct lg_op_info {
    const char *
        name; /* unique: "weight_grad(conv1,0)": kind, layer or value, micro-batch; "@rank" if there are several. ALL_REDUCE:
                 chunk instead of micro-batch; "all_reduce(conv1+3,0)" is of conv1 and three layers behind it */
    lg_op_kind kind;
    int layer; /* -1 for GRAD_CLIP and a joint RATE; ALL_REDUCE: the first of the layers that share it */
    int micro_batch; /* -1: not of one micro-batch */
    int rank;
    int stage; /* the layer's; 0 without pipeline */
    int group; /* SEND and RECV of one message, ALL_REDUCEs of one chunk: they meet; -1: none */
    int peer;  /* SEND, RECV: the other rank */
    int chunk; /* ALL_REDUCE: which part of the gradients */
    int64_t message_bytes; /* SEND, RECV, ALL_REDUCE */
    bool is_joint;         /* INPUT_GRAD that also makes the weight gradient */
    int num_operands;
    const lg_operand *operands;
    int inplace_write; /* operand that may have the memory of operand `inplace_read` if that one dies here; or -1 */
    int inplace_read;
    double flops;
    double traffic_bytes;                   /* read and written, caches left aside */
    int64_t workspace_bytes[LG_MAX_WIDTHS]; /* by width, see lg_graph_options() */
} lg_op_info;

/** `to` may start only when `from` has ended: `distance` 0 in the same step, 1 in the step before. */
typedef struct lg_edge {
    int from;
    int to;
    int distance;
    int value; /* because of which value */
} lg_edge;

typedef enum lg_graph_mode {
    LG_GRAPH_TRAIN,  /* forward, backward, update */
    LG_GRAPH_EVAL,   /* forward with running statistics, loss record */
    LG_GRAPH_PREDICT /* forward with running statistics; the logits are the output */
} lg_graph_mode;

/**
 * How a step is spread over ranks: D replicas of a pipeline of P ranks. Rank number = replica * P + pipeline rank.
 *
 * Layers belong to stages, stages to pipeline ranks; a rank may hold several stages. Input layers belong to no stage: each
 * rank that reads one loads it. Where a value is read on another rank than the one that makes it, a SEND and a RECV carry it;
 * its gradient goes back the same way. A parameter that layers of several ranks share is kept on each of them.
 */
typedef struct lg_parallel {
    int num_replicas;       /* D, 1 or more */
    int num_pipeline_ranks; /* P, 1 or more */
    int num_stages;         /* P or more */
    const int
        *stage_of_layer; /* by layer; no layer may read one of a later stage. NULL: all stage 0 */
    const int *rank_of_stage; /* by stage: its pipeline rank. NULL: stage modulo P */
    int64_t
        chunk_bytes; /* ALL_REDUCE: a layer's gradients travel in parts of at most this (rounded down to a multiple of
                        8, but at least 8); 0: in one */
    int64_t
        share_bytes; /* ALL_REDUCE: from the last layer of a stage to its first, a layer's gradients join those of the
                        layer behind it as long as these have fewer bytes than this, and less than half (or a 16th of this) of what the stage has
                        left; 0: each layer has its own. A copy of a parameter that layers of several ranks share always
                        has its own */
} lg_parallel;

typedef struct lg_graph_opts {
    lg_graph_mode mode;
    int64_t num_samples; /* of one step, over all micro-batches */
    int num_micro_batches; /* at most num_samples are made; the first ones get one sample more if it does not divide */
    int num_slots;       /* optimizer tensors per parameter, 0..LG_MAX_SLOTS */
    bool has_clipping;   /* GRAD_STAT and GRAD_CLIP before the updates */
    bool has_grad_stats; /* GRAD_STAT for each micro-batch and RATE before the updates */
    bool
        has_joint_rates; /* one RATE for all layers, which sees all statistics; else one for each layer */
    int num_widths; /* 1..LG_MAX_WIDTHS */
    int widths[LG_MAX_WIDTHS];
    const lg_parallel *parallel; /* borrowed for the call; NULL: one rank */
} lg_graph_opts;

/** TRAIN, 1 sample, 1 micro-batch, no slots, one width of 1. */
LG_API lg_graph_opts lg_graph_opts_default(void);

typedef struct lg_graph lg_graph;

/**
 * Makes the step graph of `model` as the reference backend sees it: row-major f32, no reorders, no workspace.
 * lg_trainer (trainer.h) makes the one of a real device.
 *
 * Lifetime: `model` must outlive the graph.
 */
LG_API LG_NODISCARD lg_status lg_graph_create(lg_graph **out, const lg_model *model,
                                              const lg_graph_opts *opts);
LG_API void lg_graph_destroy(lg_graph *graph);

LG_API const lg_model *lg_graph_model(const lg_graph *graph);
LG_API const lg_graph_opts *lg_graph_options(const lg_graph *graph);
LG_API int lg_graph_num_ranks(const lg_graph *graph);
/** Over all replicas: replica d has the micro-batches d * M up to (d + 1) * M. */
LG_API int lg_graph_num_micro_batches(const lg_graph *graph);
LG_API int lg_graph_num_replicas(const lg_graph *graph);
LG_API int lg_graph_num_pipeline_ranks(const lg_graph *graph);
LG_API int lg_graph_num_stages(const lg_graph *graph);
LG_API int lg_graph_num_groups(const lg_graph *graph);
/** Samples in the micro-batches before this one, and in it. */
LG_API int64_t lg_graph_micro_batch_begin(const lg_graph *graph, int micro_batch);
LG_API int64_t lg_graph_micro_batch_samples(const lg_graph *graph, int micro_batch);

LG_API int lg_graph_num_ops(const lg_graph *graph);
LG_API int lg_graph_num_values(const lg_graph *graph);
LG_API int lg_graph_num_edges(const lg_graph *graph);
LG_API const lg_op_info *lg_graph_op(const lg_graph *graph, int op);
LG_API const lg_value_info *lg_graph_value(const lg_graph *graph, int value);
/** Sorted by `to`, then `distance`, then `from`; no two alike. */
LG_API const lg_edge *lg_graph_edges(const lg_graph *graph);
/** The op called `name`, or -1. */
LG_API int lg_graph_find_op(const lg_graph *graph, const char *name);

/** Equal for graphs with the same ops, values, sizes and edges; plans carry it. */
LG_API uint64_t lg_graph_fingerprint(const lg_graph *graph);

#ifdef __cplusplus
}
#endif

#endif
