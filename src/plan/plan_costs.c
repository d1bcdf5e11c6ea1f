/* Costs: the time of each op with each of the graph's widths; estimated, set, kept in a JSON file by op names. */
#include <jansson.h>
#include <math.h>
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
            LG_FAIL(LG_INVALID_ARG, "widths: %d, which the graph has, is missing", opts->widths[i]);
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

static lg_status read_costs(lg_costs *costs, const lg_graph *graph, const json_t *root)
{
    static const char *const keys[] = {"format", "version", "widths", "ops_ns", NULL};
    lg_status status = LG_OK;
    lgi_name_index index = {0};
    int column[LG_MAX_WIDTHS];
    LG_TRY(lgi_json_check_header(root, keys, COSTS_FORMAT, COSTS_VERSION));
    const json_t *widths = NULL;
    json_t *ops = NULL;
    LG_TRY(lgi_json_array(root, "widths", &widths));
    LG_TRY(lgi_json_object(root, "ops_ns", &ops));
    LG_TRY(read_widths(widths, graph, column));
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
