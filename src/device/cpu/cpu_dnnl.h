/*
 * oneDNN primitives as this backend uses them. All calls into oneDNN go through this file's functions, cpu_conv.c,
 * cpu_matmul.c and cpu_reorder.c, so that another major version is a local change.
 *
 * A primitive is made for one width: oneDNN decides at creation how the work is shared out, from the OpenMP thread count
 * of the calling thread. Its scratchpad is the caller's. One primitive may run on several threads at once: each run takes
 * one of its argument sets.
 */
#ifndef LGI_DEVICE_CPU_DNNL_H
#define LGI_DEVICE_CPU_DNNL_H

#include <dnnl.h>

#include "base/check.h"
#include "device/cpu/cpu_device.h"

/* Status and message of a oneDNN call; `what` names the layer or tensor. */
lg_status lgi_cpu_dnnl_fail(dnnl_status_t code, const char *call, const char *what);

/* Returns from the calling function if a oneDNN call failed. */
#define LG_DNNL(expr, what) \
    do { \
        const dnnl_status_t lgi_dnnl_status = (expr); \
        if (lgi_dnnl_status != dnnl_success) { \
            return lgi_cpu_dnnl_fail(lgi_dnnl_status, #expr, (what)); \
        } \
    } while (0)

/* Sets the calling thread's OpenMP thread count; returns the one before. */
int lgi_cpu_set_threads(int width);

#define LGI_CPU_MAX_ARGS 5

typedef struct lgi_cpu_primitive lgi_cpu_primitive;

/*
 * Makes a primitive from its descriptor, which it takes over (also on failure). `args`: the DNNL_ARG_... that a run gets
 * pointers for, in this order. To be called with the thread count of `width` set.
 */
lg_status lgi_cpu_primitive_create(lgi_cpu_primitive **out, lgi_cpu_device *device,
                                   dnnl_primitive_desc_t desc, int width, const int *args,
                                   int num_args, const char *what);
void lgi_cpu_primitive_destroy(lgi_cpu_primitive *primitive);

/* Bytes of scratchpad that a run needs. */
int64_t lgi_cpu_primitive_scratch_bytes(const lgi_cpu_primitive *primitive);

/* Runs it on the calling thread and width - 1 others. `pointers` as `args` above. */
lg_status lgi_cpu_primitive_run(const lgi_cpu_primitive *primitive, const void *const *pointers,
                                void *scratch);

/* A copy from one layout into another: arguments source, destination; never needs a scratchpad. */
lg_status lgi_cpu_reorder_primitive_create(lgi_cpu_primitive **out, lgi_cpu_device *device,
                                           const dnnl_memory_desc_t *from,
                                           const dnnl_memory_desc_t *to, int width,
                                           const char *what);

/* The implementation's name, "ref:any" and the like. */
const char *lgi_cpu_desc_name(const_dnnl_primitive_desc_t desc);

/*
 * The first implementation of an operation, in oneDNN's order, that none of the prefixes in `avoid` (NULL-terminated)
 * begins; else the first of all. NOT_SUPPORTED if there is none. The scratchpad is the user's.
 */
lg_status lgi_cpu_desc_create(dnnl_primitive_desc_t *out, const lgi_cpu_device *device,
                              const_dnnl_op_desc_t op, const_dnnl_primitive_desc_t hint,
                              const char *const *avoid, const char *what);

/* --- layouts (cpu_layout.c) ---------------------------------------------------------------------------------------- */

/* The id of a weights layout, new if it has not been seen. `groups`: of the convolution; 1: dims without groups. */
lg_status lgi_cpu_layout_intern(lgi_cpu_device *device, const dnnl_memory_desc_t *desc,
                                int64_t groups, int *out_id);

/* The groups that a layout's dimensions carry; 1: none. */
int64_t lgi_cpu_layout_groups(const lgi_cpu_device *device, int id);

/* oneDNN's description of a tensor of `shape` in layout `id`; `groups` as above, splits the first dimension. */
lg_status lgi_cpu_layout_desc(const lgi_cpu_device *device, int id, int64_t groups,
                              const lg_shape *shape, dnnl_memory_desc_t *out);

#endif
