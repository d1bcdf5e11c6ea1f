/*
 * lg_search(): every problem (replicas, micro-batches, sizes of messages, placement) with every strategy; then the fastest few are
 * improved (auto_improve.c). A problem is a graph with costs: placement and sizes are part of the graph.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes_text.h"
#include "base/check.h"
#include "plan/plan_machine.h"
#include "plan/plan_make.h"
#include "plan/strategies/auto.h"

/* Problems whose best plan is improved at the end. */
#define NUM_KEPT 3
/* They are no slower than the best by more than this. */
#define KEPT_FRAC 0.15
/* A gain below this is none, in the words of the result. */
#define GAIN_FRAC 0.01
/* And below this it would be printed as 0.0 %. */
#define LEAST_SHOWN_PERCENT 0.05
#define MAX_STAGES_PER_RANK 64

static const int64_t default_chunks[] = {0, (int64_t)4 << 20};

lg_search_opts lg_search_opts_default(void)
{
    return (lg_search_opts){.graph = lg_graph_opts_default(),
                            .strategy = lg_strategy_opts_default(),
                            .num_replicas = 1,
                            .max_stages_per_rank = 8,
                            .max_simulated_ops = 16000000};
}

const char *lg_search_placement_name(lg_search_placement placement)
{
    static const char *const names[LG_NUM_SEARCH_PLACEMENTS] = {
        [LG_SEARCH_ONE_STAGE] = "one stage",  [LG_SEARCH_CONTIGUOUS] = "contiguous",
        [LG_SEARCH_BALANCED] = "balanced",    [LG_SEARCH_LOOP] = "loop",
        [LG_SEARCH_MODULO] = "modulo",        [LG_SEARCH_V] = "v",
        [LG_SEARCH_BALANCED_V] = "balanced v"};
    return (unsigned)placement < LG_NUM_SEARCH_PLACEMENTS ? names[placement] : NULL;
}

/* A graph with the best plan found for it. */
typedef struct problem {
    lg_stages stages;
    lg_graph *graph;
    lg_costs *costs;
    lg_plan *plan;
    double step_ns;
    lg_search_entry entry; /* of the plan; rank_peak_bytes is not its own */
} problem;

typedef struct searcher {
    const lg_model *model;
    const lg_machine *machine;
    lg_search_source source;
    lg_search_opts opts;
    lgi_budget budget;
    int num_blocks;
    problem kept[NUM_KEPT]; /* fastest first */
    int num_kept;
    lg_search_entry *entries;
    size_t num_entries;
    size_t capacity;
    size_t first_entry; /* of the problem at hand */
    int64_t least_bytes;
    bool is_complete;
    uint64_t *graphs; /* fingerprints of those that were tried */
    size_t num_graphs;
    size_t graphs_capacity;
    lg_rank_stats *stats; /* by rank */
    double *layer_ns;     /* by layer, of one micro-batch of `layers_of_samples` samples */
    int64_t *layer_bytes;
    int64_t *layer_micro_bytes;
    int64_t layers_of_samples;
} searcher;

/* What makes a problem. */
typedef struct setting {
    lg_search_placement placement;
    int group_size;
    int num_replicas;
    int num_ranks; /* of a pipeline */
    int num_micro_batches;
    int64_t chunk_bytes;
    int64_t share_bytes;
} setting;

static void problem_deinit(problem *p)
{
    lg_plan_destroy(p->plan);
    lg_costs_destroy(p->costs);
    lg_graph_destroy(p->graph);
    lg_stages_deinit(&p->stages);
    *p = (problem){0};
}

/* --- graphs and costs --------------------------------------------------------------------------------------------------------- */

static lg_status make_graph(const searcher *s, problem *p, const lg_graph_opts *opts)
{
    LG_TRY(s->source.make_graph != NULL
               ? s->source.make_graph(&p->graph, s->model, opts, s->source.user)
               : lg_graph_create(&p->graph, s->model, opts));
    LG_TRY(lg_costs_create(&p->costs, p->graph));
    if (s->source.fill_costs != NULL) {
        return s->source.fill_costs(p->costs, p->graph, s->source.user);
    }
    lg_costs_estimate(p->costs, p->graph, s->machine);
    return LG_OK;
}

static double fastest_ns(const searcher *s, const problem *p, int op)
{
    const lg_graph_opts *const opts = lg_graph_options(p->graph);
    double ns = INFINITY;
    for (int i = 0; i < opts->num_widths; i++) {
        if (opts->widths[i] <= s->machine->num_cores) {
            ns = fmin(ns, lg_costs_op_ns(p->costs, op, i));
        }
    }
    return isfinite(ns) ? ns : 0.0;
}

/* Time and bytes of each layer for one micro-batch, from the graph of one rank. */
static lg_status measure_layers(searcher *s, int64_t num_samples)
{
    lg_status status = LG_OK;
    problem one = {0};
    lg_graph_opts opts = s->opts.graph;
    const size_t num_layers = (size_t)lg_model_num_layers(s->model);
    if (s->layers_of_samples == num_samples) {
        return LG_OK;
    }
    opts.num_samples = num_samples;
    opts.num_micro_batches = 1;
    opts.parallel = NULL;
    LG_TRY_GOTO(make_graph(s, &one, &opts));
    memset(s->layer_ns, 0, num_layers * sizeof *s->layer_ns);
    memset(s->layer_bytes, 0, num_layers * sizeof *s->layer_bytes);
    memset(s->layer_micro_bytes, 0, num_layers * sizeof *s->layer_micro_bytes);
    for (int i = 0; i < lg_graph_num_ops(one.graph); i++) {
        const lg_op_info *const op = lg_graph_op(one.graph, i);
        if (op->layer >= 0 && op->micro_batch >= 0) {
            s->layer_ns[op->layer] += fastest_ns(s, &one, i);
        }
    }
    for (int i = 0; i < lg_graph_num_values(one.graph); i++) {
        const lg_value_info *const value = lg_graph_value(one.graph, i);
        if (value->layer < 0) {
            continue;
        }
        if (value->is_persistent) {
            s->layer_bytes[value->layer] += value->bytes;
        } else if (value->kind == LG_VALUE_ACTIVATION || value->kind == LG_VALUE_STASH) {
            s->layer_micro_bytes[value->layer] += value->bytes;
        }
    }
    s->layers_of_samples = num_samples;
out:
    problem_deinit(&one);
    return status;
}

static int64_t memory_limit(const searcher *s)
{
    return s->opts.strategy.memory_bytes > 0 ? s->opts.strategy.memory_bytes
                                             : s->machine->memory_bytes;
}

static lg_status balance(searcher *s, lg_stages *out, const setting *set)
{
    lg_status status = LG_OK;
    int *in_flight = NULL;
    const int per_rank = set->placement == LG_SEARCH_BALANCED_V ? 2 : 1;
    const int num_stages = per_rank * set->num_ranks;
    const int64_t num_samples =
        s->opts.graph.num_samples / ((int64_t)set->num_replicas * set->num_micro_batches);
    LG_TRY(measure_layers(s, num_samples > 0 ? num_samples : 1));
    LG_TRY_GOTO(lgi_calloc(&in_flight, (size_t)num_stages, sizeof *in_flight));
    for (int i = 0; i < num_stages; i++) { /* as 1f1b keeps them */
        const int num =
            num_stages - i < set->num_micro_batches ? num_stages - i : set->num_micro_batches;
        in_flight[i] = num;
    }
    const lg_layer_costs costs = {.ns = s->layer_ns,
                                  .bytes = s->layer_bytes,
                                  .micro_batch_bytes = s->layer_micro_bytes,
                                  .micro_batches_in_flight = in_flight,
                                  .memory_bytes = memory_limit(s) / per_rank};
    LG_TRY_GOTO(lg_stages_balanced(out, s->model, set->num_ranks, num_stages,
                                   per_rank == 2 ? LG_STAGE_ORDER_V : LG_STAGE_ORDER_LOOP, &costs));
out:
    lgi_free(in_flight);
    return status;
}

static lg_status make_stages(searcher *s, lg_stages *out, const setting *set)
{
    switch (set->placement) {
    case LG_SEARCH_CONTIGUOUS:
        return lg_stages_contiguous(out, s->model, set->num_ranks, set->num_ranks,
                                    LG_STAGE_ORDER_LOOP);
    case LG_SEARCH_LOOP:
        return lg_stages_contiguous(out, s->model, set->num_ranks, set->num_ranks * set->group_size,
                                    LG_STAGE_ORDER_LOOP);
    case LG_SEARCH_MODULO:
        return lg_stages_modulo(out, s->model, set->num_ranks, set->group_size);
    case LG_SEARCH_V:
        return lg_stages_contiguous(out, s->model, set->num_ranks, 2 * set->num_ranks,
                                    LG_STAGE_ORDER_V);
    case LG_SEARCH_BALANCED:
    case LG_SEARCH_BALANCED_V:
        return balance(s, out, set);
    default:
        return LG_OK;
    }
}

static lg_status make_problem(searcher *s, problem *p, const setting *set)
{
    lg_graph_opts opts = s->opts.graph;
    lg_parallel parallel = {.num_replicas = set->num_replicas,
                            .num_pipeline_ranks = set->num_ranks,
                            .num_stages = 1,
                            .chunk_bytes = set->chunk_bytes,
                            .share_bytes = set->share_bytes};
    if (set->num_ranks > 1) {
        LG_TRY(make_stages(s, &p->stages, set));
        lg_stages_apply(&p->stages, &parallel);
    }
    opts.num_micro_batches = set->num_micro_batches;
    opts.parallel = set->num_ranks * set->num_replicas > 1 ? &parallel : NULL;
    LG_TRY(make_graph(s, p, &opts));
    p->entry = (lg_search_entry){.placement = set->placement,
                                 .group_size = set->group_size,
                                 .num_replicas = set->num_replicas,
                                 .num_pipeline_ranks = set->num_ranks,
                                 .num_stages = lg_graph_num_stages(p->graph),
                                 .num_micro_batches = set->num_micro_batches,
                                 .chunk_bytes = set->chunk_bytes,
                                 .share_bytes = set->share_bytes};
    return LG_OK;
}

/* --- entries ------------------------------------------------------------------------------------------------------------------ */

/* Whether the same half of a name came to the same for this graph: without reductions data-parallel halves hardly differ. */
static bool is_known(const searcher *s, const lg_search_entry *entry)
{
    const size_t length = strcspn(entry->strategy, "+");
    for (size_t i = s->first_entry; i < s->num_entries; i++) {
        const lg_search_entry *const e = &s->entries[i];
        if (e->fits == entry->fits && e->step_ns == entry->step_ns &&
            e->peak_bytes == entry->peak_bytes && strcspn(e->strategy, "+") == length &&
            strncmp(e->strategy, entry->strategy, length) == 0) {
            return true;
        }
    }
    return false;
}

static lg_status add_entry(searcher *s, const lg_search_entry *entry, const lg_plan *plan)
{
    const int num_ranks = s->machine->num_ranks;
    if (s->num_entries > s->first_entry && is_known(s, entry)) {
        return LG_OK;
    }
    LG_TRY(lgi_grow(&s->entries, &s->capacity, s->num_entries + 1, sizeof *s->entries));
    lg_search_entry *const e = &s->entries[s->num_entries];
    *e = *entry;
    LG_TRY(lgi_calloc(&e->rank_peak_bytes, (size_t)num_ranks, sizeof(int64_t)));
    s->num_entries++;
    if (plan == NULL) {
        return LG_OK;
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        e->rank_peak_bytes[rank] = plan->peak_bytes[rank];
        e->bubble_frac += s->stats[rank].bubble_frac / num_ranks;
        e->exposed_comm_ns = fmax(e->exposed_comm_ns, s->stats[rank].exposed_comm_ns);
        e->sent_bytes += s->stats[rank].sent_bytes;
    }
    return LG_OK;
}

static lgi_strategy_input input_of(const searcher *s, const problem *p)
{
    lgi_strategy_input input = {
        .graph = p->graph, .machine = s->machine, .costs = p->costs, .opts = s->opts.strategy};
    input.opts.memory_bytes = memory_limit(s);
    return input;
}

static lg_status try_strategy(searcher *s, problem *p, const lgi_auto_try *what)
{
    lg_status status = LG_OK;
    lg_plan *plan = NULL;
    const lgi_strategy_input input = input_of(s, p);
    lg_search_entry entry = p->entry;
    (void)snprintf(entry.strategy, sizeof entry.strategy, "%s", what->name);
    entry.has_push = what->has_push;
    LG_TRY_GOTO(lgi_auto_make(&plan, &entry.step_ns, &entry.peak_bytes, s->stats, what, &input,
                              &s->budget));
    entry.fits = plan != NULL;
    if (entry.peak_bytes > 0) {
        LG_TRY_GOTO(add_entry(s, &entry, plan));
        s->least_bytes = s->least_bytes == 0 || entry.peak_bytes < s->least_bytes ? entry.peak_bytes
                                                                                  : s->least_bytes;
    }
    if (plan != NULL && (p->plan == NULL || entry.step_ns < p->step_ns)) {
        lg_plan_destroy(p->plan);
        p->plan = plan;
        p->step_ns = entry.step_ns;
        p->entry = entry;
        plan = NULL;
    }
out:
    lg_plan_destroy(plan);
    return status;
}

/* Takes `p` over if it is among the fastest. */
static void keep(searcher *s, problem *p)
{
    if (p->plan == NULL) {
        return;
    }
    int at = s->num_kept;
    while (at > 0 && p->step_ns < s->kept[at - 1].step_ns) {
        at--;
    }
    if (at == NUM_KEPT) {
        return;
    }
    if (s->num_kept == NUM_KEPT) {
        problem_deinit(&s->kept[--s->num_kept]);
    }
    memmove(&s->kept[at + 1], &s->kept[at], (size_t)(s->num_kept - at) * sizeof s->kept[0]);
    s->kept[at] = *p;
    s->num_kept++;
    *p = (problem){0};
}

static bool is_over(const searcher *s)
{
    return s->num_kept > 0 && s->budget.used_ops >= s->budget.max_ops / 2;
}

/* A balanced split may be the one into equal numbers of blocks. */
static lg_status is_new_graph(searcher *s, const lg_graph *graph, bool *is_new)
{
    const uint64_t fingerprint = lg_graph_fingerprint(graph);
    *is_new = true;
    for (size_t i = 0; i < s->num_graphs && *is_new; i++) {
        *is_new = s->graphs[i] != fingerprint;
    }
    LG_TRY(lgi_grow(&s->graphs, &s->graphs_capacity, s->num_graphs + 1, sizeof *s->graphs));
    s->graphs[s->num_graphs++] = fingerprint;
    return LG_OK;
}

static lg_status try_setting(searcher *s, const setting *set)
{
    lg_status status = LG_OK;
    problem p = {0};
    lgi_auto_try *tries = NULL;
    int num = 0;
    bool is_new = false;
    if (is_over(s)) {
        s->is_complete = false;
        return LG_OK;
    }
    status = make_problem(s, &p, set);
    if (status == LG_NOT_SUPPORTED ||
        (status == LG_INVALID_ARG && p.stages.num_stages == 0 && set->num_ranks > 1)) {
        status = LG_OK; /* no such split of this model */
        goto out;
    }
    LG_TRY_GOTO(status);
    LG_TRY_GOTO(is_new_graph(s, p.graph, &is_new));
    if (!is_new) {
        goto out;
    }
    LG_TRY_GOTO(lgi_auto_list(&tries, &num, p.graph));
    s->first_entry = s->num_entries;
    for (int i = 0; i < num; i++) {
        if (is_over(s)) {
            s->is_complete = false;
            break;
        }
        LG_TRY_GOTO(try_strategy(s, &p, &tries[i]));
    }
    keep(s, &p);
out:
    lgi_free(tries);
    problem_deinit(&p);
    return status;
}

/* --- settings ------------------------------------------------------------------------------------------------------------------ */

/* All placements of a pipeline with the other parts of the setting as given. */
static lg_status try_placements(searcher *s, setting set)
{
    const int num_ranks = set.num_ranks;
    if (num_ranks == 1) {
        set.placement = LG_SEARCH_ONE_STAGE;
        return try_setting(s, &set);
    }
    const lg_search_placement simple[] = {LG_SEARCH_CONTIGUOUS, LG_SEARCH_BALANCED, LG_SEARCH_V,
                                          LG_SEARCH_BALANCED_V};
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++) {
        const bool is_v = simple[i] == LG_SEARCH_V || simple[i] == LG_SEARCH_BALANCED_V;
        if (s->num_blocks >= (is_v ? 2 : 1) * num_ranks) {
            set.placement = simple[i];
            LG_TRY(try_setting(s, &set));
        }
    }
    for (set.group_size = 2; set.group_size <= s->opts.max_stages_per_rank &&
                             num_ranks * set.group_size <= s->num_blocks;
         set.group_size++) {
        set.placement = LG_SEARCH_LOOP;
        LG_TRY(try_setting(s, &set));
    }
    for (set.group_size = 1; s->num_blocks > num_ranks * set.group_size; set.group_size++) {
        const int per_rank =
            (s->num_blocks + num_ranks * set.group_size - 1) / (num_ranks * set.group_size);
        const bool is_loop = s->num_blocks == num_ranks * set.group_size * per_rank;
        if (per_rank <= s->opts.max_stages_per_rank && !is_loop) {
            set.placement = LG_SEARCH_MODULO;
            LG_TRY(try_setting(s, &set));
        }
    }
    return LG_OK;
}

/* All sizes of messages that replicas may have. */
static lg_status try_messages(searcher *s, setting set)
{
    const int64_t default_shares[] = {
        0, lg_machine_share_bytes(s->machine, set.num_replicas, set.num_ranks)};
    const bool has_chunks = s->opts.chunk_bytes != NULL;
    const bool has_shares = s->opts.share_bytes != NULL;
    const int64_t *const chunks = has_chunks ? s->opts.chunk_bytes : default_chunks;
    const int64_t *const shares = has_shares ? s->opts.share_bytes : default_shares;
    const int num_chunks =
        has_chunks ? s->opts.num_chunk_bytes : (int)(sizeof default_chunks / sizeof(int64_t));
    const int num_shares =
        has_shares ? s->opts.num_share_bytes : (int)(sizeof default_shares / sizeof(int64_t));
    if (set.num_replicas == 1) {
        return try_placements(s, set);
    }
    for (int i = 0; i < num_chunks; i++) {
        for (int k = 0; k < num_shares; k++) {
            set.chunk_bytes = chunks[i];
            set.share_bytes = shares[k];
            LG_TRY(try_placements(s, set));
        }
    }
    return LG_OK;
}

static lg_status try_all(searcher *s)
{
    const int num_ranks = s->machine->num_ranks;
    const int own_micro_batches = s->opts.graph.num_micro_batches;
    const int *const ms =
        s->opts.micro_batches != NULL ? s->opts.micro_batches : &own_micro_batches;
    const int num_ms = s->opts.micro_batches != NULL ? s->opts.num_micro_batches : 1;
    for (int d = 1; d <= num_ranks; d++) {
        if (num_ranks % d != 0 || (s->opts.num_replicas > 0 && d != s->opts.num_replicas) ||
            num_ranks / d > s->num_blocks) {
            continue;
        }
        for (int i = 0; i < num_ms; i++) {
            const setting set = {
                .num_replicas = d, .num_ranks = num_ranks / d, .num_micro_batches = ms[i]};
            LG_TRY(try_messages(s, set));
        }
    }
    return LG_OK;
}

/* --- the end -------------------------------------------------------------------------------------------------------------------- */

static lg_status improve(searcher *s, problem *p)
{
    lg_status status = LG_OK;
    lg_plan *better = NULL;
    lg_timeline timeline = {0};
    lg_bound bound;
    double step_ns = 0.0;
    const lgi_strategy_input input = input_of(s, p);
    LG_TRY(lg_plan_bound(&bound, p->graph, s->machine, p->costs));
    LG_TRY_GOTO(lgi_auto_improve(&better, &step_ns, p->plan, p->step_ns, bound.step_ns, &input,
                                 &s->budget));
    if (better != NULL && step_ns < p->step_ns * (1.0 - LGI_AUTO_TIE_FRAC)) {
        lg_search_entry entry = p->entry;
        (void)snprintf(entry.strategy, sizeof entry.strategy, "auto");
        entry.step_ns = step_ns;
        entry.peak_bytes = lgi_plan_peak_bytes(better);
        LG_TRY_GOTO(lgi_budget_simulate(&s->budget, &input, better, &timeline));
        LG_TRY_GOTO(lg_timeline_stats(s->stats, &timeline, better, p->graph));
        LG_TRY_GOTO(add_entry(s, &entry, better));
        lg_plan_destroy(p->plan);
        p->plan = better;
        p->step_ns = step_ns;
        better = NULL;
    }
out:
    lg_timeline_deinit(&timeline);
    lg_plan_destroy(better);
    return status;
}

/* Improves the kept problems, each with an equal part of what is left; the fastest is kept[0] then. */
static lg_status improve_all(searcher *s)
{
    const double limit_ns = s->kept[0].step_ns * (1.0 + KEPT_FRAC);
    const int64_t max_ops = s->budget.max_ops;
    int best = 0;
    int num = 0;
    while (num < s->num_kept && s->kept[num].step_ns <= limit_ns) {
        num++;
    }
    for (int i = 0; i < num; i++) {
        s->first_entry = s->num_entries;
        s->budget.max_ops = s->budget.used_ops + (max_ops - s->budget.used_ops) / (num - i);
        LG_TRY(improve(s, &s->kept[i]));
        best = s->kept[i].step_ns < s->kept[best].step_ns ? i : best;
    }
    s->budget.max_ops = max_ops;
    const problem p = s->kept[best];
    s->kept[best] = s->kept[0];
    s->kept[0] = p;
    return LG_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const lg_search_entry *const x = a;
    const lg_search_entry *const y = b;
    if (x->fits != y->fits) {
        return x->fits ? -1 : 1;
    }
    if (x->fits && x->step_ns != y->step_ns) {
        return x->step_ns < y->step_ns ? -1 : 1;
    }
    if (x->peak_bytes != y->peak_bytes) {
        return x->peak_bytes < y->peak_bytes ? -1 : 1;
    }
    const int names = strcmp(x->strategy, y->strategy);
    return names != 0                           ? names
           : x->placement != y->placement       ? (int)x->placement - (int)y->placement
           : x->group_size != y->group_size     ? x->group_size - y->group_size
           : x->num_replicas != y->num_replicas ? x->num_replicas - y->num_replicas
           : x->num_micro_batches != y->num_micro_batches
               ? x->num_micro_batches - y->num_micro_batches
           : x->chunk_bytes != y->chunk_bytes
               ? (x->chunk_bytes > y->chunk_bytes) - (x->chunk_bytes < y->chunk_bytes)
               : (x->share_bytes > y->share_bytes) - (x->share_bytes < y->share_bytes);
}

/* "zb-h1+priority (contiguous, 4 micro-batches)" */
static void describe(char *text, size_t text_bytes, const lg_search_entry *e)
{
    char size[32] = "";
    char replicas[32] = "";
    char chunks[48] = "";
    char shares[64] = "";
    if (e->group_size > 0) {
        (void)snprintf(size, sizeof size, " %d", e->group_size);
    }
    if (e->num_replicas > 1) {
        (void)snprintf(replicas, sizeof replicas, ", %d replicas", e->num_replicas);
    }
    if (e->chunk_bytes > 0) {
        (void)snprintf(chunks, sizeof chunks, ", chunks of %lld bytes", (long long)e->chunk_bytes);
    }
    if (e->share_bytes > 0) {
        (void)snprintf(shares, sizeof shares, ", messages shared up to %lld bytes",
                       (long long)e->share_bytes);
    }
    (void)snprintf(text, text_bytes, "%s%s (%s%s, %d micro-batch%s%s%s%s)", e->strategy,
                   e->has_push ? " with push" : "", lg_search_placement_name(e->placement), size,
                   e->num_micro_batches, e->num_micro_batches == 1 ? "" : "es", replicas, chunks,
                   shares);
}

static void tell(lg_search_result *out)
{
    char name[240];
    const lg_search_entry *const best = &out->entries[0];
    const lg_search_entry *const named = &out->entries[out->best_named];
    const double above =
        out->bound.step_ns > 0.0 ? fmax(0.0, best->step_ns / out->bound.step_ns - 1.0) : 0.0;
    describe(name, sizeof name, named);
    const char *const rest =
        out->is_complete ? "" : " Half of the budget was not enough to try all named strategies.";
    if (100.0 * out->gain_frac < LEAST_SHOWN_PERCENT) {
        (void)snprintf(out->text, sizeof out->text,
                       "No gain over %s: its %.3f ms a step is the best that was found, %.1f %% "
                       "above the lower bound.%s",
                       name, named->step_ns * 1e-6, 100.0 * above, rest);
    } else if (out->gain_frac < GAIN_FRAC) {
        (void)snprintf(out->text, sizeof out->text,
                       "No gain to speak of: %.3f ms a step is %.1f %% less than the %.3f ms of "
                       "%s, less than costs are good for; %.1f %% above the lower bound.%s",
                       best->step_ns * 1e-6, 100.0 * out->gain_frac, named->step_ns * 1e-6, name,
                       100.0 * above, rest);
    } else {
        (void)snprintf(out->text, sizeof out->text,
                       "%.3f ms a step, %.1f %% less than the best named strategy, %s, with %.3f "
                       "ms; %.1f %% above the lower bound.%s",
                       best->step_ns * 1e-6, 100.0 * out->gain_frac, name, named->step_ns * 1e-6,
                       100.0 * above, rest);
    }
}

/* Those that were compared had their memory placed roughly; the one that is taken has it placed at leisure. */
static lg_status place_best(searcher *s, problem *p)
{
    if (strcmp(p->plan->strategy, "auto") == 0) {
        return LG_OK;
    }
    LG_TRY(lgi_plan_place(p->plan, p->graph));
    for (size_t i = 0; i < s->num_entries; i++) {
        lg_search_entry *const e = &s->entries[i];
        if (e->fits && strcmp(e->strategy, p->entry.strategy) == 0 &&
            e->placement == p->entry.placement && e->group_size == p->entry.group_size &&
            e->num_replicas == p->entry.num_replicas && e->has_push == p->entry.has_push &&
            e->num_micro_batches == p->entry.num_micro_batches &&
            e->chunk_bytes == p->entry.chunk_bytes && e->share_bytes == p->entry.share_bytes) {
            e->peak_bytes = lgi_plan_peak_bytes(p->plan);
            memcpy(e->rank_peak_bytes, p->plan->peak_bytes,
                   (size_t)p->plan->num_ranks * sizeof *e->rank_peak_bytes);
        }
    }
    return LG_OK;
}

static lg_status store(lg_search_result *out, searcher *s)
{
    problem *const p = &s->kept[0];
    LG_TRY(lg_plan_bound(&out->bound, p->graph, s->machine, p->costs));
    LG_TRY(place_best(s, p));
    qsort(s->entries, s->num_entries, sizeof *s->entries, compare_entries);
    out->stages = p->stages;
    out->graph = p->graph;
    out->costs = p->costs;
    out->plan = p->plan;
    *p = (problem){0};
    out->num_ranks = s->machine->num_ranks;
    out->entries = s->entries;
    out->num_entries = (int)s->num_entries;
    s->entries = NULL;
    s->num_entries = 0;
    while (strcmp(out->entries[out->best_named].strategy, "auto") == 0) {
        out->best_named++;
    }
    out->gain_frac = 1.0 - out->entries[0].step_ns / out->entries[out->best_named].step_ns;
    out->is_complete = s->is_complete;
    out->num_simulations = s->budget.num_simulations;
    out->simulated_ops = s->budget.used_ops;
    tell(out);
    return LG_OK;
}

static lg_status check_opts(const lg_search_opts *opts, const lg_machine *machine, int num_blocks)
{
    if (opts->num_replicas < 0 ||
        (opts->num_replicas > 0 && machine->num_ranks % opts->num_replicas != 0)) {
        LG_FAIL(LG_INVALID_ARG, "search: %d replicas do not divide the machine's %d ranks",
                opts->num_replicas, machine->num_ranks);
    }
    if (opts->num_replicas > 0 && machine->num_ranks / opts->num_replicas > num_blocks) {
        LG_FAIL(LG_INVALID_ARG, "search: %d pipeline ranks, but the model has %d blocks",
                machine->num_ranks / opts->num_replicas, num_blocks);
    }
    if (opts->max_stages_per_rank < 1 || opts->max_stages_per_rank > MAX_STAGES_PER_RANK) {
        LG_FAIL(LG_INVALID_ARG, "search: %d stages per rank; allowed: 1..%d",
                opts->max_stages_per_rank, MAX_STAGES_PER_RANK);
    }
    if (opts->max_simulated_ops < 1 || opts->strategy.memory_bytes < 0) {
        LG_FAIL(LG_INVALID_ARG,
                "search: %lld simulated ops, %lld bytes; allowed: 1 or more, 0 or more",
                (long long)opts->max_simulated_ops, (long long)opts->strategy.memory_bytes);
    }
    for (int i = 0; opts->micro_batches != NULL && i < opts->num_micro_batches; i++) {
        if (opts->micro_batches[i] < 1) {
            LG_FAIL(LG_INVALID_ARG, "search: %d micro-batches; allowed: 1 or more",
                    opts->micro_batches[i]);
        }
    }
    return LG_OK;
}

static lg_status searcher_init(searcher *s)
{
    const size_t num_layers = (size_t)lg_model_num_layers(s->model);
    int *block_of_layer = NULL;
    LG_TRY(lgi_calloc(&block_of_layer, num_layers, sizeof *block_of_layer));
    s->num_blocks = lg_model_blocks(s->model, block_of_layer);
    lgi_free(block_of_layer);
    LG_TRY(lgi_machine_check(s->machine));
    LG_TRY(check_opts(&s->opts, s->machine, s->num_blocks));
    LG_TRY(lgi_calloc(&s->stats, (size_t)s->machine->num_ranks, sizeof *s->stats));
    LG_TRY(lgi_calloc(&s->layer_ns, num_layers, sizeof *s->layer_ns));
    LG_TRY(lgi_calloc(&s->layer_bytes, num_layers, sizeof *s->layer_bytes));
    return lgi_calloc(&s->layer_micro_bytes, num_layers, sizeof *s->layer_micro_bytes);
}

static void searcher_deinit(searcher *s)
{
    for (int i = 0; i < s->num_kept; i++) {
        problem_deinit(&s->kept[i]);
    }
    for (size_t i = 0; i < s->num_entries; i++) {
        lgi_free(s->entries[i].rank_peak_bytes);
    }
    lgi_free(s->entries);
    lgi_free(s->graphs);
    lgi_free(s->stats);
    lgi_free(s->layer_ns);
    lgi_free(s->layer_bytes);
    lgi_free(s->layer_micro_bytes);
}

lg_status lg_search(lg_search_result *out, const lg_model *model, const lg_machine *machine,
                    const lg_search_source *source, const lg_search_opts *opts)
{
    lg_status status = LG_OK;
    searcher s = {.model = model,
                  .machine = machine,
                  .opts = *opts,
                  .budget = {.max_ops = opts->max_simulated_ops, .progress = opts},
                  .is_complete = true};
    *out = (lg_search_result){0};
    if (source != NULL) {
        s.source = *source;
    }
    LG_TRY_GOTO(searcher_init(&s));
    LG_TRY_GOTO(try_all(&s));
    if (s.num_kept == 0) {
        char texts[2][LGI_BYTES_TEXT_BYTES];
        status = lgi_fail(LG_NOT_SUPPORTED,
                          "search: no plan fits %s on each rank; the smallest needs %s; "
                          "more micro-batches (now %d), a smaller batch or more ranks need less",
                          lgi_bytes_text(texts[0], memory_limit(&s)),
                          lgi_bytes_text(texts[1], s.least_bytes), s.opts.graph.num_micro_batches);
        goto out;
    }
    LG_TRY_GOTO(improve_all(&s));
    LG_TRY_GOTO(store(out, &s));
out:
    searcher_deinit(&s);
    if (status != LG_OK) {
        lg_search_result_deinit(out);
    }
    return status;
}

void lg_search_result_deinit(lg_search_result *result)
{
    for (int i = 0; i < result->num_entries; i++) {
        lgi_free(result->entries[i].rank_peak_bytes);
    }
    lgi_free(result->entries);
    lg_plan_destroy(result->plan);
    lg_costs_destroy(result->costs);
    lg_graph_destroy(result->graph);
    lg_stages_deinit(&result->stages);
    *result = (lg_search_result){0};
}
