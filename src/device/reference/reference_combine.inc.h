/* Layers that move, join or weigh whole tensors: input, flatten, add, concat, channel scale; on REAL. */

/* Copies the micro-batch's samples out of the batch, which the host keeps in f32 or i32. */
static lg_status input_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t sample_elems = lg_shape_num_elems(&layer->out_shape);
    const int64_t num_elems = layer->num_samples * sample_elems;
    const void *batch = io->step->inputs[layer->attrs->input_idx];
    if (layer->out_dtype == LG_DTYPE_I32) {
        const int32_t *src = (const int32_t *)batch + io->first_sample * sample_elems;
        memcpy(io->y, src, (size_t)num_elems * sizeof *src);
        return LG_OK;
    }
    const float *src = (const float *)batch + io->first_sample * sample_elems;
    REAL *y = io->y;
    for (int64_t i = 0; i < num_elems; i++) {
        y[i] = (REAL)src[i];
    }
    return LG_OK;
}

static lg_status flatten_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    memmove(io->y, io->x[0], (size_t)num_elems * sizeof(REAL));
    return LG_OK;
}

/* Gradient of a layer that passes it through: a copy into every dx that is wanted. */
static lg_status passing_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    for (int input = 0; input < layer->num_inputs; input++) {
        if (io->dx[input] != NULL) {
            memmove(io->dx[input], io->dy, (size_t)num_elems * sizeof(REAL));
        }
    }
    return LG_OK;
}

/* Element by element, so that the result may lie in the memory of input 0. */
static lg_status add_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    const bool is_relu_fused = layer->attrs->activation == LG_ACTIVATION_RELU;
    REAL *y = io->y;
    for (int64_t i = 0; i < num_elems; i++) {
        REAL sum = ((const REAL *)io->x[0])[i];
        for (int input = 1; input < layer->num_inputs; input++) {
            sum += ((const REAL *)io->x[input])[i];
        }
        y[i] = is_relu_fused ? relu(sum) : sum;
    }
    return LG_OK;
}

/* With a fused ReLU there is one gradient for all inputs: dx[0]. */
static lg_status add_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    if (layer->attrs->activation != LG_ACTIVATION_RELU) {
        return passing_input_grad(layer, io);
    }
    const int64_t num_elems = layer->num_samples * lg_shape_num_elems(&layer->out_shape);
    REAL *dx = io->dx[0];
    for (int64_t i = 0; i < num_elems; i++) {
        dx[i] = unfused_grad(io->dy, io->y, true, i);
    }
    return LG_OK;
}

static lg_status concat_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    REAL *y = io->y;
    for (int64_t n = 0; n < layer->num_samples; n++) {
        for (int input = 0; input < layer->num_inputs; input++) {
            const int64_t part_elems = lg_shape_num_elems(&layer->in_shapes[input]);
            memcpy(y, (const REAL *)io->x[input] + n * part_elems,
                   (size_t)part_elems * sizeof(REAL));
            y += part_elems;
        }
    }
    return LG_OK;
}

static lg_status concat_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const REAL *dy = io->dy;
    for (int64_t n = 0; n < layer->num_samples; n++) {
        for (int input = 0; input < layer->num_inputs; input++) {
            const int64_t part_elems = lg_shape_num_elems(&layer->in_shapes[input]);
            if (io->dx[input] != NULL) {
                memcpy((REAL *)io->dx[input] + n * part_elems, dy,
                       (size_t)part_elems * sizeof(REAL));
            }
            dy += part_elems;
        }
    }
    return LG_OK;
}

/* x [N,C,S], scale [N,C]. */
static lg_status channel_scale_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t in_map = map_elems(&layer->out_shape);
    const REAL *x = io->x[0];
    const REAL *scale = io->x[1];
    REAL *y = io->y;
    for (int64_t map = 0; map < layer->num_samples * layer->out_shape.dims[0]; map++) {
        for (int64_t i = map * in_map; i < (map + 1) * in_map; i++) {
            y[i] = x[i] * scale[map];
        }
    }
    return LG_OK;
}

static lg_status channel_scale_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t in_map = map_elems(&layer->out_shape);
    const REAL *x = io->x[0];
    const REAL *scale = io->x[1];
    const REAL *dy = io->dy;
    REAL *dx = io->dx[0];
    REAL *dscale = io->dx[1];
    for (int64_t map = 0; map < layer->num_samples * layer->out_shape.dims[0]; map++) {
        REAL sum = 0;
        for (int64_t i = map * in_map; i < (map + 1) * in_map; i++) {
            sum += dy[i] * x[i];
            if (dx != NULL) {
                dx[i] = dy[i] * scale[map];
            }
        }
        if (dscale != NULL) {
            dscale[map] = sum;
        }
    }
    return LG_OK;
}
