/*
 * The data of a run. Training, validation and test parts never share a sample: validation is cut from the training data,
 * and of a text the held-out end is cut off first.
 */
#include "train/run_data.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"

/* Ids of bytes, and the mask's behind them. */
#define NUM_BYTE_VALUES 256

lg_shape lgi_run_data_image_shape(const lgi_run_data *data)
{
    return lg_dataset_sample_shape(data->train);
}

int64_t lgi_run_data_num_classes(const lgi_run_data *data, const lg_recipe *recipe)
{
    const int64_t num_classes =
        data->train != NULL ? lg_dataset_num_classes(data->train) : NUM_BYTE_VALUES;
    return num_classes + (recipe->data.kind == LG_DATA_MASKED_TEXT ? 1 : 0);
}

/* --- files --------------------------------------------------------------------------------------------------------- */

static lg_status open_images(lgi_run_data *data, const lg_recipe *recipe)
{
    lg_idx_opts opts = lg_idx_opts_default();
    opts.num_classes = (int)recipe->data.num_classes;
    LG_TRY(lg_dataset_open_idx(&data->train, recipe->data.train_images, recipe->data.train_labels,
                               &opts));
    const lg_shape shape = lg_dataset_sample_shape(data->train);
    opts.height = shape.dims[1];
    opts.width = shape.dims[2];
    return lg_dataset_open_idx(&data->test, recipe->data.test_images, recipe->data.test_labels,
                               &opts);
}

/* Splits `*whole` into itself and *out_held_out. */
static lg_status split_off(lg_dataset **whole, lg_dataset **out_held_out, const char *key,
                           double frac, uint64_t seed)
{
    lg_dataset *rest = NULL;
    const lg_status status = lg_dataset_split(&rest, out_held_out, *whole, frac, seed);
    if (status != LG_OK) {
        return lgi_fail_prefix(status, "%s", key);
    }
    lg_dataset_destroy(*whole);
    *whole = rest;
    return LG_OK;
}

static lg_status open_text(lgi_run_data *data, const lg_recipe *recipe)
{
    LG_TRY(lg_dataset_open_text(&data->train, recipe->data.text));
    if (recipe->data.held_out_frac > 0.0) {
        LG_TRY(split_off(&data->train, &data->test, "data.held_out_frac",
                         recipe->data.held_out_frac, (uint64_t)recipe->train.seed));
    }
    return LG_OK;
}

/* --- loaders ------------------------------------------------------------------------------------------------------- */

/* The recipe's mean or std for each channel. */
static lg_status per_channel(float *out, const char *key, const lg_recipe_numbers *numbers,
                             int num_channels)
{
    if (numbers->num != 1 && numbers->num != num_channels) {
        LG_FAIL(LG_INVALID_ARG, "%s: %d numbers for images of %d channels, expected 1 or %d", key,
                numbers->num, num_channels, num_channels);
    }
    for (int i = 0; i < num_channels; i++) {
        out[i] = (float)numbers->values[numbers->num == 1 ? 0 : i];
    }
    return LG_OK;
}

static lg_status create_loader(lg_loader **out, const lg_dataset *dataset, const lg_recipe *recipe,
                               bool is_training)
{
    float mean[LG_RECIPE_MAX_NUMBERS];
    float std[LG_RECIPE_MAX_NUMBERS];
    lg_loader_opts opts = lg_loader_opts_default();
    opts.seed = (uint64_t)recipe->train.seed;
    opts.batch_samples = recipe->train.batch;
    opts.prefetch_batches = (int)recipe->data.prefetch;
    opts.order = is_training ? LG_ORDER_SHUFFLED : LG_ORDER_SEQUENTIAL;
    opts.drop_last = is_training && recipe->data.drop_last;
    if (recipe->data.kind == LG_DATA_IDX) {
        opts.num_channels = lg_dataset_num_channels(dataset);
        if (opts.num_channels > LG_RECIPE_MAX_NUMBERS) {
            LG_FAIL(LG_NOT_SUPPORTED, "images of %d channels, at most %d are supported",
                    opts.num_channels, LG_RECIPE_MAX_NUMBERS);
        }
        LG_TRY(per_channel(mean, "data.mean", &recipe->data.mean, opts.num_channels));
        LG_TRY(per_channel(std, "data.std", &recipe->data.std, opts.num_channels));
        opts.mean = mean;
        opts.std = std;
        opts.crop_pad_pixels = is_training ? recipe->data.pad_crop : 0;
        opts.has_flip = is_training && recipe->data.flip;
    } else {
        opts.context_tokens = recipe->model.context;
        opts.text_task = recipe->data.kind == LG_DATA_TEXT ? LG_TEXT_NEXT_TOKEN : LG_TEXT_MASKED;
        opts.mask_frac = recipe->data.mask_frac;
    }
    return lg_loader_create(out, dataset, &opts);
}

lg_status lgi_run_data_eval_loader(lg_loader **out, const lgi_run_data *data,
                                   const lg_recipe *recipe, lg_data_part part)
{
    const lg_dataset *const dataset = part == LG_PART_TEST ? data->test : data->validation;
    *out = NULL;
    if (dataset == NULL) {
        LG_FAIL(LG_INVALID_ARG, "the recipe keeps no %s data: %s is 0", lg_data_part_name(part),
                part == LG_PART_TEST ? "data.held_out_frac" : "data.validation_frac");
    }
    const lg_status status = create_loader(out, dataset, recipe, false);
    return status == LG_OK ? status : lgi_fail_prefix(status, "%s data", lg_data_part_name(part));
}

/* --- what the data are --------------------------------------------------------------------------------------------- */

static lg_status hash_labels(const lg_dataset *dataset, char text[LGI_DATA_HASH_CHARS])
{
    const int64_t num_samples = lg_dataset_num_samples(dataset);
    const lg_shape shape = lg_dataset_sample_shape(dataset);
    int32_t labels[1024];
    XXH3_state_t *const state = XXH3_createState();
    if (state == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "no memory for a hash");
    }
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, &num_samples, sizeof num_samples);
    XXH3_64bits_update(state, shape.dims, (size_t)shape.num_dims * sizeof shape.dims[0]);
    for (int64_t begin = 0; begin < num_samples; begin += 1024) {
        const int64_t num = num_samples - begin < 1024 ? num_samples - begin : 1024;
        for (int64_t i = 0; i < num; i++) {
            labels[i] = lg_dataset_label(dataset, begin + i);
        }
        XXH3_64bits_update(state, labels, (size_t)num * sizeof labels[0]);
    }
    (void)snprintf(text, LGI_DATA_HASH_CHARS, "%016" PRIx64, (uint64_t)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    return LG_OK;
}

/* Evaluates nothing, but what would only be found out at the first evaluation comes to light before training. */
static lg_status check_eval_data(const lgi_run_data *data, const lg_recipe *recipe)
{
    lg_recipe plain = *recipe;
    plain.data.prefetch = 0; /* a look needs no thread */
    for (int part = 0; part < 2; part++) {
        const lg_data_part which = part == 0 ? LG_PART_TEST : LG_PART_VALIDATION;
        lg_loader *loader = NULL;
        if ((which == LG_PART_TEST ? data->test : data->validation) == NULL) {
            continue;
        }
        LG_TRY(lgi_run_data_eval_loader(&loader, data, &plain, which));
        lg_loader_destroy(loader);
    }
    return LG_OK;
}

/* --- all together -------------------------------------------------------------------------------------------------- */

static lg_status open_all(lgi_run_data *data, const lg_recipe *recipe)
{
    LG_TRY(recipe->data.kind == LG_DATA_IDX ? open_images(data, recipe) : open_text(data, recipe));
    if (recipe->data.validation_frac > 0.0) {
        LG_TRY(split_off(&data->train, &data->validation, "data.validation_frac",
                         recipe->data.validation_frac, (uint64_t)recipe->train.seed));
    }
    LG_TRY(hash_labels(data->train, data->train_hash));
    LG_TRY(check_eval_data(data, recipe));
    return create_loader(&data->train_loader, data->train, recipe, true);
}

lg_status lgi_run_data_open(lgi_run_data *out, const lg_recipe *recipe)
{
    memset(out, 0, sizeof *out);
    const lg_status status = open_all(out, recipe);
    if (status != LG_OK) {
        lgi_run_data_close(out);
    }
    return status;
}

void lgi_run_data_close(lgi_run_data *data)
{
    lg_loader_destroy(data->train_loader);
    lg_dataset_destroy(data->train);
    lg_dataset_destroy(data->test);
    lg_dataset_destroy(data->validation);
    memset(data, 0, sizeof *data);
}
