/*
 * The table of keys becomes a libcyaml schema in which each section is a mapping of optional texts (lists: sequences of
 * texts). libcyaml so finds unknown and doubled keys and values of the wrong shape; what a text means is decided by
 * recipe_value.c, as for overrides. What libcyaml takes without a word is refused before (yaml_scan.h).
 * Aliases are off, so a small file cannot unfold into a large one, and nothing here recurses over the input.
 */
#include "recipe/recipe_yaml.h"

#include <stdio.h>
#include <string.h>

#include <cyaml/cyaml.h>

#include "base/alloc.h"
#include "base/check.h"
#include "recipe/recipe_table.h"
#include "recipe/yaml_scan.h"

/* What libcyaml stores for one key: `text`, or `items` for a list; NULL if the document does not have it. */
typedef struct slot {
    char *text;
    char **items;
    uint32_t num_items;
} slot;

/* The document: one array of slots per section; NULL for a section that it does not have. */
typedef struct document {
    slot *sections[LGI_MAX_SECTIONS];
} document;

/* The schema; points into itself, so it must not be copied. */
typedef struct schema {
    cyaml_schema_value_t root;
    cyaml_schema_value_t item;
    cyaml_schema_field_t sections[LGI_MAX_SECTIONS + 1];
    cyaml_schema_field_t
        fields[LGI_MAX_FIELDS + LGI_MAX_SECTIONS]; /* each section ends in an empty one */
} schema;

/* What libcyaml logged: the first error, and the keys of its backtrace from the inside out. */
typedef struct yaml_log {
    char error[256];
    char path[256];
    bool is_out_of_memory;
} yaml_log;

static void make_schema(schema *out)
{
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    memset(out, 0, sizeof *out);
    out->item = (cyaml_schema_value_t){
        CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 0, LG_RECIPE_MAX_FILE_BYTES)};
    cyaml_schema_field_t *next = out->fields;
    for (int s = 0; s < lgi_recipe_num_sections(); s++) {
        const lgi_section section = lgi_recipe_section(s);
        out->sections[s] = (cyaml_schema_field_t){
            .key = section.name,
            .data_offset = (uint32_t)((size_t)s * sizeof(slot *)),
            .value = {.type = CYAML_MAPPING,
                      .flags = (enum cyaml_flag)(CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL),
                      .data_size = (uint32_t)((size_t)section.num_fields * sizeof(slot)),
                      .mapping = {.fields = next}},
        };
        for (int f = 0; f < section.num_fields; f++, next++) {
            const lgi_field *const field = &fields[section.first_field + f];
            const size_t offset = (size_t)f * sizeof(slot);
            next->key = lgi_field_name(field);
            next->value.flags = (enum cyaml_flag)(CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL);
            if (field->type == LGI_FIELD_NUMBERS) {
                next->data_offset = (uint32_t)(offset + offsetof(slot, items));
                next->count_offset = (uint32_t)(offset + offsetof(slot, num_items));
                next->count_size = sizeof(uint32_t);
                next->value.type = CYAML_SEQUENCE;
                next->value.flags = (enum cyaml_flag)(next->value.flags | CYAML_FLAG_FLOW);
                next->value.data_size = sizeof(char *);
                next->value.sequence.entry = &out->item;
                next->value.sequence.min = 1; /* an empty one would look like a missing one */
                next->value.sequence.max = LG_RECIPE_MAX_NUMBERS;
            } else {
                next->data_offset = (uint32_t)(offset + offsetof(slot, text));
                next->value.type = CYAML_STRING;
                next->value.data_size = sizeof(char);
                next->value.string.max = LG_RECIPE_MAX_FILE_BYTES;
            }
        }
        next++; /* the empty one */
    }
    out->root = (cyaml_schema_value_t){.type = CYAML_MAPPING,
                                       .flags = CYAML_FLAG_POINTER,
                                       .data_size = sizeof(document),
                                       .mapping = {.fields = out->sections}};
}

/* libcyaml's memory comes from where all memory comes from. */
static void *allocate(void *user, void *ptr, size_t size)
{
    yaml_log *const log = user;
    if (size == 0) {
        lgi_free(ptr);
        return NULL;
    }
    if (lgi_realloc(&ptr, size, 1) != LG_OK) {
        log->is_out_of_memory = true;
        return NULL;
    }
    return ptr;
}

/*
 * Collects instead of printing. A backtrace line reads "  in mapping field 'train' (line: 2, column: 3)", the innermost
 * first.
 */
static LG_PRINTF(3, 0) void collect_log(cyaml_log_t level, void *user, const char *format,
                                        va_list args)
{
    (void)level;
    yaml_log *const log = user;
    char text[256];
    (void)vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    const bool is_backtrace = strstr(text, "(line: ") != NULL;
    const char *const quoted = strstr(text, "in mapping field '");
    if (strncmp(text, "Load: Backtrace", 15) == 0) {
        return;
    }
    if (!is_backtrace) {
        if (log->error[0] == '\0') {
            (void)snprintf(log->error, sizeof log->error, "%s",
                           strncmp(text, "Load: ", 6) == 0 ? text + 6 : text);
        }
        return;
    }
    if (quoted != NULL) {
        const char *const name = quoted + strlen("in mapping field '");
        char inner[256];
        memcpy(inner, log->path, sizeof inner);
        (void)snprintf(log->path, sizeof log->path, "%.*s%s%.120s", (int)strcspn(name, "'"), name,
                       inner[0] != '\0' ? "." : "", inner);
    }
}

static lg_status fail_at_line(lg_status code, int line)
{
    return line > 0 ? lgi_fail_prefix(code, "line %d", line) : code;
}

/* Puts libcyaml's verdict into our words. */
static lg_status fail_yaml(cyaml_err_t error, const yaml_log *log, const lgi_yaml_scan *scan)
{
    if (error == CYAML_ERR_OOM || log->is_out_of_memory) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory while reading YAML");
    }
    static const char unknown[] = "Unexpected key: ";
    static const char seen[] = "Mapping field already seen: ";
    if (strncmp(log->error, unknown, strlen(unknown)) == 0) {
        char key[512];
        (void)snprintf(key, sizeof key, "%s%s%s", log->path, log->path[0] != '\0' ? "." : "",
                       log->error + strlen(unknown));
        return fail_at_line(lgi_recipe_fail_unknown(key), lgi_yaml_scan_line(scan, key));
    }
    lg_status status = LG_OK;
    if (strncmp(log->error, seen, strlen(seen)) == 0) {
        status = lgi_fail(LG_INVALID_ARG, "key '%s' comes twice", log->path);
        return fail_at_line(status, lgi_yaml_scan_line(scan, log->path));
    }
    if (error == CYAML_ERR_SEQUENCE_ENTRIES_MAX || error == CYAML_ERR_SEQUENCE_ENTRIES_MIN) {
        status = lgi_fail(LG_INVALID_ARG, "%s: a list has 1 to %d numbers", log->path,
                          LG_RECIPE_MAX_NUMBERS);
    } else if (log->path[0] != '\0') {
        status = lgi_fail(LG_INVALID_ARG, "%s: %s", log->path,
                          log->error[0] != '\0' ? log->error : cyaml_strerror(error));
    } else {
        status = lgi_fail(LG_INVALID_ARG, "not a recipe: %s",
                          log->error[0] != '\0' ? log->error : cyaml_strerror(error));
    }
    return fail_at_line(status, lgi_yaml_scan_line(scan, log->path));
}

static lg_status take_values(lg_recipe *recipe, const document *doc, const lgi_yaml_scan *scan)
{
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    for (int s = 0; s < lgi_recipe_num_sections(); s++) {
        const lgi_section section = lgi_recipe_section(s);
        for (int f = 0; doc->sections[s] != NULL && f < section.num_fields; f++) {
            const lgi_field *const field = &fields[section.first_field + f];
            const slot *const value = &doc->sections[s][f];
            lg_status status = LG_OK;
            if (value->text != NULL) {
                status = lgi_field_parse(field, recipe, value->text);
            } else if (value->items != NULL) {
                status = lgi_field_parse_numbers(field, recipe, (const char *const *)value->items,
                                                 value->num_items);
            }
            if (status != LG_OK) {
                return fail_at_line(status, lgi_yaml_scan_line(scan, field->key));
            }
        }
    }
    return LG_OK;
}

static cyaml_config_t make_config(yaml_log *log)
{
    return (cyaml_config_t){
        .log_fn = collect_log,
        .log_ctx = log,
        .mem_fn = allocate,
        .mem_ctx = log,
        .log_level = CYAML_LOG_ERROR,
        .flags = (cyaml_cfg_flags_t)(CYAML_CFG_NO_ALIAS | CYAML_CFG_STYLE_BLOCK),
    };
}

lg_status lgi_recipe_read_yaml(lg_recipe *recipe, const char *text, size_t num_bytes)
{
    lg_status status = LG_OK;
    schema yaml_schema;
    yaml_log log = {.is_out_of_memory = false};
    const cyaml_config_t config = make_config(&log);
    document *doc = NULL;
    lgi_yaml_scan scan;
    LG_TRY(lgi_yaml_scan_text(&scan, text, num_bytes));
    make_schema(&yaml_schema);
    const cyaml_err_t error = cyaml_load_data((const uint8_t *)text, num_bytes, &config,
                                              &yaml_schema.root, (cyaml_data_t **)&doc, NULL);
    if (error != CYAML_OK) {
        return fail_yaml(error, &log, &scan);
    }
    if (doc != NULL) { /* NULL: an empty document */
        status = take_values(recipe, doc, &scan);
        (void)cyaml_free(&config, &yaml_schema.root, doc, 0);
    }
    return status;
}

/* Splits "a,b,c" in place; *items points into `text`. */
static lg_status split_items(char *text, slot *out)
{
    LG_TRY(lgi_calloc(&out->items, LG_RECIPE_MAX_NUMBERS, sizeof *out->items));
    char *rest = text;
    for (char *item = strtok_r(text, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        out->items[out->num_items++] = item;
    }
    return LG_OK;
}

lg_status lgi_recipe_write_yaml(const lg_recipe *recipe, char **out)
{
    lg_status status = LG_OK;
    schema yaml_schema;
    yaml_log log = {.is_out_of_memory = false};
    const cyaml_config_t config = make_config(&log);
    slot slots[LGI_MAX_FIELDS] = {{NULL, NULL, 0}};
    char *texts[LGI_MAX_FIELDS] = {NULL};
    document doc = {{NULL}};
    char *yaml = NULL;
    size_t num_bytes = 0;
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    *out = NULL;
    for (int i = 0; i < num_fields; i++) {
        LG_TRY_GOTO(lgi_field_format(&fields[i], recipe, &texts[i]));
        if (fields[i].type == LGI_FIELD_NUMBERS) {
            LG_TRY_GOTO(split_items(texts[i], &slots[i]));
        } else {
            slots[i].text = texts[i];
        }
    }
    for (int s = 0; s < lgi_recipe_num_sections(); s++) {
        doc.sections[s] = &slots[lgi_recipe_section(s).first_field];
    }
    make_schema(&yaml_schema);
    const cyaml_err_t error =
        cyaml_save_data(&yaml, &num_bytes, &config, &yaml_schema.root, &doc, 0);
    if (error != CYAML_OK) {
        LG_TRY_GOTO(lgi_fail(error == CYAML_ERR_OOM ? LG_OUT_OF_MEMORY : LG_INTERNAL,
                             "cannot write the recipe as YAML: %s", cyaml_strerror(error)));
    }
    LG_TRY_GOTO(lgi_calloc(out, num_bytes + 1, 1));
    memcpy(*out, yaml, num_bytes);
out:
    for (int i = 0; i < num_fields; i++) {
        lgi_free(texts[i]);
        lgi_free(slots[i].items);
    }
    lgi_free(yaml);
    return status;
}
