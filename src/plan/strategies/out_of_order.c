/*
 * The out-of-order search. For each form (lanes x threads) that options and machine allow it starts from a few recipes
 * (queue_schedule.h), simulates them, and improves the best one parameter at a time with ever smaller steps: where the
 * narrow part begins and ends, from where weight gradients are deferred, how many move into the next step, how many may
 * wait. The textbook plan is always among the candidates, so the result is never worse by simulation.
 *
 * Within the budget the fastest candidate wins; the textbook if that is not slower by more than TIE_FRAC; and instead of either
 * a smaller one that is as fast. Only they get their memory placed. The number of simulations depends on the graph's size alone: no clock.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/strategies/queue_schedule.h"

/* Below this difference costs do not tell two plans apart: measured times repeat to about half a percent. */
#define TIE_FRAC 0.005
/* Step times are kept in units of this, so that sums of the same terms in another order are equal. */
#define RESOLUTION_NS 1e-3
/* Simulated ops per form and in all: a few tens of milliseconds. */
#define MAX_SIMULATED_OPS 80000
#define MIN_SIMULATIONS 12
#define MAX_FORMS 8
/* Enough to bound what is kept to a fraction of a micro-batch, few enough not to be felt. */
#define NUM_PACES 16
/* A plan that is not faster must be smaller by this to be taken: a lag or a second lane for less is not worth it. */
#define SMALLER_FRAC 0.01
/* Plans placed in memory to choose the smallest of equals, and to find one that fits. */
#define MAX_TIES 5
#define MAX_PLACED 200

typedef struct candidate {
    bool is_textbook;
    lgi_queue_recipe recipe;
    double step_ns;
} candidate;

struct lgi_candidates {
    const lgi_strategy_input *input;
    lgi_queue_facts facts;
    candidate *items;
    size_t num;
    size_t capacity;
    int simulations_left; /* of the form being searched */
    double textbook_ns;   /* step time of the textbook plan */
};

/* --- candidates --------------------------------------------------------------------------------------------------- */

static lg_status make_lanes(const lgi_candidates *self, const candidate *c, lg_plan **out)
{
    if (c->is_textbook) {
        return lgi_in_order_lanes(out, self->input);
    }
    return lgi_queue_schedule(out, &self->facts, &c->recipe);
}

static lg_status simulate(lgi_candidates *self, candidate *c)
{
    lg_plan *plan = NULL;
    LG_TRY(make_lanes(self, c, &plan));
    const lg_status status = lgi_step_ns(self->input, plan, &c->step_ns);
    lg_plan_destroy(plan);
    LG_TRY(status);
    c->step_ns = round(c->step_ns / RESOLUTION_NS) * RESOLUTION_NS;
    LG_TRY(lgi_grow(&self->items, &self->capacity, self->num + 1, sizeof *self->items));
    self->items[self->num++] = *c;
    self->simulations_left--;
    return LG_OK;
}

static bool is_same_recipe(const lgi_queue_recipe *a, const lgi_queue_recipe *b)
{
    return a->num_lanes == b->num_lanes && a->num_threads == b->num_threads &&
           a->num_wide_threads == b->num_wide_threads && a->narrow_begin == b->narrow_begin &&
           a->narrow_end == b->narrow_end && a->defer_from == b->defer_from &&
           a->num_lagged == b->num_lagged && a->max_queued == b->max_queued &&
           a->num_paces == b->num_paces;
}

/* Simulates a recipe, or finds it among those simulated; keeps it in `best` if it is faster. */
static lg_status try_recipe(lgi_candidates *self, lgi_queue_recipe recipe, candidate *best,
                            bool *is_better)
{
    candidate c = {.recipe = recipe};
    *is_better = false;
    for (size_t i = 0; i < self->num; i++) {
        if (!self->items[i].is_textbook && is_same_recipe(&self->items[i].recipe, &recipe)) {
            return LG_OK;
        }
    }
    LG_TRY(simulate(self, &c));
    if (c.step_ns < best->step_ns) {
        *best = c;
        *is_better = true;
    }
    return LG_OK;
}

/* --- search -------------------------------------------------------------------------------------------------------- */

typedef enum parameter {
    NARROW_BEGIN,
    NARROW_END,
    DEFER_FROM,
    NUM_LAGGED,
    NUM_PARAMETERS
} parameter;

static int *parameter_of(lgi_queue_recipe *recipe, parameter p)
{
    switch (p) {
    case NARROW_BEGIN:
        return &recipe->narrow_begin;
    case NARROW_END:
        return &recipe->narrow_end;
    case DEFER_FROM:
        return &recipe->defer_from;
    default:
        return &recipe->num_lagged;
    }
}

static int clamp(int value, int min, int max)
{
    return value < min ? min : value > max ? max : value;
}

/* Brings a recipe into the shape in which its parameters mean something. */
static void normalise(const lgi_candidates *self, lgi_queue_recipe *recipe)
{
    const int num_main = self->facts.num_main;
    recipe->num_lagged = self->input->opts.allow_lag && recipe->num_lanes > 1
                             ? clamp(recipe->num_lagged, 0, self->facts.num_laggable)
                             : 0;
    if (recipe->num_wide_threads == 0) {
        recipe->narrow_begin = 0;
        recipe->narrow_end = num_main;
    }
    recipe->narrow_begin = clamp(recipe->narrow_begin, 0, num_main);
    recipe->narrow_end = clamp(recipe->narrow_end, recipe->narrow_begin, num_main);
    recipe->defer_from = clamp(recipe->defer_from, 0, recipe->narrow_begin);
}

/* One parameter at a time, with steps that halve. */
static lg_status descend(lgi_candidates *self, candidate *best)
{
    const int range = self->facts.num_main > self->facts.num_laggable ? self->facts.num_main
                                                                      : self->facts.num_laggable;
    for (int step = range / 4 > 0 ? range / 4 : 1; step > 0; step /= 2) {
        for (int p = 0; p < NUM_PARAMETERS; p++) {
            for (int sign = -1; sign <= 1; sign += 2) {
                if (self->simulations_left <= 0) {
                    return LG_OK;
                }
                lgi_queue_recipe recipe = best->recipe;
                bool is_better = false;
                *parameter_of(&recipe, (parameter)p) += sign * step;
                normalise(self, &recipe);
                LG_TRY(try_recipe(self, recipe, best, &is_better));
                if (is_better) {
                    sign -= 2; /* the same way again */
                }
            }
        }
    }
    return LG_OK;
}

/* How many lagged ops fill the other lanes while the main chain runs forward. */
static int lag_to_fill_forward(const lgi_candidates *self, int num_lanes, int width_idx)
{
    const lgi_queue_facts *const facts = &self->facts;
    double room_ns = 0.0;
    for (int pos = 0; pos < facts->first_backward; pos++) {
        room_ns += lg_costs_op_ns(self->input->costs, facts->main_ops[pos], width_idx);
    }
    room_ns *= num_lanes - 1;
    int num = 0;
    while (num < facts->num_laggable) {
        room_ns -= lg_costs_op_ns(self->input->costs, facts->lag_list[num], width_idx);
        if (room_ns < 0.0) {
            break;
        }
        num++;
    }
    return num;
}

static lg_status search_form(lgi_candidates *self, int num_lanes, int num_threads,
                             int num_wide_threads, int width_idx)
{
    const lgi_queue_facts *const facts = &self->facts;
    const int num_main = facts->num_main;
    const int lag = lag_to_fill_forward(self, num_lanes, width_idx);
    const int first = facts->first_backward;
    const lgi_queue_recipe form = {.num_lanes = num_lanes,
                                   .num_threads = num_threads,
                                   .num_wide_threads = num_wide_threads,
                                   .max_queued = INT_MAX};
    candidate best = {.step_ns = 1e300};
    bool is_better = false;
    /* narrow all through; narrow backward; the last half of it, with the first half's gradients deferred to it */
    const int begins[] = {0, first, (first + num_main) / 2};
    const int num_starts = num_wide_threads > 0 ? 3 : 1;
    const int max_simulations = self->simulations_left;
    for (int i = 0; i < num_starts; i++) {
        candidate start = {.step_ns = 1e300};
        lgi_queue_recipe recipe = form;
        recipe.narrow_begin = begins[i];
        recipe.narrow_end = num_main;
        recipe.defer_from = i == 2 ? (first + begins[2]) / 2 : begins[i];
        normalise(self, &recipe);
        LG_TRY(try_recipe(self, recipe, &start, &is_better));
        recipe.num_lagged = lag;
        normalise(self, &recipe);
        LG_TRY(try_recipe(self, recipe, &start, &is_better));
        self->simulations_left = max_simulations / num_starts;
        if (start.step_ns < 1e300) {
            LG_TRY(descend(self, &start));
        }
        best = start.step_ns < best.step_ns ? start : best;
    }
    /* the best ones with less waiting: for tight budgets, and a little time may buy many bytes */
    static const int limits[] = {INT_MAX, 16, 8, 4, 2, 1, 0};
    candidate frugal = best;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        lgi_queue_recipe recipe = best.recipe;
        recipe.max_queued = limits[i];
        recipe.num_paces = NUM_PACES;
        LG_TRY(try_recipe(self, recipe, &frugal, &is_better));
        recipe.num_lagged = 0;
        recipe.defer_from = recipe.narrow_begin;
        LG_TRY(try_recipe(self, recipe, &frugal, &is_better));
    }
    return LG_OK;
}

static int num_simulations(const lgi_candidates *self)
{
    const int num = MAX_SIMULATED_OPS / (lg_graph_num_ops(self->input->graph) + 1);
    return num > MIN_SIMULATIONS ? num : MIN_SIMULATIONS;
}

/* All the forms that options, widths and machine allow. */
static lg_status search_forms(lgi_candidates *self)
{
    const lgi_strategy_input *const input = self->input;
    const lg_graph_opts *const graph_opts = lg_graph_options(input->graph);
    const int num_cores = input->machine->num_cores;
    const int given_lanes = input->opts.num_lanes;
    const int given_threads = input->opts.threads_per_lane;
    const bool is_free = given_lanes == 0 && given_threads == 0;
    int num_forms = 0;
    for (int i = 0; i < graph_opts->num_widths; i++) {
        const int width = graph_opts->widths[i];
        if (width < 1 || width > num_cores || (given_threads > 0 && width != given_threads)) {
            continue;
        }
        const int max_lanes = num_cores / width;
        for (int lanes = max_lanes; lanes >= 1 && num_forms < MAX_FORMS; lanes--) {
            const bool is_wanted = given_lanes > 0 ? lanes == given_lanes
                                   : is_free       ? lanes > 1 && lanes == max_lanes
                                                   : true;
            if (!is_wanted) {
                continue;
            }
            num_forms++;
            self->simulations_left = num_simulations(self);
            LG_TRY(search_form(self, lanes, width, is_free ? lgi_widest(input, 1) : 0, i));
        }
    }
    return LG_OK;
}

static int compare_candidates(const void *a, const void *b)
{
    const candidate *const x = a;
    const candidate *const y = b;
    if (x->step_ns != y->step_ns) {
        return x->step_ns < y->step_ns ? -1 : 1;
    }
    return (int)y->is_textbook - (int)x->is_textbook;
}

lg_status lgi_candidates_create(lgi_candidates **out, const lgi_strategy_input *input)
{
    lg_status status = LG_OK;
    lgi_candidates *self = NULL;
    *out = NULL;
    LG_TRY(lgi_calloc(&self, 1, sizeof *self));
    self->input = input;
    LG_TRY_GOTO(lgi_queue_facts_init(&self->facts, input));
    candidate textbook = {.is_textbook = true};
    LG_TRY_GOTO(simulate(self, &textbook));
    self->textbook_ns = textbook.step_ns;
    LG_TRY_GOTO(search_forms(self));
    qsort(self->items, self->num, sizeof *self->items, compare_candidates);
    *out = self;
    return LG_OK;
out:
    lgi_candidates_destroy(self);
    return status;
}

void lgi_candidates_destroy(lgi_candidates *candidates)
{
    if (candidates != NULL) {
        lgi_queue_facts_deinit(&candidates->facts);
        lgi_free(candidates->items);
        lgi_free(candidates);
    }
}

int lgi_candidates_num(const lgi_candidates *candidates)
{
    return (int)candidates->num;
}

double lgi_candidates_step_ns(const lgi_candidates *candidates, int idx)
{
    return candidates->items[idx].step_ns;
}

lg_status lgi_candidates_make(const lgi_candidates *candidates, int idx, lg_plan **out)
{
    lg_plan *plan = NULL;
    *out = NULL;
    LG_TRY(make_lanes(candidates, &candidates->items[idx], &plan));
    const lg_status status = lgi_strategy_place(plan, candidates->input);
    if (status != LG_OK) {
        lg_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return LG_OK;
}

/* --- choice -------------------------------------------------------------------------------------------------------- */

static lg_status name_plan(lg_plan *plan)
{
    char *name = NULL;
    LG_TRY(lgi_strdup(&name, "out-of-order"));
    lgi_free(plan->strategy);
    plan->strategy = name;
    return LG_OK;
}

/* The choice among candidates that are within the budget and about equally fast. */
typedef struct choice {
    lg_plan *best;
    int64_t best_bytes;
    int64_t smallest_bytes; /* of all looked at, also over the budget */
    int num_fitting;
} choice;

/* Places candidate `idx`, and keeps it if it fits and is clearly smaller than what there is. */
static lg_status consider(const lgi_candidates *candidates, int idx, choice *c)
{
    lg_plan *plan = NULL;
    LG_TRY(lgi_candidates_make(candidates, idx, &plan));
    const int64_t budget_bytes = candidates->input->opts.memory_bytes;
    const int64_t peak = lgi_plan_peak_bytes(plan);
    c->smallest_bytes = peak < c->smallest_bytes ? peak : c->smallest_bytes;
    const bool fits = budget_bytes == 0 || peak <= budget_bytes;
    c->num_fitting += fits ? 1 : 0;
    if (fits && (c->best == NULL || (double)peak < (double)c->best_bytes * (1.0 - SMALLER_FRAC))) {
        lg_plan_destroy(c->best);
        c->best = plan;
        c->best_bytes = peak;
    } else {
        lg_plan_destroy(plan);
    }
    return LG_OK;
}

/* The textbook, if it is among the fastest: others must be clearly smaller to be taken instead. */
static lg_status consider_textbook(const lgi_candidates *candidates, choice *c)
{
    const int num = lgi_candidates_num(candidates);
    int idx = 0;
    while (idx < num && !candidates->items[idx].is_textbook) {
        idx++;
    }
    const double fastest_ns = lgi_candidates_step_ns(candidates, 0);
    if (idx < num && candidates->textbook_ns <= fastest_ns * (1.0 + TIE_FRAC)) {
        LG_TRY(consider(candidates, idx, c));
    }
    return LG_OK;
}

static lg_status choose(const lgi_candidates *candidates, choice *c)
{
    const int num = lgi_candidates_num(candidates);
    LG_TRY(consider_textbook(candidates, c));
    double limit_ns = candidates->textbook_ns;
    int next = 0;
    if (c->best == NULL) {
        while (next < num && next < MAX_PLACED && c->best == NULL) {
            LG_TRY(consider(candidates, next++, c));
        }
        const double fastest_ns = lgi_candidates_step_ns(candidates, next - 1);
        limit_ns = fastest_ns * (1.0 + TIE_FRAC);
        if (fastest_ns <= candidates->textbook_ns && candidates->textbook_ns < limit_ns) {
            limit_ns = candidates->textbook_ns; /* a tie must not be slower than the textbook */
        }
    }
    for (; next < num && c->num_fitting > 0 && c->num_fitting < MAX_TIES &&
           lgi_candidates_step_ns(candidates, next) <= limit_ns;
         next++) {
        LG_TRY(consider(candidates, next, c));
    }
    return LG_OK;
}

static lg_status out_of_order_alone(lg_plan **out, const lgi_strategy_input *input)
{
    lg_status status = LG_OK;
    lgi_candidates *candidates = NULL;
    choice c = {.smallest_bytes = INT64_MAX};
    *out = NULL;
    LG_TRY(lgi_candidates_create(&candidates, input));
    LG_TRY_GOTO(choose(candidates, &c));
    if (c.best == NULL) {
        status = lgi_fail_budget(input, "the smallest out-of-order plan that was found",
                                 c.smallest_bytes);
        goto out;
    }
    LG_TRY_GOTO(name_plan(c.best));
    *out = c.best;
    c.best = NULL;
out:
    lg_plan_destroy(c.best);
    lgi_candidates_destroy(candidates);
    return status;
}

/* --- several ranks ------------------------------------------------------------------------------------------------------ */

/*
 * What the source does over ranks: gradients first, weight gradients in the waits, the first layers' last; and what does so with
 * less memory or in a V.
 */
static const char *const over_ranks[] = {"fast-forward+reverse-first-k", "modulo+reverse-first-k",
                                         "zb-h1+reverse-first-k", "zb-v+reverse-first-k",
                                         "reverse-first-k"};

/* Takes the place of *plan, if it has one, if it is faster. */
static lg_status try_over_ranks(lg_plan **plan, double *step_ns, const char *name,
                                const lgi_strategy_input *input)
{
    lg_plan *other = NULL;
    double other_ns = 0.0;
    const lg_status made = lgi_plan_create(&other, name, input);
    if (made == LG_NOT_SUPPORTED || made == LG_INVALID_ARG) {
        return LG_OK; /* another placement, or too large */
    }
    LG_TRY(made);
    const lg_status status = lgi_step_ns(input, other, &other_ns);
    if (status != LG_OK || (*plan != NULL && other_ns >= *step_ns * (1.0 - TIE_FRAC))) {
        lg_plan_destroy(other);
        return status;
    }
    lg_plan_destroy(*plan);
    *plan = other;
    *step_ns = other_ns;
    return LG_OK;
}

lg_status lgi_out_of_order_create(lg_plan **out, const lgi_strategy_input *input)
{
    double step_ns = 0.0;
    lg_plan *plan = NULL;
    const lg_status own = out_of_order_alone(&plan, input);
    *out = NULL;
    if (own != LG_OK && own != LG_NOT_SUPPORTED) {
        return own;
    }
    lg_status status = plan != NULL ? lgi_step_ns(input, plan, &step_ns) : LG_OK;
    const bool has_ranks = lg_graph_num_ranks(input->graph) > 1 && input->opts.num_lanes <= 1;
    for (size_t i = 0; i < sizeof over_ranks / sizeof over_ranks[0] && has_ranks && status == LG_OK;
         i++) {
        status = try_over_ranks(&plan, &step_ns, over_ranks[i], input);
    }
    if (status == LG_OK && plan == NULL) {
        return out_of_order_alone(out, input); /* says why not */
    }
    status = status == LG_OK ? name_plan(plan) : status;
    if (status != LG_OK) {
        lg_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return LG_OK;
}
