// What the kernels for fp16 operands share: how sums leave the registers, and the order of tiles.

// 64×N sums of a warpgroup, in registers as the matrix units leave them, into C at (top, left):
// C = alpha*sum + beta*C
template <int N>
inline void store(const float (&sum)[N / 2], int top, int left, int rows, int cols,
                  float alpha, float beta, float *C, int ldc) {
    int lane = threadIdx.x % 32, row = top + threadIdx.x / 32 % 4 * 16 + lane / 4;
    bool pairs = ldc % 2 == 0 && (ulong)C % 8 == 0;
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
        int col = left + 8 * i + 2 * (lane % 4);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (row + 8 * h >= rows || col >= cols) continue;
            float *to = C + (ulong)(row + 8 * h) * ldc + col,
                  v[2] = {alpha * sum[4 * i + 2 * h], alpha * sum[4 * i + 2 * h + 1]};
            if (pairs && col + 1 < cols) {
                float2 old = beta != 0.0f ? *(float2 *)to : make_float2(0.0f, 0.0f);
                if (beta != 0.0f) v[0] = fmaf(beta, old.x, v[0]), v[1] = fmaf(beta, old.y, v[1]);
                *(float2 *)to = make_float2(v[0], v[1]);
            } else {
                to[0] = beta != 0.0f ? fmaf(beta, to[0], v[0]) : v[0];
                if (col + 1 < cols) to[1] = beta != 0.0f ? fmaf(beta, to[1], v[1]) : v[1];
            }
        }
    }
}
