/* Schedules as CSV: what is read, what is refused and how it is named, and the way to plans and back. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "leapgrad/cluster.h"

static lg_rank_schedule *parse(const char *text)
{
    lg_rank_schedule *schedule = NULL;
    const lg_status status = lg_schedule_parse_csv(&schedule, "s", text, strlen(text));
    if (status != LG_OK) {
        print_error("%s\n", lg_last_error());
    }
    assert_int_equal(status, LG_OK);
    return schedule;
}

static void refuse(const char *text, const char *message)
{
    lg_rank_schedule *schedule = NULL;
    assert_int_equal(lg_schedule_parse_csv(&schedule, "s", text, strlen(text)), LG_INVALID_ARG);
    assert_null(schedule);
    assert_string_equal(lg_last_error(), message);
}

static void actions_of_each_kind_are_read(void **state)
{
    (void)state;
    const lg_action expected[] = {
        {LG_ACTION_FORWARD, 0, 0, 1},     {LG_ACTION_FORWARD, 0, 1, 2},
        {LG_ACTION_FORWARD, 1, 0, 4},     {LG_ACTION_INPUT_GRAD, 1, 0, 5},
        {LG_ACTION_WEIGHT_GRAD, 1, 0, 6}, {LG_ACTION_FORWARD, 1, 1, 7},
        {LG_ACTION_BACKWARD, 0, 0, 7},    {LG_ACTION_BACKWARD, 1, 1, 8},
        {LG_ACTION_INPUT_GRAD, 0, 1, 9},  {LG_ACTION_WEIGHT_GRAD, 0, 1, 10}};
    lg_rank_schedule *const s =
        parse("\xef\xbb\xbf"
              "0F0, 0F1,,1F0,\"1I0\",1W0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1\r\n"
              "\r\n");
    assert_int_equal(s->num_ranks, 1);
    assert_int_equal(s->num_actions[0], 10);
    assert_memory_equal(s->actions[0], expected, sizeof expected);
    lg_schedule_destroy(s);
}

static void numbers_and_ranks_follow_from_the_actions(void **state)
{
    (void)state;
    lg_rank_schedule *const s = parse("0F0,0F1,,3F0,3F1,3B0,3B1,0I0,0W0,0B1\n"
                                      "1F0,1F1,2F0,2F1,2B0,2B1,1B0,1B1");
    assert_int_equal(s->num_ranks, 2);
    assert_int_equal(s->num_stages, 4);
    assert_int_equal(s->num_micro_batches, 2);
    assert_int_equal(s->num_actions[0], 9);
    const int expected[] = {0, 1, 1, 0};
    assert_memory_equal(s->rank_of_stage, expected, sizeof expected);
    assert_int_equal(s->actions[0][2].kind, LG_ACTION_FORWARD);
    assert_int_equal(s->actions[0][2].stage, 3);
    assert_int_equal(s->actions[0][2].column, 4); /* the empty cell counts */
    lg_schedule_destroy(s);
}

static void what_is_no_action_is_named(void **state)
{
    (void)state;
    lg_rank_schedule *schedule = NULL;
    assert_int_equal(lg_schedule_parse_csv(&schedule, "s", "0F0,0X0", 7), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "s: line 1, action 2: '0X0' is no action"));
    refuse("", "s: no actions; expected a line of actions for each rank");
    refuse("0F0,0B0\n\n1F0,1B0\n", "s: line 2: rank 1 has nothing to compute");
    refuse("0F", "s: line 1, action 1: '0F' has no micro-batch from 0 to 1000000 behind it");
    refuse("0F0x", "s: line 1, action 1: '0F0x' has no micro-batch from 0 to 1000000 behind it");
    refuse("0F9999999",
           "s: line 1, action 1: '0F9999999' has no micro-batch from 0 to 1000000 behind it");
    refuse("0F0,(0F1;0B1)",
           "s: line 1, action 2: '(0F1;0B1)' is no pair; expected as in (0F1;3B0)OVERLAP_F_B");
    refuse("\"0F0", "s: line 1, action 1: '\"0F0' has a quote that does not end");
}

static void doubled_and_missing_actions_are_named(void **state)
{
    (void)state;
    refuse("0F0,0B0,0F0", "s: line 1, action 3: '0F0' is there already (line 1, action 1)");
    refuse("0F0,0B0,0W0", "s: line 1, action 3: '0W0' is a part of the B on line 1, action 2");
    refuse("0F0,0I0", "s: line 1, action 1: '0F0' is there, but no '0W0'");
    refuse("0F0", "s: line 1, action 1: '0F0' is there, but no '0B0'");
    refuse("0B0", "s: line 1, action 1: '0B0' is there, but no '0F0'");
    refuse("0F0,0B0,0F2,0B2", "s: line 1, action 4: '0B2' is there, but nothing of '0F1'");
    refuse("0F0,0B0\n2F0,2B0", "s: line 2, action 2: '2B0' is there, but nothing of '1F0'");
    refuse(
        "0F0,0F1\n0B0,0B1",
        "s: line 2, action 1: '0B0' is of a stage that is on line 1 too; a stage is on one rank");
}

static void an_order_that_cannot_run_is_named(void **state)
{
    (void)state;
    refuse("0B0,0F0", "s: line 1, action 1: '0B0' comes before '0F0' (action 2), which it needs");
    refuse("0F0,0W0,0I0",
           "s: line 1, action 2: '0W0' comes before '0I0' (action 3), which it needs");
    /* Rank 1 wants micro-batch 1 first, which rank 0 sends after the backward of 0, which rank 1 makes later. */
    refuse("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0",
           "s: line 1, action 2: deadlock: '0B0' waits for '1B0' (line 2, action 4), which stands "
           "behind '1F1' (action 1), which waits in turn");
    /* One stage later on another rank. */
    refuse("1B0,0F0,0B0,1F0",
           "s: line 1, action 1: '1B0' comes before '1F0' (action 4), which it needs");
}

static void messages_are_checked(void **state)
{
    (void)state;
    lg_schedule_destroy(
        parse("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0WAIT_SEND_F0,0B0,0REDUCE_GRAD,0RESHARD\n"
              "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1WAIT_REDUCE_GRAD"));
    refuse("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
           "s: line 1, action 1 ('0SEND_F0') comes before what it sends is computed");
    refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0",
           "s: line 2, action 2 ('1RECV_F0') comes after what needs it");
    refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0",
           "s: line 1, action 3 ('0RECV_B0') meets no '1SEND_B0'");
    refuse("0F0,0SEND_F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0",
           "s: line 1, action 3 ('0SEND_F0') is doubled");
    refuse("0F0,0SEND_B0,0B0", "s: line 1, action 2 ('0SEND_B0') has no stage at its other end");
    refuse("0F0,1SEND_F0,0B0\n1F0,1B0", "s: line 1, action 2 ('1SEND_F0') is of a stage or "
                                        "micro-batch that the rank does not compute");
}

/* --- plans -------------------------------------------------------------------------------------------------------------- */

static lg_recipe *make_recipe(const char *strategy, const char *num_ranks, const char *num_replicas)
{
    const char *const settings[][2] = {{"plan.strategy", strategy},
                                       {"ranks.pipeline", num_ranks},
                                       {"ranks.replicas", num_replicas},
                                       {"train.micro_batches", "8"}};
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_default(&recipe), LG_OK);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        assert_int_equal(lg_recipe_set(recipe, settings[i][0], settings[i][1]), LG_OK);
    }
    return recipe;
}

/* Every strategy's order goes out, comes in as another plan, and that one's order is the same and as fast. */
static void strategies_survive_the_way_out_and_in(void **state)
{
    (void)state;
    static const char *const names[] = {
        "gpipe", "1f1b",  "interleaved", "breadth-first", "fast-forward", "modulo",
        "zb-h1", "zb-h2", "zb-v",        "dualpipe-v",    "1f1b+priority"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        lg_recipe *const recipe =
            make_recipe(names[i], "4", strchr(names[i], '+') != NULL ? "2" : "1");
        lg_cluster_opts opts = lg_cluster_opts_default();
        opts.has_equal_times = true;
        lg_cluster *first = NULL;
        lg_cluster *second = NULL;
        lg_rank_schedule *out = NULL;
        lg_rank_schedule *back = NULL;
        assert_int_equal(lg_cluster_create(&first, recipe, &opts), LG_OK);
        assert_int_equal(lg_cluster_plan(first, recipe, &opts), LG_OK);
        assert_int_equal(lg_schedule_of_plan(&out, first->plan, first->graph), LG_OK);
        opts.schedule = out;
        assert_int_equal(lg_cluster_create(&second, recipe, &opts), LG_OK);
        assert_int_equal(lg_cluster_plan(second, recipe, &opts), LG_OK);
        assert_int_equal(lg_schedule_of_plan(&back, second->plan, second->graph), LG_OK);
        for (int rank = 0; rank < 4; rank++) {
            assert_int_equal(out->num_actions[rank], back->num_actions[rank]);
            assert_memory_equal(out->actions[rank], back->actions[rank],
                                (size_t)out->num_actions[rank] * sizeof(lg_action));
        }
        assert_true(second->timeline.step_ns <= first->timeline.step_ns * (1.0 + 1e-9));
        assert_true(second->timeline.step_ns >= first->timeline.step_ns * (1.0 - 1e-9));
        lg_schedule_destroy(out);
        lg_schedule_destroy(back);
        lg_cluster_destroy(first);
        lg_cluster_destroy(second);
        lg_recipe_destroy(recipe);
    }
}

/* By hand, two ranks, two micro-batches, F = I = W = 1 ms. */
static void a_schedule_by_hand_takes_the_time_that_it_takes_on_paper(void **state)
{
    (void)state;
    lg_recipe *const recipe = make_recipe("1f1b", "2", "1");
    lg_cluster_opts opts = lg_cluster_opts_default();
    lg_cluster *cluster = NULL;
    lg_rank_schedule *const schedule = parse("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1");
    opts.has_equal_times = true;
    opts.schedule = schedule;
    assert_int_equal(lg_cluster_create(&cluster, recipe, &opts), LG_OK);
    assert_int_equal(lg_cluster_plan(cluster, recipe, &opts), LG_OK);
    /* Rank 0: F F, a wait until 3, I W, I from 5, W until 7. Rank 1: F from 1, I F I W W until 7; it starts the next step at
       1 before rank 0 does, so a step takes 7. */
    assert_true(cluster->timeline.step_ns > 7e6 - 1.0 && cluster->timeline.step_ns < 7e6 + 1.0);
    lg_cluster_destroy(cluster);
    lg_schedule_destroy(schedule);
    lg_recipe_destroy(recipe);
}

static void sums_in_another_order_are_refused_by_name(void **state)
{
    (void)state;
    lg_recipe *const recipe = make_recipe("1f1b", "2", "1");
    lg_cluster_opts opts = lg_cluster_opts_default();
    lg_cluster *cluster = NULL;
    lg_rank_schedule *const schedule = parse("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0");
    opts.has_equal_times = true;
    opts.schedule = schedule;
    assert_int_equal(lg_cluster_create(&cluster, recipe, &opts), LG_OK);
    assert_int_equal(lg_cluster_plan(cluster, recipe, &opts), LG_NOT_SUPPORTED);
    assert_non_null(strstr(lg_last_error(), "line 1, action 3: '0B1' comes before micro-batch 0"));
    assert_null(cluster->plan);
    lg_cluster_destroy(cluster);
    lg_schedule_destroy(schedule);
    lg_recipe_destroy(recipe);
}

static void failing_allocations_leave_nothing(void **state)
{
    (void)state;
    const char *const text = "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n1RECV_F0,1F0,1B0,1SEND_B0";
    lg_rank_schedule *schedule = NULL;
    lg_status status = LG_OUT_OF_MEMORY;
    for (int64_t i = 1; status != LG_OK; i++) {
        assert_true(i < 200);
        lgi_alloc_fail_after(i);
        status = lg_schedule_parse_csv(&schedule, "s", text, strlen(text));
        lgi_alloc_fail_after(0);
        assert_true(status == LG_OK || status == LG_OUT_OF_MEMORY);
        assert_true((schedule == NULL) == (status != LG_OK));
    }
    lg_schedule_destroy(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(actions_of_each_kind_are_read),
        cmocka_unit_test(numbers_and_ranks_follow_from_the_actions),
        cmocka_unit_test(what_is_no_action_is_named),
        cmocka_unit_test(doubled_and_missing_actions_are_named),
        cmocka_unit_test(an_order_that_cannot_run_is_named),
        cmocka_unit_test(messages_are_checked),
        cmocka_unit_test(strategies_survive_the_way_out_and_in),
        cmocka_unit_test(a_schedule_by_hand_takes_the_time_that_it_takes_on_paper),
        cmocka_unit_test(sums_in_another_order_are_refused_by_name),
        cmocka_unit_test(failing_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
