/*
 * Gradient fast-forwarding and modulo allocation. Source: Oh, Lee, Kim, Seo, "Out-Of-Order BackProp: An Effective Scheduling Technique
 * for Deep Learning" (EuroSys 2022), section 5, in the form of the authors' published artifact (its rules for control edges),
 * as rules on units under the list scheduler with the order I, F, W.
 *
 * The gradient of a stage leaves as soon as it exists; weight gradients fill the time in which the rank would wait. With V stages
 * on P ranks, cap = P if micro-batches in flight are capped ("push", when M > P) else M, v counting stages, m micro-batches:
 *
 *   1. F in order of micro-batches (of every stage: the order of units here)
 *   2. (gpipe only)
 *   3. F[cap-1][V-2] before I[0][V-2]
 *   4. V = P: I[m][v] before W[m][v], and on the last stage I[M-1] before every W
 *   5. V > P: the same, but on the last rank W lags one group: I[m][v] before W[m][v+P]
 *   6. W[m][w] before I[m+1][v] for v < V-1, w = v, on the last rank v+P: W fills the wait, but is not put off further
 *   7. V > P: W[M-1][v+P] (last rank: v+2P) before I[0][v]; I[M-1][V-1] before I[0][V-P-1]
 *   8. push: W[m+v][v] before F[P+m][v] for v < V-1
 *
 * Rules 7 and 8 contradict each other (F[P+m][v] would wait for W[m+v][v], that for the later group's backward, and that for
 * F[P+m][v]), so push is for fast-forward only, as in the artifact's documented styles.
 *
 * Memory: M micro-batches on every rank, with push P on all but the last.
 */
#include "plan/strategies/pipeline.h"

#include "base/alloc.h"
#include "base/check.h"

typedef struct rule_maker {
    lgi_rules rules;
    const lgi_units *units;
} rule_maker;

static lg_status add(rule_maker *r, lgi_unit_kind from_kind, int from_m, int from_v,
                     lgi_unit_kind to_kind, int to_m, int to_v)
{
    return lgi_rules_add(&r->rules, r->units, (lgi_unit){from_v, from_m, from_kind},
                         (lgi_unit){to_v, to_m, to_kind});
}

/* Of a stage on the last rank, weight gradients lag by a group: those of the stage one round later count in its place. */
static int lagging_stage(const lgi_units *units, int v)
{
    const bool is_on_last_rank = (v + 1) % units->num_ranks == 0;
    return units->num_stages > units->num_ranks && is_on_last_rank ? v + units->num_ranks : v;
}

static lg_status add_weight_rules(rule_maker *r)
{
    const int num_stages = r->units->num_stages;
    const int num = r->units->num_micro_batches;
    for (int m = 0; m < num; m++) {
        for (int v = 0; v < num_stages - 1; v++) {
            const int w = lagging_stage(r->units, v);
            LG_TRY(add(r, LGI_UNIT_I, m, v, LGI_UNIT_W, m, w));
            if (m < num - 1) {
                LG_TRY(add(r, LGI_UNIT_W, m, w, LGI_UNIT_I, m + 1, v));
            }
        }
        LG_TRY(add(r, LGI_UNIT_I, num - 1, num_stages - 1, LGI_UNIT_W, m, num_stages - 1));
    }
    return LG_OK;
}

static lg_status add_group_rules(rule_maker *r)
{
    const int num_stages = r->units->num_stages;
    const int num_ranks = r->units->num_ranks;
    const int last = r->units->num_micro_batches - 1;
    for (int v = 0; v < num_stages - num_ranks - 1; v++) {
        LG_TRY(add(r, LGI_UNIT_W, last, lagging_stage(r->units, v) + num_ranks, LGI_UNIT_I, 0, v));
    }
    if (num_stages > num_ranks) {
        LG_TRY(add(r, LGI_UNIT_I, last, num_stages - 1, LGI_UNIT_I, 0, num_stages - num_ranks - 1));
    }
    return LG_OK;
}

static lg_status add_push_rules(rule_maker *r)
{
    const int num_ranks = r->units->num_ranks;
    for (int m = 0; m < r->units->num_micro_batches - num_ranks; m++) {
        for (int v = 0; v < r->units->num_stages - 1; v++) {
            LG_TRY(add(r, LGI_UNIT_W, m + v, v, LGI_UNIT_F, num_ranks + m, v));
        }
    }
    return LG_OK;
}

static lg_status schedule(lgi_schedule *out, const lgi_units *units)
{
    lg_status status = LG_OK;
    rule_maker r = {.units = units};
    const bool is_capped =
        units->input->opts.has_push && units->num_micro_batches > units->num_ranks;
    const int cap = is_capped ? units->num_ranks : units->num_micro_batches;
    LG_TRY_GOTO(
        add(&r, LGI_UNIT_F, cap - 1, units->num_stages - 2, LGI_UNIT_I, 0, units->num_stages - 2));
    LG_TRY_GOTO(add_weight_rules(&r));
    LG_TRY_GOTO(add_group_rules(&r));
    if (is_capped) {
        LG_TRY_GOTO(add_push_rules(&r));
    }
    const lgi_policy policy = {.rules = r.rules.items, .num_rules = (int)r.rules.num};
    lgi_schedule_deinit(out);
    LG_TRY_GOTO(lgi_schedule_greedily(out, units, &policy));
out:
    lgi_free(r.rules.items);
    return status;
}

lg_status lgi_pipeline_fast_forward(lgi_schedule *out, const lgi_units *units)
{
    LG_TRY(lgi_need_one_stage(units, "fast-forward"));
    return schedule(out, units);
}

lg_status lgi_pipeline_modulo(lgi_schedule *out, const lgi_units *units)
{
    LG_TRY(lgi_need_loop(units, "modulo"));
    if (units->input->opts.has_push && units->num_stages > units->num_ranks &&
        units->num_micro_batches > units->num_ranks) {
        LG_FAIL(LG_INVALID_ARG,
                "modulo: it cannot cap the micro-batches in flight (push): a later stage's weight "
                "gradients would have to wait for forwards that wait for an earlier one's");
    }
    return schedule(out, units);
}
