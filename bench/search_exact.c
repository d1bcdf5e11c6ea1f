/*
 * How near `auto` comes to the exact optimum: random small cases, each solved by branch and bound (exact_plan.h).
 *
 * Usage: search_exact [NUM_CASES [FIRST_SEED [MAX_OPS]]]   (200, 1, 30)
 */
#include "exact_plan.h"

#define MAX_STATES 400000

typedef struct totals {
    int num;
    int num_proved;
    int num_optimal;
    double sum_frac;
    double worst_frac;
    uint64_t worst_seed;
    double sum_named_frac;
    double sum_bound_frac;
    long num_states;
} totals;

static double simulated_ns(const lgx_case *c, const lg_plan *plan)
{
    lg_timeline timeline;
    if (lg_plan_simulate(&timeline, plan, c->graph, &c->machine, c->costs) != LG_OK) {
        return -1.0;
    }
    const double ns = timeline.step_ns;
    lg_timeline_deinit(&timeline);
    return ns;
}

/* The fastest of all strategies with a name. */
static double best_named_ns(const lgx_case *c)
{
    const lg_strategy_opts opts = lg_strategy_opts_default();
    double best_ns = INFINITY;
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        for (int k = 0; lg_strategy_name(k) != NULL; k++) {
            char name[64];
            lg_plan *plan = NULL;
            const bool is_data = lg_strategy_role_of(k) == LG_STRATEGY_DATA;
            if (strcmp(lg_strategy_name(i), "auto") == 0 || (!is_data && k > 0)) {
                continue;
            }
            (void)snprintf(name, sizeof name, "%s%s%s", lg_strategy_name(i), is_data ? "+" : "",
                           is_data ? lg_strategy_name(k) : "");
            if (lg_plan_create(&plan, name, c->graph, &c->machine, c->costs, &opts) == LG_OK) {
                best_ns = fmin(best_ns, simulated_ns(c, plan));
            }
            lg_plan_destroy(plan);
        }
    }
    return best_ns;
}

static const char *run_case(totals *t, uint64_t seed, int max_ops)
{
    lgx_case c;
    lg_plan *plan = NULL;
    lg_plan *exact_plan = NULL;
    lg_bound bound;
    bool is_proved = false;
    const lg_strategy_opts opts = lg_strategy_opts_default();
    if (lgx_case_init(&c, seed, max_ops) != LG_OK ||
        lg_plan_create(&plan, "auto", c.graph, &c.machine, c.costs, &opts) != LG_OK ||
        lg_plan_bound(&bound, c.graph, &c.machine, c.costs) != LG_OK) {
        return lg_last_error();
    }
    static lgx_solver solver;
    const char *wrong = lgx_solver_init(&solver, &c, plan);
    if (wrong != NULL) {
        return wrong;
    }
    const double auto_ns = simulated_ns(&c, plan);
    if (fabs(lgx_step_ns(&solver, plan) - auto_ns) > 1e-6 * auto_ns) {
        return "the solver and the simulator do not agree";
    }
    const double exact_ns = lgx_solve(&solver, auto_ns, MAX_STATES, &is_proved);
    if (solver.has_best) {
        if (lgx_best_plan(&solver, &exact_plan) != LG_OK ||
            lg_plan_check(exact_plan, c.graph, 0) != LG_OK) {
            return lg_last_error();
        }
        if (fabs(simulated_ns(&c, exact_plan) - exact_ns) > 1e-6 * exact_ns) {
            return "the optimum does not take the time that was reckoned";
        }
    }
    const double frac = auto_ns / exact_ns - 1.0;
    t->num++;
    t->num_states += solver.num_states;
    if (is_proved) {
        t->num_proved++;
        t->num_optimal += solver.has_best ? 0 : 1;
        t->sum_frac += frac;
        t->sum_named_frac += best_named_ns(&c) / exact_ns - 1.0;
        t->sum_bound_frac += 1.0 - bound.step_ns / exact_ns;
        if (frac > t->worst_frac) {
            t->worst_frac = frac;
            t->worst_seed = seed;
        }
    } else {
        (void)printf("seed %llu: not solved within %d states\n", (unsigned long long)seed,
                     MAX_STATES);
    }
    lg_plan_destroy(exact_plan);
    lg_plan_destroy(plan);
    lgx_case_deinit(&c);
    return NULL;
}

int main(int argc, char **argv)
{
    const long num_cases = argc > 1 ? strtol(argv[1], NULL, 10) : 200;
    const uint64_t first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const int max_ops = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 30;
    totals t = {0};
    for (long i = 0; i < num_cases; i++) {
        const uint64_t seed = first_seed + (uint64_t)i;
        const char *const wrong = run_case(&t, seed, max_ops);
        if (wrong != NULL) {
            (void)fprintf(stderr, "search_exact: seed %llu: %s\n", (unsigned long long)seed, wrong);
            return 1;
        }
    }
    (void)printf("%d cases, %d solved exactly with %ld states\n", t.num, t.num_proved,
                 t.num_states);
    (void)printf("best named strategy: %.2f %% above the optimum on average\n",
                 100.0 * t.sum_named_frac / t.num_proved);
    (void)printf("lower bound: %.2f %% below the optimum on average\n",
                 100.0 * t.sum_bound_frac / t.num_proved);
    (void)printf("auto: %.3f %% above the optimum on average, worst %.2f %% (seed %llu), optimal "
                 "in %d cases\n",
                 100.0 * t.sum_frac / t.num_proved, 100.0 * t.worst_frac,
                 (unsigned long long)t.worst_seed, t.num_optimal);
    return 0;
}
