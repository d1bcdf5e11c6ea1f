/*
 * A run: prepare (data, model, trainer; the directory last, so that a recipe that does not work leaves an earlier run
 * alone), steps with what is due after them, and the end.
 *
 *   after step n:  loss finite? -> metrics -> evaluation -> checkpoint
 *   at the end:    checkpoint -> test -> sample -> timelines, report, run.json
 *
 * A stop comes between two steps (or in an evaluation, which is then done again when the run goes on).
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "train/run_internal.h"

/* The newest, and one before it. */
#define NUM_KEPT_CHECKPOINTS 2
/* So many steps in a row may be skipped because a gradient is not finite. */
#define MAX_SKIPPED 20

lg_run_opts lg_run_opts_default(void)
{
    lg_run_opts opts;
    memset(&opts, 0, sizeof opts);
    return opts;
}

static bool should_stop(const lgi_run *run)
{
    return run->opts.should_stop != NULL && *run->opts.should_stop != 0;
}

static void say(const lgi_run *run, const char *format, ...) LG_PRINTF(2, 3);

static void say(const lgi_run *run, const char *format, ...)
{
    char text[1024];
    va_list args;
    if (run->opts.listener.on_message == NULL) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    run->opts.listener.on_message(run->opts.listener.user, text);
}

/* --- preparing ----------------------------------------------------------------------------------------------------- */

/* What a checkpoint says before a job is made from it. */
struct origin {
    lg_checkpoint *checkpoint; /* NULL: from the beginning */
    lgi_resume_facts facts;
    lgi_recipe_changes changes;
    char *plan_path;
    char *costs_path;
    bool was_finished;
};

static void origin_deinit(struct origin *origin)
{
    lg_checkpoint_close(origin->checkpoint);
    lgi_free(origin->plan_path);
    lgi_free(origin->costs_path);
}

static lg_status look_at_record(const lgi_run *run, struct origin *origin)
{
    char *path = NULL;
    lg_record *record = NULL;
    LG_TRY(lgi_run_dir_file(&path, &run->dir, LGI_RUN_JSON));
    const lg_status status = lg_record_load(&record, path);
    lgi_free(path);
    LG_TRY(status);
    const char *const state = lg_record_text(record, "state");
    origin->was_finished = state != NULL && strcmp(state, "finished") == 0;
    lg_record_destroy(record);
    return LG_OK;
}

/* Opens the last checkpoint of the run and decides what of its plan is used again. */
static lg_status find_origin(lgi_run *run, struct origin *origin)
{
    lg_status status = LG_OK;
    char *root = NULL;
    LG_TRY(look_at_record(run, origin));
    LG_TRY_GOTO(lgi_run_dir_file(&root, &run->dir, LGI_RUN_CHECKPOINTS));
    if (!lg_checkpoint_exists(root)) {
        goto out;
    }
    LG_TRY_GOTO(lg_checkpoint_open(&origin->checkpoint, root));
    const lg_checkpoint_info *const about = lg_checkpoint_about(origin->checkpoint);
    LG_TRY_GOTO(lgi_resume_compare(&origin->changes, about->recipe_json, run->recipe_json));
    LG_TRY_GOTO(lgi_resume_facts_parse(&origin->facts, about->extra_json));
    if (!origin->changes.has_plan_changes && lgi_run_dir_has(&run->dir, LGI_RUN_PLAN) &&
        lgi_run_dir_has(&run->dir, LGI_RUN_COSTS)) {
        LG_TRY_GOTO(lgi_run_dir_file(&origin->plan_path, &run->dir, LGI_RUN_PLAN));
        LG_TRY_GOTO(lgi_run_dir_file(&origin->costs_path, &run->dir, LGI_RUN_COSTS));
    }
out:
    lgi_free(root);
    return status;
}

/* Makes the job; with the plan that the run had, where that still fits, else with a new one. */
static lg_status create_job(lgi_run *run, const struct origin *origin)
{
    lgi_job_overrides overrides = {.plan_path = origin->plan_path,
                                   .costs_path = origin->costs_path};
    if (origin->plan_path != NULL && lgi_job_create(&run->job, run->recipe, &overrides) == LG_OK) {
        return LG_OK;
    }
    overrides.plan_path = NULL;
    overrides.costs_path = NULL;
    return lgi_job_create(&run->job, run->recipe, &overrides);
}

static lg_status load_origin(lgi_run *run, const struct origin *origin)
{
    if (origin->checkpoint == NULL) {
        say(run, "no checkpoint yet in %s: from the beginning", run->dir.path);
        return LG_OK;
    }
    LG_TRY(lgi_resume_check(&origin->facts, run->job));
    const int num_cores = lgi_resume_facts_of(run->job).num_cores;
    if (origin->facts.num_cores > 0 && origin->facts.num_cores != num_cores) {
        say(run,
            "the run was on a machine of %d cores, this one has %d: some sums may round otherwise",
            origin->facts.num_cores, num_cores);
    }
    LG_TRY(lg_trainer_load(run->job->trainer, origin->checkpoint, false));
    run->first_step = lg_trainer_next_step(run->job->trainer);
    LG_TRY(lgi_run_end_by_iterations(run));
    run->last_checkpoint_step = run->first_step;
    if (run->first_step > run->num_steps) {
        LG_FAIL(LG_INVALID_ARG,
                "the run in '%s' has done %" PRId64 " steps, the recipe asks for %" PRId64,
                run->dir.path, run->first_step, run->num_steps);
    }
    if (origin->changes.has_length_changes && run->recipe->optim.schedule != LG_SCHEDULE_CONSTANT) {
        say(run, "another length: from here on the %s schedule is that of %" PRId64 " steps",
            lg_schedule_name(run->recipe->optim.schedule), run->num_steps);
    }
    return LG_OK;
}

static lg_status prepare(lgi_run *run, bool *out_was_finished)
{
    lg_status status = LG_OK;
    struct origin origin;
    memset(&origin, 0, sizeof origin);
    LG_TRY(lg_recipe_check(run->recipe));
    LG_TRY(lg_recipe_to_json(run->recipe, &run->recipe_json));
    LG_TRY(lg_recipe_to_yaml(run->recipe, &run->recipe_yaml));
    LG_TRY(lgi_run_dir_init(&run->dir, run->recipe, run->opts.resume));
    if (run->opts.resume) {
        LG_TRY_GOTO(lgi_run_dir_claim(&run->dir, true));
        LG_TRY_GOTO(find_origin(run, &origin));
    }
    LG_TRY_GOTO(create_job(run, &origin));
    run->num_steps = run->job->num_steps;
    const lgi_resume_facts facts = lgi_resume_facts_of(run->job);
    LG_TRY_GOTO(lgi_resume_facts_format(&run->extra_json, &facts));
    LG_TRY_GOTO(lgi_run_measure_init(&run->measure, run->first_step, run->num_steps));
    if (run->opts.resume) {
        LG_TRY_GOTO(load_origin(run, &origin));
        lgi_run_measure_deinit(&run->measure);
        LG_TRY_GOTO(lgi_run_measure_init(&run->measure, run->first_step, run->num_steps));
    } else {
        LG_TRY_GOTO(lgi_run_dir_claim(&run->dir, false));
        if (run->dir.was_moved) {
            say(run, "the run that was in %s is now in %s.previous", run->dir.path, run->dir.path);
        }
    }
    *out_was_finished = origin.was_finished && run->first_step == run->num_steps;
out:
    origin_deinit(&origin);
    return status;
}

static lg_status open_metrics(lgi_run *run)
{
    char *path = NULL;
    LG_TRY(lgi_run_dir_file(&path, &run->dir, LGI_RUN_METRICS));
    const lg_status status =
        lg_metrics_log_open(&run->metrics, path, run->first_step > 0 ? run->first_step + 1 : 0);
    lgi_free(path);
    return status;
}

static lg_status save_start(lgi_run *run)
{
    LG_TRY(lgi_run_save_start(run));
    return open_metrics(run);
}

static void tell_start(const lgi_run *run)
{
    if (run->opts.listener.on_start == NULL) {
        return;
    }
    const lg_run_start start = {.directory = run->dir.path,
                                .recipe = run->recipe,
                                .trainer = lg_trainer_about(run->job->trainer),
                                .first_step = run->first_step,
                                .num_steps = run->num_steps,
                                .steps_per_epoch = lg_job_steps_per_epoch(run->job),
                                .samples_per_epoch = lg_job_samples_per_epoch(run->job)};
    run->opts.listener.on_start(run->opts.listener.user, &start);
}

/* --- evaluation and checkpoints ------------------------------------------------------------------------------------ */

static bool has_part(const lgi_run *run, lg_data_part part)
{
    return (part == LG_PART_TEST ? run->job->data.test : run->job->data.validation) != NULL;
}

/* What is evaluated during training. */
static lg_data_part training_part(const lgi_run *run)
{
    return has_part(run, LG_PART_VALIDATION) ? LG_PART_VALIDATION : LG_PART_TEST;
}

static bool is_evaluation_due(const lgi_run *run, int64_t step)
{
    const lg_data_part part = training_part(run);
    const int64_t every = run->recipe->train.eval_every > 0       ? run->recipe->train.eval_every
                          : run->recipe->data.kind == LG_DATA_IDX ? lg_job_steps_per_epoch(run->job)
                                                                  : 0;
    const bool is_final_test = step == run->num_steps && part == LG_PART_TEST;
    return every > 0 && step > 0 && step % every == 0 && has_part(run, part) && !is_final_test;
}

static lg_status evaluate(lgi_run *run, lg_data_part part)
{
    lg_evaluation evaluation;
    LG_TRY(lgi_job_evaluate(run->job, part, run->opts.should_stop, &evaluation));
    if (evaluation.step != run->first_step || !run->is_logged[part]) {
        LG_TRY(lgi_run_log_evaluation(run, &evaluation));
    }
    if (part == LG_PART_TEST) {
        run->test = evaluation;
        run->has_test = true;
    } else {
        run->validation = evaluation;
        run->has_validation = true;
    }
    if (run->opts.listener.on_evaluation != NULL) {
        run->opts.listener.on_evaluation(run->opts.listener.user, &evaluation);
    }
    return LG_OK;
}

static lg_status fail_not_finite(const lgi_run *run, const char *what)
{
    char last[256];
    if (run->last_checkpoint_step >= 0) {
        (void)snprintf(last, sizeof last,
                       "the last good checkpoint is that of step %" PRId64 " in %s/%s",
                       run->last_checkpoint_step, run->dir.path, LGI_RUN_CHECKPOINTS);
    } else {
        (void)snprintf(last, sizeof last, "there is no checkpoint before it");
    }
    LG_FAIL(LG_INVALID_ARG, "%s; %s; a lower optim.lr or optim.clip_norm may help", what, last);
}

static lg_status save_checkpoint(lgi_run *run)
{
    char what[512];
    char *root = NULL;
    const int64_t step = lg_trainer_next_step(run->job->trainer);
    if (run->last_checkpoint_step == step) {
        return LG_OK;
    }
    if (lgi_job_check_weights(run->job) != LG_OK) {
        (void)snprintf(what, sizeof what, "after step %" PRId64 " the weights are not finite: %s",
                       step, lg_last_error());
        return fail_not_finite(run, what);
    }
    LG_TRY(lgi_run_dir_file(&root, &run->dir, LGI_RUN_CHECKPOINTS));
    const lg_status status = lg_trainer_save(run->job->trainer, root, run->recipe_json,
                                             run->extra_json, NUM_KEPT_CHECKPOINTS);
    lgi_free(root);
    LG_TRY(status);
    run->last_checkpoint_step = step;
    return LG_OK;
}

/* Finds out what the metrics have of the step that the run goes on from. */
static lg_status recall_metrics(lgi_run *run)
{
    char key[64];
    char *path = NULL;
    lg_metrics *metrics = NULL;
    LG_TRY(lgi_run_dir_file(&path, &run->dir, LGI_RUN_METRICS));
    const lg_status status = lg_metrics_load(&metrics, path);
    lgi_free(path);
    LG_TRY(status);
    const lg_metrics_series *const losses = lg_metrics_find(metrics, "loss");
    if (losses != NULL && losses->num_points > 0) {
        run->loss = losses->values[losses->num_points - 1];
    }
    for (int part = 0; part < 2; part++) {
        (void)snprintf(key, sizeof key, "%s_loss", lg_data_part_name((lg_data_part)part));
        const lg_metrics_series *const evaluations = lg_metrics_find(metrics, key);
        for (size_t i = 0; evaluations != NULL && i < evaluations->num_points; i++) {
            run->is_logged[part] =
                run->is_logged[part] || evaluations->steps[i] == (double)run->first_step;
        }
    }
    lg_metrics_destroy(metrics);
    return LG_OK;
}

/* --- steps --------------------------------------------------------------------------------------------------------- */

static lg_run_progress progress_of(const lgi_run *run, const lg_step_result *result,
                                   uint64_t total_ns)
{
    const lg_optim_opts optim = lg_recipe_optim_opts(run->recipe);
    const int64_t done = result->step + 1;
    const double recent_s = run->measure.recent_ns * 1e-9;
    const lg_run_progress progress = {
        .step = done,
        .num_steps = run->num_steps,
        .epoch = (double)done / (double)lg_job_steps_per_epoch(run->job),
        .loss = result->loss,
        .lr = lg_optim_lr(&optim, result->step, run->job->num_steps) *
              lg_optim_fixed_factor(&optim, lgi_job_scale(run->job)),
        .samples_per_s = recent_s > 0.0 ? (double)run->recipe->train.batch / recent_s : NAN,
        .step_ms = (double)total_ns * 1e-6,
        .eta_s = recent_s * (double)(run->num_steps - done)};
    return progress;
}

static lg_status train_step(lgi_run *run)
{
    const lg_batch *batch = NULL;
    lg_step_result result;
    char what[128];
    const uint64_t start_ns = lgi_clock_ns();
    lgi_run_measure_begin(&run->measure, run->job->trainer,
                          lg_trainer_next_step(run->job->trainer));
    LG_TRY(lgi_job_next_batch(run->job, &batch));
    LG_TRY(lgi_job_train_batch(run->job, batch, &result));
    const uint64_t total_ns = lgi_clock_ns() - start_ns;
    LG_TRY(lgi_run_end_by_iterations(run));
    run->num_skipped = result.was_skipped ? run->num_skipped + 1 : 0;
    if (result.was_skipped && run->num_skipped <= MAX_SKIPPED) {
        say(run, "step %" PRId64 ": a gradient is not finite, nothing was updated",
            result.step + 1);
        return LG_OK;
    }
    run->loss = result.loss;
    if (result.was_skipped) {
        (void)snprintf(what, sizeof what, "%d steps in a row were skipped", run->num_skipped);
        return fail_not_finite(run, what);
    }
    if (!isfinite(result.loss)) {
        (void)snprintf(what, sizeof what, "step %" PRId64 ": the loss is %s", result.step + 1,
                       isnan(result.loss) ? "nan" : "infinite");
        return fail_not_finite(run, what);
    }
    LG_TRY(lgi_run_measure_end(
        &run->measure, run->job->trainer, &result, batch->num_samples, total_ns,
        batch->num_samples == lg_loader_max_samples(run->job->data.train_loader)));
    lg_run_progress progress = progress_of(run, &result, total_ns);
    const bool is_logged = progress.step % run->recipe->train.log_every == 0 ||
                           progress.step == 1 || progress.step == run->num_steps;
    if (is_logged) {
        LG_TRY(lgi_run_median_lr(run, &progress.lr));
        LG_TRY(lgi_run_log_step(run, &result, &progress));
    }
    if (run->opts.listener.on_step != NULL) {
        run->opts.listener.on_step(run->opts.listener.user, &progress);
    }
    return LG_OK;
}

static lg_status train_steps(lgi_run *run)
{
    const int64_t checkpoint_every = run->recipe->train.checkpoint_every;
    if (run->first_step > 0) {
        LG_TRY(recall_metrics(run));
        if (is_evaluation_due(run, run->first_step) && !run->is_logged[training_part(run)]) {
            LG_TRY(evaluate(run, training_part(run)));
        }
    }
    while (lg_trainer_next_step(run->job->trainer) < run->num_steps) {
        if (should_stop(run)) {
            LG_FAIL(LG_INTERRUPTED, "stopped");
        }
        LG_TRY(train_step(run));
        const int64_t step = lg_trainer_next_step(run->job->trainer);
        if (is_evaluation_due(run, step)) {
            LG_TRY(evaluate(run, training_part(run)));
        }
        if (checkpoint_every > 0 && step % checkpoint_every == 0) {
            LG_TRY(save_checkpoint(run));
        }
    }
    return LG_OK;
}

/* --- the end ------------------------------------------------------------------------------------------------------- */

struct sample {
    const lgi_run *run;
    char *text;
    size_t num_bytes, capacity;
    lg_status status;
};

static bool keep_byte(void *user, unsigned char byte)
{
    struct sample *const sample = user;
    sample->status =
        lgi_grow(&sample->text, &sample->capacity, sample->num_bytes + 1, sizeof *sample->text);
    if (sample->status != LG_OK || should_stop(sample->run)) {
        return false;
    }
    sample->text[sample->num_bytes++] = (char)byte;
    return true;
}

/* A text by the trained model: prompt and continuation. */
static lg_status write_sample(lgi_run *run)
{
    lg_status status = LG_OK;
    const lg_generate_opts opts = lg_generate_opts_of(run->recipe);
    const size_t prompt_bytes = strlen(opts.prompt);
    struct sample sample = {.run = run};
    char *path = NULL;
    if (run->recipe->model.kind != LG_MODEL_GPT || opts.num_tokens == 0) {
        return LG_OK;
    }
    LG_TRY_GOTO(lgi_run_dir_file(&path, &run->dir, LGI_RUN_SAMPLE));
    LG_TRY_GOTO(lgi_grow(&sample.text, &sample.capacity, prompt_bytes + 1, sizeof *sample.text));
    memcpy(sample.text, opts.prompt, prompt_bytes);
    sample.num_bytes = prompt_bytes;
    LG_TRY_GOTO(lg_job_generate(run->job, &opts, keep_byte, &sample));
    LG_TRY_GOTO(sample.status);
    if (should_stop(run)) {
        LG_TRY_GOTO(lgi_fail(LG_INTERRUPTED, "stopped"));
    }
    LG_TRY_GOTO(lgi_file_write(path, sample.text, sample.num_bytes));
    if (run->opts.listener.on_sample != NULL) {
        run->opts.listener.on_sample(run->opts.listener.user, sample.text, sample.num_bytes);
    }
out:
    lgi_free(path);
    lgi_free(sample.text);
    return status;
}

static lg_status train_to_the_end(lgi_run *run)
{
    lg_status status = train_steps(run);
    if (status == LG_OK) {
        status = save_checkpoint(run);
    }
    if (status == LG_OK && has_part(run, LG_PART_TEST)) {
        status = evaluate(run, LG_PART_TEST);
    }
    if (status == LG_OK) {
        status = write_sample(run);
    }
    return status;
}

/* Writes down how it ended. The outcome stays what it was, unless a good end could not be written. */
static lg_status conclude(lgi_run *run, lg_status outcome)
{
    char message[1024];
    if (outcome == LG_OK) {
        outcome = lgi_run_save_end(run, "finished", NULL);
    }
    (void)snprintf(message, sizeof message, "%s", outcome != LG_OK ? lg_last_error() : "");
    if (outcome == LG_INTERRUPTED) {
        LG_TRY(save_checkpoint(run));
        LG_TRY(lgi_run_save_end(run, "interrupted", NULL));
        return lgi_fail(LG_INTERRUPTED, "stopped after step %" PRId64 " of %" PRId64,
                        lg_trainer_next_step(run->job->trainer), run->num_steps);
    }
    if (outcome != LG_OK) {
        /* That it could not be written down is not what people need to hear of. */
        const lg_status written = lgi_run_save_record(run, "failed", message);
        (void)written;
        return lgi_fail_copy(outcome, message);
    }
    return LG_OK;
}

static lg_status fill_result(lg_run_result *result, lgi_run *run)
{
    const lg_trainer_info info = lg_trainer_about(run->job->trainer);
    const lg_timeline *const measured = lgi_run_measure_timeline(&run->measure);
    LG_TRY(lgi_strdup(&result->directory, run->dir.path));
    result->num_steps = lg_trainer_next_step(run->job->trainer);
    result->loss = run->loss;
    result->has_test = run->has_test;
    result->test = run->test;
    result->step_ms_median = lgi_run_measure_median_ms(&run->measure);
    result->predicted_step_ms = info.predicted_step_ns * 1e-6;
    result->samples_per_s = lgi_run_measure_samples_per_s(&run->measure);
    result->planned_peak_bytes = info.planned_peak_bytes;
    result->measured_peak_bytes = info.measured_peak_bytes;
    result->executor_overhead_frac = measured != NULL ? lgi_timeline_overhead_frac(measured) : NAN;
    return lg_trainer_weights_hash(run->job->trainer, result->weights_hash);
}

void lg_run_result_deinit(lg_run_result *result)
{
    lgi_free(result->directory);
    result->directory = NULL;
}

static lg_status carry_out(lgi_run *run, lg_run_result *result)
{
    bool was_finished = false;
    LG_TRY(prepare(run, &was_finished));
    if (was_finished) {
        say(run, "the run in %s is finished; a larger train.steps or train.epochs goes on with it",
            run->dir.path);
        result->was_finished = true;
        return fill_result(result, run);
    }
    const lg_status start_status = save_start(run);
    if (start_status != LG_OK && !run->opts.resume) {
        lgi_run_dir_clear(&run->dir);
    }
    LG_TRY(start_status);
    tell_start(run);
    lg_status status = conclude(run, train_to_the_end(run));
    if (status == LG_OK) {
        status = lgi_run_tell_rates(run);
    }
    if (status == LG_OK || status == LG_INTERRUPTED) {
        LG_TRY(fill_result(result, run));
    }
    return status;
}

lg_status lg_run_train(const lg_recipe *recipe, const lg_run_opts *opts, lg_run_result *result)
{
    lgi_run run;
    lg_run_result unused;
    memset(&run, 0, sizeof run);
    memset(&unused, 0, sizeof unused);
    lg_run_result *const out = result != NULL ? result : &unused;
    memset(out, 0, sizeof *out);
    run.recipe = recipe;
    run.opts = opts != NULL ? *opts : lg_run_opts_default();
    run.dir.lock_fd = -1;
    run.loss = NAN;
    run.last_checkpoint_step = -1;
    lgi_format_time(run.started_at, sizeof run.started_at);
    const lg_status status = carry_out(&run, out);
    lg_metrics_log_close(run.metrics);
    lgi_run_measure_deinit(&run.measure);
    lg_job_destroy(run.job);
    lgi_run_dir_deinit(&run.dir);
    lg_recipe_text_destroy(run.recipe_json);
    lg_recipe_text_destroy(run.recipe_yaml);
    lgi_free(run.extra_json);
    lg_run_result_deinit(&unused);
    return status;
}
