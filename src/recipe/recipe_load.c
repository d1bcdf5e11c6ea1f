/* Making, reading and checking recipes: defaults, then the file, then the overrides, then the rules between keys. */
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"
#include "recipe/recipe_table.h"
#include "recipe/recipe_yaml.h"

lg_status lg_recipe_default(lg_recipe **out)
{
    lg_status status = LG_OK;
    lg_recipe *recipe = NULL;
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    *out = NULL;
    LG_TRY(lgi_calloc(&recipe, 1, sizeof *recipe));
    for (int i = 0; i < num_fields; i++) {
        LG_TRY_GOTO(lgi_field_parse(&fields[i], recipe, fields[i].default_text));
    }
    *out = recipe;
    recipe = NULL;
out:
    lg_recipe_destroy(recipe);
    return status;
}

void lg_recipe_destroy(lg_recipe *recipe)
{
    if (recipe == NULL) {
        return;
    }
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    for (int i = 0; i < num_fields; i++) {
        lgi_field_clear(&fields[i], recipe);
    }
    lgi_free(recipe);
}

lg_status lg_recipe_set(lg_recipe *recipe, const char *key, const char *value)
{
    const lgi_field *const field = lgi_recipe_find(key);
    if (field == NULL) {
        return lgi_recipe_fail_unknown(key);
    }
    return lgi_field_parse(field, recipe, value);
}

/* Sets "key=value", unless `is_set` (by field) says that the key came before. */
static lg_status apply_override(lg_recipe *recipe, const char *override, bool *is_set)
{
    lg_status status = LG_OK;
    char *key = NULL;
    const char *const equals = strchr(override, '=');
    if (equals == NULL) {
        LG_FAIL(LG_INVALID_ARG, "override '%s': expected section.key=value", override);
    }
    LG_TRY(lgi_sprintf(&key, "%.*s", (int)(equals - override), override));
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    const lgi_field *const field = lgi_recipe_find(key);
    if (field == NULL) {
        LG_TRY_GOTO(lgi_recipe_fail_unknown(key));
    }
    if (is_set[field - fields]) {
        LG_TRY_GOTO(
            lgi_fail(LG_INVALID_ARG, "override '%s': key '%s' is overridden twice", override, key));
    }
    is_set[field - fields] = true;
    LG_TRY_GOTO(lgi_field_parse(field, recipe, equals + 1));
out:
    lgi_free(key);
    return status;
}

/* A length given in steps takes the place of the file's epochs, and the other way round. */
static lg_status apply_overrides(lg_recipe *recipe, const char *const *overrides, int num_overrides)
{
    bool is_set[LGI_MAX_FIELDS] = {false};
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    for (int i = 0; i < num_overrides; i++) {
        LG_TRY(apply_override(recipe, overrides[i], is_set));
    }
    const bool has_steps = is_set[lgi_recipe_find("train.steps") - fields];
    const bool has_epochs = is_set[lgi_recipe_find("train.epochs") - fields];
    if (has_steps && !has_epochs && recipe->train.steps > 0) {
        recipe->train.epochs = 0;
    } else if (has_epochs && !has_steps && recipe->train.epochs > 0) {
        recipe->train.steps = 0;
    }
    return LG_OK;
}

lg_status lg_recipe_parse(lg_recipe **out, const char *source, const char *text, size_t num_bytes,
                          const char *const *overrides, int num_overrides)
{
    lg_status status = LG_OK;
    lg_recipe *recipe = NULL;
    char *copy = NULL; /* with a final 0 */
    *out = NULL;
    LG_TRY(lg_recipe_default(&recipe));
    if (num_bytes > LG_RECIPE_MAX_FILE_BYTES) {
        LG_TRY_GOTO(lgi_fail(LG_INVALID_ARG, "%s: %zu bytes are more than the %d allowed", source,
                             num_bytes, LG_RECIPE_MAX_FILE_BYTES));
    }
    LG_TRY_GOTO(lgi_calloc(&copy, num_bytes + 1, 1));
    if (num_bytes > 0) {
        memcpy(copy, text, num_bytes);
    }
    status = lgi_recipe_read_yaml(recipe, copy, num_bytes);
    if (status != LG_OK) {
        LG_TRY_GOTO(lgi_fail_prefix(status, "%s", source));
    }
    LG_TRY_GOTO(apply_overrides(recipe, overrides, num_overrides));
    status = lg_recipe_check(recipe);
    if (status != LG_OK) {
        LG_TRY_GOTO(lgi_fail_prefix(status, "%s", source));
    }
    *out = recipe;
    recipe = NULL;
out:
    lgi_free(copy);
    lg_recipe_destroy(recipe);
    return status;
}

lg_status lg_recipe_load(lg_recipe **out, const char *path, const char *const *overrides,
                         int num_overrides)
{
    char *text = NULL;
    size_t num_bytes = 0;
    *out = NULL;
    if (path == NULL) {
        return lg_recipe_parse(out, "recipe", "", 0, overrides, num_overrides);
    }
    LG_TRY(lgi_file_read(&text, &num_bytes, path, LG_RECIPE_MAX_FILE_BYTES));
    const lg_status status = lg_recipe_parse(out, path, text, num_bytes, overrides, num_overrides);
    lgi_free(text);
    return status;
}

static lg_status require_text(const char *key, const char *text, const char *because)
{
    if (text[0] == '\0') {
        LG_FAIL(LG_INVALID_ARG, "%s: must be set for %s", key, because);
    }
    return LG_OK;
}

static lg_status check_data(const lg_recipe *recipe)
{
    static const lg_data_kind needs[LG_NUM_MODEL_KINDS] = {
        [LG_MODEL_GPT] = LG_DATA_TEXT, [LG_MODEL_BERT] = LG_DATA_MASKED_TEXT};
    const lg_data_kind kind = recipe->data.kind; /* models of images need IDX, number 0 */
    if (kind != needs[recipe->model.kind]) {
        LG_FAIL(LG_INVALID_ARG, "data.kind: model.kind=%s learns from %s, not from %s",
                lg_model_kind_name(recipe->model.kind),
                lg_data_kind_name(needs[recipe->model.kind]), lg_data_kind_name(kind));
    }
    if (kind != LG_DATA_IDX) {
        if (recipe->data.held_out_frac + recipe->data.validation_frac >= 1.0) {
            LG_FAIL(
                LG_INVALID_ARG,
                "data.held_out_frac: %g and data.validation_frac %g leave nothing to learn from",
                recipe->data.held_out_frac, recipe->data.validation_frac);
        }
        return require_text("data.text", recipe->data.text, "text data");
    }
    LG_TRY(require_text("data.train_images", recipe->data.train_images, "data.kind=idx"));
    LG_TRY(require_text("data.train_labels", recipe->data.train_labels, "data.kind=idx"));
    LG_TRY(require_text("data.test_images", recipe->data.test_images, "data.kind=idx"));
    return require_text("data.test_labels", recipe->data.test_labels, "data.kind=idx");
}

static lg_status check_train(const lg_recipe *recipe)
{
    if ((recipe->train.steps > 0) == (recipe->train.epochs > 0)) {
        LG_FAIL(
            LG_INVALID_ARG,
            "train.steps: exactly one of train.steps (%lld) and train.epochs (%lld) must be set",
            (long long)recipe->train.steps, (long long)recipe->train.epochs);
    }
    if (recipe->train.micro_batches > recipe->train.batch) {
        LG_FAIL(LG_INVALID_ARG, "train.micro_batches: %lld is more than train.batch %lld",
                (long long)recipe->train.micro_batches, (long long)recipe->train.batch);
    }
    return LG_OK;
}

static lg_status check_plan(const lg_recipe *recipe)
{
    if (recipe->plan.costs == LG_COSTS_FROM_FILE) {
        return require_text("plan.costs_file", recipe->plan.costs_file, "plan.costs=file");
    }
    return LG_OK;
}

lg_status lg_recipe_check(const lg_recipe *recipe)
{
    int num_fields = 0;
    const lgi_field *const fields = lgi_recipe_fields(&num_fields);
    for (int i = 0; i < num_fields; i++) {
        LG_TRY(lgi_field_check(&fields[i], recipe));
    }
    LG_TRY(check_data(recipe));
    LG_TRY(check_train(recipe));
    LG_TRY(check_plan(recipe));
    const lg_optim_opts opts = lg_recipe_optim_opts(recipe);
    return lg_optim_opts_check(&opts);
}

lg_optim_opts lg_recipe_optim_opts(const lg_recipe *recipe)
{
    lg_optim_opts opts = {
        .rule = recipe->optim.rule,
        .lr = recipe->optim.lr,
        .momentum = recipe->optim.momentum,
        .is_nesterov = recipe->optim.nesterov,
        .weight_decay = recipe->optim.weight_decay,
        .decay_norm_and_bias = recipe->optim.decay_norm_and_bias,
        .beta1 = recipe->optim.beta1,
        .beta2 = recipe->optim.beta2,
        .epsilon = recipe->optim.epsilon,
        .clip_norm = recipe->optim.clip_norm,
        .schedule = recipe->optim.schedule,
        .warmup_steps = recipe->optim.warmup_steps,
        .min_lr_frac = recipe->optim.min_lr_frac,
        .num_milestones = recipe->optim.milestones.num,
        .step_factor = recipe->optim.step_factor,
        .trust_coefficient = recipe->optim.trust_coefficient,
        .scaling = recipe->optim.scaling,
        .base_batch = (double)recipe->optim.base_batch,
        .warmup = recipe->optim.warmup,
        .warmup_frac = recipe->optim.warmup_frac,
        .warmup_budget = recipe->optim.warmup_budget,
        .grouping = recipe->optim.grouping,
        .variant = recipe->optim.variant,
        .gain_epsilon = recipe->optim.gain_epsilon,
        .gain_power = recipe->optim.gain_power,
        .schedule_by = recipe->optim.schedule_by,
        .total_iterations = recipe->optim.total_iterations,
        .skip = recipe->optim.skip,
        .has_statistics = recipe->optim.statistics,
    };
    _Static_assert(LG_MAX_MILESTONES >= LG_RECIPE_MAX_NUMBERS, "milestones must fit");
    memcpy(opts.milestones, recipe->optim.milestones.values,
           sizeof recipe->optim.milestones.values);
    return opts;
}
