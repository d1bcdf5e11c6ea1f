/*
 * Units of a graph: which ops they have, how long they take, what they wait for. All of it follows from the ops and edges, so skip
 * connections over stages, tied weights and inputs that several ranks load need no special case.
 *
 * Forward, loss and gradients (with a micro-batch's statistics) belong to the unit of their stage. Loading of inputs and reorders belong to the unit that first reads
 * their result or, if a message does, to the one that wrote last, so that no rank waits for a later unit of this one. Sums of
 * gradients belong to their stage, parts of sums that another rank makes to the latest of its stages that no
 * summand comes after.
 */
#include "plan/strategies/units.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_machine.h"
#include "plan/plan_order.h"

/* --- links ---------------------------------------------------------------------------------------------------------------- */

static const lg_link *link_between(const lg_machine *machine, int a, int b)
{
    const int per_host = machine->ranks_per_host > 0 ? machine->ranks_per_host : 1;
    return a / per_host == b / per_host ? &machine->intra_host : &machine->inter_host;
}

double lgi_message_ns(const lg_machine *machine, int from_rank, int to_rank, int64_t bytes)
{
    const lg_link *const link = link_between(machine, from_rank, to_rank);
    return link->latency_ns + (double)bytes / link->bytes_per_s * 1e9;
}

double lgi_all_reduce_ns(const lgi_units *units, int pipeline_rank, int64_t bytes)
{
    for (int replica = 0; replica < units->num_replicas; replica++) {
        units->replica_ranks[replica] = replica * units->num_ranks + pipeline_rank;
    }
    return lgi_reduction_ns(units->input->machine, units->replica_ranks, units->num_replicas,
                            (double)bytes);
}

/* --- edges by op ---------------------------------------------------------------------------------------------------------- */

static lg_status index_edges(lgi_units *u, const lg_graph *graph)
{
    const int num_ops = lg_graph_num_ops(graph);
    const int num_edges = lg_graph_num_edges(graph);
    const lg_edge *const edges = lg_graph_edges(graph);
    LG_TRY(lgi_calloc(&u->in_begin, (size_t)num_ops + 1, sizeof(int)));
    LG_TRY(lgi_calloc(&u->out_begin, (size_t)num_ops + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&u->out_edges, (size_t)num_edges, sizeof(int)));
    for (int i = 0; i < num_edges; i++) {
        u->in_begin[edges[i].to + 1]++;
        u->out_begin[edges[i].from + 2]++;
    }
    for (int op = 0; op < num_ops; op++) {
        u->in_begin[op + 1] += u->in_begin[op];
        u->out_begin[op + 2] += u->out_begin[op + 1];
    }
    for (int i = 0; i < num_edges; i++) {
        u->out_edges[u->out_begin[edges[i].from + 1]++] = i;
    }
    return LG_OK;
}

static lg_status find_partners(lgi_units *u, const lg_graph *graph)
{
    const int num_ops = lg_graph_num_ops(graph);
    lg_status status = LG_OK;
    int *first = NULL; /* by group */
    LG_TRY(lgi_calloc(&first, (size_t)lg_graph_num_groups(graph) + 1, sizeof *first));
    LG_TRY_GOTO(lgi_calloc(&u->partner, (size_t)num_ops, sizeof(int)));
    memset(first, 0xff, ((size_t)lg_graph_num_groups(graph) + 1) * sizeof *first);
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        u->partner[op] = -1;
        if (info->kind != LG_OP_SEND && info->kind != LG_OP_RECV) {
            continue;
        }
        if (first[info->group] < 0) {
            first[info->group] = op;
        } else {
            u->partner[op] = first[info->group];
            u->partner[first[info->group]] = op;
        }
    }
out:
    lgi_free(first);
    return status;
}

/* --- which ops ------------------------------------------------------------------------------------------------------------ */

/* Forward of a layer that reads something: not an input that is loaded. */
static bool is_real_forward(const lg_op_info *info)
{
    for (int i = 0; i < info->num_operands; i++) {
        if (info->operands[i].role == LG_ROLE_X) {
            return true;
        }
    }
    return false;
}

/* The phase that an op decides by itself, or LGI_NUM_UNIT_KINDS. */
static lgi_unit_kind phase_of(const lg_op_info *info)
{
    switch (info->kind) {
    case LG_OP_FORWARD:
        return is_real_forward(info) ? LGI_UNIT_F : LGI_NUM_UNIT_KINDS;
    case LG_OP_LOSS:
        return LGI_UNIT_F;
    case LG_OP_INPUT_GRAD:
        return LGI_UNIT_I;
    case LG_OP_WEIGHT_GRAD:
        return LGI_UNIT_W;
    case LG_OP_GRAD_STAT: /* of a micro-batch: frees its gradient */
        return info->micro_batch >= 0 ? LGI_UNIT_W : LGI_NUM_UNIT_KINDS;
    default:
        return LGI_NUM_UNIT_KINDS;
    }
}

static bool is_helper(const lg_op_info *info)
{
    return info->kind == LG_OP_REORDER || (info->kind == LG_OP_FORWARD && !is_real_forward(info)) ||
           (info->kind == LG_OP_GRAD_ADD && info->micro_batch >= 0);
}

/* The unit of a helper that readers decide: that of the first of them, or -1; *is_sent: a message reads its result too. */
static int unit_of_readers(const lgi_units *u, const lg_graph *graph, int op, bool *is_sent)
{
    int first = lg_graph_num_ops(graph);
    *is_sent = false;
    for (int i = u->out_begin[op]; i < u->out_begin[op + 1]; i++) {
        const lg_edge *const edge = &lg_graph_edges(graph)[u->out_edges[i]];
        if (edge->distance == 0 && u->op_unit[edge->to] >= 0 && edge->to < first) {
            first = edge->to;
        }
        *is_sent = *is_sent || lg_graph_op(graph, edge->to)->kind == LG_OP_SEND;
    }
    return first < lg_graph_num_ops(graph) ? u->op_unit[first] : -1;
}

static int unit_of_last_writer(const lgi_units *u, const lg_graph *graph, int op)
{
    const lg_edge *const edges = lg_graph_edges(graph);
    int last = -1;
    for (int i = u->in_begin[op]; i < u->in_begin[op + 1]; i++) {
        if (edges[i].distance == 0 && u->op_unit[edges[i].from] >= 0 && edges[i].from > last) {
            last = edges[i].from;
        }
    }
    return last >= 0 ? u->op_unit[last] : -1;
}

/*
 * A sum of gradients on its stage's rank: W if nothing but its stage's weight gradients read it, else I, since messages and earlier
 * stages may. On another rank it is a part of a sum: -1, its summands decide.
 */
static int unit_of_sum(const lgi_units *u, const lg_graph *graph, int op)
{
    const lg_op_info *const info = lg_graph_op(graph, op);
    if (u->rank_of_stage[info->stage] != info->rank % u->num_ranks) {
        return -1;
    }
    const int weight_unit = lgi_unit_id(u, info->stage, info->micro_batch, LGI_UNIT_W);
    bool is_for_weights = true;
    for (int i = u->out_begin[op]; i < u->out_begin[op + 1]; i++) {
        const lg_edge *const edge = &lg_graph_edges(graph)[u->out_edges[i]];
        is_for_weights =
            is_for_weights && (edge->distance != 0 || u->op_unit[edge->to] == weight_unit);
    }
    return is_for_weights ? weight_unit
                          : lgi_unit_id(u, info->stage, info->micro_batch, LGI_UNIT_I);
}

/*
 * A part of a sum that another rank makes: the input gradients of this rank's latest stage that no summand comes after. A summand that is
 * received may be later than those made here: where a layer passes its gradient on, it comes back through other ranks.
 */
static int unit_of_part(const lgi_units *u, const lg_graph *graph, int op)
{
    const lg_edge *const edges = lg_graph_edges(graph);
    const lg_op_info *const info = lg_graph_op(graph, op);
    int stage = u->num_stages - 1;
    for (int i = u->in_begin[op]; i < u->in_begin[op + 1]; i++) {
        const int unit = u->op_unit[edges[i].from];
        const lg_op_info *const from = lg_graph_op(graph, edges[i].from);
        const int made_in = unit >= 0                  ? unit / LGI_NUM_UNIT_KINDS % u->num_stages
                            : from->kind == LG_OP_RECV ? from->stage
                                                       : u->num_stages - 1;
        stage = edges[i].distance == 0 && made_in < stage ? made_in : stage;
    }
    while (stage >= 0 && u->rank_of_stage[stage] != info->rank % u->num_ranks) {
        stage--;
    }
    return stage >= 0 ? lgi_unit_id(u, stage, info->micro_batch, LGI_UNIT_I) : -1;
}

static void give_helpers(lgi_units *u, const lg_graph *graph)
{
    const int num_ops = lg_graph_num_ops(graph);
    for (int op = num_ops - 1; op >= 0; op--) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (u->op_unit[op] >= 0 || !is_helper(info)) {
            continue;
        }
        bool is_sent = false;
        const int unit = unit_of_readers(u, graph, op, &is_sent);
        u->op_unit[op] = info->kind == LG_OP_GRAD_ADD ? unit_of_sum(u, graph, op)
                         : is_sent                    ? -1
                                                      : unit;
    }
    for (int op = 0; op < num_ops; op++) {
        bool is_sent = false;
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (u->op_unit[op] < 0 && is_helper(info)) {
            const int part = info->kind == LG_OP_GRAD_ADD ? unit_of_part(u, graph, op) : -1;
            const int unit = part >= 0 ? part : unit_of_last_writer(u, graph, op);
            u->op_unit[op] = unit >= 0 ? unit : unit_of_readers(u, graph, op, &is_sent);
        }
    }
}

static lg_status give_ops(lgi_units *u, const lg_graph *graph)
{
    const int num_ops = lg_graph_num_ops(graph);
    const size_t num_units = (size_t)u->num_units * (size_t)u->num_replicas;
    LG_TRY(lgi_calloc(&u->op_unit, (size_t)num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&u->op_begin, num_units + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&u->ops, (size_t)num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&u->rank_of_stage, (size_t)u->num_stages, sizeof(int)));
    memset(u->rank_of_stage, 0xff, (size_t)u->num_stages * sizeof(int));
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        const lgi_unit_kind kind = phase_of(info);
        u->op_unit[op] = -1;
        if (kind == LGI_NUM_UNIT_KINDS || info->micro_batch < 0) {
            continue;
        }
        u->op_unit[op] = lgi_unit_id(u, info->stage, info->micro_batch, kind);
        int *const rank = &u->rank_of_stage[info->stage];
        if (*rank >= 0 && *rank != info->rank % u->num_ranks) {
            LG_FAIL(LG_NOT_SUPPORTED, "stage %d is on rank %d and, with op '%s', on rank %d",
                    info->stage, *rank, info->name, info->rank % u->num_ranks);
        }
        *rank = info->rank % u->num_ranks;
    }
    give_helpers(u, graph);
    for (int op = 0; op < num_ops; op++) {
        if (u->op_unit[op] >= 0) {
            u->op_begin[u->op_unit[op] + 2]++;
        }
    }
    for (size_t unit = 0; unit < num_units; unit++) {
        u->op_begin[unit + 2] += u->op_begin[unit + 1];
    }
    for (int op = 0; op < num_ops; op++) {
        if (u->op_unit[op] >= 0) {
            u->ops[u->op_begin[u->op_unit[op] + 1]++] = op;
        }
    }
    return LG_OK;
}

/* --- what units wait for -------------------------------------------------------------------------------------------------- */

typedef struct pair {
    int from;
    int to;
    double delay_ns;
} pair;

typedef struct pair_list {
    pair *items;
    size_t num;
    size_t capacity;
    int *
        mark; /* by unit: 1 + index of the pair from it to the unit under work; older indices do not count */
    size_t begin;
} pair_list;

/* Adds what `op` stands for as a predecessor of `unit`: its own unit, or those behind the message that it ends. */
static lg_status add_source(const lgi_units *u, pair_list *list, int unit, int op, double delay_ns)
{
    const lg_graph *const graph = u->input->graph;
    const lg_op_info *const info = lg_graph_op(graph, op);
    if (info->kind == LG_OP_RECV && u->partner[op] >= 0) {
        const int send = u->partner[op];
        const double ns = delay_ns + lgi_message_ns(u->input->machine, info->peer, info->rank,
                                                    info->message_bytes);
        for (int i = u->in_begin[send]; i < u->in_begin[send + 1]; i++) {
            const lg_edge *const edge = &lg_graph_edges(graph)[i];
            if (edge->distance == 0 && edge->from != op) {
                LG_TRY(add_source(u, list, unit, edge->from, ns));
            }
        }
        return LG_OK;
    }
    const int from = u->op_unit[op];
    if (from < 0 || from == unit || from >= u->num_units) {
        return LG_OK;
    }
    const size_t known = (size_t)list->mark[from];
    if (known > list->begin) {
        pair *const p = &list->items[known - 1];
        p->delay_ns = delay_ns > p->delay_ns ? delay_ns : p->delay_ns;
        return LG_OK;
    }
    LG_TRY(lgi_grow(&list->items, &list->capacity, list->num + 1, sizeof *list->items));
    list->items[list->num++] = (pair){from, unit, delay_ns};
    list->mark[from] = (int)list->num;
    return LG_OK;
}

static lg_status group_pairs(const pair_list *list, int num_units, bool by_to, int **out_begin,
                             lgi_unit_arc **out_arcs)
{
    LG_TRY(lgi_calloc(out_begin, (size_t)num_units + 2, sizeof **out_begin));
    LG_TRY(lgi_calloc(out_arcs, list->num, sizeof **out_arcs));
    int *const begin = *out_begin;
    for (size_t i = 0; i < list->num; i++) {
        begin[(by_to ? list->items[i].to : list->items[i].from) + 2]++;
    }
    for (int unit = 0; unit < num_units; unit++) {
        begin[unit + 2] += begin[unit + 1];
    }
    for (size_t i = 0; i < list->num; i++) {
        const pair *const p = &list->items[i];
        (*out_arcs)[begin[(by_to ? p->to : p->from) + 1]++] =
            (lgi_unit_arc){by_to ? p->from : p->to, p->delay_ns};
    }
    return LG_OK;
}

static lg_status find_waits(lgi_units *u, const lg_graph *graph)
{
    const lg_edge *const edges = lg_graph_edges(graph);
    lg_status status = LG_OK;
    pair_list list = {0};
    LG_TRY_GOTO(lgi_calloc(&list.mark, (size_t)u->num_units, sizeof *list.mark));
    LG_TRY_GOTO(lgi_calloc(&u->duration_ns, (size_t)u->num_units, sizeof(double)));
    for (int unit = 0; unit < u->num_units; unit++) {
        list.begin = list.num;
        for (int k = u->op_begin[unit]; k < u->op_begin[unit + 1]; k++) {
            const int op = u->ops[k];
            u->duration_ns[unit] += lg_costs_op_ns(u->input->costs, op, u->width_idx);
            for (int i = u->in_begin[op]; i < u->in_begin[op + 1]; i++) {
                if (edges[i].distance == 0) {
                    LG_TRY_GOTO(add_source(u, &list, unit, edges[i].from, 0.0));
                }
            }
        }
    }
    LG_TRY_GOTO(group_pairs(&list, u->num_units, true, &u->pred_begin, &u->preds));
    LG_TRY_GOTO(group_pairs(&list, u->num_units, false, &u->succ_begin, &u->succs));
out:
    lgi_free(list.items);
    lgi_free(list.mark);
    return status;
}

/* --- the whole ------------------------------------------------------------------------------------------------------------ */

lg_status lgi_units_init(lgi_units *out, const lgi_strategy_input *input)
{
    const lg_graph *const graph = input->graph;
    lg_status status = LG_OK;
    *out = (lgi_units){.input = input,
                       .num_replicas = lg_graph_num_replicas(graph),
                       .num_ranks = lg_graph_num_pipeline_ranks(graph),
                       .num_stages = lg_graph_num_stages(graph)};
    if (input->opts.num_lanes > 1) {
        LG_FAIL(LG_NOT_SUPPORTED,
                "%d compute lanes per rank: strategies for pipelines and replicas make one",
                input->opts.num_lanes);
    }
    out->num_threads =
        input->opts.threads_per_lane > 0 ? input->opts.threads_per_lane : lgi_widest(input, 1);
    if (out->num_threads == 0) {
        LG_FAIL(LG_NOT_SUPPORTED, "none of the graph's widths fits on %d cores",
                input->machine->num_cores);
    }
    out->width_idx = lgi_width_idx(graph, out->num_threads);
    out->num_micro_batches = lg_graph_num_micro_batches(graph) / out->num_replicas;
    const int64_t num_units =
        (int64_t)out->num_micro_batches * out->num_stages * LGI_NUM_UNIT_KINDS;
    if (num_units * out->num_replicas > INT32_MAX / 2) {
        LG_FAIL(LG_NOT_SUPPORTED, "%d stages and %d micro-batches on %d replicas are too many",
                out->num_stages, out->num_micro_batches, out->num_replicas);
    }
    out->num_units = (int)num_units;
    LG_TRY_GOTO(lgi_calloc(&out->replica_ranks, (size_t)out->num_replicas, sizeof(int)));
    LG_TRY_GOTO(index_edges(out, graph));
    LG_TRY_GOTO(find_partners(out, graph));
    LG_TRY_GOTO(give_ops(out, graph));
    LG_TRY_GOTO(find_waits(out, graph));
out:
    if (status != LG_OK) {
        lgi_units_deinit(out);
    }
    return status;
}

void lgi_units_deinit(lgi_units *units)
{
    lgi_free(units->rank_of_stage);
    lgi_free(units->replica_ranks);
    lgi_free(units->duration_ns);
    lgi_free(units->pred_begin);
    lgi_free(units->preds);
    lgi_free(units->succ_begin);
    lgi_free(units->succs);
    lgi_free(units->op_begin);
    lgi_free(units->ops);
    lgi_free(units->op_unit);
    lgi_free(units->in_begin);
    lgi_free(units->out_begin);
    lgi_free(units->out_edges);
    lgi_free(units->partner);
    *units = (lgi_units){0};
}

bool lgi_unit_exists(const lgi_units *units, int stage, int micro_batch, lgi_unit_kind kind)
{
    if (stage < 0 || stage >= units->num_stages || micro_batch < 0 ||
        micro_batch >= units->num_micro_batches) {
        return false;
    }
    if (kind == LGI_UNIT_B) {
        return lgi_unit_exists(units, stage, micro_batch, LGI_UNIT_I) ||
               lgi_unit_exists(units, stage, micro_batch, LGI_UNIT_W);
    }
    const int unit = lgi_unit_id(units, stage, micro_batch, kind);
    return units->op_begin[unit] < units->op_begin[unit + 1];
}
