/*
 * Pipeline strategies against closed forms and against the values derived for the original's rules: equal blocks with times
 * set by hand, links that cost nothing, plans made, proved and simulated as any other.
 */
#include "pipeline_fixture.h"

#include "plan/plan_make.h"

/* Sums of the same whole numbers; links take about 1e-8 of a block's time. */
#define TIME_FRAC 1e-6
/* The derived values are given with two decimals. */
#define ROUNDING 0.0051

#define UNIT_NS 1000.0

typedef enum placement { ONE_EACH, LOOP, MODULO, V } placement;

static lg_stages stages_of(const lg_model *model, placement kind, int num_ranks, int arg)
{
    lg_stages stages;
    switch (kind) {
    case MODULO:
        assert_ok(lg_stages_modulo(&stages, model, num_ranks, arg));
        break;
    case V:
        assert_ok(lg_stages_contiguous(&stages, model, num_ranks, 2 * num_ranks, LG_STAGE_ORDER_V));
        break;
    default:
        assert_ok(lg_stages_contiguous(&stages, model, num_ranks,
                                       num_ranks * (kind == LOOP ? arg : 1), LG_STAGE_ORDER_LOOP));
    }
    return stages;
}

typedef struct outcome {
    double step; /* simulated, in units */
    double
        one_step; /* from the first op's start to the last op's end if nothing runs before or after */
    int max_held;   /* stages' micro-batches that a rank keeps at once: F done, W not */
    int first_held; /* the same on the rank of stage 0 */
} outcome;

/* Most F minus W of blocks along a rank's compute lane. */
static int count_held(const lg_plan *plan, const lg_graph *graph, int rank)
{
    int held = 0;
    int most = 0;
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 0; plan->lanes[lane].rank == rank && i < plan->lanes[lane].num_entries; i++) {
            const lg_op_info *const info = lg_graph_op(graph, plan->lanes[lane].entries[i].op);
            if (strncmp(lg_model_layer(lg_graph_model(graph), info->layer)->name, "h.", 2) == 0) {
                held += info->kind == LG_OP_FORWARD ? 1 : 0;
                held -= info->kind == LG_OP_WEIGHT_GRAD ? 1 : 0;
            }
            most = held > most ? held : most;
        }
    }
    return most;
}

static double one_step_ns(const pipeline_case *c, const lg_plan *plan)
{
    /* the earliest start and latest end of one step's spans, where no rank waits for another step's work */
    lg_timeline timeline;
    double begin = 1e300;
    double end = 0.0;
    assert_ok(lg_plan_simulate(&timeline, plan, c->graph, &c->machine, c->costs));
    for (int i = 0; i < timeline.num_spans; i++) {
        begin = timeline.spans[i].start_ns < begin ? timeline.spans[i].start_ns : begin;
        end = timeline.spans[i].end_ns > end ? timeline.spans[i].end_ns : end;
    }
    lg_timeline_deinit(&timeline);
    return end - begin;
}

/* `num_blocks` blocks of F = f, I = i, W = w units each. */
static outcome run_with(const char *strategy, placement kind, int arg, int num_blocks,
                        int num_ranks, int num_micro_batches, bool has_push, double f, double i,
                        double w)
{
    pipeline_case c;
    lg_plan *plan = NULL;
    lg_timeline timeline;
    lg_model *const model = linear_model(num_blocks);
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.has_push = has_push;
    case_init(&c, model, stages_of(model, kind, num_ranks, arg), num_micro_batches, 1, f * UNIT_NS,
              i * UNIT_NS, w * UNIT_NS);
    assert_ok(lg_plan_create(&plan, strategy, c.graph, &c.machine, c.costs, &opts));
    assert_ok(lg_plan_check(plan, c.graph, 0));
    assert_string_equal(plan->strategy, strategy);
    assert_ok(lg_plan_simulate(&timeline, plan, c.graph, &c.machine, c.costs));
    outcome out = {.step = timeline.step_ns / UNIT_NS};
    out.one_step = one_step_ns(&c, plan) / UNIT_NS;
    lg_timeline_deinit(&timeline);
    for (int rank = 0; rank < num_ranks; rank++) {
        const int held = count_held(plan, c.graph, rank);
        out.max_held = held > out.max_held ? held : out.max_held;
    }
    out.first_held = count_held(plan, c.graph, c.stages.rank_of_stage[0]);
    lg_plan_destroy(plan);
    case_deinit(&c);
    return out;
}

static outcome run(const char *strategy, placement kind, int arg, int num_blocks, int num_ranks,
                   int num_micro_batches)
{
    return run_with(strategy, kind, arg, num_blocks, num_ranks, num_micro_batches, false, 1.0, 1.0,
                    1.0);
}

static void assert_time(double expected, double got)
{
    if (!(got >= expected * (1.0 - TIME_FRAC) && got <= expected * (1.0 + TIME_FRAC))) {
        fail_msg("%g units, not %g", got, expected);
    }
}

static void assert_ratio(double expected, double got)
{
    if (!(got > expected - ROUNDING && got < expected + ROUNDING)) {
        fail_msg("%.4f times as fast, not %.2f", got, expected);
    }
}

/* --- closed forms ---------------------------------------------------------------------------------------------------------- */

static void gpipe_and_1f1b_have_the_textbook_bubble(void **state)
{
    (void)state;
    for (int num_ranks = 1; num_ranks <= 5; num_ranks++) {
        for (int m = 1; m <= 9; m += 2) {
            const double expected = 3.0 * (m + num_ranks - 1);
            const outcome gpipe = run("gpipe", ONE_EACH, 1, num_ranks, num_ranks, m);
            const outcome f1b1 = run("1f1b", ONE_EACH, 1, num_ranks, num_ranks, m);
            assert_time(expected, gpipe.step);
            assert_time(expected, f1b1.step);
            assert_int_equal(gpipe.first_held, m);
            assert_int_equal(f1b1.first_held, m < num_ranks ? m : num_ranks);
        }
    }
}

static void interleaving_divides_the_bubble_by_the_stages_of_a_rank(void **state)
{
    (void)state;
    for (int num_ranks = 2; num_ranks <= 4; num_ranks++) {
        for (int v = 2; v <= 3; v++) {
            for (int groups = 1; groups <= 3; groups++) {
                const int m = groups * num_ranks;
                const double expected = 3.0 * (m * v + num_ranks - 1);
                assert_time(expected,
                            run("interleaved", LOOP, v, v * num_ranks, num_ranks, m).step);
            }
        }
    }
    /* breadth-first with M = P has the same bubble */
    assert_time(3.0 * (4 * 2 + 3), run("breadth-first", LOOP, 2, 8, 4, 4).step);
}

static void zb_h1_has_a_third_of_the_bubble_at_the_memory_of_1f1b(void **state)
{
    (void)state;
    for (int num_ranks = 2; num_ranks <= 5; num_ranks++) {
        for (int m = 2 * num_ranks; m <= 3 * num_ranks; m += num_ranks) {
            /* (P - 1)(F + I - W) against (P - 1)(F + I + W) */
            const outcome h1 = run("zb-h1", ONE_EACH, 1, num_ranks, num_ranks, m);
            const outcome f1b1 = run("1f1b", ONE_EACH, 1, num_ranks, num_ranks, m);
            assert_time(3.0 * m + (num_ranks - 1), h1.step);
            assert_time(3.0 * m + 3.0 * (num_ranks - 1), f1b1.step);
            assert_true(h1.max_held <= f1b1.max_held);
        }
    }
}

static void zb_h2_has_no_bubble_at_twice_the_memory(void **state)
{
    (void)state;
    for (int num_ranks = 2; num_ranks <= 5; num_ranks++) {
        const int m = 3 * num_ranks;
        const outcome h2 = run("zb-h2", ONE_EACH, 1, num_ranks, num_ranks, m);
        assert_time(3.0 * m, h2.step);
        assert_true(h2.max_held <= 2 * num_ranks - 1);
    }
}

static void zb_v_has_no_bubble_at_the_memory_of_1f1b(void **state)
{
    (void)state;
    for (int num_ranks = 2; num_ranks <= 5; num_ranks++) {
        for (int m = 2 * num_ranks; m <= 3 * num_ranks; m += num_ranks) {
            const outcome zbv = run("zb-v", V, 2, 2 * num_ranks, num_ranks, m);
            assert_time(6.0 * m, zbv.step);
            /* in halves of a rank's layers: 1f1b's first rank keeps P whole ones */
            assert_true(zbv.max_held <= 2 * num_ranks);
        }
    }
}

/* Closed forms of the paper where they hold: F + I >= W for h1, F + I >= 2 W for h2. */
static void zero_bubble_keeps_its_promise_for_other_times(void **state)
{
    (void)state;
    static const double times[][3] = {{1.0, 1.2, 0.8}, {1.0, 1.5, 0.5}, {1.0, 1.0, 0.0}};
    for (size_t t = 0; t < sizeof times / sizeof times[0]; t++) {
        const double f = times[t][0];
        const double i = times[t][1];
        const double w = times[t][2];
        for (int num_ranks = 2; num_ranks <= 4; num_ranks++) {
            const int m = 2 * num_ranks;
            const double work = m * (f + i + w);
            assert_time(
                work + (num_ranks - 1) * (f + i - w),
                run_with("zb-h1", ONE_EACH, 1, num_ranks, num_ranks, m, false, f, i, w).step);
            assert_time(
                work + (num_ranks - 1) * (f + i - 2.0 * w),
                run_with("zb-h2", ONE_EACH, 1, num_ranks, num_ranks, m, false, f, i, w).step);
        }
    }
}

static void zero_bubble_is_never_slower_than_1f1b(void **state)
{
    (void)state;
    for (int draw = 0; draw < 60; draw++) {
        const int num_ranks = 2 + draw % 3;
        const int m = 1 + draw % 7;
        const double f = 1.0 + draw % 5;
        const double i = 1.0 + draw * 7 % 6;
        const double w = draw * 5 % 8;
        const int num_blocks = num_ranks + draw % 4;
        const double plain =
            run_with("1f1b", ONE_EACH, 1, num_blocks, num_ranks, m, false, f, i, w).step;
        const double h1 =
            run_with("zb-h1", ONE_EACH, 1, num_blocks, num_ranks, m, false, f, i, w).step;
        const double h2 =
            run_with("zb-h2", ONE_EACH, 1, num_blocks, num_ranks, m, false, f, i, w).step;
        assert_true(h1 <= plain * (1.0 + TIME_FRAC));
        assert_true(h2 <= plain * (1.0 + TIME_FRAC));
    }
}

static void dualpipe_v_beats_1f1b_at_one_micro_batch_more(void **state)
{
    (void)state;
    for (int num_ranks = 2; num_ranks <= 4; num_ranks++) {
        const int m = 3 * num_ranks;
        const outcome dual = run("dualpipe-v", V, 2, 2 * num_ranks, num_ranks, m);
        const outcome f1b1 = run("1f1b", ONE_EACH, 1, 2 * num_ranks, num_ranks, m);
        assert_true(dual.step < f1b1.step && dual.step >= 6.0 * m * (1.0 - TIME_FRAC));
        assert_true(dual.max_held <= 2 * (num_ranks + 1)); /* halves */
    }
}

/* --- the original's rules -------------------------------------------------------------------------------------------------- */

static void fast_forward_and_modulo_gain_what_their_rules_say(void **state)
{
    (void)state;
    const double gpipe4 = run("gpipe", ONE_EACH, 1, 24, 4, 4).step;
    assert_ratio(1.31, gpipe4 / run("fast-forward", ONE_EACH, 1, 24, 4, 4).step);
    assert_ratio(1.50, gpipe4 / run("modulo", MODULO, 3, 24, 4, 4).step);
    assert_ratio(1.58, gpipe4 / run("modulo", MODULO, 2, 24, 4, 4).step);
    assert_ratio(1.66, gpipe4 / run("modulo", MODULO, 1, 24, 4, 4).step);
    const double gpipe8 = run("gpipe", ONE_EACH, 1, 24, 4, 8).step;
    assert_ratio(1.18, gpipe8 / run("fast-forward", ONE_EACH, 1, 24, 4, 8).step);
    assert_ratio(1.18, gpipe8 / run("modulo", MODULO, 3, 24, 4, 8).step);
    assert_ratio(1.24, gpipe8 / run("modulo", MODULO, 2, 24, 4, 8).step);
    assert_ratio(1.30, gpipe8 / run("modulo", MODULO, 1, 24, 4, 8).step);
    const double gpipe2 = run("gpipe", ONE_EACH, 1, 8, 2, 2).step;
    assert_ratio(1.29, gpipe2 / run("fast-forward", ONE_EACH, 1, 8, 2, 2).step);
    assert_ratio(1.38, gpipe2 / run("modulo", MODULO, 2, 8, 2, 2).step);
    assert_ratio(1.44, gpipe2 / run("modulo", MODULO, 1, 8, 2, 2).step);
}

static void the_pretraining_scripts_gain_what_their_rules_say(void **state)
{
    (void)state;
    static const struct {
        int num_layers, num_ranks, num_micro_batches;
        double gain, gain_with_push;
    } scripts[] = {{12, 8, 30, 1.06, 1.00},
                   {24, 16, 32, 1.10, 1.10},
                   {36, 24, 38, 1.12, 1.12},
                   {48, 32, 40, 1.15, 1.15}};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        const int num = scripts[i].num_layers;
        const int num_ranks = scripts[i].num_ranks;
        const int m = scripts[i].num_micro_batches;
        const double gpipe = run("gpipe", ONE_EACH, 1, num, num_ranks, m).step;
        const outcome plain = run("fast-forward", ONE_EACH, 1, num, num_ranks, m);
        const outcome push =
            run_with("fast-forward", ONE_EACH, 1, num, num_ranks, m, true, 1.0, 1.0, 1.0);
        assert_ratio(scripts[i].gain, gpipe / plain.step);
        /* The derived values are for one step alone; from step to step the last rank's tail overlaps the first rank's start. */
        assert_ratio(scripts[i].gain_with_push, gpipe / push.one_step);
        assert_true(push.step <= push.one_step * (1.0 + TIME_FRAC));
        assert_true(push.first_held < plain.first_held);
    }
}

/* --- any numbers ------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    placement kind;
    int arg;
} all[] = {{"gpipe", ONE_EACH, 1},        {"gpipe", LOOP, 2},
           {"1f1b", ONE_EACH, 1},         {"interleaved", LOOP, 2},
           {"interleaved", LOOP, 3},      {"interleaved", MODULO, 2},
           {"breadth-first", LOOP, 2},    {"breadth-first", MODULO, 1},
           {"fast-forward", ONE_EACH, 1}, {"modulo", MODULO, 1},
           {"modulo", MODULO, 2},         {"zb-h1", ONE_EACH, 1},
           {"zb-h2", ONE_EACH, 1},        {"zb-v", V, 2},
           {"dualpipe-v", V, 2}};

/* Any P, M (also M < P), uneven stages and times: made, proved, never faster than the busiest rank's work. */
static void all_schedules_hold_for_any_numbers(void **state)
{
    (void)state;
    for (int num_ranks = 1; num_ranks <= 4; num_ranks++) {
        for (int m = 1; m <= 7; m += 2) {
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
                const int num_blocks = 3 * num_ranks + m % 3;
                const double w = m % 2 == 0 ? 1.0 : 0.5;
                const outcome o = run_with(all[i].name, all[i].kind, all[i].arg, num_blocks,
                                           num_ranks, m, false, 1.0, 1.5, w);
                const double work = (double)m * num_blocks * (2.5 + w) / num_ranks;
                assert_true(o.step >= work * (1.0 - TIME_FRAC));
                assert_true(o.step < work * num_ranks * 1.5);
            }
        }
    }
}

static void wrong_placements_and_names_are_refused_in_one_line(void **state)
{
    (void)state;
    pipeline_case c;
    lg_plan *plan = NULL;
    lg_strategy_opts opts = lg_strategy_opts_default();
    lg_model *const model = linear_model(8);
    case_init(&c, model, stages_of(model, LOOP, 4, 2), 8, 1, 1.0, 1.0, 1.0);
#define REFUSED(name, part) \
    assert_fails(LG_INVALID_ARG, part, \
                 lg_plan_create(&plan, name, c.graph, &c.machine, c.costs, &opts)); \
    assert_null(plan)
    REFUSED("1f1b", "1f1b: 8 stages on 4 pipeline ranks");
    REFUSED("zb-h1", "one stage per rank");
    REFUSED("fast-forward", "one stage per rank");
    REFUSED("zb-v", "stages 0 and 7 are on ranks 0 and 3");
    REFUSED("dualpipe-v", "placed in a V");
    REFUSED("priority", "1f1b+priority");
    REFUSED("best", "zb-h1");
    REFUSED("1f1b+best", "barrier, wfbp, priority, reverse-first-k");
    REFUSED("1f1b+gpipe", "behind the '+'");
    REFUSED("out-of-order+wfbp", "before the '+'");
    REFUSED("wfbp+wfbp", "before the '+'");
    REFUSED("+wfbp", "unknown strategy");
    REFUSED("1f1b+", "behind the '+'");
    opts.has_push = true;
    REFUSED("modulo", "modulo: it cannot cap");
    opts.has_push = false;
    opts.num_reversed = 10;
    REFUSED("gpipe+reverse-first-k", "k = 10 is not in [0, 9]");
    opts.num_reversed = -2;
    REFUSED("gpipe+reverse-first-k", "k = -2");
    opts.num_reversed = -1;
    opts.memory_bytes = 64;
    assert_fails(LG_NOT_SUPPORTED, "over the budget of 64",
                 lg_plan_create(&plan, "gpipe", c.graph, &c.machine, c.costs, &opts));
    case_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpipe_and_1f1b_have_the_textbook_bubble),
        cmocka_unit_test(interleaving_divides_the_bubble_by_the_stages_of_a_rank),
        cmocka_unit_test(zb_h1_has_a_third_of_the_bubble_at_the_memory_of_1f1b),
        cmocka_unit_test(zb_h2_has_no_bubble_at_twice_the_memory),
        cmocka_unit_test(zb_v_has_no_bubble_at_the_memory_of_1f1b),
        cmocka_unit_test(zero_bubble_keeps_its_promise_for_other_times),
        cmocka_unit_test(zero_bubble_is_never_slower_than_1f1b),
        cmocka_unit_test(dualpipe_v_beats_1f1b_at_one_micro_batch_more),
        cmocka_unit_test(fast_forward_and_modulo_gain_what_their_rules_say),
        cmocka_unit_test(the_pretraining_scripts_gain_what_their_rules_say),
        cmocka_unit_test(all_schedules_hold_for_any_numbers),
        cmocka_unit_test(wrong_placements_and_names_are_refused_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
