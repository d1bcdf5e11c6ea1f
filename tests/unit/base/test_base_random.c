/* Random numbers are a function of their key and counter alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/random.h"

/* Philox4x32-10 with key and counter zero: the known answer published with the generator. */
static void block_matches_the_published_known_answer(void **state)
{
    (void)state;
    const lgi_random random = {{0, 0}, {0, 0}};
    uint32_t block[4];
    lgi_random_block(&random, 0, block);
    assert_int_equal(block[0], 0x6627e8d5);
    assert_int_equal(block[1], 0xe169c58d);
    assert_int_equal(block[2], 0xbc57ac4c);
    assert_int_equal(block[3], 0x9b00dbd8);
}

static void streams_of_different_use_differ(void **state)
{
    (void)state;
    const lgi_random a = lgi_random_stream(1, LGI_RANDOM_INIT, 2, 3, 4);
    const lgi_random b = lgi_random_stream(1, LGI_RANDOM_DROPOUT, 2, 3, 4);
    assert_int_not_equal(lgi_random_u32(&a, 0), lgi_random_u32(&b, 0));
}

static void normal_numbers_have_mean_0_and_deviation_1(void **state)
{
    (void)state;
    enum { NUM = 100000 };
    const lgi_random random = lgi_random_stream(7, LGI_RANDOM_INIT, 0, 0, 0);
    double sum = 0.0;
    double sum_squares = 0.0;
    for (uint64_t i = 0; i < NUM; i++) {
        const double x = lgi_random_normal(&random, i);
        sum += x;
        sum_squares += x * x;
    }
    assert_true(fabs(sum / NUM) < 5.0 / sqrt(NUM)); /* five standard errors */
    assert_true(fabs(sum_squares / NUM - 1.0) < 5.0 * sqrt(2.0 / NUM));
}

static void below_stays_below_and_reaches_all(void **state)
{
    (void)state;
    const lgi_random random = lgi_random_stream(7, LGI_RANDOM_SHUFFLE, 0, 0, 0);
    int seen[5] = {0};
    for (uint64_t i = 0; i < 200; i++) {
        const uint64_t x = lgi_random_below(&random, i, 5);
        assert_true(x < 5);
        seen[x]++;
    }
    for (int i = 0; i < 5; i++) {
        assert_true(seen[i] > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_matches_the_published_known_answer),
        cmocka_unit_test(streams_of_different_use_differ),
        cmocka_unit_test(normal_numbers_have_mean_0_and_deviation_1),
        cmocka_unit_test(below_stays_below_and_reaches_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
