/*
 * Rates from gradient statistics: what micro-batches weigh, what the last step came to, and the states in checkpoints
 * (f64 tensors "NAME.rate" of lg_rate_state's numbers).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "train/trainer_internal.h"

bool lg_trainer_has_rates(const lg_trainer *trainer)
{
    return lg_optim_has_statistics(&trainer->opts.optim);
}

lg_status lgi_trainer_start_rates(lg_trainer *trainer)
{
    if (!lg_trainer_has_rates(trainer)) {
        return LG_OK;
    }
    const size_t num_params = (size_t)lg_model_num_params(trainer->model);
    trainer->all_rates_step = -1;
    LG_TRY(lgi_calloc(&trainer->weights,
                      (size_t)trainer->opts.num_micro_batches * (size_t)trainer->num_replicas,
                      sizeof *trainer->weights));
    LG_TRY(lgi_calloc(&trainer->all_rates, num_params, sizeof *trainer->all_rates));
    LG_TRY(lgi_calloc(&trainer->all_rate_states, num_params, sizeof *trainer->all_rate_states));
    return lgi_calloc(&trainer->rates, num_params, sizeof *trainer->rates);
}

const double *lgi_trainer_weigh(lg_trainer *trainer, const struct prepared *prepared,
                                const void *const *tensors, double weight)
{
    const lg_graph *graph = prepared->lowered->graph;
    if (trainer->weights == NULL || weight <= 0.0) {
        return NULL;
    }
    for (int i = 0; i < lg_graph_num_micro_batches(graph); i++) {
        trainer->weights[i] =
            lgi_batch_weight(trainer->model, tensors, lg_graph_micro_batch_begin(graph, i),
                             lg_graph_micro_batch_begin(graph, i + 1)) /
            weight;
    }
    return trainer->weights;
}

/* --- the last step ------------------------------------------------------------------------------------------------- */

/* Whether a parameter of this layer was skipped. */
static bool is_layer_skipped(const lg_trainer *trainer, int layer)
{
    const lg_layer_info *const info = lg_model_layer(lgi_trainer_model(trainer), layer);
    for (int i = 0; i < info->num_params; i++) {
        if (trainer->rates[info->params[i]].is_skipped != 0.0) {
            return true;
        }
    }
    return false;
}

bool lgi_trainer_keep_rates(lg_trainer *trainer, const struct prepared *prepared, int64_t step)
{
    const lg_graph *graph = prepared->lowered->graph;
    bool has_rates = false;
    bool was_skipped = false;
    for (int i = 0; trainer->rates != NULL && i < prepared->num_outputs; i++) {
        const lg_value_info *value = lg_graph_value(graph, prepared->outputs[i]);
        if (value->kind == LG_VALUE_RATE) {
            memcpy(trainer->rates, lgi_program_value(prepared->program, prepared->outputs[i], step),
                   (size_t)value->bytes);
            has_rates = true;
        }
    }
    /* Of all parameters, only those whose states are on this rank have rates here. Persistent values stand first. */
    for (int i = 0; has_rates && lg_graph_value(graph, i)->is_persistent; i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->kind == LG_VALUE_RATE_STATE && value->rank == trainer->rank) {
            was_skipped = was_skipped || is_layer_skipped(trainer, value->layer);
        }
    }
    return was_skipped;
}

/*
 * Where the numbers of `param` lie in the arena's value of this kind: `num` for each parameter of its owner. NULL: not on this
 * rank.
 */
static double *find_numbers(const lg_trainer *trainer, lg_value_kind kind, int param, int num)
{
    const struct prepared *main = trainer->main;
    const lg_graph *graph = main->lowered->graph;
    const lg_model *model = lgi_trainer_model(trainer);
    const int owner = lg_model_param(model, param)->owner_layer;
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->kind != kind || !value->is_persistent || value->layer != owner ||
            value->rank != trainer->rank) {
            continue;
        }
        double *numbers =
            (double *)(void *)((char *)trainer->arena + main->plan->values[i].offset_bytes[0]);
        const lg_layer_info *info = lg_model_layer(model, owner);
        for (int k = 0; k < info->num_params; k++) {
            if (info->params[k] == param) {
                return numbers + (int64_t)k * num;
            }
        }
    }
    return NULL;
}

static lg_status check_param(const lg_trainer *trainer, int param)
{
    const int num_params = lg_model_num_params(trainer->model);
    if (!lg_trainer_has_rates(trainer)) {
        LG_FAIL(LG_INVALID_ARG, "rates: this training has no gradient statistics");
    }
    if (param < 0 || param >= num_params) {
        LG_FAIL(LG_INVALID_ARG, "rates: parameter %d is not in [0, %d)", param, num_params);
    }
    return LG_OK;
}

/* What a rank knows of a parameter. */
struct rate_record {
    lg_rate rate;
    lg_rate_state state;
    double is_known;
};

static void fill_records(const lg_trainer *trainer, struct rate_record *records)
{
    const bool is_joint = trainer->opts.optim.skip == LG_SKIP_STEP;
    for (int param = 0; param < lg_model_num_params(trainer->model); param++) {
        const double *state =
            find_numbers(trainer, LG_VALUE_RATE_STATE, param, LG_RATE_STATE_NUMBERS);
        const double *rate = is_joint ? (const double *)(const void *)&trainer->rates[param]
                                      : find_numbers(trainer, LG_VALUE_RATE, param,
                                                     (int)(sizeof(lg_rate) / sizeof(double)));
        if (state != NULL && rate != NULL) {
            memcpy(&records[param].state, state, sizeof records[param].state);
            memcpy(&records[param].rate, rate, sizeof records[param].rate);
            records[param].is_known = 1.0;
        }
    }
}

/* Takes over what replica 0 knows. */
static void take_records(lg_trainer *trainer, const struct rate_record *records)
{
    const int num_params = lg_model_num_params(trainer->model);
    for (int param = 0; param < num_params; param++) {
        for (int rank = 0; rank < trainer->num_pipeline_ranks; rank++) {
            const struct rate_record *record = &records[rank * num_params + param];
            if (record->is_known != 0.0) {
                trainer->all_rates[param] = record->rate;
                trainer->all_rate_states[param] = record->state;
                break;
            }
        }
    }
}

lg_status lgi_trainer_gather_rates(lg_trainer *trainer)
{
    const size_t num_params = (size_t)lg_model_num_params(trainer->model);
    lg_status status = LG_OK;
    struct rate_record *own = NULL;
    struct rate_record *all = NULL;
    if (!lg_trainer_has_rates(trainer)) {
        return LG_OK;
    }
    if (trainer->opts.optim.skip != LG_SKIP_STEP) { /* joint rates are there when a step ends */
        LG_TRY(lg_trainer_drain(trainer));
    }
    if (trainer->all_rates_step == trainer->next_step) {
        return LG_OK;
    }
    LG_TRY_GOTO(lgi_calloc(&own, num_params, sizeof *own));
    fill_records(trainer, own);
    if (trainer->num_ranks > 1) {
        LG_TRY_GOTO(lgi_calloc(&all, num_params * (size_t)trainer->num_ranks, sizeof *all));
        LG_TRY_GOTO(
            lgi_comm_all_gather(trainer->comm, own, (int64_t)(num_params * sizeof *own), all));
    }
    take_records(trainer, all != NULL ? all : own);
    trainer->all_rates_step = trainer->next_step;
out:
    lgi_free(own);
    lgi_free(all);
    return status;
}

lg_status lg_trainer_rate(lg_trainer *trainer, int param, lg_rate *out)
{
    memset(out, 0, sizeof *out);
    LG_TRY(check_param(trainer, param));
    LG_TRY(lgi_trainer_gather_rates(trainer));
    *out = trainer->all_rates[param];
    return LG_OK;
}

lg_status lg_trainer_rate_state(lg_trainer *trainer, int param, lg_rate_state *out)
{
    memset(out, 0, sizeof *out);
    LG_TRY(check_param(trainer, param));
    LG_TRY(lgi_trainer_gather_rates(trainer));
    *out = trainer->all_rate_states[param];
    return LG_OK;
}

lg_status lg_trainer_iterations(lg_trainer *trainer, double *out)
{
    *out = -1.0;
    for (int param = 0;
         lg_trainer_has_rates(trainer) && param < lg_model_num_params(trainer->model); param++) {
        lg_rate rate;
        LG_TRY(lg_trainer_rate(trainer, param, &rate));
        *out = *out < 0.0 || rate.iterations < *out ? rate.iterations : *out;
    }
    return LG_OK;
}

/* --- checkpoints --------------------------------------------------------------------------------------------------- */

static lg_shape state_shape(void)
{
    return LG_SHAPE(LG_RATE_STATE_NUMBERS);
}

static void format_name(const lg_trainer *trainer, int param, char *name, size_t num_bytes)
{
    (void)snprintf(name, num_bytes, "%s.rate", lg_model_param(trainer->model, param)->name);
}

/* `name`: "PARAMETER.rate". All of them have been gathered. */
static lg_status fill_state(void *user, const char *name, void *dst, size_t num_bytes)
{
    lg_trainer *trainer = user;
    char own[LG_MAX_TENSOR_NAME_BYTES];
    for (int param = 0; param < lg_model_num_params(trainer->model); param++) {
        format_name(trainer, param, own, sizeof own);
        if (strcmp(own, name) == 0) {
            memcpy(dst, &trainer->all_rate_states[param], num_bytes);
            return LG_OK;
        }
    }
    LG_FAIL(LG_INTERNAL, "no parameter has the rate state '%s'", name);
}

lg_status lgi_trainer_save_rates(lg_trainer *trainer, lg_tensor_writer *writer)
{
    const lg_shape shape = state_shape();
    char name[LG_MAX_TENSOR_NAME_BYTES];
    for (int param = 0;
         lg_trainer_has_rates(trainer) && param < lg_model_num_params(trainer->model); param++) {
        format_name(trainer, param, name, sizeof name);
        LG_TRY(lg_tensor_writer_add_filled(writer, name, LG_FILE_DTYPE_F64, &shape, fill_state,
                                           trainer));
    }
    return LG_OK;
}

static lg_status read_states(const lg_trainer *trainer, const lg_tensor_file *file,
                             lg_rate_state *states)
{
    const lg_shape shape = state_shape();
    char name[LG_MAX_TENSOR_NAME_BYTES];
    for (int param = 0; param < lg_model_num_params(trainer->model); param++) {
        format_name(trainer, param, name, sizeof name);
        LG_TRY(lg_tensor_file_read(file, name, LG_FILE_DTYPE_F64, &shape, &states[param]));
    }
    return LG_OK;
}

lg_status lgi_trainer_check_rates(lg_trainer *trainer, const lg_tensor_file *file)
{
    lg_rate_state *states = NULL;
    if (!lg_trainer_has_rates(trainer)) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&states, (size_t)lg_model_num_params(trainer->model), sizeof *states));
    const lg_status status = read_states(trainer, file, states);
    lgi_free(states);
    return status;
}

lg_status lgi_trainer_load_rates(lg_trainer *trainer, const lg_tensor_file *file)
{
    const size_t num_params = (size_t)lg_model_num_params(trainer->model);
    lg_status status = LG_OK;
    lg_rate_state *states = NULL;
    if (!lg_trainer_has_rates(trainer)) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&states, num_params, sizeof *states));
    if (trainer->rank == 0) {
        LG_TRY_GOTO(read_states(trainer, file, states));
    }
    if (trainer->num_ranks > 1) {
        LG_TRY_GOTO(
            lgi_comm_broadcast(trainer->comm, 0, states, (int64_t)(num_params * sizeof *states)));
    }
    for (size_t param = 0; param < num_params; param++) {
        double *numbers =
            find_numbers(trainer, LG_VALUE_RATE_STATE, (int)param, LG_RATE_STATE_NUMBERS);
        if (numbers != NULL) {
            memcpy(numbers, &states[param], sizeof states[param]);
        }
        trainer->rates[param].iterations = states[param].iterations;
    }
    trainer->all_rates_step = -1;
out:
    lgi_free(states);
    return status;
}
