/* How the ranks of a run stay together: words of rank 0, and settling. */
#include "train/run_ranks.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"

/*
 * Messages of so many rounds may be under way. What was sent LAG rounds ago is waited for: it has long arrived, unless a rank is
 * further behind than that.
 */
#define NUM_SLOTS 4
#define LAG 2

/* A round between rank 0 and its peers: all others; or between another rank and its one peer, rank 0. */
struct lgi_round {
    int64_t sent;      /* rank 0: the word; else: the wish */
    int64_t *got;      /* by peer: wishes; else: the word */
    lgi_message *to;   /* by peer */
    lgi_message *from; /* by peer */
};

static int num_peers(const lgi_ranks *ranks)
{
    return lgi_ranks_is_first(ranks) ? ranks->num_ranks - 1 : 1;
}

static int peer_of(const lgi_ranks *ranks, int idx)
{
    return lgi_ranks_is_first(ranks) ? idx + 1 : 0;
}

static lg_status make_rounds(lgi_ranks *ranks)
{
    const size_t num = (size_t)num_peers(ranks);
    LG_TRY(lgi_calloc(&ranks->rounds, NUM_SLOTS, sizeof *ranks->rounds));
    for (int i = 0; i < NUM_SLOTS; i++) {
        lgi_round *const round = &ranks->rounds[i];
        LG_TRY(lgi_calloc(&round->got, num, sizeof *round->got));
        LG_TRY(lgi_calloc(&round->to, num, sizeof *round->to));
        LG_TRY(lgi_calloc(&round->from, num, sizeof *round->from));
    }
    return LG_OK;
}

lg_status lgi_ranks_init(lgi_ranks *ranks, lg_comm *comm, const volatile sig_atomic_t *should_stop)
{
    memset(ranks, 0, sizeof *ranks);
    ranks->should_stop = should_stop;
    ranks->num_ranks = 1;
    if (comm == NULL || lg_comm_num_ranks(comm) == 1) {
        return LG_OK;
    }
    ranks->comm = comm;
    ranks->rank = lg_comm_rank(comm);
    ranks->num_ranks = lg_comm_num_ranks(comm);
    const lg_status status = make_rounds(ranks);
    if (status != LG_OK) {
        lgi_ranks_deinit(ranks);
    }
    return status;
}

static lg_status wait_for_round(lgi_ranks *ranks, int64_t number)
{
    lgi_round *const round = &ranks->rounds[number % NUM_SLOTS];
    for (int i = 0; i < num_peers(ranks); i++) {
        LG_TRY(lgi_comm_wait(ranks->comm, &round->to[i]));
        LG_TRY(lgi_comm_wait(ranks->comm, &round->from[i]));
    }
    return LG_OK;
}

void lgi_ranks_deinit(lgi_ranks *ranks)
{
    if (ranks->rounds == NULL) {
        return;
    }
    const int64_t first = ranks->num_rounds > NUM_SLOTS ? ranks->num_rounds - NUM_SLOTS : 0;
    for (int64_t number = first; number < ranks->num_rounds; number++) {
        const lg_status status = wait_for_round(ranks, number);
        (void)status; /* a failure ends all messages, and has been reported */
    }
    for (int i = 0; i < NUM_SLOTS; i++) {
        lgi_free(ranks->rounds[i].got);
        lgi_free(ranks->rounds[i].to);
        lgi_free(ranks->rounds[i].from);
    }
    lgi_free(ranks->rounds);
    ranks->rounds = NULL;
}

static void post(const lgi_ranks *ranks, lgi_message *message, int peer, bool is_send,
                 int64_t *word)
{
    memset(message, 0, sizeof *message);
    message->is_send = is_send;
    message->peer = peer;
    message->channel = LGI_CHANNEL_STEP;
    message->data = word;
    message->num_bytes = sizeof *word;
    lgi_comm_post(ranks->comm, message);
}

/* The wishes of LAG rounds ago. */
static lg_status look_at_wishes(lgi_ranks *ranks, lgi_word *word)
{
    const int64_t number = ranks->num_rounds - LAG;
    if (number < 0) {
        return LG_OK;
    }
    LG_TRY(wait_for_round(ranks, number));
    const lgi_round *const round = &ranks->rounds[number % NUM_SLOTS];
    for (int i = 0; lgi_ranks_is_first(ranks) && i < num_peers(ranks); i++) {
        if (round->got[i] != LGI_WORD_GO_ON && *word == LGI_WORD_GO_ON) {
            *word = LGI_WORD_STOP;
        }
    }
    return LG_OK;
}

static lg_status last_word(lgi_ranks *ranks, lgi_word *out)
{
    *out = LGI_WORD_GO_ON;
    if (ranks->num_rounds == 0) {
        return LG_OK;
    }
    lgi_round *const round = &ranks->rounds[(ranks->num_rounds - 1) % NUM_SLOTS];
    if (lgi_ranks_is_first(ranks)) {
        *out = (lgi_word)round->sent;
        return LG_OK;
    }
    LG_TRY(lgi_comm_wait(ranks->comm, &round->from[0]));
    *out = (lgi_word)round->got[0];
    return LG_OK;
}

lg_status lgi_ranks_next_round(lgi_ranks *ranks, bool has_failed, lgi_word *out)
{
    const bool is_stopped = ranks->should_stop != NULL && *ranks->should_stop != 0;
    lgi_word own = has_failed ? LGI_WORD_FAIL : is_stopped ? LGI_WORD_STOP : LGI_WORD_GO_ON;
    if (ranks->comm == NULL) {
        *out = own;
        return LG_OK;
    }
    LG_TRY(look_at_wishes(ranks, &own));
    LG_TRY(last_word(ranks, out));
    lgi_round *const round = &ranks->rounds[ranks->num_rounds % NUM_SLOTS];
    round->sent = own;
    for (int i = 0; i < num_peers(ranks); i++) {
        post(ranks, &round->from[i], peer_of(ranks, i), false, &round->got[i]);
        post(ranks, &round->to[i], peer_of(ranks, i), true, &round->sent);
    }
    ranks->num_rounds++;
    return LG_OK;
}

/* --- settling ---------------------------------------------------------------------------------------------------------- */

struct outcome {
    int32_t status;
    char message[508];
};

lg_status lgi_ranks_settle(lgi_ranks *ranks, lg_status own)
{
    struct outcome outcome;
    struct outcome *all = NULL;
    lg_status status = LG_OK;
    if (ranks->comm == NULL) {
        return own;
    }
    memset(&outcome, 0, sizeof outcome);
    outcome.status = (int32_t)own;
    if (own != LG_OK) {
        (void)snprintf(outcome.message, sizeof outcome.message, "%s", lg_last_error());
    }
    LG_TRY_GOTO(lgi_calloc(&all, (size_t)ranks->num_ranks, sizeof *all));
    LG_TRY_GOTO(lgi_comm_all_gather(ranks->comm, &outcome, sizeof outcome, all));
    for (int rank = 0; rank < ranks->num_ranks && status == LG_OK && own == LG_OK; rank++) {
        if (all[rank].status != LG_OK) {
            status = lgi_fail_copy((lg_status)all[rank].status, all[rank].message);
            status = rank > 0 ? lgi_fail_prefix(status, "rank %d", rank) : status;
        }
    }
out:
    lgi_free(all);
    return own != LG_OK ? lgi_fail_copy(own, outcome.message) : status;
}

lg_status lgi_ranks_tell(lgi_ranks *ranks, void *data, size_t num_bytes)
{
    return ranks->comm != NULL ? lgi_comm_broadcast(ranks->comm, 0, data, (int64_t)num_bytes)
                               : LG_OK;
}

lg_status lgi_ranks_fail(lgi_ranks *ranks, lg_status own)
{
    char message[1024];
    if (ranks->comm == NULL || own == LG_OK) {
        return own;
    }
    (void)snprintf(message, sizeof message, "%s", lg_last_error());
    if (!lgi_comm_has_failed(ranks->comm)) {
        lgi_comm_fail(ranks->comm, own, message);
    }
    return lgi_fail_copy(own, message);
}
