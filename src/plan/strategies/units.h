/*
 * Units: what pipeline strategies put in order. A unit is all that one stage does for one micro-batch in one phase: F
 * forward (and the loss), I input gradients (joint layers and sums of gradients too), W weight gradients and their statistics. In a rank's list B
 * stands for I and W together.
 *
 * Replicas are alike: schedules are made for replica 0 and hold for all of them.
 */
#ifndef LGI_PLAN_UNITS_H
#define LGI_PLAN_UNITS_H

#include "plan/strategies/strategy.h"

typedef enum lgi_unit_kind {
    LGI_UNIT_F,
    LGI_UNIT_I,
    LGI_UNIT_W,
    LGI_NUM_UNIT_KINDS,
    LGI_UNIT_B = LGI_NUM_UNIT_KINDS /* in lists only */
} lgi_unit_kind;

typedef struct lgi_unit {
    int stage;
    int micro_batch; /* of replica 0 */
    lgi_unit_kind kind;
} lgi_unit;

/* "the other unit ends `delay_ns` before this one may start" */
typedef struct lgi_unit_arc {
    int unit;
    double delay_ns;
} lgi_unit_arc;

typedef struct lgi_units {
    const lgi_strategy_input *input;
    int num_threads;
    int width_idx;
    int num_replicas;
    int num_ranks; /* of a pipeline */
    int num_stages;
    int num_micro_batches; /* of a replica */
    int num_units;         /* of a replica */
    int *rank_of_stage;    /* -1: no op is of this stage */
    int *replica_ranks;    /* scratch of lgi_all_reduce_ns() */

    /* by unit of replica 0 */
    double *duration_ns;
    int *pred_begin; /* preds[pred_begin[u] .. pred_begin[u + 1]) */
    lgi_unit_arc *preds;
    int *succ_begin;
    lgi_unit_arc *succs;

    /* by unit of all replicas: unit u of replica d is d * num_units + u */
    int *op_begin; /* ops[op_begin[u] .. op_begin[u + 1]), ascending */
    int *ops;

    /* by op */
    int *
        op_unit; /* over all replicas; -1: none, such as messages and what comes after the gradients */
    int *in_begin;  /* edges into it */
    int *out_begin; /* out_edges[out_begin[op] ..): indices of edges from it */
    int *out_edges;
    int *partner; /* SEND: its RECV, RECV: its SEND; else -1 */
} lgi_units;

LG_NODISCARD lg_status lgi_units_init(lgi_units *out, const lgi_strategy_input *input);
void lgi_units_deinit(lgi_units *units);

static inline int lgi_unit_id(const lgi_units *units, int stage, int micro_batch,
                              lgi_unit_kind kind)
{
    return (micro_batch * units->num_stages + stage) * LGI_NUM_UNIT_KINDS + (int)kind;
}

/* Whether there is such a unit with ops; false for stages and micro-batches beyond the graph's. For B: I or W. */
bool lgi_unit_exists(const lgi_units *units, int stage, int micro_batch, lgi_unit_kind kind);

/* Time of a message between two ranks of the machine, with the wire to itself. */
double lgi_message_ns(const lg_machine *machine, int from_rank, int to_rank, int64_t bytes);

/* Time of an all-reduce over the replicas of a pipeline rank, with the wires to itself. */
double lgi_all_reduce_ns(const lgi_units *units, int pipeline_rank, int64_t bytes);

/* --- schedules -------------------------------------------------------------------------------------------------------- */

/* What each pipeline rank runs, in order. */
typedef struct lgi_schedule {
    int num_ranks;
    int *num;         /* by rank */
    lgi_unit **lists; /* by rank */
} lgi_schedule;

/* Empty lists with room for all units. */
LG_NODISCARD lg_status lgi_schedule_init(lgi_schedule *out, const lgi_units *units);
void lgi_schedule_deinit(lgi_schedule *schedule);

/* Appends to the list of the stage's rank, or does nothing if there is no such unit. */
void lgi_schedule_add(lgi_schedule *schedule, const lgi_units *units, int stage, int micro_batch,
                      lgi_unit_kind kind);

/* Whether the lists have all units. */
bool lgi_schedule_is_complete(const lgi_schedule *schedule, const lgi_units *units);

/*
 * Runs the lists on paper. `order` (NULL or room for all entries): an order of all ranks' entries in which each comes after
 * those it waits for; *out_num its length. *step_ns: time per step in the steady state, each rank going from one step to the next
 * by itself.
 *
 * INTERNAL if an entry waits for one that never comes, or a unit is missing.
 */
LG_NODISCARD lg_status lgi_schedule_run(const lgi_schedule *schedule, const lgi_units *units,
                                        lgi_unit *order, int *out_num, double *step_ns);

/* One unit must end before another starts, besides what the graph says. Ends without ops: see lgi_rules_add(). */
typedef struct lgi_rule {
    int from; /* unit */
    int to;
} lgi_rule;

typedef struct lgi_rules {
    lgi_rule *items;
    size_t num;
    size_t capacity;
} lgi_rules;

/*
 * Adds a rule. Where a stage has no input gradients (it begins the model), its weight gradients stand in for them; a rule with
 * an end that does not exist at all is left out.
 */
LG_NODISCARD lg_status lgi_rules_add(lgi_rules *rules, const lgi_units *units, lgi_unit from,
                                     lgi_unit to);

/*
 * How the list scheduler chooses. I comes before F before W; micro-batches are in order within a stage and phase; of one phase on one
 * rank the later stage goes first, unless the policy says otherwise.
 */
typedef struct lgi_policy {
    const lgi_rule *rules;
    int num_rules;
    const int *max_ahead; /* by stage: so many F more than I; NULL: not limited */
    const int *max_held;  /* by rank: so many F more than W, over its stages; NULL: not limited */
    bool takes_early_forward; /* F: the earlier stage first */
    bool takes_early_weight;  /* W: the earlier micro-batch first */
    double wait_frac; /* W waits if I or F is known to become ready within this part of its time */
} lgi_policy;

/* Event-driven list scheduling: whenever a rank is free it takes the most urgent unit that is ready. */
LG_NODISCARD lg_status lgi_schedule_greedily(lgi_schedule *out, const lgi_units *units,
                                             const lgi_policy *policy);

/* --- from units to a plan ------------------------------------------------------------------------------------------------- */

/* What the data-parallel half decides. Arrays by op; NULL: none. */
typedef struct lgi_tail {
    const unsigned char *lag; /* 0 or 1 */
    const bool *is_put_off; /* weight gradients that leave their unit and come after all units... */
    const int *put_off;     /* ...in this order */
    int num_put_off;
    const int *
        reductions; /* one ALL_REDUCE of each chunk (that of replica 0), in lane order of all lanes together, lag 1
                              first; NULL: by id */
    int num_reductions;
    const int *updates; /* in order, each on all replicas; NULL: by id */
    int num_updates;
    bool is_barrier; /* reductions wait for all gradients, updates for all reductions */
} lgi_tail;

/* Times of a first step that starts at 0, as the expander lays out lanes; by op. */
typedef struct lgi_op_times {
    double *start_ns;
    double *end_ns;
    double *units_end_ns; /* by rank: when the last unit ends */
} lgi_op_times;

/*
 * Turns an order of units into lanes: one compute lane per rank, one comm lane per (peer, direction), one for reductions. Each lane
 * is a part of one order of all ops that respects everything, so no plan that comes out of here can deadlock.
 * `times`: NULL, or arrays to fill in.
 */
LG_NODISCARD lg_status lgi_expand(lg_plan **out, const lgi_units *units, const char *name,
                                  const lgi_unit *order, int num_order, const lgi_tail *tail,
                                  lgi_op_times *times);

#endif
