/* Times and timelines of a run's steps. */
#include "train/run_measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

/* Of the time of a step lately: the weight of the newest one. */
static const double newest_weight = 0.1;

lg_status lgi_run_measure_init(lgi_run_measure *measure, int64_t first_step, int64_t num_steps)
{
    const int64_t middle = first_step + (num_steps - first_step) / 2;
    memset(measure, 0, sizeof *measure);
    measure->record_from = middle;
    if (measure->record_from + LGI_NUM_RECORDED_STEPS > num_steps) {
        measure->record_from = num_steps - LGI_NUM_RECORDED_STEPS;
    }
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
    return step >= measure->record_from && step < measure->record_from + LGI_NUM_RECORDED_STEPS;
}

void lgi_run_measure_begin(lgi_run_measure *measure, lg_trainer *trainer, int64_t step)
{
    if (is_recorded(measure, step) || is_recorded(measure, step - 1)) {
        lg_trainer_record(trainer, is_recorded(measure, step));
    }
}

lg_status lgi_run_measure_end(lgi_run_measure *measure, const lg_trainer *trainer,
                              const lg_step_result *result, int64_t num_samples, uint64_t total_ns,
                              bool is_full)
{
    measure->train_ns += (double)total_ns;
    measure->num_samples += num_samples;
    measure->recent_ns += measure->recent_ns > 0.0
                              ? newest_weight * ((double)total_ns - measure->recent_ns)
                              : (double)total_ns;
    if (!is_full) {
        return LG_OK;
    }
    measure->step_ns[measure->num_steps % LGI_MAX_STEP_TIMES] = (double)result->step_ns;
    measure->num_steps++;
    if (is_recorded(measure, result->step) && measure->num_timelines < LGI_NUM_RECORDED_STEPS) {
        LG_TRY(lg_trainer_timeline(trainer, &measure->timelines[measure->num_timelines]));
        measure->num_timelines++;
    }
    return LG_OK;
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

static int compare_lengths(const void *a, const void *b)
{
    const double x = ((const lg_timeline *)a)->step_ns;
    const double y = ((const lg_timeline *)b)->step_ns;
    return (x > y) - (x < y);
}

lg_timeline *lgi_run_measure_timeline(lgi_run_measure *measure)
{
    if (measure->num_timelines == 0) {
        return NULL;
    }
    qsort(measure->timelines, (size_t)measure->num_timelines, sizeof measure->timelines[0],
          compare_lengths);
    return &measure->timelines[(measure->num_timelines - 1) / 2];
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
