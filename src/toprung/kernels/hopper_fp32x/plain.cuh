// Sums of fp32x that the guard refused, in plain fp32: chains of fused multiply-adds from A and B as they were given, the same bits by
// ``one_by_one`` as by ``plain``.

#include "../include/hopper_rs.cuh"
#include "../include/chains.cuh"
#include "meetings.cuh"

constexpr int GRANULE = BN < 64 ? BN : 64, GRANULES = BN / GRANULE; // columns that are refused together
constexpr int FEW = 64;            // elements of a granule, at most, that are computed one after the other, by four warps in turn
constexpr int SPARE_BYTES = 2176;  // shared memory of a warp for operands in plain fp32

typedef OperandsOf<0, 0> Operands;

// what the threads of a warpgroup have, added up; ``shared``: four words of its own
inline uint sum_of(uint mine, uint *shared, int barrier) {
    mine = __reduce_add_sync(0xffffffffu, mine);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32 % 4] = mine;
    together(barrier);
    mine = shared[0] + shared[1] + shared[2] + shared[3];
    together(barrier); // the words may be written again
    return mine;
}

// Sums of a thread that are computed again, by bits of each granule in ``doubt``; or whole granules, added to ``skip``. ``count`` grows by
// one for each granule of which a few are.
inline void find_lost(const float (&sum)[BN / 2], const Row *rows, const Row *cols, int M, int N, int top, int left, int depth, uint doubt,
                      uint &skip, uint (&lost)[GRANULES], uint *words, int barrier, ulong *count) {
    int lane = threadIdx.x % 32, row = 16 * (threadIdx.x / 32 % 4) + lane / 4;
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) {
        int r = row + i / 2 % 2 * 8, col = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (!(doubt >> (col / GRANULE) & 1) || top + r >= M || left + col >= N) continue;
        /*!lost-sums*/lost[i / 32] |= (uint)is_lost(rows[r], cols[col], sum[i], depth) << i % 32;
    }
    uint counts = sum_of(__popc(lost[0]) | __popc(lost[GRANULES - 1]) << 16, words, barrier);
#pragma unroll
    for (int i = 0; i < GRANULES; ++i) {
        uint found = counts >> 16 * i & 0xffff;
        if (found > FEW) skip |= 1u << i, lost[i] = 0;
        else if (found && threadIdx.x % 128 == 0) atomicAdd(count, 1ull);
    }
}

// where a thread's sum ``i`` lies in the 64 x BN of its warpgroup
inline int row_of(int i, int thread) { return thread / 32 % 4 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
inline int column_of(int i, int thread) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

// A warpgroup's 64 x BN of C of which some sums are computed again; in local memory, for registers belong to the loop over K.
struct Again {
    float sum[BN / 2];   // those of the thread
    uint lost[GRANULES]; // which of them are computed again, by bits
    Operands of;
    float alpha;
    uint spare; // address of the warp's memory
};

// The sums that are lost in plain fp32, each by its warp: what ``plain`` gives, to the last bit.
__noinline__ void one_by_one(Again &in) {
    uint thread = threadIdx.x, lane = thread % 32;
#pragma unroll 1
    for (int g = 0; g < GRANULES; ++g)
        each_wanted(in.lost[g], [&](uint owner, int bit) {
            int i = 32 * g + bit, its = thread - lane + owner;
            float total = chains<SPARE_BYTES, 0, 0>(
                in.of.a.at(row_of(i/*!row-one-by-one*/, its)), in.of.a.on, in.of.b.at(column_of(i/*!column-one-by-one*/, its)), in.of.b.on, in.of.K, in.spare);
            if (lane == owner) in.sum[i] = in.alpha /*!alpha-one-by-one*/* total;
        });
}

struct Granule { // 64 x GRANULE of C by a warpgroup
    static constexpr int ROWS = 64, COLS = GRANULE, THREADS = 128, DEPTH = 16, DOWN = 8, ON = GRANULE / 16, BYTES = 4 * SPARE_BYTES;
    static inline int row(int i) { return threadIdx.x / 16 % 8 + 8 * i; }
    static inline int column(int j) { return threadIdx.x % 16 * 2 + j / 2 * 32 + j % 2; }
    static inline void meet() { together(threadIdx.x / 128); }
};

// 64 x GRANULE of C by a warpgroup in plain fp32; c: its first element. ``at``: the warpgroup's memory.
inline void plain(const Operands &of, int rows, int cols, float alpha, float beta, const Added &added, float *c, int ldc, uint at) {
    float sum[GRANULE / 2] = {};
    chains_of_part<Granule>(of, rows, cols, sum, at);
#pragma unroll
    for (int i = 0; i < GRANULE / 2; ++i) {
        int row = Granule::row(i / Granule::ON), col = Granule::column(i % Granule::ON);
        if (row >= rows || col >= cols) continue;
        float *to = c + (long long)row * ldc + col, result = alpha * sum[i];
        *to = activated(beta != 0 ? fmaf(beta, added.one(to, row, col), result) : result);
    }
}
