// The walk of a block over its work, and sums of a tile that several blocks share. Of the tiles the first ``shared`` are cut along
// K, evenly over all blocks, without regard to where a tile ends; the rest are dealt out whole.
//
//     share:        0          1          2          3         a share's first piece may be the end of a tile that another began:
//             |----------|----------|----------|----------|    it leaves its sums in ``parts``. Who has a tile's beginning adds the
//     tile:   |000000000000000|111111111111|22222222222222|    others' in their order and writes C
//
// A block's whole tiles come first, so that blocks begin at the same k and not all along K, each with rows of its own to fetch.
//
// Share s is block grid - 1 - s: a block waits for blocks of lower numbers only, which began before it, and those leave their part
// before they wait for anybody. A flag is put back to 0 by its one reader, so that the next launch finds them so.

struct Walk {
    int tiles_m, tiles_n, chunks, tiles, share, each, extra, at, end, whole;
    int m, n, first, stop, tile; // the piece
    int from, to;                // the link of its chain
    inline Walk(int M, int N, int K, int shared, int each_, int extra_) {
        each = each_, extra = extra_;
        tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, chunks = (K + BK - 1) / BK, tiles = tiles_m * tiles_n;
        share = gridDim.x - 1 - blockIdx.x, at = begin(share), end = begin(share + 1), whole = shared + blockIdx.x;
        to = stop = 0;
    }
    inline int begin(int s) { return each * s + min(s, extra); } // chunks before a share
    inline int stages() const { // of all pieces
        return end - at + (whole < tiles ? (tiles - 1 - whole) / (int)gridDim.x + 1 : 0) * chunks;
    }
    inline bool step() {
#if LINK
        if (to < stop) {
            from = to, to = min(stop, from + LINK);
            return true;
        }
#endif
        if (at < end && whole >= tiles) { // asked in this order: in the other the compiler allots the main loop's registers anew
            tile = at / chunks, first = at % chunks, stop = min(chunks, first + end - at);
            at += stop - first;
        } else if (whole < tiles) {
            tile = whole, first = 0, stop = chunks;
            whole += gridDim.x;
        } else return false;
        corner(tile, tiles_m, tiles_n, m, n);
        from = first, to = LINK ? min(stop, first + LINK) : stop;
        return true;
    }
};

// Adds the sums of a link of a chain to those of the links before, in shared memory or, where the ring fills
// that, in memory of the thread's own (``own``; K == 0 never holds, so the compiler cannot keep it in registers): 16 bytes at a time, in the order in which Sums::clear has them in registers. FIRST: there are none before; LAST: the
// whole is left in registers.
template <bool FIRST, bool LAST> inline void add_link(Sums &sums, char *memory, float4 *own, int K) {
#if HELD
    float4 *at = (float4 *)(memory + HELD) + threadIdx.x;
    const int step = 32 * WARPS;
#else
    float4 *at = own + (K == 0);
    const int step = 1;
#endif
#pragma unroll
    for (int i = 0; i < TM; i += 4)
#pragma unroll
        for (int j = 0; j < TN; ++j, at += step) {
            float4 v = FIRST ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *at;
            v.x += sums.of[i + 1][j], v.y += sums.of[i][j], v.z += sums.of[i + 3][j], v.w += sums.of[i + 2][j];
            if (LAST) sums.of[i + 1][j] = v.x, sums.of[i][j] = v.y, sums.of[i + 3][j] = v.z, sums.of[i + 2][j] = v.w;
            else *at = v;
        }
}

#if HELD
#ifndef NARROW_C
#define NARROW_C 0 // 1: C's rows do not begin on 16 bytes; a warp writes them through shared memory, 32 neighbours at a time
#endif
// Writes a warp's 64 x 64 of C, row by row. A thread's own four neighbours would go out one float at a time, each in a sector of its own.
// The 16 KB are where the warp's threads held their sums of links, so that no other warp has to be waited for: 128 floats of each
// 128 * WARPS, which are two rows here.
inline void store_rows(
    const Sums &sums, char *memory, const Place &at, float *C, int ldc, int m, int n, int M, int N, float alpha, float beta, const Added &added) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, down = warp / WARPS_N * 64, right = warp % WARPS_N * 64;
    float *held = (float *)(memory + HELD) + 128 * warp;
    __syncwarp(); // a neighbour may still read its sums of links
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        int row = sums.row_of(i, at.m) - down;
        float *to = held + row / 2 * (128 * WARPS) + row % 2 * 64 + at.n - right;
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *(float4 *)(to + 4 * j) = make_float4(alpha * sums.of[i][j], alpha * sums.of[i][j + 1], alpha * sums.of[i][j + 2], alpha * sums.of[i][j + 3]);
    }
    __syncwarp();
    m += down, n += right + lane;
    float *out = C + (long long)m * ldc + n;
#pragma unroll 4
    for (int row = 0; row < 64; ++row, out += ldc)
#pragma unroll
        for (int half = 0; half < 64; half += 32)
            if (m + row < M && n + half < N) {
                float v = held[row / 2 * (128 * WARPS) + row % 2 * 64 + lane + half];
                out[half] = activated(beta != 0.0f ? fmaf(beta, added.one(out + half, m + row, n + half), v) : v);
            }
    __syncwarp(); // the next tile's links come here
}
#endif

// leaves the sums of the end of a tile for whoever began it
inline void leave(const Sums &sums, float *parts, uint *flags, int share) {
    float *mine = parts + (long long)share * AREA + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) __stcg(mine + (i * TN + j) * (32 * WARPS), sums.of[i][j]);
    __threadfence();
    consumers_meet();
    if (threadIdx.x == 0) poke(flags + share, 1);
}

// adds what others left of a tile that this block began
inline void gather(Sums &sums, const float *parts, uint *flags, Walk &walk) {
    int last = (walk.tile + 1) * walk.chunks;
    for (int s = walk.share + 1; walk.begin(s) < last; ++s) {
        if (threadIdx.x == 0)
            for (uint tries = 0; !peek(flags + s); ++tries)
                if (SPIN_LIMIT && tries > SPIN_LIMIT) __trap();
        consumers_meet();
        if (threadIdx.x == 0) poke(flags + s, 0);
        const float *theirs = parts + (long long)s * AREA + threadIdx.x;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums.of[i][j] += __ldcg(theirs + (i * TN + j) * (32 * WARPS));
    }
}
