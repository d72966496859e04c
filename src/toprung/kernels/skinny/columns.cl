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
// With eight rows of Y and more the next KU rows of X are asked for before these are multiplied, past the end of a piece of Y, too:
// so many sums leave room for few work-items, and else nothing of X would be on its way while a piece of Y is fetched.
// Work-group: DM x DN work-items, for BM = DM * TM columns (TM = VA) of one slice of K. TN rows of a piece of Y (BN
// long, in local memory where it has several rows) are a work-item's, KU of them in flight.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, stride_slice elements for each.
// RESIDENT: work-groups that an SM must have registers for. Told that they are few, CUDA's compiler asks for all KU rows before it
// waits for one; left alone it saves registers, and has two on their way.
// Idea: the sums run down the columns, so work-items lie side by side along L, read whole pieces of X's rows, once, and need
// nobody's help but at the end; Y is the same for all of a row. Columns beyond the last are the last again, not stored.

#include "../include/stored.cl"
#include "../include/sums.cl"

#if SMALL > 1
#define PIECE BN                          // of Y in local memory
#define SMALL_Y(s, k) Ys[k][s]
#define PAD (SMALL % 4 ? 0 : 4)           // its rows begin aligned and not all in the same bank
#else
#define PIECE slice
#define SMALL_Y(s, k) READ_AS(Y_TYPE, 1, &Y[(k0 + (k)) * on_y])
#endif

#define INSIDE(u) (k + (u) * DN < count)
#define AHEAD (SMALL >= 8 && KU <= 4) // eight rows ahead spill

__kernel __attribute__((room_for(DM * DN, 1, 1, RESIDENT))) void
columns(__global const STORED(X_TYPE) *X, const ulong offset_x, __global const STORED(Y_TYPE) *Y, const ulong offset_y,
        __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint L, const uint few,
        const uint K, const uint blocks, const uint slice, const ulong ldx, const ulong stride_x, const ulong down_y,
        const ulong on_y, const ulong stride_y, const ulong down_c, const ulong on_c, const ulong stride_c,
        const ulong stride_slice)
{
    __local float partial[DN][BM] ALIGNED(VA); // partial[dn][l]
#if SMALL > 1
    __local float Ys[BN][SMALL + PAD] ALIGNED(4); // Ys[k][s]
#endif
    MEETING_PLACE
    if (SECOND_PASS) let_next_start();
    const uint dm = get_local_id(0) % DM;
    const uint dn = get_local_id(0) / DM;
    const uint which = get_group_id(0) / blocks;
    const uint l0 = get_group_id(0) % blocks * BM;
    const uint l = l0 + dm * VA;
    const uint begin = get_group_id(1) * slice;
    const uint end = K - begin < slice ? K : begin + slice;

    X += offset_x + which * stride_x + (l < L ? l : L - VA);
    Y += offset_y + which * stride_y;
    const ulong down = DN * ldx; // to this work-item's next row

    VECTOR(VA) acc[SMALL];
    UNROLL for (int s = 0; s < SMALL; ++s) acc[s] = ZERO(VA);
#if FOLD
    VECTOR(VA) whole[SMALL]; // the chains before this one
    UNROLL for (int s = 0; s < SMALL; ++s) whole[s] = ZERO(VA);
    uint left = FOLD / KU;
#endif
    wait_for_previous();
#if AHEAD
#define ASK_FOR(row) \
    do { \
        UNROLL for (int u = 0; u < KU; ++u) next[u] = (row) + u * DN < end ? READ_AS(X_TYPE, VA, &asked[u * down]) : ZERO(VA); \
        asked += /*!asked-ahead*/KU * down; \
    } while (0)
    VECTOR(VA) next[KU];
    __global const STORED(X_TYPE) *asked = X + (ulong)(begin + dn) * ldx;
    ASK_FOR(begin + dn);
#endif
    for (uint k0 = begin; k0 < end; k0 += PIECE) {
        const uint count = end - k0 < PIECE ? end - k0 : PIECE;
#if SMALL > 1
        for (uint i = get_local_id(0); i < BN * SMALL; i += DM * DN) {
            const uint s = i / BN, k = k0 + i % BN;
            Ys[i % BN][s] = s < few && k < end ? READ_AS(Y_TYPE, 1, &Y[s * down_y + k * on_y]) : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE); // the piece of Y is complete
#endif
#if AHEAD
        for (uint k = dn; k < count; k += KU * DN) {
            VECTOR(VA) x[KU];
            UNROLL for (int u = 0; u < KU; ++u) x[u] = next[u];
            ASK_FOR(k0 + k + KU * DN);
            UNROLL for (int u = 0; u < KU; ++u) // beyond the end both are 0
                UNROLL for (int s = 0; s < SMALL; ++s) acc[s] += x[u] * SMALL_Y(s, k + u * DN);
        }
#else
        __global const STORED(X_TYPE) *from = X + (ulong)(k0 + dn) * ldx;
        for (uint k = dn; k < count; k += KU * DN) {
#if FOLD && SMALL == 1
            if (left-- == 0) {
                left = FOLD / KU - 1;
                whole[0] += acc[0];
                acc[0] = ZERO(VA);
            }
#endif
            VECTOR(VA) x[KU]; // guarded: what is left of K is an iteration like the others
            UNROLL for (int u = 0; u < KU; ++u) x[u] = INSIDE(u) ? READ_AS(X_TYPE, VA, &from[u * down]) : ZERO(VA);
            UNROLL for (int u = 0; u < KU; ++u)
                UNROLL for (int s = 0; s < SMALL; ++s) acc[s] += x[u] * (INSIDE(u) ? SMALL_Y(s, k + u * DN) : 0.0f);
            from += KU * down;
        }
#endif
#if FOLD && SMALL > 1
        UNROLL for (int s = 0; s < SMALL; ++s) { // a piece is a chain: TN products
            whole[s] += acc[s];
            acc[s] = ZERO(VA);
        }
#endif
#if SMALL > 1
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads it any more
#endif
    }

#if FOLD
    UNROLL for (int s = 0; s < SMALL; ++s) acc[s] += whole[s];
#endif
    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
    BEFORE_TAKING
    UNROLL for (int s = 0; s < SMALL; ++s) {
        LOCAL_V(VA, &partial[dn][dm * VA]) = acc[s];
        barrier(CLK_LOCAL_MEM_FENCE); // the partial sums are complete
        UNROLL for (int n = 0; n < (BM + DM * DN - 1) / (DM * DN); ++n) {
            const uint i = get_local_id(0) + n * DM * DN;
            if (i < BM) {
                float sum = 0.0f;
                UNROLL for (int other = 0; other < DN; ++other) sum += partial[other][i];
                TAKE(s * BM + i, sum);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }
    ADD_SLICES
}
