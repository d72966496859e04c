// C = alpha * op(A) * op(B) + beta * C       row-major; op(A) is M x K, op(B) K x N; a batch of them in one launch
//
//      m  -> | o |      one work-item an element of C, whatever the device, the shape and the strides:
//              ^        what is always right, and what the others are measured by
//              n
//
// Element (m, k) of op(A) lies at m * down_a + k * on_a, element (k, n) of op(B) at k * down_b + n * on_b.
// Idea: none. beta = 0 never reads C.

#define CHAIN 32 // products of a sum that are added up by themselves, as in include/block.cl

__kernel __attribute__((reqd_work_group_size(BM * BN, 1, 1))) void
gemm(__global const float *A, const ulong offset_a, __global const float *B, const ulong offset_b,
     __global float *restrict C, const ulong offset_c, const float alpha, const float beta,
     const uint M, const uint N, const uint K, const ulong batch, const ulong down_a, const ulong on_a, const ulong stride_a,
     const ulong down_b, const ulong on_b, const ulong stride_b, const ulong ldc, const ulong stride_c)
{
    wait_for_previous();
    const ulong area = (ulong)M * N;
    const ulong step = (ulong)get_num_groups(0) * (BM * BN);
    for (ulong i = (ulong)get_group_id(0) * (BM * BN) + get_local_id(0); i < area * batch; i += step) {
        const ulong which = i / area;
        const ulong m = i % area / N;
        const ulong n = i % area % N;
        __global const float *a = A + (offset_a + which * stride_a + m * down_a);
        __global const float *b = B + (offset_b + which * stride_b + n * on_b);
        __global float *c = C + (offset_c + which * stride_c + m * ldc + n);
        float whole = 0.0f;
        for (uint k = 0, end = (K - 1) % CHAIN + 1; k < K; end += CHAIN) {
            float acc = 0.0f;
            for (; k < end; ++k) acc += a[k * on_a] * b[k * down_b];
            whole += acc;
        }
        float result = alpha * whole;
        if (beta != 0.0f) result = MULTIPLY_ADD(1, beta, *c, result);
        *c = result;
    }
}
