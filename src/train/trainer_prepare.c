/*
 * Making step graphs ready: lower, cost, plan, prove, bind. The arena is as large as the largest plan so far; a later,
 * larger one moves the persistent values over.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "train/trainer_internal.h"

/* Widths for which ops are prepared: what the options ask for, or one core, all cores and two steps between. */
static void choose_widths(const lg_trainer *trainer, lg_graph_mode mode, lg_graph_opts *opts)
{
    const int num_cores = trainer->machine.num_cores;
    const int num_threads = trainer->opts.threads_per_lane;
    int widths[LG_MAX_WIDTHS] = {1, num_cores / 4, num_cores / 2, num_cores};
    if (mode != LG_GRAPH_TRAIN) {
        widths[0] = num_cores;
        widths[1] = widths[2] = 0;
    } else if (num_threads > 0) {
        widths[0] = num_threads;
        widths[1] = widths[2] = widths[3] = 0;
    }
    opts->num_widths = 0;
    for (int i = 0; i < LG_MAX_WIDTHS; i++) {
        if (widths[i] > (opts->num_widths > 0 ? opts->widths[opts->num_widths - 1] : 0)) {
            opts->widths[opts->num_widths++] = widths[i];
        }
    }
}

static void choose_graph_opts(const lg_trainer *trainer, lg_graph_mode mode, int64_t num_samples,
                              lg_graph_opts *opts)
{
    *opts = lg_graph_opts_default();
    opts->mode = mode;
    opts->num_samples = num_samples;
    opts->num_micro_batches = trainer->opts.num_micro_batches;
    opts->parallel = lgi_trainer_parallel(trainer);
    opts->num_slots = lg_optim_num_slots(&trainer->opts.optim);
    opts->has_grad_stats = lg_optim_has_statistics(&trainer->opts.optim);
    opts->has_joint_rates = opts->has_grad_stats && trainer->opts.optim.skip == LG_SKIP_STEP;
    opts->has_clipping = mode == LG_GRAPH_TRAIN && trainer->opts.optim.clip_norm > 0.0;
    choose_widths(trainer, mode, opts);
}

/* Costs of a batch of another size: those of the full one, in proportion. */
static void scale_costs(lg_costs *costs, const struct prepared *prepared,
                        const struct prepared *full)
{
    const double ratio = (double)prepared->num_samples / (double)full->num_samples;
    const lg_graph *graph = prepared->lowered->graph;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const int same = lg_graph_find_op(full->lowered->graph, lg_graph_op(graph, op)->name);
        for (int w = 0; same >= 0 && w < lg_graph_options(graph)->num_widths; w++) {
            lg_costs_set_op_ns(costs, op, w, lg_costs_op_ns(full->costs, same, w) * ratio);
        }
    }
}

/* Costs from a file, which rank 0 reads. */
static lg_status load_costs(lg_trainer *trainer, struct prepared *prepared)
{
    const lg_graph *graph = prepared->lowered->graph;
    if (trainer->rank == 0) {
        LG_TRY(lg_costs_load(&prepared->costs, graph, trainer->costs_path));
    } else {
        LG_TRY(lg_costs_create(&prepared->costs, graph));
    }
    return lgi_trainer_share_costs(trainer, prepared->costs, graph, false);
}

static lg_status find_costs(lg_trainer *trainer, struct prepared *prepared)
{
    const lg_graph *graph = prepared->lowered->graph;
    const bool is_main = prepared == trainer->main;
    if (is_main && trainer->opts.costs == LG_TRAINER_COSTS_FILE) {
        return load_costs(trainer, prepared);
    }
    LG_TRY(lg_costs_create(&prepared->costs, graph));
    lg_costs_estimate(prepared->costs, graph, &trainer->machine);
    if (is_main && trainer->opts.costs == LG_TRAINER_COSTS_MEASURE) {
        lg_graph_opts opts;
        choose_graph_opts(trainer, prepared->mode, prepared->num_samples, &opts);
        return lgi_trainer_profile(trainer, &opts, prepared->costs, &trainer->machine);
    }
    if (prepared->mode == LG_GRAPH_TRAIN && !is_main) {
        scale_costs(prepared->costs, prepared, trainer->main);
    }
    return LG_OK;
}

/*
 * A plan from a file may be right and yet put weights where the plans of other batch sizes and of evaluation do not look for
 * them. Better said now than after an epoch of training.
 */
static lg_status check_places(const lg_trainer *trainer, const struct prepared *prepared)
{
    const lg_graph *graph = prepared->lowered->graph;
    lg_status status = LG_OK;
    lg_plan *own = NULL;
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_lanes = 1;
    opts.threads_per_lane = lg_graph_options(graph)->widths[0];
    LG_TRY(lg_plan_create(&own, "in-order", graph, &trainer->machine, prepared->costs, &opts));
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const int64_t offset_bytes = prepared->plan->values[i].offset_bytes[0];
        const int64_t own_bytes = own->values[i].offset_bytes[0];
        if (lg_graph_value(graph, i)->is_persistent && offset_bytes != own_bytes) {
            LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG,
                                 "'%s' lies at byte %" PRId64 ", but all plans of this model have "
                                 "it at %" PRId64,
                                 lg_graph_value(graph, i)->name, offset_bytes, own_bytes));
        }
    }
out:
    lg_plan_destroy(own);
    return status;
}

static lg_status use_saved_plan(lg_trainer *trainer, struct prepared *prepared)
{
    const lg_graph *graph = prepared->lowered->graph;
    LG_TRY(lg_plan_load(&prepared->plan, graph, trainer->plan_path));
    lg_status status = lg_plan_check(prepared->plan, graph, trainer->opts.memory_bytes);
    if (status == LG_OK) {
        status = check_places(trainer, prepared);
    }
    return status == LG_OK ? LG_OK : lgi_fail_prefix(status, "plan '%s'", trainer->plan_path);
}

static lg_status create_plan(lg_trainer *trainer, struct prepared *prepared)
{
    const lg_graph *graph = prepared->lowered->graph;
    const bool is_training = prepared->mode == LG_GRAPH_TRAIN;
    const char *forward = trainer->num_pipeline_ranks > 1 ? "gpipe" : "in-order";
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_lanes = is_training ? trainer->opts.num_lanes : 1;
    opts.threads_per_lane =
        is_training ? trainer->opts.threads_per_lane : trainer->machine.num_cores;
    opts.memory_bytes = trainer->opts.memory_bytes;
    opts.allow_lag = trainer->opts.allow_lag;
    opts.num_reversed = trainer->opts.num_reversed;
    opts.has_push = trainer->opts.has_push;
    const uint64_t start_ns = lgi_clock_ns();
    LG_TRY(lg_plan_create(&prepared->plan, is_training ? trainer->strategy : forward, graph,
                          &trainer->machine, prepared->costs, &opts));
    prepared->planning_ns = (double)(lgi_clock_ns() - start_ns);
    return lg_plan_check(prepared->plan, graph, trainer->opts.memory_bytes);
}

/* On rank 0: makes or reads the plan, proves it, and predicts its time. */
static lg_status decide_plan(lg_trainer *trainer, struct prepared *prepared)
{
    if (prepared == trainer->main && trainer->plan_path != NULL) {
        LG_TRY(use_saved_plan(trainer, prepared));
    } else {
        LG_TRY(create_plan(trainer, prepared));
    }
    if (prepared->mode == LG_GRAPH_TRAIN) {
        lg_timeline timeline;
        LG_TRY(lg_plan_simulate(&timeline, prepared->plan, prepared->lowered->graph,
                                &trainer->machine, prepared->costs));
        prepared->predicted_step_ns = timeline.step_ns;
        lg_timeline_deinit(&timeline);
    }
    return LG_OK;
}

/* A failure of rank 0 fails the communicator, which the others hear while they wait for the plan. */
static lg_status make_plan(lg_trainer *trainer, struct prepared *prepared)
{
    if (trainer->rank == 0) {
        LG_TRY(decide_plan(trainer, prepared));
    }
    LG_TRY(lgi_trainer_share_plan(trainer, &prepared->plan));
    return lgi_trainer_share_number(trainer, &prepared->predicted_step_ns);
}

/* Where the persistent values end; they must lie alike in all plans of a trainer. */
static lg_status check_persistent(const lg_trainer *trainer, const struct prepared *prepared,
                                  int64_t *out_end_bytes)
{
    const lg_graph *graph = prepared->lowered->graph;
    const struct prepared *other = trainer->num_prepared > 0 ? trainer->prepared[0] : prepared;
    *out_end_bytes = 0;
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (!value->is_persistent || value->rank != trainer->rank) {
            continue;
        }
        const int64_t offset_bytes = prepared->plan->values[i].offset_bytes[0];
        if (offset_bytes != other->plan->values[i].offset_bytes[0] ||
            prepared->plan->values[i].num_slots != 1) {
            LG_FAIL(LG_INVALID_ARG,
                    "plan: '%s' does not lie where this model's other plans have it", value->name);
        }
        if (offset_bytes + value->bytes > *out_end_bytes) {
            *out_end_bytes = offset_bytes + value->bytes;
        }
    }
    return LG_OK;
}

/* Rebinds everything to an arena of `bytes`, keeping the first `kept_bytes`. The old one goes first: never two at a time. */
static lg_status resize_arena(lg_trainer *trainer, int64_t bytes, int64_t kept_bytes)
{
    const struct lgi_device_ops *ops = trainer->device->ops;
    const int64_t old_bytes = trainer->arena_bytes;
    lg_status status = LG_OK;
    char *kept = NULL;
    if (trainer->arena != NULL) {
        LG_TRY_GOTO(lgi_calloc(&kept, (size_t)kept_bytes, 1));
        memcpy(kept, trainer->arena, (size_t)kept_bytes);
        for (size_t i = 0; i < trainer->num_prepared; i++) {
            lgi_program_destroy(trainer->prepared[i]->program);
            trainer->prepared[i]->program = NULL;
        }
        ops->free(trainer->device, trainer->arena, trainer->arena_bytes);
        trainer->arena = NULL;
    }
    trainer->arena_bytes = bytes;
    LG_TRY_GOTO(ops->alloc(trainer->device, &trainer->arena, bytes));
out:
    if (status != LG_OK && kept != NULL && trainer->arena == NULL) { /* as it was, if that goes */
        char message[512];
        (void)snprintf(message, sizeof message, "%s", lg_last_error());
        trainer->arena_bytes = old_bytes;
        if (ops->alloc(trainer->device, &trainer->arena, old_bytes) != LG_OK) {
            trainer->has_half_step = true;
        }
        status = lgi_fail_copy(status, message);
    }
    if (kept != NULL && trainer->arena != NULL) {
        memcpy(trainer->arena, kept, (size_t)kept_bytes);
    }
    lgi_free(kept);
    return status;
}

static lg_status bind(lg_trainer *trainer, struct prepared *prepared)
{
    if (trainer->arena == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "the trainer lost its memory when it asked for more");
    }
    if (prepared->program == NULL) {
        LG_TRY(lgi_program_create(&prepared->program, prepared->lowered, prepared->plan,
                                  trainer->arena));
        lgi_program_seek(prepared->program,
                         prepared->mode == LG_GRAPH_TRAIN ? trainer->next_step : 0);
    }
    return LG_OK;
}

void lgi_prepared_destroy(struct prepared *prepared)
{
    if (prepared == NULL) {
        return;
    }
    lgi_free(prepared->outputs);
    lgi_program_destroy(prepared->program);
    lg_plan_destroy(prepared->plan);
    lg_costs_destroy(prepared->costs);
    lgi_lowered_destroy(prepared->lowered);
    lgi_free(prepared);
}

static lg_status find_outputs(const lg_trainer *trainer, struct prepared *prepared)
{
    const lg_graph *graph = prepared->lowered->graph;
    for (int pass = 0; pass < 2; pass++) { /* counts, then fills */
        prepared->num_outputs = 0;
        for (int i = 0; i < lg_graph_num_values(graph); i++) {
            const lg_value_info *value = lg_graph_value(graph, i);
            if (value->is_output && value->rank == trainer->rank) {
                if (pass == 1) {
                    prepared->outputs[prepared->num_outputs] = i;
                }
                prepared->num_outputs++;
            }
        }
        if (pass == 0) {
            LG_TRY(lgi_calloc(&prepared->outputs, (size_t)prepared->num_outputs, sizeof(int)));
        }
    }
    return LG_OK;
}

static lg_status make(lg_trainer *trainer, struct prepared *prepared)
{
    lg_graph_opts opts;
    int64_t persistent_bytes = 0;
    choose_graph_opts(trainer, prepared->mode, prepared->num_samples, &opts);
    const bool is_first = trainer->num_prepared == 0;
    LG_TRY(lgi_lower(&prepared->lowered, trainer->device, lgi_trainer_model(trainer), &opts,
                     is_first ? NULL : trainer->param_layouts, trainer->rank));
    if (is_first) {
        lgi_lowered_param_layouts(prepared->lowered, trainer->param_layouts);
    }
    LG_TRY(find_outputs(trainer, prepared));
    LG_TRY(lgi_trainer_agree(trainer, prepared->lowered->graph));
    LG_TRY(find_costs(trainer, prepared));
    LG_TRY(make_plan(trainer, prepared));
    LG_TRY(check_persistent(trainer, prepared, &persistent_bytes));
    if (trainer->current !=
        NULL) { /* what still lags must run before an arena moves, on some rank */
        LG_TRY(lg_trainer_drain(trainer));
    }
    const int64_t peak_bytes = prepared->plan->peak_bytes[trainer->rank];
    if (peak_bytes > trainer->arena_bytes || trainer->arena == NULL) {
        LG_TRY(resize_arena(trainer, peak_bytes, persistent_bytes));
    }
    LG_TRY(bind(trainer, prepared));
    LG_TRY(lgi_grow(&trainer->prepared, &trainer->prepared_capacity, trainer->num_prepared + 1,
                    sizeof(void *)));
    trainer->prepared[trainer->num_prepared++] = prepared;
    return LG_OK;
}

lg_status lgi_trainer_prepare(lg_trainer *trainer, lg_graph_mode mode, int64_t num_samples,
                              struct prepared **out)
{
    for (size_t i = 0; i < trainer->num_prepared; i++) {
        *out = trainer->prepared[i];
        if ((*out)->mode == mode && (*out)->num_samples == num_samples) {
            return bind(trainer, *out);
        }
    }
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    (*out)->mode = mode;
    (*out)->num_samples = num_samples;
    const lg_status status = make(trainer, *out);
    if (status != LG_OK) {
        lgi_prepared_destroy(*out);
        *out = NULL;
    }
    return status;
}
