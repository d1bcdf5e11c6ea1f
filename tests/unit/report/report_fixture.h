/* A run that never was: a chain of layers, a plan by hand on two lanes, timelines by list scheduling. */
#ifndef REPORT_FIXTURE_H
#define REPORT_FIXTURE_H

#include "leapgrad/report.h"

typedef struct report_run {
    lg_model *model;
    lg_graph *graph;
    lg_plan plan;
    lg_timeline planned;
    lg_timeline measured; /* the same with noise */
} report_run;

/* `num_layers` convolutions with ReLU; some updates lag. Aborts the test on failure. */
void report_run_make(report_run *run, int num_layers, int num_micro_batches);
void report_run_free(report_run *run);

/* Reads a whole file; the caller frees it by lgi_free(). */
char *report_read_file(const char *path, size_t *num_bytes);

/* Fails the test unless the text is well-formed XML: every tag closed in order, every entity known, UTF-8. */
void report_assert_well_formed(const char *text, size_t num_bytes);

/* How often `word` stands in `text`. */
size_t report_count(const char *text, const char *word);

#endif
