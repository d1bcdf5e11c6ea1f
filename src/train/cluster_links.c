/* The links of a communicator, measured, as a machine file has them. */
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "exec/hardware.h"
#include "leapgrad/selftest.h"
#include "train/local_ranks.h"

/* Large enough that latency does not matter, small enough for slow links. */
#define PROBE_BYTES ((int64_t)1 << 20)

static lg_link_report report_of(const lgi_link_figures *figures)
{
    const lg_link_report report = {.ranks = {figures->ranks[0], figures->ranks[1]},
                                   .latency_ns = figures->latency_ns,
                                   .bytes_per_s = figures->bytes_per_s,
                                   .both_bytes_per_s = figures->both_bytes_per_s};
    return report;
}

/*
 * A machine file's link is what one direction has while the other is in use too, as in training. Between threads or processes of one
 * host, all copies go through one memory: shared.
 */
static void set_link(lg_link *link, const lg_link_report *report, bool is_shared)
{
    if (report->ranks[0] < 0) {
        return;
    }
    link->latency_ns = report->latency_ns;
    link->bytes_per_s = report->both_bytes_per_s;
    link->is_shared = is_shared;
}

static lg_status count_hosts(lg_comm *comm, lg_links_report *out)
{
    const int num_ranks = lg_comm_num_ranks(comm);
    int *hosts = NULL;
    LG_TRY(lgi_calloc(&hosts, (size_t)num_ranks, sizeof *hosts));
    const lg_status status = lgi_comm_hosts(comm, hosts);
    int on_first = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        out->num_hosts = hosts[rank] + 1 > out->num_hosts ? hosts[rank] + 1 : out->num_hosts;
        on_first += hosts[rank] == 0 ? 1 : 0;
    }
    out->machine.ranks_per_host = on_first > 0 ? on_first : 1;
    lgi_free(hosts);
    return status;
}

lg_status lg_measure_links(lg_comm *comm, lg_links_report *out)
{
    lgi_link_figures intra_host;
    lgi_link_figures inter_host;
    lgi_hardware *hardware = NULL;
    memset(out, 0, sizeof *out);
    out->machine = lg_machine_default();
    out->machine.num_ranks = lg_comm_num_ranks(comm);
    LG_TRY(count_hosts(comm, out));
    LG_TRY(lgi_comm_measure_links(comm, PROBE_BYTES, &intra_host, &inter_host));
    out->intra_host = report_of(&intra_host);
    out->inter_host = report_of(&inter_host);
    set_link(&out->machine.intra_host, &out->intra_host, true);
    set_link(&out->machine.inter_host, &out->inter_host, false);
    LG_TRY(lgi_hardware_open(&hardware));
    const int num_cores = lgi_hardware_num_cores(hardware) / lg_comm_num_host_ranks(comm);
    out->machine.num_cores = num_cores > 0 ? num_cores : 1;
    lgi_hardware_close(hardware);
    return LG_OK;
}

static lg_status measure_rank(lg_comm *comm, void *user)
{
    lg_links_report report;
    LG_TRY(lg_measure_links(comm, &report));
    if (lg_comm_rank(comm) == 0) {
        *(lg_links_report *)user = report;
    }
    return LG_OK;
}

lg_status lg_measure_local_links(int num_ranks, lg_links_report *out)
{
    memset(out, 0, sizeof *out);
    return lgi_run_local_ranks(num_ranks, 10.0, measure_rank, out);
}
