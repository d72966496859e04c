// Sums in plain fp32, for elements of C that two terms cannot carry: those in which losses of small elements may be seen (Doubts), and
// those that are Inf or NaN.
//
// Few elements go one after the other, a lane of a warp for each chain (chains); many as 16 x GRANULE of C together (again). Both leave
// the same bits.

constexpr int GRANULE = 32;              // columns computed again together
constexpr int DEPTH = BN < 64 ? 16 : 32; // of K at a time
// Floats from one of K to the next, of 16 rows of A and of GRANULE columns of B: copies along K and across meet in few banks
constexpr int PITCH_A = 17, PITCH_B = 34;

static_assert(CHAIN % DEPTH == 0, "a chain ends where a step does");
static_assert(SPARE_BYTES >= 4 * DEPTH * (PITCH_A + PITCH_B), "operands of a step, in the warp's memory");

// Elements that are computed one after the other, at most: each takes a microsecond for a K of 1,024.
inline int few_of(int K) { return 8 + min(K / 32, 88); }

// Operands of a part of C: its first row of A and column of B, elements from one line to the next (down), and along it (on).
struct Operands {
    const ElementA *a;
    const ElementB *b;
    long long down_a, on_a, down_b, on_b;
    int K;
};

// Set the operands from a row and a column on; ``to``: Operands, or Doubts.
template <class To> inline void set_row(To &to, const ElementA *A, long long lda, int row) {
    to.a = A + (TRANS_A ? row : row * lda), to.down_a = TRANS_A ? 1 : lda, to.on_a = TRANS_A ? lda : 1;
}
template <class To> inline void set_column(To &to, const ElementB *B, long long ldb, int col) {
    to.b = B + (TRANS_B ? col * ldb : col), to.down_b = /*!down-b*/TRANS_B ? ldb : 1, to.on_b = TRANS_B ? 1 : ldb;
}

// an element into shared memory as fp32, or 0: there after ``copies_wait``
template <int TYPE> inline void copy_widened(uint to, const float *from, bool there) { copy_async_if<4>(to, from, there); }
template <int TYPE> inline void copy_widened(uint to, const unsigned short *from, bool there) {
    shared_put(to, there ? widened<TYPE>(*from/*!half-again*/) : 0.0f);
}

// The sum of row x of A and column y of B, by a warp, each lane a chain at a time. ``at``: SPARE_BYTES of shared memory, where all of both
// is on its way before any of it is waited for.
#if B_TYPE == 3 || SLICES > 1
inline
#else
__noinline__ // inlined, the loop over K gets other registers
#endif
float chains(const ElementA *x, long long on_a, const ElementB *y, long long on_b, int K, uint at) {
    constexpr int APART = CHAIN + 1, ROOM = SPARE_BYTES / (8 * APART), MOST = ROOM < 32 ? ROOM : 32; // chains at a time; they meet in no bank
    int lane = threadIdx.x % 32;
    uint As = at, Bs = at + 4 * APART * MOST;
    float total = 0.0f;
    bulk_wait(); // of a tile before, the TMA may still read what is overwritten here
#pragma unroll 1
    for (int k0 = 0; k0 < K; k0 += MOST * CHAIN) {
        int count = min((K - k0 + CHAIN - 1) / CHAIN, MOST), left = K - k0 - lane;
        const ElementA *one = x + (k0 + lane) * on_a;
        const ElementB *two = y + (k0 + lane) * on_b;
        /*!step-is-read*/__syncwarp(); // all lanes have read the elements of the step before
#pragma unroll 4
        for (int i = 0; i < count; ++i, one += CHAIN * on_a, two += CHAIN * on_b) {
            bool there = CHAIN * i < left/*!chain-end*/;
            copy_widened<A_TYPE>(As + 4 * (APART * i + lane), there ? one : x, there);
            copy_widened<B_TYPE>(Bs + 4 * (APART * i + lane), there ? two : y, there);
        }
        /*!chain-is-copied*/copies_wait();
        /*!chain-is-copied*/__syncwarp();
        int depth = lane < count ? min(CHAIN, K - k0 - CHAIN * lane) : 0;
        float acc = chain(depth, [=](int j) {
            return make_float2(shared_one(As + 4 * (APART * lane + j)), shared_one(Bs + 4 * (APART * lane + j)));
        });
#pragma unroll 4
        for (int i = 0; i < count; ++i) total += __shfl_sync(0xffffffffu, acc, i/*!chains-in-order*/);
    }
    return total;
}

// Element ``i`` of 16 of a thread (four for each column_of(i / 4), as ``Out::store`` has them), of GRANULE columns from ``first`` on: stores it.
inline void store_again(const Out &out, int first, int i, float sum) {
    int row = row_of(i / 2 % 2), col = first + column_of(i / 4) + i % 2;
    float *to = out.at + (long long)row * out.ldc + col, result = out.alpha * sum;
    *to = activated(out.beta != 0.0f ? fmaf(out.beta, out.added.one(to, row, col), result) : result);
}

// Those of a thread's elements whose bits are set in ``wanted``, one after the other.
inline void one_by_one(const Operands &of, const Out &out, int first, uint wanted, uint at) {
    const auto [a, b, down_a, on_a, down_b, on_b, K] = of;
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint owners = __ballot_sync(0xffffffffu, wanted != 0); owners; owners &= owners - 1) {
        int owner = __ffs(owners) - 1;
#pragma unroll 1
        for (uint rest = __reduce_or_sync(0xffffffffu, lane == owner ? wanted : 0); rest; rest &= rest - 1) {
            int i = __ffs(rest) - 1;
            float total = chains(a + row_of(i / 2 % 2/*!row-left*/, owner) * down_a, on_a, b + (column_of(i / 4, owner) + i % 2/*!column-left*/) * down_b, on_b, K, at);
            if (lane == owner) store_again(out, first, i, total);
        }
    }
}

// GRANULE columns of a warp's C, from ``first`` on, of which those elements are stored whose bits are set in ``wanted``; ``at``:
// SPARE_BYTES of shared memory.
inline void again(const Operands &of, const Out &out, int first, uint wanted, uint at) {
    if (__reduce_add_sync(0xffffffffu, __popc(wanted)) <= few_of(of.K)) return one_by_one(of, out, first, wanted, at);
    const auto [a, b, down_a, on_a, down_b, on_b, K] = of;
    int lane = threadIdx.x % 32, cols = out.cols - first;
    uint As = at, Bs = at + 4 * DEPTH * PITCH_A;
    float acc[GRANULE / 2] = {}, sum[GRANULE / 2] = {};
    bulk_wait(); // of a tile before, the TMA may still read what is overwritten here
#pragma unroll 1
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        next_chain(k0, sum, acc);
        /*!step-is-read*/__syncwarp(); // all lanes have read the elements of the step before
#pragma unroll 4
        for (int e = lane; e < 16 * DEPTH; e += 32) { // consecutive threads along memory
            int k = on_a == 1 ? e % DEPTH : e / 16, r = on_a == 1 ? e / DEPTH : e % 16;
            bool there = k0 + k < K && r < out.rows;
            copy_widened<A_TYPE>(As + 4 * (k * PITCH_A + r), there ? a + r * down_a + (k0 + k) * on_a : a, there);
        }
#pragma unroll 4
        for (int e = lane; e < GRANULE * DEPTH; e += 32) {
            int k = on_b == 1 ? e % DEPTH : e / GRANULE, c = on_b == 1 ? e / DEPTH : e % GRANULE;
            bool there = k0 + k < K/*!columns-of-k*/ && c < cols;
            copy_widened<B_TYPE>(Bs + 4 * (k * PITCH_B + c), there ? b + c * down_b + (k0 + k) * on_b : b, there);
        }
        /*!step-is-copied*/copies_wait();
        /*!step-is-copied*/__syncwarp();
        int depth = min(DEPTH, K - k0); // elements past K are not multiplied: 0 times Inf is a NaN
#pragma unroll 4
        for (int k = 0; k < depth; ++k) {
            float x[2] = {shared_one(As + 4 * (k * PITCH_A + row_of(0))), shared_one(As + 4 * (k * PITCH_A + row_of(1)))};
#pragma unroll
            for (int i = 0; i < GRANULE / 8; ++i) {
                float2 y = shared_two(Bs + 4 * (k * PITCH_B + column_of(i)));
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    acc[4 * i + 2 * h] = fmaf(x[h], y.x, acc[4 * i + 2 * h]);
                    acc[4 * i + 2 * h + 1] = fmaf(x[h], y.y, acc[4 * i + 2 * h + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < GRANULE / 2; ++i)
        if (wanted >> i & 1) store_again(out, first, i, sum[i] + acc[i]);
}

// What a tile's stores left: ``operands(of, col)`` sets those from column col of the tile on. ``count`` grows by one for each 16 x GRANULE
// with such elements.
template <class OperandsAt> inline void store_left(const Out &out, const Left &left, ulong *count, uint at, OperandsAt operands) {
    uint some = 0;
#pragma unroll
    for (int g = 0; g < BN / GRANULE; ++g) some |= left[g];
    if (!__any_sync(0xffffffffu, some != 0)) return;
#pragma unroll 1
    for (int g = 0; g < BN / GRANULE; ++g) {
        uint wanted = 0;
#pragma unroll
        for (int x = 0; x < BN / GRANULE; ++x) wanted |= x == g ? left[x] : 0;
        if (!__any_sync(0xffffffffu, wanted != 0)) continue;
        if (threadIdx.x % 32 == 0) atomicAdd(count, 1ull);
        Operands of;
        operands(of, GRANULE * g);
        again(of, out, GRANULE * g, wanted, at);
    }
}
