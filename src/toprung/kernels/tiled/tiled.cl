// C = alpha * op(A) * op(B) + beta * C       row-major; op(A) is M x K, op(B) K x N, C M x N; a batch of them in one launch
//
//      block                  warp                         tn          tn + SN
//     +------+------+        +--+--+--+--+              +-|==|--------|==|----+
//     | warp | warp |        |  |  |  |  | LM     tm  = | oooo        oooo    |    a work-item's pieces lie
//     +------+------+  BM    +--+--+--+--+            = | oooo        oooo    |    within its warp's tile
//     |      |      |        |  |  |  |  | lanes  +SM = | oooo        oooo    |
//     +------+------+        +--+--+--+--+              +---------------------+
//           BN                 LN lanes                       WM x WN
//
// TRANS_A, TRANS_B   the operand is stored transposed: A as K x M, B as N x K
// VA, VB, VC         floats of an access to A, B, C. Each divides that matrix's row length, leading dimension, stride and alignment,
//                    so that an access lies wholly inside a row or wholly outside
// VEC                floats of a work-item's pieces along N; VM, along M, follows from TM
// STAGES             buffers in local memory: with 2, one barrier a tile in place of two
// AHEAD              the vectors of k + 1 are read from local memory before the multiplications of k
// ORDER              1: the multiplications as the ox ploughs, so that neighbours share an operand
// CHAIN              products of a sum that are added up by themselves, see include/block.cl; 0: all of them
// GROUP_M            work-groups that follow each other cover GROUP_M blocks of rows before they go on along N: they share caches
//
// Work-group: DM x DN work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of one C and one slice of K. Any M, N, K > 0.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, one M x N matrix for each slice and product.
// Idea: one text for every layout and shape. Both operands end as As[k][m] and Bs[k][n], however they are stored. Rows and columns
// beyond the edge are the last ones again, computed and not stored: a minimum, taken before the loop. The incomplete tile
// of K comes first, zeros filled in, so that no other load in the loop is guarded, at the edge or inside.
// Where C is written in narrower accesses than pieces (VC < VEC), lanes of a warp exchange what they have through the local memory
// where the tiles were, so that neighbours write neighbours: written directly, every access of a warp has gaps.

#include "../include/block.cl"

#define IN_A (STAGES * BK * BM >= ALL * VEC) // there is room in As for a piece of each work-item
#define IN_B (STAGES * BK * BN >= ALL * VEC)
#define REGROUPED (VC < VEC && VEC <= 4 && (IN_A || IN_B)) // is_regrouped says the same; longer vectors are a CPU's
#ifdef __OPENCL_VERSION__ // no lanes that run in step; and an index must stay within its row, as oclgrind checks
#define LANES_MEET barrier(CLK_LOCAL_MEM_FENCE)
#define PLACE(l) (IN_A ? &As[(l) / (BK * BM)][(l) / BM % BK][(l) % BM] : &Bs[(l) / (BK * BN)][(l) / BN % BK][(l) % BN])
#else // without divisions, which were up to half of all instructions
#define LANES_MEET __syncwarp()
#define PLACE(l) ((IN_A ? &As[0][0][0] : &Bs[0][0][0]) + (l))
#endif

// acc becomes, or has added, row k of the tiles multiplied
#if ORDER
#define MULTIPLY(becomes)                                                                                                           \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        UNROLL for (int step = 0; step < TN; ++step) {                                                                              \
            const int j = i % 2 ? TN - 1 - step : step; /* odd rows run from right to left */                                       \
            ELEMENT(acc[i][j / VEC], j % VEC) becomes ELEMENT(a[at][i / VM], i % VM) * ELEMENT(b[at][j / VEC], j % VEC);            \
        }
#else
#define MULTIPLY(becomes)                                                                                                           \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        UNROLL for (int j = 0; j < TN / VEC; ++j) acc[i][j] becomes ELEMENT(a[at][i / VM], i % VM) * b[at][j];
#endif

#ifndef TILES // ../tiled_cluster/tiled_cluster.cl has others of these
#define TILES                                                                                                                       \
    __local float As[STAGES][BK][BM + PADA] ALIGNED(4);   /* As[buffer][k][m] */                                                    \
    __local float Bs[STAGES][BK][BN + PADB] ALIGNED(VEC); /* Bs[buffer][k][n] */
#define SECOND_PASS (get_num_groups(1) > 1) // whether one follows that adds up slices
#define ADD_SLICES                          // here, for the rows of sums that this work-group
#define WRITES(i) 1                         // writes
#endif

__kernel __attribute__((room_for(DM * DN, 1, 1, RESIDENT))) void
gemm(__global const float *A, const ulong offset_a, __global const float *B, const ulong offset_b,
     __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint M, const uint N, const uint K,
     const uint lda, const uint ldb, const uint ldc, const uint tiles_m, const uint tiles_n, const uint slice, const ulong stride_a,
     const ulong stride_b, const ulong stride_c, const ulong stride_slice)
{
    TILES
    if (SECOND_PASS) let_next_start();
    const uint tid = get_local_id(0);
    const int lane = tid % (LM * LN);
    const int warp = tid / (LM * LN);
    int tn = warp % (BN / WN) * WN + lane % LN * VEC;
    int tm = warp / (BN / WN) * WM + lane / LN * VM;

    // which product, which block: GROUP_M rows of blocks at a time, column after column
    const uint which = get_group_id(0) / (tiles_m * tiles_n);
    const uint block = get_group_id(0) % (tiles_m * tiles_n);
    const uint above = block / (GROUP_M * tiles_n) * GROUP_M;
    const uint high = tiles_m - above < GROUP_M ? tiles_m - above : GROUP_M;
    const uint m0 = (above + block % (GROUP_M * tiles_n) % high) * BM;
    const uint n0 = block % (GROUP_M * tiles_n) / high * BN;
    const uint k0 = get_group_id(1) * slice;
    const uint depth = K - k0 < slice ? K - k0 : slice;
    const uint first = (depth - 1) % BK + 1; // of K in the first tile; all others are whole

    A += offset_a + which * stride_a + A_AT(0, k0); // the first tile begins before it, where its zeros are
    B += offset_b + which * stride_b + B_AT(k0, 0);
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
    wait_for_previous();
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

        VECTOR(VM) a[1 + AHEAD][TM / VM];
        VECTOR(VEC) b[1 + AHEAD][TN / VEC];
        read(a[0], b[0], As[now], Bs[now], 0, tm, tn);
        UNROLL for (int k = 0; k < BK; ++k) {
            const int at = AHEAD ? k % 2 : 0;
            if (AHEAD && k + 1 < BK) read(a[AHEAD - at], b[AHEAD - at], As[now], Bs[now], k + 1, tm, tn);
            if (BEGINS_CHAIN(k, left)) {
                BEGIN_CHAIN
            } else {
                MULTIPLY(+=)
            }
            END_CHAIN_AT(k)
            if (!AHEAD && k + 1 < BK) read(a[0], b[0], As[now], Bs[now], k + 1, tm, tn);
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
    ADD_SLICES
    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
#if REGROUPED
    const int mine = warp * (LM * LN * VEC); // of this warp, from here on
    const uint m1 = m0 + warp / (BN / WN) * WM, n1 = n0 + warp % (BN / WN) * WN;
    UNROLL for (int i = 0; i < TM; ++i) {
        if (!WRITES(i)) continue;
        UNROLL for (int j = 0; j < TN / VEC; ++j) {
            LOCAL_V(VEC, PLACE(mine + lane * VEC)) = alpha * whole[i][j];
            LANES_MEET; // their pieces are LM rows of SN floats now
            VECTOR(VC) old[VEC / VC];
            if (READS_C && beta != 0.0f) UNROLL for (int f = 0; f < VEC / VC; ++f) {
                    const int at = (f * (LM * LN) + lane) * VC;
                    const uint m = m1 + at / SN * VM + i / VM * SM + i % VM, n = n1 + j * SN + at % SN;
                    if (m < M && n < N) old[f] = GLOBAL_V(VC, &C[(index_t)m * ldc + n]);
                }
            UNROLL for (int f = 0; f < VEC / VC; ++f) {
                const int at = (f * (LM * LN) + lane) * VC;
                const uint m = m1 + at / SN * VM + i / VM * SM + i % VM, n = n1 + j * SN + at % SN;
                if (m < M && n < N) {
                    const index_t c = (index_t)m * ldc + n;
                    VECTOR(VC) result = LOCAL_V(VC, PLACE(mine + at));
                    if (beta != 0.0f) result = MULTIPLY_ADD(VC, beta, READS_C ? old[f] : GLOBAL_V(VC, &C[c]), result);
                    GLOBAL_V(VC, &C[c]) = result;
                }
            }
            LANES_MEET;
        }
    }
#else
    VECTOR(VC) old[VM][TN / VC];
    UNROLL for (int i = 0; i < TM; ++i) {
        if (READS_C && i % VM == 0 && beta != 0.0f) UNROLL for (int r = i; r < i + VM; ++r) {
                const uint m = m0 + tm + r / VM * SM + r % VM;
                if (WRITES(r) && m < M) UNROLL for (int j = 0; j < TN / VC; ++j) {
                        const uint n = n0 + tn + j * VC / VEC * SN + j * VC % VEC;
                        if (n < N) old[r % VM][j] = GLOBAL_V(VC, &C[(index_t)m * ldc + n]);
                    }
            }
        const uint m = m0 + tm + i / VM * SM + i % VM;
        if (/*!rows-of-block*/WRITES(i) && m < M) {
            UNROLL for (int j = 0; j < TN / VC; ++j) {
                const int e = j * VC % VEC;
                const uint n = n0 + tn + j * VC / VEC * SN + e;
                if (n < N) {
                    const index_t c = (index_t)m * ldc + n;
                    VECTOR(VC) result = ZERO(VC);
                    for (int f = 0; f < VC; ++f) ELEMENT(result, f) = alpha * ELEMENT(whole[i][j * VC / VEC], e + f);
                    if (beta != 0.0f) // beta = 0 never reads C
                        result = MULTIPLY_ADD(VC, beta, READS_C ? old[i % VM][j] : GLOBAL_V(VC, &C[c]), result);
                    GLOBAL_V(VC, &C[c]) = result;
                }
            }
        }
    }
#endif
}
