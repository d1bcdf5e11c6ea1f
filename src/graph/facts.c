/*
 * The natural facts: what each layer kind's gradients must read by their mathematics, its work in flops and bytes, with
 * everything row-major. Backends start from these.
 */
#include "graph/facts.h"

#include <string.h>

/* Elements of one sample from a dimension on. */
static int64_t elems_from(const lg_shape *shape, int first_dim)
{
    int64_t num_elems = 1;
    for (int i = first_dim; i < shape->num_dims; i++) {
        num_elems *= shape->dims[i];
    }
    return num_elems;
}

static int64_t tensor_bytes(const lg_shape *shape, lg_dtype dtype, int64_t num_samples,
                            size_t elem_bytes)
{
    const size_t bytes = dtype == LG_DTYPE_I32 ? sizeof(int32_t) : elem_bytes;
    return lg_shape_num_elems(shape) * num_samples * (int64_t)bytes;
}

static void set_bytes(lgi_layer_facts *facts, const lgi_layer_spec *spec, size_t elem_bytes)
{
    const lg_layer_info *layer = spec->layer;
    const bool is_loss = layer->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY;
    facts->out.bytes =
        is_loss ? 0
                : tensor_bytes(&layer->out_shape, layer->out_dtype, spec->num_samples, elem_bytes);
    for (int i = 0; i < layer->num_inputs; i++) {
        facts->in[i].bytes =
            tensor_bytes(&spec->in_shapes[i], spec->in_dtypes[i], spec->num_samples, elem_bytes);
    }
    for (int i = 0; i < layer->num_params; i++) {
        facts->param[i].bytes = lg_shape_num_elems(&spec->param_shapes[i]) * (int64_t)elem_bytes;
        facts->param_input_grad[i] = facts->param[i];
    }
}

/* Multiply-adds of a forward pass; 0 for kinds that only move data. */
static double multiply_adds(const lgi_layer_spec *spec)
{
    const lg_layer_info *layer = spec->layer;
    const double num_outputs = (double)(lg_shape_num_elems(&layer->out_shape) * spec->num_samples);
    if (layer->kind == LG_LAYER_CONV2D) {
        return num_outputs * (double)elems_from(&spec->param_shapes[0], 1);
    }
    if (layer->kind == LG_LAYER_LINEAR) {
        return num_outputs * (double)spec->param_shapes[0].dims[1];
    }
    if (layer->kind ==
        LG_LAYER_ATTENTION) { /* scores and weighted sum; half of it under a causal mask */
        return num_outputs * (double)layer->out_shape.dims[0] *
               (layer->attrs->is_causal ? 1.0 : 2.0);
    }
    return 0.0;
}

static void set_work(lgi_layer_facts *facts, const lgi_layer_spec *spec)
{
    const lg_layer_info *layer = spec->layer;
    const bool is_matrix = multiply_adds(spec) > 0.0;
    double in_bytes = 0.0;
    double param_bytes = 0.0;
    for (int i = 0; i < layer->num_inputs; i++) {
        in_bytes += (double)facts->in[i].bytes;
    }
    for (int i = 0; i < layer->num_params; i++) {
        param_bytes += (double)facts->param[i].bytes;
    }
    double flops = 2.0 * multiply_adds(spec);
    if (!is_matrix) { /* a handful per element */
        flops = 4.0 * (in_bytes + (double)facts->out.bytes) / 4.0;
    }
    const double traffic = in_bytes + (double)facts->out.bytes + param_bytes;
    for (int phase = 0; phase < LGI_NUM_PHASES; phase++) {
        facts->phases[phase].flops = flops;
        facts->phases[phase].traffic_bytes = traffic;
    }
    if (layer->kind == LG_LAYER_ATTENTION) {
        facts->phases[LGI_PHASE_INPUT_GRAD].flops *= 2.0;
    }
    if (!is_matrix) {
        facts->phases[LGI_PHASE_INPUT_GRAD].traffic_bytes += in_bytes;
    }
}

static void add_stash(lgi_layer_facts *facts, int64_t bytes)
{
    facts->phases[LGI_PHASE_INPUT_GRAD].reads_stashes |= 1u << facts->num_stashes;
    facts->stash_bytes[facts->num_stashes++] = bytes;
}

static void set_dependencies(lgi_layer_facts *facts, const lgi_layer_spec *spec, size_t elem_bytes)
{
    const lg_layer_info *layer = spec->layer;
    const lg_layer_attrs *attrs = layer->attrs;
    const bool is_training = spec->mode == LG_GRAPH_TRAIN;
    const int64_t real_bytes = (int64_t)elem_bytes;
    const int64_t num_out = lg_shape_num_elems(&layer->out_shape) * spec->num_samples;
    lgi_phase_facts *input_grad = &facts->phases[LGI_PHASE_INPUT_GRAD];
    lgi_phase_facts *weight_grad = &facts->phases[LGI_PHASE_WEIGHT_GRAD];
    switch (layer->kind) {
    case LG_LAYER_CONV2D:
    case LG_LAYER_LINEAR:
        input_grad->reads_params = 1u;
        weight_grad->reads_inputs = 1u;
        break;
    case LG_LAYER_BATCH_NORM:
        facts->is_joint = true;
        input_grad->reads_inputs = 1u;
        input_grad->reads_params = 1u;
        input_grad->reads_output = attrs->activation != LG_ACTIVATION_NONE;
        if (is_training) {
            add_stash(facts, 2 * layer->out_shape.dims[0] * real_bytes);
            facts->stats_stash = 0;
        }
        break;
    case LG_LAYER_LAYER_NORM: {
        const int64_t num_features = layer->out_shape.dims[layer->out_shape.num_dims - 1];
        facts->is_joint = true;
        input_grad->reads_inputs = 1u;
        input_grad->reads_params = 1u;
        if (is_training) {
            add_stash(facts, 2 * (num_out / num_features) * real_bytes);
        }
        break;
    }
    case LG_LAYER_ACTIVATION: {
        const bool by_output =
            attrs->activation == LG_ACTIVATION_RELU || attrs->activation == LG_ACTIVATION_RELU6;
        input_grad->reads_output = by_output;
        input_grad->reads_inputs = by_output ? 0u : 1u;
        facts->is_forward_in_place = true;
        facts->is_input_grad_in_place = true;
        break;
    }
    case LG_LAYER_MAX_POOL:
        if (is_training) {
            add_stash(facts, num_out * (int64_t)sizeof(int32_t));
        }
        break;
    case LG_LAYER_FLATTEN:
        facts->is_forward_view = true;
        facts->is_input_grad_view = true;
        break;
    case LG_LAYER_ADD:
        facts->is_forward_in_place = true;
        facts->is_input_grad_view = attrs->activation == LG_ACTIVATION_NONE;
        facts->is_input_grad_shared = !facts->is_input_grad_view;
        facts->is_input_grad_in_place = true;
        input_grad->reads_output = attrs->activation != LG_ACTIVATION_NONE;
        break;
    case LG_LAYER_CHANNEL_SCALE:
        input_grad->reads_inputs = 3u;
        break;
    case LG_LAYER_DROPOUT:
        facts->is_forward_view = !is_training || attrs->drop_prob == 0.0f;
        facts->is_input_grad_view = facts->is_forward_view;
        facts->is_forward_in_place = true;
        facts->is_input_grad_in_place = true;
        break;
    case LG_LAYER_TOKEN_EMBEDDING:
        facts->has_differentiable_input[0] = false;
        weight_grad->reads_inputs = 1u;
        break;
    case LG_LAYER_POSITION_EMBEDDING:
        facts->is_forward_in_place = true;
        facts->is_input_grad_view = true;
        break;
    case LG_LAYER_ATTENTION:
        facts->has_differentiable_input[1] = false;
        input_grad->reads_inputs = layer->num_inputs == 2 ? 3u : 1u;
        if (is_training) {
            add_stash(facts, spec->num_samples * attrs->num_heads * layer->out_shape.dims[0] *
                                 layer->out_shape.dims[0] * real_bytes);
        }
        break;
    case LG_LAYER_SOFTMAX_CROSS_ENTROPY:
        facts->has_differentiable_input[1] = false;
        facts->is_input_grad_in_place = true;
        break;
    default: /* INPUT, AVG_POOL, GLOBAL_AVG_POOL, CONCAT: the gradient of the output is enough */
        break;
    }
}

void lgi_layer_facts_natural(lgi_layer_facts *facts, const lgi_layer_spec *spec, size_t elem_bytes)
{
    memset(facts, 0, sizeof *facts);
    facts->stats_stash = -1;
    facts->has_differentiable_input[0] = spec->layer->kind != LG_LAYER_INPUT;
    facts->has_differentiable_input[1] = true;
    set_bytes(facts, spec, elem_bytes);
    set_work(facts, spec);
    set_dependencies(facts, spec, elem_bytes);
}
