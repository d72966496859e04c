// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements side by side, y has M, incy apart
//
//            tid * VEC         + DN * VEC        + 2 DN * VEC
//              |==|              |==|              |==|        KU loads are on their way
//    m  . . . .oooo. . . . . . . oooo. . . . . . . oooo. .     before the first is needed
//
// Work-group: DN work-items, DN a power of two and whole sub-groups.
// Any M, N, lda, incy, any number of work-groups; incx = 1.
// Idea: several independent loads in flight. KU vectors of A are asked for together and go into KU
// sums of their own, so that no load and no addition waits for the one before it.

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
        __global const float *row = A + (index_t)m * lda;
        VECTOR(VEC) acc[KU];
        for (int u = 0; u < KU; ++u) acc[u] = ZERO(VEC);
        float sum = 0.0f;
        if (lda % VEC == 0) {
            uint n = tid * VEC;
            for (; n + (KU - 1) * DN * VEC + VEC <= N; n += BN) {
                VECTOR(VEC) a[KU];
                UNROLL for (int u = 0; u < KU; ++u) a[u] = READ_V(VEC, &row[n + u * DN * VEC]);
                UNROLL for (int u = 0; u < KU; ++u)
                    acc[u] += a[u] * READ_V(VEC, &x[n + u * DN * VEC]);
            }
            for (; n + VEC <= N; n += DN * VEC) acc[0] += READ_V(VEC, &row[n]) * READ_V(VEC, &x[n]);
            for (; n < N; ++n) // the last, incomplete vector is one work-item's
                sum += row[n] * x[n];
        } else {
            for (uint n = tid; n < N; n += DN) sum += row[n] * x[n];
        }
        for (int u = 0; u < KU; ++u)
            for (int e = 0; e < VEC; ++e) sum += ELEMENT(acc[u], e);

        sum = group_sum(sum, partial, tid);
        if (tid == 0) {
            float result = alpha * sum;
            if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
            y[(index_t)m * incy] = result;
        }
    }
}
