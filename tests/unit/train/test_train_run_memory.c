/* A whole run with allocations that fail: one message, nothing half-written, and a run that goes on to the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "leapgrad/run.h"

/* Above the allocations that the run below makes. */
enum { MAX_ALLOCATIONS = 100000 };

static char root[256];

static const char recipe_text[] = "run: {name: small}\n"
                                  "data: {kind: text, text: 'text.txt', prefetch: 1}\n"
                                  "model: {kind: gpt, layers: 1, width: 8, heads: 2, context: 8}\n"
                                  "train: {steps: 3, batch: 2, checkpoint_every: 2}\n"
                                  "optim: {rule: adamw, lr: 0.01}\n"
                                  "plan: {costs: estimate}\n"
                                  "exec: {device: reference, threads: 1}\n"
                                  "generate: {tokens: 2}\n";

static int make_root(void **state)
{
    (void)state;
    const char *const parent = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    (void)snprintf(root, sizeof root, "%s/leapgrad-memory.XXXXXX", parent);
    if (mkdtemp(root) == NULL || chdir(root) != 0) {
        return 1;
    }
    FILE *const text = fopen("text.txt", "w");
    for (int i = 0; text != NULL && i < 40; i++) {
        (void)fputs("in the beginning was the word\n", text);
    }
    return text == NULL || fclose(text) != 0;
}

static int remove_root(void **state)
{
    (void)state;
    char command[512];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    return chdir("/") != 0 || system(command) != 0;
}

static lg_status train(bool resume, char hash[LG_WEIGHTS_HASH_CHARS])
{
    static const char *const overrides[] = {"run.dir=run"};
    lg_recipe *recipe = NULL;
    lg_run_result result;
    lg_run_opts opts = lg_run_opts_default();
    opts.resume = resume;
    lg_status status =
        lg_recipe_parse(&recipe, "recipe", recipe_text, strlen(recipe_text), overrides, 1);
    if (status == LG_OK) {
        status = lg_run_train(recipe, &opts, &result);
        if (status == LG_OK) {
            memcpy(hash, result.weights_hash, LG_WEIGHTS_HASH_CHARS);
        }
        lg_run_result_deinit(&result);
    }
    lg_recipe_destroy(recipe);
    return status;
}

/* Checkpoints' `.saving-*` may stay: the next one that is saved removes them. */
static bool has_half_written_files(void)
{
    return system("test -z \"$(find run -name '*.tmp-*' 2>/dev/null)\"") != 0;
}

static void a_run_without_memory_says_so_and_goes_on_later(void **state)
{
    (void)state;
    char expected[LG_WEIGHTS_HASH_CHARS];
    char hash[LG_WEIGHTS_HASH_CHARS] = "";
    int num_failed = 0;
    int countdown = 1;
    assert_int_equal(train(false, expected), LG_OK);
    for (; countdown < MAX_ALLOCATIONS; countdown += 1 + countdown / 12) {
        assert_int_equal(system("rm -rf run"), 0);
        lgi_alloc_fail_after(countdown);
        lg_status status = train(false, hash);
        const bool has_failed = lgi_alloc_left() == 0;
        lgi_alloc_fail_after(0);
        if (!has_failed) {
            assert_int_equal(status, LG_OK);
            break;
        }
        num_failed += status != LG_OK;
        if (status != LG_OK && status != LG_OUT_OF_MEMORY) {
            fail_msg("allocation %d: status %s: %s", countdown, lg_status_name(status),
                     lg_last_error());
        }
        if (has_half_written_files()) {
            fail_msg("allocation %d: half-written files stay", countdown);
        }
        if (status != LG_OK && access("run/run.json", F_OK) == 0) {
            status = train(true, hash);
        } else if (status != LG_OK) {
            assert_int_not_equal(access("run", F_OK), 0);
            continue;
        }
        if (status != LG_OK) {
            fail_msg("allocation %d: does not go on: %s", countdown, lg_last_error());
        }
        assert_string_equal(hash, expected);
    }
    assert_true(countdown < MAX_ALLOCATIONS);
    assert_true(num_failed > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_without_memory_says_so_and_goes_on_later),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
