/*
 * A trainer among others: what ranks must agree on, results of steps, and tensors that rank 0 asks others for.
 *
 * Results go to rank 0 on a channel of their own, without anyone waiting: a slot for each of the last steps. What the host does
 * between steps (reading, saving) is a conversation: rank 0 runs it and sends requests, the others answer until it says that it
 * is through, and then hear how it went.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "train/trainer_internal.h"

/* --- joining -------------------------------------------------------------------------------------------------------- */

/*
 * Stages of the layers of the model that runs: where it is a fused one, each of its layers has the name of the first of those
 * that it is made of.
 */
static lg_status copy_stages(lg_trainer *trainer, const lg_parallel *parallel)
{
    const lg_model *own = lgi_trainer_model(trainer);
    const size_t num_layers = (size_t)lg_model_num_layers(own);
    if (parallel->rank_of_stage != NULL) {
        const size_t num_stages = (size_t)(parallel->num_stages > 0 ? parallel->num_stages : 0);
        LG_TRY(lgi_calloc(&trainer->rank_of_stage, num_stages, sizeof(int)));
        memcpy(trainer->rank_of_stage, parallel->rank_of_stage, num_stages * sizeof(int));
        trainer->parallel.rank_of_stage = trainer->rank_of_stage;
    }
    if (parallel->stage_of_layer == NULL) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&trainer->stage_of_layer, num_layers, sizeof(int)));
    int source = 0;
    for (int layer = 0; layer < (int)num_layers; layer++) {
        while (strcmp(lg_model_layer(trainer->model, source)->name,
                      lg_model_layer(own, layer)->name) != 0) {
            source++;
        }
        trainer->stage_of_layer[layer] = parallel->stage_of_layer[source];
    }
    trainer->parallel.stage_of_layer = trainer->stage_of_layer;
    return LG_OK;
}

static lg_status check_num_ranks(const lg_trainer *trainer, const lg_parallel *parallel)
{
    const int64_t num_needed =
        parallel != NULL ? (int64_t)parallel->num_replicas * parallel->num_pipeline_ranks : 1;
    if (parallel != NULL && (parallel->num_replicas < 1 || parallel->num_pipeline_ranks < 1)) {
        LG_FAIL(LG_INVALID_ARG, "ranks: %d replicas of %d pipeline ranks, expected 1 or more",
                parallel->num_replicas, parallel->num_pipeline_ranks);
    }
    if (num_needed != trainer->num_ranks) {
        LG_FAIL(LG_INVALID_ARG,
                "ranks: the placement needs %" PRId64 ", but the communicator has %d", num_needed,
                trainer->num_ranks);
    }
    return LG_OK;
}

/* Layers and where they are. */
static uint64_t hash_model(const lg_trainer *trainer)
{
    const lg_model *model = lgi_trainer_model(trainer);
    uint64_t hash = 0;
    for (int i = 0; i < lg_model_num_layers(model); i++) {
        const lg_layer_info *layer = lg_model_layer(model, i);
        const int stage = trainer->stage_of_layer != NULL ? trainer->stage_of_layer[i] : 0;
        const int64_t numbers[] = {(int64_t)layer->kind, stage,
                                   lg_shape_num_elems(&layer->out_shape)};
        hash = XXH64(layer->name, strlen(layer->name), hash);
        hash = XXH64(numbers, sizeof numbers, hash);
    }
    for (int i = 0; trainer->rank_of_stage != NULL && i < trainer->parallel.num_stages; i++) {
        hash = XXH64(&trainer->rank_of_stage[i], sizeof(int), hash);
    }
    return hash;
}

static lg_status describe_optim(const lg_optim_opts *o, char **out)
{
    return lgi_sprintf(
        out,
        "optimizer: %s\nlr: %.17g\nmomentum: %.17g, nesterov %d\nweight decay: %.17g, norms and "
        "biases %d\n"
        "betas: %.17g, %.17g\nepsilon: %.17g\nclip norm: %.17g\nschedule: %s\nwarm-up steps: "
        "%" PRId64 "\nmin lr frac: %.17g\nmilestones: %d, %016" PRIx64
        "\nstep factor: %.17g\ntrust coefficient: %.17g\n"
        "scaling of lr: %d\nbase batch: %.17g\nwarm-up: %d, %.17g, %d\ngrouping: %d\nvariant: %d\n"
        "gain: %.17g, %.17g\nschedule by: %d, %.17g\nskip: %d\nstatistics: %d\n",
        lg_optim_rule_name(o->rule), o->lr, o->momentum, o->is_nesterov ? 1 : 0, o->weight_decay,
        o->decay_norm_and_bias ? 1 : 0, o->beta1, o->beta2, o->epsilon, o->clip_norm,
        lg_schedule_name(o->schedule), o->warmup_steps, o->min_lr_frac, o->num_milestones,
        (uint64_t)XXH64(o->milestones, (size_t)o->num_milestones * sizeof(double), 0),
        o->step_factor, o->trust_coefficient, (int)o->scaling, o->base_batch, (int)o->warmup,
        o->warmup_frac, (int)o->warmup_budget, (int)o->grouping, (int)o->variant, o->gain_epsilon,
        o->gain_power, (int)o->schedule_by, o->total_iterations, (int)o->skip,
        o->has_statistics ? 1 : 0);
}

/* Line by line what all ranks must have been told; the first line that differs names it. */
static lg_status describe(const lg_trainer *trainer, char **out)
{
    const lg_trainer_opts *o = &trainer->opts;
    const lg_model *model = lgi_trainer_model(trainer);
    char *optim = NULL;
    LG_TRY(describe_optim(&o->optim, &optim));
    const lg_status status = lgi_sprintf(
        out,
        "model: %d layers, %" PRId64 " parameters, %016" PRIx64 "\ndevice: %s\nbatch: %" PRId64
        "\nmicro-batches: %d\nreplicas: %d\npipeline ranks: %d\nstages: %d\nchunk bytes: %" PRId64
        "\nshare bytes: %" PRId64 "\nseed: %" PRIu64 "\nsteps: %" PRId64
        "\nstrategy: %s\nlanes: %d\nthreads per lane: %d\nmemory bytes: %" PRId64
        "\nallow lag: %d\nreversed layers: %d\npush: %d\ncosts: %d\nplan from a file: %d\n%s",
        lg_model_num_layers(model), lg_model_num_param_elems(model), hash_model(trainer),
        trainer->device_name, o->batch_samples, o->num_micro_batches, trainer->num_replicas,
        trainer->num_pipeline_ranks, trainer->parallel.num_stages, trainer->parallel.chunk_bytes,
        trainer->parallel.share_bytes, o->seed, o->num_steps, trainer->strategy, o->num_lanes,
        o->threads_per_lane, o->memory_bytes, o->allow_lag ? 1 : 0, o->num_reversed,
        o->has_push ? 1 : 0, (int)o->costs, trainer->plan_path != NULL ? 1 : 0, optim);
    lgi_free(optim);
    return status;
}

/* Plans are the same on all ranks, so they are for the rank with the fewest cores; sums are cut as rank 0's machine does. */
static lg_status agree_on_cores(lg_trainer *trainer)
{
    const int32_t own[2] = {trainer->machine.num_cores, trainer->num_device_cores};
    int32_t *all = NULL;
    LG_TRY(lgi_calloc(&all, (size_t)trainer->num_ranks, sizeof own));
    const lg_status status = lgi_comm_all_gather(trainer->comm, own, sizeof own, all);
    for (int rank = 0; status == LG_OK && rank < trainer->num_ranks; rank++) {
        const int num_cores = all[2 * rank];
        trainer->machine.num_cores =
            num_cores < trainer->machine.num_cores ? num_cores : trainer->machine.num_cores;
        trainer->num_device_cores = all[1];
    }
    trainer->num_rank_cores = trainer->machine.num_cores;
    lgi_free(all);
    return status;
}

/* Hosts by name, links as given. */
static lg_status agree_on_hosts(lg_trainer *trainer)
{
    int *hosts = NULL;
    lg_machine *machine = &trainer->machine;
    machine->num_ranks = trainer->num_ranks;
    if (trainer->opts.machine != NULL) {
        machine->ranks_per_host = trainer->opts.machine->ranks_per_host;
        machine->intra_host = trainer->opts.machine->intra_host;
        machine->inter_host = trainer->opts.machine->inter_host;
        machine->reduction = trainer->opts.machine->reduction;
        machine->comm_core_frac = trainer->opts.machine->comm_core_frac;
        trainer->has_given_links = true;
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&hosts, (size_t)trainer->num_ranks, sizeof *hosts));
    const lg_status status = lgi_comm_hosts(trainer->comm, hosts);
    machine->ranks_per_host = 0;
    while (machine->ranks_per_host < trainer->num_ranks && hosts[machine->ranks_per_host] == 0) {
        machine->ranks_per_host++;
    }
    machine->ranks_per_host = machine->ranks_per_host > 0 ? machine->ranks_per_host : 1;
    lgi_free(hosts);
    return status;
}

static lg_status allocate_steps(lg_trainer *trainer)
{
    for (int i = 0; i < LGI_NUM_STEP_SLOTS; i++) {
        trainer->steps[i].own.step = -1;
        if (trainer->rank == 0) {
            LG_TRY(lgi_calloc(&trainer->steps[i].parts, (size_t)trainer->num_ranks,
                              sizeof(struct step_part)));
            LG_TRY(lgi_calloc(&trainer->steps[i].receives, (size_t)trainer->num_ranks,
                              sizeof(lgi_message)));
        }
    }
    return LG_OK;
}

lg_status lgi_trainer_join(lg_trainer *trainer)
{
    const lg_parallel *parallel = trainer->opts.parallel;
    char *text = NULL;
    LG_TRY(check_num_ranks(trainer, parallel));
    trainer->num_replicas = parallel != NULL ? parallel->num_replicas : 1;
    trainer->num_pipeline_ranks = parallel != NULL ? parallel->num_pipeline_ranks : 1;
    if (parallel != NULL) {
        trainer->parallel = *parallel;
        trainer->parallel.stage_of_layer = NULL;
        trainer->parallel.rank_of_stage = NULL;
        LG_TRY(copy_stages(trainer, parallel));
    }
    LG_TRY(allocate_steps(trainer));
    if (trainer->comm == NULL) {
        return LG_OK;
    }
    LG_TRY(describe(trainer, &text));
    const lg_status status = lgi_comm_agree(trainer->comm, "training", text);
    lgi_free(text);
    LG_TRY(status);
    LG_TRY(agree_on_cores(trainer));
    LG_TRY(agree_on_hosts(trainer));
    return lgi_comm_set_far_link(trainer->comm, trainer->machine.ranks_per_host,
                                 trainer->machine.inter_host.bytes_per_s);
}

const lg_parallel *lgi_trainer_parallel(const lg_trainer *trainer)
{
    return trainer->parallel.num_replicas > 0 ? &trainer->parallel : NULL;
}

lg_status lgi_trainer_agree(lg_trainer *trainer, const lg_graph *graph)
{
    char text[128];
    if (trainer->comm == NULL) {
        return LG_OK;
    }
    (void)snprintf(text, sizeof text, "fingerprint: %016" PRIx64 "\n", lg_graph_fingerprint(graph));
    return lgi_comm_agree(trainer->comm, "step graph", text);
}

lg_status lgi_trainer_note(lg_trainer *trainer, lg_status status)
{
    if (status != LG_OK && trainer->comm != NULL) {
        lgi_comm_fail(trainer->comm, status, lg_last_error());
    }
    return status;
}

/* --- results of steps -------------------------------------------------------------------------------------------------- */

static struct step_slot *slot_of(lg_trainer *trainer, int64_t step)
{
    return &trainer->steps[step % LGI_NUM_STEP_SLOTS];
}

/* Until the slot's messages are done. */
static lg_status wait_for_slot(const lg_trainer *trainer, struct step_slot *slot)
{
    lg_status status = LG_OK;
    if (!slot->is_under_way) {
        return LG_OK;
    }
    if (trainer->rank != 0) {
        LG_KEEP_FIRST(lgi_comm_wait(trainer->comm, &slot->send));
    }
    for (int rank = 1; trainer->rank == 0 && rank < trainer->num_ranks; rank++) {
        LG_KEEP_FIRST(lgi_comm_wait(trainer->comm, &slot->receives[rank]));
    }
    slot->is_under_way = false;
    return status;
}

void lgi_trainer_leave(lg_trainer *trainer)
{
    for (int i = 0; i < LGI_NUM_STEP_SLOTS; i++) {
        struct step_slot *slot = &trainer->steps[i];
        const lg_status status = wait_for_slot(trainer, slot);
        (void)status; /* its failure is known already */
        lgi_free(slot->parts);
        lgi_free(slot->receives);
    }
    lgi_free(trainer->stage_of_layer);
    lgi_free(trainer->rank_of_stage);
}

static void post(lg_trainer *trainer, lgi_message *message, bool is_send, int peer, int channel,
                 void *data, int64_t num_bytes)
{
    memset(message, 0, sizeof *message);
    message->is_send = is_send;
    message->peer = peer;
    message->channel = channel;
    message->data = data;
    message->num_bytes = num_bytes;
    lgi_comm_post(trainer->comm, message);
}

lg_status lgi_trainer_open_step(lg_trainer *trainer, int64_t step)
{
    struct step_slot *slot = slot_of(trainer, step);
    if (trainer->num_ranks == 1) {
        return LG_OK;
    }
    LG_TRY(wait_for_slot(trainer, slot));
    for (int rank = 1; trainer->rank == 0 && rank < trainer->num_ranks; rank++) {
        post(trainer, &slot->receives[rank], false, rank, LGI_CHANNEL_STEP, &slot->parts[rank],
             sizeof slot->parts[rank]);
        slot->is_under_way = true;
    }
    return LG_OK;
}

void lgi_trainer_close_step(lg_trainer *trainer, const struct step_part *part)
{
    struct step_slot *slot = slot_of(trainer, part->step);
    slot->own = *part;
    if (trainer->rank == 0) {
        slot->parts[0] = *part;
    } else {
        post(trainer, &slot->send, true, 0, LGI_CHANNEL_STEP, &slot->own, sizeof slot->own);
        slot->is_under_way = true;
    }
}

static lg_status check_part(const struct step_part *own, const struct step_part *part, int rank)
{
    if (part->step != own->step) {
        LG_FAIL(LG_INTERNAL, "rank %d is at step %" PRId64 ", rank 0 at %" PRId64, rank, part->step,
                own->step);
    }
    if (part->batch_hash != own->batch_hash) {
        LG_FAIL(LG_INVALID_ARG, "step %" PRId64 ": rank %d has another batch than rank 0",
                own->step, rank);
    }
    return LG_OK;
}

lg_status lg_trainer_result(lg_trainer *trainer, int64_t step, lg_step_result *result)
{
    struct step_slot *slot = slot_of(trainer, step < 0 ? 0 : step);
    lg_eval_sums sums = {0.0, 0.0, 0, 0};
    if (step < 0 || slot->own.step != step || step + 2 < trainer->next_step) {
        LG_FAIL(LG_INVALID_ARG,
                "step %" PRId64 ": its result is not there, the last step is %" PRId64, step,
                trainer->next_step - 1);
    }
    memset(result, 0, sizeof *result);
    result->step = step;
    result->grad_norm = slot->own.grad_norm;
    result->step_ns = slot->own.step_ns;
    result->loss = NAN;
    if (trainer->rank != 0) {
        return LG_OK;
    }
    LG_TRY(wait_for_slot(trainer, slot));
    for (int rank = 0; rank < trainer->num_ranks; rank++) {
        const struct step_part *part = &slot->parts[rank];
        LG_TRY(lgi_trainer_note(trainer, check_part(&slot->own, part, rank)));
        sums.loss_sum += part->sums.loss_sum;
        sums.weight_sum += part->sums.weight_sum;
        sums.num_correct += part->sums.num_correct;
        sums.num_targets += part->sums.num_targets;
        result->was_skipped = result->was_skipped || part->was_skipped != 0;
        result->step_ns = part->step_ns > result->step_ns ? part->step_ns : result->step_ns;
    }
    result->loss = sums.weight_sum > 0.0 ? sums.loss_sum / sums.weight_sum : 0.0;
    result->num_correct = sums.num_correct;
    result->num_targets = sums.num_targets;
    return LG_OK;
}

lg_status lgi_trainer_share_result(lg_trainer *trainer, int64_t step, lg_step_result *result)
{
    LG_TRY(lg_trainer_result(trainer, step, result));
    return trainer->num_ranks > 1 ? lgi_comm_broadcast(trainer->comm, 0, result, sizeof *result)
                                  : LG_OK;
}

lg_status lgi_trainer_add_sums(lg_trainer *trainer, const lg_eval_sums *own, lg_eval_sums *sums)
{
    lg_eval_sums *all = NULL;
    lg_eval_sums total = {0.0, 0.0, 0, 0};
    lg_status status = LG_OK;
    LG_TRY(lgi_calloc(&all, (size_t)trainer->num_ranks, sizeof *all));
    all[0] = *own;
    if (trainer->num_ranks > 1) {
        LG_TRY_GOTO(lgi_comm_all_gather(trainer->comm, own, sizeof *own, all));
    }
    for (int rank = 0; rank < trainer->num_ranks; rank++) {
        total.loss_sum += all[rank].loss_sum;
        total.weight_sum += all[rank].weight_sum;
        total.num_correct += all[rank].num_correct;
        total.num_targets += all[rank].num_targets;
    }
    sums->loss_sum += total.loss_sum;
    sums->weight_sum += total.weight_sum;
    sums->num_correct += total.num_correct;
    sums->num_targets += total.num_targets;
out:
    lgi_free(all);
    return status;
}

/* --- conversations ------------------------------------------------------------------------------------------------------ */

/* What rank 0 wants; kind -1: it is through. */
struct request {
    int32_t kind;
    int32_t idx;
    int32_t slot;
    int32_t is_raw;
};

/* How it went. */
struct outcome {
    int32_t status;
    char message[508];
};

static int64_t answer_bytes(const lg_trainer *trainer, lg_value_kind kind, int idx, int slot,
                            bool is_raw)
{
    const lg_graph *graph = trainer->main->lowered->graph;
    const lg_value_info *value =
        lg_graph_value(graph, lgi_trainer_place(trainer, kind, idx, slot)->owner_value);
    const lg_shape shape = lgi_value_shape(lgi_trainer_model(trainer), value);
    return is_raw ? value->bytes : lg_shape_num_elems(&shape) * (int64_t)sizeof(float);
}

/* This rank's copy. Of running statistics it is always the replica's own. */
static lg_status read_own(const lg_trainer *trainer, lg_value_kind kind, int idx, int slot,
                          bool is_raw, void *dst)
{
    const int value = lgi_trainer_place(trainer, kind, idx, slot)->own_value;
    const lg_value_info *info = lg_graph_value(trainer->main->lowered->graph, value);
    if (kind == LG_VALUE_STATE && !is_raw) {
        const lg_shape shape = lgi_value_shape(lgi_trainer_model(trainer), info);
        return trainer->device->ops->read(trainer->device, &shape, info->layout,
                                          lgi_trainer_own_state(trainer, value), dst);
    }
    if (is_raw) {
        memcpy(dst,
               kind == LG_VALUE_STATE ? lgi_trainer_own_state(trainer, value)
                                      : (const char *)trainer->arena +
                                            trainer->main->plan->values[value].offset_bytes[0],
               (size_t)info->bytes);
        return LG_OK;
    }
    return lgi_trainer_read_value(trainer, value, dst);
}

lg_status lgi_trainer_fetch(lg_trainer *trainer, int rank, lg_value_kind kind, int idx, int slot,
                            bool is_raw, void *dst)
{
    struct request request = {(int32_t)kind, idx, slot, is_raw ? 1 : 0};
    lgi_message send;
    lgi_message receive;
    if (rank == trainer->rank) {
        return read_own(trainer, kind, idx, slot, is_raw, dst);
    }
    post(trainer, &send, true, rank, LGI_CHANNEL_HOST, &request, sizeof request);
    post(trainer, &receive, false, rank, LGI_CHANNEL_HOST, dst,
         answer_bytes(trainer, kind, idx, slot, is_raw));
    const lg_status status = lgi_comm_wait(trainer->comm, &send);
    const lg_status received = lgi_comm_wait(trainer->comm, &receive);
    return status != LG_OK ? status : received;
}

/* Answers until rank 0 is through. */
static lg_status serve(lg_trainer *trainer)
{
    for (;;) {
        struct request request;
        lgi_message message;
        void *answer = NULL;
        post(trainer, &message, false, 0, LGI_CHANNEL_HOST, &request, sizeof request);
        LG_TRY(lgi_comm_wait(trainer->comm, &message));
        if (request.kind < 0) {
            return LG_OK;
        }
        const lg_value_kind kind = (lg_value_kind)request.kind;
        const bool is_raw = request.is_raw != 0;
        const int64_t num_bytes = answer_bytes(trainer, kind, request.idx, request.slot, is_raw);
        LG_TRY(lgi_calloc(&answer, (size_t)num_bytes, 1));
        lg_status status = read_own(trainer, kind, request.idx, request.slot, is_raw, answer);
        if (status == LG_OK) {
            post(trainer, &message, true, 0, LGI_CHANNEL_HOST, answer, num_bytes);
            status = lgi_comm_wait(trainer->comm, &message);
        }
        lgi_free(answer);
        LG_TRY(status);
    }
}

static lg_status end_conversation(lg_trainer *trainer)
{
    lg_status status = LG_OK;
    for (int rank = 1; rank < trainer->num_ranks; rank++) {
        struct request through = {-1, 0, 0, 0};
        lgi_message message;
        post(trainer, &message, true, rank, LGI_CHANNEL_HOST, &through, sizeof through);
        LG_KEEP_FIRST(lgi_comm_wait(trainer->comm, &message));
    }
    return status;
}

lg_status lgi_trainer_on_first_rank(lg_trainer *trainer, lgi_trainer_body body, void *user)
{
    struct outcome outcome;
    if (trainer->num_ranks == 1) {
        return body(trainer, user);
    }
    memset(&outcome, 0, sizeof outcome);
    if (trainer->rank == 0) {
        const lg_status status = body(trainer, user);
        outcome.status = (int32_t)status;
        if (status != LG_OK) {
            (void)snprintf(outcome.message, sizeof outcome.message, "%s", lg_last_error());
        }
        LG_TRY(end_conversation(trainer));
    } else {
        LG_TRY(lgi_trainer_note(trainer, serve(trainer)));
    }
    LG_TRY(lgi_comm_broadcast(trainer->comm, 0, &outcome, sizeof outcome));
    return outcome.status == LG_OK ? LG_OK
                                   : lgi_fail_copy((lg_status)outcome.status, outcome.message);
}
