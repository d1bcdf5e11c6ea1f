/*
 * Persistent values, and what comes after the gradients: the sum over a tied parameter's uses, the sum over replicas,
 * statistics and clipping, updates.
 *
 * A tied parameter has one accumulator per use, and the uses are added at the end, in layer order: so the bits do not
 * depend on which ranks the uses are on. Where ranks share a parameter, each has all uses' sums sent to it, adds them in the
 * same order, and updates its own copy.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/builder.h"

bool lgi_builder_owns_param(const struct builder *b, int layer, int param_idx)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    return lg_model_param(b->model, info->params[param_idx])->owner_layer == layer;
}

/* Counted first, then filled in layer by layer: the uses of a parameter lie side by side, in layer order. */
lg_status lgi_builder_index_uses(struct builder *b)
{
    lg_status status = LG_OK;
    int *next = NULL;
    LG_TRY_GOTO(lgi_calloc(&b->first_use, (size_t)b->num_params + 1, sizeof *b->first_use));
    LG_TRY_GOTO(lgi_calloc(&next, (size_t)b->num_params + 1, sizeof *next));
    LG_TRY_GOTO(lgi_calloc(&b->uses, (size_t)b->num_layers * LG_MAX_LAYER_PARAMS, sizeof *b->uses));
    for (int layer = 0; layer < b->num_layers; layer++) {
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        for (int i = 0; i < info->num_params; i++) {
            b->first_use[info->params[i] + 1]++;
        }
    }
    for (int param = 0; param < b->num_params; param++) {
        b->first_use[param + 1] += b->first_use[param];
        next[param] = b->first_use[param];
    }
    for (int layer = 0; layer < b->num_layers; layer++) {
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        for (int i = 0; i < info->num_params; i++) {
            const struct param_use use = {layer, i};
            b->uses[next[info->params[i]]++] = use;
        }
    }
out:
    lgi_free(next);
    return status;
}

int lgi_builder_find_uses(const struct builder *b, int param, struct param_use *uses)
{
    const int num_uses = b->first_use[param + 1] - b->first_use[param];
    for (int i = 0; i < num_uses; i++) {
        uses[i] = b->uses[b->first_use[param] + i];
    }
    return num_uses;
}

int lgi_builder_use_index(const struct builder *b, int rank, const struct param_use *use)
{
    return (rank * b->num_layers + use->layer) * LG_MAX_LAYER_PARAMS + use->param_idx;
}

/* --- persistent values ------------------------------------------------------------------------------------------------- */

static lg_status add_persistent(struct builder *b, lg_value_kind kind, int layer, int idx, int slot,
                                int rank, lgi_layout layout, int *out, const char *prefix,
                                const char *name)
{
    LG_TRY(lgi_builder_add_value(b, kind, layer, -1, rank, layout, out, "%s(%s)", prefix, name));
    b->graph->values[*out].idx = idx;
    b->graph->values[*out].slot = slot;
    b->graph->values[*out].is_persistent = true;
    return LG_OK;
}

static lg_status build_param(struct builder *b, int param, int rank, const struct param_use *uses,
                             int num_uses)
{
    const lg_param_info *info = lg_model_param(b->model, param);
    const int cell = rank * b->num_params + param;
    lgi_layout layout = {0, 0};
    for (int i = 0; i < num_uses; i++) {
        if (lgi_builder_owns_param(b, uses[i].layer, uses[i].param_idx)) {
            layout = b->facts[uses[i].layer].param[uses[i].param_idx];
        }
    }
    if (b->source->param_fixed != NULL && b->source->param_fixed[param].bytes > 0) {
        layout = b->source->param_fixed[param];
    }
    LG_TRY(add_persistent(b, LG_VALUE_PARAM, info->owner_layer, param, 0, rank, layout,
                          &b->param_values[cell], "param", info->name));
    LG_TRY(add_persistent(b, LG_VALUE_PARAM_GRAD, info->owner_layer, param, 0, rank, layout,
                          &b->param_grad_values[cell], "param_grad", info->name));
    for (int s = 0; s < b->graph->opts.num_slots; s++) {
        LG_TRY(add_persistent(b, LG_VALUE_SLOT, info->owner_layer, param, s, rank, layout,
                              &b->slot_values[cell * LG_MAX_SLOTS + s], s == 0 ? "slot0" : "slot1",
                              info->name));
    }
    for (int i = 0; i < num_uses; i++) {
        const int layer = uses[i].layer;
        int *use_grad = &b->use_grad_values[lgi_builder_use_index(b, rank, &uses[i])];
        if (rank % b->num_pipeline_ranks != b->pipeline_rank[layer]) {
            continue;
        }
        *use_grad = b->param_grad_values[cell];
        if (num_uses > 1) {
            char name[LGI_GRAPH_NAME_BYTES];
            (void)snprintf(name, sizeof name, "%s,%s", info->name,
                           lgi_builder_layer_name(b, layer));
            LG_TRY(add_persistent(b, LG_VALUE_PARAM_GRAD, layer, param, 1 + i, rank, layout,
                                  use_grad, "use_grad", name));
        }
    }
    return LG_OK;
}

/* Whether a layer that uses the parameter runs on the pipeline rank. */
static bool is_used_on(const struct builder *b, const struct param_use *uses, int num_uses,
                       int pipeline_rank)
{
    for (int i = 0; i < num_uses; i++) {
        if (b->pipeline_rank[uses[i].layer] == pipeline_rank) {
            return true;
        }
    }
    return false;
}

/*
 * Parameters, gradients, slots and states stand first and in every mode in the same order, so that the graphs of one model
 * can share them.
 */
lg_status lgi_build_persistent(struct builder *b)
{
    lg_status status = LG_OK;
    struct param_use *uses = NULL;
    LG_TRY(lgi_calloc(&uses, (size_t)b->num_layers * LG_MAX_LAYER_PARAMS, sizeof *uses));
    for (int rank = 0; rank < b->num_ranks; rank++) {
        const int pipeline_rank = rank % b->num_pipeline_ranks;
        for (int param = 0; param < b->num_params; param++) {
            const int num_uses = lgi_builder_find_uses(b, param, uses);
            if (is_used_on(b, uses, num_uses, pipeline_rank)) {
                LG_TRY_GOTO(build_param(b, param, rank, uses, num_uses));
            }
        }
        for (int state = 0; state < lg_model_num_states(b->model); state++) {
            const lg_state_info *info = lg_model_state(b->model, state);
            const lgi_layout layout = {0, lg_shape_num_elems(&info->shape) *
                                              (int64_t)b->source->state_elem_bytes};
            if (b->pipeline_rank[info->owner_layer] == pipeline_rank) {
                LG_TRY_GOTO(
                    add_persistent(b, LG_VALUE_STATE, info->owner_layer, state, 0, rank, layout,
                                   &b->state_values[rank * lg_model_num_states(b->model) + state],
                                   "state", info->name));
            }
        }
    }
    if (b->graph->opts.has_grad_stats) {
        LG_TRY_GOTO(lgi_build_stat_values(b));
    }
out:
    lgi_free(uses);
    return status;
}

/* --- sums -------------------------------------------------------------------------------------------------------------- */

/* On one rank: the gradient of a tied parameter from those of its uses, in layer order. */
static lg_status add_uses(struct builder *b, int param, const struct param_use *uses, int num_uses,
                          int rank)
{
    const lg_param_info *info = lg_model_param(b->model, param);
    lg_operand operands[LGI_MAX_OPERANDS];
    if (num_uses + 1 > LGI_MAX_OPERANDS) {
        LG_FAIL(LG_NOT_SUPPORTED, "parameter '%s' is used by %d layers, more than %d", info->name,
                num_uses, LGI_MAX_OPERANDS - 1);
    }
    for (int i = 0; i < num_uses; i++) {
        const int use_rank = lgi_builder_rank(b, uses[i].layer);
        int value = b->use_grad_values[lgi_builder_use_index(b, use_rank, &uses[i])];
        LG_TRY(lgi_builder_bring(b, value, rank, &value));
        const lg_operand operand = {value, LG_ROLE_DY, i, LG_ACCESS_READ};
        operands[i] = operand;
    }
    const lg_operand sum = {b->param_grad_values[rank * b->num_params + param], LG_ROLE_DX, 0,
                            LG_ACCESS_WRITE};
    operands[num_uses] = sum;
    lgi_builder_start_op(b, LG_OP_GRAD_ADD, info->owner_layer, -1, rank);
    (void)snprintf(b->name, sizeof b->name, "grad_add(%s)", info->name);
    b->op.operands = operands;
    b->op.num_operands = num_uses + 1;
    lgi_builder_set_work_from_operands(b);
    return lgi_builder_finish_op(b);
}

int lgi_builder_params_on(const struct builder *b, int layer, int pipeline_rank, int *params)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    int num = 0;
    for (int i = 0; i < info->num_params; i++) {
        if (lgi_builder_owns_param(b, layer, i) &&
            b->param_values[pipeline_rank * b->num_params + info->params[i]] >= 0) {
            params[num++] = info->params[i];
        }
    }
    return num;
}

static lg_status build_sums(struct builder *b)
{
    lg_status status = LG_OK;
    struct param_use *uses = NULL;
    LG_TRY(lgi_calloc(&uses, (size_t)b->num_layers * LG_MAX_LAYER_PARAMS, sizeof *uses));
    for (b->replica = 0; b->replica < b->graph->num_replicas; b->replica++) {
        for (int param = 0; param < b->num_params; param++) {
            const int num_uses = lgi_builder_find_uses(b, param, uses);
            for (int p = 0; num_uses > 1 && p < b->num_pipeline_ranks; p++) {
                if (is_used_on(b, uses, num_uses, p)) {
                    LG_TRY_GOTO(
                        add_uses(b, param, uses, num_uses, b->replica * b->num_pipeline_ranks + p));
                }
            }
        }
    }
    if (b->graph->num_replicas > 1) {
        LG_TRY_GOTO(lgi_build_reductions(b));
    }
out:
    lgi_free(uses);
    return status;
}

/* --- clipping ------------------------------------------------------------------------------------------------------------ */

/* The factor on one rank, from all layers' sums in layer order. `stats` by running number. */
static lg_status build_clip(struct builder *b, int rank, const int *stats, int num_stats, int *out)
{
    const lgi_layout factor_and_norm = {0, 2 * (int64_t)sizeof(double)};
    lg_operand *operands = NULL;
    LG_TRY(lgi_builder_add_value(b, LG_VALUE_SCALAR, -1, -1, rank, factor_and_norm, out, "clip"));
    b->graph->values[*out].is_output = true;
    LG_TRY(lgi_calloc(&operands, (size_t)num_stats + 1, sizeof *operands));
    for (int i = 0; i < num_stats; i++) {
        const lg_operand operand = {stats[i], LG_ROLE_STAT, i, LG_ACCESS_READ};
        operands[i] = operand;
    }
    const lg_operand result = {*out, LG_ROLE_CLIP, 0, LG_ACCESS_WRITE};
    operands[num_stats] = result;
    lgi_builder_start_op(b, LG_OP_GRAD_CLIP, -1, -1, rank);
    b->op.operands = operands;
    b->op.num_operands = num_stats + 1;
    lgi_builder_set_work_from_operands(b);
    const lg_status status = lgi_builder_finish_op(b);
    lgi_free(operands);
    return status;
}

lg_status lgi_builder_bring_stats(struct builder *b, const char *what, int from_rank, int to_rank,
                                  const int *own, int num_stats, int *stats)
{
    int *values = NULL;
    int *copies = NULL;
    int num = 0;
    lg_status status = LG_OK;
    LG_TRY_GOTO(lgi_calloc(&values, (size_t)num_stats, sizeof *values));
    LG_TRY_GOTO(lgi_calloc(&copies, (size_t)num_stats, sizeof *copies));
    for (int i = 0; i < num_stats; i++) {
        if (b->graph->values[own[i]].rank == from_rank) {
            values[num++] = own[i];
        }
    }
    if (num == 0) {
        goto out;
    }
    if (num > LGI_MAX_OPERANDS) {
        LG_TRY_GOTO(
            lgi_fail(LG_NOT_SUPPORTED,
                     "clipping over ranks: %d layers with parameters on rank %d, more than %d", num,
                     from_rank, LGI_MAX_OPERANDS));
    }
    LG_TRY_GOTO(lgi_builder_send_values(b, what, values, num, to_rank, copies));
    for (int i = 0, k = 0; i < num_stats; i++) {
        if (b->graph->values[own[i]].rank == from_rank) {
            stats[i] = copies[k++];
        }
    }
out:
    lgi_free(values);
    lgi_free(copies);
    return status;
}

/* The sums of squares of the replica's whole gradients, by layer; -1: the layer owns no parameters. */
static lg_status build_stats(struct builder *b, int *stats)
{
    for (int layer = 0; layer < b->num_layers; layer++) {
        int params[LG_MAX_LAYER_PARAMS];
        stats[layer] = -1;
        if (b->pipeline_rank[layer] >= 0 &&
            lgi_builder_params_on(b, layer, b->pipeline_rank[layer], params) > 0) {
            LG_TRY(lgi_build_stat(b, layer, &stats[layer]));
        }
    }
    return LG_OK;
}

/* *clips: by rank; those of the replica under construction. */
static lg_status build_clipping(struct builder *b, const int *layer_stats, int *clips)
{
    lg_status status = LG_OK;
    int *own = NULL;
    int *stats = NULL;
    int num_stats = 0;
    LG_TRY_GOTO(lgi_calloc(&own, (size_t)b->num_layers, sizeof *own));
    LG_TRY_GOTO(lgi_calloc(&stats, (size_t)b->num_layers, sizeof *stats));
    for (int layer = 0; layer < b->num_layers; layer++) {
        if (layer_stats[layer] >= 0) {
            own[num_stats++] = layer_stats[layer];
        }
    }
    for (int p = 0; p < b->num_pipeline_ranks; p++) {
        const int rank = b->replica * b->num_pipeline_ranks + p;
        memcpy(stats, own, (size_t)num_stats * sizeof *own);
        for (int q = 0; q < b->num_pipeline_ranks; q++) {
            if (q != p) {
                LG_TRY_GOTO(lgi_builder_bring_stats(b, "stats",
                                                    b->replica * b->num_pipeline_ranks + q, rank,
                                                    own, num_stats, stats));
            }
        }
        LG_TRY_GOTO(build_clip(b, rank, stats, num_stats, &clips[rank]));
    }
out:
    lgi_free(own);
    lgi_free(stats);
    return status;
}

/* --- updates -------------------------------------------------------------------------------------------------------------- */

static lg_status build_update(struct builder *b, int layer, int pipeline_rank, int clip)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const int rank = b->replica * b->num_pipeline_ranks + pipeline_rank;
    const bool is_own_rank = b->pipeline_rank[layer] == pipeline_rank;
    const int num_states = is_own_rank ? info->num_states : 0;
    const int num_micro_batches = b->graph->num_micro_batches / b->graph->num_replicas;
    int params[LG_MAX_LAYER_PARAMS];
    lg_operand *operands = NULL;
    if (lgi_builder_params_on(b, layer, pipeline_rank, params) == 0 && num_states == 0) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&operands, (size_t)(LGI_MAX_OPERANDS + num_micro_batches), sizeof *operands));
    lgi_builder_start_op(b, LG_OP_UPDATE, layer, -1, rank);
    for (int i = 0; i < info->num_params; i++) {
        const int cell = rank * b->num_params + info->params[i];
        if (!lgi_builder_owns_param(b, layer, i) || b->param_values[cell] < 0) {
            continue;
        }
        (void)lgi_builder_add_operand(b, b->param_values[cell], LG_ROLE_PARAM, i,
                                      LG_ACCESS_READ_WRITE);
        (void)lgi_builder_add_operand(b, b->param_grad_values[cell], LG_ROLE_DPARAM, i,
                                      LG_ACCESS_READ);
        for (int s = 0; s < b->graph->opts.num_slots; s++) {
            (void)lgi_builder_add_operand(b, b->slot_values[cell * LG_MAX_SLOTS + s], LG_ROLE_SLOT,
                                          i * LG_MAX_SLOTS + s, LG_ACCESS_READ_WRITE);
        }
    }
    for (int i = 0; i < num_states; i++) {
        (void)lgi_builder_add_operand(
            b, b->state_values[rank * lg_model_num_states(b->model) + info->states[i]],
            LG_ROLE_STATE, i, LG_ACCESS_READ_WRITE);
    }
    if (clip >= 0) {
        (void)lgi_builder_add_operand(b, clip, LG_ROLE_CLIP, 0, LG_ACCESS_READ);
    }
    const int rates = b->rates[rank * b->num_layers + layer];
    if (rates >= 0) {
        (void)lgi_builder_add_operand(b, rates, LG_ROLE_RATE, 0, LG_ACCESS_READ);
    }
    memcpy(operands, b->operands, (size_t)b->op.num_operands * sizeof *operands);
    for (int i = 0; num_states > 0 && i < num_micro_batches; i++) {
        const int m = b->replica * num_micro_batches + i;
        const int stash = b->facts[layer].stats_stash;
        const lg_operand operand = {lgi_builder_stash(b, m, layer, stash), LG_ROLE_STASH, m,
                                    LG_ACCESS_READ};
        operands[b->op.num_operands++] = operand;
    }
    b->op.operands = operands;
    lgi_builder_set_work_from_operands(b);
    const lg_status status = lgi_builder_finish_op(b);
    lgi_free(operands);
    return status;
}

lg_status lgi_build_after_gradients(struct builder *b)
{
    lg_status status = LG_OK;
    int *clips = NULL;
    int *stats = NULL;
    LG_TRY(lgi_calloc(&clips, (size_t)b->num_ranks, sizeof *clips));
    for (int rank = 0; rank < b->num_ranks; rank++) {
        clips[rank] = -1;
    }
    LG_TRY_GOTO(lgi_calloc(&stats, (size_t)b->num_layers, sizeof *stats));
    LG_TRY_GOTO(build_sums(b));
    for (b->replica = 0; b->replica < b->graph->num_replicas; b->replica++) {
        if (b->graph->opts.has_clipping || b->graph->opts.has_grad_stats) {
            LG_TRY_GOTO(build_stats(b, stats));
        }
        if (b->graph->opts.has_clipping) {
            LG_TRY_GOTO(build_clipping(b, stats, clips));
        }
        if (b->graph->opts.has_grad_stats) {
            LG_TRY_GOTO(lgi_build_rates(b, stats));
        }
    }
    for (b->replica = 0; b->replica < b->graph->num_replicas; b->replica++) {
        for (int layer = 0; layer < b->num_layers; layer++) {
            for (int p = 0; p < b->num_pipeline_ranks; p++) {
                LG_TRY_GOTO(
                    build_update(b, layer, p, clips[b->replica * b->num_pipeline_ranks + p]));
            }
        }
    }
out:
    lgi_free(clips);
    lgi_free(stats);
    return status;
}
