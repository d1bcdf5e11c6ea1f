#include "device/cpu/cpu_dnnl.h"

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"

#define MAX_SETS 8

/* What one run at a time uses: memory objects that only carry pointers. */
struct argument_set {
    atomic_flag is_busy;
    dnnl_stream_t stream;
    dnnl_exec_arg_t args[LGI_CPU_MAX_ARGS + 1]; /* the last one: scratchpad */
};

struct lgi_cpu_primitive {
    dnnl_primitive_t primitive;
    int width;
    int num_args;
    int64_t scratch_bytes;
    char *what;
    int num_sets;
    struct argument_set *sets;
};

lg_status lgi_cpu_dnnl_fail(dnnl_status_t code, const char *call, const char *what)
{
    static const char *const texts[] = {"success",           "out of memory",  "invalid arguments",
                                        "not implemented",   "iterator ends",  "runtime error",
                                        "nothing is needed", "unknown failure"};
    const unsigned last = sizeof texts / sizeof texts[0] - 1;
    const char *text = texts[(unsigned)code < last ? (unsigned)code : last];
    const lg_status status = code == dnnl_out_of_memory   ? LG_OUT_OF_MEMORY
                             : code == dnnl_unimplemented ? LG_NOT_SUPPORTED
                                                          : LG_DEVICE;
    const int name_length = (int)strcspn(call, "(");
    LG_FAIL(status, "'%s': oneDNN's %.*s reports '%s'", what, name_length, call, text);
}

int lgi_cpu_set_threads(int width)
{
    const int before = omp_get_max_threads();
    if (before != width) {
        omp_set_num_threads(width);
    }
    return before;
}

const char *lgi_cpu_desc_name(const_dnnl_primitive_desc_t desc)
{
    const char *name = "";
    (void)dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name);
    return name;
}

static bool has_prefix(const char *name, const char *const *prefixes)
{
    for (int i = 0; prefixes != NULL && prefixes[i] != NULL; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* Walks the implementations; *out stays NULL if all have a prefix to avoid. */
static lg_status find_desc(dnnl_primitive_desc_t *out, dnnl_primitive_desc_iterator_t iterator,
                           const char *const *avoid)
{
    do {
        dnnl_primitive_desc_t desc = dnnl_primitive_desc_iterator_fetch(iterator);
        if (desc == NULL) {
            LG_FAIL(LG_OUT_OF_MEMORY, "oneDNN cannot make a primitive descriptor");
        }
        if (!has_prefix(lgi_cpu_desc_name(desc), avoid)) {
            *out = desc;
            return LG_OK;
        }
        (void)dnnl_primitive_desc_destroy(desc);
    } while (dnnl_primitive_desc_iterator_next(iterator) == dnnl_success);
    return LG_OK;
}

lg_status lgi_cpu_desc_create(dnnl_primitive_desc_t *out, const lgi_cpu_device *device,
                              const_dnnl_op_desc_t op, const_dnnl_primitive_desc_t hint,
                              const char *const *avoid, const char *what)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_iterator_t iterator = NULL;
    *out = NULL;
    LG_DNNL(dnnl_primitive_attr_create(&attr), what);
    (void)dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    dnnl_status_t code =
        dnnl_primitive_desc_iterator_create(&iterator, op, attr, device->engine, hint);
    lg_status status = LG_OK;
    if (code == dnnl_success) {
        status = find_desc(out, iterator, avoid);
        (void)dnnl_primitive_desc_iterator_destroy(iterator);
    }
    if (code == dnnl_success && status == LG_OK && *out == NULL) {
        code = dnnl_primitive_desc_create(out, op, attr, device->engine, hint);
    }
    (void)dnnl_primitive_attr_destroy(attr);
    LG_TRY(status);
    LG_DNNL(code, what);
    return LG_OK;
}

static lg_status create_set(struct argument_set *set, dnnl_engine_t engine,
                            const_dnnl_primitive_desc_t desc, const int *args, int num_args,
                            const char *what)
{
    atomic_flag_clear(&set->is_busy);
    LG_DNNL(dnnl_stream_create(&set->stream, engine, dnnl_stream_default_flags), what);
    for (int i = 0; i <= num_args; i++) {
        const int arg = i < num_args ? args[i] : DNNL_ARG_SCRATCHPAD;
        const dnnl_memory_desc_t *memory_desc =
            dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, arg);
        set->args[i].arg = arg;
        LG_DNNL(dnnl_memory_create(&set->args[i].memory, memory_desc, engine, DNNL_MEMORY_NONE),
                what);
    }
    return LG_OK;
}

static lg_status fill_primitive(lgi_cpu_primitive *primitive, lgi_cpu_device *device,
                                const_dnnl_primitive_desc_t desc, int width, const int *args,
                                int num_args, const char *what)
{
    const int num_sets = device->num_cores / width;
    primitive->width = width;
    primitive->num_args = num_args;
    primitive->scratch_bytes = (int64_t)dnnl_memory_desc_get_size(
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    LG_TRY(lgi_strdup(&primitive->what, what));
    LG_DNNL(dnnl_primitive_create(&primitive->primitive, desc), what);
    primitive->num_sets = num_sets < 1 ? 1 : num_sets > MAX_SETS ? MAX_SETS : num_sets;
    LG_TRY(lgi_calloc(&primitive->sets, (size_t)primitive->num_sets, sizeof *primitive->sets));
    for (int i = 0; i < primitive->num_sets; i++) {
        LG_TRY(create_set(&primitive->sets[i], device->engine, desc, args, num_args, what));
    }
    return LG_OK;
}

lg_status lgi_cpu_primitive_create(lgi_cpu_primitive **out, lgi_cpu_device *device,
                                   dnnl_primitive_desc_t desc, int width, const int *args,
                                   int num_args, const char *what)
{
    lgi_cpu_primitive *primitive = NULL;
    *out = NULL;
    lg_status status = lgi_calloc(&primitive, 1, sizeof *primitive);
    if (status == LG_OK) {
        status = fill_primitive(primitive, device, desc, width, args, num_args, what);
    }
    (void)dnnl_primitive_desc_destroy(desc);
    if (status != LG_OK) {
        lgi_cpu_primitive_destroy(primitive);
        return status;
    }
    *out = primitive;
    return LG_OK;
}

lg_status lgi_cpu_reorder_primitive_create(lgi_cpu_primitive **out, lgi_cpu_device *device,
                                           const dnnl_memory_desc_t *from,
                                           const dnnl_memory_desc_t *to, int width,
                                           const char *what)
{
    static const int args[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    *out = NULL;
    LG_DNNL(dnnl_primitive_attr_create(&attr), what);
    (void)dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    const dnnl_status_t code =
        dnnl_reorder_primitive_desc_create(&desc, from, device->engine, to, device->engine, attr);
    (void)dnnl_primitive_attr_destroy(attr);
    LG_DNNL(code, what);
    LG_TRY(lgi_cpu_primitive_create(out, device, desc, width, args, 2, what));
    if ((*out)->scratch_bytes > 0) {
        lgi_cpu_primitive_destroy(*out);
        *out = NULL;
        LG_FAIL(LG_NOT_SUPPORTED, "'%s': oneDNN's reorder needs a scratchpad", what);
    }
    return LG_OK;
}

void lgi_cpu_primitive_destroy(lgi_cpu_primitive *primitive)
{
    if (primitive == NULL) {
        return;
    }
    for (int i = 0; primitive->sets != NULL && i < primitive->num_sets; i++) {
        struct argument_set *set = &primitive->sets[i];
        for (int a = 0; a <= primitive->num_args; a++) {
            if (set->args[a].memory != NULL) {
                (void)dnnl_memory_destroy(set->args[a].memory);
            }
        }
        if (set->stream != NULL) {
            (void)dnnl_stream_destroy(set->stream);
        }
    }
    if (primitive->primitive != NULL) {
        (void)dnnl_primitive_destroy(primitive->primitive);
    }
    lgi_free(primitive->sets);
    lgi_free(primitive->what);
    lgi_free(primitive);
}

int64_t lgi_cpu_primitive_scratch_bytes(const lgi_cpu_primitive *primitive)
{
    return primitive->scratch_bytes;
}

/* There are as many sets as lanes of this width can exist, so the wait is for the odd case only. */
static struct argument_set *take_set(const lgi_cpu_primitive *primitive)
{
    for (;;) {
        for (int i = 0; i < primitive->num_sets; i++) {
            struct argument_set *set = &primitive->sets[i];
            if (!atomic_flag_test_and_set_explicit(&set->is_busy, memory_order_acquire)) {
                return set;
            }
        }
        (void)sched_yield();
    }
}

static dnnl_status_t execute(const lgi_cpu_primitive *primitive, struct argument_set *set,
                             const void *const *pointers, void *scratch)
{
    for (int i = 0; i <= primitive->num_args; i++) {
        const void *pointer = i < primitive->num_args ? pointers[i] : scratch;
        void *handle = NULL;
        memcpy(&handle, &pointer, sizeof handle); /* oneDNN has no const memory */
        const dnnl_status_t code = dnnl_memory_set_data_handle(set->args[i].memory, handle);
        if (code != dnnl_success) {
            return code;
        }
    }
    return dnnl_primitive_execute(primitive->primitive, set->stream, primitive->num_args + 1,
                                  set->args);
}

lg_status lgi_cpu_primitive_run(const lgi_cpu_primitive *primitive, const void *const *pointers,
                                void *scratch)
{
    (void)lgi_cpu_set_threads(primitive->width);
    struct argument_set *set = take_set(primitive);
    const dnnl_status_t code = execute(primitive, set, pointers, scratch);
    atomic_flag_clear_explicit(&set->is_busy, memory_order_release);
    LG_DNNL(code, primitive->what);
    return LG_OK;
}
