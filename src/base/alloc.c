#include "base/alloc.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static _Atomic int64_t fail_countdown;

void lgi_alloc_fail_after(int64_t countdown)
{
    atomic_store(&fail_countdown, countdown);
}

int64_t lgi_alloc_left(void)
{
    const int64_t left = atomic_load(&fail_countdown);
    return left > 0 ? left : 0;
}

static int should_fail(void)
{
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0) {
        return 0;
    }
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

static lg_status fail_out_of_memory(size_t count, size_t item_bytes)
{
    LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: could not allocate %zu x %zu bytes", count,
            item_bytes);
}

lg_status lgi_calloc(void *out, size_t count, size_t item_bytes)
{
    void *memory =
        should_fail() ? NULL : calloc(count > 0 ? count : 1, item_bytes > 0 ? item_bytes : 1);
    memcpy(out, &memory, sizeof memory);
    return memory != NULL ? LG_OK : fail_out_of_memory(count, item_bytes);
}

lg_status lgi_realloc(void *ptr, size_t count, size_t item_bytes)
{
    void *old = NULL;
    memcpy(&old, ptr, sizeof old);
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, item_bytes, &bytes) || should_fail()) {
        return fail_out_of_memory(count, item_bytes);
    }
    void *memory = realloc(old, bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        return fail_out_of_memory(count, item_bytes);
    }
    memcpy(ptr, &memory, sizeof memory);
    return LG_OK;
}

lg_status lgi_grow(void *ptr, size_t *capacity, size_t needed, size_t item_bytes)
{
    if (needed <= *capacity) {
        return LG_OK;
    }
    size_t wanted = *capacity > 0 ? *capacity : 8;
    while (wanted < needed) {
        if (wanted > SIZE_MAX / 2) {
            return fail_out_of_memory(needed, item_bytes);
        }
        wanted *= 2;
    }
    LG_TRY(lgi_realloc(ptr, wanted, item_bytes));
    *capacity = wanted;
    return LG_OK;
}

lg_status lgi_strdup(char **out, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    LG_TRY(lgi_calloc(out, bytes, 1));
    memcpy(*out, text, bytes);
    return LG_OK;
}

lg_status lgi_sprintf(char **out, const char *format, ...)
{
    *out = NULL;
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        LG_FAIL(LG_INTERNAL, "cannot format '%s'", format);
    }
    LG_TRY(lgi_calloc(out, (size_t)length + 1, 1));
    va_start(args, format);
    (void)vsnprintf(*out, (size_t)length + 1, format, args);
    va_end(args);
    return LG_OK;
}

void lgi_free(void *ptr)
{
    free(ptr);
}

lg_status lgi_alloc_aligned(void *out, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    if (rounded >= bytes && !should_fail()) {
        memory = aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
    }
    memcpy(out, &memory, sizeof memory);
    return memory != NULL ? LG_OK : fail_out_of_memory(1, bytes);
}
