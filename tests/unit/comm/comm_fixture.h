/* Ranks as threads, each running the same function. cmocka's asserts belong to the main thread: the others count mistakes. */
#ifndef LGT_UNIT_COMM_COMM_FIXTURE_H
#define LGT_UNIT_COMM_COMM_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "comm/collectives.h"
#include "comm/messages.h"

enum { MAX_TEST_RANKS = 16 };

extern _Atomic int num_mistakes;

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            (void)fprintf(stderr, "%s:%d: %s; %s\n", __FILE__, __LINE__, #condition, \
                          lg_last_error()); \
            (void)atomic_fetch_add(&num_mistakes, 1); \
        } \
    } while (0)

typedef struct rank_thread {
    lg_comm *comm;
    void (*body)(lg_comm *comm);
} rank_thread;

static inline void *run_rank_thread(void *context)
{
    rank_thread *thread = context;
    thread->body(thread->comm);
    lg_comm_destroy(thread->comm);
    return NULL;
}

/* Runs `body` on each rank; each then destroys its end. */
static inline void run_ranks(int num_ranks, void (*body)(lg_comm *comm))
{
    lg_comm *comms[MAX_TEST_RANKS] = {NULL};
    pthread_t threads[MAX_TEST_RANKS];
    rank_thread ranks[MAX_TEST_RANKS];
    atomic_store(&num_mistakes, 0);
    assert_int_equal(lg_comm_local_create(comms, num_ranks), LG_OK);
    for (int rank = 0; rank < num_ranks; rank++) {
        ranks[rank] = (rank_thread){comms[rank], body};
        assert_int_equal(pthread_create(&threads[rank], NULL, run_rank_thread, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        assert_int_equal(pthread_join(threads[rank], NULL), 0);
    }
    assert_int_equal(atomic_load(&num_mistakes), 0);
}

static inline void sleep_ms(int ms)
{
    const struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    (void)nanosleep(&time, NULL);
}

static inline lgi_message make_message(bool is_send, int peer, int channel, void *data,
                                       int64_t num_bytes)
{
    return (lgi_message){
        .is_send = is_send, .peer = peer, .channel = channel, .data = data, .num_bytes = num_bytes};
}

static inline unsigned char byte_at(int64_t i, int salt)
{
    return (unsigned char)((i * 131 + (i >> 8) * 7 + salt * 29) & 0xff);
}

static inline void fill(unsigned char *data, int64_t num_bytes, int salt)
{
    for (int64_t i = 0; i < num_bytes; i++) {
        data[i] = byte_at(i, salt);
    }
}

static inline bool is_filled(const unsigned char *data, int64_t num_bytes, int salt)
{
    for (int64_t i = 0; i < num_bytes; i++) {
        if (data[i] != byte_at(i, salt)) {
            return false;
        }
    }
    return true;
}

/* Bodies for two ranks: messages of all sizes, either side first; a counter that the drivers send to and fro. */
void receiver_is_late(lg_comm *comm);
void sender_is_late(lg_comm *comm);
void check_driver(lg_comm *comm);
/* For any number: all send to all, many messages at once; each collective with each root. */
void exchange_with_all(lg_comm *comm);
void check_collectives(lg_comm *comm);

#endif
