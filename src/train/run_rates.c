/*
 * Rates in a run's metrics and record. A metrics line has gain, rate, warm-up and noise scale of each parameter ("gain/NAME",
 * "rate/NAME", "warmup/NAME", "noise_scale/NAME") and, over all, gain_median and iterations; run.json has a table "rates".
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "train/run_internal.h"

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the finite ones; NaN if there are none. Sorts them to the front. */
static double median_of(double *values, size_t num)
{
    size_t kept = 0;
    for (size_t i = 0; i < num; i++) {
        if (isfinite(values[i])) {
            values[kept++] = values[i];
        }
    }
    if (kept == 0) {
        return NAN;
    }
    qsort(values, kept, sizeof *values, compare_numbers);
    return kept % 2 == 1 ? values[kept / 2] : 0.5 * (values[kept / 2 - 1] + values[kept / 2]);
}

lg_status lgi_run_median_lr(const lgi_run *run, double *out)
{
    lg_trainer *const trainer = run->job->trainer;
    const int num_params = lg_model_num_params(run->job->model);
    double *rates = NULL;
    if (!lg_trainer_has_rates(trainer)) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&rates, (size_t)num_params, sizeof *rates));
    lg_status status = LG_OK;
    for (int i = 0; i < num_params && status == LG_OK; i++) {
        lg_rate rate;
        status = lg_trainer_rate(trainer, i, &rate);
        rates[i] = rate.lr;
    }
    *out = median_of(rates, (size_t)num_params);
    lgi_free(rates);
    return status;
}

static lg_status set_of_param(lg_record *record, const char *what, const char *param, double value)
{
    char key[LG_MAX_TENSOR_NAME_BYTES];
    (void)snprintf(key, sizeof key, "%s/%s", what, param);
    return lg_record_set_f64(record, key, value);
}

lg_status lgi_run_set_rates(const lgi_run *run, lg_record *record)
{
    lg_trainer *const trainer = run->job->trainer;
    const lg_model *const model = run->job->model;
    const int num_params = lg_model_num_params(model);
    double iterations = 0.0;
    double *gains = NULL;
    lg_status status = LG_OK;
    if (!lg_trainer_has_rates(trainer)) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&gains, (size_t)num_params, sizeof *gains));
    for (int i = 0; i < num_params; i++) {
        const char *const name = lg_model_param(model, i)->name;
        lg_rate rate;
        LG_TRY_GOTO(lg_trainer_rate(trainer, i, &rate));
        gains[i] = rate.gain;
        LG_TRY_GOTO(set_of_param(record, "gain", name, rate.gain));
        LG_TRY_GOTO(set_of_param(record, "rate", name, rate.lr));
        LG_TRY_GOTO(set_of_param(record, "warmup", name, rate.warmup));
        LG_TRY_GOTO(set_of_param(record, "noise_scale", name, rate.noise_scale));
    }
    LG_TRY_GOTO(lg_record_set_f64(record, "gain_median", median_of(gains, (size_t)num_params)));
    LG_TRY_GOTO(lg_trainer_iterations(trainer, &iterations));
    LG_TRY_GOTO(lg_record_set_f64(record, "iterations", iterations));
out:
    lgi_free(gains);
    return status;
}

lg_status lgi_run_end_by_iterations(lgi_run *run)
{
    const lg_optim_opts optim = lg_recipe_optim_opts(run->recipe);
    const int64_t step = lg_trainer_next_step(run->job->trainer);
    double iterations = 0.0;
    if (optim.schedule_by != LG_SCHEDULE_BY_ITERATION || optim.total_iterations <= 0.0 ||
        step == 0) {
        return LG_OK;
    }
    LG_TRY(lg_trainer_iterations(run->job->trainer, &iterations));
    if (iterations >= optim.total_iterations && step < run->num_steps) {
        run->num_steps = step;
    }
    return LG_OK;
}

/* --- the table at the end ------------------------------------------------------------------------------------------ */

static double median_gain(const lg_metrics *metrics, const char *param)
{
    char key[LG_MAX_TENSOR_NAME_BYTES];
    double *values = NULL;
    (void)snprintf(key, sizeof key, "gain/%s", param);
    const lg_metrics_series *const series = lg_metrics_find(metrics, key);
    if (series == NULL || lgi_calloc(&values, series->num_points, sizeof *values) != LG_OK) {
        return NAN;
    }
    memcpy(values, series->values, series->num_points * sizeof *values);
    const double median = median_of(values, series->num_points);
    lgi_free(values);
    return median;
}

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* The last step's rates of all parameters; all ranks ask for them. Ownership of *out: the caller's. */
static lg_status collect_rates(const lgi_run *run, lg_rate **out)
{
    const int num_params = lg_model_num_params(run->job->model);
    LG_TRY(lgi_calloc(out, (size_t)num_params, sizeof **out));
    lg_status status = LG_OK;
    for (int i = 0; i < num_params && status == LG_OK; i++) {
        status = lg_trainer_rate(run->job->trainer, i, &(*out)[i]);
    }
    return status;
}

static lg_status add_row(lgi_run *run, const lg_metrics *metrics, int param, lg_rate rate,
                         json_t *rows)
{
    const char *const name = lg_model_param(run->job->model, param)->name;
    json_t *const row = json_object();
    (void)json_object_set_new(row, "name", json_string(name));
    (void)json_object_set_new(row, "warmup_end",
                              rate.warmup_end > 0.0 ? json_real(rate.warmup_end) : json_null());
    (void)json_object_set_new(row, "median_gain", number_or_null(median_gain(metrics, name)));
    (void)json_object_set_new(row, "gain", number_or_null(rate.gain));
    (void)json_object_set_new(row, "rate", number_or_null(rate.lr));
    (void)json_object_set_new(row, "noise_scale", number_or_null(rate.noise_scale));
    (void)json_object_set_new(row, "iterations", number_or_null(rate.iterations));
    if (row == NULL || json_array_append_new(rows, row) != 0) {
        LG_FAIL(LG_OUT_OF_MEMORY, "the table of rates");
    }
    return LG_OK;
}

lg_status lgi_run_set_rate_table(lgi_run *run, lg_record *record)
{
    lg_status status = LG_OK;
    char *path = NULL;
    char *text = NULL;
    lg_metrics *metrics = NULL;
    json_t *rows = NULL;
    lg_rate *rates = NULL;
    if (!lg_trainer_has_rates(run->job->trainer)) {
        return LG_OK;
    }
    LG_TRY_GOTO(collect_rates(run, &rates));
    if (run->metrics == NULL) { /* before the first step, or not the rank that writes */
        goto out;
    }
    LG_TRY_GOTO(lgi_run_dir_file(&path, &run->dir, LGI_RUN_METRICS));
    LG_TRY_GOTO(lg_metrics_load(&metrics, path));
    rows = json_array();
    for (int i = 0; i < lg_model_num_params(run->job->model); i++) {
        LG_TRY_GOTO(add_row(run, metrics, i, rates[i], rows));
    }
    text = json_dumps(rows, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text == NULL) {
        LG_TRY_GOTO(lgi_fail(LG_OUT_OF_MEMORY, "the table of rates"));
    }
    LG_TRY_GOTO(lg_record_set_json(record, "rates", text));
out:
    free(text);
    lgi_free(rates);
    json_decref(rows);
    lg_metrics_destroy(metrics);
    lgi_free(path);
    return status;
}

lg_status lgi_run_tell_rates(lgi_run *run)
{
    lg_status status = LG_OK;
    char line[320];
    char *path = NULL;
    lg_metrics *metrics = NULL;
    lg_rate *rates = NULL;
    if (!lg_trainer_has_rates(run->job->trainer)) {
        return LG_OK;
    }
    LG_TRY_GOTO(collect_rates(run, &rates));
    if (run->opts.listener.on_message == NULL || !lgi_ranks_is_first(&run->ranks)) {
        goto out;
    }
    LG_TRY_GOTO(lgi_run_dir_file(&path, &run->dir, LGI_RUN_METRICS));
    LG_TRY_GOTO(lg_metrics_load(&metrics, path));
    (void)snprintf(line, sizeof line, "%-36s %11s %11s %13s", "parameter", "warm-up end",
                   "median gain", "noise scale");
    run->opts.listener.on_message(run->opts.listener.user, line);
    for (int i = 0; i < lg_model_num_params(run->job->model); i++) {
        const char *const name = lg_model_param(run->job->model, i)->name;
        char end[32] = "-";
        const lg_rate rate = rates[i];
        if (rate.warmup_end > 0.0) {
            (void)snprintf(end, sizeof end, "%.0f", rate.warmup_end);
        } else if (run->recipe->optim.warmup == LG_WARMUP_LAYERWISE) {
            (void)snprintf(end, sizeof end, "not yet");
        }
        (void)snprintf(line, sizeof line, "%-36.200s %11s %11.2f %13.0f", name, end,
                       median_gain(metrics, name), rate.noise_scale);
        run->opts.listener.on_message(run->opts.listener.user, line);
    }
out:
    lgi_free(rates);
    lg_metrics_destroy(metrics);
    lgi_free(path);
    return status;
}
