#include "base/plain_numbers.h"

#include <pthread.h>
#include <stddef.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* (locale_t)0: could not be made; numbers are then the program's own */

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* a constant of the C library: no memory */
}

locale_t lgi_plain_numbers_begin(void)
{
    (void)pthread_once(&once, make_plain);
    return plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
}

void lgi_plain_numbers_end(locale_t before)
{
    if (before != (locale_t)0) {
        (void)uselocale(before);
    }
}
