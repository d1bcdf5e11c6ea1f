#include "exec/reduce.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

/* Large pieces, and one message for what is packed. */
#define MAX_MESSAGES (LGI_MAX_LARGE_PIECES + 1)
/* Adds up so many bytes of the sum before other lanes get their turn. */
#define SLICE_BYTES (512 << 10)

typedef enum phase { PHASE_NONE, PHASE_PARTS, PHASE_SUM, PHASE_SUMS, PHASE_DONE } phase;

/* Another replica: its part of our segment, and our part of its. */
struct peer {
    lgi_message of_own[MAX_MESSAGES];
    lgi_message of_its[MAX_MESSAGES];
    lgi_reduce_segment segment; /* its own */
    char *packed;               /* what is packed of it */
    phase phase;                /* of its segment: our part leaves, then the sum comes */
};

struct lgi_reduce {
    lg_comm *comm;
    lgi_device *device;
    lgi_reduce_job job;
    int64_t image_stride_bytes;
    int64_t *packed_offsets;  /* by replica */
    struct peer *peers;       /* by replica; its own place is for its own segment */
    lgi_reduce_piece *pieces; /* of all segments */
    const void **sources;     /* by replica */
    phase phase;              /* of the own segment */
    int run; /* that is being added up: a large piece, or behind them all that is packed */
    int64_t run_bytes; /* of it that are done */
};

lg_status lgi_reduce_create(lgi_reduce **out, lg_comm *comm, lgi_device *device, int num_replicas)
{
    lg_status status = LG_OK;
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    lgi_reduce *self = *out;
    self->comm = comm;
    self->device = device;
    LG_TRY_GOTO(lgi_calloc(&self->peers, (size_t)num_replicas, sizeof *self->peers));
    LG_TRY_GOTO(lgi_calloc(&self->pieces, (size_t)num_replicas + LGI_MAX_REDUCE_TENSORS,
                           sizeof *self->pieces));
    LG_TRY_GOTO(lgi_calloc(&self->sources, (size_t)num_replicas, sizeof *self->sources));
    LG_TRY_GOTO(
        lgi_calloc(&self->packed_offsets, (size_t)num_replicas, sizeof *self->packed_offsets));
out:
    if (status != LG_OK) {
        lgi_reduce_destroy(self);
        *out = NULL;
    }
    return status;
}

void lgi_reduce_destroy(lgi_reduce *reduce)
{
    if (reduce != NULL) {
        lgi_free(reduce->peers);
        lgi_free(reduce->pieces);
        lgi_free(reduce->sources);
        lgi_free(reduce->packed_offsets);
        lgi_free(reduce);
    }
}

/* --- where things lie ------------------------------------------------------------------------------------------------- */

static int rank_of(const lgi_reduce *self, int replica)
{
    return self->job.first_rank + self->job.rank_stride * replica;
}

/* Of the own segment: where the part of another replica comes. */
static char *image_of(const lgi_reduce *self, int replica)
{
    return self->job.staging +
           self->image_stride_bytes * (replica < self->job.own ? replica : replica - 1);
}

static char *in_tensor(const lgi_reduce *self, const lgi_reduce_piece *piece)
{
    return self->job.tensors[piece->tensor] + piece->offset_bytes;
}

/* The piece in the tensors or, for a small one, where it is packed. */
static char *in_place(const lgi_reduce *self, const struct peer *peer, int piece)
{
    const lgi_reduce_segment *const segment = &peer->segment;
    return piece < segment->num_large
               ? in_tensor(self, &segment->pieces[piece])
               : peer->packed + (segment->pieces[piece].image_bytes - segment->packed_bytes);
}

/* Of the own segment: where large piece `run` (num_large: all that is packed) of replica `replica` lies; the sum comes where
   replica 0's is. */
static char *own_run(const lgi_reduce *self, int replica, int run)
{
    const struct peer *const own = &self->peers[self->job.own];
    const lgi_reduce_segment *const segment = &own->segment;
    const bool is_large = run < segment->num_large;
    if (replica != self->job.own) {
        return image_of(self, replica) +
               (is_large ? segment->pieces[run].image_bytes : segment->packed_bytes);
    }
    return is_large ? in_tensor(self, &segment->pieces[run]) : own->packed;
}

static int64_t size_of_run(const lgi_reduce_segment *segment, int run)
{
    return run < segment->num_large ? segment->pieces[run].num_bytes : segment->packed_grad_bytes;
}

static double *own_stat(const lgi_reduce *self, int replica)
{
    const struct peer *const own = &self->peers[self->job.own];
    char *const at =
        replica == self->job.own
            ? own->packed + (own->segment.stat_offset_bytes - own->segment.packed_bytes)
            : image_of(self, replica) + own->segment.stat_offset_bytes;
    return (double *)(void *)at;
}

static void pack(const lgi_reduce *self, const struct peer *peer)
{
    const lgi_reduce_segment *const segment = &peer->segment;
    for (int i = segment->num_large; i < segment->num_pieces; i++) {
        memcpy(in_place(self, peer, i), in_tensor(self, &segment->pieces[i]),
               (size_t)segment->pieces[i].num_bytes);
    }
    char *stats = peer->packed + (segment->stat_offset_bytes - segment->packed_bytes);
    for (int i = 0; segment->stat_bytes > 0 && i < self->job.num_stats; i++) {
        memcpy(stats, self->job.stats[i], (size_t)self->job.stat_bytes[i]);
        stats += self->job.stat_bytes[i];
    }
}

static void unpack(const lgi_reduce *self, const struct peer *peer)
{
    const lgi_reduce_segment *const segment = &peer->segment;
    for (int i = segment->num_large; i < segment->num_pieces; i++) {
        memcpy(in_tensor(self, &segment->pieces[i]), in_place(self, peer, i),
               (size_t)segment->pieces[i].num_bytes);
    }
    const char *stats = peer->packed + (segment->stat_offset_bytes - segment->packed_bytes);
    for (int i = 0; segment->stat_bytes > 0 && i < self->job.num_stats; i++) {
        memcpy(self->job.stats[i], stats, (size_t)self->job.stat_bytes[i]);
        stats += self->job.stat_bytes[i];
    }
}

/* --- messages ----------------------------------------------------------------------------------------------------------- */

static void post(lgi_reduce *self, lgi_message *message, bool is_send, int replica, void *data,
                 int64_t num_bytes)
{
    memset(message, 0, sizeof *message);
    message->is_send = is_send;
    message->peer = rank_of(self, replica);
    message->channel = LGI_CHANNEL_REDUCE;
    message->data = data;
    message->num_bytes = num_bytes;
    lgi_comm_post(self->comm, message);
}

static int64_t packed_size(const lgi_reduce_segment *segment)
{
    return segment->num_bytes - segment->packed_bytes;
}

/* Of another replica's segment: our part leaves, or the sum comes. */
static void post_its(lgi_reduce *self, int replica, bool is_send)
{
    struct peer *const peer = &self->peers[replica];
    const lgi_reduce_segment *const segment = &peer->segment;
    for (int i = 0; i < segment->num_large; i++) {
        post(self, &peer->of_its[i], is_send, replica, in_place(self, peer, i),
             segment->pieces[i].num_bytes);
    }
    if (packed_size(segment) > 0) {
        post(self, &peer->of_its[segment->num_large], is_send, replica, peer->packed,
             packed_size(segment));
    }
}

/* Of the own segment: the part of another replica comes, or the sum leaves to it. */
static void post_own(lgi_reduce *self, int replica, bool is_send)
{
    struct peer *const peer = &self->peers[replica];
    const struct peer *const own = &self->peers[self->job.own];
    const lgi_reduce_segment *const segment = &own->segment;
    const int from = is_send ? 0 : replica;
    for (int i = 0; i < segment->num_large; i++) {
        post(self, &peer->of_own[i], is_send, replica, own_run(self, from, i),
             segment->pieces[i].num_bytes);
    }
    if (packed_size(segment) > 0) {
        post(self, &peer->of_own[segment->num_large], is_send, replica,
             own_run(self, from, segment->num_large), packed_size(segment));
    }
}

static bool are_done(const lgi_message *messages, int num_messages)
{
    for (int i = 0; i < num_messages; i++) {
        if (!lgi_message_is_done(&messages[i])) {
            return false;
        }
    }
    return true;
}

static bool is_own_done(const lgi_reduce *self)
{
    const int num = lgi_reduce_num_messages(&self->peers[self->job.own].segment);
    for (int replica = 0; replica < self->job.chunk.num_replicas; replica++) {
        if (replica != self->job.own && !are_done(self->peers[replica].of_own, num)) {
            return false;
        }
    }
    return true;
}

/* --- the sum ------------------------------------------------------------------------------------------------------------- */

static void add_stats(lgi_reduce *self)
{
    const lgi_reduce_segment *const segment = &self->peers[self->job.own].segment;
    double *const sum = own_stat(self, 0);
    for (int64_t i = 0; i < segment->stat_bytes / (int64_t)sizeof(double); i++) {
        for (int replica = 1; replica < self->job.chunk.num_replicas; replica++) {
            sum[i] += own_stat(self, replica)[i];
        }
    }
}

/* The sums lie where replica 0's part does; the own tensors get them too. */
static void keep_sums(lgi_reduce *self)
{
    struct peer *const own = &self->peers[self->job.own];
    for (int i = 0; i < own->segment.num_large && self->job.own != 0; i++) {
        memcpy(in_tensor(self, &own->segment.pieces[i]), own_run(self, 0, i),
               (size_t)own->segment.pieces[i].num_bytes);
    }
    if (self->job.own != 0 && packed_size(&own->segment) > 0) {
        memcpy(own->packed, own_run(self, 0, own->segment.num_large),
               (size_t)packed_size(&own->segment));
    }
    unpack(self, own);
}

/* One slice. Returns whether it was the last one. */
static bool add_slice(lgi_reduce *self)
{
    const lgi_reduce_segment *const segment = &self->peers[self->job.own].segment;
    const int64_t left = size_of_run(segment, self->run) - self->run_bytes;
    const int64_t num_bytes = left < SLICE_BYTES ? left : SLICE_BYTES;
    for (int replica = 0; replica < self->job.chunk.num_replicas; replica++) {
        self->sources[replica] = own_run(self, replica, self->run) + self->run_bytes;
    }
    if (num_bytes > 0) {
        self->device->ops->grad_add(self->device, 1, num_bytes,
                                    own_run(self, 0, self->run) + self->run_bytes, self->sources,
                                    self->job.chunk.num_replicas);
    }
    self->run_bytes += num_bytes;
    if (num_bytes < left) {
        return false;
    }
    if (self->run < segment->num_large) {
        self->run++;
        self->run_bytes = 0;
        return false;
    }
    add_stats(self);
    return true;
}

/* --- the whole ------------------------------------------------------------------------------------------------------------ */

void lgi_reduce_start(lgi_reduce *self, const lgi_reduce_job *job)
{
    const int num_replicas = job->chunk.num_replicas;
    self->job = *job;
    lgi_reduce_piece *pieces = self->pieces;
    self->run = 0;
    self->run_bytes = 0;
    (void)lgi_reduce_staging(&job->chunk, job->own, &self->image_stride_bytes,
                             self->packed_offsets);
    for (int replica = 0; replica < num_replicas; replica++) {
        struct peer *const peer = &self->peers[replica];
        lgi_reduce_segment_init(&peer->segment, &job->chunk, replica, pieces);
        pieces += peer->segment.num_pieces;
        peer->packed = job->staging + self->packed_offsets[replica];
        pack(self, peer);
    }
    self->phase = self->peers[job->own].segment.num_bytes > 0 ? PHASE_PARTS : PHASE_DONE;
    for (int i = 1; i < num_replicas; i++) { /* each begins with another one */
        const int replica = (job->own + i) % num_replicas;
        struct peer *const peer = &self->peers[replica];
        if (self->phase == PHASE_PARTS) {
            post_own(self, replica, false);
        }
        peer->phase = peer->segment.num_bytes > 0 ? PHASE_PARTS : PHASE_DONE;
        if (peer->phase == PHASE_PARTS) {
            post_its(self, replica, true);
        }
    }
}

static void advance_its(lgi_reduce *self, int replica)
{
    struct peer *const peer = &self->peers[replica];
    const int num = lgi_reduce_num_messages(&peer->segment);
    if (peer->phase == PHASE_PARTS && are_done(peer->of_its, num)) {
        post_its(self, replica, false);
        peer->phase = PHASE_SUMS;
    }
    if (peer->phase == PHASE_SUMS && are_done(peer->of_its, num)) {
        unpack(self, peer);
        peer->phase = PHASE_DONE;
    }
}

static void advance_own(lgi_reduce *self)
{
    if (self->phase == PHASE_PARTS && is_own_done(self)) {
        self->phase = PHASE_SUM;
    }
    if (self->phase == PHASE_SUM && add_slice(self)) {
        for (int i = 1; i < self->job.chunk.num_replicas; i++) {
            post_own(self, (self->job.own + i) % self->job.chunk.num_replicas, true);
        }
        keep_sums(self);
        self->phase = PHASE_SUMS;
    }
    if (self->phase == PHASE_SUMS && is_own_done(self)) {
        self->phase = PHASE_DONE;
    }
}

lgi_progress lgi_reduce_advance(lgi_reduce *self)
{
    bool is_done = true;
    advance_own(self);
    for (int replica = 0; replica < self->job.chunk.num_replicas; replica++) {
        if (replica != self->job.own) {
            advance_its(self, replica);
            is_done = is_done && self->peers[replica].phase == PHASE_DONE;
        }
    }
    if (self->phase == PHASE_SUM) {
        return LGI_PROGRESS_MORE;
    }
    return is_done && self->phase == PHASE_DONE ? LGI_PROGRESS_DONE : LGI_PROGRESS_WAITS;
}

int lgi_reduce_waits_for(const lgi_reduce *self)
{
    const int num_own = lgi_reduce_num_messages(&self->peers[self->job.own].segment);
    for (int replica = 0; replica < self->job.chunk.num_replicas; replica++) {
        const struct peer *const peer = &self->peers[replica];
        const bool is_own_under_way = self->phase == PHASE_PARTS || self->phase == PHASE_SUMS;
        if (replica != self->job.own &&
            (peer->phase != PHASE_DONE || (is_own_under_way && !are_done(peer->of_own, num_own)))) {
            return rank_of(self, replica);
        }
    }
    return -1;
}
