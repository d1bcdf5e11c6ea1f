/*
 * Batches of labeled samples: order, normalisation, crop and flip.
 *
 * How a sample is augmented depends on (seed, epoch, its position in the dataset that was opened) alone.
 */
#include <math.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/random.h"
#include "data/batch_builder.h"
#include "data/sample_order.h"

#define NUM_BYTE_VALUES 256
#define MAX_CROP_PAD_PIXELS 4096

/* Where a sample is cut from: offset of its top left corner from that of the image; mirrored or not. */
typedef struct cut {
    int64_t top;
    int64_t left;
    bool is_flipped;
} cut;

static lg_status check_opts(const lg_loader_opts *opts, const lg_dataset *dataset)
{
    const int num_channels = lg_dataset_num_channels(dataset);
    if (opts->num_channels != 0 && opts->num_channels != num_channels) {
        LG_FAIL(LG_INVALID_ARG, "normalisation has %d channels, expected %d as the samples have",
                opts->num_channels, num_channels);
    }
    if (opts->num_channels != 0 && (opts->mean == NULL || opts->std == NULL)) {
        LG_FAIL(LG_INVALID_ARG, "normalisation: %s is NULL", opts->mean == NULL ? "mean" : "std");
    }
    for (int c = 0; c < opts->num_channels; c++) {
        if (!isfinite(opts->mean[c]) || !isfinite(opts->std[c]) || !(opts->std[c] > 0.0f)) {
            LG_FAIL(LG_INVALID_ARG,
                    "normalisation of channel %d: mean %g, std %g, expected numbers, std > 0", c,
                    (double)opts->mean[c], (double)opts->std[c]);
        }
    }
    if (opts->crop_pad_pixels < 0 || opts->crop_pad_pixels > MAX_CROP_PAD_PIXELS) {
        LG_FAIL(LG_INVALID_ARG, "padding of the random crop is %lld pixels, expected [0, %d]",
                (long long)opts->crop_pad_pixels, MAX_CROP_PAD_PIXELS);
    }
    if ((opts->crop_pad_pixels > 0 || opts->has_flip) && dataset->sample_shape.num_dims != 3) {
        char text[128];
        LG_FAIL(LG_INVALID_ARG,
                "crop and flip are for images [channels,height,width], the samples are %s",
                lg_shape_format(&dataset->sample_shape, text, sizeof text));
    }
    return LG_OK;
}

lg_status lgi_init_labeled(lgi_batch_builder *builder)
{
    const lg_loader_opts *opts = &builder->opts;
    const lg_dataset *dataset = builder->dataset;
    const int num_channels = lg_dataset_num_channels(dataset);
    LG_TRY(check_opts(opts, dataset));
    builder->num_channels = num_channels;
    LG_TRY(lgi_calloc(&builder->mean, (size_t)num_channels, sizeof *builder->mean));
    LG_TRY(lgi_calloc(&builder->std, (size_t)num_channels, sizeof *builder->std));
    for (int c = 0; c < num_channels; c++) {
        builder->mean[c] = opts->num_channels != 0 ? opts->mean[c] : 0.0f;
        builder->std[c] = opts->num_channels != 0 ? opts->std[c] : 1.0f;
    }
    if (dataset->dtype == LG_DTYPE_U8) {
        LG_TRY(lgi_calloc(&builder->pixel_values, (size_t)num_channels,
                          NUM_BYTE_VALUES * sizeof *builder->pixel_values));
        for (int c = 0; c < num_channels; c++) {
            for (int v = 0; v < NUM_BYTE_VALUES; v++) {
                builder->pixel_values[c * NUM_BYTE_VALUES + v] =
                    ((float)v / 255.0f - builder->mean[c]) / builder->std[c];
            }
        }
    }
    builder->samples_per_epoch = dataset->num_samples;
    builder->num_tensors = 2;
    builder->dtypes[0] = LG_DTYPE_F32;
    builder->shapes[0] = dataset->sample_shape;
    builder->dtypes[1] = LG_DTYPE_I32; /* labels: scalars */
    return LG_OK;
}

/* Uniform in [0, bound) from 32 bits; bound is at most 2 * MAX_CROP_PAD_PIXELS + 1. */
static int64_t scale_bits(uint32_t bits, int64_t bound)
{
    return (int64_t)(((uint64_t)bits * (uint64_t)bound) >> 32);
}

static cut draw_cut(const lg_loader_opts *opts, int64_t epoch, int64_t sample_id)
{
    cut result = {0};
    if (opts->crop_pad_pixels == 0 && !opts->has_flip) {
        return result;
    }
    const lgi_random random =
        lgi_random_stream(opts->seed, LGI_RANDOM_AUGMENT, (uint64_t)epoch, (uint64_t)sample_id, 0);
    uint32_t bits[4];
    lgi_random_block(&random, 0, bits);
    const int64_t num_offsets = 2 * opts->crop_pad_pixels + 1;
    result.top = scale_bits(bits[0], num_offsets) - opts->crop_pad_pixels;
    result.left = scale_bits(bits[1], num_offsets) - opts->crop_pad_pixels;
    result.is_flipped = opts->has_flip && (bits[2] >> 31) != 0;
    return result;
}

/* One sample without a cut. src [channels, elems], dst alike. */
static void copy_sample(const lgi_batch_builder *builder, const void *samples, int64_t begin,
                        float *dst)
{
    const int64_t channel_elems = builder->dataset->sample_elems / builder->num_channels;
    for (int c = 0; c < builder->num_channels; c++) {
        const int64_t offset = begin + c * channel_elems;
        float *channel = dst + c * channel_elems;
        if (builder->dataset->dtype == LG_DTYPE_U8) {
            const uint8_t *src = (const uint8_t *)samples + offset;
            const float *values = builder->pixel_values + c * NUM_BYTE_VALUES;
            for (int64_t i = 0; i < channel_elems; i++) {
                channel[i] = values[src[i]];
            }
        } else {
            const float *src = (const float *)samples + offset;
            const float mean = builder->mean[c];
            const float std = builder->std[c];
            for (int64_t i = 0; i < channel_elems; i++) {
                channel[i] = (src[i] - mean) / std;
            }
        }
    }
}

/*
 * One image, cut and mirrored: pixel (y, x) of the result is pixel (y + top, x' + left) of `image` with x' = x or
 * width - 1 - x, and black outside. image, dst [channels, height, width], normalised.
 */
static void cut_sample(const lgi_batch_builder *builder, const float *image, const cut *from,
                       float *dst)
{
    const int64_t height = builder->dataset->sample_shape.dims[1];
    const int64_t width = builder->dataset->sample_shape.dims[2];
    for (int c = 0; c < builder->num_channels; c++) {
        const float black = (0.0f - builder->mean[c]) / builder->std[c];
        const float *channel = image + c * height * width;
        for (int64_t y = 0; y < height; y++) {
            const int64_t src_y = y + from->top;
            const bool is_inside_y = src_y >= 0 && src_y < height;
            float *row = dst + (c * height + y) * width;
            for (int64_t x = 0; x < width; x++) {
                const int64_t src_x = (from->is_flipped ? width - 1 - x : x) + from->left;
                const bool is_inside = is_inside_y && src_x >= 0 && src_x < width;
                row[x] = is_inside ? channel[src_y * width + src_x] : black;
            }
        }
    }
}

static lg_status prepare_order(lgi_batch_builder *builder, int64_t epoch)
{
    const int64_t num_samples = builder->dataset->num_samples;
    if (builder->order_epoch == epoch) {
        return LG_OK;
    }
    if (builder->order == NULL) {
        LG_TRY(lgi_calloc(&builder->order, (size_t)num_samples, sizeof *builder->order));
    }
    lgi_sample_order_fill(builder->order, num_samples, builder->opts.seed, (uint64_t)epoch);
    builder->order_epoch = epoch;
    return LG_OK;
}

lg_status lgi_build_labeled(lgi_batch_builder *builder, lgi_batch_slot *slot)
{
    const lg_loader_opts *opts = &builder->opts;
    const lg_dataset *dataset = builder->dataset;
    const lg_dataset *owner = lgi_dataset_owner(dataset);
    lg_batch *batch = &slot->batch;
    float *samples = slot->data[0];
    int32_t *labels = slot->data[1];
    const bool is_shuffled = opts->order == LG_ORDER_SHUFFLED;
    if (is_shuffled) {
        LG_TRY(prepare_order(builder, batch->epoch));
    }
    if (builder->image == NULL && (opts->crop_pad_pixels > 0 || opts->has_flip)) {
        LG_TRY(lgi_calloc(&builder->image, (size_t)dataset->sample_elems, sizeof(float)));
    }
    const int64_t first = batch->batch_idx % builder->batches_per_epoch * opts->batch_samples;
    for (int64_t i = 0; i < batch->num_samples; i++) {
        const int64_t sample = is_shuffled ? builder->order[first + i] : first + i;
        const int64_t sample_id = lgi_dataset_base_idx(dataset, sample);
        const int64_t begin = sample_id * dataset->sample_elems;
        const cut from = draw_cut(opts, batch->epoch, sample_id);
        float *dst = samples + i * dataset->sample_elems;
        if (from.top != 0 || from.left != 0 || from.is_flipped) {
            copy_sample(builder, owner->samples, begin, builder->image);
            cut_sample(builder, builder->image, &from, dst);
        } else {
            copy_sample(builder, owner->samples, begin, dst);
        }
        labels[i] = owner->labels[sample_id];
        slot->sample_ids[i] = sample_id;
    }
    batch->num_targets = batch->num_samples;
    return LG_OK;
}
