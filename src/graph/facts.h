/*
 * What a backend says of one layer at one micro-batch size. With these facts the step graph is built; after that no
 * one needs the backend to plan.
 */
#ifndef LGI_GRAPH_FACTS_H
#define LGI_GRAPH_FACTS_H

#include "leapgrad/graph.h"

#define LGI_MAX_LAYER_INPUTS 64
#define LGI_MAX_STASHES 3

/* How a tensor lies in memory: a number that the device gave out (0: row-major) and the bytes it takes. */
typedef struct lgi_layout {
    int id;
    int64_t bytes;
} lgi_layout;

typedef enum lgi_phase {
    LGI_PHASE_FORWARD,
    LGI_PHASE_INPUT_GRAD,
    LGI_PHASE_WEIGHT_GRAD,
    LGI_NUM_PHASES
} lgi_phase;

/* Cost figures of one phase. A joint op and a LOSS stand under INPUT_GRAD and FORWARD. */
typedef struct lgi_phase_facts {
    double flops;
    double traffic_bytes;
    int64_t workspace_bytes[LG_MAX_WIDTHS];
    bool reads_output;      /* besides the gradient of it */
    uint64_t reads_inputs;  /* bit i: input i (FORWARD reads all anyway) */
    uint32_t reads_stashes; /* bit s: stash s (FORWARD writes all anyway) */
    uint32_t reads_params;  /* bit p: parameter p (FORWARD reads all anyway) */
} lgi_phase_facts;

typedef struct lgi_layer_facts {
    lgi_layout out;                      /* the result and its gradient */
    lgi_layout in[LGI_MAX_LAYER_INPUTS]; /* input i and its gradient, as this layer wants them */
    lgi_layout
        param[LG_MAX_LAYER_PARAMS]; /* as stored; FORWARD reads it so; its gradient lies alike */
    lgi_layout param_input_grad
        [LG_MAX_LAYER_PARAMS]; /* as INPUT_GRAD reads it; where it reads it at all */
    int num_stashes;
    int64_t stash_bytes[LGI_MAX_STASHES];
    int stats_stash;                  /* the stash that UPDATE folds into the states; -1: none */
    bool has_differentiable_input[2]; /* inputs 0 and 1; all others like input 0 */
    bool is_forward_view;             /* the result is input 0 itself: no op */
    bool is_input_grad_view; /* each input's gradient is the output's gradient itself: no op */
    bool
        is_input_grad_shared; /* INPUT_GRAD makes one tensor (DX 0) that is the gradient of every input */
    bool is_joint;            /* INPUT_GRAD makes the weight gradients too */
    bool is_forward_in_place; /* the result may take the memory of input 0 */
    bool
        is_input_grad_in_place; /* the gradient of input 0 may take the memory of the output's gradient (LOSS: of the
                                    logits) */
    lgi_phase_facts phases[LGI_NUM_PHASES];
} lgi_layer_facts;

/* What is asked of a backend: one layer at one micro-batch size. */
typedef struct lgi_layer_spec {
    const lg_layer_info *layer;
    lg_graph_mode mode;
    int64_t num_samples;
    const lg_shape *in_shapes; /* of one sample, by input */
    const lg_dtype *in_dtypes;
    const lgi_layout *in_layouts; /* how the producers leave the inputs */
    bool needs_input_grad;        /* false for a layer that only the batch reaches */
    const lg_shape *param_shapes; /* by parameter */
    const lgi_layout *
        param_fixed; /* by parameter; bytes > 0: stored like this already (tied, or another size) */
    uint64_t random_key; /* dropout: the layer's part of the key */
    int num_widths;
    const int *widths;
} lgi_layer_spec;

/*
 * The facts of a backend that keeps everything row-major in `elem_bytes` per real number, with the data dependencies
 * that a layer kind has by its mathematics (what its gradients must read). Backends start from these and change what
 * they do differently. Stashes: batch_norm one (mean then inverse deviation, 2*C reals, also the statistics), layer_norm
 * one (mean, inverse deviation per row), max_pool one (i32 position in the input map per output element), attention one
 * (probabilities n*heads*T*T). In EVAL and PREDICT no stashes.
 */
void lgi_layer_facts_natural(lgi_layer_facts *facts, const lgi_layer_spec *spec, size_t elem_bytes);

#endif
