/* Costs of one spread over ranks, read for another one: the same work takes the same time, messages take none of their own. */
#include "pipeline_fixture.h"

#include <unistd.h>

static char path[64];

static int make_path(void **state)
{
    (void)state;
    strcpy(path, "/tmp/leapgrad-costs-XXXXXX");
    const int file = mkstemp(path);
    return file >= 0 ? close(file) : -1;
}

static int remove_path(void **state)
{
    (void)state;
    return remove(path);
}

#define NUM_LAYERS 6

/* Something else for each kind, layer and micro-batch of a replica, and no zeros. */
static double ns_of(const lg_graph *graph, const lg_op_info *op)
{
    const int num_per_replica = lg_graph_num_micro_batches(graph) / lg_graph_num_replicas(graph);
    const int micro_batch = op->micro_batch >= 0 ? op->micro_batch % num_per_replica : 0;
    return 1.0 + op->kind + 100.0 * (op->layer + 1) + 10000.0 * micro_batch;
}

static void save_costs(const pipeline_case *c)
{
    for (int op = 0; op < lg_graph_num_ops(c->graph); op++) {
        lg_costs_set_op_ns(c->costs, op, 0, ns_of(c->graph, lg_graph_op(c->graph, op)));
    }
    assert_ok(lg_costs_save(c->costs, c->graph, path));
}

static void make_case(pipeline_case *c, int num_ranks, int num_micro_batches, int num_replicas)
{
    lg_model *const model = linear_model(NUM_LAYERS);
    lg_stages stages = {0};
    assert_ok(lg_stages_contiguous(&stages, model, num_ranks, num_ranks, LG_STAGE_ORDER_LOOP));
    case_init(c, model, stages, num_micro_batches, num_replicas, 1.0, 1.0, 1.0);
}

static void expect_same_times(const pipeline_case *from, const pipeline_case *to)
{
    lg_costs *loaded = NULL;
    int num_messages = 0;
    save_costs(from);
    assert_ok(lg_costs_load(&loaded, to->graph, path));
    for (int op = 0; op < lg_graph_num_ops(to->graph); op++) {
        const lg_op_info *const info = lg_graph_op(to->graph, op);
        if (info->group >= 0) {
            num_messages++;
        } else if (lg_costs_op_ns(loaded, op, 0) != ns_of(to->graph, info)) {
            fail_msg("%s: %g", info->name, lg_costs_op_ns(loaded, op, 0));
        }
    }
    assert_true(num_messages > 0 || lg_graph_num_ranks(to->graph) == 1);
    lg_costs_destroy(loaded);
}

static void costs_of_one_rank_go_with_pipelines_and_replicas(void **state)
{
    static const int cases[][2] = {{2, 1}, {3, 1}, {1, 2}, {2, 3}};
    pipeline_case one;
    (void)state;
    make_case(&one, 1, 4, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pipeline_case several;
        make_case(&several, cases[i][0], 4, cases[i][1]);
        expect_same_times(&one, &several);
        case_deinit(&several);
    }
    case_deinit(&one);
}

static void costs_of_one_placement_go_with_another(void **state)
{
    pipeline_case two;
    pipeline_case three;
    pipeline_case one;
    (void)state;
    make_case(&two, 2, 4, 1);
    make_case(&three, 3, 4, 1);
    make_case(&one, 1, 4, 1);
    expect_same_times(&two, &three);
    expect_same_times(&two, &one);
    case_deinit(&two);
    case_deinit(&three);
    case_deinit(&one);
}

static void a_micro_batch_more_takes_as_long_as_the_last_one(void **state)
{
    pipeline_case few;
    pipeline_case many;
    lg_costs *loaded = NULL;
    (void)state;
    make_case(&few, 1, 2, 1);
    make_case(&many, 2, 5, 1);
    save_costs(&few);
    assert_ok(lg_costs_load(&loaded, many.graph, path));
    const int op = lg_graph_find_op(many.graph, "forward(h.0,4)@0");
    const int known = lg_graph_find_op(few.graph, "forward(h.0,1)");
    assert_true(op >= 0 && known >= 0);
    assert_true(lg_costs_op_ns(loaded, op, 0) == ns_of(few.graph, lg_graph_op(few.graph, known)));
    lg_costs_destroy(loaded);
    case_deinit(&few);
    case_deinit(&many);
}

static void micro_batches_of_another_size_are_refused(void **state)
{
    pipeline_case several;
    lg_graph *graph = NULL;
    lg_costs *costs = NULL;
    lg_costs *loaded = NULL;
    lg_graph_opts opts = lg_graph_opts_default();
    (void)state;
    make_case(&several, 2, 2, 1);
    opts.num_samples = 6;
    opts.num_micro_batches = 2;
    assert_ok(lg_graph_create(&graph, several.model, &opts));
    assert_ok(lg_costs_create(&costs, graph));
    assert_ok(lg_costs_save(costs, graph, path));
    assert_fails(LG_INVALID_ARG, "measured with 3 samples in a micro-batch, where this graph has 1",
                 lg_costs_load(&loaded, several.graph, path));
    assert_null(loaded);
    lg_costs_destroy(costs);
    lg_graph_destroy(graph);
    case_deinit(&several);
}

static void costs_of_another_model_are_refused_by_name(void **state)
{
    pipeline_case several;
    lg_graph *graph = NULL;
    lg_costs *costs = NULL;
    lg_costs *loaded = NULL;
    lg_graph_opts opts = lg_graph_opts_default();
    lg_model *const smaller = linear_model(NUM_LAYERS - 1);
    (void)state;
    make_case(&several, 2, 1, 1);
    opts.num_samples = 1;
    assert_ok(lg_graph_create(&graph, smaller, &opts));
    assert_ok(lg_costs_create(&costs, graph));
    assert_ok(lg_costs_save(costs, graph, path));
    assert_fails(LG_INVALID_ARG, "nothing is like op 'forward(h.5,0)@1'",
                 lg_costs_load(&loaded, several.graph, path));
    lg_costs_destroy(costs);
    lg_graph_destroy(graph);
    lg_model_destroy(smaller);
    case_deinit(&several);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_of_one_rank_go_with_pipelines_and_replicas),
        cmocka_unit_test(costs_of_one_placement_go_with_another),
        cmocka_unit_test(a_micro_batch_more_takes_as_long_as_the_last_one),
        cmocka_unit_test(micro_batches_of_another_size_are_refused),
        cmocka_unit_test(costs_of_another_model_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
