/**
 * A trainer: a model on a device, with its plan, its memory and its optimizer. One call is one training step.
 *
 * Everything about how a step runs is decided when the trainer is made (or, for a batch of another size, before its first
 * step): the step graph is lowered to the device, costs are measured or estimated, a strategy makes a plan, the plan is
 * proved, one arena is allocated, and then steps run exactly that plan. Whatever the plan, its lanes and its threads, the
 * weights are the same bits on machines with the same number of cores and the same instructions.
 *
 * Over several ranks (`comm`, `parallel` of the options) each rank has a trainer of its own, and all functions that take
 * a trainer are collective, except where it says "local": every rank calls them in the same order with the same arguments.
 * A batch is that of the whole step, over all replicas; each rank has all of it and uses its part. What functions give
 * back is the same on all ranks. A function that fails on one rank ends the communicator, and then fails on all of them.
 *
 * Replicas: the weights of all replicas are the same bits, and so are those of every number of pipeline ranks; they depend on
 * the number of replicas D and of micro-batches M. A batch of fewer than D * M samples makes fewer micro-batches, the same
 * number on each replica; one of fewer than D samples leaves replicas that run a copy of some sample with weight 0. Loss and
 * gradients are exact in all cases.
 *
 * Batch norm: each micro-batch is normalised with its own statistics, each replica keeps running statistics of its own
 * micro-batches. What is evaluated, read, hashed and exported is their mean over the replicas, computed when it is
 * asked for. Checkpoints have each replica's own, too, so that training goes on with the same bits.
 *
 * Thread safety: one thread at a time per trainer.
 */
#ifndef LEAPGRAD_TRAINER_H
#define LEAPGRAD_TRAINER_H

#include "leapgrad/checkpoint.h"
#include "leapgrad/comm.h"
#include "leapgrad/model.h"
#include "leapgrad/optim.h"
#include "leapgrad/plan.h"
#include "leapgrad/rate.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lg_trainer_costs {
    LG_TRAINER_COSTS_ESTIMATE, /* from flops and bytes */
    LG_TRAINER_COSTS_MEASURE,  /* each op is timed before the first step */
    LG_TRAINER_COSTS_FILE      /* read from `costs_path` */
} lg_trainer_costs;

typedef struct lg_trainer_opts {
    const char *device;    /* "auto", or a name from lg_device_name() */
    int64_t batch_samples; /* of one step, over all replicas */
    int num_micro_batches; /* on each replica, the batch passes in this many parts, whose gradients add up */
    uint64_t seed;     /* initial weights, dropout */
    int64_t num_steps; /* of the whole training: the schedule's T */
    lg_optim_opts optim;
    const char *strategy; /* a name from lg_strategy_name() */
    int num_lanes;        /* 0: the strategy chooses */
    int threads_per_lane; /* 0: the strategy chooses */
    int64_t memory_bytes; /* budget for the arena of a rank; 0: not limited */
    bool allow_lag;       /* ops may move into the next step */
    int num_reversed;     /* reverse-first-k: k, in layers with weights; -1: searched */
    bool
        has_push; /* fast-forward, modulo: caps the micro-batches in flight at the pipeline's ranks */
    lg_trainer_costs costs;
    const char *costs_path; /* FILE */
    const char *plan_path;  /* run this saved plan instead of making one; NULL: make one */
    lg_comm *comm;          /* borrowed until lg_trainer_destroy(); NULL: one rank, alone */
    const lg_parallel *
        parallel; /* copied; replicas times pipeline ranks of `comm`'s ranks; layers as in the model; share_bytes may be
                     LG_SHARE_BY_LINKS. NULL: one rank */
    const lg_machine *
        machine; /* copied: hosts and links between ranks, corun_slowdown and comm_core_frac unless they are measured. NULL: measured with MEASURE, else lg_machine_default()'s */
} lg_trainer_opts;

/** "auto", 1 sample, 1 micro-batch, seed 0, 1 step, lg_optim_opts_default(), "in-order", lag allowed, k searched, estimated costs, alone. */
LG_API lg_trainer_opts lg_trainer_opts_default(void);

/** Names of the devices of this build; NULL after the last. */
LG_API const char *lg_device_name(int idx);
/** One line on what the device is. */
LG_API const char *lg_device_help(int idx);
/** Cores that this process may use. */
LG_API LG_NODISCARD lg_status lg_num_cores(int *out);

typedef struct lg_trainer lg_trainer;

/**
 * Makes a trainer with fresh weights.
 *
 * @param[out] out  Ownership: the caller's; lg_trainer_destroy(). NULL on failure.
 * @param model     Lifetime: must outlive the trainer.
 * @param opts      Copied.
 * @return INVALID_ARG for options out of range, options that differ between ranks (naming which), or a plan that breaks a
 *         rule; NOT_SUPPORTED if the device lacks a layer or nothing fits the memory budget; OUT_OF_MEMORY; what the
 *         communicator says.
 */
LG_API LG_NODISCARD lg_status lg_trainer_create(lg_trainer **out, const lg_model *model,
                                                const lg_trainer_opts *opts);
/** Local. Before the communicator. */
LG_API void lg_trainer_destroy(lg_trainer *trainer);

/** What a step, or a pass over evaluation data, came to. */
typedef struct lg_step_result {
    int64_t step;        /* its number; steps count from 0 */
    double loss;         /* mean over the targets (weighted mean with class weights) */
    int64_t num_correct; /* targets that were the arg max */
    int64_t num_targets; /* not ignored */
    double grad_norm;    /* of the whole gradient, before clipping; -1 without clipping */
    bool
        was_skipped; /* a gradient was not finite, so nothing was updated; needs statistics and LG_SKIP_STEP */
    uint64_t step_ns; /* of the rank that took longest */
} lg_step_result;

/**
 * Trains on one batch: forward, backward, update.
 *
 * @param trainer      The trainer.
 * @param num_samples  1 or more; another size than `batch_samples` is planned when it first comes.
 * @param tensors      By the model's `input_idx`: row-major [num_samples, ...], f32 or i32 as the model says. Borrowed for
 *                     the call.
 * @param[out] result  May be NULL, on all ranks alike. `loss` may be NaN or infinite: then the weights are no longer of use,
 *                     unless the step was skipped. With several ranks this waits until all have ended the step; with NULL no
 *                     rank waits for another beyond what the plan says.
 * @return INVALID_ARG for a token id or a target out of range, naming sample and value.
 */
LG_API LG_NODISCARD lg_status lg_trainer_step(lg_trainer *trainer, int64_t num_samples,
                                              const void *const *tensors, lg_step_result *result);

/**
 * Local: the result of one of the last two steps. On rank 0 it is that of all ranks, whose parts it waits for; on others only
 * `step` and `step_ns` are known, and `loss` is NaN.
 *
 * @return INVALID_ARG for an older step, or one that was not done.
 */
LG_API LG_NODISCARD lg_status lg_trainer_result(lg_trainer *trainer, int64_t step,
                                                lg_step_result *result);

/** Runs what lags behind, so that the weights are those after the last step. Reading, saving, evaluating do it themselves. */
LG_API LG_NODISCARD lg_status lg_trainer_drain(lg_trainer *trainer);

/** Sums over evaluation batches. */
typedef struct lg_eval_sums {
    double loss_sum;   /* of weight times loss, natural logarithm */
    double weight_sum; /* loss_sum / weight_sum is the mean loss */
    int64_t num_correct;
    int64_t num_targets;
} lg_eval_sums;

/** Evaluates one batch with the weights as they are (running statistics, no dropout) and adds to `sums`. */
LG_API LG_NODISCARD lg_status lg_trainer_evaluate(lg_trainer *trainer, int64_t num_samples,
                                                  const void *const *tensors, lg_eval_sums *sums);

/**
 * Computes the logits, row-major [num_samples, ...]. `tensors` of targets may be NULL.
 *
 * @param logits  Room for num_samples times lg_trainer_num_logits() floats.
 */
LG_API LG_NODISCARD lg_status lg_trainer_predict(lg_trainer *trainer, int64_t num_samples,
                                                 const void *const *tensors, float *logits);
/** Local. Logits of one sample. */
LG_API int64_t lg_trainer_num_logits(const lg_trainer *trainer);

/** Local. Whether rates come from gradient statistics (lg_optim_has_statistics()). */
LG_API bool lg_trainer_has_rates(const lg_trainer *trainer);
/**
 * What the last step came to for a parameter: learning rate, gain, warm-up, noise scale. All zero before the first step.
 * Runs what lags behind first.
 *
 * @return INVALID_ARG without statistics, or if there is no such parameter.
 */
LG_API LG_NODISCARD lg_status lg_trainer_rate(lg_trainer *trainer, int param, lg_rate *out);
/** The scale-invariant iterations done: the least over the parameters. -1 without statistics. */
LG_API LG_NODISCARD lg_status lg_trainer_iterations(lg_trainer *trainer, double *out);
/** What a parameter's averages are made of and stand at. INVALID_ARG as lg_trainer_rate(). */
LG_API LG_NODISCARD lg_status lg_trainer_rate_state(lg_trainer *trainer, int param,
                                                    lg_rate_state *out);

/** Local. The number of the step to come: how many steps were done. */
LG_API int64_t lg_trainer_next_step(const lg_trainer *trainer);

/* --- tensors ------------------------------------------------------------------------------------------------------ */

/*
 * Of several ranks, tensors come from replica 0 and are set on all. The first rank reads and writes files; its failure is
 * everyone's.
 */

/**
 * Copies a tensor out, row-major f32: a parameter ("conv1.weight"), a state ("bn1.running_mean"), a parameter's gradient
 * of the last step ("conv1.weight.grad": of the mean loss, before clipping) or optimizer slot ("conv1.weight.slot0").
 *
 * @param num_elems  Must be the tensor's.
 */
LG_API LG_NODISCARD lg_status lg_trainer_read(lg_trainer *trainer, const char *name, float *elems,
                                              int64_t num_elems);
/** Sets a parameter, state or slot. */
LG_API LG_NODISCARD lg_status lg_trainer_write(lg_trainer *trainer, const char *name,
                                               const float *elems, int64_t num_elems);

/** The hash of all parameters and states (checkpoint.h). */
LG_API LG_NODISCARD lg_status lg_trainer_weights_hash(lg_trainer *trainer,
                                                      char text[LG_WEIGHTS_HASH_CHARS]);

/**
 * Saves a checkpoint, from which lg_trainer_load() goes on with the same bits, whatever plan or device.
 *
 * @param trainer      The trainer.
 * @param root         Directory of checkpoints (lg_checkpoint_save()).
 * @param recipe_json  Stored along; NULL: none.
 * @param extra_json   Stored along; NULL: none.
 * @param num_keep     How many checkpoints to keep.
 */
LG_API LG_NODISCARD lg_status lg_trainer_save(lg_trainer *trainer, const char *root,
                                              const char *recipe_json, const char *extra_json,
                                              int num_keep);
/**
 * Loads weights, states, slots and step number; on failure the trainer is as before.
 *
 * @param trainer        The trainer.
 * @param checkpoint     Of a model with the same tensors. Read by rank 0 only; may be NULL on the others.
 * @param weights_only   Leaves slots and step number: to evaluate, or to start from trained weights.
 */
LG_API LG_NODISCARD lg_status lg_trainer_load(lg_trainer *trainer, const lg_checkpoint *checkpoint,
                                              bool weights_only);

/* --- what was decided ------------------------------------------------------------------------------------------- */

/* All of this is local, but for the timeline. */

typedef struct lg_trainer_info {
    const char *device;          /* "cpu" */
    const char *device_text;     /* what the device found */
    const char *strategy;        /* of the plan */
    int num_cores;               /* that this rank may use */
    int num_lanes;               /* compute lanes of this rank */
    int threads_per_lane;        /* of the first one */
    int max_threads_per_lane;    /* of the widest one */
    int64_t planned_peak_bytes;  /* of this rank: the largest of all plans so far */
    int64_t measured_peak_bytes; /* of this rank: what the device's allocator counted */
    double predicted_step_ns;    /* simulated */
    double planning_ns;          /* time that the strategy took */
    int num_reorders;            /* REORDER ops of a step on this rank */
    int64_t num_param_elems;
} lg_trainer_info;

/** Lifetime of the texts: until lg_trainer_destroy(). */
LG_API lg_trainer_info lg_trainer_about(const lg_trainer *trainer);

/** Of training steps of `batch_samples`, over all ranks. Lifetime: until lg_trainer_destroy(). */
LG_API const lg_graph *lg_trainer_graph(const lg_trainer *trainer);
LG_API const lg_plan *lg_trainer_plan(const lg_trainer *trainer);
LG_API const lg_costs *lg_trainer_cost_table(const lg_trainer *trainer);
LG_API lg_machine lg_trainer_machine(const lg_trainer *trainer);

/** Turns recording on or off: while on, each full step leaves a timeline. */
LG_API void lg_trainer_record(lg_trainer *trainer, bool is_on);
/**
 * The timeline of the last recorded step: of all ranks, on rank 0's clock. INVALID_ARG if there is none. Ownership: the
 * caller's; lg_timeline_deinit().
 *
 * Ops that meet begin when the last of them was ready.
 */
LG_API LG_NODISCARD lg_status lg_trainer_timeline(const lg_trainer *trainer, lg_timeline *out);

#ifdef __cplusplus
}
#endif

#endif
