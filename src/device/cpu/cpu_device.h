/*
 * The oneDNN backend's own types. Shared by the files of this folder; only cpu_dnnl.h and what includes it sees dnnl.h.
 *
 * Activations lie in one of two layouts: row-major (id 0) or channels last (id 1: the channel of [C,...] moves to the
 * end, so [N,C,H,W] lies as N,H,W,C). Where both are the same bytes (one channel, or one cell) the id is 0. Nothing is
 * padded, so every elementwise op runs over flat memory. Weights of convolutions lie as the convolution wants them (ids
 * from 2, given out by cpu_layout.c), everything else is row-major.
 *
 * Same bits: sums over many elements are made of partial sums over pieces whose size depends on the shape only, added in
 * f64 in the order of the pieces, so they do not depend on the width; sums over samples in oneDNN's convolutions are made
 * slice by slice (cpu_conv.c). oneDNN's products of matrices and its other convolutions do not share out a sum.
 */
#ifndef LGI_DEVICE_CPU_DEVICE_H
#define LGI_DEVICE_CPU_DEVICE_H

#include "device/device.h"

#define LGI_CPU_ROW_MAJOR 0
#define LGI_CPU_CHANNELS_LAST 1

struct dnnl_engine;
typedef struct lgi_cpu_layouts lgi_cpu_layouts;

typedef struct lgi_cpu_device {
    struct lgi_device base;
    int num_cores;
    int64_t current_bytes;
    int64_t peak_bytes;
    struct dnnl_engine *engine;
    lgi_cpu_layouts *layouts;
    char description[160];
} lgi_cpu_device;

typedef struct lgi_cpu_layer lgi_cpu_layer;

typedef lg_status (*lgi_cpu_run_fn)(const lgi_cpu_layer *layer, int width_idx,
                                    const lgi_layer_io *io);

/* What one kind of layer is made of. */
typedef struct lgi_cpu_kind {
    size_t layer_bytes; /* of its own struct, which begins with an lgi_cpu_layer */
    /* Fills in what differs from the natural facts, layouts first. `layer` is zeroed but for the base. */
    lg_status (*prepare)(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts);
    lgi_cpu_run_fn run[LGI_NUM_PHASES];
    void (*release)(lgi_cpu_layer *layer); /* (optional) what prepare made */
} lgi_cpu_kind;

/* Base of every prepared layer. */
struct lgi_cpu_layer {
    struct lgi_device_layer base;
    lgi_cpu_device *device;
    const lgi_cpu_kind *kind;
    char *name;
    const lg_layer_attrs *attrs;
    lg_graph_mode mode;
    int64_t num_samples;
    int num_inputs;
    lg_shape in_shape; /* of input 0, one sample */
    lg_shape out_shape;
    uint64_t random_key;
    int num_widths;
    int widths[LG_MAX_WIDTHS];
};

extern const struct lgi_device_ops lgi_device_cpu;

extern const lgi_cpu_kind lgi_cpu_input;
extern const lgi_cpu_kind lgi_cpu_conv;
extern const lgi_cpu_kind lgi_cpu_linear;
extern const lgi_cpu_kind lgi_cpu_batch_norm;
extern const lgi_cpu_kind lgi_cpu_layer_norm;
extern const lgi_cpu_kind lgi_cpu_activation;
extern const lgi_cpu_kind lgi_cpu_max_pool;
extern const lgi_cpu_kind lgi_cpu_avg_pool;
extern const lgi_cpu_kind lgi_cpu_global_avg_pool;
extern const lgi_cpu_kind lgi_cpu_flatten;
extern const lgi_cpu_kind lgi_cpu_add;
extern const lgi_cpu_kind lgi_cpu_concat;
extern const lgi_cpu_kind lgi_cpu_channel_scale;
extern const lgi_cpu_kind lgi_cpu_dropout;
extern const lgi_cpu_kind lgi_cpu_token_embedding;
extern const lgi_cpu_kind lgi_cpu_position_embedding;
extern const lgi_cpu_kind lgi_cpu_attention;
extern const lgi_cpu_kind lgi_cpu_loss;

/* --- cpu_layout.c -------------------------------------------------------------------------------------------------- */

/* The id of channels last for a sample of this shape: LGI_CPU_ROW_MAJOR where that is the same. */
int lgi_cpu_channels_last(const lg_shape *sample_shape);

/* Makes input `i` and its gradient come channels last. */
void lgi_cpu_want_channels_last(lgi_layer_facts *facts, const lgi_layer_spec *spec, int i);

/*
 * For layers that run in either layout: channels last if any input of three dimensions comes so, else row-major; sets
 * all inputs and the output to it. Returns whether it is channels last.
 */
bool lgi_cpu_follow_inputs(lgi_layer_facts *facts, const lgi_layer_spec *spec);

/* Host access, see device.h. */
lg_status lgi_cpu_read(lgi_device *device, const lg_shape *shape, int layout, const void *stored,
                       float *host);
lg_status lgi_cpu_write(lgi_device *device, const lg_shape *shape, int layout, void *stored,
                        const float *host);

lg_status lgi_cpu_layouts_create(lgi_cpu_layouts **out);
void lgi_cpu_layouts_destroy(lgi_cpu_layouts *layouts);

/* --- cpu_reorder.c ------------------------------------------------------------------------------------------------- */

lg_status lgi_cpu_reorder_create(lgi_device *device, const lg_shape *shape, int from_layout,
                                 int to_layout, int num_widths, const int *widths,
                                 lgi_device_reorder **out);
void lgi_cpu_reorder_destroy(lgi_device_reorder *reorder);
lg_status lgi_cpu_reorder_run(lgi_device_reorder *reorder, int width_idx, void *dst,
                              const void *src);

/* --- cpu_update.c -------------------------------------------------------------------------------------------------- */

void lgi_cpu_grad_add(lgi_device *device, int width, int64_t bytes, void *dst,
                      const void *const *srcs, int num_srcs);
double lgi_cpu_sum_squares(lgi_device *device, int width, int64_t num_elems, const void *src);
double lgi_cpu_grad_stat(lgi_device *device, int width, int64_t num_elems, void *const *sums,
                         const void *const *grads, int num_uses);
void lgi_cpu_update(lgi_device *device, int width, const lgi_update *update);
void lgi_cpu_fold_statistics(lgi_device *device, void *running_mean, void *running_var,
                             const void *stash, int64_t num_channels, int64_t num_reduced,
                             double momentum, double epsilon);

/* --- small things -------------------------------------------------------------------------------------------------- */

static inline int64_t lgi_cpu_round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Elements of a shape but for its first or its last dimension. */
static inline int64_t lgi_cpu_map_elems(const lg_shape *shape)
{
    return shape->num_dims > 0 ? lg_shape_num_elems(shape) / shape->dims[0] : 1;
}

static inline int64_t lgi_cpu_last_dim(const lg_shape *shape)
{
    return shape->dims[shape->num_dims - 1];
}

/* The same workspace for all widths of a phase. */
static inline void lgi_cpu_set_workspace(lgi_layer_facts *facts, lgi_phase phase, int64_t bytes)
{
    for (int w = 0; w < LG_MAX_WIDTHS; w++) {
        facts->phases[phase].workspace_bytes[w] = bytes;
    }
}

#endif
