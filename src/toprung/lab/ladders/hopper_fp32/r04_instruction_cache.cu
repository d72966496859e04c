// C = alpha * A * B + beta * C (A stored KxM, B KxN, C MxN, all fp32, row-major; ldc any).
//
//     a stage of 16 of K, unrolled:   2048 multiply-adds and what feeds them
//                                     35 KB of instructions of 16 bytes
//     a stage of 12:                  1536
//                                     26 KB, which the instruction cache keeps
//
// A helper lays out operands that are stored otherwise or not on 16
// bytes. K need not be a multiple of 12: the copy engine fills the last
// stage with zeros. Wants: SM 9.0; flags: 0, and leaves them so.
//
// Idea: the loop is code as much as data.
// Two warps of a scheduler drift apart and read it at two places; what both need must fit.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cuh"
#include "../../../kernels/hopper_sgemm/share.cuh"
#include "../../../kernels/hopper_sgemm/turn.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cu"
