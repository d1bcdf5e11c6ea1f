/*
 * Data-parallel halves: when the replicas' gradients are added, and when parameters are updated.
 *
 * barrier: all gradients, then all reductions, then all updates. What a loop of backward(), all_reduce(), step() does.
 *
 * wfbp: each reduction as soon as its gradient is complete, in that order (from the last layer to the first); updates after all
 * gradients; nothing goes over the step's end. Source: Zhang et al., "Poseidon" (USENIX ATC 2017), section 3.1 (wait-free
 * backpropagation); what PyTorch's DistributedDataParallel does.
 *
 * priority: of the chunks that are complete the one goes first whose parameters the next forward needs first; no barrier: what does not
 * fit before the rank's last gradient goes over the step's end (lag 1), with the updates, each right before the forward that
 * needs it. Source: Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training" (MLSys 2019); Peng et
 * al., "ByteScheduler" (SOSP 2019).
 *
 * reverse-first-k: priority, and the weight gradients of the first k layers (in the last micro-batch) after all input gradients, from
 * layer 1 to layer k: so the gradients that the next forward needs first are also made first. Source: Oh et al., "Out-Of-Order
 * BackProp" (EuroSys 2022), section 4.3. How the authors choose k is not public; here k is searched by simulation within the
 * memory budget.
 *
 * The order of reductions is by list scheduling against the times of the step without them, link by link; the same order, from
 * replica 0, on all replicas.
 */
#include "plan/strategies/data_parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_order.h"

/* Ops that the search for k may simulate, and simulations it does in any case: a second or so at most. */
#define MAX_SIMULATED_OPS 1000000
#define MIN_SIMULATIONS 3
#define MAX_SIMULATIONS 24
/* Plans this close are equal: costs do not tell them apart. */
#define TIE_FRAC 0.001

/* One chunk of one layer's gradients, or of those of layers that share messages, on one pipeline rank. */
typedef struct chunk {
    int op;    /* of replica 0 */
    int layer; /* the first of them */
    int idx;
    int rank;
    int first_update; /* in `chunk_updates`; one for each layer */
    int num_updates;
    double ready_ns;
    double ns;
    double need_ns; /* when the next step first reads what its updates write */
    double end_ns;
    bool is_done;
} chunk;

typedef struct reducer {
    const lgi_units *units;
    const char *name;
    const lgi_unit *order;
    int num_order;
    bool has_statistics;
    lgi_groups groups;
    int *all_updates; /* the replicas' UPDATEs, replica after replica, each in the same order */
    int num_updates_each;
    int *update_idx; /* by op: UPDATEs of replica 0 have their position there */
    int *position;   /* by that: 1 + position in `updates` */
    chunk *chunks;   /* sorted by rank, need, layer, chunk */
    int num_chunks;
    int *chunk_updates; /* of replica 0 */
    size_t num_chunk_updates;
    size_t chunk_updates_capacity;
    lgi_op_times times;
    unsigned char *lag;
    bool *is_put_off;
    int *put_off;
    int *reductions;
    int *updates;
    double *update_ns; /* by update: when its last reduction ends */
    int num_updates;
    int *tail_updates; /* the same of all replicas */
} reducer;

/* --- facts ---------------------------------------------------------------------------------------------------------------- */

static void reducer_deinit(reducer *r)
{
    lgi_groups_deinit(&r->groups);
    lgi_free(r->all_updates);
    lgi_free(r->update_idx);
    lgi_free(r->position);
    lgi_free(r->chunks);
    lgi_free(r->chunk_updates);
    lgi_free(r->times.start_ns);
    lgi_free(r->times.end_ns);
    lgi_free(r->times.units_end_ns);
    lgi_free(r->lag);
    lgi_free(r->is_put_off);
    lgi_free(r->put_off);
    lgi_free(r->reductions);
    lgi_free(r->updates);
    lgi_free(r->update_ns);
    lgi_free(r->tail_updates);
}

/* The reduction of the next chunk; -1: it is the last one. */
static int next_chunk(const reducer *r, int op)
{
    const lg_graph *const graph = r->units->input->graph;
    for (int i = r->units->out_begin[op]; i < r->units->out_begin[op + 1]; i++) {
        const lg_edge *const edge = &lg_graph_edges(graph)[r->units->out_edges[i]];
        if (edge->distance == 0 && lg_graph_op(graph, edge->to)->kind == LG_OP_ALL_REDUCE) {
            return edge->to;
        }
    }
    return -1;
}

/* The updates that wait for a reduction: they read what its last chunk writes. */
static lg_status find_updates_behind(reducer *r, chunk *c)
{
    const lg_graph *const graph = r->units->input->graph;
    int last = c->op;
    for (int next = last; next >= 0; next = next_chunk(r, next)) {
        last = next;
    }
    c->first_update = (int)r->num_chunk_updates;
    for (int i = r->units->out_begin[last]; i < r->units->out_begin[last + 1]; i++) {
        const lg_edge *const edge = &lg_graph_edges(graph)[r->units->out_edges[i]];
        if (edge->distance == 0 && lg_graph_op(graph, edge->to)->kind == LG_OP_UPDATE) {
            LG_TRY(lgi_grow(&r->chunk_updates, &r->chunk_updates_capacity, r->num_chunk_updates + 1,
                            sizeof(int)));
            r->chunk_updates[r->num_chunk_updates++] = edge->to;
            c->num_updates++;
        }
    }
    return LG_OK;
}

/* Builders make updates replica by replica, layer by layer. */
static lg_status find_updates(reducer *r)
{
    const lg_graph *const graph = r->units->input->graph;
    const int num_replicas = r->units->num_replicas;
    int num = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        num += lg_graph_op(graph, op)->kind == LG_OP_UPDATE ? 1 : 0;
    }
    r->num_updates_each = num / num_replicas;
    LG_TRY(lgi_calloc(&r->all_updates, (size_t)num, sizeof(int)));
    LG_TRY(lgi_calloc(&r->update_idx, (size_t)lg_graph_num_ops(graph), sizeof(int)));
    LG_TRY(lgi_calloc(&r->position, (size_t)r->num_updates_each, sizeof(int)));
    LG_TRY(lgi_calloc(&r->updates, (size_t)r->num_updates_each, sizeof(int)));
    LG_TRY(lgi_calloc(&r->update_ns, (size_t)r->num_updates_each, sizeof(double)));
    LG_TRY(lgi_calloc(&r->tail_updates, (size_t)num, sizeof(int)));
    num = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (info->kind != LG_OP_UPDATE) {
            continue;
        }
        const int idx = r->num_updates_each > 0 ? num % r->num_updates_each : 0;
        const lg_op_info *const first =
            num < r->num_updates_each ? info : lg_graph_op(graph, r->all_updates[idx]);
        if (first->layer != info->layer ||
            first->rank % r->units->num_ranks != info->rank % r->units->num_ranks) {
            LG_FAIL(LG_NOT_SUPPORTED, "op '%s': the replicas' updates differ", info->name);
        }
        r->update_idx[op] = idx;
        r->all_updates[num++] = op;
    }
    return LG_OK;
}

static lg_status reducer_init(reducer *r)
{
    const lg_graph *const graph = r->units->input->graph;
    const size_t num_ops = (size_t)lg_graph_num_ops(graph);
    r->has_statistics = lg_graph_options(graph)->has_grad_stats;
    LG_TRY(lgi_groups_init(&r->groups, graph));
    LG_TRY(lgi_calloc(&r->times.start_ns, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&r->times.end_ns, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&r->times.units_end_ns, (size_t)lg_graph_num_ranks(graph), sizeof(double)));
    LG_TRY(lgi_calloc(&r->lag, num_ops, 1));
    LG_TRY(lgi_calloc(&r->is_put_off, num_ops, sizeof(bool)));
    LG_TRY(lgi_calloc(&r->put_off, num_ops, sizeof(int)));
    LG_TRY(find_updates(r));
    int num_chunks = 0;
    for (int op = 0; op < (int)num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        num_chunks += info->kind == LG_OP_ALL_REDUCE && info->rank < r->units->num_ranks ? 1 : 0;
    }
    LG_TRY(lgi_calloc(&r->chunks, (size_t)num_chunks, sizeof *r->chunks));
    LG_TRY(lgi_calloc(&r->reductions, (size_t)num_chunks, sizeof(int)));
    for (int op = 0; op < (int)num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (info->kind == LG_OP_ALL_REDUCE && info->rank < r->units->num_ranks) {
            r->chunks[r->num_chunks++] =
                (chunk){.op = op,
                        .layer = info->layer,
                        .idx = info->chunk,
                        .rank = info->rank,
                        .ns = lgi_all_reduce_ns(r->units, info->rank, info->message_bytes)};
            LG_TRY(find_updates_behind(r, &r->chunks[r->num_chunks - 1]));
        }
    }
    return LG_OK;
}

/* --- times ---------------------------------------------------------------------------------------------------------------- */

static int compare_chunks(const void *a, const void *b)
{
    const chunk *const x = a;
    const chunk *const y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    if (x->need_ns != y->need_ns) {
        return x->need_ns < y->need_ns ? -1 : 1;
    }
    if (x->layer != y->layer) {
        return x->layer < y->layer ? -1 : 1;
    }
    return (x->idx > y->idx) - (x->idx < y->idx);
}

/* When the chunk is complete on all replicas: the last of its gradients, whatever the other chunks do. */
static double chunk_ready_ns(const reducer *r, int op)
{
    const lg_graph *const graph = r->units->input->graph;
    const lg_edge *const edges = lg_graph_edges(graph);
    const int group = lg_graph_op(graph, op)->group;
    double ns = 0.0;
    for (int k = r->groups.begin[group]; k < r->groups.begin[group + 1]; k++) {
        const int member = r->groups.ops[k];
        for (int i = r->units->in_begin[member]; i < r->units->in_begin[member + 1]; i++) {
            if (edges[i].distance == 0 &&
                lg_graph_op(graph, edges[i].from)->kind != LG_OP_ALL_REDUCE) {
                ns = fmax(ns, r->times.end_ns[edges[i].from]);
            }
        }
    }
    return ns;
}

static double update_need_ns(const reducer *r, int update)
{
    const lg_edge *const edges = lg_graph_edges(r->units->input->graph);
    double ns = INFINITY;
    for (int i = r->units->out_begin[update]; i < r->units->out_begin[update + 1]; i++) {
        const lg_edge *const edge = &edges[r->units->out_edges[i]];
        if (edge->distance == 1) {
            ns = fmin(ns, r->times.start_ns[edge->to]);
        }
    }
    return ns;
}

/* Lays out the step without reductions in mind and takes times from it. */
static lg_status measure(reducer *r, const lgi_tail *tail)
{
    lg_plan *plan = NULL;
    LG_TRY(lgi_expand(&plan, r->units, r->name, r->order, r->num_order, tail, &r->times));
    lg_plan_destroy(plan);
    for (int i = 0; i < r->num_chunks; i++) {
        chunk *const c = &r->chunks[i];
        c->need_ns = INFINITY; /* of layers that share it, that of the most urgent one */
        for (int k = 0; k < c->num_updates; k++) {
            c->need_ns = fmin(c->need_ns, update_need_ns(r, r->chunk_updates[c->first_update + k]));
        }
        c->ready_ns = chunk_ready_ns(r, c->op);
        c->is_done = false;
    }
    qsort(r->chunks, (size_t)r->num_chunks, sizeof *r->chunks, compare_chunks);
    /* later chunks depend on the gradients only through the first one, as the graph's edges go */
    for (int i = 1; i < r->num_chunks; i++) {
        chunk *const c = &r->chunks[i];
        if (c->idx > 0 && r->chunks[i - 1].layer == c->layer && r->chunks[i - 1].rank == c->rank) {
            c->ready_ns = fmax(c->ready_ns, r->chunks[i - 1].ready_ns);
        }
    }
    return LG_OK;
}

/* --- the order of reductions -------------------------------------------------------------------------------------------------- */

typedef enum reduce_order { BY_READINESS, BY_NEED } reduce_order;

static bool is_next_of_layer(const reducer *r, int i)
{
    const chunk *const c = &r->chunks[i];
    return c->idx == 0 || r->chunks[i - 1].is_done || r->chunks[i - 1].layer != c->layer;
}

/* The chunk of [begin, end) that goes next at `now`, or, if none is complete, -1 and *next_ns. */
static int choose_chunk(const reducer *r, int begin, int end, double now_ns, reduce_order by,
                        double *next_ns)
{
    int best = -1;
    *next_ns = INFINITY;
    for (int i = begin; i < end; i++) {
        const chunk *const c = &r->chunks[i];
        if (c->is_done || !is_next_of_layer(r, i)) {
            continue;
        }
        *next_ns = fmin(*next_ns, c->ready_ns);
        if (c->ready_ns > now_ns) {
            continue;
        }
        if (by == BY_NEED) {
            return i;
        }
        const bool is_earlier =
            best < 0 || c->ready_ns < r->chunks[best].ready_ns ||
            (c->ready_ns == r->chunks[best].ready_ns && c->layer > r->chunks[best].layer);
        best = is_earlier ? i : best;
    }
    return best;
}

/* Puts the chunks of one pipeline rank in order on its link; appends them to `reductions` from `num` on. */
static int order_rank(reducer *r, int begin, int end, reduce_order by, int num)
{
    double now_ns = 0.0;
    for (int k = begin; k < end; k++) {
        double next_ns = 0.0;
        int i = choose_chunk(r, begin, end, now_ns, by, &next_ns);
        if (i < 0) {
            now_ns = next_ns;
            i = choose_chunk(r, begin, end, now_ns, by, &next_ns);
        }
        r->chunks[i].is_done = true;
        now_ns += r->chunks[i].ns;
        r->chunks[i].end_ns = now_ns;
        r->reductions[num++] = r->chunks[i].op;
    }
    return num;
}

/* What stands between a layer's reduction and its update: its statistics over replicas and its rate. */
static bool is_behind_reduction(const lg_op_info *info)
{
    return (info->kind == LG_OP_GRAD_STAT && info->micro_batch < 0) || info->kind == LG_OP_RATE;
}

static void set_lag_of_layer(reducer *r, int update)
{
    const lg_graph *const graph = r->units->input->graph;
    const lg_op_info *const of_update = lg_graph_op(graph, update);
    for (int replica = 0; replica < r->units->num_replicas; replica++) {
        r->lag[r->all_updates[replica * r->num_updates_each + r->update_idx[update]]] = 1;
    }
    for (int op = 0; r->has_statistics && op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (is_behind_reduction(info) && info->layer == of_update->layer &&
            info->rank % r->units->num_ranks == of_update->rank) {
            r->lag[op] = 1;
        }
    }
}

/* A chunk and the updates of its layers go over the step's end, on all replicas. */
static void set_lag(reducer *r, const chunk *c)
{
    const lg_graph *const graph = r->units->input->graph;
    const int group = lg_graph_op(graph, c->op)->group;
    for (int k = r->groups.begin[group]; k < r->groups.begin[group + 1]; k++) {
        r->lag[r->groups.ops[k]] = 1;
    }
    for (int i = 0; i < c->num_updates; i++) {
        set_lag_of_layer(r, r->chunk_updates[c->first_update + i]);
    }
}

/* When the pipeline rank's gradients are complete, on the slowest replica. */
static double units_end_ns(const reducer *r, int rank)
{
    double ns = 0.0;
    for (int replica = 0; replica < r->units->num_replicas; replica++) {
        ns = fmax(ns, r->times.units_end_ns[replica * r->units->num_ranks + rank]);
    }
    return ns;
}

/* Reductions of lag 1 first, in the order of need, then the others as ordered. */
static void sort_reductions(reducer *r, int begin, int end, int *scratch)
{
    int num = 0;
    for (int i = begin; i < end; i++) {
        if (r->lag[r->chunks[i].op] == 1) { /* chunks are sorted by need */
            scratch[num++] = r->chunks[i].op;
        }
    }
    for (int i = begin; i < end; i++) {
        if (r->lag[r->reductions[i]] == 0) {
            scratch[num++] = r->reductions[i];
        }
    }
    memcpy(&r->reductions[begin], scratch, (size_t)num * sizeof *scratch);
}

/* The update waits until `ns` at least. */
static void delay_update(reducer *r, int update, double ns)
{
    int *const position = &r->position[r->update_idx[update]];
    if (*position == 0) {
        r->updates[r->num_updates] = update;
        r->update_ns[r->num_updates] = 0.0;
        *position = ++r->num_updates;
    }
    r->update_ns[*position - 1] = fmax(r->update_ns[*position - 1], ns);
}

static void order_updates(reducer *r)
{
    r->num_updates = 0;
    memset(r->position, 0, (size_t)r->num_updates_each * sizeof(int));
    for (int i = 0; i < r->num_chunks; i++) {
        const chunk *const c = &r->chunks[i];
        for (int k = 0; k < c->num_updates; k++) {
            delay_update(r, r->chunk_updates[c->first_update + k], c->end_ns);
        }
    }
    for (int i = 1; i < r->num_updates; i++) { /* insertion sort by time; stable */
        const int op = r->updates[i];
        const double ns = r->update_ns[i];
        int k = i;
        for (; k > 0 && r->update_ns[k - 1] > ns; k--) {
            r->updates[k] = r->updates[k - 1];
            r->update_ns[k] = r->update_ns[k - 1];
        }
        r->updates[k] = op;
        r->update_ns[k] = ns;
    }
    for (int i = 0; i < r->num_updates; i++) {
        const int idx = r->update_idx[r->updates[i]];
        for (int replica = 0; replica < r->units->num_replicas; replica++) {
            r->tail_updates[i * r->units->num_replicas + replica] =
                r->all_updates[replica * r->num_updates_each + idx];
        }
    }
}

static lg_status order_reductions(reducer *r, reduce_order by, bool has_lag)
{
    const lg_graph *const graph = r->units->input->graph;
    int *scratch = NULL;
    LG_TRY(lgi_calloc(&scratch, (size_t)r->num_chunks, sizeof *scratch));
    memset(r->lag, 0, (size_t)lg_graph_num_ops(graph));
    for (int i = 0; i < r->num_chunks; i++) {
        r->chunks[i].is_done = false;
    }
    for (int begin = 0, end = 0; begin < r->num_chunks; begin = end) {
        const int rank = r->chunks[begin].rank;
        while (end < r->num_chunks && r->chunks[end].rank == rank) {
            end++;
        }
        (void)order_rank(r, begin, end, by, begin);
        const double limit_ns = units_end_ns(r, rank);
        for (int i = begin; has_lag && i < end; i++) {
            const chunk *const c = &r->chunks[i];
            if (c->end_ns > limit_ns && c->num_updates > 0) {
                set_lag(r, c);
            }
        }
        sort_reductions(r, begin, end, scratch);
    }
    order_updates(r);
    lgi_free(scratch);
    return LG_OK;
}

/* --- plans ---------------------------------------------------------------------------------------------------------------- */

static lgi_tail tail_of(const reducer *r, int num_put_off)
{
    return (lgi_tail){.lag = r->lag,
                      .is_put_off = num_put_off > 0 ? r->is_put_off : NULL,
                      .put_off = r->put_off,
                      .num_put_off = num_put_off,
                      .reductions = r->reductions,
                      .num_reductions = r->num_chunks,
                      .updates = r->tail_updates,
                      .num_updates = r->num_updates * r->units->num_replicas};
}

/* One plan; *num_put_off ops of `put_off` are put off. */
static lg_status make(reducer *r, reduce_order by, bool has_lag, int num_put_off, lg_plan **out)
{
    memset(r->lag, 0, (size_t)lg_graph_num_ops(r->units->input->graph));
    const lgi_tail before = {.is_put_off = num_put_off > 0 ? r->is_put_off : NULL,
                             .put_off = r->put_off,
                             .num_put_off = num_put_off};
    LG_TRY(measure(r, &before));
    LG_TRY(order_reductions(r, by, has_lag));
    const lgi_tail tail = tail_of(r, num_put_off);
    return lgi_expand(out, r->units, r->name, r->order, r->num_order, &tail, NULL);
}

/* Whether updates may lag: a clipping factor, or rates of all layers in one, are an output and wait for all reductions. */
static bool may_lag(const reducer *r)
{
    const lg_graph_opts *const opts = lg_graph_options(r->units->input->graph);
    return r->units->input->opts.allow_lag && !opts->has_clipping && !opts->has_joint_rates &&
           r->num_chunks > 0;
}

/* A plan with its simulated time, and whether it fits the budget. */
typedef struct result {
    lg_plan *plan;
    double step_ns;
    bool fits;
} result;

/* Keeps the better one in `best`: what fits before what does not, then the faster one, the earlier of equals. */
static lg_status keep_better(const reducer *r, result *best, lg_plan *plan)
{
    const lgi_strategy_input *const input = r->units->input;
    result other = {.plan = plan, .fits = true};
    lg_status status = lgi_step_ns(input, plan, &other.step_ns);
    const bool is_faster = best->plan == NULL || other.step_ns < best->step_ns * (1.0 - TIE_FRAC);
    if (status == LG_OK && (is_faster || !best->fits)) {
        status = lgi_strategy_fits(plan, input, &other.fits);
    }
    const bool is_better = status == LG_OK && (best->plan == NULL || (other.fits && !best->fits) ||
                                               (is_faster && other.fits == best->fits));
    if (is_better) {
        lg_plan_destroy(best->plan);
        *best = other;
    } else {
        lg_plan_destroy(plan);
    }
    return status;
}

/* Without lag, and with it where it may help; the better one into `best`. */
static lg_status try_lags(reducer *r, int num_put_off, result *best)
{
    for (int has_lag = 0; has_lag <= (may_lag(r) ? 1 : 0); has_lag++) {
        lg_plan *plan = NULL;
        LG_TRY(make(r, BY_NEED, has_lag == 1, num_put_off, &plan));
        LG_TRY(keep_better(r, best, plan));
    }
    return LG_OK;
}

lg_status lgi_data_barrier(lg_plan **out, const lgi_units *units, const char *name,
                           const lgi_unit *order, int num_order)
{
    const lgi_tail tail = {.is_barrier = true};
    return lgi_expand(out, units, name, order, num_order, &tail, NULL);
}

lg_status lgi_data_wfbp(lg_plan **out, const lgi_units *units, const char *name,
                        const lgi_unit *order, int num_order)
{
    lg_status status = LG_OK;
    reducer r = {.units = units, .name = name, .order = order, .num_order = num_order};
    *out = NULL;
    LG_TRY_GOTO(reducer_init(&r));
    LG_TRY_GOTO(make(&r, BY_READINESS, false, 0, out));
out:
    reducer_deinit(&r);
    return status;
}

lg_status lgi_data_priority(lg_plan **out, const lgi_units *units, const char *name,
                            const lgi_unit *order, int num_order)
{
    lg_status status = LG_OK;
    result best = {0};
    reducer r = {.units = units, .name = name, .order = order, .num_order = num_order};
    *out = NULL;
    LG_TRY_GOTO(reducer_init(&r));
    LG_TRY_GOTO(try_lags(&r, 0, &best));
    *out = best.plan;
    best.plan = NULL;
out:
    lg_plan_destroy(best.plan);
    reducer_deinit(&r);
    return status;
}

/* --- reverse first k ---------------------------------------------------------------------------------------------------------- */

/* The layers with weight gradients, ascending. */
static lg_status find_weight_layers(const reducer *r, int **out, int *num)
{
    const lg_graph *const graph = r->units->input->graph;
    bool *has_weights = NULL;
    int num_layers = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const int layer = lg_graph_op(graph, op)->layer;
        num_layers = layer >= num_layers ? layer + 1 : num_layers;
    }
    *num = 0;
    LG_TRY(lgi_calloc(out, (size_t)num_layers, sizeof **out));
    const lg_status status = lgi_calloc(&has_weights, (size_t)num_layers, sizeof *has_weights);
    for (int op = 0; status == LG_OK && op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (info->kind == LG_OP_WEIGHT_GRAD) {
            has_weights[info->layer] = true;
        }
    }
    for (int layer = 0; status == LG_OK && layer < num_layers; layer++) {
        if (has_weights[layer]) {
            (*out)[(*num)++] = layer;
        }
    }
    lgi_free(has_weights);
    return status;
}

static int compare_put_off(const void *a, const void *b)
{
    const int *const x = a;
    const int *const y = b;
    return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

/* Puts off the last micro-batch's weight gradients (and their statistics) of layers up to `last_layer` (-1: none); *out_num of them. */
static lg_status put_off_up_to(reducer *r, int last_layer, int *out_num)
{
    const lg_graph *const graph = r->units->input->graph;
    int(*pairs)[2] = NULL; /* layer, op */
    size_t capacity = 0;
    int num = 0;
    *out_num = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        const bool is_last =
            info->micro_batch >= 0 &&
            info->micro_batch % r->units->num_micro_batches == r->units->num_micro_batches - 1;
        r->is_put_off[op] = (info->kind == LG_OP_WEIGHT_GRAD || info->kind == LG_OP_GRAD_STAT) &&
                            is_last && info->layer <= last_layer;
        if (r->is_put_off[op]) {
            const lg_status status = lgi_grow(&pairs, &capacity, (size_t)num + 1, sizeof *pairs);
            if (status != LG_OK) {
                lgi_free(pairs);
                return status;
            }
            pairs[num][0] = info->layer;
            pairs[num++][1] = op;
        }
    }
    if (num > 0) {
        qsort(pairs, (size_t)num, sizeof *pairs, compare_put_off);
    }
    for (int i = 0; i < num; i++) {
        r->put_off[i] = pairs[i][1];
    }
    lgi_free(pairs);
    *out_num = num;
    return LG_OK;
}

static lg_status try_k(reducer *r, const int *layers, int k, result *best, bool *is_better)
{
    int num_put_off = 0;
    const lg_plan *const before = best->plan;
    LG_TRY(put_off_up_to(r, k > 0 ? layers[k - 1] : -1, &num_put_off));
    LG_TRY(try_lags(r, num_put_off, best));
    *is_better = best->plan != before;
    return LG_OK;
}

/* Eighths of all layers, then halving steps around the best. */
static lg_status search_k(reducer *r, const int *layers, int num_layers, result *best)
{
    const int num_ops = lg_graph_num_ops(r->units->input->graph);
    int left = MAX_SIMULATED_OPS / (num_ops + 1);
    left = left < MIN_SIMULATIONS   ? MIN_SIMULATIONS
           : left > MAX_SIMULATIONS ? MAX_SIMULATIONS
                                    : left;
    bool is_better = false;
    int best_k = 0;
    int stride = num_layers > 0 ? (num_layers + 7) / 8 : 1;
    if (num_layers > left / 2 * stride) {
        stride = (num_layers + left / 2 - 1) / (left / 2);
    }
    for (int k = 0; k < num_layers + stride && left > 0; k += stride, left--) {
        const int tried = k < num_layers ? k : num_layers;
        LG_TRY(try_k(r, layers, tried, best, &is_better));
        best_k = is_better ? tried : best_k;
        if (!best->fits) {
            return LG_OK; /* what is put off is kept for longer: other k need no less */
        }
    }
    for (int step = stride / 2; step > 0 && left > 0; step /= 2) {
        const int center = best_k;
        for (int sign = -1; sign <= 1 && left > 0; sign += 2) {
            const int k = center + sign * step;
            if (k < 0 || k > num_layers) {
                continue;
            }
            LG_TRY(try_k(r, layers, k, best, &is_better));
            best_k = is_better ? k : best_k;
            left--;
        }
    }
    return LG_OK;
}

lg_status lgi_data_reverse_first_k(lg_plan **out, const lgi_units *units, const char *name,
                                   const lgi_unit *order, int num_order)
{
    lg_status status = LG_OK;
    result best = {0};
    int *layers = NULL;
    int num_layers = 0;
    bool is_better = false;
    const bool is_training = lg_graph_options(units->input->graph)->mode == LG_GRAPH_TRAIN;
    const int k = is_training ? units->input->opts.num_reversed : 0; /* else nothing to reverse */
    reducer r = {.units = units, .name = name, .order = order, .num_order = num_order};
    *out = NULL;
    LG_TRY_GOTO(reducer_init(&r));
    LG_TRY_GOTO(find_weight_layers(&r, &layers, &num_layers));
    if (k < -1 || k > num_layers) {
        status = lgi_fail(LG_INVALID_ARG,
                          "reverse-first-k: k = %d is not in [0, %d], the layers with weights (-1: "
                          "searched)",
                          k, num_layers);
        goto out;
    }
    if (k >= 0) {
        LG_TRY_GOTO(try_k(&r, layers, k, &best, &is_better));
    } else {
        LG_TRY_GOTO(search_k(&r, layers, num_layers, &best));
    }
    *out = best.plan;
    best.plan = NULL;
out:
    lg_plan_destroy(best.plan);
    lgi_free(layers);
    reducer_deinit(&r);
    return status;
}
