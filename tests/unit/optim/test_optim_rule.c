/* Slots, weight decay, clipping, and the checks of options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "leapgrad/graph.h"
#include "leapgrad/optim.h"

static void sgd_has_a_slot_only_with_momentum_and_adamw_two(void **state)
{
    (void)state;
    lg_optim_opts opts = lg_optim_opts_default();
    assert_int_equal(lg_optim_num_slots(&opts), 1);
    opts.momentum = 0.0;
    assert_int_equal(lg_optim_num_slots(&opts), 0);
    opts.rule = LG_OPTIM_ADAMW;
    assert_int_equal(lg_optim_num_slots(&opts), 2);
    assert_true(lg_optim_num_slots(&opts) <= LG_MAX_SLOTS);
}

static void decay_leaves_out_norms_and_biases_unless_asked(void **state)
{
    (void)state;
    lg_optim_opts opts = lg_optim_opts_default();
    opts.weight_decay = 0.01;
    const lg_param_info matrix = {.name = "fc.weight", .is_matrix = true};
    const lg_param_info bias = {.name = "fc.bias", .is_matrix = false};
    assert_true(lg_optim_weight_decay(&opts, &matrix) == 0.01);
    assert_true(lg_optim_weight_decay(&opts, &bias) == 0.0);
    opts.decay_norm_and_bias = true;
    assert_true(lg_optim_weight_decay(&opts, &bias) == 0.01);
}

static void trust_ratios_are_those_of_the_papers_and_1_without_a_norm(void **state)
{
    (void)state;
    lg_optim_opts opts = lg_optim_opts_default();
    opts.trust_coefficient = 0.5;
    opts.rule = LG_OPTIM_LARS;
    assert_true(lg_optim_trust_ratio(&opts, 0.125, 0.25, 4.0, 1.0) == 0.5 * 4.0 / (1.0 + 1.0));
    assert_true(lg_optim_trust_ratio(&opts, 0.125, 0.25, 0.0, 1.0) == 1.0);
    assert_true(lg_optim_trust_ratio(&opts, 0.125, 0.25, 4.0, 0.0) == 1.0);
    opts.rule = LG_OPTIM_LARC; /* never above the learning rate */
    assert_true(lg_optim_trust_ratio(&opts, 0.125, 0.25, 4.0, 1.0) == 1.0);
    assert_true(lg_optim_trust_ratio(&opts, 4.0, 0.25, 4.0, 1.0) == 0.25);
}

static void ratio_rules_leave_norms_and_biases_alone(void **state)
{
    (void)state;
    static const lg_optim_rule rules[] = {LG_OPTIM_LARS, LG_OPTIM_LARC, LG_OPTIM_LAMB};
    const lg_param_info matrix = {.name = "fc.weight", .is_matrix = true};
    const lg_param_info bias = {.name = "fc.bias", .is_matrix = false};
    lg_optim_opts opts = lg_optim_opts_default();
    opts.weight_decay = 0.01;
    for (int i = 0; i < 3; i++) {
        opts.rule = rules[i];
        assert_true(lg_optim_is_adapted(&opts, &matrix));
        assert_false(lg_optim_is_adapted(&opts, &bias));
        assert_true(lg_optim_weight_decay(&opts, &bias) == 0.0);
        assert_int_equal(lg_optim_num_slots(&opts), rules[i] == LG_OPTIM_LAMB ? 2 : 1);
    }
    opts.rule = LG_OPTIM_SGD;
    assert_false(lg_optim_is_adapted(&opts, &matrix));
}

static void rates_shared_by_the_network_cannot_be_skipped_by_layer(void **state)
{
    (void)state;
    lg_optim_opts opts = lg_optim_opts_default();
    opts.scaling = LG_LR_SCALING_LENA;
    opts.skip = LG_SKIP_LAYER;
    assert_int_equal(lg_optim_opts_check(&opts), LG_OK);
    opts.variant = LG_RATE_VARIANT_RELEASED_CODE;
    assert_int_equal(lg_optim_opts_check(&opts), LG_INVALID_ARG);
    opts.variant = LG_RATE_VARIANT_PAPER;
    opts.scaling = LG_LR_SCALING_ADASCALE;
    assert_int_equal(lg_optim_opts_check(&opts), LG_INVALID_ARG);
    opts.grouping = LG_GROUPING_TENSOR;
    assert_int_equal(lg_optim_opts_check(&opts), LG_OK);
}

static void clip_scales_only_gradients_longer_than_the_norm(void **state)
{
    (void)state;
    lg_optim_opts opts = lg_optim_opts_default();
    assert_true(lg_optim_clip_factor(&opts, 1e12) == 1.0);
    opts.clip_norm = 2.0;
    assert_true(lg_optim_clip_factor(&opts, 4.0) == 1.0);
    assert_true(lg_optim_clip_factor(&opts, 0.0) == 1.0);
    assert_true(lg_optim_clip_factor(&opts, 16.0) == 0.5);
    assert_true(isnan(lg_optim_clip_factor(&opts, INFINITY)));
    assert_true(isnan(lg_optim_clip_factor(&opts, NAN)));
}

static void step_numbers_carry_schedule_decay_and_count_from_1(void **state)
{
    (void)state;
    lg_optim_opts opts = lg_optim_opts_default();
    opts.rule = LG_OPTIM_ADAMW;
    opts.lr = 0.2;
    opts.weight_decay = 0.05;
    opts.warmup_steps = 10;
    opts.beta2 = 0.95;
    const lg_param_info bias = {.name = "bias", .is_matrix = false};
    const lg_optim_numbers numbers = lg_optim_step_numbers(&opts, &bias, 4, 100);
    assert_int_equal(numbers.rule, LG_OPTIM_ADAMW);
    assert_true(numbers.lr == 0.1);
    assert_true(numbers.weight_decay == 0.0);
    assert_true(numbers.beta2 == 0.95);
    assert_int_equal(numbers.update_number, 5);
}

static void assert_refused(const lg_optim_opts *opts, const char *name)
{
    assert_int_equal(lg_optim_opts_check(opts), LG_INVALID_ARG);
    if (strstr(lg_last_error(), name) == NULL) {
        fail_msg("'%s' does not name %s", lg_last_error(), name);
    }
}

static void options_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    const lg_optim_opts good = lg_optim_opts_default();
    assert_int_equal(lg_optim_opts_check(&good), LG_OK);
    lg_optim_opts opts = good;
    opts.lr = -1.0;
    assert_refused(&opts, "optim.lr");
    opts.lr = NAN;
    assert_refused(&opts, "optim.lr");
    opts = good;
    opts.momentum = 1.0;
    assert_refused(&opts, "optim.momentum");
    opts = good;
    opts.momentum = 0.0;
    opts.is_nesterov = true;
    assert_refused(&opts, "optim.nesterov");
    opts = good;
    opts.beta1 = 1.0;
    assert_refused(&opts, "optim.beta1");
    opts = good;
    opts.epsilon = 0.0;
    assert_refused(&opts, "optim.epsilon");
    opts = good;
    opts.warmup_steps = -1;
    assert_refused(&opts, "optim.warmup_steps");
    opts = good;
    opts.num_milestones = LG_MAX_MILESTONES + 1;
    assert_refused(&opts, "optim.num_milestones");
    opts = good;
    opts.num_milestones = 2;
    opts.milestones[0] = 0.5;
    opts.milestones[1] = 0.5;
    assert_refused(&opts, "optim.milestones");
    opts = good;
    opts.rule = LG_NUM_OPTIM_RULES;
    assert_refused(&opts, "optim.rule");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_has_a_slot_only_with_momentum_and_adamw_two),
        cmocka_unit_test(decay_leaves_out_norms_and_biases_unless_asked),
        cmocka_unit_test(clip_scales_only_gradients_longer_than_the_norm),
        cmocka_unit_test(trust_ratios_are_those_of_the_papers_and_1_without_a_norm),
        cmocka_unit_test(ratio_rules_leave_norms_and_biases_alone),
        cmocka_unit_test(rates_shared_by_the_network_cannot_be_skipped_by_layer),
        cmocka_unit_test(step_numbers_carry_schedule_decay_and_count_from_1),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
