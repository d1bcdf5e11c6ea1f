/*
 * Lanes by a dependency-aware queue: forward, loss and input gradients are the main chain; weight gradients, statistics
 * and updates wait in a queue for a free lane. A recipe says how far they are deferred; the result is a plan without
 * memory.
 */
#ifndef LGI_PLAN_QUEUE_SCHEDULE_H
#define LGI_PLAN_QUEUE_SCHEDULE_H

#include "plan/plan_order.h"
#include "plan/strategies/strategy.h"

/*
 * One plan out of the many. Positions count main ops in textbook order, all ranks together. Within
 * [narrow_begin, narrow_end) main ops run on the first of `num_lanes` lanes of `num_threads` each, beside the queue;
 * outside of it, if there is a wide lane, on that one, alone.
 */
typedef struct lgi_queue_recipe {
    int num_lanes;
    int num_threads;
    int num_wide_threads; /* 0: no wide lane, all is narrow */
    int narrow_begin;
    int narrow_end;
    int defer_from; /* queued ops that become ready from this position on wait for the narrow part; earlier ones run wide at
                       once */
    int num_lagged; /* so many ops of the lag list run in the next step */
    int max_queued; /* the first lane helps when more ops than this wait */
    int num_paces; /* so often on its way the first lane waits for what should have ended long ago in the others, so that
                       memory need not be kept in case they are late */
} lgi_queue_recipe;

/* What is the same for all recipes on one graph. */
typedef struct lgi_queue_facts {
    const lgi_strategy_input *input;
    int num_main;
    int *main_ops;   /* ascending */
    int *main_pos;   /* by op; -1: a queued op */
    int *edge_begin; /* by op: edges into it */
    int *out_begin;  /* by op: out_edges[out_begin[op] ..) are indices of edges from it */
    int *out_edges;
    int *
        lag_list; /* queued ops in the order in which they may lag: those first whose result the next step needs last */
    int num_laggable;
    int *
        deadline; /* by op: position of the first main op of the next step that waits for it or what follows it */
    int first_backward; /* position of the first input gradient or loss */
    bool has_comm;
    lgi_groups groups;
} lgi_queue_facts;

LG_NODISCARD lg_status lgi_queue_facts_init(lgi_queue_facts *out, const lgi_strategy_input *input);
void lgi_queue_facts_deinit(lgi_queue_facts *facts);

LG_NODISCARD lg_status lgi_queue_schedule(lg_plan **out, const lgi_queue_facts *facts,
                                          const lgi_queue_recipe *recipe);

#endif
