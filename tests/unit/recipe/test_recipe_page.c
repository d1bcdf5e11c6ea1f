/* The committed reference page is the one that the table writes. LG_UPDATE=1 writes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "leapgrad/recipe.h"
#include "recipe/recipe_table.h"

static char *page_path(void)
{
    const char *const directory = getenv("LG_SOURCE_DIR");
    char *path = NULL;
    assert_int_equal(lgi_path_join(&path, directory != NULL ? directory : ".", "docs/recipe.md"),
                     LG_OK);
    return path;
}

static void committed_page_is_current(void **state)
{
    (void)state;
    char *const path = page_path();
    char *expected = NULL;
    char *got = NULL;
    size_t num_bytes = 0;
    assert_int_equal(lg_recipe_reference(&expected), LG_OK);
    if (getenv("LG_UPDATE") != NULL) {
        assert_int_equal(lgi_file_write(path, expected, strlen(expected)), LG_OK);
    }
    assert_int_equal(lgi_file_read(&got, &num_bytes, path, 1 << 20), LG_OK);
    if (strcmp(got, expected) != 0) {
        fail_msg("%s is not current: run this test with LG_UPDATE=1", path);
    }
    lgi_free(got);
    lg_recipe_text_destroy(expected);
    lgi_free(path);
}

static void page_and_help_have_every_key(void **state)
{
    (void)state;
    char *page = NULL;
    char *help = NULL;
    assert_int_equal(lg_recipe_reference(&page), LG_OK);
    assert_int_equal(lg_recipe_help(&help), LG_OK);
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    for (int i = 0; i < num_fields; i++) {
        char text[128];
        (void)snprintf(text, sizeof text, "| `%s` |", fields[i].key);
        assert_non_null(strstr(page, text));
        (void)snprintf(text, sizeof text, "  %s=%s  (", fields[i].key, fields[i].default_text);
        assert_non_null(strstr(help, text));
        assert_non_null(strstr(help, fields[i].help));
        assert_null(strchr(fields[i].help, '|')); /* would break the page's table */
    }
    lg_recipe_text_destroy(page);
    lg_recipe_text_destroy(help);
}

/* Rows that belong to no section, or stand apart from it, would be lost. */
static void sections_hold_every_field_once(void **state)
{
    (void)state;
    int num_fields = 0;
    (void)lgi_recipe_fields(&num_fields);
    int next = 0;
    for (int s = 0; s < lgi_recipe_num_sections(); s++) {
        const lgi_section section = lgi_recipe_section(s);
        assert_int_equal(section.first_field, next);
        assert_true(section.num_fields > 0);
        next += section.num_fields;
    }
    assert_int_equal(next, num_fields);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_page_is_current),
        cmocka_unit_test(page_and_help_have_every_key),
        cmocka_unit_test(sections_hold_every_field_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
