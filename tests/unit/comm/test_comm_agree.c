/* What ranks find out about each other: whether they have the same text, clocks, links, hosts. */
#include "unit/comm/comm_fixture.h"

static void all_have_the_same(lg_comm *comm)
{
    EXPECT(lgi_comm_agree(comm, "the recipe", "") == LG_OK);
    EXPECT(lgi_comm_agree(comm, "the recipe", "batch: 64\nseed: 1\n") == LG_OK);
}

static void equal_texts_agree(void **state)
{
    (void)state;
    run_ranks(1, all_have_the_same);
    run_ranks(7, all_have_the_same);
}

static void one_has_another_line(lg_comm *comm)
{
    const bool is_other = lg_comm_rank(comm) == 2;
    EXPECT(lgi_comm_agree(comm, "the recipe",
                          is_other ? "a: 1\nbatch: 64\n" : "a: 1\nbatch: 6\n") == LG_INVALID_ARG);
    EXPECT(strcmp(lg_last_error(), "the recipe of rank 2 is not that of rank 0: line 2 is "
                                   "'batch: 64', on rank 0 'batch: 6'") == 0);
    EXPECT(lgi_comm_agree(comm, "the plan", is_other ? "a\n" : "a\nb\n") == LG_INVALID_ARG);
    EXPECT(strcmp(lg_last_error(),
                  "the plan of rank 2 is not that of rank 0: line 2 is nothing, on rank 0 'b'") ==
           0);
    EXPECT(lgi_comm_agree(comm, "the data", is_other ? "a" : "a") == LG_OK);
}

static void the_first_difference_is_named_on_all_ranks(void **state)
{
    (void)state;
    run_ranks(4, one_has_another_line);
}

static void long_lines(lg_comm *comm)
{
    char text[5000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    text[sizeof text - 2] = (char)('0' + lg_comm_rank(comm));
    EXPECT(lgi_comm_agree(comm, "it", text) == LG_INVALID_ARG);
    EXPECT(strstr(lg_last_error(), "it of rank 1 is not that of rank 0: line 1 is 'xxx"));
}

static void long_lines_are_cut(void **state)
{
    (void)state;
    run_ranks(2, long_lines);
}

static void check_clock(lg_comm *comm)
{
    int64_t offset_ns = 1;
    EXPECT(lgi_comm_clock_offset(comm, &offset_ns) == LG_OK);
    EXPECT(offset_ns == 0);
}

static void threads_have_one_clock(void **state)
{
    (void)state;
    run_ranks(3, check_clock);
}

static void check_links(lg_comm *comm)
{
    lgi_link_figures intra;
    lgi_link_figures inter;
    EXPECT(lgi_comm_measure_links(comm, 300000, &intra, &inter) == LG_OK);
    EXPECT(intra.ranks[0] == 0 && intra.ranks[1] == 1);
    EXPECT(intra.latency_ns > 0 && intra.bytes_per_s > 1e6 && intra.both_bytes_per_s > 1e6);
    EXPECT(inter.ranks[0] == -1 && inter.ranks[1] == -1);
    lgi_link_figures all[MAX_TEST_RANKS];
    EXPECT(lgi_comm_all_gather(comm, &intra, sizeof intra, all) == LG_OK);
    EXPECT(memcmp(&all[0], &intra, sizeof intra) == 0);
}

static void all_ranks_get_the_same_figures_of_links(void **state)
{
    (void)state;
    run_ranks(3, check_links);
}

static void check_no_links(lg_comm *comm)
{
    lgi_link_figures intra;
    lgi_link_figures inter;
    EXPECT(lgi_comm_measure_links(comm, 1000, &intra, &inter) == LG_OK);
    EXPECT(intra.ranks[0] == -1 && inter.ranks[0] == -1);
}

static void a_rank_alone_has_no_links(void **state)
{
    (void)state;
    run_ranks(1, check_no_links);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_texts_agree),
        cmocka_unit_test(the_first_difference_is_named_on_all_ranks),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(threads_have_one_clock),
        cmocka_unit_test(all_ranks_get_the_same_figures_of_links),
        cmocka_unit_test(a_rank_alone_has_no_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
