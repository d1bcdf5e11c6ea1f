/**
 * Everything that a plan for several ranks is made of, from a recipe or the name of a model, and a machine file: model, placement,
 * step graph, costs, plan, and what the plan comes to on paper. Nothing is run and no data is needed, but for the shape of images
 * if the recipe learns from some.
 */
#ifndef LEAPGRAD_CLUSTER_H
#define LEAPGRAD_CLUSTER_H

#include "leapgrad/interchange.h"
#include "leapgrad/placement.h"
#include "leapgrad/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lg_cluster_opts {
    const char *preset;   /* model by name (models.h); NULL: the recipe's */
    const char *strategy; /* NULL: plan.strategy */
    const char
        *placed_for; /* stages are placed as this strategy asks for; NULL: as `strategy` does */
    const lg_rank_schedule *
        schedule; /* its ranks, stages and micro-batches instead of the recipe's; borrowed; NULL: none */
    /**
     * Textbook times: F, I and W of a micro-batch take 1 ms each on a rank, in equal parts in its stages; all else and messages nothing. Without preset the model is
     * then a stand-in, four blocks for each pipeline rank; of a schedule, one for each stage.
     */
    bool has_equal_times;
    bool
        has_loose_keys; /* plan.push and plan.reverse_first_k count where the strategy knows them, and are no error elsewhere */
} lg_cluster_opts;

/** All NULL and false. */
LG_API lg_cluster_opts lg_cluster_opts_default(void);

/** Read freely; all of it belongs to the cluster. */
typedef struct lg_cluster {
    lg_machine machine; /* of as many ranks as the graph has: the first ones of the file's */
    int machine_ranks;  /* of the file */
    lg_model *model;
    int num_blocks;
    lg_rank_placement placement; /* never AUTO */
    lg_stages stages;            /* empty with one pipeline rank and one stage */
    lg_graph *graph;
    lg_costs *costs;
    char *strategy;
    int64_t memory_bytes; /* budget of a rank; 0: not limited */
    /* by lg_cluster_plan() and those below */
    lg_plan *plan;
    lg_timeline timeline; /* simulated, with memory */
    lg_rank_stats *ranks; /* by rank */
} lg_cluster;

/**
 * All but the plan. The recipe's keys: ranks, plan, train.batch (over all replicas) and train.micro_batches (of each), optim, model.
 *
 * @param recipe  Borrowed for the call.
 * @return INVALID_ARG naming key and range: more stages than blocks, more ranks than the machine has; IO; CORRUPT.
 */
LG_API LG_NODISCARD lg_status lg_cluster_create(lg_cluster **out, const lg_recipe *recipe,
                                                const lg_cluster_opts *opts);
LG_API void lg_cluster_destroy(lg_cluster *cluster);

/**
 * Makes the plan, by the strategy or, if the cluster was made for one, from a schedule; simulates it. `recipe` and `opts`: those that
 * the cluster was made with.
 */
LG_API LG_NODISCARD lg_status lg_cluster_plan(lg_cluster *cluster, const lg_recipe *recipe,
                                              const lg_cluster_opts *opts);

/** Loads a plan, proves and simulates it. */
LG_API LG_NODISCARD lg_status lg_cluster_load_plan(lg_cluster *cluster, const char *path);

/** What the ranks come to. */
typedef struct lg_cluster_summary {
    double step_ns;
    double bubble_frac;     /* mean of the ranks */
    double exposed_comm_ns; /* the largest */
    int64_t peak_bytes;     /* the largest */
    int64_t sent_bytes;     /* all together */
} lg_cluster_summary;

/** Of a cluster with a plan. */
LG_API lg_cluster_summary lg_cluster_summarize(const lg_cluster *cluster);

#ifdef __cplusplus
}
#endif

#endif
