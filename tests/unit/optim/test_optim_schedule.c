/* Learning rates against their closed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "leapgrad/optim.h"

/* A handful of f64 roundings. */
#define TOLERANCE 1e-14

static void assert_near(double got, double expected)
{
    if (!(fabs(got - expected) <= TOLERANCE * fmax(1.0, fabs(expected)))) {
        fail_msg("got %.17g, expected %.17g", got, expected);
    }
}

static lg_optim_opts make_opts(lg_schedule schedule, int64_t warmup_steps)
{
    lg_optim_opts opts = lg_optim_opts_default();
    opts.lr = 0.4;
    opts.schedule = schedule;
    opts.warmup_steps = warmup_steps;
    return opts;
}

static void constant_stays(void **state)
{
    (void)state;
    const lg_optim_opts opts = make_opts(LG_SCHEDULE_CONSTANT, 0);
    assert_near(lg_optim_lr(&opts, 0, 10), 0.4);
    assert_near(lg_optim_lr(&opts, 9, 10), 0.4);
}

static void warmup_rises_to_the_full_rate_in_equal_steps(void **state)
{
    (void)state;
    for (int schedule = 0; schedule < LG_NUM_SCHEDULES; schedule++) {
        const lg_optim_opts opts = make_opts((lg_schedule)schedule, 4);
        assert_near(lg_optim_lr(&opts, 0, 100), 0.1);
        assert_near(lg_optim_lr(&opts, 1, 100), 0.2);
        assert_near(lg_optim_lr(&opts, 3, 100), 0.4);
        assert_near(lg_optim_lr(&opts, 4, 100), 0.4); /* the schedule starts from the top */
    }
}

static void linear_is_a_straight_line_to_the_minimum(void **state)
{
    (void)state;
    lg_optim_opts opts = make_opts(LG_SCHEDULE_LINEAR, 10);
    opts.min_lr_frac = 0.25;
    assert_near(lg_optim_lr(&opts, 60, 110), 0.4 * 0.625);
    assert_near(lg_optim_lr(&opts, 110, 110), 0.1);
    assert_near(lg_optim_lr(&opts, 1000, 110), 0.1);
    for (int64_t t = 10; t < 109; t++) { /* equal differences */
        assert_near(lg_optim_lr(&opts, t, 110) - lg_optim_lr(&opts, t + 1, 110), 0.4 * 0.75 / 100);
    }
}

static void cosine_passes_its_known_points(void **state)
{
    (void)state;
    lg_optim_opts opts = make_opts(LG_SCHEDULE_COSINE, 0);
    assert_near(lg_optim_lr(&opts, 0, 12), 0.4);
    assert_near(lg_optim_lr(&opts, 4, 12), 0.4 * 0.75); /* cos(pi/3) = 1/2 */
    assert_near(lg_optim_lr(&opts, 6, 12), 0.2);
    assert_near(lg_optim_lr(&opts, 8, 12), 0.4 * 0.25);
    assert_near(lg_optim_lr(&opts, 12, 12), 0.0);
    opts.min_lr_frac = 0.1;
    assert_near(lg_optim_lr(&opts, 6, 12), 0.4 * 0.55);
    assert_near(lg_optim_lr(&opts, 12, 12), 0.04);
}

static void step_falls_at_each_milestone(void **state)
{
    (void)state;
    lg_optim_opts opts = make_opts(LG_SCHEDULE_STEP, 0);
    opts.num_milestones = 2;
    opts.milestones[0] = 0.5;
    opts.milestones[1] = 0.75;
    opts.step_factor = 0.1;
    assert_near(lg_optim_lr(&opts, 49, 100), 0.4);
    assert_near(lg_optim_lr(&opts, 50, 100), 0.04);
    assert_near(lg_optim_lr(&opts, 74, 100), 0.04);
    assert_near(lg_optim_lr(&opts, 75, 100), 0.004);
}

static void warmup_longer_than_training_never_leaves_it(void **state)
{
    (void)state;
    const lg_optim_opts opts = make_opts(LG_SCHEDULE_COSINE, 100);
    assert_near(lg_optim_lr(&opts, 9, 10), 0.04);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_stays),
        cmocka_unit_test(warmup_rises_to_the_full_rate_in_equal_steps),
        cmocka_unit_test(linear_is_a_straight_line_to_the_minimum),
        cmocka_unit_test(cosine_passes_its_known_points),
        cmocka_unit_test(step_falls_at_each_milestone),
        cmocka_unit_test(warmup_longer_than_training_never_leaves_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
