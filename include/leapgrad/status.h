/**
 * Status codes and the per-thread error message.
 *
 * Every call that can fail returns an lg_status. When it is not LG_OK, lg_last_error() holds one line that
 * names the value, the place and the allowed range. The library never prints, exits or aborts.
 */
#ifndef LEAPGRAD_STATUS_H
#define LEAPGRAD_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LG_NODISCARD __attribute__((warn_unused_result))
#define LG_API __attribute__((visibility("default")))
#define LG_PRINTF(format_idx, first_idx) __attribute__((format(printf, format_idx, first_idx)))
#else
#define LG_NODISCARD
#define LG_API
#define LG_PRINTF(format_idx, first_idx)
#endif

/** One row per code: name, exit code of the command-line program, text. */
#define LG_STATUS_LIST(X) \
    X(OK, 0, "ok") \
    X(INVALID_ARG, 2, "invalid argument") \
    X(OUT_OF_MEMORY, 3, "out of memory") \
    X(NOT_SUPPORTED, 4, "not supported") \
    X(IO, 5, "input/output error") \
    X(CORRUPT, 6, "corrupt data") \
    X(DEVICE, 7, "device error") \
    X(COMM, 8, "communication error") \
    X(TIMEOUT, 9, "timeout") \
    X(INTERRUPTED, 10, "interrupted") \
    X(INTERNAL, 11, "internal error")

typedef enum lg_status {
#define LG_STATUS_ENUM(name, exit_code, text) LG_##name,
    LG_STATUS_LIST(LG_STATUS_ENUM)
#undef LG_STATUS_ENUM
        LG_NUM_STATUSES
} lg_status;

/** The code's text, for example "invalid argument". Never NULL. */
LG_API const char *lg_status_text(lg_status status);

/** The code's name, for example "INVALID_ARG". Never NULL. */
LG_API const char *lg_status_name(lg_status status);

/** The process exit code that stands for `status`. */
LG_API int lg_status_exit_code(lg_status status);

/**
 * The message of the calling thread's last failure; "" if it had none.
 * Lifetime: until the next failing leapgrad call of the same thread.
 */
LG_API const char *lg_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
