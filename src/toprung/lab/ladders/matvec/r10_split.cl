// y = alpha * A * x + beta * y
// row-major: A is M x N (lda); x has N elements side by side, y has M, incy apart
//
//           slice 0     slice 1     slice 2
//         +-----------+-----------+---------+     the teams of one row's slices
//      m  | team      | team      | team    |     are in different work-groups
//         +-----------+-----------+---------+
//              s0    +     s1    +    s2          a second kernel adds their sums,
//                                                 always in this order
//
// Work-group: DM teams of DN work-items, DN a power of two and within a sub-group, for BM = DM * TM
// rows of one slice. Any M, N, lda, incy, any number of work-groups and slices; incx = 1. With one
// slice y is the result, else y takes M sums a slice.
// Idea: split rows. Where there are too few rows to keep a device busy,
// several work-groups share each; the sums are added by a second pass and
// not by atomic operations, so that the same call gives the same bits.

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
    const uint slices = get_num_groups(1);
    // of a slice: whole turns of the loop, so that it begins aligned
    const uint length = ((N - 1) / (slices * BN) + 1) * BN;
    const uint first = get_group_id(1) * length;
    const uint end = first + length < N ? first + length : N;

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
            uint n = first + lane * VEC;
            for (; n + VEC <= end; n += BN) {
                VECTOR(VEC) a[TM];
                UNROLL for (int i = 0; i < TM; ++i) a[i] = READ_V(VEC, &row[i][n]);
                const VECTOR(VEC) b = READ_V(VEC, &x[n]);
                UNROLL for (int i = 0; i < TM; ++i) acc[i] += a[i] * b;
            }
            for (; n < end; ++n) // the last, incomplete vector is one lane's
                for (int i = 0; i < TM; ++i) sum[i] += row[i][n] * x[n];
        } else {
            for (uint n = first + lane; n < end; n += DN)
                for (int i = 0; i < TM; ++i) sum[i] += row[i][n] * x[n];
        }
        for (int i = 0; i < TM; ++i) {
            for (int e = 0; e < VEC; ++e) sum[i] += ELEMENT(acc[i], e);
            sum[i] = team_sum(sum[i], partial, team, lane);
            const uint m = m0 + team * TM + i;
            if (lane == 0 && m < M) {
                if (slices > 1) {
                    y[(index_t)get_group_id(1) * M + m] = sum[i];
                    continue;
                }
                float result = alpha * sum[i];
                if (beta != 0.0f) result += beta * y[(index_t)m * incy]; // beta = 0 never reads y
                y[(index_t)m * incy] = result;
            }
        }
    }
}
