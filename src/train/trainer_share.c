/*
 * What rank 0 decides for all: plans, and costs that come from a file or from everyone's measurements. A plan is made and proved
 * once, and travels as numbers; the graph that it is for is the same on all ranks (lgi_trainer_agree).
 */
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "comm/collectives.h"
#include "train/trainer_internal.h"

/* --- a plan as bytes ---------------------------------------------------------------------------------------------------- */

/* What stands before the arrays. */
struct plan_head {
    uint64_t graph_fingerprint;
    int32_t num_ranks, num_lanes, num_syncs, num_values, num_ops;
    int32_t name_bytes; /* with the final 0 */
};

/* Either counts, or writes, or reads: one list of what a plan is made of serves all three. */
struct stream {
    char *bytes; /* NULL: only counts */
    int64_t num_bytes;
    bool is_reading;
};

static void pass(struct stream *s, void *data, size_t num_bytes)
{
    if (s->bytes != NULL && s->is_reading) {
        memcpy(data, s->bytes + s->num_bytes, num_bytes);
    } else if (s->bytes != NULL) {
        memcpy(s->bytes + s->num_bytes, data, num_bytes);
    }
    s->num_bytes += (int64_t)num_bytes;
}

/* An array that belongs to the plan. */
static lg_status pass_array(struct stream *s, void *array, int num, size_t item_bytes)
{
    void **at = array;
    if (s->is_reading) {
        LG_TRY(lgi_calloc(at, (size_t)num, item_bytes));
    }
    if (num > 0) {
        pass(s, *at, (size_t)num * item_bytes);
    }
    return LG_OK;
}

static lg_status pass_plan(struct stream *s, lg_plan *plan)
{
    struct plan_head head = {plan->graph_fingerprint,
                             plan->num_ranks,
                             plan->num_lanes,
                             plan->num_syncs,
                             plan->num_values,
                             plan->num_ops,
                             s->is_reading ? 0 : (int32_t)strlen(plan->strategy) + 1};
    pass(s, &head, sizeof head);
    plan->graph_fingerprint = head.graph_fingerprint;
    plan->num_ranks = head.num_ranks;
    plan->num_syncs = head.num_syncs;
    plan->num_values = head.num_values;
    plan->num_ops = head.num_ops;
    LG_TRY(pass_array(s, &plan->strategy, head.name_bytes, 1));
    if (s->is_reading) {
        LG_TRY(lgi_calloc(&plan->lanes, (size_t)head.num_lanes, sizeof *plan->lanes));
    }
    plan->num_lanes = head.num_lanes;
    for (int i = 0; i < plan->num_lanes; i++) {
        lg_plan_entry *entries = plan->lanes[i].entries;
        pass(s, &plan->lanes[i], sizeof plan->lanes[i]);
        plan->lanes[i].entries = entries; /* not the other rank's pointer */
        LG_TRY(pass_array(s, &plan->lanes[i].entries, plan->lanes[i].num_entries,
                          sizeof *plan->lanes[i].entries));
    }
    LG_TRY(pass_array(s, &plan->syncs, plan->num_syncs, sizeof *plan->syncs));
    LG_TRY(pass_array(s, &plan->values, plan->num_values, sizeof *plan->values));
    LG_TRY(pass_array(s, &plan->workspace_offset_bytes, plan->num_ops, sizeof(int64_t)));
    return pass_array(s, &plan->peak_bytes, plan->num_ranks, sizeof(int64_t));
}

static lg_status send_plan(lg_trainer *trainer, lg_plan *plan)
{
    struct stream s = {NULL, 0, false};
    lg_status status = LG_OK;
    LG_TRY(pass_plan(&s, plan));
    int64_t num_bytes = s.num_bytes;
    LG_TRY(lgi_calloc(&s.bytes, (size_t)num_bytes, 1));
    s.num_bytes = 0;
    LG_TRY_GOTO(pass_plan(&s, plan));
    LG_TRY_GOTO(lgi_comm_broadcast(trainer->comm, 0, &num_bytes, sizeof num_bytes));
    LG_TRY_GOTO(lgi_comm_broadcast(trainer->comm, 0, s.bytes, num_bytes));
out:
    lgi_free(s.bytes);
    return status;
}

static lg_status receive_plan(lg_trainer *trainer, lg_plan **out)
{
    struct stream s = {NULL, 0, true};
    int64_t num_bytes = 0;
    lg_plan *plan = NULL;
    lg_status status = LG_OK;
    LG_TRY(lgi_comm_broadcast(trainer->comm, 0, &num_bytes, sizeof num_bytes));
    LG_TRY_GOTO(lgi_calloc(&s.bytes, (size_t)num_bytes, 1));
    LG_TRY_GOTO(lgi_calloc(&plan, 1, sizeof *plan));
    LG_TRY_GOTO(lgi_comm_broadcast(trainer->comm, 0, s.bytes, num_bytes));
    LG_TRY_GOTO(pass_plan(&s, plan));
    *out = plan;
    plan = NULL;
out:
    lg_plan_destroy(plan);
    lgi_free(s.bytes);
    return status;
}

lg_status lgi_trainer_share_plan(lg_trainer *trainer, lg_plan **plan)
{
    if (trainer->num_ranks == 1) {
        return LG_OK;
    }
    return trainer->rank == 0 ? send_plan(trainer, *plan) : receive_plan(trainer, plan);
}

lg_status lgi_trainer_share_number(lg_trainer *trainer, double *number)
{
    return trainer->num_ranks > 1 ? lgi_comm_broadcast(trainer->comm, 0, number, sizeof *number)
                                  : LG_OK;
}

/* --- costs --------------------------------------------------------------------------------------------------------------- */

static double *costs_as_numbers(const lg_costs *costs, const lg_graph *graph, double *numbers)
{
    const int num_widths = lg_graph_options(graph)->num_widths;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        for (int w = 0; w < num_widths; w++) {
            numbers[(size_t)op * (size_t)num_widths + (size_t)w] = lg_costs_op_ns(costs, op, w);
        }
    }
    return numbers;
}

static void set_costs(lg_costs *costs, const lg_graph *graph, const double *numbers)
{
    const int num_widths = lg_graph_options(graph)->num_widths;
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        for (int w = 0; w < num_widths; w++) {
            lg_costs_set_op_ns(costs, op, w, numbers[(size_t)op * (size_t)num_widths + (size_t)w]);
        }
    }
}

/* Each op's numbers are those of its rank. */
static void keep_own(double *numbers, const double *all, const lg_graph *graph)
{
    const size_t num_widths = (size_t)lg_graph_options(graph)->num_widths;
    const size_t num_ops = (size_t)lg_graph_num_ops(graph);
    for (size_t op = 0; op < num_ops; op++) {
        const size_t rank = (size_t)lg_graph_op(graph, (int)op)->rank;
        memcpy(&numbers[op * num_widths], &all[(rank * num_ops + op) * num_widths],
               num_widths * sizeof *numbers);
    }
}

lg_status lgi_trainer_share_costs(lg_trainer *trainer, lg_costs *costs, const lg_graph *graph,
                                  bool is_measured)
{
    const size_t num =
        (size_t)lg_graph_num_ops(graph) * (size_t)lg_graph_options(graph)->num_widths;
    const int64_t num_bytes = (int64_t)(num * sizeof(double));
    lg_status status = LG_OK;
    double *own = NULL;
    double *all = NULL;
    if (trainer->num_ranks == 1) {
        return LG_OK;
    }
    LG_TRY_GOTO(lgi_calloc(&own, num, sizeof *own));
    (void)costs_as_numbers(costs, graph, own);
    if (is_measured) {
        if (trainer->rank == 0) {
            LG_TRY_GOTO(lgi_calloc(&all, num * (size_t)trainer->num_ranks, sizeof *all));
        }
        LG_TRY_GOTO(lgi_comm_gather(trainer->comm, 0, own, num_bytes, all));
        if (trainer->rank == 0) {
            keep_own(own, all, graph);
        }
    }
    LG_TRY_GOTO(lgi_comm_broadcast(trainer->comm, 0, own, num_bytes));
    set_costs(costs, graph, own);
out:
    lgi_free(own);
    lgi_free(all);
    return status;
}

/* --- links ---------------------------------------------------------------------------------------------------------------- */

/* Large enough that the latency does not matter, small enough for a slow link: a tenth of a second at 100 Mbit/s. */
#define LINK_MESSAGE_BYTES (1 << 20)

/* What one direction has while the other is in use too, as in training. */
static void set_link(lg_link *link, const lgi_link_figures *figures)
{
    if (figures->ranks[0] >= 0 && figures->both_bytes_per_s > 0.0) {
        link->latency_ns = figures->latency_ns;
        link->bytes_per_s = figures->both_bytes_per_s;
    }
}

static lg_status measure_links(lg_trainer *trainer)
{
    lgi_link_figures intra_host;
    lgi_link_figures inter_host;
    LG_TRY(lgi_comm_measure_links(trainer->comm, LINK_MESSAGE_BYTES, &intra_host, &inter_host));
    set_link(&trainer->machine.intra_host, &intra_host);
    set_link(&trainer->machine.inter_host, &inter_host);
    return lgi_comm_set_far_link(trainer->comm, trainer->machine.ranks_per_host,
                                 trainer->machine.inter_host.bytes_per_s);
}

lg_status lgi_trainer_settle_links(lg_trainer *trainer)
{
    const bool is_measured =
        trainer->opts.costs == LG_TRAINER_COSTS_MEASURE && !trainer->has_given_links;
    if (trainer->num_ranks > 1 && is_measured) {
        LG_TRY(measure_links(trainer));
    }
    if (trainer->parallel.share_bytes == LG_SHARE_BY_LINKS) {
        trainer->parallel.share_bytes = lg_machine_share_bytes(
            &trainer->machine, trainer->num_replicas, trainer->num_pipeline_ranks);
    }
    return LG_OK;
}
