/*
 * Costs of a GPU from flops and bytes: what a kernel of a given size takes, with the efficiencies written down. The
 * numbers and where they are from: docs/papers.md.
 */
#ifndef BENCH_GPU_COSTS_H
#define BENCH_GPU_COSTS_H

#include "leapgrad/plan.h"

typedef struct gpu_model {
    const char *name;
    double peak_flops_per_s;
    double flops_frac; /* of the peak, that large matrix products reach */
    double peak_bytes_per_s;
    double bytes_frac;     /* of the peak, that element-wise kernels reach */
    double op_overhead_ns; /* from one kernel to the next on a stream */
    double num_tiles;      /* 64x64 tiles of a product that keep all multiprocessors busy */
    int64_t memory_bytes;
} gpu_model;

/* V100-SXM2 16 GB in f32; kernels issued one by one by a framework. */
extern const gpu_model gpu_v100;
/* H200 SXM with TF32 products. */
extern const gpu_model gpu_h200;

/* The rates in a machine's fields: one rank is one GPU, one core. */
lg_machine gpu_machine(const gpu_model *gpu, int num_ranks, int ranks_per_host);

/*
 * Fills in the costs of all ops: max(flops / rate / filled, bytes / rate) + overhead, where `filled` is the part of the
 * GPU that the product's tiles fill. `head_frac`: part of the tokens that reach the layers named "cls." and the loss.
 */
void gpu_costs_fill(lg_costs *costs, const lg_graph *graph, const gpu_model *gpu, double head_frac);

/*
 * How much longer kernels take on average while one of the main stream (forward, input gradient) and one of the side
 * stream (weight gradient) run together: the mean of max(1, filled_a + filled_b) over both, weighted by time.
 */
double gpu_corun_slowdown(const lg_costs *costs, const lg_graph *graph, const gpu_model *gpu);

#endif
