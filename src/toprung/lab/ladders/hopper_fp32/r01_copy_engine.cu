// C = alpha * A * B + beta * C (A stored KxM, B KxN, C MxN, all fp32, row-major; ldc any).
//
//     producer    | stage 0 | stage 1 | stage 2 | ...      one thread, and the copy engine:
//                                                          boxes of BK rows of A and B
//     8 warps               | stage 0 | stage 1 | ...      64 x 64 of C each, 8 x 16 a thread
//
// A helper lays out operands that are stored otherwise or not on 16 bytes. Wants: SM 9.0.
// The last five arguments are rung 2's.
//
// Idea: large pieces. 24 floats read from shared memory serve 128 multiply-adds, so that the
// multiply-add is all that is left to wait for; what remains of 65,536 registers after 8 x 32
// threads with 232 each feeds the copy engine.

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
    Walk walk(M, N, K, 0, 0, 0); // whole tiles alone
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
        sums.store(C, ldc, walk.m + at.m, walk.n + at.n, M, N, alpha, beta);
    }
}
