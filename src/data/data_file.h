/* Data files as a whole. */
#ifndef LGI_DATA_DATA_FILE_H
#define LGI_DATA_DATA_FILE_H

#include <stddef.h>

#include "leapgrad/status.h"

/*
 * Reads a regular file (or a link to one); a directory, a device or a pipe, which have no size, are INVALID_ARG.
 * Ownership: the caller's, lgi_free().
 */
LG_NODISCARD lg_status lgi_data_file_read(void *out_data, size_t *out_bytes, const char *path);

#endif
