/*
 * Softmax cross-entropy. Shapes: logits [R,K], targets [R] (i32), R: samples times tokens. Loss and its weights as in the
 * reference backend: a row with target y loses (1 - e) * w[y] * -l[y] + e / K * sum over k of w[k] * -l[k].
 *
 * The rows are independent; their losses go to the workspace and are added in f64 in the order of the rows.
 */
#include <inttypes.h>
#include <math.h>

#include "base/check.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

typedef struct row_record {
    double loss;
    bool is_correct;
} row_record;

static int64_t num_rows(const lgi_cpu_layer *layer)
{
    return layer->num_samples * lg_shape_num_elems(&layer->in_shape) /
           lgi_cpu_last_dim(&layer->in_shape);
}

static lg_status prepare(lgi_cpu_layer *layer, const lgi_layer_spec *spec, lgi_layer_facts *facts)
{
    (void)spec;
    lgi_cpu_set_workspace(facts, LGI_PHASE_FORWARD, num_rows(layer) * (int64_t)sizeof(row_record));
    return LG_OK;
}

static int64_t first_maximum(const float *x, int64_t num_classes, float *maximum)
{
    float max = x[0];
#pragma omp simd reduction(max : max)
    for (int64_t k = 0; k < num_classes; k++) {
        max = x[k] > max ? x[k] : max;
    }
    *maximum = max;
    for (int64_t k = 0; k < num_classes; k++) {
        if (x[k] == max) {
            return k;
        }
    }
    return 0; /* NaN */
}

/* Factors of -log p[k]: `on` for the target besides `off`, which is for all; both times the class weight. */
typedef struct loss_factors {
    const float *weights;
    float on, off;
} loss_factors;

static loss_factors factors_of(const lgi_cpu_layer *layer, int64_t num_classes)
{
    const float smoothing = layer->attrs->label_smoothing;
    const loss_factors factors = {layer->attrs->class_weights, 1.0f - smoothing,
                                  smoothing / (float)num_classes};
    return factors;
}

static float class_weight(const loss_factors *factors, int64_t k)
{
    return factors->weights != NULL ? factors->weights[k] : 1.0f;
}

/* dx[k] = scale * (p[k] * factor_sum - factor[k]); dx may be x. */
static void gradient_row(const loss_factors *factors, const float *x, float *dx,
                         int64_t num_classes, int64_t target, float log_sum, float factor_sum,
                         float scale)
{
    const float off = factors->off;
    const float at_target = factors->on * class_weight(factors, target);
    if (factors->weights != NULL) {
        const float *weights = factors->weights;
        LGI_CPU_SIMD
        for (int64_t k = 0; k < num_classes; k++) {
            dx[k] = scale * (lgi_cpu_exp(x[k] - log_sum) * factor_sum - off * weights[k]);
        }
    } else {
        LGI_CPU_SIMD
        for (int64_t k = 0; k < num_classes; k++) {
            dx[k] = scale * (lgi_cpu_exp(x[k] - log_sum) * factor_sum - off);
        }
    }
    dx[target] -= scale * at_target;
}

static row_record loss_row(const loss_factors *factors, const float *x, float *dx,
                           int64_t num_classes, int64_t target, float scale)
{
    float max = 0.0f;
    float sum = 0.0f;
    row_record record;
    record.is_correct = first_maximum(x, num_classes, &max) == target;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < num_classes; k++) {
        sum += lgi_cpu_exp(x[k] - max);
    }
    const double log_sum = (double)max + log((double)sum);
    const double at_target = (double)factors->on * (double)class_weight(factors, target);
    double factor_sum = at_target;
    record.loss = at_target * (log_sum - (double)x[target]);
    for (int64_t k = 0; factors->off > 0.0f && k < num_classes; k++) {
        const double factor = (double)factors->off * (double)class_weight(factors, k);
        record.loss += factor * (log_sum - (double)x[k]);
        factor_sum += factor;
    }
    if (dx != NULL) {
        gradient_row(factors, x, dx, num_classes, target, (float)log_sum, (float)factor_sum, scale);
    }
    return record;
}

static lg_status check_targets(const lgi_cpu_layer *layer, const int32_t *targets, int64_t rows,
                               int64_t first_sample)
{
    const int64_t num_classes = lgi_cpu_last_dim(&layer->in_shape);
    const int64_t sample_rows = rows / layer->num_samples;
    for (int64_t r = 0; r < rows; r++) {
        if (targets[r] != layer->attrs->ignore_index &&
            (targets[r] < 0 || targets[r] >= num_classes)) {
            LG_FAIL(LG_INVALID_ARG,
                    "layer '%s': target %" PRId32 " at position %" PRId64 " of sample %" PRId64
                    " is not in [0, %" PRId64 ")",
                    layer->name, targets[r], r % sample_rows, first_sample + r / sample_rows,
                    num_classes);
        }
    }
    return LG_OK;
}

static lg_status run_forward(const lgi_cpu_layer *layer, int width_idx, const lgi_layer_io *io)
{
    const int64_t num_classes = lgi_cpu_last_dim(&layer->in_shape);
    const int64_t rows = num_rows(layer);
    const int32_t *targets = io->x[1];
    const int32_t ignored = layer->attrs->ignore_index;
    const loss_factors factors = factors_of(layer, num_classes);
    row_record *records = io->workspace;
    float *all_dx = io->dx != NULL ? io->dx[0] : NULL;
    lgi_loss_record total = {0};
    LG_TRY(check_targets(layer, targets, rows, io->first_sample));
    LGI_CPU_PARALLEL_FOR(layer->widths[width_idx])
    for (int64_t r = 0; r < rows; r++) {
        const float *x = (const float *)io->x[0] + r * num_classes;
        float *dx = all_dx != NULL ? all_dx + r * num_classes : NULL;
        if (targets[r] != ignored) {
            records[r] =
                loss_row(&factors, x, dx, num_classes, targets[r], (float)io->step->loss_scale);
        } else if (dx != NULL) {
            memset(dx, 0, (size_t)num_classes * sizeof *dx);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        if (targets[r] != ignored) {
            total.loss_sum += records[r].loss;
            total.weight_sum += (double)class_weight(&factors, targets[r]);
            total.num_correct += records[r].is_correct;
            total.num_targets++;
        }
    }
    *io->loss = total;
    return LG_OK;
}

const lgi_cpu_kind lgi_cpu_loss = {
    .layer_bytes = sizeof(lgi_cpu_layer),
    .prepare = prepare,
    .run = {run_forward, NULL, NULL},
};
