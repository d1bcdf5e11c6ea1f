/*
 * Pooling, on REAL. Shapes: x [N,C,H,W], y [N,C,OH,OW] or [N,C]. Each window touches the map (the model sees to
 * that), so a maximum and a mean exist.
 */

/* The cells of a window that lie inside the map: rows [begin[0], end[0]), columns [begin[1], end[1]). */
typedef struct pool_cells {
    int64_t begin[2], end[2];
} pool_cells;

static pool_cells pool_cells_of(const lgi_reference_layer *layer, int64_t oy, int64_t ox)
{
    const lg_window *window = &layer->attrs->window;
    const int64_t at[2] = {oy, ox};
    pool_cells cells;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t first = at[axis] * window->stride[axis] - window->pad_begin[axis];
        const int64_t last = first + window->kernel[axis];
        const int64_t size = layer->in_shapes[0].dims[1 + axis];
        cells.begin[axis] = first > 0 ? first : 0;
        cells.end[axis] = last < size ? last : size;
    }
    return cells;
}

static int64_t pool_num_cells(const pool_cells *cells)
{
    return (cells->end[0] - cells->begin[0]) * (cells->end[1] - cells->begin[1]);
}

/* The first of equal maxima wins; a NaN counts as larger than all. The stash keeps its position in the map, i32. */
static lg_status max_pool_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const lg_shape *in = &layer->in_shapes[0];
    const lg_shape *out = &layer->out_shape;
    REAL *y = io->y;
    int32_t *position = io->stash[0];
    for (int64_t map = 0; map < layer->num_samples * out->dims[0]; map++) {
        const REAL *x = (const REAL *)io->x[0] + map * map_elems(in);
        for (int64_t o = 0; o < map_elems(out); o++) {
            const pool_cells cells = pool_cells_of(layer, o / out->dims[2], o % out->dims[2]);
            int64_t best = cells.begin[0] * in->dims[2] + cells.begin[1];
            for (int64_t iy = cells.begin[0]; iy < cells.end[0]; iy++) {
                for (int64_t ix = cells.begin[1]; ix < cells.end[1]; ix++) {
                    const int64_t i = iy * in->dims[2] + ix;
                    if (x[i] > x[best] || (isnan(x[i]) && !isnan(x[best]))) {
                        best = i;
                    }
                }
            }
            y[map * map_elems(out) + o] = x[best];
            if (position != NULL) {
                position[map * map_elems(out) + o] = (int32_t)best;
            }
        }
    }
    return LG_OK;
}

static lg_status max_pool_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t in_map = map_elems(&layer->in_shapes[0]);
    const int64_t out_map = map_elems(&layer->out_shape);
    const int32_t *position = io->stash[0];
    const REAL *dy = io->dy;
    for (int64_t map = 0; map < layer->num_samples * layer->out_shape.dims[0]; map++) {
        REAL *dx = (REAL *)io->dx[0] + map * in_map;
        for (int64_t i = 0; i < in_map; i++) {
            dx[i] = 0;
        }
        for (int64_t o = map * out_map; o < (map + 1) * out_map; o++) {
            dx[position[o]] += dy[o];
        }
    }
    return LG_OK;
}

static lg_status avg_pool_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const lg_shape *in = &layer->in_shapes[0];
    const lg_shape *out = &layer->out_shape;
    REAL *y = io->y;
    for (int64_t map = 0; map < layer->num_samples * out->dims[0]; map++) {
        const REAL *x = (const REAL *)io->x[0] + map * map_elems(in);
        for (int64_t o = 0; o < map_elems(out); o++) {
            const pool_cells cells = pool_cells_of(layer, o / out->dims[2], o % out->dims[2]);
            REAL sum = 0;
            for (int64_t iy = cells.begin[0]; iy < cells.end[0]; iy++) {
                for (int64_t ix = cells.begin[1]; ix < cells.end[1]; ix++) {
                    sum += x[iy * in->dims[2] + ix];
                }
            }
            y[map * map_elems(out) + o] = sum / (REAL)pool_num_cells(&cells);
        }
    }
    return LG_OK;
}

static lg_status avg_pool_input_grad(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const lg_shape *in = &layer->in_shapes[0];
    const lg_shape *out = &layer->out_shape;
    const REAL *dy = io->dy;
    for (int64_t map = 0; map < layer->num_samples * out->dims[0]; map++) {
        REAL *dx = (REAL *)io->dx[0] + map * map_elems(in);
        for (int64_t i = 0; i < map_elems(in); i++) {
            dx[i] = 0;
        }
        for (int64_t o = 0; o < map_elems(out); o++) {
            const pool_cells cells = pool_cells_of(layer, o / out->dims[2], o % out->dims[2]);
            const REAL share = dy[map * map_elems(out) + o] / (REAL)pool_num_cells(&cells);
            for (int64_t iy = cells.begin[0]; iy < cells.end[0]; iy++) {
                for (int64_t ix = cells.begin[1]; ix < cells.end[1]; ix++) {
                    dx[iy * in->dims[2] + ix] += share;
                }
            }
        }
    }
    return LG_OK;
}

static lg_status global_avg_pool_forward(const lgi_reference_layer *layer, const lgi_layer_io *io)
{
    const int64_t in_map = map_elems(&layer->in_shapes[0]);
    const REAL *x = io->x[0];
    REAL *y = io->y;
    for (int64_t map = 0; map < layer->num_samples * layer->out_shape.dims[0]; map++) {
        REAL sum = 0;
        for (int64_t i = 0; i < in_map; i++) {
            sum += x[map * in_map + i];
        }
        y[map] = sum / (REAL)in_map;
    }
    return LG_OK;
}

static lg_status global_avg_pool_input_grad(const lgi_reference_layer *layer,
                                            const lgi_layer_io *io)
{
    const int64_t in_map = map_elems(&layer->in_shapes[0]);
    const REAL *dy = io->dy;
    REAL *dx = io->dx[0];
    for (int64_t map = 0; map < layer->num_samples * layer->out_shape.dims[0]; map++) {
        for (int64_t i = 0; i < in_map; i++) {
            dx[map * in_map + i] = dy[map] / (REAL)in_map;
        }
    }
    return LG_OK;
}
