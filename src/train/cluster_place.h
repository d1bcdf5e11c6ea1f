/* Placement as a recipe has it, for what is run and for what is only planned. */
#ifndef LGI_TRAIN_CLUSTER_PLACE_H
#define LGI_TRAIN_CLUSTER_PLACE_H

#include "leapgrad/placement.h"
#include "leapgrad/plan.h"
#include "leapgrad/recipe.h"

/*
 * The stages that a recipe's ranks, strategy and placement come to; empty with one pipeline rank and one stage. A function of its
 * arguments: the same on every rank. `machine`: what balanced placements are costed by. INVALID_ARG: more stages than blocks.
 */
LG_NODISCARD lg_status lgi_place_recipe(lg_stages *out, lg_model *model, const lg_machine *machine,
                                        const lg_recipe *recipe);

/*
 * INVALID_ARG if plan.push or plan.reverse_first_k is set and the strategy does not know it, or if the latter is more than the model's
 * layers with weights.
 */
LG_NODISCARD lg_status lgi_check_strategy_keys(const lg_recipe *recipe, const char *strategy,
                                               const lg_model *model);

/* INVALID_ARG if a batch has fewer samples than the replicas have micro-batches. */
LG_NODISCARD lg_status lgi_check_parts_of_batch(int64_t batch, int64_t num_replicas,
                                                int64_t num_micro_batches);

#endif
