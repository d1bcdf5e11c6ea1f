/*
 * Prefetch: one thread builds batches first_idx, first_idx + 1, ... into a few slots; the caller takes them in order.
 * Asking for a batch that is not on its way starts over from there.
 *
 * States of a slot, all changes under the mutex:
 *
 *     FREE -> BUILDING   thread, run()                     BUILDING -> READY  thread, run()
 *     READY -> HELD      caller, lgi_prefetch_get()        HELD -> FREE       caller, next lgi_prefetch_get()
 *     READY -> FREE      caller: passed over, or started over
 *     BUILDING -> FREE   thread: started over meanwhile (`generation` changed)
 *
 * With n batches ahead there are n + 1 slots. When the caller waits it holds none, so the thread always finds a free
 * one or the one that the caller waits for is on its way. A failure is a READY slot with a status and a message; once
 * handed over it is gone, so asking again starts over from there.
 */
#include "data/prefetch.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

#define MAX_MESSAGE_BYTES 512

typedef enum slot_state { FREE, BUILDING, READY, HELD } slot_state;

typedef struct prefetch_slot {
    lgi_batch_slot content;
    slot_state state;
    int64_t batch_idx;
    lg_status status; /* READY: of the build */
    char message[MAX_MESSAGE_BYTES];
} prefetch_slot;

struct lgi_prefetch {
    lgi_batch_builder *builder; /* the thread's */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t may_build;
    pthread_cond_t is_built;
    /* Under the mutex: */
    bool is_stopping;
    bool is_running;  /* something was asked for */
    int64_t next_idx; /* the batch to build next */
    uint64_t generation;
    int num_slots;
    prefetch_slot *slots;
};

static prefetch_slot *find_free(lgi_prefetch *prefetch)
{
    for (int i = 0; i < prefetch->num_slots; i++) {
        if (prefetch->slots[i].state == FREE) {
            return &prefetch->slots[i];
        }
    }
    return NULL;
}

/* The thread. */
static void *run(void *context)
{
    lgi_prefetch *prefetch = context;
    (void)pthread_mutex_lock(&prefetch->mutex);
    for (;;) {
        prefetch_slot *slot = NULL;
        while (!prefetch->is_stopping) {
            slot = prefetch->is_running ? find_free(prefetch) : NULL;
            if (slot != NULL) {
                break;
            }
            (void)pthread_cond_wait(&prefetch->may_build, &prefetch->mutex);
        }
        if (prefetch->is_stopping) {
            break;
        }
        const uint64_t generation = prefetch->generation;
        const int64_t batch_idx = prefetch->next_idx;
        slot->state = BUILDING;
        slot->batch_idx = batch_idx;
        (void)pthread_mutex_unlock(&prefetch->mutex);

        const lg_status status =
            lgi_batch_builder_build(prefetch->builder, batch_idx, &slot->content);

        (void)pthread_mutex_lock(&prefetch->mutex);
        if (prefetch->generation != generation) {
            slot->state = FREE;
            continue;
        }
        slot->state = READY;
        slot->status = status;
        prefetch->next_idx = batch_idx + 1;
        if (status != LG_OK) {
            (void)snprintf(slot->message, sizeof slot->message, "%s", lg_last_error());
        }
        (void)pthread_cond_signal(&prefetch->is_built);
    }
    (void)pthread_mutex_unlock(&prefetch->mutex);
    return NULL;
}

/* Signals (Ctrl-C) are for the threads of the program. */
static lg_status start_thread(lgi_prefetch *prefetch, int cpu)
{
    pthread_attr_t attr;
    sigset_t all;
    sigset_t old;
    int error = pthread_attr_init(&attr);
    if (error != 0) {
        LG_FAIL(LG_OUT_OF_MEMORY, "cannot start the prefetch thread: %s", strerror(error));
    }
    if (cpu >= 0) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET((size_t)cpu, &cpus);
        error = pthread_attr_setaffinity_np(&attr, sizeof cpus, &cpus);
    }
    if (error == 0) {
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &old);
        error = pthread_create(&prefetch->thread, &attr, run, prefetch);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    (void)pthread_attr_destroy(&attr);
    if (error == EINVAL && cpu >= 0) {
        LG_FAIL(LG_INVALID_ARG, "prefetch thread: CPU %d is not one this process may run on", cpu);
    }
    if (error != 0) {
        LG_FAIL(LG_OUT_OF_MEMORY, "cannot start the prefetch thread: %s", strerror(error));
    }
    return LG_OK;
}

lg_status lgi_prefetch_create(lgi_prefetch **out, lgi_batch_builder *builder, int num_batches,
                              int cpu)
{
    lg_status status = LG_OK;
    lgi_prefetch *prefetch = NULL;
    *out = NULL;
    LG_TRY_GOTO(lgi_calloc(&prefetch, 1, sizeof *prefetch));
    prefetch->builder = builder;
    prefetch->num_slots = num_batches + 1;
    LG_TRY_GOTO(lgi_calloc(&prefetch->slots, (size_t)prefetch->num_slots, sizeof *prefetch->slots));
    /* With default attributes these three do not fail on Linux. */
    (void)pthread_mutex_init(&prefetch->mutex, NULL);
    (void)pthread_cond_init(&prefetch->may_build, NULL);
    (void)pthread_cond_init(&prefetch->is_built, NULL);
    status = start_thread(prefetch, cpu);
    if (status == LG_OK) {
        *out = prefetch;
        return LG_OK;
    }
    (void)pthread_cond_destroy(&prefetch->is_built);
    (void)pthread_cond_destroy(&prefetch->may_build);
    (void)pthread_mutex_destroy(&prefetch->mutex);
out:
    if (prefetch != NULL) {
        lgi_free(prefetch->slots);
    }
    lgi_free(prefetch);
    return status;
}

void lgi_prefetch_destroy(lgi_prefetch *prefetch)
{
    if (prefetch == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&prefetch->mutex);
    prefetch->is_stopping = true;
    (void)pthread_cond_signal(&prefetch->may_build);
    (void)pthread_mutex_unlock(&prefetch->mutex);
    (void)pthread_join(prefetch->thread, NULL);
    (void)pthread_cond_destroy(&prefetch->is_built);
    (void)pthread_cond_destroy(&prefetch->may_build);
    (void)pthread_mutex_destroy(&prefetch->mutex);
    for (int i = 0; i < prefetch->num_slots; i++) {
        lgi_batch_slot_deinit(&prefetch->slots[i].content);
    }
    lgi_free(prefetch->slots);
    lgi_free(prefetch);
}

static prefetch_slot *find_ready(lgi_prefetch *prefetch, int64_t batch_idx)
{
    for (int i = 0; i < prefetch->num_slots; i++) {
        if (prefetch->slots[i].state == READY && prefetch->slots[i].batch_idx == batch_idx) {
            return &prefetch->slots[i];
        }
    }
    return NULL;
}

lg_status lgi_prefetch_get(lgi_prefetch *prefetch, int64_t batch_idx, const lg_batch **out)
{
    (void)pthread_mutex_lock(&prefetch->mutex);
    prefetch_slot *ready = find_ready(prefetch, batch_idx);
    const bool is_next =
        prefetch->is_running && batch_idx == prefetch->next_idx; /* or being built */
    const bool is_new = ready == NULL && !is_next;
    for (int i = 0; i < prefetch->num_slots; i++) {
        prefetch_slot *slot = &prefetch->slots[i];
        const bool is_unwanted = slot->state == READY && (is_new || slot->batch_idx < batch_idx);
        if (slot->state == HELD || is_unwanted) {
            slot->state = FREE;
        }
    }
    if (is_new) {
        prefetch->generation++;
        prefetch->next_idx = batch_idx;
        prefetch->is_running = true;
    }
    (void)pthread_cond_signal(&prefetch->may_build);
    while (ready == NULL) {
        (void)pthread_cond_wait(&prefetch->is_built, &prefetch->mutex);
        ready = find_ready(prefetch, batch_idx);
    }
    const lg_status status = ready->status;
    if (status != LG_OK) {
        (void)lgi_fail_copy(status, ready->message); /* before the thread may use the slot again */
    }
    ready->state = status == LG_OK ? HELD : FREE;
    (void)pthread_mutex_unlock(&prefetch->mutex);
    *out = status == LG_OK ? &ready->content.batch : NULL;
    return status;
}
