/*
 * A growing text. The first failure sticks (later calls do nothing), so that a page can be written without a check after each
 * piece; lgi_text_status() tells.
 */
#ifndef LGI_REPORT_TEXT_BUFFER_H
#define LGI_REPORT_TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

#include "leapgrad/status.h"

typedef struct lgi_text {
    char *data; /* no final 0 */
    size_t num_bytes;
    size_t capacity;
    lg_status status;
} lgi_text; /* zero is empty */

void lgi_text_deinit(lgi_text *text);
lg_status lgi_text_status(const lgi_text *text);

void lgi_text_add(lgi_text *text, const char *piece);
void lgi_text_add_bytes(lgi_text *text, const char *piece, size_t num_bytes);
void lgi_text_addf(lgi_text *text, const char *format, ...) LG_PRINTF(2, 3);

/*
 * Adds text for XML and HTML, in elements and in quoted attributes. Bytes that are not UTF-8 and characters that XML
 * does not know become U+FFFD.
 */
void lgi_text_add_escaped(lgi_text *text, const char *piece);
/* The same, cut to `max_chars` characters, the last one then an ellipsis. */
void lgi_text_add_escaped_cut(lgi_text *text, const char *piece, size_t max_chars);

/* Adds a field of a CSV file, quoted if it has to be (RFC 4180). */
void lgi_text_add_csv(lgi_text *text, const char *field);

/* Writes the text to `path`, whole or not at all; the sticky failure if there was one. */
LG_NODISCARD lg_status lgi_text_save(const lgi_text *text, const char *path);

#endif
