/* What a run may change when it is resumed, and what a checkpoint keeps to find out. */
#ifndef LGI_TRAIN_RUN_RESUME_H
#define LGI_TRAIN_RUN_RESUME_H

#include "train/run_job.h"

/* What a run's checkpoints keep besides the recipe. */
typedef struct lgi_resume_facts {
    char train_hash[LGI_DATA_HASH_CHARS];
    char device[32];
    int num_cores;           /* 0: not known (checkpoints of earlier versions) */
    int64_t batch_samples;   /* of a full batch; 0: not known */
    int64_t steps_per_epoch; /* with that batch */
    int64_t batch_shift;     /* see lg_job */
} lgi_resume_facts;

/* Of a job. */
lgi_resume_facts lgi_resume_facts_of(const lg_job *job);

/* As the JSON object that a checkpoint stores, and back. Ownership of *out: the caller's, lgi_free(). */
LG_NODISCARD lg_status lgi_resume_facts_format(char **out, const lgi_resume_facts *facts);
LG_NODISCARD lg_status lgi_resume_facts_parse(lgi_resume_facts *out, const char *json);

/* Where the data stood after `step` steps; without what earlier versions did not store, as if no batch had ever changed. */
bool lgi_resume_place(lgi_data_place *out, const lgi_resume_facts *facts, int64_t step);

typedef struct lgi_recipe_changes {
    bool has_plan_changes;   /* a key that the plan depends on */
    bool has_length_changes; /* steps or epochs */
    bool has_batch_changes;  /* batch or micro-batches, where rates follow the batch */
} lgi_recipe_changes;

/* Compares key by key. INVALID_ARG names a key whose change would change the bits, with both values. */
LG_NODISCARD lg_status lgi_resume_compare(lgi_recipe_changes *out, const char *stored_json,
                                          const char *new_json);

/* Holds a job against what the run was. INVALID_ARG if data or device differ. */
LG_NODISCARD lg_status lgi_resume_check(const lgi_resume_facts *was, const lg_job *job);

#endif
