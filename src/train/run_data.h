/* The data of a run: what the recipe names, cut into its parts, with loaders. */
#ifndef LGI_TRAIN_RUN_DATA_H
#define LGI_TRAIN_RUN_DATA_H

#include "leapgrad/data.h"
#include "leapgrad/run.h"

#define LGI_DATA_HASH_CHARS 17

typedef struct lgi_run_data {
    lg_dataset *train;
    lg_dataset *test;       /* NULL: text with nothing held out */
    lg_dataset *validation; /* NULL: none kept */
    lg_loader *train_loader;
    char train_hash
        [LGI_DATA_HASH_CHARS]; /* of labels or tokens, and of shape and number of the samples */
} lgi_run_data;

/* Opens all of it. On failure nothing is left open. */
LG_NODISCARD lg_status lgi_run_data_open(lgi_run_data *out, const lg_recipe *recipe);
void lgi_run_data_close(lgi_run_data *data);

/* A loader over all of a part in order, of batches as in training. Ownership: the caller's. */
LG_NODISCARD lg_status lgi_run_data_eval_loader(lg_loader **out, const lgi_run_data *data,
                                                const lg_recipe *recipe, lg_data_part part);

/* Shape of an image (scalar for text) and number of classes or ids, as lg_model_from_recipe() wants them. */
lg_shape lgi_run_data_image_shape(const lgi_run_data *data);
int64_t lgi_run_data_num_classes(const lgi_run_data *data, const lg_recipe *recipe);

#endif
