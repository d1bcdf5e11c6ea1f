/*
 * The report's section of learning rates from gradient statistics: a heat map of the gains (parameters as rows, steps as columns,
 * thinned out, equal neighbours merged), and a table of small curves: gain, rate, warm-up, noise scale of each parameter.
 */
#include "report/report_rates.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

#define GAIN "gain/"
#define MAX_COLUMNS 72
#define NUM_LEVELS 12
#define MAP_WIDTH 720
#define SPARK_WIDTH 150
#define SPARK_HEIGHT 26
#define MAX_SPARK_POINTS 60

static bool is_gain(const lg_metrics_series *series)
{
    return strncmp(series->key, GAIN, strlen(GAIN)) == 0;
}

static const char *name_of(const lg_metrics_series *gain)
{
    return gain->key + strlen(GAIN);
}

static const lg_metrics_series *series_of(const lg_metrics *metrics, const char *what,
                                          const char *name)
{
    char key[1200];
    (void)snprintf(key, sizeof key, "%s/%s", what, name);
    return lg_metrics_find(metrics, key);
}

/* --- heat map ------------------------------------------------------------------------------------------------------ */

/* The mean of the finite values of column `column` of `num_columns`; NaN if there are none. */
static double column_mean(const lg_metrics_series *series, int column, int num_columns)
{
    const size_t n = series->num_points;
    const size_t begin = n * (size_t)column / (size_t)num_columns;
    size_t end = n * ((size_t)column + 1) / (size_t)num_columns;
    double sum = 0.0;
    int num = 0;
    end = end > begin ? end : begin + 1;
    for (size_t i = begin; i < end && i < n; i++) {
        if (isfinite(series->values[i])) {
            sum += series->values[i];
            num++;
        }
    }
    return num > 0 ? sum / num : NAN;
}

/* 0..NUM_LEVELS-1 from gain 1 to `max`, by ratio; -1: nothing to show. */
static int level_of(double gain, double max)
{
    if (!isfinite(gain)) {
        return -1;
    }
    const double part = max > 1.0 && gain > 1.0 ? log(gain) / log(max) : 0.0;
    const int level = (int)(part * NUM_LEVELS);
    return level < NUM_LEVELS ? level : NUM_LEVELS - 1;
}

static void add_heat_row(lgi_text *out, const lg_metrics_series *gain, int row, int row_height,
                         int num_columns, double max, int left)
{
    const int y = row * row_height;
    const int width = MAP_WIDTH / num_columns;
    lgi_text_addf(out, "<text x=\"%d\" y=\"%d\">", left - 6, y + row_height - 3);
    lgi_text_add_escaped_cut(out, name_of(gain), 34);
    lgi_text_add(out, "</text>\n");
    int begin = 0;
    while (begin < num_columns) {
        const double first = column_mean(gain, begin, num_columns);
        const int level = level_of(first, max);
        int end = begin + 1;
        while (end < num_columns && level_of(column_mean(gain, end, num_columns), max) == level) {
            end++;
        }
        if (level >= 0) {
            lgi_text_addf(out,
                          "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                          "opacity=\"%.2f\"><title>",
                          left + begin * width, y, (end - begin) * width, row_height - 1,
                          0.06 + 0.94 * level / (NUM_LEVELS - 1));
            lgi_text_add_escaped(out, name_of(gain));
            lgi_text_addf(out, ": %.2f</title></rect>\n", first);
        }
        begin = end;
    }
}

static void add_heat_map(lgi_text *out, const lg_metrics *metrics, int num_params,
                         size_t num_points, double max)
{
    const int row_height = num_params <= 60 ? 15 : 12;
    const int left = 240;
    const int num_columns = num_points < MAX_COLUMNS ? (int)num_points : MAX_COLUMNS;
    int row = 0;
    lgi_text_addf(out,
                  "<div class=\"scroll\"><svg viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\" "
                  "aria-label=\"gain by parameter and step\" fill=\"var(--s0)\">\n"
                  "<g font-size=\"%d\" text-anchor=\"end\">\n"
                  "<style>.rates text{fill:var(--ink)}</style>\n<g class=\"rates\">\n",
                  left + MAP_WIDTH, num_params * row_height, left + MAP_WIDTH, row_height - 3);
    for (int i = 0; i < lg_metrics_num_series(metrics); i++) {
        const lg_metrics_series *const series = lg_metrics_series_at(metrics, i);
        if (is_gain(series)) {
            add_heat_row(out, series, row++, row_height, num_columns, max, left);
        }
    }
    lgi_text_add(out, "</g></g></svg></div>\n");
}

/* --- small curves -------------------------------------------------------------------------------------------------- */

/* A curve from the least to the largest of the finite values, in [0, top] if `top` is above 0; and the last value. */
static void add_spark(lgi_text *out, const lg_metrics_series *series, double top)
{
    double min = top > 0.0 ? 0.0 : INFINITY;
    double max = top > 0.0 ? top : -INFINITY;
    double last = NAN;
    if (series == NULL) {
        lgi_text_add(out, "<td></td>");
        return;
    }
    for (size_t i = 0; i < series->num_points; i++) {
        const double value = series->values[i];
        if (isfinite(value)) {
            min = value < min ? value : min;
            max = value > max ? value : max;
            last = value;
        }
    }
    const double range = max > min ? max - min : 1.0;
    const size_t stride = 1 + (series->num_points - 1) / MAX_SPARK_POINTS;
    const size_t num_steps = series->num_points > 1 ? series->num_points - 1 : 1;
    bool is_first = true;
    lgi_text_addf(out,
                  "<td><svg width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"var(--s0)\" "
                  "stroke-width=\"1.5\"><path d=\"",
                  SPARK_WIDTH, SPARK_HEIGHT);
    for (size_t i = 0; i < series->num_points; i += stride) {
        if (!isfinite(series->values[i])) {
            is_first = true;
            continue;
        }
        lgi_text_addf(out, "%s%.1f %.1f", is_first ? "M" : "L",
                      2.0 + (SPARK_WIDTH - 4.0) * (double)i / (double)num_steps,
                      SPARK_HEIGHT - 3.0 -
                          (SPARK_HEIGHT - 6.0) * (series->values[i] - min) / range);
        is_first = false;
    }
    lgi_text_add(out, "\"/></svg> ");
    if (isfinite(last)) {
        lgi_text_addf(out, "%.3g", last);
    } else {
        lgi_text_add(out, "&ndash;");
    }
    lgi_text_add(out, "</td>");
}

/* The first step at which the warm-up's factor is 1 and stays so; NaN if it is below at the end. */
static double warmup_end(const lg_metrics_series *warmup)
{
    double end = NAN;
    for (size_t i = 0; warmup != NULL && i < warmup->num_points; i++) {
        if (warmup->values[i] < 1.0) {
            end = NAN;
        } else if (isnan(end)) {
            end = warmup->steps[i];
        }
    }
    return end;
}

static void add_small_curves(lgi_text *out, const lg_metrics *metrics, double max_gain)
{
    lgi_text_add(out, "<div class=\"scroll\"><table><thead><tr><th>parameter</th><th>gain</th>"
                      "<th>rate</th><th>warm-up</th><th>ended by step</th>"
                      "<th>noise scale (samples)</th></tr></thead><tbody>\n");
    for (int i = 0; i < lg_metrics_num_series(metrics); i++) {
        const lg_metrics_series *const gain = lg_metrics_series_at(metrics, i);
        if (!is_gain(gain)) {
            continue;
        }
        const lg_metrics_series *const warmup = series_of(metrics, "warmup", name_of(gain));
        const double end = warmup_end(warmup);
        lgi_text_add(out, "<tr><td>");
        lgi_text_add_escaped(out, name_of(gain));
        lgi_text_add(out, "</td>");
        add_spark(out, gain, max_gain);
        add_spark(out, series_of(metrics, "rate", name_of(gain)), 0.0);
        add_spark(out, warmup, 1.0);
        if (isfinite(end)) {
            lgi_text_addf(out, "<td>%.0f</td>", end);
        } else {
            lgi_text_add(out, "<td>not yet</td>");
        }
        add_spark(out, series_of(metrics, "noise_scale", name_of(gain)), 0.0);
        lgi_text_add(out, "</tr>\n");
    }
    lgi_text_add(out, "</tbody></table></div>\n");
}

void lgi_report_add_rates(lgi_text *out, const lg_metrics *metrics)
{
    int num_params = 0;
    size_t num_points = 0;
    double max = 1.0;
    for (int i = 0; i < lg_metrics_num_series(metrics); i++) {
        const lg_metrics_series *const series = lg_metrics_series_at(metrics, i);
        if (!is_gain(series)) {
            continue;
        }
        num_params++;
        num_points = series->num_points > num_points ? series->num_points : num_points;
        for (size_t k = 0; k < series->num_points; k++) {
            max = series->values[k] > max ? series->values[k] : max;
        }
    }
    if (num_params == 0 || num_points == 0) {
        return;
    }
    lgi_text_addf(
        out,
        "<h2>Learning rates by parameter<small>gain: how many single-worker steps a step "
        "was worth, from 1 (pale) to %.3g (full); training from left to right</small></h2>\n",
        max);
    add_heat_map(out, metrics, num_params, num_points, max);
    add_small_curves(out, metrics, max);
}
