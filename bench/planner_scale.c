/*
 * How long planning takes at scale: builds the step graph of a deep stack of linear layers, one layer a stage, spread over
 * a pipeline of ranks with several stages each; plans, proves and simulates a step, and prints time and memory of each part,
 * last of the whole.
 *
 * Usage: planner_scale [key=value ...]
 *   keys: ranks (64), stages (of a rank, 8), micro_batches (256), strategy (interleaved), per_host (8), limit_s, limit_gib: more time
 *   on one core, or memory, than that is an error (10, 4; 0: none)
 *
 * Strategy "in-groups" is this file's own: forward and backward waves of as many micro-batches as there are ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "leapgrad/plan.h"

#define FEATURES 64
#define CLASSES 10
#define SAMPLES_PER_MICRO_BATCH 4
#define BYTES_PER_GIB (1024.0 * 1024.0 * 1024.0)

struct settings {
    int num_ranks;
    int stages_per_rank;
    int num_micro_batches;
    int ranks_per_host;
    int limit_s;
    int limit_gib;
    const char *strategy;
};

static void stop_if(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "bench/planner_scale: %s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

/* Wall clock and this thread's own time: apart where others use the core too. */
typedef struct moment {
    double wall_s;
    double cpu_s;
} moment;

static double clock_s(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static moment now(void)
{
    return (moment){clock_s(CLOCK_MONOTONIC), clock_s(CLOCK_THREAD_CPUTIME_ID)};
}

static double peak_gib(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024.0 / BYTES_PER_GIB;
}

static struct settings parse(int argc, char **argv)
{
    struct settings s = {64, 8, 256, 8, 10, 4, "interleaved"};
    struct {
        const char *key;
        int *value;
    } const keys[] = {{"ranks=", &s.num_ranks},
                      {"stages=", &s.stages_per_rank},
                      {"micro_batches=", &s.num_micro_batches},
                      {"per_host=", &s.ranks_per_host},
                      {"limit_s=", &s.limit_s},
                      {"limit_gib=", &s.limit_gib}};
    for (int i = 1; i < argc; i++) {
        bool is_known = strncmp(argv[i], "strategy=", 9) == 0;
        if (is_known) {
            s.strategy = argv[i] + 9;
        }
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            const size_t length = strlen(keys[k].key);
            if (strncmp(argv[i], keys[k].key, length) == 0) {
                *keys[k].value = (int)strtol(argv[i] + length, NULL, 10);
                is_known = true;
            }
        }
        if (!is_known) {
            (void)fprintf(stderr, "bench/planner_scale: unknown argument '%s'\n", argv[i]);
            exit(2);
        }
    }
    return s;
}

/* Linear layers, the last one with few outputs; the loss belongs to the last stage. */
static lg_model *make_model(int num_stages)
{
    lg_model *model = NULL;
    int x = 0;
    int targets = 0;
    stop_if(lg_model_create(&model));
    lg_layer_attrs attrs = lg_layer_attrs_default();
    attrs.input_shape = LG_SHAPE(FEATURES);
    stop_if(lg_model_add(model, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &x));
    attrs.input_idx = 1;
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_shape = LG_SHAPE(1);
    attrs.input_shape.num_dims = 0;
    stop_if(lg_model_add(model, "targets", LG_LAYER_INPUT, &attrs, NULL, 0, &targets));
    for (int i = 0; i < num_stages; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer%d", i);
        attrs = lg_layer_attrs_default();
        attrs.num_outputs = i == num_stages - 1 ? CLASSES : FEATURES;
        stop_if(lg_model_add(model, name, LG_LAYER_LINEAR, &attrs, &x, 1, &x));
    }
    const int inputs[] = {x, targets};
    stop_if(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL));
    return model;
}

static lg_graph *make_graph(const struct settings *s, const lg_model *model)
{
    const int num_layers = lg_model_num_layers(model);
    const int num_stages = s->num_ranks * s->stages_per_rank;
    int *const stages = calloc((size_t)num_layers, sizeof *stages);
    if (stages == NULL) {
        exit(1);
    }
    for (int layer = 2; layer < num_layers; layer++) {
        stages[layer] = layer - 2 < num_stages ? layer - 2 : num_stages - 1;
    }
    const lg_parallel parallel = {.num_replicas = 1,
                                  .num_pipeline_ranks = s->num_ranks,
                                  .num_stages = num_stages,
                                  .stage_of_layer = stages};
    lg_graph_opts opts = lg_graph_opts_default();
    opts.num_micro_batches = s->num_micro_batches;
    opts.num_samples = (int64_t)s->num_micro_batches * SAMPLES_PER_MICRO_BATCH;
    opts.parallel = &parallel;
    lg_graph *graph = NULL;
    stop_if(lg_graph_create(&graph, model, &opts));
    free(stages);
    return graph;
}

/* --- a strategy of its own --------------------------------------------------------------------------------------------- */

struct keyed_op {
    int64_t key;
    int op;
};

static int compare_keyed(const void *a, const void *b)
{
    const struct keyed_op *const x = a;
    const struct keyed_op *const y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->op - y->op;
}

/* A place for each op in one total order of all ranks; ops that meet get neighbouring places. */
static int64_t op_key(const struct settings *s, const lg_graph *graph, const lg_op_info *op)
{
    const int num_stages = s->num_ranks * s->stages_per_rank;
    const int64_t wave = (int64_t)s->num_ranks + num_stages + 2;
    if (op->micro_batch < 0) {
        return INT64_MAX;
    }
    const int64_t begin = op->micro_batch / s->num_ranks * 2 * wave;
    const int64_t turn = op->micro_batch % s->num_ranks;
    const bool is_message = op->kind == LG_OP_SEND || op->kind == LG_OP_RECV;
    const lg_value_kind kind = lg_graph_value(graph, op->operands[0].value)->kind;
    if (op->kind == LG_OP_FORWARD || (is_message && kind == LG_VALUE_ACTIVATION)) {
        return 2 * (begin + turn + op->stage) + (is_message ? 1 : 0);
    }
    /* the gradient of a stage's result is sent by the stage after it */
    const int stage = op->stage + (is_message ? 1 : 0);
    return 2 * (begin + wave + turn + num_stages - stage) + (is_message ? 1 : 0);
}

/* Lanes of a rank: compute, then one for each peer and direction. */
#define LANES_PER_RANK 5

static int lane_of(const struct settings *s, const lg_op_info *op)
{
    int lane = 0;
    if (op->kind == LG_OP_SEND || op->kind == LG_OP_RECV) {
        const bool is_next = op->peer == (op->rank + 1) % s->num_ranks;
        lane = 1 + (is_next ? 0 : 2) + (op->kind == LG_OP_SEND ? 0 : 1);
    }
    return op->rank * LANES_PER_RANK + lane;
}

static lg_plan *plan_in_groups(const struct settings *s, const lg_graph *graph)
{
    const int num_ops = lg_graph_num_ops(graph);
    const int num_lanes = s->num_ranks * LANES_PER_RANK;
    struct keyed_op *const ops = calloc((size_t)num_ops, sizeof *ops);
    lg_lane *const lanes = calloc((size_t)num_lanes, sizeof *lanes);
    if (ops == NULL || lanes == NULL) {
        exit(1);
    }
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        ops[op] = (struct keyed_op){op_key(s, graph, info), op};
        lanes[lane_of(s, info)].num_entries++;
    }
    qsort(ops, (size_t)num_ops, sizeof *ops, compare_keyed);
    for (int i = 0; i < num_lanes; i++) {
        lanes[i].rank = i / LANES_PER_RANK;
        lanes[i].kind = i % LANES_PER_RANK == 0 ? LG_LANE_COMPUTE : LG_LANE_COMM;
        lanes[i].num_cores = i % LANES_PER_RANK == 0 ? 1 : 0;
        lanes[i].entries = calloc((size_t)lanes[i].num_entries + 1, sizeof *lanes[i].entries);
        lanes[i].num_entries = 0;
        if (lanes[i].entries == NULL) {
            exit(1);
        }
    }
    for (int i = 0; i < num_ops; i++) {
        lg_lane *const lane = &lanes[lane_of(s, lg_graph_op(graph, ops[i].op))];
        lane->entries[lane->num_entries++] = (lg_plan_entry){ops[i].op, 0};
    }
    lg_plan *plan = NULL;
    stop_if(lg_plan_from_lanes(&plan, s->strategy, graph, lanes, num_lanes, NULL, 0));
    for (int i = 0; i < num_lanes; i++) {
        free(lanes[i].entries);
    }
    free(lanes);
    free(ops);
    return plan;
}

/* --- the measurement ---------------------------------------------------------------------------------------------------- */

static moment report(const char *what, moment begin)
{
    const moment end = now();
    (void)printf("%-10s %7.2f s (%5.2f s on its core)   peak so far %5.2f GiB\n", what,
                 end.wall_s - begin.wall_s, end.cpu_s - begin.cpu_s, peak_gib());
    (void)fflush(stdout);
    return end;
}

int main(int argc, char **argv)
{
    const struct settings s = parse(argc, argv);
    if (s.num_ranks < 2 || s.stages_per_rank < 1 || s.num_micro_batches < 1) {
        (void)fprintf(stderr, "bench/planner_scale: 2 or more ranks, 1 or more of all else\n");
        return 2;
    }
    lg_machine machine = lg_machine_default();
    machine.num_ranks = s.num_ranks;
    machine.ranks_per_host = s.ranks_per_host;
    machine.intra_host = (lg_link){.latency_ns = 5e3, .bytes_per_s = 150e9};
    machine.inter_host = (lg_link){.latency_ns = 15e3, .bytes_per_s = 12.5e9, .is_shared = true};
    lg_model *const model = make_model(s.num_ranks * s.stages_per_rank);
    const moment begin = now();
    lg_graph *const graph = make_graph(&s, model);
    moment at = report("graph", begin);
    lg_costs *costs = NULL;
    stop_if(lg_costs_create(&costs, graph));
    lg_costs_estimate(costs, graph, &machine);
    at = now();
    lg_plan *plan = NULL;
    if (strcmp(s.strategy, "in-groups") == 0) {
        plan = plan_in_groups(&s, graph);
        at = report("plan", at);
        stop_if(lg_plan_check(plan, graph, 0));
        at = report("check", at);
    } else {
        const lg_strategy_opts opts = lg_strategy_opts_default();
        stop_if(lg_plan_create(&plan, s.strategy, graph, &machine, costs, &opts));
        at = report("plan+check", at);
    }
    lg_timeline timeline;
    stop_if(lg_plan_simulate(&timeline, plan, graph, &machine, costs));
    const double simulate_s = now().cpu_s - at.cpu_s;
    at = report("simulate", at);
    int64_t peak_bytes = 0;
    for (int rank = 0; rank < plan->num_ranks; rank++) {
        peak_bytes = plan->peak_bytes[rank] > peak_bytes ? plan->peak_bytes[rank] : peak_bytes;
    }
    (void)printf(
        "%s: step %.3f ms, largest arena %.1f MiB; %d iterations simulated, %.2f M ops/s\n",
        plan->strategy, timeline.step_ns * 1e-6, (double)peak_bytes / (1024.0 * 1024.0),
        timeline.num_iterations,
        1e-6 * (double)plan->num_ops * timeline.num_iterations / simulate_s);
    const double total_s = at.wall_s - begin.wall_s;
    const double cpu_s = at.cpu_s - begin.cpu_s;
    const double gib = peak_gib();
    (void)printf("%d ranks, %d stages each, %d micro-batches: %d ops, %d edges planned, proved and "
                 "simulated in %.2f s (%.2f s on one core), %.2f GiB\n",
                 s.num_ranks, s.stages_per_rank, s.num_micro_batches, lg_graph_num_ops(graph),
                 lg_graph_num_edges(graph), total_s, cpu_s, gib);
    lg_timeline_deinit(&timeline);
    lg_plan_destroy(plan);
    lg_costs_destroy(costs);
    lg_graph_destroy(graph);
    lg_model_destroy(model);
    if ((s.limit_s > 0 && cpu_s > s.limit_s) || (s.limit_gib > 0 && gib > s.limit_gib)) {
        (void)fprintf(stderr, "bench/planner_scale: over the limit of %d s and %d GiB\n", s.limit_s,
                      s.limit_gib);
        return 1;
    }
    return 0;
}
