// y = alpha * A^T * x + beta * y
// row-major: A is stored N x M (lda); x has N elements, incx apart, y has M, incy apart
//
//              m..m+VA-1
//         n   |==|==|==|==|      DM work-items side by side, each with VA = TM columns of its own,
//       n+1   |==|==|==|==|      and DN of them one below the other
//        ..         |
//         y   |==|==|==|==|      whose sums meet in local memory
//
// Work-group: DM x DN work-items, DN a power of two, for BM = DM * TM elements of y. Any M, N, lda,
// incx, incy, any number of slices. With one slice y is the result, else y takes M sums a slice.
// Idea: the transposed product without a transpose. Sums run down the columns, so work-items lie
// side by side along y, read whole pieces of rows, and need nobody's help but at the end; x is the
// same for all of a row. KU rows are in flight; slices fill the device.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
gemv(const uint M, const uint N, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict x, const int incx, const float beta,
     __global float *restrict y, const int incy)
{
    __local float partial[DN][BM] ALIGNED(VA); // partial[dn][m]
    const uint dm = get_local_id(0) % DM;
    const uint dn = get_local_id(0) / DM;
    const uint m = get_group_id(0) * BM + dm * VA;
    const uint slices = get_num_groups(1);
    // of a slice: whole turns of the loop
    const uint length = ((N - 1) / (slices * BN) + 1) * BN;
    const uint end = get_group_id(1) * length + length < N ? get_group_id(1) * length + length : N;
    uint n = get_group_id(1) * length + dn;

    A += (index_t)n * lda + m;
    x += (index_t)n * incx;
    const index_t down = (index_t)DN * lda; // to this work-item's next row
    const index_t on = (index_t)DN * incx;

    VECTOR(VA) acc = ZERO(VA);
    if (m + VA <= M && lda % VA == 0) {
        for (; n + (KU - 1) * DN < end; n += BN) {
            VECTOR(VA) a[KU];
            UNROLL for (int u = 0; u < KU; ++u) a[u] = READ_V(VA, &A[u * down]);
            UNROLL for (int u = 0; u < KU; ++u) acc += a[u] * x[u * on];
            A += KU * down;
            x += KU * on;
        }
        for (; n < end; n += DN) {
            acc += READ_V(VA, A) * *x;
            A += down;
            x += on;
        }
    } else {
        for (; n < end; n += DN) {
            for (int e = 0; e < VA; ++e)
                if (m + e < M) ELEMENT(acc, e) += A[e] * *x;
            A += down;
            x += on;
        }
    }
    LOCAL_V(VA, &partial[dn][dm * VA]) = acc;
    barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
    for (uint stride = DN / 2; stride > 0; stride /= 2) {
        if (dn < stride)
            LOCAL_V(VA, &partial[dn][dm * VA]) += LOCAL_V(VA, &partial[dn + stride][dm * VA]);
        barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete
    }

    for (uint i = get_local_id(0); i < BM; i += DM * DN) {
        const uint m = get_group_id(0) * BM + i;
        if (m >= M) continue;
        if (slices > 1) {
            y[(index_t)get_group_id(1) * M + m] = partial[0][i];
            continue;
        }
        float result = alpha * partial[0][i];
        if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
        y[(index_t)m * incy] = result;
    }
}
