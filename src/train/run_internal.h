/* A run in progress. */
#ifndef LGI_TRAIN_RUN_INTERNAL_H
#define LGI_TRAIN_RUN_INTERNAL_H

#include "leapgrad/report.h"
#include "train/run_dir.h"
#include "train/run_job.h"
#include "train/run_measure.h"
#include "train/run_resume.h"

/* What a run came to, over its ranks. Alone it is the rank's own; with several, rank 0's is complete. */
typedef struct lgi_run_sum {
    int64_t planned_peak_bytes; /* the largest of the ranks */
    int64_t measured_peak_bytes;
    lg_timeline *measured; /* of all ranks; NULL: none */
    /* Several ranks: */
    int64_t *peaks;       /* by rank: planned, measured */
    lg_rank_stats *stats; /* of the timeline, by rank; NULL: not known */
    double bubble_frac;   /* mean; NaN: not known */
    double exposed_comm_frac;
    int64_t bytes_sent; /* by all; -1: not known */
} lgi_run_sum;

/* A step that was made, until its result is looked at: with several ranks one step later, so that no rank waits for another. */
typedef struct lgi_made_step {
    int64_t step;
    int64_t num_samples;
    bool is_full;
    uint64_t total_ns; /* data included */
    bool has_result;   /* on all ranks */
    lg_step_result result;
} lgi_made_step;

typedef struct lgi_run {
    const lg_recipe *recipe;
    lg_run_opts opts;
    lgi_ranks ranks;
    lgi_run_dir dir;
    lg_job *job;
    lg_metrics_log *metrics;
    lgi_run_measure measure;
    lgi_run_sum sum;
    char *recipe_json;
    char *recipe_yaml;
    char *extra_json;
    char started_at[32]; /* of this process; UTC */
    int64_t first_step;
    int64_t num_steps;
    int64_t last_checkpoint_step; /* -1: none */
    int num_made;                 /* steps whose results nobody looked at */
    lgi_made_step made[2];
    double loss;       /* of the last step */
    int num_skipped;   /* steps in a row that were skipped */
    bool is_logged[2]; /* by part: the metrics have it at first_step already */
    bool has_test;
    lg_evaluation test; /* the last one on test data */
    bool has_validation;
    lg_evaluation validation;
} lgi_run;

/* A line for people, from rank 0. */
void lgi_run_say(const lgi_run *run, const char *format, ...) LG_PRINTF(2, 3);

/* run_prepare.c: makes the job, loads what it goes on from, claims the directory. */
LG_NODISCARD lg_status lgi_run_prepare(lgi_run *run, bool *out_was_finished);

/* "2026-01-31T12:00:00Z", now. */
void lgi_format_time(char *text, size_t num_bytes);

/* Writes run.json. `state`: running, finished, interrupted, failed; `message`: why it failed, or NULL. */
LG_NODISCARD lg_status lgi_run_save_record(lgi_run *run, const char *state, const char *message);

/* Writes what is known before the first step: run.json, recipe, plan, costs. */
LG_NODISCARD lg_status lgi_run_save_start(lgi_run *run);

/* Writes what is known at the end: run.json, timelines, report. */
LG_NODISCARD lg_status lgi_run_save_end(lgi_run *run, const char *state, const char *message);

/* Appends an evaluation to the metrics. */
LG_NODISCARD lg_status lgi_run_log_evaluation(lgi_run *run, const lg_evaluation *evaluation);

/* Trains as one rank of opts->comm, or alone. */
LG_NODISCARD lg_status lgi_run_train_rank(const lg_recipe *recipe, const lg_run_opts *opts,
                                          lg_run_result *result);

/* The executor's own part of a measured step; NaN: not known, as with several ranks. */
double lgi_run_overhead_frac(lgi_run *run);

/* run_sum.c; all ranks call these. */

void lgi_run_sum_init(lgi_run_sum *sum);
void lgi_run_sum_deinit(lgi_run_sum *sum);
/* The peaks of all ranks. */
LG_NODISCARD lg_status lgi_run_sum_peaks(lgi_run *run);
/* What the timeline of a recorded step says; before the end. */
LG_NODISCARD lg_status lgi_run_sum_timeline(lgi_run *run);

/* run_rates.c; without gradient statistics all of them do nothing. */

/* *out: the median of the last step's learning rates over the parameters. */
LG_NODISCARD lg_status lgi_run_median_lr(const lgi_run *run, double *out);
/* The last step's rates, for a line of metrics. */
LG_NODISCARD lg_status lgi_run_set_rates(const lgi_run *run, lg_record *record);
/* Where optim.total_iterations are reached, the step that was done last is the last one. */
LG_NODISCARD lg_status lgi_run_end_by_iterations(lgi_run *run);
/* "rates": warm-up end, median gain and the like by parameter. */
LG_NODISCARD lg_status lgi_run_set_rate_table(lgi_run *run, lg_record *record);
/* The same as messages. */
LG_NODISCARD lg_status lgi_run_tell_rates(lgi_run *run);

/* Appends a training step. */
LG_NODISCARD lg_status lgi_run_log_step(lgi_run *run, const lg_step_result *result,
                                        const lg_run_progress *progress);

#endif
