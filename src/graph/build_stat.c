/*
 * Gradient statistics and what follows from them.
 *
 *   WEIGHT_GRAD(l,0) -> the sum;         GRAD_STAT(l,0) reads it          STAT := |G_0|^2 / w_0
 *   WEIGHT_GRAD(l,m) -> micro_grad(l,m); GRAD_STAT(l,m) adds it to the sum, STAT += |G_m|^2 / w_m
 *   GRAD_STAT(l): |G|^2 of the whole gradient, after sums over uses and replicas
 *   RATE(l) or RATE for all: statistics and RATE_STATE -> learning rates and the next RATE_STATE; UPDATE reads them
 *
 * So a micro-batch's gradient lives from its WEIGHT_GRAD to its GRAD_STAT and nothing keeps two whole gradients. The
 * order over micro-batches is that of the accesses. A tied parameter belongs to its owner's GRAD_STAT, which waits for the
 * gradients of all uses and takes the square of their sum.
 */
#include "base/alloc.h"
#include "base/check.h"
#include "graph/builder.h"

/* lg_rate_state and lg_rate, of which this module knows no more; exec/program.c asserts it. */
#define RATE_STATE_BYTES (11 * (int64_t)sizeof(double))
#define RATE_BYTES (8 * (int64_t)sizeof(double))

/* --- values -------------------------------------------------------------------------------------------------------- */

static int num_owned(const struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    int num = 0;
    for (int i = 0; i < info->num_params; i++) {
        num += lgi_builder_owns_param(b, layer, i) ? 1 : 0;
    }
    return num;
}

static lg_status add_value(struct builder *b, lg_value_kind kind, int layer, int rank,
                           int64_t bytes_per_param, int *out)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layout layout = {0, bytes_per_param * info->num_params};
    LG_TRY(lgi_builder_add_value(b, kind, layer, -1, rank, layout, out, "%s(%s)",
                                 kind == LG_VALUE_STAT ? "stat_sum" : lg_value_kind_name(kind),
                                 info->name));
    b->graph->values[*out].is_persistent = true;
    return LG_OK;
}

/* The uses of a parameter must be on one rank: their sum is not there before the square otherwise. */
static lg_status find_stat_point(struct builder *b, int layer, struct param_use *uses)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_params; i++) {
        if (!lgi_builder_owns_param(b, layer, i)) {
            continue;
        }
        const int num_uses = lgi_builder_find_uses(b, info->params[i], uses);
        for (int u = 0; u < num_uses; u++) {
            const int user = uses[u].layer;
            if (b->pipeline_rank[user] != b->pipeline_rank[layer]) {
                LG_FAIL(LG_NOT_SUPPORTED,
                        "gradient statistics: the uses of '%s' are on pipeline ranks %d and %d; a "
                        "tied parameter's must be on one",
                        lg_model_param(b->model, info->params[i])->name, b->pipeline_rank[layer],
                        b->pipeline_rank[user]);
            }
            if (b->stat_after[layer] < 0 || user < b->stat_after[layer]) {
                b->stat_after[layer] = user;
            }
        }
    }
    return LG_OK;
}

lg_status lgi_build_stat_values(struct builder *b)
{
    lg_status status = LG_OK;
    struct param_use *uses = NULL;
    LG_TRY(lgi_calloc(&uses, (size_t)b->num_layers * LG_MAX_LAYER_PARAMS, sizeof *uses));
    for (int layer = 0; layer < b->num_layers; layer++) {
        if (b->pipeline_rank[layer] < 0 || num_owned(b, layer) == 0) {
            continue;
        }
        LG_TRY_GOTO(find_stat_point(b, layer, uses));
        for (int d = 0; d < b->graph->num_replicas; d++) {
            const int rank = d * b->num_pipeline_ranks + b->pipeline_rank[layer];
            const int cell = rank * b->num_layers + layer;
            LG_TRY_GOTO(add_value(b, LG_VALUE_STAT, layer, rank, (int64_t)sizeof(double),
                                  &b->stat_sums[cell]));
            LG_TRY_GOTO(add_value(b, LG_VALUE_RATE_STATE, layer, rank, RATE_STATE_BYTES,
                                  &b->rate_states[cell]));
            if (!b->graph->opts.has_joint_rates) {
                LG_TRY_GOTO(add_value(b, LG_VALUE_RATE, layer, rank, RATE_BYTES, &b->rates[cell]));
            }
        }
    }
out:
    lgi_free(uses);
    return status;
}

/* --- one micro-batch ----------------------------------------------------------------------------------------------- */

/* The gradients of one parameter, use by use: each one's own value, if it has one, and where it adds up. */
static lg_status add_param_uses(struct builder *b, int param, int param_idx, int rank,
                                const struct param_use *uses, int num_uses)
{
    for (int u = 0; u < num_uses; u++) {
        const int use = lgi_builder_use_index(b, rank, &uses[u]);
        const bool has_own = b->micro_grads[use] >= 0;
        if (b->op.num_operands + 3 > LGI_MAX_OPERANDS) {
            LG_FAIL(LG_NOT_SUPPORTED,
                    "parameter '%s' is used by %d layers, too many for statistics",
                    lg_model_param(b->model, param)->name, num_uses);
        }
        if (has_own) {
            (void)lgi_builder_add_operand(b, b->micro_grads[use], LG_ROLE_MICRO_GRAD, param_idx,
                                          LG_ACCESS_READ);
        }
        (void)lgi_builder_add_operand(b, b->use_grad_values[use], LG_ROLE_DPARAM, param_idx,
                                      has_own ? LG_ACCESS_READ_WRITE : LG_ACCESS_READ);
    }
    return LG_OK;
}

static lg_status build_micro_stat(struct builder *b, int layer, struct param_use *uses)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const int rank = lgi_builder_rank(b, layer);
    const int num_per_replica = b->graph->num_micro_batches / b->graph->num_replicas;
    const bool is_first = b->micro_batch % num_per_replica == 0;
    lgi_builder_start_op(b, LG_OP_GRAD_STAT, layer, b->micro_batch, rank);
    for (int i = 0; i < info->num_params; i++) {
        if (lgi_builder_owns_param(b, layer, i)) {
            const int num_uses = lgi_builder_find_uses(b, info->params[i], uses);
            LG_TRY(add_param_uses(b, info->params[i], i, rank, uses, num_uses));
        }
    }
    (void)lgi_builder_add_operand(b, b->stat_sums[rank * b->num_layers + layer], LG_ROLE_STAT_SUM,
                                  layer, is_first ? LG_ACCESS_WRITE : LG_ACCESS_READ_WRITE);
    lgi_builder_set_work_from_operands(b);
    return lgi_builder_finish_op(b);
}

lg_status lgi_build_micro_stats(struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    lg_status status = LG_OK;
    struct param_use *uses = NULL;
    LG_TRY(lgi_calloc(&uses, (size_t)b->num_layers * LG_MAX_LAYER_PARAMS, sizeof *uses));
    for (int i = 0; i < info->num_params; i++) {
        const int owner = lg_model_param(b->model, info->params[i])->owner_layer;
        bool is_done = b->stat_after[owner] != layer;
        for (int k = 0; k < i; k++) {
            is_done = is_done || lg_model_param(b->model, info->params[k])->owner_layer == owner;
        }
        if (!is_done) {
            LG_TRY_GOTO(build_micro_stat(b, owner, uses));
        }
    }
out:
    lgi_free(uses);
    return status;
}

/* --- the whole gradient and the rates ------------------------------------------------------------------------------ */

lg_status lgi_build_stat(struct builder *b, int layer, int *out)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const int num = b->graph->opts.has_grad_stats ? info->num_params : 1;
    const lgi_layout layout = {0, num * (int64_t)sizeof(double)};
    const int rank = lgi_builder_rank(b, layer);
    LG_TRY(lgi_builder_add_value(b, LG_VALUE_SCALAR, layer, -1, rank, layout, out, "stat(%s)",
                                 info->name));
    lgi_builder_start_op(b, LG_OP_GRAD_STAT, layer, -1, rank);
    for (int i = 0; i < info->num_params; i++) {
        if (lgi_builder_owns_param(b, layer, i)) {
            (void)lgi_builder_add_operand(
                b, b->param_grad_values[rank * b->num_params + info->params[i]], LG_ROLE_DPARAM, i,
                LG_ACCESS_READ);
        }
    }
    (void)lgi_builder_add_operand(b, *out, LG_ROLE_STAT, layer, LG_ACCESS_WRITE);
    lgi_builder_set_work_from_operands(b);
    return lgi_builder_finish_op(b);
}

static lg_status finish_rate(struct builder *b, lg_operand *operands, int num_operands)
{
    b->op.operands = operands;
    b->op.num_operands = num_operands;
    lgi_builder_set_work_from_operands(b);
    return lgi_builder_finish_op(b);
}

static void push(lg_operand *operands, int *num, int value, lg_role role, int idx, int access)
{
    const lg_operand operand = {value, role, idx, access};
    operands[(*num)++] = operand;
}

/* Reads the layer's own statistics, whose state it moves on. */
static lg_status build_layer_rate(struct builder *b, int layer, int stat)
{
    const int rank = lgi_builder_rank(b, layer);
    const int cell = rank * b->num_layers + layer;
    lg_operand operands[4];
    int num = 0;
    push(operands, &num, b->stat_sums[cell], LG_ROLE_STAT_SUM, layer, LG_ACCESS_READ);
    push(operands, &num, stat, LG_ROLE_STAT, layer, LG_ACCESS_READ);
    push(operands, &num, b->rate_states[cell], LG_ROLE_RATE_STATE, layer, LG_ACCESS_READ_WRITE);
    push(operands, &num, b->rates[cell], LG_ROLE_RATE, 0, LG_ACCESS_WRITE);
    lgi_builder_start_op(b, LG_OP_RATE, layer, -1, rank);
    return finish_rate(b, operands, num);
}

/* Statistics of layers on other ranks are brought here; states are moved on where their layer is. */
static lg_status build_joint_rate(struct builder *b, int rank, const int *stats, int *sums,
                                  int *norms, lg_operand *operands)
{
    const lgi_layout layout = {0, b->num_params * RATE_BYTES};
    int *own = NULL;
    int *layers = NULL;
    int num_layers = 0;
    int rates = -1;
    int num = 0;
    lg_status status = LG_OK;
    LG_TRY_GOTO(lgi_calloc(&own, 2 * (size_t)b->num_layers, sizeof *own));
    LG_TRY_GOTO(lgi_calloc(&layers, (size_t)b->num_layers, sizeof *layers));
    for (int layer = 0; layer < b->num_layers; layer++) {
        if (stats[layer] >= 0) {
            sums[num_layers] = b->stat_sums[lgi_builder_rank(b, layer) * b->num_layers + layer];
            norms[num_layers] = stats[layer];
            layers[num_layers++] = layer;
        }
    }
    for (int i = 0; i < num_layers; i++) {
        own[i] = sums[i];
        own[b->num_layers + i] = norms[i];
    }
    for (int q = 0; q < b->num_pipeline_ranks; q++) {
        const int from = b->replica * b->num_pipeline_ranks + q;
        if (from != rank) {
            LG_TRY_GOTO(lgi_builder_bring_stats(b, "stat_sums", from, rank, own, num_layers, sums));
            LG_TRY_GOTO(lgi_builder_bring_stats(b, "stat_norms", from, rank, own + b->num_layers,
                                                num_layers, norms));
        }
    }
    LG_TRY_GOTO(lgi_builder_add_value(b, LG_VALUE_RATE, -1, -1, rank, layout, &rates, "rate"));
    b->graph->values[rates].is_output = true;
    for (int i = 0; i < num_layers; i++) {
        const int cell = rank * b->num_layers + layers[i];
        push(operands, &num, sums[i], LG_ROLE_STAT_SUM, layers[i], LG_ACCESS_READ);
        push(operands, &num, norms[i], LG_ROLE_STAT, layers[i], LG_ACCESS_READ);
        if (b->rate_states[cell] >= 0) {
            push(operands, &num, b->rate_states[cell], LG_ROLE_RATE_STATE, layers[i],
                 LG_ACCESS_READ_WRITE);
        }
    }
    push(operands, &num, rates, LG_ROLE_RATE, 0, LG_ACCESS_WRITE);
    lgi_builder_start_op(b, LG_OP_RATE, -1, -1, rank);
    LG_TRY_GOTO(finish_rate(b, operands, num));
    for (int layer = 0; layer < b->num_layers; layer++) {
        b->rates[rank * b->num_layers + layer] = rates;
    }
out:
    lgi_free(own);
    lgi_free(layers);
    return status;
}

lg_status lgi_build_rates(struct builder *b, const int *stats)
{
    lg_status status = LG_OK;
    int *sums = NULL;
    int *norms = NULL;
    lg_operand *operands = NULL;
    if (!b->graph->opts.has_joint_rates) {
        for (int layer = 0; layer < b->num_layers; layer++) {
            if (stats[layer] >= 0) {
                LG_TRY(build_layer_rate(b, layer, stats[layer]));
            }
        }
        return LG_OK;
    }
    LG_TRY_GOTO(lgi_calloc(&sums, (size_t)b->num_layers, sizeof *sums));
    LG_TRY_GOTO(lgi_calloc(&norms, (size_t)b->num_layers, sizeof *norms));
    LG_TRY_GOTO(lgi_calloc(&operands, 3 * (size_t)b->num_layers + 1, sizeof *operands));
    for (int p = 0; p < b->num_pipeline_ranks; p++) {
        LG_TRY_GOTO(build_joint_rate(b, b->replica * b->num_pipeline_ranks + p, stats, sums, norms,
                                     operands));
    }
out:
    lgi_free(sums);
    lgi_free(norms);
    lgi_free(operands);
    return status;
}
