/*
 * Preparing a run: data, model, trainer; the directory last, so that a recipe that does not work leaves an earlier run alone. All
 * ranks do the same; the directory is rank 0's.
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "exec/hardware.h"
#include "train/run_internal.h"

/* --- what the run was ------------------------------------------------------------------------------------------------- */

/* What a checkpoint says before a job is made from it. Rank 0 opens it; what the others need to know they are told. */
struct origin {
    lg_checkpoint *checkpoint; /* NULL: from the beginning, or not rank 0 */
    lgi_resume_facts facts;
    lgi_recipe_changes changes;
    bool has_checkpoint;
    bool was_finished;
    bool has_same_version; /* of the program */
    bool has_plan;         /* that may be run again, with its costs */
    bool has_machine;      /* that it was made for */
    bool has_place;        /* it says where the data stand */
    lgi_data_place place;
    char *plan_path;
    char *costs_path;
    char *machine_path;
};

static void origin_deinit(struct origin *origin)
{
    lg_checkpoint_close(origin->checkpoint);
    lgi_free(origin->plan_path);
    lgi_free(origin->costs_path);
    lgi_free(origin->machine_path);
}

static lg_status look_at_record(const lgi_run *run, struct origin *origin)
{
    char *path = NULL;
    lg_record *record = NULL;
    LG_TRY(lgi_run_dir_file(&path, &run->dir, LGI_RUN_JSON));
    const lg_status status = lg_record_load(&record, path);
    lgi_free(path);
    LG_TRY(status);
    const char *const state = lg_record_text(record, "state");
    const char *const version = lg_record_text(record, "version");
    origin->was_finished = state != NULL && strcmp(state, "finished") == 0;
    origin->has_same_version = version != NULL && strcmp(version, lg_version()) == 0;
    lg_record_destroy(record);
    return LG_OK;
}

/*
 * Alone, a stored plan is tried, and another one made if it does not fit. Several ranks have one try: a program of another version or
 * another number of cores would make another graph.
 */
static bool is_plan_good(const lgi_run *run, const struct origin *origin)
{
    lgi_hardware *hardware = NULL;
    if (run->ranks.comm == NULL) {
        return true;
    }
    if (!origin->has_same_version || lgi_hardware_open(&hardware) != LG_OK) {
        return false;
    }
    const int num_cores = lgi_hardware_num_machine_cores(hardware);
    lgi_hardware_close(hardware);
    return origin->facts.num_cores == num_cores;
}

/* Opens the last checkpoint of the run and decides whether its plan is used again. */
static lg_status open_origin(lgi_run *run, struct origin *origin)
{
    lg_status status = LG_OK;
    char *root = NULL;
    LG_TRY(lgi_run_dir_claim(&run->dir, true));
    LG_TRY(look_at_record(run, origin));
    LG_TRY_GOTO(lgi_run_dir_file(&root, &run->dir, LGI_RUN_CHECKPOINTS));
    if (!lg_checkpoint_exists(root)) {
        goto out;
    }
    LG_TRY_GOTO(lg_checkpoint_open(&origin->checkpoint, root));
    origin->has_checkpoint = true;
    const lg_checkpoint_info *const about = lg_checkpoint_about(origin->checkpoint);
    LG_TRY_GOTO(lgi_resume_compare(&origin->changes, about->recipe_json, run->recipe_json));
    LG_TRY_GOTO(lgi_resume_facts_parse(&origin->facts, about->extra_json));
    origin->has_plan = !origin->changes.has_plan_changes && is_plan_good(run, origin) &&
                       lgi_run_dir_has(&run->dir, LGI_RUN_PLAN) &&
                       lgi_run_dir_has(&run->dir, LGI_RUN_COSTS);
    origin->has_machine = origin->has_plan && lgi_run_dir_has(&run->dir, LGI_RUN_MACHINE);
    origin->has_place = lgi_resume_place(&origin->place, &origin->facts, about->step);
    if (origin->changes.has_batch_changes && !origin->has_place) {
        LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG, "train.batch: the checkpoint is of an earlier version "
                                             "and does not say where its data stand"));
    }
out:
    lgi_free(root);
    return status;
}

/* The others hear what rank 0 found, which alone reads these files. */
static lg_status share_origin(lgi_run *run, struct origin *origin)
{
    LG_TRY(lgi_ranks_tell(&run->ranks, &origin->has_checkpoint, sizeof origin->has_checkpoint));
    LG_TRY(lgi_ranks_tell(&run->ranks, &origin->was_finished, sizeof origin->was_finished));
    LG_TRY(lgi_ranks_tell(&run->ranks, &origin->has_plan, sizeof origin->has_plan));
    LG_TRY(lgi_ranks_tell(&run->ranks, &origin->has_machine, sizeof origin->has_machine));
    if (origin->has_plan) {
        LG_TRY(lgi_run_dir_file(&origin->plan_path, &run->dir, LGI_RUN_PLAN));
        LG_TRY(lgi_run_dir_file(&origin->costs_path, &run->dir, LGI_RUN_COSTS));
    }
    return origin->has_machine ? lgi_run_dir_file(&origin->machine_path, &run->dir, LGI_RUN_MACHINE)
                               : LG_OK;
}

static lg_status find_origin(lgi_run *run, struct origin *origin)
{
    const bool is_first = lgi_ranks_is_first(&run->ranks);
    LG_TRY(lgi_ranks_settle(&run->ranks, is_first ? open_origin(run, origin) : LG_OK));
    return share_origin(run, origin);
}

/* --- making the job ----------------------------------------------------------------------------------------------------- */

/* Makes the job; with the plan that the run had, where that still fits, else with a new one. */
static lg_status create_job(lgi_run *run, const struct origin *origin)
{
    lgi_job_overrides overrides = {.plan_path = origin->plan_path,
                                   .costs_path = origin->costs_path,
                                   .machine_path = origin->machine_path,
                                   .ranks = &run->ranks,
                                   .place = origin->has_place ? &origin->place : NULL};
    if (origin->plan_path != NULL) {
        const lg_status status = lgi_job_create(&run->job, run->recipe, &overrides);
        if (status == LG_OK || run->ranks.comm != NULL) {
            return status;
        }
    }
    overrides.plan_path = NULL;
    overrides.costs_path = NULL;
    overrides.machine_path = NULL;
    return lgi_job_create(&run->job, run->recipe, &overrides);
}

/* Holds the job against what the run was. */
static lg_status check_origin(const lgi_run *run, const struct origin *origin)
{
    LG_TRY(lgi_resume_check(&origin->facts, run->job));
    const int num_cores = lgi_resume_facts_of(run->job).num_cores;
    if (origin->facts.num_cores > 0 && origin->facts.num_cores != num_cores) {
        lgi_run_say(
            run,
            "the run was on a machine of %d cores, this one has %d: some sums may round otherwise",
            origin->facts.num_cores, num_cores);
    }
    return LG_OK;
}

static lg_status load_origin(lgi_run *run, const struct origin *origin)
{
    if (!origin->has_checkpoint) {
        lgi_run_say(run, "no checkpoint yet in %s: from the beginning", run->dir.path);
        return LG_OK;
    }
    const bool is_first = lgi_ranks_is_first(&run->ranks);
    LG_TRY(lgi_ranks_settle(&run->ranks, is_first ? check_origin(run, origin) : LG_OK));
    LG_TRY(lg_trainer_load(run->job->trainer, origin->checkpoint, false));
    run->first_step = lg_trainer_next_step(run->job->trainer);
    LG_TRY(lgi_run_end_by_iterations(run));
    run->last_checkpoint_step = run->first_step;
    if (run->first_step > run->num_steps) {
        LG_FAIL(LG_INVALID_ARG,
                "the run in '%s' has done %" PRId64 " steps, the recipe asks for %" PRId64,
                run->dir.path, run->first_step, run->num_steps);
    }
    if (origin->changes.has_batch_changes) {
        lgi_run_say(run, "from step %" PRId64 " on a batch has %" PRId64 " samples: S = %g",
                    run->first_step + 1, lg_loader_max_samples(run->job->data.train_loader),
                    lgi_job_scale(run->job));
    }
    if (origin->changes.has_length_changes && run->recipe->optim.schedule != LG_SCHEDULE_CONSTANT) {
        lgi_run_say(run,
                    "another length: from here on the %s schedule is that of %" PRId64 " steps",
                    lg_schedule_name(run->recipe->optim.schedule), run->num_steps);
    }
    return LG_OK;
}

/* --- all of it ---------------------------------------------------------------------------------------------------------- */

static lg_status prepare_texts(lgi_run *run)
{
    LG_TRY(lg_recipe_check(run->recipe));
    LG_TRY(lg_recipe_to_json(run->recipe, &run->recipe_json));
    LG_TRY(lg_recipe_to_yaml(run->recipe, &run->recipe_yaml));
    return lgi_ranks_is_first(&run->ranks)
               ? lgi_run_dir_init(&run->dir, run->recipe, run->opts.resume)
               : lgi_run_dir_find(&run->dir, run->recipe);
}

/* Ranks of different recipes would not compute one thing. (Versions are compared where ranks join: lg_comm_mpi_create().) */
static lg_status agree_on_recipe(lgi_run *run)
{
    return run->ranks.comm != NULL ? lgi_comm_agree(run->ranks.comm, "recipe", run->recipe_yaml)
                                   : LG_OK;
}

static lg_status claim_directory(lgi_run *run)
{
    lg_status status = LG_OK;
    if (lgi_ranks_is_first(&run->ranks)) {
        status = lgi_run_dir_claim(&run->dir, false);
    }
    if (run->dir.was_moved) {
        lgi_run_say(run, "the run that was in %s is now in %s.previous", run->dir.path,
                    run->dir.path);
    }
    return lgi_ranks_settle(&run->ranks, status);
}

lg_status lgi_run_prepare(lgi_run *run, bool *out_was_finished)
{
    lg_status status = LG_OK;
    struct origin origin;
    memset(&origin, 0, sizeof origin);
    LG_TRY(lgi_ranks_settle(&run->ranks, prepare_texts(run)));
    LG_TRY(agree_on_recipe(run));
    if (run->opts.resume) {
        LG_TRY_GOTO(find_origin(run, &origin));
    }
    LG_TRY_GOTO(create_job(run, &origin));
    run->num_steps = run->job->num_steps;
    const lgi_resume_facts facts = lgi_resume_facts_of(run->job);
    LG_TRY_GOTO(lgi_resume_facts_format(&run->extra_json, &facts));
    LG_TRY_GOTO(
        lgi_run_measure_init(&run->measure, run->first_step, run->num_steps, run->ranks.num_ranks));
    if (run->opts.resume) {
        LG_TRY_GOTO(load_origin(run, &origin));
        lgi_run_measure_deinit(&run->measure);
        LG_TRY_GOTO(lgi_run_measure_init(&run->measure, run->first_step, run->num_steps,
                                         run->ranks.num_ranks));
    } else {
        LG_TRY_GOTO(claim_directory(run));
    }
    *out_was_finished = origin.was_finished && run->first_step == run->num_steps;
out:
    origin_deinit(&origin);
    return status;
}
