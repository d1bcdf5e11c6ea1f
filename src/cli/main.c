/* The program: finds the command, runs it, and says in one line what went wrong. */
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli_cluster.h"

static const cli_command *const commands[] = {
    &cli_train,   &cli_eval,   &cli_generate, &cli_plan,    &cli_check,    &cli_simulate,
    &cli_compare, &cli_search, &cli_show,     &cli_profile, &cli_selftest, &cli_doctor};
#define NUM_COMMANDS ((int)(sizeof commands / sizeof commands[0]))

/* --- errors -------------------------------------------------------------------------------------------------------- */

static char failure[2048];
static bool is_silent;

void cli_be_silent(bool has_no_say)
{
    is_silent = has_no_say;
}

lg_status cli_fail(lg_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(failure, sizeof failure, format, args);
    va_end(args);
    return code;
}

/* One line, whatever a file's name has in it. */
void cli_tell_failure(lg_status status)
{
    if (is_silent || status == LG_OK) {
        return;
    }
    is_silent = true; /* once */
    const char *text = failure[0] != '\0' ? failure : lg_last_error();
    if (text[0] == '\0') {
        text = lg_status_text(status);
    }
    char line[sizeof failure + 16];
    size_t length = (size_t)snprintf(line, sizeof line - 1, "leapgrad: %s", text);
    length = length < sizeof line - 1 ? length : sizeof line - 2;
    for (size_t i = 0; i < length; i++) {
        line[i] = (unsigned char)line[i] < ' ' || line[i] == 127 ? ' ' : line[i];
    }
    line[length++] = '\n';
    (void)fflush(stdout);
    (void)fwrite(line, 1, length, stderr); /* at once: launchers mix what processes write */
}

/* --- help ---------------------------------------------------------------------------------------------------------- */

static void print_help(void)
{
    printf("leapgrad %s: trains deep networks through a plan\n\n"
           "usage: leapgrad COMMAND TARGET [section.key=value ...] [--options]\n\n"
           "TARGET is a recipe (a YAML file), or a run directory with its own. Commands:\n\n",
           lg_version());
    for (int i = 0; i < NUM_COMMANDS; i++) {
        printf("  %-12s %s\n", commands[i]->name, commands[i]->summary);
    }
    printf("\n  %-12s %s\n  %-12s %s\n  %-12s %s\n", "help", "this text", "help COMMAND",
           "what a command does; also COMMAND --help", "help recipe",
           "all keys of a recipe: type, range, default, meaning");
}

static void print_command_help(const cli_command *command)
{
    printf("usage: leapgrad %s%s%s%s\n\n%s\n", command->name, command->words[0] != '\0' ? " " : "",
           command->words, command->options != NULL ? " [--options]" : "", command->summary);
    if (command->help != NULL) {
        printf("\n%s\n", command->help);
    }
    for (int i = 0; command->options != NULL && command->options[i].name != NULL; i++) {
        const cli_option *const option = &command->options[i];
        char usage[64];
        (void)snprintf(usage, sizeof usage, "--%s%s%s", option->name,
                       option->value_name != NULL ? "=" : "",
                       option->value_name != NULL ? option->value_name : "");
        printf("%s  %-22s %s\n", i == 0 ? "\noptions:\n" : "", usage, option->help);
    }
}

static lg_status print_recipe_help(void)
{
    char *text = NULL;
    const lg_status status = lg_recipe_help(&text);
    if (status == LG_OK) {
        (void)fputs(text, stdout);
    }
    lg_recipe_text_destroy(text);
    return status;
}

/* --- commands ------------------------------------------------------------------------------------------------------ */

static const char *command_name(int idx, const void *user)
{
    (void)user;
    return commands[idx]->name;
}

static const cli_command *find_command(const char *name)
{
    for (int i = 0; i < NUM_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    const char *const nearest = cli_nearest(name, command_name, NUM_COMMANDS, NULL);
    (void)cli_fail(LG_INVALID_ARG, "unknown command '%s'%s%s%s (leapgrad help lists them)", name,
                   nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "",
                   nearest != NULL ? "?" : "");
    return NULL;
}

static lg_status help(int argc, char **argv)
{
    if (argc < 3) {
        print_help();
        return LG_OK;
    }
    if (strcmp(argv[2], "recipe") == 0) {
        return print_recipe_help();
    }
    const cli_command *const command = find_command(argv[2]);
    if (command == NULL) {
        return LG_INVALID_ARG;
    }
    print_command_help(command);
    return LG_OK;
}

static lg_status run_command(const cli_command *command, int argc, char **argv)
{
    cli_args args;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_command_help(command);
            return LG_OK;
        }
    }
    lg_status status = LG_INVALID_ARG;
    if (cli_args_init(&args, command, argc, argv)) {
        status = command->run(&args);
    }
    cli_args_deinit(&args);
    return status;
}

static lg_status run_words(int argc, char **argv)
{
    if (argc < 2) {
        return cli_fail(LG_INVALID_ARG, "no command; leapgrad help lists them");
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        return help(argc, argv);
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        printf("leapgrad %s\n", lg_version());
        return LG_OK;
    }
    const cli_command *const command = find_command(argv[1]);
    return command != NULL ? run_command(command, argc, argv) : LG_INVALID_ARG;
}

/*
 * A program may be started with standard streams that are closed; the next file that it opens would then be one of them, and
 * its progress would go into it. So they are taken, in a way that writing to them still fails.
 */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

int main(int argc, char **argv)
{
    hold_standard_streams();
#ifdef __GLIBC__
    /* Else each thread's first allocation takes 64 to 128 MiB of address space, of which oneDNN may be out then. */
    (void)mallopt(M_ARENA_MAX, 1);
#endif
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like a full disk */
    lg_status status = run_words(argc, argv);
    if (status == LG_OK && (fflush(stdout) != 0 || ferror(stdout) != 0)) {
        status = cli_fail(LG_IO, "standard output could not be written");
    }
    cli_tell_failure(status);
    return lg_status_exit_code(status);
}
