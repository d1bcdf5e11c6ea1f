/*
 * report.html: headline, curves, timelines, memory, times of op kinds, recipe; each section is left out if its input is
 * missing. The page has a content security policy that forbids anything from outside.
 */
#include <jansson.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "report/chart.h"
#include "report/picture.h"
#include "report/record.h"
#include "report/report_assets.h"
#include "report/report_ranks.h"
#include "report/report_rates.h"

#define NS_PER_MS 1e6
#define CLOSE_FRAC 0.05 /* predicted and measured step time within this: good */

/* --- headline ------------------------------------------------------------------------------------------------------ */

/* 1234567 as "1,234,567"; small numbers with decimals. */
static const char *format_number(double value, char *text, size_t text_bytes)
{
    char digits[64];
    if (fabs(value) < 1000.0 || fabs(value) >= 1e15) {
        (void)snprintf(text, text_bytes, "%.4g", value);
        return text;
    }
    const int length = snprintf(digits, sizeof digits, "%.0f", value);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < text_bytes; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-') {
            text[used++] = ',';
        }
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}

static void begin_figure(lgi_text *out, const char *label, const char *extra_class)
{
    lgi_text_addf(out, "<div class=\"card figure%s\"><h3>%s</h3><strong>", extra_class, label);
}

static void add_figure(lgi_text *out, const char *label, const char *value, const char *unit,
                       const char *note)
{
    begin_figure(out, label, "");
    lgi_text_add_escaped(out, value);
    if (unit[0] != '\0') {
        lgi_text_addf(out, "<small>%s</small>", unit);
    }
    lgi_text_addf(out, "</strong>%s%s%s</div>\n", note[0] != '\0' ? "<p>" : "", note,
                  note[0] != '\0' ? "</p>" : "");
}

static void add_quality(lgi_text *out, const lg_record *run)
{
    char text[64];
    const double accuracy = lg_record_number(run, "test_accuracy");
    const double bits = lg_record_number(run, "bits_per_byte");
    const double loss = lg_record_number(run, "loss");
    if (isfinite(accuracy)) {
        (void)snprintf(text, sizeof text, "%.2f", 100.0 * accuracy);
        add_figure(out, "Test accuracy", text, "%", "");
    }
    if (isfinite(bits)) {
        (void)snprintf(text, sizeof text, "%.3f", bits);
        add_figure(out, "Bits per byte", text, "", "on held-out text");
    }
    if (lg_record_has(run, "loss")) {
        char note[80] = "";
        const double steps = lg_record_number(run, "steps");
        if (isfinite(steps)) {
            char number[32];
            (void)snprintf(note, sizeof note, "after %s steps",
                           format_number(steps, number, sizeof number));
        }
        (void)snprintf(text, sizeof text, isfinite(loss) ? "%.4f" : "not finite", loss);
        add_figure(out, "Training loss", text, "", note);
    }
}

static void add_speed(lgi_text *out, const lg_record *run)
{
    char text[64];
    char note[160] = "";
    const double rate = lg_record_number(run, "samples_per_s");
    const double step_ms = lg_record_number(run, "step_ms_median");
    const double predicted_ms = lg_record_number(run, "predicted_step_ms");
    if (isfinite(rate)) {
        add_figure(out, "Throughput", format_number(rate, text, sizeof text), "samples/s",
                   "over all steps, loading of data included");
    }
    if (!isfinite(step_ms) && !isfinite(predicted_ms)) {
        return;
    }
    if (isfinite(step_ms) && isfinite(predicted_ms) && predicted_ms > 0.0) {
        const double error = step_ms / predicted_ms - 1.0; /* as the program prints it */
        (void)snprintf(note, sizeof note,
                       "predicted %.4g ms <span class=\"chip%s\">%+.1f %%</span>", predicted_ms,
                       fabs(error) <= CLOSE_FRAC ? " good" : "", 100.0 * error);
    }
    (void)snprintf(text, sizeof text, "%.4g", isfinite(step_ms) ? step_ms : predicted_ms);
    add_figure(out, isfinite(step_ms) ? "Step time, median" : "Step time, predicted", text, "ms",
               note);
}

static void add_memory_figure(lgi_text *out, const lg_record *run)
{
    char text[64];
    char note[160] = "";
    const double planned = lg_record_number(run, "planned_peak_bytes");
    const double measured = lg_record_number(run, "measured_peak_bytes");
    const double shown = isfinite(measured) ? measured : planned;
    if (!isfinite(shown)) {
        return;
    }
    if (isfinite(planned) && isfinite(measured)) {
        char other[32];
        if (planned == measured) {
            (void)snprintf(note, sizeof note, "<span class=\"chip good\">as planned</span>");
        } else {
            (void)snprintf(note, sizeof note, "planned <span class=\"chip\">%s</span>",
                           lgi_format_bytes(planned, other, sizeof other));
        }
    }
    (void)lgi_format_bytes(shown, text, sizeof text);
    char *const space = strchr(text, ' ');
    *space = '\0';
    add_figure(out, isfinite(measured) ? "Peak memory" : "Peak memory, planned", text, space + 1,
               note);
}

/* A text or a number of the record, in words; false if it has neither. */
static bool format_member(const lg_record *run, const char *key, char *text, size_t text_bytes)
{
    char number[64];
    const char *const value = lg_record_text(run, key);
    if (value != NULL) {
        (void)snprintf(text, text_bytes, "%s", value);
    } else if (isfinite(lg_record_number(run, key))) {
        (void)snprintf(text, text_bytes, "%s",
                       format_number(lg_record_number(run, key), number, sizeof number));
    }
    return value != NULL || isfinite(lg_record_number(run, key));
}

static void add_plan_figures(lgi_text *out, const lg_record *run)
{
    char text[128];
    char lanes[128];
    char note[160] = "";
    if (format_member(run, "strategy", text, sizeof text)) {
        if (isfinite(lg_record_number(run, "lanes"))) {
            const double num_lanes = lg_record_number(run, "lanes");
            (void)snprintf(note, sizeof note, "on %.0f lane%s", num_lanes,
                           num_lanes == 1.0 ? "" : "s");
        } else if (lg_record_text(run, "lanes") != NULL) {
            (void)format_member(run, "lanes", lanes, sizeof lanes);
        }
        add_figure(out, "Strategy", text, "", note);
    }
    const double bubble = lg_record_number(run, "bubble_frac");
    const double exposed = lg_record_number(run, "exposed_comm_frac");
    if (isfinite(bubble) && isfinite(exposed)) {
        (void)snprintf(text, sizeof text, "%.1f", 100.0 * bubble);
        (void)snprintf(note, sizeof note, "exposed communication %.1f %% of the step",
                       100.0 * exposed);
        add_figure(out, "Bubble", text, "%", note);
    }
    const char *const hash = lg_record_text(run, "weights_hash");
    if (hash != NULL && hash[0] != '\0') {
        begin_figure(out, "Weights hash", " hash wide");
        lgi_text_add_escaped(out, hash);
        lgi_text_add(out, "</strong><p>equal hashes mean equal bits</p></div>\n");
    }
}

static void add_headline(lgi_text *out, const lg_report_input *input)
{
    lgi_text_add(out, "<section class=\"figures\">\n");
    add_quality(out, input->run);
    add_speed(out, input->run);
    add_memory_figure(out, input->run);
    add_plan_figures(out, input->run);
    lgi_text_add(out, "</section>\n");
}

/* --- curves -------------------------------------------------------------------------------------------------------- */

/* A chart of up to two keys of the metrics. */
struct curve {
    const char *title;
    const char *unit;
    double factor;
    const char *keys[2];
    const char *labels[2];
};

static const struct curve curves[] = {
    {"Loss", "", 1.0, {"loss", "test_loss"}, {"train", "test"}},
    {"Accuracy", " %", 100.0, {"accuracy", "test_accuracy"}, {"train", "test"}},
    {"Bits per byte", "", 1.0, {"bits_per_byte", "test_bits_per_byte"}, {"train", "test"}},
    {"Learning rate", "", 1.0, {"lr", NULL}, {"rate", NULL}},
    {"Throughput", "", 1.0, {"samples_per_s", NULL}, {"samples/s", NULL}},
};

/* Few points are shown as dots: an evaluation now and then. */
#define MAX_MARKED_POINTS 60

static lg_status add_curve(lgi_text *out, const lg_metrics *metrics, const struct curve *curve)
{
    lg_status status = LG_OK;
    lgi_chart_series series[2];
    double *scaled[2] = {NULL, NULL};
    int num = 0;
    for (int k = 0; k < 2 && curve->keys[k] != NULL; k++) {
        const lg_metrics_series *const found = lg_metrics_find(metrics, curve->keys[k]);
        if (found == NULL) {
            continue;
        }
        LG_TRY_GOTO(lgi_calloc(&scaled[num], found->num_points, sizeof(double)));
        for (size_t i = 0; i < found->num_points; i++) {
            scaled[num][i] = found->values[i] * curve->factor;
        }
        series[num] = (lgi_chart_series){.label = curve->labels[k],
                                         .num_points = found->num_points,
                                         .x = found->steps,
                                         .y = scaled[num],
                                         .is_marked = found->num_points <= MAX_MARKED_POINTS};
        num++;
    }
    if (num > 0) {
        const lgi_chart chart = {.title = curve->title,
                                 .x_label = "step",
                                 .y_unit = curve->unit,
                                 .num_series = num,
                                 .series = series};
        lgi_chart_add(out, &chart);
    }
out:
    lgi_free(scaled[0]);
    lgi_free(scaled[1]);
    return status;
}

/* Whether the metrics have something for the curve. */
static bool has_curve(const lg_metrics *metrics, const struct curve *curve)
{
    return lg_metrics_find(metrics, curve->keys[0]) != NULL ||
           (curve->keys[1] != NULL && lg_metrics_find(metrics, curve->keys[1]) != NULL);
}

static lg_status add_curves(lgi_text *out, const lg_metrics *metrics)
{
    const size_t num_curves = sizeof curves / sizeof curves[0];
    int num = 0;
    for (size_t i = 0; i < num_curves; i++) {
        num += has_curve(metrics, &curves[i]) ? 1 : 0;
    }
    /* As many columns as leave no chart alone in its row. */
    lgi_text_addf(out, "<h2>Curves</h2>\n<section class=\"charts c%d\">\n",
                  num == 1               ? 1
                  : num == 2 || num == 4 ? 2
                                         : 3);
    for (size_t i = 0; i < num_curves; i++) {
        LG_TRY(add_curve(out, metrics, &curves[i]));
    }
    lgi_text_add(out, "</section>\n");
    return LG_OK;
}

/* --- the step ------------------------------------------------------------------------------------------------------ */

/* The unit in which the peak of `rank` is a number from 1 to 1000 or so; *scale: its bytes. */
static const char *memory_unit(const lgi_picture *picture, int rank, double *scale)
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    size_t unit = 0;
    double most = 0.0;
    for (int p = 0; p < picture->num_panels; p++) {
        const lg_timeline *const timeline = picture->panels[p].timeline;
        for (int i = 0; i < timeline->num_memory_points; i++) {
            const lg_memory_point *const point = &timeline->memory_points[i];
            most = point->rank == rank ? fmax(most, (double)point->bytes) : most;
        }
    }
    *scale = 1.0;
    while (most / *scale >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]) {
        *scale *= 1024.0;
        unit++;
    }
    return units[unit];
}

/* Live bytes of `rank` over the step, planned and measured. */
static lg_status add_memory_chart(lgi_text *out, const lgi_picture *picture, int rank)
{
    lg_status status = LG_OK;
    lgi_chart_series series[2];
    double *values[4] = {NULL, NULL, NULL, NULL};
    char title[64];
    int num = 0;
    double scale = 1.0;
    const char *const unit = memory_unit(picture, rank, &scale);
    for (int p = 0; p < picture->num_panels && p < 2; p++) {
        const lg_timeline *const timeline = picture->panels[p].timeline;
        double **const x = &values[2 * p];
        double **const y = &values[2 * p + 1];
        const size_t room = (size_t)timeline->num_memory_points + 1;
        size_t num_points = 0;
        LG_TRY_GOTO(lgi_calloc(x, room, sizeof(double)));
        LG_TRY_GOTO(lgi_calloc(y, room, sizeof(double)));
        for (int i = 0; i < timeline->num_memory_points; i++) {
            const lg_memory_point *const point = &timeline->memory_points[i];
            if (lgi_memory_point_is_shown(timeline, point, rank)) {
                (*x)[num_points] = (point->time_ns - timeline->begin_ns) / NS_PER_MS;
                (*y)[num_points++] = (double)point->bytes / scale;
            }
        }
        if (num_points > 0) { /* the last value holds to the end */
            (*x)[num_points] =
                fmax((timeline->end_ns - timeline->begin_ns) / NS_PER_MS, (*x)[num_points - 1]);
            (*y)[num_points] = (*y)[num_points - 1];
            num_points++;
            series[num++] = (lgi_chart_series){.label = picture->panels[p].label,
                                               .num_points = num_points,
                                               .x = *x,
                                               .y = *y,
                                               .is_step = true};
        }
    }
    (void)snprintf(title, sizeof title,
                   picture->plan->num_ranks > 1 ? "Memory over the step, rank %d"
                                                : "Memory over the step",
                   rank);
    if (num > 0) {
        const lgi_chart chart = {.title = title,
                                 .x_label = "ms",
                                 .y_unit = unit,
                                 .starts_at_zero = true,
                                 .num_series = num,
                                 .series = series};
        lgi_chart_add(out, &chart);
    }
out:
    for (int i = 0; i < 4; i++) {
        lgi_free(values[i]);
    }
    return status;
}

/* Time and number of runs of each class, and busy time of each lane, by panel. */
struct totals {
    double class_ns[LGI_NUM_CLASSES];
    int class_runs[LGI_NUM_CLASSES];
    double *lane_ns;
    int *lane_runs;
};

static lg_status sum_panel(struct totals *totals, const lgi_picture *picture, int panel)
{
    const lg_timeline *const timeline = picture->panels[panel].timeline;
    const size_t num_lanes = (size_t)picture->num_rows;
    LG_TRY(lgi_calloc(&totals->lane_ns, num_lanes, sizeof *totals->lane_ns));
    LG_TRY(lgi_calloc(&totals->lane_runs, num_lanes, sizeof *totals->lane_runs));
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        const double ns = span->end_ns - span->start_ns;
        const int class_idx = lgi_picture_class(picture, span->op);
        totals->class_ns[class_idx] += ns;
        totals->class_runs[class_idx]++;
        totals->lane_ns[span->lane] += ns;
        totals->lane_runs[span->lane]++;
    }
    return LG_OK;
}

static void add_ns_cell(lgi_text *out, double ns)
{
    char text[32];
    lgi_text_addf(out, "<td>%s</td>", lgi_format_ns(ns, text, sizeof text));
}

static void add_kind_table(lgi_text *out, const lgi_picture *picture, const struct totals *totals)
{
    const struct totals *const last = &totals[picture->num_panels - 1];
    double whole_ns = 0.0;
    double largest_ns = 0.0;
    for (int i = 0; i < LGI_NUM_CLASSES; i++) {
        whole_ns += last->class_ns[i];
        largest_ns = fmax(largest_ns, last->class_ns[i]);
    }
    lgi_text_add(out, "<div class=\"card table\"><table><tr><th>op kind</th><th>runs</th>");
    for (int p = 0; p < picture->num_panels; p++) {
        lgi_text_add(out, "<th>");
        lgi_text_add_escaped(out, picture->panels[p].label);
        lgi_text_add(out, "</th>");
    }
    lgi_text_add(out, "<th>share</th><th class=\"bar\"></th></tr>\n");
    for (int i = 0; i < LGI_NUM_CLASSES; i++) {
        bool is_there = false;
        for (int p = 0; p < picture->num_panels; p++) {
            is_there = is_there || totals[p].class_runs[i] > 0;
        }
        if (!is_there) {
            continue;
        }
        lgi_text_addf(out, "<tr><td><i style=\"background:%s\"></i>%s</td><td>%d</td>",
                      lgi_class_look_of(i)->fill, lgi_class_name(i), last->class_runs[i]);
        for (int p = 0; p < picture->num_panels; p++) {
            add_ns_cell(out, totals[p].class_ns[i]);
        }
        lgi_text_addf(out,
                      "<td>%.1f %%</td><td class=\"bar\"><span "
                      "style=\"width:%.1f%%;background:%s\"></span></td></tr>\n",
                      whole_ns > 0.0 ? 100.0 * last->class_ns[i] / whole_ns : 0.0,
                      largest_ns > 0.0 ? 100.0 * last->class_ns[i] / largest_ns : 0.0,
                      lgi_class_look_of(i)->fill);
    }
    lgi_text_add(out, "</table></div>\n");
}

static void add_lane_table(lgi_text *out, const lgi_picture *picture, const struct totals *totals)
{
    lgi_text_add(out, "<div class=\"card table\"><table><tr><th>lane</th><th>runs</th>");
    for (int p = 0; p < picture->num_panels; p++) {
        lgi_text_add(out, "<th>");
        lgi_text_add_escaped(out, picture->panels[p].label);
        lgi_text_add(out, " busy</th><th>of step</th>");
    }
    lgi_text_add(out, "</tr>\n");
    for (int row = 0; row < picture->num_rows; row++) {
        const int lane = picture->lane_of_row[row];
        char name[96];
        lgi_picture_lane_name(picture, lane, name, sizeof name);
        lgi_text_addf(out, "<tr><td>%s</td><td>%d</td>", name,
                      totals[picture->num_panels - 1].lane_runs[lane]);
        for (int p = 0; p < picture->num_panels; p++) {
            const lg_timeline *const timeline = picture->panels[p].timeline;
            const double step_ns = lgi_picture_step_ns(picture, timeline);
            add_ns_cell(out, totals[p].lane_ns[lane]);
            lgi_text_addf(out, "<td>%.1f %%</td>",
                          step_ns > 0.0 ? 100.0 * totals[p].lane_ns[lane] / step_ns : 0.0);
        }
        lgi_text_add(out, "</tr>\n");
    }
    lgi_text_add(out, "</table></div>\n");
}

static lg_status add_tables(lgi_text *out, const lgi_picture *picture)
{
    lg_status status = LG_OK;
    struct totals totals[2] = {0};
    for (int p = 0; p < picture->num_panels; p++) {
        LG_TRY_GOTO(sum_panel(&totals[p], picture, p));
    }
    lgi_text_add(out, "<div class=\"stack\">\n");
    add_kind_table(out, picture, totals);
    add_lane_table(out, picture, totals);
    lgi_text_add(out, "</div>\n");
out:
    for (int p = 0; p < 2; p++) {
        lgi_free(totals[p].lane_ns);
        lgi_free(totals[p].lane_runs);
    }
    return status;
}

/* The measured step beside the median of all, which is the figure at the top. */
static void add_which_step(lgi_text *out, const lg_report_input *input)
{
    const double median_ms = lg_record_number(input->run, "step_ms_median");
    if (input->measured != NULL && isfinite(median_ms)) {
        lgi_text_addf(out, "measured: one of those recorded; median of all: %.4g ms; ", median_ms);
    }
}

static lg_status add_step(lgi_text *out, const lg_report_input *input)
{
    lg_status status = LG_OK;
    lgi_picture picture = {0};
    lg_timeline_panel panels[2];
    int num_panels = 0;
    if (input->planned != NULL) {
        panels[num_panels++] = (lg_timeline_panel){"planned", input->planned};
    }
    if (input->measured != NULL) {
        panels[num_panels++] = (lg_timeline_panel){"measured", input->measured};
    }
    if (input->graph == NULL || input->plan == NULL || num_panels == 0) {
        return LG_OK;
    }
    LG_TRY_GOTO(lgi_picture_init(&picture, input->graph, input->plan, panels, num_panels));
    lgi_text_add(out, "<h2>One step<small>");
    add_which_step(out, input);
    lgi_text_add(out, "point at a box for its op and time; trace.json opens in "
                      "ui.perfetto.dev</small></h2>\n<div class=\"card scroll\">\n");
    LG_TRY_GOTO(lgi_timeline_svg(out, &picture, NULL, false));
    lgi_text_add(out, "</div>\n");
    LG_TRY_GOTO(lgi_report_add_ranks(out, &picture));
    lgi_text_add(out, "<h2>Where the time and the memory go</h2>\n<section class=\"pair\">\n");
    LG_TRY_GOTO(add_tables(out, &picture));
    lgi_text_add(out, "<div class=\"stack\">\n");
    for (int rank = 0; rank < input->plan->num_ranks; rank++) {
        LG_TRY_GOTO(add_memory_chart(out, &picture, rank));
    }
    lgi_text_add(out, "</div>\n</section>\n");
    LG_TRY_GOTO(lgi_report_add_differences(out, &picture));
out:
    lgi_picture_deinit(&picture);
    return status;
}

/* --- the rest ------------------------------------------------------------------------------------------------------ */

static void add_recipe(lgi_text *out, const char *recipe)
{
    lgi_text_add(out, "<div><h2>Recipe<small>as it was in effect</small></h2>\n"
                      "<div class=\"card\"><pre>");
    lgi_text_add_escaped(out, recipe);
    lgi_text_add(out, "</pre></div></div>\n");
}

/* What null stands for: of a loss that there was none to write down; of all else that it is not known, or has no meaning here. */
static bool is_unknown(const char *key, const json_t *value)
{
    const size_t length = strlen(key);
    const bool is_loss = length >= 4 && strcmp(key + length - 4, "loss") == 0;
    return json_is_null(value) && !is_loss;
}

/* All numbers, texts and truth values of run.json that are known. */
static void add_record_table(lgi_text *out, const lg_record *run)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (json_object_size(run->json) == 0) {
        return;
    }
    lgi_text_add(out, "<div><h2>Run<small>run.json</small></h2>\n"
                      "<div class=\"card table\"><table>\n");
    json_object_foreach(run->json, key, value)
    {
        if (json_is_object(value) || json_is_array(value) || is_unknown(key, value)) {
            continue;
        }
        lgi_text_add(out, "<tr><td>");
        lgi_text_add_escaped_cut(out, key, 80);
        lgi_text_add(out, "</td><td class=\"text\">");
        if (json_is_string(value)) {
            lgi_text_add_escaped_cut(out, json_string_value(value), 2000);
        } else if (json_is_integer(value)) {
            lgi_text_addf(out, "%" PRId64, (int64_t)json_integer_value(value));
        } else if (json_is_real(value)) {
            lgi_text_addf(out, "%.10g", json_real_value(value));
        } else {
            lgi_text_add(out, json_is_true(value)    ? "true"
                              : json_is_false(value) ? "false"
                                                     : "not finite");
        }
        lgi_text_add(out, "</td></tr>\n");
    }
    lgi_text_add(out, "</table></div></div>\n");
}

static void add_lines(lgi_text *out, const char *const *lines)
{
    for (; *lines != NULL; lines++) {
        lgi_text_add(out, *lines);
    }
}

static void add_head(lgi_text *out, const lg_report_input *input)
{
    static const char *const keys[] = {"model", "dataset", "device_text", "device", "seed"};
    const char *const title = input->title != NULL ? input->title : "run";
    bool is_first = true;
    lgi_text_add(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
                      "&#39;none&#39;; style-src &#39;unsafe-inline&#39;; script-src "
                      "&#39;unsafe-inline&#39;; img-src data:\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width, "
                      "initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n<title>");
    lgi_text_add_escaped_cut(out, title, 200);
    lgi_text_add(out, " \xc2\xb7 leapgrad</title>\n<style>\n");
    add_lines(out, lgi_report_css);
    lgi_text_add(out, "</style>\n</head>\n<body>\n<main>\n<header><h1>");
    lgi_text_add_escaped_cut(out, title, 200);
    lgi_text_add(out, "</h1><p>");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char text[256];
        const bool is_said = strcmp(keys[i], "device") == 0 &&
                             lg_record_has(input->run, "device_text"); /* in more words */
        if (!is_said && format_member(input->run, keys[i], text, sizeof text)) {
            lgi_text_add(out, is_first ? "" : " \xc2\xb7 ");
            lgi_text_add(out, strcmp(keys[i], "seed") == 0 ? "seed " : "");
            lgi_text_add_escaped(out, text);
            is_first = false;
        }
    }
    lgi_text_add(out, "</p></header>\n");
}

lg_status lg_report_save(const lg_report_input *input, const char *path)
{
    lg_status status = LG_OK;
    lgi_text text = {0};
    add_head(&text, input);
    add_headline(&text, input);
    if (input->metrics != NULL && lg_metrics_num_series(input->metrics) > 0) {
        LG_TRY_GOTO(add_curves(&text, input->metrics));
        lgi_report_add_rates(&text, input->metrics);
    }
    LG_TRY_GOTO(add_step(&text, input));
    lgi_text_add(&text, "<section class=\"pair texts\">\n");
    if (input->recipe_text != NULL) {
        add_recipe(&text, input->recipe_text);
    }
    add_record_table(&text, input->run);
    lgi_text_add(&text, "</section>\n");
    lgi_text_add(&text, "<footer>made by leapgrad</footer>\n</main>\n<script>\n");
    add_lines(&text, lgi_report_js);
    lgi_text_add(&text, "</script>\n</body>\n</html>\n");
    LG_TRY_GOTO(lgi_text_save(&text, path));
out:
    lgi_text_deinit(&text);
    return status;
}
