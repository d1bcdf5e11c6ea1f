/*
 * Numbers with a point. A program that uses the library may have set a locale whose numbers have a comma; what is read from
 * and written to files must not change with it. Between begin and end the calling thread formats and parses as in "C".
 */
#ifndef LGI_BASE_PLAIN_NUMBERS_H
#define LGI_BASE_PLAIN_NUMBERS_H

#include <locale.h>

/* Returns what lgi_plain_numbers_end() needs to put things back. Pairs may nest. */
locale_t lgi_plain_numbers_begin(void);
void lgi_plain_numbers_end(locale_t before);

#endif
