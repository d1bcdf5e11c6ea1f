/* Routes are made once for each communicator, and on the spot for messages; flows stand in a list at each of their wires. */
#include "plan/plan_network.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "plan/plan_machine.h"

/* One wire for each ordered pair within a host: bound on their number. */
#define MAX_PAIR_WIRES ((int64_t)1 << 24)
#define NS_PER_S 1e9

static int host_of(const lgi_network *self, int rank)
{
    return rank / self->machine->ranks_per_host;
}

/* The wires from one rank to another; returns how many. */
static int hop_wires(const lgi_network *self, int from, int to, int *wires)
{
    const int a = host_of(self, from);
    const int b = host_of(self, to);
    if (a != b) {
        wires[0] = a;
        wires[1] = self->num_hosts + b;
        return 2;
    }
    const int per_host = self->machine->ranks_per_host;
    wires[0] = 2 * self->num_hosts +
               (self->machine->intra_host.is_shared ? a : (from * per_host) + to % per_host);
    return 1;
}

static double hop_latency_ns(const lgi_network *self, int from, int to)
{
    return host_of(self, from) == host_of(self, to) ? self->machine->intra_host.latency_ns
                                                    : self->machine->inter_host.latency_ns;
}

static int member_rank(const lgi_network *self, int group, int place)
{
    return lg_graph_op(self->graph, self->groups->ops[self->groups->begin[group] + place])->rank;
}

typedef struct route_maker {
    const lgi_network *network;
    lgi_route *route;
    int *at; /* by wire: -1 or its place in the route */
} route_maker;

static void add_hop(void *user, int from, int to, double frac)
{
    route_maker *const self = user;
    lgi_route *const route = self->route;
    int wires[2];
    const int num = hop_wires(self->network, from, to, wires);
    route->frac = route->frac > 0.0 ? route->frac : frac;
    for (int k = 0; k < num; k++) {
        int *const at = &self->at[wires[k]];
        if (*at < 0) {
            *at = route->num_wires;
            route->wires[route->num_wires++] = wires[k];
        }
        route->parts[*at] += frac / route->frac;
    }
}

/* The hops of a reduction over the ranks of a group. */
static lg_status make_reduction(lgi_network *self, lgi_route *route, int group, int *at)
{
    const int num_ranks = lgi_groups_size(self->groups, group);
    const size_t num_hops = 2 * (size_t)num_ranks * (size_t)num_ranks;
    const size_t most = num_hops < (size_t)self->num_wires ? num_hops : (size_t)self->num_wires;
    route_maker maker = {.network = self, .route = route, .at = at};
    int *ranks = NULL;
    LG_TRY(lgi_calloc(&route->wires, most, sizeof *route->wires));
    LG_TRY(lgi_calloc(&route->parts, most, sizeof *route->parts));
    LG_TRY(lgi_calloc(&ranks, (size_t)num_ranks, sizeof *ranks));
    for (int i = 0; i < num_ranks; i++) {
        ranks[i] = member_rank(self, group, i);
    }
    lgi_reduction_hops(self->machine, ranks, num_ranks, add_hop, &maker);
    route->latency_ns = lgi_reduction_latency_ns(self->machine, ranks, num_ranks);
    for (int i = 0; i < route->num_wires; i++) {
        at[route->wires[i]] = -1;
    }
    lgi_free(ranks);
    return LG_OK;
}

static lg_status make_wires(lgi_network *self)
{
    const int num_wires = self->num_wires;
    const lg_machine *const machine = self->machine;
    LG_TRY(lgi_calloc(&self->bytes_per_ns, (size_t)num_wires, sizeof(double)));
    LG_TRY(lgi_calloc(&self->load, (size_t)num_wires, sizeof *self->load));
    LG_TRY(lgi_calloc(&self->head, (size_t)num_wires, sizeof(int)));
    for (int i = 0; i < num_wires; i++) {
        self->bytes_per_ns[i] = (i < 2 * self->num_hosts ? machine->inter_host.bytes_per_s
                                                         : machine->intra_host.bytes_per_s) /
                                NS_PER_S;
        self->head[i] = -1;
    }
    return LG_OK;
}

static lg_status make_routes(lgi_network *self)
{
    const int num_wires = self->num_wires;
    lg_status status = LG_OK;
    int *at = NULL;
    LG_TRY_GOTO(
        lgi_calloc(&self->routes, (size_t)self->groups->num_communicators, sizeof(lgi_route)));
    LG_TRY_GOTO(lgi_calloc(&at, (size_t)num_wires, sizeof(int)));
    memset(at, -1, (size_t)num_wires * sizeof(int));
    for (int i = 0; i < self->groups->num_communicators; i++) {
        LG_TRY_GOTO(make_reduction(self, &self->routes[i], self->groups->example[i], at));
    }
out:
    lgi_free(at);
    return status;
}

/* Each flow gets as many nodes as the longest of its routes has wires. */
static lg_status make_flows(lgi_network *self, int num_flows, const int *flow_of_group)
{
    LG_TRY(lgi_calloc(&self->flows, (size_t)num_flows, sizeof(lgi_flow)));
    for (int g = 0; g < self->groups->num_groups; g++) {
        if (flow_of_group[g] < 0) {
            continue;
        }
        int *const num = &self->flows[flow_of_group[g]].first_node;
        const int communicator = self->groups->communicator[g];
        const int num_wires = communicator < 0 ? 2 : self->routes[communicator].num_wires;
        *num = num_wires > *num ? num_wires : *num;
    }
    int num_nodes = 0;
    for (int i = 0; i < num_flows; i++) {
        const int num = self->flows[i].first_node;
        self->flows[i].first_node = num_nodes;
        num_nodes += num;
    }
    LG_TRY(lgi_calloc(&self->node_flow, (size_t)num_nodes, sizeof(int)));
    LG_TRY(lgi_calloc(&self->node_next, (size_t)num_nodes, sizeof(int)));
    LG_TRY(lgi_calloc(&self->node_prev, (size_t)num_nodes, sizeof(int)));
    for (int i = 0; i < num_flows; i++) {
        const int end = i + 1 < num_flows ? self->flows[i + 1].first_node : num_nodes;
        for (int node = self->flows[i].first_node; node < end; node++) {
            self->node_flow[node] = i;
        }
    }
    return LG_OK;
}

lg_status lgi_network_init(lgi_network *out, const lg_machine *machine, const lgi_groups *groups,
                           const lg_graph *graph, lgi_events *events, int num_flows,
                           const int *flow_of_group)
{
    *out = (lgi_network){.machine = machine, .groups = groups, .graph = graph, .events = events};
    LG_TRY(lgi_machine_check_links(machine, lg_graph_num_ranks(graph)));
    lg_status status = LG_OK;
    out->num_hosts = (machine->num_ranks + machine->ranks_per_host - 1) / machine->ranks_per_host;
    const int64_t num_pairs =
        (int64_t)out->num_hosts * machine->ranks_per_host * machine->ranks_per_host;
    if (!machine->intra_host.is_shared && num_pairs > MAX_PAIR_WIRES) {
        LG_FAIL(LG_NOT_SUPPORTED,
                "machine: %d ranks, %d of them on a host, make %lld wires; allowed: at most %lld",
                machine->num_ranks, machine->ranks_per_host, (long long)num_pairs,
                (long long)MAX_PAIR_WIRES);
    }
    out->num_wires =
        2 * out->num_hosts + (machine->intra_host.is_shared ? out->num_hosts : (int)num_pairs);
    LG_TRY_GOTO(make_wires(out));
    LG_TRY_GOTO(make_routes(out));
    LG_TRY_GOTO(make_flows(out, num_flows, flow_of_group));
out:
    if (status != LG_OK) {
        lgi_network_deinit(out);
    }
    return status;
}

void lgi_network_deinit(lgi_network *network)
{
    for (int i = 0; network->routes != NULL && i < network->groups->num_communicators; i++) {
        lgi_free(network->routes[i].wires);
        lgi_free(network->routes[i].parts);
    }
    lgi_free(network->routes);
    lgi_free(network->bytes_per_ns);
    lgi_free(network->load);
    lgi_free(network->head);
    lgi_free(network->flows);
    lgi_free(network->node_flow);
    lgi_free(network->node_next);
    lgi_free(network->node_prev);
    *network = (lgi_network){0};
}

double lgi_network_latency_ns(const lgi_network *network, int group)
{
    const int communicator = network->groups->communicator[group];
    return communicator >= 0 ? network->routes[communicator].latency_ns
                             : hop_latency_ns(network, member_rank(network, group, 0),
                                              member_rank(network, group, 1));
}

/* Gives the flow its share of now. */
static void update_share(lgi_network *self, int idx, double now_ns)
{
    lgi_flow *const flow = &self->flows[idx];
    double share = INFINITY;
    for (int i = 0; i < flow->num_wires; i++) {
        const int wire = flow->wires[i];
        share = fmin(share, self->bytes_per_ns[wire] / self->load[wire]);
    }
    if (share == flow->bytes_per_ns) {
        return;
    }
    flow->bytes_left = fmax(0.0, flow->bytes_left - (now_ns - flow->since_ns) * flow->bytes_per_ns);
    flow->since_ns = now_ns;
    flow->bytes_per_ns = share;
    lgi_events_set(self->events, idx, now_ns + flow->bytes_left / share);
}

static void update_wires(lgi_network *self, const int *wires, int num_wires, double now_ns)
{
    for (int i = 0; i < num_wires; i++) {
        for (int node = self->head[wires[i]]; node >= 0; node = self->node_next[node]) {
            update_share(self, self->node_flow[node], now_ns);
        }
    }
}

bool lgi_network_start(lgi_network *network, int idx, int group, double now_ns)
{
    static const double one_part[2] = {1.0, 1.0};
    lgi_flow *const flow = &network->flows[idx];
    const int communicator = network->groups->communicator[group];
    const int first = network->groups->ops[network->groups->begin[group]];
    const lg_op_info *const info = lg_graph_op(network->graph, first);
    const double num_bytes = (double)info->message_bytes;
    if (communicator < 0) {
        const bool is_send = info->kind == LG_OP_SEND;
        flow->num_wires = hop_wires(network, is_send ? info->rank : info->peer,
                                    is_send ? info->peer : info->rank, flow->own_wires);
        flow->wires = flow->own_wires;
        flow->parts = one_part;
        flow->bytes_left = num_bytes;
    } else {
        flow->num_wires = network->routes[communicator].num_wires;
        flow->wires = network->routes[communicator].wires;
        flow->parts = network->routes[communicator].parts;
        flow->bytes_left = network->routes[communicator].frac * num_bytes;
    }
    if (!(flow->bytes_left > 0.0)) {
        flow->num_wires = 0;
        return false;
    }
    flow->since_ns = now_ns;
    flow->bytes_per_ns = 0.0;
    for (int i = 0; i < flow->num_wires; i++) {
        const int wire = flow->wires[i];
        const int node = flow->first_node + i;
        network->load[wire] += flow->parts[i];
        network->node_prev[node] = -1;
        network->node_next[node] = network->head[wire];
        if (network->head[wire] >= 0) {
            network->node_prev[network->head[wire]] = node;
        }
        network->head[wire] = node;
    }
    update_wires(network, flow->wires, flow->num_wires, now_ns);
    return true;
}

void lgi_network_end(lgi_network *network, int idx, double now_ns)
{
    lgi_flow *const flow = &network->flows[idx];
    for (int i = 0; i < flow->num_wires; i++) {
        const int wire = flow->wires[i];
        const int node = flow->first_node + i;
        const int prev = network->node_prev[node];
        const int next = network->node_next[node];
        network->load[wire] -= flow->parts[i];
        if (prev >= 0) {
            network->node_next[prev] = next;
        } else {
            network->head[wire] = next;
        }
        if (next >= 0) {
            network->node_prev[next] = prev;
        }
    }
    const int num_wires = flow->num_wires;
    flow->num_wires = 0;
    update_wires(network, flow->wires, num_wires, now_ns);
}
