/*
 * A run: prepare (run_prepare.c), steps with what is due after them, and the end.
 *
 *   after step n:  loss finite? -> metrics -> evaluation -> checkpoint
 *   at the end:    checkpoint -> test -> sample -> timelines, report, run.json
 *
 * A stop comes between two steps (or in an evaluation, which is then done again when the run goes on).
 *
 * Several ranks: all do the same steps, evaluations and checkpoints, which follow from recipe and step number. Only rank 0 looks at
 * results, one step late, writes and talks; where it finds that training must not go on, it says so (run_ranks.h). Before what
 * needs all ranks (evaluation, checkpoint, the end) its results are complete, and the ranks settle.
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

void lgi_run_say(const lgi_run *run, const char *format, ...)
{
    char text[1024];
    va_list args;
    if (run->opts.listener.on_message == NULL || !lgi_ranks_is_first(&run->ranks)) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    run->opts.listener.on_message(run->opts.listener.user, text);
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
    lg_status status = lgi_run_save_start(run);
    if (status == LG_OK && lgi_ranks_is_first(&run->ranks)) {
        status = open_metrics(run);
    }
    return lgi_ranks_settle(&run->ranks, status);
}

static void tell_start(const lgi_run *run)
{
    if (run->opts.listener.on_start == NULL || !lgi_ranks_is_first(&run->ranks)) {
        return;
    }
    const lg_run_start start = {.num_ranks = run->ranks.num_ranks,
                                .planned_peak_bytes = run->sum.planned_peak_bytes,
                                .comm =
                                    run->ranks.comm != NULL ? lg_comm_name(run->ranks.comm) : NULL,
                                .directory = run->dir.path,
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
    const int64_t asked = run->recipe->train.eval_every;
    const int64_t every = asked > 0                               ? asked
                          : run->recipe->data.kind == LG_DATA_IDX ? lg_job_steps_per_epoch(run->job)
                                                                  : 0;
    const int64_t place = asked > 0 ? step : step + run->job->batch_shift;
    const bool is_final_test = step == run->num_steps && part == LG_PART_TEST;
    return every > 0 && step > 0 && place % every == 0 && has_part(run, part) && !is_final_test;
}

static lg_status evaluate(lgi_run *run, lg_data_part part)
{
    lg_evaluation evaluation;
    lg_status status = LG_OK;
    LG_TRY(lgi_job_evaluate(run->job, part, &evaluation));
    if (evaluation.step != run->first_step || !run->is_logged[part]) {
        status = lgi_run_log_evaluation(run, &evaluation);
    }
    if (part == LG_PART_TEST) {
        run->test = evaluation;
        run->has_test = true;
    } else {
        run->validation = evaluation;
        run->has_validation = true;
    }
    LG_TRY(lgi_ranks_settle(&run->ranks, status));
    if (run->opts.listener.on_evaluation != NULL && lgi_ranks_is_first(&run->ranks)) {
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
    const lg_status check = lgi_job_check_weights(run->job);
    if (check == LG_INVALID_ARG) {
        (void)snprintf(what, sizeof what, "after step %" PRId64 " the weights are not finite: %s",
                       step, lg_last_error());
        return fail_not_finite(run, what);
    }
    LG_TRY(check);
    LG_TRY(lgi_run_dir_file(&root, &run->dir, LGI_RUN_CHECKPOINTS));
    const lg_status status = lg_trainer_save(run->job->trainer, root, run->recipe_json,
                                             run->extra_json, NUM_KEPT_CHECKPOINTS);
    lgi_free(root);
    LG_TRY(lgi_ranks_settle(&run->ranks, status));
    run->last_checkpoint_step = step;
    return LG_OK;
}

/* Finds out what the metrics have of the step that the run goes on from. */
static lg_status load_metrics(lgi_run *run)
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

static lg_status recall_metrics(lgi_run *run)
{
    const lg_status status = lgi_ranks_is_first(&run->ranks) ? load_metrics(run) : LG_OK;
    LG_TRY(lgi_ranks_settle(&run->ranks, status));
    return lgi_ranks_tell(&run->ranks, run->is_logged, sizeof run->is_logged);
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
        .epoch = (double)(done + run->job->batch_shift) / (double)lg_job_steps_per_epoch(run->job),
        .loss = result->loss,
        .lr = lg_optim_lr(&optim, result->step, run->job->num_steps) *
              lg_optim_fixed_factor(&optim, lgi_job_scale(run->job)),
        .samples_per_s = recent_s > 0.0 ? (double)run->recipe->train.batch / recent_s : NAN,
        .step_ms = (double)total_ns * 1e-6,
        .eta_s = recent_s * (double)(run->num_steps - done)};
    return progress;
}

static bool is_logged(const lgi_run *run, int64_t done)
{
    return done % run->recipe->train.log_every == 0 || done == 1 || done == run->num_steps;
}

/* What follows from a step's result; with gradient statistics on all ranks, else on rank 0 only. */
static lg_status look_at_result(lgi_run *run, const lgi_made_step *made)
{
    const lg_step_result *const result = &made->result;
    char what[128];
    run->num_skipped = result->was_skipped ? run->num_skipped + 1 : 0;
    if (result->was_skipped && run->num_skipped <= MAX_SKIPPED) {
        lgi_run_say(run, "step %" PRId64 ": a gradient is not finite, nothing was updated",
                    result->step + 1);
        return LG_OK;
    }
    run->loss = result->loss;
    if (result->was_skipped) {
        (void)snprintf(what, sizeof what, "%d steps in a row were skipped", run->num_skipped);
        return fail_not_finite(run, what);
    }
    if (!isfinite(result->loss)) {
        (void)snprintf(what, sizeof what, "step %" PRId64 ": the loss is %s", result->step + 1,
                       isnan(result->loss) ? "nan" : "infinite");
        return fail_not_finite(run, what);
    }
    lgi_run_measure_end(&run->measure, result, made->num_samples, made->total_ns, made->is_full);
    lg_run_progress progress = progress_of(run, result, made->total_ns);
    if (is_logged(run, progress.step)) {
        LG_TRY(lgi_run_median_lr(run, &progress.lr));
        LG_TRY(lgi_run_log_step(run, result, &progress));
    }
    if (run->opts.listener.on_step != NULL && lgi_ranks_is_first(&run->ranks)) {
        run->opts.listener.on_step(run->opts.listener.user, &progress);
    }
    return LG_OK;
}

/* Looks at the results of all steps before `end` that nobody looked at. */
static lg_status look_at_results(lgi_run *run, int64_t end)
{
    while (run->num_made > 0 && run->made[0].step < end) {
        lgi_made_step made = run->made[0];
        run->made[0] = run->made[1];
        run->num_made--;
        if (!made.has_result && lgi_ranks_is_first(&run->ranks)) {
            LG_TRY(lg_trainer_result(run->job->trainer, made.step, &made.result));
            made.has_result = true;
        }
        if (made.has_result) {
            LG_TRY(look_at_result(run, &made));
        }
    }
    return LG_OK;
}

/*
 * Whether all ranks look at the result at once: alone it is there; and rates are those of the last step, which takes all ranks to
 * read.
 */
static bool needs_result(const lgi_run *run, int64_t done)
{
    return run->ranks.comm == NULL ||
           (lg_trainer_has_rates(run->job->trainer) &&
            (is_logged(run, done) || run->recipe->optim.total_iterations > 0.0));
}

static lg_status make_step(lgi_run *run)
{
    const lg_batch *batch = NULL;
    lgi_made_step *const made = &run->made[run->num_made];
    const uint64_t start_ns = lgi_clock_ns();
    made->step = lg_trainer_next_step(run->job->trainer);
    made->has_result = needs_result(run, made->step + 1);
    lgi_run_measure_begin(&run->measure, run->job->trainer, made->step);
    LG_TRY(lgi_job_next_batch(run->job, &batch));
    LG_TRY(lgi_job_train_batch(run->job, batch, made->has_result ? &made->result : NULL));
    made->num_samples = batch->num_samples;
    made->is_full = batch->num_samples == lg_loader_max_samples(run->job->data.train_loader);
    made->total_ns = lgi_clock_ns() - start_ns;
    run->num_made++;
    LG_TRY(lgi_run_measure_record(&run->measure, run->job->trainer, made->step, made->is_full));
    return lgi_run_end_by_iterations(run);
}

/* Evaluation and checkpoint after `step` steps. */
static lg_status do_what_is_due(lgi_run *run, int64_t step)
{
    const int64_t checkpoint_every = run->recipe->train.checkpoint_every;
    if (is_evaluation_due(run, step)) {
        LG_TRY(evaluate(run, training_part(run)));
    }
    if (checkpoint_every > 0 && step % checkpoint_every == 0) {
        LG_TRY(save_checkpoint(run));
    }
    return LG_OK;
}

static bool is_due(const lgi_run *run, int64_t step)
{
    const int64_t checkpoint_every = run->recipe->train.checkpoint_every;
    return is_evaluation_due(run, step) || step == run->num_steps ||
           (checkpoint_every > 0 && step % checkpoint_every == 0);
}

/* A failure that the other ranks do not know of yet, and must hear of between two steps. */
struct late {
    lg_status status;
    char message[1024];
};

static void keep_late(struct late *late, lg_status status)
{
    if (late->status == LG_OK && status != LG_OK) {
        late->status = status;
        (void)snprintf(late->message, sizeof late->message, "%s", lg_last_error());
    }
}

static lg_status settle_late(lgi_run *run, const struct late *late)
{
    return lgi_ranks_settle(
        &run->ranks, late->status != LG_OK ? lgi_fail_copy(late->status, late->message) : LG_OK);
}

static lg_status train_steps(lgi_run *run)
{
    struct late late = {.status = LG_OK};
    lgi_word word = LGI_WORD_GO_ON;
    if (run->first_step > 0) {
        LG_TRY(recall_metrics(run));
        if (is_evaluation_due(run, run->first_step) && !run->is_logged[training_part(run)]) {
            LG_TRY(evaluate(run, training_part(run)));
        }
    }
    while (lg_trainer_next_step(run->job->trainer) < run->num_steps) {
        LG_TRY(lgi_ranks_next_round(&run->ranks, late.status != LG_OK, &word));
        if (word != LGI_WORD_GO_ON) {
            break;
        }
        LG_TRY(lgi_ranks_fail(&run->ranks, make_step(run)));
        const int64_t step = lg_trainer_next_step(run->job->trainer);
        const bool is_now = needs_result(run, step) || is_due(run, step);
        keep_late(&late, look_at_results(run, is_now ? step : step - 1));
        if (is_due(run, step)) {
            LG_TRY(settle_late(run, &late));
            LG_TRY(do_what_is_due(run, step));
        }
    }
    keep_late(&late, look_at_results(run, INT64_MAX));
    LG_TRY(settle_late(run, &late));
    if (word == LGI_WORD_STOP) {
        LG_FAIL(LG_INTERRUPTED, "stopped");
    }
    return LG_OK;
}

/* --- the end ------------------------------------------------------------------------------------------------------- */

struct sample {
    lgi_run *run;
    char *text;
    size_t num_bytes, capacity;
    lg_status status;
    bool is_stopped;
};

static bool keep_byte(void *user, unsigned char byte)
{
    struct sample *const sample = user;
    lgi_word word = LGI_WORD_GO_ON;
    sample->status =
        lgi_grow(&sample->text, &sample->capacity, sample->num_bytes + 1, sizeof *sample->text);
    if (sample->status == LG_OK) {
        sample->status = lgi_ranks_next_round(&sample->run->ranks, false, &word);
    }
    sample->is_stopped = word != LGI_WORD_GO_ON;
    if (sample->status != LG_OK || sample->is_stopped) {
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
    LG_TRY_GOTO(lgi_ranks_fail(&run->ranks, sample.status));
    if (sample.is_stopped) {
        LG_TRY_GOTO(lgi_fail(LG_INTERRUPTED, "stopped"));
    }
    if (lgi_ranks_is_first(&run->ranks)) {
        status = lgi_file_write(path, sample.text, sample.num_bytes);
    }
    LG_TRY_GOTO(lgi_ranks_settle(&run->ranks, status));
    if (run->opts.listener.on_sample != NULL && lgi_ranks_is_first(&run->ranks)) {
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

/* Where others are gone or stuck: what this rank was at, behind the message. */
static void add_place(const lgi_run *run, lg_status outcome, char *message, size_t num_bytes)
{
    const size_t used = strlen(message);
    if (run->ranks.comm == NULL || (outcome != LG_COMM && outcome != LG_TIMEOUT)) {
        return;
    }
    const lgi_activity activity = lgi_comm_told(run->ranks.comm, run->ranks.rank, NULL);
    char waiting[64] = "";
    if (activity.waits_for_rank >= 0) {
        (void)snprintf(waiting, sizeof waiting, ", waiting for rank %d", activity.waits_for_rank);
    }
    (void)snprintf(message + used, num_bytes - used, "; rank %d was at step %" PRId64 "%s%s%s",
                   run->ranks.rank, lg_trainer_next_step(run->job->trainer) + 1,
                   activity.text[0] != '\0' ? ", " : "", activity.text, waiting);
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
    add_place(run, outcome, message, sizeof message);
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
    LG_TRY(lgi_strdup(&result->directory, run->dir.path));
    result->num_steps = lg_trainer_next_step(run->job->trainer);
    result->loss = run->loss;
    result->has_test = run->has_test;
    result->test = run->test;
    result->step_ms_median = lgi_run_measure_median_ms(&run->measure);
    result->predicted_step_ms = info.predicted_step_ns * 1e-6;
    result->samples_per_s = lgi_run_measure_samples_per_s(&run->measure);
    LG_TRY(lgi_run_sum_peaks(run));
    result->planned_peak_bytes = run->sum.planned_peak_bytes;
    result->measured_peak_bytes = run->sum.measured_peak_bytes;
    result->executor_overhead_frac = lgi_run_overhead_frac(run);
    result->num_ranks = run->ranks.num_ranks;
    result->bubble_frac = run->sum.bubble_frac;
    result->exposed_comm_frac = run->sum.exposed_comm_frac;
    result->bytes_sent = run->sum.bytes_sent;
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
    LG_TRY(lgi_run_prepare(run, &was_finished));
    if (was_finished) {
        lgi_run_say(run,
                    "the run in %s is finished; a larger train.steps or train.epochs goes on with "
                    "it",
                    run->dir.path);
        result->was_finished = true;
        return fill_result(result, run);
    }
    const lg_status start_status = save_start(run);
    if (start_status != LG_OK && !run->opts.resume && lgi_ranks_is_first(&run->ranks)) {
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

lg_status lgi_run_train_rank(const lg_recipe *recipe, const lg_run_opts *opts,
                             lg_run_result *result)
{
    lgi_run run;
    memset(&run, 0, sizeof run);
    memset(result, 0, sizeof *result);
    run.recipe = recipe;
    run.opts = *opts;
    run.dir.lock_fd = -1;
    run.loss = NAN;
    run.last_checkpoint_step = -1;
    lgi_run_sum_init(&run.sum);
    lgi_format_time(run.started_at, sizeof run.started_at);
    char message[1024];
    lg_status status = lgi_ranks_init(&run.ranks, opts->comm, opts->should_stop);
    if (status == LG_OK) {
        status = carry_out(&run, result);
    }
    (void)snprintf(message, sizeof message, "%s", status != LG_OK ? lg_last_error() : "");
    lg_metrics_log_close(run.metrics);
    lgi_run_sum_deinit(&run.sum);
    lgi_run_measure_deinit(&run.measure);
    lg_job_destroy(run.job);
    lgi_run_dir_deinit(&run.dir);
    lg_recipe_text_destroy(run.recipe_json);
    lg_recipe_text_destroy(run.recipe_yaml);
    lgi_free(run.extra_json);
    lgi_ranks_deinit(&run.ranks);
    return status == LG_OK ? LG_OK : lgi_fail_copy(status, message);
}
