/*
 * The trainer's tensors by name: initial values, reading, writing, the hash, checkpoints. With several ranks each tensor of
 * replica 0 has an owner, from which rank 0 gets it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/random.h"
#include "comm/collectives.h"
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

lg_shape lgi_value_shape(const lg_model *model, const lg_value_info *value)
{
    return value->kind == LG_VALUE_STATE ? lg_model_state(model, value->idx)->shape
                                         : lg_model_param(model, value->idx)->shape;
}

static lg_status init_value(lgi_device *device, const lg_model *model, const lgi_program *program,
                            int value_idx, uint64_t seed)
{
    const lg_value_info *value = lg_graph_value(program->lowered->graph, value_idx);
    const lg_shape shape = lgi_value_shape(model, value);
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
        if (value->is_persistent && value->rank == program->rank &&
            (value->kind == LG_VALUE_PARAM || value->kind == LG_VALUE_STATE)) {
            LG_TRY(init_value(device, model, program, i, seed));
        }
    }
    return LG_OK;
}

/* --- places ---------------------------------------------------------------------------------------------------------- */

static struct tensor_place *place_of(const lg_trainer *trainer, lg_value_kind kind, int idx,
                                     int slot)
{
    switch (kind) {
    case LG_VALUE_PARAM:
        return &trainer->params[idx];
    case LG_VALUE_PARAM_GRAD:
        return &trainer->grads[idx];
    case LG_VALUE_SLOT:
        return &trainer->slots[idx * LG_MAX_SLOTS + slot];
    case LG_VALUE_STATE:
        return &trainer->states[idx];
    default:
        return NULL;
    }
}

const struct tensor_place *lgi_trainer_place(const lg_trainer *trainer, lg_value_kind kind, int idx,
                                             int slot)
{
    return place_of(trainer, kind, idx, slot);
}

static lg_status allocate_places(struct tensor_place **out, size_t num)
{
    LG_TRY(lgi_calloc(out, num, sizeof **out));
    for (size_t i = 0; i < num; i++) {
        const struct tensor_place nowhere = {-1, -1, -1};
        (*out)[i] = nowhere;
    }
    return LG_OK;
}

lg_status lgi_trainer_find_tensors(lg_trainer *trainer)
{
    const lg_graph *graph = trainer->main->lowered->graph;
    const lg_model *model = lgi_trainer_model(trainer);
    const size_t num_params = (size_t)lg_model_num_params(model);
    LG_TRY(allocate_places(&trainer->params, num_params));
    LG_TRY(allocate_places(&trainer->grads, num_params));
    LG_TRY(allocate_places(&trainer->slots, num_params * LG_MAX_SLOTS));
    LG_TRY(allocate_places(&trainer->states, (size_t)lg_model_num_states(model)));
    for (int i = 0; i < lg_graph_num_values(graph); i++) {
        const lg_value_info *value = lg_graph_value(graph, i);
        /* the gradients of a tied parameter's uses have slots above 0 */
        const bool is_use = value->kind == LG_VALUE_PARAM_GRAD && value->slot > 0;
        struct tensor_place *place = value->is_persistent && !is_use
                                         ? place_of(trainer, value->kind, value->idx, value->slot)
                                         : NULL;
        if (place == NULL) {
            continue;
        }
        if (value->rank < trainer->num_pipeline_ranks && place->owner_rank < 0) {
            place->owner_rank = value->rank;
            place->owner_value = i;
        }
        if (value->rank == trainer->rank) {
            place->own_value = i;
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

/* A tensor by kind, id and slot. */
struct tensor_key {
    lg_value_kind kind;
    int idx;
    int slot;
};

static bool find_in_param(const lg_model *model, int param, const char *name,
                          struct tensor_key *key)
{
    static const struct {
        const char *suffix;
        lg_value_kind kind;
        int slot;
    } kinds[] = {{"", LG_VALUE_PARAM, 0},
                 {".grad", LG_VALUE_PARAM_GRAD, 0},
                 {".slot0", LG_VALUE_SLOT, 0},
                 {".slot1", LG_VALUE_SLOT, 1}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (is_named(name, lg_model_param(model, param)->name, kinds[i].suffix)) {
            const struct tensor_key found = {kinds[i].kind, param, kinds[i].slot};
            *key = found;
            return true;
        }
    }
    return false;
}

static lg_status find_tensor(const lg_trainer *trainer, const char *name, struct tensor_key *key)
{
    const lg_model *model = lgi_trainer_model(trainer);
    bool is_found = false;
    for (int param = 0; !is_found && param < lg_model_num_params(model); param++) {
        is_found = find_in_param(model, param, name, key);
    }
    for (int state = 0; !is_found && state < lg_model_num_states(model); state++) {
        const struct tensor_key of_state = {LG_VALUE_STATE, state, 0};
        is_found = is_named(name, lg_model_state(model, state)->name, "");
        *key = is_found ? of_state : *key;
    }
    if (!is_found || place_of(trainer, key->kind, key->idx, key->slot)->owner_rank < 0) {
        LG_FAIL(LG_INVALID_ARG, "the model has no tensor '%s'", name);
    }
    return LG_OK;
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

lg_status lgi_trainer_read_value(const lg_trainer *trainer, int value_idx, float *elems)
{
    const struct prepared *main = trainer->main;
    const lg_value_info *value = lg_graph_value(main->lowered->graph, value_idx);
    const lg_shape shape = lgi_value_shape(lgi_trainer_model(trainer), value);
    return trainer->device->ops->read(
        trainer->device, &shape, value->layout,
        (char *)trainer->arena + main->plan->values[value_idx].offset_bytes[0], elems);
}

lg_status lgi_trainer_write_value(const lg_trainer *trainer, int value_idx, const float *elems)
{
    const struct prepared *main = trainer->main;
    const lg_value_info *value = lg_graph_value(main->lowered->graph, value_idx);
    const lg_shape shape = lgi_value_shape(lgi_trainer_model(trainer), value);
    return trainer->device->ops->write(
        trainer->device, &shape, value->layout,
        (char *)trainer->arena + main->plan->values[value_idx].offset_bytes[0], elems);
}

/* On rank 0, within a conversation. */
static lg_status fetch(lg_trainer *trainer, const struct tensor_key *key, float *elems)
{
    if (key->kind == LG_VALUE_STATE) {
        return lgi_trainer_fetch_mean_state(trainer, key->idx, elems);
    }
    return lgi_trainer_fetch(trainer, place_of(trainer, key->kind, key->idx, key->slot)->owner_rank,
                             key->kind, key->idx, key->slot, false, elems);
}

/* Sets this rank's copy, if it has one. */
static lg_status set_own(lg_trainer *trainer, const struct tensor_key *key, const float *elems)
{
    const int value = place_of(trainer, key->kind, key->idx, key->slot)->own_value;
    return value >= 0 ? lgi_trainer_write_value(trainer, value, elems) : LG_OK;
}

static lg_shape shape_of_key(const lg_trainer *trainer, const struct tensor_key *key)
{
    const lg_model *model = lgi_trainer_model(trainer);
    return key->kind == LG_VALUE_STATE ? lg_model_state(model, key->idx)->shape
                                       : lg_model_param(model, key->idx)->shape;
}

/* The tensor called `name`, ready for the host: of the right size, and nothing lags behind. */
static lg_status find_drained(lg_trainer *trainer, const char *name, int64_t num_elems,
                              struct tensor_key *key)
{
    LG_TRY(find_tensor(trainer, name, key));
    const lg_shape shape = shape_of_key(trainer, key);
    LG_TRY(check_num_elems(name, &shape, num_elems));
    return lg_trainer_drain(trainer);
}

struct reading {
    struct tensor_key key;
    float *elems;
};

static lg_status read_one(lg_trainer *trainer, void *user)
{
    const struct reading *reading = user;
    return fetch(trainer, &reading->key, reading->elems);
}

lg_status lg_trainer_read(lg_trainer *trainer, const char *name, float *elems, int64_t num_elems)
{
    struct reading reading = {.elems = elems};
    LG_TRY(find_drained(trainer, name, num_elems, &reading.key));
    LG_TRY(lgi_trainer_on_first_rank(trainer, read_one, &reading));
    return trainer->num_ranks > 1
               ? lgi_comm_broadcast(trainer->comm, 0, elems, num_elems * (int64_t)sizeof *elems)
               : LG_OK;
}

lg_status lg_trainer_write(lg_trainer *trainer, const char *name, const float *elems,
                           int64_t num_elems)
{
    struct tensor_key key = {LG_VALUE_PARAM, 0, 0};
    LG_TRY(find_drained(trainer, name, num_elems, &key));
    lgi_trainer_use_own_states(trainer);
    return lgi_trainer_note(trainer, set_own(trainer, &key, elems));
}

/* --- all of a kind --------------------------------------------------------------------------------------------------- */

/* What is done with each persistent tensor of a set. */
typedef lg_status (*tensor_fn)(lg_trainer *trainer, const struct tensor_key *key, const char *name,
                               const lg_shape *shape, void *user);

static lg_status with_key(lg_trainer *trainer, const struct tensor_key *key, tensor_fn fn,
                          void *user)
{
    const lg_model *model = lgi_trainer_model(trainer);
    const lg_shape shape = shape_of_key(trainer, key);
    char name[LG_MAX_TENSOR_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%s",
                   key->kind == LG_VALUE_STATE ? lg_model_state(model, key->idx)->name
                                               : lg_model_param(model, key->idx)->name,
                   key->kind != LG_VALUE_SLOT ? ""
                   : key->slot == 0           ? ".slot0"
                                              : ".slot1");
    return fn(trainer, key, name, &shape, user);
}

/* Calls `fn` for parameters and states, or for the optimizer's slots, in the order of their ids. */
static lg_status for_each_tensor(lg_trainer *trainer, bool is_slots, tensor_fn fn, void *user)
{
    const lg_model *model = lgi_trainer_model(trainer);
    const int num_slots = is_slots ? lg_optim_num_slots(&trainer->opts.optim) : 1;
    for (int param = 0; param < lg_model_num_params(model); param++) {
        for (int slot = 0; slot < num_slots; slot++) {
            const struct tensor_key key = {is_slots ? LG_VALUE_SLOT : LG_VALUE_PARAM, param, slot};
            LG_TRY(with_key(trainer, &key, fn, user));
        }
    }
    for (int state = 0; !is_slots && state < lg_model_num_states(model); state++) {
        const struct tensor_key key = {LG_VALUE_STATE, state, 0};
        LG_TRY(with_key(trainer, &key, fn, user));
    }
    return LG_OK;
}

static lg_status hash_tensor(lg_trainer *trainer, const struct tensor_key *key, const char *name,
                             const lg_shape *shape, void *user)
{
    float *elems = NULL;
    LG_TRY(lgi_calloc(&elems, (size_t)lg_shape_num_elems(shape), sizeof *elems));
    const lg_status status = fetch(trainer, key, elems);
    if (status == LG_OK) {
        lg_weights_hasher_add(user, name, shape, elems);
    }
    lgi_free(elems);
    return status;
}

static lg_status hash_all(lg_trainer *trainer, void *user)
{
    lg_weights_hasher *hasher = NULL;
    LG_TRY(lg_weights_hasher_create(&hasher));
    const lg_status status = for_each_tensor(trainer, false, hash_tensor, hasher);
    lg_weights_hasher_format(hasher, user);
    lg_weights_hasher_destroy(hasher);
    return status;
}

/* Replicas must have the same bits: each rank's parameters are held against those of the same rank of replica 0. */
static lg_status check_replicas(lg_trainer *trainer)
{
    const lg_graph *graph = trainer->main->lowered->graph;
    const size_t num_ranks = (size_t)trainer->num_ranks;
    uint64_t own = 0;
    uint64_t *all = NULL;
    LG_TRY(lgi_calloc(&all, num_ranks, sizeof *all));
    for (int param = 0; param < lg_model_num_params(lgi_trainer_model(trainer)); param++) {
        const int value = trainer->params[param].own_value;
        if (value >= 0) {
            own = XXH64((const char *)trainer->arena +
                            trainer->main->plan->values[value].offset_bytes[0],
                        (size_t)lg_graph_value(graph, value)->bytes, own);
        }
    }
    lg_status status = lgi_comm_all_gather(trainer->comm, &own, sizeof own, all);
    for (int rank = 0; status == LG_OK && rank < trainer->num_ranks; rank++) {
        if (all[rank] != all[rank % trainer->num_pipeline_ranks]) {
            status = lgi_fail(LG_INTERNAL,
                              "the weights of ranks %d and %d, which are replicas, "
                              "are not the same",
                              rank % trainer->num_pipeline_ranks, rank);
        }
    }
    lgi_free(all);
    return status;
}

lg_status lg_trainer_weights_hash(lg_trainer *trainer, char text[LG_WEIGHTS_HASH_CHARS])
{
    LG_TRY(lg_trainer_drain(trainer));
    if (trainer->num_replicas > 1) {
        LG_TRY(check_replicas(trainer));
    }
    LG_TRY(lgi_trainer_on_first_rank(trainer, hash_all, text));
    return trainer->num_ranks > 1
               ? lgi_comm_broadcast(trainer->comm, 0, text, LG_WEIGHTS_HASH_CHARS)
               : LG_OK;
}

/* --- checkpoints ------------------------------------------------------------------------------------------------------ */

/* On rank 0, within a conversation. */
static lg_status fill_tensor(void *user, const char *name, void *dst, size_t num_bytes)
{
    lg_trainer *trainer = user;
    struct tensor_key key = {LG_VALUE_PARAM, 0, 0};
    (void)num_bytes;
    LG_TRY(find_tensor(trainer, name, &key));
    return fetch(trainer, &key, dst);
}

static lg_status add_to_writer(lg_trainer *trainer, const struct tensor_key *key, const char *name,
                               const lg_shape *shape, void *user)
{
    (void)key;
    return lg_tensor_writer_add_filled(user, name, LG_FILE_DTYPE_F32, shape, fill_tensor, trainer);
}

struct saving {
    const char *root;
    lg_checkpoint_info info;
    int num_keep;
};

static lg_status save_all(lg_trainer *trainer, void *user)
{
    const struct saving *saving = user;
    lg_status status = LG_OK;
    lg_tensor_writer *model = NULL;
    lg_tensor_writer *slots = NULL;
    LG_TRY_GOTO(lg_tensor_writer_create(&model));
    LG_TRY_GOTO(lg_tensor_writer_create(&slots));
    LG_TRY_GOTO(for_each_tensor(trainer, false, add_to_writer, model));
    LG_TRY_GOTO(for_each_tensor(trainer, true, add_to_writer, slots));
    LG_TRY_GOTO(lgi_trainer_save_rates(trainer, slots));
    LG_TRY_GOTO(lgi_trainer_save_replica_states(trainer, slots));
    const bool has_slots = lg_optim_num_slots(&trainer->opts.optim) > 0 ||
                           lg_trainer_has_rates(trainer) || lgi_trainer_has_replica_states(trainer);
    LG_TRY_GOTO(lg_checkpoint_save(saving->root, model, has_slots ? slots : NULL, &saving->info,
                                   saving->num_keep, NULL, 0));
out:
    lg_tensor_writer_destroy(model);
    lg_tensor_writer_destroy(slots);
    return status;
}

lg_status lg_trainer_save(lg_trainer *trainer, const char *root, const char *recipe_json,
                          const char *extra_json, int num_keep)
{
    char hash[LG_WEIGHTS_HASH_CHARS];
    LG_TRY(lg_trainer_weights_hash(trainer, hash));
    LG_TRY(lgi_trainer_gather_rates(trainer));
    const lg_checkpoint_info info = {trainer->next_step, (int64_t)trainer->opts.seed, recipe_json,
                                     hash, extra_json};
    struct saving saving = {root, info, num_keep};
    return lgi_trainer_on_first_rank(trainer, save_all, &saving);
}

/*
 * Loading goes in two passes: the first reads and checks everything, on rank 0; the second reads again, sends and writes. So a
 * checkpoint that is not right changes nothing.
 */
struct loading {
    const lg_checkpoint *checkpoint; /* NULL on other ranks */
    const lg_tensor_file *file;
    bool has_slots;
    bool weights_only;
    int64_t step;
};

static lg_status check_tensor(lg_trainer *trainer, const struct tensor_key *key, const char *name,
                              const lg_shape *shape, void *user)
{
    const struct loading *loading = user;
    float *elems = NULL;
    (void)trainer;
    (void)key;
    LG_TRY(lgi_calloc(&elems, (size_t)lg_shape_num_elems(shape), sizeof *elems));
    const lg_status status =
        lg_tensor_file_read(loading->file, name, LG_FILE_DTYPE_F32, shape, elems);
    lgi_free(elems);
    return status;
}

static lg_status check_checkpoint(lg_trainer *trainer, void *user)
{
    struct loading *loading = user;
    const lg_tensor_file *optimizer = lg_checkpoint_optimizer(loading->checkpoint);
    if (loading->has_slots && optimizer == NULL) {
        LG_FAIL(LG_INVALID_ARG, "checkpoint '%s' has no optimizer tensors, which %s needs to go on",
                lg_checkpoint_path(loading->checkpoint),
                lg_optim_rule_name(trainer->opts.optim.rule));
    }
    loading->file = lg_checkpoint_model(loading->checkpoint);
    loading->step = lg_checkpoint_about(loading->checkpoint)->step;
    LG_TRY(for_each_tensor(trainer, false, check_tensor, loading));
    if (loading->has_slots) {
        loading->file = optimizer;
        LG_TRY(for_each_tensor(trainer, true, check_tensor, loading));
        LG_TRY(lgi_trainer_check_rates(trainer, optimizer));
    }
    return LG_OK;
}

static lg_status load_tensor(lg_trainer *trainer, const struct tensor_key *key, const char *name,
                             const lg_shape *shape, void *user)
{
    const struct loading *loading = user;
    const size_t num_elems = (size_t)lg_shape_num_elems(shape);
    float *elems = NULL;
    lg_status status = LG_OK;
    LG_TRY(lgi_calloc(&elems, num_elems, sizeof *elems));
    if (trainer->rank == 0) {
        LG_TRY_GOTO(lg_tensor_file_read(loading->file, name, LG_FILE_DTYPE_F32, shape, elems));
    }
    if (trainer->num_ranks > 1) {
        LG_TRY_GOTO(
            lgi_comm_broadcast(trainer->comm, 0, elems, (int64_t)(num_elems * sizeof *elems)));
    }
    LG_TRY_GOTO(set_own(trainer, key, elems));
out:
    lgi_free(elems);
    return status;
}

static lg_status load_all(lg_trainer *trainer, struct loading *loading)
{
    const bool is_first = trainer->rank == 0;
    const lg_tensor_file *optimizer =
        is_first ? lg_checkpoint_optimizer(loading->checkpoint) : NULL;
    loading->file = is_first ? lg_checkpoint_model(loading->checkpoint) : NULL;
    LG_TRY(for_each_tensor(trainer, false, load_tensor, loading));
    if (loading->has_slots) {
        loading->file = optimizer;
        LG_TRY(for_each_tensor(trainer, true, load_tensor, loading));
        LG_TRY(lgi_trainer_load_rates(trainer, optimizer));
    }
    return loading->weights_only ? LG_OK : lgi_trainer_load_replica_states(trainer, optimizer);
}

static lg_status check_arena(const lg_trainer *trainer)
{
    if (trainer->arena == NULL) {
        LG_FAIL(LG_OUT_OF_MEMORY, "the trainer lost its memory when it asked for more");
    }
    return LG_OK;
}

lg_status lg_trainer_load(lg_trainer *trainer, const lg_checkpoint *checkpoint, bool weights_only)
{
    struct loading loading = {.checkpoint = checkpoint, .weights_only = weights_only};
    loading.has_slots = !weights_only && (lg_optim_num_slots(&trainer->opts.optim) > 0 ||
                                          lg_trainer_has_rates(trainer));
    LG_TRY(lgi_trainer_note(trainer, check_arena(trainer)));
    if (trainer->has_half_step && !weights_only) {
        trainer->current = NULL; /* nothing of the failed step is used again */
    } else {
        LG_TRY(lg_trainer_drain(trainer));
    }
    LG_TRY(lgi_trainer_on_first_rank(trainer, check_checkpoint, &loading));
    if (trainer->num_ranks > 1) {
        LG_TRY(lgi_comm_broadcast(trainer->comm, 0, &loading.step, sizeof loading.step));
    }
    lgi_trainer_use_own_states(trainer);
    LG_TRY(lgi_trainer_note(trainer, load_all(trainer, &loading)));
    if (!weights_only) {
        trainer->next_step = loading.step;
        trainer->current = NULL;
        trainer->has_half_step = false;
    }
    return LG_OK;
}
