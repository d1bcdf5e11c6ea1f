/* Which cores this process may use, and binding threads to them. The only file that talks to hwloc. */
#ifndef LGI_EXEC_HARDWARE_H
#define LGI_EXEC_HARDWARE_H

#include <stdbool.h>

#include "leapgrad/status.h"

typedef struct lgi_hardware lgi_hardware;

LG_NODISCARD lg_status lgi_hardware_open(lgi_hardware **out);
void lgi_hardware_close(lgi_hardware *hardware);

/*
 * Leaves this rank its share of the cores that the process may use: part `idx` of `num`. With more ranks than cores several
 * have the same core.
 */
void lgi_hardware_share(lgi_hardware *hardware, int idx, int num);

/* Whether several ranks have the same core. */
bool lgi_hardware_is_crowded(const lgi_hardware *hardware);

/* Cores that the rank may run on (one hardware thread of each); at least 1. */
int lgi_hardware_num_cores(const lgi_hardware *hardware);

/* Cores of the whole machine, used or not. What results depend on is cut by this number, so that they do not depend on where
   the process is allowed to run. */
int lgi_hardware_num_machine_cores(const lgi_hardware *hardware);

/* "AMD EPYC 9B14"; "" if unknown. Lifetime: until close. */
const char *lgi_hardware_cpu_name(const lgi_hardware *hardware);

/* Binds the calling thread to core `core` of the rank's, modulo their number. A machine that forbids it is no error: threads then
   run where the system puts them. */
void lgi_hardware_bind_thread(const lgi_hardware *hardware, int core);

#endif
