/**
 * Placement: which layers make a stage, and which pipeline rank holds which stages. It fills the arrays of lg_parallel
 * (graph.h) before the step graph is made.
 *
 * Placement happens at the borders of blocks. A block is a run of layers whose names share a prefix that ends with a number
 * as a component of its own or with "denselayer<number>": "transformer.h.7", "bert.encoder.layer.7", "layer3.1",
 * "features.denseblock2.denselayer5". Layers without such a prefix (embeddings, transitions, heads, the loss) join the block
 * before them, those ahead of all blocks the first one. In a model without any such name every layer with parameters begins
 * a block, and the others join in the same way. Input layers belong to no block.
 *
 * Stages are runs of whole blocks in layer order, none empty, and together all blocks: no layer is dropped or taken twice.
 */
#ifndef LEAPGRAD_PLACEMENT_H
#define LEAPGRAD_PLACEMENT_H

#include "leapgrad/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Stages of a model. Release with lg_stages_deinit(). */
typedef struct lg_stages {
    int num_pipeline_ranks;
    int num_stages;
    int num_layers;
    int *stage_of_layer; /* by layer; 0 for input layers */
    int *rank_of_stage;  /* by stage */
} lg_stages;

LG_API void lg_stages_deinit(lg_stages *stages);

/** Points `parallel` to these stages. Lifetime: until lg_stages_deinit(). */
LG_API void lg_stages_apply(const lg_stages *stages, lg_parallel *parallel);

/** How stages go round the ranks. */
typedef enum lg_stage_order {
    LG_STAGE_ORDER_LOOP, /* stage s on rank s mod P */
    LG_STAGE_ORDER_V     /* 2 P stages, stage s on rank s if s < P, else 2 P - 1 - s */
} lg_stage_order;

/**
 * The block of each layer (-1 for input layers), `block_of_layer[0 .. number of layers)`.
 *
 * @return The number of blocks.
 */
LG_API int lg_model_blocks(const lg_model *model, int *block_of_layer);

/**
 * Equal numbers of blocks; where they do not divide, the first stages get one more. `num_stages` a multiple of the ranks is
 * usual (one stage per rank, or a loop of several), at least as many as ranks is required; for V it is 2 P.
 *
 * @return INVALID_ARG for more stages than blocks, or fewer than ranks.
 */
LG_API LG_NODISCARD lg_status lg_stages_contiguous(lg_stages *out, const lg_model *model,
                                                   int num_pipeline_ranks, int num_stages,
                                                   lg_stage_order order);

/**
 * By list: stage s begins with the block that has layer `first_layers[s]` (the first entry must be in the first block), and
 * is on rank `ranks[s]` (NULL: s mod P).
 */
LG_API LG_NODISCARD lg_status lg_stages_list(lg_stages *out, const lg_model *model,
                                             int num_pipeline_ranks, int num_stages,
                                             const int *first_layers, const int *ranks);

/**
 * Modulo allocation: stages of `group_size` blocks (the last may have fewer), rank = (block / group_size) mod P.
 * Source: Oh et al., "Out-Of-Order BackProp" (EuroSys 2022), modulo allocation.
 */
LG_API LG_NODISCARD lg_status lg_stages_modulo(lg_stages *out, const lg_model *model,
                                               int num_pipeline_ranks, int group_size);

/** What layers cost, for a balanced placement. All arrays by layer; borrowed for the call. */
typedef struct lg_layer_costs {
    const double *ns;     /* time of one micro-batch, forward and backward */
    const int64_t *bytes; /* weights, gradients, optimizer; NULL: 0 */
    const int64_t
        *micro_batch_bytes; /* kept from forward to backward for each micro-batch; NULL: 0 */
    const int *micro_batches_in_flight; /* by stage: how many are kept at once; NULL: 1 */
    int64_t
        memory_bytes; /* limit of a stage: the rank's memory over its number of stages; 0: none */
} lg_layer_costs;

/**
 * Balanced: the slowest stage as fast as possible, within the memory limit if there is one; among those the sum of squared
 * stage times as small as possible (models up to a few hundred blocks).
 *
 * @return NOT_SUPPORTED if no split fits the memory limit; else as lg_stages_contiguous().
 */
LG_API LG_NODISCARD lg_status lg_stages_balanced(lg_stages *out, const lg_model *model,
                                                 int num_pipeline_ranks, int num_stages,
                                                 lg_stage_order order, const lg_layer_costs *costs);

#ifdef __cplusplus
}
#endif

#endif
