/*
 * From statistics to learning rates. Where S = 1, every factor is exactly 1, so that such a run has the bits of one without
 * statistics.
 */
#include "leapgrad/rate.h"

#include <math.h>

/* AdaScale, appendix B.3 */
#define MIN_VARIANCE 1e-6
#define AVERAGING_SCALE 1000.0

bool lg_grad_stat_is_finite(const lg_grad_stat *stat)
{
    return isfinite(stat->sum_squares) && isfinite(stat->norm_squared);
}

double lg_rate_total_iterations(const lg_optim_opts *opts, int64_t num_steps, double full_scale)
{
    return opts->total_iterations > 0.0 ? opts->total_iterations : (double)num_steps * full_scale;
}

/* The variance of the whole batch: V / N. */
static double batch_variance(const lg_grad_stat *stat, const lg_rate_step *step)
{
    return step->num_grads > 1
               ? (stat->sum_squares - stat->norm_squared) / (double)(step->num_grads - 1)
               : 0.0;
}

void lg_grad_stat_estimate(const lg_grad_stat *stat, const lg_rate_step *step, double *variance,
                           double *signal)
{
    const double of_batch = batch_variance(stat, step);
    *variance = of_batch * step->scale;
    *signal = step->num_grads > 1 ? stat->norm_squared - of_batch : 0.0;
}

/* signal + variance and signal + variance / full_scale: upper and lower part of the ratio for a full step. */
static void ratio_parts(const lg_grad_stat *stat, const lg_rate_step *step, double *upper,
                        double *lower)
{
    const double of_batch = batch_variance(stat, step);
    *upper = step->scale == (double)step->num_grads
                 ? stat->sum_squares
                 : stat->norm_squared + (step->scale - 1.0) * of_batch;
    *lower = stat->norm_squared;
    if (step->scale != step->full_scale) {
        *lower += of_batch * (step->scale / step->full_scale - 1.0);
    }
}

/* The parts' variance and signal. */
static void split_parts(double upper, double lower, double scale, double *variance, double *signal)
{
    *variance = scale != 1.0 ? (upper - lower) * scale / (scale - 1.0) : 0.0;
    *signal = upper - *variance;
}

static double clamp(double value, double min, double max)
{
    return value < min ? min : (value > max ? max : value);
}

static bool is_adascale(const lg_optim_opts *opts)
{
    return opts->scaling == LG_LR_SCALING_ADASCALE &&
           opts->variant != LG_RATE_VARIANT_RELEASED_CODE;
}

/* A gain's limits: 1 and S, whichever is which. */
static double most_of(const lg_rate_step *step)
{
    return step->scale > 1.0 ? step->scale : 1.0;
}

static double least_of(const lg_rate_step *step)
{
    return step->scale < 1.0 ? step->scale : 1.0;
}

static double divide(double upper, double lower, double scale)
{
    if (lower > 0.0) {
        return upper / lower;
    }
    return upper > 0.0 ? scale : 1.0; /* no gradient at all: like a single worker's */
}

/* The ratio for a step of scale `scale` from the averages for full ones. LEAPGRAD: epsilon is a part of the upper one. */
static double ratio_of_averages(const lg_optim_opts *opts, double upper, double lower,
                                const lg_rate_step *step)
{
    const double epsilon =
        opts->variant == LG_RATE_VARIANT_LEAPGRAD ? opts->gain_epsilon * upper : opts->gain_epsilon;
    if (step->scale != step->full_scale) {
        double variance = 0.0;
        double signal = 0.0;
        split_parts(upper, lower, step->full_scale, &variance, &signal);
        lower = signal + variance / step->scale;
    }
    return divide(upper + epsilon, lower + epsilon, step->scale);
}

/*
 * Whether steps show what the averages are of. The ratio's parts are one number at S = 1, which says nothing of the gain at
 * another S.
 */
static bool shows_ratio(const lg_optim_opts *opts, const lg_rate_step *step)
{
    return is_adascale(opts) || step->full_scale != 1.0;
}

/* Averages that were kept for another scale or another base batch. */
static void move_averages(const lg_rate_step *step, double *upper, double *lower,
                          const lg_rate_state *state)
{
    double variance = 0.0;
    double signal = 0.0;
    split_parts(*upper, *lower, state->scale, &variance, &signal);
    variance *= state->base_batch / step->base_batch;
    *upper = signal + variance;
    *lower = signal + variance / step->full_scale;
}

/* The averages of a larger S outlast steps of S = 1. */
static void adopt_scale(const lg_optim_opts *opts, const lg_rate_step *step, lg_rate_state *state)
{
    const bool has_moved =
        state->scale != step->full_scale || state->base_batch != step->base_batch;
    if (!shows_ratio(opts, step)) {
        return;
    }
    if (has_moved && state->num_averaged > 0.0) {
        if (is_adascale(opts)) {
            state->variance_avg *= state->base_batch / step->base_batch;
        } else {
            move_averages(step, &state->variance_avg, &state->signal_avg, state);
            move_averages(step, &state->network_variance_avg, &state->network_signal_avg, state);
        }
    }
    state->scale = step->full_scale;
    state->base_batch = step->base_batch;
}

/* The weight of a new value. */
static double new_weight(const lg_optim_opts *opts, const lg_rate_step *step,
                         const lg_rate_state *state)
{
    const double steady =
        step->full_scale < AVERAGING_SCALE ? step->full_scale / AVERAGING_SCALE : 1.0;
    const double mean = 1.0 / (state->num_averaged + 1.0);
    return opts->variant != LG_RATE_VARIANT_RELEASED_CODE && mean > steady ? mean : steady;
}

static void average(double *avg, double value, double weight)
{
    *avg = weight * value + (1.0 - weight) * *avg;
}

struct gains {
    double group;   /* within its limits */
    double network; /* RELEASED_CODE: without */
    double variance, signal;
};

static void find_adascale_gain(const lg_rate_step *step, const lg_grad_stat *stat,
                               lg_rate_state *state, double weight, bool is_known,
                               struct gains *gains)
{
    double variance = 0.0;
    double signal = 0.0;
    if (is_known) {
        lg_grad_stat_estimate(stat, step, &variance, &signal);
        average(&state->variance_avg, variance > MIN_VARIANCE ? variance : MIN_VARIANCE, weight);
        average(&state->signal_avg, signal > 0.0 ? signal : 0.0, weight);
    }
    gains->variance = state->variance_avg;
    gains->signal = state->signal_avg;
    gains->group = divide(gains->signal + gains->variance,
                          gains->signal + gains->variance / step->scale, step->scale);
}

static void find_ratio_gain(const lg_optim_opts *opts, const lg_rate_step *step,
                            const lg_grad_stat *stat, lg_rate_state *state, double weight,
                            bool is_known, struct gains *gains)
{
    if (!shows_ratio(opts, step)) {
        gains->group = 1.0;
        return;
    }
    if (is_known) {
        double upper = 0.0;
        double lower = 0.0;
        ratio_parts(stat, step, &upper, &lower);
        average(&state->variance_avg, upper, weight);
        average(&state->signal_avg, lower, weight);
    }
    split_parts(state->variance_avg, state->signal_avg, step->full_scale, &gains->variance,
                &gains->signal);
    const double ratio = ratio_of_averages(opts, state->variance_avg, state->signal_avg, step);
    gains->group = opts->variant == LG_RATE_VARIANT_RELEASED_CODE
                       ? (ratio < most_of(step) ? ratio : most_of(step))
                       : clamp(ratio, least_of(step), most_of(step));
}

static void find_gains(const lg_optim_opts *opts, const lg_rate_step *step,
                       const lg_grad_stat *group, const lg_grad_stat *network, lg_rate_state *state,
                       struct gains *gains)
{
    const bool is_known = step->num_grads > 1 && shows_ratio(opts, step);
    const double weight = new_weight(opts, step, state);
    *gains = (struct gains){.group = 1.0, .network = 1.0};
    if (opts->variant == LG_RATE_VARIANT_RELEASED_CODE && network != NULL &&
        shows_ratio(opts, step)) {
        if (is_known) {
            double upper = 0.0;
            double lower = 0.0;
            ratio_parts(network, step, &upper, &lower);
            average(&state->network_variance_avg, upper, weight);
            average(&state->network_signal_avg, lower, weight);
        }
        gains->network =
            ratio_of_averages(opts, state->network_variance_avg, state->network_signal_avg, step);
    }
    if (is_adascale(opts)) {
        find_adascale_gain(step, group, state, weight, is_known, gains);
    } else {
        find_ratio_gain(opts, step, group, state, weight, is_known, gains);
    }
    state->num_averaged += is_known ? 1.0 : 0.0;
}

static double warmup_budget(const lg_optim_opts *opts, const lg_rate_step *step, double gain)
{
    const double whole = lg_optim_warmup_budget(opts) == LG_WARMUP_BUDGET_RUN
                             ? (double)step->num_steps * gain
                             : lg_rate_total_iterations(opts, step->num_steps, step->full_scale);
    return opts->warmup_frac * whole;
}

/* Moves the layer-wise warm-up on and returns its factor. */
static double move_warmup(const lg_optim_opts *opts, const lg_rate_step *step, double multiplier,
                          const struct gains *gains, lg_rate_state *state)
{
    const double budget = warmup_budget(opts, step, gains->group);
    const bool is_code = opts->variant == LG_RATE_VARIANT_RELEASED_CODE;
    const double before = state->progress;
    const double after = before + (is_code && multiplier >= step->scale ? gains->network
                                   : is_code                            ? multiplier
                                                                        : gains->group);
    const double seen = is_code ? before : after;
    state->progress = after;
    if (opts->warmup == LG_WARMUP_LAYERWISE && state->warmup_end == 0.0 && seen >= budget) {
        state->warmup_end = (double)(step->step + 1);
    }
    if (opts->warmup != LG_WARMUP_LAYERWISE || !(seen < budget)) {
        return 1.0;
    }
    return seen / budget;
}

/* What the scheduled rate is multiplied by. */
static double find_multiplier(const lg_optim_opts *opts, const lg_rate_step *step, double gain)
{
    const double power = lg_optim_gain_power(opts);
    if (opts->scaling != LG_LR_SCALING_ADASCALE && opts->scaling != LG_LR_SCALING_LENA) {
        return lg_optim_fixed_factor(opts, step->scale);
    }
    return power == 1.0 ? gain : clamp(pow(gain, power), least_of(step), most_of(step));
}

void lg_rate_next(const lg_optim_opts *opts, const lg_rate_step *step, const lg_grad_stat *group,
                  const lg_grad_stat *network, lg_rate_state *state, lg_rate *rate)
{
    struct gains gains;
    adopt_scale(opts, step, state);
    find_gains(opts, step, group, network, state, &gains);
    const double multiplier = find_multiplier(opts, step, gains.group);
    const double base_lr =
        opts->schedule_by == LG_SCHEDULE_BY_ITERATION
            ? lg_optim_lr(
                  opts, (int64_t)state->iterations,
                  (int64_t)ceil(lg_rate_total_iterations(opts, step->num_steps, step->full_scale)))
            : lg_optim_lr(opts, step->step, step->num_steps);
    rate->gain = gains.group;
    rate->warmup = move_warmup(opts, step, multiplier, &gains, state);
    rate->lr = multiplier * base_lr * rate->warmup;
    state->iterations += gains.group;
    state->num_updates += 1.0;
    rate->noise_scale =
        state->num_averaged > 0.0 && step->full_scale > 1.0
            ? (gains.signal > 0.0 ? step->base_batch * gains.variance / gains.signal : INFINITY)
            : NAN;
    rate->iterations = state->iterations;
    rate->update_number = state->num_updates;
    rate->warmup_end = opts->warmup == LG_WARMUP_LAYERWISE ? state->warmup_end : 0.0;
    rate->is_skipped = 0.0;
}

void lg_rate_skip(const lg_rate_state *state, lg_rate *rate)
{
    rate->lr = 0.0;
    rate->gain = NAN;
    rate->warmup = NAN;
    rate->noise_scale = NAN;
    rate->iterations = state->iterations;
    rate->update_number = state->num_updates;
    rate->warmup_end = state->warmup_end;
    rate->is_skipped = 1.0;
}
