// dst = transpose of src, zeros beyond it      row-major: src rows x cols (ld), dst dst_rows x dst_cols (dst_ld),
//                                              dst_rows >= cols, dst_cols >= rows
//     +-------+          +-----+
//     | a b c |          | a d |
//     | d e f |    ->    | b e |
//     +-------+          | c f |
//                        +-----+
//
// A work-group turns one BM x BM block through local memory, so that reads and writes both run along rows; the extra column
// keeps the reads down a column of the block out of each other's banks. Any sizes, any leading dimensions.

__kernel __attribute__((reqd_work_group_size(BN, BM, 1))) void
transpose(const int rows, const int cols, __global const float *restrict src, const int ld,
          const int dst_rows, const int dst_cols, __global float *restrict dst, const int dst_ld)
{
    __local float block[BM][BM + 1];
    const int x = get_local_id(0);
    const int y = get_local_id(1);
    const int row0 = get_group_id(0) * BM; // of src; the block's column in dst
    const int col0 = get_group_id(1) * BM;

    block[y][x] = 0.0f;
    if (row0 + y < rows && col0 + x < cols) block[y][x] = src[(size_t)(row0 + y) * ld + col0 + x];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (col0 + y < dst_rows && row0 + x < dst_cols) dst[(size_t)(col0 + y) * dst_ld + row0 + x] = block[x][y];
}
