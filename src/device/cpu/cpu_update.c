/*
 * Ops on stored numbers, whatever tensor they are: sums of gradients, optimizer updates, running statistics. Elementwise
 * or, for the sum of squares, in pieces that do not depend on the width.
 */
#include <math.h>

#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

#define INLINE static inline __attribute__((always_inline))

static int64_t piece_end(int64_t begin, int64_t num_elems)
{
    return begin + LGI_CPU_PIECE_ELEMS < num_elems ? begin + LGI_CPU_PIECE_ELEMS : num_elems;
}

static void add_pair(const float *a, const float *b, float *dst, int64_t num_elems)
{
    LGI_CPU_SIMD
    for (int64_t i = 0; i < num_elems; i++) {
        dst[i] = a[i] + b[i];
    }
}

void lgi_cpu_grad_add(lgi_device *device, int width, int64_t bytes, void *dst,
                      const void *const *srcs, int num_srcs)
{
    const int64_t num_elems = bytes / (int64_t)sizeof(float);
    (void)device;
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(width, num_elems))
    for (int64_t begin = 0; begin < num_elems; begin += LGI_CPU_PIECE_ELEMS) {
        const int64_t count = piece_end(begin, num_elems) - begin;
        const float *sum = (const float *)srcs[0] + begin;
        for (int s = 1; s < num_srcs; s++) {
            add_pair(sum, (const float *)srcs[s] + begin, (float *)dst + begin, count);
            sum = (float *)dst + begin;
        }
        if (num_srcs == 1 && dst != srcs[0]) {
            memcpy((float *)dst + begin, sum, (size_t)count * sizeof *sum);
        }
    }
}

/* Sums are made of at most so many pieces, whatever the width. */
#define MAX_PIECES 128

static int64_t sum_piece_elems(int64_t num_elems)
{
    return lgi_cpu_round_up(num_elems > MAX_PIECES * LGI_CPU_PIECE_ELEMS
                                ? (num_elems + MAX_PIECES - 1) / MAX_PIECES
                                : LGI_CPU_PIECE_ELEMS,
                            16);
}

double lgi_cpu_sum_squares(lgi_device *device, int width, int64_t num_elems, const void *src)
{
    double partials[MAX_PIECES];
    const float *values = src;
    const int64_t piece_elems = sum_piece_elems(num_elems);
    const int64_t num_pieces = (num_elems + piece_elems - 1) / piece_elems;
    double total = 0.0;
    (void)device;
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(width, num_elems))
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        const int64_t begin = piece * piece_elems;
        const int64_t end = begin + piece_elems < num_elems ? begin + piece_elems : num_elems;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; i++) {
            sum += (double)values[i] * (double)values[i];
        }
        partials[piece] = sum;
    }
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        total += partials[piece];
    }
    return total;
}

/* Adds and squares the elements [begin, end) of a parameter with one use. */
static double stat_run(float *restrict sum, const float *restrict grad, int64_t begin, int64_t end)
{
    double squares = 0.0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = begin; i < end; i++) {
        sum[i] += grad[i];
        squares += (double)grad[i] * (double)grad[i];
    }
    return squares;
}

/* The same where the square is of a sum over uses. */
static double tied_stat_run(void *const *sums, const void *const *grads, int num_uses,
                            int64_t begin, int64_t end)
{
    double squares = 0.0;
    for (int64_t i = begin; i < end; i++) {
        double x = 0.0;
        for (int u = 0; u < num_uses; u++) {
            float *const sum = (float *)sums[u] + i;
            if (grads[u] != NULL) {
                x += (double)((const float *)grads[u])[i];
                *sum += ((const float *)grads[u])[i];
            } else {
                x += (double)*sum;
            }
        }
        squares += x * x;
    }
    return squares;
}

double lgi_cpu_grad_stat(lgi_device *device, int width, int64_t num_elems, void *const *sums,
                         const void *const *grads, int num_uses)
{
    double partials[MAX_PIECES];
    const int64_t piece_elems = sum_piece_elems(num_elems);
    const int64_t num_pieces = (num_elems + piece_elems - 1) / piece_elems;
    double total = 0.0;
    if (num_uses == 1 && grads[0] == NULL) {
        return lgi_cpu_sum_squares(device, width, num_elems, sums[0]);
    }
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        const int64_t begin = piece * piece_elems;
        const int64_t end = begin + piece_elems < num_elems ? begin + piece_elems : num_elems;
        partials[piece] = num_uses == 1 ? stat_run(sums[0], grads[0], begin, end)
                                        : tied_stat_run(sums, grads, num_uses, begin, end);
    }
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        total += partials[piece];
    }
    return total;
}

/* --- updates: in f32; factors that are the same for all elements are made in f64 ----------------------------------- */

INLINE void sgd_run(float *restrict param, const float *restrict grad, float *restrict slot,
                    int64_t num_elems, float lr, float clip, float weight_decay, float momentum,
                    bool has_slot, bool is_nesterov, bool is_first)
{
    LGI_CPU_SIMD
    for (int64_t i = 0; i < num_elems; i++) {
        const float g = clip * grad[i] + weight_decay * param[i];
        float step = g;
        if (has_slot) {
            const float velocity = is_first ? g : momentum * slot[i] + g;
            slot[i] = velocity;
            step = is_nesterov ? g + momentum * velocity : velocity;
        }
        param[i] -= lr * step;
    }
}

static void sgd_piece(const lgi_update *update, int64_t begin, int64_t count)
{
    float *param = (float *)update->param + begin;
    const float *grad = (const float *)update->grad + begin;
    const float lr = (float)update->lr;
    const float clip = (float)(update->trust_ratio * update->clip);
    const float decay = (float)(update->trust_ratio * update->weight_decay);
    const float momentum = (float)update->momentum;
    if (update->momentum == 0.0) {
        sgd_run(param, grad, NULL, count, lr, clip, decay, momentum, false, false, false);
        return;
    }
    float *slot = (float *)update->slots[0] + begin;
    if (update->step_number <= 1) {
        sgd_run(param, grad, slot, count, lr, clip, decay, momentum, true, update->is_nesterov,
                true);
    } else if (update->is_nesterov) {
        sgd_run(param, grad, slot, count, lr, clip, decay, momentum, true, true, false);
    } else {
        sgd_run(param, grad, slot, count, lr, clip, decay, momentum, true, false, false);
    }
}

/* What AdamW's elements share. */
typedef struct adamw_factors {
    float clip, beta1, beta2, one_minus_beta1, one_minus_beta2;
    float keep;     /* 1 - lr * weight decay */
    float rate;     /* lr / (1 - beta1^t) */
    float inv_root; /* 1 / sqrt(1 - beta2^t) */
    float epsilon;
} adamw_factors;

static adamw_factors adamw_factors_of(const lgi_update *update)
{
    const double correction1 = 1.0 - pow(update->beta1, (double)update->step_number);
    const double correction2 = 1.0 - pow(update->beta2, (double)update->step_number);
    const adamw_factors factors = {
        .clip = (float)update->clip,
        .beta1 = (float)update->beta1,
        .beta2 = (float)update->beta2,
        .one_minus_beta1 = (float)(1.0 - update->beta1),
        .one_minus_beta2 = (float)(1.0 - update->beta2),
        .keep = (float)(1.0 - update->lr * update->weight_decay),
        .rate = (float)(update->lr / correction1),
        .inv_root = (float)(1.0 / sqrt(correction2)),
        .epsilon = (float)update->epsilon,
    };
    return factors;
}

/*
 * sqrt(x) for finite x >= 0, relative error below 3e-7: x times 1/sqrt(x) by Newton's iteration from a first guess out of
 * the halved exponent. The library's sqrtf sets errno, which keeps a loop from being vectorised.
 */
INLINE float root(float x)
{
    float y = lgi_cpu_float_of_bits(0x5F375A86u - (lgi_cpu_bits_of_float(x) >> 1));
    for (int i = 0; i < 3; i++) {
        y = y * (1.5f - 0.5f * x * y * y);
    }
    return x * y;
}

static void adamw_piece(const lgi_update *update, const adamw_factors *shared, int64_t begin,
                        int64_t count)
{
    const adamw_factors f = *shared;
    float *restrict param = (float *)update->param + begin;
    const float *restrict grad = (const float *)update->grad + begin;
    float *restrict first = (float *)update->slots[0] + begin;
    float *restrict second = (float *)update->slots[1] + begin;
    LGI_CPU_SIMD
    for (int64_t i = 0; i < count; i++) {
        const float g = f.clip * grad[i];
        const float m = f.beta1 * first[i] + f.one_minus_beta1 * g;
        const float v = f.beta2 * second[i] + f.one_minus_beta2 * (g * g);
        first[i] = m;
        second[i] = v;
        param[i] = f.keep * param[i] - f.rate * m / (root(v) * f.inv_root + f.epsilon);
    }
}

/* LAMB's direction of one element, from moments that were moved on. */
INLINE float lamb_direction(const adamw_factors *f, float first, float second, float param,
                            float inv_correction1, float decay)
{
    return first * inv_correction1 / (sqrtf(second) * f->inv_root + f->epsilon) + decay * param;
}

/* Moves the moments on; returns the squares of weight and direction. */
static void lamb_moments(const lgi_update *update, const adamw_factors *shared, int64_t begin,
                         int64_t end, double squares[2])
{
    const adamw_factors f = *shared;
    const float inv_correction1 =
        (float)(1.0 / (1.0 - pow(update->beta1, (double)update->step_number)));
    const float decay = (float)update->weight_decay;
    const float *restrict param = update->param;
    const float *restrict grad = update->grad;
    float *restrict first = update->slots[0];
    float *restrict second = update->slots[1];
    double weights = 0.0;
    double directions = 0.0;
#pragma omp simd reduction(+ : weights, directions)
    for (int64_t i = begin; i < end; i++) {
        const float g = f.clip * grad[i];
        first[i] = f.beta1 * first[i] + f.one_minus_beta1 * g;
        second[i] = f.beta2 * second[i] + f.one_minus_beta2 * (g * g);
        const double u =
            (double)lamb_direction(&f, first[i], second[i], param[i], inv_correction1, decay);
        directions += u * u;
        weights += (double)param[i] * (double)param[i];
    }
    squares[0] = weights;
    squares[1] = directions;
}

static void lamb_step(const lgi_update *update, const adamw_factors *shared, float rate,
                      int64_t begin, int64_t end)
{
    const adamw_factors f = *shared;
    const float inv_correction1 =
        (float)(1.0 / (1.0 - pow(update->beta1, (double)update->step_number)));
    const float decay = (float)update->weight_decay;
    float *restrict param = update->param;
    const float *restrict first = update->slots[0];
    const float *restrict second = update->slots[1];
    LGI_CPU_SIMD
    for (int64_t i = begin; i < end; i++) {
        param[i] -=
            rate * lamb_direction(&f, first[i], second[i], param[i], inv_correction1, decay);
    }
}

static void lamb_update(int width, const lgi_update *update)
{
    double partials[MAX_PIECES][2];
    const int64_t num_elems = update->num_elems;
    const int64_t piece_elems = sum_piece_elems(num_elems);
    const int64_t num_pieces = (num_elems + piece_elems - 1) / piece_elems;
    const adamw_factors factors = adamw_factors_of(update);
    double weights = 0.0;
    double directions = 0.0;
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        const int64_t begin = piece * piece_elems;
        const int64_t end = begin + piece_elems < num_elems ? begin + piece_elems : num_elems;
        lamb_moments(update, &factors, begin, end, partials[piece]);
    }
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        weights += partials[piece][0];
        directions += partials[piece][1];
    }
    const bool has_ratio = update->is_adapted && weights > 0.0 && directions > 0.0;
    const double ratio = has_ratio ? sqrt(weights) / sqrt(directions) : 1.0;
    LGI_CPU_PARALLEL_FOR(width)
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        const int64_t begin = piece * piece_elems;
        const int64_t end = begin + piece_elems < num_elems ? begin + piece_elems : num_elems;
        lamb_step(update, &factors, (float)(update->lr * ratio), begin, end);
    }
}

void lgi_cpu_update(lgi_device *device, int width, const lgi_update *update)
{
    const int64_t num_elems = update->num_elems;
    adamw_factors factors = {0};
    (void)device;
    if (update->rule == LGI_UPDATE_LAMB) {
        lamb_update(width, update);
        return;
    }
    if (update->rule == LGI_UPDATE_ADAMW) {
        factors = adamw_factors_of(update);
    }
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(width, num_elems))
    for (int64_t begin = 0; begin < num_elems; begin += LGI_CPU_PIECE_ELEMS) {
        const int64_t count = piece_end(begin, num_elems) - begin;
        if (update->rule == LGI_UPDATE_ADAMW) {
            adamw_piece(update, &factors, begin, count);
        } else {
            sgd_piece(update, begin, count);
        }
    }
}

/* --- running statistics -------------------------------------------------------------------------------------------- */

/* The stash holds 1/sqrt(var + epsilon); a single number has no unbiased variance, its own one (0) is taken. */
void lgi_cpu_fold_statistics(lgi_device *device, void *running_mean, void *running_var,
                             const void *stash, int64_t num_channels, int64_t num_reduced,
                             double momentum, double epsilon)
{
    float *mean = running_mean;
    float *variance = running_var;
    const float *batch_mean = stash;
    const float *inv_deviation = batch_mean + num_channels;
    const double unbias = num_reduced > 1 ? (double)num_reduced / (double)(num_reduced - 1) : 1.0;
    (void)device;
    for (int64_t c = 0; c < num_channels; c++) {
        const double inv = (double)inv_deviation[c];
        const double raw = 1.0 / (inv * inv) - epsilon;
        const double batch_variance = raw > 0.0 ? raw : 0.0; /* rounding */
        mean[c] = (float)((1.0 - momentum) * (double)mean[c] + momentum * (double)batch_mean[c]);
        variance[c] =
            (float)((1.0 - momentum) * (double)variance[c] + momentum * unbias * batch_variance);
    }
}
