/* Blocks and stages: every block in exactly one stage, whatever the model and the kind of placement. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "leapgrad/models.h"
#include "leapgrad/placement.h"

#define MAX_LAYERS 2000

#define assert_ok(expr) \
    do { \
        if ((expr) != LG_OK) { \
            fail_msg("%s", lg_last_error()); \
        } \
    } while (0)

#define assert_refused(part, expr) \
    do { \
        assert_true((expr) != LG_OK); \
        if (strstr(lg_last_error(), (part)) == NULL) { \
            fail_msg("'%s' does not say '%s'", lg_last_error(), (part)); \
        } \
    } while (0)

static lg_model *gpt(int num_layers)
{
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = num_layers;
    opts.width = 8;
    opts.num_heads = 2;
    opts.vocab_size = 16;
    opts.context = 4;
    assert_ok(lg_model_gpt(&model, &opts));
    return model;
}

/* Layers in a row without block names: linear, relu, linear, relu, ..., loss. */
static lg_model *plain(int num_linear)
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
    attrs.activation = LG_ACTIVATION_RELU;
    for (int i = 0; i < num_linear; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "fc%d", i);
        assert_ok(lg_model_add(model, name, LG_LAYER_LINEAR, &attrs, &x, 1, &x));
        (void)snprintf(name, sizeof name, "relu%d", i);
        assert_ok(lg_model_add(model, name, LG_LAYER_ACTIVATION, &attrs, &x, 1, &x));
    }
    const int inputs[2] = {x, targets};
    assert_ok(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL));
    return model;
}

/* Stages ascend by one or not at all from layer to layer, none is empty, ranks are in range; returns blocks by stage. */
static void assert_complete(const lg_stages *stages, const lg_model *model, int *blocks_of_stage)
{
    int block_of_layer[MAX_LAYERS];
    const int num_blocks = lg_model_blocks(model, block_of_layer);
    assert_int_equal(stages->num_layers, lg_model_num_layers(model));
    int stage = 0;
    int block = -1;
    int num_counted = 0;
    memset(blocks_of_stage, 0, (size_t)stages->num_stages * sizeof *blocks_of_stage);
    for (int layer = 0; layer < stages->num_layers; layer++) {
        if (block_of_layer[layer] < 0) {
            assert_int_equal(lg_model_layer(model, layer)->kind, LG_LAYER_INPUT);
            continue;
        }
        const int here = stages->stage_of_layer[layer];
        assert_true(here == stage || here == stage + 1);
        assert_true(here == stage || block_of_layer[layer] != block);
        if (block_of_layer[layer] != block) {
            assert_int_equal(block_of_layer[layer], block + 1);
            blocks_of_stage[here]++;
            num_counted++;
        }
        stage = here;
        block = block_of_layer[layer];
    }
    assert_int_equal(stage, stages->num_stages - 1);
    assert_int_equal(num_counted, num_blocks);
    for (int s = 0; s < stages->num_stages; s++) {
        assert_true(blocks_of_stage[s] > 0);
        assert_true(stages->rank_of_stage[s] >= 0 &&
                    stages->rank_of_stage[s] < stages->num_pipeline_ranks);
    }
}

static void blocks_follow_the_names_and_take_in_the_rest(void **state)
{
    (void)state;
    int blocks[MAX_LAYERS];
    lg_model *model = gpt(5);
    assert_int_equal(lg_model_blocks(model, blocks), 5);
    assert_int_equal(blocks[lg_model_find_layer(model, "transformer.wte")], 0);
    assert_int_equal(blocks[lg_model_find_layer(model, "transformer.h.3.mlp.c_fc")], 3);
    assert_int_equal(blocks[lg_model_num_layers(model) - 1], 4);
    lg_model_destroy(model);
    model = plain(4);
    assert_int_equal(lg_model_blocks(model, blocks), 4);
    assert_int_equal(blocks[lg_model_find_layer(model, "relu2")], 2);
    assert_int_equal(blocks[lg_model_find_layer(model, "loss")], 3);
    assert_int_equal(blocks[lg_model_find_layer(model, "x")], -1);
    lg_model_destroy(model);
    lg_densenet_opts densenet = lg_densenet_opts_default();
    assert_ok(lg_model_densenet(&model, &densenet));
    const int num_blocks = lg_model_blocks(model, blocks);
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        const char *const name = lg_model_layer(model, layer)->name;
        const bool is_first = strstr(name, "denseblock1.denselayer1.") != NULL;
        assert_true(!is_first || blocks[layer] == 0);
        const bool is_second = strstr(name, "denseblock1.denselayer2.") != NULL;
        assert_true(!is_second || blocks[layer] == 1);
    }
    assert_true(num_blocks > 10);
    lg_model_destroy(model);
}

static void contiguous_stages_differ_by_one_block_at_most(void **state)
{
    (void)state;
    int blocks[MAX_LAYERS];
    lg_model *model = gpt(12);
    for (int num_ranks = 1; num_ranks <= 12; num_ranks++) {
        for (int v = 1; v * num_ranks <= 12; v++) {
            lg_stages stages;
            assert_ok(lg_stages_contiguous(&stages, model, num_ranks, v * num_ranks,
                                           LG_STAGE_ORDER_LOOP));
            assert_complete(&stages, model, blocks);
            for (int s = 0; s < stages.num_stages; s++) {
                assert_int_equal(stages.rank_of_stage[s], s % num_ranks);
                assert_int_equal(blocks[s],
                                 12 / stages.num_stages + (s < 12 % stages.num_stages ? 1 : 0));
            }
            lg_stages_deinit(&stages);
        }
    }
    lg_model_destroy(model);
}

static void modulo_and_v_go_round_as_defined(void **state)
{
    (void)state;
    int blocks[MAX_LAYERS];
    lg_model *model = gpt(11);
    for (int num_ranks = 1; num_ranks <= 5; num_ranks++) {
        for (int group = 1; group <= 11 && (11 + group - 1) / group >= num_ranks; group++) {
            lg_stages stages;
            int block_of_layer[MAX_LAYERS];
            assert_ok(lg_stages_modulo(&stages, model, num_ranks, group));
            assert_complete(&stages, model, blocks);
            (void)lg_model_blocks(model, block_of_layer);
            for (int layer = 0; layer < stages.num_layers; layer++) {
                if (block_of_layer[layer] >= 0) {
                    assert_int_equal(stages.rank_of_stage[stages.stage_of_layer[layer]],
                                     block_of_layer[layer] / group % num_ranks);
                }
            }
            lg_stages_deinit(&stages);
        }
        lg_stages stages;
        assert_ok(lg_stages_contiguous(&stages, model, num_ranks, 2 * num_ranks, LG_STAGE_ORDER_V));
        assert_complete(&stages, model, blocks);
        for (int s = 0; s < 2 * num_ranks; s++) {
            assert_int_equal(stages.rank_of_stage[s], s < num_ranks ? s : 2 * num_ranks - 1 - s);
        }
        lg_stages_deinit(&stages);
    }
    lg_model_destroy(model);
}

static void lists_begin_stages_where_they_say(void **state)
{
    (void)state;
    int blocks[MAX_LAYERS];
    lg_model *model = plain(6);
    lg_stages stages;
    const int first[3] = {lg_model_find_layer(model, "fc0"), lg_model_find_layer(model, "fc1"),
                          lg_model_find_layer(model, "fc5")};
    const int ranks[3] = {1, 0, 1};
    assert_ok(lg_stages_list(&stages, model, 2, 3, first, ranks));
    assert_complete(&stages, model, blocks);
    assert_int_equal(blocks[0], 1);
    assert_int_equal(blocks[1], 4);
    assert_int_equal(blocks[2], 1);
    assert_memory_equal(stages.rank_of_stage, ranks, sizeof ranks);
    lg_parallel parallel = {.num_replicas = 2};
    lg_stages_apply(&stages, &parallel);
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_samples = 4;
    opts.parallel = &parallel;
    lg_graph *graph = NULL;
    assert_ok(lg_graph_create(&graph, model, &opts));
    assert_int_equal(lg_graph_num_stages(graph), 3);
    lg_graph_destroy(graph);
    lg_stages_deinit(&stages);
    const int twice[3] = {first[0], first[1], first[1] + 1};
    assert_refused("none is empty", lg_stages_list(&stages, model, 2, 3, twice, NULL));
    const int late[3] = {first[1], first[2], first[2]};
    assert_refused("begin with block 0", lg_stages_list(&stages, model, 2, 3, late, NULL));
    const int input[3] = {0, first[1], first[2]};
    assert_refused("an input", lg_stages_list(&stages, model, 2, 3, input, NULL));
    const int beyond[3] = {first[0], first[1], 999};
    assert_refused("not in the model", lg_stages_list(&stages, model, 2, 3, beyond, NULL));
    const int bad_ranks[3] = {0, 2, 1};
    assert_refused("rank 2", lg_stages_list(&stages, model, 2, 3, first, bad_ranks));
    assert_null(stages.stage_of_layer);
    lg_model_destroy(model);
}

/* The smallest possible slowest stage, by trying every split. */
static double best_bound(const double *ns, const int64_t *bytes, int64_t limit, int num_blocks,
                         int num_stages, int begin)
{
    double best = 1e300;
    double sum = 0.0;
    int64_t sum_bytes = 0;
    if (num_stages == 0) {
        return begin == num_blocks ? 0.0 : best;
    }
    for (int end = begin + 1; end <= num_blocks - num_stages + 1; end++) {
        sum += ns[end - 1];
        sum_bytes += bytes[end - 1];
        if (limit > 0 && sum_bytes > limit) {
            break;
        }
        const double rest = best_bound(ns, bytes, limit, num_blocks, num_stages - 1, end);
        const double slowest = rest > sum ? rest : sum;
        best = slowest < best ? slowest : best;
    }
    return best;
}

static void balanced_stages_are_as_even_as_any_split(void **state)
{
    (void)state;
    enum { NUM_BLOCKS = 9 };
    int blocks[MAX_LAYERS];
    int block_of_layer[MAX_LAYERS];
    lg_model *model = plain(NUM_BLOCKS);
    const int num_layers = lg_model_num_layers(model);
    (void)lg_model_blocks(model, block_of_layer);
    int num_refused = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        const lgi_random random = lgi_random_stream(seed, LGI_RANDOM_SAMPLE, 0, 0, 0);
        double ns[MAX_LAYERS];
        int64_t bytes[MAX_LAYERS];
        double block_ns[NUM_BLOCKS] = {0};
        int64_t block_bytes[NUM_BLOCKS] = {0};
        for (int layer = 0; layer < num_layers; layer++) {
            ns[layer] = (double)lgi_random_below(&random, (uint64_t)layer, 100);
            bytes[layer] = (int64_t)lgi_random_below(&random, 1000 + (uint64_t)layer, 50);
            if (block_of_layer[layer] >= 0) {
                block_ns[block_of_layer[layer]] += ns[layer];
                block_bytes[block_of_layer[layer]] += bytes[layer];
            }
        }
        const int num_stages = 1 + (int)(seed % 6);
        const int64_t limit = seed % 2 == 0 ? 0 : 100 + (int64_t)(seed % 10) * 60;
        const lg_layer_costs costs = {.ns = ns, .bytes = bytes, .memory_bytes = limit};
        const double bound = best_bound(block_ns, block_bytes, limit, NUM_BLOCKS, num_stages, 0);
        lg_stages stages;
        if (bound > 1e299) {
            assert_refused("no split", lg_stages_balanced(&stages, model, num_stages, num_stages,
                                                          LG_STAGE_ORDER_LOOP, &costs));
            num_refused++;
            continue;
        }
        assert_ok(lg_stages_balanced(&stages, model, num_stages, num_stages, LG_STAGE_ORDER_LOOP,
                                     &costs));
        assert_complete(&stages, model, blocks);
        double slowest = 0.0;
        for (int s = 0, block = 0; s < num_stages; s++) {
            double sum = 0.0;
            int64_t sum_bytes = 0;
            for (int i = 0; i < blocks[s]; i++, block++) {
                sum += block_ns[block];
                sum_bytes += block_bytes[block];
            }
            slowest = sum > slowest ? sum : slowest;
            assert_true(limit == 0 || sum_bytes <= limit);
        }
        assert_true(slowest == bound); /* whole numbers: exact */
        lg_stages_deinit(&stages);
    }
    assert_true(num_refused > 5 && num_refused < 100);
    lg_model_destroy(model);
}

static void impossible_numbers_are_refused_in_one_line(void **state)
{
    (void)state;
    lg_model *model = gpt(4);
    lg_stages stages;
    double ns[MAX_LAYERS] = {0};
    assert_refused("8 pipeline ranks for the model's 4 blocks",
                   lg_stages_contiguous(&stages, model, 8, 8, LG_STAGE_ORDER_LOOP));
    assert_null(stages.stage_of_layer);
    assert_refused("6 stages for the model's 4 blocks",
                   lg_stages_contiguous(&stages, model, 3, 6, LG_STAGE_ORDER_LOOP));
    assert_refused("1 stages", lg_stages_contiguous(&stages, model, 2, 1, LG_STAGE_ORDER_LOOP));
    assert_refused("0 pipeline ranks",
                   lg_stages_contiguous(&stages, model, 0, 1, LG_STAGE_ORDER_LOOP));
    assert_refused("in a V", lg_stages_contiguous(&stages, model, 2, 3, LG_STAGE_ORDER_V));
    assert_refused("group size 0", lg_stages_modulo(&stages, model, 2, 0));
    assert_refused("make 2 stages", lg_stages_modulo(&stages, model, 3, 2));
    assert_refused("8 pipeline ranks", lg_stages_modulo(&stages, model, 8, 1));
    const lg_layer_costs costs = {.ns = ns};
    ns[3] = -1.0;
    assert_refused("-1 ns", lg_stages_balanced(&stages, model, 2, 2, LG_STAGE_ORDER_LOOP, &costs));
    lg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_follow_the_names_and_take_in_the_rest),
        cmocka_unit_test(contiguous_stages_differ_by_one_block_at_most),
        cmocka_unit_test(modulo_and_v_go_round_as_defined),
        cmocka_unit_test(lists_begin_stages_where_they_say),
        cmocka_unit_test(balanced_stages_are_as_even_as_any_split),
        cmocka_unit_test(impossible_numbers_are_refused_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
