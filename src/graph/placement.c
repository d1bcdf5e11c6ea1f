/*
 * Blocks and stages. Every placement is an array of first blocks, one per stage, strictly ascending from 0: so all blocks are
 * in exactly one stage by construction, and make_stages() checks just that.
 *
 * The balanced split is a search for the smallest bound on stage times that a greedy split keeps (each stage takes as many
 * blocks as fit: later stages then have the least left to do), then a dynamic program for the evenest split under it.
 */
#include "leapgrad/placement.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes_text.h"
#include "base/check.h"

/* Halvings of the interval in which the bound on stage times lies: exhausts a double's precision. */
#define NUM_HALVINGS 60
/* Above this many (stage, begin, end) triples the split stays the greedy one. */
#define MAX_EVEN_TRIPLES 20000000.0
/* Sums of the same times in another order differ by rounding. */
#define SUM_TOLERANCE 1e-9

/* --- blocks ------------------------------------------------------------------------------------------------------------ */

static bool is_number(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i])) {
            return false;
        }
    }
    return length > 0;
}

/* Length of the prefix that names the block of a layer, or 0. */
static size_t block_prefix(const char *name)
{
    static const char dense[] = "denselayer";
    const size_t dense_length = sizeof dense - 1;
    size_t begin = 0;
    while (name[begin] != '\0') {
        const size_t length = strcspn(name + begin, ".");
        const char *const part = name + begin;
        if ((begin > 0 && is_number(part, length)) ||
            (length > dense_length && strncmp(part, dense, dense_length) == 0 &&
             is_number(part + dense_length, length - dense_length))) {
            return begin + length;
        }
        begin += length + (part[length] == '.' ? 1 : 0);
    }
    return 0;
}

int lg_model_blocks(const lg_model *model, int *block_of_layer)
{
    const int num_layers = lg_model_num_layers(model);
    bool has_names = false;
    for (int layer = 0; layer < num_layers; layer++) {
        const lg_layer_info *const info = lg_model_layer(model, layer);
        has_names = has_names || (info->kind != LG_LAYER_INPUT && block_prefix(info->name) > 0);
    }
    int num_blocks = 0;
    const char *last = NULL; /* a name with the block's prefix */
    for (int layer = 0; layer < num_layers; layer++) {
        const lg_layer_info *const info = lg_model_layer(model, layer);
        if (info->kind == LG_LAYER_INPUT) {
            block_of_layer[layer] = -1;
            continue;
        }
        const size_t length = has_names ? block_prefix(info->name) : 0;
        const bool is_same =
            last != NULL && length == block_prefix(last) && strncmp(info->name, last, length) == 0;
        if (has_names ? length > 0 && !is_same : info->num_params > 0) {
            num_blocks++;
            last = info->name;
        }
        block_of_layer[layer] = num_blocks > 0 ? num_blocks - 1 : 0;
    }
    return num_blocks > 0 ? num_blocks : (num_layers > 0 ? 1 : 0);
}

/* --- stages ------------------------------------------------------------------------------------------------------------ */

typedef struct block_map {
    int num_layers;
    int num_blocks;
    int *block_of_layer;
} block_map;

static lg_status find_blocks(block_map *out, const lg_model *model)
{
    *out = (block_map){.num_layers = lg_model_num_layers(model)};
    LG_TRY(lgi_calloc(&out->block_of_layer, (size_t)out->num_layers, sizeof(int)));
    out->num_blocks = lg_model_blocks(model, out->block_of_layer);
    return LG_OK;
}

void lg_stages_deinit(lg_stages *stages)
{
    lgi_free(stages->stage_of_layer);
    lgi_free(stages->rank_of_stage);
    *stages = (lg_stages){0};
}

void lg_stages_apply(const lg_stages *stages, lg_parallel *parallel)
{
    parallel->num_pipeline_ranks = stages->num_pipeline_ranks;
    parallel->num_stages = stages->num_stages;
    parallel->stage_of_layer = stages->stage_of_layer;
    parallel->rank_of_stage = stages->rank_of_stage;
}

static lg_status check_numbers(const block_map *map, int num_ranks, int num_stages,
                               lg_stage_order order)
{
    if (num_ranks < 1 || num_ranks > map->num_blocks) {
        LG_FAIL(LG_INVALID_ARG, "%d pipeline ranks for the model's %d blocks; allowed: 1..%d",
                num_ranks, map->num_blocks, map->num_blocks);
    }
    if (num_stages < num_ranks || num_stages > map->num_blocks) {
        LG_FAIL(LG_INVALID_ARG,
                "%d stages for the model's %d blocks on %d pipeline ranks; allowed: "
                "%d..%d",
                num_stages, map->num_blocks, num_ranks, num_ranks, map->num_blocks);
    }
    if (order == LG_STAGE_ORDER_V && num_stages != 2 * num_ranks) {
        LG_FAIL(LG_INVALID_ARG, "%d stages in a V over %d pipeline ranks; allowed: %d", num_stages,
                num_ranks, 2 * num_ranks);
    }
    return LG_OK;
}

/* `first_blocks`: by stage. `ranks`: NULL for `order`. */
static lg_status make_stages(lg_stages *out, const block_map *map, int num_ranks, int num_stages,
                             const int *first_blocks, const int *ranks, lg_stage_order order)
{
    lg_status status = LG_OK;
    *out = (lg_stages){
        .num_pipeline_ranks = num_ranks, .num_stages = num_stages, .num_layers = map->num_layers};
    LG_TRY_GOTO(lgi_calloc(&out->stage_of_layer, (size_t)map->num_layers, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&out->rank_of_stage, (size_t)num_stages, sizeof(int)));
    for (int s = 0; s < num_stages; s++) {
        const int end = s + 1 < num_stages ? first_blocks[s + 1] : map->num_blocks;
        if ((s == 0 && first_blocks[0] != 0) || first_blocks[s] >= end) {
            status =
                lgi_fail(LG_INVALID_ARG,
                         "stage %d of %d has blocks %d up to %d of %d; stages begin with block "
                         "0 and none is empty",
                         s, num_stages, first_blocks[s], end, map->num_blocks);
            goto out;
        }
        const int round_rank =
            order == LG_STAGE_ORDER_V && s >= num_ranks ? 2 * num_ranks - 1 - s : s % num_ranks;
        out->rank_of_stage[s] = ranks != NULL ? ranks[s] : round_rank;
        if (out->rank_of_stage[s] < 0 || out->rank_of_stage[s] >= num_ranks) {
            status = lgi_fail(LG_INVALID_ARG, "stage %d: rank %d is not in [0, %d]", s,
                              out->rank_of_stage[s], num_ranks - 1);
            goto out;
        }
    }
    int stage = 0;
    for (int layer = 0; layer < map->num_layers; layer++) {
        const int block = map->block_of_layer[layer];
        while (block >= 0 && stage + 1 < num_stages && first_blocks[stage + 1] <= block) {
            stage++;
        }
        out->stage_of_layer[layer] = block < 0 ? 0 : stage;
    }
out:
    if (status != LG_OK) {
        lg_stages_deinit(out);
    }
    return status;
}

lg_status lg_stages_contiguous(lg_stages *out, const lg_model *model, int num_pipeline_ranks,
                               int num_stages, lg_stage_order order)
{
    lg_status status = LG_OK;
    block_map map = {0};
    int *first = NULL;
    *out = (lg_stages){0};
    LG_TRY_GOTO(find_blocks(&map, model));
    LG_TRY_GOTO(check_numbers(&map, num_pipeline_ranks, num_stages, order));
    LG_TRY_GOTO(lgi_calloc(&first, (size_t)num_stages, sizeof *first));
    for (int s = 0; s < num_stages; s++) {
        const int rest = map.num_blocks % num_stages;
        first[s] = s * (map.num_blocks / num_stages) + (s < rest ? s : rest);
    }
    LG_TRY_GOTO(make_stages(out, &map, num_pipeline_ranks, num_stages, first, NULL, order));
out:
    lgi_free(map.block_of_layer);
    lgi_free(first);
    return status;
}

lg_status lg_stages_list(lg_stages *out, const lg_model *model, int num_pipeline_ranks,
                         int num_stages, const int *first_layers, const int *ranks)
{
    lg_status status = LG_OK;
    block_map map = {0};
    int *first = NULL;
    *out = (lg_stages){0};
    LG_TRY_GOTO(find_blocks(&map, model));
    LG_TRY_GOTO(check_numbers(&map, num_pipeline_ranks, num_stages, LG_STAGE_ORDER_LOOP));
    LG_TRY_GOTO(lgi_calloc(&first, (size_t)num_stages, sizeof *first));
    for (int s = 0; s < num_stages; s++) {
        if (first_layers[s] < 0 || first_layers[s] >= map.num_layers ||
            map.block_of_layer[first_layers[s]] < 0) {
            status = lgi_fail(
                LG_INVALID_ARG, "stage %d begins with layer %d, which is %s", s, first_layers[s],
                first_layers[s] < 0 || first_layers[s] >= map.num_layers ? "not in the model"
                                                                         : "an input");
            goto out;
        }
        first[s] = map.block_of_layer[first_layers[s]];
    }
    LG_TRY_GOTO(
        make_stages(out, &map, num_pipeline_ranks, num_stages, first, ranks, LG_STAGE_ORDER_LOOP));
out:
    lgi_free(map.block_of_layer);
    lgi_free(first);
    return status;
}

lg_status lg_stages_modulo(lg_stages *out, const lg_model *model, int num_pipeline_ranks,
                           int group_size)
{
    lg_status status = LG_OK;
    block_map map = {0};
    int *first = NULL;
    *out = (lg_stages){0};
    LG_TRY_GOTO(find_blocks(&map, model));
    if (group_size < 1) {
        status = lgi_fail(LG_INVALID_ARG, "modulo placement: group size %d; allowed: 1 or more",
                          group_size);
        goto out;
    }
    const int num_stages = map.num_blocks / group_size + (map.num_blocks % group_size > 0 ? 1 : 0);
    if (num_pipeline_ranks <= map.num_blocks && num_stages < num_pipeline_ranks) {
        status = lgi_fail(LG_INVALID_ARG,
                          "modulo placement: %d blocks in groups of %d make %d stages, fewer than "
                          "the %d pipeline ranks",
                          map.num_blocks, group_size, num_stages, num_pipeline_ranks);
        goto out;
    }
    LG_TRY_GOTO(check_numbers(&map, num_pipeline_ranks, num_stages, LG_STAGE_ORDER_LOOP));
    LG_TRY_GOTO(lgi_calloc(&first, (size_t)num_stages, sizeof *first));
    for (int s = 0; s < num_stages; s++) {
        first[s] = s * group_size;
    }
    LG_TRY_GOTO(
        make_stages(out, &map, num_pipeline_ranks, num_stages, first, NULL, LG_STAGE_ORDER_LOOP));
out:
    lgi_free(map.block_of_layer);
    lgi_free(first);
    return status;
}

/* --- balanced ---------------------------------------------------------------------------------------------------------- */

typedef struct balance {
    int num_blocks;
    int num_stages;
    const lg_layer_costs *costs;
    double *ns;    /* sum over the blocks before */
    double *bytes; /* the same; doubles: hostile sizes must not overflow */
    double *micro_batch_bytes;
} balance;

static void balance_deinit(balance *b)
{
    lgi_free(b->ns);
    lgi_free(b->bytes);
    lgi_free(b->micro_batch_bytes);
}

static lg_status balance_init(balance *out, const lg_model *model, const block_map *map,
                              int num_stages, const lg_layer_costs *costs)
{
    const size_t num = (size_t)map->num_blocks + 1;
    *out = (balance){.num_blocks = map->num_blocks, .num_stages = num_stages, .costs = costs};
    LG_TRY(lgi_calloc(&out->ns, num, sizeof(double)));
    LG_TRY(lgi_calloc(&out->bytes, num, sizeof(double)));
    LG_TRY(lgi_calloc(&out->micro_batch_bytes, num, sizeof(double)));
    for (int layer = 0; layer < map->num_layers; layer++) {
        const int block = map->block_of_layer[layer];
        if (block < 0) {
            continue;
        }
        const double ns = costs->ns[layer];
        const int64_t bytes = costs->bytes != NULL ? costs->bytes[layer] : 0;
        const int64_t micro_batch_bytes =
            costs->micro_batch_bytes != NULL ? costs->micro_batch_bytes[layer] : 0;
        if (!(ns >= 0.0) || !isfinite(ns) || bytes < 0 || micro_batch_bytes < 0) {
            LG_FAIL(LG_INVALID_ARG, "layer '%s': %g ns, %lld and %lld bytes; allowed: 0 or more",
                    lg_model_layer(model, layer)->name, ns, (long long)bytes,
                    (long long)micro_batch_bytes);
        }
        out->ns[block + 1] += ns;
        out->bytes[block + 1] += (double)bytes;
        out->micro_batch_bytes[block + 1] += (double)micro_batch_bytes;
    }
    for (int block = 0; block < map->num_blocks; block++) {
        out->ns[block + 1] += out->ns[block];
        out->bytes[block + 1] += out->bytes[block];
        out->micro_batch_bytes[block + 1] += out->micro_batch_bytes[block];
    }
    return LG_OK;
}

static bool fits(const balance *b, int stage, int begin, int end, double max_ns)
{
    const int *const in_flight = b->costs->micro_batches_in_flight;
    const double kept = in_flight != NULL ? (double)in_flight[stage] : 1.0;
    const double bytes = b->bytes[end] - b->bytes[begin] +
                         kept * (b->micro_batch_bytes[end] - b->micro_batch_bytes[begin]);
    return b->ns[end] - b->ns[begin] <= max_ns &&
           (b->costs->memory_bytes == 0 || bytes <= (double)b->costs->memory_bytes);
}

/* Each stage as long as it fits and leaves a block for each later one. */
static bool split_greedily(const balance *b, double max_ns, int *first)
{
    int begin = 0;
    for (int s = 0; s < b->num_stages; s++) {
        const int last_end = b->num_blocks - (b->num_stages - 1 - s);
        int end = begin + 1;
        first[s] = begin;
        if (!fits(b, s, begin, end, max_ns)) {
            return false;
        }
        while (end < last_end && fits(b, s, begin, end + 1, max_ns)) {
            end++;
        }
        begin = end;
    }
    return begin == b->num_blocks;
}

/* The split with the smallest sum of squared times among those under the bound. `best` has the sums, `from` the choices. */
static void split_evenly(const balance *b, double max_ns, double *best, int *from, int *first)
{
    const int n = b->num_blocks + 1;
    for (int end = 0; end < n; end++) {
        best[end] = end == 0 ? 0.0 : DBL_MAX;
    }
    for (int s = 0; s < b->num_stages; s++) {
        double *const before = &best[(s % 2) * n];
        double *const after = &best[((s + 1) % 2) * n];
        for (int end = 0; end < n; end++) {
            after[end] = DBL_MAX;
            for (int begin = end - 1; begin >= s && fits(b, s, begin, end, max_ns); begin--) {
                const double ns = b->ns[end] - b->ns[begin];
                if (before[begin] < DBL_MAX && before[begin] + ns * ns < after[end]) {
                    after[end] = before[begin] + ns * ns;
                    from[s * n + end] = begin;
                }
            }
        }
    }
    for (int s = b->num_stages - 1, end = b->num_blocks; s >= 0; s--) {
        first[s] = from[s * n + end];
        end = first[s];
    }
}

static lg_status split_balanced(const balance *b, int *first)
{
    double high = b->ns[b->num_blocks];
    double low = 0.0;
    if (!split_greedily(b, high, first)) {
        char text[LGI_BYTES_TEXT_BYTES];
        LG_FAIL(LG_NOT_SUPPORTED, "no split into %d stages fits %s for each", b->num_stages,
                lgi_bytes_text(text, b->costs->memory_bytes));
    }
    for (int i = 0; i < NUM_HALVINGS; i++) {
        const double middle = low + (high - low) / 2.0;
        if (split_greedily(b, middle, first)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    const double num_ends = (double)b->num_blocks + 1.0;
    (void)split_greedily(b, high, first);
    if ((double)b->num_stages * num_ends * num_ends > MAX_EVEN_TRIPLES) {
        return LG_OK;
    }
    double *best = NULL;
    int *from = NULL;
    lg_status status = LG_OK;
    LG_TRY_GOTO(lgi_calloc(&best, 2 * (size_t)num_ends, sizeof *best));
    LG_TRY_GOTO(lgi_calloc(&from, (size_t)b->num_stages * (size_t)num_ends, sizeof *from));
    split_evenly(b, high * (1.0 + SUM_TOLERANCE), best, from, first);
out:
    lgi_free(best);
    lgi_free(from);
    return status;
}

lg_status lg_stages_balanced(lg_stages *out, const lg_model *model, int num_pipeline_ranks,
                             int num_stages, lg_stage_order order, const lg_layer_costs *costs)
{
    lg_status status = LG_OK;
    block_map map = {0};
    balance b = {0};
    int *first = NULL;
    *out = (lg_stages){0};
    LG_TRY_GOTO(find_blocks(&map, model));
    LG_TRY_GOTO(check_numbers(&map, num_pipeline_ranks, num_stages, order));
    LG_TRY_GOTO(lgi_calloc(&first, (size_t)num_stages, sizeof *first));
    LG_TRY_GOTO(balance_init(&b, model, &map, num_stages, costs));
    LG_TRY_GOTO(split_balanced(&b, first));
    LG_TRY_GOTO(make_stages(out, &map, num_pipeline_ranks, num_stages, first, NULL, order));
out:
    lgi_free(map.block_of_layer);
    lgi_free(first);
    balance_deinit(&b);
    return status;
}
