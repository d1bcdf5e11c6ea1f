/* Generated data for the tests of the data module: IDX files in memory, whole or gzip'd, and small datasets. */
#ifndef TESTS_UNIT_DATA_DATA_FIXTURE_H
#define TESTS_UNIT_DATA_DATA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/random.h"
#include "leapgrad/data.h"

typedef struct bytes {
    uint8_t *data;
    size_t size;
} bytes;

static inline void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

static inline uint8_t pseudo_byte(uint64_t seed, uint64_t idx)
{
    const lgi_random random = lgi_random_stream(seed, LGI_RANDOM_INIT, 0, 0, 0);
    return (uint8_t)lgi_random_u32(&random, idx);
}

/* IDX images with random pixels. */
static inline bytes make_images(uint32_t count, uint32_t height, uint32_t width)
{
    const size_t num_pixels = (size_t)count * height * width;
    bytes file = {malloc(16 + num_pixels), 16 + num_pixels};
    assert_non_null(file.data);
    put_u32(file.data, 0x803);
    put_u32(file.data + 4, count);
    put_u32(file.data + 8, height);
    put_u32(file.data + 12, width);
    for (size_t i = 0; i < num_pixels; i++) {
        file.data[16 + i] = pseudo_byte(1, i);
    }
    return file;
}

/* IDX labels 0, 1, ..., num_classes - 1, 0, 1, ... */
static inline bytes make_labels(uint32_t count, int num_classes)
{
    bytes file = {malloc(8 + (size_t)count), 8 + (size_t)count};
    assert_non_null(file.data);
    put_u32(file.data, 0x801);
    put_u32(file.data + 4, count);
    for (uint32_t i = 0; i < count; i++) {
        file.data[8 + i] = (uint8_t)(i % (uint32_t)num_classes);
    }
    return file;
}

static inline bytes make_gzip(bytes plain)
{
    z_stream stream = {0};
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    const size_t bound = deflateBound(&stream, (uLong)plain.size);
    bytes file = {malloc(bound), 0};
    assert_non_null(file.data);
    stream.next_in = plain.data;
    stream.avail_in = (uInt)plain.size;
    stream.next_out = file.data;
    stream.avail_out = (uInt)bound;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    file.size = bound - stream.avail_out;
    assert_int_equal(deflateEnd(&stream), Z_OK);
    return file;
}

static inline void free_bytes(bytes *file)
{
    free(file->data);
    file->data = NULL;
}

/* A dataset of u8 images of one channel with labels i % num_classes. */
static inline lg_dataset *make_dataset(uint32_t count, uint32_t height, uint32_t width,
                                       int num_classes)
{
    bytes images = make_images(count, height, width);
    bytes labels = make_labels(count, num_classes);
    lg_dataset *dataset = NULL;
    assert_int_equal(
        lg_dataset_parse_idx(&dataset, images.data, images.size, labels.data, labels.size, NULL),
        LG_OK);
    free_bytes(&images);
    free_bytes(&labels);
    return dataset;
}

/* Random ids below vocab_size. */
static inline lg_dataset *make_tokens(int64_t num_tokens, int vocab_size)
{
    lg_dataset *dataset = NULL;
    int32_t *ids = malloc((size_t)num_tokens * sizeof *ids);
    assert_non_null(ids);
    const lgi_random random = lgi_random_stream(2, LGI_RANDOM_INIT, 0, 0, 0);
    for (int64_t i = 0; i < num_tokens; i++) {
        ids[i] = (int32_t)lgi_random_below(&random, (uint64_t)i, (uint64_t)vocab_size);
    }
    assert_int_equal(lg_dataset_create_tokens(&dataset, ids, num_tokens, vocab_size), LG_OK);
    free(ids);
    return dataset;
}

static inline lg_loader *make_loader(const lg_dataset *dataset, const lg_loader_opts *opts)
{
    lg_loader *loader = NULL;
    assert_int_equal(lg_loader_create(&loader, dataset, opts), LG_OK);
    assert_non_null(loader);
    return loader;
}

static inline const lg_batch *batch_of(lg_loader *loader, int64_t batch_idx)
{
    const lg_batch *batch = NULL;
    assert_int_equal(lg_loader_get(loader, batch_idx, &batch), LG_OK);
    assert_int_equal(batch->batch_idx, batch_idx);
    return batch;
}

/* FNV-1a over everything that a batch says. */
static inline uint64_t hash_batch(const lg_batch *batch)
{
    uint64_t hash = 14695981039346656037u;
    const int64_t facts[] = {batch->batch_idx, batch->epoch, batch->num_samples,
                             batch->num_targets};
    const void *parts[2 + LG_MAX_BATCH_TENSORS] = {facts, batch->sample_ids};
    size_t sizes[2 + LG_MAX_BATCH_TENSORS] = {sizeof facts,
                                              (size_t)batch->num_samples * sizeof(int64_t)};
    for (int i = 0; i < batch->num_tensors; i++) {
        parts[2 + i] = batch->tensors[i].data;
        sizes[2 + i] = (size_t)lg_shape_num_elems(&batch->tensors[i].shape) *
                       lg_dtype_bytes(batch->tensors[i].dtype);
    }
    for (int p = 0; p < 2 + batch->num_tensors; p++) {
        for (size_t i = 0; i < sizes[p]; i++) {
            hash = (hash ^ ((const uint8_t *)parts[p])[i]) * 1099511628211u;
        }
    }
    return hash;
}

/* The last error's message has `part` in it. */
static inline void assert_error_has(const char *part)
{
    if (strstr(lg_last_error(), part) == NULL) {
        fail_msg("'%s' is not in the message: %s", part, lg_last_error());
    }
}

#endif
