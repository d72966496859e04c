// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//            b0  b1 ............. b15
//       a0   o   o   o   o ...  o
//       ..   o   o   o   o ...  o        a thread tile twice as wide as it is high
//       a7   o   o   o   o ...  o        (TM = 8, TN = 16), boustrophedon
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of C;
// each packs LA vectors of A and LB of B.
// Preconditions: M, N, K are whole tiles;
// A and lda are aligned to VA floats, B, C, ldb and ldc to VB.
// Idea: a rectangular thread tile. A row of 16 multiplications has one turn where two rows of 8
// have two, and 8 + 16 floats from local memory serve 128 multiplications: 0.19 a multiplication
// where 8 x 8 reads 0.25. It takes nearly every register there is.

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

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[2][BK][BM + PADA] ALIGNED(VA); // As[buffer][k][m]
    __local float Bs[2][BK][BN] ALIGNED(VB);        // Bs[buffer][k][n]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int lane = tid % (LM * LN);
    const int warp = tid / (LM * LN);
    const int tn = warp % (BN / WN) * WN + lane % LN * VB;
    const int tm = warp / (BN / WN) * WM + lane / LN * VA;
    A += (index_t)(get_group_id(1) * BM) * lda;
    B += get_group_id(0) * BN;
    C += (index_t)(get_group_id(1) * BM + tm) * ldc + get_group_id(0) * BN + tn;

    float acc[TM][TN];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;

    VECTOR(VA) coming_a[LA];
    VECTOR(VB) coming_b[LB];
    int now = 0; // the buffer that is complete
    fetch(coming_a, coming_b, A, lda, B, ldb, tid);
    pack(As[0], Bs[0], coming_a, coming_b, tid);
    barrier(CLK_LOCAL_MEM_FENCE);

    for (int k0 = 0; k0 < K; k0 += BK) {
        A += BK;
        B += (index_t)BK * ldb;
        if (k0 + BK < K) fetch(coming_a, coming_b, A, lda, B, ldb, tid);

        VECTOR(VA) a[2][TM / VA];
        VECTOR(VB) b[2][TN / VB];
        read(a[0], b[0], As[now], Bs[now], 0, tm, tn);
        UNROLL for (int k = 0; k < BK; ++k) {
            if (k + 1 < BK) read(a[(k + 1) % 2], b[(k + 1) % 2], As[now], Bs[now], k + 1, tm, tn);
            for (int i = 0; i < TM; ++i)
                for (int step = 0; step < TN; ++step) {
                    // odd rows run from right to left
                    const int j = i % 2 ? TN - 1 - step : step;
                    acc[i][j] += ELEMENT(a[k % 2][i / VA], i % VA) *
                                 ELEMENT(b[k % 2][j / VB], j % VB);
                }
        }
        now = 1 - now;
        if (k0 + BK < K) pack(As[now], Bs[now], coming_a, coming_b, tid);
        barrier(CLK_LOCAL_MEM_FENCE); // the next tiles are complete, nobody reads these any more
    }

    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VB; ++j) {
            const index_t c = (index_t)(i / VA * SM + i % VA) * ldc + j * SN;
            VECTOR(VB) result = ZERO(VB);
            for (int e = 0; e < VB; ++e) ELEMENT(result, e) = alpha * acc[i][j * VB + e];
            if (beta != 0.0f) result += beta * GLOBAL_V(VB, &C[c]); // beta = 0 never reads C
            GLOBAL_V(VB, &C[c]) = result;
        }
}
