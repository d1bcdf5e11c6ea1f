/* Memory of every backend of this build: counted, zeroed, aligned; and what happens when there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/alloc.h"
#include "unit/device/device_harness.h"

#define PAGE_BYTES 4096

static void peak_is_the_most_that_was_allocated_at_a_time(void **state)
{
    (void)state;
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        lgi_device *device = NULL;
        void *blocks[3] = {NULL, NULL, NULL};
        assert_int_equal((*ops)->open(&device, 1), LG_OK);
        const int64_t before = (*ops)->peak_bytes(device);
        assert_int_equal((*ops)->alloc(device, &blocks[0], 1000), LG_OK);
        assert_int_equal((*ops)->alloc(device, &blocks[1], 70000), LG_OK);
        assert_int_equal((*ops)->peak_bytes(device) - before, 71000);
        (*ops)->free(device, blocks[1], 70000);
        assert_int_equal((*ops)->alloc(device, &blocks[2], 69999), LG_OK);
        assert_int_equal((*ops)->peak_bytes(device) - before, 71000);
        (*ops)->free(device, blocks[0], 1000);
        assert_int_equal((*ops)->alloc(device, &blocks[0], 1002), LG_OK);
        assert_int_equal((*ops)->peak_bytes(device) - before, 71001);
        (*ops)->free(device, blocks[0], 1002);
        (*ops)->free(device, blocks[2], 69999);
        (*ops)->free(device, NULL, 0);
        assert_int_equal((*ops)->peak_bytes(device) - before, 71001);
        (*ops)->close(device);
    }
}

static void memory_is_aligned_and_zeroed_even_when_it_was_used_before(void **state)
{
    (void)state;
    enum { NUM_ELEMS = 5000 };
    static float host[NUM_ELEMS];
    const lg_shape shape = LG_SHAPE(NUM_ELEMS);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const int64_t bytes = NUM_ELEMS * (int64_t)(*ops)->real_bytes;
        lgi_device *device = NULL;
        assert_int_equal((*ops)->open(&device, 1), LG_OK);
        for (int round = 0; round < 4; round++) {
            void *memory = NULL;
            assert_int_equal((*ops)->alloc(device, &memory, bytes), LG_OK);
            assert_int_equal((uintptr_t)memory % PAGE_BYTES, 0);
            assert_int_equal((*ops)->read(device, &shape, 0, memory, host), LG_OK);
            for (int i = 0; i < NUM_ELEMS; i++) {
                assert_true(host[i] == 0.0f);
                host[i] = 1.0f;
            }
            assert_int_equal((*ops)->write(device, &shape, 0, memory, host), LG_OK);
            (*ops)->free(device, memory, bytes);
        }
        (*ops)->close(device);
    }
}

static void more_than_there_is_fails_and_names_the_bytes(void **state)
{
    (void)state;
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        lgi_device *device = NULL;
        void *memory = &device;
        assert_int_equal((*ops)->open(&device, 1), LG_OK);
        const int64_t before = (*ops)->peak_bytes(device);
        assert_int_equal((*ops)->alloc(device, &memory, (int64_t)1 << 60), LG_OUT_OF_MEMORY);
        assert_null(memory);
        assert_non_null(strstr(lg_last_error(), "1152921504606846976"));
        assert_int_equal((*ops)->peak_bytes(device), before);
        (*ops)->close(device);
    }
}

/* What a failing allocation leaves behind is for the leak checker; here: status, and NULL results. */
static void each_failing_allocation_is_reported(void **state)
{
    (void)state;
    const struct lgi_device_ops *ops = NULL;
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.input_shape = LG_SHAPE(2, 3);
    assert_int_equal(lgi_device_find(&ops, "reference"), LG_OK);
    assert_int_equal(lg_model_create(&model), LG_OK);
    assert_int_equal(lg_model_add(model, "x", LG_LAYER_INPUT, &attrs, NULL, 0, NULL), LG_OK);
    const lgi_layer_spec spec = {
        .layer = lg_model_layer(model, 0), .mode = LG_GRAPH_TRAIN, .num_samples = 1};
    int num_failures = 0;
    for (int64_t countdown = 1;; countdown++) {
        lgi_device *device = NULL;
        lgi_device_layer *layer = NULL;
        lgi_layer_facts facts;
        void *memory = NULL;
        lg_status status = LG_OK;
        lgi_alloc_fail_after(countdown);
        status = ops->open(&device, 1);
        if (status == LG_OK) {
            status = ops->layer_create(device, &spec, &facts, &layer);
        }
        if (status == LG_OK) {
            status = ops->alloc(device, &memory, 10);
        }
        lgi_alloc_fail_after(0);
        assert_true((status == LG_OK) == (device != NULL && layer != NULL && memory != NULL));
        if (device != NULL) {
            ops->free(device, memory, 10);
            ops->layer_destroy(layer);
            ops->close(device);
        }
        if (status == LG_OK) {
            break;
        }
        assert_int_equal(status, LG_OUT_OF_MEMORY);
        num_failures++;
    }
    assert_true(num_failures >= 4); /* device, layer, its name, the block */
    lg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peak_is_the_most_that_was_allocated_at_a_time),
        cmocka_unit_test(memory_is_aligned_and_zeroed_even_when_it_was_used_before),
        cmocka_unit_test(more_than_there_is_fails_and_names_the_bytes),
        cmocka_unit_test(each_failing_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
