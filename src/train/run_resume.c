/*
 * Resuming. A run that goes on has the bits of one that was never interrupted; so whatever the weights depend on must be as
 * it was: all keys of the recipe but those in the table below, the training data, the device. The number of cores cuts some
 * sums into parts, but a run must be able to move to another machine: a change of it is said, not refused.
 *
 * Where the learning rate follows the batch, the batch may change: samples, averages and warm-ups go on from where they are,
 * and steps are numbered on.
 */
#include "train/run_resume.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "train/trainer_internal.h"

/* Steps and batches are fewer than this. */
#define MAX_COUNT ((int64_t)1 << 53)

/* --- keys ---------------------------------------------------------------------------------------------------------- */

enum { CHANGES_NOTHING = 0, CHANGES_PLAN = 1, CHANGES_LENGTH = 2, CHANGES_BATCH = 3 };

/* Keys (or whole sections, with a dot at the end) that may differ. */
static const struct {
    const char *key;
    int changes;
} free_keys[] = {
    {"run.", CHANGES_NOTHING},
    {"generate.", CHANGES_NOTHING},
    {"plan.", CHANGES_PLAN},
    {"exec.", CHANGES_PLAN}, /* device: lgi_resume_check() */
    {"ranks.pipeline", CHANGES_PLAN},
    {"ranks.stages", CHANGES_PLAN},
    {"ranks.placement", CHANGES_PLAN},
    {"ranks.group", CHANGES_PLAN},
    {"ranks.chunk_bytes", CHANGES_PLAN},
    {"ranks.share_bytes", CHANGES_PLAN},
    {"ranks.timeout_s", CHANGES_NOTHING},
    {"data.prefetch", CHANGES_NOTHING},
    {"data.train_images", CHANGES_NOTHING}, /* files may have moved: lgi_resume_check() */
    {"data.train_labels", CHANGES_NOTHING},
    {"data.test_images", CHANGES_NOTHING},
    {"data.test_labels", CHANGES_NOTHING},
    {"data.text", CHANGES_NOTHING},
    {"train.steps", CHANGES_LENGTH},
    {"train.epochs", CHANGES_LENGTH},
    {"train.batch", CHANGES_BATCH}, /* if the rates follow it: can_change_batch() */
    {"train.micro_batches", CHANGES_BATCH},
    {"train.eval_every", CHANGES_NOTHING},
    {"train.checkpoint_every", CHANGES_NOTHING},
    {"train.log_every", CHANGES_NOTHING},
};

/* What a change of `key` does; -1: it changes the bits. */
static int effect_of(const char *key)
{
    for (size_t i = 0; i < sizeof free_keys / sizeof free_keys[0]; i++) {
        const char *const free_key = free_keys[i].key;
        const size_t length = strlen(free_key);
        const bool is_section = free_key[length - 1] == '.';
        if (is_section ? strncmp(key, free_key, length) == 0 : strcmp(key, free_key) == 0) {
            return free_keys[i].changes;
        }
    }
    return -1;
}

/* Whether the learning rate follows the batch, and keeps what it is meant for. */
static bool can_change_batch(const json_t *recipe)
{
    const json_t *const optim = json_object_get(recipe, "optim");
    const char *const scaling = json_string_value(json_object_get(optim, "scaling"));
    return scaling != NULL && strcmp(scaling, lg_lr_scaling_name(LG_LR_SCALING_NONE)) != 0 &&
           json_number_value(json_object_get(optim, "base_batch")) > 0.0;
}

static lg_status compare_value(lgi_recipe_changes *out, const char *section, const char *name,
                               const json_t *was, const json_t *now, bool may_change_batch)
{
    char key[256];
    if (was == NULL || json_equal(was, now)) {
        return LG_OK;
    }
    (void)snprintf(key, sizeof key, "%s.%s", section, name);
    const int effect = effect_of(key);
    if (effect == CHANGES_BATCH && !may_change_batch) {
        LG_FAIL(LG_INVALID_ARG,
                "%s: the run has %lld, the recipe %lld; it may change in a run whose learning rate "
                "follows the batch (optim.scaling other than none, optim.base_batch given)",
                key, (long long)json_integer_value(was), (long long)json_integer_value(now));
    }
    if (effect < 0) {
        char *const was_text = json_dumps(was, JSON_ENCODE_ANY | JSON_COMPACT);
        char *const now_text = json_dumps(now, JSON_ENCODE_ANY | JSON_COMPACT);
        const lg_status status =
            lgi_fail(LG_INVALID_ARG,
                     "%s: the run has %s, the recipe %s, which would change its result; give %s=%s "
                     "to go on, or start anew",
                     key, was_text != NULL ? was_text : "?", now_text != NULL ? now_text : "?", key,
                     was_text != NULL ? was_text : "?");
        free(was_text);
        free(now_text);
        return status;
    }
    out->has_plan_changes =
        out->has_plan_changes || effect == CHANGES_PLAN || effect == CHANGES_BATCH;
    out->has_batch_changes = out->has_batch_changes || effect == CHANGES_BATCH;
    out->has_length_changes = out->has_length_changes || effect == CHANGES_LENGTH;
    return LG_OK;
}

static lg_status compare_objects(lgi_recipe_changes *out, const json_t *was, json_t *now)
{
    const bool may_change_batch = can_change_batch(was) && can_change_batch(now);
    const char *section = NULL;
    json_t *members = NULL;
    json_object_foreach(now, section, members)
    {
        const char *name = NULL;
        json_t *value = NULL;
        const json_t *const was_members = json_object_get(was, section);
        json_object_foreach(members, name, value)
        {
            LG_TRY(compare_value(out, section, name, json_object_get(was_members, name), value,
                                 may_change_batch));
        }
    }
    return LG_OK;
}

lg_status lgi_resume_compare(lgi_recipe_changes *out, const char *stored_json, const char *new_json)
{
    lg_status status = LG_OK;
    memset(out, 0, sizeof *out);
    json_t *const was = json_loads(stored_json, 0, NULL);
    json_t *const now = json_loads(new_json, 0, NULL);
    if (!json_is_object(was) || !json_is_object(now)) {
        LG_TRY_GOTO(lgi_fail(LG_CORRUPT, "the checkpoint's recipe is no JSON object"));
    }
    LG_TRY_GOTO(compare_objects(out, was, now));
out:
    json_decref(was);
    json_decref(now);
    return status;
}

/* --- facts --------------------------------------------------------------------------------------------------------- */

lgi_resume_facts lgi_resume_facts_of(const lg_job *job)
{
    lgi_resume_facts facts;
    const lg_trainer_info info = lg_trainer_about(job->trainer);
    memset(&facts, 0, sizeof facts);
    memcpy(facts.train_hash, job->data.train_hash, sizeof facts.train_hash);
    (void)snprintf(facts.device, sizeof facts.device, "%s", info.device);
    facts.num_cores = lgi_trainer_num_machine_cores(job->trainer);
    if (job->has_data) {
        facts.batch_samples = lg_loader_max_samples(job->data.train_loader);
        facts.steps_per_epoch = lg_loader_batches_per_epoch(job->data.train_loader);
        facts.batch_shift = job->batch_shift;
    }
    return facts;
}

lg_status lgi_resume_facts_format(char **out, const lgi_resume_facts *facts)
{
    return lgi_sprintf(
        out,
        "{\"train_data\": \"%s\", \"device\": \"%s\", \"cores\": %d, \"batch\": %lld, "
        "\"steps_per_epoch\": %lld, \"batch_shift\": %lld}",
        facts->train_hash, facts->device, facts->num_cores, (long long)facts->batch_samples,
        (long long)facts->steps_per_epoch, (long long)facts->batch_shift);
}

lg_status lgi_resume_facts_parse(lgi_resume_facts *out, const char *json)
{
    lg_status status = LG_OK;
    json_t *const object = json_loads(json, 0, NULL);
    const char *const hash = json_string_value(json_object_get(object, "train_data"));
    const char *const device = json_string_value(json_object_get(object, "device"));
    const json_int_t cores = json_integer_value(json_object_get(object, "cores"));
    const json_int_t batch = json_integer_value(json_object_get(object, "batch"));
    const json_int_t per_epoch = json_integer_value(json_object_get(object, "steps_per_epoch"));
    const json_int_t shift = json_integer_value(json_object_get(object, "batch_shift"));
    memset(out, 0, sizeof *out);
    if (hash == NULL || device == NULL || cores < 0 || cores > INT_MAX || batch < 0 ||
        batch > INT32_MAX || per_epoch < 0 || per_epoch > MAX_COUNT || shift < -MAX_COUNT ||
        shift > MAX_COUNT) {
        status = lgi_fail(LG_CORRUPT, "the checkpoint was not written by a run: its 'extra' lacks "
                                      "train_data or device, or has a number out of range");
    } else {
        out->batch_samples = batch;
        out->steps_per_epoch = per_epoch;
        out->batch_shift = shift;
        (void)snprintf(out->train_hash, sizeof out->train_hash, "%s", hash);
        (void)snprintf(out->device, sizeof out->device, "%s", device);
        out->num_cores = (int)cores;
    }
    json_decref(object);
    return status;
}

bool lgi_resume_place(lgi_data_place *out, const lgi_resume_facts *facts, int64_t step)
{
    const int64_t batch = step + facts->batch_shift;
    memset(out, 0, sizeof *out);
    if (facts->batch_samples == 0 || facts->steps_per_epoch == 0 || batch < 0) {
        return false;
    }
    out->step = step;
    out->epoch = batch / facts->steps_per_epoch;
    out->epoch_samples = batch % facts->steps_per_epoch * facts->batch_samples;
    return true;
}

lg_status lgi_resume_check(const lgi_resume_facts *was, const lg_job *job)
{
    const lgi_resume_facts now = lgi_resume_facts_of(job);
    if (strcmp(was->train_hash, now.train_hash) != 0) {
        LG_FAIL(LG_INVALID_ARG, "%s: the training data are not those that the run began with",
                job->recipe->data.kind == LG_DATA_IDX ? "data.train_labels" : "data.text");
    }
    if (strcmp(was->device, now.device) != 0) {
        LG_FAIL(LG_INVALID_ARG,
                "exec.device: the run was on '%s', going on with '%s' would change its result",
                was->device, now.device);
    }
    return LG_OK;
}
