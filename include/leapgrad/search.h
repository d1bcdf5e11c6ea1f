/**
 * Search: the fastest plan that fits, over placements, strategies and their parameters, then over orders that no strategy
 * has a name for. Everything is judged by simulation; nothing is random and nothing looks at a clock, so the same problem gives
 * the same plan on every machine.
 *
 * What is tried is in docs/search.md, with how near it comes to the exact optimum.
 */
#ifndef LEAPGRAD_SEARCH_H
#define LEAPGRAD_SEARCH_H

#include "leapgrad/placement.h"
#include "leapgrad/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- lower bound -------------------------------------------------------------------------------------------------------- */

/** No plan of the graph has a shorter step, whatever its order and lags: the largest of three. */
typedef struct lg_bound {
    double step_ns;
    double busiest_rank_ns; /* all compute ops of one rank, on all of its cores */
    double
        critical_path_ns; /* from a forward to the update that the same forward of the next step waits for */
    double busiest_link_ns; /* all bytes of one wire, at its full rate */
} lg_bound;

LG_API LG_NODISCARD lg_status lg_plan_bound(lg_bound *out, const lg_graph *graph,
                                            const lg_machine *machine, const lg_costs *costs);

/* --- what is searched ----------------------------------------------------------------------------------------------------- */

/** How layers were put on ranks. */
typedef enum lg_search_placement {
    LG_SEARCH_ONE_STAGE,  /* no pipeline */
    LG_SEARCH_CONTIGUOUS, /* one stage per rank, equal numbers of blocks */
    LG_SEARCH_BALANCED,   /* one stage per rank, by time */
    LG_SEARCH_LOOP,       /* `group_size` stages per rank in turn, equal numbers of blocks */
    LG_SEARCH_MODULO,     /* stages of `group_size` blocks in turn */
    LG_SEARCH_V,          /* two stages per rank in a V, equal numbers of blocks */
    LG_SEARCH_BALANCED_V, /* the same, by time */
    LG_NUM_SEARCH_PLACEMENTS
} lg_search_placement;

/** "contiguous", "modulo", ... */
LG_API const char *lg_search_placement_name(lg_search_placement placement);

/** Where step graphs and costs come from. */
typedef struct lg_search_source {
    /** Makes a graph (a device's, say); NULL: lg_graph_create(). */
    lg_status (*make_graph)(lg_graph **out, const lg_model *model, const lg_graph_opts *opts,
                            void *user);
    /** Fills in the costs of all ops; NULL: lg_costs_estimate(). */
    lg_status (*fill_costs)(lg_costs *costs, const lg_graph *graph, void *user);
    void *user;
} lg_search_source;

typedef struct lg_search_opts {
    lg_graph_opts graph; /* `parallel` is not read: the search fills it in */
    lg_strategy_opts
        strategy;     /* memory, lanes, whether lag is allowed; `num_reversed` -1: k is searched */
    int num_replicas; /* D; the machine's ranks are a multiple of it. 0: searched */
    const int *micro_batches; /* M that may be taken; NULL: that of `graph` only */
    int num_micro_batches;
    const int64_t *
        chunk_bytes; /* chunk sizes that may be taken; NULL: 0 (one chunk per layer) and, with replicas, 4 MiB */
    int num_chunk_bytes;
    const int64_t *
        share_bytes; /* bytes up to which layers may share messages; NULL: 0 (none does) and lg_machine_share_bytes() */
    int num_share_bytes;
    int max_stages_per_rank; /* loops and modulo go up to so many */
    int64_t
        max_simulated_ops; /* the budget: ops times simulated plans; half of it at most goes to named strategies */
    /** NULL, or told after each simulation: of the budget, how much was used (it may end before), and how many plans it took. */
    void (*progress)(double used_frac, int num_simulations, void *user);
    void *progress_user;
} lg_search_opts;

/** TRAIN, 1 sample, D = 1, M = 1, default strategy options, 8 stages per rank, 16 million ops. */
LG_API lg_search_opts lg_search_opts_default(void);

/* --- what is found ---------------------------------------------------------------------------------------------------------- */

#define LG_SEARCH_NAME_BYTES 48
#define LG_SEARCH_TEXT_BYTES 480

/** A plan that was tried. */
typedef struct lg_search_entry {
    char strategy[LG_SEARCH_NAME_BYTES]; /* "zb-h1+priority"; "auto" if improved by local search */
    lg_search_placement placement;
    int group_size; /* LOOP: stages per rank; MODULO: blocks per stage; else 0 */
    int num_replicas;
    int num_pipeline_ranks;
    int num_stages;
    int num_micro_batches;
    int64_t chunk_bytes;
    int64_t share_bytes;
    bool has_push;
    bool fits; /* in memory */
    /* the rest only if it fits */
    double step_ns;
    double bubble_frac;     /* mean of the ranks: part of the step in which compute lanes idle */
    double exposed_comm_ns; /* the largest of the ranks */
    int64_t
        peak_bytes; /* the largest of the ranks; up to some percent more than need be, but for the result */
    int64_t sent_bytes;       /* over all ranks */
    int64_t *rank_peak_bytes; /* by rank */
} lg_search_entry;

typedef struct lg_search_result {
    lg_stages stages; /* empty without pipeline */
    lg_graph *graph;
    lg_costs *costs;
    lg_plan *plan;
    lg_bound bound; /* of this graph */
    int num_ranks;
    int num_entries;
    lg_search_entry *entries; /* fastest first, then those that do not fit */
    int best_named;           /* entry: the fastest strategy that has a name */
    double gain_frac;         /* step time saved over it: 0.03 is 3 % */
    bool is_complete;         /* the budget was enough for all named strategies */
    int num_simulations;
    int64_t simulated_ops;
    char text[LG_SEARCH_TEXT_BYTES]; /* the result in plain words, one or two sentences */
} lg_search_result;

LG_API void lg_search_result_deinit(lg_search_result *result);

/**
 * Searches. The plan is never slower than that of any named strategy that was tried, on any placement that was tried.
 *
 * @param[out] out  Ownership: the caller's; lg_search_result_deinit(). Empty after a failure.
 * @param model     Lifetime: must outlive the result's graph.
 * @param machine   Its ranks are D times P.
 * @param source    NULL: as its fields NULL.
 * @param opts      Copied.
 * @return NOT_SUPPORTED if nothing fits (the message has the smallest peak found); INVALID_ARG for options out of range.
 */
LG_API LG_NODISCARD lg_status lg_search(lg_search_result *out, const lg_model *model,
                                        const lg_machine *machine, const lg_search_source *source,
                                        const lg_search_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
