/*
 * Fusing activations into the layer before them, where both halves of backward stay separate: relu after batch_norm and
 * after add. What changes is the model, so every backend and every plan sees the same layers.
 */
#include <string.h>

#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/build.h"

uint64_t lgi_layer_random_key(const char *name)
{
    return XXH64(name, strlen(name), 0);
}

/* By layer: how many layers read it. */
static void count_readers(const lg_model *model, int *num_readers)
{
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        const lg_layer_info *info = lg_model_layer(model, layer);
        for (int i = 0; i < info->num_inputs; i++) {
            num_readers[info->inputs[i]]++;
        }
    }
}

/* Whether `layer` is a relu that can go into the only layer it reads. */
static bool goes_into_input(const lg_model *model, int layer, const int *num_readers)
{
    const lg_layer_info *info = lg_model_layer(model, layer);
    if (info->kind != LG_LAYER_ACTIVATION || info->attrs->activation != LG_ACTIVATION_RELU ||
        num_readers[info->inputs[0]] != 1) {
        return false;
    }
    const lg_layer_info *input = lg_model_layer(model, info->inputs[0]);
    return (input->kind == LG_LAYER_BATCH_NORM || input->kind == LG_LAYER_ADD) &&
           input->attrs->activation == LG_ACTIVATION_NONE;
}

/* Which parameter of which earlier layer of the source has this id. */
static void find_owner(const lg_model *model, int param, int *layer, int *param_idx)
{
    *layer = lg_model_param(model, param)->owner_layer;
    const lg_layer_info *info = lg_model_layer(model, *layer);
    for (int i = 0; i < info->num_params; i++) {
        if (info->params[i] == param) {
            *param_idx = i;
        }
    }
}

/* Copies a layer, with `activation` in place of its own, and its ties and initialisations. */
static lg_status copy_layer(lg_model *to, const lg_model *from, int layer, lg_activation activation,
                            int *new_ids)
{
    const lg_layer_info *info = lg_model_layer(from, layer);
    lg_layer_attrs attrs = *info->attrs;
    attrs.activation = activation;
    int inputs[LGI_MAX_LAYER_INPUTS];
    for (int i = 0; i < info->num_inputs; i++) {
        inputs[i] = new_ids[info->inputs[i]];
    }
    LG_TRY(lg_model_add(to, info->name, info->kind, &attrs, inputs, info->num_inputs,
                        &new_ids[layer]));
    for (int i = 0; i < info->num_params; i++) {
        const lg_param_info *param = lg_model_param(from, info->params[i]);
        int owner = 0;
        int owner_param_idx = 0;
        find_owner(from, info->params[i], &owner, &owner_param_idx);
        if (owner != layer) {
            LG_TRY(lg_model_tie(to, new_ids[layer], i, new_ids[owner], owner_param_idx));
        } else {
            LG_TRY(lg_model_set_init(to, new_ids[layer], i, param->init, param->init_scale));
        }
    }
    return LG_OK;
}

lg_status lgi_model_fuse(lg_model **out, const lg_model *model)
{
    const int num_layers = lg_model_num_layers(model);
    lg_status status = LG_OK;
    int *num_readers = NULL;
    int *new_ids = NULL;
    bool *has_relu = NULL;
    *out = NULL;
    LG_TRY_GOTO(lgi_calloc(&num_readers, (size_t)num_layers, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&new_ids, (size_t)num_layers, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&has_relu, (size_t)num_layers, sizeof(bool)));
    LG_TRY_GOTO(lg_model_create(out));
    count_readers(model, num_readers);
    for (int layer = 0; layer < num_layers; layer++) {
        if (goes_into_input(model, layer, num_readers)) {
            has_relu[lg_model_layer(model, layer)->inputs[0]] = true;
        }
    }
    for (int layer = 0; layer < num_layers; layer++) {
        const lg_layer_info *info = lg_model_layer(model, layer);
        if (goes_into_input(model, layer, num_readers)) {
            new_ids[layer] = new_ids[info->inputs[0]];
            continue;
        }
        const lg_activation activation =
            has_relu[layer] ? LG_ACTIVATION_RELU : info->attrs->activation;
        LG_TRY_GOTO(copy_layer(*out, model, layer, activation, new_ids));
    }
out:
    lgi_free(num_readers);
    lgi_free(new_ids);
    lgi_free(has_relu);
    if (status != LG_OK) {
        lg_model_destroy(*out);
        *out = NULL;
    }
    return status;
}
