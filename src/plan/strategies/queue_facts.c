/*
 * What queue schedules need to know of a graph: which ops are the main chain and which may wait, and which of those may
 * wait for the next step, in the order in which that costs the next step least.
 */
#include <limits.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/strategies/queue_schedule.h"

static bool is_gradient_work(lg_op_kind kind)
{
    return kind == LG_OP_WEIGHT_GRAD || kind == LG_OP_GRAD_STAT || kind == LG_OP_GRAD_CLIP ||
           kind == LG_OP_RATE || kind == LG_OP_UPDATE;
}

/* An op that may wait in the queue if what reads it does. */
static bool is_carrier(lg_op_kind kind)
{
    return kind == LG_OP_REORDER || kind == LG_OP_GRAD_ADD || lgi_is_comm_op(kind);
}

/*
 * Queued: weight gradients and what follows from them, and copies, sums and messages that only such ops read. Nothing of the
 * same step's main chain may wait for a queued op, so an op with another successor is main; and so is one that meets a
 * main op. Ids ascend along edges: backwards.
 */
static void find_main_ops(lgi_queue_facts *facts)
{
    const lg_graph *const graph = facts->input->graph;
    const lg_edge *const edges = lg_graph_edges(graph);
    const int num_ops = lg_graph_num_ops(graph);
    for (int op = num_ops - 1; op >= 0; op--) {
        const lg_op_kind kind = lg_graph_op(graph, op)->kind;
        int num_queued = 0;
        int num_others = 0;
        for (int i = facts->out_begin[op]; i < facts->out_begin[op + 1]; i++) {
            const lg_edge *const edge = &edges[facts->out_edges[i]];
            if (edge->distance == 0) {
                const bool is_queued = facts->main_pos[edge->to] < 0;
                num_queued += is_queued ? 1 : 0;
                num_others += is_queued ? 0 : 1;
            }
        }
        const bool may_wait = is_gradient_work(kind) || (is_carrier(kind) && num_queued > 0);
        const int group = lg_graph_op(graph, op)->group;
        facts->main_pos[op] = may_wait && num_others == 0 ? -1 : 0;
        for (int i = group < 0 ? 0 : facts->groups.begin[group];
             group >= 0 && i < facts->groups.begin[group + 1]; i++) {
            /* ops that meet stand side by side, so nothing before them has been looked at yet */
            int *const other = &facts->main_pos[facts->groups.ops[i]];
            if (facts->main_pos[op] >= 0 && facts->groups.ops[i] > op) {
                *other = 0;
            } else if (facts->groups.ops[i] > op && *other >= 0) {
                facts->main_pos[op] = 0;
            }
        }
    }
    facts->first_backward = -1;
    for (int op = 0; op < num_ops; op++) {
        if (facts->main_pos[op] < 0) {
            continue;
        }
        const lg_op_kind kind = lg_graph_op(graph, op)->kind;
        if (facts->first_backward < 0 && (kind == LG_OP_INPUT_GRAD || kind == LG_OP_LOSS)) {
            facts->first_backward = facts->num_main;
        }
        facts->main_pos[op] = facts->num_main;
        facts->main_ops[facts->num_main++] = op;
    }
    if (facts->first_backward < 0) {
        facts->first_backward = facts->num_main;
    }
}

static bool writes_output(const lg_graph *graph, int op)
{
    const lg_op_info *const info = lg_graph_op(graph, op);
    for (int i = 0; i < info->num_operands; i++) {
        if ((info->operands[i].access & LG_ACCESS_WRITE) != 0 &&
            lg_graph_value(graph, info->operands[i].value)->is_output) {
            return true;
        }
    }
    return false;
}

typedef struct lag_key {
    int deadline;
    int op;
} lag_key;

static int compare_lag_keys(const void *a, const void *b)
{
    const lag_key *const x = a;
    const lag_key *const y = b;
    return x->deadline != y->deadline ? y->deadline - x->deadline : y->op - x->op;
}

/*
 * An op's deadline is the least of its own and its followers', so in this order (latest deadline first, then the larger
 * id) every op stands behind all that must lag with it, and any beginning of the list may lag.
 */
static lg_status make_lag_list(lgi_queue_facts *facts)
{
    const lg_graph *const graph = facts->input->graph;
    const lg_edge *const edges = lg_graph_edges(graph);
    const int num_ops = lg_graph_num_ops(graph);
    lag_key *keys = NULL;
    LG_TRY(lgi_calloc(&keys, (size_t)num_ops, sizeof *keys));
    int num = 0;
    for (int op = num_ops - 1; op >= 0; op--) {
        int deadline = writes_output(graph, op) ? -1 : INT_MAX;
        for (int i = facts->out_begin[op]; i < facts->out_begin[op + 1]; i++) {
            const lg_edge *const edge = &edges[facts->out_edges[i]];
            const int pos = facts->main_pos[edge->to];
            const int limit = edge->distance == 1 ? (pos >= 0 ? pos : INT_MAX)
                              : pos >= 0          ? -1
                                                  : facts->deadline[edge->to];
            deadline = limit < deadline ? limit : deadline;
        }
        facts->deadline[op] = deadline;
        if (facts->main_pos[op] < 0 && deadline > 0) {
            keys[num++] = (lag_key){deadline, op};
        }
    }
    qsort(keys, (size_t)num, sizeof *keys, compare_lag_keys);
    for (int i = 0; i < num; i++) {
        facts->lag_list[i] = keys[i].op;
    }
    facts->num_laggable =
        facts->groups.num_groups == 0 ? num : 0; /* ops that meet would lag apart */
    lgi_free(keys);
    return LG_OK;
}

lg_status lgi_queue_facts_init(lgi_queue_facts *out, const lgi_strategy_input *input)
{
    lg_status status = LG_OK;
    const lg_graph *const graph = input->graph;
    const size_t num_ops = (size_t)lg_graph_num_ops(graph);
    const int num_edges = lg_graph_num_edges(graph);
    const lg_edge *const edges = lg_graph_edges(graph);
    *out = (lgi_queue_facts){.input = input};
    LG_TRY_GOTO(lgi_groups_init(&out->groups, graph));
    LG_TRY_GOTO(lgi_calloc(&out->main_ops, num_ops, sizeof *out->main_ops));
    LG_TRY_GOTO(lgi_calloc(&out->main_pos, num_ops, sizeof *out->main_pos));
    LG_TRY_GOTO(lgi_calloc(&out->edge_begin, num_ops + 1, sizeof *out->edge_begin));
    LG_TRY_GOTO(lgi_calloc(&out->out_begin, num_ops + 2, sizeof *out->out_begin));
    LG_TRY_GOTO(lgi_calloc(&out->out_edges, (size_t)num_edges, sizeof *out->out_edges));
    LG_TRY_GOTO(lgi_calloc(&out->lag_list, num_ops, sizeof *out->lag_list));
    LG_TRY_GOTO(lgi_calloc(&out->deadline, num_ops, sizeof *out->deadline));
    for (int i = 0; i < num_edges; i++) {
        out->edge_begin[edges[i].to + 1]++;
        out->out_begin[edges[i].from + 2]++;
    }
    for (size_t op = 0; op < num_ops; op++) {
        out->edge_begin[op + 1] += out->edge_begin[op];
        out->out_begin[op + 2] += out->out_begin[op + 1];
        out->has_comm = out->has_comm || lgi_is_comm_op(lg_graph_op(graph, (int)op)->kind);
    }
    for (int i = 0; i < num_edges; i++) {
        out->out_edges[out->out_begin[edges[i].from + 1]++] = i;
    }
    find_main_ops(out);
    LG_TRY_GOTO(make_lag_list(out));
out:
    if (status != LG_OK) {
        lgi_queue_facts_deinit(out);
    }
    return status;
}

void lgi_queue_facts_deinit(lgi_queue_facts *facts)
{
    lgi_groups_deinit(&facts->groups);
    lgi_free(facts->main_ops);
    lgi_free(facts->main_pos);
    lgi_free(facts->edge_begin);
    lgi_free(facts->out_begin);
    lgi_free(facts->out_edges);
    lgi_free(facts->lag_list);
    lgi_free(facts->deadline);
    *facts = (lgi_queue_facts){0};
}
