/*
 * Collects the arcs lane by lane: an arc from an entry at or before one that an earlier entry of the lane already waits
 * for, in the same lane, says nothing new.
 */
#include "plan/plan_arcs.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

typedef struct collector {
    lgi_arcs *out;
    const lg_plan *plan;
    const lg_graph *graph;
    int *edge_begin; /* by op: the edges into it */
    int *sync_begin; /* by op: sync_order[sync_begin[op] ..) are indices of syncs into it */
    int *sync_order;
    int *num_seen; /* by lane: entries of it that the lane at hand is already ordered after */
} collector;

static lg_status index_inputs(collector *self)
{
    const size_t num_ops = (size_t)self->plan->num_ops;
    const lg_edge *const edges = lg_graph_edges(self->graph);
    const int num_edges = lg_graph_num_edges(self->graph);
    LG_TRY(lgi_calloc(&self->edge_begin, num_ops + 1, sizeof(int)));
    LG_TRY(lgi_calloc(&self->sync_begin, num_ops + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&self->sync_order, (size_t)self->plan->num_syncs, sizeof(int)));
    int edge = 0;
    for (size_t op = 0; op < num_ops; op++) {
        while (edge < num_edges && edges[edge].to == (int)op) {
            edge++;
        }
        self->edge_begin[op + 1] = edge;
    }
    for (int i = 0; i < self->plan->num_syncs; i++) {
        self->sync_begin[self->plan->syncs[i].to + 2]++;
    }
    for (size_t op = 0; op < num_ops; op++) {
        self->sync_begin[op + 2] += self->sync_begin[op + 1];
    }
    for (int i = 0; i < self->plan->num_syncs; i++) {
        self->sync_order[self->sync_begin[self->plan->syncs[i].to + 1]++] = i;
    }
    return LG_OK;
}

/* `delta`: iterations between the two runs. */
static lg_status add_constraint(collector *self, const char *what, int from, int to, int distance,
                                int delta)
{
    lgi_arcs *const out = self->out;
    const lg_op_info *const from_info = lg_graph_op(self->graph, from);
    const lg_op_info *const to_info = lg_graph_op(self->graph, to);
    if (from_info->rank != to_info->rank) {
        if (from_info->group >= 0 && from_info->group == to_info->group && delta == 0) {
            return LG_OK;
        }
        LG_FAIL(LG_INVALID_ARG, "%s '%s' -> '%s' goes from rank %d to rank %d without a message",
                what, from_info->name, to_info->name, from_info->rank, to_info->rank);
    }
    if (delta < 0) {
        LG_FAIL(LG_INVALID_ARG,
                "%s '%s' -> '%s' (distance %d) is broken: lag %d of '%s' puts it after '%s' with "
                "lag %d",
                what, from_info->name, to_info->name, distance, out->lag[from], from_info->name,
                to_info->name, out->lag[to]);
    }
    if (delta > 0) {
        return LG_OK;
    }
    const int from_lane = out->lane[from];
    if (from_lane == out->lane[to]) {
        if (out->pos[from] >= out->pos[to]) {
            LG_FAIL(LG_INVALID_ARG,
                    "%s '%s' -> '%s' (distance %d) is broken: lane %d has '%s' at %d, not before "
                    "'%s' at %d",
                    what, from_info->name, to_info->name, distance, from_lane, from_info->name,
                    out->pos[from], to_info->name, out->pos[to]);
        }
        return LG_OK;
    }
    if (out->pos[from] < self->num_seen[from_lane]) {
        return LG_OK;
    }
    self->num_seen[from_lane] = out->pos[from] + 1;
    out->items[out->num_items++] = (lgi_arc){from, to};
    out->num_in[to]++;
    return LG_OK;
}

static lg_status collect_lane(collector *self, const lg_lane *lane)
{
    lgi_arcs *const out = self->out;
    const lg_edge *const edges = lg_graph_edges(self->graph);
    memset(self->num_seen, 0, (size_t)self->plan->num_lanes * sizeof *self->num_seen);
    for (int pos = 0; pos < lane->num_entries; pos++) {
        const int op = lane->entries[pos].op;
        for (int i = self->edge_begin[op]; i < self->edge_begin[op + 1]; i++) {
            const lg_edge *const edge = &edges[i];
            const int delta = lgi_edge_delta(edge->distance, out->lag[edge->from], out->lag[op]);
            LG_TRY(add_constraint(self, "edge", edge->from, op, edge->distance, delta));
        }
        for (int i = self->sync_begin[op]; i < self->sync_begin[op + 1]; i++) {
            const lg_plan_sync *const sync = &self->plan->syncs[self->sync_order[i]];
            LG_TRY(add_constraint(self, "sync", sync->from, op, sync->distance, sync->distance));
        }
    }
    return LG_OK;
}

static lg_status group_by_source(lgi_arcs *out)
{
    LG_TRY(lgi_calloc(&out->out_begin, (size_t)out->num_ops + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&out->out_to, (size_t)out->num_items, sizeof(int)));
    for (int i = 0; i < out->num_items; i++) {
        out->out_begin[out->items[i].from + 2]++;
    }
    for (int op = 0; op < out->num_ops; op++) {
        out->out_begin[op + 2] += out->out_begin[op + 1];
    }
    for (int i = 0; i < out->num_items; i++) {
        out->out_to[out->out_begin[out->items[i].from + 1]++] = out->items[i].to;
    }
    return LG_OK;
}

static lg_status fill_places(lgi_arcs *out, const lg_plan *plan)
{
    const size_t num_ops = (size_t)plan->num_ops;
    int *num_of_rank = NULL;
    LG_TRY(lgi_calloc(&out->lane, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&out->pos, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&out->lag, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&out->num_in, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&out->local_lane, (size_t)plan->num_lanes, sizeof(int)));
    LG_TRY(lgi_calloc(&num_of_rank, (size_t)plan->num_ranks, sizeof(int)));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        const lg_lane *const info = &plan->lanes[lane];
        out->local_lane[lane] = num_of_rank[info->rank]++;
        out->stride = num_of_rank[info->rank] > out->stride ? num_of_rank[info->rank] : out->stride;
        for (int pos = 0; pos < info->num_entries; pos++) {
            const int op = info->entries[pos].op;
            out->lane[op] = lane;
            out->pos[op] = pos;
            out->lag[op] = info->entries[pos].lag;
        }
    }
    lgi_free(num_of_rank);
    return LG_OK;
}

lg_status lgi_arcs_init(lgi_arcs *out, const lgi_groups *groups, const lg_plan *plan,
                        const lg_graph *graph)
{
    lg_status status = LG_OK;
    collector self = {.out = out, .plan = plan, .graph = graph};
    const size_t max_arcs = (size_t)lg_graph_num_edges(graph) + (size_t)plan->num_syncs;
    *out = (lgi_arcs){.num_ops = plan->num_ops};
    LG_TRY_GOTO(fill_places(out, plan));
    LG_TRY_GOTO(lgi_groups_check_lags(groups, graph, out->lag));
    LG_TRY_GOTO(lgi_calloc(&out->items, max_arcs, sizeof *out->items));
    LG_TRY_GOTO(lgi_calloc(&self.num_seen, (size_t)plan->num_lanes, sizeof(int)));
    LG_TRY_GOTO(index_inputs(&self));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        LG_TRY_GOTO(collect_lane(&self, &plan->lanes[lane]));
    }
    LG_TRY_GOTO(group_by_source(out));
out:
    lgi_free(self.edge_begin);
    lgi_free(self.sync_begin);
    lgi_free(self.sync_order);
    lgi_free(self.num_seen);
    if (status != LG_OK) {
        lgi_arcs_deinit(out);
    }
    return status;
}

void lgi_arcs_deinit(lgi_arcs *arcs)
{
    lgi_free(arcs->lane);
    lgi_free(arcs->pos);
    lgi_free(arcs->lag);
    lgi_free(arcs->items);
    lgi_free(arcs->num_in);
    lgi_free(arcs->out_begin);
    lgi_free(arcs->out_to);
    lgi_free(arcs->local_lane);
    *arcs = (lgi_arcs){0};
}
