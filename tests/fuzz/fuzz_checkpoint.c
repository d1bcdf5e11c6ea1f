/*
 * libFuzzer target: the safetensors header and the manifest from memory. The first byte chooses the parser; what is
 * accepted must keep the promises that readers rely on.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

static void check_header(const lgi_tensor_header *header, int64_t data_bytes)
{
    int64_t end = 0;
    for (int i = 0; i < header->num_tensors; i++) {
        const lg_tensor_info *const tensor = &header->tensors[i];
        const int64_t elem_bytes = (int64_t)lg_file_dtype_bytes(tensor->dtype);
        if (tensor->offset_bytes != end ||
            tensor->num_bytes != lg_shape_num_elems(&tensor->shape) * elem_bytes ||
            lgi_tensor_header_find(header, tensor->name) != i) {
            abort();
        }
        end += tensor->num_bytes;
    }
    if (end != data_bytes) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes)
{
    if (num_bytes < 1) {
        return 0;
    }
    const char *const text = (const char *)data + 1;
    if (data[0] % 2 == 0) {
        /* The bytes of data that the file claims to have: few, so that a fit is found. */
        const int64_t data_bytes = data[0] / 2;
        lgi_tensor_header header;
        if (lgi_tensor_header_parse(&header, "fuzz", text, num_bytes - 1, data_bytes) == LG_OK) {
            check_header(&header, data_bytes);
            lgi_tensor_header_deinit(&header);
        }
    } else {
        lgi_manifest manifest;
        if (lgi_manifest_parse(&manifest, "fuzz", text, num_bytes - 1) == LG_OK) {
            if (!manifest.model.is_present || manifest.info.step < 0) {
                abort();
            }
            lgi_manifest_deinit(&manifest);
        }
    }
    return 0;
}
