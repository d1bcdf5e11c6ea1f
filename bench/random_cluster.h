/*
 * Random models spread over random ranks, random legal plans of their step graphs, and faults to plant in them: for property
 * tests and the long run in plan_fuzz.c. Public interface only; everything follows from a seed. Functions return NULL or a
 * text that says what went wrong.
 */
#ifndef LGB_RANDOM_CLUSTER_H
#define LGB_RANDOM_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/plan.h"

#define LGB_MAX_LAYERS 24
#define LGB_MAX_STAGES 8
#define LGB_TEXT_BYTES 1200

/* xorshift64*, of which the high bits are used. */
static inline uint32_t lgb_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717ull) >> 33);
}

static inline int lgb_below(uint64_t *state, int bound)
{
    return (int)(lgb_random(state) % (uint32_t)bound);
}

static inline uint64_t lgb_seed(uint64_t seed)
{
    return seed * 0x9e3779b97f4a7c15ull + 1;
}

static inline void *lgb_alloc(size_t count, size_t bytes)
{
    void *const memory = calloc(count > 0 ? count : 1, bytes);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

typedef struct lgb_cluster {
    lg_model *model;
    lg_graph *graph;
    lg_costs *costs;
    lg_machine machine;
    int num_pipeline_ranks;
} lgb_cluster;

/* --- graphs ------------------------------------------------------------------------------------------------------------- */

/* Linear layers, activations and sums of equal shape; the last one makes logits. */
static inline lg_status lgb_add_layers(lg_model *model, uint64_t *state)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int ids[LGB_MAX_LAYERS];
    int num = 0;
    int targets = 0;
    attrs.input_shape = LG_SHAPE(8);
    lg_status status = lg_model_add(model, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &ids[num++]);
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_shape = LG_SHAPE(1);
    attrs.input_shape.num_dims = 0;
    status = status == LG_OK
                 ? lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets)
                 : status;
    const int num_layers = 2 + lgb_below(state, 7);
    for (int i = 0; i < num_layers && status == LG_OK; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer%d", i);
        attrs = lg_layer_attrs_default();
        attrs.num_outputs = 8;
        attrs.has_bias = lgb_below(state, 2) == 0;
        attrs.activation = LG_ACTIVATION_RELU;
        const int what = i == 0 ? 0 : lgb_below(state, 5);
        const int inputs[] = {ids[num - 1], ids[num > 2 ? 1 + lgb_below(state, num - 1) : num - 1]};
        if (what == 1 && num > 2) {
            attrs.activation = LG_ACTIVATION_NONE;
            status = lg_model_add(model, name, LG_LAYER_ADD, &attrs, inputs, 2, &ids[num++]);
        } else if (what == 2) {
            status = lg_model_add(model, name, LG_LAYER_ACTIVATION, &attrs, inputs, 1, &ids[num++]);
        } else if (what == 3) {
            status = lg_model_add(model, name, LG_LAYER_LAYER_NORM, &attrs, inputs, 1, &ids[num++]);
        } else {
            status = lg_model_add(model, name, LG_LAYER_LINEAR, &attrs, inputs, 1, &ids[num++]);
        }
    }
    const int last[] = {ids[num - 1], targets};
    return status == LG_OK
               ? lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, last, 2, NULL)
               : status;
}

static inline void lgb_cluster_deinit(lgb_cluster *c)
{
    lg_costs_destroy(c->costs);
    lg_graph_destroy(c->graph);
    lg_model_destroy(c->model);
    memset(c, 0, sizeof *c);
}

/* Stages anywhere, some perhaps empty; stages of a layer ascend. */
static inline void lgb_spread_anyhow(lg_parallel *parallel, int num_layers, int *stages,
                                     int *rank_of_stage, uint64_t *state)
{
    parallel->num_pipeline_ranks = 1 + lgb_below(state, 4);
    parallel->num_stages = parallel->num_pipeline_ranks + lgb_below(state, 4);
    for (int layer = 2; layer < num_layers; layer++) {
        const int next = stages[layer - 1] + (layer > 2 && lgb_below(state, 2) == 0 ? 1 : 0);
        stages[layer] = next < parallel->num_stages ? next : parallel->num_stages - 1;
    }
    const int placement = lgb_below(state, 3);
    for (int stage = 0; stage < parallel->num_stages; stage++) {
        rank_of_stage[stage] = placement == 0 ? stage % parallel->num_pipeline_ranks
                               : placement == 1
                                   ? stage * parallel->num_pipeline_ranks / parallel->num_stages
                                   : lgb_below(state, parallel->num_pipeline_ranks);
    }
}

/* One stage a rank, or two in a loop or in a V, none empty: what pipeline strategies want. */
static inline void lgb_spread_evenly(lg_parallel *parallel, int num_layers, int *stages,
                                     int *rank_of_stage, uint64_t *state)
{
    const int num_placed = num_layers - 2;
    const int per_rank = num_placed >= 4 ? 1 + lgb_below(state, 2) : 1;
    const int most = num_placed / per_rank < 4 ? num_placed / per_rank : 4;
    const bool is_v = per_rank == 2 && lgb_below(state, 2) == 0;
    const int num_ranks = 1 + lgb_below(state, most);
    parallel->num_pipeline_ranks = num_ranks;
    parallel->num_stages = num_ranks * per_rank;
    for (int layer = 2; layer < num_layers; layer++) {
        stages[layer] = (layer - 2) * parallel->num_stages / num_placed;
    }
    for (int stage = 0; stage < parallel->num_stages; stage++) {
        rank_of_stage[stage] =
            is_v && stage >= num_ranks ? 2 * num_ranks - 1 - stage : stage % num_ranks;
    }
}

/* A fifth of the graphs only goes forward; decided apart from the rest, so that it changes nothing else of a seed. */
static inline lg_graph_mode lgb_mode(uint64_t seed)
{
    uint64_t state = lgb_seed(seed + 31337);
    const int what = lgb_below(&state, 10);
    return what == 0 ? LG_GRAPH_EVAL : what == 1 ? LG_GRAPH_PREDICT : LG_GRAPH_TRAIN;
}

/* Layers share messages in half of the graphs; decided apart from the rest, too. */
static inline int64_t lgb_share_bytes(uint64_t seed)
{
    uint64_t state = lgb_seed(seed + 27182);
    return lgb_below(&state, 2) == 0 ? 0 : (int64_t)1 << lgb_below(&state, 14);
}

/* D x P ranks with V stages, M micro-batches that may be ragged, on a machine of random hosts. */
static inline lg_status lgb_cluster_init(lgb_cluster *out, uint64_t seed, bool is_even)
{
    uint64_t state = lgb_seed(seed);
    memset(out, 0, sizeof *out);
    lg_status status = lg_model_create(&out->model);
    status = status == LG_OK ? lgb_add_layers(out->model, &state) : status;
    if (status != LG_OK) {
        return status;
    }
    const int num_layers = lg_model_num_layers(out->model);
    int stages[LGB_MAX_LAYERS + 8] = {0};
    int rank_of_stage[LGB_MAX_STAGES];
    lg_parallel parallel = {.num_replicas = 1 + lgb_below(&state, 3)};
    (is_even ? lgb_spread_evenly : lgb_spread_anyhow)(&parallel, num_layers, stages, rank_of_stage,
                                                      &state);
    parallel.stage_of_layer = stages;
    parallel.rank_of_stage = rank_of_stage;
    parallel.chunk_bytes = lgb_below(&state, 3) == 0 ? 128 : 0;
    parallel.share_bytes = lgb_share_bytes(seed);
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_micro_batches = 1 + lgb_below(&state, 4);
    opts.num_samples = (int64_t)opts.num_micro_batches * parallel.num_replicas +
                       lgb_below(&state, 1 + parallel.num_replicas);
    opts.num_slots = lgb_below(&state, 2);
    opts.has_clipping = lgb_below(&state, 3) == 0;
    opts.mode = lgb_mode(seed);
    opts.parallel = &parallel;
    status = lg_graph_create(&out->graph, out->model, &opts);
    status = status == LG_OK ? lg_costs_create(&out->costs, out->graph) : status;
    if (status != LG_OK) {
        return status;
    }
    for (int op = 0; op < lg_graph_num_ops(out->graph); op++) {
        lg_costs_set_op_ns(out->costs, op, 0, 10.0 * lgb_below(&state, 100));
    }
    out->num_pipeline_ranks = parallel.num_pipeline_ranks;
    out->machine = lg_machine_default();
    out->machine.num_ranks = lg_graph_num_ranks(out->graph);
    out->machine.ranks_per_host = 1 + lgb_below(&state, out->machine.num_ranks);
    out->machine.num_cores = 2;
    out->machine.corun_slowdown = lgb_below(&state, 2) == 0 ? 1.0 : 1.3;
    out->machine.intra_host =
        (lg_link){10.0 * lgb_below(&state, 20), 1e9, lgb_below(&state, 2) == 0};
    out->machine.inter_host = (lg_link){50.0 * lgb_below(&state, 20), 3e8, true};
    out->machine.reduction =
        lgb_below(&state, 3) == 0 ? LG_REDUCTION_TWO_LEVEL : LG_REDUCTION_DIRECT;
    return LG_OK;
}

/* --- plans -------------------------------------------------------------------------------------------------------------- */

static inline bool lgb_is_message(lg_op_kind kind)
{
    return kind == LG_OP_SEND || kind == LG_OP_RECV;
}

/* Lets `op` lag, with all that follows it in its step and all that those meet; false if an output would be late. */
static inline bool lgb_let_lag(const lg_graph *graph, int op, int *lag)
{
    const int num_ops = lg_graph_num_ops(graph);
    const lg_edge *const edges = lg_graph_edges(graph);
    int *const next = lgb_alloc((size_t)num_ops, sizeof *next);
    bool *const lags = lgb_alloc((size_t)lg_graph_num_groups(graph), sizeof *lags);
    memcpy(next, lag, (size_t)num_ops * sizeof *next);
    next[op] = 1;
    bool has_changed = true;
    bool is_ok = true;
    while (has_changed) {
        has_changed = false;
        for (int i = 0; i < lg_graph_num_edges(graph); i++) {
            if (edges[i].distance == 0 && next[edges[i].from] == 1 && next[edges[i].to] == 0) {
                next[edges[i].to] = 1;
                has_changed = true;
            }
        }
        for (int i = 0; i < num_ops; i++) {
            const int group = lg_graph_op(graph, i)->group;
            if (group >= 0 && next[i] == 1) {
                lags[group] = true;
            }
        }
        for (int i = 0; i < num_ops; i++) {
            const int group = lg_graph_op(graph, i)->group;
            if (group >= 0 && lags[group] && next[i] == 0) {
                next[i] = 1;
                has_changed = true;
            }
        }
    }
    for (int i = 0; i < num_ops; i++) {
        const lg_op_info *const info = lg_graph_op(graph, i);
        for (int k = 0; k < info->num_operands && next[i] == 1; k++) {
            is_ok = is_ok && ((info->operands[k].access & LG_ACCESS_WRITE) == 0 ||
                              !lg_graph_value(graph, info->operands[k].value)->is_output);
        }
    }
    if (is_ok) {
        memcpy(lag, next, (size_t)num_ops * sizeof *lag);
    }
    free(next);
    free(lags);
    return is_ok;
}

/* Lane numbers: per rank two for computing, one for reductions, and for each peer one out and one in; or one for all. */
static inline int lgb_lane(const lg_op_info *op, int num_ranks, bool has_one_comm, uint64_t *state,
                           int num_compute)
{
    const int per_rank = 3 + 2 * num_ranks;
    int lane = lgb_below(state, num_compute);
    if (op->kind == LG_OP_ALL_REDUCE || (lgb_is_message(op->kind) && has_one_comm)) {
        lane = 2;
    } else if (lgb_is_message(op->kind)) {
        lane = 3 + 2 * op->peer + (op->kind == LG_OP_SEND ? 0 : 1);
    }
    return op->rank * per_rank + lane;
}

/* A random order of all ranks' ops in which ops that meet stand together, dealt out to lanes. */
static inline lg_status lgb_random_plan(lg_plan **out, const lgb_cluster *c, uint64_t seed)
{
    uint64_t state = lgb_seed(seed + 77);
    const lg_graph *const graph = c->graph;
    const int num_ops = lg_graph_num_ops(graph);
    const int num_edges = lg_graph_num_edges(graph);
    const int num_groups = lg_graph_num_groups(graph);
    const int num_ranks = lg_graph_num_ranks(graph);
    const lg_edge *const edges = lg_graph_edges(graph);
    const int num_compute = 1 + lgb_below(&state, 2);
    const bool has_one_comm = lgb_below(&state, 4) == 0;
    const int num_lanes = num_ranks * (3 + 2 * num_ranks);
    int *const lag = lgb_alloc((size_t)num_ops, sizeof *lag);
    int *const waits = lgb_alloc((size_t)num_ops, sizeof *waits);
    int *const ready = lgb_alloc((size_t)num_ops, sizeof *ready);
    int *const missing = lgb_alloc((size_t)num_groups, sizeof *missing);
    lg_lane *const lanes = lgb_alloc((size_t)num_lanes, sizeof *lanes);
    const int num_tries = lgb_below(&state, 3);
    for (int i = 0; i < num_tries; i++) {
        (void)lgb_let_lag(graph, lgb_below(&state, num_ops), lag);
    }
    for (int i = 0; i < num_lanes; i++) {
        const int k = i % (3 + 2 * num_ranks);
        lanes[i].rank = i / (3 + 2 * num_ranks);
        lanes[i].kind = k < 2 ? LG_LANE_COMPUTE : LG_LANE_COMM;
        lanes[i].first_core = k == 1 ? 1 : 0;
        lanes[i].num_cores = k < 2 ? 1 : 0;
        lanes[i].entries = lgb_alloc((size_t)num_ops, sizeof *lanes[i].entries);
    }
    for (int i = 0; i < num_edges; i++) {
        const lg_edge *const e = &edges[i];
        const bool is_meeting =
            lg_graph_op(graph, e->from)->group >= 0 &&
            lg_graph_op(graph, e->from)->group == lg_graph_op(graph, e->to)->group;
        waits[e->to] += !is_meeting && e->distance + lag[e->to] - lag[e->from] == 0 ? 1 : 0;
    }
    int num_ready = 0;
    for (int op = 0; op < num_ops; op++) {
        const int group = lg_graph_op(graph, op)->group;
        missing[group < 0 ? 0 : group] += group < 0 ? 0 : 1;
    }
    for (int op = 0; op < num_ops; op++) {
        const int group = lg_graph_op(graph, op)->group;
        if (waits[op] == 0 && (group < 0 || --missing[group] == 0)) {
            ready[num_ready++] = op;
        }
    }
    while (num_ready > 0) {
        const int i = lgb_below(&state, num_ready);
        const int node = ready[i];
        ready[i] = ready[--num_ready];
        const int group = lg_graph_op(graph, node)->group;
        for (int op = group < 0 ? node : 0; op < (group < 0 ? node + 1 : num_ops); op++) {
            const lg_op_info *const info = lg_graph_op(graph, op);
            if (group >= 0 && info->group != group) {
                continue;
            }
            lg_lane *const lane =
                &lanes[lgb_lane(info, num_ranks, has_one_comm, &state, num_compute)];
            lane->entries[lane->num_entries++] = (lg_plan_entry){op, lag[op]};
            for (int k = 0; k < num_edges; k++) {
                const lg_edge *const e = &edges[k];
                const int to_group = lg_graph_op(graph, e->to)->group;
                if (e->from != op || e->distance + lag[e->to] - lag[op] != 0 ||
                    (group >= 0 && to_group == group)) {
                    continue;
                }
                if (--waits[e->to] == 0 && (to_group < 0 || --missing[to_group] == 0)) {
                    ready[num_ready++] = e->to;
                }
            }
        }
    }
    const lg_status status = lg_plan_from_lanes(out, "random", graph, lanes, num_lanes, NULL, 0);
    for (int i = 0; i < num_lanes; i++) {
        free(lanes[i].entries);
    }
    free(lanes);
    free(lag);
    free(waits);
    free(ready);
    free(missing);
    return status;
}

/* --- what must hold ----------------------------------------------------------------------------------------------------- */

/* The timeline runs each op once, in lane order, after what it waits for, with those that it meets. */
static inline bool lgb_is_timeline_right(const lg_timeline *timeline, const lg_plan *plan,
                                         const lg_graph *graph, char *why)
{
    const int num_ops = plan->num_ops;
    const lg_span **const span_of = lgb_alloc((size_t)num_ops, sizeof *span_of);
    const lg_span **const of_group =
        lgb_alloc((size_t)lg_graph_num_groups(graph), sizeof *of_group);
    const double slack_ns = 1e-6; /* sums of a few hundred doubles below 1e6 */
    bool is_ok = timeline->num_spans == num_ops && timeline->step_ns >= 0.0;
    (void)snprintf(why, LGB_TEXT_BYTES, "%d spans for %d ops", timeline->num_spans, num_ops);
    for (int i = 0; i < timeline->num_spans && is_ok; i++) {
        const lg_span *const span = &timeline->spans[i];
        const int group = lg_graph_op(graph, span->op)->group;
        is_ok = span_of[span->op] == NULL && span->end_ns >= span->start_ns &&
                (i == 0 || span->start_ns >= span[-1].start_ns);
        span_of[span->op] = span;
        if (group >= 0) {
            is_ok =
                is_ok && (of_group[group] == NULL || (of_group[group]->start_ns == span->start_ns &&
                                                      of_group[group]->end_ns == span->end_ns));
            of_group[group] = span;
        }
        (void)snprintf(why, LGB_TEXT_BYTES, "span of '%s'", lg_graph_op(graph, span->op)->name);
    }
    for (int lane = 0; lane < plan->num_lanes && is_ok; lane++) {
        for (int pos = 1; pos < plan->lanes[lane].num_entries && is_ok; pos++) {
            const lg_span *const before = span_of[plan->lanes[lane].entries[pos - 1].op];
            const lg_span *const after = span_of[plan->lanes[lane].entries[pos].op];
            is_ok = after->start_ns >= before->end_ns - slack_ns;
            (void)snprintf(why, LGB_TEXT_BYTES, "'%s' before '%s' in lane %d",
                           lg_graph_op(graph, before->op)->name,
                           lg_graph_op(graph, after->op)->name, lane);
        }
    }
    const lg_edge *const edges = lg_graph_edges(graph);
    for (int i = 0; i < lg_graph_num_edges(graph) && is_ok; i++) {
        const lg_span *const from = span_of[edges[i].from];
        const lg_span *const to = span_of[edges[i].to];
        const int group = lg_graph_op(graph, edges[i].from)->group;
        const bool is_meeting = group >= 0 && group == lg_graph_op(graph, edges[i].to)->group;
        is_ok = is_meeting || from->step + edges[i].distance != to->step ||
                to->start_ns >= from->end_ns - slack_ns;
        (void)snprintf(why, LGB_TEXT_BYTES, "edge '%s' -> '%s'",
                       lg_graph_op(graph, edges[i].from)->name,
                       lg_graph_op(graph, edges[i].to)->name);
    }
    free(span_of);
    free(of_group);
    return is_ok;
}

/* Live bytes never exceed the arena; busy and waiting time fit into the step. */
static inline bool lgb_are_stats_right(const lg_timeline *timeline, const lg_plan *plan,
                                       const lg_graph *graph, char *why)
{
    lg_rank_stats *const stats = lgb_alloc((size_t)plan->num_ranks, sizeof *stats);
    bool is_ok = lg_timeline_stats(stats, timeline, plan, graph) == LG_OK;
    (void)snprintf(why, LGB_TEXT_BYTES, "statistics: %s", is_ok ? "" : lg_last_error());
    for (int rank = 0; rank < plan->num_ranks && is_ok; rank++) {
        const double slack_ns = 1e-6 * (1.0 + timeline->step_ns);
        is_ok = stats[rank].busy_ns <= timeline->step_ns + slack_ns &&
                stats[rank].bubble_frac <= 1.0 + 1e-9 && stats[rank].exposed_comm_ns >= 0.0 &&
                stats[rank].exposed_comm_ns <= timeline->step_ns + slack_ns &&
                stats[rank].peak_bytes == plan->peak_bytes[rank];
        (void)snprintf(why, LGB_TEXT_BYTES, "rank %d: busy %g ns, exposed %g ns in a step of %g ns",
                       rank, stats[rank].busy_ns, stats[rank].exposed_comm_ns, timeline->step_ns);
    }
    for (int i = 0; i < timeline->num_memory_points && is_ok; i++) {
        const lg_memory_point *const point = &timeline->memory_points[i];
        is_ok = point->bytes >= 0 && point->bytes <= plan->peak_bytes[point->rank];
        (void)snprintf(why, LGB_TEXT_BYTES, "rank %d has %lld live bytes at %g ns, its arena %lld",
                       point->rank, (long long)point->bytes, point->time_ns,
                       (long long)plan->peak_bytes[point->rank]);
    }
    free(stats);
    return is_ok;
}

/* NULL if the plan is accepted, runs on paper to its end, and both are consistent; else why not. */
static inline const char *lgb_check_plan(const lgb_cluster *c, const lg_plan *plan, char *why)
{
    int64_t peak = 0;
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        peak = plan->peak_bytes[rank] > peak ? plan->peak_bytes[rank] : peak;
    }
    if (lg_plan_check(plan, c->graph, peak) != LG_OK) {
        (void)snprintf(why, LGB_TEXT_BYTES, "a legal plan is refused: %s", lg_last_error());
        return why;
    }
    lg_timeline timeline;
    if (lg_plan_simulate(&timeline, plan, c->graph, &c->machine, c->costs) != LG_OK ||
        lg_timeline_add_memory(&timeline, plan, c->graph) != LG_OK) {
        (void)snprintf(why, LGB_TEXT_BYTES, "a legal plan does not run: %s", lg_last_error());
        return why;
    }
    const bool is_ok = lgb_is_timeline_right(&timeline, plan, c->graph, why) &&
                       lgb_are_stats_right(&timeline, plan, c->graph, why);
    lg_timeline_deinit(&timeline);
    return is_ok ? NULL : why;
}

/* "gpipe+wfbp", "zb-v", "priority", ...: a random one of all that compose, or a whole one. */
static inline void lgb_random_strategy(char *name, size_t size, uint64_t seed)
{
    uint64_t state = lgb_seed(seed + 4242);
    const char *pipelines[64];
    const char *others[64];
    int num_pipelines = 0;
    int num_others = 0;
    for (int i = 0; lg_strategy_name(i) != NULL && i < 64; i++) {
        if (lg_strategy_role_of(i) == LG_STRATEGY_PIPELINE) {
            pipelines[num_pipelines++] = lg_strategy_name(i);
        } else {
            others[num_others++] = lg_strategy_name(i);
        }
    }
    const char *const other = others[lgb_below(&state, num_others)];
    const bool is_whole = strcmp(other, "in-order") == 0 || strcmp(other, "out-of-order") == 0;
    if (is_whole || lgb_below(&state, 6) == 0) {
        (void)snprintf(name, size, "%s", other);
    } else {
        (void)snprintf(name, size, "%s+%s", pipelines[lgb_below(&state, num_pipelines)], other);
    }
}

/* NULL if the strategy makes a plan that holds, or says why it cannot; else what is wrong. */
static inline const char *lgb_check_strategy(const lgb_cluster *c, uint64_t seed, bool *is_made,
                                             char *why)
{
    char name[128];
    char text[LGB_TEXT_BYTES];
    lg_plan *plan = NULL;
    const lg_strategy_opts opts = lg_strategy_opts_default();
    lgb_random_strategy(name, sizeof name, seed);
    const lg_status status = lg_plan_create(&plan, name, c->graph, &c->machine, c->costs, &opts);
    *is_made = status == LG_OK;
    if (status != LG_OK) {
        (void)snprintf(why, LGB_TEXT_BYTES, "%s: %s", name, lg_last_error());
        return status == LG_INVALID_ARG || status == LG_NOT_SUPPORTED ? NULL : why;
    }
    const bool is_right = lgb_check_plan(c, plan, text) == NULL;
    (void)snprintf(why, LGB_TEXT_BYTES, "%s: %.900s", name, is_right ? "" : text);
    lg_plan_destroy(plan);
    return is_right ? NULL : why;
}

/* --- faults ------------------------------------------------------------------------------------------------------------- */

typedef enum lgb_fault {
    LGB_FAULT_SWAPPED_MESSAGES,    /* on one rank two messages to or from one peer change places */
    LGB_FAULT_SWAPPED_COLLECTIVES, /* on one rank two reductions of one communicator do */
    LGB_FAULT_MISSING_MESSAGE,     /* an end of one is in no lane */
    LGB_FAULT_LONE_LAG,            /* one of several that meet runs in another step */
    LGB_FAULT_OVERLAP,             /* a result lies on its op's operand */
    LGB_FAULT_BUDGET,              /* one byte less than the largest arena */
    LGB_FAULT_WRONG_RANK,          /* an op stands on another rank */
    LGB_NUM_FAULTS
} lgb_fault;

/* What the checker's message must contain, besides the name of the op or value at fault where there is one. */
static inline const char *lgb_fault_text(lgb_fault fault)
{
    static const char *const texts[LGB_NUM_FAULTS] = {
        "deadlock", "deadlock: reductions", "is in no lane", "meet",
        "overlap",  "over the budget",      "of rank"};
    return texts[fault];
}

/* A random lane with at least two entries of these kinds next to each other, in one direction with one peer; -1: none. */
static inline int lgb_find_pair(const lg_plan *plan, const lg_graph *graph, bool wants_messages,
                                uint64_t *state, int *pos)
{
    const int first = lgb_below(state, plan->num_lanes);
    for (int i = 0; i < plan->num_lanes; i++) {
        const int lane = (first + i) % plan->num_lanes;
        for (int k = 1; k < plan->lanes[lane].num_entries; k++) {
            const lg_op_info *const a = lg_graph_op(graph, plan->lanes[lane].entries[k - 1].op);
            const lg_op_info *const b = lg_graph_op(graph, plan->lanes[lane].entries[k].op);
            const bool is_pair =
                wants_messages ? lgb_is_message(a->kind) && a->kind == b->kind && a->peer == b->peer
                               : a->kind == LG_OP_ALL_REDUCE && b->kind == LG_OP_ALL_REDUCE;
            if (is_pair &&
                plan->lanes[lane].entries[k - 1].lag == plan->lanes[lane].entries[k].lag) {
                *pos = k;
                return lane;
            }
        }
    }
    return -1;
}

/* A random entry of a message or reduction. */
static inline int lgb_find_meeting(const lg_plan *plan, uint64_t *state, int *pos)
{
    const int first = lgb_below(state, plan->num_lanes);
    for (int i = 0; i < plan->num_lanes; i++) {
        const int lane = (first + i) % plan->num_lanes;
        if (plan->lanes[lane].kind == LG_LANE_COMM && plan->lanes[lane].num_entries > 0) {
            *pos = lgb_below(state, plan->lanes[lane].num_entries);
            return lane;
        }
    }
    return -1;
}

/* Lays a value that an op makes onto one that the same op reads; both are alive then, unless it may be done in place. */
static inline bool lgb_overlap(lg_plan *plan, const lg_graph *graph, uint64_t *state,
                               const char **name)
{
    const int first = lgb_below(state, plan->num_ops);
    for (int i = 0; i < plan->num_ops; i++) {
        const lg_op_info *const op = lg_graph_op(graph, (first + i) % plan->num_ops);
        for (int r = 0; r < op->num_operands; r++) {
            for (int w = 0; w < op->num_operands; w++) {
                const lg_operand *const read = &op->operands[r];
                const lg_operand *const write = &op->operands[w];
                const lg_value_info *const x = lg_graph_value(graph, read->value);
                const lg_value_info *const y = lg_graph_value(graph, write->value);
                const lg_placement *const from = &plan->values[read->value];
                lg_placement *const to = &plan->values[write->value];
                if (read->access != LG_ACCESS_READ || write->access != LG_ACCESS_WRITE ||
                    y->is_persistent || x->bytes == 0 || y->bytes == 0 || from->num_slots != 1 ||
                    to->num_slots != 1 || (op->inplace_write == w && op->inplace_read == r) ||
                    from->offset_bytes[0] + y->bytes > plan->peak_bytes[op->rank] ||
                    to->offset_bytes[0] + y->bytes == plan->peak_bytes[op->rank]) {
                    continue;
                }
                to->offset_bytes[0] = from->offset_bytes[0];
                *name = y->name;
                return true;
            }
        }
    }
    return false;
}

/* Plants the fault; false if the plan has no place for it. `*name`: what the message must name; NULL: nothing more. */
static inline bool lgb_plant(lg_plan *plan, const lg_graph *graph, lgb_fault fault, uint64_t seed,
                             const char **name, int64_t *budget_bytes)
{
    uint64_t state = lgb_seed(seed + 991);
    int pos = 0;
    int lane = -1;
    *name = NULL;
    *budget_bytes = 0;
    if (fault == LGB_FAULT_SWAPPED_MESSAGES || fault == LGB_FAULT_SWAPPED_COLLECTIVES) {
        lane = lgb_find_pair(plan, graph, fault == LGB_FAULT_SWAPPED_MESSAGES, &state, &pos);
        if (lane < 0) {
            return false;
        }
        lg_plan_entry *const entries = plan->lanes[lane].entries;
        const lg_plan_entry first = entries[pos - 1];
        entries[pos - 1] = entries[pos];
        entries[pos] = first;
        *name = fault == LGB_FAULT_SWAPPED_MESSAGES ? NULL : "rank";
        return true;
    }
    if (fault == LGB_FAULT_OVERLAP) {
        return lgb_overlap(plan, graph, &state, name);
    }
    if (fault == LGB_FAULT_BUDGET) {
        for (int rank = 0; rank < plan->num_ranks; rank++) {
            *budget_bytes =
                plan->peak_bytes[rank] > *budget_bytes ? plan->peak_bytes[rank] : *budget_bytes;
        }
        return --*budget_bytes > 0;
    }
    lane = lgb_find_meeting(plan, &state, &pos);
    if (lane < 0) {
        return false;
    }
    lg_lane *const at = &plan->lanes[lane];
    *name = lg_graph_op(graph, at->entries[pos].op)->name;
    if (fault == LGB_FAULT_LONE_LAG) {
        at->entries[pos].lag = 1 - at->entries[pos].lag;
    } else if (fault == LGB_FAULT_MISSING_MESSAGE) {
        memmove(at->entries + pos, at->entries + pos + 1,
                (size_t)(at->num_entries - pos - 1) * sizeof *at->entries);
        at->num_entries--;
    } else {
        at->rank = (at->rank + 1) % plan->num_ranks;
        *name = lg_graph_op(graph, at->entries[0].op)->name;
    }
    return true;
}

/* NULL if the fault is found and named (or found no place), else why not. Spoils the plan. */
static inline const char *lgb_check_fault(const lgb_cluster *c, lg_plan *plan, lgb_fault fault,
                                          uint64_t seed, bool *is_planted, char *why)
{
    const char *name = NULL;
    int64_t budget_bytes = 0;
    *is_planted = lgb_plant(plan, c->graph, fault, seed, &name, &budget_bytes);
    if (!*is_planted) {
        return NULL;
    }
    const lg_status status = lg_plan_check(plan, c->graph, budget_bytes);
    const char *const message = lg_last_error();
    if (status == LG_INVALID_ARG && strstr(message, lgb_fault_text(fault)) != NULL &&
        (name == NULL || strstr(message, name) != NULL) && strchr(message, '\n') == NULL) {
        return NULL;
    }
    (void)snprintf(why, LGB_TEXT_BYTES, "fault %d ('%s', '%s'): status %s, message: %s", (int)fault,
                   lgb_fault_text(fault), name != NULL ? name : "", lg_status_name(status),
                   status == LG_OK ? "none" : message);
    return why;
}

#endif
