/*
 * dualpipe-v: two stages per rank in a V, forwards and backwards of different micro-batches in turn, weight gradients apart only at the
 * ends. Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 3.2.1, cut in half as in Qi et al., "DualPipe
 * could be better without the Dual" (2025). There a forward and a backward overlap to hide all-to-all messages; on one compute lane
 * they run one after the other, F before B.
 *
 * Needs 2 P micro-batches; with fewer it is the schedule for 2 P without those that do not exist.
 * Memory: P + 1 micro-batches over the two stages.
 */
#include "plan/strategies/pipeline.h"

#include "base/alloc.h"
#include "base/check.h"

typedef struct dual_rank {
    lgi_schedule *out;
    const lgi_units *units;
    int stages[2];
    int num_forward[2];
    int num_backward[2];
    lgi_unit *late; /* weight gradients put off, first in, first out */
    int num_late;
    int num_taken;
} dual_rank;

static void forward(dual_rank *r, int half)
{
    lgi_schedule_add(r->out, r->units, r->stages[half], r->num_forward[half]++, LGI_UNIT_F);
}

static void backward(dual_rank *r, int half, bool is_split)
{
    const int m = r->num_backward[half]++;
    lgi_schedule_add(r->out, r->units, r->stages[half], m, is_split ? LGI_UNIT_I : LGI_UNIT_B);
    if (is_split) {
        r->late[r->num_late++] = (lgi_unit){r->stages[half], m, LGI_UNIT_W};
    }
}

static void weight(dual_rank *r)
{
    if (r->num_taken < r->num_late) {
        const lgi_unit *const unit = &r->late[r->num_taken++];
        lgi_schedule_add(r->out, r->units, unit->stage, unit->micro_batch, LGI_UNIT_W);
    }
}

/* The eight parts of the report's figure. */
static void add_rank(dual_rank *r, int p, int num_ranks, int num)
{
    for (int i = 0; i < 2 * (num_ranks - p - 1); i++) {
        forward(r, 0);
    }
    for (int i = 0; i < p + 1; i++) {
        forward(r, 0);
        forward(r, 1);
    }
    for (int i = 0; i < num_ranks - p - 1; i++) {
        backward(r, 1, true);
        weight(r);
        forward(r, 1);
    }
    for (int i = 0; i < num - 2 * num_ranks + p + 1; i++) {
        forward(r, 0);
        backward(r, 1, false);
        forward(r, 1);
        backward(r, 0, false);
    }
    for (int i = 0; i < num_ranks - p - 1; i++) {
        backward(r, 1, false);
        forward(r, 1);
        backward(r, 0, false);
    }
    for (int i = 0; i < p + 1; i++) { /* the second half of these splits */
        const int num_before = 2 * i;
        backward(r, 1, num_before >= p + 1);
        backward(r, 0, num_before + 1 >= p + 1);
    }
    for (int i = 0; i < num_ranks - p - 1; i++) {
        weight(r);
        backward(r, 0, true);
    }
    while (r->num_taken < r->num_late) {
        weight(r);
    }
}

lg_status lgi_pipeline_dualpipe_v(lgi_schedule *out, const lgi_units *units)
{
    lg_status status = LG_OK;
    const int num_ranks = units->num_ranks;
    const int num =
        units->num_micro_batches > 2 * num_ranks ? units->num_micro_batches : 2 * num_ranks;
    lgi_unit *late = NULL;
    LG_TRY(lgi_need_v(units, "dualpipe-v"));
    LG_TRY_GOTO(lgi_calloc(&late, 2 * (size_t)num, sizeof *late));
    for (int p = 0; p < num_ranks; p++) {
        dual_rank r = {
            .out = out, .units = units, .stages = {p, 2 * num_ranks - 1 - p}, .late = late};
        add_rank(&r, p, num_ranks, num);
    }
out:
    lgi_free(late);
    return status;
}
