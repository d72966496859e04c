// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//              n..n+VEC-1
//            +-|==|----+
//         m0 | oooo    |           one work-item (tn, tm) owns VEC columns side by side in
//            |  :      |  BM       rows tm, tm + DM, tm + 2 DM, ...
//            | oooo    |
//            +---------+
//                BN
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / VEC, for a BM x BN block of C.
// BM = BN = BK.
// Preconditions: M, N, K are whole tiles;
// A, B, C and their leading dimensions are aligned to VEC floats.
// Idea: wider data types. One access moves VEC floats between global
// memory, local memory and registers, so there are VEC times fewer loads
// and stores, and one element of A serves VEC multiplications.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BM][BK] ALIGNED(VEC); // As[m][k]
    __local float Bs[BK][BN] ALIGNED(VEC); // Bs[k][n]

    const int tn = get_local_id(0) * VEC;
    const int tm = get_local_id(1);
    const int n = get_group_id(0) * BN + tn;
    const int m = get_group_id(1) * BM + tm;

    VECTOR(VEC) acc[TM];
    for (int i = 0; i < TM; ++i) acc[i] = ZERO(VEC);

    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 0; i < TM; ++i) {
            LOCAL_V(VEC, &As[tm + i * DM][tn]) =
                GLOBAL_V(VEC, &A[(size_t)(m + i * DM) * lda + k0 + tn]);
            LOCAL_V(VEC, &Bs[tm + i * DM][tn]) =
                GLOBAL_V(VEC, &B[(size_t)(k0 + tm + i * DM) * ldb + n]);
        }
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        UNROLL for (int k = 0; k < BK; ++k) {
            const VECTOR(VEC) b = LOCAL_V(VEC, &Bs[k][tn]);
            for (int i = 0; i < TM; ++i) acc[i] += As[tm + i * DM][k] * b;
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int i = 0; i < TM; ++i) {
        const size_t c = (size_t)(m + i * DM) * ldc + n;
        VECTOR(VEC) result = alpha * acc[i];
        if (beta != 0.0f) result += beta * GLOBAL_V(VEC, &C[c]); // beta = 0 never reads C
        GLOBAL_V(VEC, &C[c]) = result;
    }
}
