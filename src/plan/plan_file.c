/*
 * Plans as JSON, docs/formats/plan.md. Reading is strict: what the format does not name is an error, and every message
 * starts with the place. Whether the plan is right is lg_plan_check()'s to say.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "plan/plan_check.h"
#include "plan/plan_json.h"
#include "plan/plan_make.h"

#define PLAN_FORMAT "leapgrad-plan"
#define PLAN_VERSION 1
#define MAX_FILE_BYTES ((size_t)256 << 20)
#define MAX_STRATEGY_CHARS 64
/* Offsets and sizes: far above any memory, low enough that sums of two fit. */
#define MAX_BYTES (INT64_MAX / 4)

/* --- writing ----------------------------------------------------------------------------------------------------- */

static json_t *lane_json(const lg_lane *lane, const lg_graph *graph)
{
    json_t *const ops = json_array();
    bool is_ok = ops != NULL;
    for (int i = 0; i < lane->num_entries && is_ok; i++) {
        const lg_plan_entry entry = lane->entries[i];
        const char *const name = lg_graph_op(graph, entry.op)->name;
        json_t *const item = entry.lag == 0 ? json_string(name)
                                            : json_pack("{s:s, s:i}", "op", name, "lag", entry.lag);
        is_ok = json_array_append_new(ops, item) == 0;
    }
    if (!is_ok) {
        json_decref(ops);
        return NULL;
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:o}", "kind",
                     lane->kind == LG_LANE_COMPUTE ? "compute" : "comm", "rank", lane->rank,
                     "first_core", lane->first_core, "num_cores", lane->num_cores, "ops", ops);
}

static json_t *sync_json(const lg_plan_sync *sync, const lg_graph *graph)
{
    return json_pack("{s:s, s:s, s:i}", "from", lg_graph_op(graph, sync->from)->name, "to",
                     lg_graph_op(graph, sync->to)->name, "distance", sync->distance);
}

static json_t *offsets_json(const lg_placement *placement)
{
    json_t *const offsets = json_array();
    for (int slot = 0; slot < placement->num_slots; slot++) {
        if (json_array_append_new(offsets, json_integer(placement->offset_bytes[slot])) != 0) {
            json_decref(offsets);
            return NULL;
        }
    }
    return offsets;
}

static json_t *plan_json(const lg_plan *plan, const lg_graph *graph)
{
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, plan->graph_fingerprint);
    json_t *const root = json_object();
    json_t *const peaks = json_array();
    json_t *const lanes = json_array();
    json_t *const syncs = json_array();
    json_t *const values = json_object();
    json_t *const workspaces = json_object();
    bool is_ok = root != NULL;
    for (int rank = 0; rank < plan->num_ranks && is_ok; rank++) {
        is_ok = json_array_append_new(peaks, json_integer(plan->peak_bytes[rank])) == 0;
    }
    for (int lane = 0; lane < plan->num_lanes && is_ok; lane++) {
        is_ok = json_array_append_new(lanes, lane_json(&plan->lanes[lane], graph)) == 0;
    }
    for (int i = 0; i < plan->num_syncs && is_ok; i++) {
        is_ok = json_array_append_new(syncs, sync_json(&plan->syncs[i], graph)) == 0;
    }
    for (int value = 0; value < plan->num_values && is_ok; value++) {
        is_ok = json_object_set_new(values, lg_graph_value(graph, value)->name,
                                    offsets_json(&plan->values[value])) == 0;
    }
    for (int op = 0; op < plan->num_ops && is_ok; op++) {
        if (plan->workspace_offset_bytes[op] >= 0) {
            is_ok = json_object_set_new(workspaces, lg_graph_op(graph, op)->name,
                                        json_integer(plan->workspace_offset_bytes[op])) == 0;
        }
    }
    is_ok = is_ok && json_object_set_new(root, "format", json_string(PLAN_FORMAT)) == 0 &&
            json_object_set_new(root, "version", json_integer(PLAN_VERSION)) == 0 &&
            json_object_set_new(root, "strategy", json_string(plan->strategy)) == 0 &&
            json_object_set_new(root, "graph", json_string(fingerprint)) == 0 &&
            json_object_set(root, "peak_bytes", peaks) == 0 &&
            json_object_set(root, "lanes", lanes) == 0 &&
            json_object_set(root, "syncs", syncs) == 0 &&
            json_object_set(root, "values", values) == 0 &&
            json_object_set(root, "workspaces", workspaces) == 0;
    json_decref(peaks);
    json_decref(lanes);
    json_decref(syncs);
    json_decref(values);
    json_decref(workspaces);
    if (!is_ok) {
        json_decref(root);
        return NULL;
    }
    return root;
}

lg_status lg_plan_save(const lg_plan *plan, const lg_graph *graph, const char *path)
{
    LG_TRY(lgi_plan_check_lanes(plan, graph));
    json_t *const root = plan_json(plan, graph);
    if (root == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "%s: out of memory while making the plan's JSON", path);
    }
    const lg_status status = lgi_json_write(root, path);
    json_decref(root);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static lg_status read_op_name(const json_t *item, const char *where, const lgi_name_index *index,
                              int *op)
{
    const char *const name = json_string_value(item);
    if (name == NULL) {
        LG_FAIL(LG_INVALID_ARG, "%s: expected the name of an op", where);
    }
    *op = lgi_name_index_find(index, name);
    if (*op < 0) {
        LG_FAIL(LG_INVALID_ARG, "%s: the graph has no op '%.200s'", where, name);
    }
    return LG_OK;
}

static lg_status read_entry(const json_t *item, const char *where, const lgi_name_index *index,
                            lg_plan_entry *entry)
{
    static const char *const keys[] = {"op", "lag", NULL};
    *entry = (lg_plan_entry){0};
    if (json_is_string(item)) {
        return read_op_name(item, where, index, &entry->op);
    }
    int64_t lag = 0;
    LG_TRY(lgi_json_check_keys(item, where, keys));
    LG_TRY(lgi_json_integer(item, where, "lag", 0, 1, &lag));
    entry->lag = (int)lag;
    return read_op_name(json_object_get(item, "op"), where, index, &entry->op);
}

static lg_status read_lane(const json_t *item, int lane_idx, const lgi_name_index *index,
                           lg_lane *lane)
{
    static const char *const keys[] = {"kind", "rank", "first_core", "num_cores", "ops", NULL};
    char where[64];
    snprintf(where, sizeof where, "lanes[%d]", lane_idx);
    LG_TRY(lgi_json_check_keys(item, where, keys));
    const char *const kind = json_string_value(json_object_get(item, "kind"));
    if (kind == NULL || (strcmp(kind, "compute") != 0 && strcmp(kind, "comm") != 0)) {
        LG_FAIL(LG_INVALID_ARG, "%s: 'kind': expected \"compute\" or \"comm\"", where);
    }
    lane->kind = strcmp(kind, "compute") == 0 ? LG_LANE_COMPUTE : LG_LANE_COMM;
    int64_t rank = 0;
    int64_t first_core = 0;
    int64_t num_cores = 0;
    LG_TRY(lgi_json_integer(item, where, "rank", 0, lg_graph_num_ranks(index->graph) - 1, &rank));
    LG_TRY(lgi_json_integer(item, where, "first_core", 0, LGI_MAX_CORES - 1, &first_core));
    LG_TRY(lgi_json_integer(item, where, "num_cores", 0, LGI_MAX_CORES, &num_cores));
    lane->rank = (int)rank;
    lane->first_core = (int)first_core;
    lane->num_cores = (int)num_cores;
    const json_t *const ops = json_object_get(item, "ops");
    if (!json_is_array(ops)) {
        LG_FAIL(LG_INVALID_ARG, "%s: 'ops': expected an array", where);
    }
    const size_t num_entries = json_array_size(ops);
    if (num_entries > (size_t)index->num_ops + 1) {
        LG_FAIL(LG_INVALID_ARG, "%s: 'ops' has %zu entries, the graph has %d ops", where,
                num_entries, index->num_ops);
    }
    LG_TRY(lgi_calloc(&lane->entries, num_entries, sizeof *lane->entries));
    for (size_t i = 0; i < num_entries; i++) {
        char entry_where[96];
        snprintf(entry_where, sizeof entry_where, "%s.ops[%zu]", where, i);
        LG_TRY(read_entry(json_array_get(ops, i), entry_where, index, &lane->entries[i]));
        lane->num_entries = (int)i + 1;
    }
    return LG_OK;
}

static lg_status read_lanes(lg_plan *plan, const json_t *root, const lgi_name_index *index)
{
    const json_t *lanes = NULL;
    LG_TRY(lgi_json_array(root, "lanes", &lanes));
    const size_t num_lanes = json_array_size(lanes);
    if (num_lanes > LGI_MAX_LANES) {
        LG_FAIL(LG_INVALID_ARG, "lanes: %zu of them; allowed: at most %d", num_lanes,
                LGI_MAX_LANES);
    }
    LG_TRY(lgi_realloc(&plan->lanes, num_lanes, sizeof *plan->lanes));
    if (num_lanes > 0) {
        memset(plan->lanes, 0, num_lanes * sizeof *plan->lanes);
    }
    plan->num_lanes = (int)num_lanes;
    for (size_t i = 0; i < num_lanes; i++) {
        LG_TRY(read_lane(json_array_get(lanes, i), (int)i, index, &plan->lanes[i]));
    }
    return LG_OK;
}

static lg_status read_syncs(lg_plan *plan, const json_t *root, const lgi_name_index *index)
{
    static const char *const keys[] = {"from", "to", "distance", NULL};
    const json_t *syncs = NULL;
    LG_TRY(lgi_json_array(root, "syncs", &syncs));
    const size_t num_syncs = json_array_size(syncs);
    if (num_syncs > 4 * (size_t)index->num_ops + 4) {
        LG_FAIL(LG_INVALID_ARG, "syncs: %zu of them for %d ops", num_syncs, index->num_ops);
    }
    LG_TRY(lgi_realloc(&plan->syncs, num_syncs, sizeof *plan->syncs));
    for (size_t i = 0; i < num_syncs; i++) {
        char where[64];
        int64_t distance = 0;
        const json_t *const item = json_array_get(syncs, i);
        snprintf(where, sizeof where, "syncs[%zu]", i);
        LG_TRY(lgi_json_check_keys(item, where, keys));
        LG_TRY(lgi_json_integer(item, where, "distance", 0, 1, &distance));
        plan->syncs[i].distance = (int)distance;
        LG_TRY(read_op_name(json_object_get(item, "from"), where, index, &plan->syncs[i].from));
        LG_TRY(read_op_name(json_object_get(item, "to"), where, index, &plan->syncs[i].to));
    }
    plan->num_syncs = (int)num_syncs;
    return LG_OK;
}

static lg_status read_placement(const json_t *offsets, const char *name, lg_placement *placement)
{
    const size_t num_slots = json_array_size(offsets);
    if (!json_is_array(offsets) || num_slots > 2) {
        LG_FAIL(LG_INVALID_ARG, "values '%s': expected an array of at most 2 offsets", name);
    }
    placement->num_slots = (int)num_slots;
    for (size_t slot = 0; slot < num_slots; slot++) {
        const json_t *const item = json_array_get(offsets, slot);
        const int64_t offset = json_integer_value(item);
        if (!json_is_integer(item) || offset < 0 || offset > MAX_BYTES) {
            LG_FAIL(LG_INVALID_ARG, "values '%s': expected offsets in 0..%lld", name,
                    (long long)MAX_BYTES);
        }
        placement->offset_bytes[slot] = offset;
    }
    return LG_OK;
}

static lg_status read_values(lg_plan *plan, const json_t *root, const lg_graph *graph)
{
    json_t *values = NULL;
    LG_TRY(lgi_json_object(root, "values", &values));
    for (int value = 0; value < plan->num_values; value++) {
        const char *const name = lg_graph_value(graph, value)->name;
        const json_t *const offsets = json_object_get(values, name);
        if (offsets == NULL) {
            LG_FAIL(LG_INVALID_ARG, "values: '%s' is missing", name);
        }
        LG_TRY(read_placement(offsets, name, &plan->values[value]));
    }
    if (json_object_size(values) != (size_t)plan->num_values) {
        json_t *known = json_object();
        const char *key = NULL;
        json_t *item = NULL;
        for (int value = 0; value < plan->num_values; value++) {
            if (json_object_set_new(known, lg_graph_value(graph, value)->name, json_true()) != 0) {
                json_decref(known);
                LG_FAIL(LG_OUT_OF_MEMORY, "values: out of memory");
            }
        }
        json_object_foreach(values, key, item)
        {
            if (json_object_get(known, key) == NULL) {
                json_decref(known);
                LG_FAIL(LG_INVALID_ARG, "values: the graph has no value '%.200s'", key);
            }
        }
        json_decref(known);
    }
    return LG_OK;
}

static lg_status read_workspaces(lg_plan *plan, const json_t *root, const lgi_name_index *index)
{
    json_t *workspaces = NULL;
    LG_TRY(lgi_json_object(root, "workspaces", &workspaces));
    const char *name = NULL;
    json_t *item = NULL;
    json_object_foreach(workspaces, name, item)
    {
        const int op = lgi_name_index_find(index, name);
        if (op < 0) {
            LG_FAIL(LG_INVALID_ARG, "workspaces: the graph has no op '%.200s'", name);
        }
        LG_TRY(lgi_json_integer(workspaces, "workspaces", name, 0, MAX_BYTES,
                                &plan->workspace_offset_bytes[op]));
    }
    return LG_OK;
}

static lg_status read_peaks(lg_plan *plan, const json_t *root)
{
    const json_t *peaks = NULL;
    LG_TRY(lgi_json_array(root, "peak_bytes", &peaks));
    if (json_array_size(peaks) != (size_t)plan->num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "peak_bytes: expected %d numbers, one for each rank",
                plan->num_ranks);
    }
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        const json_t *const item = json_array_get(peaks, (size_t)rank);
        const int64_t bytes = json_integer_value(item);
        if (!json_is_integer(item) || bytes < 0 || bytes > MAX_BYTES) {
            LG_FAIL(LG_INVALID_ARG, "peak_bytes[%d]: expected an integer in 0..%lld", rank,
                    (long long)MAX_BYTES);
        }
        plan->peak_bytes[rank] = bytes;
    }
    return LG_OK;
}

static lg_status read_identity(const json_t *root, const lg_graph *graph, const char **strategy)
{
    char expected[17];
    snprintf(expected, sizeof expected, "%016" PRIx64, lg_graph_fingerprint(graph));
    const char *const fingerprint = json_string_value(json_object_get(root, "graph"));
    if (fingerprint == NULL || strlen(fingerprint) != 16 ||
        strspn(fingerprint, "0123456789abcdef") != 16) {
        LG_FAIL(LG_INVALID_ARG, "graph: expected a fingerprint of 16 hexadecimal digits");
    }
    if (strcmp(fingerprint, expected) != 0) {
        LG_FAIL(LG_INVALID_ARG,
                "graph: the plan is for another graph: its fingerprint is %s, this graph's is %s "
                "(another model, batch size, number of micro-batches, threads, ranks, messages or "
                "device; a plan made for a machine file is for the machine on paper, not for "
                "training here)",
                fingerprint, expected);
    }
    *strategy = json_string_value(json_object_get(root, "strategy"));
    bool is_plain = *strategy != NULL && strlen(*strategy) <= MAX_STRATEGY_CHARS;
    for (const char *c = *strategy; is_plain && *c != '\0'; c++) {
        is_plain = *c >= ' ' && *c <= '~'; /* it is printed */
    }
    if (!is_plain) {
        LG_FAIL(LG_INVALID_ARG, "strategy: expected a text of at most %d plain characters",
                MAX_STRATEGY_CHARS);
    }
    return LG_OK;
}

static lg_status read_plan(lg_plan **out, const json_t *root, const lg_graph *graph)
{
    static const char *const keys[] = {"format", "version", "strategy", "graph",      "peak_bytes",
                                       "lanes",  "syncs",   "values",   "workspaces", NULL};
    lg_status status = LG_OK;
    lgi_name_index index = {0};
    const char *strategy = NULL;
    lg_plan *plan = NULL;
    LG_TRY(lgi_json_check_header(root, keys, PLAN_FORMAT, PLAN_VERSION));
    LG_TRY(read_identity(root, graph, &strategy));
    LG_TRY_GOTO(lgi_plan_init(&plan, graph, strategy, 0));
    LG_TRY_GOTO(lgi_name_index_init(&index, graph));
    LG_TRY_GOTO(read_lanes(plan, root, &index));
    LG_TRY_GOTO(read_syncs(plan, root, &index));
    LG_TRY_GOTO(read_values(plan, root, graph));
    LG_TRY_GOTO(read_workspaces(plan, root, &index));
    LG_TRY_GOTO(read_peaks(plan, root));
    *out = plan;
    plan = NULL;
out:
    lgi_name_index_deinit(&index);
    lg_plan_destroy(plan);
    return status;
}

lg_status lg_plan_parse(lg_plan **out, const lg_graph *graph, const char *text, size_t num_bytes)
{
    *out = NULL;
    json_t *root = NULL;
    LG_TRY(lgi_json_parse(&root, text, num_bytes));
    const lg_status status = read_plan(out, root, graph);
    json_decref(root);
    return status;
}

lg_status lg_plan_load(lg_plan **out, const lg_graph *graph, const char *path)
{
    *out = NULL;
    char *text = NULL;
    size_t num_bytes = 0;
    LG_TRY(lgi_file_read(&text, &num_bytes, path, MAX_FILE_BYTES));
    const lg_status status = lg_plan_parse(out, graph, text, num_bytes);
    lgi_free(text);
    return status != LG_OK ? lgi_fail_prefix(status, "%s", path) : LG_OK;
}
