/* Sleeping until a word of memory changes; within this process. */
#ifndef LGI_COMM_FUTEX_H
#define LGI_COMM_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word is `seen`, at most timeout_ns (negative: without limit). May also return for no reason. */
static inline void lgi_futex_wait(_Atomic int *word, int seen, int64_t timeout_ns)
{
    struct timespec limit = {0, 0};
    if (timeout_ns >= 0) {
        limit.tv_sec = (time_t)(timeout_ns / 1000000000);
        limit.tv_nsec = (long)(timeout_ns % 1000000000);
    }
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout_ns >= 0 ? &limit : NULL, NULL,
                  0);
}

static inline void lgi_futex_wake_all(_Atomic int *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#endif
