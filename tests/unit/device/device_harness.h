/*
 * Runs single layers on any backend: the same cases (kind, attributes, shapes, random data) on each, so that a backend
 * can be compared with the reference in f64, or with finite differences.
 *
 * The harness does what an executor does and no more: operands that the facts do not ask for are NULL, results are
 * poisoned with NaN before they are written, layouts are changed by explicit reorders. What goes wrong in it fails the
 * running cmocka test with the case's name.
 */
#ifndef TEST_DEVICE_HARNESS_H
#define TEST_DEVICE_HARNESS_H

#include "device/device.h"

#define DEVICE_CASE_MAX_INPUTS 3
#define DEVICE_MAX_BLOCKS 48

/* Widths that every layer is prepared for. */
#define DEVICE_NUM_WIDTHS 2
extern const int device_widths[DEVICE_NUM_WIDTHS];

/* One layer at one size. Inputs are f32 unless `in_dtypes` says I32; ids and targets are drawn in their range. */
typedef struct device_case {
    const char *name;
    lg_layer_kind kind;
    lg_graph_mode mode; /* TRAIN or EVAL */
    int64_t num_samples;
    int64_t first_sample; /* of the micro-batch within the step */
    int num_inputs;
    lg_shape in_shapes[DEVICE_CASE_MAX_INPUTS]; /* of one sample */
    lg_dtype in_dtypes[DEVICE_CASE_MAX_INPUTS];
    lg_layer_attrs attrs;
    bool accumulates;            /* parameter gradients are added to what is there */
    bool has_fixed_params;       /* stored row-major whatever the layer would like: tied */
    bool is_first_layer;         /* nobody wants the gradient of the input */
    bool has_ignored_targets;    /* about a quarter of the targets is attrs.ignore_index */
    bool is_sample0_all_padding; /* the keep mask of sample 0 is zero */
    float input_scale;           /* deviation of the inputs; 0: 1 */
    double condition; /* how much the layer enlarges relative errors by its mathematics; 0: 1 */
} device_case;

/* All cases. */
const device_case *device_cases(int *num_cases);

/* Length of the longest sum in any of the layer's phases: what tolerances are made of. */
int64_t device_case_longest_sum(const device_case *c);

/* Random host data of a case: the same for each backend. */
typedef struct device_data {
    void *inputs[DEVICE_CASE_MAX_INPUTS]; /* all samples of the step: first_sample + num_samples */
    float *dy;
    float *params[LG_MAX_LAYER_PARAMS];
    float *dparams[LG_MAX_LAYER_PARAMS]; /* what parameter gradients are added to */
    float *states[LG_MAX_LAYER_STATES];
} device_data;

typedef struct device_options {
    int width_idx;
    bool is_in_place; /* use the memory of input 0 and of dy for results where the facts allow it */
    bool
        has_conv_layouts; /* the producers leave maps in the layout that a convolution leaves them in */
    bool has_params_of_other_size; /* parameters are stored as a larger micro-batch chose */
} device_options;

/* A layer prepared on a device, with its operands. */
typedef struct device_session {
    const device_case *c;
    const struct lgi_device_ops *ops;
    device_options options;
    device_data data;
    lg_model *model;
    const lg_layer_info *info;
    lgi_device *device;
    lgi_device_layer *layer;
    lgi_device_layer *input_layers[DEVICE_CASE_MAX_INPUTS];
    lgi_layer_facts facts;
    lgi_layer_facts input_facts[DEVICE_CASE_MAX_INPUTS];
    lg_shape in_shapes[DEVICE_CASE_MAX_INPUTS]; /* with the batch dimension */
    lg_shape out_shape;                         /* with the batch dimension */
    lg_shape param_shapes[LG_MAX_LAYER_PARAMS];
    const void *batch[DEVICE_CASE_MAX_INPUTS];
    lgi_step step;

    /* device memory; as the facts say */
    void *x[DEVICE_CASE_MAX_INPUTS];
    void *dx[DEVICE_CASE_MAX_INPUTS]; /* NULL: not wanted */
    void *y, *dy;
    void *param[LG_MAX_LAYER_PARAMS];
    void *dparam[LG_MAX_LAYER_PARAMS];
    void *stash[LGI_MAX_STASHES];
    void *state[LG_MAX_LAYER_STATES];
    lgi_loss_record loss;
    struct {
        void *memory;
        int64_t bytes;
    } blocks[DEVICE_MAX_BLOCKS];
    int num_blocks;
} device_session;

/* Prepares the case on a new device of `ops` and fills its operands. */
void device_session_create(device_session *session, const device_case *c,
                           const struct lgi_device_ops *ops, const device_options *options);
void device_session_destroy(device_session *session);

/* FORWARD, or LOSS with the gradient of the logits. */
void device_session_forward(device_session *session);

/* The gradients that the layer has; after a forward. */
void device_session_backward(device_session *session);

/* Results on the host, f32 row-major; arrays that the case does not have are NULL. */
typedef struct device_result {
    float *y;
    float *dx[DEVICE_CASE_MAX_INPUTS];
    float *dparam[LG_MAX_LAYER_PARAMS];
    float *state[LG_MAX_LAYER_STATES]; /* running statistics after this micro-batch was folded in */
    int64_t num_y, num_dx[DEVICE_CASE_MAX_INPUTS], num_dparam[LG_MAX_LAYER_PARAMS], num_state;
    lgi_loss_record loss;
} device_result;

/* Runs all phases and reads the results. */
void device_case_run(device_result *result, const device_case *c, const struct lgi_device_ops *ops,
                     const device_options *options);
void device_result_destroy(device_result *result);

/*
 * Compares with the result `expected` of the reference in f64; prints each tensor that differs by more than
 * `tolerance` times its largest element (at least 1) and returns how many there are. `label` says what `actual` is.
 */
int device_result_compare(const device_case *c, const char *label, const device_result *actual,
                          const device_result *expected, double tolerance);

/* Tells whether two results are equal bit for bit. */
bool device_result_is_same(const device_result *a, const device_result *b);

#endif
