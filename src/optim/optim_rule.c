/* Options of the update rules and the numbers of one update; pure functions of their arguments. */
#include "leapgrad/optim.h"

#include <math.h>

#include "base/check.h"

const char *lg_optim_rule_name(lg_optim_rule rule)
{
    static const char *const names[LG_NUM_OPTIM_RULES] = {
#define NAME(name, text) text,
        LG_OPTIM_RULE_LIST(NAME)
#undef NAME
    };
    return rule < LG_NUM_OPTIM_RULES ? names[rule] : "unknown";
}

lg_optim_opts lg_optim_opts_default(void)
{
    return (lg_optim_opts){
        .rule = LG_OPTIM_SGD,
        .lr = 0.1,
        .momentum = 0.9,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
        .schedule = LG_SCHEDULE_CONSTANT,
        .step_factor = 0.1,
    };
}

/* NaN is in no range. */
static lg_status check_range(const char *name, double value, double min, double max)
{
    if (!(value >= min && value <= max) || isinf(value)) {
        LG_FAIL(LG_INVALID_ARG, "optim.%s: %g is not in [%g, %g]", name, value, min, max);
    }
    return LG_OK;
}

/* As above, without `end`. */
static lg_status check_half_open(const char *name, double value, double begin, double end)
{
    if (!(value >= begin && value < end)) {
        LG_FAIL(LG_INVALID_ARG, "optim.%s: %g is not in [%g, %g)", name, value, begin, end);
    }
    return LG_OK;
}

static lg_status check_milestones(const lg_optim_opts *opts)
{
    if (opts->num_milestones < 0 || opts->num_milestones > LG_MAX_MILESTONES) {
        LG_FAIL(LG_INVALID_ARG, "optim.num_milestones: %d is not in [0, %d]", opts->num_milestones,
                LG_MAX_MILESTONES);
    }
    for (int i = 0; i < opts->num_milestones; i++) {
        LG_TRY(check_range("milestones", opts->milestones[i], 0.0, 1.0));
        if (i > 0 && opts->milestones[i] <= opts->milestones[i - 1]) {
            LG_FAIL(LG_INVALID_ARG, "optim.milestones: %g does not come after %g",
                    opts->milestones[i], opts->milestones[i - 1]);
        }
    }
    return LG_OK;
}

lg_status lg_optim_opts_check(const lg_optim_opts *opts)
{
    if ((unsigned)opts->rule >= LG_NUM_OPTIM_RULES) {
        LG_FAIL(LG_INVALID_ARG, "optim.rule: %d is not in [0, %d)", (int)opts->rule,
                LG_NUM_OPTIM_RULES);
    }
    if ((unsigned)opts->schedule >= LG_NUM_SCHEDULES) {
        LG_FAIL(LG_INVALID_ARG, "optim.schedule: %d is not in [0, %d)", (int)opts->schedule,
                LG_NUM_SCHEDULES);
    }
    LG_TRY(check_range("lr", opts->lr, 0.0, 1e6));
    LG_TRY(check_half_open("momentum", opts->momentum, 0.0, 1.0));
    if (opts->rule == LG_OPTIM_SGD && opts->is_nesterov && opts->momentum == 0.0) {
        LG_FAIL(LG_INVALID_ARG, "optim.nesterov: needs a momentum in (0, 1), got 0");
    }
    LG_TRY(check_range("weight_decay", opts->weight_decay, 0.0, 1e6));
    LG_TRY(check_half_open("beta1", opts->beta1, 0.0, 1.0));
    LG_TRY(check_half_open("beta2", opts->beta2, 0.0, 1.0));
    LG_TRY(check_range("epsilon", opts->epsilon, 1e-300, 1e6));
    LG_TRY(check_range("clip_norm", opts->clip_norm, 0.0, 1e300));
    LG_TRY(check_range("warmup_steps", (double)opts->warmup_steps, 0.0, 0x1p53));
    LG_TRY(check_range("min_lr_frac", opts->min_lr_frac, 0.0, 1.0));
    LG_TRY(check_range("step_factor", opts->step_factor, 0.0, 1e6));
    return check_milestones(opts);
}

int lg_optim_num_slots(const lg_optim_opts *opts)
{
    switch (opts->rule) {
    case LG_OPTIM_SGD:
        return opts->momentum > 0.0 ? 1 : 0;
    case LG_OPTIM_ADAMW:
        return 2;
    default:
        return 0;
    }
}

double lg_optim_weight_decay(const lg_optim_opts *opts, const lg_param_info *param)
{
    return param->is_matrix || opts->decay_norm_and_bias ? opts->weight_decay : 0.0;
}

/* A norm that is not finite gives a factor that is not a number: a broken step must not look like a small one. */
double lg_optim_clip_factor(const lg_optim_opts *opts, double sum_squares)
{
    if (opts->clip_norm <= 0.0) {
        return 1.0;
    }
    const double norm = sqrt(sum_squares);
    if (!isfinite(norm)) {
        return NAN;
    }
    return norm > opts->clip_norm ? opts->clip_norm / norm : 1.0;
}

lg_optim_numbers lg_optim_step_numbers(const lg_optim_opts *opts, const lg_param_info *param,
                                       int64_t step, int64_t num_steps)
{
    return (lg_optim_numbers){
        .rule = opts->rule,
        .lr = lg_optim_lr(opts, step, num_steps),
        .weight_decay = lg_optim_weight_decay(opts, param),
        .momentum = opts->momentum,
        .is_nesterov = opts->is_nesterov,
        .beta1 = opts->beta1,
        .beta2 = opts->beta2,
        .epsilon = opts->epsilon,
        .update_number = step + 1,
    };
}
