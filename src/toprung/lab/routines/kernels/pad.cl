// dst = src in its upper left corner, zeros elsewhere          row-major: src rows x cols (ld), dst dst_rows x dst_cols (dst_ld)
//
//     +-----+          +-----+---+
//     | src |    ->    | src | 0 |      A smaller dst crops: what lies outside it is left out.
//     +-----+          +-----+ 0 |
//                      |  0  0   |
//                      +---------+
//
// One work-item an element of dst. Any sizes, any leading dimensions.

__kernel __attribute__((reqd_work_group_size(BN, BM, 1))) void
pad(const int rows, const int cols, __global const float *restrict src, const int ld,
    const int dst_rows, const int dst_cols, __global float *restrict dst, const int dst_ld)
{
    const int col = get_global_id(0);
    const int row = get_global_id(1);
    if (row >= dst_rows || col >= dst_cols) return;
    float value = 0.0f;
    if (row < rows && col < cols) value = src[(size_t)row * ld + col];
    dst[(size_t)row * dst_ld + col] = value;
}
