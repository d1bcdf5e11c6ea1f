/* Adding ops and values to a graph under construction. */
#include "graph/builder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

const lgi_layer_facts *lgi_builder_facts(const struct builder *b, int layer)
{
    return &b->facts[lgi_graph_size_idx(b->graph, b->micro_batch) * b->num_layers + layer];
}

int lgi_builder_rank(const struct builder *b, int layer)
{
    return b->replica * b->num_pipeline_ranks + b->pipeline_rank[layer];
}

const char *lgi_builder_layer_name(const struct builder *b, int layer)
{
    return lg_model_layer(b->model, layer)->name;
}

void lgi_builder_start_op(struct builder *b, lg_op_kind kind, int layer, int micro_batch, int rank)
{
    memset(&b->op, 0, sizeof b->op);
    b->op.kind = kind;
    b->op.layer = layer;
    b->op.micro_batch = micro_batch;
    b->op.rank = rank;
    b->op.stage = layer >= 0 && b->stage[layer] >= 0 ? b->stage[layer] : 0;
    b->op.group = -1;
    b->op.peer = -1;
    b->op.operands = b->operands;
    b->op.inplace_write = -1;
    b->op.inplace_read = -1;
    const char *what = layer >= 0 ? lgi_builder_layer_name(b, layer) : "";
    if (micro_batch >= 0) {
        (void)snprintf(b->name, sizeof b->name, "%s(%s,%d)", lg_op_kind_name(kind), what,
                       micro_batch);
    } else {
        (void)snprintf(b->name, sizeof b->name, "%s(%s)", lg_op_kind_name(kind), what);
    }
    b->op.name = b->name;
}

int lgi_builder_add_operand(struct builder *b, int value, lg_role role, int idx, int access)
{
    const lg_operand operand = {value, role, idx, access};
    b->operands[b->op.num_operands] = operand;
    return b->op.num_operands++;
}

void lgi_builder_set_work(struct builder *b, const lgi_phase_facts *phase)
{
    b->op.flops = phase->flops;
    b->op.traffic_bytes = phase->traffic_bytes;
    memcpy(b->op.workspace_bytes, phase->workspace_bytes, sizeof b->op.workspace_bytes);
}

/* One flop per four bytes. */
void lgi_builder_set_work_from_operands(struct builder *b)
{
    for (int i = 0; i < b->op.num_operands; i++) {
        const lg_operand *operand = &b->op.operands[i];
        const double bytes = (double)b->graph->values[operand->value].bytes;
        b->op.traffic_bytes += bytes * (operand->access == LG_ACCESS_READ_WRITE ? 2.0 : 1.0);
    }
    b->op.flops = b->op.traffic_bytes / 4.0;
}

/* Where there are several ranks, the same op may be on each. */
static void add_rank_suffix(const struct builder *b, char *name, size_t name_bytes, int rank)
{
    if (b->num_ranks > 1) {
        const size_t length = strlen(name);
        (void)snprintf(name + length, name_bytes - length, "@%d", rank);
    }
}

lg_status lgi_builder_finish_op(struct builder *b)
{
    add_rank_suffix(b, b->name, sizeof b->name, b->op.rank);
    return lgi_graph_add_op(b->graph, &b->op, NULL);
}

lg_status lgi_builder_add_value(struct builder *b, lg_value_kind kind, int layer, int micro_batch,
                                int rank, lgi_layout layout, int *out, const char *name_format, ...)
{
    char name[LGI_GRAPH_NAME_BYTES];
    va_list args;
    va_start(args, name_format);
    (void)vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    add_rank_suffix(b, name, sizeof name, rank);
    lg_value_info value;
    memset(&value, 0, sizeof value);
    value.name = name;
    value.kind = kind;
    value.layer = layer;
    value.micro_batch = micro_batch;
    value.rank = rank;
    value.layout = layout.id;
    value.bytes = layout.bytes;
    return lgi_graph_add_value(b->graph, &value, out);
}
