/* What readers of plans and costs share. */
#include "plan/plan_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"

lg_status lgi_json_parse(json_t **out, const char *text, size_t num_bytes)
{
    json_error_t error;
    *out = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out == NULL) {
        /* the library's text may quote the input: keep it to one line of readable characters */
        for (char *c = error.text; *c != '\0'; c++) {
            if ((unsigned char)*c < ' ' || (unsigned char)*c >= 127) {
                *c = '?';
            }
        }
        LG_FAIL(LG_INVALID_ARG, "line %d, column %d: %s", error.line, error.column, error.text);
    }
    return LG_OK;
}

lg_status lgi_json_write(const json_t *root, const char *path)
{
    char *const text = json_dumps(root, LGI_JSON_FILE_FLAGS);
    if (text == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "%s: out of memory while making its JSON", path);
    }
    const lg_status status = lgi_file_write(path, text, strlen(text));
    free(text);
    return status;
}

lg_status lgi_json_check_keys(const json_t *object, const char *where, const char *const *keys)
{
    if (!json_is_object(object)) {
        LG_FAIL(LG_INVALID_ARG, "%s: expected an object", where);
    }
    size_t num_keys = 0;
    for (; keys[num_keys] != NULL; num_keys++) {
        if (json_object_get(object, keys[num_keys]) == NULL) {
            LG_FAIL(LG_INVALID_ARG, "%s: '%s' is missing", where, keys[num_keys]);
        }
    }
    if (json_object_size(object) == num_keys) {
        return LG_OK;
    }
    const char *key = NULL;
    json_t *item = NULL;
    json_object_foreach((json_t *)(uintptr_t)object, key, item)
    {
        bool is_known = false;
        for (size_t i = 0; i < num_keys; i++) {
            is_known = is_known || strcmp(key, keys[i]) == 0;
        }
        if (!is_known) {
            LG_FAIL(LG_INVALID_ARG, "%s: unknown key '%.100s'", where, key);
        }
    }
    LG_FAIL(LG_INTERNAL, "%s: keys could not be told apart", where);
}

lg_status lgi_json_check_header(const json_t *root, const char *const *keys, const char *format,
                                int version)
{
    LG_TRY(lgi_json_check_keys(root, "file", keys));
    const char *const text = json_string_value(json_object_get(root, "format"));
    if (text == NULL || strcmp(text, format) != 0) {
        LG_FAIL(LG_INVALID_ARG, "format: expected \"%s\", got \"%.100s\"", format,
                text != NULL ? text : "no text");
    }
    const json_t *const number = json_object_get(root, "version");
    if (!json_is_integer(number) || json_integer_value(number) != version) {
        LG_FAIL(LG_INVALID_ARG, "version: expected %d", version);
    }
    return LG_OK;
}

lg_status lgi_json_array(const json_t *object, const char *key, const json_t **out)
{
    *out = json_object_get(object, key);
    if (!json_is_array(*out)) {
        LG_FAIL(LG_INVALID_ARG, "%s: expected an array", key);
    }
    return LG_OK;
}

lg_status lgi_json_object(const json_t *object, const char *key, json_t **out)
{
    *out = json_object_get(object, key);
    if (!json_is_object(*out)) {
        LG_FAIL(LG_INVALID_ARG, "%s: expected an object", key);
    }
    return LG_OK;
}

lg_status lgi_json_integer(const json_t *object, const char *where, const char *key, int64_t min,
                           int64_t max, int64_t *out)
{
    const json_t *const item = json_object_get(object, key);
    const int64_t value = json_integer_value(item);
    if (!json_is_integer(item) || value < min || value > max) {
        LG_FAIL(LG_INVALID_ARG, "%s: '%s': expected an integer in %lld..%lld", where, key,
                (long long)min, (long long)max);
    }
    *out = value;
    return LG_OK;
}

static int compare_names(const void *a, const void *b, void *graph)
{
    return strcmp(lg_graph_op(graph, *(const int *)a)->name,
                  lg_graph_op(graph, *(const int *)b)->name);
}

lg_status lgi_name_index_init(lgi_name_index *out, const lg_graph *graph)
{
    *out = (lgi_name_index){.graph = graph, .num_ops = lg_graph_num_ops(graph)};
    LG_TRY(lgi_calloc(&out->ops, (size_t)out->num_ops, sizeof *out->ops));
    for (int op = 0; op < out->num_ops; op++) {
        out->ops[op] = op;
    }
    qsort_r(out->ops, (size_t)out->num_ops, sizeof *out->ops, compare_names,
            (void *)(uintptr_t)graph);
    return LG_OK;
}

void lgi_name_index_deinit(lgi_name_index *index)
{
    lgi_free(index->ops);
    *index = (lgi_name_index){0};
}

int lgi_name_index_find(const lgi_name_index *index, const char *name)
{
    int lo = 0;
    int hi = index->num_ops - 1;
    while (lo <= hi) {
        const int mid = lo + (hi - lo) / 2;
        const int order = strcmp(name, lg_graph_op(index->graph, index->ops[mid])->name);
        if (order == 0) {
            return index->ops[mid];
        }
        if (order < 0) {
            hi = mid - 1;
        } else {
            lo = mid + 1;
        }
    }
    return -1;
}
