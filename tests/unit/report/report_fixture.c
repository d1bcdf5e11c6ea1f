#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/random.h"
#include "unit/report/report_fixture.h"

enum { NUM_LANES = 2, MAX_NESTING = 64 };

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s: %s", lg_status_name(status), lg_last_error());
    }
}

static void make_model(report_run *run, int num_layers)
{
    lg_layer_attrs input = lg_layer_attrs_default();
    lg_layer_attrs conv = lg_layer_attrs_default();
    lg_layer_attrs relu = lg_layer_attrs_default();
    lg_layer_attrs targets = lg_layer_attrs_default();
    lg_layer_attrs linear = lg_layer_attrs_default();
    int last = 0;
    char name[32];
    input.input_shape = LG_SHAPE(8, 16, 16);
    conv.window = lg_window_square(3, 1, 1);
    conv.num_outputs = 8;
    relu.activation = LG_ACTIVATION_RELU;
    linear.num_outputs = 10;
    targets.input_idx = 1;
    targets.input_dtype = LG_DTYPE_I32;
    targets.input_shape.num_dims = 0;
    assert_ok(lg_model_create(&run->model));
    assert_ok(lg_model_add(run->model, "image", LG_LAYER_INPUT, &input, NULL, 0, &last));
    for (int i = 0; i < num_layers; i++) {
        (void)snprintf(name, sizeof name, "block%d.conv", i + 1);
        assert_ok(lg_model_add(run->model, name, LG_LAYER_CONV2D, &conv, &last, 1, &last));
        (void)snprintf(name, sizeof name, "block%d.relu", i + 1);
        assert_ok(lg_model_add(run->model, name, LG_LAYER_ACTIVATION, &relu, &last, 1, &last));
    }
    assert_ok(lg_model_add(run->model, "pool", LG_LAYER_GLOBAL_AVG_POOL, NULL, &last, 1, &last));
    assert_ok(lg_model_add(run->model, "fc", LG_LAYER_LINEAR, &linear, &last, 1, &last));
    int inputs[2] = {last, 0};
    assert_ok(lg_model_add(run->model, "target", LG_LAYER_INPUT, &targets, NULL, 0, &inputs[1]));
    assert_ok(
        lg_model_add(run->model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL));
}

static int lane_of(const lg_op_info *op)
{
    return op->kind == LG_OP_WEIGHT_GRAD || op->kind == LG_OP_UPDATE ? 1 : 0;
}

/* The updates of the first layers run inside the next step. */
static int lag_of(const lg_op_info *op)
{
    return op->kind == LG_OP_UPDATE && op->layer < 4;
}

static void make_plan(report_run *run)
{
    lg_plan *const plan = &run->plan;
    const int num_ops = lg_graph_num_ops(run->graph);
    plan->num_ranks = 1;
    plan->num_lanes = NUM_LANES;
    plan->num_ops = num_ops;
    assert_ok(lgi_calloc(&plan->lanes, NUM_LANES, sizeof *plan->lanes));
    for (int lane = 0; lane < NUM_LANES; lane++) {
        lg_lane *const queue = &plan->lanes[lane];
        *queue = (lg_lane){.kind = LG_LANE_COMPUTE, .first_core = lane, .num_cores = 1};
        assert_ok(lgi_calloc(&queue->entries, (size_t)num_ops, sizeof *queue->entries));
        for (int pass = 1; pass >= 0; pass--) { /* lagged ops come first */
            for (int op = 0; op < num_ops; op++) {
                const lg_op_info *const info = lg_graph_op(run->graph, op);
                if (lane_of(info) == lane && lag_of(info) == pass) {
                    queue->entries[queue->num_entries++] = (lg_plan_entry){op, pass};
                }
            }
        }
    }
}

static double duration_ns(const lg_op_info *op, double noise)
{
    static const double typical_us[LG_NUM_OP_KINDS] = {
        [LG_OP_FORWARD] = 90.0, [LG_OP_LOSS] = 30.0,   [LG_OP_INPUT_GRAD] = 110.0,
        [LG_OP_GRAD_ADD] = 8.0, [LG_OP_UPDATE] = 12.0, [LG_OP_WEIGHT_GRAD] = 120.0};
    const double factor = strstr(op->name, "relu") != NULL ? 0.12 : 1.0;
    return typical_us[op->kind] * 1e3 * factor * noise;
}

static int compare_spans(const void *a, const void *b)
{
    const lg_span *const x = a;
    const lg_span *const y = b;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* Each op as soon as its lane and what it waits for allow. */
static void make_timeline(const report_run *run, lg_timeline *timeline, uint64_t seed, double noise)
{
    const lgi_random random = lgi_random_stream(seed, LGI_RANDOM_INIT, 0, 0, 0);
    const int num_ops = lg_graph_num_ops(run->graph);
    const int num_edges = lg_graph_num_edges(run->graph);
    const lg_edge *const edges = lg_graph_edges(run->graph);
    double lane_free[NUM_LANES] = {0};
    double *ready = NULL;
    int edge = 0;
    double end_ns = 0.0;
    assert_ok(lgi_calloc(&ready, (size_t)num_ops, sizeof *ready));
    assert_ok(lgi_calloc(&timeline->spans, (size_t)num_ops, sizeof *timeline->spans));
    for (int pass = 1; pass >= 0; pass--) {
        for (int op = 0; op < num_ops; op++) {
            const lg_op_info *const info = lg_graph_op(run->graph, op);
            const int lane = lane_of(info);
            double start = 0.0;
            for (; pass == 0 && edge < num_edges && edges[edge].to <= op; edge++) {
                if (edges[edge].to == op && edges[edge].distance == 0) {
                    start = start > ready[edges[edge].from] ? start : ready[edges[edge].from];
                }
            }
            if (lag_of(info) != pass) {
                continue;
            }
            start = start > lane_free[lane] ? start : lane_free[lane];
            const double factor = 1.0 + noise * (double)lgi_random_uniform(&random, (uint64_t)op);
            const double end = start + duration_ns(info, factor);
            timeline->spans[timeline->num_spans++] = (lg_span){
                .op = op, .lane = lane, .step = 10 - pass, .start_ns = start, .end_ns = end};
            lane_free[lane] = end + 500.0 * factor;
            ready[op] = end;
            end_ns = end_ns > end ? end_ns : end;
        }
    }
    lgi_free(ready);
    qsort(timeline->spans, (size_t)timeline->num_spans, sizeof *timeline->spans, compare_spans);
    timeline->end_ns = end_ns;
    timeline->step_ns = end_ns;
}

/* Forward allocates, backward frees. */
static void add_memory(const report_run *run, lg_timeline *timeline)
{
    int64_t bytes = (int64_t)3 << 20;
    assert_ok(lgi_calloc(&timeline->memory_points, (size_t)timeline->num_spans,
                         sizeof *timeline->memory_points));
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_op_info *const op = lg_graph_op(run->graph, timeline->spans[i].op);
        bytes += op->kind == LG_OP_FORWARD ? 700000 : op->kind == LG_OP_INPUT_GRAD ? -650000 : 0;
        timeline->memory_points[i] =
            (lg_memory_point){.time_ns = timeline->spans[i].start_ns, .bytes = bytes};
    }
    timeline->num_memory_points = timeline->num_spans;
}

void report_run_make(report_run *run, int num_layers, int num_micro_batches)
{
    memset(run, 0, sizeof *run);
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_samples = 8 * num_micro_batches;
    opts.num_micro_batches = num_micro_batches;
    opts.num_slots = 1;
    make_model(run, num_layers);
    assert_ok(lg_graph_create(&run->graph, run->model, &opts));
    make_plan(run);
    make_timeline(run, &run->planned, 1, 0.0);
    make_timeline(run, &run->measured, 2, 0.15);
    add_memory(run, &run->planned);
    add_memory(run, &run->measured);
}

static void free_timeline(lg_timeline *timeline)
{
    lgi_free(timeline->spans);
    lgi_free(timeline->memory_points);
}

void report_run_free(report_run *run)
{
    for (int lane = 0; lane < run->plan.num_lanes; lane++) {
        lgi_free(run->plan.lanes[lane].entries);
    }
    lgi_free(run->plan.lanes);
    free_timeline(&run->planned);
    free_timeline(&run->measured);
    lg_graph_destroy(run->graph);
    lg_model_destroy(run->model);
}

char *report_read_file(const char *path, size_t *num_bytes)
{
    char *text = NULL;
    assert_ok(lgi_file_read(&text, num_bytes, path, (size_t)64 << 20));
    return text;
}

size_t report_count(const char *text, const char *word)
{
    size_t num = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        num++;
    }
    return num;
}

/* --- a small XML checker: tags, quotes, entities ------------------------------------------------------------------ */

static const char *skip_entity(const char *at)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strncmp(at, known[i], strlen(known[i])) == 0) {
            return at + strlen(known[i]);
        }
    }
    fail_msg("unknown entity at '%.40s'", at);
    return at;
}

/* `at` stands behind the name of a tag; returns where its '>' is. */
static const char *skip_attributes(const char *at)
{
    char quote = '\0';
    while (*at != '\0' && (quote != '\0' || *at != '>')) {
        if (*at == '<') {
            fail_msg("'<' inside a tag at '%.40s'", at);
        }
        if (*at == '"' || *at == '\'') {
            quote = quote == '\0' ? *at : quote == *at ? '\0' : quote;
        }
        at = *at == '&' ? skip_entity(at) : at + 1;
    }
    if (*at == '\0') {
        fail_msg("a tag does not end");
    }
    return at;
}

static size_t name_length(const char *at)
{
    return strcspn(at, " \t\r\n/>");
}

static bool is_void_element(const char *name, size_t length)
{
    static const char *const names[] = {"meta", "link", "br"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) {
            return true;
        }
    }
    return false;
}

void report_assert_well_formed(const char *text, size_t num_bytes)
{
    const char *open[MAX_NESTING];
    int depth = 0;
    assert_int_equal(strlen(text), num_bytes);
    for (const char *at = text; *at != '\0';) {
        if (*at == '&') {
            at = skip_entity(at);
        } else if (*at != '<') {
            if (*at == '>' && depth == 0) {
                fail_msg("'>' outside at '%.40s'", at);
            }
            at++;
        } else if (at[1] == '!' || at[1] == '?') {
            at = skip_attributes(at + 1) + 1;
        } else if (at[1] == '/') {
            const size_t length = name_length(at + 2);
            if (depth == 0 || name_length(open[depth - 1]) != length ||
                strncmp(open[depth - 1], at + 2, length) != 0) {
                fail_msg("'%.40s' closes what is not open", at);
            }
            depth--;
            at = skip_attributes(at + 2) + 1;
        } else {
            const char *const name = at + 1;
            const size_t length = name_length(name);
            const char *const end = skip_attributes(name + length);
            at = end + 1;
            if (end[-1] == '/' || is_void_element(name, length)) {
                continue;
            }
            assert_true(depth < MAX_NESTING);
            open[depth++] = name;
            if (strncmp(name, "script", 6) == 0 || strncmp(name, "style", 5) == 0) {
                at = strstr(at, name[1] == 'c' ? "</script" : "</style"); /* raw text */
                assert_non_null(at);
            }
        }
    }
    if (depth != 0) {
        fail_msg("'%.20s' is not closed", open[depth - 1]);
    }
}
