/*
 * The exact optimum of small problems, and random small problems: to see how near the search comes. Public interface only;
 * everything follows from a seed.
 *
 * State space: the lanes are given (one compute lane per rank, one comm lane per peer and direction, one for reductions);
 * free are the order in every lane and the lags of weight gradients, reductions, statistics, clipping and updates.
 * Ops that meet are one node. For every legal choice of lags a branch and bound over pairs of nodes of one lane that
 * are not yet in order: state = the closure of "ends before the other starts"; branches = the two orders of the pair that
 * hurts most whichever way. When all lanes are in order the step time is the largest mean of cycles through the ranks' ends
 * of iterations: L[r][s] / 1, (L[r][s] + L[s][r]) / 2, ..., with L[r][s] the longest path from the begin of an iteration on
 * rank r to its end on rank s. The same with part of the order is a lower bound; for each lane, the work of a set of nodes
 * between the earliest begin and the shortest rest of them tightens it.
 *
 * Exact for links that are not shared, where the time of a message does not depend on others; at most LGX_MAX_RANKS ranks.
 */
#ifndef LGX_EXACT_PLAN_H
#define LGX_EXACT_PLAN_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/search.h"

#define LGX_MAX_NODES 40
#define LGX_MAX_RANKS 3
#define LGX_MAX_LANES 24
#define LGX_MAX_ARCS 400
/* Two times differ if they differ by more than this part: rounding. */
#define LGX_SAME_FRAC 1e-9

/* --- random problems ----------------------------------------------------------------------------------------------------- */

static inline uint32_t lgx_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717ull) >> 33);
}

static inline int lgx_below(uint64_t *state, int bound)
{
    return (int)(lgx_random(state) % (uint32_t)bound);
}

typedef struct lgx_case {
    lg_model *model;
    lg_graph *graph;
    lg_costs *costs;
    lg_machine machine;
} lgx_case;

static inline void lgx_case_deinit(lgx_case *c)
{
    lg_costs_destroy(c->costs);
    lg_graph_destroy(c->graph);
    lg_model_destroy(c->model);
    memset(c, 0, sizeof *c);
}

static inline lg_status lgx_make_model(lg_model **out, int num_layers, uint64_t *state)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int x = 0;
    int targets = 0;
    lg_status status = lg_model_create(out);
    attrs.input_shape = LG_SHAPE(4);
    status =
        status == LG_OK ? lg_model_add(*out, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &x) : status;
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_shape = lg_shape_make(0, NULL);
    status = status == LG_OK
                 ? lg_model_add(*out, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets)
                 : status;
    for (int i = 0; i < num_layers && status == LG_OK; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "h.%d", i);
        attrs = lg_layer_attrs_default();
        attrs.num_outputs = i + 1 < num_layers ? 2 + lgx_below(state, 7) : 4;
        attrs.has_bias = false;
        status = lg_model_add(*out, name, LG_LAYER_LINEAR, &attrs, &x, 1, &x);
    }
    const int last[] = {x, targets};
    return status == LG_OK
               ? lg_model_add(*out, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, last, 2, NULL)
               : status;
}

/* 2 or 3 pipeline ranks or 2 replicas, linear layers, random times; at most `max_ops` ops. */
static inline lg_status lgx_case_init(lgx_case *out, uint64_t seed, int max_ops)
{
    static const int shapes[][4] = {/* P, D, layers, M */
                                    {2, 1, 2, 1}, {2, 1, 2, 2}, {2, 1, 3, 1}, {2, 1, 3, 2},
                                    {2, 1, 2, 3}, {3, 1, 3, 1}, {1, 2, 2, 1}, {1, 2, 3, 1},
                                    {1, 2, 2, 2}, {1, 2, 4, 1}, {2, 1, 4, 1}};
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int attempt = 0; attempt < 100; attempt++) {
        memset(out, 0, sizeof *out);
        const int *const shape = shapes[lgx_below(&state, (int)(sizeof shapes / sizeof shapes[0]))];
        const int num_ranks = shape[0];
        int stage_of_layer[16] = {0};
        lg_status status = lgx_make_model(&out->model, shape[2], &state);
        const int cut = 1 + lgx_below(&state, shape[2] - num_ranks + 1); /* layers of stage 0 */
        for (int i = 0; i < shape[2] && num_ranks > 1; i++) {
            const int stage = i < cut ? 0 : 1 + (i - cut);
            stage_of_layer[2 + i] = stage < num_ranks ? stage : num_ranks - 1;
        }
        stage_of_layer[2 + shape[2]] = num_ranks - 1;
        const lg_parallel parallel = {.num_replicas = shape[1],
                                      .num_pipeline_ranks = num_ranks,
                                      .num_stages = num_ranks,
                                      .stage_of_layer = stage_of_layer};
        lg_graph_opts opts = lg_graph_opts_default();
        opts.num_samples = (int64_t)shape[1] * shape[3];
        opts.num_micro_batches = shape[3];
        opts.parallel = &parallel;
        status = status == LG_OK ? lg_graph_create(&out->graph, out->model, &opts) : status;
        status = status == LG_OK ? lg_costs_create(&out->costs, out->graph) : status;
        if (status != LG_OK) {
            lgx_case_deinit(out);
            return status;
        }
        for (int op = 0; op < lg_graph_num_ops(out->graph); op++) {
            lg_costs_set_op_ns(out->costs, op, 0, 1000.0 * (1 + lgx_below(&state, 100)));
        }
        out->machine = lg_machine_default();
        out->machine.num_ranks = out->machine.ranks_per_host = lg_graph_num_ranks(out->graph);
        out->machine.intra_host = (lg_link){.latency_ns = 500.0 * lgx_below(&state, 100),
                                            .bytes_per_s = 1e6 * (1 + lgx_below(&state, 1000)),
                                            .is_shared = false};
        if (lg_graph_num_ops(out->graph) <= max_ops) {
            return LG_OK;
        }
        lgx_case_deinit(out);
    }
    return LG_INTERNAL;
}

/* --- the solver ------------------------------------------------------------------------------------------------------------ */

typedef struct lgx_arc {
    int from;
    int to;
    int distance;
} lgx_arc;

typedef struct lgx_state {
    uint64_t before[LGX_MAX_NODES]; /* by node: nodes that end before it starts */
    uint64_t after[LGX_MAX_NODES];
} lgx_state;

typedef struct lgx_solver {
    const lg_graph *graph;
    const lg_plan *shape;
    int num_nodes;
    int num_ranks;
    int num_lanes;
    int node_of[256];              /* by op */
    int ops[LGX_MAX_NODES][4];     /* by node */
    int num_ops[LGX_MAX_NODES];    /* by node */
    double ns[LGX_MAX_NODES];      /* by node */
    unsigned ranks[LGX_MAX_NODES]; /* by node: bits */
    uint64_t lane[LGX_MAX_LANES];  /* nodes in it */
    bool may_lag[LGX_MAX_NODES];
    lgx_arc arcs[LGX_MAX_ARCS];
    int num_arcs;
    int lag[LGX_MAX_NODES];

    double best_ns;
    bool has_best;
    lgx_state best;
    int best_lag[LGX_MAX_NODES];
    long num_states;
    long max_states;
} lgx_solver;

static inline int lgx_count(uint64_t bits)
{
    int num = 0;
    for (; bits != 0; bits &= bits - 1) {
        num++;
    }
    return num;
}

/* Longest paths and the bound that they give. */
typedef struct lgx_paths {
    double head[LGX_MAX_RANKS][LGX_MAX_NODES]; /* from the begin on a rank to the start */
    double tail[LGX_MAX_RANKS][LGX_MAX_NODES]; /* from the end to the end on a rank */
    double whole[LGX_MAX_RANKS][LGX_MAX_RANKS];
} lgx_paths;

static inline void lgx_find_paths(const lgx_solver *x, const lgx_state *s, lgx_paths *p)
{
    int sorted[LGX_MAX_NODES];
    int num = 0;
    for (int count = 0; num < x->num_nodes; count++) { /* by how many come before: topological */
        for (int i = 0; i < x->num_nodes; i++) {
            if (lgx_count(s->before[i]) == count) {
                sorted[num++] = i;
            }
        }
    }
    for (int r = 0; r < x->num_ranks; r++) {
        for (int k = 0; k < num; k++) {
            const int i = sorted[k];
            double head = (x->ranks[i] >> r & 1u) != 0 ? 0.0 : -INFINITY;
            for (int j = 0; j < k; j++) {
                const int q = sorted[j];
                if ((s->before[i] >> q & 1u) != 0) {
                    head = fmax(head, p->head[r][q] + x->ns[q]);
                }
            }
            p->head[r][i] = head;
        }
        for (int k = num - 1; k >= 0; k--) {
            const int i = sorted[k];
            double tail = (x->ranks[i] >> r & 1u) != 0 ? 0.0 : -INFINITY;
            for (int j = k + 1; j < num; j++) {
                const int q = sorted[j];
                if ((s->after[i] >> q & 1u) != 0) {
                    tail = fmax(tail, p->tail[r][q] + x->ns[q]);
                }
            }
            p->tail[r][i] = tail;
        }
    }
}

/* The work of each lane's nodes that cannot start early, between their first begin and their shortest rest. */
static inline void lgx_add_lane_work(const lgx_solver *x, lgx_paths *p, int r, int s)
{
    for (int lane = 0; lane < x->num_lanes; lane++) {
        for (int first = 0; first < x->num_nodes; first++) {
            if ((x->lane[lane] >> first & 1u) == 0) {
                continue;
            }
            double work = 0.0;
            double rest = INFINITY;
            for (int i = 0; i < x->num_nodes; i++) {
                if ((x->lane[lane] >> i & 1u) != 0 && p->head[r][i] >= p->head[r][first]) {
                    work += x->ns[i];
                    rest = fmin(rest, p->tail[s][i]);
                }
            }
            p->whole[r][s] = fmax(p->whole[r][s], p->head[r][first] + work + rest);
        }
    }
}

static inline double lgx_largest_mean(const lgx_solver *x, double whole[][LGX_MAX_RANKS])
{
    double ns = 0.0;
    const int n = x->num_ranks;
    for (int r = 0; r < n; r++) {
        ns = fmax(ns, whole[r][r]);
        for (int s = 0; s < n; s++) {
            ns = fmax(ns, (whole[r][s] + whole[s][r]) / 2.0);
            for (int t = 0; t < n; t++) {
                ns = fmax(ns, (whole[r][s] + whole[s][t] + whole[t][r]) / 3.0);
            }
        }
    }
    return ns;
}

static inline double lgx_bound(const lgx_solver *x, const lgx_state *state, lgx_paths *p)
{
    lgx_find_paths(x, state, p);
    for (int r = 0; r < x->num_ranks; r++) {
        for (int s = 0; s < x->num_ranks; s++) {
            p->whole[r][s] = -INFINITY;
            for (int i = 0; i < x->num_nodes; i++) {
                p->whole[r][s] = fmax(p->whole[r][s], p->head[r][i] + x->ns[i] + p->tail[s][i]);
            }
            lgx_add_lane_work(x, p, r, s);
        }
    }
    return lgx_largest_mean(x, p->whole);
}

/* False: `to` comes before `from` already. */
static inline bool lgx_add_arc(const lgx_solver *x, lgx_state *s, int from, int to)
{
    if (from == to || (s->before[from] >> to & 1u) != 0) {
        return false;
    }
    const uint64_t front = s->before[from] | 1ull << from;
    const uint64_t back = s->after[to] | 1ull << to;
    for (int i = 0; i < x->num_nodes; i++) {
        s->before[i] |= (back >> i & 1u) != 0 ? front : 0;
        s->after[i] |= (front >> i & 1u) != 0 ? back : 0;
    }
    return true;
}

/* At least the step time if `a` comes right before `b`. */
static inline double lgx_pair_bound(const lgx_solver *x, const lgx_paths *p, int a, int b)
{
    double ns = 0.0;
    for (int r = 0; r < x->num_ranks; r++) {
        for (int s = 0; s < x->num_ranks; s++) {
            const double path = p->head[r][a] + x->ns[a] + x->ns[b] + p->tail[s][b];
            ns = fmax(ns, r == s ? path : (path + p->whole[s][r]) / 2.0);
        }
    }
    return ns;
}

static inline bool lgx_beats(const lgx_solver *x, double ns)
{
    return ns < x->best_ns * (1.0 - LGX_SAME_FRAC);
}

static inline void lgx_branch(lgx_solver *x, lgx_state s)
{
    lgx_paths paths;
    for (;;) {
        if (x->num_states++ >= x->max_states) {
            return;
        }
        const double ns = lgx_bound(x, &s, &paths);
        if (!lgx_beats(x, ns)) {
            return;
        }
        double worst = -1.0;
        int pair[2] = {-1, -1};
        bool is_forced = false;
        for (int lane = 0; lane < x->num_lanes && !is_forced; lane++) {
            for (int a = 0; a < x->num_nodes && !is_forced; a++) {
                for (int b = a + 1; b < x->num_nodes && !is_forced; b++) {
                    const uint64_t both = 1ull << a | 1ull << b;
                    if ((x->lane[lane] & both) != both ||
                        ((s.before[a] | s.after[a]) >> b & 1u) != 0) {
                        continue;
                    }
                    const double ab = lgx_pair_bound(x, &paths, a, b);
                    const double ba = lgx_pair_bound(x, &paths, b, a);
                    const bool can_ab = lgx_beats(x, ab);
                    const bool can_ba = lgx_beats(x, ba);
                    if (!can_ab && !can_ba) {
                        return;
                    }
                    if (!can_ab || !can_ba) {
                        is_forced = true;
                    }
                    if (is_forced || fmin(ab, ba) > worst) {
                        worst = fmin(ab, ba);
                        pair[0] = !can_ab || (can_ba && ba < ab) ? b : a; /* the better way first */
                        pair[1] = pair[0] == a ? b : a;
                    }
                }
            }
        }
        if (pair[0] < 0) { /* all lanes are in order */
            x->best_ns = ns;
            x->has_best = true;
            x->best = s;
            memcpy(x->best_lag, x->lag, sizeof x->lag);
            return;
        }
        if (!is_forced) {
            lgx_state other = s;
            if (lgx_add_arc(x, &other, pair[0], pair[1])) {
                lgx_branch(x, other);
            }
            pair[0] ^= pair[1];
            pair[1] ^= pair[0];
            pair[0] ^= pair[1];
        }
        if (!lgx_add_arc(x, &s, pair[0], pair[1])) {
            return;
        }
    }
}

/* The state with the edges only; false if lags break one. */
static inline bool lgx_first_state(const lgx_solver *x, lgx_state *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < x->num_arcs; i++) {
        const lgx_arc *const a = &x->arcs[i];
        const int delta = a->distance + x->lag[a->to] - x->lag[a->from];
        if (delta < 0 || (delta == 0 && !lgx_add_arc(x, s, a->from, a->to))) {
            return false;
        }
    }
    return true;
}

/* All choices of lags, from the last node to the first: one may lag if all that waits for it in its step does. */
static inline void lgx_choose_lags(lgx_solver *x, int node)
{
    if (node < 0) {
        lgx_state s;
        if (lgx_first_state(x, &s)) {
            lgx_branch(x, s);
        }
        return;
    }
    x->lag[node] = 0;
    lgx_choose_lags(x, node - 1);
    bool may_lag = x->may_lag[node];
    for (int i = 0; i < x->num_arcs && may_lag; i++) {
        may_lag = x->arcs[i].from != node || x->arcs[i].distance > 0 || x->lag[x->arcs[i].to] == 1;
    }
    if (may_lag) {
        x->lag[node] = 1;
        lgx_choose_lags(x, node - 1);
        x->lag[node] = 0;
    }
}

static inline double lgx_node_ns(const lgx_case *c, const lg_op_info *info, int op, int num_ops)
{
    const lg_link *const link = &c->machine.intra_host;
    if (info->group < 0) {
        return lg_costs_op_ns(c->costs, op, 0);
    }
    const bool is_reduction = info->kind == LG_OP_ALL_REDUCE; /* direct, a wire for each pair */
    const double rounds = is_reduction ? 2.0 : 1.0;
    const double bytes =
        is_reduction ? rounds / num_ops * (double)info->message_bytes : (double)info->message_bytes;
    return rounds * link->latency_ns + bytes / link->bytes_per_s * 1e9;
}

/* Sets up the nodes, in an order in which edges inside a step ascend. Returns a text if the case is too large. */
static inline const char *lgx_solver_init(lgx_solver *x, const lgx_case *c, const lg_plan *shape)
{
    const int num_ops = lg_graph_num_ops(c->graph);
    memset(x, 0, sizeof *x);
    x->graph = c->graph;
    x->shape = shape;
    x->num_ranks = lg_graph_num_ranks(c->graph);
    x->num_lanes = shape->num_lanes;
    if (num_ops > 256 || x->num_ranks > LGX_MAX_RANKS || x->num_lanes > LGX_MAX_LANES ||
        lg_graph_num_edges(c->graph) > LGX_MAX_ARCS) {
        return "the case is too large";
    }
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(c->graph, op);
        int node = -1;
        for (int i = 0; i < x->num_nodes && info->group >= 0; i++) {
            node = lg_graph_op(c->graph, x->ops[i][0])->group == info->group ? i : node;
        }
        if (node < 0 && (node = x->num_nodes++) >= LGX_MAX_NODES) {
            return "the case has too many nodes";
        }
        x->node_of[op] = node;
        x->ops[node][x->num_ops[node]++] = op;
        x->ranks[node] |= 1u << info->rank;
        x->may_lag[node] = info->kind == LG_OP_WEIGHT_GRAD || info->kind == LG_OP_ALL_REDUCE ||
                           info->kind == LG_OP_GRAD_STAT || info->kind == LG_OP_GRAD_CLIP ||
                           info->kind == LG_OP_UPDATE;
    }
    for (int i = 0; i < x->num_nodes; i++) {
        const int op = x->ops[i][0];
        x->ns[i] = lgx_node_ns(c, lg_graph_op(c->graph, op), op, x->num_ops[i]);
    }
    for (int i = 0; i < lg_graph_num_edges(c->graph); i++) {
        const lg_edge *const edge = &lg_graph_edges(c->graph)[i];
        const lgx_arc arc = {x->node_of[edge->from], x->node_of[edge->to], edge->distance};
        if (arc.from != arc.to) {
            x->arcs[x->num_arcs++] = arc;
        }
    }
    for (int lane = 0; lane < shape->num_lanes; lane++) {
        for (int i = 0; i < shape->lanes[lane].num_entries; i++) {
            x->lane[lane] |= 1ull << x->node_of[shape->lanes[lane].entries[i].op];
        }
    }
    return NULL;
}

/* The step time of a plan with the solver's lanes, by its own reckoning; -1: not legal. */
static inline double lgx_step_ns(lgx_solver *x, const lg_plan *plan)
{
    lgx_state s;
    lgx_paths paths;
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 0; i < plan->lanes[lane].num_entries; i++) {
            x->lag[x->node_of[plan->lanes[lane].entries[i].op]] = plan->lanes[lane].entries[i].lag;
        }
    }
    bool is_legal = lgx_first_state(x, &s);
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 1; i < plan->lanes[lane].num_entries; i++) {
            const lg_plan_entry *const e = &plan->lanes[lane].entries[i];
            is_legal = is_legal && lgx_add_arc(x, &s, x->node_of[e[-1].op], x->node_of[e->op]);
        }
    }
    return is_legal ? lgx_bound(x, &s, &paths) : -1.0;
}

/*
 * The least step time, if it is below `known_ns`, else `known_ns`. *is_proved: the bound on states was not reached.
 */
static inline double lgx_solve(lgx_solver *x, double known_ns, long max_states, bool *is_proved)
{
    x->best_ns = known_ns;
    x->has_best = false;
    x->num_states = 0;
    x->max_states = max_states;
    memset(x->lag, 0, sizeof x->lag);
    lgx_choose_lags(x, x->num_nodes - 1);
    *is_proved = x->num_states < max_states;
    return x->best_ns;
}

/* The plan of the best that lgx_solve() found; only if has_best. */
static inline lg_status lgx_best_plan(const lgx_solver *x, lg_plan **out)
{
    lg_lane lanes[LGX_MAX_LANES];
    lg_plan_entry entries[LGX_MAX_LANES][LGX_MAX_NODES];
    for (int lane = 0; lane < x->num_lanes; lane++) {
        lanes[lane] = x->shape->lanes[lane];
        lanes[lane].entries = entries[lane];
        for (int i = 0; i < lanes[lane].num_entries; i++) {
            const int op = x->shape->lanes[lane].entries[i].op;
            const int node = x->node_of[op];
            const int pos = lgx_count(x->best.before[node] & x->lane[lane]);
            entries[lane][pos] = (lg_plan_entry){.op = op, .lag = x->best_lag[node]};
        }
    }
    return lg_plan_from_lanes(out, "exact", x->graph, lanes, x->num_lanes, NULL, 0);
}

#endif
