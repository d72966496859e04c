// C = alpha * A * B + beta * C (A MxK, B KxN, C MxN, all fp32, row-major, any leading dimension),
// as accurate as plain fp32.
//
//   1024 x 1024 in tiles of 128x128:  64 blocks, and 132 multiprocessors:
//                                    more than half of them idle
//                        in 64x64:   256 blocks: all of them busy,
//                                    most with two tiles one after the other
//
// A helper splits both operands; the kernel is rung 7's with one consumer.
// Wants: SM 9.0; any sizes from K = 64 on.
//
// Idea: a small problem wants many small tiles. Each byte serves fewer
// products then, so this is for problems that large tiles cannot spread
// over the device; the library weighs both for every problem.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/halves.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_fp32x/terms.cuh"
#undef BM // the shared text counts consumers, and has a TN of its own
#undef TN
#include "../../../kernels/hopper_fp32x/slices.cuh"
#include "../../../kernels/hopper_fp32x/three_products.cuh"
#include "../../../kernels/hopper_fp32x/guard.cuh"
#include "../../../kernels/hopper_fp32x/plain.cuh"
#include "../../../kernels/hopper_fp32x/fp32x.cu"

static_assert(BM == 64, "a block is a producer and one consumer warpgroup");
static_assert(CONSUMER_REGISTERS == 0,
              "256 threads have all the registers that a thread can name: none change hands");
