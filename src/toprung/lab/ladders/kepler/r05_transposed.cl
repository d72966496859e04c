// C = alpha * A * B + beta * C
// row-major: B is K x N (ldb), C is M x N (ldc). A comes transposed: AT is K x M (lda)
//
//                m0                      n0
//            +---+####+---+          +---+####+---+
//     AT  k0 |   |####|   |   B   k0 |   |####|   |      both tiles are BK rows cut out of a matrix
//            +---+####+---+          +---+####+---+      that is walked downwards
//                  BM                      BN
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / VEC, for a BM x BN block of C.
// BK is free.
// Preconditions: M, N, K are whole tiles; C and its leading dimension are aligned to VEC floats.
// Idea: A is transposed beforehand by a small kernel of its own, so that both tiles load the same
// way, along rows that are as long as the tile is wide. BK no longer needs to equal BM and BN. As
// is written down its columns: PADA keeps these writes out of each other's banks. (Neither tile is
// loaded wide any more; rung 7 wins that back.)

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict AT, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BM][BK + PADA];       // As[m][k]
    __local float Bs[BK][BN] ALIGNED(VEC); // Bs[k][n]

    const int tn = get_local_id(0) * VEC;
    const int tm = get_local_id(1);
    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int n0 = get_group_id(0) * BN;
    const int m0 = get_group_id(1) * BM;

    VECTOR(VEC) acc[TM];
    for (int i = 0; i < TM; ++i) acc[i] = ZERO(VEC);

    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 0, l = tid; i < LA; ++i, l += DM * DN)
            As[l % BM][l / BM] = AT[(size_t)(k0 + l / BM) * lda + m0 + l % BM];
        for (int i = 0, l = tid; i < LB; ++i, l += DM * DN)
            Bs[l / BN][l % BN] = B[(size_t)(k0 + l / BN) * ldb + n0 + l % BN];
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        for (int k = 0; k < BK; ++k) {
            const VECTOR(VEC) b = LOCAL_V(VEC, &Bs[k][tn]);
            for (int i = 0; i < TM; ++i) acc[i] += As[tm + i * DM][k] * b;
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int i = 0; i < TM; ++i) {
        const size_t c = (size_t)(m0 + tm + i * DM) * ldc + n0 + tn;
        VECTOR(VEC) result = alpha * acc[i];
        if (beta != 0.0f) result += beta * GLOBAL_V(VEC, &C[c]); // beta = 0 never reads C
        GLOBAL_V(VEC, &C[c]) = result;
    }
}
