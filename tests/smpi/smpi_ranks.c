/*
 * Training steps over tens or hundreds of ranks, without the machines: leapgrad's own trainer, executor, communicator and MPI module, as
 * they are, run in SimGrid's SMPI. Kernels are left out, each op takes the time of its cost; messages are MPI's, over simulated wires.
 * What comes out is held against leapgrad's simulator.
 *
 * Usage: smpi_ranks PRESET [key=value ...] [--cfg=... (SimGrid's)]
 *   PRESET: a model by name (lg_model_preset_name())
 *   keys: plan, pipeline, replicas, batch (over all replicas), micro_batches (of each), steps, group (modulo), chunk (bytes), hosts_of
 *         (ranks per host), share (bytes, lg_parallel.share_bytes; not said: by the links), gbit (between hosts), latency_us, intra_gbyte (within a host), intra_latency_us, slots (optimizer tensors),
 *         poll_us (the communication thread looks at MPI at multiples of this: less to simulate), timeout_s (of silence or a stall),
 *         look_us (while messages are under way the thread looks at least so often, whatever the library says), within (a
 *         fraction: 1 is what it ends with if the times differ by more), ops (a file: what rank 0's ops took in the last step, as CSV, beside the simulator's)
 * Prints one JSON line: sent_bytes are all, plan_bytes those of the plan's messages, both of a step. Ends with 1 if a rank did not get
 * through or the plan's messages have not the planned bytes.
 *
 * What is shared by all ranks, because it is the same on all of them and large: step graph, costs, plan (wrapped functions at
 * the end). What is left out: initial weights and all bytes of the arenas, which share one block of memory.
 */
#include <mpi.h>

#include <simgrid/engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xbt/config.h>

#include "comm/collectives.h"
#include "comm/mpi/mpi_module.h"
#include "exec/lower.h"
#include "exec/program.h"
#include "gpu_costs.h"
#include "leapgrad/models.h"
#include "leapgrad/placement.h"
#include "leapgrad/trainer.h"
#include "smpi/smpi_threads.h"
#include "train/trainer_internal.h"

enum { EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_MEMORY = 3, MAX_INPUTS = 8 };

/* An arena is one block of memory, mapped again and again; a process has 65,530 mappings. */
#define SHARED_BLOCK_BYTES 67108864.0

typedef struct settings {
    const char *preset;
    const char *plan;
    int num_replicas;
    int num_pipeline_ranks;
    int64_t num_samples;
    int num_micro_batches;
    int num_steps;
    int num_slots;
    int group_size;
    int64_t chunk_bytes;
    int64_t share_bytes;
    double timeout_s;
    const char *ops_path; /* NULL: none */
    double max_off;       /* fraction by which the times may differ; 0: any */
    lg_machine machine;
} settings;

/* Of all ranks; actors run one at a time. */
static struct {
    settings settings;
    lg_model *model;
    void *tensors[MAX_INPUTS];
    lg_graph *graph; /* of the training steps */
    lg_costs *costs;
    lg_plan *plan;
    double *end_s; /* by step: when rank 0 ended it */
    double predicted_ns;
    bool has_begun;        /* a rank is in its first step */
    int64_t sent_bytes;    /* by all ranks, from then on */
    int64_t plan_bytes;    /* of them: of the plan's messages */
    int64_t num_messages;  /* of the plan's */
    int64_t planned_bytes; /* of a step, by all ranks */
    int num_ended;         /* ranks */
    int num_through;       /* ranks that ended all steps */
    double *
        start_ns; /* by op of rank 0: as simulated by leapgrad, from the step's begin; NULL: not wanted */
    double *stop_ns;
    lg_status status;
} all;

static void stop_if(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "smpi_ranks: %s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

/* --- command line ----------------------------------------------------------------------------------------------------------- */

static void set_option(settings *s, const char *key, const char *value)
{
    const double number = strtod(value, NULL);
    if (strcmp(key, "plan") == 0) {
        s->plan = value;
    } else if (strcmp(key, "pipeline") == 0) {
        s->num_pipeline_ranks = (int)number;
    } else if (strcmp(key, "replicas") == 0) {
        s->num_replicas = (int)number;
    } else if (strcmp(key, "batch") == 0) {
        s->num_samples = (int64_t)number;
    } else if (strcmp(key, "micro_batches") == 0) {
        s->num_micro_batches = (int)number;
    } else if (strcmp(key, "steps") == 0) {
        s->num_steps = (int)number;
    } else if (strcmp(key, "slots") == 0) {
        s->num_slots = (int)number;
    } else if (strcmp(key, "group") == 0) {
        s->group_size = (int)number;
    } else if (strcmp(key, "chunk") == 0) {
        s->chunk_bytes = (int64_t)number;
    } else if (strcmp(key, "share") == 0) {
        s->share_bytes = (int64_t)number;
    } else if (strcmp(key, "hosts_of") == 0) {
        s->machine.ranks_per_host = (int)number;
    } else if (strcmp(key, "gbit") == 0) {
        s->machine.inter_host.bytes_per_s = number * 1e9 / 8.0;
    } else if (strcmp(key, "latency_us") == 0) {
        s->machine.inter_host.latency_ns = number * 1e3;
    } else if (strcmp(key, "intra_gbyte") == 0) {
        s->machine.intra_host.bytes_per_s = number * 1e9;
    } else if (strcmp(key, "intra_latency_us") == 0) {
        s->machine.intra_host.latency_ns = number * 1e3;
    } else if (strcmp(key, "timeout_s") == 0) {
        s->timeout_s = number;
    } else if (strcmp(key, "within") == 0) {
        s->max_off = number;
    } else if (strcmp(key, "look_us") == 0) {
        smpi_set_most_wait(number * 1e-6);
    } else if (strcmp(key, "ops") == 0) {
        s->ops_path = value;
    } else if (strcmp(key, "poll_us") == 0) {
        smpi_set_least_wait(number * 1e-6);
    } else {
        (void)fprintf(stderr, "smpi_ranks: unknown key '%s'\n", key);
        exit(EXIT_USAGE);
    }
}

static settings read_settings(int argc, char **argv)
{
    settings s = {.plan = "wfbp",
                  .num_replicas = 1,
                  .num_pipeline_ranks = 1,
                  .num_samples = 0,
                  .num_micro_batches = 1,
                  .num_steps = 4,
                  .num_slots = 1,
                  .group_size = 1,
                  .share_bytes = LG_SHARE_BY_LINKS,
                  .timeout_s = 100.0,
                  .machine = gpu_machine(&gpu_v100, 1, 4)};
    s.machine.intra_host = (lg_link){.latency_ns = 10e3, .bytes_per_s = 22e9};
    s.machine.inter_host = (lg_link){.latency_ns = 50e3, .bytes_per_s = 10e9 / 8.0};
    if (argc < 2) {
        (void)fprintf(stderr, "usage: smpi_ranks PRESET [key=value ...] [--cfg=...]\n");
        exit(EXIT_USAGE);
    }
    s.preset = argv[1];
    for (int i = 2; i < argc; i++) {
        char *const equals = strchr(argv[i], '=');
        if (equals == NULL) {
            (void)fprintf(stderr, "smpi_ranks: '%s' is not key=value\n", argv[i]);
            exit(EXIT_USAGE);
        }
        *equals = '\0';
        set_option(&s, argv[i], equals + 1);
    }
    s.machine.num_ranks = s.num_replicas * s.num_pipeline_ranks;
    if (s.machine.ranks_per_host > s.machine.num_ranks) {
        s.machine.ranks_per_host = s.machine.num_ranks;
    }
    if (s.num_samples == 0) {
        s.num_samples = (int64_t)s.num_replicas * s.num_micro_batches;
    }
    return s;
}

/* --- the simulated machine ------------------------------------------------------------------------------------------------------- */

/* Every host has one wire out and one in, of half the latency each; cores are no limit, ops take the time that they take. */
static void make_platform(const lg_machine *machine)
{
    static const char head[] = "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM "
                               "\"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">\n";
    char path[] = "/tmp/leapgrad-smpi-XXXXXX";
    const int num_hosts =
        (machine->num_ranks + machine->ranks_per_host - 1) / machine->ranks_per_host;
    const int descriptor = mkstemp(path);
    FILE *const file = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (file == NULL) {
        perror(path);
        exit(EXIT_USAGE);
    }
    (void)fprintf(file,
                  "%s<cluster id=\"c\" prefix=\"host\" suffix=\"\" radical=\"0-%d\" speed=\"1Gf\" "
                  "core=\"1024\" bw=\"%.0fBps\" lat=\"%.9fs\" loopback_bw=\"%.0fBps\" "
                  "loopback_lat=\"%.9fs\"/>\n</platform>\n",
                  head, num_hosts - 1, machine->inter_host.bytes_per_s,
                  0.5e-9 * machine->inter_host.latency_ns, machine->intra_host.bytes_per_s,
                  1e-9 * machine->intra_host.latency_ns);
    (void)fflush(file);
    simgrid_load_platform(path);
    if (ftruncate(descriptor, 0) != 0) {
        perror(path);
    }
    rewind(file);
    (void)fprintf(file, "%s", head);
    for (int r = 0; r < machine->num_ranks; r++) {
        (void)fprintf(file,
                      "<actor host=\"host%d\" function=\"ranks\"><prop id=\"instance_id\" "
                      "value=\"ranks\"/><prop id=\"rank\" value=\"%d\"/></actor>\n",
                      r / machine->ranks_per_host, r);
    }
    (void)fprintf(file, "</platform>\n");
    (void)fclose(file);
    simgrid_load_deployment(path);
    (void)unlink(path);
}

/* --- a rank ---------------------------------------------------------------------------------------------------------------- */

static lg_status place(lg_stages *stages, lg_parallel *parallel)
{
    const settings *const s = &all.settings;
    *stages = (lg_stages){0};
    *parallel = (lg_parallel){.num_replicas = s->num_replicas,
                              .num_pipeline_ranks = 1,
                              .num_stages = 1,
                              .chunk_bytes = s->chunk_bytes,
                              .share_bytes = s->share_bytes};
    if (s->num_pipeline_ranks == 1) {
        return LG_OK;
    }
    const bool is_v = strncmp(s->plan, "zb-v", 4) == 0;
    const lg_status status =
        strncmp(s->plan, "modulo", 6) == 0
            ? lg_stages_modulo(stages, all.model, s->num_pipeline_ranks, s->group_size)
            : lg_stages_contiguous(stages, all.model, s->num_pipeline_ranks,
                                   (is_v ? 2 : 1) * s->num_pipeline_ranks,
                                   is_v ? LG_STAGE_ORDER_V : LG_STAGE_ORDER_LOOP);
    if (status == LG_OK) {
        lg_stages_apply(stages, parallel);
    }
    return status;
}

static void add_nothing(lgi_device *device, int width, int64_t bytes, void *dst,
                        const void *const *addends, int num_addends)
{
    (void)device;
    (void)width;
    (void)bytes;
    (void)dst;
    (void)addends;
    (void)num_addends;
}

/* The communication thread adds up gradients without a kernel's op; here it does not. */
static void stop_adding(lg_trainer *trainer)
{
    static struct lgi_device_ops ops;
    ops = *trainer->device->ops;
    ops.grad_add = add_nothing;
    trainer->device->ops = &ops;
}

/* What rank 0's ops took, as simulated by leapgrad and by SMPI, from the begin of their step. */
static void write_ops(const lg_trainer *trainer)
{
    FILE *const file = fopen(all.settings.ops_path, "w");
    if (file == NULL) {
        perror(all.settings.ops_path);
        return;
    }
    (void)fprintf(file, "op,kind,bytes,simulator_start_us,simulator_end_us,start_us,end_us\n");
    for (int i = 0; i < lg_graph_num_ops(all.graph); i++) {
        const lg_op_info *const op = lg_graph_op(all.graph, i);
        const lgi_trace *const trace = &trainer->trace;
        if (op->rank == 0 && trace->end_ns[i] != 0) {
            (void)fprintf(file, "\"%s\",%s,%lld,%.1f,%.1f,%.1f,%.1f\n", op->name,
                          lg_op_kind_name(op->kind), (long long)op->message_bytes,
                          1e-3 * all.start_ns[i], 1e-3 * all.stop_ns[i],
                          1e-3 * (double)(int64_t)(trace->start_ns[i] - trace->begin_ns),
                          1e-3 * (double)(int64_t)(trace->end_ns[i] - trace->begin_ns));
        }
    }
    (void)fclose(file);
}

static lg_status run_steps(lg_trainer *trainer, bool is_first)
{
    const settings *const s = &all.settings;
    for (int i = 0; i < s->num_steps; i++) {
        all.has_begun = true;
        lg_trainer_record(trainer, is_first && s->ops_path != NULL);
        const lg_status status =
            lg_trainer_step(trainer, s->num_samples, (const void *const *)all.tensors, NULL);
        if (status != LG_OK) {
            return status;
        }
        if (is_first) {
            all.end_s[i] = smpi_now();
        }
    }
    return lg_trainer_drain(trainer);
}

static lg_status train(lg_comm *comm)
{
    const settings *const s = &all.settings;
    const bool is_first = lg_comm_rank(comm) == 0;
    lg_trainer_opts opts = lg_trainer_opts_default();
    lg_stages stages;
    lg_parallel parallel;
    lg_trainer *trainer = NULL;
    lg_status status = place(&stages, &parallel);
    opts.device = "reference";
    opts.batch_samples = s->num_samples;
    opts.num_micro_batches = s->num_micro_batches;
    opts.num_steps = s->num_steps;
    opts.optim.momentum = s->num_slots == 1 ? 0.9 : 0.0;
    opts.optim.rule = s->num_slots == 2 ? LG_OPTIM_ADAMW : LG_OPTIM_SGD;
    opts.strategy = s->plan;
    opts.comm = comm;
    opts.parallel = &parallel;
    opts.machine = &s->machine;
    if (status == LG_OK) {
        status = lg_trainer_create(&trainer, all.model, &opts);
    }
    if (status == LG_OK && is_first) {
        all.predicted_ns = lg_trainer_about(trainer).predicted_step_ns;
    }
    if (status == LG_OK) {
        stop_adding(trainer);
        status = run_steps(trainer, is_first);
    }
    if (status == LG_OK) {
        all.num_through++;
        if (is_first && s->ops_path != NULL) {
            write_ops(trainer);
        }
    }
    lg_trainer_destroy(trainer);
    lg_stages_deinit(&stages);
    return status;
}

static void run_program(void *user)
{
    lg_comm *comm = NULL;
    (void)user;
    smpi_adopt_next_thread();
    lg_status status = lg_comm_mpi_create(&comm);
    if (status == LG_OK) {
        lg_comm_set_timeout(comm, all.settings.timeout_s);
        status = train(comm);
        lg_comm_destroy(comm);
    }
    if (status != LG_OK && all.status == LG_OK) {
        all.status = status;
        (void)fprintf(stderr, "smpi_ranks: %s\n", lg_last_error());
    }
}

static void rank_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    smpi_rank_run(run_program, NULL);
    all.num_ended++;
    while (all.num_ended < all.settings.machine.num_ranks) {
        smpi_pass_time(0.01); /* SMPI cannot send to an actor that is gone, as a last word may */
    }
}

/* --- what is left out or shared -------------------------------------------------------------------------------------------- */

/* An op takes the time of its cost. */
lg_status __wrap_lgi_program_run_op(lgi_program *program, int op, int step_slot);
lg_status __wrap_lgi_program_run_op(lgi_program *program, int op, int step_slot)
{
    (void)program;
    (void)step_slot;
    smpi_pass_time(1e-9 * lg_costs_op_ns(all.costs, op, 0));
    return LG_OK;
}

lg_status __wrap_lgi_init_weights(lgi_device *device, const lg_model *model,
                                  const lgi_program *program, uint64_t seed);
lg_status __wrap_lgi_init_weights(lgi_device *device, const lg_model *model,
                                  const lgi_program *program, uint64_t seed)
{
    (void)device;
    (void)model;
    (void)program;
    (void)seed;
    return LG_OK;
}

/* All ranks have the same arena: what is in it does not matter, and MPI does not copy such memory. */
lg_status __wrap_lgi_reference_alloc(lgi_device *device, void **out, int64_t bytes);
lg_status __wrap_lgi_reference_alloc(lgi_device *device, void **out, int64_t bytes)
{
    static void *arena;
    static int64_t arena_bytes;
    (void)device;
    if (bytes > arena_bytes) {
        arena = SMPI_SHARED_MALLOC((size_t)bytes);
        arena_bytes = bytes;
    }
    *out = arena;
    return arena != NULL ? LG_OK : LG_OUT_OF_MEMORY;
}

void __wrap_lgi_reference_free(lgi_device *device, void *data, int64_t bytes);
void __wrap_lgi_reference_free(lgi_device *device, void *data, int64_t bytes)
{
    (void)device;
    (void)data;
    (void)bytes; /* the process ends soon */
}

lg_status __wrap_lgi_mpi_load_module(const lgi_mpi_module **out);
const lgi_mpi_module *leapgrad_mpi_module(void);
lg_status __wrap_lgi_mpi_load_module(const lgi_mpi_module **out)
{
    *out = leapgrad_mpi_module();
    return LG_OK;
}

/* Messages of plans are in the data world, whose tags are channels. */
static void count_sent(int tag, int64_t num_bytes, bool is_data)
{
    all.sent_bytes += all.has_begun ? num_bytes : 0;
    if (is_data && (tag == LGI_CHANNEL_PLAN || tag == LGI_CHANNEL_REDUCE)) {
        all.plan_bytes += num_bytes;
        all.num_messages++;
    }
}

int __real_MPI_Isend(const void *data, int count, MPI_Datatype type, int peer, int tag,
                     MPI_Comm world, MPI_Request *request);
int __wrap_MPI_Isend(const void *data, int count, MPI_Datatype type, int peer, int tag,
                     MPI_Comm world, MPI_Request *request);
int __wrap_MPI_Isend(const void *data, int count, MPI_Datatype type, int peer, int tag,
                     MPI_Comm world, MPI_Request *request)
{
    count_sent(tag, count, false);
    return __real_MPI_Isend(data, count, type, peer, tag, world, request);
}

int __real_MPI_Issend(const void *data, int count, MPI_Datatype type, int peer, int tag,
                      MPI_Comm world, MPI_Request *request);
int __wrap_MPI_Issend(const void *data, int count, MPI_Datatype type, int peer, int tag,
                      MPI_Comm world, MPI_Request *request);
int __wrap_MPI_Issend(const void *data, int count, MPI_Datatype type, int peer, int tag,
                      MPI_Comm world, MPI_Request *request)
{
    count_sent(tag, count, true);
    return __real_MPI_Issend(data, count, type, peer, tag, world, request);
}

int __real_MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int __wrap_MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int __wrap_MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const int error = __real_MPI_Init_thread(argc, argv, required, provided);
    *provided = required; /* there are no threads here to be in the way */
    return error;
}

int __wrap_MPI_Wait(MPI_Request *request, MPI_Status *status);
int __wrap_MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    (void)request;
    (void)status;
    return MPI_SUCCESS;
}

lg_status __real_lgi_graph_build(lg_graph **out, const lg_model *model, const lg_graph_opts *opts,
                                 const lgi_graph_source *source);
lg_status __wrap_lgi_graph_build(lg_graph **out, const lg_model *model, const lg_graph_opts *opts,
                                 const lgi_graph_source *source);
lg_status __wrap_lgi_graph_build(lg_graph **out, const lg_model *model, const lg_graph_opts *opts,
                                 const lgi_graph_source *source)
{
    if (opts->mode == LG_GRAPH_TRAIN && all.graph != NULL) {
        *out = all.graph;
        return LG_OK;
    }
    const lg_status status = __real_lgi_graph_build(out, model, opts, source);
    if (opts->mode == LG_GRAPH_TRAIN && status == LG_OK) {
        all.graph = *out;
    }
    return status;
}

void __real_lg_graph_destroy(lg_graph *graph);
void __wrap_lg_graph_destroy(lg_graph *graph);
void __wrap_lg_graph_destroy(lg_graph *graph)
{
    if (graph != all.graph) {
        __real_lg_graph_destroy(graph);
    }
}

/* The costs of a V100, as in bench/papers.c. */
void __wrap_lg_costs_estimate(lg_costs *costs, const lg_graph *graph, const lg_machine *machine);
void __wrap_lg_costs_estimate(lg_costs *costs, const lg_graph *graph, const lg_machine *machine)
{
    (void)machine;
    gpu_costs_fill(costs, graph, &gpu_v100, 1.0);
    if (graph == all.graph && all.costs == NULL) {
        stop_if(lg_costs_create(&all.costs, graph));
        gpu_costs_fill(all.costs, graph, &gpu_v100, 1.0);
    }
}

lg_status __real_lg_plan_create(lg_plan **out, const char *strategy, const lg_graph *graph,
                                const lg_machine *machine, const lg_costs *costs,
                                const lg_strategy_opts *opts);
lg_status __wrap_lg_plan_create(lg_plan **out, const char *strategy, const lg_graph *graph,
                                const lg_machine *machine, const lg_costs *costs,
                                const lg_strategy_opts *opts);
lg_status __wrap_lg_plan_create(lg_plan **out, const char *strategy, const lg_graph *graph,
                                const lg_machine *machine, const lg_costs *costs,
                                const lg_strategy_opts *opts)
{
    const bool is_shared = graph == all.graph && strcmp(strategy, all.settings.plan) == 0;
    if (is_shared && all.plan != NULL) {
        *out = all.plan;
        return LG_OK;
    }
    const lg_status status = __real_lg_plan_create(out, strategy, graph, machine, costs, opts);
    if (is_shared && status == LG_OK) {
        all.plan = *out;
    }
    return status;
}

void __real_lg_plan_destroy(lg_plan *plan);
void __wrap_lg_plan_destroy(lg_plan *plan);
void __wrap_lg_plan_destroy(lg_plan *plan)
{
    if (plan != all.plan) {
        __real_lg_plan_destroy(plan);
    }
}

/* Rank 0's, for all. */
lg_status __wrap_lgi_trainer_share_plan(lg_trainer *trainer, lg_plan **plan);
lg_status __wrap_lgi_trainer_share_plan(lg_trainer *trainer, lg_plan **plan)
{
    const lg_status status = lgi_comm_barrier(trainer->comm);
    if (status == LG_OK && trainer->rank != 0) {
        *plan = all.plan;
    }
    return status;
}

/* Proved and simulated once. */
lg_status __real_lg_plan_check(const lg_plan *plan, const lg_graph *graph, int64_t memory_bytes);
lg_status __wrap_lg_plan_check(const lg_plan *plan, const lg_graph *graph, int64_t memory_bytes);
lg_status __wrap_lg_plan_check(const lg_plan *plan, const lg_graph *graph, int64_t memory_bytes)
{
    static bool is_checked;
    if (plan == all.plan && is_checked) {
        return LG_OK;
    }
    is_checked |= plan == all.plan;
    return __real_lg_plan_check(plan, graph, memory_bytes);
}

static void count_planned_bytes(const lg_timeline *timeline)
{
    lg_rank_stats *const ranks = calloc((size_t)all.plan->num_ranks, sizeof *ranks);
    if (ranks == NULL) {
        exit(EXIT_MEMORY);
    }
    stop_if(lg_timeline_stats(ranks, timeline, all.plan, all.graph));
    for (int r = 0; r < all.plan->num_ranks; r++) {
        all.planned_bytes += ranks[r].sent_bytes;
    }
    free(ranks);
}

static void keep_times(const lg_timeline *timeline)
{
    if (all.settings.ops_path == NULL) {
        return;
    }
    const size_t num_ops = (size_t)all.plan->num_ops;
    double begin_ns = timeline->end_ns;
    all.start_ns = calloc(num_ops, sizeof *all.start_ns);
    all.stop_ns = calloc(num_ops, sizeof *all.stop_ns);
    if (all.start_ns == NULL || all.stop_ns == NULL) {
        exit(EXIT_MEMORY);
    }
    for (int i = 0; i < timeline->num_spans; i++) {
        const lg_span *const span = &timeline->spans[i];
        if (lg_graph_op(all.graph, span->op)->rank == 0) {
            begin_ns = span->start_ns < begin_ns ? span->start_ns : begin_ns;
            all.start_ns[span->op] = span->start_ns;
            all.stop_ns[span->op] = span->end_ns;
        }
    }
    for (size_t i = 0; i < num_ops; i++) {
        all.start_ns[i] -= begin_ns;
        all.stop_ns[i] -= begin_ns;
    }
}

lg_status __real_lg_plan_simulate(lg_timeline *out, const lg_plan *plan, const lg_graph *graph,
                                  const lg_machine *machine, const lg_costs *costs);
lg_status __wrap_lg_plan_simulate(lg_timeline *out, const lg_plan *plan, const lg_graph *graph,
                                  const lg_machine *machine, const lg_costs *costs);
lg_status __wrap_lg_plan_simulate(lg_timeline *out, const lg_plan *plan, const lg_graph *graph,
                                  const lg_machine *machine, const lg_costs *costs)
{
    static double step_ns;
    if (plan == all.plan && step_ns > 0.0) {
        *out = (lg_timeline){.step_ns = step_ns};
        return LG_OK;
    }
    const lg_status status = __real_lg_plan_simulate(out, plan, graph, machine, costs);
    if (plan == all.plan && status == LG_OK) {
        step_ns = out->step_ns;
        count_planned_bytes(out);
        keep_times(out);
    }
    return status;
}

/* --- main ------------------------------------------------------------------------------------------------------------------- */

static void make_batch(void)
{
    for (int layer = 0; layer < lg_model_num_layers(all.model); layer++) {
        const lg_layer_info *const info = lg_model_layer(all.model, layer);
        if (info->kind ==
            LG_LAYER_INPUT) { /* zeros that are never touched: ids and targets in range */
            all.tensors[info->attrs->input_idx] =
                calloc((size_t)(lg_shape_num_elems(&info->out_shape) * all.settings.num_samples),
                       sizeof(float));
        }
    }
}

/* Behind the start of the first steps. */
static double step_ms(void)
{
    const int last = all.settings.num_steps - 1;
    const int first = last / 2;
    return 1e3 * (all.end_s[last] - all.end_s[first]) / (last - first);
}

/* What the simulator says is longer by this fraction. */
static double off(void)
{
    return 1e-6 * all.predicted_ns / step_ms() - 1.0;
}

static void print_result(void)
{
    const settings *const s = &all.settings;
    (void)printf("{\"model\": \"%s\", \"plan\": \"%s\", \"ranks\": %d, \"replicas\": %d, "
                 "\"pipeline\": %d, \"micro_batches\": %d, \"batch\": %lld, \"ops\": %d, "
                 "\"gbit_per_s\": %g, \"ranks_per_host\": %d, \"step_ms\": %.3f, "
                 "\"predicted_ms\": %.3f, \"off\": %.4f, \"messages\": %lld, "
                 "\"sent_bytes\": %lld, \"plan_bytes\": %lld, \"planned_bytes\": %lld}\n",
                 s->preset, s->plan, s->machine.num_ranks, s->num_replicas, s->num_pipeline_ranks,
                 s->num_micro_batches, (long long)s->num_samples, lg_graph_num_ops(all.graph),
                 s->machine.inter_host.bytes_per_s * 8e-9, s->machine.ranks_per_host, step_ms(),
                 1e-6 * all.predicted_ns, off(), (long long)(all.num_messages / s->num_steps),
                 (long long)(all.sent_bytes / s->num_steps),
                 (long long)(all.plan_bytes / s->num_steps), (long long)all.planned_bytes);
}

/* SimGrid returns, too, when all actors wait for each other. */
static int look_for_mistakes(void)
{
    const settings *const s = &all.settings;
    if (all.num_through != s->machine.num_ranks) {
        (void)fprintf(stderr, "smpi_ranks: %d of %d ranks got through\n", all.num_through,
                      s->machine.num_ranks);
        return EXIT_WRONG;
    }
    if (all.plan_bytes != all.planned_bytes * s->num_steps) {
        (void)fprintf(stderr, "smpi_ranks: %lld bytes were sent in %d steps of %lld bytes each\n",
                      (long long)all.plan_bytes, s->num_steps, (long long)all.planned_bytes);
        return EXIT_WRONG;
    }
    if (s->max_off > 0.0 && !(off() < s->max_off && off() > -s->max_off)) {
        (void)fprintf(stderr, "smpi_ranks: a step takes %.1f ms, the simulator says %.1f ms\n",
                      step_ms(), 1e-6 * all.predicted_ns);
        return EXIT_WRONG;
    }
    return 0;
}

int main(int argc, char **argv)
{
    simgrid_init(&argc, argv); /* takes its own options */
    all.settings = read_settings(argc, argv);
    const settings *const s = &all.settings;
    stop_if(lg_model_preset(&all.model, s->preset));
    make_batch();
    all.end_s = calloc((size_t)s->num_steps, sizeof *all.end_s);
    if (all.end_s == NULL || s->num_steps < 3) {
        (void)fprintf(stderr, "smpi_ranks: steps start at 3\n");
        return EXIT_USAGE;
    }
    SMPI_init();
    sg_cfg_set_double("smpi/shared-malloc-blocksize", SHARED_BLOCK_BYTES);
    SMPI_app_instance_register("ranks", rank_main, s->machine.num_ranks);
    make_platform(&s->machine);
    simgrid_run();
    SMPI_finalize();
    if (all.status != LG_OK) {
        return lg_status_exit_code(all.status);
    }
    if (all.num_through == s->machine.num_ranks) {
        print_result();
    }
    return look_for_mistakes();
}
