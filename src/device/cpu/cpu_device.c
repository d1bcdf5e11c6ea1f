/* The oneDNN backend: opening, memory, preparing layers. */
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "device/cpu/cpu_dnnl.h"

#define PAGE_BYTES 4096
#define HUGE_PAGE_BYTES (2 << 20)
#define KERNEL_BYTES (16 << 20) /* well above what the kernels of a layer take */

static const lgi_cpu_kind *const kinds[LG_NUM_LAYER_KINDS] = {
    [LG_LAYER_INPUT] = &lgi_cpu_input,
    [LG_LAYER_CONV2D] = &lgi_cpu_conv,
    [LG_LAYER_LINEAR] = &lgi_cpu_linear,
    [LG_LAYER_BATCH_NORM] = &lgi_cpu_batch_norm,
    [LG_LAYER_LAYER_NORM] = &lgi_cpu_layer_norm,
    [LG_LAYER_ACTIVATION] = &lgi_cpu_activation,
    [LG_LAYER_MAX_POOL] = &lgi_cpu_max_pool,
    [LG_LAYER_AVG_POOL] = &lgi_cpu_avg_pool,
    [LG_LAYER_GLOBAL_AVG_POOL] = &lgi_cpu_global_avg_pool,
    [LG_LAYER_FLATTEN] = &lgi_cpu_flatten,
    [LG_LAYER_ADD] = &lgi_cpu_add,
    [LG_LAYER_CONCAT] = &lgi_cpu_concat,
    [LG_LAYER_CHANNEL_SCALE] = &lgi_cpu_channel_scale,
    [LG_LAYER_DROPOUT] = &lgi_cpu_dropout,
    [LG_LAYER_TOKEN_EMBEDDING] = &lgi_cpu_token_embedding,
    [LG_LAYER_POSITION_EMBEDDING] = &lgi_cpu_position_embedding,
    [LG_LAYER_ATTENTION] = &lgi_cpu_attention,
    [LG_LAYER_SOFTMAX_CROSS_ENTROPY] = &lgi_cpu_loss,
};

/* --- device -------------------------------------------------------------------------------------------------------- */

static const char *isa_name(dnnl_cpu_isa_t isa)
{
    switch (isa) {
    case dnnl_cpu_isa_sse41:
        return "SSE4.1";
    case dnnl_cpu_isa_avx:
        return "AVX";
    case dnnl_cpu_isa_avx2:
        return "AVX2";
    case dnnl_cpu_isa_avx2_vnni:
        return "AVX2 with VNNI";
    case dnnl_cpu_isa_avx512_mic:
    case dnnl_cpu_isa_avx512_mic_4ops:
    case dnnl_cpu_isa_avx512_core:
        return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "AVX-512 with VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "AVX-512 with VNNI and bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "AVX-512 with VNNI, bf16 and AMX";
    default:
        return "no known vector extension";
    }
}

static void close_device(lgi_device *device)
{
    lgi_cpu_device *self = (lgi_cpu_device *)device;
    if (self == NULL) {
        return;
    }
    if (self->engine != NULL) {
        (void)dnnl_engine_destroy(self->engine);
    }
    lgi_cpu_layouts_destroy(self->layouts);
    lgi_free(self);
}

static lg_status fill_device(lgi_cpu_device *device, int num_cores)
{
    const dnnl_version_t *version = dnnl_version();
    device->base.ops = &lgi_device_cpu;
    device->num_cores = num_cores;
    LG_TRY(lgi_cpu_layouts_create(&device->layouts));
    LG_DNNL(dnnl_engine_create(&device->engine, dnnl_cpu, 0), "cpu");
    (void)snprintf(device->description, sizeof device->description, "%s, oneDNN %d.%d.%d",
                   isa_name(dnnl_get_effective_cpu_isa()), version->major, version->minor,
                   version->patch);
    return LG_OK;
}

static lg_status open_device(lgi_device **out, int num_cores)
{
    lgi_cpu_device *device = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&device, 1, sizeof *device));
    const lg_status status = fill_device(device, num_cores);
    if (status != LG_OK) {
        close_device(&device->base);
        return status;
    }
    *out = &device->base;
    return LG_OK;
}

static const char *describe_device(const lgi_device *device)
{
    return ((const lgi_cpu_device *)device)->description;
}

/*
 * The team is the calling thread's from now on: libgomp keeps a team's threads between its parallel regions. oneDNN's kernels
 * share out their work for as many threads as they were made for, so a smaller team would leave a part of it undone: what
 * could make it smaller (OMP_DYNAMIC, OMP_MAX_ACTIVE_LEVELS) is overruled here, OMP_THREAD_LIMIT refused in check_widths().
 */
static void start_lane(lgi_device *device, int width, void (*bind)(void *user, int thread_idx),
                       void *user)
{
    (void)device;
    omp_set_dynamic(0);
    if (omp_get_max_active_levels() < 1) {
        omp_set_max_active_levels(1);
    }
#pragma omp parallel num_threads(width) if (width > 1)
    bind(user, omp_get_thread_num());
}

/* --- memory -------------------------------------------------------------------------------------------------------- */

static lg_status alloc_memory(lgi_device *device, void **out, int64_t bytes)
{
    lgi_cpu_device *self = (lgi_cpu_device *)device;
    const size_t alignment = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : PAGE_BYTES;
    *out = NULL;
    if (bytes < 0 || (uint64_t)bytes > SIZE_MAX - HUGE_PAGE_BYTES ||
        lgi_alloc_aligned(out, (size_t)bytes, alignment) != LG_OK) {
        LG_FAIL(LG_OUT_OF_MEMORY,
                "device '%s': cannot allocate %" PRId64 " bytes (%" PRId64 " bytes are in use)",
                device->ops->name, bytes, self->current_bytes);
    }
    if (bytes >= HUGE_PAGE_BYTES) { /* only advice: fewer misses in the translation buffer */
        (void)madvise(*out, (size_t)(bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES), MADV_HUGEPAGE);
    }
    memset(*out, 0, (size_t)bytes);
    self->current_bytes += bytes;
    if (self->current_bytes > self->peak_bytes) {
        self->peak_bytes = self->current_bytes;
    }
    return LG_OK;
}

static void free_memory(lgi_device *device, void *memory, int64_t bytes)
{
    if (memory != NULL) {
        ((lgi_cpu_device *)device)->current_bytes -= bytes;
        lgi_free(memory);
    }
}

static int64_t peak_bytes(const lgi_device *device)
{
    return ((const lgi_cpu_device *)device)->peak_bytes;
}

/* --- layers -------------------------------------------------------------------------------------------------------- */

static void destroy_layer(lgi_device_layer *layer)
{
    lgi_cpu_layer *self = (lgi_cpu_layer *)layer;
    if (self == NULL) {
        return;
    }
    if (self->kind->release != NULL) {
        self->kind->release(self);
    }
    lgi_free(self->name);
    lgi_free(self);
}

/* oneDNN writes kernels at run time, and does not look whether it got the memory for that. So it is looked before. */
static lg_status check_kernel_memory(const lgi_layer_spec *spec)
{
    void *const room =
        mmap(NULL, KERNEL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        LG_FAIL(LG_OUT_OF_MEMORY, "out of memory: no %d bytes for the kernels of layer '%s'",
                KERNEL_BYTES, spec->layer->name);
    }
    (void)munmap(room, KERNEL_BYTES);
    return LG_OK;
}

static lg_status check_widths(const lgi_layer_spec *spec)
{
    const int limit = omp_get_thread_limit();
    for (int i = 0; i < spec->num_widths; i++) {
        if (spec->widths[i] > limit) {
            LG_FAIL(LG_INVALID_ARG,
                    "layer '%s' is to run with %d threads, but OMP_THREAD_LIMIT allows %d; unset "
                    "it, or ask for fewer threads and cores",
                    spec->layer->name, spec->widths[i], limit);
        }
    }
    return LG_OK;
}

static lg_status fill_layer(lgi_cpu_layer *layer, lgi_cpu_device *device,
                            const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    const lg_layer_info *info = spec->layer;
    LG_TRY(check_widths(spec));
    LG_TRY(check_kernel_memory(spec));
    layer->device = device;
    layer->attrs = info->attrs;
    layer->mode = spec->mode;
    layer->num_samples = spec->num_samples;
    layer->num_inputs = info->num_inputs;
    layer->out_shape = info->out_shape;
    layer->in_shape = info->num_inputs > 0 ? spec->in_shapes[0] : info->out_shape;
    layer->random_key = spec->random_key;
    layer->num_widths = spec->num_widths;
    memcpy(layer->widths, spec->widths, (size_t)spec->num_widths * sizeof layer->widths[0]);
    LG_TRY(lgi_strdup(&layer->name, info->name));
    lgi_layer_facts_natural(facts, spec, sizeof(float));
    return layer->kind->prepare(layer, spec, facts);
}

static lg_status create_layer(lgi_device *device, const lgi_layer_spec *spec,
                              lgi_layer_facts *facts, lgi_device_layer **out)
{
    const lgi_cpu_kind *kind = kinds[spec->layer->kind];
    lgi_cpu_layer *layer = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&layer, 1, kind->layer_bytes));
    layer->base.ops = device->ops;
    layer->kind = kind;
    const lg_status status = fill_layer(layer, (lgi_cpu_device *)device, spec, facts);
    if (status != LG_OK) {
        destroy_layer(&layer->base);
        return status;
    }
    *out = &layer->base;
    return LG_OK;
}

static lg_status run_layer(lgi_device_layer *layer, lgi_phase phase, int width_idx,
                           const lgi_layer_io *io)
{
    const lgi_cpu_layer *self = (const lgi_cpu_layer *)layer;
    const lgi_cpu_run_fn run = self->kind->run[phase];
    if (run == NULL) {
        LG_FAIL(LG_INTERNAL, "layer '%s' has no phase %d", self->name, (int)phase);
    }
    return run(self, width_idx, io);
}

const struct lgi_device_ops lgi_device_cpu = {
    .name = "cpu",
    .help = "oneDNN and own vector kernels, f32",
    .real_bytes = sizeof(float),
    .wants_fusion = true,
    .open = open_device,
    .close = close_device,
    .describe = describe_device,
    .start_lane = start_lane,
    .alloc = alloc_memory,
    .free = free_memory,
    .peak_bytes = peak_bytes,
    .layer_create = create_layer,
    .layer_destroy = destroy_layer,
    .run = run_layer,
    .reorder_create = lgi_cpu_reorder_create,
    .reorder_destroy = lgi_cpu_reorder_destroy,
    .reorder_run = lgi_cpu_reorder_run,
    .grad_add = lgi_cpu_grad_add,
    .sum_squares = lgi_cpu_sum_squares,
    .grad_stat = lgi_cpu_grad_stat,
    .update = lgi_cpu_update,
    .fold_statistics = lgi_cpu_fold_statistics,
    .read = lgi_cpu_read,
    .write = lgi_cpu_write,
};
