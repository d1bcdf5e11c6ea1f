/* Prefetch: the same bits as without, clean ends, failures carried over, several loaders and threads at once. */
#include "unit/data/data_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

enum { COUNT = 29, NUM_BATCHES = 40 };

static lg_loader_opts make_opts(int prefetch_batches)
{
    lg_loader_opts opts = lg_loader_opts_default();
    opts.seed = 8;
    opts.batch_samples = 4;
    opts.prefetch_batches = prefetch_batches;
    opts.crop_pad_pixels = 1;
    opts.has_flip = true;
    return opts;
}

static void hash_batches(const lg_dataset *dataset, uint64_t hashes[NUM_BATCHES])
{
    const lg_loader_opts opts = make_opts(0);
    lg_loader *loader = make_loader(dataset, &opts);
    for (int64_t b = 0; b < NUM_BATCHES; b++) {
        hashes[b] = hash_batch(batch_of(loader, b));
    }
    lg_loader_destroy(loader);
}

static void batches_in_order_are_those_without_prefetch(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    uint64_t expected[NUM_BATCHES];
    hash_batches(dataset, expected);
    const int depths[] = {1, 2, 3, 64};
    for (int d = 0; d < 4; d++) {
        const lg_loader_opts opts = make_opts(depths[d]);
        lg_loader *loader = make_loader(dataset, &opts);
        for (int64_t b = 0; b < NUM_BATCHES; b++) {
            assert_true(hash_batch(batch_of(loader, b)) == expected[b]);
        }
        lg_loader_destroy(loader);
    }
    lg_dataset_destroy(dataset);
}

static void batches_in_any_order_are_those_without_prefetch(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    uint64_t expected[NUM_BATCHES];
    hash_batches(dataset, expected);
    const lgi_random random = lgi_random_stream(0, LGI_RANDOM_INIT, 1, 0, 0);
    for (int depth = 1; depth <= 3; depth++) {
        const lg_loader_opts opts = make_opts(depth);
        lg_loader *loader = make_loader(dataset, &opts);
        int64_t b = 0;
        for (uint64_t k = 0; k < 500; k++) {
            /* Mostly a small step on or back, at times anywhere. */
            const uint64_t jump = lgi_random_below(&random, 2 * k, 8);
            b = jump < 6 ? b + (int64_t)jump - 2
                         : (int64_t)lgi_random_below(&random, 2 * k + 1, NUM_BATCHES);
            b = b < 0 ? 0 : b >= NUM_BATCHES ? NUM_BATCHES - 1 : b;
            assert_true(hash_batch(batch_of(loader, b)) == expected[b]);
        }
        lg_loader_destroy(loader);
    }
    lg_dataset_destroy(dataset);
}

static void batch_stays_as_it_is_until_the_next_call(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    const lg_loader_opts opts = make_opts(2);
    lg_loader *loader = make_loader(dataset, &opts);
    for (int64_t b = 0; b < 5; b++) {
        const lg_batch *batch = batch_of(loader, b);
        const uint64_t before = hash_batch(batch);
        assert_int_equal(usleep(2000), 0); /* the thread fills the other slots meanwhile */
        assert_true(hash_batch(batch) == before);
    }
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

static void loader_can_be_destroyed_at_any_time(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    const lg_loader_opts opts = make_opts(3);
    for (int64_t k = 0; k < 60; k++) {
        lg_loader *loader = make_loader(dataset, &opts);
        for (int64_t b = 0; b < k % 4; b++) {
            (void)batch_of(loader, b + k);
        }
        lg_loader_destroy(loader);
    }
    lg_dataset_destroy(dataset);
}

static void waiting_thread_uses_no_processor_time(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    const lg_loader_opts opts = make_opts(3);
    lg_loader *loader = make_loader(dataset, &opts);
    (void)batch_of(loader, 0);
    assert_int_equal(usleep(20000), 0); /* the slots are full now */
    const clock_t before = clock();
    assert_int_equal(usleep(200000), 0);
    const double used_s = (double)(clock() - before) / CLOCKS_PER_SEC;
    assert_true(used_s < 0.1); /* a thread that spins would use 0.2 */
    lg_loader_destroy(loader);
    lg_dataset_destroy(dataset);
}

/* The n-th allocation fails, wherever it is: a clear status, and asking again works with the same bits. */
static void failing_allocations_are_carried_over_and_can_be_retried(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    uint64_t expected[NUM_BATCHES];
    hash_batches(dataset, expected);
    for (int depth = 0; depth <= 2; depth++) {
        const lg_loader_opts opts = make_opts(depth);
        int num_failed_creates = 0;
        int num_failed_gets = 0;
        for (int64_t n = 1; n <= 40; n++) {
            lg_loader *loader = NULL;
            lgi_alloc_fail_after(n);
            const lg_status created = lg_loader_create(&loader, dataset, &opts);
            if (created != LG_OK) {
                lgi_alloc_fail_after(0);
                assert_int_equal(created, LG_OUT_OF_MEMORY);
                assert_null(loader);
                num_failed_creates++;
                continue;
            }
            for (int64_t b = 0; b < 8; b++) {
                const lg_batch *batch = NULL;
                assert_int_equal(lg_loader_get(loader, -1, &batch), LG_INVALID_ARG);
                lg_status status =
                    lg_loader_get(loader, b, &batch); /* another message than above */
                if (status != LG_OK) {
                    assert_int_equal(status, LG_OUT_OF_MEMORY);
                    assert_null(batch);
                    assert_error_has("out of memory");
                    num_failed_gets++;
                    status = lg_loader_get(loader, b, &batch);
                }
                assert_int_equal(status, LG_OK);
                assert_true(hash_batch(batch) == expected[b]);
            }
            lgi_alloc_fail_after(0);
            lg_loader_destroy(loader);
        }
        assert_true(num_failed_creates >= 4);
        assert_true(num_failed_gets >= 3 + 2 * depth); /* order, image, and three per slot */
    }
    lg_dataset_destroy(dataset);
}

static void thread_may_be_put_on_a_processor(void **state)
{
    (void)state;
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    uint64_t expected[NUM_BATCHES];
    hash_batches(dataset, expected);
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    int allowed = 0;
    while (!CPU_ISSET((size_t)allowed, &cpus)) {
        allowed++;
    }
    lg_loader_opts opts = make_opts(2);
    opts.prefetch_cpu = allowed;
    lg_loader *loader = make_loader(dataset, &opts);
    assert_true(hash_batch(batch_of(loader, 5)) == expected[5]);
    lg_loader_destroy(loader);
    opts.prefetch_cpu = CPU_SETSIZE - 1;
    if (!CPU_ISSET(CPU_SETSIZE - 1, &cpus)) {
        assert_int_equal(lg_loader_create(&loader, dataset, &opts), LG_INVALID_ARG);
        assert_null(loader);
        assert_error_has("prefetch thread: CPU 1023");
    }
    lg_dataset_destroy(dataset);
}

typedef struct reader {
    pthread_t thread;
    const lg_dataset *dataset;
    const uint64_t *expected;
    int num_wrong;
} reader;

static void *read_batches(void *context)
{
    reader *self = context;
    for (int round = 0; round < 3; round++) {
        const lg_loader_opts opts = make_opts(round);
        lg_loader *loader = NULL;
        if (lg_loader_create(&loader, self->dataset, &opts) != LG_OK) {
            self->num_wrong++;
            continue;
        }
        for (int64_t b = 0; b < NUM_BATCHES; b++) {
            const lg_batch *batch = NULL;
            if (lg_loader_get(loader, b, &batch) != LG_OK ||
                hash_batch(batch) != self->expected[b]) {
                self->num_wrong++;
            }
        }
        lg_loader_destroy(loader);
    }
    return NULL;
}

static void one_dataset_serves_several_threads(void **state)
{
    (void)state;
    enum { NUM_READERS = 4 };
    lg_dataset *dataset = make_dataset(COUNT, 6, 5, 10);
    uint64_t expected[NUM_BATCHES];
    hash_batches(dataset, expected);
    reader readers[NUM_READERS];
    for (int i = 0; i < NUM_READERS; i++) {
        readers[i] = (reader){.dataset = dataset, .expected = expected};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_batches, &readers[i]), 0);
    }
    for (int i = 0; i < NUM_READERS; i++) {
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
        assert_int_equal(readers[i].num_wrong, 0);
    }
    lg_dataset_destroy(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_in_order_are_those_without_prefetch),
        cmocka_unit_test(batches_in_any_order_are_those_without_prefetch),
        cmocka_unit_test(batch_stays_as_it_is_until_the_next_call),
        cmocka_unit_test(loader_can_be_destroyed_at_any_time),
        cmocka_unit_test(waiting_thread_uses_no_processor_time),
        cmocka_unit_test(failing_allocations_are_carried_over_and_can_be_retried),
        cmocka_unit_test(thread_may_be_put_on_a_processor),
        cmocka_unit_test(one_dataset_serves_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
