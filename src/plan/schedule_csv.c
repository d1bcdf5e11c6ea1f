/*
 * Schedules as CSV: reading and writing. A line is a rank, a cell an action or nothing; quotes are what Python's csv module
 * makes of them. Only what stands alone is checked here; the whole is proved by lgi_schedule_prove(), then the communication
 * actions against it.
 */
#include "plan/schedule_csv.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/file.h"

#define MAX_FILE_BYTES ((size_t)64 << 20)
#define MAX_RANKS 65536
#define MAX_NUMBER 1000000
#define MAX_CELL_BYTES 128
/* Longest part of a cell that a message shows. */
#define SHOWN_BYTES 40

/* Words of actions. Those from SEND_F to RECV_B are checked, the others say nothing about the order. */
typedef enum word {
    WORD_F,
    WORD_B,
    WORD_I,
    WORD_W,
    WORD_SEND_F,
    WORD_RECV_F,
    WORD_SEND_B,
    WORD_RECV_B,
    WORD_WAIT_SEND_F,
    WORD_WAIT_SEND_B,
    WORD_UNSHARD,
    WORD_RESHARD,
    WORD_REDUCE_GRAD,
    WORD_WAIT_REDUCE_GRAD,
    NUM_WORDS
} word;

static const char *const words[NUM_WORDS] = {"F",           "B",
                                             "I",           "W",
                                             "SEND_F",      "RECV_F",
                                             "SEND_B",      "RECV_B",
                                             "WAIT_SEND_F", "WAIT_SEND_B",
                                             "UNSHARD",     "RESHARD",
                                             "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

/* A SEND or RECV: between the computations `position - 1` and `position` of its rank. */
typedef struct message {
    word what;
    int stage;
    int micro_batch;
    int rank;
    int position;
    int column;
} message;

typedef struct reader {
    const char *source;
    const char *text;
    size_t num_bytes;
    size_t at;
    int line; /* from 1; the rank is one less */
    int column;
    lg_action *actions; /* all ranks */
    size_t num_actions;
    size_t actions_capacity;
    int *count_of_line;
    size_t lines_capacity;
    message *messages;
    size_t num_messages;
    size_t messages_capacity;
} reader;

const char *lgi_action_text(char text[LGI_ACTION_TEXT_BYTES], const lg_action *action)
{
    (void)snprintf(text, LGI_ACTION_TEXT_BYTES, "%d%s%d", action->stage, words[action->kind],
                   action->micro_batch);
    return text;
}

/* --- one action --------------------------------------------------------------------------------------------------------- */

static lg_status fail_cell(const reader *r, const char *cell, size_t cell_bytes, const char *why)
{
    char shown[SHOWN_BYTES + 1];
    const size_t num = cell_bytes < SHOWN_BYTES ? cell_bytes : SHOWN_BYTES;
    for (size_t i = 0; i < num; i++) { /* whatever is in the file: one line of plain text */
        shown[i] = cell[i] < ' ' || cell[i] > '~' ? '?' : cell[i];
    }
    shown[num] = '\0';
    LG_FAIL(LG_INVALID_ARG, "%s: line %d, action %d: '%s'%s %s", r->source, r->line, r->column,
            shown, num < cell_bytes ? "..." : "", why);
}

/* Digits at text[*at], moved over; -1: none, or too large. */
static int take_number(const char *text, size_t num_bytes, size_t *at)
{
    int number = -1;
    while (*at < num_bytes && text[*at] >= '0' && text[*at] <= '9') {
        number = (number < 0 ? 0 : number) * 10 + (text[*at] - '0');
        (*at)++;
        if (number > MAX_NUMBER) {
            return -1;
        }
    }
    return number;
}

static int find_word(const char *text, size_t num_bytes)
{
    for (int i = 0; i < NUM_WORDS; i++) {
        if (strlen(words[i]) == num_bytes && memcmp(words[i], text, num_bytes) == 0) {
            return i;
        }
    }
    return -1;
}

static lg_status keep(reader *r, word what, int stage, int micro_batch)
{
    if (what <= WORD_W) {
        LG_TRY(lgi_grow(&r->actions, &r->actions_capacity, r->num_actions + 1, sizeof *r->actions));
        r->actions[r->num_actions++] =
            (lg_action){(lg_action_kind)what, stage, micro_batch, r->column};
        r->count_of_line[r->line - 1]++;
    } else if (what <= WORD_RECV_B) {
        LG_TRY(lgi_grow(&r->messages, &r->messages_capacity, r->num_messages + 1,
                        sizeof *r->messages));
        r->messages[r->num_messages++] = (message){
            what, stage, micro_batch, r->line - 1, r->count_of_line[r->line - 1], r->column};
    }
    return LG_OK;
}

/* "3F0", "1UNSHARD". */
static lg_status take_action(reader *r, const char *text, size_t num_bytes)
{
    size_t at = 0;
    const int stage = take_number(text, num_bytes, &at);
    size_t end = at;
    while (end < num_bytes && (text[end] < '0' || text[end] > '9')) {
        end++;
    }
    const int what = find_word(text + at, end - at);
    if (stage < 0 || what < 0) {
        return fail_cell(r, text, num_bytes,
                         "is no action; expected a stage, one of F B I W SEND_F RECV_F SEND_B "
                         "RECV_B WAIT_SEND_F WAIT_SEND_B UNSHARD RESHARD REDUCE_GRAD "
                         "WAIT_REDUCE_GRAD, and a micro-batch, as in 2F0");
    }
    at = end;
    const int micro_batch = take_number(text, num_bytes, &at);
    const bool needs_micro_batch = what < WORD_UNSHARD;
    if (at != num_bytes || (micro_batch < 0 && (needs_micro_batch || end < num_bytes))) {
        return fail_cell(r, text, num_bytes, "has no micro-batch from 0 to 1000000 behind it");
    }
    return keep(r, (word)what, stage, micro_batch);
}

static void trim(const char **text, size_t *num_bytes)
{
    while (*num_bytes > 0 && (**text == ' ' || **text == '\t')) {
        (*text)++;
        (*num_bytes)--;
    }
    while (*num_bytes > 0 && ((*text)[*num_bytes - 1] == ' ' || (*text)[*num_bytes - 1] == '\t')) {
        (*num_bytes)--;
    }
}

/* "(0F1;3B0)OVERLAP_F_B": two that PyTorch runs side by side; here one after the other. */
static lg_status take_pair(reader *r, const char *cell, size_t num_bytes)
{
    const char *const close = memchr(cell, ')', num_bytes);
    const size_t inside = close != NULL ? (size_t)(close - cell) : 0;
    if (close == NULL || num_bytes - inside - 1 != strlen("OVERLAP_F_B") ||
        memcmp(close + 1, "OVERLAP_F_B", strlen("OVERLAP_F_B")) != 0) {
        return fail_cell(r, cell, num_bytes, "is no pair; expected as in (0F1;3B0)OVERLAP_F_B");
    }
    for (size_t at = 1; at <= inside;) {
        const char *const from = cell + at;
        const char *const semicolon = memchr(from, ';', inside - at);
        const size_t length = semicolon != NULL ? (size_t)(semicolon - from) : inside - at;
        const char *part = from;
        size_t part_bytes = length;
        trim(&part, &part_bytes);
        LG_TRY(take_action(r, part, part_bytes));
        at += length + 1;
    }
    return LG_OK;
}

static lg_status take_cell(reader *r, const char *cell, size_t num_bytes)
{
    trim(&cell, &num_bytes);
    if (num_bytes == 0) {
        return LG_OK; /* nothing to do at that time */
    }
    return cell[0] == '(' ? take_pair(r, cell, num_bytes) : take_action(r, cell, num_bytes);
}

/* --- the file ----------------------------------------------------------------------------------------------------------- */

/* Reads the cell at r->at, up to a comma or the line's end, which stay. */
static lg_status read_cell(reader *r)
{
    char cell[MAX_CELL_BYTES];
    size_t num = 0;
    bool is_quoted = false;
    const size_t begin = r->at;
    for (; r->at < r->num_bytes; r->at++) {
        const char c = r->text[r->at];
        if (c == '"') {
            is_quoted = !is_quoted;
            continue;
        }
        if (c == '\n' || c == '\r' || (c == ',' && !is_quoted)) {
            break;
        }
        if (num == sizeof cell) {
            return fail_cell(r, r->text + begin, r->at - begin, "is too long for an action");
        }
        cell[num++] = c;
    }
    if (is_quoted) {
        return fail_cell(r, r->text + begin, r->at - begin, "has a quote that does not end");
    }
    return take_cell(r, cell, num);
}

static bool is_at_line_end(const reader *r)
{
    return r->at == r->num_bytes || r->text[r->at] == '\n' || r->text[r->at] == '\r';
}

static lg_status read_line(reader *r)
{
    r->line++;
    r->column = 0;
    if (r->line > MAX_RANKS) {
        LG_FAIL(LG_INVALID_ARG, "%s: more than %d lines", r->source, MAX_RANKS);
    }
    LG_TRY(
        lgi_grow(&r->count_of_line, &r->lines_capacity, (size_t)r->line, sizeof *r->count_of_line));
    r->count_of_line[r->line - 1] = 0;
    do {
        r->column++;
        LG_TRY(read_cell(r));
        if (!is_at_line_end(r)) {
            r->at++; /* the comma */
        } else {
            break;
        }
    } while (true);
    if (r->at < r->num_bytes && r->text[r->at] == '\r') {
        r->at++;
    }
    if (r->at < r->num_bytes && r->text[r->at] == '\n') {
        r->at++;
    }
    return LG_OK;
}

static lg_status make_schedule(lg_rank_schedule **out, reader *r)
{
    int num_ranks = r->line;
    while (num_ranks > 0 && r->count_of_line[num_ranks - 1] == 0) {
        num_ranks--; /* empty lines at the end */
    }
    if (num_ranks == 0) {
        LG_FAIL(LG_INVALID_ARG, "%s: no actions; expected a line of actions for each rank",
                r->source);
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        if (r->count_of_line[rank] == 0) {
            LG_FAIL(LG_INVALID_ARG, "%s: line %d: rank %d has nothing to compute", r->source,
                    rank + 1, rank);
        }
    }
    LG_TRY(lgi_schedule_new(out, num_ranks, r->count_of_line));
    size_t next = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        const size_t num = (size_t)r->count_of_line[rank];
        memcpy((*out)->actions[rank], r->actions + next, num * sizeof(lg_action));
        (*out)->num_actions[rank] = (int)num;
        next += num;
    }
    return LG_OK;
}

/* --- messages ----------------------------------------------------------------------------------------------------------- */

static lg_status fail_message(const reader *r, const message *m, const char *why)
{
    LG_FAIL(LG_INVALID_ARG, "%s: line %d, action %d ('%d%s%d') %s", r->source, m->rank + 1,
            m->column, m->stage, words[m->what], m->micro_batch, why);
}

/* Where in its rank's list a stage runs a micro-batch forward, and where it makes the input gradient. */
typedef struct places {
    int *forward;
    int *backward;
    unsigned char *messages; /* bits of those that are there, by word */
} places;

static lg_status check_message(const reader *r, const lg_rank_schedule *schedule, places *at,
                               const message *m)
{
    if (m->stage >= schedule->num_stages || m->micro_batch >= schedule->num_micro_batches ||
        schedule->rank_of_stage[m->stage] != m->rank) {
        return fail_message(r, m, "is of a stage or micro-batch that the rank does not compute");
    }
    const int idx = m->stage * schedule->num_micro_batches + m->micro_batch;
    const bool is_forward = m->what == WORD_SEND_F || m->what == WORD_RECV_F;
    const bool is_send = m->what == WORD_SEND_F || m->what == WORD_SEND_B;
    const int other_stage = m->stage + (is_forward == is_send ? 1 : -1);
    const int place = is_forward ? at->forward[idx] : at->backward[idx];
    if (other_stage < 0 || other_stage >= schedule->num_stages) {
        return fail_message(r, m, "has no stage at its other end");
    }
    if (is_send && m->position <= place) {
        return fail_message(r, m, "comes before what it sends is computed");
    }
    if (!is_send && m->position > place) {
        return fail_message(r, m, "comes after what needs it");
    }
    const unsigned char bit = (unsigned char)(1u << (m->what - WORD_SEND_F));
    if ((at->messages[idx] & bit) != 0) {
        return fail_message(r, m, "is doubled");
    }
    at->messages[idx] |= bit;
    return LG_OK;
}

static lg_status check_partner(const reader *r, const lg_rank_schedule *schedule, const places *at,
                               const message *m)
{
    static const word partners[] = {WORD_RECV_F, WORD_SEND_F, WORD_RECV_B, WORD_SEND_B};
    const word partner = partners[m->what - WORD_SEND_F];
    const int step = m->what == WORD_SEND_F || m->what == WORD_RECV_B ? 1 : -1;
    const int idx = (m->stage + step) * schedule->num_micro_batches + m->micro_batch;
    if ((at->messages[idx] & (1u << (partner - WORD_SEND_F))) == 0) {
        char why[64];
        (void)snprintf(why, sizeof why, "meets no '%d%s%d'", m->stage + step, words[partner],
                       m->micro_batch);
        return fail_message(r, m, why);
    }
    return LG_OK;
}

static lg_status check_messages(const reader *r, const lg_rank_schedule *schedule)
{
    lg_status status = LG_OK;
    places at = {0};
    const size_t num = (size_t)schedule->num_stages * (size_t)schedule->num_micro_batches;
    LG_TRY_GOTO(lgi_calloc(&at.forward, num, sizeof *at.forward));
    LG_TRY_GOTO(lgi_calloc(&at.backward, num, sizeof *at.backward));
    LG_TRY_GOTO(lgi_calloc(&at.messages, num, sizeof *at.messages));
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        for (int i = 0; i < schedule->num_actions[rank]; i++) {
            const lg_action *const action = &schedule->actions[rank][i];
            const int idx = action->stage * schedule->num_micro_batches + action->micro_batch;
            if (action->kind == LG_ACTION_FORWARD) {
                at.forward[idx] = i;
            } else if (action->kind != LG_ACTION_WEIGHT_GRAD) {
                at.backward[idx] = i;
            }
        }
    }
    for (size_t i = 0; i < r->num_messages; i++) {
        LG_TRY_GOTO(check_message(r, schedule, &at, &r->messages[i]));
    }
    for (size_t i = 0; i < r->num_messages; i++) {
        LG_TRY_GOTO(check_partner(r, schedule, &at, &r->messages[i]));
    }
out:
    lgi_free(at.forward);
    lgi_free(at.backward);
    lgi_free(at.messages);
    return status;
}

/* --- reading and writing ------------------------------------------------------------------------------------------------ */

lg_status lg_schedule_parse_csv(lg_rank_schedule **out, const char *source, const char *text,
                                size_t num_bytes)
{
    lg_status status = LG_OK;
    lg_rank_schedule *schedule = NULL;
    reader r = {.source = source, .text = text, .num_bytes = num_bytes};
    *out = NULL;
    if (num_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        r.at = 3; /* a byte order mark, as spreadsheets write it */
    }
    while (r.at < num_bytes) {
        LG_TRY_GOTO(read_line(&r));
    }
    LG_TRY_GOTO(make_schedule(&schedule, &r));
    LG_TRY_GOTO(lgi_schedule_prove(schedule, source));
    if (r.num_messages > 0) {
        LG_TRY_GOTO(check_messages(&r, schedule));
    }
    *out = schedule;
    schedule = NULL;
out:
    lg_schedule_destroy(schedule);
    lgi_free(r.actions);
    lgi_free(r.messages);
    lgi_free(r.count_of_line);
    return status;
}

lg_status lg_schedule_load_csv(lg_rank_schedule **out, const char *path)
{
    char *text = NULL;
    size_t num_bytes = 0;
    *out = NULL;
    LG_TRY(lgi_file_read(&text, &num_bytes, path, MAX_FILE_BYTES));
    const lg_status status = lg_schedule_parse_csv(out, path, text, num_bytes);
    lgi_free(text);
    return status;
}

lg_status lg_schedule_save_csv(const lg_rank_schedule *schedule, const char *path)
{
    lgi_file_writer writer;
    char text[LGI_ACTION_TEXT_BYTES];
    LG_TRY(lgi_file_writer_open(&writer, path));
    for (int rank = 0; rank < schedule->num_ranks; rank++) {
        for (int i = 0; i < schedule->num_actions[rank]; i++) {
            (void)fprintf(writer.stream, "%s%s", i > 0 ? "," : "",
                          lgi_action_text(text, &schedule->actions[rank][i]));
        }
        (void)fputs("\r\n", writer.stream);
    }
    return lgi_file_writer_commit(&writer);
}
