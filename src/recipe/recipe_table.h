/*
 * The table of all recipe keys, and what can be done with one key. Everything that knows a key by name goes through the
 * table: a key is added by one member in lg_recipe and one row in recipe_table.c.
 */
#ifndef LGI_RECIPE_RECIPE_TABLE_H
#define LGI_RECIPE_RECIPE_TABLE_H

#include <stdio.h>

#include "leapgrad/recipe.h"

typedef enum lgi_field_type {
    LGI_FIELD_INT,     /* int64_t */
    LGI_FIELD_BYTES,   /* int64_t; text may have a suffix K, M, G */
    LGI_FIELD_FLOAT,   /* double */
    LGI_FIELD_BOOL,    /* bool */
    LGI_FIELD_TEXT,    /* char *; one of `choices` if there are any */
    LGI_FIELD_CHOICE,  /* an enum that counts through `choices` */
    LGI_FIELD_NUMBERS, /* lg_recipe_numbers */
    LGI_NUM_FIELD_TYPES
} lgi_field_type;

/* One key. Ranges are closed; they hold for numbers and for each entry of a list. */
typedef struct lgi_field {
    const char *key; /* "train.steps" */
    lgi_field_type type;
    size_t offset;            /* of the member within lg_recipe */
    const char *unit;         /* "" for none */
    const char *default_text; /* in the form that an override has */
    double min;
    double max;
    const char *const *choices; /* NULL-terminated; NULL for none */
    bool allows_two;            /* TEXT: two choices joined by '+' are fine as well */
    const char *help;           /* one or more sentences */
} lgi_field;

/* A section: name, one sentence, and its part of the fields. */
typedef struct lgi_section {
    const char *name;
    const char *help;
    int first_field;
    int num_fields;
} lgi_section;

#define LGI_MAX_SECTIONS 16
#define LGI_MAX_FIELDS 128

/* The fields in the order of sections and pages. */
const lgi_field *lgi_recipe_fields(int *num_fields);
int lgi_recipe_num_sections(void);
lgi_section lgi_recipe_section(int section_idx);

/* The part of `field->key` after the point. */
const char *lgi_field_name(const lgi_field *field);

/* The field called `key`, or NULL. */
const lgi_field *lgi_recipe_find(const char *key);

/* Fails with INVALID_ARG: what `key` is not, and what there is in its section, or which sections there are. */
lg_status lgi_recipe_fail_unknown(const char *key);

/* "int", "size", ... as pages say it. */
const char *lgi_field_type_name(const lgi_field *field);

/* Writes the allowed values: "1..1000000", "sgd | adamw", "true | false". */
void lgi_field_write_range(const lgi_field *field, FILE *stream);

/* Sets the member from text. On failure it stays as it was and the message names key, text and range. */
LG_NODISCARD lg_status lgi_field_parse(const lgi_field *field, lg_recipe *recipe, const char *text);

/* Sets a NUMBERS member from `num` texts, one number each. */
LG_NODISCARD lg_status lgi_field_parse_numbers(const lgi_field *field, lg_recipe *recipe,
                                               const char *const *texts, size_t num);

/* Checks the member's range. */
LG_NODISCARD lg_status lgi_field_check(const lgi_field *field, const lg_recipe *recipe);

/* The member as text that lgi_field_parse() reads back to the same bits. Ownership: the caller's, lgi_free(). */
LG_NODISCARD lg_status lgi_field_format(const lgi_field *field, const lg_recipe *recipe,
                                        char **out);

/* A number as the shortest text that reads back to the same bits. */
#define LGI_NUMBER_TEXT_BYTES 32
void lgi_format_number(char text[LGI_NUMBER_TEXT_BYTES], double value);

/* Frees what a TEXT member holds. */
void lgi_field_clear(const lgi_field *field, lg_recipe *recipe);

/* The member itself. */
const void *lgi_field_member(const lgi_field *field, const lg_recipe *recipe);

#endif
