/* GPT-2; see lg_model_gpt(). */
#include <math.h>
#include <stdio.h>

#include "base/check.h"
#include "models/build_layers.h"

#define LN_EPSILON 1e-5
#define INIT_SCALE 0.02

lg_gpt_opts lg_gpt_opts_default(void)
{
    return (lg_gpt_opts){.num_layers = 12,
                         .width = 768,
                         .num_heads = 12,
                         .context = 1024,
                         .vocab_size = 50257,
                         .is_tied = true};
}

/* x + attention(norm(x)), then x + feed-forward(norm(x)). */
static int add_block(lgi_builder *b, const char *prefix, int x, const lg_gpt_opts *opts)
{
    const lgi_weight_init init = {LG_INIT_NORMAL, INIT_SCALE};
    const lgi_weight_init residual = {LG_INIT_NORMAL,
                                      INIT_SCALE / sqrt(2.0 * (double)opts->num_layers)};
    const int64_t hidden = opts->hidden > 0 ? opts->hidden : 4 * opts->width;
    int y = lgi_add_layer_norm(b, lgi_name(b, "%s.ln_1", prefix), x, LN_EPSILON);
    y = lgi_add_linear(b, lgi_name(b, "%s.attn.c_attn", prefix), y, 3 * opts->width, true, init);
    y = lgi_add_attention(b, lgi_name(b, "%s.attn", prefix), y, -1, opts->num_heads, true);
    y = lgi_add_linear(b, lgi_name(b, "%s.attn.c_proj", prefix), y, opts->width, true, residual);
    y = lgi_add_dropout(b, lgi_name(b, "%s.attn.drop", prefix), y, opts->drop_prob);
    x = lgi_add_plain(b, lgi_name(b, "%s.add_1", prefix), LG_LAYER_ADD, x, y);
    y = lgi_add_layer_norm(b, lgi_name(b, "%s.ln_2", prefix), x, LN_EPSILON);
    y = lgi_add_linear(b, lgi_name(b, "%s.mlp.c_fc", prefix), y, hidden, true, init);
    y = lgi_add_activation(b, lgi_name(b, "%s.mlp.act", prefix), y, LG_ACTIVATION_GELU_TANH);
    y = lgi_add_linear(b, lgi_name(b, "%s.mlp.c_proj", prefix), y, opts->width, true, residual);
    y = lgi_add_dropout(b, lgi_name(b, "%s.mlp.drop", prefix), y, opts->drop_prob);
    return lgi_add_plain(b, lgi_name(b, "%s.add_2", prefix), LG_LAYER_ADD, x, y);
}

lg_status lg_model_gpt(lg_model **out, const lg_gpt_opts *opts)
{
    *out = NULL;
    LG_TRY(lgi_check_text_options("gpt", opts->num_layers, opts->width, opts->num_heads,
                                  opts->hidden, opts->context, opts->vocab_size,
                                  opts->label_smoothing, opts->drop_prob));
    lgi_builder b;
    lgi_builder_init(&b);
    const lg_shape tokens = LG_SHAPE(opts->context);
    int x = lgi_add_input(&b, "tokens", 0, LG_DTYPE_I32, &tokens);
    const int embedding = lgi_add_embedding(&b, "transformer.wte", LG_LAYER_TOKEN_EMBEDDING, x,
                                            opts->vocab_size, opts->width, INIT_SCALE);
    x = lgi_add_embedding(&b, "transformer.wpe", LG_LAYER_POSITION_EMBEDDING, embedding,
                          opts->context, opts->width, INIT_SCALE);
    x = lgi_add_dropout(&b, "transformer.drop", x, opts->drop_prob);
    for (int i = 0; i < opts->num_layers; i++) {
        char prefix[64];
        (void)snprintf(prefix, sizeof prefix, "transformer.h.%d", i);
        x = add_block(&b, prefix, x, opts);
    }
    x = lgi_add_layer_norm(&b, "transformer.ln_f", x, LN_EPSILON);
    x = lgi_add_linear(&b, "lm_head", x, opts->vocab_size, false,
                       (lgi_weight_init){LG_INIT_NORMAL, INIT_SCALE});
    if (opts->is_tied && b.status == LG_OK) {
        b.status = lg_model_tie(b.model, x, 0, embedding, 0);
    }
    lgi_add_loss(&b, x, opts->label_smoothing);
    return lgi_builder_finish(&b, out);
}
