/* Lines of nodes: see auto_order.h. A move carries along what must come with it, so it never makes an illegal line. */
#include "plan/strategies/auto_order.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"

/* --- facts ---------------------------------------------------------------------------------------------------------------- */

static lg_status index_arcs(lgi_line_facts *f)
{
    const lg_edge *const edges = lg_graph_edges(f->graph);
    const int num_edges = lg_graph_num_edges(f->graph);
    LG_TRY(lgi_calloc(&f->in_begin, (size_t)f->num_ops + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&f->out_begin, (size_t)f->num_ops + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&f->in, (size_t)num_edges, sizeof *f->in));
    LG_TRY(lgi_calloc(&f->out, (size_t)num_edges, sizeof *f->out));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < num_edges; i++) {
            const int from = f->node_of[edges[i].from];
            const int to = f->node_of[edges[i].to];
            if (from == to) {
                continue;
            }
            if (pass == 0) {
                f->in_begin[to + 2]++;
                f->out_begin[from + 2]++;
            } else {
                f->in[f->in_begin[to + 1]++] = (lgi_line_arc){from, edges[i].distance};
                f->out[f->out_begin[from + 1]++] = (lgi_line_arc){to, edges[i].distance};
            }
        }
        for (int op = 0; op < f->num_ops && pass == 0; op++) {
            f->in_begin[op + 2] += f->in_begin[op + 1];
            f->out_begin[op + 2] += f->out_begin[op + 1];
        }
    }
    return LG_OK;
}

static bool is_lag_kind(lg_op_kind kind)
{
    return kind == LG_OP_WEIGHT_GRAD || kind == LG_OP_ALL_REDUCE || kind == LG_OP_GRAD_STAT ||
           kind == LG_OP_GRAD_CLIP || kind == LG_OP_UPDATE;
}

/* What the host reads after a step must be there then. */
static bool writes_output(const lg_graph *graph, const lg_op_info *info)
{
    for (int i = 0; i < info->num_operands; i++) {
        if ((info->operands[i].access & LG_ACCESS_WRITE) != 0 &&
            lg_graph_value(graph, info->operands[i].value)->is_output) {
            return true;
        }
    }
    return false;
}

/* An op may lag if its kind may, and so may all that waits for it in its step. */
static void find_may_lag(lgi_line_facts *f)
{
    bool is_changed = true;
    for (int op = 0; op < f->num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(f->graph, op);
        f->may_lag[op] = is_lag_kind(info->kind) && !writes_output(f->graph, info);
    }
    while (is_changed) {
        is_changed = false;
        for (int op = f->num_ops - 1; op >= 0; op--) {
            const int node = f->node_of[op];
            bool may_lag = f->may_lag[op] && f->may_lag[node];
            for (int i = f->out_begin[node]; i < f->out_begin[node + 1] && may_lag; i++) {
                may_lag = f->out[i].distance > 0 || f->may_lag[f->out[i].node];
            }
            if (f->may_lag[op] && !may_lag) {
                f->may_lag[op] = false;
                f->may_lag[node] = false;
                is_changed = true;
            }
        }
    }
}

static lg_status make_work(lgi_line_facts *f)
{
    LG_TRY(lgi_plan_init(&f->work, f->graph, "auto", f->shape->num_lanes));
    for (int i = 0; i < f->shape->num_lanes; i++) {
        lg_lane *const lane = &f->work->lanes[i];
        *lane = f->shape->lanes[i];
        lane->entries = NULL;
        LG_TRY(lgi_calloc(&lane->entries, (size_t)lane->num_entries, sizeof *lane->entries));
    }
    return LG_OK;
}

lg_status lgi_line_facts_init(lgi_line_facts *out, const lg_graph *graph, const lg_plan *shape)
{
    lg_status status = LG_OK;
    const int num_ops = lg_graph_num_ops(graph);
    *out = (lgi_line_facts){.graph = graph, .shape = shape, .num_ops = num_ops};
    LG_TRY_GOTO(lgi_groups_init(&out->groups, graph));
    LG_TRY_GOTO(lgi_calloc(&out->node_of, (size_t)num_ops, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->lane_of, (size_t)num_ops, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->may_lag, (size_t)num_ops, sizeof(bool)));
    LG_TRY_GOTO(lgi_calloc(&out->mark, (size_t)num_ops, 1));
    LG_TRY_GOTO(lgi_calloc(&out->scratch, (size_t)num_ops, sizeof(int)));
    for (int op = 0; op < num_ops; op++) {
        out->node_of[op] = lgi_groups_node(&out->groups, graph, op);
        out->num_nodes += out->node_of[op] == op ? 1 : 0;
    }
    for (int lane = 0; lane < shape->num_lanes; lane++) {
        for (int i = 0; i < shape->lanes[lane].num_entries; i++) {
            out->lane_of[shape->lanes[lane].entries[i].op] = lane;
        }
    }
    LG_TRY_GOTO(index_arcs(out));
    find_may_lag(out);
    LG_TRY_GOTO(make_work(out));
out:
    if (status != LG_OK) {
        lgi_line_facts_deinit(out);
    }
    return status;
}

void lgi_line_facts_deinit(lgi_line_facts *facts)
{
    lgi_groups_deinit(&facts->groups);
    lgi_free(facts->node_of);
    lgi_free(facts->lane_of);
    lgi_free(facts->in_begin);
    lgi_free(facts->in);
    lgi_free(facts->out_begin);
    lgi_free(facts->out);
    lgi_free(facts->may_lag);
    lgi_free(facts->mark);
    lgi_free(facts->scratch);
    lg_plan_destroy(facts->work);
    *facts = (lgi_line_facts){0};
}

/* --- lines ---------------------------------------------------------------------------------------------------------------- */

lg_status lgi_line_init(lgi_line *out, const lgi_line_facts *facts)
{
    lg_status status = LG_OK;
    *out = (lgi_line){0};
    LG_TRY_GOTO(lgi_calloc(&out->order, (size_t)facts->num_nodes, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->pos, (size_t)facts->num_ops, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->lag, (size_t)facts->num_ops, 1));
out:
    if (status != LG_OK) {
        lgi_line_deinit(out);
    }
    return status;
}

void lgi_line_deinit(lgi_line *line)
{
    lgi_free(line->order);
    lgi_free(line->pos);
    lgi_free(line->lag);
    *line = (lgi_line){0};
}

void lgi_line_copy(lgi_line *to, const lgi_line *from, const lgi_line_facts *facts)
{
    memcpy(to->order, from->order, (size_t)facts->num_nodes * sizeof(int));
    memcpy(to->pos, from->pos, (size_t)facts->num_ops * sizeof(int));
    memcpy(to->lag, from->lag, (size_t)facts->num_ops);
}

static void number_from(lgi_line *line, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        line->pos[line->order[i]] = i;
    }
}

lg_status lgi_line_read(lgi_line *line, const lgi_line_facts *facts)
{
    lg_status status = LG_OK;
    lgi_order order = {0};
    int *at = NULL; /* by place in the total order of ops: the node there, or -1 */
    int num = 0;
    LG_TRY(lgi_order_init(&order, &facts->groups, facts->shape, facts->graph));
    LG_TRY_GOTO(lgi_calloc(&at, (size_t)facts->num_ops, sizeof *at));
    memset(at, 0xff, (size_t)facts->num_ops * sizeof *at);
    for (int op = 0; op < facts->num_ops; op++) {
        line->lag[op] = (unsigned char)order.lag[op];
        if (facts->node_of[op] == op) {
            at[order.linear[op]] = op;
        }
    }
    for (int i = 0; i < facts->num_ops; i++) {
        if (at[i] >= 0) {
            line->order[num++] = at[i];
        }
    }
    number_from(line, 0, num);
out:
    lgi_free(at);
    lgi_order_deinit(&order);
    return status;
}

void lgi_line_plan(const lgi_line *line, const lgi_line_facts *facts)
{
    lg_plan *const plan = facts->work;
    for (int i = 0; i < plan->num_lanes; i++) {
        plan->lanes[i].num_entries = 0;
    }
    for (int i = 0; i < facts->num_nodes; i++) {
        int num = 0;
        const int *const ops = lgi_node_ops(facts, &line->order[i], &num);
        for (int k = 0; k < num; k++) {
            lg_lane *const lane = &plan->lanes[facts->lane_of[ops[k]]];
            lane->entries[lane->num_entries++] =
                (lg_plan_entry){.op = ops[k], .lag = line->lag[ops[k]]};
        }
    }
}

/* --- moves ---------------------------------------------------------------------------------------------------------------- */

/* Reorders [begin, end): those marked `first` before the others. Clears the marks. */
static void part(lgi_line *line, const lgi_line_facts *facts, int begin, int end,
                 unsigned char first)
{
    int num_first = 0;
    int num_rest = 0;
    for (int i = begin; i < end; i++) {
        num_first += facts->mark[line->order[i]] == first ? 1 : 0;
    }
    for (int i = begin, k = 0; i < end; i++) {
        const int node = line->order[i];
        facts->scratch[facts->mark[node] == first ? k++ : num_first + num_rest++] = node;
        facts->mark[node] = 0;
    }
    memcpy(&line->order[begin], facts->scratch, (size_t)(end - begin) * sizeof(int));
    number_from(line, begin, end);
}

static void clear_marks(const lgi_line *line, const lgi_line_facts *facts, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        facts->mark[line->order[i]] = 0;
    }
}

static bool reaches_marked(const lgi_line *line, const lgi_line_facts *facts, int node)
{
    for (int i = facts->out_begin[node]; i < facts->out_begin[node + 1]; i++) {
        const lgi_line_arc arc = {node, facts->out[i].distance};
        if (facts->mark[facts->out[i].node] && lgi_line_is_inside(line, arc, facts->out[i].node)) {
            return true;
        }
    }
    return false;
}

static bool waits_for_marked(const lgi_line *line, const lgi_line_facts *facts, int node)
{
    for (int i = facts->in_begin[node]; i < facts->in_begin[node + 1]; i++) {
        if (facts->mark[facts->in[i].node] && lgi_line_is_inside(line, facts->in[i], node)) {
            return true;
        }
    }
    return false;
}

bool lgi_line_move_before(lgi_line *line, const lgi_line_facts *facts, const int *nodes,
                          int num_nodes, int target)
{
    const int begin = line->pos[target];
    int end = begin;
    for (int i = 0; i < num_nodes; i++) {
        if (line->pos[nodes[i]] > begin) {
            facts->mark[nodes[i]] = 1;
            end = line->pos[nodes[i]] + 1 > end ? line->pos[nodes[i]] + 1 : end;
        }
    }
    for (int i = end - 1; i >= begin; i--) {
        if (!facts->mark[line->order[i]] && reaches_marked(line, facts, line->order[i])) {
            facts->mark[line->order[i]] = 1;
        }
    }
    if (end == begin || facts->mark[target]) {
        clear_marks(line, facts, begin, end);
        return false;
    }
    part(line, facts, begin, end, 1);
    return true;
}

bool lgi_line_move_after(lgi_line *line, const lgi_line_facts *facts, const int *nodes,
                         int num_nodes, int target)
{
    const int end = line->pos[target] + 1;
    int begin = end;
    for (int i = 0; i < num_nodes; i++) {
        if (line->pos[nodes[i]] < end - 1) {
            facts->mark[nodes[i]] = 1;
            begin = line->pos[nodes[i]] < begin ? line->pos[nodes[i]] : begin;
        }
    }
    for (int i = begin; i < end; i++) {
        if (!facts->mark[line->order[i]] && waits_for_marked(line, facts, line->order[i])) {
            facts->mark[line->order[i]] = 1;
        }
    }
    if (end == begin || facts->mark[target]) {
        clear_marks(line, facts, begin, end);
        return false;
    }
    part(line, facts, begin, end, 0);
    return true;
}

/* --- lags ----------------------------------------------------------------------------------------------------------------- */

static void set_lag(lgi_line *line, const lgi_line_facts *facts, int node, unsigned char lag)
{
    int num = 0;
    const int *const ops = lgi_node_ops(facts, &node, &num);
    for (int k = 0; k < num; k++) {
        line->lag[ops[k]] = lag;
    }
}

/* The first node in line that waits inside the iteration for `node`, or -1. */
static int first_waiting(const lgi_line *line, const lgi_line_facts *facts, int node)
{
    int first = -1;
    for (int i = facts->out_begin[node]; i < facts->out_begin[node + 1]; i++) {
        const int to = facts->out[i].node;
        const lgi_line_arc arc = {node, facts->out[i].distance};
        if (lgi_line_is_inside(line, arc, to) && (first < 0 || line->pos[to] < line->pos[first])) {
            first = to;
        }
    }
    return first;
}

bool lgi_line_defer(lgi_line *line, const lgi_line_facts *facts, int node, lgi_line_place place)
{
    if (!facts->may_lag[node] || line->lag[node] != 0) {
        return false;
    }
    const int num = facts->num_nodes;
    facts->mark[node] = 1; /* what waits for it stands behind it */
    for (int i = line->pos[node] + 1; i < num; i++) {
        const int other = line->order[i];
        if (line->lag[other] == 0 && waits_for_marked(line, facts, other)) {
            facts->mark[other] = 1;
        }
    }
    int num_new = 0;
    for (int i = line->pos[node]; i < num; i++) {
        if (facts->mark[line->order[i]]) {
            set_lag(line, facts, line->order[i], 1);
            num_new++;
        }
    }
    /* in front of all: what they wait for is of the step before, and what lagged already never came before them */
    part(line, facts, 0, num, 1);
    for (int i = num_new - 1; i >= 0 && place == LGI_LINE_LATE; i--) {
        const int late = line->order[i];
        const int target = first_waiting(line, facts, late);
        if (target >= 0 && line->pos[target] > i + 1) {
            (void)lgi_line_move_after(line, facts, &late, 1, line->order[line->pos[target] - 1]);
        }
    }
    return true;
}

bool lgi_line_undefer(lgi_line *line, const lgi_line_facts *facts, int node)
{
    if (line->lag[node] == 0) {
        return false;
    }
    const int num = facts->num_nodes;
    facts->mark[node] = 1;
    for (int i = line->pos[node]; i >= 0; i--) {
        const int other = line->order[i];
        if (line->lag[other] != 0 && (facts->mark[other] || reaches_marked(line, facts, other))) {
            facts->mark[other] = 1;
        }
    }
    for (int i = 0; i < num; i++) {
        if (facts->mark[line->order[i]]) {
            set_lag(line, facts, line->order[i], 0);
        }
    }
    part(line, facts, 0, num, 0);
    return true;
}
