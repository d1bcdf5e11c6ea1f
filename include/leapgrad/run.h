/**
 * Runs: a recipe carried out. A job is a recipe's data, model and trainer; a run trains a job in a run directory, where it
 * leaves everything that people and programs want to know afterwards (docs/formats/run.md).
 *
 * What a run computes is a function of the recipe and the data: training, interruption and resuming give the bits of an
 * uninterrupted run. Every file is written whole or not at all.
 *
 * The library prints nothing: callbacks say what happens.
 */
#ifndef LEAPGRAD_RUN_H
#define LEAPGRAD_RUN_H

#include <signal.h>

#include "leapgrad/comm.h"
#include "leapgrad/recipe.h"
#include "leapgrad/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** "0.1.0". */
LG_API const char *lg_version(void);

/* --- jobs --------------------------------------------------------------------------------------------------------- */

/** What a recipe describes, made and ready to train. Thread safety: one thread at a time. */
typedef struct lg_job lg_job;

typedef struct lg_job_opts {
    /** Leaves the data files alone, if the recipe says enough about them (text): the job can load and generate only. */
    bool without_data;
    const char *plan_path; /* runs this plan instead of the recipe's; NULL: as the recipe says */
    /**
     * Several ranks (ranks.pipeline times ranks.replicas): this rank's end. Every rank makes the job and calls its functions in the
     * same order, as with lg_trainer_opts.comm. Borrowed: must outlive the job. NULL: one rank.
     */
    lg_comm *comm;
} lg_job_opts;

/** With data, the recipe's plan. */
LG_API lg_job_opts lg_job_opts_default(void);

/**
 * Reads the data, builds the model, makes the trainer with its plan.
 *
 * @param[out] out  Ownership: the caller's; lg_job_destroy(). NULL on failure.
 * @param recipe    Lifetime: must outlive the job.
 * @param opts      NULL for the defaults.
 * @return IO, CORRUPT, INVALID_ARG for data that cannot be used; what lg_trainer_create() returns.
 */
LG_API LG_NODISCARD lg_status lg_job_create(lg_job **out, const lg_recipe *recipe,
                                            const lg_job_opts *opts);
LG_API void lg_job_destroy(lg_job *job);

/** Lifetime of what these return: until lg_job_destroy(). */
LG_API const lg_recipe *lg_job_recipe(const lg_job *job);
LG_API const lg_model *lg_job_model(const lg_job *job);
LG_API lg_trainer *lg_job_trainer(lg_job *job);
/** train.steps, or what train.epochs come to. 0 without data. */
LG_API int64_t lg_job_num_steps(const lg_job *job);
LG_API int64_t lg_job_steps_per_epoch(const lg_job *job);
/** Samples (images, windows of text) of an epoch. */
LG_API int64_t lg_job_samples_per_epoch(const lg_job *job);

/**
 * Trains the next step of the job on its data. What lg_run_train() does, without its directory.
 *
 * @param job            The job, with data.
 * @param[out] result    May be NULL.
 */
LG_API LG_NODISCARD lg_status lg_job_step(lg_job *job, lg_step_result *result);

/** Loads weights (and, unless `weights_only`, all that it takes to go on) from a run directory or a checkpoint. */
LG_API LG_NODISCARD lg_status lg_job_load(lg_job *job, const char *path, bool weights_only);

/** The recipe that a run directory or a checkpoint was made with, and overrides. Ownership: the caller's. */
LG_API LG_NODISCARD lg_status lg_recipe_of_run(lg_recipe **out, const char *path,
                                               const char *const *overrides, int num_overrides);

/* --- evaluation --------------------------------------------------------------------------------------------------- */

typedef enum lg_data_part {
    LG_PART_TEST,      /* test images, held-out text */
    LG_PART_VALIDATION /* the part of the training data that data.validation_frac keeps back */
} lg_data_part;

/** "test", "validation". */
LG_API const char *lg_data_part_name(lg_data_part part);

typedef struct lg_evaluation {
    lg_data_part part;
    int64_t step;         /* steps done */
    double loss;          /* mean over the targets */
    double accuracy;      /* 0..1; images and masked text, else NaN */
    double bits_per_byte; /* of the targets, label smoothing left aside; text, else NaN */
    int64_t num_targets;
    uint64_t duration_ns;
    char weights_hash[LG_WEIGHTS_HASH_CHARS];
} lg_evaluation;

/** Evaluates all of a part. INVALID_ARG if the recipe keeps no such part. */
LG_API LG_NODISCARD lg_status lg_job_evaluate(lg_job *job, lg_data_part part, lg_evaluation *out);

/* --- text --------------------------------------------------------------------------------------------------------- */

typedef struct lg_generate_opts {
    const char *prompt; /* its bytes are what goes before; "": a line break does */
    int64_t num_tokens;
    double temperature; /* logits are divided by it; 0: always the most likely token */
    uint64_t seed;      /* token number i is a function of (weights, prompt, temperature, seed) */
} lg_generate_opts;

/** The recipe's. Lifetime of the prompt: the recipe's. */
LG_API lg_generate_opts lg_generate_opts_of(const lg_recipe *recipe);

/** Gets each byte as it is drawn; false ends the generation. */
typedef bool (*lg_text_sink_fn)(void *user, unsigned char byte);

/**
 * Continues a text, byte by byte. A text longer than the model's context slides out of it.
 *
 * @return INVALID_ARG if the job's model is no GPT of bytes, or an option is out of range.
 */
LG_API LG_NODISCARD lg_status lg_job_generate(lg_job *job, const lg_generate_opts *opts,
                                              lg_text_sink_fn sink, void *user);

/* --- runs --------------------------------------------------------------------------------------------------------- */

/** What is known when training begins. Lifetime of everything: the callback. */
typedef struct lg_run_start {
    const char *directory;
    const lg_recipe *recipe;
    lg_trainer_info trainer; /* rank 0's */
    int num_ranks;
    int64_t planned_peak_bytes; /* the largest of the ranks' */
    const char *comm;   /* how the ranks reach each other (lg_comm_name()); NULL: one rank */
    int64_t first_step; /* > 0: resumed */
    int64_t num_steps;
    int64_t steps_per_epoch;
    int64_t samples_per_epoch;
} lg_run_start;

typedef struct lg_run_progress {
    int64_t step; /* steps done */
    int64_t num_steps;
    double epoch;
    double loss; /* of this step */
    double lr;
    double samples_per_s; /* lately */
    double step_ms;       /* of this step, data included */
    double eta_s;         /* evaluations to come left aside */
} lg_run_progress;

/** All callbacks may be NULL; they come from the thread that called lg_run_train(), on rank 0 only. */
typedef struct lg_run_listener {
    void *user;
    void (*on_start)(void *user, const lg_run_start *start);
    void (*on_step)(void *user, const lg_run_progress *progress);
    void (*on_evaluation)(void *user, const lg_evaluation *evaluation);
    /** One line for people: a checkpoint was written, an earlier run was moved aside. */
    void (*on_message)(void *user, const char *text);
    /** A text by the trained model, at the end. Not 0-terminated. */
    void (*on_sample)(void *user, const char *text, size_t num_bytes);
} lg_run_listener;

typedef struct lg_run_opts {
    /**
     * Goes on with the run in the directory, from its last checkpoint (or from the beginning, if it did not get to one).
     * The recipe may differ in what does not change the bits: run, plan, generate, data.prefetch, files that were moved,
     * exec.lanes, exec.threads, all of ranks but replicas, train.eval_every, checkpoint_every, log_every, and its length. Anything
     * else is refused, by name.
     */
    bool resume;
    const volatile sig_atomic_t *
        should_stop; /* becomes non-zero: stop after the step (several ranks: one or two later); NULL: never */
    lg_run_listener listener;
    /**
     * Several ranks: this rank's end; each of them calls lg_run_train() with its own. NULL: alone, or, if the recipe asks for several
     * ranks, all of them as threads of this process.
     */
    lg_comm *comm;
} lg_run_opts;

/** No resuming, no callbacks. */
LG_API lg_run_opts lg_run_opts_default(void);

/** What a run came to; what is not known is NaN. */
typedef struct lg_run_result {
    char *directory;
    int64_t num_steps; /* done */
    double loss;       /* of the last step */
    lg_evaluation test;
    bool has_test;
    char weights_hash[LG_WEIGHTS_HASH_CHARS];
    double step_ms_median;
    double predicted_step_ms;
    double samples_per_s;
    int64_t planned_peak_bytes;
    int64_t measured_peak_bytes;
    double
        executor_overhead_frac; /* of a measured step: time in which no lane ran an op; NaN with several ranks */
    bool was_finished; /* there was nothing left to do */
    /* Several ranks, of a measured step: means over the ranks, and the sum of what they sent. Peaks are the largest of the ranks'. */
    int num_ranks;
    double bubble_frac;
    double exposed_comm_frac;
    int64_t bytes_sent; /* -1: not known */
} lg_run_result;

LG_API void lg_run_result_deinit(lg_run_result *result);

/**
 * Trains a recipe in its run directory (run.dir, or runs/ and run.name).
 *
 * Without `resume`, a run that is already there is moved to DIR.previous (an earlier DIR.previous is removed), once
 * everything else is ready. A directory with other things in it is left alone: INVALID_ARG.
 *
 * @param recipe  Borrowed for the call.
 * @param opts    NULL for the defaults.
 * @param result  May be NULL; lg_run_result_deinit(). Filled in with what is known on INTERRUPTED, too.
 * @return INTERRUPTED if it was stopped, with the checkpoint written; INVALID_ARG if loss or weights are no longer finite,
 *         naming step and last good checkpoint; IO; what lg_job_create() returns. Several ranks: COMM or TIMEOUT if one of them is
 *         gone or stuck, naming it and what it last did; the failure of another rank as its own, with the rank in front.
 */
LG_API LG_NODISCARD lg_status lg_run_train(const lg_recipe *recipe, const lg_run_opts *opts,
                                           lg_run_result *result);

/**
 * For what each rank does by itself before a run, such as reading the recipe: all of them call it with their own outcome. OK if all are
 * fine; else its own failure, or that of the first rank that failed, named in the message. NULL: returns `own`.
 */
LG_API LG_NODISCARD lg_status lg_run_settle(lg_comm *comm, lg_status own);

/**
 * For what was asked of each rank: all of them call it with their own text. OK if all are the same; else INVALID_ARG on all ranks, and
 * the message begins with `what` and shows the first line that differs. NULL: OK.
 */
LG_API LG_NODISCARD lg_status lg_run_agree(lg_comm *comm, const char *what, const char *text);

/**
 * Runs `work` as `num_ranks` threads of this process, each with its end of a communicator: rank 0 on the caller's thread. What
 * lg_run_train() does for a recipe of several ranks.
 *
 * @param work  Does not destroy the communicator.
 * @return Rank 0's outcome, or, if that is fine, the first one's that is not.
 */
LG_API LG_NODISCARD lg_status lg_run_local_ranks(int num_ranks, double timeout_s,
                                                 lg_status (*work)(lg_comm *comm, void *user),
                                                 void *user);

/** A measured timeline, as a run stores it (timeline.json): ops go by name. */
LG_API LG_NODISCARD lg_status lg_timeline_save(const lg_timeline *timeline, const lg_graph *graph,
                                               const char *path);
/** Reads one for the same plan. Ownership: the caller's; lg_timeline_deinit(). CORRUPT names what does not fit. */
LG_API LG_NODISCARD lg_status lg_timeline_load(lg_timeline *out, const lg_graph *graph,
                                               const lg_plan *plan, const char *path);

#ifdef __cplusplus
}
#endif

#endif
