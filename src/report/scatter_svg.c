/* Plans as points: time against memory. Points have numbers and a list beside them, so that names never cover each other. */
#include <math.h>

#include "base/check.h"
#include "report/picture.h"

#define WIDTH 1100.0
#define LEFT 84.0
#define TOP 62.0
#define PLOT_WIDTH 600.0
#define PLOT_HEIGHT 420.0
#define LIST_X (LEFT + PLOT_WIDTH + 36.0)
#define LIST_ROW 20.0
#define RADIUS 9.0
#define BESIDE (1.7 * RADIUS)
#define ROOM_FRAC 0.08 /* of the range, kept free on each side */
#define MAX_NAME_CHARS 34

struct range {
    double low;
    double high;
};

static struct range widen(double low, double high)
{
    const double room = high > low ? (high - low) * ROOM_FRAC : fabs(high) * ROOM_FRAC + 1.0;
    return (struct range){low - room > 0.0 ? low - room : 0.0, high + room};
}

static double to_x(const struct range *bytes, double value)
{
    return LEFT + (value - bytes->low) / (bytes->high - bytes->low) * PLOT_WIDTH;
}

static double to_y(const struct range *ns, double value)
{
    return TOP + PLOT_HEIGHT - (value - ns->low) / (ns->high - ns->low) * PLOT_HEIGHT;
}

/* Whether no other point is at most as slow and as large, and better in one. */
static bool is_best(const lg_scatter_point *points, int num, int idx)
{
    for (int i = 0; i < num; i++) {
        const bool is_no_worse = points[i].step_ns <= points[idx].step_ns &&
                                 points[i].peak_bytes <= points[idx].peak_bytes;
        const bool is_better = points[i].step_ns < points[idx].step_ns ||
                               points[i].peak_bytes < points[idx].peak_bytes;
        if (i != idx && is_no_worse && is_better) {
            return false;
        }
    }
    return true;
}

static void draw_axes(lgi_text *out, const struct range *bytes, const struct range *ns)
{
    char text[32];
    lgi_text_addf(out, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" class=\"l\"/>\n",
                  LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT);
    /* Ticks at round numbers of the unit that bytes are written in. */
    const double unit = pow(1024.0, fmax(floor(log2(fmax(bytes->high, 1.0)) / 10.0), 0.0));
    const double byte_step = lgi_nice_step((bytes->high - bytes->low) / unit, 6) * unit;
    for (int i = 0; i < 30; i++) {
        const double value = (ceil(bytes->low / byte_step) + i) * byte_step;
        if (value > bytes->high) {
            break;
        }
        lgi_text_addf(out,
                      "<path class=\"g\" d=\"M%.1f %.0fv%.0f\"/><text class=\"t\" x=\"%.1f\" "
                      "y=\"%.0f\">%s</text>\n",
                      to_x(bytes, value), TOP, PLOT_HEIGHT, to_x(bytes, value),
                      TOP + PLOT_HEIGHT + 16.0, lgi_format_bytes(value, text, sizeof text));
    }
    const double ns_step = lgi_nice_step(ns->high - ns->low, 6);
    for (int i = 0; i < 30; i++) {
        const double value = (ceil(ns->low / ns_step) + i) * ns_step;
        if (value > ns->high) {
            break;
        }
        lgi_text_addf(out,
                      "<path class=\"g\" d=\"M%.0f %.1fh%.0f\"/><text class=\"r\" "
                      "text-anchor=\"end\" x=\"%.0f\" y=\"%.1f\">%s</text>\n",
                      LEFT, to_y(ns, value), PLOT_WIDTH, LEFT - 8.0, to_y(ns, value) + 4.0,
                      lgi_format_ns(value, text, sizeof text));
    }
    lgi_text_addf(out, "<text class=\"t\" x=\"%.0f\" y=\"%.0f\">largest peak of a rank</text>\n",
                  LEFT + PLOT_WIDTH / 2.0, TOP + PLOT_HEIGHT + 36.0);
    lgi_text_addf(out, "<text class=\"r\" x=\"%.0f\" y=\"%.0f\">step</text>\n", LEFT - 40.0,
                  TOP - 8.0);
}

/* The staircase of the best points, by rising bytes. */
static void draw_front(lgi_text *out, const lg_scatter_point *points, int num,
                       const struct range *bytes, const struct range *ns)
{
    double last_bytes = -1.0;
    double last_ns = 0.0;
    bool is_open = false;
    while (true) {
        int next = -1;
        for (int i = 0; i < num; i++) {
            if (is_best(points, num, i) && points[i].peak_bytes > last_bytes &&
                (next < 0 || points[i].peak_bytes < points[next].peak_bytes)) {
                next = i;
            }
        }
        if (next < 0) {
            break;
        }
        const double x = to_x(bytes, points[next].peak_bytes);
        const double y = to_y(ns, points[next].step_ns);
        if (is_open) {
            lgi_text_addf(out, "L%.1f %.1fL%.1f %.1f", x, to_y(ns, last_ns), x, y);
        } else {
            lgi_text_addf(out, "<path class=\"s\" d=\"M%.1f %.1f", x, y);
        }
        is_open = true;
        last_bytes = points[next].peak_bytes;
        last_ns = points[next].step_ns;
    }
    if (is_open) {
        lgi_text_add(out, "\"/>\n");
    }
}

/* How many better ones have their dots in this one's place; it goes beside them. */
static int num_hidden(const lg_scatter_point *points, int idx, const struct range *bytes,
                      const struct range *ns)
{
    int num = 0;
    for (int i = 0; i < idx; i++) {
        const double dx = to_x(bytes, points[i].peak_bytes) - to_x(bytes, points[idx].peak_bytes);
        const double dy = to_y(ns, points[i].step_ns) - to_y(ns, points[idx].step_ns);
        num += hypot(dx, dy) < RADIUS ? 1 : 0;
    }
    return num;
}

static void draw_points(lgi_text *out, const lg_scatter_point *points, int num,
                        const struct range *bytes, const struct range *ns)
{
    char took[32];
    char peak[32];
    lgi_text_addf(out,
                  "<text class=\"r\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">step</text><text "
                  "class=\"r\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">peak</text>\n",
                  LIST_X + 280.0, TOP - 2.0, LIST_X + 356.0, TOP - 2.0);
    for (int i = num - 1; i >= 0; i--) { /* the first ones on top */
        const double x =
            to_x(bytes, points[i].peak_bytes) + num_hidden(points, i, bytes, ns) * BESIDE;
        const double y = to_y(ns, points[i].step_ns);
        const double row = TOP + 16.0 + i * LIST_ROW;
        const int class_idx = is_best(points, num, i) ? (int)LG_OP_INPUT_GRAD : (int)LG_OP_FORWARD;
        (void)lgi_format_ns(points[i].step_ns, took, sizeof took);
        (void)lgi_format_bytes(points[i].peak_bytes, peak, sizeof peak);
        lgi_text_addf(out, "<circle class=\"k%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.0f\"><title>",
                      class_idx, x, y, RADIUS);
        lgi_text_add_escaped_cut(out, points[i].label, 80);
        lgi_text_addf(out,
                      "\n%s, %s</title></circle><text class=\"b i%d\" x=\"%.1f\" "
                      "y=\"%.1f\">%d</text>\n",
                      took, peak, class_idx, x, y + 4.0, i + 1);
        lgi_text_addf(
            out,
            "<circle class=\"k%d\" cx=\"%.0f\" cy=\"%.0f\" r=\"8\"/><text class=\"b i%d\" "
            "x=\"%.0f\" y=\"%.0f\">%d</text><text x=\"%.0f\" y=\"%.0f\">",
            class_idx, LIST_X, row - 4.0, class_idx, LIST_X, row, i + 1, LIST_X + 16.0, row);
        lgi_text_add_escaped_cut(out, points[i].label, MAX_NAME_CHARS);
        lgi_text_addf(out,
                      "</text><text class=\"r\" text-anchor=\"end\" x=\"%.0f\" y=\"%.0f\">%s</text>"
                      "<text class=\"r\" text-anchor=\"end\" x=\"%.0f\" y=\"%.0f\">%s</text>\n",
                      LIST_X + 280.0, row, took, LIST_X + 356.0, row, peak);
    }
}

lg_status lg_scatter_save_svg(const char *path, const char *title, const lg_scatter_point *points,
                              int num_points)
{
    lgi_text out = {0};
    struct range bytes = {INFINITY, 0.0};
    struct range ns = {INFINITY, 0.0};
    for (int i = 0; i < num_points; i++) {
        if (!isfinite(points[i].step_ns) || !isfinite(points[i].peak_bytes)) {
            LG_FAIL(LG_INVALID_ARG, "point %d ('%.80s'): %g ns, %g bytes", i, points[i].label,
                    points[i].step_ns, points[i].peak_bytes);
        }
        bytes.low = fmin(bytes.low, points[i].peak_bytes);
        bytes.high = fmax(bytes.high, points[i].peak_bytes);
        ns.low = fmin(ns.low, points[i].step_ns);
        ns.high = fmax(ns.high, points[i].step_ns);
    }
    bytes = widen(num_points > 0 ? bytes.low : 0.0, bytes.high);
    ns = widen(num_points > 0 ? ns.low : 0.0, ns.high);
    const double list_height = TOP + 30.0 + num_points * LIST_ROW;
    const double height = fmax(TOP + PLOT_HEIGHT + 56.0, list_height);
    lgi_text_addf(&out,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg class=\"tl\" "
                  "xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
                  "height=\"%.0f\" role=\"img\" aria-label=\"time against memory\">\n",
                  WIDTH, height, WIDTH, height);
    lgi_timeline_style(&out, true);
    lgi_text_add(&out, "<text class=\"H\" x=\"16\" y=\"30\">");
    lgi_text_add_escaped_cut(&out, title, 120);
    lgi_text_add(&out, "</text>\n");
    draw_axes(&out, &bytes, &ns);
    draw_front(&out, points, num_points, &bytes, &ns);
    draw_points(&out, points, num_points, &bytes, &ns);
    lgi_text_add(&out, "</svg>\n");
    const lg_status status = lgi_text_save(&out, path);
    lgi_text_deinit(&out);
    return status;
}
