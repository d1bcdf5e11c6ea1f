/*
 * The simulator: runs the plan's lanes on paper. Events are the ends of ops. An op in a compute lane advances at a rate of
 * 1, or 1 / corun_slowdown while other ops keep the rest of its rank's cores busy, and while bytes of its rank move between hosts
 * and ops have all cores, 1 - comm_core_frac of that; ops that meet take what their links need (plan_network.c). Whatever an event brings about is done at once: no list of lanes is ever searched, so the time is
 * about linear in the ops.
 *
 * The run starts with all earlier iterations done. With one rank every iteration takes the same time, since lanes meet
 * between iterations; with several, each rank goes on to its next iteration by itself, and iterations are run until all
 * ranks that hear of each other advance alike, twice by the same time: the steady state.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_make.h"
#include "plan/plan_network.h"
#include "plan/plan_order.h"

/* Bounds on the warm-up: an iteration a rank fills any pipeline; more than so many ops would take too long. */
#define EXTRA_ITERATIONS 16
#define MIN_ITERATIONS 8
#define MAX_SIMULATED_OPS 40000000
/* Two iterations that differ by less than this fraction count as the same: rounding of sums of many terms. */
#define SAME_TIME_FRAC 1e-9

typedef enum lane_state {
    LANE_WAITING,
    LANE_ARRIVED, /* waits for the ops that its op meets */
    LANE_RUNNING
} lane_state;

typedef struct sim_lane {
    int pos; /* of the next or running entry */
    lane_state state;
    bool is_in_latency; /* runs a message, of which no byte has moved yet */
    int width_idx;
    double remaining_ns; /* of the running op at rate 1, at `since_ns` */
    double since_ns;
} sim_lane;

typedef struct sim_rank {
    int iteration;
    int num_ended;   /* lanes that have ended it */
    int num_running; /* compute lanes */
    int busy_cores;
    int num_flows;  /* between hosts */
    double factor;  /* time that a running op takes for 1 ns of its cost */
    bool is_active; /* it has ops */
} sim_rank;

/* When the ops of one iteration ran. */
typedef struct iteration_log {
    double *start_ns; /* by op */
    double *end_ns;
    int *order; /* ops as they started */
    int num;
    int num_ranks_ended;
} iteration_log;

typedef struct simulator {
    const lg_plan *plan;
    const lg_graph *graph;
    const lg_machine *machine;
    const lg_costs *costs;
    lgi_groups groups;
    lgi_arcs arcs;
    lgi_events
        events; /* by lane: the end of what it runs; of a group: in the lane of its first op */
    lgi_network network;
    bool has_network;
    bool has_factors; /* ops can take longer than they cost */
    sim_lane *lanes;
    sim_rank *ranks;
    int *lane_begin; /* by rank: rank_lanes[lane_begin[r] ..) are its lanes */
    int *rank_lanes;
    int *num_waits;     /* by op: arcs that it still waits for */
    int *num_arrived;   /* by group */
    int *flow_of_group; /* by group: the lane of its first op */
    bool *is_far;       /* by group: it is between hosts */
    int *component;     /* by rank: union-find of ranks that meet */
    int num_active;
    int max_iterations;
    iteration_log *logs; /* by iteration */
    iteration_log spare; /* arrays to use again */
    double *rank_end_ns; /* [iteration * num_ranks + rank] */
    int num_ended;       /* iterations that all ranks have ended */
    bool is_done;
    bool is_steady;
    double now_ns;
    lg_status status; /* of an allocation on the way */
} simulator;

/* --- setting up ----------------------------------------------------------------------------------------------------- */

static int component_root(simulator *self, int rank)
{
    while (self->component[rank] != rank) {
        self->component[rank] = self->component[self->component[rank]];
        rank = self->component[rank];
    }
    return rank;
}

static void join_ranks(simulator *self)
{
    for (int rank = 0; rank < self->plan->num_ranks; rank++) {
        self->component[rank] = rank;
    }
    const int ranks_per_host = self->machine->ranks_per_host;
    for (int g = 0; g < self->groups.num_groups; g++) {
        self->flow_of_group[g] = -1;
        for (int i = self->groups.begin[g]; i < self->groups.begin[g + 1]; i++) {
            const int first = self->groups.ops[self->groups.begin[g]];
            const int first_rank = lg_graph_op(self->graph, first)->rank;
            const int rank = lg_graph_op(self->graph, self->groups.ops[i])->rank;
            const int a = component_root(self, first_rank);
            const int b = component_root(self, rank);
            self->is_far[g] =
                self->is_far[g] || first_rank / ranks_per_host != rank / ranks_per_host;
            self->component[a > b ? a : b] = a > b ? b : a;
            self->flow_of_group[g] = self->arcs.lane[first];
        }
    }
}

static lg_status allocate(simulator *self)
{
    const size_t num_lanes = (size_t)self->plan->num_lanes;
    const size_t num_ranks = (size_t)self->plan->num_ranks;
    const size_t num_groups = (size_t)self->groups.num_groups;
    const size_t num_iterations = (size_t)self->max_iterations;
    LG_TRY(lgi_calloc(&self->lanes, num_lanes, sizeof *self->lanes));
    LG_TRY(lgi_calloc(&self->ranks, num_ranks, sizeof *self->ranks));
    LG_TRY(lgi_calloc(&self->lane_begin, num_ranks + 2, sizeof(int)));
    LG_TRY(lgi_calloc(&self->rank_lanes, num_lanes, sizeof(int)));
    LG_TRY(lgi_calloc(&self->num_waits, (size_t)self->plan->num_ops, sizeof(int)));
    LG_TRY(lgi_calloc(&self->num_arrived, num_groups, sizeof(int)));
    LG_TRY(lgi_calloc(&self->flow_of_group, num_groups, sizeof(int)));
    LG_TRY(lgi_calloc(&self->is_far, num_groups, sizeof(bool)));
    LG_TRY(lgi_calloc(&self->component, num_ranks, sizeof(int)));
    LG_TRY(lgi_calloc(&self->logs, num_iterations, sizeof *self->logs));
    LG_TRY(lgi_calloc(&self->rank_end_ns, num_iterations * num_ranks, sizeof(double)));
    return lgi_events_init(&self->events, self->plan->num_lanes);
}

static lg_status sim_init(simulator *self)
{
    const lg_plan *const plan = self->plan;
    LG_TRY(lgi_groups_init(&self->groups, self->graph));
    LG_TRY(lgi_arcs_init(&self->arcs, &self->groups, plan, self->graph));
    LG_TRY(allocate(self));
    join_ranks(self);
    self->has_network = self->groups.num_groups > 0;
    if (self->has_network) {
        LG_TRY(lgi_network_init(&self->network, self->machine, &self->groups, self->graph,
                                &self->events, plan->num_lanes, self->flow_of_group));
    }
    self->has_factors = self->machine->corun_slowdown > 1.0 || self->machine->comm_core_frac > 0.0;
    if (plan->num_ops > 0) {
        memcpy(self->num_waits, self->arcs.num_in, (size_t)plan->num_ops * sizeof(int));
    }
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        const lg_lane *const info = &plan->lanes[lane];
        self->lanes[lane].width_idx = lgi_width_idx(self->graph, info->num_cores);
        self->lane_begin[info->rank + 2]++;
        self->ranks[info->rank].is_active =
            self->ranks[info->rank].is_active || info->num_entries > 0;
    }
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        self->lane_begin[rank + 2] += self->lane_begin[rank + 1];
        self->ranks[rank].factor = 1.0;
        self->num_active += self->ranks[rank].is_active ? 1 : 0;
    }
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        self->rank_lanes[self->lane_begin[plan->lanes[lane].rank + 1]++] = lane;
    }
    return LG_OK;
}

static void log_deinit(iteration_log *log)
{
    lgi_free(log->start_ns);
    lgi_free(log->end_ns);
    lgi_free(log->order);
    *log = (iteration_log){0};
}

static void sim_deinit(simulator *self)
{
    for (int i = 0; self->logs != NULL && i < self->max_iterations; i++) {
        log_deinit(&self->logs[i]);
    }
    log_deinit(&self->spare);
    if (self->has_network) {
        lgi_network_deinit(&self->network);
    }
    lgi_groups_deinit(&self->groups);
    lgi_arcs_deinit(&self->arcs);
    lgi_events_deinit(&self->events);
    lgi_free(self->lanes);
    lgi_free(self->ranks);
    lgi_free(self->lane_begin);
    lgi_free(self->rank_lanes);
    lgi_free(self->num_waits);
    lgi_free(self->num_arrived);
    lgi_free(self->flow_of_group);
    lgi_free(self->is_far);
    lgi_free(self->component);
    lgi_free(self->logs);
    lgi_free(self->rank_end_ns);
}

/* The log of an iteration that a rank begins. */
static lg_status open_log(simulator *self, int iteration)
{
    iteration_log *const log = &self->logs[iteration];
    const size_t num_ops = (size_t)self->plan->num_ops;
    if (log->start_ns != NULL) {
        return LG_OK;
    }
    if (self->spare.start_ns != NULL) {
        *log = self->spare;
        self->spare = (iteration_log){0};
        log->num = 0;
        log->num_ranks_ended = 0;
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&log->start_ns, num_ops, sizeof(double)));
    LG_TRY(lgi_calloc(&log->end_ns, num_ops, sizeof(double)));
    return lgi_calloc(&log->order, num_ops, sizeof(int));
}

/* --- starting -------------------------------------------------------------------------------------------------------- */

static void log_start(simulator *self, int rank, int op)
{
    iteration_log *const log = &self->logs[self->ranks[rank].iteration];
    log->start_ns[op] = self->now_ns;
    log->order[log->num++] = op;
    self->num_waits[op] = self->arcs.num_in[op]; /* for the next iteration */
}

/* A compute lane of the rank has started or ended an op, or bytes begin or end to flow. */
static void update_factor(simulator *self, int rank)
{
    sim_rank *const r = &self->ranks[rank];
    const bool has_all_cores = r->busy_cores >= self->machine->num_cores;
    double factor = r->num_running > 1 && has_all_cores ? self->machine->corun_slowdown : 1.0;
    if (r->num_flows > 0 && has_all_cores) {
        factor /= 1.0 - self->machine->comm_core_frac;
    }
    if (factor == r->factor) {
        return;
    }
    for (int i = self->lane_begin[rank]; i < self->lane_begin[rank + 1]; i++) {
        const int lane = self->rank_lanes[i];
        sim_lane *const s = &self->lanes[lane];
        if (s->state != LANE_RUNNING || self->plan->lanes[lane].kind != LG_LANE_COMPUTE) {
            continue;
        }
        s->remaining_ns = fmax(0.0, s->remaining_ns - (self->now_ns - s->since_ns) / r->factor);
        s->since_ns = self->now_ns;
        lgi_events_set(&self->events, lane, self->now_ns + s->remaining_ns * factor);
    }
    r->factor = factor;
}

static void start_alone(simulator *self, int lane, int op)
{
    sim_lane *const s = &self->lanes[lane];
    const lg_lane *const info = &self->plan->lanes[lane];
    sim_rank *const r = &self->ranks[info->rank];
    log_start(self, info->rank, op);
    s->state = LANE_RUNNING;
    s->remaining_ns = lg_costs_op_ns(self->costs, op, s->width_idx);
    s->since_ns = self->now_ns;
    if (info->kind != LG_LANE_COMPUTE) {
        lgi_events_set(&self->events, lane, self->now_ns + s->remaining_ns);
        return;
    }
    lgi_events_set(&self->events, lane, self->now_ns + s->remaining_ns * r->factor);
    r->busy_cores += info->num_cores;
    r->num_running++;
    if (self->has_factors) {
        update_factor(self, info->rank);
    }
}

static void start_group(simulator *self, int group)
{
    const int flow = self->flow_of_group[group];
    for (int i = self->groups.begin[group]; i < self->groups.begin[group + 1]; i++) {
        const int op = self->groups.ops[i];
        log_start(self, lg_graph_op(self->graph, op)->rank, op);
        self->lanes[self->arcs.lane[op]].state = LANE_RUNNING;
    }
    self->num_arrived[group] = 0;
    self->lanes[flow].is_in_latency = true;
    lgi_events_set(&self->events, flow,
                   self->now_ns + lgi_network_latency_ns(&self->network, group));
}

/* Starts the lane's next op if nothing is left to wait for. */
static void try_start(simulator *self, int lane)
{
    sim_lane *const s = &self->lanes[lane];
    const int op = self->plan->lanes[lane].entries[s->pos].op;
    if (s->state != LANE_WAITING || self->num_waits[op] > 0) {
        return;
    }
    const int group = lg_graph_op(self->graph, op)->group;
    if (group < 0) {
        start_alone(self, lane, op);
        return;
    }
    s->state = LANE_ARRIVED;
    if (++self->num_arrived[group] == lgi_groups_size(&self->groups, group)) {
        start_group(self, group);
    }
}

/* --- iterations ------------------------------------------------------------------------------------------------------ */

static double iteration_ns(const simulator *self, int rank, int iteration)
{
    const size_t num_ranks = (size_t)self->plan->num_ranks;
    const double *const end = self->rank_end_ns + (size_t)iteration * num_ranks + rank;
    return iteration > 0 ? end[0] - *(end - num_ranks) : end[0];
}

/* Whether the last two iterations took the same time on all ranks, and the same on ranks that meet. */
static bool is_steady(simulator *self, int iteration)
{
    if (self->plan->num_ranks == 1) {
        return true;
    }
    for (int rank = 0; rank < self->plan->num_ranks; rank++) {
        if (!self->ranks[rank].is_active) {
            continue;
        }
        if (iteration < 2) {
            return false;
        }
        const double ns = iteration_ns(self, rank, iteration);
        const double before_ns = iteration_ns(self, rank, iteration - 1);
        const double root_ns = iteration_ns(self, component_root(self, rank), iteration);
        if (fabs(ns - before_ns) > SAME_TIME_FRAC * ns ||
            fabs(ns - root_ns) > SAME_TIME_FRAC * ns) {
            return false;
        }
    }
    return true;
}

/* All ranks have ended the iteration: is it the last one to run? */
static void end_iteration(simulator *self, int iteration)
{
    self->num_ended = iteration + 1;
    self->is_steady = is_steady(self, iteration);
    self->is_done = self->is_steady || self->num_ended == self->max_iterations;
    if (!self->is_done) {
        log_deinit(&self->spare);
        self->spare = self->logs[iteration];
        self->logs[iteration] = (iteration_log){0};
    }
}

/* Starts all lanes of a rank; those without entries have ended already. */
static void begin_iteration(simulator *self, int rank)
{
    sim_rank *const r = &self->ranks[rank];
    self->status = open_log(self, r->iteration);
    if (self->status != LG_OK) {
        self->is_done = true;
        return;
    }
    r->num_ended = 0;
    for (int i = self->lane_begin[rank]; i < self->lane_begin[rank + 1]; i++) {
        const int lane = self->rank_lanes[i];
        self->lanes[lane].pos = 0;
        r->num_ended += self->plan->lanes[lane].num_entries == 0 ? 1 : 0;
    }
    for (int i = self->lane_begin[rank]; i < self->lane_begin[rank + 1]; i++) {
        const int lane = self->rank_lanes[i];
        if (self->plan->lanes[lane].num_entries > 0) {
            try_start(self, lane);
        }
    }
}

/* A lane has ended its last entry: with the last of its rank's lanes the iteration ends. */
static void end_lane(simulator *self, int rank)
{
    sim_rank *const r = &self->ranks[rank];
    if (++r->num_ended < self->lane_begin[rank + 1] - self->lane_begin[rank]) {
        return;
    }
    const int iteration = r->iteration++;
    self->rank_end_ns[(size_t)iteration * (size_t)self->plan->num_ranks + (size_t)rank] =
        self->now_ns;
    if (++self->logs[iteration].num_ranks_ended == self->num_active) {
        end_iteration(self, iteration);
    }
    if (!self->is_done && r->iteration < self->max_iterations) {
        begin_iteration(self, rank);
    }
}

/* --- ending ---------------------------------------------------------------------------------------------------------- */

/* Tells all that waits for the op of a lane, and lets the lane go on. */
static void end_op(simulator *self, int lane)
{
    sim_lane *const s = &self->lanes[lane];
    const lg_lane *const info = &self->plan->lanes[lane];
    const int op = info->entries[s->pos].op;
    self->logs[self->ranks[info->rank].iteration].end_ns[op] = self->now_ns;
    s->state = LANE_WAITING;
    s->pos++;
    for (int i = self->arcs.out_begin[op]; i < self->arcs.out_begin[op + 1]; i++) {
        const int to = self->arcs.out_to[i];
        const int to_lane = self->arcs.lane[to];
        if (--self->num_waits[to] == 0 && self->lanes[to_lane].pos == self->arcs.pos[to]) {
            try_start(self, to_lane);
        }
    }
    if (s->pos == info->num_entries) {
        end_lane(self, info->rank);
    } else {
        try_start(self, lane);
    }
}

static void end_alone(simulator *self, int lane)
{
    const lg_lane *const info = &self->plan->lanes[lane];
    sim_rank *const r = &self->ranks[info->rank];
    if (info->kind == LG_LANE_COMPUTE) {
        r->busy_cores -= info->num_cores;
        r->num_running--;
        self->lanes[lane].state = LANE_WAITING;
        if (self->has_factors) {
            update_factor(self, info->rank);
        }
    }
    end_op(self, lane);
}

static void end_group(simulator *self, int group)
{
    for (int i = self->groups.begin[group]; i < self->groups.begin[group + 1] && !self->is_done;
         i++) {
        end_op(self, self->arcs.lane[self->groups.ops[i]]);
    }
}

/* The bytes of a group begin or end to flow. */
static void count_flow(simulator *self, int group, int change)
{
    if (!self->has_factors || !self->is_far[group]) {
        return;
    }
    for (int i = self->groups.begin[group]; i < self->groups.begin[group + 1]; i++) {
        const int rank = lg_graph_op(self->graph, self->groups.ops[i])->rank;
        self->ranks[rank].num_flows += change;
        update_factor(self, rank);
    }
}

/* What the lane runs has ended, or its message begins to flow. */
static void handle_event(simulator *self, int lane)
{
    sim_lane *const s = &self->lanes[lane];
    const int op = self->plan->lanes[lane].entries[s->pos].op;
    const int group = lg_graph_op(self->graph, op)->group;
    if (group < 0) {
        end_alone(self, lane);
    } else if (!s->is_in_latency) {
        lgi_network_end(&self->network, lane, self->now_ns);
        count_flow(self, group, -1);
        end_group(self, group);
    } else {
        s->is_in_latency = false;
        if (lgi_network_start(&self->network, lane, group, self->now_ns)) {
            count_flow(self, group, 1);
        } else {
            end_group(self, group);
        }
    }
}

/* --- the whole ------------------------------------------------------------------------------------------------------- */

static lg_status fail_stuck(const simulator *self)
{
    lgi_order order = {0};
    LG_TRY(lgi_order_init(&order, &self->groups, self->plan, self->graph));
    lgi_order_deinit(&order);
    LG_FAIL(LG_INTERNAL, "the simulated lanes stopped without a reason");
}

/* The step's time: of the slowest rank, over the last half of the iterations if they never became steady. */
static double step_ns(const simulator *self)
{
    const int last = self->num_ended - 1;
    const int from = self->is_steady ? last - 1 : last / 2 - 1;
    const size_t num_ranks = (size_t)self->plan->num_ranks;
    double slowest_ns = 0.0;
    for (size_t rank = 0; rank < num_ranks; rank++) {
        const double begin_ns =
            from >= 0 ? self->rank_end_ns[(size_t)from * num_ranks + rank] : 0.0;
        const double end_ns = self->rank_end_ns[(size_t)last * num_ranks + rank];
        slowest_ns = fmax(slowest_ns, (end_ns - begin_ns) / (last - from));
    }
    return slowest_ns;
}

/* Fills `out` with the spans of the last iteration. */
static lg_status store_timeline(lg_timeline *out, const simulator *self)
{
    const int iteration = self->num_ended - 1;
    const iteration_log *const log = &self->logs[iteration];
    const size_t num_ranks = (size_t)self->plan->num_ranks;
    double begin_ns = iteration > 0 ? INFINITY : 0.0;
    double end_ns = 0.0;
    for (size_t rank = 0; rank < num_ranks; rank++) {
        const double *const ends = self->rank_end_ns + (size_t)iteration * num_ranks + rank;
        if (iteration > 0 && self->ranks[rank].is_active) {
            begin_ns = fmin(begin_ns, *(ends - num_ranks));
        }
        end_ns = fmax(end_ns, *ends);
    }
    LG_TRY(lgi_calloc(&out->spans, (size_t)log->num, sizeof *out->spans));
    out->num_spans = log->num;
    for (int i = 0; i < log->num; i++) {
        const int op = log->order[i];
        out->spans[i] = (lg_span){.op = op,
                                  .lane = self->arcs.lane[op],
                                  .step = iteration + 1 - self->arcs.lag[op],
                                  .start_ns = log->start_ns[op] - begin_ns,
                                  .end_ns = log->end_ns[op] - begin_ns};
    }
    out->end_ns = end_ns - begin_ns;
    out->step_ns = step_ns(self);
    out->num_iterations = self->num_ended;
    return LG_OK;
}

static lg_status run(simulator *self)
{
    for (int rank = 0; rank < self->plan->num_ranks && !self->is_done; rank++) {
        if (self->ranks[rank].is_active) {
            begin_iteration(self, rank);
        }
    }
    while (!self->is_done) {
        const int lane = lgi_events_pop(&self->events);
        if (lane < 0) {
            return fail_stuck(self);
        }
        self->now_ns = fmax(self->now_ns, self->events.time_ns[lane]);
        handle_event(self, lane);
    }
    return self->status;
}

static int max_iterations(const lg_plan *plan)
{
    if (plan->num_ranks == 1) {
        return 1;
    }
    const int for_warm_up = 2 * plan->num_ranks + EXTRA_ITERATIONS;
    const int for_time = MAX_SIMULATED_OPS / (plan->num_ops > 0 ? plan->num_ops : 1);
    const int num = for_warm_up < for_time ? for_warm_up : for_time;
    return num > MIN_ITERATIONS ? num : MIN_ITERATIONS;
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
    if (!(machine->comm_core_frac >= 0.0 && machine->comm_core_frac < 1.0)) {
        LG_FAIL(LG_INVALID_ARG, "machine: comm_core_frac is %g; allowed: 0 or more, less than 1",
                machine->comm_core_frac);
    }
    lg_status status = LG_OK;
    simulator self = {.plan = plan,
                      .graph = graph,
                      .machine = machine,
                      .costs = costs,
                      .max_iterations = max_iterations(plan)};
    LG_TRY_GOTO(sim_init(&self));
    if (self.num_active > 0) {
        LG_TRY_GOTO(run(&self));
        LG_TRY_GOTO(store_timeline(out, &self));
    } else {
        LG_TRY_GOTO(lgi_calloc(&out->spans, 0, sizeof *out->spans));
    }
out:
    sim_deinit(&self);
    return status;
}
