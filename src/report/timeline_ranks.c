/*
 * The timeline of several ranks as SVG. A rank is a row of what it computes, thin rows of what it sends, receives and reduces, and
 * its live bytes; all get smaller with the number of ranks. Ops that follow each other and belong to one stage, micro-batch and
 * direction are one box, with the micro-batch's number; a row's background reaches from the step's begin to its end, and what is left of it
 * is bubble. As in the picture of one rank, boxes
 * that are too narrow are merged, and the threshold grows until there are at most MAX_ELEMENTS.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "report/picture.h"

#define WIDTH 1600.0
#define LEFT 76.0
#define RIGHT 160.0
#define PLOT (WIDTH - LEFT - RIGHT)
#define MARGIN 16.0
#define PANEL_HEAD 30.0
#define AXIS_HEIGHT 26.0
#define LEGEND_ROW 22.0
#define PANEL_GAP 18.0

#define MAX_ELEMENTS 9000
#define FIRST_THRESHOLD 0.7 /* pixels: below it, boxes are merged */
#define MIN_WIDTH 0.5
#define GAP_PIXELS 0.25 /* boxes of one unit that are further apart stay two */

/* Thin rows. */
enum { STRIP_SEND, STRIP_RECV, STRIP_REDUCE, NUM_STRIPS };

/* Heights by number of ranks. */
struct size {
    int max_ranks;
    double row;
    double strip;
    double memory;
    double gap; /* below a rank */
    double font;
};

static const struct size sizes[] = {{4, 26.0, 8.0, 44.0, 12.0, 12.0},
                                    {8, 22.0, 6.0, 28.0, 9.0, 11.0},
                                    {16, 18.0, 4.0, 18.0, 6.0, 11.0},
                                    {32, 14.0, 3.0, 10.0, 4.0, 10.0},
                                    {1 << 30, 11.0, 2.0, 7.0, 3.0, 9.0}};

struct frame {
    const lgi_picture *picture;
    const struct size *size;
    double high_ns;
    double low_ns;
    double scale;
    double threshold;
    int64_t max_bytes;
    bool has_strip[NUM_STRIPS];
    bool has_memory;
    int *begin; /* by rank: spans_of[begin[rank] .. begin[rank + 1]), in time order */
    int *spans_of;
    lgi_text *out; /* NULL: only count */
    int num_elements;
    bool is_used[LGI_NUM_CLASSES];
    bool has_lag;
};

static double to_x(const struct frame *f, const lg_timeline *timeline, double time_ns)
{
    return LEFT + (time_ns - timeline->begin_ns - f->low_ns) * f->scale;
}

/* --- units -------------------------------------------------------------------------------------------------------------- */

/* What is drawn as one box. */
struct box {
    int num_ops; /* 0: none */
    int class_idx;
    int stage;
    int micro_batch;
    int64_t step;
    bool is_lagged;
    double begin_ns;
    double end_ns;
    int first_op;
    bool is_merged; /* of several units */
};

/* Kinds that belong to one direction have one colour. */
static int class_of(const struct frame *f, int op)
{
    const int class_idx = lgi_picture_class(f->picture, op);
    switch (class_idx) {
    case LG_OP_LOSS:
        return LG_OP_FORWARD;
    case LG_OP_GRAD_ADD:
        return LG_OP_INPUT_GRAD;
    case LG_OP_GRAD_CLIP:
        return LG_OP_GRAD_STAT;
    default:
        return class_idx;
    }
}

static bool is_backward(int class_idx)
{
    return class_idx == LG_OP_INPUT_GRAD || class_idx == LG_OP_WEIGHT_GRAD ||
           class_idx == LGI_CLASS_JOINT;
}

static void draw_label(const struct frame *f, const struct box *box, double x, double width,
                       double y)
{
    char label[24];
    const double char_width = f->size->font * 0.56;
    const int num_replicas = lg_graph_num_replicas(f->picture->graph);
    const int num_micro_batches = lg_graph_num_micro_batches(f->picture->graph) / num_replicas;
    if (box->micro_batch < 0 || box->is_merged) {
        return;
    }
    (void)snprintf(label, sizeof label, "%d", box->micro_batch % num_micro_batches);
    if ((double)strlen(label) * char_width > width - 1.0) {
        return;
    }
    lgi_text_addf(f->out, "<text class=\"b i%d\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", box->class_idx,
                  x + width / 2.0, y + f->size->row / 2.0 + f->size->font * 0.35, label);
}

static void draw_title(const struct frame *f, const lg_timeline *timeline, const struct box *box)
{
    char took[32];
    char at[32];
    lgi_text *const out = f->out;
    lgi_text_add(out, "<title>");
    if (box->num_ops == 1) {
        lgi_text_add_escaped_cut(out, lg_graph_op(f->picture->graph, box->first_op)->name, 60);
    } else if (box->is_merged) {
        lgi_text_addf(out, "%d ops", box->num_ops);
    } else if (box->micro_batch >= 0) {
        lgi_text_addf(out, "stage %d, micro-batch %d, %s: %d ops", box->stage, box->micro_batch,
                      lgi_class_name(box->class_idx), box->num_ops);
    } else {
        lgi_text_addf(out, "%s: %d ops", lgi_class_name(box->class_idx), box->num_ops);
    }
    lgi_text_addf(out, "\n%s at %s%s</title>",
                  lgi_format_ns(box->end_ns - box->begin_ns, took, sizeof took),
                  lgi_format_ns(box->begin_ns - timeline->begin_ns, at, sizeof at),
                  box->is_lagged ? "\nlag 1: of the step before" : "");
}

static void draw_box(struct frame *f, const lg_timeline *timeline, const struct box *box, double y,
                     double height)
{
    const double x = to_x(f, timeline, box->begin_ns);
    const double width = fmax((box->end_ns - box->begin_ns) * f->scale, MIN_WIDTH);
    f->num_elements++;
    f->is_used[box->class_idx] = true;
    f->has_lag = f->has_lag || box->is_lagged;
    if (f->out == NULL) {
        return;
    }
    /* A line of background between two boxes keeps equal neighbours apart. */
    const double shown = width > 3.0 ? width - 0.6 : width;
    lgi_text_addf(f->out,
                  "<rect class=\"k%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">",
                  box->class_idx, x, y, shown, height);
    draw_title(f, timeline, box);
    lgi_text_add(f->out, "</rect>\n");
    if (box->is_lagged && width > 1.0) {
        lgi_text_addf(
            f->out, "<rect class=\"lag\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
            x, y + height * 0.75, shown, height * 0.25);
    }
    if (height >= f->size->row) {
        draw_label(f, box, x, shown, y);
    }
}

/* Draws boxes from left to right, narrow neighbours together. */
struct merger {
    struct box box;
};

static void flush(struct frame *f, const lg_timeline *timeline, struct merger *m, double y,
                  double height)
{
    if (m->box.num_ops > 0) {
        draw_box(f, timeline, &m->box, y, height);
    }
    m->box.num_ops = 0;
}

static void put(struct frame *f, const lg_timeline *timeline, struct merger *m,
                const struct box *box, double y, double height)
{
    if ((box->end_ns - box->begin_ns) * f->scale >= f->threshold) {
        flush(f, timeline, m, y, height);
        draw_box(f, timeline, box, y, height);
        return;
    }
    if (m->box.num_ops > 0 && (box->end_ns - m->box.begin_ns) * f->scale > f->threshold) {
        flush(f, timeline, m, y, height);
    }
    if (m->box.num_ops == 0) {
        m->box = *box;
        return;
    }
    m->box.num_ops += box->num_ops;
    m->box.end_ns = fmax(m->box.end_ns, box->end_ns);
    m->box.is_merged = true;
}

/* --- a rank ------------------------------------------------------------------------------------------------------------- */

/* Pieces of one backward: they become one box if input and weight gradients take turns more than once. */
struct backward {
    int num_ops;
    int num_turns;
    struct box pieces[2]; /* the first turn and all that follow */
};

static bool is_same_unit(const struct frame *f, const struct box *a, const struct box *b)
{
    return a->stage == b->stage && a->micro_batch == b->micro_batch && a->step == b->step &&
           a->micro_batch >= 0 && (b->begin_ns - a->end_ns) * f->scale < GAP_PIXELS;
}

static void extend(struct box *box, const struct box *more)
{
    box->num_ops += more->num_ops;
    box->end_ns = fmax(box->end_ns, more->end_ns);
}

static void flush_unit(struct frame *f, const lg_timeline *timeline, struct merger *m,
                       struct backward *unit, double y)
{
    if (unit->num_turns > 2) {
        extend(&unit->pieces[0], &unit->pieces[1]);
        unit->pieces[0].class_idx = LGI_CLASS_JOINT;
        put(f, timeline, m, &unit->pieces[0], y, f->size->row);
    } else {
        for (int i = 0; i < unit->num_turns; i++) {
            put(f, timeline, m, &unit->pieces[i], y, f->size->row);
        }
    }
    unit->num_turns = 0;
}

/* Adds an op's box to the unit, or begins another. */
static void add_to_unit(struct frame *f, const lg_timeline *timeline, struct merger *m,
                        struct backward *unit, const struct box *box, double y)
{
    struct box *const last =
        unit->num_turns > 0 ? &unit->pieces[unit->num_turns > 1 ? 1 : 0] : NULL;
    const bool is_more = last != NULL && (is_same_unit(f, last, box) ||
                                          (box->micro_batch < 0 && last->micro_batch < 0 &&
                                           box->class_idx == last->class_idx &&
                                           (box->begin_ns - last->end_ns) * f->scale < GAP_PIXELS));
    if (is_more && last->class_idx == box->class_idx) {
        extend(last, box);
        return;
    }
    if (is_more && is_backward(last->class_idx) && is_backward(box->class_idx)) {
        if (unit->num_turns == 1) {
            unit->pieces[1] = *box;
        } else {
            extend(last, box);
            last->class_idx = box->class_idx; /* whose turn it is */
        }
        unit->num_turns++;
        return;
    }
    flush_unit(f, timeline, m, unit, y);
    unit->pieces[0] = *box;
    unit->num_turns = 1;
}

static struct box box_of(const struct frame *f, const lg_span *span)
{
    const lg_op_info *const op = lg_graph_op(f->picture->graph, span->op);
    return (struct box){.num_ops = 1,
                        .class_idx = class_of(f, span->op),
                        .stage = op->stage,
                        .micro_batch = op->micro_batch,
                        .step = span->step,
                        .is_lagged = f->picture->lag[span->op] > 0,
                        .begin_ns = span->start_ns,
                        .end_ns = span->end_ns,
                        .first_op = span->op};
}

static double busy_inside(const lg_timeline *timeline, const lg_span *span)
{
    return fmax(fmin(span->end_ns, timeline->end_ns) - fmax(span->start_ns, timeline->begin_ns),
                0.0);
}

/* One compute lane. Returns its busy time. */
static double draw_compute(struct frame *f, const lg_timeline *timeline, int rank, int lane,
                           double y)
{
    struct merger m = {0};
    struct backward unit = {0};
    double busy_ns = 0.0;
    for (int i = f->begin[rank]; i < f->begin[rank + 1]; i++) {
        const lg_span *const span = &timeline->spans[f->spans_of[i]];
        if (span->lane != lane) {
            continue;
        }
        busy_ns += busy_inside(timeline, span);
        if (span->end_ns <= span->start_ns) {
            continue;
        }
        const struct box box = box_of(f, span);
        add_to_unit(f, timeline, &m, &unit, &box, y);
    }
    flush_unit(f, timeline, &m, &unit, y);
    flush(f, timeline, &m, y, f->size->row);
    return busy_ns;
}

static int strip_of(lg_op_kind kind)
{
    return kind == LG_OP_SEND ? STRIP_SEND : kind == LG_OP_RECV ? STRIP_RECV : STRIP_REDUCE;
}

static void draw_strip(struct frame *f, const lg_timeline *timeline, int rank, int strip, double y)
{
    struct merger m = {0};
    for (int i = f->begin[rank]; i < f->begin[rank + 1]; i++) {
        const lg_span *const span = &timeline->spans[f->spans_of[i]];
        const lg_lane *const lane = &f->picture->plan->lanes[span->lane];
        if (lane->kind != LG_LANE_COMM ||
            strip_of(lg_graph_op(f->picture->graph, span->op)->kind) != strip) {
            continue;
        }
        const struct box box = box_of(f, span);
        put(f, timeline, &m, &box, y, f->size->strip);
    }
    flush(f, timeline, &m, y, f->size->strip);
}

/* Live bytes as a step line; what falls into one pixel is drawn at its highest. */
static int64_t draw_memory(const struct frame *f, const lg_timeline *timeline, int rank, double y)
{
    lgi_text *const out = f->out;
    const double bottom = y + f->size->memory;
    const double unit = (f->size->memory - 1.0) / (f->max_bytes > 0 ? (double)f->max_bytes : 1.0);
    double column = -1.0;
    int64_t highest = 0; /* of the column */
    int64_t last = 0;
    int64_t peak = 0;
    for (int i = 0; i < timeline->num_memory_points; i++) {
        const lg_memory_point *const point = &timeline->memory_points[i];
        if (!lgi_memory_point_is_shown(timeline, point, rank)) {
            continue;
        }
        const double x = floor(to_x(f, timeline, point->time_ns));
        peak = point->bytes > peak ? point->bytes : peak;
        if (column < 0.0) {
            lgi_text_addf(out, "<path class=\"m\" d=\"M%.0f %.1f", x, bottom);
            column = x;
            highest = point->bytes;
        } else if (x > column) {
            lgi_text_addf(out, "V%.1f", bottom - unit * (double)highest);
            if (last != highest && x > column + 1.0) {
                lgi_text_addf(out, "h1V%.1f", bottom - unit * (double)last);
            }
            lgi_text_addf(out, "H%.0f", x);
            column = x;
            highest = point->bytes;
        }
        highest = point->bytes > highest ? point->bytes : highest;
        last = point->bytes;
    }
    if (column >= 0.0) {
        const double end_x = fmax(to_x(f, timeline, timeline->end_ns), column);
        lgi_text_addf(out, "V%.1fH%.1fV%.1fZ\"/>\n", bottom - unit * (double)highest, end_x,
                      bottom);
    }
    return peak;
}

static int num_compute_lanes(const lgi_picture *picture, int rank)
{
    int num = 0;
    for (int lane = 0; lane < picture->plan->num_lanes; lane++) {
        num += picture->plan->lanes[lane].rank == rank &&
               picture->plan->lanes[lane].kind == LG_LANE_COMPUTE;
    }
    return num;
}

static double rank_height(const struct frame *f, int rank)
{
    double height = num_compute_lanes(f->picture, rank) * (f->size->row + 1.0) + f->size->gap;
    for (int strip = 0; strip < NUM_STRIPS; strip++) {
        height += f->has_strip[strip] ? f->size->strip + 1.0 : 0.0;
    }
    return height + (f->has_memory ? f->size->memory + 1.0 : 0.0);
}

static void draw_right(const struct frame *f, double y, const char *text)
{
    lgi_text_addf(f->out, "<text class=\"r\" x=\"%.0f\" y=\"%.1f\">%s</text>\n", LEFT + PLOT + 6.0,
                  y + f->size->font * 0.85, text);
}

static void draw_rank(struct frame *f, const lg_timeline *timeline, int rank, double y)
{
    const struct size *const size = f->size;
    char text[64];
    char bytes[32];
    double busy_ns = 0.0;
    const int num_lanes = num_compute_lanes(f->picture, rank);
    const double top = y;
    for (int lane = 0; lane < f->picture->plan->num_lanes; lane++) {
        const lg_lane *const queue = &f->picture->plan->lanes[lane];
        if (queue->rank != rank || queue->kind != LG_LANE_COMPUTE) {
            continue;
        }
        if (f->out != NULL) {
            lgi_text_addf(
                f->out,
                "<rect class=\"l\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\"/>\n",
                to_x(f, timeline, timeline->begin_ns), y,
                (timeline->end_ns - timeline->begin_ns) * f->scale, size->row);
        }
        busy_ns += draw_compute(f, timeline, rank, lane, y);
        y += size->row + 1.0;
    }
    for (int strip = 0; strip < NUM_STRIPS; strip++) {
        if (f->has_strip[strip]) {
            draw_strip(f, timeline, rank, strip, y);
            y += size->strip + 1.0;
        }
    }
    if (f->out == NULL) {
        return;
    }
    lgi_text_addf(f->out, "<text class=\"n\" x=\"%.0f\" y=\"%.1f\">rank %d</text>\n", LEFT - 8.0,
                  top + size->row / 2.0 + size->font * 0.35, rank);
    const int64_t peak = f->has_memory ? draw_memory(f, timeline, rank, y) : 0;
    const double step_ns = timeline->step_ns * (num_lanes > 0 ? num_lanes : 1);
    const double busy = step_ns > 0.0 ? 100.0 * busy_ns / step_ns : 0.0;
    (void)snprintf(text, sizeof text, "%.1f %% busy%s%s", busy, peak > 0 ? ", " : "",
                   peak > 0 ? lgi_format_bytes((double)peak, bytes, sizeof bytes) : "");
    draw_right(f, top, text);
}

/* --- the picture -------------------------------------------------------------------------------------------------------- */

static double panel_height(const struct frame *f)
{
    double height = 0.0;
    for (int rank = 0; rank < f->picture->plan->num_ranks; rank++) {
        height += rank_height(f, rank);
    }
    return height;
}

static void draw_axis(const struct frame *f, const lg_timeline *timeline, double y, double height)
{
    const double step = lgi_nice_step(f->high_ns - f->low_ns, 10);
    const double first = ceil(f->low_ns / step - 1e-9) * step;
    char text[32];
    for (int i = 0; i <= 30; i++) {
        const double time_ns = first + i * step;
        if (time_ns > f->high_ns * (1.0 + 1e-9) + 1e-9) {
            break;
        }
        const double x = LEFT + (time_ns - f->low_ns) * f->scale;
        const bool is_zero = fabs(time_ns) < step * 1e-6;
        lgi_text_addf(f->out,
                      "<path class=\"g\" d=\"M%.1f %.0fv%.0f\"/><text class=\"t\" x=\"%.1f\" "
                      "y=\"%.0f\">%s</text>\n",
                      x, y, height + 4.0, x, y + height + 18.0,
                      is_zero ? "0" : lgi_format_ns(time_ns, text, sizeof text));
    }
    for (int i = 0; i < 2; i++) {
        lgi_text_addf(f->out, "<path class=\"s\" d=\"M%.1f %.0fv%.0f\"/>\n",
                      to_x(f, timeline, i == 0 ? timeline->begin_ns : timeline->end_ns), y - 4.0,
                      height + 8.0);
    }
}

/* Spans by rank: each rank is drawn by itself. */
static lg_status sort_spans(struct frame *f, const lg_timeline *timeline)
{
    const int num_ranks = f->picture->plan->num_ranks;
    lgi_free(f->begin);
    lgi_free(f->spans_of);
    f->begin = NULL;
    f->spans_of = NULL;
    LG_TRY(lgi_calloc(&f->begin, (size_t)num_ranks + 2, sizeof *f->begin));
    LG_TRY(lgi_calloc(&f->spans_of, (size_t)timeline->num_spans + 1, sizeof *f->spans_of));
    for (int i = 0; i < timeline->num_spans; i++) {
        f->begin[f->picture->plan->lanes[timeline->spans[i].lane].rank + 2]++;
    }
    for (int rank = 0; rank <= num_ranks; rank++) {
        f->begin[rank + 1] += f->begin[rank];
    }
    for (int i = 0; i < timeline->num_spans; i++) {
        const int rank = f->picture->plan->lanes[timeline->spans[i].lane].rank;
        f->spans_of[f->begin[rank + 1]++] = i;
    }
    return LG_OK;
}

static void draw_ranks(struct frame *f, const lg_timeline *timeline, double y)
{
    for (int rank = 0; rank < f->picture->plan->num_ranks; rank++) {
        draw_rank(f, timeline, rank, y);
        y += rank_height(f, rank);
    }
}

static lg_status draw_panel(struct frame *f, const lg_timeline_panel *panel, double y)
{
    char text[32];
    const lg_timeline *const timeline = panel->timeline;
    LG_TRY(sort_spans(f, timeline));
    if (f->out != NULL) {
        lgi_text_addf(f->out, "<text class=\"h\" x=\"%.0f\" y=\"%.0f\">", MARGIN, y + 16.0);
        lgi_text_add_escaped_cut(f->out, panel->label, 100);
        lgi_text_addf(f->out, "<tspan class=\"d\" dx=\"10\">step %s \xc2\xb7 %d ops",
                      lgi_format_ns(timeline->step_ns, text, sizeof text), timeline->num_spans);
        if (f->has_memory) {
            lgi_text_addf(f->out, " \xc2\xb7 live bytes up to %s",
                          lgi_format_bytes((double)f->max_bytes, text, sizeof text));
        }
        lgi_text_add(f->out, "</tspan></text>\n");
        draw_axis(f, timeline, y + PANEL_HEAD, panel_height(f));
    }
    draw_ranks(f, timeline, y + PANEL_HEAD);
    return LG_OK;
}

/* Range of time and bytes, and which rows there are. */
static void measure(struct frame *f)
{
    double low = 0.0;
    double high = 0.0;
    for (int p = 0; p < f->picture->num_panels; p++) {
        const lg_timeline *const timeline = f->picture->panels[p].timeline;
        high = fmax(high, timeline->end_ns - timeline->begin_ns);
        for (int i = 0; i < timeline->num_spans; i++) {
            const lg_span *const span = &timeline->spans[i];
            low = fmin(low, span->start_ns - timeline->begin_ns);
            high = fmax(high, span->end_ns - timeline->begin_ns);
            if (f->picture->plan->lanes[span->lane].kind == LG_LANE_COMM &&
                span->end_ns > span->start_ns) {
                f->has_strip[strip_of(lg_graph_op(f->picture->graph, span->op)->kind)] = true;
            }
        }
        for (int i = 0; i < timeline->num_memory_points; i++) {
            const int64_t bytes = timeline->memory_points[i].bytes;
            f->max_bytes = bytes > f->max_bytes ? bytes : f->max_bytes;
            f->has_memory = true;
        }
    }
    f->low_ns = low;
    f->high_ns = high > low ? high : low + 1.0;
    f->scale = PLOT / (f->high_ns - f->low_ns);
    f->size = &sizes[0];
    while (f->picture->plan->num_ranks > f->size->max_ranks) {
        f->size++;
    }
}

static lg_status find_threshold(struct frame *f)
{
    f->threshold = FIRST_THRESHOLD;
    for (int round = 0; round < 12; round++) {
        f->num_elements = 0;
        for (int p = 0; p < f->picture->num_panels; p++) {
            LG_TRY(draw_panel(f, &f->picture->panels[p], 0.0));
        }
        if (f->num_elements <= MAX_ELEMENTS) {
            break;
        }
        f->threshold *= 1.5;
    }
    return LG_OK;
}

static double draw_legend(const struct frame *f, double y)
{
    static const struct {
        int class_idx;
        const char *name;
    } entries[] = {{LG_OP_FORWARD, "F forward"},
                   {LGI_CLASS_JOINT, "B input and weight gradients"},
                   {LG_OP_INPUT_GRAD, "I input gradient"},
                   {LG_OP_WEIGHT_GRAD, "W weight gradient"},
                   {LG_OP_UPDATE, "update"},
                   {LG_OP_GRAD_STAT, "gradient norm"},
                   {LG_OP_REORDER, "reorder"},
                   {LG_OP_SEND, "send"},
                   {LG_OP_RECV, "receive"},
                   {LG_OP_ALL_REDUCE, "all-reduce"}};
    double x = MARGIN;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (!f->is_used[entries[i].class_idx]) {
            continue;
        }
        lgi_text_addf(f->out,
                      "<rect class=\"k%d\" x=\"%.0f\" y=\"%.0f\" width=\"16\" height=\"12\"/><text "
                      "x=\"%.0f\" y=\"%.0f\">%s</text>\n",
                      entries[i].class_idx, x, y, x + 22.0, y + 11.0, entries[i].name);
        x += 38.0 + 6.4 * (double)strlen(entries[i].name);
    }
    const char *const rest = f->has_lag ? "hatched: of the step before \xc2\xb7 dashed: the step's "
                                          "begin and end \xc2\xb7 numbers: micro-batches"
                                        : "dashed: the step's begin and end \xc2\xb7 numbers: "
                                          "micro-batches";
    lgi_text_addf(f->out, "<text class=\"d\" x=\"%.0f\" y=\"%.0f\">%s</text>\n", x + 6.0, y + 11.0,
                  rest);
    return LEGEND_ROW + 6.0;
}

static lg_status draw(struct frame *f, lgi_text *out, const char *title, bool is_standalone)
{
    measure(f);
    LG_TRY(find_threshold(f));
    const lgi_picture *const picture = f->picture;
    const double one = PANEL_HEAD + panel_height(f) + AXIS_HEIGHT + PANEL_GAP;
    double y = is_standalone ? MARGIN : 4.0;
    const double title_height = title != NULL ? 30.0 : 0.0;
    const double height = y + title_height + LEGEND_ROW + 6.0 + picture->num_panels * one;
    f->out = out;
    lgi_text_addf(out,
                  "<svg class=\"tl\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f "
                  "%.0f\" role=\"img\" aria-label=\"timeline\"",
                  WIDTH, height);
    if (is_standalone) {
        lgi_text_addf(out, " width=\"%.0f\" height=\"%.0f\"", WIDTH, height);
    }
    lgi_text_add(out, ">\n");
    lgi_timeline_style(out, is_standalone);
    lgi_text_addf(out, "<style>.tl .b{font-size:%.0fpx}.tl .n{font-size:%.0fpx}</style>\n",
                  f->size->font, f->size->font);
    if (title != NULL) {
        lgi_text_addf(out, "<text class=\"H\" x=\"%.0f\" y=\"%.0f\">", MARGIN, y + 18.0);
        lgi_text_add_escaped_cut(out, title, 160);
        lgi_text_add(out, "</text>\n");
    }
    y += title_height;
    y += draw_legend(f, y);
    for (int p = 0; p < picture->num_panels; p++) {
        LG_TRY(draw_panel(f, &picture->panels[p], y));
        y += one;
    }
    lgi_text_add(out, "</svg>\n");
    return lgi_text_status(out);
}

lg_status lgi_timeline_ranks_svg(lgi_text *out, const lgi_picture *picture, const char *title,
                                 bool is_standalone)
{
    struct frame frame = {.picture = picture};
    const lg_status status = draw(&frame, out, title, is_standalone);
    lgi_free(frame.begin);
    lgi_free(frame.spans_of);
    return status;
}
