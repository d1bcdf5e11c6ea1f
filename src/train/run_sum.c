/* What a run came to, over its ranks: peaks, and what a measured step of all of them says. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "train/run_internal.h"

void lgi_run_sum_init(lgi_run_sum *sum)
{
    memset(sum, 0, sizeof *sum);
    sum->bubble_frac = NAN;
    sum->exposed_comm_frac = NAN;
    sum->bytes_sent = -1;
}

void lgi_run_sum_deinit(lgi_run_sum *sum)
{
    lgi_free(sum->stats);
    lgi_free(sum->peaks);
    sum->stats = NULL;
    sum->peaks = NULL;
}

/* --- peaks ---------------------------------------------------------------------------------------------------------------- */

lg_status lgi_run_sum_peaks(lgi_run *run)
{
    lgi_run_sum *const sum = &run->sum;
    const lg_trainer_info info = lg_trainer_about(run->job->trainer);
    const int64_t own[2] = {info.planned_peak_bytes, info.measured_peak_bytes};
    const int num_ranks = run->ranks.num_ranks;
    sum->planned_peak_bytes = own[0];
    sum->measured_peak_bytes = own[1];
    if (run->ranks.comm == NULL) {
        return LG_OK;
    }
    if (sum->peaks == NULL) {
        LG_TRY(lgi_calloc(&sum->peaks, 2 * (size_t)num_ranks, sizeof *sum->peaks));
    }
    LG_TRY(lgi_comm_all_gather(run->ranks.comm, own, sizeof own, sum->peaks));
    for (int rank = 0; rank < num_ranks; rank++) {
        const int64_t *const peaks = &sum->peaks[2 * rank];
        sum->planned_peak_bytes =
            peaks[0] > sum->planned_peak_bytes ? peaks[0] : sum->planned_peak_bytes;
        sum->measured_peak_bytes =
            peaks[1] > sum->measured_peak_bytes ? peaks[1] : sum->measured_peak_bytes;
    }
    return LG_OK;
}

/* --- a step of all ranks -------------------------------------------------------------------------------------------------- */

static lg_status find_stats(lgi_run *run, lg_timeline *timeline)
{
    lgi_run_sum *const sum = &run->sum;
    const int num_ranks = run->ranks.num_ranks;
    const lg_graph *const graph = lg_trainer_graph(run->job->trainer);
    const lg_plan *const plan = lg_trainer_plan(run->job->trainer);
    LG_TRY(lgi_calloc(&sum->stats, (size_t)num_ranks, sizeof *sum->stats));
    LG_TRY(lg_timeline_stats(sum->stats, timeline, plan, graph));
    sum->bubble_frac = 0.0;
    sum->exposed_comm_frac = 0.0;
    sum->bytes_sent = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        sum->bubble_frac += sum->stats[rank].bubble_frac / num_ranks;
        sum->exposed_comm_frac += sum->stats[rank].exposed_comm_ns / timeline->step_ns / num_ranks;
        sum->bytes_sent += sum->stats[rank].sent_bytes;
    }
    return LG_OK;
}

lg_status lgi_run_sum_timeline(lgi_run *run)
{
    lgi_run_sum *const sum = &run->sum;
    sum->measured = lgi_run_measure_timeline(&run->measure);
    if (run->ranks.comm == NULL || sum->measured == NULL || sum->stats != NULL) {
        return LG_OK;
    }
    return find_stats(run, sum->measured);
}
