/*
 * The reference backend: plain loops over row-major memory, the oracle of every other backend.
 *
 * The kernels are written once, in the reference_*.inc.h files, on the type REAL; reference_f32.c and reference_f64.c
 * compile them with float and with double. What does not depend on REAL stands in reference_layer.c and
 * reference_memory.c. Every op runs on the calling thread, so a result does not depend on the width.
 */
#ifndef LGI_DEVICE_REFERENCE_LAYER_H
#define LGI_DEVICE_REFERENCE_LAYER_H

#include "device/device.h"

/* An open device: counts its memory. */
typedef struct lgi_reference_device {
    lgi_device base;
    int64_t current_bytes;
    int64_t peak_bytes;
} lgi_reference_device;

/* A prepared layer: what a kernel must know besides its operands. */
typedef struct lgi_reference_layer {
    lgi_device_layer base;
    char *name;
    lg_layer_kind kind;
    const lg_layer_attrs *attrs;
    lg_graph_mode mode;
    int64_t num_samples;
    int num_inputs;
    lg_shape *in_shapes; /* of one sample, by input */
    lg_dtype *in_dtypes;
    lg_shape out_shape; /* of one sample */
    lg_dtype out_dtype;
    lg_shape param_shapes[LG_MAX_LAYER_PARAMS];
    uint64_t random_key;
} lgi_reference_layer;

/* A prepared copy. */
struct lgi_device_reorder {
    int64_t bytes;
};

LG_NODISCARD lg_status lgi_reference_open(lgi_device **out, const struct lgi_device_ops *ops);
void lgi_reference_close(lgi_device *device);
LG_NODISCARD lg_status lgi_reference_alloc(lgi_device *device, void **out, int64_t bytes);
void lgi_reference_free(lgi_device *device, void *memory, int64_t bytes);
int64_t lgi_reference_peak_bytes(const lgi_device *device);

LG_NODISCARD lg_status lgi_reference_layer_create(lgi_device *device, const lgi_layer_spec *spec,
                                                  lgi_layer_facts *facts, lgi_device_layer **out);
void lgi_reference_layer_destroy(lgi_device_layer *layer);
LG_NODISCARD lg_status lgi_reference_reorder_create(lgi_device *device, const lg_shape *shape,
                                                    int from_layout, int to_layout, int num_widths,
                                                    const int *widths, lgi_device_reorder **out);
void lgi_reference_reorder_destroy(lgi_device_reorder *reorder);
lg_status lgi_reference_reorder_run(lgi_device_reorder *reorder, int width_idx, void *dst,
                                    const void *src);

#endif
