/*
 * A program: one rank's part of a lowered graph and its plan, bound to memory. Each op of the rank knows its pointers (two
 * sets where a value has two slots), each of its lanes its entries with the events they wait for. Nothing is decided when it
 * runs.
 */
#ifndef LGI_EXEC_PROGRAM_H
#define LGI_EXEC_PROGRAM_H

#include <stdatomic.h>

#include "exec/lower.h"
#include "leapgrad/optim.h"
#include "leapgrad/plan.h"

/* What the run of one training step needs from outside. Copied by the executor. */
typedef struct lgi_step_input {
    lgi_step step; /* `inputs` must stay valid until the step has returned */
    const lg_optim_opts *optim;
    int64_t num_steps;   /* of the whole training: the schedule's T */
    int64_t num_samples; /* that count for the scale of the step; 0: the graph's */
    double full_scale;   /* S of a full step; 0: 1 */
    double base_batch;   /* in samples; 0: the step's own */
    const double
        *weights; /* by micro-batch: its part of the step's weight, copied; NULL: by samples */
} lgi_step_input;

/* "op `op` of step (own step - distance) has ended". */
typedef struct lgi_wait {
    int op;
    int distance; /* from the step number of the waiting lane to that of the awaited op */
} lgi_wait;

struct lgi_bound_op {
    lg_op_kind kind;
    int width_idx;
    int width;
    lgi_device_layer *layer;
    lgi_device_reorder *reorder;
    lgi_phase phase;
    void **pointers[2]; /* by slot of the step; by operand */
    lgi_layer_io io[2]; /* ops of a layer */
    bool wakes_comm;    /* a communication lane waits for it */
};

struct lgi_bound_lane {
    int lane; /* of the plan */
    int first_core;
    int num_cores;
    int num_entries;
    const lg_plan_entry *entries;
    int *first_wait; /* by entry, and one past the last: index into waits */
    lgi_wait *waits;
    size_t num_waits, waits_capacity;
};

struct lgi_comm_lanes;

typedef struct lgi_program {
    const lgi_lowered *lowered;
    const lg_plan *plan;
    char *arena;
    int rank;
    bool is_rehearsal;
    struct lgi_bound_op *own_ops; /* of the rank, in the order of the graph */
    int *own_idx;                 /* by op: its place there; -1: another rank's */
    int num_lanes;
    struct lgi_bound_lane *lanes; /* compute lanes of the rank */
    int num_comm_lanes;
    struct lgi_bound_lane *comm_lanes;
    struct lgi_comm_lanes
        *comm_states;         /* the executor's, made before the first step; NULL: none yet */
    _Atomic int64_t *done;    /* by op of the rank: the last step whose op has ended */
    void *pool;               /* memory of all pointer arrays */
    int64_t first_step;       /* since the last drain: ops of earlier steps are done */
    int64_t next_step;        /* the step to come */
    bool has_lag;             /* some op of some rank runs in the next step */
    lgi_step_input inputs[2]; /* by step mod 2 */
    double *weights[2];       /* by step mod 2, by micro-batch; what `inputs` point to */
} lgi_program;

/* Takes over what the run of a step needs. */
void lgi_program_set_input(lgi_program *program, const lgi_step_input *input);

/*
 * The part of lowered->rank. Lifetime: `lowered`, `plan` and the arena (plan->peak_bytes[rank] bytes) must outlive the
 * program.
 */
LG_NODISCARD lg_status lgi_program_create(lgi_program **out, const lgi_lowered *lowered,
                                          const lg_plan *plan, void *arena);
/*
 * The same as a rehearsal: communication lanes run as compute lanes do, nothing is sent or added, and what is received is
 * some ordinary number. For measuring what a rank's ops take, by itself.
 */
LG_NODISCARD lg_status lgi_program_create_rehearsal(lgi_program **out, const lgi_lowered *lowered,
                                                    const lg_plan *plan, void *arena);
void lgi_program_destroy(lgi_program *program);

/* Runs one op on the calling thread; `step_slot` is its step's number modulo 2. */
LG_NODISCARD lg_status lgi_program_run_op(lgi_program *program, int op, int step_slot);

/* An op of the rank. */
struct lgi_bound_op *lgi_program_op(const lgi_program *program, int op);

/* Where value `value` of step `step` lies. */
void *lgi_program_value(const lgi_program *program, int value, int64_t step);

#endif
