/*
 * Bytes read in order from memory that holds either the bytes themselves or a gzip file of them.
 *
 * Source of the format: RFC 1952 (gzip), several members one after another included; inflated by zlib.
 */
#ifndef LGI_DATA_BYTE_SOURCE_H
#define LGI_DATA_BYTE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zlib.h>

#include "leapgrad/status.h"

typedef struct lgi_byte_source {
    const char *name; /* for messages */
    const uint8_t *data;
    size_t num_bytes;
    size_t position; /* plain: next byte */
    bool is_gzip;
    bool is_at_end; /* gzip: all members read */
    z_stream stream;
} lgi_byte_source;

/* Lifetime: `name` and `data` must outlive the source. Close it also after a failure. */
LG_NODISCARD lg_status lgi_byte_source_open(lgi_byte_source *source, const char *name,
                                            const void *data, size_t num_bytes);
void lgi_byte_source_close(lgi_byte_source *source);

/* Reads up to `num_bytes`; fewer only at the end. CORRUPT if the gzip data is damaged. */
LG_NODISCARD lg_status lgi_byte_source_read(lgi_byte_source *source, void *out, size_t num_bytes,
                                            size_t *out_read);

/*
 * The most bytes that can come in all: what is there, or for gzip what deflate can pack into so many bytes at best.
 */
size_t lgi_byte_source_max_bytes(const lgi_byte_source *source);

#endif
