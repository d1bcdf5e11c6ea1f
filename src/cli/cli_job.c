/* What the commands share: recipes of files and of runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

bool cli_is_directory(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

char *cli_path(const char *directory, const char *name)
{
    const size_t num_bytes = strlen(directory) + strlen(name) + 2;
    char *const path = malloc(num_bytes);
    if (path != NULL) {
        (void)snprintf(path, num_bytes, "%s/%s", directory, name);
    }
    return path;
}

lg_status cli_load_recipe(lg_recipe **out, const char *target, const cli_args *args)
{
    if (cli_is_directory(target)) {
        return lg_recipe_of_run(out, target, args->overrides, args->num_overrides);
    }
    return lg_recipe_load(out, target, args->overrides, args->num_overrides);
}

static lg_status set_all(lg_recipe *recipe, const char *const settings[][2])
{
    for (int i = 0; settings[i][0] != NULL; i++) {
        const lg_status status = lg_recipe_set(recipe, settings[i][0], settings[i][1]);
        if (status != LG_OK) {
            return status;
        }
    }
    return LG_OK;
}

lg_status cli_make_plain(lg_recipe *recipe)
{
    static const char *const settings[][2] = {{"plan.strategy", "in-order"},
                                              {"plan.costs", "estimate"},
                                              {"plan.file", ""},
                                              {"plan.memory_bytes", "0"},
                                              {"plan.push", "false"},
                                              {"plan.reverse_first_k", "-1"},
                                              {"ranks.pipeline", "1"},
                                              {"ranks.replicas", "1"},
                                              {"ranks.stages", "0"},
                                              {NULL, NULL}};
    return set_all(recipe, settings);
}

lg_status cli_use_costs_of_run(lg_recipe *recipe, const char *target)
{
    if (!cli_is_directory(target)) {
        return LG_OK;
    }
    char *const costs = cli_path(target, "costs.json");
    char *const machine = cli_path(target, "machine.json");
    lg_status status = costs != NULL && machine != NULL
                           ? LG_OK
                           : cli_fail(LG_OUT_OF_MEMORY, "no memory for a path");
    struct stat about;
    if (status == LG_OK && stat(costs, &about) == 0) {
        const char *const settings[][2] = {
            {"plan.costs_file", costs}, {"plan.costs", "file"}, {NULL, NULL}};
        status = set_all(recipe, settings);
    }
    if (status == LG_OK && stat(machine, &about) == 0) {
        status = lg_recipe_set(recipe, "plan.machine", machine);
    }
    free(costs);
    free(machine);
    return status;
}
