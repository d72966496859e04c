// C = alpha * A * B + beta * C
// row-major: B is K x N (ldb), C is M x N (ldc). A comes transposed: AT is K x M (lda)
//
//                    tn          tn + DN
//                 +-|==|--------|==|----+
//         tm    = | oooo        oooo    |      one work-item (tn, tm) owns TM x TN elements
//               = | oooo        oooo    |      in VA x VB pieces:
//    tm + DM    = | oooo        oooo    |      TM / VA groups of VA rows DM groups apart,
//                 +---------------------+      TN / VB vectors of columns DN vectors apart
//
// Work-group: DN x DM work-items, DM = BM / TM, DN = BN / TN, for a BM x BN block of C.
// Preconditions: AT comes as whole tiles (it is copied anyway).
// With PREDICATE=0 so do B and C, aligned to VB floats.
// Idea: own the edges. The published way pads the operands to whole tiles and crops the result
// (PREDICATE=0); with PREDICATE=1 the kernel asks, as it loads B and stores C, which elements
// exist, and no helper touches them. Any M, N, K, ldb, ldc.

// BK rows of AT and of B, from where the pointers stand, into local memory;
// of B only k_left rows and n_left columns exist
void stage(LPTR float (*As)[BM], LPTR float (*Bs)[BN],
           __global const float *restrict AT, const int lda,
           __global const float *restrict B, const int ldb, const int tid,
           const int k_left, const int n_left)
{
    for (int i = 0, l = tid * VA; i < LA; ++i, l += DM * DN * VA)
        LOCAL_V(VA, &As[l / BM][l % BM]) = READ_V(VA, &AT[(index_t)(l / BM) * lda + l % BM]);
#if PREDICATE
    // an edge tile, or rows that are not aligned: one float at a time
    if (k_left < BK || n_left < BN || ldb % VB != 0) {
        for (int l = tid; l < BK * BN; l += DM * DN)
            Bs[l / BN][l % BN] =
                l / BN < k_left && l % BN < n_left ? B[(index_t)(l / BN) * ldb + l % BN] : 0.0f;
        return;
    }
#endif
    for (int i = 0, l = tid * VB; i < LB; ++i, l += DM * DN * VB)
        LOCAL_V(VB, &Bs[l / BN][l % BN]) = READ_V(VB, &B[(index_t)(l / BN) * ldb + l % BN]);
}

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict AT, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[2][BK][BM] ALIGNED(VA); // As[buffer][k][m]
    __local float Bs[2][BK][BN] ALIGNED(VB); // Bs[buffer][k][n]

    const int tn = get_local_id(0) * VB;
    const int tm = get_local_id(1) * VA;
    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int n0 = get_group_id(0) * BN;
    const int m0 = get_group_id(1) * BM;

    VECTOR(VB) acc[TM][TN / VB];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VB; ++j) acc[i][j] = ZERO(VB);

    int now = 0; // the buffer that is complete
    stage(As[0], Bs[0], &AT[m0], lda, &B[n0], ldb, tid, K, N - n0);
    barrier(CLK_LOCAL_MEM_FENCE);

    for (int k0 = 0; k0 < K; k0 += BK) {
        const int next = k0 + BK;
        if (next < K)
            stage(As[1 - now], Bs[1 - now], &AT[(index_t)next * lda + m0], lda,
                  &B[(index_t)next * ldb + n0], ldb, tid, K - next, N - n0);

        UNROLL for (int k = 0; k < BK; ++k) {
            VECTOR(VA) a[TM / VA];
            VECTOR(VB) b[TN / VB];
            for (int i = 0; i < TM / VA; ++i) a[i] = LOCAL_V(VA, &As[now][k][tm + i * DM * VA]);
            for (int j = 0; j < TN / VB; ++j) b[j] = LOCAL_V(VB, &Bs[now][k][tn + j * DN * VB]);
            for (int i = 0; i < TM; ++i)
                for (int j = 0; j < TN / VB; ++j) acc[i][j] += ELEMENT(a[i / VA], i % VA) * b[j];
        }
        barrier(CLK_LOCAL_MEM_FENCE); // the next tiles are complete, nobody reads these any more
        now = 1 - now;
    }

    UNROLL for (int i = 0; i < TM; ++i)
        UNROLL for (int j = 0; j < TN / VB; ++j) {
            const index_t c =
                (index_t)(m0 + tm + i / VA * DM * VA + i % VA) * ldc + n0 + tn + j * DN * VB;
            VECTOR(VB) result = alpha * acc[i][j];
#if PREDICATE
            const int left =
                m0 + tm + i / VA * DM * VA + i % VA < M ? N - n0 - tn - j * DN * VB : 0;
            if (left < VB || ldc % VB != 0) {
                for (int e = 0; e < VB; ++e)
                    if (e < left)
                        C[c + e] = ELEMENT(result, e) + (beta != 0.0f ? beta * C[c + e] : 0.0f);
                continue;
            }
#endif
            if (beta != 0.0f) result += beta * GLOBAL_V(VB, &C[c]); // beta = 0 never reads C
            GLOBAL_V(VB, &C[c]) = result;
        }
}
