/* The simulator against closed forms on tiny graphs; the live bytes of a timeline. */
#include "random_plans.h"

/* Times are sums of a few doubles below 1e4: nothing is lost but the last bits. */
#define TIME_TOLERANCE_NS 1e-6

#define assert_ns(actual, expected) \
    do { \
        const double assert_actual = (actual); \
        if (!(assert_actual > (expected)-TIME_TOLERANCE_NS && \
              assert_actual < (expected) + TIME_TOLERANCE_NS)) { \
            fail_msg("%s is %.9g, expected %.9g", #actual, assert_actual, (double)(expected)); \
        } \
    } while (0)

#define MAX_OPS 8

/* A graph by hand: op i reads values[reads[i]] (-1: none) and writes value i. */
typedef struct tiny {
    lg_graph *graph;
    lg_costs *costs;
    lg_plan *plan;
    lg_machine machine;
} tiny;

static void tiny_init(tiny *t, int num_ops, const int *reads, const double *ns, int num_lanes)
{
    lg_value_info values[MAX_OPS];
    lg_operand operands[MAX_OPS][2];
    lg_op_info ops[MAX_OPS];
    lg_graph_opts opts = lg_graph_opts_default();
    for (int i = 0; i < num_ops; i++) {
        values[i] = (lg_value_info){.kind = LG_VALUE_ACTIVATION, .bytes = 100 * (i + 1)};
        ops[i] = (lg_op_info){.operands = operands[i], .inplace_write = -1, .inplace_read = -1};
        operands[i][ops[i].num_operands++] = (lg_operand){.value = i, .access = LG_ACCESS_WRITE};
        if (reads[i] >= 0) {
            operands[i][ops[i].num_operands++] =
                (lg_operand){.value = reads[i], .access = LG_ACCESS_READ};
        }
    }
    assert_ok(lgi_graph_from_records(&t->graph, &opts, values, num_ops, ops, num_ops));
    assert_ok(lg_costs_create(&t->costs, t->graph));
    for (int i = 0; i < num_ops; i++) {
        lg_costs_set_op_ns(t->costs, i, 0, ns[i]);
    }
    assert_ok(lgi_plan_init(&t->plan, t->graph, "test", num_lanes));
    for (int i = 0; i < num_lanes; i++) {
        t->plan->lanes[i].num_cores = 1;
        t->plan->lanes[i].first_core = i;
        assert_ok(lgi_calloc(&t->plan->lanes[i].entries, MAX_OPS, sizeof(lg_plan_entry)));
    }
    t->machine = lg_machine_default();
    t->machine.num_cores = 4;
}

static void put(tiny *t, int lane, int op, int lag)
{
    lg_lane *const l = &t->plan->lanes[lane];
    l->entries[l->num_entries++] = (lg_plan_entry){op, lag};
}

static void tiny_deinit(tiny *t)
{
    lg_plan_destroy(t->plan);
    lg_costs_destroy(t->costs);
    lg_graph_destroy(t->graph);
}

static const lg_span *span_of(const lg_timeline *timeline, int op)
{
    for (int i = 0; i < timeline->num_spans; i++) {
        if (timeline->spans[i].op == op) {
            return &timeline->spans[i];
        }
    }
    return NULL;
}

static void one_lane_takes_the_sum(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    tiny_init(&t, 3, (int[]){-1, 0, 1}, (double[]){10, 20, 30}, 1);
    put(&t, 0, 0, 0);
    put(&t, 0, 1, 0);
    put(&t, 0, 2, 0);
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(timeline.step_ns, 60);
    assert_int_equal(timeline.num_spans, 3);
    assert_ns(span_of(&timeline, 1)->start_ns, 10);
    assert_ns(span_of(&timeline, 1)->end_ns, 30);
    lg_timeline_deinit(&timeline);
    tiny_deinit(&t);
}

static void independent_lanes_take_the_maximum(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    tiny_init(&t, 2, (int[]){-1, -1}, (double[]){10, 25}, 2);
    put(&t, 0, 0, 0);
    put(&t, 1, 1, 0);
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(timeline.step_ns, 25);
    lg_timeline_deinit(&timeline);
    tiny_deinit(&t);
}

static void an_edge_across_lanes_is_waited_for(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    tiny_init(&t, 3, (int[]){-1, 0, -1}, (double[]){10, 20, 5}, 2);
    put(&t, 0, 0, 0);
    put(&t, 1, 2, 0);
    put(&t, 1, 1, 0); /* from 10 on, though its lane is free at 5 */
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(timeline.step_ns, 30);
    assert_ns(span_of(&timeline, 1)->start_ns, 10);
    lg_timeline_deinit(&timeline);
    tiny_deinit(&t);
}

static void a_sync_across_lanes_is_waited_for(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    tiny_init(&t, 2, (int[]){-1, -1}, (double[]){10, 25}, 2);
    put(&t, 0, 0, 0);
    put(&t, 1, 1, 0);
    assert_ok(lgi_realloc(&t.plan->syncs, 1, sizeof(lg_plan_sync)));
    t.plan->syncs[0] = (lg_plan_sync){0, 1, 0};
    t.plan->num_syncs = 1;
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(timeline.step_ns, 35);
    lg_timeline_deinit(&timeline);
    tiny_deinit(&t);
}

static void full_cores_slow_down_only_while_shared(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    tiny_init(&t, 2, (int[]){-1, -1}, (double[]){100, 200}, 2);
    put(&t, 0, 0, 0);
    put(&t, 1, 1, 0);
    t.machine.num_cores = 2;
    t.machine.corun_slowdown = 1.5;
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(span_of(&timeline, 0)->end_ns, 150); /* 100 at 1 / 1.5 */
    assert_ns(timeline.step_ns, 250);              /* then 100 left at 1 */
    lg_timeline_deinit(&timeline);
    t.machine.num_cores = 3; /* a core stays free: no slow-down */
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(timeline.step_ns, 200);
    lg_timeline_deinit(&timeline);
    tiny_deinit(&t);
}

static void a_lagging_op_overlaps_the_next_step(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    /* 0 -> 1 -> 2; with lag 0 the step is the chain, with lag 1 op 2 runs beside the next 0 -> 1 */
    tiny_init(&t, 3, (int[]){-1, 0, 1}, (double[]){10, 20, 25}, 2);
    put(&t, 0, 0, 0);
    put(&t, 0, 1, 0);
    put(&t, 1, 2, 0);
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(timeline.step_ns, 55);
    lg_timeline_deinit(&timeline);
    t.plan->lanes[1].entries[0].lag = 1;
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ns(timeline.step_ns, 30);
    assert_int_equal(span_of(&timeline, 2)->step + 1, span_of(&timeline, 0)->step);
    lg_timeline_deinit(&timeline);
    tiny_deinit(&t);
}

static void an_unproved_plan_is_refused_not_crashed_on(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    tiny_init(&t, 2, (int[]){-1, 0}, (double[]){10, 20}, 1);
    put(&t, 0, 1, 0);
    assert_fails(LG_INVALID_ARG, "op0",
                 lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    put(&t, 0, 0, 0); /* the reader before the writer, in one lane */
    assert_fails(LG_INVALID_ARG, "edge 'op0' -> 'op1'",
                 lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    t.machine.corun_slowdown = 0.5;
    assert_fails(LG_INVALID_ARG, "corun_slowdown",
                 lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    tiny_deinit(&t);
}

static int64_t bytes_at(const lg_timeline *timeline, double time_ns)
{
    int64_t bytes = 0;
    for (int i = 0; i < timeline->num_memory_points; i++) {
        if (timeline->memory_points[i].time_ns <= time_ns) {
            bytes = timeline->memory_points[i].bytes;
        }
    }
    return bytes;
}

static void live_bytes_follow_first_and_last_access(void **state)
{
    (void)state;
    tiny t;
    lg_timeline timeline;
    tiny_init(&t, 3, (int[]){-1, 0, 0}, (double[]){10, 20, 25}, 2);
    put(&t, 0, 0, 0);
    put(&t, 0, 1, 0);
    put(&t, 1, 2, 1); /* reads the 100 bytes of op 0 in the next iteration */
    assert_ok(lgi_plan_place(t.plan, t.graph));
    assert_ok(lg_plan_simulate(&timeline, t.plan, t.graph, &t.machine, t.costs));
    assert_ok(lg_timeline_add_memory(&timeline, t.plan, t.graph));
    assert_int_equal(bytes_at(&timeline, 5),
                     100 + 100 + 300); /* both steps' value 0, and value 2 */
    assert_int_equal(bytes_at(&timeline, 15), 100 + 100 + 200 + 300);
    assert_int_equal(bytes_at(&timeline, 27),
                     100 + 200); /* op 2 and the last step's value 0 are done */
    lg_timeline_deinit(&timeline);
    tiny_deinit(&t);
}

static void simulation_agrees_with_a_bound_and_a_sum_on_random_plans(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        lg_graph *graph = random_graph(seed);
        lg_plan *plan = random_lanes(graph, seed, false);
        lg_machine machine = lg_machine_default();
        machine.num_cores = 8;
        lg_costs *costs = NULL;
        lg_timeline timeline;
        assert_ok(lg_costs_create(&costs, graph));
        lg_costs_estimate(costs, graph, &machine);
        assert_ok(lg_plan_simulate(&timeline, plan, graph, &machine, costs));
        double sum_ns = 0.0;
        double longest_lane_ns = 0.0;
        for (int i = 0; i < plan->num_lanes; i++) {
            double lane_ns = 0.0;
            for (int k = 0; k < plan->lanes[i].num_entries; k++) {
                lane_ns += lg_costs_op_ns(costs, plan->lanes[i].entries[k].op,
                                          plan->lanes[i].num_cores - 1);
            }
            sum_ns += lane_ns;
            longest_lane_ns = lane_ns > longest_lane_ns ? lane_ns : longest_lane_ns;
        }
        assert_true(timeline.step_ns >= longest_lane_ns - 1e-3);
        assert_true(timeline.step_ns <= sum_ns + 1e-3);
        assert_int_equal(timeline.num_spans, plan->num_ops);
        for (int i = 1; i < timeline.num_spans; i++) {
            assert_true(timeline.spans[i].start_ns >= timeline.spans[i - 1].start_ns);
        }
        const lg_edge *edges = lg_graph_edges(graph);
        for (int i = 0; i < lg_graph_num_edges(graph); i++) {
            const lg_span *from = span_of(&timeline, edges[i].from);
            const lg_span *to = span_of(&timeline, edges[i].to);
            if (from->step + edges[i].distance == to->step) {
                assert_true(from->end_ns <= to->start_ns);
            }
        }
        lg_timeline_deinit(&timeline);
        lg_costs_destroy(costs);
        lg_plan_destroy(plan);
        lg_graph_destroy(graph);
    }
}

static void live_bytes_never_exceed_the_planned_peak(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        lg_graph *graph = random_graph(seed);
        lg_plan *plan = random_plan(graph, seed, false);
        lg_machine machine = lg_machine_default();
        machine.num_cores = 8;
        lg_costs *costs = NULL;
        lg_timeline timeline;
        assert_ok(lg_costs_create(&costs, graph));
        lg_costs_estimate(costs, graph, &machine);
        assert_ok(lg_plan_simulate(&timeline, plan, graph, &machine, costs));
        assert_ok(lg_timeline_add_memory(&timeline, plan, graph));
        assert_true(timeline.num_memory_points > 0);
        for (int i = 0; i < timeline.num_memory_points; i++) {
            assert_true(timeline.memory_points[i].bytes >= 0);
            assert_true(timeline.memory_points[i].bytes <= plan->peak_bytes[0]);
        }
        lg_timeline_deinit(&timeline);
        lg_costs_destroy(costs);
        lg_plan_destroy(plan);
        lg_graph_destroy(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_lane_takes_the_sum),
        cmocka_unit_test(independent_lanes_take_the_maximum),
        cmocka_unit_test(an_edge_across_lanes_is_waited_for),
        cmocka_unit_test(a_sync_across_lanes_is_waited_for),
        cmocka_unit_test(full_cores_slow_down_only_while_shared),
        cmocka_unit_test(a_lagging_op_overlaps_the_next_step),
        cmocka_unit_test(an_unproved_plan_is_refused_not_crashed_on),
        cmocka_unit_test(live_bytes_follow_first_and_last_access),
        cmocka_unit_test(simulation_agrees_with_a_bound_and_a_sum_on_random_plans),
        cmocka_unit_test(live_bytes_never_exceed_the_planned_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
