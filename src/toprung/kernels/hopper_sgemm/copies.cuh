// Operands that the TMA cannot fetch, because their rows begin anywhere or K runs the other way: the producer's 128 threads
// copy them into the ring, four bytes at a time, to where the TMA would put them. Nothing is laid out beforehand.
//
//     ALONG (K runs along memory):    a warp has 16 rows and two of K at a time. Those two go to the same banks, and take two turns;
//                                     with one, or with four, of K a stage takes longer (docs/lab-notes.md)
//     across (K runs across memory):  a warp has 32 neighbours of one k
//
// COPY_A, COPY_B: 0: the TMA fetches the operand; 1: it is copied, K runs along memory; 2: it is copied, K runs across it.
//
// Rows beyond the last are not copied: what lies there goes into results that nobody stores. Beyond K come zeros, of both operands,
// for else a NaN in one would go into every sum.

template <bool ALONG, int SIDE, int PANEL> struct Copies {
    static constexpr int WIDE = ALONG ? 16 : SIDE < 128 ? SIDE : 128; // rows that a warp, or all threads, take at once
    static constexpr int STEP = ALONG ? 2 : 128 / WIDE;               // and k: BK is a multiple
    static constexpr int NEXT = ALONG ? 4 * WIDE : WIDE;              // from one row of a thread to its next
    const float *from; // the thread's first element of the next stage
    long long ld;
    int left, line;    // rows that there are from the thread's first on; its first k
    uint place;        // of that element in a stage's operand

    inline Copies(const float *x, long long ld_, int first, int rows, int k) : ld(ld_) {
        int t = threadIdx.x % 128, row = ALONG ? t / 32 * WIDE + t % /*!row-copied*/WIDE : t % WIDE;
        line = ALONG ? t / WIDE % STEP : t / WIDE, left = rows - first - row/*!rows-copied*/, place = 4 * (line * PANEL + row);
        from = x + (ALONG ? (first + row) * ld + k + line : (k + line) * ld + first + row);
    }
    static inline uint place_of(int k, int row) { return 4 * (row / PANEL * (BK * /*!panel-copied*/PANEL) + k * PANEL + row % PANEL); }

    // BK of K, of which ``some`` are there
    template <bool WHOLE> inline void fetch(uint to, int some) {
        const float *x = from;
        to += place;
#pragma unroll
        for (int i = 0; i < (ALONG ? SIDE / NEXT : BK / STEP); ++i, x += (ALONG ? NEXT : STEP) * ld)
#pragma unroll
            for (int j = 0; j < (ALONG ? BK / STEP : SIDE / NEXT); ++j) {
                int row = NEXT * (ALONG ? i : j), k = STEP * (ALONG ? j : i);
                const float *at = x + (ALONG ? k : row);
                if (row >= left) continue;
                if (WHOLE) copy_async<4>(to + place_of(k, row), at, 4);
                else copy_async_if<4>(to + place_of(k, row), at, line + k < some/*!k-copied*/);
            }
        from += /*!next-copied*/ALONG ? BK : BK * ld;
    }
    inline void fetch(uint to, int some) {
        if (some >= BK) fetch<true>(to, some);
        else fetch<false>(to, some);
    }
};

// what the producer's threads do all along
inline void copy_all(Ring &ring, Walk &walk, const TensorMap *map_a, const TensorMap *map_b, const float *A, const float *B, long long lda,
                     long long ldb, int M, int N, int K) {
    bool first = threadIdx.x == 32 * WARPS;
    while (walk.step()) {
        int k = walk.from * BK;
        Copies<COPY_A == 1, BM, PANEL_M> a(A, lda, walk.m, M, k);
        Copies<COPY_B == 1, BN, PANEL_N> b(B, ldb, walk.n, N, k);
        for (; k < walk.to * BK; k += BK) {
            uint to = ring.base(), bar = ring.full();
            ring.wait_empty();
            if (TMA_BYTES && first) {
                barrier_expect(bar, TMA_BYTES);
                if (!COPY_A) ring.fetch_a(map_a, walk.m, k);
                if (!COPY_B) ring.fetch_b(map_b, walk.n, k);
            }
            if (COPY_A) a.fetch(to, K - k);
            if (COPY_B) b.fetch(to + A_BYTES, K - k);
            barrier_arrive_copied(bar);
            ring.advance();
        }
    }
    ring.wait_empty(); // one more, read beyond the end and not used
    if (TMA_BYTES && first) barrier_arrive(ring.full());
    barrier_arrive(ring.full());
}
