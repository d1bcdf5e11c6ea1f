/* Preparing layers and reorders of the reference backend: everything stays row-major, so there is little to decide. */
#include "device/reference/reference_layer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

void lgi_reference_layer_destroy(lgi_device_layer *layer)
{
    lgi_reference_layer *self = (lgi_reference_layer *)layer;
    if (self != NULL) {
        lgi_free(self->name);
        lgi_free(self->in_shapes);
        lgi_free(self->in_dtypes);
        lgi_free(self);
    }
}

static lg_status copy_spec(lgi_reference_layer *layer, const lgi_layer_spec *spec)
{
    const lg_layer_info *info = spec->layer;
    const size_t num_inputs = (size_t)info->num_inputs;
    layer->kind = info->kind;
    layer->attrs = info->attrs;
    layer->mode = spec->mode;
    layer->num_samples = spec->num_samples;
    layer->num_inputs = info->num_inputs;
    layer->out_shape = info->out_shape;
    layer->out_dtype = info->out_dtype;
    layer->random_key = spec->random_key;
    LG_TRY(lgi_strdup(&layer->name, info->name));
    LG_TRY(lgi_calloc(&layer->in_shapes, num_inputs, sizeof *layer->in_shapes));
    LG_TRY(lgi_calloc(&layer->in_dtypes, num_inputs, sizeof *layer->in_dtypes));
    for (size_t i = 0; i < num_inputs; i++) {
        layer->in_shapes[i] = spec->in_shapes[i];
        layer->in_dtypes[i] = spec->in_dtypes[i];
    }
    for (int p = 0; p < info->num_params; p++) {
        layer->param_shapes[p] = spec->param_shapes[p];
    }
    return LG_OK;
}

lg_status lgi_reference_layer_create(lgi_device *device, const lgi_layer_spec *spec,
                                     lgi_layer_facts *facts, lgi_device_layer **out)
{
    lgi_reference_layer *layer = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&layer, 1, sizeof *layer));
    layer->base.ops = device->ops;
    const lg_status status = copy_spec(layer, spec);
    if (status != LG_OK) {
        lgi_reference_layer_destroy(&layer->base);
        return status;
    }
    lgi_layer_facts_natural(facts, spec, device->ops->real_bytes);
    *out = &layer->base;
    return LG_OK;
}

lg_status lgi_reference_reorder_create(lgi_device *device, const lg_shape *shape, int from_layout,
                                       int to_layout, int num_widths, const int *widths,
                                       lgi_device_reorder **out)
{
    (void)num_widths;
    (void)widths;
    *out = NULL;
    if (from_layout != 0 || to_layout != 0) {
        LG_FAIL(LG_NOT_SUPPORTED,
                "device '%s': no reorder from layout %d to layout %d, only 0 to 0",
                device->ops->name, from_layout, to_layout);
    }
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    (*out)->bytes = lg_shape_num_elems(shape) * (int64_t)device->ops->real_bytes;
    return LG_OK;
}

void lgi_reference_reorder_destroy(lgi_device_reorder *reorder)
{
    lgi_free(reorder);
}

lg_status lgi_reference_reorder_run(lgi_device_reorder *reorder, int width_idx, void *dst,
                                    const void *src)
{
    (void)width_idx;
    memmove(dst, src, (size_t)reorder->bytes);
    return LG_OK;
}
