#include "graph/reduce_parts.h"

#include <string.h>

/* Boundaries of segments are multiples of this from the chunk's begin: a small chunk is added up by one replica, with few
   messages. */
#define SEGMENT_GRAIN_BYTES 4096
/* Smaller pieces are packed: a copy of so much takes less time than a message of its own. */
#define LARGE_PIECE_BYTES 32768
/* Parts of staging begin at multiples of this. */
#define ALIGNMENT_BYTES 64

static int64_t align_up(int64_t bytes)
{
    return (bytes + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
}

/* Where the segment of `replica` begins, from the chunk's begin. The last segment takes what is left. */
static int64_t segment_begin(const lgi_reduce_chunk *chunk, int replica)
{
    const int64_t num_bytes = chunk->end_bytes - chunk->begin_bytes;
    if (replica >= chunk->num_replicas) {
        return num_bytes;
    }
    const int64_t whole = num_bytes / chunk->num_replicas * replica;
    const int64_t rest = num_bytes % chunk->num_replicas * replica / chunk->num_replicas;
    return (whole + rest) / SEGMENT_GRAIN_BYTES * SEGMENT_GRAIN_BYTES;
}

static void place_pieces(lgi_reduce_segment *segment, const lgi_reduce_piece *pieces,
                         int num_pieces, bool is_large)
{
    for (int i = 0; i < num_pieces; i++) {
        if ((pieces[i].num_bytes >= LARGE_PIECE_BYTES) == is_large) {
            lgi_reduce_piece *const piece = &segment->pieces[segment->num_pieces++];
            *piece = pieces[i];
            piece->image_bytes = segment->num_bytes;
            segment->num_bytes += piece->num_bytes;
            segment->num_large += is_large ? 1 : 0;
        }
    }
}

void lgi_reduce_segment_init(lgi_reduce_segment *out, const lgi_reduce_chunk *chunk, int replica)
{
    const int64_t begin = chunk->begin_bytes + segment_begin(chunk, replica);
    const int64_t end = chunk->begin_bytes + segment_begin(chunk, replica + 1);
    lgi_reduce_piece pieces[LGI_MAX_REDUCE_PIECES];
    int num_pieces = 0;
    int64_t tensor_begin = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < chunk->num_tensors; i++) {
        const int64_t tensor_end = tensor_begin + chunk->tensor_bytes[i];
        const int64_t from = begin > tensor_begin ? begin : tensor_begin;
        const int64_t to = end < tensor_end ? end : tensor_end;
        if (from < to) {
            const lgi_reduce_piece piece = {
                .tensor = i, .offset_bytes = from - tensor_begin, .num_bytes = to - from};
            pieces[num_pieces++] = piece;
        }
        tensor_begin = tensor_end;
    }
    place_pieces(out, pieces, num_pieces, true);
    out->num_bytes = align_up(out->num_bytes);
    out->packed_bytes = out->num_bytes;
    place_pieces(out, pieces, num_pieces, false);
    if (replica == chunk->num_replicas - 1 && chunk->stat_bytes > 0) {
        out->num_bytes = align_up(out->num_bytes);
        out->stat_offset_bytes = out->num_bytes;
        out->stat_bytes = chunk->stat_bytes;
        out->num_bytes += chunk->stat_bytes;
    }
}

int lgi_reduce_num_messages(const lgi_reduce_segment *segment)
{
    return segment->num_large + (segment->num_bytes > segment->packed_bytes ? 1 : 0);
}

int64_t lgi_reduce_staging(const lgi_reduce_chunk *chunk, int own, int64_t *image_stride_bytes,
                           int64_t *packed)
{
    lgi_reduce_segment segment;
    lgi_reduce_segment_init(&segment, chunk, own);
    const int64_t stride = align_up(segment.num_bytes);
    int64_t top = stride * (chunk->num_replicas - 1);
    for (int replica = 0; replica < chunk->num_replicas; replica++) {
        lgi_reduce_segment_init(&segment, chunk, replica);
        if (packed != NULL) {
            packed[replica] = top;
        }
        top += align_up(segment.num_bytes - segment.packed_bytes);
    }
    if (image_stride_bytes != NULL) {
        *image_stride_bytes = stride;
    }
    return top;
}
