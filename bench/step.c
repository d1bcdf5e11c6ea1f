/*
 * Times training steps of a model on made-up data, through the public interface, and prints one JSON line:
 * median and best step, what was predicted, what the executor itself took, memory, hash.
 *
 * Usage: step MODEL [key=value ...]
 *   MODEL: resnet20, densenet, mobilenet, vgg, gpt, bert
 *   keys: batch, micro_batches, steps, warmup, device, strategy, lanes, threads, costs (estimate, measure), rule (sgd, adamw),
 *         statistics (0, 1), scaling (none, adascale, lena), skip (step, layer), those of
 *         bench_model_set(): layers, width, size, ...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_model.h"
#include "leapgrad/trainer.h"

struct settings {
    bench_model model;
    lg_trainer_opts trainer;
    int num_steps;
    int num_warmup;
};

static void stop_if(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "bench/step: %s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

static struct settings default_settings(const char *model)
{
    struct settings s;
    memset(&s, 0, sizeof s);
    s.model = bench_model_default(model);
    s.trainer = lg_trainer_opts_default();
    s.trainer.batch_samples = 128;
    s.trainer.costs = LG_TRAINER_COSTS_MEASURE;
    s.trainer.optim.momentum = 0.9;
    s.trainer.optim.lr = 0.01;
    s.num_steps = 20;
    s.num_warmup = 3;
    if (bench_model_is_text(&s.model)) {
        s.trainer.batch_samples = 8;
        s.trainer.optim.rule = LG_OPTIM_ADAMW;
        s.trainer.optim.lr = 1e-4;
    }
    return s;
}

static void set_option(struct settings *s, const char *key, const char *value)
{
    const long number = strtol(value, NULL, 10);
    if (strcmp(key, "batch") == 0) {
        s->trainer.batch_samples = number;
    } else if (strcmp(key, "micro_batches") == 0) {
        s->trainer.num_micro_batches = (int)number;
    } else if (strcmp(key, "steps") == 0) {
        s->num_steps = (int)number;
    } else if (strcmp(key, "warmup") == 0) {
        s->num_warmup = (int)number;
    } else if (strcmp(key, "device") == 0) {
        s->trainer.device = value;
    } else if (strcmp(key, "strategy") == 0) {
        s->trainer.strategy = value;
    } else if (strcmp(key, "lanes") == 0) {
        s->trainer.num_lanes = (int)number;
    } else if (strcmp(key, "threads") == 0) {
        s->trainer.threads_per_lane = (int)number;
    } else if (strcmp(key, "costs") == 0) {
        s->trainer.costs =
            strcmp(value, "measure") == 0 ? LG_TRAINER_COSTS_MEASURE : LG_TRAINER_COSTS_ESTIMATE;
    } else if (strcmp(key, "rule") == 0) {
        s->trainer.optim.rule = strcmp(value, "adamw") == 0 ? LG_OPTIM_ADAMW : LG_OPTIM_SGD;
    } else if (strcmp(key, "statistics") == 0) {
        s->trainer.optim.has_statistics = number != 0;
    } else if (strcmp(key, "scaling") == 0) {
        s->trainer.optim.scaling = strcmp(value, "lena") == 0       ? LG_LR_SCALING_LENA
                                   : strcmp(value, "adascale") == 0 ? LG_LR_SCALING_ADASCALE
                                                                    : LG_LR_SCALING_NONE;
    } else if (strcmp(key, "skip") == 0) {
        s->trainer.optim.skip = strcmp(value, "layer") == 0 ? LG_SKIP_LAYER : LG_SKIP_STEP;
    } else if (!bench_model_set(&s->model, key, number)) {
        (void)fprintf(stderr, "bench/step: unknown key '%s'\n", key);
        exit(2);
    }
}

/* Time in which the busiest lane ran no op, of a recorded step. */
static double idle_frac(const lg_timeline *timeline, int num_lanes)
{
    double busiest_ns = 0.0;
    for (int lane = 0; lane < num_lanes; lane++) {
        double busy_ns = 0.0;
        for (int i = 0; i < timeline->num_spans; i++) {
            if (timeline->spans[i].lane == lane) {
                busy_ns += timeline->spans[i].end_ns - timeline->spans[i].start_ns;
            }
        }
        busiest_ns = busy_ns > busiest_ns ? busy_ns : busiest_ns;
    }
    return 1.0 - busiest_ns / timeline->step_ns;
}

static void run_steps(const struct settings *s, lg_trainer *trainer, const void *const *tensors)
{
    double *step_ms = malloc((size_t)s->num_steps * sizeof *step_ms);
    double *idle = malloc((size_t)s->num_steps * sizeof *idle);
    char hash[LG_WEIGHTS_HASH_CHARS];
    lg_step_result result = {0};
    if (step_ms == NULL || idle == NULL) {
        exit(3);
    }
    for (int i = -s->num_warmup; i < s->num_steps; i++) {
        lg_timeline timeline;
        lg_trainer_record(trainer, i >= 0);
        stop_if(lg_trainer_step(trainer, s->trainer.batch_samples, tensors, &result));
        if (i >= 0) {
            step_ms[i] = (double)result.step_ns / 1e6;
            stop_if(lg_trainer_timeline(trainer, &timeline));
            idle[i] = idle_frac(&timeline, lg_trainer_plan(trainer)->num_lanes);
            lg_timeline_deinit(&timeline);
        }
    }
    const double median_ms = bench_median(step_ms, s->num_steps); /* sorts */
    const double median_idle = bench_median(idle, s->num_steps);
    stop_if(lg_trainer_weights_hash(trainer, hash));
    const lg_trainer_info info = lg_trainer_about(trainer);
    (void)printf(
        "{\"model\": \"%s\", \"batch\": %lld, \"strategy\": \"%s\", \"lanes\": %d, \"threads\": "
        "%d, "
        "\"step_ms\": %.4f, \"best_ms\": %.4f, \"predicted_ms\": %.4f, \"idle_frac\": %.4f, "
        "\"planning_ms\": %.2f, \"planned_bytes\": %lld, \"measured_bytes\": %lld, \"reorders\": "
        "%d, "
        "\"loss\": %.6f, \"hash\": \"%s\"}\n",
        s->model.name, (long long)s->trainer.batch_samples, info.strategy, info.num_lanes,
        info.threads_per_lane, median_ms, step_ms[0], info.predicted_step_ns / 1e6, median_idle,
        info.planning_ns / 1e6, (long long)info.planned_peak_bytes,
        (long long)info.measured_peak_bytes, info.num_reorders, result.loss, hash);
    free(step_ms);
    free(idle);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: step MODEL [key=value ...]\n");
        return 2;
    }
    struct settings s = default_settings(argv[1]);
    for (int i = 2; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (equals == NULL) {
            (void)fprintf(stderr, "bench/step: '%s' is not key=value\n", argv[i]);
            return 2;
        }
        *equals = '\0';
        set_option(&s, argv[i], equals + 1);
    }
    lg_model *model = NULL;
    void *tensors[BENCH_MAX_INPUTS];
    stop_if(bench_model_make(&model, &s.model));
    stop_if(bench_batch_make(tensors, model, s.trainer.batch_samples));
    s.trainer.num_steps = s.num_steps + s.num_warmup;
    lg_trainer *trainer = NULL;
    stop_if(lg_trainer_create(&trainer, model, &s.trainer));
    run_steps(&s, trainer, (const void *const *)tensors);
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    bench_batch_free(tensors);
    return 0;
}
