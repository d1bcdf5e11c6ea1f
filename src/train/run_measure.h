/* What a run measures of itself: times of steps, and timelines of a few ordinary steps in the middle. */
#ifndef LGI_TRAIN_RUN_MEASURE_H
#define LGI_TRAIN_RUN_MEASURE_H

#include "leapgrad/run.h"

/* Times of the last so many steps are kept for the median. */
#define LGI_MAX_STEP_TIMES 8192
#define LGI_NUM_RECORDED_STEPS 5

typedef struct lgi_run_measure {
    double *step_ns; /* ring of the last full steps */
    int64_t num_steps;
    double train_ns; /* of all steps, data included */
    int64_t num_samples;
    double recent_ns; /* of a step, data included, lately */

    /*
     * Steps that leave a timeline: every `record_every`-th of [record_from, record_end). Putting one together makes several ranks
     * wait for each other, so there they lie some steps apart.
     */
    int64_t record_from;
    int64_t record_end;
    int64_t record_every;
    int num_timelines;
    lg_timeline timelines[LGI_NUM_RECORDED_STEPS];
} lgi_run_measure;

/* For a run of the steps [first_step, num_steps). */
LG_NODISCARD lg_status lgi_run_measure_init(lgi_run_measure *measure, int64_t first_step,
                                            int64_t num_steps, int num_ranks);
void lgi_run_measure_deinit(lgi_run_measure *measure);

/* Before step `step`: turns recording on or off. */
void lgi_run_measure_begin(lgi_run_measure *measure, lg_trainer *trainer, int64_t step);

/* Right after it. `is_full`: of the usual batch size; others say nothing about the plan. */
LG_NODISCARD lg_status lgi_run_measure_record(lgi_run_measure *measure, const lg_trainer *trainer,
                                              int64_t step, bool is_full);

/* When its result is known. */
void lgi_run_measure_end(lgi_run_measure *measure, const lg_step_result *result,
                         int64_t num_samples, uint64_t total_ns, bool is_full);

/* NaN without a step. */
double lgi_run_measure_median_ms(const lgi_run_measure *measure);
double lgi_run_measure_samples_per_s(const lgi_run_measure *measure);

/* Which recorded timeline is of median length; -1 without any. */
int lgi_run_measure_median(const lgi_run_measure *measure);

/* The recorded timeline of median length; NULL without any. Lifetime: until deinit. */
lg_timeline *lgi_run_measure_timeline(lgi_run_measure *measure);

/*
 * The part of a measured step in which no lane ran an op: what starting ops, waiting for events and handing steps over
 * costs. (A lane that waits while another one works is the plan's doing, not the executor's.)
 */
double lgi_timeline_overhead_frac(const lg_timeline *timeline);

#endif
