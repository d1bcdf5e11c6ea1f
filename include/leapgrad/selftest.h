/**
 * A test of the ranks of a cluster, by itself: every strategy trains small models over them, and must give the bits that one process
 * alone gives; how long steps take, against what the simulator says; and what the links between ranks are worth.
 */
#ifndef LEAPGRAD_SELFTEST_H
#define LEAPGRAD_SELFTEST_H

#include <signal.h>

#include "leapgrad/comm.h"
#include "leapgrad/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Between two ranks, measured. */
typedef struct lg_link_report {
    int ranks[2];            /* -1: there is no such pair */
    double latency_ns;       /* one way, of a message of 8 bytes */
    double bytes_per_s;      /* one way, of large messages */
    double both_bytes_per_s; /* each way, while both are in use */
} lg_link_report;

typedef struct lg_links_report {
    lg_link_report intra_host; /* between the first two ranks of a host */
    lg_link_report inter_host; /* between ranks of the first two hosts */
    int num_hosts;
    /** What machine files say (lg_machine_save()): ranks, hosts, cores, links; all else the defaults. */
    lg_machine machine;
} lg_links_report;

/** Measures the links of a communicator; all its ranks call it, and all get the report. */
LG_API LG_NODISCARD lg_status lg_measure_links(lg_comm *comm, lg_links_report *out);
/** The same over `num_ranks` ranks of this process. */
LG_API LG_NODISCARD lg_status lg_measure_local_links(int num_ranks, lg_links_report *out);

/**
 * Measures what one core reaches in f32: flops_per_s in a product of large matrices, bytes_per_s in an update of many parameters, both as
 * costs of ops are measured. Local; all else of *machine stays.
 *
 * @param device  "auto", or a name from lg_device_name().
 */
LG_API LG_NODISCARD lg_status lg_measure_rates(const char *device, lg_machine *machine);

/** A model, a placement, a strategy. Lifetime of texts: the callback. */
typedef struct lg_selftest_case {
    const char *model; /* "cnn": with batch norm; "gpt": with a tied embedding */
    const char *strategy;
    int num_replicas;
    int num_pipeline_ranks;
    bool was_run;
    const char
        *reason; /* why it was not run: the strategy does not go with this model and these ranks */
    bool
        has_same_bits; /* weights as of the same replicas and micro-batches in one process, without pipeline */
    double predicted_ns; /* of a step */
    double measured_ns;
} lg_selftest_case;

typedef struct lg_selftest_opts {
    int num_ranks;          /* threads of this process; not looked at with `comm` */
    int num_pipeline_ranks; /* 0: every number that divides the ranks */
    const char *device;     /* "auto", or a name from lg_device_name() */
    double timeout_s;       /* of a rank that is silent */
    lg_comm *comm;          /* all its ranks call lg_selftest(); NULL: `num_ranks` threads */
    const volatile sig_atomic_t *should_stop; /* NULL: never */
    /* On rank 0; each may be NULL. */
    void (*on_links)(void *user, const lg_links_report *links);
    void (*on_case)(void *user, const lg_selftest_case *result);
    void *user;
} lg_selftest_opts;

/** 2 ranks, every pipeline, "auto", 10 s. */
LG_API lg_selftest_opts lg_selftest_opts_default(void);

/**
 * Runs all cases.
 *
 * @return INTERNAL if some case has other bits, with their number; INTERRUPTED; COMM, TIMEOUT; INVALID_ARG for ranks that the pipeline
 *         ranks do not divide.
 */
LG_API LG_NODISCARD lg_status lg_selftest(const lg_selftest_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
