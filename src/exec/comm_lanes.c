#include "exec/comm_lanes.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"

struct lane {
    const struct lgi_bound_lane *bound;
    int next;          /* entry */
    bool is_under_way; /* its messages are posted */
    uint64_t start_ns;
    lgi_message *messages; /* for the SEND or RECV with most values */
    lgi_reduce *reduce;    /* NULL: the lane has none */
};

struct lgi_comm_lanes {
    lg_comm *comm;
    const lgi_program *program;
    int64_t lane_step;
    int num_lanes;
    struct lane *lanes;
};

/* --- making ------------------------------------------------------------------------------------------------------------ */

static lg_status init_lane(struct lane *lane, const lgi_comm_lanes *lanes,
                           const struct lgi_bound_lane *bound)
{
    const lg_graph *const graph = lanes->program->lowered->graph;
    int max_messages = 0;
    lane->bound = bound;
    for (int i = 0; i < bound->num_entries; i++) {
        const lg_op_info *const op = lg_graph_op(graph, bound->entries[i].op);
        if (op->kind == LG_OP_ALL_REDUCE && lane->reduce == NULL) {
            LG_TRY(lgi_reduce_create(&lane->reduce, lanes->comm, lanes->program->lowered->device,
                                     lg_graph_num_replicas(graph)));
        }
        if (op->kind != LG_OP_ALL_REDUCE) {
            max_messages = op->num_operands > max_messages ? op->num_operands : max_messages;
        }
    }
    return lgi_calloc(&lane->messages, (size_t)max_messages, sizeof *lane->messages);
}

lg_status lgi_comm_lanes_create(lgi_comm_lanes **out, lg_comm *comm, const lgi_program *program)
{
    lg_status status = LG_OK;
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    lgi_comm_lanes *const lanes = *out;
    lanes->comm = comm;
    lanes->program = program;
    LG_TRY_GOTO(lgi_calloc(&lanes->lanes, (size_t)program->num_comm_lanes, sizeof *lanes->lanes));
    lanes->num_lanes = program->num_comm_lanes;
    for (int i = 0; i < lanes->num_lanes; i++) {
        LG_TRY_GOTO(init_lane(&lanes->lanes[i], lanes, &program->comm_lanes[i]));
    }
out:
    if (status != LG_OK) {
        lgi_comm_lanes_destroy(lanes);
        *out = NULL;
    }
    return status;
}

void lgi_comm_lanes_destroy(lgi_comm_lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    for (int i = 0; i < lanes->num_lanes; i++) {
        lgi_free(lanes->lanes[i].messages);
        lgi_reduce_destroy(lanes->lanes[i].reduce);
    }
    lgi_free(lanes->lanes);
    lgi_free(lanes);
}

void lgi_comm_lanes_start(lgi_comm_lanes *lanes, int64_t lane_step)
{
    lanes->lane_step = lane_step;
    for (int i = 0; i < lanes->num_lanes; i++) {
        lanes->lanes[i].next = 0;
        lanes->lanes[i].is_under_way = false;
    }
}

/* --- one op ------------------------------------------------------------------------------------------------------------ */

static void post_values(lgi_comm_lanes *lanes, struct lane *lane, const lg_op_info *op,
                        void *const *pointers)
{
    for (int i = 0; i < op->num_operands; i++) {
        lgi_message *const message = &lane->messages[i];
        memset(message, 0, sizeof *message);
        message->is_send = op->kind == LG_OP_SEND;
        message->peer = op->peer;
        message->channel = LGI_CHANNEL_PLAN;
        message->data = pointers[i];
        message->num_bytes =
            lg_graph_value(lanes->program->lowered->graph, op->operands[i].value)->bytes;
        lgi_comm_post(lanes->comm, message);
    }
}

static void start_reduce(lgi_comm_lanes *lanes, struct lane *lane, int op_idx,
                         void *const *pointers)
{
    const lgi_program *const program = lanes->program;
    const lg_graph *const graph = program->lowered->graph;
    const lg_op_info *const op = lg_graph_op(graph, op_idx);
    const int stride = lg_graph_num_pipeline_ranks(graph);
    lgi_reduce_job job;
    int64_t all_bytes = 0;
    memset(&job, 0, sizeof job);
    for (int i = 0; i < op->num_operands; i++) {
        const int64_t num_bytes = lg_graph_value(graph, op->operands[i].value)->bytes;
        if (op->operands[i].role == LG_ROLE_STAT_SUM) {
            job.stats[job.num_stats] = pointers[i];
            job.stat_bytes[job.num_stats++] = num_bytes;
            job.chunk.stat_bytes += num_bytes;
            continue;
        }
        job.tensors[job.chunk.num_tensors] = pointers[i];
        job.chunk.tensor_bytes[job.chunk.num_tensors++] = num_bytes;
        all_bytes += num_bytes;
    }
    job.chunk.begin_bytes = lgi_graph_chunk_bytes(graph, all_bytes) * op->chunk;
    job.chunk.end_bytes =
        job.chunk.begin_bytes + op->message_bytes - job.chunk.stat_bytes; /* the last may be less */
    job.chunk.num_replicas = lg_graph_num_replicas(graph);
    job.own = program->rank / stride;
    job.first_rank = program->rank % stride;
    job.rank_stride = stride;
    job.staging = program->plan->workspace_offset_bytes[op_idx] >= 0
                      ? program->arena + program->plan->workspace_offset_bytes[op_idx]
                      : NULL;
    lgi_reduce_start(lane->reduce, &job);
}

static void start_op(lgi_comm_lanes *lanes, struct lane *lane, int op_idx, int64_t step)
{
    const lg_op_info *const op = lg_graph_op(lanes->program->lowered->graph, op_idx);
    void *const *const pointers = lgi_program_op(lanes->program, op_idx)->pointers[step & 1];
    lane->start_ns = lgi_clock_ns();
    if (op->kind == LG_OP_ALL_REDUCE) {
        start_reduce(lanes, lane, op_idx, pointers);
    } else {
        post_values(lanes, lane, op, pointers);
    }
}

static lgi_progress advance_op(const lgi_comm_lanes *lanes, struct lane *lane, int op_idx)
{
    const lg_op_info *const op = lg_graph_op(lanes->program->lowered->graph, op_idx);
    if (op->kind == LG_OP_ALL_REDUCE) {
        return lgi_reduce_advance(lane->reduce);
    }
    for (int i = 0; i < op->num_operands; i++) {
        if (!lgi_message_is_done(&lane->messages[i])) {
            return LGI_PROGRESS_WAITS;
        }
    }
    return LGI_PROGRESS_DONE;
}

/* --- lanes -------------------------------------------------------------------------------------------------------------- */

static bool has_all_events(const lgi_comm_lanes *lanes, const struct lane *lane)
{
    const struct lgi_bound_lane *const bound = lane->bound;
    for (int i = bound->first_wait[lane->next]; i < bound->first_wait[lane->next + 1]; i++) {
        const lgi_wait *const wait = &bound->waits[i];
        if (atomic_load_explicit(&lanes->program->done[wait->op], memory_order_acquire) <
            lanes->lane_step - wait->distance) {
            return false;
        }
    }
    return true;
}

/* *has_moved: some entry ended. */
static lgi_progress advance_lane(lgi_comm_lanes *lanes, struct lane *lane,
                                 const lgi_comm_hooks *hooks, bool *has_moved)
{
    while (lane->next < lane->bound->num_entries) {
        const lg_plan_entry *const entry = &lane->bound->entries[lane->next];
        const int64_t step = lanes->lane_step - entry->lag;
        if (!lane->is_under_way) {
            if (!has_all_events(lanes, lane)) {
                return LGI_PROGRESS_WAITS;
            }
            lane->start_ns = 0;
            if (hooks->starts(hooks->user, entry->op, step)) {
                start_op(lanes, lane, entry->op, step);
                lane->is_under_way = true;
            }
        }
        if (lane->is_under_way) {
            const lgi_progress progress = advance_op(lanes, lane, entry->op);
            if (progress != LGI_PROGRESS_DONE) {
                return progress;
            }
        }
        lane->is_under_way = false;
        lane->next++;
        *has_moved = true;
        hooks->ended(hooks->user, entry->op, step, lane->start_ns);
    }
    return LGI_PROGRESS_DONE;
}

lgi_progress lgi_comm_lanes_advance(lgi_comm_lanes *lanes, const lgi_comm_hooks *hooks)
{
    bool has_moved = true;
    lgi_progress progress = LGI_PROGRESS_DONE;
    while (has_moved) { /* lanes wait for each other, too */
        has_moved = false;
        progress = LGI_PROGRESS_DONE;
        for (int i = 0; i < lanes->num_lanes; i++) {
            const lgi_progress of_lane = advance_lane(lanes, &lanes->lanes[i], hooks, &has_moved);
            const bool is_less = of_lane == LGI_PROGRESS_MORE ||
                                 (of_lane == LGI_PROGRESS_WAITS && progress == LGI_PROGRESS_DONE);
            progress = is_less ? of_lane : progress;
        }
    }
    return progress;
}

bool lgi_comm_lanes_wait_for(const lgi_comm_lanes *lanes, int *op, int *rank)
{
    for (int i = 0; i < lanes->num_lanes; i++) {
        const struct lane *const lane = &lanes->lanes[i];
        if (lane->is_under_way) {
            *op = lane->bound->entries[lane->next].op;
            const lg_op_info *const info = lg_graph_op(lanes->program->lowered->graph, *op);
            *rank =
                info->kind == LG_OP_ALL_REDUCE ? lgi_reduce_waits_for(lane->reduce) : info->peer;
            return true;
        }
    }
    return false;
}
