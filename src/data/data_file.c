/* Data files as a whole: their size is asked for first, so a read takes no more memory than the file. */
#include "data/data_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/file.h"

lg_status lgi_data_file_read(void *out_data, size_t *out_bytes, const char *path)
{
    struct stat info;
    memset(out_data, 0, sizeof(void *));
    *out_bytes = 0;
    if (path == NULL || path[0] == '\0') {
        LG_FAIL(LG_INVALID_ARG, "the path of a data file is empty");
    }
    if (stat(path, &info) != 0) {
        LG_FAIL(LG_IO, "cannot open '%s': %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        LG_FAIL(LG_INVALID_ARG, "'%s' is not a regular file", path);
    }
    return lgi_file_read(out_data, out_bytes, path, (size_t)info.st_size);
}
