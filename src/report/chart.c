#include "report/chart.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "base/alloc.h"
#include "report/picture.h"

#define WIDTH 560.0
#define HEIGHT 272.0
#define LEFT 62.0
#define RIGHT 30.0
#define TOP 10.0
#define BOTTOM 40.0
#define MAX_POINTS 500 /* of a series that is drawn: about one a pixel */
#define LIMIT 1e30     /* larger values are drawn there: differences stay finite */

/* A bucket of neighbouring points. */
struct bucket {
    double x;
    double y;
    double low;
    double high;
    size_t num_finite;
};

struct scale {
    double x_low, x_high, y_low, y_high;
};

static double clamp(double value)
{
    return fmin(fmax(value, -LIMIT), LIMIT);
}

static double to_x(const struct scale *scale, double x)
{
    return LEFT + (x - scale->x_low) / (scale->x_high - scale->x_low) * (WIDTH - LEFT - RIGHT);
}

static double to_y(const struct scale *scale, double y)
{
    return HEIGHT - BOTTOM -
           (y - scale->y_low) / (scale->y_high - scale->y_low) * (HEIGHT - TOP - BOTTOM);
}

static size_t num_buckets(const lgi_chart_series *series)
{
    return series->num_points < MAX_POINTS ? series->num_points : MAX_POINTS;
}

/* Mean and extremes of bucket `idx`; of a step series its largest value, so that peaks survive. */
static struct bucket bucket_at(const lgi_chart_series *series, size_t idx)
{
    const size_t num = num_buckets(series);
    const size_t begin = idx * series->num_points / num;
    const size_t end = (idx + 1) * series->num_points / num;
    struct bucket bucket = {.x = series->x[begin], .low = INFINITY, .high = -INFINITY};
    double sum = 0.0;
    for (size_t i = begin; i < end; i++) {
        if (isfinite(series->y[i])) {
            const double y = clamp(series->y[i]);
            bucket.low = fmin(bucket.low, y);
            bucket.high = fmax(bucket.high, y);
            sum += y;
            bucket.num_finite++;
        }
    }
    bucket.x = series->is_step ? series->x[begin] : series->x[begin + (end - 1 - begin) / 2];
    if (bucket.num_finite > 0) {
        bucket.y = series->is_step ? bucket.high : sum / (double)bucket.num_finite;
    }
    return bucket;
}

/* False if there is nothing to draw. */
static bool find_scale(struct scale *scale, const lgi_chart *chart)
{
    *scale = (struct scale){INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (int s = 0; s < chart->num_series; s++) {
        const lgi_chart_series *const series = &chart->series[s];
        for (size_t i = 0; i < series->num_points; i++) {
            if (isfinite(series->x[i]) && isfinite(series->y[i])) {
                scale->x_low = fmin(scale->x_low, clamp(series->x[i]));
                scale->x_high = fmax(scale->x_high, clamp(series->x[i]));
                scale->y_low = fmin(scale->y_low, clamp(series->y[i]));
                scale->y_high = fmax(scale->y_high, clamp(series->y[i]));
            }
        }
    }
    if (!(scale->x_low <= scale->x_high)) {
        return false;
    }
    if (chart->starts_at_zero) {
        scale->y_low = fmin(scale->y_low, 0.0);
    }
    if (scale->x_high <= scale->x_low) {
        scale->x_low -= 1.0 + fabs(scale->x_low) * 1e-3;
        scale->x_high += 1.0 + fabs(scale->x_high) * 1e-3;
    }
    const double y_range = scale->y_high - scale->y_low;
    const double pad =
        y_range > fabs(scale->y_high) * 1e-9 ? 0.05 * y_range : 0.1 * fabs(scale->y_high) + 1e-9;
    scale->y_high += pad;
    scale->y_low -= chart->starts_at_zero && scale->y_low >= 0.0 ? 0.0 : pad;
    return true;
}

static void add_axes(lgi_text *out, const lgi_chart *chart, const struct scale *scale)
{
    const double y_step = lgi_nice_step(scale->y_high - scale->y_low, 5);
    const double x_step = lgi_nice_step(scale->x_high - scale->x_low, 6);
    for (int i = 0; i < 20; i++) {
        const double y = (ceil(scale->y_low / y_step - 1e-9) + i) * y_step;
        if (y > scale->y_high + y_step * 1e-9) {
            break;
        }
        lgi_text_addf(out,
                      "<path class=\"grid\" d=\"M%.0f %.1fH%.0f\"/><text class=\"ty\" x=\"%.0f\" "
                      "y=\"%.1f\">%.5g</text>\n",
                      LEFT, to_y(scale, y), WIDTH - RIGHT, LEFT - 8.0, to_y(scale, y) + 4.0,
                      fabs(y) < y_step * 1e-6 ? 0.0 : y);
    }
    for (int i = 0; i < 20; i++) {
        const double x = (ceil(scale->x_low / x_step - 1e-9) + i) * x_step;
        if (x > scale->x_high + x_step * 1e-9) {
            break;
        }
        lgi_text_addf(out, "<text class=\"tx\" x=\"%.1f\" y=\"%.0f\">%.6g</text>\n", to_x(scale, x),
                      HEIGHT - BOTTOM + 17.0, fabs(x) < x_step * 1e-6 ? 0.0 : x);
    }
    lgi_text_addf(out,
                  "<path class=\"axis\" d=\"M%.0f %.0fH%.0f\"/><text class=\"xl\" x=\"%.0f\" "
                  "y=\"%.0f\">",
                  LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, WIDTH - RIGHT, HEIGHT - 5.0);
    lgi_text_add_escaped(out, chart->x_label);
    lgi_text_add(out, "</text>\n");
}

/* The band between the extremes of the buckets, forth along the top and back along the bottom. */
static void add_band(lgi_text *out, const lgi_chart_series *series, const struct scale *scale,
                     int idx)
{
    const size_t num = num_buckets(series);
    bool is_begun = false;
    lgi_text_addf(out, "<path class=\"band s%d\" d=\"", idx);
    for (size_t i = 0; i < 2 * num; i++) {
        const bool is_back = i >= num;
        const struct bucket bucket = bucket_at(series, is_back ? 2 * num - 1 - i : i);
        if (bucket.num_finite > 0) {
            lgi_text_addf(out, "%s%.1f %.1f", is_begun ? "L" : "M", to_x(scale, bucket.x),
                          to_y(scale, is_back ? bucket.low : bucket.high));
            is_begun = true;
        }
    }
    lgi_text_add(out, is_begun ? "Z\"/>\n" : "\"/>\n");
}

static void add_line(lgi_text *out, const lgi_chart_series *series, const struct scale *scale,
                     int idx)
{
    bool is_pen_down = false;
    size_t num_drawn = 0;
    lgi_text_addf(out, "<path class=\"line s%d\" d=\"", idx);
    for (size_t i = 0; i < num_buckets(series); i++) {
        const struct bucket bucket = bucket_at(series, i);
        if (bucket.num_finite == 0) {
            is_pen_down = false;
            continue;
        }
        const double x = to_x(scale, bucket.x);
        const double y = to_y(scale, bucket.y);
        if (is_pen_down && series->is_step) {
            lgi_text_addf(out, "H%.1fV%.1f", x, y);
        } else {
            lgi_text_addf(out, "%s%.1f %.1f", is_pen_down ? "L" : "M", x, y);
        }
        is_pen_down = true;
        num_drawn++;
    }
    lgi_text_add(out, "\"/>\n");
    if (!series->is_marked && num_drawn > 1) {
        return;
    }
    for (size_t i = 0; i < num_buckets(series); i++) {
        const struct bucket bucket = bucket_at(series, i);
        if (bucket.num_finite > 0) {
            lgi_text_addf(out, "<circle class=\"dot s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", idx,
                          to_x(scale, bucket.x), to_y(scale, bucket.y));
        }
    }
}

/* What the page's script reads: the points in data and in picture coordinates. */
static void add_data(lgi_text *out, const lgi_chart *chart, const struct scale *scale)
{
    lgi_text_addf(out, " data-frame=\"%.0f %.0f %.0f %.0f\" data-unit=\"", LEFT, WIDTH - RIGHT, TOP,
                  HEIGHT - BOTTOM);
    lgi_text_add_escaped(out, chart->y_unit);
    lgi_text_add(out, "\" data-x-label=\"");
    lgi_text_add_escaped(out, chart->x_label);
    lgi_text_add(out, "\"");
    for (int s = 0; s < chart->num_series; s++) {
        const lgi_chart_series *const series = &chart->series[s];
        bool is_first = true;
        lgi_text_addf(out, " data-s%d=\"", s);
        for (size_t i = 0; i < num_buckets(series); i++) {
            const struct bucket bucket = bucket_at(series, i);
            if (bucket.num_finite > 0) {
                lgi_text_addf(out, "%s%.7g %.5g %.0f %.0f", is_first ? "" : ",", bucket.x, bucket.y,
                              to_x(scale, bucket.x), to_y(scale, bucket.y));
                is_first = false;
            }
        }
        lgi_text_addf(out, "\" data-l%d=\"", s);
        lgi_text_add_escaped(out, series->label);
        lgi_text_add(out, "\"");
    }
}

static size_t count_gaps(const lgi_chart_series *series)
{
    size_t num = 0;
    for (size_t i = 0; i < series->num_points; i++) {
        num += isfinite(series->y[i]) ? 0 : 1;
    }
    return num;
}

static void add_caption(lgi_text *out, const lgi_chart *chart)
{
    lgi_text_add(out, "<figcaption><b>");
    lgi_text_add_escaped(out, chart->title);
    if (chart->y_unit[0] != '\0') {
        lgi_text_add(out, ",");
        lgi_text_add_escaped(out, chart->y_unit);
    }
    lgi_text_add(out, "</b>");
    for (int s = 0; s < chart->num_series; s++) {
        const size_t num_gaps = count_gaps(&chart->series[s]);
        lgi_text_addf(out, "<span class=\"key s%d\"><i></i>", s);
        lgi_text_add_escaped(out, chart->series[s].label);
        if (num_gaps > 0) {
            lgi_text_addf(out, " <em>(%zu not finite)</em>", num_gaps);
        }
        lgi_text_add(out, "</span>");
    }
    lgi_text_add(out, "<output></output></figcaption>\n");
}

void lgi_chart_add(lgi_text *out, const lgi_chart *chart)
{
    struct scale scale;
    const bool has_points = find_scale(&scale, chart);
    lgi_text_add(out, "<figure class=\"card chart\"");
    if (has_points) {
        add_data(out, chart, &scale);
    }
    lgi_text_add(out, ">\n");
    add_caption(out, chart);
    if (!has_points) {
        lgi_text_add(out, "<p class=\"none\">no finite value</p></figure>\n");
        return;
    }
    lgi_text_addf(out, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    lgi_text_add_escaped(out, chart->title);
    lgi_text_add(out, "\">\n");
    add_axes(out, chart, &scale);
    for (int s = 0; s < chart->num_series; s++) {
        const lgi_chart_series *const series = &chart->series[s];
        if (series->num_points == 0) {
            continue;
        }
        if (series->num_points > MAX_POINTS && !series->is_step) {
            add_band(out, series, &scale, s);
        }
        add_line(out, series, &scale, s);
    }
    lgi_text_add(out, "<g class=\"hover\"></g></svg></figure>\n");
}
