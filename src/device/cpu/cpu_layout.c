/*
 * Layouts: two for activations, known by their ids, and a table of those that convolutions want for their weights. A
 * weights layout is a pattern that does not depend on sizes: the order of the outer dimensions and the inner blocks.
 */
#include <string.h>

#include "base/alloc.h"
#include "device/cpu/cpu_dnnl.h"

#define FIRST_WEIGHTS_ID 2

struct pattern {
    int num_dims;
    int64_t groups;
    int order[DNNL_MAX_NDIMS]; /* dimensions, outermost first */
    int num_blocks;
    int64_t block_elems[DNNL_MAX_NDIMS];
    int64_t block_dims[DNNL_MAX_NDIMS];
    dnnl_memory_desc_t first; /* the one it was made from */
};

struct lgi_cpu_layouts {
    struct pattern *patterns; /* id - FIRST_WEIGHTS_ID */
    size_t num_patterns;
    size_t capacity;
};

lg_status lgi_cpu_layouts_create(lgi_cpu_layouts **out)
{
    return lgi_calloc(out, 1, sizeof **out);
}

void lgi_cpu_layouts_destroy(lgi_cpu_layouts *layouts)
{
    if (layouts != NULL) {
        lgi_free(layouts->patterns);
        lgi_free(layouts);
    }
}

int lgi_cpu_channels_last(const lg_shape *sample_shape)
{
    const bool is_same = sample_shape->num_dims < 2 || sample_shape->dims[0] == 1 ||
                         lgi_cpu_map_elems(sample_shape) == 1;
    return is_same ? LGI_CPU_ROW_MAJOR : LGI_CPU_CHANNELS_LAST;
}

void lgi_cpu_want_channels_last(lgi_layer_facts *facts, const lgi_layer_spec *spec, int i)
{
    facts->in[i].id = lgi_cpu_channels_last(&spec->in_shapes[i]);
}

bool lgi_cpu_follow_inputs(lgi_layer_facts *facts, const lgi_layer_spec *spec)
{
    const lg_layer_info *layer = spec->layer;
    bool is_channels_last = false;
    for (int i = 0; i < layer->num_inputs; i++) {
        is_channels_last = is_channels_last || spec->in_layouts[i].id == LGI_CPU_CHANNELS_LAST;
    }
    for (int i = 0; i < layer->num_inputs; i++) {
        facts->in[i].id =
            is_channels_last ? lgi_cpu_channels_last(&spec->in_shapes[i]) : LGI_CPU_ROW_MAJOR;
    }
    facts->out.id = is_channels_last ? lgi_cpu_channels_last(&layer->out_shape) : LGI_CPU_ROW_MAJOR;
    return is_channels_last;
}

/* --- patterns ------------------------------------------------------------------------------------------------------ */

static void pattern_of(struct pattern *pattern, const dnnl_memory_desc_t *desc, int64_t groups)
{
    const dnnl_blocking_desc_t *blocking = &desc->format_desc.blocking;
    memset(pattern, 0, sizeof *pattern);
    pattern->num_dims = desc->ndims;
    pattern->groups = groups;
    pattern->num_blocks = blocking->inner_nblks;
    pattern->first = *desc;
    for (int b = 0; b < blocking->inner_nblks; b++) {
        pattern->block_elems[b] = blocking->inner_blks[b];
        pattern->block_dims[b] = blocking->inner_idxs[b];
    }
    for (int d = 0; d < desc->ndims; d++) { /* insertion sort, larger strides first */
        int at = d;
        while (at > 0 && blocking->strides[pattern->order[at - 1]] < blocking->strides[d]) {
            pattern->order[at] = pattern->order[at - 1];
            at--;
        }
        pattern->order[at] = d;
    }
}

static bool is_same_pattern(const struct pattern *a, const struct pattern *b)
{
    bool is_same =
        a->num_dims == b->num_dims && a->groups == b->groups && a->num_blocks == b->num_blocks;
    for (int d = 0; is_same && d < a->num_dims; d++) {
        is_same = a->order[d] == b->order[d];
    }
    for (int i = 0; is_same && i < a->num_blocks; i++) {
        is_same = a->block_elems[i] == b->block_elems[i] && a->block_dims[i] == b->block_dims[i];
    }
    return is_same;
}

static bool is_row_major(const struct pattern *pattern)
{
    bool is_plain = pattern->num_blocks == 0;
    for (int d = 0; d < pattern->num_dims; d++) {
        is_plain = is_plain && pattern->order[d] == d;
    }
    return is_plain;
}

lg_status lgi_cpu_layout_intern(lgi_cpu_device *device, const dnnl_memory_desc_t *desc,
                                int64_t groups, int *out_id)
{
    lgi_cpu_layouts *layouts = device->layouts;
    struct pattern pattern;
    if (desc->format_kind != dnnl_blocked || desc->extra.flags != 0) {
        LG_FAIL(LG_NOT_SUPPORTED, "oneDNN asks for weights in a form that is not blocked");
    }
    pattern_of(&pattern, desc, groups);
    if (is_row_major(&pattern)) {
        *out_id = LGI_CPU_ROW_MAJOR;
        return LG_OK;
    }
    for (size_t i = 0; i < layouts->num_patterns; i++) {
        if (is_same_pattern(&layouts->patterns[i], &pattern)) {
            *out_id = FIRST_WEIGHTS_ID + (int)i;
            return LG_OK;
        }
    }
    LG_TRY(lgi_grow(&layouts->patterns, &layouts->capacity, layouts->num_patterns + 1,
                    sizeof pattern));
    layouts->patterns[layouts->num_patterns] = pattern;
    *out_id = FIRST_WEIGHTS_ID + (int)layouts->num_patterns++;
    return LG_OK;
}

static const struct pattern *find_pattern(const lgi_cpu_device *device, int id)
{
    const int idx = id - FIRST_WEIGHTS_ID;
    const bool is_known = idx >= 0 && (size_t)idx < device->layouts->num_patterns;
    return is_known ? &device->layouts->patterns[idx] : NULL;
}

int64_t lgi_cpu_layout_groups(const lgi_cpu_device *device, int id)
{
    const struct pattern *pattern = find_pattern(device, id);
    return pattern != NULL ? pattern->groups : 1;
}

/* Fills in a description from the pattern: padded sizes, then strides from the innermost dimension out. */
static void fill_desc(const struct pattern *pattern, const dnnl_dim_t *dims,
                      dnnl_memory_desc_t *out)
{
    int64_t block_product[DNNL_MAX_NDIMS];
    int64_t stride = 1;
    memset(out, 0, sizeof *out);
    out->ndims = pattern->num_dims;
    out->data_type = dnnl_f32;
    out->format_kind = dnnl_blocked;
    for (int d = 0; d < pattern->num_dims; d++) {
        block_product[d] = 1;
    }
    for (int b = 0; b < pattern->num_blocks; b++) {
        block_product[pattern->block_dims[b]] *= pattern->block_elems[b];
        stride *= pattern->block_elems[b];
        out->format_desc.blocking.inner_blks[b] = pattern->block_elems[b];
        out->format_desc.blocking.inner_idxs[b] = pattern->block_dims[b];
    }
    out->format_desc.blocking.inner_nblks = pattern->num_blocks;
    for (int i = pattern->num_dims - 1; i >= 0; i--) {
        const int d = pattern->order[i];
        out->dims[d] = dims[d];
        out->padded_dims[d] = lgi_cpu_round_up(dims[d], block_product[d]);
        out->format_desc.blocking.strides[d] = stride;
        stride *= out->padded_dims[d] / block_product[d];
    }
}

lg_status lgi_cpu_layout_desc(const lgi_cpu_device *device, int id, int64_t groups,
                              const lg_shape *shape, dnnl_memory_desc_t *out)
{
    const struct pattern *known = find_pattern(device, id);
    struct pattern pattern;
    dnnl_dims_t dims;
    int num_dims = 0;
    memset(&pattern, 0, sizeof pattern);
    if (groups > 1) {
        dims[num_dims++] = groups;
    }
    for (int d = 0; d < shape->num_dims; d++) {
        dims[num_dims++] = d == 0 ? shape->dims[0] / groups : shape->dims[d];
    }
    if (known == NULL) {
        const int num_before = id == LGI_CPU_CHANNELS_LAST ? 1 : num_dims;
        pattern.num_dims = num_dims;
        for (int i = 0; i < num_dims; i++) {
            pattern.order[i] = i < num_before ? i : i + 1 < num_dims ? i + 1 : 1;
        }
        fill_desc(&pattern, dims, out);
        return id <= LGI_CPU_CHANNELS_LAST
                   ? LG_OK
                   : lgi_fail(LG_INVALID_ARG, "layout %d does not exist", id);
    }
    if (known->num_dims != num_dims || known->groups != groups) {
        LG_FAIL(LG_INVALID_ARG, "layout %d is of a tensor with %d dimensions and %d groups", id,
                known->num_dims, (int)known->groups);
    }
    if (memcmp(known->first.dims, dims, (size_t)num_dims * sizeof dims[0]) == 0) {
        *out = known->first;
        return LG_OK;
    }
    fill_desc(known, dims, out);
    return LG_OK;
}

/* --- host access --------------------------------------------------------------------------------------------------- */

/* Position in memory of the element with these indices. */
static int64_t position_of(const dnnl_memory_desc_t *desc, const int64_t *idx)
{
    const dnnl_blocking_desc_t *blocking = &desc->format_desc.blocking;
    int64_t rest[DNNL_MAX_NDIMS];
    int64_t position = 0;
    int64_t inner_stride = 1;
    for (int d = 0; d < desc->ndims; d++) {
        rest[d] = idx[d];
    }
    for (int b = blocking->inner_nblks - 1; b >= 0; b--) {
        const int64_t d = blocking->inner_idxs[b];
        position += rest[d] % blocking->inner_blks[b] * inner_stride;
        rest[d] /= blocking->inner_blks[b];
        inner_stride *= blocking->inner_blks[b];
    }
    for (int d = 0; d < desc->ndims; d++) {
        position += rest[d] * blocking->strides[d];
    }
    return position;
}

static void next_index(const dnnl_memory_desc_t *desc, int64_t *idx)
{
    for (int d = desc->ndims - 1; d >= 0; d--) {
        idx[d]++;
        if (idx[d] < desc->dims[d]) {
            return;
        }
        idx[d] = 0;
    }
}

lg_status lgi_cpu_read(lgi_device *device, const lg_shape *shape, int layout, const void *stored,
                       float *host)
{
    const lgi_cpu_device *self = (const lgi_cpu_device *)device;
    const int64_t num_elems = lg_shape_num_elems(shape);
    dnnl_memory_desc_t desc;
    int64_t idx[DNNL_MAX_NDIMS] = {0};
    if (layout == LGI_CPU_ROW_MAJOR) {
        memcpy(host, stored, (size_t)num_elems * sizeof *host);
        return LG_OK;
    }
    LG_TRY(lgi_cpu_layout_desc(self, layout, lgi_cpu_layout_groups(self, layout), shape, &desc));
    for (int64_t i = 0; i < num_elems; i++) {
        host[i] = ((const float *)stored)[position_of(&desc, idx)];
        next_index(&desc, idx);
    }
    return LG_OK;
}

lg_status lgi_cpu_write(lgi_device *device, const lg_shape *shape, int layout, void *stored,
                        const float *host)
{
    const lgi_cpu_device *self = (const lgi_cpu_device *)device;
    const int64_t num_elems = lg_shape_num_elems(shape);
    dnnl_memory_desc_t desc;
    int64_t idx[DNNL_MAX_NDIMS] = {0};
    if (layout == LGI_CPU_ROW_MAJOR) {
        memcpy(stored, host, (size_t)num_elems * sizeof *host);
        return LG_OK;
    }
    LG_TRY(lgi_cpu_layout_desc(self, layout, lgi_cpu_layout_groups(self, layout), shape, &desc));
    memset(stored, 0, dnnl_memory_desc_get_size(&desc));
    for (int64_t i = 0; i < num_elems; i++) {
        ((float *)stored)[position_of(&desc, idx)] = host[i];
        next_index(&desc, idx);
    }
    return LG_OK;
}
