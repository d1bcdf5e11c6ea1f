#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/check.h"

lg_status lgi_file_read(void *out_data, size_t *out_bytes, const char *path, size_t max_bytes)
{
    lg_status status = LG_OK;
    char *data = NULL;
    size_t num_bytes = 0;
    size_t capacity = 0;
    memcpy(out_data, &data, sizeof data);
    *out_bytes = 0;
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        LG_FAIL(LG_IO, "cannot open '%s': %s", path, strerror(errno));
    }
    for (;;) {
        LG_TRY_GOTO(lgi_grow(&data, &capacity, num_bytes + 4096 + 1, 1));
        const size_t got = fread(data + num_bytes, 1, capacity - num_bytes - 1, stream);
        num_bytes += got;
        if (num_bytes > max_bytes) {
            LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG, "'%s' is larger than the %zu bytes allowed", path,
                                 max_bytes));
        }
        if (got == 0) {
            break;
        }
    }
    if (ferror(stream)) {
        LG_TRY_GOTO(lgi_fail(LG_IO, "cannot read '%s': %s", path, strerror(errno)));
    }
    data[num_bytes] = '\0';
    memcpy(out_data, &data, sizeof data);
    *out_bytes = num_bytes;
    data = NULL;
out:
    (void)fclose(stream);
    lgi_free(data);
    return status;
}

/* What is there and is no file: a device, a pipe. Renaming over it would put a file in its place. */
static bool is_written_through(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

/* /dev/stdout in one of its forms: what is behind it, even a file, goes on where it is. */
static bool is_standard_output(const char *path)
{
    struct stat info;
    struct stat output;
    return stat(path, &info) == 0 && fstat(STDOUT_FILENO, &output) == 0 &&
           info.st_dev == output.st_dev && info.st_ino == output.st_ino;
}

static FILE *open_standard_output(void)
{
    const int file = dup(STDOUT_FILENO);
    FILE *const stream = file >= 0 ? fdopen(file, "wb") : NULL;
    if (stream == NULL && file >= 0) {
        (void)close(file);
    }
    return stream;
}

/* The file to replace: what a symbolic link leads to, so that the link stays. */
static lg_status find_target(char **out, const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) {
        char *const target = realpath(path, NULL);
        if (target != NULL) {
            const lg_status status = lgi_strdup(out, target);
            free(target);
            return status;
        }
    }
    return lgi_strdup(out, path);
}

lg_status lgi_file_writer_open(lgi_file_writer *writer, const char *path)
{
    lg_status status = LG_OK;
    memset(writer, 0, sizeof *writer);
    LG_TRY_GOTO(find_target(&writer->path, path));
    const bool is_output = is_standard_output(path);
    if (!is_output && !is_written_through(path)) {
        LG_TRY_GOTO(lgi_sprintf(&writer->temp_path, "%s.tmp-%ld", writer->path, (long)getpid()));
    }
    writer->stream = is_output ? open_standard_output()
                               : fopen(writer->temp_path != NULL ? writer->temp_path : path, "wb");
    if (writer->stream == NULL) {
        LG_TRY_GOTO(lgi_fail(LG_IO, "cannot write '%s': %s", path, strerror(errno)));
    }
out:
    if (status != LG_OK) {
        lgi_file_writer_abort(writer);
    }
    return status;
}

static void remove_temporary(const lgi_file_writer *writer)
{
    if (writer->temp_path != NULL) {
        (void)unlink(writer->temp_path);
    }
}

/*
 * Why an earlier write to the stream failed: nobody kept its errno, so more is written until it fails again. The disk is as full
 * as it was, and the file is given up anyway.
 */
static int find_write_error(FILE *stream)
{
    static const char zeros[4096];
    for (int i = 0; i < 16; i++) {
        if (write(fileno(stream), zeros, sizeof zeros) < 0) {
            return errno;
        }
    }
    return EIO;
}

lg_status lgi_file_writer_commit(lgi_file_writer *writer)
{
    lg_status status = LG_OK;
    FILE *stream = writer->stream;
    writer->stream = NULL;
    int error = 0;
    errno = 0;
    if (ferror(stream)) {
        error = find_write_error(stream);
    } else if (fflush(stream) != 0 ||
               (writer->temp_path != NULL && fsync(fileno(stream)) != 0)) { /* pipes have no disk */
        error = errno != 0 ? errno : EIO;
    }
    if (fclose(stream) != 0 && error == 0) {
        error = errno;
    }
    if (error == 0 && writer->temp_path != NULL && rename(writer->temp_path, writer->path) != 0) {
        error = errno;
    }
    if (error != 0) {
        status = lgi_fail(LG_IO, "cannot write '%s': %s", writer->path, strerror(error));
        remove_temporary(writer);
    }
    lgi_free(writer->temp_path);
    writer->temp_path = NULL;
    lgi_file_writer_abort(writer);
    return status;
}

void lgi_file_writer_abort(lgi_file_writer *writer)
{
    if (writer->stream != NULL) {
        (void)fclose(writer->stream);
        remove_temporary(writer);
    }
    lgi_free(writer->path);
    lgi_free(writer->temp_path);
    memset(writer, 0, sizeof *writer);
}

lg_status lgi_file_write(const char *path, const void *data, size_t bytes)
{
    lgi_file_writer writer;
    LG_TRY(lgi_file_writer_open(&writer, path));
    (void)fwrite(data, 1, bytes, writer.stream); /* commit sees the stream's error flag */
    return lgi_file_writer_commit(&writer);
}

bool lgi_file_is_left_over(const char *name, const char *of_name)
{
    static const char infix[] = ".tmp-"; /* and the process: lgi_file_writer_open() */
    const size_t length = strlen(of_name);
    if (strncmp(name, of_name, length) != 0 ||
        strncmp(name + length, infix, sizeof infix - 1) != 0) {
        return false;
    }
    const char *const number = name + length + sizeof infix - 1;
    return number[0] != '\0' && number[strspn(number, "0123456789")] == '\0';
}

lg_status lgi_make_directory(const char *path)
{
    lg_status status = LG_OK;
    char *copy = NULL;
    LG_TRY(lgi_strdup(&copy, path));
    for (char *c = copy + 1; copy[0] != '\0'; c++) {
        const char old = *c;
        if (old != '/' && old != '\0') {
            continue;
        }
        *c = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            LG_TRY_GOTO(lgi_fail(LG_IO, "cannot create directory '%s': %s", copy, strerror(errno)));
        }
        *c = old;
        if (old == '\0') {
            break;
        }
    }
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        LG_TRY_GOTO(lgi_fail(LG_IO, "'%s' is not a directory", path));
    }
out:
    lgi_free(copy);
    return status;
}

lg_status lgi_path_join(char **out, const char *directory, const char *name)
{
    const size_t length = strlen(directory);
    const int has_slash = length > 0 && directory[length - 1] == '/';
    return lgi_sprintf(out, "%s%s%s", directory, length == 0 || has_slash ? "" : "/", name);
}
