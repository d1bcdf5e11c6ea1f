/* The report's tables that hold what was measured against the plan: by rank, and by op. */
#include "report/report_ranks.h"

#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/check.h"

/* Rows. Of more ranks, the first and the last ones; of more ops, those that differ most. */
#define MAX_RANKS 64
#define MAX_OPS 20

/* --- ranks --------------------------------------------------------------------------------------------------------------- */

static void add_rank(lgi_text *out, const lgi_picture *picture, lg_rank_stats *const stats[2],
                     int rank)
{
    char text[32];
    lgi_text_addf(out, "<tr><td>%d</td>", rank);
    for (int p = 0; p < picture->num_panels; p++) {
        const lg_rank_stats *const of_rank = &stats[p][rank];
        const double step_ns = picture->panels[p].timeline->step_ns;
        lgi_text_addf(out, "<td>%s</td><td>%.1f %%</td><td>%.1f %%</td>",
                      lgi_format_ns(of_rank->busy_ns, text, sizeof text),
                      100.0 * of_rank->bubble_frac,
                      step_ns > 0.0 ? 100.0 * of_rank->exposed_comm_ns / step_ns : 0.0);
    }
    lgi_text_addf(out, "<td>%s</td>",
                  lgi_format_bytes((double)stats[0][rank].sent_bytes, text, sizeof text));
    lgi_text_addf(out, "<td>%s</td></tr>\n",
                  lgi_format_bytes((double)stats[0][rank].peak_bytes, text, sizeof text));
}

lg_status lgi_report_add_ranks(lgi_text *out, const lgi_picture *picture)
{
    const int num_ranks = picture->plan->num_ranks;
    lg_status status = LG_OK;
    lg_rank_stats *stats[2] = {NULL, NULL};
    if (num_ranks < 2 || picture->num_panels < 1 || picture->num_panels > 2) {
        return LG_OK;
    }
    for (int p = 0; p < picture->num_panels; p++) {
        LG_TRY_GOTO(lgi_calloc(&stats[p], (size_t)num_ranks, sizeof *stats[p]));
        LG_TRY_GOTO(lg_timeline_stats(stats[p], picture->panels[p].timeline, picture->plan,
                                      picture->graph));
    }
    lgi_text_add(out,
                 "<h2>Ranks<small>bubble: what its cores idle, whatever for; exposed: the part "
                 "of the step in which only messages are under way</small></h2>\n"
                 "<div class=\"card table scroll\"><table><tr><th>rank</th>");
    for (int p = 0; p < picture->num_panels; p++) {
        static const char *const heads[] = {"busy", "bubble", "exposed"};
        for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
            lgi_text_addf(out, "<th>%s, ", heads[i]);
            lgi_text_add_escaped(out, picture->panels[p].label);
            lgi_text_add(out, "</th>");
        }
    }
    lgi_text_add(out, "<th>sent</th><th>peak</th></tr>\n");
    for (int rank = 0; rank < num_ranks; rank++) {
        if (num_ranks <= MAX_RANKS || rank < MAX_RANKS / 2 || rank >= num_ranks - MAX_RANKS / 2) {
            add_rank(out, picture, stats, rank);
        } else if (rank == MAX_RANKS / 2) {
            lgi_text_add(out, "<tr><td>...</td></tr>\n");
        }
    }
    lgi_text_add(out, "</table></div>\n");
out:
    lgi_free(stats[0]);
    lgi_free(stats[1]);
    return status;
}

/* --- ops ----------------------------------------------------------------------------------------------------------------- */

struct difference {
    int op;
    double ns[2]; /* by panel */
};

static int compare_differences(const void *a, const void *b)
{
    const struct difference *const x = a;
    const struct difference *const y = b;
    const double x_ns = fabs(x->ns[1] - x->ns[0]);
    const double y_ns = fabs(y->ns[1] - y->ns[0]);
    return x_ns != y_ns ? (x_ns < y_ns) - (x_ns > y_ns) : (x->op > y->op) - (x->op < y->op);
}

static void sum_ops(struct difference *ops, const lgi_picture *picture)
{
    for (int op = 0; op < picture->num_ops; op++) {
        ops[op].op = op;
    }
    for (int p = 0; p < 2; p++) {
        const lg_timeline *const timeline = picture->panels[p].timeline;
        for (int i = 0; i < timeline->num_spans; i++) {
            ops[timeline->spans[i].op].ns[p] +=
                timeline->spans[i].end_ns - timeline->spans[i].start_ns;
        }
    }
}

static void add_difference(lgi_text *out, const lgi_picture *picture,
                           const struct difference *difference)
{
    char text[32];
    const double ns = difference->ns[1] - difference->ns[0];
    lgi_text_add(out, "<tr><td class=\"text\">");
    lgi_text_add_escaped_cut(out, lg_graph_op(picture->graph, difference->op)->name, 100);
    lgi_text_add(out, "</td>");
    for (int p = 0; p < 2; p++) {
        lgi_text_addf(out, "<td>%s</td>", lgi_format_ns(difference->ns[p], text, sizeof text));
    }
    lgi_text_addf(out, "<td>%s%s</td></tr>\n", ns < 0.0 ? "-" : "+",
                  lgi_format_ns(fabs(ns), text, sizeof text));
}

lg_status lgi_report_add_differences(lgi_text *out, const lgi_picture *picture)
{
    struct difference *ops = NULL;
    if (picture->num_panels != 2 || picture->num_ops == 0) {
        return LG_OK;
    }
    LG_TRY(lgi_calloc(&ops, (size_t)picture->num_ops, sizeof *ops));
    sum_ops(ops, picture);
    qsort(ops, (size_t)picture->num_ops, sizeof *ops, compare_differences);
    lgi_text_add(out, "<h2>Ops that differ most<small>all of them: timeline.csv</small></h2>\n"
                      "<div class=\"card table scroll\"><table><tr><th>op</th>");
    for (int p = 0; p < 2; p++) {
        lgi_text_add(out, "<th>");
        lgi_text_add_escaped(out, picture->panels[p].label);
        lgi_text_add(out, "</th>");
    }
    lgi_text_add(out, "<th>difference</th></tr>\n");
    for (int i = 0; i < picture->num_ops && i < MAX_OPS; i++) {
        if (ops[i].ns[0] != ops[i].ns[1]) {
            add_difference(out, picture, &ops[i]);
        }
    }
    lgi_text_add(out, "</table></div>\n");
    lgi_free(ops);
    return LG_OK;
}
