/*
 * Whether all ranks have the same text. Rank 0's goes to all; each compares, and the verdicts come back to all: exact, and what
 * differs can be named, at the price of one broadcast at the start of a run.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "comm/messages.h"

#define LINE_BYTES 160

/* Of one rank: where its text and rank 0's part. */
typedef struct verdict {
    int64_t line_number; /* from 1; 0: nowhere */
    char own[LINE_BYTES];
    char first[LINE_BYTES];
} verdict;

static void copy_line(char out[LINE_BYTES], const char *text)
{
    if (*text == '\0') {
        (void)snprintf(out, LINE_BYTES, "nothing");
        return;
    }
    const int length = (int)strcspn(text, "\n");
    (void)snprintf(out, LINE_BYTES, "'%.*s'", length < LINE_BYTES - 3 ? length : LINE_BYTES - 3,
                   text);
}

static verdict compare(const char *own, const char *first)
{
    verdict result = {0};
    if (strcmp(own, first) == 0) {
        return result;
    }
    size_t line_start = 0;
    result.line_number = 1;
    for (size_t i = 0; own[i] == first[i]; i++) {
        if (own[i] == '\n') {
            result.line_number++;
            line_start = i + 1;
        }
    }
    copy_line(result.own, own + line_start);
    copy_line(result.first, first + line_start);
    return result;
}

lg_status lgi_comm_agree(lg_comm *comm, const char *what, const char *text)
{
    const int num_ranks = lg_comm_num_ranks(comm);
    lg_status status = LG_OK;
    char *first = NULL;
    verdict *verdicts = NULL;
    int64_t num_bytes = (int64_t)strlen(text) + 1;
    LG_TRY(lgi_comm_broadcast(comm, 0, &num_bytes, sizeof num_bytes));
    status = lgi_calloc(&first, (size_t)num_bytes, 1);
    if (status == LG_OK) {
        status = lgi_calloc(&verdicts, (size_t)num_ranks, sizeof *verdicts);
    }
    if (status != LG_OK) {
        lgi_comm_fail(comm, status, lg_last_error()); /* the others would wait for this rank */
        goto out;
    }
    if (lg_comm_rank(comm) == 0) {
        memcpy(first, text, (size_t)num_bytes);
    }
    LG_TRY_GOTO(lgi_comm_broadcast(comm, 0, first, num_bytes));
    first[num_bytes - 1] = '\0';
    const verdict own = compare(text, first);
    LG_TRY_GOTO(lgi_comm_all_gather(comm, &own, sizeof own, verdicts));
    for (int rank = 0; rank < num_ranks; rank++) {
        verdict *found = &verdicts[rank];
        if (found->line_number != 0) {
            found->own[LINE_BYTES - 1] = found->first[LINE_BYTES - 1] = '\0';
            status = lgi_fail(LG_INVALID_ARG,
                              "%s of rank %d is not that of rank 0: line %lld is %s, on rank 0 %s",
                              what, rank, (long long)found->line_number, found->own, found->first);
            break;
        }
    }
out:
    lgi_free(first);
    lgi_free(verdicts);
    return status;
}
