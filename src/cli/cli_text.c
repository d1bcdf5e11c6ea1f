/* Numbers and tables for people. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

const char *cli_format_bytes(char text[CLI_TEXT_BYTES], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (fabs(bytes) >= 1024.0 && unit < 4) {
        bytes /= 1024.0;
        unit++;
    }
    (void)snprintf(text, CLI_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
    return text;
}

const char *cli_format_count(char text[CLI_TEXT_BYTES], int64_t count)
{
    char digits[32];
    const int num_digits = snprintf(digits, sizeof digits, "%" PRId64, count < 0 ? -count : count);
    int length = 0;
    if (count < 0) {
        text[length++] = '-';
    }
    for (int i = 0; i < num_digits; i++) {
        if (i > 0 && (num_digits - i) % 3 == 0) {
            text[length++] = ',';
        }
        text[length++] = digits[i];
    }
    text[length] = '\0';
    return text;
}

const char *cli_format_duration(char text[CLI_TEXT_BYTES], double seconds)
{
    if (!(seconds >= 0.0) || seconds > 3.6e9) {
        (void)snprintf(text, CLI_TEXT_BYTES, "-:--");
        return text;
    }
    const int64_t whole = (int64_t)(seconds + 0.5);
    if (whole >= 3600) {
        (void)snprintf(text, CLI_TEXT_BYTES, "%" PRId64 ":%02d:%02d", whole / 3600,
                       (int)(whole / 60 % 60), (int)(whole % 60));
    } else {
        (void)snprintf(text, CLI_TEXT_BYTES, "%d:%02d", (int)(whole / 60), (int)(whole % 60));
    }
    return text;
}

const char *cli_format_ns(char text[CLI_TEXT_BYTES], double ns)
{
    if (!(fabs(ns) < INFINITY)) {
        (void)snprintf(text, CLI_TEXT_BYTES, "-");
    } else if (fabs(ns) < 1e6) {
        (void)snprintf(text, CLI_TEXT_BYTES, "%.1f us", ns * 1e-3);
    } else if (fabs(ns) < 1e9) {
        (void)snprintf(text, CLI_TEXT_BYTES, "%.2f ms", ns * 1e-6);
    } else {
        (void)snprintf(text, CLI_TEXT_BYTES, "%.3f s", ns * 1e-9);
    }
    return text;
}

void cli_print_bound(const char *prefix, const lg_bound *bound, double step_ns)
{
    char step[CLI_TEXT_BYTES];
    char rank[CLI_TEXT_BYTES];
    char path[CLI_TEXT_BYTES];
    char link[CLI_TEXT_BYTES];
    printf("%s%s; no order of these ops is faster (work of the busiest rank %s, longest chain of "
           "ops that wait for each other %s, busiest link %s)",
           prefix, cli_format_ns(step, bound->step_ns), cli_format_ns(rank, bound->busiest_rank_ns),
           cli_format_ns(path, bound->critical_path_ns),
           cli_format_ns(link, bound->busiest_link_ns));
    if (step_ns > 0.0 && bound->step_ns > 0.0) {
        printf("; this plan takes %.1f %% longer",
               100.0 * fmax(0.0, step_ns / bound->step_ns - 1.0));
    }
    printf("\n");
}

void cli_print_op_kinds(const lg_graph *graph, const lg_costs *costs)
{
    const lg_graph_opts *const opts = lg_graph_options(graph);
    int counts[LG_NUM_OP_KINDS] = {0};
    double flops[LG_NUM_OP_KINDS] = {0.0};
    double ns[LG_NUM_OP_KINDS + 1][LG_MAX_WIDTHS] = {{0.0}};
    for (int op = 0; op < lg_graph_num_ops(graph); op++) {
        const lg_op_info *const info = lg_graph_op(graph, op);
        counts[info->kind]++;
        flops[info->kind] += info->flops;
        for (int w = 0; w < opts->num_widths; w++) {
            ns[info->kind][w] += lg_costs_op_ns(costs, op, w);
            ns[LG_NUM_OP_KINDS][w] += lg_costs_op_ns(costs, op, w);
        }
    }
    printf("%-12s %8s %12s", "op", "number", "GFLOP");
    for (int w = 0; w < opts->num_widths; w++) {
        printf("  %5d thread%s", opts->widths[w], opts->widths[w] == 1 ? " " : "s");
    }
    printf("\n");
    for (int kind = 0; kind <= LG_NUM_OP_KINDS; kind++) {
        char text[CLI_TEXT_BYTES];
        const bool is_sum = kind == LG_NUM_OP_KINDS;
        if (!is_sum && counts[kind] == 0) {
            continue;
        }
        if (is_sum) {
            printf("%-12s %8d %12s", "all", lg_graph_num_ops(graph), "");
        } else {
            printf("%-12s %8d %12.3f", lg_op_kind_name((lg_op_kind)kind), counts[kind],
                   flops[kind] * 1e-9);
        }
        for (int w = 0; w < opts->num_widths; w++) {
            printf(" %14s", cli_format_ns(text, ns[kind][w]));
        }
        printf("\n");
    }
}

void cli_print_lanes(const lg_graph *graph, const lg_plan *plan, const lg_timeline *timeline)
{
    const double whole_ns = timeline->end_ns - timeline->begin_ns;
    for (int lane = 0; lane < plan->num_lanes; lane++) {
        const lg_lane *const about = &plan->lanes[lane];
        char text[CLI_TEXT_BYTES];
        double busy_ns = 0.0;
        int num_weight_grads = 0;
        int num_lagged = 0;
        for (int i = 0; i < timeline->num_spans; i++) {
            const lg_span *const span = &timeline->spans[i];
            busy_ns += span->lane == lane ? span->end_ns - span->start_ns : 0.0;
        }
        for (int i = 0; i < about->num_entries; i++) {
            const lg_op_info *const op = lg_graph_op(graph, about->entries[i].op);
            num_weight_grads += op->kind == LG_OP_WEIGHT_GRAD ? 1 : 0;
            num_lagged += about->entries[i].lag;
        }
        char cores[32];
        (void)snprintf(cores, sizeof cores, about->num_cores > 1 ? "cores %d-%d" : "core %d",
                       about->first_core, about->first_core + about->num_cores - 1);
        printf("  lane %-3d %-10s %5d ops (%d weight gradients, %d lagging)  busy %s, %.1f %%\n",
               lane, cores, about->num_entries, num_weight_grads, num_lagged,
               cli_format_ns(text, busy_ns), whole_ns > 0.0 ? 100.0 * busy_ns / whole_ns : 0.0);
    }
}
