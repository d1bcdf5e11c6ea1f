#include "base/bytes_text.h"

#include <stdio.h>

const char *lgi_bytes_text(char text[LGI_BYTES_TEXT_BYTES], int64_t num_bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double scaled = (double)num_bytes / 1024.0;
    size_t unit = 0;
    if (num_bytes < 1024) {
        (void)snprintf(text, LGI_BYTES_TEXT_BYTES, "%lld byte%s", (long long)num_bytes,
                       num_bytes == 1 ? "" : "s");
        return text;
    }
    while (scaled >= 1000.0 && unit + 1 < sizeof units / sizeof units[0]) {
        scaled /= 1024.0;
        unit++;
    }
    (void)snprintf(text, LGI_BYTES_TEXT_BYTES, "%lld bytes (%.2f %s)", (long long)num_bytes, scaled,
                   units[unit]);
    return text;
}
