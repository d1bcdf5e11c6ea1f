#include "bench_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bench_model bench_model_default(const char *name)
{
    bench_model m;
    const lg_shape image = LG_SHAPE(1, 28, 28);
    memset(&m, 0, sizeof m);
    m.name = name;
    m.resnet = lg_resnet_opts_default();
    m.resnet.input = image;
    m.densenet = lg_densenet_opts_default();
    m.densenet.input = image;
    m.mobilenet = lg_mobilenetv3_opts_default();
    m.mobilenet.input = image;
    m.mobilenet.num_classes = 10;
    m.vgg = lg_vgg_opts_default();
    m.vgg.input = image;
    m.gpt = lg_gpt_opts_default();
    m.gpt.num_layers = 6;
    m.gpt.width = 384;
    m.gpt.num_heads = 6;
    m.gpt.context = 256;
    m.gpt.vocab_size = 512;
    m.bert = lg_bert_opts_default();
    m.bert.num_layers = 6;
    m.bert.width = 384;
    m.bert.num_heads = 6;
    m.bert.context = 128;
    m.bert.vocab_size = 512;
    m.bert.num_segments = 0;
    return m;
}

bool bench_model_is_text(const bench_model *model)
{
    return strcmp(model->name, "gpt") == 0 || strcmp(model->name, "bert") == 0;
}

bool bench_model_set(bench_model *m, const char *key, long value)
{
    if (strcmp(key, "layers") == 0) {
        m->gpt.num_layers = m->bert.num_layers = value;
    } else if (strcmp(key, "width") == 0) {
        m->gpt.width = m->bert.width = value;
    } else if (strcmp(key, "heads") == 0) {
        m->gpt.num_heads = m->bert.num_heads = value;
    } else if (strcmp(key, "context") == 0) {
        m->gpt.context = m->bert.context = value;
    } else if (strcmp(key, "vocab") == 0) {
        m->gpt.vocab_size = m->bert.vocab_size = value;
    } else if (strcmp(key, "tied") == 0) {
        m->gpt.is_tied = m->bert.is_tied = value != 0;
    } else if (strcmp(key, "drop_percent") == 0) {
        m->bert.drop_prob = m->vgg.drop_prob = m->mobilenet.drop_prob = (double)value / 100.0;
    } else if (strcmp(key, "size") == 0) {
        const lg_shape image = LG_SHAPE(1, value, value);
        m->resnet.input = m->densenet.input = m->mobilenet.input = m->vgg.input = image;
    } else if (strcmp(key, "channels") == 0) {
        m->vgg.width = value;
    } else if (strcmp(key, "hidden") == 0) {
        m->vgg.hidden = value;
    } else {
        return false;
    }
    return true;
}

lg_status bench_model_make(lg_model **out, const bench_model *m)
{
    *out = NULL;
    if (strcmp(m->name, "resnet20") == 0) {
        return lg_model_resnet(out, &m->resnet);
    }
    if (strcmp(m->name, "densenet") == 0) {
        return lg_model_densenet(out, &m->densenet);
    }
    if (strcmp(m->name, "mobilenet") == 0) {
        return lg_model_mobilenetv3_small(out, &m->mobilenet);
    }
    if (strcmp(m->name, "vgg") == 0) {
        return lg_model_vgg(out, &m->vgg);
    }
    if (strcmp(m->name, "gpt") == 0) {
        return lg_model_gpt(out, &m->gpt);
    }
    if (strcmp(m->name, "bert") == 0) {
        return lg_model_bert(out, &m->bert);
    }
    return LG_INVALID_ARG;
}

/* Numbers of a linear congruential generator, whose start depends on the tensor: what is read is not what is to be found. */
static void *make_tensor(const lg_layer_info *input, int64_t num_samples)
{
    const int64_t num_elems = lg_shape_num_elems(&input->out_shape) * num_samples;
    float *elems = malloc((size_t)num_elems * sizeof *elems);
    uint32_t state = 12345u + 7919u * (uint32_t)input->attrs->input_idx;
    for (int64_t i = 0; elems != NULL && i < num_elems; i++) {
        state = state * 1664525u + 1013904223u;
        const float real = (float)(state >> 8) * 0x1p-23f - 1.0f;
        const int32_t id = (int32_t)((state >> 16) % 10);
        if (input->out_dtype == LG_DTYPE_I32) {
            memcpy(&elems[i], &id, sizeof id);
        } else {
            elems[i] = strcmp(input->name, "keep") == 0 ? 1.0f : real;
        }
    }
    return elems;
}

lg_status bench_batch_make(void *tensors[BENCH_MAX_INPUTS], const lg_model *model,
                           int64_t num_samples)
{
    memset(tensors, 0, BENCH_MAX_INPUTS * sizeof *tensors);
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        const lg_layer_info *info = lg_model_layer(model, layer);
        if (info->kind == LG_LAYER_INPUT) {
            tensors[info->attrs->input_idx] = make_tensor(info, num_samples);
            if (tensors[info->attrs->input_idx] == NULL) {
                bench_batch_free(tensors);
                return LG_OUT_OF_MEMORY;
            }
        }
    }
    return LG_OK;
}

void bench_batch_free(void *tensors[BENCH_MAX_INPUTS])
{
    for (int i = 0; i < BENCH_MAX_INPUTS; i++) {
        free(tensors[i]);
        tensors[i] = NULL;
    }
}

int bench_compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int num)
{
    qsort(values, (size_t)num, sizeof *values, bench_compare_doubles);
    return num % 2 == 1 ? values[num / 2] : 0.5 * (values[num / 2 - 1] + values[num / 2]);
}
