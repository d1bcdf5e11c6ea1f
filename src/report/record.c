/* Records: a JSON object with typed setters, so that callers need no JSON library. */
#include "report/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"

#define MAX_RECORD_BYTES ((size_t)64 << 20)

lg_status lg_record_create(lg_record **out)
{
    lg_record *record = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&record, 1, sizeof *record));
    record->json = json_object();
    if (record->json == NULL) {
        lgi_free(record);
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: no record");
    }
    *out = record;
    return LG_OK;
}

void lg_record_destroy(lg_record *record)
{
    if (record != NULL) {
        json_decref(record->json);
        lgi_free(record);
    }
}

/* Takes over `value`; NULL is what the JSON library returns for text that is not UTF-8. */
static lg_status set(lg_record *record, const char *key, json_t *value)
{
    if (json_object_set_new(record->json, key, value) != 0) {
        LG_FAIL(LG_INVALID_ARG, "record '%.200s': key or text is not UTF-8", key);
    }
    return LG_OK;
}

lg_status lg_record_set_i64(lg_record *record, const char *key, int64_t value)
{
    return set(record, key, json_integer(value));
}

lg_status lg_record_set_f64(lg_record *record, const char *key, double value)
{
    return set(record, key, isfinite(value) ? json_real(value) : json_null());
}

lg_status lg_record_set_bool(lg_record *record, const char *key, bool value)
{
    return set(record, key, json_boolean(value));
}

lg_status lg_record_set_text(lg_record *record, const char *key, const char *text)
{
    return set(record, key, json_string(text));
}

lg_status lg_record_set_json(lg_record *record, const char *key, const char *json)
{
    json_error_t error;
    json_t *const value = json_loads(json, JSON_DECODE_ANY, &error);
    if (value == NULL) {
        LG_FAIL(LG_INVALID_ARG, "record '%.200s': not JSON at line %d: %s", key, error.line,
                error.text);
    }
    return set(record, key, value);
}

bool lg_record_has(const lg_record *record, const char *key)
{
    return json_object_get(record->json, key) != NULL;
}

double lg_record_number(const lg_record *record, const char *key)
{
    const json_t *value = json_object_get(record->json, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *lg_record_text(const lg_record *record, const char *key)
{
    return json_string_value(json_object_get(record->json, key));
}

lg_status lg_record_save(const lg_record *record, const char *path)
{
    lg_status status = LG_OK;
    char *line = NULL;
    char *text = json_dumps(record->json, JSON_INDENT(2));
    if (text == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: cannot write '%s'", path);
    }
    LG_TRY_GOTO(lgi_sprintf(&line, "%s\n", text));
    LG_TRY_GOTO(lgi_file_write(path, line, strlen(line)));
out:
    lgi_free(line);
    free(text);
    return status;
}

lg_status lg_record_load(lg_record **out, const char *path)
{
    lg_status status = LG_OK;
    json_error_t error;
    char *text = NULL;
    size_t num_bytes = 0;
    lg_record *record = NULL;
    *out = NULL;
    LG_TRY_GOTO(lgi_file_read(&text, &num_bytes, path, MAX_RECORD_BYTES));
    LG_TRY_GOTO(lgi_calloc(&record, 1, sizeof *record));
    record->json = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (record->json == NULL) {
        LG_TRY_GOTO(
            lgi_fail(LG_CORRUPT, "'%s': not JSON at line %d: %s", path, error.line, error.text));
    }
    if (!json_is_object(record->json)) {
        LG_TRY_GOTO(lgi_fail(LG_CORRUPT, "'%s': expected a JSON object", path));
    }
    *out = record;
    record = NULL;
out:
    lg_record_destroy(record);
    lgi_free(text);
    return status;
}
