/* What ranks of any communicator do in tests. */
#include "unit/comm/comm_fixture.h"

_Atomic int num_mistakes;

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

void receiver_is_late(lg_comm *comm)
{
    send_each_size(comm, true);
}

void sender_is_late(lg_comm *comm)
{
    send_each_size(comm, false);
}

enum { NUM_FLYING = 300 };

/* All ranks send to all, themselves too, many messages at once on all channels; receives are posted in another order. */
void exchange_with_all(lg_comm *comm)
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

void check_collectives(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
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

void check_driver(lg_comm *comm)
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
