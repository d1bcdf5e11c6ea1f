/*
 * Times training steps of a model on made-up data, through the public interface, and prints one JSON line:
 * median and best step, what was predicted, what the executor itself took, memory, hash.
 *
 * Usage: step MODEL [key=value ...]
 *   MODEL: resnet20, densenet, mobilenet, vgg, gpt, bert
 *   keys: batch, micro_batches, steps, warmup, device, strategy, lanes, threads, costs (estimate, measure), rule (sgd, adamw),
 *         statistics (0, 1), scaling (none, adascale, lena), skip (step, layer), layers, width, heads, context, vocab, size (of images)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/models.h"
#include "leapgrad/trainer.h"

struct settings {
    const char *model;
    lg_trainer_opts trainer;
    int num_steps;
    int num_warmup;
    lg_resnet_opts resnet;
    lg_densenet_opts densenet;
    lg_mobilenetv3_opts mobilenet;
    lg_vgg_opts vgg;
    lg_gpt_opts gpt;
    lg_bert_opts bert;
};

static void stop_if(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "bench/step: %s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

static struct settings default_settings(const char *model)
{
    struct settings s;
    memset(&s, 0, sizeof s);
    s.model = model;
    s.trainer = lg_trainer_opts_default();
    s.trainer.batch_samples = 128;
    s.trainer.costs = LG_TRAINER_COSTS_MEASURE;
    s.trainer.optim.momentum = 0.9;
    s.trainer.optim.lr = 0.01;
    s.num_steps = 20;
    s.num_warmup = 3;
    const lg_shape image = LG_SHAPE(1, 28, 28);
    s.resnet = lg_resnet_opts_default();
    s.resnet.input = image;
    s.densenet = lg_densenet_opts_default();
    s.densenet.input = image;
    s.mobilenet = lg_mobilenetv3_opts_default();
    s.mobilenet.input = image;
    s.mobilenet.num_classes = 10;
    s.vgg = lg_vgg_opts_default();
    s.vgg.input = image;
    s.gpt = lg_gpt_opts_default();
    s.gpt.num_layers = 6;
    s.gpt.width = 384;
    s.gpt.num_heads = 6;
    s.gpt.context = 256;
    s.gpt.vocab_size = 512;
    s.bert = lg_bert_opts_default();
    s.bert.num_layers = 6;
    s.bert.width = 384;
    s.bert.num_heads = 6;
    s.bert.context = 128;
    s.bert.vocab_size = 512;
    s.bert.num_segments = 0;
    if (strcmp(model, "gpt") == 0 || strcmp(model, "bert") == 0) {
        s.trainer.batch_samples = 8;
        s.trainer.optim.rule = LG_OPTIM_ADAMW;
        s.trainer.optim.lr = 1e-4;
    }
    return s;
}

static void set_size(struct settings *s, int64_t size)
{
    const lg_shape image = LG_SHAPE(1, size, size);
    s->resnet.input = s->densenet.input = s->mobilenet.input = s->vgg.input = image;
}

static void set_option(struct settings *s, const char *key, const char *value)
{
    const long number = strtol(value, NULL, 10);
    if (strcmp(key, "batch") == 0) {
        s->trainer.batch_samples = number;
    } else if (strcmp(key, "micro_batches") == 0) {
        s->trainer.num_micro_batches = (int)number;
    } else if (strcmp(key, "steps") == 0) {
        s->num_steps = (int)number;
    } else if (strcmp(key, "warmup") == 0) {
        s->num_warmup = (int)number;
    } else if (strcmp(key, "device") == 0) {
        s->trainer.device = value;
    } else if (strcmp(key, "strategy") == 0) {
        s->trainer.strategy = value;
    } else if (strcmp(key, "lanes") == 0) {
        s->trainer.num_lanes = (int)number;
    } else if (strcmp(key, "threads") == 0) {
        s->trainer.threads_per_lane = (int)number;
    } else if (strcmp(key, "costs") == 0) {
        s->trainer.costs =
            strcmp(value, "measure") == 0 ? LG_TRAINER_COSTS_MEASURE : LG_TRAINER_COSTS_ESTIMATE;
    } else if (strcmp(key, "rule") == 0) {
        s->trainer.optim.rule = strcmp(value, "adamw") == 0 ? LG_OPTIM_ADAMW : LG_OPTIM_SGD;
    } else if (strcmp(key, "statistics") == 0) {
        s->trainer.optim.has_statistics = number != 0;
    } else if (strcmp(key, "scaling") == 0) {
        s->trainer.optim.scaling = strcmp(value, "lena") == 0       ? LG_LR_SCALING_LENA
                                   : strcmp(value, "adascale") == 0 ? LG_LR_SCALING_ADASCALE
                                                                    : LG_LR_SCALING_NONE;
    } else if (strcmp(key, "skip") == 0) {
        s->trainer.optim.skip = strcmp(value, "layer") == 0 ? LG_SKIP_LAYER : LG_SKIP_STEP;
    } else if (strcmp(key, "layers") == 0) {
        s->gpt.num_layers = s->bert.num_layers = number;
    } else if (strcmp(key, "width") == 0) {
        s->gpt.width = s->bert.width = number;
    } else if (strcmp(key, "heads") == 0) {
        s->gpt.num_heads = s->bert.num_heads = number;
    } else if (strcmp(key, "context") == 0) {
        s->gpt.context = s->bert.context = number;
    } else if (strcmp(key, "vocab") == 0) {
        s->gpt.vocab_size = s->bert.vocab_size = number;
    } else if (strcmp(key, "size") == 0) {
        set_size(s, number);
    } else {
        (void)fprintf(stderr, "bench/step: unknown key '%s'\n", key);
        exit(2);
    }
}

static lg_model *make_model(const struct settings *s)
{
    lg_model *model = NULL;
    if (strcmp(s->model, "resnet20") == 0) {
        stop_if(lg_model_resnet(&model, &s->resnet));
    } else if (strcmp(s->model, "densenet") == 0) {
        stop_if(lg_model_densenet(&model, &s->densenet));
    } else if (strcmp(s->model, "mobilenet") == 0) {
        stop_if(lg_model_mobilenetv3_small(&model, &s->mobilenet));
    } else if (strcmp(s->model, "vgg") == 0) {
        stop_if(lg_model_vgg(&model, &s->vgg));
    } else if (strcmp(s->model, "gpt") == 0) {
        stop_if(lg_model_gpt(&model, &s->gpt));
    } else if (strcmp(s->model, "bert") == 0) {
        stop_if(lg_model_bert(&model, &s->bert));
    } else {
        (void)fprintf(stderr, "bench/step: unknown model '%s'\n", s->model);
        exit(2);
    }
    return model;
}

/* Real inputs in [-1, 1), ids and targets below 10: in range for every model here. */
static void *make_tensor(const lg_layer_info *input, int64_t num_samples)
{
    const int64_t num_elems = lg_shape_num_elems(&input->out_shape) * num_samples;
    float *elems = malloc((size_t)num_elems * sizeof *elems);
    uint32_t state = 12345;
    if (elems == NULL) {
        (void)fprintf(stderr, "bench/step: out of memory\n");
        exit(3);
    }
    for (int64_t i = 0; i < num_elems; i++) {
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

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Time in which the busiest lane ran no op, of a recorded step. */
static double idle_frac(const lg_timeline *timeline, int num_lanes)
{
    double busiest_ns = 0.0;
    for (int lane = 0; lane < num_lanes; lane++) {
        double busy_ns = 0.0;
        for (int i = 0; i < timeline->num_spans; i++) {
            if (timeline->spans[i].lane == lane) {
                busy_ns += timeline->spans[i].end_ns - timeline->spans[i].start_ns;
            }
        }
        busiest_ns = busy_ns > busiest_ns ? busy_ns : busiest_ns;
    }
    return 1.0 - busiest_ns / timeline->step_ns;
}

static void run_steps(const struct settings *s, lg_trainer *trainer, const void *const *tensors)
{
    double *step_ms = malloc((size_t)s->num_steps * sizeof *step_ms);
    double *idle = malloc((size_t)s->num_steps * sizeof *idle);
    char hash[LG_WEIGHTS_HASH_CHARS];
    lg_step_result result = {0};
    if (step_ms == NULL || idle == NULL) {
        exit(3);
    }
    for (int i = -s->num_warmup; i < s->num_steps; i++) {
        lg_timeline timeline;
        lg_trainer_record(trainer, i >= 0);
        stop_if(lg_trainer_step(trainer, s->trainer.batch_samples, tensors, &result));
        if (i >= 0) {
            step_ms[i] = (double)result.step_ns / 1e6;
            stop_if(lg_trainer_timeline(trainer, &timeline));
            idle[i] = idle_frac(&timeline, lg_trainer_plan(trainer)->num_lanes);
            lg_timeline_deinit(&timeline);
        }
    }
    qsort(step_ms, (size_t)s->num_steps, sizeof *step_ms, compare_doubles);
    qsort(idle, (size_t)s->num_steps, sizeof *idle, compare_doubles);
    stop_if(lg_trainer_weights_hash(trainer, hash));
    const lg_trainer_info info = lg_trainer_about(trainer);
    (void)printf(
        "{\"model\": \"%s\", \"batch\": %lld, \"strategy\": \"%s\", \"lanes\": %d, \"threads\": "
        "%d, "
        "\"step_ms\": %.4f, \"best_ms\": %.4f, \"predicted_ms\": %.4f, \"idle_frac\": %.4f, "
        "\"planning_ms\": %.2f, \"planned_bytes\": %lld, \"measured_bytes\": %lld, \"reorders\": "
        "%d, "
        "\"loss\": %.6f, \"hash\": \"%s\"}\n",
        s->model, (long long)s->trainer.batch_samples, info.strategy, info.num_lanes,
        info.threads_per_lane, step_ms[s->num_steps / 2], step_ms[0], info.predicted_step_ns / 1e6,
        idle[s->num_steps / 2], info.planning_ns / 1e6, (long long)info.planned_peak_bytes,
        (long long)info.measured_peak_bytes, info.num_reorders, result.loss, hash);
    free(step_ms);
    free(idle);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: step MODEL [key=value ...]\n");
        return 2;
    }
    struct settings s = default_settings(argv[1]);
    for (int i = 2; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (equals == NULL) {
            (void)fprintf(stderr, "bench/step: '%s' is not key=value\n", argv[i]);
            return 2;
        }
        *equals = '\0';
        set_option(&s, argv[i], equals + 1);
    }
    lg_model *model = make_model(&s);
    s.trainer.num_steps = s.num_steps + s.num_warmup;
    void *tensors[8] = {NULL};
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        const lg_layer_info *info = lg_model_layer(model, layer);
        if (info->kind == LG_LAYER_INPUT) {
            tensors[info->attrs->input_idx] = make_tensor(info, s.trainer.batch_samples);
        }
    }
    lg_trainer *trainer = NULL;
    stop_if(lg_trainer_create(&trainer, model, &s.trainer));
    run_steps(&s, trainer, (const void *const *)tensors);
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    for (int i = 0; i < 8; i++) {
        free(tensors[i]);
    }
    return 0;
}
