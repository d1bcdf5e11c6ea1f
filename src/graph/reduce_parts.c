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

static void place(lgi_reduce_segment *segment, const lgi_reduce_piece *piece)
{
    lgi_reduce_piece *const placed = &segment->pieces[segment->num_pieces++];
    *placed = *piece;
    placed->image_bytes = segment->num_bytes;
    segment->num_bytes += piece->num_bytes;
}

/* The large ones first, as many as may have a message of their own; what is left is packed. */
static void place_pieces(lgi_reduce_segment *segment, const lgi_reduce_piece *pieces,
                         int num_pieces)
{
    bool is_large[LGI_MAX_REDUCE_TENSORS] = {false};
    for (int i = 0; i < num_pieces && segment->num_large < LGI_MAX_LARGE_PIECES; i++) {
        is_large[i] = pieces[i].num_bytes >= LARGE_PIECE_BYTES;
        if (is_large[i]) {
            place(segment, &pieces[i]);
            segment->num_large++;
        }
    }
    segment->num_bytes = align_up(segment->num_bytes);
    segment->packed_bytes = segment->num_bytes;
    for (int i = 0; i < num_pieces; i++) {
        if (!is_large[i]) {
            place(segment, &pieces[i]);
        }
    }
    segment->packed_grad_bytes = segment->num_bytes - segment->packed_bytes;
}

void lgi_reduce_segment_init(lgi_reduce_segment *out, const lgi_reduce_chunk *chunk, int replica,
                             lgi_reduce_piece *pieces)
{
    const int64_t begin = chunk->begin_bytes + segment_begin(chunk, replica);
    const int64_t end = chunk->begin_bytes + segment_begin(chunk, replica + 1);
    lgi_reduce_piece in_order[LGI_MAX_REDUCE_TENSORS];
    int num_pieces = 0;
    int64_t tensor_begin = 0;
    memset(out, 0, sizeof *out);
    out->pieces = pieces;
    for (int i = 0; i < chunk->num_tensors; i++) {
        const int64_t tensor_end = tensor_begin + chunk->tensor_bytes[i];
        const int64_t from = begin > tensor_begin ? begin : tensor_begin;
        const int64_t to = end < tensor_end ? end : tensor_end;
        if (from < to) {
            const lgi_reduce_piece piece = {
                .tensor = i, .offset_bytes = from - tensor_begin, .num_bytes = to - from};
            in_order[num_pieces++] = piece;
        }
        tensor_begin = tensor_end;
    }
    place_pieces(out, in_order, num_pieces);
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
    lgi_reduce_piece pieces[LGI_MAX_REDUCE_TENSORS];
    lgi_reduce_segment_init(&segment, chunk, own, pieces);
    const int64_t stride = align_up(segment.num_bytes);
    int64_t top = stride * (chunk->num_replicas - 1);
    for (int replica = 0; replica < chunk->num_replicas; replica++) {
        lgi_reduce_segment_init(&segment, chunk, replica, pieces);
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
