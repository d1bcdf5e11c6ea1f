/* auto and lg_search: never slower than what has a name, near the exact optimum, bounded from below, the same every time. */
#include "pipeline_fixture.h"

#include "../../../bench/exact_plan.h"
#include "../../../bench/random_cluster.h"
#include "base/alloc.h"

#define NUM_SMALL_CASES 40
#define MAX_SMALL_OPS 30
#define NUM_CLUSTERS 12
/* Graphs for which trying all strategies and searching takes milliseconds. */
#define MAX_CLUSTER_OPS 150
#define MAX_STATES 100000
/* What the search may be above the optimum on average over small cases. */
#define MAX_MEAN_FRAC 0.05
/* Sums of the same times in another order. */
#define ROUNDING_FRAC 1e-6

static double simulated_ns(const lg_plan *plan, const lg_graph *graph, const lg_machine *machine,
                           const lg_costs *costs)
{
    lg_timeline timeline;
    assert_ok(lg_plan_simulate(&timeline, plan, graph, machine, costs));
    const double ns = timeline.step_ns;
    lg_timeline_deinit(&timeline);
    return ns;
}

static void assert_same_plan(const lg_plan *a, const lg_plan *b)
{
    assert_string_equal(a->strategy, b->strategy);
    assert_int_equal(a->num_lanes, b->num_lanes);
    for (int i = 0; i < a->num_lanes; i++) {
        assert_int_equal(a->lanes[i].num_entries, b->lanes[i].num_entries);
        for (int k = 0; k < a->lanes[i].num_entries; k++) {
            assert_int_equal(a->lanes[i].entries[k].op, b->lanes[i].entries[k].op);
            assert_int_equal(a->lanes[i].entries[k].lag, b->lanes[i].entries[k].lag);
        }
    }
}

/* Calls every name and every pair of names; those that are not for the graph do not count. Returns how many are slower or equal. */
static int assert_not_slower(double auto_ns, const lg_graph *graph, const lg_machine *machine,
                             const lg_costs *costs, const lg_strategy_opts *opts)
{
    int num = 0;
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        for (int k = 0; lg_strategy_name(k) != NULL; k++) {
            char name[64];
            lg_plan *plan = NULL;
            const bool is_data = lg_strategy_role_of(k) == LG_STRATEGY_DATA;
            if (strcmp(lg_strategy_name(i), "auto") == 0 || (!is_data && k > 0)) {
                continue;
            }
            (void)snprintf(name, sizeof name, "%s%s%s", lg_strategy_name(i), is_data ? "+" : "",
                           is_data ? lg_strategy_name(k) : "");
            if (lg_plan_create(&plan, name, graph, machine, costs, opts) != LG_OK) {
                continue;
            }
            const double ns = simulated_ns(plan, graph, machine, costs);
            if (auto_ns > ns * (1.0 + ROUNDING_FRAC)) {
                fail_msg("auto takes %.1f ns, %s %.1f", auto_ns, name, ns);
            }
            num++;
            lg_plan_destroy(plan);
        }
    }
    return num;
}

static void auto_is_near_the_optimum_of_small_cases(void **state)
{
    (void)state;
    double sum_frac = 0.0;
    int num = 0;
    const lg_strategy_opts opts = lg_strategy_opts_default();
    for (uint64_t seed = 1; seed <= NUM_SMALL_CASES; seed++) {
        lgx_case c;
        lg_plan *plan = NULL;
        lg_plan *exact = NULL;
        lg_bound bound;
        static lgx_solver solver;
        bool is_proved = false;
        assert_ok(lgx_case_init(&c, seed, MAX_SMALL_OPS));
        assert_ok(lg_plan_create(&plan, "auto", c.graph, &c.machine, c.costs, &opts));
        assert_null(lgx_solver_init(&solver, &c, plan));
        const double auto_ns = simulated_ns(plan, c.graph, &c.machine, c.costs);
        assert_true(fabs(lgx_step_ns(&solver, plan) / auto_ns - 1.0) < ROUNDING_FRAC);
        /* from nothing: it must find what auto has, or better */
        const double exact_ns = lgx_solve(&solver, INFINITY, MAX_STATES, &is_proved);
        if (is_proved) {
            assert_true(exact_ns <= auto_ns * (1.0 + ROUNDING_FRAC));
            assert_ok(lgx_best_plan(&solver, &exact));
            assert_ok(lg_plan_check(exact, c.graph, 0));
            const double ns = simulated_ns(exact, c.graph, &c.machine, c.costs);
            assert_true(fabs(ns / exact_ns - 1.0) < ROUNDING_FRAC);
            assert_ok(lg_plan_bound(&bound, c.graph, &c.machine, c.costs));
            assert_true(bound.step_ns > 0.0);
            assert_true(bound.step_ns <= exact_ns * (1.0 + ROUNDING_FRAC));
            sum_frac += auto_ns / exact_ns - 1.0;
            num++;
        }
        lg_plan_destroy(exact);
        lg_plan_destroy(plan);
        lgx_case_deinit(&c);
    }
    assert_true(num > NUM_SMALL_CASES / 2);
    assert_true(sum_frac / num < MAX_MEAN_FRAC);
}

static void auto_is_never_slower_than_a_named_strategy(void **state)
{
    (void)state;
    int num = 0;
    const lg_strategy_opts opts = lg_strategy_opts_default();
    for (uint64_t seed = 100; seed < 100 + NUM_SMALL_CASES; seed++) {
        lgx_case c;
        lg_plan *plan = NULL;
        assert_ok(lgx_case_init(&c, seed, MAX_SMALL_OPS));
        assert_ok(lg_plan_create(&plan, "auto", c.graph, &c.machine, c.costs, &opts));
        assert_string_equal(plan->strategy, "auto");
        assert_ok(lg_plan_check(plan, c.graph, 0));
        num += assert_not_slower(simulated_ns(plan, c.graph, &c.machine, c.costs), c.graph,
                                 &c.machine, c.costs, &opts);
        lg_plan_destroy(plan);
        lgx_case_deinit(&c);
    }
    assert_true(num > 4 * NUM_SMALL_CASES);
}

static void auto_is_legal_and_never_slower_on_random_clusters(void **state)
{
    (void)state;
    int num = 0;
    int num_done = 0;
    for (uint64_t seed = 1; num_done < NUM_CLUSTERS; seed++) {
        lgb_cluster c;
        lg_plan *plan = NULL;
        lg_bound bound;
        lg_strategy_opts opts = lg_strategy_opts_default();
        assert_ok(lgb_cluster_init(&c, seed, seed % 2 == 0));
        opts.allow_lag = seed % 4 != 0;
        const lg_status status =
            lg_graph_num_ops(c.graph) > MAX_CLUSTER_OPS
                ? LG_NOT_SUPPORTED
                : lg_plan_create(&plan, "auto", c.graph, &c.machine, c.costs, &opts);
        if (status == LG_OK) {
            const double ns = simulated_ns(plan, c.graph, &c.machine, c.costs);
            assert_ok(lg_plan_check(plan, c.graph, 0));
            assert_ok(lg_plan_bound(&bound, c.graph, &c.machine, c.costs));
            assert_true(bound.step_ns <= ns * (1.0 + ROUNDING_FRAC));
            num += assert_not_slower(ns, c.graph, &c.machine, c.costs, &opts);
            num_done++;
        } else if (status != LG_NOT_SUPPORTED) { /* stages that no strategy runs */
            fail_msg("seed %d: %s", (int)seed, lg_last_error());
        }
        lg_plan_destroy(plan);
        lgb_cluster_deinit(&c);
    }
    assert_true(num > 0);
}

static void auto_makes_the_same_plan_every_time(void **state)
{
    (void)state;
    lgx_case c;
    lg_plan *first = NULL;
    lg_plan *second = NULL;
    const lg_strategy_opts opts = lg_strategy_opts_default();
    assert_ok(lgx_case_init(&c, 7, MAX_SMALL_OPS));
    assert_ok(lg_plan_create(&first, "auto", c.graph, &c.machine, c.costs, &opts));
    assert_ok(lg_plan_create(&second, "auto", c.graph, &c.machine, c.costs, &opts));
    assert_same_plan(first, second);
    lg_plan_destroy(first);
    lg_plan_destroy(second);
    lgx_case_deinit(&c);
}

static void auto_without_lag_defers_nothing(void **state)
{
    (void)state;
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.allow_lag = false;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        lgx_case c;
        lg_plan *plan = NULL;
        assert_ok(lgx_case_init(&c, seed, MAX_SMALL_OPS));
        assert_ok(lg_plan_create(&plan, "auto", c.graph, &c.machine, c.costs, &opts));
        for (int lane = 0; lane < plan->num_lanes; lane++) {
            for (int i = 0; i < plan->lanes[lane].num_entries; i++) {
                assert_int_equal(plan->lanes[lane].entries[i].lag, 0);
            }
        }
        lg_plan_destroy(plan);
        lgx_case_deinit(&c);
    }
}

static int64_t largest_peak(const lg_plan *plan)
{
    int64_t peak = 0;
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        peak = plan->peak_bytes[rank] > peak ? plan->peak_bytes[rank] : peak;
    }
    return peak;
}

/* --- lg_search ---------------------------------------------------------------------------------------------------------- */

#define BLOCK_NS 1e6

/* Blocks take a millisecond for each of F, I and W; the stem and the updates nothing. */
static lg_status unit_costs(lg_costs *costs, const lg_graph *graph, void *user)
{
    (void)user;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        const char *const layer =
            info->layer >= 0 ? lg_model_layer(lg_graph_model(graph), info->layer)->name : "";
        const bool is_unit = strncmp(layer, "h.", 2) == 0 &&
                             (info->kind == LG_OP_FORWARD || info->kind == LG_OP_INPUT_GRAD ||
                              info->kind == LG_OP_WEIGHT_GRAD);
        lg_costs_set_op_ns(costs, op, 0, is_unit ? BLOCK_NS : 0.0);
    }
    return LG_OK;
}

static const lg_search_source unit_source = {.fill_costs = unit_costs};

static lg_search_opts small_search(int num_micro_batches)
{
    lg_search_opts opts = lg_search_opts_default();
    opts.graph.num_samples = 8;
    opts.graph.num_micro_batches = num_micro_batches;
    opts.max_simulated_ops = 400000;
    return opts;
}

static void assert_ranking(const lg_search_result *r, const lg_machine *machine)
{
    assert_true(r->num_entries > 0);
    assert_true(r->entries[0].fits);
    assert_ok(lg_plan_check(r->plan, r->graph, 0));
    const double ns = simulated_ns(r->plan, r->graph, machine, r->costs);
    assert_true(fabs(ns / r->entries[0].step_ns - 1.0) < ROUNDING_FRAC);
    assert_true(r->bound.step_ns <= ns * (1.0 + ROUNDING_FRAC));
    assert_string_not_equal(r->entries[r->best_named].strategy, "auto");
    assert_true(r->gain_frac >= 0.0);
    for (int i = 1; i < r->num_entries; i++) {
        const lg_search_entry *const a = &r->entries[i - 1];
        const lg_search_entry *const b = &r->entries[i];
        assert_true(a->fits >= b->fits);
        assert_true(!b->fits || a->step_ns <= b->step_ns);
        assert_true(b->peak_bytes > 0);
    }
    for (int i = 0; i < r->num_entries; i++) {
        const lg_search_entry *const e = &r->entries[i];
        int64_t peak = 0;
        for (int rank = 0; rank < r->num_ranks && e->fits; rank++) {
            peak = e->rank_peak_bytes[rank] > peak ? e->rank_peak_bytes[rank] : peak;
        }
        assert_true(!e->fits || peak == e->peak_bytes);
        assert_true(!e->fits || (e->bubble_frac > -ROUNDING_FRAC && e->bubble_frac < 1.0));
    }
}

static void search_reaches_the_bound_where_a_schedule_without_bubbles_exists(void **state)
{
    (void)state;
    lg_model *const model = linear_model(8);
    const lg_machine machine = free_links(4);
    const lg_search_opts opts = small_search(8);
    lg_search_result r;
    assert_ok(lg_search(&r, model, &machine, &unit_source, &opts));
    assert_ranking(&r, &machine);
    assert_true(r.is_complete);
    /* 8 blocks x 8 micro-batches x 3 ms on 4 ranks */
    assert_true(fabs(r.bound.busiest_rank_ns / (48.0 * BLOCK_NS) - 1.0) < ROUNDING_FRAC);
    assert_true(fabs(r.entries[0].step_ns / (48.0 * BLOCK_NS) - 1.0) < ROUNDING_FRAC);
    assert_non_null(strstr(r.text, "No gain over"));
    lg_search_result_deinit(&r);
    lg_model_destroy(model);
}

static void search_says_no_gain_on_one_rank(void **state)
{
    (void)state;
    lg_model *const model = linear_model(4);
    const lg_machine machine = free_links(1);
    const lg_search_opts opts = small_search(1);
    lg_search_result r;
    assert_ok(lg_search(&r, model, &machine, &unit_source, &opts));
    assert_ranking(&r, &machine);
    assert_int_equal(r.entries[0].placement, LG_SEARCH_ONE_STAGE);
    assert_non_null(strstr(r.text, "No gain over"));
    assert_true(r.gain_frac < 0.01);
    lg_search_result_deinit(&r);
    lg_model_destroy(model);
}

static void search_keeps_to_the_memory_limit(void **state)
{
    (void)state;
    lg_model *const model = linear_model(8);
    const lg_machine machine = free_links(2);
    lg_search_opts opts = small_search(4);
    lg_search_result free_result;
    lg_search_result r;
    assert_ok(lg_search(&free_result, model, &machine, &unit_source, &opts));
    int64_t least_bytes = INT64_MAX;
    for (int i = 0; i < free_result.num_entries; i++) {
        const int64_t peak = free_result.entries[i].peak_bytes;
        least_bytes = peak < least_bytes ? peak : least_bytes;
    }
    opts.strategy.memory_bytes = least_bytes;
    assert_ok(lg_search(&r, model, &machine, &unit_source, &opts));
    assert_ranking(&r, &machine);
    assert_true(largest_peak(r.plan) <= least_bytes);
    assert_true(r.entries[0].step_ns >= free_result.entries[0].step_ns);
    assert_false(r.entries[r.num_entries - 1].fits);
    lg_search_result_deinit(&r);
    opts.strategy.memory_bytes = 64;
    assert_fails(LG_NOT_SUPPORTED, "no plan fits 64 bytes",
                 lg_search(&r, model, &machine, &unit_source, &opts));
    assert_null(r.plan);
    lg_search_result_deinit(&free_result);
    lg_model_destroy(model);
}

static void search_chooses_replicas_and_micro_batches(void **state)
{
    (void)state;
    static const int micro_batches[] = {1, 2, 4};
    bool has_pipeline = false;
    bool has_replicas = false;
    bool has_m[5] = {false};
    lg_model *const model = linear_model(8);
    lg_machine machine = lg_machine_default();
    machine.num_ranks = machine.ranks_per_host = 2;
    lg_search_opts opts = small_search(1);
    opts.num_replicas = 0;
    opts.micro_batches = micro_batches;
    opts.num_micro_batches = 3;
    lg_search_result r;
    assert_ok(lg_search(&r, model, &machine, NULL, &opts));
    assert_ranking(&r, &machine);
    for (int i = 0; i < r.num_entries; i++) {
        has_pipeline = has_pipeline || r.entries[i].num_pipeline_ranks == 2;
        has_replicas = has_replicas || r.entries[i].num_replicas == 2;
        has_m[r.entries[i].num_micro_batches] = true;
    }
    assert_true(has_pipeline && has_replicas && has_m[1] && has_m[2] && has_m[4]);
    lg_search_result_deinit(&r);
    lg_model_destroy(model);
}

static void search_refuses_what_is_out_of_range(void **state)
{
    (void)state;
    lg_model *const model = linear_model(3);
    lg_machine machine = free_links(4);
    lg_search_opts opts = small_search(2);
    lg_search_result r;
    assert_fails(LG_INVALID_ARG, "4 pipeline ranks, but the model has 3 blocks",
                 lg_search(&r, model, &machine, &unit_source, &opts));
    opts.num_replicas = 3;
    assert_fails(LG_INVALID_ARG, "3 replicas do not divide",
                 lg_search(&r, model, &machine, &unit_source, &opts));
    opts = small_search(2);
    opts.num_replicas = 4;
    opts.max_simulated_ops = 0;
    assert_fails(LG_INVALID_ARG, "0 simulated ops",
                 lg_search(&r, model, &machine, &unit_source, &opts));
    opts = small_search(2);
    opts.num_replicas = 4;
    machine.intra_host.bytes_per_s = 0.0;
    assert_int_equal(lg_search(&r, model, &machine, &unit_source, &opts), LG_INVALID_ARG);
    lg_model_destroy(model);
}

static void a_search_without_memory_fails_cleanly(void **state)
{
    (void)state;
    lgx_case c;
    lg_plan *plan = NULL;
    const lg_strategy_opts opts = lg_strategy_opts_default();
    assert_ok(lgx_case_init(&c, 3, MAX_SMALL_OPS));
    for (int64_t n = 1; n < 100000; n += n / 4 + 1) {
        lgi_alloc_fail_after(n);
        const lg_status status = lg_plan_create(&plan, "auto", c.graph, &c.machine, c.costs, &opts);
        lgi_alloc_fail_after(0);
        assert_true(status == LG_OK || status == LG_OUT_OF_MEMORY || status == LG_INTERNAL);
        assert_true((status == LG_OK) == (plan != NULL));
        lg_plan_destroy(plan);
        plan = NULL;
        if (status == LG_OK) {
            break;
        }
    }
    lgx_case_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_is_near_the_optimum_of_small_cases),
        cmocka_unit_test(auto_is_never_slower_than_a_named_strategy),
        cmocka_unit_test(auto_is_legal_and_never_slower_on_random_clusters),
        cmocka_unit_test(auto_makes_the_same_plan_every_time),
        cmocka_unit_test(auto_without_lag_defers_nothing),
        cmocka_unit_test(search_reaches_the_bound_where_a_schedule_without_bubbles_exists),
        cmocka_unit_test(search_says_no_gain_on_one_rank),
        cmocka_unit_test(search_keeps_to_the_memory_limit),
        cmocka_unit_test(search_chooses_replicas_and_micro_batches),
        cmocka_unit_test(search_refuses_what_is_out_of_range),
        cmocka_unit_test(a_search_without_memory_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
