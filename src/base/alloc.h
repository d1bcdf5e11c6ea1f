/*
 * Host memory. One place that allocates, so that a test can make the n-th allocation fail and sizes that overflow
 * are caught here. Device buffers (tensors, arenas) do not come from here but from the device, which counts them.
 */
#ifndef LGI_BASE_ALLOC_H
#define LGI_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "leapgrad/status.h"

/* Zeroed memory for `count` items of `item_bytes`; *out is NULL after a failure, never NULL after success. */
LG_NODISCARD lg_status lgi_calloc(void *out, size_t count, size_t item_bytes);

/* Grows or shrinks *ptr to `count` items; what is new is not zeroed. On failure *ptr stays as it was. */
LG_NODISCARD lg_status lgi_realloc(void *ptr, size_t count, size_t item_bytes);

/*
 * Makes room for at least `needed` items in a growing array: doubles *capacity. The usual call is
 * lgi_grow(&items, &capacity, num_items + 1, sizeof *items).
 */
LG_NODISCARD lg_status lgi_grow(void *ptr, size_t *capacity, size_t needed, size_t item_bytes);

/* A copy of `text`. */
LG_NODISCARD lg_status lgi_strdup(char **out, const char *text);

/* A string made by printf rules. */
LG_NODISCARD lg_status lgi_sprintf(char **out, const char *format, ...) LG_PRINTF(2, 3);

/* Frees what the functions above returned; NULL is fine. */
void lgi_free(void *ptr);

/* Memory aligned to `alignment` (a power of two), not zeroed; free with lgi_free(). */
LG_NODISCARD lg_status lgi_alloc_aligned(void *out, size_t bytes, size_t alignment);

/* For tests: the allocation number `countdown` from now (1 = the next one) of this process fails; 0 = none. */
void lgi_alloc_fail_after(int64_t countdown);

/* For tests: how many more until then; 0: none is to fail, or it has failed. */
int64_t lgi_alloc_left(void);

#endif
