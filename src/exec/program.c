#include "exec/program.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "exec/comm_lanes.h"
#include "exec/program_rate.h"

/* What messages bring in a rehearsal. */
#define RECEIVED_NUMBER 0.01

/* --- binding --------------------------------------------------------------------------------------------------------- */

void *lgi_program_value(const lgi_program *program, int value, int64_t step)
{
    const lg_placement *placement = &program->plan->values[value];
    const int slot = placement->num_slots == 2 ? (int)(step & 1) : 0;
    return program->arena + placement->offset_bytes[slot];
}

struct lgi_bound_op *lgi_program_op(const lgi_program *program, int op)
{
    assert(program->own_idx[op] >= 0);
    return &program->own_ops[program->own_idx[op]];
}

static lgi_phase phase_of(const lg_op_info *op)
{
    switch (op->kind) {
    case LG_OP_INPUT_GRAD:
        return LGI_PHASE_INPUT_GRAD;
    case LG_OP_WEIGHT_GRAD:
        return LGI_PHASE_WEIGHT_GRAD;
    default:
        return LGI_PHASE_FORWARD;
    }
}

static bool is_layer_op(lg_op_kind kind)
{
    return kind == LG_OP_FORWARD || kind == LG_OP_LOSS || kind == LG_OP_INPUT_GRAD ||
           kind == LG_OP_WEIGHT_GRAD;
}

/* Fills in the layer operands. `x` and `dx`: room for the layer's inputs. */
static void bind_io(lgi_layer_io *io, const lg_op_info *op, void *const *pointers, const void **x,
                    void **dx)
{
    io->x = x;
    io->dx = dx;
    for (int i = 0; i < op->num_operands; i++) {
        const lg_operand *operand = &op->operands[i];
        switch (operand->role) {
        case LG_ROLE_X:
            x[operand->idx] = pointers[i];
            break;
        case LG_ROLE_Y:
            io->y = pointers[i];
            break;
        case LG_ROLE_DY:
            io->dy = pointers[i];
            break;
        case LG_ROLE_DX:
            dx[operand->idx] = pointers[i];
            break;
        case LG_ROLE_PARAM:
            io->param[operand->idx] = pointers[i];
            break;
        case LG_ROLE_DPARAM:
            io->dparam[operand->idx] = pointers[i];
            io->accumulates_param[operand->idx] = operand->access == LG_ACCESS_READ_WRITE;
            break;
        case LG_ROLE_STASH:
            io->stash[operand->idx] = pointers[i];
            break;
        case LG_ROLE_STATE:
            io->state[operand->idx] = pointers[i];
            break;
        case LG_ROLE_LOSS:
            io->loss = pointers[i];
            break;
        default:
            break;
        }
    }
}

/* A bump allocator over the program's pool of pointers. */
static void **take_pointers(char **pool, int count)
{
    void **pointers = (void **)(void *)*pool;
    *pool += (size_t)count * sizeof(void *);
    return pointers;
}

static int num_inputs_of(const lgi_program *program, const lg_op_info *op)
{
    return op->layer >= 0 ? lg_model_layer(program->lowered->model, op->layer)->num_inputs : 0;
}

static lg_status bind_ops(lgi_program *program)
{
    const lg_graph *graph = program->lowered->graph;
    const int num_ops = lg_graph_num_ops(graph);
    size_t num_pointers = 0;
    int num_own = 0;
    for (int i = 0; i < num_ops; i++) {
        const lg_op_info *op = lg_graph_op(graph, i);
        program->own_idx[i] = -1;
        if (op->rank != program->rank) {
            continue;
        }
        program->own_idx[i] = num_own++;
        num_pointers += 2 * (size_t)(op->num_operands + 2 * num_inputs_of(program, op));
    }
    LG_TRY(lgi_calloc(&program->own_ops, (size_t)num_own, sizeof *program->own_ops));
    LG_TRY(lgi_calloc(&program->pool, num_pointers, sizeof(void *)));
    char *pool = program->pool;
    for (int i = 0; i < num_ops; i++) {
        const lg_op_info *op = lg_graph_op(graph, i);
        if (op->rank != program->rank) {
            continue;
        }
        struct lgi_bound_op *bound = lgi_program_op(program, i);
        bound->kind = op->kind;
        bound->phase = phase_of(op);
        bound->reorder = program->lowered->reorders[i];
        bound->layer = is_layer_op(op->kind) ? lgi_lowered_layer(program->lowered, i) : NULL;
        for (int slot = 0; slot < 2; slot++) {
            bound->pointers[slot] = take_pointers(&pool, op->num_operands);
            for (int k = 0; k < op->num_operands; k++) {
                bound->pointers[slot][k] = lgi_program_value(program, op->operands[k].value, slot);
            }
            const int num_inputs = num_inputs_of(program, op);
            const void **x = (const void **)take_pointers(&pool, num_inputs);
            void **dx = take_pointers(&pool, num_inputs);
            if (!is_layer_op(op->kind)) {
                continue;
            }
            lgi_layer_io *io = &bound->io[slot];
            bind_io(io, op, bound->pointers[slot], x, dx);
            io->workspace = program->plan->workspace_offset_bytes[i] >= 0
                                ? program->arena + program->plan->workspace_offset_bytes[i]
                                : NULL;
            io->first_sample = lg_graph_micro_batch_begin(graph, op->micro_batch);
            io->step = &program->inputs[slot].step;
        }
    }
    return LG_OK;
}

/* --- lanes and events ------------------------------------------------------------------------------------------------- */

/* Where each op runs. */
struct position {
    int lane;
    int lag;
    int first_sync; /* of the plan's, to this op; -1: none */
};

/* Of all ops; only while lanes are bound. */
struct positions {
    struct position *of_ops;
    int *next_sync; /* by sync: the next one to the same op; -1: none */
};

static lg_status add_wait(struct lgi_bound_lane *lane, int op, int distance)
{
    LG_TRY(lgi_grow(&lane->waits, &lane->waits_capacity, lane->num_waits + 1, sizeof *lane->waits));
    const lgi_wait wait = {op, distance};
    lane->waits[lane->num_waits++] = wait;
    return LG_OK;
}

/*
 * The events that an entry waits for: edges and syncs from other lanes of its rank; what its own lane runs before needs none,
 * and what comes from other ranks is waited for by meeting. An entry that runs while the lane is at step t belongs to step
 * t - lag; an edge of distance d needs the other op's step t - lag - d. A sync is about runs within lane step t - d, so there
 * the other op's own lag counts.
 */
static lg_status bind_waits(const lgi_program *program, const struct positions *positions,
                            struct lgi_bound_lane *lane, int op)
{
    const lg_graph *graph = program->lowered->graph;
    const lg_plan *plan = program->plan;
    const struct position *at = positions->of_ops;
    const lg_edge *edges = lg_graph_edges(graph);
    int low = 0; /* edges are sorted by `to` */
    int high = lg_graph_num_edges(graph);
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (edges[middle].to < op) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (int i = low; i < lg_graph_num_edges(graph) && edges[i].to == op; i++) {
        if (at[edges[i].from].lane != lane->lane &&
            lg_graph_op(graph, edges[i].from)->rank == program->rank) {
            LG_TRY(add_wait(lane, edges[i].from, at[op].lag + edges[i].distance));
        }
    }
    for (int i = at[op].first_sync; i >= 0; i = positions->next_sync[i]) {
        const lg_plan_sync *sync = &plan->syncs[i];
        if (at[sync->from].lane != lane->lane) {
            LG_TRY(add_wait(lane, sync->from, sync->distance + at[sync->from].lag));
        }
    }
    return LG_OK;
}

static lg_status bind_lane(const lgi_program *program, const struct positions *positions,
                           struct lgi_bound_lane *lane, int lane_idx)
{
    const lg_lane *from = &program->plan->lanes[lane_idx];
    lane->lane = lane_idx;
    lane->first_core = from->first_core;
    lane->num_cores = from->num_cores > 0 ? from->num_cores : 1;
    lane->num_entries = from->num_entries;
    lane->entries = from->entries;
    LG_TRY(lgi_calloc(&lane->first_wait, (size_t)from->num_entries + 1, sizeof(int)));
    for (int i = 0; i < from->num_entries; i++) {
        lane->first_wait[i] = (int)lane->num_waits;
        LG_TRY(bind_waits(program, positions, lane, from->entries[i].op));
    }
    lane->first_wait[from->num_entries] = (int)lane->num_waits;
    return LG_OK;
}

static int width_idx_of(const lg_graph *graph, int width)
{
    const lg_graph_opts *opts = lg_graph_options(graph);
    int idx = 0;
    for (int i = 0; i < opts->num_widths; i++) {
        idx = opts->widths[i] == width ? i : idx;
    }
    return idx;
}

/* Messages between two ranks are matched by their order alone, so one lane on each side must have all of a direction. */
static lg_status check_message_lanes(const lgi_program *program, const struct positions *positions)
{
    const lg_graph *graph = program->lowered->graph;
    const int num_ranks = lg_graph_num_ranks(graph);
    lg_status status = LG_OK;
    int *lane_of = NULL; /* direction * ranks + peer: 1 + its lane */
    LG_TRY(lgi_calloc(&lane_of, 2 * (size_t)num_ranks, sizeof *lane_of));
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *op = lg_graph_op(graph, i);
        if (op->rank != program->rank || (op->kind != LG_OP_SEND && op->kind != LG_OP_RECV)) {
            continue;
        }
        int *lane = &lane_of[(op->kind == LG_OP_SEND ? 0 : num_ranks) + op->peer];
        if (*lane != 0 && *lane != positions->of_ops[i].lane + 1) {
            status = lgi_fail(LG_NOT_SUPPORTED,
                              "plan: '%s' is in lane %d, but others between ranks %d and %d are in "
                              "lane %d: nothing keeps them in one order",
                              op->name, positions->of_ops[i].lane, op->rank, op->peer, *lane - 1);
            break;
        }
        *lane = positions->of_ops[i].lane + 1;
    }
    lgi_free(lane_of);
    return status;
}

/* Where all ops run, and what width those of the rank have. */
static lg_status find_positions(lgi_program *program, struct positions *out)
{
    const lg_graph *graph = program->lowered->graph;
    const lg_plan *plan = program->plan;
    LG_TRY(lgi_calloc(&out->of_ops, (size_t)lg_graph_num_ops(graph), sizeof *out->of_ops));
    LG_TRY(lgi_calloc(&out->next_sync, (size_t)plan->num_syncs, sizeof *out->next_sync));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        const lg_lane *info = &plan->lanes[lane];
        for (int i = 0; i < info->num_entries; i++) {
            const lg_plan_entry *entry = &info->entries[i];
            const struct position position = {lane, entry->lag, -1};
            out->of_ops[entry->op] = position;
            program->has_lag = program->has_lag || entry->lag > 0;
            if (info->rank == program->rank) {
                struct lgi_bound_op *bound = lgi_program_op(program, entry->op);
                bound->width = info->num_cores;
                bound->width_idx = width_idx_of(graph, info->num_cores);
            }
        }
    }
    for (int i = plan->num_syncs - 1; i >= 0; i--) { /* so that lists are in the plan's order */
        int *first = &out->of_ops[plan->syncs[i].to].first_sync;
        out->next_sync[i] = *first;
        *first = i;
    }
    return LG_OK;
}

static lg_status bind_lanes(lgi_program *program)
{
    const lg_plan *plan = program->plan;
    lg_status status = LG_OK;
    struct positions found = {NULL, NULL};
    const struct positions *positions = &found;
    LG_TRY_GOTO(find_positions(program, &found));
    LG_TRY_GOTO(check_message_lanes(program, positions));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        if (plan->lanes[lane].rank == program->rank) {
            const bool is_comm = plan->lanes[lane].kind == LG_LANE_COMM && !program->is_rehearsal;
            struct lgi_bound_lane *bound = is_comm ? &program->comm_lanes[program->num_comm_lanes++]
                                                   : &program->lanes[program->num_lanes++];
            LG_TRY_GOTO(bind_lane(program, positions, bound, lane));
        }
    }
    for (int lane = 0; lane < program->num_comm_lanes; lane++) {
        for (size_t i = 0; i < program->comm_lanes[lane].num_waits; i++) {
            lgi_program_op(program, program->comm_lanes[lane].waits[i].op)->wakes_comm = true;
        }
    }
out:
    lgi_free(found.of_ops);
    lgi_free(found.next_sync);
    return status;
}

static size_t num_lanes_of(const lg_plan *plan, int rank)
{
    size_t num = 0;
    for (int i = 0; i < plan->num_lanes; i++) {
        num += plan->lanes[i].rank == rank ? 1 : 0;
    }
    return num;
}

static void release_lanes(struct lgi_bound_lane *lanes, int num_lanes)
{
    for (int i = 0; lanes != NULL && i < num_lanes; i++) {
        lgi_free(lanes[i].first_wait);
        lgi_free(lanes[i].waits);
    }
    lgi_free(lanes);
}

static lg_status create(lgi_program **out, const lgi_lowered *lowered, const lg_plan *plan,
                        void *arena, bool is_rehearsal)
{
    const size_t num_ops = (size_t)lg_graph_num_ops(lowered->graph);
    lg_status status = LG_OK;
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    lgi_program *program = *out;
    program->lowered = lowered;
    program->plan = plan;
    program->arena = arena;
    program->rank = lowered->rank;
    program->is_rehearsal = is_rehearsal;
    LG_TRY_GOTO(lgi_calloc(&program->own_idx, num_ops, sizeof(int)));
    LG_TRY_GOTO(
        lgi_calloc(&program->lanes, num_lanes_of(plan, lowered->rank), sizeof *program->lanes));
    LG_TRY_GOTO(lgi_calloc(&program->comm_lanes, num_lanes_of(plan, lowered->rank),
                           sizeof *program->comm_lanes));
    LG_TRY_GOTO(lgi_calloc(&program->done, num_ops, sizeof *program->done));
    for (int slot = 0; slot < 2; slot++) {
        LG_TRY_GOTO(lgi_calloc(&program->weights[slot],
                               (size_t)lg_graph_num_micro_batches(lowered->graph), sizeof(double)));
    }
    LG_TRY_GOTO(bind_ops(program));
    LG_TRY_GOTO(bind_lanes(program));
out:
    if (status != LG_OK) {
        lgi_program_destroy(program);
        *out = NULL;
    }
    return status;
}

lg_status lgi_program_create(lgi_program **out, const lgi_lowered *lowered, const lg_plan *plan,
                             void *arena)
{
    return create(out, lowered, plan, arena, false);
}

lg_status lgi_program_create_rehearsal(lgi_program **out, const lgi_lowered *lowered,
                                       const lg_plan *plan, void *arena)
{
    return create(out, lowered, plan, arena, true);
}

void lgi_program_destroy(lgi_program *program)
{
    if (program == NULL) {
        return;
    }
    release_lanes(program->lanes, program->num_lanes);
    lgi_comm_lanes_destroy(program->comm_states);
    release_lanes(program->comm_lanes, program->num_comm_lanes);
    lgi_free(program->own_ops);
    lgi_free(program->own_idx);
    lgi_free(program->done);
    lgi_free(program->weights[0]);
    lgi_free(program->weights[1]);
    lgi_free(program->pool);
    lgi_free(program);
}

void lgi_program_set_input(lgi_program *program, const lgi_step_input *input)
{
    const int slot = (int)(input->step.number & 1);
    const lg_graph *graph = program->lowered->graph;
    const double num_samples = (double)lg_graph_options(graph)->num_samples;
    lgi_step_input *own = &program->inputs[slot];
    *own = *input;
    for (int i = 0; i < lg_graph_num_micro_batches(graph); i++) {
        program->weights[slot][i] =
            input->weights != NULL ? input->weights[i]
                                   : (double)lg_graph_micro_batch_samples(graph, i) / num_samples;
    }
    own->weights = program->weights[slot];
    own->full_scale = input->full_scale > 0.0 ? input->full_scale : 1.0;
    own->base_batch = input->base_batch > 0.0 ? input->base_batch : num_samples;
}

/* --- running one op --------------------------------------------------------------------------------------------------- */

/* The operand with this role and index; NULL if there is none. */
static void *operand_pointer(const lg_op_info *op, void *const *pointers, lg_role role, int idx)
{
    for (int i = 0; i < op->num_operands; i++) {
        if (op->operands[i].role == role && op->operands[i].idx == idx) {
            return pointers[i];
        }
    }
    return NULL;
}

/* The ratio of norms that LARS and LARC put before gradient and decay. */
static double trust_ratio(const lgi_lowered *lowered, const lgi_step_input *input, int width,
                          const lgi_update *update)
{
    const struct lgi_device_ops *ops = lowered->device->ops;
    const double weight_squares =
        ops->sum_squares(lowered->device, width, update->num_elems, update->param);
    const double grad_squares =
        ops->sum_squares(lowered->device, width, update->num_elems, update->grad);
    return lg_optim_trust_ratio(input->optim, update->lr, update->weight_decay,
                                sqrt(weight_squares), fabs(update->clip) * sqrt(grad_squares));
}

/* `rate`: NULL without statistics. */
static void run_param_update(const lgi_program *program, const lgi_step_input *input,
                             const lg_op_info *op, void *const *pointers, int width,
                             int param_operand, double clip, const lg_rate *rate)
{
    const lgi_lowered *lowered = program->lowered;
    const lg_operand *operand = &op->operands[param_operand];
    const lg_value_info *value = lg_graph_value(lowered->graph, operand->value);
    const lg_param_info *param = lg_model_param(lowered->model, value->idx);
    lg_optim_numbers numbers =
        lg_optim_step_numbers(input->optim, param, input->step.number, input->num_steps);
    if (rate != NULL) {
        numbers.lr = rate->lr;
        numbers.update_number = (int64_t)rate->update_number;
    } else {
        numbers.lr *= lg_optim_fixed_factor(input->optim, lgi_step_scale(program, input));
    }
    lgi_update update;
    memset(&update, 0, sizeof update);
    update.rule = numbers.rule == LG_OPTIM_ADAMW  ? LGI_UPDATE_ADAMW
                  : numbers.rule == LG_OPTIM_LAMB ? LGI_UPDATE_LAMB
                                                  : LGI_UPDATE_SGD;
    update.num_elems = value->bytes / (int64_t)lowered->device->ops->real_bytes;
    update.param = pointers[param_operand];
    update.grad = operand_pointer(op, pointers, LG_ROLE_DPARAM, operand->idx);
    for (int s = 0; s < LG_MAX_SLOTS; s++) {
        update.slots[s] =
            operand_pointer(op, pointers, LG_ROLE_SLOT, operand->idx * LG_MAX_SLOTS + s);
    }
    update.lr = numbers.lr;
    update.clip = clip;
    update.weight_decay = numbers.weight_decay;
    update.momentum = numbers.momentum;
    update.is_nesterov = numbers.is_nesterov;
    update.beta1 = numbers.beta1;
    update.beta2 = numbers.beta2;
    update.epsilon = numbers.epsilon;
    update.step_number = numbers.update_number;
    update.trust_ratio = 1.0;
    update.is_adapted = lg_optim_is_adapted(input->optim, param);
    if (update.is_adapted && update.rule == LGI_UPDATE_SGD) {
        update.trust_ratio = trust_ratio(lowered, input, width, &update);
    }
    if (numbers.rule == LG_OPTIM_LARS) { /* You et al.: the learning rate is inside the momentum */
        update.trust_ratio *= update.lr;
        update.lr = 1.0;
    }
    lowered->device->ops->update(lowered->device, width, &update);
}

/* Folds the statistics of all micro-batches, in their order, into the running ones. */
static void run_statistics(const lgi_program *program, const lg_op_info *op, void *const *pointers)
{
    const lgi_lowered *lowered = program->lowered;
    const lg_layer_info *layer = lg_model_layer(lowered->model, op->layer);
    const int64_t num_channels = layer->out_shape.dims[0];
    const int64_t num_positions = lg_shape_num_elems(&layer->out_shape) / num_channels;
    void *mean = operand_pointer(op, pointers, LG_ROLE_STATE, 0);
    void *var = operand_pointer(op, pointers, LG_ROLE_STATE, 1);
    for (int i = 0; i < op->num_operands; i++) {
        if (op->operands[i].role == LG_ROLE_STASH) {
            const int64_t num_samples =
                lg_graph_micro_batch_samples(lowered->graph, op->operands[i].idx);
            lowered->device->ops->fold_statistics(
                lowered->device, mean, var, pointers[i], num_channels, num_samples * num_positions,
                (double)layer->attrs->momentum, (double)layer->attrs->epsilon);
        }
    }
}

static void run_update(const lgi_program *program, const lgi_step_input *input,
                       const lg_op_info *op, void *const *pointers, int width)
{
    const double *clip = operand_pointer(op, pointers, LG_ROLE_CLIP, 0);
    const lg_rate *rates = operand_pointer(op, pointers, LG_ROLE_RATE, 0);
    for (int i = 0; i < op->num_operands; i++) {
        if (op->operands[i].role != LG_ROLE_PARAM) {
            continue;
        }
        const lg_rate *rate = lgi_rate_of(program, op, i, rates);
        if (rate != NULL && rate->is_skipped != 0.0) {
            return; /* all of a layer is skipped, running statistics too */
        }
        run_param_update(program, input, op, pointers, width, i, clip != NULL ? clip[0] : 1.0,
                         rate);
    }
    if (operand_pointer(op, pointers, LG_ROLE_STATE, 0) != NULL) {
        run_statistics(program, op, pointers);
    }
}

/* The sum of all that is read, into what is written. */
static void run_grad_add(const lgi_program *program, const lg_op_info *op, void *const *pointers,
                         int width)
{
    lgi_device *device = program->lowered->device;
    const int last = op->num_operands - 1;
    const int64_t bytes = lg_graph_value(program->lowered->graph, op->operands[last].value)->bytes;
    device->ops->grad_add(device, width, bytes, pointers[last], (const void *const *)pointers,
                          last);
}

/* Sum of squares of the layer's whole gradients, parameter by parameter; with statistics each by itself. */
static void run_stat(const lgi_program *program, const lg_op_info *op, void *const *pointers,
                     int width)
{
    lgi_device *device = program->lowered->device;
    const lg_graph *graph = program->lowered->graph;
    const bool is_by_param = lg_graph_options(graph)->has_grad_stats;
    const int last = op->num_operands - 1;
    double *out = pointers[last];
    memset(out, 0, (size_t)lg_graph_value(graph, op->operands[last].value)->bytes);
    for (int i = 0; i < last; i++) {
        const lg_value_info *value = lg_graph_value(graph, op->operands[i].value);
        out[is_by_param ? op->operands[i].idx : 0] += device->ops->sum_squares(
            device, width, value->bytes / (int64_t)device->ops->real_bytes, pointers[i]);
    }
}

/* Writes the factor on all gradients, then their norm. */
static void run_clip(const lgi_program *program, const lgi_step_input *input, const lg_op_info *op,
                     void *const *pointers)
{
    double sum = 0.0;
    for (int i = 0; i < op->num_operands - 1; i++) {
        const int64_t bytes = lg_graph_value(program->lowered->graph, op->operands[i].value)->bytes;
        double of_layer = 0.0;
        for (int64_t k = 0; k < bytes / (int64_t)sizeof(double); k++) {
            of_layer += ((const double *)pointers[i])[k];
        }
        sum += of_layer;
    }
    double *clip = pointers[op->num_operands - 1];
    clip[0] = lg_optim_clip_factor(input->optim, sum);
    clip[1] = sqrt(sum);
}

/* In a rehearsal: what a message would have brought. Not what was there before, which may be no number at all. */
static void fill_received(const lgi_program *program, const lg_op_info *op, void *const *pointers)
{
    const size_t real_bytes = program->lowered->device->ops->real_bytes;
    for (int i = 0; i < op->num_operands; i++) {
        const int64_t num_bytes =
            lg_graph_value(program->lowered->graph, op->operands[i].value)->bytes;
        for (int64_t k = 0; k < num_bytes / (int64_t)real_bytes; k++) {
            if (real_bytes == sizeof(double)) {
                ((double *)pointers[i])[k] = RECEIVED_NUMBER;
            } else {
                ((float *)pointers[i])[k] = (float)RECEIVED_NUMBER;
            }
        }
    }
}

lg_status lgi_program_run_op(lgi_program *program, int op_idx, int step_slot)
{
    const struct lgi_bound_op *bound = lgi_program_op(program, op_idx);
    const lg_op_info *op = lg_graph_op(program->lowered->graph, op_idx);
    lgi_device *device = program->lowered->device;
    void *const *pointers = bound->pointers[step_slot];
    const lgi_step_input *input = &program->inputs[step_slot];
    switch (bound->kind) {
    case LG_OP_FORWARD:
    case LG_OP_LOSS:
    case LG_OP_INPUT_GRAD:
    case LG_OP_WEIGHT_GRAD:
        return device->ops->run(bound->layer, bound->phase, bound->width_idx,
                                &bound->io[step_slot]);
    case LG_OP_REORDER:
        return device->ops->reorder_run(bound->reorder, bound->width_idx, pointers[1], pointers[0]);
    case LG_OP_GRAD_ADD:
        run_grad_add(program, op, pointers, bound->width);
        return LG_OK;
    case LG_OP_GRAD_STAT:
        if (op->micro_batch >= 0) {
            lgi_run_micro_stat(program, input, op, pointers, bound->width);
        } else {
            run_stat(program, op, pointers, bound->width);
        }
        return LG_OK;
    case LG_OP_RATE:
        lgi_run_rate(program, input, op, pointers);
        return LG_OK;
    case LG_OP_GRAD_CLIP:
        run_clip(program, input, op, pointers);
        return LG_OK;
    case LG_OP_UPDATE:
        run_update(program, input, op, pointers, bound->width);
        return LG_OK;
    case LG_OP_SEND:
    case LG_OP_ALL_REDUCE:
        if (program->is_rehearsal) {
            return LG_OK;
        }
        break;
    case LG_OP_RECV:
        if (program->is_rehearsal) {
            fill_received(program, op, pointers);
            return LG_OK;
        }
        break;
    default:
        break;
    }
    LG_FAIL(LG_NOT_SUPPORTED, "op '%s': %s cannot run without a communicator", op->name,
            lg_op_kind_name(bound->kind));
}
