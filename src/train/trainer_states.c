/*
 * Running statistics over replicas. Each replica keeps its own, of its own micro-batches; the world sees their mean, added up in
 * f64 in the order of replicas. For evaluation the means take the place of the own ones in the arena, until the next step.
 * Checkpoints have the mean where a model's state is looked for, and each replica's own beside the optimizer's tensors
 * ("NAME.replica0").
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "train/trainer_internal.h"

bool lgi_trainer_has_replica_states(const lg_trainer *trainer)
{
    return trainer->num_replicas > 1 && lg_model_num_states(lgi_trainer_model(trainer)) > 0;
}

static const lg_value_info *value_of(const lg_trainer *trainer, int state)
{
    return lg_graph_value(trainer->main->lowered->graph, trainer->states[state].owner_value);
}

static char *in_arena(const lg_trainer *trainer, int value)
{
    return (char *)trainer->arena + trainer->main->plan->values[value].offset_bytes[0];
}

/* Where a rank's own state lies among the kept ones: they stand in the order of their ids, all of them. */
static int64_t kept_offset(const lg_trainer *trainer, int state)
{
    int64_t offset_bytes = 0;
    for (int i = 0; i < state; i++) {
        offset_bytes += value_of(trainer, i)->bytes;
    }
    return offset_bytes;
}

const char *lgi_trainer_own_state(const lg_trainer *trainer, int value)
{
    const int state = lg_graph_value(trainer->main->lowered->graph, value)->idx;
    return trainer->has_mean_states ? trainer->own_states + kept_offset(trainer, state)
                                    : in_arena(trainer, value);
}

/* --- the mean ---------------------------------------------------------------------------------------------------------- */

/* `sum`: f64 by element; what is stored are f32 or f64 numbers, row-major. */
static void add_stored(double *sum, const void *stored, int64_t num_elems, size_t real_bytes)
{
    for (int64_t i = 0; i < num_elems; i++) {
        sum[i] +=
            real_bytes == sizeof(double) ? ((const double *)stored)[i] : ((const float *)stored)[i];
    }
}

static void store_mean(void *stored, const double *sum, int64_t num_elems, size_t real_bytes,
                       int num_replicas)
{
    for (int64_t i = 0; i < num_elems; i++) {
        const double mean = sum[i] / num_replicas;
        if (real_bytes == sizeof(double)) {
            ((double *)stored)[i] = mean;
        } else {
            ((float *)stored)[i] = (float)mean;
        }
    }
}

/* The mean as it would be stored, on rank 0. */
static lg_status fetch_mean(lg_trainer *trainer, int state, void *stored)
{
    const size_t real_bytes = trainer->device->ops->real_bytes;
    const int64_t num_elems = value_of(trainer, state)->bytes / (int64_t)real_bytes;
    lg_status status = LG_OK;
    double *sum = NULL;
    LG_TRY(lgi_calloc(&sum, (size_t)num_elems, sizeof *sum));
    for (int replica = 0; replica < trainer->num_replicas; replica++) {
        const int rank = trainer->states[state].owner_rank + replica * trainer->num_pipeline_ranks;
        LG_TRY_GOTO(lgi_trainer_fetch(trainer, rank, LG_VALUE_STATE, state, 0, true, stored));
        add_stored(sum, stored, num_elems, real_bytes);
    }
    if (trainer->num_replicas > 1) {
        store_mean(stored, sum, num_elems, real_bytes, trainer->num_replicas);
    }
out:
    lgi_free(sum);
    return status;
}

lg_status lgi_trainer_fetch_mean_state(lg_trainer *trainer, int state, float *elems)
{
    const lg_value_info *value = value_of(trainer, state);
    const lg_shape shape = lgi_value_shape(lgi_trainer_model(trainer), value);
    void *stored = NULL;
    LG_TRY(lgi_calloc(&stored, (size_t)value->bytes, 1));
    lg_status status = fetch_mean(trainer, state, stored);
    if (status == LG_OK) {
        status = trainer->device->ops->read(trainer->device, &shape, value->layout, stored, elems);
    }
    lgi_free(stored);
    return status;
}

static lg_status fetch_all_means(lg_trainer *trainer, void *user)
{
    char *means = user;
    for (int state = 0; state < lg_model_num_states(lgi_trainer_model(trainer)); state++) {
        LG_TRY(fetch_mean(trainer, state, means + kept_offset(trainer, state)));
    }
    return LG_OK;
}

lg_status lgi_trainer_use_mean_states(lg_trainer *trainer)
{
    const int num_states = lg_model_num_states(lgi_trainer_model(trainer));
    lg_status status = LG_OK;
    char *means = NULL;
    if (!lgi_trainer_has_replica_states(trainer) || trainer->has_mean_states) {
        return LG_OK;
    }
    const int64_t num_bytes = kept_offset(trainer, num_states);
    LG_TRY_GOTO(lgi_calloc(&means, (size_t)num_bytes, 1));
    if (trainer->own_states == NULL) {
        LG_TRY_GOTO(lgi_calloc(&trainer->own_states, (size_t)num_bytes, 1));
    }
    LG_TRY_GOTO(lgi_trainer_on_first_rank(trainer, fetch_all_means, means));
    LG_TRY_GOTO(lgi_comm_broadcast(trainer->comm, 0, means, num_bytes));
    for (int state = 0; state < num_states; state++) {
        const int value = trainer->states[state].own_value;
        const int64_t offset_bytes = kept_offset(trainer, state);
        if (value >= 0) {
            const size_t bytes = (size_t)value_of(trainer, state)->bytes;
            memcpy(trainer->own_states + offset_bytes, in_arena(trainer, value), bytes);
            memcpy(in_arena(trainer, value), means + offset_bytes, bytes);
        }
    }
    trainer->has_mean_states = true;
out:
    lgi_free(means);
    return status;
}

void lgi_trainer_use_own_states(lg_trainer *trainer)
{
    const int num_states = lg_model_num_states(lgi_trainer_model(trainer));
    for (int state = 0; trainer->has_mean_states && state < num_states; state++) {
        const int value = trainer->states[state].own_value;
        if (value >= 0) {
            memcpy(in_arena(trainer, value), trainer->own_states + kept_offset(trainer, state),
                   (size_t)value_of(trainer, state)->bytes);
        }
    }
    trainer->has_mean_states = false;
}

/* --- checkpoints -------------------------------------------------------------------------------------------------------- */

static void format_name(const lg_trainer *trainer, int state, int replica, char *name,
                        size_t num_bytes)
{
    (void)snprintf(name, num_bytes, "%s.replica%d",
                   lg_model_state(lgi_trainer_model(trainer), state)->name, replica);
}

/* `name`: "STATE.replicaN". Called on rank 0. */
static lg_status fill_state(void *user, const char *name, void *dst, size_t num_bytes)
{
    lg_trainer *trainer = user;
    char own[LG_MAX_TENSOR_NAME_BYTES];
    (void)num_bytes;
    for (int state = 0; state < lg_model_num_states(lgi_trainer_model(trainer)); state++) {
        for (int replica = 0; replica < trainer->num_replicas; replica++) {
            format_name(trainer, state, replica, own, sizeof own);
            if (strcmp(own, name) == 0) {
                return lgi_trainer_fetch(trainer,
                                         trainer->states[state].owner_rank +
                                             replica * trainer->num_pipeline_ranks,
                                         LG_VALUE_STATE, state, 0, false, dst);
            }
        }
    }
    LG_FAIL(LG_INTERNAL, "no state is called '%s'", name);
}

lg_status lgi_trainer_save_replica_states(lg_trainer *trainer, lg_tensor_writer *writer)
{
    const lg_model *model = lgi_trainer_model(trainer);
    char name[LG_MAX_TENSOR_NAME_BYTES];
    if (!lgi_trainer_has_replica_states(trainer)) {
        return LG_OK;
    }
    for (int state = 0; state < lg_model_num_states(model); state++) {
        for (int replica = 0; replica < trainer->num_replicas; replica++) {
            format_name(trainer, state, replica, name, sizeof name);
            LG_TRY(lg_tensor_writer_add_filled(writer, name, LG_FILE_DTYPE_F32,
                                               &lg_model_state(model, state)->shape, fill_state,
                                               trainer));
        }
    }
    return LG_OK;
}

/* Whether the file has the states of just these replicas. */
static bool has_states_of_replicas(const lg_trainer *trainer, const lg_tensor_file *file)
{
    char name[LG_MAX_TENSOR_NAME_BYTES];
    format_name(trainer, 0, trainer->num_replicas, name, sizeof name);
    bool has_all = file != NULL && lg_tensor_file_find(file, name) < 0;
    for (int replica = 0; has_all && replica < trainer->num_replicas; replica++) {
        format_name(trainer, 0, replica, name, sizeof name);
        has_all = lg_tensor_file_find(file, name) >= 0;
    }
    return has_all;
}

/* Reads all, on rank 0: [replica][state]. */
static lg_status read_all(const lg_trainer *trainer, const lg_tensor_file *file, float *elems)
{
    const lg_model *model = lgi_trainer_model(trainer);
    char name[LG_MAX_TENSOR_NAME_BYTES];
    for (int replica = 0; replica < trainer->num_replicas; replica++) {
        for (int state = 0; state < lg_model_num_states(model); state++) {
            const lg_shape *shape = &lg_model_state(model, state)->shape;
            format_name(trainer, state, replica, name, sizeof name);
            LG_TRY(lg_tensor_file_read(file, name, LG_FILE_DTYPE_F32, shape, elems));
            elems += lg_shape_num_elems(shape);
        }
    }
    return LG_OK;
}

lg_status lgi_trainer_load_replica_states(lg_trainer *trainer, const lg_tensor_file *file)
{
    const lg_model *model = lgi_trainer_model(trainer);
    lg_status status = LG_OK;
    int64_t num_elems = 0;
    float *elems = NULL;
    int32_t has_own = 0;
    if (!lgi_trainer_has_replica_states(trainer)) {
        return LG_OK;
    }
    for (int state = 0; state < lg_model_num_states(model); state++) {
        num_elems += lg_shape_num_elems(&lg_model_state(model, state)->shape);
    }
    LG_TRY(lgi_calloc(&elems, (size_t)(num_elems * trainer->num_replicas), sizeof *elems));
    if (trainer->rank == 0 && has_states_of_replicas(trainer, file)) {
        status = read_all(trainer, file, elems);
        has_own = status == LG_OK ? 1 : 0;
    }
    LG_TRY_GOTO(lgi_trainer_note(trainer, status));
    LG_TRY_GOTO(lgi_comm_broadcast(trainer->comm, 0, &has_own, sizeof has_own));
    if (has_own == 0) {
        goto out;
    }
    LG_TRY_GOTO(lgi_comm_broadcast(trainer->comm, 0, elems,
                                   num_elems * trainer->num_replicas * (int64_t)sizeof *elems));
    const float *own = elems + num_elems * (trainer->rank / trainer->num_pipeline_ranks);
    for (int state = 0; state < lg_model_num_states(model); state++) {
        if (trainer->states[state].own_value >= 0) {
            LG_TRY_GOTO(lgi_trainer_write_value(trainer, trainer->states[state].own_value, own));
        }
        own += lg_shape_num_elems(&lg_model_state(model, state)->shape);
    }
out:
    lgi_free(elems);
    return status;
}
