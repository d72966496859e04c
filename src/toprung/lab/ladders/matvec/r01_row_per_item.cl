// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements, incx apart, y has M, incy apart
//
//         n                  n
//      - - - ->              |
//    m . . . . .   x   x     |    ->   y  one work-item, one element
//      . . . . .             v
//
// Work-group: BM work-items, one for each of BM rows. Any M, N, lda, incx, incy.
// Idea: none yet. Neighbouring work-items read elements that lie a row apart:
// each read of a warp touches 32 lines of memory.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
gemv(const uint M, const uint N, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict x, const int incx, const float beta,
     __global float *restrict y, const int incy)
{
    const uint m = get_global_id(0);
    if (m >= M) return; // the last work-group overhangs y

    float acc = 0.0f;
    for (uint n = 0; n < N; ++n) acc += A[(index_t)m * lda + n] * x[(index_t)n * incx];

    float result = alpha * acc;
    if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
    y[(index_t)m * incy] = result;
}
