/*
 * List scheduling on paper. Ops are given to lanes one after another, each only after everything that it waits for inside
 * the iteration, so the order of giving is a total order that agrees with lanes, edges and syncs: nothing can deadlock.
 *
 * A main op goes to its rank's first lane (or the wide one). Before that, the other lanes take from the queue whatever
 * they can start earlier. Lagged ops come first, by deadline, then ops in the order in which they became ready, an update
 * before anything else that became ready no earlier: right after its last weight gradient.
 *
 * Source: the queue and the move into the next step's forward follow Oh et al., "Out-Of-Order BackProp" (EuroSys 2022),
 * section 4.1; the scheduling itself is Graham's (1966).
 */
#include "plan/strategies/queue_schedule.h"

#include <limits.h>
#include <math.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_order.h"

typedef struct lane_state {
    double free_ns;
    int width_idx;
    int last_op;    /* -1: none since the last wide op */
    int after_wide; /* the wide op that the next op of this narrow lane must wait for; -1: none */
} lane_state;

typedef struct scheduler {
    const lgi_queue_facts *facts;
    const lgi_queue_recipe *recipe;
    lg_plan *plan;
    lane_state *lanes;
    int lanes_per_rank;
    int wide_lane; /* of a rank; -1: none */
    int comm_lane;
    int *lag;         /* by op */
    int *num_waits;   /* by op: ops of the iteration that it waits for and that are not given yet */
    double *end_ns;   /* by op */
    double *ready_ns; /* by op: when all it waits for has ended */
    bool *is_given;   /* by op */
    bool *is_in_queue; /* by op */
    int *queue;        /* ops, all ranks; unordered */
    int num_queued;
    size_t syncs_capacity;
    int num_given;
} scheduler;

static bool is_inside(const scheduler *self, const lg_edge *edge)
{
    return !lgi_is_meeting(self->facts->input->graph, edge) &&
           lgi_edge_delta(edge->distance, self->lag[edge->from], self->lag[edge->to]) == 0;
}

static int first_lane(const scheduler *self, int op)
{
    return lg_graph_op(self->facts->input->graph, op)->rank * self->lanes_per_rank;
}

/* The ops that `op` meets, itself among them. */
static const int *ops_of_meeting(const scheduler *self, const int *op, int *num)
{
    const lgi_groups *const groups = &self->facts->groups;
    const int group = lg_graph_op(self->facts->input->graph, *op)->group;
    *num = group < 0 ? 1 : groups->begin[group + 1] - groups->begin[group];
    return group < 0 ? op : groups->ops + groups->begin[group];
}

/* Ops that meet stand in the queue as their first, once all of them are ready. */
static void enqueue_if_ready(scheduler *self, int op)
{
    int num = 0;
    const int *const ops = ops_of_meeting(self, &op, &num);
    for (int i = 0; i < num; i++) {
        if (self->num_waits[ops[i]] > 0) {
            return;
        }
    }
    const int first = ops[0];
    if (self->facts->main_pos[first] < 0 && !self->is_given[first] && !self->is_in_queue[first]) {
        for (int i = 1; i < num; i++) {
            self->ready_ns[first] = fmax(self->ready_ns[first], self->ready_ns[ops[i]]);
        }
        self->is_in_queue[first] = true;
        self->queue[self->num_queued++] = first;
    }
}

static lg_status add_sync(scheduler *self, int from, int to)
{
    lg_plan *const plan = self->plan;
    LG_TRY(lgi_grow(&plan->syncs, &self->syncs_capacity, (size_t)plan->num_syncs + 1,
                    sizeof *plan->syncs));
    plan->syncs[plan->num_syncs++] = (lg_plan_sync){.from = from, .to = to, .distance = 0};
    return LG_OK;
}

/* Syncs that keep the wide lane and the narrow ones of a rank apart: only where the rank changes from one to the other. */
static lg_status add_form_syncs(scheduler *self, int op, int lane)
{
    const int base = first_lane(self, op);
    if (self->wide_lane < 0 || lane - base == self->comm_lane) {
        return LG_OK;
    }
    if (lane - base != self->wide_lane) {
        if (self->lanes[lane].after_wide >= 0) {
            LG_TRY(add_sync(self, self->lanes[lane].after_wide, op));
            self->lanes[lane].after_wide = -1;
        }
        self->lanes[lane].last_op = op;
        return LG_OK;
    }
    for (int k = 0; k < self->recipe->num_lanes; k++) {
        lane_state *const other = &self->lanes[base + k];
        if (other->last_op >= 0) {
            LG_TRY(add_sync(self, other->last_op, op));
            other->last_op = -1;
        }
        other->after_wide = op;
    }
    return LG_OK;
}

/* Gives an op whose waits are over to a lane, where it starts no earlier than `start_ns`. */
static lg_status give_one(scheduler *self, int op, int lane, double start_ns)
{
    const lgi_queue_facts *const facts = self->facts;
    const lg_edge *const edges = lg_graph_edges(facts->input->graph);
    lg_lane *const target = &self->plan->lanes[lane];
    const int base = first_lane(self, op);
    start_ns = fmax(start_ns, fmax(self->lanes[lane].free_ns, self->ready_ns[op]));
    if (lane - base == self->wide_lane) {
        for (int k = 0; k < self->recipe->num_lanes; k++) {
            start_ns = fmax(start_ns, self->lanes[base + k].free_ns);
        }
    }
    const double end_ns =
        start_ns + lg_costs_op_ns(facts->input->costs, op, self->lanes[lane].width_idx);
    LG_TRY(add_form_syncs(self, op, lane));
    target->entries[target->num_entries++] = (lg_plan_entry){.op = op, .lag = self->lag[op]};
    self->lanes[lane].free_ns = end_ns;
    if (lane - base == self->wide_lane) {
        for (int k = 0; k < self->recipe->num_lanes; k++) {
            self->lanes[base + k].free_ns = end_ns;
        }
    }
    self->end_ns[op] = end_ns;
    self->is_given[op] = true;
    self->num_given++;
    for (int i = facts->out_begin[op]; i < facts->out_begin[op + 1]; i++) {
        const lg_edge *const edge = &edges[facts->out_edges[i]];
        if (is_inside(self, edge)) {
            self->ready_ns[edge->to] = fmax(self->ready_ns[edge->to], end_ns);
            self->num_waits[edge->to]--;
            enqueue_if_ready(self, edge->to);
        }
    }
    return LG_OK;
}

/* Gives an op to a lane; one that meets others goes with them to the comm lanes of their ranks. */
static lg_status give(scheduler *self, int op, int lane)
{
    if (!lgi_is_comm_op(lg_graph_op(self->facts->input->graph, op)->kind)) {
        return give_one(self, op, lane, 0.0);
    }
    int num = 0;
    double start_ns = 0.0;
    const int *const ops = ops_of_meeting(self, &op, &num);
    for (int i = 0; i < num; i++) {
        const int comm_lane = first_lane(self, ops[i]) + self->comm_lane;
        start_ns = fmax(start_ns, fmax(self->lanes[comm_lane].free_ns, self->ready_ns[ops[i]]));
    }
    for (int i = 0; i < num; i++) {
        LG_TRY(give_one(self, ops[i], first_lane(self, ops[i]) + self->comm_lane, start_ns));
    }
    return LG_OK;
}

/* --- queue ---------------------------------------------------------------------------------------------------------- */

/* Whether `a` is to be taken before `b` by a lane that is free at `free_ns`. */
static bool goes_first(const scheduler *self, int a, int b, double free_ns)
{
    const double start_a = fmax(self->ready_ns[a], free_ns);
    const double start_b = fmax(self->ready_ns[b], free_ns);
    if (start_a != start_b) {
        return start_a < start_b;
    }
    if (self->lag[a] != self->lag[b]) {
        return self->lag[a] > self->lag[b];
    }
    if (self->lag[a] > 0 && self->facts->deadline[a] != self->facts->deadline[b]) {
        return self->facts->deadline[a] < self->facts->deadline[b];
    }
    const lg_graph *const graph = self->facts->input->graph;
    const bool is_update_a = lg_graph_op(graph, a)->kind == LG_OP_UPDATE;
    const bool is_update_b = lg_graph_op(graph, b)->kind == LG_OP_UPDATE;
    if (is_update_a != is_update_b) {
        return is_update_a;
    }
    if (self->ready_ns[a] != self->ready_ns[b]) {
        return self->ready_ns[a] < self->ready_ns[b];
    }
    return a < b;
}

/* The queued op of the rank that a lane free at `free_ns` takes: index into the queue, or -1. */
static int pick(const scheduler *self, int rank, double free_ns)
{
    int best = -1;
    for (int i = 0; i < self->num_queued; i++) {
        const int op = self->queue[i];
        if (lg_graph_op(self->facts->input->graph, op)->rank == rank &&
            (best < 0 || goes_first(self, op, self->queue[best], free_ns))) {
            best = i;
        }
    }
    return best;
}

static lg_status give_queued(scheduler *self, int queue_idx, int lane)
{
    const int op = self->queue[queue_idx];
    self->queue[queue_idx] = self->queue[--self->num_queued];
    self->is_in_queue[op] = false;
    return give(self, op, lane);
}

/* The lane of a rank that is free first, from narrow lane `first` on; ties go to the last, away from the main chain. */
static int free_lane(const scheduler *self, int rank, int first)
{
    int best = -1;
    for (int k = first; k < self->recipe->num_lanes; k++) {
        const int lane = rank * self->lanes_per_rank + k;
        if (best < 0 || self->lanes[lane].free_ns <= self->lanes[best].free_ns) {
            best = lane;
        }
    }
    return best;
}

/* Lets the other lanes take what they can start before `until_ns`. */
static lg_status fill_other_lanes(scheduler *self, int rank, double until_ns)
{
    for (;;) {
        const int lane = free_lane(self, rank, 1);
        if (lane < 0 || self->lanes[lane].free_ns >= until_ns) {
            return LG_OK;
        }
        const int i = pick(self, rank, self->lanes[lane].free_ns);
        if (i < 0 || self->ready_ns[self->queue[i]] >= until_ns) {
            return LG_OK;
        }
        LG_TRY(give_queued(self, i, lane));
    }
}

static int num_queued_of(const scheduler *self, int rank)
{
    int num = 0;
    for (int i = 0; i < self->num_queued; i++) {
        num += lg_graph_op(self->facts->input->graph, self->queue[i])->rank == rank ? 1 : 0;
    }
    return num;
}

/* Gives all that is queued, and what becomes ready by that, to the rank's narrow lanes in balance, or to the wide one. */
static lg_status drain(scheduler *self, int rank, bool is_wide)
{
    for (;;) {
        const int lane =
            is_wide ? rank * self->lanes_per_rank + self->wide_lane : free_lane(self, rank, 0);
        const int i = pick(self, rank, self->lanes[lane].free_ns);
        if (i < 0) {
            return LG_OK;
        }
        LG_TRY(give_queued(self, i, lane));
    }
}

/* --- main chain ------------------------------------------------------------------------------------------------------- */

static bool is_narrow(const scheduler *self, int pos)
{
    return self->wide_lane < 0 ||
           (pos >= self->recipe->narrow_begin && pos < self->recipe->narrow_end);
}

/* Gives what `op` waits for and nobody has taken yet: lagged ops, their followers, and so on. */
static lg_status give_waits(scheduler *self, int op, bool is_wide)
{
    const lgi_queue_facts *const facts = self->facts;
    const lg_edge *const edges = lg_graph_edges(facts->input->graph);
    for (int i = facts->edge_begin[op]; i < facts->edge_begin[op + 1] && self->num_waits[op] > 0;
         i++) {
        const int from = edges[i].from;
        if (!is_inside(self, &edges[i]) || self->is_given[from]) {
            continue;
        }
        int num_met = 0;
        const int *const met = ops_of_meeting(self, &from, &num_met);
        for (int k = 0; k < num_met; k++) {
            LG_TRY(give_waits(self, met[k], is_wide));
        }
        int queue_idx = 0;
        while (queue_idx < self->num_queued && self->queue[queue_idx] != met[0]) {
            queue_idx++;
        }
        if (queue_idx == self->num_queued) {
            LG_FAIL(LG_INTERNAL, "op '%s' waits for '%s', which never becomes ready",
                    lg_graph_op(facts->input->graph, op)->name,
                    lg_graph_op(facts->input->graph, from)->name);
        }
        const int rank = lg_graph_op(facts->input->graph, from)->rank;
        LG_TRY(give_queued(self, queue_idx,
                           is_wide ? rank * self->lanes_per_rank + self->wide_lane
                                   : free_lane(self, rank, self->recipe->num_lanes > 1 ? 1 : 0)));
    }
    return LG_OK;
}

static lg_status give_narrow(scheduler *self, int op)
{
    const int lane = first_lane(self, op);
    const int rank = lg_graph_op(self->facts->input->graph, op)->rank;
    while (num_queued_of(self, rank) > self->recipe->max_queued) {
        const int helper = free_lane(self, rank, 0);
        LG_TRY(give_queued(self, pick(self, rank, self->lanes[helper].free_ns), helper));
    }
    LG_TRY(fill_other_lanes(self, rank, fmax(self->lanes[lane].free_ns, self->ready_ns[op])));
    /* a queued op that ends before the main op could start costs nothing */
    for (;;) {
        const int i = pick(self, rank, self->lanes[lane].free_ns);
        if (i < 0 || fmax(self->lanes[lane].free_ns, self->ready_ns[self->queue[i]]) +
                             lg_costs_op_ns(self->facts->input->costs, self->queue[i],
                                            self->lanes[lane].width_idx) >
                         self->ready_ns[op]) {
            break;
        }
        LG_TRY(give_queued(self, i, lane));
    }
    return give(self, op, lane);
}

static lg_status give_main(scheduler *self, int pos)
{
    const lg_graph *const graph = self->facts->input->graph;
    const int op = self->facts->main_ops[pos];
    const int rank = lg_graph_op(graph, op)->rank;
    const bool is_wide = !is_narrow(self, pos);
    int num_met = 0;
    const int *const met = ops_of_meeting(self, &op, &num_met);
    if (self->is_given[op]) {
        return LG_OK; /* with the first of those that it meets */
    }
    if (is_wide && pos > 0 && is_narrow(self, pos - 1)) {
        LG_TRY(drain(self, rank, false));
    }
    for (int i = 0; i < num_met; i++) {
        LG_TRY(give_waits(self, met[i], is_wide));
    }
    if (lgi_is_comm_op(lg_graph_op(graph, op)->kind)) {
        return give(self, op, first_lane(self, op) + self->comm_lane);
    }
    if (!is_wide) {
        return give_narrow(self, op);
    }
    LG_TRY(give(self, op, first_lane(self, op) + self->wide_lane));
    const bool is_deferring = pos >= self->recipe->defer_from && pos < self->recipe->narrow_end &&
                              self->recipe->narrow_end > self->recipe->narrow_begin;
    return is_deferring ? LG_OK : drain(self, rank, true);
}

/* --- frame ------------------------------------------------------------------------------------------------------------ */

static lg_status init_lanes(scheduler *self)
{
    const lg_graph *const graph = self->facts->input->graph;
    const lgi_queue_recipe *const recipe = self->recipe;
    const int num_ranks = lg_graph_num_ranks(graph);
    self->wide_lane = recipe->num_wide_threads > 0 ? recipe->num_lanes : -1;
    self->lanes_per_rank = recipe->num_lanes + (recipe->num_wide_threads > 0 ? 1 : 0);
    self->comm_lane = self->facts->has_comm ? self->lanes_per_rank++ : -1;
    LG_TRY(lgi_plan_init(&self->plan, graph, "out-of-order", num_ranks * self->lanes_per_rank));
    LG_TRY(lgi_calloc(&self->lanes, (size_t)self->plan->num_lanes, sizeof *self->lanes));
    for (int i = 0; i < self->plan->num_lanes; i++) {
        lg_lane *const lane = &self->plan->lanes[i];
        const int k = i % self->lanes_per_rank;
        lane->rank = i / self->lanes_per_rank;
        if (k == self->comm_lane) {
            lane->kind = LG_LANE_COMM;
        } else if (k == self->wide_lane) {
            lane->num_cores = recipe->num_wide_threads;
        } else {
            lane->first_core = k * recipe->num_threads;
            lane->num_cores = recipe->num_threads;
        }
        self->lanes[i].width_idx = lgi_width_idx(graph, lane->num_cores);
        self->lanes[i].last_op = -1;
        self->lanes[i].after_wide = -1;
        LG_TRY(lgi_calloc(&lane->entries, (size_t)self->plan->num_ops, sizeof *lane->entries));
    }
    return LG_OK;
}

static lg_status init_ops(scheduler *self)
{
    const lgi_queue_facts *const facts = self->facts;
    const lg_graph *const graph = facts->input->graph;
    const lg_edge *const edges = lg_graph_edges(graph);
    const size_t num_ops = (size_t)self->plan->num_ops;
    LG_TRY(lgi_calloc(&self->lag, num_ops, sizeof *self->lag));
    LG_TRY(lgi_calloc(&self->num_waits, num_ops, sizeof *self->num_waits));
    LG_TRY(lgi_calloc(&self->end_ns, num_ops, sizeof *self->end_ns));
    LG_TRY(lgi_calloc(&self->ready_ns, num_ops, sizeof *self->ready_ns));
    LG_TRY(lgi_calloc(&self->is_given, num_ops, sizeof *self->is_given));
    LG_TRY(lgi_calloc(&self->is_in_queue, num_ops, sizeof *self->is_in_queue));
    LG_TRY(lgi_calloc(&self->queue, num_ops, sizeof *self->queue));
    for (int i = 0; i < self->recipe->num_lagged && i < facts->num_laggable; i++) {
        self->lag[facts->lag_list[i]] = 1;
    }
    for (int i = 0; i < lg_graph_num_edges(graph); i++) {
        self->num_waits[edges[i].to] += is_inside(self, &edges[i]) ? 1 : 0;
    }
    for (int op = 0; op < self->plan->num_ops; op++) {
        enqueue_if_ready(self, op);
    }
    return LG_OK;
}

/* A pace waits only for what ends by this part of the step earlier: being late by less costs nothing. */
#define PACE_SLACK_FRAC 0.05

/* Lets the first lane of a rank keep pace with another one: see num_paces. */
static lg_status add_paces(scheduler *self, int first, int other)
{
    const lg_lane *const lane = &self->plan->lanes[first];
    const lg_lane *const other_lane = &self->plan->lanes[other];
    const double slack_ns = PACE_SLACK_FRAC * self->lanes[first].free_ns;
    int num_waited = 0; /* entries of the other lane */
    for (int i = 1; i <= self->recipe->num_paces; i++) {
        const int pos = (int)((int64_t)lane->num_entries * i / (self->recipe->num_paces + 1));
        if (pos >= lane->num_entries) {
            break;
        }
        const int op = lane->entries[pos].op;
        const double start_ns = self->end_ns[op] - lg_costs_op_ns(self->facts->input->costs, op,
                                                                  self->lanes[first].width_idx);
        int num = num_waited;
        while (num < other_lane->num_entries &&
               self->end_ns[other_lane->entries[num].op] <= start_ns - slack_ns) {
            num++;
        }
        if (num > num_waited) {
            LG_TRY(add_sync(self, other_lane->entries[num - 1].op, op));
            num_waited = num;
        }
    }
    return LG_OK;
}

/* Lanes without ops go, unless the options ask for a number of lanes. */
static void drop_empty_lanes(scheduler *self)
{
    lg_plan *const plan = self->plan;
    int num = 0;
    for (int i = 0; i < plan->num_lanes; i++) {
        if (plan->lanes[i].num_entries > 0) {
            plan->lanes[num++] = plan->lanes[i];
        } else {
            lgi_free(plan->lanes[i].entries);
        }
    }
    plan->num_lanes = num;
}

lg_status lgi_queue_schedule(lg_plan **out, const lgi_queue_facts *facts,
                             const lgi_queue_recipe *recipe)
{
    lg_status status = LG_OK;
    scheduler self = {.facts = facts, .recipe = recipe};
    *out = NULL;
    LG_TRY_GOTO(init_lanes(&self));
    LG_TRY_GOTO(init_ops(&self));
    for (int pos = 0; pos < facts->num_main; pos++) {
        LG_TRY_GOTO(give_main(&self, pos));
    }
    const bool ends_wide = self.wide_lane >= 0 && recipe->narrow_end < facts->num_main;
    int num_given_before = -1;
    while (self.num_given !=
           num_given_before) { /* what one rank gives may make another one's ops ready */
        num_given_before = self.num_given;
        for (int rank = 0; rank < self.plan->num_ranks; rank++) {
            LG_TRY_GOTO(drain(&self, rank, ends_wide));
        }
    }
    if (self.num_given != self.plan->num_ops) {
        status = lgi_fail(LG_INTERNAL, "the queue gave %d of %d ops to lanes", self.num_given,
                          self.plan->num_ops);
        goto out;
    }
    for (int rank = 0; rank < self.plan->num_ranks; rank++) {
        for (int k = 1; k < recipe->num_lanes; k++) {
            LG_TRY_GOTO(
                add_paces(&self, rank * self.lanes_per_rank, rank * self.lanes_per_rank + k));
        }
    }
    if (facts->input->opts.num_lanes == 0) {
        drop_empty_lanes(&self);
    }
    *out = self.plan;
    self.plan = NULL;
out:
    lg_plan_destroy(self.plan);
    lgi_free(self.lanes);
    lgi_free(self.lag);
    lgi_free(self.num_waits);
    lgi_free(self.end_ns);
    lgi_free(self.ready_ns);
    lgi_free(self.is_given);
    lgi_free(self.is_in_queue);
    lgi_free(self.queue);
    return status;
}
