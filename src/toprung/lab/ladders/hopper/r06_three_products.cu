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
#include "../../../kernels/hopper_fp32x/slices.cuh"

// a, b: where a stage's 64 rows of A and BN columns of B are, each 32 hi and then 32 lo. The next
// 16 of K are 32 bytes further, which counts as 2 here, lo 64 bytes, 4.

inline void start_hi_hi(float (&partial)[BN / 2], ulong a, ulong b) {
    pin(partial);
    wgmma_fence();
    wgmma<BN>(partial, a, b, 0);
    wgmma<BN>(partial, a + 2, b + 2, 1);
    wgmma_commit();
}

inline void start_cross(float (&cross)[BN / 2], ulong a, ulong b, int accumulate) { // 0: from zero
    pin(cross);
    wgmma_fence();
    wgmma<BN>(cross, a, b + 4, accumulate);
    wgmma<BN>(cross, a + 2, b + 6, 1);
    wgmma<BN>(cross, a + 4, b, 1);
    wgmma<BN>(cross, a + 6, b + 2, 1);
    wgmma_commit();
}

inline void promote(float (&sum)[BN / 2], float (&partial)[BN / 2]) {
    pin(partial);
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] += partial[i];
}

// lo was multiplied by RESIDUAL
inline void add_cross(float (&sum)[BN / 2], const float (&cross)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = fmaf(cross[i], 1.0f / RESIDUAL, sum[i]);
}

#include "../../../kernels/hopper_fp32x/guard.cuh"
#include "../../../kernels/hopper_fp32x/plain.cuh"
#include "../../../kernels/hopper_fp32x/fp32x.cu"
