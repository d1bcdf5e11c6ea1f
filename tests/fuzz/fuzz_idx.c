/*
 * Fuzzes the IDX parser. Input: one byte of options, two bytes (big-endian) with the size of the labels file, the labels
 * file, the images file.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "leapgrad/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    const lg_idx_opts opts = {.num_classes = data[0] & 15, .height = data[0] >> 4};
    const uint8_t *files = data + 3;
    const size_t files_bytes = size - 3;
    const size_t wanted = (size_t)data[1] << 8 | data[2];
    const size_t labels_bytes = wanted < files_bytes ? wanted : files_bytes;
    lg_dataset *dataset = NULL;
    const lg_status status = lg_dataset_parse_idx(
        &dataset, files + labels_bytes, files_bytes - labels_bytes, files, labels_bytes, &opts);
    if ((status == LG_OK) != (dataset != NULL)) {
        abort();
    }
    if (dataset != NULL) {
        const int num_classes = lg_dataset_num_classes(dataset);
        for (int64_t i = 0; i < lg_dataset_num_samples(dataset); i++) {
            const int32_t label = lg_dataset_label(dataset, i);
            if (label < 0 || label >= num_classes) {
                abort();
            }
        }
    }
    lg_dataset_destroy(dataset);
    return 0;
}
