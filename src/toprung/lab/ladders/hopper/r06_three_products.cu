// C = alpha * A * B + beta * C (A MxK, B KxN, C MxN, all fp32, row-major, any leading dimension),
// as accurate as plain fp32.
//
//   x * 2^s = hi + lo / 2048                        hi and lo in fp16, together 22 bits;
//                                                   2^s brings the largest of a row
//                                                   close to fp16's largest
//   A * B  ~= hi.hi + (hi.lo + lo.hi) / 2048        the fourth product is below fp32's rounding
//
// A helper splits both operands; the kernel is rung 5's, with three products for each tile.
// Wants: SM 9.0; any sizes.
//
// Idea: matrix units add up with truncation, so sums that live long in them drift towards zero.
// hi.hi is taken out every 32 of K and added to fp32 registers, while the unit works on the cross
// terms, which are so small that they may stay.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/halves.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_fp32x/terms.cuh"
#undef BM // the shared text counts consumers, and has a TN of its own
#undef TN
#include "../../../kernels/hopper_fp32x/fp32x.cu"
