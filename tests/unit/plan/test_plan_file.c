/* Plans and costs as files: what is saved comes back, and what is not as documented is refused with its place. */
#include "random_plans.h"

#include <jansson.h>
#include <unistd.h>

#include "base/file.h"

static char directory[64];

static int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/leapgrad-plan-XXXXXX");
    return mkdtemp(directory) != NULL ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    static const char *const names[] = {"plan.json", "costs.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        (void)remove(path);
    }
    return rmdir(directory);
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void assert_same_plan(const lg_plan *a, const lg_plan *b)
{
    assert_string_equal(a->strategy, b->strategy);
    assert_int_equal(a->num_lanes, b->num_lanes);
    for (int i = 0; i < a->num_lanes; i++) {
        const lg_lane *x = &a->lanes[i];
        const lg_lane *y = &b->lanes[i];
        assert_true(x->kind == y->kind && x->rank == y->rank && x->first_core == y->first_core &&
                    x->num_cores == y->num_cores && x->num_entries == y->num_entries);
        for (int k = 0; k < x->num_entries; k++) {
            assert_int_equal(x->entries[k].op, y->entries[k].op);
            assert_int_equal(x->entries[k].lag, y->entries[k].lag);
        }
    }
    assert_int_equal(a->num_syncs, b->num_syncs);
    for (int i = 0; i < a->num_syncs; i++) {
        assert_memory_equal(&a->syncs[i], &b->syncs[i], sizeof a->syncs[i]);
    }
    for (int i = 0; i < a->num_values; i++) {
        assert_int_equal(a->values[i].num_slots, b->values[i].num_slots);
        for (int k = 0; k < a->values[i].num_slots; k++) {
            assert_true(a->values[i].offset_bytes[k] == b->values[i].offset_bytes[k]);
        }
    }
    for (int i = 0; i < a->num_ops; i++) {
        assert_true(a->workspace_offset_bytes[i] == b->workspace_offset_bytes[i]);
    }
    assert_true(a->peak_bytes[0] == b->peak_bytes[0]);
}

static void a_saved_plan_comes_back(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        lg_graph *graph = random_graph(seed);
        lg_plan *plan = random_plan(graph, seed, seed % 2 == 0);
        lg_plan *loaded = NULL;
        assert_ok(lg_plan_save(plan, graph, path_of("plan.json")));
        assert_ok(lg_plan_load(&loaded, graph, path_of("plan.json")));
        assert_same_plan(plan, loaded);
        assert_ok(lg_plan_check(loaded, graph, 0));
        lg_plan_destroy(loaded);
        lg_plan_destroy(plan);
        lg_graph_destroy(graph);
    }
}

/* A plan's JSON to damage, with its graph. */
typedef struct document {
    lg_graph *graph;
    char *text;
    json_t *root;
} document;

static void document_init(document *d)
{
    size_t num_bytes = 0;
    d->graph = random_graph(3);
    lg_plan *plan = random_plan(d->graph, 3, false);
    assert_ok(lg_plan_save(plan, d->graph, path_of("plan.json")));
    assert_ok(lgi_file_read(&d->text, &num_bytes, path_of("plan.json"), 1 << 20));
    d->root = json_loads(d->text, 0, NULL);
    assert_non_null(d->root);
    lg_plan_destroy(plan);
}

static void document_deinit(document *d)
{
    json_decref(d->root);
    lgi_free(d->text);
    lg_graph_destroy(d->graph);
}

static lg_status parse_root(const document *d)
{
    char *text = json_dumps(d->root, 0);
    lg_plan *plan = NULL;
    const lg_status status = lg_plan_parse(&plan, d->graph, text, strlen(text));
    assert_true((plan != NULL) == (status == LG_OK));
    lg_plan_destroy(plan);
    free(text);
    return status;
}

/* Sets `key` of `object` to `value` (stolen; NULL: removes it), expects the message, and undoes it. */
static void refuse(const document *d, json_t *object, const char *key, json_t *value,
                   const char *message)
{
    json_t *saved = json_incref(json_object_get(object, key));
    if (value != NULL) {
        assert_int_equal(json_object_set_new(object, key, value), 0);
    } else {
        assert_int_equal(json_object_del(object, key), 0);
    }
    assert_fails(LG_INVALID_ARG, message, parse_root(d));
    if (saved != NULL) {
        assert_int_equal(json_object_set_new(object, key, saved), 0);
    } else {
        assert_int_equal(json_object_del(object, key), 0);
    }
    assert_ok(parse_root(d));
}

static void damaged_plans_are_refused_with_their_place(void **state)
{
    (void)state;
    document d;
    document_init(&d);
    json_t *const root = d.root;
    json_t *const lane = json_array_get(json_object_get(root, "lanes"), 0);
    json_t *const values = json_object_get(root, "values");
    assert_ok(parse_root(&d));
    refuse(&d, root, "format", json_string("tar"), "format");
    refuse(&d, root, "version", json_integer(2), "version");
    refuse(&d, root, "colour", json_true(), "colour");
    refuse(&d, root, "lanes", NULL, "'lanes' is missing");
    refuse(&d, root, "lanes", json_object(), "lanes: expected an array");
    refuse(&d, root, "graph", json_string("0123456789abcdef"), "another graph");
    refuse(&d, root, "graph", json_string("x"), "fingerprint");
    refuse(&d, root, "strategy", json_integer(1), "strategy");
    refuse(&d, root, "peak_bytes", json_array(), "peak_bytes");
    refuse(&d, root, "peak_bytes", json_pack("[f]", 1.5), "peak_bytes[0]");
    refuse(&d, lane, "kind", json_string("fast"), "lanes[0]: 'kind'");
    refuse(&d, lane, "rank", json_integer(1), "lanes[0]: 'rank'");
    refuse(&d, lane, "first_core", json_integer(-1), "lanes[0]: 'first_core'");
    refuse(&d, lane, "num_cores", json_integer(INT64_MAX), "lanes[0]: 'num_cores'");
    refuse(&d, lane, "speed", json_integer(1), "lanes[0]: unknown key 'speed'");
    refuse(&d, lane, "ops", json_pack("[s]", "nothing"), "no op 'nothing'");
    refuse(&d, lane, "ops", json_pack("[i]", 1), "lanes[0].ops[0]");
    refuse(&d, lane, "ops", json_pack("[{s:s,s:i}]", "op", "op0", "lag", 2),
           "lanes[0].ops[0]: 'lag'");
    refuse(&d, lane, "ops", json_pack("[{s:s}]", "op", "op0"), "'lag' is missing");
    refuse(&d, root, "syncs",
           json_pack("[{s:s,s:s,s:i}]", "from", "op0", "to", "op9999", "distance", 0), "syncs[0]");
    refuse(&d, root, "syncs",
           json_pack("[{s:s,s:s,s:i}]", "from", "op0", "to", "op1", "distance", 7),
           "syncs[0]: 'distance'");
    refuse(&d, values, "value0", NULL, "'value0' is missing");
    refuse(&d, values, "value9999", json_array(), "no value 'value9999'");
    refuse(&d, values, "value0", json_pack("[i,i,i]", 0, 0, 0), "'value0'");
    refuse(&d, values, "value0", json_pack("[I]", (json_int_t)INT64_MAX), "'value0'");
    refuse(&d, values, "value0", json_string("0"), "'value0'");
    refuse(&d, root, "workspaces", json_pack("{s:i}", "op0", -5), "'op0'");
    refuse(&d, root, "workspaces", json_pack("{s:i}", "opx", 5), "'opx'");
    document_deinit(&d);
}

static void text_that_is_no_json_is_refused_with_its_line(void **state)
{
    (void)state;
    document d;
    document_init(&d);
    lg_plan *plan = NULL;
    const size_t num_bytes = strlen(d.text);
    for (size_t cut = 0; cut < num_bytes; cut += 1 + num_bytes / 200) {
        assert_fails(LG_INVALID_ARG, "line ", lg_plan_parse(&plan, d.graph, d.text, cut));
    }
    static const char doubled[] = "{\"format\": 1,\n \"format\": 2}";
    assert_fails(LG_INVALID_ARG, "line 2",
                 lg_plan_parse(&plan, d.graph, doubled, sizeof doubled - 1));
    static const char huge[] = "{\"a\": 123456789012345678901234567890}";
    assert_fails(LG_INVALID_ARG, "line 1", lg_plan_parse(&plan, d.graph, huge, sizeof huge - 1));
    char *deep = malloc(100000);
    memset(deep, '[', 100000);
    assert_fails(LG_INVALID_ARG, "line 1", lg_plan_parse(&plan, d.graph, deep, 100000));
    free(deep);
    assert_fails(LG_IO, "missing.json", lg_plan_load(&plan, d.graph, path_of("missing.json")));
    assert_ok(lgi_file_write(path_of("plan.json"), "{}", 2));
    assert_fails(LG_INVALID_ARG, "plan.json: ", lg_plan_load(&plan, d.graph, path_of("plan.json")));
    document_deinit(&d);
}

static void damaged_bytes_never_crash_the_reader(void **state)
{
    (void)state;
    document d;
    document_init(&d);
    uint64_t random_state = 11;
    const size_t num_bytes = strlen(d.text);
    char *const text = malloc(num_bytes);
    int num_refused = 0;
    for (int i = 0; i < 400; i++) {
        memcpy(text, d.text, num_bytes);
        const int num_changes = 1 + rnd_below(&random_state, 3);
        for (int k = 0; k < num_changes; k++) {
            text[rnd_below(&random_state, (int)num_bytes)] = (char)rnd_below(&random_state, 256);
        }
        lg_plan *plan = NULL;
        if (lg_plan_parse(&plan, d.graph, text, num_bytes) != LG_OK ||
            lg_plan_check(plan, d.graph, 0) != LG_OK) {
            num_refused++;
            assert_null(strchr(lg_last_error(), '\n'));
        }
        lg_plan_destroy(plan);
    }
    assert_true(num_refused > 200);
    free(text);
    document_deinit(&d);
}

static void saved_costs_come_back(void **state)
{
    (void)state;
    lg_graph *graph = random_graph(4);
    lg_costs *costs = NULL;
    lg_costs *loaded = NULL;
    assert_ok(lg_costs_create(&costs, graph));
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        lg_costs_set_op_ns(costs, op, 0, 1000.0 / (op + 3));
        lg_costs_set_op_ns(costs, op, 1, op);
    }
    assert_ok(lg_costs_save(costs, graph, path_of("costs.json")));
    assert_ok(lg_costs_load(&loaded, graph, path_of("costs.json")));
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        assert_true(lg_costs_op_ns(loaded, op, 0) == lg_costs_op_ns(costs, op, 0));
        assert_true(lg_costs_op_ns(loaded, op, 1) == lg_costs_op_ns(costs, op, 1));
    }
    lg_costs_destroy(costs);
    lg_costs_destroy(loaded);
    lg_graph_destroy(graph);
}

/* Writes `text` as the costs of a graph of one op "a" with widths 1 and 2, and expects the message. */
static void refuse_costs(const lg_graph *graph, const char *text, const char *message)
{
    lg_costs *costs = NULL;
    assert_ok(lgi_file_write(path_of("costs.json"), text, strlen(text)));
    assert_fails(LG_INVALID_ARG, message, lg_costs_load(&costs, graph, path_of("costs.json")));
    assert_null(costs);
}

#define COSTS_HEAD "{\"format\": \"leapgrad-costs\", \"version\": 1, "

static void damaged_costs_are_refused_with_their_place(void **state)
{
    (void)state;
    const lg_op_info op = {.name = "a", .inplace_read = -1, .inplace_write = -1};
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_widths = 2;
    opts.widths[0] = 1;
    opts.widths[1] = 2;
    lg_graph *graph = NULL;
    lg_costs *costs = NULL;
    assert_ok(lgi_graph_from_records(&graph, &opts, NULL, 0, &op, 1));
    static const char good[] =
        COSTS_HEAD "\"widths\": [4, 2, 1], \"ops_ns\": {\"a\": [1, 2.5, 3]}}";
    assert_ok(lgi_file_write(path_of("costs.json"), good, sizeof good - 1));
    assert_ok(lg_costs_load(&costs, graph, path_of("costs.json")));
    assert_true(lg_costs_op_ns(costs, 0, 0) == 3.0 && lg_costs_op_ns(costs, 0, 1) == 2.5);
    lg_costs_destroy(costs);
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1], \"ops_ns\": {\"a\": [1]}}", "widths: 2");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 1, 2], \"ops_ns\": {\"a\": [1, 1, 1]}}",
                 "twice");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {}}", "op 'a' is missing");
    refuse_costs(
        graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1, 2], \"b\": [1, 2]}}", "'b'");
    refuse_costs(graph,
                 COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1, 2], \"a\": [1, 2]}}",
                 "duplicate");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1, -2]}}", "'a'");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1, \"2\"]}}", "'a'");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1, 1e300]}}",
                 "'a': expected nanoseconds from 0 to 1e+15, got 1e+300");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1]}}", "'a'");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1, NaN]}}", "line 1");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2], \"ops_ns\": {\"a\": [1, 1e999]}}",
                 "line 1");
    refuse_costs(graph, COSTS_HEAD "\"widths\": [1, 2]}", "'ops_ns' is missing");
    refuse_costs(graph, "[]", "expected an object");
    refuse_costs(graph, "", "line 1");
    lg_graph_destroy(graph);
}

static void estimated_costs_follow_the_rates(void **state)
{
    (void)state;
    const lg_op_info ops[] = {{.name = "compute",
                               .flops = 1e6,
                               .traffic_bytes = 10,
                               .inplace_read = -1,
                               .inplace_write = -1},
                              {.name = "memory",
                               .flops = 10,
                               .traffic_bytes = 1e6,
                               .inplace_read = -1,
                               .inplace_write = -1}};
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_widths = 2;
    opts.widths[0] = 1;
    opts.widths[1] = 2;
    lg_machine machine = lg_machine_default();
    machine.flops_per_s = 1e9;
    machine.bytes_per_s = 2e9;
    machine.op_overhead_ns = 100;
    machine.fork_overhead_ns = 50;
    lg_graph *graph = NULL;
    lg_costs *costs = NULL;
    assert_ok(lgi_graph_from_records(&graph, &opts, NULL, 0, ops, 2));
    assert_ok(lg_costs_create(&costs, graph));
    lg_costs_estimate(costs, graph, &machine);
    assert_int_equal((int)(lg_costs_op_ns(costs, 0, 0) + 0.5), 1000100);
    assert_int_equal((int)(lg_costs_op_ns(costs, 0, 1) + 0.5), 500150);
    assert_int_equal((int)(lg_costs_op_ns(costs, 1, 0) + 0.5), 500100);
    assert_int_equal((int)(lg_costs_op_ns(costs, 1, 1) + 0.5), 250150);
    lg_costs_destroy(costs);
    lg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saved_plan_comes_back),
        cmocka_unit_test(damaged_plans_are_refused_with_their_place),
        cmocka_unit_test(text_that_is_no_json_is_refused_with_its_line),
        cmocka_unit_test(damaged_bytes_never_crash_the_reader),
        cmocka_unit_test(saved_costs_come_back),
        cmocka_unit_test(damaged_costs_are_refused_with_their_place),
        cmocka_unit_test(estimated_costs_follow_the_rates),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
