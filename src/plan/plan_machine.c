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

/* Layers share a reduction until its bytes take at most so many latencies, and at least half as many. */
#define MAX_SHARE_LATENCIES 16.0
/* Reductions do not grow beyond this: urgent gradients would wait. */
#define MAX_SHARE_BYTES ((int64_t)64 << 20)
/* So many replicas tell what the links are like. */
#define MAX_SHARE_RANKS 256
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
#define MAX_COMM_CORE_FRAC 0.9

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
    LG_TRY(check_link("inter_host", &machine->inter_host));
    LG_TRY(check_number("", "comm_core_frac", machine->comm_core_frac, 0.0, MAX_COMM_CORE_FRAC));
    if (machine->reduction != LG_REDUCTION_DIRECT && machine->reduction != LG_REDUCTION_TWO_LEVEL) {
        LG_FAIL(LG_INVALID_ARG, "reduction is %d; allowed: direct, two-level",
                (int)machine->reduction);
    }
    return LG_OK;
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

/* --- reductions -------------------------------------------------------------------------------------------------------- */

/* What a reduction comes to, host by host. */
typedef struct spread {
    int num_hosts;
    int most;           /* ranks on one host */
    double inner_frac;  /* what all hops within a host carry, as a part of the reduction's bytes */
    double widest_frac; /* one hop within a host */
    double outer_frac;  /* what leaves a host */
} spread;

/* The end of the run of ranks on the host of ranks[begin]. */
static int host_end(const lg_machine *machine, const int *ranks, int num, int begin)
{
    const int host = ranks[begin] / machine->ranks_per_host;
    int end = begin + 1;
    while (end < num && ranks[end] / machine->ranks_per_host == host) {
        end++;
    }
    return end;
}

static double ring_frac(int num)
{
    return 2.0 * (num - 1) / num;
}

static spread spread_of(const lg_machine *machine, const int *ranks, int num)
{
    const bool is_direct = machine->reduction == LG_REDUCTION_DIRECT;
    spread s = {0};
    for (int begin = 0, end = 0; begin < num; begin = end) {
        end = host_end(machine, ranks, num, begin);
        const int here = end - begin;
        const double hop_frac = is_direct ? 2.0 / num : ring_frac(here);
        const double num_hops = here < 2 ? 0.0 : is_direct ? (double)here * (here - 1) : here;
        s.num_hosts++;
        s.most = here > s.most ? here : s.most;
        s.inner_frac = fmax(s.inner_frac, num_hops * hop_frac);
        s.widest_frac = fmax(s.widest_frac, num_hops > 0.0 ? hop_frac : 0.0);
        s.outer_frac = fmax(s.outer_frac, (double)here * (num - here) * 2.0 / num);
    }
    s.outer_frac = is_direct ? s.outer_frac : ring_frac(s.num_hosts);
    return s;
}

static double latency_of(const lg_machine *machine, const spread *s)
{
    const double inner_ns = s->most > 1 ? machine->intra_host.latency_ns : 0.0;
    const double outer_ns = s->num_hosts > 1 ? machine->inter_host.latency_ns : 0.0;
    return machine->reduction == LG_REDUCTION_DIRECT
               ? 2.0 * fmax(inner_ns, outer_ns)
               : 2.0 * (s->most - 1) * inner_ns + 2.0 * outer_ns;
}

double lgi_reduction_latency_ns(const lg_machine *machine, const int *ranks, int num)
{
    const spread s = spread_of(machine, ranks, num);
    return num > 1 ? latency_of(machine, &s) : 0.0;
}

double lgi_reduction_ns(const lg_machine *machine, const int *ranks, int num, double bytes)
{
    if (num < 2) {
        return 0.0;
    }
    const spread s = spread_of(machine, ranks, num);
    const double inner_frac = machine->intra_host.is_shared ? s.inner_frac : s.widest_frac;
    const double s_per_byte =
        fmax(inner_frac / machine->intra_host.bytes_per_s,
             s.num_hosts > 1 ? s.outer_frac / machine->inter_host.bytes_per_s : 0.0);
    return latency_of(machine, &s) + bytes * s_per_byte * 1e9;
}

int64_t lg_machine_share_bytes(const lg_machine *machine, int num_replicas, int num_pipeline_ranks)
{
    int ranks[MAX_SHARE_RANKS];
    const int num = num_replicas < MAX_SHARE_RANKS ? num_replicas : MAX_SHARE_RANKS;
    for (int i = 0; i < num; i++) {
        ranks[i] = i * num_pipeline_ranks;
    }
    const double latency_ns = lgi_reduction_latency_ns(machine, ranks, num);
    const double ns = lgi_reduction_ns(machine, ranks, num, (double)MAX_SHARE_BYTES) - latency_ns;
    if (latency_ns <= 0.0) { /* one replica, too */
        return 0;
    }
    int64_t bytes = MAX_SHARE_BYTES;
    while (bytes > 1 &&
           (double)bytes / (double)MAX_SHARE_BYTES * ns > MAX_SHARE_LATENCIES * latency_ns) {
        bytes /= 2;
    }
    return bytes;
}

void lgi_reduction_hops(const lg_machine *machine, const int *ranks, int num,
                        lgi_hop_visitor *visit, void *user)
{
    if (machine->reduction == LG_REDUCTION_DIRECT) {
        for (int i = 0; i < num; i++) {
            for (int k = 1; k < num; k++) {
                visit(user, ranks[i], ranks[(i + k) % num], 2.0 / num);
            }
        }
        return;
    }
    const int num_hosts = num > 0 ? spread_of(machine, ranks, num).num_hosts : 0;
    for (int begin = 0, end = 0; begin < num; begin = end) {
        end = host_end(machine, ranks, num, begin);
        for (int other = 0; other < num; other = host_end(machine, ranks, num, other)) {
            if (other != begin) {
                visit(user, ranks[begin], ranks[other], 2.0 / num_hosts);
            }
        }
        for (int i = begin; i < end && end - begin > 1; i++) {
            visit(user, ranks[i], ranks[i + 1 < end ? i + 1 : begin], ring_frac(end - begin));
        }
    }
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

static json_t *link_json(const lg_link *link)
{
    return json_pack("{s:f, s:f, s:b}", "latency_ns", link->latency_ns, "bytes_per_s",
                     link->bytes_per_s, "is_shared", link->is_shared ? 1 : 0);
}

/* NULL: no memory, or a comment that is no UTF-8. */
static json_t *machine_json(const lg_machine *machine, const char *comment)
{
    return json_pack(
        "{s:s, s:i, s:s, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:s, s:f}",
        "format", MACHINE_FORMAT, "version", MACHINE_VERSION, "comment",
        comment != NULL ? comment : "", "num_ranks", machine->num_ranks, "ranks_per_host",
        machine->ranks_per_host, "num_cores", machine->num_cores, "memory_bytes",
        (json_int_t)machine->memory_bytes, "corun_slowdown", machine->corun_slowdown, "flops_per_s",
        machine->flops_per_s, "bytes_per_s", machine->bytes_per_s, "op_overhead_ns",
        machine->op_overhead_ns, "fork_overhead_ns", machine->fork_overhead_ns, "intra_host",
        link_json(&machine->intra_host), "inter_host", link_json(&machine->inter_host), "reduction",
        machine->reduction == LG_REDUCTION_TWO_LEVEL ? "two-level" : "direct", "comm_core_frac",
        machine->comm_core_frac);
}

lg_status lg_machine_save(const lg_machine *machine, const char *comment, const char *path)
{
    const lg_status status = lgi_machine_check(machine);
    if (status != LG_OK) {
        return lgi_fail_prefix(status, "%s: the machine cannot be saved", path);
    }
    json_t *const root = machine_json(machine, comment);
    if (root == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY,
                "%s: could not be made (out of memory, or the comment is not UTF-8)", path);
    }
    const lg_status written = lgi_json_write(root, path);
    json_decref(root);
    return written;
}

lg_status lg_machine_format(char *text, size_t num_bytes, const lg_machine *machine,
                            const char *comment)
{
    LG_TRY(lgi_machine_check(machine));
    json_t *const root = machine_json(machine, comment);
    const size_t length = root != NULL ? json_dumpb(root, text, num_bytes, LGI_JSON_FILE_FLAGS) : 0;
    json_decref(root);
    if (length == 0) {
        LG_FAIL(LG_OUT_OF_MEMORY,
                "the machine could not be made text (out of memory, or the comment is not UTF-8)");
    }
    if (length >= num_bytes) {
        LG_FAIL(LG_INVALID_ARG, "num_bytes is %zu; the machine takes %zu", num_bytes, length + 1);
    }
    text[length] = '\0';
    return LG_OK;
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

static lg_status read_reduction(const json_t *root, lg_reduction *out)
{
    const char *const name = json_string_value(json_object_get(root, "reduction"));
    if (name == NULL || (strcmp(name, "direct") != 0 && strcmp(name, "two-level") != 0)) {
        LG_FAIL(LG_INVALID_ARG, "reduction: expected \"direct\" or \"two-level\"");
    }
    *out = name[0] == 't' ? LG_REDUCTION_TWO_LEVEL : LG_REDUCTION_DIRECT;
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
    static const char *const keys[] = {"format",
                                       "version",
                                       "comment",
                                       "num_ranks",
                                       "ranks_per_host",
                                       "num_cores",
                                       "memory_bytes",
                                       "corun_slowdown",
                                       "flops_per_s",
                                       "bytes_per_s",
                                       "op_overhead_ns",
                                       "fork_overhead_ns",
                                       "intra_host",
                                       "inter_host",
                                       "reduction",
                                       "comm_core_frac",
                                       NULL};
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
    LG_TRY(read_reduction(root, &out->reduction));
    LG_TRY(read_number(root, "", "comm_core_frac", &out->comm_core_frac));
    return lgi_machine_check(out);
}

/* What older files do not have. */
static lg_status add_left_out(json_t *root)
{
    if ((json_object_get(root, "reduction") == NULL &&
         json_object_set_new(root, "reduction", json_string("direct")) != 0) ||
        (json_object_get(root, "comm_core_frac") == NULL &&
         json_object_set_new(root, "comm_core_frac", json_real(0.0)) != 0)) {
        LG_FAIL(LG_OUT_OF_MEMORY, "machine: out of memory");
    }
    return LG_OK;
}

lg_status lg_machine_parse(lg_machine *out, const char *text, size_t num_bytes)
{
    json_t *root = NULL;
    lg_machine machine = {0};
    LG_TRY(lgi_json_parse(&root, text, num_bytes));
    lg_status status = LG_OK;
    if (json_is_object(root)) {
        status = add_left_out(root);
    }
    status = status == LG_OK ? read_machine(&machine, root) : status;
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
