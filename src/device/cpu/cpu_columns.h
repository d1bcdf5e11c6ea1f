/*
 * Sums over the rows of a matrix [rows, cols], for bias gradients and norms. Narrow matrices are folded: `fold` rows
 * count as one wide row, so that whole vectors are added whatever `cols` is. The rows are cut into pieces whose number
 * depends on the shape only; each piece is summed in f32 by itself, the pieces are added in f64 in their order.
 */
#ifndef LGI_DEVICE_CPU_COLUMNS_H
#define LGI_DEVICE_CPU_COLUMNS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct lgi_cpu_columns {
    int64_t rows;
    int64_t cols;
    int64_t fold;
    int64_t wide_cols;  /* fold * cols */
    int64_t wide_rows;  /* whole wide rows */
    int64_t rest_elems; /* behind them; the last piece adds them too */
    int64_t num_pieces;
} lgi_cpu_columns;

lgi_cpu_columns lgi_cpu_columns_of(int64_t rows, int64_t cols);

/* First wide row of a piece; that of piece `num_pieces` is the end. */
static inline int64_t lgi_cpu_columns_begin(const lgi_cpu_columns *columns, int64_t piece)
{
    return columns->wide_rows * piece / columns->num_pieces;
}

/* Floats that the partial sums of `num_sums` quantities take, as [pieces][num_sums][wide_cols]. */
int64_t lgi_cpu_columns_partial_elems(const lgi_cpu_columns *columns, int num_sums);

/* sums [num_sums][cols]: the partial sums added up. */
void lgi_cpu_columns_finish(const lgi_cpu_columns *columns, int num_sums, const float *partials,
                            double *sums);

/* dst [wide_cols]: `src` [cols] over and over. */
void lgi_cpu_columns_repeat(const lgi_cpu_columns *columns, const float *src, float *dst);

/* Bytes of workspace for lgi_cpu_columns_sum(). */
int64_t lgi_cpu_columns_sum_workspace_bytes(const lgi_cpu_columns *columns);

/* dst [cols] = (or +=) sums of src [rows, cols]. */
void lgi_cpu_columns_sum(const lgi_cpu_columns *columns, int width, const float *src, float *dst,
                         bool accumulates, void *workspace);

#endif
