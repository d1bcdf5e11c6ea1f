/* report.html: well-formed, self-contained, escaped, whatever the run was like. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <math.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/random.h"
#include "report/text_buffer.h"
#include "unit/report/report_fixture.h"

#define MAX_REPORT_BYTES 2000000 /* timeline 1.5 MB, the rest is small */

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
    static char path[2][400];
    static int next;
    next = 1 - next;
    (void)snprintf(path[next], sizeof path[0], "%s/%s", directory, name);
    return path[next];
}

static lg_record *make_record(void)
{
    lg_record *run = NULL;
    assert_ok(lg_record_create(&run));
    assert_ok(lg_record_set_text(run, "model", "resnet-20"));
    assert_ok(lg_record_set_text(run, "dataset", "fashion-mnist"));
    assert_ok(lg_record_set_text(run, "strategy", "out-of-order"));
    assert_ok(lg_record_set_i64(run, "lanes", 2));
    assert_ok(lg_record_set_i64(run, "steps", 2345));
    assert_ok(lg_record_set_f64(run, "loss", 0.18734));
    assert_ok(lg_record_set_f64(run, "test_accuracy", 0.9187));
    assert_ok(lg_record_set_text(run, "weights_hash", "4f9a01c2d3e4f5061728394a5b6c7d8e"));
    assert_ok(lg_record_set_f64(run, "step_ms_median", 84.21));
    assert_ok(lg_record_set_f64(run, "predicted_step_ms", 82.9));
    assert_ok(lg_record_set_f64(run, "samples_per_s", 1519.6));
    assert_ok(lg_record_set_i64(run, "planned_peak_bytes", 194510848));
    assert_ok(lg_record_set_i64(run, "measured_peak_bytes", 194510848));
    assert_ok(lg_record_set_i64(run, "seed", 1));
    assert_ok(lg_record_set_json(run, "recipe", "{\"x\": [1]}"));
    return run;
}

/* A loss that falls with noise, a test every 100 steps. */
static lg_metrics *make_metrics(int64_t num_steps, bool has_gaps)
{
    const char *path = path_of("metrics.jsonl");
    const lgi_random random = lgi_random_stream(3, LGI_RANDOM_INIT, 0, 0, 0);
    lg_metrics_log *log = NULL;
    lg_metrics *metrics = NULL;
    assert_ok(lg_metrics_log_open(&log, path, 0));
    for (int64_t step = 1; step <= num_steps; step++) {
        lg_record *line = NULL;
        const double noise = (double)lgi_random_normal(&random, (uint64_t)step);
        double loss = 0.25 + 2.0 * exp(-(double)step / 300.0) + 0.05 * noise;
        loss = has_gaps && step % 50 < 10 ? NAN : loss;
        assert_ok(lg_record_create(&line));
        assert_ok(lg_record_set_f64(line, "loss", loss));
        assert_ok(lg_record_set_f64(line, "accuracy",
                                    0.93 - 0.6 * exp(-(double)step / 250.0) + 0.02 * noise));
        assert_ok(lg_record_set_f64(line, "lr",
                                    0.1 * (1.0 + cos(3.14159 * (double)step / (double)num_steps))));
        if (step % 200 == 0) {
            assert_ok(lg_record_set_f64(line, "test_loss", 0.3 + 1.9 * exp(-(double)step / 300.0)));
            assert_ok(
                lg_record_set_f64(line, "test_accuracy", 0.92 - 0.6 * exp(-(double)step / 250.0)));
        }
        assert_ok(lg_metrics_log_append(log, step, line));
        lg_record_destroy(line);
    }
    lg_metrics_log_close(log);
    assert_ok(lg_metrics_load(&metrics, path));
    return metrics;
}

/* Saves, checks what holds for every report, returns the text (lgi_free()). */
static char *save(const lg_report_input *input, const char *name)
{
    size_t num_bytes = 0;
    const char *path = path_of(name);
    assert_ok(lg_report_save(input, path));
    char *text = report_read_file(path, &num_bytes);
    report_assert_well_formed(text, num_bytes);
    assert_true(num_bytes < MAX_REPORT_BYTES);
    /* Nothing from outside: no address but the name of SVG. */
    assert_int_equal(report_count(text, "http"), report_count(text, "http://www.w3.org/2000/svg") +
                                                     report_count(text, "http-equiv"));
    assert_int_equal(report_count(text, " src="), 0);
    assert_int_equal(report_count(text, "url("), report_count(text, "url(#lg-lag)"));
    assert_int_equal(report_count(text, "@import"), 0);
    assert_int_equal(report_count(text, "<script"), 1);
    return text;
}

static void full_report_has_all_sections(void **state)
{
    (void)state;
    report_run run;
    report_run_make(&run, 6, 2);
    lg_record *record = make_record();
    lg_metrics *metrics = make_metrics(2345, false);
    const lg_report_input input = {
        .title = "fashion-resnet20",
        .run = record,
        .metrics = metrics,
        .recipe_text = "model:\n  name: resnet\n  depth: 20\ntrain:\n  steps: 2345\n"
                       "  batch: 128\n  lr: 0.1\nplan:\n  strategy: out-of-order\n",
        .graph = run.graph,
        .plan = &run.plan,
        .planned = &run.planned,
        .measured = &run.measured};
    char *text = save(&input, "report.html");
    assert_non_null(strstr(text, "<h1>fashion-resnet20</h1>"));
    assert_non_null(strstr(text, "91.87<small>%"));
    assert_non_null(strstr(text, "0.1873"));
    assert_non_null(strstr(text, "1,520<small>samples/s"));
    assert_non_null(strstr(text, "84.21<small>ms"));
    assert_non_null(strstr(text, "predicted 82.9 ms <span class=\"chip good\">+1.6 %"));
    assert_non_null(strstr(text, "185.5<small>MiB"));
    assert_non_null(strstr(text, "as planned"));
    assert_non_null(strstr(text, "4f9a01c2d3e4f5061728394a5b6c7d8e"));
    assert_non_null(strstr(text, "depth: 20"));
    assert_int_equal(report_count(text, "<figure"), 4); /* loss, accuracy, rate, memory */
    assert_int_equal(report_count(text, "<svg class=\"tl\""), 1);
    assert_non_null(strstr(text, "input_grad</td>"));
    lgi_free(text);
    lg_metrics_destroy(metrics);
    lg_record_destroy(record);
    report_run_free(&run);
}

static void text_report_shows_bits_per_byte(void **state)
{
    (void)state;
    lg_record *record = NULL;
    assert_ok(lg_record_create(&record));
    assert_ok(lg_record_set_f64(record, "bits_per_byte", 2.3456));
    const lg_report_input input = {.title = "kjv-gpt", .run = record};
    char *text = save(&input, "text.html");
    assert_non_null(strstr(text, "2.346"));
    assert_null(strstr(text, "<figure"));
    assert_null(strstr(text, "Test accuracy"));
    lgi_free(text);
    lg_record_destroy(record);
}

static void empty_run_gives_a_page(void **state)
{
    (void)state;
    lg_record *record = NULL;
    lg_metrics *metrics = make_metrics(0, false);
    const lg_timeline empty = {0};
    report_run run;
    report_run_make(&run, 1, 1);
    assert_ok(lg_record_create(&record));
    const lg_report_input input = {.run = record,
                                   .metrics = metrics,
                                   .graph = run.graph,
                                   .plan = &run.plan,
                                   .measured = &empty};
    char *text = save(&input, "empty.html");
    assert_null(strstr(text, "nan"));
    lgi_free(text);
    lg_metrics_destroy(metrics);
    lg_record_destroy(record);
    report_run_free(&run);
}

static void hostile_texts_are_escaped_everywhere(void **state)
{
    (void)state;
    static const char evil[] = "</pre><script>alert(1)</script><img onerror=x>\"'&\x01\xff\xc0\x80";
    static const char clean[] = "</title><script>alert(1)</script>\"'&";
    lg_record *record = NULL;
    assert_ok(lg_record_create(&record));
    assert_ok(lg_record_set_text(record, "strategy", clean));
    assert_ok(lg_record_set_text(record, "weights_hash", clean));
    assert_ok(lg_record_set_text(record, "device", clean));
    assert_ok(lg_record_set_text(record, clean, clean));
    const lg_report_input input = {.title = evil, .run = record, .recipe_text = evil};
    char *text = save(&input, "evil.html"); /* one <script>: the page's own */
    assert_null(strstr(text, "<img"));
    assert_null(strstr(text, "\x01"));
    assert_null(strstr(text, "\xc0\x80"));
    assert_non_null(strstr(text, "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;"));
    lgi_free(text);
    lg_record_destroy(record);
}

static void curves_with_gaps_and_huge_values_hold_only_numbers(void **state)
{
    (void)state;
    const char *path = path_of("wild.jsonl");
    static const double values[] = {NAN, 1.0, INFINITY, 1.7e308, -1.7e308, -INFINITY, 0.0, 1e-300};
    lg_record *record = NULL;
    lg_metrics_log *log = NULL;
    lg_metrics *metrics = NULL;
    assert_ok(lg_record_create(&record));
    assert_ok(lg_metrics_log_open(&log, path, 0));
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        lg_record *line = NULL;
        assert_ok(lg_record_create(&line));
        assert_ok(lg_record_set_f64(line, "loss", values[i]));
        assert_ok(lg_record_set_f64(line, "accuracy", NAN));
        assert_ok(lg_record_set_f64(line, "lr", 0.1)); /* constant */
        assert_ok(lg_metrics_log_append(log, (int64_t)i, line));
        lg_record_destroy(line);
    }
    lg_metrics_log_close(log);
    assert_ok(lg_metrics_load(&metrics, path));
    const lg_report_input input = {.title = "wild", .run = record, .metrics = metrics};
    char *text = save(&input, "wild.html");
    char *const begin = strstr(text, "<section class=\"charts c");
    *strstr(begin, "</section>") = '\0';
    assert_null(strstr(begin, "nan"));
    assert_null(strstr(begin, "inf"));
    assert_non_null(strstr(begin, "(3 not finite)"));
    assert_non_null(strstr(begin, "no finite value"));
    lgi_free(text);
    lg_metrics_destroy(metrics);
    lg_record_destroy(record);
}

static void long_runs_stay_small(void **state)
{
    (void)state;
    report_run run;
    report_run_make(&run, 100, 20);
    lg_record *record = make_record();
    lg_metrics *metrics = make_metrics(30000, true);
    const lg_report_input input = {.title = "long",
                                   .run = record,
                                   .metrics = metrics,
                                   .graph = run.graph,
                                   .plan = &run.plan,
                                   .planned = &run.planned,
                                   .measured = &run.measured};
    lgi_free(save(&input, "long.html"));
    lg_metrics_destroy(metrics);
    lg_record_destroy(record);
    report_run_free(&run);
}

static void failed_allocations_leave_no_file(void **state)
{
    (void)state;
    report_run run;
    report_run_make(&run, 2, 1);
    lg_record *record = make_record();
    lg_metrics *metrics = make_metrics(50, false);
    const lg_report_input input = {.title = "alloc",
                                   .run = record,
                                   .metrics = metrics,
                                   .graph = run.graph,
                                   .plan = &run.plan,
                                   .planned = &run.planned,
                                   .measured = &run.measured};
    const char *path = path_of("alloc.html");
    lg_status status = LG_OUT_OF_MEMORY;
    int64_t n = 0;
    (void)unlink(path);
    while (status != LG_OK) {
        assert_int_equal(status, LG_OUT_OF_MEMORY);
        assert_int_not_equal(access(path, F_OK), 0);
        lgi_alloc_fail_after(++n);
        status = lg_report_save(&input, path);
        lgi_alloc_fail_after(0);
    }
    assert_true(n > 20);
    lg_metrics_destroy(metrics);
    lg_record_destroy(record);
    report_run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_report_has_all_sections),
        cmocka_unit_test(text_report_shows_bits_per_byte),
        cmocka_unit_test(empty_run_gives_a_page),
        cmocka_unit_test(hostile_texts_are_escaped_everywhere),
        cmocka_unit_test(curves_with_gaps_and_huge_values_hold_only_numbers),
        cmocka_unit_test(long_runs_stay_small),
        cmocka_unit_test(failed_allocations_leave_no_file),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
