// C[s][l] = alpha * (sum over k of Y[s][k] * X[l][k]) + beta * C[s][l]       X: large, its rows along K; Y: one or two rows
//
//              k..k+VA-1
//    l     . . |==| . .       times the same elements of Y, lane by lane: WM rows of X at a time, each with a vector of sums
//    l+1   . . |==| . .       for each row of Y
//
// Element (s, k) of Y lies at s * down_y + k * on_y, (s, l) of C at s * down_c + l * on_c; X is row-major (ldx).
// Work-group: one work-item, for BM rows of one slice of K. A piece of Y, BK long, is copied so that its rows have no gaps.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, stride_slice elements for each.
// Idea: the short side is no vector, so vectors run along K, and a dot product's lanes are added once in BK elements.
// Rows beyond the last are the last again, not stored.

#include "loose.cl"

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
dots(__global const float *restrict X, const ulong offset_x, __global const float *restrict Y, const ulong offset_y,
     __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint L, const uint few,
     const uint K, const uint blocks, const uint slice, const ulong ldx, const ulong stride_x, const ulong down_y, const ulong on_y,
     const ulong stride_y, const ulong down_c, const ulong on_c, const ulong stride_c, const ulong stride_slice)
{
    __local float sums[BM][BN];
    __local float Ys[BN][BK];
    const uint which = get_group_id(0) / blocks;
    const uint l0 = get_group_id(0) % blocks * BM;
    const uint high = min((uint)BM, L - l0);
    const uint begin = get_group_id(1) * slice;
    const uint end = K - begin < slice ? K : begin + slice;

    X += offset_x + which * stride_x;
    Y += offset_y + which * stride_y;
    for (uint i = 0; i < BM; ++i)
        for (uint s = 0; s < BN; ++s) sums[i][s] = 0.0f;
    for (uint k0 = begin; k0 < end; k0 += BK) {
        const uint count = min((uint)BK, end - k0);
        for (uint s = 0; s < BN; ++s)
            for (uint k = 0; k < count; ++k) Ys[s][k] = s < few ? Y[s * down_y + (k0 + k) * on_y] : 0.0f;
        for (uint i = 0; i < high; i += WM) {
            __global const float *row[WM];
            VECTOR(VA) acc[WM][BN];
            UNROLLED(WM) for (int j = 0; j < WM; ++j) {
                row[j] = X + min(l0 + i + j, L - 1) * ldx + k0;
                UNROLLED(BN) for (int s = 0; s < BN; ++s) acc[j][s] = ZERO(VA);
            }
            uint k = 0;
            for (; k + VA <= count; k += VA)
                UNROLLED(BN) for (int s = 0; s < BN; ++s) {
                    const VECTOR(VA) y = LOCAL_ANYWHERE(VA, &Ys[s][k]);
                    UNROLLED(WM) for (int j = 0; j < WM; ++j) acc[j][s] += ANYWHERE(VA, row[j] + k) * y;
                }
            UNROLLED(WM) for (int j = 0; j < WM; ++j)
                UNROLLED(BN) for (int s = 0; s < BN; ++s) {
                    float sum = 0.0f;
                    UNROLLED(VA) for (int e = 0; e < VA; ++e) sum += ELEMENT(acc[j][s], e);
                    for (uint last = k; last < count; ++last) sum += row[j][last] * Ys[s][last];
                    sums[i + j][s] += sum;
                }
        }
    }

    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
    for (uint i = 0; i < high; ++i)
        for (uint s = 0; s < few; ++s) {
            const ulong c = s * down_c + (l0 + i) * on_c;
            float result = alpha * sums[i][s];
            if (beta != 0.0f) result = MULTIPLY_ADD(1, beta, C[c], result); // beta = 0 never reads C
            C[c] = result;
        }
}
