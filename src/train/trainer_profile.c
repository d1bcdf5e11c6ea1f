/*
 * Measured costs: the training graph runs a few steps in the textbook order on one lane, once for each width, and each op's
 * median time counts: what is predicted is the median of steps, and the sum of best times is less than any step takes. Then it runs on as many lanes as there are cores, which tells how much longer ops take while the other
 * cores are busy (they share caches and memory), and again while bytes move between hosts, which takes part of the cores too. All on a device and an arena of its own, so the trainer's weights and its
 * memory count do not notice.
 *
 * Over several ranks each runs its part by itself, as a rehearsal without messages; all at once, as they will, or one after the
 * other where they have a core in common.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/random.h"
#include "comm/collectives.h"
#include "train/trainer_internal.h"

#define MIN_RUNS 4
#define MAX_RUNS 20
/* After MIN_RUNS, runs go on only until this much time went by for a width. */
#define TIME_BUDGET_NS 300e6

/* Beyond this many lanes the search for a plan to measure with would take longer than what it is for. */
#define MAX_CORUN_LANES 16
/* An op that takes so many times as long as the same one of other micro-batches, whose sizes differ by a sample at most. */
#define HELD_UP_FACTOR 3.0F
#define MAX_POOLED_OPS 64
/* Messages that move while steps run, and how many at most: of 25 Gbit/s for a second. */
#define TRAFFIC_BYTES (1 << 20)
#define MAX_TRAFFIC_MESSAGES 4096
/* They take so many times as long as a step does alone, so that they outlast the steps that they slow down. */
#define TRAFFIC_STEPS 1.5
#define NUM_TRAFFIC_RUNS 5
#define MAX_TRAFFIC_FRAC 0.6
/* An op counts as run beside others if they were busy for this part of its time. */
#define MIN_OVERLAP_FRAC 0.9

struct profile {
    lg_trainer *trainer;
    lgi_device *device;
    lgi_executor *executor;
    lgi_lowered *lowered;
    lg_costs *costs;
    void **tensors; /* by input of the model */
    int num_tensors;
    int num_turns; /* of ranks on one host */
    lgi_trace trace;
    float *run_ns; /* by own op in graph order and run after the first, MAX_RUNS of each */
};

/* Random numbers where the model reads real ones; for ids and targets zeros, which are always in range. */
static lg_status make_batch(struct profile *p, int64_t num_samples)
{
    const lg_model *model = p->lowered->model;
    p->num_tensors = lg_model_num_inputs(model);
    LG_TRY(lgi_calloc(&p->tensors, (size_t)p->num_tensors, sizeof(void *)));
    for (int layer = 0; layer < lg_model_num_layers(model); layer++) {
        const lg_layer_info *info = lg_model_layer(model, layer);
        if (info->kind != LG_LAYER_INPUT || p->tensors[info->attrs->input_idx] != NULL) {
            continue;
        }
        const int64_t num_elems = lg_shape_num_elems(&info->out_shape) * num_samples;
        LG_TRY(lgi_calloc(&p->tensors[info->attrs->input_idx], (size_t)num_elems, sizeof(float)));
        const lgi_random random = lgi_random_stream(1, LGI_RANDOM_INIT, (uint64_t)layer, 1, 0);
        for (int64_t i = 0; info->out_dtype == LG_DTYPE_F32 && i < num_elems; i++) {
            ((float *)p->tensors[info->attrs->input_idx])[i] =
                lgi_random_uniform(&random, (uint64_t)i);
        }
    }
    return LG_OK;
}

static lg_status run_step(struct profile *p, lgi_program *program, double *out_ns)
{
    lg_optim_opts optim = p->trainer->opts.optim;
    optim.lr *= 1e-6; /* the weights should stay ordinary numbers */
    lgi_step_input input;
    memset(&input, 0, sizeof input);
    input.step.number = program->next_step;
    input.step.loss_scale = 1.0 / (double)lg_graph_options(p->lowered->graph)->num_samples;
    input.step.inputs = (const void *const *)p->tensors;
    input.optim = &optim;
    input.num_steps = p->trainer->opts.num_steps;
    LG_TRY(lgi_executor_step(p->executor, program, &input, &p->trace));
    *out_ns = (double)(p->trace.finish_ns - p->trace.begin_ns);
    return LG_OK;
}

/* What is done with the trace of each step but the first, which pays for page faults. */
typedef struct trace_reader {
    void (*look_at)(struct profile *p, const lg_plan *plan, int run, void *user);
    void *user;
} trace_reader;

static lg_status read_traces(struct profile *p, lgi_program *program, void *user)
{
    const trace_reader *reader = user;
    double elapsed_ns = 0.0;
    for (int run = 0; run < MAX_RUNS && (run < MIN_RUNS || elapsed_ns < TIME_BUDGET_NS); run++) {
        double ns = 0.0;
        LG_TRY(run_step(p, program, &ns));
        elapsed_ns += ns;
        if (run > 0) {
            reader->look_at(p, program->plan, run, reader->user);
        }
    }
    return LG_OK;
}

/* Runs steps of a plan on memory of its own. */
typedef lg_status (*steps_fn)(struct profile *p, lgi_program *program, void *user);

static lg_status run_plan(struct profile *p, const lg_plan *plan, steps_fn steps, void *user)
{
    lg_status status = LG_OK;
    lgi_program *program = NULL;
    void *arena = NULL;
    LG_TRY_GOTO(p->device->ops->alloc(p->device, &arena, plan->peak_bytes[p->lowered->rank]));
    LG_TRY_GOTO(lgi_program_create_rehearsal(&program, p->lowered, plan, arena));
    lgi_program_seek(program, 0);
    LG_TRY_GOTO(lgi_init_weights(p->device, p->lowered->model, program, 1));
    LG_TRY_GOTO(steps(p, program, user));
out:
    lgi_program_destroy(program);
    if (arena != NULL) {
        p->device->ops->free(p->device, arena, plan->peak_bytes[p->lowered->rank]);
    }
    return status;
}

/* --- costs by width ---------------------------------------------------------------------------------------------------- */

static bool is_own_op(const struct profile *p, int op)
{
    return lg_graph_op(p->lowered->graph, op)->rank == p->lowered->rank;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}

static void keep_times(struct profile *p, const lg_plan *plan, int run, void *user)
{
    int *const num_runs = user;
    int own = 0;
    (void)plan;
    for (int op = 0; op < lg_graph_num_ops(p->lowered->graph); op++) {
        if (is_own_op(p, op)) {
            p->run_ns[(size_t)own++ * MAX_RUNS + (size_t)(run - 1)] =
                (float)(p->trace.end_ns[op] - p->trace.start_ns[op]);
        }
    }
    *num_runs = run;
}

/* The median of an op's runs, the lower one of two. */
static float op_median_ns(const struct profile *p, int own, int num_runs)
{
    float *const runs = p->run_ns + (size_t)own * MAX_RUNS;
    qsort(runs, (size_t)num_runs, sizeof *runs, compare_floats);
    return runs[(num_runs - 1) / 2];
}

/* The same op of other micro-batches takes about as long: what takes far longer was held up whenever it ran. */
static void limit_held_up(float *op_ns, const int *next, int first)
{
    float sorted[MAX_POOLED_OPS];
    size_t num = 0;
    for (int op = first; op >= 0 && num < MAX_POOLED_OPS; op = next[op]) {
        sorted[num++] = op_ns[op];
    }
    qsort(sorted, num, sizeof *sorted, compare_floats);
    for (int op = first; op >= 0; op = next[op]) {
        const float median_ns = sorted[(num - 1) / 2];
        op_ns[op] = op_ns[op] > HELD_UP_FACTOR * median_ns ? median_ns : op_ns[op];
    }
}

static lg_status set_costs(struct profile *p, int width_idx, int num_runs)
{
    const lg_graph *graph = p->lowered->graph;
    const int num_ops = lg_graph_num_ops(graph);
    const int num_keys = lg_model_num_layers(p->lowered->model) * LG_NUM_OP_KINDS;
    lg_status status = LG_OK;
    int *first = NULL; /* by layer and kind: an own op of a micro-batch; -1: none */
    int *next = NULL;  /* by op: another one */
    float *op_ns = NULL;
    int own = 0;
    LG_TRY_GOTO(lgi_calloc(&first, (size_t)num_keys, sizeof *first));
    LG_TRY_GOTO(lgi_calloc(&next, (size_t)num_ops, sizeof *next));
    LG_TRY_GOTO(lgi_calloc(&op_ns, (size_t)num_ops, sizeof *op_ns));
    memset(first, -1, (size_t)num_keys * sizeof *first);
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (!is_own_op(p, op)) {
            continue;
        }
        op_ns[op] = op_median_ns(p, own++, num_runs);
        if (info->layer >= 0 && info->micro_batch >= 0) {
            int *const head = &first[info->layer * LG_NUM_OP_KINDS + (int)info->kind];
            next[op] = *head;
            *head = op;
        }
    }
    for (int key = 0; key < num_keys; key++) {
        if (first[key] >= 0) {
            limit_held_up(op_ns, next, first[key]);
        }
    }
    for (int op = 0; op < num_ops; op++) {
        if (is_own_op(p, op)) {
            lg_costs_set_op_ns(p->costs, op, width_idx, (double)op_ns[op]);
        }
    }
out:
    lgi_free(first);
    lgi_free(next);
    lgi_free(op_ns);
    return status;
}

/* Rank 0's plan, for all. */
static lg_status make_plan(struct profile *p, const char *strategy, const lg_strategy_opts *opts,
                           lg_plan **out)
{
    *out = NULL;
    if (p->trainer->rank == 0) {
        LG_TRY(
            lg_plan_create(out, strategy, p->lowered->graph, &p->trainer->machine, p->costs, opts));
    }
    return lgi_trainer_share_plan(p->trainer, out);
}

/* Ranks that have a core in common measure one after the other. */
static lg_status run_in_turn(struct profile *p, const lg_plan *plan, trace_reader reader)
{
    const lg_comm *comm = p->trainer->comm;
    lg_status status = LG_OK;
    for (int turn = 0; turn < p->num_turns; turn++) {
        if (comm == NULL || turn == lg_comm_host_rank(comm) % p->num_turns) {
            LG_TRY(run_plan(p, plan, read_traces, &reader));
        }
        if (comm != NULL) {
            LG_TRY(lgi_comm_barrier(p->trainer->comm));
        }
    }
    return status;
}

static lg_status profile_width(struct profile *p, int width_idx)
{
    const lg_graph *graph = p->lowered->graph;
    lg_plan *plan = NULL;
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_lanes = 1;
    opts.threads_per_lane = lg_graph_options(graph)->widths[width_idx];
    LG_TRY(make_plan(p, "in-order", &opts, &plan));
    int num_runs = 0;
    const lg_status status = run_in_turn(p, plan, (trace_reader){keep_times, &num_runs});
    lg_plan_destroy(plan);
    LG_TRY(status);
    return set_costs(p, width_idx, num_runs);
}

/* --- running beside others ------------------------------------------------------------------------------------------------ */

/* Time of the ops that ran beside others, and what they take alone; of the run where the sum was least. */
struct corun {
    double beside_ns;
    double alone_ns;
};

static bool is_own_compute(const struct profile *p, const lg_plan *plan, int lane)
{
    return plan->lanes[lane].rank == p->lowered->rank && plan->lanes[lane].kind == LG_LANE_COMPUTE;
}

/* How long the other lanes ran ops between `start` and `end`, summed over lanes. */
static double busy_elsewhere_ns(const struct profile *p, const lg_plan *plan, int lane,
                                uint64_t start, uint64_t end)
{
    double busy_ns = 0.0;
    for (int other = 0; other < plan->num_lanes; other++) {
        for (int i = 0;
             other != lane && is_own_compute(p, plan, other) && i < plan->lanes[other].num_entries;
             i++) {
            const int op = plan->lanes[other].entries[i].op;
            const uint64_t from = p->trace.start_ns[op] > start ? p->trace.start_ns[op] : start;
            const uint64_t to = p->trace.end_ns[op] < end ? p->trace.end_ns[op] : end;
            busy_ns += to > from ? (double)(to - from) : 0.0;
        }
    }
    return busy_ns;
}

static void add_corun(struct profile *p, const lg_plan *plan, int run, void *user)
{
    struct corun *best = user;
    struct corun sum = {0.0, 0.0};
    int num_lanes = 0;
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        num_lanes += is_own_compute(p, plan, lane) ? 1 : 0;
    }
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        for (int i = 0; is_own_compute(p, plan, lane) && i < plan->lanes[lane].num_entries; i++) {
            const int op = plan->lanes[lane].entries[i].op;
            const uint64_t start = p->trace.start_ns[op];
            const uint64_t end = p->trace.end_ns[op];
            const double needed_ns = MIN_OVERLAP_FRAC * (double)(end - start) * (num_lanes - 1);
            if (end > start && busy_elsewhere_ns(p, plan, lane, start, end) >= needed_ns) {
                sum.beside_ns += (double)(end - start);
                sum.alone_ns += lg_costs_op_ns(p->costs, op, 0);
            }
        }
    }
    const bool is_better =
        sum.alone_ns > 0.0 && sum.beside_ns * best->alone_ns < best->beside_ns * sum.alone_ns;
    if (run == 1 || best->alone_ns == 0.0 || is_better) {
        *best = sum;
    }
}

static lg_status profile_corun(struct profile *p, double *out_slowdown)
{
    const lg_graph *graph = p->lowered->graph;
    const int num_cores = p->trainer->num_rank_cores;
    lg_plan *plan = NULL;
    struct corun corun = {0.0, 0.0};
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_lanes = num_cores;
    opts.threads_per_lane = 1;
    if (num_cores < 2 || num_cores > MAX_CORUN_LANES || lg_graph_options(graph)->widths[0] != 1) {
        return LG_OK;
    }
    LG_TRY(make_plan(p, "out-of-order", &opts, &plan));
    const lg_status status = run_in_turn(p, plan, (trace_reader){add_corun, &corun});
    lg_plan_destroy(plan);
    LG_TRY(status);
    if (corun.alone_ns > 0.0 && corun.beside_ns > corun.alone_ns) {
        *out_slowdown = corun.beside_ns / corun.alone_ns;
    }
    return lgi_trainer_share_number(p->trainer, out_slowdown);
}

/* --- running beside messages ---------------------------------------------------------------------------------------------- */

/* Between this rank and one of another host, both ways at once, for as long as a step takes and longer. */
struct traffic {
    int peer; /* -1: none */
    int num_messages;
    lgi_message *messages; /* sends, then receives */
    char *data;            /* sent; then received, all to one place */
};

static void post_traffic(struct profile *p, struct traffic *traffic)
{
    for (int i = 0; i < 2 * traffic->num_messages; i++) {
        const bool is_send = i < traffic->num_messages;
        lgi_message *const message = &traffic->messages[i];
        memset(message, 0, sizeof *message);
        message->is_send = is_send;
        message->peer = traffic->peer;
        message->channel = LGI_CHANNEL_HOST;
        message->data = traffic->data + (is_send ? 0 : TRAFFIC_BYTES);
        message->num_bytes = TRAFFIC_BYTES;
        lgi_comm_post(p->trainer->comm, message);
    }
}

static lg_status await_traffic(struct profile *p, struct traffic *traffic)
{
    lg_status status = LG_OK;
    for (int i = 0; i < 2 * traffic->num_messages; i++) {
        LG_KEEP_FIRST(lgi_comm_wait(p->trainer->comm, &traffic->messages[i]));
    }
    return status;
}

static lg_status init_traffic(struct profile *p, struct traffic *traffic, double step_ns)
{
    const lg_trainer *const trainer = p->trainer;
    const double bytes = TRAFFIC_STEPS * step_ns * 1e-9 * trainer->machine.inter_host.bytes_per_s;
    const int half = trainer->num_ranks / 2;
    const int peer = trainer->rank < half ? trainer->rank + half : trainer->rank - half;
    traffic->peer = trainer->rank < 2 * half ? peer : -1;
    if (traffic->peer < 0) {
        return LG_OK;
    }
    traffic->num_messages = 1 + (int)fmin(bytes / TRAFFIC_BYTES, MAX_TRAFFIC_MESSAGES - 1);
    LG_TRY(lgi_calloc(&traffic->data, 2, TRAFFIC_BYTES));
    return lgi_calloc(&traffic->messages, 2 * (size_t)traffic->num_messages,
                      sizeof *traffic->messages);
}

/* Steps without and with traffic, in turn; *user: the part of their time that the traffic takes. */
static lg_status compare_traffic(struct profile *p, lgi_program *program, void *user)
{
    double *const out_frac = user;
    float run_ns[2][NUM_TRAFFIC_RUNS]; /* without, with */
    struct traffic traffic = {.peer = -1};
    lg_status status = LG_OK;
    double step_ns = 0.0;
    for (int run = 0; run < 2; run++) { /* the first one pays for page faults */
        LG_TRY(run_step(p, program, &step_ns));
    }
    LG_TRY(lgi_trainer_share_number(p->trainer, &step_ns)); /* all move as many bytes */
    LG_TRY_GOTO(init_traffic(p, &traffic, step_ns));
    for (int run = 0; run < 2 * NUM_TRAFFIC_RUNS; run++) {
        double ns = 0.0;
        LG_TRY_GOTO(lgi_comm_barrier(p->trainer->comm));
        if (run % 2 == 1) {
            post_traffic(p, &traffic);
        }
        LG_KEEP_FIRST(run_step(p, program, &ns));
        if (run % 2 == 1) {
            LG_KEEP_FIRST(await_traffic(p, &traffic)); /* before its memory goes */
        }
        LG_TRY_GOTO(status);
        run_ns[run % 2][run / 2] = (float)ns;
    }
    for (int with = 0; with < 2; with++) {
        qsort(run_ns[with], NUM_TRAFFIC_RUNS, sizeof(float), compare_floats);
    }
    *out_frac = fmin(fmax(0.0, 1.0 - (double)run_ns[0][NUM_TRAFFIC_RUNS / 2] /
                                         (double)run_ns[1][NUM_TRAFFIC_RUNS / 2]),
                     MAX_TRAFFIC_FRAC);
out:
    lgi_free(traffic.messages);
    lgi_free(traffic.data);
    return status;
}

/* Where ranks 0 and half of their number are on different hosts, and no two ranks share a core; else *out_frac stays. */
static lg_status profile_comm(struct profile *p, double *out_frac)
{
    const lg_graph *graph = p->lowered->graph;
    const lg_trainer *const trainer = p->trainer;
    lg_plan *plan = NULL;
    lg_strategy_opts opts = lg_strategy_opts_default();
    if (trainer->comm == NULL || trainer->num_ranks / 2 < trainer->machine.ranks_per_host ||
        p->num_turns > 1) {
        return LG_OK;
    }
    opts.num_lanes = 1;
    opts.threads_per_lane =
        lg_graph_options(graph)->widths[lg_graph_options(graph)->num_widths - 1];
    LG_TRY(make_plan(p, "in-order", &opts, &plan));
    const lg_status status = run_plan(p, plan, compare_traffic, out_frac);
    lg_plan_destroy(plan);
    LG_TRY(status);
    return lgi_trainer_share_number(p->trainer, out_frac);
}

/* One turn where ranks have cores of their own, everywhere. */
static lg_status count_turns(struct profile *p)
{
    lg_trainer *trainer = p->trainer;
    int32_t own = 1;
    int32_t *all = NULL;
    p->num_turns = 1;
    if (trainer->comm == NULL) {
        return LG_OK;
    }
    own = lgi_hardware_is_crowded(trainer->hardware) ? lg_comm_num_host_ranks(trainer->comm) : 1;
    LG_TRY(lgi_calloc(&all, (size_t)trainer->num_ranks, sizeof *all));
    const lg_status status = lgi_comm_all_gather(trainer->comm, &own, sizeof own, all);
    for (int rank = 0; status == LG_OK && rank < trainer->num_ranks; rank++) {
        p->num_turns = all[rank] > p->num_turns ? all[rank] : p->num_turns;
    }
    lgi_free(all);
    return status;
}

static lg_status profile_all(struct profile *p, const lg_graph_opts *opts, lg_machine *machine)
{
    lg_trainer *trainer = p->trainer;
    LG_TRY(trainer->device->ops->open(&p->device, trainer->num_device_cores));
    LG_TRY(
        lgi_lower(&p->lowered, p->device, lgi_trainer_model(trainer), opts, NULL, trainer->rank));
    const size_t num_ops = (size_t)lg_graph_num_ops(p->lowered->graph);
    LG_TRY(lgi_executor_create(&p->executor, trainer->hardware, p->device, NULL));
    LG_TRY(lgi_calloc(&p->trace.start_ns, num_ops, sizeof(uint64_t)));
    LG_TRY(lgi_calloc(&p->trace.end_ns, num_ops, sizeof(uint64_t)));
    size_t num_own_ops = 0;
    for (int op = 0; op < (int)num_ops; op++) {
        num_own_ops += is_own_op(p, op) ? 1 : 0;
    }
    LG_TRY(lgi_calloc(&p->run_ns, num_own_ops * MAX_RUNS, sizeof *p->run_ns));
    LG_TRY(make_batch(p, opts->num_samples));
    LG_TRY(count_turns(p));
    for (int w = 0; w < opts->num_widths; w++) {
        LG_TRY(profile_width(p, w));
    }
    LG_TRY(lgi_trainer_share_costs(trainer, p->costs, p->lowered->graph, true));
    LG_TRY(profile_corun(p, &machine->corun_slowdown));
    return profile_comm(p, &machine->comm_core_frac);
}

lg_status lgi_trainer_profile(lg_trainer *trainer, const lg_graph_opts *opts, lg_costs *costs,
                              lg_machine *machine)
{
    machine->corun_slowdown = 1.0;
    struct profile profile;
    memset(&profile, 0, sizeof profile);
    profile.trainer = trainer;
    profile.costs = costs;
    const lg_status status = profile_all(&profile, opts, machine);
    lgi_executor_destroy(profile.executor);
    lgi_lowered_destroy(profile.lowered);
    if (profile.device != NULL) {
        profile.device->ops->close(profile.device);
    }
    for (int i = 0; i < profile.num_tensors; i++) {
        lgi_free(profile.tensors[i]);
    }
    lgi_free(profile.tensors);
    lgi_free(profile.trace.start_ns);
    lgi_free(profile.trace.end_ns);
    lgi_free(profile.run_ns);
    return status;
}
