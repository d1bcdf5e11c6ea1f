/*
 * Machines: the default one, what is allowed, and machine files (docs/formats/machine.md). Reading is strict: what the format
 * does not name is an error, and every message starts with the place.
 */
#include "plan/plan_machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "plan/plan_check.h"
#include "plan/plan_json.h"

#define MACHINE_FORMAT "leapgrad-machine"
#define MACHINE_VERSION 1
#define MAX_FILE_BYTES ((size_t)1 << 20)
#define MAX_RANKS 65536
#define MAX_MEMORY_BYTES (INT64_MAX / 4)
/* Numbers that are no machine's: sums of times stay finite. */
#define MAX_RATE 1e21
#define MIN_RATE 1.0
#define MAX_TIME_NS 1e15
#define MAX_SLOWDOWN 1e3

lg_machine lg_machine_default(void)
{
    return (lg_machine){
        .num_ranks = 1,
        .ranks_per_host = 1,
        .num_cores = 1,
        .memory_bytes = 0,
        .corun_slowdown = 1.0,
        .flops_per_s = 50e9,
        .bytes_per_s = 10e9,
        .op_overhead_ns = 1e3,
        .fork_overhead_ns = 3e3,
        .intra_host = {.latency_ns = 1e3, .bytes_per_s = 10e9, .is_shared = true},
        .inter_host = {.latency_ns = 20e3, .bytes_per_s = 125e6, .is_shared = true},
    };
}

/* --- what is allowed ------------------------------------------------------------------------------------------------ */

static lg_status check_number(const char *where, const char *key, double value, double min,
                              double max)
{
    if (!(value >= min && value <= max)) { /* false for NaN too */
        LG_FAIL(LG_INVALID_ARG, "%s%s%s is %g; allowed: %g to %g", where,
                where[0] != '\0' ? "." : "", key, value, min, max);
    }
    return LG_OK;
}

static lg_status check_link(const char *where, const lg_link *link)
{
    LG_TRY(check_number(where, "latency_ns", link->latency_ns, 0.0, MAX_TIME_NS));
    return check_number(where, "bytes_per_s", link->bytes_per_s, MIN_RATE, MAX_RATE);
}

static lg_status check_hosts(const lg_machine *machine)
{
    if (machine->num_ranks < 1 || machine->num_ranks > MAX_RANKS) {
        LG_FAIL(LG_INVALID_ARG, "num_ranks is %d; allowed: 1 to %d", machine->num_ranks, MAX_RANKS);
    }
    if (machine->ranks_per_host < 1 || machine->ranks_per_host > machine->num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "ranks_per_host is %d; allowed: 1 to num_ranks, %d",
                machine->ranks_per_host, machine->num_ranks);
    }
    return LG_OK;
}

lg_status lgi_machine_check(const lg_machine *machine)
{
    LG_TRY(check_hosts(machine));
    if (machine->num_cores < 1 || machine->num_cores > LGI_MAX_CORES) {
        LG_FAIL(LG_INVALID_ARG, "num_cores is %d; allowed: 1 to %d", machine->num_cores,
                LGI_MAX_CORES);
    }
    if (machine->memory_bytes < 0 || machine->memory_bytes > MAX_MEMORY_BYTES) {
        LG_FAIL(LG_INVALID_ARG, "memory_bytes is %lld; allowed: 0 (not limited) to %lld",
                (long long)machine->memory_bytes, (long long)MAX_MEMORY_BYTES);
    }
    LG_TRY(check_number("", "corun_slowdown", machine->corun_slowdown, 1.0, MAX_SLOWDOWN));
    LG_TRY(check_number("", "flops_per_s", machine->flops_per_s, MIN_RATE, MAX_RATE));
    LG_TRY(check_number("", "bytes_per_s", machine->bytes_per_s, MIN_RATE, MAX_RATE));
    LG_TRY(check_number("", "op_overhead_ns", machine->op_overhead_ns, 0.0, MAX_TIME_NS));
    LG_TRY(check_number("", "fork_overhead_ns", machine->fork_overhead_ns, 0.0, MAX_TIME_NS));
    LG_TRY(check_link("intra_host", &machine->intra_host));
    return check_link("inter_host", &machine->inter_host);
}

static lg_status check_links(const lg_machine *machine, int num_ranks)
{
    LG_TRY(check_hosts(machine));
    if (machine->num_ranks < num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "num_ranks is %d, but the graph has %d", machine->num_ranks,
                num_ranks);
    }
    LG_TRY(check_link("intra_host", &machine->intra_host));
    return check_link("inter_host", &machine->inter_host);
}

lg_status lgi_machine_check_links(const lg_machine *machine, int num_ranks)
{
    const lg_status status = check_links(machine, num_ranks);
    return status == LG_OK ? LG_OK : lgi_fail_prefix(status, "machine");
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

static json_t *link_json(const lg_link *link)
{
    return json_pack("{s:f, s:f, s:b}", "latency_ns", link->latency_ns, "bytes_per_s",
                     link->bytes_per_s, "is_shared", link->is_shared ? 1 : 0);
}

lg_status lg_machine_save(const lg_machine *machine, const char *comment, const char *path)
{
    const lg_status status = lgi_machine_check(machine);
    if (status != LG_OK) {
        return lgi_fail_prefix(status, "%s: the machine cannot be saved", path);
    }
    json_t *const root = json_pack(
        "{s:s, s:i, s:s, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "format",
        MACHINE_FORMAT, "version", MACHINE_VERSION, "comment", comment != NULL ? comment : "",
        "num_ranks", machine->num_ranks, "ranks_per_host", machine->ranks_per_host, "num_cores",
        machine->num_cores, "memory_bytes", (json_int_t)machine->memory_bytes, "corun_slowdown",
        machine->corun_slowdown, "flops_per_s", machine->flops_per_s, "bytes_per_s",
        machine->bytes_per_s, "op_overhead_ns", machine->op_overhead_ns, "fork_overhead_ns",
        machine->fork_overhead_ns, "intra_host", link_json(&machine->intra_host), "inter_host",
        link_json(&machine->inter_host));
    if (root == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY,
                "%s: could not be made (out of memory, or the comment is not UTF-8)", path);
    }
    const lg_status written = lgi_json_write(root, path);
    json_decref(root);
    return written;
}

/* --- reading ---------------------------------------------------------------------------------------------------------- */

static lg_status read_number(const json_t *object, const char *where, const char *key, double *out)
{
    const json_t *const item = json_object_get(object, key);
    if (!json_is_number(item)) {
        LG_FAIL(LG_INVALID_ARG, "%s%s%s: expected a number", where, where[0] != '\0' ? "." : "",
                key);
    }
    *out = json_number_value(item);
    return LG_OK;
}

static lg_status read_link(const json_t *root, const char *key, lg_link *out)
{
    static const char *const keys[] = {"latency_ns", "bytes_per_s", "is_shared", NULL};
    const json_t *const object = json_object_get(root, key);
    LG_TRY(lgi_json_check_keys(object, key, keys));
    LG_TRY(read_number(object, key, "latency_ns", &out->latency_ns));
    LG_TRY(read_number(object, key, "bytes_per_s", &out->bytes_per_s));
    const json_t *const is_shared = json_object_get(object, "is_shared");
    if (!json_is_boolean(is_shared)) {
        LG_FAIL(LG_INVALID_ARG, "%s.is_shared: expected true or false", key);
    }
    out->is_shared = json_is_true(is_shared);
    return LG_OK;
}

static lg_status read_int(const json_t *root, const char *key, int max, int *out)
{
    int64_t value = 0;
    LG_TRY(lgi_json_integer(root, "file", key, 1, max, &value));
    *out = (int)value;
    return LG_OK;
}

static lg_status read_machine(lg_machine *out, const json_t *root)
{
    static const char *const keys[] = {
        "format",         "version",          "comment",        "num_ranks",   "ranks_per_host",
        "num_cores",      "memory_bytes",     "corun_slowdown", "flops_per_s", "bytes_per_s",
        "op_overhead_ns", "fork_overhead_ns", "intra_host",     "inter_host",  NULL};
    LG_TRY(lgi_json_check_header(root, keys, MACHINE_FORMAT, MACHINE_VERSION));
    if (!json_is_string(json_object_get(root, "comment"))) {
        LG_FAIL(LG_INVALID_ARG, "comment: expected a text");
    }
    LG_TRY(read_int(root, "num_ranks", MAX_RANKS, &out->num_ranks));
    LG_TRY(read_int(root, "ranks_per_host", MAX_RANKS, &out->ranks_per_host));
    LG_TRY(read_int(root, "num_cores", LGI_MAX_CORES, &out->num_cores));
    LG_TRY(lgi_json_integer(root, "file", "memory_bytes", 0, MAX_MEMORY_BYTES, &out->memory_bytes));
    LG_TRY(read_number(root, "", "corun_slowdown", &out->corun_slowdown));
    LG_TRY(read_number(root, "", "flops_per_s", &out->flops_per_s));
    LG_TRY(read_number(root, "", "bytes_per_s", &out->bytes_per_s));
    LG_TRY(read_number(root, "", "op_overhead_ns", &out->op_overhead_ns));
    LG_TRY(read_number(root, "", "fork_overhead_ns", &out->fork_overhead_ns));
    LG_TRY(read_link(root, "intra_host", &out->intra_host));
    LG_TRY(read_link(root, "inter_host", &out->inter_host));
    return lgi_machine_check(out);
}

lg_status lg_machine_parse(lg_machine *out, const char *text, size_t num_bytes)
{
    json_t *root = NULL;
    lg_machine machine = {0};
    LG_TRY(lgi_json_parse(&root, text, num_bytes));
    const lg_status status = read_machine(&machine, root);
    json_decref(root);
    if (status == LG_OK) {
        *out = machine;
    }
    return status;
}

lg_status lg_machine_load(lg_machine *out, const char *path)
{
    char *text = NULL;
    size_t num_bytes = 0;
    LG_TRY(lgi_file_read(&text, &num_bytes, path, MAX_FILE_BYTES));
    const lg_status status = lg_machine_parse(out, text, num_bytes);
    lgi_free(text);
    return status == LG_OK ? LG_OK : lgi_fail_prefix(status, "%s", path);
}
