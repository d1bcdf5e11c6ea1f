/*
 * Builds batches: the pure function (dataset, options, batch index) -> host tensors.
 *
 * A builder caches the order of the epoch it built last; that changes how fast a batch comes, never what is in it.
 * One thread at a time. Memory is allocated by the first build, so that it lies near the thread that builds.
 */
#ifndef LGI_DATA_BATCH_BUILDER_H
#define LGI_DATA_BATCH_BUILDER_H

#include "data/dataset.h"

typedef struct lgi_batch_builder {
    lg_dataset *dataset; /* holds a reference */
    lg_loader_opts opts; /* mean and std: NULL, see `mean`, `std` */
    float *mean;         /* by channel; 0 without normalisation */
    float *std;          /* 1 without normalisation */
    float *pixel_values; /* u8: [channels][256], normalised */
    int num_channels;

    int64_t samples_per_epoch;
    int64_t batches_per_epoch;
    int64_t max_samples;

    int num_tensors;
    lg_dtype dtypes[LG_MAX_BATCH_TENSORS];
    lg_shape shapes[LG_MAX_BATCH_TENSORS]; /* of one sample */

    int64_t *order; /* shuffled, labeled: the order of epoch `order_epoch` */
    int64_t order_epoch;
    float *image;       /* augmented images: scratch, one sample */
    int64_t *positions; /* masked text: scratch, one window */
} lgi_batch_builder;

/* A batch and the memory it lies in. Zeroed before the first build. */
typedef struct lgi_batch_slot {
    lg_batch batch;
    void *data[LG_MAX_BATCH_TENSORS];
    int64_t *sample_ids;
} lgi_batch_slot;

/* Checks the options. Deinit also after a failure. */
LG_NODISCARD lg_status lgi_batch_builder_init(lgi_batch_builder *builder, const lg_dataset *dataset,
                                              const lg_loader_opts *opts);
void lgi_batch_builder_deinit(lgi_batch_builder *builder);

/* Samples of batch `batch_idx`. */
int64_t lgi_batch_builder_samples(const lgi_batch_builder *builder, int64_t batch_idx);

LG_NODISCARD lg_status lgi_batch_builder_build(lgi_batch_builder *builder, int64_t batch_idx,
                                               lgi_batch_slot *slot);

void lgi_batch_slot_deinit(lgi_batch_slot *slot);

/* The two kinds of data; called by lgi_batch_builder_build() with batch_idx, epoch and num_samples set. */
LG_NODISCARD lg_status lgi_build_labeled(lgi_batch_builder *builder, lgi_batch_slot *slot);
LG_NODISCARD lg_status lgi_build_text(lgi_batch_builder *builder, lgi_batch_slot *slot);

/* Checks options and fills in the sizes, for each kind of data. */
LG_NODISCARD lg_status lgi_init_labeled(lgi_batch_builder *builder);
LG_NODISCARD lg_status lgi_init_text(lgi_batch_builder *builder);

#endif
