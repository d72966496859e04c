// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements side by side, y has M, incy apart
//
//              |==|
//    m    . . .oooo. . .  \
//    m+1  . . .oooo. . .   |  one team of DN lanes: TM rows at once,
//    m+2  . . .oooo. . .   |  with the same VEC elements of x
//    m+3  . . .oooo. . .  /
//    m+4  ...                 the next team; DM teams a work-group
//
// Work-group: DM teams of DN work-items, DN a power of two and within a sub-group, for BM = DM * TM
// rows. Any M, N, lda, incy, any number of work-groups; incx = 1.
// Idea: several rows a team, several teams a work-group. The TM loads of A in flight belong to TM
// rows, so that one load of x serves them all, short rows keep a team busy, and no sum crosses a
// sub-group: no barrier is left.

// The sum of acc over the DN work-items of a team, in its lane 0; the others get anything.
// All of the work-group must call it.
float team_sum(float acc, LPTR float *partial, const uint team, const uint lane)
{
#if SHUFFLE
    // teams lie side by side in a sub-group
    const uint first = (team * DN + lane) % SUBGROUP - lane;
    for (uint stride = DN / 2; stride > 0; stride /= 2)
        acc += LANE_READ(acc, first + (lane ^ stride));
#else
    partial += team * DN;
    partial[lane] = acc;
    barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
    for (uint stride = DN / 2; stride > 0; stride /= 2) {
        if (lane < stride) partial[lane] += partial[lane + stride];
        barrier(CLK_LOCAL_MEM_FENCE); // this level of the tree is complete
    }
    acc = partial[0];
    barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
#endif
    return acc;
}

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
gemv(const uint M, const uint N, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict x, const int incx, const float beta,
     __global float *restrict y, const int incy)
{
    __local float partial[DM * DN];
    const uint lane = get_local_id(0) % DN;
    const uint team = get_local_id(0) / DN;

    for (uint m0 = get_group_id(0) * BM; m0 < M; m0 += get_num_groups(0) * BM) {
        __global const float *row[TM];
        VECTOR(VEC) acc[TM];
        float sum[TM];
        for (int i = 0; i < TM; ++i) {
            const uint m = m0 + team * TM + i;
            // beyond the last row: the last again, not stored
            row[i] = A + (index_t)(m < M ? m : M - 1) * lda;
            acc[i] = ZERO(VEC);
            sum[i] = 0.0f;
        }
        if (lda % VEC == 0) {
            uint n = lane * VEC;
            for (; n + VEC <= N; n += BN) {
                VECTOR(VEC) a[TM];
                UNROLL for (int i = 0; i < TM; ++i) a[i] = READ_V(VEC, &row[i][n]);
                const VECTOR(VEC) b = READ_V(VEC, &x[n]);
                UNROLL for (int i = 0; i < TM; ++i) acc[i] += a[i] * b;
            }
            for (; n < N; ++n) // the last, incomplete vector is one lane's
                for (int i = 0; i < TM; ++i) sum[i] += row[i][n] * x[n];
        } else {
            for (uint n = lane; n < N; n += DN)
                for (int i = 0; i < TM; ++i) sum[i] += row[i][n] * x[n];
        }
        for (int i = 0; i < TM; ++i) {
            for (int e = 0; e < VEC; ++e) sum[i] += ELEMENT(acc[i], e);
            sum[i] = team_sum(sum[i], partial, team, lane);
            const uint m = m0 + team * TM + i;
            if (lane == 0 && m < M) {
                float result = alpha * sum[i];
                if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
                y[(index_t)m * incy] = result;
            }
        }
    }
}
