// From the sums of a tile to C = f(alpha * sum + beta * D), a warp's 16 x BN at a time. Sums that are no numbers are not stored: exact.cuh
// computes them again.

struct Out { // a warp's part of C
    float *at;           // its first element
    int ldc, rows, cols; // rows and columns of C that there are, from it on
    float alpha, beta;
    int wide;            // floats that may be stored at a time
    Added added;

    // Return True if ``store_all`` may store it: C is not read, and all of it is there and may be stored as fast as can be; where sums
    // go through shared memory and nothing is added, it may begin anywhere and end inside: with D there are no registers for that.
    inline bool simple() const {
        if (FOUR_COLUMNS && SLICES == 1 && !EPILOGUE) return beta == 0.0f;
        return rows >= 16 && cols >= BN && wide >= (FOUR_COLUMNS ? 4 : 2) && (EPILOGUE || beta == 0.0f);
    }

    // two results next to each other; d: what is added
    inline float2 two(float x, float y, const float *d) const {
        float2 v = make_float2(alpha * x, alpha * y);
        if (EPILOGUE && beta != 0.0f) v.x = fmaf(beta, d[0], v.x), v.y = fmaf(beta, d[1], v.y);
        return make_float2(activated(v.x), activated(v.y));
    }

    // All sums of a thread, where ``simple()`` is true and all are numbers. With FOUR_COLUMNS the warp's rows go through ``memory``: where they
    // are on 16 bytes the TMA stores them, and the warp goes on, but may not write there before ``bulk_wait``; elsewhere 32 lanes write
    // 32 neighbours.
    inline void store_all(const float *v, uint memory) const {
        if (FOUR_COLUMNS) {
            bulk_wait();
            __syncwarp();
        }
        float d[BN / 4] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#if EPILOGUE
            if (beta != 0.0f && (/*!d-of-second-row*/EPILOGUE == 1 || h == 0)) added.fetch(d, row_of(h), BN, [](int i) { return column_of(i); });
#endif
            float *to = at + (long long)row_of(h) * ldc;
            uint near = memory + 4 * OUT_PITCH * row_of(h);
#pragma unroll
            for (int i = 0; i < BN / 8; i += 1 + FOUR_COLUMNS) {
                const float *x = v + 4 * i + 2 * h;
                int col = column_of(i);
                float2 one = two(x[0], x[1], d + 2 * i);
                if (FOUR_COLUMNS) {
                    float2 next = two(x[4], x[5], d + 2 * i + 2/*!d-of-fours*/);
                    shared_put(near + 4 * col, make_float4(one.x, one.y, next.x, next.y));
                } else *(float2 *)(to + col) = one;
            }
        }
        if (!FOUR_COLUMNS) return;
        int lane = threadIdx.x % 32, there = min(cols, BN)/*!columns-there*/;
        if (wide == 4 && there % 4 == 0) {
            proxy_fence();
            /*!out-by-tma*/__syncwarp();
            if (lane < min(rows, 16)) bulk_store(at + (long long)lane * ldc, memory + 4 * OUT_PITCH * lane, 4 * there);
            return;
        }
        /*!out-by-lanes*/__syncwarp();
        float *to = at + lane;
#pragma unroll 4
        for (int row = 0; row < min(rows, 16)/*!rows-there*/; ++row, to += ldc) {
#pragma unroll
            for (int x = 0; x < BN; x += 32)
                if (lane + x < there) to[x] = shared_one(memory + 4 * (OUT_PITCH * row + lane + x/*!out-columns*/));
        }
    }

    // Four sums of a thread, v[0] to v[3], at column_of(i). Returns which are no numbers and were left, by bits 2 h + w.
    inline uint store(int i, const float *v) const {
        int col = column_of(i);
        uint left = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int row = row_of(h);
            if (row >= rows || col >= cols) continue;
            float *to = at + (long long)row * ldc + col, x = alpha * v[2 * h], y = alpha * v[2 * h + 1];
            bool one = size_bits(v[2 * h]) < 0x7f800000, two = size_bits(v[2 * h + 1]) < 0x7f800000, both = col + 1 < cols;
            left |= (/*!left-of-two*/one ? 0 : 1u << 2 * h) | (two || !both ? 0 : 2u << 2 * h);
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

inline int width_of(const float *c, int ldc) { // floats that may be stored at a time in all rows from c on
    ulong low = (ulong)c | 4u * ldc;
    return low % 16 == 0 ? 4 : low % 8 == 0 ? 2 : 1;
}

typedef uint Left[BN / 32]; // which of a thread's sums were not stored, for each 32 columns: bit 4 (i % 4) + 2 h + w

// The sums of a block that has all of K.
inline void store_sums(const Out &out, const float (&sum)[BN / 2], Left &left, uint memory) {
    float nothing[4] = {}; // or NaN, if a sum is no number
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) nothing[i % 4] = fmaf(sum[i], 0.0f, nothing[i % 4]);
    if (out.simple() && __all_sync(0xffffffffu, nothing[0] + nothing[1] + nothing[2] + nothing[3] == 0.0f)) {
        out.store_all(sum, memory);
    } else {
#pragma unroll
        for (int i = 0; i < BN / 8; ++i) left[i / 4] |= out.store(i, sum + 4 * i) << i % 4 * 4;
    }
}

// The sums of a cluster's blocks, each of a slice of K, added in their order: each block stores every SLICES-th of a thread's fragments. ``ring``,
// shared memory in which the blocks leave their sums; all its stages have been read. The cluster must meet once more before
// a block leaves: the others read its sums.
inline void store_cluster_sums(const Out &out, const float (&sum)[BN / 2], Left &left, uint ring, int slice) {
    uint sums = ring + threadIdx.x / 128 * (64 * BN * 4) + threadIdx.x % 128 * 4;
    /*!ring-is-read*/consumers_meet(); // the ring is read no more
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) shared_put(sums + 512 * i, sum[i]);
    cluster_sync();
#pragma unroll
    for (int i = 0; i < BN / 8; ++i) {
        if (i % SLICES != slice) continue;
        float total[4] = {};
#pragma unroll
        for (int r = 0; r < SLICES/*!slices-added*/; ++r)
#pragma unroll
            for (int x = 0; x < 4; ++x) total[x] += shared_of(sums + 512 * (4 * i + x), r);
        left[i / 4] |= out.store(i, total) << i % 4 * 4;
    }
}
