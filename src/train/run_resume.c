/*
 * Resuming. A run that goes on has the bits of one that was never interrupted; so whatever the weights depend on must be as
 * it was: all keys of the recipe but those in the table below, the training data, the device. The number of cores cuts some
 * sums into parts, but a run must be able to move to another machine: a change of it is said, not refused.
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

/* --- keys ---------------------------------------------------------------------------------------------------------- */

enum { CHANGES_NOTHING = 0, CHANGES_PLAN = 1, CHANGES_LENGTH = 2 };

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
    {"ranks.timeout_s", CHANGES_NOTHING},
    {"data.prefetch", CHANGES_NOTHING},
    {"data.train_images", CHANGES_NOTHING}, /* files may have moved: lgi_resume_check() */
    {"data.train_labels", CHANGES_NOTHING},
    {"data.test_images", CHANGES_NOTHING},
    {"data.test_labels", CHANGES_NOTHING},
    {"data.text", CHANGES_NOTHING},
    {"train.steps", CHANGES_LENGTH},
    {"train.epochs", CHANGES_LENGTH},
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

static lg_status compare_value(lgi_recipe_changes *out, const char *section, const char *name,
                               const json_t *was, const json_t *now)
{
    char key[256];
    if (was == NULL || json_equal(was, now)) {
        return LG_OK;
    }
    (void)snprintf(key, sizeof key, "%s.%s", section, name);
    const int effect = effect_of(key);
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
    out->has_plan_changes = out->has_plan_changes || effect == CHANGES_PLAN;
    out->has_length_changes = out->has_length_changes || effect == CHANGES_LENGTH;
    return LG_OK;
}

static lg_status compare_objects(lgi_recipe_changes *out, const json_t *was, json_t *now)
{
    const char *section = NULL;
    json_t *members = NULL;
    json_object_foreach(now, section, members)
    {
        const char *name = NULL;
        json_t *value = NULL;
        const json_t *const was_members = json_object_get(was, section);
        json_object_foreach(members, name, value)
        {
            LG_TRY(compare_value(out, section, name, json_object_get(was_members, name), value));
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
    return facts;
}

lg_status lgi_resume_facts_format(char **out, const lgi_resume_facts *facts)
{
    return lgi_sprintf(out, "{\"train_data\": \"%s\", \"device\": \"%s\", \"cores\": %d}",
                       facts->train_hash, facts->device, facts->num_cores);
}

lg_status lgi_resume_facts_parse(lgi_resume_facts *out, const char *json)
{
    lg_status status = LG_OK;
    json_t *const object = json_loads(json, 0, NULL);
    const char *const hash = json_string_value(json_object_get(object, "train_data"));
    const char *const device = json_string_value(json_object_get(object, "device"));
    const json_int_t cores = json_integer_value(json_object_get(object, "cores"));
    memset(out, 0, sizeof *out);
    if (hash == NULL || device == NULL || cores < 0 || cores > INT_MAX) {
        status = lgi_fail(LG_CORRUPT, "the checkpoint was not written by a run: its 'extra' lacks "
                                      "train_data or device, or has cores out of range");
    } else {
        (void)snprintf(out->train_hash, sizeof out->train_hash, "%s", hash);
        (void)snprintf(out->device, sizeof out->device, "%s", device);
        out->num_cores = (int)cores;
    }
    json_decref(object);
    return status;
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
