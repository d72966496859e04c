// C = alpha * A * B + beta * C (A MxK, B KxN, C MxN, all fp32, row-major, any leading dimension),
// as accurate as plain fp32.
//
//   rungs 6 to 9:   A, B --> terms --> memory --> terms --> matrix units
//                   12 bytes for each element before a product
//   rung 10:        A, B --> terms --> matrix units
//                    4, and every block splits what it uses
//
// One launch: a warpgroup copies, one splits B in shared memory, the others split A in registers.
// Wants: SM 9.0; any sizes from K = 64 on, any alignment.
//
// Idea: an operand that is read once or twice should not be written to
// memory as terms first. A power of two for each row, each column and
// each 32 of K stands in for what the splitting pass knew of whole rows.

#undef BM // the shared source counts consumers
#include "../../../kernels/hopper_fp32x/inflight.cu"
