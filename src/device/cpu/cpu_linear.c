/* Linear layers: rows are the samples times all dimensions but the last. */
#include "device/cpu/cpu_matmul.h"

typedef struct linear_layer {
    lgi_cpu_layer base;
    lgi_cpu_matmul matmul;
} linear_layer;

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    const int64_t num_in = lgi_cpu_last_dim(&layer->in_shape);
    const int64_t rows = layer->num_samples * lg_shape_num_elems(&layer->in_shape) / num_in;
    return lgi_cpu_matmul_prepare(&((linear_layer *)layer)->matmul, layer, spec, rows, num_in,
                                  layer->attrs->num_outputs, facts);
}

static void release(lgi_cpu_layer *layer)
{
    lgi_cpu_matmul_release(&((linear_layer *)layer)->matmul);
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    return lgi_cpu_matmul_forward(&((const linear_layer *)layer)->matmul, width_idx, io);
}

static lg_status run_input_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    return lgi_cpu_matmul_input_grad(&((const linear_layer *)layer)->matmul, width_idx, io);
}

static lg_status run_weight_grad(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    return lgi_cpu_matmul_weight_grad(&((const linear_layer *)layer)->matmul,
                                      layer->widths[width_idx], io, layer->name);
}

const lgi_cpu_kind lgi_cpu_linear = {
    .layer_bytes = sizeof(linear_layer),
    .prepare = prepare,
    .run = {run_forward, run_input_grad, run_weight_grad},
    .release = release,
};
