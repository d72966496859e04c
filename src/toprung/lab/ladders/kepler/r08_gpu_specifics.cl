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
// Preconditions: M, N, K are whole tiles;
// AT and lda are aligned to VA floats, B, C, ldb and ldc to VB.
// Idea: what one family of GPUs offers beyond the language, each behind a switch. READ_ONLY: tiles
// come through the read-only cache. SHUFFLE: the work-items of a row of the work-group each read
// one element of A and pass it round between registers.
// INDEX32: offsets of 32 bits. (CARVEOUT, BANK_WIDTH and PTX32 do not show in the text.)

// BK rows of AT and of B, from where the pointers stand, into local memory
void stage(LPTR float (*As)[BM], LPTR float (*Bs)[BN],
           __global const float *restrict AT, const int lda,
           __global const float *restrict B, const int ldb, const int tid)
{
    for (int i = 0, l = tid * VA; i < LA; ++i, l += DM * DN * VA)
        LOCAL_V(VA, &As[l / BM][l % BM]) = READ_V(VA, &AT[(index_t)(l / BM) * lda + l % BM]);
    for (int i = 0, l = tid * VB; i < LB; ++i, l += DM * DN * VB)
        LOCAL_V(VB, &Bs[l / BN][l % BN]) = READ_V(VB, &B[(index_t)(l / BN) * ldb + l % BN]);
}

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict AT, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    __local float As[BK][BM] ALIGNED(VA); // As[k][m]
    __local float Bs[BK][BN] ALIGNED(VB); // Bs[k][n]

    const int tn = get_local_id(0) * VB;
    const int tm = get_local_id(1) * VA;
    const int tid = get_local_id(1) * DN + get_local_id(0);
    const int n0 = get_group_id(0) * BN;
    const int m0 = get_group_id(1) * BM;

    VECTOR(VB) acc[TM][TN / VB];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VB; ++j) acc[i][j] = ZERO(VB);

    for (int k0 = 0; k0 < K; k0 += BK) {
        stage(As, Bs, &AT[(index_t)k0 * lda + m0], lda, &B[(index_t)k0 * ldb + n0], ldb, tid);
        barrier(CLK_LOCAL_MEM_FENCE); // the tiles are complete

        UNROLL for (int k = 0; k < BK; ++k) {
            VECTOR(VA) a[TM / VA];
            VECTOR(VB) b[TN / VB];
#if SHUFFLE
            // this work-item reads row `mine` of the TM; lane row + i reads row i
            const int mine = tid % DN % TM;
            const float one = As[k][tm + mine / VA * DM * VA + mine % VA];
            for (int i = 0; i < TM; ++i)
                ELEMENT(a[i / VA], i % VA) = LANE_READ(one, tid % SUBGROUP / DN * DN + i);
#else
            for (int i = 0; i < TM / VA; ++i) a[i] = LOCAL_V(VA, &As[k][tm + i * DM * VA]);
#endif
            for (int j = 0; j < TN / VB; ++j) b[j] = LOCAL_V(VB, &Bs[k][tn + j * DN * VB]);
            for (int i = 0; i < TM; ++i)
                for (int j = 0; j < TN / VB; ++j) acc[i][j] += ELEMENT(a[i / VA], i % VA) * b[j];
        }
        barrier(CLK_LOCAL_MEM_FENCE); // nobody reads them any more
    }

    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN / VB; ++j) {
            const index_t c =
                (index_t)(m0 + tm + i / VA * DM * VA + i % VA) * ldc + n0 + tn + j * DN * VB;
            VECTOR(VB) result = alpha * acc[i][j];
            if (beta != 0.0f) result += beta * GLOBAL_V(VB, &C[c]); // beta = 0 never reads C
            GLOBAL_V(VB, &C[c]) = result;
        }
}
