/* leapgrad selftest: whether the ranks of a cluster compute what one process computes, how fast, and what its links are worth. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "leapgrad/selftest.h"

static const cli_option options[] = {
    {"ranks", "NUMBER",
     "ranks as threads of this process, 2 if not given; not under mpirun or srun"},
    {"pipeline", "NUMBER",
     "pipelines of so many ranks only; else every number that divides the ranks"},
    {"device", "NAME", "backend, as exec.device; auto is the default"},
    {"timeout", "SECONDS", "as ranks.timeout_s; 10 is the default"},
    {NULL, NULL, NULL}};

static volatile sig_atomic_t stop_signal;

static void ask_to_stop(int number)
{
    stop_signal = number;
    (void)signal(number, SIG_DFL);
}

/* --- printing ----------------------------------------------------------------------------------------------------------- */

void cli_print_link(const char *what, const lg_link_report *link)
{
    char latency[CLI_TEXT_BYTES];
    char one[CLI_TEXT_BYTES];
    char both[CLI_TEXT_BYTES];
    if (link->ranks[0] < 0) {
        return;
    }
    printf("%s  ranks %d and %d: latency %s, %s/s one way, %s/s each way at once\n", what,
           link->ranks[0], link->ranks[1], cli_format_ns(latency, link->latency_ns),
           cli_format_bytes(one, link->bytes_per_s),
           cli_format_bytes(both, link->both_bytes_per_s));
}

static void on_links(void *user, const lg_links_report *links)
{
    (void)user;
    printf("%d ranks on %d host%s, %d core%s each\n", links->machine.num_ranks, links->num_hosts,
           links->num_hosts == 1 ? "" : "s", links->machine.num_cores,
           links->machine.num_cores == 1 ? "" : "s");
    cli_print_link("within a host ", &links->intra_host);
    cli_print_link("between hosts ", &links->inter_host);
    printf("\nD x P: replicas times pipeline ranks; same bits: as one process computes; times of a "
           "step\n");
    printf("%-5s %5s %-28s %-9s %12s %12s\n", "model", "D x P", "strategy", "same bits",
           "predicted", "measured");
    (void)fflush(stdout);
}

/* What is counted while cases go by. */
struct counts {
    int num_run;
    int num_wrong;
};

static void on_case(void *user, const lg_selftest_case *result)
{
    struct counts *const counts = user;
    char shape[32];
    char predicted[CLI_TEXT_BYTES];
    char measured[CLI_TEXT_BYTES];
    (void)snprintf(shape, sizeof shape, "%dx%d", result->num_replicas, result->num_pipeline_ranks);
    printf("%-5s %5s %-28s ", result->model, shape, result->strategy);
    if (!result->was_run) {
        printf("-         %.120s\n", result->reason);
    } else {
        counts->num_run++;
        counts->num_wrong += result->has_same_bits ? 0 : 1;
        printf("%-9s %12s %12s  %+6.1f %%\n", result->has_same_bits ? "yes" : "NO",
               cli_format_ns(predicted, result->predicted_ns),
               cli_format_ns(measured, result->measured_ns),
               100.0 * (result->measured_ns / result->predicted_ns - 1.0));
    }
    (void)fflush(stdout);
}

/* --- the command -------------------------------------------------------------------------------------------------------- */

static lg_status read_number(const cli_args *args, const char *name, double min, double max,
                             double *out)
{
    const char *const text = cli_args_option(args, &cli_selftest, name);
    char *end = NULL;
    if (text == NULL) {
        return LG_OK;
    }
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= min && value <= max)) {
        return cli_fail(LG_INVALID_ARG, "selftest: --%s is '%s', expected a number in [%g, %g]",
                        name, text, min, max);
    }
    *out = value;
    return LG_OK;
}

static lg_status read_options(lg_selftest_opts *opts, const cli_args *args)
{
    const char *const device = cli_args_option(args, &cli_selftest, "device");
    double num_ranks = 2.0;
    double num_pipeline = 0.0;
    lg_status status = read_number(args, "ranks", 2, LG_COMM_MAX_LOCAL_RANKS, &num_ranks);
    if (status == LG_OK) {
        status = read_number(args, "pipeline", 1, 65536, &num_pipeline);
    }
    if (status == LG_OK) {
        status = read_number(args, "timeout", 1, 86400, &opts->timeout_s);
    }
    opts->num_ranks = (int)num_ranks;
    opts->num_pipeline_ranks = (int)num_pipeline;
    opts->device = device != NULL ? device : opts->device;
    return status;
}

static lg_status selftest(const cli_args *args)
{
    struct counts counts = {0, 0};
    lg_selftest_opts opts = lg_selftest_opts_default();
    lg_status status = read_options(&opts, args);
    if (status != LG_OK) {
        return status;
    }
    status = cli_join_ranks(&opts.comm, args, &cli_selftest);
    if (status != LG_OK) {
        return status;
    }
    const bool is_first = opts.comm == NULL || lg_comm_rank(opts.comm) == 0;
    opts.should_stop = &stop_signal;
    opts.on_links = on_links;
    opts.on_case = on_case;
    opts.user = &counts;
    (void)signal(SIGINT, ask_to_stop);
    (void)signal(SIGTERM, ask_to_stop);
    if (is_first) {
        printf("leapgrad %s selftest over %s\n", lg_version(),
               cli_comm_text(opts.comm != NULL ? lg_comm_name(opts.comm) : NULL));
    }
    status = lg_selftest(&opts);
    if (status == LG_OK && is_first) {
        printf("\n%d cases, all with the bits of one process\n", counts.num_run);
    }
    cli_leave_ranks(opts.comm, status);
    return status;
}

const cli_command cli_selftest = {
    .name = "selftest",
    .words = "",
    .min_words = 0,
    .max_words = 0,
    .summary = "train small models over several ranks by every strategy: same bits, time, links",
    .help =
        "Ranks are threads of this process, or the processes that mpirun or srun started. Fails if "
        "any strategy\n"
        "gives other weights than one process. Run it first on a new cluster, and send its output "
        "with a\n"
        "report of something that does not work.",
    .options = options,
    .run = selftest};
