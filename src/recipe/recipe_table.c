/*
 * The table: every key of a recipe with its unit, default, range and help. This is the only list of keys; lg_recipe
 * declares the members, and a row takes name, offset and type from its member.
 */
#include "recipe/recipe_table.h"

#include <string.h>

#include "base/check.h"

/* Largest integer that a double holds exactly with all below it. */
#define MAX_INT 0x1p53
#define MAX_BYTES 0x1p50

#define CHOICE_TEXT(name, text) text,
static const char *const data_kinds[] = {LG_DATA_KIND_LIST(CHOICE_TEXT) NULL};
static const char *const model_kinds[] = {LG_MODEL_KIND_LIST(CHOICE_TEXT) NULL};
static const char *const optim_rules[] = {LG_OPTIM_RULE_LIST(CHOICE_TEXT) NULL};
static const char *const schedules[] = {LG_SCHEDULE_LIST(CHOICE_TEXT) NULL};
static const char *const lr_scalings[] = {LG_LR_SCALING_LIST(CHOICE_TEXT) NULL};
static const char *const warmups[] = {LG_WARMUP_LIST(CHOICE_TEXT) NULL};
static const char *const warmup_budgets[] = {LG_WARMUP_BUDGET_LIST(CHOICE_TEXT) NULL};
static const char *const groupings[] = {LG_GROUPING_LIST(CHOICE_TEXT) NULL};
static const char *const rate_variants[] = {LG_RATE_VARIANT_LIST(CHOICE_TEXT) NULL};
static const char *const schedule_bys[] = {LG_SCHEDULE_BY_LIST(CHOICE_TEXT) NULL};
static const char *const skips[] = {LG_SKIP_LIST(CHOICE_TEXT) NULL};
static const char *const placements[] = {LG_RANK_PLACEMENT_LIST(CHOICE_TEXT) NULL};
static const char *const cost_sources[] = {LG_COST_SOURCE_LIST(CHOICE_TEXT) NULL};
#undef CHOICE_TEXT
static const char *const strategies[] = {"in-order",
                                         "out-of-order",
                                         "auto",
                                         "gpipe",
                                         "1f1b",
                                         "interleaved",
                                         "breadth-first",
                                         "fast-forward",
                                         "modulo",
                                         "zb-h1",
                                         "zb-h2",
                                         "zb-v",
                                         "dualpipe-v",
                                         "barrier",
                                         "wfbp",
                                         "priority",
                                         "reverse-first-k",
                                         NULL};
static const char *const devices[] = {"auto", "cpu", "reference", "reference-f64", NULL};

/* The member's type says how it is parsed; enums are unsigned. BYTES is the only one that C cannot tell. */
#define MEMBER_TYPE(section, name) \
    _Generic(((const lg_recipe *)0)->section.name, \
        int64_t: LGI_FIELD_INT, \
        double: LGI_FIELD_FLOAT, \
        bool: LGI_FIELD_BOOL, \
        char *: LGI_FIELD_TEXT, \
        unsigned: LGI_FIELD_CHOICE, \
        lg_recipe_numbers: LGI_FIELD_NUMBERS)

#define ROW(section, name, field_type, unit_text, default_value, min_value, max_value, \
            choice_list, help_text) \
    { \
        .key = #section "." #name, .type = field_type, \
        .offset = offsetof(lg_recipe, section.name), .unit = unit_text, \
        .default_text = default_value, .min = min_value, .max = max_value, .choices = choice_list, \
        .help = help_text \
    }
#define NUMBER(section, name, unit, value, min, max, help) \
    ROW(section, name, MEMBER_TYPE(section, name), unit, value, min, max, NULL, help)
#define BYTES(section, name, value, min, max, help) \
    ROW(section, name, LGI_FIELD_BYTES, "bytes", value, min, max, NULL, help)
#define SWITCH(section, name, value, help) \
    ROW(section, name, MEMBER_TYPE(section, name), "", value, 0, 1, NULL, help)
#define TEXT(section, name, value, help) \
    ROW(section, name, MEMBER_TYPE(section, name), "", value, 0, 0, NULL, help)
#define CHOICE(section, name, value, choices, help) \
    ROW(section, name, MEMBER_TYPE(section, name), "", value, 0, 0, choices, help)
#define CHOICES(section, field_name, value, choice_list, help_text) \
    { \
        .key = #section "." #field_name, .type = LGI_FIELD_TEXT, \
        .offset = offsetof(lg_recipe, section.field_name), .unit = "", .default_text = value, \
        .choices = choice_list, .allows_two = true, .help = help_text \
    }

/* clang-format off */
static const lgi_field fields[] = {
    TEXT(run, dir, "", "Directory that the run writes to; made if it is missing. Empty: runs/ and the run's name."),
    TEXT(run, name, "run", "Name of the run in reports."),

    CHOICE(data, kind, "idx", data_kinds, "idx: labelled images in (gzipped) IDX files. text: a file as a stream of bytes, the next one to be predicted. masked-text: the same with some bytes hidden, to be restored."),
    TEXT(data, train_images, "", "idx: training images."),
    TEXT(data, train_labels, "", "idx: training labels."),
    TEXT(data, test_images, "", "idx: test images."),
    TEXT(data, test_labels, "", "idx: test labels."),
    NUMBER(data, num_classes, "classes", "10", 1, 1000000, "idx: labels are 0 up to this number less one."),
    NUMBER(data, mean, "", "0", -1000, 1000, "idx: subtracted from pixels scaled to 0..1; one number, or one per channel."),
    NUMBER(data, std, "", "1", 1e-6, 1000, "idx: pixels are divided by it afterwards; one number, or one per channel."),
    NUMBER(data, pad_crop, "pixels", "0", 0, 64, "idx: training images are padded with this many black pixels on all sides and cropped back at a random place. 0: off."),
    SWITCH(data, flip, "false", "idx: training images are mirrored left to right, each with probability one half."),
    TEXT(data, text, "", "text, masked-text: the file."),
    NUMBER(data, held_out_frac, "", "0.05", 0, 0.9, "text, masked-text: the last part of the file, kept for the final test."),
    NUMBER(data, validation_frac, "", "0", 0, 0.9, "Part of the training data that is kept for evaluation during training; the test data is then touched only at the end. 0: evaluate on the test data."),
    NUMBER(data, mask_frac, "", "0.15", 0.001, 0.9, "masked-text: part of the bytes that is to be restored; of these 80 % are hidden, 10 % replaced, 10 % kept."),
    NUMBER(data, prefetch, "batches", "2", 0, 64, "Batches prepared ahead on a thread of their own. 0: prepared when needed."),
    SWITCH(data, drop_last, "false", "Leave out the last batch of an epoch if it is not full."),

    CHOICE(model, kind, "resnet", model_kinds, "The model. idx data: resnet, densenet, mobilenetv3-small, vgg. text: gpt. masked-text: bert."),
    NUMBER(model, depth, "layers", "0", 0, 10000, "resnet: 6n+2. densenet: 6n+4. vgg: 11, 13, 16 or 19. 0: the kind's usual one (20, 100, 11)."),
    NUMBER(model, growth, "channels", "12", 1, 1024, "densenet: channels that each layer adds."),
    NUMBER(model, width, "", "0", 0, 65536, "resnet, vgg: channels of the first stage. gpt, bert: features of a token. 0: the kind's usual one (16, 64, 384, 384)."),
    NUMBER(model, width_mult, "", "1", 0.05, 8, "mobilenetv3-small: factor on all channel counts."),
    NUMBER(model, hidden, "features", "0", 0, 65536, "vgg: width of the two hidden linear layers. gpt, bert: width inside the feed-forward part. 0: the kind's usual one (512; four times model.width)."),
    SWITCH(model, batch_norm, "true", "vgg: batch norm after each convolution."),
    NUMBER(model, layers, "layers", "6", 1, 1000, "gpt, bert: transformer blocks."),
    NUMBER(model, heads, "", "6", 1, 1024, "gpt, bert: attention heads; must divide model.width."),
    NUMBER(model, context, "tokens", "256", 1, 1048576, "gpt, bert: length of the windows cut from the text."),
    NUMBER(model, vocab, "tokens", "0", 0, 16777216, "gpt, bert: size of the vocabulary. 0: what the data needs."),
    SWITCH(model, tied, "true", "gpt, bert: the last layer shares its weight with the token embedding."),
    NUMBER(model, dropout, "", "0", 0, 0.95, "Probability that dropout sets a number to zero; where the model has dropout layers. 0: no such layers."),

    NUMBER(train, steps, "steps", "0", 0, 1e12, "Steps to train. 0: by train.epochs."),
    NUMBER(train, epochs, "epochs", "0", 0, 1e9, "Passes over the training data. Exactly one of train.steps and train.epochs is to be set; overriding one takes the other out."),
    NUMBER(train, batch, "samples", "128", 1, 1048576, "Samples (images, windows of text) of a step."),
    NUMBER(train, micro_batches, "", "1", 1, 65536, "Parts that a step's batch passes through the network in; the gradient is that of the whole batch."),
    NUMBER(train, seed, "", "1", 0, MAX_INT, "Initial weights, shuffling, augmentation and dropout follow from it alone."),
    NUMBER(train, label_smoothing, "", "0", 0, 0.99, "Part of each target's weight that is spread evenly over all classes."),
    NUMBER(train, eval_every, "steps", "0", 0, 1e12, "Evaluate after this many steps. 0: after each epoch (text: only at the end)."),
    NUMBER(train, checkpoint_every, "steps", "0", 0, 1e12, "Write a checkpoint after this many steps. 0: only at the end."),
    NUMBER(train, log_every, "steps", "10", 1, 1e12, "Write a line of metrics after this many steps."),

    CHOICE(optim, rule, "sgd", optim_rules, "Update rule."),
    NUMBER(optim, lr, "", "0.1", 0, 1e6, "Highest learning rate."),
    NUMBER(optim, momentum, "", "0.9", 0, 0.999999, "sgd, lars, larc: momentum."),
    SWITCH(optim, nesterov, "false", "sgd, lars, larc: Nesterov's form of momentum."),
    NUMBER(optim, weight_decay, "", "0", 0, 1e6, "sgd, lars, larc: added to the gradient. adamw, lamb: decoupled, times the learning rate."),
    SWITCH(optim, decay_norm_and_bias, "false", "Weight decay also for biases and the parameters of norms."),
    NUMBER(optim, beta1, "", "0.9", 0, 0.999999, "adamw, lamb: decay of the first moment."),
    NUMBER(optim, beta2, "", "0.999", 0, 0.9999999, "adamw, lamb: decay of the second moment."),
    NUMBER(optim, epsilon, "", "1e-8", 1e-16, 1, "adamw, lamb: added to the root of the second moment."),
    NUMBER(optim, clip_norm, "", "0", 0, 1e6, "The gradient of the whole model is scaled down to at most this norm. 0: off."),
    CHOICE(optim, schedule, "constant", schedules, "Learning rate after the warm-up."),
    NUMBER(optim, warmup_steps, "steps", "0", 0, 1e12, "warmup=linear: steps (or iterations, see schedule_by) in which the learning rate rises to optim.lr."),
    NUMBER(optim, min_lr_frac, "", "0", 0, 1, "linear, cosine, exponential: learning rate at the end, as a part of optim.lr."),
    NUMBER(optim, milestones, "", "0.5,0.75", 0, 1, "step: parts of the training after which the learning rate falls; rising."),
    NUMBER(optim, step_factor, "", "0.1", 0, 1, "step: factor on the learning rate at each milestone."),
    CHOICE(optim, scaling, "none", lr_scalings, "How the learning rate follows the scale S = train.batch / base_batch. linear: times S. sqrt: times its root. adascale, lena: times a gain in [1, S] that the variance of the micro-batches' gradients gives."),
    NUMBER(optim, base_batch, "samples", "0", 0, 1e9, "Batch that optim.lr is meant for. 0: that of a micro-batch."),
    CHOICE(optim, warmup, "linear", warmups, "linear: over warmup_steps. layerwise: each group's own, which ends by itself as the group progresses (LENA)."),
    NUMBER(optim, warmup_frac, "", "0.05", 0, 1, "warmup=layerwise: its length, as a part of warmup_budget."),
    CHOICE(optim, warmup_budget, "auto", warmup_budgets, "auto: run for variant=leapgrad, else iterations. iterations: all iterations that a single worker would need, as published. run: what the group can progress in this run at its present gain, so that the warm-up is that part of the run at every S."),
    CHOICE(optim, grouping, "auto", groupings, "What has a gain and a warm-up of its own. block: a layer with the norm behind it. auto: network for adascale, block for variant=leapgrad, else tensor."),
    CHOICE(optim, variant, "paper", rate_variants, "Gains and layer-wise warm-up as published, as in the program that LENA's authors released, or with what made them better here (docs/lena.md)."),
    NUMBER(optim, gain_epsilon, "", "1e-6", 0, 1e6, "lena: added above and below in the ratio that is the gain. variant=leapgrad: as a part of what stands above."),
    NUMBER(optim, gain_power, "", "0", 0, 4, "adascale, lena: the learning rate is multiplied by the gain to this power, at most S. 0: 1.25 for lena with variant=leapgrad, else 1."),
    CHOICE(optim, schedule_by, "step", schedule_bys, "What the schedule counts. iteration: scale-invariant iterations, the sum of the group's gains so far (AdaScale)."),
    NUMBER(optim, total_iterations, "iterations", "0", 0, 1e15, "schedule_by=iteration: where the schedule ends, and training with it. 0: at train.steps times S, and training is not cut short."),
    CHOICE(optim, skip, "step", skips, "With statistics, what a gradient that is not finite skips: the whole step's update, or that of its layer, which then waits for no other layer."),
    SWITCH(optim, statistics, "false", "Observe gains and noise scales even where no learning rate depends on them."),
    NUMBER(optim, trust_coefficient, "", "0.001", 1e-30, 1e6, "lars, larc: factor on the ratio of norms."),

    CHOICES(plan, strategy, "out-of-order", strategies, "What makes the order in which ops run. in-order: the textbook backward pass. out-of-order: weight gradients deferred or on a lane of their own, by costs and memory. auto: the fastest of all by simulation, improved by search (planning takes seconds). The others are for pipelines (gpipe to dualpipe-v) and replicas (barrier to reverse-first-k), and compose: 1f1b+priority."),
    BYTES(plan, memory_bytes, "0", 0, MAX_BYTES, "The plan's arena may take at most this. 0: what the machine has."),
    SWITCH(plan, allow_lag, "true", "The strategy may move weight gradients and updates into the next step's forward pass (with the same result)."),
    CHOICE(plan, costs, "measure", cost_sources, "Where the times of ops come from: estimate (from flops and bytes), measure (on the device, before training), file."),
    TEXT(plan, costs_file, "", "plan.costs=file: the file, as written by the profile command."),
    TEXT(plan, file, "", "Run the plan in this file. Empty: make one."),
    TEXT(plan, machine, "", "Machine file that a plan for several ranks is made for; training takes its links. Empty: this machine; where several ranks train, their links are measured."),
    NUMBER(plan, reverse_first_k, "layers", "-1", -1, 1000000, "reverse-first-k (no other strategy): the first so many layers with weights have their weight gradients last. -1: searched."),
    SWITCH(plan, push, "false", "fast-forward: cap the micro-batches in flight at the pipeline's ranks. Not for modulo, where it would be a deadlock, nor for others."),

    NUMBER(ranks, pipeline, "ranks", "1", 1, 65536, "Ranks that the layers of a model are spread over."),
    NUMBER(ranks, replicas, "", "1", 1, 65536, "Copies of the pipeline, each with its part of the batch."),
    NUMBER(ranks, stages, "stages", "0", 0, 65536, "Stages of a pipeline rank. 0: one; with ranks.placement=v two; with modulo what the groups come to."),
    CHOICE(ranks, placement, "auto", placements, "How blocks of layers go to stages. contiguous: equal numbers of blocks. balanced: equal times. modulo: groups of ranks.group blocks, dealt to the ranks in turn. v: two stages per rank, there and back. auto: what the strategy asks for, else contiguous."),
    NUMBER(ranks, group, "blocks", "1", 1, 1000000, "modulo: blocks of a stage."),
    BYTES(ranks, chunk_bytes, "0", 0, MAX_BYTES, "Gradients travel between replicas in parts of at most this. 0: a layer's in one."),
    BYTES(ranks, share_bytes, "-1", -1, MAX_BYTES, "Gradients of neighbouring layers travel between replicas together until they have so many bytes. 0: each layer's by itself. -1: by latency and rate of the links."),
    NUMBER(ranks, timeout_s, "s", "10", 1, 86400, "A rank that gives no sign of life, or keeps all others waiting, for so long is given up: the others stop and say which."),

    CHOICE(exec, device, "auto", devices, "Backend that runs the ops. auto: the preferred one of this build."),
    NUMBER(exec, lanes, "lanes", "0", 0, 1024, "Compute lanes. 0: the strategy chooses."),
    NUMBER(exec, threads, "threads", "0", 0, 1024, "Threads of each lane. 0: the strategy chooses."),

    NUMBER(generate, tokens, "tokens", "400", 0, 1e9, "gpt: tokens to generate at the end of training and by the generate command."),
    NUMBER(generate, temperature, "", "0.8", 0, 100, "gpt: logits are divided by it before sampling. 0: always the most likely token."),
    TEXT(generate, prompt, "", "gpt: what the generated text starts from."),
    NUMBER(generate, seed, "", "1", 0, MAX_INT, "gpt: sampling follows from it alone."),
};

static const struct {
    const char *name;
    const char *help;
} section_heads[] = {
    {"run", "Where results go."},
    {"data", "What is learned from."},
    {"model", "The network."},
    {"train", "Length, batch, and what happens when."},
    {"optim", "How weights change."},
    {"plan", "The order of the ops and their memory."},
    {"ranks", "How a step is spread over the ranks of a machine."},
    {"exec", "What runs the plan."},
    {"generate", "Text from a trained GPT."},
};
/* clang-format on */

#define NUM_FIELDS ((int)(sizeof fields / sizeof fields[0]))
#define NUM_SECTIONS ((int)(sizeof section_heads / sizeof section_heads[0]))
_Static_assert(NUM_FIELDS <= LGI_MAX_FIELDS, "raise LGI_MAX_FIELDS");
_Static_assert(NUM_SECTIONS <= LGI_MAX_SECTIONS, "raise LGI_MAX_SECTIONS");

const lgi_field *lgi_recipe_fields(int *num_fields)
{
    *num_fields = NUM_FIELDS;
    return fields;
}

static size_t section_length(const lgi_field *field)
{
    return strcspn(field->key, ".");
}

const char *lgi_field_name(const lgi_field *field)
{
    return field->key + section_length(field) + 1;
}

lgi_section lgi_recipe_section(int section_idx)
{
    lgi_section section = {section_heads[section_idx].name, section_heads[section_idx].help, 0, 0};
    const size_t length = strlen(section.name);
    for (int i = 0; i < NUM_FIELDS; i++) {
        if (section_length(&fields[i]) != length ||
            strncmp(fields[i].key, section.name, length) != 0) {
            continue;
        }
        if (section.num_fields == 0) {
            section.first_field = i;
        }
        section.num_fields++;
    }
    return section;
}

int lgi_recipe_num_sections(void)
{
    return NUM_SECTIONS;
}

const lgi_field *lgi_recipe_find(const char *key)
{
    for (int i = 0; i < NUM_FIELDS; i++) {
        if (strcmp(fields[i].key, key) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

lg_status lgi_recipe_fail_unknown(const char *key)
{
    char names[640] = "";
    size_t used = 0;
    const size_t length = strcspn(key, ".");
    for (int s = 0; s < NUM_SECTIONS; s++) {
        const lgi_section section = lgi_recipe_section(s);
        if (strlen(section.name) != length || strncmp(section.name, key, length) != 0) {
            continue;
        }
        for (int f = 0; f < section.num_fields && used < sizeof names; f++) {
            used += (size_t)snprintf(names + used, sizeof names - used, " %s",
                                     lgi_field_name(&fields[section.first_field + f]));
        }
        LG_FAIL(LG_INVALID_ARG, "unknown key '%.128s'; %s has:%s", key, section.name, names);
    }
    for (int s = 0; s < NUM_SECTIONS && used < sizeof names; s++) {
        used += (size_t)snprintf(names + used, sizeof names - used, " %s", section_heads[s].name);
    }
    LG_FAIL(LG_INVALID_ARG, "unknown key '%.128s'; sections are:%s", key, names);
}

const char *lg_data_kind_name(lg_data_kind kind)
{
    return kind < LG_NUM_DATA_KINDS ? data_kinds[kind] : "unknown";
}

const char *lg_model_kind_name(lg_model_kind kind)
{
    return kind < LG_NUM_MODEL_KINDS ? model_kinds[kind] : "unknown";
}
