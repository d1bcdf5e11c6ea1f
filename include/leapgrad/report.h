/**
 * What a run leaves for people to read: run.json, metrics.jsonl, timelines as SVG, CSV and Chrome/Perfetto traces, and
 * report.html, one file without outside resources. Formats: docs/formats/run.md.
 *
 * Names and recipes come from files that nobody checked: everything is escaped for where it goes.
 */
#ifndef LEAPGRAD_REPORT_H
#define LEAPGRAD_REPORT_H

#include "leapgrad/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- records ---------------------------------------------------------------------------------------------------- */

/** An ordered set of named values: run.json, or a line of metrics.jsonl. A key that is set again keeps its place. */
typedef struct lg_record lg_record;

LG_API LG_NODISCARD lg_status lg_record_create(lg_record **out);
LG_API void lg_record_destroy(lg_record *record);

/** The setters copy. INVALID_ARG if key or text is not UTF-8. */
LG_API LG_NODISCARD lg_status lg_record_set_i64(lg_record *record, const char *key, int64_t value);
/** JSON has no numbers for NaN and infinity: they are stored as null. */
LG_API LG_NODISCARD lg_status lg_record_set_f64(lg_record *record, const char *key, double value);
LG_API LG_NODISCARD lg_status lg_record_set_bool(lg_record *record, const char *key, bool value);
LG_API LG_NODISCARD lg_status lg_record_set_text(lg_record *record, const char *key,
                                                 const char *text);
/** `json`: any JSON value as text, for example the recipe as an object. INVALID_ARG if it is not JSON. */
LG_API LG_NODISCARD lg_status lg_record_set_json(lg_record *record, const char *key,
                                                 const char *json);

LG_API bool lg_record_has(const lg_record *record, const char *key);
/** NaN if there is no such key or it is no number. */
LG_API double lg_record_number(const lg_record *record, const char *key);
/** NULL if there is no such key or it is no string. Lifetime: until the key is set again or lg_record_destroy(). */
LG_API const char *lg_record_text(const lg_record *record, const char *key);

/** Writes the record as a JSON file: the new one or the old one is there, never half of it. */
LG_API LG_NODISCARD lg_status lg_record_save(const lg_record *record, const char *path);
/** Reads a JSON file that holds an object. */
LG_API LG_NODISCARD lg_status lg_record_load(lg_record **out, const char *path);

/* --- metrics ---------------------------------------------------------------------------------------------------- */

/** metrics.jsonl being written: one JSON object a line, each with "step". */
typedef struct lg_metrics_log lg_metrics_log;

/**
 * Opens for appending. Lines at or after `from_step`, and a last line that was cut short by a crash, are removed first:
 * a resumed run writes them anew. 0 starts an empty file.
 */
LG_API LG_NODISCARD lg_status lg_metrics_log_open(lg_metrics_log **out, const char *path,
                                                  int64_t from_step);
/** Appends a line: "step" and the record's members. It is in the file when the call returns. */
LG_API LG_NODISCARD lg_status lg_metrics_log_append(lg_metrics_log *log, int64_t step,
                                                    const lg_record *record);
LG_API void lg_metrics_log_close(lg_metrics_log *log);

/** The numbers of a metrics.jsonl, by key. */
typedef struct lg_metrics lg_metrics;

/** A key's values over the steps; null is NaN. Lifetime: until lg_metrics_destroy(). */
typedef struct lg_metrics_series {
    const char *key;
    size_t num_points;
    const double *steps;
    const double *values;
} lg_metrics_series;

/** A last line that was cut short is left out; other damage is CORRUPT, with the line. */
LG_API LG_NODISCARD lg_status lg_metrics_load(lg_metrics **out, const char *path);
LG_API void lg_metrics_destroy(lg_metrics *metrics);
LG_API int lg_metrics_num_series(const lg_metrics *metrics);
LG_API const lg_metrics_series *lg_metrics_series_at(const lg_metrics *metrics, int idx);
/** NULL if no line has the key. */
LG_API const lg_metrics_series *lg_metrics_find(const lg_metrics *metrics, const char *key);

/* --- timelines ---------------------------------------------------------------------------------------------------- */

/** A timeline with its caption: "planned", "measured". All of one call are of one plan and drawn to one scale. */
typedef struct lg_timeline_panel {
    const char *label;
    const lg_timeline *timeline;
} lg_timeline_panel;

/**
 * Several ranks: a row for each rank with what it computes, thin rows for what it sends, receives and reduces, its live bytes
 * below; ops of one stage, micro-batch and direction are one box with the micro-batch's number.
 *
 * One rank: draws the panels one below the other: lanes as rows, op kinds by colour with a legend, layers and micro-batches where
 * they fit and as tooltips everywhere, lagged ops hatched, step boundaries, live bytes under each rank. Ops that are
 * too short to see are merged, so that the file stays below 1.5 MB.
 *
 * @param path        The file.
 * @param title       A line above the picture; NULL: none.
 * @param graph       The plan's graph.
 * @param plan        The plan that the timelines are of.
 * @param panels      Borrowed for the call only.
 * @param num_panels  At least 0.
 * @return INVALID_ARG if a timeline has ops or lanes that graph and plan lack; IO.
 */
LG_API LG_NODISCARD lg_status lg_timeline_save_svg(const char *path, const char *title,
                                                   const lg_graph *graph, const lg_plan *plan,
                                                   const lg_timeline_panel *panels, int num_panels);

/** Writes the panels as a trace for chrome://tracing and ui.perfetto.dev: a process a panel and rank, a thread a lane. */
LG_API LG_NODISCARD lg_status lg_timeline_save_trace(const char *path, const lg_graph *graph,
                                                     const lg_plan *plan,
                                                     const lg_timeline_panel *panels,
                                                     int num_panels);

/** Writes the spans of the panels as CSV, a line each. */
LG_API LG_NODISCARD lg_status lg_timeline_save_csv(const char *path, const lg_graph *graph,
                                                   const lg_plan *plan,
                                                   const lg_timeline_panel *panels, int num_panels);

/** A plan as a point: what it takes in time and in memory. */
typedef struct lg_scatter_point {
    const char *label;
    double step_ns;
    double peak_bytes;
} lg_scatter_point;

/**
 * Draws plans as time against memory: numbered points, in the order given, and a list of them beside the picture; those that no other
 * one beats in both are joined by a line. Times and bytes must be finite.
 */
LG_API LG_NODISCARD lg_status lg_scatter_save_svg(const char *path, const char *title,
                                                  const lg_scatter_point *points, int num_points);

/* --- the report --------------------------------------------------------------------------------------------------- */

/**
 * What report.html is made from. Everything but `run` may be NULL (its section is then left out).
 *
 * Keys of `run` that make the headline, each of them optional: steps, loss, test_accuracy (0..1), bits_per_byte,
 * samples_per_s, step_ms_median, predicted_step_ms, planned_peak_bytes, measured_peak_bytes, strategy, lanes,
 * weights_hash, device, seed. All other numbers and texts go to a table.
 *
 * Keys of `metrics` that make the curves: loss and test_loss; accuracy and test_accuracy (0..1); bits_per_byte and
 * test_bits_per_byte; lr; samples_per_s.
 */
typedef struct lg_report_input {
    const char *title;    /* name of the run */
    const lg_record *run; /* as in run.json */
    const lg_metrics *metrics;
    const char *recipe_text; /* the effective recipe as people write it */
    const lg_graph *graph;   /* graph, plan: for the timelines */
    const lg_plan *plan;
    const lg_timeline *planned;
    const lg_timeline *measured;
} lg_report_input;

/** Writes report.html: one file, no outside resources, light and dark, for desktop and phone. */
LG_API LG_NODISCARD lg_status lg_report_save(const lg_report_input *input, const char *path);

#ifdef __cplusplus
}
#endif

#endif
