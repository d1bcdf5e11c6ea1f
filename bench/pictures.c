/*
 * Draws the pictures of docs/schedules.md with the product's own planner, simulator and timeline writer: small pipelines
 * and replicas with equal times, so that bubbles can be counted. Usage: pictures FOLDER
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/report.h"
#include "papers_run.h"

#define UNIT_NS 1e6
/* Of each micro-batch: enough for activations to be seen beside the weights. */
#define NUM_SAMPLES 256
/* All-reduce of one layer's gradient, in units. */
#define REDUCE_UNITS 3.0
/* An activation or its gradient, where messages are shown. */
#define MESSAGE_UNITS 0.5
/* A more urgent gradient can go ahead between two chunks. */
#define REDUCE_CHUNKS 2.0

struct picture {
    const char *file;
    const char *title;
    const char *strategy;
    int num_ranks;
    int num_replicas;
    int num_layers;
    int num_micro_batches;
    placement place;
    int place_size;
    bool has_push;
    int num_reversed;
    bool has_memory;
    bool has_messages; /* which take time then, and have rows */
};

static const struct picture pictures[] = {
    {"gpipe.svg", "gpipe: all forward, then all backward", "gpipe", 4, 1, 4, 4, PLACE_CONTIGUOUS, 0,
     false, -1, true, false},
    {"1f1b.svg", "1f1b: the same bubble, fewer activations", "1f1b", 4, 1, 4, 4, PLACE_CONTIGUOUS,
     0, false, -1, true, false},
    {"messages.svg", "1f1b where a message takes half a unit", "1f1b", 4, 1, 4, 4, PLACE_CONTIGUOUS,
     0, false, -1, true, true},
    {"fast-forward.svg", "fast-forward: a gradient leaves before its weight gradient is made",
     "fast-forward", 4, 1, 4, 4, PLACE_CONTIGUOUS, 0, false, -1, true, false},
    {"zb-h1.svg", "zb-h1: weight gradients fill bubbles, at the memory of 1f1b", "zb-h1", 4, 1, 4,
     8, PLACE_CONTIGUOUS, 0, false, -1, false, false},
    {"zb-h2.svg", "zb-h2: no bubbles, for about twice the memory", "zb-h2", 4, 1, 4, 8,
     PLACE_CONTIGUOUS, 0, false, -1, false, false},
    {"breadth-first.svg", "breadth-first: layers go round the ranks", "breadth-first", 4, 1, 8, 4,
     PLACE_MODULO, 1, false, -1, false, false},
    {"modulo.svg", "modulo: round the ranks, and gradients leave first", "modulo", 4, 1, 8, 4,
     PLACE_MODULO, 1, false, -1, false, false},
    {"zb-v.svg", "zb-v: down the ranks and up again", "zb-v", 4, 1, 8, 8, PLACE_V, 0, false, -1,
     false, false},
    {"wfbp.svg", "wfbp: each gradient is sent when it is there, updates wait for all", "wfbp", 1, 2,
     6, 1, PLACE_CONTIGUOUS, 0, false, -1, false, false},
    {"priority.svg", "priority: no barrier, the next forward takes what it needs first", "priority",
     1, 2, 6, 1, PLACE_CONTIGUOUS, 0, false, -1, false, false},
    {"reverse-first-k.svg", "reverse-first-k: the first 2 layers' weight gradients last, in order",
     "reverse-first-k", 1, 2, 6, 1, PLACE_CONTIGUOUS, 0, false, 2, false, false},
};

/* Compute lanes of all ranks, or all; with replicas, which all do the same, every lane of the first. */
static bool is_shown(const struct picture *picture, const lg_lane *lane)
{
    return picture->num_replicas > 1 ? lane->rank == 0
                                     : picture->has_messages || lane->kind == LG_LANE_COMPUTE;
}

/* From the first box to the last: what comes before takes no time, and its place in the steps says nothing. */
static void trim(lg_timeline *timeline)
{
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        if (i == 0 || span->start_ns < timeline->begin_ns) {
            timeline->begin_ns = span->start_ns;
        }
        if (i == 0 || span->end_ns > timeline->end_ns) {
            timeline->end_ns = span->end_ns;
        }
    }
    for (int i = 0; i < timeline->num_memory_points; i++) {
        lg_memory_point *const point = &timeline->memory_points[i];
        point->time_ns = fmax(point->time_ns, timeline->begin_ns);
    }
}

/* The plan's shown lanes in `view`, and in the timeline only what runs there and takes time. */
static void keep_shown(const struct picture *picture, const lg_plan *plan, lg_plan *view,
                       lg_timeline *timeline)
{
    int *const new_lane = calloc((size_t)plan->num_lanes, sizeof *new_lane);
    lg_lane *const lanes = calloc((size_t)plan->num_lanes, sizeof *lanes);
    int num = 0;
    if (new_lane == NULL || lanes == NULL) {
        (void)fprintf(stderr, "bench/pictures: out of memory\n");
        exit(3);
    }
    *view = *plan;
    view->lanes = lanes;
    view->num_lanes = 0;
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        new_lane[lane] = -1;
        if (is_shown(picture, &plan->lanes[lane])) {
            new_lane[lane] = view->num_lanes;
            lanes[view->num_lanes++] = plan->lanes[lane];
        }
    }
    for (int i = 0; i < timeline->num_spans; i++) {
        lg_span span = timeline->spans[i];
        if (new_lane[span.lane] >= 0 && span.end_ns > span.start_ns) {
            span.lane = new_lane[span.lane];
            timeline->spans[num++] = span;
        }
    }
    timeline->num_spans = num;
    trim(timeline);
    if (picture->num_replicas > 1) {
        view->num_ranks = 1;
    }
    free(new_lane);
}

static void draw(const struct picture *picture, const char *folder)
{
    char path[1024];
    lg_plan *plan = NULL;
    lg_plan view;
    lg_timeline timeline = {0};
    lg_model *const model = make_chain(picture->num_layers);
    const int num_ranks = picture->num_ranks * picture->num_replicas;
    problem p = {.model = model,
                 .gpu = &gpu_v100,
                 .machine = gpu_machine(&gpu_v100, num_ranks, num_ranks),
                 .num_samples =
                     (int64_t)NUM_SAMPLES * picture->num_micro_batches * picture->num_replicas,
                 .num_micro_batches = picture->num_micro_batches,
                 .num_replicas = picture->num_replicas,
                 .place = picture->place,
                 .place_size = picture->place_size,
                 .unit_ns = UNIT_NS};
    const double gradient_bytes = 4.0 * CHAIN_WIDTH * CHAIN_WIDTH;
    p.machine.intra_host = (lg_link){.latency_ns = 0.0, .bytes_per_s = 1e18};
    if (picture->num_replicas > 1) { /* a ring of two ranks carries the gradient once */
        p.machine.intra_host.bytes_per_s = gradient_bytes / (REDUCE_UNITS * UNIT_NS / 1e9);
        p.chunk_bytes = (int64_t)(gradient_bytes / REDUCE_CHUNKS);
    }
    if (picture->has_messages) {
        p.machine.intra_host.bytes_per_s =
            4.0 * CHAIN_WIDTH * NUM_SAMPLES / (MESSAGE_UNITS * UNIT_NS / 1e9);
    }
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.has_push = picture->has_push;
    opts.num_reversed = picture->num_reversed;
    problem_make(&p, picture->num_ranks);
    stop_if(lg_plan_create(&plan, picture->strategy, p.graph, &p.machine, p.costs, &opts));
    stop_if(lg_plan_simulate(&timeline, plan, p.graph, &p.machine, p.costs));
    if (picture->has_memory) {
        stop_if(lg_timeline_add_memory(&timeline, plan, p.graph));
    }
    keep_shown(picture, plan, &view, &timeline);
    const lg_timeline_panel panel = {.label = picture->strategy, .timeline = &timeline};
    (void)snprintf(path, sizeof path, "%s/%s", folder, picture->file);
    stop_if(lg_timeline_save_svg(path, picture->title, p.graph, &view, &panel, 1));
    printf("%s: step of %.1f units\n", path, timeline.step_ns / UNIT_NS);
    free(view.lanes);
    lg_timeline_deinit(&timeline);
    lg_plan_destroy(plan);
    problem_release(&p);
    lg_model_destroy(model);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: pictures FOLDER\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; i++) {
        draw(&pictures[i], argv[1]);
    }
    return 0;
}
