/* What batches of all kinds of data have in common: counting, memory, dispatch. */
#include "data/batch_builder.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

#define TENSOR_ALIGNMENT_BYTES 64

/* Batches of an epoch from samples_per_epoch, which shrinks if the last batch is dropped. */
static lg_status count_batches(lgi_batch_builder *builder)
{
    const int64_t batch_samples = builder->opts.batch_samples;
    const int64_t rest = builder->samples_per_epoch % batch_samples;
    builder->batches_per_epoch = builder->samples_per_epoch / batch_samples;
    if (rest != 0 && builder->opts.drop_last) {
        if (builder->batches_per_epoch == 0) {
            LG_FAIL(LG_INVALID_ARG,
                    "'%s': an epoch of %lld samples has no full batch of %lld, and smaller ones "
                    "are to be dropped",
                    lgi_dataset_owner(builder->dataset)->name,
                    (long long)builder->samples_per_epoch, (long long)batch_samples);
        }
        builder->samples_per_epoch -= rest;
    } else if (rest != 0) {
        builder->batches_per_epoch++;
    }
    builder->max_samples =
        batch_samples < builder->samples_per_epoch ? batch_samples : builder->samples_per_epoch;
    return LG_OK;
}

lg_status lgi_batch_builder_init(lgi_batch_builder *builder, const lg_dataset *dataset,
                                 const lg_loader_opts *opts)
{
    memset(builder, 0, sizeof *builder);
    builder->order_epoch = -1;
    builder->opts = *opts;
    builder->dataset = lgi_dataset_keep(dataset);
    if (opts->batch_samples < 1 || opts->batch_samples > INT32_MAX) {
        LG_FAIL(LG_INVALID_ARG, "samples of a batch are %lld, expected a number in [1, %d]",
                (long long)opts->batch_samples, INT32_MAX);
    }
    if (opts->order != LG_ORDER_SHUFFLED && opts->order != LG_ORDER_SEQUENTIAL) {
        LG_FAIL(LG_INVALID_ARG, "order is %d, expected shuffled or sequential", (int)opts->order);
    }
    if (dataset->kind == LG_DATASET_LABELED) {
        LG_TRY(lgi_init_labeled(builder));
    } else {
        LG_TRY(lgi_init_text(builder));
    }
    LG_TRY(count_batches(builder));
    builder->opts.mean = NULL;
    builder->opts.std = NULL;
    return LG_OK;
}

void lgi_batch_builder_deinit(lgi_batch_builder *builder)
{
    lg_dataset_destroy(builder->dataset);
    lgi_free(builder->mean);
    lgi_free(builder->std);
    lgi_free(builder->pixel_values);
    lgi_free(builder->order);
    lgi_free(builder->image);
    lgi_free(builder->positions);
    memset(builder, 0, sizeof *builder);
}

int64_t lgi_batch_builder_samples(const lgi_batch_builder *builder, int64_t batch_idx)
{
    const int64_t first = batch_idx % builder->batches_per_epoch * builder->opts.batch_samples;
    const int64_t rest = builder->samples_per_epoch - first;
    return rest < builder->opts.batch_samples ? rest : builder->opts.batch_samples;
}

static lg_status allocate(const lgi_batch_builder *builder, lgi_batch_slot *slot)
{
    for (int i = 0; i < builder->num_tensors; i++) {
        const int64_t sample_elems = lg_shape_num_elems(&builder->shapes[i]);
        int64_t bytes = (int64_t)lg_dtype_bytes(builder->dtypes[i]);
        if (slot->data[i] != NULL) {
            continue;
        }
        if (__builtin_mul_overflow(bytes, sample_elems, &bytes) ||
            __builtin_mul_overflow(bytes, builder->max_samples, &bytes)) {
            LG_FAIL(LG_OUT_OF_MEMORY, "a batch of %lld samples does not fit into memory",
                    (long long)builder->max_samples);
        }
        LG_TRY(lgi_alloc_aligned(&slot->data[i], (size_t)bytes, TENSOR_ALIGNMENT_BYTES));
    }
    if (slot->sample_ids == NULL) {
        LG_TRY(
            lgi_calloc(&slot->sample_ids, (size_t)builder->max_samples, sizeof *slot->sample_ids));
    }
    return LG_OK;
}

lg_status lgi_batch_builder_build(lgi_batch_builder *builder, int64_t batch_idx,
                                  lgi_batch_slot *slot)
{
    lg_batch *batch = &slot->batch;
    LG_TRY(allocate(builder, slot));
    memset(batch, 0, sizeof *batch);
    batch->batch_idx = batch_idx;
    batch->epoch = batch_idx / builder->batches_per_epoch;
    batch->num_samples = lgi_batch_builder_samples(builder, batch_idx);
    batch->sample_ids = slot->sample_ids;
    batch->num_tensors = builder->num_tensors;
    for (int i = 0; i < builder->num_tensors; i++) {
        lg_host_tensor *tensor = &batch->tensors[i];
        tensor->dtype = builder->dtypes[i];
        tensor->data = slot->data[i];
        tensor->shape.num_dims = builder->shapes[i].num_dims + 1;
        tensor->shape.dims[0] = batch->num_samples;
        for (int d = 0; d < builder->shapes[i].num_dims; d++) {
            tensor->shape.dims[d + 1] = builder->shapes[i].dims[d];
        }
    }
    return builder->dataset->kind == LG_DATASET_LABELED ? lgi_build_labeled(builder, slot)
                                                        : lgi_build_text(builder, slot);
}

void lgi_batch_slot_deinit(lgi_batch_slot *slot)
{
    for (int i = 0; i < LG_MAX_BATCH_TENSORS; i++) {
        lgi_free(slot->data[i]);
    }
    lgi_free(slot->sample_ids);
    memset(slot, 0, sizeof *slot);
}
