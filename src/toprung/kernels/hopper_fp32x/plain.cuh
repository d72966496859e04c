// Sums of fp32x that the guard refused, in plain fp32: chains of fused multiply-adds from A and B as they were given, the same bits by
// ``one_by_one`` as by ``plain``.

#include "../include/chains.cuh"
#include "meetings.cuh"

constexpr int GRANULE = BN < 64 ? BN : 64, GRANULES = BN / GRANULE; // columns that are refused together
constexpr int FEW = 64;       // elements of a granule, at most, that are computed one after the other, by four warps in turn
constexpr int DEPTH = 16;     // of K at a time
constexpr int HIGH = 64 + 4;  // floats from one of K to the next
constexpr int CHAINS = 8;     // of CHAIN elements each of a row and a column, that a warp has room for where it computes one

static_assert(GRANULES <= 2, "a thread's 32 sums of each granule are bits of 64");
static_assert(CHAIN % DEPTH == 0, "a chain ends where a step does");
static_assert(CHAINS * (CHAIN + 1) <= DEPTH / 4 * HIGH, "four warps share what operands in plain fp32 have");

// what the threads of a warpgroup have, added up; ``shared``: four words of its own
inline uint sum_of(uint mine, uint *shared, int barrier) {
    mine = __reduce_add_sync(0xffffffffu, mine);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32 % 4] = mine;
    together(barrier);
    mine = shared[0] + shared[1] + shared[2] + shared[3];
    together(barrier); // the words may be written again
    return mine;
}

// Sums of a thread that are computed again, by bits, in granules of ``doubt``; or whole granules, added to ``skip``. ``count`` grows by one
// for each granule of which a few are.
inline ulong find_lost(const float (&sum)[BN / 2], const Row *rows, const Row *cols, int M, int N, int top, int left, int depth, uint doubt,
                       uint &skip, uint *words, int barrier, ulong *count) {
    int lane = threadIdx.x % 32, row = 16 * (threadIdx.x / 32 % 4) + lane / 4;
    ulong lost = 0;
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) {
        int r = row + i / 2 % 2 * 8, col = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        if (!(doubt >> (col / GRANULE) & 1) || top + r >= M || left + col >= N) continue;
        /*!lost-sums*/lost |= (ulong)is_lost(rows[r], cols[col], sum[i], depth) << i;
    }
    uint counts = sum_of(__popcll(lost & 0xffffffff) | __popcll(lost >> 32) << 16, words, barrier);
#pragma unroll
    for (int i = 0; i < GRANULES; ++i) {
        uint found = counts >> 16 * i & 0xffff;
        if (found > FEW) skip |= 1u << i, lost &= ~(0xffffffffull << 32 * i);
        else if (found && threadIdx.x % 128 == 0) atomicAdd(count, 1ull);
    }
    return lost;
}

// where a thread's sum ``i`` lies in the 64 x BN of its warpgroup
inline int row_of(int i, int thread) { return thread / 32 % 4 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
inline int column_of(int i, int thread) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

// A warpgroup's 64 x BN of C of which some sums are computed again; in local memory, for registers belong to the loop over K.
struct Again {
    float sum[BN / 2]; // those of the thread
    ulong lost;        // which of them are computed again, by bits
    const float *a, *b; // the first row and column
    long long down_a, on_a, down_b, on_b;
    int K;
    float alpha, *as, *bs; // the warp's memory, CHAINS * (CHAIN + 1) each
};

// The sums that are lost in plain fp32, each by its warp, a lane for each chain: what ``plain`` gives, to the last bit.
__noinline__ void one_by_one(Again &in) {
    int thread = threadIdx.x, lane = thread % 32;
    float *As = in.as, *Bs = in.bs;
#pragma unroll 1
    for (uint owners = __ballot_sync(0xffffffffu, in.lost != 0); owners; owners &= owners - 1) {
        int owner = __ffs(owners) - 1;
        ulong rest = (ulong)__shfl_sync(0xffffffffu, (uint)(in.lost >> 32), owner) << 32 | __shfl_sync(0xffffffffu, (uint)in.lost, owner);
#pragma unroll 1
        for (; rest; rest &= rest - 1) {
            int i = __ffsll(rest) - 1, of = thread - lane + owner;
            const float *a = in.a + row_of(i/*!row-one-by-one*/, of) * in.down_a, *b = in.b + column_of(i/*!column-one-by-one*/, of) * in.down_b;
            float total = 0.0f;
#pragma unroll 1
            for (int k0 = 0; k0 < in.K; k0 += CHAINS * CHAIN) {
                __syncwarp(); // all lanes have read the elements of the step before
                float x[CHAINS], y[CHAINS];
#pragma unroll
                for (int j = 0; j < CHAINS; ++j) {
                    long long k = k0 + CHAIN * j + /*!k-one-by-one*/lane;
                    x[j] = k < in.K ? a[k * in.on_a] : 0.0f, y[j] = k < in.K ? b[k * in.on_b] : 0.0f;
                }
#pragma unroll
                for (int j = 0; j < CHAINS; ++j) As[(CHAIN + 1) * j + lane] = x[j], Bs[(CHAIN + 1) * j + lane] = y[j];
                __syncwarp();
                int depth = lane < CHAINS ? min(CHAIN, in.K - k0 - CHAIN * lane) : 0;
                float acc = chain(depth, [=](int j) { return make_float2(As[(CHAIN + 1) * lane + j], Bs[(CHAIN + 1) * lane + j]); });
                int count = min((in.K - k0 + CHAIN - 1) / CHAIN, CHAINS);
                for (int j = 0; j < count; ++j) total += __shfl_sync(0xffffffffu, acc, j);
            }
            if (lane == owner) in.sum[i] = in.alpha /*!alpha-one-by-one*/* total;
        }
    }
}

// 64 x GRANULE of C by a warpgroup in plain fp32; a, b and c point to the first row, column and element
inline void plain(const float *a, long long down_a, long long on_a, const float *b, long long down_b, long long on_b, int rows, int cols, int K,
                  float alpha, float beta, const Added &added, float *c, int ldc, float (*As)[HIGH], float (*Bs)[HIGH], int barrier) {
    constexpr int TN = GRANULE / 16; // a thread has 8 rows, 8 apart, and TN columns, 16 apart
    int t = threadIdx.x % 128, tx = t % 16, ty = t / 16;
    float acc[8 * TN] = {}, sum[8 * TN] = {};
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        next_chain(k0, sum, acc);
#pragma unroll
        for (int e = t; e < 64 * DEPTH; e += 128) { // consecutive threads along memory
            int k = on_a == 1 ? e % DEPTH : e / 64, r = on_a == 1 ? e / DEPTH : e % 64;
            As[k][r] = k0 + k < K && r < rows ? a[r * down_a + (k0 + k) * on_a] : 0.0f;
        }
#pragma unroll
        for (int e = t; e < GRANULE * DEPTH; e += 128) {
            int k = on_b == 1 ? e % DEPTH : e / GRANULE, r = on_b == 1 ? e / DEPTH : e % GRANULE;
            Bs[k][r] = k0 + k < K && r < cols ? b[r * down_b + (k0 + k) * on_b] : 0.0f;
        }
        together(barrier);
        int depth = min(DEPTH, K - k0); // elements past K are not multiplied: 0 times Inf is a NaN
#pragma unroll 1
        for (int k = 0; k < depth; ++k) {
            float x[8], y[TN];
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = As[k][ty + 8 * i];
#pragma unroll
            for (int j = 0; j < TN; ++j) y[j] = Bs[k][tx + 16 * j];
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[TN * i + j] = fmaf(x[i], y[j], acc[TN * i + j]);
        }
        together(barrier);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            int row = ty + 8 * i, col = tx + 16 * j;
            if (row >= rows || col >= cols) continue;
            float *to = c + (long long)row * ldc + col, result = alpha * (sum[TN * i + j] + acc[TN * i + j]);
            *to = activated(beta != 0 ? fmaf(beta, added.one(to, row, col), result) : result);
        }
}
