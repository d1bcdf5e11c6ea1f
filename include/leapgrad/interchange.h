/**
 * Interchange: pipeline schedules in the CSV form that PyTorch writes and reads (torch.distributed.pipelining), format in
 * docs/formats/schedule_csv.md. A schedule says in which order each pipeline rank runs its stages' forwards and backwards; a
 * plan has the ops, messages and memory that follow from it.
 */
#ifndef LEAPGRAD_INTERCHANGE_H
#define LEAPGRAD_INTERCHANGE_H

#include "leapgrad/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lg_action_kind {
    LG_ACTION_FORWARD,     /* F */
    LG_ACTION_BACKWARD,    /* B: input and weight gradients */
    LG_ACTION_INPUT_GRAD,  /* I */
    LG_ACTION_WEIGHT_GRAD, /* W */
    LG_NUM_ACTION_KINDS
} lg_action_kind;

/** What a rank does for one stage and micro-batch. */
typedef struct lg_action {
    lg_action_kind kind;
    int stage;
    int micro_batch;
    int column; /* of the file, from 1, empty cells counted; 0: not from a file */
} lg_action;

/**
 * A schedule of one replica: each stage is on one rank, each of its micro-batches has one F, and one B or one I and one W, and the
 * lists can be run as they are. Arrays belong to it; release with lg_schedule_destroy().
 */
typedef struct lg_rank_schedule {
    int num_ranks;
    int num_stages;
    int num_micro_batches;
    int *rank_of_stage;
    int *num_actions; /* by rank */
    lg_action **actions;
} lg_rank_schedule;

/**
 * Reads a schedule, with or without communication actions: those are checked and left out, since messages follow from
 * the order of the computations.
 *
 * @return INVALID_ARG with line and action: no action, doubled or missing ones, a stage on two ranks, an order that nothing
 *         can run in; IO.
 */
LG_API LG_NODISCARD lg_status lg_schedule_load_csv(lg_rank_schedule **out, const char *path);
/** The same from memory; `source` names it in messages. */
LG_API LG_NODISCARD lg_status lg_schedule_parse_csv(lg_rank_schedule **out, const char *source,
                                                    const char *text, size_t num_bytes);
/** Writes the computations only, a line for each rank: PyTorch's format "compute_only". */
LG_API LG_NODISCARD lg_status lg_schedule_save_csv(const lg_rank_schedule *schedule,
                                                   const char *path);
LG_API void lg_schedule_destroy(lg_rank_schedule *schedule);

/**
 * The order of the first replica of a plan. What of an action is spread over others stands where its last op does; weight
 * gradients that lag stand at the end. A stage's F, I and W are what is left of it if it has no such ops at all: B then.
 *
 * @return NOT_SUPPORTED for ranks with several compute lanes.
 */
LG_API LG_NODISCARD lg_status lg_schedule_of_plan(lg_rank_schedule **out, const lg_plan *plan,
                                                  const lg_graph *graph);

/**
 * The plan of a schedule for a graph with these stages, ranks and micro-batches; `data_strategy` (NULL: "barrier") says what comes
 * after the gradients.
 *
 * @return INVALID_ARG if schedule and graph do not go together; NOT_SUPPORTED if a stage adds its weight gradients in
 *         another order than that of the micro-batches, or the plan does not fit the memory.
 */
LG_API LG_NODISCARD lg_status
lg_plan_from_schedule(lg_plan **out, const char *name, const lg_rank_schedule *schedule,
                      const lg_graph *graph, const lg_machine *machine, const lg_costs *costs,
                      const char *data_strategy, const lg_strategy_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
