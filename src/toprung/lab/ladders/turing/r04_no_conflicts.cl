// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//         As[m][k]                As[k][m]
//       bank 0 1 2 .. 31        bank 0 1 2 .. 31 | 0      one work-item after the other writes
//        m=0 # # # .. #          k=0 # # # .. #  | p      down a column of As: without the padding
//        m=1 # # # .. #    ->    k=1   # # .. #  | #      p all 32 would meet in one bank; with it
//                                k=2     # .. #  | #      each row begins one bank further on
//
// Work-group: BN x BM work-items, one for each element of a BM x BN block of C. BM = BN = BK.
// Preconditions: M, N, K are whole tiles.
// Idea: no bank conflicts. Both tiles lie with k outermost: neighbouring work-items read
// neighbouring elements of Bs and the same element of As. A is transposed while it is packed; PADA
// = 1 keeps those writes apart (the published kernel has PADA = 0).

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BK][BM + PADA] ALIGNED(4); // As[k][m]
    __local float Bs[BK][BN] ALIGNED(4);        // Bs[k][n]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int tn = tid % BN;
    const int tm = tid / BN;
    A += (index_t)(get_group_id(1) * BM + tm) * lda + tn;
    B += (index_t)tm * ldb + get_group_id(0) * BN + tn;
    C += (index_t)(get_group_id(1) * BM + tm) * ldc + get_group_id(0) * BN + tn;

    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += BK) {
        As[tn][tm] = *A;
        Bs[tm][tn] = *B;
        A += BK;
        B += (index_t)BK * ldb;
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        for (int k = 0; k < BK; ++k) acc += As[k][tm] * Bs[k][tn];
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    float result = alpha * acc;
    if (beta != 0.0f) result += beta * *C; // beta = 0 never reads C
    *C = result;
}
