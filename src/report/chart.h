/* Line charts for report.html: SVG with axes, and the data for the readout under the pointer. */
#ifndef LGI_REPORT_CHART_H
#define LGI_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "report/text_buffer.h"

typedef struct lgi_chart_series {
    const char *label;
    size_t num_points;
    const double *x; /* ascending */
    const double *y; /* what is not finite is a gap, and is counted */
    bool is_step;    /* holds its value until the next point */
    bool is_marked;  /* few points, each with a dot */
} lgi_chart_series;

typedef struct lgi_chart {
    const char *title;
    const char *x_label;
    const char *y_unit; /* behind numbers: " %", "" */
    bool starts_at_zero;
    int num_series;
    const lgi_chart_series *series; /* at most LGI_MAX_CHART_SERIES */
} lgi_chart;

#define LGI_MAX_CHART_SERIES 4

/* Adds a <figure>. Series longer than can be seen are thinned out, keeping their extremes as a band. */
void lgi_chart_add(lgi_text *out, const lgi_chart *chart);

#endif
