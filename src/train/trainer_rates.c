/*
 * Rates from gradient statistics: what micro-batches weigh, what the last step came to, and the states in checkpoints
 * (f64 tensors "NAME.rate" of lg_rate_state's numbers).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
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
    LG_TRY(lgi_calloc(&trainer->weights, (size_t)trainer->opts.num_micro_batches,
                      sizeof *trainer->weights));
    return lgi_calloc(&trainer->rates, (size_t)lg_model_num_params(trainer->model),
                      sizeof *trainer->rates);
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

bool lgi_trainer_keep_rates(lg_trainer *trainer, const struct prepared *prepared, int64_t step)
{
    const lg_graph *graph = prepared->lowered->graph;
    bool was_skipped = false;
    for (int i = 0; trainer->rates != NULL && i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->kind == LG_VALUE_RATE && value->is_output) {
            memcpy(trainer->rates, lgi_program_value(prepared->program, i, step),
                   (size_t)value->bytes);
            was_skipped = trainer->rates[0].is_skipped != 0.0;
        }
    }
    return was_skipped;
}

/* Where the numbers of `param` lie in the arena's value of this kind: `num` for each parameter of its owner. */
static double *find_numbers(const lg_trainer *trainer, lg_value_kind kind, int param, int num)
{
    const struct prepared *main = trainer->main;
    const lg_graph *graph = main->lowered->graph;
    const lg_model *model = lgi_trainer_model(trainer);
    const int owner = lg_model_param(model, param)->owner_layer;
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->kind != kind || !value->is_persistent || value->layer != owner) {
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

lg_status lg_trainer_rate(lg_trainer *trainer, int param, lg_rate *out)
{
    memset(out, 0, sizeof *out);
    LG_TRY(check_param(trainer, param));
    if (trainer->opts.optim.skip == LG_SKIP_STEP) {
        *out = trainer->rates[param];
        return LG_OK;
    }
    LG_TRY(lg_trainer_drain(trainer));
    const double *numbers =
        find_numbers(trainer, LG_VALUE_RATE, param, (int)(sizeof(lg_rate) / sizeof(double)));
    if (numbers != NULL) {
        memcpy(out, numbers, sizeof *out);
    }
    return LG_OK;
}

lg_status lg_trainer_rate_state(lg_trainer *trainer, int param, lg_rate_state *out)
{
    memset(out, 0, sizeof *out);
    LG_TRY(check_param(trainer, param));
    LG_TRY(lg_trainer_drain(trainer));
    const double *numbers =
        find_numbers(trainer, LG_VALUE_RATE_STATE, param, LG_RATE_STATE_NUMBERS);
    if (numbers != NULL) {
        memcpy(out, numbers, sizeof *out);
    }
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

/* `name`: "PARAMETER.rate" */
static lg_status fill_state(void *user, const char *name, void *dst, size_t num_bytes)
{
    lg_trainer *trainer = user;
    char own[LG_MAX_TENSOR_NAME_BYTES];
    for (int param = 0; param < lg_model_num_params(trainer->model); param++) {
        format_name(trainer, param, own, sizeof own);
        if (strcmp(own, name) == 0) {
            lg_rate_state state;
            LG_TRY(lg_trainer_rate_state(trainer, param, &state));
            memcpy(dst, &state, num_bytes);
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

lg_status lgi_trainer_load_rates(lg_trainer *trainer, const lg_tensor_file *file, bool is_writing)
{
    const lg_shape shape = state_shape();
    char name[LG_MAX_TENSOR_NAME_BYTES];
    for (int param = 0;
         lg_trainer_has_rates(trainer) && param < lg_model_num_params(trainer->model); param++) {
        lg_rate_state state;
        format_name(trainer, param, name, sizeof name);
        LG_TRY(lg_tensor_file_read(file, name, LG_FILE_DTYPE_F64, &shape, &state));
        if (is_writing) {
            double *numbers =
                find_numbers(trainer, LG_VALUE_RATE_STATE, param, LG_RATE_STATE_NUMBERS);
            memcpy(numbers, &state, sizeof state);
            trainer->rates[param].iterations = state.iterations;
        }
    }
    return LG_OK;
}
