// C = alpha * A * B + beta * C (A stored KxM, B KxN, C MxN, all fp32, row-major; ldc any).
//
//     rung 5, what a lane has:   rows    0 0 0 0 1 1 1 1 | 2 2 2 2 3 3 3 3
//                                columns 0 1 2 3 0 1 2 3 | 0 1 2 3 0 1 2 3
//                                in fours, of A; neighbours read the same, which
//                                shared memory serves in half the turns
//     here:                      rows    0 1 2 3 0 1 2 3 | 0 1 2 3 0 1 2 3
//                                columns 0 1 2 3 1 0 3 2 | 2 3 0 1 3 2 1 0
//                                nowhere do two neighbours, nor next but one, have
//                                rows or columns in common: every load takes four
//
// A helper lays out operands that are stored otherwise or not on 16 bytes.
// Wants: SM 9.0; flags: 0, and leaves them so.
//
// Idea: more turns of shared memory, not fewer. It has turns to spare; what a load brings in two
// turns comes to the registers in half the time, and multiply-adds have to stand back for it.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cuh"
#include "../../../kernels/hopper_sgemm/share.cuh"
#include "../../../kernels/hopper_sgemm/turn.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cu"
