#include "exec/executor.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "exec/comm_lanes.h"

/* Looks at a counter this often before sleeping: some 100 us where each lane has its cores to itself, else next to
   nothing, because the awaited op may need this very core. */
#define SPINS_OWN_CORES 20000
#define SPINS_SHARED_CORES 64
#define MESSAGE_BYTES 1024

/* What the lanes do in one go: all entries of lane step `lane_step`, as far as their steps are in [first, last]. */
struct job {
    lgi_program *program;
    int64_t lane_step;
    int64_t last_step;
    lgi_trace *trace;
    int num_spins;
};

/* A thread that drives the lanes with these cores, one lane at a time. */
struct lane_thread {
    lgi_executor *executor;
    pthread_t thread;
    int first_core;
    int num_cores;
    int lane; /* of the current job; -1: none */
};

/*
 * States of a job: idle -> (run_job: generation + 1) running -> (last lane: num_running 0) idle. `mutex` guards generation,
 * num_running, is_stopping, the threads' `lane` and the failure. All communication lanes together count as one that runs;
 * while `is_comm_running`, `job` is theirs to read.
 */
struct lgi_executor {
    const lgi_hardware *hardware;
    lgi_device *device;
    lg_comm *comm; /* NULL: one rank */
    _Atomic bool is_comm_running;
    _Atomic int num_busy;         /* compute lanes that run an op */
    _Atomic int busy_op;          /* one that started last */
    _Atomic int64_t num_done;     /* ops that were run so far */
    lgi_activity told;            /* last; the communication thread's */
    struct lane_thread **threads; /* each its own block: threads hold pointers to them */
    size_t num_threads, threads_capacity;
    pthread_mutex_t mutex;
    pthread_cond_t started;
    pthread_cond_t finished;
    struct job job;
    uint64_t generation;
    int num_running;
    bool is_stopping;
    _Atomic bool has_failed;
    lg_status failure;
    char failure_message[MESSAGE_BYTES];
    _Atomic int num_sleepers;
};

/* --- events ------------------------------------------------------------------------------------------------------------ */

/* The half of a counter that a futex can watch. */
static uint32_t *low_half(_Atomic int64_t *counter)
{
    uint32_t *halves = (uint32_t *)(void *)counter;
    return &halves[__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 1];
}

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void wake_sleepers(lgi_executor *executor, _Atomic int64_t *counter)
{
    if (atomic_load(&executor->num_sleepers) > 0) {
        (void)syscall(SYS_futex, low_half(counter), FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

/* Waits until *counter >= step. A lane that sees a failure elsewhere goes on at once: its results no longer matter. */
static void wait_for(lgi_executor *executor, _Atomic int64_t *counter, int64_t step, int num_spins)
{
    for (int i = 0; i < num_spins; i++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= step) {
            return;
        }
        pause_core();
    }
    (void)atomic_fetch_add(&executor->num_sleepers, 1);
    if (executor->comm != NULL) {
        lgi_comm_wake(executor->comm); /* perhaps all lanes stand still now */
    }
    for (;;) {
        const int64_t seen = atomic_load(counter);
        if (seen >= step || atomic_load(&executor->has_failed)) {
            break;
        }
        /* The time limit only bounds the delay after a failure, whose lane may have nothing to wake. */
        const struct timespec limit = {0, 50 * 1000 * 1000};
        (void)syscall(SYS_futex, low_half(counter), FUTEX_WAIT_PRIVATE, (uint32_t)seen, &limit,
                      NULL, 0);
    }
    (void)atomic_fetch_sub(&executor->num_sleepers, 1);
}

/* --- lanes -------------------------------------------------------------------------------------------------------------- */

/* Keeps the first failure, with the calling thread's message. */
static void record_failure(lgi_executor *executor, lg_status status)
{
    (void)pthread_mutex_lock(&executor->mutex);
    if (!executor->has_failed) {
        executor->failure = status;
        (void)strncpy(executor->failure_message, lg_last_error(), MESSAGE_BYTES - 1);
        executor->has_failed = true;
    }
    (void)pthread_mutex_unlock(&executor->mutex);
}

/* An op failed here: the other ranks must hear of it. */
static void record_own_failure(lgi_executor *executor, lg_status status)
{
    record_failure(executor, status);
    if (executor->comm != NULL) {
        lgi_comm_fail(executor->comm, status, lg_last_error());
    }
}

/* An op has ended, or had nothing to do. */
static void mark_done(lgi_executor *executor, lgi_program *program, int op, int64_t step)
{
    atomic_store(&program->done[op], step);
    wake_sleepers(executor, &program->done[op]);
}

/* Whether the op of this step has something to do in this iteration. */
static bool has_work(lgi_executor *executor, const struct job *job, int64_t step)
{
    return step >= job->program->first_step && step <= job->last_step &&
           !atomic_load(&executor->has_failed);
}

static void run_entry(lgi_executor *executor, const struct job *job, int op, int64_t step)
{
    lgi_program *program = job->program;
    if (!has_work(executor, job, step)) {
        return;
    }
    if (job->trace != NULL) {
        job->trace->start_ns[op] = lgi_clock_ns();
    }
    atomic_store_explicit(&executor->busy_op, op, memory_order_relaxed);
    (void)atomic_fetch_add(&executor->num_busy, 1);
    const lg_status status = lgi_program_run_op(program, op, (int)(step & 1));
    (void)atomic_fetch_sub(&executor->num_busy, 1);
    (void)atomic_fetch_add_explicit(&executor->num_done, 1, memory_order_relaxed);
    if (status != LG_OK) {
        record_own_failure(
            executor,
            lgi_fail_prefix(status, "op '%s'", lg_graph_op(program->lowered->graph, op)->name));
    }
    if (job->trace != NULL) {
        job->trace->end_ns[op] = lgi_clock_ns();
    }
}

/*
 * All entries in their order, also those that have nothing to do in this lane step (lagging ones in the first step, all others
 * in a drain): they wait and report like the rest, so that the order that the plan was proved with holds.
 */
static void run_lane(lgi_executor *executor, const struct job *job,
                     const struct lgi_bound_lane *lane)
{
    lgi_program *program = job->program;
    for (int i = 0; i < lane->num_entries; i++) {
        const int op = lane->entries[i].op;
        const int64_t step = job->lane_step - lane->entries[i].lag;
        for (int k = lane->first_wait[i]; k < lane->first_wait[i + 1]; k++) {
            const lgi_wait *wait = &lane->waits[k];
            wait_for(executor, &program->done[wait->op], job->lane_step - wait->distance,
                     job->num_spins);
        }
        run_entry(executor, job, op, step);
        mark_done(executor, program, op, step);
        if (lgi_program_op(program, op)->wakes_comm) {
            lgi_comm_wake(executor->comm);
        }
    }
}

static void end_lane(lgi_executor *executor)
{
    if (--executor->num_running == 0) {
        (void)pthread_cond_signal(&executor->finished);
    }
}

/* --- communication lanes ------------------------------------------------------------------------------------------------- */

static bool comm_op_starts(void *user, int op, int64_t step)
{
    lgi_executor *executor = user;
    (void)op;
    return has_work(executor, &executor->job, step);
}

static void comm_op_ended(void *user, int op, int64_t step, uint64_t start_ns)
{
    lgi_executor *executor = user;
    lgi_trace *trace = executor->job.trace;
    if (trace != NULL && start_ns != 0) {
        trace->start_ns[op] = start_ns;
        trace->end_ns[op] = lgi_clock_ns();
    }
    (void)atomic_fetch_add_explicit(&executor->num_done, 1, memory_order_relaxed);
    mark_done(executor, executor->job.program, op, step);
}

/* Tells the other ranks what this one is doing, or whom it waits for with nothing else going on. `op`: -1: between steps. */
static void tell(lgi_executor *executor, int op, int waits_for_rank)
{
    lgi_activity *told = &executor->told;
    const uint64_t num_done = (uint64_t)atomic_load(&executor->num_done);
    const int64_t step = executor->job.lane_step;
    if (told->op == op && told->waits_for_rank == waits_for_rank && told->num_done == num_done &&
        told->step == step) {
        return;
    }
    told->step = step;
    told->op = op;
    told->waits_for_rank = waits_for_rank;
    told->num_done = num_done;
    told->text[0] = '\0';
    if (op >= 0) {
        const lg_graph *graph = executor->job.program->lowered->graph;
        (void)snprintf(told->text, sizeof told->text, "%s", lg_graph_op(graph, op)->name);
    }
    lgi_comm_tell(executor->comm, told);
}

/* What the lanes do when communication can go on no further for now. */
static lgi_drive tell_wait(lgi_executor *executor)
{
    const bool is_still = atomic_load(&executor->num_busy) == 0;
    int op = -1;
    int rank = -1;
    const bool is_under_way =
        lgi_comm_lanes_wait_for(executor->job.program->comm_states, &op, &rank);
    if (!is_still || !is_under_way) {
        tell(executor, atomic_load(&executor->busy_op), -1);
        return is_under_way ? LGI_DRIVE_SOON : LGI_DRIVE_IDLE;
    }
    tell(executor, op, rank);
    return lgi_hardware_is_crowded(executor->hardware) ? LGI_DRIVE_SOON : LGI_DRIVE_NOW;
}

/* Runs on the communication thread. */
static lgi_drive drive(void *user)
{
    lgi_executor *executor = user;
    const lgi_comm_hooks hooks = {comm_op_starts, comm_op_ended, executor};
    if (!atomic_load(&executor->is_comm_running)) {
        return LGI_DRIVE_IDLE;
    }
    if (lgi_comm_has_failed(executor->comm)) {
        record_failure(executor, lgi_comm_failure(executor->comm));
    }
    const lgi_progress progress =
        lgi_comm_lanes_advance(executor->job.program->comm_states, &hooks);
    if (progress == LGI_PROGRESS_MORE) {
        lgi_comm_wake(executor->comm); /* the next round comes at once */
        return LGI_DRIVE_SOON;
    }
    if (progress != LGI_PROGRESS_DONE) {
        return tell_wait(executor);
    }
    tell(executor, -1, -1);
    (void)pthread_mutex_lock(&executor->mutex);
    atomic_store(&executor->is_comm_running, false);
    end_lane(executor);
    (void)pthread_mutex_unlock(&executor->mutex);
    return LGI_DRIVE_IDLE;
}

/* --- compute lanes ---------------------------------------------------------------------------------------------------------- */

static void bind_team_thread(void *user, int thread_idx)
{
    const struct lane_thread *self = user;
    lgi_hardware_bind_thread(self->executor->hardware, self->first_core + thread_idx);
}

static void *lane_thread_main(void *argument)
{
    struct lane_thread *self = argument;
    lgi_executor *executor = self->executor;
    uint64_t seen_generation = 0;
    lgi_device *device = executor->device;
    bind_team_thread(self, 0);
    if (device->ops->start_lane != NULL) {
        device->ops->start_lane(device, self->num_cores, bind_team_thread, self);
    }
    (void)pthread_mutex_lock(&executor->mutex);
    while (!executor->is_stopping) {
        if (executor->generation == seen_generation) {
            (void)pthread_cond_wait(&executor->started, &executor->mutex);
            continue;
        }
        seen_generation = executor->generation;
        if (self->lane < 0) {
            continue;
        }
        const struct job job = executor->job;
        const struct lgi_bound_lane *lane = &job.program->lanes[self->lane];
        (void)pthread_mutex_unlock(&executor->mutex);
        run_lane(executor, &job, lane);
        (void)pthread_mutex_lock(&executor->mutex);
        end_lane(executor);
    }
    (void)pthread_mutex_unlock(&executor->mutex);
    return NULL;
}

/* --- threads -------------------------------------------------------------------------------------------------------------- */

static lg_status start_thread(lgi_executor *executor, int first_core, int num_cores,
                              struct lane_thread **out)
{
    struct lane_thread *thread = NULL;
    LG_TRY(lgi_grow(&executor->threads, &executor->threads_capacity, executor->num_threads + 1,
                    sizeof(void *)));
    LG_TRY(lgi_calloc(&thread, 1, sizeof *thread));
    thread->executor = executor;
    thread->first_core = first_core;
    thread->num_cores = num_cores;
    thread->lane = -1;
    const int error = pthread_create(&thread->thread, NULL, lane_thread_main, thread);
    if (error != 0) {
        lgi_free(thread);
        LG_FAIL(LG_DEVICE, "cannot start the thread of a lane on core %d: %s", first_core,
                strerror(error));
    }
    executor->threads[executor->num_threads++] = thread;
    *out = thread;
    return LG_OK;
}

/* Gives each lane of the program a thread of its own with the lane's cores. */
static lg_status assign_threads(lgi_executor *executor, const lgi_program *program)
{
    for (size_t i = 0; i < executor->num_threads; i++) {
        executor->threads[i]->lane = -1;
    }
    for (int lane = 0; lane < program->num_lanes; lane++) {
        const struct lgi_bound_lane *wanted = &program->lanes[lane];
        struct lane_thread *chosen = NULL;
        for (size_t i = 0; i < executor->num_threads && chosen == NULL; i++) {
            struct lane_thread *thread = executor->threads[i];
            if (thread->lane < 0 && thread->first_core == wanted->first_core &&
                thread->num_cores == wanted->num_cores) {
                chosen = thread;
            }
        }
        if (chosen == NULL) {
            LG_TRY(start_thread(executor, wanted->first_core, wanted->num_cores, &chosen));
        }
        chosen->lane = lane;
    }
    return LG_OK;
}

/* The communication thread needs a core, too: to spin on it would keep away what is waited for. */
static bool shares_cores(const lgi_executor *executor, const lgi_program *program)
{
    int num_cores = program->num_comm_lanes > 0 ? 1 : 0;
    for (int i = 0; i < program->num_lanes; i++) {
        num_cores += program->lanes[i].num_cores;
    }
    return num_cores > lgi_hardware_num_cores(executor->hardware);
}

static lg_status prepare_comm_lanes(lgi_executor *executor, lgi_program *program)
{
    if (program->num_comm_lanes == 0 || program->comm_states != NULL) {
        return LG_OK;
    }
    if (executor->comm == NULL) {
        LG_FAIL(LG_NOT_SUPPORTED, "the plan has messages, but there is no communicator");
    }
    return lgi_comm_lanes_create(&program->comm_states, executor->comm, program);
}

static lg_status run_job(lgi_executor *executor, const struct job *job)
{
    lg_status status = LG_OK;
    LG_TRY(prepare_comm_lanes(executor, job->program));
    const bool has_comm = job->program->num_comm_lanes > 0;
    if (has_comm) { /* again: links may have been measured. Not under the mutex, which drive() takes */
        lgi_comm_set_driver(executor->comm, drive, executor);
    }
    (void)pthread_mutex_lock(&executor->mutex);
    status = assign_threads(executor, job->program);
    if (status == LG_OK) {
        executor->job = *job;
        executor->job.num_spins =
            shares_cores(executor, job->program) ? SPINS_SHARED_CORES : SPINS_OWN_CORES;
        executor->has_failed = false;
        atomic_store(&executor->busy_op, -1);
        executor->num_running = job->program->num_lanes + (has_comm ? 1 : 0);
        executor->generation++;
        (void)pthread_cond_broadcast(&executor->started);
        if (has_comm) {
            lgi_comm_lanes_start(job->program->comm_states, job->lane_step);
            atomic_store(&executor->is_comm_running, true);
            lgi_comm_wake(executor->comm);
        }
        while (executor->num_running > 0) {
            (void)pthread_cond_wait(&executor->finished, &executor->mutex);
        }
        if (executor->has_failed) {
            status = lgi_fail_copy(executor->failure, executor->failure_message);
        }
    }
    (void)pthread_mutex_unlock(&executor->mutex);
    return status;
}

static void *leave(void *unused)
{
    (void)unused;
    pthread_exit(NULL);
}

/*
 * The C library loads what it needs to end a thread when the first one ends, and aborts the process if there is no memory for
 * it; libgomp ends its threads so. Better now than when memory has run out and a message is to be printed.
 */
static void load_unwinder(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, leave, NULL) == 0) {
        (void)pthread_join(thread, NULL);
    }
}

lg_status lgi_executor_create(lgi_executor **out, const lgi_hardware *hardware, lgi_device *device,
                              lg_comm *comm)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_unwinder);
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    (*out)->device = device;
    (*out)->hardware = hardware;
    (*out)->comm = comm;
    (void)pthread_mutex_init(&(*out)->mutex, NULL);
    (void)pthread_cond_init(&(*out)->started, NULL);
    (void)pthread_cond_init(&(*out)->finished, NULL);
    return LG_OK;
}

void lgi_executor_destroy(lgi_executor *executor)
{
    if (executor == NULL) {
        return;
    }
    if (executor->comm != NULL) {
        lgi_comm_set_driver(executor->comm, NULL, NULL);
    }
    (void)pthread_mutex_lock(&executor->mutex);
    executor->is_stopping = true;
    (void)pthread_cond_broadcast(&executor->started);
    (void)pthread_mutex_unlock(&executor->mutex);
    for (size_t i = 0; i < executor->num_threads; i++) {
        (void)pthread_join(executor->threads[i]->thread, NULL);
        lgi_free(executor->threads[i]);
    }
    lgi_free(executor->threads);
    (void)pthread_mutex_destroy(&executor->mutex);
    (void)pthread_cond_destroy(&executor->started);
    (void)pthread_cond_destroy(&executor->finished);
    lgi_free(executor);
}

/* --- steps ----------------------------------------------------------------------------------------------------------------- */

void lgi_program_seek(lgi_program *program, int64_t step)
{
    program->first_step = step;
    program->next_step = step;
    for (int i = 0; i < lg_graph_num_ops(program->lowered->graph); i++) {
        if (program->own_idx[i] >= 0) {
            atomic_store(&program->done[i], step - 1);
        }
    }
}

lg_status lgi_executor_step(lgi_executor *executor, lgi_program *program,
                            const lgi_step_input *input, lgi_trace *trace)
{
    const int64_t step = program->next_step;
    if (input->step.number != step) {
        LG_FAIL(LG_INTERNAL, "step %lld was asked for, but the program is at %lld",
                (long long)input->step.number, (long long)step);
    }
    lgi_program_set_input(program, input);
    const struct job job = {program, step, step, trace, 0};
    if (trace != NULL) {
        for (int i = 0; i < lg_graph_num_ops(program->lowered->graph); i++) {
            if (program->own_idx[i] >= 0) { /* others are never written */
                trace->start_ns[i] = 0;
                trace->end_ns[i] = 0;
            }
        }
        trace->begin_ns = lgi_clock_ns();
    }
    LG_TRY(run_job(executor, &job));
    if (trace != NULL) {
        trace->finish_ns = lgi_clock_ns();
    }
    program->next_step = step + 1;
    return LG_OK;
}

lg_status lgi_executor_drain(lgi_executor *executor, lgi_program *program)
{
    const int64_t step = program->next_step;
    if (program->has_lag && step > program->first_step) {
        program->first_step = step - 1;
        const struct job job = {program, step, step - 1, NULL, 0};
        LG_TRY(run_job(executor, &job));
    }
    lgi_program_seek(program, step);
    return LG_OK;
}
