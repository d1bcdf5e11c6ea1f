/* Evaluation: all of a part of the data, in order, with the weights as they are. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "train/run_job.h"

const char *lg_data_part_name(lg_data_part part)
{
    return part == LG_PART_TEST ? "test" : "validation";
}

static lg_status sum_batches(lg_job *job, lg_loader *loader,
                             const volatile sig_atomic_t *should_stop, lg_eval_sums *sums)
{
    const int64_t num_batches = lg_loader_batches_per_epoch(loader);
    for (int64_t i = 0; i < num_batches; i++) {
        const lg_batch *batch = NULL;
        if (should_stop != NULL && *should_stop) {
            LG_FAIL(LG_INTERRUPTED, "evaluation stopped after %" PRId64 " of %" PRId64 " batches",
                    i, num_batches);
        }
        LG_TRY(lg_loader_get(loader, i, &batch));
        const void *tensors[LG_MAX_BATCH_TENSORS] = {NULL};
        for (int t = 0; t < batch->num_tensors; t++) {
            tensors[t] = batch->tensors[t].data;
        }
        LG_TRY(lg_trainer_evaluate(job->trainer, batch->num_samples, tensors, sums));
    }
    return LG_OK;
}

lg_status lgi_job_evaluate(lg_job *job, lg_data_part part, const volatile sig_atomic_t *should_stop,
                           lg_evaluation *out)
{
    lg_loader *loader = NULL;
    lg_eval_sums sums;
    const uint64_t start_ns = lgi_clock_ns();
    const lg_data_kind kind = job->recipe->data.kind;
    memset(out, 0, sizeof *out);
    memset(&sums, 0, sizeof sums);
    if (!job->has_data) {
        LG_FAIL(LG_INVALID_ARG, "the job was made without data");
    }
    LG_TRY(lgi_run_data_eval_loader(&loader, &job->data, job->recipe, part));
    const lg_status status = sum_batches(job, loader, should_stop, &sums);
    lg_loader_destroy(loader);
    LG_TRY(status);
    out->part = part;
    out->step = lg_trainer_next_step(job->trainer);
    out->loss = sums.weight_sum > 0.0 ? sums.loss_sum / sums.weight_sum : NAN;
    out->num_targets = sums.num_targets;
    out->accuracy = kind != LG_DATA_TEXT && sums.num_targets > 0
                        ? (double)sums.num_correct / (double)sums.num_targets
                        : NAN;
    out->bits_per_byte = kind != LG_DATA_IDX ? out->loss / log(2.0) : NAN;
    out->duration_ns = lgi_clock_ns() - start_ns;
    return lg_trainer_weights_hash(job->trainer, out->weights_hash);
}

lg_status lg_job_evaluate(lg_job *job, lg_data_part part, lg_evaluation *out)
{
    return lgi_job_evaluate(job, part, NULL, out);
}
