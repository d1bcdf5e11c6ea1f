/*
 * Vector clocks over the lanes: how many entries of each lane end before an op starts. Filled in along a topological order
 * of one iteration (Kahn's algorithm), a group being one node. A node's clock over the lanes of all ranks lives only
 * from the first node before it to the last one after it; what is kept of it is the part of the node's own rank. What is
 * left over when nothing is ready any more is a deadlock; walking backwards through it finds a cycle to name.
 *
 * Source: Fidge 1988 and Mattern 1989 (vector time), with lanes as processes.
 */
#include "plan/plan_order.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

/* --- deadlocks ---------------------------------------------------------------------------------------------------- */

/* Arcs by where they lead: in[begin[op] .. begin[op + 1]) are where they come from. */
typedef struct inputs {
    int *begin;
    int *from;
} inputs;

static lg_status inputs_init(inputs *out, const lgi_arcs *arcs)
{
    LG_TRY(lgi_calloc(&out->begin, (size_t)arcs->num_ops + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&out->from, (size_t)arcs->num_items, sizeof(int)));
    for (int i = 0; i < arcs->num_items; i++) {
        out->begin[arcs->items[i].to + 2]++;
    }
    for (int op = 0; op < arcs->num_ops; op++) {
        out->begin[op + 2] += out->begin[op + 1];
    }
    for (int i = 0; i < arcs->num_items; i++) {
        out->from[out->begin[arcs->items[i].to + 1]++] = arcs->items[i].from;
    }
    return LG_OK;
}

typedef struct walker {
    const lgi_order *order;
    const lgi_groups *groups;
    const lg_plan *plan;
    const lg_graph *graph;
    inputs in;
} walker;

/* What `op` alone waits for and that never ran, or -1. */
static int stuck_input(const walker *self, int op)
{
    const lgi_order *const order = self->order;
    for (int i = self->in.begin[op]; i < self->in.begin[op + 1]; i++) {
        if (order->linear[self->in.from[i]] < 0) {
            return self->in.from[i];
        }
    }
    if (order->pos[op] > 0) {
        const int from = self->plan->lanes[order->lane[op]].entries[order->pos[op] - 1].op;
        return order->linear[from] < 0 ? from : -1;
    }
    return -1;
}

/* The same for the op's whole group; `*member` is the one that waits. */
static int stuck_predecessor(const walker *self, int op, int *member)
{
    const int group = lg_graph_op(self->graph, op)->group;
    *member = op;
    int from = stuck_input(self, op);
    for (int i = group < 0 ? 0 : self->groups->begin[group];
         group >= 0 && i < self->groups->begin[group + 1] && from < 0; i++) {
        *member = self->groups->ops[i];
        from = stuck_input(self, *member);
    }
    return from;
}

static int describe(const walker *self, char *text, size_t size, int op, const char *before)
{
    const lgi_order *const order = self->order;
    const char *const name = lg_graph_op(self->graph, op)->name;
    if (self->plan->num_ranks > 1) {
        return snprintf(text, size, "%s'%s' (rank %d, lane %d)", before, name, order->rank[op],
                        order->lane[op]);
    }
    return snprintf(text, size, "%s'%s' (lane %d)", before, name, order->lane[op]);
}

/* Adds to a text of limited size; false once it is full. */
static bool append(const walker *self, char *text, size_t size, size_t *used, int op,
                   const char *before)
{
    const int written = describe(self, text + *used, size - *used, op, before);
    if (written < 0 || (size_t)written >= size - *used) {
        text[*used] = '\0';
        return false;
    }
    *used += (size_t)written;
    return true;
}

static lg_status fail_deadlock(walker *self, const lgi_arcs *arcs)
{
    LG_TRY(inputs_init(&self->in, arcs));
    int member = 0;
    int op = 0;
    while (self->order->linear[op] >= 0) {
        op++;
    }
    /* After as many steps back as there are ops the walk is on a cycle. */
    for (int i = 0; i < self->order->num_ops; i++) {
        op = stuck_predecessor(self, op, &member);
    }
    char text[900];
    size_t used = 0;
    const int first_node = lgi_groups_node(self->groups, self->graph, op);
    int at = op;
    bool fits = append(self, text, sizeof text - 8, &used, at, "");
    do {
        const int next = stuck_predecessor(self, at, &member);
        if (fits && member != at) {
            fits = append(self, text, sizeof text - 8, &used, member, " meets ");
        }
        fits = fits && append(self, text, sizeof text - 8, &used, next, " waits for ");
        at = next;
    } while (fits && lgi_groups_node(self->groups, self->graph, at) != first_node);
    if (fits && at != op) {
        fits = append(self, text, sizeof text - 8, &used, op, " meets ");
    }
    LG_FAIL(LG_INVALID_ARG, "deadlock: %s%s", text, fits ? "" : " ...");
}

/* --- clocks -------------------------------------------------------------------------------------------------------- */

/* Clocks over all lanes, for the nodes that are under way. */
typedef struct clock_pool {
    size_t num_lanes;
    int *rows;
    size_t num_rows, capacity;
    int *free_rows;
    size_t num_free, free_capacity;
    int *row_of; /* by op (the node's): its row, or -1 */
} clock_pool;

/* Joins the clock in row `from` into that of node `to`. */
static lg_status join_clock(clock_pool *pool, int to, int from)
{
    const size_t num_lanes = pool->num_lanes;
    int row = pool->row_of[to];
    if (row >= 0) {
        int *const clock = pool->rows + (size_t)row * num_lanes;
        const int *const other = pool->rows + (size_t)from * num_lanes;
        for (size_t lane = 0; lane < num_lanes; lane++) {
            clock[lane] = other[lane] > clock[lane] ? other[lane] : clock[lane];
        }
        return LG_OK;
    }
    if (pool->num_free > 0) {
        row = pool->free_rows[--pool->num_free];
    } else {
        row = (int)pool->num_rows;
        LG_TRY(lgi_grow(&pool->rows, &pool->capacity, pool->num_rows + 1,
                        (num_lanes > 0 ? num_lanes : 1) * sizeof *pool->rows));
        pool->num_rows++;
    }
    pool->row_of[to] = row;
    int *const clock = pool->rows + (size_t)row * num_lanes;
    if (from >= 0) {
        memcpy(clock, pool->rows + (size_t)from * num_lanes, num_lanes * sizeof *clock);
    } else {
        memset(clock, 0, num_lanes * sizeof *clock);
    }
    return LG_OK;
}

static lg_status release_row(clock_pool *pool, int node)
{
    LG_TRY(lgi_grow(&pool->free_rows, &pool->free_capacity, pool->num_free + 1,
                    sizeof *pool->free_rows));
    pool->free_rows[pool->num_free++] = pool->row_of[node];
    pool->row_of[node] = -1;
    return LG_OK;
}

typedef struct filler {
    lgi_order *order;
    const lgi_groups *groups;
    const lg_plan *plan;
    const lg_graph *graph;
    const lgi_arcs *arcs;
    clock_pool pool;
    int *lane_begin; /* by rank: rank_lanes[lane_begin[r] ..) are its lanes by local number */
    int *rank_lanes;
    int *num_waits; /* by node */
    int *ready;
    int num_ready;
} filler;

static lg_status filler_init(filler *self)
{
    const lgi_order *const order = self->order;
    const size_t num_ops = (size_t)order->num_ops;
    const size_t num_ranks = (size_t)self->plan->num_ranks;
    self->pool.num_lanes = (size_t)order->num_lanes;
    LG_TRY(lgi_calloc(&self->lane_begin, num_ranks + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&self->rank_lanes, (size_t)order->num_lanes, sizeof(int)));
    LG_TRY(lgi_calloc(&self->num_waits, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->ready, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->pool.row_of, num_ops, sizeof(int)));
    for (int lane = 0; lane < order->num_lanes; lane++) {
        self->lane_begin[self->plan->lanes[lane].rank + 2]++;
    }
    for (size_t rank = 0; rank < num_ranks; rank++) {
        self->lane_begin[rank + 2] += self->lane_begin[rank + 1];
    }
    for (int lane = 0; lane < order->num_lanes; lane++) {
        self->rank_lanes[self->lane_begin[self->plan->lanes[lane].rank + 1]++] = lane;
    }
    for (int op = 0; op < order->num_ops; op++) {
        order->linear[op] = -1;
        self->pool.row_of[op] = -1;
        self->num_waits[lgi_groups_node(self->groups, self->graph, op)] +=
            self->arcs->num_in[op] + (order->pos[op] > 0 ? 1 : 0);
    }
    for (int op = 0; op < order->num_ops; op++) {
        if (lgi_groups_node(self->groups, self->graph, op) == op && self->num_waits[op] == 0) {
            self->ready[self->num_ready++] = op;
        }
    }
    return LG_OK;
}

static void filler_deinit(filler *self)
{
    lgi_free(self->lane_begin);
    lgi_free(self->rank_lanes);
    lgi_free(self->num_waits);
    lgi_free(self->ready);
    lgi_free(self->pool.rows);
    lgi_free(self->pool.free_rows);
    lgi_free(self->pool.row_of);
}

/* `to` need not wait for the node with the clock in `row` any longer. */
static lg_status pass_on(filler *self, int row, int to)
{
    const int node = lgi_groups_node(self->groups, self->graph, to);
    LG_TRY(join_clock(&self->pool, node, row));
    if (--self->num_waits[node] == 0) {
        self->ready[self->num_ready++] = node;
    }
    return LG_OK;
}

/* Keeps the node's clocks and passes on its own. */
static lg_status run_node(filler *self, int node, const int *members, int num_members,
                          int *num_done)
{
    lgi_order *const order = self->order;
    if (self->pool.row_of[node] < 0) {
        LG_TRY(join_clock(&self->pool, node, -1));
    }
    const int row = self->pool.row_of[node];
    int *const clock = self->pool.rows + (size_t)row * self->pool.num_lanes;
    for (int i = 0; i < num_members; i++) {
        const int op = members[i];
        const int *const lanes = self->rank_lanes + self->lane_begin[order->rank[op]];
        const int num = self->lane_begin[order->rank[op] + 1] - self->lane_begin[order->rank[op]];
        int *const kept = order->clock + (size_t)op * (size_t)order->stride;
        order->linear[op] = (*num_done)++;
        for (int k = 0; k < num; k++) {
            kept[k] = clock[lanes[k]];
        }
    }
    for (int i = 0; i < num_members; i++) {
        clock[order->lane[members[i]]] = order->pos[members[i]] + 1;
    }
    for (int i = 0; i < num_members; i++) {
        const int op = members[i];
        const lg_lane *const lane = &self->plan->lanes[order->lane[op]];
        if (order->pos[op] + 1 < lane->num_entries) {
            LG_TRY(pass_on(self, row, lane->entries[order->pos[op] + 1].op));
        }
        for (int k = self->arcs->out_begin[op]; k < self->arcs->out_begin[op + 1]; k++) {
            LG_TRY(pass_on(self, row, self->arcs->out_to[k]));
        }
    }
    return release_row(&self->pool, node);
}

static lg_status fill_clocks(lgi_order *order, const lgi_groups *groups, const lg_plan *plan,
                             const lg_graph *graph, const lgi_arcs *arcs)
{
    lg_status status = LG_OK;
    filler self = {.order = order, .groups = groups, .plan = plan, .graph = graph, .arcs = arcs};
    int num_done = 0;
    LG_TRY_GOTO(filler_init(&self));
    for (int i = 0; i < self.num_ready; i++) {
        const int node = self.ready[i];
        const int group = lg_graph_op(graph, node)->group;
        const int *const members = group < 0 ? &node : groups->ops + groups->begin[group];
        LG_TRY_GOTO(run_node(&self, node, members, group < 0 ? 1 : lgi_groups_size(groups, group),
                             &num_done));
    }
    if (num_done < order->num_ops) {
        walker walk = {.order = order, .groups = groups, .plan = plan, .graph = graph};
        status = fail_deadlock(&walk, arcs);
        lgi_free(walk.in.begin);
        lgi_free(walk.in.from);
    }
out:
    filler_deinit(&self);
    return status;
}

lg_status lgi_order_init(lgi_order *out, const lgi_groups *groups, const lg_plan *plan,
                         const lg_graph *graph)
{
    lg_status status = LG_OK;
    lgi_arcs arcs = {0};
    const size_t num_ops = (size_t)lg_graph_num_ops(graph);
    *out = (lgi_order){.num_ops = (int)num_ops, .num_lanes = plan->num_lanes};
    LG_TRY_GOTO(lgi_arcs_init(&arcs, groups, plan, graph));
    out->stride = arcs.stride;
    LG_TRY_GOTO(lgi_calloc(&out->rank, num_ops, sizeof *out->rank));
    LG_TRY_GOTO(lgi_calloc(&out->linear, num_ops, sizeof *out->linear));
    LG_TRY_GOTO(lgi_calloc(&out->clock, num_ops * (size_t)out->stride, sizeof *out->clock));
    for (int op = 0; op < out->num_ops; op++) {
        out->rank[op] = lg_graph_op(graph, op)->rank;
    }
    out->lane = arcs.lane;
    out->pos = arcs.pos;
    out->lag = arcs.lag;
    out->local_lane = arcs.local_lane;
    arcs.lane = NULL;
    arcs.pos = NULL;
    arcs.lag = NULL;
    arcs.local_lane = NULL;
    LG_TRY_GOTO(fill_clocks(out, groups, plan, graph, &arcs));
out:
    lgi_arcs_deinit(&arcs);
    if (status != LG_OK) {
        lgi_order_deinit(out);
    }
    return status;
}

void lgi_order_deinit(lgi_order *order)
{
    lgi_free(order->lane);
    lgi_free(order->pos);
    lgi_free(order->lag);
    lgi_free(order->rank);
    lgi_free(order->linear);
    lgi_free(order->local_lane);
    lgi_free(order->clock);
    *order = (lgi_order){0};
}

lg_status lgi_accesses_init(lgi_accesses *out, const lg_graph *graph)
{
    *out = (lgi_accesses){0};
    const int num_values = lg_graph_num_values(graph);
    const int num_ops = lg_graph_num_ops(graph);
    size_t num_operands = 0;
    for (int op = 0; op < num_ops; op++) {
        num_operands += (size_t)lg_graph_op(graph, op)->num_operands;
    }
    lg_status status = LG_OK;
    int *last_op = NULL; /* by value: the last op counted for it */
    LG_TRY_GOTO(lgi_calloc(&out->begin, (size_t)num_values + 2, sizeof *out->begin));
    LG_TRY_GOTO(lgi_calloc(&out->ops, num_operands, sizeof *out->ops));
    LG_TRY_GOTO(lgi_calloc(&last_op, (size_t)num_values, sizeof *last_op));
    for (int pass = 0; pass < 2; pass++) {
        memset(last_op, 0xff, (size_t)num_values * sizeof *last_op);
        for (int op = 0; op < num_ops; op++) {
            const lg_op_info *const info = lg_graph_op(graph, op);
            for (int i = 0; i < info->num_operands; i++) {
                const int value = info->operands[i].value;
                if (last_op[value] == op) {
                    continue;
                }
                last_op[value] = op;
                if (pass == 0) {
                    out->begin[value + 2]++;
                } else {
                    out->ops[out->begin[value + 1]++] = op;
                }
            }
        }
        if (pass == 0) {
            for (int value = 0; value < num_values; value++) {
                out->begin[value + 2] += out->begin[value + 1];
            }
        }
    }
out:
    lgi_free(last_op);
    if (status != LG_OK) {
        lgi_accesses_deinit(out);
    }
    return status;
}

void lgi_accesses_deinit(lgi_accesses *accesses)
{
    lgi_free(accesses->begin);
    lgi_free(accesses->ops);
    *accesses = (lgi_accesses){0};
}

lg_status lgi_by_rank_init(lgi_by_rank *out, const lg_graph *graph)
{
    lg_status status = LG_OK;
    *out = (lgi_by_rank){0};
    const int num_values = lg_graph_num_values(graph);
    const int num_ops = lg_graph_num_ops(graph);
    const int num_ranks = lg_graph_num_ranks(graph);
    LG_TRY_GOTO(lgi_calloc(&out->value_begin, (size_t)num_ranks + 2, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->op_begin, (size_t)num_ranks + 2, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->values, (size_t)num_values, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->ops, (size_t)num_ops, sizeof(int)));
    for (int value = 0; value < num_values; value++) {
        out->value_begin[lg_graph_value(graph, value)->rank + 2]++;
    }
    for (int op = 0; op < num_ops; op++) {
        out->op_begin[lg_graph_op(graph, op)->rank + 2]++;
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        out->value_begin[rank + 2] += out->value_begin[rank + 1];
        out->op_begin[rank + 2] += out->op_begin[rank + 1];
    }
    for (int value = 0; value < num_values; value++) {
        out->values[out->value_begin[lg_graph_value(graph, value)->rank + 1]++] = value;
    }
    for (int op = 0; op < num_ops; op++) {
        out->ops[out->op_begin[lg_graph_op(graph, op)->rank + 1]++] = op;
    }
out:
    if (status != LG_OK) {
        lgi_by_rank_deinit(out);
    }
    return status;
}

void lgi_by_rank_deinit(lgi_by_rank *lists)
{
    lgi_free(lists->value_begin);
    lgi_free(lists->values);
    lgi_free(lists->op_begin);
    lgi_free(lists->ops);
    *lists = (lgi_by_rank){0};
}

int lgi_width_idx(const lg_graph *graph, int width)
{
    const lg_graph_opts *const opts = lg_graph_options(graph);
    for (int i = 0; i < opts->num_widths; i++) {
        if (opts->widths[i] == width) {
            return i;
        }
    }
    return width == 0 ? 0 : -1;
}
