/*
 * How a chunk of gradients is reduced over replicas: what the graph's builder counts staging memory by, and what the
 * executor does.
 *
 * The gradients of a layer, or of a few neighbouring layers that share messages, are laid end to end, and a chunk is a
 * range of these bytes. It is cut into one segment for each
 * replica, which gets the others' parts of its segment, adds them in the order of replicas and sends the sum back: so each
 * element is added in the same order, whatever the chunks. A segment covers pieces of one or more tensors. Large pieces travel
 * from and to where they lie; the others of a segment, with the statistics, are packed into one message.
 *
 * A segment's image is its pieces one after another: the large ones, then the packed ones, then the statistics.
 */
#ifndef LGI_GRAPH_REDUCE_PARTS_H
#define LGI_GRAPH_REDUCE_PARTS_H

#include "leapgrad/graph.h"

/* So many tensors are reduced together at most. */
#define LGI_MAX_REDUCE_TENSORS 64
/* Pieces of a segment that have a message of their own. */
#define LGI_MAX_LARGE_PIECES 4

/* What a chunk covers. */
typedef struct lgi_reduce_chunk {
    int num_tensors;
    int64_t tensor_bytes[LGI_MAX_REDUCE_TENSORS]; /* of the whole tensors */
    int64_t begin_bytes;                          /* of the chunk, in the tensors laid end to end */
    int64_t end_bytes;
    int64_t stat_bytes; /* statistics that travel along, of all layers; 0: none */
    int num_replicas;
} lgi_reduce_chunk;

/* A piece of a tensor. */
typedef struct lgi_reduce_piece {
    int tensor;
    int64_t offset_bytes; /* in the tensor */
    int64_t num_bytes;
    int64_t image_bytes; /* offset in the segment's image */
} lgi_reduce_piece;

/* What one replica adds up. */
typedef struct lgi_reduce_segment {
    int num_pieces; /* the large ones first */
    int num_large;
    lgi_reduce_piece *pieces;
    int64_t
        packed_bytes; /* offset of what is packed, in the image; also the alignment's loss stands before it */
    int64_t packed_grad_bytes; /* of the packed pieces, which lie one right behind the other */
    int64_t stat_offset_bytes; /* of the statistics in the image */
    int64_t stat_bytes;        /* 0: they are in another segment */
    int64_t num_bytes;         /* of the image; 0: nothing to add */
} lgi_reduce_segment;

/*
 * The segment of replica `replica`. `pieces`: room for its pieces, num_tensors at most; all segments of a chunk together
 * have fewer than num_tensors + num_replicas.
 */
void lgi_reduce_segment_init(lgi_reduce_segment *out, const lgi_reduce_chunk *chunk, int replica,
                             lgi_reduce_piece *pieces);

/* Messages that a segment takes, one way. */
int lgi_reduce_num_messages(const lgi_reduce_segment *segment);

/*
 * Staging memory of replica `own`: an image of its segment for each other replica, then what is packed of each segment.
 * *images_bytes: of one image with alignment. *packed: NULL, or by replica the offset of what is packed of its segment.
 */
int64_t lgi_reduce_staging(const lgi_reduce_chunk *chunk, int own, int64_t *image_stride_bytes,
                           int64_t *packed);

#endif
