/* The hash that two runs compare: equal if and only if names, shapes and bits are (up to 2^-128). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"
#include "leapgrad/checkpoint.h"

struct lg_weights_hasher {
    XXH3_state_t *state;
};

lg_status lg_weights_hasher_create(lg_weights_hasher **out)
{
    lg_weights_hasher *hasher = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&hasher, 1, sizeof *hasher));
    hasher->state = XXH3_createState();
    if (hasher->state == NULL) {
        lgi_free(hasher);
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: no hash state");
    }
    (void)XXH3_128bits_reset(hasher->state);
    *out = hasher;
    return LG_OK;
}

void lg_weights_hasher_destroy(lg_weights_hasher *hasher)
{
    if (hasher != NULL) {
        (void)XXH3_freeState(hasher->state);
        lgi_free(hasher);
    }
}

static void add_bytes(lg_weights_hasher *hasher, const void *data, size_t num_bytes)
{
    if (num_bytes > 0) {
        (void)XXH3_128bits_update(hasher->state, data, num_bytes);
    }
}

void lg_weights_hasher_add(lg_weights_hasher *hasher, const char *name, const lg_shape *shape,
                           const float *elems)
{
    const uint32_t name_bytes = (uint32_t)strlen(name);
    const uint32_t num_dims = (uint32_t)shape->num_dims;
    add_bytes(hasher, &name_bytes, sizeof name_bytes);
    add_bytes(hasher, name, name_bytes);
    add_bytes(hasher, &num_dims, sizeof num_dims);
    for (uint32_t i = 0; i < num_dims; i++) {
        const uint64_t dim = (uint64_t)shape->dims[i];
        add_bytes(hasher, &dim, sizeof dim);
    }
    add_bytes(hasher, elems, (size_t)lg_shape_num_elems(shape) * sizeof *elems);
}

void lg_weights_hasher_format(const lg_weights_hasher *hasher, char text[LG_WEIGHTS_HASH_CHARS])
{
    const XXH128_hash_t hash = XXH3_128bits_digest(hasher->state);
    (void)snprintf(text, LG_WEIGHTS_HASH_CHARS, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
                   (uint64_t)hash.low64);
}
