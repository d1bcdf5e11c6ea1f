/*
 * Proves a schedule: everything is there once, on one rank for each stage, and the lists can be run as they stand. The run
 * visits ranks that can go on; one that must wait is queued at what it waits for, so the time is linear.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/schedule_csv.h"

/* What has to happen for a stage and micro-batch; B makes the last two. */
enum { PART_F, PART_I, PART_W, NUM_PARTS };

/* --- structure ---------------------------------------------------------------------------------------------------------- */

lg_status lgi_schedule_new(lg_rank_schedule **out, int num_ranks, const int *capacity)
{
    lg_status status = LG_OK;
    lg_rank_schedule *schedule = NULL;
    const size_t num = (size_t)num_ranks;
    *out = NULL;
    LG_TRY(lgi_calloc(&schedule, 1, sizeof *schedule));
    schedule->num_ranks = num_ranks;
    LG_TRY_GOTO(lgi_calloc(&schedule->num_actions, num, sizeof *schedule->num_actions));
    LG_TRY_GOTO(lgi_calloc(&schedule->actions, num, sizeof *schedule->actions));
    for (int rank = 0; rank < num_ranks; rank++) {
        LG_TRY_GOTO(
            lgi_calloc(&schedule->actions[rank], (size_t)capacity[rank], sizeof(lg_action)));
    }
    *out = schedule;
    schedule = NULL;
out:
    lg_schedule_destroy(schedule);
    return status;
}

void lg_schedule_destroy(lg_rank_schedule *schedule)
{
    if (schedule == NULL) {
        return;
    }
    for (int rank = 0; schedule->actions != NULL && rank < schedule->num_ranks; rank++) {
        lgi_free(schedule->actions[rank]);
    }
    lgi_free(schedule->actions);
    lgi_free(schedule->num_actions);
    lgi_free(schedule->rank_of_stage);
    lgi_free(schedule);
}

/* --- everything once ---------------------------------------------------------------------------------------------------- */

typedef struct item {
    lg_action action;
    int rank;
} item;

static int compare_items(const void *a, const void *b)
{
    const item *const x = a;
    const item *const y = b;
    if (x->action.stage != y->action.stage) {
        return x->action.stage < y->action.stage ? -1 : 1;
    }
    if (x->action.micro_batch != y->action.micro_batch) {
        return x->action.micro_batch < y->action.micro_batch ? -1 : 1;
    }
    if (x->action.kind != y->action.kind) {
        return x->action.kind < y->action.kind ? -1 : 1;
    }
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return x->action.column < y->action.column ? -1 : x->action.column > y->action.column;
}

/* Items [begin, end) are those of one stage and micro-batch. */
static lg_status check_set(const item *items, size_t begin, size_t end, const char *source)
{
    char text[LGI_ACTION_TEXT_BYTES];
    const item *of_kind[LG_NUM_ACTION_KINDS] = {NULL};
    for (size_t i = begin; i < end; i++) {
        const item *const earlier = of_kind[items[i].action.kind];
        if (earlier != NULL) {
            LG_FAIL(LG_INVALID_ARG,
                    "%s: line %d, action %d: '%s' is there already (line %d, action %d)", source,
                    items[i].rank + 1, items[i].action.column,
                    lgi_action_text(text, &items[i].action), earlier->rank + 1,
                    earlier->action.column);
        }
        of_kind[items[i].action.kind] = &items[i];
    }
    const item *const any = &items[begin];
    const item *const whole = of_kind[LG_ACTION_BACKWARD];
    const item *const part = of_kind[LG_ACTION_INPUT_GRAD] != NULL ? of_kind[LG_ACTION_INPUT_GRAD]
                                                                   : of_kind[LG_ACTION_WEIGHT_GRAD];
    if (whole != NULL && part != NULL) {
        LG_FAIL(LG_INVALID_ARG,
                "%s: line %d, action %d: '%s' is a part of the B on line %d, action %d", source,
                part->rank + 1, part->action.column, lgi_action_text(text, &part->action),
                whole->rank + 1, whole->action.column);
    }
    for (int kind = 0; kind < LG_NUM_ACTION_KINDS; kind++) {
        const bool is_needed =
            kind == LG_ACTION_FORWARD ||
            (kind == LG_ACTION_BACKWARD ? part == NULL : whole == NULL && part != NULL);
        if (of_kind[kind] == NULL && is_needed) {
            const lg_action missing = {(lg_action_kind)kind, any->action.stage,
                                       any->action.micro_batch, 0};
            char other[LGI_ACTION_TEXT_BYTES];
            LG_FAIL(LG_INVALID_ARG, "%s: line %d, action %d: '%s' is there, but no '%s'", source,
                    any->rank + 1, any->action.column, lgi_action_text(other, &any->action),
                    lgi_action_text(text, &missing));
        }
    }
    return LG_OK;
}

/* Nothing of a stage and micro-batch is there: names what makes them be expected. */
static lg_status fail_missing(const item *items, size_t num, int stage, int micro_batch,
                              const char *source)
{
    const item *witness = &items[0];
    char text[LGI_ACTION_TEXT_BYTES];
    for (size_t i = 0; i < num; i++) {
        const bool is_same = items[i].action.micro_batch == micro_batch;
        const bool is_further =
            items[i].action.micro_batch > micro_batch || items[i].action.stage > stage;
        if (is_same || (is_further && witness->action.micro_batch != micro_batch)) {
            witness = &items[i];
        }
    }
    LG_FAIL(LG_INVALID_ARG, "%s: line %d, action %d: '%s' is there, but nothing of '%dF%d'", source,
            witness->rank + 1, witness->action.column, lgi_action_text(text, &witness->action),
            stage, micro_batch);
}

/* Walks the sorted items: the sets of all stages and micro-batches, one after the other. */
static lg_status check_sets(const lg_rank_schedule *schedule, const item *items, size_t num,
                            const char *source)
{
    int stage = 0;
    int micro_batch = 0;
    for (size_t begin = 0; begin < num;) {
        const lg_action *const first = &items[begin].action;
        size_t end = begin;
        while (end < num && items[end].action.stage == first->stage &&
               items[end].action.micro_batch == first->micro_batch) {
            end++;
        }
        if (micro_batch == schedule->num_micro_batches) {
            stage++;
            micro_batch = 0;
        }
        if (first->stage != stage || first->micro_batch != micro_batch) {
            return fail_missing(items, num, stage, micro_batch, source);
        }
        LG_TRY(check_set(items, begin, end, source));
        micro_batch++;
        begin = end;
    }
    return micro_batch == schedule->num_micro_batches
               ? LG_OK
               : fail_missing(items, num, stage, micro_batch, source);
}

static lg_status find_ranks(lg_rank_schedule *schedule, const item *items, size_t num,
                            const char *source)
{
    char text[LGI_ACTION_TEXT_BYTES];
    LG_TRY(lgi_calloc(&schedule->rank_of_stage, (size_t)schedule->num_stages,
                      sizeof *schedule->rank_of_stage));
    for (size_t i = 0; i < num; i++) {
        const item *const it = &items[i];
        int *const rank = &schedule->rank_of_stage[it->action.stage];
        if (i == 0 || items[i - 1].action.stage != it->action.stage) {
            *rank = it->rank;
        }
        if (*rank != it->rank) {
            LG_FAIL(LG_INVALID_ARG,
                    "%s: line %d, action %d: '%s' is of a stage that is on line %d too; a stage is "
                    "on one rank",
                    source, it->rank + 1, it->action.column, lgi_action_text(text, &it->action),
                    *rank + 1);
        }
    }
    return LG_OK;
}

static lg_status check_contents(lg_rank_schedule *schedule, const char *source)
{
    lg_status status = LG_OK;
    item *items = NULL;
    size_t num = 0;
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        num += (size_t)schedule->num_actions[rank];
    }
    LG_TRY(lgi_calloc(&items, num, sizeof *items));
    num = 0;
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        for (int i = 0; i < schedule->num_actions[rank]; i++) {
            const lg_action *const action = &schedule->actions[rank][i];
            items[num++] = (item){*action, rank};
            if (action->stage >= schedule->num_stages) {
                schedule->num_stages = action->stage + 1;
            }
            if (action->micro_batch >= schedule->num_micro_batches) {
                schedule->num_micro_batches = action->micro_batch + 1;
            }
        }
    }
    qsort(items, num, sizeof *items, compare_items);
    LG_TRY_GOTO(check_sets(schedule, items, num, source));
    LG_TRY_GOTO(find_ranks(schedule, items, num, source));
out:
    lgi_free(items);
    return status;
}

/* --- the run ------------------------------------------------------------------------------------------------------------ */

typedef struct prover {
    const lg_rank_schedule *schedule;
    bool *is_done;      /* by part */
    int *first_waiting; /* by part: a rank that waits for it; -1: none */
    int *next_waiting;  /* by rank */
    int *position;      /* by rank */
    int *stack;         /* ranks that can go on */
    int num_stack;
} prover;

static int part_id(const prover *p, int stage, int micro_batch, int part)
{
    return (stage * p->schedule->num_micro_batches + micro_batch) * NUM_PARTS + part;
}

/* What of the things that the action needs is not there yet, or -1. */
static int find_missing(const prover *p, const lg_action *action)
{
    const int s = action->stage;
    const int m = action->micro_batch;
    int needs[2];
    int num = 0;
    if (action->kind == LG_ACTION_FORWARD) {
        if (s > 0) {
            needs[num++] = part_id(p, s - 1, m, PART_F);
        }
    } else if (action->kind == LG_ACTION_WEIGHT_GRAD) {
        needs[num++] = part_id(p, s, m, PART_I);
    } else {
        needs[num++] = part_id(p, s, m, PART_F);
        if (s + 1 < p->schedule->num_stages) {
            needs[num++] = part_id(p, s + 1, m, PART_I);
        }
    }
    for (int i = 0; i < num; i++) {
        if (!p->is_done[needs[i]]) {
            return needs[i];
        }
    }
    return -1;
}

static void finish_part(prover *p, int id)
{
    p->is_done[id] = true;
    for (int rank = p->first_waiting[id]; rank >= 0; rank = p->next_waiting[rank]) {
        p->stack[p->num_stack++] = rank;
    }
    p->first_waiting[id] = -1;
}

static void run_rank(prover *p, int rank)
{
    for (; p->position[rank] < p->schedule->num_actions[rank]; p->position[rank]++) {
        const lg_action *const action = &p->schedule->actions[rank][p->position[rank]];
        const int missing = find_missing(p, action);
        if (missing >= 0) {
            p->next_waiting[rank] = p->first_waiting[missing];
            p->first_waiting[missing] = rank;
            return;
        }
        const int begin = action->kind == LG_ACTION_FORWARD       ? PART_F
                          : action->kind == LG_ACTION_WEIGHT_GRAD ? PART_W
                                                                  : PART_I;
        const int end = action->kind == LG_ACTION_BACKWARD ? PART_W : begin;
        for (int part = begin; part <= end; part++) {
            finish_part(p, part_id(p, action->stage, action->micro_batch, part));
        }
    }
}

/* The action of `rank` that makes a part, from its position on. */
static int find_maker(const prover *p, int rank, int part)
{
    const int stage = part / NUM_PARTS / p->schedule->num_micro_batches;
    const int micro_batch = part / NUM_PARTS % p->schedule->num_micro_batches;
    const bool is_forward = part % NUM_PARTS == PART_F;
    for (int i = p->position[rank]; i < p->schedule->num_actions[rank]; i++) {
        const lg_action *const action = &p->schedule->actions[rank][i];
        if (action->stage == stage && action->micro_batch == micro_batch &&
            (action->kind == LG_ACTION_FORWARD) == is_forward &&
            action->kind != LG_ACTION_WEIGHT_GRAD) {
            return i;
        }
    }
    return -1;
}

/* Follows who waits for whom until a rank waits for itself, or one comes again. */
static lg_status fail_blocked(const prover *p, int rank, const char *source)
{
    const lg_rank_schedule *const schedule = p->schedule;
    char text[LGI_ACTION_TEXT_BYTES];
    char other[LGI_ACTION_TEXT_BYTES];
    for (int i = 0; i <= schedule->num_ranks; i++) {
        const lg_action *const action = &schedule->actions[rank][p->position[rank]];
        const int missing = find_missing(p, action);
        const int stage = missing / NUM_PARTS / schedule->num_micro_batches;
        const int maker_rank = schedule->rank_of_stage[stage];
        const lg_action *const maker =
            &schedule->actions[maker_rank][find_maker(p, maker_rank, missing)];
        if (maker_rank == rank) {
            LG_FAIL(LG_INVALID_ARG,
                    "%s: line %d, action %d: '%s' comes before '%s' (action %d), which it needs",
                    source, rank + 1, action->column, lgi_action_text(text, action),
                    lgi_action_text(other, maker), maker->column);
        }
        if (i == schedule->num_ranks) {
            char behind[LGI_ACTION_TEXT_BYTES];
            const lg_action *const blocked =
                &schedule->actions[maker_rank][p->position[maker_rank]];
            LG_FAIL(LG_INVALID_ARG,
                    "%s: line %d, action %d: deadlock: '%s' waits for '%s' (line %d, action %d), "
                    "which stands behind '%s' (action %d), which waits in turn",
                    source, rank + 1, action->column, lgi_action_text(text, action),
                    lgi_action_text(other, maker), maker_rank + 1, maker->column,
                    lgi_action_text(behind, blocked), blocked->column);
        }
        rank = maker_rank;
    }
    LG_FAIL(LG_INTERNAL, "%s: a blocked rank was not found", source);
}

static lg_status check_order(const lg_rank_schedule *schedule, const char *source)
{
    lg_status status = LG_OK;
    prover p = {.schedule = schedule};
    const size_t num_parts =
        (size_t)schedule->num_stages * (size_t)schedule->num_micro_batches * NUM_PARTS;
    const size_t num_ranks = (size_t)schedule->num_ranks;
    LG_TRY_GOTO(lgi_calloc(&p.is_done, num_parts, sizeof *p.is_done));
    LG_TRY_GOTO(lgi_calloc(&p.first_waiting, num_parts, sizeof *p.first_waiting));
    LG_TRY_GOTO(lgi_calloc(&p.next_waiting, num_ranks, sizeof *p.next_waiting));
    LG_TRY_GOTO(lgi_calloc(&p.position, num_ranks, sizeof *p.position));
    LG_TRY_GOTO(lgi_calloc(&p.stack, num_ranks, sizeof *p.stack));
    for (size_t i = 0; i < num_parts; i++) {
        p.first_waiting[i] = -1;
    }
    for (int rank = schedule->num_ranks - 1; rank >= 0; rank--) {
        p.stack[p.num_stack++] = rank;
    }
    while (p.num_stack > 0) {
        run_rank(&p, p.stack[--p.num_stack]);
    }
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        if (p.position[rank] < schedule->num_actions[rank]) {
            LG_TRY_GOTO(fail_blocked(&p, rank, source));
        }
    }
out:
    lgi_free(p.is_done);
    lgi_free(p.first_waiting);
    lgi_free(p.next_waiting);
    lgi_free(p.position);
    lgi_free(p.stack);
    return status;
}

lg_status lgi_schedule_prove(lg_rank_schedule *schedule, const char *source)
{
    LG_TRY(check_contents(schedule, source));
    return check_order(schedule, source);
}
