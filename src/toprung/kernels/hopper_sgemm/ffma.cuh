// What the kernels of this ladder share. C = alpha * A * B + beta * C in plain fp32, A stored KxM and B KxN (both run along m and n
// in memory), C MxN, all row-major. A block owns BM x BN of C, a warp 64 x 64 of that, a thread 8 x 16:
//
//     lane   0  1  2  3 | 0  1  2  3 | ...      a lane owns 4 columns of each 16 and 4 rows of each 32: what a warp reads of a row
//            4  5  6  7 | ...                   of A's or B's tile is 128 or 64 bytes without a gap
//           ..             (each 4 x 4 of C)
//
//     a stage of the ring:   As[BK][BM] | Bs[BK][BN], rows of at most 256: a wider tile is several panels, [panel][BK][256]
//     with IN_ORDER:         the same, and behind it the stage's A before it is turned, if it is, and its three barriers
//
// Idea: nothing but fused multiply-adds should take time. Fragments are read one k ahead, four floats at a time, and the products
// of a k walk down one column and up the next, so that the register they share with the one before is read from the operand cache.

#ifndef TM
#define TM 8
#define TN 16
#endif
#ifndef SPIN_LIMIT
#define SPIN_LIMIT 0
#endif
#define WARPS_N (BN / 64)
#define WARPS (BM / 64 * WARPS_N)
#define PANEL_M (BM < 256 ? BM : 256)
#define PANEL_N (BN < 256 ? BN : 256)
#define A_BYTES (4 * BM * BK)
#define DATA_BYTES (A_BYTES + 4 * BN * BK)
#define AREA (BM * BN)
#ifndef TURN_A
#define TURN_A 0 // 1: A is stored MxK, and three warps turn each stage of it, see turn.cuh
#endif
#define TURNERS 3
#ifndef COPY_A
#define COPY_A 0 // 1 and 2: the operand is copied four bytes at a time, see copies.cuh
#define COPY_B 0
#endif
#define COPIED (COPY_A || COPY_B)
#define TMA_BYTES (!COPY_A * A_BYTES + !COPY_B * (4 * BN * BK)) // of a stage, that the TMA brings where an operand is copied
#define TURNED_BYTES (TURN_A * A_BYTES) // of a stage as it arrives
#ifndef IN_ORDER
#define IN_ORDER 0 // 1: loads of fragments, registers of sums and barriers have their places, see rung 5
#endif
#ifndef APART
#define APART 0 // 1: neighbouring lanes have neither rows nor columns in common, see rung 6
#endif
#define STAGE_BYTES (DATA_BYTES + IN_ORDER * (TURNED_BYTES + 128))
// what the launch gave all threads, shared out anew to the last register, or the block waits for ever: 256 * 232 + 128 * 40 = 384 * 168
#ifndef CONSUMER_REGISTERS
#define PRODUCER_REGISTERS (TURN_A || IN_ORDER ? 72 : 40)
#define CONSUMER_REGISTERS (TURN_A || IN_ORDER ? 216 : 232)
#endif
#define THREADS (32 * WARPS + 128)
#ifndef ROWS
#define ROWS 0 // of C that are fetched together, to be added to
#endif
#ifndef LINK
#define LINK 0 // stages that are added up by themselves, a link of a chain; 0: a sum is one chain
#endif
#ifndef HELD
#define HELD 0 // where in shared memory the links before are added up; 0: in memory of each thread's own
#endif
#ifndef PAD
#define PAD 0 // instructions in front of the main loop: where in a line of the instruction cache it begins
#endif

#include "instructions.cuh"

struct Ring { // where things lie in shared memory, and the stage that is next
#if IN_ORDER
    uint first, at, phase; // one running address: all else of a stage is at a constant distance from it
    inline Ring(char *memory) { first = at = (shared_address(memory) + 127) & ~127u, phase = 0; }
    inline uint base() { return at; }
    inline uint arrived() { return at + DATA_BYTES; }
    inline uint full() { return at + DATA_BYTES + TURNED_BYTES; }
    inline uint empty() { return full() + 8; }
    inline uint came() { return full() + 16; }
    inline uint zeros() { return first + STAGES * STAGE_BYTES; } // four, see Sums::clear
    inline void advance() {
        if ((at += STAGE_BYTES) == zeros()) at = first, phase ^= 1;
    }
#else
    uint stages, fulls, empties, arrivals, cames, phase;
    int stage;
    inline Ring(char *memory) {
        stages = (shared_address(memory) + 127) & ~127u, arrivals = stages + STAGES * STAGE_BYTES;
        fulls = arrivals + STAGES * TURNED_BYTES, empties = fulls + 8 * STAGES, cames = empties + 8 * STAGES;
        phase = 0, stage = 0;
    }
    inline uint base() { return stages + stage * STAGE_BYTES; }
    inline uint arrived() { return arrivals + stage * A_BYTES; }
    inline uint full() { return fulls + 8 * stage; }
    inline uint empty() { return empties + 8 * stage; }
    inline uint came() { return cames + 8 * stage; }
    inline uint zeros() { return 0; }
    inline void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
#endif
    inline void init() {
        for (int s = 0; s < STAGES; ++s, advance()) {
            barrier_init(full(), COPIED ? 128 + !!TMA_BYTES : 1 + TURN_A * TURNERS);
            barrier_init(empty(), WARPS), barrier_init(came(), 1);
        }
        phase = 0;
        barrier_init_fence();
    }
    inline void wait_full() { barrier_wait(full(), phase); }
    inline void wait_empty() { barrier_wait(empty(), phase ^ 1); }
    // the producer's thread: BK of K from k on, of the tile at (m, n), into the next stage; what lies outside arrives as zeros
    inline void fetch(const TensorMap *a, const TensorMap *b, int m, int n, int k) {
        wait_empty();
        barrier_expect(full(), DATA_BYTES - TURNED_BYTES);
        if (TURN_A) barrier_expect(came(), A_BYTES);
        fetch_a(a, m, k);
        fetch_b(b, n, k);
        advance();
    }
    inline void fetch_a(const TensorMap *a, int m, int k) {
        uint to = TURN_A ? arrived() : base();
#pragma unroll
        for (int p = 0; p < BM / PANEL_M; ++p)
            if (TURN_A) tma_load(to + p * 4 * BK * PANEL_M, a, k, m + p * PANEL_M, came());
            else tma_load(to + p * 4 * BK * PANEL_M, a, m + p * PANEL_M, k, full());
    }
    inline void fetch_b(const TensorMap *b, int n, int k) {
#pragma unroll
        for (int p = 0; p < BN / PANEL_N; ++p) tma_load(base() + A_BYTES + p * 4 * BK * PANEL_N, b, n + p * PANEL_N, k, full());
    }
};

struct Place { // of a consumer's thread: its first row and column in the tile, and where its fragments begin in a stage
    int m, n;
    uint a, b;
    inline Place() {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int down = APART ? lane % 4 + lane / 16 * 4 : lane / 4, right = (APART ? lane ^ lane / 4 : lane) % 4;
        m = warp / WARPS_N * 64 + down * 4, n = warp % WARPS_N * 64 + right * 4;
        a = 4 * (m / PANEL_M * (BK * PANEL_M) + m % PANEL_M);
        b = A_BYTES + 4 * (n / PANEL_N * (BK * PANEL_N) + n % PANEL_N);
    }
};

struct Fragments { // of two k in turn
    float a[2][TM], b[2][TN];
    inline void fetch(uint base, const Place &at, int k) {
#pragma unroll
        for (int i = 0; i < TM; i += 4) {
            float4 v = lds(base + at.a + 4 * (k * PANEL_M + i * 8));
            a[k & 1][i] = v.x, a[k & 1][i + 1] = v.y, a[k & 1][i + 2] = v.z, a[k & 1][i + 3] = v.w;
        }
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            float4 v = lds(base + at.b + 4 * (k * PANEL_N + j * 4));
            b[k & 1][j] = v.x, b[k & 1][j + 1] = v.y, b[k & 1][j + 2] = v.z, b[k & 1][j + 3] = v.w;
        }
    }
};

struct Sums {
    float of[TM][TN];
#if IN_ORDER
    // Quads that begin with one load have four registers in a row, as an element of A and its three neighbours have. Neighbours
    // change places, so that a sum is in the other bank than its element of A: a column walks down without a conflict.
    inline void clear(uint zeros) {
#pragma unroll
        for (int i = 0; i < TM; i += 4)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                float4 v = lds(zeros);
                of[i + 1][j] = v.x, of[i][j] = v.y, of[i + 3][j] = v.z, of[i + 2][j] = v.w;
            }
    }
#else
    inline void clear(uint = 0) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) of[i][j] = 0.0f;
    }
#endif
    inline void add(const Fragments &f, int k) {
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int x = 0; x < TM; ++x) {
                int i = j & 1 ? TM - 1 - x : x;
                of[i][j] = fmaf(f.a[k & 1][i], f.b[k & 1][j], of[i][j]);
            }
    }
    static inline int row_of(int i, int m) { // of C, that a thread's row is
        return TURN_A ? m - m % 32 + i / 4 * 32 + m / 4 % 8 + i % 4 * 8 : m + i / 4 * 32 + i % 4; // turn.cuh says why
    }
    // into C, from row m and column n on; 16 bytes at a time where C's rows allow it
    inline void store(float *C, int ldc, int m, int n, int M, int N, float alpha, float beta, const Added &added = Added{}) const {
        bool wide = ldc % 4 == 0 && ((ulong)C & 15) == 0;
#if ROWS
        if (wide && beta != 0.0f && row_of(TM - 1, m) < M && n + TN * 4 - 12 <= N) add_to(C, ldc, m, n, alpha, beta, added);
        else
#endif
        each(C, ldc, m, n, M, N, alpha, beta, wide, added);
    }
#if ROWS
    // where all lies inside: what is there is fetched ROWS rows at a time, one wait for all
    inline void add_to(float *C, int ldc, int m, int n, float alpha, float beta, const Added &added) const {
#pragma unroll
        for (int i = 0; i < TM; i += ROWS) {
            float4 old[ROWS][TN / 4];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int j = 0; j < TN; j += 4) {
                    int row = row_of(i + r, m), col = n + j * 4;
                    old[r][j / 4] = added.four(C + (long long)row * ldc + col, row, col);
                }
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int j = 0; j < TN; j += 4) {
                    float4 v = old[r][j / 4];
                    const float *s = of[i + r] + j;
                    v.x = fmaf(beta, v.x, alpha * s[0]), v.y = fmaf(beta, v.y, alpha * s[1]);
                    v.z = fmaf(beta, v.z, alpha * s[2]), v.w = fmaf(beta, v.w, alpha * s[3]);
                    v = make_float4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
                    *(float4 *)(C + (long long)row_of(i + r, m) * ldc + n + j * 4) = v;
                }
        }
    }
#endif
    inline void each(float *C, int ldc, int m, int n, int M, int N, float alpha, float beta, bool wide, const Added &added) const {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            int row = row_of(i, m);
            float *out = C + (long long)row * ldc;
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                int col = n + j * 4;
                float4 v = make_float4(alpha * of[i][j], alpha * of[i][j + 1], alpha * of[i][j + 2], alpha * of[i][j + 3]);
                if (row >= M || col >= N) continue;
                if (wide && col + 3 < N) {
                    float4 *to = (float4 *)(out + col);
                    if (beta != 0.0f) {
                        float4 old = added.four(out + col, row, col);
                        v.x = fmaf(beta, old.x, v.x), v.y = fmaf(beta, old.y, v.y);
                        v.z = fmaf(beta, old.z, v.z), v.w = fmaf(beta, old.w, v.w);
                    }
                    *to = make_float4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
                } else {
                    const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (int x = 0; x < 4; ++x)
                        if (col + x < N)
                            out[col + x] = activated(beta != 0.0f ? fmaf(beta, added.one(out + col + x, row, col + x), each[x]) : each[x]);
                }
            }
        }
    }
};

// alpha = 0: C = f(beta * D), and A and B are not looked at
inline void scale(float *C, int ldc, int M, int N, float beta, const Added &added = Added{}) {
    long long all = (long long)M * N;
    for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < all; i += (long long)gridDim.x * THREADS) {
        float *at = C + i / N * ldc + i % N;
        *at = activated(beta != 0.0f ? beta * added.one(at, (int)(i / N), (int)(i % N)) : 0.0f);
    }
}

// where a tile stands: GROUP down, then one to the right; the last band may be lower
inline void corner(int tile, int tiles_m, int tiles_n, int &m, int &n) {
    int band = tile / (GROUP * tiles_n), first = band * GROUP, high = min(GROUP, tiles_m - first), in = tile % (GROUP * tiles_n);
    m = (first + in % high) * BM, n = in / high * BN;
}
