/*
 * What a backend does with stored numbers, for every backend of this build: updates against closed forms, sums, running
 * statistics.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "unit/device/device_harness.h"

/* An update rounds a handful of times per step, numbers of about 1: 8 roundings for each of the steps. */
#define F32_UNIT_ROUNDOFF 0x1p-24
#define ROUNDINGS_PER_STEP 8.0

#define NUM_ELEMS 37 /* no multiple of a vector */
#define NUM_STEPS 6
#define MAX_TENSORS 4

/* Tensors of NUM_ELEMS numbers on a device. */
typedef struct fixture {
    const struct lgi_device_ops *ops;
    lgi_device *device;
    void *tensors[MAX_TENSORS];
    float host[NUM_ELEMS];
} fixture;

static const lg_shape vector_shape = {1, {NUM_ELEMS}};

static int64_t tensor_bytes(const fixture *f)
{
    return NUM_ELEMS * (int64_t)f->ops->real_bytes;
}

static void open_fixture(fixture *f, const struct lgi_device_ops *ops)
{
    memset(f, 0, sizeof *f);
    f->ops = ops;
    assert_int_equal(ops->open(&f->device, device_widths[DEVICE_NUM_WIDTHS - 1]), LG_OK);
    for (int i = 0; i < MAX_TENSORS; i++) {
        assert_int_equal(ops->alloc(f->device, &f->tensors[i], tensor_bytes(f)), LG_OK);
    }
}

static void close_fixture(fixture *f)
{
    for (int i = 0; i < MAX_TENSORS; i++) {
        f->ops->free(f->device, f->tensors[i], tensor_bytes(f));
    }
    f->ops->close(f->device);
}

/* Element i starts as start_value(i) and has the gradient grad_value(i) in each step. */
static float start_value(int i)
{
    return 0.5f + 0.03125f * (float)i;
}

static float grad_value(int i)
{
    return 0.25f * (float)(i % 7 - 3) + 0.125f; /* never 0 */
}

static void write_values(fixture *f, int tensor, float (*value)(int i))
{
    for (int i = 0; i < NUM_ELEMS; i++) {
        f->host[i] = value(i);
    }
    assert_int_equal(f->ops->write(f->device, &vector_shape, 0, f->tensors[tensor], f->host),
                     LG_OK);
}

static const float *read_values(fixture *f, int tensor)
{
    assert_int_equal(f->ops->read(f->device, &vector_shape, 0, f->tensors[tensor], f->host), LG_OK);
    return f->host;
}

/* NUM_STEPS updates with a constant gradient; every element must end at what `closed_form` says. */
static void check_update(const lgi_update *rule, double (*closed_form)(const lgi_update *, int i))
{
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        for (int w = 0; w < DEVICE_NUM_WIDTHS; w++) {
            fixture f;
            open_fixture(&f, *ops);
            write_values(&f, 0, start_value);
            write_values(&f, 1, grad_value);
            lgi_update update = *rule;
            update.num_elems = NUM_ELEMS;
            update.param = f.tensors[0];
            update.grad = f.tensors[1];
            const bool has_slots = rule->rule == LGI_UPDATE_ADAMW || rule->momentum != 0.0;
            update.slots[0] = has_slots ? f.tensors[2] : NULL;
            update.slots[1] = rule->rule == LGI_UPDATE_ADAMW ? f.tensors[3] : NULL;
            for (int step = 1; step <= NUM_STEPS; step++) {
                update.step_number = step;
                (*ops)->update(f.device, device_widths[w], &update);
            }
            const float *actual = read_values(&f, 0);
            for (int i = 0; i < NUM_ELEMS; i++) {
                const double expected = closed_form(rule, i);
                const double limit =
                    F32_UNIT_ROUNDOFF * ROUNDINGS_PER_STEP * NUM_STEPS * fmax(1.0, fabs(expected));
                if (!(fabs((double)actual[i] - expected) <= limit)) {
                    fail_msg("%s: element %d is %.9g, expected %.9g", (*ops)->name, i,
                             (double)actual[i], expected);
                }
            }
            close_fixture(&f);
        }
    }
}

/* Constant gradient g: w - lr * clip * g * steps. */
static double plain_sgd(const lgi_update *rule, int i)
{
    return (double)start_value(i) -
           rule->lr * rule->clip * (double)grad_value(i) * (double)NUM_STEPS;
}

static void sgd_without_momentum_walks_in_a_straight_line(void **state)
{
    (void)state;
    const lgi_update rule = {.rule = LGI_UPDATE_SGD, .lr = 0.125, .clip = 1.0, .trust_ratio = 1.0};
    check_update(&rule, plain_sgd);
    const lgi_update clipped = {
        .rule = LGI_UPDATE_SGD, .lr = 0.125, .clip = 0.375, .trust_ratio = 1.0};
    check_update(&clipped, plain_sgd);
}

/* The slot after step k is g * (1 - m^k) / (1 - m). */
static double momentum_sgd(const lgi_update *rule, int i)
{
    const double m = rule->momentum;
    const double grad = rule->clip * (double)grad_value(i);
    double walked = 0.0;
    for (int k = 1; k <= NUM_STEPS; k++) {
        const double slot = grad * (1.0 - pow(m, k)) / (1.0 - m);
        walked += rule->is_nesterov ? grad + m * slot : slot;
    }
    return (double)start_value(i) - rule->lr * walked;
}

static void momentum_adds_up_as_a_geometric_series(void **state)
{
    (void)state;
    const lgi_update rule = {
        .rule = LGI_UPDATE_SGD, .lr = 0.0625, .clip = 0.5, .trust_ratio = 1.0, .momentum = 0.875};
    check_update(&rule, momentum_sgd);
}

static void nesterov_looks_one_step_ahead(void **state)
{
    (void)state;
    const lgi_update rule = {.rule = LGI_UPDATE_SGD,
                             .lr = 0.0625,
                             .clip = 1.0,
                             .trust_ratio = 1.0,
                             .momentum = 0.875,
                             .is_nesterov = true};
    check_update(&rule, momentum_sgd);
}

/* w' = (1 - lr * d) * w - lr * c * g: a geometric approach of the fixed point -c * g / d. */
static double decayed_sgd(const lgi_update *rule, int i)
{
    const double fixed_point = -rule->clip * (double)grad_value(i) / rule->weight_decay;
    return fixed_point + ((double)start_value(i) - fixed_point) *
                             pow(1.0 - rule->lr * rule->weight_decay, NUM_STEPS);
}

static void weight_decay_pulls_the_parameter_and_is_not_clipped(void **state)
{
    (void)state;
    const lgi_update rule = {
        .rule = LGI_UPDATE_SGD, .lr = 0.25, .clip = 0.5, .trust_ratio = 1.0, .weight_decay = 0.125};
    check_update(&rule, decayed_sgd);
}

/* Weight decay goes through the momentum: the slot's and the parameter's recurrences together, in f64. */
static double decayed_momentum_sgd(const lgi_update *rule, int i)
{
    double weight = (double)start_value(i);
    double slot = 0.0;
    for (int k = 1; k <= NUM_STEPS; k++) {
        slot = rule->momentum * slot + (double)grad_value(i) + rule->weight_decay * weight;
        weight -= rule->lr * slot;
    }
    return weight;
}

static void weight_decay_goes_through_the_momentum(void **state)
{
    (void)state;
    const lgi_update rule = {.rule = LGI_UPDATE_SGD,
                             .lr = 0.0625,
                             .clip = 1.0,
                             .trust_ratio = 1.0,
                             .momentum = 0.5,
                             .weight_decay = 0.25};
    check_update(&rule, decayed_momentum_sgd);
}

/* With a constant gradient both corrected moments are exact: the step is g / (|g| + epsilon) from the first one on. */
static double constant_adamw(const lgi_update *rule, int i)
{
    const double grad = rule->clip * (double)grad_value(i);
    double weight = (double)start_value(i);
    for (int k = 1; k <= NUM_STEPS; k++) {
        weight -= rule->lr * rule->weight_decay * weight;
        weight -= rule->lr * grad / (fabs(grad) + rule->epsilon);
    }
    return weight;
}

static void adamw_of_a_constant_gradient_steps_by_the_learning_rate(void **state)
{
    (void)state;
    const lgi_update rule = {.rule = LGI_UPDATE_ADAMW,
                             .lr = 0.0625,
                             .clip = 0.5,
                             .trust_ratio = 1.0,
                             .weight_decay = 0.125,
                             .beta1 = 0.875,
                             .beta2 = 0.96875,
                             .epsilon = 0.03125};
    check_update(&rule, constant_adamw);
    const lgi_update no_decay = {.rule = LGI_UPDATE_ADAMW,
                                 .lr = 0.0625,
                                 .clip = 1.0,
                                 .trust_ratio = 1.0,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .epsilon = 1e-8};
    check_update(&no_decay, constant_adamw);
}

/* An update is the same whatever the width: elements do not mix. */
static void updates_do_not_depend_on_the_width(void **state)
{
    (void)state;
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        float results[DEVICE_NUM_WIDTHS][NUM_ELEMS];
        for (int w = 0; w < DEVICE_NUM_WIDTHS; w++) {
            fixture f;
            open_fixture(&f, *ops);
            write_values(&f, 0, start_value);
            write_values(&f, 1, grad_value);
            const lgi_update update = {.rule = LGI_UPDATE_ADAMW,
                                       .num_elems = NUM_ELEMS,
                                       .param = f.tensors[0],
                                       .grad = f.tensors[1],
                                       .slots = {f.tensors[2], f.tensors[3]},
                                       .lr = 0.1,
                                       .clip = 0.7,
                                       .trust_ratio = 1.0,
                                       .weight_decay = 0.01,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .epsilon = 1e-8,
                                       .step_number = 1};
            (*ops)->update(f.device, device_widths[w], &update);
            memcpy(results[w], read_values(&f, 0), sizeof results[w]);
            close_fixture(&f);
        }
        assert_memory_equal(results[0], results[1], sizeof results[0]);
    }
}

static void grad_add_sums_in_order_and_may_write_its_first_operand(void **state)
{
    (void)state;
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        for (int is_in_place = 0; is_in_place < 2; is_in_place++) {
            fixture f;
            float addends[3][NUM_ELEMS];
            open_fixture(&f, *ops);
            for (int t = 0; t < 3; t++) {
                for (int i = 0; i < NUM_ELEMS; i++) { /* big, minus big, small: the order shows */
                    addends[t][i] = t == 2 ? 0.125f * (float)i : (t == 0 ? 1e8f : -1e8f);
                }
                assert_int_equal(
                    (*ops)->write(f.device, &vector_shape, 0, f.tensors[t], addends[t]), LG_OK);
            }
            const void *srcs[3] = {f.tensors[0], f.tensors[1], f.tensors[2]};
            const int dst = is_in_place != 0 ? 0 : 3;
            (*ops)->grad_add(f.device, device_widths[is_in_place], tensor_bytes(&f), f.tensors[dst],
                             srcs, 3);
            const float *sums = read_values(&f, dst);
            for (int i = 0; i < NUM_ELEMS; i++) {
                assert_true(sums[i] == 0.125f * (float)i);
            }
            close_fixture(&f);
        }
    }
}

static void sum_of_squares_does_not_depend_on_the_width(void **state)
{
    (void)state;
    enum { NUM_LONG = 100003 };
    static const int widths[] = {1, 2, 3};
    static float host[NUM_LONG];
    const lgi_random random = lgi_random_stream(3, LGI_RANDOM_INIT, 0, 0, 0);
    double expected = 0.0;
    for (int i = 0; i < NUM_LONG; i++) {
        host[i] = lgi_random_normal(&random, (uint64_t)i);
        expected += (double)host[i] * (double)host[i];
    }
    const lg_shape shape = LG_SHAPE(NUM_LONG);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const int64_t bytes = NUM_LONG * (int64_t)(*ops)->real_bytes;
        lgi_device *device = NULL;
        void *stored = NULL;
        assert_int_equal((*ops)->open(&device, 3), LG_OK);
        assert_int_equal((*ops)->alloc(device, &stored, bytes), LG_OK);
        assert_int_equal((*ops)->write(device, &shape, 0, stored, host), LG_OK);
        const double first = (*ops)->sum_squares(device, widths[0], NUM_LONG, stored);
        for (int w = 1; w < 3; w++) {
            const double sum = (*ops)->sum_squares(device, widths[w], NUM_LONG, stored);
            assert_memory_equal(&sum, &first, sizeof sum);
        }
        /* Any order of 1e5 terms in f64: at worst 1e5 roundings. */
        assert_true(fabs(first - expected) <= 1e5 * 0x1p-53 * expected);
        assert_true((*ops)->sum_squares(device, 1, 0, stored) == 0.0);
        (*ops)->free(device, stored, bytes);
        (*ops)->close(device);
    }
}

/* --- ratio rules --------------------------------------------------------------------------------------------------- */

/* The ratio stands before gradient and decay and goes into the momentum; the learning rate stays outside. */
static double trusted_sgd(const lgi_update *rule, int i)
{
    double weight = (double)start_value(i);
    double slot = 0.0;
    for (int k = 1; k <= NUM_STEPS; k++) {
        slot = rule->momentum * slot +
               rule->trust_ratio * ((double)grad_value(i) + rule->weight_decay * weight);
        weight -= rule->lr * slot;
    }
    return weight;
}

static void the_trust_ratio_stands_before_gradient_and_decay(void **state)
{
    (void)state;
    const lgi_update rule = {.rule = LGI_UPDATE_SGD,
                             .lr = 0.125,
                             .clip = 1.0,
                             .trust_ratio = 0.25,
                             .momentum = 0.5,
                             .weight_decay = 0.25};
    check_update(&rule, trusted_sgd);
}

/* One step of LAMB: with a fresh state both corrected moments are exact, the direction is g / (|g| + epsilon) + decay * w. */
static void lamb_steps_by_the_weights_norm_in_its_direction(void **state)
{
    (void)state;
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        for (int is_adapted = 0; is_adapted < 2; is_adapted++) {
            double weight_squares = 0.0;
            double direction_squares = 0.0;
            double direction[NUM_ELEMS];
            float results[DEVICE_NUM_WIDTHS][NUM_ELEMS];
            for (int i = 0; i < NUM_ELEMS; i++) {
                const double weight = (double)start_value(i);
                const double grad = 0.5 * (double)grad_value(i);
                direction[i] = grad / (fabs(grad) + 1e-3) + 0.25 * weight;
                weight_squares += weight * weight;
                direction_squares += direction[i] * direction[i];
            }
            const double ratio =
                is_adapted != 0 ? sqrt(weight_squares) / sqrt(direction_squares) : 1.0;
            for (int w = 0; w < DEVICE_NUM_WIDTHS; w++) {
                fixture f;
                open_fixture(&f, *ops);
                write_values(&f, 0, start_value);
                write_values(&f, 1, grad_value);
                const lgi_update update = {.rule = LGI_UPDATE_LAMB,
                                           .num_elems = NUM_ELEMS,
                                           .param = f.tensors[0],
                                           .grad = f.tensors[1],
                                           .slots = {f.tensors[2], f.tensors[3]},
                                           .lr = 0.125,
                                           .clip = 0.5,
                                           .trust_ratio = 1.0,
                                           .is_adapted = is_adapted != 0,
                                           .weight_decay = 0.25,
                                           .beta1 = 0.875,
                                           .beta2 = 0.96875,
                                           .epsilon = 1e-3,
                                           .step_number = 1};
                (*ops)->update(f.device, device_widths[w], &update);
                memcpy(results[w], read_values(&f, 0), sizeof results[w]);
                for (int i = 0; i < NUM_ELEMS; i++) {
                    const double expected = (double)start_value(i) - 0.125 * ratio * direction[i];
                    assert_true(fabs((double)results[w][i] - expected) <=
                                2e-6 * (1.0 + fabs(expected)));
                }
                close_fixture(&f);
            }
            assert_memory_equal(results[0], results[1], sizeof results[0]);
        }
    }
}

/* --- statistics ---------------------------------------------------------------------------------------------------- */

static void grad_stat_adds_and_squares_in_one_pass_at_every_width(void **state)
{
    (void)state;
    enum { NUM_LONG = 100003 };
    static const int widths[] = {1, 2, 3};
    static float first[NUM_LONG];
    static float second[NUM_LONG];
    static float sum[NUM_LONG];
    const lgi_random random = lgi_random_stream(4, LGI_RANDOM_INIT, 0, 0, 0);
    const lg_shape shape = LG_SHAPE(NUM_LONG);
    double of_first = 0.0;
    double of_both = 0.0;
    for (int i = 0; i < NUM_LONG; i++) {
        first[i] = lgi_random_normal(&random, (uint64_t)i);
        second[i] = lgi_random_normal(&random, (uint64_t)(NUM_LONG + i));
        of_first += (double)first[i] * (double)first[i];
        const double both = (double)first[i] + (double)second[i];
        of_both += both * both;
    }
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const int64_t bytes = NUM_LONG * (int64_t)(*ops)->real_bytes;
        lgi_device *device = NULL;
        void *stored[4];
        double stats[3][2];
        assert_int_equal((*ops)->open(&device, 3), LG_OK);
        for (int t = 0; t < 4; t++) {
            assert_int_equal((*ops)->alloc(device, &stored[t], bytes), LG_OK);
        }
        for (int w = 0; w < 3; w++) {
            for (int t = 0; t < 4; t++) {
                assert_int_equal(
                    (*ops)->write(device, &shape, 0, stored[t], t % 2 == 0 ? first : second),
                    LG_OK);
            }
            /* one use: `second` += `first` */
            void *one_sum[] = {stored[1]};
            const void *one_grad[] = {stored[0]};
            stats[w][0] = (*ops)->grad_stat(device, widths[w], NUM_LONG, one_sum, one_grad, 1);
            assert_int_equal((*ops)->read(device, &shape, 0, stored[1], sum), LG_OK);
            for (int i = 0; i < NUM_LONG; i++) {
                assert_true(sum[i] == first[i] + second[i]);
            }
            /* two uses: the first is written in place already */
            void *two_sums[] = {stored[3], stored[1]};
            const void *two_grads[] = {NULL, stored[2]};
            stats[w][1] = (*ops)->grad_stat(device, widths[w], NUM_LONG, two_sums, two_grads, 2);
            assert_memory_equal(stats[w], stats[0], sizeof stats[0]);
        }
        /* any order of 1e5 terms in f64 */
        assert_true(fabs(stats[0][0] - of_first) <= 1e5 * 0x1p-53 * of_first);
        assert_true(fabs(stats[0][1] - of_both) <= 1e5 * 0x1p-53 * of_both);
        for (int t = 0; t < 4; t++) {
            (*ops)->free(device, stored[t], bytes);
        }
        (*ops)->close(device);
    }
}

static void statistics_fold_into_running_mean_and_unbiased_variance(void **state)
{
    (void)state;
    const double momentum = 0.25;
    const double epsilon = 0.125;
    const int64_t num_reduced = 9;
    const double batch_variance = 0.875; /* + epsilon = 1: the inverse deviation is 1 */
    const float stash[6] = {1.0f, -2.0f, 0.5f, 1.0f, 1.0f, 1.0f};
    const float mean[3] = {0.5f, 1.0f, -1.0f};
    const float variance[3] = {1.0f, 2.0f, 0.25f};
    const lg_shape stash_shape = LG_SHAPE(6);
    const lg_shape shape = LG_SHAPE(3);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        fixture f;
        float actual[3];
        open_fixture(&f, *ops);
        assert_int_equal((*ops)->write(f.device, &stash_shape, 0, f.tensors[0], stash), LG_OK);
        assert_int_equal((*ops)->write(f.device, &shape, 0, f.tensors[1], mean), LG_OK);
        assert_int_equal((*ops)->write(f.device, &shape, 0, f.tensors[2], variance), LG_OK);
        (*ops)->fold_statistics(f.device, f.tensors[1], f.tensors[2], f.tensors[0], 3, num_reduced,
                                momentum, epsilon);
        assert_int_equal((*ops)->read(f.device, &shape, 0, f.tensors[1], actual), LG_OK);
        for (int c = 0; c < 3; c++) {
            const double expected = 0.75 * (double)mean[c] + momentum * (double)stash[c];
            assert_true(fabs((double)actual[c] - expected) <= 8.0 * F32_UNIT_ROUNDOFF);
        }
        assert_int_equal((*ops)->read(f.device, &shape, 0, f.tensors[2], actual), LG_OK);
        for (int c = 0; c < 3; c++) {
            const double expected =
                0.75 * (double)variance[c] + momentum * batch_variance * 9.0 / 8.0;
            assert_true(fabs((double)actual[c] - expected) <= 8.0 * F32_UNIT_ROUNDOFF);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_without_momentum_walks_in_a_straight_line),
        cmocka_unit_test(momentum_adds_up_as_a_geometric_series),
        cmocka_unit_test(nesterov_looks_one_step_ahead),
        cmocka_unit_test(weight_decay_pulls_the_parameter_and_is_not_clipped),
        cmocka_unit_test(weight_decay_goes_through_the_momentum),
        cmocka_unit_test(adamw_of_a_constant_gradient_steps_by_the_learning_rate),
        cmocka_unit_test(updates_do_not_depend_on_the_width),
        cmocka_unit_test(grad_add_sums_in_order_and_may_write_its_first_operand),
        cmocka_unit_test(sum_of_squares_does_not_depend_on_the_width),
        cmocka_unit_test(the_trust_ratio_stands_before_gradient_and_decay),
        cmocka_unit_test(lamb_steps_by_the_weights_norm_in_its_direction),
        cmocka_unit_test(grad_stat_adds_and_squares_in_one_pass_at_every_width),
        cmocka_unit_test(statistics_fold_into_running_mean_and_unbiased_variance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
