/* Machine files: the examples, round trips, and bad input that is named by its place. */
#include "random_plans.h"

#include <dirent.h>
#include <unistd.h>

#define GOOD \
    "{\"format\": \"leapgrad-machine\", \"version\": 1, \"comment\": \"c\", \"num_ranks\": 4, " \
    "\"ranks_per_host\": 2, \"num_cores\": 1, \"memory_bytes\": 1000, \"corun_slowdown\": 1.5, " \
    "\"flops_per_s\": 1e9, \"bytes_per_s\": 2e9, \"op_overhead_ns\": 3, \"fork_overhead_ns\": 4, " \
    "\"intra_host\": {\"latency_ns\": 5, \"bytes_per_s\": 6e9, \"is_shared\": false}, " \
    "\"inter_host\": {\"latency_ns\": 7, \"bytes_per_s\": 8e9, \"is_shared\": true}}"

static void a_machine_is_read_as_written(void **state)
{
    (void)state;
    lg_machine machine;
    assert_ok(lg_machine_parse(&machine, GOOD, strlen(GOOD)));
    assert_int_equal(machine.num_ranks, 4);
    assert_int_equal(machine.ranks_per_host, 2);
    assert_int_equal(machine.memory_bytes, 1000);
    assert_true(machine.corun_slowdown == 1.5 && machine.op_overhead_ns == 3.0);
    assert_true(machine.intra_host.bytes_per_s == 6e9 && !machine.intra_host.is_shared);
    assert_true(machine.inter_host.latency_ns == 7.0 && machine.inter_host.is_shared);
    assert_int_equal(machine.reduction, LG_REDUCTION_DIRECT); /* if it is left out */
    assert_true(machine.comm_core_frac == 0.0);
    machine.comm_core_frac = 0.25;
    machine.reduction = LG_REDUCTION_TWO_LEVEL;
    char path[64];
    (void)snprintf(path, sizeof path, "machine-%d.json", (int)getpid());
    assert_ok(lg_machine_save(&machine, "made by a test", path));
    lg_machine again;
    assert_ok(lg_machine_load(&again, path));
    assert_true(
        machine.num_ranks == again.num_ranks && machine.ranks_per_host == again.ranks_per_host &&
        machine.num_cores == again.num_cores && machine.memory_bytes == again.memory_bytes &&
        machine.corun_slowdown == again.corun_slowdown &&
        machine.flops_per_s == again.flops_per_s && machine.bytes_per_s == again.bytes_per_s &&
        machine.op_overhead_ns == again.op_overhead_ns &&
        machine.fork_overhead_ns == again.fork_overhead_ns &&
        machine.reduction == again.reduction && machine.comm_core_frac == again.comm_core_frac &&
        machine.intra_host.latency_ns == again.intra_host.latency_ns &&
        machine.intra_host.bytes_per_s == again.intra_host.bytes_per_s &&
        machine.intra_host.is_shared == again.intra_host.is_shared &&
        machine.inter_host.latency_ns == again.inter_host.latency_ns &&
        machine.inter_host.bytes_per_s == again.inter_host.bytes_per_s &&
        machine.inter_host.is_shared == again.inter_host.is_shared);
    (void)unlink(path);
    char text[LG_MACHINE_TEXT_BYTES];
    assert_ok(lg_machine_format(text, sizeof text, &machine, "made by a test"));
    memset(&again, 0, sizeof again);
    assert_ok(lg_machine_parse(&again, text, strlen(text)));
    assert_int_equal(again.num_ranks, machine.num_ranks);
    assert_true(again.inter_host.latency_ns == machine.inter_host.latency_ns);
    assert_fails(LG_INVALID_ARG, "num_bytes is 100", lg_machine_format(text, 100, &machine, NULL));
    assert_fails(LG_INVALID_ARG, "num_bytes is ",
                 lg_machine_format(text, strlen(text), &machine, "made by a test"));
    machine.ranks_per_host = 5;
    assert_fails(LG_INVALID_ARG, "ranks_per_host is 5; allowed: 1 to num_ranks, 4",
                 lg_machine_save(&machine, NULL, path));
    const lg_machine simple = lg_machine_default();
    assert_ok(lg_machine_save(&simple, NULL, path));
    assert_ok(lg_machine_load(&again, path));
    (void)unlink(path);
}

static void the_examples_are_machines(void **state)
{
    (void)state;
    const char *const source = getenv("LG_SOURCE_DIR");
    char folder[512];
    (void)snprintf(folder, sizeof folder, "%s/machines", source != NULL ? source : ".");
    DIR *const listing = opendir(folder);
    assert_non_null(listing);
    int num = 0;
    for (const struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (strstr(entry->d_name, ".json") == NULL) {
            continue;
        }
        char path[1024];
        lg_machine machine;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        assert_ok(lg_machine_load(&machine, path));
        num++;
    }
    (void)closedir(listing);
    assert_true(num >= 8);
}

/* `from` in the good file replaced by `to`. */
static void assert_refused(const char *from, const char *to, const char *message)
{
    char text[2048];
    const char *const at = strstr(GOOD, from);
    assert_non_null(at);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - GOOD), GOOD, to, at + strlen(from));
    lg_machine machine = {.num_ranks = 77};
    assert_fails(LG_INVALID_ARG, message, lg_machine_parse(&machine, text, strlen(text)));
    assert_int_equal(machine.num_ranks, 77);
}

static void bad_files_are_refused_with_the_place(void **state)
{
    (void)state;
    assert_refused("\"inter_host\"", "\"inter_hosts\"", "'inter_host' is missing");
    assert_refused(
        ", \"inter_host\": {\"latency_ns\": 7, \"bytes_per_s\": 8e9, \"is_shared\": true}", "",
        "'inter_host' is missing");
    assert_refused("{\"latency_ns\": 5, \"bytes_per_s\": 6e9, \"is_shared\": false}", "null",
                   "intra_host: expected an object");
    assert_refused("6e9", "0", "intra_host.bytes_per_s is 0; allowed: 1 to 1e+21");
    assert_refused("6e9", "-6e9", "intra_host.bytes_per_s is -6e+09");
    assert_refused("6e9", "\"fast\"", "intra_host.bytes_per_s: expected a number");
    assert_refused("6e9", "NaN", "line 1, column");
    assert_refused("6e9", "1e400", "line 1, column");
    assert_refused("8e9", "1e22", "inter_host.bytes_per_s is 1e+22");
    assert_refused("\"latency_ns\": 7", "\"latency_ns\": -1", "inter_host.latency_ns is -1");
    assert_refused("\"is_shared\": true", "\"is_shared\": 1",
                   "inter_host.is_shared: expected true or false");
    assert_refused("\"is_shared\": true", "\"is_shared\": true, \"mtu\": 1500",
                   "inter_host: unknown key 'mtu'");
    assert_refused("\"num_cores\": 1", "\"num_cores\": 1, \"color\": 1", "unknown key 'color'");
    assert_refused("\"num_cores\": 1", "\"num_cores\": 1, \"num_cores\": 2", "line 1, column");
    assert_refused("\"num_cores\": 1", "\"num_cores\": 0",
                   "'num_cores': expected an integer in 1..");
    assert_refused("\"num_ranks\": 4", "\"num_ranks\": 0",
                   "'num_ranks': expected an integer in 1..");
    assert_refused("\"num_ranks\": 4", "\"num_ranks\": 1.5", "'num_ranks': expected an integer");
    assert_refused("\"ranks_per_host\": 2", "\"ranks_per_host\": 5",
                   "ranks_per_host is 5; allowed: 1 to num_ranks, 4");
    assert_refused("\"memory_bytes\": 1000", "\"memory_bytes\": -1", "'memory_bytes'");
    assert_refused("1.5", "0.5", "corun_slowdown is 0.5; allowed: 1 to");
    assert_refused("1.5,", "1.5, \"comm_core_frac\": 0.95,",
                   "comm_core_frac is 0.95; allowed: 0 to 0.9");
    assert_refused("\"flops_per_s\": 1e9", "\"flops_per_s\": 0", "flops_per_s is 0");
    assert_refused("\"comment\": \"c\"", "\"comment\": 3", "comment: expected a text");
    assert_refused("leapgrad-machine", "leapgrad-plan", "format: expected \"leapgrad-machine\"");
    assert_refused("\"version\": 1", "\"version\": 2", "version: expected 1");
    assert_refused("\"version\": 1", "\"version\": 1, \"reduction\": \"tree\"",
                   "reduction: expected \"direct\" or \"two-level\"");
    assert_refused("\"version\": 1", "\"version\": 1, \"reduction\": 2", "reduction: expected");
    lg_machine machine;
    assert_fails(LG_IO, "no-such-machine.json", lg_machine_load(&machine, "no-such-machine.json"));
}

static void every_shortened_file_is_refused(void **state)
{
    (void)state;
    lg_machine machine;
    for (size_t i = 0; i < strlen(GOOD); i++) {
        assert_int_equal(lg_machine_parse(&machine, GOOD, i), LG_INVALID_ARG);
    }
}

/* Of a reduction of the bytes, the latency takes a ninth to a 17th, whatever the links are. */
static void shared_messages_are_worth_their_latency(void **state)
{
    (void)state;
    lg_machine machine = lg_machine_default();
    machine.num_ranks = 8;
    machine.ranks_per_host = 1;
    machine.inter_host = (lg_link){.latency_ns = 50e3, .bytes_per_s = 117e6, .is_shared = true};
    /* 2 latencies of 50 us, 8 to 16 of them are 93,600 to 187,200 bytes */
    assert_int_equal(lg_machine_share_bytes(&machine, 2, 1), 131072);
    machine.inter_host.bytes_per_s = 11.7e6;
    assert_int_equal(lg_machine_share_bytes(&machine, 2, 1), 16384);
    assert_int_equal(lg_machine_share_bytes(&machine, 1, 8), 0);
    machine.inter_host.latency_ns = 0.0;
    assert_int_equal(lg_machine_share_bytes(&machine, 2, 1), 0);
    machine.inter_host.latency_ns = 1e12; /* a limit all the same */
    assert_int_equal(lg_machine_share_bytes(&machine, 8, 1), 64 << 20);
    /* replicas that are on one host have that host's links */
    machine.ranks_per_host = 8;
    machine.intra_host = (lg_link){.latency_ns = 1e3, .bytes_per_s = 1e9, .is_shared = false};
    assert_int_equal(lg_machine_share_bytes(&machine, 2, 4), 16384 * 2 / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_is_read_as_written),
        cmocka_unit_test(the_examples_are_machines),
        cmocka_unit_test(bad_files_are_refused_with_the_place),
        cmocka_unit_test(every_shortened_file_is_refused),
        cmocka_unit_test(shared_messages_are_worth_their_latency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
