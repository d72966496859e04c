// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//              k0                      n0
//            +----+----+----+        +----+----+
//     A   m0 |####|    |    |  x  B  |####|    | k0      A and B are walked tile by tile (####)
//            +----+----+----+        +----+----+         through local memory
//
// Work-group: BN x BM work-items, one for each element of a BM x BN block of C. BM = BN = BK.
// Preconditions: M, N, K are whole tiles.
// Idea: a work-group stages a tile of A and a tile of B in local memory,
// so that each element is read from global memory once a work-group and
// not once a work-item: BK times less global traffic. Two barriers a tile.

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

    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += BK) {
        As[tm][tn] = A[(size_t)m * lda + k0 + tn];
        Bs[tm][tn] = B[(size_t)(k0 + tm) * ldb + n];
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        UNROLL for (int k = 0; k < BK; ++k) acc += As[tm][k] * Bs[k][tn];
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    const size_t c = (size_t)m * ldc + n;
    float result = alpha * acc;
    if (beta != 0.0f) result += beta * C[c]; // beta = 0 never reads C
    C[c] = result;
}
