// C = alpha * A * B + beta * C in fp32 (C is MxN, row-major, ldc apart)
// from fp16 operands: A MxK and the transpose of B, NxK, row-major and
// tight, made by a helper that pads M, N and K to whole tiles with zeros.
//
//                       one tile of B (256 wide), half fetched by each, sent to both
//   block 0 (128 high)  consumer 0: 64x256   consumer 1: 64x256
//   block 1 (128 high)  consumer 0: 64x256   consumer 1: 64x256
//
// A block is a producer warpgroup and two consumers, and owns 128x256 of C;
// CLUSTER blocks lie one below the other.
// Wants: whole tiles, SM 9.0.
//
// Idea: larger tiles, fetched once for several. Two consumers with a matrix instruction of the
// greatest width read less shared memory for a product; a cluster's blocks multicast their parts of
// B, so that less crosses the L2 cache.

#include "../../../kernels/include/hopper.cuh"
#include "fp16.cuh"

#define STAGE_BYTES ((BM + BN) * 128)
#define PART (BN / CLUSTER) // rows of B that this block fetches for the whole cluster

// this block's part of B's tile, for every block of the cluster
inline void fetch_part(uint to, const TensorMap *map, int x, int y, uint bar) {
    if (CLUSTER == 1) tma_load(to, map, x, y, bar);
    else tma_load_all(to, map, x, y, bar, (1 << CLUSTER) - 1);
}

// this warp has read a stage: every block that fetches into it is told
inline void release(uint empty) {
    if (threadIdx.x % 32 < CLUSTER) barrier_arrive_at(empty, threadIdx.x % 32);
}

extern "C" __global__ __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
void gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
          int M, int N, int depth, float alpha, float beta, float *C, int ldc) {
    extern __shared__ char memory[];
    uint ring = (shared_address(memory) + 1023) & ~1023u, full = ring + STAGES * STAGE_BYTES,
         empty = full + 8 * STAGES;
    uint rank = cluster_rank(), phase = 0;
    int tiles_m = (M + BM * CLUSTER - 1) / (BM * CLUSTER),
        chunks = depth / BK, stage = 0;
    int tile = blockIdx.x / CLUSTER, top = (tile % tiles_m * CLUSTER + rank) * BM,
        left = tile / tiles_m * BN;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 8 * CLUSTER);
        }
        barrier_init_fence();
    }
    cluster_sync();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0) {
            for (int j = 0; j < chunks; ++j) {
                uint a = ring + stage * STAGE_BYTES, bar = full + 8 * stage;
                barrier_wait(empty + 8 * stage, phase ^ 1);
                barrier_expect(bar, STAGE_BYTES);
                tma_load(a, &map_a, BK * j, top, bar);
                fetch_part(a + (BM + rank * PART) * 128, &map_b, BK * j, left + rank * PART, bar);
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
    } else {
        more_registers<240>();
        int consumer = threadIdx.x / 128 - 1;
        float sum[BN / 2];
        uint before = 0; // the stage that the products in flight read
        for (int j = 0; j < chunks; ++j) {
            uint a = ring + stage * STAGE_BYTES;
            ulong at = tile_at(a + consumer * 64 * 128), bt = tile_at(a + BM * 128);
            barrier_wait(full + 8 * stage, phase);
            pin(sum);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < BK / 16; ++k) wgmma<BN>(sum, at + 2 * k, bt + 2 * k, j + k);
            wgmma_commit();
            wgmma_wait<1>();
            pin(sum);
            if (j) release(empty + 8 * before);
            before = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        wgmma_wait<0>();
        pin(sum);
        store<BN>(sum, top + 64 * consumer, left, M, N, alpha, beta, C, ldc);
    }
    cluster_sync(); // nobody leaves while others may still arrive at its barriers
}
