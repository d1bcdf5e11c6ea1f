/* The run directory: found, checked, locked; an earlier run in it is moved aside, never lost. */
#include "train/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"

#define LOCK_NAME ".lock"

lg_status lgi_run_dir_file(char **out, const lgi_run_dir *dir, const char *name)
{
    return lgi_path_join(out, dir->path, name);
}

static bool has_file(const char *directory, const char *name)
{
    char *path = NULL;
    struct stat about;
    if (lgi_path_join(&path, directory, name) != LG_OK) {
        return false;
    }
    const bool has = stat(path, &about) == 0;
    lgi_free(path);
    return has;
}

bool lgi_run_dir_has(const lgi_run_dir *dir, const char *name)
{
    return has_file(dir->path, name);
}

/* --- what is there ------------------------------------------------------------------------------------------------- */

typedef enum place {
    PLACE_ABSENT,
    PLACE_EMPTY, /* or with nothing but a lock in it */
    PLACE_RUN,
    PLACE_OTHER
} place;

static lg_status look(const char *path, place *out)
{
    *out = PLACE_ABSENT;
    DIR *const stream = opendir(path);
    if (stream == NULL) {
        if (errno == ENOENT) {
            return LG_OK;
        }
        LG_FAIL(LG_IO, "run directory '%s': %s", path, strerror(errno));
    }
    *out = PLACE_EMPTY;
    for (const struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, LOCK_NAME) != 0) {
            *out = PLACE_OTHER;
        }
    }
    (void)closedir(stream);
    if (*out == PLACE_OTHER && has_file(path, LGI_RUN_JSON)) {
        *out = PLACE_RUN;
    }
    return LG_OK;
}

/* Whether a file can be made in `path`, or in the nearest directory above it that exists. */
static lg_status check_writable(const char *path)
{
    lg_status status = LG_OK;
    char *parent = NULL;
    LG_TRY(lgi_strdup(&parent, path));
    while (access(parent, F_OK) != 0) {
        char *const slash = strrchr(parent, '/');
        if (slash == NULL || slash == parent) {
            strcpy(parent, slash == NULL ? "." : "/");
            break;
        }
        *slash = '\0';
    }
    if (access(parent, W_OK | X_OK) != 0) {
        status = lgi_fail(LG_IO, "run directory '%s': cannot write to '%s': %s", path, parent,
                          strerror(errno));
    }
    lgi_free(parent);
    return status;
}

static lg_status find_path(char **out, const lg_recipe *recipe)
{
    if (recipe->run.dir[0] != '\0') {
        LG_TRY(lgi_strdup(out, recipe->run.dir));
    } else {
        if (strchr(recipe->run.name, '/') != NULL || recipe->run.name[0] == '.' ||
            recipe->run.name[0] == '\0') {
            LG_FAIL(
                LG_INVALID_ARG,
                "run.name: '%s' cannot name a directory; give it without '/' and leading '.', or "
                "set run.dir",
                recipe->run.name);
        }
        LG_TRY(lgi_path_join(out, "runs", recipe->run.name));
    }
    for (size_t length = strlen(*out); length > 1 && (*out)[length - 1] == '/'; length--) {
        (*out)[length - 1] = '\0';
    }
    return LG_OK;
}

static lg_status check_place(const lgi_run_dir *dir, bool resume)
{
    place found = PLACE_ABSENT;
    LG_TRY(look(dir->path, &found));
    if (resume && found != PLACE_RUN) {
        LG_FAIL(LG_INVALID_ARG, "run directory '%s': there is no run to go on with", dir->path);
    }
    if (found == PLACE_OTHER) {
        LG_FAIL(LG_INVALID_ARG,
                "run directory '%s': is not empty and no run (it has no run.json); choose another "
                "run.dir",
                dir->path);
    }
    return check_writable(dir->path);
}

lg_status lgi_run_dir_find(lgi_run_dir *dir, const lg_recipe *recipe)
{
    dir->path = NULL;
    dir->lock_fd = -1;
    dir->was_moved = false;
    return find_path(&dir->path, recipe);
}

lg_status lgi_run_dir_init(lgi_run_dir *dir, const lg_recipe *recipe, bool resume)
{
    LG_TRY(lgi_run_dir_find(dir, recipe));
    const lg_status status = check_place(dir, resume);
    if (status != LG_OK) {
        lgi_run_dir_deinit(dir);
    }
    return status;
}

/* --- claiming ------------------------------------------------------------------------------------------------------ */

static lg_status lock_directory(lgi_run_dir *dir)
{
    char *path = NULL;
    LG_TRY(lgi_run_dir_file(&path, dir, LOCK_NAME));
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    lgi_free(path);
    if (fd < 0) {
        LG_FAIL(LG_IO, "run directory '%s': cannot write to it: %s", dir->path, strerror(errno));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int error = errno;
        (void)close(fd);
        if (error == EWOULDBLOCK) {
            LG_FAIL(LG_INVALID_ARG, "run directory '%s': another process is training in it",
                    dir->path);
        }
        LG_FAIL(LG_IO, "run directory '%s': cannot be locked: %s", dir->path, strerror(error));
    }
    dir->lock_fd = fd;
    return LG_OK;
}

static void unlock_directory(lgi_run_dir *dir)
{
    if (dir->lock_fd >= 0) {
        (void)close(dir->lock_fd);
        dir->lock_fd = -1;
    }
}

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about;
    (void)type;
    (void)where;
    return remove(path);
}

/* Moves the run that is in the directory to PATH.previous. */
static lg_status move_aside(lgi_run_dir *dir)
{
    lg_status status = LG_OK;
    char *previous = NULL;
    place found = PLACE_ABSENT;
    LG_TRY(lgi_sprintf(&previous, "%s.previous", dir->path));
    LG_TRY_GOTO(look(previous, &found));
    if (found == PLACE_OTHER) {
        LG_TRY_GOTO(
            lgi_fail(LG_INVALID_ARG,
                     "run directory '%s': holds a run, and '%s', where it would be kept, is "
                     "something else",
                     dir->path, previous));
    }
    if (found != PLACE_ABSENT &&
        nftw(previous, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0) {
        LG_TRY_GOTO(
            lgi_fail(LG_IO, "earlier run '%s': cannot be removed: %s", previous, strerror(errno)));
    }
    if (rename(dir->path, previous) != 0) {
        LG_TRY_GOTO(lgi_fail(LG_IO, "earlier run '%s': cannot be moved to '%s': %s", dir->path,
                             previous, strerror(errno)));
    }
    dir->was_moved = true;
out:
    lgi_free(previous);
    return status;
}

/* Removes what a process that was killed left half-written. The lock is held, so nobody else is writing. */
static void remove_left_overs(const lgi_run_dir *dir)
{
    static const char *const names[] = {
        LGI_RUN_JSON,    LGI_RUN_RECIPE,   LGI_RUN_PLAN,         LGI_RUN_COSTS,
        LGI_RUN_METRICS, LGI_RUN_TIMELINE, LGI_RUN_TIMELINE_SVG, LGI_RUN_TIMELINE_CSV,
        LGI_RUN_TRACE,   LGI_RUN_REPORT,   LGI_RUN_SAMPLE,       LGI_RUN_MACHINE};
    DIR *const stream = opendir(dir->path);
    if (stream == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (lgi_file_is_left_over(entry->d_name, names[i])) {
                (void)unlinkat(dirfd(stream), entry->d_name, 0);
            }
        }
    }
    (void)closedir(stream);
}

lg_status lgi_run_dir_claim(lgi_run_dir *dir, bool resume)
{
    place found = PLACE_ABSENT;
    if (resume) {
        LG_TRY(lock_directory(dir));
        remove_left_overs(dir);
        return LG_OK;
    }
    LG_TRY(lgi_make_directory(dir->path));
    LG_TRY(lock_directory(dir));
    LG_TRY(look(dir->path, &found));
    if (found != PLACE_RUN) {
        return LG_OK;
    }
    const lg_status status = move_aside(dir);
    unlock_directory(dir);
    LG_TRY(status);
    LG_TRY(lgi_make_directory(dir->path));
    return lock_directory(dir);
}

void lgi_run_dir_clear(const lgi_run_dir *dir)
{
    static const char *const names[] = {LGI_RUN_METRICS, LGI_RUN_MACHINE, LGI_RUN_COSTS,
                                        LGI_RUN_PLAN,    LGI_RUN_RECIPE,  LGI_RUN_JSON};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = NULL;
        if (lgi_run_dir_file(&path, dir, names[i]) == LG_OK) {
            (void)unlink(path);
            lgi_free(path);
        }
    }
}

void lgi_run_dir_deinit(lgi_run_dir *dir)
{
    place found = PLACE_ABSENT;
    if (dir->lock_fd >= 0 && look(dir->path, &found) == LG_OK && found == PLACE_EMPTY) {
        char *path = NULL;
        if (lgi_run_dir_file(&path, dir, LOCK_NAME) == LG_OK) {
            (void)unlink(path);
            (void)rmdir(dir->path);
            lgi_free(path);
        }
    }
    unlock_directory(dir);
    lgi_free(dir->path);
    dir->path = NULL;
}
