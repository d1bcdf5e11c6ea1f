/*
 * Timelines for other tools: the Trace Event Format of chrome://tracing (complete events, "ph": "X"; also read by
 * ui.perfetto.dev), and CSV. Source: "Trace Event Format", Google, docs of the Catapult project.
 */
#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "report/picture.h"

/* --- trace ------------------------------------------------------------------------------------------------------- */

/* Adds an event and takes it over. NULL: it could not be made. */
static lg_status add_event(lgi_text *out, json_t *event)
{
    char *const text = event != NULL ? json_dumps(event, JSON_COMPACT) : NULL;
    json_decref(event);
    if (text == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory, or text that is not UTF-8, in a trace");
    }
    lgi_text_add(out, out->data != NULL && out->data[out->num_bytes - 1] != '[' ? ",\n" : "\n");
    lgi_text_add(out, text);
    free(text);
    return lgi_text_status(out);
}

/* A process for each panel and rank, so that they stand one below the other. */
static int process_id(const lgi_picture *picture, int panel, int rank)
{
    return panel * picture->plan->num_ranks + rank + 1;
}

/* An arrow from what is sent to where it is received: between the two spans of a message, which have one number. */
static lg_status add_flow(lgi_text *out, const lgi_picture *picture, const lg_span *span, int panel,
                          double begin_ns)
{
    const lg_op_info *const op = lg_graph_op(picture->graph, span->op);
    if (op->group < 0 || (op->kind != LG_OP_SEND && op->kind != LG_OP_RECV)) {
        return LG_OK;
    }
    const bool is_send = op->kind == LG_OP_SEND;
    const double middle_ns = (span->start_ns + span->end_ns) / 2.0;
    char id[64];
    (void)snprintf(id, sizeof id, "%d.%d.%" PRId64, panel, op->group, span->step);
    return add_event(out,
                     json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:f}", "name", "message", "cat",
                               "message", "ph", is_send ? "s" : "f", "bp", "e", "id", id, "pid",
                               process_id(picture, panel, picture->plan->lanes[span->lane].rank),
                               "tid", span->lane, "ts", (middle_ns - begin_ns) / 1e3));
}

static lg_status add_names(lgi_text *out, const lgi_picture *picture, int panel)
{
    char name[160];
    for (int rank = 0; rank < picture->plan->num_ranks; rank++) {
        (void)snprintf(name, sizeof name, "%.100s, rank %d", picture->panels[panel].label, rank);
        LG_TRY(add_event(out,
                         json_pack("{s:s, s:s, s:i, s:{s:s}}", "name", "process_name", "ph", "M",
                                   "pid", process_id(picture, panel, rank), "args", "name", name)));
    }
    for (int row = 0; row < picture->num_rows; row++) {
        const int lane = picture->lane_of_row[row];
        const int pid = process_id(picture, panel, picture->plan->lanes[lane].rank);
        lgi_picture_lane_name(picture, lane, name, sizeof name);
        LG_TRY(add_event(out, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", "thread_name",
                                        "ph", "M", "pid", pid, "tid", lane, "args", "name", name)));
        LG_TRY(add_event(out,
                         json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "name", "thread_sort_index",
                                   "ph", "M", "pid", pid, "tid", lane, "args", "sort_index", row)));
    }
    return LG_OK;
}

static lg_status add_panel(lgi_text *out, const lgi_picture *picture, int panel)
{
    const lg_timeline *const timeline = picture->panels[panel].timeline;
    LG_TRY(add_names(out, picture, panel));
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        const lg_op_info *const op = lg_graph_op(picture->graph, span->op);
        const int pid = process_id(picture, panel, picture->plan->lanes[span->lane].rank);
        LG_TRY(add_event(
            out,
            json_pack(
                "{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:{s:s, s:s, s:i, s:i, s:I}}", "name",
                op->name, "cat", lgi_class_name(lgi_picture_class(picture, span->op)), "ph", "X",
                "pid", pid, "tid", span->lane, "ts", (span->start_ns - timeline->begin_ns) / 1e3,
                "dur", (span->end_ns - span->start_ns) / 1e3, "args", "layer",
                picture->labels[span->op], "kind", lg_op_kind_name(op->kind), "micro_batch",
                op->micro_batch, "lag", picture->lag[span->op], "step", (json_int_t)span->step)));
        LG_TRY(add_flow(out, picture, span, panel, timeline->begin_ns));
    }
    for (int i = 0; i < timeline->num_memory_points; i++) {
        const lg_memory_point *const point = &timeline->memory_points[i];
        LG_TRY(add_event(out, json_pack("{s:s, s:s, s:i, s:f, s:{s:I}}", "name", "live bytes", "ph",
                                        "C", "pid", process_id(picture, panel, point->rank), "ts",
                                        (point->time_ns - timeline->begin_ns) / 1e3, "args",
                                        "bytes", (json_int_t)point->bytes)));
    }
    return LG_OK;
}

lg_status lg_timeline_save_trace(const char *path, const lg_graph *graph, const lg_plan *plan,
                                 const lg_timeline_panel *panels, int num_panels)
{
    lg_status status = LG_OK;
    lgi_picture picture = {0};
    lgi_text text = {0};
    LG_TRY_GOTO(lgi_picture_init(&picture, graph, plan, panels, num_panels));
    lgi_text_add(&text, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (int panel = 0; panel < num_panels; panel++) {
        LG_TRY_GOTO(add_panel(&text, &picture, panel));
    }
    lgi_text_add(&text, "\n]}\n");
    LG_TRY_GOTO(lgi_text_save(&text, path));
out:
    lgi_text_deinit(&text);
    lgi_picture_deinit(&picture);
    return status;
}

/* --- CSV ---------------------------------------------------------------------------------------------------------- */

lg_status lg_timeline_save_csv(const char *path, const lg_graph *graph, const lg_plan *plan,
                               const lg_timeline_panel *panels, int num_panels)
{
    lg_status status = LG_OK;
    lgi_picture picture = {0};
    lgi_text text = {0};
    LG_TRY_GOTO(lgi_picture_init(&picture, graph, plan, panels, num_panels));
    lgi_text_add(&text, "timeline,op,kind,layer,micro_batch,lag,step,rank,lane,start_ns,end_ns\n");
    for (int panel = 0; panel < num_panels; panel++) {
        const lg_timeline *const timeline = panels[panel].timeline;
        for (int i = 0; i < timeline->num_spans; i++) {
            const lg_span *const span = &timeline->spans[i];
            const lg_op_info *const op = lg_graph_op(graph, span->op);
            lgi_text_add_csv(&text, panels[panel].label);
            lgi_text_add(&text, ",");
            lgi_text_add_csv(&text, op->name);
            lgi_text_addf(&text, ",%s,", lg_op_kind_name(op->kind));
            lgi_text_add_csv(&text, picture.labels[span->op]);
            lgi_text_addf(&text, ",%d,%d,%" PRId64 ",%d,%d,%.1f,%.1f\n", op->micro_batch,
                          picture.lag[span->op], span->step, plan->lanes[span->lane].rank,
                          span->lane, span->start_ns - timeline->begin_ns,
                          span->end_ns - timeline->begin_ns);
        }
    }
    LG_TRY_GOTO(lgi_text_save(&text, path));
out:
    lgi_text_deinit(&text);
    lgi_picture_deinit(&picture);
    return status;
}
