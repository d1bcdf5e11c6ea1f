/* How the ranks of a run stay together: words of rank 0, settling, failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "leapgrad/selftest.h"
#include "train/local_ranks.h"
#include "train/run_ranks.h"

#define NUM_RANKS 3
#define TIMEOUT_S 10.0
/* A wish takes the rounds until rank 0 looks at it, and one for the word. */
#define MAX_ROUNDS_TO_STOP 6

/* --- words ---------------------------------------------------------------------------------------------------------------- */

struct stop_case {
    int stopping_rank;
    int64_t stopped_at[NUM_RANKS];
    volatile sig_atomic_t flags[NUM_RANKS];
};

static lg_status go_until_stopped(lg_comm *comm, void *user)
{
    struct stop_case *const stop = user;
    const int rank = lg_comm_rank(comm);
    lgi_ranks ranks;
    lgi_word word = LGI_WORD_GO_ON;
    lg_status status = lgi_ranks_init(&ranks, comm, &stop->flags[rank]);
    int64_t round = 0;
    for (; status == LG_OK && word == LGI_WORD_GO_ON && round < 100; round++) {
        if (round == 10 && rank == stop->stopping_rank) {
            stop->flags[rank] = 1;
        }
        status = lgi_ranks_next_round(&ranks, false, &word);
    }
    stop->stopped_at[rank] = round;
    lgi_ranks_deinit(&ranks);
    return status;
}

static void stop_of_any_rank_stops_all_in_the_same_round(void **state)
{
    (void)state;
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        struct stop_case stop = {.stopping_rank = rank};
        assert_int_equal(lgi_run_local_ranks(NUM_RANKS, TIMEOUT_S, go_until_stopped, &stop), LG_OK);
        assert_true(stop.stopped_at[0] > 10);
        assert_true(stop.stopped_at[0] <= 10 + MAX_ROUNDS_TO_STOP);
        assert_int_equal(stop.stopped_at[1], stop.stopped_at[0]);
        assert_int_equal(stop.stopped_at[2], stop.stopped_at[0]);
    }
}

static lg_status fail_at_round_5(lg_comm *comm, void *user)
{
    lgi_word *const words = user;
    lgi_ranks ranks;
    lgi_word word = LGI_WORD_GO_ON;
    lg_status status = lgi_ranks_init(&ranks, comm, NULL);
    int64_t round = 0;
    for (; status == LG_OK && word == LGI_WORD_GO_ON && round < 100; round++) {
        status = lgi_ranks_next_round(&ranks, round >= 5 && lg_comm_rank(comm) == 0, &word);
    }
    words[lg_comm_rank(comm)] = word;
    if (status == LG_OK && round != 7) {
        status = lgi_fail(LG_INTERNAL, "ended after %lld rounds", (long long)round);
    }
    lgi_ranks_deinit(&ranks);
    return status;
}

static void failure_of_rank_0_is_known_to_all_one_round_later(void **state)
{
    lgi_word words[NUM_RANKS] = {LGI_WORD_GO_ON};
    (void)state;
    assert_int_equal(lgi_run_local_ranks(NUM_RANKS, TIMEOUT_S, fail_at_round_5, words), LG_OK);
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        assert_int_equal(words[rank], LGI_WORD_FAIL);
    }
}

static void alone_a_stop_counts_at_once(void **state)
{
    volatile sig_atomic_t flag = 0;
    lgi_ranks ranks;
    lgi_word word = LGI_WORD_FAIL;
    (void)state;
    assert_int_equal(lgi_ranks_init(&ranks, NULL, &flag), LG_OK);
    assert_int_equal(lgi_ranks_next_round(&ranks, false, &word), LG_OK);
    assert_int_equal(word, LGI_WORD_GO_ON);
    flag = 1;
    assert_int_equal(lgi_ranks_next_round(&ranks, false, &word), LG_OK);
    assert_int_equal(word, LGI_WORD_STOP);
    assert_int_equal(lgi_ranks_next_round(&ranks, true, &word), LG_OK);
    assert_int_equal(word, LGI_WORD_FAIL);
    lgi_ranks_deinit(&ranks);
}

/* --- settling --------------------------------------------------------------------------------------------------------------- */

struct settle_case {
    int failing_rank; /* -1: none */
    lg_status status[NUM_RANKS];
    char message[NUM_RANKS][256];
};

static lg_status settle(lg_comm *comm, void *user)
{
    struct settle_case *const result = user;
    const int rank = lg_comm_rank(comm);
    lgi_ranks ranks;
    LG_TRY(lgi_ranks_init(&ranks, comm, NULL));
    const lg_status own = rank == result->failing_rank ? lgi_fail(LG_IO, "cannot open 'x'") : LG_OK;
    result->status[rank] = lgi_ranks_settle(&ranks, own);
    (void)snprintf(result->message[rank], sizeof result->message[rank], "%s",
                   result->status[rank] != LG_OK ? lg_last_error() : "");
    const lg_status again = lgi_ranks_settle(&ranks, LG_OK); /* the communicator lives on */
    lgi_ranks_deinit(&ranks);
    return again;
}

static void all_ranks_get_the_failure_of_one(void **state)
{
    (void)state;
    for (int failing = -1; failing < NUM_RANKS; failing++) {
        struct settle_case result = {.failing_rank = failing};
        assert_int_equal(lgi_run_local_ranks(NUM_RANKS, TIMEOUT_S, settle, &result), LG_OK);
        for (int rank = 0; rank < NUM_RANKS; rank++) {
            char expected[64] = "";
            if (failing >= 0) {
                (void)snprintf(expected, sizeof expected, "rank %d: cannot open 'x'", failing);
            }
            assert_int_equal(result.status[rank], failing < 0 ? LG_OK : LG_IO);
            assert_string_equal(result.message[rank], failing == 0 || failing == rank
                                                          ? strstr(expected, "cannot")
                                                          : expected);
        }
    }
}

static lg_status fail_while_others_wait(lg_comm *comm, void *user)
{
    lgi_ranks ranks;
    (void)user;
    LG_TRY(lgi_ranks_init(&ranks, comm, NULL));
    lg_status status = lg_comm_rank(comm) == 1
                           ? lgi_ranks_fail(&ranks, lgi_fail(LG_OUT_OF_MEMORY, "no memory for y"))
                           : lgi_ranks_settle(&ranks, LG_OK);
    lgi_ranks_deinit(&ranks);
    return status;
}

static void rank_that_fails_inside_of_a_step_ends_the_others(void **state)
{
    (void)state;
    assert_int_equal(lgi_run_local_ranks(NUM_RANKS, TIMEOUT_S, fail_while_others_wait, NULL),
                     LG_COMM);
    assert_non_null(strstr(lg_last_error(), "rank 1: no memory for y"));
}

/* --- the self-test ------------------------------------------------------------------------------------------------------------ */

struct counts {
    int num_run;
    int num_same;
    int num_links;
};

static void count_case(void *user, const lg_selftest_case *result)
{
    struct counts *const counts = user;
    counts->num_run += result->was_run ? 1 : 0;
    counts->num_same += result->has_same_bits ? 1 : 0;
    assert_true(!result->was_run || result->measured_ns > 0.0);
}

static void count_links(void *user, const lg_links_report *links)
{
    struct counts *const counts = user;
    counts->num_links++;
    assert_int_equal(links->machine.num_ranks, 2);
    assert_true(links->intra_host.bytes_per_s > 0.0);
}

static void self_test_stops_when_asked(void **state)
{
    volatile sig_atomic_t flag = 1;
    struct counts counts = {0};
    lg_selftest_opts opts = lg_selftest_opts_default();
    (void)state;
    opts.device = "reference";
    opts.num_pipeline_ranks = 2;
    opts.should_stop = &flag;
    opts.on_case = count_case;
    opts.on_links = count_links;
    opts.user = &counts;
    assert_int_equal(lg_selftest(&opts), LG_INTERRUPTED);
    assert_int_equal(counts.num_links, 1);
    assert_true(counts.num_run <= 2);
    assert_int_equal(counts.num_run, counts.num_same);
}

static void self_test_refuses_pipelines_that_do_not_divide(void **state)
{
    lg_selftest_opts opts = lg_selftest_opts_default();
    (void)state;
    opts.num_pipeline_ranks = 3;
    assert_int_equal(lg_selftest(&opts), LG_INVALID_ARG);
    opts = lg_selftest_opts_default();
    opts.num_ranks = 1;
    assert_int_equal(lg_selftest(&opts), LG_INVALID_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_of_any_rank_stops_all_in_the_same_round),
        cmocka_unit_test(failure_of_rank_0_is_known_to_all_one_round_later),
        cmocka_unit_test(alone_a_stop_counts_at_once),
        cmocka_unit_test(all_ranks_get_the_failure_of_one),
        cmocka_unit_test(rank_that_fails_inside_of_a_step_ends_the_others),
        cmocka_unit_test(self_test_stops_when_asked),
        cmocka_unit_test(self_test_refuses_pipelines_that_do_not_divide)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
