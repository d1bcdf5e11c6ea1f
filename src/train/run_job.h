/* A job from the inside. */
#ifndef LGI_TRAIN_RUN_JOB_H
#define LGI_TRAIN_RUN_JOB_H

#include "leapgrad/placement.h"
#include "train/run_data.h"
#include "train/run_ranks.h"

struct lg_job {
    const lg_recipe *recipe;
    lgi_run_data data; /* zero without data */
    bool has_data;
    lg_model *model;
    lg_trainer *trainer;
    int64_t num_steps;
    lgi_ranks *ranks;
    lgi_ranks own_ranks; /* behind `ranks`, unless a run lends its own */
    lg_stages stages;    /* empty with one pipeline rank and one stage */
    bool has_machine;    /* of a file, for links */
    lg_machine machine;
    int64_t batch_shift; /* step t trains on the loader's batch t + batch_shift */
};

/* Where a run stood in its data when its checkpoint was written. */
typedef struct lgi_data_place {
    int64_t step;          /* steps done */
    int64_t epoch;         /* whole epochs done */
    int64_t epoch_samples; /* samples of the next one that were seen */
} lgi_data_place;

/* Where another plan or other costs than the recipe's are wanted; as lg_job_create() otherwise. */
typedef struct lgi_job_overrides {
    bool without_data;
    const char *plan_path;    /* NULL: the recipe's */
    const char *costs_path;   /* NULL: the recipe's costs */
    const char *machine_path; /* NULL: the recipe's; several ranks only */
    lgi_ranks *ranks;         /* borrowed; NULL: alone */
    const lgi_data_place
        *place; /* NULL: the beginning; else the data go on from there, from a whole batch */
} lgi_job_overrides;

/* INVALID_ARG unless the recipe is for so many ranks. */
LG_NODISCARD lg_status lgi_check_num_ranks(const lg_recipe *recipe, int num_ranks);

LG_NODISCARD lg_status lgi_job_create(lg_job **out, const lg_recipe *recipe,
                                      const lgi_job_overrides *overrides);

/* The next batch of training data. Lifetime of *out: until the next call. */
LG_NODISCARD lg_status lgi_job_next_batch(lg_job *job, const lg_batch **out);

/* Trains on it. `result` NULL: no rank waits for another one's loss. */
LG_NODISCARD lg_status lgi_job_train_batch(lg_job *job, const lg_batch *batch,
                                           lg_step_result *result);

/* S: the full batch over the batch that the learning rate is meant for. */
double lgi_job_scale(const lg_job *job);

/* INVALID_ARG if a weight or state is NaN or infinite, naming the tensor. The same on all ranks. */
LG_NODISCARD lg_status lgi_job_check_weights(lg_job *job);

/* Each batch is a round of its ranks; stops early, with INTERRUPTED, when rank 0 says so. */
LG_NODISCARD lg_status lgi_job_evaluate(lg_job *job, lg_data_part part, lg_evaluation *out);

#endif
