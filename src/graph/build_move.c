/*
 * Moving values: into another layout (REORDER), onto another rank (SEND and RECV). A copy that was made once serves all
 * later readers.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "graph/builder.h"

/* The copy of `value` with this layout on this rank, or -1. */
static int find_moved(const struct builder *b, int value, int layout, int rank)
{
    for (size_t i = 0; i < b->num_moved; i++) {
        const struct moved_value *moved = &b->moved[i];
        if (moved->value == value && moved->layout == layout && moved->rank == rank) {
            return moved->moved;
        }
    }
    return -1;
}

/* Copies of parameters stand before all others: they outlive the micro-batch. */
static lg_status remember_moved(struct builder *b, int value, int layout, int rank, int copy)
{
    LG_TRY(lgi_grow(&b->moved, &b->moved_capacity, b->num_moved + 1, sizeof *b->moved));
    const struct moved_value moved = {value, layout, rank, copy};
    b->moved[b->num_moved] = moved;
    if (b->graph->values[value].kind == LG_VALUE_PARAM) {
        b->moved[b->num_moved] = b->moved[b->num_moved_params];
        b->moved[b->num_moved_params++] = moved;
    }
    b->num_moved++;
    return LG_OK;
}

lg_status lgi_builder_convert(struct builder *b, int value, lgi_layout layout, int *out)
{
    const lg_value_info from = b->graph->values[value];
    *out = value;
    if (from.layout == layout.id) {
        return LG_OK;
    }
    *out = find_moved(b, value, layout.id, from.rank);
    if (*out >= 0) {
        return LG_OK;
    }
    lg_value_info to = from;
    char name[LGI_GRAPH_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%.600s:layout%d", from.name, layout.id);
    to.name = name;
    to.layout = layout.id;
    to.bytes = layout.bytes;
    to.is_persistent = false;
    to.is_output = false;
    LG_TRY(lgi_graph_add_value(b->graph, &to, out));
    lgi_builder_start_op(b, LG_OP_REORDER, from.layer, from.micro_batch, from.rank);
    (void)snprintf(b->name, sizeof b->name, "reorder(%s)", name);
    (void)lgi_builder_add_operand(b, value, LG_ROLE_SRC, 0, LG_ACCESS_READ);
    (void)lgi_builder_add_operand(b, *out, LG_ROLE_DST, 0, LG_ACCESS_WRITE);
    lgi_builder_set_work_from_operands(b);
    LG_TRY(lgi_graph_add_op(b->graph, &b->op, NULL));
    return remember_moved(b, value, layout.id, from.rank, *out);
}

lg_status lgi_builder_send_values(struct builder *b, const char *what, const int *values,
                                  int num_values, int rank, int *out_values)
{
    const lg_value_info first = b->graph->values[values[0]];
    const int group = b->graph->num_groups++;
    int64_t bytes = 0;
    for (int i = 0; i < num_values; i++) {
        lg_value_info copy = b->graph->values[values[i]];
        char name[LGI_GRAPH_NAME_BYTES];
        (void)snprintf(name, sizeof name, "%.600s>%d", copy.name, rank);
        copy.name = name;
        copy.rank = rank;
        copy.is_persistent = false;
        copy.is_output = false;
        LG_TRY(lgi_graph_add_value(b->graph, &copy, &out_values[i]));
        bytes += copy.bytes;
    }
    for (int side = 0; side < 2; side++) {
        const bool is_send = side == 0;
        lgi_builder_start_op(b, is_send ? LG_OP_SEND : LG_OP_RECV, first.layer, first.micro_batch,
                             is_send ? first.rank : rank);
        (void)snprintf(b->name, sizeof b->name, "%s(%.580s,%d>%d)", is_send ? "send" : "recv", what,
                       first.rank, rank);
        b->op.group = group;
        b->op.peer = is_send ? rank : first.rank;
        b->op.message_bytes = bytes;
        for (int i = 0; i < num_values; i++) {
            (void)lgi_builder_add_operand(b, is_send ? values[i] : out_values[i],
                                          is_send ? LG_ROLE_SRC : LG_ROLE_DST, i,
                                          is_send ? LG_ACCESS_READ : LG_ACCESS_WRITE);
        }
        b->op.traffic_bytes = (double)bytes;
        LG_TRY(lgi_graph_add_op(b->graph, &b->op, NULL));
    }
    return LG_OK;
}

lg_status lgi_builder_bring(struct builder *b, int value, int rank, int *out)
{
    const lg_value_info from = b->graph->values[value];
    *out = value;
    if (from.rank == rank) {
        return LG_OK;
    }
    *out = find_moved(b, value, from.layout, rank);
    if (*out >= 0) {
        return LG_OK;
    }
    LG_TRY(lgi_builder_send_values(b, from.name, &value, 1, rank, out));
    return remember_moved(b, value, from.layout, rank, *out);
}
