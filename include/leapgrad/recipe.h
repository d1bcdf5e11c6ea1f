/**
 * Recipes: everything that a training run is told, with bounds and defaults.
 *
 * A recipe is a YAML file of two levels, sections and keys; every key can be overridden as `section.key=value`. One
 * table (src/recipe/recipe_table.c) drives the parser, the bounds, the help, the reference page docs/recipe.md and the
 * effective recipe that is stored with a run. Each member below is the key of the same name; what it means, its unit,
 * range and default stand in docs/recipe.md.
 */
#ifndef LEAPGRAD_RECIPE_H
#define LEAPGRAD_RECIPE_H

#include "leapgrad/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LG_RECIPE_MAX_NUMBERS 16
/** Longest text of a key, and largest recipe file. */
#define LG_RECIPE_MAX_TEXT_BYTES 4096
#define LG_RECIPE_MAX_FILE_BYTES 65536

#define LG_DATA_KIND_LIST(X) \
    X(IDX, "idx") \
    X(TEXT, "text") \
    X(MASKED_TEXT, "masked-text")

typedef enum lg_data_kind {
#define LG_DATA_KIND_ENUM(name, text) LG_DATA_##name,
    LG_DATA_KIND_LIST(LG_DATA_KIND_ENUM)
#undef LG_DATA_KIND_ENUM
        LG_NUM_DATA_KINDS
} lg_data_kind;

#define LG_MODEL_KIND_LIST(X) \
    X(RESNET, "resnet") \
    X(DENSENET, "densenet") \
    X(MOBILENETV3_SMALL, "mobilenetv3-small") \
    X(VGG, "vgg") \
    X(GPT, "gpt") \
    X(BERT, "bert")

typedef enum lg_model_kind {
#define LG_MODEL_KIND_ENUM(name, text) LG_MODEL_##name,
    LG_MODEL_KIND_LIST(LG_MODEL_KIND_ENUM)
#undef LG_MODEL_KIND_ENUM
        LG_NUM_MODEL_KINDS
} lg_model_kind;

#define LG_RANK_PLACEMENT_LIST(X) \
    X(AUTO, "auto") \
    X(CONTIGUOUS, "contiguous") \
    X(BALANCED, "balanced") \
    X(MODULO, "modulo") \
    X(V, "v")

typedef enum lg_rank_placement {
#define LG_RANK_PLACEMENT_ENUM(name, text) LG_PLACE_##name,
    LG_RANK_PLACEMENT_LIST(LG_RANK_PLACEMENT_ENUM)
#undef LG_RANK_PLACEMENT_ENUM
        LG_NUM_RANK_PLACEMENTS
} lg_rank_placement;

#define LG_COST_SOURCE_LIST(X) \
    X(ESTIMATE, "estimate") \
    X(MEASURE, "measure") \
    X(FILE, "file")

typedef enum lg_cost_source {
#define LG_COST_SOURCE_ENUM(name, text) LG_COSTS_FROM_##name,
    LG_COST_SOURCE_LIST(LG_COST_SOURCE_ENUM)
#undef LG_COST_SOURCE_ENUM
        LG_NUM_COST_SOURCES
} lg_cost_source;

typedef struct lg_recipe_numbers {
    int num;
    double values[LG_RECIPE_MAX_NUMBERS];
} lg_recipe_numbers;

/** Texts belong to the recipe, are UTF-8 and never NULL. Read members freely; change them with lg_recipe_set(). */
typedef struct lg_recipe {
    struct {
        char *dir;
        char *name;
    } run;
    struct {
        lg_data_kind kind;
        char *train_images;
        char *train_labels;
        char *test_images;
        char *test_labels;
        int64_t num_classes;
        lg_recipe_numbers mean;
        lg_recipe_numbers std;
        int64_t pad_crop;
        bool flip;
        char *text;
        double held_out_frac;
        double validation_frac;
        double mask_frac;
        int64_t prefetch;
        bool drop_last;
    } data;
    struct {
        lg_model_kind kind;
        int64_t depth;
        int64_t growth;
        int64_t width;
        double width_mult;
        int64_t hidden;
        bool batch_norm;
        int64_t layers;
        int64_t heads;
        int64_t context;
        int64_t vocab;
        bool tied;
        double dropout;
    } model;
    struct {
        int64_t steps;
        int64_t epochs;
        int64_t batch;
        int64_t micro_batches;
        int64_t seed;
        double label_smoothing;
        int64_t eval_every;
        int64_t checkpoint_every;
        int64_t log_every;
    } train;
    struct {
        lg_optim_rule rule;
        double lr;
        double momentum;
        bool nesterov;
        double weight_decay;
        bool decay_norm_and_bias;
        double beta1;
        double beta2;
        double epsilon;
        double clip_norm;
        lg_schedule schedule;
        int64_t warmup_steps;
        double min_lr_frac;
        lg_recipe_numbers milestones;
        double step_factor;
        lg_lr_scaling scaling;
        int64_t base_batch;
        lg_warmup warmup;
        double warmup_frac;
        lg_warmup_budget warmup_budget;
        lg_grouping grouping;
        lg_rate_variant variant;
        double gain_epsilon;
        double gain_power;
        lg_schedule_by schedule_by;
        double total_iterations;
        lg_skip skip;
        bool statistics;
        double trust_coefficient;
    } optim;
    struct {
        char *strategy;
        int64_t memory_bytes;
        bool allow_lag;
        lg_cost_source costs;
        char *costs_file;
        char *file;
        char *machine;
        int64_t reverse_first_k;
        bool push;
    } plan;
    struct {
        int64_t pipeline;
        int64_t replicas;
        int64_t stages;
        lg_rank_placement placement;
        int64_t group;
        int64_t chunk_bytes;
        int64_t share_bytes;
        double timeout_s;
    } ranks;
    struct {
        char *device;
        int64_t lanes;
        int64_t threads;
    } exec;
    struct {
        int64_t tokens;
        double temperature;
        char *prompt;
        int64_t seed;
    } generate;
} lg_recipe;

/** "idx", ... */
LG_API const char *lg_data_kind_name(lg_data_kind kind);
/** "resnet", ... */
LG_API const char *lg_model_kind_name(lg_model_kind kind);

/** All keys at their defaults. */
LG_API LG_NODISCARD lg_status lg_recipe_default(lg_recipe **out);

/**
 * Reads a recipe file over the defaults, sets the overrides, and checks the whole.
 *
 * @param[out] out       Ownership: the caller's; release with lg_recipe_destroy(). NULL on failure.
 * @param path           NULL: only the overrides.
 * @param overrides      `num_overrides` texts "section.key=value"; lists as "0.1,0.2". A key may come once.
 * @param num_overrides  0 or more.
 * @return IO if the file cannot be read. INVALID_ARG, with file, key, range and, where known, the line: not YAML, more
 *         than one document, aliases, larger than LG_RECIPE_MAX_FILE_BYTES; unknown or doubled keys; a value of the
 *         wrong type or out of range; keys that contradict each other.
 */
LG_API LG_NODISCARD lg_status lg_recipe_load(lg_recipe **out, const char *path,
                                             const char *const *overrides, int num_overrides);

/** The same from memory; `source` names it in messages. */
LG_API LG_NODISCARD lg_status lg_recipe_parse(lg_recipe **out, const char *source, const char *text,
                                              size_t num_bytes, const char *const *overrides,
                                              int num_overrides);

LG_API void lg_recipe_destroy(lg_recipe *recipe);

/** Sets one key ("train.steps") from text; on failure the recipe stays as it was. */
LG_API LG_NODISCARD lg_status lg_recipe_set(lg_recipe *recipe, const char *key, const char *value);

/** Checks the ranges of all members and the rules between them (lg_recipe_load() has done it). */
LG_API LG_NODISCARD lg_status lg_recipe_check(const lg_recipe *recipe);

/** The recipe's optimizer options. */
LG_API lg_optim_opts lg_recipe_optim_opts(const lg_recipe *recipe);

/**
 * Every key with its effective value; reading the YAML back gives the same recipe, bit for bit. JSON: an object of
 * sections, indented by two, numbers and booleans as such. Release the text with lg_recipe_text_destroy().
 */
LG_API LG_NODISCARD lg_status lg_recipe_to_json(const lg_recipe *recipe, char **out);
LG_API LG_NODISCARD lg_status lg_recipe_to_yaml(const lg_recipe *recipe, char **out);

/** All keys with type, range, default and help, for a terminal. Release with lg_recipe_text_destroy(). */
LG_API LG_NODISCARD lg_status lg_recipe_help(char **out);

/** The reference page docs/recipe.md. Release with lg_recipe_text_destroy(). */
LG_API LG_NODISCARD lg_status lg_recipe_reference(char **out);

LG_API void lg_recipe_text_destroy(char *text);

#ifdef __cplusplus
}
#endif

#endif
