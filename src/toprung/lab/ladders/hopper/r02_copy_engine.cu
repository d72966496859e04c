// C = alpha * A * B + beta * C in fp32 (C is MxN, row-major, ldc apart)
// from fp16 operands: A MxK and the transpose of B, NxK, row-major and
// tight, made by a helper that pads M, N and K to whole tiles with zeros.
//
//   copy engine     [ j+1 ] [ j+2 ]  under way, one thread asked for them;
//                                    each stage's barrier counts their bytes
//   shared memory   [  j  ] [ j-1 ]  multiplied; multiplied before, free when every warp is through
//
// A warpgroup (128 threads) owns 128x128 of C: two matrix instructions high, 128 wide.
// Wants: whole tiles, SM 9.0.
//
// Idea: the copy engine fetches and swizzles whole boxes by itself, so that no thread moves data,
// and a ring of STAGES of them is under way while the units work. The products of one step stay in
// flight until those of the next are issued.

#include "../../../kernels/include/hopper.cuh"
#include "fp16.cuh"

#define STAGE_BYTES ((BM + BN) * 128)

extern "C" __global__ __launch_bounds__(128)
void gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
          int M, int N, int depth, float alpha, float beta, float *C, int ldc) {
    extern __shared__ char memory[];
    uint ring = (shared_address(memory) + 1023) & ~1023u, full = ring + STAGES * STAGE_BYTES;
    int tiles_m = (M + BM - 1) / BM, top = blockIdx.x % tiles_m * BM,
        left = blockIdx.x / tiles_m * BN, chunks = depth / BK;
    auto fetch = [&](int j) {
        uint a = ring + j % STAGES * STAGE_BYTES, bar = full + 8 * (j % STAGES);
        barrier_expect(bar, STAGE_BYTES);
        tma_load(a, &map_a, BK * j, top, bar);
        tma_load(a + BM * 128, &map_b, BK * j, left, bar);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(full + 8 * s, 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int j = 0; j < min(STAGES - 1, chunks); ++j) fetch(j);
    float sum[2][BN / 2];
    int stage = 0;
    uint phase = 0;
    for (int j = 0; j < chunks; ++j) {
        uint a = ring + stage * STAGE_BYTES;
        ulong at = tile_at(a), bt = tile_at(a + BM * 128);
        barrier_wait(full + 8 * stage, phase);
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
        wgmma_wait<1>();
#pragma unroll
        for (int h = 0; h < 2; ++h) pin(sum[h]);
        __syncthreads(); // every warp is through with step j - 1
        if (threadIdx.x == 0 && j + STAGES - 1 < chunks) fetch(j + STAGES - 1);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; ++h) pin(sum[h]);
#pragma unroll
    for (int h = 0; h < 2; ++h) store<BN>(sum[h], top + 64 * h, left, M, N, alpha, beta, C, ldc);
}
