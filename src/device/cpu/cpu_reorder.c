/* Copies between layouts, by oneDNN. */
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_dnnl.h"

struct lgi_device_reorder {
    int num_widths;
    lgi_cpu_primitive *primitives[LG_MAX_WIDTHS];
};

static lg_status fill_reorder(lgi_device_reorder *reorder, lgi_cpu_device *device,
                              const lg_shape *shape, int from_layout, int to_layout,
                              const int *widths)
{
    const int64_t from_groups = lgi_cpu_layout_groups(device, from_layout);
    const int64_t to_groups = lgi_cpu_layout_groups(device, to_layout);
    const int64_t groups = from_groups > to_groups ? from_groups : to_groups;
    dnnl_memory_desc_t from;
    dnnl_memory_desc_t to;
    LG_TRY(lgi_cpu_layout_desc(device, from_layout, groups, shape, &from));
    LG_TRY(lgi_cpu_layout_desc(device, to_layout, groups, shape, &to));
    for (int w = 0; w < reorder->num_widths; w++) {
        const int before = lgi_cpu_set_threads(widths[w]);
        const lg_status status = lgi_cpu_reorder_primitive_create(&reorder->primitives[w], device,
                                                                  &from, &to, widths[w], "reorder");
        (void)lgi_cpu_set_threads(before);
        LG_TRY(status);
    }
    return LG_OK;
}

lg_status lgi_cpu_reorder_create(lgi_device *device, const lg_shape *shape, int from_layout,
                                 int to_layout, int num_widths, const int *widths,
                                 lgi_device_reorder **out)
{
    lgi_device_reorder *reorder = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&reorder, 1, sizeof *reorder));
    reorder->num_widths = num_widths;
    const lg_status status =
        fill_reorder(reorder, (lgi_cpu_device *)device, shape, from_layout, to_layout, widths);
    if (status != LG_OK) {
        lgi_cpu_reorder_destroy(reorder);
        return status;
    }
    *out = reorder;
    return LG_OK;
}

void lgi_cpu_reorder_destroy(lgi_device_reorder *reorder)
{
    if (reorder == NULL) {
        return;
    }
    for (int w = 0; w < reorder->num_widths; w++) {
        lgi_cpu_primitive_destroy(reorder->primitives[w]);
    }
    lgi_free(reorder);
}

lg_status lgi_cpu_reorder_run(lgi_device_reorder *reorder, int width_idx, void *dst,
                              const void *src)
{
    const void *const pointers[] = {src, dst};
    return lgi_cpu_primitive_run(reorder->primitives[width_idx], pointers, NULL);
}
