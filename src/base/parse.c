#include "base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/plain_numbers.h"

lg_status lgi_parse_i64(int64_t *out, const char *key, const char *text, int64_t min, int64_t max)
{
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max) {
        LG_FAIL(LG_INVALID_ARG, "%s: '%s' is not an integer in [%" PRId64 ", %" PRId64 "]", key,
                text, min, max);
    }
    *out = value;
    return LG_OK;
}

static double to_number(const char *text, char **end)
{
    const locale_t before = lgi_plain_numbers_begin();
    const double value = strtod(text, end);
    lgi_plain_numbers_end(before);
    return value;
}

lg_status lgi_parse_f64(double *out, const char *key, const char *text, double min, double max)
{
    char *end = NULL;
    const double value = to_number(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < min || value > max) {
        LG_FAIL(LG_INVALID_ARG, "%s: '%s' is not a number in [%.9g, %.9g]", key, text, min, max);
    }
    *out = value;
    return LG_OK;
}

lg_status lgi_parse_bytes(int64_t *out, const char *key, const char *text, int64_t min, int64_t max)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},       {"B", 1},        {"K", 0x1p10}, {"KiB", 0x1p10},
                 {"M", 0x1p20}, {"MiB", 0x1p20}, {"G", 0x1p30}, {"GiB", 0x1p30}};
    char *end = NULL;
    const double value = to_number(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof units[0]; i++) {
        const double bytes = value * units[i].factor;
        if (strcmp(end, units[i].suffix) == 0 && bytes >= (double)min && bytes <= (double)max) {
            *out = (int64_t)bytes;
            return LG_OK;
        }
    }
    LG_FAIL(LG_INVALID_ARG,
            "%s: '%s' is not a size in [%" PRId64 ", %" PRId64 "] bytes (suffixes K, M, G)", key,
            text, min, max);
}
