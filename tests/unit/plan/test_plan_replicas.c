/* Data-parallel strategies alone and with every pipeline strategy: proved for any numbers, and in the order they promise. */
#include "pipeline_fixture.h"

#include <math.h>

#include "base/random.h"
#include "leapgrad/models.h"

#define SAME_TIME_FRAC 1e-9

/* A tied GPT of 2 P or more blocks on P ranks: embeddings on the first rank and the last. */
static lg_model *tied_gpt(int num_blocks)
{
    lg_model *model = NULL;
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = num_blocks;
    opts.width = 8;
    opts.num_heads = 2;
    opts.vocab_size = 16;
    opts.context = 4;
    opts.is_tied = true;
    assert_ok(lg_model_gpt(&model, &opts));
    return model;
}

typedef struct spread {
    int num_replicas;
    int num_ranks;
    int num_micro_batches;
    int64_t num_samples; /* need not divide */
    int64_t chunk_bytes;
    int64_t share_bytes;
    bool has_clipping;
    bool is_v;
    int stages_per_rank;
} spread;

typedef struct parallel_case {
    lg_model *model;
    lg_stages stages;
    lg_graph *graph;
    lg_machine machine;
    lg_costs *costs;
} parallel_case;

static void parallel_init(parallel_case *c, lg_model *model, const spread *s)
{
    lg_parallel parallel = {.num_replicas = s->num_replicas,
                            .chunk_bytes = s->chunk_bytes,
                            .share_bytes = s->share_bytes};
    lg_graph_opts opts = lg_graph_opts_default();
    *c = (parallel_case){.model = model};
    assert_ok(lg_stages_contiguous(&c->stages, model, s->num_ranks,
                                   s->num_ranks * s->stages_per_rank,
                                   s->is_v ? LG_STAGE_ORDER_V : LG_STAGE_ORDER_LOOP));
    lg_stages_apply(&c->stages, &parallel);
    opts.num_samples = s->num_samples;
    opts.num_micro_batches = s->num_micro_batches;
    opts.num_slots = 1;
    opts.has_clipping = s->has_clipping;
    opts.parallel = &parallel;
    assert_ok(lg_graph_create(&c->graph, model, &opts));
    c->machine = lg_machine_default();
    c->machine.num_ranks = lg_graph_num_ranks(c->graph);
    c->machine.ranks_per_host = 2;
    assert_ok(lg_costs_create(&c->costs, c->graph));
    lg_costs_estimate(c->costs, c->graph, &c->machine);
}

static void parallel_deinit(parallel_case *c)
{
    lg_costs_destroy(c->costs);
    lg_graph_destroy(c->graph);
    lg_stages_deinit(&c->stages);
    lg_model_destroy(c->model);
}

static double step_ns(const parallel_case *c, const lg_plan *plan)
{
    lg_timeline timeline;
    assert_ok(lg_plan_simulate(&timeline, plan, c->graph, &c->machine, c->costs));
    const double ns = timeline.step_ns;
    lg_timeline_deinit(&timeline);
    return ns;
}

static int num_lagging(const lg_plan *plan)
{
    int num = 0;
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 0; i < plan->lanes[lane].num_entries; i++) {
            num += plan->lanes[lane].entries[i].lag;
        }
    }
    return num;
}

/* --- any numbers ------------------------------------------------------------------------------------------------------------- */

static const char *const loops[] = {"gpipe", "interleaved", "breadth-first", "modulo"};
static const char *const singles[] = {"gpipe", "1f1b", "fast-forward", "zb-h1", "zb-h2"};
static const char *const vs[] = {"gpipe", "zb-v", "dualpipe-v"};
static const char *const halves[] = {"barrier", "wfbp", "priority", "reverse-first-k"};

static void all_combinations_are_proved_for_random_numbers(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        const lgi_random random = lgi_random_stream(seed, LGI_RANDOM_SAMPLE, 0, 0, 0);
        uint64_t draw = 0;
#define BELOW(bound) ((int)lgi_random_below(&random, draw++, (uint64_t)(bound)))
        spread s = {.num_replicas = 1 + BELOW(3),
                    .num_ranks = 1 + BELOW(3),
                    .num_micro_batches = 1 + BELOW(5),
                    .chunk_bytes = BELOW(2) * 300,
                    .has_clipping = BELOW(4) == 0,
                    .is_v = BELOW(3) == 0,
                    .stages_per_rank = 1 + BELOW(2)};
        s.stages_per_rank = s.is_v ? 2 : s.stages_per_rank;
        const int shift = BELOW(16);
        s.share_bytes = shift < 8 ? (int64_t)100 << shift : 0;
        s.num_samples = (int64_t)s.num_replicas * s.num_micro_batches + BELOW(s.num_micro_batches);
        parallel_case c;
        parallel_init(&c, tied_gpt(s.num_ranks * s.stages_per_rank + BELOW(2)), &s);
        for (int op = 0; op < lg_graph_num_ops(c.graph); op++) {
            lg_costs_set_op_ns(c.costs, op, 0, (double)BELOW(1000));
        }
        const char *const pipeline = s.is_v                   ? vs[BELOW(3)]
                                     : s.stages_per_rank == 2 ? loops[BELOW(4)]
                                                              : singles[BELOW(5)];
        for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
            char name[64];
            lg_plan *plan = NULL;
            lg_strategy_opts opts = lg_strategy_opts_default();
            opts.allow_lag = BELOW(3) > 0;
            (void)snprintf(name, sizeof name, "%s+%s",
                           s.num_ranks == 1 && !s.is_v ? "in-order" : pipeline, halves[i]);
            if (lg_plan_create(&plan, name, c.graph, &c.machine, c.costs, &opts) != LG_OK) {
                fail_msg("seed %d, %s: %s", (int)seed, name, lg_last_error());
            }
            assert_ok(lg_plan_check(plan, c.graph, 0));
            assert_true(step_ns(&c, plan) > 0.0);
            assert_true(opts.allow_lag || num_lagging(plan) == 0);
            lg_plan_destroy(plan);
        }
        parallel_deinit(&c);
    }
}

/* --- what each promises -------------------------------------------------------------------------------------------------------- */

/* Two replicas of a row of linear layers on one host each, times by hand. */
static void shared_rows_init(parallel_case *c, int num_blocks, double compute_ns, double reduce_ns,
                             int64_t share_bytes)
{
    const spread s = {.num_replicas = 2,
                      .num_ranks = 1,
                      .num_micro_batches = 1,
                      .num_samples = 2,
                      .share_bytes = share_bytes,
                      .stages_per_rank = 1};
    parallel_init(c, linear_model(num_blocks), &s);
    c->machine.ranks_per_host = 1;
    /* a layer's gradient has 16 bytes, and each of two ranks sends as many */
    c->machine.inter_host = (lg_link){.latency_ns = 0.0, .bytes_per_s = 16.0 / reduce_ns * 1e9};
    for (int op = 0; op < lg_graph_num_ops(c->graph); op++) {
        const lg_op_kind kind = lg_graph_op(c->graph, op)->kind;
        const bool is_compute =
            kind == LG_OP_FORWARD || kind == LG_OP_INPUT_GRAD || kind == LG_OP_WEIGHT_GRAD;
        const bool is_layer =
            strncmp(lg_model_layer(c->model, lg_graph_op(c->graph, op)->layer)->name, "h.", 2) == 0;
        lg_costs_set_op_ns(c->costs, op, 0, is_compute && is_layer ? compute_ns : 0.0);
    }
}

static void rows_init(parallel_case *c, int num_blocks, double compute_ns, double reduce_ns)
{
    shared_rows_init(c, num_blocks, compute_ns, reduce_ns, 0);
}

static double rows_step_ns(const parallel_case *c, const char *strategy, int k, lg_plan **out)
{
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_reversed = k;
    assert_ok(lg_plan_create(out, strategy, c->graph, &c->machine, c->costs, &opts));
    return step_ns(c, *out);
}

static void each_half_gains_on_the_one_before(void **state)
{
    (void)state;
    /* 8 blocks and the stem: 24 units of compute, 9 reductions of 2.5 units */
    parallel_case c;
    lg_plan *plan = NULL;
    rows_init(&c, 8, 100.0, 250.0);
    const double barrier = rows_step_ns(&c, "barrier", 0, &plan);
    lg_plan_destroy(plan);
    const double wfbp = rows_step_ns(&c, "wfbp", 0, &plan);
    assert_int_equal(num_lagging(plan), 0);
    lg_plan_destroy(plan);
    const double priority = rows_step_ns(&c, "priority", 0, &plan);
    assert_true(num_lagging(plan) > 0);
    lg_plan_destroy(plan);
    const double reversed = rows_step_ns(&c, "reverse-first-k", -1, &plan);
    lg_plan_destroy(plan);
    assert_true(barrier > 24.0 * 100 + 9 * 250.0 - 1.0 && barrier < 24.0 * 100 + 9 * 250.0 + 1.0);
    /* the first gradient is complete after 8 F, and the dW of the last block (its dX comes first) */
    assert_true(wfbp < barrier * 0.85);
    assert_true(priority < wfbp * 0.95);
    assert_true(reversed <= priority * (1.0 + SAME_TIME_FRAC));
    assert_true(reversed >= 2400.0 * (1.0 - SAME_TIME_FRAC));
    parallel_deinit(&c);
}

static int position(const lg_plan *plan, const lg_graph *graph, const char *name, int *lane)
{
    const int op = lg_graph_find_op(graph, name);
    assert_true(op >= 0);
    for (*lane = 0; *lane < plan->num_lanes; ++*lane) {
        for (int i = 0; i < plan->lanes[*lane].num_entries; i++) {
            if (plan->lanes[*lane].entries[i].op == op) {
                return i;
            }
        }
    }
    fail();
    return -1;
}

static void reverse_first_k_runs_the_first_weight_gradients_last_and_in_order(void **state)
{
    (void)state;
    parallel_case c;
    lg_plan *plan = NULL;
    rows_init(&c, 6, 100.0, 250.0);
    (void)rows_step_ns(&c, "reverse-first-k", 4, &plan); /* the stem, h.0, h.1, h.2 */
    static const char *const order[] = {"input_grad(h.0,0)@0", "weight_grad(stem,0)@0",
                                        "weight_grad(h.0,0)@0", "weight_grad(h.1,0)@0",
                                        "weight_grad(h.2,0)@0"};
    int lane = 0;
    int before = position(plan, c.graph, "weight_grad(h.3,0)@0", &lane);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        const int here = position(plan, c.graph, order[i], &lane);
        assert_true(here > before);
        before = here;
    }
    int comm = 0;
    const int first = position(plan, c.graph, "all_reduce(stem,0)@0", &comm);
    assert_true(comm != lane && plan->lanes[comm].kind == LG_LANE_COMM);
    (void)first;
    lg_plan_destroy(plan);
    parallel_deinit(&c);
}

static void bytes_between_hosts_take_their_part_of_the_cores(void **state)
{
    (void)state;
    parallel_case c;
    lg_plan *plan = NULL;
    rows_init(&c, 8, 100.0, 50.0); /* 8 reductions beside compute, the last one after it */
    const double alone = rows_step_ns(&c, "wfbp", 0, &plan);
    assert_true(fabs(alone - 2450.0) < 1.0);
    c.machine.comm_core_frac = 0.5; /* in the 50 ns of a reduction compute goes on by 25 */
    assert_true(fabs(step_ns(&c, plan) - (alone + 8 * 25.0)) < 1.0);
    c.machine.num_cores = 2; /* one is free */
    assert_true(fabs(step_ns(&c, plan) - alone) < 1.0);
    c.machine.num_cores = 1;
    c.machine.ranks_per_host = 2; /* no bytes between hosts */
    c.machine.intra_host = c.machine.inter_host;
    assert_true(fabs(step_ns(&c, plan) - alone) < 1.0);
    lg_timeline timeline;
    c.machine.comm_core_frac = 1.0;
    assert_fails(LG_INVALID_ARG, "comm_core_frac is 1; allowed: 0 or more, less than 1",
                 lg_plan_simulate(&timeline, plan, c.graph, &c.machine, c.costs));
    lg_plan_destroy(plan);
    parallel_deinit(&c);
}

static int lag_of(const lg_plan *plan, const lg_graph *graph, const char *name)
{
    int lane = 0;
    const int at = position(plan, graph, name, &lane);
    return plan->lanes[lane].entries[at].lag;
}

/* Else a replica would wait with all its updates for the last reduction. */
static void updates_are_in_the_same_order_on_all_replicas(void **state)
{
    (void)state;
    static const char *const names[] = {"wfbp", "priority", "reverse-first-k"};
    parallel_case c;
    rows_init(&c, 6, 100.0, 250.0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        lg_plan *plan = NULL;
        (void)rows_step_ns(&c, names[i], 2, &plan);
        for (int a = 0; a < 6; a++) {
            for (int b = 0; b < 6; b++) {
                int lane = 0;
                int at[2][2];
                for (int replica = 0; replica < 2; replica++) {
                    for (int k = 0; k < 2; k++) {
                        char name[32];
                        (void)snprintf(name, sizeof name, "update(h.%d)@%d", k == 0 ? a : b,
                                       replica);
                        at[replica][k] = position(plan, c.graph, name, &lane);
                    }
                }
                assert_true((at[0][0] < at[0][1]) == (at[1][0] < at[1][1]));
            }
        }
        lg_plan_destroy(plan);
    }
    parallel_deinit(&c);
}

/* A latency is paid once for all that is shared; it is as urgent as its first layer, and all of its updates go with it. */
static void shared_reductions_go_by_their_first_layer(void **state)
{
    (void)state;
    parallel_case apart;
    parallel_case shared;
    lg_plan *plan = NULL;
    /* 17 layers of 16 bytes, in twos from the last one on; the stem is by itself */
    rows_init(&apart, 16, 100.0, 10.0);
    shared_rows_init(&shared, 16, 100.0, 10.0, 32);
    apart.machine.inter_host.latency_ns = 250.0;
    shared.machine.inter_host.latency_ns = 250.0;
    const double one_by_one = rows_step_ns(&apart, "priority", -1, &plan);
    lg_plan_destroy(plan);
    assert_true(rows_step_ns(&shared, "priority", -1, &plan) < 0.8 * one_by_one);
    int before = -1;
    for (int first = 0; first < 16; first += 2) {
        int lane = 0;
        char name[32];
        (void)snprintf(name, sizeof name, "all_reduce(h.%d+1,0)@0", first);
        const int here = position(plan, shared.graph, name, &lane);
        const int lag = lag_of(plan, shared.graph, name);
        assert_true(lag == 0 || here > before); /* those over the step's end: by need */
        before = lag == 1 ? here : before;
        for (int block = first; block < first + 2; block++) {
            for (int replica = 0; replica < 2; replica++) {
                (void)snprintf(name, sizeof name, "update(h.%d)@%d", block, replica);
                assert_int_equal(lag_of(plan, shared.graph, name), lag);
            }
        }
    }
    assert_true(before >= 0);
    lg_plan_destroy(plan);
    parallel_deinit(&apart);
    parallel_deinit(&shared);
}

static void budgets_limit_the_search_for_k(void **state)
{
    (void)state;
    parallel_case c;
    lg_plan *free_plan = NULL;
    lg_plan *plan = NULL;
    rows_init(&c, 8, 100.0, 250.0);
    (void)rows_step_ns(&c, "reverse-first-k", -1, &free_plan);
    lg_strategy_opts opts = lg_strategy_opts_default();
    int64_t peak = 0;
    for (int rank = 0; rank < free_plan->num_ranks; rank++) {
        peak = free_plan->peak_bytes[rank] > peak ? free_plan->peak_bytes[rank] : peak;
    }
    opts.memory_bytes = peak - 1;
    if (lg_plan_create(&plan, "reverse-first-k", c.graph, &c.machine, c.costs, &opts) == LG_OK) {
        assert_ok(lg_plan_check(plan, c.graph, opts.memory_bytes));
        lg_plan_destroy(plan);
    } else {
        assert_non_null(strstr(lg_last_error(), "over the budget"));
    }
    lg_plan_destroy(free_plan);
    parallel_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_combinations_are_proved_for_random_numbers),
        cmocka_unit_test(each_half_gains_on_the_one_before),
        cmocka_unit_test(reverse_first_k_runs_the_first_weight_gradients_last_and_in_order),
        cmocka_unit_test(bytes_between_hosts_take_their_part_of_the_cores),
        cmocka_unit_test(updates_are_in_the_same_order_on_all_replicas),
        cmocka_unit_test(shared_reductions_go_by_their_first_layer),
        cmocka_unit_test(budgets_limit_the_search_for_k),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
