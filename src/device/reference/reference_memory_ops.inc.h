/*
 * Ops on stored numbers, whatever tensor they are: sums of gradients, updates, statistics, host access; on REAL. The
 * width does not matter: everything runs on the calling thread in the order of the elements.
 */

static void add_grads(lgi_device *device, int width, int64_t bytes, void *dst,
                      const void *const *srcs, int num_srcs)
{
    (void)device;
    (void)width;
    for (int64_t i = 0; i < bytes / (int64_t)sizeof(REAL); i++) {
        REAL sum = ((const REAL *)srcs[0])[i];
        for (int s = 1; s < num_srcs; s++) {
            sum += ((const REAL *)srcs[s])[i];
        }
        ((REAL *)dst)[i] = sum;
    }
}

static double sum_squares(lgi_device *device, int width, int64_t num_elems, const void *src)
{
    (void)device;
    (void)width;
    double sum = 0.0;
    for (int64_t i = 0; i < num_elems; i++) {
        const double x = (double)((const REAL *)src)[i];
        sum += x * x;
    }
    return sum;
}

static double grad_stat(lgi_device *device, int width, int64_t num_elems, void *const *sums,
                        const void *const *grads, int num_uses)
{
    (void)device;
    (void)width;
    double total = 0.0;
    for (int64_t i = 0; i < num_elems; i++) {
        double x = 0.0;
        for (int u = 0; u < num_uses; u++) {
            REAL *const sum = (REAL *)sums[u] + i;
            x += (double)(grads[u] != NULL ? ((const REAL *)grads[u])[i] : *sum);
            if (grads[u] != NULL) {
                *sum += ((const REAL *)grads[u])[i];
            }
        }
        total += x * x;
    }
    return total;
}

static void update_sgd(const lgi_update *update)
{
    REAL *param = update->param;
    REAL *slot = update->momentum != 0.0 ? update->slots[0] : NULL;
    for (int64_t i = 0; i < update->num_elems; i++) {
        const double weight = (double)param[i];
        double step =
            update->trust_ratio * (update->clip * (double)((const REAL *)update->grad)[i] +
                                   update->weight_decay * weight);
        if (slot != NULL) {
            const double grad = step;
            const double before = update->step_number > 1 ? (double)slot[i] : 0.0;
            slot[i] = (REAL)(update->momentum * before + grad);
            step =
                update->is_nesterov ? grad + update->momentum * (double)slot[i] : (double)slot[i];
        }
        param[i] = (REAL)(weight - update->lr * step);
    }
}

static void update_adamw(const lgi_update *update)
{
    REAL *param = update->param;
    REAL *first = update->slots[0];
    REAL *second = update->slots[1];
    const double correction1 = 1.0 - pow(update->beta1, (double)update->step_number);
    const double correction2 = 1.0 - pow(update->beta2, (double)update->step_number);
    for (int64_t i = 0; i < update->num_elems; i++) {
        const double grad = update->clip * (double)((const REAL *)update->grad)[i];
        const double m = update->beta1 * (double)first[i] + (1.0 - update->beta1) * grad;
        const double v = update->beta2 * (double)second[i] + (1.0 - update->beta2) * grad * grad;
        const double step = m / correction1 / (sqrt(v / correction2) + update->epsilon);
        const double weight = (double)param[i];
        first[i] = (REAL)m;
        second[i] = (REAL)v;
        param[i] = (REAL)(weight - update->lr * (step + update->weight_decay * weight));
    }
}

/* LAMB's direction before the ratio; moves the moments on if `grad` is not NULL. */
static double lamb_direction(const lgi_update *update, int64_t i, bool moves)
{
    REAL *first = update->slots[0];
    REAL *second = update->slots[1];
    if (moves) {
        const double grad = update->clip * (double)((const REAL *)update->grad)[i];
        first[i] = (REAL)(update->beta1 * (double)first[i] + (1.0 - update->beta1) * grad);
        second[i] = (REAL)(update->beta2 * (double)second[i] + (1.0 - update->beta2) * grad * grad);
    }
    const double correction1 = 1.0 - pow(update->beta1, (double)update->step_number);
    const double correction2 = 1.0 - pow(update->beta2, (double)update->step_number);
    return (double)first[i] / correction1 /
               (sqrt((double)second[i] / correction2) + update->epsilon) +
           update->weight_decay * (double)((const REAL *)update->param)[i];
}

static void update_lamb(const lgi_update *update)
{
    REAL *param = update->param;
    double weight_squares = 0.0;
    double direction_squares = 0.0;
    for (int64_t i = 0; i < update->num_elems; i++) {
        const double u = lamb_direction(update, i, true);
        direction_squares += u * u;
        weight_squares += (double)param[i] * (double)param[i];
    }
    const bool has_ratio = update->is_adapted && weight_squares > 0.0 && direction_squares > 0.0;
    const double ratio = has_ratio ? sqrt(weight_squares) / sqrt(direction_squares) : 1.0;
    for (int64_t i = 0; i < update->num_elems; i++) {
        param[i] = (REAL)((double)param[i] - update->lr * ratio * lamb_direction(update, i, false));
    }
}

static void update_param(lgi_device *device, int width, const lgi_update *update)
{
    (void)device;
    (void)width;
    if (update->rule == LGI_UPDATE_SGD) {
        update_sgd(update);
    } else if (update->rule == LGI_UPDATE_LAMB) {
        update_lamb(update);
    } else {
        update_adamw(update);
    }
}

/* The stash holds 1/sqrt(var + epsilon); a single number has no unbiased variance, its own one (0) is taken. */
static void fold_statistics(lgi_device *device, void *running_mean, void *running_var,
                            const void *stash, int64_t num_channels, int64_t num_reduced,
                            double momentum, double epsilon)
{
    (void)device;
    REAL *mean = running_mean;
    REAL *variance = running_var;
    const REAL *batch_mean = stash;
    const REAL *inv_std = batch_mean + num_channels;
    const double unbias = num_reduced > 1 ? (double)num_reduced / (double)(num_reduced - 1) : 1.0;
    for (int64_t c = 0; c < num_channels; c++) {
        const double batch_variance = 1.0 / ((double)inv_std[c] * (double)inv_std[c]) - epsilon;
        const double positive = batch_variance > 0.0 ? batch_variance : 0.0; /* rounding */
        mean[c] = (REAL)((1.0 - momentum) * (double)mean[c] + momentum * (double)batch_mean[c]);
        variance[c] = (REAL)((1.0 - momentum) * (double)variance[c] + momentum * unbias * positive);
    }
}

static lg_status check_layout(const lgi_device *device, int layout)
{
    if (layout != 0) {
        LG_FAIL(LG_INVALID_ARG, "device '%s': layout %d does not exist, only 0", device->ops->name,
                layout);
    }
    return LG_OK;
}

static lg_status read_stored(lgi_device *device, const lg_shape *shape, int layout,
                             const void *stored, float *host)
{
    LG_TRY(check_layout(device, layout));
    for (int64_t i = 0; i < lg_shape_num_elems(shape); i++) {
        host[i] = (float)((const REAL *)stored)[i];
    }
    return LG_OK;
}

static lg_status write_stored(lgi_device *device, const lg_shape *shape, int layout, void *stored,
                              const float *host)
{
    LG_TRY(check_layout(device, layout));
    for (int64_t i = 0; i < lg_shape_num_elems(shape); i++) {
        ((REAL *)stored)[i] = (REAL)host[i];
    }
    return LG_OK;
}
