/* What the tests of checkpoints share: a scratch directory, small files, a small checkpoint. */
#ifndef CHECKPOINT_FIXTURE_H
#define CHECKPOINT_FIXTURE_H

#include <dirent.h>
#include <ftw.h>
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
#include "base/file.h"
#include "leapgrad/checkpoint.h"

/* A shape to point to. */
#define SHAPE(...) ((const lg_shape[]){LG_SHAPE(__VA_ARGS__)})

static char scratch[64];

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static int make_scratch(void **state)
{
    (void)state;
    (void)snprintf(scratch, sizeof scratch, "/tmp/leapgrad-checkpoint-XXXXXX");
    return mkdtemp(scratch) == NULL;
}

static int remove_scratch(void **state)
{
    (void)state;
    remove_tree(scratch);
    return 0;
}

/* Path of a file in the scratch directory; eight stay valid at a time. */
static const char *in_scratch(const char *name)
{
    static char paths[8][512];
    static int next;
    char *const path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static void assert_ok(lg_status status)
{
    if (status != LG_OK) {
        fail_msg("%s: %s", lg_status_name(status), lg_last_error());
    }
}

/* The status, one line, and each of the words in the message. */
static void assert_fails(lg_status status, lg_status expected, const char *word,
                         const char *other_word)
{
    if (status != expected || strstr(lg_last_error(), word) == NULL ||
        strstr(lg_last_error(), other_word) == NULL || strchr(lg_last_error(), '\n') != NULL) {
        fail_msg("expected %s with '%s' and '%s', got %s: %s", lg_status_name(expected), word,
                 other_word, lg_status_name(status), lg_last_error());
    }
}

static int num_entries(const char *path)
{
    int num = 0;
    DIR *const directory = opendir(path);
    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        num++;
    }
    (void)closedir(directory);
    return num - 2; /* "." and ".." */
}

#endif
