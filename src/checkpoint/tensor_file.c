/*
 * Reading tensor files. The header is checked once, when the file is opened; reads then go by offset (pread), so many
 * threads may read one file.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"
#include "checkpoint/safetensors.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor files are little-endian and copied as they are"
#endif

#define LENGTH_BYTES 8
#define VERIFY_BUFFER_BYTES ((size_t)1 << 20)

struct lg_tensor_file {
    char *path;
    int fd;
    int64_t num_bytes;
    int64_t data_begin_bytes;
    lgi_tensor_header header;
    const json_t *tensor_sums; /* borrowed; NULL: reads are not checked */
};

void lgi_sum_format(uint64_t sum, char text[LGI_SUM_CHARS])
{
    (void)snprintf(text, LGI_SUM_CHARS, "%016" PRIx64, sum);
}

bool lgi_sum_parse(uint64_t *out, const char *text)
{
    uint64_t sum = 0;
    if (strlen(text) != LGI_SUM_CHARS - 1) {
        return false;
    }
    for (const char *c = text; *c != '\0'; c++) {
        const char *digits = "0123456789abcdef";
        const char *digit = strchr(digits, *c);
        if (digit == NULL) {
            return false;
        }
        sum = sum << 4 | (uint64_t)(digit - digits);
    }
    *out = sum;
    return true;
}

static lg_status read_at(const lg_tensor_file *file, void *dst, size_t num_bytes, int64_t offset)
{
    char *const to = dst;
    size_t done = 0;
    while (done < num_bytes) {
        const ssize_t got =
            pread(file->fd, to + done, num_bytes - done, (off_t)(offset + (int64_t)done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            LG_FAIL(LG_IO, "cannot read '%s': %s", file->path, strerror(errno));
        }
        if (got == 0) {
            LG_FAIL(LG_CORRUPT, "'%s': cut short: ends at byte %" PRId64 ", expected %" PRId64,
                    file->path, offset + (int64_t)done, file->num_bytes);
        }
        done += (size_t)got;
    }
    return LG_OK;
}

static lg_status open_regular(lg_tensor_file *file)
{
    struct stat info;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &info) != 0) {
        LG_FAIL(LG_IO, "cannot open '%s': %s", file->path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        LG_FAIL(LG_IO, "'%s' is not a regular file", file->path);
    }
    file->num_bytes = info.st_size;
    return LG_OK;
}

static lg_status read_header(lg_tensor_file *file)
{
    lg_status status = LG_OK;
    char *text = NULL;
    uint64_t length = 0;
    if (file->num_bytes < LENGTH_BYTES) {
        LG_FAIL(LG_CORRUPT, "'%s': %" PRId64 " bytes, expected a safetensors file of at least %d",
                file->path, file->num_bytes, LENGTH_BYTES + 2);
    }
    LG_TRY(read_at(file, &length, sizeof length, 0));
    if (length > (uint64_t)LGI_MAX_HEADER_BYTES) {
        LG_FAIL(LG_CORRUPT,
                "'%s': header of %" PRIu64 " bytes, at most %" PRId64 " allowed (not safetensors?)",
                file->path, length, LGI_MAX_HEADER_BYTES);
    }
    if ((int64_t)length > file->num_bytes - LENGTH_BYTES) {
        LG_FAIL(LG_CORRUPT,
                "'%s': cut short: %" PRId64 " bytes, expected a header of %" PRIu64 " bytes",
                file->path, file->num_bytes, length);
    }
    file->data_begin_bytes = LENGTH_BYTES + (int64_t)length;
    LG_TRY_GOTO(lgi_calloc(&text, (size_t)length, 1));
    LG_TRY_GOTO(read_at(file, text, (size_t)length, LENGTH_BYTES));
    LG_TRY_GOTO(lgi_tensor_header_parse(&file->header, file->path, text, (size_t)length,
                                        file->num_bytes - file->data_begin_bytes));
out:
    lgi_free(text);
    return status;
}

lg_status lg_tensor_file_open(lg_tensor_file **out, const char *path)
{
    lg_status status = LG_OK;
    lg_tensor_file *file = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&file, 1, sizeof *file));
    file->fd = -1;
    LG_TRY_GOTO(lgi_strdup(&file->path, path));
    LG_TRY_GOTO(open_regular(file));
    LG_TRY_GOTO(read_header(file));
    *out = file;
    file = NULL;
out:
    lg_tensor_file_close(file);
    return status;
}

void lg_tensor_file_close(lg_tensor_file *file)
{
    if (file == NULL) {
        return;
    }
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    lgi_tensor_header_deinit(&file->header);
    lgi_free(file->path);
    lgi_free(file);
}

const char *lg_tensor_file_path(const lg_tensor_file *file)
{
    return file->path;
}

int lg_tensor_file_num_tensors(const lg_tensor_file *file)
{
    return file->header.num_tensors;
}

const lg_tensor_info *lg_tensor_file_tensor(const lg_tensor_file *file, int idx)
{
    return &file->header.tensors[idx];
}

int lg_tensor_file_find(const lg_tensor_file *file, const char *name)
{
    return lgi_tensor_header_find(&file->header, name);
}

const char *lg_tensor_file_metadata(const lg_tensor_file *file, const char *key)
{
    return json_string_value(
        json_object_get(json_object_get(file->header.json, "__metadata__"), key));
}

lg_status lg_tensor_file_read(const lg_tensor_file *file, const char *name, lg_file_dtype dtype,
                              const lg_shape *shape, void *dst)
{
    const int idx = lg_tensor_file_find(file, name);
    if (idx < 0) {
        LG_FAIL(LG_INVALID_ARG, "'%s': no tensor '%.200s'", file->path, name);
    }
    const lg_tensor_info *const tensor = &file->header.tensors[idx];
    if (tensor->dtype != dtype || !lg_shape_equal(&tensor->shape, shape)) {
        char expected[128];
        char got[128];
        LG_FAIL(LG_INVALID_ARG, "'%s': '%.200s': expected %s %s, got %s %s", file->path, name,
                lg_file_dtype_name(dtype), lg_shape_format(shape, expected, sizeof expected),
                lg_file_dtype_name(tensor->dtype),
                lg_shape_format(&tensor->shape, got, sizeof got));
    }
    LG_TRY(read_at(file, dst, (size_t)tensor->num_bytes,
                   file->data_begin_bytes + tensor->offset_bytes));
    if (file->tensor_sums != NULL) {
        char sum[LGI_SUM_CHARS];
        lgi_sum_format(XXH3_64bits(dst, (size_t)tensor->num_bytes), sum);
        const char *expected = json_string_value(json_object_get(file->tensor_sums, name));
        if (expected == NULL || strcmp(sum, expected) != 0) {
            LG_FAIL(LG_CORRUPT, "'%s': '%.200s': checksum is %s, expected %s", file->path, name,
                    sum, expected != NULL ? expected : "one in the manifest");
        }
    }
    return LG_OK;
}

/* The sum of the whole file, read in pieces. */
static lg_status sum_file(const lg_tensor_file *file, uint64_t *out)
{
    lg_status status = LG_OK;
    char *buffer = NULL;
    XXH3_state_t *const hash = XXH3_createState();
    if (hash == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: no checksum state");
    }
    (void)XXH3_64bits_reset(hash);
    LG_TRY_GOTO(lgi_calloc(&buffer, VERIFY_BUFFER_BYTES, 1));
    for (int64_t at = 0; at < file->num_bytes;) {
        const int64_t left = file->num_bytes - at;
        const size_t piece =
            left < (int64_t)VERIFY_BUFFER_BYTES ? (size_t)left : VERIFY_BUFFER_BYTES;
        LG_TRY_GOTO(read_at(file, buffer, piece, at));
        (void)XXH3_64bits_update(hash, buffer, piece);
        at += (int64_t)piece;
    }
    *out = XXH3_64bits_digest(hash);
out:
    (void)XXH3_freeState(hash);
    lgi_free(buffer);
    return status;
}

lg_status lgi_tensor_file_verify(lg_tensor_file *file, int64_t file_bytes, uint64_t file_sum,
                                 const json_t *tensor_sums)
{
    uint64_t sum = 0;
    if (file->num_bytes != file_bytes) {
        LG_FAIL(LG_CORRUPT, "'%s': %" PRId64 " bytes, expected %" PRId64, file->path,
                file->num_bytes, file_bytes);
    }
    LG_TRY(sum_file(file, &sum));
    if (sum != file_sum) {
        char got[LGI_SUM_CHARS];
        char expected[LGI_SUM_CHARS];
        lgi_sum_format(sum, got);
        lgi_sum_format(file_sum, expected);
        LG_FAIL(LG_CORRUPT, "'%s': checksum is %s, expected %s", file->path, got, expected);
    }
    for (int i = 0; i < file->header.num_tensors; i++) {
        const char *name = file->header.tensors[i].name;
        if (json_object_get(tensor_sums, name) == NULL) {
            LG_FAIL(LG_CORRUPT, "'%s': tensor '%.200s' is not in the manifest", file->path, name);
        }
    }
    if (json_object_size(tensor_sums) != (size_t)file->header.num_tensors) {
        LG_FAIL(LG_CORRUPT, "'%s': %d tensors, expected %zu by the manifest", file->path,
                file->header.num_tensors, json_object_size(tensor_sums));
    }
    file->tensor_sums = tensor_sums;
    return LG_OK;
}
