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
// Idea: a work-group packs a tile of A and a tile of B into local memory, so that each element is
// read from global memory once a work-group and not once a work-item. Both tiles lie the way the
// sum walks them, k innermost. Two barriers a tile.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BM][BK]; // As[m][k]
    __local float Bs[BN][BK]; // Bs[n][k]

    const int tn = get_local_id(0);
    const int tm = get_local_id(1);
    const int n = get_group_id(0) * BN + tn;
    const int m = get_group_id(1) * BM + tm;

    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += BK) {
        As[tm][tn] = A[(index_t)m * lda + k0 + tn];
        Bs[tn][tm] = B[(index_t)(k0 + tm) * ldb + n];
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        for (int k = 0; k < BK; ++k) acc += As[tm][k] * Bs[tn][k];
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    const index_t c = (index_t)m * ldc + n;
    float result = alpha * acc;
    if (beta != 0.0f) result += beta * C[c]; // beta = 0 never reads C
    C[c] = result;
}
