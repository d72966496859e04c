// C = alpha * A * B + beta * C (A MxK, B KxN, C MxN, all fp32, row-major, any leading dimension),
// as accurate as fp32 in norm.
//
//   P0 = (A11 + A22)(B11 + B22)    P1 = (A21 + A22) B11
//   P2 = A11 (B12 - B22)           P3 = A22 (B21 - B11)
//   P4 = (A11 + A12) B22           P5 = (A21 - A11)(B11 + B12)
//   P6 = (A12 - A22)(B21 + B22)
//
//   C11 = P0 + P3 - P4 + P6        C12 = P2 + P4
//   C21 = P1 + P3                  C22 = P0 - P1 + P2 + P5
//
// A helper (kernels/hopper_fp32x/sums.cu) forms sums of quarters where it splits them; the
// kernel is rung 7's, for a batch, and without its guard; a second kernel (combine.cu there) makes
// all four quarters of C. Wants: SM 9.0; any sizes from K = 64 on.
//
// Idea: where power is the limit, the only faster product is one with fewer operations:
// seven of half the size in place of eight.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/halves.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_fp32x/terms.cuh"
#undef BM // the shared text counts consumers, and has a TN of its own
#undef TN
#include "../../../kernels/hopper_fp32x/slices.cuh"
#include "../../../kernels/hopper_fp32x/three_products.cuh"
#include "../../../kernels/hopper_fp32x/guard.cuh"

// Losses of fp16 terms are far below what a normwise promise allows, and combine.cu computes again
// what is not finite: the product needs no guard.
#define may_overflow(a, b, K) false
#define may_lose(a, b, K) false

#include "../../../kernels/hopper_fp32x/plain.cuh"
#include "../../../kernels/hopper_fp32x/fp32x.cu"
