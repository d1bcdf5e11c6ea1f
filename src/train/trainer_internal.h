/* The trainer's insides, shared by the trainer_*.c files. */
#ifndef LGI_TRAIN_TRAINER_INTERNAL_H
#define LGI_TRAIN_TRAINER_INTERNAL_H

#include "exec/executor.h"
#include "leapgrad/trainer.h"

/* Results of so many steps are kept, or on their way to rank 0. */
#define LGI_NUM_STEP_SLOTS 4

/*
 * A step graph made ready to run: for training, evaluating or predicting a certain number of samples. All of a trainer share
 * its arena; their persistent values lie at the same offsets.
 */
struct prepared {
    lg_graph_mode mode;
    int64_t num_samples;
    lgi_lowered *lowered;
    lg_costs *costs;
    lg_plan *plan;
    lgi_program *program; /* NULL until the arena is there */
    int *outputs;         /* values that the host reads after a step, of this rank */
    int num_outputs;
    double predicted_step_ns;
    double planning_ns;
};

/* Where a tensor is kept. */
struct tensor_place {
    int own_value;  /* this rank's copy; -1: none */
    int owner_rank; /* the first rank of replica 0 that has it; -1: nobody */
    int owner_value;
};

/* What a rank says of a step. */
struct step_part {
    int64_t step;
    lg_eval_sums sums;    /* of the loss records that it has */
    double grad_norm;     /* -1: without clipping */
    uint64_t was_skipped; /* 0 or 1 */
    uint64_t batch_hash;
    uint64_t step_ns;
};

/* Parts of a step on their way to rank 0. */
struct step_slot {
    struct step_part own;
    lgi_message send;        /* not on rank 0 */
    struct step_part *parts; /* on rank 0, by rank */
    lgi_message *receives;   /* on rank 0, by rank */
    bool is_under_way;
};

struct lg_trainer {
    const lg_model *model; /* the caller's */
    lg_model *fused;       /* what the device trains; NULL: the caller's */
    lg_trainer_opts opts;
    char *device_name, *strategy, *costs_path, *plan_path; /* copies behind opts */
    lgi_hardware *hardware;
    lgi_device *device;
    lgi_executor *executor;
    lg_machine machine;
    bool has_given_links;      /* the machine's links are the caller's */
    int num_rank_cores;        /* that the rank with the fewest may use */
    lgi_layout *param_layouts; /* by parameter id */
    struct prepared **prepared;
    size_t num_prepared, prepared_capacity;
    struct prepared *main; /* training of batch_samples */
    struct prepared
        *current; /* the training graph that ran last and may not be drained; NULL: none */
    void *arena;
    int64_t arena_bytes;
    int64_t next_step;
    bool has_half_step; /* a step failed in the middle: some weights are updated, others not */
    bool is_recording;
    lgi_trace trace;     /* of the last recorded full step; arrays by op of `main` */
    int64_t traced_step; /* -1: none */
    double base_batch;   /* samples that the learning rate is meant for */

    /* ranks */
    lg_comm *comm; /* NULL: alone */
    int rank;
    int num_ranks;
    int num_replicas;
    int num_pipeline_ranks;
    int num_device_cores; /* what the device cuts sums by: rank 0's machine */
    lg_parallel parallel; /* for the model that runs; arrays of its own */
    int *stage_of_layer, *rank_of_stage;
    struct tensor_place *params, *grads, *slots,
        *states;                                /* by id; slots: id * LG_MAX_SLOTS + slot */
    struct step_slot steps[LGI_NUM_STEP_SLOTS]; /* by step modulo their number */
    char *
        own_states; /* what the arena has the replicas' means in place of; NULL: nothing, or not in place */
    bool has_mean_states; /* the arena's states are the means over replicas */
    lg_rate *all_rates; /* by parameter, of all ranks, as after the step before `all_rates_step` */
    lg_rate_state *all_rate_states;
    int64_t all_rates_step; /* -1: not gathered */
    double *
        weights; /* by micro-batch of the step to come: its part of the weight; NULL without statistics */
    lg_rate *rates; /* by parameter: of the last step, joint rates; NULL without statistics */
};

/* The model that runs. */
const lg_model *lgi_trainer_model(const lg_trainer *trainer);

/* Cores of the machine, which the device may cut sums by; more than this process may use, perhaps. */
int lgi_trainer_num_machine_cores(const lg_trainer *trainer);

/* trainer_prepare.c */

/* The step graph for this mode and size, bound to the arena; made now if it is new. */
LG_NODISCARD lg_status lgi_trainer_prepare(lg_trainer *trainer, lg_graph_mode mode,
                                           int64_t num_samples, struct prepared **out);
void lgi_prepared_destroy(struct prepared *prepared);

/*
 * trainer_profile.c: times each op of the training graph with each width, on a device of its own. Of the machine it sets what ops
 * lose to others: corun_slowdown and comm_core_frac.
 */
LG_NODISCARD lg_status lgi_trainer_profile(lg_trainer *trainer, const lg_graph_opts *opts,
                                           lg_costs *costs, lg_machine *machine);

/* trainer_ranks.c */

/* Takes over communicator and placement; the model that runs is there. Ranks that were told otherwise are found. */
LG_NODISCARD lg_status lgi_trainer_join(lg_trainer *trainer);
/* Ranks that made another graph are found. */
LG_NODISCARD lg_status lgi_trainer_agree(lg_trainer *trainer, const lg_graph *graph);
void lgi_trainer_leave(lg_trainer *trainer);
/* Ends the communicator if `status` is a failure, which it returns. */
lg_status lgi_trainer_note(lg_trainer *trainer, lg_status status);
/* Of the options' placement, for a graph; NULL: one rank. */
const lg_parallel *lgi_trainer_parallel(const lg_trainer *trainer);
/* Before a step, rank 0 gets ready to hear of it. */
LG_NODISCARD lg_status lgi_trainer_open_step(lg_trainer *trainer, int64_t step);
/* After a step: hands this rank's part to rank 0. */
void lgi_trainer_close_step(lg_trainer *trainer, const struct step_part *part);
/* Everyone's parts on all ranks. */
LG_NODISCARD lg_status lgi_trainer_share_result(lg_trainer *trainer, int64_t step,
                                                lg_step_result *result);
/* Adds up what all ranks have, in the order of ranks. */
LG_NODISCARD lg_status lgi_trainer_add_sums(lg_trainer *trainer, const lg_eval_sums *own,
                                            lg_eval_sums *sums);

/*
 * Runs `body` on rank 0, which may ask others for tensors (lgi_trainer_fetch); the others serve it. Its failure is everyone's,
 * and the communicator lives on.
 */
typedef lg_status (*lgi_trainer_body)(lg_trainer *trainer, void *user);
LG_NODISCARD lg_status lgi_trainer_on_first_rank(lg_trainer *trainer, lgi_trainer_body body,
                                                 void *user);
/*
 * On rank 0, within lgi_trainer_on_first_rank(): a tensor of rank `rank`, row-major f32 or, with `is_raw`, as stored.
 * `kind`, `idx` and `slot` as in lg_value_info.
 */
LG_NODISCARD lg_status lgi_trainer_fetch(lg_trainer *trainer, int rank, lg_value_kind kind, int idx,
                                         int slot, bool is_raw, void *dst);

/* trainer_share.c: what rank 0 has, on all ranks. */

/* *plan: rank 0's; the others' is made. */
LG_NODISCARD lg_status lgi_trainer_share_plan(lg_trainer *trainer, lg_plan **plan);
LG_NODISCARD lg_status lgi_trainer_share_number(lg_trainer *trainer, double *number);
/* `is_measured`: each rank has those of its own ops. */
LG_NODISCARD lg_status lgi_trainer_share_costs(lg_trainer *trainer, lg_costs *costs,
                                               const lg_graph *graph, bool is_measured);
/* The machine's links, measured where they are neither given nor estimated, and what they decide. Collective. */
LG_NODISCARD lg_status lgi_trainer_settle_links(lg_trainer *trainer);

/* trainer_states.c */

/* The arena gets the means of the running statistics over replicas, or the replica's own ones. */
LG_NODISCARD lg_status lgi_trainer_use_mean_states(lg_trainer *trainer);
void lgi_trainer_use_own_states(lg_trainer *trainer);
/* Where the replica's own ones are. */
const char *lgi_trainer_own_state(const lg_trainer *trainer, int value);
/* On rank 0, within lgi_trainer_on_first_rank(): the mean over replicas. */
LG_NODISCARD lg_status lgi_trainer_fetch_mean_state(lg_trainer *trainer, int state, float *elems);
/* Each replica's own ones, in checkpoints with several replicas. */
bool lgi_trainer_has_replica_states(const lg_trainer *trainer);
LG_NODISCARD lg_status lgi_trainer_save_replica_states(lg_trainer *trainer,
                                                       lg_tensor_writer *writer);
/* The same, read; the mean where the file has none for this number of replicas. Called on all ranks; `file` on rank 0. */
LG_NODISCARD lg_status lgi_trainer_load_replica_states(lg_trainer *trainer,
                                                       const lg_tensor_file *file);

/* trainer_tensors.c */

/* Where each tensor is kept. */
LG_NODISCARD lg_status lgi_trainer_find_tensors(lg_trainer *trainer);
/* Its place, by kind, id and slot. */
const struct tensor_place *lgi_trainer_place(const lg_trainer *trainer, lg_value_kind kind, int idx,
                                             int slot);
/* A tensor of this rank, from or to row-major f32. */
LG_NODISCARD lg_status lgi_trainer_read_value(const lg_trainer *trainer, int value, float *elems);
LG_NODISCARD lg_status lgi_trainer_write_value(const lg_trainer *trainer, int value,
                                               const float *elems);
lg_shape lgi_value_shape(const lg_model *model, const lg_value_info *value);

/* Fills a graph's parameters and states with their initial values; the rest of the arena is zero. */
LG_NODISCARD lg_status lgi_init_weights(lgi_device *device, const lg_model *model,
                                        const lgi_program *program, uint64_t seed);

/* trainer_batch.c */

/* Checks ids and targets; *out_weight: sum of the targets' weights over the batch. Entries of unused tensors may be NULL. */
LG_NODISCARD lg_status lgi_check_batch(const lg_model *model, lg_graph_mode mode,
                                       int64_t num_samples, const void *const *tensors,
                                       double *out_weight);

/* The targets' weights of the samples [begin, end) of a checked batch; 0 if they do not come with the batch. */
double lgi_batch_weight(const lg_model *model, const void *const *tensors, int64_t begin,
                        int64_t end);

/* A batch with a sample for each replica at least: what is missing are copies of others whose targets are ignored. */
typedef struct lgi_padded_batch {
    int64_t num_samples;
    const void *const *tensors;
    void **copies; /* NULL: the batch as it is */
    int num_copies;
} lgi_padded_batch;

LG_NODISCARD lg_status lgi_pad_batch(lgi_padded_batch *out, const lg_model *model,
                                     int64_t min_samples, int64_t num_samples,
                                     const void *const *tensors);
void lgi_padded_batch_deinit(lgi_padded_batch *batch);

/* Of the targets: tells batches of different steps or data apart. */
uint64_t lgi_batch_hash(const lg_model *model, int64_t num_samples, const void *const *tensors);

/* trainer_rates.c */

LG_NODISCARD lg_status lgi_trainer_start_rates(lg_trainer *trainer);
/* What micro-batches weigh in the step to come; NULL without statistics. */
const double *lgi_trainer_weigh(lg_trainer *trainer, const struct prepared *prepared,
                                const void *const *tensors, double weight);
/* Keeps the rates of a step that has run. Returns whether it was skipped. */
bool lgi_trainer_keep_rates(lg_trainer *trainer, const struct prepared *prepared, int64_t step);
/* Adds the states of all rates, to be written with the optimizer's slots. */
LG_NODISCARD lg_status lgi_trainer_save_rates(lg_trainer *trainer, lg_tensor_writer *writer);
/* On rank 0: whether the file has the states of all rates. */
LG_NODISCARD lg_status lgi_trainer_check_rates(lg_trainer *trainer, const lg_tensor_file *file);
/* Takes over the states of all rates, which rank 0 reads. */
LG_NODISCARD lg_status lgi_trainer_load_rates(lg_trainer *trainer, const lg_tensor_file *file);
/* Rates and states of all parameters, to where lg_trainer_rate() and saving look. */
LG_NODISCARD lg_status lgi_trainer_gather_rates(lg_trainer *trainer);

/* The layer that computes the loss. */
int lgi_loss_layer(const lg_model *model);

#endif
