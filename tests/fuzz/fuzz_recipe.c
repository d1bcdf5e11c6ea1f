/*
 * Recipe parser under libFuzzer. The input is the YAML text; a line that starts with "\x01" ends it, and each line after
 * that is an override. A recipe that is taken must be in bounds, and its YAML must read back to the same JSON.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

static void require(int is_true)
{
    if (!is_true) {
        abort();
    }
}

static void check_round_trip(const lg_recipe *recipe)
{
    char *yaml = NULL;
    char *json = NULL;
    char *json_again = NULL;
    lg_recipe *again = NULL;
    require(lg_recipe_check(recipe) == LG_OK);
    require(lg_recipe_to_yaml(recipe, &yaml) == LG_OK);
    require(lg_recipe_to_json(recipe, &json) == LG_OK);
    /* several long texts together may be more than a file may have */
    if (strlen(yaml) <= LG_RECIPE_MAX_FILE_BYTES) {
        require(lg_recipe_parse(&again, "again", yaml, strlen(yaml), NULL, 0) == LG_OK);
        require(lg_recipe_to_json(again, &json_again) == LG_OK);
        require(strcmp(json, json_again) == 0);
    }
    lg_recipe_text_destroy(yaml);
    lg_recipe_text_destroy(json);
    lg_recipe_text_destroy(json_again);
    lg_recipe_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes)
{
    enum { MAX_OVERRIDES = 8 };
    const char *overrides[MAX_OVERRIDES];
    int num_overrides = 0;
    char *const text = malloc(num_bytes + 1);
    require(text != NULL);
    if (num_bytes > 0) {
        memcpy(text, data, num_bytes);
    }
    text[num_bytes] = '\0';
    char *const mark = memchr(text, '\x01', num_bytes);
    const size_t yaml_bytes = mark != NULL ? (size_t)(mark - text) : num_bytes;
    char *rest = mark != NULL ? mark + 1 : NULL;
    while (rest != NULL && num_overrides < MAX_OVERRIDES) {
        overrides[num_overrides++] = strsep(&rest, "\n");
    }
    lg_recipe *recipe = NULL;
    if (lg_recipe_parse(&recipe, "fuzz", text, yaml_bytes, overrides, num_overrides) == LG_OK) {
        check_round_trip(recipe);
    } else {
        require(recipe == NULL && lg_last_error()[0] != '\0');
    }
    lg_recipe_destroy(recipe);
    free(text);
    return 0;
}
