/* leapgrad show: draws a plan, or what a run measured, as a picture, a trace and a table. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli_cluster.h"
#include "leapgrad/report.h"

static const cli_option options[] = {
    {"plan", "FILE", "a saved plan instead of the one that the recipe makes"},
    {"out", "DIR",
     "where timeline.svg, timeline.csv and trace.json go, made if missing; RUN itself, or ."},
    CLI_CLUSTER_OPTIONS,
    {NULL, NULL, NULL}};

static bool exists(const char *path)
{
    struct stat about;
    return path != NULL && stat(path, &about) == 0;
}

/* What is drawn. */
struct drawing {
    const char *title;
    const lg_graph *graph;
    const lg_plan *plan;
    lg_timeline timelines[2];
    lg_timeline_panel panels[2];
    int num_panels;
};

/* The median of all steps of a run, which has left its timeline beside run.json; NaN if that does not say. */
static double median_ms_of(const char *measured_path)
{
    lg_record *record = NULL;
    char path[4096];
    const char *const slash = strrchr(measured_path, '/');
    const int length = slash != NULL ? (int)(slash - measured_path) : 0;
    (void)snprintf(path, sizeof path, "%.*s/run.json", length, measured_path);
    const lg_status status = lg_record_load(&record, path);
    const double median_ms =
        status == LG_OK ? lg_record_number(record, "step_ms_median") : (double)NAN;
    lg_record_destroy(record);
    return median_ms;
}

/* The run's name, and what the measured step is beside the median that the run tells of. */
static void write_title(char *title, size_t num_bytes, const char *name, const char *measured_path)
{
    const double median_ms = measured_path != NULL ? median_ms_of(measured_path) : (double)NAN;
    if (isnan(median_ms)) {
        (void)snprintf(title, num_bytes, "%s", name);
    } else {
        (void)snprintf(title, num_bytes,
                       "%.80s (measured: one recorded step; median of all: %.4g ms)", name,
                       median_ms);
    }
}

static lg_status add_panel(struct drawing *drawing, const char *label)
{
    lg_timeline *const timeline = &drawing->timelines[drawing->num_panels];
    drawing->panels[drawing->num_panels] = (lg_timeline_panel){label, timeline};
    drawing->num_panels++;
    return lg_timeline_add_memory(timeline, drawing->plan, drawing->graph);
}

static lg_status save_drawing(const struct drawing *drawing, const char *directory)
{
    char *const svg = cli_path(directory, "timeline.svg");
    char *const csv = cli_path(directory, "timeline.csv");
    char *const trace = cli_path(directory, "trace.json");
    lg_status status = LG_OK;
    (void)mkdir(directory, 0777); /* if it cannot be made, writing to it says so */
    if (svg == NULL || csv == NULL || trace == NULL) {
        status = cli_fail(LG_OUT_OF_MEMORY, "no memory for a path");
    }
    if (status == LG_OK) {
        status = lg_timeline_save_svg(svg, drawing->title, drawing->graph, drawing->plan,
                                      drawing->panels, drawing->num_panels);
    }
    if (status == LG_OK) {
        status = lg_timeline_save_csv(csv, drawing->graph, drawing->plan, drawing->panels,
                                      drawing->num_panels);
    }
    if (status == LG_OK) {
        status = lg_timeline_save_trace(trace, drawing->graph, drawing->plan, drawing->panels,
                                        drawing->num_panels);
    }
    if (status == LG_OK) {
        printf("wrote %s, %s and %s (for ui.perfetto.dev)\n", svg, csv, trace);
    }
    free(svg);
    free(csv);
    free(trace);
    return status;
}

/* Lanes of one rank; of several, what each rank comes to. */
static lg_status print_rows(const struct drawing *drawing, const lg_timeline *timeline)
{
    const int num_ranks = drawing->plan->num_ranks;
    if (num_ranks == 1) {
        cli_print_lanes(drawing->graph, drawing->plan, timeline);
        return LG_OK;
    }
    lg_rank_stats *const ranks = calloc((size_t)num_ranks, sizeof *ranks);
    if (ranks == NULL) {
        return cli_fail(LG_OUT_OF_MEMORY, "no memory for a table of %d ranks", num_ranks);
    }
    const lg_status status = lg_timeline_stats(ranks, timeline, drawing->plan, drawing->graph);
    if (status == LG_OK) {
        cli_print_ranks(ranks, num_ranks);
    }
    free(ranks);
    return status;
}

static lg_status print_drawing(const struct drawing *drawing)
{
    lg_status status = LG_OK;
    for (int i = 0; i < drawing->num_panels && status == LG_OK; i++) {
        char text[CLI_TEXT_BYTES];
        const lg_timeline *const timeline = &drawing->timelines[i];
        printf("%s: strategy %s, step %s, %d ops\n", drawing->panels[i].label,
               drawing->plan->strategy, cli_format_ns(text, timeline->step_ns),
               timeline->num_spans);
        status = print_rows(drawing, timeline);
    }
    return status;
}

/* The plan as simulated, and for a run what it measured. */
static lg_status draw(lg_job *job, const char *measured_path, const char *directory)
{
    struct drawing drawing;
    const lg_trainer *const trainer = lg_job_trainer(job);
    const lg_machine machine = lg_trainer_machine(trainer);
    memset(&drawing, 0, sizeof drawing);
    char title[256];
    write_title(title, sizeof title, lg_job_recipe(job)->run.name,
                exists(measured_path) ? measured_path : NULL);
    drawing.title = title;
    drawing.graph = lg_trainer_graph(trainer);
    drawing.plan = lg_trainer_plan(trainer);
    lg_status status = lg_plan_simulate(&drawing.timelines[0], drawing.plan, drawing.graph,
                                        &machine, lg_trainer_cost_table(trainer));
    if (status == LG_OK) {
        status = add_panel(&drawing, "planned");
    }
    if (status == LG_OK && exists(measured_path)) {
        status =
            lg_timeline_load(&drawing.timelines[1], drawing.graph, drawing.plan, measured_path);
        if (status == LG_OK) {
            status = add_panel(&drawing, "measured");
        }
    }
    if (status == LG_OK) {
        status = print_drawing(&drawing);
    }
    if (status == LG_OK) {
        status = save_drawing(&drawing, directory);
    }
    lg_timeline_deinit(&drawing.timelines[0]);
    lg_timeline_deinit(&drawing.timelines[1]);
    return status;
}

/* What a command line asks for, for each rank that draws it or helps. */
struct request {
    const lg_recipe *recipe;
    const char *plan_path;
    const char *measured_path; /* NULL: none */
    const char *directory;
};

static lg_status draw_rank(lg_comm *comm, void *user)
{
    const struct request *const request = user;
    lg_job *job = NULL;
    lg_job_opts opts = lg_job_opts_default();
    opts.plan_path = request->plan_path;
    opts.comm = comm;
    lg_status status = lg_job_create(&job, request->recipe, &opts);
    if (status == LG_OK && (comm == NULL || lg_comm_rank(comm) == 0)) {
        status = draw(job, request->measured_path, request->directory);
    }
    lg_job_destroy(job);
    return status;
}

static lg_status show(const cli_args *args)
{
    if (cli_is_cluster(args, &cli_show) && !cli_is_run_of_ranks(args, &cli_show)) {
        return cli_cluster_show(args, &cli_show);
    }
    const char *const target = args->words[0];
    const bool is_run = cli_is_directory(target);
    const bool is_as_it_was = is_run && !cli_asks_for_strategy(args);
    const char *const given_plan = cli_args_option(args, &cli_show, "plan");
    const char *const given_out = cli_args_option(args, &cli_show, "out");
    char *const run_plan = cli_path(target, "plan.json");
    char *const measured = cli_path(target, "timeline.json");
    lg_recipe *recipe = NULL;
    lg_status status = cli_load_recipe(&recipe, target, args);
    if (status == LG_OK) {
        status = cli_use_costs_of_run(recipe, target);
    }
    if (status == LG_OK) {
        struct request request = {.recipe = recipe,
                                  .plan_path = given_plan != NULL                 ? given_plan
                                               : is_as_it_was && exists(run_plan) ? run_plan
                                                                                  : NULL,
                                  .measured_path =
                                      is_as_it_was && given_plan == NULL ? measured : NULL,
                                  .directory = given_out != NULL ? given_out
                                               : is_as_it_was    ? target
                                                                 : "."};
        status = cli_run_ranks(recipe, draw_rank, &request);
    }
    lg_recipe_destroy(recipe);
    free(run_plan);
    free(measured);
    return status;
}

const cli_command cli_show = {
    .name = "show",
    .words = "RECIPE|RUN|--model=NAME [key=value ...]",
    .min_words = 0,
    .max_words = 1,
    .summary = "draw the timeline of a plan, or of a run as planned and as measured",
    .help = NULL,
    .options = options,
    .run = show};
