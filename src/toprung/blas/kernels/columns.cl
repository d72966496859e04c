// C[s][l] = alpha * (sum over k of Y[s][k] * X[k][l]) + beta * C[s][l]       X: large, its rows along L; Y: few rows
//
//              l..l+VA-1
//         k   |==|==|==|==|      DM work-items side by side, each with VA columns of its own, and SMALL sums for each of them,
//       k+1   |==|==|==|==|      and DN of them one below the other
//        ..         |
//         C   |==|==|==|==|      whose sums meet in local memory
//
// Element (s, k) of Y lies at s * down_y + k * on_y, (s, l) of C at s * down_c + l * on_c; X is row-major (ldx). VA divides L, ldx
// and X's alignment.
// Work-group: DM x DN work-items, for BM = DM * TM columns (TM = VA) of one slice of K; KU = TN rows are in flight.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, stride_slice elements for each.
// Idea: the sums run down the columns, so work-items lie side by side along L, read whole pieces of X's rows, once, and need
// nobody's help but at the end; Y is the same for all of a row. Columns beyond the last are the last again, not stored.

__kernel __attribute__((reqd_work_group_size(DM * DN, 1, 1))) void
columns(__global const float *restrict X, const ulong offset_x, __global const float *restrict Y, const ulong offset_y,
        __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint L, const uint few,
        const uint K, const uint blocks, const uint slice, const ulong ldx, const ulong stride_x, const ulong down_y,
        const ulong on_y, const ulong stride_y, const ulong down_c, const ulong on_c, const ulong stride_c,
        const ulong stride_slice)
{
    __local float partial[DN][BM] ALIGNED(VA); // partial[dn][l]
    const uint dm = get_local_id(0) % DM;
    const uint dn = get_local_id(0) / DM;
    const uint which = get_group_id(0) / blocks;
    const uint l0 = get_group_id(0) % blocks * BM;
    const uint l = l0 + dm * VA;
    const uint begin = get_group_id(1) * slice;
    const uint end = K - begin < slice ? K : begin + slice;
    uint k = begin + dn;

    X += offset_x + which * stride_x + k * ldx + (l < L ? l : L - VA);
    Y += offset_y + which * stride_y + k * on_y;
    const ulong down = DN * ldx; // to this work-item's next row
    const ulong on = DN * on_y;

    VECTOR(VA) acc[SMALL];
    UNROLL for (int s = 0; s < SMALL; ++s) acc[s] = ZERO(VA);
    for (; k < end && end - k > (KU - 1) * DN; k += KU * DN) {
        VECTOR(VA) x[KU];
        UNROLL for (int u = 0; u < KU; ++u) x[u] = READ_V(VA, &X[u * down]);
        UNROLL for (int s = 0; s < SMALL; ++s)
            UNROLL for (int u = 0; u < KU; ++u) acc[s] += x[u] * Y[(s < few ? s : few - 1) * down_y + u * on];
        X += KU * down;
        Y += KU * on;
    }
    for (; k < end; k += DN) {
        const VECTOR(VA) x = READ_V(VA, X);
        UNROLL for (int s = 0; s < SMALL; ++s) acc[s] += x * Y[(s < few ? s : few - 1) * down_y];
        X += down;
        Y += on;
    }

    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
    UNROLL for (int s = 0; s < SMALL; ++s) {
        LOCAL_V(VA, &partial[dn][dm * VA]) = acc[s];
        barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
        for (uint i = get_local_id(0); i < BM; i += DM * DN) {
            float sum = 0.0f;
            UNROLL for (int other = 0; other < DN; ++other) sum += partial[other][i];
            if (s < few && l0 + i < L) {
                const ulong c = s * down_c + (l0 + i) * on_c;
                float result = alpha * sum;
                if (beta != 0.0f) result += beta * C[c]; // beta = 0 never reads C
                C[c] = result;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }
}
