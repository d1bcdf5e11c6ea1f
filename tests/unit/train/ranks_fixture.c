#include "unit/train/ranks_fixture.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "leapgrad/models.h"
#include "train/trainer_internal.h"

#define CONTEXT 7
#define VOCAB 13
#define IMAGE_ELEMS (2 * 6 * 6)
#define NUM_CLASSES 5

rf_run rf_run_default(void)
{
    rf_run run;
    memset(&run, 0, sizeof run);
    run.device = lg_device_name(0);
    run.strategy = "in-order";
    run.num_pipeline_ranks = 1;
    run.num_replicas = 1;
    run.num_micro_batches = 1;
    run.num_reversed = -1;
    run.num_samples = RF_MAX_SAMPLES;
    run.num_steps = 4;
    run.ragged_samples = 5;
    run.optim = lg_optim_opts_default();
    run.optim.momentum = 0.9;
    run.bad_rank = -1;
    run.other_rank = -1;
    run.broken_rank = -1;
    return run;
}

int rf_num_ranks(const rf_run *run)
{
    return run->num_pipeline_ranks * run->num_replicas;
}

const char *rf_describe(const rf_run *run)
{
    static char text[256];
    static const char *const models[RF_NUM_MODELS] = {"cnn", "gpt", "bert", "plain cnn"};
    (void)snprintf(text, sizeof text,
                   "%s %s %s P=%d D=%d M=%d stages=%d%s batch=%lld chunk=%lld share=%lld k=%d",
                   models[run->model], run->device, run->strategy, run->num_pipeline_ranks,
                   run->num_replicas, run->num_micro_batches, run->num_stages,
                   run->is_uneven ? " (uneven)" : "", (long long)run->num_samples,
                   (long long)run->chunk_bytes, (long long)run->share_bytes, run->num_reversed);
    return text;
}

/* --- models ------------------------------------------------------------------------------------------------------------ */

static void must(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
}

static int add(lg_model *model, const char *name, lg_layer_kind kind, const lg_layer_attrs *attrs,
               int input, int other)
{
    const int inputs[2] = {input, other};
    int layer = -1;
    must(lg_model_add(model, name, kind, attrs, inputs,
                      other >= 0   ? 2
                      : input >= 0 ? 1
                                   : 0,
                      &layer));
    return layer;
}

static bool is_cnn(rf_model model)
{
    return model == RF_CNN || model == RF_PLAIN_CNN;
}

/* conv - bn - relu - dropout - conv - bn - add - relu - pool - linear - loss on 6x6 images */
static lg_model *cnn(bool has_norm)
{
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    must(lg_model_create(&model));
    attrs.input_shape = LG_SHAPE(2, 6, 6);
    const int image = add(model, "image", LG_LAYER_INPUT, &attrs, -1, -1);
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    const int targets = add(model, "targets", LG_LAYER_INPUT, &attrs, -1, -1);
    attrs = lg_layer_attrs_default();
    attrs.window = lg_window_square(3, 1, 1);
    attrs.num_outputs = 17;
    attrs.activation = LG_ACTIVATION_RELU;
    attrs.drop_prob = 0.25f;
    const lg_layer_attrs plain = lg_layer_attrs_default();
    int x = add(model, "conv1", LG_LAYER_CONV2D, &attrs, image, -1);
    x = has_norm ? add(model, "bn1", LG_LAYER_BATCH_NORM, NULL, x, -1) : x;
    x = add(model, "relu1", LG_LAYER_ACTIVATION, &attrs, x, -1);
    const int skipped = add(model, "drop", LG_LAYER_DROPOUT, &attrs, x, -1);
    x = add(model, "conv2", LG_LAYER_CONV2D, &attrs, skipped, -1);
    x = has_norm ? add(model, "bn2", LG_LAYER_BATCH_NORM, &plain, x, -1) : x;
    x = add(model, "add", LG_LAYER_ADD, &plain, x, skipped);
    x = add(model, "relu2", LG_LAYER_ACTIVATION, &attrs, x, -1);
    x = add(model, "pool", LG_LAYER_GLOBAL_AVG_POOL, NULL, x, -1);
    attrs.num_outputs = NUM_CLASSES;
    x = add(model, "fc", LG_LAYER_LINEAR, &attrs, x, -1);
    (void)add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, x, targets);
    return model;
}

static lg_model *gpt(void)
{
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = 2;
    opts.width = 24;
    opts.num_heads = 2;
    opts.context = CONTEXT;
    opts.vocab_size = VOCAB;
    opts.drop_prob = 0.1;
    must(lg_model_gpt(&model, &opts));
    return model;
}

static lg_model *bert(void)
{
    lg_model *model = NULL;
    lg_bert_opts opts = lg_bert_opts_default();
    opts.num_layers = 2;
    opts.width = 16;
    opts.num_heads = 2;
    opts.context = CONTEXT;
    opts.vocab_size = VOCAB;
    must(lg_model_bert(&model, &opts));
    return model;
}

lg_model *rf_model_create(rf_model model)
{
    return is_cnn(model) ? cnn(model == RF_CNN) : model == RF_GPT ? gpt() : bert();
}

/* --- batches ------------------------------------------------------------------------------------------------------------ */

typedef struct batch {
    float images[RF_MAX_SAMPLES * IMAGE_ELEMS];
    int32_t ids[RF_MAX_SAMPLES * CONTEXT];
    int32_t targets[RF_MAX_SAMPLES * CONTEXT];
    float keep[RF_MAX_SAMPLES * CONTEXT];
    int32_t segments[RF_MAX_SAMPLES * CONTEXT];
    const void *tensors[4];
} batch;

static int next_random(uint64_t *state, int below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)below);
}

static void fill_batch(batch *b, rf_model model, int64_t step)
{
    uint64_t state = 77 + (uint64_t)step;
    for (int i = 0; i < RF_MAX_SAMPLES * IMAGE_ELEMS; i++) {
        b->images[i] = (float)next_random(&state, 2000) / 1000.0f - 1.0f;
    }
    for (int i = 0; i < RF_MAX_SAMPLES * CONTEXT; i++) {
        const bool is_ignored = !is_cnn(model) && next_random(&state, 4) == 0;
        b->ids[i] = next_random(&state, VOCAB);
        b->targets[i] =
            is_ignored ? -100 : next_random(&state, is_cnn(model) ? NUM_CLASSES : VOCAB);
        b->keep[i] = i % CONTEXT < 5 ? 1.0f : 0.0f;
        b->segments[i] = i % CONTEXT > 3 ? 1 : 0;
    }
    b->tensors[0] = is_cnn(model) ? (const void *)b->images : (const void *)b->ids;
    b->tensors[1] = b->targets;
    b->tensors[2] = b->keep;
    b->tensors[3] = b->segments;
}

/* --- one rank ----------------------------------------------------------------------------------------------------------- */

typedef struct rank_thread {
    const rf_run *run;
    const lg_model *model;
    const lg_parallel *parallel;
    lg_comm *comm;
    int rank;
    rf_result *result;
} rank_thread;

static lg_trainer_opts trainer_opts(const rank_thread *self)
{
    const rf_run *const run = self->run;
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = run->device;
    opts.batch_samples = run->num_samples;
    opts.num_micro_batches = run->num_micro_batches;
    opts.num_steps = run->num_steps;
    opts.seed = 3;
    opts.strategy = run->strategy;
    opts.threads_per_lane = 1;
    opts.optim = run->optim;
    opts.num_reversed = run->num_reversed;
    opts.comm = self->comm;
    opts.parallel = self->parallel;
    opts.costs = run->measures_costs ? LG_TRAINER_COSTS_MEASURE : LG_TRAINER_COSTS_ESTIMATE;
    return opts;
}

static lg_status fail_to_run(lgi_device_layer *layer, lgi_phase phase, int width_idx,
                             const lgi_layer_io *io)
{
    (void)layer;
    (void)phase;
    (void)width_idx;
    (void)io;
    LG_FAIL(LG_DEVICE, "the device is on fire");
}

/* From now on all layers of the rank fail. */
static void break_device(lg_trainer *trainer)
{
    static struct lgi_device_ops broken;
    broken = *trainer->device->ops;
    broken.run = fail_to_run;
    trainer->device->ops = &broken;
}

static lg_status run_steps(const rank_thread *self, lg_trainer *trainer, batch *b)
{
    const rf_run *const run = self->run;
    rf_result *const result = self->result;
    const int64_t end = run->stop_step > 0 ? run->stop_step : run->num_steps;
    while (lg_trainer_next_step(trainer) < end) {
        const int64_t step = lg_trainer_next_step(trainer);
        const bool is_ragged = run->ragged_samples > 0 && step == run->num_steps - 2;
        fill_batch(b, run->model, step + (step == 1 && run->other_rank == self->rank ? 100 : 0));
        if (step == 1 && run->bad_rank == self->rank) {
            b->targets[0] = 1000;
        }
        if (step == 1 && run->broken_rank == self->rank) {
            break_device(trainer);
        }
        lg_trainer_record(trainer, run->records);
        LG_TRY(lg_trainer_step(trainer, is_ragged ? run->ragged_samples : run->num_samples,
                               b->tensors, run->wants_results ? &result->last : NULL));
        if (run->evaluates && step == 1) {
            fill_batch(b, run->model, 1000);
            LG_TRY(lg_trainer_evaluate(trainer, RF_MAX_SAMPLES, b->tensors, &result->sums));
            LG_TRY(lg_trainer_evaluate(trainer, 1, b->tensors, &result->sums));
            result->num_logits = 3 * lg_trainer_num_logits(trainer);
            LG_TRY(lg_trainer_predict(trainer, 3, b->tensors, result->logits));
        }
    }
    if (!run->wants_results && lg_trainer_next_step(trainer) > 0 && run->load_path == NULL) {
        LG_TRY(lg_trainer_result(trainer, lg_trainer_next_step(trainer) - 1, &result->last));
    }
    return LG_OK;
}

static lg_status look_at(const rank_thread *self, lg_trainer *trainer)
{
    const rf_run *const run = self->run;
    rf_result *const result = self->result;
    if (run->reads != NULL) {
        result->num_elems = 0;
        for (int i = 0; i < lg_model_num_params(self->model); i++) {
            const lg_param_info *const param = lg_model_param(self->model, i);
            if (strncmp(run->reads, param->name, strlen(param->name)) == 0) {
                result->num_elems = lg_shape_num_elems(&param->shape);
            }
        }
        for (int i = 0; i < lg_model_num_states(self->model); i++) {
            const lg_state_info *const state = lg_model_state(self->model, i);
            if (strcmp(run->reads, state->name) == 0) {
                result->num_elems = lg_shape_num_elems(&state->shape);
            }
        }
        LG_TRY(lg_trainer_read(trainer, run->reads, result->elems, result->num_elems));
    }
    if (lg_trainer_has_rates(trainer)) {
        LG_TRY(lg_trainer_rate(trainer, 0, &result->rate));
        LG_TRY(lg_trainer_iterations(trainer, &result->iterations));
    }
    result->num_ops = lg_graph_num_ops(lg_trainer_graph(trainer));
    if (run->records) {
        lg_timeline timeline;
        LG_TRY(lg_trainer_timeline(trainer, &timeline));
        result->num_spans = timeline.num_spans;
        lg_timeline_deinit(&timeline);
    }
    if (run->save_path != NULL) {
        LG_TRY(lg_trainer_save(trainer, run->save_path, NULL, NULL, 2));
    }
    return lg_trainer_weights_hash(trainer, result->hash);
}

static lg_status load(const rank_thread *self, lg_trainer *trainer)
{
    lg_checkpoint *checkpoint = NULL;
    lg_status status = LG_OK;
    if (self->rank == 0) {
        LG_TRY(lg_checkpoint_open(&checkpoint, self->run->load_path));
    }
    status = lg_trainer_load(trainer, checkpoint, false);
    lg_checkpoint_close(checkpoint);
    return status;
}

static lg_status run_rank(const rank_thread *self)
{
    lg_trainer *trainer = NULL;
    batch *b = NULL;
    lg_status status = LG_OK;
    const lg_trainer_opts opts = trainer_opts(self);
    LG_TRY(lg_trainer_create(&trainer, self->model, &opts));
    b = calloc(1, sizeof *b);
    if (self->run->load_path != NULL) {
        LG_TRY_GOTO(load(self, trainer));
    }
    LG_TRY_GOTO(run_steps(self, trainer, b));
    LG_TRY_GOTO(look_at(self, trainer));
    self->result->info = lg_trainer_about(trainer);
    self->result->info.device = self->result->info.device_text = self->result->info.strategy = NULL;
out:
    lg_trainer_destroy(trainer);
    free(b);
    return status;
}

static void train_rank(const rank_thread *self)
{
    memset(self->result, 0, sizeof *self->result);
    self->result->status = run_rank(self);
    if (self->result->status != LG_OK) {
        (void)snprintf(self->result->message, sizeof self->result->message, "%s", lg_last_error());
    }
}

static void *rank_main(void *user)
{
    rank_thread *const self = user;
    train_rank(self);
    lg_comm_destroy(self->comm);
    return NULL;
}

/* --- all ranks ------------------------------------------------------------------------------------------------------------ */

#define MAX_LAYERS 256
#define MAX_STAGES 64

typedef struct placement {
    lg_parallel parallel;
    int stage_of_layer[MAX_LAYERS];
    int rank_of_stage[MAX_STAGES];
} placement;

static int uneven_stage(int layer, int num_layers, int num_stages)
{
    const int num_first = num_layers / 2;
    return layer < num_first || num_stages == 1
               ? 0
               : 1 + (layer - num_first) * (num_stages - 1) / (num_layers - num_first);
}

/* Layers in equal parts by their number, so that the skip connection and the tie go over stages. */
static void place(const lg_model *model, const rf_run *run, placement *out)
{
    lg_parallel *const parallel = &out->parallel;
    const int num_layers = lg_model_num_layers(model);
    const int num_stages = run->num_stages > 0 ? run->num_stages : run->num_pipeline_ranks;
    memset(parallel, 0, sizeof *parallel);
    for (int i = 0; i < num_layers; i++) {
        out->stage_of_layer[i] =
            run->is_uneven ? uneven_stage(i, num_layers, num_stages) : i * num_stages / num_layers;
    }
    for (int i = 0; i < num_stages; i++) {
        const int p = run->num_pipeline_ranks;
        out->rank_of_stage[i] = run->is_v ? (i < p ? i : 2 * p - 1 - i) : i % p;
    }
    parallel->num_replicas = run->num_replicas;
    parallel->num_pipeline_ranks = run->num_pipeline_ranks;
    parallel->num_stages = num_stages;
    parallel->stage_of_layer = out->stage_of_layer;
    parallel->rank_of_stage = out->rank_of_stage;
    parallel->chunk_bytes = run->chunk_bytes;
    parallel->share_bytes = run->share_bytes;
}

void rf_train_rank(const rf_run *run, lg_comm *comm, rf_result *result)
{
    placement placed;
    lg_model *model = rf_model_create(run->model);
    place(model, run, &placed);
    const rank_thread self = {run, model, &placed.parallel, comm, lg_comm_rank(comm), result};
    train_rank(&self);
    lg_model_destroy(model);
}

void rf_train_all(const rf_run *run, rf_result *results)
{
    lg_comm *comms[RF_MAX_RANKS];
    rank_thread threads[RF_MAX_RANKS];
    pthread_t ids[RF_MAX_RANKS];
    placement placed;
    const int num_ranks = rf_num_ranks(run);
    lg_model *model = rf_model_create(run->model);
    place(model, run, &placed);
    must(lg_comm_local_create(comms, num_ranks));
    for (int rank = 0; rank < num_ranks; rank++) {
        threads[rank] =
            (rank_thread){run, model, &placed.parallel, comms[rank], rank, &results[rank]};
        assert_int_equal(pthread_create(&ids[rank], NULL, rank_main, &threads[rank]), 0);
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        (void)pthread_join(ids[rank], NULL);
    }
    lg_model_destroy(model);
}

void rf_train(const rf_run *run, rf_result *result)
{
    static rf_result results[RF_MAX_RANKS];
    rf_train_all(run, results);
    for (int rank = 0; rank < rf_num_ranks(run); rank++) {
        const rf_result *const r = &results[rank];
        if (r->status != LG_OK) {
            fail_msg("%s, rank %d: %s", rf_describe(run), rank, r->message);
        }
        if (strcmp(r->hash, results[0].hash) != 0 ||
            memcmp(&r->sums, &results[0].sums, sizeof r->sums) != 0 ||
            memcmp(r->logits, results[0].logits, sizeof r->logits) != 0 ||
            memcmp(r->elems, results[0].elems, sizeof r->elems) != 0 ||
            memcmp(&r->rate, &results[0].rate, sizeof r->rate) != 0) {
            fail_msg("%s: ranks 0 and %d have not the same results", rf_describe(run), rank);
        }
        if (run->wants_results && memcmp(&r->last, &results[0].last, sizeof r->last) != 0) {
            fail_msg("%s: ranks 0 and %d have not the same last result", rf_describe(run), rank);
        }
        if (r->info.planned_peak_bytes != r->info.measured_peak_bytes) {
            fail_msg("%s, rank %d: %lld bytes planned, %lld measured", rf_describe(run), rank,
                     (long long)r->info.planned_peak_bytes, (long long)r->info.measured_peak_bytes);
        }
    }
    *result = results[0];
}
