/*
 * What all renderings of timelines share: panels that are checked once, and for each op its lag, its label and its
 * colour class.
 */
#ifndef LGI_REPORT_PICTURE_H
#define LGI_REPORT_PICTURE_H

#include "leapgrad/report.h"
#include "report/text_buffer.h"

/* Op kinds, and one more for input gradients that make the weight gradient too. */
enum { LGI_CLASS_JOINT = LG_NUM_OP_KINDS, LGI_NUM_CLASSES };

/* How a class looks; `css` is its name in style sheets ("k3"). */
typedef struct lgi_class_look {
    const char *fill;
    const char *ink; /* text on it */
} lgi_class_look;

const lgi_class_look *lgi_class_look_of(int class_idx);
/* "forward", ..., "input + weight grad" */
const char *lgi_class_name(int class_idx);

typedef struct lgi_picture {
    const lg_graph *graph;
    const lg_plan *plan;
    const lg_timeline_panel *panels;
    int num_panels;
    int num_ops;
    int *lag;         /* by op */
    char **labels;    /* by op: layer or value */
    int num_rows;     /* lanes, by rank, compute lanes first */
    int *lane_of_row; /* index into the plan's lanes */
} lgi_picture;

/* INVALID_ARG if a span has an op or a lane that graph or plan lack, or times that are not finite and in order. */
LG_NODISCARD lg_status lgi_picture_init(lgi_picture *out, const lg_graph *graph,
                                        const lg_plan *plan, const lg_timeline_panel *panels,
                                        int num_panels);
void lgi_picture_deinit(lgi_picture *picture);

int lgi_picture_class(const lgi_picture *picture, int op);

/* "lane 0 (cores 0-1)", with the rank if there are several. */
void lgi_picture_lane_name(const lgi_picture *picture, int lane, char *text, size_t text_bytes);

/* Whether the point belongs to the rank's curve: one at the very end only says that the picture is over. */
bool lgi_memory_point_is_shown(const lg_timeline *timeline, const lg_memory_point *point, int rank);

/* "1.23 ms", "45 us" with the right sign; "12.3 MiB". */
/*
 * What busy times are parts of: the width of the picture or, if it shows several ranks, whose iterations begin at different times, the
 * step.
 */
double lgi_picture_step_ns(const lgi_picture *picture, const lg_timeline *timeline);

const char *lgi_format_ns(double ns, char *text, size_t text_bytes);
const char *lgi_format_bytes(double bytes, char *text, size_t text_bytes);

/* The largest of 1, 2, 5 times a power of ten that divides `range` into at least `num_parts` / 2.5 parts. */
double lgi_nice_step(double range, int num_parts);

/* The style of pictures of timelines; everything is below .tl, so that it can stand in a page. */
void lgi_timeline_style(lgi_text *out, bool is_standalone);

/* lgi_timeline_svg() for several ranks. */
LG_NODISCARD lg_status lgi_timeline_ranks_svg(lgi_text *out, const lgi_picture *picture,
                                              const char *title, bool is_standalone);

/* Draws into `out`. Standalone: a whole SVG file with background; else an element for an HTML page. */
LG_NODISCARD lg_status lgi_timeline_svg(lgi_text *out, const lgi_picture *picture,
                                        const char *title, bool is_standalone);

#endif
