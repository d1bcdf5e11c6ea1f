/**
 * Networks, built from layers (model.h).
 *
 * Every builder makes a whole training model: batch tensor 0 is the input, tensor 1 the targets, and the last layer a
 * softmax cross-entropy of the two. Names of layers, and so of parameters, are those of the usual PyTorch
 * implementation of the model (said at each), so weights can be matched by name; tokens' q, k and v are packed.
 *
 * All builders: *out is the caller's, release with lg_model_destroy(); NULL on failure. INVALID_ARG names the option
 * and its range.
 */
#ifndef LEAPGRAD_MODELS_H
#define LEAPGRAD_MODELS_H

#include "leapgrad/model.h"
#include "leapgrad/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Residual network for small images: He et al. 2016, "Deep Residual Learning", section 4.2.
 *
 * A 3x3 convolution, then three stages of n blocks with width, 2 width and 4 width channels on the map, half and a
 * quarter of it; depth is 6n + 2. Where a block changes the shape, its shortcut is a 1x1 convolution with batch norm
 * (the paper's option B; its option A, padding with zeros, has 2,752 parameters less at 16 channels). Convolutions start
 * Kaiming-normal over the fan-out, the last layer uniform over its fan-in, biases at zero. Names: torchvision's
 * ("layer1.0.conv1", "layer2.0.downsample.0").
 */
typedef struct lg_resnet_opts {
    lg_shape input; /* [channels, height, width] */
    int64_t num_classes;
    int64_t depth; /* 6n + 2, n >= 1 */
    int64_t width; /* channels of the first stage */
    double label_smoothing;
} lg_resnet_opts;

/** [3,32,32], 10 classes, depth 20, width 16. */
LG_API lg_resnet_opts lg_resnet_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_resnet(lg_model **out, const lg_resnet_opts *opts);

/**
 * Residual network for ImageNet: He et al. 2016, table 1, bottleneck blocks. The stride of a block is in its 3x3
 * convolution ("v1.5", as torchvision has it; the paper has it in the first 1x1), shortcuts that change the shape are
 * projections. A 7x7 convolution and 3x3 max pooling divide the image by 4, the stages by 8 more. Starts as
 * lg_model_resnet(). Names: torchvision's ("layer1.0.conv3").
 */
typedef struct lg_resnet_imagenet_opts {
    lg_shape input;
    int64_t num_classes;
    int64_t depth; /* 50, 101, 152 */
    int64_t width; /* inner channels of the first stage's blocks; 64 in the paper */
    double label_smoothing;
} lg_resnet_imagenet_opts;

/** [3,224,224], 1000 classes, depth 50, width 64. */
LG_API lg_resnet_imagenet_opts lg_resnet_imagenet_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_resnet_imagenet(lg_model **out,
                                                       const lg_resnet_imagenet_opts *opts);

/**
 * DenseNet-BC for small images: Huang et al. 2017, sections 3 and 4.1, with compression 0.5.
 *
 * A 3x3 convolution to 2 growth channels, three dense blocks of n bottleneck layers (batch norm, ReLU, 1x1 to 4 growth,
 * batch norm, ReLU, 3x3 to growth, concatenated to what came in), halved in channels and size between them; depth is
 * 6n + 4. Dropout after each 3x3 convolution. Starts as lg_model_resnet(). Names: torchvision's
 * ("features.denseblock1.denselayer1.conv1").
 */
typedef struct lg_densenet_opts {
    lg_shape input;
    int64_t num_classes;
    int64_t depth;  /* 6n + 4, n >= 1 */
    int64_t growth; /* channels that each layer adds */
    double drop_prob;
    double label_smoothing;
} lg_densenet_opts;

/** [3,32,32], 10 classes, depth 100, growth 12, no dropout. */
LG_API lg_densenet_opts lg_densenet_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_densenet(lg_model **out, const lg_densenet_opts *opts);

/**
 * DenseNet-BC for ImageNet: Huang et al. 2017, table 1, compression 0.5. A 7x7 convolution to 2 growth channels and 3x3 max
 * pooling divide the image by 4, the three transitions by 8 more. Starts as lg_model_resnet(). Names: torchvision's.
 */
typedef struct lg_densenet_imagenet_opts {
    lg_shape input; /* at least 32 x 32 */
    int64_t num_classes;
    int64_t depth; /* 121, 169, 201, 264 */
    int64_t growth;
    double drop_prob;
    double label_smoothing;
} lg_densenet_imagenet_opts;

/** [3,224,224], 1000 classes, depth 121, growth 32, no dropout. */
LG_API lg_densenet_imagenet_opts lg_densenet_imagenet_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_densenet_imagenet(lg_model **out,
                                                         const lg_densenet_imagenet_opts *opts);

/**
 * MobileNetV3: Howard et al. 2019, tables 1 (large) and 2 (small), with squeeze-and-excite as in section 5.3 (hard
 * sigmoid).
 *
 * The paper's network divides height and width by 32, for images of 224. For smaller ones the first of its five strides
 * of two become strides of one, as many as it takes for the last map to be at least 4x4: images of 32 are divided by 8,
 * of 28 too (to 4x4), of 64 by 16, from 97 on by 32. Channel counts are `width_mult` times the paper's, rounded to
 * multiples of 8. Batch norms: epsilon 0.001, momentum 0.01. Convolutions start Kaiming-normal over the fan-out, the linear
 * layers of squeeze-and-excite over the fan-in, those of the classifier normal with deviation 0.01, biases at zero.
 * Names: torchvision's ("features.1.block.0.0"), whose fc1 and fc2 are 1x1 convolutions of the same elements.
 */
typedef struct lg_mobilenetv3_opts {
    lg_shape input;
    int64_t num_classes;
    double width_mult; /* (0, 8] */
    double drop_prob;  /* before the last layer */
    double label_smoothing;
} lg_mobilenetv3_opts;

/** [3,224,224], 1000 classes, width 1, dropout 0.2. */
LG_API lg_mobilenetv3_opts lg_mobilenetv3_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_mobilenetv3_small(lg_model **out,
                                                         const lg_mobilenetv3_opts *opts);
LG_API LG_NODISCARD lg_status lg_model_mobilenetv3_large(lg_model **out,
                                                         const lg_mobilenetv3_opts *opts);

/**
 * VGG: Simonyan and Zisserman 2015, table 1, configurations A, B, D, E.
 *
 * Five groups of 3x3 convolutions with width, 2, 4, 8 and 8 times width channels, each group followed by 2x2 max pooling
 * (left out once the map is a single row or column), then two hidden linear layers with dropout, and the last. Convolutions
 * start Kaiming-normal over the fan-out, the hidden linear layers over the fan-in, the last uniform over its fan-in,
 * biases at zero (the paper's deviation of 0.01 suits hidden layers of 4096 only). Names: torchvision's ("features.0",
 * "classifier.6").
 */
typedef struct lg_vgg_opts {
    lg_shape input;
    int64_t num_classes;
    int64_t depth;  /* 11, 13, 16, 19 */
    int64_t width;  /* channels of the first group */
    int64_t hidden; /* features of the hidden linear layers */
    bool has_batch_norm;
    double drop_prob;
    double label_smoothing;
} lg_vgg_opts;

/** [3,32,32], 10 classes, depth 11, width 64, hidden 512, batch norm, dropout 0.5. */
LG_API lg_vgg_opts lg_vgg_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_vgg(lg_model **out, const lg_vgg_opts *opts);

/**
 * GPT-2: Radford et al. 2019, section 2.3, with learned positions and GELU in its tanh form.
 *
 * Tokens [context] in, targets [context] out (-100 counts nothing). Layer norm before attention and feed-forward, one more
 * at the end, last layer without bias. Dropout after the embeddings and after each of the two projections into the
 * residual stream (not on attention probabilities). Weights start normal with deviation 0.02, the projections into the
 * residual stream with 0.02 / sqrt(2 num_layers), biases at zero. Names: those of Hugging Face's GPT2LMHeadModel
 * ("transformer.h.0.attn.c_attn"), with weights [outputs, inputs].
 */
typedef struct lg_gpt_opts {
    int64_t num_layers;
    int64_t width; /* features of a token; a multiple of num_heads */
    int64_t num_heads;
    int64_t hidden;  /* features inside the feed-forward part; 0: 4 width */
    int64_t context; /* tokens */
    int64_t vocab_size;
    bool is_tied; /* the last layer has the token embedding's weight */
    double drop_prob;
    double label_smoothing;
} lg_gpt_opts;

/** GPT-2 small: 12 layers, width 768, 12 heads, context 1024, vocabulary 50257, tied, no dropout. */
LG_API lg_gpt_opts lg_gpt_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_gpt(lg_model **out, const lg_gpt_opts *opts);

/**
 * BERT encoder with masked-language-model head: Devlin et al. 2019, section 3 and appendix A.
 *
 * Batch: 0 tokens [context], 1 targets [context] (-100: not to be predicted), 2 keep mask f32 [context] (0: padding, not
 * attended to), 3 segment ids [context] if num_segments > 0. Layer norm (epsilon 1e-12) after each residual sum, GELU in its
 * erf form. Head: linear, GELU, layer norm, then a decoder with the token embedding's weight and a bias of its own. Dropout
 * after the embeddings and before each residual sum (not on attention probabilities). No pooler. Weights start normal
 * with deviation 0.02, biases at zero. Names: those of Hugging Face's BertForMaskedLM
 * ("bert.encoder.layer.0.attention.output.dense"); its query, key and value are packed in "attention.self.qkv", its
 * "cls.predictions.bias" is the decoder's.
 */
typedef struct lg_bert_opts {
    int64_t num_layers;
    int64_t width;
    int64_t num_heads;
    int64_t hidden; /* features inside the feed-forward part; 0: 4 width */
    int64_t context;
    int64_t vocab_size;    /* with the mask's id */
    int64_t num_segments;  /* kinds of segments; 0: no segment ids */
    int64_t num_positions; /* rows of the position embedding, context or more; 0: context */
    bool is_tied;
    double drop_prob;
    double label_smoothing;
} lg_bert_opts;

/** BERT base: 12 layers, width 768, 12 heads, context 512, vocabulary 30522, 2 segments, tied, dropout 0.1. */
LG_API lg_bert_opts lg_bert_opts_default(void);
LG_API LG_NODISCARD lg_status lg_model_bert(lg_model **out, const lg_bert_opts *opts);

/**
 * A model by name, as papers call it, on the data that they use it with; a name of the table below.
 *
 * @return INVALID_ARG for a name that is not in the table; the message lists it.
 */
LG_API LG_NODISCARD lg_status lg_model_preset(lg_model **out, const char *name);
/** Names of the presets: "resnet50", "bert-24", ...; NULL after the last. */
LG_API const char *lg_model_preset_name(int idx);
/** One line: sizes and source. NULL after the last. */
LG_API const char *lg_model_preset_help(int idx);

/**
 * The model that a recipe asks for.
 *
 * @param image_shape  [channels, height, width] of the data; may be NULL for models of text.
 * @param num_classes  Classes of the data; for text the number of token ids (with the mask's, for masked text). A
 *                     `model.vocab` above 0 must not be below it.
 */
LG_API LG_NODISCARD lg_status lg_model_from_recipe(lg_model **out, const lg_recipe *recipe,
                                                   const lg_shape *image_shape,
                                                   int64_t num_classes);

#ifdef __cplusplus
}
#endif

#endif
