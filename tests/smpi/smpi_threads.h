/*
 * Threads, locks, futexes and clocks of a program, replaced by those of a simulation: linked with --wrap for each of the functions
 * in wraps.txt, the library runs as it is, but a thread is an actor on a simulated host and time is simulated.
 *
 * Actors run one at a time and change only where one waits, so a lock that is free costs nothing. All are on one real thread: what
 * the library has as variables of threads, a compiler with -femulated-tls looks for by a function, which is ours.
 */
#ifndef SMPI_THREADS_H
#define SMPI_THREADS_H

/*
 * A rank's first actor is the one that MPI knows; only it may call MPI. So it does not run the program but becomes the thread that
 * the program makes next after smpi_adopt_next_thread(): the communication thread. All of a rank's actors share this.
 */
typedef struct smpi_rank smpi_rank;

/* On the first actor of a rank: runs `program` on an actor of its own, becomes its communication thread, returns when both have ended. */
void smpi_rank_run(void (*program)(void *user), void *user);

/* On an actor of the program: the thread that is made next runs on the rank's first actor. */
void smpi_adopt_next_thread(void);

/* Waits with a time limit last no shorter than this, and end at multiples of it: when the communication thread looks for messages. */
void smpi_set_least_wait(double seconds);
/* Of waits of up to 500 us, which are those of a communication thread with messages under way. */
void smpi_set_most_wait(double seconds);

/* Lets simulated time pass. */
void smpi_pass_time(double seconds);
double smpi_now(void);

#endif
