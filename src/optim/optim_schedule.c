/* The learning rate as a function of the step. */
#include "leapgrad/optim.h"

#include <math.h>

const char *lg_schedule_name(lg_schedule schedule)
{
    static const char *const names[LG_NUM_SCHEDULES] = {
#define NAME(name, text) text,
        LG_SCHEDULE_LIST(NAME)
#undef NAME
    };
    return schedule < LG_NUM_SCHEDULES ? names[schedule] : "unknown";
}

static int64_t warmup_steps(const lg_optim_opts *opts)
{
    return opts->warmup == LG_WARMUP_LINEAR ? opts->warmup_steps : 0;
}

/* How far step `step` is from the end of the warm-up to the end of training: [0, 1]. */
static double progress(const lg_optim_opts *opts, int64_t step, int64_t num_steps)
{
    if (step >= num_steps) {
        return 1.0;
    }
    return (double)(step - warmup_steps(opts)) / (double)(num_steps - warmup_steps(opts));
}

static double step_decay(const lg_optim_opts *opts, int64_t step, int64_t num_steps)
{
    double factor = 1.0;
    for (int i = 0; i < opts->num_milestones; i++) {
        if ((double)step >= opts->milestones[i] * (double)num_steps) {
            factor *= opts->step_factor;
        }
    }
    return factor;
}

double lg_optim_lr(const lg_optim_opts *opts, int64_t step, int64_t num_steps)
{
    if (step < warmup_steps(opts)) {
        return opts->lr * ((double)(step + 1) / (double)warmup_steps(opts));
    }
    const double p = progress(opts, step, num_steps);
    const double min = opts->min_lr_frac;
    switch (opts->schedule) {
    case LG_SCHEDULE_LINEAR:
        return opts->lr * (1.0 - p * (1.0 - min));
    case LG_SCHEDULE_COSINE:
        return opts->lr * (min + (1.0 - min) * 0.5 * (1.0 + cos(3.14159265358979323846 * p)));
    case LG_SCHEDULE_EXPONENTIAL:
        return opts->lr * pow(min, p);
    case LG_SCHEDULE_STEP:
        return opts->lr * step_decay(opts, step, num_steps);
    case LG_SCHEDULE_CONSTANT:
    default:
        return opts->lr;
    }
}
