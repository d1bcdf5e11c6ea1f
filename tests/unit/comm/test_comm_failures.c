/* What goes wrong on one rank ends the others at once, with words that say what it was. */
#include "unit/comm/comm_fixture.h"

static uint64_t begin_ns;

/* Far from a busy machine's delays, and both far apart: an end that came by itself, and one by timeout. */
#define QUICK_NS UINT64_C(60000000000)
#define NO_TIMEOUT_S 600

static bool was_quick(void)
{
    return lgi_clock_ns() - begin_ns < QUICK_NS;
}

static void fails_in_the_middle(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    lg_comm_set_timeout(comm, NO_TIMEOUT_S);
    if (rank == 1) {
        sleep_ms(20);
        lgi_comm_fail(comm, LG_OUT_OF_MEMORY, "no memory for 3 GB");
        lgi_comm_fail(comm, LG_IO, "came second");
        EXPECT(lgi_comm_failure(comm) == LG_OUT_OF_MEMORY);
        EXPECT(strcmp(lg_last_error(), "no memory for 3 GB") == 0);
    } else {
        char data = 0;
        lgi_message message = make_message(false, 1, LGI_CHANNEL_PLAN, &data, 1);
        lgi_comm_post(comm, &message);
        EXPECT(lgi_comm_wait(comm, &message) == LG_COMM);
        EXPECT(strcmp(lg_last_error(), "rank 1: no memory for 3 GB") == 0);
        EXPECT(message.has_failed && lgi_comm_has_failed(comm));
        lgi_comm_post(comm, &message); /* no life after it */
        EXPECT(lgi_comm_wait(comm, &message) == LG_COMM);
    }
    EXPECT(lgi_comm_failed_rank(comm) == 1);
    EXPECT(was_quick());
}

static void a_failure_ends_all_ranks(void **state)
{
    (void)state;
    begin_ns = lgi_clock_ns();
    run_ranks(2, fails_in_the_middle);
    run_ranks(7, fails_in_the_middle);
}

static void leaves_early(lg_comm *comm)
{
    lg_comm_set_timeout(comm, NO_TIMEOUT_S);
    if (lg_comm_rank(comm) == 0) {
        char data = 0;
        lgi_message message = make_message(false, 1, LGI_CHANNEL_STEP, &data, 1);
        lgi_comm_post(comm, &message);
        EXPECT(lgi_comm_wait(comm, &message) == LG_COMM);
        EXPECT(strstr(lg_last_error(), "1 bytes from rank 1 (channel step): that rank has left"));
        EXPECT(was_quick());
    }
}

static void leaves_early_and_peer_is_late(lg_comm *comm)
{
    if (lg_comm_rank(comm) == 0) {
        sleep_ms(30);
    }
    leaves_early(comm);
}

static void who_waits_for_a_rank_that_has_left_fails(void **state)
{
    (void)state;
    begin_ns = lgi_clock_ns();
    run_ranks(2, leaves_early);
    run_ranks(2, leaves_early_and_peer_is_late);
    run_ranks(3, leaves_early_and_peer_is_late);
}

static void leaves_with_messages(lg_comm *comm)
{
    static char data[2];
    static lgi_message left_behind;
    if (lg_comm_rank(comm) == 1) {
        left_behind = make_message(true, 0, LGI_CHANNEL_PLAN, &data[0], 1);
        lgi_comm_post(comm, &left_behind);
        return;
    }
    if (lg_comm_rank(comm) == 2) {
        lgi_message message = make_message(false, 0, LGI_CHANNEL_PLAN, &data[1], 1);
        lgi_comm_post(comm, &message);
        EXPECT(lgi_comm_wait(comm, &message) == LG_COMM);
        EXPECT(strstr(lg_last_error(), "rank 1: left with 1 messages under way"));
        EXPECT(was_quick());
        return;
    }
    while (!lgi_comm_has_failed(comm) && was_quick()) {
        sleep_ms(1);
    }
}

static void leaving_with_messages_under_way_is_a_failure(void **state)
{
    (void)state;
    begin_ns = lgi_clock_ns();
    run_ranks(3, leaves_with_messages);
}

static void disagrees_on_size(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    char data[16] = {0};
    lgi_message message = make_message(rank == 0, 1 - rank, LGI_CHANNEL_REDUCE, data, 8 + rank);
    lgi_comm_post(comm, &message);
    const lg_status status = lgi_comm_wait(comm, &message);
    EXPECT(status == LG_INTERNAL || status == LG_COMM);
    EXPECT(strstr(lg_last_error(), "rank 0 sends 8 bytes to rank 1, which expects 9"));
}

static void different_sizes_are_an_error_that_names_both(void **state)
{
    (void)state;
    run_ranks(2, disagrees_on_size);
}

static void waits_in_a_circle(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
    lg_comm_set_timeout(comm, 1);
    lgi_activity activity = {.step = 4, .op = -1, .waits_for_rank = -1, .text = "hand in hand"};
    lgi_comm_tell(comm, &activity);
    char data = 0;
    lgi_message message = make_message(false, (rank + 1) % num_ranks, LGI_CHANNEL_HOST, &data, 1);
    lgi_comm_post(comm, &message);
    EXPECT(lgi_comm_wait(comm, &message) == LG_TIMEOUT);
    EXPECT(strstr(lg_last_error(), "no progress for "));
    char text[64];
    (void)snprintf(text, sizeof text, "rank 1 (step 4, hand in hand) waits for rank %d",
                   2 % num_ranks);
    EXPECT(strstr(lg_last_error(), text));
    EXPECT(was_quick());
}

static void ranks_that_wait_for_each_other_time_out(void **state)
{
    (void)state;
    begin_ns = lgi_clock_ns();
    run_ranks(2, waits_in_a_circle);
    run_ranks(3, waits_in_a_circle);
}

static void waits_for_a_busy_rank(lg_comm *comm)
{
    lg_comm_set_timeout(comm, 1);
    if (lg_comm_rank(comm) == 1) {
        sleep_ms(1600);
    }
    EXPECT(lgi_comm_barrier(comm) == LG_OK);
}

static void a_rank_that_works_for_long_is_no_failure(void **state)
{
    (void)state;
    run_ranks(3, waits_for_a_busy_rank);
}

/* Fails while large copies are under way: nobody may touch memory of a rank that was told that its message is done. */
static void fails_during_copies(lg_comm *comm)
{
    enum { NUM = 6 };
    const int rank = lg_comm_rank(comm);
    const int64_t num_bytes = 3000000;
    lgi_message messages[NUM];
    unsigned char *data[NUM];
    for (int m = 0; m < NUM; m++) {
        data[m] = malloc((size_t)num_bytes);
        memset(data[m], rank, (size_t)num_bytes);
        messages[m] =
            make_message((m + rank) % 2 == 0, 1 - rank, m % LGI_NUM_CHANNELS, data[m], num_bytes);
        lgi_comm_post(comm, &messages[m]);
    }
    if (rank == 1) {
        lgi_comm_fail(comm, LG_IO, "disk is full");
    }
    for (int m = 0; m < NUM; m++) {
        const lg_status status = lgi_comm_wait(comm, &messages[m]);
        EXPECT(status == LG_OK || status == (rank == 1 ? LG_IO : LG_COMM));
        free(data[m]);
    }
}

static void a_failure_during_copies_leaves_memory_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        run_ranks(2, fails_during_copies);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_ends_all_ranks),
        cmocka_unit_test(who_waits_for_a_rank_that_has_left_fails),
        cmocka_unit_test(leaving_with_messages_under_way_is_a_failure),
        cmocka_unit_test(different_sizes_are_an_error_that_names_both),
        cmocka_unit_test(ranks_that_wait_for_each_other_time_out),
        cmocka_unit_test(a_rank_that_works_for_long_is_no_failure),
        cmocka_unit_test(a_failure_during_copies_leaves_memory_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
