/* Which layers share a reduction over replicas, what it waits for, and what waits for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "graph/reduce_parts.h"
#include "leapgrad/graph.h"
#include "leapgrad/models.h"
#include "leapgrad/placement.h"

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
}

/* Linear layers one after the other, without biases: layer i, called "l<i>", has 4 * widths[i] * widths[i + 1] bytes. */
static lg_model *linear_chain(const int *widths, int num_layers)
{
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int x = -1;
    int targets = -1;
    assert_ok(lg_model_create(&model));
    attrs.input_shape = LG_SHAPE(widths[0]);
    assert_ok(lg_model_add(model, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &x));
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_shape.num_dims = 0;
    assert_ok(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets));
    for (int i = 0; i < num_layers; i++) {
        char name[16];
        attrs = lg_layer_attrs_default();
        attrs.num_outputs = widths[i + 1];
        attrs.has_bias = false;
        (void)snprintf(name, sizeof name, "l%d", i);
        assert_ok(lg_model_add(model, name, LG_LAYER_LINEAR, &attrs, &x, 1, &x));
    }
    const int last[] = {x, targets};
    assert_ok(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, last, 2, NULL));
    return model;
}

static lg_graph *graph_of(const lg_model *model, const lg_parallel *parallel)
{
    lg_graph *graph = NULL;
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_samples = 4 * parallel->num_replicas;
    opts.num_micro_batches = 2;
    opts.num_slots = 1;
    opts.parallel = parallel;
    assert_ok(lg_graph_create(&graph, model, &opts));
    return graph;
}

static bool has_edge(const lg_graph *graph, int from, int to)
{
    for (int i = 0; i < lg_graph_num_edges(graph); i++) {
        const lg_edge *const edge = &lg_graph_edges(graph)[i];
        if (edge->from == from && edge->to == to && edge->distance == 0) {
            return true;
        }
    }
    return false;
}

/* The names of rank `rank`'s reductions, in the order of ops, with blanks between. */
static const char *reductions(const lg_graph *graph, int rank)
{
    static char text[4096];
    size_t used = 0;
    text[0] = '\0';
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (info->kind == LG_OP_ALL_REDUCE && info->rank == rank) {
            const char *const open = strchr(info->name, '(');
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s", used > 0 ? " " : "",
                                     (int)(strchr(info->name, ')') - open - 1), open + 1);
        }
    }
    return text;
}

static void expect_reductions(const lg_model *model, int64_t share_bytes, int64_t chunk_bytes,
                              const char *expected)
{
    const lg_parallel parallel = {.num_replicas = 2,
                                  .num_pipeline_ranks = 1,
                                  .num_stages = 1,
                                  .chunk_bytes = chunk_bytes,
                                  .share_bytes = share_bytes};
    lg_graph *const graph = graph_of(model, &parallel);
    assert_string_equal(reductions(graph, 0), expected);
    assert_string_equal(reductions(graph, 1), expected);
    lg_graph_destroy(graph);
}

/*
 * What must hold however layers share: each gradient is in the chunks of one reduction; the first chunk waits for all that
 * writes it, an update for the last chunk; bytes and staging are those of what travels.
 */
static void check_reductions(const lg_graph *graph)
{
    for (int value = 0; value < lg_graph_num_values(graph); value++) {
        const lg_value_info *const of_value = lg_graph_value(graph, value);
        int last_writer = -1;
        int reduction = -1;
        if (of_value->kind != LG_VALUE_PARAM_GRAD || strncmp(of_value->name, "use_grad", 8) == 0) {
            continue;
        }
        for (int op = 0; op < lg_graph_num_ops(graph); op++) {
            const lg_op_info *const info = lg_graph_op(graph, op);
            for (int i = 0; i < info->num_operands; i++) {
                const bool is_it = info->operands[i].value == value;
                if (is_it && info->kind == LG_OP_ALL_REDUCE) {
                    assert_int_equal(info->rank, of_value->rank);
                    assert_true(info->chunk == 0 ? reduction < 0 : reduction >= 0);
                    assert_true(has_edge(graph, info->chunk == 0 ? last_writer : reduction, op));
                    reduction = op;
                } else if (is_it && info->kind == LG_OP_UPDATE &&
                           info->operands[i].role == LG_ROLE_DPARAM) {
                    assert_true(has_edge(graph, reduction, op));
                } else if (is_it && (info->operands[i].access & LG_ACCESS_WRITE) != 0) {
                    assert_int_equal(reduction, -1);
                    last_writer = op;
                }
            }
        }
        assert_true(reduction >= 0);
    }
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        int64_t num_bytes = 0;
        int first_layer = lg_model_num_layers(lg_graph_model(graph));
        if (info->kind != LG_OP_ALL_REDUCE) {
            continue;
        }
        for (int i = 0; i < info->num_operands; i++) {
            const lg_value_info *const value = lg_graph_value(graph, info->operands[i].value);
            num_bytes += value->bytes;
            first_layer = value->layer < first_layer ? value->layer : first_layer;
        }
        assert_int_equal(info->layer, first_layer);
        assert_true(info->message_bytes > 0 && info->message_bytes <= num_bytes);
        assert_true(info->workspace_bytes[0] > 0 || lg_graph_num_replicas(graph) == 1);
    }
}

static void layers_share_until_the_bytes_are_there(void **state)
{
    (void)state;
    /* l0 to l5: 16 x 16 numbers, 1 KiB each */
    const int widths[] = {16, 16, 16, 16, 16, 16, 16};
    lg_model *const model = linear_chain(widths, 6);
    expect_reductions(model, 0, 0, "l5,0 l4,0 l3,0 l2,0 l1,0 l0,0");
    expect_reductions(model, 1024, 0, "l5,0 l4,0 l3,0 l2,0 l1,0 l0,0"); /* one has them already */
    /* two each, but at the end no more than half of what is left */
    expect_reductions(model, 1025, 0, "l4+1,0 l2+1,0 l1,0 l0,0");
    expect_reductions(model, 2048, 0, "l4+1,0 l2+1,0 l1,0 l0,0");
    expect_reductions(model, 16384, 0, "l3+2,0 l1+1,0 l0,0");
    /* halves below a 16th of the bytes are not made */
    expect_reductions(model, 16 * 2048, 0, "l3+2,0 l1+1,0 l0,0");
    expect_reductions(model, 16 * 5000, 0, "l1+4,0 l0,0");
    expect_reductions(model, INT64_MAX, 0, "l0+5,0");
    lg_model_destroy(model);
}

static void one_layer_has_its_own(void **state)
{
    (void)state;
    const int widths[] = {16, 16};
    lg_model *const model = linear_chain(widths, 1);
    expect_reductions(model, 0, 0, "l0,0");
    expect_reductions(model, 1 << 20, 0, "l0,0");
    lg_model_destroy(model);
}

static void a_large_layer_ends_what_is_shared_with_the_small_ones_behind_it(void **state)
{
    (void)state;
    /* l0, l1: 64 bytes, l2 256 bytes, l3 16 KiB, l4 256, l5 64 bytes */
    const int widths[] = {4, 4, 4, 16, 256, 4, 4};
    lg_model *const model = linear_chain(widths, 6);
    lg_parallel parallel = {
        .num_replicas = 2, .num_pipeline_ranks = 1, .num_stages = 1, .share_bytes = 8192};
    lg_graph *const graph = graph_of(model, &parallel);
    assert_string_equal(reductions(graph, 0), "l3+2,0 l0+2,0");
    const int op = lg_graph_find_op(graph, "all_reduce(l3+2,0)@1");
    assert_true(op >= 0);
    const lg_op_info *const info = lg_graph_op(graph, op);
    assert_int_equal(info->message_bytes, 4 * (16 * 256 + 256 * 4 + 4 * 4));
    assert_int_equal(info->num_operands, 3);
    check_reductions(graph);
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void what_is_shared_is_cut_into_chunks_like_a_layer(void **state)
{
    (void)state;
    const int widths[] = {16, 16, 16, 16, 16};
    lg_model *const model = linear_chain(widths, 4);
    expect_reductions(model, 1 << 20, 1500, "l0+3,0 l0+3,1 l0+3,2");
    lg_parallel parallel = {.num_replicas = 3,
                            .num_pipeline_ranks = 1,
                            .num_stages = 1,
                            .chunk_bytes = 1500,
                            .share_bytes = 1 << 20};
    lg_graph *const graph = graph_of(model, &parallel);
    int64_t num_bytes = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        num_bytes += info->kind == LG_OP_ALL_REDUCE && info->rank == 0 ? info->message_bytes : 0;
    }
    assert_int_equal(num_bytes, 4 * 1024);
    check_reductions(graph);
    lg_graph_destroy(graph);
    lg_model_destroy(model);
}

static void so_many_tensors_share_at_most(void **state)
{
    (void)state;
    enum { NUM_LAYERS = LGI_MAX_REDUCE_TENSORS + 6 };
    int widths[NUM_LAYERS + 1];
    for (int i = 0; i <= NUM_LAYERS; i++) {
        widths[i] = 4;
    }
    lg_model *const model = linear_chain(widths, NUM_LAYERS);
    expect_reductions(model, INT64_MAX, 0, "l6+63,0 l0+5,0");
    lg_model_destroy(model);
}

/* A ResNet-8 with batch norm: layers with one and with two parameters. */
static void statistics_of_all_layers_travel_in_the_last_chunk(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_resnet_opts resnet = lg_resnet_opts_default();
    resnet.input = LG_SHAPE(1, 8, 8);
    resnet.depth = 8;
    assert_ok(lg_model_resnet(&model, &resnet));
    for (int chunk = 0; chunk < 2; chunk++) {
        const lg_parallel parallel = {.num_replicas = 2,
                                      .num_pipeline_ranks = 1,
                                      .num_stages = 1,
                                      .chunk_bytes = chunk * 4096,
                                      .share_bytes = 30000};
        lg_graph_opts opts = lg_graph_opts_default();
        lg_graph *graph = NULL;
        int num_layers = 0;
        int num_stats = 0;
        opts.num_samples = 12;
        opts.num_micro_batches = 3;
        opts.has_grad_stats = true;
        opts.parallel = &parallel;
        assert_ok(lg_graph_create(&graph, model, &opts));
        check_reductions(graph);
        for (int op = 0; op < lg_graph_num_ops(graph); op++) {
            const lg_op_info *const info = lg_graph_op(graph, op);
            int64_t stat_bytes = 0;
            num_layers += info->kind == LG_OP_RATE && info->rank == 0 ? 1 : 0;
            for (int i = 0; info->kind == LG_OP_ALL_REDUCE && i < info->num_operands; i++) {
                if (info->operands[i].role == LG_ROLE_STAT_SUM) {
                    num_stats += info->rank == 0 ? 1 : 0;
                    stat_bytes += lg_graph_value(graph, info->operands[i].value)->bytes;
                }
            }
            /* the rate of each layer waits for the sum that its statistics are in */
            for (int rate = 0; stat_bytes > 0 && rate < lg_graph_num_ops(graph); rate++) {
                const lg_op_info *const reader = lg_graph_op(graph, rate);
                for (int i = 0; reader->kind == LG_OP_RATE && i < info->num_operands; i++) {
                    assert_true(info->operands[i].role != LG_ROLE_STAT_SUM ||
                                reader->operands[0].value != info->operands[i].value ||
                                has_edge(graph, op, rate));
                }
            }
            assert_true(info->kind != LG_OP_ALL_REDUCE || info->message_bytes > stat_bytes);
        }
        assert_true(num_layers > 10);
        assert_int_equal(num_stats, num_layers);
        lg_graph_destroy(graph);
    }
    lg_model_destroy(model);
}

/* A GPT whose output layer has the embedding's weights, on two ranks of two stages each. */
static void stages_and_copies_of_parameters_do_not_share(void **state)
{
    (void)state;
    lg_model *model = NULL;
    lg_stages stages = {0};
    lg_parallel parallel = {.num_replicas = 2, .share_bytes = INT64_MAX};
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = 4;
    opts.width = 8;
    opts.num_heads = 2;
    opts.vocab_size = 16;
    opts.context = 4;
    opts.is_tied = true;
    assert_ok(lg_model_gpt(&model, &opts));
    assert_ok(lg_stages_contiguous(&stages, model, 2, 4, LG_STAGE_ORDER_LOOP));
    lg_stages_apply(&stages, &parallel);
    lg_graph *const graph = graph_of(model, &parallel);
    check_reductions(graph);
    int num[4] = {0};
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (info->kind != LG_OP_ALL_REDUCE) {
            continue;
        }
        num[info->rank]++;
        for (int i = 0; i < info->num_operands; i++) {
            const int layer = lg_graph_value(graph, info->operands[i].value)->layer;
            assert_int_equal(stages.stage_of_layer[layer], info->stage);
        }
        /* the copy of the embedding's weights on the output layer's rank */
        if (stages.rank_of_stage[info->stage] != info->rank % 2) {
            assert_int_equal(info->num_operands, 1);
        }
    }
    assert_int_equal(num[0], 2); /* its two stages */
    assert_int_equal(num[1], 3); /* its two stages, and the copy */
    lg_graph_destroy(graph);
    lg_stages_deinit(&stages);
    lg_model_destroy(model);
}

static void without_sharing_graphs_are_as_before(void **state)
{
    (void)state;
    const int widths[] = {16, 16, 16};
    lg_model *const model = linear_chain(widths, 2);
    lg_parallel parallel = {.num_replicas = 2, .num_pipeline_ranks = 1, .num_stages = 1};
    lg_graph *const apart = graph_of(model, &parallel);
    parallel.share_bytes = 1024; /* no layer has fewer */
    lg_graph *const same = graph_of(model, &parallel);
    parallel.share_bytes = INT64_MAX;
    lg_graph *const other = graph_of(model, &parallel);
    assert_true(lg_graph_fingerprint(apart) == lg_graph_fingerprint(same));
    assert_true(lg_graph_fingerprint(apart) != lg_graph_fingerprint(other));
    lg_graph_destroy(apart);
    lg_graph_destroy(same);
    lg_graph_destroy(other);
    lg_model_destroy(model);
}

static void bytes_below_zero_are_refused(void **state)
{
    (void)state;
    const int widths[] = {4, 4};
    lg_model *const model = linear_chain(widths, 1);
    const lg_parallel parallel = {.num_replicas = 2,
                                  .num_pipeline_ranks = 1,
                                  .num_stages = 1,
                                  .share_bytes = LG_SHARE_BY_LINKS};
    lg_graph_opts opts = lg_graph_opts_default();
    lg_graph *graph = NULL;
    opts.num_samples = 2;
    opts.parallel = &parallel;
    assert_int_equal(lg_graph_create(&graph, model, &opts), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "share bytes"));
    lg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_share_until_the_bytes_are_there),
        cmocka_unit_test(one_layer_has_its_own),
        cmocka_unit_test(a_large_layer_ends_what_is_shared_with_the_small_ones_behind_it),
        cmocka_unit_test(what_is_shared_is_cut_into_chunks_like_a_layer),
        cmocka_unit_test(so_many_tensors_share_at_most),
        cmocka_unit_test(statistics_of_all_layers_travel_in_the_last_chunk),
        cmocka_unit_test(stages_and_copies_of_parameters_do_not_share),
        cmocka_unit_test(without_sharing_graphs_are_as_before),
        cmocka_unit_test(bytes_below_zero_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
