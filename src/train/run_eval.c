/* Evaluation: all of a part of the data, in order, with the weights as they are. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "train/run_job.h"

const char *lg_data_part_name(lg_data_part part)
{
    return part == LG_PART_TEST ? "test" : "validation";
}

/*
 * Smoothed targets are for training: a code for text costs what the true byte alone costs. So with smoothing the sums of
 * a batch are taken from the logits, not from the model's loss.
 */
static lg_status evaluate_unsmoothed(lg_job *job, const lg_batch *batch, const void *const *tensors,
                                     lg_eval_sums *sums)
{
    float *logits = NULL;
    const int64_t num_logits = lg_trainer_num_logits(job->trainer);
    const int64_t num_tokens = lg_shape_num_elems(&batch->tensors[1].shape);
    const int64_t vocab_size = batch->num_samples * num_logits / num_tokens;
    const int32_t *const targets = tensors[1];
    LG_TRY(lgi_calloc(&logits, (size_t)(batch->num_samples * num_logits), sizeof *logits));
    const lg_status status = lg_trainer_predict(job->trainer, batch->num_samples, tensors, logits);
    for (int64_t i = 0; i < num_tokens && status == LG_OK; i++) {
        const float *const row = logits + i * vocab_size;
        int64_t best = 0;
        double sum = 0.0;
        if (targets[i] < 0 || targets[i] >= vocab_size) { /* to be ignored */
            continue;
        }
        for (int64_t k = 1; k < vocab_size; k++) {
            best = row[k] > row[best] ? k : best;
        }
        for (int64_t k = 0; k < vocab_size; k++) {
            sum += exp((double)row[k] - (double)row[best]);
        }
        sums->loss_sum += log(sum) + (double)row[best] - (double)row[targets[i]];
        sums->weight_sum += 1.0;
        sums->num_correct += best == targets[i] ? 1 : 0;
        sums->num_targets++;
    }
    lgi_free(logits);
    return status;
}

static lg_status sum_batches(lg_job *job, lg_loader *loader, lg_eval_sums *sums)
{
    const bool is_unsmoothed =
        job->recipe->data.kind != LG_DATA_IDX && job->recipe->train.label_smoothing > 0.0;
    const int64_t num_batches = lg_loader_batches_per_epoch(loader);
    for (int64_t i = 0; i < num_batches; i++) {
        const lg_batch *batch = NULL;
        lgi_word word = LGI_WORD_GO_ON;
        LG_TRY(lgi_ranks_next_round(job->ranks, false, &word));
        if (word != LGI_WORD_GO_ON) {
            LG_FAIL(LG_INTERRUPTED, "evaluation stopped after %" PRId64 " of %" PRId64 " batches",
                    i, num_batches);
        }
        LG_TRY(lgi_ranks_fail(job->ranks, lg_loader_get(loader, i, &batch)));
        const void *tensors[LG_MAX_BATCH_TENSORS] = {NULL};
        for (int t = 0; t < batch->num_tensors; t++) {
            tensors[t] = batch->tensors[t].data;
        }
        const lg_status status =
            is_unsmoothed ? evaluate_unsmoothed(job, batch, tensors, sums)
                          : lg_trainer_evaluate(job->trainer, batch->num_samples, tensors, sums);
        LG_TRY(lgi_ranks_fail(job->ranks, status));
    }
    return LG_OK;
}

lg_status lgi_job_evaluate(lg_job *job, lg_data_part part, lg_evaluation *out)
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
    LG_TRY(lgi_ranks_settle(job->ranks,
                            lgi_run_data_eval_loader(&loader, &job->data, job->recipe, part)));
    const lg_status status = sum_batches(job, loader, &sums);
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
    return lgi_job_evaluate(job, part, out);
}
