/*
 * What leapgrad asks of an MPI. Behind it stands a loadable module for each MPI (module/mpi_module.c, compiled against its mpi.h),
 * so that one program runs under any of them and needs none to start. Plain C types only; the module calls nothing back.
 *
 * One thread makes all calls. Messages are between ranks of two worlds that do not see each other's messages.
 */
#ifndef LGI_COMM_MPI_MPI_MODULE_H
#define LGI_COMM_MPI_MPI_MODULE_H

#include <stdbool.h>
#include <stdint.h>

/* Counts up with each change of what is below. */
#define LGI_MPI_MODULE_VERSION 1

typedef enum lgi_mpi_world { LGI_MPI_DATA, LGI_MPI_CONTROL, LGI_NUM_MPI_WORLDS } lgi_mpi_world;

typedef struct lgi_mpi_place {
    int rank;
    int num_ranks;
    char name[80]; /* "Open MPI 4.1.4" */
} lgi_mpi_place;

/* An end of something that start() began. */
typedef struct lgi_mpi_done {
    lgi_mpi_world world;
    bool is_send;
    void *user;         /* of start() */
    int num_bytes;      /* received */
    bool was_truncated; /* more was sent than there was room for */
    int error;          /* MPI's, 0: none */
} lgi_mpi_done;

typedef struct lgi_mpi_module {
    int version; /* LGI_MPI_MODULE_VERSION; the only field that may be looked at if it is another one */
    /* MPI_Init and what goes with it. Functions that return int return MPI's error, 0: none. */
    int (*open)(lgi_mpi_place *out);
    /* Begins a send or receive; peer -1: from any. */
    int (*start)(lgi_mpi_world world, bool is_send, int peer, int tag, void *data, int num_bytes,
                 void *user);
    /* What has ended since the last call: sets *out to an array that is valid until the next call; returns its length, or -1
       with *error set. */
    int (*test)(const lgi_mpi_done **out, int *error);
    /* A barrier of the control world, once; its end comes from test() with `user` NULL. */
    int (*start_barrier)(void);
    /* Cancels what is still awaited and shuts MPI down. */
    int (*close)(void);
    void (*error_text)(int error, char *text, int num_bytes);
} lgi_mpi_module;

/* The one symbol of a module. */
#define LGI_MPI_MODULE_SYMBOL "leapgrad_mpi_module"
typedef const lgi_mpi_module *(*lgi_mpi_module_function)(void);

#endif
