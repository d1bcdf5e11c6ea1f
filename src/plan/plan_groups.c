/* Groups of a graph: collected, checked by themselves, and checked against a plan's lanes. */
#include "plan/plan_groups.h"

#include "base/alloc.h"
#include "base/check.h"

static bool can_meet(lg_op_kind kind)
{
    return kind == LG_OP_SEND || kind == LG_OP_RECV || kind == LG_OP_ALL_REDUCE;
}

/* Members by group, ascending by rank; ops of one rank keep their order. */
static lg_status collect_members(lgi_groups *out, const lg_graph *graph)
{
    const int num_ops = lg_graph_num_ops(graph);
    const size_t num_groups = (size_t)out->num_groups;
    int num_members = 0;
    LG_TRY(lgi_calloc(&out->begin, num_groups + 2, sizeof *out->begin));
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (can_meet(info->kind) && (info->group < 0 || info->group >= out->num_groups)) {
            LG_FAIL(LG_INVALID_ARG, "op '%s' meets no other: its group is %d", info->name,
                    info->group);
        }
        if (info->group >= 0) {
            out->begin[info->group + 2]++;
            num_members++;
        }
    }
    for (size_t g = 0; g < num_groups; g++) {
        out->begin[g + 2] += out->begin[g + 1];
    }
    LG_TRY(lgi_calloc(&out->ops, (size_t)num_members, sizeof *out->ops));
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        if (info->group < 0) {
            continue;
        }
        int at = out->begin[info->group + 1]++;
        /* nearly always ascending already */
        while (at > out->begin[info->group] &&
               lg_graph_op(graph, out->ops[at - 1])->rank > info->rank) {
            out->ops[at] = out->ops[at - 1];
            at--;
        }
        out->ops[at] = op;
    }
    return LG_OK;
}

static lg_status check_message(const lgi_groups *groups, const lg_graph *graph, int group)
{
    const int first = groups->ops[groups->begin[group]];
    const lg_op_info *const a = lg_graph_op(graph, first);
    if (lgi_groups_size(groups, group) != 2) {
        LG_FAIL(LG_INVALID_ARG,
                "'%s': its message (group %d) has %d ends, not one SEND and one RECV", a->name,
                group, lgi_groups_size(groups, group));
    }
    const lg_op_info *const b = lg_graph_op(graph, groups->ops[groups->begin[group] + 1]);
    if (a->kind == b->kind || b->kind == LG_OP_ALL_REDUCE) {
        LG_FAIL(LG_INVALID_ARG, "'%s' and '%s' (group %d) are a %s and a %s, not a SEND and a RECV",
                a->name, b->name, group, lg_op_kind_name(a->kind), lg_op_kind_name(b->kind));
    }
    if (a->rank == b->rank || a->peer != b->rank || b->peer != a->rank) {
        LG_FAIL(LG_INVALID_ARG,
                "'%s' of rank %d is for rank %d, but '%s' of rank %d is for rank %d (group %d)",
                a->name, a->rank, a->peer, b->name, b->rank, b->peer, group);
    }
    return LG_OK;
}

static lg_status check_group(const lgi_groups *groups, const lg_graph *graph, int group)
{
    const int begin = groups->begin[group];
    const int end = groups->begin[group + 1];
    if (begin == end) {
        return LG_OK;
    }
    const lg_op_info *const first = lg_graph_op(graph, groups->ops[begin]);
    if (first->kind != LG_OP_ALL_REDUCE) {
        LG_TRY(check_message(groups, graph, group));
    }
    for (int i = begin; i < end; i++) {
        const lg_op_info *const info = lg_graph_op(graph, groups->ops[i]);
        if (first->kind == LG_OP_ALL_REDUCE && info->kind != LG_OP_ALL_REDUCE) {
            LG_FAIL(LG_INVALID_ARG, "'%s' and '%s' (group %d) are of different kinds", first->name,
                    info->name, group);
        }
        if (i > begin && info->rank == lg_graph_op(graph, groups->ops[i - 1])->rank) {
            LG_FAIL(LG_INVALID_ARG, "'%s' and '%s' (group %d) are on one rank, %d",
                    lg_graph_op(graph, groups->ops[i - 1])->name, info->name, group, info->rank);
        }
        if (info->message_bytes != first->message_bytes || info->message_bytes < 0) {
            LG_FAIL(LG_INVALID_ARG,
                    "'%s' moves %lld bytes, but '%s', which it meets (group %d), %lld", first->name,
                    (long long)first->message_bytes, info->name, group,
                    (long long)info->message_bytes);
        }
    }
    return LG_OK;
}

static bool has_same_ranks(const lgi_groups *groups, const lg_graph *graph, int a, int b)
{
    const int num = lgi_groups_size(groups, a);
    if (num != lgi_groups_size(groups, b)) {
        return false;
    }
    for (int i = 0; i < num; i++) {
        if (lg_graph_op(graph, groups->ops[groups->begin[a] + i])->rank !=
            lg_graph_op(graph, groups->ops[groups->begin[b] + i])->rank) {
            return false;
        }
    }
    return true;
}

/* Communicators: one list for each first rank, linked through `next`. */
static lg_status number_communicators(lgi_groups *out, const lg_graph *graph)
{
    const size_t num_groups = (size_t)out->num_groups;
    const size_t num_ranks = (size_t)lg_graph_num_ranks(graph);
    lg_status status = LG_OK;
    int *head = NULL; /* by rank: 1 + the last communicator that begins with it */
    int *next = NULL; /* by communicator: the same */
    LG_TRY_GOTO(lgi_calloc(&out->communicator, num_groups, sizeof *out->communicator));
    LG_TRY_GOTO(lgi_calloc(&out->example, num_groups, sizeof *out->example));
    LG_TRY_GOTO(lgi_calloc(&head, num_ranks, sizeof *head));
    LG_TRY_GOTO(lgi_calloc(&next, num_groups, sizeof *next));
    for (int g = 0; g < out->num_groups; g++) {
        out->communicator[g] = -1;
        if (out->begin[g] == out->begin[g + 1]) {
            continue;
        }
        const lg_op_info *const first = lg_graph_op(graph, out->ops[out->begin[g]]);
        if (first->kind != LG_OP_ALL_REDUCE) {
            continue;
        }
        int found = head[first->rank];
        while (found > 0 && !has_same_ranks(out, graph, out->example[found - 1], g)) {
            found = next[found - 1];
        }
        if (found == 0) {
            out->example[out->num_communicators] = g;
            next[out->num_communicators] = head[first->rank];
            found = ++out->num_communicators;
            head[first->rank] = found;
        }
        out->communicator[g] = found - 1;
    }
out:
    lgi_free(head);
    lgi_free(next);
    return status;
}

lg_status lgi_groups_init(lgi_groups *out, const lg_graph *graph)
{
    lg_status status = LG_OK;
    *out = (lgi_groups){.num_groups = lg_graph_num_groups(graph)};
    LG_TRY_GOTO(collect_members(out, graph));
    for (int g = 0; g < out->num_groups; g++) {
        LG_TRY_GOTO(check_group(out, graph, g));
    }
    LG_TRY_GOTO(number_communicators(out, graph));
out:
    if (status != LG_OK) {
        lgi_groups_deinit(out);
    }
    return status;
}

void lgi_groups_deinit(lgi_groups *groups)
{
    lgi_free(groups->begin);
    lgi_free(groups->ops);
    lgi_free(groups->communicator);
    lgi_free(groups->example);
    *groups = (lgi_groups){0};
}

lg_status lgi_groups_check_lags(const lgi_groups *groups, const lg_graph *graph, const int *lag)
{
    for (int g = 0; g < groups->num_groups; g++) {
        for (int i = groups->begin[g] + 1; i < groups->begin[g + 1]; i++) {
            const int a = groups->ops[i - 1];
            const int b = groups->ops[i];
            if (lag[a] != lag[b]) {
                LG_FAIL(LG_INVALID_ARG,
                        "'%s' (rank %d) has lag %d, but '%s' (rank %d), which it meets, lag %d",
                        lg_graph_op(graph, a)->name, lg_graph_op(graph, a)->rank, lag[a],
                        lg_graph_op(graph, b)->name, lg_graph_op(graph, b)->rank, lag[b]);
            }
        }
    }
    return LG_OK;
}

/* What each rank has seen of each communicator it is in. Cells: those of the communicator, by place of the rank. */
typedef struct order_check {
    const lgi_groups *groups;
    const lg_plan *plan;
    const lg_graph *graph;
    int *cell_begin; /* by communicator */
    int *num_seen;   /* by cell */
    int *lane;       /* by cell: 1 + the lane */
    int *by_ordinal; /* ordinal_begin[communicator] + n: the n-th group on its first rank */
    int *ordinal_begin;
} order_check;

static int place_in_group(const order_check *self, int group, int rank)
{
    int lo = self->groups->begin[group];
    int hi = self->groups->begin[group + 1] - 1;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (lg_graph_op(self->graph, self->groups->ops[mid])->rank < rank) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo - self->groups->begin[group];
}

static lg_status check_collective(order_check *self, int lane, int op, bool is_first_pass)
{
    const lg_op_info *const info = lg_graph_op(self->graph, op);
    const int communicator = self->groups->communicator[info->group];
    const int place = place_in_group(self, info->group, info->rank);
    const int cell = self->cell_begin[communicator] + place;
    if ((place == 0) != is_first_pass) {
        return LG_OK;
    }
    if (self->lane[cell] != 0 && self->lane[cell] != lane + 1) {
        LG_FAIL(
            LG_INVALID_ARG,
            "'%s' (rank %d) is in lane %d, but other reductions over the same ranks are in lane "
            "%d: nothing keeps them in one order",
            info->name, info->rank, lane, self->lane[cell] - 1);
    }
    self->lane[cell] = lane + 1;
    const int seen = self->num_seen[cell]++;
    int *const expected = &self->by_ordinal[self->ordinal_begin[communicator] + seen];
    if (is_first_pass) {
        *expected = info->group;
    } else if (*expected != info->group) {
        const int here = self->groups->ops[self->groups->begin[*expected] + place];
        const int first = self->groups->ops[self->groups->begin[*expected]];
        LG_FAIL(LG_INVALID_ARG,
                "deadlock: reductions in different orders: rank %d has '%s' (lane %d) where rank "
                "%d has '%s', "
                "so '%s' comes later there",
                info->rank, info->name, lane, lg_graph_op(self->graph, first)->rank,
                lg_graph_op(self->graph, first)->name, lg_graph_op(self->graph, here)->name);
    }
    return LG_OK;
}

lg_status lgi_groups_check_collectives(const lgi_groups *groups, const lg_plan *plan,
                                       const lg_graph *graph)
{
    lg_status status = LG_OK;
    order_check self = {.groups = groups, .plan = plan, .graph = graph};
    const size_t num = (size_t)groups->num_communicators;
    if (num == 0) {
        return LG_OK;
    }
    LG_TRY_GOTO(lgi_calloc(&self.cell_begin, num + 1, sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&self.ordinal_begin, num + 1, sizeof(int)));
    for (size_t c = 0; c < num; c++) {
        self.cell_begin[c + 1] = self.cell_begin[c] + lgi_groups_size(groups, groups->example[c]);
    }
    for (int g = 0; g < groups->num_groups; g++) {
        if (groups->communicator[g] >= 0) {
            self.ordinal_begin[groups->communicator[g] + 1]++;
        }
    }
    for (size_t c = 0; c < num; c++) {
        self.ordinal_begin[c + 1] += self.ordinal_begin[c];
    }
    LG_TRY_GOTO(lgi_calloc(&self.num_seen, (size_t)self.cell_begin[num], sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&self.lane, (size_t)self.cell_begin[num], sizeof(int)));
    LG_TRY_GOTO(lgi_calloc(&self.by_ordinal, (size_t)self.ordinal_begin[num], sizeof(int)));
    for (int pass = 0; pass < 2; pass++) {
        for (int lane = 0; lane < plan->num_lanes; lane++) {
            for (int pos = 0; pos < plan->lanes[lane].num_entries; pos++) {
                const int op = plan->lanes[lane].entries[pos].op;
                if (lg_graph_op(graph, op)->kind == LG_OP_ALL_REDUCE) {
                    LG_TRY_GOTO(check_collective(&self, lane, op, pass == 0));
                }
            }
        }
    }
out:
    lgi_free(self.cell_begin);
    lgi_free(self.ordinal_begin);
    lgi_free(self.num_seen);
    lgi_free(self.lane);
    lgi_free(self.by_ordinal);
    return status;
}
