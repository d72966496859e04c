// C = beta * C          row-major: C is M x N, a row's elements on_c apart, rows ldc, matrices of the batch stride_c
//
// What is left of C = alpha * A * B + beta * C when alpha = 0 or K = 0: A and B are not read, and with beta = 0 neither is C.
// Work-items walk over the elements. Any sizes, any strides.

__kernel __attribute__((reqd_work_group_size(BM * BN, 1, 1))) void
scale(__global float *restrict C, const ulong offset_c, const float beta, const uint M, const uint N, const ulong batch,
      const ulong ldc, const ulong on_c, const ulong stride_c)
{
    const ulong area = (ulong)M * N;
    const ulong step = (ulong)get_num_groups(0) * (BM * BN);
    for (ulong i = (ulong)get_group_id(0) * (BM * BN) + get_local_id(0); i < area * batch; i += step) {
        const ulong c = offset_c + i / area * stride_c + i % area / N * ldc + i % area % N * on_c;
        float result = 0.0f;
        if (beta != 0.0f) result = beta * C[c];
        C[c] = result;
    }
}
