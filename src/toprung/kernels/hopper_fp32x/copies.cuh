// From global memory into the ring: a stage of A, or of B, as the 128 threads of the copier fetch it.
//
// The layouts in shared memory, in which neither these copies nor the reads after them have bank conflicts:
//
//      A along K:    [k / 16][row ^ k / 16][16]      B along K:    [row][8 pieces of 16 bytes, exclusive or with row % 8]
//      A across K:   [k][row ^ 8 (k % 4)]            B across K:   [warp][k ^ (k / EACH ^ warp) % TURNS][LANES]
//
// fp16 and bf16 A: twice the exclusive or. Along K a B of them takes the first four pieces of even rows and the last four of odd ones.
// With B split beforehand a thread reads words of K in order: the two eights of A's k-block of 16 change places in every second pair of rows,
// and across K it is 8 (k / 2 % 4). A splitter warp overwrites columns of B that it alone reads: along K the column is in row
// stored_row, across K in its own.

constexpr int TURNS = PARTS * (4 / B_SIZE); // rows of B across K are permuted over so many

template <class Element, bool IS_A, bool ALONG, int ROWS, int WORDS> struct Copies {
    static constexpr int SIZE = sizeof(Element), HALF = SIZE == 2, WIDTH = WORDS * 4 / SIZE; // elements of a piece, WORDS of 4 bytes
    static constexpr int PIECES = (ALONG ? 32 : ROWS) / WIDTH, STEP = 128 / PIECES, COUNT = (ALONG ? ROWS : 32) / STEP;
    // pieces of a thread are equally far apart in shared memory: APART elements for each line
    static constexpr bool EVEN = ALONG ? STEP % (IS_A ? (B_IS_SPLIT ? 4 : 2) << HALF : 16) == 0 : IS_A && STEP % (B_IS_SPLIT ? 8 : 4) == 0;
    static constexpr int APART = !ALONG ? ROWS : IS_A ? 16 : 128 / SIZE;
    static constexpr int AT_ONCE = COUNT < 16 ? COUNT : 16;
    const Element *from; // the thread's first piece of the next stage
    long long ld;
    int left;      // rows there are, from the thread's first on (ALONG), or elements of its piece (across)
    uint line, on; // the thread's first row (ALONG) or k, and the piece's first element there
    bool all;      // no row of the tile is missing

    inline Copies() {}
    inline Copies(const Element *x, long long ld_, int first, int rows, int k) : ld(ld_), all(first + ROWS <= rows) {
        uint t = threadIdx.x % 128;
        line = t / PIECES, on = t % PIECES * WIDTH;
        if (ALONG) from = x + (first + (int)line) * ld + k + on, left = rows - first - (int)line;
        else from = x + (k + (int)line) * ld + first + on, left = min(max(rows - first - (int)on, 0), WIDTH);
    }

    static inline uint place(uint line, uint on) { // of an element in shared memory, in elements
        uint k = ALONG ? on : line, row = ALONG ? line : on;
        if (IS_A && ALONG) return k / 16 * (16 * ROWS) + (row ^ (k / 16 << HALF)) * 16 + (k % 16 ^ (B_IS_SPLIT ? 8 * (row / (2 << HALF) % 2) : 0));
        if (IS_A) return k * ROWS + (row ^ (8 << HALF) * (B_IS_SPLIT ? k / /*!eights-of-k*/2 % 4 : k % 4));
        uint warp = row / LANES;
        if (ALONG) {
            row = stored_row(row);
            return row * (128 / SIZE) + ((k * SIZE / 16 + /*!odd-rows*/HALF * 4 * (row % 2)) ^ row % 8) * (16 / SIZE) + k % (16 / SIZE);
        }
        return warp * (LANES * 128 / SIZE) + (k ^ /*!turn-of-k*/(k / EACH ^ warp) % TURNS) * LANES + row % LANES;
    }

    inline uint place_of(int i) const { // of the thread's piece i
        return EVEN ? place(line, on) + i * STEP * APART : place(line + i * STEP, on);
    }

    // to the next piece, by an addition each where the compiler would rather multiply and keep many addresses
    inline void further(const Element *&x) const {
        x += STEP * ld;
        if (CONSUMERS == 1 || B_IS_SPLIT) forget(x);
    }

    // the next stage, k to k + 31; beyond K zeros
    inline void fetch(uint to, int k, int K) {
        const Element *x = from;
        from += ALONG ? 32 : 32 * ld;
        if (all && k + 32 <= K) {
#pragma unroll AT_ONCE
            for (int i = 0; i < COUNT; ++i, further(x)) copy_async<4 * WORDS>(to + SIZE * place_of(i), (const float *)x, 4 * WORDS);
            return;
        }
        int rest = K/*!rest-of-k*/ - k - (int)(ALONG ? on : line), wide = ALONG ? min(max(rest, 0), WIDTH) : left; // elements of a piece that there are
        int count = wide ? ALONG ? left : rest : 0; // rows, or of K, that there are
        if (WIDTH == 1 || !__any_sync(0xffffffffu, wide % WIDTH)) {
#pragma unroll AT_ONCE
            for (int i = 0; i < COUNT; ++i, further(x)) copy_async_if<4 * WORDS>(to + SIZE * place_of(i), (const float *)x, i * STEP /*!pieces-of-k*/< count);
            return;
        }
        // A row ends inside a piece: across K in every stage of a tile at C's edge. Lanes with whole pieces copy here, too: else they and
        // the others would take turns.
#pragma unroll AT_ONCE
        for (int i = 0; i < COUNT; ++i, further(x))
            copy_async<4 * WORDS>(to + SIZE * place_of(i), (const float *)x, i * STEP < count ? /*!last-piece*/SIZE * wide : 0);
    }
};

typedef Copies<ElementA, true, !TRANS_A, BM, ALIGN_A> CopiesOfA;
typedef Copies<ElementB, false, TRANS_B, BN, ALIGN_B> CopiesOfB;
