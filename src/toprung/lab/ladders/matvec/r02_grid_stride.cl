// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements, incx apart, y has M, incy apart
//
//      row 0, G, 2G, ...  work-item 0           G work-items in all,
//      row 1, G + 1, ...  work-item 1           as many as the device can keep busy
//
// Work-group: BM work-items. Any M, N, lda, incx, incy, any number of work-groups.
// Idea: the NDRange no longer follows the size.
// Each work-item walks over rows with the stride of the whole grid.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
gemv(const uint M, const uint N, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict x, const int incx, const float beta,
     __global float *restrict y, const int incy)
{
    for (uint m = get_global_id(0); m < M; m += get_global_size(0)) {
        float acc = 0.0f;
        for (uint n = 0; n < N; ++n) acc += A[(index_t)m * lda + n] * x[(index_t)n * incx];

        float result = alpha * acc;
        if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
        y[(index_t)m * incy] = result;
    }
}
