/**
 * Data: datasets (immutable samples in memory) and loaders (batches as host tensors).
 *
 * Batch number i of a loader is a pure function of (dataset, options, i): which samples, in which order, with which
 * crops, flips and masks comes from counter-based random numbers, never from what was asked before or from which
 * thread built it. So a run that resumes at step i asks for batch i and has nothing else to restore.
 *
 * Two kinds of data: labeled samples (images, feature vectors), and text (one long sequence of token ids).
 */
#ifndef LEAPGRAD_DATA_H
#define LEAPGRAD_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "leapgrad/status.h"
#include "leapgrad/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- datasets --------------------------------------------------------------------------------------------------- */

typedef enum lg_dataset_kind {
    LG_DATASET_LABELED, /* samples of one shape, each with a class */
    LG_DATASET_TEXT     /* a sequence of token ids; of a text file: its bytes */
} lg_dataset_kind;

/**
 * Samples in memory, immutable.
 *
 * Lifetime: loaders and splits keep what they need of it, so it may be destroyed before them.
 * Thread safety: may be used by any number of threads.
 */
typedef struct lg_dataset lg_dataset;

typedef struct lg_idx_opts {
    int num_classes; /* labels must lie in [0, num_classes); 0: one more than the largest label */
    int64_t height;  /* what the images must have; 0: any */
    int64_t width;
} lg_idx_opts;

/** Any size, classes as found. */
LG_API lg_idx_opts lg_idx_opts_default(void);

/**
 * Opens images [n,height,width] and labels [n] of unsigned bytes in IDX format, plain or gzip'd
 * (docs/formats/data.md). The samples have the shape [1,height,width].
 *
 * @return IO if a file cannot be read; CORRUPT if one is not IDX, is damaged, ends early or goes on too long;
 *         INVALID_ARG if the two do not belong together or are not what `opts` asks for. The message names the file
 *         and what was expected.
 */
LG_API LG_NODISCARD lg_status lg_dataset_open_idx(lg_dataset **out, const char *images_path,
                                                  const char *labels_path, const lg_idx_opts *opts);

/** As lg_dataset_open_idx(), with the contents of the two files in memory. They are copied. */
LG_API LG_NODISCARD lg_status lg_dataset_parse_idx(lg_dataset **out, const void *images,
                                                   size_t images_bytes, const void *labels,
                                                   size_t labels_bytes, const lg_idx_opts *opts);

/** Opens a file as text: each byte is a token of a vocabulary of 256. INVALID_ARG if it is empty. */
LG_API LG_NODISCARD lg_status lg_dataset_open_text(lg_dataset **out, const char *path);

/** Labeled samples in the caller's arrays. */
typedef struct lg_sample_array {
    const void *samples;   /* row-major [num_samples, sample_shape...] */
    lg_dtype dtype;        /* F32, delivered as it is; or U8, delivered divided by 255 */
    lg_shape sample_shape; /* 1 to 3 dimensions; 3: [channels,height,width] */
    int64_t num_samples;
    const int32_t *labels; /* [num_samples], each in [0, num_classes) */
    int num_classes;
} lg_sample_array;

/** Copies the arrays. INVALID_ARG for a label out of range or a value that is not finite, naming the sample. */
LG_API LG_NODISCARD lg_status lg_dataset_create_labeled(lg_dataset **out,
                                                        const lg_sample_array *array);

/** Copies `num_tokens` ids, each in [0, vocab_size). */
LG_API LG_NODISCARD lg_status lg_dataset_create_tokens(lg_dataset **out, const int32_t *ids,
                                                       int64_t num_tokens, int vocab_size);

/** NULL is fine. */
LG_API void lg_dataset_destroy(lg_dataset *dataset);

/**
 * Splits in two. Of a text the last `held_out_frac` is held out; of labeled samples that many are drawn at random by
 * `seed` (the same ones for the same seed, count and fraction), and both parts keep the order of the original. Every
 * sample is in exactly one part.
 *
 * @param held_out_frac  In (0, 1), and neither part may be empty.
 */
LG_API LG_NODISCARD lg_status lg_dataset_split(lg_dataset **out_train, lg_dataset **out_held_out,
                                               const lg_dataset *dataset, double held_out_frac,
                                               uint64_t seed);

/** The first `num_samples` samples or tokens, or all if there are fewer; at least 1. */
LG_API LG_NODISCARD lg_status lg_dataset_head(lg_dataset **out, const lg_dataset *dataset,
                                              int64_t num_samples);

LG_API lg_dataset_kind lg_dataset_kind_of(const lg_dataset *dataset);
/** Labeled: samples; text: tokens. */
LG_API int64_t lg_dataset_num_samples(const lg_dataset *dataset);
/** Labeled: the shape of one sample; text: a scalar. */
LG_API lg_shape lg_dataset_sample_shape(const lg_dataset *dataset);
/** Labeled: classes; text: size of the vocabulary. */
LG_API int lg_dataset_num_classes(const lg_dataset *dataset);
/** The label of a sample, or the token at a position; `sample` in [0, lg_dataset_num_samples()). */
LG_API int32_t lg_dataset_label(const lg_dataset *dataset, int64_t sample);
/** Channels that are normalised on their own: the first of three dimensions, else 1; text: 0. */
LG_API int lg_dataset_num_channels(const lg_dataset *dataset);

/**
 * Mean and standard deviation (over all samples and pixels, not the unbiased one) of each channel, of the values as
 * a loader without normalisation delivers them. A channel that is constant gets the deviation 1.
 *
 * @param dataset    Labeled samples.
 * @param[out] mean  lg_dataset_num_channels() values.
 * @param[out] std   As many.
 */
LG_API LG_NODISCARD lg_status lg_dataset_mean_std(const lg_dataset *dataset, float *mean,
                                                  float *std);

/* --- loaders ---------------------------------------------------------------------------------------------------- */

typedef enum lg_loader_order {
    LG_ORDER_SHUFFLED, /* labeled: every sample once per epoch, in a new order each epoch; text: random windows */
    LG_ORDER_SEQUENTIAL /* every sample once per epoch, in order; text: windows side by side */
} lg_loader_order;

typedef enum lg_text_task {
    LG_TEXT_NEXT_TOKEN, /* targets are the ids shifted by one */
    LG_TEXT_MASKED      /* some ids are hidden, targets are what they were */
} lg_text_task;

typedef struct lg_loader_opts {
    uint64_t seed;
    int64_t batch_samples; /* images, or windows of text: 1 or more */
    lg_loader_order order;
    bool drop_last;       /* leave out the last batch of an epoch if it is smaller */
    int prefetch_batches; /* built ahead by a thread of the loader, 0..64; 0: no thread */
    int prefetch_cpu; /* the thread runs on this CPU; -1: where the thread that creates the loader may run */

    /* Labeled samples: value = (value - mean[channel]) / std[channel]. */
    int num_channels;  /* 0: no normalisation; else lg_dataset_num_channels() */
    const float *mean; /* copied */
    const float *std;  /* copied; > 0 */
    /* Labeled samples [channels,height,width]: augmentation, drawn per (seed, epoch, sample). */
    int64_t
        crop_pad_pixels; /* cut at random from the image with this many black pixels (value 0) on each side */
    bool has_flip; /* mirror left-right with probability 1/2 */

    /* Text. */
    int64_t context_tokens; /* T, length of a window: 1 or more */
    lg_text_task text_task;
    double
        mask_frac; /* masked: this part of a window's tokens is predicted, at least one; (0, 1] */
    int32_t ignore_index; /* target of what is not to be predicted; negative */
} lg_loader_opts;

/** Seed 0, 1 sample, shuffled, ragged last batch, no prefetch, prefetch CPU -1, no augmentation, T 1, next token,
 * mask_frac 0.15, ignore_index -100. */
LG_API lg_loader_opts lg_loader_opts_default(void);

/** A row-major tensor in host memory. */
typedef struct lg_host_tensor {
    lg_dtype dtype;
    lg_shape shape;
    const void *data;
} lg_host_tensor;

#define LG_MAX_BATCH_TENSORS 3

/**
 * A batch of n samples. The tensors stand in the order of the model's inputs (`input_idx`):
 *
 *   labeled            f32 [n,sample shape...], i32 labels [n]
 *   text, next token   i32 ids [n,T], i32 targets [n,T]
 *   text, masked       i32 ids [n,T], i32 targets [n,T], f32 keep [n,T]: 0 where the window is padded, else 1
 *
 * Where a window reaches beyond the end of the text (only the last one in sequential order), ids are 0 and targets
 * `ignore_index`.
 *
 * Next token: target t of a window is the token after its id t. In sequential order window k starts at k * T, so every
 * token of the text but the first is a target exactly once.
 *
 * Masked (Devlin et al. 2019, "BERT", section 3.1 and appendix A.1): max(1, round(mask_frac * tokens)) positions of
 * each window, drawn without repetition, are targets; of these 80 % have the id vocab_size (the mask), 10 % a random
 * token, 10 % stay. So ids are below vocab_size + 1. In sequential order each epoch has the same masks.
 */
typedef struct lg_batch {
    int64_t batch_idx;
    int64_t epoch;       /* batch_idx / batches per epoch */
    int64_t num_samples; /* n */
    int64_t num_targets; /* labels or target tokens that are not `ignore_index` */
    /** [n] labeled: positions in the dataset that was opened or created; text: positions of the windows in it. */
    const int64_t *sample_ids;
    int num_tensors;
    lg_host_tensor tensors[LG_MAX_BATCH_TENSORS];
} lg_batch;

/** Thread safety: one thread at a time. */
typedef struct lg_loader lg_loader;

/**
 * Makes a loader.
 *
 * @return INVALID_ARG for an option out of range, a text shorter than a window (T, and one more token if the next one is
 *         asked for), or no batch in an epoch because of `drop_last`.
 */
LG_API LG_NODISCARD lg_status lg_loader_create(lg_loader **out, const lg_dataset *dataset,
                                               const lg_loader_opts *opts);

/** Stops the thread, if any. NULL is fine. */
LG_API void lg_loader_destroy(lg_loader *loader);

/**
 * Gives batch `batch_idx` (0, 1, ... without end; epochs follow one another). With prefetch the batches that follow are
 * built meanwhile: asking in order is fast, any order gives the same bits.
 *
 * After a failure (a lack of memory) the same batch may be asked for again.
 *
 * Lifetime of *out: until the next call for this loader.
 */
LG_API LG_NODISCARD lg_status lg_loader_get(lg_loader *loader, int64_t batch_idx,
                                            const lg_batch **out);

LG_API int64_t lg_loader_batches_per_epoch(const lg_loader *loader);
/** Samples in all batches of an epoch. */
LG_API int64_t lg_loader_samples_per_epoch(const lg_loader *loader);
/** The n of batch `batch_idx`, without building it. */
LG_API int64_t lg_loader_batch_samples(const lg_loader *loader, int64_t batch_idx);
/** The largest n of any batch. */
LG_API int64_t lg_loader_max_samples(const lg_loader *loader);

LG_API int lg_loader_num_tensors(const lg_loader *loader);
/** Type and shape of one sample of tensor `tensor_idx`, without the batch dimension. */
LG_API lg_dtype lg_loader_tensor_dtype(const lg_loader *loader, int tensor_idx);
LG_API lg_shape lg_loader_tensor_shape(const lg_loader *loader, int tensor_idx);
/** Classes, or ids that may occur: the vocabulary, and the mask if `text_task` is masked. */
LG_API int lg_loader_num_classes(const lg_loader *loader);

#ifdef __cplusplus
}
#endif

#endif
