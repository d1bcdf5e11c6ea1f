/* Costs: the time of each op with each of the graph's widths; estimated, set, kept in a JSON file by op names. */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "plan/plan_json.h"

#define COSTS_FORMAT "leapgrad-costs"
#define COSTS_VERSION 1
#define MAX_FILE_BYTES ((size_t)256 << 20)
/* More is no op's time, and sums of times stay finite and exact enough; that of machine files too. */
#define MAX_OP_NS 1e15
#define MAX_NAME_BYTES 1024

struct lg_costs {
    int num_ops;
    int num_widths;
    double *ns; /* [op * num_widths + width_idx] */
};

lg_status lg_costs_create(lg_costs **out, const lg_graph *graph)
{
    *out = NULL;
    lg_costs *costs = NULL;
    LG_TRY(lgi_calloc(&costs, 1, sizeof *costs));
    costs->num_ops = lg_graph_num_ops(graph);
    costs->num_widths = lg_graph_options(graph)->num_widths;
    const lg_status status = lgi_calloc(
        &costs->ns, (size_t)costs->num_ops * (size_t)costs->num_widths, sizeof *costs->ns);
    if (status != LG_OK) {
        lgi_free(costs);
        return status;
    }
    *out = costs;
    return LG_OK;
}

void lg_costs_destroy(lg_costs *costs)
{
    if (costs != NULL) {
        lgi_free(costs->ns);
        lgi_free(costs);
    }
}

void lg_costs_estimate(lg_costs *costs, const lg_graph *graph, const lg_machine *machine)
{
    const lg_graph_opts *const opts = lg_graph_options(graph);
    for (int op = 0; op < costs->num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        for (int i = 0; i < costs->num_widths; i++) {
            const double width = opts->widths[i];
            const double compute_s = info->flops / (machine->flops_per_s * width);
            const double memory_s = info->traffic_bytes / (machine->bytes_per_s * width);
            const double overhead_ns =
                machine->op_overhead_ns + (opts->widths[i] > 1 ? machine->fork_overhead_ns : 0.0);
            costs->ns[op * costs->num_widths + i] = 1e9 * fmax(compute_s, memory_s) + overhead_ns;
        }
    }
}

double lg_costs_op_ns(const lg_costs *costs, int op, int width_idx)
{
    return costs->ns[(size_t)op * (size_t)costs->num_widths + (size_t)width_idx];
}

void lg_costs_set_op_ns(lg_costs *costs, int op, int width_idx, double ns)
{
    costs->ns[(size_t)op * (size_t)costs->num_widths + (size_t)width_idx] = ns;
}

/* Of the first micro-batch, which no other exceeds. */
static int64_t samples_of_first(const lg_graph *graph)
{
    return lg_graph_num_micro_batches(graph) > 0 ? lg_graph_micro_batch_samples(graph, 0) : 0;
}

lg_status lg_costs_save(const lg_costs *costs, const lg_graph *graph, const char *path)
{
    lg_status status = LG_OK;
    const lg_graph_opts *const opts = lg_graph_options(graph);
    json_t *const root = json_object();
    json_t *const widths = json_array();
    json_t *const ops = json_object();
    bool is_ok = root != NULL && widths != NULL && ops != NULL;
    for (int i = 0; i < costs->num_widths && is_ok; i++) {
        is_ok = json_array_append_new(widths, json_integer(opts->widths[i])) == 0;
    }
    for (int op = 0; op < costs->num_ops && is_ok; op++) {
        json_t *const row = json_array();
        for (int i = 0; i < costs->num_widths && is_ok; i++) {
            is_ok = json_array_append_new(row, json_real(lg_costs_op_ns(costs, op, i))) == 0;
        }
        is_ok = json_object_set_new(ops, lg_graph_op(graph, op)->name, row) == 0 && is_ok;
    }
    is_ok = is_ok && json_object_set_new(root, "format", json_string(COSTS_FORMAT)) == 0 &&
            json_object_set_new(root, "version", json_integer(COSTS_VERSION)) == 0 &&
            json_object_set_new(root, "micro_batch_samples",
                                json_integer(samples_of_first(graph))) == 0 &&
            json_object_set(root, "widths", widths) == 0 &&
            json_object_set(root, "ops_ns", ops) == 0;
    if (!is_ok) {
        status = lgi_fail(LG_OUT_OF_MEMORY,
                          "costs: could not be put into JSON (out of memory, or a time "
                          "is not a finite number)");
        goto out;
    }
    LG_TRY_GOTO(lgi_json_write(root, path));
out:
    json_decref(ops);
    json_decref(widths);
    json_decref(root);
    return status;
}

static lg_status read_widths(const json_t *widths, const lg_graph *graph, int *column)
{
    const lg_graph_opts *const opts = lg_graph_options(graph);
    for (int i = 0; i < opts->num_widths; i++) {
        column[i] = -1;
    }
    for (size_t k = 0; k < json_array_size(widths); k++) {
        const json_t *const item = json_array_get(widths, k);
        if (!json_is_integer(item)) {
            LG_FAIL(LG_INVALID_ARG, "widths[%zu]: expected an integer", k);
        }
        for (int i = 0; i < opts->num_widths; i++) {
            if (json_integer_value(item) != opts->widths[i]) {
                continue;
            }
            if (column[i] >= 0) {
                LG_FAIL(LG_INVALID_ARG, "widths[%zu]: %d stands twice", k, opts->widths[i]);
            }
            column[i] = (int)k;
        }
    }
    for (int i = 0; i < opts->num_widths; i++) {
        if (column[i] < 0) {
            LG_FAIL(LG_INVALID_ARG,
                    "widths: %d, which the graph has, is missing (exec.threads is the number of "
                    "threads that is planned for)",
                    opts->widths[i]);
        }
    }
    return LG_OK;
}

static lg_status read_op(lg_costs *costs, const json_t *row, const char *name, int op,
                         size_t num_columns, const int *column)
{
    if (!json_is_array(row) || json_array_size(row) != num_columns) {
        LG_FAIL(LG_INVALID_ARG, "ops_ns '%s': expected %zu numbers, one for each width", name,
                num_columns);
    }
    for (int i = 0; i < costs->num_widths; i++) {
        const json_t *const item = json_array_get(row, (size_t)column[i]);
        const double ns = json_number_value(item);
        if (!json_is_number(item) || !(ns >= 0.0 && ns <= MAX_OP_NS)) {
            char got[32] = "no number";
            if (json_is_number(item)) {
                (void)snprintf(got, sizeof got, "%g", ns);
            }
            LG_FAIL(LG_INVALID_ARG, "ops_ns '%s': expected nanoseconds from 0 to %g, got %s", name,
                    MAX_OP_NS, got);
        }
        lg_costs_set_op_ns(costs, op, i, ns);
    }
    return LG_OK;
}

/* --- of a graph that is spread over ranks in another way ------------------------------------------------------------------ */

/* The name that an op has on one rank: without "@rank". */
static void plain_name(char *out, size_t out_bytes, const char *name)
{
    const char *const at = strrchr(name, '@');
    const bool has_rank =
        at != NULL && at[1] != '\0' && strspn(at + 1, "0123456789") == strlen(at + 1);
    (void)snprintf(out, out_bytes, "%.*s", (int)(has_rank ? (size_t)(at - name) : strlen(name)),
                   name);
}

static bool is_message(const lg_op_info *op)
{
    return op->kind == LG_OP_SEND || op->kind == LG_OP_RECV || op->kind == LG_OP_ALL_REDUCE;
}

/* The file's row for the same kind, layer and micro-batch of a replica, or an earlier micro-batch; NULL: none. */
static const json_t *find_alike(const json_t *plain, const lg_graph *graph, const lg_op_info *op)
{
    char name[MAX_NAME_BYTES];
    plain_name(name, sizeof name, op->name);
    char *const comma = strrchr(name, ',');
    if (op->micro_batch < 0 || comma == NULL) {
        return json_object_get(plain, name);
    }
    const int num_per_replica = lg_graph_num_micro_batches(graph) / lg_graph_num_replicas(graph);
    const size_t left_bytes = sizeof name - (size_t)(comma - name);
    for (int m = op->micro_batch % num_per_replica; m >= 0; m--) {
        (void)snprintf(comma, left_bytes, ",%d)", m);
        const json_t *const row = json_object_get(plain, name);
        if (row != NULL) {
            return row;
        }
    }
    return NULL;
}

/*
 * Costs measured elsewhere than where they are for: another number of ranks, or layers on other ranks. An op takes as long as the
 * same work of the file; messages are the links' and take none of their own.
 */
static lg_status read_alike(lg_costs *costs, const lg_graph *graph, const json_t *root,
                            const json_t *ops, size_t num_columns, const int *column)
{
    lg_status status = LG_OK;
    const json_t *const samples = json_object_get(root, "micro_batch_samples");
    json_t *const plain = json_object();
    const char *name = NULL;
    json_t *row = NULL;
    if (plain == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "no memory for names of ops");
    }
    if (json_is_integer(samples) && json_integer_value(samples) != samples_of_first(graph)) {
        LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG,
                             "measured with %lld samples in a micro-batch, where this graph has "
                             "%lld (train.batch, train.micro_batches, ranks.replicas)",
                             (long long)json_integer_value(samples),
                             (long long)samples_of_first(graph)));
    }
    json_object_foreach((json_t *)(uintptr_t)ops, name, row)
    {
        char key[MAX_NAME_BYTES];
        plain_name(key, sizeof key, name);
        if (json_object_get(plain, key) == NULL && json_object_set(plain, key, row) != 0) {
            LG_TRY_GOTO(lgi_fail(LG_OUT_OF_MEMORY, "no memory for names of ops"));
        }
    }
    for (int op = 0; op < costs->num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        const json_t *const found = find_alike(plain, graph, info);
        if (found != NULL) {
            LG_TRY_GOTO(read_op(costs, found, info->name, op, num_columns, column));
        } else if (!is_message(info)) {
            LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG, "ops_ns: nothing is like op '%s'", info->name));
        }
    }
out:
    json_decref(plain);
    return status;
}

/* Whether the names of file and graph differ because of ranks; else what differs is an error of its own. */
static bool is_of_other_ranks(const lg_graph *graph, const json_t *ops)
{
    const char *name = NULL;
    json_t *row = NULL;
    bool has_ranks = lg_graph_num_ranks(graph) > 1;
    bool is_same = true;
    json_object_foreach((json_t *)(uintptr_t)ops, name, row)
    {
        has_ranks = has_ranks || strrchr(name, '@') != NULL;
    }
    for (int op = 0; op < lg_graph_num_ops(graph) && is_same; op++) {
        is_same = json_object_get(ops, lg_graph_op(graph, op)->name) != NULL;
    }
    return has_ranks && (!is_same || (int)json_object_size(ops) != lg_graph_num_ops(graph));
}

static lg_status read_costs(lg_costs *costs, const lg_graph *graph, const json_t *root)
{
    static const char *const keys[] = {"format", "version", "widths", "ops_ns", NULL};
    static const char *const more_keys[] = {
        "format", "version", "widths", "ops_ns", "micro_batch_samples", NULL};
    lg_status status = LG_OK;
    lgi_name_index index = {0};
    int column[LG_MAX_WIDTHS];
    const bool has_samples = json_object_get(root, "micro_batch_samples") != NULL;
    LG_TRY(
        lgi_json_check_header(root, has_samples ? more_keys : keys, COSTS_FORMAT, COSTS_VERSION));
    const json_t *widths = NULL;
    json_t *ops = NULL;
    LG_TRY(lgi_json_array(root, "widths", &widths));
    LG_TRY(lgi_json_object(root, "ops_ns", &ops));
    LG_TRY(read_widths(widths, graph, column));
    if (has_samples) {
        int64_t samples = 0;
        LG_TRY(lgi_json_integer(root, "file", "micro_batch_samples", 0, INT64_MAX, &samples));
    }
    if (is_of_other_ranks(graph, ops)) {
        return read_alike(costs, graph, root, ops, json_array_size(widths), column);
    }
    LG_TRY_GOTO(lgi_name_index_init(&index, graph));
    const char *name = NULL;
    json_t *row = NULL;
    json_object_foreach(ops, name, row)
    {
        const int op = lgi_name_index_find(&index, name);
        if (op < 0) {
            status = lgi_fail(LG_INVALID_ARG, "ops_ns '%.200s': the graph has no such op", name);
            goto out;
        }
        LG_TRY_GOTO(read_op(costs, row, name, op, json_array_size(widths), column));
    }
    for (int op = 0; op < costs->num_ops; op++) {
        if (json_object_get(ops, lg_graph_op(graph, op)->name) == NULL) {
            status = lgi_fail(LG_INVALID_ARG, "ops_ns: op '%s' is missing",
                              lg_graph_op(graph, op)->name);
            goto out;
        }
    }
out:
    lgi_name_index_deinit(&index);
    return status;
}

lg_status lg_costs_load(lg_costs **out, const lg_graph *graph, const char *path)
{
    *out = NULL;
    lg_status status = LG_OK;
    char *text = NULL;
    size_t num_bytes = 0;
    json_t *root = NULL;
    lg_costs *costs = NULL;
    LG_TRY(lgi_file_read(&text, &num_bytes, path, MAX_FILE_BYTES));
    status = lgi_json_parse(&root, text, num_bytes);
    lgi_free(text);
    if (status == LG_OK) {
        status = lg_costs_create(&costs, graph);
    }
    if (status == LG_OK) {
        status = read_costs(costs, graph, root);
    }
    json_decref(root);
    if (status != LG_OK) {
        lg_costs_destroy(costs);
        return lgi_fail_prefix(status, "%s", path);
    }
    *out = costs;
    return LG_OK;
}
