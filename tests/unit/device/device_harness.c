#include "unit/device/device_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define DATA_SEED 20240229
#define NUM_STEP_SAMPLES 11 /* makes the loss scale something else than the micro-batch's own */

const int device_widths[DEVICE_NUM_WIDTHS] = {1, 2};

/* Fails the running test, naming the case, if a call into the library failed. */
#define MUST(session, expr) \
    do { \
        if ((expr) != LG_OK) { \
            fail_msg("%s on %s: %s: %s", (session)->c->name, (session)->ops->name, #expr, \
                     lg_last_error()); \
        } \
    } while (0)

static void *must_calloc(int64_t count, size_t item_bytes)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, item_bytes);
    assert_non_null(memory);
    return memory;
}

/* --- data -------------------------------------------------------------------------------------------------------- */

/* A stream per tensor, so that no two tensors of a case are alike. */
typedef enum tensor_key {
    KEY_INPUT = 0,
    KEY_DY = 10,
    KEY_PARAM = 20,
    KEY_DPARAM = 30,
    KEY_STATE = 40
} tensor_key;

static lgi_random case_stream(const device_case *c, int key)
{
    uint64_t hash = 1469598103934665603u;
    for (const char *p = c->name; *p != 0; p++) {
        hash = (hash ^ (uint64_t)(unsigned char)*p) * 1099511628211u;
    }
    return lgi_random_stream(DATA_SEED, LGI_RANDOM_INIT, hash, (uint64_t)key, 0);
}

static float *random_reals(const device_case *c, int key, int64_t num_elems, float mean,
                           float deviation)
{
    const lgi_random random = case_stream(c, key);
    float *data = must_calloc(num_elems, sizeof *data);
    for (int64_t i = 0; i < num_elems; i++) {
        data[i] = mean + deviation * lgi_random_normal(&random, (uint64_t)i);
    }
    return data;
}

static int32_t random_i32(const device_case *c, const lgi_random *random, int64_t i)
{
    const uint64_t draw = (uint64_t)(2 * i);
    if (c->kind == LG_LAYER_TOKEN_EMBEDDING) {
        return (int32_t)lgi_random_below(random, draw, (uint64_t)c->attrs.num_embeddings);
    }
    if (c->kind == LG_LAYER_ATTENTION) {
        return lgi_random_below(random, draw, 3) != 0 ? 7 : 0; /* not 0 is what counts */
    }
    const lg_shape *logits = &c->in_shapes[0];
    if (c->has_ignored_targets && lgi_random_below(random, draw + 1, 4) == 0) {
        return c->attrs.ignore_index;
    }
    return (int32_t)lgi_random_below(random, draw, (uint64_t)logits->dims[logits->num_dims - 1]);
}

static void *random_input(const device_case *c, int input)
{
    const int64_t sample_elems = lg_shape_num_elems(&c->in_shapes[input]);
    const int64_t num_elems = (c->first_sample + c->num_samples) * sample_elems;
    const bool is_mask = c->kind == LG_LAYER_ATTENTION && input == 1;
    const lgi_random random = case_stream(c, KEY_INPUT + input);
    if (!is_mask && c->in_dtypes[input] == LG_DTYPE_F32) {
        const float scale = c->input_scale != 0.0f ? c->input_scale : 1.0f;
        return random_reals(c, KEY_INPUT + input, num_elems, 0.25f, scale);
    }
    int32_t *data = must_calloc(num_elems, sizeof *data);
    for (int64_t i = 0; i < num_elems; i++) {
        data[i] = random_i32(c, &random, i);
        if (is_mask && c->is_sample0_all_padding && i < sample_elems) {
            data[i] = 0;
        }
    }
    if (c->in_dtypes[input] == LG_DTYPE_F32) { /* a mask of reals, made in place */
        for (int64_t i = 0; i < num_elems; i++) {
            const float keep = data[i] != 0 ? 1.0f : 0.0f;
            memcpy(&data[i], &keep, sizeof keep);
        }
    }
    return data;
}

static void make_data(device_session *session)
{
    const device_case *c = session->c;
    device_data *data = &session->data;
    for (int i = 0; i < c->num_inputs; i++) {
        data->inputs[i] = random_input(c, i);
        session->batch[i] = data->inputs[i];
    }
    data->dy = random_reals(c, KEY_DY, lg_shape_num_elems(&session->out_shape), 0.1f, 1.0f);
    for (int p = 0; p < session->info->num_params; p++) {
        const bool is_scale =
            p == 0 && (c->kind == LG_LAYER_BATCH_NORM || c->kind == LG_LAYER_LAYER_NORM);
        const int64_t num_elems = lg_shape_num_elems(&session->param_shapes[p]);
        data->params[p] = random_reals(c, KEY_PARAM + p, num_elems, is_scale ? 1.0f : 0.0f, 0.5f);
        data->dparams[p] = random_reals(c, KEY_DPARAM + p, num_elems, 0.0f, 1.0f);
    }
    for (int s = 0; s < session->info->num_states; s++) {
        const int64_t num_elems = c->in_shapes[0].dims[0];
        data->states[s] = random_reals(c, KEY_STATE + s, num_elems, 0.0f, 0.5f);
        for (int64_t i = 0; i < num_elems && s == 1; i++) { /* a variance */
            data->states[s][i] = 0.5f + data->states[s][i] * data->states[s][i];
        }
    }
}

/* --- preparing ------------------------------------------------------------------------------------------------------ */

static lg_shape with_batch(const lg_shape *shape, int64_t num_samples)
{
    lg_shape result = *shape;
    memmove(result.dims + 1, result.dims, sizeof result.dims - sizeof result.dims[0]);
    result.dims[0] = num_samples;
    result.num_dims++;
    return result;
}

static void *alloc_block(device_session *session, int64_t bytes)
{
    void *memory = NULL;
    assert_true(session->num_blocks < DEVICE_MAX_BLOCKS);
    MUST(session, session->ops->alloc(session->device, &memory, bytes));
    session->blocks[session->num_blocks].memory = memory;
    session->blocks[session->num_blocks].bytes = bytes;
    session->num_blocks++;
    return memory;
}

static void write_block(device_session *session, const lg_shape *shape, int layout, void *stored,
                        const float *host)
{
    MUST(session, session->ops->write(session->device, shape, layout, stored, host));
}

/* NaN everywhere: what is not overwritten shows. */
static void poison(device_session *session, const lg_shape *shape, int layout, void *stored)
{
    const int64_t num_elems = lg_shape_num_elems(shape);
    float *host = must_calloc(num_elems, sizeof *host);
    for (int64_t i = 0; i < num_elems; i++) {
        host[i] = NAN;
    }
    write_block(session, shape, layout, stored, host);
    free(host);
}

static void reorder(device_session *session, const lg_shape *shape, int from, int to, void *dst,
                    const void *src)
{
    lgi_device_reorder *copy = NULL;
    MUST(session, session->ops->reorder_create(session->device, shape, from, to, DEVICE_NUM_WIDTHS,
                                               device_widths, &copy));
    MUST(session, session->ops->reorder_run(copy, session->options.width_idx, dst, src));
    session->ops->reorder_destroy(copy);
}

static void make_model(device_session *session)
{
    const device_case *c = session->c;
    int inputs[DEVICE_CASE_MAX_INPUTS] = {0};
    MUST(session, lg_model_create(&session->model));
    for (int i = 0; i < c->num_inputs; i++) {
        char name[16];
        lg_layer_attrs attrs = lg_layer_attrs_default();
        attrs.input_idx = i;
        attrs.input_dtype = c->in_dtypes[i];
        attrs.input_shape = c->in_shapes[i];
        (void)snprintf(name, sizeof name, "input%d", i);
        MUST(session,
             lg_model_add(session->model, name, LG_LAYER_INPUT, &attrs, NULL, 0, &inputs[i]));
    }
    int layer = inputs[0];
    if (c->kind != LG_LAYER_INPUT) {
        MUST(session, lg_model_add(session->model, "layer", c->kind, &c->attrs, inputs,
                                   c->num_inputs, &layer));
    }
    session->info = lg_model_layer(session->model, layer);
    for (int i = 0; i < c->num_inputs; i++) {
        session->in_shapes[i] = with_batch(&c->in_shapes[i], c->num_samples);
    }
    session->out_shape = with_batch(&session->info->out_shape, c->num_samples);
    for (int p = 0; p < session->info->num_params; p++) {
        session->param_shapes[p] = lg_model_param(session->model, session->info->params[p])->shape;
    }
}

/* The layout in which a convolution with as many outputs as inputs leaves a map of input `input`. */
static lgi_layout conv_layout(device_session *session, int input)
{
    const device_case *c = session->c;
    const lg_shape *shape = &c->in_shapes[input];
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    lgi_device_layer *layer = NULL;
    lgi_layer_facts facts;
    const int producer = 0;
    MUST(session, lg_model_create(&model));
    attrs.input_shape = *shape;
    MUST(session, lg_model_add(model, "input", LG_LAYER_INPUT, &attrs, NULL, 0, NULL));
    attrs.num_outputs = shape->dims[0];
    attrs.window = lg_window_square(3, 1, 1);
    MUST(session, lg_model_add(model, "conv", LG_LAYER_CONV2D, &attrs, &producer, 1, NULL));
    const lg_layer_info *info = lg_model_layer(model, 1);
    const lg_dtype dtype = LG_DTYPE_F32;
    const lgi_layout plain = {0, lg_shape_num_elems(&session->in_shapes[input]) *
                                     (int64_t)session->ops->real_bytes};
    const lg_shape param_shapes[LG_MAX_LAYER_PARAMS] = {
        lg_model_param(model, info->params[0])->shape,
        lg_model_param(model, info->params[1])->shape};
    const lgi_layout param_fixed[LG_MAX_LAYER_PARAMS] = {{0, 0}, {0, 0}};
    const lgi_layer_spec spec = {.layer = info,
                                 .mode = c->mode,
                                 .num_samples = c->num_samples,
                                 .in_shapes = shape,
                                 .in_dtypes = &dtype,
                                 .in_layouts = &plain,
                                 .needs_input_grad = true,
                                 .param_shapes = param_shapes,
                                 .param_fixed = param_fixed,
                                 .num_widths = DEVICE_NUM_WIDTHS,
                                 .widths = device_widths};
    MUST(session, session->ops->layer_create(session->device, &spec, &facts, &layer));
    session->ops->layer_destroy(layer);
    lg_model_destroy(model);
    return facts.out;
}

/* The layers that copy the batch in: whatever they leave their results in is where reorders start from. */
static void prepare_inputs(device_session *session)
{
    const device_case *c = session->c;
    for (int i = 0; i < c->num_inputs && c->kind != LG_LAYER_INPUT; i++) {
        const lgi_layer_spec spec = {.layer = lg_model_layer(session->model, i),
                                     .mode = c->mode,
                                     .num_samples = c->num_samples,
                                     .num_widths = DEVICE_NUM_WIDTHS,
                                     .widths = device_widths};
        MUST(session, session->ops->layer_create(session->device, &spec, &session->input_facts[i],
                                                 &session->input_layers[i]));
    }
}

/* Where parameters lie already: row-major (tied), or as the layer would have them at another micro-batch size. */
static void fix_params(device_session *session, const lgi_layer_spec *spec, lgi_layout *fixed)
{
    if (session->c->has_fixed_params) {
        for (int p = 0; p < session->info->num_params; p++) {
            fixed[p].bytes =
                lg_shape_num_elems(&session->param_shapes[p]) * (int64_t)session->ops->real_bytes;
        }
    } else if (session->options.has_params_of_other_size) {
        lgi_layer_spec other = *spec;
        lgi_layer_facts facts;
        lgi_device_layer *layer = NULL;
        other.num_samples = 2 * spec->num_samples + 1;
        MUST(session, session->ops->layer_create(session->device, &other, &facts, &layer));
        session->ops->layer_destroy(layer);
        memcpy(fixed, facts.param, sizeof facts.param);
    }
}

static void prepare_layer(device_session *session)
{
    const device_case *c = session->c;
    lgi_layout in_layouts[DEVICE_CASE_MAX_INPUTS];
    const lgi_layout free_to_choose[LG_MAX_LAYER_PARAMS] = {{0, 0}, {0, 0}};
    lgi_layout fixed[LG_MAX_LAYER_PARAMS] = {{0, 0}, {0, 0}};
    for (int i = 0; i < c->num_inputs; i++) {
        const bool is_map = c->in_shapes[i].num_dims == 3 && c->in_dtypes[i] == LG_DTYPE_F32;
        in_layouts[i] = session->options.has_conv_layouts && is_map ? conv_layout(session, i)
                                                                    : session->input_facts[i].out;
    }
    lgi_layer_spec spec = {.layer = session->info,
                           .mode = c->mode,
                           .num_samples = c->num_samples,
                           .in_shapes = c->in_shapes,
                           .in_dtypes = c->in_dtypes,
                           .in_layouts = in_layouts,
                           .needs_input_grad = !c->is_first_layer,
                           .param_shapes = session->param_shapes,
                           .param_fixed = free_to_choose,
                           .random_key = 77,
                           .num_widths = DEVICE_NUM_WIDTHS,
                           .widths = device_widths};
    fix_params(session, &spec, fixed);
    spec.param_fixed = fixed;
    MUST(session,
         session->ops->layer_create(session->device, &spec, &session->facts, &session->layer));
    for (int p = 0; p < session->info->num_params; p++) {
        if (fixed[p].bytes > 0 && (session->facts.param[p].id != fixed[p].id ||
                                   session->facts.param[p].bytes != fixed[p].bytes)) {
            fail_msg("%s on %s: parameter %d is not left as it is stored", c->name,
                     session->ops->name, p);
        }
    }
}

/* Input `input` of the micro-batch in the layout that the layer wants, into `dst`. */
static void fill_input(device_session *session, int input, void *dst)
{
    const lgi_layout *from = &session->input_facts[input].out;
    const lgi_layout *to = &session->facts.in[input];
    const bool is_same = from->id == to->id;
    void *copy = is_same ? dst : alloc_block(session, from->bytes);
    const lgi_layer_io io = {
        .y = copy, .step = &session->step, .first_sample = session->c->first_sample};
    MUST(session, session->ops->run(session->input_layers[input], LGI_PHASE_FORWARD,
                                    session->options.width_idx, &io));
    if (!is_same) {
        reorder(session, &session->in_shapes[input], from->id, to->id, dst, copy);
    }
}

static bool is_loss(const device_session *session)
{
    return session->c->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY;
}

static bool wants_dx(const device_session *session, int input)
{
    return session->c->mode == LG_GRAPH_TRAIN && !session->c->is_first_layer &&
           session->facts.has_differentiable_input[input > 0 ? 1 : 0] &&
           session->c->in_dtypes[input] == LG_DTYPE_F32;
}

static void fill_operands(device_session *session)
{
    const device_case *c = session->c;
    const lgi_layer_facts *facts = &session->facts;
    for (int i = 0; i < c->num_inputs && c->kind != LG_LAYER_INPUT; i++) {
        session->x[i] = alloc_block(session, facts->in[i].bytes);
        fill_input(session, i, session->x[i]);
        if (wants_dx(session, i)) {
            session->dx[i] = alloc_block(session, facts->in[i].bytes);
        }
    }
    if (!is_loss(session)) {
        session->y = alloc_block(session, facts->out.bytes);
        session->dy = alloc_block(session, facts->out.bytes);
    }
    for (int p = 0; p < session->info->num_params; p++) {
        session->param[p] = alloc_block(session, facts->param[p].bytes);
        session->dparam[p] = alloc_block(session, facts->param[p].bytes);
        write_block(session, &session->param_shapes[p], facts->param[p].id, session->param[p],
                    session->data.params[p]);
    }
    for (int s = 0; s < facts->num_stashes; s++) {
        session->stash[s] = alloc_block(session, facts->stash_bytes[s]);
    }
    for (int s = 0; s < session->info->num_states; s++) {
        const lg_shape shape = LG_SHAPE(c->in_shapes[0].dims[0]);
        session->state[s] = alloc_block(session, shape.dims[0] * (int64_t)session->ops->real_bytes);
        write_block(session, &shape, 0, session->state[s], session->data.states[s]);
    }
}

void device_session_create(device_session *session, const device_case *c,
                           const struct lgi_device_ops *ops, const device_options *options)
{
    memset(session, 0, sizeof *session);
    session->c = c;
    session->ops = ops;
    session->options = *options;
    session->step.number = 5;
    session->step.seed = 1234567890123u;
    session->step.loss_scale = 1.0 / NUM_STEP_SAMPLES;
    session->step.inputs = session->batch;
    MUST(session, ops->open(&session->device, device_widths[DEVICE_NUM_WIDTHS - 1]));
    make_model(session);
    make_data(session);
    prepare_inputs(session);
    prepare_layer(session);
    fill_operands(session);
}

void device_session_destroy(device_session *session)
{
    for (int i = 0; i < session->num_blocks; i++) {
        session->ops->free(session->device, session->blocks[i].memory, session->blocks[i].bytes);
    }
    for (int i = 0; i < DEVICE_CASE_MAX_INPUTS; i++) {
        if (session->input_layers[i] != NULL) {
            session->ops->layer_destroy(session->input_layers[i]);
        }
        free(session->data.inputs[i]);
    }
    for (int p = 0; p < LG_MAX_LAYER_PARAMS; p++) {
        free(session->data.params[p]);
        free(session->data.dparams[p]);
    }
    for (int s = 0; s < LG_MAX_LAYER_STATES; s++) {
        free(session->data.states[s]);
    }
    free(session->data.dy);
    session->ops->layer_destroy(session->layer);
    session->ops->close(session->device);
    lg_model_destroy(session->model);
}

/* --- running -------------------------------------------------------------------------------------------------------- */

static lgi_layer_io base_io(device_session *session)
{
    lgi_layer_io io;
    memset(&io, 0, sizeof io);
    io.first_sample = session->c->first_sample;
    io.step = &session->step;
    return io;
}

static void run_phase(device_session *session, lgi_phase phase, lgi_layer_io *io)
{
    const int64_t bytes = session->facts.phases[phase].workspace_bytes[session->options.width_idx];
    void *workspace = NULL;
    if (bytes > 0) {
        MUST(session, session->ops->alloc(session->device, &workspace, bytes));
        const lg_shape shape = LG_SHAPE(bytes / (int64_t)session->ops->real_bytes);
        poison(session, &shape, 0, workspace);
    }
    io->workspace = workspace;
    MUST(session, session->ops->run(session->layer, phase, session->options.width_idx, io));
    if (bytes > 0) {
        session->ops->free(session->device, workspace, bytes);
    }
}

void device_session_forward(device_session *session)
{
    const lgi_layer_facts *facts = &session->facts;
    const bool is_in_place = session->options.is_in_place;
    const void *x[DEVICE_CASE_MAX_INPUTS] = {session->x[0], session->x[1], session->x[2]};
    lgi_layer_io io = base_io(session);
    io.x = x;
    io.y = session->y;
    for (int p = 0; p < session->info->num_params; p++) {
        io.param[p] = session->param[p];
    }
    for (int s = 0; s < facts->num_stashes; s++) {
        io.stash[s] = session->stash[s];
    }
    for (int s = 0; s < session->info->num_states && session->c->mode != LG_GRAPH_TRAIN; s++) {
        io.state[s] = session->state[s];
    }
    if (is_loss(session)) {
        io.loss = &session->loss;
        io.dx = session->dx;
        if (session->dx[0] != NULL && is_in_place && facts->is_input_grad_in_place) {
            fill_input(session, 0, session->dx[0]);
            x[0] = session->dx[0];
        } else if (session->dx[0] != NULL) {
            poison(session, &session->in_shapes[0], facts->in[0].id, session->dx[0]);
        }
    } else if (facts->is_forward_view) {
        session->y = session->x[0];
        return;
    } else if (is_in_place && facts->is_forward_in_place) {
        fill_input(session, 0, session->y);
        x[0] = session->y;
    } else {
        poison(session, &session->out_shape, facts->out.id, session->y);
    }
    run_phase(session, LGI_PHASE_FORWARD, &io);
}

/* Operands of a gradient as the facts ask for them. */
static void set_grad_operands(device_session *session, lgi_phase phase, lgi_layer_io *io,
                              const void **x)
{
    const lgi_layer_facts *facts = &session->facts;
    const lgi_phase_facts *phase_facts = &facts->phases[phase];
    for (int i = 0; i < session->c->num_inputs; i++) {
        x[i] = (phase_facts->reads_inputs >> i & 1) != 0 ? session->x[i] : NULL;
    }
    io->x = x;
    io->y = phase_facts->reads_output ? session->y : NULL;
    io->dy = session->dy;
    for (int s = 0; s < facts->num_stashes; s++) {
        io->stash[s] = (phase_facts->reads_stashes >> s & 1) != 0 ? session->stash[s] : NULL;
    }
    for (int p = 0; p < session->info->num_params; p++) {
        if ((phase_facts->reads_params >> p & 1) == 0) {
            continue;
        }
        io->param[p] = session->param[p];
        const int from = facts->param[p].id;
        const int to = facts->param_input_grad[p].id;
        if (phase == LGI_PHASE_INPUT_GRAD && from != to) {
            void *copy = alloc_block(session, facts->param_input_grad[p].bytes);
            reorder(session, &session->param_shapes[p], from, to, copy, session->param[p]);
            io->param[p] = copy;
        }
    }
}

static void set_dparams(device_session *session, lgi_layer_io *io)
{
    for (int p = 0; p < session->info->num_params; p++) {
        const int layout = session->facts.param[p].id;
        io->dparam[p] = session->dparam[p];
        io->accumulates_param[p] = session->c->accumulates;
        if (session->c->accumulates) {
            write_block(session, &session->param_shapes[p], layout, session->dparam[p],
                        session->data.dparams[p]);
        } else {
            poison(session, &session->param_shapes[p], layout, session->dparam[p]);
        }
    }
}

static void run_input_grad(device_session *session)
{
    const lgi_layer_facts *facts = &session->facts;
    const void *x[DEVICE_CASE_MAX_INPUTS];
    lgi_layer_io io = base_io(session);
    set_grad_operands(session, LGI_PHASE_INPUT_GRAD, &io, x);
    if (facts->is_joint) {
        set_dparams(session, &io);
    }
    for (int i = 0; i < session->c->num_inputs; i++) {
        if (facts->is_input_grad_shared && i > 0) {
            session->dx[i] = session->dx[0];
        } else if (session->dx[i] != NULL) {
            poison(session, &session->in_shapes[i], facts->in[i].id, session->dx[i]);
        }
    }
    io.dx = session->dx;
    if (session->options.is_in_place && facts->is_input_grad_in_place && session->dx[0] != NULL) {
        write_block(session, &session->out_shape, facts->out.id, session->dx[0], session->data.dy);
        io.dy = session->dx[0];
    }
    run_phase(session, LGI_PHASE_INPUT_GRAD, &io);
}

void device_session_backward(device_session *session)
{
    const lgi_layer_facts *facts = &session->facts;
    bool has_input_grad = false;
    for (int i = 0; i < session->c->num_inputs; i++) {
        has_input_grad = has_input_grad || session->dx[i] != NULL;
    }
    if (session->c->mode != LG_GRAPH_TRAIN || is_loss(session)) {
        return;
    }
    write_block(session, &session->out_shape, facts->out.id, session->dy, session->data.dy);
    if (facts->is_input_grad_view) {
        for (int i = 0; i < session->c->num_inputs; i++) {
            session->dx[i] = session->dy;
        }
    } else if (has_input_grad || facts->is_joint) {
        run_input_grad(session);
    }
    if (session->info->num_params > 0 && !facts->is_joint) {
        const void *x[DEVICE_CASE_MAX_INPUTS];
        lgi_layer_io io = base_io(session);
        set_grad_operands(session, LGI_PHASE_WEIGHT_GRAD, &io, x);
        set_dparams(session, &io);
        run_phase(session, LGI_PHASE_WEIGHT_GRAD, &io);
    }
}

/* --- results -------------------------------------------------------------------------------------------------------- */

static float *read_block(device_session *session, const lg_shape *shape, int layout,
                         const void *stored, int64_t *num_elems)
{
    *num_elems = lg_shape_num_elems(shape);
    float *host = must_calloc(*num_elems, sizeof *host);
    MUST(session, session->ops->read(session->device, shape, layout, stored, host));
    return host;
}

static void read_states(device_session *session, device_result *result)
{
    const device_case *c = session->c;
    const int stash = session->facts.stats_stash;
    const int64_t channels = c->in_shapes[0].dims[0];
    const lg_shape shape = LG_SHAPE(channels);
    if (stash < 0) {
        return;
    }
    session->ops->fold_statistics(session->device, session->state[0], session->state[1],
                                  session->stash[stash], channels,
                                  c->num_samples * lg_shape_num_elems(&c->in_shapes[0]) / channels,
                                  (double)c->attrs.momentum, (double)c->attrs.epsilon);
    for (int s = 0; s < session->info->num_states; s++) {
        result->state[s] = read_block(session, &shape, 0, session->state[s], &result->num_state);
    }
}

void device_case_run(device_result *result, const device_case *c, const struct lgi_device_ops *ops,
                     const device_options *options)
{
    device_session session;
    memset(result, 0, sizeof *result);
    device_session_create(&session, c, ops, options);
    const lgi_layer_facts *facts = &session.facts;
    device_session_forward(&session);
    if (session.y != NULL) {
        result->y =
            read_block(&session, &session.out_shape, facts->out.id, session.y, &result->num_y);
    }
    device_session_backward(&session);
    result->loss = session.loss;
    for (int i = 0; i < c->num_inputs; i++) {
        if (session.dx[i] != NULL) {
            result->dx[i] = read_block(&session, &session.in_shapes[i], facts->in[i].id,
                                       session.dx[i], &result->num_dx[i]);
        }
    }
    for (int p = 0; p < session.info->num_params && c->mode == LG_GRAPH_TRAIN; p++) {
        result->dparam[p] = read_block(&session, &session.param_shapes[p], facts->param[p].id,
                                       session.dparam[p], &result->num_dparam[p]);
    }
    read_states(&session, result);
    device_session_destroy(&session);
}

void device_result_destroy(device_result *result)
{
    free(result->y);
    for (int i = 0; i < DEVICE_CASE_MAX_INPUTS; i++) {
        free(result->dx[i]);
    }
    for (int p = 0; p < LG_MAX_LAYER_PARAMS; p++) {
        free(result->dparam[p]);
    }
    for (int s = 0; s < LG_MAX_LAYER_STATES; s++) {
        free(result->state[s]);
    }
}

/* The tensors of a result, in a fixed order, for loops over them. */
#define NUM_TENSORS (1 + DEVICE_CASE_MAX_INPUTS + LG_MAX_LAYER_PARAMS + LG_MAX_LAYER_STATES)

static const float *result_tensor(const device_result *result, int idx, int64_t *num_elems,
                                  const char **name)
{
    static const char *const names[NUM_TENSORS] = {
        "y", "dx0", "dx1", "dx2", "dparam0", "dparam1", "running mean", "running variance"};
    *name = names[idx];
    if (idx == 0) {
        *num_elems = result->num_y;
        return result->y;
    }
    idx -= 1;
    if (idx < DEVICE_CASE_MAX_INPUTS) {
        *num_elems = result->num_dx[idx];
        return result->dx[idx];
    }
    idx -= DEVICE_CASE_MAX_INPUTS;
    if (idx < LG_MAX_LAYER_PARAMS) {
        *num_elems = result->num_dparam[idx];
        return result->dparam[idx];
    }
    *num_elems = result->num_state;
    return result->state[idx - LG_MAX_LAYER_PARAMS];
}

/* Index of the element that differs most in units of `limit`, or -1 if none does by more than 1. */
static int64_t worst_element(const float *actual, const float *expected, int64_t num_elems,
                             double limit)
{
    int64_t worst = -1;
    double worst_error = limit;
    for (int64_t i = 0; i < num_elems; i++) {
        const double error = fabs((double)actual[i] - (double)expected[i]);
        if (!(error <= worst_error)) { /* NaN too */
            worst = i;
            worst_error = isnan(error) ? INFINITY : error;
        }
    }
    return worst;
}

static int compare_losses(const device_case *c, const char *label, const lgi_loss_record *actual,
                          const lgi_loss_record *expected, double tolerance)
{
    const double scale = fmax(1.0, fabs(expected->loss_sum));
    if (fabs(actual->loss_sum - expected->loss_sum) <= tolerance * scale &&
        fabs(actual->weight_sum - expected->weight_sum) <= tolerance * scale &&
        actual->num_correct == expected->num_correct &&
        actual->num_targets == expected->num_targets) {
        return 0;
    }
    print_error("%s on %s: loss %.9g of weight %.9g, %d of %d right; expected %.9g, %.9g, %d, %d\n",
                c->name, label, actual->loss_sum, actual->weight_sum, (int)actual->num_correct,
                (int)actual->num_targets, expected->loss_sum, expected->weight_sum,
                (int)expected->num_correct, (int)expected->num_targets);
    return 1;
}

int device_result_compare(const device_case *c, const char *label, const device_result *actual,
                          const device_result *expected, double tolerance)
{
    const double condition = c->condition != 0.0 ? c->condition : 1.0;
    int num_wrong = compare_losses(c, label, &actual->loss, &expected->loss, tolerance * condition);
    for (int t = 0; t < NUM_TENSORS; t++) {
        const char *name;
        int64_t num_actual;
        int64_t num_expected;
        const float *a = result_tensor(actual, t, &num_actual, &name);
        const float *e = result_tensor(expected, t, &num_expected, &name);
        if ((a == NULL) != (e == NULL) || (e != NULL && num_actual != num_expected)) {
            print_error("%s on %s: %s is missing or of another size\n", c->name, label, name);
            num_wrong++;
            continue;
        }
        double scale = 1.0;
        for (int64_t i = 0; i < num_expected && e != NULL; i++) {
            scale = fmax(scale, fabs((double)e[i]));
        }
        const double limit = tolerance * condition * scale;
        const int64_t worst = e != NULL ? worst_element(a, e, num_expected, limit) : -1;
        if (worst >= 0) {
            print_error("%s on %s: %s[%d] is %.9g, expected %.9g +- %.2g\n", c->name, label, name,
                        (int)worst, (double)a[worst], (double)e[worst], limit);
            num_wrong++;
        }
    }
    return num_wrong;
}

bool device_result_is_same(const device_result *a, const device_result *b)
{
    for (int t = 0; t < NUM_TENSORS; t++) {
        const char *name;
        int64_t num_a;
        int64_t num_b;
        const float *x = result_tensor(a, t, &num_a, &name);
        const float *y = result_tensor(b, t, &num_b, &name);
        if ((x == NULL) != (y == NULL) ||
            (x != NULL && (num_a != num_b || memcmp(x, y, (size_t)num_a * sizeof *x) != 0))) {
            return false;
        }
    }
    return memcmp(&a->loss, &b->loss, sizeof a->loss) == 0;
}
