/* Costs of a GPU from flops and bytes; see gpu_costs.h. */
#include "gpu_costs.h"

#include <math.h>
#include <string.h>

#define TILE 64.0
/* A product of a weight gradient is split along its long reduction into parts of at least this many terms. */
#define MIN_REDUCTION 1024.0
/* Threads that keep an element-wise kernel's GPU busy: 80 multiprocessors x 2048, four elements each. */
#define ELEMS_TO_FILL (80.0 * 2048.0 * 4.0)
/* Passes of an attention over its [heads, tokens, tokens] scores: two products, softmax, and what lies between. */
#define SCORE_PASSES 6.0

const gpu_model gpu_v100 = {
    .name = "V100-SXM2 16 GB, f32",
    .peak_flops_per_s = 15.7e12,
    .flops_frac = 0.85,
    .peak_bytes_per_s = 900e9,
    .bytes_frac = 0.85,
    .op_overhead_ns = 5000.0,
    .num_tiles = 160.0,
    .memory_bytes = (int64_t)16 << 30,
};

const gpu_model gpu_h200 = {
    .name = "H200 SXM, TF32",
    .peak_flops_per_s = 494e12,
    .flops_frac = 0.60,
    .peak_bytes_per_s = 4.8e12,
    .bytes_frac = 0.85,
    .op_overhead_ns = 4000.0,
    .num_tiles = 264.0,
    .memory_bytes = (int64_t)139 << 30,
};

lg_machine gpu_machine(const gpu_model *gpu, int num_ranks, int ranks_per_host)
{
    lg_machine machine = lg_machine_default();
    machine.num_ranks = num_ranks;
    machine.ranks_per_host = ranks_per_host;
    machine.num_cores = 1;
    machine.flops_per_s = gpu->peak_flops_per_s * gpu->flops_frac;
    machine.bytes_per_s = gpu->peak_bytes_per_s * gpu->bytes_frac;
    machine.op_overhead_ns = gpu->op_overhead_ns;
    machine.fork_overhead_ns = 0.0;
    return machine;
}

/* Size of the matrix products of a layer: [rows, cols] with a reduction over `depth`, `groups` times. */
struct product {
    double rows;
    double cols;
    double depth;
    double groups;
};

static bool has_product(const lg_graph *graph, const lg_op_info *op)
{
    return op->layer >= 0 &&
           (op->kind == LG_OP_FORWARD || op->kind == LG_OP_INPUT_GRAD ||
            op->kind == LG_OP_WEIGHT_GRAD) &&
           (lg_model_layer(lg_graph_model(graph), op->layer)->kind == LG_LAYER_CONV2D ||
            lg_model_layer(lg_graph_model(graph), op->layer)->kind == LG_LAYER_LINEAR);
}

static struct product product_of(const lg_graph *graph, const lg_op_info *op)
{
    const lg_model *const model = lg_graph_model(graph);
    const lg_layer_info *const layer = lg_model_layer(model, op->layer);
    const lg_shape *const weight = &lg_model_param(model, layer->params[0])->shape;
    const bool is_conv = layer->kind == LG_LAYER_CONV2D;
    const double num_samples = (double)lg_graph_micro_batch_samples(graph, op->micro_batch);
    const double num_outputs = (double)weight->dims[0];
    const double groups = is_conv ? (double)layer->attrs->groups : 1.0;
    const double outputs = num_outputs / groups;
    const double inputs = (double)lg_shape_num_elems(weight) / num_outputs;
    const double places = (double)lg_shape_num_elems(&layer->out_shape) * num_samples / num_outputs;
    const double window = is_conv ? (double)(weight->dims[2] * weight->dims[3]) : 1.0;
    const double in_places =
        is_conv ? places * (double)(layer->attrs->window.stride[0] * layer->attrs->window.stride[1])
                : places;
    switch (op->kind) {
    case LG_OP_FORWARD:
        return (struct product){places, outputs, inputs, groups};
    case LG_OP_INPUT_GRAD:
        return (struct product){in_places, inputs / window, outputs * window, groups};
    default:
        return (struct product){outputs, inputs, places, groups};
    }
}

/* The part of the GPU that an op can fill, at most 1. */
static double filled(const lg_graph *graph, const lg_op_info *op, const gpu_model *gpu)
{
    if (has_product(graph, op)) {
        const struct product p = product_of(graph, op);
        /* with one channel a group (depthwise) there are no tiles: one thread an element */
        if (p.groups > 1.0 && p.cols <= 1.0) {
            return fmin(1.0, p.rows * p.groups / ELEMS_TO_FILL);
        }
        const double splits =
            op->kind == LG_OP_WEIGHT_GRAD ? fmax(1.0, floor(p.depth / MIN_REDUCTION)) : 1.0;
        return fmin(1.0,
                    p.groups * ceil(p.rows / TILE) * ceil(p.cols / TILE) * splits / gpu->num_tiles);
    }
    return fmin(1.0, op->traffic_bytes / 8.0 / ELEMS_TO_FILL);
}

/* Bytes that the kernels move, where that is not what the graph says. */
static double traffic_bytes(const lg_graph *graph, const lg_op_info *op)
{
    if (op->layer < 0 || op->micro_batch < 0) {
        return op->traffic_bytes;
    }
    const lg_layer_info *const layer = lg_model_layer(lg_graph_model(graph), op->layer);
    const double num_samples = (double)lg_graph_micro_batch_samples(graph, op->micro_batch);
    const double out_bytes = 4.0 * (double)lg_shape_num_elems(&layer->out_shape) * num_samples;
    switch (layer->kind) {
    case LG_LAYER_TOKEN_EMBEDDING: /* rows of the table, not all of it */
        return 2.0 * out_bytes;
    case LG_LAYER_BATCH_NORM: /* statistics first: forward reads twice, backward reads both twice */
        return op->kind == LG_OP_FORWARD ? 3.0 * out_bytes : 5.0 * out_bytes;
    case LG_LAYER_ATTENTION: {
        const double num_tokens = (double)layer->out_shape.dims[0];
        const double scores =
            4.0 * num_samples * (double)layer->attrs->num_heads * num_tokens * num_tokens;
        return op->traffic_bytes +
               SCORE_PASSES * scores * (op->kind == LG_OP_INPUT_GRAD ? 2.0 : 1.0);
    }
    default:
        return op->traffic_bytes;
    }
}

static bool is_head(const lg_graph *graph, const lg_op_info *op)
{
    if (op->layer < 0 || op->micro_batch < 0) {
        return false;
    }
    const lg_layer_info *const layer = lg_model_layer(lg_graph_model(graph), op->layer);
    return strncmp(layer->name, "cls.", 4) == 0 || layer->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY;
}

void gpu_costs_fill(lg_costs *costs, const lg_graph *graph, const gpu_model *gpu, double head_frac)
{
    const int num_widths = lg_graph_options(graph)->num_widths;
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *const op = lg_graph_op(graph, i);
        const double frac = is_head(graph, op) ? head_frac : 1.0;
        const double part = has_product(graph, op) ? filled(graph, op, gpu) : 1.0;
        const double compute_ns =
            1e9 * frac * op->flops / (gpu->peak_flops_per_s * gpu->flops_frac * part);
        const double memory_ns =
            1e9 * frac * traffic_bytes(graph, op) / (gpu->peak_bytes_per_s * gpu->bytes_frac);
        for (int w = 0; w < num_widths; w++) {
            lg_costs_set_op_ns(costs, i, w, fmax(compute_ns, memory_ns) + gpu->op_overhead_ns);
        }
    }
}

/* Occupancy is summed up in bins, so that all pairs are looked at in no time. */
enum { NUM_BINS = 64 };

double gpu_corun_slowdown(const lg_costs *costs, const lg_graph *graph, const gpu_model *gpu)
{
    double ns[2][NUM_BINS + 1] = {{0.0}};
    double total_ns[2] = {0.0};
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *const op = lg_graph_op(graph, i);
        const double op_ns = lg_costs_op_ns(costs, i, 0);
        const double busy = op_ns > 0.0 ? 1.0 - gpu->op_overhead_ns / op_ns : 0.0;
        const int bin = (int)(filled(graph, op, gpu) * busy * NUM_BINS + 0.5);
        const int side = op->kind == LG_OP_WEIGHT_GRAD;
        if (op->micro_batch >= 0) {
            ns[side][bin] += op_ns;
            total_ns[side] += op_ns;
        }
    }
    double mean = 0.0;
    for (int a = 0; a <= NUM_BINS; a++) {
        for (int b = 0; b <= NUM_BINS; b++) {
            mean += ns[0][a] * ns[1][b] * fmax(1.0, (double)(a + b) / NUM_BINS);
        }
    }
    return mean > 0.0 ? mean / (total_ns[0] * total_ns[1]) : 1.0;
}
