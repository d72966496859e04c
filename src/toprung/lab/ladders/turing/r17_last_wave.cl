// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//     one wave after the other:   |0000000|1111111|2222222|3333   |
//                                 who runs alone in the last wave has a whole tile
//     cut along K:                |0000000|1111111|2222222|333333|
//                                 the last wave's tiles end together: long pieces
//                                 start first, short ones where a long one is done
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / TN, for a piece: the K
// from ... to of a BM x BN block of C at row m and column n. pieces[group] =
// {m, n, from, to, part}. The piece that begins a block writes to C (part < 0), all
// others to parts[part]; a second launch adds those to C (kernels/add_parts.cl).
// Preconditions: M, N, K are whole tiles;
// A and lda are aligned to VA floats, B, C, ldb and ldc to VB.
// Idea: the last wave. What is left for it when all others are whole is cut so that nothing runs
// alone. The host has the list of pieces, in the order in which they start, bands and all; the
// registers that frees hold a tile twice as deep, whose multiplications go down pairs of columns.

#define LM (WM / TM)   // lanes of a warp along M
#define LN (WN / TN)   // and along N
#define SM (LM * VA)   // from one piece of a work-item to its next, down
#define SN (LN * VB)   // and across

// A tile of A and one of B, from where the pointers stand, into registers
void fetch(VECTOR(VA) *a, VECTOR(VB) *b, __global const float *A, const int lda,
           __global const float *B, const int ldb, const int tid)
{
    for (int i = 0; i < LA; ++i) {
        const int l = (tid + i * DM * DN) * VA;
        a[i] = GLOBAL_V(VA, &A[(index_t)(l / BK) * lda + l % BK]);
    }
    for (int i = 0; i < LB; ++i) {
        const int l = (tid + i * DM * DN) * VB;
        b[i] = GLOBAL_V(VB, &B[(index_t)(l / BN) * ldb + l % BN]);
    }
}

// and from there into local memory
void pack(LPTR float (*As)[BM + PADA], LPTR float (*Bs)[BN],
          VECTOR(VA) *a, VECTOR(VB) *b, const int tid)
{
    for (int i = 0; i < LA; ++i) {
        const int l = (tid + i * DM * DN) * VA;
        for (int e = 0; e < VA; ++e) As[l % BK + e][l / BK] = ELEMENT(a[i], e);
    }
    for (int i = 0; i < LB; ++i) {
        const int l = (tid + i * DM * DN) * VB;
        LOCAL_V(VB, &Bs[l / BN][l % BN]) = b[i];
    }
}

// What a work-item needs of row k of both tiles
void read(VECTOR(VA) *a, VECTOR(VB) *b, LPTR float (*As)[BM + PADA], LPTR float (*Bs)[BN],
          const int k, const int tm, const int tn)
{
    for (int i = 0; i < TM / VA; ++i) a[i] = LOCAL_V(VA, &As[k][tm + i * SM]);
    for (int j = 0; j < TN / VB; ++j) b[j] = LOCAL_V(VB, &Bs[k][tn + j * SN]);
}

__kernel __attribute__((room_for(DN, DM, 1, 2))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *C, int ldc,
     __global const int *restrict pieces, __global float *parts)
{
    __local float As[BK][BM + PADA] ALIGNED(VA); // As[k][m]
    __local float Bs[BK][BN] ALIGNED(VB);        // Bs[k][n]

    __global const int *piece = pieces + 5 * get_group_id(0);
    const int m0 = piece[0], n0 = piece[1], from = piece[2], to = piece[3], part = piece[4];
    const float old = part < 0 ? beta : 0.0f;

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int lane = tid % (LM * LN);
    const int warp = tid / (LM * LN);
    const int tn = warp % (BN / WN) * WN + lane % LN * VB;
    const int tm = warp / (BN / WN) * WM + lane / LN * VA;
    A += (index_t)m0 * lda + from;
    B += (index_t)from * ldb + n0;
    C = part < 0 ? C + (index_t)m0 * ldc + n0 : parts + (index_t)part * (BM * BN);
    ldc = part < 0 ? ldc : BN;
    C += (index_t)tm * ldc + tn;

    float acc[TM][TN];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;

    VECTOR(VA) coming_a[LA];
    VECTOR(VB) coming_b[LB];
    fetch(coming_a, coming_b, A, lda, B, ldb, tid);
    pack(As, Bs, coming_a, coming_b, tid);
    barrier(CLK_LOCAL_MEM_FENCE);

    for (int k0 = from; k0 < to; k0 += BK) {
        A += BK;
        B += (index_t)BK * ldb;
        if (k0 + BK < to) fetch(coming_a, coming_b, A, lda, B, ldb, tid);

        VECTOR(VA) a[2][TM / VA];
        VECTOR(VB) b[2][TN / VB];
        read(a[0], b[0], As, Bs, 0, tm, tn);
        UNROLL for (int k = 0; k < BK; ++k) {
            if (k + 1 < BK) read(a[(k + 1) % 2], b[(k + 1) % 2], As, Bs, k + 1, tm, tn);
            for (int j = 0; j < TN; j += 2)
                for (int step = 0; step < TM; ++step) {
                    // every other pair of columns runs upwards
                    const int i = j % 4 ? TM - 1 - step : step;
                    // and its rows as the ox ploughs
                    const int first = j + step % 2, second = j + 1 - step % 2;
                    acc[i][first] += ELEMENT(a[k % 2][i / VA], i % VA) *
                                     ELEMENT(b[k % 2][first / VB], first % VB);
                    acc[i][second] += ELEMENT(a[k % 2][i / VA], i % VA) *
                                      ELEMENT(b[k % 2][second / VB], second % VB);
                }
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads the tiles any more

        if (k0 + BK < to) pack(As, Bs, coming_a, coming_b, tid);
        barrier(CLK_LOCAL_MEM_FENCE); // the next tiles are complete
    }

    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VB; ++j) {
            const index_t c = (index_t)(i / VA * SM + i % VA) * ldc + j * SN;
            VECTOR(VB) result = ZERO(VB);
            for (int e = 0; e < VB; ++e) ELEMENT(result, e) = alpha * acc[i][j * VB + e];
            if (old != 0.0f) result += old * GLOBAL_V(VB, &C[c]); // beta = 0 never reads C
            GLOBAL_V(VB, &C[c]) = result;
        }
}
