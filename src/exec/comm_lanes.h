/*
 * Communication lanes: the part of a program that runs on the communication thread. Each lane's head entry waits for its events,
 * posts its messages, and ends when they are done; nothing here blocks.
 *
 * SEND and RECV: the values of the message one after the other, on CHANNEL_PLAN. ALL_REDUCE: exec/reduce.h.
 */
#ifndef LGI_EXEC_COMM_LANES_H
#define LGI_EXEC_COMM_LANES_H

#include "exec/program.h"
#include "exec/reduce.h"

typedef struct lgi_comm_lanes lgi_comm_lanes;

/* What the lanes ask their executor. */
typedef struct lgi_comm_hooks {
    /* Whether the op runs in this iteration: it has work to do and nothing has failed. */
    bool (*starts)(void *user, int op, int64_t step);
    /* The op's messages are done, or it had none to do: marks it done and wakes who waits. */
    void (*ended)(void *user, int op, int64_t step, uint64_t start_ns);
    void *user;
} lgi_comm_hooks;

/* States for the program's communication lanes. NULL hooks are not allowed. */
LG_NODISCARD lg_status lgi_comm_lanes_create(lgi_comm_lanes **out, lg_comm *comm,
                                             const lgi_program *program);
/* No message may be under way. */
void lgi_comm_lanes_destroy(lgi_comm_lanes *lanes);

/* Begins an iteration. */
void lgi_comm_lanes_start(lgi_comm_lanes *lanes, int64_t lane_step);

/* Goes on as far as events and messages allow. DONE: all lanes are through. */
lgi_progress lgi_comm_lanes_advance(lgi_comm_lanes *lanes, const lgi_comm_hooks *hooks);

/* Whether messages are under way; of which op, and with which rank. */
bool lgi_comm_lanes_wait_for(const lgi_comm_lanes *lanes, int *op, int *rank);

#endif
