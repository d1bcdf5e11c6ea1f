/* The table of strategies, their names, and how two halves make a plan. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/strategies/data_parallel.h"
#include "plan/strategies/pipeline.h"

#define WHOLE(name, create, help) \
    { \
        name, LG_STRATEGY_WHOLE, help, create, NULL, NULL \
    }
#define PIPELINE(name, schedule, help) \
    { \
        name, LG_STRATEGY_PIPELINE, help, NULL, schedule, NULL \
    }
#define DATA(name, reduce, help) \
    { \
        name, LG_STRATEGY_DATA, help, NULL, NULL, reduce \
    }

// clang-format off
const struct lgi_strategy lgi_strategies[] = {
    WHOLE("in-order", lgi_in_order_create, "textbook order: each weight gradient right beside its input gradient, updates at the end"),
    WHOLE("out-of-order", lgi_out_of_order_create, "weight gradients in a queue on other lanes, deferred, or in the next step's forward (Oh et al., EuroSys 2022): the fastest of many such plans by simulation, within the memory budget"),
    WHOLE("auto", lgi_auto_create, "the fastest of all strategies by simulation, improved by list scheduling and local search, within the memory budget"),
    PIPELINE("gpipe", lgi_pipeline_gpipe, "all forwards, then all backwards (Huang et al., NeurIPS 2019)"),
    PIPELINE("1f1b", lgi_pipeline_1f1b, "one forward, one backward in turn, with a flush (Narayanan et al., SOSP 2019; Fan et al., PPoPP 2021)"),
    PIPELINE("interleaved", lgi_pipeline_interleaved, "1f1b over several stages per rank in a loop (Narayanan et al., SC 2021)"),
    PIPELINE("breadth-first", lgi_pipeline_breadth_first, "stages in a loop, each with all micro-batches before the next (Lamy-Poirier, MLSys 2023)"),
    PIPELINE("fast-forward", lgi_pipeline_fast_forward, "input gradients leave first, weight gradients fill the wait (Oh et al., EuroSys 2022); option push caps the micro-batches in flight"),
    PIPELINE("modulo", lgi_pipeline_modulo, "fast-forward on stages in a loop: modulo allocation (Oh et al., EuroSys 2022)"),
    PIPELINE("zb-h1", lgi_pipeline_zb_h1, "zero bubble at 1f1b's memory: a third of its bubble (Qi et al., ICLR 2024)"),
    PIPELINE("zb-h2", lgi_pipeline_zb_h2, "zero bubble at about twice 1f1b's memory: none left (Qi et al., ICLR 2024)"),
    PIPELINE("zb-v", lgi_pipeline_zb_v, "zero bubble with two stages per rank in a V, at 1f1b's memory (Qi et al., NeurIPS 2024)"),
    PIPELINE("dualpipe-v", lgi_pipeline_dualpipe_v, "DualPipe cut in half: two stages per rank in a V (DeepSeek-V3, 2024; Qi et al., 2025)"),
    DATA("barrier", lgi_data_barrier, "all gradients, then all reductions, then all updates"),
    DATA("wfbp", lgi_data_wfbp, "each reduction as soon as its gradient is complete, updates at the end (Zhang et al., ATC 2017)"),
    DATA("priority", lgi_data_priority, "reductions by need in the next forward, over the step's end where they do not fit (Jayarajan et al., MLSys 2019; Peng et al., SOSP 2019)"),
    DATA("reverse-first-k", lgi_data_reverse_first_k, "priority, with the first k layers' weight gradients last and in forward order (Oh et al., EuroSys 2022); k given or searched"),
    {NULL, LG_STRATEGY_WHOLE, NULL, NULL, NULL, NULL},
};
// clang-format on

/* What a data-parallel half goes with on one pipeline rank. Not in the table: there the name is a strategy of its own. */
static const struct lgi_strategy in_order_half =
    PIPELINE("in-order", lgi_pipeline_in_order, "micro-batch by micro-batch");

#define NUM_ROWS ((int)(sizeof lgi_strategies / sizeof lgi_strategies[0]))

const char *lg_strategy_name(int idx)
{
    return idx >= 0 && idx < NUM_ROWS ? lgi_strategies[idx].name : NULL;
}

const char *lg_strategy_help(int idx)
{
    return idx >= 0 && idx < NUM_ROWS ? lgi_strategies[idx].help : NULL;
}

lg_strategy_role lg_strategy_role_of(int idx)
{
    return idx >= 0 && idx < NUM_ROWS ? lgi_strategies[idx].role : LG_STRATEGY_WHOLE;
}

static const struct lgi_strategy *find_row(const char *name, size_t length)
{
    for (const struct lgi_strategy *row = lgi_strategies; row->name != NULL; row++) {
        if (strlen(row->name) == length && strncmp(row->name, name, length) == 0) {
            return row;
        }
    }
    return NULL;
}

/* "in-order, out-of-order, ...": names of one role, or of all. */
static void list_names(char *text, size_t text_bytes, bool has_role, lg_strategy_role role)
{
    size_t used = 0;
    text[0] = '\0';
    for (const struct lgi_strategy *row = lgi_strategies; row->name != NULL; row++) {
        const size_t length = strlen(row->name);
        if ((!has_role || row->role == role) && used + length + 3 < text_bytes) {
            memcpy(text + used, used > 0 ? ", " : "", used > 0 ? 2 : 0);
            used += used > 0 ? 2 : 0;
            memcpy(text + used, row->name, length + 1);
            used += length;
        }
    }
}

lg_status lgi_strategy_find(const char *name, const struct lgi_strategy **pipeline,
                            const struct lgi_strategy **data)
{
    const char *const plus = strchr(name, '+');
    const size_t length = plus != NULL ? (size_t)(plus - name) : strlen(name);
    const struct lgi_strategy *const first = find_row(name, length);
    const struct lgi_strategy *const second =
        plus != NULL ? find_row(plus + 1, strlen(plus + 1)) : NULL;
    char names[512];
    *pipeline = first;
    *data = second;
    if (first == NULL) {
        list_names(names, sizeof names, false, LG_STRATEGY_WHOLE);
        LG_FAIL(LG_INVALID_ARG, "unknown strategy '%.100s'; allowed: %s, and PIPELINE+DATAPARALLEL",
                name, names);
    }
    if (plus != NULL && (second == NULL || second->role != LG_STRATEGY_DATA)) {
        list_names(names, sizeof names, true, LG_STRATEGY_DATA);
        LG_FAIL(LG_INVALID_ARG, "strategy '%.100s': what stands behind the '+' must be one of %s",
                name, names);
    }
    if (plus != NULL && strcmp(first->name, "in-order") == 0) {
        *pipeline = &in_order_half;
    } else if (plus != NULL && first->role != LG_STRATEGY_PIPELINE) {
        list_names(names, sizeof names, true, LG_STRATEGY_PIPELINE);
        LG_FAIL(LG_INVALID_ARG,
                "strategy '%.100s': what stands before the '+' must be one of in-order, %s", name,
                names);
    }
    if (plus == NULL && first->role == LG_STRATEGY_PIPELINE) {
        *data = find_row("barrier", strlen("barrier"));
    } else if (plus == NULL && first->role == LG_STRATEGY_DATA) {
        *pipeline = &in_order_half;
        *data = first;
    }
    return LG_OK;
}

static lg_status check_budget(const lg_plan *plan, const lgi_strategy_input *input,
                              const char *name)
{
    if (input->opts.memory_bytes > 0 && lgi_plan_peak_bytes(plan) > input->opts.memory_bytes) {
        char what[128];
        (void)snprintf(what, sizeof what, "the %.100s plan", name);
        return lgi_fail_budget(input, what, lgi_plan_peak_bytes(plan));
    }
    return LG_OK;
}

lg_status lgi_compose(lg_plan **out, const lgi_strategy_input *input, const char *name,
                      const struct lgi_strategy *pipeline, const struct lgi_strategy *data)
{
    lg_status status = LG_OK;
    lgi_units units = {0};
    lgi_schedule schedule = {0};
    lgi_unit *order = NULL;
    lg_plan *plan = NULL;
    int num_order = 0;
    *out = NULL;
    if (data->role == LG_STRATEGY_DATA && strchr(name, '+') == NULL && pipeline == &in_order_half &&
        lg_graph_num_pipeline_ranks(input->graph) > 1) {
        LG_FAIL(
            LG_INVALID_ARG,
            "strategy '%s' is about replicas; the graph has %d pipeline ranks, so name a strategy "
            "for them too, such as 1f1b+%s",
            name, lg_graph_num_pipeline_ranks(input->graph), name);
    }
    LG_TRY_GOTO(lgi_units_init(&units, input));
    LG_TRY_GOTO(lgi_schedule_init(&schedule, &units));
    LG_TRY_GOTO(pipeline->schedule(&schedule, &units));
    LG_TRY_GOTO(lgi_calloc(&order, (size_t)units.num_units, sizeof *order));
    LG_TRY_GOTO(lgi_schedule_run(&schedule, &units, order, &num_order, NULL));
    LG_TRY_GOTO(data->reduce(&plan, &units, name, order, num_order));
    LG_TRY_GOTO(lgi_strategy_place(plan, input));
    LG_TRY_GOTO(check_budget(plan, input, name));
    *out = plan;
    plan = NULL;
out:
    lg_plan_destroy(plan);
    lgi_free(order);
    lgi_schedule_deinit(&schedule);
    lgi_units_deinit(&units);
    return status;
}
