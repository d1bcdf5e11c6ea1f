/*
 * Datasets in memory: creation from arrays, splits, statistics.
 *
 * Views never chain: a view of a view refers to the owner, so destroying is one level deep.
 */
#include "data/dataset.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "data/sample_order.h"

/* Elements of all samples; INVALID_ARG if the sizes make no sense. */
static lg_status count_elems(int64_t *out, const lg_shape *sample_shape, int64_t num_samples)
{
    int64_t elems = num_samples;
    if (num_samples < 1) {
        LG_FAIL(LG_INVALID_ARG, "dataset: %lld samples, expected 1 or more",
                (long long)num_samples);
    }
    if (sample_shape->num_dims < 1 || sample_shape->num_dims > 3) {
        LG_FAIL(LG_INVALID_ARG, "dataset: samples of %d dimensions, expected 1 to 3",
                sample_shape->num_dims);
    }
    for (int i = 0; i < sample_shape->num_dims; i++) {
        if (sample_shape->dims[i] < 1 || sample_shape->dims[i] > INT32_MAX ||
            __builtin_mul_overflow(elems, sample_shape->dims[i], &elems)) {
            char text[128];
            LG_FAIL(LG_INVALID_ARG,
                    "dataset: %lld samples of shape %s, expected sizes from 1 "
                    "whose product fits 63 bits",
                    (long long)num_samples, lg_shape_format(sample_shape, text, sizeof text));
        }
    }
    *out = elems;
    return LG_OK;
}

static lg_status check_ids(const int32_t *ids, int64_t num_ids, int bound, const char *what)
{
    for (int64_t i = 0; i < num_ids; i++) {
        if (ids[i] < 0 || ids[i] >= bound) {
            LG_FAIL(LG_INVALID_ARG, "dataset: %s %lld is %d, expected one in [0, %d)", what,
                    (long long)i, (int)ids[i], bound);
        }
    }
    return LG_OK;
}

lg_status lgi_dataset_adopt(lg_dataset **out, const char *name, lg_dataset_kind kind,
                            lg_dtype dtype, const lg_shape *sample_shape, int64_t num_samples,
                            int num_classes, void *samples, int32_t *labels)
{
    lg_status status = LG_OK;
    lg_dataset *dataset = NULL;
    *out = NULL;
    LG_TRY_GOTO(lgi_calloc(&dataset, 1, sizeof *dataset));
    LG_TRY_GOTO(lgi_strdup(&dataset->name, name));
    atomic_init(&dataset->num_refs, 1);
    dataset->kind = kind;
    dataset->dtype = dtype;
    dataset->sample_shape = *sample_shape;
    dataset->sample_elems = lg_shape_num_elems(sample_shape);
    dataset->num_samples = num_samples;
    dataset->num_classes = num_classes;
    dataset->samples = samples;
    dataset->labels = labels;
    *out = dataset;
    return LG_OK;
out:
    lgi_free(dataset);
    lgi_free(samples);
    lgi_free(labels);
    return status;
}

lg_status lg_dataset_create_labeled(lg_dataset **out, const lg_sample_array *array)
{
    lg_status status = LG_OK;
    void *samples = NULL;
    int32_t *labels = NULL;
    int64_t num_elems = 0;
    *out = NULL;
    if (array->dtype != LG_DTYPE_F32 && array->dtype != LG_DTYPE_U8) {
        LG_FAIL(LG_INVALID_ARG, "dataset: samples of type %d, expected f32 or u8",
                (int)array->dtype);
    }
    if (array->num_classes < 1) {
        LG_FAIL(LG_INVALID_ARG, "dataset: %d classes, expected 1 or more", array->num_classes);
    }
    if (array->samples == NULL || array->labels == NULL) {
        LG_FAIL(LG_INVALID_ARG, "dataset: %s is NULL",
                array->samples == NULL ? "samples" : "labels");
    }
    LG_TRY(count_elems(&num_elems, &array->sample_shape, array->num_samples));
    LG_TRY(check_ids(array->labels, array->num_samples, array->num_classes, "label of sample"));
    if (array->dtype == LG_DTYPE_F32) {
        const float *values = array->samples;
        const int64_t sample_elems = num_elems / array->num_samples;
        for (int64_t i = 0; i < num_elems; i++) {
            if (!isfinite(values[i])) {
                LG_FAIL(LG_INVALID_ARG, "dataset: sample %lld has the value %g, expected a number",
                        (long long)(i / sample_elems), (double)values[i]);
            }
        }
    }
    const size_t elem_bytes = lg_dtype_bytes(array->dtype);
    LG_TRY_GOTO(lgi_calloc(&samples, (size_t)num_elems, elem_bytes));
    LG_TRY_GOTO(lgi_calloc(&labels, (size_t)array->num_samples, sizeof *labels));
    memcpy(samples, array->samples, (size_t)num_elems * elem_bytes);
    memcpy(labels, array->labels, (size_t)array->num_samples * sizeof *labels);
    return lgi_dataset_adopt(out, "dataset", LG_DATASET_LABELED, array->dtype, &array->sample_shape,
                             array->num_samples, array->num_classes, samples, labels);
out:
    lgi_free(samples);
    return status;
}

lg_status lg_dataset_create_tokens(lg_dataset **out, const int32_t *ids, int64_t num_tokens,
                                   int vocab_size)
{
    const lg_shape scalar = {0};
    int32_t *copy = NULL;
    *out = NULL;
    if (ids == NULL || num_tokens < 1 || vocab_size < 1 || vocab_size == INT32_MAX) {
        LG_FAIL(LG_INVALID_ARG,
                "dataset: %lld tokens of a vocabulary of %d, expected 1 or more of each",
                ids == NULL ? 0LL : (long long)num_tokens, vocab_size);
    }
    LG_TRY(check_ids(ids, num_tokens, vocab_size, "token"));
    LG_TRY(lgi_calloc(&copy, (size_t)num_tokens, sizeof *copy));
    memcpy(copy, ids, (size_t)num_tokens * sizeof *copy);
    return lgi_dataset_adopt(out, "dataset", LG_DATASET_TEXT, LG_DTYPE_I32, &scalar, num_tokens,
                             vocab_size, copy, NULL);
}

lg_dataset *lgi_dataset_keep(const lg_dataset *dataset)
{
    lg_dataset *kept = (lg_dataset *)(uintptr_t)dataset; /* only the count changes */
    atomic_fetch_add_explicit(&kept->num_refs, 1, memory_order_relaxed);
    return kept;
}

void lg_dataset_destroy(lg_dataset *dataset)
{
    if (dataset == NULL ||
        atomic_fetch_sub_explicit(&dataset->num_refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    lg_dataset_destroy(dataset->base);
    lgi_free(dataset->name);
    lgi_free(dataset->samples);
    lgi_free(dataset->labels);
    lgi_free(dataset->sample_idxs);
    lgi_free(dataset);
}

const lg_dataset *lgi_dataset_owner(const lg_dataset *dataset)
{
    return dataset->base != NULL ? dataset->base : dataset;
}

int64_t lgi_dataset_base_idx(const lg_dataset *dataset, int64_t sample)
{
    return dataset->sample_idxs != NULL ? dataset->sample_idxs[sample]
                                        : dataset->first_token + sample;
}

int32_t lgi_dataset_token(const lg_dataset *dataset, int64_t position)
{
    const void *tokens = lgi_dataset_owner(dataset)->samples;
    const int64_t idx = dataset->first_token + position;
    return dataset->dtype == LG_DTYPE_U8 ? ((const uint8_t *)tokens)[idx]
                                         : ((const int32_t *)tokens)[idx];
}

/* A view of `num_samples` samples; the caller fills in which. */
static lg_status create_view(lg_dataset **out, const lg_dataset *dataset, int64_t num_samples)
{
    lg_dataset *view = NULL;
    LG_TRY(lgi_calloc(&view, 1, sizeof *view));
    atomic_init(&view->num_refs, 1);
    view->kind = dataset->kind;
    view->dtype = dataset->dtype;
    view->sample_shape = dataset->sample_shape;
    view->sample_elems = dataset->sample_elems;
    view->num_classes = dataset->num_classes;
    view->num_samples = num_samples;
    view->first_token = dataset->first_token;
    if (dataset->kind == LG_DATASET_LABELED) {
        const lg_status status =
            lgi_calloc(&view->sample_idxs, (size_t)num_samples, sizeof *view->sample_idxs);
        if (status != LG_OK) {
            lgi_free(view);
            return status;
        }
    }
    view->base = lgi_dataset_keep(lgi_dataset_owner(dataset));
    *out = view;
    return LG_OK;
}

/* Marks the last `num_held_out` of a random order, so that both parts can be read off in the original order. */
static lg_status split_labeled(lg_dataset *train, lg_dataset *held_out, const lg_dataset *dataset,
                               uint64_t seed)
{
    lg_status status = LG_OK;
    int64_t *order = NULL;
    uint8_t *is_held_out = NULL;
    const int64_t num_samples = dataset->num_samples;
    LG_TRY_GOTO(lgi_calloc(&order, (size_t)num_samples, sizeof *order));
    LG_TRY_GOTO(lgi_calloc(&is_held_out, (size_t)num_samples, 1));
    lgi_sample_order_fill(order, num_samples, seed, LGI_SPLIT_EPOCH);
    for (int64_t i = 0; i < held_out->num_samples; i++) {
        is_held_out[order[num_samples - 1 - i]] = 1;
    }
    int64_t num_train = 0;
    int64_t num_held_out = 0;
    for (int64_t i = 0; i < num_samples; i++) {
        const int64_t idx = lgi_dataset_base_idx(dataset, i);
        if (is_held_out[i]) {
            held_out->sample_idxs[num_held_out++] = idx;
        } else {
            train->sample_idxs[num_train++] = idx;
        }
    }
out:
    lgi_free(is_held_out);
    lgi_free(order);
    return status;
}

lg_status lg_dataset_split(lg_dataset **out_train, lg_dataset **out_held_out,
                           const lg_dataset *dataset, double held_out_frac, uint64_t seed)
{
    lg_status status = LG_OK;
    lg_dataset *train = NULL;
    lg_dataset *held_out = NULL;
    *out_train = NULL;
    *out_held_out = NULL;
    if (!(held_out_frac > 0.0 && held_out_frac < 1.0)) {
        LG_FAIL(LG_INVALID_ARG, "held-out fraction is %g, expected one in (0, 1)", held_out_frac);
    }
    const int64_t num_samples = dataset->num_samples;
    const int64_t num_held_out = (int64_t)round((double)num_samples * held_out_frac);
    if (num_held_out < 1 || num_held_out >= num_samples) {
        LG_FAIL(LG_INVALID_ARG,
                "held-out fraction %g of %lld samples leaves one part empty, expected one in "
                "[%g, %g]",
                held_out_frac, (long long)num_samples, 1.0 / (double)num_samples,
                1.0 - 1.0 / (double)num_samples);
    }
    LG_TRY_GOTO(create_view(&train, dataset, num_samples - num_held_out));
    LG_TRY_GOTO(create_view(&held_out, dataset, num_held_out));
    if (dataset->kind == LG_DATASET_TEXT) {
        held_out->first_token += train->num_samples;
    } else {
        LG_TRY_GOTO(split_labeled(train, held_out, dataset, seed));
    }
    *out_train = train;
    *out_held_out = held_out;
    return LG_OK;
out:
    lg_dataset_destroy(train);
    lg_dataset_destroy(held_out);
    return status;
}

lg_status lg_dataset_head(lg_dataset **out, const lg_dataset *dataset, int64_t num_samples)
{
    *out = NULL;
    if (num_samples < 1) {
        LG_FAIL(LG_INVALID_ARG, "number of samples is %lld, expected 1 or more",
                (long long)num_samples);
    }
    if (num_samples > dataset->num_samples) {
        num_samples = dataset->num_samples;
    }
    LG_TRY(create_view(out, dataset, num_samples));
    for (int64_t i = 0; (*out)->sample_idxs != NULL && i < num_samples; i++) {
        (*out)->sample_idxs[i] = lgi_dataset_base_idx(dataset, i);
    }
    return LG_OK;
}

lg_dataset_kind lg_dataset_kind_of(const lg_dataset *dataset)
{
    return dataset->kind;
}

int64_t lg_dataset_num_samples(const lg_dataset *dataset)
{
    return dataset->num_samples;
}

lg_shape lg_dataset_sample_shape(const lg_dataset *dataset)
{
    return dataset->sample_shape;
}

int lg_dataset_num_classes(const lg_dataset *dataset)
{
    return dataset->num_classes;
}

int32_t lg_dataset_label(const lg_dataset *dataset, int64_t sample)
{
    if (dataset->kind == LG_DATASET_TEXT) {
        return lgi_dataset_token(dataset, sample);
    }
    return lgi_dataset_owner(dataset)->labels[lgi_dataset_base_idx(dataset, sample)];
}

int lg_dataset_num_channels(const lg_dataset *dataset)
{
    if (dataset->kind == LG_DATASET_TEXT) {
        return 0;
    }
    return dataset->sample_shape.num_dims == 3 ? (int)dataset->sample_shape.dims[0] : 1;
}

/* Sum and sum of squares of (value - shift) over one channel, in the order of the samples. */
static void sum_channel(double *out_sum, double *out_squares, const lg_dataset *dataset,
                        int channel, double shift)
{
    const lg_dataset *owner = lgi_dataset_owner(dataset);
    const int64_t channel_elems = dataset->sample_elems / lg_dataset_num_channels(dataset);
    double sum = 0.0;
    double squares = 0.0;
    for (int64_t i = 0; i < dataset->num_samples; i++) {
        const int64_t begin =
            lgi_dataset_base_idx(dataset, i) * dataset->sample_elems + channel * channel_elems;
        if (dataset->dtype == LG_DTYPE_U8) {
            /* Whole numbers: exact, and quick. A channel of an image has less than 2^47 pixels. */
            const uint8_t *values = (const uint8_t *)owner->samples + begin;
            uint64_t byte_sum = 0;
            uint64_t byte_squares = 0;
            for (int64_t k = 0; k < channel_elems; k++) {
                byte_sum += values[k];
                byte_squares += (uint64_t)values[k] * values[k];
            }
            sum += (double)byte_sum;
            squares += (double)byte_squares;
        } else {
            const float *values = (const float *)owner->samples + begin;
            for (int64_t k = 0; k < channel_elems; k++) {
                const double value = (double)values[k] - shift;
                sum += value;
                squares += value * value;
            }
        }
    }
    *out_sum = sum;
    *out_squares = squares;
}

lg_status lg_dataset_mean_std(const lg_dataset *dataset, float *mean, float *std)
{
    if (dataset->kind != LG_DATASET_LABELED) {
        LG_FAIL(LG_INVALID_ARG, "mean and deviation of a text were asked for");
    }
    const int num_channels = lg_dataset_num_channels(dataset);
    const double count =
        (double)dataset->num_samples * (double)(dataset->sample_elems / num_channels);
    for (int c = 0; c < num_channels; c++) {
        double sum = 0.0;
        double squares = 0.0;
        double shift = 0.0;
        sum_channel(&sum, &squares, dataset, c, 0.0);
        if (dataset->dtype == LG_DTYPE_F32) {
            shift = sum / count; /* a second pass: a large mean would hide the deviation */
            sum_channel(&sum, &squares, dataset, c, shift);
        }
        const double scale = dataset->dtype == LG_DTYPE_U8 ? 255.0 : 1.0;
        const double rest = sum / count;
        const double variance = squares / count - rest * rest;
        mean[c] = (float)((shift + rest) / scale);
        std[c] = variance > 0.0 ? (float)(sqrt(variance) / scale) : 1.0f;
    }
    return LG_OK;
}
