/*
 * Invariant 1: at equal replicas and micro-batches a CNN with batch norm, a GPT with tied embeddings and a BERT train to one
 * hash, whatever the strategy and the pipeline (ranks_grid), here over ranks that are threads; tests/mpi has the same over
 * processes. Planned and measured peaks are equal on every rank (rf_train).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/exec/ranks_grid.h"

static void train(void *user, const rf_run *run, rf_result *result)
{
    (void)user;
    rf_train(run, result);
}

static void check_model(rf_model model)
{
    rg_grid grid = {.is_first = true, .reference = train, .train = train};
    rg_check_model(&grid, model);
    assert_true(grid.num_cases > 50);
    assert_int_equal(grid.num_wrong, 0);
}

static void cnn_has_the_same_bits(void **state)
{
    (void)state;
    check_model(RF_CNN);
}

static void gpt_has_the_same_bits(void **state)
{
    (void)state;
    check_model(RF_GPT);
}

static void bert_has_the_same_bits(void **state)
{
    (void)state;
    check_model(RF_BERT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cnn_has_the_same_bits),
        cmocka_unit_test(gpt_has_the_same_bits),
        cmocka_unit_test(bert_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
