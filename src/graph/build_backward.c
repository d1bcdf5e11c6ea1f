/*
 * Backward of one micro-batch: from the last layer to the first, each weight gradient right beside its input gradient.
 *
 * The order of additions is that of the textbook on one rank, whatever the ranks are: gradients of a value that several
 * layers read are added in the order in which backward reaches the readers. A rank that holds the first readers adds theirs
 * up and sends the sum; gradients from other ranks travel one by one, because adding them among themselves first would
 * round differently.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/builder.h"

static bool is_differentiable(const struct builder *b, const lgi_layer_facts *facts, int layer,
                              int input)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    return facts->has_differentiable_input[input == 1 ? 1 : 0] &&
           b->needs_grad[info->inputs[input]];
}

/* Hands a gradient of the result of `layer` on to it, in the layout in which the layer left the result. */
static lg_status contribute(struct builder *b, int layer, int grad)
{
    struct contributions *grads = &b->grads[layer];
    int converted = grad;
    LG_TRY(lgi_builder_convert(b, grad, lgi_builder_facts(b, layer)->out, &converted));
    LG_TRY(lgi_grow(&grads->values, &grads->capacity, grads->num + 1, sizeof *grads->values));
    grads->values[grads->num++] = converted;
    return LG_OK;
}

/* *out = values[0] + values[1] + ... on their common rank. `part`: 0 for the whole sum, else for a name of its own. */
static lg_status add_up(struct builder *b, int layer, const int *values, int num_values, int part,
                        int *out)
{
    const int rank = b->graph->values[values[0]].rank;
    const char *name = lgi_builder_layer_name(b, layer);
    *out = values[0];
    if (num_values == 1) {
        return LG_OK;
    }
    LG_TRY(lgi_builder_add_value(
        b, LG_VALUE_GRAD, layer, b->micro_batch, rank, lgi_builder_facts(b, layer)->out, out,
        part == 0 ? "grad(%s,%d)" : "grad(%s,%d):part", name, b->micro_batch));
    lg_operand *operands = NULL;
    LG_TRY(lgi_calloc(&operands, (size_t)num_values + 1, sizeof *operands));
    for (int i = 0; i < num_values; i++) {
        const lg_operand operand = {values[i], LG_ROLE_DY, i, LG_ACCESS_READ};
        operands[i] = operand;
    }
    const lg_operand sum = {*out, LG_ROLE_DX, 0, LG_ACCESS_WRITE};
    operands[num_values] = sum;
    lgi_builder_start_op(b, LG_OP_GRAD_ADD, layer, b->micro_batch, rank);
    b->op.operands = operands;
    b->op.num_operands = num_values + 1;
    b->op.inplace_read = 0;
    b->op.inplace_write = num_values;
    lgi_builder_set_work_from_operands(b);
    const lg_status status = lgi_builder_finish_op(b);
    lgi_free(operands);
    return status;
}

/* The gradient of the result of `layer` on the layer's rank: the one that arrived, or the sum of all. */
static lg_status sum_contributions(struct builder *b, int layer, int *out)
{
    struct contributions *grads = &b->grads[layer];
    const int rank = lgi_builder_rank(b, layer);
    const int first_rank = b->graph->values[grads->values[0]].rank;
    size_t num_first = 0;
    while (num_first < grads->num &&
           b->graph->values[grads->values[num_first]].rank == first_rank) {
        num_first++;
    }
    if (first_rank != rank && num_first > 1) { /* the first readers' rank adds up before it sends */
        int part = -1;
        LG_TRY(add_up(b, layer, grads->values, (int)num_first, 1, &part));
        grads->values[0] = part;
        memmove(&grads->values[1], &grads->values[num_first],
                (grads->num - num_first) * sizeof *grads->values);
        grads->num -= num_first - 1;
    }
    for (size_t i = 0; i < grads->num; i++) {
        LG_TRY(lgi_builder_bring(b, grads->values[i], rank, &grads->values[i]));
    }
    return add_up(b, layer, grads->values, (int)grads->num, 0, out);
}

/* New values for the gradients that an op of `layer` makes; -1 where none is wanted. */
static lg_status add_input_grads(struct builder *b, int layer, const lgi_layer_facts *facts,
                                 int *grads)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    bool has_any = false;
    for (int i = 0; i < info->num_inputs; i++) {
        grads[i] = -1;
        has_any = has_any || is_differentiable(b, facts, layer, i);
    }
    for (int i = 0; i < info->num_inputs; i++) {
        const bool is_wanted =
            facts->is_input_grad_shared ? has_any && i == 0 : is_differentiable(b, facts, layer, i);
        if (is_wanted) {
            LG_TRY(lgi_builder_add_value(
                b, LG_VALUE_GRAD, info->inputs[i], b->micro_batch, lgi_builder_rank(b, layer),
                facts->in[i], &grads[i], "grad(%s,%d):from(%s,%d)",
                lgi_builder_layer_name(b, info->inputs[i]), b->micro_batch, info->name, i));
        }
    }
    return LG_OK;
}

static int use_of(const struct builder *b, int layer, int param_idx)
{
    const struct param_use use = {layer, param_idx};
    return lgi_builder_use_index(b, lgi_builder_rank(b, layer), &use);
}

/*
 * With statistics, the first micro-batch's gradients are written where they add up; each later one gets values of its own,
 * from which GRAD_STAT adds them.
 */
static lg_status add_micro_grads(struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; b->graph->opts.has_grad_stats && i < info->num_params; i++) {
        const int use = use_of(b, layer, i);
        const lg_value_info *sum = &b->graph->values[b->use_grad_values[use]];
        const lgi_layout layout = {sum->layout, sum->bytes};
        b->micro_grads[use] = -1;
        if (b->is_use_grad_written[use]) {
            LG_TRY(lgi_builder_add_value(b, LG_VALUE_MICRO_GRAD, layer, b->micro_batch, sum->rank,
                                         layout, &b->micro_grads[use], "micro_grad(%s,%s,%d)",
                                         lg_model_param(b->model, info->params[i])->name,
                                         info->name, b->micro_batch));
            b->graph->values[b->micro_grads[use]].idx = info->params[i];
        }
    }
    return LG_OK;
}

static void add_param_grad_operands(struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_params; i++) {
        const int use = use_of(b, layer, i);
        if (b->graph->opts.has_grad_stats && b->micro_grads[use] >= 0) {
            (void)lgi_builder_add_operand(b, b->micro_grads[use], LG_ROLE_DPARAM, i,
                                          LG_ACCESS_WRITE);
            continue;
        }
        (void)lgi_builder_add_operand(b, b->use_grad_values[use], LG_ROLE_DPARAM, i,
                                      b->is_use_grad_written[use] ? LG_ACCESS_READ_WRITE
                                                                  : LG_ACCESS_WRITE);
        b->is_use_grad_written[use] = true;
    }
}

/* What both gradients read besides the gradient of the result. */
static void add_gradient_operands(struct builder *b, int layer, const lgi_phase_facts *phase,
                                  const int *inputs, const int *params)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_inputs; i++) {
        if ((phase->reads_inputs >> i & 1) != 0) {
            (void)lgi_builder_add_operand(b, inputs[i], LG_ROLE_X, i, LG_ACCESS_READ);
        }
    }
    if (phase->reads_output) {
        (void)lgi_builder_add_operand(b, b->activations[layer], LG_ROLE_Y, 0, LG_ACCESS_READ);
    }
    for (int i = 0; i < info->num_params; i++) {
        if ((phase->reads_params >> i & 1) != 0) {
            (void)lgi_builder_add_operand(b, params[i], LG_ROLE_PARAM, i, LG_ACCESS_READ);
        }
    }
    for (int s = 0; s < LGI_MAX_STASHES; s++) {
        if ((phase->reads_stashes >> s & 1) != 0) {
            (void)lgi_builder_add_operand(b, lgi_builder_stash(b, b->micro_batch, layer, s),
                                          LG_ROLE_STASH, s, LG_ACCESS_READ);
        }
    }
}

static lg_status build_input_grad(struct builder *b, int layer, int dy)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    const lgi_phase_facts *phase = &facts->phases[LGI_PHASE_INPUT_GRAD];
    int inputs[LGI_MAX_LAYER_INPUTS];
    int params[LG_MAX_LAYER_PARAMS];
    int grads[LGI_MAX_LAYER_INPUTS];
    LG_TRY(lgi_builder_read_inputs(b, layer, phase->reads_inputs, inputs));
    LG_TRY(lgi_builder_read_params(b, layer, facts->param_input_grad, phase->reads_params, params));
    LG_TRY(add_input_grads(b, layer, facts, grads));
    if (facts->is_joint) {
        LG_TRY(add_micro_grads(b, layer));
    }
    lgi_builder_start_op(b, LG_OP_INPUT_GRAD, layer, b->micro_batch, lgi_builder_rank(b, layer));
    const int read = lgi_builder_add_operand(b, dy, LG_ROLE_DY, 0, LG_ACCESS_READ);
    add_gradient_operands(b, layer, phase, inputs, params);
    for (int i = 0; i < info->num_inputs; i++) {
        if (grads[i] >= 0) {
            const int written =
                lgi_builder_add_operand(b, grads[i], LG_ROLE_DX, i, LG_ACCESS_WRITE);
            if (i == 0 && facts->is_input_grad_in_place) {
                b->op.inplace_read = read;
                b->op.inplace_write = written;
            }
        }
    }
    if (facts->is_joint) {
        b->op.is_joint = true;
        add_param_grad_operands(b, layer);
    }
    lgi_builder_set_work(b, phase);
    LG_TRY(lgi_builder_finish_op(b));
    for (int i = 0; i < info->num_inputs; i++) {
        if (is_differentiable(b, facts, layer, i)) {
            LG_TRY(
                contribute(b, info->inputs[i], facts->is_input_grad_shared ? grads[0] : grads[i]));
        }
    }
    return LG_OK;
}

static lg_status build_weight_grad(struct builder *b, int layer, int dy)
{
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    const lgi_phase_facts *phase = &facts->phases[LGI_PHASE_WEIGHT_GRAD];
    int inputs[LGI_MAX_LAYER_INPUTS];
    int params[LG_MAX_LAYER_PARAMS];
    LG_TRY(lgi_builder_read_inputs(b, layer, phase->reads_inputs, inputs));
    LG_TRY(lgi_builder_read_params(b, layer, facts->param, phase->reads_params, params));
    LG_TRY(add_micro_grads(b, layer));
    lgi_builder_start_op(b, LG_OP_WEIGHT_GRAD, layer, b->micro_batch, lgi_builder_rank(b, layer));
    (void)lgi_builder_add_operand(b, dy, LG_ROLE_DY, 0, LG_ACCESS_READ);
    add_gradient_operands(b, layer, phase, inputs, params);
    add_param_grad_operands(b, layer);
    lgi_builder_set_work(b, phase);
    return lgi_builder_finish_op(b);
}

/* The gradient of the result is the gradient of each input. */
static lg_status pass_on(struct builder *b, int layer, int dy)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    for (int i = 0; i < info->num_inputs; i++) {
        if (is_differentiable(b, facts, layer, i)) {
            int grad = dy;
            LG_TRY(lgi_builder_convert(b, dy, facts->in[i], &grad));
            LG_TRY(contribute(b, info->inputs[i], grad));
        }
    }
    return LG_OK;
}

lg_status lgi_build_backward(struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    bool wants_input_grad = false;
    int dy = -1;
    if (info->kind == LG_LAYER_INPUT || !b->needs_grad[layer]) {
        return LG_OK;
    }
    if (b->grads[layer].num == 0) {
        LG_FAIL(LG_INTERNAL, "no gradient reached layer '%s'", info->name);
    }
    LG_TRY(sum_contributions(b, layer, &dy));
    for (int i = 0; i < info->num_inputs; i++) {
        wants_input_grad = wants_input_grad || is_differentiable(b, facts, layer, i);
    }
    if (facts->is_input_grad_view) {
        LG_TRY(pass_on(b, layer, dy));
    } else if (wants_input_grad || facts->is_joint) {
        LG_TRY(build_input_grad(b, layer, dy));
    }
    if (info->num_params > 0 && !facts->is_joint) {
        LG_TRY(build_weight_grad(b, layer, dy));
    }
    return b->graph->opts.has_grad_stats ? lgi_build_micro_stats(b, layer) : LG_OK;
}

lg_status lgi_build_loss(struct builder *b)
{
    const int layer = b->loss_layer;
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = lgi_builder_facts(b, layer);
    const lgi_layout record = {0, 32}; /* sizeof(lgi_loss_record), which lowering asserts */
    const int rank = lgi_builder_rank(b, layer);
    const bool wants_grad =
        b->graph->opts.mode == LG_GRAPH_TRAIN && is_differentiable(b, facts, layer, 0);
    int inputs[LGI_MAX_LAYER_INPUTS];
    int loss = -1;
    int grad = -1;
    LG_TRY(lgi_builder_read_inputs(b, layer, UINT64_MAX, inputs));
    LG_TRY(lgi_builder_add_value(b, LG_VALUE_LOSS, layer, b->micro_batch, rank, record, &loss,
                                 "loss(%s,%d)", info->name, b->micro_batch));
    b->graph->values[loss].is_output = true;
    if (wants_grad) {
        LG_TRY(lgi_builder_add_value(b, LG_VALUE_GRAD, info->inputs[0], b->micro_batch, rank,
                                     facts->in[0], &grad, "grad(%s,%d):from(%s,0)",
                                     lgi_builder_layer_name(b, info->inputs[0]), b->micro_batch,
                                     info->name));
    }
    lgi_builder_start_op(b, LG_OP_LOSS, layer, b->micro_batch, rank);
    const int read = lgi_builder_add_operand(b, inputs[0], LG_ROLE_X, 0, LG_ACCESS_READ);
    (void)lgi_builder_add_operand(b, inputs[1], LG_ROLE_X, 1, LG_ACCESS_READ);
    (void)lgi_builder_add_operand(b, loss, LG_ROLE_LOSS, 0, LG_ACCESS_WRITE);
    if (wants_grad) {
        const int written = lgi_builder_add_operand(b, grad, LG_ROLE_DX, 0, LG_ACCESS_WRITE);
        if (facts->is_input_grad_in_place) {
            b->op.inplace_read = read;
            b->op.inplace_write = written;
        }
    }
    lgi_builder_set_work(b, &facts->phases[LGI_PHASE_FORWARD]);
    LG_TRY(lgi_builder_finish_op(b));
    return wants_grad ? contribute(b, info->inputs[0], grad) : LG_OK;
}
