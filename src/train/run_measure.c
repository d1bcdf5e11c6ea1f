/* Times and timelines of a run's steps. */
#include "train/run_measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

/* Of the time of a step lately: the weight of the newest one. */
static const double newest_weight = 0.1;

/* Timelines of several ranks, and steps from one to the next. */
#define NUM_RECORDED_OF_RANKS 3
#define STEPS_BETWEEN 5

lg_status lgi_run_measure_init(lgi_run_measure *measure, int64_t first_step, int64_t num_steps,
                               int num_ranks)
{
    const int64_t num = num_steps - first_step;
    const int64_t middle = first_step + num / 2;
    memset(measure, 0, sizeof *measure);
    measure->record_every = 1;
    int64_t num_recorded = LGI_NUM_RECORDED_STEPS;
    if (num_ranks > 1) {
        const int64_t part = num / NUM_RECORDED_OF_RANKS;
        measure->record_every = part >= STEPS_BETWEEN ? STEPS_BETWEEN : part > 0 ? part : 1;
        num_recorded = NUM_RECORDED_OF_RANKS * measure->record_every;
    }
    measure->record_from = middle + num_recorded <= num_steps ? middle : num_steps - num_recorded;
    measure->record_end = measure->record_from + num_recorded;
    return lgi_calloc(&measure->step_ns, LGI_MAX_STEP_TIMES, sizeof *measure->step_ns);
}

void lgi_run_measure_deinit(lgi_run_measure *measure)
{
    for (int i = 0; i < measure->num_timelines; i++) {
        lg_timeline_deinit(&measure->timelines[i]);
    }
    measure->num_timelines = 0;
    lgi_free(measure->step_ns);
    measure->step_ns = NULL;
}

static bool is_recorded(const lgi_run_measure *measure, int64_t step)
{
    return step >= measure->record_from && step < measure->record_end &&
           (step - measure->record_from + 1) % measure->record_every == 0;
}

void lgi_run_measure_begin(lgi_run_measure *measure, lg_trainer *trainer, int64_t step)
{
    if (is_recorded(measure, step) || is_recorded(measure, step - 1)) {
        lg_trainer_record(trainer, is_recorded(measure, step));
    }
}

lg_status lgi_run_measure_record(lgi_run_measure *measure, const lg_trainer *trainer, int64_t step,
                                 bool is_full)
{
    const int num = measure->num_timelines;
    if (!is_full || !is_recorded(measure, step) || num == LGI_NUM_RECORDED_STEPS) {
        return LG_OK;
    }
    LG_TRY(lg_trainer_timeline(trainer, &measure->timelines[num]));
    measure->num_timelines++;
    return LG_OK;
}

void lgi_run_measure_end(lgi_run_measure *measure, const lg_step_result *result,
                         int64_t num_samples, uint64_t total_ns, bool is_full)
{
    measure->train_ns += (double)total_ns;
    measure->num_samples += num_samples;
    measure->recent_ns += measure->recent_ns > 0.0
                              ? newest_weight * ((double)total_ns - measure->recent_ns)
                              : (double)total_ns;
    if (is_full) {
        measure->step_ns[measure->num_steps % LGI_MAX_STEP_TIMES] = (double)result->step_ns;
        measure->num_steps++;
    }
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double lgi_run_measure_median_ms(const lgi_run_measure *measure)
{
    const size_t num =
        (size_t)(measure->num_steps < LGI_MAX_STEP_TIMES ? measure->num_steps : LGI_MAX_STEP_TIMES);
    double *sorted = NULL;
    if (num == 0 || lgi_calloc(&sorted, num, sizeof *sorted) != LG_OK) {
        return NAN;
    }
    memcpy(sorted, measure->step_ns, num * sizeof *sorted);
    qsort(sorted, num, sizeof *sorted, compare_doubles);
    const double median_ns = (sorted[(num - 1) / 2] + sorted[num / 2]) / 2.0;
    lgi_free(sorted);
    return median_ns * 1e-6;
}

double lgi_run_measure_samples_per_s(const lgi_run_measure *measure)
{
    return measure->train_ns > 0.0 ? (double)measure->num_samples / (measure->train_ns * 1e-9)
                                   : NAN;
}

int lgi_run_measure_median(const lgi_run_measure *measure)
{
    for (int i = 0; i < measure->num_timelines; i++) {
        int num_before = 0;
        for (int k = 0; k < measure->num_timelines; k++) {
            const double ns = measure->timelines[k].step_ns;
            num_before +=
                ns < measure->timelines[i].step_ns || (ns == measure->timelines[i].step_ns && k < i)
                    ? 1
                    : 0;
        }
        if (num_before == (measure->num_timelines - 1) / 2) {
            return i;
        }
    }
    return -1;
}

lg_timeline *lgi_run_measure_timeline(lgi_run_measure *measure)
{
    const int idx = lgi_run_measure_median(measure);
    return idx >= 0 ? &measure->timelines[idx] : NULL;
}

double lgi_timeline_overhead_frac(const lg_timeline *timeline)
{
    const double whole_ns = timeline->end_ns - timeline->begin_ns;
    double busy_ns = 0.0;
    double covered_until_ns = timeline->begin_ns;
    for (int i = 0; i < timeline->num_spans; i++) { /* sorted by start */
        const lg_span *const span = &timeline->spans[i];
        const double from_ns =
            span->start_ns > covered_until_ns ? span->start_ns : covered_until_ns;
        if (span->end_ns > from_ns) {
            busy_ns += span->end_ns - from_ns;
            covered_until_ns = span->end_ns;
        }
    }
    return whole_ns > 0.0 ? (whole_ns - busy_ns) / whole_ns : NAN;
}
