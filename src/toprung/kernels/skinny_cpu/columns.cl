// C[s][l] = alpha * (sum over k of Y[s][k] * X[k][l]) + beta * C[s][l]       X: large, its rows along L; Y: few rows
//
//              l..l+VA-1
//         k   |==|  |==|  .    KU rows of X at a time, from left to right: each vector of X is multiplied with Y[0..BN-1][k],
//       k+1   |==|  |==|  .    one number each, and added to BN vectors of sums, which are fetched once for KU rows
//
// Element (s, k) of Y lies at s * down_y + k * on_y, (s, l) of C at s * down_c + l * on_c; X is row-major (ldx). VA <= L.
// Work-group: one work-item, for BM columns of one slice of K, with its sums in local memory.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, stride_slice elements for each.
// Idea: a core walks along rows of X, a few of them side by side, so that it touches few pages at a time and each line once.
// The last vector of a row ends where the row does: it takes columns of the one before, whose sums are not stored twice.

#include "loose.cl"

#define CHAINS 8 // chains of KU products that are added up by themselves

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
columns(__global const float *restrict X, const ulong offset_x, __global const float *restrict Y, const ulong offset_y,
        __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint L, const uint few,
        const uint K, const uint blocks, const uint slice, const ulong ldx, const ulong stride_x, const ulong down_y,
        const ulong on_y, const ulong stride_y, const ulong down_c, const ulong on_c, const ulong stride_c,
        const ulong stride_slice)
{
    __local float sums[BM / VA][BN][VA] ALIGNED(VA), chains[BM / VA][BN][VA] ALIGNED(VA); // of all chains, and of the last few
    __local float Ys[KU][BN];
    const uint which = get_group_id(0) / blocks;
    const uint l0 = get_group_id(0) % blocks * BM;
    const uint vectors = (min((uint)BM, L - l0) + VA - 1) / VA;
    const uint begin = get_group_id(1) * slice;
    const uint end = K - begin < slice ? K : begin + slice;

    X += offset_x + which * stride_x;
    Y += offset_y + which * stride_y;
    for (uint v = 0; v < vectors; ++v)
        for (uint s = 0; s < BN; ++s) LOCAL_V(VA, sums[v][s]) = LOCAL_V(VA, chains[v][s]) = ZERO(VA);
    for (uint k0 = begin; k0 < end; k0 += KU) {
        const uint count = min((uint)KU, end - k0);
        for (uint s = 0; s < BN; ++s)
            for (uint u = 0; u < count; ++u) Ys[u][s] = s < few ? Y[s * down_y + (k0 + u) * on_y] : 0.0f;
        for (uint v = 0; v < vectors; ++v) {
            __global const float *from = X + k0 * ldx + min(l0 + v * VA, L - VA);
            VECTOR(VA) acc[BN];
            UNROLLED(BN) for (int s = 0; s < BN; ++s) acc[s] = ZERO(VA);
            if (count == KU) // a constant count, which the compiler may unroll
                for (uint u = 0; u < KU; ++u) {
                    const VECTOR(VA) x = ANYWHERE(VA, from + u * ldx);
                    UNROLLED(BN) for (int s = 0; s < BN; ++s) acc[s] += x * Ys[u][s];
                }
            else
                for (uint u = 0; u < count; ++u) {
                    const VECTOR(VA) x = ANYWHERE(VA, from + u * ldx);
                    UNROLLED(BN) for (int s = 0; s < BN; ++s) acc[s] += x * Ys[u][s];
                }
            if ((k0 - begin) / KU % CHAINS == CHAINS - 1 || k0 + KU >= end)
                UNROLLED(BN) for (int s = 0; s < BN; ++s) {
                    LOCAL_V(VA, sums[v][s]) += LOCAL_V(VA, chains[v][s]) + acc[s];
                    LOCAL_V(VA, chains[v][s]) = ZERO(VA);
                }
            else
                UNROLLED(BN) for (int s = 0; s < BN; ++s) LOCAL_V(VA, chains[v][s]) += acc[s];
        }
    }

    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
    for (uint s = 0; s < few; ++s)
        for (uint v = 0; v < vectors; ++v) {
            const uint l = min(l0 + v * VA, L - VA);
            for (uint e = l0 + v * VA - l; e < VA; ++e) {
                const ulong c = s * down_c + (l + e) * on_c;
                float result = alpha * sums[v][s][e];
                if (beta != 0.0f) result = MULTIPLY_ADD(1, beta, C[c], result); // beta = 0 never reads C
                C[c] = result;
            }
        }
}
