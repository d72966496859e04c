// C = alpha * A * B + beta * C (A stored KxM, B KxN, C MxN, all fp32, row-major; ldc any).
//
//     132 blocks, 512 tiles: 3.9 waves    | 0    | 132  | 264  | 396 .. 511     |
//                                         and 16 blocks idle for a quarter of the time
//                                         | 248 tiles, cut evenly | 248 | 380 |
//                                         all end together
//
// A helper lays out operands that are stored otherwise or not on 16 bytes.
// Wants: SM 9.0; flags: 0, and leaves them so.
//
// Idea: what does not fill whole waves, and one wave more, is cut along K without regard to where a
// tile ends; whoever has a tile's beginning adds what others left of it, in order, so that results
// repeat to the bit. See share.cuh.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cuh"
#include "../../../kernels/hopper_sgemm/share.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
ffma(float *C, float alpha, float beta,
     const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
     int ldc, int M, int N, int K, float *parts, uint *flags, int shared, int each, int extra) {
    extern __shared__ char memory[];
    Ring ring(memory);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();
    wait_for_previous();
    let_next_start();
    if (alpha == 0.0f) {
        scale(C, ldc, M, N, beta);
        return;
    }
    Walk walk(M, N, K, shared, each, extra);
    if (threadIdx.x >= 32 * WARPS) {
        fewer_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 32 * WARPS) {
            while (walk.step())
                for (int j = walk.from; j < walk.to; ++j)
                    ring.fetch(&map_a, &map_b, walk.m, walk.n, j * BK);
        }
        return;
    }
    more_registers<CONSUMER_REGISTERS>();
    Place at;
    Fragments f;
    while (walk.step()) {
        Sums sums;
        sums.clear();
#pragma unroll 1
        for (int j = walk.from; j < walk.to; ++j) {
            uint base = ring.base(), was = ring.empty();
            ring.wait_full();
            f.fetch(base, at, 0);
#pragma unroll
            for (int k = 0; k < BK; ++k) {
                if (k + 1 < BK) f.fetch(base, at, k + 1);
                sums.add(f, k);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(was);
            ring.advance();
        }
        if (walk.from > 0) {
            leave(sums, parts, flags, walk.share);
            continue;
        }
        if (walk.to < walk.chunks) gather(sums, parts, flags, walk);
        sums.store(C, ldc, walk.m + at.m, walk.n + at.n, M, N, alpha, beta);
    }
}
