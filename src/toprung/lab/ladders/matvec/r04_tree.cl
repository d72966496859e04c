// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements, incx apart, y has M, incy apart
//
//     partial  10   1   8  -1   0  -2   3   5       stride 1: element 2s * tid takes in
//               |  /    |  /    |  /    |  /        its neighbour s further on
//              11       7      -2       8           stride 2
//               |      /        |      /
//              18               6                   stride 4: work-items 2s floats apart
//                                                   meet in the same banks
//
// Work-group: DN work-items, DN a power of two.
// Any M, N, lda, incx, incy, any number of work-groups.
// Idea: a parallel reduction. The partial sums are added in a tree: log2(DN) steps in place of DN.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
gemv(const uint M, const uint N, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict x, const int incx, const float beta,
     __global float *restrict y, const int incy)
{
    __local float partial[DN];
    const uint tid = get_local_id(0);

    for (uint m = get_group_id(0); m < M; m += get_num_groups(0)) {
        float acc = 0.0f;
        for (uint n = tid; n < N; n += DN) acc += A[(index_t)m * lda + n] * x[(index_t)n * incx];
        partial[tid] = acc;
        barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete

        for (uint stride = 1; stride < DN; stride *= 2) {
            const uint i = 2 * stride * tid;
            if (i < DN) partial[i] += partial[i + stride];
            barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete
        }

        if (tid == 0) {
            float result = alpha * partial[0];
            if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
            y[(index_t)m * incy] = result;
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }
}
