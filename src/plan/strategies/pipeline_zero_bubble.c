/*
 * Zero-bubble schedules: backward split into I and W, W in what would be bubbles. Source: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline
 * Parallelism" (ICLR 2024), sections 2 and 3; ZB-V: Qi et al., "Pipeline Parallelism with Controllable Memory" (NeurIPS 2024),
 * section 4.
 *
 * The papers' handcrafted schedules assume F = I = W. Here each scheme is what defines it: how many forwards a stage may be ahead
 * of its input gradients, and how many micro-batches a rank may hold (forward done, weight gradient not). Under these
 * limits a list scheduler with the order I, F, W makes a schedule for any times; W runs when nothing else is ready or when the
 * limit asks for it. It is tried with several patiences (how long a rank with a W at hand waits for something more urgent), and the
 * fastest result by its own run wins. The handcrafted ZB-H1 and ZB-V are candidates too, and for the first
 * two schemes 1f1b, so that they are never slower.
 *
 *   zb-h1  stage s ahead by P - s, P held: bubble (P - 1)(F + I - W), memory as the first stage of 1f1b
 *   zb-h2  stage s ahead by 2 (P - s) - 1, 2 P - 1 held: no bubble while F + I <= 2 W, about twice the memory
 *   zb-v   two stages per rank in a V, 2 P halves held: no bubble if F = I = W, memory as 1f1b
 */
#include "plan/strategies/pipeline.h"

#include <math.h>

#include "base/alloc.h"
#include "base/check.h"

/* How long a rank with a W at hand waits for an I or F that is known to come, as parts of W's time. */
static const double patience[] = {0.0, 0.25, 0.5, 1.0};

#define NUM_PATIENCES (sizeof patience / sizeof patience[0])
/* Times of schedules that differ by rounding only. */
#define SAME_TIME_FRAC 1e-9

/*
 * Keeps the faster of two schedules in `best`; takes over `other`. *best_ns < 0: none yet. A schedule that got stuck (a limit can
 * leave a rank of two stages without a move) does not count.
 */
static lg_status keep_faster(lgi_schedule *best, double *best_ns, lgi_schedule *other,
                             const lgi_units *units)
{
    double step_ns = 0.0;
    if (!lgi_schedule_is_complete(other, units)) {
        lgi_schedule_deinit(other);
        return LG_OK;
    }
    lg_status status = lgi_schedule_run(other, units, NULL, NULL, &step_ns);
    if (status == LG_OK && (*best_ns < 0.0 || step_ns < *best_ns * (1.0 - SAME_TIME_FRAC))) {
        lgi_schedule_deinit(best);
        *best = *other;
        *other = (lgi_schedule){0};
        *best_ns = step_ns;
    }
    lgi_schedule_deinit(other);
    return status;
}

/* The best schedule under the limits; `best` may have one already. */
static lg_status try_policies(lgi_schedule *best, double *best_ns, const lgi_units *units,
                              const int *max_ahead, const int *max_held)
{
    const bool has_choice = units->num_stages > units->num_ranks; /* among stages of one rank */
    for (size_t i = 0; i < NUM_PATIENCES * (has_choice ? 4 : 1); i++) {
        lgi_schedule other = {0};
        const lgi_policy policy = {.max_ahead = max_ahead,
                                   .max_held = max_held,
                                   .takes_early_forward = i / NUM_PATIENCES % 2 == 1,
                                   .takes_early_weight = i / NUM_PATIENCES / 2 == 1,
                                   .wait_frac = patience[i % NUM_PATIENCES]};
        LG_TRY(lgi_schedule_greedily(&other, units, &policy));
        LG_TRY(keep_faster(best, best_ns, &other, units));
    }
    return LG_OK;
}

/* ZB-H1 by hand: 1f1b with I in the place of B, and W of stage s lagging by s micro-batches. */
static void add_h1_rank(lgi_schedule *out, const lgi_units *units, int s)
{
    const int num = units->num_micro_batches;
    const int ahead = units->num_stages - 1 - s < num ? units->num_stages - 1 - s : num;
    for (int m = 0; m < num + ahead; m++) {
        lgi_schedule_add(out, units, s, m, LGI_UNIT_F);
        lgi_schedule_add(out, units, s, m - ahead, LGI_UNIT_I);
        lgi_schedule_add(out, units, s, m - ahead - s, LGI_UNIT_W);
    }
    for (int m = num - s > 0 ? num - s : 0; m < num; m++) {
        lgi_schedule_add(out, units, s, m, LGI_UNIT_W);
    }
}

static lg_status schedule_h(lgi_schedule *out, const lgi_units *units, int depth)
{
    lg_status status = LG_OK;
    double best_ns = -1.0;
    const int num_ranks = units->num_ranks;
    lgi_schedule by_hand = {0};
    int *max_ahead = NULL;
    int *max_held = NULL;
    LG_TRY_GOTO(lgi_calloc(&max_ahead, (size_t)units->num_stages, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&max_held, (size_t)num_ranks, sizeof(int)));
    for (int s = 0; s < num_ranks; s++) {
        max_ahead[s] = depth * (num_ranks - s) - (depth - 1);
        max_held[s] = depth * num_ranks - (depth - 1);
    }
    if (depth == 1) {
        LG_TRY_GOTO(lgi_schedule_init(&by_hand, units));
        for (int s = 0; s < num_ranks; s++) {
            add_h1_rank(&by_hand, units, s);
        }
        LG_TRY_GOTO(keep_faster(out, &best_ns, &by_hand, units));
    }
    LG_TRY_GOTO(lgi_schedule_init(&by_hand, units));
    LG_TRY_GOTO(lgi_pipeline_1f1b(&by_hand, units));
    LG_TRY_GOTO(keep_faster(out, &best_ns, &by_hand, units));
    LG_TRY_GOTO(try_policies(out, &best_ns, units, max_ahead, max_held));
out:
    lgi_schedule_deinit(&by_hand);
    lgi_free(max_ahead);
    lgi_free(max_held);
    return status;
}

lg_status lgi_pipeline_zb_h1(lgi_schedule *out, const lgi_units *units)
{
    LG_TRY(lgi_need_one_stage(units, "zb-h1"));
    return schedule_h(out, units, 1);
}

lg_status lgi_pipeline_zb_h2(lgi_schedule *out, const lgi_units *units)
{
    LG_TRY(lgi_need_one_stage(units, "zb-h2"));
    return schedule_h(out, units, 2);
}

/* --- V ---------------------------------------------------------------------------------------------------------------------- */

/* What one rank of the V has done: f, i, w by half (0: way down, 1: way up). */
typedef struct v_rank {
    lgi_schedule *out;
    const lgi_units *units;
    int stages[2];
    int num[2][LGI_NUM_UNIT_KINDS];
} v_rank;

static void step(v_rank *r, int half, lgi_unit_kind kind)
{
    lgi_schedule_add(r->out, r->units, r->stages[half], r->num[half][kind]++, kind);
}

/*
 * Rank p of P: 2 (P - p) - 1 forwards down, p pairs of forwards up and down, P - p times a forward up with its backward;
 * then in turn down and up, each a forward and a backward; then input gradients first, and W at the end. For fewer than 2 P - 1
 * micro-batches it is the schedule for that many without those that do not exist.
 */
static void add_v_rank(lgi_schedule *out, const lgi_units *units, int p)
{
    const int num_ranks = units->num_ranks;
    const int num =
        units->num_micro_batches > 2 * num_ranks - 1 ? units->num_micro_batches : 2 * num_ranks - 1;
    v_rank r = {.out = out, .units = units, .stages = {p, 2 * num_ranks - 1 - p}};
    for (int i = 0; i < 2 * (num_ranks - p) - 1; i++) {
        step(&r, 0, LGI_UNIT_F);
    }
    for (int i = 0; i < p; i++) {
        step(&r, 1, LGI_UNIT_F);
        step(&r, 0, LGI_UNIT_F);
    }
    for (int i = 0; i < num_ranks - p; i++) {
        step(&r, 1, LGI_UNIT_F);
        step(&r, 1, LGI_UNIT_I);
        step(&r, 1, LGI_UNIT_W);
    }
    while (r.num[1][LGI_UNIT_F] < num) {
        if (r.num[0][LGI_UNIT_F] < num) {
            step(&r, 0, LGI_UNIT_F);
        }
        step(&r, 0, LGI_UNIT_I);
        step(&r, 0, LGI_UNIT_W);
        step(&r, 1, LGI_UNIT_F);
        step(&r, 1, LGI_UNIT_I);
        step(&r, 1, LGI_UNIT_W);
    }
    for (int i = 0; i < p; i++) {
        step(&r, 0, LGI_UNIT_I);
        step(&r, 1, LGI_UNIT_I);
    }
    for (int i = 0; i < num_ranks - p; i++) {
        step(&r, 0, LGI_UNIT_I);
        step(&r, 0, LGI_UNIT_W);
    }
    while (r.num[1][LGI_UNIT_W] < num) {
        step(&r, 1, LGI_UNIT_W);
    }
    while (r.num[0][LGI_UNIT_W] < num) {
        step(&r, 0, LGI_UNIT_W);
    }
}

lg_status lgi_pipeline_zb_v(lgi_schedule *out, const lgi_units *units)
{
    lg_status status = LG_OK;
    double best_ns = -1.0;
    lgi_schedule by_hand = {0};
    int *max_ahead = NULL;
    int *max_held = NULL;
    LG_TRY(lgi_need_v(units, "zb-v"));
    LG_TRY_GOTO(lgi_schedule_init(&by_hand, units));
    for (int p = 0; p < units->num_ranks; p++) {
        add_v_rank(&by_hand, units, p);
    }
    LG_TRY_GOTO(keep_faster(out, &best_ns, &by_hand, units));
    LG_TRY_GOTO(lgi_calloc(&max_ahead, (size_t)units->num_stages, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&max_held, (size_t)units->num_ranks, sizeof(int)));
    for (int s = 0; s < units->num_stages; s++) { /* the way down leaves room for the way up */
        max_ahead[s] = units->num_stages - 1 - s > 0 ? units->num_stages - 1 - s : 1;
    }
    for (int p = 0; p < units->num_ranks; p++) {
        max_held[p] = 2 * units->num_ranks;
    }
    LG_TRY_GOTO(try_policies(out, &best_ns, units, max_ahead, max_held));
    LG_TRY_GOTO(try_policies(out, &best_ns, units, NULL, max_held));
out:
    lgi_schedule_deinit(&by_hand);
    lgi_free(max_ahead);
    lgi_free(max_held);
    return status;
}
