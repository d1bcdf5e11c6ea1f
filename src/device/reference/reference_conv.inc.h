/*
 * Convolution, on REAL. Shapes: x [N,C,H,W], y [N,O,OH,OW], weight [O,C/groups,KH,KW], bias [O]. The three phases
 * walk the same nest (sample, output channel, input channel of its group, kernel cell, row) and differ in what they do
 * with a row: the sums run in the order of this nest.
 */

typedef struct conv_dims {
    int64_t num_samples;
    int64_t in_channels, in_size[2];
    int64_t out_channels, out_size[2];
    int64_t group_in, group_out; /* channels of one group */
    const lg_window *window;
} conv_dims;

/* Where one kernel cell meets one row: y[out_begin..out_end) reads x from in_begin on, `stride` apart. */
typedef struct conv_row {
    int64_t in_offset, out_offset; /* of the first pair of elements, in the whole map */
    int64_t length;
    int64_t stride;
} conv_row;

static conv_dims conv_dims_of(const lgi_reference_layer *layer)
{
    const int64_t *in = layer->in_shapes[0].dims;
    const int64_t *out = layer->out_shape.dims;
    const int64_t groups = layer->attrs->groups;
    const conv_dims dims = {
        layer->num_samples, in[0],          {in[1], in[2]},  out[0],
        {out[1], out[2]},   in[0] / groups, out[0] / groups, &layer->attrs->window};
    return dims;
}

/* The outputs [*begin, *end) of dimension `axis` whose input under kernel cell `cell` lies inside the map. */
static void window_range(const lg_window *window, int axis, int64_t cell, int64_t in_size,
                         int64_t out_size, int64_t *begin, int64_t *end)
{
    const int64_t stride = window->stride[axis];
    const int64_t shift = cell * window->dilation[axis] - window->pad_begin[axis];
    const int64_t last = in_size - 1 - shift; /* largest output position times stride */
    *begin = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *end = last < 0 ? 0 : last / stride + 1;
    if (*end > out_size) {
        *end = out_size;
    }
}

/* The row of output row `out_y` under kernel cell (ky, kx); length <= 0 if it lies in the padding. */
static conv_row conv_row_of(const conv_dims *dims, int64_t ky, int64_t kx, int64_t out_y)
{
    const lg_window *window = dims->window;
    conv_row row = {0, 0, 0, window->stride[1]};
    const int64_t in_y =
        out_y * window->stride[0] + ky * window->dilation[0] - window->pad_begin[0];
    if (in_y < 0 || in_y >= dims->in_size[0]) {
        return row;
    }
    int64_t begin;
    int64_t end;
    window_range(window, 1, kx, dims->in_size[1], dims->out_size[1], &begin, &end);
    const int64_t in_x = begin * row.stride + kx * window->dilation[1] - window->pad_begin[1];
    row.in_offset = in_y * dims->in_size[1] + in_x;
    row.out_offset = out_y * dims->out_size[1] + begin;
    row.length = end - begin;
    return row;
}

static lg_status conv_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const conv_dims dims = conv_dims_of(layer);
    const int64_t in_map = dims.in_size[0] * dims.in_size[1];
    const int64_t out_map = dims.out_size[0] * dims.out_size[1];
    const REAL *bias = layer->attrs->has_bias ? io->param[1] : NULL;
    for (int64_t n = 0; n < dims.num_samples; n++) {
        for (int64_t o = 0; o < dims.out_channels; o++) {
            const REAL *weight = io->param[0];
            weight += o * dims.group_in * dims.window->kernel[0] * dims.window->kernel[1];
            REAL *y = (REAL *)io->y + (n * dims.out_channels + o) * out_map;
            for (int64_t i = 0; i < out_map; i++) {
                y[i] = bias != NULL ? bias[o] : 0;
            }
            for (int64_t i = 0; i < dims.group_in; i++) {
                const int64_t c = o / dims.group_out * dims.group_in + i;
                const REAL *x = (const REAL *)io->x[0] + (n * dims.in_channels + c) * in_map;
                for (int64_t ky = 0; ky < dims.window->kernel[0]; ky++) {
                    for (int64_t kx = 0; kx < dims.window->kernel[1]; kx++) {
                        const REAL w = *weight++;
                        for (int64_t oy = 0; oy < dims.out_size[0]; oy++) {
                            const conv_row row = conv_row_of(&dims, ky, kx, oy);
                            for (int64_t j = 0; j < row.length; j++) {
                                y[row.out_offset + j] += w * x[row.in_offset + j * row.stride];
                            }
                        }
                    }
                }
            }
        }
    }
    return LG_OK;
}

static lg_status conv_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const conv_dims dims = conv_dims_of(layer);
    const int64_t in_map = dims.in_size[0] * dims.in_size[1];
    const int64_t out_map = dims.out_size[0] * dims.out_size[1];
    REAL *all_dx = io->dx[0];
    for (int64_t i = 0; i < dims.num_samples * dims.in_channels * in_map; i++) {
        all_dx[i] = 0;
    }
    for (int64_t n = 0; n < dims.num_samples; n++) {
        for (int64_t o = 0; o < dims.out_channels; o++) {
            const REAL *weight = io->param[0];
            weight += o * dims.group_in * dims.window->kernel[0] * dims.window->kernel[1];
            const REAL *dy = (const REAL *)io->dy + (n * dims.out_channels + o) * out_map;
            for (int64_t i = 0; i < dims.group_in; i++) {
                const int64_t c = o / dims.group_out * dims.group_in + i;
                REAL *dx = all_dx + (n * dims.in_channels + c) * in_map;
                for (int64_t ky = 0; ky < dims.window->kernel[0]; ky++) {
                    for (int64_t kx = 0; kx < dims.window->kernel[1]; kx++) {
                        const REAL w = *weight++;
                        for (int64_t oy = 0; oy < dims.out_size[0]; oy++) {
                            const conv_row row = conv_row_of(&dims, ky, kx, oy);
                            for (int64_t j = 0; j < row.length; j++) {
                                dx[row.in_offset + j * row.stride] += w * dy[row.out_offset + j];
                            }
                        }
                    }
                }
            }
        }
    }
    return LG_OK;
}

/* Sum over samples and output positions of dy times the input under kernel cell (ky, kx). */
static REAL conv_weight_grad_cell(const conv_dims *dims, const lgi_layer_io *io, int64_t o,
                                  int64_t c, int64_t ky, int64_t kx)
{
    const int64_t in_map = dims->in_size[0] * dims->in_size[1];
    const int64_t out_map = dims->out_size[0] * dims->out_size[1];
    REAL sum = 0;
    for (int64_t n = 0; n < dims->num_samples; n++) {
        const REAL *x = (const REAL *)io->x[0] + (n * dims->in_channels + c) * in_map;
        const REAL *dy = (const REAL *)io->dy + (n * dims->out_channels + o) * out_map;
        for (int64_t oy = 0; oy < dims->out_size[0]; oy++) {
            const conv_row row = conv_row_of(dims, ky, kx, oy);
            REAL row_sum = 0;
            for (int64_t j = 0; j < row.length; j++) {
                row_sum += dy[row.out_offset + j] * x[row.in_offset + j * row.stride];
            }
            sum += row_sum;
        }
    }
    return sum;
}

static lg_status conv_weight_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const conv_dims dims = conv_dims_of(layer);
    const int64_t out_map = dims.out_size[0] * dims.out_size[1];
    REAL *dweight = io->dparam[0];
    for (int64_t o = 0; o < dims.out_channels && dweight != NULL; o++) {
        for (int64_t i = 0; i < dims.group_in; i++) {
            const int64_t c = o / dims.group_out * dims.group_in + i;
            for (int64_t ky = 0; ky < dims.window->kernel[0]; ky++) {
                for (int64_t kx = 0; kx < dims.window->kernel[1]; kx++) {
                    store_grad(dweight++, conv_weight_grad_cell(&dims, io, o, c, ky, kx),
                               io->accumulates_param[0]);
                }
            }
        }
    }
    REAL *dbias = layer->attrs->has_bias ? io->dparam[1] : NULL;
    for (int64_t o = 0; o < dims.out_channels && dbias != NULL; o++) {
        REAL sum = 0;
        for (int64_t n = 0; n < dims.num_samples; n++) {
            const REAL *dy = (const REAL *)io->dy + (n * dims.out_channels + o) * out_map;
            REAL map_sum = 0;
            for (int64_t i = 0; i < out_map; i++) {
                map_sum += dy[i];
            }
            sum += map_sum;
        }
        store_grad(dbias + o, sum, io->accumulates_param[1]);
    }
    return LG_OK;
}
