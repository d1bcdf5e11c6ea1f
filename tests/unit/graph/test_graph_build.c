/* The step graph of small models: ops, edges, normal form of backward, ragged micro-batches, ties, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "graph/build.h"

/* conv - bn - relu - conv - bn - add(skip) - relu - gap - linear - loss */
static lg_model *residual_model(void)
{
    lg_model *model = NULL;
    int x = -1;
    int targets = -1;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    assert_int_equal(lg_model_create(&model), LG_OK);
    attrs.input_shape = LG_SHAPE(3, 8, 8);
    assert_int_equal(lg_model_add(model, "image", LG_LAYER_INPUT, &attrs, NULL, 0, &x), LG_OK);
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    assert_int_equal(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets),
                     LG_OK);
    attrs = lg_layer_attrs_default();
    attrs.window = lg_window_square(3, 1, 1);
    attrs.num_outputs = 4;
    attrs.has_bias = false;
    assert_int_equal(lg_model_add(model, "conv1", LG_LAYER_CONV2D, &attrs, &x, 1, &x), LG_OK);
    assert_int_equal(lg_model_add(model, "bn1", LG_LAYER_BATCH_NORM, NULL, &x, 1, &x), LG_OK);
    lg_layer_attrs relu = lg_layer_attrs_default();
    relu.activation = LG_ACTIVATION_RELU;
    assert_int_equal(lg_model_add(model, "relu1", LG_LAYER_ACTIVATION, &relu, &x, 1, &x), LG_OK);
    int inputs[2] = {-1, x};
    assert_int_equal(lg_model_add(model, "conv2", LG_LAYER_CONV2D, &attrs, &x, 1, &x), LG_OK);
    assert_int_equal(lg_model_add(model, "bn2", LG_LAYER_BATCH_NORM, NULL, &x, 1, &inputs[0]),
                     LG_OK);
    assert_int_equal(lg_model_add(model, "add", LG_LAYER_ADD, NULL, inputs, 2, &x), LG_OK);
    assert_int_equal(lg_model_add(model, "relu2", LG_LAYER_ACTIVATION, &relu, &x, 1, &x), LG_OK);
    assert_int_equal(lg_model_add(model, "pool", LG_LAYER_GLOBAL_AVG_POOL, NULL, &x, 1, &x), LG_OK);
    attrs.num_outputs = 10;
    assert_int_equal(lg_model_add(model, "fc", LG_LAYER_LINEAR, &attrs, &x, 1, &inputs[0]), LG_OK);
    inputs[1] = targets;
    assert_int_equal(
        lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL), LG_OK);
    return model;
}

static lg_graph *graph_of(const lg_model *model, lg_graph_mode mode, int64_t num_samples,
                          int num_micro_batches)
{
    lg_graph *graph = NULL;
    lg_graph_opts opts = lg_graph_opts_default();
    opts.mode = mode;
    opts.num_samples = num_samples;
    opts.num_micro_batches = num_micro_batches;
    opts.num_slots = 1;
    opts.has_clipping = true;
    assert_int_equal(lg_graph_create(&graph, model, &opts), LG_OK);
    return graph;
}

static int count_ops(const lg_graph *graph, lg_op_kind kind)
{
    int count = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        count += lg_graph_op(graph, op)->kind == kind;
    }
    return count;
}

static int has_edge(const lg_graph *graph, const char *from, const char *to, int distance)
{
    const int from_op = lg_graph_find_op(graph, from);
    const int to_op = lg_graph_find_op(graph, to);
    assert_true(from_op >= 0 && to_op >= 0);
    for (int i = 0; i < lg_graph_num_edges(graph); i++) {
        const lg_edge *edge = &lg_graph_edges(graph)[i];
        if (edge->from == from_op && edge->to == to_op && edge->distance == distance) {
            return 1;
        }
    }
    return 0;
}

static void residual_model_has_the_expected_ops(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    lg_graph *graph = graph_of(model, LG_GRAPH_TRAIN, 4, 1);
    assert_int_equal(count_ops(graph, LG_OP_FORWARD), 11);
    assert_int_equal(count_ops(graph, LG_OP_LOSS), 1);
    assert_int_equal(count_ops(graph, LG_OP_WEIGHT_GRAD), 3);
    /* fc, pool, relu2, bn2, conv2, relu1, bn1; add passes its gradient on, conv1 needs no input gradient */
    assert_int_equal(count_ops(graph, LG_OP_INPUT_GRAD), 7);
    assert_int_equal(count_ops(graph, LG_OP_GRAD_ADD), 1);
    assert_int_equal(count_ops(graph, LG_OP_GRAD_STAT), 5);
    assert_int_equal(count_ops(graph, LG_OP_GRAD_CLIP), 1);
    assert_int_equal(count_ops(graph, LG_OP_UPDATE), 5);
    assert_int_equal(count_ops(graph, LG_OP_REORDER), 0);
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void edges_inside_a_step_go_forward(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    lg_graph *graph = graph_of(model, LG_GRAPH_TRAIN, 7, 3);
    for (int i = 0; i < lg_graph_num_edges(graph); i++) {
        const lg_edge *edge = &lg_graph_edges(graph)[i];
        assert_true(edge->distance == 1 || edge->from < edge->to);
    }
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void updates_wait_for_readers_and_forwards_for_updates(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    lg_graph *graph = graph_of(model, LG_GRAPH_TRAIN, 7, 3);
    assert_true(has_edge(graph, "input_grad(conv2,2)", "update(conv2)", 0));
    assert_true(has_edge(graph, "weight_grad(conv2,0)", "weight_grad(conv2,1)", 0));
    assert_true(has_edge(graph, "weight_grad(conv2,1)", "weight_grad(conv2,2)", 0));
    assert_true(has_edge(graph, "update(conv2)", "forward(conv2,0)", 1));
    assert_true(has_edge(graph, "update(conv2)", "forward(conv2,2)", 1));
    assert_true(has_edge(graph, "update(conv2)", "weight_grad(conv2,0)", 1));
    assert_true(has_edge(graph, "grad_clip()", "update(fc)", 0));
    assert_true(has_edge(graph, "forward(bn1,1)", "update(bn1)", 0)); /* its statistics */
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void ragged_batch_is_split_with_the_larger_parts_first(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    lg_graph *graph = graph_of(model, LG_GRAPH_TRAIN, 8, 3);
    assert_int_equal(lg_graph_micro_batch_samples(graph, 0), 3);
    assert_int_equal(lg_graph_micro_batch_samples(graph, 1), 3);
    assert_int_equal(lg_graph_micro_batch_samples(graph, 2), 2);
    assert_int_equal(lg_graph_micro_batch_begin(graph, 2), 6);
    lg_graph_destroy(graph);
    graph = graph_of(model, LG_GRAPH_TRAIN, 2, 3);
    assert_int_equal(lg_graph_num_micro_batches(graph), 2);
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void evaluation_shares_the_persistent_values_of_training(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    lg_graph *train = graph_of(model, LG_GRAPH_TRAIN, 8, 3);
    lg_graph *eval = graph_of(model, LG_GRAPH_EVAL, 5, 1);
    lg_graph *predict = graph_of(model, LG_GRAPH_PREDICT, 1, 1);
    const lg_graph *others[2] = {eval, predict};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; lg_graph_value(train, i)->is_persistent; i++) {
            assert_string_equal(lg_graph_value(train, i)->name, lg_graph_value(others[k], i)->name);
            assert_int_equal(lg_graph_value(train, i)->bytes, lg_graph_value(others[k], i)->bytes);
        }
    }
    assert_int_equal(count_ops(eval, LG_OP_LOSS), 1);
    assert_int_equal(count_ops(eval, LG_OP_UPDATE), 0);
    assert_int_equal(count_ops(predict, LG_OP_LOSS), 0);
    lg_graph_destroy(train);
    lg_graph_destroy(eval);
    lg_graph_destroy(predict);
    lg_model_destroy(model);
}

static void fused_model_keeps_names_and_parameters(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    lg_model *fused = NULL;
    assert_int_equal(lgi_model_fuse(&fused, model), LG_OK);
    assert_int_equal(lg_model_find_layer(fused, "relu1"), -1);
    assert_int_equal(lg_model_find_layer(fused, "relu2"), -1);
    const lg_layer_info *bn1 = lg_model_layer(fused, lg_model_find_layer(fused, "bn1"));
    assert_int_equal(bn1->attrs->activation, LG_ACTIVATION_RELU);
    assert_int_equal(lg_model_num_params(fused), lg_model_num_params(model));
    for (int i = 0; i < lg_model_num_params(model); i++) {
        assert_string_equal(lg_model_param(fused, i)->name, lg_model_param(model, i)->name);
    }
    lg_model_destroy(fused);
    lg_model_destroy(model);
}

/* ids - embedding - linear (tied to it) - loss */
static void tied_weight_adds_up_per_use_then_over_uses(void **state)
{
    (void)state;
    lg_model *model = NULL;
    int ids = -1;
    int targets = -1;
    int x = -1;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    assert_int_equal(lg_model_create(&model), LG_OK);
    attrs.input_shape = LG_SHAPE(6);
    attrs.input_dtype = LG_DTYPE_I32;
    assert_int_equal(lg_model_add(model, "ids", LG_LAYER_INPUT, &attrs, NULL, 0, &ids), LG_OK);
    attrs.input_idx = 1;
    assert_int_equal(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets),
                     LG_OK);
    attrs = lg_layer_attrs_default();
    attrs.num_embeddings = 11;
    attrs.num_outputs = 4;
    assert_int_equal(lg_model_add(model, "embed", LG_LAYER_TOKEN_EMBEDDING, &attrs, &ids, 1, &x),
                     LG_OK);
    attrs.num_outputs = 11;
    int inputs[2] = {-1, targets};
    assert_int_equal(lg_model_add(model, "head", LG_LAYER_LINEAR, &attrs, &x, 1, &inputs[0]),
                     LG_OK);
    assert_int_equal(lg_model_tie(model, inputs[0], 0, x, 0), LG_OK);
    assert_int_equal(
        lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL), LG_OK);
    assert_int_equal(lg_model_num_params(model), 2);
    assert_string_equal(lg_model_param(model, 1)->name, "head.bias");
    lg_graph *graph = graph_of(model, LG_GRAPH_TRAIN, 4, 2);
    assert_true(has_edge(graph, "weight_grad(head,0)", "weight_grad(head,1)", 0));
    assert_true(has_edge(graph, "weight_grad(embed,0)", "weight_grad(embed,1)", 0));
    assert_true(has_edge(graph, "weight_grad(head,1)", "grad_add(embed.weight)", 0));
    assert_true(has_edge(graph, "weight_grad(embed,1)", "grad_add(embed.weight)", 0));
    assert_true(has_edge(graph, "grad_add(embed.weight)", "update(embed)", 0));
    assert_true(has_edge(graph, "input_grad(head,1)", "update(embed)", 0));
    assert_true(has_edge(graph, "update(embed)", "forward(head,0)", 1));
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

/* Two pipeline ranks cut after relu1, two replicas. */
static void ranks_exchange_values_gradients_and_sums(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    int stage_of_layer[16];
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        stage_of_layer[layer] = layer > lg_model_find_layer(model, "relu1");
    }
    const lg_parallel parallel = {.num_replicas = 2,
                                  .num_pipeline_ranks = 2,
                                  .num_stages = 2,
                                  .stage_of_layer = stage_of_layer,
                                  .chunk_bytes = 64};
    lg_graph_opts opts = lg_graph_opts_default();
    lg_graph *graph = NULL;
    opts.num_samples = 7;
    opts.num_micro_batches = 3;
    opts.parallel = &parallel;
    opts.has_clipping = true;
    assert_int_equal(lg_graph_create(&graph, model, &opts), LG_OK);
    assert_int_equal(lg_graph_num_ranks(graph), 4);
    assert_int_equal(lg_graph_num_micro_batches(graph), 6);
    /* per micro-batch the activation there and the gradient back; per replica the stats both ways */
    assert_int_equal(count_ops(graph, LG_OP_SEND), 6 * 2 + 2 * 2);
    assert_int_equal(count_ops(graph, LG_OP_RECV), 6 * 2 + 2 * 2);
    /* the skip's and the branch's gradients are added on the second rank before they travel */
    const int add = lg_graph_find_op(graph, "grad_add(relu1,0)@1");
    assert_true(add >= 0);
    assert_true(has_edge(graph, "recv(activation(relu1,4)@2,2>3)", "forward(conv2,4)@3", 0));
    /* conv1.weight is 4*3*3*3 floats: 432 bytes in chunks of 64, on two replicas */
    assert_true(lg_graph_find_op(graph, "all_reduce(conv1,6)@2") >= 0);
    assert_int_equal(lg_graph_find_op(graph, "all_reduce(conv1,7)@2"), -1);
    assert_true(has_edge(graph, "all_reduce(conv1,6)@2", "update(conv1)@2", 0));
    /* targets are loaded where the loss is, images where the first layer is */
    assert_true(lg_graph_find_op(graph, "forward(targets,0)@1") >= 0);
    assert_int_equal(lg_graph_find_op(graph, "forward(image,0)@1"), -1);
    for (int i = 0; i < lg_graph_num_edges(graph); i++) {
        const lg_edge *edge = &lg_graph_edges(graph)[i];
        const lg_op_info *from = lg_graph_op(graph, edge->from);
        assert_true(edge->distance == 1 || edge->from < edge->to);
        assert_true(from->rank == lg_graph_op(graph, edge->to)->rank || from->kind == LG_OP_SEND);
    }
    lg_graph_destroy(graph);
    stage_of_layer[lg_model_find_layer(model, "conv2")] = 0;
    stage_of_layer[lg_model_find_layer(model, "conv1")] = 1;
    assert_int_equal(lg_graph_create(&graph, model, &opts), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "later stage"));
    lg_model_destroy(model);
}

static void wrong_models_are_refused_by_name(void **state)
{
    (void)state;
    lg_model *model = residual_model();
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int x = lg_model_find_layer(model, "conv1");
    attrs.num_outputs = 3;
    attrs.groups = 2;
    assert_int_equal(lg_model_add(model, "bad", LG_LAYER_CONV2D, &attrs, &x, 1, NULL),
                     LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "'bad': groups is 2"));
    attrs.groups = 1;
    attrs.window = lg_window_square(9, 1, 0);
    assert_int_equal(lg_model_add(model, "bad", LG_LAYER_CONV2D, &attrs, &x, 1, NULL),
                     LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "does not fit"));
    assert_int_equal(lg_model_add(model, "conv1", LG_LAYER_CONV2D, &attrs, &x, 1, NULL),
                     LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "twice"));
    assert_int_equal(lg_model_add(model, "a b", LG_LAYER_FLATTEN, NULL, &x, 1, NULL),
                     LG_INVALID_ARG);
    x = 99;
    assert_int_equal(lg_model_add(model, "bad", LG_LAYER_FLATTEN, NULL, &x, 1, NULL),
                     LG_INVALID_ARG);
    x = 0;
    assert_int_equal(lg_model_add(model, "unused", LG_LAYER_FLATTEN, NULL, &x, 1, NULL), LG_OK);
    lg_graph *graph = NULL;
    const lg_graph_opts opts = lg_graph_opts_default();
    assert_int_equal(lg_graph_create(&graph, model, &opts), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "'unused'"));
    lg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residual_model_has_the_expected_ops),
        cmocka_unit_test(edges_inside_a_step_go_forward),
        cmocka_unit_test(updates_wait_for_readers_and_forwards_for_updates),
        cmocka_unit_test(ragged_batch_is_split_with_the_larger_parts_first),
        cmocka_unit_test(evaluation_shares_the_persistent_values_of_training),
        cmocka_unit_test(fused_model_keeps_names_and_parameters),
        cmocka_unit_test(tied_weight_adds_up_per_use_then_over_uses),
        cmocka_unit_test(ranks_exchange_values_gradients_and_sums),
        cmocka_unit_test(wrong_models_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
