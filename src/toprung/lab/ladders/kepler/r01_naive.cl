// C = alpha * A * B + beta * C
// all row-major: A is M x K (lda), B is K x N (ldb), C is M x N (ldc)
//
//                 n                    n
//            . . .|. . .          . . . . . .
//     A  m - - - - - - -  x  B    . . .|. . .   ->   C  one work-item, one element
//            . . . . . .          . . .|. . .
//
// Work-group: BN x BM work-items, one for each element of a BM x BN block of C.
// Any M, N, K, any leading dimension.
// Idea: none yet. Every operand of every multiplication comes from global memory.

__kernel __attribute__((reqd_work_group_size(DN, DM, 1))) void
gemm(const int M, const int N, const int K, const float alpha,
     __global const float *restrict A, const int lda,
     __global const float *restrict B, const int ldb, const float beta,
     __global float *restrict C, const int ldc)
{
    const int n = get_global_id(0);
    const int m = get_global_id(1);
    if (m >= M || n >= N) return; // the last work-groups overhang C

    float acc = 0.0f;
    for (int k = 0; k < K; ++k) acc += A[(size_t)m * lda + k] * B[(size_t)k * ldb + n];

    const size_t c = (size_t)m * ldc + n;
    float result = alpha * acc;
    if (beta != 0.0f) result += beta * C[c]; // beta = 0 never reads C
    C[c] = result;
}
