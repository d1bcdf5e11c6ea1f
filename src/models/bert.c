/* BERT encoder with masked-language-model head; see lg_model_bert(). */
#include <stdio.h>

#include "base/check.h"
#include "models/build_layers.h"

#define LN_EPSILON 1e-12
#define INIT_SCALE 0.02

static const lgi_weight_init weight_init = {LG_INIT_NORMAL, INIT_SCALE};

lg_bert_opts lg_bert_opts_default(void)
{
    return (lg_bert_opts){.num_layers = 12,
                          .width = 768,
                          .num_heads = 12,
                          .context = 512,
                          .vocab_size = 30522,
                          .num_segments = 2,
                          .is_tied = true,
                          .drop_prob = 0.1};
}

/* norm(x + dropout(dense(y))), the end of both halves of a block. */
static int add_output(lgi_builder *b, const char *prefix, int x, int y, const lg_bert_opts *opts)
{
    y = lgi_add_linear(b, lgi_name(b, "%s.dense", prefix), y, opts->width, true, weight_init);
    y = lgi_add_dropout(b, lgi_name(b, "%s.dropout", prefix), y, opts->drop_prob);
    y = lgi_add_plain(b, lgi_name(b, "%s.add", prefix), LG_LAYER_ADD, y, x);
    return lgi_add_layer_norm(b, lgi_name(b, "%s.LayerNorm", prefix), y, LN_EPSILON);
}

static int add_block(lgi_builder *b, int idx, int x, int keep, const lg_bert_opts *opts)
{
    const int64_t hidden = opts->hidden > 0 ? opts->hidden : 4 * opts->width;
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "bert.encoder.layer.%d.attention.output", idx);
    int y = lgi_add_linear(b, lgi_name(b, "bert.encoder.layer.%d.attention.self.qkv", idx), x,
                           3 * opts->width, true, weight_init);
    y = lgi_add_attention(b, lgi_name(b, "bert.encoder.layer.%d.attention.self", idx), y, keep,
                          opts->num_heads, false);
    x = add_output(b, prefix, x, y, opts);
    y = lgi_add_linear(b, lgi_name(b, "bert.encoder.layer.%d.intermediate.dense", idx), x, hidden,
                       true, weight_init);
    y = lgi_add_activation(b, lgi_name(b, "bert.encoder.layer.%d.intermediate.act", idx), y,
                           LG_ACTIVATION_GELU_ERF);
    (void)snprintf(prefix, sizeof prefix, "bert.encoder.layer.%d.output", idx);
    return add_output(b, prefix, x, y, opts);
}

/* Words plus positions plus segments, normed. *out_words: the layer with the weight that the decoder shares. */
static int add_embeddings(lgi_builder *b, int tokens, const lg_bert_opts *opts, int *out_words)
{
    const int64_t num_positions = opts->num_positions > 0 ? opts->num_positions : opts->context;
    *out_words = lgi_add_embedding(b, "bert.embeddings.word_embeddings", LG_LAYER_TOKEN_EMBEDDING,
                                   tokens, opts->vocab_size, opts->width, INIT_SCALE);
    int x = lgi_add_embedding(b, "bert.embeddings.position_embeddings", LG_LAYER_POSITION_EMBEDDING,
                              *out_words, num_positions, opts->width, INIT_SCALE);
    if (opts->num_segments > 0) {
        const lg_shape shape = LG_SHAPE(opts->context);
        int segments = lgi_add_input(b, "segments", 3, LG_DTYPE_I32, &shape);
        segments =
            lgi_add_embedding(b, "bert.embeddings.token_type_embeddings", LG_LAYER_TOKEN_EMBEDDING,
                              segments, opts->num_segments, opts->width, INIT_SCALE);
        x = lgi_add_plain(b, "bert.embeddings.add", LG_LAYER_ADD, x, segments);
    }
    x = lgi_add_layer_norm(b, "bert.embeddings.LayerNorm", x, LN_EPSILON);
    return lgi_add_dropout(b, "bert.embeddings.dropout", x, opts->drop_prob);
}

lg_status lg_model_bert(lg_model **out, const lg_bert_opts *opts)
{
    *out = NULL;
    LG_TRY(lgi_check_text_options("bert", opts->num_layers, opts->width, opts->num_heads,
                                  opts->hidden, opts->context, opts->vocab_size,
                                  opts->label_smoothing, opts->drop_prob));
    LG_TRY(lgi_check_option("bert", "num_segments", opts->num_segments, 0, 1 << 20));
    if (opts->num_positions != 0) {
        LG_TRY(
            lgi_check_option("bert", "num_positions", opts->num_positions, opts->context, 1 << 24));
    }
    lgi_builder b;
    lgi_builder_init(&b);
    const lg_shape shape = LG_SHAPE(opts->context);
    const int tokens = lgi_add_input(&b, "tokens", 0, LG_DTYPE_I32, &shape);
    const int keep = lgi_add_input(&b, "keep", 2, LG_DTYPE_F32, &shape);
    int words = 0;
    int x = add_embeddings(&b, tokens, opts, &words);
    for (int i = 0; i < opts->num_layers; i++) {
        x = add_block(&b, i, x, keep, opts);
    }
    x = lgi_add_linear(&b, "cls.predictions.transform.dense", x, opts->width, true, weight_init);
    x = lgi_add_activation(&b, "cls.predictions.transform.act", x, LG_ACTIVATION_GELU_ERF);
    x = lgi_add_layer_norm(&b, "cls.predictions.transform.LayerNorm", x, LN_EPSILON);
    x = lgi_add_linear(&b, "cls.predictions.decoder", x, opts->vocab_size, true, weight_init);
    if (opts->is_tied && b.status == LG_OK) {
        b.status = lg_model_tie(b.model, x, 0, words, 0);
    }
    lgi_add_loss(&b, x, opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}
