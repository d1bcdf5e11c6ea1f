/* Records and metrics: what is written is read back, a crash costs at most a line, a resumed run writes anew. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include <math.h>

#include "base/alloc.h"
#include "base/file.h"
#include "leapgrad/report.h"

static char path[64];

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s: %s", lg_status_name(status), lg_last_error());
    }
}

static int make_path(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/leapgrad-metrics-XXXXXX");
    const int fd = mkstemp(path);
    (void)close(fd);
    return fd < 0;
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

static void append_steps(lg_metrics_log *log, int64_t first, int64_t last, double offset)
{
    for (int64_t step = first; step <= last; step++) {
        lg_record *record = NULL;
        assert_ok(lg_record_create(&record));
        assert_ok(lg_record_set_f64(record, "loss", (double)step + offset));
        if (step % 5 == 0) {
            assert_ok(lg_record_set_f64(record, "test_accuracy", 0.5));
        }
        assert_ok(lg_metrics_log_append(log, step, record));
        lg_record_destroy(record);
    }
}

static void record_keeps_types_and_order_through_a_file(void **state)
{
    (void)state;
    lg_record *record = NULL;
    lg_record *loaded = NULL;
    assert_ok(lg_record_create(&record));
    assert_ok(lg_record_set_text(record, "strategy", "out-of-order \"<x>\""));
    assert_ok(lg_record_set_i64(record, "steps", INT64_MAX));
    assert_ok(lg_record_set_f64(record, "loss", 0.1));
    assert_ok(lg_record_set_f64(record, "bad", NAN));
    assert_ok(lg_record_set_bool(record, "resumed", true));
    assert_ok(lg_record_set_json(record, "recipe", "{\"a\": [1, 2]}"));
    assert_ok(lg_record_set_i64(record, "steps", 7)); /* again: keeps its place */
    assert_int_equal(lg_record_set_json(record, "recipe", "{oops"), LG_INVALID_ARG);
    assert_int_equal(lg_record_set_text(record, "t", "\xff"), LG_INVALID_ARG);
    assert_ok(lg_record_save(record, path));
    assert_ok(lg_record_load(&loaded, path));
    assert_string_equal(lg_record_text(loaded, "strategy"), "out-of-order \"<x>\"");
    assert_true(lg_record_number(loaded, "steps") == 7.0);
    assert_true(lg_record_number(loaded, "loss") == 0.1);
    assert_true(isnan(lg_record_number(loaded, "bad")));
    assert_true(lg_record_has(loaded, "bad"));
    assert_false(lg_record_has(loaded, "missing"));
    assert_null(lg_record_text(loaded, "loss"));
    char *text = NULL;
    size_t num_bytes = 0;
    assert_ok(lgi_file_read(&text, &num_bytes, path, 10000));
    assert_true(strstr(text, "strategy") < strstr(text, "steps"));
    assert_true(strstr(text, "steps") < strstr(text, "loss"));
    lgi_free(text);
    lg_record_destroy(loaded);
    lg_record_destroy(record);
}

static void damaged_record_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{", "[]", "{\"a\":1,\"a\":2}", "{\"a\":1}x"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        lg_record *record = NULL;
        assert_ok(lgi_file_write(path, texts[i], strlen(texts[i])));
        assert_int_equal(lg_record_load(&record, path), LG_CORRUPT);
        assert_null(record);
        assert_non_null(strstr(lg_last_error(), path));
    }
}

static void lines_are_read_back_by_key(void **state)
{
    (void)state;
    lg_metrics_log *log = NULL;
    lg_metrics *metrics = NULL;
    assert_ok(lg_metrics_log_open(&log, path, 0));
    append_steps(log, 1, 20, 0.0);
    assert_ok(lg_metrics_load(&metrics, path)); /* while it is open: lines are there at once */
    const lg_metrics_series *loss = lg_metrics_find(metrics, "loss");
    assert_int_equal(loss->num_points, 20);
    assert_true(loss->steps[19] == 20.0 && loss->values[19] == 20.0);
    assert_int_equal(lg_metrics_find(metrics, "test_accuracy")->num_points, 4);
    assert_null(lg_metrics_find(metrics, "step"));
    assert_int_equal(lg_metrics_num_series(metrics), 2);
    lg_metrics_destroy(metrics);
    lg_metrics_log_close(log);
}

static void line_cut_short_by_a_crash_is_left_out_and_removed_on_resuming(void **state)
{
    (void)state;
    lg_metrics_log *log = NULL;
    lg_metrics *metrics = NULL;
    assert_ok(lg_metrics_log_open(&log, path, 0));
    append_steps(log, 1, 3, 0.0);
    lg_metrics_log_close(log);
    char *text = NULL;
    size_t num_bytes = 0;
    assert_ok(lgi_file_read(&text, &num_bytes, path, 10000));
    assert_ok(lgi_file_write(path, text, num_bytes - 4));
    lgi_free(text);
    assert_ok(lg_metrics_load(&metrics, path));
    assert_int_equal(lg_metrics_find(metrics, "loss")->num_points, 2);
    lg_metrics_destroy(metrics);
    assert_ok(lg_metrics_log_open(&log, path, 100));
    append_steps(log, 3, 4, 0.0);
    lg_metrics_log_close(log);
    assert_ok(lg_metrics_load(&metrics, path));
    assert_int_equal(lg_metrics_find(metrics, "loss")->num_points, 4);
    lg_metrics_destroy(metrics);
}

static void resumed_run_replaces_the_lines_from_its_step_on(void **state)
{
    (void)state;
    lg_metrics_log *log = NULL;
    lg_metrics *metrics = NULL;
    assert_ok(lg_metrics_log_open(&log, path, 0));
    append_steps(log, 1, 20, 0.0);
    lg_metrics_log_close(log);
    assert_ok(lg_metrics_log_open(&log, path, 11));
    append_steps(log, 11, 15, 0.25);
    lg_metrics_log_close(log);
    assert_ok(lg_metrics_load(&metrics, path));
    const lg_metrics_series *loss = lg_metrics_find(metrics, "loss");
    assert_int_equal(loss->num_points, 15);
    for (size_t i = 0; i < 15; i++) {
        assert_true(loss->values[i] == (double)(i + 1) + (i >= 10 ? 0.25 : 0.0));
    }
    lg_metrics_destroy(metrics);
}

static void damage_in_the_middle_names_the_line(void **state)
{
    (void)state;
    static const char text[] = "{\"step\":1}\n{\"step\":2\n{\"step\":3}\n";
    lg_metrics *metrics = NULL;
    lg_metrics_log *log = NULL;
    assert_ok(lgi_file_write(path, text, sizeof text - 1));
    assert_int_equal(lg_metrics_load(&metrics, path), LG_CORRUPT);
    assert_non_null(strstr(lg_last_error(), "line 2"));
    assert_int_equal(lg_metrics_log_open(&log, path, 3), LG_CORRUPT);
    assert_null(log);
}

static void unwritable_log_is_an_io_error(void **state)
{
    (void)state;
    lg_metrics_log *log = NULL;
    assert_int_equal(lg_metrics_log_open(&log, "/nonexistent/metrics.jsonl", 0), LG_IO);
    assert_non_null(strstr(lg_last_error(), "/nonexistent/metrics.jsonl"));
}

/* A file size limit stands in for the full disk. */
static void full_disk_costs_the_line_and_no_other(void **state)
{
    (void)state;
    struct rlimit old;
    lg_metrics_log *log = NULL;
    lg_metrics *metrics = NULL;
    lg_record *record = NULL;
    assert_ok(lg_record_create(&record));
    assert_ok(lg_record_set_f64(record, "loss", 1.0));
    assert_ok(lg_metrics_log_open(&log, path, 0));
    append_steps(log, 1, 2, 0.0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    const struct rlimit tight = {45, old.rlim_max}; /* two lines and a half */
    void (*const old_handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    const lg_status status = lg_metrics_log_append(log, 3, record);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, old_handler);
    assert_int_equal(status, LG_IO);
    assert_non_null(strstr(lg_last_error(), path));
    append_steps(log, 4, 4, 0.0); /* there is room again */
    lg_metrics_log_close(log);
    lg_record_destroy(record);
    assert_ok(lg_metrics_load(&metrics, path));
    assert_int_equal(lg_metrics_find(metrics, "loss")->num_points, 3);
    lg_metrics_destroy(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_keeps_types_and_order_through_a_file),
        cmocka_unit_test(damaged_record_is_refused),
        cmocka_unit_test(lines_are_read_back_by_key),
        cmocka_unit_test(line_cut_short_by_a_crash_is_left_out_and_removed_on_resuming),
        cmocka_unit_test(resumed_run_replaces_the_lines_from_its_step_on),
        cmocka_unit_test(damage_in_the_middle_names_the_line),
        cmocka_unit_test(unwritable_log_is_an_io_error),
        cmocka_unit_test(full_disk_costs_the_line_and_no_other),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
