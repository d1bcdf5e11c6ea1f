/*
 * The oracle's gradients are the slopes of its own forward passes: each training case on the reference in f64 against
 * central differences of f = sum(dy * y), or of the scaled loss.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "unit/device/device_harness.h"

/*
 * With step h a central difference is off by h^2 / 6 * f''' (2e-11 for slopes that bend like their size) and by the
 * rounding of f, 1e-16 * |f| / h (1e-9 for |f| of 100). TOLERANCE, relative to the largest slope of the tensor (at least
 * 1), leaves a factor of 100 over both; a wrong formula is off by 1e-2 or more. Functions with corners are smooth around
 * the data unless a corner lies within h of one of them, which the fixed data avoid.
 */
#define STEP 1e-5
#define TOLERANCE 1e-7

/* Single elements that are checked of each tensor; all others are checked through random directions. */
#define MAX_ELEMS 24
#define NUM_DIRECTIONS 3

static double objective(device_session *session)
{
    device_session_forward(session);
    if (session->y == NULL) {
        return session->loss.loss_sum * session->step.loss_scale;
    }
    const double *y = session->y;
    double sum = 0.0;
    for (int64_t i = 0; i < lg_shape_num_elems(&session->out_shape); i++) {
        sum += (double)session->data.dy[i] * y[i];
    }
    return sum;
}

/* Slope of the objective when `operand` moves along `direction`; the operand comes back unchanged. */
static double slope(device_session *session, double *operand, const double *direction,
                    int64_t num_elems)
{
    double *saved = malloc((size_t)num_elems * sizeof *saved);
    double values[2];
    assert_non_null(saved);
    for (int64_t i = 0; i < num_elems; i++) {
        saved[i] = operand[i];
    }
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < num_elems; i++) {
            operand[i] = saved[i] + (side == 0 ? STEP : -STEP) * direction[i];
        }
        values[side] = objective(session);
    }
    for (int64_t i = 0; i < num_elems; i++) {
        operand[i] = saved[i];
    }
    free(saved);
    return (values[0] - values[1]) / (2.0 * STEP);
}

static int check_slope(device_session *session, const char *name, double *operand,
                       const double *grad, const double *direction, int64_t num_elems, int64_t elem)
{
    double expected = 0.0;
    double scale = 1.0;
    for (int64_t i = 0; i < num_elems; i++) {
        expected += grad[i] * direction[i];
        scale = fmax(scale, fabs(grad[i]));
    }
    const double condition = session->c->condition != 0.0 ? session->c->condition : 1.0;
    const double spread = elem < 0 ? sqrt((double)num_elems) : 1.0; /* length of a direction */
    const double limit = TOLERANCE * scale * condition * spread;
    const double numeric = slope(session, operand, direction, num_elems);
    if (fabs(numeric - expected) <= limit) {
        return 0;
    }
    print_error("%s: %s, element %d: gradient %.12g, slope %.12g +- %.2g\n", session->c->name, name,
                (int)elem, expected, numeric, limit);
    return 1;
}

/* Returns the number of wrong slopes of one tensor. */
static int check_tensor(device_session *session, const char *name, double *operand,
                        const double *grad, int64_t num_elems)
{
    const lgi_random random = lgi_random_stream(9, LGI_RANDOM_INIT, (uint64_t)num_elems, 0, 0);
    double *direction = calloc((size_t)num_elems, sizeof *direction);
    int num_wrong = 0;
    assert_non_null(direction);
    const int64_t stride = num_elems / MAX_ELEMS + 1;
    for (int64_t i = 0; i < num_elems; i += stride) {
        direction[i] = 1.0;
        num_wrong += check_slope(session, name, operand, grad, direction, num_elems, i);
        direction[i] = 0.0;
    }
    for (int d = 0; d < NUM_DIRECTIONS; d++) {
        for (int64_t i = 0; i < num_elems; i++) {
            direction[i] = (double)lgi_random_normal(&random, (uint64_t)(d * num_elems + i));
        }
        num_wrong += check_slope(session, name, operand, grad, direction, num_elems, -1);
    }
    free(direction);
    return num_wrong;
}

/* A copy of the gradient `made`, less what it was added to. */
static double *copy_grad(const double *made, const float *added_to, int64_t num_elems)
{
    double *grad = malloc((size_t)num_elems * sizeof *grad);
    assert_non_null(grad);
    for (int64_t i = 0; i < num_elems; i++) {
        grad[i] = made[i] - (added_to != NULL ? (double)added_to[i] : 0.0);
    }
    return grad;
}

static int check_case(const device_case *c, const struct lgi_device_ops *ops)
{
    const device_options options = {0};
    static const char *const dx_names[] = {"dx0", "dx1", "dx2"};
    static const char *const dparam_names[] = {"dparam0", "dparam1"};
    device_session session;
    int num_wrong = 0;
    device_session_create(&session, c, ops, &options);
    device_session_forward(&session);
    device_session_backward(&session);
    for (int i = 0; i < c->num_inputs; i++) {
        const int64_t num_elems = lg_shape_num_elems(&session.in_shapes[i]);
        if (session.dx[i] != NULL) {
            double *grad = copy_grad(session.dx[i], NULL, num_elems);
            num_wrong += check_tensor(&session, dx_names[i], session.x[i], grad, num_elems);
            free(grad);
        }
    }
    for (int p = 0; p < session.info->num_params; p++) {
        const int64_t num_elems = lg_shape_num_elems(&session.param_shapes[p]);
        double *grad = copy_grad(session.dparam[p], c->accumulates ? session.data.dparams[p] : NULL,
                                 num_elems);
        num_wrong += check_tensor(&session, dparam_names[p], session.param[p], grad, num_elems);
        free(grad);
    }
    device_session_destroy(&session);
    return num_wrong;
}

static void gradients_are_the_slopes_of_forward(void **state)
{
    (void)state;
    const struct lgi_device_ops *ops = NULL;
    int num_cases;
    int num_wrong = 0;
    const device_case *cases = device_cases(&num_cases);
    assert_int_equal(lgi_device_find(&ops, "reference-f64"), LG_OK);
    for (int i = 0; i < num_cases; i++) {
        if (cases[i].mode == LG_GRAPH_TRAIN && cases[i].kind != LG_LAYER_INPUT) {
            num_wrong += check_case(&cases[i], ops);
        }
    }
    assert_int_equal(num_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_slopes_of_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
