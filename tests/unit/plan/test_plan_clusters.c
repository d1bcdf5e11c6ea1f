/*
 * Plans over ranks on random clusters: happens-before and memory against brute force, plans of all kinds, planted faults (the
 * long run is bench/plan_fuzz.c), and memory that runs out.
 */
#include "random_plans.h"

#include "../../../bench/random_cluster.h"
#include "plan/plan_order.h"

#define NUM_CLUSTERS 250

/* --- happens-before --------------------------------------------------------------------------------------------------------- */

/* Reachability inside one iteration by brute force; ops that meet are one. */
static void mark_after(const lg_plan *plan, const lg_graph *graph, const lgi_order *order, int op,
                       bool *is_after)
{
    const lg_edge *const edges = lg_graph_edges(graph);
    const int group = lg_graph_op(graph, op)->group;
    for (int member = 0; member < plan->num_ops; member++) {
        if (member != op && (group < 0 || lg_graph_op(graph, member)->group != group)) {
            continue;
        }
        int next[MAX_TEST_OPS];
        int num = 0;
        const lg_lane *const lane = &plan->lanes[order->lane[member]];
        if (order->pos[member] + 1 < lane->num_entries) {
            next[num++] = lane->entries[order->pos[member] + 1].op;
        }
        for (int i = 0; i < lg_graph_num_edges(graph); i++) {
            const int to = edges[i].to;
            if (edges[i].from == member &&
                edges[i].distance + order->lag[to] == order->lag[member] &&
                (group < 0 || lg_graph_op(graph, to)->group != group)) {
                next[num++] = to;
            }
        }
        for (int i = 0; i < num; i++) {
            const int next_group = lg_graph_op(graph, next[i])->group;
            bool is_new = false;
            for (int k = 0; k < plan->num_ops; k++) {
                if (k == next[i] ||
                    (next_group >= 0 && lg_graph_op(graph, k)->group == next_group)) {
                    is_new = is_new || !is_after[k];
                    is_after[k] = true;
                }
            }
            if (is_new) {
                mark_after(plan, graph, order, next[i], is_after);
            }
        }
    }
}

static void the_order_of_a_ranks_ops_is_exact(void **state)
{
    (void)state;
    int num_through_others = 0;
    int num_graphs = 0;
    for (uint64_t seed = 1; seed < 400 && num_graphs < 60; seed++) {
        lgb_cluster cluster;
        assert_ok(lgb_cluster_init(&cluster, seed, false));
        const int num_ops = lg_graph_num_ops(cluster.graph);
        if (num_ops > 90) {
            lgb_cluster_deinit(&cluster);
            continue;
        }
        num_graphs++;
        lg_plan *plan = NULL;
        lgi_order order;
        lgi_groups groups;
        assert_ok(lgb_random_plan(&plan, &cluster, seed));
        assert_ok(lgi_groups_init(&groups, cluster.graph));
        assert_ok(lgi_order_init(&order, &groups, plan, cluster.graph));
        for (int a = 0; a < num_ops; a++) {
            bool is_after[MAX_TEST_OPS] = {false};
            mark_after(plan, cluster.graph, &order, a, is_after);
            for (int b = 0; b < num_ops; b++) {
                const bool has_one_rank = order.rank[a] == order.rank[b];
                if (lgi_order_before_inside(&order, a, b) != (has_one_rank && is_after[b])) {
                    fail_msg("seed %d: '%s' before '%s'", (int)seed,
                             lg_graph_op(cluster.graph, a)->name,
                             lg_graph_op(cluster.graph, b)->name);
                }
                assert_true(!is_after[b] || order.linear[a] < order.linear[b]);
                num_through_others += has_one_rank && is_after[b] &&
                                      lg_graph_op(cluster.graph, a)->kind == LG_OP_SEND;
            }
        }
        lgi_order_deinit(&order);
        lgi_groups_deinit(&groups);
        lg_plan_destroy(plan);
        lgb_cluster_deinit(&cluster);
    }
    assert_true(num_graphs > 20);
    assert_true(num_through_others > 100);
}

/* The oracle of one rank's tests, with what meets counted in. */
static void cluster_oracle_init(oracle *o, const lg_plan *plan, const lg_graph *graph,
                                const lgi_order *order)
{
    const int num_ops = plan->num_ops;
    *o = (oracle){.plan = plan, .graph = graph, .num_ops = num_ops};
    o->lag = calloc((size_t)num_ops, sizeof(int));
    o->lane = calloc((size_t)num_ops, sizeof(int));
    o->reach =
        calloc((size_t)num_ops * ORACLE_STEPS * (size_t)num_ops * ORACLE_STEPS, sizeof(bool));
    memcpy(o->lag, order->lag, (size_t)num_ops * sizeof(int));
    memcpy(o->lane, order->lane, (size_t)num_ops * sizeof(int));
    for (int a = 0; a < num_ops; a++) {
        bool is_after[MAX_TEST_OPS] = {false};
        mark_after(plan, graph, order, a, is_after);
        for (int b = 0; b < num_ops; b++) {
            for (int i = 0; i < ORACLE_STEPS * ORACLE_STEPS; i++) {
                const int it_a = i / ORACLE_STEPS + o->lag[a];
                const int it_b = i % ORACLE_STEPS + o->lag[b];
                o->reach[(a * ORACLE_STEPS + i / ORACLE_STEPS) * num_ops * ORACLE_STEPS +
                         b * ORACLE_STEPS + i % ORACLE_STEPS] =
                    it_a == it_b ? is_after[b] : it_a < it_b;
            }
        }
    }
}

/* Moves a value onto another one of its rank, and states the peak that this makes. */
static void misplace(lg_plan *plan, const lg_graph *graph, uint64_t *random)
{
    for (int tries = 0; tries < 20; tries++) {
        const int from = rnd_below(random, plan->num_values);
        const int to = rnd_below(random, plan->num_values);
        const int rank = lg_graph_value(graph, from)->rank;
        lg_placement *const moved = &plan->values[from];
        if (rank != lg_graph_value(graph, to)->rank || from == to || moved->num_slots == 0 ||
            plan->values[to].num_slots == 0) {
            continue;
        }
        moved->offset_bytes[rnd_below(random, moved->num_slots)] = plan->values[to].offset_bytes[0];
        plan->peak_bytes[rank] = 0;
        for (int value = 0; value < plan->num_values; value++) {
            const lg_value_info *const info = lg_graph_value(graph, value);
            for (int slot = 0; slot < plan->values[value].num_slots; slot++) {
                const int64_t end = plan->values[value].offset_bytes[slot] + info->bytes;
                if (info->rank == rank && info->bytes > 0 && end > plan->peak_bytes[rank]) {
                    plan->peak_bytes[rank] = end;
                }
            }
        }
        return;
    }
}

static void misplaced_values_are_found_exactly(void **state)
{
    (void)state;
    int num_right = 0;
    int num_wrong = 0;
    for (uint64_t seed = 1; seed < 400 && num_right + num_wrong < 300; seed++) {
        lgb_cluster cluster;
        lg_plan *plan = NULL;
        lgi_order order;
        lgi_groups groups;
        oracle o;
        uint64_t random = seed;
        assert_ok(lgb_cluster_init(&cluster, seed, false));
        if (lg_graph_num_ops(cluster.graph) > 90 || lg_graph_num_ranks(cluster.graph) == 1) {
            lgb_cluster_deinit(&cluster);
            continue;
        }
        assert_ok(lgb_random_plan(&plan, &cluster, seed));
        assert_ok(lgi_groups_init(&groups, cluster.graph));
        assert_ok(lgi_order_init(&order, &groups, plan, cluster.graph));
        cluster_oracle_init(&o, plan, cluster.graph, &order);
        assert_true(oracle_accepts_memory(&o));
        for (int i = 0; i < 8; i++) {
            misplace(plan, cluster.graph, &random);
            const bool is_right = oracle_accepts_memory(&o);
            if ((lg_plan_check(plan, cluster.graph, 0) == LG_OK) != is_right) {
                fail_msg("seed %d, misplacement %d: %s, but the checker says: %s", (int)seed, i,
                         is_right ? "right" : "wrong", lg_last_error());
            }
            num_right += is_right ? 1 : 0;
            num_wrong += is_right ? 0 : 1;
            if (!is_right) {
                assert_ok(lgi_plan_place(plan, cluster.graph));
            }
        }
        oracle_deinit(&o);
        lgi_order_deinit(&order);
        lgi_groups_deinit(&groups);
        lg_plan_destroy(plan);
        lgb_cluster_deinit(&cluster);
    }
    assert_true(num_right > 20 && num_wrong > 100);
}

/* --- random clusters ----------------------------------------------------------------------------------------------------- */

static void random_plans_over_ranks_are_accepted_and_run(void **state)
{
    (void)state;
    char why[LGB_TEXT_BYTES];
    for (uint64_t seed = 1; seed <= NUM_CLUSTERS; seed++) {
        lgb_cluster cluster;
        lg_plan *plan = NULL;
        assert_ok(lgb_cluster_init(&cluster, seed, false));
        assert_ok(lgb_random_plan(&plan, &cluster, seed));
        if (lgb_check_plan(&cluster, plan, why) != NULL) {
            fail_msg("seed %d: %s", (int)seed, why);
        }
        lg_plan_destroy(plan);
        lgb_cluster_deinit(&cluster);
    }
}

static void plans_of_strategies_are_accepted_and_run(void **state)
{
    (void)state;
    char why[LGB_TEXT_BYTES];
    int num_made = 0;
    for (uint64_t seed = 1; seed <= NUM_CLUSTERS; seed++) {
        lgb_cluster cluster;
        bool is_made = false;
        assert_ok(lgb_cluster_init(&cluster, seed, seed % 2 == 0));
        if (lgb_check_strategy(&cluster, seed, &is_made, why) != NULL) {
            fail_msg("seed %d: %s", (int)seed, why);
        }
        num_made += is_made ? 1 : 0;
        lgb_cluster_deinit(&cluster);
    }
    assert_true(num_made > NUM_CLUSTERS / 4);
}

/* Makes, proves and runs a plan of each strategy, but for those that need another placement; how many. */
static int make_all_strategies(const lgb_cluster *cluster, uint64_t seed)
{
    char why[LGB_TEXT_BYTES];
    const lg_strategy_opts opts = lg_strategy_opts_default();
    int num_made = 0;
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        const bool is_data = lg_strategy_role_of(i) == LG_STRATEGY_DATA;
        char name[64];
        lg_plan *plan = NULL;
        (void)snprintf(name, sizeof name, "%s%s", is_data ? "gpipe+" : "", lg_strategy_name(i));
        const lg_status status =
            lg_plan_create(&plan, name, cluster->graph, &cluster->machine, cluster->costs, &opts);
        if (status == LG_INVALID_ARG && strstr(lg_last_error(), "stage") != NULL) {
            continue; /* another placement */
        }
        if (status != LG_OK || lgb_check_plan(cluster, plan, why) != NULL) {
            fail_msg("seed %d, %s: %s", (int)seed, name, status != LG_OK ? lg_last_error() : why);
        }
        lg_plan_destroy(plan);
        num_made++;
    }
    return num_made;
}

/* A gradient that skips a stage is summed on the rank of a later stage, whose sum no earlier unit may hold up. */
static void skips_over_stages_of_one_rank_do_not_stop_a_schedule(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed;
        bool is_even;
    } cases[] = {{990565, false}, {1795, false}, {3546, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint64_t seed = cases[i].seed;
        lgb_cluster cluster;
        assert_ok(lgb_cluster_init(&cluster, seed, cases[i].is_even));
        assert_true(make_all_strategies(&cluster, seed) > 5);
        lgb_cluster_deinit(&cluster);
    }
}

static void all_strategies_plan_graphs_that_only_go_forward(void **state)
{
    (void)state;
    int num_found[LG_GRAPH_PREDICT + 1] = {0};
    for (uint64_t seed = 1; seed <= NUM_CLUSTERS; seed++) {
        if (lgb_mode(seed) == LG_GRAPH_TRAIN) {
            continue;
        }
        lgb_cluster cluster;
        assert_ok(lgb_cluster_init(&cluster, seed, seed % 2 == 0));
        assert_true(make_all_strategies(&cluster, seed) > 5);
        num_found[lg_graph_options(cluster.graph)->mode]++;
        lgb_cluster_deinit(&cluster);
    }
    assert_true(num_found[LG_GRAPH_EVAL] > 0 && num_found[LG_GRAPH_PREDICT] > 0);
}

static void planted_faults_are_found_and_named(void **state)
{
    (void)state;
    char why[LGB_TEXT_BYTES];
    int num_planted[LGB_NUM_FAULTS] = {0};
    for (uint64_t seed = 1; seed <= NUM_CLUSTERS; seed++) {
        lgb_cluster cluster;
        assert_ok(lgb_cluster_init(&cluster, seed, false));
        for (int fault = 0; fault < LGB_NUM_FAULTS; fault++) {
            lg_plan *plan = NULL;
            bool is_planted = false;
            assert_ok(lgb_random_plan(&plan, &cluster, seed));
            if (lgb_check_fault(&cluster, plan, (lgb_fault)fault, seed, &is_planted, why) != NULL) {
                fail_msg("seed %d: %s", (int)seed, why);
            }
            num_planted[fault] += is_planted ? 1 : 0;
            lg_plan_destroy(plan);
        }
        lgb_cluster_deinit(&cluster);
    }
    for (int fault = 0; fault < LGB_NUM_FAULTS; fault++) {
        assert_true(num_planted[fault] > NUM_CLUSTERS / 4);
    }
}

/* --- memory that runs out -------------------------------------------------------------------------------------------- */

static lg_status plan_and_observe(const lgb_cluster *cluster, const lg_plan *lanes)
{
    lg_plan *plan = NULL;
    lg_timeline timeline = {0};
    lg_rank_stats *const stats = calloc((size_t)lanes->num_ranks, sizeof *stats);
    lg_status status =
        lg_plan_from_lanes(&plan, "test", cluster->graph, lanes->lanes, lanes->num_lanes, NULL, 0);
    status = status == LG_OK ? lg_plan_check(plan, cluster->graph, 0) : status;
    status = status == LG_OK ? lg_plan_simulate(&timeline, plan, cluster->graph, &cluster->machine,
                                                cluster->costs)
                             : status;
    status = status == LG_OK ? lg_timeline_add_memory(&timeline, plan, cluster->graph) : status;
    status = status == LG_OK ? lg_timeline_stats(stats, &timeline, plan, cluster->graph) : status;
    lg_timeline_deinit(&timeline);
    lg_plan_destroy(plan);
    free(stats);
    return status;
}

static void every_allocation_that_fails_is_reported(void **state)
{
    (void)state;
    lgb_cluster cluster;
    lg_plan *lanes = NULL;
    assert_ok(lgb_cluster_init(&cluster, 17, false));
    assert_true(lg_graph_num_groups(cluster.graph) > 0);
    assert_ok(lgb_random_plan(&lanes, &cluster, 17));
    int num = 0;
    lg_status status = LG_OUT_OF_MEMORY;
    while (status == LG_OUT_OF_MEMORY) {
        lgi_alloc_fail_after(++num);
        status = plan_and_observe(&cluster, lanes);
    }
    lgi_alloc_fail_after(0);
    assert_ok(status);
    assert_true(num > 100);
    lg_plan_destroy(lanes);
    lgb_cluster_deinit(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_of_a_ranks_ops_is_exact),
        cmocka_unit_test(misplaced_values_are_found_exactly),
        cmocka_unit_test(random_plans_over_ranks_are_accepted_and_run),
        cmocka_unit_test(plans_of_strategies_are_accepted_and_run),
        cmocka_unit_test(skips_over_stages_of_one_rank_do_not_stop_a_schedule),
        cmocka_unit_test(all_strategies_plan_graphs_that_only_go_forward),
        cmocka_unit_test(planted_faults_are_found_and_named),
        cmocka_unit_test(every_allocation_that_fails_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
