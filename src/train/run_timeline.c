/* Measured timelines as files: JSON, ops by name, so that `show` can draw a run again (docs/formats/run.md). */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "leapgrad/run.h"

#define FORMAT_NAME "leapgrad-timeline"
#define MAX_FILE_BYTES ((size_t)256 << 20)

/* --- saving -------------------------------------------------------------------------------------------------------- */

static lg_status append_span(json_t *spans, const lg_span *span, const lg_graph *graph)
{
    json_t *const item = json_pack(
        "{s:s, s:i, s:I, s:f, s:f}", "op", lg_graph_op(graph, span->op)->name, "lane", span->lane,
        "step", (json_int_t)span->step, "start_ns", span->start_ns, "end_ns", span->end_ns);
    if (item == NULL || json_array_append_new(spans, item) != 0) {
        LG_FAIL(LG_OUT_OF_MEMORY, "no memory for a timeline");
    }
    return LG_OK;
}

lg_status lg_timeline_save(const lg_timeline *timeline, const lg_graph *graph, const char *path)
{
    lg_status status = LG_OK;
    char *text = NULL;
    json_t *const spans = json_array();
    json_t *const root = json_pack("{s:s, s:i, s:f, s:f, s:f, s:O}", "format", FORMAT_NAME,
                                   "version", 1, "begin_ns", timeline->begin_ns, "end_ns",
                                   timeline->end_ns, "step_ns", timeline->step_ns, "spans", spans);
    for (int i = 0; i < timeline->num_spans; i++) {
        LG_TRY_GOTO(append_span(spans, &timeline->spans[i], graph));
    }
    text = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (text == NULL) {
        LG_TRY_GOTO(lgi_fail(LG_OUT_OF_MEMORY, "no memory for a timeline"));
    }
    LG_TRY_GOTO(lgi_file_write(path, text, strlen(text)));
out:
    free(text);
    json_decref(root);
    json_decref(spans);
    return status;
}

/* --- loading ------------------------------------------------------------------------------------------------------- */

static lg_status read_number(double *out, const json_t *object, const char *key, const char *path)
{
    const json_t *const value = json_object_get(object, key);
    if (!json_is_number(value)) {
        LG_FAIL(LG_CORRUPT, "'%s': '%s' is missing or no number", path, key);
    }
    *out = json_number_value(value);
    return LG_OK;
}

static lg_status read_span(lg_span *out, const json_t *item, const lg_graph *graph,
                           const lg_plan *plan, const char *path)
{
    const char *const name = json_string_value(json_object_get(item, "op"));
    const json_t *const lane = json_object_get(item, "lane");
    const json_t *const step = json_object_get(item, "step");
    if (name == NULL || !json_is_integer(lane) || !json_is_integer(step)) {
        LG_FAIL(LG_CORRUPT, "'%s': a span lacks op, lane or step", path);
    }
    out->op = lg_graph_find_op(graph, name);
    if (out->op < 0) {
        LG_FAIL(LG_CORRUPT, "'%s': op '%s' is not in the graph", path, name);
    }
    if (json_integer_value(lane) < 0 || json_integer_value(lane) >= plan->num_lanes) {
        LG_FAIL(LG_CORRUPT, "'%s': lane %lld of op '%s' is not in [0, %d)", path,
                (long long)json_integer_value(lane), name, plan->num_lanes);
    }
    out->lane = (int)json_integer_value(lane);
    out->step = json_integer_value(step);
    LG_TRY(read_number(&out->start_ns, item, "start_ns", path));
    LG_TRY(read_number(&out->end_ns, item, "end_ns", path));
    if (!(out->end_ns >= out->start_ns)) {
        LG_FAIL(LG_CORRUPT, "'%s': op '%s' ends before it starts", path, name);
    }
    return LG_OK;
}

static lg_status read_timeline(lg_timeline *out, const json_t *root, const lg_graph *graph,
                               const lg_plan *plan, const char *path)
{
    const char *const format = json_string_value(json_object_get(root, "format"));
    const json_t *const spans = json_object_get(root, "spans");
    if (format == NULL || strcmp(format, FORMAT_NAME) != 0 || !json_is_array(spans)) {
        LG_FAIL(LG_CORRUPT, "'%s': no timeline: expected a JSON object of the format '%s'", path,
                FORMAT_NAME);
    }
    LG_TRY(read_number(&out->begin_ns, root, "begin_ns", path));
    LG_TRY(read_number(&out->end_ns, root, "end_ns", path));
    LG_TRY(read_number(&out->step_ns, root, "step_ns", path));
    const size_t num_spans = json_array_size(spans);
    LG_TRY(lgi_calloc(&out->spans, num_spans + 1, sizeof *out->spans));
    for (size_t i = 0; i < num_spans; i++) {
        LG_TRY(read_span(&out->spans[i], json_array_get(spans, i), graph, plan, path));
        out->num_spans++;
    }
    return LG_OK;
}

lg_status lg_timeline_load(lg_timeline *out, const lg_graph *graph, const lg_plan *plan,
                           const char *path)
{
    char *text = NULL;
    size_t num_bytes = 0;
    json_error_t error;
    memset(out, 0, sizeof *out);
    LG_TRY(lgi_file_read(&text, &num_bytes, path, MAX_FILE_BYTES));
    json_t *const root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error);
    lgi_free(text);
    lg_status status = LG_OK;
    if (root == NULL) {
        status = lgi_fail(LG_CORRUPT, "'%s', line %d: %s", path, error.line, error.text);
    } else {
        status = read_timeline(out, root, graph, plan, path);
    }
    json_decref(root);
    if (status != LG_OK) {
        lg_timeline_deinit(out);
    }
    return status;
}
