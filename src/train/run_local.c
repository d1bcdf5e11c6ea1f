/*
 * lg_run_train(): as one rank of a communicator, or, where a recipe asks for several ranks and there is none, as all of them. The
 * caller's thread is rank 0 then, the one that talks.
 */
#include <limits.h>
#include <string.h>

#include "base/check.h"
#include "comm/collectives.h"
#include "train/local_ranks.h"
#include "train/run_internal.h"

struct local_run {
    const lg_recipe *recipe;
    const lg_run_opts *opts;
    lg_run_result *result; /* of rank 0 */
};

static lg_status train_rank(lg_comm *comm, void *user)
{
    const struct local_run *const run = user;
    const bool is_first = lg_comm_rank(comm) == 0;
    lg_run_opts opts = *run->opts;
    lg_run_result unused;
    opts.comm = comm;
    if (!is_first) {
        memset(&opts.listener, 0, sizeof opts.listener);
    }
    const lg_status status =
        lgi_run_train_rank(run->recipe, &opts, is_first ? run->result : &unused);
    if (!is_first) {
        lg_run_result_deinit(&unused);
    }
    return status;
}

lg_status lg_run_train(const lg_recipe *recipe, const lg_run_opts *opts, lg_run_result *result)
{
    lg_run_result unused;
    const lg_run_opts used = opts != NULL ? *opts : lg_run_opts_default();
    struct local_run run = {
        .recipe = recipe, .opts = &used, .result = result != NULL ? result : &unused};
    const int64_t num_ranks = recipe->ranks.pipeline * recipe->ranks.replicas;
    lg_status status = LG_OK;
    memset(run.result, 0, sizeof *run.result);
    if (used.comm == NULL && num_ranks > 1) {
        status = lgi_run_local_ranks(num_ranks < INT_MAX ? (int)num_ranks : INT_MAX,
                                     recipe->ranks.timeout_s, train_rank, &run);
    } else {
        if (used.comm != NULL) {
            lg_comm_set_timeout(used.comm, recipe->ranks.timeout_s);
        }
        status = lgi_run_train_rank(recipe, &used, run.result);
    }
    if (result == NULL) {
        lg_run_result_deinit(&unused);
    }
    return status;
}

lg_status lg_run_local_ranks(int num_ranks, double timeout_s,
                             lg_status (*work)(lg_comm *comm, void *user), void *user)
{
    return lgi_run_local_ranks(num_ranks, timeout_s, work, user);
}

lg_status lg_run_settle(lg_comm *comm, lg_status own)
{
    lgi_ranks ranks = {.num_ranks = 1};
    if (comm != NULL && lg_comm_num_ranks(comm) > 1) {
        ranks.comm = comm;
        ranks.rank = lg_comm_rank(comm);
        ranks.num_ranks = lg_comm_num_ranks(comm);
    }
    return lgi_ranks_settle(&ranks, own);
}

lg_status lg_run_agree(lg_comm *comm, const char *what, const char *text)
{
    return comm != NULL ? lgi_comm_agree(comm, what, text) : LG_OK;
}
