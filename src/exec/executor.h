/*
 * The executor: one rank's lanes, running a program's entries in their order. Compute lanes are threads bound to cores;
 * communication lanes are driven by the communicator's thread. A lane waits for an event (an op of another lane and step) by
 * looking at that op's counter; nothing else orders lanes of a rank.
 *
 * A failure of an op fails the communicator, and a failed communicator ends the step of every rank.
 *
 * Thread safety: one caller at a time.
 */
#ifndef LGI_EXEC_EXECUTOR_H
#define LGI_EXEC_EXECUTOR_H

#include "comm/messages.h"
#include "exec/hardware.h"
#include "exec/program.h"

typedef struct lgi_executor lgi_executor;

/*
 * When each op of a lane step ran; arrays by op, 0 where it did not. Communication: from when its messages were posted until
 * they were done.
 */
typedef struct lgi_trace {
    uint64_t *start_ns;
    uint64_t *end_ns;
    uint64_t begin_ns; /* when the step was handed to the lanes */
    uint64_t finish_ns;
} lgi_trace;

/*
 * Runs programs of `device`. It, `hardware` and `comm` must outlive the executor. `comm`: NULL for programs of one rank. Else
 * the executor is its driver while a step runs, and possibly until it is destroyed.
 */
LG_NODISCARD lg_status lgi_executor_create(lgi_executor **out, const lgi_hardware *hardware,
                                           lgi_device *device, lg_comm *comm);
void lgi_executor_destroy(lgi_executor *executor);

/*
 * Runs the next step of `program`: ops without lag of this step, lagging ones of the step before. `input->step.number` must
 * be program->next_step. Returns when all lanes are through. After a failure the program must not run again.
 */
LG_NODISCARD lg_status lgi_executor_step(lgi_executor *executor, lgi_program *program,
                                         const lgi_step_input *input, lgi_trace *trace);

/* Runs the lagging ops of the last step, so that all its results are there. */
LG_NODISCARD lg_status lgi_executor_drain(lgi_executor *executor, lgi_program *program);

/* Says that the next step has number `step` and that all before it are done; the program must be drained. */
void lgi_program_seek(lgi_program *program, int64_t step);

#endif
