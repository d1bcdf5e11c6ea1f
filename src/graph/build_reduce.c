/*
 * Sums over replicas: which layers' gradients are reduced together, and in which chunks.
 *
 * A small layer's message takes its latency, whatever is in it, so layers that follow one another in a stage share a reduction
 * until it has the bytes that the options ask for: from the last layer to the first, as gradients become complete. Each element
 * is still added in the order of replicas, so which layers share leaves the bits alone.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/builder.h"
#include "graph/reduce_parts.h"

/* A reduction of less than this part of the bytes that are wished for takes hardly more than its latency. */
#define LEAST_SHARE_FRAC 16

/* Layers whose gradients are reduced together on one pipeline rank. */
struct shared_layers {
    int num_layers;
    int layers[LGI_MAX_REDUCE_TENSORS]; /* ascending */
    int num_params;
    int params[LGI_MAX_REDUCE_TENSORS]; /* their ids, layer by layer */
    lgi_reduce_chunk part;
    int64_t num_bytes;
};

static void add_stat_sum(struct builder *b, int layer, int rank)
{
    const int stat_sum =
        b->graph->opts.has_grad_stats ? b->stat_sums[rank * b->num_layers + layer] : -1;
    if (stat_sum >= 0) {
        (void)lgi_builder_add_operand(b, stat_sum, LG_ROLE_STAT_SUM, layer, LG_ACCESS_READ_WRITE);
        b->op.message_bytes += b->graph->values[stat_sum].bytes;
        b->op.traffic_bytes += (double)b->graph->values[stat_sum].bytes;
    }
}

static void name_reduction(struct builder *b, const struct shared_layers *shared, int chunk)
{
    const char *const first = lgi_builder_layer_name(b, shared->layers[0]);
    if (shared->num_layers > 1) {
        (void)snprintf(b->name, sizeof b->name, "all_reduce(%s+%d,%d)", first,
                       shared->num_layers - 1, chunk);
    } else {
        (void)snprintf(b->name, sizeof b->name, "all_reduce(%s,%d)", first, chunk);
    }
}

/* One replica's end of a chunk. */
static lg_status reduce_chunk(struct builder *b, struct shared_layers *shared, int pipeline_rank,
                              int chunk)
{
    const int rank = b->replica * b->num_pipeline_ranks + pipeline_rank;
    lgi_reduce_chunk *const part = &shared->part;
    lgi_builder_start_op(b, LG_OP_ALL_REDUCE, shared->layers[0], -1, rank);
    name_reduction(b, shared, chunk);
    b->op.group = b->graph->num_groups - 1;
    b->op.chunk = chunk;
    b->op.message_bytes = part->end_bytes - part->begin_bytes;
    b->op.traffic_bytes = (double)b->op.message_bytes;
    for (int i = 0; i < shared->num_params; i++) {
        (void)lgi_builder_add_operand(
            b, b->param_grad_values[rank * b->num_params + shared->params[i]], LG_ROLE_DPARAM, i,
            LG_ACCESS_READ_WRITE);
    }
    const int64_t gradient_bytes = b->op.message_bytes;
    const bool is_last = part->end_bytes == shared->num_bytes;
    for (int i = 0; is_last && i < shared->num_layers; i++) { /* statistics travel with gradients */
        add_stat_sum(b, shared->layers[i], rank);
    }
    part->stat_bytes = b->op.message_bytes - gradient_bytes;
    for (int i = 0; i < b->graph->opts.num_widths; i++) {
        b->op.workspace_bytes[i] = lgi_reduce_staging(part, b->replica, NULL, NULL);
    }
    return lgi_builder_finish_op(b);
}

/* The replicas' gradients of a few layers on one pipeline rank, in chunks. */
static lg_status reduce_layers(struct builder *b, struct shared_layers *shared, int pipeline_rank)
{
    lgi_reduce_chunk *const part = &shared->part;
    const int64_t chunk_bytes = lgi_graph_chunk_bytes(b->graph, shared->num_bytes);
    part->num_replicas = b->graph->num_replicas;
    for (int chunk = 0; part->end_bytes < shared->num_bytes; chunk++) {
        part->begin_bytes = part->end_bytes;
        part->end_bytes = shared->num_bytes - part->begin_bytes > chunk_bytes
                              ? part->begin_bytes + chunk_bytes
                              : shared->num_bytes;
        b->graph->num_groups++;
        for (b->replica = 0; b->replica < b->graph->num_replicas; b->replica++) {
            LG_TRY(reduce_chunk(b, shared, pipeline_rank, chunk));
        }
    }
    return LG_OK;
}

/* --- which layers ------------------------------------------------------------------------------------------------------ */

/* Puts the layer before those that are there. */
static void prepend_layer(const struct builder *b, struct shared_layers *shared, int layer,
                          int pipeline_rank, const int *params, int num_params)
{
    lgi_reduce_chunk *const part = &shared->part;
    memmove(&shared->layers[1], shared->layers, (size_t)shared->num_layers * sizeof(int));
    memmove(&shared->params[num_params], shared->params, (size_t)shared->num_params * sizeof(int));
    memmove(&part->tensor_bytes[num_params], part->tensor_bytes,
            (size_t)part->num_tensors * sizeof part->tensor_bytes[0]);
    shared->layers[0] = layer;
    shared->num_layers++;
    for (int i = 0; i < num_params; i++) {
        const int value = b->param_grad_values[pipeline_rank * b->num_params + params[i]];
        shared->params[i] = params[i];
        part->tensor_bytes[i] = b->graph->values[value].bytes;
        shared->num_bytes += part->tensor_bytes[i];
    }
    shared->num_params += num_params;
    part->num_tensors += num_params;
}

/* What is still to be put into reductions. */
struct progress {
    bool *is_reduced;    /* by pipeline rank and layer */
    int64_t *left_bytes; /* by stage: of its layers, on its own rank */
};

static lg_status progress_init(struct progress *out, const struct builder *b)
{
    memset(out, 0, sizeof *out);
    LG_TRY(lgi_calloc(&out->is_reduced, (size_t)b->num_layers * (size_t)b->num_pipeline_ranks,
                      sizeof *out->is_reduced));
    LG_TRY(lgi_calloc(&out->left_bytes, (size_t)b->num_stages, sizeof *out->left_bytes));
    for (int layer = 0; layer < b->num_layers; layer++) {
        const int p = b->pipeline_rank[layer];
        int params[LG_MAX_LAYER_PARAMS];
        const int num_params = p >= 0 ? lgi_builder_params_on(b, layer, p, params) : 0;
        for (int i = 0; i < num_params; i++) {
            const int value = b->param_grad_values[p * b->num_params + params[i]];
            out->left_bytes[b->stage[layer]] += b->graph->values[value].bytes;
        }
    }
    return LG_OK;
}

static void progress_deinit(struct progress *progress)
{
    lgi_free(progress->is_reduced);
    lgi_free(progress->left_bytes);
}

/*
 * `layer` and those before it that share its reduction: of the same stage, so that none waits for what is far away. A copy of
 * another rank's parameter is by itself. No more than half of what the stage has left is taken at once (and the layer that makes it
 * so), until that is not worth a reduction: the last ones are those that the backward pass cannot hide, and what they hold is
 * needed first, so they stay small.
 */
static void collect_layers(const struct builder *b, struct shared_layers *shared, int layer,
                           int pipeline_rank, struct progress *progress)
{
    bool *const is_reduced = &progress->is_reduced[(size_t)pipeline_rank * (size_t)b->num_layers];
    int64_t *const left_bytes = &progress->left_bytes[b->stage[layer]];
    const bool is_copy = b->pipeline_rank[layer] != pipeline_rank;
    const int64_t least_bytes = b->graph->share_bytes / LEAST_SHARE_FRAC;
    const int64_t half_bytes = *left_bytes / 2;
    const int64_t most_bytes = half_bytes > least_bytes ? half_bytes : least_bytes;
    memset(shared, 0, sizeof *shared);
    for (int other = layer; other >= 0; other--) {
        int params[LG_MAX_LAYER_PARAMS];
        const int num_params = lgi_builder_params_on(b, other, pipeline_rank, params);
        const bool is_full = shared->num_bytes >= b->graph->share_bytes ||
                             shared->num_bytes >= most_bytes ||
                             shared->num_params + num_params > LGI_MAX_REDUCE_TENSORS;
        const bool is_near =
            b->pipeline_rank[other] == pipeline_rank && b->stage[other] == b->stage[layer];
        if (num_params == 0) {
            continue;
        }
        if (shared->num_layers > 0 && (is_full || is_copy || !is_near)) {
            break;
        }
        prepend_layer(b, shared, other, pipeline_rank, params, num_params);
        is_reduced[other] = true;
    }
    *left_bytes -= is_copy ? 0 : shared->num_bytes;
}

lg_status lgi_build_reductions(struct builder *b)
{
    struct progress progress;
    lg_status status = LG_OK;
    LG_TRY_GOTO(progress_init(&progress, b));
    for (int layer = b->num_layers - 1; layer >= 0; layer--) {
        for (int p = 0; p < b->num_pipeline_ranks; p++) {
            int params[LG_MAX_LAYER_PARAMS];
            struct shared_layers shared;
            if (!progress.is_reduced[(size_t)p * (size_t)b->num_layers + (size_t)layer] &&
                lgi_builder_params_on(b, layer, p, params) > 0) {
                collect_layers(b, &shared, layer, p, &progress);
                LG_TRY_GOTO(reduce_layers(b, &shared, p));
            }
        }
    }
out:
    progress_deinit(&progress);
    return status;
}
