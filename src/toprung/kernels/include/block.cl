// How a block kernel (kernels/tiled, kernels/stream_k) fetches tiles of A and B and reads them again
//
// pack    writes what a work-item has fetched into As[k][m] and Bs[k][n], however the operands are stored
// read    takes a work-item's pieces of row k of both
//
// Parameters as kernels/tiled/tiled.cl has them: TRANS_A, TRANS_B, VA, VB, VEC, and the tile's sizes.

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

// A sum is added up in chains of CHAIN products, each by itself and then to those before it: its error grows with CHAIN + K / CHAIN,
// not with K. Chains end where a multiple of CHAIN is left, so that their order is the same whatever the tile. CHAIN = 0: one chain,
// for whoever has no registers for two sets of sums; a launch has a short K then (blocks.ONE_CHAIN).
//
// BEGIN_CHAINS            before the loop: the second set of sums
// BEGINS_CHAIN(k, left)   whether k is the first of a chain, with so many tiles left; then BEGIN_CHAIN in place of MULTIPLY(+=)
// END_CHAIN_AT(k)         after the multiplications of k
// END_LAST_CHAIN          behind the loop: ``whole`` has all
//
// MULTIPLY(becomes) is the kernel's: acc = or += row k of the tiles multiplied. A chain begins with products: sums need no zeros.
#if CHAIN
#define BEGIN_CHAINS                                                                                                                \
    VECTOR(VEC) whole[TM][TN / VEC]; /* the chains before this one */                                                              \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        UNROLL for (int j = 0; j < TN / VEC; ++j) whole[i][j] = ZERO(VEC);
#define END_CHAIN                                                                                                                   \
    UNROLL for (int i = 0; i < TM; ++i)                                                                                             \
        UNROLL for (int j = 0; j < TN / VEC; ++j) whole[i][j] += acc[i][j];
#if CHAIN <= BK // chains end with the tile: only their sums live on
#define BEGINS_CHAIN(k, left) ((BK - (k)) % CHAIN == 0)
#define BEGIN_CHAIN MULTIPLY(=)
#define END_CHAIN_AT(k)                                                                                                             \
    if ((BK - 1 - (k)) % CHAIN == 0) { END_CHAIN }
#define END_LAST_CHAIN
#else
#define BEGINS_CHAIN(k, left) ((k) == 0 && (left) % (CHAIN / BK) == 0)
#define BEGIN_CHAIN                                                                                                                 \
    END_CHAIN                                                                                                                       \
    MULTIPLY(=)
#define END_CHAIN_AT(k)
#define END_LAST_CHAIN END_CHAIN
#endif
#else
#define whole acc
#define BEGIN_CHAINS
#define BEGINS_CHAIN(k, left) 0
#define BEGIN_CHAIN
#define END_CHAIN_AT(k)
#define END_LAST_CHAIN
#endif

// How an operand lies in memory
#if TRANS_A
#define A_AT(m, k) ((index_t)(k) * lda + (m))
#define A_LAST VA
#else
#define A_AT(m, k) ((index_t)(m) * lda + (k))
#define A_LAST 1
#endif
#if TRANS_B
#define B_AT(k, n) ((index_t)(n) * ldb + (k))
#define B_LAST 1
#else
#define B_AT(k, n) ((index_t)(k) * ldb + (n))
#define B_LAST VB
#endif
#define ALL (DM * DN)

// 1: beta is not 0, and a work-item reads up to VM rows of C before it writes the first of them: behind a store, which might have
// changed it, each load would wait for memory. With beta = 0 the registers for that cost up to 3 %.
#ifndef READS_C
#define READS_C 0
#endif

// Access i of a work-item to a tile: its k and its place along M or N, how many offsets there are for all accesses (FA, FB), and the
// place in memory of access i by them. Along K a work-item fetches 4 elements side by side, in one access or several with one
// offset; along M or N accesses that are whole rows of the tile apart share one, too. The fewer offsets, the more registers for the
// product. Where work-items cover whole rows, what follows from tid and what follows from i are summands: then the places in local
// memory are one register and constants, too.
#if TRANS_A
#if ALL * VA % BM == 0
#define A_K(i) (tid * VA / BM + (i) * (ALL * VA / BM))
#define A_M(i) (tid * VA % BM)
#define FA 1
#define A_FROM(i) (A + at_a[0] + A_AT(0, (i) * (ALL * VA / BM)))
#else
#define A_K(i) ((tid + (i) * ALL) * VA / BM)
#define A_M(i) ((tid + (i) * ALL) * VA % BM)
#define FA LA
#define A_FROM(i) (A + at_a[i])
#endif
#else
#define SA (BK % 4 == 0 && LA * VA % 4 == 0 ? 4 / VA : 1) // accesses side by side
#if ALL * SA * VA % BK == 0
#define A_K(i) (tid * (SA * VA) % BK + (i) % SA * VA)
#define A_M(i) (tid * (SA * VA) / BK + (i) / SA * (ALL * SA * VA / BK))
#else
#define A_K(i) ((tid + (i) / SA * ALL) * (SA * VA) % BK + (i) % SA * VA)
#define A_M(i) ((tid + (i) / SA * ALL) * (SA * VA) / BK)
#endif
#define FA (LA / SA)
#define A_FROM(i) (A + at_a[(i) / SA] + (i) % SA * VA)
#endif
#if TRANS_B
#define SB (BK % 4 == 0 && LB * VB % 4 == 0 ? 4 / VB : 1)
#if ALL * SB * VB % BK == 0
#define B_K(i) (tid * (SB * VB) % BK + (i) % SB * VB)
#define B_N(i) (tid * (SB * VB) / BK + (i) / SB * (ALL * SB * VB / BK))
#else
#define B_K(i) ((tid + (i) / SB * ALL) * (SB * VB) % BK + (i) % SB * VB)
#define B_N(i) ((tid + (i) / SB * ALL) * (SB * VB) / BK)
#endif
#define FB (LB / SB)
#define B_FROM(i) (B + at_b[(i) / SB] + (i) % SB * VB)
#else
#if ALL * VB % BN == 0
#define B_K(i) (tid * VB / BN + (i) * (ALL * VB / BN))
#define B_N(i) (tid * VB % BN)
#define FB 1
#define B_FROM(i) (B + at_b[0] + B_AT((i) * (ALL * VB / BN), 0))
#else
#define B_K(i) ((tid + (i) * ALL) * VB / BN)
#define B_N(i) ((tid + (i) * ALL) * VB % BN)
#define FB LB
#define B_FROM(i) (B + at_b[i])
#endif
#endif

// From registers into local memory
void pack(LPTR float (*As)[BM + PADA], LPTR float (*Bs)[BN + PADB], VECTOR(VA) *a, VECTOR(VB) *b, const uint tid)
{
    UNROLL for (int i = 0; i < LA; ++i) {
#if TRANS_A
        LOCAL_V(VA, &As[A_K(i)][A_M(i)]) = a[i];
#else
        for (int e = 0; e < VA; ++e) As[A_K(i) + e][A_M(i)] = ELEMENT(a[i], e);
#endif
    }
    UNROLL for (int i = 0; i < LB; ++i) {
#if TRANS_B
        for (int e = 0; e < VB; ++e) Bs[B_K(i) + e][B_N(i)] = ELEMENT(b[i], e);
#else
        LOCAL_V(VB, &Bs[B_K(i)][B_N(i)]) = b[i];
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
