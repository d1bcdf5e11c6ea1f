/*
 * Lower bounds on the step time of any plan of a graph, whatever its orders, lanes and lags. Each holds in the steady state:
 *
 * Busiest rank: in every step all compute ops of a rank take core time, at least that of their thriftiest width.
 *
 * Critical path: an edge of distance 1 (an update, and the forward of the next step that reads what it writes) closes a
 * path within a step to a cycle; steps cannot follow one another faster than such a cycle is long, since edges tie runs of steps
 * whatever the iteration they are in. Messages count with their wires to themselves.
 *
 * Busiest link: all bytes of a wire at its full rate; latencies do not count, they may overlap.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_groups.h"
#include "plan/plan_machine.h"
#include "plan/strategies/auto.h"

/* Cycles looked at: those through the forwards that come first are the longest. */
#define MAX_CYCLES 32
/* As the simulator. */
#define MAX_PAIR_WIRES ((int64_t)1 << 24)
#define NS_PER_S 1e9

typedef struct bounder {
    const lg_graph *graph;
    const lg_machine *machine;
    const lg_costs *costs;
    lgi_groups groups;
    double *op_ns; /* by op: at least; of a group by its first op, 0 by the others of a message */
    int *ranks;    /* scratch: of a group */
} bounder;

static bool is_compute(const lg_op_info *info)
{
    return !lgi_is_comm_op(info->kind);
}

static double least_ns(const bounder *b, int op, bool is_core_time)
{
    const lg_graph_opts *const opts = lg_graph_options(b->graph);
    double ns = INFINITY;
    for (int i = 0; i < opts->num_widths; i++) {
        if (opts->widths[i] <= b->machine->num_cores) {
            ns = fmin(ns, lg_costs_op_ns(b->costs, op, i) * (is_core_time ? opts->widths[i] : 1));
        }
    }
    return isfinite(ns) ? ns : 0.0;
}

static lg_status bound_ranks(const bounder *b, double *out_ns)
{
    const int num_ranks = lg_graph_num_ranks(b->graph);
    double *work_ns = NULL;
    LG_TRY(lgi_calloc(&work_ns, (size_t)num_ranks, sizeof *work_ns));
    for (int op = 0; op < lg_graph_num_ops(b->graph); op++) {
        const lg_op_info *const info = lg_graph_op(b->graph, op);
        if (is_compute(info)) {
            work_ns[info->rank] += least_ns(b, op, true) / b->machine->num_cores;
        }
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        *out_ns = fmax(*out_ns, work_ns[rank]);
    }
    lgi_free(work_ns);
    return LG_OK;
}

/* --- links -------------------------------------------------------------------------------------------------------------- */

static int host_of(const lg_machine *machine, int rank)
{
    return rank / machine->ranks_per_host;
}

static const lg_link *link_of(const lg_machine *machine, int from, int to)
{
    return host_of(machine, from) == host_of(machine, to) ? &machine->intra_host
                                                          : &machine->inter_host;
}

/* Adds what flows from one rank to another to the wires on the way: hosts out, hosts in, then those within hosts. */
static void add_hop(const lg_machine *machine, double *wire_ns, int num_hosts, int from, int to,
                    double num_bytes)
{
    const double ns = num_bytes / link_of(machine, from, to)->bytes_per_s * NS_PER_S;
    const int a = host_of(machine, from);
    const int b = host_of(machine, to);
    if (a != b) {
        wire_ns[a] += ns;
        wire_ns[num_hosts + b] += ns;
    } else {
        const int per_host = machine->ranks_per_host;
        wire_ns[2 * num_hosts +
                (machine->intra_host.is_shared ? a : from * per_host + to % per_host)] += ns;
    }
}

typedef struct hop_adder {
    const bounder *b;
    double *wire_ns;
    int num_hosts;
    double num_bytes; /* of the reduction */
} hop_adder;

static void add_reduction_hop(void *user, int from, int to, double frac)
{
    const hop_adder *const self = user;
    add_hop(self->b->machine, self->wire_ns, self->num_hosts, from, to, frac * self->num_bytes);
}

/* The ranks that meet. */
static int members(const bounder *b, int group, int *ranks)
{
    const int num = lgi_groups_size(&b->groups, group);
    for (int i = 0; i < num; i++) {
        ranks[i] = lg_graph_op(b->graph, b->groups.ops[b->groups.begin[group] + i])->rank;
    }
    return num;
}

static void add_group(const bounder *b, double *wire_ns, int num_hosts, int group)
{
    const lg_op_info *const first = lg_graph_op(b->graph, b->groups.ops[b->groups.begin[group]]);
    const double num_bytes = (double)first->message_bytes;
    if (first->kind == LG_OP_ALL_REDUCE) {
        hop_adder adder = {b, wire_ns, num_hosts, num_bytes};
        const int num = members(b, group, b->ranks);
        lgi_reduction_hops(b->machine, b->ranks, num, add_reduction_hop, &adder);
    } else {
        const bool is_send = first->kind == LG_OP_SEND;
        add_hop(b->machine, wire_ns, num_hosts, is_send ? first->rank : first->peer,
                is_send ? first->peer : first->rank, num_bytes);
    }
}

static lg_status bound_links(const bounder *b, double *out_ns)
{
    const lg_machine *const machine = b->machine;
    const int num_hosts =
        (machine->num_ranks + machine->ranks_per_host - 1) / machine->ranks_per_host;
    const int64_t num_pairs =
        (int64_t)num_hosts * machine->ranks_per_host * machine->ranks_per_host;
    const int64_t num_inner = machine->intra_host.is_shared ? num_hosts : num_pairs;
    double *wire_ns = NULL;
    if (num_inner > MAX_PAIR_WIRES) {
        return LG_OK;
    }
    const size_t num_wires = 2 * (size_t)num_hosts + (size_t)num_inner;
    LG_TRY(lgi_calloc(&wire_ns, num_wires, sizeof *wire_ns));
    for (int group = 0; group < b->groups.num_groups; group++) {
        add_group(b, wire_ns, num_hosts, group);
    }
    for (size_t i = 0; i < num_wires; i++) {
        *out_ns = fmax(*out_ns, wire_ns[i]);
    }
    lgi_free(wire_ns);
    return LG_OK;
}

/* --- paths -------------------------------------------------------------------------------------------------------------- */

/* Time of a group with the wires to itself. */
static double group_ns(const bounder *b, int group)
{
    const lg_op_info *const first = lg_graph_op(b->graph, b->groups.ops[b->groups.begin[group]]);
    const double num_bytes = (double)first->message_bytes;
    const int num = members(b, group, b->ranks);
    if (first->kind == LG_OP_ALL_REDUCE) {
        return lgi_reduction_ns(b->machine, b->ranks, num, num_bytes);
    }
    const lg_link *const link = link_of(b->machine, first->rank, first->peer);
    return link->latency_ns + num_bytes / link->bytes_per_s * NS_PER_S;
}

static lg_status time_ops(bounder *b)
{
    const int num_ops = lg_graph_num_ops(b->graph);
    LG_TRY(lgi_calloc(&b->op_ns, (size_t)num_ops, sizeof(double)));
    for (int op = 0; op < num_ops; op++) {
        const lg_op_info *const info = lg_graph_op(b->graph, op);
        b->op_ns[op] = info->group >= 0 ? group_ns(b, info->group) : least_ns(b, op, false);
    }
    return LG_OK;
}

/* The longest cycle that the edges of distance 1 from `last` close. `path_ns`: scratch by op: from its start to the end of `last`. */
static double cycle_ns(const bounder *b, int last, double *path_ns)
{
    const lg_edge *const edges = lg_graph_edges(b->graph);
    double longest_ns = 0.0;
    for (int op = 0; op < last; op++) {
        path_ns[op] = -1.0;
    }
    path_ns[last] = b->op_ns[last];
    int begin = lg_graph_num_edges(b->graph);
    while (begin > 0 && edges[begin - 1].to > last) {
        begin--;
    }
    for (int i = begin - 1; i >= 0; i--) { /* edges inside a step ascend: `to` is complete here */
        const lg_edge *const edge = &edges[i];
        if (edge->distance == 0 && path_ns[edge->to] >= 0.0 && edge->from < edge->to) {
            const double own_ns = lgi_is_meeting(b->graph, edge) ? 0.0 : b->op_ns[edge->from];
            path_ns[edge->from] = fmax(path_ns[edge->from], own_ns + path_ns[edge->to]);
        }
    }
    for (int i = 0; i < lg_graph_num_edges(b->graph); i++) {
        if (edges[i].distance == 1 && edges[i].from == last && edges[i].to <= last) {
            longest_ns = fmax(longest_ns, path_ns[edges[i].to]);
        }
    }
    return longest_ns;
}

static lg_status bound_cycles(const bounder *b, double *out_ns)
{
    const lg_edge *const edges = lg_graph_edges(b->graph);
    double *path_ns = NULL;
    int lasts[MAX_CYCLES];
    int num = 0;
    LG_TRY(lgi_calloc(&path_ns, (size_t)lg_graph_num_ops(b->graph), sizeof *path_ns));
    for (int i = 0; i < lg_graph_num_edges(b->graph) && num < MAX_CYCLES; i++) {
        bool is_known = edges[i].distance != 1;
        for (int k = 0; k < num && !is_known; k++) {
            is_known = lasts[k] == edges[i].from;
        }
        if (!is_known) {
            lasts[num++] = edges[i].from;
            *out_ns = fmax(*out_ns, cycle_ns(b, edges[i].from, path_ns));
        }
    }
    lgi_free(path_ns);
    return LG_OK;
}

lg_status lg_plan_bound(lg_bound *out, const lg_graph *graph, const lg_machine *machine,
                        const lg_costs *costs)
{
    lg_status status = LG_OK;
    bounder b = {.graph = graph, .machine = machine, .costs = costs};
    *out = (lg_bound){0};
    LG_TRY(lgi_machine_check(machine));
    LG_TRY(lgi_machine_check_links(machine, lg_graph_num_ranks(graph)));
    LG_TRY_GOTO(lgi_groups_init(&b.groups, graph));
    LG_TRY_GOTO(lgi_calloc(&b.ranks, (size_t)lg_graph_num_ranks(graph), sizeof *b.ranks));
    LG_TRY_GOTO(time_ops(&b));
    LG_TRY_GOTO(bound_ranks(&b, &out->busiest_rank_ns));
    LG_TRY_GOTO(bound_links(&b, &out->busiest_link_ns));
    LG_TRY_GOTO(bound_cycles(&b, &out->critical_path_ns));
    out->step_ns = fmax(out->busiest_rank_ns, fmax(out->critical_path_ns, out->busiest_link_ns));
out:
    lgi_groups_deinit(&b.groups);
    lgi_free(b.op_ns);
    lgi_free(b.ranks);
    return status;
}
