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
// CHAIN              so many products of a sum are added up by themselves, and then to the whole, where a work-item has few sums, few
//                    elements on their way, and is promised 128 registers (RESIDENT): errors are a fraction of those of one chain
// GROUP_M            work-groups that follow each other cover GROUP_M blocks of rows before they go on along N: they share caches
//
// Work-group: DM x DN work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of one C and one slice of K. Any M, N, K > 0.
// Grid: (blocks * batch, slices). With several slices C is scratch memory, one M x N matrix for each slice and product.
// Idea: one text for every layout and shape. Both operands end as As[k][m] and Bs[k][n], however they are stored. Rows and columns
// beyond the edge are the last ones again, computed and not stored: a minimum, taken before the loop. The incomplete tile
// of K comes first, zeros filled in, so that no other load in the loop is guarded, at the edge or inside.

#if TM % 4 == 0
#define VM 4
#elif TM % 2 == 0
#define VM 2
#else
#define VM 1
#endif
#define LM (WM / TM)   // lanes of a warp along M
#define LN (WN / TN)   // and along N
#define SM (LM * VM)   // from one piece of a work-item to its next, down
#define SN (LN * VEC)  // and across
#ifndef CHAINED
#define CHAINED (TM * TN <= 16 && (BM + BN) * BK <= 24 * DM * DN && RESIDENT > 0 && RESIDENT * DM * DN <= 512)
#endif
#define CHAIN 96
#define FOLD (CHAIN > BK ? CHAIN / BK : 1) // tiles of K in a chain

// Element l of a tile as it is fetched: its k, its place along M or N, and how it lies in memory
#if TRANS_A
#define A_K(l) ((l) / BM)
#define A_M(l) ((l) % BM)
#define A_AT(m, k) ((index_t)(k) * lda + (m))
#define A_LAST VA
#else
#define A_K(l) ((l) % BK)
#define A_M(l) ((l) / BK)
#define A_AT(m, k) ((index_t)(m) * lda + (k))
#define A_LAST 1
#endif
#if TRANS_B
#define B_K(l) ((l) % BK)
#define B_N(l) ((l) / BK)
#define B_AT(k, n) ((index_t)(n) * ldb + (k))
#define B_LAST 1
#else
#define B_K(l) ((l) / BN)
#define B_N(l) ((l) % BN)
#define B_AT(k, n) ((index_t)(k) * ldb + (n))
#define B_LAST VB
#endif
#define ALL (DM * DN)

// Element l at which access i begins, how many offsets there are for a work-item's accesses (FA, FB), and the place of access i
// by them. Along K a work-item fetches 4 elements side by side, in one access or several with one offset; along M or N accesses
// that are whole rows of the tile apart share one, too. The fewer offsets, the more registers for the product.
#if TRANS_A
#define A_LOAD(i) ((tid + (i) * ALL) * VA)
#if ALL * VA % BM == 0
#define FA 1
#define A_FROM(i) (A + at_a[0] + A_AT(0, (i) * (ALL * VA / BM)))
#else
#define FA LA
#define A_FROM(i) (A + at_a[i])
#endif
#else
#define SA (BK % 4 == 0 && LA * VA % 4 == 0 ? 4 / VA : 1) // accesses side by side
#define FA (LA / SA)
#define A_LOAD(i) ((tid + (i) / SA * ALL) * (SA * VA) + (i) % SA * VA)
#define A_FROM(i) (A + at_a[(i) / SA] + (i) % SA * VA)
#endif
#if TRANS_B
#define SB (BK % 4 == 0 && LB * VB % 4 == 0 ? 4 / VB : 1)
#define FB (LB / SB)
#define B_LOAD(i) ((tid + (i) / SB * ALL) * (SB * VB) + (i) % SB * VB)
#define B_FROM(i) (B + at_b[(i) / SB] + (i) % SB * VB)
#else
#define B_LOAD(i) ((tid + (i) * ALL) * VB)
#if ALL * VB % BN == 0
#define FB 1
#define B_FROM(i) (B + at_b[0] + B_AT((i) * (ALL * VB / BN), 0))
#else
#define FB LB
#define B_FROM(i) (B + at_b[i])
#endif
#endif

// From registers into local memory
void pack(LPTR float (*As)[BM + PADA], LPTR float (*Bs)[BN + PADB], VECTOR(VA) *a, VECTOR(VB) *b, const int tid)
{
    UNROLL for (int i = 0; i < LA; ++i) {
        const int l = A_LOAD(i);
#if TRANS_A
        LOCAL_V(VA, &As[A_K(l)][A_M(l)]) = a[i];
#else
        for (int e = 0; e < VA; ++e) As[A_K(l) + e][A_M(l)] = ELEMENT(a[i], e);
#endif
    }
    UNROLL for (int i = 0; i < LB; ++i) {
        const int l = B_LOAD(i);
#if TRANS_B
        for (int e = 0; e < VB; ++e) Bs[B_K(l) + e][B_N(l)] = ELEMENT(b[i], e);
#else
        LOCAL_V(VB, &Bs[B_K(l)][B_N(l)]) = b[i];
#endif
    }
}

// What a work-item needs of row k of both tiles
void read(VECTOR(VM) *a, VECTOR(VEC) *b, LPTR float (*As)[BM + PADA], LPTR float (*Bs)[BN + PADB], const int k, const int tm,
          const int tn)
{
    UNROLL for (int i = 0; i < TM / VM; ++i) a[i] = LOCAL_V(VM, &As[k][tm + i * SM]);
    UNROLL for (int j = 0; j < TN / VEC; ++j) b[j] = LOCAL_V(VEC, &Bs[k][tn + j * SN]);
}

__kernel __attribute__((room_for(DM * DN, 1, 1, RESIDENT))) void
gemm(__global const float *restrict A, const ulong offset_a, __global const float *restrict B, const ulong offset_b,
     __global float *restrict C, const ulong offset_c, const float alpha, const float beta, const uint M, const uint N, const uint K,
     const uint lda, const uint ldb, const uint ldc, const uint tiles_m, const uint tiles_n, const uint slice, const ulong stride_a,
     const ulong stride_b, const ulong stride_c, const ulong stride_slice)
{
    __local float As[STAGES][BK][BM + PADA] ALIGNED(4);  // As[buffer][k][m]
    __local float Bs[STAGES][BK][BN + PADB] ALIGNED(VEC); // Bs[buffer][k][n]

    const int tid = get_local_id(0);
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

    A += offset_a + which * stride_a + A_AT(0, k0);
    B += offset_b + which * stride_b + B_AT(k0, 0);

    index_t at_a[FA], at_b[FB];
    VECTOR(VA) coming_a[LA];
    VECTOR(VB) coming_b[LB];
    UNROLL for (int f = 0; f < FA; ++f) {
        const uint m = m0 + A_M(A_LOAD(f * (LA / FA))), k = A_K(A_LOAD(f * (LA / FA)));
        at_a[f] = A_AT(m < M ? m : M - A_LAST, k);
    }
    UNROLL for (int f = 0; f < FB; ++f) {
        const uint n = n0 + B_N(B_LOAD(f * (LB / FB))), k = B_K(B_LOAD(f * (LB / FB)));
        at_b[f] = B_AT(k, n < N ? n : N - B_LAST);
    }
    UNROLL for (int i = 0; i < LA; ++i) {
        coming_a[i] = ZERO(VA);
        if (A_K(A_LOAD(i)) < first) coming_a[i] = READ_V(VA, A_FROM(i));
    }
    UNROLL for (int i = 0; i < LB; ++i) {
        coming_b[i] = ZERO(VB);
        if (B_K(B_LOAD(i)) < first) coming_b[i] = READ_V(VB, B_FROM(i));
    }
    A += A_AT(0, first);
    B += B_AT(first, 0);
    pack(As[0], Bs[0], coming_a, coming_b, tid);

    VECTOR(VEC) acc[TM][TN / VEC];
    UNROLL for (int i = 0; i < TM; ++i)
        UNROLL for (int j = 0; j < TN / VEC; ++j) acc[i][j] = ZERO(VEC);
#if CHAINED
    VECTOR(VEC) whole[TM][TN / VEC];
    UNROLL for (int i = 0; i < TM; ++i)
        UNROLL for (int j = 0; j < TN / VEC; ++j) whole[i][j] = ZERO(VEC);
#else
#define whole acc
#endif
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
#if ORDER
            UNROLL for (int i = 0; i < TM; ++i)
                UNROLL for (int step = 0; step < TN; ++step) {
                    const int j = i % 2 ? TN - 1 - step : step; // odd rows run from right to left
                    ELEMENT(acc[i][j / VEC], j % VEC) += ELEMENT(a[at][i / VM], i % VM) * ELEMENT(b[at][j / VEC], j % VEC);
                }
#else
            UNROLL for (int i = 0; i < TM; ++i)
                UNROLL for (int j = 0; j < TN / VEC; ++j) acc[i][j] += ELEMENT(a[at][i / VM], i % VM) * b[at][j];
#endif
            if (!AHEAD && k + 1 < BK) read(a[0], b[0], As[now], Bs[now], k + 1, tm, tn);
        }
#if CHAINED
        if ((left - 1) % FOLD == 0) {
            UNROLL for (int i = 0; i < TM; ++i)
                UNROLL for (int j = 0; j < TN / VEC; ++j) {
                    whole[i][j] += acc[i][j];
                    acc[i][j] = ZERO(VEC);
                }
        }
#endif
#if STAGES > 1
        now = 1 - now;
#else
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads the tiles any more
#endif
        if (left > 1) pack(As[now], Bs[now], coming_a, coming_b, tid);
        barrier(CLK_LOCAL_MEM_FENCE); // the next tiles are complete; with two buffers, nobody reads these any more
    }

    C += offset_c + which * stride_c + get_group_id(1) * stride_slice;
    UNROLL for (int i = 0; i < TM; ++i) {
        const uint m = m0 + tm + i / VM * SM + i % VM;
        if (m < M) {
            UNROLL for (int j = 0; j < TN / VC; ++j) {
                const int e = j * VC % VEC;
                const uint n = n0 + tn + j * VC / VEC * SN + e;
                if (n < N) {
                    const index_t c = (index_t)m * ldc + n;
                    VECTOR(VC) result = ZERO(VC);
                    for (int f = 0; f < VC; ++f) ELEMENT(result, f) = alpha * ELEMENT(whole[i][j * VC / VEC], e + f);
                    if (beta != 0.0f) result += beta * GLOBAL_V(VC, &C[c]); // beta = 0 never reads C
                    GLOBAL_V(VC, &C[c]) = result;
                }
            }
        }
    }
}
