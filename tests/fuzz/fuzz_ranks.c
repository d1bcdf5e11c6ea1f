/*
 * libFuzzer target: any order of a small step over two ranks, given directly as bytes. What the memory planner's order accepts
 * must be proved by the checker and run on paper to its end; what it refuses must be refused by both.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/build.h"
#include "leapgrad/plan.h"
#include "plan/plan_make.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

#define NUM_OPS 12
#define LANES_PER_RANK 4
#define NUM_LANES (2 * LANES_PER_RANK)
#define NUM_OPERANDS 3

/* Op i writes value i; what it reads, its rank, and whom it meets. */
static const struct {
    int rank, reads, also_reads;
    lg_op_kind kind;
    int group;
} rows[NUM_OPS] = {
    {0, -1, -1, LG_OP_FORWARD, -1},   {0, 0, -1, LG_OP_SEND, 0},
    {1, -1, -1, LG_OP_RECV, 0},       {1, 2, -1, LG_OP_INPUT_GRAD, -1},
    {1, 3, -1, LG_OP_SEND, 1},        {0, -1, -1, LG_OP_RECV, 1},
    {0, 5, 0, LG_OP_WEIGHT_GRAD, -1}, {1, 2, 3, LG_OP_WEIGHT_GRAD, -1},
    {0, 6, -1, LG_OP_ALL_REDUCE, 2},  {1, 7, -1, LG_OP_ALL_REDUCE, 2},
    {0, 8, -1, LG_OP_UPDATE, -1},     {1, 9, -1, LG_OP_UPDATE, -1},
};

static lg_graph *make_graph(void)
{
    lg_value_info values[NUM_OPS];
    lg_op_info ops[NUM_OPS];
    lg_operand operands[NUM_OPS][NUM_OPERANDS];
    for (int i = 0; i < NUM_OPS; i++) {
        const int reads[2] = {rows[i].reads, rows[i].also_reads};
        values[i] = (lg_value_info){.kind = LG_VALUE_ACTIVATION, .bytes = 64, .rank = rows[i].rank};
        operands[i][0] = (lg_operand){.value = i, .access = LG_ACCESS_WRITE};
        ops[i] = (lg_op_info){.kind = rows[i].kind,
                              .rank = rows[i].rank,
                              .group = rows[i].group,
                              .peer = 1 - rows[i].rank,
                              .message_bytes = 64,
                              .num_operands = 1,
                              .operands = operands[i],
                              .inplace_write = -1,
                              .inplace_read = -1};
        for (int k = 0; k < 2; k++) {
            if (reads[k] >= 0) {
                operands[i][ops[i].num_operands++] =
                    (lg_operand){.value = reads[k], .access = LG_ACCESS_READ};
            }
        }
    }
    const lg_graph_opts opts = lg_graph_opts_default();
    lg_graph *graph = NULL;
    if (lgi_graph_from_records(&graph, &opts, values, NUM_OPS, ops, NUM_OPS) != LG_OK) {
        abort();
    }
    return graph;
}

static void add_entry(lg_lane *lane, int op, int lag)
{
    lane->entries[lane->num_entries++] = (lg_plan_entry){op, lag};
}

/* Each byte names an op that is not placed yet, its lane and its lag; what is left over follows by id. */
static lg_plan *make_plan(const lg_graph *graph, const uint8_t *data, size_t num_bytes)
{
    lg_plan *plan = NULL;
    bool is_placed[NUM_OPS] = {false};
    if (lgi_plan_init(&plan, graph, "fuzz", NUM_LANES) != LG_OK) {
        abort();
    }
    for (int i = 0; i < NUM_LANES; i++) {
        lg_lane *const lane = &plan->lanes[i];
        const int k = i % LANES_PER_RANK;
        lane->rank = i / LANES_PER_RANK;
        lane->kind = k == 0 ? LG_LANE_COMPUTE : LG_LANE_COMM;
        lane->num_cores = k == 0 ? 1 : 0;
        if (lgi_calloc(&lane->entries, NUM_OPS, sizeof *lane->entries) != LG_OK) {
            abort();
        }
    }
    for (size_t i = 0; i < num_bytes + NUM_OPS; i++) {
        const int byte = i < num_bytes ? data[i] : (int)(i - num_bytes);
        const int op = byte % 16;
        if (op >= NUM_OPS || is_placed[op]) {
            continue;
        }
        const bool can_move = rows[op].group >= 0;
        const int lane = can_move && i < num_bytes ? 1 + byte / 16 % 3 : can_move ? 1 : 0;
        is_placed[op] = true;
        add_entry(&plan->lanes[rows[op].rank * LANES_PER_RANK + lane], op,
                  i < num_bytes ? byte / 128 : 0);
    }
    return plan;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes)
{
    static lg_graph *graph;
    static lg_costs *costs;
    if (graph == NULL) {
        graph = make_graph();
        if (lg_costs_create(&costs, graph) != LG_OK) {
            abort();
        }
    }
    lg_machine machine = lg_machine_default();
    machine.num_ranks = 2;
    lg_plan *const plan = make_plan(graph, data, num_bytes);
    lg_timeline timeline = {0};
    lg_rank_stats stats[2];
    const lg_status placed = lgi_plan_place(plan, graph);
    const lg_status checked = lg_plan_check(plan, graph, 0);
    const lg_status simulated = lg_plan_simulate(&timeline, plan, graph, &machine, costs);
    if (placed != checked || placed != simulated || (placed != LG_OK && placed != LG_INVALID_ARG)) {
        abort();
    }
    if (placed == LG_OK &&
        (timeline.num_spans != NUM_OPS || lg_timeline_add_memory(&timeline, plan, graph) != LG_OK ||
         lg_timeline_stats(stats, &timeline, plan, graph) != LG_OK)) {
        abort();
    }
    lg_timeline_deinit(&timeline);
    lg_plan_destroy(plan);
    return 0;
}
