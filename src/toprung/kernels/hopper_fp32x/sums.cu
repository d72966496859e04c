// Seven operands from the quarters of A (MxK), and seven from those of B (KxN): each a sum of quarters in two fp16 terms, as split.cu
// writes those of a batch of seven. A sum is formed in fp32 where it is split, so that no sum is ever stored.
//
//      half_k           A11 | A12            for every product, for every row of a half:   | 32 hi | 32 lo |   zeros behind K
//      =========>       ---------  half_m
//                       A21 | A22            halves are multiples of 32: what lies beyond A is zero
//
// SIGNS: two bits for a quarter of a product's operand (1: added, 2: subtracted), by halves of the rows first, then of K.
// Consecutive blocks, or clusters, form the seven operands of the same rows: only the first of them waits for memory, the others
// read from L2. A launch has one operand. Where K runs along memory, ``lanes`` threads hold a row, ALONG elements each; where it runs across (ACROSS), it is as in split.cu.

#define PRODUCTS 7

struct Quarters {
    const float *x;
    long long ld;
    int rows, depth, half_rows, half_depth, lanes; // of the operand; of a quarter; threads of a row
    unsigned short *terms;
    Row *info;
};

inline uint signs_of(int product) { return (uint)((ulong)SIGNS >> (8 * product)) & 255; }

// how far a row of quarter q reaches into the operand: 0 where it lies beyond it
inline int reach(const Quarters &o, int q, int row) {
    return /*!quarter-of-rows*/q / 2 * o.half_rows + row < o.rows ? max(0, min(o.half_depth, o.depth - q % 2 * o.half_depth)) : 0;
}

inline void along_sums(const Quarters &o, int block, uint *shared) {
    int lanes = o.lanes, at = threadIdx.x % lanes, warp = threadIdx.x / 32, warps = lanes / 32, one = warp / warps * warps;
    int product = block % PRODUCTS, row = block / PRODUCTS * (THREADS / lanes) + threadIdx.x / lanes;
    uint signs = signs_of(product);
    bool wide = o.ld % 4 == 0 && (ulong)o.x % 16 == 0, there = row < o.half_rows;
    float4 v[ALONG / 4];
#pragma unroll
    for (int i = 0; i < ALONG / 4; ++i) v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int q = 0; q < 4; ++q) {
        uint sign = signs >> 2 * q & 3;
        if (!sign) continue;
        int limit = there ? reach(o, q, row) : 0;
        const float *from = o.x + (q / 2 * o.half_rows + row) * o.ld + q % 2 * o.half_depth;
        float times = /*!sign*/sign == 1 ? 1.0f : -1.0f;
        float4 w[ALONG / 4];
#pragma unroll
        for (int i = 0; i < ALONG / 4; ++i) w[i] = four(from, 4 * (at + lanes * i), limit, wide);
#pragma unroll
        for (int i = 0; i < ALONG / 4; ++i) {
            v[i].x = fmaf(times, w[i].x, v[i].x), v[i].y = fmaf(times, w[i].y, v[i].y);
            v[i].z = fmaf(times, w[i].z, v[i].z), v[i].w = fmaf(times, w[i].w, v[i].w);
        }
    }
    uint largest = 0, losses = 0;
#pragma unroll
    for (int i = 0; i < ALONG / 4; ++i) largest = max(largest, largest_of(v[i]));
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (warps > 1) {
        if (threadIdx.x % 32 == 0) shared[warp] = largest;
        /*!largest-is-left*/__syncthreads();
        for (int i = 0; i < warps; ++i) largest = max(largest, shared[one + i]);
    }
    if (!there) return;
    int shift = shift_of(largest);
    Scale s = scale_of(shift, CORRECTS ? CUT_SHARE : 0.0f);
    long long to = (long long)product * o.half_rows + row;
#pragma unroll
    for (int i = 0; i < ALONG / 4; ++i) {
        int k = 4 * (at + lanes * i);
        if (k < o.half_depth) store_four(v[i], s, o.terms + to * 2 * o.half_depth, k, losses);
    }
    if (at == 0) o.info[to] = Row{/*!scale-of-sum*/-shift, 0};
}

// 32 of K of this lane's row of a sum, across memory
inline Chunk chunk_of_sum(const Quarters &o, uint signs, int row, int k) {
    Chunk sum;
#pragma unroll
    for (int i = 0; i < 32; ++i) sum.v[i] = 0.0f;
#pragma unroll 1
    for (int q = 0; q < 4; ++q) {
        uint sign = signs >> 2 * q & 3;
        if (!sign) continue;
        int limit = reach(o, q, row);
        const float *from = o.x + q / 2 * o.half_rows + row + (/*!quarter-of-k*/q % 2 * o.half_depth + k) * o.ld;
        float times = /*!sign*/sign == 1 ? 1.0f : -1.0f, v[32];
#pragma unroll
        for (int i = 0; i < 32; ++i, from += o.ld) v[i] = k + i < limit ? *from : 0.0f;
#pragma unroll
        for (int i = 0; i < 32; ++i) sum.v[i] = fmaf(times, v[i], sum.v[i]);
        asm volatile("" ::: "memory"); // the next quarter's loads do not move up here, where no registers are left
    }
    return sum;
}

inline void across_sums(const Quarters &o, int block, uint *shared, char *patches) {
#if CLUSTER > 1
    __shared__ Mail mail;
    mail_open(mail);
#endif
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = block / CLUSTER, product = group % PRODUCTS;
    int first = group / PRODUCTS * 32, step = 32 * CLUSTER * WARPS, k0 = 32 * (warp * CLUSTER + block % CLUSTER), end = o.half_depth;
    uint signs = signs_of(product), largest = 0, losses = 0;
#pragma unroll 1
    for (int k = k0; k < end; k += step) largest = max(largest, largest_of(chunk_of_sum(o, signs, first + lane, k)));
    largest = gathered<true>(largest, shared);
#if CLUSTER > 1
    largest = largest_of_cluster(mail, largest, block % CLUSTER);
#endif
    int shift = shift_of(largest);
    Scale s = scale_of(shift, CORRECTS ? CUT_SHARE : 0.0f);
    long long to = (long long)product * o.half_rows + first;
    unsigned short *terms = o.terms + to * 2 * end;
    char *patch = patches + warp * 32 * PATCH;
#pragma unroll 1
    for (int k = k0; k < end; k += step) { // read again, from L2: sums that stay in registers leave none to load others into
        int row = first + lane;
        asm volatile("" : "+r"(row), "+r"(k), "+r"(end), "+l"(patch)); // what is worked out from them is not to be kept
        store_chunk(chunk_of_sum(o, signs, row, k), s, patch, terms + 2 * k, end, 32, losses);
    }
    if (warp == 0 && block % CLUSTER == 0) o.info[to + lane] = Row{/*!scale-of-sum*/-shift, 0};
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, 2)
sums(const float *x, unsigned short *terms, Row *info, int rows, int depth, int half_rows, int half_depth, int lanes, long long ld) {
    extern __shared__ __align__(16) char patches[]; // WARPS * 32 * PATCH
    __shared__ uint shared[32 * (WARPS + 1)];
    let_next_start();
    wait_for_previous();
    Quarters o{x, ld, rows, depth, half_rows, half_depth, lanes, terms, info};
#if ACROSS
    across_sums(o, blockIdx.x, shared, patches);
#else
    along_sums(o, blockIdx.x, shared);
#endif
}
