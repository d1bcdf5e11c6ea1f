/*
 * Building models line by line: each call adds a layer and returns its id. After a failure the calls do nothing and
 * return 0, so a builder is written without a check per line; lgi_builder_finish() gives the first failure.
 */
#ifndef LGI_MODELS_BUILD_LAYERS_H
#define LGI_MODELS_BUILD_LAYERS_H

#include "leapgrad/models.h"

typedef struct lgi_builder {
    lg_model *model;
    lg_status status;
    char name[128];
} lgi_builder;

void lgi_builder_init(lgi_builder *builder);

/* Hands the model over, or destroys it and returns the first failure. */
LG_NODISCARD lg_status lgi_builder_finish(lgi_builder *builder, lg_model **out);

/* A layer's name by printf rules. Lifetime: until the next call. */
const char *lgi_name(lgi_builder *builder, const char *format, ...) LG_PRINTF(2, 3);

/* How weights start. */
typedef struct lgi_weight_init {
    lg_init init;
    double scale;
} lgi_weight_init;

/* Batch tensor `input_idx`. */
int lgi_add_input(lgi_builder *builder, const char *name, int input_idx, lg_dtype dtype,
                  const lg_shape *shape);

typedef struct lgi_conv {
    int64_t num_outputs;
    int64_t kernel; /* odd: padded to keep the size at stride 1 */
    int64_t stride;
    int64_t groups; /* 0: 1 */
    bool has_bias;
} lgi_conv;

int lgi_add_conv(lgi_builder *builder, const char *name, int x, const lgi_conv *conv);
int lgi_add_linear(lgi_builder *builder, const char *name, int x, int64_t num_outputs,
                   bool has_bias, lgi_weight_init init);
int lgi_add_batch_norm(lgi_builder *builder, const char *name, int x, double epsilon,
                       double momentum);
int lgi_add_layer_norm(lgi_builder *builder, const char *name, int x, double epsilon);
int lgi_add_activation(lgi_builder *builder, const char *name, int x, lg_activation activation);
/* x itself if `drop_prob` is 0. */
int lgi_add_dropout(lgi_builder *builder, const char *name, int x, double drop_prob);
int lgi_add_pool(lgi_builder *builder, const char *name, lg_layer_kind kind, int x, int64_t kernel,
                 int64_t stride, int64_t pad);
int lgi_add_embedding(lgi_builder *builder, const char *name, lg_layer_kind kind, int x,
                      int64_t num_embeddings, int64_t width, double init_scale);
/* mask < 0: none. */
int lgi_add_attention(lgi_builder *builder, const char *name, int qkv, int mask, int64_t num_heads,
                      bool is_causal);
/* A layer without attributes, of one or two inputs (b < 0: one). */
int lgi_add_plain(lgi_builder *builder, const char *name, lg_layer_kind kind, int a, int b);
/* Input 1, of the logits' shape without the last dimension, and the loss. */
void lgi_add_loss(lgi_builder *builder, int logits, double label_smoothing);

/* Size of dimension `dim` of a layer's result for one sample; 1 after a failure. */
int64_t lgi_dim(const lgi_builder *builder, int layer, int dim);

/* INVALID_ARG "model: option is value, not in [min, max]". */
LG_NODISCARD lg_status lgi_check_option(const char *model, const char *option, int64_t value,
                                        int64_t min, int64_t max);
/* The input shape, num_classes, label_smoothing and drop_prob of an image model. */
LG_NODISCARD lg_status lgi_check_image_options(const char *model, const lg_shape *input,
                                               int64_t num_classes, double label_smoothing,
                                               double drop_prob);

/* What GPT and BERT have in common. */
LG_NODISCARD lg_status lgi_check_text_options(const char *model, int64_t num_layers, int64_t width,
                                              int64_t num_heads, int64_t hidden, int64_t context,
                                              int64_t vocab_size, double label_smoothing,
                                              double drop_prob);

#endif
