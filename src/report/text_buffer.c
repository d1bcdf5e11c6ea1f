#include "report/text_buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "base/plain_numbers.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */
#define ELLIPSIS "\xe2\x80\xa6"

void lgi_text_deinit(lgi_text *text)
{
    lgi_free(text->data);
    memset(text, 0, sizeof *text);
}

lg_status lgi_text_status(const lgi_text *text)
{
    return text->status;
}

/* Room for `num_bytes` more; false after a failure. */
static bool reserve(lgi_text *text, size_t num_bytes)
{
    if (text->status == LG_OK) {
        text->status = lgi_grow(&text->data, &text->capacity, text->num_bytes + num_bytes + 1, 1);
    }
    return text->status == LG_OK;
}

void lgi_text_add_bytes(lgi_text *text, const char *piece, size_t num_bytes)
{
    if (reserve(text, num_bytes)) {
        memcpy(text->data + text->num_bytes, piece, num_bytes);
        text->num_bytes += num_bytes;
    }
}

void lgi_text_add(lgi_text *text, const char *piece)
{
    lgi_text_add_bytes(text, piece, strlen(piece));
}

void lgi_text_addf(lgi_text *text, const char *format, ...)
{
    const locale_t before = lgi_plain_numbers_begin();
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length >= 0 && reserve(text, (size_t)length)) {
        va_start(args, format);
        (void)vsnprintf(text->data + text->num_bytes, (size_t)length + 1, format, args);
        va_end(args);
        text->num_bytes += (size_t)length;
    }
    lgi_plain_numbers_end(before);
}

/* Bytes of the well-formed UTF-8 character at `at` (RFC 3629); 0 if there is none. */
static size_t utf8_length(const unsigned char *at)
{
    static const struct {
        uint32_t mask, lead, min;
    } forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t more = 0; more < 4; more++) {
        if ((at[0] & forms[more].mask) != forms[more].lead) {
            continue;
        }
        uint32_t code = at[0] & ~forms[more].mask;
        for (size_t i = 1; i <= more; i++) {
            if ((at[i] & 0xc0) != 0x80) {
                return 0;
            }
            code = code << 6 | (at[i] & 0x3f);
        }
        const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
        const bool is_noncharacter = code == 0xfffe || code == 0xffff;
        return code < forms[more].min || code > 0x10ffff || is_surrogate || is_noncharacter
                   ? 0
                   : more + 1;
    }
    return 0;
}

static void add_escaped_char(lgi_text *text, const char *at, size_t num_bytes)
{
    const unsigned char c = (unsigned char)*at;
    if (num_bytes == 0 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
        lgi_text_add(text, REPLACEMENT);
        return;
    }
    switch (c) {
    case '&':
        lgi_text_add(text, "&amp;");
        break;
    case '<':
        lgi_text_add(text, "&lt;");
        break;
    case '>':
        lgi_text_add(text, "&gt;");
        break;
    case '"':
        lgi_text_add(text, "&quot;");
        break;
    case '\'':
        lgi_text_add(text, "&#39;");
        break;
    default:
        lgi_text_add_bytes(text, at, num_bytes);
    }
}

static size_t count_chars(const char *piece)
{
    size_t num = 0;
    for (const char *at = piece; *at != '\0'; num++) {
        const size_t length = utf8_length((const unsigned char *)at);
        at += length > 0 ? length : 1;
    }
    return num;
}

void lgi_text_add_escaped_cut(lgi_text *text, const char *piece, size_t max_chars)
{
    const size_t num_chars = count_chars(piece);
    const size_t num_shown = num_chars <= max_chars ? num_chars : max_chars - 1;
    for (size_t i = 0; i < num_shown; i++) {
        const size_t length = utf8_length((const unsigned char *)piece);
        add_escaped_char(text, piece, length);
        piece += length > 0 ? length : 1;
    }
    if (num_shown < num_chars) {
        lgi_text_add(text, ELLIPSIS);
    }
}

void lgi_text_add_escaped(lgi_text *text, const char *piece)
{
    lgi_text_add_escaped_cut(text, piece, SIZE_MAX);
}

void lgi_text_add_csv(lgi_text *text, const char *field)
{
    if (strpbrk(field, ",\"\r\n") == NULL) {
        lgi_text_add(text, field);
        return;
    }
    lgi_text_add(text, "\"");
    for (const char *c = field; *c != '\0'; c++) {
        lgi_text_add_bytes(text, c, 1);
        if (*c == '"') {
            lgi_text_add(text, "\"");
        }
    }
    lgi_text_add(text, "\"");
}

lg_status lgi_text_save(const lgi_text *text, const char *path)
{
    LG_TRY(text->status);
    return lgi_file_write(path, text->data != NULL ? text->data : "", text->num_bytes);
}
