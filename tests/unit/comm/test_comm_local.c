/* Messages between ranks of one process: what is sent arrives, in order, whoever posts first; collectives on top. */
#include "unit/comm/comm_fixture.h"

static const int64_t sizes[] = {0, 1, 3, 4097, 262144, 262145, 5000011};
enum { NUM_SIZES = sizeof sizes / sizeof sizes[0] };

static void send_each_size(lg_comm *comm, bool is_receiver_late)
{
    const int rank = lg_comm_rank(comm);
    const bool is_send = rank == 0;
    for (int s = 0; s < NUM_SIZES; s++) {
        unsigned char *data = malloc((size_t)sizes[s] + 1);
        if (is_send) {
            fill(data, sizes[s], s);
        }
        if (is_send != is_receiver_late) {
            sleep_ms(3);
        }
        lgi_message message = make_message(is_send, 1 - rank, s % LGI_NUM_CHANNELS, data, sizes[s]);
        lgi_comm_post(comm, &message);
        EXPECT(lgi_comm_wait(comm, &message) == LG_OK);
        EXPECT(lgi_message_is_done(&message) && !message.has_failed);
        EXPECT(is_filled(data, sizes[s], s));
        free(data);
    }
}

static void receiver_is_late(lg_comm *comm)
{
    send_each_size(comm, true);
}

static void sender_is_late(lg_comm *comm)
{
    send_each_size(comm, false);
}

static void all_sizes_arrive_whoever_posts_first(void **state)
{
    (void)state;
    run_ranks(2, receiver_is_late);
    run_ranks(2, sender_is_late);
}

enum { NUM_FLYING = 300 };

/* All ranks send to all, themselves too, many messages at once on all channels; receives are posted in another order. */
static void exchange_with_all(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
    const int num_messages = num_ranks * NUM_FLYING;
    lgi_message *sends = calloc((size_t)num_messages, sizeof *sends);
    lgi_message *receives = calloc((size_t)num_messages, sizeof *receives);
    int *sent = calloc((size_t)num_messages, sizeof *sent);
    int *received = calloc((size_t)num_messages, sizeof *received);
    for (int m = 0; m < num_messages; m++) {
        const int peer = m % num_ranks;
        sent[m] = rank * 1000000 + peer * 10000 + m / num_ranks;
        sends[m] =
            make_message(true, peer, m / num_ranks % LGI_NUM_CHANNELS, &sent[m], sizeof(int));
        lgi_comm_post(comm, &sends[m]);
    }
    for (int channel = LGI_NUM_CHANNELS - 1; channel >= 0; channel--) {
        for (int m = 0; m < num_messages; m++) {
            if (m / num_ranks % LGI_NUM_CHANNELS == channel) {
                receives[m] =
                    make_message(false, m % num_ranks, channel, &received[m], sizeof(int));
                lgi_comm_post(comm, &receives[m]);
            }
        }
    }
    for (int m = 0; m < num_messages; m++) {
        EXPECT(lgi_comm_wait(comm, &sends[m]) == LG_OK);
        EXPECT(lgi_comm_wait(comm, &receives[m]) == LG_OK);
        EXPECT(received[m] == m % num_ranks * 1000000 + rank * 10000 + m / num_ranks);
    }
    free(sends);
    free(receives);
    free(sent);
    free(received);
}

static void many_messages_in_flight_keep_their_order(void **state)
{
    (void)state;
    run_ranks(1, exchange_with_all);
    run_ranks(2, exchange_with_all);
    run_ranks(7, exchange_with_all);
}

static void check_collectives(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
    EXPECT(lg_comm_host_rank(comm) == rank && lg_comm_num_host_ranks(comm) == num_ranks);
    for (int root = 0; root < num_ranks; root++) {
        unsigned char data[1000];
        fill(data, sizeof data, rank);
        EXPECT(lgi_comm_broadcast(comm, root, data, sizeof data) == LG_OK);
        EXPECT(is_filled(data, sizeof data, root));
        int all[MAX_TEST_RANKS] = {0};
        const int own = rank * 10 + root;
        EXPECT(lgi_comm_gather(comm, root, &own, sizeof own, all) == LG_OK);
        for (int peer = 0; peer < num_ranks; peer++) {
            EXPECT(all[peer] == (rank == root ? peer * 10 + root : 0));
        }
        EXPECT(lgi_comm_all_gather(comm, &own, sizeof own, all) == LG_OK);
        for (int peer = 0; peer < num_ranks; peer++) {
            EXPECT(all[peer] == peer * 10 + root);
        }
    }
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

typedef struct relay {
    lg_comm *comm;
    lgi_message messages[2];
    int64_t counter;
    int num_hops;
    int wanted_hops;
    int phase; /* 0: to begin, 1: under way, 2: finished */
    bool is_first;
    _Atomic int has_finished;
} relay;

enum { NUM_RELAY_HOPS = 2000 };

/* A number goes round between two ranks, each adding 1, driven by the communication threads alone. */
static lgi_drive drive_relay(void *user)
{
    relay *r = user;
    const int peer = 1 - lg_comm_rank(r->comm);
    for (;;) {
        if (r->phase == 2) {
            return LGI_DRIVE_IDLE;
        }
        if (r->phase == 0) {
            const bool is_send = r->is_first;
            r->messages[0] =
                make_message(is_send, peer, LGI_CHANNEL_PLAN, &r->counter, sizeof r->counter);
            lgi_comm_post(r->comm, &r->messages[0]);
            r->phase = 1;
        }
        if (!lgi_message_is_done(&r->messages[0])) {
            return LGI_DRIVE_SOON;
        }
        if (!r->is_first) {
            r->counter++;
        }
        r->is_first = !r->is_first;
        r->phase = ++r->num_hops == r->wanted_hops ? 2 : 0;
        if (r->phase == 2) {
            atomic_store(&r->has_finished, 1);
        }
    }
}

static void check_driver(lg_comm *comm)
{
    relay r = {.comm = comm, .wanted_hops = NUM_RELAY_HOPS, .is_first = lg_comm_rank(comm) == 0};
    lgi_comm_set_driver(comm, drive_relay, &r);
    const uint64_t start_ns = lgi_clock_ns();
    while (!atomic_load(&r.has_finished) && lgi_clock_ns() - start_ns < 30000000000u) {
        sleep_ms(1);
    }
    lgi_comm_set_driver(comm, NULL, NULL);
    EXPECT(r.num_hops == NUM_RELAY_HOPS);
    /* Rank 0 receives in the last hop; rank 1 sent there what it had. */
    EXPECT(r.counter == NUM_RELAY_HOPS - lg_comm_rank(comm));
    EXPECT(lgi_comm_barrier(comm) == LG_OK);
}

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
