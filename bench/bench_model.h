/*
 * Models and made-up batches for the measuring programs: chosen and sized by key=value, the same in bench/torch_models.py.
 */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include "leapgrad/models.h"

#define BENCH_MAX_INPUTS 8

typedef struct bench_model {
    const char *name; /* resnet20, densenet, mobilenet, vgg, gpt, bert */
    lg_resnet_opts resnet;
    lg_densenet_opts densenet;
    lg_mobilenetv3_opts mobilenet;
    lg_vgg_opts vgg;
    lg_gpt_opts gpt;
    lg_bert_opts bert;
} bench_model;

/* Images of 1 x 28 x 28, 10 classes; text of 6 layers, width 384, vocabulary 512. */
bench_model bench_model_default(const char *name);
bool bench_model_is_text(const bench_model *model);

/*
 * Sets layers, width, heads, context, vocab, tied (text), size (of images), channels (vgg: of the first group), hidden (vgg),
 * drop_percent.
 * Returns whether there is such a key.
 */
bool bench_model_set(bench_model *model, const char *key, long value);

/* INVALID_ARG for a name that is not known. */
LG_NODISCARD lg_status bench_model_make(lg_model **out, const bench_model *model);

/*
 * Fills `tensors` by input_idx with one batch of made-up data: real numbers in [-1, 1), ids and targets below 10, all of a
 * keep mask 1. Release with bench_batch_free().
 */
LG_NODISCARD lg_status bench_batch_make(void *tensors[BENCH_MAX_INPUTS], const lg_model *model,
                                        int64_t num_samples);
void bench_batch_free(void *tensors[BENCH_MAX_INPUTS]);

/* Comparison of two doubles for qsort(). */
int bench_compare_doubles(const void *a, const void *b);
/* Sorts. `num` 1 or more. */
double bench_median(double *values, int num);

#endif
