/* Monotonic time. */
#ifndef LGI_BASE_CLOCK_H
#define LGI_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of the monotonic clock. */
uint64_t lgi_clock_ns(void);

#endif
