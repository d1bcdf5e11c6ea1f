/* Loaders: a batch builder, and a thread that runs it ahead or a slot to build into when asked. */
#include <sched.h>

#include "base/alloc.h"
#include "base/check.h"
#include "data/batch_builder.h"
#include "data/prefetch.h"

#define MAX_PREFETCH_BATCHES 64

struct lg_loader {
    lgi_batch_builder builder;
    lgi_prefetch *prefetch; /* NULL: none */
    lgi_batch_slot slot;    /* without prefetch */
};

lg_loader_opts lg_loader_opts_default(void)
{
    const lg_loader_opts opts = {.batch_samples = 1,
                                 .order = LG_ORDER_SHUFFLED,
                                 .prefetch_cpu = -1,
                                 .context_tokens = 1,
                                 .text_task = LG_TEXT_NEXT_TOKEN,
                                 .mask_frac = 0.15,
                                 .ignore_index = -100};
    return opts;
}

lg_status lg_loader_create(lg_loader **out, const lg_dataset *dataset, const lg_loader_opts *opts)
{
    lg_status status = LG_OK;
    lg_loader *loader = NULL;
    *out = NULL;
    if (opts->prefetch_batches < 0 || opts->prefetch_batches > MAX_PREFETCH_BATCHES) {
        LG_FAIL(LG_INVALID_ARG, "batches built ahead are %d, expected a number in [0, %d]",
                opts->prefetch_batches, MAX_PREFETCH_BATCHES);
    }
    if (opts->prefetch_cpu < -1 || opts->prefetch_cpu >= CPU_SETSIZE) {
        LG_FAIL(LG_INVALID_ARG, "prefetch thread: CPU %d, expected one in [-1, %d)",
                opts->prefetch_cpu, CPU_SETSIZE);
    }
    LG_TRY(lgi_calloc(&loader, 1, sizeof *loader));
    LG_TRY_GOTO(lgi_batch_builder_init(&loader->builder, dataset, opts));
    if (opts->prefetch_batches > 0) {
        LG_TRY_GOTO(lgi_prefetch_create(&loader->prefetch, &loader->builder, opts->prefetch_batches,
                                        opts->prefetch_cpu));
    }
    *out = loader;
    return LG_OK;
out:
    lg_loader_destroy(loader);
    return status;
}

void lg_loader_destroy(lg_loader *loader)
{
    if (loader == NULL) {
        return;
    }
    lgi_prefetch_destroy(loader->prefetch);
    lgi_batch_slot_deinit(&loader->slot);
    lgi_batch_builder_deinit(&loader->builder);
    lgi_free(loader);
}

lg_status lg_loader_get(lg_loader *loader, int64_t batch_idx, const lg_batch **out)
{
    *out = NULL;
    if (batch_idx < 0) {
        LG_FAIL(LG_INVALID_ARG, "batch %lld was asked for, expected 0 or more",
                (long long)batch_idx);
    }
    if (loader->prefetch != NULL) {
        return lgi_prefetch_get(loader->prefetch, batch_idx, out);
    }
    LG_TRY(lgi_batch_builder_build(&loader->builder, batch_idx, &loader->slot));
    *out = &loader->slot.batch;
    return LG_OK;
}

int64_t lg_loader_batches_per_epoch(const lg_loader *loader)
{
    return loader->builder.batches_per_epoch;
}

int64_t lg_loader_samples_per_epoch(const lg_loader *loader)
{
    return loader->builder.samples_per_epoch;
}

int64_t lg_loader_batch_samples(const lg_loader *loader, int64_t batch_idx)
{
    return lgi_batch_builder_samples(&loader->builder, batch_idx);
}

int64_t lg_loader_max_samples(const lg_loader *loader)
{
    return loader->builder.max_samples;
}

int lg_loader_num_tensors(const lg_loader *loader)
{
    return loader->builder.num_tensors;
}

lg_dtype lg_loader_tensor_dtype(const lg_loader *loader, int tensor_idx)
{
    return loader->builder.dtypes[tensor_idx];
}

lg_shape lg_loader_tensor_shape(const lg_loader *loader, int tensor_idx)
{
    return loader->builder.shapes[tensor_idx];
}

int lg_loader_num_classes(const lg_loader *loader)
{
    const lg_dataset *dataset = loader->builder.dataset;
    const bool has_mask =
        dataset->kind == LG_DATASET_TEXT && loader->builder.opts.text_task == LG_TEXT_MASKED;
    return dataset->num_classes + (has_mask ? 1 : 0);
}
