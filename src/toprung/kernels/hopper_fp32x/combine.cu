// C = alpha * (sums of seven products) + beta * C: every quarter of C at once.
//
//      products:   P_0 | P_1 | … | P_6, each half_m x half_n            C11 C12 C21 C22 of the same 16 x 32 places
//
// A block has 16 x 32 places of each quarter, a thread four of a row. SIGNS_C: two bits for each product of a quarter (1: added, 2: subtracted).
// The one idea: products are read once, all four quarters are made of them, and alpha, beta and C come in only here.
//
// An Inf or a NaN of one quarter, or a sum of quarters too large for fp32, reaches elements of C which have nothing to do with it. So what is
// not finite is computed again in plain fp32 from A and B as they were given, each such element alone; ``count`` grows by one
// for each 16 x 32 with any.

#include "../include/hopper_rs.cuh"
#include "../include/chains.cuh"

constexpr int PRODUCTS = 7;

struct Places { // 16 x 32 of a quarter of C by a block
    static constexpr int ROWS = 16, COLS = 32, THREADS = 128, DEPTH = CHAIN, DOWN = 1, ON = 4, BYTES = 4 * DEPTH * (ROWS + 1 + COLS + 2);
    static inline int row(int) { return threadIdx.x / 8; }
    static inline int column(int j) { return threadIdx.x % 8 * 4 + j; }
    static inline void meet() { __syncthreads(); }
};

inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000) != 0x7f800000; }

extern "C" __global__ void __launch_bounds__(128)
combine(const float *A, const float *B, float *C, float alpha, float beta, const float *products, ulong *count, int M, int N, int K,
        int half_m, int half_n, long long lda, int across_a, long long ldb, int across_b, int ldc) {
    __shared__ __align__(16) char operands[Places::BYTES];
    let_next_start();
    wait_for_previous();
    int tiles_n = half_n / Places::COLS; // halves are multiples of 32
    int first = blockIdx.x / tiles_n * Places::ROWS, left = blockIdx.x % tiles_n * Places::COLS;
    int row = Places::row(0), col = Places::column(0);
    const float *from = products + (long long)(first + row) * half_n + left + col;
    float4 p[PRODUCTS];
#pragma unroll
    for (int i = 0; i < PRODUCTS; ++i) p[i] = __ldcg((const float4 *)(from + (long long)i * half_m * half_n));
    bool wide = ldc % 4 == 0 && (ulong)C % 16 == 0;
    uint again = 0; // bit 4 q + i: element i of quarter q
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        float sum[4] = {};
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) {
            constexpr ulong table = SIGNS_C;
            uint sign = (uint)(table >> (2 * (PRODUCTS * q + i))) & 3;
            float times = /*!sign-in-c*/sign == 1 ? 1.0f : -1.0f;
            if (!sign) continue;
            sum[0] = fmaf(times, p[i].x, sum[0]), sum[1] = fmaf(times, p[i].y, sum[1]);
            sum[2] = fmaf(times, p[i].z, sum[2]), sum[3] = fmaf(times, p[i].w, sum[3]);
        }
        int m = q / 2 * half_m + first + row, n = /*!quarter-of-n*/q % 2 * half_n + left + col;
        if (m >= M || n >= N) continue;
        float *to = C + (long long)m * ldc + n;
        uint bad = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) bad |= (uint)(/*!not-finite*/n + i < N && !is_finite(sum[i])) << i;
        if (wide && n + 3 < N && !bad) {
            float4 old = beta != 0 ? *(const float4 *)to : make_float4(0.0f, 0.0f, 0.0f, 0.0f), made;
            made.x = beta != 0 ? fmaf(beta, old.x, alpha * sum[0]) : alpha * sum[0];
            made.y = beta != 0 ? fmaf(beta, old.y, alpha * sum[1]) : alpha * sum[1];
            made.z = beta != 0 ? fmaf(beta, old.z, alpha * sum[2]) : alpha * sum[2];
            made.w = beta != 0 ? fmaf(beta, old.w, alpha * sum[3]) : alpha * sum[3];
            *(float4 *)to = made;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (n + i < N && !(bad >> i & 1)) to[i] = beta != 0 ? fmaf(beta, to[i], alpha * sum[i]) : alpha * sum[i];
        }
        again |= bad << (4 * q);
    }
    if (!__syncthreads_or(again != 0)) return;
#pragma unroll 1
    for (int q = 0; q < 4; ++q) {
        uint bad = again >> (4 * q) & 15;
        if (!__syncthreads_or(bad != 0)) continue;
        if (threadIdx.x == 0) atomicAdd(count, 1ull);
        int m0 = /*!quarter-of-m*/q / 2 * half_m + first, n0 = /*!quarter-of-n*/q % 2 * half_n + left;
        float sum[4] = {};
        OperandsOf<0, 0> of{Lines<0>(A, lda, across_a, m0), Lines<0>(B, ldb, across_b, n0), K};
        chains_of_part<Places>(of, M - m0, N - n0, sum, shared_address(operands));
        float *to = C + (long long)(m0 + row) * ldc + n0 + col;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (bad >> i & 1) to[i] = beta != 0 ? fmaf(beta, to[i], alpha * sum[i]) : alpha * sum[i];
    }
}
