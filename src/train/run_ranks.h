/*
 * How the ranks of a run stay together. All ranks run the same code over the same recipe; what only one of them can know (Ctrl-C,
 * a full disk, a missing file) reaches the others in two ways:
 *
 *   words    once per round (a step, a batch of an evaluation), rank 0 says whether to go on. A word is sent a round ahead, so that
 *            nobody waits for it, and all ranks act on it before the same round.
 *   settling where all ranks stand still anyway (before training, at checkpoints, at the end): all learn whether one has failed.
 *
 * A rank that cannot get to either, because others wait for it inside of a step, breaks the communicator: lgi_ranks_fail().
 * Alone (no communicator) all of this is trivial.
 */
#ifndef LGI_TRAIN_RUN_RANKS_H
#define LGI_TRAIN_RUN_RANKS_H

#include <signal.h>

#include "comm/messages.h"

/* What to do before the next round; the larger one counts. */
typedef enum lgi_word { LGI_WORD_GO_ON, LGI_WORD_STOP, LGI_WORD_FAIL } lgi_word;

typedef struct lgi_round lgi_round;

typedef struct lgi_ranks {
    lg_comm *comm; /* NULL: alone */
    int rank;
    int num_ranks;
    const volatile sig_atomic_t
        *should_stop; /* non-zero: stop, if this rank has a say; NULL: never */
    int64_t num_rounds;
    lgi_round *rounds; /* the last ones, whose messages may be under way */
} lgi_ranks;

LG_NODISCARD lg_status lgi_ranks_init(lgi_ranks *ranks, lg_comm *comm,
                                      const volatile sig_atomic_t *should_stop);
/* Ends the messages that are under way, which the other ranks must do too (or the communicator has failed). */
void lgi_ranks_deinit(lgi_ranks *ranks);

/* Whether this is the rank that writes files and talks. */
static inline bool lgi_ranks_is_first(const lgi_ranks *ranks)
{
    return ranks->rank == 0;
}

/*
 * A new round, at the same place of the program on all ranks. *out: what rank 0 said in the round before (alone: what follows from
 * this very moment). What it says now: FAIL with `has_failed`, STOP if *should_stop of any rank was seen to be set.
 */
LG_NODISCARD lg_status lgi_ranks_next_round(lgi_ranks *ranks, bool has_failed, lgi_word *out);

/*
 * All ranks call it with their own status. OK if all are. A rank that failed keeps its status and message; the others get those of
 * the lowest rank that failed, with its number in front if it is not rank 0.
 */
LG_NODISCARD lg_status lgi_ranks_settle(lgi_ranks *ranks, lg_status own);

/* Rank 0's bytes go to all. */
LG_NODISCARD lg_status lgi_ranks_tell(lgi_ranks *ranks, void *data, size_t num_bytes);

/* Own failure while other ranks may wait for this one: tells them, if there is anything to tell. Returns `own`. */
LG_NODISCARD lg_status lgi_ranks_fail(lgi_ranks *ranks, lg_status own);

#endif
