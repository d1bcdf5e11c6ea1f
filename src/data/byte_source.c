/* Plain or gzip'd bytes in memory, read in order. zlib's memory comes from the library's allocator. */
#include "data/byte_source.h"

#include <limits.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

#define GZIP_WINDOW_BITS (15 + 16) /* zlib: largest window, gzip wrapper */
/* Deflate packs at best 258 bytes into 2 bits (zlib's technical notes: 1032 to 1). */
#define MAX_INFLATE_RATIO 1032

static voidpf allocate(voidpf opaque, uInt count, uInt item_bytes)
{
    (void)opaque;
    void *memory = NULL;
    return lgi_calloc(&memory, count, item_bytes) == LG_OK ? memory : Z_NULL;
}

static void release(voidpf opaque, voidpf memory)
{
    (void)opaque;
    lgi_free(memory);
}

static bool is_gzip(const uint8_t *data, size_t num_bytes)
{
    return num_bytes >= 2 && data[0] == 0x1f && data[1] == 0x8b;
}

lg_status lgi_byte_source_open(lgi_byte_source *source, const char *name, const void *data,
                               size_t num_bytes)
{
    memset(source, 0, sizeof *source);
    source->name = name;
    source->data = data;
    source->num_bytes = num_bytes;
    if (!is_gzip(data, num_bytes)) {
        return LG_OK;
    }
    source->stream.zalloc = allocate;
    source->stream.zfree = release;
    const int result = inflateInit2(&source->stream, GZIP_WINDOW_BITS);
    if (result == Z_MEM_ERROR) {
        LG_FAIL(LG_OUT_OF_MEMORY, "'%s': out of memory while unpacking", name);
    }
    if (result != Z_OK) {
        LG_FAIL(LG_INTERNAL, "'%s': zlib does not start (%d)", name, result);
    }
    source->is_gzip = true;
    return LG_OK;
}

void lgi_byte_source_close(lgi_byte_source *source)
{
    if (source->is_gzip) {
        (void)inflateEnd(&source->stream);
        source->is_gzip = false;
    }
}

/* At the end of a member: goes on with the next one, if there is one. */
static lg_status end_member(lgi_byte_source *source)
{
    const size_t rest = source->num_bytes - source->position;
    const uint8_t *next = source->data + source->position;
    if (rest == 0) {
        source->is_at_end = true;
        return LG_OK;
    }
    if (!is_gzip(next, rest)) {
        LG_FAIL(LG_CORRUPT, "'%s': %zu bytes follow the end of the gzip data", source->name, rest);
    }
    if (inflateReset(&source->stream) != Z_OK) {
        LG_FAIL(LG_INTERNAL, "'%s': zlib does not start again", source->name);
    }
    return LG_OK;
}

static lg_status read_gzip(lgi_byte_source *source, uint8_t *out, size_t num_bytes,
                           size_t *out_read)
{
    z_stream *stream = &source->stream;
    size_t num_read = 0;
    while (num_read < num_bytes && !source->is_at_end) {
        const size_t in_bytes = source->num_bytes - source->position;
        const size_t out_bytes = num_bytes - num_read;
        const uInt in_given = in_bytes < UINT_MAX ? (uInt)in_bytes : UINT_MAX;
        const uInt out_given = out_bytes < UINT_MAX ? (uInt)out_bytes : UINT_MAX;
        stream->next_in = (z_const Bytef *)(uintptr_t)(source->data + source->position);
        stream->avail_in = in_given;
        stream->next_out = out + num_read;
        stream->avail_out = out_given;
        const int result = inflate(stream, Z_NO_FLUSH);
        const uInt consumed = in_given - stream->avail_in;
        const uInt produced = out_given - stream->avail_out;
        source->position += consumed;
        num_read += produced;
        if (result == Z_STREAM_END) {
            LG_TRY(end_member(source));
        } else if (result == Z_MEM_ERROR) {
            LG_FAIL(LG_OUT_OF_MEMORY, "'%s': out of memory while unpacking", source->name);
        } else if (result == Z_BUF_ERROR || (result == Z_OK && consumed == 0 && produced == 0)) {
            LG_FAIL(LG_CORRUPT, "'%s': the gzip data ends early, after %zu bytes", source->name,
                    source->num_bytes);
        } else if (result != Z_OK) {
            LG_FAIL(LG_CORRUPT, "'%s': the gzip data is damaged near byte %zu (%s)", source->name,
                    source->position, stream->msg != NULL ? stream->msg : "no reason given");
        }
    }
    *out_read = num_read;
    return LG_OK;
}

lg_status lgi_byte_source_read(lgi_byte_source *source, void *out, size_t num_bytes,
                               size_t *out_read)
{
    *out_read = 0;
    if (source->is_gzip) {
        return read_gzip(source, out, num_bytes, out_read);
    }
    const size_t rest = source->num_bytes - source->position;
    const size_t take = num_bytes < rest ? num_bytes : rest;
    if (take > 0) {
        memcpy(out, source->data + source->position, take);
    }
    source->position += take;
    *out_read = take;
    return LG_OK;
}

size_t lgi_byte_source_max_bytes(const lgi_byte_source *source)
{
    size_t max_bytes = source->num_bytes;
    if (source->is_gzip && __builtin_mul_overflow(max_bytes, MAX_INFLATE_RATIO, &max_bytes)) {
        max_bytes = SIZE_MAX;
    }
    return max_bytes;
}
