/* Commands that run as several processes under mpirun or srun. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

lg_status cli_join_ranks(lg_comm **out)
{
    *out = NULL;
    if (!lg_comm_is_launched()) {
        return LG_OK;
    }
    const lg_status status = lg_comm_mpi_create(out);
    if (status == LG_OK && lg_comm_rank(*out) > 0) {
        cli_be_silent(true);
    }
    return status;
}

const char *cli_comm_text(const char *comm_name)
{
    return comm_name == NULL || strcmp(comm_name, "local") == 0 ? "threads of this process"
                                                                : comm_name;
}

void cli_leave_ranks(lg_comm *comm, lg_status status)
{
    if (comm == NULL) {
        return;
    }
    if (lg_comm_rank(comm) == 1 && (status == LG_COMM || status == LG_TIMEOUT) &&
        strncmp(lg_last_error(), "rank 0 ", 7) == 0) {
        cli_be_silent(false);
    }
    cli_tell_failure(status); /* a launcher that ends all ranks leaves no time for it later */
    lg_comm_destroy(comm);
}
