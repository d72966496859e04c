// Columns of B whose K runs along memory as two fp16 terms, split by the product's own launch before it multiplies, with the results
// of split.cu. The rows of B as it is stored are pieces that warpgroups claim:
//
//      claims[0]: pieces that were claimed | [1]: pieces whose terms are written | [2]: warpgroups that claim no more, and blocks
//                                                                                       that have seen all written
//
// A piece is a row for a warpgroup, or four rows, one for each of its warps, where K is short. The one idea: a block that waits for a piece
// waits for a block that runs, because only blocks that run claim any; so the launch ends however few of its blocks run at once. The
// last to be counted in [2] sets the three words to 0 again. Nothing else may use them while the launch runs.

#ifndef HELD_FOURS
#define HELD_FOURS 16 // float4 of a row that a thread holds from the search for the largest to the splitting
#endif
#define SHORT_ROW (32 * 4 * HELD_FOURS)

// over the lanes of a row (MAX: the largest, else losses together); ``shared``: four words of the warpgroup's
template <bool MAX> inline uint over_row(uint mine, int lanes, uint *shared) {
    if (MAX) mine = __reduce_max_sync(0xffffffffu, mine);
    else mine = __reduce_add_sync(0xffffffffu, mine & THIN) | __reduce_or_sync(0xffffffffu, mine & LOST);
    if (lanes == 32) return mine;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32 % 4] = mine;
    group_sync();
    mine = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) mine = MAX ? max(mine, shared[i]) : both(mine, /*!losses-of-warps*/shared[i]);
    group_sync(); // all threads have read what is overwritten next
    return mine;
}

inline uint pieces_of(int rows, int K) { return K <= SHORT_ROW ? (uint)(rows + 3) / 4 : (uint)rows; }

// One of the warpgroups and blocks, of which a block has ``warpgroups`` and itself, that are done with the words; the last one makes them ready for the next launch.
inline void done_with(uint *claims, int warpgroups) {
    if (atomicAdd(claims + 2, 1u) == gridDim.x * (warpgroups + 1) - 1) /*!claims-left*/claims[0] = claims[1] = claims[2] = 0;
}

// Pieces as long as there are any; all threads of a block call it. ``rows`` of each matrix, ``all`` of them together; ``shared``: five
// words for each warpgroup.
inline void split_claimed(const float *B, long long ldb, long long stride, int rows, int all, int K, unsigned short *terms, Row *info,
                          uint *claims, int warpgroups, uint *shared) {
    int lanes = K <= SHORT_ROW ? 32 : 128, at = threadIdx.x % lanes, whole = (K + 31) / 32 * 32;
    bool wide = ldb % 4 == 0 && stride % 4 == 0 && (ulong)B % 16 == 0;
    uint pieces = pieces_of(all, K);
    shared += threadIdx.x / 128 * 5;
#pragma unroll 1
    for (;;) {
        if (threadIdx.x % 128 == 0) shared[4] = atomicAdd(claims, 1u);
        group_sync();
        uint piece = shared[4];
        if (piece >= pieces) break;
        int row = lanes == 32 ? 4 * (int)piece + /*!row-of-warp*/(int)threadIdx.x / 32 % 4 : (int)piece;
        if (row < all) {
            const float *from = B + /*!matrix-of-row*/row / rows * stride + row % rows * ldb;
            float4 v[HELD_FOURS];
            uint largest = 0, losses = 0;
#pragma unroll
            for (int i = 0; i < HELD_FOURS; ++i) v[i] = four(from, 4 * (at + lanes * i), K, wide);
#pragma unroll
            for (int i = 0; i < HELD_FOURS; ++i) largest = max(largest, largest_of(v[i]));
#pragma unroll 1
            for (int k = 4 * (at + lanes * HELD_FOURS); k < /*!rest-of-row*/K; k += 4 * lanes) largest = max(largest, largest_of(four(from, k, K, wide)));
            largest = over_row<true>(largest, lanes, shared);
            Scale s = scale_of(shift_of(largest), CUT_SHARE);
            unsigned short *to = terms + (long long)row * 2 * whole;
#pragma unroll
            for (int i = 0; i < HELD_FOURS; ++i) {
                int k = 4 * (at + lanes * i);
                if (k < whole) store_four(v[i], s, to, k, losses);
            }
#pragma unroll 1
            for (int k = 4 * (at + lanes * HELD_FOURS); k < whole; k += 4 * lanes) store_four(four(from, k, K, wide), s, to, k, losses);
            losses = over_row<false>(losses, lanes, shared);
            if (at == 0) info[row] = known(largest, losses, whole - K);
        }
        __threadfence();
        global_proxy_fence();
        group_sync(); // all of the piece is written, and shared[4] was read
        if (threadIdx.x % 128 == 0) atomicAdd(claims + 1, 1u);
    }
    if (threadIdx.x % 128 == 0) done_with(claims, warpgroups);
}

// By one thread of a block: waits until all is written. Reads that it then starts by TMA, or lets its block make, see all of it.
inline void wait_for_claimed(uint *claims, uint pieces, int warpgroups) {
#if defined(SPIN_LIMIT) && SPIN_LIMIT
    for (uint tries = 0; acquired(claims + 1) < pieces; ++tries)
        if (tries > SPIN_LIMIT) __trap();
#else
    while (acquired(claims + 1) < pieces) {}
#endif
    global_proxy_fence();
    done_with(claims, warpgroups);
}
