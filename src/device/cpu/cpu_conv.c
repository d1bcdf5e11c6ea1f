/*
 * Convolutions. Activations lie channels last. The weights lie as FORWARD wants them, and the implementation of FORWARD
 * is chosen so that WEIGHT_GRAD writes the same layout (measured: not slower than the alternatives that ask for their
 * own); where a layer has no such pair, or the weights are fixed already, a phase works on a copy in its workspace. What
 * INPUT_GRAD wants is told to the graph, which reorders once a step.
 *
 * WEIGHT_GRAD sums over samples, and oneDNN's order of additions depends on its threads. So the batch is cut into slices
 * whose number depends on shape and machine only; each is one thread's work, and the slices are added in their order:
 * the bits are the same however many threads share the slices.
 *
 * Workspace: [oneDNN's scratchpad][weights in the primitive's own layout]; of WEIGHT_GRAD for each slice [scratchpad]
 * [gradient in the primitive's own layout][the same, stored layout][bias gradient]. What is not needed is empty.
 */
#include <string.h>

#include "device/cpu/cpu_depthwise.h"
#include "device/cpu/cpu_kernel.h"
#include "device/cpu/cpu_matmul.h"

#define ALIGNMENT 64
/* What all slices' gradients may take together; fewer slices are made if they would take more. */
#define MAX_SLICES_BYTES ((int64_t)64 << 20)
/*
 * What a slice must have at least, in cells of the output map over its samples: each slice writes a gradient of its own,
 * which below some 50 cells takes as long as the products (64 channels, 7x7: one slice of 2 samples 26 us, two of 1 sample
 * 45 us on one thread and 26 us on two).
 */
#define MIN_SLICE_CELLS 64

/* One phase: its primitive, and a copy of the weights where the primitive wants them otherwise than they are stored. */
typedef struct conv_phase {
    lgi_cpu_primitive *primitive;
    lgi_cpu_primitive *reorder; /* NULL: none */
    dnnl_memory_desc_t weights; /* as the primitive has them */
} conv_phase;

/* The slices of WEIGHT_GRAD. The first `num_large` have one sample more than the others. */
typedef struct conv_slices {
    int num;
    int num_large;
    int64_t num_small_samples;
    conv_phase large, small;
    int64_t scratch_bytes, staged_bytes, bias_bytes; /* of one slice */
} conv_slices;

typedef struct conv_layer {
    lgi_cpu_layer base;
    bool is_matmul; /* dense 1x1: a product of matrices */
    lgi_cpu_matmul matmul;
    bool has_own_weight_grad; /* cpu_depthwise.h */
    bool has_bias;
    int64_t weights_bytes;                                   /* stored, and so is the gradient */
    conv_phase phases[LGI_PHASE_WEIGHT_GRAD][LG_MAX_WIDTHS]; /* FORWARD, INPUT_GRAD */
    int64_t staged_bytes[LGI_PHASE_WEIGHT_GRAD];             /* of the copy */
    int64_t scratch_bytes[LGI_PHASE_WEIGHT_GRAD][LG_MAX_WIDTHS];
    conv_slices slices;
} conv_layer;

/* What the primitives are made from; lives during prepare only. */
typedef struct conv_problem {
    const lgi_cpu_layer *layer;
    dnnl_memory_desc_t x, y, bias;
    dnnl_memory_desc_t stored;     /* weights; format any while still free */
    dnnl_memory_desc_t input_grad; /* as INPUT_GRAD gets them; the same */
    dnnl_dims_t weight_dims;
    int num_weight_dims;
    int64_t groups;
    bool is_channels_last;
    dnnl_dims_t strides, dilates, pad_begin, pad_end;
} conv_problem;

static const char *const slow[] = {"ref", NULL};
/* Their weights layout is not the one that WEIGHT_GRAD can write. */
static const char *const slow_or_own_weights[] = {"ref", "brg", "brdg", NULL};

static bool is_slow(const_dnnl_primitive_desc_t desc)
{
    return strncmp(lgi_cpu_desc_name(desc), slow[0], strlen(slow[0])) == 0;
}

/* --- descriptors --------------------------------------------------------------------------------------------------- */

static lg_status image_desc(dnnl_memory_desc_t *out, const lgi_cpu_layer *layer,
                            int64_t num_samples, const lg_shape *shape, int layout)
{
    const dnnl_dims_t dims = {num_samples, shape->dims[0], shape->dims[1], shape->dims[2]};
    LG_DNNL(dnnl_memory_desc_init_by_tag(out, 4, dims, dnnl_f32,
                                         layout == LGI_CPU_ROW_MAJOR ? dnnl_nchw : dnnl_nhwc),
            layer->name);
    return LG_OK;
}

static lg_status any_weights(const conv_problem *problem, dnnl_memory_desc_t *out)
{
    LG_DNNL(dnnl_memory_desc_init_by_tag(out, problem->num_weight_dims, problem->weight_dims,
                                         dnnl_f32, dnnl_format_tag_any),
            problem->layer->name);
    return LG_OK;
}

static lg_status fill_problem(conv_problem *problem, const lgi_cpu_layer *layer,
                              const lgi_layer_spec *spec)
{
    const lg_layer_attrs *attrs = layer->attrs;
    const lg_shape *weight = &spec->param_shapes[0];
    const dnnl_dims_t bias_dims = {attrs->num_outputs};
    int num_dims = 0;
    problem->layer = layer;
    problem->groups = attrs->groups;
    if (attrs->groups > 1) {
        problem->weight_dims[num_dims++] = attrs->groups;
    }
    for (int d = 0; d < 4; d++) {
        problem->weight_dims[num_dims++] =
            d == 0 ? weight->dims[0] / attrs->groups : weight->dims[d];
    }
    problem->num_weight_dims = num_dims;
    for (int axis = 0; axis < 2; axis++) {
        problem->strides[axis] = attrs->window.stride[axis];
        problem->dilates[axis] = attrs->window.dilation[axis] - 1;
        problem->pad_begin[axis] = attrs->window.pad_begin[axis];
        problem->pad_end[axis] = attrs->window.pad_end[axis];
    }
    LG_DNNL(dnnl_memory_desc_init_by_tag(&problem->bias, 1, bias_dims, dnnl_f32, dnnl_a),
            layer->name);
    if (spec->param_fixed[0].bytes > 0) {
        return lgi_cpu_layout_desc(layer->device, spec->param_fixed[0].id, problem->groups, weight,
                                   &problem->stored);
    }
    return any_weights(problem, &problem->stored);
}

static lg_status set_images(conv_problem *problem, int64_t num_samples, bool is_channels_last)
{
    const lgi_cpu_layer *layer = problem->layer;
    const int layout = is_channels_last ? LGI_CPU_CHANNELS_LAST : LGI_CPU_ROW_MAJOR;
    problem->is_channels_last = is_channels_last;
    LG_TRY(image_desc(&problem->x, layer, num_samples, &layer->in_shape, layout));
    return image_desc(&problem->y, layer, num_samples, &layer->out_shape, layout);
}

static lg_status create_desc(dnnl_primitive_desc_t *out, const conv_problem *problem,
                             lgi_phase phase, const dnnl_memory_desc_t *weights,
                             const_dnnl_primitive_desc_t hint, const char *const *avoid)
{
    const lgi_cpu_layer *layer = problem->layer;
    const dnnl_memory_desc_t *bias = layer->attrs->has_bias ? &problem->bias : NULL;
    dnnl_convolution_desc_t op;
    *out = NULL;
    if (phase == LGI_PHASE_FORWARD) {
        LG_DNNL(dnnl_dilated_convolution_forward_desc_init(
                    &op, dnnl_forward_training, dnnl_convolution_direct, &problem->x, weights, bias,
                    &problem->y, problem->strides, problem->dilates, problem->pad_begin,
                    problem->pad_end),
                layer->name);
    } else if (phase == LGI_PHASE_INPUT_GRAD) {
        LG_DNNL(dnnl_dilated_convolution_backward_data_desc_init(
                    &op, dnnl_convolution_direct, &problem->x, weights, &problem->y,
                    problem->strides, problem->dilates, problem->pad_begin, problem->pad_end),
                layer->name);
    } else {
        LG_DNNL(dnnl_dilated_convolution_backward_weights_desc_init(
                    &op, dnnl_convolution_direct, &problem->x, weights, bias, &problem->y,
                    problem->strides, problem->dilates, problem->pad_begin, problem->pad_end),
                layer->name);
    }
    return lgi_cpu_desc_create(out, layer->device, &op, hint, avoid, layer->name);
}

/* The forward descriptor that backward ones take as a hint: any weights. */
static lg_status create_hint(dnnl_primitive_desc_t *out, const conv_problem *problem)
{
    dnnl_memory_desc_t any;
    LG_TRY(any_weights(problem, &any));
    return create_desc(out, problem, LGI_PHASE_FORWARD, &any, NULL, slow_or_own_weights);
}

/* One phase with weights as stored if an implementation worth the name takes them so, else with weights of its own. */
static lg_status create_phase_desc(dnnl_primitive_desc_t *out, const conv_problem *problem,
                                   lgi_phase phase, const_dnnl_primitive_desc_t hint)
{
    const char *const *avoid = phase == LGI_PHASE_FORWARD ? slow_or_own_weights : slow;
    dnnl_memory_desc_t any;
    *out = NULL;
    if (phase == LGI_PHASE_INPUT_GRAD) {
        return create_desc(out, problem, phase, &problem->input_grad, hint, avoid);
    }
    if (create_desc(out, problem, phase, &problem->stored, hint, avoid) == LG_OK) {
        if (!is_slow(*out)) {
            return LG_OK;
        }
        (void)dnnl_primitive_desc_destroy(*out);
    }
    LG_TRY(any_weights(problem, &any));
    return create_desc(out, problem, phase, &any, hint, avoid);
}

/* --- choosing layouts ---------------------------------------------------------------------------------------------- */

/* Whether some phase has only oneDNN's plain loops with the images as set. */
static lg_status has_slow_phase(const conv_problem *problem, const lgi_layer_spec *spec, bool *out)
{
    const bool wants[] = {true, spec->mode == LG_GRAPH_TRAIN && spec->needs_input_grad,
                          spec->mode == LG_GRAPH_TRAIN};
    dnnl_primitive_desc_t hint = NULL;
    lg_status status = create_hint(&hint, problem);
    *out = false;
    for (int phase = 0; status == LG_OK && phase < LGI_NUM_PHASES; phase++) {
        dnnl_primitive_desc_t desc = NULL;
        if (wants[phase]) {
            dnnl_memory_desc_t any;
            status = any_weights(problem, &any);
            if (status == LG_OK) {
                status = create_desc(&desc, problem, (lgi_phase)phase, &any, hint, slow);
            }
            *out = *out || (status == LG_OK && is_slow(desc));
            if (desc != NULL) {
                (void)dnnl_primitive_desc_destroy(desc);
            }
        }
    }
    if (hint != NULL) {
        (void)dnnl_primitive_desc_destroy(hint);
    }
    return status;
}

/* Channels last, unless only row-major images have fast implementations. */
static lg_status choose_images(conv_problem *problem, const lgi_layer_spec *spec,
                               lgi_layer_facts *facts)
{
    const lgi_cpu_layer *layer = problem->layer;
    bool is_slow_last = false;
    bool is_slow_row_major = false;
    LG_TRY(set_images(problem, layer->num_samples, true));
    LG_TRY(has_slow_phase(problem, spec, &is_slow_last));
    if (is_slow_last) {
        LG_TRY(set_images(problem, layer->num_samples, false));
        LG_TRY(has_slow_phase(problem, spec, &is_slow_row_major));
        if (!is_slow_row_major) {
            return LG_OK;
        }
        LG_TRY(set_images(problem, layer->num_samples, true));
    }
    lgi_cpu_want_channels_last(facts, spec, 0);
    facts->out.id = lgi_cpu_channels_last(&problem->layer->out_shape);
    return LG_OK;
}

static const dnnl_memory_desc_t *weights_of(const_dnnl_primitive_desc_t desc, lgi_phase phase)
{
    return dnnl_primitive_desc_query_md(
        desc, phase == LGI_PHASE_WEIGHT_GRAD ? dnnl_query_diff_weights_md : dnnl_query_weights_md,
        0);
}

/* Decides how the weights are stored and how INPUT_GRAD gets them. */
static lg_status choose_weights(conv_layer *conv, conv_problem *problem, const lgi_layer_spec *spec,
                                lgi_layer_facts *facts)
{
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_desc_t desc = NULL;
    lgi_cpu_device *device = problem->layer->device;
    lg_status status = LG_OK;
    LG_TRY_GOTO(create_hint(&hint, problem));
    if (problem->stored.format_kind == dnnl_format_kind_any) {
        problem->stored = *weights_of(hint, LGI_PHASE_FORWARD);
        LG_TRY_GOTO(
            lgi_cpu_layout_intern(device, &problem->stored, problem->groups, &facts->param[0].id));
    } else {
        facts->param[0].id = spec->param_fixed[0].id;
    }
    conv->weights_bytes = (int64_t)dnnl_memory_desc_get_size(&problem->stored);
    facts->param[0].bytes = conv->weights_bytes;
    facts->param_input_grad[0] = facts->param[0];
    if (spec->mode == LG_GRAPH_TRAIN && spec->needs_input_grad) {
        LG_TRY_GOTO(any_weights(problem, &problem->input_grad));
        LG_TRY_GOTO(create_phase_desc(&desc, problem, LGI_PHASE_INPUT_GRAD, hint));
        problem->input_grad = *weights_of(desc, LGI_PHASE_INPUT_GRAD);
        LG_TRY_GOTO(lgi_cpu_layout_intern(device, &problem->input_grad, problem->groups,
                                          &facts->param_input_grad[0].id));
        facts->param_input_grad[0].bytes = (int64_t)dnnl_memory_desc_get_size(&problem->input_grad);
    }
out:
    if (hint != NULL) {
        (void)dnnl_primitive_desc_destroy(hint);
    }
    if (desc != NULL) {
        (void)dnnl_primitive_desc_destroy(desc);
    }
    return status;
}

/* Whether the weights are stored in blocks of channels as cpu_depthwise.h wants them. */
static bool is_stored_for_depthwise(const conv_problem *problem)
{
    const dnnl_memory_desc_t *stored = &problem->stored;
    const dnnl_blocking_desc_t *blocking = &stored->format_desc.blocking;
    const int last = stored->ndims - 1;
    return lgi_cpu_is_depthwise(problem->layer) && problem->groups > 1 &&
           blocking->inner_nblks == 1 && blocking->inner_idxs[0] == 0 &&
           blocking->inner_blks[0] == LGI_CPU_DEPTHWISE_LANES &&
           blocking->strides[last] == LGI_CPU_DEPTHWISE_LANES &&
           blocking->strides[last - 1] == LGI_CPU_DEPTHWISE_LANES * stored->dims[last] &&
           blocking->strides[0] ==
               LGI_CPU_DEPTHWISE_LANES * stored->dims[last] * stored->dims[last - 1];
}

/* Whether oneDNN has a depthwise kernel that writes the weight gradient as stored. */
static lg_status has_depthwise_kernel(const conv_problem *problem, bool *out)
{
    static const char name[] = "jit_dw";
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_desc_t desc = NULL;
    LG_TRY(create_hint(&hint, problem));
    const lg_status status = create_phase_desc(&desc, problem, LGI_PHASE_WEIGHT_GRAD, hint);
    *out = status == LG_OK && strncmp(lgi_cpu_desc_name(desc), name, sizeof name - 1) == 0;
    (void)dnnl_primitive_desc_destroy(hint);
    if (desc != NULL) {
        (void)dnnl_primitive_desc_destroy(desc);
    }
    return status;
}

static lg_status choose_weight_grad(conv_layer *conv, const conv_problem *problem,
                                    const lgi_layer_spec *spec, const lgi_layer_facts *facts)
{
    const bool is_possible = spec->mode == LG_GRAPH_TRAIN && is_stored_for_depthwise(problem) &&
                             facts->in[0].id == lgi_cpu_channels_last(&conv->base.in_shape);
    bool has_kernel = true;
    if (is_possible) {
        LG_TRY(has_depthwise_kernel(problem, &has_kernel));
    }
    conv->has_own_weight_grad = !has_kernel;
    return LG_OK;
}

/* --- primitives ---------------------------------------------------------------------------------------------------- */

/* The primitive of a phase, made for `width` threads, and the copy of the weights that it needs. */
static lg_status create_phase(conv_phase *out, const conv_problem *problem, lgi_phase phase,
                              int width, const_dnnl_primitive_desc_t hint)
{
    static const int forward_args[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    static const int input_grad_args[] = {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC};
    static const int weight_grad_args[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
                                           DNNL_ARG_DIFF_BIAS};
    static const int *const args[] = {forward_args, input_grad_args, weight_grad_args};
    const lgi_cpu_layer *layer = problem->layer;
    const int num_args = phase != LGI_PHASE_INPUT_GRAD && layer->attrs->has_bias ? 4 : 3;
    dnnl_primitive_desc_t desc = NULL;
    LG_TRY(create_phase_desc(&desc, problem, phase, hint));
    out->weights = *weights_of(desc, phase);
    LG_TRY(lgi_cpu_primitive_create(&out->primitive, layer->device, desc, width, args[phase],
                                    num_args, layer->name));
    const bool is_as_stored = dnnl_memory_desc_equal(&out->weights, &problem->stored) != 0;
    if (phase == LGI_PHASE_INPUT_GRAD || is_as_stored) {
        return LG_OK; /* the graph has reordered what INPUT_GRAD reads */
    }
    const bool is_forward = phase == LGI_PHASE_FORWARD;
    return lgi_cpu_reorder_primitive_create(
        &out->reorder, layer->device, is_forward ? &problem->stored : &out->weights,
        is_forward ? &out->weights : &problem->stored, width, layer->name);
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t scratch_bytes_of(const conv_phase *phase)
{
    return lgi_cpu_round_up(lgi_cpu_primitive_scratch_bytes(phase->primitive), ALIGNMENT);
}

/* Bytes of the copy in the primitive's own layout; 0 without one. */
static int64_t staged_bytes_of(const conv_phase *phase)
{
    return phase->reorder != NULL
               ? lgi_cpu_round_up((int64_t)dnnl_memory_desc_get_size(&phase->weights), ALIGNMENT)
               : 0;
}

static lg_status create_width(conv_layer *conv, const conv_problem *problem,
                              const lgi_layer_spec *spec, int width_idx)
{
    const bool wants_input_grad = spec->mode == LG_GRAPH_TRAIN && spec->needs_input_grad;
    dnnl_primitive_desc_t hint = NULL;
    lg_status status = LG_OK;
    LG_TRY(create_hint(&hint, problem));
    for (int phase = 0; phase <= (wants_input_grad ? LGI_PHASE_INPUT_GRAD : LGI_PHASE_FORWARD);
         phase++) {
        conv_phase *created = &conv->phases[phase][width_idx];
        LG_TRY_GOTO(create_phase(created, problem, (lgi_phase)phase,
                                 problem->layer->widths[width_idx], hint));
        conv->scratch_bytes[phase][width_idx] = scratch_bytes_of(created);
        conv->staged_bytes[phase] = max_of(conv->staged_bytes[phase], staged_bytes_of(created));
    }
out:
    (void)dnnl_primitive_desc_destroy(hint);
    return status;
}

/* WEIGHT_GRAD of a slice of `num_samples`, by one thread. */
static lg_status create_slice(conv_phase *out, const conv_problem *whole, int64_t num_samples)
{
    conv_problem problem = *whole;
    dnnl_primitive_desc_t hint = NULL;
    LG_TRY(set_images(&problem, num_samples, whole->is_channels_last));
    LG_TRY(create_hint(&hint, &problem));
    const lg_status status = create_phase(out, &problem, LGI_PHASE_WEIGHT_GRAD, 1, hint);
    (void)dnnl_primitive_desc_destroy(hint);
    return status;
}

static lg_status create_slices(conv_layer *conv, const conv_problem *problem)
{
    const lgi_cpu_layer *layer = problem->layer;
    conv_slices *slices = &conv->slices;
    const int64_t fitting = MAX_SLICES_BYTES / max_of(conv->weights_bytes, 1);
    const int64_t worthwhile =
        layer->num_samples * lgi_cpu_map_elems(&layer->out_shape) / MIN_SLICE_CELLS;
    int64_t num = layer->device->num_cores;
    num = num < layer->num_samples ? num : layer->num_samples;
    num = num < fitting ? num : max_of(fitting, 1);
    num = num < worthwhile ? num : max_of(worthwhile, 1);
    slices->num = (int)num;
    slices->num_small_samples = layer->num_samples / num;
    slices->num_large = (int)(layer->num_samples % num);
    LG_TRY(create_slice(&slices->small, problem, slices->num_small_samples));
    slices->scratch_bytes = scratch_bytes_of(&slices->small);
    slices->staged_bytes = staged_bytes_of(&slices->small);
    if (slices->num_large > 0) {
        LG_TRY(create_slice(&slices->large, problem, slices->num_small_samples + 1));
        slices->scratch_bytes = max_of(slices->scratch_bytes, scratch_bytes_of(&slices->large));
        slices->staged_bytes = max_of(slices->staged_bytes, staged_bytes_of(&slices->large));
    }
    slices->bias_bytes =
        conv->has_bias
            ? lgi_cpu_round_up(layer->attrs->num_outputs * (int64_t)sizeof(float), ALIGNMENT)
            : 0;
    return LG_OK;
}

/* Workspace of one slice; see the top of the file. */
static int64_t slice_bytes(const conv_layer *conv)
{
    const conv_slices *slices = &conv->slices;
    return slices->scratch_bytes + slices->staged_bytes +
           lgi_cpu_round_up(conv->weights_bytes, ALIGNMENT) + slices->bias_bytes;
}

static void set_workspaces(const conv_layer *conv, lgi_layer_facts *facts)
{
    for (int w = 0; w < conv->base.num_widths; w++) {
        for (int phase = 0; phase < LGI_PHASE_WEIGHT_GRAD; phase++) {
            facts->phases[phase].workspace_bytes[w] =
                conv->scratch_bytes[phase][w] + conv->staged_bytes[phase];
        }
        facts->phases[LGI_PHASE_WEIGHT_GRAD].workspace_bytes[w] =
            conv->has_own_weight_grad ? lgi_cpu_depthwise_workspace_bytes(&conv->base)
                                      : conv->slices.num * slice_bytes(conv);
    }
}

static lg_status prepare_primitives(conv_layer *conv, const lgi_layer_spec *spec,
                                    lgi_layer_facts *facts)
{
    conv_problem problem;
    memset(&problem, 0, sizeof problem);
    LG_TRY(fill_problem(&problem, &conv->base, spec));
    LG_TRY(choose_images(&problem, spec, facts));
    LG_TRY(choose_weights(conv, &problem, spec, facts));
    LG_TRY(choose_weight_grad(conv, &problem, spec, facts));
    for (int w = 0; w < conv->base.num_widths; w++) {
        (void)lgi_cpu_set_threads(conv->base.widths[w]);
        LG_TRY(create_width(conv, &problem, spec, w));
    }
    if (spec->mode == LG_GRAPH_TRAIN && !conv->has_own_weight_grad) {
        (void)lgi_cpu_set_threads(1);
        LG_TRY(create_slices(conv, &problem));
    }
    set_workspaces(conv, facts);
    return LG_OK;
}

static bool is_dense_1x1(const lg_layer_attrs *attrs)
{
    const lg_window *window = &attrs->window;
    bool is_dense = attrs->groups == 1;
    for (int axis = 0; axis < 2; axis++) {
        is_dense = is_dense && window->kernel[axis] == 1 && window->stride[axis] == 1 &&
                   window->pad_begin[axis] == 0 && window->pad_end[axis] == 0;
    }
    return is_dense;
}

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    conv_layer *conv = (conv_layer *)layer;
    conv->has_bias = layer->attrs->has_bias;
    conv->is_matmul = is_dense_1x1(layer->attrs) && (spec->param_fixed[0].bytes == 0 ||
                                                     spec->param_fixed[0].id == LGI_CPU_ROW_MAJOR);
    if (conv->is_matmul) {
        lgi_cpu_want_channels_last(facts, spec, 0);
        facts->out.id = lgi_cpu_channels_last(&layer->out_shape);
        return lgi_cpu_matmul_prepare(&conv->matmul, layer, spec,
                                      layer->num_samples * lgi_cpu_map_elems(&layer->in_shape),
                                      layer->in_shape.dims[0], layer->attrs->num_outputs, facts);
    }
    const int before = lgi_cpu_set_threads(layer->widths[0]);
    const lg_status status = prepare_primitives(conv, spec, facts);
    (void)lgi_cpu_set_threads(before);
    return status;
}

static void release_phase(const conv_phase *phase)
{
    lgi_cpu_primitive_destroy(phase->primitive);
    lgi_cpu_primitive_destroy(phase->reorder);
}

static void release(lgi_cpu_layer *layer)
{
    conv_layer *conv = (conv_layer *)layer;
    lgi_cpu_matmul_release(&conv->matmul);
    for (int phase = 0; phase < LGI_PHASE_WEIGHT_GRAD; phase++) {
        for (int w = 0; w < LG_MAX_WIDTHS; w++) {
            release_phase(&conv->phases[phase][w]);
        }
    }
    release_phase(&conv->slices.large);
    release_phase(&conv->slices.small);
}

/* --- running ------------------------------------------------------------------------------------------------------- */

static void *staged_at(const conv_layer *conv, lgi_phase phase, int width_idx, void *workspace)
{
    return (char *)workspace + conv->scratch_bytes[phase][width_idx];
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const conv_layer *conv = (const conv_layer *)layer;
    const conv_phase *phase = &conv->phases[LGI_PHASE_FORWARD][width_idx];
    if (conv->is_matmul) {
        return lgi_cpu_matmul_forward(&conv->matmul, width_idx, io);
    }
    const void *weights = io->param[0];
    if (phase->reorder != NULL) {
        void *staged = staged_at(conv, LGI_PHASE_FORWARD, width_idx, io->workspace);
        const void *const pair[] = {weights, staged};
        LG_TRY(lgi_cpu_primitive_run(phase->reorder, pair, NULL));
        weights = staged;
    }
    const void *const pointers[] = {io->x[0], weights, io->y, io->param[1]};
    return lgi_cpu_primitive_run(phase->primitive, pointers, io->workspace);
}

static lg_status run_input_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const conv_layer *conv = (const conv_layer *)layer;
    if (conv->is_matmul) {
        return lgi_cpu_matmul_input_grad(&conv->matmul, width_idx, io);
    }
    const void *const pointers[] = {io->dy, io->param[0], io->dx[0]};
    return lgi_cpu_primitive_run(conv->phases[LGI_PHASE_INPUT_GRAD][width_idx].primitive, pointers,
                                 io->workspace);
}

/* Where a slice leaves its gradients, and what else it needs. */
typedef struct slice_memory {
    void *scratch;
    void *staged;
    float *weights;
    float *bias;
} slice_memory;

static slice_memory slice_at(const conv_layer *conv, int slice, void *workspace)
{
    const conv_slices *slices = &conv->slices;
    char *base = (char *)workspace + slice * slice_bytes(conv);
    char *weights = base + slices->scratch_bytes + slices->staged_bytes;
    const slice_memory memory = {
        base, base + slices->scratch_bytes, (float *)(void *)weights,
        (float *)(void *)(weights + lgi_cpu_round_up(conv->weights_bytes, ALIGNMENT))};
    return memory;
}

/* Whether a gradient is wanted and set, so that slice 0 can leave its own there. */
static bool is_set(const lgi_layer_io *io, int param)
{
    return io->dparam[param] != NULL && !io->accumulates_param[param];
}

static lg_status run_slice(const conv_layer *conv, int slice, const lgi_layer_io *io)
{
    const conv_slices *slices = &conv->slices;
    const conv_phase *phase = slice < slices->num_large ? &slices->large : &slices->small;
    const int64_t first =
        slice * slices->num_small_samples + (slice < slices->num_large ? slice : slices->num_large);
    const slice_memory memory = slice_at(conv, slice, io->workspace);
    const float *x = (const float *)io->x[0] + first * lg_shape_num_elems(&conv->base.in_shape);
    const float *dy = (const float *)io->dy + first * lg_shape_num_elems(&conv->base.out_shape);
    void *weights = slice == 0 && is_set(io, 0) ? io->dparam[0] : memory.weights;
    void *bias = slice == 0 && is_set(io, 1) ? io->dparam[1] : memory.bias;
    void *raw = phase->reorder != NULL ? memory.staged : weights;
    const void *const pointers[] = {x, dy, raw, bias};
    LG_TRY(lgi_cpu_primitive_run(phase->primitive, pointers, memory.scratch));
    if (phase->reorder != NULL) {
        const void *const pair[] = {raw, weights};
        LG_TRY(lgi_cpu_primitive_run(phase->reorder, pair, NULL));
    }
    return LG_OK;
}

static void add_to(float *restrict dst, const float *restrict src, int64_t num_elems)
{
    LGI_CPU_SIMD
    for (int64_t i = 0; i < num_elems; i++) {
        dst[i] += src[i];
    }
}

/* At most LGI_CPU_PIECE_ELEMS elements of a gradient from the slices, `stride` floats apart, added in their order. */
static void store_piece(float *dst, const float *slices, int num_slices, int64_t stride,
                        int64_t count, bool accumulates)
{
    float sums[LGI_CPU_PIECE_ELEMS];
    float *sum = accumulates ? sums : dst; /* which has slice 0 already */
    if (accumulates) {
        memcpy(sums, slices, (size_t)count * sizeof *sums);
    }
    for (int slice = 1; slice < num_slices; slice++) {
        add_to(sum, slices + slice * stride, count);
    }
    if (accumulates) {
        add_to(dst, sums, count);
    }
}

static void store_sums(const conv_layer *conv, int width, float *dst, const float *slices,
                       int64_t num_elems, bool accumulates)
{
    const int num = conv->slices.num;
    const int64_t stride = slice_bytes(conv) / (int64_t)sizeof(float);
    if (num == 1 && !accumulates) {
        return;
    }
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(width, num * num_elems))
    for (int64_t first = 0; first < num_elems; first += LGI_CPU_PIECE_ELEMS) {
        const int64_t left = num_elems - first;
        store_piece(dst + first, slices + first, num, stride,
                    left < LGI_CPU_PIECE_ELEMS ? left : LGI_CPU_PIECE_ELEMS, accumulates);
    }
}

static lg_status run_slices(const conv_layer *conv, int width, const lgi_layer_io *io)
{
    lg_status status = LG_OK;
    LGI_CPU_PARALLEL_FOR(conv->slices.num > 1 ? width : 1)
    for (int slice = 0; slice < conv->slices.num; slice++) {
        const lg_status slice_status = run_slice(conv, slice, io);
        if (slice_status != LG_OK) {
            LGI_CPU_PRAGMA(omp atomic write)
            status = slice_status;
        }
    }
    if (status != LG_OK) { /* the message may have been another thread's */
        LG_FAIL(status, "layer '%s': oneDNN could not compute the weight gradient",
                conv->base.name);
    }
    return LG_OK;
}

static lg_status run_weight_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const conv_layer *conv = (const conv_layer *)layer;
    const int width = layer->widths[width_idx];
    if (conv->is_matmul) {
        return lgi_cpu_matmul_weight_grad(&conv->matmul, width, io, layer->name);
    }
    if (conv->has_own_weight_grad) {
        lgi_cpu_depthwise_weight_grad(layer, width, io);
        return LG_OK;
    }
    LG_TRY(run_slices(conv, width, io));
    const slice_memory first = slice_at(conv, 0, io->workspace);
    if (io->dparam[0] != NULL) {
        store_sums(conv, width, io->dparam[0], first.weights,
                   conv->weights_bytes / (int64_t)sizeof(float), io->accumulates_param[0]);
    }
    if (conv->has_bias && io->dparam[1] != NULL) {
        store_sums(conv, width, io->dparam[1], first.bias, layer->attrs->num_outputs,
                   io->accumulates_param[1]);
    }
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_conv = {
    .layer_bytes = sizeof(conv_layer),
    .prepare = prepare,
    .run = {run_forward, run_input_grad, run_weight_grad},
    .release = release,
};
