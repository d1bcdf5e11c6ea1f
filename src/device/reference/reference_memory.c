/* Device and memory of the reference backend: host memory, page-aligned, zeroed, counted. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "device/reference/reference_layer.h"

#define PAGE_BYTES 4096

lg_status lgi_reference_open(lgi_device **out, const struct lgi_device_ops *ops)
{
    lgi_reference_device *device = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&device, 1, sizeof *device));
    device->base.ops = ops;
    *out = &device->base;
    return LG_OK;
}

void lgi_reference_close(lgi_device *device)
{
    lgi_free(device);
}

lg_status lgi_reference_alloc(lgi_device *device, void **out, int64_t bytes)
{
    lgi_reference_device *self = (lgi_reference_device *)device;
    *out = NULL;
    if (bytes < 0 || (uint64_t)bytes > SIZE_MAX - PAGE_BYTES ||
        lgi_alloc_aligned(out, (size_t)bytes, PAGE_BYTES) != LG_OK) {
        LG_FAIL(LG_OUT_OF_MEMORY,
                "device '%s': cannot allocate %" PRId64 " bytes (%" PRId64 " bytes are in use)",
                device->ops->name, bytes, self->current_bytes);
    }
    memset(*out, 0, (size_t)bytes);
    self->current_bytes += bytes;
    if (self->current_bytes > self->peak_bytes) {
        self->peak_bytes = self->current_bytes;
    }
    return LG_OK;
}

void lgi_reference_free(lgi_device *device, void *memory, int64_t bytes)
{
    if (memory != NULL) {
        ((lgi_reference_device *)device)->current_bytes -= bytes;
        lgi_free(memory);
    }
}

int64_t lgi_reference_peak_bytes(const lgi_device *device)
{
    return ((const lgi_reference_device *)device)->peak_bytes;
}
