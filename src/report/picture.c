#include "report/picture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

/* Colours that people with colour blindness tell apart for the kinds that matter most (after Okabe and Ito). */
static const lgi_class_look looks[LGI_NUM_CLASSES] = {
    [LG_OP_FORWARD] = {"#2f7fc1", "#fff"},     [LG_OP_LOSS] = {"#3d4450", "#fff"},
    [LG_OP_INPUT_GRAD] = {"#1a9a74", "#fff"},  [LG_OP_WEIGHT_GRAD] = {"#eda224", "#2b1d00"},
    [LG_OP_GRAD_ADD] = {"#7cc7ee", "#06283a"}, [LG_OP_GRAD_STAT] = {"#c98bc0", "#2a0f26"},
    [LG_OP_GRAD_CLIP] = {"#8e4f9e", "#fff"},   [LG_OP_RATE] = {"#b8437a", "#fff"},
    [LG_OP_ALL_REDUCE] = {"#d2552b", "#fff"},  [LG_OP_UPDATE] = {"#eee05a", "#2b2700"},
    [LG_OP_SEND] = {"#a5673f", "#fff"},        [LG_OP_RECV] = {"#d19c7c", "#2a1507"},
    [LG_OP_REORDER] = {"#a3a9b3", "#16181c"},  [LGI_CLASS_JOINT] = {"#7fa82d", "#101800"},
};

const lgi_class_look *lgi_class_look_of(int class_idx)
{
    return &looks[class_idx];
}

const char *lgi_class_name(int class_idx)
{
    return class_idx == LGI_CLASS_JOINT ? "input_grad + weight_grad"
                                        : lg_op_kind_name((lg_op_kind)class_idx);
}

int lgi_picture_class(const lgi_picture *picture, int op)
{
    const lg_op_info *const info = lg_graph_op(picture->graph, op);
    return info->is_joint ? LGI_CLASS_JOINT : (int)info->kind;
}

/* --- checks and tables ------------------------------------------------------------------------------------------ */

static lg_status check_panel(const lgi_picture *picture, const lg_timeline_panel *panel)
{
    const lg_timeline *const timeline = panel->timeline;
    if (!isfinite(timeline->begin_ns) || !isfinite(timeline->end_ns)) {
        LG_FAIL(LG_INVALID_ARG, "timeline '%.100s': begin or end is not finite", panel->label);
    }
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        if (span->op < 0 || span->op >= picture->num_ops || span->lane < 0 ||
            span->lane >= picture->plan->num_lanes) {
            LG_FAIL(LG_INVALID_ARG,
                    "timeline '%.100s': span %d: op %d, lane %d: expected ops below %d and lanes "
                    "below %d",
                    panel->label, i, span->op, span->lane, picture->num_ops,
                    picture->plan->num_lanes);
        }
        if (!isfinite(span->start_ns) || !isfinite(span->end_ns) || span->end_ns < span->start_ns) {
            LG_FAIL(LG_INVALID_ARG, "timeline '%.100s': span %d: from %g to %g ns", panel->label, i,
                    span->start_ns, span->end_ns);
        }
    }
    for (int i = 0; i < timeline->num_memory_points; i++) {
        if (!isfinite(timeline->memory_points[i].time_ns)) {
            LG_FAIL(LG_INVALID_ARG, "timeline '%.100s': memory point %d: time is not finite",
                    panel->label, i);
        }
    }
    return LG_OK;
}

/* The layer's name, or what stands in the parentheses of the op's name, without the micro-batch or chunk. */
static lg_status make_label(char **out, const lg_graph *graph, const lg_op_info *op)
{
    const lg_model *const model = lg_graph_model(graph);
    if (model != NULL && op->layer >= 0 && op->layer < lg_model_num_layers(model) &&
        op->kind != LG_OP_REORDER && op->kind != LG_OP_ALL_REDUCE) {
        return lgi_strdup(out, lg_model_layer(model, op->layer)->name);
    }
    const char *const open = strchr(op->name, '(');
    if (open == NULL) {
        return lgi_strdup(out, op->name);
    }
    const char *const comma = strrchr(open, ',');
    const char *const close = strrchr(open, ')');
    const char *const end = comma != NULL ? comma : close != NULL ? close : open + strlen(open);
    return lgi_sprintf(out, "%.*s", (int)(end - open - 1), open + 1);
}

static void find_lags(lgi_picture *picture)
{
    for (int lane = 0; lane < picture->plan->num_lanes; lane++) {
        const lg_lane *const queue = &picture->plan->lanes[lane];
        for (int i = 0; i < queue->num_entries; i++) {
            const lg_plan_entry *const entry = &queue->entries[i];
            if (entry->op >= 0 && entry->op < picture->num_ops) {
                picture->lag[entry->op] = entry->lag;
            }
        }
    }
}

static int compare_rows(const void *a, const void *b, void *lanes)
{
    const int x = *(const int *)a;
    const int y = *(const int *)b;
    const lg_lane *const all = lanes;
    if (all[x].rank != all[y].rank) {
        return all[x].rank < all[y].rank ? -1 : 1;
    }
    if (all[x].kind != all[y].kind) {
        return all[x].kind == LG_LANE_COMPUTE ? -1 : 1;
    }
    return x < y ? -1 : x > y;
}

lg_status lgi_picture_init(lgi_picture *out, const lg_graph *graph, const lg_plan *plan,
                           const lg_timeline_panel *panels, int num_panels)
{
    lg_status status = LG_OK;
    lgi_picture picture = {.graph = graph,
                           .plan = plan,
                           .panels = panels,
                           .num_panels = num_panels,
                           .num_ops = lg_graph_num_ops(graph),
                           .num_rows = plan->num_lanes};
    const size_t num_ops = (size_t)picture.num_ops;
    memset(out, 0, sizeof *out);
    LG_TRY_GOTO(lgi_calloc(&picture.lag, num_ops, sizeof *picture.lag));
    LG_TRY_GOTO(lgi_calloc(&picture.labels, num_ops, sizeof *picture.labels));
    LG_TRY_GOTO(
        lgi_calloc(&picture.lane_of_row, (size_t)picture.num_rows, sizeof *picture.lane_of_row));
    for (int i = 0; i < num_panels; i++) {
        LG_TRY_GOTO(check_panel(&picture, &panels[i]));
    }
    find_lags(&picture);
    for (int op = 0; op < picture.num_ops; op++) {
        LG_TRY_GOTO(make_label(&picture.labels[op], graph, lg_graph_op(graph, op)));
    }
    for (int row = 0; row < picture.num_rows; row++) {
        picture.lane_of_row[row] = row;
    }
    qsort_r(picture.lane_of_row, (size_t)picture.num_rows, sizeof *picture.lane_of_row,
            compare_rows, plan->lanes);
    *out = picture;
    memset(&picture, 0, sizeof picture);
out:
    lgi_picture_deinit(&picture);
    return status;
}

void lgi_picture_deinit(lgi_picture *picture)
{
    for (int op = 0; picture->labels != NULL && op < picture->num_ops; op++) {
        lgi_free(picture->labels[op]);
    }
    lgi_free(picture->labels);
    lgi_free(picture->lag);
    lgi_free(picture->lane_of_row);
    memset(picture, 0, sizeof *picture);
}

bool lgi_memory_point_is_shown(const lg_timeline *timeline, const lg_memory_point *point, int rank)
{
    return point->rank == rank &&
           (point->time_ns < timeline->end_ns || timeline->end_ns <= timeline->begin_ns);
}

/* --- words and numbers ------------------------------------------------------------------------------------------ */

void lgi_picture_lane_name(const lgi_picture *picture, int lane, char *text, size_t text_bytes)
{
    const lg_lane *const queue = &picture->plan->lanes[lane];
    char rank[32] = "";
    char cores[48] = "";
    if (picture->plan->num_ranks > 1) {
        (void)snprintf(rank, sizeof rank, "rank %d ", queue->rank);
    }
    if (queue->kind == LG_LANE_COMM) {
        (void)snprintf(cores, sizeof cores, " (messages)");
    } else if (queue->num_cores == 1) {
        (void)snprintf(cores, sizeof cores, " (core %d)", queue->first_core);
    } else {
        (void)snprintf(cores, sizeof cores, " (cores %d-%d)", queue->first_core,
                       queue->first_core + queue->num_cores - 1);
    }
    (void)snprintf(text, text_bytes, "%slane %d%s", rank, lane, cores);
}

const char *lgi_format_ns(double ns, char *text, size_t text_bytes)
{
    static const struct {
        double ns;
        const char *unit;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "\xc2\xb5s"}, {0.0, "ns"}};
    size_t i = 0;
    while (fabs(ns) < units[i].ns) {
        i++;
    }
    const double value = units[i].ns > 0.0 ? ns / units[i].ns : ns;
    (void)snprintf(text, text_bytes, "%.*f %s",
                   fabs(value) < 10.0    ? 2
                   : fabs(value) < 100.0 ? 1
                                         : 0,
                   value, units[i].unit);
    return text;
}

const char *lgi_format_bytes(double bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;
    while (fabs(bytes) >= 1024.0 && i + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024.0;
        i++;
    }
    (void)snprintf(text, text_bytes, i == 0 ? "%.0f %s" : "%.1f %s", bytes, units[i]);
    return text;
}

double lgi_picture_step_ns(const lgi_picture *picture, const lg_timeline *timeline)
{
    return picture->plan->num_ranks > 1 && timeline->step_ns > 0.0
               ? timeline->step_ns
               : timeline->end_ns - timeline->begin_ns;
}

double lgi_nice_step(double range, int num_parts)
{
    if (!(range > 0.0) || !isfinite(range)) {
        return 1.0;
    }
    const double raw = range / num_parts;
    const double power = pow(10.0, floor(log10(raw)));
    const double digit = raw / power;
    return power * (digit <= 1.0 ? 1.0 : digit <= 2.0 ? 2.0 : digit <= 5.0 ? 5.0 : 10.0);
}
