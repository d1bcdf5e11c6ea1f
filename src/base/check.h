/* Error handling of the library: one function sets code and message together, four macros carry it. */
#ifndef LGI_BASE_CHECK_H
#define LGI_BASE_CHECK_H

#include "leapgrad/status.h"

/* Sets the calling thread's message and returns `code`. A message is one line, without a final newline. */
lg_status lgi_fail(lg_status code, const char *format, ...) LG_PRINTF(2, 3);

/* Puts "`prefix`: " in front of the calling thread's message and returns `code`. */
lg_status lgi_fail_prefix(lg_status code, const char *format, ...) LG_PRINTF(2, 3);

/* Carries a failure from one thread to another: the message is copied, the code returned. */
lg_status lgi_fail_copy(lg_status code, const char *message);

/* Returns from the calling function with a failure. */
#define LG_FAIL(code, ...) return lgi_fail((code), __VA_ARGS__)

/* Returns from the calling function if `expr` failed. */
#define LG_TRY(expr) \
    do { \
        const lg_status lgi_try_status = (expr); \
        if (lgi_try_status != LG_OK) { \
            return lgi_try_status; \
        } \
    } while (0)

/* Jumps to `out:` if `expr` failed; needs a local `lg_status status`. */
#define LG_TRY_GOTO(expr) \
    do { \
        status = (expr); \
        if (status != LG_OK) { \
            goto out; \
        } \
    } while (0)

/* Cleanup that can fail: keeps the first failure in the local `status`. */
#define LG_KEEP_FIRST(expr) \
    do { \
        const lg_status lgi_keep_status = (expr); \
        if (status == LG_OK) { \
            status = lgi_keep_status; \
        } \
    } while (0)

#endif
