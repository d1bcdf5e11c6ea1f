/* A job: a recipe's data, model and trainer. */
#include "train/run_job.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "comm/collectives.h"
#include "leapgrad/models.h"
#include "train/cluster_place.h"

#define MAX_PLAN_BYTES ((size_t)256 << 20)

lg_job_opts lg_job_opts_default(void)
{
    const lg_job_opts opts = {.without_data = false, .plan_path = NULL};
    return opts;
}

/* --- ranks ----------------------------------------------------------------------------------------------------------- */

lg_status lgi_check_num_ranks(const lg_recipe *recipe, int num_ranks)
{
    const int64_t num_asked = recipe->ranks.pipeline * recipe->ranks.replicas;
    if (num_asked == num_ranks) {
        return LG_OK;
    }
    if (num_ranks == 1) {
        LG_FAIL(LG_INVALID_ARG,
                "ranks: replicas=%" PRId64 " times pipeline=%" PRId64 " is %" PRId64
                " ranks, but there is no communicator to reach the others",
                recipe->ranks.replicas, recipe->ranks.pipeline, num_asked);
    }
    if (num_asked == 1) {
        LG_FAIL(
            LG_INVALID_ARG,
            "%d processes were started, but the recipe is for one rank; set ranks.replicas=%d (or "
            "ranks.pipeline, so that both multiply to %d)",
            num_ranks, num_ranks, num_ranks);
    }
    LG_FAIL(LG_INVALID_ARG,
            "%d processes were started, but ranks.replicas=%" PRId64
            " times ranks.pipeline=%" PRId64 " is %" PRId64,
            num_ranks, recipe->ranks.replicas, recipe->ranks.pipeline, num_asked);
}

/* --- making it ----------------------------------------------------------------------------------------------------- */

static int64_t count_steps(const lg_job *job)
{
    const lg_recipe *const recipe = job->recipe;
    if (recipe->train.steps > 0) {
        return recipe->train.steps;
    }
    return job->has_data
               ? recipe->train.epochs * lg_loader_batches_per_epoch(job->data.train_loader) -
                     job->batch_shift
               : 1;
}

/* The loader's batch that comes at `place`, less the steps done. Batches may have had another size until then. */
static int64_t find_batch_shift(const lg_job *job, const lgi_data_place *place)
{
    const lg_loader *const loader = job->data.train_loader;
    const int64_t max_samples = lg_loader_max_samples(loader);
    const int64_t num_batches = lg_loader_batches_per_epoch(loader);
    const int64_t seen = (place->epoch_samples + max_samples - 1) / max_samples;
    return place->epoch * num_batches + (seen < num_batches ? seen : num_batches) - place->step;
}

static lg_trainer_opts trainer_opts(const lg_job *job, const lgi_job_overrides *overrides)
{
    static const lg_trainer_costs costs[LG_NUM_COST_SOURCES] = {
        [LG_COSTS_FROM_ESTIMATE] = LG_TRAINER_COSTS_ESTIMATE,
        [LG_COSTS_FROM_MEASURE] = LG_TRAINER_COSTS_MEASURE,
        [LG_COSTS_FROM_FILE] = LG_TRAINER_COSTS_FILE};
    const lg_recipe *const recipe = job->recipe;
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.device = recipe->exec.device;
    opts.batch_samples =
        job->has_data ? lg_loader_max_samples(job->data.train_loader) : recipe->train.batch;
    const int64_t share = opts.batch_samples / recipe->ranks.replicas; /* of a replica, at least */
    const int64_t max_micro_batches = share > 0 ? share : 1;
    opts.num_micro_batches =
        (int)(recipe->train.micro_batches < max_micro_batches ? recipe->train.micro_batches
                                                              : max_micro_batches);
    opts.seed = (uint64_t)recipe->train.seed;
    opts.num_steps = job->num_steps;
    opts.optim = lg_recipe_optim_opts(recipe);
    opts.strategy = recipe->plan.strategy;
    opts.num_lanes = (int)recipe->exec.lanes;
    opts.threads_per_lane = (int)recipe->exec.threads;
    opts.memory_bytes = recipe->plan.memory_bytes;
    opts.allow_lag = recipe->plan.allow_lag;
    opts.num_reversed = (int)recipe->plan.reverse_first_k;
    opts.has_push = recipe->plan.push;
    opts.costs = costs[recipe->plan.costs];
    opts.costs_path = recipe->plan.costs_file;
    if (overrides->costs_path != NULL) {
        opts.costs = LG_TRAINER_COSTS_FILE;
        opts.costs_path = overrides->costs_path;
    }
    opts.plan_path = overrides->plan_path;
    if (opts.plan_path == NULL && recipe->plan.file[0] != '\0') {
        opts.plan_path = recipe->plan.file;
    }
    return opts;
}

/* The machine file, cut to as many ranks as the run has. */
static lg_status load_machine(lg_job *job, const char *path)
{
    const int num_ranks = job->ranks->num_ranks;
    LG_TRY(lg_machine_load(&job->machine, path));
    if (job->machine.num_ranks < num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "plan.machine: %s has %d ranks, the run %d", path,
                job->machine.num_ranks, num_ranks);
    }
    job->machine.num_ranks = num_ranks;
    if (job->machine.ranks_per_host > num_ranks) {
        job->machine.ranks_per_host = num_ranks;
    }
    return LG_OK;
}

/* The machine that plans are for, if there is a file: rank 0 reads it. */
static lg_status find_machine(lg_job *job, const lgi_job_overrides *overrides)
{
    const char *const path =
        overrides->machine_path != NULL ? overrides->machine_path : job->recipe->plan.machine;
    job->machine = lg_machine_default();
    job->has_machine = path[0] != '\0';
    if (!job->has_machine) {
        return LG_OK;
    }
    LG_TRY(lgi_ranks_settle(job->ranks,
                            lgi_ranks_is_first(job->ranks) ? load_machine(job, path) : LG_OK));
    return lgi_ranks_tell(job->ranks, &job->machine, sizeof job->machine);
}

/* What needs no other rank: data, model, placement. */
static lg_status make_parts(lg_job *job, const lgi_job_overrides *overrides)
{
    const lg_recipe *const recipe = job->recipe;
    lg_shape shape = LG_SHAPE(1);
    job->has_data = !overrides->without_data || recipe->data.kind == LG_DATA_IDX;
    if (job->has_data) {
        LG_TRY(lgi_run_data_open(&job->data, recipe));
        shape = lgi_run_data_image_shape(&job->data);
    }
    if (job->has_data && overrides->place != NULL) {
        job->batch_shift = find_batch_shift(job, overrides->place);
    }
    job->num_steps = count_steps(job);
    LG_TRY(lg_model_from_recipe(&job->model, recipe,
                                recipe->data.kind == LG_DATA_IDX ? &shape : NULL,
                                lgi_run_data_num_classes(&job->data, recipe)));
    LG_TRY(lgi_check_strategy_keys(recipe, recipe->plan.strategy, job->model));
    LG_TRY(lgi_check_parts_of_batch(recipe->train.batch, recipe->ranks.replicas,
                                    recipe->train.micro_batches));
    return job->ranks->comm != NULL
               ? lgi_place_recipe(&job->stages, job->model, &job->machine, recipe)
               : LG_OK;
}

static lg_status create_trainer(lg_job *job, const lgi_job_overrides *overrides)
{
    const lg_recipe *const recipe = job->recipe;
    lg_trainer_opts opts = trainer_opts(job, overrides);
    lg_parallel parallel = {.num_replicas = (int)recipe->ranks.replicas,
                            .num_pipeline_ranks = 1,
                            .num_stages = 1,
                            .chunk_bytes = recipe->ranks.chunk_bytes,
                            .share_bytes = recipe->ranks.share_bytes};
    if (job->stages.num_stages > 0) {
        lg_stages_apply(&job->stages, &parallel);
    }
    if (job->ranks->comm != NULL) {
        opts.comm = job->ranks->comm;
        opts.parallel = &parallel;
    }
    opts.machine = job->has_machine ? &job->machine : NULL;
    return lg_trainer_create(&job->trainer, job->model, &opts);
}

/* What all ranks must have alike, or their sums would be of different things. */
static lg_status agree_on_data(const lg_job *job)
{
    if (job->ranks->comm == NULL || !job->has_data) {
        return LG_OK;
    }
    return lgi_comm_agree(job->ranks->comm, "training data (hash of labels or text)",
                          job->data.train_hash);
}

/* Rank 0's plan is what runs. Whoever has brought another one expects something else. */
static lg_status agree_on_plan(const lg_job *job, const lgi_job_overrides *overrides)
{
    const char *const path = job->recipe->plan.file;
    char *text = NULL;
    size_t num_bytes = 0;
    if (job->ranks->comm == NULL || overrides->plan_path != NULL || path[0] == '\0') {
        return LG_OK;
    }
    lg_status status =
        lgi_ranks_settle(job->ranks, lgi_file_read(&text, &num_bytes, path, MAX_PLAN_BYTES));
    if (status == LG_OK) {
        status = lgi_comm_agree(job->ranks->comm, "plan.file", text);
    }
    lgi_free(text);
    return status;
}

static lg_status start_job(lg_job *job, const lgi_job_overrides *overrides)
{
    LG_TRY(lg_recipe_check(job->recipe));
    LG_TRY(lgi_check_num_ranks(job->recipe, job->ranks->num_ranks));
    LG_TRY(find_machine(job, overrides));
    LG_TRY(lgi_ranks_settle(job->ranks, make_parts(job, overrides)));
    LG_TRY(agree_on_data(job));
    LG_TRY(agree_on_plan(job, overrides));
    return lgi_ranks_settle(job->ranks, create_trainer(job, overrides));
}

lg_status lgi_job_create(lg_job **out, const lg_recipe *recipe, const lgi_job_overrides *overrides)
{
    LG_TRY(lgi_calloc(out, 1, sizeof **out));
    (*out)->recipe = recipe;
    (*out)->own_ranks.num_ranks = 1;
    (*out)->ranks = overrides->ranks != NULL ? overrides->ranks : &(*out)->own_ranks;
    const lg_status status = start_job(*out, overrides);
    if (status != LG_OK) {
        lg_job_destroy(*out);
        *out = NULL;
    }
    return status;
}

lg_status lg_job_create(lg_job **out, const lg_recipe *recipe, const lg_job_opts *opts)
{
    const lg_job_opts used = opts != NULL ? *opts : lg_job_opts_default();
    lgi_ranks ranks;
    const lgi_job_overrides overrides = {
        .without_data = used.without_data, .plan_path = used.plan_path, .ranks = &ranks};
    *out = NULL;
    LG_TRY(lgi_ranks_init(&ranks, used.comm, NULL));
    const lg_status status = lgi_job_create(out, recipe, &overrides);
    if (status != LG_OK) {
        lgi_ranks_deinit(&ranks);
        return status;
    }
    (*out)->own_ranks = ranks;
    (*out)->ranks = &(*out)->own_ranks;
    return LG_OK;
}

void lg_job_destroy(lg_job *job)
{
    if (job == NULL) {
        return;
    }
    lg_trainer_destroy(job->trainer);
    lg_stages_deinit(&job->stages);
    lg_model_destroy(job->model);
    lgi_run_data_close(&job->data);
    lgi_ranks_deinit(&job->own_ranks);
    lgi_free(job);
}

/* --- what it is ---------------------------------------------------------------------------------------------------- */

const lg_recipe *lg_job_recipe(const lg_job *job)
{
    return job->recipe;
}

const lg_model *lg_job_model(const lg_job *job)
{
    return job->model;
}

lg_trainer *lg_job_trainer(lg_job *job)
{
    return job->trainer;
}

int64_t lg_job_num_steps(const lg_job *job)
{
    return job->has_data ? job->num_steps : 0;
}

int64_t lg_job_steps_per_epoch(const lg_job *job)
{
    return job->has_data ? lg_loader_batches_per_epoch(job->data.train_loader) : 0;
}

int64_t lg_job_samples_per_epoch(const lg_job *job)
{
    return job->has_data ? lg_loader_samples_per_epoch(job->data.train_loader) : 0;
}

/* --- training ------------------------------------------------------------------------------------------------------ */

static void batch_tensors(const lg_batch *batch, const void *tensors[LG_MAX_BATCH_TENSORS])
{
    for (int i = 0; i < LG_MAX_BATCH_TENSORS; i++) {
        tensors[i] = i < batch->num_tensors ? batch->tensors[i].data : NULL;
    }
}

static lg_status require_data(const lg_job *job)
{
    if (!job->has_data) {
        LG_FAIL(LG_INVALID_ARG, "the job was made without data");
    }
    return LG_OK;
}

lg_status lgi_job_next_batch(lg_job *job, const lg_batch **out)
{
    LG_TRY(require_data(job));
    return lg_loader_get(job->data.train_loader,
                         lg_trainer_next_step(job->trainer) + job->batch_shift, out);
}

lg_status lgi_job_train_batch(lg_job *job, const lg_batch *batch, lg_step_result *result)
{
    const void *tensors[LG_MAX_BATCH_TENSORS];
    batch_tensors(batch, tensors);
    return lg_trainer_step(job->trainer, batch->num_samples, tensors, result);
}

double lgi_job_scale(const lg_job *job)
{
    const lg_graph_opts *const opts = lg_graph_options(lg_trainer_graph(job->trainer));
    const lg_optim_opts optim = lg_recipe_optim_opts(job->recipe);
    return (double)opts->num_samples /
           lg_optim_base_batch(&optim, opts->num_samples, opts->num_micro_batches);
}

lg_status lg_job_step(lg_job *job, lg_step_result *result)
{
    const lg_batch *batch = NULL;
    LG_TRY(lgi_job_next_batch(job, &batch));
    return lgi_job_train_batch(job, batch, result);
}

static lg_status check_finite(lg_job *job, const char *name, const lg_shape *shape)
{
    const int64_t num_elems = lg_shape_num_elems(shape);
    float *elems = NULL;
    LG_TRY(lgi_calloc(&elems, (size_t)num_elems, sizeof *elems));
    lg_status status = lg_trainer_read(job->trainer, name, elems, num_elems);
    for (int64_t i = 0; i < num_elems && status == LG_OK; i++) {
        if (!isfinite(elems[i])) {
            status = lgi_fail(LG_INVALID_ARG, "'%s' holds %g", name, (double)elems[i]);
        }
    }
    lgi_free(elems);
    return status;
}

lg_status lgi_job_check_weights(lg_job *job)
{
    for (int i = 0; i < lg_model_num_params(job->model); i++) {
        const lg_param_info *const param = lg_model_param(job->model, i);
        LG_TRY(check_finite(job, param->name, &param->shape));
    }
    for (int i = 0; i < lg_model_num_states(job->model); i++) {
        const lg_state_info *const state = lg_model_state(job->model, i);
        LG_TRY(check_finite(job, state->name, &state->shape));
    }
    return LG_OK;
}

/* --- from a run ---------------------------------------------------------------------------------------------------- */

static bool is_directory(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* Opens the checkpoint that `path` means: a run directory's last one, or itself. */
static lg_status open_checkpoint(lg_checkpoint **out, const char *path)
{
    char *inner = NULL;
    *out = NULL;
    LG_TRY(lgi_path_join(&inner, path, "checkpoints"));
    const lg_status status = lg_checkpoint_open(out, is_directory(inner) ? inner : path);
    lgi_free(inner);
    return status;
}

lg_status lg_job_load(lg_job *job, const char *path, bool weights_only)
{
    lg_checkpoint *checkpoint = NULL;
    LG_TRY(open_checkpoint(&checkpoint, path));
    const lg_status status = lg_trainer_load(job->trainer, checkpoint, weights_only);
    lg_checkpoint_close(checkpoint);
    return status;
}

lg_status lg_recipe_of_run(lg_recipe **out, const char *path, const char *const *overrides,
                           int num_overrides)
{
    lg_checkpoint *checkpoint = NULL;
    char *file = NULL;
    struct stat about;
    *out = NULL;
    LG_TRY(lgi_path_join(&file, path, "recipe.yaml"));
    lg_status status = LG_OK;
    if (stat(file, &about) == 0) {
        LG_TRY_GOTO(lg_recipe_load(out, file, overrides, num_overrides));
    } else {
        LG_TRY_GOTO(open_checkpoint(&checkpoint, path));
        const char *const json = lg_checkpoint_about(checkpoint)->recipe_json;
        LG_TRY_GOTO(lg_recipe_parse(out, path, json, strlen(json), overrides, num_overrides));
    }
out:
    lg_checkpoint_close(checkpoint);
    lgi_free(file);
    return status;
}
