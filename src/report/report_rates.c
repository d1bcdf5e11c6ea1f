/*
 * The report's section of learning rates from gradient statistics: heat maps of gain, rate, warm-up and noise scale side by side
 * (parameters as rows, steps as columns, thinned out, equal neighbours merged), and a table of small curves of the same.
 */
#include "report/report_rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

#define GAIN "gain/"
#define MAX_COLUMNS 60
#define NUM_LEVELS 12
#define OUTERMOST 100 /* one in so many values */
#define NAME_WIDTH 232
#define MAP_WIDTH 240
#define MAP_GAP 18
#define MAP_TOP 38
#define SPARK_WIDTH 150
#define SPARK_HEIGHT 24
#define SPARK_TEXT_WIDTH 66
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

/* --- heat maps ----------------------------------------------------------------------------------------------------- */

/* What is shown of each parameter: one map, one column of curves. */
struct quantity {
    const char *key;
    const char *title;
    bool is_log;
    double min, max; /* of the shades */
    double largest;  /* of all */
};

enum { MAP_GAIN, MAP_RATE, MAP_WARMUP, MAP_NOISE, NUM_MAPS };

/* The mean of the finite values of column `column` of `num_columns`; infinite if all are, NaN if there are none. */
static double column_mean(const lg_metrics_series *series, int column, int num_columns)
{
    const size_t n = series->num_points;
    const size_t begin = n * (size_t)column / (size_t)num_columns;
    size_t end = n * ((size_t)column + 1) / (size_t)num_columns;
    double sum = 0.0;
    int num = 0;
    bool is_infinite = false;
    end = end > begin ? end : begin + 1;
    for (size_t i = begin; i < end && i < n; i++) {
        is_infinite = is_infinite || isinf(series->values[i]);
        if (isfinite(series->values[i])) {
            sum += series->values[i];
            num++;
        }
    }
    return num > 0 ? sum / num : (is_infinite ? INFINITY : NAN);
}

/* Three digits, without an exponent where that is short. */
static const char *short_number(double value, char text[24])
{
    (void)snprintf(text, 24, value >= 1000.0 && value < 1e7 ? "%.0f" : "%.3g", value);
    return text;
}

/* 0..NUM_LEVELS-1 from the least to the largest; -1: nothing to show. */
static int level_of(const struct quantity *quantity, double value)
{
    if (isnan(value)) {
        return -1;
    }
    if (value >= quantity->max) {
        return NUM_LEVELS - 1;
    }
    if (value <= quantity->min) {
        return 0;
    }
    const double part = quantity->is_log
                            ? log(value / quantity->min) / log(quantity->max / quantity->min)
                            : (value - quantity->min) / (quantity->max - quantity->min);
    return (int)(part * NUM_LEVELS);
}

static double level_opacity(int level)
{
    return 0.05 + 0.95 * level / (NUM_LEVELS - 1);
}

/* One path for each level: a page with many parameters stays small. */
static void add_cells(lgi_text *out, const lg_metrics *metrics, const struct quantity *quantity,
                      int left, int row_height)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        int row = 0;
        bool is_open = false;
        for (int i = 0; i < lg_metrics_num_series(metrics); i++) {
            const lg_metrics_series *const gain = lg_metrics_series_at(metrics, i);
            if (!is_gain(gain)) {
                continue;
            }
            const lg_metrics_series *const series =
                series_of(metrics, quantity->key, name_of(gain));
            const int y = MAP_TOP + row++ * row_height;
            if (series == NULL || series->num_points == 0) {
                continue;
            }
            const int num_columns =
                series->num_points < MAX_COLUMNS ? (int)series->num_points : MAX_COLUMNS;
            int begin = 0;
            while (begin < num_columns) {
                int end = begin;
                while (end < num_columns &&
                       level_of(quantity, column_mean(series, end, num_columns)) == level) {
                    end++;
                }
                if (end > begin) {
                    if (!is_open) {
                        lgi_text_addf(out, "<path opacity=\"%.2f\" d=\"", level_opacity(level));
                        is_open = true;
                    }
                    const int from = MAP_WIDTH * begin / num_columns;
                    const int width = MAP_WIDTH * end / num_columns - from;
                    lgi_text_addf(out, "M%d %dh%dv%dh-%dz", left + from, y, width, row_height - 1,
                                  width);
                }
                begin = end > begin ? end : begin + 1;
            }
        }
        if (is_open) {
            lgi_text_add(out, "\"/>\n");
        }
    }
}

/* Title, and the shades from the least to the largest value. */
static void add_map_head(lgi_text *out, const struct quantity *quantity, int left)
{
    const int cell = 7;
    const int x = left + MAP_WIDTH - NUM_LEVELS * cell - 34;
    char least[24];
    char most[24];
    lgi_text_addf(out,
                  "<text x=\"%d\" y=\"12\" class=\"h\">%s</text><text x=\"%d\" y=\"29\" "
                  "text-anchor=\"end\">%s</text><text x=\"%d\" y=\"29\">%s</text>\n",
                  left, quantity->title, x - 4, short_number(quantity->min, least),
                  x + NUM_LEVELS * cell + 4, short_number(quantity->max, most));
    for (int level = 0; level < NUM_LEVELS; level++) {
        lgi_text_addf(out, "<rect x=\"%d\" y=\"20\" width=\"%d\" height=\"10\" opacity=\"%.2f\"/>",
                      x + level * cell, cell, level_opacity(level));
    }
    lgi_text_add(out, "\n");
}

static void add_heat_maps(lgi_text *out, const lg_metrics *metrics, int num_params,
                          double first_step, double last_step,
                          const struct quantity quantities[NUM_MAPS])
{
    const int row_height = num_params <= 60 ? 15 : 12;
    const int bottom = MAP_TOP + num_params * row_height;
    const int width = NAME_WIDTH + NUM_MAPS * (MAP_WIDTH + MAP_GAP);
    int row = 0;
    lgi_text_addf(out,
                  "<div class=\"scroll\"><svg viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\" "
                  "aria-label=\"gain, rate, warm-up and noise scale by parameter and step\" "
                  "fill=\"var(--s0)\" font-size=\"%d\">\n<style>.rates text{fill:var(--ink)}.rates "
                  ".h{font-size:13px;font-weight:600}</style>\n<g class=\"rates\">\n",
                  width, bottom + 18, width, row_height - 3);
    for (int i = 0; i < lg_metrics_num_series(metrics); i++) {
        const lg_metrics_series *const gain = lg_metrics_series_at(metrics, i);
        if (is_gain(gain)) {
            lgi_text_addf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", NAME_WIDTH - 6,
                          MAP_TOP + ++row * row_height - 3);
            lgi_text_add_escaped_cut(out, name_of(gain), 36);
            lgi_text_add(out, "</text>\n");
        }
    }
    for (int map = 0; map < NUM_MAPS; map++) {
        const int left = NAME_WIDTH + map * (MAP_WIDTH + MAP_GAP);
        add_map_head(out, &quantities[map], left);
        add_cells(out, metrics, &quantities[map], left, row_height);
        lgi_text_addf(out,
                      "<text x=\"%d\" y=\"%d\">step %.0f</text><text x=\"%d\" y=\"%d\" "
                      "text-anchor=\"end\">%.0f</text>\n",
                      left, bottom + 12, first_step, left + MAP_WIDTH, bottom + 12, last_step);
    }
    lgi_text_add(out, "</g></svg></div>\n");
}

/* --- small curves -------------------------------------------------------------------------------------------------- */

/* A curve from the least to the largest of the finite values, in [0, top] if `top` is above 0; and the last value. */
static void add_spark(lgi_text *out, const lg_metrics_series *series, double top)
{
    double min = top > 0.0 ? 0.0 : INFINITY;
    double max = top > 0.0 ? top : -INFINITY;
    double last = NAN;
    char text[24];
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
                  "<td><svg width=\"%d\" height=\"%d\"><path fill=\"none\" stroke=\"var(--s0)\" "
                  "stroke-width=\"1.5\" d=\"",
                  SPARK_WIDTH + SPARK_TEXT_WIDTH, SPARK_HEIGHT);
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
    lgi_text_addf(out, "\"/><text x=\"%d\" y=\"%d\">", SPARK_WIDTH + 6, SPARK_HEIGHT - 7);
    if (isfinite(last)) {
        lgi_text_add(out, short_number(last, text));
    } else {
        lgi_text_add(out, "&#8211;");
    }
    lgi_text_add(out, "</text></svg></td>");
}

/* The first step at which the warm-up's factor is 1 and stays so; NaN if it is below at the end. Skipped steps have none. */
static double warmup_end(const lg_metrics_series *warmup)
{
    double end = NAN;
    for (size_t i = 0; warmup != NULL && i < warmup->num_points; i++) {
        if (warmup->values[i] < 1.0) {
            end = NAN;
        } else if (isnan(end) && !isnan(warmup->values[i])) {
            end = warmup->steps[i];
        }
    }
    return end;
}

static void add_small_curves(lgi_text *out, const lg_metrics *metrics, double max_gain)
{
    lgi_text_add(
        out,
        "<style>.sparks td{padding:0 0 0 10px}.sparks th{text-align:left;padding-left:10px}"
        ".sparks svg{display:block;fill:var(--ink);font-size:13px}</style>\n"
        "<div class=\"scroll\"><table class=\"sparks\"><thead><tr><th>parameter</th><th>gain</th>"
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

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The finite values of all parameters, for ratios those above 0, into `values` if that is not NULL. Returns their number. */
static size_t collect(const lg_metrics *metrics, const struct quantity *quantity, double *values)
{
    size_t num = 0;
    for (int i = 0; i < lg_metrics_num_series(metrics); i++) {
        const lg_metrics_series *const gain = lg_metrics_series_at(metrics, i);
        const lg_metrics_series *const series =
            is_gain(gain) ? series_of(metrics, quantity->key, name_of(gain)) : NULL;
        for (size_t k = 0; series != NULL && k < series->num_points; k++) {
            const double value = series->values[k];
            if (isfinite(value) && (!quantity->is_log || value > 0.0)) {
                if (values != NULL) {
                    values[num] = value;
                }
                num++;
            }
        }
    }
    return num;
}

/* The range of the values without the outermost at either end, which would take the shades from all others. */
static lg_status find_range(const lg_metrics *metrics, struct quantity *quantity)
{
    const size_t num = collect(metrics, quantity, NULL);
    double *values = NULL;
    quantity->min = quantity->is_log ? 1.0 : 0.0;
    quantity->max = quantity->min;
    quantity->largest = quantity->min;
    if (num == 0) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&values, num, sizeof *values));
    (void)collect(metrics, quantity, values);
    qsort(values, num, sizeof *values, compare_numbers);
    const size_t cut = num / OUTERMOST;
    quantity->min = values[cut];
    quantity->max = values[num - 1 - cut];
    quantity->largest = values[num - 1];
    lgi_free(values);
    return LG_OK;
}

void lgi_report_add_rates(lgi_text *out, const lg_metrics *metrics)
{
    struct quantity quantities[NUM_MAPS] = {
        [MAP_GAIN] = {.key = "gain", .title = "gain", .is_log = true},
        [MAP_RATE] = {.key = "rate", .title = "learning rate", .is_log = true},
        [MAP_WARMUP] = {.key = "warmup", .title = "warm-up (part of the rate)"},
        [MAP_NOISE] = {.key = "noise_scale", .title = "noise scale (samples)", .is_log = true},
    };
    int num_params = 0;
    double first_step = INFINITY;
    double last_step = 0.0;
    for (int i = 0; i < lg_metrics_num_series(metrics); i++) {
        const lg_metrics_series *const series = lg_metrics_series_at(metrics, i);
        if (is_gain(series) && series->num_points > 0) {
            num_params++;
            first_step = series->steps[0] < first_step ? series->steps[0] : first_step;
            last_step = series->steps[series->num_points - 1] > last_step
                            ? series->steps[series->num_points - 1]
                            : last_step;
        }
    }
    if (num_params == 0) {
        return;
    }
    for (int map = 0; map < NUM_MAPS; map++) {
        const lg_status status = find_range(metrics, &quantities[map]);
        out->status = out->status == LG_OK ? status : out->status;
    }
    quantities[MAP_WARMUP].min = 0.0;
    quantities[MAP_WARMUP].max = 1.0;
    lgi_text_addf(
        out,
        "<h2>Learning rates by parameter<small>gain: how many single-worker steps a step was "
        "worth, up to %.3g; training from left to right, shades by ratio, one "
        "value in a hundred cut at either end</small></h2>\n",
        quantities[MAP_GAIN].largest);
    add_heat_maps(out, metrics, num_params, first_step, last_step, quantities);
    add_small_curves(out, metrics, quantities[MAP_GAIN].largest);
}
