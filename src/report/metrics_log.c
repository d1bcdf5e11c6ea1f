/*
 * metrics.jsonl: appended line by line with one write each, so that a crash leaves whole lines and at most one that is
 * cut short, at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "report/record.h"

#define MAX_METRICS_BYTES ((size_t)512 << 20)

struct lg_metrics_log {
    char *path;
    int fd;
};

/* --- lines ------------------------------------------------------------------------------------------------------ */

/*
 * The line at `at`, parsed, and where the next one begins (NULL: at the end). *out_json is NULL for the last line if it
 * is not whole. Ownership of *out_json: the caller's.
 */
static lg_status parse_line(json_t **out_json, const char **out_next, const char *path,
                            const char *at, const char *end, int64_t line)
{
    json_error_t error;
    const char *const line_end = memchr(at, '\n', (size_t)(end - at));
    *out_json = NULL;
    *out_next = line_end != NULL && line_end + 1 < end ? line_end + 1 : NULL;
    if (line_end == NULL) {
        return LG_OK; /* each line ends in a line break: this one was cut short */
    }
    *out_json = json_loadb(at, (size_t)(line_end - at), 0, &error);
    if (*out_json == NULL || !json_is_number(json_object_get(*out_json, "step"))) {
        const char *reason = *out_json == NULL ? error.text : "no 'step'";
        json_decref(*out_json);
        *out_json = NULL;
        LG_FAIL(LG_CORRUPT, "'%s': line %" PRId64 " is not a JSON object with a step: %s", path,
                line, reason);
    }
    return LG_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Keeps the lines of steps before `from_step`; *out_bytes of `text` remain. */
static lg_status drop_lines(char *text, size_t *out_bytes, size_t num_bytes, const char *path,
                            int64_t from_step)
{
    size_t kept = 0;
    const char *const end = text + num_bytes;
    const char *at = num_bytes > 0 ? text : NULL;
    for (int64_t line = 1; at != NULL; line++) {
        json_t *json = NULL;
        const char *next = NULL;
        LG_TRY(parse_line(&json, &next, path, at, end, line));
        const double step = json_number_value(json_object_get(json, "step"));
        if (json != NULL && step < (double)from_step) {
            const size_t line_bytes = (size_t)((next != NULL ? next : end) - at);
            memmove(text + kept, at, line_bytes);
            kept += line_bytes;
        }
        json_decref(json);
        at = next;
    }
    *out_bytes = kept;
    return LG_OK;
}

static lg_status rewind_file(const char *path, int64_t from_step)
{
    lg_status status = LG_OK;
    char *text = NULL;
    size_t num_bytes = 0;
    size_t num_kept = 0;
    if (from_step <= 0 || access(path, F_OK) != 0) {
        return lgi_file_write(path, "", 0);
    }
    LG_TRY_GOTO(lgi_file_read(&text, &num_bytes, path, MAX_METRICS_BYTES));
    LG_TRY_GOTO(drop_lines(text, &num_kept, num_bytes, path, from_step));
    if (num_kept < num_bytes) {
        LG_TRY_GOTO(lgi_file_write(path, text, num_kept));
    }
out:
    lgi_free(text);
    return status;
}

lg_status lg_metrics_log_open(lg_metrics_log **out, const char *path, int64_t from_step)
{
    lg_status status = LG_OK;
    lg_metrics_log *log = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&log, 1, sizeof *log));
    log->fd = -1;
    LG_TRY_GOTO(lgi_strdup(&log->path, path));
    LG_TRY_GOTO(rewind_file(path, from_step));
    log->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (log->fd < 0) {
        LG_TRY_GOTO(lgi_fail(LG_IO, "cannot write '%s': %s", path, strerror(errno)));
    }
    *out = log;
    log = NULL;
out:
    lg_metrics_log_close(log);
    return status;
}

/* All of the line or, if the disk is full, none of it: a half line would spoil the next one. */
static lg_status write_line(const lg_metrics_log *log, const char *text, size_t num_bytes)
{
    const off_t begin = lseek(log->fd, 0, SEEK_END);
    while (num_bytes > 0) {
        const ssize_t done = write(log->fd, text, num_bytes);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            const int error = errno;
            const bool is_undone = begin >= 0 && ftruncate(log->fd, begin) == 0;
            LG_FAIL(LG_IO, "cannot write '%s': %s%s", log->path, strerror(error),
                    is_undone ? "" : " (its last line is cut short)");
        }
        text += done;
        num_bytes -= (size_t)done;
    }
    return LG_OK;
}

lg_status lg_metrics_log_append(lg_metrics_log *log, int64_t step, const lg_record *record)
{
    lg_status status = LG_OK;
    char *line = NULL;
    char *text = NULL;
    json_t *const json = json_object();
    if (json_object_set_new(json, "step", json_integer(step)) == 0 &&
        json_object_update_missing(json, record->json) == 0) {
        text = json_dumps(json, JSON_COMPACT);
    }
    if (text == NULL) {
        LG_TRY_GOTO(lgi_fail(LG_OUT_OF_MEMORY, "out of memory: cannot write '%s'", log->path));
    }
    LG_TRY_GOTO(lgi_sprintf(&line, "%s\n", text));
    LG_TRY_GOTO(write_line(log, line, strlen(line)));
out:
    lgi_free(line);
    free(text);
    json_decref(json);
    return status;
}

void lg_metrics_log_close(lg_metrics_log *log)
{
    if (log == NULL) {
        return;
    }
    if (log->fd >= 0) {
        (void)close(log->fd);
    }
    lgi_free(log->path);
    lgi_free(log);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* A series that grows. The public view is made of it when all lines are in. */
struct column {
    char *key;
    size_t num_points;
    size_t capacity_steps;
    size_t capacity_values;
    double *steps;
    double *values;
};

struct lg_metrics {
    size_t num_columns;
    size_t capacity;
    struct column *columns;
    lg_metrics_series *series;
};

static lg_status find_column(struct column **out, lg_metrics *metrics, const char *key)
{
    for (size_t i = 0; i < metrics->num_columns; i++) {
        if (strcmp(metrics->columns[i].key, key) == 0) {
            *out = &metrics->columns[i];
            return LG_OK;
        }
    }
    struct column column = {0};
    LG_TRY(
        lgi_grow(&metrics->columns, &metrics->capacity, metrics->num_columns + 1, sizeof column));
    LG_TRY(lgi_strdup(&column.key, key));
    metrics->columns[metrics->num_columns] = column;
    *out = &metrics->columns[metrics->num_columns++];
    return LG_OK;
}

static lg_status add_line(lg_metrics *metrics, json_t *json)
{
    const char *key = NULL;
    json_t *value = NULL;
    const double step = json_number_value(json_object_get(json, "step"));
    json_object_foreach(json, key, value)
    {
        if (strcmp(key, "step") == 0 || (!json_is_number(value) && !json_is_null(value))) {
            continue;
        }
        struct column *column = NULL;
        LG_TRY(find_column(&column, metrics, key));
        const size_t needed = column->num_points + 1;
        LG_TRY(lgi_grow(&column->steps, &column->capacity_steps, needed, sizeof(double)));
        LG_TRY(lgi_grow(&column->values, &column->capacity_values, needed, sizeof(double)));
        column->steps[column->num_points] = step;
        column->values[column->num_points] = json_is_null(value) ? NAN : json_number_value(value);
        column->num_points++;
    }
    return LG_OK;
}

static lg_status make_views(lg_metrics *metrics)
{
    LG_TRY(lgi_calloc(&metrics->series, metrics->num_columns, sizeof *metrics->series));
    for (size_t i = 0; i < metrics->num_columns; i++) {
        const struct column *const column = &metrics->columns[i];
        metrics->series[i] = (lg_metrics_series){.key = column->key,
                                                 .num_points = column->num_points,
                                                 .steps = column->steps,
                                                 .values = column->values};
    }
    return LG_OK;
}

lg_status lg_metrics_load(lg_metrics **out, const char *path)
{
    lg_status status = LG_OK;
    char *text = NULL;
    size_t num_bytes = 0;
    json_t *json = NULL;
    lg_metrics *metrics = NULL;
    *out = NULL;
    LG_TRY_GOTO(lgi_calloc(&metrics, 1, sizeof *metrics));
    LG_TRY_GOTO(lgi_file_read(&text, &num_bytes, path, MAX_METRICS_BYTES));
    const char *at = num_bytes > 0 ? text : NULL;
    for (int64_t line = 1; at != NULL; line++) {
        const char *next = NULL;
        LG_TRY_GOTO(parse_line(&json, &next, path, at, text + num_bytes, line));
        if (json != NULL) {
            LG_TRY_GOTO(add_line(metrics, json));
        }
        json_decref(json);
        json = NULL;
        at = next;
    }
    LG_TRY_GOTO(make_views(metrics));
    *out = metrics;
    metrics = NULL;
out:
    json_decref(json);
    lgi_free(text);
    lg_metrics_destroy(metrics);
    return status;
}

void lg_metrics_destroy(lg_metrics *metrics)
{
    if (metrics == NULL) {
        return;
    }
    for (size_t i = 0; i < metrics->num_columns; i++) {
        lgi_free(metrics->columns[i].key);
        lgi_free(metrics->columns[i].steps);
        lgi_free(metrics->columns[i].values);
    }
    lgi_free(metrics->columns);
    lgi_free(metrics->series);
    lgi_free(metrics);
}

int lg_metrics_num_series(const lg_metrics *metrics)
{
    return (int)metrics->num_columns;
}

const lg_metrics_series *lg_metrics_series_at(const lg_metrics *metrics, int idx)
{
    return &metrics->series[idx];
}

const lg_metrics_series *lg_metrics_find(const lg_metrics *metrics, const char *key)
{
    for (size_t i = 0; i < metrics->num_columns; i++) {
        if (strcmp(metrics->series[i].key, key) == 0) {
            return &metrics->series[i];
        }
    }
    return NULL;
}
