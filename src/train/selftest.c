/*
 * The self-test: each case trains a small model over the ranks for some steps, and its weights must be those of the reference: the
 * same replicas and micro-batches as threads of rank 0's process, without pipeline. Strategies that do not go with a model and its
 * ranks are found before anything is run, by making a plan on paper.
 */
#include "leapgrad/selftest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "leapgrad/data.h"
#include "leapgrad/models.h"
#include "leapgrad/trainer.h"
#include "train/cluster_place.h"
#include "train/local_ranks.h"
#include "train/run_ranks.h"

#define NUM_MICRO_BATCHES 4
#define SAMPLES_PER_MICRO_BATCH 2
#define NUM_WARM_UPS 2
#define NUM_STEPS 12
/* Images, and texts. */
#define IMAGE_SIDE 16
#define NUM_CLASSES 4
#define CONTEXT 32
#define VOCAB_SIZE 64

lg_selftest_opts lg_selftest_opts_default(void)
{
    const lg_selftest_opts opts = {.num_ranks = 2, .device = "auto", .timeout_s = 10.0};
    return opts;
}

/* --- models and batches ------------------------------------------------------------------------------------------------- */

enum { MODEL_CNN, MODEL_GPT, NUM_MODELS };
static const char *const model_names[NUM_MODELS] = {"cnn", "gpt"};

/* What is trained, on how many ranks. */
struct setup {
    int model;
    int64_t num_blocks; /* at least, of the model */
    int num_replicas;
    int num_pipeline_ranks;
    int64_t share_bytes;
    const char *strategy;
    const char *device;
    double timeout_s;
};

/* What it came to. */
struct outcome {
    char hash[LG_WEIGHTS_HASH_CHARS];
    double predicted_ns;
    double measured_ns;
};

static int64_t batch_samples(const struct setup *setup)
{
    const int64_t even = (int64_t)setup->num_replicas * NUM_MICRO_BATCHES * SAMPLES_PER_MICRO_BATCH;
    return setup->model == MODEL_CNN ? even + 1 : even; /* uneven micro-batches, too */
}

static lg_status set_number(lg_recipe *recipe, const char *key, int64_t value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    return lg_recipe_set(recipe, key, text);
}

static lg_status make_recipe(lg_recipe **out, const struct setup *setup)
{
    const int64_t num_blocks = setup->num_blocks;
    LG_TRY(lg_recipe_default(out));
    lg_recipe *const recipe = *out;
    LG_TRY(set_number(recipe, "ranks.pipeline", setup->num_pipeline_ranks));
    LG_TRY(set_number(recipe, "ranks.replicas", setup->num_replicas));
    LG_TRY(set_number(recipe, "train.micro_batches", NUM_MICRO_BATCHES));
    LG_TRY(set_number(recipe, "train.batch", batch_samples(setup)));
    LG_TRY(lg_recipe_set(recipe, "plan.strategy", setup->strategy));
    if (setup->model == MODEL_CNN) {
        LG_TRY(lg_recipe_set(recipe, "model.kind", "resnet"));
        LG_TRY(set_number(recipe, "model.depth", 6 * ((num_blocks + 2) / 3) + 2));
        LG_TRY(set_number(recipe, "model.width", 8));
        return lg_recipe_set(recipe, "optim.weight_decay", "1e-4");
    }
    LG_TRY(lg_recipe_set(recipe, "data.kind", "text"));
    LG_TRY(lg_recipe_set(recipe, "model.kind", "gpt"));
    LG_TRY(set_number(recipe, "model.layers", num_blocks));
    LG_TRY(set_number(recipe, "model.width", 32));
    LG_TRY(set_number(recipe, "model.heads", 2));
    LG_TRY(set_number(recipe, "model.context", CONTEXT));
    LG_TRY(set_number(recipe, "model.vocab", VOCAB_SIZE));
    LG_TRY(lg_recipe_set(recipe, "model.dropout", "0.1"));
    LG_TRY(lg_recipe_set(recipe, "optim.rule", "adamw"));
    LG_TRY(lg_recipe_set(recipe, "optim.lr", "0.01"));
    return lg_recipe_set(recipe, "optim.clip_norm", "1");
}

static lg_status make_model(lg_model **out, const lg_recipe *recipe)
{
    const lg_shape shape = LG_SHAPE(1, IMAGE_SIDE, IMAGE_SIDE);
    const bool is_text = recipe->data.kind == LG_DATA_TEXT;
    return lg_model_from_recipe(out, recipe, is_text ? NULL : &shape,
                                is_text ? VOCAB_SIZE : NUM_CLASSES);
}

/* A batch of numbers that follow from the step alone. Images or tokens, then labels or next tokens. */
static lg_status make_batch(const struct setup *setup, int64_t step, void *tensors[2])
{
    const int64_t num_samples = batch_samples(setup);
    const bool is_cnn = setup->model == MODEL_CNN;
    const int64_t num_inputs = num_samples * (is_cnn ? IMAGE_SIDE * IMAGE_SIDE : CONTEXT);
    const int64_t num_targets = is_cnn ? num_samples : num_inputs;
    const float num_values = is_cnn ? NUM_CLASSES : VOCAB_SIZE;
    for (int i = 0; i < 2; i++) {
        const int64_t num = i == 0 ? num_inputs : num_targets;
        const lgi_random random =
            lgi_random_stream(1, LGI_RANDOM_INIT, (uint64_t)step, (uint64_t)i, 0);
        LG_TRY(lgi_calloc(&tensors[i], (size_t)num, sizeof(float)));
        for (int64_t k = 0; k < num; k++) {
            const float number = lgi_random_uniform(&random, (uint64_t)k);
            if (is_cnn && i == 0) {
                ((float *)tensors[i])[k] = number;
            } else {
                ((int32_t *)tensors[i])[k] = (int32_t)(number * num_values);
            }
        }
    }
    return LG_OK;
}

/* --- training ----------------------------------------------------------------------------------------------------------- */

static lg_status train_step(lg_trainer *trainer, const struct setup *setup)
{
    void *tensors[LG_MAX_BATCH_TENSORS] = {NULL};
    lg_status status = make_batch(setup, lg_trainer_next_step(trainer), tensors);
    if (status == LG_OK) {
        status = lg_trainer_step(trainer, batch_samples(setup), (const void *const *)tensors, NULL);
    }
    lgi_free(tensors[0]);
    lgi_free(tensors[1]);
    return status;
}

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static lg_status train(lg_trainer *trainer, const struct setup *setup, struct outcome *out)
{
    double step_ns[NUM_STEPS];
    for (int i = 0; i < NUM_WARM_UPS; i++) {
        LG_TRY(train_step(trainer, setup));
    }
    for (int i = 0; i < NUM_STEPS; i++) {
        const uint64_t start_ns = lgi_clock_ns();
        LG_TRY(train_step(trainer, setup));
        step_ns[i] = (double)(lgi_clock_ns() - start_ns);
    }
    qsort(step_ns, NUM_STEPS, sizeof step_ns[0], compare_numbers);
    out->measured_ns = step_ns[NUM_STEPS / 2];
    out->predicted_ns = lg_trainer_about(trainer).predicted_step_ns;
    return lg_trainer_weights_hash(trainer, out->hash);
}

/* All that a case needs, on each rank. */
struct parts {
    lg_recipe *recipe;
    lg_model *model;
    lg_stages stages;
    lg_parallel parallel;
};

static void parts_deinit(struct parts *parts)
{
    lg_stages_deinit(&parts->stages);
    lg_model_destroy(parts->model);
    lg_recipe_destroy(parts->recipe);
}

static lg_status parts_init(struct parts *parts, const struct setup *setup)
{
    const lg_machine machine = lg_machine_default();
    memset(parts, 0, sizeof *parts);
    parts->parallel = (lg_parallel){
        .num_replicas = setup->num_replicas, .num_pipeline_ranks = 1, .num_stages = 1};
    lg_status status = make_recipe(&parts->recipe, setup);
    if (status == LG_OK) {
        status = make_model(&parts->model, parts->recipe);
    }
    if (status == LG_OK) {
        status = lgi_place_recipe(&parts->stages, parts->model, &machine, parts->recipe);
    }
    if (status == LG_OK && parts->stages.num_stages > 0) {
        lg_stages_apply(&parts->stages, &parts->parallel);
    }
    if (status != LG_OK) {
        parts_deinit(parts);
    }
    return status;
}

/* One rank of a case. */
static lg_status run_rank(lg_comm *comm, const struct setup *setup, struct outcome *out)
{
    struct parts parts;
    lg_trainer *trainer = NULL;
    LG_TRY(parts_init(&parts, setup));
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = setup->device;
    opts.batch_samples = batch_samples(setup);
    opts.num_micro_batches = NUM_MICRO_BATCHES;
    opts.seed = 1;
    opts.num_steps = NUM_WARM_UPS + NUM_STEPS;
    opts.optim = lg_recipe_optim_opts(parts.recipe);
    opts.strategy = setup->strategy;
    opts.costs = LG_TRAINER_COSTS_MEASURE;
    if (comm != NULL) {
        parts.parallel.share_bytes = setup->share_bytes;
        opts.comm = comm;
        opts.parallel = &parts.parallel;
    }
    lg_status status = lg_trainer_create(&trainer, parts.model, &opts);
    if (status == LG_OK) {
        status = train(trainer, setup, out);
    }
    lg_trainer_destroy(trainer);
    parts_deinit(&parts);
    return status;
}

/* --- the reference ------------------------------------------------------------------------------------------------------- */

struct reference {
    struct setup setup;
    struct outcome outcome;
};

static lg_status run_reference_rank(lg_comm *comm, void *user)
{
    struct reference *const reference = user;
    struct outcome outcome;
    LG_TRY(run_rank(comm, &reference->setup, &outcome));
    if (lg_comm_rank(comm) == 0) {
        reference->outcome = outcome;
    }
    return LG_OK;
}

static lg_status run_reference(struct reference *reference)
{
    reference->setup.num_pipeline_ranks = 1;
    if (reference->setup.num_replicas == 1) {
        reference->setup.strategy = "in-order";
        return run_rank(NULL, &reference->setup, &reference->outcome);
    }
    reference->setup.strategy = "barrier";
    return lgi_run_local_ranks(reference->setup.num_replicas, reference->setup.timeout_s,
                               run_reference_rank, reference);
}

/* --- cases --------------------------------------------------------------------------------------------------------------- */

/* Whether the strategy makes a plan for this graph; if not, lg_last_error() says why. Pure: the same on all ranks. */
static bool applies(const struct setup *setup)
{
    struct parts parts;
    lg_graph *graph = NULL;
    lg_costs *costs = NULL;
    lg_plan *plan = NULL;
    lg_graph_opts opts = lg_graph_opts_default();
    const lg_strategy_opts plan_opts = lg_strategy_opts_default();
    lg_machine machine = lg_machine_default();
    machine.num_ranks = setup->num_replicas * setup->num_pipeline_ranks;
    machine.ranks_per_host = machine.num_ranks;
    lg_status status = parts_init(&parts, setup);
    if (status != LG_OK) {
        return false;
    }
    opts.num_samples = batch_samples(setup);
    opts.num_micro_batches = NUM_MICRO_BATCHES;
    opts.parallel = &parts.parallel;
    status = lg_graph_create(&graph, parts.model, &opts);
    if (status == LG_OK) {
        status = lg_costs_create(&costs, graph);
    }
    if (status == LG_OK) {
        lg_costs_estimate(costs, graph, &machine);
        status = lg_plan_create(&plan, setup->strategy, graph, &machine, costs, &plan_opts);
    }
    lg_plan_destroy(plan);
    lg_costs_destroy(costs);
    lg_graph_destroy(graph);
    parts_deinit(&parts);
    return status == LG_OK;
}

struct test {
    const lg_selftest_opts *opts;
    lgi_ranks ranks;
    int num_cases;
    int num_wrong;
};

static lg_status run_case(struct test *test, const struct setup *setup, const char *expected)
{
    struct outcome outcome;
    char reason[512] = "";
    lgi_word word = LGI_WORD_GO_ON;
    lg_selftest_case result = {.model = model_names[setup->model],
                               .strategy = setup->strategy,
                               .num_replicas = setup->num_replicas,
                               .num_pipeline_ranks = setup->num_pipeline_ranks};
    memset(&outcome, 0, sizeof outcome);
    LG_TRY(lgi_ranks_next_round(&test->ranks, false, &word));
    if (word != LGI_WORD_GO_ON) {
        LG_FAIL(LG_INTERRUPTED, "stopped");
    }
    result.was_run = applies(setup);
    if (result.was_run) {
        LG_TRY(run_rank(test->ranks.comm, setup, &outcome));
        result.has_same_bits = strcmp(outcome.hash, expected) == 0;
        result.predicted_ns = outcome.predicted_ns;
        result.measured_ns = outcome.measured_ns;
        test->num_cases++;
        test->num_wrong += result.has_same_bits ? 0 : 1;
    } else {
        (void)snprintf(reason, sizeof reason, "%s", lg_last_error());
        result.reason = reason;
    }
    if (lgi_ranks_is_first(&test->ranks) && test->opts->on_case != NULL) {
        test->opts->on_case(test->opts->user, &result);
    }
    return LG_OK;
}

/* The strategies for D replicas of P pipeline ranks: each half with the usual other half. */
static lg_status run_strategies(struct test *test, struct setup *setup, const char *expected)
{
    const bool has_replicas = setup->num_replicas > 1;
    const bool has_pipeline = setup->num_pipeline_ranks > 1;
    char name[96];
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        const lg_strategy_role role = lg_strategy_role_of(i);
        const char *const own = lg_strategy_name(i);
        if ((role == LG_STRATEGY_PIPELINE && !has_pipeline) ||
            (role == LG_STRATEGY_DATA && !has_replicas) ||
            (role == LG_STRATEGY_WHOLE && strcmp(own, "auto") != 0)) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%s%s%s",
                       role == LG_STRATEGY_DATA && has_pipeline ? "1f1b+" : "", own,
                       role == LG_STRATEGY_PIPELINE && has_replicas ? "+priority" : "");
        setup->strategy = name;
        LG_TRY(run_case(test, setup, expected));
    }
    return LG_OK;
}

static lg_status run_placement(struct test *test, int model, int num_pipeline_ranks)
{
    struct reference reference;
    struct setup setup = {.model = model,
                          /* two stages on each rank */
                          .num_blocks = num_pipeline_ranks > 2 ? 2 * num_pipeline_ranks : 4,
                          .num_replicas = test->ranks.num_ranks / num_pipeline_ranks,
                          .num_pipeline_ranks = num_pipeline_ranks,
                          .device = test->opts->device,
                          .timeout_s = test->opts->timeout_s};
    memset(&reference, 0, sizeof reference);
    reference.setup = setup;
    const lg_status status = lgi_ranks_is_first(&test->ranks) ? run_reference(&reference) : LG_OK;
    LG_TRY(lgi_ranks_settle(&test->ranks, status));
    LG_TRY(lgi_ranks_tell(&test->ranks, reference.outcome.hash, sizeof reference.outcome.hash));
    setup.share_bytes = LG_SHARE_BY_LINKS; /* as runs have it, unlike the reference */
    return run_strategies(test, &setup, reference.outcome.hash);
}

static lg_status run_all(struct test *test)
{
    const int num_ranks = test->ranks.num_ranks;
    const int asked = test->opts->num_pipeline_ranks;
    lg_links_report links;
    LG_TRY(lg_measure_links(test->ranks.comm, &links));
    if (lgi_ranks_is_first(&test->ranks) && test->opts->on_links != NULL) {
        test->opts->on_links(test->opts->user, &links);
    }
    for (int model = 0; model < NUM_MODELS; model++) {
        for (int p = 1; p <= num_ranks; p++) {
            if (num_ranks % p == 0 && (asked == 0 || asked == p)) {
                LG_TRY(run_placement(test, model, p));
            }
        }
    }
    if (test->num_wrong > 0) {
        LG_FAIL(LG_INTERNAL, "%d of %d cases have other bits than one process alone",
                test->num_wrong, test->num_cases);
    }
    return LG_OK;
}

/* --- ranks --------------------------------------------------------------------------------------------------------------- */

static lg_status test_rank(lg_comm *comm, void *user)
{
    struct test test;
    memset(&test, 0, sizeof test);
    test.opts = user;
    LG_TRY(lgi_ranks_init(&test.ranks, comm, test.opts->should_stop));
    const lg_status status = run_all(&test);
    lgi_ranks_deinit(&test.ranks);
    return status;
}

lg_status lg_selftest(const lg_selftest_opts *opts)
{
    lg_selftest_opts used = *opts;
    const int num_ranks = opts->comm != NULL ? lg_comm_num_ranks(opts->comm) : opts->num_ranks;
    const int asked = opts->num_pipeline_ranks;
    if (num_ranks < 2) {
        LG_FAIL(LG_INVALID_ARG, "selftest: %d ranks, expected 2 or more", num_ranks);
    }
    if (asked < 0 || (asked > 0 && num_ranks % asked != 0)) {
        LG_FAIL(LG_INVALID_ARG, "selftest: %d pipeline ranks do not divide %d ranks", asked,
                num_ranks);
    }
    if (opts->comm != NULL) {
        lg_comm_set_timeout(opts->comm, opts->timeout_s);
        return test_rank(opts->comm, &used);
    }
    return lgi_run_local_ranks(num_ranks, opts->timeout_s, test_rank, &used);
}
