// C = alpha * A * B + beta * C in fp32 (C is MxN, row-major, ldc apart)
// from fp16 operands: A MxK and the transpose of B, NxK, row-major and
// tight, made by a helper that pads M, N and K to whole tiles with zeros.
//
//   producer warpgroup, 24 registers a thread    waits for empty[s],
//                                                asks the copy engine for stage s
//   consumer warpgroup, 232 registers            waits for full[s], multiplies,
//                                                tells empty[s] when it is through
//
// The consumer warpgroup (128 threads of 256) owns 128x128 of C:
// two matrix instructions high, 128 wide.
// Wants: whole tiles, SM 9.0.
//
// Idea: who fetches does nothing else, so nobody who multiplies ever stops to fetch, and no barrier
// holds all threads. Registers that the producer has no use for are handed to the consumer, which
// leaves room for two blocks on a multiprocessor.

#include "../../../kernels/include/hopper.cuh"
#include "fp16.cuh"

#define STAGE_BYTES ((BM + BN) * 128)

extern "C" __global__ __launch_bounds__(256, 2)
void gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
          int M, int N, int depth, float alpha, float beta, float *C, int ldc) {
    extern __shared__ char memory[];
    uint ring = (shared_address(memory) + 1023) & ~1023u, full = ring + STAGES * STAGE_BYTES,
         empty = full + 8 * STAGES;
    int tiles_m = (M + BM - 1) / BM, top = blockIdx.x % tiles_m * BM,
        left = blockIdx.x / tiles_m * BN, chunks = depth / BK;
    int stage = 0;
    uint phase = 0;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0) {
            for (int j = 0; j < chunks; ++j) {
                uint a = ring + stage * STAGE_BYTES, bar = full + 8 * stage;
                barrier_wait(empty + 8 * stage, phase ^ 1);
                barrier_expect(bar, STAGE_BYTES);
                tma_load(a, &map_a, BK * j, top, bar);
                tma_load(a + BM * 128, &map_b, BK * j, left, bar);
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
    } else {
        more_registers<232>();
        float sum[2][BN / 2];
        uint before = 0; // the stage that the products in flight read
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
            if (j && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * before);
            before = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        wgmma_wait<0>();
#pragma unroll
        for (int h = 0; h < 2; ++h) pin(sum[h]);
#pragma unroll
        for (int h = 0; h < 2; ++h)
            store<BN>(sum[h], top + 64 * h, left, M, N, alpha, beta, C, ldc);
    }
}
