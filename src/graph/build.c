/*
 * Builds the step graph of a model in the textbook order: micro-batch by micro-batch forward, loss, backward; then
 * statistics, clipping, updates. Where a layer wants a value in another layout than its producer left it, a REORDER op
 * stands before the first reader and later readers share its result. Where several layers read one value, a GRAD_ADD sums
 * their gradients in the order in which backward reaches them.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/graph_internal.h"

#define MAX_OPERANDS_INLINE (3 * LGI_MAX_LAYER_INPUTS + 16)
#define NAME_BYTES 640 /* a layer name has at most 200 characters; a name has two of them at most */

/* A value that was copied into another layout. */
struct conversion {
    int value;
    int layout;
    int converted;
};

/* The gradients that reached a layer's result so far. */
struct contributions {
    int *values;
    size_t num, capacity;
};

struct builder {
    lg_graph *graph;
    const lg_model *model;
    const lgi_graph_source *source;
    int num_layers;
    int num_micro_batches;
    int loss_layer;
    bool *is_live;               /* by layer: the result is needed */
    bool *needs_grad;            /* by layer: a parameter lies at or before it */
    lgi_layer_facts *facts;      /* size_idx * num_layers + layer */
    int *activations;            /* micro_batch * num_layers + layer: value or -1 */
    int *stashes;                /* (micro_batch * num_layers + layer) * LGI_MAX_STASHES + stash */
    struct contributions *grads; /* micro_batch * num_layers + layer */
    int *param_values, *param_grad_values, *state_values; /* by id */
    int *slot_values;                                     /* param * LG_MAX_SLOTS + slot */
    bool *is_grad_written; /* by param: the step has a writer of the gradient already */
    struct conversion *conversions;
    size_t num_conversions, conversions_capacity;
    /* the op under construction */
    lg_operand operands[MAX_OPERANDS_INLINE];
    lg_op_info op;
    char name[NAME_BYTES + 32];
};

static const lgi_layer_facts *facts_of(const struct builder *b, int layer, int micro_batch)
{
    return &b->facts[lgi_graph_size_idx(b->graph, micro_batch) * b->num_layers + layer];
}

/* --- one op -------------------------------------------------------------------------------------------------------- */

static void start_op(struct builder *b, lg_op_kind kind, int layer, int micro_batch)
{
    memset(&b->op, 0, sizeof b->op);
    b->op.kind = kind;
    b->op.layer = layer;
    b->op.micro_batch = micro_batch;
    b->op.operands = b->operands;
    b->op.inplace_write = -1;
    b->op.inplace_read = -1;
    const char *what = layer >= 0 ? lg_model_layer(b->model, layer)->name : "";
    if (micro_batch >= 0) {
        (void)snprintf(b->name, sizeof b->name, "%s(%s,%d)", lg_op_kind_name(kind), what,
                       micro_batch);
    } else {
        (void)snprintf(b->name, sizeof b->name, "%s(%s)", lg_op_kind_name(kind), what);
    }
    b->op.name = b->name;
}

/* Adds an operand and returns its position. */
static int add_operand(struct builder *b, int value, lg_role role, int idx, int access)
{
    const lg_operand operand = {value, role, idx, access};
    b->operands[b->op.num_operands] = operand;
    return b->op.num_operands++;
}

static void set_work(struct builder *b, const lgi_phase_facts *phase)
{
    b->op.flops = phase->flops;
    b->op.traffic_bytes = phase->traffic_bytes;
    memcpy(b->op.workspace_bytes, phase->workspace_bytes, sizeof b->op.workspace_bytes);
}

/* Work of an op that just moves its operands: one flop per four bytes. */
static void set_work_from_operands(struct builder *b)
{
    for (int i = 0; i < b->op.num_operands; i++) {
        const lg_operand *operand = &b->operands[i];
        const double bytes = (double)b->graph->values[operand->value].bytes;
        b->op.traffic_bytes += bytes * (operand->access == LG_ACCESS_READ_WRITE ? 2.0 : 1.0);
    }
    b->op.flops = b->op.traffic_bytes / 4.0;
}

static lg_status finish_op(struct builder *b)
{
    return lgi_graph_add_op(b->graph, &b->op, NULL);
}

static lg_status add_value(struct builder *b, lg_value_kind kind, int layer, int micro_batch,
                           lgi_layout layout, int *out, const char *name_format, ...)
    LG_PRINTF(7, 8);

static lg_status add_value(struct builder *b, lg_value_kind kind, int layer, int micro_batch,
                           lgi_layout layout, int *out, const char *name_format, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_format);
    (void)vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    lg_value_info value;
    memset(&value, 0, sizeof value);
    value.name = name;
    value.kind = kind;
    value.layer = layer;
    value.micro_batch = micro_batch;
    value.layout = layout.id;
    value.bytes = layout.bytes;
    return lgi_graph_add_value(b->graph, &value, out);
}

static const char *layer_name(const struct builder *b, int layer)
{
    return lg_model_layer(b->model, layer)->name;
}

/* --- layouts ------------------------------------------------------------------------------------------------------- */

/* The value `value` in `layout`: itself, an earlier copy, or the result of a new REORDER op. */
static lg_status convert(struct builder *b, int value, lgi_layout layout, int *out)
{
    const lg_value_info from = b->graph->values[value];
    *out = value;
    if (from.layout == layout.id) {
        return LG_OK;
    }
    for (size_t i = 0; i < b->num_conversions; i++) {
        if (b->conversions[i].value == value && b->conversions[i].layout == layout.id) {
            *out = b->conversions[i].converted;
            return LG_OK;
        }
    }
    lg_value_info to = from;
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s:layout%d", from.name, layout.id);
    to.name = name;
    to.layout = layout.id;
    to.bytes = layout.bytes;
    to.is_persistent = false;
    to.is_output = false;
    LG_TRY(lgi_graph_add_value(b->graph, &to, out));
    start_op(b, LG_OP_REORDER, from.layer, from.micro_batch);
    (void)snprintf(b->name, sizeof b->name, "reorder(%s)", name);
    (void)add_operand(b, value, LG_ROLE_SRC, 0, LG_ACCESS_READ);
    (void)add_operand(b, *out, LG_ROLE_DST, 0, LG_ACCESS_WRITE);
    set_work_from_operands(b);
    LG_TRY(finish_op(b));
    LG_TRY(lgi_grow(&b->conversions, &b->conversions_capacity, b->num_conversions + 1,
                    sizeof *b->conversions));
    const struct conversion conversion = {value, layout.id, *out};
    b->conversions[b->num_conversions++] = conversion;
    return LG_OK;
}

/* The values that an op of `layer` reads as its inputs, in the layouts that the layer wants; `wanted`: bit by input. */
static lg_status convert_inputs(struct builder *b, int layer, int m, uint64_t wanted, int *values)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = facts_of(b, layer, m);
    for (int i = 0; i < info->num_inputs; i++) {
        if ((wanted >> i & 1) != 0) {
            const int activation = b->activations[m * b->num_layers + info->inputs[i]];
            LG_TRY(convert(b, activation, facts->in[i], &values[i]));
        }
    }
    return LG_OK;
}

/* The parameters that an op of `layer` reads, in the layouts that the phase wants; `wanted`: bit by parameter. */
static lg_status convert_params(struct builder *b, int layer, const lgi_layout *layouts,
                                uint32_t wanted, int *values)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_params; i++) {
        if ((wanted >> i & 1) != 0) {
            LG_TRY(convert(b, b->param_values[info->params[i]], layouts[i], &values[i]));
        }
    }
    return LG_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------------- */

static lg_status add_stashes(struct builder *b, int layer, int m, const lgi_layer_facts *facts)
{
    for (int s = 0; s < facts->num_stashes; s++) {
        const lgi_layout layout = {0, facts->stash_bytes[s]};
        int value = -1;
        LG_TRY(add_value(b, LG_VALUE_STASH, layer, m, layout, &value, "stash%d(%s,%d)", s,
                         layer_name(b, layer), m));
        b->graph->values[value].idx = s;
        b->stashes[(m * b->num_layers + layer) * LGI_MAX_STASHES + s] = value;
    }
    return LG_OK;
}

static lg_status build_forward(struct builder *b, int layer, int m)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = facts_of(b, layer, m);
    const bool is_training = b->graph->opts.mode == LG_GRAPH_TRAIN;
    int inputs[LGI_MAX_LAYER_INPUTS];
    int params[LG_MAX_LAYER_PARAMS];
    int *activation = &b->activations[m * b->num_layers + layer];
    LG_TRY(convert_inputs(b, layer, m, UINT64_MAX, inputs));
    if (facts->is_forward_view) {
        *activation = inputs[0];
        return LG_OK;
    }
    LG_TRY(convert_params(b, layer, facts->param, UINT32_MAX, params));
    LG_TRY(add_value(b, LG_VALUE_ACTIVATION, layer, m, facts->out, activation, "activation(%s,%d)",
                     info->name, m));
    LG_TRY(add_stashes(b, layer, m, facts));
    start_op(b, LG_OP_FORWARD, layer, m);
    for (int i = 0; i < info->num_inputs; i++) {
        const int operand = add_operand(b, inputs[i], LG_ROLE_X, i, LG_ACCESS_READ);
        if (i == 0 && facts->is_forward_in_place) {
            b->op.inplace_read = operand;
        }
    }
    for (int i = 0; i < info->num_params; i++) {
        (void)add_operand(b, params[i], LG_ROLE_PARAM, i, LG_ACCESS_READ);
    }
    for (int i = 0; !is_training && i < info->num_states; i++) {
        (void)add_operand(b, b->state_values[info->states[i]], LG_ROLE_STATE, i, LG_ACCESS_READ);
    }
    const int written = add_operand(b, *activation, LG_ROLE_Y, 0, LG_ACCESS_WRITE);
    b->op.inplace_write = b->op.inplace_read >= 0 ? written : -1;
    for (int s = 0; s < facts->num_stashes; s++) {
        const int stash = b->stashes[(m * b->num_layers + layer) * LGI_MAX_STASHES + s];
        (void)add_operand(b, stash, LG_ROLE_STASH, s, LG_ACCESS_WRITE);
    }
    set_work(b, &facts->phases[LGI_PHASE_FORWARD]);
    return finish_op(b);
}

/* --- backward ------------------------------------------------------------------------------------------------------ */

/* Hands a gradient of the result of `layer` on to it, in the layout in which the layer left the result. */
static lg_status contribute(struct builder *b, int layer, int m, int grad)
{
    struct contributions *grads = &b->grads[m * b->num_layers + layer];
    int converted = grad;
    LG_TRY(convert(b, grad, facts_of(b, layer, m)->out, &converted));
    LG_TRY(lgi_grow(&grads->values, &grads->capacity, grads->num + 1, sizeof *grads->values));
    grads->values[grads->num++] = converted;
    return LG_OK;
}

static bool is_differentiable(const struct builder *b, const lgi_layer_facts *facts, int layer,
                              int input)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    return facts->has_differentiable_input[input == 1 ? 1 : 0] &&
           b->needs_grad[info->inputs[input]];
}

/* The gradient of the result of `layer`: the one that arrived, or the sum of all. */
static lg_status sum_contributions(struct builder *b, int layer, int m, int *out)
{
    const struct contributions *grads = &b->grads[m * b->num_layers + layer];
    *out = grads->values[0];
    if (grads->num == 1) {
        return LG_OK;
    }
    LG_TRY(add_value(b, LG_VALUE_GRAD, layer, m, facts_of(b, layer, m)->out, out, "grad(%s,%d)",
                     layer_name(b, layer), m));
    start_op(b, LG_OP_GRAD_ADD, layer, m);
    for (size_t i = 0; i < grads->num; i++) {
        (void)add_operand(b, grads->values[i], LG_ROLE_DY, (int)i, LG_ACCESS_READ);
    }
    b->op.inplace_read = 0;
    b->op.inplace_write = add_operand(b, *out, LG_ROLE_DX, 0, LG_ACCESS_WRITE);
    set_work_from_operands(b);
    return finish_op(b);
}

/* New values for the gradients that an op of `layer` makes; -1 where none is wanted. */
static lg_status add_input_grads(struct builder *b, int layer, int m, const lgi_layer_facts *facts,
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
            LG_TRY(add_value(b, LG_VALUE_GRAD, info->inputs[i], m, facts->in[i], &grads[i],
                             "grad(%s,%d):from(%s,%d)", layer_name(b, info->inputs[i]), m,
                             info->name, i));
        }
    }
    return LG_OK;
}

static lg_status contribute_input_grads(struct builder *b, int layer, int m,
                                        const lgi_layer_facts *facts, const int *grads)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_inputs; i++) {
        if (is_differentiable(b, facts, layer, i)) {
            LG_TRY(contribute(b, info->inputs[i], m,
                              facts->is_input_grad_shared ? grads[0] : grads[i]));
        }
    }
    return LG_OK;
}

static void add_param_grad_operands(struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_params; i++) {
        const int param = info->params[i];
        (void)add_operand(b, b->param_grad_values[param], LG_ROLE_DPARAM, i,
                          b->is_grad_written[param] ? LG_ACCESS_READ_WRITE : LG_ACCESS_WRITE);
        b->is_grad_written[param] = true;
    }
}

/* What both gradients read besides the gradient of the result. */
static void add_gradient_operands(struct builder *b, int layer, int m, const lgi_phase_facts *phase,
                                  const int *inputs, const int *params)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_inputs; i++) {
        if ((phase->reads_inputs >> i & 1) != 0) {
            (void)add_operand(b, inputs[i], LG_ROLE_X, i, LG_ACCESS_READ);
        }
    }
    if (phase->reads_output) {
        (void)add_operand(b, b->activations[m * b->num_layers + layer], LG_ROLE_Y, 0,
                          LG_ACCESS_READ);
    }
    for (int i = 0; i < info->num_params; i++) {
        if ((phase->reads_params >> i & 1) != 0) {
            (void)add_operand(b, params[i], LG_ROLE_PARAM, i, LG_ACCESS_READ);
        }
    }
    for (int s = 0; s < LGI_MAX_STASHES; s++) {
        if ((phase->reads_stashes >> s & 1) != 0) {
            const int stash = b->stashes[(m * b->num_layers + layer) * LGI_MAX_STASHES + s];
            (void)add_operand(b, stash, LG_ROLE_STASH, s, LG_ACCESS_READ);
        }
    }
}

static lg_status build_input_grad(struct builder *b, int layer, int m, int dy)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = facts_of(b, layer, m);
    const lgi_phase_facts *phase = &facts->phases[LGI_PHASE_INPUT_GRAD];
    int inputs[LGI_MAX_LAYER_INPUTS];
    int params[LG_MAX_LAYER_PARAMS];
    int grads[LGI_MAX_LAYER_INPUTS];
    LG_TRY(convert_inputs(b, layer, m, phase->reads_inputs, inputs));
    LG_TRY(convert_params(b, layer, facts->param_input_grad, phase->reads_params, params));
    LG_TRY(add_input_grads(b, layer, m, facts, grads));
    start_op(b, LG_OP_INPUT_GRAD, layer, m);
    const int read = add_operand(b, dy, LG_ROLE_DY, 0, LG_ACCESS_READ);
    add_gradient_operands(b, layer, m, phase, inputs, params);
    for (int i = 0; i < info->num_inputs; i++) {
        if (grads[i] >= 0) {
            const int written = add_operand(b, grads[i], LG_ROLE_DX, i, LG_ACCESS_WRITE);
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
    set_work(b, phase);
    LG_TRY(finish_op(b));
    return contribute_input_grads(b, layer, m, facts, grads);
}

static lg_status build_weight_grad(struct builder *b, int layer, int m, int dy)
{
    const lgi_layer_facts *facts = facts_of(b, layer, m);
    const lgi_phase_facts *phase = &facts->phases[LGI_PHASE_WEIGHT_GRAD];
    int inputs[LGI_MAX_LAYER_INPUTS];
    int params[LG_MAX_LAYER_PARAMS];
    LG_TRY(convert_inputs(b, layer, m, phase->reads_inputs, inputs));
    LG_TRY(convert_params(b, layer, facts->param, phase->reads_params, params));
    start_op(b, LG_OP_WEIGHT_GRAD, layer, m);
    (void)add_operand(b, dy, LG_ROLE_DY, 0, LG_ACCESS_READ);
    add_gradient_operands(b, layer, m, phase, inputs, params);
    add_param_grad_operands(b, layer);
    set_work(b, phase);
    return finish_op(b);
}

static lg_status build_backward(struct builder *b, int layer, int m)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = facts_of(b, layer, m);
    int dy = -1;
    if (info->kind == LG_LAYER_INPUT || !b->needs_grad[layer]) {
        return LG_OK;
    }
    if (b->grads[m * b->num_layers + layer].num == 0) {
        LG_FAIL(LG_INTERNAL, "no gradient reached layer '%s'", info->name);
    }
    LG_TRY(sum_contributions(b, layer, m, &dy));
    bool wants_input_grad = false;
    for (int i = 0; i < info->num_inputs; i++) {
        wants_input_grad = wants_input_grad || is_differentiable(b, facts, layer, i);
    }
    if (facts->is_input_grad_view) {
        for (int i = 0; i < info->num_inputs; i++) {
            if (is_differentiable(b, facts, layer, i)) {
                int grad = dy;
                LG_TRY(convert(b, dy, facts->in[i], &grad));
                LG_TRY(contribute(b, info->inputs[i], m, grad));
            }
        }
    } else if (wants_input_grad || facts->is_joint) {
        LG_TRY(build_input_grad(b, layer, m, dy));
    }
    if (info->num_params > 0 && !facts->is_joint) {
        LG_TRY(build_weight_grad(b, layer, m, dy));
    }
    return LG_OK;
}

static lg_status build_loss(struct builder *b, int m)
{
    const int layer = b->loss_layer;
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = facts_of(b, layer, m);
    const lgi_layout record = {0,
                               32}; /* sizeof(lgi_loss_record), which the device module asserts */
    int inputs[LGI_MAX_LAYER_INPUTS];
    int loss = -1;
    int grad = -1;
    const bool is_training = b->graph->opts.mode == LG_GRAPH_TRAIN;
    LG_TRY(convert_inputs(b, layer, m, UINT64_MAX, inputs));
    LG_TRY(add_value(b, LG_VALUE_LOSS, layer, m, record, &loss, "loss(%s,%d)", info->name, m));
    b->graph->values[loss].is_output = true;
    if (is_training) {
        LG_TRY(add_value(b, LG_VALUE_GRAD, info->inputs[0], m, facts->in[0], &grad,
                         "grad(%s,%d):from(%s,0)", layer_name(b, info->inputs[0]), m, info->name));
    }
    start_op(b, LG_OP_LOSS, layer, m);
    const int read = add_operand(b, inputs[0], LG_ROLE_X, 0, LG_ACCESS_READ);
    (void)add_operand(b, inputs[1], LG_ROLE_X, 1, LG_ACCESS_READ);
    (void)add_operand(b, loss, LG_ROLE_LOSS, 0, LG_ACCESS_WRITE);
    if (is_training) {
        const int written = add_operand(b, grad, LG_ROLE_DX, 0, LG_ACCESS_WRITE);
        if (facts->is_input_grad_in_place) {
            b->op.inplace_read = read;
            b->op.inplace_write = written;
        }
    }
    set_work(b, &facts->phases[LGI_PHASE_FORWARD]);
    LG_TRY(finish_op(b));
    return is_training ? contribute(b, info->inputs[0], m, grad) : LG_OK;
}

/* --- after the gradients -------------------------------------------------------------------------------------------- */

static bool owns_params(const struct builder *b, int layer)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    for (int i = 0; i < info->num_params; i++) {
        if (lg_model_param(b->model, info->params[i])->owner_layer == layer) {
            return true;
        }
    }
    return false;
}

static lg_status build_clipping(struct builder *b, int *clip)
{
    const lgi_layout scalar = {0, (int64_t)sizeof(double)};
    const lgi_layout clip_and_norm = {0, 2 * (int64_t)sizeof(double)};
    int *stats = NULL;
    int num_stats = 0;
    lg_status status = LG_OK;
    LG_TRY_GOTO(lgi_calloc(&stats, (size_t)b->num_layers, sizeof *stats));
    for (int layer = 0; layer < b->num_layers; layer++) {
        if (!owns_params(b, layer)) {
            continue;
        }
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        LG_TRY_GOTO(add_value(b, LG_VALUE_SCALAR, layer, -1, scalar, &stats[num_stats], "stat(%s)",
                              info->name));
        start_op(b, LG_OP_GRAD_STAT, layer, -1);
        for (int i = 0; i < info->num_params; i++) {
            if (lg_model_param(b->model, info->params[i])->owner_layer == layer) {
                (void)add_operand(b, b->param_grad_values[info->params[i]], LG_ROLE_DPARAM, i,
                                  LG_ACCESS_READ);
            }
        }
        (void)add_operand(b, stats[num_stats++], LG_ROLE_STAT, 0, LG_ACCESS_WRITE);
        set_work_from_operands(b);
        LG_TRY_GOTO(finish_op(b));
    }
    LG_TRY_GOTO(add_value(b, LG_VALUE_SCALAR, -1, -1, clip_and_norm, clip, "clip"));
    b->graph->values[*clip].is_output = true;
    start_op(b, LG_OP_GRAD_CLIP, -1, -1);
    lg_operand *operands = NULL;
    LG_TRY_GOTO(lgi_calloc(&operands, (size_t)num_stats + 1, sizeof *operands));
    for (int i = 0; i < num_stats; i++) {
        const lg_operand operand = {stats[i], LG_ROLE_STAT, i, LG_ACCESS_READ};
        operands[i] = operand;
    }
    const lg_operand result = {*clip, LG_ROLE_CLIP, 0, LG_ACCESS_WRITE};
    operands[num_stats] = result;
    b->op.operands = operands;
    b->op.num_operands = num_stats + 1;
    status = finish_op(b);
    lgi_free(operands);
out:
    lgi_free(stats);
    return status;
}

static lg_status build_update(struct builder *b, int layer, int clip)
{
    const lg_layer_info *info = lg_model_layer(b->model, layer);
    const lgi_layer_facts *facts = facts_of(b, layer, 0);
    if (!owns_params(b, layer) && info->num_states == 0) {
        return LG_OK;
    }
    lg_operand *operands = NULL;
    LG_TRY(lgi_calloc(&operands, (size_t)(MAX_OPERANDS_INLINE + b->num_micro_batches),
                      sizeof *operands));
    start_op(b, LG_OP_UPDATE, layer, -1);
    for (int i = 0; i < info->num_params; i++) {
        const int param = info->params[i];
        if (lg_model_param(b->model, param)->owner_layer != layer) {
            continue;
        }
        (void)add_operand(b, b->param_values[param], LG_ROLE_PARAM, i, LG_ACCESS_READ_WRITE);
        (void)add_operand(b, b->param_grad_values[param], LG_ROLE_DPARAM, i, LG_ACCESS_READ);
        for (int s = 0; s < b->graph->opts.num_slots; s++) {
            (void)add_operand(b, b->slot_values[param * LG_MAX_SLOTS + s], LG_ROLE_SLOT,
                              i * LG_MAX_SLOTS + s, LG_ACCESS_READ_WRITE);
        }
    }
    for (int i = 0; i < info->num_states; i++) {
        (void)add_operand(b, b->state_values[info->states[i]], LG_ROLE_STATE, i,
                          LG_ACCESS_READ_WRITE);
    }
    if (clip >= 0) {
        (void)add_operand(b, clip, LG_ROLE_CLIP, 0, LG_ACCESS_READ);
    }
    memcpy(operands, b->operands, (size_t)b->op.num_operands * sizeof *operands);
    for (int m = 0; facts->stats_stash >= 0 && info->num_states > 0 && m < b->num_micro_batches;
         m++) {
        const int stash =
            b->stashes[(m * b->num_layers + layer) * LGI_MAX_STASHES + facts->stats_stash];
        const lg_operand operand = {stash, LG_ROLE_STASH, m, LG_ACCESS_READ};
        operands[b->op.num_operands++] = operand;
    }
    b->op.operands = operands;
    for (int i = 0; i < b->op.num_operands; i++) {
        const double bytes = (double)b->graph->values[operands[i].value].bytes;
        b->op.traffic_bytes += bytes * (operands[i].access == LG_ACCESS_READ_WRITE ? 2.0 : 1.0);
    }
    b->op.flops = b->op.traffic_bytes / 4.0;
    const lg_status status = finish_op(b);
    lgi_free(operands);
    return status;
}

/* --- persistent values ----------------------------------------------------------------------------------------------- */

static lg_status add_persistent(struct builder *b, lg_value_kind kind, int layer, int idx, int slot,
                                lgi_layout layout, int *out, const char *prefix, const char *name)
{
    LG_TRY(add_value(b, kind, layer, -1, layout, out, "%s(%s)", prefix, name));
    b->graph->values[*out].idx = idx;
    b->graph->values[*out].slot = slot;
    b->graph->values[*out].is_persistent = true;
    return LG_OK;
}

/*
 * Parameters, gradients, slots and states stand first and in every mode in the same order, so that the graphs of one model
 * can share them.
 */
static lg_status build_persistent(struct builder *b)
{
    for (int param = 0; param < lg_model_num_params(b->model); param++) {
        const lg_param_info *info = lg_model_param(b->model, param);
        const lg_layer_info *owner = lg_model_layer(b->model, info->owner_layer);
        lgi_layout layout = {0, 0};
        for (int i = 0; i < owner->num_params; i++) {
            if (owner->params[i] == param) {
                layout = b->facts[info->owner_layer].param[i];
            }
        }
        if (b->source->param_fixed != NULL && b->source->param_fixed[param].bytes > 0) {
            layout = b->source->param_fixed[param];
        }
        LG_TRY(add_persistent(b, LG_VALUE_PARAM, info->owner_layer, param, 0, layout,
                              &b->param_values[param], "param", info->name));
        LG_TRY(add_persistent(b, LG_VALUE_PARAM_GRAD, info->owner_layer, param, 0, layout,
                              &b->param_grad_values[param], "param_grad", info->name));
        for (int s = 0; s < b->graph->opts.num_slots; s++) {
            LG_TRY(add_persistent(b, LG_VALUE_SLOT, info->owner_layer, param, s, layout,
                                  &b->slot_values[param * LG_MAX_SLOTS + s],
                                  s == 0 ? "slot0" : "slot1", info->name));
        }
    }
    for (int state = 0; state < lg_model_num_states(b->model); state++) {
        const lg_state_info *info = lg_model_state(b->model, state);
        const lgi_layout layout = {0, lg_shape_num_elems(&info->shape) *
                                          (int64_t)b->source->state_elem_bytes};
        LG_TRY(add_persistent(b, LG_VALUE_STATE, info->owner_layer, state, 0, layout,
                              &b->state_values[state], "state", info->name));
    }
    return LG_OK;
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
    const size_t num_params = (size_t)lg_model_num_params(b->model);
    const int num_sizes = lgi_graph_size_idx(b->graph, b->num_micro_batches - 1) + 1;
    lgi_layout *param_layouts = NULL;
    lg_status status = LG_OK;
    LG_TRY_GOTO(lgi_calloc(&param_layouts, num_params, sizeof *param_layouts));
    LG_TRY_GOTO(lgi_calloc(&b->facts, (size_t)(num_sizes * b->num_layers), sizeof *b->facts));
    for (size_t i = 0; b->source->param_fixed != NULL && i < num_params; i++) {
        param_layouts[i] = b->source->param_fixed[i];
    }
    for (int size_idx = 0; size_idx < num_sizes; size_idx++) {
        const int micro_batch = size_idx == 0 ? 0 : b->num_micro_batches - 1;
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

/* --- the whole ------------------------------------------------------------------------------------------------------- */

static lg_status find_loss(struct builder *b)
{
    b->loss_layer = -1;
    for (int layer = 0; layer < b->num_layers; layer++) {
        const lg_layer_info *info = lg_model_layer(b->model, layer);
        if (info->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY) {
            if (b->loss_layer >= 0) {
                LG_FAIL(LG_INVALID_ARG, "the model has two losses, '%s' and '%s'",
                        layer_name(b, b->loss_layer), info->name);
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

static lg_status build_ops(struct builder *b)
{
    const lg_graph_mode mode = b->graph->opts.mode;
    int clip = -1;
    for (int m = 0; m < b->num_micro_batches; m++) {
        for (int layer = 0; layer < b->num_layers; layer++) {
            if (b->is_live[layer] && layer != b->loss_layer) {
                LG_TRY(build_forward(b, layer, m));
            }
        }
        if (mode == LG_GRAPH_PREDICT) {
            const int logits_layer = lg_model_layer(b->model, b->loss_layer)->inputs[0];
            const lgi_layout row_major = {
                0, lg_graph_micro_batch_samples(b->graph, m) *
                       lg_shape_num_elems(&lg_model_layer(b->model, logits_layer)->out_shape) *
                       (int64_t)b->source->state_elem_bytes};
            int logits = -1;
            LG_TRY(
                convert(b, b->activations[m * b->num_layers + logits_layer], row_major, &logits));
            b->graph->values[logits].is_output = true;
            continue;
        }
        LG_TRY(build_loss(b, m));
        for (int layer = b->num_layers - 1; mode == LG_GRAPH_TRAIN && layer >= 0; layer--) {
            if (layer != b->loss_layer) {
                LG_TRY(build_backward(b, layer, m));
            }
        }
    }
    if (mode != LG_GRAPH_TRAIN) {
        return LG_OK;
    }
    if (b->graph->opts.has_clipping) {
        LG_TRY(build_clipping(b, &clip));
    }
    for (int layer = 0; layer < b->num_layers; layer++) {
        LG_TRY(build_update(b, layer, clip));
    }
    return LG_OK;
}

static lg_status allocate(struct builder *b)
{
    const size_t num_layers = (size_t)b->num_layers;
    const size_t num_cells = num_layers * (size_t)b->num_micro_batches;
    const size_t num_params = (size_t)lg_model_num_params(b->model);
    LG_TRY(lgi_calloc(&b->is_live, num_layers, sizeof(bool)));
    LG_TRY(lgi_calloc(&b->needs_grad, num_layers, sizeof(bool)));
    LG_TRY(lgi_calloc(&b->activations, num_cells, sizeof(int)));
    LG_TRY(lgi_calloc(&b->stashes, num_cells * LGI_MAX_STASHES, sizeof(int)));
    LG_TRY(lgi_calloc(&b->grads, num_cells, sizeof *b->grads));
    LG_TRY(lgi_calloc(&b->param_values, num_params, sizeof(int)));
    LG_TRY(lgi_calloc(&b->param_grad_values, num_params, sizeof(int)));
    LG_TRY(lgi_calloc(&b->slot_values, num_params * LG_MAX_SLOTS, sizeof(int)));
    LG_TRY(lgi_calloc(&b->is_grad_written, num_params, sizeof(bool)));
    return lgi_calloc(&b->state_values, (size_t)lg_model_num_states(b->model), sizeof(int));
}

static void release(struct builder *b)
{
    for (int i = 0; b->grads != NULL && i < b->num_layers * b->num_micro_batches; i++) {
        lgi_free(b->grads[i].values);
    }
    lgi_free(b->is_live);
    lgi_free(b->needs_grad);
    lgi_free(b->facts);
    lgi_free(b->activations);
    lgi_free(b->stashes);
    lgi_free(b->grads);
    lgi_free(b->param_values);
    lgi_free(b->param_grad_values);
    lgi_free(b->slot_values);
    lgi_free(b->is_grad_written);
    lgi_free(b->state_values);
    lgi_free(b->conversions);
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
    b->num_micro_batches = b->graph->num_micro_batches;
    LG_TRY_GOTO(find_loss(b));
    LG_TRY_GOTO(allocate(b));
    LG_TRY_GOTO(mark_layers(b));
    LG_TRY_GOTO(ask_all_facts(b));
    LG_TRY_GOTO(build_persistent(b));
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
