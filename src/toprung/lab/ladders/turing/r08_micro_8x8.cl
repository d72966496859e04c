// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//                    tn          tn + SN
//                 +-|==|--------|==|----+
//         tm    = | oooo        oooo    |    one work-item owns TM x TN elements in VA x VB pieces:
//               = | oooo        oooo    |    TM / VA groups of VA rows SM apart,
//    tm + SM    = | oooo        oooo    |    TN / VB vectors of columns SN apart
//                 +---------------------+
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of C;
// each packs LA vectors of A and LB of B.
// Preconditions: M, N, K are whole tiles;
// A and lda are aligned to VA floats, B, C, ldb and ldc to VB.
// Idea: an 8 x 8 micro-kernel, several vectors a side: half the local reads
// for each multiplication again. The vectors of neighbouring work-items lie
// side by side, so that a read of them all touches every bank once.

#define SM (DM * VA) // from one piece of a work-item to its next, down
#define SN (DN * VB) // and across

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BK][BM + PADA] ALIGNED(VA); // As[k][m]
    __local float Bs[BK][BN] ALIGNED(VB);        // Bs[k][n]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int tn = tid % DN * VB;
    const int tm = tid / DN * VA;
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
