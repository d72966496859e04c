// C = alpha * A * B + beta * C (A MxK, B KxN, C MxN, all fp32, row-major, any leading dimension),
// as accurate as plain fp32.
//
//   stream    | split A, B .......... |               with OVERLAP the product's blocks
//             |               | product ..........|   take multiprocessors as the splitting leaves
//                                                     them, set their rings up,
//                                                     and wait for its last write
//
//   tile      finite, and its range fits two terms?   yes: written
//                                                     no: computed again in plain fp32, counted
//
// A helper splits both operands; the kernel is rung 6's. Wants: SM 9.0; any sizes from K = 64 on.
//
// Idea: what comes beside a product may cost nothing. Its launch hides behind the splitting pass,
// and whether two terms carry the data is decided where sums leave the registers, on the device:
// nobody asks the host, and no further launch stands by.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/halves.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_fp32x/terms.cuh"
#undef BM // the shared text counts consumers, and has a TN of its own
#undef TN
#include "../../../kernels/hopper_fp32x/fp32x.cu"
