// C = alpha * A * B + beta * C (A stored KxM, B KxN, C MxN, all fp32, row-major; ldc any).
//
//     rung 4, as the compiler may:   | L L L L L L * * * ... * * * |
//                                    six loads of a k in a row, or just before their use
//     here:                          | L * * L * * L * * * L * * * ... |
//                                    in their order, each as soon as its registers are free
//
// A helper lays out operands that are stored otherwise or not on 16 bytes.
// Wants: SM 9.0; flags: 0, and leaves them so.
//
// Idea: tell the compiler where things go. Loads are volatile, so that it may not exchange them and
// places them one by one as it goes down the multiply-adds; sums begin as quads, so that they get
// registers of the bank that their element of A is not in; and a stage's barriers stand behind it,
// so that one running address serves all.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cuh"
#include "../../../kernels/hopper_sgemm/share.cuh"
#include "../../../kernels/hopper_sgemm/turn.cuh"
#include "../../../kernels/hopper_sgemm/ffma.cu"
