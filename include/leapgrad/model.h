/**
 * A model: a directed acyclic graph of layers, built in topological order by adding one layer after another.
 *
 * Shapes here are those of one sample, without the batch dimension: an image is [channels, height, width], a
 * feature vector [features], a sequence of embedded tokens [tokens, features], a sequence of ids [tokens].
 * The batch comes in when a step graph is made (graph.h).
 *
 * A model is immutable once a graph or a trainer has been made from it.
 */
#ifndef LEAPGRAD_MODEL_H
#define LEAPGRAD_MODEL_H

#include "leapgrad/status.h"
#include "leapgrad/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LG_MAX_LAYER_PARAMS 2
#define LG_MAX_LAYER_STATES 2

/**
 * Layer kinds: enum name, name in files, inputs (-1: one or more), and what they compute. Parameters stand in the
 * order weight, bias.
 */
#define LG_LAYER_KIND_LIST(X) \
    X(INPUT, "input", 0)           /* a tensor of the batch */ \
    X(CONV2D, "conv2d", 1)         /* [C,H,W] -> [O,H',W']; weight [O,C/groups,KH,KW], bias [O] */ \
    X(LINEAR, "linear", 1)         /* [...,K] -> [...,N]; weight [N,K], bias [N] */ \
    X(BATCH_NORM, "batch_norm", 1) /* [C,...] over batch and space; weight, bias [C] */ \
    X(LAYER_NORM, "layer_norm", 1) /* [...,C] over the last dimension; weight, bias [C] */ \
    X(ACTIVATION, "activation", 1) /* elementwise */ \
    X(MAX_POOL, "max_pool", 1)     /* [C,H,W] -> [C,H',W'] */ \
    X(AVG_POOL, "avg_pool", 1)     /* [C,H,W] -> [C,H',W']; divides by the cells inside the map */ \
    X(GLOBAL_AVG_POOL, "global_avg_pool", 1) /* [C,H,W] -> [C] */ \
    X(FLATTEN, "flatten", 1)                 /* [a,b,...] -> [a*b*...] */ \
    X(ADD, "add", -1)                        /* sum of two or more of one shape */ \
    X(CONCAT, "concat", -1)                  /* along the first dimension (channels) */ \
    X(CHANNEL_SCALE, "channel_scale", 2)     /* [C,H,W] times [C] */ \
    X(DROPOUT, "dropout", 1) /* zero with probability p, else times 1/(1-p); training only */ \
    X(TOKEN_EMBEDDING, "token_embedding", 1)       /* ids [T] -> [T,C]; weight [V,C] */ \
    X(POSITION_EMBEDDING, "position_embedding", 1) /* [T,C] plus weight[0..T); weight [T_max,C] */ \
    X(ATTENTION, "attention", \
      -1) /* packed q,k,v [T,3C] (, keep mask [T]: 0 = padding) -> [T,C] */ \
    X(SOFTMAX_CROSS_ENTROPY, "softmax_cross_entropy", \
      2) /* logits [K] or [T,K], targets [] or [T] -> loss */

typedef enum lg_layer_kind {
#define LG_LAYER_KIND_ENUM(name, text, num_inputs) LG_LAYER_##name,
    LG_LAYER_KIND_LIST(LG_LAYER_KIND_ENUM)
#undef LG_LAYER_KIND_ENUM
        LG_NUM_LAYER_KINDS
} lg_layer_kind;

/** The kind's name in files, for example "conv2d". */
LG_API const char *lg_layer_kind_name(lg_layer_kind kind);

typedef enum lg_activation {
    LG_ACTIVATION_NONE,
    LG_ACTIVATION_RELU,
    LG_ACTIVATION_RELU6,
    LG_ACTIVATION_HARD_SWISH,   /* x * relu6(x + 3) / 6 */
    LG_ACTIVATION_HARD_SIGMOID, /* relu6(x + 3) / 6 */
    LG_ACTIVATION_GELU_ERF,     /* x * Phi(x) */
    LG_ACTIVATION_GELU_TANH,    /* the tanh approximation of Hendrycks and Gimpel (2016) */
    LG_NUM_ACTIVATIONS
} lg_activation;

LG_API const char *lg_activation_name(lg_activation activation);

/** Sliding window of convolutions and pools; one entry per spatial dimension: [0] height, [1] width. */
typedef struct lg_window {
    int64_t kernel[2];
    int64_t stride[2];
    int64_t pad_begin[2]; /* top, left */
    int64_t pad_end[2];   /* bottom, right */
    int64_t dilation[2];  /* 1: dense */
} lg_window;

/** Square window: dilation 1, the same padding on all sides. */
LG_API lg_window lg_window_square(int64_t kernel, int64_t stride, int64_t pad);

/** What one layer is; only the fields of its kind matter. Plain values, except `class_weights`. */
typedef struct lg_layer_attrs {
    lg_window window;       /* conv2d, max_pool, avg_pool */
    int64_t num_outputs;    /* conv2d: channels O; linear: features N; embeddings: features C */
    int64_t groups;         /* conv2d; C = groups: depthwise */
    int64_t num_embeddings; /* token_embedding: V; position_embedding: T_max */
    int64_t num_heads;      /* attention */
    bool has_bias;          /* conv2d, linear */
    bool is_causal;         /* attention */
    lg_activation
        activation;  /* activation; batch_norm and add: applied to the result (NONE or RELU) */
    float epsilon;   /* batch_norm, layer_norm */
    float momentum;  /* batch_norm: running = (1 - momentum) * running + momentum * batch */
    float drop_prob; /* dropout: [0, 1) */
    float label_smoothing;      /* softmax_cross_entropy: [0, 1) */
    int32_t ignore_index;       /* softmax_cross_entropy: targets with this value count nothing */
    const float *class_weights; /* softmax_cross_entropy: NULL or K weights, copied by the model */
    int input_idx;              /* input: which tensor of the batch */
    lg_dtype input_dtype;       /* input: F32 or I32 */
    lg_shape input_shape;       /* input: of one sample */
} lg_layer_attrs;

/** Zero, but: window 1x1 stride 1, groups 1, bias, epsilon 1e-5, momentum 0.1, ignore_index -100, input F32. */
LG_API lg_layer_attrs lg_layer_attrs_default(void);

/** How a parameter starts. */
typedef enum lg_init {
    LG_INIT_ZEROS,
    LG_INIT_ONES,
    LG_INIT_NORMAL,         /* mean 0, deviation `scale` */
    LG_INIT_KAIMING_NORMAL, /* He et al. 2015, fan-out (convolutions) or fan-in (linear), gain sqrt(2) */
    LG_INIT_UNIFORM_FAN_IN /* uniform in +-1/sqrt(fan_in): the usual default of linear layers */
} lg_init;

/** A parameter, a tensor that is trained. Tied layers share one. */
typedef struct lg_param_info {
    const char *name; /* "conv1.weight" */
    lg_shape shape;
    lg_init init;
    float init_scale;
    bool
        is_matrix; /* false for biases and for the parameters of norms: the usual exclusion from weight decay */
    int owner_layer; /* the layer that brought it in */
} lg_param_info;

/** A state: a tensor that is kept with the weights but not trained (running statistics of batch norm). */
typedef struct lg_state_info {
    const char *name; /* "bn1.running_mean" */
    lg_shape shape;
    float init_value;
    int owner_layer;
} lg_state_info;

/** What the model knows of one layer. Lifetime of all pointers: until lg_model_destroy(). */
typedef struct lg_layer_info {
    const char *name;
    lg_layer_kind kind;
    const lg_layer_attrs *attrs;
    int num_inputs;
    const int *inputs;  /* layer ids */
    lg_shape out_shape; /* of one sample */
    lg_dtype out_dtype;
    int num_params;
    int params[LG_MAX_LAYER_PARAMS]; /* param ids */
    int num_states;
    int states[LG_MAX_LAYER_STATES]; /* state ids */
} lg_layer_info;

typedef struct lg_model lg_model;

LG_API LG_NODISCARD lg_status lg_model_create(lg_model **out);
LG_API void lg_model_destroy(lg_model *model);

/**
 * Adds a layer.
 *
 * @param model       The model.
 * @param name        Unique, [A-Za-z0-9_.-]+; parameters are named after it ("name.weight").
 * @param kind        What it computes.
 * @param attrs       Copied. NULL for the defaults.
 * @param inputs      Ids of layers added before.
 * @param num_inputs  As the kind asks.
 * @param[out] out_layer  Its id: the number of layers added before it. May be NULL.
 * @return INVALID_ARG, naming the layer and the attribute, if a value is out of range or shapes do not fit.
 */
LG_API LG_NODISCARD lg_status lg_model_add(lg_model *model, const char *name, lg_layer_kind kind,
                                           const lg_layer_attrs *attrs, const int *inputs,
                                           int num_inputs, int *out_layer);

/**
 * Ties a parameter of `layer` to that of an earlier layer: both use one tensor, and its gradient is the sum over both.
 * Shapes must be equal. To be called before any other layer is added after `layer`; its own parameter disappears.
 */
LG_API LG_NODISCARD lg_status lg_model_tie(lg_model *model, int layer, int param_idx,
                                           int with_layer, int with_param_idx);

/** Sets how parameter `param_idx` of `layer` starts. */
LG_API LG_NODISCARD lg_status lg_model_set_init(lg_model *model, int layer, int param_idx,
                                                lg_init init, float scale);

LG_API int lg_model_num_layers(const lg_model *model);
LG_API int lg_model_num_params(const lg_model *model);
LG_API int lg_model_num_states(const lg_model *model);
/** Number of batch tensors: 1 + the largest `input_idx`. */
LG_API int lg_model_num_inputs(const lg_model *model);

/** Lifetime: until lg_model_destroy(), or the next lg_model_add() for the pointers inside. */
LG_API const lg_layer_info *lg_model_layer(const lg_model *model, int layer);
LG_API const lg_param_info *lg_model_param(const lg_model *model, int param);
LG_API const lg_state_info *lg_model_state(const lg_model *model, int state);

/** The id of the layer called `name`, or -1. */
LG_API int lg_model_find_layer(const lg_model *model, const char *name);

/** Sum of elements of all parameters. */
LG_API int64_t lg_model_num_param_elems(const lg_model *model);

#ifdef __cplusplus
}
#endif

#endif
