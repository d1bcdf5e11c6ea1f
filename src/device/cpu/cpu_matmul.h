/*
 * What linear layers and dense 1x1 convolutions have in common: x [rows, num_in], weight [num_out, num_in], y [rows,
 * num_out], all row-major. On this kind of shape oneDNN is as fast from row-major weights as from blocked ones (within 3
 * %), so nothing is ever reordered.
 */
#ifndef LGI_DEVICE_CPU_MATMUL_H
#define LGI_DEVICE_CPU_MATMUL_H

#include "device/cpu/cpu_columns.h"
#include "device/cpu/cpu_dnnl.h"

typedef struct lgi_cpu_matmul {
    int64_t rows;
    int64_t num_in;
    int64_t num_out;
    bool has_bias;
    lgi_cpu_columns bias_columns;
    lgi_cpu_primitive *forward[LG_MAX_WIDTHS];
    lgi_cpu_primitive *input_grad[LG_MAX_WIDTHS];
} lgi_cpu_matmul;

/* Makes the primitives for all widths and sets the workspaces. lgi_cpu_matmul_release() also after a failure. */
lg_status lgi_cpu_matmul_prepare(lgi_cpu_matmul *matmul, const lgi_cpu_layer *layer,
                                 const lgi_layer_spec *spec, int64_t rows, int64_t num_in,
                                 int64_t num_out, lgi_layer_facts *facts);
void lgi_cpu_matmul_release(lgi_cpu_matmul *matmul);

lg_status lgi_cpu_matmul_forward(const lgi_cpu_matmul *matmul, int width_idx,
                                 const lgi_layer_io *io);
lg_status lgi_cpu_matmul_input_grad(const lgi_cpu_matmul *matmul, int width_idx,
                                    const lgi_layer_io *io);
lg_status lgi_cpu_matmul_weight_grad(const lgi_cpu_matmul *matmul, int width,
                                     const lgi_layer_io *io, const char *what);

#endif
