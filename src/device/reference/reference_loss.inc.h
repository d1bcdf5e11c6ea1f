/*
 * Softmax cross-entropy, on REAL, sums of the record in f64. Shapes: logits [R,K], targets [R] (i32), R: samples times
 * tokens.
 *
 * With class weights w, smoothing e and log-probabilities l, a row with target y has weight w[y] and the loss
 * (1 - e) * w[y] * -l[y] + e / K * sum over k of w[k] * -l[k]; the mean divides by the sum of the rows' weights (as
 * PyTorch's CrossEntropyLoss does). Its gradient is p[k] * W - q[k], where q are the factors of -l and W is their sum.
 * The seed of backward, 1 / (sum of weights over the step), comes in as step->loss_scale.
 */

/* Factor of -log p[k] in a row's loss. */
static REAL loss_factor(const lg_layer_attrs *attrs, int64_t num_classes, int64_t target, int64_t k)
{
    const REAL weight = attrs->class_weights != NULL ? (REAL)attrs->class_weights[k] : 1;
    const REAL smoothing = (REAL)attrs->label_smoothing;
    const REAL share = smoothing / (REAL)num_classes;
    return weight * (k == target ? 1 - smoothing + share : share);
}

/* One row: adds to the record, writes the gradient where it is wanted; dx may be x. */
static void loss_row(const lg_layer_attrs *attrs, const lgi_step *step, int64_t num_classes,
                     int64_t target, const REAL *x, REAL *dx, lgi_loss_record *record)
{
    int64_t best = 0;
    for (int64_t k = 1; k < num_classes; k++) {
        best = x[k] > x[best] ? k : best;
    }
    const REAL max = x[best];
    double sum_exp = 0.0;
    for (int64_t k = 0; k < num_classes; k++) {
        sum_exp += (double)exp(x[k] - max);
    }
    const REAL log_sum = max + (REAL)log(sum_exp);
    double loss = 0.0;
    double factor_sum = 0.0;
    for (int64_t k = 0; k < num_classes; k++) {
        const double factor = (double)loss_factor(attrs, num_classes, target, k);
        loss += factor * (double)(log_sum - x[k]);
        factor_sum += factor;
    }
    record->loss_sum += loss;
    record->weight_sum += attrs->class_weights != NULL ? (double)attrs->class_weights[target] : 1.0;
    record->num_correct += best == target;
    record->num_targets++;
    for (int64_t k = 0; k < num_classes && dx != NULL; k++) {
        const REAL prob = exp(x[k] - log_sum);
        dx[k] = (REAL)step->loss_scale *
                (prob * (REAL)factor_sum - loss_factor(attrs, num_classes, target, k));
    }
}

static lg_status loss_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t num_classes = last_dim(&layer->in_shapes[0]);
    const int64_t sample_rows = num_rows(&layer->in_shapes[0]);
    const int32_t *targets = io->x[1];
    REAL *all_dx = io->dx != NULL ? io->dx[0] : NULL;
    const lgi_loss_record zero = {0};
    *io->loss = zero;
    for (int64_t r = 0; r < layer->num_samples * sample_rows; r++) {
        const REAL *x = (const REAL *)io->x[0] + r * num_classes;
        REAL *dx = all_dx != NULL ? all_dx + r * num_classes : NULL;
        if (targets[r] == layer->attrs->ignore_index) {
            for (int64_t k = 0; k < num_classes && dx != NULL; k++) {
                dx[k] = 0;
            }
            continue;
        }
        if (targets[r] < 0 || targets[r] >= num_classes) {
            LG_FAIL(LG_INVALID_ARG,
                    "layer '%s': target %" PRId32 " at position %" PRId64 " of sample %" PRId64
                    " is not in [0, %" PRId64 ")",
                    layer->name, targets[r], r % sample_rows, io->first_sample + r / sample_rows,
                    num_classes);
        }
        loss_row(layer->attrs, io->step, num_classes, targets[r], x, dx, io->loss);
    }
    return LG_OK;
}
