/*
 * The module for one MPI. Keeps a list of what was started; test() asks MPI for what has ended and takes it off the list, which
 * stays in the order in which things were started.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_module.h"

#define MODULE_API __attribute__((visibility("default")))

typedef struct pending {
    lgi_mpi_world world;
    bool is_send;
    void *user;
} pending;

/* All of it belongs to the thread that makes the calls. */
static _Thread_local MPI_Comm worlds[LGI_NUM_MPI_WORLDS];
static _Thread_local bool is_mine; /* MPI was not started by somebody else */

/* Parallel arrays, num_pending of `capacity`. */
static _Thread_local MPI_Request *requests;
static _Thread_local pending *pendings;
static _Thread_local MPI_Status *statuses;
static _Thread_local int *indices;
static _Thread_local lgi_mpi_done *ended;
static _Thread_local int num_pending;
static _Thread_local int capacity;

/* "Open MPI v4.1.4, package: ..." and "MPICH Version: 4.0.2\n..." come down to name and number. */
static void read_name(char *name, size_t num_bytes)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    (void)MPI_Get_library_version(text, &length);
    const char *number = strpbrk(text, "0123456789");
    const char *kind = strncmp(text, "Open MPI", 8) == 0 ? "Open MPI"
                       : strncmp(text, "MPICH", 5) == 0  ? "MPICH"
                                                         : "MPI";
    (void)snprintf(name, num_bytes, "%s %.*s", kind,
                   number != NULL ? (int)strspn(number, "0123456789.") : 0,
                   number != NULL ? number : "");
}

static int module_open(lgi_mpi_place *out)
{
    int is_started = 0;
    int level = 0;
    int error = MPI_Initialized(&is_started);
    if (error == MPI_SUCCESS && !is_started) {
        error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        is_mine = error == MPI_SUCCESS;
        if (error == MPI_SUCCESS) {
            /* Errors of calls that concern several communicators go to this one's handler. */
            error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        }
    }
    if (error == MPI_SUCCESS && !is_mine) {
        error = MPI_Query_thread(&level);
    }
    if (error == MPI_SUCCESS && level < (is_mine ? MPI_THREAD_FUNNELED : MPI_THREAD_SERIALIZED)) {
        error = MPI_ERR_UNSUPPORTED_OPERATION; /* the thread that calls is not the main one */
    }
    if (error != MPI_SUCCESS) {
        return error;
    }
    for (int world = 0; world < LGI_NUM_MPI_WORLDS && error == MPI_SUCCESS; world++) {
        error = MPI_Comm_dup(MPI_COMM_WORLD, &worlds[world]);
        if (error == MPI_SUCCESS) {
            error = MPI_Comm_set_errhandler(worlds[world], MPI_ERRORS_RETURN);
        }
    }
    if (error != MPI_SUCCESS) {
        return error;
    }
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &out->rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &out->num_ranks);
    read_name(out->name, sizeof out->name);
    return 0;
}

static bool grow(void *array, size_t item_bytes, int count)
{
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = realloc(old, item_bytes * (size_t)count);
    if (grown == NULL) {
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    return true;
}

static int make_room(void)
{
    if (num_pending < capacity) {
        return MPI_SUCCESS;
    }
    const int wanted = capacity == 0 ? 64 : 2 * capacity;
    if (!grow(&requests, sizeof *requests, wanted) || !grow(&pendings, sizeof *pendings, wanted) ||
        !grow(&statuses, sizeof *statuses, wanted) || !grow(&indices, sizeof *indices, wanted) ||
        !grow(&ended, sizeof *ended, wanted)) {
        return MPI_ERR_NO_MEM;
    }
    capacity = wanted;
    return MPI_SUCCESS;
}

static int module_start(lgi_mpi_world world, bool is_send, int peer, int tag, void *data,
                        int num_bytes, void *user)
{
    int error = make_room();
    if (error != MPI_SUCCESS) {
        return error;
    }
    MPI_Request *request = &requests[num_pending];
    const int rank = peer < 0 ? MPI_ANY_SOURCE : peer;
    if (!is_send) {
        error = MPI_Irecv(data, num_bytes, MPI_BYTE, rank, tag, worlds[world], request);
    } else if (world == LGI_MPI_DATA) { /* ends when the receive is there: plans count on it */
        error = MPI_Issend(data, num_bytes, MPI_BYTE, rank, tag, worlds[world], request);
    } else {
        error = MPI_Isend(data, num_bytes, MPI_BYTE, rank, tag, worlds[world], request);
    }
    if (error == MPI_SUCCESS) {
        pendings[num_pending++] = (pending){world, is_send, user};
    }
    return error;
}

static int module_start_barrier(void)
{
    int error = make_room();
    if (error == MPI_SUCCESS) {
        error = MPI_Ibarrier(worlds[LGI_MPI_CONTROL], &requests[num_pending]);
    }
    if (error == MPI_SUCCESS) {
        pendings[num_pending++] = (pending){LGI_MPI_CONTROL, true, NULL};
    }
    return error;
}

static lgi_mpi_done make_done(int index, const MPI_Status *status, int error)
{
    const pending *p = &pendings[index];
    lgi_mpi_done done = {.world = p->world, .is_send = p->is_send, .user = p->user};
    int error_class = MPI_SUCCESS;
    if (error != MPI_SUCCESS) {
        (void)MPI_Error_class(error, &error_class);
    }
    done.was_truncated = error_class == MPI_ERR_TRUNCATE;
    done.error = done.was_truncated ? 0 : error;
    if (error == MPI_SUCCESS && !p->is_send) {
        (void)MPI_Get_count(status, MPI_BYTE, &done.num_bytes);
    }
    return done;
}

static int module_test(const lgi_mpi_done **out, int *error)
{
    int num_ended = 0;
    *out = ended;
    *error = MPI_SUCCESS;
    if (num_pending == 0) {
        return 0;
    }
    const int result = MPI_Testsome(num_pending, requests, &num_ended, indices, statuses);
    if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) {
        int result_class = MPI_SUCCESS;
        (void)MPI_Error_class(result, &result_class);
        if (result_class != MPI_ERR_IN_STATUS) {
            *error = result;
            return -1;
        }
    }
    if (num_ended == MPI_UNDEFINED || num_ended <= 0) {
        return 0;
    }
    for (int i = 0; i < num_ended; i++) {
        const int one = result == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR;
        ended[i] = make_done(indices[i], &statuses[i], one);
    }
    /* MPI has set the requests that ended to null. */
    int num_left = 0;
    for (int i = 0; i < num_pending; i++) {
        if (requests[i] != MPI_REQUEST_NULL) {
            requests[num_left] = requests[i];
            pendings[num_left++] = pendings[i];
        }
    }
    num_pending = num_left;
    return num_ended;
}

static int module_close(void)
{
    for (int i = 0; i < num_pending; i++) {
        if (!pendings[i].is_send) {
            (void)MPI_Cancel(&requests[i]);
            (void)MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        } else {
            (void)MPI_Request_free(&requests[i]);
        }
    }
    num_pending = 0;
    for (int world = 0; world < LGI_NUM_MPI_WORLDS; world++) {
        (void)MPI_Comm_free(&worlds[world]);
    }
    free(requests);
    free(pendings);
    free(statuses);
    free(indices);
    free(ended);
    return is_mine ? MPI_Finalize() : MPI_SUCCESS;
}

static void module_error_text(int error, char *text, int num_bytes)
{
    char own[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    (void)MPI_Error_string(error, own, &length);
    (void)snprintf(text, (size_t)num_bytes, "%s", own);
}

MODULE_API const lgi_mpi_module *leapgrad_mpi_module(void);

const lgi_mpi_module *leapgrad_mpi_module(void)
{
    static const lgi_mpi_module module = {
        .version = LGI_MPI_MODULE_VERSION,
        .open = module_open,
        .start = module_start,
        .test = module_test,
        .start_barrier = module_start_barrier,
        .close = module_close,
        .error_text = module_error_text,
    };
    return &module;
}
