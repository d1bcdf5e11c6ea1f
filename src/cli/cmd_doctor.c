/* leapgrad doctor: what this machine has, what is missing, and how to get it. */
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "leapgrad/trainer.h"

/* --- processor and memory ------------------------------------------------------------------------------------------ */

/* The value of the first line "key : value" of a file, cut to `text_bytes`; "" if there is none. */
static void read_line_of(const char *path, const char *key, char *text, size_t text_bytes)
{
    char line[8192];
    FILE *const stream = fopen(path, "r");
    text[0] = '\0';
    while (stream != NULL && text[0] == '\0' && fgets(line, sizeof line, stream) != NULL) {
        const char *const colon = strchr(line, ':');
        if (colon != NULL && strncmp(line, key, strlen(key)) == 0) {
            (void)snprintf(text, text_bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
            text[strcspn(text, "\n")] = '\0';
        }
    }
    if (stream != NULL) {
        (void)fclose(stream);
    }
}

static bool has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *found = strstr(text, word); found != NULL; found = strstr(found + 1, word)) {
        if ((found == text || found[-1] == ' ') &&
            (found[length] == ' ' || found[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static lg_status print_processor(void)
{
    static const char *const features[] = {"sse4_2",   "avx",         "avx2",        "fma",
                                           "avx512f",  "avx512_vnni", "avx512_bf16", "amx_bf16",
                                           "amx_int8", "asimd",       "sve"};
    char name[256];
    char flags[8192];
    char total[64];
    char available[64];
    char text[CLI_TEXT_BYTES];
    int num_cores = 0;
    const lg_status status = lg_num_cores(&num_cores);
    if (status != LG_OK) {
        return status;
    }
    read_line_of("/proc/cpuinfo", "model name", name, sizeof name);
    read_line_of("/proc/cpuinfo", "flags", flags, sizeof flags);
    if (flags[0] == '\0') {
        read_line_of("/proc/cpuinfo", "Features", flags, sizeof flags);
    }
    read_line_of("/proc/meminfo", "MemTotal", total, sizeof total);
    read_line_of("/proc/meminfo", "MemAvailable", available, sizeof available);
    printf("processor    %s\n", name[0] != '\0' ? name : "unknown");
    printf("cores        %d for this process, %ld in the machine\n", num_cores,
           sysconf(_SC_NPROCESSORS_ONLN));
    printf("features    ");
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++) {
        if (has_word(flags, features[i])) {
            printf(" %s", features[i]);
        }
    }
    printf("\nmemory       %s", cli_format_bytes(text, 1024.0 * strtod(total, NULL)));
    printf(", %s of it available\n", cli_format_bytes(text, 1024.0 * strtod(available, NULL)));
    return LG_OK;
}

/* How many want to run: on cores that others use, steps wait for the slowest thread. */
static void print_load(void)
{
    double load = 0.0;
    const long num_cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(&load, 1) != 1) {
        return;
    }
    printf("load         %.1f over the last minute, of %ld cores%s\n", load, num_cores,
           load > 0.5 * (double)num_cores
               ? ": something else uses them; while it does, exec.threads=1 may be faster"
               : "");
}

/* --- devices ------------------------------------------------------------------------------------------------------- */

/* A linear layer of four numbers: enough to open a device. */
static lg_status make_tiny_model(lg_model **out)
{
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int layers[3] = {0, 0, 0};
    lg_status status = lg_model_create(out);
    attrs.input_shape = LG_SHAPE(4);
    if (status == LG_OK) {
        status = lg_model_add(*out, "x", LG_LAYER_INPUT, &attrs, NULL, 0, &layers[0]);
    }
    attrs.num_outputs = 2;
    if (status == LG_OK) {
        status = lg_model_add(*out, "fc", LG_LAYER_LINEAR, &attrs, &layers[0], 1, &layers[1]);
    }
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_idx = 1;
    if (status == LG_OK) {
        status = lg_model_add(*out, "labels", LG_LAYER_INPUT, &attrs, NULL, 0, &layers[2]);
    }
    if (status == LG_OK) {
        status =
            lg_model_add(*out, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, &layers[1], 2, NULL);
    }
    return status;
}

/* Opens each device and lets it say what it found; one that does not work is reported, not fatal. */
static void print_devices(void)
{
    for (int i = 0; lg_device_name(i) != NULL; i++) {
        lg_model *model = NULL;
        lg_trainer *trainer = NULL;
        lg_trainer_opts opts = lg_trainer_opts_default();
        opts.device = lg_device_name(i);
        lg_status status = make_tiny_model(&model);
        if (status == LG_OK) {
            status = lg_trainer_create(&trainer, model, &opts);
        }
        const char *const help = lg_device_help(i);
        const char *const found =
            status == LG_OK ? lg_trainer_about(trainer).device_text : lg_last_error();
        printf("%s %-13s %s", i == 0 ? "devices     " : "            ", lg_device_name(i), help);
        if (status != LG_OK || strcmp(help, found) != 0) {
            printf(": %s%s", status == LG_OK ? "" : "DOES NOT WORK: ", found);
        }
        printf("\n");
        lg_trainer_destroy(trainer);
        lg_model_destroy(model);
    }
    if (strcmp(lg_device_name(0), "reference") == 0) {
        printf(
            "             no fast device in this build; oneDNN: apt-get install libdnnl-dev, then "
            "build again\n");
    }
}

/* --- libraries ----------------------------------------------------------------------------------------------------- */

static bool can_load(const char *library)
{
    void *const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (handle != NULL) {
        (void)dlclose(handle);
    }
    return handle != NULL;
}

static bool is_in_path(const char *program)
{
    const char *const path = getenv("PATH");
    char *const copy = strdup(path != NULL ? path : "");
    char *rest = NULL;
    bool is_found = false;
    for (const char *folder = copy != NULL ? strtok_r(copy, ":", &rest) : NULL; folder != NULL;
         folder = strtok_r(NULL, ":", &rest)) {
        char *const file = cli_path(folder, program);
        is_found = is_found || (file != NULL && access(file, X_OK) == 0);
        free(file);
    }
    free(copy);
    return is_found;
}

static void print_libraries(void)
{
    const bool has_mpirun = is_in_path("mpirun") || is_in_path("mpiexec");
    const bool has_mpi =
        can_load("libmpi.so.40") || can_load("libmpi.so.12") || can_load("libmpi.so");
    const bool has_driver = can_load("libcuda.so.1");
    const bool has_cudnn = can_load("libcudnn.so.9");
    printf("MPI          %s; several machines need it, one does not\n",
           has_mpi && has_mpirun ? "found, with mpirun"
           : has_mpi             ? "library found, no mpirun (Debian: apt-get install openmpi-bin)"
                     : "not found (Debian: apt-get install libopenmpi-dev openmpi-bin)");
    printf("CUDA         %s%s; this version trains on the CPU and does not need it\n",
           has_driver ? "driver found" : "no driver (NVIDIA's libcuda.so.1)",
           has_driver && !has_cudnn ? ", no cuDNN 9 (libcudnn.so.9)"
           : has_driver             ? ", cuDNN 9 found"
                                    : "");
}

/* --- data ---------------------------------------------------------------------------------------------------------- */

static bool matches(const char *pattern)
{
    glob_t found;
    memset(&found, 0, sizeof found);
    const bool has = glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc > 0;
    globfree(&found);
    return has;
}

static void print_data(void)
{
    const bool has_fashion =
        matches("/usr/share/dataset*/fashion-mnist/train-images-idx3-ubyte.gz");
    const bool has_bible = is_in_path("bible");
    const bool has_text = matches(".cache/kjv.txt");
    printf("data         Fashion-MNIST: %s\n",
           has_fashion ? "installed" : "missing (Debian: apt-get install dataset-fashion-mnist)");
    printf("             King James text: %s\n",
           has_text    ? ".cache/kjv.txt is there"
           : has_bible ? "installed; tools/make_kjv.sh .cache/kjv.txt writes it to a file"
                       : "missing (Debian: apt-get install bible-kjv bible-kjv-text)");
}

/* --- environment --------------------------------------------------------------------------------------------------- */

static const char *effect_of(const char *variable)
{
    if (strstr(variable, "DNNL") != NULL) {
        return "changes what oneDNN does; unset it for full speed";
    }
    if (strcmp(variable, "OMP_WAIT_POLICY") == 0) {
        return "whether waiting threads keep their cores; passive helps where others use them, "
               "else "
               "unset it";
    }
    return "leapgrad places and counts its threads itself; unset it";
}

/* Variables that take the threads of ops out of leapgrad's hands. */
static void print_environment(void)
{
    static const char *const names[] = {"OMP_PROC_BIND",     "OMP_PLACES",      "GOMP_CPU_AFFINITY",
                                        "KMP_AFFINITY",      "OMP_NUM_THREADS", "OMP_THREAD_LIMIT",
                                        "OMP_DYNAMIC",       "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
                                        "DNNL_VERBOSE",      "ONEDNN_VERBOSE",  "DNNL_MAX_CPU_ISA",
                                        "ONEDNN_MAX_CPU_ISA"};
    bool is_first = true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *const value = getenv(names[i]);
        if (value != NULL) {
            printf("%s %s=%s: %s\n", is_first ? "environment " : "            ", names[i], value,
                   effect_of(names[i]));
            is_first = false;
        }
    }
    if (is_first) {
        printf("environment  no variable that slows leapgrad down is set\n");
    }
}

static lg_status doctor(const cli_args *args)
{
    (void)args;
    printf("leapgrad     %s\n", lg_version());
    const lg_status status = print_processor();
    if (status != LG_OK) {
        return status;
    }
    print_load();
    print_devices();
    print_libraries();
    print_data();
    print_environment();
    return LG_OK;
}

const cli_command cli_doctor = {.name = "doctor",
                                .words = "",
                                .min_words = 0,
                                .max_words = 0,
                                .summary = "what this machine has, what is missing, how to get it",
                                .help = NULL,
                                .options = NULL,
                                .run = doctor};
