/* The one number parser: whole text, range, key in the message. */
#ifndef LGI_BASE_PARSE_H
#define LGI_BASE_PARSE_H

#include <stdint.h>

#include "leapgrad/status.h"

/* Parses all of `text` as a decimal integer in [min, max]; `key` names it in the message. */
LG_NODISCARD lg_status lgi_parse_i64(int64_t *out, const char *key, const char *text, int64_t min,
                                     int64_t max);

/* Parses all of `text` as a finite number in [min, max]. */
LG_NODISCARD lg_status lgi_parse_f64(double *out, const char *key, const char *text, double min,
                                     double max);

/* Parses a size: a number with an optional suffix K, M, G (powers of 1024) or KiB, MiB, GiB, or B. */
LG_NODISCARD lg_status lgi_parse_bytes(int64_t *out, const char *key, const char *text, int64_t min,
                                       int64_t max);

#endif
