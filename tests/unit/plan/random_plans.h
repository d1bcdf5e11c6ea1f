/*
 * Random step graphs and random legal plans of them, for property tests; and an oracle that decides by brute force
 * whether a plan's memory is right. Everything follows from a seed.
 */
#ifndef LGT_RANDOM_PLANS_H
#define LGT_RANDOM_PLANS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/build.h"
#include "leapgrad/plan.h"
#include "plan/plan_make.h"

#define assert_ok(expr) \
    do { \
        if ((expr) != LG_OK) { \
            fail_msg("%s: %s", #expr, lg_last_error()); \
        } \
    } while (0)

/* `expr` fails with `code`, and the message has `text` in it. */
#define assert_fails(code, text, expr) \
    do { \
        const lg_status assert_status = (expr); \
        if (assert_status != (code) || strstr(lg_last_error(), (text)) == NULL || \
            strchr(lg_last_error(), '\n') != NULL) { \
            fail_msg("%s: status %s, expected %s with '%s'; message: %s", #expr, \
                     lg_status_name(assert_status), lg_status_name(code), (text), \
                     lg_last_error()); \
        } \
    } while (0)

/* xorshift64*, of which the high bits are used. */
static inline uint32_t rnd(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717ull) >> 33);
}

static inline int rnd_below(uint64_t *state, int bound)
{
    return (int)(rnd(state) % (uint32_t)bound);
}

static inline bool rnd_chance(uint64_t *state, int percent)
{
    return rnd_below(state, 100) < percent;
}

/* --- graphs --------------------------------------------------------------------------------------------------------- */

#define MAX_TEST_VALUES 600
#define MAX_TEST_OPS 400
#define MAX_TEST_OPERANDS 16
#define MAX_TEST_LAYERS 12
#define MAX_TEST_MICRO 3

typedef struct graph_maker {
    lg_value_info values[MAX_TEST_VALUES];
    int num_values;
    lg_op_info ops[MAX_TEST_OPS];
    lg_operand operands[MAX_TEST_OPS][MAX_TEST_OPERANDS];
    int num_ops;
    uint64_t state;
    int num_layers;
    int num_micro;
    int inputs[MAX_TEST_LAYERS][2];
    int num_inputs[MAX_TEST_LAYERS];
    int64_t layer_bytes[MAX_TEST_LAYERS];
    bool has_param[MAX_TEST_LAYERS];
    bool is_joint[MAX_TEST_LAYERS];
    int param[MAX_TEST_LAYERS], dparam[MAX_TEST_LAYERS], slot[MAX_TEST_LAYERS];
    int act[MAX_TEST_MICRO][MAX_TEST_LAYERS];
    int stash[MAX_TEST_MICRO][MAX_TEST_LAYERS];
    int dx[MAX_TEST_LAYERS][2]; /* of the micro-batch at hand */
} graph_maker;

static inline int make_value(graph_maker *g, lg_value_kind kind, int64_t bytes, bool is_persistent,
                             bool is_output)
{
    assert_true(g->num_values < MAX_TEST_VALUES);
    g->values[g->num_values] = (lg_value_info){.kind = kind,
                                               .layer = -1,
                                               .micro_batch = -1,
                                               .bytes = bytes,
                                               .is_persistent = is_persistent,
                                               .is_output = is_output};
    return g->num_values++;
}

static inline lg_op_info *make_op(graph_maker *g, lg_op_kind kind)
{
    assert_true(g->num_ops < MAX_TEST_OPS);
    lg_op_info *op = &g->ops[g->num_ops];
    *op = (lg_op_info){.kind = kind,
                       .layer = -1,
                       .micro_batch = -1,
                       .operands = g->operands[g->num_ops],
                       .inplace_write = -1,
                       .inplace_read = -1,
                       .flops = 1000.0 * (1 + rnd_below(&g->state, 100)),
                       .traffic_bytes = 1000.0};
    g->num_ops++;
    for (int i = 0; i < 2 && rnd_chance(&g->state, 40); i++) {
        op->workspace_bytes[i] = 64 * rnd_below(&g->state, 40) + rnd_below(&g->state, 3);
    }
    return op;
}

static inline int use(graph_maker *g, int value, int access)
{
    lg_op_info *op = &g->ops[g->num_ops - 1];
    assert_true(op->num_operands < MAX_TEST_OPERANDS);
    g->operands[g->num_ops - 1][op->num_operands] =
        (lg_operand){.value = value, .role = LG_ROLE_X, .access = access};
    return op->num_operands++;
}

static inline void make_forward(graph_maker *g, int m)
{
    for (int l = 0; l < g->num_layers; l++) {
        lg_op_info *op = make_op(g, LG_OP_FORWARD);
        for (int i = 0; i < g->num_inputs[l]; i++) {
            use(g, g->act[m][g->inputs[l][i]], LG_ACCESS_READ);
        }
        if (g->has_param[l]) {
            use(g, g->param[l], LG_ACCESS_READ);
        }
        g->act[m][l] = make_value(g, LG_VALUE_ACTIVATION, g->layer_bytes[l], false, false);
        const int written = use(g, g->act[m][l], LG_ACCESS_WRITE);
        if (g->num_inputs[l] > 0 && rnd_chance(&g->state, 40)) {
            op->inplace_read = 0;
            op->inplace_write = written;
        }
        g->stash[m][l] = -1;
        if (rnd_chance(&g->state, 25)) {
            g->stash[m][l] = make_value(g, LG_VALUE_STASH, 40, false, false);
            use(g, g->stash[m][l], LG_ACCESS_WRITE);
        }
    }
}

static inline int make_grad_sum(graph_maker *g, int l)
{
    int parts[MAX_TEST_LAYERS * 2];
    int num_parts = 0;
    for (int reader = l + 1; reader < g->num_layers; reader++) {
        for (int i = 0; i < g->num_inputs[reader]; i++) {
            if (g->inputs[reader][i] == l) {
                parts[num_parts++] = g->dx[reader][i];
            }
        }
    }
    if (num_parts <= 1) {
        return num_parts == 1 ? parts[0] : -1;
    }
    lg_op_info *op = make_op(g, LG_OP_GRAD_ADD);
    for (int i = 0; i < num_parts; i++) {
        use(g, parts[i], LG_ACCESS_READ);
    }
    const int sum = make_value(g, LG_VALUE_GRAD, g->layer_bytes[l], false, false);
    op->inplace_read = 0;
    op->inplace_write = use(g, sum, LG_ACCESS_WRITE);
    return sum;
}

static inline void make_backward(graph_maker *g, int m)
{
    const int last = g->num_layers - 1;
    lg_op_info *loss = make_op(g, LG_OP_LOSS);
    const int read = use(g, g->act[m][last], LG_ACCESS_READ);
    use(g, make_value(g, LG_VALUE_LOSS, 32, false, true), LG_ACCESS_WRITE);
    const int loss_grad = make_value(g, LG_VALUE_GRAD, g->layer_bytes[last], false, false);
    loss->inplace_read = read;
    loss->inplace_write = use(g, loss_grad, LG_ACCESS_WRITE);
    for (int l = last; l >= 0; l--) {
        const int dy = l == last ? loss_grad : make_grad_sum(g, l);
        if (dy < 0) {
            for (int i = 0; i < g->num_inputs[l]; i++) { /* nobody reads it: its inputs get zeros */
                make_op(g, LG_OP_INPUT_GRAD);
                g->dx[l][i] =
                    make_value(g, LG_VALUE_GRAD, g->layer_bytes[g->inputs[l][i]], false, false);
                use(g, g->dx[l][i], LG_ACCESS_WRITE);
            }
            continue;
        }
        const int dparam_access = m == 0 ? LG_ACCESS_WRITE : LG_ACCESS_READ_WRITE;
        lg_op_info *op = make_op(g, LG_OP_INPUT_GRAD);
        const int dy_read = use(g, dy, LG_ACCESS_READ);
        if (g->has_param[l]) {
            use(g, g->param[l], LG_ACCESS_READ);
        }
        if (g->stash[m][l] >= 0) {
            use(g, g->stash[m][l], LG_ACCESS_READ);
        }
        for (int i = 0; i < g->num_inputs[l]; i++) {
            g->dx[l][i] =
                make_value(g, LG_VALUE_GRAD, g->layer_bytes[g->inputs[l][i]], false, false);
            const int written = use(g, g->dx[l][i], LG_ACCESS_WRITE);
            if (i == 0 && rnd_chance(&g->state, 40)) {
                op->inplace_read = dy_read;
                op->inplace_write = written;
            }
        }
        if (!g->has_param[l]) {
            continue;
        }
        if (g->is_joint[l]) {
            op->is_joint = true;
            use(g, g->dparam[l], dparam_access);
            continue;
        }
        make_op(g, LG_OP_WEIGHT_GRAD);
        use(g, dy, LG_ACCESS_READ);
        if (g->num_inputs[l] > 0) {
            use(g, g->act[m][g->inputs[l][0]], LG_ACCESS_READ);
        }
        use(g, g->dparam[l], dparam_access);
    }
}

static inline void make_updates(graph_maker *g)
{
    const bool has_clip = rnd_chance(&g->state, 25);
    int stats[MAX_TEST_LAYERS];
    int num_stats = 0;
    int clip = -1;
    for (int l = g->num_layers - 1; l >= 0 && has_clip; l--) {
        if (g->has_param[l]) {
            stats[num_stats] = make_value(g, LG_VALUE_SCALAR, 8, false, false);
            make_op(g, LG_OP_GRAD_STAT);
            use(g, g->dparam[l], LG_ACCESS_READ);
            use(g, stats[num_stats++], LG_ACCESS_WRITE);
        }
    }
    if (num_stats > 0) {
        clip = make_value(g, LG_VALUE_SCALAR, 8, false, false);
        make_op(g, LG_OP_GRAD_CLIP);
        for (int i = 0; i < num_stats; i++) {
            use(g, stats[i], LG_ACCESS_READ);
        }
        use(g, clip, LG_ACCESS_WRITE);
    }
    for (int l = g->num_layers - 1; l >= 0; l--) {
        if (!g->has_param[l]) {
            continue;
        }
        make_op(g, LG_OP_UPDATE);
        use(g, g->dparam[l], LG_ACCESS_READ);
        use(g, g->param[l], LG_ACCESS_READ_WRITE);
        use(g, g->slot[l], LG_ACCESS_READ_WRITE);
        if (clip >= 0) {
            use(g, clip, LG_ACCESS_READ);
        }
        for (int m = 0; m < g->num_micro; m++) {
            if (g->stash[m][l] >= 0) {
                use(g, g->stash[m][l], LG_ACCESS_READ);
            }
        }
    }
}

/* A training step of a small random network: fan-out, in-place ops, joint ops, micro-batches, perhaps clipping. */
static inline lg_graph *random_graph(uint64_t seed)
{
    static graph_maker maker;
    graph_maker *g = &maker;
    memset(g, 0, sizeof *g);
    g->state = seed * 0x9e3779b97f4a7c15ull + 1;
    g->num_layers = 2 + rnd_below(&g->state, MAX_TEST_LAYERS - 2);
    g->num_micro = 1 + rnd_below(&g->state, MAX_TEST_MICRO);
    for (int l = 0; l < g->num_layers; l++) {
        static const int64_t sizes[] = {4096, 4096, 1000, 64, 300};
        g->num_inputs[l] = l == 0 ? 0 : l > 2 && rnd_chance(&g->state, 35) ? 2 : 1;
        g->inputs[l][0] = l - 1;
        g->inputs[l][1] = l > 1 ? rnd_below(&g->state, l) : 0;
        g->layer_bytes[l] = sizes[rnd_below(&g->state, 5)];
        g->has_param[l] = rnd_chance(&g->state, 65);
        g->is_joint[l] = rnd_chance(&g->state, 25);
        if (g->has_param[l]) {
            g->param[l] = make_value(g, LG_VALUE_PARAM, 200 + l, true, false);
            g->dparam[l] = make_value(g, LG_VALUE_PARAM_GRAD, 200 + l, true, false);
            g->slot[l] = make_value(g, LG_VALUE_SLOT, 200 + l, true, false);
        }
    }
    for (int m = 0; m < g->num_micro; m++) {
        make_forward(g, m);
        make_backward(g, m);
    }
    make_updates(g);
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_widths = 2;
    opts.widths[0] = 1;
    opts.widths[1] = 2;
    lg_graph *graph = NULL;
    assert_ok(lgi_graph_from_records(&graph, &opts, g->values, g->num_values, g->ops, g->num_ops));
    return graph;
}

/* --- plans ---------------------------------------------------------------------------------------------------------- */

/* Sets the op and all that must lag with it to lag 1; false, and nothing changes, if an output's writer is among them. */
static inline bool set_lagging(const lg_graph *graph, int op, int *lag)
{
    const int num_ops = lg_graph_num_ops(graph);
    const lg_edge *edges = lg_graph_edges(graph);
    int *const next = calloc((size_t)num_ops, sizeof *next);
    memcpy(next, lag, (size_t)num_ops * sizeof *next);
    next[op] = 1;
    bool is_ok = true;
    for (int i = 0; i < lg_graph_num_edges(graph);
         i++) { /* sorted by `to`, so one pass is enough */
        if (edges[i].distance == 0 && next[edges[i].from] == 1) {
            next[edges[i].to] = 1;
        }
    }
    for (int i = 0; i < num_ops; i++) {
        const lg_op_info *info = lg_graph_op(graph, i);
        for (int k = 0; k < info->num_operands && next[i] == 1; k++) {
            is_ok = is_ok && !((info->operands[k].access & LG_ACCESS_WRITE) != 0 &&
                               lg_graph_value(graph, info->operands[k].value)->is_output);
        }
    }
    if (is_ok) {
        memcpy(lag, next, (size_t)num_ops * sizeof *lag);
    }
    free(next);
    return is_ok;
}

/* A plan in a random legal order on 1 to 3 lanes with random lags, without memory. */
static inline lg_plan *random_lanes(const lg_graph *graph, uint64_t seed, bool share_cores)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 7;
    const int num_ops = lg_graph_num_ops(graph);
    const int num_edges = lg_graph_num_edges(graph);
    const lg_edge *edges = lg_graph_edges(graph);
    const int num_lanes = 1 + rnd_below(&state, 3);
    const lg_graph_opts *opts = lg_graph_options(graph);
    lg_plan *plan = NULL;
    assert_ok(lgi_plan_init(&plan, graph, "random", num_lanes));
    int *const lag = calloc((size_t)num_ops, sizeof *lag);
    int *const waits = calloc((size_t)num_ops, sizeof *waits);
    int *const ready = calloc((size_t)num_ops, sizeof *ready);
    const int num_tries = rnd_below(&state, 10);
    for (int i = 0; i < num_tries; i++) {
        const int op = rnd_below(&state, num_ops);
        (void)set_lagging(graph, op, lag);
    }
    for (int i = 0; i < num_lanes; i++) {
        lg_lane *const lane = &plan->lanes[i];
        lane->num_cores = opts->widths[rnd_below(&state, opts->num_widths)];
        lane->first_core = share_cores ? 0 : 2 * i;
        assert_ok(lgi_calloc(&lane->entries, (size_t)num_ops + 1, sizeof *lane->entries));
    }
    for (int i = 0; i < num_edges; i++) {
        const lg_edge *e = &edges[i];
        waits[e->to] += e->distance + lag[e->to] - lag[e->from] == 0 ? 1 : 0;
    }
    int num_ready = 0;
    for (int op = 0; op < num_ops; op++) {
        if (waits[op] == 0) {
            ready[num_ready++] = op;
        }
    }
    assert_ok(lgi_realloc(&plan->syncs, (size_t)num_ops, sizeof *plan->syncs));
    int last_op = -1;
    int last_lane = -1;
    while (num_ready > 0) {
        const int i = rnd_below(&state, num_ready);
        const int op = ready[i];
        ready[i] = ready[--num_ready];
        const int lane_idx = rnd_below(&state, num_lanes);
        lg_lane *const lane = &plan->lanes[lane_idx];
        lane->entries[lane->num_entries++] = (lg_plan_entry){op, lag[op]};
        if (last_op >= 0 && lane_idx != last_lane && (share_cores || rnd_chance(&state, 10))) {
            plan->syncs[plan->num_syncs++] = (lg_plan_sync){last_op, op, 0};
        }
        last_op = op;
        last_lane = lane_idx;
        for (int k = 0; k < num_edges; k++) {
            const lg_edge *e = &edges[k];
            if (e->from == op && e->distance + lag[e->to] - lag[op] == 0 && --waits[e->to] == 0) {
                ready[num_ready++] = e->to;
            }
        }
    }
    free(lag);
    free(waits);
    free(ready);
    return plan;
}

static inline lg_plan *random_plan(const lg_graph *graph, uint64_t seed, bool share_cores)
{
    lg_plan *const plan = random_lanes(graph, seed, share_cores);
    assert_ok(lgi_plan_place(plan, graph));
    return plan;
}

/* Where an op stands. */
static inline lg_plan_entry *find_entry(const lg_plan *plan, int op, int *lane_idx)
{
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 0; i < plan->lanes[lane].num_entries; i++) {
            if (plan->lanes[lane].entries[i].op == op) {
                if (lane_idx != NULL) {
                    *lane_idx = lane;
                }
                return &plan->lanes[lane].entries[i];
            }
        }
    }
    return NULL;
}

/* --- oracle ----------------------------------------------------------------------------------------------------------- */

#define ORACLE_STEPS 4

/* Reachability between runs (op, step) of four steps, by depth-first search from each. */
typedef struct oracle {
    const lg_plan *plan;
    const lg_graph *graph;
    int num_ops;
    int *lag;
    int *lane;
    int *pos;
    bool *reach; /* [from * num + to] */
} oracle;

static inline bool has_arc(const oracle *o, int a, int step_a, int b, int step_b)
{
    const int it_a = step_a + o->lag[a];
    const int it_b = step_b + o->lag[b];
    if (it_a != it_b) {
        return it_a < it_b;
    }
    if (o->lane[a] == o->lane[b]) {
        return o->pos[a] < o->pos[b];
    }
    const lg_edge *edges = lg_graph_edges(o->graph);
    for (int i = 0; i < lg_graph_num_edges(o->graph); i++) {
        if (edges[i].from == a && edges[i].to == b && step_a + edges[i].distance == step_b) {
            return true;
        }
    }
    for (int i = 0; i < o->plan->num_syncs; i++) {
        const lg_plan_sync *s = &o->plan->syncs[i];
        if (s->from == a && s->to == b && s->distance == 0) {
            return true;
        }
    }
    return false;
}

static inline void search(oracle *o, const bool *arcs, int from, int at)
{
    const int num = o->num_ops * ORACLE_STEPS;
    for (int to = 0; to < num; to++) {
        if (arcs[at * num + to] && !o->reach[from * num + to]) {
            o->reach[from * num + to] = true;
            search(o, arcs, from, to);
        }
    }
}

static inline void oracle_init(oracle *o, const lg_plan *plan, const lg_graph *graph)
{
    o->plan = plan;
    o->graph = graph;
    o->num_ops = plan->num_ops;
    const int num = o->num_ops * ORACLE_STEPS;
    o->lag = calloc((size_t)o->num_ops, sizeof(int));
    o->lane = calloc((size_t)o->num_ops, sizeof(int));
    o->pos = calloc((size_t)o->num_ops, sizeof(int));
    o->reach = calloc((size_t)num * (size_t)num, sizeof(bool));
    bool *const arcs = calloc((size_t)num * (size_t)num, sizeof(bool));
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 0; i < plan->lanes[lane].num_entries; i++) {
            const lg_plan_entry e = plan->lanes[lane].entries[i];
            o->lag[e.op] = e.lag;
            o->lane[e.op] = lane;
            o->pos[e.op] = i;
        }
    }
    for (int a = 0; a < num; a++) {
        for (int b = 0; b < num; b++) {
            arcs[a * num + b] =
                has_arc(o, a / ORACLE_STEPS, a % ORACLE_STEPS, b / ORACLE_STEPS, b % ORACLE_STEPS);
        }
    }
    for (int a = 0; a < num; a++) {
        search(o, arcs, a, a);
    }
    free(arcs);
}

static inline void oracle_deinit(oracle *o)
{
    free(o->lag);
    free(o->lane);
    free(o->pos);
    free(o->reach);
}

static inline bool oracle_before(const oracle *o, int a, int step_a, int b, int step_b)
{
    return o->reach[(a * ORACLE_STEPS + step_a) * o->num_ops * ORACLE_STEPS + b * ORACLE_STEPS +
                    step_b];
}

/* Something that takes memory: a value (id below num_values) or the workspace of an op (above). */
static inline int oracle_ops(const oracle *o, int thing, int *ops)
{
    int num = 0;
    if (thing >= o->plan->num_values) {
        ops[num++] = thing - o->plan->num_values;
        return num;
    }
    for (int op = 0; op < o->num_ops; op++) {
        const lg_op_info *info = lg_graph_op(o->graph, op);
        for (int i = 0; i < info->num_operands; i++) {
            if (info->operands[i].value == thing) {
                ops[num++] = op;
                break;
            }
        }
    }
    return num;
}

static inline bool oracle_in_place(const oracle *o, int op, int x, int y)
{
    const lg_op_info *info = lg_graph_op(o->graph, op);
    int num_uses = 0;
    for (int i = 0; i < info->num_operands; i++) {
        num_uses += info->operands[i].value == x ? 1 : 0;
    }
    return info->inplace_read >= 0 && info->inplace_write >= 0 &&
           info->operands[info->inplace_read].value == x &&
           info->operands[info->inplace_write].value == y && num_uses == 1;
}

static inline bool oracle_wholly_before(const oracle *o, int x, int step_x, int y, int step_y,
                                        bool lie_alike)
{
    int ops_x[MAX_TEST_OPS];
    int ops_y[MAX_TEST_OPS];
    const int num_x = oracle_ops(o, x, ops_x);
    const int num_y = oracle_ops(o, y, ops_y);
    const bool is_output = x < o->plan->num_values && lg_graph_value(o->graph, x)->is_output;
    for (int i = 0; i < num_x; i++) {
        for (int k = 0; k < num_y; k++) {
            const int a = ops_x[i];
            const int b = ops_y[k];
            if (is_output && step_y + o->lag[b] <= step_x) {
                return false;
            }
            const bool is_taken_over = a == b && step_x == step_y && lie_alike &&
                                       x < o->plan->num_values && y < o->plan->num_values &&
                                       oracle_in_place(o, a, x, y);
            if (!is_taken_over && !oracle_before(o, a, step_x, b, step_y)) {
                return false;
            }
        }
    }
    return true;
}

static inline int64_t oracle_range(const oracle *o, int thing, int step, int64_t *end)
{
    int64_t begin = 0;
    int64_t bytes = 0;
    if (thing < o->plan->num_values) {
        const lg_placement *p = &o->plan->values[thing];
        begin = p->offset_bytes[p->num_slots == 2 ? step % 2 : 0];
        bytes = p->num_slots == 0 ? 0 : lg_graph_value(o->graph, thing)->bytes;
    } else {
        const int op = thing - o->plan->num_values;
        const int width = o->plan->lanes[o->lane[op]].num_cores;
        begin = o->plan->workspace_offset_bytes[op];
        bytes = lg_graph_op(o->graph, op)->workspace_bytes[width > 0 ? width - 1 : 0];
    }
    *end = begin + bytes;
    return begin;
}

static inline int oracle_rank(const oracle *o, int thing)
{
    return thing < o->plan->num_values ? lg_graph_value(o->graph, thing)->rank
                                       : lg_graph_op(o->graph, thing - o->plan->num_values)->rank;
}

/* Whether no two things that can be alive at one time share a byte. */
static inline bool oracle_accepts_memory(const oracle *o)
{
    const int num_things = o->plan->num_values + o->num_ops;
    for (int x = 0; x < num_things; x++) {
        for (int y = 0; y < num_things; y++) {
            for (int step_y = 0; step_y < 3; step_y++) {
                const int step_x = 1;
                const bool is_persistent_x =
                    x < o->plan->num_values && lg_graph_value(o->graph, x)->is_persistent;
                const bool is_persistent_y =
                    y < o->plan->num_values && lg_graph_value(o->graph, y)->is_persistent;
                if ((x == y && (step_x == step_y || is_persistent_x)) ||
                    oracle_rank(o, x) != oracle_rank(o, y)) {
                    continue;
                }
                for (int turn = 0; turn < 2; turn++) { /* both parities of the pair of steps */
                    int64_t end_x = 0;
                    int64_t end_y = 0;
                    const int64_t begin_x = oracle_range(o, x, step_x + turn, &end_x);
                    const int64_t begin_y = oracle_range(o, y, step_y + turn, &end_y);
                    if (begin_x == end_x || begin_y == end_y || begin_x >= end_y ||
                        begin_y >= end_x) {
                        continue;
                    }
                    const bool alike = begin_x == begin_y && end_x == end_y;
                    if (is_persistent_x || is_persistent_y ||
                        (!oracle_wholly_before(o, x, step_x, y, step_y, alike) &&
                         !oracle_wholly_before(o, y, step_y, x, step_x, alike))) {
                        return false;
                    }
                }
            }
        }
    }
    return true;
}

#endif
