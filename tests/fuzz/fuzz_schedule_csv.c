/*
 * libFuzzer target: schedules as CSV. What is refused leaves nothing and one line of text; what is accepted holds each F, and B or I
 * and W, once, in an order that one pass over the stages proves again.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "leapgrad/interchange.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

/* Runs what can run until nothing can; another way than the library's. */
static void run(const lg_rank_schedule *s)
{
    const size_t num = (size_t)s->num_stages * (size_t)s->num_micro_batches;
    unsigned char *const done = calloc(num, 1); /* 1: F, 2: input gradient, 4: weight gradient */
    int *const at = calloc((size_t)s->num_ranks, sizeof *at);
    bool has_moved = done != NULL && at != NULL;
    size_t num_left = 0;
    for (int rank = 0; rank < s->num_ranks; rank++) {
        num_left += (size_t)s->num_actions[rank];
    }
    while (has_moved && num_left > 0) {
        has_moved = false;
        for (int rank = 0; rank < s->num_ranks; rank++) {
            while (at[rank] < s->num_actions[rank]) {
                const lg_action *const a = &s->actions[rank][at[rank]];
                if (s->rank_of_stage[a->stage] != rank) {
                    abort();
                }
                const size_t m = (size_t)a->micro_batch;
                const size_t num_m = (size_t)s->num_micro_batches;
                unsigned char *const mine = &done[(size_t)a->stage * num_m + m];
                const bool is_last = a->stage + 1 == s->num_stages;
                const bool is_ready = a->kind == LG_ACTION_FORWARD
                                          ? a->stage == 0 || (mine[-(ptrdiff_t)num_m] & 1)
                                      : a->kind == LG_ACTION_WEIGHT_GRAD
                                          ? (*mine & 2)
                                          : (*mine & 1) && (is_last || (mine[num_m] & 2));
                const unsigned char bits = a->kind == LG_ACTION_FORWARD       ? 1
                                           : a->kind == LG_ACTION_INPUT_GRAD  ? 2
                                           : a->kind == LG_ACTION_WEIGHT_GRAD ? 4
                                                                              : 6;
                if (!is_ready) {
                    break;
                }
                if ((*mine & bits) != 0) {
                    abort();
                }
                *mine |= bits;
                at[rank]++;
                num_left--;
                has_moved = true;
            }
        }
    }
    if (done != NULL && at != NULL) {
        for (size_t i = 0; i < num; i++) {
            if (done[i] != 7) {
                abort();
            }
        }
    }
    free(done);
    free(at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes)
{
    lg_rank_schedule *schedule = NULL;
    if (lg_schedule_parse_csv(&schedule, "fuzz", (const char *)data, num_bytes) != LG_OK) {
        if (schedule != NULL || strchr(lg_last_error(), '\n') != NULL ||
            strncmp(lg_last_error(), "fuzz: ", 6) != 0) {
            abort();
        }
        return 0;
    }
    run(schedule);
    lg_schedule_destroy(schedule);
    return 0;
}
