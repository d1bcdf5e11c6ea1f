/*
 * Tensor files from the inside: the header as a table, and what the checkpoint directory adds to a file (checksums).
 *
 * Safetensors: u64 header length n (little-endian), n bytes of JSON, then the tensors' bytes without a gap. Source:
 * https://huggingface.co/docs/safetensors (format).
 */
#ifndef LGI_CHECKPOINT_SAFETENSORS_H
#define LGI_CHECKPOINT_SAFETENSORS_H

#include <jansson.h>

#include "leapgrad/checkpoint.h"

/* A hostile header must not make us allocate much: parsed JSON takes up to some 40 times its text. */
#define LGI_MAX_HEADER_BYTES ((int64_t)8 << 20)

/* A checked header. Names and metadata belong to `json`. */
typedef struct lgi_tensor_header {
    json_t *json;
    int num_tensors;
    lg_tensor_info *tensors; /* in the order of their bytes */
    int *by_name;            /* indices of `tensors`, sorted by name */
} lgi_tensor_header;

/*
 * Parses and checks a header (the JSON part) of a file with `data_bytes` bytes of tensors. `where` names the file in
 * messages. The header must be deinitialised after success only.
 */
LG_NODISCARD lg_status lgi_tensor_header_parse(lgi_tensor_header *out, const char *where,
                                               const char *text, size_t text_bytes,
                                               int64_t data_bytes);
void lgi_tensor_header_deinit(lgi_tensor_header *header);
/* Index of the tensor called `name`, or -1. */
int lgi_tensor_header_find(const lgi_tensor_header *header, const char *name);

/* Checksums (XXH3-64, seed 0) of a file just written. */
typedef struct lgi_tensor_sums {
    int64_t file_bytes;
    uint64_t file_sum;
    json_t *tensor_sums; /* object: tensor name -> hexadecimal text; owned by whoever asked */
} lgi_tensor_sums;

/* lg_tensor_writer_save() that tells the checksums; `sums` may be NULL. */
LG_NODISCARD lg_status lgi_tensor_writer_save(const lg_tensor_writer *writer, const char *path,
                                              lgi_tensor_sums *sums);

/*
 * Holds the whole file against size and sum, and each of its tensors' names against `tensor_sums` (an object as above;
 * borrowed: must outlive the file, later reads are checked by it).
 */
LG_NODISCARD lg_status lgi_tensor_file_verify(lg_tensor_file *file, int64_t file_bytes,
                                              uint64_t file_sum, const json_t *tensor_sums);

#define LGI_SUM_CHARS 17
/* 16 hexadecimal digits, and back; false if `text` is not that. */
void lgi_sum_format(uint64_t sum, char text[LGI_SUM_CHARS]);
bool lgi_sum_parse(uint64_t *out, const char *text);

#endif
