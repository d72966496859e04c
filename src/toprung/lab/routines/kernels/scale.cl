// C = beta * C          row-major: C is M x N (ldc)
//
// What is left of C = alpha * A * B + beta * C when alpha = 0 or K = 0: A and B are not read, and with beta = 0 neither is C.
// One work-item an element. Any sizes, any leading dimension.

__kernel __attribute__((reqd_work_group_size(BN, BM, 1))) void
scale(const int M, const int N, const float beta, __global float *restrict C, const int ldc)
{
    const int n = get_global_id(0);
    const int m = get_global_id(1);
    if (m >= M || n >= N) return;
    const size_t c = (size_t)m * ldc + n;
    float result = 0.0f;
    if (beta != 0.0f) result = beta * C[c];
    C[c] = result;
}
