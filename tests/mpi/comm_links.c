/*
 * Measures a communicator: latency and bandwidth by size of message, and how much of a core a communication thread
 * takes. Alone: two ranks as threads; under an MPI launcher: its ranks.
 *
 *     comm_links; mpirun.openmpi -n 2 comm_links; mpiexec.mpich -n 2 comm_links
 */
#include "unit/comm/comm_fixture.h"

#include "comm/transport.h"

#include <sched.h>
#include <unistd.h>

#define MEASURE_MS 1500

static void fail_on(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "%s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

/* --- links ---------------------------------------------------------------------------------------------------------------- */

static void measure_sizes(lg_comm *comm)
{
    if (lg_comm_rank(comm) == 0) {
        (void)printf("%s, %d ranks\n%10s %12s %12s %12s\n", lg_comm_name(comm),
                     lg_comm_num_ranks(comm), "bytes", "latency us", "MB/s", "MB/s both");
    }
    for (int64_t num_bytes = 4096; num_bytes <= 64 << 20; num_bytes *= 4) {
        lgi_link_figures figures;
        fail_on(lgi_comm_measure_link(comm, 0, 1, num_bytes, &figures));
        if (lg_comm_rank(comm) == 0) {
            (void)printf("%10lld %12.1f %12.0f %12.0f\n", (long long)num_bytes,
                         figures.latency_ns * 1e-3, figures.bytes_per_s * 1e-6,
                         figures.both_bytes_per_s * 1e-6);
        }
    }
}

/* --- computing beside it ------------------------------------------------------------------------------------------------------ */

/* Time on a core that the communication thread has had. */
static double comm_cpu_ns(lg_comm *comm)
{
    clockid_t clock;
    struct timespec time = {0, 0};
    if (pthread_getcpuclockid(comm->thread, &clock) != 0 || clock_gettime(clock, &time) != 0) {
        return 0;
    }
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

typedef enum traffic { NO_TRAFFIC, PENDING, STREAM, NUM_TRAFFICS } traffic;

enum { STREAM_MESSAGES = 4, STREAM_BYTES = 262144 };

typedef struct stream {
    lg_comm *comm;
    lgi_message sends[STREAM_MESSAGES];
    lgi_message receives[STREAM_MESSAGES];
    _Atomic bool is_ending;
    bool is_under_way;
    uint64_t next_ns;
    int64_t num_rounds;
    _Atomic int has_ended;
} stream;

static unsigned char stream_data[2][2][STREAM_MESSAGES][STREAM_BYTES];

/* A MiB each way every 10 ms, both ranks for as long as rank 0 wants; what it wants is in the first byte. */
static lgi_drive drive_stream(void *user)
{
    stream *s = user;
    const int rank = lg_comm_rank(s->comm);
    if (atomic_load(&s->has_ended)) {
        return LGI_DRIVE_IDLE;
    }
    for (;;) {
        if (s->is_under_way) {
            for (int m = 0; m < STREAM_MESSAGES; m++) {
                if (!lgi_message_is_done(&s->sends[m]) || !lgi_message_is_done(&s->receives[m])) {
                    return LGI_DRIVE_SOON;
                }
            }
            s->is_under_way = false;
            s->num_rounds++;
            const int decider = rank == 0 ? 0 : 1;
            if (stream_data[rank][decider][0][0] == 1) {
                atomic_store(&s->has_ended, 1);
                return LGI_DRIVE_IDLE;
            }
        }
        const uint64_t now_ns = lgi_clock_ns();
        if (now_ns < s->next_ns) {
            return LGI_DRIVE_SOON;
        }
        s->next_ns = now_ns + 10000000;
        stream_data[rank][0][0][0] = atomic_load(&s->is_ending);
        for (int m = 0; m < STREAM_MESSAGES; m++) {
            s->receives[m] = make_message(false, 1 - rank, LGI_CHANNEL_PLAN,
                                          stream_data[rank][1][m], STREAM_BYTES);
            lgi_comm_post(s->comm, &s->receives[m]);
            s->sends[m] = make_message(true, 1 - rank, LGI_CHANNEL_PLAN, stream_data[rank][0][m],
                                       STREAM_BYTES);
            lgi_comm_post(s->comm, &s->sends[m]);
        }
        s->is_under_way = true;
    }
}

static double measure_share(lg_comm *comm, traffic kind)
{
    const int rank = lg_comm_rank(comm);
    char data[8] = "";
    lgi_message pending = make_message(rank == 1, 1 - rank, LGI_CHANNEL_STEP, data, sizeof data);
    static stream streams[2];
    stream *s = &streams[rank];
    memset(s, 0, sizeof *s);
    s->comm = comm;
    memset(stream_data[rank], 0, sizeof stream_data[rank]);
    fail_on(lgi_comm_barrier(comm));
    sleep_ms(100);
    if (kind == PENDING && rank == 0) {
        lgi_comm_post(comm, &pending);
    }
    if (kind == STREAM) {
        lgi_comm_set_driver(comm, drive_stream, s);
    }
    const uint64_t start_ns = lgi_clock_ns();
    const double start_cpu_ns = comm_cpu_ns(comm);
    sleep_ms(MEASURE_MS);
    const double share = (comm_cpu_ns(comm) - start_cpu_ns) / (double)(lgi_clock_ns() - start_ns);
    if (kind == PENDING) {
        if (rank == 1) {
            lgi_comm_post(comm, &pending);
        }
        fail_on(lgi_comm_wait(comm, &pending));
    }
    if (kind == STREAM) {
        atomic_store(&s->is_ending, true);
        while (!atomic_load(&s->has_ended)) {
            sleep_ms(1);
        }
        lgi_comm_set_driver(comm, NULL, NULL);
    }
    fail_on(lgi_comm_barrier(comm));
    return share;
}

static void measure_shares(lg_comm *comm)
{
    static const char *const names[NUM_TRAFFICS] = {"nothing under way", "a receive that is late",
                                                    "1 MiB each way every 10 ms"};
    for (int kind = 0; kind < NUM_TRAFFICS; kind++) {
        const double share = measure_share(comm, (traffic)kind);
        double all[2];
        fail_on(lgi_comm_all_gather(comm, &share, sizeof share, all));
        if (lg_comm_rank(comm) == 0) {
            (void)printf("communication thread, %-28s: %5.2f %% and %5.2f %% of a core\n",
                         names[kind], all[0] * 100, all[1] * 100);
        }
    }
}

static void *run_rank(void *context)
{
    lg_comm *comm = context;
    /* One core each, as compute lanes have. */
    const long num_cores = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET((size_t)(lg_comm_rank(comm) % num_cores), &core);
    (void)sched_setaffinity(0, sizeof core, &core);
    measure_sizes(comm);
    if (lg_comm_num_ranks(comm) == 2) {
        measure_shares(comm);
    }
    lg_comm_destroy(comm);
    return NULL;
}

int main(void)
{
    if (lg_comm_is_launched()) {
        lg_comm *comm = NULL;
        fail_on(lg_comm_mpi_create(&comm));
        (void)run_rank(comm);
        return 0;
    }
    lg_comm *comms[2];
    fail_on(lg_comm_local_create(comms, 2));
    pthread_t threads[2];
    for (int rank = 0; rank < 2; rank++) {
        if (pthread_create(&threads[rank], NULL, run_rank, comms[rank]) != 0) {
            return 1;
        }
    }
    for (int rank = 0; rank < 2; rank++) {
        (void)pthread_join(threads[rank], NULL);
    }
    return 0;
}
