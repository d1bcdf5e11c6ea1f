/* The manifest of a checkpoint: what belongs to it, with checksums, and its own checksum in its last line. */
#ifndef LGI_CHECKPOINT_MANIFEST_H
#define LGI_CHECKPOINT_MANIFEST_H

#include "checkpoint/safetensors.h"

#define LGI_MANIFEST_NAME "manifest.json"
#define LGI_MODEL_NAME "model.safetensors"
#define LGI_OPTIMIZER_NAME "optimizer.safetensors"
#define LGI_MANIFEST_VERSION 1
#define LGI_MAX_MANIFEST_BYTES ((size_t)8 << 20)

/* What the manifest says of one file. `tensor_sums` belongs to the manifest. */
typedef struct lgi_manifest_file {
    bool is_present;
    int64_t num_bytes;
    uint64_t sum;
    const json_t *tensor_sums; /* object: name -> hexadecimal text, each checked to be that */
} lgi_manifest_file;

typedef struct lgi_manifest {
    json_t *json;
    char *recipe_text;
    char *extra_text;
    lg_checkpoint_info info; /* pointers into the above */
    lgi_manifest_file model;
    lgi_manifest_file optimizer;
} lgi_manifest;

/* Parses and checks; `where` names the file in messages. Deinitialise after success only. */
LG_NODISCARD lg_status lgi_manifest_parse(lgi_manifest *out, const char *where, const char *text,
                                          size_t text_bytes);
void lgi_manifest_deinit(lgi_manifest *manifest);

/* The manifest's text. `optimizer` NULL: none. Ownership of *out_text: the caller's, lgi_free(). */
LG_NODISCARD lg_status lgi_manifest_format(char **out_text, const lg_checkpoint_info *info,
                                           const lgi_tensor_sums *model,
                                           const lgi_tensor_sums *optimizer);

#endif
