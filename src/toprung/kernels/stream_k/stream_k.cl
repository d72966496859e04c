// C = alpha * op(A) * op(B) + beta * C       row-major; op(A) is M x K, op(B) K x N, C M x N
//
//     one wave after the other:   |0000000|1111111|2222222|3333   |      blocks beyond the last whole wave
//     cut along K:                |0000000|1111111|2222222|333333|       are cut so that all work-groups end together
//
// work[group] = {m, n, from, to, part}: a work-group has the block of C at row m and column n, along K that much of it.
// The piece that begins a block (part < 0) writes to C, each other one to parts[part], BM x BN and tight; collect.cl adds them.
// work.py makes the list.
//
// Parameters, work-group and layouts as in kernels/tiled/tiled.cl, whose loads these are; with
// ORDER              1: the multiplications down pairs of columns, as the ox ploughs; 0: row by row
// Idea: rung 17 of turing for every layout and shape.

#include "../include/block.cl"

// acc becomes, or has added, row k of the tiles multiplied
#if ORDER
#define MULTIPLY(becomes)                                                                                                           \
    UNROLL for (int j = 0; j < TN; j += 2)                                                                                          \
        UNROLL for (int step = 0; step < TM; ++step) {                                                                              \
            const int i = j % 4 ? TM - 1 - step : step;                /* every other pair of columns runs upwards */               \
            const int first = j + step % 2, second = j + 1 - step % 2; /* and its rows as the ox ploughs */                         \
            ELEMENT(acc[i][first / VEC], first % VEC) becomes                                                                       \
                ELEMENT(a[at][i / VM], i % VM) * ELEMENT(b[at][first / VEC], first % VEC);                                          \
            ELEMENT(acc[i][second / VEC], second % VEC) becomes                                                                     \
                ELEMENT(a[at][i / VM], i % VM) * ELEMENT(b[at][second / VEC], second % VEC);                                        \
        }
#else
#define MULTIPLY(becomes)                                                                                                           \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        UNROLL for (int j = 0; j < TN / VEC; ++j) acc[i][j] becomes ELEMENT(a[at][i / VM], i % VM) * b[at][j];
#endif

__kernel __attribute__((room_for(DM * DN, 1, 1, RESIDENT))) void
stream_k(__global const float *A, const ulong offset_a, __global const float *B, const ulong offset_b,
         __global float *C, const ulong offset_c, const float alpha, const float beta, __global const int *work,
         __global float *parts, const uint M, const uint N, const uint lda, const uint ldb, const uint rows_c)
{
    __local float As[STAGES][BK][BM + PADA] ALIGNED(4);   // As[buffer][k][m]
    __local float Bs[STAGES][BK][BN + PADB] ALIGNED(VEC); // Bs[buffer][k][n]

    if ((__global const void *)parts != (__global const void *)work) let_next_start(); // something is cut, and collected next
    const uint tid = get_local_id(0);
    const int lane = tid % (LM * LN);
    const int warp = tid / (LM * LN);
    int tn = warp % (BN / WN) * WN + lane % LN * VEC;
    int tm = warp / (BN / WN) * WM + lane / LN * VM;

    wait_for_previous();
    __global const int *piece = work + 5 * get_group_id(0);
    const uint m0 = piece[0], n0 = piece[1], k0 = piece[2], depth = piece[3] - piece[2];
    const int part = piece[4];
    const float old = part < 0 ? beta : 0.0f;
    const uint ldc = part < 0 ? rows_c : BN;
    const uint first = (depth - 1) % BK + 1; // of K in the first tile; all others are whole
    C = part < 0 ? C + offset_c + (index_t)m0 * ldc + n0 : parts + (index_t)part * (BM * BN);

    A += offset_a + A_AT(0, k0); // the first tile begins before it, where its zeros are
    B += offset_b + B_AT(k0, 0);
    A -= A_AT(0, BK - first);
    B -= B_AT(BK - first, 0);

    index_t at_a[FA], at_b[FB];
    VECTOR(VA) coming_a[LA];
    VECTOR(VB) coming_b[LB];
    UNROLL for (int f = 0; f < FA; ++f) {
        const uint m = m0 + A_M(f * (LA / FA)), k = A_K(f * (LA / FA));
        at_a[f] = A_AT(m < M ? m : M - A_LAST, k);
    }
    UNROLL for (int f = 0; f < FB; ++f) {
        const uint n = n0 + B_N(f * (LB / FB)), k = B_K(f * (LB / FB));
        at_b[f] = B_AT(k, n < N ? n : N - B_LAST);
    }
    UNROLL for (int i = 0; i < LA; ++i) {
        coming_a[i] = ZERO(VA);
        if (A_K(i) >= BK - first) coming_a[i] = READ_V(VA, A_FROM(i));
    }
    UNROLL for (int i = 0; i < LB; ++i) {
        coming_b[i] = ZERO(VB);
        if (B_K(i) >= BK - first) coming_b[i] = READ_V(VB, B_FROM(i));
    }
    A += A_AT(0, BK);
    B += B_AT(BK, 0);
    pack(As[0], Bs[0], coming_a, coming_b, tid);

    VECTOR(VEC) acc[TM][TN / VEC];
    UNROLL for (int i = 0; i < TM; ++i)
        UNROLL for (int j = 0; j < TN / VEC; ++j) acc[i][j] = ZERO(VEC);
    BEGIN_CHAINS
    int now = 0; // the buffer that is complete
    KEEP(tm);
    KEEP(tn);
#if INDEX32
    UNROLL for (int f = 0; f < FA; ++f) KEEP(at_a[f]);
    UNROLL for (int f = 0; f < FB; ++f) KEEP(at_b[f]);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint left = (depth - first) / BK + 1; left > 0; --left) {
        if (left > 1) {
            UNROLL for (int i = 0; i < LA; ++i) coming_a[i] = READ_V(VA, A_FROM(i));
            UNROLL for (int i = 0; i < LB; ++i) coming_b[i] = READ_V(VB, B_FROM(i));
            A += A_AT(0, BK);
            B += B_AT(BK, 0);
        }

        VECTOR(VM) a[2][TM / VM];
        VECTOR(VEC) b[2][TN / VEC];
        read(a[0], b[0], As[now], Bs[now], 0, tm, tn);
        UNROLL for (int k = 0; k < BK; ++k) {
            const int at = k % 2;
            if (k + 1 < BK) read(a[1 - at], b[1 - at], As[now], Bs[now], k + 1, tm, tn);
            if (BEGINS_CHAIN(k, left)) {
                BEGIN_CHAIN
            } else {
                MULTIPLY(+=)
            }
            END_CHAIN_AT(k)
        }
#if STAGES > 1
        now = 1 - now;
#else
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads the tiles any more
#endif
        pack(As[now], Bs[now], coming_a, coming_b, tid); // after the last tile, too: a branch would part it from the multiplications
        barrier(CLK_LOCAL_MEM_FENCE); // the next tiles are complete; with two buffers, nobody reads these any more
    }

    END_LAST_CHAIN
    VECTOR(VC) there[VM][TN / VC];
    UNROLL for (int i = 0; i < TM; ++i) {
        if (READS_C && i % VM == 0 && old != 0.0f) UNROLL for (int r = i; r < i + VM; ++r) {
                const uint m = tm + r / VM * SM + r % VM;
                if (m0 + m < M) UNROLL for (int j = 0; j < TN / VC; ++j) {
                        const uint n = tn + j * VC / VEC * SN + j * VC % VEC;
                        if (n0 + n < N) there[r % VM][j] = GLOBAL_V(VC, &C[(index_t)m * ldc + n]);
                    }
            }
        const uint m = tm + i / VM * SM + i % VM;
        if (m0 + m < M) {
            UNROLL for (int j = 0; j < TN / VC; ++j) {
                const int e = j * VC % VEC;
                const uint n = tn + j * VC / VEC * SN + e;
                if (n0 + n < N) {
                    const index_t c = (index_t)m * ldc + n;
                    VECTOR(VC) result = ZERO(VC);
                    for (int f = 0; f < VC; ++f) ELEMENT(result, f) = alpha * ELEMENT(whole[i][j * VC / VEC], e + f);
                    if (old != 0.0f) // beta = 0 never reads C
                        result = MULTIPLY_ADD(VC, old, READS_C ? there[i % VM][j] : GLOBAL_V(VC, &C[c]), result);
                    GLOBAL_V(VC, &C[c]) = result;
                }
            }
        }
    }
}
