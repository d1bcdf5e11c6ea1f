/* The trainer's tensors by name: initial values, reading, writing, the hash, checkpoints. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/random.h"
#include "train/trainer_internal.h"

/* --- initial values -------------------------------------------------------------------------------------------------- */

static void fill_initial(float *elems, const lg_param_info *param, uint64_t seed)
{
    const int64_t num_elems = lg_shape_num_elems(&param->shape);
    const int64_t num_outputs = param->shape.num_dims > 0 ? param->shape.dims[0] : 1;
    const int64_t fan_in = num_elems / num_outputs;
    /* of a kernel [O,C,KH,KW]: O*KH*KW; of a matrix [N,K]: He et al. take the inputs there */
    const int64_t fan = param->shape.num_dims == 4
                            ? num_outputs * param->shape.dims[2] * param->shape.dims[3]
                            : fan_in;
    const double kaiming = sqrt(2.0 / (double)fan);
    const double bound = 1.0 / sqrt((double)fan_in);
    const lgi_random random =
        lgi_random_stream(seed, LGI_RANDOM_INIT, lgi_layer_random_key(param->name), 0, 0);
    for (int64_t i = 0; i < num_elems; i++) {
        switch (param->init) {
        case LG_INIT_ONES:
            elems[i] = 1.0f;
            break;
        case LG_INIT_NORMAL:
            elems[i] = param->init_scale * lgi_random_normal(&random, (uint64_t)i);
            break;
        case LG_INIT_KAIMING_NORMAL:
            elems[i] = (float)(kaiming * (double)lgi_random_normal(&random, (uint64_t)i));
            break;
        case LG_INIT_UNIFORM_FAN_IN:
            elems[i] =
                (float)(bound * (2.0 * (double)lgi_random_uniform(&random, (uint64_t)i) - 1.0));
            break;
        default:
            elems[i] = 0.0f;
            break;
        }
    }
}

static lg_shape shape_of(const lg_model *model, const lg_value_info *value)
{
    return value->kind == LG_VALUE_STATE ? lg_model_state(model, value->idx)->shape
                                         : lg_model_param(model, value->idx)->shape;
}

static lg_status init_value(lgi_device *device, const lg_model *model, const lgi_program *program,
                            int value_idx, uint64_t seed)
{
    const lg_value_info *value = lg_graph_value(program->lowered->graph, value_idx);
    const lg_shape shape = shape_of(model, value);
    const int64_t num_elems = lg_shape_num_elems(&shape);
    float *elems = NULL;
    LG_TRY(lgi_calloc(&elems, (size_t)num_elems, sizeof *elems));
    if (value->kind == LG_VALUE_PARAM) {
        fill_initial(elems, lg_model_param(model, value->idx), seed);
    } else {
        for (int64_t i = 0; i < num_elems; i++) {
            elems[i] = lg_model_state(model, value->idx)->init_value;
        }
    }
    const lg_status status = device->ops->write(device, &shape, value->layout,
                                                lgi_program_value(program, value_idx, 0), elems);
    lgi_free(elems);
    return status;
}

lg_status lgi_init_weights(lgi_device *device, const lg_model *model, const lgi_program *program,
                           uint64_t seed)
{
    const lg_graph *graph = program->lowered->graph;
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->is_persistent &&
            (value->kind == LG_VALUE_PARAM || value->kind == LG_VALUE_STATE)) {
            LG_TRY(init_value(device, model, program, i, seed));
        }
    }
    return LG_OK;
}

/* --- by name --------------------------------------------------------------------------------------------------------- */

/* Whether `name` is `base` with `suffix` behind it. */
static bool is_named(const char *name, const char *base, const char *suffix)
{
    const size_t length = strlen(base);
    return strncmp(name, base, length) == 0 && strcmp(name + length, suffix) == 0;
}

static bool is_value_named(const lg_model *model, const lg_value_info *value, const char *name)
{
    switch (value->kind) {
    case LG_VALUE_PARAM:
        return is_named(name, lg_model_param(model, value->idx)->name, "");
    case LG_VALUE_PARAM_GRAD:
        return is_named(name, lg_model_param(model, value->idx)->name, ".grad");
    case LG_VALUE_SLOT:
        return is_named(name, lg_model_param(model, value->idx)->name,
                        value->slot == 0 ? ".slot0" : ".slot1");
    case LG_VALUE_STATE:
        return is_named(name, lg_model_state(model, value->idx)->name, "");
    default:
        return false;
    }
}

static lg_status find_value(const lg_trainer *trainer, const char *name, int *out)
{
    const lg_graph *graph = trainer->main->lowered->graph;
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        if (value->is_persistent && is_value_named(lgi_trainer_model(trainer), value, name)) {
            *out = i;
            return LG_OK;
        }
    }
    LG_FAIL(LG_INVALID_ARG, "the model has no tensor '%s'", name);
}

static lg_status check_num_elems(const char *name, const lg_shape *shape, int64_t num_elems)
{
    char text[128];
    if (num_elems != lg_shape_num_elems(shape)) {
        LG_FAIL(LG_INVALID_ARG, "tensor '%s' is %s: %" PRId64 " numbers, got room for %" PRId64,
                name, lg_shape_format(shape, text, sizeof text), lg_shape_num_elems(shape),
                num_elems);
    }
    return LG_OK;
}

static lg_status read_value(const lg_trainer *trainer, int value_idx, float *elems)
{
    const struct prepared *main = trainer->main;
    const lg_value_info *value = lg_graph_value(main->lowered->graph, value_idx);
    const lg_shape shape = shape_of(lgi_trainer_model(trainer), value);
    return trainer->device->ops->read(
        trainer->device, &shape, value->layout,
        (char *)trainer->arena + main->plan->values[value_idx].offset_bytes[0], elems);
}

static lg_status write_value(const lg_trainer *trainer, int value_idx, const float *elems)
{
    const struct prepared *main = trainer->main;
    const lg_value_info *value = lg_graph_value(main->lowered->graph, value_idx);
    const lg_shape shape = shape_of(lgi_trainer_model(trainer), value);
    return trainer->device->ops->write(
        trainer->device, &shape, value->layout,
        (char *)trainer->arena + main->plan->values[value_idx].offset_bytes[0], elems);
}

/* The value called `name`, ready for the host: of the right size, and nothing lags behind. */
static lg_status find_drained(lg_trainer *trainer, const char *name, int64_t num_elems, int *out)
{
    LG_TRY(find_value(trainer, name, out));
    const lg_shape shape =
        shape_of(lgi_trainer_model(trainer), lg_graph_value(trainer->main->lowered->graph, *out));
    LG_TRY(check_num_elems(name, &shape, num_elems));
    return lg_trainer_drain(trainer);
}

lg_status lg_trainer_read(lg_trainer *trainer, const char *name, float *elems, int64_t num_elems)
{
    int value = -1;
    LG_TRY(find_drained(trainer, name, num_elems, &value));
    return read_value(trainer, value, elems);
}

lg_status lg_trainer_write(lg_trainer *trainer, const char *name, const float *elems,
                           int64_t num_elems)
{
    int value = -1;
    LG_TRY(find_drained(trainer, name, num_elems, &value));
    return write_value(trainer, value, elems);
}

/* --- all of a kind --------------------------------------------------------------------------------------------------- */

/* What is done with each persistent value of a set. */
typedef lg_status (*value_fn)(const lg_trainer *trainer, int value, const char *name,
                              const lg_shape *shape, void *user);

/* Calls `fn` for parameters and states, or for the optimizer's slots, in the order of their ids. */
static lg_status for_each_value(const lg_trainer *trainer, bool is_slots, value_fn fn, void *user)
{
    const lg_graph *graph = trainer->main->lowered->graph;
    const lg_model *model = lgi_trainer_model(trainer);
    char name[LG_MAX_TENSOR_NAME_BYTES];
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        const bool is_weight = value->kind == LG_VALUE_PARAM || value->kind == LG_VALUE_STATE;
        const bool is_wanted = is_slots ? value->kind == LG_VALUE_SLOT : is_weight;
        if (!value->is_persistent || !is_wanted) {
            continue;
        }
        const char *base = value->kind == LG_VALUE_STATE ? lg_model_state(model, value->idx)->name
                                                         : lg_model_param(model, value->idx)->name;
        (void)snprintf(name, sizeof name, "%s%s", base,
                       !is_slots          ? ""
                       : value->slot == 0 ? ".slot0"
                                          : ".slot1");
        const lg_shape shape = shape_of(model, value);
        LG_TRY(fn(trainer, i, name, &shape, user));
    }
    return LG_OK;
}

static lg_status hash_value(const lg_trainer *trainer, int value, const char *name,
                            const lg_shape *shape, void *user)
{
    float *elems = NULL;
    LG_TRY(lgi_calloc(&elems, (size_t)lg_shape_num_elems(shape), sizeof *elems));
    const lg_status status = read_value(trainer, value, elems);
    if (status == LG_OK) {
        lg_weights_hasher_add(user, name, shape, elems);
    }
    lgi_free(elems);
    return status;
}

lg_status lg_trainer_weights_hash(lg_trainer *trainer, char text[LG_WEIGHTS_HASH_CHARS])
{
    lg_weights_hasher *hasher = NULL;
    LG_TRY(lg_trainer_drain(trainer));
    LG_TRY(lg_weights_hasher_create(&hasher));
    const lg_status status = for_each_value(trainer, false, hash_value, hasher);
    lg_weights_hasher_format(hasher, text);
    lg_weights_hasher_destroy(hasher);
    return status;
}

/* --- checkpoints ------------------------------------------------------------------------------------------------------ */

static lg_status fill_tensor(void *user, const char *name, void *dst, size_t num_bytes)
{
    return lg_trainer_read(user, name, dst, (int64_t)(num_bytes / sizeof(float)));
}

struct saving {
    lg_trainer *trainer;
    lg_tensor_writer *writer;
};

static lg_status add_to_writer(const lg_trainer *trainer, int value, const char *name,
                               const lg_shape *shape, void *user)
{
    const struct saving *saving = user;
    (void)trainer;
    (void)value;
    return lg_tensor_writer_add_filled(saving->writer, name, LG_FILE_DTYPE_F32, shape, fill_tensor,
                                       saving->trainer);
}

lg_status lg_trainer_save(lg_trainer *trainer, const char *root, const char *recipe_json,
                          const char *extra_json, int num_keep)
{
    lg_status status = LG_OK;
    struct saving model = {trainer, NULL};
    struct saving slots = {trainer, NULL};
    char hash[LG_WEIGHTS_HASH_CHARS];
    LG_TRY(lg_trainer_weights_hash(trainer, hash));
    LG_TRY_GOTO(lg_tensor_writer_create(&model.writer));
    LG_TRY_GOTO(lg_tensor_writer_create(&slots.writer));
    LG_TRY_GOTO(for_each_value(trainer, false, add_to_writer, &model));
    LG_TRY_GOTO(for_each_value(trainer, true, add_to_writer, &slots));
    LG_TRY_GOTO(lgi_trainer_save_rates(trainer, slots.writer));
    const lg_checkpoint_info info = {trainer->next_step, (int64_t)trainer->opts.seed, recipe_json,
                                     hash, extra_json};
    const bool has_slots =
        lg_optim_num_slots(&trainer->opts.optim) > 0 || lg_trainer_has_rates(trainer);
    LG_TRY_GOTO(lg_checkpoint_save(root, model.writer, has_slots ? slots.writer : NULL, &info,
                                   num_keep, NULL, 0));
out:
    lg_tensor_writer_destroy(model.writer);
    lg_tensor_writer_destroy(slots.writer);
    return status;
}

/* Loading goes in two passes: the first reads and checks everything, the second writes; so a failure changes nothing. */
struct loading {
    const lg_tensor_file *file;
    bool is_writing;
};

static lg_status load_value(const lg_trainer *trainer, int value, const char *name,
                            const lg_shape *shape, void *user)
{
    const struct loading *loading = user;
    float *elems = NULL;
    LG_TRY(lgi_calloc(&elems, (size_t)lg_shape_num_elems(shape), sizeof *elems));
    lg_status status = lg_tensor_file_read(loading->file, name, LG_FILE_DTYPE_F32, shape, elems);
    if (status == LG_OK && loading->is_writing) {
        status = write_value(trainer, value, elems);
    }
    lgi_free(elems);
    return status;
}

lg_status lg_trainer_load(lg_trainer *trainer, const lg_checkpoint *checkpoint, bool weights_only)
{
    const bool has_slots = !weights_only && (lg_optim_num_slots(&trainer->opts.optim) > 0 ||
                                             lg_trainer_has_rates(trainer));
    const lg_tensor_file *optimizer = lg_checkpoint_optimizer(checkpoint);
    if (has_slots && optimizer == NULL) {
        LG_FAIL(LG_INVALID_ARG, "checkpoint '%s' has no optimizer tensors, which %s needs to go on",
                lg_checkpoint_path(checkpoint), lg_optim_rule_name(trainer->opts.optim.rule));
    }
    if (trainer->arena == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "the trainer lost its memory when it asked for more");
    }
    if (trainer->has_half_step && !weights_only) {
        trainer->current = NULL; /* nothing of the failed step is used again */
    } else {
        LG_TRY(lg_trainer_drain(trainer));
    }
    for (int pass = 0; pass < 2; pass++) {
        struct loading model = {lg_checkpoint_model(checkpoint), pass == 1};
        struct loading slots = {optimizer, pass == 1};
        LG_TRY(for_each_value(trainer, false, load_value, &model));
        if (has_slots) {
            LG_TRY(for_each_value(trainer, true, load_value, &slots));
            LG_TRY(lgi_trainer_load_rates(trainer, optimizer, pass == 1));
        }
    }
    if (!weights_only) {
        trainer->next_step = lg_checkpoint_about(checkpoint)->step;
        trainer->current = NULL;
        trainer->has_half_step = false;
    }
    return LG_OK;
}
