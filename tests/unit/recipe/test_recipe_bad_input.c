/* Recipes that nobody should trust: each is INVALID_ARG, with a message that names what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "leapgrad/recipe.h"

#define GOOD "data:\n  kind: text\n  text: kjv.txt\nmodel:\n  kind: gpt\ntrain:\n  steps: 5\n"

static void assert_refused(const char *text, size_t num_bytes, const char *override,
                           const char *const *words)
{
    lg_recipe *recipe = (lg_recipe *)&recipe; /* must become NULL */
    const lg_status status =
        lg_recipe_parse(&recipe, "x.yaml", text, num_bytes, &override, override != NULL ? 1 : 0);
    if (status != LG_INVALID_ARG) {
        fail_msg("%s for: %.60s %s", lg_status_name(status), text,
                 override != NULL ? override : "");
    }
    assert_null(recipe);
    for (; *words != NULL; words++) {
        if (strstr(lg_last_error(), *words) == NULL) {
            fail_msg("'%s' is not in '%s'", *words, lg_last_error());
        }
    }
}

#define REFUSED(text, ...) \
    assert_refused(text, strlen(text), NULL, (const char *const[]){__VA_ARGS__, NULL})
#define OVERRIDE_REFUSED(override, ...) \
    assert_refused(GOOD, strlen(GOOD), override, (const char *const[]){__VA_ARGS__, NULL})

static void unknown_keys_name_section_line_and_the_known_ones(void **state)
{
    (void)state;
    REFUSED("train:\n  stpes: 5\n", "x.yaml", "train.stpes", "line 2", "steps");
    REFUSED("trian:\n  steps: 5\n", "x.yaml", "trian", "line 1", "train");
    REFUSED("steps: 5\n", "steps");
    OVERRIDE_REFUSED("train.stpes=5", "train.stpes", "steps");
    OVERRIDE_REFUSED("trian.steps=5", "trian.steps", "train optim");
    OVERRIDE_REFUSED("train=5", "train");
    OVERRIDE_REFUSED("=5", "''");
    OVERRIDE_REFUSED("train.steps", "section.key=value");
    OVERRIDE_REFUSED("", "section.key=value");
}

static void doubled_keys_are_refused(void **state)
{
    (void)state;
    REFUSED("train:\n  steps: 5\n  steps: 6\n", "x.yaml", "train.steps", "twice", "line 3");
    REFUSED("train:\n  steps: 5\ntrain:\n  epochs: 6\n", "train", "twice", "line 3");
    REFUSED("data: {mean: [1], mean: [2]}\n", "data.mean", "twice");
    const char *const overrides[] = {"train.steps=1", "train.batch=2", "train.steps=1"};
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_parse(&recipe, "x", GOOD, strlen(GOOD), overrides, 3),
                     LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "train.steps"));
    assert_non_null(strstr(lg_last_error(), "twice"));
}

static void wrong_types_name_key_and_line(void **state)
{
    (void)state;
    REFUSED(GOOD "  batch: many\n", "train.batch", "many", "line 8", "1048576");
    REFUSED(GOOD "  batch: 5x\n", "train.batch", "5x");
    REFUSED(GOOD "  batch: 5.0\n", "train.batch");
    REFUSED(GOOD "  batch: ' 5'\n", "train.batch", "blank");
    REFUSED(GOOD "  batch:\n", "train.batch");
    REFUSED(GOOD "  batch: [5]\n", "train.batch", "SEQUENCE", "line 8");
    REFUSED(GOOD "  batch: {a: 5}\n", "train.batch");
    REFUSED("train: 5\n", "train", "MAPPING");
    REFUSED("train:\n", "train");
    REFUSED("data:\n  mean: 0.5\n", "data.mean");
    REFUSED("data:\n  mean: [[0.5]]\n", "line 2", "nested");
    REFUSED("data:\n  mean: [a]\n", "data.mean", "'a'", "line 2");
    REFUSED("data:\n  flip: yes\n", "data.flip", "true, false");
    REFUSED("model:\n  kind: resnet50\n", "model.kind", "resnet50", "densenet");
    REFUSED("plan:\n  strategy: best\n", "plan.strategy", "in-order, out-of-order");
    REFUSED("plan:\n  strategy: 1f1b+best\n", "plan.strategy", "in-order, out-of-order");
    REFUSED("plan:\n  strategy: best+wfbp\n", "plan.strategy", "in-order, out-of-order");
    REFUSED("plan:\n  strategy: 1f1b+wfbp+wfbp\n", "plan.strategy", "reverse-first-k");
    REFUSED("exec:\n  device: auto+cpu\n", "exec.device", "auto, cpu");
    REFUSED("plan:\n  memory_bytes: 5Q\n", "plan.memory_bytes", "5Q");
}

static void values_out_of_range_name_the_range(void **state)
{
    (void)state;
    OVERRIDE_REFUSED("train.batch=0", "train.batch", "[1, 1048576]");
    OVERRIDE_REFUSED("train.batch=99999999999999999999", "train.batch");
    OVERRIDE_REFUSED("train.seed=-1", "train.seed", "[0, 9007199254740992]");
    OVERRIDE_REFUSED("optim.lr=nan", "optim.lr");
    OVERRIDE_REFUSED("optim.lr=inf", "optim.lr");
    OVERRIDE_REFUSED("optim.lr=1e400", "optim.lr");
    OVERRIDE_REFUSED("optim.beta1=1", "optim.beta1");
    OVERRIDE_REFUSED("data.std=0.5,0", "data.std");
    OVERRIDE_REFUSED("data.std=0.5,", "data.std");
    OVERRIDE_REFUSED("data.std=[0.5", "data.std");
    OVERRIDE_REFUSED("data.mean=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "data.mean", "16");
    OVERRIDE_REFUSED("data.mean=", "data.mean");
    OVERRIDE_REFUSED("data.mean=[]", "data.mean");
    REFUSED("data: {mean: []}\n", "data.mean", "1 to 16");
    OVERRIDE_REFUSED("plan.memory_bytes=-1", "plan.memory_bytes");
    OVERRIDE_REFUSED("plan.memory_bytes=99999999G", "plan.memory_bytes");
    OVERRIDE_REFUSED("generate.prompt=\xff", "generate.prompt", "UTF-8");
    OVERRIDE_REFUSED("generate.prompt=a\x01", "generate.prompt", "control");
    REFUSED("data: {mean: [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}\n", "data.mean", "16");
    char *const text = calloc(1, 8192);
    (void)snprintf(text, 8192, "generate.prompt=%05000d", 0);
    OVERRIDE_REFUSED(text, "generate.prompt", "4096");
    free(text);
}

static void keys_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    REFUSED(GOOD "  epochs: 1\n", "train.steps", "train.epochs");
    OVERRIDE_REFUSED("train.steps=0", "train.steps", "train.epochs");
    OVERRIDE_REFUSED("train.micro_batches=129", "train.micro_batches", "128");
    OVERRIDE_REFUSED("model.kind=resnet", "data.kind", "idx");
    OVERRIDE_REFUSED("data.text=", "data.text");
    OVERRIDE_REFUSED("plan.costs=file", "plan.costs_file");
    OVERRIDE_REFUSED("optim.milestones=0.5,0.5", "optim.milestones");
    REFUSED("optim: {nesterov: true, momentum: 0}\n" GOOD, "optim.nesterov");
    REFUSED("train:\n  steps: 1\n", "data.train_images");
}

static void what_is_not_yaml_is_refused(void **state)
{
    (void)state;
    REFUSED("@\n", "x.yaml", "line 1", "not YAML");
    REFUSED("\x01\x02", "x.yaml", "byte 0", "not YAML");
    REFUSED("just words\n", "not a recipe");
    REFUSED("[1, 2]\n", "not a recipe");
    REFUSED("train: {steps: 5\n", "x.yaml", "line 2", "not YAML");
    REFUSED("\xff\xfet", "x.yaml");
    REFUSED(GOOD "trailing\n", "x.yaml", "line 9", "not YAML");
    assert_refused("train:\0", 7, NULL, (const char *const[]){"x.yaml", NULL});
    REFUSED("generate:\n  prompt: \"a\\0b\"\n" GOOD, "line 2", "0 character");
    REFUSED("generate:\n  prompt: !!str b\n" GOOD, "line 2", "tag");
}

static void a_second_document_is_refused(void **state)
{
    (void)state;
    REFUSED(GOOD "---\ntrain:\n  steps: 6\n", "line 8", "one YAML document");
    REFUSED(GOOD "...\nmore\n", "line 9", "not YAML");
    REFUSED(GOOD "\r--- \r", "one YAML document");
}

static void start_marker_and_comments_are_fine(void **state)
{
    (void)state;
    static const char text[] = "# a comment\n\n--- # start\n" GOOD "# the end\n";
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_parse(&recipe, "x", text, strlen(text), NULL, 0), LG_OK);
    lg_recipe_destroy(recipe);
}

static void aliases_cannot_unfold(void **state)
{
    (void)state;
    REFUSED("data: &a {mean: [1]}\nmodel: *a\n", "alias");
    REFUSED("data:\n  mean: [&a 1, *a, *a]\n", "alias");
}

static void deep_nesting_is_refused_without_recursion(void **state)
{
    (void)state;
    enum { DEPTH = 60000 };
    char *const text = malloc(DEPTH + 64);
    const size_t head = (size_t)snprintf(text, 64, "data: {mean: ");
    memset(text + head, '[', DEPTH);
    assert_refused(text, head + DEPTH, NULL, (const char *const[]){"nested", NULL});
    memset(text, '{', DEPTH);
    text[DEPTH] = '\0';
    assert_refused(text, DEPTH, NULL, (const char *const[]){"x.yaml", NULL});
    memset(text, '[', DEPTH);
    assert_refused(text, DEPTH, NULL, (const char *const[]){"x.yaml", NULL});
    free(text);
}

static void large_files_are_refused(void **state)
{
    (void)state;
    const size_t num_bytes = LG_RECIPE_MAX_FILE_BYTES + 1;
    char *const text = malloc(num_bytes + 1);
    memset(text, '#', num_bytes);
    text[num_bytes] = '\0';
    assert_refused(text, num_bytes, NULL, (const char *const[]){"65536", NULL});
    char path[] = "/tmp/leapgrad-recipe-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, num_bytes), num_bytes);
    assert_int_equal(close(file), 0);
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_load(&recipe, path, NULL, 0), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), path));
    assert_int_equal(unlink(path), 0);
    free(text);
}

static void missing_file_and_directory_are_io_errors(void **state)
{
    (void)state;
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_load(&recipe, "/nonexistent/r.yaml", NULL, 0), LG_IO);
    assert_non_null(strstr(lg_last_error(), "/nonexistent/r.yaml"));
    assert_int_equal(lg_recipe_load(&recipe, "/tmp", NULL, 0), LG_IO);
    assert_null(recipe);
}

static void failed_set_leaves_the_recipe_alone(void **state)
{
    (void)state;
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_parse(&recipe, "x", GOOD, strlen(GOOD), NULL, 0), LG_OK);
    assert_int_equal(lg_recipe_set(recipe, "train.steps", "x"), LG_INVALID_ARG);
    assert_int_equal(lg_recipe_set(recipe, "data.mean", "0.5,x"), LG_INVALID_ARG);
    assert_int_equal(lg_recipe_set(recipe, "plan.strategy", "x"), LG_INVALID_ARG);
    assert_int_equal(lg_recipe_set(recipe, "nothing", "x"), LG_INVALID_ARG);
    assert_int_equal(recipe->train.steps, 5);
    assert_int_equal(recipe->data.mean.num, 1);
    assert_string_equal(recipe->plan.strategy, "out-of-order");
    lg_recipe_destroy(recipe);
}

static void members_written_out_of_range_are_found_by_check(void **state)
{
    (void)state;
    lg_recipe *recipe = NULL;
    assert_int_equal(lg_recipe_parse(&recipe, "x", GOOD, strlen(GOOD), NULL, 0), LG_OK);
    recipe->model.kind = (lg_model_kind)99;
    assert_int_equal(lg_recipe_check(recipe), LG_INVALID_ARG);
    assert_non_null(strstr(lg_last_error(), "model.kind"));
    char *json = NULL;
    assert_int_equal(lg_recipe_to_json(recipe, &json), LG_INVALID_ARG);
    assert_null(json);
    recipe->model.kind = LG_MODEL_GPT;
    recipe->data.mean.num = LG_RECIPE_MAX_NUMBERS + 1;
    assert_int_equal(lg_recipe_check(recipe), LG_INVALID_ARG);
    recipe->data.mean.num = 1;
    recipe->train.batch = -3;
    assert_int_equal(lg_recipe_check(recipe), LG_INVALID_ARG);
    lg_recipe_destroy(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_keys_name_section_line_and_the_known_ones),
        cmocka_unit_test(doubled_keys_are_refused),
        cmocka_unit_test(wrong_types_name_key_and_line),
        cmocka_unit_test(values_out_of_range_name_the_range),
        cmocka_unit_test(keys_that_contradict_each_other_are_refused),
        cmocka_unit_test(what_is_not_yaml_is_refused),
        cmocka_unit_test(a_second_document_is_refused),
        cmocka_unit_test(start_marker_and_comments_are_fine),
        cmocka_unit_test(aliases_cannot_unfold),
        cmocka_unit_test(deep_nesting_is_refused_without_recursion),
        cmocka_unit_test(large_files_are_refused),
        cmocka_unit_test(missing_file_and_directory_are_io_errors),
        cmocka_unit_test(failed_set_leaves_the_recipe_alone),
        cmocka_unit_test(members_written_out_of_range_are_found_by_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
