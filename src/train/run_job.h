/* A job from the inside. */
#ifndef LGI_TRAIN_RUN_JOB_H
#define LGI_TRAIN_RUN_JOB_H

#include "train/run_data.h"

struct lg_job {
    const lg_recipe *recipe;
    lgi_run_data data; /* zero without data */
    bool has_data;
    lg_model *model;
    lg_trainer *trainer;
    int64_t num_steps;
};

/* Where another plan or other costs than the recipe's are wanted; as lg_job_create() otherwise. */
typedef struct lgi_job_overrides {
    bool without_data;
    const char *plan_path;  /* NULL: the recipe's */
    const char *costs_path; /* NULL: the recipe's costs */
} lgi_job_overrides;

LG_NODISCARD lg_status lgi_job_create(lg_job **out, const lg_recipe *recipe,
                                      const lgi_job_overrides *overrides);

/* The next batch of training data. Lifetime of *out: until the next call. */
LG_NODISCARD lg_status lgi_job_next_batch(lg_job *job, const lg_batch **out);

/* Trains on it. */
LG_NODISCARD lg_status lgi_job_train_batch(lg_job *job, const lg_batch *batch,
                                           lg_step_result *result);

/* S: the full batch over the batch that the learning rate is meant for. */
double lgi_job_scale(const lg_job *job);

/* INVALID_ARG if a weight or state is NaN or infinite, naming the tensor. */
LG_NODISCARD lg_status lgi_job_check_weights(lg_job *job);

/* Stops early, with INTERRUPTED, when *should_stop (may be NULL) becomes non-zero. */
LG_NODISCARD lg_status lgi_job_evaluate(lg_job *job, lg_data_part part,
                                        const volatile sig_atomic_t *should_stop,
                                        lg_evaluation *out);

#endif
