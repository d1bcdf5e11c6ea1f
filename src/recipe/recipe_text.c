/* Recipes and their table as text: JSON and YAML of a recipe, help and reference page of the table. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "base/check.h"
#include "recipe/recipe_table.h"
#include "recipe/recipe_yaml.h"

void lg_recipe_text_destroy(char *text)
{
    lgi_free(text);
}

/* A text that grows by printing. */
typedef struct text_writer {
    FILE *stream;
    char *text;
    size_t num_bytes;
} text_writer;

static lg_status text_open(text_writer *writer)
{
    memset(writer, 0, sizeof *writer);
    writer->stream = open_memstream(&writer->text, &writer->num_bytes);
    if (writer->stream == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: cannot open a text buffer");
    }
    return LG_OK;
}

/* Ends the text; it is given to *out if `status` and the printing went well. */
static lg_status text_close(text_writer *writer, lg_status status, char **out)
{
    const bool has_failed = ferror(writer->stream) != 0;
    if (fclose(writer->stream) != 0 || has_failed) {
        LG_KEEP_FIRST(lgi_fail(LG_OUT_OF_MEMORY, "out of memory while writing a text"));
    }
    *out = NULL;
    if (status == LG_OK) {
        LG_KEEP_FIRST(lgi_strdup(out, writer->text));
    }
    free(writer->text);
    return status;
}

lg_status lg_recipe_to_yaml(const lg_recipe *recipe, char **out)
{
    return lgi_recipe_write_yaml(recipe, out);
}

static lg_status write_json_text(FILE *stream, const char *text)
{
    json_t *json = json_string(text);
    if (json == NULL || json_dumpf(json, stream, JSON_ENCODE_ANY) != 0) {
        json_decref(json);
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory while writing JSON");
    }
    json_decref(json);
    return LG_OK;
}

static lg_status write_json_value(FILE *stream, const lgi_field *field, const lg_recipe *recipe)
{
    lg_status status = LG_OK;
    char *text = NULL;
    LG_TRY(lgi_field_format(field, recipe, &text));
    switch (field->type) {
    case LGI_FIELD_TEXT:
    case LGI_FIELD_CHOICE:
        LG_TRY_GOTO(write_json_text(stream, text));
        break;
    case LGI_FIELD_NUMBERS:
        (void)fprintf(stream, "[%s]", text);
        break;
    default:
        (void)fputs(text, stream);
        break;
    }
out:
    lgi_free(text);
    return status;
}

lg_status lg_recipe_to_json(const lg_recipe *recipe, char **out)
{
    lg_status status = LG_OK;
    text_writer writer;
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    const int num_sections = lgi_recipe_num_sections();
    *out = NULL;
    LG_TRY(text_open(&writer));
    (void)fputs("{\n", writer.stream);
    for (int s = 0; s < num_sections; s++) {
        const lgi_section section = lgi_recipe_section(s);
        (void)fprintf(writer.stream, "  \"%s\": {\n", section.name);
        for (int f = 0; f < section.num_fields; f++) {
            const lgi_field *const field = &fields[section.first_field + f];
            (void)fprintf(writer.stream, "    \"%s\": ", lgi_field_name(field));
            LG_TRY_GOTO(write_json_value(writer.stream, field, recipe));
            (void)fputs(f + 1 < section.num_fields ? ",\n" : "\n", writer.stream);
        }
        (void)fputs(s + 1 < num_sections ? "  },\n" : "  }\n", writer.stream);
    }
    (void)fputs("}\n", writer.stream);
out:
    return text_close(&writer, status, out);
}

lg_status lg_recipe_help(char **out)
{
    text_writer writer;
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    *out = NULL;
    LG_TRY(text_open(&writer));
    FILE *const stream = writer.stream;
    for (int s = 0; s < lgi_recipe_num_sections(); s++) {
        const lgi_section section = lgi_recipe_section(s);
        (void)fprintf(stream, "%s%s: %s\n", s > 0 ? "\n" : "", section.name, section.help);
        for (int f = 0; f < section.num_fields; f++) {
            const lgi_field *const field = &fields[section.first_field + f];
            (void)fprintf(stream, "  %s=%s  (%s, ", field->key, field->default_text,
                          lgi_field_type_name(field));
            lgi_field_write_range(field, stream);
            (void)fprintf(stream, "%s%s)\n      %s\n", field->unit[0] != '\0' ? " " : "",
                          field->unit, field->help);
        }
    }
    return text_close(&writer, LG_OK, out);
}

static const char page_head[] =
    "# Recipe reference\n"
    "\n"
    "A recipe is a YAML file of sections and keys. Every key has a default; a recipe says only "
    "what differs. On the\n"
    "command line `section.key=value` overrides the file: `leapgrad train recipes/kjv-gpt.yaml "
    "train.steps=50`.\n"
    "\n"
    "Sizes take a suffix: `K`, `M`, `G` (powers of 1024). Lists are `[0.1, 0.2]` in a file and "
    "`0.1,0.2` on the command\n"
    "line. Unknown keys, keys that come twice, values out of range, aliases, several documents and "
    "files over 64 KiB are\n"
    "errors. The effective recipe is stored with the run.\n"
    "\n"
    "This page is written from the table in `src/recipe/recipe_table.c`; do not edit it by hand. "
    "When the table has\n"
    "changed, `LG_UPDATE=1 build/tests/test_recipe_page` writes it anew.\n";

lg_status lg_recipe_reference(char **out)
{
    text_writer writer;
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    *out = NULL;
    LG_TRY(text_open(&writer));
    FILE *const stream = writer.stream;
    (void)fputs(page_head, stream);
    for (int s = 0; s < lgi_recipe_num_sections(); s++) {
        const lgi_section section = lgi_recipe_section(s);
        (void)fprintf(stream, "\n## %s\n\n%s\n\n", section.name, section.help);
        (void)fputs("| key | type | default | range | what |\n|---|---|---|---|---|\n", stream);
        for (int f = 0; f < section.num_fields; f++) {
            const lgi_field *const field = &fields[section.first_field + f];
            const bool has_default = field->default_text[0] != '\0';
            (void)fprintf(stream, "| `%s` | %s | %s%s%s | ", field->key, lgi_field_type_name(field),
                          has_default ? "`" : "", has_default ? field->default_text : "(empty)",
                          has_default ? "`" : "");
            lgi_field_write_range(field, stream);
            (void)fprintf(stream, "%s%s | %s |\n", field->unit[0] != '\0' ? " " : "", field->unit,
                          field->help);
        }
    }
    return text_close(&writer, LG_OK, out);
}
