/*
 * Whatever the strategy and the number of pipeline ranks, the same bits: at equal replicas and micro-batches a CNN with batch norm,
 * a GPT with tied embeddings and a BERT train to one hash, over ranks that are threads. Planned and measured peaks are
 * equal on every rank (rf_train).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "leapgrad/plan.h"
#include "unit/train/ranks_fixture.h"

/* A sanitizer makes all of it slow, and sees what it can see in a part. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FIRST_M 2
#define LAST_M 2
#define LAST_P 2
#else
#define FIRST_M 1
#define LAST_M 3
#define LAST_P 3
#endif

static void expect_same(const rf_run *run, const rf_result *expected)
{
    static rf_result result;
    rf_train(run, &result);
    if (strcmp(result.hash, expected->hash) != 0) {
        fail_msg("%s: %s, expected %s", rf_describe(run), result.hash, expected->hash);
    }
    if (run->evaluates && memcmp(&result.sums, &expected->sums, sizeof result.sums) != 0) {
        fail_msg("%s: evaluates to %.17g, expected %.17g", rf_describe(run), result.sums.loss_sum,
                 expected->sums.loss_sum);
    }
    if (run->evaluates && memcmp(result.logits, expected->logits, sizeof result.logits) != 0) {
        fail_msg("%s: other logits", rf_describe(run));
    }
    if (result.last.loss != expected->last.loss) {
        fail_msg("%s: last loss %.17g, expected %.17g", rf_describe(run), result.last.loss,
                 expected->last.loss);
    }
}

static bool wants_v(const char *name)
{
    return strcmp(name, "zb-v") == 0 || strcmp(name, "dualpipe-v") == 0;
}

static bool wants_loop(const char *name)
{
    return strcmp(name, "interleaved") == 0 || strcmp(name, "breadth-first") == 0 ||
           strcmp(name, "modulo") == 0;
}

/* Every strategy of the table, each pipeline with one data-parallel half after the other. */
static void check_strategies(rf_run run, const rf_result *expected)
{
    static int turn;
    char both[64];
    const char *data[16];
    int num_data = 0;
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        if (lg_strategy_role_of(i) == LG_STRATEGY_DATA) {
            data[num_data++] = lg_strategy_name(i);
        }
    }
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        const char *const name = lg_strategy_name(i);
        const lg_strategy_role role = lg_strategy_role_of(i);
        const bool is_slow = strcmp(name, "auto") == 0 || strcmp(name, "out-of-order") == 0;
        if ((role == LG_STRATEGY_DATA && run.num_pipeline_ranks > 1) ||
            (is_slow && (run.num_micro_batches != 2 || run.num_pipeline_ranks != 2))) {
            continue;
        }
        run.is_v = wants_v(name);
        run.num_stages = (run.is_v || wants_loop(name) ? 2 : 1) * run.num_pipeline_ranks;
        run.strategy = name;
        if (role == LG_STRATEGY_PIPELINE) {
            (void)snprintf(both, sizeof both, "%s+%s", name, data[turn++ % num_data]);
            run.strategy = both;
        }
        run.evaluates = turn % 3 == 0;
        expect_same(&run, expected);
    }
}

static void check_grid(rf_model model)
{
    static const int64_t chunks[] = {0, 72, 4096, 20000};
    static const int64_t shares[] = {2000, 0, LG_SHARE_BY_LINKS, 1 << 20};
    static rf_result expected;
    for (int d = 1; d <= 2; d++) {
        for (int m = FIRST_M; m <= LAST_M; m++) {
            rf_run run = rf_run_default();
            run.model = model;
            run.num_replicas = d;
            run.num_micro_batches = m;
            run.evaluates = true;
            run.strategy = "in-order";
            rf_train(&run, &expected);
            for (int p = m == 2 ? 1 : 2; p <= LAST_P; p++) {
                run.num_pipeline_ranks = p;
                run.chunk_bytes = chunks[(m + p) % 4];
                run.share_bytes = shares[(m + 2 * p) % 4];
                check_strategies(run, &expected);
            }
        }
    }
}

static void cnn_has_the_same_bits(void **state)
{
    (void)state;
    check_grid(RF_CNN);
}

static void gpt_has_the_same_bits(void **state)
{
    (void)state;
    check_grid(RF_GPT);
}

static void bert_has_the_same_bits(void **state)
{
    (void)state;
    check_grid(RF_BERT);
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
