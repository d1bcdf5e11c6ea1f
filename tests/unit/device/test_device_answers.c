/*
 * The oracle's forward passes against what PyTorch computes in f64 (layer_answers.inc.h, made by
 * tools/make_layer_answers.py). Together with the finite differences this checks the oracle itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "unit/device/device_harness.h"
#include "unit/device/layer_answers.inc.h"

/* Two ways to sum some dozens of numbers of about 1 in f64. */
#define TOLERANCE 1e-13

#define INPUT_SCALE_ACTIVATION 6.0
#define LOSS_SCALE 0.25

#define KEY_PARAM 20
#define KEY_STATE 40

/* The rule of make_layer_answers.py: multiples of 1/4 between -5/4 and 5/4. */
static double pattern(int key, int64_t i)
{
    return (double)((i * 7 + key * 3) % 11 - 5) / 4.0;
}

static void fill(void *tensor, int key, int64_t num_elems, double scale)
{
    for (int64_t i = 0; i < num_elems; i++) {
        ((double *)tensor)[i] = scale * pattern(key, i);
    }
}

static const int32_t kept_tokens[4] = {1, 0, 1, 1};

static void fill_session(device_session *session)
{
    const device_case *c = session->c;
    const int64_t num_x = lg_shape_num_elems(&session->in_shapes[0]);
    fill(session->x[0], 0, num_x, c->kind == LG_LAYER_ACTIVATION ? INPUT_SCALE_ACTIVATION : 1.0);
    for (int p = 0; p < session->info->num_params; p++) {
        fill(session->param[p], KEY_PARAM + p, lg_shape_num_elems(&session->param_shapes[p]), 1.0);
    }
    for (int s = 0; s < session->info->num_states; s++) {
        double *values = session->state[s];
        for (int64_t i = 0; i < c->in_shapes[0].dims[0]; i++) {
            const double value = pattern(KEY_STATE + s, i);
            const double start = s == 0 ? 0.0 : 1.0;
            const double eval = s == 0 ? value : fabs(value) + 0.5;
            values[i] = c->mode == LG_GRAPH_TRAIN ? start : eval;
        }
    }
    if (c->kind == LG_LAYER_SOFTMAX_CROSS_ENTROPY) {
        int32_t *targets = session->x[1];
        const int64_t num_classes = c->in_shapes[0].dims[c->in_shapes[0].num_dims - 1];
        for (int64_t i = 0; i < num_x / num_classes; i++) {
            const bool is_ignored = c->has_ignored_targets && i % 4 == 3;
            targets[i] = is_ignored ? -100 : (int32_t)((i * 5 + 1) % num_classes);
        }
        session->step.loss_scale = LOSS_SCALE;
    } else if (c->num_inputs == 2) {
        memcpy(session->x[1], kept_tokens, sizeof kept_tokens);
    }
}

static int compare(const char *name, const char *what, const double *actual, const double *expected,
                   int64_t num_elems)
{
    for (int64_t i = 0; i < num_elems; i++) {
        if (!(fabs(actual[i] - expected[i]) <= TOLERANCE * fmax(1.0, fabs(expected[i])))) {
            print_error("%s: %s[%d] is %.17g, expected %.17g\n", name, what, (int)i, actual[i],
                        expected[i]);
            return 1;
        }
    }
    return 0;
}

/* Runs the layer; the answer is y, then running mean and variance; or loss sum, weight sum, gradient. */
static int check(const device_case *c, const double *answer, size_t num_answers)
{
    const struct lgi_device_ops *ops = NULL;
    const device_options options = {0};
    device_session session;
    int64_t at = 0;
    int num_wrong = 0;
    assert_int_equal(lgi_device_find(&ops, "reference-f64"), LG_OK);
    device_session_create(&session, c, ops, &options);
    fill_session(&session);
    device_session_forward(&session);
    if (session.y == NULL) {
        const double sums[2] = {session.loss.loss_sum, session.loss.weight_sum};
        num_wrong += compare(c->name, "loss and weight", sums, answer, 2);
        at = 2 + lg_shape_num_elems(&session.in_shapes[0]);
        num_wrong += compare(c->name, "gradient", session.dx[0], answer + 2, at - 2);
    } else {
        at = lg_shape_num_elems(&session.out_shape);
        num_wrong += compare(c->name, "y", session.y, answer, at);
    }
    if (at < (int64_t)num_answers) {
        const int64_t channels = c->in_shapes[0].dims[0];
        const int64_t space = lg_shape_num_elems(&c->in_shapes[0]) / channels;
        ops->fold_statistics(session.device, session.state[0], session.state[1], session.stash[0],
                             channels, c->num_samples * space, (double)c->attrs.momentum,
                             (double)c->attrs.epsilon);
        num_wrong += compare(c->name, "running mean", session.state[0], answer + at, channels);
        at += channels;
        num_wrong += compare(c->name, "running variance", session.state[1], answer + at, channels);
        at += channels;
    }
    assert_int_equal(at, num_answers);
    device_session_destroy(&session);
    return num_wrong;
}

#define CHECK(answer, ...) \
    do { \
        const device_case check_case = {.name = #answer, .num_inputs = 1, __VA_ARGS__}; \
        assert_int_equal(check(&check_case, answer, sizeof(answer) / sizeof(double)), 0); \
    } while (0)

static void convolutions_give_the_known_answers(void **state)
{
    (void)state;
    CHECK(answer_conv, .kind = LG_LAYER_CONV2D, .num_samples = 2, .in_shapes = {{3, {4, 5, 6}}},
          .attrs = {.num_outputs = 6,
                    .groups = 2,
                    .has_bias = true,
                    .window = {{3, 2}, {2, 1}, {1, 0}, {2, 1}, {1, 2}}});
    CHECK(answer_depthwise, .kind = LG_LAYER_CONV2D, .num_samples = 1,
          .in_shapes = {{3, {3, 4, 4}}},
          .attrs = {.num_outputs = 3,
                    .groups = 3,
                    .has_bias = true,
                    .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}});
    CHECK(answer_linear, .kind = LG_LAYER_LINEAR, .num_samples = 2, .in_shapes = {{2, {3, 5}}},
          .attrs = {.num_outputs = 4, .has_bias = true});
}

static void norms_give_the_known_answers(void **state)
{
    (void)state;
    CHECK(answer_batch_norm, .kind = LG_LAYER_BATCH_NORM, .num_samples = 2,
          .in_shapes = {{3, {3, 2, 3}}}, .attrs = {.epsilon = 0.125f, .momentum = 0.25f});
    CHECK(answer_batch_norm_relu, .kind = LG_LAYER_BATCH_NORM, .num_samples = 2,
          .in_shapes = {{3, {3, 2, 3}}},
          .attrs = {.epsilon = 0.125f, .momentum = 0.25f, .activation = LG_ACTIVATION_RELU});
    CHECK(answer_batch_norm_eval, .kind = LG_LAYER_BATCH_NORM, .num_samples = 2,
          .mode = LG_GRAPH_EVAL, .in_shapes = {{3, {3, 2, 3}}},
          .attrs = {.epsilon = 0.125f, .momentum = 0.25f});
    CHECK(answer_layer_norm, .kind = LG_LAYER_LAYER_NORM, .num_samples = 2,
          .in_shapes = {{2, {3, 5}}}, .attrs = {.epsilon = 0.125f});
}

static void activations_give_the_known_answers(void **state)
{
    (void)state;
#define CHECK_ACTIVATION(answer, function) \
    CHECK(answer, .kind = LG_LAYER_ACTIVATION, .num_samples = 1, .in_shapes = {{1, {11}}}, \
          .attrs = {.activation = function})
    CHECK_ACTIVATION(answer_relu, LG_ACTIVATION_RELU);
    CHECK_ACTIVATION(answer_relu6, LG_ACTIVATION_RELU6);
    CHECK_ACTIVATION(answer_hardswish, LG_ACTIVATION_HARD_SWISH);
    CHECK_ACTIVATION(answer_hardsigmoid, LG_ACTIVATION_HARD_SIGMOID);
    CHECK_ACTIVATION(answer_gelu, LG_ACTIVATION_GELU_ERF);
    CHECK_ACTIVATION(answer_gelu_tanh, LG_ACTIVATION_GELU_TANH);
}

static void pools_give_the_known_answers(void **state)
{
    (void)state;
    CHECK(answer_max_pool, .kind = LG_LAYER_MAX_POOL, .num_samples = 1,
          .in_shapes = {{3, {2, 5, 6}}},
          .attrs = {.window = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}}});
    CHECK(answer_avg_pool, .kind = LG_LAYER_AVG_POOL, .num_samples = 1,
          .in_shapes = {{3, {2, 5, 6}}},
          .attrs = {.window = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}}});
}

static void attention_gives_the_known_answers(void **state)
{
    (void)state;
    CHECK(answer_attention_full, .kind = LG_LAYER_ATTENTION, .num_samples = 1,
          .in_shapes = {{2, {4, 12}}}, .attrs = {.num_heads = 2});
    CHECK(answer_attention_causal, .kind = LG_LAYER_ATTENTION, .num_samples = 2,
          .in_shapes = {{2, {3, 12}}}, .attrs = {.num_heads = 2, .is_causal = true});
    const device_case masked = {.name = "answer_attention_masked",
                                .kind = LG_LAYER_ATTENTION,
                                .num_samples = 1,
                                .num_inputs = 2,
                                .in_shapes = {{2, {4, 12}}, {1, {4}}},
                                .in_dtypes = {LG_DTYPE_F32, LG_DTYPE_I32},
                                .attrs = {.num_heads = 2}};
    const size_t num_answers = sizeof answer_attention_masked / sizeof(double);
    assert_int_equal(check(&masked, answer_attention_masked, num_answers), 0);
}

static void losses_give_the_known_answers(void **state)
{
    (void)state;
    static const float weights[5] = {1.0f, 0.25f, 3.0f, 0.5f, 1.5f};
    const struct {
        const char *name;
        const double *answer;
        size_t num_answers;
        int64_t num_samples;
        float smoothing;
        const float *weights;
        bool has_ignored;
    } losses[] = {
#define LOSS(name) #name, name, sizeof(name) / sizeof(double)
        {LOSS(answer_loss), 4, 0.0f, NULL, false},
        {LOSS(answer_loss_ignored), 8, 0.0f, NULL, true},
        {LOSS(answer_loss_weighted), 4, 0.0f, weights, false},
        {LOSS(answer_loss_smoothed), 4, 0.125f, NULL, false},
        {LOSS(answer_loss_all), 8, 0.125f, weights, true},
    };
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        const device_case c = {.name = losses[i].name,
                               .kind = LG_LAYER_SOFTMAX_CROSS_ENTROPY,
                               .num_samples = losses[i].num_samples,
                               .num_inputs = 2,
                               .in_shapes = {{1, {5}}, {0, {0}}},
                               .in_dtypes = {LG_DTYPE_F32, LG_DTYPE_I32},
                               .has_ignored_targets = losses[i].has_ignored,
                               .attrs = {.label_smoothing = losses[i].smoothing,
                                         .ignore_index = -100,
                                         .class_weights = losses[i].weights}};
        assert_int_equal(check(&c, losses[i].answer, losses[i].num_answers), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_give_the_known_answers),
        cmocka_unit_test(norms_give_the_known_answers),
        cmocka_unit_test(activations_give_the_known_answers),
        cmocka_unit_test(pools_give_the_known_answers),
        cmocka_unit_test(attention_gives_the_known_answers),
        cmocka_unit_test(losses_give_the_known_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
