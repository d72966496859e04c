// C = alpha * (S_0 + S_1 + …) + beta * C: the results of all slices of K, added in their order, one product of a batch after another.
//
//      parts:   S_0 of product 0 | S_0 of product 1 | … | S_1 of product 0 | …       each M x ldp, ldp a multiple of 4
//
// A block has 16 x 32 of C, a thread four of a row. The one idea: a launch of its own, so that all of the device adds, nobody waits or
// counts, and the order is always the same. Where a slice raised its flag (64 x ``granule`` of C), A and B are multiplied here
// in one chain of fused multiply-adds for each element, in order of K: plain fp32's own result, Inf and NaN included.

#define ROWS 16
#define COLS 32
#define DEEP 64 // of K at a time in such a chain

extern "C" __global__ void __launch_bounds__(128)
reduce(const float *A, const float *B, float *C, float alpha, float beta, const float *parts, const uint *flags, ulong *count,
       int M, int N, int K, int batch, int slices, int ldp, int granule, long long lda, long long stride_a, int across_a,
       long long ldb, long long stride_b, int across_b, int ldc, long long stride_c) {
    __shared__ float As[ROWS][DEEP + 4];
    __shared__ __align__(16) float Bs[DEEP][COLS + 4];
    let_next_start();
    wait_for_previous();
    int tiles_m = (M + ROWS - 1) / ROWS, tiles_n = (N + COLS - 1) / COLS, block = blockIdx.x, t = threadIdx.x;
    int product = block / (tiles_m * tiles_n), top = block / tiles_n % tiles_m * ROWS, left = block % tiles_n * COLS;
    int high = (M + 63) / 64, wide = (N + granule - 1) / granule;
    const uint *flag = flags + ((long long)product * high + top / 64) * wide + left / granule;
    bool raised = false;
    for (int s = t; s < slices && alpha != 0; s += 128) raised |= __ldcg(flag + (long long)s * batch * high * wide) != 0;
    int row = t / 8, col = t % 8 * 4;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!__syncthreads_or(raised)) {
        if (top + row >= M || left + col >= N) return;
        const float *part = parts + ((long long)product * M + top + row) * ldp + left + col;
        long long apart = (long long)batch * M * ldp;
#pragma unroll 8
        for (int s = 0; s < slices; ++s, part += apart) {
            float4 one = __ldcg((const float4 *)part);
            sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
        }
    } else {
        const float *a = A + product * stride_a + (across_a ? top : top * lda), *b = B + product * stride_b + (across_b ? left : left * ldb);
        long long down_a = across_a ? 1 : lda, on_a = across_a ? lda : 1, down_b = across_b ? 1 : ldb, on_b = across_b ? ldb : 1;
        for (int k0 = 0; k0 < K; k0 += DEEP) {
            int depth = min(DEEP, K - k0); // what lies behind K is not multiplied: 0 times Inf is a NaN
#pragma unroll
            for (int e = t; e < ROWS * DEEP; e += 128) { // consecutive threads along memory
                int k = across_a ? e / ROWS : e % DEEP, r = across_a ? e % ROWS : e / DEEP;
                As[r][k] = k < depth && top + r < M ? a[r * down_a + (k0 + k) * on_a] : 0.0f;
            }
#pragma unroll
            for (int e = t; e < COLS * DEEP; e += 128) {
                int k = across_b ? e / COLS : e % DEEP, r = across_b ? e % COLS : e / DEEP;
                Bs[k][r] = k < depth && left + r < N ? b[r * down_b + (k0 + k) * on_b] : 0.0f;
            }
            __syncthreads();
#pragma unroll 4
            for (int k = 0; k < depth; ++k) {
                float x = As[row][k];
                float4 y = *(const float4 *)&Bs[k][col];
                sum.x = fmaf(x, y.x, sum.x), sum.y = fmaf(x, y.y, sum.y), sum.z = fmaf(x, y.z, sum.z), sum.w = fmaf(x, y.w, sum.w);
            }
            __syncthreads();
        }
        if (t == 0 && top % 64 == 0 && left % granule == 0) atomicAdd(count, 1ull);
        if (top + row >= M || left + col >= N) return;
    }
    float *to = C + product * stride_c + (long long)(top + row) * ldc + left + col, all[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (left + col + i >= N) continue;
        float result = alpha * all[i];
        to[i] = beta != 0 ? fmaf(beta, to[i], result) : result;
    }
}
