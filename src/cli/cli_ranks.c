/* Commands that run as several processes under mpirun or srun. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

#define COMMAND_BYTES 4096

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

/* Options say who reads, who writes, and what for: ranks with others would wait for what never comes. */
static lg_status agree_on_command(lg_comm *comm, const cli_args *args, const cli_command *command)
{
    char text[COMMAND_BYTES];
    size_t used = (size_t)snprintf(text, sizeof text, "%s", command->name);
    for (int i = 0; command->options[i].name != NULL && used < sizeof text; i++) {
        const char *const value = args->option_values[i];
        if (value != NULL) {
            used += (size_t)snprintf(text + used, sizeof text - used, " --%s%s%s",
                                     command->options[i].name, value[0] != '\0' ? "=" : "", value);
        }
    }
    return lg_run_agree(comm, "the command", text);
}

lg_status cli_join_ranks(lg_comm **out, const cli_args *args, const cli_command *command)
{
    *out = NULL;
    if (!lg_comm_is_launched()) {
        return LG_OK;
    }
    lg_status status = lg_comm_mpi_create(out);
    if (status != LG_OK) {
        if (status == LG_INVALID_ARG && !is_first_process()) {
            /* They do not agree, which all know. A launcher ends all when one ends: the first one goes first. */
            const struct timespec moment = {2, 0};
            cli_be_silent(true);
            (void)nanosleep(&moment, NULL);
        }
        return status;
    }
    cli_be_silent(lg_comm_rank(*out) > 0);
    status = agree_on_command(*out, args, command);
    if (status != LG_OK) {
        cli_leave_ranks(*out, status);
        *out = NULL;
    }
    return status;
}

const char *cli_comm_text(const char *comm_name)
{
    return comm_name == NULL || strcmp(comm_name, "local") == 0 ? "threads of this process"
                                                                : comm_name;
}

/* Also if a rank in between has found it: "rank 2: rank 0 has given no sign of life". */
static bool is_about_rank_0(const char *failure)
{
    const char *text = failure;
    while (strncmp(text, "rank ", 5) == 0) {
        const char *const behind = text + 5 + strspn(text + 5, "0123456789");
        if (strncmp(behind, ": ", 2) != 0) {
            return strncmp(text, "rank 0 ", 7) == 0;
        }
        text = behind + 2;
    }
    return false;
}

void cli_leave_ranks(lg_comm *comm, lg_status status)
{
    if (comm == NULL) {
        return;
    }
    if (lg_comm_rank(comm) == 1 && (status == LG_COMM || status == LG_TIMEOUT) &&
        is_about_rank_0(lg_last_error())) {
        cli_be_silent(false);
    }
    cli_tell_failure(status); /* a launcher that ends all ranks leaves no time for it later */
    lg_comm_destroy(comm);
}
