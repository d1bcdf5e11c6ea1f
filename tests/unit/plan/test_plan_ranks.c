/* Plans over ranks on hand-made graphs: the simulator against closed forms, deadlocks and messages that do not match. */
#include "random_plans.h"

#include "plan/plan_groups.h"

/* Times are sums of a few doubles below 1e7: nothing is lost but the last bits. */
#define TIME_TOLERANCE_NS 1e-5
/* Fractions of such sums. */
#define FRAC_TOLERANCE 1e-9

#define assert_near(actual, expected, tolerance) \
    do { \
        const double assert_actual = (actual); \
        if (!(assert_actual > (expected) - (tolerance) && \
              assert_actual < (expected) + (tolerance))) { \
            fail_msg("%s is %.12g, expected %.12g", #actual, assert_actual, (double)(expected)); \
        } \
    } while (0)
#define assert_ns(actual, expected) assert_near(actual, expected, TIME_TOLERANCE_NS)

/* --- graphs by hand ------------------------------------------------------------------------------------------------------ */

#define MAX_HAND_OPS 2600
#define MAX_HAND_LANES 64

/* Ops by hand: each writes a value of its own and reads those of others. */
typedef struct hand {
    lg_value_info values[MAX_HAND_OPS];
    lg_op_info ops[MAX_HAND_OPS];
    lg_operand operands[MAX_HAND_OPS][4];
    double ns[MAX_HAND_OPS];
    int num_ops;
    int num_groups;
    int lane_of[MAX_HAND_OPS];
    lg_lane lanes[MAX_HAND_LANES];
    int num_lanes;
    lg_graph *graph;
    lg_costs *costs;
    lg_plan *plan;
    lg_machine machine;
    lg_timeline timeline;
} hand;

static hand *hand_create(int num_ranks, int ranks_per_host)
{
    hand *h = calloc(1, sizeof *h);
    assert_non_null(h);
    h->machine = lg_machine_default();
    h->machine.num_ranks = num_ranks;
    h->machine.ranks_per_host = ranks_per_host;
    h->machine.intra_host = (lg_link){10.0, 1e9, false}; /* 1 byte a ns */
    h->machine.inter_host = (lg_link){100.0, 1e8, true};
    return h;
}

static int hand_lane(hand *h, lg_lane_kind kind, int rank)
{
    assert_true(h->num_lanes < MAX_HAND_LANES);
    h->lanes[h->num_lanes] =
        (lg_lane){.kind = kind, .rank = rank, .num_cores = kind == LG_LANE_COMPUTE ? 1 : 0};
    return h->num_lanes++;
}

/* An op in a lane that reads the value of op `from` (-1: none). */
static int hand_op(hand *h, int lane, double ns, int from)
{
    const int op = h->num_ops++;
    assert_true(op < MAX_HAND_OPS);
    const int rank = h->lanes[lane].rank;
    h->lane_of[op] = lane;
    h->ns[op] = ns;
    h->values[op] = (lg_value_info){.kind = LG_VALUE_ACTIVATION, .bytes = 64, .rank = rank};
    h->operands[op][0] = (lg_operand){.value = op, .access = LG_ACCESS_WRITE};
    h->ops[op] = (lg_op_info){.kind = LG_OP_FORWARD,
                              .rank = rank,
                              .group = -1,
                              .peer = -1,
                              .num_operands = 1,
                              .operands = h->operands[op],
                              .inplace_write = -1,
                              .inplace_read = -1};
    if (from >= 0) {
        h->operands[op][h->ops[op].num_operands++] =
            (lg_operand){.value = from, .access = LG_ACCESS_READ};
    }
    return op;
}

/* Brings the value of op `from` over; returns the RECV. */
static int hand_message(hand *h, int out_lane, int in_lane, int from, int64_t bytes)
{
    const int ends[2] = {hand_op(h, out_lane, 1e9, from), hand_op(h, in_lane, 1e9, -1)};
    for (int i = 0; i < 2; i++) {
        lg_op_info *const op = &h->ops[ends[i]];
        op->kind = i == 0 ? LG_OP_SEND : LG_OP_RECV;
        op->group = h->num_groups;
        op->peer = h->ops[ends[1 - i]].rank;
        op->message_bytes = bytes;
    }
    h->num_groups++;
    return ends[1];
}

/* All ranks meet without moving a byte; returns the op of the first one, those of the others follow it. */
static int hand_barrier(hand *h)
{
    const int first = h->num_ops;
    for (int rank = 0; rank < h->machine.num_ranks; rank++) {
        const int op = hand_op(h, hand_lane(h, LG_LANE_COMM, rank), 1e9, -1);
        h->ops[op].kind = LG_OP_ALL_REDUCE;
        h->ops[op].group = h->num_groups;
    }
    h->num_groups++;
    return first;
}

static void hand_finish(hand *h)
{
    const lg_graph_opts opts = lg_graph_opts_default();
    assert_ok(lgi_graph_from_records(&h->graph, &opts, h->values, h->num_ops, h->ops, h->num_ops));
    assert_ok(lg_costs_create(&h->costs, h->graph));
    for (int i = 0; i < h->num_lanes; i++) {
        h->lanes[i].entries = calloc((size_t)h->num_ops, sizeof(lg_plan_entry));
    }
    for (int op = 0; op < h->num_ops; op++) {
        lg_lane *const lane = &h->lanes[h->lane_of[op]];
        lg_costs_set_op_ns(h->costs, op, 0, h->ns[op]);
        lane->entries[lane->num_entries++] = (lg_plan_entry){op, 0};
    }
    assert_ok(lg_plan_from_lanes(&h->plan, "by hand", h->graph, h->lanes, h->num_lanes, NULL, 0));
    assert_ok(lg_plan_check(h->plan, h->graph, 0));
    assert_ok(lg_plan_simulate(&h->timeline, h->plan, h->graph, &h->machine, h->costs));
}

static void hand_destroy(hand *h)
{
    for (int i = 0; i < h->num_lanes; i++) {
        free(h->lanes[i].entries);
    }
    lg_timeline_deinit(&h->timeline);
    lg_plan_destroy(h->plan);
    lg_costs_destroy(h->costs);
    lg_graph_destroy(h->graph);
    free(h);
}

static const lg_span *span_of(const hand *h, int op)
{
    for (int i = 0; i < h->timeline.num_spans; i++) {
        if (h->timeline.spans[i].op == op) {
            return &h->timeline.spans[i];
        }
    }
    fail_msg("op %d has no span", op);
    return NULL;
}

/* --- links --------------------------------------------------------------------------------------------------------------- */

static void a_message_takes_latency_and_bytes_over_bandwidth(void **state)
{
    (void)state;
    for (int per_host = 1; per_host <= 2; per_host++) {
        hand *h = hand_create(2, per_host);
        const int compute[2] = {hand_lane(h, LG_LANE_COMPUTE, 0), hand_lane(h, LG_LANE_COMPUTE, 1)};
        const int comm[2] = {hand_lane(h, LG_LANE_COMM, 0), hand_lane(h, LG_LANE_COMM, 1)};
        const int first = hand_op(h, compute[0], 50, -1);
        const int recv = hand_message(h, comm[0], comm[1], first, 1000);
        const int last = hand_op(h, compute[1], 30, recv);
        hand_finish(h);
        const double ns = per_host == 2 ? 10 + 1000 : 100 + 10000;
        assert_ns(span_of(h, recv)->end_ns - span_of(h, recv)->start_ns, ns);
        assert_ns(span_of(h, recv - 1)->start_ns, span_of(h, recv)->start_ns);
        assert_ns(span_of(h, first)->end_ns, span_of(h, recv)->start_ns);
        assert_ns(span_of(h, last)->start_ns, span_of(h, recv)->end_ns);
        /* the sender may go on as soon as its message has left; the receiver works while it computes */
        assert_ns(h->timeline.step_ns, 50 + ns);
        lg_rank_stats stats[2];
        assert_ok(lg_timeline_stats(stats, &h->timeline, h->plan, h->graph));
        assert_ns(stats[0].busy_ns, 50);
        assert_ns(stats[0].exposed_comm_ns, ns);
        assert_ns(stats[1].busy_ns, 30);
        assert_ns(stats[1].exposed_comm_ns, ns);
        assert_near(stats[1].bubble_frac, 1 - 30 / (50 + ns), FRAC_TOLERANCE);
        assert_int_equal(stats[0].sent_bytes, 1000);
        assert_int_equal(stats[1].sent_bytes, 0);
        hand_destroy(h);
    }
}

/* Two ranks of a host send to two of another: one wire out of the one, one into the other. */
static void flows_on_one_wire_get_half_each_and_all_when_alone(void **state)
{
    (void)state;
    hand *h = hand_create(4, 2);
    int recv[2];
    const int barrier = hand_barrier(h);
    for (int i = 0; i < 2; i++) {
        const int compute = hand_lane(h, LG_LANE_COMPUTE, i);
        const int out = hand_lane(h, LG_LANE_COMM, i);
        const int in = hand_lane(h, LG_LANE_COMM, 2 + i);
        recv[i] =
            hand_message(h, out, in, hand_op(h, compute, 0, barrier + i), i == 0 ? 1000 : 3000);
    }
    hand_finish(h);
    /* 0.1 bytes a ns: both at half till the first has its 1000 at 100 + 20000, then 2000 bytes at full speed */
    assert_ns(span_of(h, recv[0])->end_ns - span_of(h, recv[0])->start_ns, 100 + 20000);
    assert_ns(span_of(h, recv[1])->end_ns - span_of(h, recv[1])->start_ns, 100 + 20000 + 20000);
    hand_destroy(h);
}

static void wires_within_a_host_are_one_for_all_or_one_for_each_pair(void **state)
{
    (void)state;
    for (int is_shared = 0; is_shared < 2; is_shared++) {
        hand *h = hand_create(4, 4);
        h->machine.intra_host.is_shared = is_shared == 1;
        int recv[2];
        const int barrier = hand_barrier(h);
        for (int i = 0; i < 2; i++) {
            const int compute = hand_lane(h, LG_LANE_COMPUTE, 2 * i);
            const int out = hand_lane(h, LG_LANE_COMM, 2 * i);
            const int in = hand_lane(h, LG_LANE_COMM, 2 * i + 1);
            const int first = hand_op(h, compute, 0, barrier + 2 * i);
            recv[i] = hand_message(h, out, in, first, 1000);
        }
        hand_finish(h);
        for (int i = 0; i < 2; i++) {
            assert_ns(span_of(h, recv[i])->end_ns - span_of(h, recv[i])->start_ns,
                      10 + (is_shared == 1 ? 2000 : 1000));
        }
        hand_destroy(h);
    }
}

/* 500 bytes alone, 1000 at half speed together with the other one, whose last 500 are alone again. */
static void a_flow_that_joins_slows_down_the_one_under_way(void **state)
{
    (void)state;
    hand *h = hand_create(4, 4);
    h->machine.intra_host.is_shared = true;
    int recv[2];
    const int barrier = hand_barrier(h);
    for (int i = 0; i < 2; i++) {
        const int compute = hand_lane(h, LG_LANE_COMPUTE, 2 * i);
        const int out = hand_lane(h, LG_LANE_COMM, 2 * i);
        const int in = hand_lane(h, LG_LANE_COMM, 2 * i + 1);
        const int first = hand_op(h, compute, i == 0 ? 0 : 500, barrier + 2 * i);
        recv[i] = hand_message(h, out, in, first, 1000);
    }
    hand_finish(h);
    const lg_span *const first = span_of(h, recv[0]);
    const lg_span *const second = span_of(h, recv[1]);
    assert_ns(second->start_ns - first->start_ns, 500);
    assert_ns(first->end_ns - first->start_ns, 10 + 500 + 1000);
    assert_ns(second->end_ns - second->start_ns, 10 + 1000 + 500);
    hand_destroy(h);
}

/*
 * Direct: 2 latencies, 2 / D of the bytes over every ordered pair; a bus carries all pairs, a host's wire those between it and others.
 * Two levels: a ring in each host, 2 (R - 1) latencies and 2 (R - 1) / R of the bytes over every hop, of which a bus carries all;
 * between hosts 2 latencies, and 2 (H - 1) / H of the bytes over every host's wire.
 */
static void an_all_reduce_is_direct_or_has_two_levels(void **state)
{
    (void)state;
    static const struct {
        int num_ranks, per_host;
        bool is_shared;
        lg_reduction reduction;
        double ns;
    } cases[] = {
        {4, 4, false, LG_REDUCTION_TWO_LEVEL, 6 * 10 + 1.5 * 1000},
        {4, 4, true, LG_REDUCTION_TWO_LEVEL, 6 * 10 + 1.5 * 1000 * 4},
        {4, 2, false, LG_REDUCTION_TWO_LEVEL, 2 * 10 + 2 * 100 + 1.0 * 1000 * 10},
        {2, 1, false, LG_REDUCTION_TWO_LEVEL, 2 * 100 + 1.0 * 1000 * 10},
        {3, 2, true, LG_REDUCTION_TWO_LEVEL, 2 * 10 + 2 * 100 + 1.0 * 1000 * 10},
        {4, 1, true, LG_REDUCTION_TWO_LEVEL, 2 * 100 + 1.5 * 1000 * 10},
        {1, 1, false, LG_REDUCTION_TWO_LEVEL, 0},
        {4, 4, false, LG_REDUCTION_DIRECT, 2 * 10 + 0.5 * 1000},
        {4, 4, true, LG_REDUCTION_DIRECT, 2 * 10 + 0.5 * 1000 * 12},
        {4, 2, false, LG_REDUCTION_DIRECT, 2 * 100 + 0.5 * 1000 * 4 * 10},
        {4, 1, false, LG_REDUCTION_DIRECT, 2 * 100 + 0.5 * 1000 * 3 * 10},
        {2, 1, false, LG_REDUCTION_DIRECT, 2 * 100 + 1.0 * 1000 * 10},
        {3, 2, true, LG_REDUCTION_DIRECT, 2 * 100 + 2.0 / 3 * 1000 * 2 * 10},
        {1, 1, false, LG_REDUCTION_DIRECT, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        hand *h = hand_create(cases[c].num_ranks, cases[c].per_host);
        h->machine.intra_host.is_shared = cases[c].is_shared;
        h->machine.reduction = cases[c].reduction;
        int reduce = 0;
        for (int rank = 0; rank < cases[c].num_ranks; rank++) {
            const int compute = hand_lane(h, LG_LANE_COMPUTE, rank);
            const int first = hand_op(h, compute, 7, -1);
            reduce = hand_op(h, hand_lane(h, LG_LANE_COMM, rank), 1e9, first);
            h->ops[reduce].kind = LG_OP_ALL_REDUCE;
            h->ops[reduce].group = 0;
            h->ops[reduce].message_bytes = 1000;
            (void)hand_op(h, compute, 5, reduce);
        }
        hand_finish(h);
        assert_ns(span_of(h, reduce)->end_ns - span_of(h, reduce)->start_ns, cases[c].ns);
        assert_ns(h->timeline.step_ns, 7 + cases[c].ns + 5);
        lg_rank_stats stats[4];
        assert_ok(lg_timeline_stats(stats, &h->timeline, h->plan, h->graph));
        assert_ns(stats[0].exposed_comm_ns, cases[c].ns);
        assert_int_equal(stats[0].sent_bytes,
                         2 * (cases[c].num_ranks - 1) * 1000 / cases[c].num_ranks);
        hand_destroy(h);
    }
}

/* Nothing is buffered: a sender waits until its message is wanted. */
static void a_send_waits_for_its_recv(void **state)
{
    (void)state;
    hand *h = hand_create(2, 2);
    const int compute[2] = {hand_lane(h, LG_LANE_COMPUTE, 0), hand_lane(h, LG_LANE_COMPUTE, 1)};
    const int out = hand_lane(h, LG_LANE_COMM, 0);
    const int in = hand_lane(h, LG_LANE_COMM, 1);
    const int first = hand_op(h, compute[0], 5, -1);
    const int late = hand_op(h, compute[1], 400, -1);
    const int recv = hand_message(h, out, in, first, 90);
    h->operands[recv][h->ops[recv].num_operands++] =
        (lg_operand){.value = late, .access = LG_ACCESS_READ};
    hand_finish(h);
    assert_ns(span_of(h, recv - 1)->start_ns, span_of(h, late)->end_ns);
    assert_ns(h->timeline.step_ns, 400 + 10 + 90);
    lg_rank_stats stats[2];
    assert_ok(lg_timeline_stats(stats, &h->timeline, h->plan, h->graph));
    assert_ns(stats[0].exposed_comm_ns,
              100); /* what it waits for before that is no message under way */
    hand_destroy(h);
}

/* --- pipelines ------------------------------------------------------------------------------------------------------------ */

#define MAX_P 6
#define MAX_M 8

/* Lanes of a rank of a pipeline by hand. */
enum { COMPUTE, RECV_FORWARD, SEND_FORWARD, RECV_BACKWARD, SEND_BACKWARD, NUM_RANK_LANES };

typedef enum backward {
    BACKWARD_NONE,  /* just the forwards */
    BACKWARD_WHOLE, /* one op of twice the time */
    BACKWARD_SPLIT  /* the input gradient, which is sent, and the weight gradient */
} backward;

/* All forwards, then all backwards, with free messages: GPipe. */
static hand *gpipe(int num_ranks, int num_micro_batches, backward kind)
{
    hand *h = hand_create(num_ranks, num_ranks);
    int forward[MAX_P][MAX_M];
    int lanes[MAX_P][NUM_RANK_LANES];
    h->machine.intra_host = (lg_link){0.0, 1e9, false};
    for (int p = 0; p < num_ranks; p++) {
        for (int k = 0; k < NUM_RANK_LANES; k++) {
            lanes[p][k] = hand_lane(h, k == COMPUTE ? LG_LANE_COMPUTE : LG_LANE_COMM, p);
        }
    }
    for (int m = 0; m < num_micro_batches; m++) {
        int from = -1;
        for (int p = 0; p < num_ranks; p++) {
            from = p == 0 ? -1
                          : hand_message(h, lanes[p - 1][SEND_FORWARD], lanes[p][RECV_FORWARD],
                                         from, 0);
            from = hand_op(h, lanes[p][COMPUTE], 100, from);
            forward[p][m] = from;
        }
    }
    for (int m = 0; m < num_micro_batches && kind != BACKWARD_NONE; m++) {
        int from = -1;
        for (int p = num_ranks - 1; p >= 0; p--) {
            if (p < num_ranks - 1) {
                from =
                    hand_message(h, lanes[p + 1][SEND_BACKWARD], lanes[p][RECV_BACKWARD], from, 0);
            }
            from = hand_op(h, lanes[p][COMPUTE], kind == BACKWARD_WHOLE ? 200 : 100, from);
            h->operands[from][h->ops[from].num_operands++] =
                (lg_operand){.value = forward[p][m], .access = LG_ACCESS_READ};
            if (kind == BACKWARD_SPLIT) {
                (void)hand_op(h, lanes[p][COMPUTE], 100, from);
            }
        }
    }
    hand_finish(h);
    return h;
}

static void gpipe_has_the_bubble_that_is_known(void **state)
{
    (void)state;
    for (int num_ranks = 2; num_ranks <= MAX_P; num_ranks += 2) {
        for (int m = 1; m <= MAX_M; m += 3) {
            for (int kind = BACKWARD_WHOLE; kind <= BACKWARD_SPLIT; kind++) {
                hand *h = gpipe(num_ranks, m, (backward)kind);
                /* split, the weight gradients are off the way back */
                const double fill_ns = kind == BACKWARD_WHOLE ? 300.0 : 200.0;
                const double step_ns = 300.0 * m + fill_ns * (num_ranks - 1);
                assert_ns(h->timeline.step_ns, step_ns);
                lg_rank_stats stats[MAX_P];
                assert_ok(lg_timeline_stats(stats, &h->timeline, h->plan, h->graph));
                for (int rank = 0; rank < num_ranks; rank++) {
                    const double bubble = kind == BACKWARD_WHOLE
                                              ? (num_ranks - 1.0) / (m + num_ranks - 1.0)
                                              : 1 - 300.0 * m / step_ns;
                    assert_ns(stats[rank].busy_ns, 300.0 * m);
                    assert_near(stats[rank].bubble_frac, bubble, FRAC_TOLERANCE);
                    assert_ns(stats[rank].exposed_comm_ns, 0);
                }
                hand_destroy(h);
            }
        }
    }
}

/* Without a way back a rank runs ahead of the next one: the steady state has no bubble, however few micro-batches. */
static void ranks_go_on_to_their_next_iteration_by_themselves(void **state)
{
    (void)state;
    for (int m = 1; m <= 2; m++) {
        hand *h = gpipe(MAX_P, m, BACKWARD_NONE);
        assert_ns(h->timeline.step_ns, 100.0 * m);
        lg_rank_stats stats[MAX_P];
        assert_ok(lg_timeline_stats(stats, &h->timeline, h->plan, h->graph));
        assert_near(stats[MAX_P - 1].bubble_frac, 0, FRAC_TOLERANCE);
        hand_destroy(h);
    }
}

/* --- what is refused, and memory ------------------------------------------------------------------------------------- */

/* Two ranks that both send before they receive, in one lane each: each waits for the other. */
static void a_deadlock_of_two_ranks_names_ops_ranks_and_lanes(void **state)
{
    (void)state;
    hand *h = hand_create(2, 2);
    int comm[2];
    int first[2];
    for (int rank = 0; rank < 2; rank++) {
        first[rank] = hand_op(h, hand_lane(h, LG_LANE_COMPUTE, rank), 5, -1);
        comm[rank] = hand_lane(h, LG_LANE_COMM, rank);
    }
    const int there = hand_message(h, comm[0], comm[1], first[0], 8);
    const int back = hand_message(h, comm[1], comm[0], first[1], 8);
    hand_finish(h);
    lg_plan_entry *const entries = h->plan->lanes[comm[1]].entries;
    assert_int_equal(entries[0].op, there);
    entries[0].op = back - 1;
    entries[1].op = there;
    assert_fails(LG_INVALID_ARG, "deadlock: ", lg_plan_check(h->plan, h->graph, 0));
    for (int op = there - 1; op <= back; op++) {
        char text[64];
        (void)snprintf(text, sizeof text, "'op%d' (rank %d, lane %d)", op,
                       lg_graph_op(h->graph, op)->rank, h->lane_of[op]);
        if (strstr(lg_last_error(), text) == NULL) {
            fail_msg("%s is not in: %s", text, lg_last_error());
        }
    }
    lg_timeline timeline;
    assert_fails(LG_INVALID_ARG, "deadlock: ",
                 lg_plan_simulate(&timeline, h->plan, h->graph, &h->machine, h->costs));
    hand_destroy(h);
}

static void groups_that_do_not_match_are_named(void **state)
{
    (void)state;
    static const struct {
        int64_t bytes;
        int peer, rank;
        lg_op_kind kind;
        const char *text;
    } cases[] = {
        {9, 0, 1, LG_OP_RECV, "'op1' moves 8 bytes, but 'op2', which it meets (group 0), 9"},
        {8, 1, 1, LG_OP_RECV, "'op1' of rank 0 is for rank 1, but 'op2' of rank 1 is for rank 1"},
        {8, 0, 1, LG_OP_SEND, "are a send and a send, not a SEND and a RECV"},
        {8, 0, 0, LG_OP_RECV, "'op1' of rank 0 is for rank 1, but 'op2' of rank 0"},
        {8, 0, 1, LG_OP_FORWARD, "'op1': its message (group 0) has 1 ends"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hand *h = hand_create(2, 2);
        const int compute = hand_lane(h, LG_LANE_COMPUTE, 0);
        const int out = hand_lane(h, LG_LANE_COMM, 0);
        const int in = hand_lane(h, LG_LANE_COMM, 1);
        const int recv = hand_message(h, out, in, hand_op(h, compute, 5, -1), 8);
        h->ops[recv].message_bytes = cases[i].bytes;
        h->ops[recv].peer = cases[i].peer;
        h->ops[recv].rank = cases[i].rank;
        h->ops[recv].kind = cases[i].kind;
        (void)hand_op(h, hand_lane(h, LG_LANE_COMPUTE, 1), 5, -1);
        const lg_graph_opts opts = lg_graph_opts_default();
        lgi_groups groups;
        assert_ok(
            lgi_graph_from_records(&h->graph, &opts, h->values, h->num_ops, h->ops, h->num_ops));
        assert_fails(LG_INVALID_ARG, cases[i].text, lgi_groups_init(&groups, h->graph));
        hand_destroy(h);
    }
}

static void a_machine_too_small_for_the_graph_is_refused(void **state)
{
    (void)state;
    hand *h = gpipe(2, 1, BACKWARD_SPLIT);
    lg_timeline timeline;
    lg_machine machine = h->machine;
    machine.num_ranks = 1;
    machine.ranks_per_host = 1;
    assert_fails(LG_INVALID_ARG, "machine: num_ranks is 1, but the graph has 2",
                 lg_plan_simulate(&timeline, h->plan, h->graph, &machine, h->costs));
    machine = h->machine;
    machine.intra_host.bytes_per_s = 0.0;
    assert_fails(LG_INVALID_ARG, "machine: intra_host.bytes_per_s is 0",
                 lg_plan_simulate(&timeline, h->plan, h->graph, &machine, h->costs));
    hand_destroy(h);
}

/* The sweep packs what the total order and happens-before allow: never far above what is alive at one time. */
static void the_sweep_reuses_memory_of_a_pipeline(void **state)
{
    (void)state;
    hand *h = gpipe(4, MAX_M, BACKWARD_NONE);
    for (int rank = 0; rank < 4; rank++) {
        /* sent on and forgotten: without a way back nothing says when, so nothing is used twice but by later sends */
        assert_true(h->plan->peak_bytes[rank] <= (int64_t)64 * 4 * MAX_M);
    }
    hand_destroy(h);
    h = gpipe(4, MAX_M, BACKWARD_SPLIT);
    for (int rank = 0; rank < 4; rank++) {
        int64_t sum = 0;
        for (int value = 0; value < h->plan->num_values; value++) {
            sum += lg_graph_value(h->graph, value)->rank == rank ? 64 : 0;
        }
        assert_true(h->plan->peak_bytes[rank] < sum * 3 / 4);
    }
    hand_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_takes_latency_and_bytes_over_bandwidth),
        cmocka_unit_test(flows_on_one_wire_get_half_each_and_all_when_alone),
        cmocka_unit_test(wires_within_a_host_are_one_for_all_or_one_for_each_pair),
        cmocka_unit_test(a_flow_that_joins_slows_down_the_one_under_way),
        cmocka_unit_test(an_all_reduce_is_direct_or_has_two_levels),
        cmocka_unit_test(a_send_waits_for_its_recv),
        cmocka_unit_test(gpipe_has_the_bubble_that_is_known),
        cmocka_unit_test(ranks_go_on_to_their_next_iteration_by_themselves),
        cmocka_unit_test(a_deadlock_of_two_ranks_names_ops_ranks_and_lanes),
        cmocka_unit_test(groups_that_do_not_match_are_named),
        cmocka_unit_test(a_machine_too_small_for_the_graph_is_refused),
        cmocka_unit_test(the_sweep_reuses_memory_of_a_pipeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
