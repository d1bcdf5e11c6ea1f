#include "smpi_threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <simgrid/semaphore.h>

/* The clock starts here, not at 0, which some code takes for "never". */
#define FIRST_SECOND 1000.0
#define NUM_BUCKETS 1024

/* --- variables of threads ------------------------------------------------------------------------------------------------ */

/* What a compiler with -femulated-tls makes of a variable. */
typedef struct thread_variable {
    size_t num_bytes;
    size_t alignment;
    uintptr_t number;    /* ours, from 1; 0: not seen yet */
    const void *initial; /* NULL: zeros */
} thread_variable;

void *__emutls_get_address(thread_variable *variable);

/* Each actor's own. Looked for before the compiler's library, whose variables would be those of the one real thread. */
void *__emutls_get_address(thread_variable *variable)
{
    enum { MAX_VARIABLES = 64 };
    static void *(*tables)[MAX_VARIABLES]; /* by number of the actor */
    static size_t num_tables;
    static uintptr_t num_variables;
    const size_t actor = sg_actor_self() != NULL ? (size_t)sg_actor_self_get_pid() : 0;
    if (variable->number == 0) {
        variable->number = ++num_variables;
    }
    if (actor >= num_tables) {
        const size_t wanted = 2 * actor + 64;
        tables = realloc(tables, wanted * sizeof *tables);
        if (tables == NULL) {
            abort();
        }
        memset(tables + num_tables, 0, (wanted - num_tables) * sizeof *tables);
        num_tables = wanted;
    }
    if (variable->number >= MAX_VARIABLES) {
        abort();
    }
    void **const own = &tables[actor][variable->number];
    if (*own == NULL) {
        *own = calloc(1, variable->num_bytes + variable->alignment); /* calloc aligns well enough */
        if (*own == NULL) {
            abort();
        }
        if (variable->initial != NULL) {
            memcpy(*own, variable->initial, variable->num_bytes);
        }
    }
    return *own;
}

/* --- waiting for a word of memory ------------------------------------------------------------------------------------- */

/* An actor that waits; on its own stack. */
typedef struct waiter {
    const void *address;
    sg_sem_t semaphore;
    bool is_woken;
    struct waiter *next;
} waiter;

static waiter *buckets[NUM_BUCKETS];
static _Thread_local sg_sem_t own_semaphore;

static waiter **bucket_of(const void *address)
{
    return &buckets[((uintptr_t)address >> 2) % NUM_BUCKETS];
}

/* Returns false if the time (seconds; negative: no limit) was up first. */
static bool wait_at(const void *address, double seconds)
{
    if (own_semaphore == NULL) {
        own_semaphore = sg_sem_init(0);
    }
    waiter self = {.address = address, .semaphore = own_semaphore};
    waiter **const bucket = bucket_of(address);
    self.next = *bucket;
    *bucket = &self;
    if (seconds < 0.0) {
        sg_sem_acquire(own_semaphore);
    } else if (sg_sem_acquire_timeout(own_semaphore, seconds) != 0 && self.is_woken) {
        sg_sem_acquire(own_semaphore); /* woken just when time was up */
    }
    for (waiter **w = bucket; *w != NULL; w = &(*w)->next) {
        if (*w == &self) {
            *w = self.next;
            break;
        }
    }
    return self.is_woken;
}

static void wake_at(const void *address)
{
    waiter **w = bucket_of(address);
    waiter *woken = NULL;
    while (*w != NULL) {
        waiter *const found = *w;
        if (found->address == address) {
            *w = found->next;
            found->next = woken;
            woken = found;
        } else {
            w = &found->next;
        }
    }
    while (woken != NULL) { /* a release may let others run, even end the one that was released */
        waiter *const found = woken;
        woken = found->next;
        found->next = NULL;
        found->is_woken = true;
        sg_sem_release(found->semaphore);
    }
}

double smpi_now(void)
{
    return simgrid_get_clock();
}

/* --- threads ---------------------------------------------------------------------------------------------------------- */

typedef struct thread {
    void *(*run)(void *argument);
    void *argument;
    void *result;
    bool has_ended;
    smpi_rank *rank;
} thread;

struct smpi_rank {
    void (*program)(void *user);
    void *user;
    bool adopts_next;
    thread *adopted; /* what the first actor runs */
    bool has_program_ended;
};

static _Thread_local thread *own_thread;
static _Thread_local smpi_rank *own_rank;

static void run_thread(thread *self)
{
    own_thread = self;
    own_rank = self->rank;
    self->result = self->run(self->argument);
    self->has_ended = true;
    wake_at(self);
}

static void thread_actor(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    run_thread(sg_actor_self_get_data());
}

static void start_actor(void (*code)(int argc, char **argv), void *data)
{
    static const char *const argv[] = {"thread", NULL};
    const sg_actor_t actor = sg_actor_init("thread", sg_host_self());
    sg_actor_set_data(actor, data);
    sg_actor_start_(actor, code, 1, argv);
}

void smpi_adopt_next_thread(void)
{
    own_rank->adopts_next = true;
}

static void program_actor(int argc, char **argv)
{
    smpi_rank *const rank = sg_actor_self_get_data();
    (void)argc;
    (void)argv;
    own_rank = rank;
    rank->program(rank->user);
    rank->has_program_ended = true;
    wake_at(rank);
}

void smpi_rank_run(void (*program)(void *user), void *user)
{
    smpi_rank rank = {.program = program, .user = user};
    start_actor(program_actor, &rank);
    while (!rank.has_program_ended || rank.adopted != NULL) {
        if (rank.adopted == NULL) {
            (void)wait_at(&rank, -1.0);
            continue;
        }
        thread *const adopted = rank.adopted;
        run_thread(adopted);
        rank.adopted = NULL;
    }
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *),
                          void *argument)
{
    thread *const t = calloc(1, sizeof *t);
    (void)attr;
    if (t == NULL) {
        return EAGAIN;
    }
    t->run = run;
    t->argument = argument;
    t->rank = own_rank;
    *out = (pthread_t)(uintptr_t)t;
    if (own_rank->adopts_next) {
        own_rank->adopts_next = false;
        own_rank->adopted = t;
        wake_at(own_rank);
    } else {
        start_actor(thread_actor, t);
    }
    return 0;
}

int __wrap_pthread_join(pthread_t joined, void **result);
int __wrap_pthread_join(pthread_t joined, void **result)
{
    thread *const t = (thread *)(uintptr_t)joined;
    while (!t->has_ended) {
        (void)wait_at(t, -1.0);
    }
    if (result != NULL) {
        *result = t->result;
    }
    free(t);
    return 0;
}

int __wrap_pthread_detach(pthread_t detached);
int __wrap_pthread_detach(pthread_t detached)
{
    (void)detached;
    return 0;
}

void __wrap_pthread_exit(void *result);
void __wrap_pthread_exit(void *result)
{
    own_thread->result = result;
    own_thread->has_ended = true;
    wake_at(own_thread);
    sg_actor_exit();
}

int __wrap_pthread_once(pthread_once_t *once, void (*run)(void));
int __wrap_pthread_once(pthread_once_t *once, void (*run)(void))
{
    if (*(int *)once == 0) {
        *(int *)once = 1;
        run();
    }
    return 0;
}

int __wrap_pthread_setschedparam(pthread_t named, int policy, const struct sched_param *param);
int __wrap_pthread_setschedparam(pthread_t named, int policy, const struct sched_param *param)
{
    (void)named;
    (void)policy;
    (void)param;
    return EPERM; /* the thread is all of the simulation */
}

int __wrap_pthread_setname_np(pthread_t named, const char *name);
int __wrap_pthread_setname_np(pthread_t named, const char *name)
{
    (void)named;
    (void)name;
    return 0;
}

/* --- locks: a word that says whether it is held, in the lock's own memory ----------------------------------------------------- */

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
    (void)attr;
    memset(mutex, 0, sizeof *mutex);
    return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    (void)mutex;
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int *const is_held = (int *)(void *)mutex;
    while (*is_held != 0) {
        (void)wait_at(mutex, -1.0);
    }
    *is_held = 1;
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    int *const is_held = (int *)(void *)mutex;
    if (*is_held != 0) {
        return EBUSY;
    }
    *is_held = 1;
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    *(int *)(void *)mutex = 0;
    wake_at(mutex);
    return 0;
}

/* --- conditions: a word that counts signals ----------------------------------------------------------------------------------- */

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
    (void)attr;
    memset(cond, 0, sizeof *cond);
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
    (void)cond;
    return 0;
}

static int wait_cond(pthread_cond_t *cond, pthread_mutex_t *mutex, double seconds)
{
    const int *const count = (const int *)(const void *)cond;
    const int seen = *count;
    bool is_woken = true;
    (void)__wrap_pthread_mutex_unlock(mutex);
    if (*count == seen) {
        is_woken = wait_at(cond, seconds);
    }
    (void)__wrap_pthread_mutex_lock(mutex);
    return is_woken ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    return wait_cond(cond, mutex, -1.0);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *end);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *end)
{
    const double left_s =
        (double)end->tv_sec + 1e-9 * (double)end->tv_nsec - FIRST_SECOND - smpi_now();
    return wait_cond(cond, mutex, left_s > 0.0 ? left_s : 0.0);
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    ++*(int *)(void *)cond;
    wake_at(cond);
    return 0;
}

/* Wakes all: whoever waits looks again. */
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    return __wrap_pthread_cond_broadcast(cond);
}

/* --- futexes and clocks --------------------------------------------------------------------------------------------------- */

static double seconds_of(const struct timespec *t)
{
    return (double)t->tv_sec + 1e-9 * (double)t->tv_nsec;
}

static double least_wait_s;
static double most_wait_s; /* 0: any */

void smpi_set_least_wait(double seconds)
{
    least_wait_s = seconds;
}

/* Until the multiple of the least wait that is nearest to `seconds` from now: ranks look at the same times, so that what they begin
   and end has few different times for SimGrid to go through. */
static double wait_in_grid(double seconds)
{
    if (most_wait_s > 0.0 && seconds > most_wait_s && seconds <= 5e-4) {
        seconds = most_wait_s;
    }
    if (least_wait_s <= 0.0) {
        return seconds;
    }
    const double now_s = smpi_now();
    const double end_s = round((now_s + seconds) / least_wait_s) * least_wait_s;
    return end_s - now_s > 1e-3 * least_wait_s ? end_s - now_s : least_wait_s;
}

void smpi_set_most_wait(double seconds)
{
    most_wait_s = seconds;
}

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);

static long futex(const int *word, long operation, long value, const struct timespec *limit)
{
    if (operation == FUTEX_WAKE_PRIVATE) {
        wake_at(word);
        return 1;
    }
    if (*word != (int)value) {
        errno = EAGAIN;
        return -1;
    }
    double seconds = -1.0;
    if (limit != NULL) {
        seconds = wait_in_grid(seconds_of(limit));
    }
    if (!wait_at(word, seconds)) {
        errno = ETIMEDOUT;
        return -1;
    }
    return 0;
}

long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(args, long);
    }
    va_end(args);
    if (number == SYS_futex) {
        return futex((const int *)(intptr_t)a[0], a[1], a[2],
                     (const struct timespec *)(intptr_t)a[3]);
    }
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    const double now_s = FIRST_SECOND + smpi_now();
    (void)clock;
    out->tv_sec = (time_t)now_s;
    out->tv_nsec = (long)(1e9 * (now_s - (double)out->tv_sec));
    return 0;
}

void smpi_pass_time(double seconds)
{
    if (seconds > 0.0) {
        sg_actor_sleep_for(seconds);
    }
}

int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left);
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)left;
    smpi_pass_time(seconds_of(wanted));
    return 0;
}

int __wrap_usleep(useconds_t microseconds);
int __wrap_usleep(useconds_t microseconds)
{
    smpi_pass_time(1e-6 * microseconds);
    return 0;
}

int __wrap_sched_yield(void);
/* Who yields, looks for something again and again. */
int __wrap_sched_yield(void)
{
    smpi_pass_time(least_wait_s > 0.0 ? wait_in_grid(0.0) : 1e-6);
    return 0;
}

pid_t __wrap_getpid(void);
/* All ranks are one process: none can be looked at, and none could end by itself. */
pid_t __wrap_getpid(void)
{
    return 0;
}

/* --- cores: simulated hosts have what they need ------------------------------------------------------------------------------- */

struct lgi_hardware;
void __wrap_lgi_hardware_bind_thread(const struct lgi_hardware *hardware, int core);
void __wrap_lgi_hardware_bind_thread(const struct lgi_hardware *hardware, int core)
{
    (void)hardware;
    (void)core;
}
