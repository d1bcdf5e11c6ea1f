/*
 * Plans for several ranks: from recipe and machine file to a simulated plan. Each step takes what the ones before have made;
 * whatever fails, lg_cluster_destroy() releases what is there.
 */
#include "leapgrad/cluster.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "leapgrad/models.h"
#include "train/cluster_costs.h"
#include "train/cluster_place.h"
#include "train/run_data.h"

/* Stages of a rank where a strategy wants several and the recipe does not say how many. */
#define USUAL_LOOPS 2
/* Of the model that stands in for textbook times. */
#define BLOCKS_PER_RANK 4
#define MAX_STAND_IN_BLOCKS 100000
/* Links of textbook pictures: messages take no time that can be seen. */
/* As many as a machine file may have. */
#define MAX_RANKS 65536
#define FREE_BYTES_PER_S 1e18

lg_cluster_opts lg_cluster_opts_default(void)
{
    return (lg_cluster_opts){0};
}

void lg_cluster_destroy(lg_cluster *cluster)
{
    if (cluster == NULL) {
        return;
    }
    lg_timeline_deinit(&cluster->timeline);
    lgi_free(cluster->ranks);
    lg_plan_destroy(cluster->plan);
    lg_costs_destroy(cluster->costs);
    lg_graph_destroy(cluster->graph);
    lg_stages_deinit(&cluster->stages);
    lg_model_destroy(cluster->model);
    lgi_free(cluster->strategy);
    lgi_free(cluster);
}

/* --- machine ------------------------------------------------------------------------------------------------------------ */

static lg_status find_machine(lg_cluster *cluster, const lg_recipe *recipe, int64_t num_ranks,
                              const lg_cluster_opts *opts)
{
    const char *const path = recipe->plan.machine;
    lg_machine *const machine = &cluster->machine;
    *machine = lg_machine_default();
    if (num_ranks > MAX_RANKS) {
        LG_FAIL(LG_INVALID_ARG,
                "ranks.pipeline %lld times ranks.replicas %lld is %lld ranks, more than %d",
                (long long)recipe->ranks.pipeline, (long long)recipe->ranks.replicas,
                (long long)num_ranks, MAX_RANKS);
    }
    if (path[0] != '\0') {
        LG_TRY(lg_machine_load(machine, path));
    } else if (opts->has_equal_times || num_ranks == 1) {
        machine->num_ranks = (int)num_ranks;
        machine->ranks_per_host = (int)num_ranks;
    } else {
        LG_FAIL(LG_INVALID_ARG,
                "plan.machine: %lld ranks need a machine file, such as machines/v100-nvlink-4.json",
                (long long)num_ranks);
    }
    cluster->machine_ranks = machine->num_ranks;
    if (num_ranks > machine->num_ranks) {
        LG_FAIL(LG_INVALID_ARG,
                "ranks.pipeline %lld times ranks.replicas %lld is %lld ranks; %s has %d",
                (long long)(num_ranks / recipe->ranks.replicas), (long long)recipe->ranks.replicas,
                (long long)num_ranks, path, machine->num_ranks);
    }
    machine->num_ranks = (int)num_ranks;
    if (machine->ranks_per_host > machine->num_ranks) {
        machine->ranks_per_host = machine->num_ranks;
    }
    if (opts->has_equal_times) {
        const lg_link link = {.latency_ns = 0.0, .bytes_per_s = FREE_BYTES_PER_S};
        machine->intra_host = link;
        machine->inter_host = link;
        machine->corun_slowdown = 1.0;
    }
    cluster->memory_bytes =
        recipe->plan.memory_bytes > 0 ? recipe->plan.memory_bytes : machine->memory_bytes;
    return LG_OK;
}

/* --- model -------------------------------------------------------------------------------------------------------------- */

/*
 * As many blocks for all strategies, so that what they take and keep can be compared: BLOCKS_PER_RANK for a rank, or the next
 * multiple of the stages that are asked for. One rank alone has one.
 */
static int64_t num_stand_in_blocks(int64_t num_pipeline, int64_t num_stages)
{
    const int64_t usual = num_pipeline > 1 ? BLOCKS_PER_RANK * num_pipeline : 1;
    return (usual + num_stages - 1) / num_stages * num_stages;
}

/* Small blocks, of which each stage has as many as any other. */
static lg_status make_stand_in(lg_cluster *cluster, int64_t num_blocks)
{
    lg_gpt_opts opts = lg_gpt_opts_default();
    opts.num_layers = (int)(num_blocks < MAX_STAND_IN_BLOCKS ? num_blocks : MAX_STAND_IN_BLOCKS);
    opts.width = 8;
    opts.num_heads = 1;
    opts.context = 4;
    opts.vocab_size = 16;
    opts.is_tied = false;
    return lg_model_gpt(&cluster->model, &opts);
}

static lg_status make_recipe_model(lg_cluster *cluster, const lg_recipe *recipe)
{
    lgi_run_data data = {0};
    if (recipe->data.kind != LG_DATA_IDX) {
        return lg_model_from_recipe(&cluster->model, recipe, NULL,
                                    lgi_run_data_num_classes(&data, recipe));
    }
    LG_TRY(lgi_run_data_open(&data, recipe));
    const lg_shape shape = lgi_run_data_image_shape(&data);
    const lg_status status = lg_model_from_recipe(&cluster->model, recipe, &shape,
                                                  lgi_run_data_num_classes(&data, recipe));
    lgi_run_data_close(&data);
    return status;
}

/* --- placement ---------------------------------------------------------------------------------------------------------- */

/* Whether the pipeline half of a strategy's name is `name`. */
static bool is_pipeline(const char *strategy, const char *name)
{
    const size_t length = strcspn(strategy, "+");
    return strlen(name) == length && strncmp(strategy, name, length) == 0;
}

static bool wants_v(const char *strategy)
{
    return is_pipeline(strategy, "zb-v") || is_pipeline(strategy, "dualpipe-v");
}

static bool wants_loop(const char *strategy)
{
    return is_pipeline(strategy, "interleaved") || is_pipeline(strategy, "breadth-first");
}

static lg_rank_placement choose_placement(const lg_recipe *recipe, const char *strategy)
{
    if (recipe->ranks.placement != LG_PLACE_AUTO) {
        return recipe->ranks.placement;
    }
    return wants_v(strategy)                 ? LG_PLACE_V
           : is_pipeline(strategy, "modulo") ? LG_PLACE_MODULO
                                             : LG_PLACE_CONTIGUOUS;
}

static int64_t stages_per_rank(const lg_cluster *cluster, const lg_recipe *recipe)
{
    const int64_t usual = cluster->placement == LG_PLACE_V || wants_v(cluster->strategy) ? 2
                          : wants_loop(cluster->strategy) ? USUAL_LOOPS
                                                          : 1;
    return recipe->ranks.stages > 0 ? recipe->ranks.stages : usual;
}

static lg_status check_stages(const lg_cluster *cluster, const lg_recipe *recipe, int64_t num)
{
    if (num > cluster->num_blocks) {
        LG_FAIL(
            LG_INVALID_ARG,
            "ranks.pipeline: %lld ranks of %lld stage%s each need %lld blocks; the model has %d",
            (long long)recipe->ranks.pipeline, (long long)(num / recipe->ranks.pipeline),
            num == recipe->ranks.pipeline ? "" : "s", (long long)num, cluster->num_blocks);
    }
    return LG_OK;
}

static lg_status place_balanced(lg_cluster *cluster, const lg_graph_opts *graph_opts, int num_ranks,
                                int num_stages, lg_stage_order order)
{
    double *ns = NULL;
    LG_TRY(lgi_calloc(&ns, (size_t)lg_model_num_layers(cluster->model), sizeof *ns));
    lg_status status = lgi_cluster_layer_ns(ns, cluster->model, &cluster->machine, graph_opts);
    if (status == LG_OK) {
        const lg_layer_costs costs = {.ns = ns};
        status = lg_stages_balanced(&cluster->stages, cluster->model, num_ranks, num_stages, order,
                                    &costs);
    }
    lgi_free(ns);
    return status;
}

/* The schedule says which rank has which stage. */
static lg_status place_schedule(lg_cluster *cluster, const lg_rank_schedule *schedule)
{
    const int num_stages = schedule->num_stages;
    if (num_stages > cluster->num_blocks) {
        LG_FAIL(LG_INVALID_ARG, "the schedule has %d stages, the model only %d blocks", num_stages,
                cluster->num_blocks);
    }
    LG_TRY(lg_stages_contiguous(&cluster->stages, cluster->model, schedule->num_ranks, num_stages,
                                LG_STAGE_ORDER_LOOP));
    memcpy(cluster->stages.rank_of_stage, schedule->rank_of_stage,
           (size_t)num_stages * sizeof *schedule->rank_of_stage);
    return LG_OK;
}

static lg_status place(lg_cluster *cluster, const lg_recipe *recipe,
                       const lg_graph_opts *graph_opts, const lg_cluster_opts *opts)
{
    const int64_t num_ranks = recipe->ranks.pipeline;
    int *block_of_layer = NULL;
    LG_TRY(lgi_calloc(&block_of_layer, (size_t)lg_model_num_layers(cluster->model),
                      sizeof *block_of_layer));
    cluster->num_blocks = lg_model_blocks(cluster->model, block_of_layer);
    lgi_free(block_of_layer);
    cluster->placement = choose_placement(recipe, cluster->strategy);
    if (opts->schedule != NULL) {
        cluster->placement = LG_PLACE_CONTIGUOUS;
        return place_schedule(cluster, opts->schedule);
    }
    const int64_t num_stages = num_ranks * stages_per_rank(cluster, recipe);
    if (num_ranks == 1 && num_stages == 1) {
        return LG_OK;
    }
    if (cluster->placement == LG_PLACE_MODULO) {
        LG_TRY(check_stages(cluster, recipe, num_ranks));
        return lg_stages_modulo(&cluster->stages, cluster->model, (int)num_ranks,
                                (int)recipe->ranks.group);
    }
    LG_TRY(check_stages(cluster, recipe, num_stages));
    const bool is_v = cluster->placement == LG_PLACE_V ||
                      (cluster->placement == LG_PLACE_BALANCED && wants_v(cluster->strategy));
    const lg_stage_order order = is_v ? LG_STAGE_ORDER_V : LG_STAGE_ORDER_LOOP;
    return cluster->placement == LG_PLACE_BALANCED
               ? place_balanced(cluster, graph_opts, (int)num_ranks, (int)num_stages, order)
               : lg_stages_contiguous(&cluster->stages, cluster->model, (int)num_ranks,
                                      (int)num_stages, order);
}

lg_status lgi_place_recipe(lg_stages *out, lg_model *model, const lg_machine *machine,
                           const lg_recipe *recipe)
{
    const lg_cluster_opts opts = lg_cluster_opts_default();
    lg_graph_opts graph_opts = lg_graph_opts_default();
    lg_cluster cluster = {.model = model, .machine = *machine, .strategy = recipe->plan.strategy};
    graph_opts.num_micro_batches = (int)recipe->train.micro_batches;
    graph_opts.num_samples = recipe->train.batch / recipe->ranks.replicas;
    memset(out, 0, sizeof *out);
    const lg_status status = place(&cluster, recipe, &graph_opts, &opts);
    *out = cluster.stages;
    return status;
}

/* --- graph -------------------------------------------------------------------------------------------------------------- */

lg_status lgi_check_parts_of_batch(int64_t batch, int64_t num_replicas, int64_t num_micro_batches)
{
    if (num_micro_batches > batch / num_replicas) {
        LG_FAIL(LG_INVALID_ARG,
                "train.micro_batches: %lld in each of %lld replicas are more than train.batch %lld "
                "has samples",
                (long long)num_micro_batches, (long long)num_replicas, (long long)batch);
    }
    return LG_OK;
}

static lg_status make_graph(lg_cluster *cluster, const lg_recipe *recipe,
                            const lg_cluster_opts *opts)
{
    lg_graph_opts graph_opts = lg_graph_opts_default();
    const lg_optim_opts optim = lg_recipe_optim_opts(recipe);
    lg_parallel parallel = {.num_replicas = (int)recipe->ranks.replicas,
                            .num_pipeline_ranks = 1,
                            .num_stages = 1,
                            .chunk_bytes = recipe->ranks.chunk_bytes};
    parallel.share_bytes = recipe->ranks.share_bytes != LG_SHARE_BY_LINKS
                               ? recipe->ranks.share_bytes
                               : lg_machine_share_bytes(&cluster->machine, parallel.num_replicas,
                                                        (int)recipe->ranks.pipeline);
    graph_opts.num_micro_batches = opts->schedule != NULL ? opts->schedule->num_micro_batches
                                                          : (int)recipe->train.micro_batches;
    graph_opts.num_samples = opts->has_equal_times
                                 ? (int64_t)graph_opts.num_micro_batches * recipe->ranks.replicas
                                 : recipe->train.batch;
    graph_opts.num_slots = lg_optim_num_slots(&optim);
    graph_opts.has_clipping = recipe->optim.clip_norm > 0.0;
    graph_opts.widths[0] =
        recipe->exec.threads > 0 ? (int)recipe->exec.threads : cluster->machine.num_cores;
    LG_TRY(lgi_check_parts_of_batch(graph_opts.num_samples, recipe->ranks.replicas,
                                    graph_opts.num_micro_batches));
    LG_TRY(place(cluster, recipe, &graph_opts, opts));
    if (cluster->stages.num_stages > 0) {
        lg_stages_apply(&cluster->stages, &parallel);
    }
    if (parallel.num_replicas > 1 || cluster->stages.num_stages > 0) {
        graph_opts.parallel = &parallel;
    }
    return lg_graph_create(&cluster->graph, cluster->model, &graph_opts);
}

static lg_status find_costs(lg_cluster *cluster, const lg_recipe *recipe,
                            const lg_cluster_opts *opts)
{
    if (recipe->plan.costs == LG_COSTS_FROM_FILE) {
        if (recipe->plan.costs_file[0] == '\0') {
            LG_FAIL(LG_INVALID_ARG, "plan.costs_file: must be set for plan.costs=file");
        }
        if (opts->has_equal_times) {
            LG_FAIL(LG_INVALID_ARG,
                    "plan.costs: times are from '%s' or all equal; with equal times leave it out",
                    recipe->plan.costs_file);
        }
        return lg_costs_load(&cluster->costs, cluster->graph, recipe->plan.costs_file);
    }
    LG_TRY(lg_costs_create(&cluster->costs, cluster->graph));
    lg_costs_estimate(cluster->costs, cluster->graph, &cluster->machine);
    return opts->has_equal_times ? lgi_cluster_equal_times(cluster->costs, cluster->graph) : LG_OK;
}

/* --- all of it ---------------------------------------------------------------------------------------------------------- */

static lg_status check_schedule(const lg_rank_schedule *schedule, const lg_recipe *recipe)
{
    if (schedule != NULL && recipe->ranks.pipeline > 1 &&
        recipe->ranks.pipeline != schedule->num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "ranks.pipeline: %lld, but the schedule has %d ranks",
                (long long)recipe->ranks.pipeline, schedule->num_ranks);
    }
    return LG_OK;
}

static lg_status fill(lg_cluster *cluster, const lg_recipe *recipe, const lg_cluster_opts *opts)
{
    LG_TRY(check_schedule(opts->schedule, recipe));
    const char *const strategy = opts->strategy != NULL ? opts->strategy : recipe->plan.strategy;
    LG_TRY(lgi_strdup(&cluster->strategy, opts->placed_for != NULL ? opts->placed_for : strategy));
    const int64_t num_pipeline =
        opts->schedule != NULL ? opts->schedule->num_ranks : recipe->ranks.pipeline;
    LG_TRY(find_machine(cluster, recipe, num_pipeline * recipe->ranks.replicas, opts));
    if (opts->preset != NULL) {
        LG_TRY(lg_model_preset(&cluster->model, opts->preset));
    } else if (opts->has_equal_times) {
        cluster->placement = choose_placement(recipe, cluster->strategy);
        const int64_t num_stages = opts->schedule != NULL
                                       ? opts->schedule->num_stages
                                       : num_pipeline * stages_per_rank(cluster, recipe);
        LG_TRY(make_stand_in(cluster, opts->schedule != NULL
                                          ? num_stages
                                          : num_stand_in_blocks(num_pipeline, num_stages)));
    } else {
        LG_TRY(make_recipe_model(cluster, recipe));
    }
    LG_TRY(make_graph(cluster, recipe, opts));
    if (opts->placed_for != NULL) {
        lgi_free(cluster->strategy);
        cluster->strategy = NULL;
        LG_TRY(lgi_strdup(&cluster->strategy, strategy));
    }
    return find_costs(cluster, recipe, opts);
}

lg_status lg_cluster_create(lg_cluster **out, const lg_recipe *recipe, const lg_cluster_opts *opts)
{
    const lg_cluster_opts used = opts != NULL ? *opts : lg_cluster_opts_default();
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    const lg_status status = fill(*out, recipe, &used);
    if (status != LG_OK) {
        lg_cluster_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* --- the plan ----------------------------------------------------------------------------------------------------------- */

static int num_layers_with_weights(const lg_model *model)
{
    int num = 0;
    for (int i = 0; i < lg_model_num_layers(model); i++) {
        num += lg_model_layer(model, i)->num_params > 0 ? 1 : 0;
    }
    return num;
}

/* Whether one half of a strategy's name, or all of it, is `name`. */
static bool has_half(const char *strategy, const char *name)
{
    const char *const plus = strchr(strategy, '+');
    return is_pipeline(strategy, name) || (plus != NULL && strcmp(plus + 1, name) == 0);
}

static bool takes_push(const char *strategy)
{
    return has_half(strategy, "fast-forward");
}

static bool takes_reverse(const char *strategy)
{
    return has_half(strategy, "reverse-first-k") || has_half(strategy, "auto");
}

static lg_status check_num_reversed(const lg_recipe *recipe, const lg_model *model)
{
    const int num_layers = num_layers_with_weights(model);
    if (recipe->plan.reverse_first_k > num_layers) {
        LG_FAIL(LG_INVALID_ARG,
                "plan.reverse_first_k: %lld, but the model has %d layers with weights",
                (long long)recipe->plan.reverse_first_k, num_layers);
    }
    return LG_OK;
}

lg_status lgi_check_strategy_keys(const lg_recipe *recipe, const char *strategy,
                                  const lg_model *model)
{
    if (recipe->plan.push && !takes_push(strategy)) {
        LG_FAIL(LG_INVALID_ARG,
                "plan.push: it is for fast-forward; the strategy '%s' does not know it", strategy);
    }
    if (recipe->plan.reverse_first_k >= 0 && !takes_reverse(strategy)) {
        LG_FAIL(LG_INVALID_ARG,
                "plan.reverse_first_k: it is for reverse-first-k; the strategy '%s' does not know "
                "it",
                strategy);
    }
    return check_num_reversed(recipe, model);
}

static lg_status strategy_opts(lg_strategy_opts *out, const lg_cluster *cluster,
                               const lg_recipe *recipe, bool has_loose_keys)
{
    *out = lg_strategy_opts_default();
    out->num_lanes = (int)recipe->exec.lanes;
    out->threads_per_lane = (int)recipe->exec.threads;
    out->memory_bytes = cluster->memory_bytes;
    out->allow_lag = recipe->plan.allow_lag;
    out->num_reversed = (int)recipe->plan.reverse_first_k;
    out->has_push = recipe->plan.push;
    if (has_loose_keys) {
        out->has_push = out->has_push && takes_push(cluster->strategy);
        return check_num_reversed(recipe, cluster->model);
    }
    return lgi_check_strategy_keys(recipe, cluster->strategy, cluster->model);
}

static lg_status simulate(lg_cluster *cluster)
{
    lg_timeline_deinit(&cluster->timeline);
    lgi_free(cluster->ranks);
    cluster->ranks = NULL;
    LG_TRY(lg_plan_simulate(&cluster->timeline, cluster->plan, cluster->graph, &cluster->machine,
                            cluster->costs));
    LG_TRY(lg_timeline_add_memory(&cluster->timeline, cluster->plan, cluster->graph));
    LG_TRY(lgi_calloc(&cluster->ranks, (size_t)cluster->plan->num_ranks, sizeof *cluster->ranks));
    return lg_timeline_stats(cluster->ranks, &cluster->timeline, cluster->plan, cluster->graph);
}

/* The data-parallel half of a strategy's name; NULL: it has none. */
static const char *data_half(const char *strategy)
{
    const char *const plus = strchr(strategy, '+');
    if (plus != NULL) {
        return plus + 1;
    }
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        if (strcmp(lg_strategy_name(i), strategy) == 0) {
            return lg_strategy_role_of(i) == LG_STRATEGY_DATA ? strategy : NULL;
        }
    }
    return NULL;
}

lg_status lg_cluster_plan(lg_cluster *cluster, const lg_recipe *recipe, const lg_cluster_opts *opts)
{
    const lg_rank_schedule *const schedule = opts != NULL ? opts->schedule : NULL;
    lg_strategy_opts plan_opts;
    lg_plan_destroy(cluster->plan);
    cluster->plan = NULL;
    LG_TRY(strategy_opts(&plan_opts, cluster, recipe, opts != NULL && opts->has_loose_keys));
    if (schedule != NULL) {
        LG_TRY(lg_plan_from_schedule(&cluster->plan, "schedule", schedule, cluster->graph,
                                     &cluster->machine, cluster->costs,
                                     data_half(cluster->strategy), &plan_opts));
    } else {
        LG_TRY(lg_plan_create(&cluster->plan, cluster->strategy, cluster->graph, &cluster->machine,
                              cluster->costs, &plan_opts));
    }
    return simulate(cluster);
}

lg_status lg_cluster_load_plan(lg_cluster *cluster, const char *path)
{
    lg_plan *plan = NULL;
    LG_TRY(lg_plan_load(&plan, cluster->graph, path));
    const lg_status status = lg_plan_check(plan, cluster->graph, cluster->memory_bytes);
    if (status != LG_OK) {
        lg_plan_destroy(plan);
        return lgi_fail_prefix(status, "%s", path);
    }
    lg_plan_destroy(cluster->plan);
    cluster->plan = plan;
    return simulate(cluster);
}

lg_cluster_summary lg_cluster_summarize(const lg_cluster *cluster)
{
    lg_cluster_summary sum = {.step_ns = cluster->timeline.step_ns};
    for (int rank = 0; rank < cluster->plan->num_ranks; rank++) {
        const lg_rank_stats *const stats = &cluster->ranks[rank];
        sum.bubble_frac += stats->bubble_frac / cluster->plan->num_ranks;
        sum.exposed_comm_ns = fmax(sum.exposed_comm_ns, stats->exposed_comm_ns);
        sum.peak_bytes = stats->peak_bytes > sum.peak_bytes ? stats->peak_bytes : sum.peak_bytes;
        sum.sent_bytes += stats->sent_bytes;
    }
    return sum;
}
