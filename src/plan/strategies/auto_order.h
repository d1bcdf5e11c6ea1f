/*
 * A plan as one order: all nodes (ops, and groups of ops that meet, which count as one) in a line that respects every edge
 * inside an iteration, with lags. What each lane gets is its part of the line. Every such line is a plan without deadlock, and
 * every plan that the checker accepts is such a line; so moves that keep the line legal reach all plans with these lanes.
 */
#ifndef LGI_PLAN_AUTO_ORDER_H
#define LGI_PLAN_AUTO_ORDER_H

#include "plan/plan_order.h"
#include "plan/strategies/strategy.h"

/* A node that another waits for. */
typedef struct lgi_line_arc {
    int node;
    int distance;
} lgi_line_arc;

/* What all lines of one graph share. */
typedef struct lgi_line_facts {
    const lg_graph *graph;
    const lg_plan *shape; /* its lanes: which op is in which */
    lgi_groups groups;
    int num_ops;
    int num_nodes;
    int *node_of;  /* by op: the op that stands for it */
    int *lane_of;  /* by op */
    int *in_begin; /* by node, as op id: in[in_begin[n] .. in_begin[n + 1]) */
    lgi_line_arc *in;
    int *out_begin;
    lgi_line_arc *out;
    bool *may_lag;       /* by op: it may run in the next step, and so may all that waits for it */
    lg_plan *work;       /* lanes of `shape`, filled in by lgi_line_plan() */
    unsigned char *mark; /* by node, scratch; all 0 between calls */
    int *scratch;        /* num_nodes */
} lgi_line_facts;

LG_NODISCARD lg_status lgi_line_facts_init(lgi_line_facts *out, const lg_graph *graph,
                                           const lg_plan *shape);
void lgi_line_facts_deinit(lgi_line_facts *facts);

typedef struct lgi_line {
    int *order;         /* nodes */
    int *pos;           /* by node */
    unsigned char *lag; /* by op */
} lgi_line;

LG_NODISCARD lg_status lgi_line_init(lgi_line *out, const lgi_line_facts *facts);
void lgi_line_deinit(lgi_line *line);
void lgi_line_copy(lgi_line *to, const lgi_line *from, const lgi_line_facts *facts);

/* The line of the facts' shape. */
LG_NODISCARD lg_status lgi_line_read(lgi_line *line, const lgi_line_facts *facts);

/* Fills the lanes of facts->work, which stays theirs. */
void lgi_line_plan(const lgi_line *line, const lgi_line_facts *facts);

/* Members of a node. */
static inline const int *lgi_node_ops(const lgi_line_facts *facts, const int *node, int *num)
{
    const int group = lg_graph_op(facts->graph, *node)->group;
    if (group < 0) {
        *num = 1;
        return node;
    }
    *num = lgi_groups_size(&facts->groups, group);
    return &facts->groups.ops[facts->groups.begin[group]];
}

/* Whether `arc`, into `node`, ties runs of one iteration. */
static inline bool lgi_line_is_inside(const lgi_line *line, lgi_line_arc arc, int node)
{
    return lgi_edge_delta(arc.distance, line->lag[arc.node], line->lag[node]) == 0;
}

/* Puts `nodes`, and what they wait for, right before `target`. False, with nothing changed, if `target` is among that. */
bool lgi_line_move_before(lgi_line *line, const lgi_line_facts *facts, const int *nodes,
                          int num_nodes, int target);

/* Puts `nodes`, and what waits for them, right after `target`. */
bool lgi_line_move_after(lgi_line *line, const lgi_line_facts *facts, const int *nodes,
                         int num_nodes, int target);

/* Where nodes go whose lag changes to 1. */
typedef enum lgi_line_place { LGI_LINE_FIRST, LGI_LINE_LATE } lgi_line_place;

/*
 * Lets `node`, and all that waits for it, run in the next step: at its begin, or late, right before what waits for them there.
 * False, with nothing changed, if some of it may not, or nothing is to change.
 */
bool lgi_line_defer(lgi_line *line, const lgi_line_facts *facts, int node, lgi_line_place place);

/* Takes `node`, and all of lag 1 that it waits for, back into its own step, to the end of the line. False: lag 0 already. */
bool lgi_line_undefer(lgi_line *line, const lgi_line_facts *facts, int node);

#endif
