/*
 * The step graph as records. Edges are never given but derived: an op that reads a value waits for the op that wrote it,
 * and for persistent values also a writer waits for the readers before it, within a step and over its boundary. So no
 * order constraint can be forgotten.
 */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"

const char *lg_op_kind_name(lg_op_kind kind)
{
    static const char *const names[LG_NUM_OP_KINDS] = {
#define NAME(name, text) [LG_OP_##name] = text,
        LG_OP_KIND_LIST(NAME)
#undef NAME
    };
    return names[kind];
}

const char *lg_value_kind_name(lg_value_kind kind)
{
    static const char *const names[LG_NUM_VALUE_KINDS] = {
        [LG_VALUE_ACTIVATION] = "activation", [LG_VALUE_GRAD] = "grad",
        [LG_VALUE_STASH] = "stash",           [LG_VALUE_LOSS] = "loss",
        [LG_VALUE_SCALAR] = "scalar",         [LG_VALUE_PARAM] = "param",
        [LG_VALUE_PARAM_GRAD] = "param_grad", [LG_VALUE_SLOT] = "slot",
        [LG_VALUE_MICRO_GRAD] = "micro_grad", [LG_VALUE_STAT] = "stat",
        [LG_VALUE_RATE_STATE] = "rate_state", [LG_VALUE_RATE] = "rate",
        [LG_VALUE_STATE] = "state",
    };
    return names[kind];
}

lg_graph_opts lg_graph_opts_default(void)
{
    lg_graph_opts opts;
    memset(&opts, 0, sizeof opts);
    opts.mode = LG_GRAPH_TRAIN;
    opts.num_samples = 1;
    opts.num_micro_batches = 1;
    opts.num_widths = 1;
    opts.widths[0] = 1;
    return opts;
}

/* --- making -------------------------------------------------------------------------------------------------------- */

static lg_status check_opts(const lg_graph_opts *opts)
{
    if (opts->num_samples < 1 || opts->num_samples > INT32_MAX) {
        LG_FAIL(LG_INVALID_ARG, "samples per step: %" PRId64 " is not in [1, %d]",
                opts->num_samples, INT32_MAX);
    }
    if (opts->num_micro_batches < 1 || opts->num_micro_batches > 65536) {
        LG_FAIL(LG_INVALID_ARG, "micro-batches: %d is not in [1, 65536]", opts->num_micro_batches);
    }
    if (opts->num_slots < 0 || opts->num_slots > LG_MAX_SLOTS) {
        LG_FAIL(LG_INVALID_ARG, "optimizer slots: %d is not in [0, %d]", opts->num_slots,
                LG_MAX_SLOTS);
    }
    if (opts->num_widths < 1 || opts->num_widths > LG_MAX_WIDTHS) {
        LG_FAIL(LG_INVALID_ARG, "widths: %d is not in [1, %d]", opts->num_widths, LG_MAX_WIDTHS);
    }
    for (int i = 0; i < opts->num_widths; i++) {
        if (opts->widths[i] < 1 || (i > 0 && opts->widths[i] <= opts->widths[i - 1])) {
            LG_FAIL(LG_INVALID_ARG, "widths: %d at place %d; they must be positive and rise",
                    opts->widths[i], i);
        }
    }
    return LG_OK;
}

lg_status lgi_graph_start(lg_graph **out, const lg_model *model, const lg_graph_opts *opts)
{
    *out = NULL;
    LG_TRY(check_opts(opts));
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    lg_graph *graph = *out;
    graph->model = model;
    graph->opts = *opts;
    graph->num_ranks = 1;
    graph->num_replicas = 1;
    graph->num_pipeline_ranks = 1;
    graph->num_stages = 1;
    graph->num_micro_batches = opts->num_samples < opts->num_micro_batches
                                   ? (int)opts->num_samples
                                   : opts->num_micro_batches;
    return LG_OK;
}

void lg_graph_destroy(lg_graph *graph)
{
    if (graph == NULL) {
        return;
    }
    for (size_t i = 0; i < graph->num_values; i++) {
        free((void *)(uintptr_t)graph->values[i].name);
    }
    for (size_t i = 0; i < graph->num_ops; i++) {
        free((void *)(uintptr_t)graph->ops[i].name);
        free((void *)(uintptr_t)graph->ops[i].operands);
    }
    lgi_free(graph->values);
    lgi_free(graph->ops);
    lgi_free(graph->edges);
    lgi_free(graph->op_by_name);
    lgi_free(graph);
}

lg_status lgi_graph_add_value(lg_graph *graph, const lg_value_info *value, int *out_value)
{
    char *name = NULL;
    LG_TRY(lgi_grow(&graph->values, &graph->values_capacity, graph->num_values + 1,
                    sizeof *graph->values));
    if (value->name != NULL) {
        LG_TRY(lgi_strdup(&name, value->name));
    } else {
        LG_TRY(lgi_sprintf(&name, "value%zu", graph->num_values));
    }
    lg_value_info *added = &graph->values[graph->num_values];
    *added = *value;
    added->name = name;
    if (value->rank >= graph->num_ranks) {
        graph->num_ranks = value->rank + 1;
    }
    if (out_value != NULL) {
        *out_value = (int)graph->num_values;
    }
    graph->num_values++;
    return LG_OK;
}

static bool can_meet(lg_op_kind kind)
{
    return kind == LG_OP_SEND || kind == LG_OP_RECV || kind == LG_OP_ALL_REDUCE;
}

lg_status lgi_graph_add_op(lg_graph *graph, const lg_op_info *op, int *out_op)
{
    char *name = NULL;
    lg_operand *operands = NULL;
    lg_status status = LG_OK;
    LG_TRY_GOTO(
        lgi_grow(&graph->ops, &graph->ops_capacity, graph->num_ops + 1, sizeof *graph->ops));
    if (op->name != NULL) {
        LG_TRY_GOTO(lgi_strdup(&name, op->name));
    } else {
        LG_TRY_GOTO(lgi_sprintf(&name, "op%zu", graph->num_ops));
    }
    LG_TRY_GOTO(lgi_calloc(&operands, (size_t)op->num_operands, sizeof *operands));
    for (int i = 0; i < op->num_operands; i++) {
        operands[i] = op->operands[i];
    }
    lg_op_info *added = &graph->ops[graph->num_ops];
    *added = *op;
    added->name = name;
    added->operands = operands;
    if (!can_meet(op->kind)) {
        added->group = -1;
    } else if (op->group >= graph->num_groups) {
        graph->num_groups = op->group + 1;
    }
    if (op->rank >= graph->num_ranks) {
        graph->num_ranks = op->rank + 1;
    }
    if (out_op != NULL) {
        *out_op = (int)graph->num_ops;
    }
    graph->num_ops++;
    return LG_OK;
out:
    lgi_free(name);
    lgi_free(operands);
    return status;
}

/* --- edges --------------------------------------------------------------------------------------------------------- */

/* Who touched a value: reads are kept as a list in `reads`, newest first. */
struct access_state {
    int first_writer;
    int last_writer;
    int reads_before_write; /* list: readers before the first writer of the step */
    int reads_after_write;  /* list: readers since the last writer */
};

struct read_record {
    int op;
    int next;
};

struct edge_maker {
    lg_graph *graph;
    struct access_state *states; /* by value */
    struct read_record *reads;
    size_t num_reads, reads_capacity;
};

static lg_status add_edge(struct edge_maker *maker, int from, int to, int distance, int value)
{
    lg_graph *graph = maker->graph;
    if (from == to && distance == 0) {
        return LG_OK;
    }
    LG_TRY(lgi_grow(&graph->edges, &graph->edges_capacity, graph->num_edges + 1,
                    sizeof *graph->edges));
    const lg_edge edge = {from, to, distance, value};
    graph->edges[graph->num_edges++] = edge;
    return LG_OK;
}

static lg_status push_read(struct edge_maker *maker, int *list, int op)
{
    LG_TRY(lgi_grow(&maker->reads, &maker->reads_capacity, maker->num_reads + 1,
                    sizeof *maker->reads));
    const struct read_record record = {op, *list};
    maker->reads[maker->num_reads] = record;
    *list = (int)maker->num_reads++;
    return LG_OK;
}

static lg_status add_edges_from_reads(struct edge_maker *maker, int list, int to, int distance,
                                      int value)
{
    for (int i = list; i >= 0; i = maker->reads[i].next) {
        LG_TRY(add_edge(maker, maker->reads[i].op, to, distance, value));
    }
    return LG_OK;
}

static lg_status add_operand_edges(struct edge_maker *maker, int op, const lg_operand *operand)
{
    struct access_state *state = &maker->states[operand->value];
    if (state->last_writer >= 0) {
        LG_TRY(add_edge(maker, state->last_writer, op, 0, operand->value));
    }
    if ((operand->access & LG_ACCESS_WRITE) == 0) {
        int *list =
            state->last_writer >= 0 ? &state->reads_after_write : &state->reads_before_write;
        return push_read(maker, list, op);
    }
    LG_TRY(add_edges_from_reads(
        maker, state->last_writer >= 0 ? state->reads_after_write : state->reads_before_write, op,
        0, operand->value));
    if (state->first_writer < 0) {
        state->first_writer = op;
    }
    state->last_writer = op;
    state->reads_after_write = -1;
    return LG_OK;
}

/* What the next step does first with a persistent value waits for what this step did last with it. */
static lg_status add_boundary_edges(struct edge_maker *maker, int value)
{
    const struct access_state *state = &maker->states[value];
    if (!maker->graph->values[value].is_persistent || state->last_writer < 0) {
        return LG_OK;
    }
    for (int i = state->reads_before_write; i >= 0; i = maker->reads[i].next) {
        LG_TRY(add_edge(maker, state->last_writer, maker->reads[i].op, 1, value));
    }
    LG_TRY(add_edge(maker, state->last_writer, state->first_writer, 1, value));
    return add_edges_from_reads(maker, state->reads_after_write, state->first_writer, 1, value);
}

static int compare_edges(const void *a, const void *b)
{
    const lg_edge *x = a;
    const lg_edge *y = b;
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    if (x->distance != y->distance) {
        return x->distance < y->distance ? -1 : 1;
    }
    if (x->from != y->from) {
        return x->from < y->from ? -1 : 1;
    }
    return (x->value > y->value) - (x->value < y->value);
}

static void sort_and_unite_edges(lg_graph *graph)
{
    size_t num_kept = 0;
    if (graph->num_edges > 0) {
        qsort(graph->edges, graph->num_edges, sizeof *graph->edges, compare_edges);
    }
    for (size_t i = 0; i < graph->num_edges; i++) {
        const lg_edge *edge = &graph->edges[i];
        const lg_edge *last = num_kept > 0 ? &graph->edges[num_kept - 1] : NULL;
        if (last == NULL || last->to != edge->to || last->distance != edge->distance ||
            last->from != edge->from) {
            graph->edges[num_kept++] = *edge;
        }
    }
    graph->num_edges = num_kept;
}

/* A RECV waits for its SEND: they stand side by side. */
static lg_status add_message_edges(struct edge_maker *maker)
{
    const lg_graph *graph = maker->graph;
    for (size_t op = 1; op < graph->num_ops; op++) {
        if (graph->ops[op].kind == LG_OP_RECV && graph->ops[op - 1].kind == LG_OP_SEND &&
            graph->ops[op].group == graph->ops[op - 1].group) {
            LG_TRY(add_edge(maker, (int)op - 1, (int)op, 0, graph->ops[op].operands[0].value));
        }
    }
    return LG_OK;
}

static lg_status derive_edges(lg_graph *graph)
{
    lg_status status = LG_OK;
    struct edge_maker maker;
    memset(&maker, 0, sizeof maker);
    maker.graph = graph;
    LG_TRY_GOTO(lgi_calloc(&maker.states, graph->num_values, sizeof *maker.states));
    for (size_t value = 0; value < graph->num_values; value++) {
        const struct access_state untouched = {-1, -1, -1, -1};
        maker.states[value] = untouched;
    }
    for (size_t op = 0; op < graph->num_ops; op++) {
        for (int i = 0; i < graph->ops[op].num_operands; i++) {
            LG_TRY_GOTO(add_operand_edges(&maker, (int)op, &graph->ops[op].operands[i]));
        }
    }
    for (size_t value = 0; value < graph->num_values; value++) {
        LG_TRY_GOTO(add_boundary_edges(&maker, (int)value));
    }
    LG_TRY_GOTO(add_message_edges(&maker));
    sort_and_unite_edges(graph);
out:
    lgi_free(maker.states);
    lgi_free(maker.reads);
    return status;
}

/* --- names and fingerprint --------------------------------------------------------------------------------------- */

static size_t name_slot(const lg_graph *graph, const char *name)
{
    return (size_t)XXH64(name, strlen(name), 0) & (graph->op_by_name_size - 1);
}

static lg_status index_names(lg_graph *graph)
{
    graph->op_by_name_size = 16;
    while (graph->op_by_name_size < 2 * graph->num_ops) {
        graph->op_by_name_size *= 2;
    }
    LG_TRY(lgi_calloc(&graph->op_by_name, graph->op_by_name_size, sizeof *graph->op_by_name));
    memset(graph->op_by_name, -1, graph->op_by_name_size * sizeof *graph->op_by_name);
    for (size_t op = 0; op < graph->num_ops; op++) {
        if (lg_graph_find_op(graph, graph->ops[op].name) >= 0) {
            LG_FAIL(LG_INVALID_ARG, "two ops are called '%s'", graph->ops[op].name);
        }
        size_t slot = name_slot(graph, graph->ops[op].name);
        while (graph->op_by_name[slot] >= 0) {
            slot = (slot + 1) & (graph->op_by_name_size - 1);
        }
        graph->op_by_name[slot] = (int)op;
    }
    return LG_OK;
}

int lg_graph_find_op(const lg_graph *graph, const char *name)
{
    for (size_t slot = name_slot(graph, name); graph->op_by_name[slot] >= 0;
         slot = (slot + 1) & (graph->op_by_name_size - 1)) {
        if (strcmp(graph->ops[graph->op_by_name[slot]].name, name) == 0) {
            return graph->op_by_name[slot];
        }
    }
    return -1;
}

static void hash_i64(XXH64_state_t *hash, int64_t number)
{
    (void)XXH64_update(hash, &number, sizeof number);
}

static void compute_fingerprint(lg_graph *graph)
{
    XXH64_state_t *hash = XXH64_createState();
    if (hash ==
        NULL) { /* only a shortage of memory; then plans of this graph just do not match others */
        graph->fingerprint = 0;
        return;
    }
    (void)XXH64_reset(hash, 0);
    for (int i = 0; i < graph->opts.num_widths; i++) {
        hash_i64(hash, graph->opts.widths[i]);
    }
    for (size_t i = 0; i < graph->num_values; i++) {
        const lg_value_info *value = &graph->values[i];
        (void)XXH64_update(hash, value->name, strlen(value->name) + 1);
        hash_i64(hash, value->kind);
        hash_i64(hash, value->rank);
        hash_i64(hash, value->bytes);
        hash_i64(hash, (value->is_persistent ? 1 : 0) + (value->is_output ? 2 : 0));
    }
    for (size_t i = 0; i < graph->num_ops; i++) {
        const lg_op_info *op = &graph->ops[i];
        (void)XXH64_update(hash, op->name, strlen(op->name) + 1);
        hash_i64(hash, op->kind);
        hash_i64(hash, op->rank);
        hash_i64(hash, op->group);
        hash_i64(hash, op->message_bytes);
        hash_i64(hash, op->inplace_write);
        hash_i64(hash, op->inplace_read);
        for (int k = 0; k < op->num_operands; k++) {
            hash_i64(hash, op->operands[k].value);
            hash_i64(hash, op->operands[k].access);
        }
        for (int k = 0; k < graph->opts.num_widths; k++) {
            hash_i64(hash, op->workspace_bytes[k]);
        }
    }
    graph->fingerprint = XXH64_digest(hash);
    (void)XXH64_freeState(hash);
}

lg_status lgi_graph_finish(lg_graph *graph)
{
    LG_TRY(index_names(graph));
    LG_TRY(derive_edges(graph));
    compute_fingerprint(graph);
    return LG_OK;
}

lg_status lgi_graph_from_records(lg_graph **out, const lg_graph_opts *opts,
                                 const lg_value_info *values, int num_values, const lg_op_info *ops,
                                 int num_ops)
{
    lg_status status = LG_OK;
    LG_TRY(lgi_graph_start(out, NULL, opts));
    for (int i = 0; i < num_values; i++) {
        LG_TRY_GOTO(lgi_graph_add_value(*out, &values[i], NULL));
    }
    for (int i = 0; i < num_ops; i++) {
        for (int k = 0; k < ops[i].num_operands; k++) {
            if (ops[i].operands[k].value < 0 || ops[i].operands[k].value >= num_values) {
                LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG,
                                     "op %d, operand %d: value %d is not in [0, %d]", i, k,
                                     ops[i].operands[k].value, num_values - 1));
            }
        }
        LG_TRY_GOTO(lgi_graph_add_op(*out, &ops[i], NULL));
    }
    LG_TRY_GOTO(lgi_graph_finish(*out));
out:
    if (status != LG_OK) {
        lg_graph_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------- */

const lg_model *lg_graph_model(const lg_graph *graph)
{
    return graph->model;
}

const lg_graph_opts *lg_graph_options(const lg_graph *graph)
{
    return &graph->opts;
}

int lg_graph_num_ranks(const lg_graph *graph)
{
    return graph->num_ranks;
}

int lg_graph_num_replicas(const lg_graph *graph)
{
    return graph->num_replicas;
}

int lg_graph_num_pipeline_ranks(const lg_graph *graph)
{
    return graph->num_pipeline_ranks;
}

int lg_graph_num_stages(const lg_graph *graph)
{
    return graph->num_stages;
}

int lg_graph_num_groups(const lg_graph *graph)
{
    return graph->num_groups;
}

int lg_graph_num_micro_batches(const lg_graph *graph)
{
    return graph->num_micro_batches;
}

int64_t lg_graph_micro_batch_begin(const lg_graph *graph, int micro_batch)
{
    const int64_t base = graph->opts.num_samples / graph->num_micro_batches;
    const int64_t num_larger = graph->opts.num_samples % graph->num_micro_batches;
    return base * micro_batch + (micro_batch < num_larger ? micro_batch : num_larger);
}

int64_t lg_graph_micro_batch_samples(const lg_graph *graph, int micro_batch)
{
    return lg_graph_micro_batch_begin(graph, micro_batch + 1) -
           lg_graph_micro_batch_begin(graph, micro_batch);
}

int lgi_graph_size_idx(const lg_graph *graph, int micro_batch)
{
    return lg_graph_micro_batch_samples(graph, micro_batch) ==
                   lg_graph_micro_batch_samples(graph, 0)
               ? 0
               : 1;
}

int64_t lgi_graph_chunk_bytes(const lg_graph *graph, int64_t all_bytes)
{
    const int64_t number_bytes = (int64_t)sizeof(double);
    const int64_t chunk_bytes = graph->chunk_bytes / number_bytes * number_bytes;
    if (graph->chunk_bytes == 0) {
        return all_bytes;
    }
    return chunk_bytes > 0 ? chunk_bytes : number_bytes;
}

int lg_graph_num_ops(const lg_graph *graph)
{
    return (int)graph->num_ops;
}

int lg_graph_num_values(const lg_graph *graph)
{
    return (int)graph->num_values;
}

int lg_graph_num_edges(const lg_graph *graph)
{
    return (int)graph->num_edges;
}

const lg_op_info *lg_graph_op(const lg_graph *graph, int op)
{
    return &graph->ops[op];
}

const lg_value_info *lg_graph_value(const lg_graph *graph, int value)
{
    return &graph->values[value];
}

const lg_edge *lg_graph_edges(const lg_graph *graph)
{
    return graph->edges;
}

uint64_t lg_graph_fingerprint(const lg_graph *graph)
{
    return graph->fingerprint;
}
