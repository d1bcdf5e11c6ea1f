/* Numbers of bytes in messages: exact, and as people read them. */
#ifndef LGI_BASE_BYTES_TEXT_H
#define LGI_BASE_BYTES_TEXT_H

#include <stdint.h>

#define LGI_BYTES_TEXT_BYTES 48

/* "1073741824 bytes (1.00 GiB)"; below 1 KiB without the second. */
const char *lgi_bytes_text(char text[LGI_BYTES_TEXT_BYTES], int64_t num_bytes);

#endif
