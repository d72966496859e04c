// C = alpha * A * B + beta * C in fp32 (C is MxN, row-major, ldc apart)
// from fp16 operands: A MxK and the transpose of B, NxK, row-major and
// tight, made by a helper that pads M, N and K to whole tiles with zeros.
//
//   tiles of C in the order in which they are taken,                0 2 4 6
//   GROUP = 2 (here of a cluster's height):                         1 3 5 7
//   what runs at once shares rows of A and columns of B,            8 ...
//   which the L2 cache then holds
//
// A block is a producer warpgroup and two consumers, and owns 128x256 of C at a time;
// CLUSTER blocks lie one below the other.
// Wants: whole tiles, SM 9.0.
//
// Idea: as many blocks as there is room for, each taking tile after tile. The producer runs ahead:
// the next tile's operands arrive while the consumers still write this one's sums. And tiles are
// taken band by band, GROUP of them high.

#include "../../../kernels/include/hopper.cuh"
#include "fp16.cuh"

#define STAGE_BYTES ((BM + BN) * 128)
#define PART (BN / CLUSTER) // rows of B that this block fetches for the whole cluster

struct Place {
    int top, left;
};

// tiles GROUP down, then one to the right; the last band may be lower
inline Place place(int tile, int tiles_m, int tiles_n, uint rank) {
    int band = tile / (GROUP * tiles_n), first = band * GROUP,
        high = min(GROUP, tiles_m - first), in = tile % (GROUP * tiles_n);
    return Place{((first + in % high) * CLUSTER + (int)rank) * BM, in / high * BN};
}

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
    int tiles_m = (M + BM * CLUSTER - 1) / (BM * CLUSTER), tiles_n = (N + BN - 1) / BN,
        chunks = depth / BK, stage = 0;
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
            for (int tile = blockIdx.x / CLUSTER; tile < tiles_m * tiles_n;
                 tile += gridDim.x / CLUSTER) {
                Place at = place(tile, tiles_m, tiles_n, rank);
                for (int j = 0; j < chunks; ++j) {
                    uint a = ring + stage * STAGE_BYTES, bar = full + 8 * stage;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    barrier_expect(bar, STAGE_BYTES);
                    tma_load(a, &map_a, BK * j, at.top, bar);
                    fetch_part(a + (BM + rank * PART) * 128, &map_b, BK * j, at.left + rank * PART,
                               bar);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
        more_registers<240>();
        int consumer = threadIdx.x / 128 - 1;
        for (int tile = blockIdx.x / CLUSTER; tile < tiles_m * tiles_n;
             tile += gridDim.x / CLUSTER) {
            Place to = place(tile, tiles_m, tiles_n, rank);
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
            release(empty + 8 * before);
            store<BN>(sum, to.top + 64 * consumer, to.left, M, N, alpha, beta, C, ldc);
        }
    }
    cluster_sync(); // nobody leaves while others may still arrive at its barriers
}
