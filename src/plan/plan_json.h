/* JSON of plans and costs: strict reading, with the place in the message. */
#ifndef LGI_PLAN_PLAN_JSON_H
#define LGI_PLAN_PLAN_JSON_H

#include <jansson.h>

#include "leapgrad/plan.h"

/* One JSON value and nothing after it; a key that stands twice in an object is an error. */
LG_NODISCARD lg_status lgi_json_parse(json_t **out, const char *text, size_t num_bytes);

/* How files look. */
#define LGI_JSON_FILE_FLAGS (JSON_INDENT(1) | JSON_REAL_PRECISION(17))

/* Writes the file whole or not at all. */
LG_NODISCARD lg_status lgi_json_write(const json_t *root, const char *path);

/* `root` is an object with just these keys (NULL ends the list), "format" and "version" as given. */
LG_NODISCARD lg_status lgi_json_check_header(const json_t *root, const char *const *keys,
                                             const char *format, int version);

/* `object` is an object with all of these keys and no others; `where` names it. */
LG_NODISCARD lg_status lgi_json_check_keys(const json_t *object, const char *where,
                                           const char *const *keys);

LG_NODISCARD lg_status lgi_json_array(const json_t *object, const char *key, const json_t **out);
LG_NODISCARD lg_status lgi_json_object(const json_t *object, const char *key, json_t **out);
LG_NODISCARD lg_status lgi_json_integer(const json_t *object, const char *where, const char *key,
                                        int64_t min, int64_t max, int64_t *out);

/* Ops by name, for files with many of them. */
typedef struct lgi_name_index {
    const lg_graph *graph;
    int *ops; /* sorted by name */
    int num_ops;
} lgi_name_index;

LG_NODISCARD lg_status lgi_name_index_init(lgi_name_index *out, const lg_graph *graph);
void lgi_name_index_deinit(lgi_name_index *index);
/* The op, or -1. */
int lgi_name_index_find(const lgi_name_index *index, const char *name);

#endif
