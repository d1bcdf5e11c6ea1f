/*
 * The device interface: what a backend offers. A backend prepares layers (lowering), allocates counted memory and runs
 * ops on pointers; it knows nothing of plans. All functions that run an op have no error path for wrong arguments:
 * everything is checked when the layer is prepared. What a library reports while running comes back as a status.
 *
 * Thread safety: open, close, prepare and allocate from one thread; run functions from many threads at once, each with
 * its own operands and workspace. A run function is called on the thread that drives a lane; if it wants `width` threads
 * it forks them itself (OpenMP teams of a lane are pinned by the executor).
 *
 * Same bits: a run's result depends on nothing but its inputs and the machine's number of cores: not on the width, the
 * thread, or what runs beside it.
 */
#ifndef LGI_DEVICE_DEVICE_H
#define LGI_DEVICE_DEVICE_H

#include "graph/facts.h"

typedef struct lgi_device lgi_device;
typedef struct lgi_device_layer lgi_device_layer;
typedef struct lgi_device_reorder lgi_device_reorder;

/* What holds for the whole step that an op belongs to. */
typedef struct lgi_step {
    int64_t number; /* counts from 0 */
    uint64_t seed;
    double
        loss_scale; /* 1 / (sum of target weights over the whole step): the only place of normalisation */
    const void *const
        *inputs; /* the batch: host pointers, row-major, f32 or i32, all samples of the step */
} lgi_step;

/* One micro-batch's loss record; sums in f64 so that the order of micro-batches is the only order there is. */
typedef struct lgi_loss_record {
    double loss_sum; /* sum of weight * loss; divide by weight_sum for the mean */
    double weight_sum;
    int64_t num_correct; /* targets that are the arg max (the first one of equals) */
    int64_t num_targets; /* not ignored */
} lgi_loss_record;

/* Operands of a layer's op. Which are set follows from the facts; unused ones are NULL. */
typedef struct lgi_layer_io {
    const void *const *x; /* by input */
    void *y;              /* FORWARD writes, gradients read */
    const void *dy;
    void *const *dx; /* by input; NULL entries: not wanted */
    const void
        *param[LG_MAX_LAYER_PARAMS]; /* FORWARD: as stored; INPUT_GRAD: as param_input_grad says */
    void *dparam[LG_MAX_LAYER_PARAMS];
    bool accumulates_param[LG_MAX_LAYER_PARAMS]; /* add to dparam instead of setting it */
    void *stash[LGI_MAX_STASHES];
    const void *state[LG_MAX_LAYER_STATES]; /* EVAL, PREDICT: running statistics */
    lgi_loss_record *loss;                  /* LOSS */
    void *workspace;      /* 64-byte aligned; workspace_bytes of the phase and width */
    int64_t first_sample; /* of the micro-batch within the step */
    const lgi_step *step;
} lgi_layer_io;

typedef enum lgi_update_rule { LGI_UPDATE_SGD, LGI_UPDATE_ADAMW, LGI_UPDATE_LAMB } lgi_update_rule;

/*
 * One parameter's update, elementwise over `num_elems` stored numbers (padding included: it stays zero).
 * SGD: g' = trust_ratio * (clip * g + weight_decay * w); slot0 = momentum * slot0 + g' (first step: g');
 * w -= lr * (nesterov ? g' + momentum * slot0 : slot0); without momentum there is no slot: w -= lr * g'.
 * ADAMW (Loshchilov and Hutter 2019): w -= lr * weight_decay * w; m, v in slots 0, 1; bias-corrected by `step_number`.
 * LAMB (You et al. 2020): m, v as AdamW's; u = m' / (root of v' + epsilon) + weight_decay * w; w -= lr * r * u with
 * r = |w| / |u| where `is_adapted` and neither is 0, else 1. Norms in f64, in an order that does not depend on the width.
 */
typedef struct lgi_update {
    lgi_update_rule rule;
    int64_t num_elems;
    void *param;
    const void *grad;
    void *slots[LG_MAX_SLOTS];
    double lr;
    double clip;        /* factor on the gradient; 1: none */
    double trust_ratio; /* SGD; 1: none */
    bool is_adapted;    /* LAMB */
    double weight_decay;
    double momentum;
    bool is_nesterov;
    double beta1, beta2, epsilon;
    int64_t step_number; /* counts from 1: updates of this parameter so far and this one */
} lgi_update;

struct lgi_device_ops {
    const char *name; /* "cpu", "reference", "reference-f64" */
    const char *help; /* one line */

    size_t real_bytes; /* bytes of one real number: 4, or 8 for an f64 backend */
    bool wants_fusion; /* the model goes through lgi_model_fuse() first */

    /*
     * `num_cores`: of the machine. A backend may cut sums into that many parts; so that the bits do not depend on it, the
     * width of an op must not.
     */
    lg_status (*open)(lgi_device **out, int num_cores);
    void (*close)(lgi_device *device);

    /* One line on what was found ("AVX-512 with bf16, oneDNN 2.6.3"), for reports. Lifetime: until close(). */
    const char *(*describe)(const lgi_device *device);

    /*
     * Called once on each thread that drives a lane of `num_threads` cores, before it runs ops: a backend that forks teams
     * makes this thread's team now and calls `bind(user, thread_idx)` on each of its threads, so that they stay on the lane's
     * cores. (optional: without it the driving thread itself is bound.)
     */
    void (*start_lane)(lgi_device *device, int num_threads,
                       void (*bind)(void *user, int thread_idx), void *user);

    /* Counted memory, aligned to a page, zeroed. OUT_OF_MEMORY naming the bytes. */
    lg_status (*alloc)(lgi_device *device, void **out, int64_t bytes);
    void (*free)(lgi_device *device, void *memory, int64_t bytes);
    int64_t (*peak_bytes)(
        const lgi_device *device); /* the most that was allocated at a time since open() */

    /*
     * Prepares a layer for a micro-batch size, fills in the facts (starting from lgi_layer_facts_natural()). NOT_SUPPORTED
     * names the layer and what is missing. The spec's pointers are borrowed for the call only, except `layer->attrs`.
     */
    lg_status (*layer_create)(lgi_device *device, const lgi_layer_spec *spec,
                              lgi_layer_facts *facts, lgi_device_layer **out);
    void (*layer_destroy)(lgi_device_layer *layer);

    /* Runs a phase. LOSS is FORWARD of a softmax_cross_entropy layer: x = {logits, targets}, dx[0] wanted or NULL. */
    lg_status (*run)(lgi_device_layer *layer, lgi_phase phase, int width_idx,
                     const lgi_layer_io *io);

    /* A copy from one layout into another of the same tensor. `shape` with the batch dimension where it has one. */
    lg_status (*reorder_create)(lgi_device *device, const lg_shape *shape, int from_layout,
                                int to_layout, int num_widths, const int *widths,
                                lgi_device_reorder **out);
    void (*reorder_destroy)(lgi_device_reorder *reorder);
    lg_status (*reorder_run)(lgi_device_reorder *reorder, int width_idx, void *dst,
                             const void *src);

    /* dst = srcs[0] + srcs[1] + ..., in this order, over `bytes` of equal layout; dst may be srcs[0]. */
    void (*grad_add)(lgi_device *device, int width, int64_t bytes, void *dst,
                     const void *const *srcs, int num_srcs);

    /* Sum of squares of `num_elems` stored numbers, in f64, in an order that does not depend on the width. */
    double (*sum_squares)(lgi_device *device, int width, int64_t num_elems, const void *src);

    /*
     * Adds gradients to where they add up and returns the sum of squares of one micro-batch's gradient, in one pass, in f64, in
     * an order that does not depend on the width. For each use u of a parameter: grads[u] is added to sums[u]; or grads[u] is
     * NULL, and sums[u] holds this micro-batch's gradient alone already. What is squared is the sum over u, in this order.
     */
    double (*grad_stat)(lgi_device *device, int width, int64_t num_elems, void *const *sums,
                        const void *const *grads, int num_uses);

    void (*update)(lgi_device *device, int width, const lgi_update *update);

    /*
     * Folds a micro-batch's statistics stash of a batch_norm layer into its running mean and variance
     * (unbiased variance; `num_reduced` = samples * space of the micro-batch).
     */
    void (*fold_statistics)(lgi_device *device, void *running_mean, void *running_var,
                            const void *stash, int64_t num_channels, int64_t num_reduced,
                            double momentum, double epsilon);

    /*
     * Host access to stored tensors: f32 row-major on the host side. `layout` as in the facts; `shape` as above.
     * `is_param`: a parameter's (padding is written as zeros).
     */
    lg_status (*read)(lgi_device *device, const lg_shape *shape, int layout, const void *stored,
                      float *host);
    lg_status (*write)(lgi_device *device, const lg_shape *shape, int layout, void *stored,
                       const float *host);
};

/* Base of every backend's device. */
struct lgi_device {
    const struct lgi_device_ops *ops;
};

/* Base of every backend's prepared layer. */
struct lgi_device_layer {
    const struct lgi_device_ops *ops;
};

/* All backends of this build, preferred first, ending in the reference. NULL-terminated. */
const struct lgi_device_ops *const *lgi_device_registry(void);

/* The backend called `name` ("auto": the first); INVALID_ARG lists the names. */
LG_NODISCARD lg_status lgi_device_find(const struct lgi_device_ops **out, const char *name);

#endif
