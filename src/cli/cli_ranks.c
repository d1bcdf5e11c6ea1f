/* Commands that run as several processes under mpirun or srun. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* As launchers have it, for processes that are not ranks yet. */
static bool is_first_process(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *const number = getenv(names[i]);
        if (number != NULL) {
            return strcmp(number, "0") == 0;
        }
    }
    return true;
}

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
    if (status == LG_INVALID_ARG && !is_first_process()) {
        cli_be_silent(true); /* they do not agree, which all of them know */
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
