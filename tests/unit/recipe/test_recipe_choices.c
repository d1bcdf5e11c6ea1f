/* Choices that stand in other modules' registries as well are the same ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "leapgrad/plan.h"
#include "leapgrad/recipe.h"
#include "leapgrad/trainer.h"
#include "recipe/recipe_table.h"

static bool is_choice(const char *key, const char *text)
{
    const lgi_field *const field = lgi_recipe_find(key);
    assert_non_null(field);
    for (int i = 0; field->choices[i] != NULL; i++) {
        if (strcmp(field->choices[i], text) == 0) {
            return true;
        }
    }
    return false;
}

static void strategies_are_those_of_the_planner(void **state)
{
    (void)state;
    const lgi_field *const field = lgi_recipe_find("plan.strategy");
    int num_strategies = 0;
    for (; lg_strategy_name(num_strategies) != NULL; num_strategies++) {
        if (!is_choice("plan.strategy", lg_strategy_name(num_strategies))) {
            fail_msg("plan.strategy lacks '%s'", lg_strategy_name(num_strategies));
        }
    }
    assert_true(num_strategies > 0);
    assert_null(field->choices[num_strategies]); /* and none besides */
}

/* A build need not have all devices that a recipe can ask for. */
static void every_device_of_the_build_can_be_asked_for(void **state)
{
    (void)state;
    assert_true(is_choice("exec.device", "auto"));
    assert_non_null(lg_device_name(0));
    for (int i = 0; lg_device_name(i) != NULL; i++) {
        if (!is_choice("exec.device", lg_device_name(i))) {
            fail_msg("exec.device lacks '%s'", lg_device_name(i));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_are_those_of_the_planner),
        cmocka_unit_test(every_device_of_the_build_can_be_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
