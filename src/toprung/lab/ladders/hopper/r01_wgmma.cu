// C = alpha * A * B + beta * C in fp32 (C is MxN, row-major, ldc apart)
// from fp16 operands: A MxK and the transpose of B, NxK, row-major and
// tight, made by a helper that pads M, N and K to whole tiles with zeros.
//
//            64 of K                    a row of a tile is 128 bytes: eight chunks of 16,
//   A    [ 128 rows ]   copied by       and chunk c of row r lies at place c ^ (r % 8), so that
//   B'   [ 128 rows ]   the threads     eight rows' chunks c lie in eight different banks;
//                                       the unit undoes it (the 128-byte swizzle)
//
// A warpgroup (128 threads) owns 128x128 of C: two matrix instructions high, 128 wide.
// Wants: whole tiles, SM 9.0.
//
// Idea: one instruction, issued by four warps together, multiplies 64x16 by 16xN straight out of
// shared memory. Everything around it is as simple as can be: threads copy a tile, wait for each
// other, have it multiplied, wait for that.

#include "../../../kernels/include/hopper.cuh"
#include "fp16.cuh"

// rows of 64 fp16 into swizzled shared memory
template <int ROWS>
inline void copy(char *tile, const uint4 *from, int first, int chunk, int depth) {
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i) {
        int r = 16 * i + threadIdx.x / 8, c = threadIdx.x % 8;
        *(uint4 *)(tile + 128 * r + 16 * (c ^ (r % 8))) =
            from[((ulong)(first + r) * depth + BK * chunk) / 8 + c];
    }
}

extern "C" __global__ __launch_bounds__(128)
void gemm(const uint4 *A, const uint4 *B,
          int M, int N, int depth, float alpha, float beta, float *C, int ldc) {
    extern __shared__ char memory[];
    char *a = memory + ((1024 - shared_address(memory) % 1024) % 1024), *b = a + BM * 128;
    int tiles_m = (M + BM - 1) / BM, top = blockIdx.x % tiles_m * BM,
        left = blockIdx.x / tiles_m * BN;
    float sum[2][BN / 2];
    for (int j = 0; j < depth / BK; ++j) {
        copy<BM>(a, A, top, j, depth);
        copy<BN>(b, B, left, j, depth);
        proxy_fence();
        __syncthreads();
        ulong at = tile_at(shared_address(a)), bt = tile_at(shared_address(b));
#pragma unroll
        for (int h = 0; h < 2; ++h) pin(sum[h]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; ++k) {
#pragma unroll
            for (int h = 0; h < 2; ++h)
                wgmma<BN>(sum[h], at + 64 * 128 / 16 * h + 2 * k, bt + 2 * k, j + k);
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int h = 0; h < 2; ++h) pin(sum[h]);
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) store<BN>(sum[h], top + 64 * h, left, M, N, alpha, beta, C, ldc);
}
