/*
 * The long run of the property tests of plans over ranks: random models, ranks, stages, micro-batches, orders, lags and
 * machines. Every legal plan, and every one that a strategy makes, must be accepted and run on paper without breaking an edge,
 * and every planted fault must be found and named. Stops at the first case that does not hold and names its seed.
 *
 * Usage: plan_fuzz [NUM_CASES [FIRST_SEED]]   (100000, 1)
 */
#include "random_cluster.h"

#define PLANS_PER_GRAPH 5

int main(int argc, char **argv)
{
    const long num_cases = argc > 1 ? strtol(argv[1], NULL, 10) : 100000;
    const uint64_t first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    long num_plans = 0;
    long num_graphs = 0;
    long num_made = 0;
    long num_refused = 0;
    long num_faults[LGB_NUM_FAULTS] = {0};
    char why[LGB_TEXT_BYTES];
    const char *wrong = NULL;
    uint64_t seed = first_seed;
    for (; num_plans < num_cases && wrong == NULL; seed++) {
        lgb_cluster cluster;
        if (lgb_cluster_init(&cluster, seed, seed % 2 == 0) != LG_OK) {
            wrong = lg_last_error();
            break;
        }
        num_graphs++;
        for (uint64_t i = 0; i < PLANS_PER_GRAPH && wrong == NULL; i++) {
            lg_plan *plan = NULL;
            const uint64_t plan_seed = seed * PLANS_PER_GRAPH + i;
            if (lgb_random_plan(&plan, &cluster, plan_seed) != LG_OK) {
                wrong = lg_last_error();
                break;
            }
            num_plans++;
            const lgb_fault fault = (lgb_fault)(plan_seed % LGB_NUM_FAULTS);
            bool is_planted = false;
            wrong = lgb_check_plan(&cluster, plan, why);
            wrong = wrong == NULL
                        ? lgb_check_fault(&cluster, plan, fault, plan_seed, &is_planted, why)
                        : wrong;
            num_faults[fault] += is_planted ? 1 : 0;
            lg_plan_destroy(plan);
        }
        for (uint64_t i = 0; i < PLANS_PER_GRAPH && wrong == NULL; i++) {
            bool is_made = false;
            wrong = lgb_check_strategy(&cluster, seed * PLANS_PER_GRAPH + i, &is_made, why);
            num_made += is_made ? 1 : 0;
            num_refused += is_made ? 0 : 1;
        }
        lgb_cluster_deinit(&cluster);
    }
    if (wrong != NULL) {
        (void)fprintf(stderr, "plan_fuzz: seed %llu: %s\n", (unsigned long long)seed - 1, wrong);
        return 1;
    }
    long sum = 0;
    for (int i = 0; i < LGB_NUM_FAULTS; i++) {
        (void)printf("fault '%s': planted and found %ld times\n", lgb_fault_text((lgb_fault)i),
                     num_faults[i]);
        sum += num_faults[i];
    }
    (void)printf("strategies: %ld plans accepted and simulated, %ld times they said why not\n",
                 num_made, num_refused);
    (void)printf("%ld plans of %ld graphs accepted and simulated, %ld faults found and named\n",
                 num_plans, num_graphs, sum);
    return 0;
}
