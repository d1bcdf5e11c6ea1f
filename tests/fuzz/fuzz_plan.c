/*
 * libFuzzer target: a plan's JSON against a fixed small graph, then the checker and the simulator on what came out. Seeds
 * have PLACEHOLDER where the graph's fingerprint belongs.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/build.h"
#include "leapgrad/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

#define PLACEHOLDER "@@@@@@@@@@@@@@@@"

enum { X, DX, LOSS, W, DW, NUM_VALUES };
enum { FORWARD, LOSS_OP, WEIGHT_GRAD, UPDATE, NUM_OPS };

/* Two widths, an output, persistent values, a workspace: one of each thing that the format can speak of. */
static lg_graph *make_graph(void)
{
    static const lg_value_info values[NUM_VALUES] = {
        [X] = {.name = "x", .kind = LG_VALUE_ACTIVATION, .bytes = 256},
        [DX] = {.name = "dx", .kind = LG_VALUE_GRAD, .bytes = 256},
        [LOSS] = {.name = "loss", .kind = LG_VALUE_LOSS, .bytes = 32, .is_output = true},
        [W] = {.name = "w", .kind = LG_VALUE_PARAM, .bytes = 64, .is_persistent = true},
        [DW] = {.name = "dw", .kind = LG_VALUE_PARAM_GRAD, .bytes = 64, .is_persistent = true},
    };
    static const lg_operand forward[] = {{.value = W, .access = LG_ACCESS_READ},
                                         {.value = X, .access = LG_ACCESS_WRITE}};
    static const lg_operand loss[] = {{.value = X, .access = LG_ACCESS_READ},
                                      {.value = LOSS, .access = LG_ACCESS_WRITE},
                                      {.value = DX, .access = LG_ACCESS_WRITE}};
    static const lg_operand weight_grad[] = {{.value = X, .access = LG_ACCESS_READ},
                                             {.value = DX, .access = LG_ACCESS_READ},
                                             {.value = DW, .access = LG_ACCESS_WRITE}};
    static const lg_operand update[] = {{.value = DW, .access = LG_ACCESS_READ},
                                        {.value = W, .access = LG_ACCESS_READ_WRITE}};
    const lg_op_info ops[NUM_OPS] = {
        [FORWARD] = {.name = "forward",
                     .kind = LG_OP_FORWARD,
                     .num_operands = 2,
                     .operands = forward,
                     .inplace_write = -1,
                     .inplace_read = -1},
        [LOSS_OP] = {.name = "loss",
                     .kind = LG_OP_LOSS,
                     .num_operands = 3,
                     .operands = loss,
                     .inplace_write = -1,
                     .inplace_read = -1},
        [WEIGHT_GRAD] = {.name = "weight_grad",
                         .kind = LG_OP_WEIGHT_GRAD,
                         .num_operands = 3,
                         .operands = weight_grad,
                         .inplace_write = -1,
                         .inplace_read = -1,
                         .workspace_bytes = {128, 192}},
        [UPDATE] = {.name = "update",
                    .kind = LG_OP_UPDATE,
                    .num_operands = 2,
                    .operands = update,
                    .inplace_write = -1,
                    .inplace_read = -1},
    };
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_widths = 2;
    opts.widths[0] = 1;
    opts.widths[1] = 2;
    lg_graph *graph = NULL;
    if (lgi_graph_from_records(&graph, &opts, values, NUM_VALUES, ops, NUM_OPS) != LG_OK) {
        abort();
    }
    return graph;
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
    char *const text = malloc(num_bytes + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, num_bytes);
    text[num_bytes] = '\0';
    char *const at = strstr(text, PLACEHOLDER);
    if (at != NULL) {
        char fingerprint[17];
        snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, lg_graph_fingerprint(graph));
        memcpy(at, fingerprint, 16);
    }
    lg_plan *plan = NULL;
    const lg_status parsed = lg_plan_parse(&plan, graph, text, num_bytes);
    free(text);
    if (parsed != LG_OK) {
        return 0;
    }
    const lg_machine machine = lg_machine_default();
    const bool is_right = lg_plan_check(plan, graph, 0) == LG_OK;
    lg_timeline timeline;
    const lg_status status = lg_plan_simulate(&timeline, plan, graph, &machine, costs);
    if (is_right && status != LG_OK) {
        abort(); /* a proved plan must run to its end */
    }
    if (status == LG_OK) {
        if (lg_timeline_add_memory(&timeline, plan, graph) != LG_OK) {
            abort();
        }
        lg_timeline_deinit(&timeline);
    }
    lg_plan_destroy(plan);
    return 0;
}
