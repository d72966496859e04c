// C = alpha * A * B + beta * C (A MxK, B KxN, C MxN, all fp32, row-major, any leading dimension),
// as accurate as plain fp32.
//
//   512 x 512 x 16384 in tiles of 128x128:   16 tiles, each 16384 of K long:
//                                            16 of 132 multiprocessors work
//                      in 8 slices of K:     128 of them, an eighth as long;
//                                            then 8 results are added
//
// A helper splits both operands, each slice of K as a matrix of its own; the kernel is rung 7's,
// and a block owns a tile of a slice at a time and writes its sums beside C. A second kernel adds
// them. Wants: SM 9.0; any sizes from K = 64 on.
//
// Idea: where C has too few tiles for the device, cut K. The tile may stay large, and every sum is
// shorter: slices are added in their order, by a launch of its own in which the whole device takes
// part, so no block waits for others or counts them.

#include "../../../kernels/include/hopper.cuh"
#include "../../../kernels/include/halves.cuh"
#include "../../../kernels/include/epilogue.cuh"
#include "../../../kernels/hopper_fp32x/terms.cuh"
#undef BM // the shared text counts consumers, and has a TN of its own
#undef TN

// where a slice begins, its length, and its k-blocks of 32 (0: A and B are not read)
struct Slice {
    int first, depth, k_blocks;
};

inline Slice slice_of(int slice, int depth, int K, float alpha) {
    int first = slice * depth, mine = min(depth, K - first);
    return Slice{first, mine, alpha == 0.0f ? 0 : (mine + 31) / 32};
}

#include "../../../kernels/hopper_fp32x/three_products.cuh"
#include "../../../kernels/hopper_fp32x/guard.cuh"
#include "../../../kernels/hopper_fp32x/plain.cuh"
#include "../../../kernels/hopper_fp32x/fp32x.cu"
#include "../../../kernels/hopper_fp32x/reduce.cu"
