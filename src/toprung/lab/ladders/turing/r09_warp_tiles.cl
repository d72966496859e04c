// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//      block                  warp                         tn          tn + SN
//     +------+------+        +--+--+--+--+              +-|==|--------|==|----+
//     | warp | warp |        |  |  |  |  | LM     tm  = | oooo        oooo    |   a work-item's
//     +------+------+  BM    +--+--+--+--+            = | oooo        oooo    |   pieces lie within
//     |      |      |        |  |  |  |  | lanes  +SM = | oooo        oooo    |   its warp's tile
//     +------+------+        +--+--+--+--+              +---------------------+
//           BN                 LN lanes                       WM x WN
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of C;
// each packs LA vectors of A and LB of B.
// Preconditions: M, N, K are whole tiles;
// A and lda are aligned to VA floats, B, C, ldb and ldc to VB.
// Idea: warp tiling. The LM x LN lanes of a warp (4 x 8) share one WM x WN tile, as square as it
// can be, so that one read of As is broadcast to LN lanes and one of Bs to LM: a warp reads WM + WN
// floats for WM * WN multiplications, fewest where WM and WN are near each other. Rung 8's warps
// are 2 x 16 lanes: 144 floats at 8 x 8 where these read 96.

#define LM (WM / TM)   // lanes of a warp along M
#define LN (WN / TN)   // and along N
#define SM (LM * VA)   // from one piece of a work-item to its next, down
#define SN (LN * VB)   // and across

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BK][BM + PADA] ALIGNED(VA); // As[k][m]
    __local float Bs[BK][BN] ALIGNED(VB);        // Bs[k][n]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int lane = tid % (LM * LN);
    const int warp = tid / (LM * LN);
    const int tn = warp % (BN / WN) * WN + lane % LN * VB;
    const int tm = warp / (BN / WN) * WM + lane / LN * VA;
    A += (index_t)(get_group_id(1) * BM) * lda;
    B += get_group_id(0) * BN;
    C += (index_t)(get_group_id(1) * BM + tm) * ldc + get_group_id(0) * BN + tn;

    VECTOR(VB) acc[TM][TN / VB];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VB; ++j) acc[i][j] = ZERO(VB);

    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 0; i < LA; ++i) {
            const int l = (tid + i * DM * DN) * VA;
            const VECTOR(VA) a = GLOBAL_V(VA, &A[(index_t)(l / BK) * lda + l % BK]);
            for (int e = 0; e < VA; ++e) As[l % BK + e][l / BK] = ELEMENT(a, e);
        }
        for (int i = 0; i < LB; ++i) {
            const int l = (tid + i * DM * DN) * VB;
            LOCAL_V(VB, &Bs[l / BN][l % BN]) = GLOBAL_V(VB, &B[(index_t)(l / BN) * ldb + l % BN]);
        }
        A += BK;
        B += (index_t)BK * ldb;
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        UNROLL for (int k = 0; k < BK; ++k) {
            VECTOR(VA) a[TM / VA];
            VECTOR(VB) b[TN / VB];
            for (int i = 0; i < TM / VA; ++i) a[i] = LOCAL_V(VA, &As[k][tm + i * SM]);
            for (int j = 0; j < TN / VB; ++j) b[j] = LOCAL_V(VB, &Bs[k][tn + j * SN]);
            for (int i = 0; i < TM; ++i)
                for (int j = 0; j < TN / VB; ++j) acc[i][j] += ELEMENT(a[i / VA], i % VA) * b[j];
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VB; ++j) {
            const index_t c = (index_t)(i / VA * SM + i % VA) * ldc + j * SN;
            VECTOR(VB) result = alpha * acc[i][j];
            if (beta != 0.0f) result += beta * GLOBAL_V(VB, &C[c]); // beta = 0 never reads C
            GLOBAL_V(VB, &C[c]) = result;
        }
}
