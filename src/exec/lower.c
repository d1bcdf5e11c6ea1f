#include "exec/lower.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

/* The builder reserves 32 bytes for it. */
_Static_assert(sizeof(lgi_loss_record) == 32, "size of the loss record");

static lg_status facts_from_device(void *user, int layer, int size_idx, const lgi_layer_spec *spec,
                                   lgi_layer_facts *facts)
{
    lgi_lowered *lowered = user;
    lgi_device_layer **slot = &lowered->layers[size_idx * lowered->num_layers + layer];
    return lowered->device->ops->layer_create(lowered->device, spec, facts, slot);
}

/* The tensor that a REORDER op moves, with its batch dimension. */
static lg_shape reordered_shape(const lg_graph *graph, const lg_op_info *op)
{
    const lg_model *model = lg_graph_model(graph);
    const lg_value_info *value = lg_graph_value(graph, op->operands[0].value);
    if (value->kind == LG_VALUE_PARAM) {
        return lg_model_param(model, value->idx)->shape;
    }
    const lg_shape sample = lg_model_layer(model, value->layer)->out_shape;
    lg_shape shape = sample;
    shape.num_dims = sample.num_dims + 1;
    shape.dims[0] = lg_graph_micro_batch_samples(graph, value->micro_batch);
    for (int i = 0; i < sample.num_dims; i++) {
        shape.dims[i + 1] = sample.dims[i];
    }
    return shape;
}

static lg_status create_reorders(lgi_lowered *lowered)
{
    const lg_graph *graph = lowered->graph;
    const lg_graph_opts *opts = lg_graph_options(graph);
    LG_TRY(lgi_calloc(&lowered->reorders, (size_t)lg_graph_num_ops(graph),
                      sizeof(lgi_device_reorder *)));
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *op = lg_graph_op(graph, i);
        if (op->kind != LG_OP_REORDER || op->rank != lowered->rank) {
            continue;
        }
        const lg_shape shape = reordered_shape(graph, op);
        const int from = lg_graph_value(graph, op->operands[0].value)->layout;
        const int to = lg_graph_value(graph, op->operands[1].value)->layout;
        LG_TRY(lowered->device->ops->reorder_create(lowered->device, &shape, from, to,
                                                    opts->num_widths, opts->widths,
                                                    &lowered->reorders[i]));
        lowered->num_reorders++;
    }
    return LG_OK;
}

static bool is_layer_op(lg_op_kind kind)
{
    return kind == LG_OP_FORWARD || kind == LG_OP_LOSS || kind == LG_OP_INPUT_GRAD ||
           kind == LG_OP_WEIGHT_GRAD;
}

/* Lets go of what the device prepared for the layers that run on other ranks only. */
static lg_status keep_own_layers(lgi_lowered *lowered)
{
    const lg_graph *graph = lowered->graph;
    const int num_cells = 2 * lowered->num_layers;
    bool *is_used = NULL;
    LG_TRY(lgi_calloc(&is_used, (size_t)num_cells, sizeof *is_used));
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *op = lg_graph_op(graph, i);
        if (op->rank == lowered->rank && is_layer_op(op->kind)) {
            is_used[lgi_graph_size_idx(graph, op->micro_batch) * lowered->num_layers + op->layer] =
                true;
        }
    }
    for (int i = 0; i < num_cells; i++) {
        if (!is_used[i] && lowered->layers[i] != NULL) {
            lowered->device->ops->layer_destroy(lowered->layers[i]);
            lowered->layers[i] = NULL;
        }
    }
    lgi_free(is_used);
    return LG_OK;
}

lg_status lgi_lower(lgi_lowered **out, lgi_device *device, const lg_model *model,
                    const lg_graph_opts *opts, const lgi_layout *param_fixed, int rank)
{
    lg_status status = LG_OK;
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    lgi_lowered *lowered = *out;
    lowered->device = device;
    lowered->model = model;
    lowered->num_layers = lg_model_num_layers(model);
    lowered->rank = rank;
    LG_TRY_GOTO(
        lgi_calloc(&lowered->layers, 2 * (size_t)lowered->num_layers, sizeof(lgi_device_layer *)));
    const lgi_graph_source source = {facts_from_device, lowered, param_fixed,
                                     device->ops->real_bytes};
    LG_TRY_GOTO(lgi_graph_build(&lowered->graph, model, opts, &source));
    LG_TRY_GOTO(keep_own_layers(lowered));
    LG_TRY_GOTO(create_reorders(lowered));
out:
    if (status != LG_OK) {
        lgi_lowered_destroy(lowered);
        *out = NULL;
    }
    return status;
}

void lgi_lowered_destroy(lgi_lowered *lowered)
{
    if (lowered == NULL) {
        return;
    }
    const struct lgi_device_ops *ops = lowered->device->ops;
    for (int i = 0; lowered->layers != NULL && i < 2 * lowered->num_layers; i++) {
        if (lowered->layers[i] != NULL) {
            ops->layer_destroy(lowered->layers[i]);
        }
    }
    for (int i = 0; lowered->reorders != NULL && i < lg_graph_num_ops(lowered->graph); i++) {
        if (lowered->reorders[i] != NULL) {
            ops->reorder_destroy(lowered->reorders[i]);
        }
    }
    lgi_free(lowered->layers);
    lgi_free(lowered->reorders);
    lg_graph_destroy(lowered->graph);
    lgi_free(lowered);
}

void lgi_lowered_param_layouts(const lgi_lowered *lowered, lgi_layout *layouts)
{
    for (int i = 0; i < lg_graph_num_values(lowered->graph); i++) {
        const lg_value_info *value = lg_graph_value(lowered->graph, i);
        if (value->kind == LG_VALUE_PARAM && value->is_persistent) {
            layouts[value->idx].id = value->layout;
            layouts[value->idx].bytes = value->bytes;
        }
    }
}

lgi_device_layer *lgi_lowered_layer(const lgi_lowered *lowered, int op)
{
    const lg_op_info *info = lg_graph_op(lowered->graph, op);
    const int size_idx =
        info->micro_batch >= 0 ? lgi_graph_size_idx(lowered->graph, info->micro_batch) : 0;
    return lowered->layers[size_idx * lowered->num_layers + info->layer];
}
