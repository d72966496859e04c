// C = f(A*B + D) in fp32, row-major, of many products of unequal sizes in one launch: A is M x K, B K x N, C M x N
//
// A block owns BM x BN of one C at a time, and has tiles of all products in turns. BK of K are multiplied from one buffer in shared
// memory, while the next come through registers for the other. A thread owns TM x TN of C in pieces of 4 x 4, a warp 4 TM x 8 TN:
//
//      +------+------+        +--+--+-- 8 lanes --+              +-|====|---32---|====|----+
//      | warp | warp |        |  |  |             |              | oooo          oooo      |
//      +------+------+  BM    +--+--+             |  4 lanes    16                         |
//      | warp | warp |        |                   |              | oooo          oooo      |
//      +------+------+        +-------------------+              +-------------------------+
//            BN                  warps and lanes                   pieces of a thread
//
// TRANS_A, TRANS_B   the operands are stored transposed: A as K x M, B as N x K
// GROUPED            that many products at most
// BM, BN, BK, TM, TN these sizes
// RESIDENT           blocks that an SM must have registers for
//
// Four floats are fetched at once where all rows of an operand begin on 16 bytes and the four lie inside, else one by one. Rows and
// columns beyond the edge are the last ones again, computed and not stored; beyond K both operands are zero. A sum is added up in
// chains of products in the order of K, each by itself and then to those before it. So an element's bits depend on its row of A and
// its column of B alone, not on the tile, the layout or the group's other products.

typedef unsigned int uint;
typedef unsigned long long ulong;
#include "../include/epilogue.cuh"
#include "../include/group.cuh"

#define THREADS (BM * BN / (TM * TN))
#define PITCH_A (BM + 4) // floats from one of K to the next: what is written across K meets in few banks, and rows begin on 16 bytes
#define PITCH_B (BN + 4)
#define SHORT_CHAIN 16 // products of a chain up to this K's
#define SHORT_K 128
#define LONG_CHAIN 32 // and of longer ones

static_assert(BM % (4 * TM) == 0 && BN % (8 * TN) == 0 && TM % 4 == 0 && TN % 4 == 0, "warps of 4 x 8 threads with pieces of 4 x 4");
static_assert(SHORT_CHAIN % BK == 0 && LONG_CHAIN % BK == 0, "chains end with a tile of K");

// What a thread fetches of ROWS rows of A (columns of B) x BK of K, in pieces of 4 along memory, into [k][row] of shared memory.
template <bool ALONG, int ROWS, int PITCH> struct Tile { // ALONG: K runs along memory
    static constexpr int ACROSS = (ALONG ? BK : ROWS) / 4, STEP = THREADS / ACROSS, COUNT = (ALONG ? ROWS : BK) / STEP;
    static_assert(THREADS % ACROSS == 0 && (ALONG ? ROWS : BK) % STEP == 0, "each thread has as many pieces");
    const float *from; // the matrix
    int ld, first, rows; // from one stored row to the next, row that the tile begins with, rows that there are
    bool wide; // pieces may be fetched at once
    float coming[COUNT][4];

    inline Tile(const float *x, int ld_, int first_, int rows_) : from(x), ld(ld_), first(first_), rows(rows_) {
        wide = ((ulong)x | 4u * (uint)ld_) % 16 == 0 && (ALONG || /*!wide-pieces*/rows % 4 == 0 || first + ROWS <= rows);
    }

    static inline int line(int i) { return (int)threadIdx.x / ACROSS + i * STEP; } // of piece i, a row where ALONG, else of K
    static inline int on() { return (int)threadIdx.x % ACROSS * 4; }               // where it begins there

    inline void fetch(int k, int K) { // of K, k to k + BK - 1
        if (wide && k + BK <= K/*!whole-steps*/) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                int row = ALONG ? min(first + line(i), rows - 1/*!last-row*/) : k + line(i);
                float4 four = *(const float4 *)(from + (long long)row * ld + (ALONG ? k + on() : min(first + on(), rows - 4/*!last-four*/)));
                coming[i][0] = four.x, coming[i][1] = four.y, coming[i][2] = four.z, coming[i][3] = four.w;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int row = min(first + (ALONG ? line(i) : on() + e), rows - 1/*!last-element*/), at = k + (ALONG ? on() + e : line(i));
                coming[i][e] = at < K/*!k-of-member*/ ? from[ALONG ? (long long)row * ld + at : (long long)at * ld + row] : 0.0f;
            }
    }

    inline void put(float *to) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (ALONG) {
#pragma unroll
                for (int e = 0; e < 4; ++e) to[(on() + e) * PITCH + line(i)] = coming[i][e];
            } else {
                *(float4 *)(to + line(i) * PITCH + on()) = make_float4(coming[i][0], coming[i][1], coming[i][2], coming[i][3]);
            }
        }
    }
};

inline void read_four(float *to, const float *from) {
    float4 four = *(const float4 *)from;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) tiled_group(const __grid_constant__ Group group) {
    __shared__ __align__(16) float as[2][BK * PITCH_A];
    __shared__ __align__(16) float bs[2][BK * PITCH_B];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tm = warp / (BN / (8 * TN)) * (4 * TM) + lane / 8 * 4, tn = warp % (BN / (8 * TN)) * (8 * TN) + lane % 8 * 4;
    uint member = 0;
    int now = 0; // the buffer that was filled last; who fills the other one knows that nobody reads it any more

    for (uint tile = blockIdx.x; tile < group.tiles; tile += gridDim.x) {
        member = group.member(tile, member);
        const Member &of = group.of[member];
        const int K = of.K, chain = /*!length-of-chain*/K <= SHORT_K ? SHORT_CHAIN : LONG_CHAIN;
        // tiles of a product one column of C after the other: those that run at once share B's columns
        const uint in = tile - (/*!begin-of-product*/member ? group.ends[member - 1] : 0), column = of.by_tiles().of(in);
        const int m0 = (int)(in - column * /*!down-of-product*/of.tiles_m) * BM, n0 = (int)column * BN;

        Tile<!TRANS_A, BM, PITCH_A> a(of.a, of.lda, m0, of.M/*!m-of-product*/);
        Tile<TRANS_B, BN, PITCH_B> b(of.b, of.ldb, n0, of.N);
        float sum[TM][TN], whole[TM][TN]; // of this chain, and of those before it
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sum[i][j] = whole[i][j] = 0.0f;

        a.fetch(0, K), b.fetch(0, K);
        for (int k = 0;;) {
            now ^= /*!buffers*/1; // nobody reads this buffer: all have passed the last barrier, in front of which it was read last
            a.put(as[now]), b.put(bs[now]);
            __syncthreads();
            k += BK;
            if (k < K) a.fetch(k, K), b.fetch(k, K);
#pragma unroll
            for (int l = 0; l < BK; ++l) {
                float x[TM], y[TN];
#pragma unroll
                for (int i = 0; i < TM; i += 4) read_four(x + i, as[now] + l * PITCH_A + tm + i * 4);
#pragma unroll
                for (int j = 0; j < TN; j += 4) read_four(y + j, bs[now] + l * PITCH_B + tn + j * 8);
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
            }
            if (/*!end-of-chain*/k % chain == 0 || k >= K) {
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) whole[i][j] /*!chains-added*/+= sum[i][j], sum[i][j] /*!begin-of-chain*/= 0.0f;
            }
            if (k >= K) break;
        }

        const int M = of.M, N = of.N, ldc = of.ldc;
        const bool fours = ((ulong)of.c | 4u * (uint)ldc) % 16 == 0;
#if EPILOGUE
        const Added added{of.d, of./*!d-of-row*/down, of.on};
#endif
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int row = m0 + tm + i / 4 * /*!row-of-thread*/16 + i % 4;
            if (row/*!rows-of-member*/ >= M) continue;
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const int col = n0 + tn + j * /*!column-of-thread*/8;
                float *c = of.c + (long long)row * ldc + col;
                float *x = whole[i] + j;
                if (fours && col + /*!fours-there*/4 <= N) {
#if EPILOGUE
                    if (of.d/*!d-of-any*/) {
                        float4 d = added.four(c, row, col);
                        x[0] += d.x, x[1] += d.y, x[2] += d.z, x[3] += d.w;
                    }
#endif
                    *(float4 *)c = make_float4(activated(x[0]), activated(x[1]), activated(x[2]), activated(x[3]));
                    continue;
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (col + e >= N) continue;
#if EPILOGUE
                    if (of.d/*!d-of-any*/) x[e] += added.one(c, row, col + e);
#endif
                    c[e] = activated(x[e]);
                }
            }
        }
    }
}
