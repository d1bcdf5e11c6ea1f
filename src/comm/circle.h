/* Ranks that wait for each other in a circle: a stall without a death. */
#ifndef LGI_COMM_CIRCLE_H
#define LGI_COMM_CIRCLE_H

#include <stdint.h>

#include "comm/transport.h"

/*
 * Fails the communicator with TIMEOUT if a circle has lasted for the timeout. Every rank looks for circles that it is part of;
 * rank 0, which hears of all, for all others too. What it stood still itself (`slept_ns`) does not count.
 */
void lgi_comm_find_circle(lg_comm *comm, uint64_t now_ns, uint64_t slept_ns);

#endif
