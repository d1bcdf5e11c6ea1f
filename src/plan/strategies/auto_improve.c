/*
 * Improving a plan: list scheduling, local search, and both again from disturbed orders, until the budget is used, the lower
 * bound is reached or nothing has been found for a while. All moves are on lines (auto_order.h); whether one is good only
 * the simulator says.
 *
 * List scheduling: of the nodes whose predecessors are placed the one that can start first is next; where several want one
 * lane, the most urgent of those that can start before the first would end. Urgent: a long way to the end of the step (critical
 * path); as it was before; or by phase (input gradients, forwards, weight gradients).
 *
 * Local search, where it can matter: from the end of the slowest rank back along everything that was just in time. On two
 * neighbours in a lane of which the second could have started before: swap them. Before an op that left its lane idle: bring
 * something forward to there. Besides: deferring weight gradients, reductions and updates into the next step, or taking them back.
 * In large graphs neighbours are runs of ops of one unit (stage, micro-batch, phase).
 *
 * Disturbances follow a fixed sequence of numbers: the same input gives the same plan.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/strategies/auto.h"
#include "plan/strategies/auto_order.h"

/* Up to so many nodes single ops move; above, runs of a unit. */
#define MAX_SINGLE_NODES 600
/* List scheduling looks at all ready nodes for each: only for graphs of up to so many nodes. */
#define MAX_LISTED_NODES 60000
/* Later entries of a lane that may be brought forward into a gap. */
#define NUM_FILLERS 6
/* Simulations without a better plan, after which the search ends: at least, and per node. */
#define MIN_STALE 500
#define STALE_PER_NODE 4
/* A disturbed order is worked on if it is no slower than this. */
#define NEAR_FRAC 0.10
/* Times that differ by less are the same: rounding. */
#define SAME_TIME_FRAC 1e-9

typedef enum move_kind {
    MOVE_BEFORE,
    MOVE_AFTER,
    MOVE_DEFER_FIRST,
    MOVE_DEFER_LATE,
    MOVE_UNDEFER
} move_kind;

typedef struct move {
    int node;   /* the run that begins (forward) or ends (after) with it moves */
    int target; /* -1: lag changes */
    move_kind kind;
} move;

typedef struct improver {
    const lgi_strategy_input *input;
    lgi_budget *budget;
    lgi_line_facts facts;
    double bound_ns;
    bool has_runs; /* units move, not single ops */
    int max_stale;
    int num_stale;
    uint64_t sequence;

    lgi_line line; /* what is worked on */
    double line_ns;
    lgi_line best;
    double best_ns;
    bool has_best; /* `best` beats the plan that was given */
    lgi_line trial;

    double *start_ns; /* by op, of `line` */
    double *end_ns;
    int *lane_pos; /* by op */
    int *run;      /* scratch: nodes of a run */
    bool *is_seen; /* by node */
    int *stack;
    move *moves;
    size_t num_moves;
    size_t moves_capacity;

    /* list scheduling */
    int *num_waits;
    double *ready_ns;
    double *urgency;
    double *lane_ns;
    int *ready;
} improver;

static uint32_t next_number(improver *self)
{
    self->sequence = self->sequence * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(self->sequence >> 33);
}

static int next_below(improver *self, int bound)
{
    return (int)(next_number(self) % (uint32_t)bound);
}

/* --- judging -------------------------------------------------------------------------------------------------------------- */

static bool is_over(const improver *self)
{
    return !lgi_budget_allows(self->budget, self->facts.graph) ||
           self->num_stale >= self->max_stale ||
           self->best_ns <= self->bound_ns * (1.0 + SAME_TIME_FRAC);
}

/* Whether the work plan fits. Only asked for what is faster. */
static lg_status fits(const improver *self, bool *out)
{
    return lgi_strategy_fits(self->facts.work, self->input, out);
}

/*
 * Simulates `trial`. If its step is shorter than `limit_ns` it becomes `line`, with its times; *is_taken says so. Keeps
 * the best.
 */
static lg_status judge(improver *self, double limit_ns, bool *is_taken)
{
    lg_timeline timeline = {0};
    bool is_good = false;
    *is_taken = false;
    lgi_line_plan(&self->trial, &self->facts);
    LG_TRY(lgi_budget_simulate(self->budget, self->input, self->facts.work, &timeline));
    self->num_stale++;
    lg_status status = LG_OK;
    if (timeline.step_ns < limit_ns * (1.0 - SAME_TIME_FRAC)) {
        LG_TRY_GOTO(fits(self, &is_good));
    }
    if (is_good) {
        lgi_line_copy(&self->line, &self->trial, &self->facts);
        self->line_ns = timeline.step_ns;
        for (int i = 0; i < timeline.num_spans; i++) {
            self->start_ns[timeline.spans[i].op] = timeline.spans[i].start_ns;
            self->end_ns[timeline.spans[i].op] = timeline.spans[i].end_ns;
        }
        for (int lane = 0; lane < self->facts.work->num_lanes; lane++) {
            for (int i = 0; i < self->facts.work->lanes[lane].num_entries; i++) {
                self->lane_pos[self->facts.work->lanes[lane].entries[i].op] = i;
            }
        }
        *is_taken = true;
        if (self->line_ns < self->best_ns * (1.0 - SAME_TIME_FRAC)) {
            lgi_line_copy(&self->best, &self->line, &self->facts);
            self->best_ns = self->line_ns;
            self->has_best = true;
            self->num_stale = 0;
        }
    }
out:
    lg_timeline_deinit(&timeline);
    return status;
}

/* --- list scheduling ------------------------------------------------------------------------------------------------------ */

typedef enum urgency { BY_PATH, AS_BEFORE, BY_PHASE, NUM_URGENCIES } urgency;

static double node_ns(const improver *self, int node)
{
    return self->end_ns[node] - self->start_ns[node];
}

static double phase_urgency(const lg_op_info *info)
{
    static const double by_kind[LG_NUM_OP_KINDS] = {
        [LG_OP_INPUT_GRAD] = 3.0, [LG_OP_GRAD_ADD] = 3.0,   [LG_OP_LOSS] = 3.0,
        [LG_OP_SEND] = 3.0,       [LG_OP_RECV] = 3.0,       [LG_OP_FORWARD] = 2.0,
        [LG_OP_REORDER] = 2.0,    [LG_OP_WEIGHT_GRAD] = 1.0};
    return by_kind[info->kind] - 1e-6 * (double)(info->micro_batch > 0 ? info->micro_batch : 0);
}

/* Fills in urgencies for the lags of `trial`; `spread`: each is disturbed by up to this part. */
static void fill_urgencies(improver *self, urgency by, double spread)
{
    const lgi_line_facts *const f = &self->facts;
    for (int i = f->num_nodes - 1; i >= 0; i--) { /* behind each what waits for it */
        const int node = self->trial.order[i];
        double tail_ns = 0.0;
        for (int k = f->out_begin[node]; k < f->out_begin[node + 1] && by == BY_PATH; k++) {
            const lgi_line_arc arc = {node, f->out[k].distance};
            if (lgi_line_is_inside(&self->trial, arc, f->out[k].node)) {
                tail_ns = fmax(tail_ns, self->urgency[f->out[k].node]);
            }
        }
        self->urgency[node] = by == BY_PATH     ? node_ns(self, node) + tail_ns
                              : by == AS_BEFORE ? -(double)i
                                                : phase_urgency(lg_graph_op(f->graph, node));
    }
    for (int i = 0; i < f->num_nodes && spread > 0.0; i++) {
        double *const u = &self->urgency[f->node_of[self->trial.order[i]]];
        const double scale = by == AS_BEFORE ? (double)f->num_nodes : by == BY_PHASE ? 3.0 : *u;
        *u += spread * scale * ((double)next_below(self, 2001) / 1000.0 - 1.0);
    }
}

/* When the node can start: its sources and lanes. */
static double earliest_ns(const improver *self, int node)
{
    int num = 0;
    const int *const ops = lgi_node_ops(&self->facts, &node, &num);
    double ns = self->ready_ns[node];
    for (int k = 0; k < num; k++) {
        ns = fmax(ns, self->lane_ns[self->facts.lane_of[ops[k]]]);
    }
    return ns;
}

static bool shares_lane(const improver *self, int a, int b)
{
    int num_a = 0;
    int num_b = 0;
    const int *const ops_a = lgi_node_ops(&self->facts, &a, &num_a);
    const int *const ops_b = lgi_node_ops(&self->facts, &b, &num_b);
    for (int i = 0; i < num_a; i++) {
        for (int k = 0; k < num_b; k++) {
            if (self->facts.lane_of[ops_a[i]] == self->facts.lane_of[ops_b[k]]) {
                return true;
            }
        }
    }
    return false;
}

/* Index into `ready` of the node that is next. */
static int choose_next(const improver *self, int num_ready, double patience)
{
    int first = 0;
    double first_ns = INFINITY;
    for (int i = 0; i < num_ready; i++) {
        const double ns = earliest_ns(self, self->ready[i]);
        if (ns < first_ns ||
            (ns == first_ns && self->urgency[self->ready[i]] > self->urgency[self->ready[first]])) {
            first = i;
            first_ns = ns;
        }
    }
    int best = first;
    const double limit_ns = first_ns + patience * node_ns(self, self->ready[first]);
    for (int i = 0; i < num_ready && patience > 0.0; i++) {
        if (self->urgency[self->ready[i]] > self->urgency[self->ready[best]] &&
            earliest_ns(self, self->ready[i]) < limit_ns &&
            shares_lane(self, self->ready[i], self->ready[first])) {
            best = i;
        }
    }
    return best;
}

/* Makes a new order of `trial` with its lags. */
static void list_trial(improver *self, double patience)
{
    const lgi_line_facts *const f = &self->facts;
    int num_ready = 0;
    int num_done = 0;
    memset(self->lane_ns, 0, (size_t)f->shape->num_lanes * sizeof(double));
    for (int i = 0; i < f->num_nodes; i++) {
        const int node = self->trial.order[i];
        self->num_waits[node] = 0;
        self->ready_ns[node] = 0.0;
        for (int k = f->in_begin[node]; k < f->in_begin[node + 1]; k++) {
            self->num_waits[node] += lgi_line_is_inside(&self->trial, f->in[k], node) ? 1 : 0;
        }
        if (self->num_waits[node] == 0) {
            self->ready[num_ready++] = node;
        }
    }
    while (num_ready > 0) {
        const int idx = choose_next(self, num_ready, patience);
        const int node = self->ready[idx];
        const double end_ns = earliest_ns(self, node) + node_ns(self, node);
        int num = 0;
        const int *const ops = lgi_node_ops(f, &node, &num);
        for (int k = 0; k < num; k++) {
            self->lane_ns[f->lane_of[ops[k]]] = end_ns;
        }
        self->ready[idx] = self->ready[--num_ready];
        self->trial.pos[node] = num_done;
        self->trial.order[num_done++] = node;
        for (int k = f->out_begin[node]; k < f->out_begin[node + 1]; k++) {
            const int to = f->out[k].node;
            const lgi_line_arc arc = {node, f->out[k].distance};
            if (lgi_line_is_inside(&self->trial, arc, to)) {
                self->ready_ns[to] = fmax(self->ready_ns[to], end_ns);
                if (--self->num_waits[to] == 0) {
                    self->ready[num_ready++] = to;
                }
            }
        }
    }
}

static lg_status try_list(improver *self, urgency by, double spread, double patience,
                          double limit_ns, bool *is_taken)
{
    fill_urgencies(self, by, spread);
    list_trial(self, patience);
    return judge(self, limit_ns, is_taken);
}

/* --- moves ---------------------------------------------------------------------------------------------------------------- */

static lg_status add_move(improver *self, move_kind kind, int node, int target)
{
    LG_TRY(lgi_grow(&self->moves, &self->moves_capacity, self->num_moves + 1, sizeof *self->moves));
    self->moves[self->num_moves].kind = kind;
    self->moves[self->num_moves].node = node;
    self->moves[self->num_moves++].target = target;
    return LG_OK;
}

static bool is_same_unit(const improver *self, int a, int b)
{
    const lg_op_info *const x = lg_graph_op(self->facts.graph, a);
    const lg_op_info *const y = lg_graph_op(self->facts.graph, b);
    const bool is_weight_x = x->kind == LG_OP_WEIGHT_GRAD;
    const bool is_weight_y = y->kind == LG_OP_WEIGHT_GRAD;
    const bool is_forward_x = x->kind == LG_OP_FORWARD || x->kind == LG_OP_LOSS;
    const bool is_forward_y = y->kind == LG_OP_FORWARD || y->kind == LG_OP_LOSS;
    return x->group < 0 && y->group < 0 && x->micro_batch >= 0 && x->stage == y->stage &&
           x->micro_batch == y->micro_batch && is_weight_x == is_weight_y &&
           is_forward_x == is_forward_y;
}

static const lg_plan_entry *lane_entries(const improver *self, int op, int *num)
{
    const lg_lane *const lane = &self->facts.work->lanes[self->facts.lane_of[op]];
    *num = lane->num_entries;
    return lane->entries;
}

/* The run in its lane that `op` begins (step 1) or ends (step -1); returns how many. The lanes are those of `line`. */
static int find_run(improver *self, int op, int step)
{
    int num_entries = 0;
    int num = 0;
    const lg_plan_entry *const entries = lane_entries(self, op, &num_entries);
    for (int i = self->lane_pos[op]; i >= 0 && i < num_entries; i += step) {
        if (num > 0 && (!self->has_runs || !is_same_unit(self, op, entries[i].op))) {
            break;
        }
        self->run[num++] = self->facts.node_of[entries[i].op];
    }
    return num;
}

static lg_status add_pair(improver *self, int before, int op)
{
    const int first = find_run(self, before, -1);
    LG_TRY(add_move(self, MOVE_BEFORE, op, self->run[first - 1]));
    const int num = find_run(self, op, 1);
    return add_move(self, MOVE_AFTER, before, self->run[num - 1]);
}

/* Later entries of the lane come forward to where `op` let it idle. */
static lg_status add_fillers(improver *self, int op)
{
    int num_entries = 0;
    int num = 0;
    const lg_plan_entry *const entries = lane_entries(self, op, &num_entries);
    for (int i = self->lane_pos[op] + 1; i < num_entries && num < NUM_FILLERS; i++) {
        const int other = entries[i].op;
        if (!self->has_runs || !is_same_unit(self, other, entries[i - 1].op)) {
            LG_TRY(add_move(self, MOVE_BEFORE, other, self->facts.node_of[op]));
            num++;
        }
    }
    return LG_OK;
}

/* Goes back from one op of the node: what it was just in time for. */
static lg_status trace_op(improver *self, int op, double slack_ns, int *num_stack)
{
    const lgi_line_facts *const f = &self->facts;
    int num_entries = 0;
    const lg_plan_entry *const entries = lane_entries(self, op, &num_entries);
    const int pos = self->lane_pos[op];
    const int before = pos > 0 ? entries[pos - 1].op : -1;
    if (before >= 0 && self->end_ns[before] >= self->start_ns[op] - slack_ns) {
        LG_TRY(add_pair(self, before, op));
        if (!self->is_seen[f->node_of[before]]) {
            self->is_seen[f->node_of[before]] = true;
            self->stack[(*num_stack)++] = f->node_of[before];
        }
    } else if (f->work->lanes[f->lane_of[op]].kind == LG_LANE_COMPUTE) {
        LG_TRY(add_fillers(self, op));
    }
    return LG_OK;
}

static void push_rank_ends(improver *self, int rank, double slack_ns, int *num_stack)
{
    double last_ns = -INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (int lane = 0; lane < self->facts.work->num_lanes; lane++) {
            const lg_lane *const l = &self->facts.work->lanes[lane];
            if (l->rank != rank || l->num_entries == 0) {
                continue;
            }
            const int op = l->entries[l->num_entries - 1].op;
            const int node = self->facts.node_of[op];
            if (pass == 0) {
                last_ns = fmax(last_ns, self->end_ns[op]);
            } else if (self->end_ns[op] >= last_ns - slack_ns && !self->is_seen[node]) {
                self->is_seen[node] = true;
                self->stack[(*num_stack)++] = node;
            }
        }
    }
}

/* Collects moves along what decides the step time, over the iteration's begin too. */
static lg_status trace(improver *self)
{
    const lgi_line_facts *const f = &self->facts;
    const double slack_ns = self->line_ns * SAME_TIME_FRAC;
    int num_stack = 0;
    double last_ns = -INFINITY;
    int last = -1;
    memset(self->is_seen, 0, (size_t)f->num_ops * sizeof(bool));
    for (int op = 0; op < f->num_ops; op++) {
        if (self->end_ns[op] > last_ns) {
            last_ns = self->end_ns[op];
            last = op;
        }
    }
    push_rank_ends(self, lg_graph_op(f->graph, last)->rank, slack_ns, &num_stack);
    while (num_stack > 0) {
        const int node = self->stack[--num_stack];
        int num = 0;
        const int *const ops = lgi_node_ops(f, &node, &num);
        const int num_before = num_stack;
        for (int k = 0; k < num; k++) {
            LG_TRY(trace_op(self, ops[k], slack_ns, &num_stack));
        }
        bool has_cause = num_stack > num_before;
        for (int i = f->in_begin[node]; i < f->in_begin[node + 1]; i++) {
            const int from = f->in[i].node;
            if (lgi_line_is_inside(&self->line, f->in[i], node) &&
                self->end_ns[from] >= self->start_ns[node] - slack_ns) {
                has_cause = true;
                if (!self->is_seen[from]) {
                    self->is_seen[from] = true;
                    self->stack[num_stack++] = from;
                }
            }
        }
        for (int k = 0; k < num && !has_cause; k++) { /* it waited for the iteration before */
            push_rank_ends(self, lg_graph_op(f->graph, ops[k])->rank, slack_ns, &num_stack);
        }
    }
    return LG_OK;
}

static lg_status add_lag_moves(improver *self)
{
    const lgi_line_facts *const f = &self->facts;
    for (int i = 0; i < f->num_nodes && self->input->opts.allow_lag; i++) {
        const int node = self->line.order[i];
        if (!f->may_lag[node]) {
            continue;
        }
        if (self->line.lag[node] == 0) {
            LG_TRY(add_move(self, MOVE_DEFER_LATE, node, -1));
            LG_TRY(add_move(self, MOVE_DEFER_FIRST, node, -1));
        } else {
            LG_TRY(add_move(self, MOVE_UNDEFER, node, -1));
        }
    }
    return LG_OK;
}

/* Applies a move to `trial`, which is a copy of `line`. */
static bool apply(improver *self, const move *m)
{
    lgi_line *const t = &self->trial;
    const lgi_line_facts *const f = &self->facts;
    switch (m->kind) {
    case MOVE_BEFORE:
        return lgi_line_move_before(t, f, self->run, find_run(self, m->node, 1), m->target);
    case MOVE_AFTER:
        return lgi_line_move_after(t, f, self->run, find_run(self, m->node, -1), m->target);
    case MOVE_DEFER_FIRST:
        return lgi_line_defer(t, f, m->node, LGI_LINE_FIRST);
    case MOVE_DEFER_LATE:
        return lgi_line_defer(t, f, m->node, LGI_LINE_LATE);
    case MOVE_UNDEFER:
        return lgi_line_undefer(t, f, m->node);
    default:
        return false;
    }
}

/* Tries the moves until one is taken. */
static lg_status try_moves(improver *self, bool *is_taken)
{
    *is_taken = false;
    /* moves begin at another place each time, so that a budget that ends early is spread over the step */
    const size_t begin = self->num_moves > 0 ? next_number(self) % self->num_moves : 0;
    for (size_t i = 0; i < self->num_moves && !*is_taken && !is_over(self); i++) {
        lgi_line_plan(&self->line, &self->facts); /* runs are read off the lanes */
        lgi_line_copy(&self->trial, &self->line, &self->facts);
        if (apply(self, &self->moves[(begin + i) % self->num_moves])) {
            LG_TRY(judge(self, self->line_ns, is_taken));
        }
    }
    return LG_OK;
}

static lg_status climb(improver *self)
{
    bool is_taken = true;
    while (is_taken && !is_over(self)) {
        lgi_line_plan(&self->line, &self->facts);
        self->num_moves = 0;
        LG_TRY(trace(self));
        LG_TRY(try_moves(self, &is_taken));
        if (!is_taken) {
            self->num_moves = 0;
            LG_TRY(add_lag_moves(self));
            LG_TRY(try_moves(self, &is_taken));
        }
    }
    return LG_OK;
}

/* --- the whole ------------------------------------------------------------------------------------------------------------ */

static const double patience[] = {0.0, 0.5, 1.0};
#define NUM_PATIENCES ((int)(sizeof patience / sizeof patience[0]))

/* A few steps from the best: what makes `trial`. */
static void disturb(improver *self)
{
    const lgi_line_facts *const f = &self->facts;
    lgi_line_copy(&self->trial, &self->best, f);
    const int num = 1 + next_below(self, 4);
    for (int i = 0; i < num; i++) {
        const int a = next_below(self, f->num_nodes);
        const int reach = 1 + next_below(self, f->num_nodes < 60 ? f->num_nodes : 60);
        const int b = a > reach ? a - reach : 0;
        const int node = self->trial.order[a];
        const int target = self->trial.order[b];
        const int what = next_below(self, 8);
        if (what == 0 && self->input->opts.allow_lag && f->may_lag[node]) {
            if (!lgi_line_undefer(&self->trial, f, node)) {
                (void)lgi_line_defer(&self->trial, f, node,
                                     next_below(self, 2) == 0 ? LGI_LINE_LATE : LGI_LINE_FIRST);
            }
        } else if (what % 2 == 0) {
            (void)lgi_line_move_before(&self->trial, f, &node, 1, target);
        } else {
            (void)lgi_line_move_after(&self->trial, f, &target, 1, node);
        }
    }
}

static lg_status search_on(improver *self)
{
    bool is_taken = false;
    const bool can_list = self->facts.num_nodes <= MAX_LISTED_NODES;
    for (int i = 0; i < NUM_URGENCIES * NUM_PATIENCES && can_list && !is_over(self); i++) {
        lgi_line_copy(&self->trial, &self->line, &self->facts);
        LG_TRY(try_list(self, (urgency)(i % NUM_URGENCIES), 0.0, patience[i / NUM_URGENCIES],
                        self->line_ns, &is_taken));
    }
    LG_TRY(climb(self));
    for (int round = 0; !is_over(self); round++) {
        const double limit_ns = self->best_ns * (1.0 + NEAR_FRAC);
        disturb(self);
        if (round % 2 == 0 || !can_list) {
            LG_TRY(judge(self, limit_ns, &is_taken));
        } else {
            LG_TRY(try_list(self, (urgency)(round / 2 % NUM_URGENCIES),
                            0.05 * (double)(1 + next_below(self, 6)),
                            patience[next_below(self, NUM_PATIENCES)], limit_ns, &is_taken));
        }
        if (is_taken) {
            LG_TRY(climb(self));
        }
    }
    return LG_OK;
}

static lg_status improver_init(improver *self, const lg_plan *plan)
{
    LG_TRY(lgi_line_facts_init(&self->facts, self->input->graph, plan));
    LG_TRY(lgi_line_init(&self->line, &self->facts));
    LG_TRY(lgi_line_init(&self->best, &self->facts));
    LG_TRY(lgi_line_init(&self->trial, &self->facts));
    const size_t num_ops = (size_t)self->facts.num_ops;
    LG_TRY(lgi_calloc(&self->start_ns, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&self->end_ns, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&self->lane_pos, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->run, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->is_seen, num_ops, sizeof(bool)));
    LG_TRY(lgi_calloc(&self->stack, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->num_waits, num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->ready_ns, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&self->urgency, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&self->lane_ns, (size_t)plan->num_lanes, sizeof(double)));
    LG_TRY(lgi_calloc(&self->ready, num_ops, sizeof(int)));
    self->has_runs = self->facts.num_nodes > MAX_SINGLE_NODES;
    self->max_stale = MIN_STALE + STALE_PER_NODE * self->facts.num_nodes;
    return lgi_line_read(&self->trial, &self->facts);
}

static void improver_deinit(improver *self)
{
    lgi_line_deinit(&self->line);
    lgi_line_deinit(&self->best);
    lgi_line_deinit(&self->trial);
    lgi_free(self->start_ns);
    lgi_free(self->end_ns);
    lgi_free(self->lane_pos);
    lgi_free(self->run);
    lgi_free(self->is_seen);
    lgi_free(self->stack);
    lgi_free(self->moves);
    lgi_free(self->num_waits);
    lgi_free(self->ready_ns);
    lgi_free(self->urgency);
    lgi_free(self->lane_ns);
    lgi_free(self->ready);
    lgi_line_facts_deinit(&self->facts);
}

/* Lanes that share cores are kept apart by syncs, which a new order would have to make anew. */
static bool has_shared_cores(const lg_plan *plan)
{
    for (int a = 0; a < plan->num_lanes; a++) {
        const lg_lane *const x = &plan->lanes[a];
        for (int b = a + 1; b < plan->num_lanes && x->num_cores > 0; b++) {
            const lg_lane *const y = &plan->lanes[b];
            if (x->rank == y->rank && y->num_cores > 0 &&
                x->first_core < y->first_core + y->num_cores &&
                y->first_core < x->first_core + x->num_cores) {
                return true;
            }
        }
    }
    return false;
}

lg_status lgi_auto_improve(lg_plan **out, double *out_ns, const lg_plan *plan, double step_ns,
                           double bound_ns, const lgi_strategy_input *input, lgi_budget *budget)
{
    lg_status status = LG_OK;
    bool is_taken = false;
    improver self = {.input = input,
                     .budget = budget,
                     .bound_ns = bound_ns,
                     .best_ns = step_ns,
                     .line_ns = INFINITY};
    *out = NULL;
    if (lg_graph_num_ops(input->graph) == 0 || has_shared_cores(plan) ||
        !lgi_budget_allows(budget, input->graph)) {
        return LG_OK;
    }
    LG_TRY_GOTO(improver_init(&self, plan));
    /* the given order, without the syncs that a barrier may have added */
    LG_TRY_GOTO(judge(&self, INFINITY, &is_taken));
    lgi_line_copy(&self.best, is_taken ? &self.line : &self.trial, &self.facts);
    if (is_taken) {
        LG_TRY_GOTO(search_on(&self));
    }
    if (self.has_best) {
        lgi_line_plan(&self.best, &self.facts);
        LG_TRY_GOTO(lgi_plan_place(self.facts.work, input->graph));
        LG_TRY_GOTO(lg_plan_check(self.facts.work, input->graph, input->opts.memory_bytes));
        *out = self.facts.work;
        *out_ns = self.best_ns;
        self.facts.work = NULL;
    }
out:
    improver_deinit(&self);
    return status;
}
