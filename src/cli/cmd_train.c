/* leapgrad train: progress, evaluations and the summary of a run; Ctrl-C stops it after the step. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

#define TERMINAL_INTERVAL_S 0.1
#define LINE_INTERVAL_S 10.0
#define BAR_CELLS 24

static const cli_option options[] = {
    {"resume", NULL, "go on with the run in the directory, from its last checkpoint"},
    {"quiet", NULL, "no progress: evaluations and the result only"},
    {NULL, NULL, NULL}};

/* --- stopping ------------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t stop_signal;

/* The first signal asks; a second one of the same kind has its usual effect. */
static void ask_to_stop(int number)
{
    stop_signal = number;
    (void)signal(number, SIG_DFL);
}

static void watch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = ask_to_stop;
    action.sa_flags = SA_RESTART;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that goes away does not end the training */
}

/* --- going on ------------------------------------------------------------------------------------------------------ */

/* Appends a word of a command line, quoted for a shell if need be. */
static void append_word(char *line, size_t line_bytes, const char *word)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "_-+=.,/:@%";
    size_t length = strlen(line);
    const bool is_safe = word[0] != '\0' && word[strspn(word, safe)] == '\0';
    length += (size_t)snprintf(line + length, line_bytes - length, "%s%s", length > 0 ? " " : "",
                               is_safe ? "" : "'");
    for (const char *c = word; *c != '\0' && length + 8 < line_bytes; c++) {
        length += (size_t)snprintf(line + length, line_bytes - length,
                                   *c == '\'' && !is_safe ? "'\\''" : "%c", *c);
    }
    if (!is_safe && length + 2 < line_bytes) {
        (void)snprintf(line + length, line_bytes - length, "'");
    }
}

#define RESUME_LINE_BYTES 900

/* The command that goes on with a stopped run, with the launcher that it takes; in words if it cannot be printed as a line. */
static void write_resume_line(char line[RESUME_LINE_BYTES], const cli_args *args,
                              const lg_comm *comm)
{
    bool has_resume = false;
    bool is_printable = true;
    line[0] = '\0';
    if (comm != NULL) {
        (void)snprintf(line, RESUME_LINE_BYTES, "%s -n %d",
                       getenv("SLURM_STEP_ID") != NULL ? "srun" : "mpirun",
                       lg_comm_num_ranks(comm));
    }
    for (int i = 0; i < args->argc; i++) {
        append_word(line, RESUME_LINE_BYTES, args->argv[i]);
        has_resume = has_resume || strcmp(args->argv[i], "--resume") == 0;
        for (const char *c = args->argv[i]; *c != '\0'; c++) {
            is_printable = is_printable && (unsigned char)*c >= ' ' && *c != 127;
        }
    }
    const size_t length = strlen(line);
    if (!is_printable || length + sizeof " --resume" + 8 >= RESUME_LINE_BYTES) {
        (void)snprintf(line, RESUME_LINE_BYTES, "the same command with --resume");
    } else if (!has_resume) {
        (void)snprintf(line + length, RESUME_LINE_BYTES - length, " --resume");
    }
}

/* --- progress ------------------------------------------------------------------------------------------------------ */

struct screen {
    bool is_terminal;
    bool is_quiet;
    bool has_bar;   /* the cursor stands behind a progress bar */
    bool said_stop; /* that it will stop was said */
    double shown_s; /* when progress was last shown */
    double min_wait_s;
    const cli_args *args; /* the command line */
    const lg_comm *comm;  /* of processes; NULL: one */
};

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Ends the progress bar, so that lines can be printed. */
static void clear_bar(struct screen *screen)
{
    if (screen->has_bar) {
        printf("\r\033[K");
        screen->has_bar = false;
    }
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void show_bar(struct screen *screen, const lg_run_progress *progress)
{
    char line[256];
    char eta[CLI_TEXT_BYTES];
    char bar[BAR_CELLS + 1];
    const double frac = (double)progress->step / (double)progress->num_steps;
    for (int i = 0; i < BAR_CELLS; i++) {
        bar[i] = (double)i < frac * BAR_CELLS - 0.5 ? '#' : '.';
    }
    bar[BAR_CELLS] = '\0';
    (void)snprintf(
        line, sizeof line,
        "[%s] %3d %%  %" PRId64 "/%" PRId64 "  epoch %.2f  loss %.4f  %.0f samples/s  %s left", bar,
        (int)(100.0 * frac), progress->step, progress->num_steps, progress->epoch, progress->loss,
        progress->samples_per_s, cli_format_duration(eta, progress->eta_s));
    printf("\r%.*s\033[K", terminal_columns() - 1, line);
    screen->has_bar = true;
}

static void show_line(const lg_run_progress *progress)
{
    char eta[CLI_TEXT_BYTES];
    printf("step %" PRId64 "/%" PRId64 "  epoch %.2f  loss %.4f  %.0f samples/s  %s left\n",
           progress->step, progress->num_steps, progress->epoch, progress->loss,
           progress->samples_per_s, cli_format_duration(eta, progress->eta_s));
}

static void on_step(void *user, const lg_run_progress *progress)
{
    struct screen *const screen = user;
    const double now = now_s();
    const bool is_last = progress->step == progress->num_steps;
    if (stop_signal && !screen->said_stop) {
        clear_bar(screen);
        char line[RESUME_LINE_BYTES];
        write_resume_line(line, screen->args, screen->comm);
        printf("stopping soon (now after step %" PRId64
               ") with a checkpoint (once more to give up); to go on: %s\n",
               progress->step, line);
        (void)fflush(stdout);
        screen->said_stop = true;
    }
    if (screen->is_quiet || (!is_last && now - screen->shown_s < screen->min_wait_s)) {
        return;
    }
    screen->shown_s = now;
    if (screen->is_terminal) {
        show_bar(screen, progress);
    } else {
        show_line(progress);
    }
    (void)fflush(stdout);
}

/* --- lines --------------------------------------------------------------------------------------------------------- */

static void print_evaluation(const lg_evaluation *evaluation)
{
    printf("step %" PRId64 "  %s loss %.4f", evaluation->step, lg_data_part_name(evaluation->part),
           evaluation->loss);
    if (!isnan(evaluation->accuracy)) {
        printf("  accuracy %.2f %%", 100.0 * evaluation->accuracy);
    }
    if (!isnan(evaluation->bits_per_byte)) {
        printf("  bits per byte %.4f", evaluation->bits_per_byte);
    }
    printf("  weights_hash %s\n", evaluation->weights_hash);
}

static void on_evaluation(void *user, const lg_evaluation *evaluation)
{
    clear_bar(user);
    print_evaluation(evaluation);
    (void)fflush(stdout);
}

static void on_message(void *user, const char *text)
{
    clear_bar(user);
    printf("%s\n", text);
    (void)fflush(stdout);
}

static void on_sample(void *user, const char *text, size_t num_bytes)
{
    clear_bar(user);
    printf("--- a sample of its text\n");
    for (size_t i = 0; i < num_bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];
        (void)putchar(byte >= ' ' || byte == '\n' || byte == '\t' ? byte : '?');
    }
    printf("\n---\n");
}

static void on_start(void *user, const lg_run_start *start)
{
    const lg_trainer_info *const info = &start->trainer;
    const lg_recipe *const recipe = start->recipe;
    char text[CLI_TEXT_BYTES];
    clear_bar(user);
    printf("leapgrad %s: %s, in %s\n", lg_version(), recipe->run.name, start->directory);
    printf("  device  %s, %s; %d core%s%s\n", info->device, info->device_text, info->num_cores,
           info->num_cores == 1 ? "" : "s", start->num_ranks > 1 ? " for rank 0" : "");
    printf("  model   %s, %s parameters\n", lg_model_kind_name(recipe->model.kind),
           cli_format_count(text, info->num_param_elems));
    printf("  data    %s samples an epoch, batch %" PRId64,
           cli_format_count(text, start->samples_per_epoch), recipe->train.batch);
    if (recipe->train.micro_batches > 1) {
        printf(" in %" PRId64 " micro-batches", recipe->train.micro_batches);
    }
    printf(", %" PRId64 " steps (%.2f epochs)\n", start->num_steps,
           (double)start->num_steps / (double)start->steps_per_epoch);
    if (start->num_ranks > 1) {
        printf("  ranks   %d: %" PRId64 " replica%s x %" PRId64 " pipeline rank%s, over %s\n",
               start->num_ranks, recipe->ranks.replicas, recipe->ranks.replicas == 1 ? "" : "s",
               recipe->ranks.pipeline, recipe->ranks.pipeline == 1 ? "" : "s",
               cli_comm_text(start->comm));
    }
    printf("  plan    %s, %d lane%s", info->strategy, info->num_lanes,
           info->num_lanes == 1 ? "" : "s");
    if (info->max_threads_per_lane > info->threads_per_lane) {
        printf(" of %d to %d threads", info->threads_per_lane, info->max_threads_per_lane);
    } else {
        printf(" x %d thread%s", info->threads_per_lane, info->threads_per_lane == 1 ? "" : "s");
    }
    printf(", made in %.1f ms", info->planning_ns * 1e-6);
    if (info->num_reorders > 0) {
        printf("; %d reorder%s of weights into another layout a step", info->num_reorders,
               info->num_reorders == 1 ? "" : "s");
    }
    printf("\n");
    printf("  expect  %s a step,", cli_format_ns(text, info->predicted_step_ns));
    printf(" %s of memory%s\n", cli_format_bytes(text, (double)start->planned_peak_bytes),
           start->num_ranks > 1 ? " on the fullest rank" : "");
    if (start->first_step > 0) {
        printf("  resumed at step %" PRId64 "\n", start->first_step);
    }
    (void)fflush(stdout);
}

/* Steps that take so many times what was predicted have lost their cores to something else. */
#define SLOW_FACTOR 2.0

static void print_slow_hint(const lg_run_result *result)
{
    double load = 0.0;
    if (!(result->step_ms_median > SLOW_FACTOR * result->predicted_step_ms)) {
        return;
    }
    printf("            the cores may be used otherwise");
    if (getloadavg(&load, 1) == 1) {
        printf(" (load %.1f on %ld cores)", load, sysconf(_SC_NPROCESSORS_ONLN));
    }
    printf(": %s may help\n", result->num_ranks > 1 ? "no more ranks on a host than it has cores"
                                                    : "exec.threads=1 or OMP_WAIT_POLICY=passive");
}

static void print_result(const lg_run_result *result)
{
    char planned[CLI_TEXT_BYTES];
    char measured[CLI_TEXT_BYTES];
    char sent[CLI_TEXT_BYTES];
    if (!isnan(result->step_ms_median)) {
        printf("step time   predicted %.2f ms, measured %.2f ms (median; %+.1f %%)",
               result->predicted_step_ms, result->step_ms_median,
               100.0 * (result->step_ms_median / result->predicted_step_ms - 1.0));
        if (!isnan(result->executor_overhead_frac)) {
            printf("; no op runs in %.2f %% of it", 100.0 * result->executor_overhead_frac);
        }
        printf("\n");
        print_slow_hint(result);
        printf("rate        %.1f samples/s over all steps, loading of data included\n",
               result->samples_per_s);
    }
    if (result->num_ranks > 1 && !isnan(result->bubble_frac)) {
        printf(
            "ranks       bubble %.1f %%, exposed communication %.1f %% of the step that is drawn; "
            "%s sent a step\n",
            100.0 * result->bubble_frac, 100.0 * result->exposed_comm_frac,
            cli_format_bytes(sent, (double)result->bytes_sent));
    }
    printf("peak bytes  planned %s, measured %s%s\n",
           cli_format_count(planned, result->planned_peak_bytes),
           cli_format_count(measured, result->measured_peak_bytes),
           result->planned_peak_bytes == result->measured_peak_bytes ? " (equal)" : "");
    printf("weights_hash %s\n", result->weights_hash);
    printf("look at     %s/report.html\n"
           "            %s/timeline.svg  trace.json (ui.perfetto.dev)  run.json  metrics.jsonl  "
           "checkpoints/\n",
           result->directory, result->directory);
}

/* --- the command --------------------------------------------------------------------------------------------------- */

/* `leapgrad train DIR --resume`: the run's own recipe, in the directory where it is now. */
static lg_status point_at_directory(lg_recipe *recipe, const cli_args *args)
{
    for (int i = 0; i < args->num_overrides; i++) {
        if (strncmp(args->overrides[i], "run.dir=", 8) == 0) {
            return LG_OK;
        }
    }
    return lg_recipe_set(recipe, "run.dir", args->words[0]);
}

static lg_status load_recipe(lg_recipe **out, const cli_args *args)
{
    const lg_status status = cli_load_recipe(out, args->words[0], args);
    return status == LG_OK && cli_is_directory(args->words[0]) ? point_at_directory(*out, args)
                                                               : status;
}

/* Trains as one rank of `comm`, or as all of them if that is NULL. */
static lg_status run(const lg_recipe *recipe, const cli_args *args, lg_comm *comm)
{
    const bool is_first = comm == NULL || lg_comm_rank(comm) == 0;
    lg_run_result result;
    struct screen screen;
    memset(&screen, 0, sizeof screen);
    screen.is_terminal = isatty(STDOUT_FILENO) == 1 && comm == NULL; /* mpirun reads it */
    screen.is_quiet = cli_args_option(args, &cli_train, "quiet") != NULL;
    screen.min_wait_s = screen.is_terminal ? TERMINAL_INTERVAL_S : LINE_INTERVAL_S;
    screen.shown_s = now_s();
    screen.args = args;
    screen.comm = comm;
    lg_run_opts opts = lg_run_opts_default();
    opts.resume = cli_args_option(args, &cli_train, "resume") != NULL;
    opts.should_stop = &stop_signal;
    opts.comm = comm;
    opts.listener.user = &screen;
    opts.listener.on_start = on_start;
    opts.listener.on_step = on_step;
    opts.listener.on_evaluation = on_evaluation;
    opts.listener.on_message = on_message;
    opts.listener.on_sample = on_sample;
    watch_signals();
    lg_status status = lg_run_train(recipe, &opts, &result);
    clear_bar(&screen);
    if (status == LG_OK && is_first) {
        print_result(&result);
    } else if (status == LG_INTERRUPTED) {
        char line[RESUME_LINE_BYTES];
        write_resume_line(line, args, comm);
        status = cli_fail(LG_INTERRUPTED, "%s; to go on: %s", lg_last_error(), line);
    }
    lg_run_result_deinit(&result);
    return status;
}

static lg_status train(const cli_args *args)
{
    lg_recipe *recipe = NULL;
    lg_comm *comm = NULL;
    lg_status status = cli_join_ranks(&comm, args, &cli_train);
    if (status == LG_OK) {
        status = lg_run_settle(comm, load_recipe(&recipe, args));
    }
    if (status == LG_OK) {
        status = run(recipe, args, comm);
    }
    cli_leave_ranks(comm, status);
    lg_recipe_destroy(recipe);
    return status;
}

const cli_command cli_train = {
    .name = "train",
    .words = "RECIPE [key=value ...]",
    .min_words = 1,
    .max_words = 1,
    .summary = "train a network; everything about the run goes into its directory",
    .help =
        "The directory is run.dir, or runs/ and the run's name. A run that is already there is "
        "kept as\n"
        "DIR.previous. Ctrl-C finishes the step, writes a checkpoint and says how to go on; "
        "the same\n"
        "command with --resume (or: leapgrad train DIR --resume) gives the bits of a run that "
        "was never\n"
        "stopped. What may differ then: run, plan, generate, exec.lanes, exec.threads, ranks but "
        "ranks.replicas,\n"
        "data.prefetch, "
        "where files lie, the length, and how often it evaluates, saves and logs.\n"
        "\n"
        "Several ranks (ranks.pipeline times ranks.replicas) are threads of this process; under "
        "mpirun -n N or\n"
        "srun each of the N processes is a rank, and N must be their number.",
    .options = options,
    .run = train};
