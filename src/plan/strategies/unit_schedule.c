/*
 * Schedules of units: lists, their run on paper, and the list scheduler.
 *
 * The run visits ranks that can go on and lets each do as many entries as it can; a rank that must wait is queued at the unit it waits
 * for. Start = the later of the rank's last end and the predecessors' ends plus delays, so the visiting order does not matter.
 *
 * The list scheduler knows when a unit becomes ready as soon as the last of its predecessors has started, since durations are given;
 * so an idle rank can tell whether something more urgent is about to arrive.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/strategies/units.h"

/* Steps that a run simulates: in the first ones ranks are not yet apart by what the steady state wants. */
#define NUM_STEPS 4
/* A unit that becomes ready within this part of its time counts as ready: sums of the same times differ by rounding. */
#define SAME_TIME_FRAC 1e-6

/* --- lists ---------------------------------------------------------------------------------------------------------------- */

lg_status lgi_schedule_init(lgi_schedule *out, const lgi_units *units)
{
    lg_status status = LG_OK;
    *out = (lgi_schedule){.num_ranks = units->num_ranks};
    const size_t num_ranks = (size_t)units->num_ranks;
    int *num_stages = NULL; /* by rank */
    LG_TRY_GOTO(lgi_calloc(&num_stages, num_ranks, sizeof *num_stages));
    LG_TRY_GOTO(lgi_calloc(&out->num, num_ranks, sizeof *out->num));
    LG_TRY_GOTO(lgi_calloc(&out->lists, num_ranks, sizeof *out->lists));
    for (int s = 0; s < units->num_stages; s++) {
        if (units->rank_of_stage[s] >= 0) {
            num_stages[units->rank_of_stage[s]]++;
        }
    }
    for (size_t rank = 0; rank < num_ranks; rank++) {
        LG_TRY_GOTO(lgi_calloc(&out->lists[rank],
                               (size_t)num_stages[rank] * (size_t)units->num_micro_batches *
                                   LGI_NUM_UNIT_KINDS,
                               sizeof(lgi_unit)));
    }
out:
    lgi_free(num_stages);
    if (status != LG_OK) {
        lgi_schedule_deinit(out);
    }
    return status;
}

void lgi_schedule_deinit(lgi_schedule *schedule)
{
    for (int rank = 0; schedule->lists != NULL && rank < schedule->num_ranks; rank++) {
        lgi_free(schedule->lists[rank]);
    }
    lgi_free(schedule->lists);
    lgi_free(schedule->num);
    *schedule = (lgi_schedule){0};
}

void lgi_schedule_add(lgi_schedule *schedule, const lgi_units *units, int stage, int micro_batch,
                      lgi_unit_kind kind)
{
    if (lgi_unit_exists(units, stage, micro_batch, kind)) {
        const int rank = units->rank_of_stage[stage];
        schedule->lists[rank][schedule->num[rank]++] = (lgi_unit){stage, micro_batch, kind};
    }
}

/* The units of an entry: one, or I and W. */
static int units_of(const lgi_units *units, const lgi_unit *entry, int *ids)
{
    if (entry->kind != LGI_UNIT_B) {
        ids[0] = lgi_unit_id(units, entry->stage, entry->micro_batch, entry->kind);
        return 1;
    }
    int num = 0;
    for (int kind = LGI_UNIT_I; kind <= LGI_UNIT_W; kind++) {
        if (lgi_unit_exists(units, entry->stage, entry->micro_batch, (lgi_unit_kind)kind)) {
            ids[num++] = lgi_unit_id(units, entry->stage, entry->micro_batch, (lgi_unit_kind)kind);
        }
    }
    return num;
}

bool lgi_schedule_is_complete(const lgi_schedule *schedule, const lgi_units *units)
{
    int num_wanted = 0;
    int num_listed = 0;
    for (int unit = 0; unit < units->num_units; unit++) {
        num_wanted += units->op_begin[unit] < units->op_begin[unit + 1] ? 1 : 0;
    }
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        for (int i = 0; i < schedule->num[rank]; i++) {
            const lgi_unit *const entry = &schedule->lists[rank][i];
            int ids[2];
            num_listed += units_of(units, entry, ids);
        }
    }
    return num_wanted == num_listed;
}

/* --- the run -------------------------------------------------------------------------------------------------------------- */

typedef struct runner {
    const lgi_schedule *schedule;
    const lgi_units *units;
    double *end_ns;     /* by unit of this step; < 0: not yet */
    double *free_ns;    /* by rank */
    int *pos;           /* by rank */
    int *next_waiting;  /* by rank: the next rank that waits for the same unit */
    int *first_waiting; /* by unit: a rank that waits for it, or -1 */
    int *stack;         /* ranks that can go on */
    int num_stack;
} runner;

/* Runs the rank's next entry; false, with the rank queued, if it waits for a unit that has not run. */
static bool run_entry(runner *r, int rank)
{
    int ids[2];
    const lgi_unit *const entry = &r->schedule->lists[rank][r->pos[rank]];
    const int num = units_of(r->units, entry, ids);
    double start_ns = r->free_ns[rank];
    double duration_ns = 0.0;
    for (int i = 0; i < num; i++) {
        duration_ns += r->units->duration_ns[ids[i]];
        for (int k = r->units->pred_begin[ids[i]]; k < r->units->pred_begin[ids[i] + 1]; k++) {
            const lgi_unit_arc *const pred = &r->units->preds[k];
            if (pred->unit == ids[0] || (num == 2 && pred->unit == ids[1])) {
                continue;
            }
            if (r->end_ns[pred->unit] < 0.0) {
                r->next_waiting[rank] = r->first_waiting[pred->unit];
                r->first_waiting[pred->unit] = rank;
                return false;
            }
            start_ns = fmax(start_ns, r->end_ns[pred->unit] + pred->delay_ns);
        }
    }
    r->free_ns[rank] = start_ns + duration_ns;
    r->pos[rank]++;
    for (int i = 0; i < num; i++) {
        r->end_ns[ids[i]] = start_ns + duration_ns;
        for (int waiting = r->first_waiting[ids[i]]; waiting >= 0;) {
            r->stack[r->num_stack++] = waiting;
            waiting = r->next_waiting[waiting];
        }
        r->first_waiting[ids[i]] = -1;
    }
    return true;
}

static int run_step(runner *r, lgi_unit *order)
{
    const int num_ranks = r->schedule->num_ranks;
    int num_run = 0;
    for (int unit = 0; unit < r->units->num_units; unit++) {
        r->end_ns[unit] = -1.0;
        r->first_waiting[unit] = -1;
    }
    r->num_stack = 0;
    for (int rank = num_ranks - 1; rank >= 0; rank--) {
        r->pos[rank] = 0;
        r->stack[r->num_stack++] = rank;
    }
    while (r->num_stack > 0) {
        const int rank = r->stack[--r->num_stack];
        while (r->pos[rank] < r->schedule->num[rank]) {
            const lgi_unit entry = r->schedule->lists[rank][r->pos[rank]];
            if (!run_entry(r, rank)) {
                break;
            }
            if (order != NULL) {
                order[num_run] = entry;
            }
            num_run++;
        }
    }
    return num_run;
}

static lg_status check_complete(const runner *r, int num_run)
{
    int num_entries = 0;
    for (int rank = 0; rank < r->schedule->num_ranks; rank++) {
        num_entries += r->schedule->num[rank];
        if (r->pos[rank] < r->schedule->num[rank]) {
            const lgi_unit *const entry = &r->schedule->lists[rank][r->pos[rank]];
            LG_FAIL(
                LG_INTERNAL,
                "the schedule of rank %d stops at entry %d (stage %d, micro-batch %d, %c): what it "
                "waits for comes later",
                rank, r->pos[rank], entry->stage, entry->micro_batch, "FIWB"[entry->kind]);
        }
    }
    for (int unit = 0; unit < r->units->num_units; unit++) {
        if (r->units->op_begin[unit] < r->units->op_begin[unit + 1] && r->end_ns[unit] < 0.0) {
            LG_FAIL(LG_INTERNAL, "the schedule lacks stage %d, micro-batch %d, %c",
                    unit / LGI_NUM_UNIT_KINDS % r->units->num_stages,
                    unit / LGI_NUM_UNIT_KINDS / r->units->num_stages,
                    "FIW"[unit % LGI_NUM_UNIT_KINDS]);
        }
    }
    if (num_run != num_entries) {
        LG_FAIL(LG_INTERNAL, "the schedule ran %d of %d entries", num_run, num_entries);
    }
    return LG_OK;
}

lg_status lgi_schedule_run(const lgi_schedule *schedule, const lgi_units *units, lgi_unit *order,
                           int *out_num, double *step_ns)
{
    lg_status status = LG_OK;
    const size_t num_ranks = (size_t)schedule->num_ranks;
    runner r = {.schedule = schedule, .units = units};
    double *last_ns = NULL; /* by rank: end of the step before */
    LG_TRY_GOTO(lgi_calloc(&r.end_ns, (size_t)units->num_units, sizeof *r.end_ns));
    LG_TRY_GOTO(lgi_calloc(&r.first_waiting, (size_t)units->num_units, sizeof *r.first_waiting));
    LG_TRY_GOTO(lgi_calloc(&r.free_ns, num_ranks, sizeof *r.free_ns));
    LG_TRY_GOTO(lgi_calloc(&r.pos, num_ranks, sizeof *r.pos));
    LG_TRY_GOTO(lgi_calloc(&r.next_waiting, num_ranks, sizeof *r.next_waiting));
    LG_TRY_GOTO(lgi_calloc(&r.stack, num_ranks, sizeof *r.stack));
    LG_TRY_GOTO(lgi_calloc(&last_ns, num_ranks, sizeof *last_ns));
    for (int step = 0; step < (step_ns != NULL ? NUM_STEPS : 1); step++) {
        memcpy(last_ns, r.free_ns, num_ranks * sizeof *last_ns);
        const int num_run = run_step(&r, step == 0 ? order : NULL);
        LG_TRY_GOTO(check_complete(&r, num_run));
        if (out_num != NULL) {
            *out_num = num_run;
        }
    }
    if (step_ns != NULL) {
        *step_ns = 0.0;
        for (size_t rank = 0; rank < num_ranks; rank++) {
            *step_ns = fmax(*step_ns, r.free_ns[rank] - last_ns[rank]);
        }
    }
out:
    lgi_free(r.end_ns);
    lgi_free(r.first_waiting);
    lgi_free(r.free_ns);
    lgi_free(r.pos);
    lgi_free(r.next_waiting);
    lgi_free(r.stack);
    lgi_free(last_ns);
    return status;
}

/* --- rules ---------------------------------------------------------------------------------------------------------------- */

static bool find_end(const lgi_units *units, lgi_unit *end)
{
    if (lgi_unit_exists(units, end->stage, end->micro_batch, end->kind)) {
        return true;
    }
    if (end->kind == LGI_UNIT_I) {
        end->kind = LGI_UNIT_W;
        return lgi_unit_exists(units, end->stage, end->micro_batch, LGI_UNIT_W);
    }
    return false;
}

lg_status lgi_rules_add(lgi_rules *rules, const lgi_units *units, lgi_unit from, lgi_unit to)
{
    if (!find_end(units, &from) || !find_end(units, &to)) {
        return LG_OK;
    }
    const lgi_rule rule = {lgi_unit_id(units, from.stage, from.micro_batch, from.kind),
                           lgi_unit_id(units, to.stage, to.micro_batch, to.kind)};
    if (rule.from == rule.to) {
        return LG_OK;
    }
    LG_TRY(lgi_grow(&rules->items, &rules->capacity, rules->num + 1, sizeof *rules->items));
    rules->items[rules->num++] = rule;
    return LG_OK;
}

/* --- list scheduling ------------------------------------------------------------------------------------------------------ */

typedef struct event {
    double time_ns;
    int rank;
} event;

typedef struct lister {
    const lgi_units *units;
    const lgi_policy *policy;
    lgi_schedule *schedule;
    int *num_waits;   /* by unit: predecessors that have not started */
    double *ready_ns; /* by unit: by those that have */
    int *rule_begin;  /* by unit: rules from it */
    int *rule_order;
    int *next;        /* stage * kinds + kind: the next micro-batch */
    int *stage_begin; /* by rank: stages[stage_begin[rank] ..) */
    int *stages;
    double *free_ns; /* by rank */
    event *heap;
    size_t num_events;
    size_t heap_capacity;
} lister;

static bool is_earlier(const event *a, const event *b)
{
    return a->time_ns < b->time_ns || (a->time_ns == b->time_ns && a->rank < b->rank);
}

static lg_status push_event(lister *l, double time_ns, int rank)
{
    LG_TRY(lgi_grow(&l->heap, &l->heap_capacity, l->num_events + 1, sizeof *l->heap));
    const event e = {time_ns, rank};
    size_t i = l->num_events++;
    while (i > 0 && is_earlier(&e, &l->heap[(i - 1) / 2])) {
        l->heap[i] = l->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    l->heap[i] = e;
    return LG_OK;
}

static event pop_event(lister *l)
{
    const event first = l->heap[0];
    const event last = l->heap[--l->num_events];
    size_t i = 0;
    while (2 * i + 1 < l->num_events) {
        size_t child = 2 * i + 1;
        if (child + 1 < l->num_events && is_earlier(&l->heap[child + 1], &l->heap[child])) {
            child++;
        }
        if (!is_earlier(&l->heap[child], &last)) {
            break;
        }
        l->heap[i] = l->heap[child];
        i = child;
    }
    l->heap[i] = last;
    return first;
}

/* Micro-batches of a stage that have done the phase, or the next one's where the stage lacks it. */
static int num_done(const lister *l, int stage, lgi_unit_kind kind)
{
    if (!lgi_unit_exists(l->units, stage, 0, kind)) {
        const lgi_unit_kind other = kind == LGI_UNIT_I ? LGI_UNIT_W : LGI_UNIT_I;
        if (kind == LGI_UNIT_F || !lgi_unit_exists(l->units, stage, 0, other)) {
            return 0;
        }
        return l->next[stage * LGI_NUM_UNIT_KINDS + (int)other];
    }
    return l->next[stage * LGI_NUM_UNIT_KINDS + (int)kind];
}

static bool is_backward(const lister *l, int stage)
{
    return lgi_unit_exists(l->units, stage, 0, LGI_UNIT_B);
}

/* Whether the limits let the rank do a forward of `stage` now. */
static bool may_go_forward(const lister *l, int rank, int stage)
{
    if (!is_backward(l, stage)) {
        return true;
    }
    if (l->policy->max_ahead != NULL &&
        num_done(l, stage, LGI_UNIT_F) - num_done(l, stage, LGI_UNIT_I) >=
            l->policy->max_ahead[stage]) {
        return false;
    }
    int held = 0;
    for (int i = l->stage_begin[rank]; l->policy->max_held != NULL && i < l->stage_begin[rank + 1];
         i++) {
        if (is_backward(l, l->stages[i])) {
            held += num_done(l, l->stages[i], LGI_UNIT_F) - num_done(l, l->stages[i], LGI_UNIT_W);
        }
    }
    return l->policy->max_held == NULL || held < l->policy->max_held[rank];
}

/* Which of two units of one kind goes first on a rank. */
static bool goes_before(const lgi_policy *policy, int a, int b, const lgi_units *units)
{
    const int stage_a = a / LGI_NUM_UNIT_KINDS % units->num_stages;
    const int stage_b = b / LGI_NUM_UNIT_KINDS % units->num_stages;
    const int kind = a % LGI_NUM_UNIT_KINDS;
    const bool is_late_first = kind != LGI_UNIT_F || !policy->takes_early_forward;
    if (kind == LGI_UNIT_W && policy->takes_early_weight) {
        return a < b; /* by micro-batch, then by stage */
    }
    return (stage_a > stage_b) == is_late_first;
}

/* The rank's most urgent unit that is ready at `now`, or -1. *soon_ns: when an I or F that is not yet ready becomes so. */
static int choose(const lister *l, int rank, double now_ns, double *soon_ns)
{
    static const int urgency[LGI_NUM_UNIT_KINDS] = {
        [LGI_UNIT_I] = 2, [LGI_UNIT_F] = 1, [LGI_UNIT_W] = 0};
    int best = -1;
    int best_urgency = -1;
    *soon_ns = INFINITY;
    for (int i = l->stage_begin[rank]; i < l->stage_begin[rank + 1]; i++) {
        const int stage = l->stages[i];
        for (int kind = 0; kind < LGI_NUM_UNIT_KINDS; kind++) {
            const int m = l->next[stage * LGI_NUM_UNIT_KINDS + kind];
            if (!lgi_unit_exists(l->units, stage, m, (lgi_unit_kind)kind)) {
                continue;
            }
            const int unit = lgi_unit_id(l->units, stage, m, (lgi_unit_kind)kind);
            if (l->num_waits[unit] > 0 || (kind == LGI_UNIT_F && !may_go_forward(l, rank, stage))) {
                continue;
            }
            if (l->ready_ns[unit] > now_ns + SAME_TIME_FRAC * l->units->duration_ns[unit]) {
                if (kind != LGI_UNIT_W) {
                    *soon_ns = fmin(*soon_ns, l->ready_ns[unit]);
                }
                continue;
            }
            if (urgency[kind] > best_urgency ||
                (urgency[kind] == best_urgency && goes_before(l->policy, unit, best, l->units))) {
                best = unit;
                best_urgency = urgency[kind];
            }
        }
    }
    return best;
}

static lg_status release_unit(lister *l, int unit, double ready_ns, double now_ns)
{
    l->ready_ns[unit] = fmax(l->ready_ns[unit], ready_ns);
    if (--l->num_waits[unit] == 0) {
        const int rank = l->units->rank_of_stage[unit / LGI_NUM_UNIT_KINDS % l->units->num_stages];
        return push_event(l, fmax(now_ns, fmax(l->ready_ns[unit], l->free_ns[rank])), rank);
    }
    return LG_OK;
}

static lg_status start_unit(lister *l, int rank, int unit, double now_ns)
{
    const int stage = unit / LGI_NUM_UNIT_KINDS % l->units->num_stages;
    const int micro_batch = unit / LGI_NUM_UNIT_KINDS / l->units->num_stages;
    const lgi_unit_kind kind = (lgi_unit_kind)(unit % LGI_NUM_UNIT_KINDS);
    const double end_ns = now_ns + l->units->duration_ns[unit];
    lgi_schedule_add(l->schedule, l->units, stage, micro_batch, kind);
    l->next[stage * LGI_NUM_UNIT_KINDS + (int)kind]++;
    l->free_ns[rank] = end_ns;
    for (int i = l->units->succ_begin[unit]; i < l->units->succ_begin[unit + 1]; i++) {
        const lgi_unit_arc *const succ = &l->units->succs[i];
        LG_TRY(release_unit(l, succ->unit, end_ns + succ->delay_ns, now_ns));
    }
    for (int i = l->rule_begin[unit]; i < l->rule_begin[unit + 1]; i++) {
        LG_TRY(release_unit(l, l->policy->rules[l->rule_order[i]].to, end_ns, now_ns));
    }
    return push_event(l, end_ns, rank);
}

/* Lets a free rank do something, or wait. */
static lg_status decide(lister *l, const event *e)
{
    double soon_ns = INFINITY;
    const int unit = choose(l, e->rank, e->time_ns, &soon_ns);
    if (unit < 0) {
        return LG_OK; /* an event comes with whatever becomes ready */
    }
    const double wait_ns = l->policy->wait_frac * l->units->duration_ns[unit];
    if (unit % LGI_NUM_UNIT_KINDS == LGI_UNIT_W && soon_ns < e->time_ns + wait_ns) {
        return push_event(l, soon_ns, e->rank);
    }
    return start_unit(l, e->rank, unit, fmax(e->time_ns, l->ready_ns[unit]));
}

static lg_status lister_init(lister *l)
{
    const lgi_units *const units = l->units;
    const size_t num_units = (size_t)units->num_units;
    LG_TRY(lgi_calloc(&l->num_waits, num_units, sizeof(int)));
    LG_TRY(lgi_calloc(&l->ready_ns, num_units, sizeof(double)));
    LG_TRY(lgi_calloc(&l->rule_begin, num_units + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&l->rule_order, (size_t)l->policy->num_rules, sizeof(int)));
    LG_TRY(lgi_calloc(&l->next, (size_t)units->num_stages * LGI_NUM_UNIT_KINDS, sizeof(int)));
    LG_TRY(lgi_calloc(&l->stage_begin, (size_t)units->num_ranks + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&l->stages, (size_t)units->num_stages, sizeof(int)));
    LG_TRY(lgi_calloc(&l->free_ns, (size_t)units->num_ranks, sizeof(double)));
    for (int unit = 0; unit < units->num_units; unit++) {
        l->num_waits[unit] = units->pred_begin[unit + 1] - units->pred_begin[unit];
    }
    for (int i = 0; i < l->policy->num_rules; i++) {
        l->num_waits[l->policy->rules[i].to]++;
        l->rule_begin[l->policy->rules[i].from + 2]++;
    }
    for (size_t unit = 0; unit < num_units; unit++) {
        l->rule_begin[unit + 2] += l->rule_begin[unit + 1];
    }
    for (int i = 0; i < l->policy->num_rules; i++) {
        l->rule_order[l->rule_begin[l->policy->rules[i].from + 1]++] = i;
    }
    for (int s = 0; s < units->num_stages; s++) {
        if (units->rank_of_stage[s] >= 0) {
            l->stage_begin[units->rank_of_stage[s] + 2]++;
        }
    }
    for (int rank = 0; rank < units->num_ranks; rank++) {
        l->stage_begin[rank + 2] += l->stage_begin[rank + 1];
        LG_TRY(push_event(l, 0.0, rank));
    }
    for (int s = 0; s < units->num_stages; s++) {
        if (units->rank_of_stage[s] >= 0) {
            l->stages[l->stage_begin[units->rank_of_stage[s] + 1]++] = s;
        }
    }
    return LG_OK;
}

lg_status lgi_schedule_greedily(lgi_schedule *out, const lgi_units *units, const lgi_policy *policy)
{
    lg_status status = LG_OK;
    lister l = {.units = units, .policy = policy, .schedule = out};
    LG_TRY(lgi_schedule_init(out, units));
    LG_TRY_GOTO(lister_init(&l));
    while (l.num_events > 0) {
        const event e = pop_event(&l);
        if (e.time_ns >= l.free_ns[e.rank]) {
            LG_TRY_GOTO(decide(&l, &e));
        }
    }
out:
    lgi_free(l.num_waits);
    lgi_free(l.ready_ns);
    lgi_free(l.rule_begin);
    lgi_free(l.rule_order);
    lgi_free(l.next);
    lgi_free(l.stage_begin);
    lgi_free(l.stages);
    lgi_free(l.free_ns);
    lgi_free(l.heap);
    if (status != LG_OK) {
        lgi_schedule_deinit(out);
    }
    return status;
}
