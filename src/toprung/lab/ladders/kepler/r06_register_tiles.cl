// C = alpha * A * B + beta * C
// row-major: B is K x N (ldb), C is M x N (ldc). A comes transposed: AT is K x M (lda)
//
//               tn          tn + DN
//            +-|==|--------|==|----+
//         tm | oooo        oooo    |      one work-item (tn, tm) owns TM x TN elements:
//    tm + DM | oooo        oooo    |      TM rows DM apart,
//            +---------------------+      TN / VEC vectors of columns DN vectors apart
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of C.
// Preconditions: M, N, K are whole tiles; C and its leading dimension are aligned to VEC floats.
// Idea: two-dimensional register blocking. TM elements of A and TN
// elements of B, held in registers, give TM * TN multiplications: local
// reads for each fall from 1/TM + 1/VEC to 1/TM + 1/TN.

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

    VECTOR(VEC) acc[TM][TN / VEC];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VEC; ++j) acc[i][j] = ZERO(VEC);

    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = 0, l = tid; i < LA; ++i, l += DM * DN)
            As[l % BM][l / BM] = AT[(size_t)(k0 + l / BM) * lda + m0 + l % BM];
        for (int i = 0, l = tid; i < LB; ++i, l += DM * DN)
            Bs[l / BN][l % BN] = B[(size_t)(k0 + l / BN) * ldb + n0 + l % BN];
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        for (int k = 0; k < BK; ++k) {
            VECTOR(VEC) b[TN / VEC];
            for (int j = 0; j < TN / VEC; ++j) b[j] = LOCAL_V(VEC, &Bs[k][tn + j * DN * VEC]);
            for (int i = 0; i < TM; ++i) {
                const float a = As[tm + i * DM][k];
                for (int j = 0; j < TN / VEC; ++j) acc[i][j] += a * b[j];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VEC; ++j) {
            const size_t c = (size_t)(m0 + tm + i * DM) * ldc + n0 + tn + j * DN * VEC;
            VECTOR(VEC) result = alpha * acc[i][j];
            if (beta != 0.0f) result += beta * GLOBAL_V(VEC, &C[c]); // beta = 0 never reads C
            GLOBAL_V(VEC, &C[c]) = result;
        }
}
