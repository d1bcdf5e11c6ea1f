/*
 * The trainer: making it, and its steps. With several ranks each has one: what a rank does here, all do, in the same order
 * (trainer_ranks.c).
 */
#include "leapgrad/trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "comm/collectives.h"
#include "train/trainer_internal.h"

lg_trainer_opts lg_trainer_opts_default(void)
{
    lg_trainer_opts opts;
    memset(&opts, 0, sizeof opts);
    opts.device = "auto";
    opts.batch_samples = 1;
    opts.num_micro_batches = 1;
    opts.num_steps = 1;
    opts.optim = lg_optim_opts_default();
    opts.strategy = "in-order";
    opts.allow_lag = true;
    opts.num_reversed = -1;
    opts.costs = LG_TRAINER_COSTS_ESTIMATE;
    return opts;
}

static int num_devices(void)
{
    int num = 0;
    while (lgi_device_registry()[num] != NULL) {
        num++;
    }
    return num;
}

const char *lg_device_name(int idx)
{
    return idx >= 0 && idx < num_devices() ? lgi_device_registry()[idx]->name : NULL;
}

const char *lg_device_help(int idx)
{
    return idx >= 0 && idx < num_devices() ? lgi_device_registry()[idx]->help : NULL;
}

lg_status lg_num_cores(int *out)
{
    lgi_hardware *hardware = NULL;
    *out = 1;
    LG_TRY(lgi_hardware_open(&hardware));
    *out = lgi_hardware_num_cores(hardware);
    lgi_hardware_close(hardware);
    return LG_OK;
}

int lgi_trainer_num_machine_cores(const lg_trainer *trainer)
{
    return lgi_hardware_num_machine_cores(trainer->hardware);
}

const lg_model *lgi_trainer_model(const lg_trainer *trainer)
{
    return trainer->fused != NULL ? trainer->fused : trainer->model;
}

/* --- making ------------------------------------------------------------------------------------------------------------ */

/* Micro-batches of all replicas. */
static int64_t num_grads(const lg_trainer_opts *opts)
{
    return (int64_t)opts->num_micro_batches *
           (opts->parallel != NULL ? opts->parallel->num_replicas : 1);
}

static lg_status check_replicas(const lg_trainer_opts *opts)
{
    const int num_replicas = opts->parallel != NULL ? opts->parallel->num_replicas : 1;
    if (num_replicas < 1 || num_grads(opts) > opts->batch_samples || num_grads(opts) > INT32_MAX) {
        LG_FAIL(LG_INVALID_ARG,
                "micro-batches: %d on each of %d replicas are more than the batch's %" PRId64
                " samples",
                opts->num_micro_batches, num_replicas, opts->batch_samples);
    }
    return LG_OK;
}

static lg_status check_opts(const lg_trainer_opts *opts)
{
    if (opts->device == NULL || opts->strategy == NULL) {
        LG_FAIL(LG_INVALID_ARG, "%s: NULL, expected a name",
                opts->device == NULL ? "device" : "strategy");
    }
    if (opts->costs != LG_TRAINER_COSTS_ESTIMATE && opts->costs != LG_TRAINER_COSTS_MEASURE &&
        opts->costs != LG_TRAINER_COSTS_FILE) {
        LG_FAIL(LG_INVALID_ARG, "costs: %d is no source of costs", (int)opts->costs);
    }
    if (opts->batch_samples < 1) {
        LG_FAIL(LG_INVALID_ARG, "batch: %" PRId64 " samples, expected 1 or more",
                opts->batch_samples);
    }
    if (opts->num_micro_batches < 1 || opts->num_micro_batches > opts->batch_samples) {
        LG_FAIL(LG_INVALID_ARG, "micro-batches: %d is not in [1, %" PRId64 "], the batch's samples",
                opts->num_micro_batches, opts->batch_samples);
    }
    if (opts->num_steps < 1) {
        LG_FAIL(LG_INVALID_ARG, "steps: %" PRId64 ", expected 1 or more", opts->num_steps);
    }
    if (opts->num_lanes < 0 || opts->num_lanes > 1024 || opts->threads_per_lane < 0 ||
        opts->threads_per_lane > 1024) {
        LG_FAIL(LG_INVALID_ARG, "lanes %d x threads %d: each must be in [0, 1024]", opts->num_lanes,
                opts->threads_per_lane);
    }
    if (opts->memory_bytes < 0) {
        LG_FAIL(LG_INVALID_ARG, "memory budget: %" PRId64 " bytes, expected 0 or more",
                opts->memory_bytes);
    }
    LG_TRY(check_replicas(opts));
    LG_TRY(lg_optim_opts_check(&opts->optim));
    const double base_batch =
        lg_optim_base_batch(&opts->optim, opts->batch_samples, (int)num_grads(opts));
    if (lg_optim_has_statistics(&opts->optim) && num_grads(opts) == 1 &&
        (double)opts->batch_samples != base_batch) {
        LG_FAIL(LG_INVALID_ARG,
                "micro-batches: 1 shows nothing of the gradient's variance, which a batch of "
                "%" PRId64 " with a base batch of %g needs; take 2 or more",
                opts->batch_samples, base_batch);
    }
    return LG_OK;
}

/* Options with texts of the trainer's own. */
static lg_status copy_opts(lg_trainer *trainer, const lg_trainer_opts *opts)
{
    trainer->opts = *opts;
    LG_TRY(lgi_strdup(&trainer->strategy, opts->strategy));
    if (opts->costs == LG_TRAINER_COSTS_FILE) {
        if (opts->costs_path == NULL) {
            LG_FAIL(LG_INVALID_ARG, "costs are to come from a file, but no path was given");
        }
        LG_TRY(lgi_strdup(&trainer->costs_path, opts->costs_path));
    }
    if (opts->plan_path != NULL) {
        LG_TRY(lgi_strdup(&trainer->plan_path, opts->plan_path));
    }
    return LG_OK;
}

/* More lanes than cores are allowed when asked for: they share, which is slow but computes the same. */
static void allow_lanes(lg_trainer *trainer)
{
    const lg_trainer_opts *opts = &trainer->opts;
    const int num_lanes = opts->num_lanes > 0 ? opts->num_lanes : 1;
    const int num_threads = opts->threads_per_lane > 0 ? opts->threads_per_lane : 1;
    const int num_asked = num_lanes * num_threads;
    if (trainer->machine.num_cores < num_asked) {
        trainer->machine.num_cores = num_asked;
    }
}

static lg_status open_hardware(lg_trainer *trainer)
{
    LG_TRY(lgi_hardware_open(&trainer->hardware));
    if (trainer->comm != NULL) {
        lgi_hardware_share(trainer->hardware, lg_comm_host_rank(trainer->comm),
                           lg_comm_num_host_ranks(trainer->comm));
    }
    trainer->machine = lg_machine_default();
    trainer->machine.num_cores = lgi_hardware_num_cores(trainer->hardware);
    trainer->num_rank_cores = trainer->machine.num_cores;
    trainer->machine.memory_bytes = trainer->opts.memory_bytes;
    trainer->num_device_cores = lgi_hardware_num_machine_cores(trainer->hardware);
    if (trainer->opts.machine != NULL) { /* until it is measured */
        trainer->machine.corun_slowdown = trainer->opts.machine->corun_slowdown;
    }
    return LG_OK;
}

static lg_status start(lg_trainer *trainer, const lg_trainer_opts *opts)
{
    const struct lgi_device_ops *device = NULL;
    const lg_model *model = trainer->model;
    LG_TRY(check_opts(opts));
    LG_TRY(copy_opts(trainer, opts));
    trainer->base_batch =
        lg_optim_base_batch(&opts->optim, opts->batch_samples, (int)num_grads(opts));
    LG_TRY(lgi_device_find(&device, opts->device));
    LG_TRY(lgi_strdup(&trainer->device_name, device->name));
    if (device->wants_fusion) {
        LG_TRY(lgi_model_fuse(&trainer->fused, model));
    }
    LG_TRY(open_hardware(trainer));
    LG_TRY(lgi_trainer_join(trainer));
    trainer->opts.parallel = NULL; /* the caller's, copied by now */
    trainer->opts.machine = NULL;
    allow_lanes(trainer);
    LG_TRY(device->open(&trainer->device, trainer->num_device_cores));
    LG_TRY(
        lgi_executor_create(&trainer->executor, trainer->hardware, trainer->device, trainer->comm));
    LG_TRY(lgi_calloc(&trainer->param_layouts, (size_t)lg_model_num_params(model),
                      sizeof(lgi_layout)));
    LG_TRY(lgi_trainer_settle_links(trainer));
    LG_TRY(lgi_trainer_prepare(trainer, LG_GRAPH_TRAIN, opts->batch_samples, &trainer->main));
    const size_t num_ops = (size_t)lg_graph_num_ops(trainer->main->lowered->graph);
    LG_TRY(lgi_calloc(&trainer->trace.start_ns, num_ops, sizeof(uint64_t)));
    LG_TRY(lgi_calloc(&trainer->trace.end_ns, num_ops, sizeof(uint64_t)));
    trainer->traced_step = -1;
    LG_TRY(lgi_trainer_find_tensors(trainer));
    LG_TRY(lgi_trainer_start_rates(trainer));
    return lgi_init_weights(trainer->device, lgi_trainer_model(trainer), trainer->main->program,
                            opts->seed);
}

lg_status lg_trainer_create(lg_trainer **out, const lg_model *model, const lg_trainer_opts *opts)
{
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    (*out)->model = model;
    (*out)->comm = opts->comm != NULL && lg_comm_num_ranks(opts->comm) > 1 ? opts->comm : NULL;
    (*out)->num_ranks = (*out)->comm != NULL ? lg_comm_num_ranks(opts->comm) : 1;
    (*out)->rank = (*out)->comm != NULL ? lg_comm_rank(opts->comm) : 0;
    const lg_status status = lgi_trainer_note(*out, start(*out, opts));
    if (status != LG_OK) {
        lg_trainer_destroy(*out);
        *out = NULL;
    }
    return status;
}

void lg_trainer_destroy(lg_trainer *trainer)
{
    if (trainer == NULL) {
        return;
    }
    lgi_trainer_leave(trainer);
    lgi_executor_destroy(trainer->executor);
    for (size_t i = 0; i < trainer->num_prepared; i++) {
        lgi_prepared_destroy(trainer->prepared[i]);
    }
    lgi_free(trainer->prepared);
    if (trainer->arena != NULL) {
        trainer->device->ops->free(trainer->device, trainer->arena, trainer->arena_bytes);
    }
    if (trainer->device != NULL) {
        trainer->device->ops->close(trainer->device);
    }
    lgi_hardware_close(trainer->hardware);
    lg_model_destroy(trainer->fused);
    lgi_free(trainer->param_layouts);
    lgi_free(trainer->weights);
    lgi_free(trainer->rates);
    lgi_free(trainer->all_rates);
    lgi_free(trainer->all_rate_states);
    lgi_free(trainer->own_states);
    lgi_free(trainer->params);
    lgi_free(trainer->grads);
    lgi_free(trainer->slots);
    lgi_free(trainer->states);
    lgi_free(trainer->device_name);
    lgi_free(trainer->trace.start_ns);
    lgi_free(trainer->trace.end_ns);
    lgi_free(trainer->strategy);
    lgi_free(trainer->costs_path);
    lgi_free(trainer->plan_path);
    lgi_free(trainer);
}

/* --- steps ---------------------------------------------------------------------------------------------------------------- */

static lg_status check_whole(const lg_trainer *trainer)
{
    if (trainer->has_half_step) {
        LG_FAIL(LG_INVALID_ARG,
                "step %" PRId64 " failed in the middle, the weights are no longer of use; load a "
                "checkpoint",
                trainer->next_step);
    }
    return LG_OK;
}

/* Its outcome is that of a step: on failure some weights are updated and others not. */
static lg_status note_half_step(lg_trainer *trainer, lg_status status)
{
    trainer->has_half_step = trainer->has_half_step || status != LG_OK;
    return status;
}

lg_status lg_trainer_drain(lg_trainer *trainer)
{
    LG_TRY(check_whole(trainer));
    if (trainer->current == NULL) {
        return LG_OK;
    }
    struct prepared *current = trainer->current;
    trainer->current = NULL;
    return lgi_trainer_note(
        trainer, note_half_step(trainer, lgi_executor_drain(trainer->executor, current->program)));
}

/* Adds up the loss records of a step that this rank has, in the order of micro-batches. */
static void sum_losses(const struct prepared *prepared, int64_t step, lg_eval_sums *sums)
{
    const lg_graph *graph = prepared->lowered->graph;
    for (int i = 0; i < prepared->num_outputs; i++) {
        const int value = prepared->outputs[i];
        if (lg_graph_value(graph, value)->kind == LG_VALUE_LOSS) {
            const lgi_loss_record *record = lgi_program_value(prepared->program, value, step);
            sums->loss_sum += record->loss_sum;
            sums->weight_sum += record->weight_sum;
            sums->num_correct += record->num_correct;
            sums->num_targets += record->num_targets;
        }
    }
}

static double grad_norm(const struct prepared *prepared, int64_t step)
{
    for (int i = 0; i < prepared->num_outputs; i++) {
        const int value = prepared->outputs[i];
        if (lg_graph_value(prepared->lowered->graph, value)->kind == LG_VALUE_SCALAR) {
            const double *clip = lgi_program_value(prepared->program, value, step);
            return clip[1];
        }
    }
    return -1.0;
}

static lgi_step_input step_input(const lg_trainer *trainer, int64_t number, int64_t num_samples,
                                 double weight, const void *const *tensors)
{
    lgi_step_input input;
    memset(&input, 0, sizeof input);
    input.step.number = number;
    input.step.seed = trainer->opts.seed;
    input.step.loss_scale = weight > 0.0 ? 1.0 / weight : 0.0;
    input.step.inputs = tensors;
    input.optim = &trainer->opts.optim;
    input.num_steps = trainer->opts.num_steps;
    input.num_samples = num_samples;
    input.base_batch = trainer->base_batch;
    input.full_scale = (double)trainer->opts.batch_samples / trainer->base_batch;
    return input;
}

static lg_status check_num_samples(int64_t num_samples)
{
    if (num_samples < 1 || num_samples > INT32_MAX) {
        LG_FAIL(LG_INVALID_ARG, "batch of %" PRId64 " samples, expected 1 to %" PRId32, num_samples,
                INT32_MAX);
    }
    return LG_OK;
}

/* What this rank has to say of the step. */
static struct step_part own_part(lg_trainer *trainer, const struct prepared *prepared, int64_t step,
                                 uint64_t batch_hash, uint64_t start_ns)
{
    struct step_part part;
    memset(&part, 0, sizeof part);
    part.step = step;
    sum_losses(prepared, step, &part.sums);
    part.grad_norm = grad_norm(prepared, step);
    part.was_skipped = lgi_trainer_keep_rates(trainer, prepared, step) ? 1 : 0;
    part.batch_hash = batch_hash;
    part.step_ns = lgi_clock_ns() - start_ns;
    return part;
}

/* `num_samples` of the batch count; the rest is there for replicas that would have none. */
static lg_status run_step(lg_trainer *trainer, int64_t num_samples, double weight,
                          const lgi_padded_batch *batch, uint64_t start_ns)
{
    struct prepared *prepared = NULL;
    const int64_t step = trainer->next_step;
    LG_TRY(lgi_trainer_prepare(trainer, LG_GRAPH_TRAIN, batch->num_samples, &prepared));
    if (trainer->current != prepared) {
        LG_TRY(lg_trainer_drain(trainer));
        lgi_program_seek(prepared->program, step);
        trainer->current = prepared;
    }
    lgi_trainer_use_own_states(trainer);
    LG_TRY(lgi_trainer_open_step(trainer, step));
    lgi_step_input input = step_input(trainer, step, num_samples, weight, batch->tensors);
    input.weights = lgi_trainer_weigh(trainer, prepared, batch->tensors, weight);
    const bool is_recorded = trainer->is_recording && prepared == trainer->main;
    LG_TRY(note_half_step(trainer, lgi_executor_step(trainer->executor, prepared->program, &input,
                                                     is_recorded ? &trainer->trace : NULL)));
    trainer->traced_step = is_recorded ? step : trainer->traced_step;
    trainer->next_step = step + 1;
    const uint64_t batch_hash = lgi_batch_hash(trainer->model, batch->num_samples, batch->tensors);
    const struct step_part part = own_part(trainer, prepared, step, batch_hash, start_ns);
    lgi_trainer_close_step(trainer, &part);
    return LG_OK;
}

lg_status lg_trainer_step(lg_trainer *trainer, int64_t num_samples, const void *const *tensors,
                          lg_step_result *result)
{
    double weight = 0.0;
    lgi_padded_batch batch;
    const uint64_t start_ns = lgi_clock_ns();
    LG_TRY(lgi_trainer_note(trainer, check_whole(trainer)));
    LG_TRY(lgi_trainer_note(trainer, check_num_samples(num_samples)));
    LG_TRY(lgi_trainer_note(
        trainer, lgi_check_batch(trainer->model, LG_GRAPH_TRAIN, num_samples, tensors, &weight)));
    LG_TRY(lgi_trainer_note(trainer, lgi_pad_batch(&batch, trainer->model, trainer->num_replicas,
                                                   num_samples, tensors)));
    const lg_status status =
        lgi_trainer_note(trainer, run_step(trainer, num_samples, weight, &batch, start_ns));
    lgi_padded_batch_deinit(&batch);
    LG_TRY(status);
    return result != NULL ? lgi_trainer_share_result(trainer, trainer->next_step - 1, result)
                          : LG_OK;
}

/* Runs a forward-only graph once. Its steps count for themselves. */
static lg_status run_batch_forward(lg_trainer *trainer, lg_graph_mode mode, int64_t num_samples,
                                   const void *const *tensors, struct prepared **out)
{
    double weight = 0.0;
    lgi_padded_batch batch;
    LG_TRY(check_num_samples(num_samples));
    LG_TRY(lgi_check_batch(trainer->model, mode, num_samples, tensors, &weight));
    LG_TRY(lg_trainer_drain(trainer));
    LG_TRY(lgi_trainer_use_mean_states(trainer));
    LG_TRY(lgi_pad_batch(&batch, trainer->model, trainer->num_replicas, num_samples, tensors));
    lg_status status = lgi_trainer_prepare(trainer, mode, batch.num_samples, out);
    if (status == LG_OK) {
        const lgi_step_input input =
            step_input(trainer, (*out)->program->next_step, num_samples, weight, batch.tensors);
        status = lgi_executor_step(trainer->executor, (*out)->program, &input, NULL);
    }
    lgi_padded_batch_deinit(&batch);
    return status;
}

static lg_status run_forward(lg_trainer *trainer, lg_graph_mode mode, int64_t num_samples,
                             const void *const *tensors, struct prepared **out)
{
    return lgi_trainer_note(trainer, run_batch_forward(trainer, mode, num_samples, tensors, out));
}

lg_status lg_trainer_evaluate(lg_trainer *trainer, int64_t num_samples, const void *const *tensors,
                              lg_eval_sums *sums)
{
    struct prepared *prepared = NULL;
    lg_eval_sums own;
    memset(&own, 0, sizeof own);
    LG_TRY(run_forward(trainer, LG_GRAPH_EVAL, num_samples, tensors, &prepared));
    sum_losses(prepared, prepared->program->next_step - 1, &own);
    return lgi_trainer_add_sums(trainer, &own, sums);
}

int64_t lg_trainer_num_logits(const lg_trainer *trainer)
{
    const lg_layer_info *loss = lg_model_layer(trainer->model, lgi_loss_layer(trainer->model));
    return lg_shape_num_elems(&lg_model_layer(trainer->model, loss->inputs[0])->out_shape);
}

/* The logits of one micro-batch, from the rank that has them to all. */
static lg_status read_logits(lg_trainer *trainer, const struct prepared *prepared, int value,
                             float *logits)
{
    const lg_value_info *info = lg_graph_value(prepared->lowered->graph, value);
    const int64_t num_logits =
        lg_graph_micro_batch_samples(prepared->lowered->graph, info->micro_batch) *
        lg_trainer_num_logits(trainer);
    const lg_shape shape = LG_SHAPE(num_logits);
    if (info->rank == trainer->rank) {
        const void *stored =
            lgi_program_value(prepared->program, value, prepared->program->next_step - 1);
        LG_TRY(trainer->device->ops->read(trainer->device, &shape, 0, stored, logits));
    }
    return trainer->num_ranks > 1 ? lgi_comm_broadcast(trainer->comm, info->rank, logits,
                                                       num_logits * (int64_t)sizeof *logits)
                                  : LG_OK;
}

lg_status lg_trainer_predict(lg_trainer *trainer, int64_t num_samples, const void *const *tensors,
                             float *logits)
{
    struct prepared *prepared = NULL;
    lg_status status = LG_OK;
    float *all = logits;
    LG_TRY(run_forward(trainer, LG_GRAPH_PREDICT, num_samples, tensors, &prepared));
    const lg_graph *graph = prepared->lowered->graph;
    const int64_t num_logits = lg_trainer_num_logits(trainer);
    if (prepared->num_samples > num_samples) {
        LG_TRY(lgi_trainer_note(
            trainer, lgi_calloc(&all, (size_t)(prepared->num_samples * num_logits), sizeof *all)));
    }
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->is_output) {
            const int64_t begin = lg_graph_micro_batch_begin(graph, value->micro_batch);
            LG_TRY_GOTO(read_logits(trainer, prepared, i, all + begin * num_logits));
        }
    }
    if (all != logits) {
        memcpy(logits, all, (size_t)(num_samples * num_logits) * sizeof *all);
    }
out:
    if (all != logits) {
        lgi_free(all);
    }
    return lgi_trainer_note(trainer, status);
}

int64_t lg_trainer_next_step(const lg_trainer *trainer)
{
    return trainer->next_step;
}

/* --- what was decided -------------------------------------------------------------------------------------------------- */

lg_trainer_info lg_trainer_about(const lg_trainer *trainer)
{
    const struct prepared *main = trainer->main;
    lg_trainer_info info;
    memset(&info, 0, sizeof info);
    info.device = trainer->device->ops->name;
    info.device_text = trainer->device->ops->describe(trainer->device);
    info.strategy = main->plan->strategy;
    info.num_cores = lgi_hardware_num_cores(trainer->hardware);
    for (int i = 0; i < main->plan->num_lanes; i++) {
        const lg_lane *const lane = &main->plan->lanes[i];
        if (lane->kind != LG_LANE_COMPUTE || lane->rank != trainer->rank) {
            continue;
        }
        info.threads_per_lane = info.num_lanes == 0 ? lane->num_cores : info.threads_per_lane;
        info.max_threads_per_lane = lane->num_cores > info.max_threads_per_lane
                                        ? lane->num_cores
                                        : info.max_threads_per_lane;
        info.num_lanes++;
    }
    for (size_t i = 0; i < trainer->num_prepared; i++) {
        const int64_t peak_bytes = trainer->prepared[i]->plan->peak_bytes[trainer->rank];
        info.planned_peak_bytes =
            peak_bytes > info.planned_peak_bytes ? peak_bytes : info.planned_peak_bytes;
    }
    info.measured_peak_bytes = trainer->device->ops->peak_bytes(trainer->device);
    info.predicted_step_ns = main->predicted_step_ns;
    info.planning_ns = main->planning_ns;
    info.num_reorders = main->lowered->num_reorders;
    info.num_param_elems = lg_model_num_param_elems(trainer->model);
    return info;
}

const lg_graph *lg_trainer_graph(const lg_trainer *trainer)
{
    return trainer->main->lowered->graph;
}

const lg_plan *lg_trainer_plan(const lg_trainer *trainer)
{
    return trainer->main->plan;
}

const lg_costs *lg_trainer_cost_table(const lg_trainer *trainer)
{
    return trainer->main->costs;
}

lg_machine lg_trainer_machine(const lg_trainer *trainer)
{
    return trainer->machine;
}

void lg_trainer_record(lg_trainer *trainer, bool is_on)
{
    trainer->is_recording = is_on;
}
