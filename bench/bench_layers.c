/*
 * Times every op of a model's training step by itself, at widths 1 and 2, and prints milliseconds, GFLOP/s and GB/s (from
 * the graph's flops and bytes), then the sums by kind of layer and op. The times are the best ones of some steps in the
 * textbook order, so caches are as warm or cold as in training.
 *
 * Usage: bench_layers MODEL [BATCH [STEPS [DEVICE]]]
 *   MODEL: resnet20, densenet, mobilenet, vgg, gpt, bert
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/models.h"
#include "leapgrad/trainer.h"

enum { NUM_WIDTHS = 2 };

static void stop_if(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "bench_layers: %s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

static lg_model *make_model(const char *name)
{
    lg_model *model = NULL;
    lg_resnet_opts resnet = lg_resnet_opts_default();
    lg_densenet_opts densenet = lg_densenet_opts_default();
    lg_mobilenetv3_opts mobilenet = lg_mobilenetv3_opts_default();
    lg_vgg_opts vgg = lg_vgg_opts_default();
    lg_gpt_opts gpt = lg_gpt_opts_default();
    lg_bert_opts bert = lg_bert_opts_default();
    resnet.input = densenet.input = mobilenet.input = vgg.input = LG_SHAPE(1, 28, 28);
    gpt.num_layers = bert.num_layers = 6;
    gpt.width = bert.width = 384;
    gpt.num_heads = bert.num_heads = 6;
    gpt.context = bert.context = 256;
    gpt.vocab_size = bert.vocab_size = 512;
    if (strcmp(name, "resnet20") == 0) {
        stop_if(lg_model_resnet(&model, &resnet));
    } else if (strcmp(name, "densenet") == 0) {
        stop_if(lg_model_densenet(&model, &densenet));
    } else if (strcmp(name, "mobilenet") == 0) {
        stop_if(lg_model_mobilenetv3_small(&model, &mobilenet));
    } else if (strcmp(name, "vgg") == 0) {
        stop_if(lg_model_vgg(&model, &vgg));
    } else if (strcmp(name, "gpt") == 0) {
        stop_if(lg_model_gpt(&model, &gpt));
    } else if (strcmp(name, "bert") == 0) {
        stop_if(lg_model_bert(&model, &bert));
    } else {
        (void)fprintf(stderr, "bench_layers: unknown model '%s'\n", name);
        exit(2);
    }
    return model;
}

/* Sums over the ops of one kind of layer and op. */
struct total {
    double ns[NUM_WIDTHS];
    double flops;
    double bytes;
};

static int kind_row(const lg_graph *graph, const lg_op_info *op)
{
    const lg_model *model = lg_graph_model(graph);
    return op->layer >= 0 ? (int)lg_model_layer(model, op->layer)->kind : LG_NUM_LAYER_KINDS;
}

static void print_row(const char *name, const struct total *total)
{
    (void)printf("%-44s", name);
    for (int w = 0; w < NUM_WIDTHS; w++) {
        const double ns = total->ns[w] > 0.0 ? total->ns[w] : 1.0;
        (void)printf(" | %9.4f ms %6.1f GFLOP/s %6.1f GB/s", total->ns[w] / 1e6, total->flops / ns,
                     total->bytes / ns);
    }
    (void)printf("\n");
}

static void print_ops(const lg_graph *graph, double *const *best_ns)
{
    static struct total totals[LG_NUM_LAYER_KINDS + 1][LG_NUM_OP_KINDS];
    struct total all = {{0.0, 0.0}, 0.0, 0.0};
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *op = lg_graph_op(graph, i);
        struct total row = {{0.0, 0.0}, op->flops, op->traffic_bytes};
        struct total *total = &totals[kind_row(graph, op)][op->kind];
        for (int w = 0; w < NUM_WIDTHS; w++) {
            row.ns[w] = best_ns[w][i];
            total->ns[w] += row.ns[w];
            all.ns[w] += row.ns[w];
        }
        total->flops += row.flops;
        total->bytes += row.bytes;
        all.flops += row.flops;
        all.bytes += row.bytes;
        print_row(op->name, &row);
    }
    (void)printf("\nsums by kind of layer and op, with 1 thread | with 2 threads\n");
    for (int kind = 0; kind <= LG_NUM_LAYER_KINDS; kind++) {
        for (int op = 0; op < LG_NUM_OP_KINDS; op++) {
            if (totals[kind][op].ns[0] > 0.0) {
                char name[64];
                (void)snprintf(name, sizeof name, "%s %s",
                               kind < LG_NUM_LAYER_KINDS ? lg_layer_kind_name((lg_layer_kind)kind)
                                                         : "step",
                               lg_op_kind_name((lg_op_kind)op));
                print_row(name, &totals[kind][op]);
            }
        }
    }
    print_row("all", &all);
}

/* Real inputs in [-1, 1), ids and targets below 2: in range for every model here. */
static void *make_tensor(const lg_layer_info *input, int64_t num_samples)
{
    const int64_t num_elems = lg_shape_num_elems(&input->out_shape) * num_samples;
    float *elems = malloc((size_t)num_elems * sizeof *elems);
    uint32_t state = 12345;
    for (int64_t i = 0; elems != NULL && i < num_elems; i++) {
        state = state * 1664525u + 1013904223u;
        const float real = (float)(state >> 8) * 0x1p-23f - 1.0f;
        const int32_t id = (int32_t)((state >> 16) % 2);
        if (input->out_dtype == LG_DTYPE_I32) {
            memcpy(&elems[i], &id, sizeof id);
        } else {
            elems[i] = strcmp(input->name, "keep") == 0 ? 1.0f : real;
        }
    }
    return elems;
}

/* Runs steps on one lane and keeps each op's best time. */
static void time_ops(lg_trainer *trainer, const lg_trainer_opts *opts, int num_steps,
                     double *best_ns)
{
    enum { MAX_TENSORS = 8 };
    const lg_model *model = lg_graph_model(lg_trainer_graph(trainer));
    void *tensors[MAX_TENSORS] = {NULL};
    for (int i = 0; i < lg_model_num_layers(model); i++) {
        const lg_layer_info *info = lg_model_layer(model, i);
        if (info->kind == LG_LAYER_INPUT) {
            tensors[info->attrs->input_idx] = make_tensor(info, opts->batch_samples);
        }
    }
    for (int step = 0; step < num_steps; step++) {
        lg_timeline timeline;
        lg_trainer_record(trainer, step > 0);
        stop_if(lg_trainer_step(trainer, opts->batch_samples, (const void *const *)tensors, NULL));
        if (step == 0) { /* page faults */
            continue;
        }
        stop_if(lg_trainer_timeline(trainer, &timeline));
        for (int i = 0; i < timeline.num_spans; i++) {
            const lg_span *span = &timeline.spans[i];
            const double ns = span->end_ns - span->start_ns;
            best_ns[span->op] = step == 1 || ns < best_ns[span->op] ? ns : best_ns[span->op];
        }
        lg_timeline_deinit(&timeline);
    }
    for (int i = 0; i < MAX_TENSORS; i++) {
        free(tensors[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: bench_layers MODEL [BATCH [STEPS [DEVICE]]]\n");
        return 2;
    }
    const bool is_text = strcmp(argv[1], "gpt") == 0 || strcmp(argv[1], "bert") == 0;
    const int num_steps = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 10;
    lg_model *model = make_model(argv[1]);
    lg_trainer *trainers[NUM_WIDTHS] = {NULL};
    double *best_ns[NUM_WIDTHS] = {NULL};
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.batch_samples = argc > 2 ? strtol(argv[2], NULL, 10) : is_text ? 8 : 128;
    opts.device = argc > 4 ? argv[4] : "auto";
    opts.optim.rule = is_text ? LG_OPTIM_ADAMW : LG_OPTIM_SGD;
    opts.optim.momentum = 0.9;
    opts.optim.lr = 1e-3;
    opts.num_lanes = 1;
    opts.allow_lag = false;
    opts.num_steps = num_steps;
    for (int w = 0; w < NUM_WIDTHS; w++) {
        opts.threads_per_lane = w + 1;
        stop_if(lg_trainer_create(&trainers[w], model, &opts));
        best_ns[w] =
            calloc((size_t)lg_graph_num_ops(lg_trainer_graph(trainers[w])), sizeof(double));
        if (best_ns[w] == NULL) {
            return 3;
        }
        time_ops(trainers[w], &opts, num_steps, best_ns[w]);
    }
    print_ops(lg_trainer_graph(trainers[0]), best_ns);
    for (int w = 0; w < NUM_WIDTHS; w++) {
        lg_trainer_destroy(trainers[w]);
        free(best_ns[w]);
    }
    lg_model_destroy(model);
    return 0;
}
