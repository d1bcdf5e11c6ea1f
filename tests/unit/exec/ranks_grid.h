/*
 * The grid of invariant 1: a model trained by every strategy on every placement, with micro-batches from fewer than ranks to more
 * of them, ragged ones, uneven stages, messages in chunks or shared. All that have the same replicas and micro-batches must come
 * to one hash, that of replicas without pipeline as threads of one process.
 */
#ifndef LG_TEST_RANKS_GRID_H
#define LG_TEST_RANKS_GRID_H

#include "unit/train/ranks_fixture.h"

/* Trains and gives the result, of one rank; does not come back if training fails. */
typedef void (*rg_train_fn)(void *user, const rf_run *run, rf_result *result);

typedef struct rg_grid {
    int num_ranks; /* only placements on so many; 0: on all, and every pair of halves on some */
    bool is_first; /* this is rank 0 */
    rg_train_fn reference; /* over local ranks */
    rg_train_fn train;
    void *user;
    int num_cases; /* out */
    int num_wrong; /* out: with other results than the reference; each is said on stderr */
} rg_grid;

void rg_check_model(rg_grid *grid, rf_model model);

#endif
