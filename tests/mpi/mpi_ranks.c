/*
 * What ranks of MPI do in tests: started by an MPI launcher as several processes, mpi_ranks CASE. Each rank prints what it found
 * wrong and ends with 1; otherwise with what the case says. tests/mpi/run_mpi.sh looks at what came out.
 */
#include "unit/comm/comm_fixture.h"

#include <signal.h>
#include <unistd.h>

#include "comm/mpi/comm_mpi.h"
#include "unit/exec/ranks_grid.h"

static void check(lg_comm *comm)
{
    const int rank = lg_comm_rank(comm);
    EXPECT(lg_comm_num_ranks(comm) >= 2);
    EXPECT(strstr(lg_comm_name(comm), "MPI") != NULL);
    EXPECT(lg_comm_num_host_ranks(comm) >= 1 &&
           lg_comm_host_rank(comm) < lg_comm_num_host_ranks(comm));
    if (lg_comm_num_ranks(comm) == 2) {
        receiver_is_late(comm);
        sender_is_late(comm);
        check_driver(comm);
    }
    exchange_with_all(comm);
    check_collectives(comm);
    if (lg_comm_num_ranks(comm) == 2) {
        lgi_comm_mpi_set_piece_bytes(4097); /* a size that is one piece, one that is many */
        EXPECT(lgi_comm_barrier(comm) == LG_OK);
        receiver_is_late(comm);
        sender_is_late(comm);
        EXPECT(lgi_comm_barrier(comm) == LG_OK);
        lgi_comm_mpi_set_piece_bytes(INT64_C(1) << 30);
        EXPECT(lgi_comm_set_far_link(comm, 1, rank == 0 ? 1e6 : 1e12) ==
               LG_OK); /* rank 0's counts */
        receiver_is_late(comm);
        sender_is_late(comm);
    }
    lg_comm *again = NULL;
    EXPECT(lg_comm_mpi_create(&again) == LG_NOT_SUPPORTED && again == NULL);
    EXPECT(lgi_comm_agree(comm, "the recipe", "a\n") == LG_OK);
    EXPECT(lgi_comm_agree(comm, "the recipe", rank == 1 ? "b\n" : "a\n") == LG_INVALID_ARG);
    EXPECT(strstr(lg_last_error(), "of rank 1 is not that of rank 0: line 1 is 'b'") != NULL);
    int64_t offset_ns = 1;
    EXPECT(lgi_comm_clock_offset(comm, &offset_ns) == LG_OK && offset_ns == 0);
    lgi_link_figures intra;
    lgi_link_figures inter;
    EXPECT(lgi_comm_measure_links(comm, 100000, &intra, &inter) == LG_OK);
    EXPECT(intra.ranks[0] == 0 && intra.latency_ns > 0 && intra.bytes_per_s > 1e6);
    /* Signs of life carry what a rank does. */
    const lgi_activity activity = {
        .step = 5 + rank, .op = 7, .waits_for_rank = -1, .num_done = 3, .text = "conv3"};
    lgi_comm_tell(comm, &activity);
    if (rank == 0) {
        lgi_activity told = {0};
        double age_s = 0;
        for (int i = 0; i < 500 && told.step != 6; i++) {
            sleep_ms(10);
            told = lgi_comm_told(comm, 1, &age_s);
        }
        EXPECT(told.step == 6 && strcmp(told.text, "conv3") == 0 && age_s < 5);
    }
    EXPECT(lgi_comm_barrier(comm) == LG_OK);
}

/* Waits for a message that never comes. */
static lg_status wait_in_vain(lg_comm *comm, int peer)
{
    char data[8];
    lgi_message message = make_message(false, peer, LGI_CHANNEL_PLAN, data, sizeof data);
    lgi_comm_post(comm, &message);
    return lgi_comm_wait(comm, &message);
}

static void tell_step(lg_comm *comm)
{
    const lgi_activity activity = {
        .step = 12, .op = 3, .waits_for_rank = -1, .num_done = 1, .text = "WEIGHT_GRAD conv3"};
    lgi_comm_tell(comm, &activity);
    EXPECT(lgi_comm_barrier(comm) == LG_OK);
    sleep_ms(1200); /* a sign of life or two */
}

/* All send to all, large and small, until rank 1 stands still, at some moment. */
static lg_status storm(lg_comm *comm)
{
    enum { NUM = 8 };
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
    const uint64_t end_ns = lgi_clock_ns() + 300000000 + (uint64_t)getpid() % 200 * 1000000;
    lg_status status = LG_OK;
    tell_step(comm);
    while (status == LG_OK) {
        lgi_message messages[MAX_TEST_RANKS * NUM * 2];
        unsigned char *data[MAX_TEST_RANKS * NUM * 2];
        int num = 0;
        for (int m = 0; m < num_ranks * NUM * 2; m++) {
            const int peer = m / 2 % num_ranks;
            const int64_t num_bytes = m / 2 / num_ranks % 2 == 0 ? 100 : 300000;
            data[num] = calloc(1, (size_t)num_bytes);
            messages[num] = make_message(m % 2 == 0, peer, m / 2 / num_ranks % LGI_NUM_CHANNELS,
                                         data[num], num_bytes);
            lgi_comm_post(comm, &messages[num++]);
            if (rank == 1 && lgi_clock_ns() > end_ns) {
                (void)raise(SIGSTOP);
            }
        }
        for (int m = 0; m < num; m++) {
            const lg_status one = lgi_comm_wait(comm, &messages[m]);
            status = status == LG_OK ? one : status;
            memset(data[m], 0x55, 100);
            free(data[m]);
        }
    }
    return status;
}

/* A child of rank 0 stops all ranks for longer than the timeout, as ^Z does, and lets them go on one after the other. */
static void pause_all(const int32_t *pids, int num_ranks)
{
    const pid_t child = fork();
    if (child != 0) {
        EXPECT(child > 0);
        return;
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        (void)kill(pids[rank], SIGSTOP);
    }
    sleep_ms(4000);
    for (int rank = 0; rank < num_ranks; rank++) {
        (void)kill(pids[rank], SIGCONT);
        sleep_ms(30);
    }
    _exit(0);
}

static void check_pause(lg_comm *comm)
{
    enum { NUM_PAUSES = 2 }; /* at different distances from a sign of life */
    int32_t pids[MAX_TEST_RANKS];
    const int32_t own = getpid();
    EXPECT(lgi_comm_all_gather(comm, &own, sizeof own, pids) == LG_OK);
    for (int i = 0; i < NUM_PAUSES; i++) {
        if (lg_comm_rank(comm) == 0) {
            sleep_ms(120 * i);
            pause_all(pids, lg_comm_num_ranks(comm));
        }
        sleep_ms(500); /* the pause has begun */
        const lg_status status = lgi_comm_barrier(comm);
        EXPECT(status == LG_OK);
        if (status != LG_OK) {
            (void)fprintf(stderr, "%s\n", lg_last_error());
            return;
        }
    }
}

/* --- the grid ----------------------------------------------------------------------------------------------------------- */

/* Rank 0's threads train; the others hear what it came to. */
static void train_on_threads(void *user, const rf_run *run, rf_result *result)
{
    lg_comm *comm = user;
    if (lg_comm_rank(comm) == 0) {
        rf_train(run, result);
    }
    EXPECT(lgi_comm_broadcast(comm, 0, result, sizeof *result) == LG_OK);
}

static void train_on_processes(void *user, const rf_run *run, rf_result *result)
{
    lg_comm *comm = user;
    rf_train_rank(run, comm, result);
    if (result->status != LG_OK) {
        (void)fprintf(stderr, "%s, rank %d: %s\n", rf_describe(run), lg_comm_rank(comm),
                      result->message);
        exit(1);
    }
}

/* All strategies on as many processes as there are have the bits of threads. */
static void check_grid(lg_comm *comm)
{
    rg_grid grid = {.num_ranks = lg_comm_num_ranks(comm),
                    .is_first = lg_comm_rank(comm) == 0,
                    .reference = train_on_threads,
                    .train = train_on_processes,
                    .user = comm};
    lg_comm_set_timeout(comm, 30); /* more processes than cores, perhaps under a sanitizer */
    for (int model = RF_CNN; model <= RF_BERT; model++) {
        rg_check_model(&grid, (rf_model)model);
    }
    EXPECT(grid.num_wrong == 0);
    if (grid.is_first) {
        (void)printf("%d cases, %d wrong\n", grid.num_cases, grid.num_wrong);
    }
}

/* --- failures ----------------------------------------------------------------------------------------------------------- */

/* A failure as a program meets it: says it in a line and ends with its status. */
static int report(lg_comm *comm, lg_status status)
{
    const int rank = lg_comm_rank(comm);
    (void)fprintf(stderr, "rank %d ends with %s: %s\n", rank, lg_status_name(status),
                  lg_last_error());
    lg_comm_destroy(comm);
    return lg_status_exit_code(status);
}

int main(int num_args, char **args)
{
    if (num_args != 2) {
        (void)fprintf(stderr, "usage: mpi_ranks CASE, by an MPI launcher\n");
        return 2;
    }
    const char *name = args[1];
    lg_comm *comm = NULL;
    if (!lg_comm_is_launched()) {
        (void)fprintf(stderr, "not launched by MPI as one of several\n");
        return 1;
    }
    if (lg_comm_mpi_create(&comm) != LG_OK) {
        (void)fprintf(stderr, "%s\n", lg_last_error());
        return 1;
    }
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
    lg_comm_set_timeout(comm, 3);
    void (*const body)(lg_comm *) = strcmp(name, "check") == 0   ? check
                                    : strcmp(name, "grid") == 0  ? check_grid
                                    : strcmp(name, "pause") == 0 ? check_pause
                                                                 : NULL;
    if (body != NULL) {
        body(comm);
        lg_comm_destroy(comm);
        if (rank == 0) {
            (void)printf("%d mistakes\n", atomic_load(&num_mistakes));
        }
        return atomic_load(&num_mistakes) == 0 ? 0 : 1;
    }
    if (strcmp(name, "silence") == 0 || strcmp(name, "death") == 0) {
        tell_step(comm);
        if (rank == 1) {
            (void)raise(name[0] == 's' ? SIGSTOP : SIGKILL);
        }
        return report(comm, wait_in_vain(comm, rank == 0 ? 1 : 0));
    }
    if (strcmp(name, "storm") == 0) {
        return report(comm, storm(comm));
    }
    if (strcmp(name, "failure") == 0) {
        if (rank == 1) {
            sleep_ms(100);
            lgi_comm_fail(comm, LG_OUT_OF_MEMORY, "no memory for 3 GB");
            return report(comm, lgi_comm_failure(comm));
        }
        return report(comm, wait_in_vain(comm, (rank + 1) % num_ranks));
    }
    if (strcmp(name, "leave") == 0) {
        if (rank == 1) {
            lg_comm_destroy(comm);
            return 1; /* MPICH's launcher ends with the status of whom it misses first */
        }
        return report(comm, wait_in_vain(comm, 1));
    }
    if (strcmp(name, "circle") == 0) {
        return report(comm, wait_in_vain(comm, (rank + 1) % num_ranks));
    }
    if (strcmp(name, "short") == 0 || strcmp(name, "long") == 0) {
        char data[64] = "";
        const int64_t num_bytes = rank == 1 ? 16 : name[0] == 's' ? 8 : 24;
        lgi_message message =
            make_message(rank == 0, 1 - rank % 2, LGI_CHANNEL_PLAN, data, num_bytes);
        if (rank < 2) {
            lgi_comm_post(comm, &message);
            EXPECT(lgi_comm_wait(comm, &message) != LG_OK || rank == 0); /* eager sends end */
        }
        return report(comm, wait_in_vain(comm, (rank + 1) % num_ranks));
    }
    (void)fprintf(stderr, "no case '%s'\n", name);
    return 2;
}
