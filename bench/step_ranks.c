/*
 * Times training steps over several ranks, through the public interface: one plan after the other on the same model and batch.
 * Rank 0 prints a JSON line for each plan: time of a step, measured and predicted, losses, hash, memory, messages.
 *
 * Ranks are threads of this process; started by mpirun or mpiexec, they are the processes.
 *
 * Usage: step_ranks MODEL plans=PLAN,PLAN,... [key=value ...]
 *   PLAN: a strategy, then options: modulo:g=2 (blocks of a stage), interleaved:stages=2 (of a rank), auto:v (stages in a V),
 *         fast-forward:push, reverse-first-k:k=5, priority:chunk=65536 (bytes), priority:share=65536 (bytes; by-links), any:statistics
 *   keys: pipeline, replicas, batch (over all replicas), micro_batches (of each), steps, warmup, device, rule (sgd, adamw), lr
 *         (in millionths), costs (measure, estimate), skip (step, layer), timeout (seconds), weights (a file: the initial weights are written
 *         there, nothing is trained), and those of bench_model_set()
 *
 * A step's time is the distance between the ends of successive steps on rank 0; nothing waits for other ranks but what the plan makes
 * wait. Losses are fetched a step late.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_model.h"
#include "leapgrad/checkpoint.h"
#include "leapgrad/comm.h"
#include "leapgrad/placement.h"
#include "leapgrad/trainer.h"

#define MAX_PLANS 64
#define MAX_PRINTED_LOSSES 64

enum { EXIT_USAGE = 2, EXIT_MEMORY = 3 };

typedef struct settings {
    bench_model model;
    lg_trainer_opts trainer;
    int num_replicas;
    int num_pipeline_ranks;
    int num_steps;
    int num_warmup;
    double timeout_s;
    const char *weights_path; /* NULL: train */
    int num_plans;
    char *plans[MAX_PLANS];
} settings;

/* One of the PLANs, taken apart. */
typedef struct plan_spec {
    char strategy[64];
    int group_size;
    int stages_per_rank; /* 0: as the strategy wants */
    bool is_v;
    bool has_push;
    bool has_statistics;
    int num_reversed;
    int64_t chunk_bytes;
    int64_t share_bytes;
} plan_spec;

/* A rank: a thread, or this process. */
typedef struct rank_run {
    const settings *settings;
    lg_comm *comm; /* NULL: alone */
    pthread_t thread;
    lg_status status;
} rank_run;

typedef struct measured {
    double *step_ms; /* by step after the warm-up; sorted in the end */
    double *losses;  /* by step, warm-up included */
    double mean_ms;
} measured;

static void die(int code, const char *what, const char *detail)
{
    (void)fprintf(stderr, "bench/step_ranks: %s%s\n", what, detail);
    exit(code);
}

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static bool is_first_rank(const rank_run *run)
{
    return run->comm == NULL || lg_comm_rank(run->comm) == 0;
}

/* --- command line ------------------------------------------------------------------------------------------------------- */

static void split_plans(settings *s, char *text)
{
    char *rest = NULL;
    for (char *plan = strtok_r(text, ",", &rest); plan != NULL; plan = strtok_r(NULL, ",", &rest)) {
        if (s->num_plans == MAX_PLANS) {
            die(EXIT_USAGE, "too many plans at ", plan);
        }
        s->plans[s->num_plans++] = plan;
    }
}

static bool set_training_option(settings *s, const char *key, char *value)
{
    const long number = strtol(value, NULL, 10);
    if (strcmp(key, "device") == 0) {
        s->trainer.device = value;
    } else if (strcmp(key, "rule") == 0) {
        s->trainer.optim.rule = strcmp(value, "adamw") == 0 ? LG_OPTIM_ADAMW : LG_OPTIM_SGD;
    } else if (strcmp(key, "lr") == 0) {
        s->trainer.optim.lr = (double)number * 1e-6;
    } else if (strcmp(key, "costs") == 0) {
        s->trainer.costs =
            strcmp(value, "measure") == 0 ? LG_TRAINER_COSTS_MEASURE : LG_TRAINER_COSTS_ESTIMATE;
    } else if (strcmp(key, "skip") == 0) {
        s->trainer.optim.skip = strcmp(value, "layer") == 0 ? LG_SKIP_LAYER : LG_SKIP_STEP;
    } else if (strcmp(key, "batch") == 0) {
        s->trainer.batch_samples = number;
    } else if (strcmp(key, "micro_batches") == 0) {
        s->trainer.num_micro_batches = (int)number;
    } else {
        return false;
    }
    return true;
}

static void set_option(settings *s, const char *key, char *value)
{
    const long number = strtol(value, NULL, 10);
    if (strcmp(key, "plans") == 0) {
        split_plans(s, value);
    } else if (strcmp(key, "pipeline") == 0) {
        s->num_pipeline_ranks = (int)number;
    } else if (strcmp(key, "replicas") == 0) {
        s->num_replicas = (int)number;
    } else if (strcmp(key, "steps") == 0) {
        s->num_steps = (int)number;
    } else if (strcmp(key, "warmup") == 0) {
        s->num_warmup = (int)number;
    } else if (strcmp(key, "timeout") == 0) {
        s->timeout_s = (double)number;
    } else if (strcmp(key, "weights") == 0) {
        s->weights_path = value;
    } else if (!set_training_option(s, key, value) && !bench_model_set(&s->model, key, number)) {
        die(EXIT_USAGE, "unknown key ", key);
    }
}

static settings default_settings(const char *model)
{
    settings s;
    memset(&s, 0, sizeof s);
    s.model = bench_model_default(model);
    (void)bench_model_set(&s.model, "drop_percent", 0); /* losses are compared */
    s.trainer = lg_trainer_opts_default();
    s.trainer.batch_samples = 16;
    s.trainer.costs = LG_TRAINER_COSTS_MEASURE;
    s.trainer.optim.momentum = 0.9;
    s.trainer.optim.lr = 0.01;
    s.trainer.optim.skip = LG_SKIP_LAYER;
    s.num_replicas = 1;
    s.num_pipeline_ranks = 1;
    s.num_steps = 20;
    s.num_warmup = 3;
    s.timeout_s = 30.0;
    return s;
}

static settings read_settings(int argc, char **argv)
{
    if (argc < 2) {
        die(EXIT_USAGE, "usage: step_ranks MODEL plans=PLAN,... [key=value ...]", "");
    }
    settings s = default_settings(argv[1]);
    for (int i = 2; i < argc; i++) {
        char *const equals = strchr(argv[i], '=');
        if (equals == NULL) {
            die(EXIT_USAGE, "not key=value: ", argv[i]);
        }
        *equals = '\0';
        set_option(&s, argv[i], equals + 1);
    }
    if (s.num_steps < 1 || s.num_warmup < 0 || s.num_replicas < 1 || s.num_pipeline_ranks < 1) {
        die(EXIT_USAGE, "steps, replicas and pipeline start at 1, warmup at 0", "");
    }
    if (s.num_plans == 0 && s.weights_path == NULL) {
        die(EXIT_USAGE, "no plans=", "");
    }
    s.trainer.num_steps = s.num_steps + s.num_warmup;
    return s;
}

static plan_spec parse_plan(const char *text)
{
    plan_spec spec = {.group_size = 1, .num_reversed = -1};
    char copy[128];
    char *rest = NULL;
    (void)snprintf(copy, sizeof copy, "%s", text);
    const char *const name = strtok_r(copy, ":", &rest);
    (void)snprintf(spec.strategy, sizeof spec.strategy, "%s", name != NULL ? name : "");
    spec.is_v =
        strncmp(spec.strategy, "zb-v", 4) == 0 || strncmp(spec.strategy, "dualpipe-v", 10) == 0;
    for (char *word = strtok_r(NULL, ":", &rest); word != NULL; word = strtok_r(NULL, ":", &rest)) {
        const char *const equals = strchr(word, '=');
        const long number = equals != NULL ? strtol(equals + 1, NULL, 10) : 0;
        if (strcmp(word, "v") == 0) {
            spec.is_v = true;
        } else if (strcmp(word, "push") == 0) {
            spec.has_push = true;
        } else if (strcmp(word, "statistics") == 0) {
            spec.has_statistics = true;
        } else if (strncmp(word, "g=", 2) == 0) {
            spec.group_size = (int)number;
            spec.stages_per_rank = -1;
        } else if (strncmp(word, "stages=", 7) == 0) {
            spec.stages_per_rank = (int)number;
        } else if (strncmp(word, "k=", 2) == 0) {
            spec.num_reversed = (int)number;
        } else if (strncmp(word, "chunk=", 6) == 0) {
            spec.chunk_bytes = number;
        } else if (strcmp(word, "share=by-links") == 0) {
            spec.share_bytes = LG_SHARE_BY_LINKS;
        } else if (strncmp(word, "share=", 6) == 0) {
            spec.share_bytes = number;
        } else {
            die(EXIT_USAGE, "a plan has no option ", word);
        }
    }
    return spec;
}

/* --- placement ------------------------------------------------------------------------------------------------------------ */

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static lg_status place(lg_stages *out, const lg_model *model, int num_ranks, const plan_spec *spec)
{
    if (starts_with(spec->strategy, "modulo") || spec->stages_per_rank < 0) {
        return lg_stages_modulo(out, model, num_ranks, spec->group_size);
    }
    const bool is_loop =
        starts_with(spec->strategy, "interleaved") || starts_with(spec->strategy, "breadth-first");
    int num = spec->stages_per_rank;
    if (num == 0) {
        num = is_loop || spec->is_v ? 2 : 1;
    }
    return lg_stages_contiguous(out, model, num_ranks, num_ranks * num,
                                spec->is_v ? LG_STAGE_ORDER_V : LG_STAGE_ORDER_LOOP);
}

/* --- steps ---------------------------------------------------------------------------------------------------------------- */

static lg_status keep_loss(lg_trainer *trainer, int64_t step, measured *m)
{
    lg_step_result result = {0};
    const lg_status status = lg_trainer_result(trainer, step, &result);
    m->losses[step] = result.loss;
    return status;
}

static lg_status run_steps(const settings *s, lg_trainer *trainer, const void *const *tensors,
                           measured *m)
{
    const int num = s->num_steps + s->num_warmup;
    double begin_ms = now_ms();
    double last_ms = begin_ms;
    for (int i = 0; i < num; i++) {
        lg_status status = lg_trainer_step(trainer, s->trainer.batch_samples, tensors, NULL);
        if (status == LG_OK && i > 0) {
            status = keep_loss(trainer, i - 1, m);
        }
        if (status != LG_OK) {
            return status;
        }
        const double ms = now_ms();
        if (i < s->num_warmup) {
            begin_ms = ms;
        } else {
            m->step_ms[i - s->num_warmup] = ms - last_ms;
        }
        last_ms = ms;
    }
    m->mean_ms = (last_ms - begin_ms) / s->num_steps;
    lg_status status = keep_loss(trainer, num - 1, m);
    return status == LG_OK ? lg_trainer_drain(trainer) : status;
}

/* --- printing --------------------------------------------------------------------------------------------------------- */

static void print_text(const char *key, const char *text)
{
    (void)printf("\"%s\": \"", key);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            (void)putchar('\\');
        }
        (void)putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    (void)printf("\", ");
}

static void print_head(const rank_run *run, const char *plan)
{
    const settings *const s = run->settings;
    (void)printf("{");
    print_text("model", s->model.name);
    print_text("plan", plan);
    print_text("comm", run->comm != NULL ? lg_comm_name(run->comm) : "none");
    (void)printf("\"replicas\": %d, \"pipeline\": %d, \"batch\": %lld, \"micro_batches\": %d",
                 s->num_replicas, s->num_pipeline_ranks, (long long)s->trainer.batch_samples,
                 s->trainer.num_micro_batches);
}

static bool are_lanes_equal(const lg_plan *a, const lg_plan *b)
{
    bool are_equal = a->num_lanes == b->num_lanes;
    for (int i = 0; are_equal && i < a->num_lanes; i++) {
        const lg_lane *const x = &a->lanes[i];
        const lg_lane *const y = &b->lanes[i];
        are_equal =
            x->num_entries == y->num_entries &&
            memcmp(x->entries, y->entries, (size_t)x->num_entries * sizeof *x->entries) == 0;
    }
    return are_equal;
}

/* The k for which the strategy makes this plan; -1: none. */
static int find_k(const lg_trainer *trainer, const plan_spec *spec)
{
    const lg_graph *const graph = lg_trainer_graph(trainer);
    const lg_machine machine = lg_trainer_machine(trainer);
    lg_strategy_opts opts = lg_strategy_opts_default();
    for (int k = 0;; k++) {
        lg_plan *plan = NULL;
        opts.num_reversed = k;
        if (lg_plan_create(&plan, spec->strategy, graph, &machine, lg_trainer_cost_table(trainer),
                           &opts) != LG_OK) {
            return -1;
        }
        const bool is_it = are_lanes_equal(plan, lg_trainer_plan(trainer));
        lg_plan_destroy(plan);
        if (is_it) {
            return k;
        }
    }
}

/* What the simulator says of all ranks. */
static lg_status print_simulated(const lg_trainer *trainer)
{
    const lg_plan *const plan = lg_trainer_plan(trainer);
    const lg_graph *const graph = lg_trainer_graph(trainer);
    const lg_machine machine = lg_trainer_machine(trainer);
    lg_timeline timeline;
    lg_rank_stats *const ranks = calloc((size_t)plan->num_ranks, sizeof *ranks);
    if (ranks == NULL) {
        return LG_OUT_OF_MEMORY;
    }
    lg_status status =
        lg_plan_simulate(&timeline, plan, graph, &machine, lg_trainer_cost_table(trainer));
    if (status == LG_OK) {
        status = lg_timeline_stats(ranks, &timeline, plan, graph);
        lg_timeline_deinit(&timeline);
    }
    double bubble_frac = 0.0;
    double exposed_ns = 0.0;
    int64_t sent_bytes = 0;
    for (int r = 0; status == LG_OK && r < plan->num_ranks; r++) {
        bubble_frac += ranks[r].bubble_frac / plan->num_ranks;
        exposed_ns = ranks[r].exposed_comm_ns > exposed_ns ? ranks[r].exposed_comm_ns : exposed_ns;
        sent_bytes += ranks[r].sent_bytes;
    }
    free(ranks);
    int num_reductions = 0;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        num_reductions += info->kind == LG_OP_ALL_REDUCE && info->rank == 0 ? 1 : 0;
    }
    const lg_link *const link =
        machine.ranks_per_host < machine.num_ranks ? &machine.inter_host : &machine.intra_host;
    (void)printf(", \"predicted_bubble_frac\": %.4f, \"predicted_exposed_ms\": %.4f, "
                 "\"sent_bytes\": %lld, \"reductions\": %d, \"link_latency_us\": %.2f, "
                 "\"link_mbyte_per_s\": %.2f",
                 bubble_frac, exposed_ns * 1e-6, (long long)sent_bytes, num_reductions,
                 link->latency_ns * 1e-3, link->bytes_per_s * 1e-6);
    return status;
}

static void print_result(const rank_run *run, const char *plan, const plan_spec *spec,
                         const lg_trainer *trainer, const measured *m, const char *hash)
{
    const settings *const s = run->settings;
    const lg_trainer_info info = lg_trainer_about(trainer);
    const int num_losses = s->num_steps + s->num_warmup;
    const double median_ms = bench_median(m->step_ms, s->num_steps); /* sorts */
    print_head(run, plan);
    (void)printf(", \"device\": \"%s\"", info.device);
    (void)printf(", \"strategy\": \"%s\", \"step_ms\": %.4f, \"mean_ms\": %.4f, \"best_ms\": %.4f, "
                 "\"predicted_ms\": %.4f, \"planning_ms\": %.2f, \"planned_bytes\": %lld, "
                 "\"measured_bytes\": %lld",
                 info.strategy, median_ms, m->mean_ms, m->step_ms[0], info.predicted_step_ns / 1e6,
                 info.planning_ns / 1e6, (long long)info.planned_peak_bytes,
                 (long long)info.measured_peak_bytes);
    if (print_simulated(trainer) != LG_OK) {
        (void)printf(", \"simulation\": \"failed\"");
    }
    if (strstr(spec->strategy, "reverse-first-k") != NULL && spec->num_reversed < 0) {
        (void)printf(", \"chosen_k\": %d", find_k(trainer, spec));
    }
    (void)printf(", \"hash\": \"%s\", \"losses\": [", hash);
    for (int i = 0; i < num_losses && i < MAX_PRINTED_LOSSES; i++) {
        (void)printf("%s%.7f", i > 0 ? ", " : "", m->losses[i]);
    }
    (void)printf("]}\n");
    (void)fflush(stdout);
}

/* --- plans ------------------------------------------------------------------------------------------------------------ */

static lg_status train(rank_run *run, const char *plan, const plan_spec *spec, lg_trainer *trainer,
                       const void *const *tensors)
{
    const settings *const s = run->settings;
    char hash[LG_WEIGHTS_HASH_CHARS];
    measured m = {.step_ms = calloc((size_t)s->num_steps, sizeof *m.step_ms),
                  .losses = calloc((size_t)(s->num_steps + s->num_warmup), sizeof *m.losses)};
    lg_status status = m.step_ms == NULL || m.losses == NULL ? LG_OUT_OF_MEMORY : LG_OK;
    if (status == LG_OK) {
        status = run_steps(s, trainer, tensors, &m);
    }
    if (status == LG_OK) {
        status = lg_trainer_weights_hash(trainer, hash);
    }
    if (status == LG_OK && is_first_rank(run)) {
        print_result(run, plan, spec, trainer, &m, hash);
    }
    free(m.step_ms);
    free(m.losses);
    return status;
}

static lg_status run_plan(rank_run *run, const char *plan, const lg_model *model,
                          const void *const *tensors)
{
    const settings *const s = run->settings;
    const plan_spec spec = parse_plan(plan);
    lg_trainer_opts opts = s->trainer;
    lg_parallel parallel = {.num_replicas = s->num_replicas,
                            .num_pipeline_ranks = 1,
                            .num_stages = 1,
                            .chunk_bytes = spec.chunk_bytes,
                            .share_bytes = spec.share_bytes};
    lg_stages stages = {0};
    lg_trainer *trainer = NULL;
    lg_status status = LG_OK;
    if (s->num_pipeline_ranks > 1) {
        status = place(&stages, model, s->num_pipeline_ranks, &spec);
        if (status == LG_OK) {
            lg_stages_apply(&stages, &parallel);
        }
    }
    opts.comm = run->comm;
    opts.parallel = run->comm != NULL ? &parallel : NULL;
    opts.strategy = spec.strategy;
    opts.num_reversed = spec.num_reversed;
    opts.has_push = spec.has_push;
    opts.optim.has_statistics = spec.has_statistics;
    if (status == LG_OK) {
        status = lg_trainer_create(&trainer, model, &opts);
    }
    if (status == LG_OK) {
        status = train(run, plan, &spec, trainer, tensors);
    }
    if (status != LG_OK && is_first_rank(run)) {
        print_head(run, plan);
        (void)printf(", ");
        print_text("error", lg_last_error());
        (void)printf("\"status\": %d}\n", (int)status);
        (void)fflush(stdout);
    }
    lg_trainer_destroy(trainer);
    lg_stages_deinit(&stages);
    return status;
}

/* --- initial weights ------------------------------------------------------------------------------------------------------ */

static lg_status fill_tensor(void *user, const char *name, void *dst, size_t num_bytes)
{
    return lg_trainer_read(user, name, dst, (int64_t)(num_bytes / sizeof(float)));
}

static lg_status add_tensor(lg_tensor_writer *writer, lg_trainer *trainer, const char *name,
                            const lg_shape *shape)
{
    return lg_tensor_writer_add_filled(writer, name, LG_FILE_DTYPE_F32, shape, fill_tensor,
                                       trainer);
}

static lg_status save_weights(const settings *s, const lg_model *model)
{
    lg_trainer *trainer = NULL;
    lg_tensor_writer *writer = NULL;
    lg_trainer_opts opts = s->trainer;
    opts.costs = LG_TRAINER_COSTS_ESTIMATE;
    lg_status status = lg_trainer_create(&trainer, model, &opts);
    if (status == LG_OK) {
        status = lg_tensor_writer_create(&writer);
    }
    for (int i = 0; status == LG_OK && i < lg_model_num_params(model); i++) {
        const lg_param_info *const param = lg_model_param(model, i);
        status = add_tensor(writer, trainer, param->name, &param->shape);
    }
    for (int i = 0; status == LG_OK && i < lg_model_num_states(model); i++) {
        const lg_state_info *const state = lg_model_state(model, i);
        status = add_tensor(writer, trainer, state->name, &state->shape);
    }
    if (status == LG_OK) {
        status = lg_tensor_writer_save(writer, s->weights_path);
    }
    lg_tensor_writer_destroy(writer);
    lg_trainer_destroy(trainer);
    return status;
}

/* --- ranks -------------------------------------------------------------------------------------------------------------- */

static lg_status run_plans(rank_run *run, const lg_model *model)
{
    const settings *const s = run->settings;
    void *tensors[BENCH_MAX_INPUTS];
    lg_status first = LG_OK;
    lg_status status = bench_batch_make(tensors, model, s->trainer.batch_samples);
    if (status != LG_OK) {
        return status;
    }
    for (int i = 0; i < s->num_plans; i++) {
        status = run_plan(run, s->plans[i], model, (const void *const *)tensors);
        first = first == LG_OK ? status : first;
        if (status == LG_COMM || status == LG_TIMEOUT) {
            break; /* the communicator is done for */
        }
    }
    bench_batch_free(tensors);
    return first;
}

static void *run_rank(void *user)
{
    rank_run *const run = user;
    lg_model *model = NULL;
    if (run->comm != NULL) {
        lg_comm_set_timeout(run->comm, run->settings->timeout_s);
    }
    run->status = bench_model_make(&model, &run->settings->model);
    if (run->status == LG_OK && run->settings->weights_path != NULL) {
        run->status = save_weights(run->settings, model);
    } else if (run->status == LG_OK) {
        run->status = run_plans(run, model);
    }
    if (run->status != LG_OK) {
        (void)fprintf(stderr, "bench/step_ranks: %s\n", lg_last_error());
    }
    lg_model_destroy(model);
    return NULL;
}

static lg_status run_threads(const settings *s, int num_ranks)
{
    lg_comm **const comms = calloc((size_t)num_ranks, sizeof(lg_comm *));
    rank_run *const runs = calloc((size_t)num_ranks, sizeof *runs);
    if (comms == NULL || runs == NULL) {
        die(EXIT_MEMORY, "out of memory", "");
    }
    lg_status status = lg_comm_local_create(comms, num_ranks);
    if (status != LG_OK) {
        die(lg_status_exit_code(status), lg_last_error(), "");
    }
    for (int r = 0; r < num_ranks; r++) {
        runs[r] = (rank_run){.settings = s, .comm = comms[r]};
        if (pthread_create(&runs[r].thread, NULL, run_rank, &runs[r]) != 0) {
            die(EXIT_MEMORY, "no more threads", "");
        }
    }
    for (int r = 0; r < num_ranks; r++) {
        (void)pthread_join(runs[r].thread, NULL);
        status = status == LG_OK ? runs[r].status : status;
    }
    for (int r = 0; r < num_ranks; r++) {
        lg_comm_destroy(comms[r]);
    }
    free(runs);
    free(comms);
    return status;
}

static lg_status run_alone(const settings *s, lg_comm *comm)
{
    rank_run run = {.settings = s, .comm = comm};
    (void)run_rank(&run);
    return run.status;
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    const int num_ranks = s.num_replicas * s.num_pipeline_ranks;
    lg_status status = LG_OK;
    if (lg_comm_is_launched()) {
        lg_comm *comm = NULL;
        status = lg_comm_mpi_create(&comm);
        if (status != LG_OK) {
            die(lg_status_exit_code(status), lg_last_error(), "");
        }
        if (lg_comm_num_ranks(comm) != num_ranks) {
            die(EXIT_USAGE, "pipeline times replicas is not the number of processes", "");
        }
        status = run_alone(&s, comm);
        lg_comm_destroy(comm);
    } else {
        status = num_ranks == 1 ? run_alone(&s, NULL) : run_threads(&s, num_ranks);
    }
    return lg_status_exit_code(status);
}
