/**
 * How weights change: update rules, learning-rate schedules, and the numbers that one update needs.
 *
 * All functions are pure; a device does the arithmetic on tensors. Steps count from 0, the updates of a parameter from 1.
 *
 * Sources: SGD with momentum as in Sutskever et al. 2013 in the form g' = g + wd * w, v = momentum * v + g';
 * Nesterov's form as in Bengio et al. 2012; AdamW: Loshchilov and Hutter 2019, algorithm 2; cosine: Loshchilov and
 * Hutter 2017, equation 5, without restarts; linear warm-up: Goyal et al. 2017, section 2.2.
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
    X(ADAMW, "adamw")

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
    X(STEP, "step")

typedef enum lg_schedule {
#define LG_SCHEDULE_ENUM(name, text) LG_SCHEDULE_##name,
    LG_SCHEDULE_LIST(LG_SCHEDULE_ENUM)
#undef LG_SCHEDULE_ENUM
        LG_NUM_SCHEDULES
} lg_schedule;

/** "sgd", "adamw". */
LG_API const char *lg_optim_rule_name(lg_optim_rule rule);
/** "constant", ... */
LG_API const char *lg_schedule_name(lg_schedule schedule);

/** A plain value: copy it freely. */
typedef struct lg_optim_opts {
    lg_optim_rule rule;
    double lr;           /* the highest learning rate: the one at the end of the warm-up */
    double momentum;     /* SGD: [0, 1) */
    bool is_nesterov;    /* SGD, needs momentum > 0 */
    double weight_decay; /* SGD: added to the gradient; AdamW: decoupled, times lr */
    bool
        decay_norm_and_bias; /* false: weight decay only for matrices and kernels (lg_param_info.is_matrix) */
    double beta1;            /* AdamW: [0, 1) */
    double beta2;            /* AdamW: [0, 1) */
    double epsilon;   /* AdamW: > 0, added outside the root */
    double clip_norm; /* scales the gradient of the whole model to at most this norm; 0: off */
    lg_schedule schedule;
    int64_t
        warmup_steps; /* lr rises linearly; step t < warmup_steps has lr * (t + 1) / warmup_steps */
    double min_lr_frac; /* LINEAR, COSINE: where lr would arrive at step T, as a part of `lr` */
    int num_milestones; /* STEP */
    double milestones[LG_MAX_MILESTONES]; /* STEP: parts of T in [0, 1], rising */
    double step_factor;                   /* STEP: lr is multiplied by this at each milestone */
} lg_optim_opts;

/** SGD, lr 0.1, momentum 0.9, no decay, betas 0.9 and 0.999, epsilon 1e-8, no clipping, constant, step factor 0.1. */
LG_API lg_optim_opts lg_optim_opts_default(void);

/** INVALID_ARG names the first option that is out of range, and its range. */
LG_API LG_NODISCARD lg_status lg_optim_opts_check(const lg_optim_opts *opts);

/**
 * The learning rate of step `step` of `num_steps`, for checked options. With W = warmup_steps, T = num_steps and
 * p = (step - W) / (T - W) after the warm-up:
 *   constant  lr
 *   linear    lr * (1 - p * (1 - min_lr_frac))
 *   cosine    lr * (min_lr_frac + (1 - min_lr_frac) * (1 + cos(pi * p)) / 2)
 *   step      lr * step_factor ^ (number of milestones m with step >= m * T)
 * Steps at or after T have p = 1.
 */
LG_API double lg_optim_lr(const lg_optim_opts *opts, int64_t step, int64_t num_steps);

/** Tensors kept per parameter: SGD 1 with momentum, else 0; AdamW 2. At most LG_MAX_SLOTS. */
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

/** The numbers for the update of `param` that belongs to step `step` of `num_steps`. */
LG_API lg_optim_numbers lg_optim_step_numbers(const lg_optim_opts *opts, const lg_param_info *param,
                                              int64_t step, int64_t num_steps);

#ifdef __cplusplus
}
#endif

#endif
