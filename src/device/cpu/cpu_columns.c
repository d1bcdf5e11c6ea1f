#include "device/cpu/cpu_columns.h"

#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_kernel.h"

#define BLOCK_COLS 64
#define MIN_WIDE_COLS 64
#define MAX_WIDE_COLS 1024
#define MIN_PIECE_ELEMS 8192
#define MAX_PIECES 64

lgi_cpu_columns lgi_cpu_columns_of(int64_t rows, int64_t cols)
{
    lgi_cpu_columns columns = {.rows = rows, .cols = cols, .fold = 1};
    while (columns.fold * cols % 16 != 0 || columns.fold * cols < MIN_WIDE_COLS) {
        columns.fold *= 2;
    }
    if (columns.fold * cols > MAX_WIDE_COLS) {
        columns.fold = 1;
    }
    columns.wide_cols = columns.fold * cols;
    columns.wide_rows = rows / columns.fold;
    columns.rest_elems = rows % columns.fold * cols;
    const int64_t num_pieces = rows * cols / MIN_PIECE_ELEMS;
    columns.num_pieces = num_pieces < 1 ? 1 : num_pieces > MAX_PIECES ? MAX_PIECES : num_pieces;
    return columns;
}

int64_t lgi_cpu_columns_partial_elems(const lgi_cpu_columns *columns, int num_sums)
{
    return lgi_cpu_round_up(columns->num_pieces * num_sums * columns->wide_cols, 16);
}

void lgi_cpu_columns_finish(const lgi_cpu_columns *columns, int num_sums, const float *partials,
                            double *sums)
{
    const int64_t cols = columns->cols;
    for (int64_t i = 0; i < num_sums * cols; i++) {
        sums[i] = 0.0;
    }
    for (int64_t piece = 0; piece < columns->num_pieces; piece++) {
        for (int s = 0; s < num_sums; s++) {
            double *restrict sum = sums + s * cols;
            const float *restrict partial = partials + (piece * num_sums + s) * columns->wide_cols;
            for (int64_t f = 0; f < columns->fold; f++) {
                LGI_CPU_SIMD
                for (int64_t c = 0; c < cols; c++) {
                    sum[c] += (double)partial[f * cols + c];
                }
            }
        }
    }
}

void lgi_cpu_columns_repeat(const lgi_cpu_columns *columns, const float *src, float *dst)
{
    for (int64_t f = 0; f < columns->fold; f++) {
        memcpy(dst + f * columns->cols, src, (size_t)columns->cols * sizeof *src);
    }
}

/* A block of at most BLOCK_COLS columns; `cols` is a constant where it matters. */
static inline __attribute__((always_inline)) void sum_block(const float *restrict src, int64_t rows,
                                                            int64_t stride, int64_t cols,
                                                            float *restrict sums)
{
    float local[BLOCK_COLS];
    LGI_CPU_SIMD
    for (int64_t c = 0; c < cols; c++) {
        local[c] = sums[c];
    }
    for (int64_t r = 0; r < rows; r++) {
        LGI_CPU_SIMD
        for (int64_t c = 0; c < cols; c++) {
            local[c] += src[r * stride + c];
        }
    }
    LGI_CPU_SIMD
    for (int64_t c = 0; c < cols; c++) {
        sums[c] = local[c];
    }
}

static void sum_rows(const float *src, int64_t rows, int64_t cols, float *sums)
{
    int64_t c = 0;
    for (; c + BLOCK_COLS <= cols; c += BLOCK_COLS) {
        sum_block(src + c, rows, cols, BLOCK_COLS, sums + c);
    }
    if (c < cols) {
        sum_block(src + c, rows, cols, cols - c, sums + c);
    }
}

int64_t lgi_cpu_columns_sum_workspace_bytes(const lgi_cpu_columns *columns)
{
    return lgi_cpu_columns_partial_elems(columns, 1) * (int64_t)sizeof(float) +
           columns->cols * (int64_t)sizeof(double);
}

void lgi_cpu_columns_sum(const lgi_cpu_columns *columns, int width, const float *src, float *dst,
                         bool accumulates, void *workspace)
{
    const int64_t wide_cols = columns->wide_cols;
    float *partials = workspace;
    double *sums = (double *)(partials + lgi_cpu_columns_partial_elems(columns, 1));
    LGI_CPU_PARALLEL_FOR(lgi_cpu_useful_width(width, columns->rows * columns->cols))
    for (int64_t piece = 0; piece < columns->num_pieces; piece++) {
        const int64_t begin = lgi_cpu_columns_begin(columns, piece);
        const int64_t end = lgi_cpu_columns_begin(columns, piece + 1);
        float *partial = partials + piece * wide_cols;
        memset(partial, 0, (size_t)wide_cols * sizeof *partial);
        sum_rows(src + begin * wide_cols, end - begin, wide_cols, partial);
        if (piece + 1 == columns->num_pieces) {
            sum_rows(src + end * wide_cols, 1, columns->rest_elems, partial);
        }
    }
    lgi_cpu_columns_finish(columns, 1, partials, sums);
    for (int64_t c = 0; c < columns->cols; c++) {
        dst[c] = accumulates ? dst[c] + (float)sums[c] : (float)sums[c];
    }
}
