/**
 * Learning rates from gradient statistics: AdaScale's and LENA's gains, the layer-wise warm-up, the gradient noise scale.
 *
 * A step's gradient is G = sum of G_i over its micro-batches i, where G_i = w_i * g_i: g_i is the mean gradient of the
 * micro-batch, w_i its part of the step's weight (w_i add up to 1). With per-sample variance V and true gradient mu,
 * E|g_i|^2 = |mu|^2 + V / n_i, so for w_i in proportion to n_i
 *
 *   E sum of |G_i|^2 / w_i = |mu|^2 + c * V / N        (c micro-batches, N samples)
 *   E |G|^2                = |mu|^2 +     V / N
 *
 * whatever the sizes of the micro-batches: unequal ones are weighted right. Let v = (sum - |G|^2) / (c - 1), an estimate of
 * V / N. A batch of b samples has the variance v * S, where S = N / b is the scale: S need not be c.
 *
 *   variance = v * S,  signal = |G|^2 - v,  gain = (signal + variance) / (signal + variance / S)
 *
 * For S = c the upper part is the sum itself, and the ratio is LENA's (equation 4) and AdaScale's alike.
 *
 * All functions are pure. Everything is f64.
 */
#ifndef LEAPGRAD_RATE_H
#define LEAPGRAD_RATE_H

#include "leapgrad/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a step's gradients say of a group of parameters; statistics of several parameters add up. */
typedef struct lg_grad_stat {
    double sum_squares;  /* sum over micro-batches of |G_i|^2 / w_i */
    double norm_squared; /* |G|^2 */
} lg_grad_stat;

/** What a step is, besides its gradients. */
typedef struct lg_rate_step {
    int64_t step;      /* counts from 0 */
    int64_t num_steps; /* of the whole training */
    int num_grads;     /* c: micro-batches of all replicas with a weight above 0 */
    double scale;      /* S of this step: its samples / base_batch */
    double full_scale; /* S of a full step: averages are kept for this one */
    double base_batch; /* b, in samples */
} lg_rate_step;

/**
 * What a group remembers from step to step: kept per parameter, saved in checkpoints. All zero at the start. Plain f64
 * numbers, so that it can be stored as such.
 */
typedef struct lg_rate_state {
    double
        variance_avg; /* AdaScale: of the variance; else of signal + variance, for the base batch */
    double signal_avg; /* AdaScale: of the signal; else of |G|^2 of a step of scale `scale` */
    double network_variance_avg; /* RELEASED_CODE: the same over all parameters */
    double network_signal_avg;
    double num_averaged; /* steps in the averages */
    double num_updates;  /* updates done */
    double progress;     /* what the layer-wise warm-up compares with its budget */
    double iterations;   /* scale-invariant: sum of gains */
    double warmup_end;   /* number of steps done when the warm-up had ended; 0: it has not */
    double scale;        /* the full_scale, base_batch that the averages hold for */
    double base_batch;
} lg_rate_state;

/** Numbers of a lg_rate_state. */
#define LG_RATE_STATE_NUMBERS ((int)(sizeof(lg_rate_state) / sizeof(double)))

/** What a step came to for a group. */
typedef struct lg_rate {
    double lr;
    double gain;   /* how many single-worker iterations the step is worth, in [1, S] */
    double warmup; /* factor of the layer-wise warm-up, in [0, 1] */
    double
        noise_scale; /* in samples: b * variance / signal; infinite if no signal is seen, NaN if it is unknown */
    double iterations;    /* scale-invariant, with this step */
    double update_number; /* counts from 1 */
    double warmup_end;    /* see lg_rate_state */
    double is_skipped;    /* 1: a gradient was not finite, nothing changed; else 0 */
} lg_rate;

/** Whether both numbers are finite. */
LG_API bool lg_grad_stat_is_finite(const lg_grad_stat *stat);

/** Variance (of a base batch) and signal from one step; both 0 if `num_grads` < 2. Not clipped: the signal may be negative. */
LG_API void lg_grad_stat_estimate(const lg_grad_stat *stat, const lg_rate_step *step,
                                  double *variance, double *signal);

/**
 * One step of a group: folds the statistics into the averages, makes the learning rate, moves the warm-up and the schedule on.
 *
 *   PAPER  AdaScale (algorithm 1, appendix B.3): variance clipped to at least 1e-6 and signal to at least 0 before they are
 *          averaged; a plain mean of the first 1000 / S steps, then an average with weight S / 1000 for the new value.
 *          LENA and the rest: upper and lower part of the ratio are averaged in the same way, gain_epsilon added to both, the
 *          gain kept within [1, S]. Layer-wise warm-up: the progress grows by the gain, then the rate is multiplied by
 *          progress / budget if that is below 1.
 *   LEAPGRAD  as PAPER, but gain_epsilon is a part of the averaged upper part, so that no scale of the gradients changes a gain,
 *          and the rate has gain ^ lg_optim_gain_power(), within [1, S]. docs/lena.md says what this and the other defaults of
 *          the variant (grouping, budget of the warm-up) are worth.
 *   RELEASED_CODE  averages start at 0 and are not corrected; only the upper limit S; the warm-up's factor comes from the
 *          progress before it grows (the first update has rate 0), and a group at the limit progresses by the whole network's
 *          uncapped gain. Its random branch is left out; averages with more than 1000 micro-batches take the new value.
 *
 * With fewer than 2 micro-batches nothing can be estimated: the averages stay, and the gain is 1 as long as there are none. At
 * S = 1 both parts of the ratio are one number, so all but AdaScale (which averages variance and signal) leave theirs as
 * they are: another run may go on with a larger S.
 *
 * @param opts     Checked options.
 * @param step     The step.
 * @param group    The group's statistics, finite.
 * @param network  Those of all parameters (read by RELEASED_CODE only; else may be NULL).
 * @param state    The group's memory; in and out.
 * @param rate     The result.
 */
LG_API void lg_rate_next(const lg_optim_opts *opts, const lg_rate_step *step,
                         const lg_grad_stat *group, const lg_grad_stat *network,
                         lg_rate_state *state, lg_rate *rate);

/** What is reported where a gradient was not finite: the state stays as it is. */
LG_API void lg_rate_skip(const lg_rate_state *state, lg_rate *rate);

/** The single-worker iterations of the whole training: total_iterations, or num_steps * full_scale. */
LG_API double lg_rate_total_iterations(const lg_optim_opts *opts, int64_t num_steps,
                                       double full_scale);

#ifdef __cplusplus
}
#endif

#endif
