/*
 * Schedules and plans: the order of units that a plan has, and the plan that an order of units becomes, by the way that pipeline
 * strategies take.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes_text.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/schedule_csv.h"
#include "plan/strategies/units.h"

/* --- from a plan -------------------------------------------------------------------------------------------------------- */

/* First and last entry of a unit's ops in their lane; lagged entries come after all others. */
typedef struct extent {
    int first; /* -1: no ops */
    int last;
} extent;

typedef struct exporter {
    const lg_plan *plan;
    const lg_graph *graph;
    int num_ranks; /* of a pipeline */
    int num_stages;
    int num_micro_batches; /* of a replica */
    int *rank_of_stage;
    int *lane_of_rank;
    extent *extents; /* by unit: (stage * micro-batches + micro-batch) * kinds + kind */
} exporter;

/* A place in a rank's order. */
typedef struct spot {
    int at;
    lg_action action;
} spot;

static bool is_input_layer(const lg_graph *graph, int layer)
{
    return layer >= 0 && lg_model_layer(lg_graph_model(graph), layer)->kind == LG_LAYER_INPUT;
}

static lgi_unit_kind kind_of(const exporter *e, const lg_op_info *op)
{
    switch (op->kind) {
    case LG_OP_FORWARD:
        return is_input_layer(e->graph, op->layer) ? LGI_NUM_UNIT_KINDS : LGI_UNIT_F;
    case LG_OP_LOSS:
        return LGI_UNIT_F;
    case LG_OP_INPUT_GRAD:
        return LGI_UNIT_I;
    case LG_OP_WEIGHT_GRAD:
        return LGI_UNIT_W;
    default:
        return LGI_NUM_UNIT_KINDS;
    }
}

static extent *extent_of(const exporter *e, int stage, int micro_batch, lgi_unit_kind kind)
{
    return &e->extents[(stage * e->num_micro_batches + micro_batch) * LGI_NUM_UNIT_KINDS +
                       (int)kind];
}

static lg_status find_lanes(exporter *e)
{
    for (int rank = 0; rank < e->num_ranks; rank++) {
        e->lane_of_rank[rank] = -1;
    }
    for (int lane = 0; lane < e->plan->num_lanes; lane++) {
        const lg_lane *const queue = &e->plan->lanes[lane];
        if (queue->kind != LG_LANE_COMPUTE || queue->num_entries == 0 ||
            queue->rank >= e->num_ranks) {
            continue;
        }
        if (e->lane_of_rank[queue->rank] >= 0) {
            LG_FAIL(LG_NOT_SUPPORTED,
                    "rank %d has several compute lanes; a schedule is one order for each rank",
                    queue->rank);
        }
        e->lane_of_rank[queue->rank] = lane;
    }
    return LG_OK;
}

static void measure_lane(exporter *e, int rank)
{
    const lg_lane *const queue = &e->plan->lanes[e->lane_of_rank[rank]];
    for (int i = 0; i < queue->num_entries; i++) {
        const lg_op_info *const op = lg_graph_op(e->graph, queue->entries[i].op);
        const lgi_unit_kind kind = kind_of(e, op);
        if (kind == LGI_NUM_UNIT_KINDS || op->micro_batch < 0) {
            continue;
        }
        e->rank_of_stage[op->stage] = rank;
        extent *const unit = extent_of(e, op->stage, op->micro_batch, kind);
        const int at = i + (queue->entries[i].lag > 0 ? queue->num_entries : 0);
        unit->first = unit->first < 0 || at < unit->first ? at : unit->first;
        unit->last = at > unit->last ? at : unit->last;
    }
}

static int compare_spots(const void *a, const void *b)
{
    const spot *const x = a;
    const spot *const y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* B, or I and W: what the ops of a stage and micro-batch come to. */
static void add_backward(const exporter *e, spot *spots, int *num, int stage, int micro_batch)
{
    const extent *const inputs = extent_of(e, stage, micro_batch, LGI_UNIT_I);
    const extent *const weights = extent_of(e, stage, micro_batch, LGI_UNIT_W);
    const int last = inputs->last > weights->last ? inputs->last : weights->last;
    /* A lone half stands for both, and so do halves that run in turns, the weight gradients close behind. */
    if (inputs->first < 0 || weights->first < 0) {
        spots[(*num)++] = (spot){last, {LG_ACTION_BACKWARD, stage, micro_batch, 0}};
        return;
    }
    spots[(*num)++] = (spot){inputs->last, {LG_ACTION_INPUT_GRAD, stage, micro_batch, 0}};
    spots[(*num)++] = (spot){weights->last, {LG_ACTION_WEIGHT_GRAD, stage, micro_batch, 0}};
}

/* Sorts a rank's spots and joins I and W of one backward that run in turns and have nothing between them. */
static void finish_list(const exporter *e, lg_rank_schedule *schedule, int rank, spot *spots,
                        int num)
{
    qsort(spots, (size_t)num, sizeof *spots, compare_spots);
    for (int i = 0; i < num; i++) {
        lg_action action = spots[i].action;
        const lg_action *const next = i + 1 < num ? &spots[i + 1].action : NULL;
        const bool is_pair = next != NULL && action.kind == LG_ACTION_INPUT_GRAD &&
                             next->kind == LG_ACTION_WEIGHT_GRAD && next->stage == action.stage &&
                             next->micro_batch == action.micro_batch;
        const bool is_reversed = next != NULL && action.kind == LG_ACTION_WEIGHT_GRAD &&
                                 next->kind == LG_ACTION_INPUT_GRAD &&
                                 next->stage == action.stage &&
                                 next->micro_batch == action.micro_batch;
        if (is_pair || is_reversed) {
            const extent *const inputs = extent_of(e, action.stage, action.micro_batch, LGI_UNIT_I);
            const extent *const weights =
                extent_of(e, action.stage, action.micro_batch, LGI_UNIT_W);
            const bool is_single = inputs->first == inputs->last && weights->first == weights->last;
            if (is_reversed || is_single || weights->first < inputs->last) {
                action.kind = LG_ACTION_BACKWARD;
                i++;
            }
        }
        schedule->actions[rank][schedule->num_actions[rank]++] = action;
    }
}

static lg_status fill_rank(const exporter *e, lg_rank_schedule *schedule, int rank)
{
    spot *spots = NULL;
    int num = 0;
    LG_TRY(lgi_calloc(&spots,
                      (size_t)e->num_stages * (size_t)e->num_micro_batches * LGI_NUM_UNIT_KINDS,
                      sizeof *spots));
    for (int stage = 0; stage < e->num_stages; stage++) {
        for (int m = 0; e->rank_of_stage[stage] == rank && m < e->num_micro_batches; m++) {
            const extent *const forward = extent_of(e, stage, m, LGI_UNIT_F);
            spots[num++] = (spot){forward->last, {LG_ACTION_FORWARD, stage, m, 0}};
            add_backward(e, spots, &num, stage, m);
        }
    }
    finish_list(e, schedule, rank, spots, num);
    lgi_free(spots);
    return LG_OK;
}

static lg_status export_all(exporter *e, lg_rank_schedule **out)
{
    lg_status status = LG_OK;
    int *capacity = NULL;
    lg_rank_schedule *schedule = NULL;
    const size_t num_units =
        (size_t)e->num_stages * (size_t)e->num_micro_batches * LGI_NUM_UNIT_KINDS;
    LG_TRY_GOTO(lgi_calloc(&e->lane_of_rank, (size_t)e->num_ranks, sizeof *e->lane_of_rank));
    LG_TRY_GOTO(lgi_calloc(&e->rank_of_stage, (size_t)e->num_stages, sizeof *e->rank_of_stage));
    LG_TRY_GOTO(lgi_calloc(&e->extents, num_units, sizeof *e->extents));
    LG_TRY_GOTO(lgi_calloc(&capacity, (size_t)e->num_ranks, sizeof *capacity));
    memset(e->rank_of_stage, 0xff, (size_t)e->num_stages * sizeof *e->rank_of_stage);
    for (size_t i = 0; i < num_units; i++) {
        e->extents[i] = (extent){-1, -1};
    }
    LG_TRY_GOTO(find_lanes(e));
    for (int rank = 0; rank < e->num_ranks; rank++) {
        if (e->lane_of_rank[rank] >= 0) {
            measure_lane(e, rank);
        }
    }
    for (int stage = 0; stage < e->num_stages; stage++) {
        if (e->rank_of_stage[stage] < 0) {
            LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG, "stage %d has no ops in the plan", stage));
        }
        capacity[e->rank_of_stage[stage]] += e->num_micro_batches * LGI_NUM_UNIT_KINDS;
    }
    LG_TRY_GOTO(lgi_schedule_new(&schedule, e->num_ranks, capacity));
    for (int rank = 0; rank < e->num_ranks; rank++) {
        LG_TRY_GOTO(fill_rank(e, schedule, rank));
    }
    LG_TRY_GOTO(lgi_schedule_prove(schedule, "the plan's schedule"));
    *out = schedule;
    schedule = NULL;
out:
    lg_schedule_destroy(schedule);
    lgi_free(capacity);
    return status;
}

lg_status lg_schedule_of_plan(lg_rank_schedule **out, const lg_plan *plan, const lg_graph *graph)
{
    exporter e = {.plan = plan,
                  .graph = graph,
                  .num_ranks = lg_graph_num_pipeline_ranks(graph),
                  .num_stages = lg_graph_num_stages(graph),
                  .num_micro_batches =
                      lg_graph_num_micro_batches(graph) / lg_graph_num_replicas(graph)};
    *out = NULL;
    if (lg_graph_options(graph)->mode != LG_GRAPH_TRAIN) {
        LG_FAIL(LG_INVALID_ARG, "the graph does not train: it has no schedule of backwards");
    }
    LG_TRY(lgi_plan_check_lanes(plan, graph));
    const lg_status status = export_all(&e, out);
    lgi_free(e.lane_of_rank);
    lgi_free(e.rank_of_stage);
    lgi_free(e.extents);
    return status;
}

/* --- to a plan ---------------------------------------------------------------------------------------------------------- */

/* Gradients are summed in the order of micro-batches whatever the plan, so that it does not change the bits. */
static lg_status check_sums(const lg_rank_schedule *schedule, const char *name)
{
    lg_status status = LG_OK;
    int *next = NULL; /* by stage: the micro-batch whose weight gradients come next */
    LG_TRY(lgi_calloc(&next, (size_t)schedule->num_stages, sizeof *next));
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        for (int i = 0; i < schedule->num_actions[rank]; i++) {
            const lg_action *const action = &schedule->actions[rank][i];
            const bool is_weight =
                action->kind == LG_ACTION_BACKWARD || action->kind == LG_ACTION_WEIGHT_GRAD;
            if (is_weight && action->micro_batch != next[action->stage]) {
                char text[LGI_ACTION_TEXT_BYTES];
                LG_TRY_GOTO(
                    lgi_fail(LG_NOT_SUPPORTED,
                             "%s: line %d, action %d: '%s' comes before micro-batch %d; the weight "
                             "gradients of a stage are added in the order of the micro-batches",
                             name, rank + 1, action->column, lgi_action_text(text, action),
                             next[action->stage]));
            }
            next[action->stage] += is_weight ? 1 : 0;
        }
    }
out:
    lgi_free(next);
    return status;
}

static lg_status check_fit(const lg_rank_schedule *schedule, const lg_graph *graph,
                           const char *name)
{
    const int num_ranks = lg_graph_num_pipeline_ranks(graph);
    const int num_stages = lg_graph_num_stages(graph);
    const int num_micro_batches = lg_graph_num_micro_batches(graph) / lg_graph_num_replicas(graph);
    if (schedule->num_ranks != num_ranks || schedule->num_stages != num_stages ||
        schedule->num_micro_batches != num_micro_batches) {
        LG_FAIL(LG_INVALID_ARG,
                "%s: %d ranks, %d stages, %d micro-batches; the graph has %d, %d and %d", name,
                schedule->num_ranks, schedule->num_stages, schedule->num_micro_batches, num_ranks,
                num_stages, num_micro_batches);
    }
    return check_sums(schedule, name);
}

static lg_status fill_lists(lgi_schedule *lists, const lgi_units *units,
                            const lg_rank_schedule *schedule, const char *name)
{
    static const lgi_unit_kind kinds[LG_NUM_ACTION_KINDS] = {LGI_UNIT_F, LGI_UNIT_B, LGI_UNIT_I,
                                                             LGI_UNIT_W};
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        for (int i = 0; i < schedule->num_actions[rank]; i++) {
            const lg_action *const action = &schedule->actions[rank][i];
            if (units->rank_of_stage[action->stage] >= 0 &&
                units->rank_of_stage[action->stage] != rank) {
                LG_FAIL(LG_INVALID_ARG, "%s: stage %d is on line %d; the graph has it on rank %d",
                        name, action->stage, rank + 1, units->rank_of_stage[action->stage]);
            }
            lgi_schedule_add(lists, units, action->stage, action->micro_batch, kinds[action->kind]);
        }
    }
    return LG_OK;
}

static lg_status make_plan(lg_plan **out, const char *name, const lg_rank_schedule *schedule,
                           const lgi_strategy_input *input, const struct lgi_strategy *data)
{
    lg_status status = LG_OK;
    lgi_units units = {0};
    lgi_schedule lists = {0};
    lgi_unit *order = NULL;
    int num_order = 0;
    LG_TRY_GOTO(lgi_units_init(&units, input));
    LG_TRY_GOTO(lgi_schedule_init(&lists, &units));
    LG_TRY_GOTO(fill_lists(&lists, &units, schedule, name));
    LG_TRY_GOTO(lgi_calloc(&order, (size_t)units.num_units, sizeof *order));
    status = lgi_schedule_run(&lists, &units, order, &num_order, NULL);
    if (status == LG_INTERNAL) { /* what the model asks for besides the chain of stages */
        status = lgi_fail_prefix(LG_INVALID_ARG, "%s", name);
    }
    LG_TRY_GOTO(status);
    LG_TRY_GOTO(data->reduce(out, &units, name, order, num_order));
    LG_TRY_GOTO(lgi_plan_place(*out, input->graph));
    const int64_t peak = lgi_plan_peak_bytes(*out);
    char texts[2][LGI_BYTES_TEXT_BYTES];
    if (input->opts.memory_bytes > 0 && peak > input->opts.memory_bytes) {
        LG_TRY_GOTO(lgi_fail(LG_NOT_SUPPORTED,
                             "the plan of %s needs %s, over the budget of %s; more "
                             "micro-batches or more ranks need less",
                             name, lgi_bytes_text(texts[0], peak),
                             lgi_bytes_text(texts[1], input->opts.memory_bytes)));
    }
    LG_TRY_GOTO(lg_plan_check(*out, input->graph, input->opts.memory_bytes));
out:
    lgi_free(order);
    lgi_schedule_deinit(&lists);
    lgi_units_deinit(&units);
    if (status != LG_OK) {
        lg_plan_destroy(*out);
        *out = NULL;
    }
    return status;
}

lg_status lg_plan_from_schedule(lg_plan **out, const char *name, const lg_rank_schedule *schedule,
                                const lg_graph *graph, const lg_machine *machine,
                                const lg_costs *costs, const char *data_strategy,
                                const lg_strategy_opts *opts)
{
    const struct lgi_strategy *pipeline = NULL;
    const struct lgi_strategy *data = NULL;
    lgi_strategy_input input;
    const char *const data_name = data_strategy != NULL ? data_strategy : "barrier";
    *out = NULL;
    LG_TRY(lgi_strategy_find(data_name, &pipeline, &data));
    if (data == NULL || data->role != LG_STRATEGY_DATA || strchr(data_name, '+') != NULL) {
        LG_FAIL(LG_INVALID_ARG,
                "strategy '%.100s' is not one for replicas, such as barrier or priority",
                data_name);
    }
    LG_TRY(lgi_strategy_resolve(&input, graph, machine, costs, opts));
    LG_TRY(check_fit(schedule, graph, name));
    return make_plan(out, name, schedule, &input, data);
}
