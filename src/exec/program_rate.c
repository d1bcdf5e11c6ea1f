#include "exec/program_rate.h"

#include <string.h>

/* What the graph's builder reserves. */
_Static_assert(sizeof(lg_rate_state) == 11 * sizeof(double), "size of a rate's state");
_Static_assert(sizeof(lg_rate) == 8 * sizeof(double), "size of a rate");

double lgi_step_scale(const lgi_program *program, const lgi_step_input *input)
{
    const int64_t num_samples = input->num_samples > 0
                                    ? input->num_samples
                                    : lg_graph_options(program->lowered->graph)->num_samples;
    return (double)num_samples / input->base_batch;
}

/* --- one micro-batch ----------------------------------------------------------------------------------------------- */

#define MAX_USES 256

void lgi_run_micro_stat(const lgi_program *program, const lgi_step_input *input,
                        const lg_op_info *op, void *const *pointers, int width)
{
    lgi_device *device = program->lowered->device;
    const lg_graph *graph = program->lowered->graph;
    const double weight = input->weights[op->micro_batch];
    const int last = op->num_operands - 1;
    double *stat = pointers[last];
    void *sums[MAX_USES];
    const void *grads[MAX_USES];
    if ((op->operands[last].access & LG_ACCESS_READ) == 0) {
        memset(stat, 0, (size_t)lg_graph_value(graph, op->operands[last].value)->bytes);
    }
    int i = 0;
    while (i < last) {
        const int param = op->operands[i].idx;
        int64_t bytes = 0;
        int num_uses = 0;
        while (i < last && op->operands[i].idx == param) {
            const bool has_own = op->operands[i].role == LG_ROLE_MICRO_GRAD;
            grads[num_uses] = has_own ? pointers[i++] : NULL;
            bytes = lg_graph_value(graph, op->operands[i].value)->bytes;
            sums[num_uses++] = pointers[i++];
        }
        const double squares = device->ops->grad_stat(
            device, width, bytes / (int64_t)device->ops->real_bytes, sums, grads, num_uses);
        /* a micro-batch without weight has no gradient; one that has nevertheless is broken, and seen to be */
        stat[param] += weight > 0.0 ? squares / weight : squares;
    }
}

/* --- rates --------------------------------------------------------------------------------------------------------- */

/* What a RATE op knows of one layer. */
struct layer_stats {
    int layer;
    const double *sums; /* by parameter of the layer */
    const double *norms;
    lg_rate_state *states; /* NULL: another rank's */
};

/* The layer's statistics from operand *i on, which moves behind them. */
static struct layer_stats take_layer(const lg_op_info *op, void *const *pointers, int *i)
{
    struct layer_stats stats = {op->operands[*i].idx, pointers[*i], pointers[*i + 1], NULL};
    *i += 2;
    if (op->operands[*i].role == LG_ROLE_RATE_STATE) {
        stats.states = pointers[(*i)++];
    }
    return stats;
}

static bool owns(const lg_model *model, int layer, int param_idx)
{
    return lg_model_param(model, lg_model_layer(model, layer)->params[param_idx])->owner_layer ==
           layer;
}

static void add_layer(const lg_model *model, const struct layer_stats *stats, lg_grad_stat *sum)
{
    for (int i = 0; i < lg_model_layer(model, stats->layer)->num_params; i++) {
        if (owns(model, stats->layer, i)) {
            sum->sum_squares += stats->sums[i];
            sum->norm_squared += stats->norms[i];
        }
    }
}

/* The layer whose block `layer` is in: a norm belongs to the layer before it, if that has parameters. */
static int block_of(const lg_model *model, int layer)
{
    const lg_layer_info *info = lg_model_layer(model, layer);
    const bool is_norm = info->kind == LG_LAYER_BATCH_NORM || info->kind == LG_LAYER_LAYER_NORM;
    return is_norm && lg_model_layer(model, info->inputs[0])->num_params > 0 ? info->inputs[0]
                                                                             : layer;
}

/* What a layer's parameters share. */
static lg_grad_stat group_stat(const lg_model *model, const lg_op_info *op, void *const *pointers,
                               lg_grouping grouping, const struct layer_stats *stats,
                               const lg_grad_stat *all)
{
    lg_grad_stat group = {0.0, 0.0};
    if (grouping == LG_GROUPING_NETWORK) {
        return *all;
    }
    if (grouping != LG_GROUPING_BLOCK) {
        add_layer(model, stats, &group);
        return group;
    }
    const int block = block_of(model, stats->layer);
    for (int i = 0; i < op->num_operands - 1;) {
        const struct layer_stats other = take_layer(op, pointers, &i);
        if (block_of(model, other.layer) == block) {
            add_layer(model, &other, &group);
        }
    }
    return group;
}

static lg_rate_step rate_step(const lgi_program *program, const lgi_step_input *input)
{
    const int num_micro_batches = lg_graph_num_micro_batches(program->lowered->graph);
    lg_rate_step step = {
        .step = input->step.number,
        .num_steps = input->num_steps,
        .scale = lgi_step_scale(program, input),
        .full_scale = input->full_scale,
        .base_batch = input->base_batch,
    };
    for (int i = 0; i < num_micro_batches; i++) {
        step.num_grads += input->weights[i] > 0.0 ? 1 : 0;
    }
    return step;
}

void lgi_run_rate(const lgi_program *program, const lgi_step_input *input, const lg_op_info *op,
                  void *const *pointers)
{
    const lg_model *model = program->lowered->model;
    const lg_rate_step step = rate_step(program, input);
    const lg_grouping grouping = lg_optim_grouping(input->optim);
    const int last = op->num_operands - 1;
    lg_rate *rates = pointers[last];
    lg_grad_stat all = {0.0, 0.0};
    for (int i = 0; i < last;) {
        const struct layer_stats stats = take_layer(op, pointers, &i);
        add_layer(model, &stats, &all);
    }
    const bool is_finite = lg_grad_stat_is_finite(&all); /* squares: no two cancel out */
    for (int i = 0; i < last;) {
        const struct layer_stats stats = take_layer(op, pointers, &i);
        const lg_layer_info *info = lg_model_layer(model, stats.layer);
        const lg_grad_stat of_group = group_stat(model, op, pointers, grouping, &stats, &all);
        for (int k = 0; stats.states != NULL && k < info->num_params; k++) {
            if (!owns(model, stats.layer, k)) {
                continue;
            }
            const lg_grad_stat of_tensor = {stats.sums[k], stats.norms[k]};
            lg_rate *rate = op->layer >= 0 ? &rates[k] : &rates[info->params[k]];
            if (is_finite) {
                lg_rate_next(input->optim, &step,
                             grouping == LG_GROUPING_TENSOR ? &of_tensor : &of_group, &all,
                             &stats.states[k], rate);
            } else {
                lg_rate_skip(&stats.states[k], rate);
            }
        }
    }
}

const lg_rate *lgi_rate_of(const lgi_program *program, const lg_op_info *op, int param_operand,
                           const lg_rate *rates)
{
    const lg_graph *graph = program->lowered->graph;
    const lg_operand *operand = &op->operands[param_operand];
    if (rates == NULL) {
        return NULL;
    }
    return lg_graph_options(graph)->has_joint_rates
               ? &rates[lg_graph_value(graph, operand->value)->idx]
               : &rates[operand->idx];
}
