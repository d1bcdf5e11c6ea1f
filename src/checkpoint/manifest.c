/*
 * manifest.json. Its last member, "checksum", is the XXH3-64 of all bytes before the line it stands in, so that a
 * flipped bit in the manifest itself is found too.
 */
#include "checkpoint/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"

#define FORMAT_NAME "leapgrad-checkpoint"
#define CHECKSUM_BEGIN "\n \"checksum\": \""
#define CHECKSUM_END "\"\n}\n"
#define CHECKSUM_BYTES (sizeof CHECKSUM_BEGIN - 1 + LGI_SUM_CHARS - 1 + sizeof CHECKSUM_END - 1)

static lg_status fail_memory(void)
{
    LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: cannot make the manifest of a checkpoint");
}

/* --- writing -------------------------------------------------------------------------------------------------- */

static lg_status parse_object(json_t **out, const char *what, const char *text)
{
    json_error_t error;
    *out = text == NULL ? json_object() : json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (*out == NULL && text == NULL) {
        return fail_memory();
    }
    if (!json_is_object(*out)) {
        const char *reason = *out == NULL ? error.text : "not an object";
        const lg_status status = lgi_fail(
            LG_INVALID_ARG, "%s of a checkpoint: expected a JSON object: %s", what, reason);
        json_decref(*out);
        *out = NULL;
        return status;
    }
    return LG_OK;
}

static int set_file(json_t *files, const char *name, const lgi_tensor_sums *sums)
{
    char sum[LGI_SUM_CHARS];
    lgi_sum_format(sums->file_sum, sum);
    return json_object_set_new(files, name,
                               json_pack("{s:I, s:s, s:O}", "bytes", (json_int_t)sums->file_bytes,
                                         "xxh3_64", sum, "tensors", sums->tensor_sums));
}

/* Replaces the closing brace of `text` by the checksum's line. */
static lg_status append_checksum(char **out, const char *text)
{
    char sum[LGI_SUM_CHARS];
    char *body = NULL;
    size_t length = strlen(text) - 1;
    while (length > 0 && text[length - 1] == '\n') {
        length--;
    }
    LG_TRY(lgi_sprintf(&body, "%.*s,", (int)length, text));
    lgi_sum_format(XXH3_64bits(body, strlen(body)), sum);
    const lg_status status = lgi_sprintf(out, "%s" CHECKSUM_BEGIN "%s" CHECKSUM_END, body, sum);
    lgi_free(body);
    return status;
}

lg_status lgi_manifest_format(char **out_text, const lg_checkpoint_info *info,
                              const lgi_tensor_sums *model, const lgi_tensor_sums *optimizer)
{
    lg_status status = LG_OK;
    json_t *recipe = NULL;
    json_t *extra = NULL;
    json_t *files = json_object();
    json_t *root = NULL;
    char *text = NULL;
    *out_text = NULL;
    if (info->step < 0) {
        LG_TRY_GOTO(
            lgi_fail(LG_INVALID_ARG, "step of a checkpoint: %" PRId64 " is below 0", info->step));
    }
    LG_TRY_GOTO(parse_object(&recipe, "recipe", info->recipe_json));
    LG_TRY_GOTO(parse_object(&extra, "extra", info->extra_json));
    if (set_file(files, LGI_MODEL_NAME, model) != 0 ||
        (optimizer != NULL && set_file(files, LGI_OPTIMIZER_NAME, optimizer) != 0)) {
        LG_TRY_GOTO(fail_memory());
    }
    root = json_pack("{s:s, s:i, s:I, s:I, s:s, s:O, s:O, s:O}", "format", FORMAT_NAME, "version",
                     LGI_MANIFEST_VERSION, "step", (json_int_t)info->step, "seed",
                     (json_int_t)info->seed, "weights_hash",
                     info->weights_hash != NULL ? info->weights_hash : "", "recipe", recipe,
                     "extra", extra, "files", files);
    text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    if (text == NULL) {
        LG_TRY_GOTO(fail_memory());
    }
    LG_TRY_GOTO(append_checksum(out_text, text));
out:
    free(text);
    json_decref(root);
    json_decref(files);
    json_decref(extra);
    json_decref(recipe);
    return status;
}

/* --- reading -------------------------------------------------------------------------------------------------- */

static lg_status check_checksum(const char *where, const char *text, size_t text_bytes)
{
    char got[LGI_SUM_CHARS];
    const size_t body_bytes = text_bytes > CHECKSUM_BYTES ? text_bytes - CHECKSUM_BYTES : 0;
    const char *line = text + body_bytes;
    if (body_bytes == 0 || memcmp(line, CHECKSUM_BEGIN, sizeof CHECKSUM_BEGIN - 1) != 0) {
        LG_FAIL(LG_CORRUPT, "'%s': does not end in its checksum (cut short or edited)", where);
    }
    const char *expected = line + sizeof CHECKSUM_BEGIN - 1;
    lgi_sum_format(XXH3_64bits(text, body_bytes), got);
    if (memcmp(expected, got, LGI_SUM_CHARS - 1) != 0 ||
        memcmp(expected + LGI_SUM_CHARS - 1, CHECKSUM_END, sizeof CHECKSUM_END - 1) != 0) {
        LG_FAIL(LG_CORRUPT, "'%s': checksum is %s, expected %.*s (damaged or edited)", where, got,
                LGI_SUM_CHARS - 1, expected);
    }
    return LG_OK;
}

static lg_status get_integer(int64_t *out, const char *where, const json_t *object, const char *key,
                             int64_t min)
{
    const json_t *value = json_object_get(object, key);
    *out = json_integer_value(value);
    if (!json_is_integer(value) || *out < min) {
        LG_FAIL(LG_CORRUPT, "'%s': '%s': expected an integer of at least %" PRId64, where, key,
                min);
    }
    return LG_OK;
}

static lg_status get_string(const char **out, const char *where, const json_t *object,
                            const char *key)
{
    *out = json_string_value(json_object_get(object, key));
    if (*out == NULL) {
        LG_FAIL(LG_CORRUPT, "'%s': '%s': expected a string", where, key);
    }
    return LG_OK;
}

/* An object member as text. Ownership: the caller's, free() by way of lgi_free(). */
static lg_status get_object_text(char **out, const char *where, const json_t *object,
                                 const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_object(value)) {
        LG_FAIL(LG_CORRUPT, "'%s': '%s': expected an object", where, key);
    }
    *out = json_dumps(value, JSON_INDENT(2));
    return *out != NULL ? LG_OK : fail_memory();
}

static lg_status check_format(const char *where, const json_t *root)
{
    const char *format = NULL;
    int64_t version = 0;
    LG_TRY(get_string(&format, where, root, "format"));
    LG_TRY(get_integer(&version, where, root, "version", 0));
    if (strcmp(format, FORMAT_NAME) != 0) {
        LG_FAIL(LG_CORRUPT, "'%s': 'format': expected \"" FORMAT_NAME "\", got \"%.40s\"", where,
                format);
    }
    if (version != LGI_MANIFEST_VERSION) {
        LG_FAIL(LG_NOT_SUPPORTED, "'%s': 'version': expected %d, got %" PRId64, where,
                LGI_MANIFEST_VERSION, version);
    }
    return LG_OK;
}

static lg_status parse_file(lgi_manifest_file *out, const char *where, json_t *files,
                            const char *name)
{
    const char *sum = NULL;
    const char *tensor = NULL;
    json_t *value = NULL;
    json_t *const file = json_object_get(files, name);
    if (file == NULL) {
        return LG_OK;
    }
    out->is_present = true;
    LG_TRY(get_integer(&out->num_bytes, where, file, "bytes", 0));
    LG_TRY(get_string(&sum, where, file, "xxh3_64"));
    json_t *const tensors = json_object_get(file, "tensors");
    if (!lgi_sum_parse(&out->sum, sum) || !json_is_object(tensors)) {
        LG_FAIL(LG_CORRUPT, "'%s': '%s': expected 'xxh3_64' and 'tensors'", where, name);
    }
    json_object_foreach(tensors, tensor, value)
    {
        uint64_t tensor_sum = 0;
        if (!json_is_string(value) || !lgi_sum_parse(&tensor_sum, json_string_value(value))) {
            LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s': checksum is not 16 hexadecimal digits",
                    where, tensor);
        }
    }
    out->tensor_sums = tensors;
    return LG_OK;
}

static lg_status parse_members(lgi_manifest *manifest, const char *where)
{
    const json_t *const root = manifest->json;
    lg_checkpoint_info *const info = &manifest->info;
    LG_TRY(get_integer(&info->step, where, root, "step", 0));
    LG_TRY(get_integer(&info->seed, where, root, "seed", INT64_MIN));
    LG_TRY(get_string(&info->weights_hash, where, root, "weights_hash"));
    LG_TRY(get_object_text(&manifest->recipe_text, where, root, "recipe"));
    LG_TRY(get_object_text(&manifest->extra_text, where, root, "extra"));
    info->recipe_json = manifest->recipe_text;
    info->extra_json = manifest->extra_text;
    json_t *const files = json_object_get(root, "files");
    LG_TRY(parse_file(&manifest->model, where, files, LGI_MODEL_NAME));
    LG_TRY(parse_file(&manifest->optimizer, where, files, LGI_OPTIMIZER_NAME));
    if (!manifest->model.is_present) {
        LG_FAIL(LG_CORRUPT, "'%s': 'files': expected '" LGI_MODEL_NAME "'", where);
    }
    return LG_OK;
}

lg_status lgi_manifest_parse(lgi_manifest *out, const char *where, const char *text,
                             size_t text_bytes)
{
    lg_status status = LG_OK;
    json_error_t error;
    lgi_manifest manifest = {0};
    memset(out, 0, sizeof *out);
    manifest.json = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (manifest.json == NULL) {
        LG_FAIL(LG_CORRUPT, "'%s': not JSON at line %d: %s", where, error.line, error.text);
    }
    LG_TRY_GOTO(check_format(where, manifest.json));
    LG_TRY_GOTO(check_checksum(where, text, text_bytes));
    LG_TRY_GOTO(parse_members(&manifest, where));
    *out = manifest;
    memset(&manifest, 0, sizeof manifest);
out:
    lgi_manifest_deinit(&manifest);
    return status;
}

void lgi_manifest_deinit(lgi_manifest *manifest)
{
    json_decref(manifest->json);
    lgi_free(manifest->recipe_text);
    lgi_free(manifest->extra_text);
    memset(manifest, 0, sizeof *manifest);
}
