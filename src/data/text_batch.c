/*
 * Batches of text: windows, next-token targets, masked tokens.
 *
 * Shuffled: windows at random places, drawn per batch; an epoch is as many of them as fit side by side into the text,
 * and all batches are full. Sequential: windows side by side, the last one padded.
 */
#include <math.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/random.h"
#include "data/batch_builder.h"

/* Of the positions that are predicted, those hidden by the mask and those replaced by a random token (percent). */
#define PERCENT_MASKED 80
#define PERCENT_RANDOM 10

static bool is_masked(const lgi_batch_builder *builder)
{
    return builder->opts.text_task == LG_TEXT_MASKED;
}

/* Tokens that a window needs besides its T ids. */
static int64_t lookahead(const lgi_batch_builder *builder)
{
    return is_masked(builder) ? 0 : 1;
}

static lg_status check_opts(const lgi_batch_builder *builder)
{
    const lg_loader_opts *opts = &builder->opts;
    const lg_dataset *dataset = builder->dataset;
    if (opts->text_task != LG_TEXT_NEXT_TOKEN && opts->text_task != LG_TEXT_MASKED) {
        LG_FAIL(LG_INVALID_ARG, "text task is %d, expected next token or masked",
                (int)opts->text_task);
    }
    if (opts->context_tokens < 1 || opts->context_tokens > INT32_MAX) {
        LG_FAIL(LG_INVALID_ARG, "context is %lld tokens, expected a number in [1, %d]",
                (long long)opts->context_tokens, INT32_MAX);
    }
    if (dataset->num_samples < opts->context_tokens + lookahead(builder)) {
        LG_FAIL(LG_INVALID_ARG,
                "'%s': %lld tokens of text, expected at least %lld (a context of %lld%s)",
                lgi_dataset_owner(dataset)->name, (long long)dataset->num_samples,
                (long long)(opts->context_tokens + lookahead(builder)),
                (long long)opts->context_tokens,
                is_masked(builder) ? "" : " and the token after it");
    }
    if (is_masked(builder) && !(opts->mask_frac > 0.0 && opts->mask_frac <= 1.0)) {
        LG_FAIL(LG_INVALID_ARG, "masked fraction is %g, expected one in (0, 1]", opts->mask_frac);
    }
    if (opts->ignore_index >= 0) {
        LG_FAIL(LG_INVALID_ARG, "ignore_index is %d, expected a negative number",
                (int)opts->ignore_index);
    }
    if (opts->num_channels != 0 || opts->crop_pad_pixels != 0 || opts->has_flip) {
        LG_FAIL(LG_INVALID_ARG, "normalisation, crop and flip are for images, '%s' is a text",
                lgi_dataset_owner(dataset)->name);
    }
    return LG_OK;
}

lg_status lgi_init_text(lgi_batch_builder *builder)
{
    const lg_loader_opts *opts = &builder->opts;
    LG_TRY(check_opts(builder));
    const int64_t context = opts->context_tokens;
    const int64_t num_tokens = builder->dataset->num_samples - lookahead(builder);
    builder->samples_per_epoch = num_tokens / context;
    if (opts->order == LG_ORDER_SEQUENTIAL) {
        builder->samples_per_epoch += num_tokens % context != 0;
    } else {
        /* Random windows: full batches only, whatever divides. */
        const int64_t rest = builder->samples_per_epoch % opts->batch_samples;
        if (rest != 0 && !opts->drop_last) {
            builder->samples_per_epoch += opts->batch_samples - rest;
        }
    }
    builder->num_tensors = is_masked(builder) ? 3 : 2;
    for (int i = 0; i < builder->num_tensors; i++) {
        builder->dtypes[i] = i < 2 ? LG_DTYPE_I32 : LG_DTYPE_F32;
        builder->shapes[i] = LG_SHAPE(context);
    }
    return LG_OK;
}

/* Next token: ids [T] and targets [T] of the window at `begin`, of which `num_real` are there. */
static void fill_next_token(const lgi_batch_builder *builder, int64_t begin, int64_t num_real,
                            int32_t *ids, int32_t *targets)
{
    const lg_dataset *dataset = builder->dataset;
    for (int64_t t = 0; t < builder->opts.context_tokens; t++) {
        ids[t] = t < num_real ? lgi_dataset_token(dataset, begin + t) : 0;
        targets[t] =
            t < num_real ? lgi_dataset_token(dataset, begin + t + 1) : builder->opts.ignore_index;
    }
}

/*
 * Masked: as above, and keep [T]; returns the number of targets. Positions are drawn by the first steps of a Fisher-Yates
 * shuffle. Numbers of the stream: 3k for the k-th position, 3k + 1 for what happens to it, 3k + 2 for a random token.
 */
static int64_t fill_masked(const lgi_batch_builder *builder, const lgi_random *random,
                           int64_t begin, int64_t num_real, int32_t *ids, int32_t *targets,
                           float *keep)
{
    const lg_dataset *dataset = builder->dataset;
    const int64_t wanted = (int64_t)round(builder->opts.mask_frac * (double)num_real);
    const int64_t num_targets = wanted < 1 ? 1 : wanted;
    int64_t *positions = builder->positions;
    for (int64_t t = 0; t < builder->opts.context_tokens; t++) {
        ids[t] = t < num_real ? lgi_dataset_token(dataset, begin + t) : 0;
        targets[t] = builder->opts.ignore_index;
        keep[t] = t < num_real ? 1.0f : 0.0f;
        positions[t] = t;
    }
    for (int64_t k = 0; k < num_targets; k++) {
        const uint64_t number = 3 * (uint64_t)k;
        const int64_t other =
            k + (int64_t)lgi_random_below(random, number, (uint64_t)(num_real - k));
        const int64_t t = positions[other];
        positions[other] = positions[k];
        positions[k] = t;
        targets[t] = ids[t];
        const uint64_t percent = lgi_random_below(random, number + 1, 100);
        if (percent < PERCENT_MASKED) {
            ids[t] = dataset->num_classes;
        } else if (percent < PERCENT_MASKED + PERCENT_RANDOM) {
            ids[t] = (int32_t)lgi_random_below(random, number + 2, (uint64_t)dataset->num_classes);
        }
    }
    return num_targets;
}

lg_status lgi_build_text(lgi_batch_builder *builder, lgi_batch_slot *slot)
{
    const lg_loader_opts *opts = &builder->opts;
    const int64_t context = opts->context_tokens;
    const int64_t num_tokens = builder->dataset->num_samples - lookahead(builder);
    const bool is_shuffled = opts->order == LG_ORDER_SHUFFLED;
    lg_batch *batch = &slot->batch;
    if (is_masked(builder) && builder->positions == NULL) {
        LG_TRY(lgi_calloc(&builder->positions, (size_t)context, sizeof *builder->positions));
    }
    /* Sequential: the same windows and masks in each epoch, so that evaluations can be compared. */
    const int64_t batch_in_epoch = batch->batch_idx % builder->batches_per_epoch;
    const uint64_t step = (uint64_t)(is_shuffled ? batch->batch_idx : batch_in_epoch);
    const lgi_random places = lgi_random_stream(opts->seed, LGI_RANDOM_CROP, step, 0, 0);
    for (int64_t i = 0; i < batch->num_samples; i++) {
        int64_t begin = (batch_in_epoch * opts->batch_samples + i) * context;
        if (is_shuffled) {
            begin = (int64_t)lgi_random_below(&places, (uint64_t)i,
                                              (uint64_t)(num_tokens - context + 1));
        }
        const int64_t rest = num_tokens - begin;
        const int64_t num_real = rest < context ? rest : context;
        int32_t *ids = (int32_t *)slot->data[0] + i * context;
        int32_t *targets = (int32_t *)slot->data[1] + i * context;
        if (is_masked(builder)) {
            const lgi_random random =
                lgi_random_stream(opts->seed, LGI_RANDOM_MASK, step, (uint64_t)i, 0);
            float *keep = (float *)slot->data[2] + i * context;
            batch->num_targets +=
                fill_masked(builder, &random, begin, num_real, ids, targets, keep);
        } else {
            fill_next_token(builder, begin, num_real, ids, targets);
            batch->num_targets += num_real;
        }
        slot->sample_ids[i] = builder->dataset->first_token + begin;
    }
    return LG_OK;
}
