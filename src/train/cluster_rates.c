/* The rates of a core as a machine file has them, from the measured costs of two large ops. */
#include <string.h>

#include "base/check.h"
#include "leapgrad/selftest.h"
#include "leapgrad/trainer.h"

/* A product of about half a GFLOP; an update of 4 MiB of parameters and as much for each slot, more than a core's own caches hold. */
#define NUM_SAMPLES 256
#define NUM_FEATURES 1024

static lg_status make_model(lg_model **out)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int layers[3] = {0, 0, 0};
    LG_TRY(lg_model_create(out));
    attrs.input_shape = LG_SHAPE(NUM_FEATURES);
    LG_TRY(lg_model_add(*out, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &layers[0]));
    attrs.num_outputs = NUM_FEATURES;
    LG_TRY(lg_model_add(*out, "fc", LG_LAYER_LINEAR, &attrs, &layers[0], 1, &layers[1]));
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_idx = 1;
    LG_TRY(lg_model_add(*out, "labels", LG_LAYER_INPUT, &attrs, NULL, 0, &layers[2]));
    return lg_model_add(*out, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, &layers[1], 2, NULL);
}

/* `amount` of work in `ns`, of which starting the op is no part. */
static double rate_of(double amount, double ns, const lg_machine *machine)
{
    const double work_ns = ns - machine->op_overhead_ns;
    return work_ns > 0.0 ? amount / (work_ns * 1e-9) : 0.0;
}

static void find_rates(const lg_trainer *trainer, lg_machine *machine)
{
    const lg_graph *const graph = lg_trainer_graph(trainer);
    double most_flops = 0.0;
    double most_bytes = 0.0;
    double flops_per_s = 0.0;
    double bytes_per_s = 0.0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        const double ns = lg_costs_op_ns(lg_trainer_cost_table(trainer), op, 0);
        if (info->kind == LG_OP_FORWARD && info->flops > most_flops) {
            most_flops = info->flops;
            flops_per_s = rate_of(info->flops, ns, machine);
        } else if (info->kind == LG_OP_UPDATE && info->traffic_bytes > most_bytes) {
            most_bytes = info->traffic_bytes;
            bytes_per_s = rate_of(info->traffic_bytes, ns, machine);
        }
    }
    machine->flops_per_s = flops_per_s > 0.0 ? flops_per_s : machine->flops_per_s;
    machine->bytes_per_s = bytes_per_s > 0.0 ? bytes_per_s : machine->bytes_per_s;
}

lg_status lg_measure_rates(const char *device, lg_machine *machine)
{
    lg_model *model = NULL;
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = device;
    opts.batch_samples = NUM_SAMPLES;
    opts.num_lanes = 1;
    opts.threads_per_lane = 1;
    opts.costs = LG_TRAINER_COSTS_MEASURE;
    lg_status status = make_model(&model);
    if (status == LG_OK) {
        status = lg_trainer_create(&trainer, model, &opts);
    }
    if (status == LG_OK) {
        find_rates(trainer, machine);
    }
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    return status;
}
