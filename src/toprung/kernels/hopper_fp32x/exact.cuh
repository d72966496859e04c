// Sums in plain fp32, for elements of C that two terms cannot carry: those in which losses of small elements may be seen (Doubts), and
// those that are Inf or NaN.
//
// Few elements go one after the other, a lane of a warp for each chain; many as 16 x GRANULE of C together. Both leave the same bits.

constexpr int GRANULE = 32; // columns computed again together

// Elements that are computed one after the other, at most: each takes a microsecond for a K of 1,024.
inline int few_of(int K) { return 8 + min(K / 32, 88); }

typedef OperandsOf<A_TYPE, B_TYPE> Operands;

inline Operands operands_of(const ElementA *A, long long lda, int row, const ElementB *B, long long ldb, int col, int K) {
    return Operands{Lines<A_TYPE>(A, lda, TRANS_A, row), Lines<B_TYPE>(B, ldb, !TRANS_B, col), K};
}

struct Granule { // 16 x GRANULE of C by a warp, as it has its sums (shape.cuh)
    static constexpr int ROWS = 16, COLS = GRANULE, THREADS = 32, DEPTH = BN < 64 ? 16 : 32, DOWN = 2, ON = GRANULE / 4, BYTES = SPARE_BYTES;
    static inline int row(int i) { return row_of(i); }
    static inline int column(int j) { return column_of(j / 2) + j % 2; }
    static inline void meet() { __syncwarp(); }
};

// The sum of a row of A and a column of B by a warp; of values, for a struct would pass through local memory. ``at``: the warp's memory.
#if B_TYPE == 3 || SLICES > 1
inline
#else
__noinline__ // inlined, the loop over K gets other registers
#endif
float element_of(const ElementA *x, long long on_a, const ElementB *y, long long on_b, int K, uint at) {
    bulk_wait(); // of a tile before, the TMA may still read what is overwritten here
    return chains<SPARE_BYTES, A_TYPE, B_TYPE>(x, on_a, y, on_b, K, at);
}
inline float element_again(const Operands &of, int row, int col, uint at) {
    return element_of(of.a.at(row), of.a.on, of.b.at(col), of.b.on, of.K, at);
}

// Of GRANULE columns of a warp's C, from ``first`` on, those elements whose bits are set in ``wanted``, as ``Out::store`` has them: bit
// 4 i + 2 h + w is row_of(h), column_of(i) + w. ``at``: the warp's memory.
inline void again(const Operands &of, const Out &out, int first, uint wanted, uint at) {
    int lane = threadIdx.x % 32;
    auto store = [&](int h, int j, float sum) {
        int row = row_of(h), col = first + Granule::column(j);
        float *to = out.at + (long long)row * out.ldc + col, result = out.alpha * sum;
        *to = activated(out.beta != 0.0f ? fmaf(out.beta, out.added.one(to, row, col), result) : result);
    };
    if (__reduce_add_sync(0xffffffffu, __popc(wanted)) <= few_of(of.K)) {
        each_wanted(wanted, [&](int owner, int i) {
            int h = i / 2 % 2, j = i / 4 * 2 + i % 2;
            float sum = element_again(of, row_of(h/*!row-left*/, owner), column_of(j / 2, owner) + j % 2/*!column-left*/, at);
            if (lane == owner) store(h, j, sum);
        });
        return;
    }
    float sum[GRANULE / 2] = {};
    bulk_wait(); // as above
    chains_of_part<Granule>(of, out.rows, out.cols - first, sum, at);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < Granule::ON; ++j)
            if (wanted >> (j / 2 * 4 + 2 * h + j % 2) & 1) store(h, j, sum[Granule::ON * h + j]);
}

// What a tile's stores left: ``operands(col)`` returns those from column col of the tile on. ``count`` grows by one for each 16 x GRANULE
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
        again(operands(GRANULE * g), out, GRANULE * g, wanted, at);
    }
}
