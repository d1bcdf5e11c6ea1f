/* A program outside of the project that uses the installed library: one training step of a tiny model. */
#include <stdint.h>
#include <stdio.h>

#include <leapgrad/model.h>
#include <leapgrad/trainer.h>

enum { NUM_SAMPLES = 4, NUM_FEATURES = 8, NUM_CLASSES = 3 };

static lg_status build(lg_model *model)
{
    lg_layer_attrs features = lg_layer_attrs_default();
    lg_layer_attrs targets = lg_layer_attrs_default();
    lg_layer_attrs linear = lg_layer_attrs_default();
    int inputs[2] = {0, 0};
    features.input_shape = LG_SHAPE(NUM_FEATURES);
    targets.input_shape = lg_shape_make(0, NULL);
    targets.input_idx = 1;
    targets.input_dtype = LG_DTYPE_I32;
    linear.num_outputs = NUM_CLASSES;
    lg_status status = lg_model_add(model, "x", LG_LAYER_INPUT, &features, NULL, 0, &inputs[0]);
    if (status == LG_OK) {
        status = lg_model_add(model, "fc", LG_LAYER_LINEAR, &linear, inputs, 1, &inputs[0]);
    }
    if (status == LG_OK) {
        status = lg_model_add(model, "targets", LG_LAYER_INPUT, &targets, NULL, 0, &inputs[1]);
    }
    if (status == LG_OK) {
        status = lg_model_add(model, "loss", LG_LAYER_SOFTMAX_CROSS_ENTROPY, NULL, inputs, 2, NULL);
    }
    return status;
}

static lg_status train(const lg_model *model, double *loss)
{
    const float x[NUM_SAMPLES * NUM_FEATURES] = {1.0f, 2.0f, 3.0f};
    const int32_t targets[NUM_SAMPLES] = {0, 1, 2, 0};
    const void *const tensors[2] = {x, targets};
    lg_trainer_opts opts = lg_trainer_opts_default();
    lg_trainer *trainer = NULL;
    lg_step_result result = {0};
    opts.batch_samples = NUM_SAMPLES;
    lg_status status = lg_trainer_create(&trainer, model, &opts);
    if (status == LG_OK) {
        status = lg_trainer_step(trainer, NUM_SAMPLES, tensors, &result);
    }
    lg_trainer_destroy(trainer);
    *loss = result.loss;
    return status;
}

int main(void)
{
    lg_model *model = NULL;
    double loss = 0.0;
    lg_status status = lg_model_create(&model);
    if (status == LG_OK) {
        status = build(model);
    }
    if (status == LG_OK) {
        status = train(model, &loss);
    }
    lg_model_destroy(model);
    if (status != LG_OK) {
        fprintf(stderr, "%s: %s\n", lg_status_text(status), lg_last_error());
        return lg_status_exit_code(status);
    }
    printf("loss %g, strategy %s\n", loss, lg_strategy_name(0));
    return loss > 0.0 ? 0 : 1;
}
