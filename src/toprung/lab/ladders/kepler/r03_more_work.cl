// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//              n
//            +-|--+
//         m0 | o  |                one work-item (tn, tm) owns the TM elements o of its column:
//            | :  |  BM            rows tm, tm + DM, tm + 2 DM, ...
//            | o  |
//            +----+
//              BN
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN, for a BM x BN block of C. BM = BN = BK.
// Preconditions: M, N, K are whole tiles.
// Idea: a work-item computes a strip of TM rows of C, so that one element of B read from local
// memory serves TM multiplications: 1 + 1/TM local reads for each, where rung 2 needs 2.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BM][BK] ALIGNED(4); // As[m][k]
    __local float Bs[BK][BN] ALIGNED(4); // Bs[k][n]

    const int tn = get_local_id(0);
    const int tm = get_local_id(1);
    const int n = get_group_id(0) * BN + tn;
    const int m = get_group_id(1) * BM + tm;

    float acc[TM];
    for (int i = 0; i < TM; ++i) acc[i] = 0.0f;

    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 0; i < TM; ++i) {
            As[tm + i * DM][tn] = A[(size_t)(m + i * DM) * lda + k0 + tn];
            Bs[tm + i * DM][tn] = B[(size_t)(k0 + tm + i * DM) * ldb + n];
        }
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        UNROLL for (int k = 0; k < BK; ++k) {
            const float b = Bs[k][tn];
            for (int i = 0; i < TM; ++i) acc[i] += As[tm + i * DM][k] * b;
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int i = 0; i < TM; ++i) {
        const size_t c = (size_t)(m + i * DM) * ldc + n;
        float result = alpha * acc[i];
        if (beta != 0.0f) result += beta * C[c]; // beta = 0 never reads C
        C[c] = result;
    }
}
