/* What layers promise beyond their formulas, for every backend of this build: dropout, padding, wrong ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "unit/device/device_harness.h"

static const lg_shape map_shape = {3, {16, 6, 7}};

static device_case dropout_case(int64_t first_sample, int64_t num_samples, float drop_prob)
{
    const device_case c = {.name =
                               "dropout", /* one name: the same data for each part of the batch */
                           .kind = LG_LAYER_DROPOUT,
                           .num_samples = num_samples,
                           .first_sample = first_sample,
                           .num_inputs = 1,
                           .in_shapes = {map_shape},
                           .attrs = {.drop_prob = drop_prob}};
    return c;
}

static void dropout_masks_do_not_depend_on_the_micro_batches(void **state)
{
    (void)state;
    const int64_t sample_elems = lg_shape_num_elems(&map_shape);
    const device_case whole = dropout_case(0, 5, 0.5f);
    const device_case parts[2] = {dropout_case(0, 3, 0.5f), dropout_case(3, 2, 0.5f)};
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const device_options options = {.has_conv_layouts = true};
        device_result expected;
        device_case_run(&expected, &whole, *ops, &options);
        for (int i = 0; i < 2; i++) {
            device_result part;
            device_case_run(&part, &parts[i], *ops, &options);
            assert_memory_equal(part.y, expected.y + parts[i].first_sample * sample_elems,
                                (size_t)part.num_y * sizeof(float));
            device_result_destroy(&part);
        }
        device_result_destroy(&expected);
    }
}

static void dropout_masks_are_those_of_the_oracle(void **state)
{
    (void)state;
    const struct lgi_device_ops *oracle = NULL;
    const device_case c = dropout_case(1, 4, 0.3f);
    const device_options options = {0};
    device_result expected;
    assert_int_equal(lgi_device_find(&oracle, "reference-f64"), LG_OK);
    device_case_run(&expected, &c, oracle, &options);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        device_result actual;
        device_case_run(&actual, &c, *ops, &options);
        for (int64_t i = 0; i < actual.num_y; i++) {
            assert_true((actual.y[i] == 0.0f) == (expected.y[i] == 0.0f));
            assert_true((actual.dx[0][i] == 0.0f) == (expected.y[i] == 0.0f));
        }
        device_result_destroy(&actual);
    }
    device_result_destroy(&expected);
}

static void dropout_drops_the_share_that_was_asked_for(void **state)
{
    (void)state;
    const float drop_prob = 0.3f;
    const device_case c = dropout_case(0, 8, drop_prob);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const device_options options = {0};
        device_result result;
        int num_dropped = 0;
        device_case_run(&result, &c, *ops, &options);
        for (int64_t i = 0; i < result.num_y; i++) {
            num_dropped += result.y[i] == 0.0f;
        }
        const double p = (double)drop_prob;
        const double deviation = sqrt(p * (1.0 - p) / (double)result.num_y);
        assert_true(fabs((double)num_dropped / (double)result.num_y - p) <= 5.0 * deviation);
        device_result_destroy(&result);
    }
}

static void a_step_number_changes_the_dropout_mask(void **state)
{
    (void)state;
    const device_case c = dropout_case(0, 2, 0.5f);
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const device_options options = {0};
        device_session session;
        float results[2][2 * 16 * 6 * 7];
        device_session_create(&session, &c, *ops, &options);
        for (int i = 0; i < 2; i++) {
            session.step.number = 10 + i;
            device_session_forward(&session);
            assert_int_equal((*ops)->read(session.device, &session.out_shape, session.facts.out.id,
                                          session.y, results[i]),
                             LG_OK);
        }
        assert_memory_not_equal(results[0], results[1], sizeof results[0]);
        device_session_destroy(&session);
    }
}

static void a_sample_of_padding_only_gives_zeros_and_passes_no_gradient(void **state)
{
    (void)state;
    const device_case c = {.name = "padding only",
                           .kind = LG_LAYER_ATTENTION,
                           .num_samples = 2,
                           .num_inputs = 2,
                           .in_shapes = {{2, {5, 24}}, {1, {5}}},
                           .is_sample0_all_padding = true,
                           .attrs = {.num_heads = 2}};
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const device_options options = {0};
        device_result result;
        device_case_run(&result, &c, *ops, &options);
        for (int64_t i = 0; i < result.num_y / 2; i++) {
            assert_true(result.y[i] == 0.0f);
        }
        for (int64_t i = 0; i < result.num_dx[0] / 2; i++) {
            assert_true(result.dx[0][i] == 0.0f);
        }
        assert_true(result.y[result.num_y - 1] != 0.0f);
        device_result_destroy(&result);
    }
}

static void keys_of_padding_get_no_gradient(void **state)
{
    (void)state;
    const device_case c = {.name = "padded keys",
                           .kind = LG_LAYER_ATTENTION,
                           .num_samples = 3,
                           .num_inputs = 2,
                           .in_shapes = {{2, {6, 24}}, {1, {6}}},
                           .in_dtypes = {LG_DTYPE_F32, LG_DTYPE_I32},
                           .attrs = {.num_heads = 2}};
    for (const struct lgi_device_ops *const *ops = lgi_device_registry(); *ops != NULL; ops++) {
        const device_options options = {0};
        device_session session;
        float dx[3 * 6 * 24];
        int num_padded = 0;
        device_session_create(&session, &c, *ops, &options);
        device_session_forward(&session);
        device_session_backward(&session);
        assert_int_equal((*ops)->read(session.device, &session.in_shapes[0], session.facts.in[0].id,
                                      session.dx[0], dx),
                         LG_OK);
        const int32_t *mask = session.data.inputs[1];
        for (int token = 0; token < 3 * 6; token++) {
            for (int i = 8; i < 24 && mask[token] == 0; i++) { /* k and v */
                assert_true(dx[token * 24 + i] == 0.0f);
            }
            num_padded += mask[token] == 0;
        }
        assert_true(num_padded > 0);
        device_session_destroy(&session);
    }
}

/* Ids come from files; the reference refuses what is out of range before it touches memory. */
static void the_reference_names_an_id_that_is_out_of_range(void **state)
{
    (void)state;
    static const char *const names[] = {"reference", "reference-f64"};
    const device_case embedding = {.name = "ids",
                                   .kind = LG_LAYER_TOKEN_EMBEDDING,
                                   .num_samples = 2,
                                   .num_inputs = 1,
                                   .in_shapes = {{1, {4}}},
                                   .in_dtypes = {LG_DTYPE_I32},
                                   .attrs = {.num_embeddings = 9, .num_outputs = 3}};
    const device_case loss = {.name = "targets",
                              .kind = LG_LAYER_SOFTMAX_CROSS_ENTROPY,
                              .num_samples = 2,
                              .num_inputs = 2,
                              .in_shapes = {{2, {4, 9}}, {1, {4}}},
                              .in_dtypes = {LG_DTYPE_F32, LG_DTYPE_I32},
                              .attrs = {.ignore_index = -100}};
    static const int32_t wrong[] = {9, -1};
    for (int i = 0; i < 4; i++) {
        const struct lgi_device_ops *ops = NULL;
        const device_options options = {0};
        device_session session;
        assert_int_equal(lgi_device_find(&ops, names[i / 2]), LG_OK);
        const bool is_loss = i % 2 != 0;
        device_session_create(&session, is_loss ? &loss : &embedding, ops, &options);
        ((int32_t *)session.x[is_loss ? 1 : 0])[6] = wrong[i / 2];
        const void *const x[2] = {session.x[0], session.x[1]};
        const lgi_layer_io io = {.x = x,
                                 .y = session.y,
                                 .param = {session.param[0]},
                                 .loss = &session.loss,
                                 .step = &session.step};
        assert_int_equal(ops->run(session.layer, LGI_PHASE_FORWARD, 0, &io), LG_INVALID_ARG);
        assert_non_null(strstr(lg_last_error(), "position 2 of sample 1 is not in [0, 9)"));
        device_session_destroy(&session);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_masks_do_not_depend_on_the_micro_batches),
        cmocka_unit_test(dropout_masks_are_those_of_the_oracle),
        cmocka_unit_test(dropout_drops_the_share_that_was_asked_for),
        cmocka_unit_test(a_step_number_changes_the_dropout_mask),
        cmocka_unit_test(a_sample_of_padding_only_gives_zeros_and_passes_no_gradient),
        cmocka_unit_test(keys_of_padding_get_no_gradient),
        cmocka_unit_test(the_reference_names_an_id_that_is_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
