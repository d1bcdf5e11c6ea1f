/* Timelines as SVG, trace and CSV: well-formed, complete, bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>

#include "base/alloc.h"
#include "base/file.h"
#include "unit/report/report_fixture.h"

#define MAX_SVG_BYTES 1500000 /* promised in report.h */

/* Scratch; LG_REPORT_DIR names a directory to keep the files in, to look at them. */
static char directory[256];

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s: %s", lg_status_name(status), lg_last_error());
    }
}

static int make_directory(void **state)
{
    (void)state;
    const char *keep = getenv("LG_REPORT_DIR");
    (void)snprintf(directory, sizeof directory, "%s",
                   keep != NULL ? keep : "/tmp/leapgrad-report-XXXXXX");
    return keep == NULL && mkdtemp(directory) == NULL;
}

static int remove_directory(void **state)
{
    (void)state;
    char command[300];
    if (getenv("LG_REPORT_DIR") != NULL) {
        return 0;
    }
    (void)snprintf(command, sizeof command, "rm -r '%s'", directory);
    return system(command);
}

static const char *path_of(const char *name)
{
    static char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

/* Draws planned and measured; returns the text (lgi_free()). */
static char *draw(const report_run *run, size_t *num_bytes)
{
    char name[64];
    const lg_timeline_panel panels[] = {{"planned", &run->planned}, {"measured", &run->measured}};
    (void)snprintf(name, sizeof name, "timeline-%d.svg", lg_graph_num_ops(run->graph));
    const char *path = path_of(name);
    assert_ok(lg_timeline_save_svg(path, "a <title>", run->graph, &run->plan, panels, 2));
    char *text = report_read_file(path, num_bytes);
    report_assert_well_formed(text, *num_bytes);
    return text;
}

static void few_ops_are_drawn_one_by_one_with_their_names(void **state)
{
    (void)state;
    report_run run;
    size_t num_bytes = 0;
    report_run_make(&run, 2, 1);
    char *text = draw(&run, &num_bytes);
    for (int op = 0; op < lg_graph_num_ops(run.graph); op++) {
        char tooltip[128];
        (void)snprintf(tooltip, sizeof tooltip, "<title>%s\n", lg_graph_op(run.graph, op)->name);
        assert_int_equal(report_count(text, tooltip), 2); /* planned, measured */
    }
    assert_true(report_count(text, ">block1.conv</text>") > 0);
    assert_true(report_count(text, "lag 1: of the step before") > 1);
    assert_int_equal(report_count(text, "class=\"s\""), 2 * 2 + 1); /* boundaries and legend */
    assert_non_null(strstr(text, "a &lt;title&gt;"));
    assert_non_null(strstr(text, "class=\"m\""));
    assert_true(num_bytes < 100000);
    lgi_free(text);
    report_run_free(&run);
}

static void many_ops_stay_below_the_limit_of_bytes(void **state)
{
    (void)state;
    static const struct {
        int num_layers;
        int num_micro_batches;
        int min_ops;
    } cases[] = {{100, 5, 2000}, {100, 50, 20000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report_run run;
        size_t num_bytes = 0;
        report_run_make(&run, cases[i].num_layers, cases[i].num_micro_batches);
        assert_true(lg_graph_num_ops(run.graph) >= cases[i].min_ops);
        char *text = draw(&run, &num_bytes);
        if (num_bytes >= MAX_SVG_BYTES) {
            fail_msg("%zu bytes for %d ops", num_bytes, lg_graph_num_ops(run.graph));
        }
        assert_true(report_count(text, "<rect") > 500); /* merged, not dropped */
        lgi_free(text);
        report_run_free(&run);
    }
}

static void empty_timeline_and_no_timeline_are_drawn(void **state)
{
    (void)state;
    report_run run;
    size_t num_bytes = 0;
    report_run_make(&run, 1, 1);
    const lg_timeline empty = {0};
    const lg_timeline_panel panel = {"empty", &empty};
    for (int num_panels = 0; num_panels < 2; num_panels++) {
        const char *path = path_of("empty.svg");
        assert_ok(lg_timeline_save_svg(path, NULL, run.graph, &run.plan, &panel, num_panels));
        char *text = report_read_file(path, &num_bytes);
        report_assert_well_formed(text, num_bytes);
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        lgi_free(text);
    }
    report_run_free(&run);
}

static void spans_of_length_zero_are_drawn_as_thin_boxes(void **state)
{
    (void)state;
    report_run run;
    size_t num_bytes = 0;
    report_run_make(&run, 1, 1);
    for (int i = 0; i < run.planned.num_spans; i++) {
        run.planned.spans[i].end_ns = run.planned.spans[i].start_ns;
    }
    char *text = draw(&run, &num_bytes);
    assert_null(strstr(text, "width=\"0.00\""));
    assert_null(strstr(text, "nan"));
    lgi_free(text);
    report_run_free(&run);
}

static void span_that_does_not_fit_the_plan_is_refused(void **state)
{
    (void)state;
    report_run run;
    report_run_make(&run, 1, 1);
    const lg_timeline_panel panel = {"planned", &run.planned};
    lg_span *const span = &run.planned.spans[1];
    const lg_span good = *span;
    const lg_span bad[] = {{.op = -1},
                           {.op = 1000000},
                           {.lane = 2},
                           {.lane = -1},
                           {.start_ns = 2.0, .end_ns = 1.0},
                           {.start_ns = NAN},
                           {.end_ns = INFINITY}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        *span = bad[i];
        const char *path = path_of("bad.svg");
        assert_int_equal(lg_timeline_save_svg(path, NULL, run.graph, &run.plan, &panel, 1),
                         LG_INVALID_ARG);
        assert_non_null(strstr(lg_last_error(), "span 1"));
        assert_int_not_equal(access(path, F_OK), 0);
    }
    *span = good;
    report_run_free(&run);
}

static void trace_is_json_with_an_event_for_each_span(void **state)
{
    (void)state;
    report_run run;
    report_run_make(&run, 3, 2);
    const lg_timeline_panel panels[] = {{"planned", &run.planned}, {"measured", &run.measured}};
    const char *path = path_of("trace.json");
    assert_ok(lg_timeline_save_trace(path, run.graph, &run.plan, panels, 2));
    json_error_t error;
    json_t *const root = json_load_file(path, 0, &error);
    assert_non_null(root);
    const json_t *events = json_object_get(root, "traceEvents");
    int num_spans = 0;
    int num_threads = 0;
    size_t i = 0;
    json_t *event = NULL;
    json_array_foreach(events, i, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        const char *name = json_string_value(json_object_get(event, "name"));
        if (strcmp(phase, "X") == 0) {
            const json_t *args = json_object_get(event, "args");
            assert_true(lg_graph_find_op(run.graph, name) >= 0);
            assert_non_null(json_object_get(args, "layer"));
            assert_non_null(json_object_get(args, "lag"));
            assert_true(json_number_value(json_object_get(event, "dur")) > 0.0);
            num_spans++;
        }
        num_threads += strcmp(name, "thread_name") == 0;
    }
    assert_int_equal(num_spans, run.planned.num_spans + run.measured.num_spans);
    assert_int_equal(num_threads, 4);
    json_decref(root);
    report_run_free(&run);
}

static void csv_has_a_line_for_each_span(void **state)
{
    (void)state;
    report_run run;
    size_t num_bytes = 0;
    report_run_make(&run, 3, 2);
    const lg_timeline_panel panel = {"planned", &run.planned};
    const char *path = path_of("timeline.csv");
    assert_ok(lg_timeline_save_csv(path, run.graph, &run.plan, &panel, 1));
    char *text = report_read_file(path, &num_bytes);
    assert_int_equal(report_count(text, "\n"), run.planned.num_spans + 1);
    assert_non_null(strstr(text, "planned,\"weight_grad(block2.conv,1)\",weight_grad,"));
    lgi_free(text);
    report_run_free(&run);
}

static void unwritable_path_is_an_io_error(void **state)
{
    (void)state;
    report_run run;
    report_run_make(&run, 1, 1);
    const lg_timeline_panel panel = {"planned", &run.planned};
    assert_int_equal(
        lg_timeline_save_svg("/nonexistent/x.svg", NULL, run.graph, &run.plan, &panel, 1), LG_IO);
    assert_non_null(strstr(lg_last_error(), "/nonexistent/x.svg"));
    report_run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_ops_are_drawn_one_by_one_with_their_names),
        cmocka_unit_test(many_ops_stay_below_the_limit_of_bytes),
        cmocka_unit_test(empty_timeline_and_no_timeline_are_drawn),
        cmocka_unit_test(spans_of_length_zero_are_drawn_as_thin_boxes),
        cmocka_unit_test(span_that_does_not_fit_the_plan_is_refused),
        cmocka_unit_test(trace_is_json_with_an_event_for_each_span),
        cmocka_unit_test(csv_has_a_line_for_each_span),
        cmocka_unit_test(unwritable_path_is_an_io_error),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
