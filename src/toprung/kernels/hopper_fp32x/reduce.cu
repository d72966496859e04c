// C = alpha * (S_0 + S_1 + …) + beta * C: the results of all slices of K, added in their order, one product of a batch after another.
//
//      parts:   S_0 of product 0 | S_0 of product 1 | … | S_1 of product 0 | …       each M x ldp, ldp a multiple of 4
//
// A block has 16 x 32 of C, a thread four of a row. The one idea: a launch of its own, so that all of the device adds, no block waits or
// counts, and the order is always the same.

#define ROWS 16
#define COLS 32

extern "C" __global__ void __launch_bounds__(128)
reduce(float *C, float alpha, float beta ADDED_PARAMETERS, const float *parts, int M, int N, int batch, int slices, int ldp, int ldc, long long stride_c) {
    let_next_start();
    wait_for_previous();
    int tiles_m = (M + ROWS - 1) / ROWS, tiles_n = (N + COLS - 1) / COLS, block = blockIdx.x, product = block / (tiles_m * tiles_n);
    int row = block / tiles_n % tiles_m * ROWS + threadIdx.x / 8, col = block % tiles_n * COLS + threadIdx.x % 8 * 4;
    if (row >= M || col >= N) return;
    const float *part = parts + ((long long)product * M + row) * ldp + col;
    long long apart = (long long)batch * M * ldp;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int s = 0; s < slices/*!results-added*/; ++s, part += apart) {
        float4 one = __ldcg((const float4 *)part);
        sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
    }
    Added added = ADDED(product, /*!d-of-sum*/row, col);
    float *to = C + product * stride_c + (long long)row * ldc + col, all[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (col + i >= N) continue;
        float result = alpha * all[i];
        to[i] = activated(beta != 0 ? fmaf(beta, added.one(to + i, 0, i), result) : result);
    }
}
