// The granules (64x64 of C) that two fp16 terms cannot carry, in plain fp32: one chain of fused multiply-adds for each element.
// C = alpha*op(A)*op(B) + beta*C from the operands as they were given. A block looks through its share of the granules' flags and
// leaves where none is set; ``count`` grows by the granules computed. The one idea: always launched, so nobody waits for the host.

#define DEPTH 16

extern "C" __global__ __launch_bounds__(256) void guard(int M, int N, int K, float alpha, const float *A, int lda, int across_a,
                                                        const float *B, int ldb, int across_b, float beta, float *C, int ldc,
                                                        const Rows *summary_a, const Rows *summary_b, ulong *count) {
    __shared__ float As[DEPTH][64 + 4], Bs[DEPTH][64 + 4];
    __shared__ int wanted[256], number;
    int high = (M + 63) / 64, wide = (N + 63) / 64, granules = high * wide, t = threadIdx.x, tx = t % 16, ty = t / 16;
    for (int from = blockIdx.x * 256; from < granules; from += gridDim.x * 256) {
        if (t == 0) number = 0;
        __syncthreads();
        int g = from + t;
        if (g < granules && refused(rows_of(summary_a, g / wide, M), rows_of(summary_b, g % wide, N), K)) wanted[atomicAdd(&number, 1)] = g;
        __syncthreads();
        int todo = number;
        if (t == 0 && todo) atomicAdd(count, (ulong)todo);
        for (int i = 0; i < todo; ++i) {
            int top = wanted[i] / wide * 64, left = wanted[i] % wide * 64;
            float acc[4][4] = {};
            for (int k0 = 0; k0 < K; k0 += DEPTH) {
                for (int e = t; e < 64 * DEPTH; e += 256) { // consecutive threads along memory
                    int k = across_a ? e / 64 : e % DEPTH, r = across_a ? e % 64 : e / DEPTH;
                    bool in = k0 + k < K && top + r < M;
                    As[k][r] = in ? A[across_a ? (ulong)(k0 + k) * lda + top + r : (ulong)(top + r) * lda + k0 + k] : 0.0f;
                    k = across_b ? e / 64 : e % DEPTH, r = across_b ? e % 64 : e / DEPTH;
                    in = k0 + k < K && left + r < N;
                    Bs[k][r] = in ? B[across_b ? (ulong)(k0 + k) * ldb + left + r : (ulong)(left + r) * ldb + k0 + k] : 0.0f;
                }
                __syncthreads();
                int depth = min(DEPTH, K - k0); // what lies behind K is not multiplied: 0 times Inf is a NaN
                for (int k = 0; k < depth; ++k)
#pragma unroll
                    for (int y = 0; y < 4; ++y)
#pragma unroll
                        for (int x = 0; x < 4; ++x) acc[y][x] = fmaf(As[k][ty + 16 * y], Bs[k][tx + 16 * x], acc[y][x]);
                __syncthreads();
            }
#pragma unroll
            for (int y = 0; y < 4; ++y)
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    int row = top + ty + 16 * y, col = left + tx + 16 * x;
                    if (row >= M || col >= N) continue;
                    float *to = C + (ulong)row * ldc + col;
                    *to = beta != 0 ? fmaf(beta, *to, alpha * acc[y][x]) : alpha * acc[y][x];
                }
        }
        __syncthreads();
    }
}
