/* Text files: each byte is a token. */
#include "base/alloc.h"
#include "base/check.h"
#include "data/data_file.h"
#include "data/dataset.h"

#define BYTE_VOCAB_SIZE 256

lg_status lg_dataset_open_text(lg_dataset **out, const char *path)
{
    const lg_shape scalar = {0};
    void *text = NULL;
    size_t num_bytes = 0;
    *out = NULL;
    LG_TRY(lgi_data_file_read(&text, &num_bytes, path));
    if (num_bytes == 0) {
        lgi_free(text);
        LG_FAIL(LG_INVALID_ARG, "'%s' is empty, expected a text", path);
    }
    return lgi_dataset_adopt(out, path, LG_DATASET_TEXT, LG_DTYPE_U8, &scalar, (int64_t)num_bytes,
                             BYTE_VOCAB_SIZE, text, NULL);
}
