/* What a strategy is: a pure function from graph, machine, costs and options to lanes, and what strategies share. */
#ifndef LGI_PLAN_STRATEGY_H
#define LGI_PLAN_STRATEGY_H

#include "leapgrad/plan.h"

typedef struct lgi_strategy_input {
    const lg_graph *graph;
    const lg_machine *machine;
    const lg_costs *costs;
    lg_strategy_opts opts; /* in range; memory_bytes 0: not limited */
    bool is_rough;         /* one of many that are compared: memory is placed quickly */
} lgi_strategy_input;

/* lg_plan_create() for an input that is resolved. */
LG_NODISCARD lg_status lgi_plan_create(lg_plan **out, const char *strategy,
                                       const lgi_strategy_input *input);

/* Places a strategy's plan: at leisure, or roughly. */
LG_NODISCARD lg_status lgi_strategy_place(lg_plan *plan, const lgi_strategy_input *input);

/* NOT_SUPPORTED: "`what` needs N bytes on a rank, over the budget of B", and what would need less. */
LG_NODISCARD lg_status lgi_fail_budget(const lgi_strategy_input *input, const char *what,
                                       int64_t num_bytes);

/* Whether the plan, whose memory need not be placed yet, fits the budget; places it roughly if there is one. */
LG_NODISCARD lg_status lgi_strategy_fits(lg_plan *plan, const lgi_strategy_input *input, bool *out);

/* Fills in the input of a strategy; fails where options, machine and graph do not go together. */
LG_NODISCARD lg_status lgi_strategy_resolve(lgi_strategy_input *input, const lg_graph *graph,
                                            const lg_machine *machine, const lg_costs *costs,
                                            const lg_strategy_opts *opts);

struct lgi_units;
struct lgi_unit;
struct lgi_schedule;

/* A row of the table: the functions of its role, the others NULL. */
struct lgi_strategy {
    const char *name;
    lg_strategy_role role;
    const char *help; /* one line */
    /* WHOLE: makes a plan with its memory placed; within the budget, or NOT_SUPPORTED. */
    lg_status (*create)(lg_plan **out, const lgi_strategy_input *input);
    /* PIPELINE: fills in the lists of units; see pipeline.h. */
    lg_status (*schedule)(struct lgi_schedule *out, const struct lgi_units *units);
    /* DATA: from an order of units to lanes; see data_parallel.h. */
    lg_status (*reduce)(lg_plan **out, const struct lgi_units *units, const char *name,
                        const struct lgi_unit *order, int num_order);
};

/* All strategies, ending in a row without name. */
extern const struct lgi_strategy lgi_strategies[];

/* The two halves of a strategy's name; a WHOLE one is `*pipeline`, with `*data` NULL. INVALID_ARG: no such name. */
LG_NODISCARD lg_status lgi_strategy_find(const char *name, const struct lgi_strategy **pipeline,
                                         const struct lgi_strategy **data);

/* Makes a plan from a pipeline and a data-parallel half, with its memory placed; within the budget, or NOT_SUPPORTED. */
LG_NODISCARD lg_status lgi_compose(lg_plan **out, const lgi_strategy_input *input, const char *name,
                                   const struct lgi_strategy *pipeline,
                                   const struct lgi_strategy *data);

LG_NODISCARD lg_status lgi_in_order_create(lg_plan **out, const lgi_strategy_input *input);
LG_NODISCARD lg_status lgi_out_of_order_create(lg_plan **out, const lgi_strategy_input *input);
LG_NODISCARD lg_status lgi_auto_create(lg_plan **out, const lgi_strategy_input *input);

/* The textbook plan without memory. */
LG_NODISCARD lg_status lgi_in_order_lanes(lg_plan **out, const lgi_strategy_input *input);

/* The widest of the graph's widths with `num_lanes` of them on the machine's cores, or 0. */
int lgi_widest(const lgi_strategy_input *input, int num_lanes);

/* SEND, RECV, ALL_REDUCE: they run on a rank's comm lane. */
bool lgi_is_comm_op(lg_op_kind kind);

/* The simulated step time of a plan, which needs no memory yet. */
LG_NODISCARD lg_status lgi_step_ns(const lgi_strategy_input *input, const lg_plan *plan,
                                   double *out_ns);

/* Every plan that the out-of-order search looked at, fastest first, as recipes to make it again. */
typedef struct lgi_candidates lgi_candidates;

LG_NODISCARD lg_status lgi_candidates_create(lgi_candidates **out, const lgi_strategy_input *input);
void lgi_candidates_destroy(lgi_candidates *candidates);
int lgi_candidates_num(const lgi_candidates *candidates);
double lgi_candidates_step_ns(const lgi_candidates *candidates, int idx);
/* Candidate `idx` with its memory placed. */
LG_NODISCARD lg_status lgi_candidates_make(const lgi_candidates *candidates, int idx,
                                           lg_plan **out);

#endif
