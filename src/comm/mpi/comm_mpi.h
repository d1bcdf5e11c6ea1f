/* For tests of ranks over MPI. */
#ifndef LGI_COMM_MPI_COMM_MPI_H
#define LGI_COMM_MPI_COMM_MPI_H

#include <stdint.h>

/* Cuts messages in pieces of so many bytes instead of 1 GiB. On all ranks, before messages are posted. */
void lgi_comm_mpi_set_piece_bytes(int64_t num_bytes);

#endif
