/*
 * Collectives for the host. They move little, or rarely: plain loops over the ranks, with all messages of a rank under way at
 * once; broadcast goes down a binary tree.
 */
#include "comm/collectives.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/messages.h"

static lgi_message host_message(bool is_send, int peer, const void *data, int64_t num_bytes)
{
    return (lgi_message){.is_send = is_send,
                         .peer = peer,
                         .channel = LGI_CHANNEL_HOST,
                         .data = (void *)(uintptr_t)data, /* a send only reads it */
                         .num_bytes = num_bytes};
}

static lg_status transfer(lg_comm *comm, bool is_send, int peer, const void *data,
                          int64_t num_bytes)
{
    lgi_message message = host_message(is_send, peer, data, num_bytes);
    lgi_comm_post(comm, &message);
    return lgi_comm_wait(comm, &message);
}

/* Waits for all, whatever happens: their memory is about to go. */
static lg_status wait_all(lg_comm *comm, lgi_message *messages, int num_messages)
{
    lg_status status = LG_OK;
    for (int i = 0; i < num_messages; i++) {
        LG_KEEP_FIRST(lgi_comm_wait(comm, &messages[i]));
    }
    return status;
}

lg_status lgi_comm_broadcast(lg_comm *comm, int root, void *data, int64_t num_bytes)
{
    const int num_ranks = lg_comm_num_ranks(comm);
    const int place = (lg_comm_rank(comm) - root + num_ranks) % num_ranks;
    if (place > 0) {
        LG_TRY(transfer(comm, false, ((place - 1) / 2 + root) % num_ranks, data, num_bytes));
    }
    lgi_message messages[2];
    int num_messages = 0;
    for (int child = 2 * place + 1; child <= 2 * place + 2 && child < num_ranks; child++) {
        lgi_message *message = &messages[num_messages++];
        *message = host_message(true, (child + root) % num_ranks, data, num_bytes);
        lgi_comm_post(comm, message);
    }
    return wait_all(comm, messages, num_messages);
}

lg_status lgi_comm_gather(lg_comm *comm, int root, const void *own, int64_t num_bytes, void *all)
{
    const int rank = lg_comm_rank(comm);
    const int num_ranks = lg_comm_num_ranks(comm);
    if (rank != root) {
        return transfer(comm, true, root, own, num_bytes);
    }
    lgi_message *messages = NULL;
    LG_TRY(lgi_calloc(&messages, (size_t)num_ranks, sizeof *messages));
    int num_messages = 0;
    for (int peer = 0; peer < num_ranks; peer++) {
        char *part = (char *)all + peer * num_bytes;
        if (peer != rank) {
            lgi_message *message = &messages[num_messages++];
            *message = host_message(false, peer, part, num_bytes);
            lgi_comm_post(comm, message);
        } else if (num_bytes > 0) {
            memmove(part, own, (size_t)num_bytes);
        }
    }
    const lg_status status = wait_all(comm, messages, num_messages);
    lgi_free(messages);
    return status;
}

lg_status lgi_comm_all_gather(lg_comm *comm, const void *own, int64_t num_bytes, void *all)
{
    LG_TRY(lgi_comm_gather(comm, 0, own, num_bytes, all));
    return lgi_comm_broadcast(comm, 0, all, num_bytes * lg_comm_num_ranks(comm));
}

lg_status lgi_comm_barrier(lg_comm *comm)
{
    char nothing = 0;
    LG_TRY(lgi_comm_gather(comm, 0, &nothing, 0, &nothing));
    return lgi_comm_broadcast(comm, 0, &nothing, 0);
}
