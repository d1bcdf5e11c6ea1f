/* Reading recipes: values, overrides, round trips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "leapgrad/recipe.h"
#include "recipe/recipe_table.h"

/* The least that makes a valid recipe. */
#define GPT_HEAD "data:\n  kind: text\n  text: kjv.txt\nmodel:\n  kind: gpt\n"
static const char small_gpt[] = GPT_HEAD "train:\n  steps: 5\n";

static lg_recipe *parse(const char *text, const char *const *overrides, int num_overrides)
{
    lg_recipe *recipe = NULL;
    if (lg_recipe_parse(&recipe, "test", text, strlen(text), overrides, num_overrides) != LG_OK) {
        fail_msg("%s", lg_last_error());
    }
    return recipe;
}

static void default_has_the_tables_values(void **state)
{
    (void)state;
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_default(&recipe), LG_OK);
    assert_int_equal(recipe->data.kind, LG_DATA_IDX);
    assert_int_equal(recipe->model.kind, LG_MODEL_RESNET);
    assert_int_equal(recipe->train.batch, 128);
    assert_string_equal(recipe->run.name, "run");
    assert_string_equal(recipe->data.text, "");
    assert_true(recipe->optim.lr == 0.1);
    assert_true(recipe->plan.allow_lag);
    assert_int_equal(recipe->optim.milestones.num, 2);
    assert_true(recipe->optim.milestones.values[1] == 0.75);
    lg_recipe_destroy(recipe);
}

static void file_sets_every_type_of_key(void **state)
{
    (void)state;
    lg_recipe *const recipe =
        parse("data: {kind: text, text: 'a b.txt', mean: [0.5, 1e-1], drop_last: true}\n"
              "model: {kind: gpt}\n"
              "train:\n  steps: 12\n"
              "optim:\n  lr: 2.5e-3\n  rule: adamw\n  milestones: [1]\n"
              "plan:\n  memory_bytes: 1.5K\n  strategy: in-order\n",
              NULL, 0);
    assert_int_equal(recipe->data.kind, LG_DATA_TEXT);
    assert_string_equal(recipe->data.text, "a b.txt");
    assert_int_equal(recipe->data.mean.num, 2);
    assert_true(recipe->data.mean.values[0] == 0.5 && recipe->data.mean.values[1] == 0.1);
    assert_true(recipe->data.drop_last);
    assert_int_equal(recipe->train.steps, 12);
    assert_true(recipe->optim.lr == 2.5e-3);
    assert_int_equal(recipe->optim.rule, LG_OPTIM_ADAMW);
    assert_int_equal(recipe->plan.memory_bytes, 1536);
    assert_string_equal(recipe->plan.strategy, "in-order");
    lg_recipe_destroy(recipe);
}

static void overrides_win_over_the_file(void **state)
{
    (void)state;
    const char *const overrides[] = {"train.steps=50", "plan.strategy=zb-h1+priority",
                                     "data.mean=0.1, 0.2", "generate.prompt=a=b",
                                     "plan.memory_bytes=2G"};
    lg_recipe *const recipe = parse(small_gpt, overrides, 5);
    assert_int_equal(recipe->train.steps, 50);
    assert_string_equal(recipe->plan.strategy, "zb-h1+priority");
    assert_int_equal(recipe->data.mean.num, 2);
    assert_string_equal(recipe->generate.prompt, "a=b");
    assert_true(recipe->plan.memory_bytes == (int64_t)2 << 30);
    lg_recipe_destroy(recipe);
}

static void no_file_takes_overrides_alone(void **state)
{
    (void)state;
    const char *const overrides[] = {"data.kind=text", "data.text=x", "model.kind=gpt",
                                     "train.epochs=1"};
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_load(&recipe, NULL, overrides, 4), LG_OK);
    assert_int_equal(recipe->train.epochs, 1);
    lg_recipe_destroy(recipe);
}

static void overriding_steps_takes_epochs_out(void **state)
{
    (void)state;
    static const char text[] =
        "data: {kind: text, text: x}\nmodel: {kind: gpt}\ntrain: {epochs: 3}\n";
    const char *const overrides[] = {"train.steps=50"};
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_parse(&recipe, "test", text, sizeof text - 1, overrides, 1), LG_OK);
    assert_int_equal(recipe->train.steps, 50);
    assert_int_equal(recipe->train.epochs, 0);
    lg_recipe_destroy(recipe);
}

static void assert_same(const lg_recipe *a, const lg_recipe *b)
{
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    for (int i = 0; i < num_fields; i++) {
        char *left = NULL;
        char *right = NULL;
        assert_int_equal(lgi_field_format(&fields[i], a, &left), LG_OK);
        assert_int_equal(lgi_field_format(&fields[i], b, &right), LG_OK);
        if (strcmp(left, right) != 0) {
            fail_msg("%s: '%s' became '%s'", fields[i].key, left, right);
        }
        lgi_free(left);
        lgi_free(right);
    }
}

/* Texts that YAML could take for something else, numbers that need all digits, empty lists. */
static void yaml_reads_back_to_the_same_recipe(void **state)
{
    (void)state;
    static const char *const prompts[] = {
        "",     "null",  "~",          "true",       "1e3", "# no comment", "a: b",     "- x",
        " led", "tail ", "two\nlines", "\"quoted\"", "'",   "\\0",          "\xc3\xa4", "[1, 2]",
        "*a",   "&a",    "!x",         "%x",         "@",   "a\tb",         "---",      "..."};
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        lg_recipe *const recipe = parse(small_gpt, NULL, 0);
        assert_int_equal(lg_recipe_set(recipe, "generate.prompt", prompts[i]), LG_OK);
        assert_int_equal(lg_recipe_set(recipe, "optim.lr", "0.10000000000000003"), LG_OK);
        assert_int_equal(lg_recipe_set(recipe, "data.std", "0.3,0.1234567890123456789,7"), LG_OK);
        char *yaml = NULL;
        assert_int_equal(lg_recipe_to_yaml(recipe, &yaml), LG_OK);
        lg_recipe *const back = parse(yaml, NULL, 0);
        assert_true(back->optim.lr == recipe->optim.lr);
        assert_memory_equal(&back->data.std, &recipe->data.std, sizeof back->data.std);
        assert_same(recipe, back);
        lg_recipe_text_destroy(yaml);
        lg_recipe_destroy(back);
        lg_recipe_destroy(recipe);
    }
}

static void json_has_every_key_with_its_type(void **state)
{
    (void)state;
    lg_recipe *const recipe = parse(small_gpt, NULL, 0);
    assert_int_equal(lg_recipe_set(recipe, "generate.prompt", "say \"x\"\n"), LG_OK);
    char *text = NULL;
    assert_int_equal(lg_recipe_to_json(recipe, &text), LG_OK);
    json_t *const json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    for (int i = 0; i < num_fields; i++) {
        char section[32];
        (void)snprintf(section, sizeof section, "%.*s", (int)strcspn(fields[i].key, "."),
                       fields[i].key);
        const json_t *const value =
            json_object_get(json_object_get(json, section), lgi_field_name(&fields[i]));
        assert_non_null(value);
        switch (fields[i].type) {
        case LGI_FIELD_INT:
        case LGI_FIELD_BYTES:
            assert_true(json_is_integer(value));
            break;
        case LGI_FIELD_FLOAT:
            assert_true(json_is_number(value));
            break;
        case LGI_FIELD_BOOL:
            assert_true(json_is_boolean(value));
            break;
        case LGI_FIELD_NUMBERS:
            assert_true(json_is_array(value));
            break;
        default:
            assert_true(json_is_string(value));
            break;
        }
    }
    const json_t *const generate = json_object_get(json, "generate");
    assert_string_equal(json_string_value(json_object_get(generate, "prompt")), "say \"x\"\n");
    assert_true(json_number_value(json_object_get(json_object_get(json, "optim"), "lr")) == 0.1);
    json_decref(json);
    lg_recipe_text_destroy(text);
    lg_recipe_destroy(recipe);
}

static void optim_opts_take_over_every_member(void **state)
{
    (void)state;
    const char *const overrides[] = {"optim.rule=adamw",       "optim.lr=0.5",
                                     "optim.momentum=0.25",    "optim.nesterov=true",
                                     "optim.weight_decay=0.1", "optim.decay_norm_and_bias=true",
                                     "optim.beta1=0.5",        "optim.beta2=0.6",
                                     "optim.epsilon=1e-3",     "optim.clip_norm=2",
                                     "optim.schedule=step",    "optim.warmup_steps=7",
                                     "optim.min_lr_frac=0.2",  "optim.milestones=0.3,0.4",
                                     "optim.step_factor=0.9"};
    lg_recipe *const recipe = parse(small_gpt, overrides, 15);
    const lg_optim_opts opts = lg_recipe_optim_opts(recipe);
    assert_int_equal(opts.rule, LG_OPTIM_ADAMW);
    assert_true(opts.lr == 0.5 && opts.momentum == 0.25 && opts.is_nesterov);
    assert_true(opts.weight_decay == 0.1 && opts.decay_norm_and_bias);
    assert_true(opts.beta1 == 0.5 && opts.beta2 == 0.6 && opts.epsilon == 1e-3);
    assert_true(opts.clip_norm == 2.0 && opts.schedule == LG_SCHEDULE_STEP);
    assert_true(opts.warmup_steps == 7 && opts.min_lr_frac == 0.2 && opts.step_factor == 0.9);
    assert_true(opts.num_milestones == 2 && opts.milestones[1] == 0.4);
    lg_recipe_destroy(recipe);
}

static void committed_recipes_load(void **state)
{
    (void)state;
    static const char *const names[] = {
        "fashion-resnet20", "fashion-densenet", "fashion-mobilenetv3",
        "fashion-vgg",      "kjv-gpt",          "kjv-bert"};
    const char *const directory = getenv("LG_SOURCE_DIR");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/recipes/%s.yaml", directory != NULL ? directory : ".",
                       names[i]);
        lg_recipe *recipe = NULL;
        if (lg_recipe_load(&recipe, path, NULL, 0) != LG_OK) {
            fail_msg("%s", lg_last_error());
        }
        assert_string_equal(recipe->run.name, names[i]);
        lg_recipe_destroy(recipe);
    }
}

/* Every allocation fails once; nothing leaks (the sanitizer run sees it) and nothing crashes. */
static void every_failing_allocation_is_out_of_memory(void **state)
{
    (void)state;
    const char *const overrides[] = {"train.steps=50"};
    int64_t num_failures = 0;
    for (int64_t n = 1;; n++) {
        lg_recipe *recipe = NULL;
        char *yaml = NULL;
        lgi_alloc_fail_after(n);
        lg_status status =
            lg_recipe_parse(&recipe, "test", small_gpt, strlen(small_gpt), overrides, 1);
        if (status == LG_OK) {
            status = lg_recipe_to_yaml(recipe, &yaml);
        }
        lgi_alloc_fail_after(0);
        lg_recipe_text_destroy(yaml);
        lg_recipe_destroy(recipe);
        if (status == LG_OK) {
            break;
        }
        if (status != LG_OUT_OF_MEMORY) {
            fail_msg("allocation %d: %s", (int)n, lg_last_error());
        }
        num_failures++;
    }
    assert_true(num_failures > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_has_the_tables_values),
        cmocka_unit_test(file_sets_every_type_of_key),
        cmocka_unit_test(overrides_win_over_the_file),
        cmocka_unit_test(no_file_takes_overrides_alone),
        cmocka_unit_test(overriding_steps_takes_epochs_out),
        cmocka_unit_test(yaml_reads_back_to_the_same_recipe),
        cmocka_unit_test(json_has_every_key_with_its_type),
        cmocka_unit_test(optim_opts_take_over_every_member),
        cmocka_unit_test(committed_recipes_load),
        cmocka_unit_test(every_failing_allocation_is_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
