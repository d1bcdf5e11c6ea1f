/*
 * Two lanes may run one prepared layer at a time, each on a micro-batch of its own; the results are the bits of one lane.
 * For every backend of this build and every case.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "unit/device/device_harness.h"

enum { NUM_RUNS = 8 };

static void *run_lane(void *user)
{
    device_session *session = user;
    for (int i = 0; i < NUM_RUNS; i++) {
        device_session_forward(session);
        if (session->c->mode == LG_GRAPH_TRAIN) {
            device_session_backward(session);
        }
    }
    return NULL;
}

static void assert_same_bytes(const void *a, const void *b, int64_t bytes)
{
    if (a != NULL && b != NULL && bytes > 0) {
        assert_memory_equal(a, b, (size_t)bytes);
    }
}

static void assert_same_results(const device_session *a, const device_session *b)
{
    assert_same_bytes(a->y, b->y, a->facts.out.bytes);
    for (int i = 0; i < a->c->num_inputs; i++) {
        assert_same_bytes(a->dx[i], b->dx[i], a->facts.in[i].bytes);
    }
    for (int i = 0; i < a->info->num_params; i++) {
        assert_same_bytes(a->dparam[i], b->dparam[i], a->facts.param[i].bytes);
    }
    assert_true(a->loss.loss_sum == b->loss.loss_sum);
    assert_int_equal(a->loss.num_correct, b->loss.num_correct);
}

/* `alone` runs its own layer by itself; `first` and `second` then share the layer of `first`. */
static void run_case(const device_case *c, const struct lgi_device_ops *ops, int width_idx)
{
    const device_options options = {.width_idx = width_idx};
    device_session alone;
    device_session first;
    device_session second;
    pthread_t thread;
    device_session_create(&alone, c, ops, &options);
    device_session_create(&first, c, ops, &options);
    device_session_create(&second, c, ops, &options);
    (void)run_lane(&alone);
    lgi_device_layer *own_layer = second.layer;
    second.layer = first.layer;
    assert_int_equal(pthread_create(&thread, NULL, run_lane, &second), 0);
    (void)run_lane(&first);
    assert_int_equal(pthread_join(thread, NULL), 0);
    second.layer = own_layer;
    assert_same_results(&first, &alone);
    assert_same_results(&second, &alone);
    device_session_destroy(&alone);
    device_session_destroy(&first);
    device_session_destroy(&second);
}

static void run_all(int width_idx)
{
    int num_cases = 0;
    const device_case *cases = device_cases(&num_cases);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        for (int i = 0; i < num_cases; i++) {
            run_case(&cases[i], *ops, width_idx);
        }
    }
}

static void lanes_of_one_core_share_a_layer(void **state)
{
    (void)state;
    run_all(0);
}

static void lanes_of_two_cores_share_a_layer(void **state)
{
    (void)state;
    run_all(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_of_one_core_share_a_layer),
        cmocka_unit_test(lanes_of_two_cores_share_a_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
