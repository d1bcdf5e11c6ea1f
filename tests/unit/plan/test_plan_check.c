/* The checker and the memory planner over random graphs, random legal plans and planted faults. */
#include "random_plans.h"

#define NUM_SEEDS 300
/* The oracle is cubic in the ops: only graphs up to this size. */
#define MAX_ORACLE_OPS 70
#define MAX_ORACLE_GRAPHS 40

static const char *op_name(const lg_graph *graph, int op)
{
    return lg_graph_op(graph, op)->name;
}

static void random_legal_plans_are_accepted(void **state)
{
    (void)state;
    int num_lagged = 0;
    int num_two_slots = 0;
    for (uint64_t seed = 1; seed <= NUM_SEEDS; seed++) {
        lg_graph *graph = random_graph(seed);
        lg_plan *plan = random_plan(graph, seed, seed % 4 == 0);
        if (lg_plan_check(plan, graph, 0) != LG_OK) {
            fail_msg("seed %d: %s", (int)seed, lg_last_error());
        }
        assert_ok(lg_plan_check(plan, graph, lgi_plan_peak_bytes(plan)));
        for (int op = 0; op < plan->num_ops; op++) {
            num_lagged += find_entry(plan, op, NULL)->lag;
        }
        for (int value = 0; value < plan->num_values; value++) {
            num_two_slots += plan->values[value].num_slots == 2 ? 1 : 0;
        }
        lg_plan_destroy(plan);
        lg_graph_destroy(graph);
    }
    assert_true(num_lagged > NUM_SEEDS); /* else the test says nothing of lags and slots */
    assert_true(num_two_slots > NUM_SEEDS / 4);
}

/* Moves one value or workspace over another one and asks the oracle whether that is still right. */
static void mutate_memory(lg_plan *plan, const lg_graph *graph, uint64_t *state)
{
    int64_t target = -1;
    while (target < 0) {
        const int other = rnd_below(state, plan->num_values + plan->num_ops);
        target =
            other < plan->num_values
                ? (plan->values[other].num_slots > 0 ? plan->values[other].offset_bytes[0] : -1)
                : plan->workspace_offset_bytes[other - plan->num_values];
    }
    target += rnd_chance(state, 30) ? 64 : 0;
    const int value = rnd_below(state, plan->num_values);
    const int op = rnd_below(state, plan->num_ops);
    if (rnd_chance(state, 20) && plan->workspace_offset_bytes[op] >= 0) {
        plan->workspace_offset_bytes[op] = target;
    } else if (plan->values[value].num_slots > 0 && !lg_graph_value(graph, value)->is_persistent) {
        plan->values[value].offset_bytes[rnd_below(state, plan->values[value].num_slots)] = target;
    }
}

/* Makes the stated peak what the placements say. */
static void restate_peak(lg_plan *plan, const oracle *o)
{
    int64_t peak = 0;
    for (int thing = 0; thing < plan->num_values + plan->num_ops; thing++) {
        for (int step = 0; step < 2; step++) {
            int64_t end = 0;
            const int64_t begin = oracle_range(o, thing, step, &end);
            peak = end > begin && end > peak ? end : peak;
        }
    }
    plan->peak_bytes[0] = peak;
}

static void memory_verdict_is_that_of_brute_force(void **state)
{
    (void)state;
    int num_graphs = 0;
    int num_accepted = 0;
    int num_refused = 0;
    for (uint64_t seed = 1; num_graphs < MAX_ORACLE_GRAPHS; seed++) {
        lg_graph *graph = random_graph(seed);
        if (lg_graph_num_ops(graph) > MAX_ORACLE_OPS) {
            lg_graph_destroy(graph);
            continue;
        }
        num_graphs++;
        lg_plan *plan = random_plan(graph, seed, false);
        uint64_t random_state = seed + 77;
        oracle o;
        oracle_init(&o, plan, graph);
        assert_true(oracle_accepts_memory(&o));
        for (int i = 0; i < 12; i++) {
            lg_placement *const saved = calloc((size_t)plan->num_values, sizeof *saved);
            int64_t *const saved_work = calloc((size_t)plan->num_ops, sizeof *saved_work);
            memcpy(saved, plan->values, (size_t)plan->num_values * sizeof *saved);
            memcpy(saved_work, plan->workspace_offset_bytes,
                   (size_t)plan->num_ops * sizeof *saved_work);
            mutate_memory(plan, graph, &random_state);
            restate_peak(plan, &o);
            const bool expected = oracle_accepts_memory(&o);
            const bool accepted = lg_plan_check(plan, graph, 0) == LG_OK;
            if (expected != accepted) {
                fail_msg("seed %d, change %d: brute force says %d, the checker %d (%s)", (int)seed,
                         i, expected, accepted, accepted ? "" : lg_last_error());
            }
            num_accepted += accepted ? 1 : 0;
            num_refused += accepted ? 0 : 1;
            if (!accepted) {
                memcpy(plan->values, saved, (size_t)plan->num_values * sizeof *saved);
                memcpy(plan->workspace_offset_bytes, saved_work,
                       (size_t)plan->num_ops * sizeof *saved_work);
            }
            free(saved);
            free(saved_work);
        }
        oracle_deinit(&o);
        lg_plan_destroy(plan);
        lg_graph_destroy(graph);
    }
    assert_true(num_accepted > 40);
    assert_true(num_refused > 40);
}

/* Runs `test` on random graphs with random plans. */
static void with_plans(void (*test)(lg_plan *plan, lg_graph *graph, uint64_t seed))
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        lg_graph *graph = random_graph(seed);
        lg_plan *plan = random_plan(graph, seed + 1000, false);
        test(plan, graph, seed);
        lg_plan_destroy(plan);
        lg_graph_destroy(graph);
    }
}

static void remove_op(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    const int op = (int)(seed * 7) % plan->num_ops;
    int lane_idx = 0;
    lg_plan_entry *entry = find_entry(plan, op, &lane_idx);
    lg_lane *lane = &plan->lanes[lane_idx];
    const int pos = (int)(entry - lane->entries);
    memmove(entry, entry + 1, (size_t)(lane->num_entries - pos - 1) * sizeof *entry);
    lane->num_entries--;
    assert_fails(LG_INVALID_ARG, op_name(graph, op), lg_plan_check(plan, graph, 0));
}

static void a_missing_op_is_named(void **state)
{
    (void)state;
    with_plans(remove_op);
}

static void double_op(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    const int op = (int)(seed * 7) % plan->num_ops;
    lg_lane *lane = &plan->lanes[(int)seed % plan->num_lanes];
    lane->entries[lane->num_entries++] = *find_entry(plan, op, NULL);
    assert_fails(LG_INVALID_ARG, op_name(graph, op), lg_plan_check(plan, graph, 0));
    assert_non_null(strstr(lg_last_error(), "twice"));
}

static void a_doubled_op_is_named(void **state)
{
    (void)state;
    with_plans(double_op);
}

static void break_edge(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    const lg_edge *edges = lg_graph_edges(graph);
    const int num_edges = lg_graph_num_edges(graph);
    for (int i = 0; i < num_edges; i++) {
        const lg_edge *e = &edges[(i + (int)seed * 5) % num_edges];
        int lane_from = 0;
        int lane_to = 0;
        lg_plan_entry *from = find_entry(plan, e->from, &lane_from);
        lg_plan_entry *to = find_entry(plan, e->to, &lane_to);
        if (lane_from != lane_to || e->from == e->to || e->distance + to->lag - from->lag != 0) {
            continue;
        }
        const lg_plan_entry moved = *to;
        memmove(from + 1, from, (size_t)(to - from) * sizeof *from);
        *from = moved;
        assert_fails(LG_INVALID_ARG, op_name(graph, e->to), lg_plan_check(plan, graph, 0));
        assert_non_null(strstr(lg_last_error(), "edge"));
        return;
    }
}

static void a_broken_edge_is_named(void **state)
{
    (void)state;
    with_plans(break_edge);
}

static void break_lag(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    const lg_edge *edges = lg_graph_edges(graph);
    const int num_edges = lg_graph_num_edges(graph);
    for (int i = 0; i < num_edges; i++) {
        const lg_edge *e = &edges[(i + (int)seed * 5) % num_edges];
        lg_plan_entry *from = find_entry(plan, e->from, NULL);
        const lg_plan_entry *to = find_entry(plan, e->to, NULL);
        if (e->distance == 0 && from->lag == 0 && to->lag == 0) {
            from->lag = 1;
            assert_fails(LG_INVALID_ARG, op_name(graph, e->from), lg_plan_check(plan, graph, 0));
            from->lag = 2;
            assert_fails(LG_INVALID_ARG, "lag 2", lg_plan_check(plan, graph, 0));
            return;
        }
    }
}

static void a_lag_against_an_edge_is_named(void **state)
{
    (void)state;
    with_plans(break_lag);
}

static int num_deadlocks;

static void make_deadlock(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    const lg_edge *edges = lg_graph_edges(graph);
    const int num_edges = lg_graph_num_edges(graph);
    for (int i = 0; i < num_edges; i++) {
        const lg_edge *e = &edges[(i + (int)seed * 5) % num_edges];
        int lane_from = 0;
        int lane_to = 0;
        const lg_plan_entry *from = find_entry(plan, e->from, &lane_from);
        const lg_plan_entry *to = find_entry(plan, e->to, &lane_to);
        if (lane_from != lane_to && e->distance + to->lag - from->lag == 0) {
            plan->syncs[plan->num_syncs++] = (lg_plan_sync){e->to, e->from, 0};
            assert_fails(LG_INVALID_ARG, "deadlock", lg_plan_check(plan, graph, 0));
            num_deadlocks++;
            return;
        }
    }
}

static void a_deadlock_across_lanes_is_found(void **state)
{
    (void)state;
    with_plans(make_deadlock);
    assert_true(num_deadlocks > 20);
}

static void a_deadlock_names_the_ops_on_the_cycle(void **state)
{
    (void)state;
    const lg_value_info value = {.kind = LG_VALUE_PARAM, .bytes = 4, .is_persistent = true};
    const lg_operand operand = {.value = 0, .access = LG_ACCESS_READ};
    lg_op_info ops[4];
    static const char *const names[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) {
        ops[i] = (lg_op_info){.name = names[i],
                              .num_operands = 1,
                              .operands = &operand,
                              .inplace_write = -1,
                              .inplace_read = -1};
    }
    const lg_graph_opts opts = lg_graph_opts_default();
    lg_graph *graph = NULL;
    lg_plan *plan = NULL;
    assert_ok(lgi_graph_from_records(&graph, &opts, &value, 1, ops, 4));
    assert_ok(lgi_plan_init(&plan, graph, "test", 2));
    for (int lane = 0; lane < 2; lane++) {
        plan->lanes[lane].num_cores = 1;
        plan->lanes[lane].first_core = lane;
        plan->lanes[lane].num_entries = 2;
        assert_ok(lgi_calloc(&plan->lanes[lane].entries, 2, sizeof(lg_plan_entry)));
        plan->lanes[lane].entries[0].op = 2 * lane;
        plan->lanes[lane].entries[1].op = 2 * lane + 1;
    }
    assert_ok(lgi_realloc(&plan->syncs, 2, sizeof *plan->syncs));
    plan->num_syncs = 2;
    plan->syncs[0] = (lg_plan_sync){1, 2, 0}; /* b before c, d before a */
    plan->syncs[1] = (lg_plan_sync){3, 0, 0};
    assert_fails(LG_INVALID_ARG, "'a' (lane 0)", lg_plan_check(plan, graph, 0));
    assert_non_null(strstr(lg_last_error(), "'b' (lane 0)"));
    assert_non_null(strstr(lg_last_error(), "'c' (lane 1)"));
    assert_non_null(strstr(lg_last_error(), "'d' (lane 1)"));
    lg_plan_destroy(plan);
    lg_graph_destroy(graph);
}

static void overlap_values(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    /* two operands of one op, of which it does not write one over the other, are alive together */
    for (int i = 0; i < plan->num_ops; i++) {
        const lg_op_info *op = lg_graph_op(graph, (i + (int)seed) % plan->num_ops);
        if (op->num_operands < 2 || op->inplace_write >= 0) {
            continue;
        }
        const int a = op->operands[0].value;
        const int b = op->operands[op->num_operands - 1].value;
        if (a != b && plan->values[a].num_slots == 1 && plan->values[b].num_slots == 1) {
            plan->values[b].offset_bytes[0] = plan->values[a].offset_bytes[0];
            oracle o;
            oracle_init(&o, plan, graph);
            restate_peak(plan, &o);
            oracle_deinit(&o);
            assert_int_equal(lg_plan_check(plan, graph, 0), LG_INVALID_ARG);
            const char *message = lg_last_error();
            assert_true(strstr(message, lg_graph_value(graph, a)->name) != NULL ||
                        strstr(message, lg_graph_value(graph, b)->name) != NULL);
            assert_non_null(strstr(message, "overlap"));
            return;
        }
    }
}

static void overlapping_values_are_named(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        lg_graph *graph = random_graph(seed);
        if (lg_graph_num_ops(graph) <= MAX_ORACLE_OPS) {
            lg_plan *plan = random_plan(graph, seed + 1000, false);
            overlap_values(plan, graph, seed);
            lg_plan_destroy(plan);
        }
        lg_graph_destroy(graph);
    }
}

static void exceed_budget(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    (void)seed;
    assert_fails(LG_INVALID_ARG, "over the budget",
                 lg_plan_check(plan, graph, plan->peak_bytes[0] - 1));
    plan->peak_bytes[0] += 64;
    assert_fails(LG_INVALID_ARG, "stated peak", lg_plan_check(plan, graph, 0));
    plan->peak_bytes[0] -= 128;
    assert_int_equal(lg_plan_check(plan, graph, 0), LG_INVALID_ARG);
}

static void a_budget_or_peak_that_is_not_kept_is_found(void **state)
{
    (void)state;
    with_plans(exceed_budget);
}

static int num_slots_taken;

static void change_slots(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    (void)seed;
    for (int value = 0; value < plan->num_values; value++) {
        lg_placement *placement = &plan->values[value];
        const lg_placement saved = *placement;
        if (saved.num_slots == 2) { /* the planner gives two only where they are needed */
            placement->num_slots = 1;
            const bool is_top = placement->offset_bytes[1] + lg_graph_value(graph, value)->bytes ==
                                plan->peak_bytes[0];
            assert_fails(LG_INVALID_ARG,
                         is_top ? "stated peak" : lg_graph_value(graph, value)->name,
                         lg_plan_check(plan, graph, 0));
            num_slots_taken++;
        } else if (saved.num_slots == 1) {
            placement->num_slots = lg_graph_value(graph, value)->is_persistent ? 2 : 0;
            assert_fails(LG_INVALID_ARG, lg_graph_value(graph, value)->name,
                         lg_plan_check(plan, graph, 0));
        }
        *placement = saved;
        placement->offset_bytes[0] += 8;
        if (saved.num_slots > 0) {
            assert_fails(LG_INVALID_ARG, lg_graph_value(graph, value)->name,
                         lg_plan_check(plan, graph, 0));
        }
        *placement = saved;
    }
    assert_ok(lg_plan_check(plan, graph, 0));
}

static void wrong_slots_and_offsets_are_named(void **state)
{
    (void)state;
    with_plans(change_slots);
    assert_true(num_slots_taken > 10);
}

static int num_shared;

static void share_cores(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    (void)seed;
    if (plan->num_lanes > 1 && plan->lanes[0].num_entries > 2 && plan->lanes[1].num_entries > 2) {
        plan->lanes[1].first_core = plan->lanes[0].first_core;
        if (lg_plan_check(plan, graph, 0) != LG_OK) {
            assert_non_null(strstr(lg_last_error(), "share cores"));
            num_shared++;
        }
    }
}

static void ops_that_can_overlap_on_shared_cores_are_found(void **state)
{
    (void)state;
    with_plans(share_cores);
    assert_true(num_shared > 15);
}

static void make_ill_formed(lg_plan *plan, lg_graph *graph, uint64_t seed)
{
    lg_lane *const lane = &plan->lanes[(int)seed % plan->num_lanes];
    const lg_lane saved = *lane;
    lane->num_cores = 3;
    assert_fails(LG_INVALID_ARG, "3 cores", lg_plan_check(plan, graph, 0));
    *lane = saved;
    lane->first_core = -1;
    assert_fails(LG_INVALID_ARG, "cores -1", lg_plan_check(plan, graph, 0));
    *lane = saved;
    lane->rank = 1;
    assert_fails(LG_INVALID_ARG, "rank 1", lg_plan_check(plan, graph, 0));
    *lane = saved;
    if (lane->num_entries > 0) {
        lane->kind = LG_LANE_COMM;
        lane->num_cores = 0;
        assert_fails(LG_INVALID_ARG, "comm lane", lg_plan_check(plan, graph, 0));
        *lane = saved;
        const int op = lane->entries[0].op;
        lane->entries[0].op = plan->num_ops;
        assert_fails(LG_INVALID_ARG, "entry 0", lg_plan_check(plan, graph, 0));
        lane->entries[0].op = op;
    }
    plan->graph_fingerprint++;
    assert_fails(LG_INVALID_ARG, "another graph", lg_plan_check(plan, graph, 0));
    plan->graph_fingerprint--;
    plan->syncs[plan->num_syncs++] = (lg_plan_sync){0, plan->num_ops, 0};
    assert_fails(LG_INVALID_ARG, "sync", lg_plan_check(plan, graph, 0));
    plan->num_syncs--;
    assert_fails(LG_INVALID_ARG, "memory_bytes", lg_plan_check(plan, graph, -1));
    for (int op = 0; op < plan->num_ops; op++) {
        const int64_t saved_offset = plan->workspace_offset_bytes[op];
        plan->workspace_offset_bytes[op] = saved_offset < 0 ? 64 : -1;
        assert_fails(LG_INVALID_ARG, op_name(graph, op), lg_plan_check(plan, graph, 0));
        if (saved_offset >= 0) {
            assert_non_null(strstr(lg_last_error(), "is missing"));
        }
        plan->workspace_offset_bytes[op] = saved_offset;
    }
}

static void ill_formed_plans_are_refused(void **state)
{
    (void)state;
    with_plans(make_ill_formed);
}

/* Writes x, then y over x by an op that says it may, then reads what `last_reads` says. */
static lg_status check_takeover(int64_t y_bytes, bool reads_twice, int last_reads)
{
    const lg_value_info values[] = {
        {.name = "x", .kind = LG_VALUE_ACTIVATION, .bytes = 256},
        {.name = "y", .kind = LG_VALUE_ACTIVATION, .bytes = y_bytes},
    };
    const lg_operand make[] = {{.value = 0, .access = LG_ACCESS_WRITE}};
    const lg_operand over[] = {{.value = 0, .access = LG_ACCESS_READ},
                               {.value = 1, .access = LG_ACCESS_WRITE},
                               {.value = 0, .access = LG_ACCESS_READ}};
    const lg_operand last[] = {{.value = last_reads, .access = LG_ACCESS_READ}};
    const lg_op_info ops[] = {
        {.num_operands = 1, .operands = make, .inplace_read = -1, .inplace_write = -1},
        {.num_operands = reads_twice ? 3 : 2,
         .operands = over,
         .inplace_read = 0,
         .inplace_write = 1},
        {.num_operands = 1, .operands = last, .inplace_read = -1, .inplace_write = -1},
    };
    const lg_graph_opts opts = lg_graph_opts_default();
    lg_graph *graph = NULL;
    lg_plan *plan = NULL;
    assert_ok(lgi_graph_from_records(&graph, &opts, values, 2, ops, 3));
    assert_ok(lgi_plan_init(&plan, graph, "test", 1));
    plan->lanes[0].num_cores = 1;
    plan->lanes[0].num_entries = 3;
    assert_ok(lgi_calloc(&plan->lanes[0].entries, 3, sizeof(lg_plan_entry)));
    for (int i = 0; i < 3; i++) {
        plan->lanes[0].entries[i].op = i;
    }
    assert_ok(lgi_plan_place(plan, graph));
    assert_ok(lg_plan_check(plan, graph, 0));
    const bool is_taken_over = plan->values[0].offset_bytes[0] == plan->values[1].offset_bytes[0];
    plan->values[0].offset_bytes[0] = 0;
    plan->values[1].offset_bytes[0] = 0;
    plan->peak_bytes[0] = y_bytes > 256 ? y_bytes : 256;
    const lg_status status = lg_plan_check(plan, graph, 0);
    assert_true(is_taken_over == (status == LG_OK)); /* planner and checker agree */
    lg_plan_destroy(plan);
    lg_graph_destroy(graph);
    return status;
}

static void memory_is_taken_over_only_by_the_last_reader_and_only_alike(void **state)
{
    (void)state;
    assert_ok(check_takeover(256, false, 1));
    assert_fails(LG_INVALID_ARG, "'x'", check_takeover(256, false, 0)); /* read once more */
    assert_fails(LG_INVALID_ARG, "'x'", check_takeover(256, true, 1));  /* by two operands */
    assert_fails(LG_INVALID_ARG, "'x'", check_takeover(192, false, 1)); /* of other sizes */
}

static void a_lagging_writer_of_an_output_is_refused(void **state)
{
    (void)state;
    const lg_value_info value = {
        .name = "loss", .kind = LG_VALUE_LOSS, .bytes = 4, .is_output = true};
    const lg_operand operand = {.value = 0, .access = LG_ACCESS_WRITE};
    const lg_op_info op = {.name = "op",
                           .num_operands = 1,
                           .operands = &operand,
                           .inplace_write = -1,
                           .inplace_read = -1};
    const lg_graph_opts opts = lg_graph_opts_default();
    lg_graph *graph = NULL;
    lg_plan *plan = NULL;
    assert_ok(lgi_graph_from_records(&graph, &opts, &value, 1, &op, 1));
    assert_ok(lgi_plan_init(&plan, graph, "test", 1));
    plan->lanes[0].num_cores = 1;
    plan->lanes[0].num_entries = 1;
    assert_ok(lgi_calloc(&plan->lanes[0].entries, 1, sizeof(lg_plan_entry)));
    assert_ok(lgi_plan_place(plan, graph));
    assert_ok(lg_plan_check(plan, graph, 0));
    plan->lanes[0].entries[0].lag = 1;
    assert_fails(LG_INVALID_ARG, "output 'loss'", lg_plan_check(plan, graph, 0));
    lg_plan_destroy(plan);
    lg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_legal_plans_are_accepted),
        cmocka_unit_test(memory_verdict_is_that_of_brute_force),
        cmocka_unit_test(a_missing_op_is_named),
        cmocka_unit_test(a_doubled_op_is_named),
        cmocka_unit_test(a_broken_edge_is_named),
        cmocka_unit_test(a_lag_against_an_edge_is_named),
        cmocka_unit_test(a_deadlock_across_lanes_is_found),
        cmocka_unit_test(a_deadlock_names_the_ops_on_the_cycle),
        cmocka_unit_test(overlapping_values_are_named),
        cmocka_unit_test(a_budget_or_peak_that_is_not_kept_is_found),
        cmocka_unit_test(wrong_slots_and_offsets_are_named),
        cmocka_unit_test(ops_that_can_overlap_on_shared_cores_are_found),
        cmocka_unit_test(ill_formed_plans_are_refused),
        cmocka_unit_test(memory_is_taken_over_only_by_the_last_reader_and_only_alike),
        cmocka_unit_test(a_lagging_writer_of_an_output_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
