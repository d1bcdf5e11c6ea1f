/*
 * Checkpoints as directories. The order of a save is what makes it safe against a crash at any moment:
 *
 *   .saving-NAME-PID/   filled, each file synced            crash: rubbish that the next save removes
 *   NAME/               by rename, root synced              crash: `latest` still names the old one
 *   latest              by rename                           from here on the new one counts
 *   older ones          renamed to .saving-..., then deleted    crash: rubbish as above
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "checkpoint/manifest.h"

#define LATEST_NAME "latest"
#define LATEST_TEMP_PREFIX LATEST_NAME ".tmp-" /* of lgi_file_writer */
#define TEMP_PREFIX ".saving-"
#define STEP_PREFIX "step-"
#define MAX_NAME_BYTES 64
#define MAX_SAME_STEP 10000

static const char *const file_names[] = {LGI_MANIFEST_NAME, LGI_MODEL_NAME, LGI_OPTIMIZER_NAME};

/* --- names ------------------------------------------------------------------------------------------------------ */

/* "step-000500" or "step-000500.2": the step, and how often that step was saved before. */
struct step_name {
    int64_t step;
    int64_t again;
};

static bool parse_digits(const char **text, int64_t *out)
{
    char *end = NULL;
    if (**text < '0' || **text > '9') {
        return false;
    }
    errno = 0;
    *out = strtoll(*text, &end, 10);
    *text = end;
    return errno == 0;
}

static bool parse_step_name(struct step_name *out, const char *name)
{
    const char *at = name + strlen(STEP_PREFIX);
    out->again = 0;
    if (strlen(name) >= MAX_NAME_BYTES || strncmp(name, STEP_PREFIX, strlen(STEP_PREFIX)) != 0 ||
        !parse_digits(&at, &out->step)) {
        return false;
    }
    if (*at == '.') {
        at++;
        if (!parse_digits(&at, &out->again)) {
            return false;
        }
    }
    return *at == '\0';
}

static void format_step_name(char text[MAX_NAME_BYTES], const struct step_name *name)
{
    if (name->again == 0) {
        (void)snprintf(text, MAX_NAME_BYTES, STEP_PREFIX "%06" PRId64, name->step);
    } else {
        (void)snprintf(text, MAX_NAME_BYTES, STEP_PREFIX "%06" PRId64 ".%" PRId64, name->step,
                       name->again);
    }
}

/* --- directories ------------------------------------------------------------------------------------------------ */

static lg_status sync_directory(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a directory (EINVAL); they order renames themselves. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) {
        const int error = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        LG_FAIL(LG_IO, "cannot sync directory '%s': %s", path, strerror(error));
    }
    (void)close(fd);
    return LG_OK;
}

/* Removes the files of a checkpoint and what a broken save may have left of them; best effort. */
static void remove_directory(const char *path)
{
    DIR *const directory = opendir(path);
    if (directory == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(directory); entry != NULL;
         entry = readdir(directory)) {
        for (size_t i = 0; i < sizeof file_names / sizeof file_names[0]; i++) {
            if (strncmp(entry->d_name, file_names[i], strlen(file_names[i])) == 0) {
                (void)unlinkat(dirfd(directory), entry->d_name, 0);
            }
        }
    }
    (void)closedir(directory);
    (void)rmdir(path);
}

/* Takes a checkpoint out of sight in one step, then deletes it. */
static void retire_checkpoint(const char *root, const char *name)
{
    char *path = NULL;
    char *hidden = NULL;
    if (lgi_path_join(&path, root, name) == LG_OK &&
        lgi_sprintf(&hidden, "%s/" TEMP_PREFIX "old-%s-%ld", root, name, (long)getpid()) == LG_OK &&
        rename(path, hidden) == 0) {
        remove_directory(hidden);
    }
    lgi_free(path);
    lgi_free(hidden);
}

/* Rubbish of saves that did not end. */
static void remove_leftovers(const char *root)
{
    DIR *const directory = opendir(root);
    if (directory == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(directory); entry != NULL;
         entry = readdir(directory)) {
        char *path = NULL;
        if (strncmp(entry->d_name, LATEST_TEMP_PREFIX, strlen(LATEST_TEMP_PREFIX)) == 0) {
            (void)unlinkat(dirfd(directory), entry->d_name, 0);
        } else if (strncmp(entry->d_name, TEMP_PREFIX, strlen(TEMP_PREFIX)) == 0 &&
                   lgi_path_join(&path, root, entry->d_name) == LG_OK) {
            remove_directory(path);
        }
        lgi_free(path);
    }
    (void)closedir(directory);
}

static int compare_newest_first(const void *a, const void *b)
{
    const struct step_name *const x = a;
    const struct step_name *const y = b;
    if (x->step != y->step) {
        return x->step > y->step ? -1 : 1;
    }
    return x->again > y->again ? -1 : x->again < y->again;
}

/* The checkpoints in `root`, newest first. Release *out. */
static lg_status list_checkpoints(struct step_name **out, size_t *out_num, const char *root)
{
    lg_status status = LG_OK;
    size_t capacity = 0;
    *out = NULL;
    *out_num = 0;
    DIR *const directory = opendir(root);
    if (directory == NULL) {
        LG_FAIL(LG_IO, "cannot list directory '%s': %s", root, strerror(errno));
    }
    for (const struct dirent *entry = readdir(directory); entry != NULL;
         entry = readdir(directory)) {
        struct step_name name;
        if (parse_step_name(&name, entry->d_name)) {
            LG_TRY_GOTO(lgi_grow(out, &capacity, *out_num + 1, sizeof **out));
            (*out)[(*out_num)++] = name;
        }
    }
    if (*out_num > 0) {
        qsort(*out, *out_num, sizeof **out, compare_newest_first);
    }
out:
    (void)closedir(directory);
    return status;
}

/*
 * Keeps `current` and the `num_keep` - 1 newest of earlier steps. Checkpoints of later steps are of a future that was
 * given up when the run went on from an earlier one; another save of the same step is replaced.
 */
static lg_status prune(const char *root, const struct step_name *current, int num_keep)
{
    lg_status status = LG_OK;
    struct step_name *names = NULL;
    size_t num = 0;
    int num_kept = 1;
    LG_TRY_GOTO(list_checkpoints(&names, &num, root));
    for (size_t i = 0; i < num; i++) {
        char text[MAX_NAME_BYTES];
        if (names[i].step == current->step && names[i].again == current->again) {
            continue;
        }
        if (names[i].step < current->step && num_kept < num_keep) {
            num_kept++;
            continue;
        }
        format_step_name(text, &names[i]);
        retire_checkpoint(root, text);
    }
out:
    lgi_free(names);
    return status;
}

/* --- saving ------------------------------------------------------------------------------------------------------ */

static lg_status save_file(const char *directory, const char *name, const lg_tensor_writer *writer,
                           lgi_tensor_sums *sums)
{
    char *path = NULL;
    LG_TRY(lgi_path_join(&path, directory, name));
    const lg_status status = lgi_tensor_writer_save(writer, path, sums);
    lgi_free(path);
    return status;
}

static lg_status fill_directory(const char *directory, const lg_tensor_writer *model,
                                const lg_tensor_writer *optimizer, const lg_checkpoint_info *info)
{
    lg_status status = LG_OK;
    lgi_tensor_sums model_sums = {0};
    lgi_tensor_sums optimizer_sums = {0};
    char *text = NULL;
    char *path = NULL;
    LG_TRY_GOTO(save_file(directory, LGI_MODEL_NAME, model, &model_sums));
    if (optimizer != NULL) {
        LG_TRY_GOTO(save_file(directory, LGI_OPTIMIZER_NAME, optimizer, &optimizer_sums));
    }
    LG_TRY_GOTO(
        lgi_manifest_format(&text, info, &model_sums, optimizer != NULL ? &optimizer_sums : NULL));
    LG_TRY_GOTO(lgi_path_join(&path, directory, LGI_MANIFEST_NAME));
    LG_TRY_GOTO(lgi_file_write(path, text, strlen(text)));
    LG_TRY_GOTO(sync_directory(directory));
out:
    json_decref(model_sums.tensor_sums);
    json_decref(optimizer_sums.tensor_sums);
    lgi_free(text);
    lgi_free(path);
    return status;
}

/* Renames the finished directory to the first free name of its step. */
static lg_status publish(const char *root, const char *directory, struct step_name *name)
{
    for (name->again = 0; name->again < MAX_SAME_STEP; name->again++) {
        char text[MAX_NAME_BYTES];
        char *path = NULL;
        format_step_name(text, name);
        LG_TRY(lgi_path_join(&path, root, text));
        struct stat info;
        const bool is_taken = lstat(path, &info) == 0;
        const bool is_done = !is_taken && rename(directory, path) == 0;
        const int error = errno;
        lgi_free(path);
        if (is_done) {
            return LG_OK;
        }
        if (!is_taken && error != EEXIST && error != ENOTEMPTY) {
            LG_FAIL(LG_IO, "cannot write '%s/%s': %s", root, text, strerror(error));
        }
    }
    LG_FAIL(LG_IO, "'%s': step %" PRId64 " is there %d times already", root, name->step,
            MAX_SAME_STEP);
}

static lg_status write_latest(const char *root, const struct step_name *name)
{
    char *path = NULL;
    char text[MAX_NAME_BYTES];
    char line[MAX_NAME_BYTES + 1];
    format_step_name(text, name);
    const int length = snprintf(line, sizeof line, "%s\n", text);
    LG_TRY(lgi_path_join(&path, root, LATEST_NAME));
    const lg_status status = lgi_file_write(path, line, (size_t)length);
    lgi_free(path);
    return status;
}

lg_status lg_checkpoint_save(const char *root, const lg_tensor_writer *model,
                             const lg_tensor_writer *optimizer, const lg_checkpoint_info *info,
                             int num_keep, char *out_path, size_t out_path_bytes)
{
    lg_status status = LG_OK;
    char *temp = NULL;
    char text[MAX_NAME_BYTES];
    struct step_name name = {.step = info->step};
    if (num_keep < 1) {
        LG_FAIL(LG_INVALID_ARG, "checkpoints to keep: expected at least 1, got %d", num_keep);
    }
    LG_TRY(lgi_make_directory(root));
    remove_leftovers(root);
    format_step_name(text, &name);
    LG_TRY(lgi_sprintf(&temp, "%s/" TEMP_PREFIX "%s-%ld", root, text, (long)getpid()));
    if (mkdir(temp, 0777) != 0) {
        LG_TRY_GOTO(
            lgi_fail(LG_IO, "cannot create directory '%s/%s': %s", root, text, strerror(errno)));
    }
    LG_TRY_GOTO(fill_directory(temp, model, optimizer, info));
    LG_TRY_GOTO(publish(root, temp, &name));
    format_step_name(text, &name);
    status = sync_directory(root);
    if (status == LG_OK) {
        status = write_latest(root, &name);
    }
    if (status != LG_OK) {
        retire_checkpoint(root, text);
        goto out;
    }
    LG_TRY_GOTO(sync_directory(root));
    LG_TRY_GOTO(prune(root, &name, num_keep));
    if (out_path != NULL) {
        (void)snprintf(out_path, out_path_bytes, "%s/%s", root, text);
    }
out:
    if (temp != NULL && status != LG_OK) {
        remove_directory(temp);
    }
    lgi_free(temp);
    return status;
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

struct lg_checkpoint {
    char *path;
    lgi_manifest manifest;
    lg_tensor_file *model;
    lg_tensor_file *optimizer;
};

static lg_status has_file(bool *out, const char *directory, const char *name)
{
    char *path = NULL;
    struct stat info;
    LG_TRY(lgi_path_join(&path, directory, name));
    *out = stat(path, &info) == 0;
    lgi_free(path);
    return LG_OK;
}

/* The directory that `latest` in `root` names. */
static lg_status follow_latest(char **out, const char *root)
{
    lg_status status = LG_OK;
    struct step_name name;
    char *path = NULL;
    char *text = NULL;
    size_t num_bytes = 0;
    LG_TRY_GOTO(lgi_path_join(&path, root, LATEST_NAME));
    LG_TRY_GOTO(lgi_file_read(&text, &num_bytes, path, MAX_NAME_BYTES));
    if (num_bytes > 0 && text[num_bytes - 1] == '\n') {
        text[--num_bytes] = '\0';
    }
    if (strlen(text) != num_bytes || !parse_step_name(&name, text)) {
        LG_TRY_GOTO(lgi_fail(LG_CORRUPT, "'%s': expected one line like '%s000500', got '%.70s'",
                             path, STEP_PREFIX, text));
    }
    LG_TRY_GOTO(lgi_path_join(out, root, text));
out:
    lgi_free(path);
    lgi_free(text);
    return status;
}

/* The newest checkpoint in `root`, for one whose `latest` was lost; *out stays NULL if there is none. */
static lg_status find_newest(char **out, const char *root)
{
    lg_status status = LG_OK;
    struct step_name *names = NULL;
    size_t num = 0;
    char text[MAX_NAME_BYTES];
    LG_TRY_GOTO(list_checkpoints(&names, &num, root));
    if (num > 0) {
        format_step_name(text, &names[0]);
        LG_TRY_GOTO(lgi_path_join(out, root, text));
    }
out:
    lgi_free(names);
    return status;
}

static lg_status find_directory(char **out, const char *path)
{
    bool has_manifest = false;
    bool has_latest = false;
    LG_TRY(has_file(&has_manifest, path, LGI_MANIFEST_NAME));
    if (has_manifest) {
        return lgi_strdup(out, path);
    }
    LG_TRY(has_file(&has_latest, path, LATEST_NAME));
    if (has_latest) {
        return follow_latest(out, path);
    }
    if (find_newest(out, path) != LG_OK || *out == NULL) {
        LG_FAIL(LG_IO,
                "'%s': no checkpoint: expected a directory with '" LGI_MANIFEST_NAME
                "', '" LATEST_NAME "' or '" STEP_PREFIX "...'",
                path);
    }
    return LG_OK;
}

bool lg_checkpoint_exists(const char *path)
{
    bool has_latest = false;
    char *directory = NULL;
    const bool is_found = find_directory(&directory, path) == LG_OK;
    lgi_free(directory);
    return is_found || (has_file(&has_latest, path, LATEST_NAME) == LG_OK && has_latest);
}

static lg_status open_file(lg_tensor_file **out, const char *directory, const char *name,
                           const lgi_manifest_file *expected)
{
    char *path = NULL;
    LG_TRY(lgi_path_join(&path, directory, name));
    lg_status status = lg_tensor_file_open(out, path);
    if (status == LG_OK) {
        status =
            lgi_tensor_file_verify(*out, expected->num_bytes, expected->sum, expected->tensor_sums);
    }
    lgi_free(path);
    return status;
}

static lg_status read_manifest(lgi_manifest *out, const char *directory)
{
    lg_status status = LG_OK;
    char *path = NULL;
    char *text = NULL;
    size_t num_bytes = 0;
    LG_TRY_GOTO(lgi_path_join(&path, directory, LGI_MANIFEST_NAME));
    LG_TRY_GOTO(lgi_file_read(&text, &num_bytes, path, LGI_MAX_MANIFEST_BYTES));
    LG_TRY_GOTO(lgi_manifest_parse(out, path, text, num_bytes));
out:
    lgi_free(path);
    lgi_free(text);
    return status;
}

lg_status lg_checkpoint_open(lg_checkpoint **out, const char *path)
{
    lg_status status = LG_OK;
    lg_checkpoint *checkpoint = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&checkpoint, 1, sizeof *checkpoint));
    LG_TRY_GOTO(find_directory(&checkpoint->path, path));
    LG_TRY_GOTO(read_manifest(&checkpoint->manifest, checkpoint->path));
    LG_TRY_GOTO(open_file(&checkpoint->model, checkpoint->path, LGI_MODEL_NAME,
                          &checkpoint->manifest.model));
    if (checkpoint->manifest.optimizer.is_present) {
        LG_TRY_GOTO(open_file(&checkpoint->optimizer, checkpoint->path, LGI_OPTIMIZER_NAME,
                              &checkpoint->manifest.optimizer));
    }
    *out = checkpoint;
    checkpoint = NULL;
out:
    lg_checkpoint_close(checkpoint);
    return status;
}

void lg_checkpoint_close(lg_checkpoint *checkpoint)
{
    if (checkpoint == NULL) {
        return;
    }
    lg_tensor_file_close(checkpoint->model);
    lg_tensor_file_close(checkpoint->optimizer);
    lgi_manifest_deinit(&checkpoint->manifest);
    lgi_free(checkpoint->path);
    lgi_free(checkpoint);
}

const lg_checkpoint_info *lg_checkpoint_about(const lg_checkpoint *checkpoint)
{
    return &checkpoint->manifest.info;
}

const char *lg_checkpoint_path(const lg_checkpoint *checkpoint)
{
    return checkpoint->path;
}

const lg_tensor_file *lg_checkpoint_model(const lg_checkpoint *checkpoint)
{
    return checkpoint->model;
}

const lg_tensor_file *lg_checkpoint_optimizer(const lg_checkpoint *checkpoint)
{
    return checkpoint->optimizer;
}
