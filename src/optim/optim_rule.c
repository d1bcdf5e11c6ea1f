/* Options of the update rules and the numbers of one update; pure functions of their arguments. */
#include "leapgrad/optim.h"

#include <math.h>

#include "base/check.h"

/* docs/lena.md has the trials that chose it. */
#define LEAPGRAD_GAIN_POWER 1.25

const char *lg_optim_rule_name(lg_optim_rule rule)
{
    static const char *const names[LG_NUM_OPTIM_RULES] = {
#define NAME(name, text) text,
        LG_OPTIM_RULE_LIST(NAME)
#undef NAME
    };
    return rule < LG_NUM_OPTIM_RULES ? names[rule] : "unknown";
}

#define DEFINE_NAME(type, function, count, list) \
    const char *function(type value) \
    { \
        static const char *const names[count] = {list(TEXT)}; \
        return (unsigned)value < count ? names[value] : "unknown"; \
    }
#define TEXT(name, text) text,
DEFINE_NAME(lg_lr_scaling, lg_lr_scaling_name, LG_NUM_LR_SCALINGS, LG_LR_SCALING_LIST)
DEFINE_NAME(lg_warmup, lg_warmup_name, LG_NUM_WARMUPS, LG_WARMUP_LIST)
DEFINE_NAME(lg_warmup_budget, lg_warmup_budget_name, LG_NUM_WARMUP_BUDGETS, LG_WARMUP_BUDGET_LIST)
DEFINE_NAME(lg_grouping, lg_grouping_name, LG_NUM_GROUPINGS, LG_GROUPING_LIST)
DEFINE_NAME(lg_rate_variant, lg_rate_variant_name, LG_NUM_RATE_VARIANTS, LG_RATE_VARIANT_LIST)
DEFINE_NAME(lg_schedule_by, lg_schedule_by_name, LG_NUM_SCHEDULE_BYS, LG_SCHEDULE_BY_LIST)
DEFINE_NAME(lg_skip, lg_skip_name, LG_NUM_SKIPS, LG_SKIP_LIST)
#undef TEXT
#undef DEFINE_NAME

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
        .trust_coefficient = 0.001,
        .warmup = LG_WARMUP_LINEAR,
        .warmup_frac = 0.05,
        .gain_epsilon = 1e-6,
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

static lg_status check_choice(const char *name, unsigned value, unsigned count)
{
    if (value >= count) {
        LG_FAIL(LG_INVALID_ARG, "optim.%s: %u is not in [0, %u)", name, value, count);
    }
    return LG_OK;
}

static lg_status check_choices(const lg_optim_opts *opts)
{
    LG_TRY(check_choice("rule", opts->rule, LG_NUM_OPTIM_RULES));
    LG_TRY(check_choice("schedule", opts->schedule, LG_NUM_SCHEDULES));
    LG_TRY(check_choice("scaling", opts->scaling, LG_NUM_LR_SCALINGS));
    LG_TRY(check_choice("warmup", opts->warmup, LG_NUM_WARMUPS));
    LG_TRY(check_choice("warmup_budget", opts->warmup_budget, LG_NUM_WARMUP_BUDGETS));
    LG_TRY(check_choice("grouping", opts->grouping, LG_NUM_GROUPINGS));
    LG_TRY(check_choice("variant", opts->variant, LG_NUM_RATE_VARIANTS));
    LG_TRY(check_choice("schedule_by", opts->schedule_by, LG_NUM_SCHEDULE_BYS));
    return check_choice("skip", opts->skip, LG_NUM_SKIPS);
}

/* What scaling, warm-up and statistics need of each other. */
static lg_status check_rates(const lg_optim_opts *opts)
{
    LG_TRY(check_range("trust_coefficient", opts->trust_coefficient, 1e-30, 1e6));
    LG_TRY(check_range("base_batch", opts->base_batch, 0.0, 0x1p53));
    LG_TRY(check_range("warmup_frac", opts->warmup_frac, 0.0, 1.0));
    LG_TRY(check_range("gain_epsilon", opts->gain_epsilon, 0.0, 1e6));
    LG_TRY(check_range("gain_power", opts->gain_power, 0.0, 4.0));
    LG_TRY(check_range("total_iterations", opts->total_iterations, 0.0, 0x1p53));
    if (opts->schedule == LG_SCHEDULE_EXPONENTIAL && opts->min_lr_frac <= 0.0) {
        LG_FAIL(LG_INVALID_ARG,
                "optim.min_lr_frac: the exponential schedule needs it in (0, 1], got %g",
                opts->min_lr_frac);
    }
    if (opts->skip == LG_SKIP_LAYER && (lg_optim_grouping(opts) == LG_GROUPING_NETWORK ||
                                        lg_optim_grouping(opts) == LG_GROUPING_BLOCK ||
                                        opts->variant == LG_RATE_VARIANT_RELEASED_CODE)) {
        LG_FAIL(LG_INVALID_ARG,
                "optim.skip: layer needs rates that no other layer's statistics are in; grouping "
                "network or block and variant released-code have them");
    }
    return LG_OK;
}

lg_status lg_optim_opts_check(const lg_optim_opts *opts)
{
    LG_TRY(check_choices(opts));
    LG_TRY(check_range("lr", opts->lr, 0.0, 1e6));
    LG_TRY(check_half_open("momentum", opts->momentum, 0.0, 1.0));
    if (opts->rule != LG_OPTIM_ADAMW && opts->rule != LG_OPTIM_LAMB && opts->is_nesterov &&
        opts->momentum == 0.0) {
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
    LG_TRY(check_rates(opts));
    return check_milestones(opts);
}

bool lg_optim_has_statistics(const lg_optim_opts *opts)
{
    return opts->has_statistics || opts->scaling == LG_LR_SCALING_ADASCALE ||
           opts->scaling == LG_LR_SCALING_LENA || opts->warmup == LG_WARMUP_LAYERWISE ||
           opts->schedule_by == LG_SCHEDULE_BY_ITERATION;
}

lg_grouping lg_optim_grouping(const lg_optim_opts *opts)
{
    if (opts->grouping != LG_GROUPING_AUTO) {
        return opts->grouping;
    }
    if (opts->scaling == LG_LR_SCALING_ADASCALE) {
        return LG_GROUPING_NETWORK;
    }
    if (opts->variant != LG_RATE_VARIANT_LEAPGRAD) {
        return LG_GROUPING_TENSOR;
    }
    return opts->skip == LG_SKIP_LAYER ? LG_GROUPING_LAYER : LG_GROUPING_BLOCK;
}

double lg_optim_gain_power(const lg_optim_opts *opts)
{
    if (opts->gain_power > 0.0) {
        return opts->gain_power;
    }
    return opts->scaling == LG_LR_SCALING_LENA && opts->variant == LG_RATE_VARIANT_LEAPGRAD
               ? LEAPGRAD_GAIN_POWER
               : 1.0;
}

lg_warmup_budget lg_optim_warmup_budget(const lg_optim_opts *opts)
{
    if (opts->warmup_budget != LG_WARMUP_BUDGET_AUTO) {
        return opts->warmup_budget;
    }
    return opts->variant == LG_RATE_VARIANT_LEAPGRAD ? LG_WARMUP_BUDGET_RUN
                                                     : LG_WARMUP_BUDGET_ITERATIONS;
}

double lg_optim_base_batch(const lg_optim_opts *opts, int64_t batch_samples, int num_micro_batches)
{
    return opts->base_batch > 0.0 ? opts->base_batch
                                  : (double)batch_samples / (double)num_micro_batches;
}

double lg_optim_fixed_factor(const lg_optim_opts *opts, double scale)
{
    switch (opts->scaling) {
    case LG_LR_SCALING_LINEAR:
        return scale;
    case LG_LR_SCALING_SQRT:
        return sqrt(scale);
    default:
        return 1.0;
    }
}

int lg_optim_num_slots(const lg_optim_opts *opts)
{
    switch (opts->rule) {
    case LG_OPTIM_SGD:
    case LG_OPTIM_LARS:
    case LG_OPTIM_LARC:
        return opts->momentum > 0.0 ? 1 : 0;
    case LG_OPTIM_ADAMW:
    case LG_OPTIM_LAMB:
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

bool lg_optim_is_adapted(const lg_optim_opts *opts, const lg_param_info *param)
{
    return param->is_matrix && (opts->rule == LG_OPTIM_LARS || opts->rule == LG_OPTIM_LARC ||
                                opts->rule == LG_OPTIM_LAMB);
}

double lg_optim_trust_ratio(const lg_optim_opts *opts, double lr, double weight_decay,
                            double weight_norm, double grad_norm)
{
    if (weight_norm == 0.0 || grad_norm == 0.0) {
        return 1.0;
    }
    const double ratio =
        opts->trust_coefficient * weight_norm / (grad_norm + weight_decay * weight_norm);
    if (opts->rule == LG_OPTIM_LARC) {
        return ratio < lr ? ratio / lr : 1.0;
    }
    return ratio;
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
