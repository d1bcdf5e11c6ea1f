/*
 * From units to lanes.
 *
 * Ops are emitted one after another in an order in which each comes after all it waits for inside the iteration: emitting an op first
 * emits those, wherever they are, and appends it to its lane; a message goes out as soon as its last value is there, on both
 * ranks' lanes at once. Every lane is then a part of one legal order, which is why no plan made here can deadlock.
 *
 * Within B each layer's weight gradient runs before its input gradient, so a stage's gradient leaves when all of its backward is done:
 * as in systems that do not split backward.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_order.h"
#include "plan/strategies/units.h"

/* What stands on a lane: one lane per rank and role. */
typedef enum lane_role { LANE_COMPUTE, LANE_SEND, LANE_RECV, LANE_REDUCE } lane_role;

typedef struct lane_key {
    lane_role role;
    int rank;
    int peer; /* -1: not a message */
    int next; /* lane of the same rank, or -1 */
} lane_key;

typedef struct expander {
    const lgi_units *units;
    const lg_graph *graph;
    const lg_edge *edges;
    const lgi_tail *tail;
    lg_plan *plan;
    int num_ops;
    int num_ranks; /* of all replicas */
    lane_key *keys;
    size_t num_lanes;
    size_t lanes_capacity;
    int *first_lane; /* by rank */
    int *lane_of;    /* by op */
    double *lane_ns; /* by lane: when its last op ends */
    double *start_ns;
    double *end_ns; /* by op */
    bool *is_emitted;
    int *num_missing; /* by op, for SENDs: values that are not there yet */
    lgi_groups groups;
} expander;

/* --- lanes ---------------------------------------------------------------------------------------------------------------- */

static lane_role role_of(lg_op_kind kind)
{
    return kind == LG_OP_SEND         ? LANE_SEND
           : kind == LG_OP_RECV       ? LANE_RECV
           : kind == LG_OP_ALL_REDUCE ? LANE_REDUCE
                                      : LANE_COMPUTE;
}

static lg_status find_lane(expander *x, lane_role role, int rank, int peer, int *out)
{
    for (int lane = x->first_lane[rank]; lane >= 0; lane = x->keys[lane].next) {
        if (x->keys[lane].role == role && x->keys[lane].peer == peer) {
            *out = lane;
            return LG_OK;
        }
    }
    LG_TRY(lgi_grow(&x->keys, &x->lanes_capacity, x->num_lanes + 1, sizeof *x->keys));
    x->keys[x->num_lanes] = (lane_key){role, rank, peer, x->first_lane[rank]};
    *out = x->first_lane[rank] = (int)x->num_lanes++;
    return LG_OK;
}

static lg_status make_lanes(expander *x, const char *name)
{
    lg_status status = LG_OK;
    int *num_entries = NULL;
    LG_TRY_GOTO(lgi_calloc(&x->first_lane, (size_t)x->num_ranks, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&x->lane_of, (size_t)x->num_ops, sizeof(int)));
    memset(x->first_lane, 0xff, (size_t)x->num_ranks * sizeof(int));
    for (int rank = 0; rank < x->num_ranks; rank++) { /* a rank's compute lane has its number */
        int lane = -1;
        LG_TRY_GOTO(find_lane(x, LANE_COMPUTE, rank, -1, &lane));
    }
    for (int op = 0; op < x->num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(x->graph, op);
        const lane_role role = role_of(info->kind);
        x->lane_of[op] = info->rank;
        if (role != LANE_COMPUTE) {
            LG_TRY_GOTO(find_lane(x, role, info->rank, role == LANE_REDUCE ? -1 : info->peer,
                                  &x->lane_of[op]));
        }
    }
    LG_TRY_GOTO(lgi_calloc(&num_entries, x->num_lanes, sizeof *num_entries));
    LG_TRY_GOTO(lgi_calloc(&x->lane_ns, x->num_lanes, sizeof *x->lane_ns));
    LG_TRY_GOTO(lgi_plan_init(&x->plan, x->graph, name, (int)x->num_lanes));
    for (int op = 0; op < x->num_ops; op++) {
        num_entries[x->lane_of[op]]++;
    }
    for (size_t i = 0; i < x->num_lanes; i++) {
        lg_lane *const lane = &x->plan->lanes[i];
        const bool is_compute = x->keys[i].role == LANE_COMPUTE;
        lane->kind = is_compute ? LG_LANE_COMPUTE : LG_LANE_COMM;
        lane->rank = x->keys[i].rank;
        lane->num_cores = is_compute ? x->units->num_threads : 0;
        LG_TRY_GOTO(lgi_calloc(&lane->entries, (size_t)num_entries[i], sizeof *lane->entries));
    }
out:
    lgi_free(num_entries);
    return status;
}

/* --- emission ------------------------------------------------------------------------------------------------------------- */

static int lag_of(const expander *x, int op)
{
    return x->tail != NULL && x->tail->lag != NULL ? x->tail->lag[op] : 0;
}

/* Whether the edge ties two runs of one iteration that do not meet anyway. */
static bool is_inside(const expander *x, const lg_edge *edge)
{
    return lgi_edge_delta(edge->distance, lag_of(x, edge->from), lag_of(x, edge->to)) == 0 &&
           !lgi_is_meeting(x->graph, edge);
}

static lg_status emit(expander *x, int op);

static lg_status emit_sources(expander *x, int op)
{
    for (int i = x->units->in_begin[op]; i < x->units->in_begin[op + 1]; i++) {
        if (!x->is_emitted[x->edges[i].from] && is_inside(x, &x->edges[i])) {
            LG_TRY(emit(x, x->edges[i].from));
        }
    }
    return LG_OK;
}

static double sources_end_ns(const expander *x, int op)
{
    double ns = x->lane_ns[x->lane_of[op]];
    for (int i = x->units->in_begin[op]; i < x->units->in_begin[op + 1]; i++) {
        if (is_inside(x, &x->edges[i])) {
            ns = fmax(ns, x->end_ns[x->edges[i].from]);
        }
    }
    return ns;
}

static void append(expander *x, int op, double start_ns, double end_ns)
{
    lg_lane *const lane = &x->plan->lanes[x->lane_of[op]];
    lane->entries[lane->num_entries++] = (lg_plan_entry){.op = op, .lag = lag_of(x, op)};
    x->is_emitted[op] = true;
    x->start_ns[op] = start_ns;
    x->end_ns[op] = end_ns;
    x->lane_ns[x->lane_of[op]] = end_ns;
}

/* Messages whose last value `op` wrote go out. */
static lg_status send_results(expander *x, int op)
{
    for (int i = x->units->out_begin[op]; i < x->units->out_begin[op + 1]; i++) {
        const lg_edge *const edge = &x->edges[x->units->out_edges[i]];
        if (lg_graph_op(x->graph, edge->to)->kind == LG_OP_SEND && is_inside(x, edge) &&
            --x->num_missing[edge->to] == 0 && !x->is_emitted[edge->to]) {
            LG_TRY(emit(x, edge->to));
        }
    }
    return LG_OK;
}

/* Ops that meet start together and end together. */
static lg_status emit_meeting(expander *x, int op)
{
    const lg_op_info *const info = lg_graph_op(x->graph, op);
    const int *const members = &x->groups.ops[x->groups.begin[info->group]];
    const int num = x->groups.begin[info->group + 1] - x->groups.begin[info->group];
    double start_ns = 0.0;
    for (int i = 0; i < num; i++) {
        LG_TRY(emit_sources(x, members[i]));
    }
    if (x->is_emitted[op]) { /* its last value has just been made, so it went out already */
        return LG_OK;
    }
    for (int i = 0; i < num; i++) {
        start_ns = fmax(start_ns, sources_end_ns(x, members[i]));
    }
    const double ns =
        info->kind == LG_OP_ALL_REDUCE
            ? lgi_all_reduce_ns(x->units, info->rank % x->units->num_ranks, info->message_bytes)
            : lgi_message_ns(x->units->input->machine, info->rank, info->peer, info->message_bytes);
    for (int i = 0; i < num; i++) {
        append(x, members[i], start_ns, start_ns + ns);
    }
    for (int i = 0; i < num; i++) {
        LG_TRY(send_results(x, members[i]));
    }
    return LG_OK;
}

static lg_status emit(expander *x, int op)
{
    if (lg_graph_op(x->graph, op)->group >= 0) {
        return emit_meeting(x, op);
    }
    LG_TRY(emit_sources(x, op));
    if (x->is_emitted[op]) { /* a message that a source sent had to wait for it */
        return LG_OK;
    }
    const double start_ns = sources_end_ns(x, op);
    append(x, op, start_ns,
           start_ns + lg_costs_op_ns(x->units->input->costs, op, x->units->width_idx));
    return send_results(x, op);
}

static lg_status emit_once(expander *x, int op)
{
    return x->is_emitted[op] ? LG_OK : emit(x, op);
}

static bool is_put_off(const expander *x, int op)
{
    return x->tail != NULL && x->tail->is_put_off != NULL && x->tail->is_put_off[op];
}

static lg_status emit_phase(expander *x, int unit)
{
    for (int i = x->units->op_begin[unit]; i < x->units->op_begin[unit + 1]; i++) {
        if (!is_put_off(x, x->units->ops[i])) {
            LG_TRY(emit_once(x, x->units->ops[i]));
        }
    }
    return LG_OK;
}

/* Position after the W ops that belong before the I op: those of smaller id, and all up to the weight gradient of its layer. */
static int end_before(const expander *x, int w, int w_end, int i_op)
{
    const lg_op_info *const i_info = lg_graph_op(x->graph, i_op);
    int end = w;
    for (int k = w; k < w_end; k++) {
        const lg_op_info *const info = lg_graph_op(x->graph, x->units->ops[k]);
        if (x->units->ops[k] < i_op) {
            end = k + 1;
        } else if (info->kind == LG_OP_WEIGHT_GRAD) {
            return info->layer == i_info->layer && i_info->kind == LG_OP_INPUT_GRAD ? k + 1 : end;
        }
    }
    return end;
}

/* I and W together: both ascend in op ids, layer by layer; where both have the layer, W's op goes first. */
static lg_status emit_backward(expander *x, int i_unit, int w_unit)
{
    const lgi_units *const u = x->units;
    int w = u->op_begin[w_unit];
    for (int i = u->op_begin[i_unit]; i <= u->op_begin[i_unit + 1]; i++) {
        const bool is_last = i == u->op_begin[i_unit + 1];
        const int end = is_last ? u->op_begin[w_unit + 1]
                                : end_before(x, w, u->op_begin[w_unit + 1], u->ops[i]);
        for (; w < end; w++) {
            if (!is_put_off(x, u->ops[w])) {
                LG_TRY(emit_once(x, u->ops[w]));
            }
        }
        if (!is_last) {
            LG_TRY(emit_once(x, u->ops[i]));
        }
    }
    return LG_OK;
}

static lg_status emit_unit(expander *x, const lgi_unit *entry)
{
    const lgi_units *const u = x->units;
    for (int replica = 0; replica < u->num_replicas; replica++) {
        const int base = replica * u->num_units;
        if (entry->kind == LGI_UNIT_B) {
            LG_TRY(emit_backward(
                x, base + lgi_unit_id(u, entry->stage, entry->micro_batch, LGI_UNIT_I),
                base + lgi_unit_id(u, entry->stage, entry->micro_batch, LGI_UNIT_W)));
        } else {
            LG_TRY(emit_phase(
                x, base + lgi_unit_id(u, entry->stage, entry->micro_batch, entry->kind)));
        }
    }
    return LG_OK;
}

/* --- what comes after the gradients ------------------------------------------------------------------------------------------ */

static lg_status emit_kind(expander *x, lg_op_kind kind)
{
    for (int op = 0; op < x->num_ops; op++) {
        if (lg_graph_op(x->graph, op)->kind == kind) {
            LG_TRY(emit_once(x, op));
        }
    }
    return LG_OK;
}

static lg_status emit_list(expander *x, const int *ops, int num_ops, int lag)
{
    for (int i = 0; i < num_ops; i++) {
        if (lag_of(x, ops[i]) == lag) {
            LG_TRY(emit_once(x, ops[i]));
        }
    }
    return LG_OK;
}

/* Reductions after all gradients, updates after all reductions. */
static lg_status add_barriers(expander *x, const int *num_units_entries)
{
    lg_status status = LG_OK;
    lg_plan_sync *syncs = NULL;
    int num = 0;
    LG_TRY(lgi_calloc(&syncs, 2 * (size_t)x->num_ranks, sizeof *syncs));
    for (int rank = 0; rank < x->num_ranks; rank++) {
        const lg_lane *const compute = &x->plan->lanes[rank];
        const int num_before = num_units_entries[rank];
        int reduce = x->first_lane[rank];
        while (reduce >= 0 && x->keys[reduce].role != LANE_REDUCE) {
            reduce = x->keys[reduce].next;
        }
        if (reduce < 0 || num_before == 0) {
            continue;
        }
        const lg_lane *const lane = &x->plan->lanes[reduce];
        syncs[num++] = (lg_plan_sync){compute->entries[num_before - 1].op, lane->entries[0].op, 0};
        if (num_before < compute->num_entries) {
            syncs[num++] = (lg_plan_sync){lane->entries[lane->num_entries - 1].op,
                                          compute->entries[num_before].op, 0};
        }
    }
    lgi_free(x->plan->syncs);
    x->plan->syncs = syncs;
    x->plan->num_syncs = num;
    return status;
}

static void keep_times(const expander *x, lgi_op_times *times)
{
    memcpy(times->start_ns, x->start_ns, (size_t)x->num_ops * sizeof(double));
    memcpy(times->end_ns, x->end_ns, (size_t)x->num_ops * sizeof(double));
}

static lg_status emit_all(expander *x, const lgi_unit *order, int num_order, lgi_op_times *times)
{
    static const lgi_tail by_id = {0};
    const lgi_tail *const tail = x->tail != NULL ? x->tail : &by_id;
    lg_status status = LG_OK;
    int *num_before = NULL; /* by rank: entries of the compute lane up to the last gradient */
    LG_TRY(lgi_calloc(&num_before, (size_t)x->num_ranks, sizeof *num_before));
    LG_TRY_GOTO(emit_list(x, tail->reductions, tail->num_reductions, 1));
    for (int i = 0; i < num_order; i++) {
        LG_TRY_GOTO(emit_unit(x, &order[i]));
    }
    LG_TRY_GOTO(emit_list(x, tail->put_off, tail->num_put_off, 0));
    LG_TRY_GOTO(emit_kind(x, LG_OP_GRAD_ADD));
    for (int rank = 0; rank < x->num_ranks; rank++) {
        num_before[rank] = x->plan->lanes[rank].num_entries;
        if (times != NULL) {
            times->units_end_ns[rank] = x->lane_ns[rank];
        }
    }
    LG_TRY_GOTO(emit_list(x, tail->reductions, tail->num_reductions, 0));
    LG_TRY_GOTO(emit_kind(x, LG_OP_ALL_REDUCE));
    LG_TRY_GOTO(emit_kind(x, LG_OP_GRAD_STAT));
    LG_TRY_GOTO(emit_kind(x, LG_OP_GRAD_CLIP));
    LG_TRY_GOTO(emit_list(x, tail->updates, tail->num_updates, 0));
    for (int op = 0; op < x->num_ops; op++) {
        LG_TRY_GOTO(emit_once(x, op));
    }
    if (tail->is_barrier) {
        LG_TRY_GOTO(add_barriers(x, num_before));
    }
    if (times != NULL) {
        keep_times(x, times);
    }
out:
    lgi_free(num_before);
    return status;
}

static lg_status count_missing(expander *x)
{
    const size_t num_ops = (size_t)x->num_ops;
    LG_TRY(lgi_calloc(&x->is_emitted, num_ops, sizeof(bool)));
    LG_TRY(lgi_calloc(&x->num_missing, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&x->start_ns, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&x->end_ns, num_ops, sizeof(double)));
    for (int i = 0; i < lg_graph_num_edges(x->graph); i++) {
        x->num_missing[x->edges[i].to] += is_inside(x, &x->edges[i]) ? 1 : 0;
    }
    return lgi_groups_init(&x->groups, x->graph);
}

lg_status lgi_expand(lg_plan **out, const lgi_units *units, const char *name, const lgi_unit *order,
                     int num_order, const lgi_tail *tail, lgi_op_times *times)
{
    lg_status status = LG_OK;
    expander x = {.units = units,
                  .graph = units->input->graph,
                  .edges = lg_graph_edges(units->input->graph),
                  .tail = tail,
                  .num_ops = lg_graph_num_ops(units->input->graph),
                  .num_ranks = lg_graph_num_ranks(units->input->graph)};
    *out = NULL;
    LG_TRY_GOTO(make_lanes(&x, name));
    LG_TRY_GOTO(count_missing(&x));
    LG_TRY_GOTO(emit_all(&x, order, num_order, times));
    *out = x.plan;
    x.plan = NULL;
out:
    lg_plan_destroy(x.plan);
    lgi_free(x.keys);
    lgi_free(x.first_lane);
    lgi_free(x.lane_of);
    lgi_free(x.lane_ns);
    lgi_free(x.start_ns);
    lgi_free(x.end_ns);
    lgi_free(x.is_emitted);
    lgi_free(x.num_missing);
    lgi_groups_deinit(&x.groups);
    return status;
}
