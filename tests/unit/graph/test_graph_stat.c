/* Gradient statistics in step graphs over ranks: where the ops are, what travels in which message, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "leapgrad/graph.h"
#include "leapgrad/models.h"

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
}

static lg_model *small_resnet(void)
{
    lg_model *model = NULL;
    lg_resnet_opts opts = lg_resnet_opts_default();
    opts.input = LG_SHAPE(1, 8, 8);
    opts.depth = 8;
    assert_ok(lg_model_resnet(&model, &opts));
    return model;
}

/* The last half of the layers is stage 1. */
static void fill_stages(const lg_model *model, int *stages)
{
    for (int i = 0; i < lg_model_num_layers(model); i++) {
        stages[i] = i < lg_model_num_layers(model) / 2 ? 0 : 1;
    }
}

static lg_status build(lg_graph **out, const lg_model *model, int num_replicas,
                       int num_pipeline_ranks, const int *stages, bool has_joint_rates)
{
    const lg_parallel parallel = {.num_replicas = num_replicas,
                                  .num_pipeline_ranks = num_pipeline_ranks,
                                  .num_stages = num_pipeline_ranks,
                                  .stage_of_layer = num_pipeline_ranks > 1 ? stages : NULL,
                                  .chunk_bytes = 1024};
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_samples = 12;
    opts.num_micro_batches = 3;
    opts.num_slots = 1;
    opts.has_clipping = true;
    opts.has_grad_stats = true;
    opts.has_joint_rates = has_joint_rates;
    opts.parallel = &parallel;
    return lg_graph_create(out, model, &opts);
}

static bool has_role(const lg_op_info *op, lg_role role)
{
    for (int i = 0; i < op->num_operands; i++) {
        if (op->operands[i].role == role) {
            return true;
        }
    }
    return false;
}

static void every_update_reads_a_rate_of_its_own_rank(void **state)
{
    (void)state;
    lg_model *model = small_resnet();
    int stages[256];
    fill_stages(model, stages);
    for (int joint = 0; joint < 2; joint++) {
        for (int d = 1; d <= 2; d++) {
            for (int p = 1; p <= 2; p++) {
                lg_graph *graph = NULL;
                int num_rates = 0;
                assert_ok(build(&graph, model, d, p, stages, joint != 0));
                for (int i = 0; i < lg_graph_num_ops(graph); i++) {
                    const lg_op_info *op = lg_graph_op(graph, i);
                    num_rates += op->kind == LG_OP_RATE ? 1 : 0;
                    if (op->kind == LG_OP_UPDATE) {
                        assert_true(has_role(op, LG_ROLE_RATE));
                    }
                    for (int k = 0; k < op->num_operands; k++) {
                        const lg_value_info *value = lg_graph_value(graph, op->operands[k].value);
                        assert_int_equal(value->rank, op->rank);
                    }
                }
                assert_true(joint != 0 ? num_rates == d * p : num_rates > d * p);
                lg_graph_destroy(graph);
            }
        }
    }
    lg_model_destroy(model);
}

static void a_layers_statistics_travel_in_its_last_all_reduce(void **state)
{
    (void)state;
    lg_model *model = small_resnet();
    lg_graph *graph = NULL;
    int num_with = 0;
    int num_layers = 0;
    assert_ok(build(&graph, model, 2, 1, NULL, true));
    for (int i = 0; i < lg_graph_num_ops(graph); i++) {
        const lg_op_info *op = lg_graph_op(graph, i);
        if (op->kind == LG_OP_ALL_REDUCE) {
            num_with += has_role(op, LG_ROLE_STAT_SUM) ? 1 : 0;
            num_layers += op->chunk == 0 ? 1 : 0;
        }
    }
    assert_true(num_layers > 0);
    assert_int_equal(num_with, num_layers);
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void micro_gradients_are_there_from_the_second_micro_batch_on(void **state)
{
    (void)state;
    lg_model *model = small_resnet();
    lg_graph *graph = NULL;
    assert_ok(build(&graph, model, 1, 1, NULL, true));
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->kind == LG_VALUE_MICRO_GRAD) {
            assert_true(value->micro_batch > 0);
            assert_false(value->is_persistent);
        }
    }
    assert_true(lg_graph_find_op(graph, "grad_stat(conv1,0)") >= 0);
    assert_true(lg_graph_find_op(graph, "grad_stat(conv1,2)") >= 0);
    assert_true(lg_graph_find_op(graph, "grad_stat(conv1)") >= 0);
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void uses_of_a_tied_parameter_on_two_ranks_are_refused(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_graph *graph = NULL;
    int stages[256];
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = 1;
    opts.width = 8;
    opts.num_heads = 2;
    opts.context = 4;
    opts.vocab_size = 11;
    assert_ok(lg_model_gpt(&model, &opts));
    fill_stages(model, stages);
    assert_ok(build(&graph, model, 2, 1, NULL, true));
    lg_graph_destroy(graph);
    assert_int_equal(build(&graph, model, 1, 2, stages, true), LG_NOT_SUPPORTED);
    assert_non_null(strstr(lg_last_error(), "gradient statistics"));
    assert_null(graph);
    lg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_update_reads_a_rate_of_its_own_rank),
        cmocka_unit_test(a_layers_statistics_travel_in_its_last_all_reduce),
        cmocka_unit_test(micro_gradients_are_there_from_the_second_micro_batch_on),
        cmocka_unit_test(uses_of_a_tied_parameter_on_two_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
