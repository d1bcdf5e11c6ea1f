/**
 * A plan: for each rank and lane the ordered list of its ops, each with its lag, plus the memory plan. Made by a
 * strategy from a graph, a machine and costs; proved by lg_plan_check(); costed by lg_plan_simulate(); saved, loaded,
 * and run exactly as written.
 *
 * How a plan runs: in iteration i every lane runs its entries once, in order; an entry of lag 0 runs its op for step i,
 * one of lag 1 for step i - 1 (left out in the first iteration; after the last step one more iteration runs the lagged
 * entries only). An entry starts when the one before it in its lane has ended and all ops have ended that a graph edge
 * or a sync makes it wait for. All lanes of a rank end iteration i before one of them starts iteration i + 1: in between
 * the host reads the outputs of step i and hands over the next batch; each rank goes on by itself. Ops of several ranks that
 * meet (lg_op_info.group: a SEND and its RECV, the ALL_REDUCEs of a chunk) start together, when each of them may, and end
 * together: nothing is buffered. Nothing else orders two ops.
 *
 * So an edge (from, to, distance) lies inside one iteration if distance + lag(to) - lag(from) is 0; above 0 the iterations'
 * boundary keeps it; below 0 the plan is wrong.
 */
#ifndef LEAPGRAD_PLAN_H
#define LEAPGRAD_PLAN_H

#include "leapgrad/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- machine and costs ---------------------------------------------------------------------------------------- */

/** Wires between ranks. */
typedef struct lg_link {
    double latency_ns;  /* of a message */
    double bytes_per_s; /* of one wire, each direction */
    bool is_shared; /* within a host: one wire for all its pairs; else each ordered pair has one */
} lg_link;

/** How an ALL_REDUCE of n bytes over D ranks goes over the wires. Either way a rank sends and receives about 2 n bytes. */
typedef enum lg_reduction {
    /** What leapgrad does: each rank adds up one part of n / D bytes, which all others send it, and sends the sum to all of them:
     * 2 latencies, 2 n / D bytes over each ordered pair of ranks. */
    LG_REDUCTION_DIRECT,
    /** For plans of other systems: a ring within each host, 2 (R - 1) / R * n bytes over each hop of its R ranks after 2 (R - 1)
     * latencies, and between the H hosts direct, 2 latencies and 2 n / H bytes over each ordered pair of hosts. */
    LG_REDUCTION_TWO_LEVEL
} lg_reduction;

/**
 * The machine a plan is for: hosts of `ranks_per_host` ranks (the last one may have fewer). One rank has `num_cores` cores,
 * numbered from 0; a GPU counts as one core. Between hosts each host has one wire out and one in, shared by its ranks.
 */
typedef struct lg_machine {
    int num_ranks;
    int ranks_per_host;
    int num_cores;           /* of each rank */
    int64_t memory_bytes;    /* of each rank; 0: not limited */
    double corun_slowdown;   /* >= 1: an op takes this much longer while other ops keep the rest of
                              the rank's cores busy */
    double flops_per_s;      /* of one core, for costs estimated from flops and bytes */
    double bytes_per_s;      /* of one core */
    double op_overhead_ns;   /* to start an op with one thread */
    double fork_overhead_ns; /* more, with two or more threads */
    lg_link intra_host;      /* between ranks of one host */
    lg_link inter_host;      /* between hosts */
    lg_reduction reduction;
    double
        comm_core_frac; /* 0 to 0.9: part of a rank's cores that bytes between hosts take from its ops while they move, where
                              the ops have all cores */
} lg_machine;

/**
 * One rank, one core, no memory limit, no slow-down, 50 GFLOP/s, 10 GB/s, 1 us, 3 us; within a host 1 us and 10 GB/s shared,
 * between hosts 20 us and 125 MB/s; direct reductions; messages take nothing from the cores.
 */
LG_API lg_machine lg_machine_default(void);
/** Machine files: JSON, docs/formats/machine.md. What is not allowed is an error that names the place; *out stays then. */
LG_API LG_NODISCARD lg_status lg_machine_load(lg_machine *out, const char *path);
/** The same from memory. */
LG_API LG_NODISCARD lg_status lg_machine_parse(lg_machine *out, const char *text, size_t num_bytes);
/** `comment`: where the numbers are from; NULL: none. */
LG_API LG_NODISCARD lg_status lg_machine_save(const lg_machine *machine, const char *comment,
                                              const char *path);
/** The text of such a file. INVALID_ARG if `num_bytes` are too few for it and its 0: LG_MACHINE_TEXT_BYTES and the comment are enough. */
LG_API LG_NODISCARD lg_status lg_machine_format(char *text, size_t num_bytes,
                                                const lg_machine *machine, const char *comment);
#define LG_MACHINE_TEXT_BYTES 2048
/**
 * Bytes from which on the latency of a reduction between replicas is at most a ninth of its time: a power of two, at most
 * 64 MiB, for lg_parallel.share_bytes. 0 with one replica, and for links without latency.
 */
LG_API int64_t lg_machine_share_bytes(const lg_machine *machine, int num_replicas,
                                      int num_pipeline_ranks);

/** Time of each op of a graph with each of the graph's widths. */
typedef struct lg_costs lg_costs;

LG_API LG_NODISCARD lg_status lg_costs_create(lg_costs **out, const lg_graph *graph);
LG_API void lg_costs_destroy(lg_costs *costs);
/** Fills in from flops, bytes and the machine's rates. */
LG_API void lg_costs_estimate(lg_costs *costs, const lg_graph *graph, const lg_machine *machine);
/** `width_idx`: index into the graph's widths. */
LG_API double lg_costs_op_ns(const lg_costs *costs, int op, int width_idx);
LG_API void lg_costs_set_op_ns(lg_costs *costs, int op, int width_idx, double ns);
/**
 * JSON, format in docs/formats/costs.md; ops go by name, an op that the file lacks is an error naming it. Costs of a graph that is
 * spread over other ranks go by kind, layer and micro-batch; micro-batches must have as many samples then.
 */
LG_API LG_NODISCARD lg_status lg_costs_save(const lg_costs *costs, const lg_graph *graph,
                                            const char *path);
LG_API LG_NODISCARD lg_status lg_costs_load(lg_costs **out, const lg_graph *graph,
                                            const char *path);

/* --- the plan -------------------------------------------------------------------------------------------------- */

typedef enum lg_lane_kind { LG_LANE_COMPUTE, LG_LANE_COMM } lg_lane_kind;

/** An op in a lane. `lag` 0: runs in its own step. 1: runs inside the next step. */
typedef struct lg_plan_entry {
    int op;
    int lag;
} lg_plan_entry;

/** An in-order queue of ops. Compute lanes of one rank may share cores; then their ops must not be able to overlap. */
typedef struct lg_lane {
    lg_lane_kind kind;
    int rank;
    int first_core; /* of the rank */
    int num_cores;  /* one of the graph's widths for a compute lane; 0 for a comm lane */
    int num_entries;
    lg_plan_entry *entries;
} lg_lane;

/**
 * An extra "`from` ends before `to` starts", besides the graph's edges: between lanes that share cores. It is about runs
 * in iterations, whatever steps they belong to.
 */
typedef struct lg_plan_sync {
    int from;     /* op */
    int to;       /* op */
    int distance; /* 0: within one iteration; 1: `from` in the iteration before, which holds anyway */
} lg_plan_sync;

/**
 * Where a value lies, in the arena of its rank; offsets are multiples of 64. Two slots mean that steps take turns (the
 * value of step t is in slot t mod 2), for values that a lagging op accesses while the next step writes its own: allowed
 * if the ops that access the value do not all have the same lag, needed if some op of the next step's run of it is not
 * ordered after all ops of this one's.
 */
typedef struct lg_placement {
    int num_slots; /* 1 or 2; 0: no op accesses it */
    int64_t offset_bytes[2];
} lg_placement;

/** A plan. All arrays belong to it; release with lg_plan_destroy(). Fields may be read, and edited by tools. */
typedef struct lg_plan {
    char *strategy; /* the name of what made it */
    uint64_t graph_fingerprint;
    int num_ranks;
    int num_lanes;
    lg_lane *lanes;
    int num_syncs;
    lg_plan_sync *syncs;
    int num_values; /* as in the graph */
    lg_placement *values;
    int num_ops;                     /* as in the graph */
    int64_t *workspace_offset_bytes; /* by op; -1: none */
    int64_t *peak_bytes;             /* by rank: the arena's size */
} lg_plan;

LG_API void lg_plan_destroy(lg_plan *plan);

/**
 * A plan of given lanes and syncs, which are copied: a tool's, or another system's schedule. Places its memory; proving it is
 * lg_plan_check()'s part.
 *
 * @return INVALID_ARG if lanes and graph do not go together, or nothing can run in that order; the message says why.
 */
LG_API LG_NODISCARD lg_status lg_plan_from_lanes(lg_plan **out, const char *name,
                                                 const lg_graph *graph, const lg_lane *lanes,
                                                 int num_lanes, const lg_plan_sync *syncs,
                                                 int num_syncs);

/** Format in docs/formats/plan.md. Ops and values go by name. */
LG_API LG_NODISCARD lg_status lg_plan_save(const lg_plan *plan, const lg_graph *graph,
                                           const char *path);
/** Checks syntax and that the fingerprint is the graph's; lg_plan_check() proves the rest. */
LG_API LG_NODISCARD lg_status lg_plan_load(lg_plan **out, const lg_graph *graph, const char *path);
/** The same from memory. */
LG_API LG_NODISCARD lg_status lg_plan_parse(lg_plan **out, const lg_graph *graph, const char *text,
                                            size_t num_bytes);

/**
 * Proves the plan: each op exactly once, on its rank; every edge respected through lane order, events and lag; ops that meet
 * match in ranks, bytes and lag; no deadlock, over all ranks, if nothing is buffered; the reductions over one set of ranks in
 * one lane and one order on all of them; ops on shared cores cannot overlap; no two live values (or workspaces) share memory unless one's last use
 * happens before the other's first, over the whole steady state; peaks as stated and within `memory_bytes` (0: not limited).
 *
 * @return INVALID_ARG with the op, the edge or the values that break the rule.
 */
LG_API LG_NODISCARD lg_status lg_plan_check(const lg_plan *plan, const lg_graph *graph,
                                            int64_t memory_bytes);

/* --- strategies ------------------------------------------------------------------------------------------------- */

typedef struct lg_strategy_opts {
    int num_lanes;        /* compute lanes per rank; 0: the strategy chooses */
    int threads_per_lane; /* cores of each lane; 0: the strategy chooses. lanes x threads <= cores */
    int64_t memory_bytes; /* budget of a rank; 0: the machine's */
    bool allow_lag;       /* may move ops into the next step */
    int num_reversed;     /* reverse-first-k: k, in layers with weights; -1: searched */
    bool has_push; /* fast-forward: caps the micro-batches in flight at the pipeline's ranks */
} lg_strategy_opts;

/** 0, 0, 0, true, -1, false. */
LG_API lg_strategy_opts lg_strategy_opts_default(void);

/** What a strategy decides. */
typedef enum lg_strategy_role {
    LG_STRATEGY_WHOLE,    /* everything: "in-order", "out-of-order" */
    LG_STRATEGY_PIPELINE, /* what pipeline ranks run when: "gpipe", "1f1b", ... */
    LG_STRATEGY_DATA /* when replicas add their gradients and update: "barrier", "priority", ... */
} lg_strategy_role;

/**
 * Names of the strategies; NULL after the last. A pipeline and a data-parallel one compose: "zb-h1+reverse-first-k". Alone, a
 * pipeline strategy goes with "barrier", and a data-parallel one with "in-order" on one pipeline rank.
 */
LG_API const char *lg_strategy_name(int idx);
LG_API lg_strategy_role lg_strategy_role_of(int idx);
/** One line on what it does and where it is from. */
LG_API const char *lg_strategy_help(int idx);

/**
 * Makes a plan: order, lags, memory. Pure: touches no device, no file, no clock, no random number.
 *
 * @return NOT_SUPPORTED if nothing fits the budget (the message has the smallest peak found) or the graph's widths lack
 *         what the options ask for; INVALID_ARG for an unknown strategy.
 */
LG_API LG_NODISCARD lg_status lg_plan_create(lg_plan **out, const char *strategy,
                                             const lg_graph *graph, const lg_machine *machine,
                                             const lg_costs *costs, const lg_strategy_opts *opts);

/** What deferring costs: time against bytes. */
typedef struct lg_frontier_point {
    int64_t budget_bytes; /* of a rank */
    bool fits;            /* a plan within the budget was found; else the rest is 0 */
    double step_ns;       /* of the fastest one, simulated */
    int64_t peak_bytes;   /* the largest of its ranks */
} lg_frontier_point;

/**
 * Fills `points[0..num_points)` with the out-of-order plans for evenly spaced budgets, from the smallest peak found to
 * the one above which nothing gets faster (within the budget of `opts`, if it has one), and `in_order` with the textbook
 * plan under the same options (its budget is its own peak).
 */
LG_API LG_NODISCARD lg_status lg_plan_frontier(lg_frontier_point *points, int num_points,
                                               lg_frontier_point *in_order, const lg_graph *graph,
                                               const lg_machine *machine, const lg_costs *costs,
                                               const lg_strategy_opts *opts);

/* --- timelines ---------------------------------------------------------------------------------------------------- */

/** One run of an op. */
typedef struct lg_span {
    int op;
    int lane;        /* index into the plan's lanes */
    int64_t step;    /* the step the op belongs to */
    double start_ns; /* from the timeline's zero */
    double end_ns;
} lg_span;

/** Live bytes of a rank's arena change to `bytes` at `time_ns`. */
typedef struct lg_memory_point {
    int rank;
    double time_ns;
    int64_t bytes;
} lg_memory_point;

/** What ran when: simulated or measured. Arrays belong to it; release with lg_timeline_deinit(). */
typedef struct lg_timeline {
    int num_spans;
    lg_span *spans;  /* sorted by start */
    double begin_ns; /* the iteration shown, from the first rank's begin to the last one's end */
    double end_ns;
    double step_ns;     /* time of one step in the steady state */
    int num_iterations; /* simulated until then; 0: measured */
    int num_memory_points;
    lg_memory_point *memory_points;
} lg_timeline;

LG_API void lg_timeline_deinit(lg_timeline *timeline);

/**
 * Runs the plan on paper until the steady state and gives the timeline of one iteration of all ranks in it; step_ns is the
 * distance between the ends of successive iterations, the largest of the ranks'. Ops that meet take the time of their
 * links, others that of `costs`. A few hundred nanoseconds per op and iteration.
 *
 * Links: a message takes its latency, then its bytes, at the least of its equal shares of the wires on its way; a reduction
 * takes its latencies first, then the bytes of all its hops or pairs flow at one pace (lg_reduction).
 */
LG_API LG_NODISCARD lg_status lg_plan_simulate(lg_timeline *out, const lg_plan *plan,
                                               const lg_graph *graph, const lg_machine *machine,
                                               const lg_costs *costs);

/** What one rank does in one step of the steady state. */
typedef struct lg_rank_stats {
    double busy_ns;     /* that its compute cores work, on average of them */
    double bubble_frac; /* 1 - busy_ns / step_ns: what its compute cores idle, whatever for */
    double
        exposed_comm_ns; /* while no compute op of it runs, and messages or reductions that the next one waits for (or,
                               after the last one, the end of the rank's iteration) are under way */
    int64_t sent_bytes; /* that leave it: messages, and its part in reductions */
    int64_t peak_bytes; /* its arena */
} lg_rank_stats;

/**
 * Fills `ranks[0 .. plan->num_ranks)` from a timeline of this plan, simulated or measured. GPipe with M equal micro-batches on
 * P equal ranks, free messages, no updates, and a backward that sends its gradient when it is done as a whole, has a bubble_frac
 * of (P - 1) / (M + P - 1) on every rank.
 */
LG_API LG_NODISCARD lg_status lg_timeline_stats(lg_rank_stats *ranks, const lg_timeline *timeline,
                                                const lg_plan *plan, const lg_graph *graph);

/** Adds the live bytes over time to a timeline of this plan. */
LG_API LG_NODISCARD lg_status lg_timeline_add_memory(lg_timeline *timeline, const lg_plan *plan,
                                                     const lg_graph *graph);

#ifdef __cplusplus
}
#endif

#endif
