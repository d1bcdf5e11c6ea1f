/* What the tables of bench/papers.c are made of: a step graph with its costs, and plans of it run on paper. */
#ifndef BENCH_PAPERS_RUN_H
#define BENCH_PAPERS_RUN_H

#include "gpu_costs.h"
#include "leapgrad/models.h"
#include "leapgrad/placement.h"

/* How layers are put on the pipeline's ranks. */
typedef enum placement {
    PLACE_CONTIGUOUS, /* equal numbers of blocks */
    PLACE_BALANCED,   /* by time */
    PLACE_TIED, /* equal numbers of blocks, the embeddings on the last rank with what shares their weights */
    PLACE_LOOP,   /* `size` stages on each rank, in turn */
    PLACE_MODULO, /* groups of `size` blocks in turn */
    PLACE_V       /* two stages a rank */
} placement;

/* A step graph on a machine. */
typedef struct problem {
    const lg_model *model;
    const gpu_model *gpu;
    lg_machine machine;
    int64_t num_samples; /* of the step, over all replicas */
    int num_micro_batches;
    int num_replicas;
    int num_slots;
    int64_t chunk_bytes;
    double head_frac;
    double
        unit_ns; /* above 0: every forward, input and weight gradient of a linear layer takes it, the rest nothing */
    placement place;
    int place_size;
    lg_stages stages;
    lg_graph *graph;
    lg_costs *costs;
} problem;

/* What a plan came to. */
typedef struct outcome {
    bool is_done;
    double step_ns;
    double idle_frac; /* of the compute lanes, over all ranks */
    double busy_ns;   /* of the busiest rank */
    int64_t peak_bytes;
} outcome;

/* Prints the library's message and ends the program. */
void stop_if(lg_status status);

/* Fills in graph and costs from the fields above them; `num_pipeline_ranks` 1: no pipeline. */
void problem_make(problem *p, int num_pipeline_ranks);
void problem_release(problem *p);

bool has_strategy(const char *name);

/*
 * Makes, checks and simulates a plan. `is_done` is false for a strategy that this build does not have, and for one that
 * says the problem is not for it (NOT_SUPPORTED); the reason goes to stderr.
 */
outcome problem_solve(const problem *p, const char *strategy, const lg_strategy_opts *opts);

/*
 * lg_search() over placements and orders with one replica and the setting's micro-batches; `label`: what was found, with the lower bound.
 */
outcome problem_search(const problem *p, int num_ranks, char *label, size_t label_bytes);

#define CHAIN_WIDTH 64

/* `num_layers` equal linear layers of CHAIN_WIDTH features behind an embedding that takes no time. */
lg_model *make_chain(int num_layers);

#endif
