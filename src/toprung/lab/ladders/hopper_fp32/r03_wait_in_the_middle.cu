// C = alpha * A * B + beta * C (A stored KxM, B KxN, C MxN, all fp32, row-major; ldc any).
//
//     rung 2   | 0 1 2 ... 14 15 | wait | 0 1 2 ...       | 15 | sums | wait | 0 1 2 ...
//              an edge where all wait
//     here     | 0 1 .. wait .. 14 15 | 0 1 .. wait ..    | 15 | sums | 0 1 .. wait ..
//              the edge is like any k
//
// A helper lays out operands that are stored otherwise or not on 16 bytes.
// Wants: SM 9.0; flags: 0, and leaves them so.
//
// Idea: a warp asks for the next stage half a stage before it needs it, where
// multiply-adds of its own and of the other warp stand ready to hide the
// answer; and it fetches the next tile's first fragments before it writes
// this one's sums. The producer adds a stage of nothing behind the last tile.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cuh"
#include "../../../kernels/hopper_sgemm/share.cuh"
#include "../../../kernels/hopper_sgemm/turn.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cu"
