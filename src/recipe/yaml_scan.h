/*
 * A first look at a YAML text, event by event: refuses what libcyaml would pass over in silence or cut short, and
 * remembers on which line each key stands.
 */
#ifndef LGI_RECIPE_YAML_SCAN_H
#define LGI_RECIPE_YAML_SCAN_H

#include <stddef.h>

#include "leapgrad/status.h"

#define LGI_YAML_MAX_KEYS 256
#define LGI_YAML_KEY_BYTES 80

/* A key's path, "section" or "section.key", cut to its room, and its line from 1. */
typedef struct lgi_yaml_key {
    char path[LGI_YAML_KEY_BYTES];
    int line;
} lgi_yaml_key;

typedef struct lgi_yaml_scan {
    int num_keys; /* those past the maximum are dropped: their line is not known */
    lgi_yaml_key keys[LGI_YAML_MAX_KEYS];
} lgi_yaml_scan;

/*
 * INVALID_ARG, with the line, for a text that is not YAML, has more than one document, aliases, tags, texts with a 0
 * character, or nests deeper than lists in a section.
 */
LG_NODISCARD lg_status lgi_yaml_scan_text(lgi_yaml_scan *scan, const char *text, size_t num_bytes);

/* The line of the last key called `path`; 0 if there is none. */
int lgi_yaml_scan_line(const lgi_yaml_scan *scan, const char *path);

#endif
