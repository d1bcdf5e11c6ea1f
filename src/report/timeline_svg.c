/*
 * The timeline as SVG. What is drawn is bounded by what can be seen: ops narrower than a threshold are merged into boxes
 * with the colour of the kind that takes most of their time, and the threshold grows until the picture has at most
 * MAX_ELEMENTS boxes. So 20 ops are drawn one by one and 20,000 still make a file that a browser opens at once.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "report/picture.h"

#define WIDTH 1400.0
#define LEFT 150.0 /* lane names */
#define RIGHT 64.0 /* busy share */
#define PLOT (WIDTH - LEFT - RIGHT)
#define ROW_HEIGHT 26.0
#define ROW_GAP 4.0
#define MEMORY_HEIGHT 64.0
#define MARGIN 16.0
#define PANEL_HEAD 30.0
#define AXIS_HEIGHT 26.0
#define LEGEND_ROW 22.0
#define PANEL_GAP 18.0

#define MAX_ELEMENTS 6000
#define FIRST_THRESHOLD 0.8 /* pixels: below it, boxes are merged */
#define MIN_WIDTH 0.5       /* pixels: a box can be seen */
#define LAG_HEIGHT 7.0
#define LAG_GAP 2.0    /* pixels: lagged ops closer than this share a band */
#define CHAR_WIDTH 6.1 /* pixels of a letter at the size of box texts */
#define MAX_NAME_CHARS 48

/* Where things are. x = LEFT + (time - the panel's begin - low_ns) * scale. */
struct frame {
    const lgi_picture *picture;
    double low_ns;
    double high_ns;
    double scale; /* pixels per ns */
    double threshold;
    int64_t max_bytes; /* of the memory curves */
    lgi_text *out;     /* NULL: only count */
    int num_elements;
    bool is_used[LGI_NUM_CLASSES];
    bool has_lag;
};

static double to_x(const struct frame *frame, const lg_timeline *timeline, double time_ns)
{
    return LEFT + (time_ns - timeline->begin_ns - frame->low_ns) * frame->scale;
}

/* --- boxes ------------------------------------------------------------------------------------------------------- */

/* Neighbouring ops that are too short to draw. */
struct cluster {
    int num_ops;
    double begin_ns;
    double end_ns;
    double busy_ns;
    double class_ns[LGI_NUM_CLASSES];
    int first_op;
};

static void draw_box(struct frame *frame, const lg_timeline *timeline, const lg_span *span,
                     double y)
{
    const lgi_picture *const picture = frame->picture;
    const lg_op_info *const op = lg_graph_op(picture->graph, span->op);
    const double x = to_x(frame, timeline, span->start_ns);
    const double width = (span->end_ns - span->start_ns) * frame->scale;
    const int class_idx = lgi_picture_class(picture, span->op);
    const bool is_lagged = picture->lag[span->op] > 0;
    char took[32];
    char at[32];
    frame->num_elements++;
    frame->is_used[class_idx] = true;
    if (frame->out == NULL) {
        return;
    }
    lgi_text *const out = frame->out;
    lgi_text_addf(out, "<rect class=\"k%d\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"",
                  class_idx, x, y, width > MIN_WIDTH ? width : MIN_WIDTH, ROW_HEIGHT);
    lgi_text_add(out, width > 8.0 ? " rx=\"2\"><title>" : "><title>");
    lgi_text_add_escaped_cut(out, op->name, MAX_NAME_CHARS);
    lgi_text_addf(out, "\n%s at %s%s</title></rect>\n",
                  lgi_format_ns(span->end_ns - span->start_ns, took, sizeof took),
                  lgi_format_ns(span->start_ns - timeline->begin_ns, at, sizeof at),
                  is_lagged ? "\nlag 1: of the step before" : "");
    /* Layer and micro-batch if both fit, else one of them. */
    const char *const label = picture->labels[span->op];
    char batch[24] = "";
    if (op->micro_batch >= 0 && lg_graph_num_micro_batches(picture->graph) > 1) {
        (void)snprintf(batch, sizeof batch, "%d", op->micro_batch);
    }
    const double room = (width - 6.0) / CHAR_WIDTH;
    const size_t label_chars = strlen(label);
    const size_t batch_chars = strlen(batch);
    const bool is_both = (double)(label_chars + batch_chars + (batch_chars > 0 ? 3 : 0)) <= room;
    const bool is_label = is_both || (double)label_chars <= room;
    const bool is_batch = is_both || (!is_label && batch_chars > 0 && (double)batch_chars <= room);
    if (is_label || is_batch) {
        lgi_text_addf(out, "<text class=\"b i%d\" x=\"%.2f\" y=\"%.0f\">", class_idx,
                      x + width / 2.0, y + ROW_HEIGHT / 2.0 + 4.0);
        lgi_text_add_escaped(out, is_label ? label : "");
        lgi_text_add(out, is_label && is_batch && batch_chars > 0 ? " \xc2\xb7 " : "");
        lgi_text_add(out, is_batch ? batch : "");
        lgi_text_add(out, "</text>\n");
    }
}

static void draw_cluster(struct frame *frame, const lg_timeline *timeline, struct cluster *cluster,
                         double y)
{
    if (cluster->num_ops == 0) {
        return;
    }
    int main_class = 0;
    for (int i = 0; i < LGI_NUM_CLASSES; i++) {
        if (cluster->class_ns[i] > cluster->class_ns[main_class]) {
            main_class = i;
        }
        frame->is_used[i] = frame->is_used[i] || cluster->class_ns[i] > 0.0;
    }
    if (cluster->class_ns[main_class] <= 0.0) { /* all of length zero */
        main_class = lgi_picture_class(frame->picture, cluster->first_op);
        frame->is_used[main_class] = true;
    }
    frame->num_elements++;
    if (frame->out != NULL) {
        const double whole_ns = cluster->end_ns - cluster->begin_ns;
        const double width = whole_ns * frame->scale;
        const double share = whole_ns > 0.0 ? cluster->busy_ns / whole_ns : 1.0;
        char took[32];
        char at[32];
        lgi_text_addf(frame->out,
                      "<rect class=\"k%d\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"",
                      main_class, to_x(frame, timeline, cluster->begin_ns), y,
                      width > MIN_WIDTH ? width : MIN_WIDTH, ROW_HEIGHT);
        if (share < 0.95) {
            lgi_text_addf(frame->out, " opacity=\"%.2f\"", share > 0.3 ? share : 0.3);
        }
        lgi_text_add(frame->out, "><title>");
        if (cluster->num_ops == 1) {
            lgi_text_add_escaped_cut(frame->out,
                                     lg_graph_op(frame->picture->graph, cluster->first_op)->name,
                                     MAX_NAME_CHARS);
        } else {
            lgi_text_addf(frame->out, "%d ops, mostly %s", cluster->num_ops,
                          lgi_class_name(main_class));
        }
        lgi_text_addf(frame->out, "\n%s at %s</title></rect>\n",
                      lgi_format_ns(cluster->busy_ns, took, sizeof took),
                      lgi_format_ns(cluster->begin_ns - timeline->begin_ns, at, sizeof at));
    }
    memset(cluster, 0, sizeof *cluster);
}

/* Lagged ops side by side: a hatched band along their lower edge, which merging boxes leaves visible. */
struct lag_run {
    bool is_open;
    double begin_ns;
    double end_ns;
};

static void draw_lag_run(struct frame *frame, const lg_timeline *timeline, struct lag_run *run,
                         double y)
{
    if (run->is_open) {
        frame->num_elements++;
        frame->has_lag = true;
        if (frame->out != NULL) {
            lgi_text_addf(
                frame->out,
                "<rect class=\"lag\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"/>\n",
                to_x(frame, timeline, run->begin_ns), y + ROW_HEIGHT - LAG_HEIGHT,
                fmax((run->end_ns - run->begin_ns) * frame->scale, MIN_WIDTH), LAG_HEIGHT);
        }
    }
    run->is_open = false;
}

/* `span` NULL: the lane ends. */
static void extend_lag_run(struct frame *frame, const lg_timeline *timeline, struct lag_run *run,
                           const lg_span *span, double y)
{
    const bool is_lagged = span != NULL && frame->picture->lag[span->op] > 0;
    if (run->is_open && (!is_lagged || (span->start_ns - run->end_ns) * frame->scale > LAG_GAP)) {
        draw_lag_run(frame, timeline, run, y);
    }
    if (is_lagged) {
        if (!run->is_open) {
            *run = (struct lag_run){true, span->start_ns, span->end_ns};
        }
        run->end_ns = fmax(run->end_ns, span->end_ns);
    }
}

/* One lane. Spans come sorted by start, so what is merged lies side by side. Returns the time it is busy in the step. */
static double draw_lane(struct frame *frame, const lg_timeline *timeline, int lane, double y)
{
    struct cluster cluster = {0};
    struct lag_run lag_run = {0};
    double busy_ns = 0.0;
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        if (span->lane != lane) {
            continue;
        }
        extend_lag_run(frame, timeline, &lag_run, span, y);
        const double inside =
            fmin(span->end_ns, timeline->end_ns) - fmax(span->start_ns, timeline->begin_ns);
        busy_ns += fmax(inside, 0.0);
        const double width = (span->end_ns - span->start_ns) * frame->scale;
        if (width >= frame->threshold) {
            draw_cluster(frame, timeline, &cluster, y);
            draw_box(frame, timeline, span, y);
            continue;
        }
        if (cluster.num_ops > 0 &&
            (span->end_ns - cluster.begin_ns) * frame->scale > frame->threshold) {
            draw_cluster(frame, timeline, &cluster, y);
        }
        if (cluster.num_ops == 0) {
            cluster.begin_ns = span->start_ns;
            cluster.end_ns = span->end_ns;
            cluster.first_op = span->op;
        }
        cluster.num_ops++;
        cluster.end_ns = fmax(cluster.end_ns, span->end_ns);
        cluster.busy_ns += span->end_ns - span->start_ns;
        cluster.class_ns[lgi_picture_class(frame->picture, span->op)] +=
            span->end_ns - span->start_ns;
    }
    draw_cluster(frame, timeline, &cluster, y);
    extend_lag_run(frame, timeline, &lag_run, NULL, y);
    return busy_ns;
}

/* --- memory, axis, frame ------------------------------------------------------------------------------------------ */

static bool has_memory(const lgi_picture *picture)
{
    for (int p = 0; p < picture->num_panels; p++) {
        if (picture->panels[p].timeline->num_memory_points > 0) {
            return true;
        }
    }
    return false;
}

/* A step line; points that fall into one pixel column are drawn as the column from their lowest to their highest. */
static void draw_memory(const struct frame *frame, const lg_timeline *timeline, int rank, double y)
{
    lgi_text *const out = frame->out;
    const double bottom = y + MEMORY_HEIGHT;
    const double unit =
        (MEMORY_HEIGHT - 4.0) / (frame->max_bytes > 0 ? (double)frame->max_bytes : 1.0);
    double column = -1.0;
    double low = 0.0;
    double high = 0.0;
    double last = -1.0;
    double first_x = 0.0;
    for (int i = 0; i <= timeline->num_memory_points; i++) {
        const bool is_end = i == timeline->num_memory_points;
        const lg_memory_point *const point = is_end ? NULL : &timeline->memory_points[i];
        if (!is_end && !lgi_memory_point_is_shown(timeline, point, rank)) {
            continue;
        }
        const double x = is_end ? 0.0 : floor(to_x(frame, timeline, point->time_ns));
        const double top = is_end ? 0.0 : bottom - unit * (double)point->bytes;
        if (column >= 0.0 && (is_end || x > column)) {
            lgi_text_addf(out, "V%.1f", high);
            if (low > high) {
                lgi_text_addf(out, "V%.1f", low);
            }
            if (last < low) {
                lgi_text_addf(out, "V%.1f", last);
            }
            if (!is_end) {
                lgi_text_addf(out, "H%.0f", x);
            }
            low = high = last;
        }
        if (is_end) {
            break;
        }
        if (column < 0.0) {
            lgi_text_addf(out, "<path class=\"m\" d=\"M%.0f %.1f", x, bottom);
            first_x = x;
            low = high = top;
        }
        column = fmax(column, x);
        low = fmax(low, top);
        high = fmin(high, top);
        last = top;
    }
    if (column >= 0.0) {
        const double end_x = fmax(to_x(frame, timeline, timeline->end_ns), column);
        lgi_text_addf(out, "H%.1fV%.1fH%.0fZ\"/>\n", end_x, bottom, first_x);
    }
}

static void draw_axis(const struct frame *frame, double y, double height)
{
    lgi_text *const out = frame->out;
    const double range = frame->high_ns - frame->low_ns;
    const double step = lgi_nice_step(range, 10);
    const double first = ceil(frame->low_ns / step - 1e-9) * step;
    const double unit_ns = step >= 1e9 ? 1e9 : step >= 1e5 ? 1e6 : step >= 1e2 ? 1e3 : 1.0;
    const char *const unit = unit_ns >= 1e9   ? "s"
                             : unit_ns >= 1e6 ? "ms"
                             : unit_ns >= 1e3 ? "\xc2\xb5s"
                                              : "ns";
    for (int i = 0; i <= 30; i++) {
        const double time_ns = first + i * step;
        if (time_ns > frame->high_ns * (1.0 + 1e-9) + 1e-9) {
            break;
        }
        const double x = LEFT + (time_ns - frame->low_ns) * frame->scale;
        lgi_text_addf(out,
                      "<path class=\"g\" d=\"M%.1f %.0fv%.0f\"/><text class=\"t\" x=\"%.1f\" "
                      "y=\"%.0f\">%.6g%s%s</text>\n",
                      x, y, height + 5.0, x, y + height + 18.0,
                      fabs(time_ns) < step * 1e-6 ? 0.0 : time_ns / unit_ns, i == 0 ? " " : "",
                      i == 0 ? unit : "");
    }
}

static void draw_boundaries(const struct frame *frame, const lg_timeline *timeline, double y,
                            double height)
{
    const double begin = timeline->begin_ns;
    const double end = timeline->end_ns;
    for (int i = 0; i < 2; i++) {
        const double x = to_x(frame, timeline, i == 0 ? begin : end);
        lgi_text_addf(frame->out, "<path class=\"s\" d=\"M%.1f %.0fv%.0f\"/>\n", x, y - 4.0,
                      height + 8.0);
    }
}

static int num_rank_memories(const lgi_picture *picture)
{
    return has_memory(picture) ? picture->plan->num_ranks : 0;
}

static double panel_height(const lgi_picture *picture)
{
    return picture->num_rows * (ROW_HEIGHT + ROW_GAP) +
           num_rank_memories(picture) * (MEMORY_HEIGHT + ROW_GAP);
}

static int64_t panel_peak_bytes(const lg_timeline *timeline)
{
    int64_t peak = 0;
    for (int i = 0; i < timeline->num_memory_points; i++) {
        peak = timeline->memory_points[i].bytes > peak ? timeline->memory_points[i].bytes : peak;
    }
    return peak;
}

static void draw_panel_head(const struct frame *frame, const lg_timeline_panel *panel, double y)
{
    char text[32];
    lgi_text *const out = frame->out;
    const int64_t peak = panel_peak_bytes(panel->timeline);
    lgi_text_addf(out, "<text class=\"h\" x=\"%.0f\" y=\"%.0f\">", MARGIN, y + 16.0);
    lgi_text_add_escaped_cut(out, panel->label, 100);
    lgi_text_addf(out, "<tspan class=\"d\" dx=\"10\">%d ops \xc2\xb7 step %s",
                  panel->timeline->num_spans,
                  lgi_format_ns(panel->timeline->step_ns, text, sizeof text));
    if (peak > 0) {
        lgi_text_addf(out, " \xc2\xb7 peak %s", lgi_format_bytes((double)peak, text, sizeof text));
    }
    lgi_text_add(out, "</tspan></text>\n");
}

static void draw_row_name(const struct frame *frame, const char *name, double y, double height)
{
    lgi_text_addf(frame->out, "<text class=\"n\" x=\"%.0f\" y=\"%.0f\">", LEFT - 10.0,
                  y + height / 2.0 + 4.0);
    lgi_text_add_escaped(frame->out, name);
    lgi_text_add(frame->out, "</text>\n");
}

static void draw_memory_row(const struct frame *frame, const lg_timeline *timeline, int rank,
                            double y)
{
    char text[32];
    const bool is_alone = frame->picture->plan->num_ranks == 1;
    char name[48];
    (void)snprintf(name, sizeof name, is_alone ? "live bytes" : "rank %d live bytes", rank);
    draw_row_name(frame, name, y, MEMORY_HEIGHT);
    lgi_text_addf(frame->out, "<path class=\"g\" d=\"M%.0f %.0fh%.0f\"/>\n", LEFT,
                  y + MEMORY_HEIGHT, PLOT);
    draw_memory(frame, timeline, rank, y);
    lgi_text_addf(frame->out, "<text class=\"r\" x=\"%.0f\" y=\"%.0f\">%s</text>\n",
                  LEFT + PLOT + 6.0, y + 12.0,
                  lgi_format_bytes((double)frame->max_bytes, text, sizeof text));
}

/* A panel from `y` on. Rows of a rank stand together, its memory below them. */
static void draw_panel(struct frame *frame, const lg_timeline_panel *panel, double y)
{
    const lgi_picture *const picture = frame->picture;
    const lg_timeline *const timeline = panel->timeline;
    const double top = y + PANEL_HEAD;
    const double height = panel_height(picture);
    const bool has_memory_rows = num_rank_memories(picture) > 0;
    double row_y = top;
    if (frame->out != NULL) {
        draw_panel_head(frame, panel, y);
        draw_axis(frame, top, height);
    }
    for (int row = 0; row < picture->num_rows; row++) {
        const int lane = picture->lane_of_row[row];
        const int rank = picture->plan->lanes[lane].rank;
        if (frame->out != NULL) {
            char name[96];
            lgi_picture_lane_name(picture, lane, name, sizeof name);
            draw_row_name(frame, name, row_y, ROW_HEIGHT);
            lgi_text_addf(frame->out,
                          "<rect class=\"l\" x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" "
                          "height=\"%.0f\"/>\n",
                          to_x(frame, timeline, timeline->begin_ns), row_y,
                          (timeline->end_ns - timeline->begin_ns) * frame->scale, ROW_HEIGHT);
        }
        const double busy_ns = draw_lane(frame, timeline, lane, row_y);
        const double step_ns = lgi_picture_step_ns(picture, timeline);
        if (frame->out != NULL && step_ns > 0.0) {
            lgi_text_addf(frame->out, "<text class=\"r\" x=\"%.0f\" y=\"%.0f\">%.0f %%</text>\n",
                          LEFT + PLOT + 6.0, row_y + ROW_HEIGHT / 2.0 + 4.0,
                          100.0 * busy_ns / step_ns);
        }
        row_y += ROW_HEIGHT + ROW_GAP;
        const bool is_last_of_rank =
            row + 1 == picture->num_rows ||
            picture->plan->lanes[picture->lane_of_row[row + 1]].rank != rank;
        if (is_last_of_rank && has_memory_rows) {
            if (frame->out != NULL) {
                draw_memory_row(frame, timeline, rank, row_y);
            }
            row_y += MEMORY_HEIGHT + ROW_GAP;
        }
    }
    if (frame->out != NULL) {
        draw_boundaries(frame, timeline, top, height);
    }
}

/* --- legend and style --------------------------------------------------------------------------------------------- */

/* Places the legend's entries, drawing them if there is something to draw to; returns its height. */
static double draw_legend(const struct frame *frame, double y, lgi_text *out)
{
    double x = MARGIN;
    double height = 0.0;
    for (int i = 0; i < LGI_NUM_CLASSES + 2; i++) {
        const bool is_kind = i < LGI_NUM_CLASSES;
        const bool is_shown = is_kind                ? frame->is_used[i]
                              : i == LGI_NUM_CLASSES ? frame->has_lag
                                                     : frame->picture->num_panels > 0;
        const char *const name = is_kind                ? lgi_class_name(i)
                                 : i == LGI_NUM_CLASSES ? "lag 1: of the step before"
                                                        : "step boundary";
        const double width = 24.0 + 6.3 * (double)strlen(name) + 14.0;
        if (!is_shown) {
            continue;
        }
        if (x > MARGIN && x + width > WIDTH - MARGIN) {
            x = MARGIN;
            height += LEGEND_ROW;
        }
        if (out != NULL && i <= LGI_NUM_CLASSES) {
            lgi_text_addf(out,
                          "<rect class=\"k%d\" x=\"%.0f\" y=\"%.0f\" width=\"16\" height=\"12\" "
                          "rx=\"2\"/>",
                          is_kind ? i : (int)LG_OP_WEIGHT_GRAD, x, y + height);
        }
        if (out != NULL && i == LGI_NUM_CLASSES) {
            lgi_text_addf(out,
                          "<rect class=\"lag\" x=\"%.0f\" y=\"%.0f\" width=\"16\" height=\"12\"/>",
                          x, y + height);
        }
        if (out != NULL && i > LGI_NUM_CLASSES) {
            lgi_text_addf(out, "<path class=\"s\" d=\"M%.0f %.0fv14\"/>", x + 8.0, y + height - 1);
        }
        if (out != NULL) {
            lgi_text_addf(out, "<text class=\"e\" x=\"%.0f\" y=\"%.0f\">%s</text>\n", x + 22.0,
                          y + height + 11.0, name);
        }
        x += width;
    }
    return height + LEGEND_ROW + 6.0;
}

/* Each colour stands there twice: viewers that know no variables keep the first one, and browsers choose by light and dark. */
void lgi_timeline_style(lgi_text *out, bool is_standalone)
{
    lgi_text_add(
        out,
        "<style>\n"
        ".tl{--ink:#1d2129;--dim:#667080;--grid:#d9dde3;--lane:#f1f3f6;--bg:#fff;"
        "--mem:#7d8aa0;--memfill:#c9d2e0;--mark:#c2255c}\n"
        "@media(prefers-color-scheme:dark){.tl{--ink:#e6e9ee;--dim:#98a2b3;"
        "--grid:#363d48;--lane:#1f242c;--bg:#14181e;--mem:#8d9bb3;--memfill:#3a4557;"
        "--mark:#ff7aa8}}\n"
        ".tl text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto "
        "Sans',sans-serif;font-size:12px;fill:#1d2129;fill:var(--ink)}\n"
        ".tl .bg{fill:#fff;fill:var(--bg)}.tl .l{fill:#f1f3f6;fill:var(--lane)}\n"
        ".tl .g{stroke:#d9dde3;stroke:var(--grid);fill:none}.tl "
        ".s{stroke:#c2255c;stroke:var(--mark);stroke-dasharray:4 3;fill:none;stroke-width:1.4}\n"
        ".tl .m{fill:#c9d2e0;fill:var(--memfill);stroke:#7d8aa0;stroke:var(--mem)}\n"
        ".tl .lag{fill:url(#lg-lag);pointer-events:none}\n"
        ".tl .t{text-anchor:middle;fill:#667080;fill:var(--dim);font-size:11px}\n"
        ".tl .n{text-anchor:end}.tl .r{fill:#667080;fill:var(--dim);font-size:11px}\n"
        ".tl .h{font-size:15px;font-weight:600}.tl .H{font-size:19px;font-weight:600}\n"
        ".tl .d{font-size:13px;font-weight:400;fill:#667080;fill:var(--dim)}\n"
        ".tl .b{text-anchor:middle;font-size:11px;pointer-events:none}\n");
    for (int i = 0; i < LGI_NUM_CLASSES; i++) {
        const lgi_class_look *const look = lgi_class_look_of(i);
        lgi_text_addf(out, ".tl .k%d{fill:%s}.tl .i%d{fill:%s}", i, look->fill, i, look->ink);
    }
    lgi_text_addf(out,
                  "\n@media(prefers-color-scheme:dark){.tl .k%d{fill:#7b8494}}\n"
                  ".tl rect:hover{filter:brightness(1.15)}\n</style>\n",
                  (int)LG_OP_LOSS);
    lgi_text_add(out, "<defs><pattern id=\"lg-lag\" width=\"5\" height=\"7\" "
                      "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                      "<rect width=\"7\" height=\"7\" fill=\"#fff\" fill-opacity=\".85\"/>"
                      "<rect width=\"3\" height=\"7\" fill=\"#16181c\"/>"
                      "</pattern></defs>\n");
    if (is_standalone) {
        lgi_text_add(out, "<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n");
    }
}

static void find_range(struct frame *frame)
{
    double low = 0.0;
    double high = 0.0;
    for (int p = 0; p < frame->picture->num_panels; p++) {
        const lg_timeline *const timeline = frame->picture->panels[p].timeline;
        high = fmax(high, timeline->end_ns - timeline->begin_ns);
        for (int i = 0; i < timeline->num_spans; i++) {
            low = fmin(low, timeline->spans[i].start_ns - timeline->begin_ns);
            high = fmax(high, timeline->spans[i].end_ns - timeline->begin_ns);
        }
        const int64_t peak = panel_peak_bytes(timeline);
        frame->max_bytes = peak > frame->max_bytes ? peak : frame->max_bytes;
    }
    frame->low_ns = low;
    frame->high_ns = high > low ? high : low + 1.0;
    frame->scale = PLOT / (frame->high_ns - frame->low_ns);
}

/* Widens the threshold until the boxes are few enough. */
static void find_threshold(struct frame *frame)
{
    frame->threshold = FIRST_THRESHOLD;
    for (int round = 0; round < 12; round++) {
        frame->num_elements = 0;
        for (int p = 0; p < frame->picture->num_panels; p++) {
            draw_panel(frame, &frame->picture->panels[p], 0.0);
        }
        if (frame->num_elements <= MAX_ELEMENTS) {
            return;
        }
        frame->threshold *= 1.5;
    }
}

lg_status lgi_timeline_svg(lgi_text *out, const lgi_picture *picture, const char *title,
                           bool is_standalone)
{
    if (picture->plan->num_ranks > 1) {
        return lgi_timeline_ranks_svg(out, picture, title, is_standalone);
    }
    struct frame frame = {.picture = picture};
    find_range(&frame);
    find_threshold(&frame);
    double y = is_standalone ? MARGIN : 4.0;
    const double title_height = title != NULL ? 30.0 : 0.0;
    const double legend_height = draw_legend(&frame, 0.0, NULL);
    const double one = PANEL_HEAD + panel_height(picture) + AXIS_HEIGHT + PANEL_GAP;
    const double height = y + title_height + legend_height + picture->num_panels * one;
    lgi_text_addf(out,
                  "<svg class=\"tl\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f "
                  "%.0f\" role=\"img\" aria-label=\"timeline\"",
                  WIDTH, height);
    if (is_standalone) {
        lgi_text_addf(out, " width=\"%.0f\" height=\"%.0f\"", WIDTH, height);
    }
    lgi_text_add(out, ">\n");
    lgi_timeline_style(out, is_standalone);
    if (title != NULL) {
        lgi_text_addf(out, "<text class=\"H\" x=\"%.0f\" y=\"%.0f\">", MARGIN, y + 18.0);
        lgi_text_add_escaped_cut(out, title, 140);
        lgi_text_add(out, "</text>\n");
    }
    y += title_height;
    y += draw_legend(&frame, y, out);
    frame.out = out;
    for (int p = 0; p < picture->num_panels; p++) {
        draw_panel(&frame, &picture->panels[p], y);
        y += one;
    }
    if (picture->num_panels == 0) {
        lgi_text_addf(out, "<text class=\"d\" x=\"%.0f\" y=\"%.0f\">nothing has run</text>\n",
                      MARGIN, y - 8.0);
    }
    lgi_text_add(out, "</svg>\n");
    return lgi_text_status(out);
}

lg_status lg_timeline_save_svg(const char *path, const char *title, const lg_graph *graph,
                               const lg_plan *plan, const lg_timeline_panel *panels, int num_panels)
{
    lg_status status = LG_OK;
    lgi_picture picture = {0};
    lgi_text text = {0};
    LG_TRY_GOTO(lgi_picture_init(&picture, graph, plan, panels, num_panels));
    lgi_text_add(&text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    LG_TRY_GOTO(lgi_timeline_svg(&text, &picture, title, true));
    LG_TRY_GOTO(lgi_text_save(&text, path));
out:
    lgi_text_deinit(&text);
    lgi_picture_deinit(&picture);
    return status;
}
