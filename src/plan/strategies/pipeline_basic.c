/*
 * Schedules with whole backwards.
 *
 * in-order: micro-batch by micro-batch, forward then backward; no two ranks ever work at once (one rank: the textbook).
 *
 * gpipe: all forwards, then all backwards. Source: Huang et al., "GPipe" (NeurIPS 2019), section 2.3; there backward takes the
 * micro-batches in reverse, here in order, so that gradients add up in micro-batch order whatever the strategy. Bubble
 * (P - 1) / (M + P - 1); every rank holds M micro-batches.
 *
 * breadth-first: the same with several stages per rank in a loop, stage by stage: a stage does all micro-batches before the next one
 * begins, so its gradients are complete, and may be reduced, early. Source: Lamy-Poirier, "Breadth-First Pipeline
 * Parallelism" (MLSys 2023), section 4.
 *
 * 1f1b: stage s of P starts with P - 1 - s forwards, then one forward and one backward in turn. Source: Narayanan et al., "PipeDream"
 * (SOSP 2019), section 3.2, with a flush at the end of the step as in Fan et al., "DAPPLE" (PPoPP 2021), section 3. Bubble as gpipe;
 * stage s holds at most P - s micro-batches.
 *
 * interleaved: 1f1b over v stages per rank in a loop, micro-batches in groups of P. Source: Narayanan et al., "Efficient
 * Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021), section 2.2. Bubble (P - 1) / (v M + P - 1).
 * For M that P does not divide, the schedule is that of the next multiple without the micro-batches that do not exist: leaving
 * out all units of a micro-batch leaves no one waiting.
 */
#include "plan/strategies/pipeline.h"

#include "base/check.h"

/* --- placement ------------------------------------------------------------------------------------------------------------ */

lg_status lgi_need_one_stage(const lgi_units *units, const char *who)
{
    if (units->num_stages != units->num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "%s: %d stages on %d pipeline ranks; it needs one stage per rank",
                who, units->num_stages, units->num_ranks);
    }
    return lgi_need_loop(units, who);
}

lg_status lgi_need_loop(const lgi_units *units, const char *who)
{
    for (int s = 0; s < units->num_stages; s++) {
        for (int t = 0; t < s; t++) {
            const int rank = units->rank_of_stage[s];
            if (rank >= 0 && units->rank_of_stage[t] >= 0 &&
                (rank == units->rank_of_stage[t]) != ((s - t) % units->num_ranks == 0)) {
                LG_FAIL(LG_INVALID_ARG,
                        "%s: stage %d is on rank %d, stage %d on rank %d; it needs stages that go "
                        "round the ranks in a loop (rank = stage modulo %d)",
                        who, t, units->rank_of_stage[t], s, rank, units->num_ranks);
            }
        }
    }
    return LG_OK;
}

lg_status lgi_need_v(const lgi_units *units, const char *who)
{
    if (units->num_stages != 2 * units->num_ranks) {
        LG_FAIL(LG_INVALID_ARG,
                "%s: %d stages on %d pipeline ranks; it needs two stages per rank, placed in a V",
                who, units->num_stages, units->num_ranks);
    }
    for (int s = 0; s < units->num_ranks; s++) {
        const int mirror = units->num_stages - 1 - s;
        if (units->rank_of_stage[s] >= 0 && units->rank_of_stage[mirror] >= 0 &&
            units->rank_of_stage[s] != units->rank_of_stage[mirror]) {
            LG_FAIL(LG_INVALID_ARG,
                    "%s: stages %d and %d are on ranks %d and %d; placed in a V they share one",
                    who, s, mirror, units->rank_of_stage[s], units->rank_of_stage[mirror]);
        }
    }
    for (int s = 0; s < units->num_stages; s++) {
        for (int t = 0; t < s; t++) {
            if (t != units->num_stages - 1 - s && units->rank_of_stage[s] >= 0 &&
                units->rank_of_stage[s] == units->rank_of_stage[t]) {
                LG_FAIL(LG_INVALID_ARG,
                        "%s: stages %d and %d are both on rank %d; placed in a V they do not share "
                        "one",
                        who, t, s, units->rank_of_stage[s]);
            }
        }
    }
    return LG_OK;
}

/* --- schedules ------------------------------------------------------------------------------------------------------------ */

lg_status lgi_pipeline_in_order(lgi_schedule *out, const lgi_units *units)
{
    for (int m = 0; m < units->num_micro_batches; m++) {
        for (int s = 0; s < units->num_stages; s++) {
            lgi_schedule_add(out, units, s, m, LGI_UNIT_F);
        }
        for (int s = units->num_stages - 1; s >= 0; s--) {
            lgi_schedule_add(out, units, s, m, LGI_UNIT_B);
        }
    }
    return LG_OK;
}

lg_status lgi_pipeline_gpipe(lgi_schedule *out, const lgi_units *units)
{
    for (int s = 0; s < units->num_stages; s++) {
        for (int m = 0; m < units->num_micro_batches; m++) {
            lgi_schedule_add(out, units, s, m, LGI_UNIT_F);
        }
    }
    for (int s = units->num_stages - 1; s >= 0; s--) {
        for (int m = 0; m < units->num_micro_batches; m++) {
            lgi_schedule_add(out, units, s, m, LGI_UNIT_B);
        }
    }
    return LG_OK;
}

lg_status lgi_pipeline_breadth_first(lgi_schedule *out, const lgi_units *units)
{
    LG_TRY(lgi_need_loop(units, "breadth-first"));
    return lgi_pipeline_gpipe(out, units);
}

lg_status lgi_pipeline_1f1b(lgi_schedule *out, const lgi_units *units)
{
    const int num = units->num_micro_batches;
    LG_TRY(lgi_need_one_stage(units, "1f1b"));
    for (int s = 0; s < units->num_stages; s++) {
        const int ahead = units->num_stages - 1 - s < num ? units->num_stages - 1 - s : num;
        for (int m = 0; m < num + ahead; m++) {
            lgi_schedule_add(out, units, s, m, LGI_UNIT_F);
            lgi_schedule_add(out, units, s, m - ahead, LGI_UNIT_B);
        }
    }
    return LG_OK;
}

/* The k-th forward (or backward) of a rank: groups of P micro-batches, chunk after chunk. */
static void add_kth(lgi_schedule *out, const lgi_units *units, int rank, int num_chunks, int k,
                    lgi_unit_kind kind)
{
    const int group = k / (units->num_ranks * num_chunks);
    const int chunk = k / units->num_ranks % num_chunks;
    const int loop = kind == LGI_UNIT_F ? chunk : num_chunks - 1 - chunk;
    lgi_schedule_add(out, units, loop * units->num_ranks + rank,
                     group * units->num_ranks + k % units->num_ranks, kind);
}

lg_status lgi_pipeline_interleaved(lgi_schedule *out, const lgi_units *units)
{
    const int num_ranks = units->num_ranks;
    const int num_chunks = (units->num_stages + num_ranks - 1) / num_ranks;
    const int num_groups = (units->num_micro_batches + num_ranks - 1) / num_ranks;
    const int total = num_groups * num_ranks * num_chunks;
    LG_TRY(lgi_need_loop(units, "interleaved"));
    if (num_chunks == 1) {
        return lgi_pipeline_1f1b(out, units);
    }
    for (int p = 0; p < num_ranks; p++) {
        const int wanted = 2 * (num_ranks - 1 - p) + (num_chunks - 1) * num_ranks;
        const int ahead = wanted < total ? wanted : total;
        for (int k = 0; k < ahead; k++) {
            add_kth(out, units, p, num_chunks, k, LGI_UNIT_F);
        }
        for (int k = 0; k < total; k++) {
            if (k + ahead < total) {
                add_kth(out, units, p, num_chunks, k + ahead, LGI_UNIT_F);
            }
            add_kth(out, units, p, num_chunks, k, LGI_UNIT_B);
        }
    }
    return LG_OK;
}
