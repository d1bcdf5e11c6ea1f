/* Step graphs and plans for bench/papers.c; see papers_run.h. */
#include "papers_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/search.h"

void stop_if(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "bench/papers: %s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

lg_model *make_chain(int num_layers)
{
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int x = 0;
    char name[32];
    stop_if(lg_model_create(&model));
    attrs.input_shape = LG_SHAPE(1, CHAIN_WIDTH);
    stop_if(lg_model_add(model, "input", LG_LAYER_INPUT, &attrs, NULL, 0, &x));
    attrs = lg_layer_attrs_default();
    attrs.num_embeddings = 1;
    stop_if(lg_model_add(model, "embedding", LG_LAYER_POSITION_EMBEDDING, &attrs, &x, 1, &x));
    for (int i = 0; i < num_layers; i++) {
        attrs = lg_layer_attrs_default();
        attrs.num_outputs = CHAIN_WIDTH;
        attrs.has_bias = false;
        (void)snprintf(name, sizeof name, "h.%d", i);
        stop_if(lg_model_add(model, name, LG_LAYER_LINEAR, &attrs, &x, 1, &x));
    }
    attrs = lg_layer_attrs_default();
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_shape = LG_SHAPE(1);
    int inputs[2] = {x, 0};
    stop_if(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &inputs[1]));
    stop_if(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL));
    return model;
}

/* Time of each layer for one micro-batch, from the step graph of one rank. */
static double *layer_times(const problem *p)
{
    lg_graph *graph = NULL;
    lg_costs *costs = NULL;
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_samples = p->num_samples / p->num_micro_batches;
    double *const ns = calloc((size_t)lg_model_num_layers(p->model), sizeof *ns);
    if (ns == NULL) {
        (void)fprintf(stderr, "bench/papers: out of memory\n");
        exit(3);
    }
    stop_if(lg_graph_create(&graph, p->model, &opts));
    stop_if(lg_costs_create(&costs, graph));
    gpu_costs_fill(costs, graph, p->gpu, p->head_frac);
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *const op = lg_graph_op(graph, i);
        if (op->layer >= 0 && op->micro_batch >= 0) {
            ns[op->layer] += lg_costs_op_ns(costs, i, 0);
        }
    }
    lg_costs_destroy(costs);
    lg_graph_destroy(graph);
    return ns;
}

/* Layers before the first block form a stage of their own, on the last rank. */
static void make_tied_stages(problem *p, int num_ranks)
{
    static const char first_block[] = "bert.encoder.layer.0.";
    const int num_layers = lg_model_num_layers(p->model);
    stop_if(lg_stages_contiguous(&p->stages, p->model, num_ranks, num_ranks, LG_STAGE_ORDER_LOOP));
    int *const ranks = realloc(p->stages.rank_of_stage, (size_t)(num_ranks + 1) * sizeof *ranks);
    if (ranks == NULL) {
        (void)fprintf(stderr, "bench/papers: out of memory\n");
        exit(3);
    }
    ranks[0] = num_ranks - 1;
    for (int rank = 0; rank < num_ranks; rank++) {
        ranks[rank + 1] = rank;
    }
    bool is_inside = false;
    for (int layer = 0; layer < num_layers; layer++) {
        is_inside = is_inside || strncmp(lg_model_layer(p->model, layer)->name, first_block,
                                         sizeof first_block - 1) == 0;
        p->stages.stage_of_layer[layer] += is_inside ? 1 : 0;
    }
    p->stages.rank_of_stage = ranks;
    p->stages.num_stages = num_ranks + 1;
}

static void make_stages(problem *p, int num_ranks)
{
    double *ns = NULL;
    lg_layer_costs layer_costs = {0};
    switch (p->place) {
    case PLACE_CONTIGUOUS:
        stop_if(
            lg_stages_contiguous(&p->stages, p->model, num_ranks, num_ranks, LG_STAGE_ORDER_LOOP));
        break;
    case PLACE_LOOP:
        stop_if(lg_stages_contiguous(&p->stages, p->model, num_ranks, num_ranks * p->place_size,
                                     LG_STAGE_ORDER_LOOP));
        break;
    case PLACE_V:
        stop_if(
            lg_stages_contiguous(&p->stages, p->model, num_ranks, 2 * num_ranks, LG_STAGE_ORDER_V));
        break;
    case PLACE_MODULO:
        stop_if(lg_stages_modulo(&p->stages, p->model, num_ranks, p->place_size));
        break;
    case PLACE_TIED:
        make_tied_stages(p, num_ranks);
        break;
    case PLACE_BALANCED:
        ns = layer_times(p);
        layer_costs.ns = ns;
        stop_if(lg_stages_balanced(&p->stages, p->model, num_ranks, num_ranks, LG_STAGE_ORDER_LOOP,
                                   &layer_costs));
        free(ns);
        break;
    }
}

static void fill_unit_costs(problem *p)
{
    for (int i = 0; i < lg_graph_num_ops(p->graph); i++) {
        const lg_op_info *const op = lg_graph_op(p->graph, i);
        const bool is_unit = op->layer >= 0 && op->micro_batch >= 0 &&
                             (op->kind == LG_OP_FORWARD || op->kind == LG_OP_INPUT_GRAD ||
                              op->kind == LG_OP_WEIGHT_GRAD) &&
                             lg_model_layer(p->model, op->layer)->kind == LG_LAYER_LINEAR;
        lg_costs_set_op_ns(p->costs, i, 0, is_unit ? p->unit_ns : 0.0);
    }
}

void problem_make(problem *p, int num_pipeline_ranks)
{
    lg_graph_opts opts = lg_graph_opts_default();
    lg_parallel parallel = {.num_replicas = p->num_replicas,
                            .num_pipeline_ranks = num_pipeline_ranks,
                            .num_stages = 1,
                            .chunk_bytes = p->chunk_bytes};
    opts.num_samples = p->num_samples;
    opts.num_micro_batches = p->num_micro_batches;
    opts.num_slots = p->num_slots;
    memset(&p->stages, 0, sizeof p->stages);
    if (num_pipeline_ranks > 1) {
        make_stages(p, num_pipeline_ranks);
        lg_stages_apply(&p->stages, &parallel);
    }
    opts.parallel = num_pipeline_ranks * p->num_replicas > 1 ? &parallel : NULL;
    stop_if(lg_graph_create(&p->graph, p->model, &opts));
    stop_if(lg_costs_create(&p->costs, p->graph));
    if (p->unit_ns > 0.0) {
        fill_unit_costs(p);
    } else {
        gpu_costs_fill(p->costs, p->graph, p->gpu, p->head_frac);
    }
}

void problem_release(problem *p)
{
    lg_costs_destroy(p->costs);
    lg_graph_destroy(p->graph);
    lg_stages_deinit(&p->stages);
    p->costs = NULL;
    p->graph = NULL;
}

bool has_strategy(const char *name)
{
    char first[64];
    (void)snprintf(first, sizeof first, "%.*s", (int)strcspn(name, "+"), name);
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        if (strcmp(lg_strategy_name(i), first) == 0) {
            return true;
        }
    }
    return false;
}

static outcome measure(const lg_plan *plan, const lg_timeline *timeline)
{
    outcome result = {.is_done = true, .step_ns = timeline->step_ns};
    double *const busy_ns = calloc((size_t)plan->num_ranks, sizeof *busy_ns);
    double total_ns = 0.0;
    if (busy_ns == NULL) {
        (void)fprintf(stderr, "bench/papers: out of memory\n");
        exit(3);
    }
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        const lg_lane *const lane = &plan->lanes[span->lane];
        if (lane->kind == LG_LANE_COMPUTE) {
            busy_ns[lane->rank] += span->end_ns - span->start_ns;
        }
    }
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        total_ns += busy_ns[rank];
        result.busy_ns = busy_ns[rank] > result.busy_ns ? busy_ns[rank] : result.busy_ns;
        result.peak_bytes =
            plan->peak_bytes[rank] > result.peak_bytes ? plan->peak_bytes[rank] : result.peak_bytes;
    }
    result.idle_frac = 1.0 - total_ns / (timeline->step_ns * plan->num_ranks);
    free(busy_ns);
    return result;
}

outcome problem_solve(const problem *p, const char *strategy, const lg_strategy_opts *opts)
{
    const outcome none = {0};
    lg_plan *plan = NULL;
    lg_timeline timeline = {0};
    if (!has_strategy(strategy)) {
        (void)fprintf(stderr, "bench/papers: no strategy '%s' in this build\n", strategy);
        return none;
    }
    const lg_status status = lg_plan_create(&plan, strategy, p->graph, &p->machine, p->costs, opts);
    if (status == LG_NOT_SUPPORTED) {
        (void)fprintf(stderr, "bench/papers: %s: %s\n", strategy, lg_last_error());
        return none;
    }
    stop_if(status);
    stop_if(lg_plan_simulate(&timeline, plan, p->graph, &p->machine, p->costs));
    const outcome result = measure(plan, &timeline);
    lg_timeline_deinit(&timeline);
    lg_plan_destroy(plan);
    return result;
}

/* --- search ------------------------------------------------------------------------------------------------------------- */

/* Ops that a search may simulate: all named strategies in the small settings, some tens of plans in the largest. */
#define MAX_SEARCHED_OPS 4000000

static lg_status fill_gpu_costs(lg_costs *costs, const lg_graph *graph, void *user)
{
    const problem *const p = user;
    gpu_costs_fill(costs, graph, p->gpu, p->head_frac);
    return LG_OK;
}

outcome problem_search(const problem *p, int num_ranks, char *label, size_t label_bytes)
{
    lg_search_result found;
    problem setting = *p;
    lg_timeline timeline = {0};
    lg_search_opts opts = lg_search_opts_default();
    const lg_search_source source = {.fill_costs = fill_gpu_costs, .user = &setting};
    setting.machine.num_ranks = num_ranks;
    opts.graph.num_samples = p->num_samples;
    opts.graph.num_micro_batches = p->num_micro_batches;
    opts.graph.num_slots = p->num_slots;
    opts.num_replicas = 1;
    opts.max_simulated_ops = MAX_SEARCHED_OPS;
    stop_if(lg_search(&found, p->model, &setting.machine, &source, &opts));
    stop_if(lg_plan_simulate(&timeline, found.plan, found.graph, &setting.machine, found.costs));
    const lg_search_entry *const best = &found.entries[0];
    char size[16] = "";
    if (best->group_size > 0) {
        (void)snprintf(size, sizeof size, " %d", best->group_size);
    }
    (void)snprintf(label, label_bytes, "search: %s, %s%s (bound: %.1f ms)", best->strategy,
                   lg_search_placement_name(best->placement), size, found.bound.step_ns / 1e6);
    const outcome result = measure(found.plan, &timeline);
    lg_timeline_deinit(&timeline);
    lg_search_result_deinit(&found);
    return result;
}
