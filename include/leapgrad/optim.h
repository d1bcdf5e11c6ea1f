/**
 * How weights change: update rules, learning-rate schedules, and the numbers that one update needs. How learning rates
 * follow from gradient statistics (AdaScale, LENA) is in rate.h.
 *
 * All functions are pure; a device does the arithmetic on tensors. Steps count from 0, the updates of a parameter from 1.
 *
 * Sources: SGD with momentum as in Sutskever et al. 2013 in the form g' = g + wd * w, v = momentum * v + g';
 * Nesterov's form as in Bengio et al. 2012; AdamW: Loshchilov and Hutter 2019, algorithm 2; cosine: Loshchilov and
 * Hutter 2017, equation 5, without restarts; linear warm-up and linear scaling: Goyal et al. 2017, sections 2.1, 2.2;
 * square-root scaling: Krizhevsky 2014; LARS: You, Gitman and Ginsburg 2017, algorithm 1; LARC: its clipped form as in
 * NVIDIA's apex; LAMB: You et al. 2020, algorithm 2 with phi the identity; AdaScale: Johnson et al. 2020, algorithm 1;
 * LENA: Ko, Lee and Kim 2022, algorithm 1.
 */
#ifndef LEAPGRAD_OPTIM_H
#define LEAPGRAD_OPTIM_H

#include "leapgrad/model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LG_MAX_MILESTONES 16

/** Update rules: enum name, name in recipes. */
#define LG_OPTIM_RULE_LIST(X) \
    X(SGD, "sgd") \
    X(ADAMW, "adamw") \
    X(LARS, "lars") \
    X(LARC, "larc") \
    X(LAMB, "lamb")

typedef enum lg_optim_rule {
#define LG_OPTIM_RULE_ENUM(name, text) LG_OPTIM_##name,
    LG_OPTIM_RULE_LIST(LG_OPTIM_RULE_ENUM)
#undef LG_OPTIM_RULE_ENUM
        LG_NUM_OPTIM_RULES
} lg_optim_rule;

/** Learning rate after the warm-up: enum name, name in recipes. */
#define LG_SCHEDULE_LIST(X) \
    X(CONSTANT, "constant") \
    X(LINEAR, "linear") \
    X(COSINE, "cosine") \
    X(STEP, "step") \
    X(EXPONENTIAL, "exponential")

typedef enum lg_schedule {
#define LG_SCHEDULE_ENUM(name, text) LG_SCHEDULE_##name,
    LG_SCHEDULE_LIST(LG_SCHEDULE_ENUM)
#undef LG_SCHEDULE_ENUM
        LG_NUM_SCHEDULES
} lg_schedule;

/** How the learning rate follows the scale S = batch / base batch: enum name, name in recipes. */
#define LG_LR_SCALING_LIST(X) \
    X(NONE, "none") \
    X(LINEAR, "linear")     /* times S */ \
    X(SQRT, "sqrt")         /* times the root of S */ \
    X(ADASCALE, "adascale") /* times AdaScale's gain */ \
    X(LENA, "lena")         /* times LENA's relative gradient variance */

typedef enum lg_lr_scaling {
#define LG_LR_SCALING_ENUM(name, text) LG_LR_SCALING_##name,
    LG_LR_SCALING_LIST(LG_LR_SCALING_ENUM)
#undef LG_LR_SCALING_ENUM
        LG_NUM_LR_SCALINGS
} lg_lr_scaling;

/** How the learning rate rises at the start: enum name, name in recipes. */
#define LG_WARMUP_LIST(X) \
    X(NONE, "none") \
    X(LINEAR, "linear")       /* over warmup_steps */ \
    X(LAYERWISE, "layerwise") /* each group's own, by its progress (LENA, equation 7) */

typedef enum lg_warmup {
#define LG_WARMUP_ENUM(name, text) LG_WARMUP_##name,
    LG_WARMUP_LIST(LG_WARMUP_ENUM)
#undef LG_WARMUP_ENUM
        LG_NUM_WARMUPS
} lg_warmup;

/** What a layer-wise warm-up's length is a part of: enum name, name in recipes. */
#define LG_WARMUP_BUDGET_LIST(X) \
    X(AUTO, "auto")             /* run for the variant leapgrad, else iterations */ \
    X(ITERATIONS, "iterations") /* of the single worker's iterations: LENA as published */ \
    X(RUN, "run") /* of what the group can progress in this run, at its present gain */

typedef enum lg_warmup_budget {
#define LG_WARMUP_BUDGET_ENUM(name, text) LG_WARMUP_BUDGET_##name,
    LG_WARMUP_BUDGET_LIST(LG_WARMUP_BUDGET_ENUM)
#undef LG_WARMUP_BUDGET_ENUM
        LG_NUM_WARMUP_BUDGETS
} lg_warmup_budget;

/** What shares a gain, a warm-up and a schedule position: enum name, name in recipes. */
#define LG_GROUPING_LIST(X) \
    X(AUTO, "auto") /* network for adascale; block for the variant leapgrad; else tensor */ \
    X(TENSOR, "tensor") \
    X(LAYER, "layer") /* all parameters that a layer owns */ \
    X(BLOCK, "block") /* those, and those of the norm behind it */ \
    X(NETWORK, "network")

typedef enum lg_grouping {
#define LG_GROUPING_ENUM(name, text) LG_GROUPING_##name,
    LG_GROUPING_LIST(LG_GROUPING_ENUM)
#undef LG_GROUPING_ENUM
        LG_NUM_GROUPINGS
} lg_grouping;

/** Whose arithmetic gains and layer-wise warm-ups follow: enum name, name in recipes. */
#define LG_RATE_VARIANT_LIST(X) \
    X(PAPER, "paper") \
    X(RELEASED_CODE, "released-code") /* the program that LENA's authors published */ \
    X(LEAPGRAD, "leapgrad")           /* LENA's with what made it better here: docs/lena.md */

typedef enum lg_rate_variant {
#define LG_RATE_VARIANT_ENUM(name, text) LG_RATE_VARIANT_##name,
    LG_RATE_VARIANT_LIST(LG_RATE_VARIANT_ENUM)
#undef LG_RATE_VARIANT_ENUM
        LG_NUM_RATE_VARIANTS
} lg_rate_variant;

/** What the schedule counts: enum name, name in recipes. */
#define LG_SCHEDULE_BY_LIST(X) \
    X(STEP, "step") \
    X(ITERATION, "iteration") /* scale-invariant iterations: the sum of the group's gains so far */

typedef enum lg_schedule_by {
#define LG_SCHEDULE_BY_ENUM(name, text) LG_SCHEDULE_BY_##name,
    LG_SCHEDULE_BY_LIST(LG_SCHEDULE_BY_ENUM)
#undef LG_SCHEDULE_BY_ENUM
        LG_NUM_SCHEDULE_BYS
} lg_schedule_by;

/** What a gradient that is not finite skips, with statistics: enum name, name in recipes. */
#define LG_SKIP_LIST(X) \
    X(STEP, "step") /* the update of all parameters: it waits for all layers' statistics */ \
    X(LAYER, \
      "layer") /* that of the layer: each layer is updated as soon as its own gradient is there */

typedef enum lg_skip {
#define LG_SKIP_ENUM(name, text) LG_SKIP_##name,
    LG_SKIP_LIST(LG_SKIP_ENUM)
#undef LG_SKIP_ENUM
        LG_NUM_SKIPS
} lg_skip;

LG_API const char *lg_lr_scaling_name(lg_lr_scaling scaling);
LG_API const char *lg_warmup_name(lg_warmup warmup);
LG_API const char *lg_warmup_budget_name(lg_warmup_budget budget);
LG_API const char *lg_grouping_name(lg_grouping grouping);
LG_API const char *lg_rate_variant_name(lg_rate_variant variant);
LG_API const char *lg_schedule_by_name(lg_schedule_by by);
LG_API const char *lg_skip_name(lg_skip skip);

/** "sgd", "adamw", ... */
LG_API const char *lg_optim_rule_name(lg_optim_rule rule);
/** "constant", ... */
LG_API const char *lg_schedule_name(lg_schedule schedule);

/** A plain value: copy it freely. */
typedef struct lg_optim_opts {
    lg_optim_rule rule;
    double lr;        /* the highest learning rate: the one at the end of the warm-up */
    double momentum;  /* SGD, LARS, LARC: [0, 1) */
    bool is_nesterov; /* SGD, LARS, LARC; needs momentum > 0 */
    double
        weight_decay; /* SGD, LARS, LARC: added to the gradient; AdamW, LAMB: decoupled, times lr */
    bool
        decay_norm_and_bias; /* false: weight decay only for matrices and kernels (lg_param_info.is_matrix) */
    double beta1;            /* AdamW, LAMB: [0, 1) */
    double beta2;            /* AdamW, LAMB: [0, 1) */
    double epsilon;   /* AdamW, LAMB: > 0, added outside the root */
    double clip_norm; /* scales the gradient of the whole model to at most this norm; 0: off */
    lg_schedule schedule;
    int64_t
        warmup_steps; /* lr rises linearly; step t < warmup_steps has lr * (t + 1) / warmup_steps */
    double
        min_lr_frac; /* LINEAR, COSINE, EXPONENTIAL: where lr arrives at step T, as a part of `lr` */
    int num_milestones;                   /* STEP */
    double milestones[LG_MAX_MILESTONES]; /* STEP: parts of T in [0, 1], rising */
    double step_factor;                   /* STEP: lr is multiplied by this at each milestone */
    double trust_coefficient;             /* LARS, LARC: > 0, factor on the ratio of norms */
    lg_lr_scaling scaling;
    double
        base_batch; /* samples that `lr` is meant for: S = batch / base_batch; 0: a micro-batch's */
    lg_warmup warmup;
    double warmup_frac;             /* LAYERWISE: its length, as a part of the budget: alpha */
    lg_warmup_budget warmup_budget; /* LAYERWISE */
    lg_grouping grouping;
    lg_rate_variant variant;
    double
        gain_epsilon; /* LENA: added above and below in its ratio; LINEAR etc. with statistics too */
    double
        gain_power; /* ADASCALE, LENA: the rate is multiplied by gain ^ gain_power; 0: see lg_optim_gain_power() */
    lg_schedule_by schedule_by;
    double total_iterations; /* ITERATION: where the schedule ends; 0: num_steps * S */
    lg_skip skip;
    bool has_statistics; /* observe gains and noise scales even where no rate depends on them */
} lg_optim_opts;

/**
 * SGD, lr 0.1, momentum 0.9, no decay, betas 0.9 and 0.999, epsilon 1e-8, no clipping, constant, step factor 0.1; trust
 * coefficient 0.001, no scaling, linear warm-up (of 0 steps), warm-up part 0.05, gain epsilon 1e-6, the rest 0.
 */
LG_API lg_optim_opts lg_optim_opts_default(void);

/** INVALID_ARG names the first option that is out of range, and its range. */
LG_API LG_NODISCARD lg_status lg_optim_opts_check(const lg_optim_opts *opts);

/**
 * The learning rate of step `step` of `num_steps`, for checked options. With W = warmup_steps (0 but for WARMUP_LINEAR), T = num_steps and
 * p = (step - W) / (T - W) after the warm-up:
 *   constant  lr
 *   linear    lr * (1 - p * (1 - min_lr_frac))
 *   cosine    lr * (min_lr_frac + (1 - min_lr_frac) * (1 + cos(pi * p)) / 2)
 *   step      lr * step_factor ^ (number of milestones m with step >= m * T)
 *   exponential  lr * min_lr_frac ^ p
 * Steps at or after T have p = 1.
 */
LG_API double lg_optim_lr(const lg_optim_opts *opts, int64_t step, int64_t num_steps);

/** Whether rates depend on gradient statistics, or these are to be observed: the step graph then has them. */
LG_API bool lg_optim_has_statistics(const lg_optim_opts *opts);

/** gain_power, or where that is 0: 1.25 for LENA in the variant LEAPGRAD, else 1. */
LG_API double lg_optim_gain_power(const lg_optim_opts *opts);

/** The budget of the layer-wise warm-up with AUTO resolved. */
LG_API lg_warmup_budget lg_optim_warmup_budget(const lg_optim_opts *opts);

/** The grouping with AUTO resolved (BLOCK not where skip is LAYER). */
LG_API lg_grouping lg_optim_grouping(const lg_optim_opts *opts);

/** The samples that `lr` is meant for: base_batch, or where that is 0 the mean micro-batch of a full batch. */
LG_API double lg_optim_base_batch(const lg_optim_opts *opts, int64_t batch_samples,
                                  int num_micro_batches);

/** The factor on the learning rate that needs no statistics: S for LINEAR, its root for SQRT, else 1. */
LG_API double lg_optim_fixed_factor(const lg_optim_opts *opts, double scale);

/** Tensors kept per parameter: SGD, LARS, LARC 1 with momentum, else 0; AdamW, LAMB 2. At most LG_MAX_SLOTS. */
LG_API int lg_optim_num_slots(const lg_optim_opts *opts);

/** The weight decay that holds for `param`: 0 for those excluded. */
LG_API double lg_optim_weight_decay(const lg_optim_opts *opts, const lg_param_info *param);

/** The factor on the gradient from the sum of its squares over the whole model: min(1, clip_norm / norm). */
LG_API double lg_optim_clip_factor(const lg_optim_opts *opts, double sum_squares);

/** What one update of one parameter needs besides its tensors. */
typedef struct lg_optim_numbers {
    lg_optim_rule rule;
    double lr;
    double weight_decay;
    double momentum;
    bool is_nesterov;
    double beta1;
    double beta2;
    double epsilon;
    int64_t update_number; /* counts from 1: this is the parameter's update_number-th update */
} lg_optim_numbers;

/** Whether the ratio of norms (LARS, LARC, LAMB) holds for `param`: not for norms and biases. */
LG_API bool lg_optim_is_adapted(const lg_optim_opts *opts, const lg_param_info *param);

/**
 * LARS and LARC: the factor on gradient plus decay, from the norms of the weight and of the (clipped) gradient.
 * With q = trust_coefficient * |w| / (|g| + weight_decay * |w|): LARS q, LARC min(q / lr, 1). 1 if a norm is 0.
 */
LG_API double lg_optim_trust_ratio(const lg_optim_opts *opts, double lr, double weight_decay,
                                   double weight_norm, double grad_norm);

/** The numbers for the update of `param` that belongs to step `step` of `num_steps`. */
LG_API lg_optim_numbers lg_optim_step_numbers(const lg_optim_opts *opts, const lg_param_info *param,
                                              int64_t step, int64_t num_steps);

#ifdef __cplusplus
}
#endif

#endif
