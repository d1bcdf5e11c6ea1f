/* The report's section of rates: there when the metrics have gains, names escaped, gaps and single points drawn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report/report_rates.h"

/* The section made from these lines; to be freed. */
static char *section_of(const char *lines)
{
    char path[] = "/tmp/leapgrad-report-rates-XXXXXX";
    lg_metrics *metrics = NULL;
    lgi_text text = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, lines, strlen(lines)), (ssize_t)strlen(lines));
    (void)close(fd);
    assert_int_equal(lg_metrics_load(&metrics, path), LG_OK);
    (void)unlink(path);
    lgi_report_add_rates(&text, metrics);
    lgi_text_add_bytes(&text, "", 1);
    assert_int_equal(lgi_text_status(&text), LG_OK);
    char *section = strdup(text.data);
    lgi_text_deinit(&text);
    lg_metrics_destroy(metrics);
    return section;
}

static void nothing_is_added_without_gains(void **state)
{
    (void)state;
    char *section = section_of("{\"step\": 1, \"loss\": 2.0}\n");
    assert_string_equal(section, "");
    free(section);
}

static void gaps_single_points_and_hostile_names_are_drawn(void **state)
{
    (void)state;
    char *section =
        section_of("{\"step\": 1, \"gain/<b>\": 1.5, \"rate/<b>\": 0.1, \"warmup/<b>\": 0.5}\n"
                   "{\"step\": 2, \"gain/<b>\": null, \"rate/<b>\": 0.2, \"warmup/<b>\": 1.0, "
                   "\"noise_scale/<b>\": 12}\n"
                   "{\"step\": 3, \"gain/<b>\": 3.5, \"rate/<b>\": 0.2, \"warmup/<b>\": 1.0}\n"
                   "{\"step\": 3, \"gain/late\": 2.0, \"warmup/late\": 0.25}\n"
                   /* skipped: says nothing of the warm-up */
                   "{\"step\": 4, \"gain/late\": null, \"warmup/late\": null}\n");
    assert_null(strstr(section, "<b>"));
    assert_non_null(strstr(section, "&lt;b&gt;"));
    assert_non_null(strstr(section, "<td>2</td>"));       /* the step at which <b> was warm */
    assert_non_null(strstr(section, "<td>not yet</td>")); /* late */
    assert_non_null(strstr(section, "up to 3.5;"));
    /* one map for each quantity, and its range where there is one */
    assert_non_null(strstr(section, ">learning rate</text>"));
    assert_non_null(strstr(section, ">noise scale (samples)</text>"));
    assert_non_null(strstr(section, ">0.1</text>"));
    assert_null(strstr(section, "nan"));
    assert_null(strstr(section, "inf"));
    free(section);
}

/* 160 parameters, 500 lines: the page must stay one that a browser likes. */
static void many_parameters_make_a_small_section(void **state)
{
    (void)state;
    enum { NUM_PARAMS = 160, NUM_LINES = 200, MAX_LINE = 24000 };
    const size_t max_bytes = (size_t)NUM_LINES * MAX_LINE;
    char *lines = malloc(max_bytes);
    size_t used = 0;
    assert_non_null(lines);
    for (int step = 1; step <= NUM_LINES; step++) {
        used += (size_t)snprintf(lines + used, max_bytes - used, "{\"step\": %d", step);
        for (int i = 0; i < NUM_PARAMS; i++) {
            /* no two neighbours alike: nothing can be merged */
            const double gain = 1.0 + (step * 7 + i * 3) % 64;
            used += (size_t)snprintf(lines + used, max_bytes - used,
                                     ", \"gain/p%d\": %.1f, \"rate/p%d\": %.3f, \"warmup/p%d\": 1, "
                                     "\"noise_scale/p%d\": %.0f",
                                     i, gain, i, gain * 0.01, i, i, gain * 40.0);
            assert_true(used < max_bytes);
        }
        used += (size_t)snprintf(lines + used, max_bytes - used, "}\n");
    }
    char *section = section_of(lines);
    assert_true(strlen(section) < 2500000);
    int num_rows = 0;
    for (const char *at = strstr(section, "<tr><td>"); at != NULL;
         at = strstr(at + 1, "<tr><td>")) {
        num_rows++;
    }
    assert_int_equal(num_rows, NUM_PARAMS);
    free(section);
    free(lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_added_without_gains),
        cmocka_unit_test(gaps_single_points_and_hostile_names_are_drawn),
        cmocka_unit_test(many_parameters_make_a_small_section),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
