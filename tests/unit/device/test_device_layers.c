/* Every backend of this build computes what the reference in f64 computes, for each case, width and memory form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "unit/device/device_harness.h"

/*
 * Tolerances relative to a tensor's largest element. A rounding is off by at most the unit roundoff u. Elementwise work
 * has a handful of roundings (8 u); in a sum of K terms they add up like a random walk, sqrt(K) u, of which four
 * deviations are allowed. The f64 backends are read as f32, where one rounding is all that may differ.
 */
#define F32_UNIT_ROUNDOFF 0x1p-24
#define ELEMENTWISE_ROUNDINGS 8.0
#define SUM_DEVIATIONS 4.0

static double tolerance(const device_case *c, const struct lgi_device_ops *ops)
{
    if (ops->real_bytes == sizeof(double)) {
        return 2.0 * F32_UNIT_ROUNDOFF;
    }
    const double longest = (double)device_case_longest_sum(c);
    return F32_UNIT_ROUNDOFF * (ELEMENTWISE_ROUNDINGS + SUM_DEVIATIONS * sqrt(longest));
}

static const struct lgi_device_ops *oracle(void)
{
    const struct lgi_device_ops *ops = NULL;
    assert_int_equal(lgi_device_find(&ops, "reference-f64"), LG_OK);
    return ops;
}

/* Runs all cases on all backends but the oracle with these options; returns the number of wrong tensors. */
static int compare_all(const device_options *options, const char *label)
{
    int num_cases;
    int num_wrong = 0;
    const device_case *cases = device_cases(&num_cases);
    const device_options plain = {0};
    for (int i = 0; i < num_cases; i++) {
        device_result expected;
        device_case_run(&expected, &cases[i], oracle(), &plain);
        for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
            device_result actual;
            char text[128];
            (void)snprintf(text, sizeof text, "%s, %s", (*ops)->name, label);
            device_case_run(&actual, &cases[i], *ops, options);
            num_wrong += device_result_compare(&cases[i], text, &actual, &expected,
                                               tolerance(&cases[i], *ops));
            device_result_destroy(&actual);
        }
        device_result_destroy(&expected);
    }
    return num_wrong;
}

static void one_thread_computes_what_the_oracle_does(void **state)
{
    (void)state;
    const device_options options = {.width_idx = 0};
    assert_int_equal(compare_all(&options, "1 thread"), 0);
}

static void two_threads_compute_what_the_oracle_does(void **state)
{
    (void)state;
    const device_options options = {.width_idx = 1};
    assert_int_equal(compare_all(&options, "2 threads"), 0);
}

/* A step may run an op with one thread in one plan and with two in another: the bits are the same. */
static void the_number_of_threads_does_not_change_a_bit(void **state)
{
    (void)state;
    int num_cases;
    int num_different = 0;
    const device_case *cases = device_cases(&num_cases);
    const device_options one = {.width_idx = 0};
    const device_options two = {.width_idx = 1};
    for (int i = 0; i < num_cases; i++) {
        for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
            device_result a;
            device_result b;
            device_case_run(&a, &cases[i], *ops, &one);
            device_case_run(&b, &cases[i], *ops, &two);
            if (!device_result_is_same(&a, &b)) {
                print_error("%s, %s: the bits depend on the threads\n", (*ops)->name,
                            cases[i].name);
                num_different++;
            }
            device_result_destroy(&a);
            device_result_destroy(&b);
        }
    }
    assert_int_equal(num_different, 0);
}

static void results_in_the_memory_of_operands_are_the_same(void **state)
{
    (void)state;
    const device_options options = {.is_in_place = true};
    assert_int_equal(compare_all(&options, "in place"), 0);
}

static void maps_as_convolutions_leave_them_are_read_rightly(void **state)
{
    (void)state;
    const device_options options = {.has_conv_layouts = true};
    assert_int_equal(compare_all(&options, "layouts of convolutions"), 0);
    const device_options in_place = {.has_conv_layouts = true, .is_in_place = true};
    assert_int_equal(compare_all(&in_place, "layouts of convolutions, in place"), 0);
}

static void parameters_stored_for_another_micro_batch_size_are_taken(void **state)
{
    (void)state;
    const device_options options = {.has_params_of_other_size = true, .has_conv_layouts = true};
    assert_int_equal(compare_all(&options, "parameters of another size"), 0);
}

static void a_second_run_gives_the_same_bits(void **state)
{
    (void)state;
    int num_cases;
    const device_case *cases = device_cases(&num_cases);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        for (int i = 0; i < num_cases; i++) {
            const device_options options = {.width_idx = i % DEVICE_NUM_WIDTHS};
            device_result first;
            device_result second;
            device_case_run(&first, &cases[i], *ops, &options);
            device_case_run(&second, &cases[i], *ops, &options);
            if (!device_result_is_same(&first, &second)) {
                fail_msg("%s on %s: two runs differ", cases[i].name, (*ops)->name);
            }
            device_result_destroy(&first);
            device_result_destroy(&second);
        }
    }
}

/* The comparison itself must be able to fail. */
static void a_planted_error_is_found(void **state)
{
    (void)state;
    int num_cases;
    const device_case *cases = device_cases(&num_cases);
    const device_options plain = {0};
    device_result expected;
    device_result planted;
    device_case_run(&expected, &cases[1], oracle(), &plain);
    device_case_run(&planted, &cases[1], oracle(), &plain);
    const double limit = tolerance(&cases[1], &lgi_device_registry()[0][0]);
    assert_int_equal(device_result_compare(&cases[1], "planted", &planted, &expected, limit), 0);
    planted.dparam[0][3] += 1e-3f;
    planted.dx[0][0] = NAN;
    assert_int_equal(device_result_compare(&cases[1], "planted", &planted, &expected, limit), 2);
    device_result_destroy(&expected);
    device_result_destroy(&planted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_computes_what_the_oracle_does),
        cmocka_unit_test(two_threads_compute_what_the_oracle_does),
        cmocka_unit_test(the_number_of_threads_does_not_change_a_bit),
        cmocka_unit_test(results_in_the_memory_of_operands_are_the_same),
        cmocka_unit_test(maps_as_convolutions_leave_them_are_read_rightly),
        cmocka_unit_test(parameters_stored_for_another_micro_batch_size_are_taken),
        cmocka_unit_test(a_second_run_gives_the_same_bits),
        cmocka_unit_test(a_planted_error_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
