/* leapgrad plan, check, show for several ranks; leapgrad simulate, leapgrad compare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli_cluster.h"
#include "leapgrad/report.h"
#include "leapgrad/search.h"

/* --- plan, simulate ----------------------------------------------------------------------------------------------------- */

static lg_status make_plan(cli_cluster *c, const char *plan_path)
{
    lg_status status = cli_cluster_create(c);
    if (status == LG_OK) {
        const char *const path = plan_path != NULL                 ? plan_path
                                 : c->recipe->plan.file[0] != '\0' ? c->recipe->plan.file
                                                                   : NULL;
        status = path != NULL ? lg_cluster_load_plan(c->cluster, path)
                              : lg_cluster_plan(c->cluster, c->recipe, &c->opts);
    }
    return status;
}

lg_status cli_cluster_plan(const cli_args *args, const cli_command *command)
{
    cli_cluster c;
    const char *const out_path = cli_args_option(args, command, "out");
    lg_status status = cli_cluster_open(&c, args, command);
    if (status == LG_OK) {
        status = make_plan(&c, cli_args_option(args, command, "plan"));
    }
    if (status == LG_OK) {
        cli_print_cluster(&c);
    }
    if (status == LG_OK && out_path != NULL) {
        status = cli_save_plan(c.cluster, out_path);
    }
    cli_cluster_close(&c);
    return status;
}

static const cli_option simulate_options[] = {
    {"plan", "FILE", "a saved plan instead of the one that the strategy makes"},
    {"out", "FILE", "save the plan; FILE.csv: as a schedule for PyTorch"},
    CLI_CLUSTER_OPTIONS,
    {NULL, NULL, NULL}};

static lg_status simulate(const cli_args *args)
{
    return cli_cluster_plan(args, &cli_simulate);
}

const cli_command cli_simulate = {
    .name = "simulate",
    .words = "RECIPE|--model=NAME --machine=FILE [key=value ...]",
    .min_words = 0,
    .max_words = 1,
    .summary = "what a plan comes to on a machine: step time, and for each rank its bubble, "
               "memory, messages",
    .help = "Costs are estimated from the machine's rates, unless plan.costs=file. Ranks: "
            "ranks.pipeline,\n"
            "ranks.replicas, ranks.placement; micro-batches of each replica: train.micro_batches.",
    .options = simulate_options,
    .run = simulate};

/* --- check -------------------------------------------------------------------------------------------------------------- */

lg_status cli_cluster_check(const cli_args *args, const cli_command *command)
{
    cli_cluster c;
    const bool has_csv = cli_args_option(args, command, "csv") != NULL;
    lg_status status = cli_cluster_open(&c, args, command);
    if (status == LG_OK) {
        status = cli_cluster_create(&c);
    }
    if (status == LG_OK && !has_csv && c.plan_path == NULL && c.recipe->plan.file[0] == '\0') {
        status =
            cli_fail(LG_INVALID_ARG, "check: which plan? usage: leapgrad check %s", command->words);
    }
    if (status == LG_OK && has_csv) {
        status = lg_cluster_plan(c.cluster, c.recipe, &c.opts);
    } else if (status == LG_OK) {
        status = lg_cluster_load_plan(c.cluster,
                                      c.plan_path != NULL ? c.plan_path : c.recipe->plan.file);
    }
    if (status == LG_OK) {
        int num_entries = 0;
        char text[CLI_TEXT_BYTES];
        const lg_plan *const plan = c.cluster->plan;
        for (int i = 0; i < plan->num_lanes; i++) {
            num_entries += plan->lanes[i].num_entries;
        }
        printf("ok: strategy %s, %d ranks, %d ops on %d lanes, largest peak %s bytes\n",
               plan->strategy, plan->num_ranks, num_entries, plan->num_lanes,
               cli_format_count(text, lg_cluster_summarize(c.cluster).peak_bytes));
    }
    cli_cluster_close(&c);
    return status;
}

/* --- show --------------------------------------------------------------------------------------------------------------- */

static lg_status save_page(const lg_cluster *cluster, const char *title, const char *path)
{
    lg_record *record = NULL;
    const lg_cluster_summary sum = lg_cluster_summarize(cluster);
    lg_status status = lg_record_create(&record);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"predicted_step_ms", sum.step_ns * 1e-6},
                   {"bubble_percent", 100.0 * sum.bubble_frac},
                   {"exposed_comm_ms", sum.exposed_comm_ns * 1e-6}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == LG_OK; i++) {
        status = lg_record_set_f64(record, numbers[i].key, numbers[i].value);
    }
    if (status == LG_OK) {
        status = lg_record_set_text(record, "strategy", cluster->plan->strategy);
    }
    if (status == LG_OK) {
        status = lg_record_set_i64(record, "planned_peak_bytes", sum.peak_bytes);
    }
    if (status == LG_OK) {
        status = lg_record_set_i64(record, "sent_bytes", sum.sent_bytes);
    }
    if (status == LG_OK) {
        status = lg_record_set_i64(record, "ranks", cluster->plan->num_ranks);
    }
    const lg_report_input input = {.title = title,
                                   .run = record,
                                   .graph = cluster->graph,
                                   .plan = cluster->plan,
                                   .planned = &cluster->timeline};
    if (status == LG_OK) {
        status = lg_report_save(&input, path);
    }
    lg_record_destroy(record);
    return status;
}

static lg_status draw(const lg_cluster *cluster, const char *title, const char *directory)
{
    static const char *const names[] = {"timeline.svg", "timeline.csv", "trace.json", "plan.html"};
    const lg_timeline_panel panel = {"simulated", &cluster->timeline};
    lg_status status = LG_OK;
    (void)mkdir(directory, 0777); /* if it cannot be made, writing to it says so */
    for (int i = 0; i < 4 && status == LG_OK; i++) {
        char *const path = cli_path(directory, names[i]);
        if (path == NULL) {
            return cli_fail(LG_OUT_OF_MEMORY, "no memory for a path");
        }
        status = i == 0
                     ? lg_timeline_save_svg(path, title, cluster->graph, cluster->plan, &panel, 1)
                 : i == 1 ? lg_timeline_save_csv(path, cluster->graph, cluster->plan, &panel, 1)
                 : i == 2 ? lg_timeline_save_trace(path, cluster->graph, cluster->plan, &panel, 1)
                          : save_page(cluster, title, path);
        if (status == LG_OK) {
            printf("%s%s", i > 0 ? ", " : "\nsaved ", path);
        }
        free(path);
    }
    if (status == LG_OK) {
        printf("\n");
    }
    return status;
}

lg_status cli_cluster_show(const cli_args *args, const cli_command *command)
{
    cli_cluster c;
    char title[256];
    const char *const directory = cli_args_option(args, command, "out");
    lg_status status = cli_cluster_open(&c, args, command);
    if (status == LG_OK) {
        status = make_plan(&c, cli_args_option(args, command, "plan"));
    }
    if (status == LG_OK) {
        cli_print_cluster(&c);
        (void)snprintf(title, sizeof title, "%s: %s on %d x %d ranks (replicas x pipeline)",
                       c.name != NULL ? c.name : "equal times", c.cluster->plan->strategy,
                       lg_graph_num_replicas(c.cluster->graph),
                       lg_graph_num_pipeline_ranks(c.cluster->graph));
        status = draw(c.cluster, title, directory != NULL ? directory : ".");
    }
    cli_cluster_close(&c);
    return status;
}

/* --- compare ------------------------------------------------------------------------------------------------------------ */

#define MAX_COMPARED 64

struct result {
    char name[80];
    const char *strategy;   /* NULL: the name */
    const char *placed_for; /* NULL: as the strategy asks for */
    lg_status status;
    char why[200];
    lg_cluster_summary sum;
    lg_bound bound;
};

static const cli_option compare_options[] = {
    {"out", "FILE", "picture of time against memory; compare.svg is the default"},
    {"strategies", "A,B,...",
     "what to compare; the default is all that can go with the ranks, then auto on the placement "
     "of "
     "the fastest"},
    CLI_CLUSTER_OPTIONS,
    {NULL, NULL, NULL}};

static int add_name(struct result *results, int num, const char *first, const char *second)
{
    if (num < MAX_COMPARED) {
        (void)snprintf(results[num].name, sizeof results[num].name, "%s%s%s", first,
                       second[0] != '\0' ? "+" : "", second);
        num++;
    }
    return num;
}

static const char reversed[] = "reverse-first-k";

/* Leaves out what comes to the same as it does without the reversed half, or cannot be had. */
static int drop_reversed(struct result *results, int num)
{
    int num_kept = 0;
    for (int i = 0; i < num; i++) {
        const struct result *const r = &results[i];
        const char *const plus = strchr(r->name, '+');
        const struct result *const plain = num_kept > 0 ? &results[num_kept - 1] : NULL;
        const bool is_reversed = plus != NULL && plain != NULL && strcmp(plus + 1, reversed) == 0;
        if (is_reversed && (r->status != LG_OK ||
                            (plain->status == LG_OK && r->sum.step_ns == plain->sum.step_ns))) {
            continue;
        }
        results[num_kept++] = *r;
    }
    return num_kept;
}

/* All that has a meaning for P pipeline ranks and D replicas. */
static int list_strategies(struct result *results, const lg_recipe *recipe)
{
    const bool is_pipeline = recipe->ranks.pipeline > 1;
    const bool has_replicas = recipe->ranks.replicas > 1;
    const bool has_ranks = is_pipeline || has_replicas;
    int num = 0;
    for (int i = 0; lg_strategy_name(i) != NULL; i++) {
        const lg_strategy_role role = lg_strategy_role_of(i);
        const char *const name = lg_strategy_name(i);
        /* Of several ranks auto has a row of its own; in a pipeline in-order is far behind all others. */
        const bool is_left_out = (has_ranks && strcmp(name, "auto") == 0) ||
                                 (is_pipeline && strcmp(name, "in-order") == 0);
        if (role == LG_STRATEGY_WHOLE && !is_left_out) {
            num = add_name(results, num, name, "");
        } else if (role == LG_STRATEGY_PIPELINE && is_pipeline) {
            num = add_name(results, num, name, "");
            num = has_replicas ? add_name(results, num, name, "priority") : num;
            num = add_name(results, num, name, reversed);
        } else if (role == LG_STRATEGY_DATA && !is_pipeline && has_replicas) {
            num = add_name(results, num, name, "");
        }
    }
    return num;
}

static lg_status take_names(struct result *results, int *num, const char *text)
{
    while (*text != '\0') {
        const size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof results[0].name || *num == MAX_COMPARED) {
            return cli_fail(LG_INVALID_ARG,
                            "compare: --strategies takes 1 to %d names with commas between them",
                            MAX_COMPARED);
        }
        (void)snprintf(results[*num].name, sizeof results[*num].name, "%.*s", (int)length, text);
        (*num)++;
        text += length + (text[length] == ',' ? 1 : 0);
    }
    return LG_OK;
}

/* One of them, with the placement that it asks for. Only what ends the command is returned. */
static lg_status try_one(struct result *result, cli_cluster *c)
{
    lg_cluster *cluster = NULL;
    lg_cluster_opts opts = c->opts;
    opts.strategy = result->strategy != NULL ? result->strategy : result->name;
    opts.placed_for = result->placed_for;
    opts.has_loose_keys = true;
    result->status = lg_cluster_create(&cluster, c->recipe, &opts);
    if (result->status == LG_OK) {
        result->status = lg_cluster_plan(cluster, c->recipe, &opts);
    }
    if (result->status == LG_OK) {
        result->sum = lg_cluster_summarize(cluster);
        result->status =
            lg_plan_bound(&result->bound, cluster->graph, &cluster->machine, cluster->costs);
    }
    if (result->status != LG_OK) {
        (void)snprintf(result->why, sizeof result->why, "%s", lg_last_error());
    }
    lg_cluster_destroy(cluster);
    const bool is_fatal = result->status == LG_OUT_OF_MEMORY || result->status == LG_IO ||
                          result->status == LG_CORRUPT || result->status == LG_INTERNAL;
    return is_fatal ? result->status : LG_OK;
}

static int compare_results(const void *a, const void *b)
{
    const struct result *const x = a;
    const struct result *const y = b;
    if ((x->status == LG_OK) != (y->status == LG_OK)) {
        return x->status == LG_OK ? -1 : 1;
    }
    if (x->sum.step_ns != y->sum.step_ns) {
        return x->sum.step_ns < y->sum.step_ns ? -1 : 1;
    }
    if ((x->strategy == NULL) != (y->strategy == NULL)) {
        return x->strategy == NULL ? -1 : 1; /* what has a name of its own */
    }
    return strcmp(x->name, y->name);
}

static void print_results(const struct result *results, int num)
{
    char step[CLI_TEXT_BYTES];
    char exposed[CLI_TEXT_BYTES];
    char peak[CLI_TEXT_BYTES];
    char sent[CLI_TEXT_BYTES];
    printf("%3s  %-36s %12s %9s %14s %12s %12s\n", "", "strategy", "step", "bubble", "exposed comm",
           "peak", "sent");
    for (int i = 0; i < num; i++) {
        const struct result *const r = &results[i];
        if (r->status != LG_OK) {
            printf("%3s  %-36s %s\n", "-", r->name, r->why);
            continue;
        }
        printf("%3d  %-36s %12s %7.1f %% %14s %12s %12s\n", i + 1, r->name,
               cli_format_ns(step, r->sum.step_ns), 100.0 * r->sum.bubble_frac,
               cli_format_ns(exposed, r->sum.exposed_comm_ns),
               cli_format_bytes(peak, (double)r->sum.peak_bytes),
               cli_format_bytes(sent, (double)r->sum.sent_bytes));
    }
}

/* A gain below this is none: costs are not known that well. */
#define GAIN_FRAC 0.01
/* And below this it would be printed as 0.0 %. */
#define LEAST_SHOWN_PERCENT 0.05

/* `auto` on the placement of the fastest of the others, which are sorted; `best_name` has room for its name. */
static lg_status add_auto(struct result *results, int *num, char *best_name, cli_cluster *c)
{
    if (*num == 0 || *num == MAX_COMPARED || results[0].status != LG_OK) {
        return LG_OK;
    }
    struct result *const added = &results[*num];
    memcpy(best_name, results[0].name, sizeof results[0].name);
    (void)snprintf(added->name, sizeof added->name, "auto, placed as %.*s",
                   (int)strcspn(best_name, "+"), best_name);
    added->strategy = "auto";
    added->placed_for = best_name;
    (*num)++;
    return try_one(added, c);
}

/* The best named one, what auto adds, and what cannot be beaten. */
static void print_verdict(const struct result *results, int num)
{
    const struct result *named = NULL;
    const struct result *searched = NULL;
    for (int i = num - 1; i >= 0; i--) {
        if (results[i].status == LG_OK && results[i].strategy == NULL) {
            named = &results[i];
        } else if (results[i].status == LG_OK) {
            searched = &results[i];
        }
    }
    printf("\n");
    if (named != NULL && searched != NULL) {
        const double gain = 1.0 - searched->sum.step_ns / named->sum.step_ns;
        if (gain >= GAIN_FRAC) {
            printf("Best with a name: %s; auto takes %.1f %% less.\n", named->name, 100.0 * gain);
        } else if (100.0 * gain >= LEAST_SHOWN_PERCENT) {
            printf("No gain over %s to speak of: auto takes %.1f %% less, less than costs are good "
                   "for.\n",
                   named->name, 100.0 * gain);
        } else {
            printf("No gain over %s: auto finds nothing faster.\n", named->name);
        }
    }
    cli_print_bound("lower bound for the first row: ", &results[0].bound, results[0].sum.step_ns);
}

static lg_status save_picture(const struct result *results, int num, const cli_cluster *c,
                              const char *path)
{
    lg_scatter_point points[MAX_COMPARED];
    char title[200];
    int num_points = 0;
    for (int i = 0; i < num; i++) {
        if (results[i].status == LG_OK) {
            points[num_points++] = (lg_scatter_point){results[i].name, results[i].sum.step_ns,
                                                      (double)results[i].sum.peak_bytes};
        }
    }
    (void)snprintf(
        title, sizeof title, "%.100s: %lld replica%s x %lld pipeline rank%s, %lld micro-batch%s",
        c->name != NULL ? c->name : "equal times", (long long)c->recipe->ranks.replicas,
        c->recipe->ranks.replicas == 1 ? "" : "s", (long long)c->recipe->ranks.pipeline,
        c->recipe->ranks.pipeline == 1 ? "" : "s", (long long)c->recipe->train.micro_batches,
        c->recipe->train.micro_batches == 1 ? "" : "es");
    return lg_scatter_save_svg(path, title, points, num_points);
}

static lg_status compare(const cli_args *args)
{
    cli_cluster c;
    struct result results[MAX_COMPARED];
    char best_name[sizeof results[0].name];
    int num = 0;
    const char *const names = cli_args_option(args, &cli_compare, "strategies");
    const char *const given = cli_args_option(args, &cli_compare, "out");
    const char *const path = given != NULL ? given : "compare.svg";
    memset(results, 0, sizeof results);
    lg_status status = cli_cluster_open(&c, args, &cli_compare);
    if (status == LG_OK && c.schedule != NULL) {
        status = cli_fail(LG_INVALID_ARG, "compare: --csv is one schedule; use simulate");
    }
    if (status == LG_OK && names != NULL) {
        status = take_names(results, &num, names);
    } else if (status == LG_OK) {
        num = list_strategies(results, c.recipe);
    }
    for (int i = 0; i < num && status == LG_OK; i++) {
        status = try_one(&results[i], &c);
    }
    if (status == LG_OK && names == NULL) {
        num = drop_reversed(results, num);
    }
    if (status == LG_OK && names == NULL &&
        c.recipe->ranks.pipeline * c.recipe->ranks.replicas > 1) {
        qsort(results, (size_t)num, sizeof results[0], compare_results);
        status = add_auto(results, &num, best_name, &c);
    }
    if (status == LG_OK) {
        qsort(results, (size_t)num, sizeof results[0], compare_results);
        if (num == 0 || results[0].status != LG_OK) {
            status =
                cli_fail(num > 0 ? results[0].status : LG_INVALID_ARG,
                         "compare: nothing can be had; %s: %s", results[0].name, results[0].why);
        }
    }
    if (status == LG_OK) {
        print_results(results, num);
        print_verdict(results, num);
        status = save_picture(results, num, &c, path);
    }
    if (status == LG_OK) {
        printf("\nsaved %s\n", path);
    }
    cli_cluster_close(&c);
    return status;
}

const cli_command cli_compare = {
    .name = "compare",
    .words = "RECIPE|--model=NAME --machine=FILE [key=value ...]",
    .min_words = 0,
    .max_words = 1,
    .summary =
        "simulate many strategies on one machine: a ranking, and time against memory as a picture",
    .help = "Each strategy has the placement that it asks for, unless ranks.placement says "
            "otherwise. Other "
            "placements,\nother numbers of replicas: leapgrad search.",
    .options = compare_options,
    .run = compare};
