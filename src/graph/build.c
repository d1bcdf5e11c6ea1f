/*
 * Builds the step graph of a model in the textbook order: replica by replica, micro-batch by micro-batch forward, loss,
 * backward; then sums over uses and replicas, statistics, clipping, updates.
 */
#include "graph/build.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/builder.h"

/* --- forward ------------------------------------------------------------------------------------------------------- */

int lgi_builder_stash(const struct builder *b, int micro_batch, int layer, int stash)
{
    return b->stashes[(micro_batch * b->num_layers + layer) * LGI_MAX_STASHES + stash];
}

static lg_status build_input(struct builder *b, int layer, int rank, int *out)
{
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    const char *name = lgi_builder_layer_name(b, layer);
    LG_TRY(lgi_builder_add_value(b, LG_VALUE_ACTIVATION, layer, b->micro_batch, rank, facts->out,
                                 out, "activation(%s,%d)", name, b->micro_batch));
    lgi_builder_start_op(b, LG_OP_FORWARD, layer, b->micro_batch, rank);
    (void)lgi_builder_add_operand(b, *out, LG_ROLE_Y, 0, LG_ACCESS_WRITE);
    lgi_builder_set_work(b, &facts->phases[LGI_PHASE_FORWARD]);
    return lgi_builder_finish_op(b);
}

/* The result of `layer` on `rank`; an input is loaded where it is read. */
static lg_status find_activation(struct builder *b, int layer, int rank, int *out)
{
    if (b->pipeline_rank[layer] >= 0) {
        return lgi_builder_bring(b, b->activations[layer], rank, out);
    }
    int *loaded =
        &b->input_activations[layer * b->num_pipeline_ranks + rank % b->num_pipeline_ranks];
    if (*loaded < 0) {
        LG_TRY(build_input(b, layer, rank, loaded));
    }
    *out = *loaded;
    return LG_OK;
}

lg_status lgi_builder_read_inputs(struct builder *b, int layer, uint64_t wanted, int *values)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    for (int i = 0; i < info->num_inputs; i++) {
        if ((wanted >> i & 1) != 0) {
            LG_TRY(find_activation(b, info->inputs[i], lgi_builder_rank(b, layer), &values[i]));
            LG_TRY(lgi_builder_convert(b, values[i], facts->in[i], &values[i]));
        }
    }
    return LG_OK;
}

lg_status lgi_builder_read_params(struct builder *b, int layer, const lgi_layout *layouts,
                                  uint32_t wanted, int *values)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_params; i++) {
        if ((wanted >> i & 1) != 0) {
            const int param =
                b->param_values[lgi_builder_rank(b, layer) * b->num_params + info->params[i]];
            LG_TRY(lgi_builder_convert(b, param, layouts[i], &values[i]));
        }
    }
    return LG_OK;
}

static lg_status add_stashes(struct builder *b, int layer, const lgi_layer_facts *facts)
{
    for (int s = 0; s < facts->num_stashes; s++) {
        const lgi_layout layout = {0, facts->stash_bytes[s]};
        int *value = &b->stashes[(b->micro_batch * b->num_layers + layer) * LGI_MAX_STASHES + s];
        LG_TRY(lgi_builder_add_value(b, LG_VALUE_STASH, layer, b->micro_batch,
                                     lgi_builder_rank(b, layer), layout, value, "stash%d(%s,%d)", s,
                                     lgi_builder_layer_name(b, layer), b->micro_batch));
        b->graph->values[*value].idx = s;
    }
    return LG_OK;
}

static lg_status build_forward(struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    const bool is_training = b->graph->opts.mode == LG_GRAPH_TRAIN;
    const int rank = lgi_builder_rank(b, layer);
    int inputs[LGI_MAX_LAYER_INPUTS];
    int params[LG_MAX_LAYER_PARAMS];
    LG_TRY(lgi_builder_read_inputs(b, layer, UINT64_MAX, inputs));
    if (facts->is_forward_view) {
        b->activations[layer] = inputs[0];
        return LG_OK;
    }
    LG_TRY(lgi_builder_read_params(b, layer, facts->param, UINT32_MAX, params));
    LG_TRY(lgi_builder_add_value(b, LG_VALUE_ACTIVATION, layer, b->micro_batch, rank, facts->out,
                                 &b->activations[layer], "activation(%s,%d)", info->name,
                                 b->micro_batch));
    LG_TRY(add_stashes(b, layer, facts));
    lgi_builder_start_op(b, LG_OP_FORWARD, layer, b->micro_batch, rank);
    for (int i = 0; i < info->num_inputs; i++) {
        const int operand = lgi_builder_add_operand(b, inputs[i], LG_ROLE_X, i, LG_ACCESS_READ);
        if (i == 0 && facts->is_forward_in_place) {
            b->op.inplace_read = operand;
        }
    }
    for (int i = 0; i < info->num_params; i++) {
        (void)lgi_builder_add_operand(b, params[i], LG_ROLE_PARAM, i, LG_ACCESS_READ);
    }
    for (int i = 0; !is_training && i < info->num_states; i++) {
        (void)lgi_builder_add_operand(
            b, b->state_values[rank * lg_model_num_states(b->model) + info->states[i]],
            LG_ROLE_STATE, i, LG_ACCESS_READ);
    }
    const int written =
        lgi_builder_add_operand(b, b->activations[layer], LG_ROLE_Y, 0, LG_ACCESS_WRITE);
    b->op.inplace_write = b->op.inplace_read >= 0 ? written : -1;
    for (int s = 0; s < facts->num_stashes; s++) {
        (void)lgi_builder_add_operand(b, lgi_builder_stash(b, b->micro_batch, layer, s),
                                      LG_ROLE_STASH, s, LG_ACCESS_WRITE);
    }
    lgi_builder_set_work(b, &facts->phases[LGI_PHASE_FORWARD]);
    return lgi_builder_finish_op(b);
}

/* --- facts ----------------------------------------------------------------------------------------------------------- */

/* In training, a parameter's gradient must lie as the parameter does, or the update could not be elementwise. */
static lg_status check_param_layouts(const struct builder *b, int layer,
                                     const lgi_layer_facts *facts, const lgi_layout *fixed)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; b->graph->opts.mode == LG_GRAPH_TRAIN && i < info->num_params; i++) {
        if (fixed[i].bytes > 0 && fixed[i].id != facts->param[i].id) {
            LG_FAIL(LG_INTERNAL,
                    "layer '%s': parameter %d is stored in layout %d, but the device wants %d",
                    info->name, i, fixed[i].id, facts->param[i].id);
        }
    }
    return LG_OK;
}

static lg_status ask_facts(struct builder *b, int layer, int size_idx, int64_t num_samples,
                           lgi_layout *param_layouts)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    lgi_layer_facts *facts = &b->facts[size_idx * b->num_layers];
    lg_shape in_shapes[LGI_MAX_LAYER_INPUTS];
    lg_dtype in_dtypes[LGI_MAX_LAYER_INPUTS];
    lgi_layout in_layouts[LGI_MAX_LAYER_INPUTS];
    lg_shape param_shapes[LG_MAX_LAYER_PARAMS];
    lgi_layout param_fixed[LG_MAX_LAYER_PARAMS];
    lgi_layer_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.layer = info;
    spec.mode = b->graph->opts.mode;
    spec.num_samples = num_samples;
    for (int i = 0; i < info->num_inputs; i++) {
        in_shapes[i] = lg_model_layer(b->model, info->inputs[i])->out_shape;
        in_dtypes[i] = lg_model_layer(b->model, info->inputs[i])->out_dtype;
        in_layouts[i] = facts[info->inputs[i]].out;
        spec.needs_input_grad = spec.needs_input_grad || b->needs_grad[info->inputs[i]];
    }
    for (int i = 0; i < info->num_params; i++) {
        param_shapes[i] = lg_model_param(b->model, info->params[i])->shape;
        param_fixed[i] = param_layouts[info->params[i]];
    }
    spec.in_shapes = in_shapes;
    spec.in_dtypes = in_dtypes;
    spec.in_layouts = in_layouts;
    spec.param_shapes = param_shapes;
    spec.param_fixed = param_fixed;
    spec.random_key = lgi_layer_random_key(info->name);
    spec.num_widths = b->graph->opts.num_widths;
    spec.widths = b->graph->opts.widths;
    LG_TRY(b->source->facts(b->source->user, layer, size_idx, &spec, &facts[layer]));
    LG_TRY(check_param_layouts(b, layer, &facts[layer], param_fixed));
    if (facts[layer].is_forward_view) { /* the result lies as the input that it is */
        facts[layer].out = facts[layer].in[0];
    }
    for (int i = 0; i < info->num_params; i++) {
        if (param_layouts[info->params[i]].bytes == 0) {
            param_layouts[info->params[i]] = facts[layer].param[i];
        }
    }
    return LG_OK;
}

static lg_status ask_all_facts(struct builder *b)
{
    const int num_micro_batches = b->graph->num_micro_batches;
    const int num_sizes = lgi_graph_size_idx(b->graph, num_micro_batches - 1) + 1;
    lgi_layout *param_layouts = NULL;
    lg_status status = LG_OK;
    LG_TRY_GOTO(lgi_calloc(&param_layouts, (size_t)b->num_params, sizeof *param_layouts));
    LG_TRY_GOTO(lgi_calloc(&b->facts, (size_t)num_sizes * (size_t)b->num_layers, sizeof *b->facts));
    for (int i = 0; b->source->param_fixed != NULL && i < b->num_params; i++) {
        param_layouts[i] = b->source->param_fixed[i];
    }
    for (int size_idx = 0; size_idx < num_sizes; size_idx++) {
        const int micro_batch = size_idx == 0 ? 0 : num_micro_batches - 1;
        const int64_t num_samples = lg_graph_micro_batch_samples(b->graph, micro_batch);
        for (int layer = 0; layer < b->num_layers; layer++) {
            if (b->is_live[layer]) {
                LG_TRY_GOTO(ask_facts(b, layer, size_idx, num_samples, param_layouts));
            }
        }
    }
out:
    lgi_free(param_layouts);
    return status;
}

/* --- which layers, where --------------------------------------------------------------------------------------------- */

static lg_status find_loss(struct builder *b)
{
    b->loss_layer = -1;
    for (int layer = 0; layer < b->num_layers; layer++) {
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        if (info->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY) {
            if (b->loss_layer >= 0) {
                LG_FAIL(LG_INVALID_ARG, "the model has two losses, '%s' and '%s'",
                        lgi_builder_layer_name(b, b->loss_layer), info->name);
            }
            b->loss_layer = layer;
        }
    }
    if (b->loss_layer < 0) {
        LG_FAIL(LG_INVALID_ARG, "the model has no softmax_cross_entropy layer");
    }
    return LG_OK;
}

/* Which layers the loss (or the logits) needs, and through which gradients flow. */
static lg_status mark_layers(struct builder *b)
{
    const bool is_predict = b->graph->opts.mode == LG_GRAPH_PREDICT;
    b->is_live[is_predict ? lg_model_layer(b->model, b->loss_layer)->inputs[0] : b->loss_layer] =
        true;
    for (int layer = b->num_layers - 1; layer >= 0; layer--) {
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        for (int i = 0; b->is_live[layer] && i < info->num_inputs; i++) {
            b->is_live[info->inputs[i]] = true;
        }
        if (!b->is_live[layer] && !is_predict) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': its result does not reach the loss", info->name);
        }
    }
    for (int layer = 0; layer < b->num_layers; layer++) {
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        b->needs_grad[layer] = info->num_params > 0;
        for (int i = 0; i < info->num_inputs; i++) {
            b->needs_grad[layer] = b->needs_grad[layer] || b->needs_grad[info->inputs[i]];
        }
    }
    return LG_OK;
}

static lg_status check_in_range(const char *what, int64_t value, int64_t min, int64_t max)
{
    if (value < min || value > max) {
        LG_FAIL(LG_INVALID_ARG, "%s: %" PRId64 " is not in [%" PRId64 ", %" PRId64 "]", what, value,
                min, max);
    }
    return LG_OK;
}

/* Stage and pipeline rank of each layer. */
static lg_status place_layers(struct builder *b, const lg_parallel *parallel)
{
    for (int layer = 0; layer < b->num_layers; layer++) {
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        b->stage[layer] = -1;
        b->pipeline_rank[layer] = -1;
        if (info->kind == LG_LAYER_INPUT) {
            continue;
        }
        const int stage = parallel != NULL && parallel->stage_of_layer != NULL
                              ? parallel->stage_of_layer[layer]
                              : 0;
        if (stage < 0 || stage >= b->num_stages) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': stage %d is not in [0, %d]", info->name, stage,
                    b->num_stages - 1);
        }
        for (int i = 0; i < info->num_inputs; i++) {
            if (b->stage[info->inputs[i]] > stage) {
                LG_FAIL(LG_INVALID_ARG, "layer '%s' of stage %d reads '%s' of the later stage %d",
                        info->name, stage, lgi_builder_layer_name(b, info->inputs[i]),
                        b->stage[info->inputs[i]]);
            }
        }
        const int rank = parallel != NULL && parallel->rank_of_stage != NULL
                             ? parallel->rank_of_stage[stage]
                             : stage % b->num_pipeline_ranks;
        LG_TRY(check_in_range("rank of a stage", rank, 0, b->num_pipeline_ranks - 1));
        b->stage[layer] = stage;
        b->pipeline_rank[layer] = rank;
    }
    return LG_OK;
}

static lg_status set_parallel(struct builder *b, const lg_parallel *parallel)
{
    lg_graph *graph = b->graph;
    graph->num_replicas = parallel != NULL ? parallel->num_replicas : 1;
    graph->num_pipeline_ranks = parallel != NULL ? parallel->num_pipeline_ranks : 1;
    graph->num_stages = parallel != NULL ? parallel->num_stages : 1;
    graph->chunk_bytes = parallel != NULL ? parallel->chunk_bytes : 0;
    graph->share_bytes = parallel != NULL ? parallel->share_bytes : 0;
    graph->opts.parallel = NULL;
    LG_TRY(check_in_range("replicas", graph->num_replicas, 1, graph->opts.num_samples));
    LG_TRY(check_in_range("pipeline ranks", graph->num_pipeline_ranks, 1, 65536));
    LG_TRY(check_in_range("stages", graph->num_stages, graph->num_pipeline_ranks, 65536));
    LG_TRY(check_in_range("chunk bytes", graph->chunk_bytes, 0, INT64_MAX));
    LG_TRY(check_in_range("share bytes", graph->share_bytes, 0, INT64_MAX));
    const int64_t num_per_replica = graph->opts.num_samples / graph->num_replicas;
    if (graph->num_micro_batches > num_per_replica) {
        graph->num_micro_batches = (int)num_per_replica;
    }
    graph->num_micro_batches *= graph->num_replicas;
    graph->num_ranks = graph->num_replicas * graph->num_pipeline_ranks;
    b->num_ranks = graph->num_ranks;
    b->num_pipeline_ranks = graph->num_pipeline_ranks;
    b->num_stages = graph->num_stages;
    return LG_OK;
}

/* --- the whole ------------------------------------------------------------------------------------------------------- */

/* In prediction, the logits lie row-major, for the host to read. */
static lg_status build_output(struct builder *b)
{
    const int layer = lg_model_layer(b->model, b->loss_layer)->inputs[0];
    const int64_t num_elems = lg_graph_micro_batch_samples(b->graph, b->micro_batch) *
                              lg_shape_num_elems(&lg_model_layer(b->model, layer)->out_shape);
    const lgi_layout row_major = {0, num_elems * (int64_t)b->source->state_elem_bytes};
    int logits = -1;
    LG_TRY(find_activation(b, layer, b->pipeline_rank[layer] >= 0 ? lgi_builder_rank(b, layer) : 0,
                           &logits));
    LG_TRY(lgi_builder_convert(b, logits, row_major, &logits));
    b->graph->values[logits].is_output = true;
    return LG_OK;
}

static void forget_micro_batch(struct builder *b)
{
    for (int i = 0; i < b->num_layers; i++) {
        b->activations[i] = -1;
        b->grads[i].num = 0;
    }
    for (int i = 0; i < b->num_layers * b->num_pipeline_ranks; i++) {
        b->input_activations[i] = -1;
    }
    b->num_moved = b->num_moved_params;
}

static lg_status build_micro_batch(struct builder *b)
{
    const lg_graph_mode mode = b->graph->opts.mode;
    forget_micro_batch(b);
    for (int layer = 0; layer < b->num_layers; layer++) {
        if (b->is_live[layer] && layer != b->loss_layer && b->pipeline_rank[layer] >= 0) {
            LG_TRY(build_forward(b, layer));
        }
    }
    if (mode == LG_GRAPH_PREDICT) {
        return build_output(b);
    }
    LG_TRY(lgi_build_loss(b));
    for (int layer = b->num_layers - 1; mode == LG_GRAPH_TRAIN && layer >= 0; layer--) {
        if (layer != b->loss_layer) {
            LG_TRY(lgi_build_backward(b, layer));
        }
    }
    return LG_OK;
}

static lg_status build_ops(struct builder *b)
{
    const int num_per_replica = b->graph->num_micro_batches / b->graph->num_replicas;
    for (int m = 0; m < b->graph->num_micro_batches; m++) {
        b->micro_batch = m;
        b->replica = m / num_per_replica;
        LG_TRY(build_micro_batch(b));
    }
    b->num_moved = b->num_moved_params;
    return b->graph->opts.mode == LG_GRAPH_TRAIN ? lgi_build_after_gradients(b) : LG_OK;
}

static lg_status calloc_ints(int **out, size_t count)
{
    LG_TRY(lgi_calloc(out, count, sizeof(int)));
    memset(*out, -1, count * sizeof(int));
    return LG_OK;
}

static lg_status allocate_layers(struct builder *b)
{
    const size_t num_layers = (size_t)b->num_layers;
    LG_TRY(lgi_calloc(&b->is_live, num_layers, sizeof(bool)));
    LG_TRY(lgi_calloc(&b->needs_grad, num_layers, sizeof(bool)));
    LG_TRY(calloc_ints(&b->stage, num_layers));
    LG_TRY(calloc_ints(&b->pipeline_rank, num_layers));
    LG_TRY(calloc_ints(&b->activations, num_layers));
    LG_TRY(calloc_ints(&b->input_activations, num_layers * (size_t)b->num_pipeline_ranks));
    LG_TRY(lgi_calloc(&b->grads, num_layers, sizeof *b->grads));
    return calloc_ints(&b->stashes,
                       num_layers * (size_t)b->graph->num_micro_batches * LGI_MAX_STASHES);
}

static lg_status allocate_persistent(struct builder *b)
{
    const size_t num_ranks = (size_t)b->num_ranks;
    const size_t num_params = (size_t)b->num_params;
    const size_t num_uses = num_ranks * (size_t)b->num_layers * LG_MAX_LAYER_PARAMS;
    LG_TRY(lgi_builder_index_uses(b));
    LG_TRY(calloc_ints(&b->param_values, num_ranks * num_params));
    LG_TRY(calloc_ints(&b->param_grad_values, num_ranks * num_params));
    LG_TRY(calloc_ints(&b->slot_values, num_ranks * num_params * LG_MAX_SLOTS));
    LG_TRY(calloc_ints(&b->use_grad_values, num_uses));
    LG_TRY(lgi_calloc(&b->is_use_grad_written, num_uses, sizeof(bool)));
    LG_TRY(calloc_ints(&b->micro_grads, num_uses));
    LG_TRY(calloc_ints(&b->stat_after, (size_t)b->num_layers));
    LG_TRY(calloc_ints(&b->stat_sums, num_ranks * (size_t)b->num_layers));
    LG_TRY(calloc_ints(&b->rate_states, num_ranks * (size_t)b->num_layers));
    LG_TRY(calloc_ints(&b->rates, num_ranks * (size_t)b->num_layers));
    return calloc_ints(&b->state_values, num_ranks * (size_t)lg_model_num_states(b->model));
}

static void release(struct builder *b)
{
    for (int i = 0; b->grads != NULL && i < b->num_layers; i++) {
        lgi_free(b->grads[i].values);
    }
    lgi_free(b->is_live);
    lgi_free(b->needs_grad);
    lgi_free(b->stage);
    lgi_free(b->pipeline_rank);
    lgi_free(b->facts);
    lgi_free(b->activations);
    lgi_free(b->input_activations);
    lgi_free(b->stashes);
    lgi_free(b->grads);
    lgi_free(b->moved);
    lgi_free(b->uses);
    lgi_free(b->first_use);
    lgi_free(b->param_values);
    lgi_free(b->param_grad_values);
    lgi_free(b->slot_values);
    lgi_free(b->use_grad_values);
    lgi_free(b->is_use_grad_written);
    lgi_free(b->micro_grads);
    lgi_free(b->stat_after);
    lgi_free(b->stat_sums);
    lgi_free(b->rate_states);
    lgi_free(b->rates);
    lgi_free(b->state_values);
}

lg_status lgi_graph_build(lg_graph **out, const lg_model *model, const lg_graph_opts *opts,
                          const lgi_graph_source *source)
{
    lg_status status = LG_OK;
    struct builder *b = NULL;
    *out = NULL;
    LG_TRY_GOTO(lgi_calloc(&b, 1, sizeof *b));
    LG_TRY_GOTO(lgi_graph_start(&b->graph, model, opts));
    b->model = model;
    b->source = source;
    b->num_layers = lg_model_num_layers(model);
    b->num_params = lg_model_num_params(model);
    LG_TRY_GOTO(set_parallel(b, opts->parallel));
    LG_TRY_GOTO(find_loss(b));
    LG_TRY_GOTO(allocate_layers(b));
    LG_TRY_GOTO(allocate_persistent(b));
    LG_TRY_GOTO(mark_layers(b));
    LG_TRY_GOTO(place_layers(b, opts->parallel));
    LG_TRY_GOTO(ask_all_facts(b));
    LG_TRY_GOTO(lgi_build_persistent(b));
    LG_TRY_GOTO(build_ops(b));
    LG_TRY_GOTO(lgi_graph_finish(b->graph));
    *out = b->graph;
    b->graph = NULL;
out:
    if (b != NULL) {
        release(b);
        lg_graph_destroy(b->graph);
        lgi_free(b);
    }
    return status;
}

static lg_status natural_facts(void *user, int layer, int size_idx, const lgi_layer_spec *spec,
                               lgi_layer_facts *facts)
{
    (void)user;
    (void)layer;
    (void)size_idx;
    lgi_layer_facts_natural(facts, spec, sizeof(float));
    return LG_OK;
}

lg_status lg_graph_create(lg_graph **out, const lg_model *model, const lg_graph_opts *opts)
{
    const lgi_graph_source source = {natural_facts, NULL, NULL, sizeof(float)};
    return lgi_graph_build(out, model, opts, &source);
}
