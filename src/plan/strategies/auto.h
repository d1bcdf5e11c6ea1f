/* auto: the best named strategy, improved by list scheduling and local search. */
#ifndef LGI_PLAN_AUTO_H
#define LGI_PLAN_AUTO_H

#include "leapgrad/search.h"
#include "plan/strategies/strategy.h"

/* Steps that differ by less are alike: costs do not tell them apart, so the plan with a name is kept. */
#define LGI_AUTO_TIE_FRAC 0.001

/* How much may be simulated: ops times plans. A number of evaluations, not a time, so that a search gives the same every time. */
typedef struct lgi_budget {
    int64_t max_ops;
    int64_t used_ops;
    int num_simulations;
    const lg_search_opts *progress; /* who is told of it; NULL: nobody */
} lgi_budget;

static inline bool lgi_budget_allows(const lgi_budget *budget, const lg_graph *graph)
{
    return budget->used_ops + lg_graph_num_ops(graph) <= budget->max_ops;
}

/* Simulates and counts it. `out`: the caller's to release. */
LG_NODISCARD lg_status lgi_budget_simulate(lgi_budget *budget, const lgi_strategy_input *input,
                                           const lg_plan *plan, lg_timeline *out);

/* A strategy that `auto` may try: a name for lg_plan_create() and its option. */
typedef struct lgi_auto_try {
    char name[LG_SEARCH_NAME_BYTES];
    bool has_push;
} lgi_auto_try;

/* All names and pairs of names that say something about a graph like this one, most promising first. */
LG_NODISCARD lg_status lgi_auto_list(lgi_auto_try **out, int *out_num, const lg_graph *graph);

/*
 * Makes one of them and simulates it. *out NULL, with LG_OK, if it is not for this graph or does not fit: then *peak_bytes is 0,
 * or what it would need. `stats`: NULL, or by rank, filled in.
 */
LG_NODISCARD lg_status lgi_auto_make(lg_plan **out, double *step_ns, int64_t *peak_bytes,
                                     lg_rank_stats *stats, const lgi_auto_try *what,
                                     const lgi_strategy_input *input, lgi_budget *budget);

/*
 * Looks for a faster order within the budget, from `plan`, whose step takes `step_ns`. *out NULL: none found. Otherwise a
 * plan called "auto" with its memory placed, within the memory limit, proved by lg_plan_check(), and *out_ns its step.
 */
LG_NODISCARD lg_status lgi_auto_improve(lg_plan **out, double *out_ns, const lg_plan *plan,
                                        double step_ns, double bound_ns,
                                        const lgi_strategy_input *input, lgi_budget *budget);

#endif
