/*
 * Groups: the ops of several ranks that meet. A SEND and a RECV, or the ALL_REDUCEs of one chunk: they start together when
 * each is at the head of its lane with its dependencies done, and end together; nothing is buffered. So for waiting, for
 * happens-before and for time a group is one node.
 */
#ifndef LGI_PLAN_PLAN_GROUPS_H
#define LGI_PLAN_PLAN_GROUPS_H

#include "leapgrad/plan.h"

typedef struct lgi_groups {
    int num_groups;
    int *begin;        /* ops[begin[g] .. begin[g + 1]): the members, ascending by rank */
    int *ops;          /* the first member stands for the group */
    int *communicator; /* by group: number of the set of ranks of an ALL_REDUCE; -1: a message */
    int num_communicators;
    int *example; /* by communicator: the first group of it */
} lgi_groups;

/*
 * INVALID_ARG for groups that are none: a SEND without its RECV, members on wrong ranks, of different sizes, a message
 * op without a group.
 */
LG_NODISCARD lg_status lgi_groups_init(lgi_groups *out, const lg_graph *graph);
void lgi_groups_deinit(lgi_groups *groups);

static inline int lgi_groups_size(const lgi_groups *groups, int group)
{
    return groups->begin[group + 1] - groups->begin[group];
}

/* The op that stands for `op`: the first of its group, or itself. */
static inline int lgi_groups_node(const lgi_groups *groups, const lg_graph *graph, int op)
{
    const int group = lg_graph_op(graph, op)->group;
    return group < 0 ? op : groups->ops[groups->begin[group]];
}

/* Whether the edge is between ops that meet, which need no event for it. */
static inline bool lgi_is_meeting(const lg_graph *graph, const lg_edge *edge)
{
    const int group = lg_graph_op(graph, edge->from)->group;
    return group >= 0 && edge->distance == 0 && group == lg_graph_op(graph, edge->to)->group;
}

/* All members of a group must have one lag. `lag`: by op. */
LG_NODISCARD lg_status lgi_groups_check_lags(const lgi_groups *groups, const lg_graph *graph,
                                             const int *lag);

/*
 * One total order of the collectives of each communicator: on each of its ranks they stand in one lane, and in the same
 * order on all. Every op must stand in a lane.
 */
LG_NODISCARD lg_status lgi_groups_check_collectives(const lgi_groups *groups, const lg_plan *plan,
                                                    const lg_graph *graph);

#endif
