// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//              n..n+TN-1
//            +-|==|----+
//         m  | oooo    |           one work-item owns TN elements side by side in one row
//            |         |  BM
//            +---------+
//                BN
//
// Work-group: DN x DM work-items, DM = BM, DN = BN / TN, for a BM x BN block of C;
// each packs LA elements of A and LB of B.
// Preconditions: M, N, K are whole tiles.
// Idea: a 1 x 4 micro-kernel. One element of As serves TN multiplications:
// 1 + 1/TN local reads for each, where rung 4 needs 2.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BK][BM + PADA] ALIGNED(4); // As[k][m]
    __local float Bs[BK][BN] ALIGNED(4);        // Bs[k][n]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int tn = tid % DN * TN;
    const int tm = tid / DN;
    A += (index_t)(get_group_id(1) * BM) * lda;
    B += get_group_id(0) * BN;
    C += (index_t)(get_group_id(1) * BM + tm) * ldc + get_group_id(0) * BN + tn;

    float acc[TN];
    for (int j = 0; j < TN; ++j) acc[j] = 0.0f;

    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 0; i < LA; ++i) {
            const int l = tid + i * DM * DN;
            As[l % BK][l / BK] = A[(index_t)(l / BK) * lda + l % BK];
        }
        for (int i = 0; i < LB; ++i) {
            const int l = tid + i * DM * DN;
            Bs[l / BN][l % BN] = B[(index_t)(l / BN) * ldb + l % BN];
        }
        A += BK;
        B += (index_t)BK * ldb;
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        UNROLL for (int k = 0; k < BK; ++k) {
            const float a = As[k][tm];
            for (int j = 0; j < TN; ++j) acc[j] += a * Bs[k][tn + j];
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int j = 0; j < TN; ++j) {
        float result = alpha * acc[j];
        if (beta != 0.0f) result += beta * C[j]; // beta = 0 never reads C
        C[j] = result;
    }
}
