/* Pipelines of equal linear layers with costs set by hand, and what is read off their plans. */
#ifndef PIPELINE_FIXTURE_H
#define PIPELINE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/placement.h"
#include "plan/strategies/pipeline.h"
#include "plan/strategies/units.h"

#define assert_ok(expr) \
    do { \
        if ((expr) != LG_OK) { \
            fail_msg("%s", lg_last_error()); \
        } \
    } while (0)

#define assert_fails(code, part, expr) \
    do { \
        assert_int_equal((expr), (code)); \
        if (strstr(lg_last_error(), (part)) == NULL) { \
            fail_msg("'%s' does not say '%s'", lg_last_error(), (part)); \
        } \
    } while (0)

/* A stem without cost (so that every block has an input gradient), blocks "h.0" .. of one linear layer each, the loss. */
static inline lg_model *linear_model(int num_blocks)
{
    lg_model *model = NULL;
    int x = -1;
    int targets = -1;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    assert_ok(lg_model_create(&model));
    attrs.input_shape = LG_SHAPE(2);
    assert_ok(lg_model_add(model, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &x));
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    assert_ok(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets));
    attrs = lg_layer_attrs_default();
    attrs.num_outputs = 2;
    attrs.has_bias = false;
    assert_ok(lg_model_add(model, "stem", LG_LAYER_LINEAR, &attrs, &x, 1, &x));
    for (int i = 0; i < num_blocks; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "h.%d", i);
        assert_ok(lg_model_add(model, name, LG_LAYER_LINEAR, &attrs, &x, 1, &x));
    }
    const int inputs[2] = {x, targets};
    assert_ok(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL));
    return model;
}

static inline lg_machine free_links(int num_ranks)
{
    lg_machine machine = lg_machine_default();
    machine.num_ranks = num_ranks;
    machine.ranks_per_host = num_ranks;
    machine.intra_host = (lg_link){.latency_ns = 0.0, .bytes_per_s = 1e18, .is_shared = false};
    return machine;
}

/* A graph with all that planning needs. */
typedef struct pipeline_case {
    lg_model *model;
    lg_stages stages;
    lg_graph *graph;
    lg_machine machine;
    lg_costs *costs;
} pipeline_case;

/* F, I, W of every block's layer take the given times, all else nothing. `stages` becomes the case's. */
static inline void case_init(pipeline_case *c, lg_model *model, lg_stages stages,
                             int num_micro_batches, int num_replicas, double f_ns, double i_ns,
                             double w_ns)
{
    lg_parallel parallel = {.num_replicas = num_replicas};
    lg_graph_opts opts = lg_graph_opts_default();
    *c = (pipeline_case){.model = model, .stages = stages};
    lg_stages_apply(&stages, &parallel);
    opts.num_samples = (int64_t)num_micro_batches * num_replicas;
    opts.num_micro_batches = num_micro_batches;
    opts.parallel = &parallel;
    assert_ok(lg_graph_create(&c->graph, model, &opts));
    c->machine = free_links(lg_graph_num_ranks(c->graph));
    assert_ok(lg_costs_create(&c->costs, c->graph));
    for (int op = 0; op < lg_graph_num_ops(c->graph); op++) {
        const lg_op_info *const info = lg_graph_op(c->graph, op);
        const char *const layer = info->layer >= 0 ? lg_model_layer(model, info->layer)->name : "";
        double ns = 0.0;
        if (strncmp(layer, "h.", 2) == 0) {
            ns = info->kind == LG_OP_FORWARD       ? f_ns
                 : info->kind == LG_OP_INPUT_GRAD  ? i_ns
                 : info->kind == LG_OP_WEIGHT_GRAD ? w_ns
                                                   : 0.0;
        }
        lg_costs_set_op_ns(c->costs, op, 0, ns);
    }
}

static inline void case_deinit(pipeline_case *c)
{
    lg_costs_destroy(c->costs);
    lg_graph_destroy(c->graph);
    lg_stages_deinit(&c->stages);
    lg_model_destroy(c->model);
}

#endif
