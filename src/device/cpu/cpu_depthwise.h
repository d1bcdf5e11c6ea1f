/*
 * The weight gradient of depthwise convolutions, where oneDNN 2.6 has no kernel of its own for a shape and falls back to
 * one product of matrices per channel (measured: 10 to 20 times slower than FORWARD). Images channels last.
 */
#ifndef LGI_DEVICE_CPU_DEPTHWISE_H
#define LGI_DEVICE_CPU_DEPTHWISE_H

#include "device/cpu/cpu_device.h"

#define LGI_CPU_DEPTHWISE_LANES \
    16 /* channels of a block, as the weights are stored: [C/16][KH][KW][16] */

/* Whether the layer has one input and one output channel per group. */
bool lgi_cpu_is_depthwise(const lgi_cpu_layer *layer);

/* Bytes of workspace. */
int64_t lgi_cpu_depthwise_workspace_bytes(const lgi_cpu_layer *layer);

/* Sets (or adds to) dweight, with zeros in the padding of the last block, and dbias; either may be NULL. */
void lgi_cpu_depthwise_weight_grad(const lgi_cpu_layer *layer, int width, const lgi_layer_io *io);

#endif
