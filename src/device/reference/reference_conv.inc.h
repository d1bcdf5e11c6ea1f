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
    int64_t in_map, out_map;     /* elements of one channel */
    const lg_window *window;
} conv_dims;

/* The outputs whose input under one kernel cell lies inside the map: a rectangle of `rows` rows of `length`. */
typedef struct conv_cell {
    int64_t rows, length;
    int64_t in_offset, out_offset; /* of its first pair of elements, in the whole map */
    int64_t in_row, out_row;       /* from one row of the rectangle to the next */
    int64_t stride;                /* from one input of a row to the next */
} conv_cell;

static conv_dims conv_dims_of(const lgi_reference_layer *layer)
{
    const int64_t *in = layer->in_shapes[0].dims;
    const int64_t *out = layer->out_shape.dims;
    const int64_t groups = layer->attrs->groups;
    const conv_dims dims = {.num_samples = layer->num_samples,
                            .in_channels = in[0],
                            .in_size = {in[1], in[2]},
                            .out_channels = out[0],
                            .out_size = {out[1], out[2]},
                            .group_in = in[0] / groups,
                            .group_out = out[0] / groups,
                            .in_map = in[1] * in[2],
                            .out_map = out[1] * out[2],
                            .window = &layer->attrs->window};
    return dims;
}

/* Along `axis` under kernel position `k`: outputs [*begin, *begin + *count) read inputs from *first on. */
static void conv_range(const conv_dims *dims, int axis, int64_t k, int64_t *begin, int64_t *count,
                       int64_t *first)
{
    const int64_t stride = dims->window->stride[axis];
    const int64_t shift = k * dims->window->dilation[axis] - dims->window->pad_begin[axis];
    const int64_t last = dims->in_size[axis] - 1 - shift; /* largest output position times stride */
    int64_t end = last < 0 ? 0 : last / stride + 1;
    end = end < dims->out_size[axis] ? end : dims->out_size[axis];
    *begin = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *count = end > *begin ? end - *begin : 0;
    *first = *begin * stride + shift;
}

static conv_cell conv_cell_of(const conv_dims *dims, int64_t ky, int64_t kx)
{
    int64_t out_y;
    int64_t out_x;
    int64_t in_y;
    int64_t in_x;
    conv_cell cell;
    conv_range(dims, 0, ky, &out_y, &cell.rows, &in_y);
    conv_range(dims, 1, kx, &out_x, &cell.length, &in_x);
    cell.in_offset = in_y * dims->in_size[1] + in_x;
    cell.out_offset = out_y * dims->out_size[1] + out_x;
    cell.in_row = dims->window->stride[0] * dims->in_size[1];
    cell.out_row = dims->out_size[1];
    cell.stride = dims->window->stride[1];
    return cell;
}

static lg_status conv_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const conv_dims dims = conv_dims_of(layer);
    const lg_window *window = dims.window;
    const REAL *bias = layer->attrs->has_bias ? io->param[1] : NULL;
    for (int64_t n = 0; n < dims.num_samples; n++) {
        const REAL *weight = io->param[0];
        for (int64_t o = 0; o < dims.out_channels; o++) {
            REAL *y = (REAL *)io->y + (n * dims.out_channels + o) * dims.out_map;
            for (int64_t i = 0; i < dims.out_map; i++) {
                y[i] = bias != NULL ? bias[o] : 0;
            }
            for (int64_t i = 0; i < dims.group_in; i++) {
                const int64_t c = o / dims.group_out * dims.group_in + i;
                const REAL *x = (const REAL *)io->x[0] + (n * dims.in_channels + c) * dims.in_map;
                for (int64_t k = 0; k < window->kernel[0] * window->kernel[1]; k++) {
                    const conv_cell cell =
                        conv_cell_of(&dims, k / window->kernel[1], k % window->kernel[1]);
                    const REAL w = *weight++;
                    for (int64_t row = 0; row < cell.rows; row++) {
                        add_scaled(y + cell.out_offset + row * cell.out_row, 1, w,
                                   x + cell.in_offset + row * cell.in_row, cell.stride,
                                   cell.length);
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
    const lg_window *window = dims.window;
    REAL *all_dx = io->dx[0];
    for (int64_t i = 0; i < dims.num_samples * dims.in_channels * dims.in_map; i++) {
        all_dx[i] = 0;
    }
    for (int64_t n = 0; n < dims.num_samples; n++) {
        const REAL *weight = io->param[0];
        for (int64_t o = 0; o < dims.out_channels; o++) {
            const REAL *dy = (const REAL *)io->dy + (n * dims.out_channels + o) * dims.out_map;
            for (int64_t i = 0; i < dims.group_in; i++) {
                const int64_t c = o / dims.group_out * dims.group_in + i;
                REAL *dx = all_dx + (n * dims.in_channels + c) * dims.in_map;
                for (int64_t k = 0; k < window->kernel[0] * window->kernel[1]; k++) {
                    const conv_cell cell =
                        conv_cell_of(&dims, k / window->kernel[1], k % window->kernel[1]);
                    const REAL w = *weight++;
                    for (int64_t row = 0; row < cell.rows; row++) {
                        add_scaled(dx + cell.in_offset + row * cell.in_row, cell.stride, w,
                                   dy + cell.out_offset + row * cell.out_row, 1, cell.length);
                    }
                }
            }
        }
    }
    return LG_OK;
}

/* Sum over samples and output positions of dy of channel `o` times the input of channel `c` under one kernel cell. */
static REAL conv_weight_grad_cell(const conv_dims *dims, const lgi_layer_io *io, int64_t o,
                                  int64_t c, const conv_cell *cell)
{
    REAL sum = 0;
    for (int64_t n = 0; n < dims->num_samples; n++) {
        const REAL *x = (const REAL *)io->x[0] + (n * dims->in_channels + c) * dims->in_map;
        const REAL *dy = (const REAL *)io->dy + (n * dims->out_channels + o) * dims->out_map;
        for (int64_t row = 0; row < cell->rows; row++) {
            sum += dot(dy + cell->out_offset + row * cell->out_row,
                       x + cell->in_offset + row * cell->in_row, cell->stride, cell->length);
        }
    }
    return sum;
}

static REAL conv_bias_grad(const conv_dims *dims, const lgi_layer_io *io, int64_t o)
{
    REAL sum = 0;
    for (int64_t n = 0; n < dims->num_samples; n++) {
        const REAL *dy = (const REAL *)io->dy + (n * dims->out_channels + o) * dims->out_map;
        REAL map_sum = 0;
        for (int64_t i = 0; i < dims->out_map; i++) {
            map_sum += dy[i];
        }
        sum += map_sum;
    }
    return sum;
}

static lg_status conv_weight_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const conv_dims dims = conv_dims_of(layer);
    const lg_window *window = dims.window;
    int64_t at = 0;
    for (int64_t o = 0; o < dims.out_channels && io->dparam[0] != NULL; o++) {
        for (int64_t i = 0; i < dims.group_in; i++) {
            const int64_t c = o / dims.group_out * dims.group_in + i;
            for (int64_t k = 0; k < window->kernel[0] * window->kernel[1]; k++) {
                const conv_cell cell =
                    conv_cell_of(&dims, k / window->kernel[1], k % window->kernel[1]);
                store_grad(io, 0, at++, conv_weight_grad_cell(&dims, io, o, c, &cell));
            }
        }
    }
    for (int64_t o = 0; o < dims.out_channels && layer->attrs->has_bias; o++) {
        store_grad(io, 1, o, conv_bias_grad(&dims, io, o));
    }
    return LG_OK;
}
