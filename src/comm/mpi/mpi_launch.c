/*
 * What launched this process is read from the environment that launchers give their processes: mpirun of Open MPI sets
 * OMPI_COMM_WORLD_SIZE; Hydra (MPICH, Intel MPI) and srun with PMI-2 set PMI_SIZE; launchers with PMIx, among them srun
 * --mpi=pmix, set PMIX_RANK; srun sets SLURM_STEP_NUM_TASKS.
 *
 * The module lies beside the program in a build folder, and in LIBDIR/leapgrad once installed; both are found from where the
 * program and, if it is shared, the library lie.
 */
#include "comm/mpi/mpi_launch.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/parse.h"
#include "leapgrad/comm.h"

#define VARIABLE "LEAPGRAD_COMM"

static bool is_several(const char *variable)
{
    const char *text = getenv(variable);
    int64_t num = 0;
    return text != NULL && lgi_parse_i64(&num, variable, text, 0, INT_MAX) == LG_OK && num > 1;
}

bool lg_comm_is_launched(void)
{
    return is_several("OMPI_COMM_WORLD_SIZE") || is_several("PMI_SIZE") ||
           is_several("SLURM_STEP_NUM_TASKS");
}

/* The name in the module's file name. */
static const char *find_flavor(void)
{
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL) {
        return "openmpi";
    }
    if (getenv("PMI_SIZE") != NULL || getenv("PMI_RANK") != NULL) {
        return "mpich";
    }
    return "openmpi"; /* PMIx */
}

static lg_status use_library(const lgi_mpi_module **out, const char *path)
{
    /* Global: the plug-ins of Open MPI look for its symbols. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        const char *reason = dlerror();
        LG_FAIL(LG_NOT_SUPPORTED, "%s cannot be loaded: %s", path, reason != NULL ? reason : "?");
    }
    lgi_mpi_module_function get_module = NULL;
    void *symbol = dlsym(library, LGI_MPI_MODULE_SYMBOL);
    memcpy(&get_module, &symbol, sizeof symbol);
    if (get_module == NULL) {
        LG_FAIL(LG_NOT_SUPPORTED, "%s is no module of leapgrad for an MPI", path);
    }
    const lgi_mpi_module *module = get_module();
    if (module->version != LGI_MPI_MODULE_VERSION) {
        LG_FAIL(LG_NOT_SUPPORTED, "%s is of another leapgrad: version %d, not %d", path,
                module->version, LGI_MPI_MODULE_VERSION);
    }
    *out = module;
    return LG_OK;
}

/* Cuts the file's name off. */
static void keep_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
}

/* The folders of the program and of the library this function is in. */
static void find_folders(char folders[2][PATH_MAX])
{
    folders[0][0] = folders[1][0] = '\0';
    const ssize_t length = readlink("/proc/self/exe", folders[0], PATH_MAX - 1);
    folders[0][length > 0 ? length : 0] = '\0';
    keep_folder(folders[0]);
    Dl_info info;
    lg_status (*const here)(const lgi_mpi_module **) = lgi_mpi_load_module;
    void *address = NULL;
    memcpy(&address, &here, sizeof address);
    if (dladdr(address, &info) != 0 && info.dli_fname != NULL &&
        realpath(info.dli_fname, folders[1]) != NULL) {
        keep_folder(folders[1]);
    } else {
        folders[1][0] = '\0';
    }
}

static lg_status load_module(const lgi_mpi_module **out)
{
    const char *wanted = getenv(VARIABLE);
    *out = NULL;
    if (wanted != NULL && strchr(wanted, '/') != NULL) {
        return use_library(out, wanted);
    }
    const char *flavor = wanted != NULL && wanted[0] != '\0' ? wanted : find_flavor();
    char folders[2][PATH_MAX];
    find_folders(folders);
    /* Seen from the program or the library: build folder, its subfolders, installed library, installed program. */
    static const char *const places[] = {"", "/..", "/leapgrad", "/../" LG_LIBDIR "/leapgrad"};
    for (int f = 0; f < 2; f++) {
        for (size_t p = 0; p < sizeof places / sizeof places[0] && folders[f][0] != '\0'; p++) {
            char path[PATH_MAX];
            const int length =
                snprintf(path, sizeof path, "%s%s/leapgrad-%s.so", folders[f], places[p], flavor);
            if (length > 0 && length < (int)sizeof path && access(path, R_OK) == 0) {
                return use_library(out, path);
            }
        }
    }
    LG_FAIL(LG_NOT_SUPPORTED,
            "no module leapgrad-%s.so beside %s or in its %s/leapgrad: this leapgrad was built "
            "without that MPI; " VARIABLE " names one that lies elsewhere",
            flavor, folders[0], LG_LIBDIR);
}

lg_status lgi_mpi_load_module(const lgi_mpi_module **out)
{
    static _Atomic bool was_loaded;
    LG_TRY(load_module(out));
    if (atomic_exchange(&was_loaded, true)) {
        LG_FAIL(LG_NOT_SUPPORTED, "MPI was started before: it can be started once in a process");
    }
    return LG_OK;
}
