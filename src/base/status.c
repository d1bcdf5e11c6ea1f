/* Status texts and the per-thread message. */
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 1024

static _Thread_local char last_message[MESSAGE_BYTES];

const char *lg_status_text(lg_status status)
{
    switch (status) {
#define CASE(name, exit_code, text) \
    case LG_##name: \
        return text;
        LG_STATUS_LIST(CASE)
#undef CASE
    default:
        return "unknown status";
    }
}

const char *lg_status_name(lg_status status)
{
    switch (status) {
#define CASE(name, exit_code, text) \
    case LG_##name: \
        return #name;
        LG_STATUS_LIST(CASE)
#undef CASE
    default:
        return "UNKNOWN";
    }
}

int lg_status_exit_code(lg_status status)
{
    switch (status) {
#define CASE(name, exit_code, text) \
    case LG_##name: \
        return exit_code;
        LG_STATUS_LIST(CASE)
#undef CASE
    default:
        return 1;
    }
}

const char *lg_last_error(void)
{
    return last_message;
}

/* Control characters would break the promise of one line (names come from files that nobody checked). */
static void keep_one_line(char *text)
{
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
}

lg_status lgi_fail(lg_status code, const char *format, ...)
{
    char message[MESSAGE_BYTES]; /* the arguments may point into last_message */
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    keep_one_line(message);
    memcpy(last_message, message, sizeof message);
    return code;
}

lg_status lgi_fail_prefix(lg_status code, const char *format, ...)
{
    char prefix[MESSAGE_BYTES / 2];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    char rest[MESSAGE_BYTES];
    memcpy(rest, last_message, sizeof rest);
    return lgi_fail(code, "%s: %.*s", prefix, (int)(MESSAGE_BYTES - strlen(prefix) - 3), rest);
}

lg_status lgi_fail_copy(lg_status code, const char *message)
{
    return lgi_fail(code, "%s", message);
}
