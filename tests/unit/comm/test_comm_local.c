/* Messages between ranks of one process: what is sent arrives, in order, whoever posts first; collectives on top. */
#include "unit/comm/comm_fixture.h"

static void all_sizes_arrive_whoever_posts_first(void **state)
{
    (void)state;
    run_ranks(2, receiver_is_late);
    run_ranks(2, sender_is_late);
}

static void many_messages_in_flight_keep_their_order(void **state)
{
    (void)state;
    run_ranks(1, exchange_with_all);
    run_ranks(2, exchange_with_all);
    run_ranks(7, exchange_with_all);
}

static void collectives_give_each_rank_its_part(void **state)
{
    (void)state;
    run_ranks(1, check_collectives);
    run_ranks(2, check_collectives);
    run_ranks(7, check_collectives);
}

static _Atomic int num_arrived;

static void check_barrier(lg_comm *comm)
{
    const int num_ranks = lg_comm_num_ranks(comm);
    for (int round = 1; round <= 50; round++) {
        (void)atomic_fetch_add(&num_arrived, 1);
        EXPECT(lgi_comm_barrier(comm) == LG_OK);
        EXPECT(atomic_load(&num_arrived) >= round * num_ranks);
    }
}

static void nobody_passes_a_barrier_before_all_have_come(void **state)
{
    (void)state;
    atomic_store(&num_arrived, 0);
    run_ranks(5, check_barrier);
}

/* --- the driver ------------------------------------------------------------------------------------------------------------ */

static void driver_runs_when_messages_end(void **state)
{
    (void)state;
    run_ranks(2, check_driver);
}

static lgi_drive count_rounds(void *user)
{
    (void)atomic_fetch_add((_Atomic int *)user, 1);
    return LGI_DRIVE_IDLE;
}

static void check_wake(lg_comm *comm)
{
    static _Atomic int rounds;
    atomic_store(&rounds, 0);
    lgi_comm_set_driver(comm, count_rounds, &rounds);
    sleep_ms(20);
    for (int i = 0; i < 100; i++) {
        const int before = atomic_load(&rounds);
        lgi_comm_wake(comm);
        const uint64_t start_ns = lgi_clock_ns();
        while (atomic_load(&rounds) == before && lgi_clock_ns() - start_ns < 5000000000u) {
            sleep_ms(0);
        }
        EXPECT(atomic_load(&rounds) > before);
    }
    lgi_comm_set_driver(comm, NULL, NULL);
    const int after = atomic_load(&rounds);
    sleep_ms(10);
    EXPECT(atomic_load(&rounds) == after);
}

static void wake_makes_a_round_and_a_removed_driver_runs_no_more(void **state)
{
    (void)state;
    run_ranks(1, check_wake);
}

static void told_is_what_was_told(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    lgi_activity activity = {
        .step = 5 + rank, .op = 7, .waits_for_rank = -1, .num_done = 3, .text = "conv3"};
    lgi_comm_tell(comm, &activity);
    EXPECT(lgi_comm_barrier(comm) == LG_OK);
    double age_s = -1;
    const lgi_activity told = lgi_comm_told(comm, 1 - rank, &age_s);
    EXPECT(told.step == 5 + 1 - rank && told.op == 7 && strcmp(told.text, "conv3") == 0);
    EXPECT(age_s >= 0 && age_s < 60);
    EXPECT(lgi_comm_barrier(comm) == LG_OK);
}

static void ranks_hear_what_others_do(void **state)
{
    (void)state;
    run_ranks(2, told_is_what_was_told);
}

static void bad_numbers_of_ranks_are_refused(void **state)
{
    (void)state;
    lg_comm *comm = NULL;
    assert_int_equal(lg_comm_local_create(&comm, 0), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "0 ranks"));
    assert_null(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes_arrive_whoever_posts_first),
        cmocka_unit_test(many_messages_in_flight_keep_their_order),
        cmocka_unit_test(collectives_give_each_rank_its_part),
        cmocka_unit_test(nobody_passes_a_barrier_before_all_have_come),
        cmocka_unit_test(driver_runs_when_messages_end),
        cmocka_unit_test(wake_makes_a_round_and_a_removed_driver_runs_no_more),
        cmocka_unit_test(ranks_hear_what_others_do),
        cmocka_unit_test(bad_numbers_of_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
