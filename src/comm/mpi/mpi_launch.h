/* Which MPI launched this process, and its module. */
#ifndef LGI_COMM_MPI_MPI_LAUNCH_H
#define LGI_COMM_MPI_MPI_LAUNCH_H

#include "comm/mpi/mpi_module.h"
#include "leapgrad/status.h"

/*
 * Finds and loads the module; it stays loaded. NOT_SUPPORTED names what was looked for, and where; also the second time, since MPI
 * can be started once in a process, and not again after its end.
 */
LG_NODISCARD lg_status lgi_mpi_load_module(const lgi_mpi_module **out);

#endif
