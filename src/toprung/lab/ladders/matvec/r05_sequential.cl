// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements, incx apart, y has M, incy apart
//
//     partial  10   1   8  -1   0  -2   3   5       stride 4: the first half takes in
//               |   |   |   |  /   /   /   /        the second, element by element
//              10  -1  11   4                       stride 2: neighbouring work-items,
//               |   |  /   /                        neighbouring banks
//              21   3                               stride 1
//
// Work-group: DN work-items, DN a power of two.
// Any M, N, lda, incx, incy, any number of work-groups.
// Idea: sequential addressing. The tree folds the array in halves: no bank conflicts, and whole
// warps fall idle, not every other lane.

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

        for (uint stride = DN / 2; stride > 0; stride /= 2) {
            if (tid < stride) partial[tid] += partial[tid + stride];
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
