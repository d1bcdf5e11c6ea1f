/* One key: text into member, member into text, range check. All sources of values (file, override, default) come here. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/parse.h"
#include "base/plain_numbers.h"
#include "recipe/recipe_table.h"

static void *member(const lgi_field *field, lg_recipe *recipe)
{
    return (char *)recipe + field->offset;
}

const void *lgi_field_member(const lgi_field *field, const lg_recipe *recipe)
{
    return (const char *)recipe + field->offset;
}

const char *lgi_field_type_name(const lgi_field *field)
{
    static const char *const names[LGI_NUM_FIELD_TYPES] = {
        [LGI_FIELD_INT] = "integer",  [LGI_FIELD_BYTES] = "size", [LGI_FIELD_FLOAT] = "number",
        [LGI_FIELD_BOOL] = "boolean", [LGI_FIELD_TEXT] = "text",  [LGI_FIELD_CHOICE] = "choice",
        [LGI_FIELD_NUMBERS] = "list",
    };
    return field->choices != NULL ? names[LGI_FIELD_CHOICE] : names[field->type];
}

void lgi_format_number(char text[LGI_NUMBER_TEXT_BYTES], double value)
{
    const locale_t before = lgi_plain_numbers_begin();
    bool is_exact = false;
    for (int digits = 15; digits <= 17 && !is_exact; digits++) {
        (void)snprintf(text, LGI_NUMBER_TEXT_BYTES, "%.*g", digits, value);
        is_exact = strtod(text, NULL) == value;
    }
    lgi_plain_numbers_end(before);
}

void lgi_field_write_range(const lgi_field *field, FILE *stream)
{
    if (field->choices != NULL) {
        for (int i = 0; field->choices[i] != NULL; i++) {
            (void)fprintf(stream, "%s%s", i > 0 ? ", " : "", field->choices[i]);
        }
        return;
    }
    switch (field->type) {
    case LGI_FIELD_BOOL:
        (void)fputs("true, false", stream);
        break;
    case LGI_FIELD_TEXT:
        (void)fprintf(stream, "up to %d bytes", LG_RECIPE_MAX_TEXT_BYTES);
        break;
    case LGI_FIELD_INT:
    case LGI_FIELD_BYTES:
        (void)fprintf(stream, "%" PRId64 "..%" PRId64, (int64_t)field->min, (int64_t)field->max);
        break;
    case LGI_FIELD_NUMBERS:
        (void)fprintf(stream, "1 to %d of %.9g..%.9g", LG_RECIPE_MAX_NUMBERS, field->min,
                      field->max);
        break;
    default:
        (void)fprintf(stream, "%.9g..%.9g", field->min, field->max);
        break;
    }
}

/* Fails with "key: 'text' is not one of a, b, c". */
static lg_status fail_choice(const lgi_field *field, const char *text)
{
    char list[256] = "";
    size_t used = 0;
    for (int i = 0; field->choices[i] != NULL && used < sizeof list; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                 field->choices[i]);
    }
    LG_FAIL(LG_INVALID_ARG, "%s: '%s' is not one of %s", field->key, text, list);
}

static int find_choice(const lgi_field *field, const char *text)
{
    for (int i = 0; field->choices[i] != NULL; i++) {
        if (strcmp(field->choices[i], text) == 0) {
            return i;
        }
    }
    return -1;
}

static bool is_chosen(const lgi_field *field, const char *text)
{
    const char *const plus = field->allows_two ? strchr(text, '+') : NULL;
    if (plus == NULL) {
        return find_choice(field, text) >= 0;
    }
    bool has_first = false;
    for (int i = 0; field->choices[i] != NULL; i++) {
        const size_t length = strlen(field->choices[i]);
        has_first = has_first || (length == (size_t)(plus - text) &&
                                  strncmp(field->choices[i], text, length) == 0);
    }
    return has_first && find_choice(field, plus + 1) >= 0;
}

/* Strings must survive the way into JSON and back. */
static lg_status check_text(const lgi_field *field, const char *text)
{
    const size_t length = strlen(text);
    if (length > LG_RECIPE_MAX_TEXT_BYTES) {
        LG_FAIL(LG_INVALID_ARG, "%s: %zu bytes of text are more than the %d allowed", field->key,
                length, LG_RECIPE_MAX_TEXT_BYTES);
    }
    json_t *probe = json_stringn(text, length);
    if (probe == NULL) {
        LG_FAIL(LG_INVALID_ARG, "%s: the text is not valid UTF-8", field->key);
    }
    json_decref(probe);
    for (const char *c = text; *c != '\0'; c++) {
        const bool is_space = *c == '\n' || *c == '\t';
        if (((unsigned char)*c < 0x20 && !is_space) || *c == 0x7f) {
            LG_FAIL(LG_INVALID_ARG, "%s: the text has a control character (code %d)", field->key,
                    *c);
        }
    }
    return LG_OK;
}

static lg_status parse_text(const lgi_field *field, char **out, const char *text)
{
    if (field->choices != NULL && !is_chosen(field, text)) {
        return fail_choice(field, text);
    }
    LG_TRY(check_text(field, text));
    char *copy = NULL;
    LG_TRY(lgi_strdup(&copy, text));
    lgi_free(*out);
    *out = copy;
    return LG_OK;
}

/* Commas between numbers; blanks and one pair of brackets around them are fine. */
static lg_status parse_list(const lgi_field *field, lg_recipe *recipe, const char *text)
{
    const char *texts[LG_RECIPE_MAX_NUMBERS + 1];
    size_t num = 0;
    lg_status status = LG_OK;
    char *copy = NULL;
    LG_TRY(lgi_strdup(&copy, text));
    char *begin = copy;
    char *end = copy + strlen(copy);
    if (end - begin >= 2 && begin[0] == '[' && end[-1] == ']') {
        begin++;
        *--end = '\0';
    }
    while (begin != NULL && num <= LG_RECIPE_MAX_NUMBERS) {
        while (isspace((unsigned char)*begin)) {
            begin++;
        }
        char *const comma = strchr(begin, ',');
        char *item_end = comma != NULL ? comma : begin + strlen(begin);
        while (item_end > begin && isspace((unsigned char)item_end[-1])) {
            item_end--;
        }
        *item_end = '\0';
        texts[num++] = begin;
        begin = comma != NULL ? comma + 1 : NULL;
    }
    LG_TRY_GOTO(lgi_field_parse_numbers(field, recipe, texts, num));
out:
    lgi_free(copy);
    return status;
}

lg_status lgi_field_parse_numbers(const lgi_field *field, lg_recipe *recipe,
                                  const char *const *texts, size_t num)
{
    if (num < 1 || num > LG_RECIPE_MAX_NUMBERS) {
        LG_FAIL(LG_INVALID_ARG, "%s: a list has 1 to %d numbers", field->key,
                LG_RECIPE_MAX_NUMBERS);
    }
    lg_recipe_numbers numbers = {.num = (int)num};
    for (size_t i = 0; i < num; i++) {
        LG_TRY(lgi_parse_f64(&numbers.values[i], field->key, texts[i], field->min, field->max));
    }
    memcpy(member(field, recipe), &numbers, sizeof numbers);
    return LG_OK;
}

static lg_status parse_bool(const lgi_field *field, bool *out, const char *text)
{
    const bool is_true = strcmp(text, "true") == 0;
    if (!is_true && strcmp(text, "false") != 0) {
        LG_FAIL(LG_INVALID_ARG, "%s: '%s' is not one of true, false", field->key, text);
    }
    *out = is_true;
    return LG_OK;
}

lg_status lgi_field_parse(const lgi_field *field, lg_recipe *recipe, const char *text)
{
    void *const out = member(field, recipe);
    if (field->type != LGI_FIELD_TEXT && isspace((unsigned char)text[0])) {
        LG_FAIL(LG_INVALID_ARG, "%s: '%s' starts with a blank", field->key, text);
    }
    switch (field->type) {
    case LGI_FIELD_INT:
        return lgi_parse_i64(out, field->key, text, (int64_t)field->min, (int64_t)field->max);
    case LGI_FIELD_BYTES:
        return lgi_parse_bytes(out, field->key, text, (int64_t)field->min, (int64_t)field->max);
    case LGI_FIELD_FLOAT:
        return lgi_parse_f64(out, field->key, text, field->min, field->max);
    case LGI_FIELD_BOOL:
        return parse_bool(field, out, text);
    case LGI_FIELD_TEXT:
        return parse_text(field, out, text);
    case LGI_FIELD_CHOICE: {
        const int choice = find_choice(field, text);
        if (choice < 0) {
            return fail_choice(field, text);
        }
        memcpy(out, &(unsigned){(unsigned)choice}, sizeof(unsigned));
        return LG_OK;
    }
    case LGI_FIELD_NUMBERS:
        return parse_list(field, recipe, text);
    default:
        LG_FAIL(LG_INTERNAL, "%s: field type %d", field->key, (int)field->type);
    }
}

lg_status lgi_field_format(const lgi_field *field, const lg_recipe *recipe, char **out)
{
    const void *const in = lgi_field_member(field, recipe);
    char text[LG_RECIPE_MAX_NUMBERS * LGI_NUMBER_TEXT_BYTES] = "";
    *out = NULL;
    LG_TRY(lgi_field_check(field, recipe)); /* a member may have been written by hand */
    switch (field->type) {
    case LGI_FIELD_INT:
    case LGI_FIELD_BYTES:
        (void)snprintf(text, sizeof text, "%" PRId64, *(const int64_t *)in);
        break;
    case LGI_FIELD_FLOAT:
        lgi_format_number(text, *(const double *)in);
        break;
    case LGI_FIELD_BOOL:
        (void)snprintf(text, sizeof text, "%s", *(const bool *)in ? "true" : "false");
        break;
    case LGI_FIELD_TEXT:
        return lgi_strdup(out, *(char *const *)in);
    case LGI_FIELD_CHOICE:
        return lgi_strdup(out, field->choices[*(const unsigned *)in]);
    case LGI_FIELD_NUMBERS: {
        const lg_recipe_numbers *const numbers = in;
        char *end = text;
        for (int i = 0; i < numbers->num; i++) {
            if (i > 0) {
                *end++ = ',';
            }
            lgi_format_number(end, numbers->values[i]);
            end += strlen(end);
        }
        break;
    }
    default:
        LG_FAIL(LG_INTERNAL, "%s: field type %d", field->key, (int)field->type);
    }
    return lgi_strdup(out, text);
}

static lg_status check_number(const lgi_field *field, double value)
{
    if (!(value >= field->min && value <= field->max)) {
        LG_FAIL(LG_INVALID_ARG, "%s: %.9g is not in [%.9g, %.9g]", field->key, value, field->min,
                field->max);
    }
    return LG_OK;
}

lg_status lgi_field_check(const lgi_field *field, const lg_recipe *recipe)
{
    const void *const in = lgi_field_member(field, recipe);
    switch (field->type) {
    case LGI_FIELD_INT:
    case LGI_FIELD_BYTES:
        return check_number(field, (double)*(const int64_t *)in);
    case LGI_FIELD_FLOAT:
        return check_number(field, *(const double *)in);
    case LGI_FIELD_TEXT: {
        const char *const text = *(char *const *)in;
        if (text == NULL) {
            LG_FAIL(LG_INVALID_ARG, "%s: NULL instead of a text", field->key);
        }
        if (field->choices != NULL && !is_chosen(field, text)) {
            return fail_choice(field, text);
        }
        return check_text(field, text);
    }
    case LGI_FIELD_CHOICE: {
        unsigned num_choices = 0;
        while (field->choices[num_choices] != NULL) {
            num_choices++;
        }
        if (*(const unsigned *)in >= num_choices) {
            LG_FAIL(LG_INVALID_ARG, "%s: choice %u is not in [0, %u)", field->key,
                    *(const unsigned *)in, num_choices);
        }
        return LG_OK;
    }
    case LGI_FIELD_NUMBERS: {
        const lg_recipe_numbers *const numbers = in;
        if (numbers->num < 1 || numbers->num > LG_RECIPE_MAX_NUMBERS) {
            LG_FAIL(LG_INVALID_ARG, "%s: %d numbers are not in [1, %d]", field->key, numbers->num,
                    LG_RECIPE_MAX_NUMBERS);
        }
        for (int i = 0; i < numbers->num; i++) {
            LG_TRY(check_number(field, numbers->values[i]));
        }
        return LG_OK;
    }
    default:
        return LG_OK;
    }
}

void lgi_field_clear(const lgi_field *field, lg_recipe *recipe)
{
    if (field->type == LGI_FIELD_TEXT) {
        char **const text = member(field, recipe);
        lgi_free(*text);
        *text = NULL;
    }
}
