// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements, incx apart, y has M, incy apart
//
//             tid   tid + DN
//              |        |
//    m  . . . .|. . . . |. .     one work-group, one row at a time: neighbours read neighbours
//
//       partial[0 .. DN-1]  ->   work-item 0 adds them all
//
// Work-group: DN work-items. Any M, N, lda, incx, incy, any number of work-groups.
// Idea: coalesced reads. A work-group shares a row, and one read of a warp is one piece of memory.
// The DN partial sums meet in local memory, where one work-item adds them while the others wait.

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

        if (tid == 0) {
            float sum = 0.0f;
            for (uint i = 0; i < DN; ++i) sum += partial[i];
            float result = alpha * sum;
            if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
            y[(index_t)m * incy] = result;
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }
}
