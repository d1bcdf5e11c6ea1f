/*
 * The settings of "Out-Of-Order BackProp" (Oh et al., EuroSys 2022) as far as its public artifact gives them, planned and
 * simulated: tables in Markdown, our speed-up beside the published range, with what comes from the order, from dropping
 * the barrier, and from placement told apart. Assumptions and how to read the tables: docs/papers.md.
 *
 * Usage: papers [SECTION ...]    sections: rates equal finetune pretrain data single; all of them without arguments
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "papers_run.h"

/* Wires, as a message sees them. */
static const lg_link nvlink = {.latency_ns = 10e3, .bytes_per_s = 22e9};
/* Line rate less headers and what one TCP stream leaves unused. */
#define ETHERNET_FRAC 0.9
#define GIGABIT_BYTES 125e6

static lg_link ethernet(double gigabits)
{
    return (lg_link){.latency_ns = 50e3, .bytes_per_s = gigabits * GIGABIT_BYTES * ETHERNET_FRAC};
}

/* The machine files say the same as this program; if one of them changes, it does not run. */
static void check_machine_files(void)
{
    static const struct {
        const char *path;
        double gigabits;
    } files[] = {{"machines/v100-4x12-10gbe.json", 10.0},
                 {"machines/p3.16xlarge-x4-25gbe.json", 25.0}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        lg_machine file;
        stop_if(lg_machine_load(&file, files[i].path));
        const lg_machine ours = gpu_machine(&gpu_v100, file.num_ranks, file.ranks_per_host);
        const lg_link outer = ethernet(files[i].gigabits);
        if (fabs(file.flops_per_s / ours.flops_per_s - 1.0) > 1e-6 ||
            fabs(file.bytes_per_s / ours.bytes_per_s - 1.0) > 1e-6 ||
            file.op_overhead_ns != ours.op_overhead_ns ||
            file.intra_host.latency_ns != nvlink.latency_ns ||
            file.intra_host.bytes_per_s != nvlink.bytes_per_s ||
            file.inter_host.latency_ns != outer.latency_ns ||
            file.inter_host.bytes_per_s != outer.bytes_per_s ||
            file.reduction != LG_REDUCTION_TWO_LEVEL) {
            (void)fprintf(stderr, "bench/papers: %s and bench/papers.c differ\n", files[i].path);
            exit(1);
        }
    }
}

/* The head sees the tokens to predict: 20 of 128 (BERT's pretraining scripts), or one (a class of the text). */
#define PRETRAIN_HEAD_FRAC (20.0 / 128.0)
#define FINETUNE_HEAD_FRAC (1.0 / 128.0)

/* A line of the summary, collected while the tables are made; 0: does not apply. */
struct finding {
    const char *family;
    char setting[64];
    double order;
    double placement;
    double no_barrier;
    double recording;
    double together; /* what the original had, compared with what it was compared with */
    double best;     /* of all plans in the table */
};
enum { MAX_FINDINGS = 64 };
static struct finding findings[MAX_FINDINGS];
static int num_findings;

static struct finding *add_finding(const char *family, const char *setting)
{
    if (num_findings == MAX_FINDINGS) {
        (void)fprintf(stderr, "bench/papers: more than %d settings\n", MAX_FINDINGS);
        exit(1);
    }
    struct finding *const f = &findings[num_findings++];
    memset(f, 0, sizeof *f);
    f->family = family;
    (void)snprintf(f->setting, sizeof f->setting, "%s", setting);
    return f;
}

static lg_model *preset(const char *name)
{
    lg_model *model = NULL;
    stop_if(lg_model_preset(&model, name));
    return model;
}

/* --- pipelines ------------------------------------------------------------------------------------------------------ */

/* A row of a pipeline table. */
struct row {
    const char *label;
    const char *strategy;
    placement place;
    int place_size;
    bool has_push;
};

static const struct row gpipe_row = {"gpipe", "gpipe", PLACE_CONTIGUOUS, 0, false};

/*
 * Rows that any model and number of ranks allow; `loop`: stages a rank of the looping ones, from the model's size. Order,
 * placement and both are told apart by the rows that have one of them.
 */
static const struct row common_rows[] = {
    {"gpipe, balanced", "gpipe", PLACE_BALANCED, 0, false},
    {"gpipe, embedding on the last GPU", "gpipe", PLACE_TIED, 0, false},
    {"1f1b", "1f1b", PLACE_CONTIGUOUS, 0, false},
    {"fast-forward", "fast-forward", PLACE_CONTIGUOUS, 0, false},
    {"fast-forward, push", "fast-forward", PLACE_CONTIGUOUS, 0, true},
    {"zb-h1", "zb-h1", PLACE_CONTIGUOUS, 0, false},
    {"zb-h2", "zb-h2", PLACE_CONTIGUOUS, 0, false},
    {"zb-v", "zb-v", PLACE_V, 0, false},
    {"auto", "auto", PLACE_CONTIGUOUS, 0, false},
    {"auto, V", "auto", PLACE_V, 0, false},
};
static const struct row modulo_rows[] = {
    {"breadth-first, g=1", "breadth-first", PLACE_MODULO, 1, false},
    {"modulo, g=3", "modulo", PLACE_MODULO, 3, false},
    {"modulo, g=2", "modulo", PLACE_MODULO, 2, false},
    {"modulo, g=1", "modulo", PLACE_MODULO, 1, false},
    {"auto, g=2", "auto", PLACE_MODULO, 2, false},
    {"auto, g=1", "auto", PLACE_MODULO, 1, false},
};

static int num_blocks(const lg_model *model)
{
    int *const block = calloc((size_t)lg_model_num_layers(model), sizeof *block);
    if (block == NULL) {
        (void)fprintf(stderr, "bench/papers: out of memory\n");
        exit(3);
    }
    const int num = lg_model_blocks(model, block);
    free(block);
    return num;
}

/* The output layer has the token embedding's weight. */
static bool has_tied_ends(const lg_model *model)
{
    const int words = lg_model_find_layer(model, "bert.embeddings.word_embeddings");
    const int decoder = lg_model_find_layer(model, "cls.predictions.decoder");
    return words >= 0 && decoder >= 0 &&
           lg_model_layer(model, words)->params[0] == lg_model_layer(model, decoder)->params[0];
}

static outcome solve_row(const problem *base, int num_ranks, const struct row *row)
{
    problem p = *base;
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.has_push = row->has_push;
    p.place = row->place;
    p.place_size = row->place_size;
    if (!has_strategy(row->strategy)) {
        return (outcome){0};
    }
    problem_make(&p, num_ranks);
    const outcome result = problem_solve(&p, row->strategy, &opts);
    problem_release(&p);
    return result;
}

static void print_pipeline_head(const problem *p)
{
    if (p->unit_ns > 0.0) {
        printf("| plan | step, units | idle | over gpipe |\n|---|---:|---:|---:|\n");
    } else {
        printf("| plan | step, ms | samples/s | idle | peak of a rank, GB | over gpipe |\n");
        printf("|---|---:|---:|---:|---:|---:|\n");
    }
}

static void print_pipeline_row(const struct row *row, const problem *p, const outcome *result,
                               const outcome *gpipe)
{
    const double gain = gpipe->step_ns / result->step_ns;
    if (!result->is_done) {
        return;
    }
    if (p->unit_ns > 0.0) {
        printf("| %s | %.0f | %.1f %% | %.2fx |\n", row->label, result->step_ns / p->unit_ns,
               100.0 * result->idle_frac, gain);
    } else {
        printf("| %s | %.1f | %.1f | %.1f %% | %.2f | %.2fx |\n", row->label, result->step_ns / 1e6,
               (double)p->num_samples / (result->step_ns / 1e9), 100.0 * result->idle_frac,
               (double)result->peak_bytes / 1e9, gain);
    }
}

/* Which of a table's rows the summary needs. */
struct pipeline_gains {
    double fast_forward;
    double push;
    double balance;
    double tied;      /* embedding on the last GPU */
    double placement; /* breadth-first over gpipe: the placement of modulo with gradients unsplit */
    double modulo;    /* the best g */
    double best;      /* of all */
};

static void keep_gain(struct pipeline_gains *gains, const struct row *row, double gain)
{
    if (row->place == PLACE_TIED) {
        gains->tied = gain;
    } else if (row->place == PLACE_BALANCED) {
        gains->balance = fmax(gains->balance, gain);
    } else if (strcmp(row->label, "fast-forward") == 0) {
        gains->fast_forward = gain;
    } else if (strcmp(row->label, "fast-forward, push") == 0) {
        gains->push = gain;
    } else if (strcmp(row->strategy, "breadth-first") == 0) {
        gains->placement = gain;
    } else if (strcmp(row->strategy, "modulo") == 0) {
        gains->modulo = fmax(gains->modulo, gain);
    }
    gains->best = fmax(gains->best, gain);
}

static struct pipeline_gains pipeline_table(const problem *base, int num_ranks)
{
    struct pipeline_gains gains = {0};
    const outcome gpipe = solve_row(base, num_ranks, &gpipe_row);
    const int blocks = num_blocks(base->model);
    print_pipeline_head(base);
    print_pipeline_row(&gpipe_row, base, &gpipe, &gpipe);
    for (size_t i = 0; i < sizeof common_rows / sizeof common_rows[0]; i++) {
        const struct row *const row = &common_rows[i];
        if (row->place == PLACE_BALANCED && base->unit_ns > 0.0) {
            continue; /* equal layers */
        }
        if (row->place == PLACE_TIED && !has_tied_ends(base->model)) {
            continue;
        }
        if (row->place == PLACE_V && blocks < 2 * num_ranks) {
            continue;
        }
        const outcome result = solve_row(base, num_ranks, row);
        print_pipeline_row(row, base, &result, &gpipe);
        if (result.is_done) {
            keep_gain(&gains, row, gpipe.step_ns / result.step_ns);
        }
    }
    for (size_t i = 0; i < sizeof modulo_rows / sizeof modulo_rows[0]; i++) {
        const struct row *const row = &modulo_rows[i];
        if (blocks <= num_ranks * row->place_size) {
            continue; /* one stage a rank: not another placement */
        }
        const outcome result = solve_row(base, num_ranks, row);
        print_pipeline_row(row, base, &result, &gpipe);
        if (result.is_done) {
            keep_gain(&gains, row, gpipe.step_ns / result.step_ns);
        }
    }
    if (!(base->unit_ns > 0.0)) {
        char label[120];
        const outcome found = problem_search(base, num_ranks, label, sizeof label);
        const struct row row = {label, "search", PLACE_CONTIGUOUS, 0, false};
        print_pipeline_row(&row, base, &found, &gpipe);
        keep_gain(&gains, &row, gpipe.step_ns / found.step_ns);
    }
    printf("\n");
    (void)fflush(stdout);
    return gains;
}

/* The scripts for fine-tuning change the placement of layers, those for pretraining that of the embedding. */
static void add_pipeline_finding(const char *setting, const struct pipeline_gains *gains)
{
    struct finding *const f = add_finding("pipeline", setting);
    f->order = fmax(gains->fast_forward, gains->push);
    f->placement = gains->tied > 0.0 ? gains->tied : gains->placement;
    f->together = gains->tied > 0.0 ? f->order * gains->tied : gains->modulo;
    f->best = gains->best;
}

/* Equal times, links for nothing: what bubbles alone are worth. */
static void section_equal(void)
{
    static const struct {
        int num_ranks;
        int num_layers;
        int num_micro_batches;
    } cases[] = {{4, 24, 4},   {4, 24, 8},   {2, 8, 2},   {8, 12, 30},
                 {16, 24, 32}, {24, 36, 38}, {32, 48, 40}};
    printf("### Equal times, free links\n\n");
    printf("A forward, an input gradient and a weight gradient of a layer take a unit each.\n\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *const model = make_chain(cases[i].num_layers);
        problem p = {.model = model,
                     .gpu = &gpu_v100,
                     .machine = gpu_machine(&gpu_v100, cases[i].num_ranks, cases[i].num_ranks),
                     .num_samples = cases[i].num_micro_batches,
                     .num_micro_batches = cases[i].num_micro_batches,
                     .num_replicas = 1,
                     .unit_ns = 1e6};
        p.machine.intra_host = (lg_link){.latency_ns = 0.0, .bytes_per_s = 1e18};
        printf("#### %d GPUs, %d layers, %d micro-batches\n\n", cases[i].num_ranks,
               cases[i].num_layers, cases[i].num_micro_batches);
        (void)pipeline_table(&p, cases[i].num_ranks);
        lg_model_destroy(model);
    }
}

/* BERT-24 with a class as its output: a table of 64 words stands for the head of the task. */
static lg_model *finetune_model(void)
{
    lg_model *model = NULL;
    lg_bert_opts opts = lg_bert_opts_default();
    opts.num_layers = 24;
    opts.width = 1024;
    opts.num_heads = 16;
    opts.context = 128;
    opts.num_positions = 512;
    opts.vocab_size = 64;
    opts.is_tied = false;
    stop_if(lg_model_bert(&model, &opts));
    return model;
}

static void section_finetune(void)
{
    static const struct {
        const char *name;
        int ranks_per_host;
        int num_micro_batches;
    } cases[] = {{"NVLink", 4, 4}, {"NVLink", 4, 8}, {"Ethernet", 1, 4}, {"Ethernet", 1, 8}};
    lg_model *const model = finetune_model();
    printf("### Fine-tuning BERT-24 on 4 GPUs, 96 samples of 128 tokens\n\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem p = {.model = model,
                     .gpu = &gpu_v100,
                     .machine = gpu_machine(&gpu_v100, 4, cases[i].ranks_per_host),
                     .num_samples = 96,
                     .num_micro_batches = cases[i].num_micro_batches,
                     .num_replicas = 1,
                     .num_slots = 2,
                     .head_frac = FINETUNE_HEAD_FRAC};
        p.machine.intra_host = nvlink;
        p.machine.inter_host = ethernet(10.0);
        char setting[64];
        (void)snprintf(setting, sizeof setting, "bert-24, 4 GPUs, %s, M=%d", cases[i].name,
                       cases[i].num_micro_batches);
        printf("#### %s\n\n", setting);
        const struct pipeline_gains gains = pipeline_table(&p, 4);
        add_pipeline_finding(setting, &gains);
    }
    lg_model_destroy(model);
}

static void section_pretrain(void)
{
    static const struct {
        const char *model;
        int num_ranks;
        int batch;
        int num_micro_batches;
    } cases[] = {
        {"bert-12", 8, 480, 30},
        {"bert-24", 16, 320, 32},
        {"bert-36", 24, 380, 38},
        {"bert-48", 32, 320, 40},
    };
    printf("### Pretraining BERT, 128 tokens, 8 GPUs a host, 25 Gb/s between hosts\n\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *const model = preset(cases[i].model);
        problem p = {.model = model,
                     .gpu = &gpu_v100,
                     .machine = gpu_machine(&gpu_v100, cases[i].num_ranks, 8),
                     .num_samples = cases[i].batch,
                     .num_micro_batches = cases[i].num_micro_batches,
                     .num_replicas = 1,
                     .num_slots = 2,
                     .head_frac = PRETRAIN_HEAD_FRAC};
        p.machine.intra_host = nvlink;
        p.machine.inter_host = ethernet(25.0);
        char setting[64];
        (void)snprintf(setting, sizeof setting, "%s, %d GPUs, M=%d", cases[i].model,
                       cases[i].num_ranks, cases[i].num_micro_batches);
        printf("#### %s, batch %d\n\n", setting, cases[i].batch);
        const struct pipeline_gains gains = pipeline_table(&p, cases[i].num_ranks);
        add_pipeline_finding(setting, &gains);
        lg_model_destroy(model);
    }
}

/* --- data parallel ----------------------------------------------------------------------------------------------------- */

/* Fixed parts of at most this many bytes, as the artifact's parameter server makes them. */
#define CHUNK_BYTES 4096000

static outcome solve_data_parallel(const problem *p, const char *strategy, int num_reversed)
{
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_reversed = num_reversed;
    return problem_solve(p, strategy, &opts);
}

static void data_parallel_row(const char *model_name, const lg_model *model, int batch,
                              int num_ranks, double gigabits, const int *ks)
{
    problem p = {.model = model,
                 .gpu = &gpu_v100,
                 .machine = gpu_machine(&gpu_v100, num_ranks, 4),
                 .num_samples = (int64_t)batch * num_ranks,
                 .num_micro_batches = 1,
                 .num_replicas = num_ranks,
                 .num_slots = 1,
                 .chunk_bytes = CHUNK_BYTES,
                 .head_frac = 1.0};
    p.machine.intra_host = nvlink;
    p.machine.inter_host = ethernet(gigabits);
    p.machine.reduction =
        LG_REDUCTION_TWO_LEVEL; /* within a host first, then a parameter server on each host */
    problem_make(&p, 1);
    const outcome barrier = solve_data_parallel(&p, "barrier", -1);
    const outcome wfbp = solve_data_parallel(&p, "wfbp", -1);
    const outcome priority = solve_data_parallel(&p, "priority", -1);
    double best_ns = INFINITY;
    printf("| %s | %d | %g | %.0f | %.0f | %.0f | %.0f |", model_name, num_ranks, gigabits,
           wfbp.busy_ns / 1e6, barrier.step_ns / 1e6, wfbp.step_ns / 1e6, priority.step_ns / 1e6);
    for (int i = 0; ks[i] != 0; i++) {
        const outcome reversed = solve_data_parallel(&p, "reverse-first-k", ks[i]);
        if (reversed.is_done) {
            printf("%s%.0f", i > 0 ? " / " : " ", reversed.step_ns / 1e6);
            best_ns = fmin(best_ns, reversed.step_ns);
        }
    }
    printf(" | %.2fx | %.2fx | %.2fx |\n", wfbp.step_ns / priority.step_ns,
           priority.step_ns / best_ns, wfbp.step_ns / best_ns);
    (void)fflush(stdout);
    char setting[64];
    (void)snprintf(setting, sizeof setting, "%s, %d GPUs, %g Gb/s", model_name, num_ranks,
                   gigabits);
    struct finding *const f = add_finding("data parallel", setting);
    f->order = priority.step_ns / best_ns;
    f->no_barrier = wfbp.step_ns / priority.step_ns;
    f->together = wfbp.step_ns / best_ns;
    f->best = wfbp.step_ns / fmin(best_ns, priority.step_ns);
    problem_release(&p);
}

static void section_data(void)
{
    static const struct {
        const char *model;
        int batch;
        int ks[3];
    } cases[] = {{"resnet50", 128, {30, 45, 0}}, {"resnet101", 96, {70, 0, 0}}};
    static const int sizes[] = {4, 16, 32, 48};
    static const double rates[] = {7.0, 5.0, 3.0}; /* of a wire that gives less than it says */
    printf("### Data parallel, 4 GPUs a host\n\n");
    printf("Gb/s: between hosts. Times in ms. k = 30 / 45 for ResNet-50, 70 for ResNet-101.\n\n");
    printf("| model | GPUs | Gb/s | compute | barrier | wfbp | priority | reverse-first-k | no "
           "barrier | "
           "order | both |\n");
    printf("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *const model = preset(cases[i].model);
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++) {
            data_parallel_row(cases[i].model, model, cases[i].batch, sizes[j], 10.0, cases[i].ks);
        }
        for (size_t j = 0; j < sizeof rates / sizeof rates[0]; j++) {
            data_parallel_row(cases[i].model, model, cases[i].batch, 48, rates[j], cases[i].ks);
        }
        lg_model_destroy(model);
    }
    printf("\n");
}

/* --- one GPU ------------------------------------------------------------------------------------------------------------ */

/* Kernels replayed from a recorded graph follow each other faster than ones that a framework issues. */
#define GRAPH_OVERHEAD_NS 1500.0

static outcome solve_single(problem *p, const gpu_model *gpu, int num_lanes, bool allow_lag)
{
    lg_strategy_opts opts = lg_strategy_opts_default();
    opts.num_lanes = num_lanes;
    opts.threads_per_lane = 1;
    opts.allow_lag = allow_lag;
    p->gpu = gpu;
    p->machine = gpu_machine(gpu, 1, 1);
    p->machine.num_cores = num_lanes;
    problem_make(p, 1);
    p->machine.corun_slowdown = num_lanes > 1 ? gpu_corun_slowdown(p->costs, p->graph, gpu) : 1.0;
    const outcome result = problem_solve(p, num_lanes > 1 ? "out-of-order" : "in-order", &opts);
    problem_release(p);
    return result;
}

static void section_single(void)
{
    static const struct {
        const char *model;
        int batch;
    } cases[] = {
        {"densenet121-k12", 32},       {"densenet121-k24", 32},   {"densenet121-k24", 64},
        {"densenet121", 32},           {"densenet121", 64},       {"mobilenetv3-large-0.5", 32},
        {"mobilenetv3-large-0.5", 64}, {"mobilenetv3-large", 32}, {"mobilenetv3-large", 64}};
    gpu_model recorded = gpu_v100;
    recorded.op_overhead_ns = GRAPH_OVERHEAD_NS;
    printf("### One GPU\n\n");
    printf(
        "Times in ms. The gain of recording is that of starting kernels faster; of the second "
        "stream, that "
        "of weight gradients beside the rest of the backward pass; of regions, that of moving them "
        "elsewhere, into the next forward pass too.\n\n");
    printf("| model | batch | issued | recorded | two streams | and regions | slow-down together | "
           "recording | second stream | regions | all |\n");
    printf("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lg_model *const model = preset(cases[i].model);
        problem p = {.model = model,
                     .num_samples = cases[i].batch,
                     .num_micro_batches = 1,
                     .num_replicas = 1,
                     .head_frac = 1.0};
        const outcome issued = solve_single(&p, &gpu_v100, 1, false);
        const outcome one = solve_single(&p, &recorded, 1, false);
        const outcome two = solve_single(&p, &recorded, 2, false);
        const outcome regions = solve_single(&p, &recorded, 2, true);
        printf("| %s | %d | %.1f | %.1f | %.1f | %.1f | %.2f | %.2fx | %.2fx | %.2fx | %.2fx |\n",
               cases[i].model, cases[i].batch, issued.step_ns / 1e6, one.step_ns / 1e6,
               two.step_ns / 1e6, regions.step_ns / 1e6, p.machine.corun_slowdown,
               issued.step_ns / one.step_ns, one.step_ns / two.step_ns,
               two.step_ns / regions.step_ns, issued.step_ns / regions.step_ns);
        (void)fflush(stdout);
        char setting[64];
        (void)snprintf(setting, sizeof setting, "%s, batch %d", cases[i].model, cases[i].batch);
        struct finding *const f = add_finding("one GPU", setting);
        f->order = one.step_ns / regions.step_ns;
        f->recording = issued.step_ns / one.step_ns;
        f->together = issued.step_ns / regions.step_ns;
        f->best = issued.step_ns / fmin(two.step_ns, regions.step_ns);
        lg_model_destroy(model);
    }
    printf("\n");
}

/* --- rates ---------------------------------------------------------------------------------------------------------------- */

static void rate_row(const char *model_name, int batch, double head_frac, const gpu_model *gpu,
                     const char *published)
{
    lg_model *const model = preset(model_name);
    problem p = {.model = model,
                 .gpu = gpu,
                 .machine = gpu_machine(gpu, 1, 1),
                 .num_samples = batch,
                 .num_micro_batches = 1,
                 .num_replicas = 1,
                 .num_slots = 1,
                 .head_frac = head_frac};
    const lg_strategy_opts opts = lg_strategy_opts_default();
    problem_make(&p, 1);
    const outcome result = problem_solve(&p, "in-order", &opts);
    printf("| %s | %s | %d | %.1f | %.0f | %s |\n", gpu->name, model_name, batch,
           result.step_ns / 1e6, batch / (result.step_ns / 1e9), published);
    problem_release(&p);
    lg_model_destroy(model);
}

static void section_rates(void)
{
    printf("### One GPU, no tricks: are the costs about right?\n\n");
    printf("| GPU | model | batch | step, ms | samples/s | published samples/s |\n");
    printf("|---|---|---:|---:|---:|---:|\n");
    rate_row("resnet50", 128, 1.0, &gpu_v100, "412 (with XLA)");
    rate_row("bert-24", 32, PRETRAIN_HEAD_FRAC, &gpu_v100, "47");
    rate_row("resnet50", 128, 1.0, &gpu_h200, "");
    rate_row("bert-24", 32, PRETRAIN_HEAD_FRAC, &gpu_h200, "");
    printf("\n");
}

/* --- summary --------------------------------------------------------------------------------------------------------------- */

static void print_gain(double gain)
{
    if (gain > 0.0) {
        printf(" %.2fx |", gain);
    } else {
        printf(" |");
    }
}

static void print_summary(void)
{
    static const struct {
        const char *family;
        const char *published;
    } families[] = {
        {"pipeline", "1.41-1.99x"}, {"data parallel", "1.10-1.27x"}, {"one GPU", "1.03-1.58x"}};
    if (num_findings == 0) {
        return;
    }
    printf("### Summary\n\n");
    printf(
        "| setting | order | placement | no barrier | recording | **together** | published | best "
        "here |\n");
    printf("|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        for (int j = 0; j < num_findings; j++) {
            const struct finding *const f = &findings[j];
            if (strcmp(f->family, families[i].family) == 0) {
                printf("| %s |", f->setting);
                print_gain(f->order);
                print_gain(f->placement);
                print_gain(f->no_barrier);
                print_gain(f->recording);
                printf(" **%.2fx** | %s |", f->together, families[i].published);
                print_gain(f->best);
                printf("\n");
            }
        }
    }
    printf("\n");
}

static const struct {
    const char *name;
    void (*print)(void);
} sections[] = {
    {"rates", section_rates},       {"equal", section_equal}, {"finetune", section_finetune},
    {"pretrain", section_pretrain}, {"data", section_data},   {"single", section_single},
};
enum { NUM_SECTIONS = sizeof sections / sizeof sections[0] };

int main(int argc, char **argv)
{
    check_machine_files();
    for (int i = 1; i < argc; i++) {
        bool is_known = false;
        for (int s = 0; s < NUM_SECTIONS; s++) {
            is_known = is_known || strcmp(argv[i], sections[s].name) == 0;
        }
        if (!is_known) {
            (void)fprintf(stderr, "bench/papers: no section '%s'\n", argv[i]);
            return 2;
        }
    }
    for (int s = 0; s < NUM_SECTIONS; s++) {
        bool is_wanted = argc == 1;
        for (int i = 1; i < argc; i++) {
            is_wanted = is_wanted || strcmp(argv[i], sections[s].name) == 0;
        }
        if (is_wanted) {
            sections[s].print();
        }
    }
    print_summary();
    return 0;
}
