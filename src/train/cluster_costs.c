#include "train/cluster_costs.h"

#include "base/alloc.h"
#include "base/check.h"

#define UNIT_NS 1e6

/* What an op is a part of. */
typedef enum phase { PHASE_F, PHASE_I, PHASE_W, NUM_PHASES } phase;

static phase phase_of(const lg_op_info *op)
{
    switch (op->kind) {
    case LG_OP_FORWARD:
    case LG_OP_LOSS:
        return op->layer >= 0 ? PHASE_F : NUM_PHASES;
    case LG_OP_INPUT_GRAD:
        return PHASE_I;
    case LG_OP_WEIGHT_GRAD:
        return PHASE_W;
    default:
        return NUM_PHASES;
    }
}

static bool is_loading(const lg_graph *graph, const lg_op_info *op)
{
    return op->layer >= 0 &&
           lg_model_layer(lg_graph_model(graph), op->layer)->kind == LG_LAYER_INPUT;
}

lg_status lgi_cluster_layer_ns(double *ns, const lg_model *model, const lg_machine *machine,
                               const lg_graph_opts *graph_opts)
{
    lg_status status = LG_OK;
    lg_graph *graph = NULL;
    lg_costs *costs = NULL;
    lg_graph_opts opts = *graph_opts;
    opts.parallel = NULL;
    opts.num_samples = graph_opts->num_samples / graph_opts->num_micro_batches;
    opts.num_samples = opts.num_samples > 0 ? opts.num_samples : 1;
    opts.num_micro_batches = 1;
    LG_TRY_GOTO(lg_graph_create(&graph, model, &opts));
    LG_TRY_GOTO(lg_costs_create(&costs, graph));
    lg_costs_estimate(costs, graph, machine);
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *const op = lg_graph_op(graph, i);
        if (phase_of(op) != NUM_PHASES) {
            ns[op->layer] += lg_costs_op_ns(costs, i, 0);
        }
    }
out:
    lg_costs_destroy(costs);
    lg_graph_destroy(graph);
    return status;
}

lg_status lgi_cluster_equal_times(lg_costs *costs, const lg_graph *graph)
{
    double *sums = NULL; /* by phase, stage, micro-batch */
    const size_t num_micro_batches = (size_t)lg_graph_num_micro_batches(graph);
    const size_t num = (size_t)lg_graph_num_stages(graph) * num_micro_batches;
    const double unit_ns =
        UNIT_NS * lg_graph_num_pipeline_ranks(graph) / lg_graph_num_stages(graph);
    LG_TRY(lgi_calloc(&sums, num * NUM_PHASES, sizeof *sums));
    for (int round = 0; round < 2; round++) { /* the sums, then the shares */
        for (int i = 0; i < lg_graph_num_ops(graph); i++) {
            const lg_op_info *const op = lg_graph_op(graph, i);
            const phase part = phase_of(op);
            if (part == NUM_PHASES || op->micro_batch < 0 || is_loading(graph, op)) {
                lg_costs_set_op_ns(costs, i, 0, 0.0);
                continue;
            }
            double *const sum = &sums[(size_t)part * num + (size_t)op->stage * num_micro_batches +
                                      (size_t)op->micro_batch];
            const double ns = lg_costs_op_ns(costs, i, 0);
            if (round == 0) {
                *sum += ns;
            } else if (*sum > 0.0) {
                lg_costs_set_op_ns(costs, i, 0, ns / *sum * unit_ns);
            }
        }
    }
    lgi_free(sums);
    return LG_OK;
}
