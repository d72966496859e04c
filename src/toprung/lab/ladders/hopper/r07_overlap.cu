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
#include "../../../kernels/hopper_fp32x/slices.cuh"
#include "../../../kernels/hopper_fp32x/three_products.cuh"

struct Rows {
    int exponent; // the largest
    uint flags;   // of all of them
    uint thin;    // the most of one row
};

// up to 64 rows from ``row`` on, seen by a whole warp
inline Rows rows_of(const Row *row, int rows) {
    int lane = threadIdx.x % 32;
    int exponent = -1000;
    uint flags = 0, thin = 0;
#pragma unroll
    for (int i = 0; i < 64; i += 32) {
        if (lane + i >= rows) continue;
        Row r = row[lane + i];
        exponent = max(exponent, r.exponent), flags |= r.losses, thin = max(thin, r.losses & THIN);
    }
    return Rows{__reduce_max_sync(0xffffffffu, exponent), __reduce_or_sync(0xffffffffu, flags),
                __reduce_max_sync(0xffffffffu, thin)};
}

// Return True if sums of such products may reach Inf or hold one: scaled terms have neither.
inline bool may_overflow(Rows a, Rows b, int K) {
    return (a.flags | b.flags) & SPECIAL ||
           a.exponent + b.exponent + 2 * TOP + 2 + (32 - __clz(K - 1)) >= 127;
}

// Return True if what two terms lose of some of these rows and columns might be seen in a product
// of them: perhaps no k has an element of both that is near the largest.
inline bool may_lose(Rows a, Rows b, int K) {
    return (a.flags | b.flags) & LOST && 2 * ((ulong)a.thin + b.thin) > (ulong)K;
}

// Return True if what two terms lose of a row or a column may be seen in this sum of K products of
// their scaled terms. An element that they cannot carry in full is off by 2^-36 at most, where a
// largest one has 2^15: each side by 2^-21 for each k, which is UNITS in the last place of a sum of
// 8 / UNITS.
inline bool is_lost(const Row &a, const Row &b, float sum, int K) {
    int sides = (a.losses & LOST ? 1 : 0) + (b.losses & LOST ? 1 : 0);
    return fabsf(sum) < (8.0f / UNITS) * (float)(sides * (long long)K);
}

#include "../../../kernels/hopper_fp32x/plain.cuh"
#include "../../../kernels/hopper_fp32x/fp32x.cu"
