// Rows of A (MxK) and columns of B (KxN) as two fp16 terms: x * 2^(14-e) = hi + lo/2048, e the exponent of the row's largest element.
//
//      for every row, for every 32 of K:   | 32 hi | 32 lo |   zeros behind K        info[row]: e - 14, what cannot be carried
//
// A slice of K (``depth`` of it) is a matrix of its own, with its own exponents. The first blocks take rows of A, the rest those of B. Where K runs along memory, ``lanes`` threads have a row. Where it runs
// across, a cluster has 32 rows: a warp takes 32 of K of all of them (a lane has a row) and turns them in its own shared memory,
// and the cluster's blocks send each other their maxima. The one idea: every element is read from memory once and held in
// registers (HELD a thread) from the search for the largest to the splitting; longer rows are read again, from the L2 cache.
// No block waits for another but for its maxima: where all met behind their stores as well, the pass took half as long again.
// Wants: any sizes, strides and alignment; blocks_a a multiple of CLUSTER.

#include "../include/cluster.cuh"
#include "meetings.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
#define PATCH 144 // bytes of a row of a warp's turned tile: 64 of hi, 64 of lo, and 16 against bank conflicts

struct Operand {
    const float *x;
    long long ld, stride; // from one stored row to the next, from one matrix to the next
    int rows, matrices, lanes; // matrices: slices of K of the first one, then of the next; lanes 0: K runs across
    unsigned short *terms;
    Row *info;
    float share; // as ``Scale`` has it
};

// K along memory: element (row, k) at row * ld + k
inline void along(const Operand &o, int block, int K, int depth, int slices, int whole, uint *shared) {
    int lanes = o.lanes, at = threadIdx.x % lanes, warp = threadIdx.x / 32, warps = lanes / 32, one = warp / warps * warps;
    int row = block * (THREADS / lanes) + threadIdx.x / lanes, matrix = row / o.rows, first = /*!slice-of-k*/matrix % slices * depth;
    int limit = matrix < o.matrices ? min(depth, K - first) : 0, end = limit ? whole : 0; // a row that is not there has nothing in it
    const float *from = o.x + matrix / slices * o.stride + row % o.rows * o.ld + first;
    bool wide = o.ld % 4 == 0 && o.stride % 4 == 0 && (ulong)o.x % 16 == 0;
    float4 v[HELD / 4];
    uint largest = 0, losses = 0;
#pragma unroll
    for (int i = 0; i < HELD / 4; ++i) v[i] = four(from, 4 * (at + lanes * i), limit, wide);
#pragma unroll
    for (int i = 0; i < HELD / 4; ++i) largest = max(largest, largest_of(v[i]));
#pragma unroll 2
    for (int k = 4 * at + lanes * HELD; k < limit; k += 4 * lanes) largest = max(largest, largest_of(four(from, k, limit, wide)));
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (warps > 1) {
        if (threadIdx.x % 32 == 0) shared[warp] = largest;
        /*!largest-is-left*/__syncthreads();
        for (int i = 0; i < warps; ++i) largest = max(largest, shared[one + i]);
    }
    asm volatile("" : "+r"(row)); // what was worked out from it is not to be kept: there are no registers for it
    Scale s = scale_of(shift_of(largest), o.share);
    unsigned short *to = o.terms + (long long)row * 2 * whole;
#pragma unroll
    for (int i = 0; i < HELD / 4; ++i) {
        int k = 4 * (at + lanes * i);
        if (k < end) store_four(v[i], s, to, k, losses);
    }
#pragma unroll 1
    for (int k = 4 * at + lanes * HELD; k < end; k += 4 * lanes) store_four(four(from, k, limit, wide), s, to, k, losses);
    losses = __reduce_add_sync(0xffffffffu, losses & THIN) | __reduce_or_sync(0xffffffffu, losses & LOST);
    if (warps > 1) {
        if (threadIdx.x % 32 == 0) shared[WARPS + warp] = losses;
        __syncthreads();
        losses = 0;
        for (int i = 0; i < warps; ++i) losses = both(losses, shared[WARPS + one + i]);
    }
    if (at == 0 && limit) o.info[row] = known(largest, losses, whole - limit);
}

struct Chunk {
    float v[32];
};

// 32 of K of this lane's row, across memory
inline Chunk chunk_of(const float *from, int k, int limit, long long ld) {
    Chunk c;
    from += k * ld;
#pragma unroll
    for (int i = 0; i < 32; ++i, from += ld) c.v[i] = k + i < limit ? *from : 0.0f;
    return c;
}

inline uint largest_of(const Chunk &c) {
    uint largest = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) largest = max(largest, size_bits(c.v[i]));
    return largest;
}

// the largest of 32 of K that are not held: few at a time, there is no room for more
inline uint largest_in(const float *from, int k, int limit, long long ld) {
    uint largest = 0;
    from += k * ld;
#pragma unroll 1
    for (int end = min(k + 32, limit); k < end; k += 8) {
#pragma unroll
        for (int i = 0; i < 8; ++i, from += ld) largest = max(largest, k + i < end ? size_bits(*from) : 0);
    }
    return largest;
}

// the terms of 32 of K of 32 rows, through the warp's own piece of shared memory
inline void store_chunk(const Chunk &c, const Scale &s, char *patch, unsigned short *to, int whole, int rows, uint &losses) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint hi[4], lo[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) split_two(c.v[8 * i + 2 * j], c.v[8 * i + 2 * j + 1], s, hi[j], lo[j], losses);
        *(uint4 *)(patch + PATCH * lane + 16 * i) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
        *(uint4 *)(patch + PATCH * lane + 64 + 16 * i) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        int r = 4 * i + lane / 8;
        if (r < rows) *(uint4 *)(to + (long long)r * 2 * whole + 8 * (lane % 8)) = *(const uint4 *)(patch + PATCH * r + 16 * (lane % 8));
    }
    __syncwarp();
}

// over the warps of the block (MAX: the largest, else losses together); ``shared``: WARPS x 32
template <bool MAX> inline uint gathered(uint mine, uint *shared) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    shared[32 * warp + lane] = mine;
    /*!warps-have-left*/__syncthreads();
    mine = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) mine = MAX ? max(mine, shared[32 * w + lane]) : both(mine, shared[32 * w + lane]);
    return mine;
}

#if CLUSTER > 1
struct Mail { // what a block's others send it, 32 words each, and barriers that count the bytes
    uint maxima[CLUSTER][32], losses[CLUSTER][32];
    ulong full[2];
};

// Others may send once each block of the cluster is here: whoever sends waits for that with ``cluster_wait``. Losses are the first block's.
inline void mail_open(Mail &mail) {
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) barrier_init(shared_address(mail.full + i), 1);
        barrier_init_fence();
#pragma unroll
        for (int i = 0; i < 2; ++i) barrier_expect(shared_address(mail.full + i), (CLUSTER - 1) * 32 * 4);
    }
    cluster_begin();
}

// a warp's words, one of each lane, to a block
inline void mail_send(uint (*words)[32], ulong *full, uint mine, uint from, uint to) {
    send_remote(shared_address(words[from] + threadIdx.x % 32), mine, shared_address(full), to);
}

// over the blocks of the cluster, what ``gathered`` gave each
inline uint largest_of_cluster(Mail &mail, uint largest, int rank) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /*!all-have-begun*/cluster_wait();
    if (warp < CLUSTER && warp != rank) mail_send(mail.maxima, mail.full, largest, rank, warp);
    /*!maxima-are-here*/barrier_wait(shared_address(mail.full), 0);
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) largest = r == rank ? largest : max(largest, mail.maxima[r][lane]);
    return largest;
}
#endif

// K across memory: element (row, k) at k * ld + row
inline void across(const Operand &o, int block, int K, int depth, int slices, int whole, uint *shared, char *patches) {
#if CLUSTER > 1
    __shared__ Mail mail;
    mail_open(mail);
    int rank = block % CLUSTER; // its place in the cluster: blocks_a is a multiple of CLUSTER
#endif
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, strips = (o.rows + 31) / 32, strip = block / CLUSTER;
    int matrix = strip / strips, first = strip % strips * 32, step = 32 * CLUSTER * WARPS, k0 = 32 * (warp * CLUSTER + block % CLUSTER);
    int begin = /*!slice-of-k*/matrix % slices * depth, limit = first + lane < o.rows ? min(depth, K - begin) : 0;
    const float *from = o.x + matrix / slices * o.stride + begin * o.ld + first + lane;
    Chunk held[HELD / 32];
    uint largest = 0, losses = 0;
#pragma unroll
    for (int i = 0; i < HELD / 32; ++i) held[i] = chunk_of(from, k0 + i * step, limit, o.ld);
#pragma unroll
    for (int i = 0; i < HELD / 32; ++i) largest = max(largest, largest_of(held[i]));
    for (int k = k0 + HELD / 32 * step; k < limit; k += step) largest = max(largest, largest_in(from, k, limit, o.ld));
    largest = gathered<true>(largest, shared);
#if CLUSTER > 1
    largest = largest_of_cluster(mail, largest, rank);
#endif
    Scale s = scale_of(shift_of(largest), o.share);
    unsigned short *to = o.terms + ((long long)matrix * o.rows + first) * 2 * whole;
    char *patch = patches + warp * 32 * PATCH;
#pragma unroll
    for (int i = 0; i < HELD / 32; ++i) {
        int k = k0 + i * step;
        if (k < whole) store_chunk(held[i], s, patch, to + 2 * k, whole, o.rows - first, losses);
    }
    for (int k = k0 + HELD / 32 * step; k < whole; k += step)
        store_chunk(chunk_of(from, k, limit, o.ld), s, patch, to + 2 * k, whole, o.rows - first, losses);
    losses = gathered<false>(losses, shared + 32 * WARPS);
    if (warp) return;
#if CLUSTER > 1
    if (rank) { // no other block sends this one anything any more: it may leave
        mail_send(mail.losses, mail.full + 1, losses, rank, 0);
        return;
    }
    /*!losses-are-here*/barrier_wait(shared_address(mail.full + 1), 0);
#pragma unroll
    for (int r = 1; r < CLUSTER; ++r) losses = both(losses, /*!losses-of-blocks*/mail.losses[r][lane]);
#endif
    if (limit) o.info[(long long)matrix * o.rows + first + lane] = known(largest, losses, whole - limit);
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, HELD > 32 ? 1 : 2)
split(const float *A, const float *B, float alpha, unsigned short *terms_a, Row *info_a, unsigned short *terms_b, Row *info_b,
      int K, int depth, int slices, int blocks_a, long long lda, long long stride_a, int M, int matrices_a, int lanes_a,
      long long ldb, long long stride_b, int N, int matrices_b, int lanes_b) {
    extern __shared__ __align__(16) char patches[]; // WARPS * 32 * PATCH
    __shared__ uint shared[2 * 32 * WARPS];
    let_next_start();
    wait_for_previous();
    if (alpha == 0.0f) return; // A and B are not looked at
    int whole = (depth + 31) / 32 * 32, block = blockIdx.x;
    bool first = block < blocks_a;
    Operand o = first ? Operand{A, lda, stride_a, M, matrices_a, lanes_a, terms_a, info_a, 0.0f} : Operand{B, ldb, stride_b, N, matrices_b, lanes_b, terms_b, info_b, CUT_SHARE};
    if (!first) block -= blocks_a;
    if (o.lanes) along(o, block, K, depth, slices, whole, shared);
    else across(o, block, K, depth, slices, whole, shared, patches);
}
