// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//              n..n+TN-1
//            +-|==|----+
//         m  | oooo    |           one work-item owns TN elements side by side in one row:
//            |         |  BM       a vector of VEC = TN floats
//            +---------+
//                BN
//
// Work-group: DN x DM work-items, DM = BM, DN = BN / TN, for a BM x BN block of C;
// each packs LA elements of A and LB of B.
// Preconditions: M, N, K are whole tiles;
// A, B, C and their leading dimensions are aligned to VEC floats.
// Idea: vector loads. One access moves VEC floats:
// fewer instructions, 128-bit transactions at width 4.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BK][BM + PADA];       // As[k][m]
    __local float Bs[BK][BN] ALIGNED(VEC); // Bs[k][n]

    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int tn = tid % DN * TN;
    const int tm = tid / DN;
    A += (index_t)(get_group_id(1) * BM) * lda;
    B += get_group_id(0) * BN;
    C += (index_t)(get_group_id(1) * BM + tm) * ldc + get_group_id(0) * BN + tn;

    VECTOR(VEC) acc = ZERO(VEC);

    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 0; i < LA / VEC; ++i) {
            const int l = (tid + i * DM * DN) * VEC;
            const VECTOR(VEC) a = GLOBAL_V(VEC, &A[(index_t)(l / BK) * lda + l % BK]);
            for (int e = 0; e < VEC; ++e) As[l % BK + e][l / BK] = ELEMENT(a, e);
        }
        for (int i = 0; i < LB / VEC; ++i) {
            const int l = (tid + i * DM * DN) * VEC;
            LOCAL_V(VEC, &Bs[l / BN][l % BN]) = GLOBAL_V(VEC, &B[(index_t)(l / BN) * ldb + l % BN]);
        }
        A += BK;
        B += (index_t)BK * ldb;
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        UNROLL for (int k = 0; k < BK; ++k) acc += As[k][tm] * LOCAL_V(VEC, &Bs[k][tn]);
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    VECTOR(VEC) result = alpha * acc;
    if (beta != 0.0f) result += beta * GLOBAL_V(VEC, C); // beta = 0 never reads C
    GLOBAL_V(VEC, C) = result;
}
