/* What a batch must be: token ids and targets in range; the weight that the loss is divided by; batches smaller than the
   number of replicas. */
#include <inttypes.h>
#include <string.h>

#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"
#include "train/trainer_internal.h"

int lgi_loss_layer(const lg_model *model)
{
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        if (lg_model_layer(model, layer)->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY) {
            return layer;
        }
    }
    return -1;
}

/* Numbers of the batch tensor that input layer `layer` brings in, by sample. */
static int64_t elems_per_sample(const lg_model *model, int layer)
{
    return lg_shape_num_elems(&lg_model_layer(model, layer)->out_shape);
}

static lg_status check_ids(const lg_model *model, int layer, int input, int64_t num_samples,
                           const int32_t *ids)
{
    const lg_layer_info *info = lg_model_layer(model, layer);
    const int64_t num_per_sample = elems_per_sample(model, input);
    for (int64_t i = 0; i < num_samples * num_per_sample; i++) {
        if (ids[i] < 0 || ids[i] >= info->attrs->num_embeddings) {
            LG_FAIL(LG_INVALID_ARG,
                    "input '%s', sample %" PRId64 ": id %" PRId32 " is not in [0, %" PRId64
                    ") as layer '%s' needs",
                    lg_model_layer(model, input)->name, i / num_per_sample, ids[i],
                    info->attrs->num_embeddings, info->name);
        }
    }
    return LG_OK;
}

static lg_status check_targets(const lg_model *model, int layer, int input, int64_t num_samples,
                               const int32_t *targets, double *out_weight)
{
    const lg_layer_info *info = lg_model_layer(model, layer);
    const lg_shape *logits = &lg_model_layer(model, info->inputs[0])->out_shape;
    const int64_t num_classes = logits->dims[logits->num_dims - 1];
    const int64_t num_per_sample = elems_per_sample(model, input);
    double weight = 0.0;
    for (int64_t i = 0; i < num_samples * num_per_sample; i++) {
        const int32_t target = targets[i];
        if (target == info->attrs->ignore_index) {
            continue;
        }
        if (target < 0 || target >= num_classes) {
            LG_FAIL(LG_INVALID_ARG,
                    "input '%s', sample %" PRId64 ": target %" PRId32 " is neither in [0, %" PRId64
                    ") nor %" PRId32 " (ignored)",
                    lg_model_layer(model, input)->name, i / num_per_sample, target, num_classes,
                    info->attrs->ignore_index);
        }
        weight +=
            info->attrs->class_weights != NULL ? (double)info->attrs->class_weights[target] : 1.0;
    }
    *out_weight = weight;
    return LG_OK;
}

double lgi_batch_weight(const lg_model *model, const void *const *tensors, int64_t begin,
                        int64_t end)
{
    const lg_layer_info *info = lg_model_layer(model, lgi_loss_layer(model));
    const lg_layer_info *input = lg_model_layer(model, info->inputs[1]);
    double weight = 0.0;
    if (input->kind != LG_LAYER_INPUT) {
        return 0.0;
    }
    const int64_t num_per_sample = elems_per_sample(model, info->inputs[1]);
    const int32_t *targets = tensors[input->attrs->input_idx];
    for (int64_t i = begin * num_per_sample; i < end * num_per_sample; i++) {
        if (targets[i] != info->attrs->ignore_index) {
            weight += info->attrs->class_weights != NULL
                          ? (double)info->attrs->class_weights[targets[i]]
                          : 1.0;
        }
    }
    return weight;
}

lg_status lgi_check_batch(const lg_model *model, lg_graph_mode mode, int64_t num_samples,
                          const void *const *tensors, double *out_weight)
{
    const int loss = lgi_loss_layer(model);
    const bool needs_targets = mode != LG_GRAPH_PREDICT;
    *out_weight = 0.0;
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        const lg_layer_info *info = lg_model_layer(model, layer);
        if (info->kind == LG_LAYER_INPUT && tensors[info->attrs->input_idx] == NULL &&
            (needs_targets || layer != lg_model_layer(model, loss)->inputs[1])) {
            LG_FAIL(LG_INVALID_ARG, "batch tensor %d (input '%s') is missing",
                    info->attrs->input_idx, info->name);
        }
        if (info->kind == LG_LAYER_TOKEN_EMBEDDING) {
            const lg_layer_info *input = lg_model_layer(model, info->inputs[0]);
            if (input->kind == LG_LAYER_INPUT) {
                LG_TRY(check_ids(model, layer, info->inputs[0], num_samples,
                                 tensors[input->attrs->input_idx]));
            }
        }
        if (layer == loss && needs_targets) {
            const lg_layer_info *input = lg_model_layer(model, info->inputs[1]);
            if (input->kind == LG_LAYER_INPUT) {
                LG_TRY(check_targets(model, layer, info->inputs[1], num_samples,
                                     tensors[input->attrs->input_idx], out_weight));
            }
        }
    }
    return LG_OK;
}

/* --- padding and hash ---------------------------------------------------------------------------------------------- */

static lg_status pad_tensor(lgi_padded_batch *batch, const lg_model *model, int input,
                            int64_t num_samples, const void *const *tensors)
{
    const lg_layer_info *info = lg_model_layer(model, input);
    const lg_layer_info *loss = lg_model_layer(model, lgi_loss_layer(model));
    const int idx = info->attrs->input_idx;
    const int64_t num_elems = elems_per_sample(model, input);
    const size_t sample_bytes = (size_t)num_elems * sizeof(float); /* or of i32 */
    if (tensors[idx] == NULL || batch->copies[idx] != NULL) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&batch->copies[idx], (size_t)batch->num_samples, sample_bytes));
    for (int64_t i = 0; i < batch->num_samples; i++) {
        char *to = (char *)batch->copies[idx] + (size_t)i * sample_bytes;
        memcpy(to, (const char *)tensors[idx] + (size_t)(i % num_samples) * sample_bytes,
               sample_bytes);
        for (int64_t k = 0; i >= num_samples && input == loss->inputs[1] && k < num_elems; k++) {
            ((int32_t *)(void *)to)[k] = loss->attrs->ignore_index;
        }
    }
    return LG_OK;
}

lg_status lgi_pad_batch(lgi_padded_batch *out, const lg_model *model, int64_t min_samples,
                        int64_t num_samples, const void *const *tensors)
{
    memset(out, 0, sizeof *out);
    out->num_samples = num_samples;
    out->tensors = tensors;
    if (num_samples >= min_samples) {
        return LG_OK;
    }
    lg_status status = LG_OK;
    out->num_samples = min_samples;
    out->num_copies = lg_model_num_inputs(model);
    LG_TRY_GOTO(lgi_calloc(&out->copies, (size_t)out->num_copies, sizeof(void *)));
    out->tensors = (const void *const *)out->copies;
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        if (lg_model_layer(model, layer)->kind == LG_LAYER_INPUT) {
            LG_TRY_GOTO(pad_tensor(out, model, layer, num_samples, tensors));
        }
    }
out:
    if (status != LG_OK) {
        lgi_padded_batch_deinit(out);
    }
    return status;
}

void lgi_padded_batch_deinit(lgi_padded_batch *batch)
{
    for (int i = 0; batch->copies != NULL && i < batch->num_copies; i++) {
        lgi_free(batch->copies[i]);
    }
    lgi_free(batch->copies);
    memset(batch, 0, sizeof *batch);
}

uint64_t lgi_batch_hash(const lg_model *model, int64_t num_samples, const void *const *tensors)
{
    const lg_layer_info *loss = lg_model_layer(model, lgi_loss_layer(model));
    const lg_layer_info *input = lg_model_layer(model, loss->inputs[1]);
    if (input->kind != LG_LAYER_INPUT) {
        return (uint64_t)num_samples;
    }
    const int64_t num_elems = num_samples * elems_per_sample(model, loss->inputs[1]);
    return XXH64(tensors[input->attrs->input_idx], (size_t)num_elems * sizeof(int32_t),
                 (uint64_t)num_samples);
}
