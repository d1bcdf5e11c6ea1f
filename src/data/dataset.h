/*
 * What a dataset is inside: an owner of arrays, or a view of one (a split) that keeps it alive.
 *
 * Immutable after creation, except for the count of references.
 */
#ifndef LGI_DATA_DATASET_H
#define LGI_DATA_DATASET_H

#include <stdatomic.h>

#include "leapgrad/data.h"

struct lg_dataset {
    atomic_int num_refs;
    struct lg_dataset *base; /* view: the owner of the arrays, held by a reference; owner: NULL */
    char *name;              /* owner: the file it came from, for messages; view: NULL */
    lg_dataset_kind kind;
    lg_dtype dtype; /* labeled: U8 or F32; text: U8 or I32 */
    lg_shape sample_shape;
    int64_t sample_elems;
    int64_t num_samples;
    int num_classes;
    int64_t first_token; /* text: where a view begins in its base */

    void *samples;        /* owner: all samples, or the text */
    int32_t *labels;      /* owner, labeled */
    int64_t *sample_idxs; /* view, labeled: positions in the base */
};

/* Takes `samples` and `labels` (NULL for text), also on failure. */
LG_NODISCARD lg_status lgi_dataset_adopt(lg_dataset **out, const char *name, lg_dataset_kind kind,
                                         lg_dtype dtype, const lg_shape *sample_shape,
                                         int64_t num_samples, int num_classes, void *samples,
                                         int32_t *labels);

/* Another reference; lg_dataset_destroy() gives it back. */
lg_dataset *lgi_dataset_keep(const lg_dataset *dataset);

/* Where sample `sample` of the dataset lies in its owner's arrays. */
int64_t lgi_dataset_base_idx(const lg_dataset *dataset, int64_t sample);

/* The arrays' owner: the dataset itself or its base. */
const lg_dataset *lgi_dataset_owner(const lg_dataset *dataset);

/* The token at `position` of a text. */
int32_t lgi_dataset_token(const lg_dataset *dataset, int64_t position);

#endif
