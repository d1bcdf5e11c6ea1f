/* Checkpoint directories: whole or not there, damage found before anything is used, and the golden file. */
#include "checkpoint_fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define NUM_WEIGHTS 1000
#define MORE_THAN_A_SAVE_ALLOCATES 80

static float weights[NUM_WEIGHTS];
static float momentum[3] = {1.0f, 2.0f, 3.0f};

/* Saves a checkpoint whose first weight is the step. */
static lg_status save(const char *root, int64_t step, int num_keep, char *out_path, size_t room)
{
    lg_tensor_writer *model = NULL;
    lg_tensor_writer *optimizer = NULL;
    const lg_checkpoint_info info = {.step = step,
                                     .seed = 7,
                                     .recipe_json = "{\"model\": {\"name\": \"x\"}}",
                                     .weights_hash = "abc",
                                     .extra_json = "{\"epoch\": 2}"};
    weights[0] = (float)step;
    assert_ok(lg_tensor_writer_create(&model));
    assert_ok(lg_tensor_writer_create(&optimizer));
    assert_ok(lg_tensor_writer_add(model, "w", LG_FILE_DTYPE_F32, SHAPE(NUM_WEIGHTS), weights));
    assert_ok(lg_tensor_writer_add(optimizer, "w.momentum", LG_FILE_DTYPE_F32, SHAPE(3), momentum));
    const lg_status status =
        lg_checkpoint_save(root, model, optimizer, &info, num_keep, out_path, room);
    lg_tensor_writer_destroy(model);
    lg_tensor_writer_destroy(optimizer);
    return status;
}

/* The step of the checkpoint at `path`, after reading its weights. */
static int64_t step_at(const char *path)
{
    static float got[NUM_WEIGHTS];
    lg_checkpoint *checkpoint = NULL;
    assert_ok(lg_checkpoint_open(&checkpoint, path));
    const int64_t step = lg_checkpoint_about(checkpoint)->step;
    assert_ok(lg_tensor_file_read(lg_checkpoint_model(checkpoint), "w", LG_FILE_DTYPE_F32,
                                  SHAPE(NUM_WEIGHTS), got));
    assert_true(got[0] == (float)step);
    lg_checkpoint_close(checkpoint);
    return step;
}

static void saved_checkpoint_is_found_through_latest_and_by_name(void **state)
{
    (void)state;
    const char *root = in_scratch("found/deep");
    char path[256];
    assert_ok(save(root, 500, 1, path, sizeof path));
    assert_non_null(strstr(path, "found/deep/step-000500"));
    assert_int_equal(step_at(root), 500);
    assert_int_equal(step_at(path), 500);
    lg_checkpoint *checkpoint = NULL;
    assert_ok(lg_checkpoint_open(&checkpoint, root));
    const lg_checkpoint_info *const info = lg_checkpoint_about(checkpoint);
    assert_int_equal(info->seed, 7);
    assert_string_equal(info->weights_hash, "abc");
    assert_non_null(strstr(info->recipe_json, "\"name\": \"x\""));
    assert_non_null(strstr(info->extra_json, "\"epoch\": 2"));
    assert_string_equal(lg_checkpoint_path(checkpoint), path);
    float got[3];
    assert_ok(lg_tensor_file_read(lg_checkpoint_optimizer(checkpoint), "w.momentum",
                                  LG_FILE_DTYPE_F32, SHAPE(3), got));
    assert_memory_equal(got, momentum, sizeof momentum);
    lg_checkpoint_close(checkpoint);
}

static void older_checkpoints_are_removed_but_the_ones_to_keep(void **state)
{
    (void)state;
    const char *root = in_scratch("keep");
    for (int64_t step = 100; step <= 500; step += 100) {
        assert_ok(save(root, step, 2, NULL, 0));
    }
    assert_int_equal(num_entries(root), 3); /* latest and two checkpoints */
    assert_int_equal(step_at(root), 500);
    assert_int_equal(step_at(in_scratch("keep/step-000400")), 400);
    /* The run went on from step 400 another way: what came after it is given up. */
    assert_ok(save(root, 450, 2, NULL, 0));
    assert_int_equal(num_entries(root), 3);
    assert_int_equal(step_at(root), 450);
    assert_int_equal(step_at(in_scratch("keep/step-000400")), 400);
}

static void same_step_again_replaces_the_checkpoint(void **state)
{
    (void)state;
    const char *root = in_scratch("again");
    char path[256];
    for (int i = 0; i < 3; i++) {
        assert_ok(save(root, 10, 3, path, sizeof path));
        assert_int_equal(step_at(root), 10);
        assert_int_equal(step_at(path), 10);
        assert_int_equal(num_entries(root), 2);
    }
}

static void leftovers_of_a_broken_save_are_removed_by_the_next(void **state)
{
    (void)state;
    const char *root = in_scratch("left");
    assert_ok(save(root, 1, 1, NULL, 0));
    assert_ok(lgi_make_directory(in_scratch("left/.saving-step-000002-123")));
    assert_ok(
        lgi_file_write(in_scratch("left/.saving-step-000002-123/model.safetensors.tmp-1"), "x", 1));
    assert_int_equal(step_at(root), 1);
    assert_ok(save(root, 2, 1, NULL, 0));
    assert_int_equal(num_entries(root), 2);
}

/* Every byte of every file, one bit at a time: found when it is opened. */
static void flipped_bit_anywhere_is_found_on_opening(void **state)
{
    (void)state;
    static const char *const names[] = {"manifest.json", "model.safetensors",
                                        "optimizer.safetensors"};
    const char *root = in_scratch("flip");
    assert_ok(save(root, 3, 1, NULL, 0));
    for (size_t f = 0; f < 3; f++) {
        char path[256];
        char *data = NULL;
        size_t num_bytes = 0;
        (void)snprintf(path, sizeof path, "%s/step-000003/%s", root, names[f]);
        assert_ok(lgi_file_read(&data, &num_bytes, path, 1 << 20));
        FILE *const stream = fopen(path, "r+b");
        assert_non_null(stream);
        setbuf(stream, NULL);
        for (size_t i = 0; i < num_bytes; i++) {
            const char flipped = (char)(data[i] ^ (1 << (i % 7)));
            (void)fseek(stream, (long)i, SEEK_SET);
            (void)fwrite(&flipped, 1, 1, stream);
            lg_checkpoint *checkpoint = NULL;
            const lg_status status = lg_checkpoint_open(&checkpoint, root);
            if (status == LG_OK || checkpoint != NULL || strstr(lg_last_error(), root) == NULL) {
                fail_msg("byte %zu of %s: %s: %s", i, names[f], lg_status_name(status),
                         lg_last_error());
            }
            (void)fseek(stream, (long)i, SEEK_SET);
            (void)fwrite(&data[i], 1, 1, stream);
        }
        (void)fclose(stream);
        lgi_free(data);
    }
    assert_int_equal(step_at(root), 3);
}

static void file_cut_short_or_missing_is_named(void **state)
{
    (void)state;
    static const char *const names[] = {"manifest.json", "model.safetensors",
                                        "optimizer.safetensors"};
    const char *root = in_scratch("cut");
    for (size_t f = 0; f < 3; f++) {
        char path[256];
        struct stat info;
        lg_checkpoint *checkpoint = NULL;
        assert_ok(save(root, 4, 1, path, sizeof path));
        (void)strcat(path, "/");
        (void)strcat(path, names[f]);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(truncate(path, info.st_size - 5), 0);
        assert_fails(lg_checkpoint_open(&checkpoint, root), LG_CORRUPT, names[f], root);
        assert_int_equal(unlink(path), 0);
        assert_fails(lg_checkpoint_open(&checkpoint, root), LG_IO, names[f], root);
    }
}

static void replaced_text(const char *path, const char *from, const char *to)
{
    char *data = NULL;
    size_t num_bytes = 0;
    assert_ok(lgi_file_read(&data, &num_bytes, path, 1 << 20));
    char *const at = strstr(data, from);
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    assert_ok(lgi_file_write(path, data, num_bytes));
    lgi_free(data);
}

static void other_version_and_edited_manifest_are_told_apart(void **state)
{
    (void)state;
    lg_checkpoint *checkpoint = NULL;
    const char *root = in_scratch("version");
    const char *path = in_scratch("version/step-000005/manifest.json");
    assert_ok(save(root, 5, 1, NULL, 0));
    replaced_text(path, "\"step\": 5", "\"step\": 6");
    assert_fails(lg_checkpoint_open(&checkpoint, root), LG_CORRUPT, "checksum", path);
    replaced_text(path, "\"version\": 1", "\"version\": 2");
    assert_fails(lg_checkpoint_open(&checkpoint, root), LG_NOT_SUPPORTED, "expected 1, got 2",
                 path);
}

static void hostile_latest_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "../../etc\n", "step-\n", "step-1/../x\n",
                                        "step-99999999999999999999999\n"};
    lg_checkpoint *checkpoint = NULL;
    const char *root = in_scratch("latest-bad");
    assert_fails(lg_checkpoint_open(&checkpoint, root), LG_IO, "no checkpoint", root);
    assert_ok(save(root, 6, 1, NULL, 0));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_ok(lgi_file_write(in_scratch("latest-bad/latest"), texts[i], strlen(texts[i])));
        assert_fails(lg_checkpoint_open(&checkpoint, root), LG_CORRUPT, "latest", root);
    }
}

static void newest_checkpoint_counts_where_latest_was_lost(void **state)
{
    (void)state;
    const char *root = in_scratch("latest-lost");
    assert_false(lg_checkpoint_exists(root));
    assert_ok(save(root, 7, 3, NULL, 0));
    assert_ok(save(root, 100, 3, NULL, 0));
    assert_true(lg_checkpoint_exists(root));
    assert_int_equal(unlink(in_scratch("latest-lost/latest")), 0);
    assert_true(lg_checkpoint_exists(root));
    assert_int_equal(step_at(root), 100);
    assert_ok(lgi_file_write(in_scratch("latest-lost/latest"), "?", 1));
    assert_true(lg_checkpoint_exists(root)); /* damaged, which opening it says */
}

static void invalid_recipe_and_step_are_refused_before_anything_is_left(void **state)
{
    (void)state;
    const char *root = in_scratch("invalid");
    lg_tensor_writer *model = NULL;
    assert_ok(lg_tensor_writer_create(&model));
    const lg_checkpoint_info bad_recipe = {.recipe_json = "[1]"};
    const lg_checkpoint_info bad_step = {.step = -1};
    assert_fails(lg_checkpoint_save(root, model, NULL, &bad_recipe, 1, NULL, 0), LG_INVALID_ARG,
                 "recipe", "object");
    assert_fails(lg_checkpoint_save(root, model, NULL, &bad_step, 1, NULL, 0), LG_INVALID_ARG,
                 "step", "-1");
    assert_int_equal(num_entries(root), 0);
    lg_tensor_writer_destroy(model);
}

static void unwritable_root_is_an_io_error(void **state)
{
    (void)state;
    assert_ok(lgi_file_write(in_scratch("plain"), "x", 1));
    assert_fails(save(in_scratch("plain/root"), 1, 1, NULL, 0), LG_IO, "plain", "directory");
    assert_fails(save("/proc/leapgrad", 1, 1, NULL, 0), LG_IO, "/proc/leapgrad", "directory");
}

/* A file size limit stands in for the full disk: writes fail part of the way, at each possible place. */
static void full_disk_keeps_the_old_checkpoint_and_leaves_nothing(void **state)
{
    (void)state;
    static const rlim_t limits[] = {0, 1, 100, 1000, 4000, 4096, 4100};
    const char *root = in_scratch("full");
    struct rlimit old;
    assert_ok(save(root, 1, 1, NULL, 0));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*const old_handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const struct rlimit tight = {limits[i], old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        const lg_status status = save(root, 2, 1, NULL, 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        if (limits[i] <= 4000) {
            assert_fails(status, LG_IO, "model.safetensors", "File too large");
            assert_int_equal(num_entries(root), 2);
            assert_int_equal(step_at(root), 1);
        }
    }
    (void)signal(SIGXFSZ, old_handler);
}

/* A process killed at a random moment of a save loop leaves a whole checkpoint. */
static void killed_while_saving_leaves_a_whole_checkpoint(void **state)
{
    (void)state;
    const char *root = in_scratch("killed");
    assert_ok(save(root, 0, 2, NULL, 0));
    int64_t last = 0;
    for (int round = 0; round < 25; round++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (int64_t step = last + 1;; step++) {
                if (save(root, step, 2, NULL, 0) != LG_OK) {
                    _exit(1);
                }
            }
        }
        (void)usleep((useconds_t)(2000 + 1370 * round));
        (void)kill(child, SIGKILL);
        int code = 0;
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_true(WIFSIGNALED(code));
        const int64_t step = step_at(root);
        assert_true(step >= last);
        last = step;
    }
    assert_true(last > 0);
    assert_ok(save(root, last + 1, 2, NULL, 0));
    assert_int_equal(num_entries(root), 3);
}

static void failed_allocations_keep_the_old_checkpoint(void **state)
{
    (void)state;
    const char *root = in_scratch("alloc");
    lg_tensor_writer *model = NULL;
    assert_ok(save(root, 1, 1, NULL, 0));
    assert_ok(lg_tensor_writer_create(&model));
    assert_ok(lg_tensor_writer_add(model, "w", LG_FILE_DTYPE_F32, SHAPE(NUM_WEIGHTS), weights));
    const lg_checkpoint_info info = {.step = 1};
    weights[0] = 1.0f;
    int num_failures = 0;
    lg_status status = LG_OK;
    for (int64_t n = 1; n <= MORE_THAN_A_SAVE_ALLOCATES; n++) {
        lgi_alloc_fail_after(n);
        status = lg_checkpoint_save(root, model, NULL, &info, 1, NULL, 0);
        lgi_alloc_fail_after(0);
        num_failures += status != LG_OK;
        assert_int_equal(step_at(root), 1);
        assert_ok(lg_checkpoint_save(root, model, NULL, &info, 1, NULL, 0));
    }
    lg_tensor_writer_destroy(model);
    assert_ok(status);
    assert_true(num_failures > 10);
    assert_int_equal(num_entries(root), 2);
}

/* Written by tools/make_golden_checkpoint.py, which shares no code with this library. */
static void golden_checkpoint_is_read(void **state)
{
    (void)state;
    const char *source_dir = getenv("LG_SOURCE_DIR");
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/golden/checkpoint-v1",
                   source_dir != NULL ? source_dir : ".");
    lg_checkpoint *checkpoint = NULL;
    assert_ok(lg_checkpoint_open(&checkpoint, path));
    const lg_checkpoint_info *const info = lg_checkpoint_about(checkpoint);
    assert_int_equal(info->step, 500);
    assert_int_equal(info->seed, 42);
    assert_string_equal(info->weights_hash, "00112233445566778899aabbccddeeff");
    assert_non_null(strstr(info->recipe_json, "golden"));
    const lg_tensor_file *const model = lg_checkpoint_model(checkpoint);
    float weight[8];
    float mean[2];
    int64_t num_batches = 0;
    uint8_t mask[3];
    assert_ok(
        lg_tensor_file_read(model, "conv1.weight", LG_FILE_DTYPE_F32, SHAPE(2, 1, 2, 2), weight));
    assert_ok(lg_tensor_file_read(model, "bn1.running_mean", LG_FILE_DTYPE_F32, SHAPE(2), mean));
    assert_ok(lg_tensor_file_read(model, "bn1.num_batches", LG_FILE_DTYPE_I64,
                                  &(lg_shape){.num_dims = 0}, &num_batches));
    assert_ok(lg_tensor_file_read(model, "mask", LG_FILE_DTYPE_U8, SHAPE(3), mask));
    for (int i = 0; i < 8; i++) {
        assert_true(weight[i] == (float)i / 4.0f - 1.0f);
    }
    assert_true(mean[0] == 0.5f && mean[1] == -0.25f);
    assert_int_equal(num_batches, 7);
    assert_int_equal(mask[2], 255);
    assert_int_equal(lg_tensor_file_num_tensors(lg_checkpoint_optimizer(checkpoint)), 1);
    lg_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_checkpoint_is_found_through_latest_and_by_name),
        cmocka_unit_test(older_checkpoints_are_removed_but_the_ones_to_keep),
        cmocka_unit_test(same_step_again_replaces_the_checkpoint),
        cmocka_unit_test(leftovers_of_a_broken_save_are_removed_by_the_next),
        cmocka_unit_test(flipped_bit_anywhere_is_found_on_opening),
        cmocka_unit_test(file_cut_short_or_missing_is_named),
        cmocka_unit_test(other_version_and_edited_manifest_are_told_apart),
        cmocka_unit_test(hostile_latest_is_refused),
        cmocka_unit_test(newest_checkpoint_counts_where_latest_was_lost),
        cmocka_unit_test(invalid_recipe_and_step_are_refused_before_anything_is_left),
        cmocka_unit_test(unwritable_root_is_an_io_error),
        cmocka_unit_test(full_disk_keeps_the_old_checkpoint_and_leaves_nothing),
        cmocka_unit_test(killed_while_saving_leaves_a_whole_checkpoint),
        cmocka_unit_test(failed_allocations_keep_the_old_checkpoint),
        cmocka_unit_test(golden_checkpoint_is_read),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
