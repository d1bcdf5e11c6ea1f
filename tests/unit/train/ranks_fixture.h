/*
 * Trainings over ranks for tests, with the same model, placement and batches on each: over local ranks, each a thread, or as one
 * rank of a communicator. Models of a few layers: a CNN with batch norm and a skip connection over stages, a GPT with tied
 * embeddings, a BERT; the CNN without batch norm, so that a sample's gradient is its own.
 */
#ifndef LG_TEST_RANKS_FIXTURE_H
#define LG_TEST_RANKS_FIXTURE_H

#include "leapgrad/placement.h"
#include "leapgrad/trainer.h"

#define RF_MAX_SAMPLES 12
#define RF_MAX_ELEMS 4096
#define RF_MAX_RANKS 32

typedef enum rf_model { RF_CNN, RF_GPT, RF_BERT, RF_PLAIN_CNN, RF_NUM_MODELS } rf_model;

/* What a training is told. */
typedef struct rf_run {
    rf_model model;
    const char *device;
    const char *strategy;
    int num_pipeline_ranks;
    int num_stages; /* 0: one for each pipeline rank */
    bool is_v;      /* stages in a V */
    bool is_uneven; /* half of the layers are the first stage */
    int num_replicas;
    int num_micro_batches;
    int64_t num_samples; /* of a batch */
    int64_t chunk_bytes;
    int64_t share_bytes;
    int num_reversed; /* reverse-first-k: k; -1: searched */
    int num_steps;
    int64_t ragged_samples; /* of the last but one batch; 0: it is like the others */
    bool evaluates;         /* after the second step, and predicts */
    lg_optim_opts optim;
    bool wants_results;    /* of each step */
    const char *load_path; /* a root of checkpoints to go on from; NULL: none */
    int stop_step;         /* number of the step to stop before; 0: num_steps */
    const char *save_path; /* at the end; NULL: none */
    const char *reads;     /* a tensor to read at the end; NULL: none */
    int bad_rank;    /* this rank gets a batch with a target out of range in step 1; -1: none */
    int other_rank;  /* this rank gets another batch in step 1; -1: none */
    int broken_rank; /* this rank's device fails in step 1; -1: none */
    bool measures_costs;
    bool records; /* the timeline of the last step */
} rf_run;

typedef struct rf_result {
    lg_status status;
    char message[512];
    char hash[LG_WEIGHTS_HASH_CHARS];
    lg_step_result last; /* of the last step */
    lg_eval_sums sums;
    float logits[RF_MAX_ELEMS];
    int64_t num_logits;
    float elems[RF_MAX_ELEMS]; /* of `reads` */
    int64_t num_elems;
    lg_rate rate; /* of parameter 0 */
    double iterations;
    lg_trainer_info info;
    int num_spans; /* of the timeline */
    int num_ops;   /* of the graph */
} rf_result;

/* CNN, the preferred device, "in-order", one rank, 1 micro-batch, 4 steps of RF_MAX_SAMPLES with the last but one ragged, momentum 0.9. */
rf_run rf_run_default(void);
int rf_num_ranks(const rf_run *run);
/* "gpt cpu gpipe+wfbp P=2 D=1 M=3": for messages. */
const char *rf_describe(const rf_run *run);

lg_model *rf_model_create(rf_model model);

/* One rank of a training, for which all ranks of `comm` call this. What goes wrong is in the result. */
void rf_train_rank(const rf_run *run, lg_comm *comm, rf_result *result);

/* Trains on all ranks, as threads; results[0 .. ranks). */
void rf_train_all(const rf_run *run, rf_result *results);

/* The same; fails the test unless all ranks succeed, with the same results. */
void rf_train(const rf_run *run, rf_result *result);

#endif
