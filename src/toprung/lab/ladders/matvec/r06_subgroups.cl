// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements, incx apart, y has M, incy apart
//
//     sub-group 0    sub-group 1          lanes add each other's registers: log2(SUBGROUP) steps,
//     [........]     [........]   ...     no barrier, no local memory
//         |              |
//     partial[0]     partial[1]   ...     the first sub-group adds these the same way
//
// Work-group: DN work-items, DN a power of two and whole sub-groups.
// Any M, N, lda, incx, incy, any number of work-groups.
// Idea: reduction within sub-groups. Two barriers a row in place of log2(DN) + 2. Lanes exchange
// values by an operation that says so (SHUFFLE=1); nothing is assumed of work-items that merely
// happen to run in step. Where there is none, rung 5's tree serves.

// The sum of acc over the work-group, in work-item 0; the others get anything. All must call it.
float group_sum(float acc, LPTR float *partial, const uint tid)
{
#if SHUFFLE
    for (uint stride = SUBGROUP / 2; stride > 0; stride /= 2)
        acc += LANE_READ(acc, (tid % SUBGROUP) ^ stride);
    if (tid % SUBGROUP == 0) partial[tid / SUBGROUP] = acc;
    barrier(CLK_LOCAL_MEM_FENCE); // one sum a sub-group

    acc = 0.0f;
    if (tid < SUBGROUP) {
        if (tid < DN / SUBGROUP) acc = partial[tid];
        for (uint stride = SUBGROUP / 2; stride > 0; stride /= 2)
            acc += LANE_READ(acc, tid ^ stride);
    }
#else
    partial[tid] = acc;
    barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
    for (uint stride = DN / 2; stride > 0; stride /= 2) {
        if (tid < stride) partial[tid] += partial[tid + stride];
        barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete
    }
    acc = partial[0];
#endif
    barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    return acc;
}

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
        const float sum = group_sum(acc, partial, tid);
        if (tid == 0) {
            float result = alpha * sum;
            if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
            y[(index_t)m * incy] = result;
        }
    }
}
