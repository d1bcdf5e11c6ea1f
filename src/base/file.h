/* Whole files: read with a size limit, written so that a reader sees the old file or the new one, never half of it. */
#ifndef LGI_BASE_FILE_H
#define LGI_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "leapgrad/status.h"

/*
 * Reads all of `path`, at most `max_bytes`. *out_data has a final 0 byte that *out_bytes does not count.
 * Ownership: the caller's, lgi_free(). IO if it cannot be read, INVALID_ARG if it is larger than `max_bytes`.
 */
LG_NODISCARD lg_status lgi_file_read(void *out_data, size_t *out_bytes, const char *path,
                                     size_t max_bytes);

/*
 * A file being written: a temporary beside the target, renamed over it by the commit. A symbolic link stays, and what it leads to
 * is replaced. What is there and is no file (a device, a pipe), and standard output, are written as they stand.
 */
typedef struct lgi_file_writer {
    FILE *stream;    /* write here; errors may be left to commit */
    char *path;      /* target */
    char *temp_path; /* what is being written; NULL: the target itself */
} lgi_file_writer;

LG_NODISCARD lg_status lgi_file_writer_open(lgi_file_writer *writer, const char *path);

/* Flushes, syncs and renames. On any failure the temporary is removed and the target is untouched. */
LG_NODISCARD lg_status lgi_file_writer_commit(lgi_file_writer *writer);

/* Gives up: removes the temporary. Fine on a zeroed writer or after commit. */
void lgi_file_writer_abort(lgi_file_writer *writer);

/* Writes `bytes` of `data` to `path` in one go, by the writer above. */
LG_NODISCARD lg_status lgi_file_write(const char *path, const void *data, size_t bytes);

/* Whether `name` is what a writer that was killed left behind instead of a file called `of_name`. */
bool lgi_file_is_left_over(const char *name, const char *of_name);

/* Creates the directory and its parents; an existing one is fine. */
LG_NODISCARD lg_status lgi_make_directory(const char *path);

/* Joins directory and name with a slash. Ownership: the caller's, lgi_free(). */
LG_NODISCARD lg_status lgi_path_join(char **out, const char *directory, const char *name);

#endif
