/*
 * Text from a model of bytes. Token number i is drawn with number i of a counter-based stream, so a text is a function of
 * weights and options alone. The window is always as long as the model's context; attention is causal, so what stands
 * behind the text in it does not matter.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/random.h"
#include "train/run_job.h"

#define NUM_BYTE_VALUES 256

lg_generate_opts lg_generate_opts_of(const lg_recipe *recipe)
{
    const lg_generate_opts opts = {.prompt = recipe->generate.prompt,
                                   .num_tokens = recipe->generate.tokens,
                                   .temperature = recipe->generate.temperature,
                                   .seed = (uint64_t)recipe->generate.seed};
    return opts;
}

static int most_likely(const float *logits, int num)
{
    int best = 0;
    for (int i = 1; i < num; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* A byte with probability softmax(logits / temperature), by the uniform number `u` in [0, 1). */
static int draw(const float *logits, int num, double temperature, double u)
{
    double weights[NUM_BYTE_VALUES];
    double sum = 0.0;
    const int best = most_likely(logits, num);
    for (int i = 0; i < num; i++) {
        weights[i] = exp(((double)logits[i] - (double)logits[best]) / temperature);
        sum += weights[i];
    }
    double left = u * sum;
    for (int i = 0; i < num; i++) {
        left -= weights[i];
        if (left < 0.0) {
            return i;
        }
    }
    return best;
}

/* The last bytes of a text, as the model's input. */
struct window {
    int32_t *ids; /* [context] */
    int64_t context;
    int64_t num;
};

static void window_push(struct window *window, unsigned char byte)
{
    if (window->num == window->context) {
        memmove(window->ids, window->ids + 1,
                (size_t)(window->context - 1) * sizeof window->ids[0]);
        window->num--;
    }
    window->ids[window->num++] = byte;
}

static lg_status next_byte(lg_job *job, const lg_generate_opts *opts, struct window *window,
                           float *logits, int64_t position, unsigned char *out)
{
    const void *tensors[LG_MAX_BATCH_TENSORS] = {window->ids, NULL, NULL};
    const int64_t vocab_size = lg_trainer_num_logits(job->trainer) / window->context;
    const int num = (int)(vocab_size < NUM_BYTE_VALUES ? vocab_size : NUM_BYTE_VALUES);
    LG_TRY(lg_trainer_predict(job->trainer, 1, tensors, logits));
    const float *const last = logits + (window->num - 1) * vocab_size;
    for (int i = 0; i < num; i++) {
        if (!isfinite(last[i])) {
            LG_FAIL(LG_INVALID_ARG, "the model's logit of byte %d is %g", i, (double)last[i]);
        }
    }
    if (opts->temperature > 0.0) {
        const lgi_random random =
            lgi_random_stream(opts->seed, LGI_RANDOM_SAMPLE, (uint64_t)position, 0, 0);
        *out = (unsigned char)draw(last, num, opts->temperature,
                                   (double)lgi_random_uniform(&random, 0));
    } else {
        *out = (unsigned char)most_likely(last, num);
    }
    return LG_OK;
}

static lg_status check_generate(const lg_job *job, const lg_generate_opts *opts)
{
    if (job->recipe->model.kind != LG_MODEL_GPT) {
        LG_FAIL(LG_INVALID_ARG, "model.kind %s generates no text, expected gpt",
                lg_model_kind_name(job->recipe->model.kind));
    }
    if (opts->num_tokens < 0) {
        LG_FAIL(LG_INVALID_ARG, "generate.tokens: %" PRId64 ", expected 0 or more",
                opts->num_tokens);
    }
    if (!(opts->temperature >= 0.0) || isinf(opts->temperature)) {
        LG_FAIL(LG_INVALID_ARG, "generate.temperature: %g, expected 0 or more", opts->temperature);
    }
    return LG_OK;
}

lg_status lg_job_generate(lg_job *job, const lg_generate_opts *opts, lg_text_sink_fn sink,
                          void *user)
{
    lg_status status = LG_OK;
    struct window window = {NULL, job->recipe->model.context, 0};
    float *logits = NULL;
    LG_TRY(check_generate(job, opts));
    LG_TRY_GOTO(lgi_calloc(&window.ids, (size_t)window.context, sizeof window.ids[0]));
    LG_TRY_GOTO(lgi_calloc(&logits, (size_t)lg_trainer_num_logits(job->trainer), sizeof *logits));
    const char *const prompt = opts->prompt[0] != '\0' ? opts->prompt : "\n";
    for (const char *c = prompt; *c != '\0'; c++) {
        window_push(&window, (unsigned char)*c);
    }
    for (int64_t i = 0; i < opts->num_tokens; i++) {
        unsigned char byte = 0;
        LG_TRY_GOTO(next_byte(job, opts, &window, logits, i, &byte));
        if (!sink(user, byte)) {
            break;
        }
        window_push(&window, byte);
    }
out:
    lgi_free(window.ids);
    lgi_free(logits);
    return status;
}
