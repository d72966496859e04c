// C[s][l] = alpha * (sum over k of Y[s][k] * X[l][k]) + beta * C[s][l]       X: large, its rows along K; Y: few rows
//
//              k
//    l     . . o . .      X[l][k] times Y[0..BN-1][k], a vector: WM rows of X at a time, each with a vector of sums
//    l+1   . . o . .
//
// Element (s, k) of Y lies at s * down_y + k * on_y, (s, l) of C at s * down_c + l * on_c; X is row-major (ldx).
// Work-group: one work-item, for BM rows of one slice of K. A piece of Y, BK long, is turned so that its BN rows lie together.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, stride_slice elements for each.
// Idea: vectors run along the short side. A core reads each row of X once, from front to back, and a sum never leaves its lane.
// Rows beyond the last are the last again, not stored.

#include "loose.cl"

// A sum is added up in chains of CHAIN products, CHAINS of these, pieces of BK, and those: as short as the lanes of a vector library's
// dot products make them.
#define CHAIN 16
#define CHAINS 4

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
rows(__global const float *restrict X, const ulong offset_x, __global const float *restrict Y, const ulong offset_y,
     __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint L, const uint few,
     const uint K, const uint blocks, const uint slice, const ulong ldx, const ulong stride_x, const ulong down_y, const ulong on_y,
     const ulong stride_y, const ulong down_c, const ulong on_c, const ulong stride_c, const ulong stride_slice)
{
    __local float sums[BM][BN] ALIGNED(BN);
    __local float Ys[BK][BN] ALIGNED(BN);
    const uint which = get_group_id(0) / blocks;
    const uint l0 = get_group_id(0) % blocks * BM;
    const uint high = min((uint)BM, L - l0);
    const uint begin = get_group_id(1) * slice;
    const uint end = K - begin < slice ? K : begin + slice;

    X += offset_x + which * stride_x;
    Y += offset_y + which * stride_y;
    for (uint i = 0; i < BM; ++i) LOCAL_V(BN, sums[i]) = ZERO(BN);
    for (uint k0 = begin; k0 < end; k0 += BK) {
        const uint count = min((uint)BK, end - k0);
        for (uint s = 0; s < BN; ++s)
            for (uint k = 0; k < count; ++k) Ys[k][s] = s < few ? Y[s * down_y + (k0 + k) * on_y] : 0.0f;
        for (uint i = 0; i < high; i += WM) {
            __global const float *row[WM];
            VECTOR(BN) piece[WM], chains[WM];
            UNROLLED(WM) for (int j = 0; j < WM; ++j) {
                row[j] = X + min(l0 + i + j, L - 1) * ldx + k0;
                piece[j] = chains[j] = ZERO(BN);
            }
            for (uint k = 0, end = CHAIN; k < count; end += CHAIN) {
                VECTOR(BN) acc[WM];
                UNROLLED(WM) for (int j = 0; j < WM; ++j) acc[j] = ZERO(BN);
                for (; k < min(end, count); ++k) {
                    const VECTOR(BN) y = LOCAL_V(BN, Ys[k]);
                    UNROLLED(WM) for (int j = 0; j < WM; ++j) acc[j] += row[j][k] * y;
                }
                UNROLLED(WM) for (int j = 0; j < WM; ++j) chains[j] += acc[j];
                if (end % (CHAINS * CHAIN) == 0 || end >= count)
                    UNROLLED(WM) for (int j = 0; j < WM; ++j) {
                        piece[j] += chains[j];
                        chains[j] = ZERO(BN);
                    }
            }
            UNROLLED(WM) for (int j = 0; j < WM; ++j) LOCAL_V(BN, sums[i + j]) += piece[j];
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
