// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//              n..n+TN-1
//            +-|==|----+
//         m  = oooo    |           one work-item owns TM x TN elements:
//       ...  = oooo    |  BM       a vector of VA = TM floats of A
//    m+TM-1  = oooo    |           times a vector of VB = TN floats of B
//            +---------+
//                BN
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of C;
// each packs LA vectors of A and LB of B.
// Preconditions: M, N, K are whole tiles;
// A and lda are aligned to VA floats, B, C, ldb and ldc to VB.
// Idea: a 4 x 4 micro-kernel. The block grows and BK shrinks, so local memory stays the same size;
// two vectors read from it serve TM * TN multiplications: 1/TM + 1/TN local reads for each.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BK][BM + PADA] ALIGNED(VA); // As[k][m]
    __local float Bs[BK][BN] ALIGNED(VB);        // Bs[k][n]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int tn = tid % DN * TN;
    const int tm = tid / DN * TM;
    A += (index_t)(get_group_id(1) * BM) * lda;
    B += get_group_id(0) * BN;
    C += (index_t)(get_group_id(1) * BM + tm) * ldc + get_group_id(0) * BN + tn;

    VECTOR(VB) acc[TM];
    for (int i = 0; i < TM; ++i) acc[i] = ZERO(VB);

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
            VECTOR(VA) a = LOCAL_V(VA, &As[k][tm]);
            const VECTOR(VB) b = LOCAL_V(VB, &Bs[k][tn]);
            for (int i = 0; i < TM; ++i) acc[i] += ELEMENT(a, i) * b;
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int i = 0; i < TM; ++i) {
        VECTOR(VB) result = alpha * acc[i];
        // beta = 0 never reads C
        if (beta != 0.0f) result += beta * GLOBAL_V(VB, &C[(index_t)i * ldc]);
        GLOBAL_V(VB, &C[(index_t)i * ldc]) = result;
    }
}
