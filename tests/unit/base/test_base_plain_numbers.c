/* A program with a locale of its own, whose numbers have a comma: files stay as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/plain_numbers.h"
#include "leapgrad/recipe.h"
#include "report/text_buffer.h"

static char root[256];

/* Makes the locale itself: what is installed differs between machines. */
static int make_locale(void **state)
{
    (void)state;
    char command[1024];
    const char *const parent = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    (void)snprintf(root, sizeof root, "%s/leapgrad-locale.XXXXXX", parent);
    if (mkdtemp(root) == NULL) {
        return 1;
    }
    (void)snprintf(command, sizeof command,
                   "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", root);
    const int made = system(command);
    return made < 0 || setenv("LOCPATH", root, 1) != 0;
}

static int remove_locale(void **state)
{
    (void)state;
    char command[512];
    (void)setlocale(LC_ALL, "C");
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) != 0;
}

static void recipes_and_pictures_keep_their_points(void **state)
{
    (void)state;
    static const char recipe_text[] = "data: {kind: text, text: kjv.txt, held_out_frac: 0.125}\n"
                                      "model: {kind: gpt}\ntrain: {steps: 5}\n";
    static const char *const overrides[] = {"optim.lr=0.375", "plan.memory_bytes=1.5K"};
    char text[32];
    char *yaml = NULL;
    lg_recipe *recipe = NULL;
    lgi_text buffer;
    if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL) {
        skip(); /* without the sources of locales there is nothing to test with */
    }
    assert_int_equal(
        lg_recipe_parse(&recipe, "test", recipe_text, strlen(recipe_text), overrides, 2), LG_OK);
    assert_true(recipe->data.held_out_frac == 0.125);
    assert_true(recipe->optim.lr == 0.375);
    assert_int_equal(recipe->plan.memory_bytes, 1536);
    assert_int_equal(lg_recipe_to_yaml(recipe, &yaml), LG_OK);
    assert_non_null(strstr(yaml, "0.375"));
    memset(&buffer, 0, sizeof buffer);
    lgi_text_addf(&buffer, "%.2f", 0.5);
    assert_int_equal(lgi_text_status(&buffer), LG_OK);
    assert_memory_equal(buffer.data, "0.50", 4);
    (void)snprintf(text, sizeof text, "%.2f", 0.5);
    assert_string_equal(text, "0,50"); /* the program's own numbers are as it wants them */
    lgi_text_deinit(&buffer);
    lg_recipe_text_destroy(yaml);
    lg_recipe_destroy(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipes_and_pictures_keep_their_points),
    };
    return cmocka_run_group_tests(tests, make_locale, remove_locale);
}
