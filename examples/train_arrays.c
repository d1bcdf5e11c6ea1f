/* Builds a small model, trains it on arrays of its own (two interleaved spirals), and reads weights and answers back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "leapgrad/trainer.h"

enum { NUM_SAMPLES = 256, NUM_STEPS = 400, NUM_HIDDEN = 48 };

/* Any failed call ends the program with the library's message. */
static void require(lg_status status)
{
    if (status != LG_OK) {
        (void)fprintf(stderr, "train_arrays: %s\n", lg_last_error());
        exit(lg_status_exit_code(status));
    }
}

int main(void)
{
    /* Data: points on a plane and their classes. */
    static float points[NUM_SAMPLES][2], logits[NUM_SAMPLES][2], weights[NUM_HIDDEN][2];
    static int32_t classes[NUM_SAMPLES];
    for (int i = 0; i < NUM_SAMPLES; i++) {
        const double angle = 5.0 * i / NUM_SAMPLES;
        classes[i] = i % 2;
        points[i][0] = (float)(angle * cos(angle + 3.14159265 * classes[i]));
        points[i][1] = (float)(angle * sin(angle + 3.14159265 * classes[i]));
    }

    /* Model: point -> hidden -> relu -> logits, and their loss against the class (tensor 1 of a batch). */
    lg_model *model = NULL;
    lg_layer_attrs attrs = lg_layer_attrs_default();
    int layers[2]; /* logits so far, class */
    attrs.input_shape = LG_SHAPE(2);
    attrs.activation = LG_ACTIVATION_RELU;
    require(lg_model_create(&model));
    require(lg_model_add(model, "point", LG_LAYER_INPUT, &attrs, NULL, 0, &layers[0]));
    attrs.num_outputs = NUM_HIDDEN;
    require(lg_model_add(model, "hidden", LG_LAYER_LINEAR, &attrs, layers, 1, &layers[0]));
    require(lg_model_add(model, "relu", LG_LAYER_ACTIVATION, &attrs, layers, 1, &layers[0]));
    attrs.num_outputs = 2;
    require(lg_model_add(model, "logits", LG_LAYER_LINEAR, &attrs, layers, 1, &layers[0]));
    attrs.input_shape = lg_shape_make(0, NULL);
    attrs.input_dtype = LG_DTYPE_I32;
    attrs.input_idx = 1;
    require(lg_model_add(model, "class", LG_LAYER_INPUT, &attrs, NULL, 0, &layers[1]));
    require(lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, layers, 2, NULL));

    /* Training: every step sees all samples. */
    lg_trainer *trainer = NULL;
    lg_trainer_opts opts = lg_trainer_opts_default();
    opts.batch_samples = NUM_SAMPLES;
    opts.num_steps = NUM_STEPS;
    opts.strategy = "out-of-order";
    opts.optim.rule = LG_OPTIM_ADAMW;
    opts.optim.lr = 0.02;
    require(lg_trainer_create(&trainer, model, &opts));
    const void *const batch[2] = {points, classes};
    lg_step_result result;
    for (int step = 1; step <= NUM_STEPS; step++) {
        require(lg_trainer_step(trainer, NUM_SAMPLES, batch, &result));
    }

    /* What it learned. */
    int num_correct = 0;
    require(lg_trainer_predict(trainer, NUM_SAMPLES, batch, &logits[0][0]));
    require(lg_trainer_read(trainer, "hidden.weight", &weights[0][0], NUM_HIDDEN * 2));
    for (int i = 0; i < NUM_SAMPLES; i++) {
        num_correct += (logits[i][1] > logits[i][0]) == (classes[i] == 1) ? 1 : 0;
    }
    printf("loss %.4f, %d of %d right, first row of hidden.weight [%.4f, %.4f]\n", result.loss,
           num_correct, NUM_SAMPLES, (double)weights[0][0], (double)weights[0][1]);
    lg_trainer_destroy(trainer);
    lg_model_destroy(model);
    return num_correct >= NUM_SAMPLES * 95 / 100 ? EXIT_SUCCESS : EXIT_FAILURE;
}
