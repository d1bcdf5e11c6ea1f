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

/* How far step `step` is from the end of the warm-up to the end of training: [0, 1]. */
static double progress(const lg_optim_opts *opts, int64_t step, int64_t num_steps)
{
    if (step >= num_steps) {
        return 1.0;
    }
    return (double)(step - opts->warmup_steps) / (double)(num_steps - opts->warmup_steps);
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
    if (step < opts->warmup_steps) {
        return opts->lr * ((double)(step + 1) / (double)opts->warmup_steps);
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
