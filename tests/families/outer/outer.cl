// C = alpha * op(A) * op(B) + beta * C       row-major; op(A) is M x K, op(B) K x N, C M x N; a batch of them in one launch
//
// Work-group: BM x BN work-items; each owns one element of C. Strides are of a row and of an element, so that one text takes every
// layout. Grid: (blocks across, blocks down, batch).

__kernel __attribute__((reqd_work_group_size(BN, BM, 1))) void
outer(__global const float *restrict A, const ulong offset_a, __global const float *restrict B, const ulong offset_b,
      __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint M, const uint N, const uint K,
      const ulong down_a, const ulong on_a, const ulong down_b, const ulong on_b, const ulong ldc, const ulong stride_a,
      const ulong stride_b, const ulong stride_c)
{
    const uint n = get_group_id(0) * BN + get_local_id(0), m = get_group_id(1) * BM + get_local_id(1);
    if (m >= M || n >= N) return;
    const ulong z = get_group_id(2);
    float sum = 0.0f;
    for (uint k = 0; k < K; ++k)
        sum += A[offset_a + z * stride_a + m * down_a + k * on_a] * B[offset_b + z * stride_b + k * down_b + n * on_b];
    __global float *c = C + offset_c + z * stride_c + m * ldc + n;
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
