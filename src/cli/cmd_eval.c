/* leapgrad eval, leapgrad generate: what a trained network is worth, and what it writes. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* --- eval ---------------------------------------------------------------------------------------------------------- */

static const cli_option eval_options[] = {
    {"part", "test|validation", "which part of the data; test is the default"}, {NULL, NULL, NULL}};

static lg_status read_part(const cli_args *args, lg_data_part *out)
{
    const char *const text = cli_args_option(args, &cli_eval, "part");
    *out = LG_PART_TEST;
    if (text == NULL || strcmp(text, "test") == 0) {
        return LG_OK;
    }
    if (strcmp(text, "validation") == 0) {
        *out = LG_PART_VALIDATION;
        return LG_OK;
    }
    return cli_fail(LG_INVALID_ARG, "eval: --part is '%s', expected test or validation", text);
}

/* A job with the weights of the run or checkpoint args->words[0]. */
static lg_status open_trained(lg_recipe **recipe, lg_job **job, const cli_args *args,
                              bool without_data)
{
    const lg_job_opts opts = {.without_data = without_data, .plan_path = NULL};
    lg_status status =
        lg_recipe_of_run(recipe, args->words[0], args->overrides, args->num_overrides);
    if (status == LG_OK) {
        status = cli_make_plain(*recipe);
    }
    if (status == LG_OK) {
        status = lg_job_create(job, *recipe, &opts);
    }
    return status == LG_OK ? lg_job_load(*job, args->words[0], false) : status;
}

static void print_evaluation(const lg_evaluation *evaluation)
{
    char text[CLI_TEXT_BYTES];
    const char *const part = lg_data_part_name(evaluation->part);
    printf("step          %" PRId64 "\n", evaluation->step);
    printf("targets       %s (%s)\n", cli_format_count(text, evaluation->num_targets), part);
    printf("loss          %.6f\n", evaluation->loss);
    if (!isnan(evaluation->accuracy)) {
        printf("accuracy      %.4f\n", evaluation->accuracy);
    }
    if (!isnan(evaluation->bits_per_byte)) {
        printf("bits_per_byte %.6f\n", evaluation->bits_per_byte);
    }
    printf("weights_hash  %s\n", evaluation->weights_hash);
}

static lg_status eval(const cli_args *args)
{
    lg_recipe *recipe = NULL;
    lg_job *job = NULL;
    lg_data_part part = LG_PART_TEST;
    lg_evaluation evaluation;
    lg_status status = read_part(args, &part);
    if (status == LG_OK) {
        status = open_trained(&recipe, &job, args, false);
    }
    if (status == LG_OK) {
        status = lg_job_evaluate(job, part, &evaluation);
    }
    if (status == LG_OK) {
        print_evaluation(&evaluation);
    }
    lg_job_destroy(job);
    lg_recipe_destroy(recipe);
    return status;
}

const cli_command cli_eval = {
    .name = "eval",
    .words = "RUN [key=value ...]",
    .min_words = 1,
    .max_words = 1,
    .summary = "evaluate a run's (or a checkpoint's) weights on its test data",
    .help = "RUN is a run directory or a checkpoint (DIR/checkpoints/step-N).",
    .options = eval_options,
    .run = eval};

/* --- generate ------------------------------------------------------------------------------------------------------ */

static const cli_option generate_options[] = {
    {"prompt", "TEXT", "what goes before; as generate.prompt=TEXT"},
    {"tokens", "NUMBER", "bytes to generate; as generate.tokens=NUMBER"},
    {"temperature", "NUMBER", "0: always the likeliest byte; as generate.temperature=NUMBER"},
    {"seed", "NUMBER", "another text for another seed; as generate.seed=NUMBER"},
    {NULL, NULL, NULL}};

static lg_status apply_options(lg_recipe *recipe, const cli_args *args)
{
    lg_status status = LG_OK;
    for (int i = 0; generate_options[i].name != NULL && status == LG_OK; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "generate.%s", generate_options[i].name);
        if (args->option_values[i] != NULL) {
            status = lg_recipe_set(recipe, key, args->option_values[i]);
        }
    }
    return status == LG_OK ? lg_recipe_check(recipe) : status;
}

static bool print_byte(void *user, unsigned char byte)
{
    (void)user;
    (void)putchar(byte);
    if (byte == '\n') {
        (void)fflush(stdout);
    }
    return ferror(stdout) == 0;
}

static lg_status generate(const cli_args *args)
{
    lg_recipe *recipe = NULL;
    lg_job *job = NULL;
    lg_status status = open_trained(&recipe, &job, args, true);
    if (status == LG_OK) {
        status = apply_options(recipe, args);
    }
    if (status == LG_OK) {
        const lg_generate_opts opts = lg_generate_opts_of(recipe);
        (void)fputs(opts.prompt, stdout);
        status = lg_job_generate(job, &opts, print_byte, NULL);
        (void)putchar('\n');
    }
    lg_job_destroy(job);
    lg_recipe_destroy(recipe);
    return status;
}

const cli_command cli_generate = {
    .name = "generate",
    .words = "RUN [key=value ...]",
    .min_words = 1,
    .max_words = 1,
    .summary = "continue a text with a trained GPT",
    .help = "RUN is a run directory or a checkpoint. The same weights, prompt, temperature and "
            "seed give the\n"
            "same text. A text longer than the model's context slides through it.",
    .options = generate_options,
    .run = generate};
