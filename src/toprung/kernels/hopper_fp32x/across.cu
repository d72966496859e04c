// The splitting pass of an operand whose K runs across memory, as split.cu has it and with its results, bit by bit; behind split.cu.
//
// The one idea: memory never waits. A cluster goes from strip to strip (32 rows of a matrix, all of K), and each of its warps, which
// has 32 of K of a strip, asks for its part of the next STAGES strips before it looks at this one:
//
//      copies --> slot of the warp: 32 of K x 32 rows, fp32 --> registers: the largest of each row, over the cluster
//                                   32 rows x (32 hi | 32 lo) <-- split, in place --> memory, eight lanes a row
//
// Blocks of a cluster meet once a strip: they hand over the largest of this strip's rows with the losses of the strip before.
// Wants: 32 * WARPS * CLUSTER of K at most.

#define SLOT 4096
#define SLOTS (STAGES * WARPS * SLOT)
#define SEEN (2 * 128 * WARPS) // bytes of what the warps of a block have seen of 32 rows: the largest, losses
#define MAIL (2 * 128 * CLUSTER) // of the same of all blocks; there are two, as the next strip's may come while this one's is read

inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> inline void copies_wait_but() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

inline void put_at(uint at, uint rank, uint value) { // into another block of the cluster
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nst.shared::cluster.u32 [remote], %2;\n}" ::"r"(at), "r"(rank), "r"(value) : "memory");
}

inline uint word_at(uint at) { return __float_as_uint(shared_one(at)); }

struct Strip { // what a warp has of it
    const float *from;
    unsigned short *to;
    long long row; // of all rows of terms
    int rows, left; // of rows and of K, as many as are there (left: not more than 32)
    int behind; // K of the last chunk that is not there
};

struct Operands {
    const float *x;
    unsigned short *terms;
    int K, depth, slices, rows, strips, whole;
    long long ld, stride;

    inline Strip strip(int n, int k0) const {
        int matrix = n / strips, first = n % strips * 32, begin = matrix % slices * depth, limit = min(depth, K - begin);
        Strip s;
        s.from = x + matrix / slices * stride + (begin + k0) * ld + first;
        s.row = (long long)matrix * rows + first;
        s.to = terms + s.row * 2 * whole + 2 * k0;
        s.rows = min(32, rows - first), s.left = min(max(limit - k0, 0), 32), s.behind = whole - limit;
        return s;
    }
};

// 32 of K of 32 rows into a slot, zeros where there is nothing
inline void fetch(const Strip &s, uint slot, long long ld, bool wide) {
    int lane = threadIdx.x % 32;
    if (wide) {
        int on = lane % 8 * 4, valid = 4 * min(max(s.rows - on, 0), 4);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int k = 4 * i + lane / 8;
            bool there = k < s.left && valid;
            copy_async<16>(slot + 128 * k + 4 * on, there ? s.from + k * ld + on : s.from, there ? valid : 0);
        }
    } else {
#pragma unroll 8
        for (int k = 0; k < 32; ++k) {
            bool there = k < s.left && lane < s.rows;
            copy_async_if<4>(slot + 128 * k + 4 * lane, there ? s.from + k * ld + lane : s.from, there);
        }
    }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
across(const float *X, float alpha, unsigned short *terms, Row *info, int K, int depth, int slices, long long ld, long long stride, int rows,
       int matrices) {
    extern __shared__ __align__(16) char memory[];
    let_next_start();
    wait_for_previous();
    if (alpha == 0.0f) return; // the operand is not looked at
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % CLUSTER, workers = gridDim.x / CLUSTER;
    int k0 = 32 * (warp * CLUSTER + rank), strips = (rows + 31) / 32, total = strips * matrices;
    Operands o{X, terms, K, depth, slices, rows, strips, (depth + 31) / 32 * 32, ld, stride};
    bool wide = ld % 4 == 0 && stride % 4 == 0 && (ulong)X % 16 == 0;
    uint slots = shared_address(memory) + warp * SLOT, seen = shared_address(memory) + SLOTS, mail = seen + SEEN;
    int n = blockIdx.x / CLUSTER;
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) {
        if (n + i * workers < total) fetch(o.strip(n + i * workers, k0), slots + i * (WARPS * SLOT), ld, wide);
        copies_commit();
    }
    uint largest = 0, losses = 0; // of the strip before: the row's, the thread's
    long long row = -1;           // its, or none
    int behind = 0, stage = 0;
#pragma unroll 1
    for (int turn = 0;; turn ^= 1) {
        bool more = n < total;
        Strip s = o.strip(more ? n : 0, k0);
        uint slot = slots + stage * (WARPS * SLOT), mine = 0;
        float v[32];
        if (more) {
            copies_wait_but<STAGES - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 32; ++i) v[i] = shared_one(slot + 128 * i + 4 * lane);
#pragma unroll
            for (int i = 0; i < 32; ++i) mine = max(mine, size_bits(v[i]));
        }
        shared_put(seen + 128 * warp + 4 * lane, __uint_as_float(mine));
        shared_put(seen + 128 * (WARPS + warp) + 4 * lane, __uint_as_float(losses));
        __syncthreads();
        if (warp < CLUSTER) { // tells block ``warp`` of the cluster
            uint most = 0, all = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                most = max(most, word_at(seen + 128 * w + 4 * lane));
                all = both(all, word_at(seen + 128 * (WARPS + w) + 4 * lane));
            }
            uint to = mail + turn * MAIL + 128 * rank + 4 * lane;
            put_at(to, warp, most);
            put_at(to + 128 * CLUSTER, warp, all);
        }
#if CLUSTER > 1
        cluster_sync();
#else
        __syncthreads();
#endif
        uint most = 0, all = 0;
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) {
            most = max(most, word_at(mail + turn * MAIL + 128 * r + 4 * lane));
            all = both(all, word_at(mail + turn * MAIL + 128 * (CLUSTER + r) + 4 * lane));
        }
        if (row >= 0 && warp == 0 && rank == 0) info[row] = known(largest, all, behind);
        if (!more) break;

        largest = most, losses = 0, behind = s.behind, row = lane < s.rows ? s.row + lane : -1;
        if (k0 < o.whole) {
            Scale scale = scale_of(shift_of(largest));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                uint hi[4], lo[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) split_two(v[8 * i + 2 * j], v[8 * i + 2 * j + 1], scale, hi[j], lo[j], losses);
                shared_put(slot + 128 * lane + 16 * (i ^ lane % 8), hi[0], hi[1], hi[2], hi[3]);
                shared_put(slot + 128 * lane + 16 * ((4 + i) ^ lane % 8), lo[0], lo[1], lo[2], lo[3]);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                int r = 4 * i + lane / 8;
                float4 part = shared_four(slot + 128 * r + 16 * (lane % 8 ^ r % 8));
                if (r < s.rows) *(float4 *)(s.to + (long long)r * 2 * o.whole + 8 * (lane % 8)) = part;
            }
            __syncwarp();
        }
        if (n + STAGES * workers < total) fetch(o.strip(n + STAGES * workers, k0), slot, ld, wide);
        copies_commit();
        n += workers;
        if (++stage == STAGES) stage = 0;
    }
}
