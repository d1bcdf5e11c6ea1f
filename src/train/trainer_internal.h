/* The trainer's insides, shared by the trainer_*.c files. */
#ifndef LGI_TRAIN_TRAINER_INTERNAL_H
#define LGI_TRAIN_TRAINER_INTERNAL_H

#include "exec/executor.h"
#include "leapgrad/trainer.h"

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
    double predicted_step_ns;
    double planning_ns;
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
 * trainer_profile.c: times each op of the training graph with each width, on a device of its own. *out_slowdown: how much
 * longer ops of one thread take while all other cores are busy, at least 1.
 */
LG_NODISCARD lg_status lgi_trainer_profile(const lg_trainer *trainer, const lg_graph_opts *opts,
                                           lg_costs *costs, double *out_slowdown);

/* trainer_tensors.c */

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

/* trainer_rates.c */

LG_NODISCARD lg_status lgi_trainer_start_rates(lg_trainer *trainer);
/* What micro-batches weigh in the step to come; NULL without statistics. */
const double *lgi_trainer_weigh(lg_trainer *trainer, const struct prepared *prepared,
                                const void *const *tensors, double weight);
/* Keeps the rates of a step that has run. Returns whether it was skipped. */
bool lgi_trainer_keep_rates(lg_trainer *trainer, const struct prepared *prepared, int64_t step);
/* Adds the states of all rates, to be written with the optimizer's slots. */
LG_NODISCARD lg_status lgi_trainer_save_rates(lg_trainer *trainer, lg_tensor_writer *writer);
/* Reads the states of all rates and, with `is_writing`, takes them over. */
LG_NODISCARD lg_status lgi_trainer_load_rates(lg_trainer *trainer, const lg_tensor_file *file,
                                              bool is_writing);

/* The layer that computes the loss. */
int lgi_loss_layer(const lg_model *model);

#endif
