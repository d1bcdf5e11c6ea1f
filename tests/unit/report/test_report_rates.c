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
                   "{\"step\": 3, \"gain/late\": 2.0, \"warmup/late\": 0.25}\n");
    assert_null(strstr(section, "<b>"));
    assert_non_null(strstr(section, "&lt;b&gt;"));
    assert_non_null(strstr(section, "<td>2</td>"));       /* the step at which <b> was warm */
    assert_non_null(strstr(section, "<td>not yet</td>")); /* late */
    assert_non_null(strstr(section, "to 3.5 (full)"));
    assert_null(strstr(section, "nan"));
    assert_null(strstr(section, "inf"));
    free(section);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_added_without_gains),
        cmocka_unit_test(gaps_single_points_and_hostile_names_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
