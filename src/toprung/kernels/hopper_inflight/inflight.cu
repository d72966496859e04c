// C = alpha*A*B + beta*C in fp32, row-major (A MxK, B KxN, C MxN), a batch of them, in one launch: A and B are split into two fp16
// terms on their way to the matrix units. A block owns 64*CONSUMERS x BN of C at a time, a consumer warpgroup 64 x BN; the ring
// has 32 of K in a stage:
//
//      copier warpgroup --> ring, fp32 --> splitter warpgroup: B's columns split in place, hi | lo, with a scale each --> matrix units
//                                     \--> consumer warpgroups: A's rows from shared memory into registers, split there --> (A in registers)
//
//      partial = lo.hi + hi.lo + hi.hi of 32 of K, from zero;  sum += partial * scale of the column * scale of the row
//
// The one idea: a power of two for each row of A, each column of B and each 32 of K brings the largest to 2^14, and is taken back as
// partial sums are promoted to fp32, so that nothing has to be known of an operand beforehand. Elements far below the largest of their 32
// lose bits in two terms; where they are noticed, sums in which that may be seen are found at a tile's end. Those elements of C, those that are
// Inf or NaN, and no others, are computed again in plain fp32, short chains of fused multiply-adds. An element's bits depend on its row
// of A and its column of B alone. ``count`` grows by one for each 16 x 32 of C that has such elements.
//
// SLICES > 1: a cluster has a tile, each block a slice of K; the blocks' sums meet in their shared memory, in the order of slices.
// IN_PARTS: K is cut into ``batch`` parts of whole 32, of which the last may be shorter; each is a product with a C of its own, ``stride_a``
// and ``stride_b`` lead from part to part, and hopper_fp32x/reduce.cu adds the results up.
// GROUPED: that many products at most in one launch, of sizes of their own, C = f(A*B + D); all have the same layouts and alignments.
// A_TYPE, B_TYPE: 0 for fp32, 1 for fp16, 2 for bf16. A half has one term, and its lo's product falls away: fp16 is its own term and is
// not scaled (but where B was split beforehand); bf16 is widened and scaled as fp32 is, after which its 8 bits fit hi as far as 2^-31 times the largest.
// B_TYPE 3: B was split beforehand, as hopper_fp32x/split.cu leaves it, a scale for all of a column: the copy engine fetches its terms, there
// is no splitter, and partial sums are promoted by the scale of the row alone. Its lo is multiplied by 2^11, so A has a third term, hi * 2^-11.
// With ``claims``, not 0, and K along memory, the launch splits B itself before it multiplies (hopper_presplit/claimed.cuh).
// Wants: operands aligned to ALIGN_A and ALIGN_B words of 4 bytes, with leading dimensions and strides. alpha = 0: A and B are not read.

#ifndef A_TYPE
#define A_TYPE 0
#endif
#ifndef B_TYPE
#define B_TYPE 0
#endif

#define B_IS_SPLIT (B_TYPE == 3)
#define THREADS (128 * (CONSUMERS + 2 - B_IS_SPLIT))
#define BM (64 * CONSUMERS)
#define A_SIZE (A_TYPE ? 2 : 4) // bytes of an element
#define A_UNSCALED (A_TYPE == 1 && !B_IS_SPLIT) // hi * 2^-11 of what is not scaled may be no half
#define B_SIZE (B_TYPE == 1 || B_TYPE == 2 ? 2 : 4)
#define A_BYTES (BM * 32 * A_SIZE)
#define B_BYTES (BN * 128) // for terms, whatever B's elements are
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define RING_BYTES (STAGES * STAGE_BYTES)
#define KNOWN_BYTES (16 + 2 * BN) // of what is known of the columns of B of a tile
#define LANES (BN / 4)        // columns of B that a warp splits: lane / LANES is the thread's part of each
#define PARTS (128 / BN)      // threads that split a column together
#define EACH (32 / PARTS)     // of K that each has of it
#define TURNS (PARTS * (4 / B_SIZE)) // how far B's rows are turned around across K
#define EARLY (BN < 128 || A_TYPE) // whether A's scales are found while the matrix units work; else they lack registers
#define DEPTH (BN < 64 ? 16 : 32) // of K at a time in plain fp32
#define CHAIN 32              // of K added up by themselves there, as in include/block.cl
#define GRANULE 32            // columns computed again together
#define ONE_BY_ONE(K) (8 + min((K) / 32, 88)) // of them, at most, that are computed one after the other: a microsecond each for 1,024 of K
#define PITCH_A 17            // floats from one of K to the next of 16 rows of A and of GRANULE columns of B: copies along K or across
#define PITCH_B 34            // it meet in few banks
#define FOURS (LANES >= 16 && !B_IS_SPLIT) // whether a thread's sums are four columns next to each other
#define PITCH (BN + 16)       // floats from row to row of what a warp hands to the copy engine: eight rows meet in no bank
#define TOP 14                // the largest element of a scaled row lies in [2^TOP, 2^(TOP + 1))
#define SPREAD 17             // small, under 2^-SPREAD times the largest: an element has fewer bits in its terms than fp32 has
// What small elements lose, x - hi - lo, is looked for in sums where four neighbours are small or 0, and not all 0. Single ones are off by
// 2^-39 of the largest, unseen (docs/fp32x.md, benchmarks/inflight_study.py).
#define LEAST 25              // least biased exponent of a row's largest: below, terms or scaled sums would be subnormal
#define LEAST_LARGEST 0x1p-101f // as much as the largest may be then

static_assert(1024 + RING_BYTES + STAGES * (4 * BN + 24) + 4 * CONSUMERS * SPARE_BYTES + (B_IS_SPLIT ? 0 : 2 * STAGES * KNOWN_BYTES) <= DYNAMIC_SHARED,
              "the ring, scales and barriers, consumers' memory, and what is known of columns");

// what a consumer warp has for operands of what it computes again, and for rows that it hands to the copy engine
static_assert(SPARE_BYTES >= 4 * DEPTH * (PITCH_A + PITCH_B) && (!FOURS || SLICES > 1 || SPARE_BYTES >= 64 * PITCH), "it has too little");

#if A_TYPE
typedef unsigned short ElementA;
#else
typedef float ElementA;
#endif
#if B_TYPE == 1 || B_TYPE == 2
typedef unsigned short ElementB;
#else
typedef float ElementB;
#endif

inline void consumers_meet() { asm volatile("bar.sync 15, %0;" ::"n"(128 * CONSUMERS) : "memory"); }

// K does not run in order, unless B was split beforehand: a word of a fragment has two elements that the thread can fetch at once. Of each 16 of K, where word p of
// B's rows (lane % 4 = p % 4 of A's, its first two words or its last two) has its element e from.
inline int k_of(int p, int e) { return TRANS_A ? p % 4 + 8 * (p / 4) + 4 * e : 4 * (p % 4) + 2 * (p / 4) + e; }

// The column of C that the matrix units give a thread first of each eight, 8 i + 2 (lane % 4): B's columns lie in an order in which
// those of two such eights follow each other, and a thread stores four at once.
inline int column_of(int i, uint thread = threadIdx.x) {
    return FOURS ? 16 * (i / 2) + thread % 4 * 4 + 2 * (i % 2) : 8 * i + 2 * (thread % 4);
}

// where column c lies in that order, and its inverse
inline uint lies_at(uint c) { return FOURS ? (c & ~15u) + c / 2 % 2 * 8 + c / 4 % 4 * 2 + c % 2 : c; }
inline uint lies_there(uint r) { return FOURS ? (r & ~15u) + r / 2 % 4 * 4 + r / 8 % 2 * 2 + r % 2 : r; }

// of the warp's 16 rows, those of a thread: h = 0 and 1
inline int row_of(int h, uint thread = threadIdx.x) { return TRANS_A ? thread % 32 / 4 * 2 + h : thread % 32 / 4 + 8 * h; }

struct Ring { // where things lie in shared memory, and the stage that is next
    uint first, phase;
    int stage;
    inline Ring(char *memory) : first((shared_address(memory) + 1023) & ~1023u), phase(0), stage(0) {}
    inline uint tile() const { return first + stage * STAGE_BYTES; } // A, and B behind it
    inline uint scales() const { return first + RING_BYTES + stage * (4 * BN); }
    inline uint spare(int warp) const { return first + RING_BYTES + STAGES * (4 * BN) + warp * SPARE_BYTES; }
    // What is known of a tile's columns of B: a word of each splitting warp, which have small elements, and two bytes of each (``Line``). By the
    // stage behind the tile's last, and by phase: consumers look when they have left the last.
    inline uint known() const { return spare(4 * CONSUMERS) + KNOWN_BYTES * (phase * STAGES + stage); }
    inline uint full() const { return spare(4 * CONSUMERS) + (B_IS_SPLIT ? 0 : 2 * STAGES * KNOWN_BYTES) + 8 * stage; } // copies are there
    inline uint ready() const { return full() + 8 * STAGES; }  // B is split
    inline uint empty() const { return full() + 16 * STAGES; } // and nobody reads the stage any more
    inline void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    inline void init() {
        for (int s = 0; s < STAGES; ++s, advance())
            barrier_init(full(), 128 + B_IS_SPLIT), barrier_init(ready(), 4), barrier_init(empty(), 4 * CONSUMERS);
        phase = 0;
        barrier_init_fence();
    }
};

// --- into the ring ----------------------------------------------------------------------------------------------------------------

// A tile of ROWS rows (columns of B) x 32 of K as the 128 threads of the copier fetch it, WORDS of 4 bytes at a time. It lies
//      A along K:    [k / 16][row ^ k / 16][16]      B along K:    [row][8 pieces of 16 bytes, exclusive or with row % 8]
//      A across K:   [k][row ^ 8 (k % 4)]            B across K:   [warp][k ^ (k / EACH ^ warp) % TURNS][LANES]
// With B split beforehand A's 16 of K are two halves, which change places in every second pair of rows, and across K it is 8 (k / 2 % 4):
// a thread then fetches words of K in order.
// (halves of A with twice the exclusive or; along K, B's halves are in the first four pieces of even rows and the last four of odd ones)
// so that neither these copies nor those who read it meet in a bank. A warp reads and overwrites B's columns of its own; B's row is
// where its column lies (lies_at) along K, the column itself across K.
template <class Element, bool IS_A, bool ALONG, int ROWS, int WORDS> struct Copies {
    static constexpr int SIZE = sizeof(Element), HALF = SIZE == 2, WIDTH = WORDS * 4 / SIZE;
    static constexpr int PIECES = (ALONG ? 32 : ROWS) / WIDTH, STEP = 128 / PIECES, COUNT = (ALONG ? ROWS : 32) / STEP;
    // whether pieces lie equally far apart
    static constexpr bool EVEN = ALONG ? STEP % (IS_A ? (B_IS_SPLIT ? 4 : 2) << HALF : 16) == 0 : IS_A && STEP % (B_IS_SPLIT ? 8 : 4) == 0;
    static constexpr int APART = !ALONG ? ROWS : IS_A ? 16 : 128 / SIZE; // elements from one line to the next, where EVEN
    const Element *from; // the thread's first piece of the 32 of K that are next
    long long ld;
    int left; // rows that are there, from the thread's first on (ALONG), or elements of its piece (else)
    uint line, on; // the thread's first row (ALONG) or k, and where its piece begins there
    bool all; // every row of the tile is there

    inline Copies() {}
    inline Copies(const Element *x, long long ld_, int first, int rows, int k) : ld(ld_), all(first + ROWS <= rows) {
        uint t = threadIdx.x % 128;
        line = t / PIECES, on = t % PIECES * WIDTH;
        if (ALONG) from = x + (first + (int)line) * ld + k + on, left = rows - first - (int)line;
        else from = x + (k + (int)line) * ld + first + on, left = min(max(rows - first - (int)on, 0), WIDTH);
    }

    static inline uint place(uint line, uint on) { // of an element, in elements
        uint k = ALONG ? on : line, row = ALONG ? line : on;
        if (IS_A && ALONG) return k / 16 * (16 * ROWS) + (row ^ (k / 16 << HALF)) * 16 + (k % 16 ^ (B_IS_SPLIT ? 8 * (row / (2 << HALF) % 2) : 0));
        if (IS_A) return k * ROWS + (row ^ (8 << HALF) * (B_IS_SPLIT ? k / 2 % 4 : k % 4));
        uint warp = row / LANES;
        if (ALONG) {
            row = lies_at(row);
            return row * (128 / SIZE) + ((k * SIZE / 16 + HALF * 4 * (row % 2)) ^ row % 8) * (16 / SIZE) + k % (16 / SIZE);
        }
        return warp * (LANES * 128 / SIZE) + (k ^ (k / EACH ^ warp) % TURNS) * LANES + row % LANES;
    }

    // of the thread's piece i
    inline uint place_of(int i) const {
        return EVEN ? place(line, on) + i * STEP * APART : place(line + i * STEP, on);
    }

    // to the next piece; where the compiler would multiply addresses, each anew, in a way that it does not see through
    inline void further(const Element *&x) const {
        x += STEP * ld;
        if (CONSUMERS == 1 || B_IS_SPLIT) {
            asm volatile("" : "+l"(x));
        }
    }

    // the next 32 of K, k to k + 31; beyond K zeros
    inline void fetch(uint to, int k, int K) {
        const Element *x = from;
        from += ALONG ? 32 : 32 * ld;
        if (all && k + 32 <= K) {
#pragma unroll(COUNT < 16 ? COUNT : 16)
            for (int i = 0; i < COUNT; ++i, further(x)) copy_async<4 * WORDS>(to + SIZE * place_of(i), (const float *)x, 4 * WORDS);
            return;
        }
        int rest = K - k - (int)(ALONG ? on : line), wide = ALONG ? min(max(rest, 0), WIDTH) : left; // of a piece, all that there is
        int count = wide ? ALONG ? left : rest : 0; // of rows or of K, as many as there are
        if (WIDTH == 1 || !__any_sync(0xffffffffu, wide % WIDTH)) {
#pragma unroll(COUNT < 16 ? COUNT : 16)
            for (int i = 0; i < COUNT; ++i, further(x)) copy_async_if<4 * WORDS>(to + SIZE * place_of(i), (const float *)x, i * STEP < count);
            return;
        }
        // A row ends inside a piece: across K in every stage of a tile at C's edge. Lanes with whole pieces copy here, too: else they and
        // the others would take turns.
#pragma unroll(COUNT < 16 ? COUNT : 16)
        for (int i = 0; i < COUNT; ++i, further(x))
            copy_async<4 * WORDS>(to + SIZE * place_of(i), (const float *)x, i * STEP < count ? SIZE * wide : 0);
    }
};

// --- into terms -------------------------------------------------------------------------------------------------------------------

struct ChunkScale {
    float times, back; // what elements are multiplied by, and its inverse
};

// the largest |x| of four; a NaN does not count, as it remains one whatever it is multiplied by
inline uint largest_of(float x, float y, float z, float w) {
    return __float_as_uint(fmaxf(fmaxf(fabsf(x), fabsf(y)), fmaxf(fabsf(z), fabsf(w))));
}

// the scale of 32 elements by the bits of the largest |x|
inline ChunkScale scale_of(uint largest) {
    uint exponent = max(largest, (uint)LEAST << 23) & 0x7f800000;
    return ChunkScale{__uint_as_float(((uint)(254 + TOP) << 23) - exponent), __uint_as_float(exponent - ((uint)TOP << 23))};
}

// Whether one of them is small; ``less``: the bits of |x|, less 1, for what is 0 loses nothing.
inline bool is_small(uint less, uint largest) {
    return less < max(largest, (uint)LEAST << 23) - ((uint)SPREAD << 23);
}

// halves as fp32: one, and the two of a word
template <int TYPE> inline float widened(uint half) { return TYPE == 1 ? from_half(half) : __uint_as_float(half << 16); }
template <int TYPE> inline float low_of(uint word) { return TYPE == 1 ? from_half(word & 0xffff) : __uint_as_float(word << 16); }
template <int TYPE> inline float high_of(uint word) { return TYPE == 1 ? from_half(word >> 16) : __uint_as_float(word & 0xffff0000); }

// the terms of two elements, or of two halves their one; TYPE 1: as they are. CORRECTS: lo carries the share that truncation takes
template <int TYPE, bool CORRECTS> inline void split_two(float x, float y, float times, uint &hi, uint &lo) {
    float u = TYPE == 1 ? x : x * times, v = TYPE == 1 ? y : y * times;
    hi = pair_of(u, v);
    float one = from_half(hi & 0xffff), two = from_half(hi >> 16);
    lo = TYPE ? 0 : CORRECTS ? pair_of(corrected(CUT_SHARE, one, u - one), corrected(CUT_SHARE, two, v - two)) : pair_of(u - one, v - two);
}

// What is ahead: 2 for each 32 of K that a tile has left, and 1 if another tile follows.
struct Ahead {
    uint word;
    inline Ahead(int chunks, bool follows) : word(2 * chunks + follows) {}
    inline bool of_tile() const { return word > 1; }
    inline bool any() const { return word; }
    inline void next() { word -= 2; }
};

// What is known of a row of A or a column of B: its largest |x|, or more, and what its small elements lose together, |x - hi - lo|, or more.
// For that 2^-25 of the scale are counted, for each element that a thread has of 32 of K where it noticed small ones.
struct Line {
    float largest, lost;
};

// as a byte: a power of two that is no less
inline uint byte_of(float x) { return min((__float_as_uint(x) >> 23) + (x != 0.0f), 255u); }
inline float of_byte(uint byte) { return __uint_as_float(byte << 23); }

// what a product may lose of one line, or 0 where that loses nothing, whatever the other is
inline float lost_by(const Line &one, const Line &other) { return one.lost > 0.0f ? one.lost * other.largest : 0.0f; }

// what a sum must have at least, if so much may be lost of it
inline float least_of(float lost) { return (0x1p24f / UNITS) * lost; }

// B's columns of a stage, where they lie; and the scale of each. Returns the warp's in which small elements were noticed, by bits; of what the
// thread has of its column, ``weight`` gets the scales with which it noticed them, added up, and ``most`` is the largest |x| so far.
inline uint split_columns(uint tile, uint scales, float &weight, uint &most) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = warp * LANES + lane % LANES, part = lane / LANES;
    int column = (int)lies_there(row);
    float v[EACH];
    uint largest = 0, smallest = ~0u;
    if (TRANS_B && B_TYPE) { // K runs along memory
#pragma unroll
        for (int i = 0; i < EACH / 8; ++i) {
            float4 eight = shared_four(tile + row * 128 + ((part * (EACH / 8) + i + 4 * (row % 2)) ^ row % 8) * 16);
            float words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                v[8 * i + 2 * w] = low_of<B_TYPE>(__float_as_uint(words[w]));
                v[8 * i + 2 * w + 1] = high_of<B_TYPE>(__float_as_uint(words[w]));
            }
        }
    } else if (TRANS_B) {
#pragma unroll
        for (int i = 0; i < EACH / 4; ++i) {
            float4 four = shared_four(tile + row * 128 + ((part * (EACH / 4) + i) ^ row % 8) * 16);
            v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            uint at = tile + warp * (128 * LANES) + B_SIZE * (((part * EACH + i) ^ (part ^ warp) % TURNS) * LANES + column % LANES);
            v[i] = B_TYPE ? widened<B_TYPE>(shared_half(at)) : shared_one(at);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH / 4; ++i) {
        uint four = largest_of(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        largest = max(largest, four), smallest = min(smallest, four - 1);
    }
#pragma unroll
    for (int other = B_TYPE == 1 ? 32 : LANES; other < 32; other *= 2) // fp16 is not scaled
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, other));
    ChunkScale s = scale_of(largest);
    bool small = B_TYPE != 1 && is_small(smallest, largest);
    weight += small ? s.back : 0.0f, most = max(most, largest);
    if (part == 0 && B_TYPE != 1) shared_put(scales + 4 * column, s.back);
    __syncwarp(); // all have read what is overwritten now
    // word p of each 16 of K: piece p / 4 of two; hi, and 64 bytes further lo
    uint at = tile + row * 128, turn = row % 8;
#pragma unroll
    for (int step = 0; step < (EACH + 15) / 16; ++step) {
        int whole = PARTS == 4 ? part / 2 : PARTS == 2 ? part : step; // the 16 of K
        uint hi[8], lo[8];
#pragma unroll
        for (int p = 0; p < (EACH < 16 ? 4 : 8); ++p) {
            // with 8 of K the thread has words 0, 1, 4 and 5 (the first 8), or 2, 3, 6 and 7; across K 0 to 3, or 4 to 7
            int word = EACH >= 16 || TRANS_A ? p : p % 2 + p / 2 * 4;
            split_two<B_TYPE, true>(v[16 * step + k_of(word, 0)], v[16 * step + k_of(word, 1)], s.times, hi[p], lo[p]);
        }
        if (EACH >= 16) {
            shared_put(at + ((2 * whole) ^ turn) * 16, hi[0], hi[1], hi[2], hi[3]);
            shared_put(at + ((2 * whole + 1) ^ turn) * 16, hi[4], hi[5], hi[6], hi[7]);
            if (!B_TYPE) shared_put(at + ((4 + 2 * whole) ^ turn) * 16, lo[0], lo[1], lo[2], lo[3]);
            if (!B_TYPE) shared_put(at + ((5 + 2 * whole) ^ turn) * 16, lo[4], lo[5], lo[6], lo[7]);
        } else if (TRANS_A) {
            shared_put(at + ((2 * whole + part % 2) ^ turn) * 16, hi[0], hi[1], hi[2], hi[3]);
            if (!B_TYPE) shared_put(at + ((4 + 2 * whole + part % 2) ^ turn) * 16, lo[0], lo[1], lo[2], lo[3]);
        } else {
            uint half = part % 2 * 8;
            shared_put(at + ((2 * whole) ^ turn) * 16 + half, hi[0], hi[1]);
            shared_put(at + ((2 * whole + 1) ^ turn) * 16 + half, hi[2], hi[3]);
            if (!B_TYPE) shared_put(at + ((4 + 2 * whole) ^ turn) * 16 + half, lo[0], lo[1]);
            if (!B_TYPE) shared_put(at + ((5 + 2 * whole) ^ turn) * 16 + half, lo[2], lo[3]);
        }
    }
    return B_TYPE == 1 ? 0 : __reduce_or_sync(0xffffffffu, (uint)small << lane % LANES);
}

// What ``split_columns`` gave of a tile, for consumers to look at.
inline void put_known(uint known, uint noticed, float weight, uint most) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int other = LANES; other < 32; other *= 2) {
        weight += __shfl_xor_sync(0xffffffffu, weight, other);
        most = max(most, __shfl_xor_sync(0xffffffffu, most, other));
    }
    uint bytes = byte_of(__uint_as_float(most)) | byte_of(weight * (EACH * 0x1p-25f)) << 8;
    if (lane < LANES) shared_put_half(known + 16 + 2 * lies_there(warp * LANES + lane), bytes);
    if (lane == 0) shared_put(known + 4 * warp, __uint_as_float(noticed));
    __syncwarp(); // one lane arrives for all
}

struct RowsOfA { // of A, 32 of K: the thread's elements of its two rows, as they come
    float v[2][8];
    ChunkScale scale[2];
    bool small[2]; // whether four of a row are small or 0, and not all 0

    inline void fetch(uint tile) {
        int lane = threadIdx.x % 32, c = lane % 4, m = threadIdx.x / 32 * 16;
#pragma unroll
        for (int s = 0; s < 2; ++s)
            if (TRANS_A) {
#pragma unroll
                for (int q = 0; q < 4; ++q) { // k = 16 s + 4 q + c, or in order
                    int k = 16 * s + (B_IS_SPLIT ? 2 * c + q % 2 + q / 2 * 8 : 4 * q + c);
                    uint at = tile + A_SIZE * (k * BM + ((m + row_of(0)) ^ 32 / A_SIZE * c));
                    if (A_TYPE) {
                        uint both = __float_as_uint(shared_one(at));
                        v[0][4 * s + q] = low_of<A_TYPE>(both), v[1][4 * s + q] = high_of<A_TYPE>(both);
                    } else {
                        float2 two = shared_two(at);
                        v[0][4 * s + q] = two.x, v[1][4 * s + q] = two.y;
                    }
                }
            } else {
#pragma unroll
                for (int h = 0; h < 2; ++h) { // k = 16 s + 4 c …
                    uint at = tile + A_SIZE * (s * (16 * BM) + ((m + row_of(h)) ^ s * (4 / A_SIZE)) * 16 + (B_IS_SPLIT ? 2 * c : 4 * c));
                    int turned = 8 * (row_of(h) / (8 / A_SIZE) % 2); // where B is split
                    uint one = at + A_SIZE * turned, two = at + A_SIZE * (8 - turned);
                    if (A_TYPE) {
                        float2 both = B_IS_SPLIT ? make_float2(shared_one(one), shared_one(two)) : shared_two(at);
                        uint first = __float_as_uint(both.x), second = __float_as_uint(both.y);
                        v[h][4 * s] = low_of<A_TYPE>(first), v[h][4 * s + 1] = high_of<A_TYPE>(first);
                        v[h][4 * s + 2] = low_of<A_TYPE>(second), v[h][4 * s + 3] = high_of<A_TYPE>(second);
                    } else if (B_IS_SPLIT) {
                        float2 x = shared_two(one), y = shared_two(two);
                        v[h][4 * s] = x.x, v[h][4 * s + 1] = x.y, v[h][4 * s + 2] = y.x, v[h][4 * s + 3] = y.y;
                    } else {
                        float4 four = shared_four(at);
                        v[h][4 * s] = four.x, v[h][4 * s + 1] = four.y, v[h][4 * s + 2] = four.z, v[h][4 * s + 3] = four.w;
                    }
                }
            }
    }

    inline void weigh() {
        if (A_UNSCALED) return; // its scale is 1
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float(&x)[8] = v[h];
            uint one = largest_of(x[0], x[1], x[2], x[3]), two = largest_of(x[4], x[5], x[6], x[7]);
            uint largest = max(one, two); // of the four lanes that have the row
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            scale[h] = scale_of(largest);
            small[h] = is_small(min(one - 1, two - 1), largest);
            if (A_TYPE) {
#pragma unroll
                for (int i = 0; i < 8; ++i) x[i] *= scale[h].times;
            }
        }
    }
};

// two halves times 2^-11
inline uint by_residual(uint two) {
    uint product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(two), "r"(0x10001000u));
    return product;
}

struct Fragments { // their terms
    uint hi[2][4], lo[2][4];
#if B_IS_SPLIT
    uint low[2][4]; // hi, for B's lo
#endif
    float back[2], weight[2]; // weight: the same where some are small, else 0

    inline void split(const RowsOfA &rows) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float(&v)[8] = rows.v[h];
            back[h] = A_UNSCALED ? 1.0f : rows.scale[h].back;
            weight[h] = !A_UNSCALED && rows.small[h] ? back[h] : 0.0f;
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                split_two<A_TYPE != 0, B_TYPE == 1 || B_TYPE == 2>(v[4 * s], v[4 * s + 1], rows.scale[h].times, hi[s][h], lo[s][h]);
                split_two<A_TYPE != 0, B_TYPE == 1 || B_TYPE == 2>(v[4 * s + 2], v[4 * s + 3], rows.scale[h].times, hi[s][h + 2], lo[s][h + 2]);
#if B_IS_SPLIT
                low[s][h] = by_residual(hi[s][h]), low[s][h + 2] = by_residual(hi[s][h + 2]);
#endif
            }
        }
    }
};

// What is known of the thread's two rows: their largest scales so far, and added up those with which it noticed small elements.
struct Known {
    float weight[2] = {};
    uint scales = 0; // 16 bits of each are all of a power of two: one register, one instruction

    inline void add(const Fragments &a) {
        if (A_UNSCALED) return;
        weight[0] += a.weight[0], weight[1] += a.weight[1];
        scales = __vmaxu2(scales, __byte_perm(__float_as_uint(a.back[0]), __float_as_uint(a.back[1]), 0x7632));
    }

    // of the lanes that have the row together, each with 8 of its 32 elements
    inline Line row(int h) const {
        float most = __uint_as_float(h ? scales & 0xffff0000u : scales << 16), all = weight[h];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        return Line{A_UNSCALED ? 65504.0f : most * 0x1p15f, all * (8 * 0x1p-25f)};
    }
};

// an element into shared memory as fp32, or 0: there after ``copies_wait``
template <int TYPE> inline void copy_widened(uint to, const float *from, bool there) { copy_async_if<4>(to, from, there); }
template <int TYPE> inline void copy_widened(uint to, const unsigned short *from, bool there) {
    shared_put(to, there ? widened<TYPE>(*from) : 0.0f);
}

// A row of A times a column of B in plain fp32, by a warp, each lane a chain of 32 of K at a time; what ``again`` gives, to the last bit.
// ``at``: SPARE_BYTES of shared memory, where all of both is on its way before any of it is waited for.
#if B_IS_SPLIT || SLICES > 1
inline
#else
__noinline__ // or the loop over K gets other registers; a call would do as much where B is split beforehand
#endif
float chains(const ElementA *x, long long on_a, const ElementB *y, long long on_b, int K, uint at) {
    constexpr int APART = CHAIN + 1, ROOM = SPARE_BYTES / (8 * APART), MOST = ROOM < 32 ? ROOM : 32; // chains at a time; they meet in no bank
    int lane = threadIdx.x % 32;
    uint As = at, Bs = at + 4 * APART * MOST;
    float total = 0.0f;
    bulk_wait(); // of a tile before, the copy engine may still read what is overwritten here
#pragma unroll 1
    for (int k0 = 0; k0 < K; k0 += MOST * CHAIN) {
        int count = min((K - k0 + CHAIN - 1) / CHAIN, MOST), left = K - k0 - lane;
        const ElementA *one = x + (k0 + lane) * on_a;
        const ElementB *two = y + (k0 + lane) * on_b;
        __syncwarp(); // nobody reads what was there before
#pragma unroll 4
        for (int i = 0; i < count; ++i, one += CHAIN * on_a, two += CHAIN * on_b) {
            bool there = CHAIN * i < left;
            copy_widened<A_TYPE>(As + 4 * (APART * i + lane), there ? one : x, there);
            copy_widened<B_TYPE>(Bs + 4 * (APART * i + lane), there ? two : y, there);
        }
        copies_wait();
        __syncwarp();
        int depth = lane < count ? min(CHAIN, K - k0 - CHAIN * lane) : 0;
        float acc = 0.0f;
#pragma unroll 8
        for (int j = 0; j < CHAIN; ++j)
            if (j < depth) acc = fmaf(shared_one(As + 4 * (APART * lane + j)), shared_one(Bs + 4 * (APART * lane + j)), acc);
#pragma unroll 4
        for (int i = 0; i < count; ++i) total += __shfl_sync(0xffffffffu, acc, i);
    }
    return total;
}

#if !B_IS_SPLIT
// A warp's 16 x BN of C in doubt, in local memory, for registers belong to the loop over K.
struct Doubts {
    alignas(16) float sum[BN / 2];
    Line rows[2];
    uint known, spare; // addresses: what the ring has of the columns, and the warp's memory
    const ElementA *a; // the first of the warp's rows and of the tile's columns
    const ElementB *b;
    long long down_a, on_a, down_b, on_b;
    int K;
    ulong *count;
};

// Looks for sums in which may be seen what rows or columns lose. A few are computed again at once; many become NaN, and those of a slice of K,
// for what is stored is the sum of all slices.
__noinline__ void refuse(Doubts &in) {
    uint thread = threadIdx.x, refused[2] = {}, pieces = 0; // refused: of the row h bit x, of the thread's column x % 2 of eight columns x / 2
    const Line rows[2] = {in.rows[0], in.rows[1]};
    bool may_be_0[2]; // the sums of a row that has lost all; a row of zeros has the least scale, and nothing to lose
#pragma unroll
    for (int h = 0; h < 2; ++h) may_be_0[h] = rows[h].lost > 0.0f || rows[h].largest > LEAST_LARGEST;
#pragma unroll 4
    for (int x = 0; x < BN / 4; ++x) {
        int col = column_of(x / 2, thread) + x % 2;
        uint its = shared_half(in.known + 16 + 2 * col);
        Line column{of_byte(its & 0xff), of_byte(its >> 8)};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = in.sum[4 * (x / 2) + 2 * h + x % 2], least = least_of(lost_by(rows[h], column) + lost_by(column, rows[h]));
            bool lost = (fabsf(sum) < least) & (may_be_0[h] | (sum != 0.0f));
            refused[h] |= (uint)lost << x, pieces |= (uint)lost << col / GRANULE;
        }
    }
    uint found = __reduce_add_sync(0xffffffffu, __popc(refused[0]) + __popc(refused[1]));
    if (!found) return;
    bool few = SLICES == 1 && found <= (BN / GRANULE) * ONE_BY_ONE(in.K);
    pieces = __popc(__reduce_or_sync(0xffffffffu, pieces));
    if (few && thread % 32 == 0) atomicAdd(in.count, (ulong)pieces);
#pragma unroll 1
    for (int h = 0; h < 2; ++h)
#pragma unroll 1
        for (uint owners = __ballot_sync(0xffffffffu, refused[h] != 0); owners; owners &= owners - 1) {
            uint owner = __ffs(owners) - 1;
#pragma unroll 1
            for (uint rest = __shfl_sync(0xffffffffu, refused[h], owner); rest; rest &= rest - 1) {
                int x = __ffs(rest) - 1;
                float again = __int_as_float(0x7fffffff);
                if (few) again = chains(in.a + row_of(h, owner) * in.down_a, in.on_a, in.b + (column_of(x / 2, owner) + x % 2) * in.down_b, in.on_b, in.K, in.spare);
                if (thread % 32 == owner) in.sum[4 * (x / 2) + 2 * h + x % 2] = again;
            }
        }
}
#endif

#if B_IS_SPLIT
// 32 of K: what ``a`` has of A, times the stage's B; meanwhile ``next`` gets the next stage's, if there is one.
inline void step(float (&sum)[BN / 2], const Fragments &a, Fragments &next, Known &known, Ahead &ahead, Ring &at) {
    ahead.next();
    ulong b = tile_at(at.tile() + A_BYTES); // 16 of K further: 32 bytes, 2 in a descriptor; lo: 64 bytes
    uint empty = at.empty();
    float partial[BN / 2];
    pin(partial);
    wgmma_fence();
    if (!A_TYPE) {
        wgmma_rs<BN>(partial, a.lo[0], b, 0);
        wgmma_rs<BN>(partial, a.lo[1], b + 2, 1);
    }
    wgmma_rs<BN>(partial, a.low[0], b + 4, !A_TYPE);
    wgmma_rs<BN>(partial, a.low[1], b + 6, 1);
    wgmma_rs<BN>(partial, a.hi[0], b, 1);
    wgmma_rs<BN>(partial, a.hi[1], b + 2, 1);
    wgmma_commit();
    at.advance();
    if (ahead.any()) barrier_wait(at.full(), at.phase);
    RowsOfA rows;
    rows.fetch(at.tile()); // behind the last stage: what was there before
    rows.weigh();
    next.split(rows);
    wgmma_wait<0>();
    pin(partial);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = fmaf(partial[i], a.back[i / 2 % 2], sum[i]);
    known.add(a);
}

// Sums as B's columns scale them. Those become NaN in which something may be seen that two terms cannot carry. Of a column an element is off by
// 2^-36 at most, where a largest one has 2^15; of a row half as much again is lost as ``Line`` has, by its third term.
inline void scale_columns(float (&sum)[BN / 2], const Known &of_rows, const Row *columns, int cols, int K) {
    float least[2], if_lost[2]; // what sums must have, also of a column that has lost something
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        Line row = of_rows.row(h);
        least[h] = least_of(1.5f * row.lost * 0x1p15f);
        if_lost[h] = least[h] + least_of((float)K * 0x1p-36f * row.largest);
    }
    // A lane fetches each 32nd column for all of its warp: fetched where they are used, they would be waited for one after the other.
    int known[BN / 32]; // 2 * exponent, and whether the column has lost something
#pragma unroll
    for (int g = 0; g < BN / 32; ++g) {
        int col = 32 * g + threadIdx.x % 32;
        Row its{0, 0};
        if (col < cols) its = columns[col];
        known[g] = 2 * its.exponent + (its.losses & LOST ? 1 : 0);
    }
#pragma unroll
    for (int i = 0; i < BN / 4; ++i) { // the thread's column i % 2 of eight columns i / 2
        int its = __shfl_sync(0xffffffffu, known[i / 8], 8 * (i / 2 % 4) + 2 * (threadIdx.x % 4) + i % 2), exponent = its >> 1;
        float first = power_of_two(exponent >> 1), second = power_of_two(exponent - (exponent >> 1)); // both together may be no float
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float &x = sum[4 * (i / 2) + 2 * h + i % 2];
            x = fabsf(x) < (its & 1 ? if_lost[h] : least[h]) ? __int_as_float(0x7fffffff) : x * first * second;
        }
    }
}
#else
// 32 of K: what ``a`` has of A, times the stage's B; then ``a`` gets the next stage's, if there is one. While the matrix units work
// for this warpgroup, others have the schedulers; then two streams of instructions, promoting and splitting, fill each other's gaps.
inline void step(float (&sum)[BN / 2], Fragments &a, Known &known, Ahead &ahead, Ring &at) {
    ulong b = tile_at(at.tile() + A_BYTES); // 16 of K further: 32 bytes, 2 in a descriptor; lo: 64 bytes
    uint empty = at.empty(), scales = at.scales();
    float partial[BN / 2], times[2] = {a.back[0], a.back[1]};
    known.add(a);
    ahead.next();
    barrier_wait(at.ready(), at.phase);
    pin(partial);
    wgmma_fence();
    if (!A_TYPE) {
        wgmma_rs<BN>(partial, a.lo[0], b, 0);
        wgmma_rs<BN>(partial, a.lo[1], b + 2, 1);
    }
    if (!B_TYPE) {
        wgmma_rs<BN>(partial, a.hi[0], b + 4, !A_TYPE);
        wgmma_rs<BN>(partial, a.hi[1], b + 6, 1);
    }
    wgmma_rs<BN>(partial, a.hi[0], b, !(A_TYPE && B_TYPE));
    wgmma_rs<BN>(partial, a.hi[1], b + 2, 1);
    wgmma_commit();
    at.advance();
    if (ahead.any()) barrier_wait(at.full(), at.phase);
    RowsOfA rows;
    rows.fetch(at.tile()); // behind the last stage: what was there before
    if (EARLY) rows.weigh();
    if (A_TYPE) pin(rows.v[0]), pin(rows.v[1]); // rounded behind the wait: what matrix units read is not made while they work
    wgmma_wait<0>();
    pin(partial);
    if (!EARLY) rows.weigh();
    a.split(rows);
#pragma unroll
    for (int i = 0; i < BN / 8; i += 2) {
        float2 one, two;
        if (B_TYPE == 1) {
            one = two = make_float2(1.0f, 1.0f);
        } else if (FOURS) {
            float4 both = shared_four(scales + 4 * column_of(i));
            one = make_float2(both.x, both.y), two = make_float2(both.z, both.w);
        } else {
            one = shared_two(scales + 4 * column_of(i)), two = shared_two(scales + 4 * column_of(i + 1));
        }
#pragma unroll
        for (int x = 0; x < 8; ++x) {
            float back = x / 4 ? x % 2 ? two.y : two.x : x % 2 ? one.y : one.x;
            sum[4 * i + x] = fmaf(partial[4 * i + x] * back, times[x / 2 % 2], sum[4 * i + x]);
        }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}
#endif

// --- out of registers -------------------------------------------------------------------------------------------------------------

struct Out { // a warp's 16 x BN of C
    float *at;    // its first element
    int ldc, rows, cols; // of C that are there, from it on
    float alpha, beta;
    int wide; // floats that may be stored at a time
    Added added;

    // whether ``store_all`` may store it: C is not read, and all of it is there and may be stored as fast as can be; where sums go
    // through shared memory and nothing is added, it may begin anywhere and end inside: with D there are no registers for that
    inline bool simple() const {
        if (FOURS && SLICES == 1 && !EPILOGUE) return beta == 0.0f;
        return rows >= 16 && cols >= BN && wide >= (FOURS ? 4 : 2) && (EPILOGUE || beta == 0.0f);
    }

    // two results next to each other; d: what is added
    inline float2 two(float x, float y, const float *d) const {
        float2 v = make_float2(alpha * x, alpha * y);
        if (EPILOGUE && beta != 0.0f) v.x = fmaf(beta, d[0], v.x), v.y = fmaf(beta, d[1], v.y);
        return make_float2(activated(v.x), activated(v.y));
    }

    // All sums of a thread, where that is so and all are numbers. The warp's rows go through ``memory``: on 16 bytes the copy engine has
    // them, and the warp goes on, but may not write there before ``bulk_wait``; elsewhere 32 lanes write 32 neighbours.
    inline void store_all(const float *v, uint memory) const {
        if (FOURS) {
            bulk_wait();
            __syncwarp();
        }
        float d[BN / 4] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#if EPILOGUE
            if (beta != 0.0f && (EPILOGUE == 1 || h == 0)) added.fetch(d, row_of(h), BN, [](int i) { return column_of(i); });
#endif
            float *to = at + (long long)row_of(h) * ldc;
            uint near = memory + 4 * PITCH * row_of(h);
#pragma unroll
            for (int i = 0; i < BN / 8; i += 1 + FOURS) {
                const float *x = v + 4 * i + 2 * h;
                int col = column_of(i);
                float2 one = two(x[0], x[1], d + 2 * i);
                if (FOURS) {
                    float2 next = two(x[4], x[5], d + 2 * i + 2);
                    shared_put(near + 4 * col, make_float4(one.x, one.y, next.x, next.y));
                } else *(float2 *)(to + col) = one;
            }
        }
        if (!FOURS) return;
        int lane = threadIdx.x % 32, there = min(cols, BN);
        if (wide == 4 && there % 4 == 0) {
            proxy_fence();
            __syncwarp();
            if (lane < min(rows, 16)) bulk_store(at + (long long)lane * ldc, memory + 4 * PITCH * lane, 4 * there);
            return;
        }
        __syncwarp();
        float *to = at + lane;
#pragma unroll 4
        for (int row = 0; row < min(rows, 16); ++row, to += ldc) {
#pragma unroll
            for (int x = 0; x < BN; x += 32)
                if (lane + x < there) to[x] = shared_one(memory + 4 * (PITCH * row + lane + x));
        }
    }

    // four sums of a thread, v[i] to v[i + 3] of all; says which are no numbers and were left: bit 2 h + w
    inline uint store(int i, const float *v) const {
        int col = column_of(i);
        uint left = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int row = row_of(h);
            if (row >= rows || col >= cols) continue;
            float *to = at + (long long)row * ldc + col, x = alpha * v[2 * h], y = alpha * v[2 * h + 1];
            bool one = size_bits(v[2 * h]) < 0x7f800000, two = size_bits(v[2 * h + 1]) < 0x7f800000, both = col + 1 < cols;
            left |= (one ? 0 : 1u << 2 * h) | (two || !both ? 0 : 2u << 2 * h);
            if (wide >= 2 && one && two && both) {
                if (beta != 0.0f) {
                    float2 old = added.two(to, row, col);
                    x = fmaf(beta, old.x, x), y = fmaf(beta, old.y, y);
                }
                *(float2 *)to = make_float2(activated(x), activated(y));
            } else {
                if (one) to[0] = activated(beta != 0.0f ? fmaf(beta, added.one(to, row, col), x) : x);
                if (two && both) to[1] = activated(beta != 0.0f ? fmaf(beta, added.one(to + 1, row, col + 1), y) : y);
            }
        }
        return left;
    }
};

// Element ``i`` of 16 of a thread (four for each column_of(i / 4), as ``Out::store`` has them), of GRANULE columns from ``first`` on: stores it.
inline void store_again(const Out &out, int first, int i, float sum) {
    int row = row_of(i / 2 % 2), col = first + column_of(i / 4) + i % 2;
    float *to = out.at + (long long)row * out.ldc + col, result = out.alpha * sum;
    *to = activated(out.beta != 0.0f ? fmaf(out.beta, out.added.one(to, row, col), result) : result);
}

// What ``again`` computes, where few elements are wanted: one after the other, each lane a chain; the same bits.
inline void one_by_one(const ElementA *a, long long down_a, long long on_a, const ElementB *b, long long down_b, long long on_b, int K,
                       const Out &out, int first, uint wanted, uint at) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint owners = __ballot_sync(0xffffffffu, wanted != 0); owners; owners &= owners - 1) {
        int owner = __ffs(owners) - 1;
#pragma unroll 1
        for (uint rest = __reduce_or_sync(0xffffffffu, lane == owner ? wanted : 0); rest; rest &= rest - 1) {
            int i = __ffs(rest) - 1;
            float total = chains(a + row_of(i / 2 % 2, owner) * down_a, on_a, b + (column_of(i / 4, owner) + i % 2) * down_b, on_b, K, at);
            if (lane == owner) store_again(out, first, i, total);
        }
    }
}

// GRANULE columns of a warp's C in plain fp32, of which those elements are stored whose bits are set in ``wanted``. a and b point to the first
// row and column; ``at``: SPARE_BYTES of shared memory.
inline void again(const ElementA *a, long long down_a, long long on_a, const ElementB *b, long long down_b, long long on_b, int K, const Out &out,
                  int first, uint wanted, uint at) {
    if (__reduce_add_sync(0xffffffffu, __popc(wanted)) <= ONE_BY_ONE(K)) return one_by_one(a, down_a, on_a, b, down_b, on_b, K, out, first, wanted, at);
    int lane = threadIdx.x % 32, cols = out.cols - first;
    uint As = at, Bs = at + 4 * DEPTH * PITCH_A;
    float acc[GRANULE / 2] = {}, sum[GRANULE / 2] = {};
    bulk_wait(); // of a tile before, the copy engine may still read what is overwritten here
#pragma unroll 1
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        if (k0 % CHAIN == 0) {
#pragma unroll
            for (int i = 0; i < GRANULE / 2; ++i) sum[i] += acc[i], acc[i] = 0.0f;
        }
        __syncwarp(); // nobody reads what was there before
#pragma unroll 4
        for (int e = lane; e < 16 * DEPTH; e += 32) { // consecutive threads along memory
            int k = on_a == 1 ? e % DEPTH : e / 16, r = on_a == 1 ? e / DEPTH : e % 16;
            bool there = k0 + k < K && r < out.rows;
            copy_widened<A_TYPE>(As + 4 * (k * PITCH_A + r), there ? a + r * down_a + (k0 + k) * on_a : a, there);
        }
#pragma unroll 4
        for (int e = lane; e < GRANULE * DEPTH; e += 32) {
            int k = on_b == 1 ? e % DEPTH : e / GRANULE, c = on_b == 1 ? e / DEPTH : e % GRANULE;
            bool there = k0 + k < K && c < cols;
            copy_widened<B_TYPE>(Bs + 4 * (k * PITCH_B + c), there ? b + c * down_b + (k0 + k) * on_b : b, there);
        }
        copies_wait();
        __syncwarp();
        int depth = min(DEPTH, K - k0); // what lies behind K is not multiplied: 0 times Inf is a NaN
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

// --- the kernel -------------------------------------------------------------------------------------------------------------------

struct Place {
    int matrix, m, n;
};

// tiles in an order that keeps what runs at once close together: GROUP tiles down, then one to the right
struct Walk {
    uint down, across;
    Divisor matrix, band, last; // by the tiles of a matrix, of a band, and by the rows of the last band
    inline Walk(uint tiles_m, uint tiles_n)
        : down(tiles_m), across(tiles_n), matrix(tiles_m * tiles_n), band(GROUP * tiles_n), last(tiles_m % GROUP ? tiles_m % GROUP : GROUP) {}

    inline Place place(uint tile) const {
        uint m = matrix.of(tile), rest = tile - m * matrix.by, b = band.of(rest), in = rest - b * band.by;
        bool whole = b * GROUP + GROUP <= down;
        uint column = whole ? in / GROUP : last.of(in);
        return Place{(int)m, (int)(b * GROUP + in - column * (whole ? GROUP : last.by)) * BM, (int)column * BN};
    }
};

#ifndef IN_PARTS
#define IN_PARTS 0
#endif
#if IN_PARTS
static_assert(SLICES == 1, "a part is no cluster's");
#define K_OF(matrix) min(32 * chunks, K - 32 * chunks * (matrix)) // of a part
#else
#define K_OF(matrix) K
#endif
#if GROUPED
struct Columns { // tiles of a product, one column of C after the other: those that run at once share B's columns
    uint first;
    Divisor down;
    inline Columns(const Group &group, uint member) : first(member ? group.ends[member - 1] : 0), down(group.of[member].by_tiles()) {}
    inline Place place(uint tile) const {
        uint in = tile - first, column = down.of(in);
        return Place{0, (int)(in - column * down.by) * BM, (int)column * BN};
    }
};

#if EPILOGUE
#define ADDED_OF_PRODUCT                                                                                                           \
    const float *D = now.d, beta = D ? 1.0f : 0.0f;                                                                                \
    long long down_d = now.down, on_d = now.on, stride_d = 0;
#else
#define ADDED_OF_PRODUCT constexpr float beta = 0.0f;
#endif
// the product that a tile belongs to, and how many 32 of K it has
#define FIND_PRODUCT(tile)                                                                                                         \
    member = group.member(tile, member);                                                                                           \
    const int chunks = (group.of[member].K + 31) / 32;
// What a launch of one product has as its parameters. The compiler must not know that ``member`` is what it was: it would rather keep
// all this in registers, while sums are made, than read it again.
#define PRODUCT                                                                                                                    \
    asm volatile("" : "+r"(member));                                                                                               \
    const Member &now = group.of[member];                                                                                          \
    const float *A = now.a, *B = now.b;                                                                                            \
    float *C = now.c;                                                                                                              \
    int M = now.M, N = now.N, K = now.K, ldc = now.ldc;                                                                            \
    long long lda = now.lda, ldb = now.ldb, stride_a = 0, stride_b = 0, stride_c = 0;                                              \
    ADDED_OF_PRODUCT
#define WALK const Columns walk(group, member);
#else
#define FIND_PRODUCT(tile)
#define PRODUCT
#define WALK
#endif

#if B_IS_SPLIT
#define SPLIT_PARAMETERS , Row *info_b, int apart_b, unsigned short *terms_b, uint *claims, const __grid_constant__ TensorMap map_b
#else
#define SPLIT_PARAMETERS
#endif

extern "C" __global__ void
#if SLICES > 1
__cluster_dims__(SLICES, 1, 1)
#endif
__launch_bounds__(THREADS, RESIDENT)
#if !GROUPED
inflight(const ElementA *A, const ElementB *B, float *C, float alpha, float beta ADDED_PARAMETERS, ulong *count, int M, int N, int K, int batch,
         long long lda, long long stride_a, long long ldb, long long stride_b, int ldc, long long stride_c SPLIT_PARAMETERS) {
#else
inflight(ulong *count, const __grid_constant__ Group group) {
#endif
    extern __shared__ char memory[];
    Ring at(memory);
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) at.init();
    __syncthreads();
    let_next_start();
    wait_for_previous();

#if GROUPED
    static_assert(SLICES == 1, "products of a group have all of K");
    constexpr float alpha = 1.0f;
    constexpr int begin = 0, chunks = 1; // or more, but never none
    int tiles = group.tiles, worker = blockIdx.x, workers = gridDim.x;
    uint member = 0;
#else
    Walk walk((M + BM - 1) / BM, (N + BN - 1) / BN);
    int tiles = (int)walk.matrix.by * batch, slice = blockIdx.x % SLICES, worker = blockIdx.x / SLICES, workers = gridDim.x / SLICES;
    int chunks = alpha == 0.0f ? 0 : (K + 31) / 32, each = (chunks + SLICES - 1) / SLICES, begin = min(slice * each, chunks);
#if IN_PARTS
    chunks = (chunks + batch - 1) / batch;
#else
    chunks = min(each, chunks - begin);
#endif
#endif
#if B_IS_SPLIT && TRANS_B
    if (alpha == 0.0f) claims = 0; // B is not read
    int rows_b = N * (apart_b ? batch : 1);
    if (claims) { // B's scales have no place in the ring here
        uint *meeting = (uint *)(memory + (at.first - shared_address(memory)) + RING_BYTES);
        split_claimed(B, ldb, stride_b, N, rows_b, K, terms_b, info_b, claims, THREADS / 128, meeting);
    }
#endif

    if (warpgroup >= CONSUMERS) {
        if (warpgroup == CONSUMERS) { // the copier
            fewer_registers<COPIER_REGISTERS>();
#if B_IS_SPLIT && TRANS_B
            // the other threads of the warpgroup go on with A; who reads info_b does so behind a stage's barrier
            if (claims && threadIdx.x % 128 == 0) wait_for_claimed(claims, pieces_of(rows_b, K), THREADS / 128);
#endif
            for (int tile = worker; tile < tiles; tile += workers) {
                FIND_PRODUCT(tile)
                PRODUCT
                WALK
                Place of = walk.place(tile);
                Copies<ElementA, true, !TRANS_A, BM, ALIGN_A> a(A + of.matrix * stride_a, lda, of.m, M, 32 * begin);
#if !B_IS_SPLIT
                Copies<ElementB, false, TRANS_B, BN, ALIGN_B> b(B + of.matrix * stride_b, ldb, of.n, N, 32 * begin);
#endif
#pragma unroll 1
                for (int j = 0; j < chunks; ++j) {
                    barrier_wait(at.empty(), at.phase ^ 1);
#if B_IS_SPLIT
                    if (threadIdx.x % 128 == 0) {
                        barrier_expect(at.full(), B_BYTES);
                        tma_load(at.tile() + A_BYTES, &map_b, 64 * (begin + j), of.matrix * apart_b + of.n, at.full());
                    }
                    a.fetch(at.tile(), 32 * (begin + j), K);
#else
                    a.fetch(at.tile(), 32 * (begin + j), K_OF(of.matrix));
                    b.fetch(at.tile() + A_BYTES, 32 * (begin + j), K_OF(of.matrix));
#endif
                    barrier_arrive_copied(at.full());
                    at.advance();
                }
            }
        }
#if !B_IS_SPLIT
        else { // the splitter
            fewer_registers<SPLITTER_REGISTERS>();
            for (int tile = worker; tile < tiles; tile += workers) {
                FIND_PRODUCT(tile)
                uint noticed = 0, most = 0;
                float weight = 0.0f;
#pragma unroll 1
                for (Ahead ahead(chunks, tile + workers < tiles); ahead.of_tile();) {
                    barrier_wait(at.full(), at.phase);
                    noticed |= split_columns(at.tile() + A_BYTES, at.scales(), weight, most);
                    ahead.next();
                    proxy_fence(); // the matrix units read what was written here
                    __syncwarp();
                    uint ready = at.ready();
                    at.advance();
                    if (!ahead.of_tile()) put_known(at.known(), noticed, weight, most);
                    if (threadIdx.x % 32 == 0) barrier_arrive(ready);
                }
            }
        }
#endif
#if SLICES > 1
        cluster_sync(); // as often as consumers do
        cluster_sync();
#endif
        return;
    }

    more_registers<CONSUMER_REGISTERS>();
    Fragments a; // of the stage that is next
    if (chunks && worker < tiles) {
        barrier_wait(at.full(), at.phase);
        RowsOfA rows;
        rows.fetch(at.tile());
        rows.weigh();
        a.split(rows);
    }
    for (int tile = worker; tile < tiles; tile += workers) {
        FIND_PRODUCT(tile)
        float sum[BN / 2];
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) sum[i] = 0.0f;
        Ahead ahead(chunks, tile + workers < tiles);
        Known known;
#if B_IS_SPLIT
        Fragments next;
#pragma unroll 1
        while (ahead.of_tile()) {
            step(sum, a, next, known, ahead, at);
            if (ahead.of_tile()) step(sum, next, a, known, ahead, at);
        }
        if (chunks % 2) a = next;
#else
#pragma unroll 1
        while (ahead.of_tile()) step(sum, a, known, ahead, at);
#endif

        PRODUCT
        WALK
        Place of = walk.place(tile);
#if B_IS_SPLIT
        if (chunks) scale_columns(sum, known, info_b + of.matrix * apart_b + of.n, N - of.n, 32 * chunks);
#endif
        int top = of.m + 64 * warpgroup + threadIdx.x / 32 % 4 * 16;
#if !B_IS_SPLIT
        if (chunks) {
            float4 words = shared_four(at.known());
            uint some = __float_as_uint(words.x) | __float_as_uint(words.y) | __float_as_uint(words.z) | __float_as_uint(words.w);
            if (some || (!A_UNSCALED && __any_sync(0xffffffffu, known.weight[0] + known.weight[1] > 0.0f))) {
                Doubts doubts;
                doubts.rows[0] = known.row(0), doubts.rows[1] = known.row(1), doubts.known = at.known(), doubts.spare = at.spare(threadIdx.x / 32);
                doubts.count = count, doubts.K = K_OF(of.matrix);
                doubts.a = A + of.matrix * stride_a + (TRANS_A ? top : top * lda), doubts.b = B + of.matrix * stride_b + (TRANS_B ? of.n * ldb : of.n);
                doubts.down_a = TRANS_A ? 1 : lda, doubts.on_a = TRANS_A ? lda : 1, doubts.down_b = TRANS_B ? ldb : 1, doubts.on_b = TRANS_B ? 1 : ldb;
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) doubts.sum[i] = sum[i];
                refuse(doubts);
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) sum[i] = doubts.sum[i];
            }
        }
#endif
        float *c = C + of.matrix * stride_c + (long long)top * ldc + of.n;
        ulong low = (ulong)c | 4u * ldc; // of addresses of rows
        Out out{c, ldc, M - top, N - of.n, alpha, beta, low % 16 == 0 ? 4 : low % 8 == 0 ? 2 : 1, ADDED(of.matrix, top, of.n)};
        uint left[BN / GRANULE] = {}; // what was not stored, for each GRANULE columns
#if SLICES > 1
        uint sums = at.first + warpgroup * (64 * BN * 4) + threadIdx.x % 128 * 4;
        consumers_meet(); // the ring is read no more
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) shared_put(sums + 512 * i, sum[i]);
        cluster_sync();
#pragma unroll
        for (int i = 0; i < BN / 8; ++i) {
            if (i % SLICES != slice) continue;
            float total[4] = {};
#pragma unroll
            for (int r = 0; r < SLICES; ++r)
#pragma unroll
                for (int x = 0; x < 4; ++x) total[x] += shared_of(sums + 512 * (4 * i + x), r);
            left[i / 4] |= out.store(i, total) << i % 4 * 4;
        }
#else
        float nothing[4] = {}; // or NaN, if a sum is no number
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) nothing[i % 4] = fmaf(sum[i], 0.0f, nothing[i % 4]);
        if (out.simple() && __all_sync(0xffffffffu, nothing[0] + nothing[1] + nothing[2] + nothing[3] == 0.0f)) {
            out.store_all(sum, at.spare(threadIdx.x / 32));
        } else {
#pragma unroll
            for (int i = 0; i < BN / 8; ++i) left[i / 4] |= out.store(i, sum + 4 * i) << i % 4 * 4;
        }
#endif
        uint some = 0;
#pragma unroll
        for (int g = 0; g < BN / GRANULE; ++g) some |= left[g];
        if (__any_sync(0xffffffffu, some != 0)) {
#pragma unroll 1
            for (int g = 0; g < BN / GRANULE; ++g) {
                uint wanted = 0;
#pragma unroll
                for (int x = 0; x < BN / GRANULE; ++x) wanted |= x == g ? left[x] : 0;
                if (!__any_sync(0xffffffffu, wanted != 0)) continue;
                PRODUCT
                int col = of.n + GRANULE * g;
                if (threadIdx.x % 32 == 0) atomicAdd(count, 1ull);
                again(A + of.matrix * stride_a + (TRANS_A ? top : top * lda), TRANS_A ? 1 : lda, TRANS_A ? lda : 1,
                      B + of.matrix * stride_b + (TRANS_B ? col * ldb : col), TRANS_B ? ldb : 1, TRANS_B ? 1 : ldb,
                      K_OF(of.matrix), out, GRANULE * g, wanted, at.spare(threadIdx.x / 32));
            }
        }
        if (tile + workers >= tiles) bulk_wait(); // behind the loop the compiler would give consumers the launch's registers only
#if SLICES > 1
        cluster_sync(); // nobody leaves while others may still read its shared memory
#endif
    }
}
