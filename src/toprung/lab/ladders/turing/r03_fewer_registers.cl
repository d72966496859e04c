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
// Idea: fewer live registers. One linear index says which row and column a
// work-item has; where it stands in A, B and C is computed once, and the
// pointers walk from tile to tile. Nothing else is kept through the loop.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BM][BK]; // As[m][k]
    __local float Bs[BN][BK]; // Bs[n][k]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int tn = tid % BN;
    const int tm = tid / BN;
    A += (index_t)(get_group_id(1) * BM + tm) * lda + tn;
    B += (index_t)tm * ldb + get_group_id(0) * BN + tn;
    C += (index_t)(get_group_id(1) * BM + tm) * ldc + get_group_id(0) * BN + tn;

    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += BK) {
        As[tm][tn] = *A;
        Bs[tn][tm] = *B;
        A += BK;
        B += (index_t)BK * ldb;
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        for (int k = 0; k < BK; ++k) acc += As[tm][k] * Bs[tn][k];
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    float result = alpha * acc;
    if (beta != 0.0f) result += beta * *C; // beta = 0 never reads C
    *C = result;
}
