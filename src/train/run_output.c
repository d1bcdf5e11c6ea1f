/* What a run writes besides checkpoints: run.json, metrics, plan, timelines, report. Formats: docs/formats/run.md. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "train/run_internal.h"

#ifndef LG_VERSION
#define LG_VERSION "unknown"
#endif

const char *lg_version(void)
{
    return LG_VERSION;
}

void lgi_format_time(char *text, size_t num_bytes)
{
    const time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) == NULL || strftime(text, num_bytes, "%FT%TZ", &parts) == 0) {
        text[0] = '\0';
    }
}

/* --- records ------------------------------------------------------------------------------------------------------- */

/* The members of an evaluation, "test_loss" and so on. Accuracy or bits per byte also under `short_key`, if any. */
static lg_status set_evaluation(lg_record *record, const lg_evaluation *evaluation)
{
    const char *const part = lg_data_part_name(evaluation->part);
    char key[64];
    (void)snprintf(key, sizeof key, "%s_loss", part);
    LG_TRY(lg_record_set_f64(record, key, evaluation->loss));
    if (!isnan(evaluation->accuracy)) {
        (void)snprintf(key, sizeof key, "%s_accuracy", part);
        LG_TRY(lg_record_set_f64(record, key, evaluation->accuracy));
    }
    if (!isnan(evaluation->bits_per_byte)) {
        (void)snprintf(key, sizeof key, "%s_bits_per_byte", part);
        LG_TRY(lg_record_set_f64(record, key, evaluation->bits_per_byte));
    }
    return LG_OK;
}

static lg_status set_results(lg_record *record, lgi_run *run, bool has_failed)
{
    const int64_t step = lg_trainer_next_step(run->job->trainer);
    char hash[LG_WEIGHTS_HASH_CHARS];
    LG_TRY(lg_record_set_i64(record, "steps", step));
    LG_TRY(lg_record_set_f64(record, "loss", run->loss));
    if (run->has_test) {
        LG_TRY(set_evaluation(record, &run->test));
        if (!isnan(run->test.bits_per_byte)) {
            LG_TRY(lg_record_set_f64(record, "bits_per_byte", run->test.bits_per_byte));
        }
    }
    if (run->has_validation) {
        LG_TRY(set_evaluation(record, &run->validation));
    }
    const lg_status status = lg_trainer_weights_hash(run->job->trainer, hash);
    if (status != LG_OK && has_failed) { /* a step broke off: there are no weights to speak of */
        return LG_OK;
    }
    LG_TRY(status);
    return lg_record_set_text(record, "weights_hash", hash);
}

double lgi_run_overhead_frac(lgi_run *run)
{
    const lg_timeline *const measured = lgi_run_measure_timeline(&run->measure);
    return measured != NULL && run->ranks.comm == NULL ? lgi_timeline_overhead_frac(measured) : NAN;
}

static lg_status set_speed(lg_record *record, lgi_run *run, const lg_trainer_info *info)
{
    LG_TRY(lg_record_set_f64(record, "step_ms_median", lgi_run_measure_median_ms(&run->measure)));
    LG_TRY(lg_record_set_f64(record, "predicted_step_ms", info->predicted_step_ns * 1e-6));
    LG_TRY(
        lg_record_set_f64(record, "samples_per_s", lgi_run_measure_samples_per_s(&run->measure)));
    LG_TRY(lg_record_set_i64(record, "planned_peak_bytes", run->sum.planned_peak_bytes));
    LG_TRY(lg_record_set_i64(record, "measured_peak_bytes", run->sum.measured_peak_bytes));
    return lg_record_set_f64(record, "executor_overhead_frac", lgi_run_overhead_frac(run));
}

/* One row for each rank. */
static lg_status set_rank_table(lg_record *record, const lgi_run *run)
{
    const lgi_run_sum *const sum = &run->sum;
    lg_status status = LG_OK;
    char *text = NULL;
    json_t *const rows = json_array();
    for (int rank = 0; rank < run->ranks.num_ranks && sum->peaks != NULL; rank++) {
        json_t *const row = json_pack("{s:i, s:I, s:I}", "rank", rank, "planned_peak_bytes",
                                      (json_int_t)sum->peaks[2 * rank], "measured_peak_bytes",
                                      (json_int_t)sum->peaks[2 * rank + 1]);
        if (row != NULL && sum->stats != NULL) {
            const lg_rank_stats *const stats = &sum->stats[rank];
            (void)json_object_set_new(row, "bubble_frac", json_real(stats->bubble_frac));
            (void)json_object_set_new(row, "exposed_comm_frac",
                                      json_real(stats->exposed_comm_ns / sum->measured->step_ns));
            (void)json_object_set_new(row, "bytes_sent", json_integer(stats->sent_bytes));
        }
        if (row == NULL || json_array_append_new(rows, row) != 0) {
            LG_TRY_GOTO(lgi_fail(LG_OUT_OF_MEMORY, "the table of ranks"));
        }
    }
    text = json_dumps(rows, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text == NULL) {
        LG_TRY_GOTO(lgi_fail(LG_OUT_OF_MEMORY, "the table of ranks"));
    }
    LG_TRY_GOTO(lg_record_set_json(record, "ranks", text));
out:
    free(text);
    json_decref(rows);
    return status;
}

static lg_status set_ranks(lg_record *record, const lgi_run *run)
{
    const lgi_run_sum *const sum = &run->sum;
    if (run->ranks.comm == NULL) {
        return LG_OK;
    }
    LG_TRY(lg_record_set_i64(record, "num_ranks", run->ranks.num_ranks));
    LG_TRY(lg_record_set_i64(record, "replicas", run->recipe->ranks.replicas));
    LG_TRY(lg_record_set_i64(record, "pipeline", run->recipe->ranks.pipeline));
    LG_TRY(lg_record_set_text(record, "comm", lg_comm_name(run->ranks.comm)));
    LG_TRY(lg_record_set_f64(record, "bubble_frac", sum->bubble_frac));
    LG_TRY(lg_record_set_f64(record, "exposed_comm_frac", sum->exposed_comm_frac));
    LG_TRY(sum->bytes_sent >= 0 ? lg_record_set_i64(record, "bytes_sent", sum->bytes_sent)
                                : lg_record_set_f64(record, "bytes_sent", NAN));
    return set_rank_table(record, run);
}

static lg_status set_plan(lg_record *record, const lg_trainer_info *info)
{
    LG_TRY(lg_record_set_text(record, "strategy", info->strategy));
    LG_TRY(lg_record_set_i64(record, "lanes", info->num_lanes));
    LG_TRY(lg_record_set_i64(record, "threads", info->threads_per_lane));
    LG_TRY(lg_record_set_i64(record, "num_reorders", info->num_reorders));
    LG_TRY(lg_record_set_f64(record, "planning_ms", info->planning_ns * 1e-6));
    LG_TRY(lg_record_set_text(record, "device", info->device));
    LG_TRY(lg_record_set_text(record, "device_text", info->device_text));
    LG_TRY(lg_record_set_i64(record, "cores", info->num_cores));
    return lg_record_set_i64(record, "parameters", info->num_param_elems);
}

static lg_status fill_record(lg_record *record, lgi_run *run, const char *state,
                             const char *message)
{
    const lg_trainer_info info = lg_trainer_about(run->job->trainer);
    char now[32];
    LG_TRY(lg_record_set_text(record, "name", run->recipe->run.name));
    LG_TRY(lg_record_set_text(record, "model", lg_model_kind_name(run->recipe->model.kind)));
    LG_TRY(lg_record_set_text(record, "dataset",
                              run->recipe->data.kind == LG_DATA_IDX ? run->recipe->data.train_images
                                                                    : run->recipe->data.text));
    LG_TRY(lg_record_set_text(record, "state", state));
    if (message != NULL) {
        LG_TRY(lg_record_set_text(record, "message", message));
    }
    LG_TRY(set_results(record, run, message != NULL));
    const lg_status peaks = lgi_run_sum_peaks(run);
    LG_TRY(message != NULL ? LG_OK : peaks); /* a failed run says what it knows */
    LG_TRY(set_speed(record, run, &info));
    LG_TRY(set_ranks(record, run));
    LG_TRY(set_plan(record, &info));
    LG_TRY(lg_record_set_i64(record, "num_steps", run->num_steps));
    LG_TRY(lg_record_set_i64(record, "first_step", run->first_step));
    LG_TRY(lg_record_set_i64(record, "batch", run->recipe->train.batch));
    LG_TRY(lg_record_set_i64(record, "micro_batches", run->recipe->train.micro_batches));
    LG_TRY(lg_record_set_i64(record, "seed", run->recipe->train.seed));
    LG_TRY(lg_record_set_text(record, "version", lg_version()));
    LG_TRY(lg_record_set_text(record, "started_at", run->started_at));
    if (strcmp(state, "running") != 0) {
        lgi_format_time(now, sizeof now);
        LG_TRY(lg_record_set_text(record, "ended_at", now));
    }
    const lg_status rates = lgi_run_set_rate_table(run, record);
    LG_TRY(message != NULL ? LG_OK : rates);
    return lg_record_set_json(record, "recipe", run->recipe_json);
}

static lg_status save_record(const lg_record *record, const lgi_run *run)
{
    char *path = NULL;
    LG_TRY(lgi_run_dir_file(&path, &run->dir, LGI_RUN_JSON));
    const lg_status status = lg_record_save(record, path);
    lgi_free(path);
    return status;
}

lg_status lgi_run_save_record(lgi_run *run, const char *state, const char *message)
{
    lg_record *record = NULL;
    LG_TRY(lg_record_create(&record));
    lg_status status = fill_record(record, run, state, message);
    if (status == LG_OK && lgi_ranks_is_first(&run->ranks)) {
        status = save_record(record, run);
    }
    lg_record_destroy(record);
    return status;
}

/* --- metrics ------------------------------------------------------------------------------------------------------- */

lg_status lgi_run_log_evaluation(lgi_run *run, const lg_evaluation *evaluation)
{
    lg_status status = LG_OK;
    lg_record *record = NULL;
    LG_TRY(lg_record_create(&record));
    LG_TRY_GOTO(set_evaluation(record, evaluation));
    LG_TRY_GOTO(lg_record_set_text(record, "weights_hash", evaluation->weights_hash));
    if (lgi_ranks_is_first(&run->ranks)) {
        LG_TRY_GOTO(lg_metrics_log_append(run->metrics, evaluation->step, record));
    }
out:
    lg_record_destroy(record);
    return status;
}

lg_status lgi_run_log_step(lgi_run *run, const lg_step_result *result,
                           const lg_run_progress *progress)
{
    lg_status status = LG_OK;
    lg_record *record = NULL;
    const double num_targets = result->num_targets > 0 ? (double)result->num_targets : NAN;
    LG_TRY(lg_record_create(&record));
    LG_TRY_GOTO(lg_record_set_f64(record, "epoch", progress->epoch));
    LG_TRY_GOTO(lg_record_set_f64(record, "loss", result->loss));
    if (run->recipe->data.kind != LG_DATA_TEXT) {
        LG_TRY_GOTO(
            lg_record_set_f64(record, "accuracy", (double)result->num_correct / num_targets));
    }
    if (run->recipe->data.kind != LG_DATA_IDX) {
        LG_TRY_GOTO(lg_record_set_f64(record, "bits_per_byte", result->loss / log(2.0)));
    }
    LG_TRY_GOTO(lg_record_set_f64(record, "lr", progress->lr));
    if (result->grad_norm >= 0.0) {
        LG_TRY_GOTO(lg_record_set_f64(record, "grad_norm", result->grad_norm));
    }
    LG_TRY_GOTO(lg_record_set_f64(record, "samples_per_s", progress->samples_per_s));
    LG_TRY_GOTO(lg_record_set_f64(record, "step_ms", progress->step_ms));
    LG_TRY_GOTO(lgi_run_set_rates(run, record));
    if (lgi_ranks_is_first(&run->ranks)) {
        LG_TRY_GOTO(lg_metrics_log_append(run->metrics, progress->step, record));
    }
out:
    lg_record_destroy(record);
    return status;
}

/* --- at the start -------------------------------------------------------------------------------------------------- */

static lg_status save_recipe(const lgi_run *run)
{
    char *path = NULL;
    LG_TRY(lgi_run_dir_file(&path, &run->dir, LGI_RUN_RECIPE));
    const lg_status status = lgi_file_write(path, run->recipe_yaml, strlen(run->recipe_yaml));
    lgi_free(path);
    return status;
}

static lg_status save_plan(const lgi_run *run)
{
    lg_status status = LG_OK;
    const lg_trainer *const trainer = run->job->trainer;
    char *plan_path = NULL;
    char *costs_path = NULL;
    char *timeline_path = NULL;
    LG_TRY_GOTO(lgi_run_dir_file(&plan_path, &run->dir, LGI_RUN_PLAN));
    LG_TRY_GOTO(lgi_run_dir_file(&costs_path, &run->dir, LGI_RUN_COSTS));
    LG_TRY_GOTO(lgi_run_dir_file(&timeline_path, &run->dir, LGI_RUN_TIMELINE));
    (void)unlink(timeline_path); /* of the plan that was there before */
    LG_TRY_GOTO(lg_plan_save(lg_trainer_plan(trainer), lg_trainer_graph(trainer), plan_path));
    LG_TRY_GOTO(
        lg_costs_save(lg_trainer_cost_table(trainer), lg_trainer_graph(trainer), costs_path));
out:
    lgi_free(plan_path);
    lgi_free(costs_path);
    lgi_free(timeline_path);
    return status;
}

/* What was measured of links and slow-down a run that goes on should not measure again; and pictures can be made again. */
static lg_status save_machine(const lgi_run *run)
{
    char *path = NULL;
    const lg_machine machine = lg_trainer_machine(run->job->trainer);
    LG_TRY(lgi_run_dir_file(&path, &run->dir, LGI_RUN_MACHINE));
    const lg_status status =
        lg_machine_save(&machine, "what the plan of this run was made for", path);
    lgi_free(path);
    return status;
}

lg_status lgi_run_save_start(lgi_run *run)
{
    LG_TRY(lgi_run_save_record(run, "running", NULL));
    if (!lgi_ranks_is_first(&run->ranks)) {
        return LG_OK;
    }
    LG_TRY(save_recipe(run));
    LG_TRY(save_machine(run));
    return save_plan(run);
}

/* --- at the end ---------------------------------------------------------------------------------------------------- */

/* The run's name, and what the measured step is beside the median that the run tells of. */
static lg_status make_title(char **out, const lgi_run *run, const lg_timeline *measured)
{
    if (measured == NULL) {
        return lgi_strdup(out, run->recipe->run.name);
    }
    return lgi_sprintf(out, "%.80s (measured: one of %d recorded steps; median of all: %.4g ms)",
                       run->recipe->run.name, run->measure.num_timelines,
                       lgi_run_measure_median_ms(&run->measure));
}

static lg_status save_timelines(const lgi_run *run, const lg_timeline *planned,
                                const lg_timeline *measured)
{
    lg_status status = LG_OK;
    const lg_graph *const graph = lg_trainer_graph(run->job->trainer);
    const lg_plan *const plan = lg_trainer_plan(run->job->trainer);
    const lg_timeline_panel panels[2] = {{"planned", planned}, {"measured", measured}};
    const int num_panels = measured != NULL ? 2 : 1;
    char *svg_path = NULL;
    char *csv_path = NULL;
    char *trace_path = NULL;
    char *json_path = NULL;
    char *title = NULL;
    LG_TRY_GOTO(make_title(&title, run, measured));
    LG_TRY_GOTO(lgi_run_dir_file(&svg_path, &run->dir, LGI_RUN_TIMELINE_SVG));
    LG_TRY_GOTO(lgi_run_dir_file(&csv_path, &run->dir, LGI_RUN_TIMELINE_CSV));
    LG_TRY_GOTO(lgi_run_dir_file(&trace_path, &run->dir, LGI_RUN_TRACE));
    LG_TRY_GOTO(lgi_run_dir_file(&json_path, &run->dir, LGI_RUN_TIMELINE));
    LG_TRY_GOTO(lg_timeline_save_svg(svg_path, title, graph, plan, panels, num_panels));
    LG_TRY_GOTO(lg_timeline_save_csv(csv_path, graph, plan, panels, num_panels));
    LG_TRY_GOTO(lg_timeline_save_trace(trace_path, graph, plan, panels, num_panels));
    if (measured != NULL) {
        LG_TRY_GOTO(lg_timeline_save(measured, graph, json_path));
    }
out:
    lgi_free(svg_path);
    lgi_free(csv_path);
    lgi_free(trace_path);
    lgi_free(json_path);
    lgi_free(title);
    return status;
}

static lg_status save_report(lgi_run *run, const lg_record *record, const lg_timeline *planned,
                             const lg_timeline *measured)
{
    lg_status status = LG_OK;
    char *metrics_path = NULL;
    char *path = NULL;
    lg_metrics *metrics = NULL;
    LG_TRY_GOTO(lgi_run_dir_file(&metrics_path, &run->dir, LGI_RUN_METRICS));
    LG_TRY_GOTO(lgi_run_dir_file(&path, &run->dir, LGI_RUN_REPORT));
    LG_TRY_GOTO(lg_metrics_load(&metrics, metrics_path));
    const lg_report_input input = {.title = run->recipe->run.name,
                                   .run = record,
                                   .metrics = metrics,
                                   .recipe_text = run->recipe_yaml,
                                   .graph = lg_trainer_graph(run->job->trainer),
                                   .plan = lg_trainer_plan(run->job->trainer),
                                   .planned = planned,
                                   .measured = measured};
    LG_TRY_GOTO(lg_report_save(&input, path));
out:
    lg_metrics_destroy(metrics);
    lgi_free(metrics_path);
    lgi_free(path);
    return status;
}

/* Rank 0: pictures, report, record. */
static lg_status save_all(lgi_run *run, const lg_record *record)
{
    lg_status status = LG_OK;
    const lg_trainer *const trainer = run->job->trainer;
    const lg_machine machine = lg_trainer_machine(trainer);
    lg_timeline planned;
    lg_timeline *const measured = run->sum.measured;
    memset(&planned, 0, sizeof planned);
    LG_TRY_GOTO(lg_plan_simulate(&planned, lg_trainer_plan(trainer), lg_trainer_graph(trainer),
                                 &machine, lg_trainer_cost_table(trainer)));
    LG_TRY_GOTO(
        lg_timeline_add_memory(&planned, lg_trainer_plan(trainer), lg_trainer_graph(trainer)));
    if (measured != NULL && measured->num_memory_points == 0) {
        LG_TRY_GOTO(
            lg_timeline_add_memory(measured, lg_trainer_plan(trainer), lg_trainer_graph(trainer)));
    }
    LG_TRY_GOTO(save_timelines(run, &planned, measured));
    LG_TRY_GOTO(save_report(run, record, &planned, measured));
    LG_TRY_GOTO(save_record(record, run)); /* last: it says that the rest is there */
out:
    lg_timeline_deinit(&planned);
    return status;
}

lg_status lgi_run_save_end(lgi_run *run, const char *state, const char *message)
{
    lg_status status = LG_OK;
    lg_record *record = NULL;
    LG_TRY(lgi_run_sum_timeline(run));
    LG_TRY_GOTO(lg_record_create(&record));
    LG_TRY_GOTO(fill_record(record, run, state, message));
    if (lgi_ranks_is_first(&run->ranks)) {
        status = save_all(run, record);
    }
    LG_TRY_GOTO(lgi_ranks_settle(&run->ranks, status));
out:
    lg_record_destroy(record);
    return status;
}
