/*
 * The simulator: runs the plan's lanes on paper. Events are the ends of ops; between two events each running op advances
 * at a rate of 1, or 1 / corun_slowdown while other ops keep the rest of its rank's cores busy. The run starts in the
 * steady state (all earlier iterations count as done). With one rank every iteration takes the same time, since lanes
 * meet between iterations; with several, iterations are run until two take the same time.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_order.h"

#define MAX_ITERATIONS 16
/* Two iterations that differ by less than this fraction count as the same: rounding of sums of a few thousand terms. */
#define SAME_TIME_FRAC 1e-9

typedef struct sim_lane {
    int iteration; /* that it is in; num_iterations: finished */
    int pos;       /* of the next or running entry */
    int width_idx;
    bool is_running;
    double remaining_ns; /* of the running op at rate 1 */
    int span;            /* of the running op */
} sim_lane;

typedef struct simulator {
    const lg_plan *plan;
    const lg_graph *graph;
    const lg_machine *machine;
    const lg_costs *costs;
    int num_iterations;
    sim_lane *lanes;
    int *lane_of; /* by op */
    int *lag_of;
    int *num_done;   /* by op: iterations whose run has ended */
    int *edge_begin; /* by op: edges into it */
    int *sync_begin; /* by op: sync_order[sync_begin[op] ..) are indices of syncs into it */
    int *sync_order;
    lgi_groups groups;
    int *num_lanes_in; /* by rank * num_iterations + iteration: lanes that have ended it */
    double *end_ns;    /* by iteration: when the last rank ended it */
    int *rank_lanes;   /* by rank: lanes */
    int *busy_cores;   /* by rank */
    int *num_running;  /* by rank */
    lg_span *spans;
    int num_spans;
    double now_ns;
} simulator;

static lg_status sim_init(simulator *self)
{
    const lg_plan *const plan = self->plan;
    const size_t num_ops = (size_t)plan->num_ops;
    const size_t num_lanes = (size_t)plan->num_lanes;
    const size_t num_ranks = (size_t)plan->num_ranks;
    const int num_edges = lg_graph_num_edges(self->graph);
    const lg_edge *const edges = lg_graph_edges(self->graph);
    LG_TRY(lgi_calloc(&self->lanes, num_lanes, sizeof *self->lanes));
    LG_TRY(lgi_calloc(&self->lane_of, num_ops, sizeof *self->lane_of));
    LG_TRY(lgi_calloc(&self->lag_of, num_ops, sizeof *self->lag_of));
    LG_TRY(lgi_calloc(&self->num_done, num_ops, sizeof *self->num_done));
    LG_TRY(lgi_calloc(&self->edge_begin, num_ops + 1, sizeof *self->edge_begin));
    LG_TRY(lgi_calloc(&self->sync_begin, num_ops + 2, sizeof *self->sync_begin));
    LG_TRY(lgi_calloc(&self->sync_order, (size_t)plan->num_syncs, sizeof *self->sync_order));
    LG_TRY(lgi_calloc(&self->num_lanes_in, num_ranks * (size_t)self->num_iterations,
                      sizeof *self->num_lanes_in));
    LG_TRY(lgi_calloc(&self->end_ns, (size_t)self->num_iterations, sizeof *self->end_ns));
    LG_TRY(lgi_calloc(&self->rank_lanes, num_ranks, sizeof *self->rank_lanes));
    LG_TRY(lgi_calloc(&self->busy_cores, num_ranks, sizeof *self->busy_cores));
    LG_TRY(lgi_calloc(&self->num_running, num_ranks, sizeof *self->num_running));
    LG_TRY(lgi_calloc(&self->spans, num_ops * (size_t)self->num_iterations, sizeof *self->spans));
    LG_TRY(lgi_groups_init(&self->groups, self->graph));
    for (int i = 0; i < num_edges; i++) {
        self->edge_begin[edges[i].to + 1] = i + 1;
    }
    for (int op = 0; op < plan->num_ops; op++) {
        if (self->edge_begin[op + 1] < self->edge_begin[op]) {
            self->edge_begin[op + 1] = self->edge_begin[op];
        }
    }
    for (int i = 0; i < plan->num_syncs; i++) {
        self->sync_begin[plan->syncs[i].to + 2]++;
    }
    for (int op = 0; op < plan->num_ops; op++) {
        self->sync_begin[op + 2] += self->sync_begin[op + 1];
    }
    for (int i = 0; i < plan->num_syncs; i++) {
        self->sync_order[self->sync_begin[plan->syncs[i].to + 1]++] = i;
    }
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        const lg_lane *const info = &plan->lanes[lane];
        self->lanes[lane].width_idx = lgi_width_idx(self->graph, info->num_cores);
        self->rank_lanes[info->rank]++;
        for (int pos = 0; pos < info->num_entries; pos++) {
            self->lane_of[info->entries[pos].op] = lane;
            self->lag_of[info->entries[pos].op] = info->entries[pos].lag;
        }
    }
    return LG_OK;
}

static void sim_deinit(simulator *self)
{
    lgi_free(self->lanes);
    lgi_free(self->lane_of);
    lgi_free(self->lag_of);
    lgi_free(self->num_done);
    lgi_free(self->edge_begin);
    lgi_free(self->sync_begin);
    lgi_free(self->sync_order);
    lgi_groups_deinit(&self->groups);
    lgi_free(self->num_lanes_in);
    lgi_free(self->end_ns);
    lgi_free(self->rank_lanes);
    lgi_free(self->busy_cores);
    lgi_free(self->num_running);
    lgi_free(self->spans);
}

static bool can_start(const simulator *self, int op, int iteration)
{
    const lg_edge *const edges = lg_graph_edges(self->graph);
    for (int i = self->edge_begin[op]; i < self->edge_begin[op + 1]; i++) {
        const int from = edges[i].from;
        const int delta = lgi_edge_delta(edges[i].distance, self->lag_of[from], self->lag_of[op]);
        if (self->num_done[from] < iteration - delta + 1 &&
            !lgi_is_meeting(self->graph, &edges[i])) {
            return false;
        }
    }
    for (int i = self->sync_begin[op]; i < self->sync_begin[op + 1]; i++) {
        const lg_plan_sync *const sync = &self->plan->syncs[self->sync_order[i]];
        if (self->num_done[sync->from] < iteration - sync->distance + 1) {
            return false;
        }
    }
    return true;
}

/* Lets a lane that has ended its entries go on to the next iteration once all lanes of its rank have. */
static void enter_iterations(simulator *self)
{
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        for (int lane = 0; lane < self->plan->num_lanes; lane++) {
            sim_lane *const s = &self->lanes[lane];
            const lg_lane *const info = &self->plan->lanes[lane];
            if (s->iteration >= self->num_iterations || s->is_running ||
                s->pos < info->num_entries) {
                continue;
            }
            int *const num_in =
                &self->num_lanes_in[info->rank * self->num_iterations + s->iteration];
            if (s->pos == info->num_entries) { /* counted once */
                ++*num_in;
                s->pos++;
            }
            if (*num_in == self->rank_lanes[info->rank]) {
                self->end_ns[s->iteration] = fmax(self->end_ns[s->iteration], self->now_ns);
                s->iteration++;
                s->pos = 0;
                has_moved = true;
            }
        }
    }
}

/* Whether the lane stands before `op` with nothing to wait for but the ops that it meets. */
static bool has_arrived(const simulator *self, int lane, int op, int iteration)
{
    const sim_lane *const s = &self->lanes[lane];
    const lg_lane *const info = &self->plan->lanes[lane];
    return !s->is_running && s->iteration == iteration && s->pos < info->num_entries &&
           info->entries[s->pos].op == op && can_start(self, op, iteration);
}

static void start_op(simulator *self, int lane)
{
    sim_lane *const s = &self->lanes[lane];
    const lg_lane *const info = &self->plan->lanes[lane];
    const lg_plan_entry entry = info->entries[s->pos];
    s->is_running = true;
    s->remaining_ns = lg_costs_op_ns(self->costs, entry.op, s->width_idx);
    s->span = self->num_spans;
    self->spans[self->num_spans++] = (lg_span){.op = entry.op,
                                               .lane = lane,
                                               .step = s->iteration + 1 - entry.lag,
                                               .start_ns = self->now_ns};
    self->busy_cores[info->rank] += info->num_cores;
    self->num_running[info->rank] += info->kind == LG_LANE_COMPUTE ? 1 : 0;
}

static void start_ops(simulator *self)
{
    for (int lane = 0; lane < self->plan->num_lanes; lane++) {
        const sim_lane *const s = &self->lanes[lane];
        const lg_lane *const info = &self->plan->lanes[lane];
        if (s->is_running || s->iteration >= self->num_iterations || s->pos >= info->num_entries) {
            continue;
        }
        const int op = info->entries[s->pos].op;
        const int group = lg_graph_op(self->graph, op)->group;
        const int *const ops = group < 0 ? &op : self->groups.ops + self->groups.begin[group];
        const int num = group < 0 ? 1 : self->groups.begin[group + 1] - self->groups.begin[group];
        bool have_arrived = true;
        for (int i = 0; i < num && have_arrived; i++) {
            have_arrived = has_arrived(self, self->lane_of[ops[i]], ops[i], s->iteration);
        }
        for (int i = 0; i < num && have_arrived; i++) {
            start_op(self, self->lane_of[ops[i]]);
        }
    }
}

/* Time that the running op of a lane takes for 1 ns of its cost. */
static double slowdown(const simulator *self, int lane)
{
    const lg_lane *const info = &self->plan->lanes[lane];
    return info->kind == LG_LANE_COMPUTE && self->num_running[info->rank] > 1 &&
                   self->busy_cores[info->rank] >= self->machine->num_cores
               ? self->machine->corun_slowdown
               : 1.0;
}

/* Advances to the next end of an op; false if none runs. */
static bool advance(simulator *self)
{
    double dt_ns = INFINITY;
    for (int lane = 0; lane < self->plan->num_lanes; lane++) {
        const sim_lane *const s = &self->lanes[lane];
        if (s->is_running) {
            dt_ns = fmin(dt_ns, s->remaining_ns * slowdown(self, lane));
        }
    }
    if (!isfinite(dt_ns)) {
        return false;
    }
    self->now_ns += dt_ns;
    for (int lane = 0; lane < self->plan->num_lanes; lane++) {
        sim_lane *const s = &self->lanes[lane];
        if (s->is_running) {
            const double factor = slowdown(self, lane);
            s->remaining_ns =
                s->remaining_ns * factor <= dt_ns ? -1.0 : s->remaining_ns - dt_ns / factor;
        }
    }
    for (int lane = 0; lane < self->plan->num_lanes; lane++) {
        sim_lane *const s = &self->lanes[lane];
        const lg_lane *const info = &self->plan->lanes[lane];
        if (s->is_running && s->remaining_ns < 0.0) {
            s->is_running = false;
            self->spans[s->span].end_ns = self->now_ns;
            self->num_done[info->entries[s->pos].op]++;
            self->busy_cores[info->rank] -= info->num_cores;
            self->num_running[info->rank] -= info->kind == LG_LANE_COMPUTE ? 1 : 0;
            s->pos++;
        }
    }
    return true;
}

static lg_status fail_stuck(const simulator *self)
{
    for (int lane = 0; lane < self->plan->num_lanes; lane++) {
        const sim_lane *const s = &self->lanes[lane];
        const lg_lane *const info = &self->plan->lanes[lane];
        if (s->pos < info->num_entries) {
            LG_FAIL(LG_INVALID_ARG, "deadlock: '%s' in lane %d never starts",
                    lg_graph_op(self->graph, info->entries[s->pos].op)->name, lane);
        }
    }
    LG_FAIL(LG_INTERNAL, "the simulated lanes stopped without a reason");
}

static bool is_steady(const simulator *self, int iteration)
{
    if (self->plan->num_ranks == 1) {
        return true;
    }
    if (iteration < 2) {
        return false;
    }
    const double last_ns = self->end_ns[iteration] - self->end_ns[iteration - 1];
    const double before_ns = self->end_ns[iteration - 1] - self->end_ns[iteration - 2];
    return fabs(last_ns - before_ns) <= SAME_TIME_FRAC * last_ns;
}

/* Fills `out` with the spans of one iteration; takes the simulator's storage. */
static void store_timeline(lg_timeline *out, simulator *self, int iteration)
{
    int num = 0;
    const double begin_ns = iteration > 0 ? self->end_ns[iteration - 1] : 0.0;
    for (int i = 0; i < self->num_spans; i++) {
        lg_span span = self->spans[i];
        if (span.step + self->lag_of[span.op] == iteration + 1) {
            span.start_ns -= begin_ns;
            span.end_ns -= begin_ns;
            self->spans[num++] = span;
        }
    }
    out->spans = self->spans;
    out->num_spans = num;
    self->spans = NULL;
    out->begin_ns = 0.0;
    out->end_ns = self->end_ns[iteration] - begin_ns;
    out->step_ns = out->end_ns;
}

lg_status lg_plan_simulate(lg_timeline *out, const lg_plan *plan, const lg_graph *graph,
                           const lg_machine *machine, const lg_costs *costs)
{
    *out = (lg_timeline){0};
    LG_TRY(lgi_plan_check_lanes(plan, graph));
    if (!(machine->corun_slowdown >= 1.0) || !isfinite(machine->corun_slowdown)) {
        LG_FAIL(LG_INVALID_ARG, "machine: corun_slowdown is %g; allowed: 1 or more",
                machine->corun_slowdown);
    }
    lg_status status = LG_OK;
    simulator self = {.plan = plan,
                      .graph = graph,
                      .machine = machine,
                      .costs = costs,
                      .num_iterations = plan->num_ranks == 1 ? 1 : MAX_ITERATIONS};
    LG_TRY_GOTO(sim_init(&self));
    const int total = plan->num_ops * self.num_iterations;
    int num_ended = 0;
    while (num_ended < self.num_iterations) {
        enter_iterations(&self);
        while (num_ended < self.num_iterations) {
            bool has_ended = true;
            for (int lane = 0; lane < plan->num_lanes; lane++) {
                has_ended = has_ended && self.lanes[lane].iteration > num_ended;
            }
            if (!has_ended) {
                break;
            }
            num_ended++;
        }
        if (num_ended > 0 && is_steady(&self, num_ended - 1)) {
            break;
        }
        if (num_ended == self.num_iterations) {
            break;
        }
        start_ops(&self);
        if (self.num_spans > total || !advance(&self)) {
            status = fail_stuck(&self);
            goto out;
        }
    }
    store_timeline(out, &self, num_ended - 1);
out:
    sim_deinit(&self);
    return status;
}
